"""The counts of a write, and how they reach the driver's Python.

Spark runs ``commit`` in its own process and returns nothing from it. So ``commit`` writes a small JSON file
to the path in option ``resultFile``. ``jetspark.spark.write`` names a file in a private folder and reads it
when Spark has returned.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger("jetspark.spark.sink")


class TaskCounts(Protocol):
    """What a task reports about its rows."""

    rows: int
    stored: int
    duplicates: int
    dead_letters: int
    resent: int
    bytes: int
    streams: tuple[str, ...]
    dropped_headers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """The counts of one write. Each row is stored, a duplicate, or a dead letter."""

    rows: int
    """Rows of the DataFrame."""
    stored: int
    """Rows that this write stored."""
    duplicates: int
    """Rows that were not stored, because the stream had a message with their id."""
    dead_letters: int
    """Rows that can't be messages and went to ``deadLetterSubject``."""
    resent: int
    """Messages sent more than once, for example after a reconnect."""
    bytes: int
    """Bytes of the bodies."""
    streams: tuple[str, ...]
    """The streams that store the rows."""
    dropped_headers: tuple[str, ...]
    """Names of ``Nats-*`` headers that were left out; see ``keepNatsHeaders``."""

    def __str__(self) -> str:
        return (
            f"{self.rows} rows, {self.stored} stored, {self.duplicates} duplicates, "
            f"{self.dead_letters} dead letters, {self.resent} sent again, {self.bytes} bytes, "
            f"streams: {', '.join(self.streams) or 'none'}"
        )


def save_result(result: WriteResult, path: str) -> None:
    """Write it to a new file. The rows are stored already, so a failure is only logged."""
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(opened, "w", encoding="utf-8") as file:
            json.dump(asdict(result), file)
    except FileNotFoundError:
        # A client of Spark Connect named a folder on its own machine.
        log.info("resultFile %r: there is no such folder on the driver", path)
    except OSError as error:
        log.warning("resultFile %r can't be written: %s", path, error)


def load_result(path: str) -> WriteResult | None:
    """Read it; None when the driver could not write it here."""
    try:
        with open(path, encoding="utf-8") as file:
            fields: dict[str, Any] = json.load(file)
    except FileNotFoundError:
        return None
    fields |= {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return WriteResult(**fields)


def total(done: Iterable[TaskCounts]) -> WriteResult:
    """The total of the tasks."""
    tasks = list(done)
    return WriteResult(
        rows=sum(one.rows for one in tasks),
        stored=sum(one.stored for one in tasks),
        duplicates=sum(one.duplicates for one in tasks),
        dead_letters=sum(one.dead_letters for one in tasks),
        resent=sum(one.resent for one in tasks),
        bytes=sum(one.bytes for one in tasks),
        streams=tuple(sorted({name for one in tasks for name in one.streams})),
        dropped_headers=tuple(sorted({name for one in tasks for name in one.dropped_headers})),
    )
