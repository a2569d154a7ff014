"""``consume`` for bulk processing: messages as columns of bytes, without one Python object per message.

The fields that the parser cut out of the received chunks are passed on unchanged
(``jetspark.wire.columns.Columns``); ``jetspark.arrow`` turns them into record batches. Acks need message
objects, so columns are for consumers with ack policy none, and for reading without acknowledging.

Requests, refills and heartbeats work as in ``consume``. A large buffer means bulk reading: the connection
is then read in larger pieces (:mod:`jetspark.connection.bulk_reads`).

ADR-37 lets ``consume`` wait forever for a consumer that does not respond. Without acks there is nothing to
wait for: when a consumer is deleted, its position in the stream is lost, and a new consumer with the same
name would start elsewhere. So columns ask the server whether the consumer exists, and end with
:class:`ConsumerLost` when it does not.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from jetspark._log import get_logger
from jetspark.connection.bulk_reads import WAIT_FOR
from jetspark.errors import InvalidArgument, JetsparkError
from jetspark.jetstream.consume.consume import ConsumeBase, ErrorListener
from jetspark.jetstream.consume.errors import ConsumerLost, MissedHeartbeat, NoConsumerResponders
from jetspark.jetstream.consume.pull import PullSink, PullTarget, pin_of
from jetspark.jetstream.errors import ConsumerNotFound, StreamNotFound
from jetspark.jetstream.models.consumer_config import AckPolicy
from jetspark.wire.columns import COLUMNAR, AnyColumns, Columns, PackedColumns, join_columns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jetspark.jetstream.consume.pull import Stash
    from jetspark.jetstream.flow.options import PullOptions
    from jetspark.jetstream.models.consumer_config import ConsumerConfig
    from jetspark.jetstream.models.consumer_info import ConsumerInfo


logger = get_logger("jetstream")

#: The most that one ``take`` joins, in bytes on the wire. Arrow's binary arrays end at 2 GiB, and a caller
#: who sized the buffer for small messages should not get all the large ones in one piece.
MAX_TAKE = 128 * 1_048_576


#: After this many unanswered requests in a row, ask whether the consumer exists. The first few may simply
#: have met a server that is still starting.
UNANSWERED = 3


# A good batch size, by measurement. Larger batches no longer fit the CPU caches when they are copied.
GATHER_ROWS = 6_000
GATHER_BYTES = 1_048_576


#: Buffers of at least this many bytes are read in bulk. The buffer is refilled when half is left: with a
#: smaller one the loop would wait for messages that the server sends only after the next request.
BULK_BUFFER = 4 * WAIT_FOR


class ColumnarSink(PullSink):
    """A pull inbox whose messages are columns. They are in ``chunks``; ``buffer`` stays empty."""

    def __init__(
        self,
        target: PullTarget,
        options: PullOptions,
        on_warning: Callable[[JetsparkError], Any] | None = None,
    ) -> None:
        super().__init__(target, options, on_warning)
        # Statuses still arrive as objects, created by the factory that the plain sink would have used.
        self.owner = (self.factory, self.owner)
        self.factory = COLUMNAR
        self.chunks: list[AnyColumns] = []
        self._options = options
        self._in_bulk = False
        #: Looks the consumer up on the server. None: the caller takes care of it (ordered consumers).
        self.look_up: Callable[[], Awaitable[ConsumerInfo]] | None = None
        self._looking: asyncio.Task[None] | None = None
        # Unanswered requests in a row, and how many messages had arrived before the first of them.
        self._unanswered = 0
        self._unanswered_at = 0

    def deliver_columns(self, columns: AnyColumns) -> None:
        """A run of messages as columns."""
        if self.done:
            return
        if self.target.pinned and columns.headers:
            self._note_pin_of(columns)
        count = len(columns)
        self.received += count
        self.chunks.append(columns)
        if self._waiters:
            self._wake()
        self._newest = columns.reply(-1)
        # Not before the start: what never started must not end.
        if not self._in_bulk and self.sid and self._buffer_of(columns) >= BULK_BUFFER:
            self._in_bulk = True
            self.core.bulk_reads(True)
        actions = self.flow.on_messages(count, columns.size if self._exact else 0, self._now())
        if actions:
            self._perform(actions)
            self._arm()

    def _buffer_of(self, columns: AnyColumns) -> float:
        """Size of the buffer in bytes, estimated from messages like these."""
        limit = self._options.limit
        return limit if self._options.by_bytes else limit * columns.nbytes / len(columns)

    def take(self) -> AnyColumns | None:
        """Everything that has arrived as one set of columns, at most ``MAX_TAKE``; None when nothing has."""
        chunks = self.chunks
        if not chunks:
            return None
        if len(chunks) == 1:
            taken = chunks.pop()
        else:
            used, nbytes = 1, chunks[0].nbytes
            while used < len(chunks) and nbytes + chunks[used].nbytes <= MAX_TAKE:
                nbytes += chunks[used].nbytes
                used += 1
            taken = join_columns(chunks[:used])
            del chunks[:used]
        flow = self.flow
        count, wanted = len(taken), flow.deliverable
        if count > wanted:
            taken.truncate(wanted)
            count = wanted
        actions = flow.on_processed(count, taken.size if self._exact else 0, self._now())
        if actions:
            self._perform(actions)
            self._arm()
        return taken

    def preload(self, items: list[Any]) -> None:
        """Put messages of an earlier fetch first, before ``start``."""
        if items:
            self.deliver_columns(self._columns_of(items))

    def _columns_of(self, items: list[Any]) -> Columns:
        columns = Columns(self.sid, [], [], [], {})
        for row, item in enumerate(items):
            columns.subjects.append(item.subject.encode("utf-8", "surrogateescape"))
            columns.replies.append(item.reply.encode("utf-8", "surrogateescape"))
            columns.payloads.append(item.data)
            if item.header_block is not None:
                columns.headers[row] = item.header_block
        columns.nbytes = columns.size = columns.measure()
        return columns

    def _deliver_messages(self, items: list[Any]) -> None:
        # A message without a reply that is not a status did not come from the consumer. In the buffer it
        # would stay forever, because readers take columns, and the machine would wait for the room it
        # occupies.
        logger.warning("%s: ignored %d messages that are not JetStream's", self.label, len(items))

    def _warn(self, warning: JetsparkError) -> None:
        super()._warn(warning)
        if not isinstance(warning, NoConsumerResponders | MissedHeartbeat) or self.look_up is None:
            return
        if self._unanswered_at != self.received:
            self._unanswered, self._unanswered_at = 0, self.received
        self._unanswered += 1
        if self._unanswered >= UNANSWERED and self._looking is None and not self.done:
            self._looking = self.core.loop.create_task(self._see_whether_it_exists(self.look_up))

    async def _see_whether_it_exists(self, look_up: Callable[[], Awaitable[ConsumerInfo]]) -> None:
        """End when the server says that the consumer does not exist. Without a reply, keep pulling."""
        try:
            await look_up()
        except (ConsumerNotFound, StreamNotFound) as error:
            self._finish(ConsumerLost(error.code, error.description), discard=False)
        except JetsparkError:
            pass  # a server that is starting, or a cluster without a leader
        finally:
            self._unanswered = 0
            self._looking = None

    def _finish(self, error: JetsparkError | None, *, discard: bool) -> None:
        if discard and not self.done:
            self.chunks = []
        if self._in_bulk:
            self._in_bulk = False
            self.core.bulk_reads(False)
        super()._finish(error, discard=discard)

    def _note_pin_of(self, columns: AnyColumns) -> None:
        pin = pin_of(columns.headers[max(columns.headers)])
        if pin and pin != self.target.pin_id:
            self.target.pin_id = pin
            self.flow.on_pin_id(pin)


class ColumnSource(Protocol):
    """What columns need from the consumer's handle."""

    _stash: Stash

    @property
    def config(self) -> ConsumerConfig: ...

    @property
    def cached_info(self) -> ConsumerInfo: ...

    def _check_pull(self) -> None: ...

    def _new_columnar_sink(self, options: PullOptions, tell: ErrorListener) -> ColumnarSink: ...


