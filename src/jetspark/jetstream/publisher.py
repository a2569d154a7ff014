"""The pipelined publisher: many messages in flight, each with a future of its ack.

Theory of operation
-------------------
All acks come to one wildcard inbox; the last token of the reply subject says which message an ack is for.
A message costs a dictionary entry and a future, nothing else: no task, no timer, no closure. One timer for
the whole publisher finds acks that never came: at each tick it notes how far publishing has got, and what
was sent before a note older than ``ack_timeout`` has expired.

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
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import msgspec

from jetspark.connection.core import FLUSH_AT, HeadersLike
from jetspark.connection.requests import is_no_responders
from jetspark.connection.subscription import Sink
from jetspark.errors import (
    ConnectionClosed,
    ConnectionLost,
    InvalidArgument,
    JetsparkError,
    OutboundBufferFull,
    ProtocolError,
    RequestTimeout,
)
from jetspark.jetstream.errors import ApiError, NoStreamResponse
from jetspark.jetstream.puback import PubAck, decode_puback
from jetspark.jetstream.publish import DEFAULT_RETRY_WAIT, Expect, publish_headers
from jetspark.jetstream.publish_many import AckBatch, Columns, EncodedColumns, Publishing, encode
from jetspark.jetstream.publisher_stats import PublisherStats, PublishFailed
from jetspark.wire._backend import speed
from jetspark.wire.columns import ANSWERS, PackedColumns
from jetspark.wire.commands import MAX_TARGET
from jetspark.wire.headers import encode_headers

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from jetspark.connection.client import Connection
    from jetspark.jetstream.schedule import Schedule
    from jetspark.wire._speed import AckFuture, Launcher
    from jetspark.wire.columns import AnyColumns

DEFAULT_WINDOW = 4000
_CRLF = b"\r\n"
# The compiled core makes one piece of a message; a large one is better not copied once more.
_COPIED = 4096
# A stream takes in 128 MiB ahead of its disk (max_buffered_size) and refuses the rest; so large messages are
# counted in bytes too. Smaller ones fill the default window long before they fill that.
LARGE = 16_384
MAX_LARGE_BYTES = 32 * 1_048_576
# Of Nats-Expected-Last-Sequence and -Last-Subject-Sequence.
_EXPECTED_SEQUENCE = b"Nats-Expected-Last-S"


# A message without an ack so far: who wants its ack; the subject, for errors that name it; its place in a
# batch; data and header block to send again, or where they are (None: never send it again). A plain tuple,
# which the compiled core takes apart too. Of a plain message it notes no more than the future (AckFuture),
# which knows its subject.
Again = tuple[bytes, "bytes | None"] | EncodedColumns
Flight = tuple["asyncio.Future[PubAck] | AckBatch", str, int, "Again | None"]


def _flight(noted: Flight | AckFuture) -> Flight:
    return noted if isinstance(noted, tuple) else (noted, noted._subject, 0, None)


class Publisher(Sink):
    """See the module. Made by ``js.publisher()``; use it with ``async with``."""

    def __init__(self, client: Connection, *, window: int, ack_timeout: float, retry: bool) -> None:
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise InvalidArgument("window", window, "must be a positive integer")
        if isinstance(ack_timeout, bool) or not isinstance(ack_timeout, int | float) or not ack_timeout > 0:
            raise InvalidArgument("ack_timeout", ack_timeout, "must be a positive number of seconds")
        if not isinstance(retry, bool):
            raise InvalidArgument("retry", retry, "must be True or False")
        self._base = client.new_inbox() + "."
        super().__init__(client, self._base + "*")
        self._base_bytes = self._base.encode()
        self._overhead = len(self._base_bytes) + 40  # bytes of a publish beside its data, about
        self._window = window
        self._ack_timeout = float(ack_timeout)
        self._retry = retry
        self._last_serial = 0  # see _serial
        # Messages from this serial on were published since the link was lost.
        self._unsent_from = 0
        self._pending: dict[int, Flight | AckFuture] = {}  # by serial
        # Large messages by serial. Two sums that only grow: threads publish, the loop settles.
        self._large: dict[int, int] = {}
        self._large_sent = self._large_done = 0
        self._marks: deque[tuple[float, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._space: list[asyncio.Future[None]] = []
        self._connected: list[asyncio.Future[None]] = []
        self._stats = PublisherStats()
        self._failures = 0
        self._first_failure: JetsparkError | None = None
        self._open = False
        self._ended_by: JetsparkError | None = None
        # The server takes so long a line; the serial has 20 digits at most.
        self._longest_prefix = MAX_TARGET - len(self._base_bytes) - 21
        self._launcher: Launcher | None = None
        if speed is not None:
            self.factory, self.owner = ANSWERS, (self.factory, self.owner)
            self._launcher = speed.Launcher(self._base_bytes, self._pending, client._loop)

    @property
    def pending(self) -> int:
        """Messages without an ack so far."""
        return len(self._pending)

    @property
    def stats(self) -> PublisherStats:
        """Counters since the publisher was opened."""
        return replace(self._stats, published=self._stats.published + self.uncounted)

    def __repr__(self) -> str:
        return f"Publisher(window={self._window}, pending={len(self._pending)})"

    async def __aenter__(self) -> Self:
        self.client._check_open()
        self.client._add_sink(self)
        self._open = True
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
        """Send a message and return the future of its ack; waits while the window is full.

        The options are those of ``js.publish``. While disconnected it buffers, and waits for the connection
        when ``reconnect_buffer_size`` is reached (:class:`OutboundBufferFull` after ``ack_timeout``).
        """
        if not self._open:
            raise ConnectionClosed(self._why_closed())
        while len(self._pending) >= self._window or self._large_sent - self._large_done > MAX_LARGE_BYTES:
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
            while self._full or self._window - len(pending) < step:
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

    # What the connection calls

    @property
    def uncounted(self) -> int:
        return 0 if self._launcher is None else self._launcher.count

    def deliver_columns(self, columns: AnyColumns) -> None:
        self._tally()
        rows: Iterable[int] = range(len(columns))
        if isinstance(columns, PackedColumns) and not self._large:
            acked, duplicates, rows = columns.rows.settle(
                len(self._base_bytes), self._pending, PubAck, AckBatch
            )
            self._stats.acked += acked
            self._stats.duplicates += duplicates
            if not rows:
                self._wake()
                return
        make, owner = self.owner
        subjects, datas, headers = columns.subjects, columns.payloads, columns.headers
        self.deliver(
            [
                make(
                    subjects[row].decode("utf-8", "surrogateescape"), "", datas[row], headers.get(row), owner
                )
                for row in rows
            ],
            columns.nbytes,
        )

    def deliver(self, items: list[Any], nbytes: int) -> None:
        pending, large, cut = self._pending, self._large, len(self._base)
        decode, quick = PubAck.from_response, decode_puback
        acked = 0
        for message in items:
            try:
                serial = int(message.subject[cut:])
                flight = _flight(pending[serial])
            except (ValueError, KeyError):
                continue  # expired, or a second ack of a message sent again; or nobody of ours asked for it
            if message._header is not None and is_no_responders(message):
                self._refused(serial, NoStreamResponse(flight[1]), again=True)
                continue
            try:
                try:
                    ack = quick(message.data)
                except msgspec.DecodeError:
                    ack = decode(message.data)
                if not ack.seq:
                    # An ack has a sequence; what has none may be an error, which names its stream too.
                    ack = decode(message.data)
            except (JetsparkError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as failure:
                error = failure if isinstance(failure, JetsparkError) else ProtocolError(str(failure))
                # Such as "this msg_id is in process": what we sent before the link broke is still on its way.
                self._refused(serial, error, again=isinstance(error, ApiError) and error.retryable)
                continue
            del pending[serial]
            if large:
                self._large_done += large.pop(serial, 0)
            acked += 1
            if ack.duplicate:
                self._stats.duplicates += 1
            target = flight[0]
            if isinstance(target, AckBatch):
                target.acked_many(ack.stream, 1, ack.duplicate)
            elif not target.done():  # the user may have cancelled it
                target.set_result(ack)
        self._stats.acked += acked
        self._wake()

    def link_dropped(self) -> None:
        self._revoke()

    def link_lost(self, error: JetsparkError) -> None:
        self._unsent_from = self._serial + 1
        lost = ConnectionLost(f"connection lost before the ack came; the message may be stored: {error}")
        for serial, noted in list(self._pending.items()):
            if _flight(noted)[3] is None:
                self._fail(serial, lost)
        self._wake()

    def link_restored(self) -> None:
        limit = self.client._max_payload
        for serial, noted in list(self._pending.items()):
            _, _, index, again = _flight(noted)
            # What was published meanwhile lay in the connection's buffer and has just been sent from there,
            # unless it is too large for the new server: then sending it fails it.
            if again is not None:
                data, block = again if isinstance(again, tuple) else again[index]
                if serial < self._unsent_from or len(data) + len(block or b"") > limit:
                    self._send_again(serial)
        self._wake_connected()

    def publish_refused(self, subject: str, error: JetsparkError) -> None:
        for serial, noted in list(self._pending.items()):
            if _flight(noted)[1] == subject:
                self._fail(serial, error)
        self._wake()

    def ended(self, error: JetsparkError | None) -> None:
        self._close(error or ConnectionClosed("the connection was closed before the ack came"))

    # Internals

    @property
    def _serial(self) -> int:
        """Of the last message."""
        return self._last_serial if self._launcher is None else self._launcher.serial

    def _reserve(self, count: int) -> int:
        """Serials for so many messages: the first of them."""
        if self._launcher is not None:
            return self._launcher.reserve(count)
        # Threads do this too. In one statement without a call, none gets in between.
        self._last_serial = last = self._last_serial + count
        return last - count + 1

    def _tally(self) -> None:
        """Count what the compiled core has sent by itself."""
        if self._launcher is not None:
            count, size = self._launcher.tally()
            if count:
                client = self.client
                self._stats.published += count
                client._stats.out_msgs += count
                if client._out:  # else it is written already
                    client._out_size += size

    def _revoke(self) -> None:
        """Have the next message come to ``publish``."""
        if self._launcher is not None:
            self._tally()
            self._launcher.revoke()

    def _why_closed(self) -> str:
        if self._ended_by is None:
            return "the publisher is not open; use it with 'async with'"
        return f"the publisher is closed: {self._ended_by}"

    @staticmethod
    def _may_resend(msg_id: str | None, block: bytes | None) -> bool:
        """Whether a second copy is harmless."""
        return msg_id is not None and block is not None and _EXPECTED_SEQUENCE not in block

    def _send_again(self, serial: int) -> None:
        noted = self._pending.get(serial)
        if noted is None or self.client._link is None:
            return  # acked meanwhile; or down again, then link_restored comes
        _, subject, index, again = _flight(noted)
        if again is None:
            return
        data, block = again if isinstance(again, tuple) else again[index]
        try:
            self.client._pub(subject, data, f"{self._base}{serial}", block, own_reply=True)
        except JetsparkError as error:
            # The server connected now takes less than the one before.
            self._fail(serial, error)
            self._wake()
            return
        self._stats.resent += 1

    def _refused(self, serial: int, error: JetsparkError, *, again: bool) -> None:
        if again and _flight(self._pending[serial])[3] is not None:
            self.client._loop.call_later(DEFAULT_RETRY_WAIT, self._send_again, serial)
        else:
            self._fail(serial, error)

    def _fail(self, serial: int, error: JetsparkError) -> None:
        target, _, index, _ = _flight(self._pending.pop(serial))
        self._large_done += self._large.pop(serial, 0)
        self._stats.failed += 1
        self._failures += 1
        if self._first_failure is None:
            self._first_failure = error
        if isinstance(target, AckBatch):
            target.failed(index, error)
        elif not target.done():
            target.set_exception(error)
            # Marks it as seen: flush reports it to those who threw the future away.
            target.exception()

    def _tick(self) -> None:
        now = self.client._loop.time()
        self._marks.append((now, self._serial))
        expired = 0
        while self._marks and now - self._marks[0][0] >= self._ack_timeout:
            expired = self._marks.popleft()[1]
        self._resend_overdue(now)
        if expired:
            for serial in self._up_to(expired):
                self._fail(
                    serial,
                    RequestTimeout(
                        f"no ack within ack_timeout={self._ack_timeout:g}s; the message may be stored"
                    ),
                )
            self._wake()
        self._timer = self.client._loop.call_later(self._ack_timeout / 8, self._tick)

    def _up_to(self, last: int) -> list[int]:
        """Serials without an ack, up to this one."""
        # A copy: threads publish meanwhile.
        return list(itertools.takewhile(lambda serial: serial <= last, list(self._pending)))

    def _resend_overdue(self, now: float) -> None:
        """A leader that died took its acks along, and no connection broke to tell of it."""
        overdue = 0
        for marked, serial in self._marks:
            if now - marked < self._ack_timeout / 4:
                break
            overdue = serial
        for serial in self._up_to(overdue):
            self._send_again(serial)

    @property
    def _full(self) -> bool:
        return len(self._pending) >= self._window or self._large_sent - self._large_done > MAX_LARGE_BYTES

    def _note_large(self, serial: int, size: int) -> None:
        self._large[serial] = size
        self._large_sent += size
        self._revoke()

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

    def _wake_connected(self) -> None:
        waiters, self._connected = self._connected, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _wake(self) -> None:
        if self._space and not self._full:
            waiters, self._space = self._space, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

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
