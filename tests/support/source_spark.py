"""Runs of the model through a real Spark session: the same world and judge, Spark's own order of calls.

Things happen inside of foreachBatch: after Spark planned a micro-batch and before it reads it, and between
reading and commit. Warnings of Python workers reach nobody here, so what `failOnDataLoss=false` tells is not
judged; its rows are.
"""

from __future__ import annotations

import contextlib
import json
import re
import traceback
from typing import TYPE_CHECKING, Any

from jetspark.spark.source.data_loss import DataLossError
from support.helpers import LIMIT
from support.source_judge import Judge, Plan, Row, Verdicts, stretches
from support.source_model import FILTERS, Result
from support.source_world import Host, World

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

_NO_WORKER = "Python worker failed to connect back"
"""Spark gives a new Python process ten seconds, which a busy machine may need. To the query it is a crash."""
_TOLD = re.compile(r"DataLossError: stream '([^']+)': ([^\n]*)")
_KINDS = {
    "no longer exists": "vanished",
    "deleted and created again": "recreated",
    "the stream ends at": "rewound",
}


class SparkRun:
    """One seed: a streaming query from the beginning, some restarts, and a last run to the end."""

    def __init__(
        self, host: Host, seed: int, spark: SparkSession, folder: Path, chance: random.Random
    ) -> None:
        self.seed, self.spark, self.chance = seed, spark, chance
        self.checkpoint = folder / f"checkpoint-{seed}"
        self.host = host
        self.verdicts = Verdicts()
        self.world = World(host, chance, seed)
        self.truth = self.world.truth
        self.judge = Judge(self.truth, self.verdicts, "Spark query")
        self.subjects = tuple(one for one in chance.choice(FILTERS).split(",") if one)
        self._quiet = False
        self._plan: Plan | None = None

    def play(self) -> Result:
        try:
            fail = True
            for _ in range(self.chance.choice((1, 2))):
                fail = self._session(fail=fail)
                self.world.some(3)
            self._quiet = True
            for name in self.world.names:
                if self.truth.current(name) is None:
                    self.world._create(name)
            for _ in range(3):
                crashes = self.verdicts.figures["crashes"]
                self._session(fail=False)
                if self.verdicts.figures["crashes"] == crashes:
                    break
            self.world.look()
            self.judge.finished(self.world.names, self.subjects)
        except Exception:
            self.verdicts.problems.append("the model itself failed: " + traceback.format_exc())
        finally:
            self.world.close()
        self.verdicts.figures["Spark queries"] += 1
        found = self.verdicts
        return Result(
            self.seed, found.problems, found.figures, self.world.events, self.truth.log, self.world.flavour
        )

    def _session(self, *, fail: bool) -> bool:
        """Trigger.AvailableNow to its end; returns whether the next one should fail on data loss, too."""
        self.truth.tick(f"Spark query starts, failOnDataLoss {fail}, subjects {self.subjects}")
        self.judge.deaf = not fail
        self._plan = None
        options: dict[str, Any] = {
            "servers": ",".join(self.host.urls),
            "stream": ",".join(self.world.names),
            "startingPosition": "earliest",
            "failOnDataLoss": str(fail).lower(),
            "maxMessagesPerTrigger": 12,
            "minPartitions": 2,
        }
        if self.subjects:
            options["subjects"] = ",".join(self.subjects)
        frame = self.spark.readStream.format("jetstream").options(**options).load()
        writer = frame.writeStream.foreachBatch(self._batch).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.checkpoint)).start()
        try:
            assert query.awaitTermination(int(LIMIT)), "the query did not end"
        except Exception as error:
            if _NO_WORKER in str(error):
                self.verdicts.figures["crashes"] += 1
                return fail
            self._failed(error, fail=fail)
            return False
        finally:
            with contextlib.suppress(Exception):
                query.stop()
        return fail

    def _batch(self, frame: DataFrame, batch_id: int) -> None:
        lines = (self.checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
        self.world.look()
        self.truth.tick(f"Spark query plans batch {batch_id}: {lines[-1]}")
        self._plan = Plan(self.subjects, stretches(json.loads(lines[-1])), self.truth.step)
        self._moment()
        rows = [
            Row(row.stream, row.sequence, row.subject, bytes(row.data))
            for row in frame.select("stream", "sequence", "subject", "data").collect()
        ]
        self.world.look()
        self.truth.tick(f"Spark query commits batch {batch_id}: {len(rows)} rows")
        self.judge.commit(self._plan, rows)
        self._plan = None
        self._moment()

    def _moment(self) -> None:
        if not self._quiet and self.chance.random() < 0.6:
            self.world.some(2)

    def _failed(self, error: Exception, *, fail: bool) -> None:
        self.world.look()
        told = _TOLD.search(str(error))
        if told is None:
            self.judge.problem(f"{type(error).__name__} instead of rows or data loss: {str(error)[:600]}")
        elif not fail:
            self.judge.problem(f"failed in spite of failOnDataLoss=false: {told[0][:300]}")
        else:
            kind = next((kind for words, kind in _KINDS.items() if words in told[2]), "removed")
            problem, _, remedy = told[2].partition("; ")
            self.judge.alarm(DataLossError(told[1], kind, problem, remedy), self.subjects, self._plan)
