"""``jetspark pipe``: a job that is edited between its lives, and one that gets more sinks.

The job copies every message to the stream OUT and into a parquet folder. Each life is a run of the command
itself. Whether a life was killed inside a micro-batch makes no difference to who edits the job.
"""

from __future__ import annotations

import collections
import json
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow.parquet as pq

from exactly_once.checks import stored_once
from exactly_once.scenario import Scenario
from jetspark.cli.pipe.job import parse_sink

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetspark import blocking

SCHEMA = "n long, key long"
NAME = "copy"
PAUSE = "reflect('java.lang.Thread', 'sleep', if(n % 100 = 0, 100L, 0L)) AS pause"
"""A column without a value. With :data:`CONF` it makes rows come to the sink over some seconds, so that kills
hit micro-batches of which some rows are stored."""
CONF = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100", "spark.buffer.size": "4096"}


class _Pipe(Scenario):
    """What both have in common: a job file that is written before each life."""

    def sinks(self, life: int) -> list[str]:
        """Where the rows go in this life."""
        raise NotImplementedError

    def sql(self, life: int) -> str:
        """What the query is in this life."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {"XDG_STATE_HOME": str(self._state), "NATS_URL": self.run.url}

    @property
    def _state(self) -> Path:
        return self.run.folder / "state"

    def folder(self, number: int) -> Path:
        return self.run.folder / f"table{number}"

    def _checkpoint(self, sink: str) -> Path:
        found = parse_sink(sink)
        return self._state / "jetspark" / "pipe" / "named" / NAME / found.slug(found.key())

    def checkpoints(self) -> Mapping[str, Path]:
        return {sink: self._checkpoint(sink) for sink in self.sinks(self._life)}

    _life = 0

    def command(self, life: int, *, finish: bool) -> list[str]:
        self._life = life
        job = {
            "name": NAME,
            "from": "IN",
            "json_schema": SCHEMA,
            "sql": self.sql(life),
            "to": self.sinks(life),
            "max_per_batch": self.run.trigger,
            "trigger": "available-now" if finish else "100ms",
            "master": "local[2]",
        }
        path = self.run.folder / "job.toml"
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in job.items()]
        lines += ["[conf]\n", *(f'"{key}" = "{value}"\n' for key, value in CONF.items())]
        path.write_text("".join(lines))
        return [str(Path(sysconfig.get_path("scripts")) / "jetspark"), "pipe", "run", str(path)]

    def _table_right(self, number: int) -> list[str]:
        counts: collections.Counter[int] = collections.Counter()
        for path in _files(self.folder(number)):
            counts.update(pq.read_table(path, columns=["n"])["n"].to_pylist())
        wanted = self.run.messages
        lost = sum(1 for n in range(wanted) if n not in counts)
        twice = sum(1 for times in counts.values() if times > 1)
        if lost or twice or len(counts) != wanted:
            return [f"table {number}: {lost} lost, {twice} twice, {len(counts)} distinct of {wanted}"]
        return []


class EditedPipe(_Pipe):
    """Each life has another query: a blank, a comment, a filter that holds for all, another column."""

    name: ClassVar[str] = "pipe-edited"
    about: ClassVar[str] = "jetspark pipe into a stream and parquet, its SQL edited before each run"

    def sinks(self, life: int) -> list[str]:
        subject = "out.copy" if life % 2 else "out.{key}"
        return [f"jetstream:OUT:{subject}", f"parquet:{self.folder(0)}"]

    def sql(self, life: int) -> str:
        # Each edit makes other rows of the same messages, apart from the first two.
        return [
            f"SELECT n, key, {PAUSE} FROM input",
            f"SELECT n,   key, {PAUSE} FROM input -- a blank and a comment",
            f"SELECT n, key, 'life {life}' AS life, {PAUSE} FROM input WHERE n >= 0",
            f"SELECT n, key, 'life {life}' AS life, n + {life} AS more, {PAUSE} FROM input",
        ][life % 4]

    def check(self, js: blocking.JetStream, said: str) -> list[str]:
        return [*stored_once(js, "OUT", self.run.messages), *self._table_right(0)]


class GrowingPipe(_Pipe):
    """Every second life has a parquet folder more; the last ones are taken out and come back."""

    name: ClassVar[str] = "pipe-sinks"
    about: ClassVar[str] = "jetspark pipe that gets more sinks from run to run, and one taken out and back"
    most = 3

    def sinks(self, life: int) -> list[str]:
        more = min(1 + life // 2, self.most)
        found = ["jetstream:OUT:out.{key}", *(f"parquet:{self.folder(number)}" for number in range(more))]
        # The first folder is left out for one life in five; a finishing life has all.
        return [one for one in found if not (life % 5 == 3 and one.endswith("table0"))]

    def sql(self, life: int) -> str:
        return "SELECT n, key FROM input"

    def command(self, life: int, *, finish: bool) -> list[str]:
        return super().command(5 * self.most if finish else life, finish=finish)

    def check(self, js: blocking.JetStream, said: str) -> list[str]:
        problems = stored_once(js, "OUT", self.run.messages)
        for number in range(self.most):
            problems += self._table_right(number)
        return problems


def _files(folder: Path) -> list[str]:
    """The files that Spark's log names: others are of micro-batches that were cut off."""
    logs = {
        int(path.name.partition(".")[0]): path
        for path in (folder / "_spark_metadata").iterdir()
        if path.name[0].isdigit()
    }
    compact = [number for number, path in logs.items() if path.name.endswith(".compact")]
    first = max(compact, default=0)
    found: list[str] = []
    for number in sorted(logs):
        if number >= first:
            lines = logs[number].read_text().splitlines()[1:]
            found += [json.loads(line)["path"].removeprefix("file://") for line in lines]
    return found
