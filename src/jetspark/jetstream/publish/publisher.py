"""The pipelined publisher: many messages in flight, each with a future for its ack.

All acks arrive at one wildcard inbox; the last token of the reply subject says which message an ack is for. A
message costs a dictionary entry and a future: no task, no timer, no closure. Window, order, retries and
expiry are decided in :mod:`jetspark.jetstream.flow.publish`; replies are read in
:mod:`jetspark.jetstream.publish.acks`.

Failures are never silent: a future may be thrown away, but ``flush`` and the end of the ``async with``
block raise :class:`PublishFailed` when anything failed since the last flush.
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from jetspark._checks import is_positive, is_whole
from jetspark.connection.outbox import FLUSH_AT, HeadersLike
from jetspark.errors import (
    ConnectionClosed,
    InvalidArgument,
    JetsparkError,
    MaxPayloadExceeded,
    OutboundBufferFull,
)
from jetspark.jetstream.flow.publish import LARGE, may_repeat
from jetspark.jetstream.publish.acks import PendingAcks
from jetspark.jetstream.publish.many import (
    AckBatch,
    Columns,
    EncodedColumns,
    Publishing,
    encode,
    too_long,
)
from jetspark.jetstream.publish.publish import Expect, publish_headers
from jetspark.jetstream.publish.stats import PublisherFull, PublisherStats, PublishFailed
from jetspark.wire.commands import encode_pub, to_bytes
from jetspark.wire.headers import encode_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from jetspark.connection.core import Core
    from jetspark.jetstream.models.puback import PubAck
    from jetspark.jetstream.models.schedule import Schedule

DEFAULT_WINDOW = 4000


class Publisher(PendingAcks):
    """Publishes into streams without waiting for each ack. Returned by ``js.publisher()``; use it with
    ``async with``.

    ``publish`` and ``publish_nowait`` return a future for the message's ack. ``flush`` and the end of the
    block wait for all acks and raise :class:`PublishFailed` when a message failed.
    """

    def __init__(self, core: Core, *, window: int, ack_timeout: float, retry: bool) -> None:
        if not is_whole(window, 1):
            raise InvalidArgument("window", window, "must be a positive integer")
        if not is_positive(ack_timeout):
            raise InvalidArgument("ack_timeout", ack_timeout, "must be a positive number of seconds")
        if not isinstance(retry, bool):
            raise InvalidArgument("retry", retry, "must be True or False")
        super().__init__(core, window=window, ack_timeout=float(ack_timeout), retry=retry)
        self._new_future: Callable[[], Any] = functools.partial(asyncio.Future, loop=core.loop)
        self._ended_by: JetsparkError | None = None

    @property
    def pending(self) -> int:
        """Messages that have no ack yet."""
        return len(self._flow.pending)

    @property
    def stats(self) -> PublisherStats:
        """Counters since the publisher was opened."""
        return replace(self._stats)

    def __repr__(self) -> str:
        return f"Publisher(window={self._flow.window}, pending={self.pending})"

    async def __aenter__(self) -> Self:
        core = self._core
        core.check_open()
        core.router.add(self._receiver)
        with self._guard:
            self._flow.begin(core.loop.time(), linked=core.link is not None)
            self._open = True
        self._arm()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            self._close(ConnectionClosed("the publisher was closed before the ack came"))

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: HeadersLike | None = None,
        msg_id: str | None = None,
        expect: Expect | None = None,
        ttl: float | str | None = None,
        schedule: Schedule | None = None,
    ) -> asyncio.Future[PubAck]:
        """Send a message and return a future for its ack; waits while the window is full.

        The options are those of ``js.publish``. While disconnected, messages are kept. When they amount to
        ``reconnect_buffer_size``, it waits for the connection (:class:`OutboundBufferFull` after
        ``ack_timeout``). It also waits while the server reads slowly. It waits before the message is sent,
        never after it.
        """
        block = encode_options(headers, msg_id, expect, ttl, schedule, subject)
        # All waiting comes first: a publish that is cancelled sends nothing.
        if self._outbox.size >= FLUSH_AT:
            await self._outbox.give_way()
        while True:
            if self._flow.full and self._open:
                await self._space.wait()
                continue
            try:
                return self._submit(subject, data, block, msg_id)
            except OutboundBufferFull as full:
                await self._wait_connected(full)

    def publish_nowait(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: HeadersLike | None = None,
        msg_id: str | None = None,
        expect: Expect | None = None,
        ttl: float | str | None = None,
        schedule: Schedule | None = None,
    ) -> asyncio.Future[PubAck]:
        """Send a message and return a future for its ack, without waiting.

        The options are those of ``js.publish``. Raises :class:`PublisherFull` when the window is full, and
        :class:`OutboundBufferFull` when disconnected and the messages kept for the reconnect amount to
        ``reconnect_buffer_size``. The message is written when the event loop runs.
        """
        return self._submit(
            subject, data, encode_options(headers, msg_id, expect, ttl, schedule, subject), msg_id
        )

    async def publish_many(self, messages: Iterable[Publishing | tuple[str, bytes]]) -> AckBatch:
        """Send many messages; returns when all are on their way, with one object for all their acks.

        ``messages``: pairs of subject and data, or :class:`Publishing` for messages with headers or
        options. All of them are checked before the first is sent. Waits while the window is full, like
        ``publish``.
        """
        outbox, flow = self._outbox, self._flow
        encoded = encode(outbox, messages, self._longest_prefix)
        batch = AckBatch(len(encoded))
        for index, (subject, data, block, prefix, again) in enumerate(encoded):
            if flow.full or not flow.linked or not self._open:
                await self._ready_for(len(data) + len(block or b""))
            with self._guard:
                serial = flow.add(batch, subject, index, data, block, again)
                self._stats.published += 1
                if flow.sent == serial:
                    outbox.send_once(encode_pub(prefix, self._base_bytes, serial, data, block))
            if flow.recovering:
                self._send_due()
            if outbox.size >= FLUSH_AT:
                await outbox.give_way()
        return batch

    async def _publish_columns(self, columns: Columns) -> AckBatch:
        """``publish_many`` for messages whose only header is an id, or that have none; at a fraction of the
        cost."""
        batch = AckBatch(len(columns.datas))
        if not columns.datas:
            return batch
        outbox, flow = self._outbox, self._flow
        encoded = EncodedColumns(outbox, columns, self._base_bytes, self._longest_prefix)
        if encoded.largest > LARGE:
            subjects, datas, ids, expect = columns
            return await self.publish_many(
                [
                    Publishing(subject, data, None, None if ids is None else ids[index].decode(), expect)
                    for index, (subject, data) in enumerate(zip(subjects, datas, strict=True))
                ]
            )
        again = columns.ids is not None and may_repeat("", encoded[0][1])
        start, count = 0, batch.count
        while start < count:
            # A large part of the window at once: a few rows cost as much as many.
            step = min(encoded.step, count - start, 1 + flow.window // 4)
            stop = start + step
            while flow.window - len(flow.pending) < step and self._open:
                await self._space.wait()
            await self._ready_for(0 if flow.linked else sum(map(len, columns.datas[start:stop])))
            with self._guard:
                serial = flow.add_many(batch, encoded.subjects, encoded, start, stop, again)
                self._stats.published += step
                if flow.sent == flow.serial:
                    outbox.send_once(encoded.commands(start, stop, serial), step)
            if flow.recovering:
                self._send_due()
            await outbox.give_way()
            start = stop
        return batch

    async def flush(self) -> None:
        """Wait until every message so far has its ack or has failed; :class:`PublishFailed` when any did.

        Messages published while it waits are not included.
        """
        await self._wait_settled()
        self._raise_failures()

    async def _wait_settled(self) -> None:
        last = self._flow.serial
        self._outbox.flush()
        while True:
            with self._guard:
                if not self._flow.unsettled(last):
                    return
            await self._space.wait()

    def _raise_failures(self) -> None:
        if self._first_failure is not None:
            error = PublishFailed(self._failures, self._first_failure)
            self._failures, self._first_failure = 0, None
            raise error

    def _ended(self, error: JetsparkError | None) -> None:
        self._close(error or ConnectionClosed("the connection was closed before the ack came"))

    async def _drain(self, asker: asyncio.Task[Any] | None) -> None:
        await self._wait_settled()

    # Internals

    def _submit(
        self, subject: str, data: bytes, block: bytes | None, msg_id: str | None
    ) -> asyncio.Future[PubAck]:
        """Check a message, record it, and send it unless it has to wait. The caller holds the guard."""
        outbox, flow = self._outbox, self._flow
        if not self._open:
            raise ConnectionClosed(self._why_closed())
        if flow.full:
            raise PublisherFull(len(flow.pending), flow.window)
        if type(data) is not bytes:
            data = to_bytes(data)
        try:
            prefix = outbox.prefixes[subject]
        except (KeyError, TypeError):  # TypeError: it can't be hashed, so it is not a str
            prefix = outbox.remember_prefix(subject)
        if len(prefix) > self._longest_prefix:
            raise too_long(subject)
        size = len(data)
        if block is not None:
            size += len(block)
            if flow.linked:
                outbox.check_headers()
        if size > outbox.max_payload:
            raise MaxPayloadExceeded(size, outbox.max_payload)
        if not flow.linked:
            self._check_buffer(size)
        future: asyncio.Future[PubAck] = self._new_future()
        serial = flow.add(future, subject, 0, data, block, msg_id is not None and may_repeat(msg_id, block))
        self._stats.published += 1
        if flow.sent == serial:
            try:
                outbox.send_once(encode_pub(prefix, self._base_bytes, serial, data, block))
            except BaseException:
                if flow.withdraw(serial):
                    self._stats.published -= 1
                raise
        elif flow.recovering:
            self._send_due_soon()
        return future

    def _check_buffer(self, size: int) -> None:
        """Without a link, messages wait in the flow, within the limit of the connection's buffer."""
        core = self._core
        core.check_open()
        total = self._outbox.size + self._flow.unsent_bytes + size
        if total > core.options.reconnect_buffer_size:
            raise OutboundBufferFull(total, core.options.reconnect_buffer_size)

    async def _ready_for(self, size: int) -> None:
        """Wait until a message of this size may be accepted."""
        while True:
            if not self._open:
                raise ConnectionClosed(self._why_closed())
            if self._flow.full:
                await self._space.wait()
                continue
            if not self._flow.linked:
                try:
                    self._check_buffer(size)
                except OutboundBufferFull as full:
                    await self._wait_connected(full)
                    continue
            return

    def _send_due(self) -> None:
        with self._guard:
            settled = self._pump()
        self._finish(settled)

    def _send_due_soon(self) -> None:
        """While messages are sent again, newer ones join the queue; they may already be due."""
        self._send_due()

    def _why_closed(self) -> str:
        if self._ended_by is None:
            return "the publisher is not open; use it with 'async with'"
        return f"the publisher is closed: {self._ended_by}"

    async def _wait_connected(self, full: OutboundBufferFull) -> None:
        """Like a full window, but no ack will make room."""
        if self._flow.linked or not self._open:
            return  # it changed meanwhile, when a thread asks
        try:
            async with asyncio.timeout(self._flow.ack_timeout):
                await self._connected.wait()
        except TimeoutError:
            raise full from None

    def _close(self, error: JetsparkError) -> None:
        if not self._open:
            return
        with self._guard:
            self._open = False
            self._ended_by = error
            self._flow.close(error)
            settled = self._pump()
        self._core.router.remove(self._receiver)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._finish(settled)
        self._connected.wake()


def encode_options(
    headers: HeadersLike | None,
    msg_id: str | None,
    expect: Expect | None,
    ttl: float | str | None,
    schedule: Schedule | None,
    subject: str,
) -> bytes | None:
    """The header block of a message; None when it has no headers."""
    if headers is None and msg_id is None and expect is None and ttl is None and schedule is None:
        return None
    typed = publish_headers(
        headers, msg_id=msg_id, expect=expect, ttl=ttl, schedule=schedule, subject=subject
    )
    return None if typed is None else encode_headers(typed)


async def publish_columns(publisher: Publisher, columns: Columns) -> AckBatch:
    """``publish_many`` for messages whose only header is an id, or that have none; at a fraction of the cost.
    Internal to jetspark."""
    return await publisher._publish_columns(columns)
