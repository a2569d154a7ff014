"""``spark.readStream.format("jetstream")``: micro-batches as ranges of sequences.

The driver's part runs in one Python process per query; ``read`` runs in other processes, on copies that
know nothing but options and partition. The calls of Spark 4.3, in order: ``prepareForTriggerAvailableNow``
(with that trigger), ``getDefaultReadLimit``, ``initialOffset`` (twice in batch 0), then for each batch
``latestOffset``, ``reportLatestOffset``, ``commit`` of the batch before, ``partitions``. After a failed batch
``partitions`` with the logged offsets comes first.

What must hold: ``partitions(start, end)`` depends on ``end`` alone (see
:mod:`jetspark.spark.source.offsets`); a start that moves (latest, a time) gets into the log at once, by an
empty first batch, so that stopping the query before the first message does not lose the ones that come until
it is started again.
"""

from __future__ import annotations

import json
import logging
import sys
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

from jetspark.errors import JetsparkError, StreamNotFound
from jetspark.spark.patience import PASSING, Patience, patiently
from jetspark.spark.source.batch_reader import RangePartition, read_ranges
from jetspark.spark.source.claims import Outcome, first_sequence, found_of, judge_stream, seen_of
from jetspark.spark.source.data_loss import identity, recreated, replaced, report, rewound, vanished
from jetspark.spark.source.offsets import Offset, OffsetError, StreamOffset, parse_offset
from jetspark.spark.source.options import EARLIEST, LATEST, Position, Positions, SourceOptions, check_stream
from jetspark.spark.source.pace import MANY_STREAMS, Pace
from jetspark.spark.source.planning import Backlog, Range, limit, plan, should_wait
from jetspark.spark.source.schema import check_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from jetspark.blocking.jetstream import JetStream
    from jetspark.blocking.stream import Stream
    from jetspark.jetstream.models.stream_info import StreamInfo
    from jetspark.spark.source.claims import Seen
    from jetspark.spark.source.progress import ProgressMirror
    from jetspark.spark.source.watch import AccountWatch, StreamWatch, Watch

logger = logging.getLogger("jetspark.spark")