class ConsumeColumns(ConsumeBase):
    """Columns as they arrive. Enter it with ``async with``, then call ``take``."""

    def __init__(
        self,
        consumer: ColumnSource,
        options: PullOptions,
        on_error: ErrorListener | None = None,
        *,
        for_threads: bool = False,
    ) -> None:
        if consumer.config.ack_policy != AckPolicy.NONE:
            raise InvalidArgument(
                "ack_policy",
                str(consumer.config.ack_policy),
                "columns carry no acks; use a consumer with ack_policy none, or consume_batches()",
            )
        consumer._check_pull()

        def make_sink(tell: ErrorListener) -> ColumnarSink:
            sink = consumer._new_columnar_sink(options, tell)
            # A cancelled fetch of this handle may have left messages. Without acks they are not delivered
            # again.
            sink.preload(consumer._stash.take(options.stop_after))
            return sink

        super().__init__(make_sink, on_error)
        self._for_threads = for_threads

    @property
    def pending(self) -> int:
        """Messages buffered and not yet handed out."""
        sink = self._sink
        return sum(map(len, sink.chunks)) if isinstance(sink, ColumnarSink) else 0

    async def take(self, timeout: float | None = None) -> AnyColumns | None:
        """Everything that has arrived; waits up to ``timeout`` seconds for the first message (None: forever).

        Returns None when nothing arrived in time or the end was reached (``closed``). Raises the error that
        ended it.
        """
        sink = self._started()
        assert isinstance(sink, ColumnarSink)
        columns: AnyColumns | None = None
        if timeout is None:
            columns = await self._take_next(sink)
        else:
            # Messages that arrive at the very moment of the timeout are still returned.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    columns = await self._take_next(sink)
        if columns is None:
            columns = sink.take()
        if columns is None:
            error = self._end(sink)
            if error is not None:
                raise error
        return columns

    async def _take_next(self, sink: ColumnarSink) -> AnyColumns | None:
        """Everything that has arrived; waits for the first message. None at the end."""
        while True:
            while not sink.chunks and not sink.done:
                await sink.wait()
            # In pure Python each batch has a fixed cost, and so has the handover to another thread, so small
            # batches are joined. The compiled core has almost no such cost: there a batch is what one read
            # returned.
            if self._for_threads or (sink.chunks and type(sink.chunks[0]) is not PackedColumns):
                await _gather(sink)
            columns = sink.take()
            if columns is not None or sink.done:
                return columns
            # Another task was faster.


async def _gather(sink: ColumnarSink) -> None:
    """Let the event loop read what is in the socket, up to a good batch size.

    One read returns about 1,000 rows. Two turns of the loop without a new row end it, so a single message
    hardly waits.
    """
    idle = 0
    while sink.chunks and idle < 2 and not sink.done:
        rows = sum(map(len, sink.chunks))
        if rows >= GATHER_ROWS or sum(chunk.nbytes for chunk in sink.chunks) >= GATHER_BYTES:
            return
        received = sink.received
        await asyncio.sleep(0)
        idle = idle + 1 if sink.received == received else 0
