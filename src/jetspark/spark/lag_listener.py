"""How far behind its streams a query is, taken from Spark's own progress reports.

``spark.streams.addListener(StreamLagListener())`` logs a line per stream at each progress and keeps the
last figures in :attr:`StreamLagListener.lags`. Lag counts sequences: messages that the stream has deleted, or
that the query's subjects filter out, count as long as they are ahead.
"""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from jetspark.spark.source.offsets import Offset, OffsetError, parse_offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = logging.getLogger("jetspark.spark.lag")


@dataclass(frozen=True, slots=True)
class StreamLag:
    """One stream as one query sees it, after its last micro-batch."""

    query_id: str
    query_name: str | None
    batch_id: int
    stream: str
    position: int
    """Next sequence that the query will read."""
    latest: int
    """Next sequence that the stream will assign."""
    read_per_second: float
    """Sequences that the query passed per second, between the last two progress reports."""
    arrive_per_second: float
    """Sequences that the stream assigned per second in the same time."""

    @property
    def lag(self) -> int:
        """Sequences between the query and the end of the stream."""
        return max(0, self.latest - self.position)

    @property
    def seconds_behind(self) -> float | None:
        """Time to catch up at the present rates; None when the query is falling behind."""
        if self.lag == 0:
            return 0.0
        gain = self.read_per_second - self.arrive_per_second
        return self.lag / gain if gain > 0 else None


class StreamLagListener(StreamingQueryListener):
    """Logs and keeps lag and rates of every stream that the session's queries read.

    ``warn_at``: from this lag on the log line is a warning (None: never). ``on_lag``: a function called
    with each :class:`StreamLag`, for metrics; what it raises is logged and does not reach Spark.
    """

    def __init__(
        self, *, warn_at: int | None = None, on_lag: Callable[[StreamLag], None] | None = None
    ) -> None:
        super().__init__()
        self._warn_at = warn_at
        self._on_lag = on_lag
        # Spark calls from its own thread.
        self._guard = threading.Lock()
        self._lags: dict[tuple[str, str], StreamLag] = {}
        self._times: dict[tuple[str, str], datetime] = {}

    @property
    def lags(self) -> dict[tuple[str, str], StreamLag]:
        """The last figures, by (query id, stream)."""
        with self._guard:
            return dict(self._lags)

    def lag(self, stream: str, query_id: str | None = None) -> int | None:
        """The largest lag of a stream over all queries, or in one; None when nothing reads it."""
        found = [
            one.lag
            for (query, name), one in self.lags.items()
            if name == stream and query_id in (None, query)
        ]
        return max(found, default=None)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to report yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing new; the figures stay."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget the query."""
        with self._guard:
            for key in [key for key in self._lags if key[0] == str(event.id)]:
                del self._lags[key], self._times[key]

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Take the figures out of a progress report."""
        report = event.progress
        self.take(json.loads(report.json))

    def take(self, progress: dict[str, Any]) -> list[StreamLag]:
        """The same for the JSON of a report, e.g. one of ``query.recentProgress``; gives what it found."""
        at = datetime.fromisoformat(progress["timestamp"])
        found: list[StreamLag] = []
        for source in progress.get("sources", []):
            end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
            if end is None or latest is None:
                continue  # another kind of source
            for stream, place in end.streams.items():
                if stream in latest.streams:
                    found.append(self._measure(progress, stream, place.next, latest.streams[stream].next, at))
        for one in found:
            self._report(one)
        return found

    def _measure(
        self, progress: dict[str, Any], stream: str, position: int, latest: int, at: datetime
    ) -> StreamLag:
        query = str(progress["id"])
        key = (query, stream)
        # The stream's end is asked for before the batch is planned, so it may be older than its end.
        latest = max(latest, position)
        with self._guard:
            before, since = self._lags.get(key), self._times.get(key)
            seconds = (at - since).total_seconds() if since is not None else 0.0
            reading = arriving = 0.0
            if before is not None and seconds > 0:
                reading = max(0, position - before.position) / seconds
                arriving = max(0, latest - before.latest) / seconds
            found = StreamLag(
                query_id=query,
                query_name=progress.get("name"),
                batch_id=int(progress["batchId"]),
                stream=stream,
                position=position,
                latest=latest,
                read_per_second=reading,
                arrive_per_second=arriving,
            )
            self._lags[key], self._times[key] = found, at
        return found

    def _report(self, one: StreamLag) -> None:
        level = logging.WARNING if self._warn_at is not None and one.lag >= self._warn_at else logging.INFO
        log.log(
            level,
            "query %s batch %d stream %s: lag %d, at %d of %d, reads %.1f/s, arrive %.1f/s",
            one.query_name or one.query_id,
            one.batch_id,
            one.stream,
            one.lag,
            one.position,
            one.latest,
            one.read_per_second,
            one.arrive_per_second,
        )
        if self._on_lag is not None:
            try:
                self._on_lag(one)
            except Exception:
                log.exception("on_lag failed for stream %s", one.stream)


def _offset(value: object) -> Offset | None:
    """The offset, or None when it is another source's."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    try:
        return parse_offset(value)
    except OffsetError:
        return None
