"""``jetspark pipe``: a job that is edited between its lives, and one that gets more sinks.

The job copies every message to the stream OUT and into parquet folders. Each life is a run of the command
itself. A job is edited whether or not its last life was killed inside a micro-batch.
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow.parquet as pq

from exactly_once.checks import last, stored_once
from exactly_once.scenario import SETTINGS, Run, Scenario
from jetspark.cli.pipe.job import parse_sink

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from jetspark import blocking
    from jetspark.cli.pipe.job import Sink

SCHEMA = "n long, key long"
NAME = "copy"
PAUSE = "reflect('java.lang.Thread', 'sleep', if(n % 100 = 0, 50L, 0L)) AS pause"
"""A column without a value. With :data:`CONF` it makes the rows of a micro-batch come to the sink over some
seconds, so that kills hit micro-batches of which some rows are stored."""
CONF = {**SETTINGS, "spark.sql.execution.arrow.maxRecordsPerBatch": "100", "spark.buffer.size": "4096"}


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

    def _checkpoint(self, sink: Sink) -> Path:
        return self._state / "jetspark" / "pipe" / "named" / NAME / sink.slug(sink.key())

    def checkpoints(self) -> Mapping[str, Path]:
        # By the sink's key, which is the same whatever subject it has.
        return {sink.key(): self._checkpoint(sink) for sink in map(parse_sink, self.sinks(self._life))}

    _life = 0

    def command(self, life: int, *, finish: bool) -> list[str]:
        self._life = life
        return self._job(life, "job.toml", trigger="available-now" if finish else "100ms")

    def _job(self, life: int, file: str, **edits: Any) -> list[str]:
        """Write a job file and return the command that runs it."""
        job = {
            "name": NAME,
            "from": "IN",
            "json_schema": SCHEMA,
            "sql": self.sql(life),
            "to": self.sinks(life),
            "max_per_batch": self.run.trigger,
            # A slot for each sink; four attempts for a task, so that it outlives its Python worker.
            "master": "local[4,4]",
            **edits,
        }
        path = self.run.folder / file
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
    """Each life has another query: a blank, a comment, a filter that holds for all, another column.

    Before each life the job also gets an edit that its checkpoints can't take, which has to be refused.
    """

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

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._taken: list[str] = []
        self._refused = 0

    def command(self, life: int, *, finish: bool) -> list[str]:
        # A checkpoint without a micro-batch takes every edit.
        if all(last(folder, "offsets") >= 0 for folder in self.checkpoints().values()):
            self._edit_refused(life)
        return super().command(life, finish=finish)

    def _edit_refused(self, life: int) -> None:
        edit: dict[str, Any] = [
            {"sql": "SELECT key, count(*) AS n FROM input GROUP BY key"},
            {"partition_by": ["key"]},
        ][life % 2]
        ended = subprocess.run(
            self._job(life, "refused.toml", trigger="available-now", **edit),
            env={**os.environ, **self.environment()},
            cwd=self.run.folder,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
        )
        self._refused += 1
        if ended.returncode == 0 or "--restart-from committed" not in ended.stderr:
            self._taken.append(f"life {life}: {edit} was not refused with a choice: {ended.stderr[-2000:]}")

    def check(self, js: blocking.JetStream, said: str) -> list[str]:
        never = [] if self._refused else ["no edit was tried that has to be refused"]
        return [*self._taken, *never, *stored_once(js, "OUT", self.run.messages), *self._table_right(0)]


class GrowingPipe(_Pipe):
    """Every second life has a parquet folder more, up to three; the first one is taken out and comes back."""

    name: ClassVar[str] = "pipe-sinks"
    about: ClassVar[str] = "jetspark pipe that gets more sinks from run to run, and one taken out and back"
    most = 3

    def sinks(self, life: int) -> list[str]:
        more = min(1 + life // 2, self.most)
        found = ["jetstream:OUT:out.{key}", *(f"parquet:{self.folder(number)}" for number in range(more))]
        # The first folder is left out for one life in five; a finishing life has all.
        return [one for one in found if not (life % 5 == 3 and one.endswith("table0"))]

    def sql(self, life: int) -> str:
        return f"SELECT n, key, {PAUSE} FROM input"

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
