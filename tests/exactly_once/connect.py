"""Spark Connect: the driver is a client of a server, and tasks are not always told their micro-batch.

- ``copy``: append mode, to the stream OUT.
- ``totals``: update mode, to the stream TOTALS.
- ``each``: foreachBatch with ``batch_id``, to the stream EACH.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from exactly_once.checks import stored_once, totals_right
from exactly_once.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from jetspark import blocking


class Connect(Scenario):
    """See the module."""

    name: ClassVar[str] = "connect"
    about: ClassVar[str] = "Spark Connect: append mode, update mode, foreachBatch"
    streams: ClassVar[tuple[str, ...]] = ("OUT", "TOTALS", "EACH")

    def checkpoints(self) -> Mapping[str, Path]:
        return {name: self.run.folder / name for name in ("copy", "totals", "each")}

    def command(self, life: int, *, finish: bool) -> list[str]:
        flags = ["--trigger", str(self.run.trigger), *(["--finish"] if finish else [])]
        return self.module("connect_job", *flags)

    def environment(self) -> dict[str, str]:
        # A free port for each server, instead of one for all.
        return {"SPARK_TESTING": "1"}

    def check(self, js: blocking.JetStream, said: str) -> list[str]:
        messages = self.run.messages
        return [
            *stored_once(js, "OUT", messages),
            *stored_once(js, "EACH", messages),
            *totals_right(js, "TOTALS", messages),
        ]
