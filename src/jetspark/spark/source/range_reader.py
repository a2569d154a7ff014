"""Reading one range of a stream, on an executor: every message of ``[begin, end)`` once, in order, as Arrow.

An ephemeral pull consumer with ack policy none delivers through the columnar path. Nothing is acked, so
nothing is delivered again, and a message lost on the way (a broken connection, a slow-consumer cut) shows
only as a gap in the consumer's own sequence. So that sequence is counted: when it has a gap, or the consumer
is gone, another one is created behind the last row that was returned. (The ordered consumer does that as
well, but it does not prove the end of a range.)

The end is proved, never waited for. It has come when a sequence at or behind ``end - 1`` was seen, when the
last row said that nothing is pending behind it, or when the consumer, asked after a silence, says that it has
delivered all there is. So ranges whose messages were deleted, purged or filtered away can't hang a task.

That nothing was lost meanwhile is proved beside it (:mod:`jetspark.spark.source.range_proof`).

Work-queue streams refuse such consumers and are read by batch direct get, which consumes nothing either.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING

import pyarrow as pa

from jetspark.arrow import SCHEMA as ARROW_SCHEMA
from jetspark.arrow import consume_arrow
from jetspark.errors import (
    ConsumerDeleted,
    ConsumerNotFound,
    JetsparkError,
    MaximumConsumersReached,
    StreamNotFound,
)
from jetspark.jetstream.models.consumer_config import AckPolicy, ConsumerConfig, DeliverPolicy
from jetspark.jetstream.models.stream_config import RetentionPolicy
from jetspark.spark.patience import PASSING, Patience
from jetspark.spark.source.data_loss import report, vanished
from jetspark.spark.source.direct_reader import direct_batches
from jetspark.spark.source.range_proof import RangeInterrupted, RangeOver, RangeProof, count_below

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from jetspark.blocking.consumer import Consumer
    from jetspark.blocking.jetstream import JetStream
    from jetspark.blocking.stream import Stream
    from jetspark.jetstream.models.stream_info import StreamInfo
    from jetspark.jetstream.stored import StoredMsg
    from jetspark.spark.source.planning import Range

logger = logging.getLogger("jetspark.spark")

#: Seconds after which the server removes the consumer of a task that died. A slow task creates a new one.
INACTIVE_THRESHOLD = 60.0
#: Seconds without a message after which the consumer is asked whether there are any more.
SILENCE = 0.25
#: Seconds of silence, though messages are pending, after which another consumer is made.
STALLED = 5.0
_BATCH_BYTES = 32 * 1_048_576
# In flight between server and task. More would touch new memory, and a page fault per large message costs
# more than the wait that it saves.
_BUFFER_BYTES = 16 * 1_048_576


class DirectGetNeeded(JetsparkError):
    """The stream can only be read by direct get, which its config does not allow."""


class ConsumersExhausted(JetsparkError):
    """The stream has as many consumers as it or its account allows, and a task needs one more."""

    def __init__(self, info: StreamInfo) -> None:
        limit = info.config.max_consumers or 0
        whose = f"max_consumers={limit} of the stream" if limit > 0 else "the account's limit of consumers"
        super().__init__(
            f"stream {info.config.name!r} has {info.state.consumer_count} consumers, and {whose} allows no "
            "more; each task that reads needs one while it runs. Raise the limit, delete consumers that are "
            "not needed, lower minPartitions, or update the stream with allow_direct=true: then it is read "
            "without a consumer"
        )


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

    def read(self, wanted: Range, *, gaps: bool = True) -> Iterator[pa.RecordBatch]:
        """The rows of a range. ``gaps``: whether what is missing at the stream's head is judged."""
        proof = RangeProof(self._js, wanted, fail=self._fail, gaps=gaps)
        try:
            stream = proof.open()
            wanted = proof.wanted
            if wanted.last_per_subject:
                from jetspark.spark.source.snapshot import Snapshot

                for batch in Snapshot(self, stream, wanted, fail=self._fail).read():
                    yield from self._cut(batch)
            elif stream.config.retention == RetentionPolicy.WORK_QUEUE:
                yield from self._read_direct(stream, wanted, proof)
            else:
                yield from self._read_consumer_or_direct(stream, wanted, proof)
        except StreamNotFound:
            if not proof.proved:
                report(vanished(wanted.stream, proof.position), fail=self._fail)
        except RangeOver:
            return

    def with_columns(self, *names: str) -> RangeReader:
        """One like this that gives these columns, too."""
        added = [ARROW_SCHEMA.field(name) for name in names if name not in self._schema.names]
        return RangeReader(
            self._js,
            pa.schema([*self._schema, *added]),
            fail_on_data_loss=self._fail,
            batch_rows=self._batch_rows,
            buffer_messages=self._buffer,
        )

    def stored(self, messages: Sequence[StoredMsg]) -> pa.RecordBatch:
        """Stored messages as rows."""
        return stored_batch(messages, self._schema.names)

    # By consumer

    def _read_consumer_or_direct(
        self, stream: Stream, wanted: Range, proof: RangeProof
    ) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._read_consumer(stream, wanted, proof)
        except ConsumersExhausted as error:
            if not stream.config.allow_direct:
                raise
            logger.info("reading by direct get instead: %s", error)
            yield from self._read_direct(stream, wanted, proof)

    def _read_consumer(self, stream: Stream, wanted: Range, proof: RangeProof) -> Generator[pa.RecordBatch]:
        patience = Patience()
        interrupted = False
        while proof.position < proof.wanted.end:
            before = proof.position
            try:
                with self.consumer(stream, wanted, proof.position) as consumer:
                    if interrupted:
                        proof.again(stream)
                        wanted = proof.wanted
                    for batch, sequences in self.drain(consumer, stream, wanted, proof.position):
                        proof.accept(stream, sequences)
                        yield from self._cut(batch)
                proof.end(stream)
                break
            except (RangeInterrupted, ConsumerDeleted, ConsumerNotFound, *PASSING) as error:
                if proof.position >= proof.wanted.end:
                    raise  # every row is there, but the range is not proved
                interrupted = True
                if not proof.wait(patience, proof.position > before, error):
                    break

    @contextlib.contextmanager
    def consumer(self, stream: Stream, wanted: Range, position: int) -> Iterator[Consumer]:
        """A consumer of a range from ``position`` on, deleted at the end."""
        consumer = self._create_consumer(stream, wanted, position)
        try:
            yield consumer
        finally:
            # It may be gone with the server; its inactive_threshold does the rest.
            with contextlib.suppress(JetsparkError):
                consumer.delete()

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
        # Where retention is not by limits, consumers must have the stream's number of replicas (error 10134),
        # which is their default. Else one replica does: a consumer that is lost is made again.
        replicas = 1 if stream.config.retention == RetentionPolicy.LIMITS else None
        limits = stream.config.consumer_limits
        cap = limits.inactive_threshold if limits is not None else None
        config = ConsumerConfig(
            description="jetspark: one task of a Spark query",
            ack_policy=AckPolicy.NONE,
            mem_storage=True,
            num_replicas=replicas,
            inactive_threshold=min(INACTIVE_THRESHOLD, cap) if cap else INACTIVE_THRESHOLD,
            **start,  # type: ignore[arg-type]
            **filters,  # type: ignore[arg-type]
        )
        try:
            return stream.create_consumer(config)
        except MaximumConsumersReached as error:
            raise ConsumersExhausted(stream.cached_info) from error

    def drain(
        self, consumer: Consumer, stream: Stream, wanted: Range, position: int
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Batches with their sequences until the consumer has no more for the range."""
        state = stream.cached_info.state
        limit = consumer.cached_info.num_pending
        if limit == 0:
            return
        if not wanted.last_per_subject:
            limit = min(limit, wanted.end - position)
        columns = [*self._schema.names, *([] if "sequence" in self._schema.names else ["sequence"])]
        mean = state.bytes / state.messages if state.messages else 1.0
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
                        f"{metadata.sequence.consumer - received} messages were lost in transit from "
                        f"consumer {consumer.name!r}"
                    )
                sequences = batch.column(columns.index("sequence"))
                ended = metadata.num_pending == 0 or received >= limit
                if not wanted.last_per_subject and metadata.sequence.stream >= wanted.end - 1:
                    ended = True
                    inside = count_below(sequences, wanted.end)
                    batch, sequences = batch.slice(0, inside), sequences.slice(0, inside)
                if batch.num_rows:
                    yield batch, sequences
                if ended:
                    return

    def _proved_empty(self, consumer: Consumer, wanted: Range, received: int, quiet: _Quiet) -> bool:
        """After a silence: whether the consumer has nothing more for the range."""
        info = consumer.info()
        if info.delivered.consumer_seq > received:
            # In flight, or lost: ask once more, then it is lost.
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

    def _read_direct(self, stream: Stream, wanted: Range, proof: RangeProof) -> Iterator[pa.RecordBatch]:
        if not stream.config.allow_direct:
            raise DirectGetNeeded(
                f"stream {wanted.stream!r} is a work queue, which can be read without consuming it only by "
                "direct get; update the stream with allow_direct=true"
            )
        proof.by_direct_get()
        columns = [*self._schema.names, *([] if "sequence" in self._schema.names else ["sequence"])]
        patience = Patience()
        interrupted = False
        while proof.position < proof.wanted.end:
            before = proof.position
            try:
                if interrupted:
                    proof.again(stream)
                    wanted = proof.wanted
                for batch in direct_batches(stream, wanted, proof.position, columns):
                    proof.accept(stream, batch.column("sequence"))
                    yield from self._cut(batch)
                proof.end(stream)
                break
            except (RangeInterrupted, *PASSING) as error:
                if proof.position >= proof.wanted.end:
                    raise  # every row is there, but the range is not proved
                interrupted = True
                if not proof.wait(patience, proof.position > before, error):
                    break


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
        entries: dict[str, list[str]] = {}
        for key, text in message.headers.items():
            entries.setdefault(_clean(key), []).append(_clean(text))
        return list(entries.items())
    value: object = getattr(message, name)
    return value


class _Quiet:
    """The state of a consumer that sends nothing."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Something came."""
        self._since = time.monotonic()
        self._seen = 0

    def in_flight(self, delivered: int, name: str) -> None:
        """The consumer says that it sent more than we have."""
        if self._seen == delivered:
            raise RangeInterrupted(f"messages up to {delivered} of consumer {name!r} were lost in transit")
        self._seen = delivered

    def waiting(self, wanted: Range, pending: int) -> None:
        """The consumer has more and does not send it; a new one counts again what is pending."""
        if time.monotonic() - self._since > STALLED:
            raise RangeInterrupted(
                f"stream {wanted.stream!r}: {pending} messages pending in or behind [{wanted.begin}, "
                f"{wanted.end}) but none came for {STALLED:g} s; check the server's health"
            )


def _clean(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
