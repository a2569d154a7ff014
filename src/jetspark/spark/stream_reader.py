"""``spark.readStream.format("jetstream")``: micro-batches as ranges of sequences.

The driver's part runs in one Python process for a query; ``read`` runs in other processes, on copies that
know nothing but options and partition. The calls of Spark 4.3, in order: ``prepareForTriggerAvailableNow``
(with that trigger), ``getDefaultReadLimit``, ``initialOffset`` (twice in batch 0), then for each batch
``latestOffset``, ``reportLatestOffset``, ``commit`` of the batch before, ``partitions``. After a failed batch
``partitions`` with the logged offsets comes first.

What must hold: ``partitions(start, end)`` depends on ``end`` alone (see :mod:`jetspark.spark.offsets`);
a start that moves (latest, a time) gets into the log at once, by an empty first batch, so that stopping the
query before the first message does not lose the ones that come until it is started again.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from jetspark.spark.batch_reader import RangePartition, read_range
from jetspark.spark.data_loss import (
    compacts,
    first_sequence,
    identity,
    recreated,
    removed,
    report,
    rewound,
    vanished,
)
from jetspark.spark.offsets import Offset, StreamOffset, parse_offset
from jetspark.spark.patience import PASSING, PATIENCE
from jetspark.spark.planning import Backlog, Range, limit, should_wait, split
from jetspark.spark.schema import check_schema
from jetspark.spark.source_options import EARLIEST, LATEST, Position, Positions, SourceOptions, check_stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from jetspark.blocking.jetstream import JetStream
    from jetspark.jetstream.stream_info import StreamInfo
    from jetspark.spark.progress import ProgressMirror
    from jetspark.spark.watch import Watch

logger = logging.getLogger("jetspark.spark")

#: Seconds between two looks at the server: short after news, doubling to the idle interval.
BUSY_INTERVAL = 0.05
IDLE_INTERVAL = 1.0
#: From this interval on a query counts as idle and lets the server wake it.
WATCH_INTERVAL = 0.4
#: How long one call of latestOffset may sleep; other sources of the same query wait meanwhile.
_NAP = 0.05


class JetStreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of a streaming query. Picklable until the driver's part is first used."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = check_stream(options)
        self._schema = schema
        self._starts = options.start or Positions(Position(edge=LATEST))
        self._initial: Offset | None = None
        # With Trigger.AvailableNow: where each stream ended when the query started.
        self._target: dict[str, int] | None = None
        self._infos: dict[str, StreamInfo] = {}
        self._looked = 0.0
        self._interval = BUSY_INTERVAL
        self._waiting_since: float | None = None
        self._mirror: ProgressMirror | None = None
        self._missed: set[str] = set()
        self._watch: Watch | None = None
        self._watch_failed = 0

    # What Spark calls

    def prepareForTriggerAvailableNow(self) -> None:
        self._look(force=True)
        self._target = {name: info.state.last_seq + 1 for name, info in self._infos.items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        # Only one of them can be told to Spark. It hands it back to latestOffset, which looks at the options;
        # what matters is that Trigger.Once then says ReadAllAvailable instead.
        options = self._options
        if options.max_messages_per_trigger is not None:
            return ReadMaxRows(options.max_messages_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_messages_per_trigger is not None:
            return ReadMinRows(options.min_messages_per_trigger)
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            from jetspark.spark.positions import require_streams, resolve

            # A pattern may match nothing yet: streams join when they are created.
            infos = require_streams(self._js, self._options.streams, some=False)
            self._progress().check(infos)
            # An older look would not know what this offset knows, and take it for loss.
            self._infos, self._looked = infos, time.monotonic()
            streams = {}
            for name, info in infos.items():
                position = self._starts.of(name)
                begin = resolve(self._js, info, position)
                streams[name] = StreamOffset(
                    begin,
                    begin,
                    identity(info),
                    earliest=position.edge == EARLIEST,
                    ahead=begin > info.state.last_seq + 1,
                )
            self._initial = Offset(streams, self._options.subjects, initial=True)
            self._progress().begin(self._initial)
        return self._initial.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = parse_offset(start)
        self._follow(begin)
        fresh = self._look()
        end = self._end(begin, limit)
        if end is not None:
            self._end_watch()
            self._interval = BUSY_INTERVAL
            return end.to_json()
        if begin.initial and self._starts.move:
            return begin.settled().to_json()
        self._rest(fresh, begin)
        return start

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if not self._infos:
            return None
        streams = {
            name: StreamOffset(info.state.last_seq + 1, info.state.last_seq + 1, identity(info))
            for name, info in self._infos.items()
        }
        return Offset(streams, self._options.subjects).to_json()

    def commit(self, end: dict[str, Any]) -> None:
        self._follow(parse_offset(end))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        last = parse_offset(end)
        parse_offset(start)
        if start == end or last.initial:
            return []
        ranges = [
            Range(name, one.begin, one.next, one.created, last.subjects, earliest=one.earliest)
            for name, one in last.streams.items()
        ]
        pieces = split(
            ranges,
            min_partitions=self._options.min_partitions,
            max_messages=self._options.max_messages_per_partition,
        )
        return [RangePartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._schema, partition)

    def stop(self) -> None:
        from jetspark.spark.connections import close

        self._end_watch()
        close(self._options.connection)

    # The driver's part

    @property
    def _js(self) -> JetStream:
        from jetspark.spark.connections import jetstream

        return jetstream(self._options.connection)

    def _progress(self) -> ProgressMirror:
        if self._mirror is None:
            from jetspark.spark.progress import ProgressMirror

            self._mirror = ProgressMirror(self._js, self._options)
        return self._mirror

    def _follow(self, committed: Offset) -> None:
        """Spark asks for a batch from here only after the one before was committed."""
        mirror = self._progress()
        if mirror.wanted and not committed.initial:
            mirror.follow(committed)

    def _look(self, *, force: bool = False) -> bool:
        """Ask the server for the streams, unless it was asked a moment ago; whether it was asked."""
        if not force and self._looked and time.monotonic() - self._looked < self._interval:
            return False
        from jetspark.spark.positions import find_streams

        try:
            self._infos = find_streams(self._js, self._options.streams)
        except PASSING as error:
            # A server that restarts: no news, for a while.
            now = time.monotonic()
            if not self._looked or now - self._looked > PATIENCE:
                raise
            logger.warning("could not look at the streams, will try again: %s", error)
            time.sleep(BUSY_INTERVAL * 10)
            return False
        self._looked = time.monotonic()
        self._progress().check(self._infos)
        return True

    def _rest(self, fresh: bool, begin: Offset) -> None:
        """No news: look less often, and do not let Spark ask a hundred times a second meanwhile."""
        if fresh:
            # Several named streams are several requests, so they rest that much longer.
            most = IDLE_INTERVAL * max(1, len(self._options.streams.names))
            self._interval = min(most, max(BUSY_INTERVAL, self._interval * 2))
        nap = max(0.0, min(_NAP, self._looked + self._interval - time.monotonic()))
        if self._watched(begin):
            assert self._watch is not None
            if self._watch.wait(nap):
                self._end_watch()
                self._interval = 0.0
            elif self._watch.broken:
                self._watch_failed = self._watch.following
                self._end_watch()
        else:
            time.sleep(nap)

    def _watched(self, begin: Offset) -> bool:
        """Whether the server wakes us: for a single stream, once it has been idle for a moment."""
        names = self._options.streams.names
        if len(names) != 1 or self._options.streams.patterns or self._interval < WATCH_INTERVAL:
            return False
        place, info = begin.streams.get(names[0]), self._infos.get(names[0])
        if place is None or info is None or info.state.last_seq >= place.next or self._target is not None:
            return False  # gone; or there are messages, fewer than minMessagesPerTrigger
        if self._watch is not None and self._watch.following != place.next:
            self._end_watch()
        if self._watch is None and self._watch_failed != place.next:
            from jetspark.spark.watch import Watch

            self._watch = Watch.start(self._js, names[0], place.next)
            if self._watch is None:
                self._watch_failed = place.next
        return self._watch is not None

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _end(self, begin: Offset, given: ReadLimit) -> Offset | None:
        """The end of the next batch, or None when there is nothing for one."""
        starts, moved = self._starting_points(begin)
        backlogs = {name: self._backlog(name, one) for name, one in starts.items()}
        available = sum(one.messages for one in backlogs.values())
        if not available and not moved:
            self._waiting_since = None
            return None
        unlimited = isinstance(given, ReadAllAvailable)
        if not unlimited and self._put_off(available) and not moved:
            return None
        options = self._options
        ends = limit(
            backlogs,
            max_messages=None if unlimited else options.max_messages_per_trigger,
            max_bytes=None if unlimited else options.max_bytes_per_trigger,
        )
        streams = dict(begin.settled().streams)
        for name, one in starts.items():
            streams[name] = replace(one, next=ends[name], ahead=one.ahead and ends[name] == one.next)
        return Offset(streams, options.subjects)

    def _put_off(self, available: int) -> bool:
        if self._target is not None:
            return False  # AvailableNow promises an end; waiting for more would break it
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        options = self._options
        if should_wait(
            available,
            minimum=options.min_messages_per_trigger,
            waited=now - self._waiting_since,
            max_delay=options.max_trigger_delay,
        ):
            return True
        self._waiting_since = None
        return False

    def _backlog(self, name: str, one: StreamOffset) -> Backlog:
        info = self._infos[name]
        end = info.state.last_seq + 1
        if self._target is not None:
            end = min(end, self._target.get(name, one.next))
        mean = info.state.bytes / info.state.messages if info.state.messages else 0.0
        return Backlog(one.next, max(end, one.next), mean)

    def _starting_points(self, begin: Offset) -> tuple[dict[str, StreamOffset], bool]:
        """From where each stream is read on, data loss reported; and whether a place moved because of it."""
        starts: dict[str, StreamOffset] = {}
        moved = False
        for name, one in begin.streams.items():
            if not self._options.streams.selects(name):
                continue  # no longer asked for; its place is kept
            info = self._infos.get(name) or self._look_again(name, one)
            if info is None:
                continue
            self._missed.discard(name)
            starts[name] = self._check(name, one, info)
            moved = moved or (starts[name].created, starts[name].next) != (one.created, one.next)
        for name, info in self._infos.items():
            if name not in begin.streams and (self._target is None or name in self._target):
                # New since the query started: from its beginning, whatever the starting position was.
                first = first_sequence(info)
                starts[name] = StreamOffset(first, first, identity(info), earliest=True)
        return starts, moved

    def _look_again(self, name: str, one: StreamOffset) -> StreamInfo | None:
        """A stream that the last look did not find: a list leaves out those without a leader."""
        from jetspark.jetstream.errors import StreamNotFound

        if name in self._missed:
            return None
        try:
            found = self._infos[name] = self._js.get_stream(name).cached_info
            return found
        except StreamNotFound:
            report(vanished(name, one.next), fail=self._options.fail_on_data_loss)
            self._missed.add(name)
        except PASSING as error:
            logger.warning("stream %r does not answer, will try again: %s", name, error)
        return None

    def _check(self, name: str, one: StreamOffset, info: StreamInfo) -> StreamOffset:
        fail = self._options.fail_on_data_loss
        first, latest = first_sequence(info), info.state.last_seq + 1
        if identity(info) != one.created:
            report(recreated(name, one.next, one.created, identity(info)), fail=fail)
            return StreamOffset(first, first, identity(info), earliest=True)
        if latest < one.next and not one.ahead:
            report(rewound(name, one.next, latest - 1), fail=fail)
            return StreamOffset(latest, latest, one.created)
        unread = one.earliest and one.unread
        if first <= one.next:
            return StreamOffset(one.next, one.next, one.created, unread, one.ahead)
        if not unread and not compacts(info):
            report(removed(name, one.next, first), fail=fail)
        return StreamOffset(first, first, one.created, unread)
