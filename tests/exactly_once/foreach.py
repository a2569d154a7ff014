"""foreachBatch in classic Spark: plain, and with threads of its own.

- ``plain``: each micro-batch is written with ``df.write`` to the stream PLAIN, without any option about ids.
- ``helper``: the same with ``jetspark.spark.write``, twice, to the stream OUT.
- ``threads``: two threads write the micro-batch to the streams LEFT and RIGHT at the same time, with
  ``batch_id``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from exactly_once.checks import stored_once, stored_times
from exactly_once.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from jetspark import blocking


class Foreach(Scenario):
    """See the module."""

    name: ClassVar[str] = "foreach"
    about: ClassVar[str] = "foreachBatch: df.write, two writes of one micro-batch"
    streams: ClassVar[tuple[str, ...]] = ("OUT", "PLAIN")

    def checkpoints(self) -> Mapping[str, Path]:
        return {name: self.run.folder / name for name in ("plain", "helper")}

    def command(self, life: int, *, finish: bool) -> list[str]:
        flags = ["--trigger", str(self.run.trigger), *(["--finish"] if finish else [])]
        return self.module("foreach_job", *flags, "--queries", *self.checkpoints())

    def check(self, js: blocking.JetStream, said: str) -> list[str]:
        messages = self.run.messages
        return [*stored_once(js, "PLAIN", messages), *stored_times(js, "OUT", messages, 2)]


class Threads(Foreach):
    """The third query alone."""

    name: ClassVar[str] = "threads"
    about: ClassVar[str] = "foreachBatch with two threads that write at the same time"
    streams: ClassVar[tuple[str, ...]] = ("LEFT", "RIGHT")

    def checkpoints(self) -> Mapping[str, Path]:
        return {"threads": self.run.folder / "threads"}

    def check(self, js: blocking.JetStream, said: str) -> list[str]:
        return [problem for name in self.streams for problem in stored_once(js, name, self.run.messages)]
