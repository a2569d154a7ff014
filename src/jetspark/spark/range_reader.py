"""Reading one range of a stream, on an executor: every message of ``[begin, end)`` once, in order, as Arrow.

An ephemeral pull consumer with ack policy none delivers through the columnar path. Nothing is acked, so
nothing is delivered again, and a message lost on the way (a broken connection, a slow-consumer cut) shows
only as a hole in the consumer's own sequence. So that sequence is counted: when it does not fit, or the
consumer is gone, another one is made behind the last row that was handed out.

The end is proved, never waited for. It has come when a sequence at or behind ``end - 1`` was seen, when the
last row said that nothing is pending behind it, or when the consumer, asked after a silence, says that it has
delivered all there is. So ranges whose messages were deleted, purged or filtered away can't hang a task.

A consumer knows no more than the replica it lives with, and a direct get than the one that answers; either
may be behind the leader, which was asked for ``end``. So where a range seems to end early, the leader is
asked whether it has another message of it.

Work-queue streams refuse such consumers and are read by batch direct get, which consumes nothing either.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import pyarrow as pa

from jetspark.arrow import SCHEMA as ARROW_SCHEMA
from jetspark.arrow import consume_arrow
from jetspark.errors import JetsparkError
from jetspark.jetstream.consume_errors import ConsumerDeleted
from jetspark.jetstream.consumer_config import AckPolicy, ConsumerConfig, DeliverPolicy
from jetspark.jetstream.errors import ConsumerNotFound, StreamNotFound
from jetspark.jetstream.stream_config import RetentionPolicy
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
from jetspark.spark.patience import PASSING, Patience

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jetspark.blocking.consumer import Consumer
    from jetspark.blocking.jetstream import JetStream
    from jetspark.blocking.stream import Stream
    from jetspark.jetstream.stored import StoredMsg
    from jetspark.jetstream.stream_info import StreamInfo
    from jetspark.spark.planning import Range

#: Seconds after which the server removes the consumer of a task that died. A task that is only slow makes
#: a new one.
INACTIVE_THRESHOLD = 60.0
#: Seconds without a message after which the consumer is asked whether there are any more.
SILENCE = 0.25
#: Seconds of silence, though messages are pending, after which another consumer is made.
STALLED = 5.0
_BATCH_BYTES = 32 * 1_048_576
# In flight between server and task. More is memory that is touched for the first time, and a page fault for
# each large message is dearer than the wait it saves.
_BUFFER_BYTES = 16 * 1_048_576
_DIRECT_BATCH = 1000


class RangeInterrupted(JetsparkError):
    """Deliveries of a range broke off. Another consumer goes on; you see it when that does not help."""


class LeaderBehind(RangeInterrupted):
    """The stream ends before the range does: its leader is new and catching up, or its tail is lost."""

    def __init__(self, wanted: Range, last: int) -> None:
        super().__init__(f"stream {wanted.stream!r} ends at {last}, before the range's {wanted.end - 1}")
        self.last = last


class DirectGetNeeded(JetsparkError):
    """The stream can only be read by direct get, which its config does not allow."""


class RangeReader:
    """Reads ranges into record batches with the columns asked for."""

    def __init__(
        self,
        js: JetStream,
        schema: pa.Schema,
        *,
        fail_on_data_loss: bool,
        batch_rows: int,
        buffer_messages: int,
    ) -> None:
        self._js = js
        self._schema = schema
        self._fail = fail_on_data_loss
        self._batch_rows = batch_rows
        self._buffer = buffer_messages

    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""
        patience = Patience()
        while True:
            try:
                stream = self._js.get_stream(wanted.stream)
                break
            except StreamNotFound:
                report(vanished(wanted.stream, wanted.begin), fail=self._fail)
                return
            except PASSING as error:
                patience.lost(False, error)
        info = stream.cached_info
        if identity(info) != wanted.created:
            report(recreated(wanted.stream, wanted.begin, wanted.created, identity(info)), fail=self._fail)
            return
        first = first_sequence(info)
        if wanted.begin < min(first, wanted.end):
            self._check_gap(stream, wanted, (wanted.begin, min(first, wanted.end)))
        if info.config.retention == RetentionPolicy.WORK_QUEUE:
            yield from self._read_direct(stream, wanted)
        else:
            yield from self._read_consumer(stream, wanted)

    # By consumer

    def _read_consumer(self, stream: Stream, wanted: Range) -> Iterator[pa.RecordBatch]:
        position = wanted.begin
        patience = Patience()
        while position < wanted.end:
            before = position
            try:
                consumer = self._create_consumer(stream, wanted, position)
                try:
                    for batch, sequences in self._drain(consumer, wanted, position, stream.cached_info):
                        self._check_gap(stream, wanted, first_gap(sequences, position))
                        position = sequences[-1].as_py() + 1
                        yield from self._cut(batch)
                finally:
                    # It may be gone with the server; its inactive_threshold does the rest.
                    with contextlib.suppress(JetsparkError):
                        consumer.delete()
                if (stream.config.num_replicas or 1) > 1:
                    self._prove_end(stream, wanted, position)
                break
            except (RangeInterrupted, ConsumerDeleted, ConsumerNotFound, *PASSING) as error:
                if wanted.last_per_subject and position > wanted.begin:
                    raise  # what was the last of its subject may have changed since
                if not self._wait(patience, position > before, error, wanted):
                    break
        if position < wanted.end:
            self._check_gap(stream, wanted, (position, wanted.end))

    def _prove_end(self, stream: Stream, wanted: Range, position: int) -> None:
        """Wait for the leader's word that there is nothing more; raises when a replica has ended early."""
        patience = Patience()
        while True:
            try:
                prove_end(stream, wanted, position)
                return
            except (LeaderBehind, *PASSING) as error:
                if not self._wait(patience, False, error, wanted):
                    return

    def _wait(self, patience: Patience, progress: bool, error: JetsparkError, wanted: Range) -> bool:
        """Before another attempt. False: go on without what the stream has lost at its end."""
        try:
            patience.lost(progress, error)
        except LeaderBehind as behind:
            report(rewound(wanted.stream, wanted.end, behind.last), fail=self._fail)
            return False
        return True

    def _check_gap(self, stream: Stream, wanted: Range, gap: tuple[int, int] | None) -> None:
        """Whether a stretch without messages is what the stream removed at its head while we were reading.

        It is when the stream begins behind the start of the gap by now. A message that was deleted by itself
        before, and whose place is passed by the head in this moment, is taken for loss too; no message says
        why it is not there.
        """
        if gap is None or wanted.earliest or wanted.last_per_subject:
            return
        with contextlib.suppress(*PASSING):
            info = stream.info()
            first = first_sequence(info)
            if gap[0] < first and not compacts(info):
                report(removed(wanted.stream, gap[0], min(first, gap[1])), fail=self._fail)

    def _create_consumer(self, stream: Stream, wanted: Range, position: int) -> Consumer:
        subjects = list(wanted.subjects)
        filters: dict[str, object] = {}
        if wanted.last_per_subject:
            start: dict[str, object] = {"deliver_policy": DeliverPolicy.LAST_PER_SUBJECT}
            subjects = subjects or [">"]
        else:
            start = {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": position}
        if len(subjects) == 1:
            filters["filter_subject"] = subjects[0]
        elif subjects:
            filters["filter_subjects"] = subjects
        limits = stream.config.consumer_limits
        cap = limits.inactive_threshold if limits is not None else None
        config = ConsumerConfig(
            description="jetspark: one task of a Spark query",
            ack_policy=AckPolicy.NONE,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=min(INACTIVE_THRESHOLD, cap) if cap else INACTIVE_THRESHOLD,
            **start,  # type: ignore[arg-type]
            **filters,  # type: ignore[arg-type]
        )
        return stream.create_consumer(config)

    def _drain(
        self, consumer: Consumer, wanted: Range, position: int, info: StreamInfo
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Batches with their sequences until the end of the range is proved."""
        limit = consumer.cached_info.num_pending
        if limit == 0:
            return
        if not wanted.last_per_subject:
            limit = min(limit, wanted.end - position)
        columns = [*self._schema.names, *([] if "sequence" in self._schema.names else ["sequence"])]
        mean = info.state.bytes / info.state.messages if info.state.messages else 1.0
        buffer = max(1, min(self._buffer, limit, int(_BUFFER_BYTES / max(1.0, mean))))
        received = 0
        quiet = _Quiet()
        with consume_arrow(consumer, columns=columns, max_messages=buffer, stop_after=limit) as batches:
            while True:
                batch = batches.next_batch(SILENCE)
                if batch is None:
                    if batches.closed:
                        return  # as many messages as there can be
                    if self._proved_empty(consumer, wanted, received, quiet):
                        return
                    continue
                quiet.reset()
                metadata = batches.last_metadata
                assert metadata is not None
                received += batch.num_rows
                if metadata.sequence.consumer != received:
                    raise RangeInterrupted(
                        f"{metadata.sequence.consumer - received} messages were lost on their way from "
                        f"consumer {consumer.name!r}"
                    )
                sequences = batch.column(columns.index("sequence"))
                ended = metadata.num_pending == 0 or received >= limit
                if not wanted.last_per_subject and metadata.sequence.stream >= wanted.end - 1:
                    ended = True
                    inside = _count_below(sequences, wanted.end)
                    batch, sequences = batch.slice(0, inside), sequences.slice(0, inside)
                if batch.num_rows:
                    yield batch, sequences
                if ended:
                    return

    def _proved_empty(self, consumer: Consumer, wanted: Range, received: int, quiet: _Quiet) -> bool:
        """After a silence: whether the consumer has nothing more for the range."""
        info = consumer.info()
        if info.delivered.consumer_seq > received:
            # On the way to us, or lost: once more, then it is lost.
            quiet.in_flight(info.delivered.consumer_seq, consumer.name)
            return False
        if info.num_pending == 0:
            return True
        if not wanted.last_per_subject and info.delivered.stream_seq >= wanted.end - 1:
            return True
        quiet.waiting(wanted, info.num_pending)
        return False

    def _cut(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Batches of the size Spark likes, with exactly the columns and types it expects."""
        names = self._schema.names
        columns = [batch.column(name) for name in names]
        whole = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        rows = whole.num_rows
        step = max(1, min(self._batch_rows, int(_BATCH_BYTES / max(1.0, whole.nbytes / rows))))
        if step >= rows:
            yield whole
            return
        for begin in range(0, rows, step):
            yield whole.slice(begin, step)

    # By direct get

    def _read_direct(self, stream: Stream, wanted: Range) -> Iterator[pa.RecordBatch]:
        if not stream.config.allow_direct:
            raise DirectGetNeeded(
                f"stream {wanted.stream!r} is a work queue, which can be read without consuming it only by "
                "direct get; update the stream with allow_direct=true"
            )
        position = wanted.begin
        patience = Patience()
        while position < wanted.end:
            before = position
            try:
                for batch in self._direct_batches(stream, wanted, position):
                    sequences = batch.column("sequence")
                    self._check_gap(stream, wanted, first_gap(sequences, position))
                    position = sequences[-1].as_py() + 1
                    yield from self._cut(batch)
                self._prove_end(stream, wanted, position)
                break
            except (RangeInterrupted, *PASSING) as error:
                if wanted.last_per_subject and position > before:
                    raise  # what was the last of its subject may have changed since
                if not self._wait(patience, position > before, error, wanted):
                    break
        if position < wanted.end:
            self._check_gap(stream, wanted, (position, wanted.end))

    def _direct_batches(self, stream: Stream, wanted: Range, position: int) -> Iterator[pa.RecordBatch]:
        subjects = list(wanted.subjects)
        columns = [*self._schema.names, *([] if "sequence" in self._schema.names else ["sequence"])]
        if wanted.last_per_subject:
            found = stream.get_last_msgs_for(subjects or [">"])
        else:
            batch = min(_DIRECT_BATCH, wanted.end - position)
            found = stream.get_msgs(subjects or None, seq=position, batch=batch)
        rows: list[StoredMsg] = []
        size = 0
        for message in found:
            if not wanted.last_per_subject and message.sequence >= wanted.end:
                break
            rows.append(message)
            size += len(message.data)
            if len(rows) >= self._batch_rows or size >= _BATCH_BYTES:
                yield stored_batch(rows, columns)
                rows, size = [], 0
        if rows:
            yield stored_batch(rows, columns)


def prove_end(stream: Stream, wanted: Range, position: int) -> None:
    """Ask the leader whether the range has a message at ``position`` or behind it, and raise if it has."""
    if position >= wanted.end:
        return
    before = stream.info()
    if before.state.last_seq < wanted.end - 1:
        raise LeaderBehind(wanted, before.state.last_seq)
    found = stream._next_on_leader(position, wanted.subjects)
    if found is not None and found < wanted.end:
        raise RangeInterrupted(
            f"stream {wanted.stream!r}: the replica we read from ends before sequence {found}, which the "
            "leader has: it is behind and does not catch up; look at the cluster's health"
        )
    if before.cluster is not None and before.cluster.leader:
        after = stream.info()
        if after.cluster is None or after.cluster.leader != before.cluster.leader:
            # A new one may have said so before it had all that the old one had.
            raise LeaderBehind(wanted, after.state.last_seq)


def stored_batch(messages: Sequence[StoredMsg], names: Sequence[str]) -> pa.RecordBatch:
    """Stored messages as a record batch with the columns asked for."""
    fields = [ARROW_SCHEMA.field(name) for name in names]
    arrays = [pa.array([_value(one, field.name) for one in messages], field.type) for field in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _value(message: StoredMsg, name: str) -> object:
    if name == "timestamp":
        return message.timestamp.ns // 1000
    if name == "subject":
        return _clean(message.subject)
    if name == "headers":
        pairs = message.headers.to_dict().items()
        return [(_clean(key), [_clean(value) for value in values]) for key, values in pairs]
    value: object = getattr(message, name)
    return value


class _Quiet:
    """What is known about a silence."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Something came."""
        self._since = time.monotonic()
        self._seen = 0

    def in_flight(self, delivered: int, name: str) -> None:
        """The consumer says that it sent more than we have."""
        if self._seen == delivered:
            raise RangeInterrupted(f"messages up to {delivered} of consumer {name!r} were lost on their way")
        self._seen = delivered

    def waiting(self, wanted: Range, pending: int) -> None:
        """The consumer has more and does not send it; a new one counts anew what is pending."""
        if time.monotonic() - self._since > STALLED:
            raise RangeInterrupted(
                f"stream {wanted.stream!r}: {pending} messages pending in or behind [{wanted.begin}, "
                f"{wanted.end}) but none came for {STALLED:g} s; look at the server's health"
            )


def first_gap(sequences: pa.Array, position: int) -> tuple[int, int] | None:
    """The first stretch without messages from ``position`` on in ascending sequences; None when dense."""
    first, last = sequences[0].as_py(), sequences[-1].as_py()
    if first > position:
        return position, first
    if last - first + 1 == len(sequences):
        return None
    # The first index whose sequence is ahead of a dense run: by halving, as ahead once is ahead for good.
    low, high = 0, len(sequences) - 1
    while low < high:
        middle = (low + high) // 2
        if sequences[middle].as_py() == first + middle:
            low = middle + 1
        else:
            high = middle
    return first + low, sequences[low].as_py()


def _count_below(sequences: pa.Array, end: int) -> int:
    """How many of the ascending sequences are below ``end``."""
    low, high = 0, len(sequences)
    while low < high:
        middle = (low + high) // 2
        if sequences[middle].as_py() < end:
            low = middle + 1
        else:
            high = middle
    return low


def _clean(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