#: From this interval on a query counts as idle and lets the server wake it.
WATCH_INTERVAL = 0.4


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
        self._looked = False
        self._pace = Pace()
        self._waiting_since: float | None = None
        self._mirror: ProgressMirror | None = None
        self._missed: set[str] = set()
        self._handles: dict[str, Stream] = {}
        # The look after which a stream's end was last found to be what it was.
        self._proved: dict[str, StreamInfo] = {}
        self._watch: StreamWatch | None = None
        self._watch_failed = 0
        self._account: AccountWatch | None = None

    # Called by Spark

    def prepareForTriggerAvailableNow(self) -> None:
        self._look()
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
            from jetspark.spark.source.positions import require_streams, resolve

            # A pattern may match nothing yet: streams join when they are created.
            infos = require_streams(self._js, self._options.streams, some=False)
            self._progress().check(infos)
            self._infos, self._looked = infos, True
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
                    seen=seen_of(info),
                    skipped=begin > first_sequence(info),
                )
            self._initial = Offset(streams, self._options.subjects, initial=True)
            self._progress().begin(self._initial)
        return self._initial.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = parse_offset(start)
        self._follow(begin)
        self._rest(begin)
        self._look(begin)
        end = self._end(begin, limit)
        if end is not None:
            self._end_watch()
            self._pace.news()
            return end.to_json()
        if begin.initial and self._starts.move:
            return begin.settled().to_json()
        self._pace.nothing(time.monotonic(), len(self._infos))
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
            Range(name, one.begin, one.next, one.created, last.subjects, one.earliest, seen=one.seen)
            for name, one in last.streams.items()
        ]
        found = plan(
            ranges,
            min_partitions=self._options.min_partitions,
            max_messages=self._options.max_messages_per_partition,
        )
        return [RangePartition(one) for one in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_ranges(self._options, self._schema, partition)

    def stop(self) -> None:
        """Spark calls this when one of the calls above failed, not at the normal end of a query."""
        from jetspark.spark.connections import close

        self._end_watch()
        close(self._options.connection)
        damaged = sys.exception()
        if isinstance(damaged, json.JSONDecodeError):
            # Spark itself reads an offset of its checkpoint before it calls us. Here the error can say what
            # is wrong and what to do.
            raise OffsetError(
                f"an offset in the checkpoint is damaged: {damaged} in {damaged.doc!r:.200}; restore the "
                "checkpoint from a backup, or start with a new one and startingSequence"
            ) from damaged

    # The driver's part

    @property
    def _js(self) -> JetStream:
        from jetspark.spark.connections import jetstream

        return jetstream(self._options.connection)

    def _progress(self) -> ProgressMirror:
        if self._mirror is None:
            from jetspark.spark.source.progress import ProgressMirror

            self._mirror = ProgressMirror(self._js, self._options)
        return self._mirror

    def _follow(self, committed: Offset) -> None:
        """Spark asks for a batch from here only after the one before was committed."""
        mirror = self._progress()
        if mirror.wanted and not committed.initial:
            mirror.follow(committed)

    def _look(self, known: Offset | None = None) -> None:
        """Ask the server for the streams. What it answers is as of now, or this raises.

        Spark relies on "nothing new", so this waits for a server that restarts.
        """
        if self._account is not None:
            self._account.looking()
        self._pace.looked(time.monotonic())
        patience = Patience()
        while True:
            try:
                self._infos = self._find(known)
                break
            except PASSING as error:
                if not self._looked:
                    raise
                logger.warning("could not ask for the streams, will try again: %s", error)
                patience.lost(False, error)
        self._looked = True
        self._progress().check(self._infos)

    def _find(self, known: Offset | None) -> dict[str, StreamInfo]:
        from jetspark.spark.source.positions import find_streams

        js, streams = self._js, self._options.streams
        found = find_streams(js, streams)
        if known is not None and streams.patterns:
            # A list leaves out streams without a leader: those are asked for by name.
            missing = [name for name in known.streams if name not in found and streams.selects(name)]
            found |= js.stream_infos([name for name in missing if name not in self._missed])
        return found

    def _rest(self, begin: Offset) -> None:
        """Before another look: wait while nothing happens, so that Spark does not ask all the time."""
        if self._target is not None:
            return  # AvailableNow ends at once when there is nothing
        wait = self._pace.wait(time.monotonic())
        if wait <= 0:
            return
        watch = self._watched(begin)
        if watch is None:
            time.sleep(wait)
        elif watch.wait(wait):
            self._end_watch()
        elif watch.broken and watch is self._watch:
            self._watch_failed = self._watch.following
            self._end_watch()

    def _watched(self, begin: Offset) -> Watch | None:
        """What wakes us once it has been idle for a moment: for one stream, or for very many."""
        if self._pace.interval < WATCH_INTERVAL:
            return None
        from jetspark.spark.source import watch

        if len(self._infos) > MANY_STREAMS:
            if self._account is None:
                self._account = watch.AccountWatch(self._js)
                self._account.looking()
            return self._account
        names = self._options.streams.names
        if len(names) != 1 or self._options.streams.patterns:
            return None
        place, info = begin.streams.get(names[0]), self._infos.get(names[0])
        if place is None or info is None or info.state.last_seq >= place.next or not watch.watchable(info):
            return None  # gone; or there are messages, fewer than minMessagesPerTrigger
        if self._watch is not None and self._watch.following != place.next:
            self._end_watch()
        if self._watch is None and self._watch_failed != place.next:
            self._watch = watch.StreamWatch.start(self._js, names[0], place.next)
            if self._watch is None:
                self._watch_failed = place.next
        return self._watch

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
            streams[name] = replace(
                one,
                next=ends[name],
                ahead=one.ahead and ends[name] == one.next,
                seen=seen_of(self._infos[name]),
            )
        marked = {
            name: replace(one, skipped=begin.skips(name, one.created, options.subjects))
            for name, one in streams.items()
        }
        return Offset(marked, options.subjects)

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
            try:
                starts[name] = self._check(name, one, info)
            except StreamNotFound:
                self._vanished(name, one)
                continue
            moved = moved or (starts[name].created, starts[name].next) != (one.created, one.next)
        for name, info in self._infos.items():
            if name not in begin.streams and (self._target is None or name in self._target):
                # New since the query started: from its beginning, whatever the starting position was.
                first = first_sequence(info)
                starts[name] = StreamOffset(first, first, identity(info), earliest=True)
        return starts, moved

    def _look_again(self, name: str, one: StreamOffset) -> StreamInfo | None:
        """A stream that the last look did not find: a list leaves out those without a leader."""
        if name in self._missed:
            return None
        try:
            found = self._infos[name] = self._js.get_stream(name).cached_info
            return found
        except StreamNotFound:
            self._vanished(name, one)
        except PASSING as error:
            logger.warning("stream %r does not answer, will try again: %s", name, error)
        return None

    def _vanished(self, name: str, one: StreamOffset) -> None:
        report(vanished(name, one.next), fail=self._options.fail_on_data_loss)
        self._infos.pop(name, None)
        self._missed.add(name)

    def _tail_time(self, name: str, info: StreamInfo, seen: Seen) -> int | None:
        """When the message that is now at the end of then was stored."""
        from jetspark.spark.source.range_proof import tail_time

        if name not in self._handles:
            self._handles[name] = self._js.get_stream(name)
        try:
            return tail_time(self._handles[name], info, seen)
        except JetsparkError:
            # Its connection may be one that was given up.
            del self._handles[name]
            raise

    def _check(self, name: str, one: StreamOffset, info: StreamInfo) -> StreamOffset:
        """The place from which a stream is read on; what was lost since it was planned is reported."""
        from jetspark.spark.source.moments import after
        from jetspark.spark.source.positions import check_gap

        options = self._options
        fail = options.fail_on_data_loss
        first, latest = first_sequence(info), info.state.last_seq + 1
        if identity(info) != one.created:
            report(recreated(name, one.next, one.created, identity(info)), fail=fail)
            return StreamOffset(first, first, identity(info), earliest=True)
        if latest < one.next and not one.ahead:
            report(rewound(name, one.next, latest - 1), fail=fail)
            return StreamOffset(latest, latest, one.created)
        unread = one.earliest and one.unread
        if one.seen is not None and latest > one.next and not unread and self._proved.get(name) is not info:
            # Only when there is something to read, and a loss would be passed by.
            seen = one.seen
            time = patiently(lambda: self._tail_time(name, info, seen), f"the end of stream {name!r}")
            if judge_stream(1, one.seen, found_of(info), time) != Outcome.FINE:
                report(replaced(name, one.seen.tail), fail=fail)
                following = min(one.next, after(self._js, info, one.seen.tail_time))
                return StreamOffset(following, following, one.created)
            self._proved[name] = info
        if first <= one.next:
            return StreamOffset(one.next, one.next, one.created, unread, one.ahead, one.seen)
        if not unread:
            stream = patiently(lambda: self._js.get_stream(name), f"the head of stream {name!r}")
            check_gap(stream, info, one.next, first, options, one.seen)
        return StreamOffset(first, first, one.created, unread)
