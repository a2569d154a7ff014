"""The NATS connection on asyncio: what users call. How it stays alive is in ``core``."""

from __future__ import annotations

import asyncio
import time
import warnings
from typing import TYPE_CHECKING, Any

from jetspark.connection.core import FLUSH_AT, ConnectionCore, HeadersLike
from jetspark.connection.events import CallbackFailed
from jetspark.connection.listening import report_failure
from jetspark.connection.nuid import next_nuid
from jetspark.connection.options import check_timeout
from jetspark.connection.requests import RequestInbox, is_no_responders
from jetspark.connection.subscription import (
    DEFAULT_PENDING_BYTES,
    DEFAULT_PENDING_MESSAGES,
    Callback,
    Subscription,
)
from jetspark.errors import (
    ConnectionClosed,
    ConnectionLost,
    DrainTimeout,
    InvalidArgument,
    JetsparkError,
    NoRespondersError,
    RequestTimeout,
)
from jetspark.wire.commands import PING, encode_sub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from types import TracebackType

    from jetspark.connection.message import Msg
    from jetspark.connection.statistics import Statistics
    from jetspark.wire.info import ServerInfo


class Connection(ConnectionCore):
    """Core NATS: publish, subscribe, request. ``jetspark.Connection`` adds JetStream to it."""

    # The blocking facade has its own, read by threads.
    _subscription_class: type[Subscription] = Subscription

    # State

    @property
    def is_connected(self) -> bool:
        """Whether a server is connected right now."""
        return self._link is not None

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed for good."""
        return self._closed

    @property
    def is_reconnecting(self) -> bool:
        """Whether the connection is down and being renewed."""
        return self._reconnecting is not None

    @property
    def is_draining(self) -> bool:
        """Whether ``drain`` is under way."""
        return self._draining

    @property
    def connected_url(self) -> str | None:
        """The connected server without credentials, None when disconnected."""
        link = self._link  # once: the blocking facade reads this while the loop's thread may change it
        return str(link.url) if link is not None else None

    @property
    def server_info(self) -> ServerInfo:
        """The last INFO of the server connected now or last."""
        return self._info

    @property
    def client_id(self) -> int:
        """The server's number for this connection; it shows in the server's monitoring."""
        return self._info.client_id

    @property
    def max_payload(self) -> int:
        """The largest message (headers + body) that the server takes."""
        return self._max_payload

    @property
    def servers(self) -> list[str]:
        """All servers of the pool, without credentials."""
        return [str(server.url) for server in self._pool.servers]

    @property
    def discovered_servers(self) -> list[str]:
        """Servers that the cluster announced."""
        return [str(server.url) for server in self._pool.servers if server.discovered]

    @property
    def last_error(self) -> JetsparkError | None:
        """The last error of the connection, also when it has recovered since."""
        return self._last_error

    @property
    def stats(self) -> Statistics:
        """Counters since the connection was made."""
        stats = self._stats.copy()
        link = self._link
        if link is not None:
            stats.in_bytes += link.bytes_in
        return stats

    def __repr__(self) -> str:
        state = "closed" if self._closed else (self.connected_url or "reconnecting")
        return f"Connection({state})"

    def __del__(self) -> None:
        # Only when its loop is gone: until then the loop holds it.
        if getattr(self, "_link", None) is not None and not self._closed:
            warnings.warn(
                f"unclosed connection to {self.connected_url}: call close(), or use 'async with'",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    # Publish

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        reply: str = "",
        headers: HeadersLike | None = None,
    ) -> None:
        """Publish a message. Returns when it is buffered; ``flush`` waits until the server has it.

        While disconnected it is kept and sent after the reconnect, up to ``reconnect_buffer_size`` bytes
        (:class:`OutboundBufferFull` past that). Waits when the server reads more slowly than you write.
        """
        self._check_loop()
        self._pub(subject, data, reply, headers)
        if self._out_size >= FLUSH_AT:
            await self._give_way()

    # Subscribe

    async def subscribe(
        self,
        subject: str,
        *,
        queue: str = "",
        callback: Callback | None = None,
        max_messages: int = 0,
        pending_messages_limit: int = DEFAULT_PENDING_MESSAGES,
        pending_bytes_limit: int = DEFAULT_PENDING_BYTES,
    ) -> Subscription:
        """Subscribe to a subject; wildcards ``*`` and ``>`` are allowed.

        ``queue``: share the messages with the other members of this queue group. ``callback``: a function,
        async or not, called with each message in order; without it, iterate the subscription. What it raises
        is reported with its traceback, on stderr unless logging is set up, and the listener gets
        :class:`CallbackFailed`; the next message follows.
        ``max_messages``: end after so many (0: never). ``pending_*_limit``: how much may be buffered before
        the newest messages are dropped (defaults 524,288 messages and 128 MiB; 0: no limit).
        """
        self._check_open()
        if self._draining:
            raise ConnectionClosed("the connection is draining; it takes no new subscription")
        encode_sub(subject, queue, str(self._next_sid + 1))
        sub = self._subscription_class(
            self,
            subject,
            queue,
            callback,
            max_messages,
            pending_messages_limit,
            pending_bytes_limit,
        )
        self._add_sink(sub)
        if max_messages:
            self._limit_sink(sub)
        return sub

    # Requests

    async def request(
        self,
        subject: str,
        data: bytes = b"",
        *,
        timeout: float | None = None,
        headers: HeadersLike | None = None,
    ) -> Msg:
        """Publish a request and return the first answer.

        Raises :class:`NoRespondersError` at once when nobody listens, :class:`RequestTimeout` after
        ``timeout`` seconds (default: ``request_timeout``), :class:`ConnectionLost` when the link breaks.
        """
        self._check_open()
        if timeout is not None:
            check_timeout("timeout", timeout)
        if self._inbox is None:
            self._inbox = RequestInbox(self, self.options.inbox_prefix)
            self._add_sink(self._inbox)
        return await self._inbox.request(
            subject,
            data,
            headers,
            self.options.request_timeout if timeout is None else timeout,
        )

    async def request_many(
        self,
        subject: str,
        data: bytes = b"",
        *,
        timeout: float | None = None,
        max_messages: int | None = None,
        stall: float | None = None,
        sentinel: Callable[[Msg], bool] | None = None,
        headers: HeadersLike | None = None,
    ) -> AsyncIterator[Msg]:
        """Publish one request and yield every answer until the first of these ends it.

        ``timeout`` seconds in all (default: ``request_timeout``), ``max_messages`` answers, ``stall`` seconds
        without an answer after the first one, an answer for which ``sentinel`` is true (not yielded).
        Raises :class:`NoRespondersError` when nobody listens, :class:`ConnectionLost` when the link breaks.
        """
        for field, seconds in (("timeout", timeout), ("stall", stall)):
            if seconds is not None:
                check_timeout(field, seconds)
        if max_messages is not None and (type(max_messages) is not int or max_messages < 1):
            raise InvalidArgument("max_messages", max_messages, "must be an integer, 1 or more")
        limit = self._loop.time() + (self.options.request_timeout if timeout is None else timeout)
        inbox = self.new_inbox()
        async with await self.subscribe(inbox, max_messages=max_messages or 0) as answers:
            answers.asked = subject
            await self.publish(subject, data, reply=inbox, headers=headers)
            count = 0
            while max_messages is None or count < max_messages:
                deadline = limit if stall is None or count == 0 else min(limit, self._loop.time() + stall)
                try:
                    answer = await answers.next(timeout=max(0.0, deadline - self._loop.time()))
                except RequestTimeout:
                    return
                if is_no_responders(answer):
                    raise NoRespondersError(subject)
                if sentinel is not None and sentinel(answer):
                    return
                count += 1
                yield answer

    def new_inbox(self) -> str:
        """A fresh unique subject under ``inbox_prefix``."""
        return f"{self.options.inbox_prefix}.{next_nuid()}"

    # Flush, drain, close

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until the server has processed everything sent so far (PING, PONG)."""
        await self._ping(timeout)

    async def rtt(self, timeout: float | None = None) -> float:
        """Seconds from a PING to its PONG."""
        self._flush_out()
        start = time.perf_counter()
        await self._ping(timeout)
        return time.perf_counter() - start

    async def _ping(self, timeout: float | None) -> None:
        self._check_open()
        seconds = self.options.request_timeout if timeout is None else timeout
        check_timeout("timeout", seconds)
        if self._link is None:
            await self._wait_connected(seconds)
        pong: asyncio.Future[None] = self._loop.create_future()
        self._pongs.append(pong)
        self._command(PING)
        self._flush_out()
        try:
            async with asyncio.timeout(seconds):
                await pong
        except TimeoutError:
            raise RequestTimeout(f"no PONG from {self.connected_url} within {seconds:g}s") from None

    async def drain(self) -> None:
        """Stop receiving, let user code finish what has arrived, send everything, then close.

        Callbacks, loops over a subscription or a ``consume``, and the acks of publishers have
        ``drain_timeout`` seconds (:class:`DrainTimeout` after that, the connection is closed all the same).
        Then the consumers that ``js.subscribe`` made are deleted; where that fails the listener gets
        :class:`ConsumerDeleteFailed`. A callback or a loop that calls it can't be waited for: what is
        buffered there is dropped.
        """
        if self._closed or self._draining:
            return
        self._check_loop()
        if self._closing:
            await self.close()
            return
        self._draining = True
        try:
            async with asyncio.timeout(self.options.drain_timeout):
                caller = asyncio.current_task()  # may be the callback of one of them
                await self._drain_sinks(caller)
                # While disconnected there is a reason to wait for a server only if something waits for it.
                if self._link is not None or self._out:
                    await self.flush(self.options.drain_timeout)
        except TimeoutError as error:
            if isinstance(error, DrainTimeout):
                raise
            raise DrainTimeout(f"not drained within drain_timeout={self.options.drain_timeout:g}s") from None
        except ConnectionLost as error:
            self._last_error = error
        except ConnectionClosed:
            if not self._closing:
                raise
            # Somebody lost patience and called close.
        finally:
            await self.close()
            self._draining = False

    async def _drain_sinks(self, caller: asyncio.Task[Any] | None) -> None:
        """Drain all of them to their end, whatever becomes of one; then raise the first error of ours.

        Consumers are deleted at that end.
        """
        sinks = list({*self._sinks.values(), *self._drained_sinks})
        results = await asyncio.gather(*(sink._drain(caller) for sink in sinks), return_exceptions=True)
        for sink, error in zip(sinks, results, strict=True):
            if error is not None and not isinstance(error, JetsparkError):
                self._guard.failed(sink, "drain", error)
        for error in results:
            if isinstance(error, JetsparkError):
                raise error

    async def close(self) -> None:
        """Send what is buffered, wait until the server has it, and close.

        Waits at most ``connect_timeout`` for a server that does not answer. Pending requests fail with
        :class:`ConnectionClosed`.
        """
        if self._closed:
            return
        self._check_loop()
        if self._closing:
            if self._close_waiter is not None:
                await asyncio.shield(self._close_waiter)
            return
        self._flush_out(even_if_behind=True)
        self._closing = True
        self._close_waiter = self._loop.create_future()
        unanswered = len(self._pongs)
        link = self._drop_link()
        try:
            await self._end_tasks([self._reconnecting])
            if link is not None:
                await link.close(grace=self.options.connect_timeout, unanswered=unanswered)
        finally:
            # Also when the caller was cancelled: others may wait for this close.
            self._reconnecting = None
            if link is not None:
                link.abort(ConnectionClosed("closed"))
            self._finish(None)
            self._close_waiter.set_result(None)
        # Listeners may finish what they do about it; callbacks had their chance in drain.
        listening = self._listening.tasks - {asyncio.current_task()}
        if listening:
            await asyncio.wait(listening, timeout=self.options.connect_timeout)
        await self._end_tasks([*self._callback_tasks, *listening])

    def _callback_failed(self, what: str, subject: str, error: BaseException) -> None:
        """A callback raised: tell the loop's exception handler, and the listener. Any thread may call it."""
        report_failure(self._loop, what, error)
        self._emit(CallbackFailed(subject, error))

    @staticmethod
    async def _end_tasks(tasks: Iterable[asyncio.Task[None] | None]) -> None:
        """Cancel tasks of ours and wait for them; never the one that asks for it."""
        running = [
            task
            for task in tasks
            if task is not None and not task.done() and task is not asyncio.current_task()
        ]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def force_reconnect(self) -> None:
        """Drop the current link and connect anew, to another server when there is one."""
        self._check_open()
        if self._link is not None:
            # What is not written yet stays for the next link.
            self._link.abort(ConnectionLost("force_reconnect was called"))
        await self._wait_connected(self.options.connect_timeout * max(2, len(self._pool.servers)))

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
