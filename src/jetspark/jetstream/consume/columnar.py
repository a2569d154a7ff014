"""``consume`` for machines: messages as columns of bytes, without an object for each.

What the parser cut out of the received chunks is handed on as it is (``jetspark.wire.columns.Columns``);
``jetspark.arrow`` makes record batches of it. Acks need objects, so this is for consumers with ack policy
none, and for reading without acknowledging.

Requests, refills and heartbeats are those of ``consume``. Whoever has a large buffer reads in bulk: its
connection is read in larger pieces (:mod:`jetspark.connection.bulk_reads`).

ADR-37 has ``consume`` wait for ever for a consumer that nobody answers for. Without acks there is
nothing to wait for: a consumer that is gone takes its place in the stream with it, and one made again under
its name would begin elsewhere. So columns ask whether it exists, and end with :class:`ConsumerLost` when it
does not.
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

#: What one ``take`` joins at most, in bytes of the wire. Arrow's binary arrays end at 2 GiB, and whoever
#: sized the buffer for small messages should not get all the large ones in one piece.
MAX_TAKE = 128 * 1_048_576


#: After so many requests without an answer the consumer is looked up. The first ones may meet a server that
#: starts.
UNANSWERED = 3


# What makes a decent batch, measured. Larger ones are past the processor's caches when they are copied.
GATHER_ROWS = 6_000
GATHER_BYTES = 1_048_576


#: Bytes of a buffer that is worth reading in bulk. It is refilled when half is left: with a smaller one the
#: loop would wait for messages that the server sends only after the next request.
BULK_BUFFER = 4 * WAIT_FOR


class ColumnarSink(PullSink):
    """A pull inbox whose messages are columns. Its ``buffer`` stays empty; ``chunks`` has them."""

    def __init__(
        self,
        target: PullTarget,
        options: PullOptions,
        on_warning: Callable[[JetsparkError], Any] | None = None,
    ) -> None:
        super().__init__(target, options, on_warning)
        # Statuses still come as objects, made by what the plain sink would have used.
        self.owner = (self.factory, self.owner)
        self.factory = COLUMNAR
        self.chunks: list[AnyColumns] = []
        self._options = options
        self._in_bulk = False
        #: Asks the server for the consumer. None: somebody else cares for it (ordered consumers).
        self.look_up: Callable[[], Awaitable[ConsumerInfo]] | None = None
        self._looking: asyncio.Task[None] | None = None
        # Requests in a row that nobody answered, and how many messages had come before the first of them.
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
        # Not before it has begun: what never began does not end.
        if not self._in_bulk and self.sid and self._buffer_of(columns) >= BULK_BUFFER:
            self._in_bulk = True
            self.core.bulk_reads(True)
        actions = self.flow.on_messages(count, columns.size if self._exact else 0, self._now())
        if actions:
            self._perform(actions)
            self._arm()

    def _buffer_of(self, columns: AnyColumns) -> float:
        """Bytes that the buffer holds, of messages like these."""
        limit = self._options.limit
        return limit if self._options.by_bytes else limit * columns.nbytes / len(columns)

    def take(self) -> AnyColumns | None:
        """What has arrived as one set of columns, ``MAX_TAKE`` at most; None when nothing has."""
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
        """Put messages of an earlier fetch in front, before ``start``."""
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
        # A message without a reply that is no status did not come from the consumer. In the buffer nobody
        # would ever take it out, and the machine would wait for the room it occupies.
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
        """End when the server says that there is no such consumer. Without an answer, go on asking."""
        try:
            await look_up()
        except (ConsumerNotFound, StreamNotFound) as error:
            self._finish(ConsumerLost(error.code, error.description), discard=False)
        except JetsparkError:
            pass  # a server that starts, or a cluster without a leader
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
    """What columns need of their consumer's handle."""

    _stash: Stash

    @property
    def config(self) -> ConsumerConfig: ...

    @property
    def cached_info(self) -> ConsumerInfo: ...

    def _check_pull(self) -> None: ...

    def _new_columnar_sink(self, options: PullOptions, tell: ErrorListener) -> ColumnarSink: ...


class ConsumeColumns(ConsumeBase):
    """Columns as they arrived. ``async with`` it, then call ``take``."""

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
            # A cancelled fetch of this handle may have left messages; without acks they never come again.
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
        """What has arrived, waiting at most ``timeout`` seconds for the first of it (None: for ever).

        None when nothing came in time or the end has come (``closed``); raises what ended it.
        """
        sink = self._started()
        assert isinstance(sink, ColumnarSink)
        columns: AnyColumns | None = None
        if timeout is None:
            columns = await self._take_next(sink)
        else:
            # What arrives in the moment of the time-out is still handed out.
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
        """What has arrived, waiting for the first of it; None at the end."""
        while True:
            while not sink.chunks and not sink.done:
                await sink.wait()
            # A batch has a fixed cost in pure Python, and so has the hand-over to another thread; the
            # compiled core has next to none, so there a batch is what one read brought.
            if self._for_threads or (sink.chunks and type(sink.chunks[0]) is not PackedColumns):
                await _gather(sink)
            columns = sink.take()
            if columns is not None or sink.done:
                return columns
            # Another task was faster.


async def _gather(sink: ColumnarSink) -> None:
    """Let the loop read what lies in the socket, up to a decent batch; a read brings about a thousand rows.

    Two turns of the loop without a new row end it: a lone message hardly waits.
    """
    idle = 0
    while sink.chunks and idle < 2 and not sink.done:
        rows = sum(map(len, sink.chunks))
        if rows >= GATHER_ROWS or sum(chunk.nbytes for chunk in sink.chunks) >= GATHER_BYTES:
            return
        received = sink.received
        await asyncio.sleep(0)
        idle = idle + 1 if sink.received == received else 0
