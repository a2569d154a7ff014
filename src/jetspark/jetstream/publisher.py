"""The pipelined publisher: many messages in flight, each with a future of its ack.

Theory of operation
-------------------
All acks come to one wildcard inbox; the last token of the reply subject says which message an ack is for, or
which of a few that were sent together. A message costs a dictionary entry and a future, nothing else: no
task, no timer, no closure. What becomes of it is written in :mod:`jetspark.jetstream.publisher_acks`.

What becomes of a message whose ack is lost with the connection nobody can know; so its future fails with
:class:`~jetspark.errors.ConnectionLost`, unless it has a ``msg_id`` and ``retry`` is on: then it is sent
again after the reconnect and the server's duplicate window makes that safe. So it is when no ack came for a
quarter of ``ack_timeout``: the leader of a replicated stream may die while our own server lives. Messages
sent again may be stored after messages published later. Messages that expect a sequence are not sent again:
a stream without replicas looks at the sequence before it looks at the id, and would refuse what it stored.

Failures never pass in silence: a future may be thrown away, but ``flush`` and the end of the ``async with``
block raise :class:`PublishFailed` when anything failed since the last flush.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from jetspark.connection.core import FLUSH_AT, HeadersLike
from jetspark.errors import ConnectionClosed, InvalidArgument, JetsparkError, OutboundBufferFull
from jetspark.jetstream.publish import Expect, publish_headers
from jetspark.jetstream.publish_many import AckBatch, Columns, EncodedColumns, Publishing, encode
from jetspark.jetstream.publisher_acks import LARGE, AwaitedAcks
from jetspark.jetstream.publisher_stats import PublisherStats, PublishFailed
from jetspark.wire.headers import encode_headers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from types import TracebackType

    from jetspark.connection.client import Connection
    from jetspark.jetstream.group_answers import Home
    from jetspark.jetstream.puback import PubAck
    from jetspark.jetstream.schedule import Schedule

DEFAULT_WINDOW = 4000
_CRLF = b"\r\n"
# The compiled core makes one piece of a message; a large one is better not copied once more.
_COPIED = 4096


class Publisher(AwaitedAcks):
    """See the module. Made by ``js.publisher()``; use it with ``async with``."""

    def __init__(
        self,
        client: Connection,
        *,
        window: int,
        ack_timeout: float,
        retry: bool,
        lookup: Callable[[Home, int], Awaitable[bytes]] | None = None,
    ) -> None:
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise InvalidArgument("window", window, "must be a positive integer")
        if isinstance(ack_timeout, bool) or not isinstance(ack_timeout, int | float) or not ack_timeout > 0:
            raise InvalidArgument("ack_timeout", ack_timeout, "must be a positive number of seconds")
        if not isinstance(retry, bool):
            raise InvalidArgument("retry", retry, "must be True or False")
        super().__init__(client, window=window, ack_timeout=float(ack_timeout), retry=retry)
        self._lookup = lookup  # the payload that a stream has at a sequence
        self._open = False
        self._ended_by: JetsparkError | None = None

    @property
    def pending(self) -> int:
        """Messages without an ack so far."""
        return self._in_flight

    @property
    def stats(self) -> PublisherStats:
        """Counters since the publisher was opened."""
        return replace(self._stats, published=self._stats.published + self.uncounted)

    def __repr__(self) -> str:
        return f"Publisher(window={self._window}, pending={self._in_flight})"

    async def __aenter__(self) -> Self:
        self.client._check_open()
        self.client._add_sink(self)
        self._open = True
        self._begin_probation()
        self._tick()
        launcher = self._launcher
        if launcher is not None and type(self) is Publisher and "publish" not in vars(self):
            # The compiled core sends what is plain by itself and calls the method for all else: half the
            # price, because a message needs no frame of ours.
            launcher.arm(self.publish, self.client._prefixes, self._window, self._longest_prefix)
            self.__dict__["publish"] = launcher.publish
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            looking = [*self._lookups.values()]
            self._close(ConnectionClosed("the publisher was closed before the ack came"))
            if looking:
                await asyncio.wait(looking)

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
        """Send a message and return the future of its ack; waits while the window is full.

        The options are those of ``js.publish``. While disconnected it buffers, and waits for the connection
        when ``reconnect_buffer_size`` is reached (:class:`OutboundBufferFull` after ``ack_timeout``).
        """
        if not self._open:
            raise ConnectionClosed(self._why_closed())
        while self._full:
            await self._wait_room()
            if not self._open:
                raise ConnectionClosed(self._why_closed())
        block: bytes | None = None
        if (
            headers is not None
            or msg_id is not None
            or expect is not None
            or ttl is not None
            or schedule is not None
        ):
            typed = publish_headers(
                headers, msg_id=msg_id, expect=expect, ttl=ttl, schedule=schedule, subject=subject
            )
            block = None if typed is None else encode_headers(typed)
        client, launcher = self.client, self._launcher
        future: asyncio.Future[PubAck]
        if launcher is not None:
            self._tally()
        serial = self._reserve(1)
        if block is None and type(data) is bytes and client._link is not None:
            # The common case, without the calls of the general one: a known subject, no headers, connected.
            prefix = client._prefixes.get(subject)
            size = len(data)
            if (
                prefix is not None
                and size <= _COPIED
                and size <= client._max_payload
                and len(prefix) <= self._longest_prefix
            ):
                if not client._flush_scheduled:
                    client._flush_scheduled = True
                    client._loop.call_soon(client._flush_out)
                if launcher is not None:
                    future = launcher.launch(client._out, prefix, serial, subject, data)
                else:
                    client._out += (prefix, b"%b%d %d\r\n" % (self._base_bytes, serial, size), data, _CRLF)
                    # Not loop.create_future(), which is a Python function around this.
                    future = asyncio.Future(loop=client._loop)
                    self._pending[serial] = (future, subject, 0, None)
                client._out_size += size + self._overhead
                client._stats.out_msgs += 1
                self._stats.published += 1
                if client._out_size >= FLUSH_AT:
                    await client._give_way()
                elif launcher is not None:
                    limit = min(_COPIED, client._max_payload)
                    launcher.grant(client._out, FLUSH_AT - client._out_size, limit)
                return future
        try:
            client._pub(subject, data, f"{self._base}{serial}", block, own_reply=True)
        except OutboundBufferFull as full:
            await self._wait_connected(full)
            client._pub(subject, data, f"{self._base}{serial}", block, own_reply=True)
        future = client._loop.create_future()
        again = (
            (data, block) if msg_id is not None and self._retry and self._may_resend(msg_id, block) else None
        )
        self._pending[serial] = (future, subject, 0, again)
        if len(data) > LARGE:
            self._note_large(serial, len(data))
        self._stats.published += 1
        if client._out_size >= FLUSH_AT:
            await client._give_way()
        return future

    async def publish_many(self, messages: Iterable[Publishing]) -> AckBatch:
        """Send many messages; returns when all are on their way, with one object for all their acks.

        All of them are checked before the first is sent. Waits while the window is full, as ``publish``.
        """
        client, pending = self.client, self._pending
        encoded = encode(client, messages, self._may_resend, self._longest_prefix)
        batch = AckBatch(len(encoded))
        base = self._base_bytes
        pieces: list[bytes] = []
        size = queued = 0
        retry = self._retry
        for index, (subject, data, block, prefix, sizes, again) in enumerate(encoded):
            if size >= FLUSH_AT or self._full:
                await self._send_many(pieces, size, queued)
                pieces, size, queued = [], 0, 0
                while self._full:
                    await self._wait_room()
            if not self._open:
                raise ConnectionClosed(self._why_closed())
            serial = self._reserve(1)
            reply = b"%b%d " % (base, serial)
            if block is None:
                pieces += (prefix, reply, sizes, data, _CRLF)
                size += len(prefix) + len(reply) + len(data) + 12
            else:
                pieces += (b"H", prefix, reply, sizes, block, data, _CRLF)
                size += len(prefix) + len(reply) + len(block) + len(data) + 24
            queued += 1
            pending[serial] = (batch, subject, index, again if retry else None)
            if len(data) > LARGE:
                self._note_large(serial, len(data))
        await self._send_many(pieces, size, queued)
        return batch

    async def _publish_columns(self, columns: Columns) -> AckBatch:
        """``publish_many`` of messages that have at most an id for a header, at a fraction of its price."""
        batch = AckBatch(len(columns.datas))
        if not columns.datas:
            return batch
        encoded = EncodedColumns(self.client, columns, self._base_bytes, self._longest_prefix)
        if encoded.largest > LARGE:
            subjects, datas, ids, expect = columns
            return await self.publish_many(
                [
                    Publishing(subject, data, None, None if ids is None else ids[index].decode(), expect)
                    for index, (subject, data) in enumerate(zip(subjects, datas, strict=True))
                ]
            )
        pending = self._pending
        resendable = columns.ids is not None and self._may_resend("", encoded[0][1])
        again = encoded if self._retry and resendable else None
        start, count = 0, batch.count
        while start < count:
            # A good part of the window at once: few rows cost as much as many.
            step = min(encoded.step, count - start, 1 + self._window // 4)
            while self._full or self._window - self._in_flight < step:
                await self._wait_room()
            if not self._open:
                raise ConnectionClosed(self._why_closed())
            stop = start + step
            serial = self._reserve(step)
            flights = zip(
                itertools.repeat(batch, stop - start),
                encoded.subjects[start:stop],
                range(start, stop),
                itertools.repeat(again, stop - start),
                strict=True,
            )
            pending.update(zip(range(serial, serial + step), flights, strict=True))
            piece = encoded.commands(start, stop, serial)
            await self._send_many([piece], len(piece), stop - start)
            start = stop
        return batch

    async def _send_many(self, pieces: list[bytes], size: int, count: int) -> None:
        if not pieces:
            return
        client = self.client
        try:
            client._send(tuple(pieces), size)
        except OutboundBufferFull as full:
            await self._wait_connected(full)
            client._send(tuple(pieces), size)
        client._stats.out_msgs += count - 1
        self._stats.published += count
        await client._give_way()

    async def flush(self) -> None:
        """Wait until every message so far has its ack or has failed; :class:`PublishFailed` when any did."""
        self.client._flush_out()
        while self._pending:
            await self._wait_room()
        self._raise_failures()

    def _raise_failures(self) -> None:
        if self._first_failure is not None:
            error = PublishFailed(self._failures, self._first_failure)
            self._failures, self._first_failure = 0, None
            raise error

    def ended(self, error: JetsparkError | None) -> None:
        self._close(error or ConnectionClosed("the connection was closed before the ack came"))

    # Internals

    def _why_closed(self) -> str:
        if self._ended_by is None:
            return "the publisher is not open; use it with 'async with'"
        return f"the publisher is closed: {self._ended_by}"

    async def _wait_room(self) -> None:
        """Sleep until some acks have come and there is room for another message."""
        waiter = self.client._loop.create_future()
        self._space.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._space:
                self._space.remove(waiter)

    async def _wait_connected(self, full: OutboundBufferFull) -> None:
        """Like a full window, but no ack will make room."""
        if self.client._link is not None:
            return  # meanwhile, when a thread asks
        waiter: asyncio.Future[None] = self.client._loop.create_future()
        self._connected.append(waiter)
        try:
            async with asyncio.timeout(self._ack_timeout):
                await waiter
        except TimeoutError:
            raise full from None
        finally:
            if waiter in self._connected:
                self._connected.remove(waiter)
        if not self._open:
            raise ConnectionClosed(self._why_closed())

    def _close(self, error: JetsparkError) -> None:
        if not self._open:
            return
        self._open = False
        self._ended_by = error
        self._revoke()
        if self._launcher is not None and self.__dict__.get("publish") == self._launcher.publish:
            del self.__dict__["publish"]
        if self._timer is not None:
            self._timer.cancel()
        self.client._remove_sink(self)
        for serial in list(self._pending):
            self._fail(serial, error)
        self._wake()
        self._wake_connected()
