"""Three streaming queries in one driver: append to a stream, update mode to a stream, append to parquet.

- ``copy``: every message goes to the stream OUT.
- ``table``: every message becomes a row of a parquet table.
- ``totals``: count and sum for each key, kept by Spark, written to the stream TOTALS whenever they change.
- ``control`` (with ``--control``): as ``copy``, but without message ids, so at least once only. It shows what
  the kills would have done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from exactly_once.checks import count, stored_once, table_right, totals_right
from exactly_once.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from jetspark import blocking


class Queries(Scenario):
    """See the module."""

    name: ClassVar[str] = "queries"
    about: ClassVar[str] = "append and update mode into streams, append into parquet"
    streams: ClassVar[tuple[str, ...]] = ("OUT", "TOTALS", "CONTROL")

    def checkpoints(self) -> Mapping[str, Path]:
        return {name: self.run.folder / name for name in ("copy", "totals", "table")}

    def command(self, life: int, *, finish: bool) -> list[str]:
        flags = ["--trigger", str(self.run.trigger)]
        flags += ["--control"] if self.run.control else []
        return self.module("queries_job", *flags, *(["--finish"] if finish else []))

    def check(self, js: blocking.JetStream, said: str) -> list[str]:
        messages = self.run.messages
        if self.run.control:
            twice = sum(times > 1 for times in count(js, "CONTROL").values())
            print(f"control: without message ids {twice} messages were stored twice", flush=True)
        return [
            *table_right(said, messages),
            *stored_once(js, "OUT", messages),
            *totals_right(js, "TOTALS", messages),
        ]
