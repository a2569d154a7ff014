"""The NATS connection on asyncio, as users call it. ``core`` keeps it alive."""

from __future__ import annotations

import asyncio
import time
import warnings
from typing import TYPE_CHECKING, Any

from jetspark.connection.options import check_timeout
from jetspark.connection.outbox import FLUSH_AT, HeadersLike
from jetspark.connection.requests import is_no_responders
from jetspark.connection.subscription import Subscription, sink_of
from jetspark.connection.subscription_sink import (
    DEFAULT_PENDING_BYTES,
    DEFAULT_PENDING_MESSAGES,
    Callback,
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

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from types import TracebackType

    from jetspark.connection.core import Core
    from jetspark.connection.message import Msg
    from jetspark.connection.statistics import Statistics
    from jetspark.wire.info import ServerInfo


class Connection:
    """Core NATS: publish, subscribe, request. ``jetspark.Connection`` adds JetStream to it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        core.message_owner = self

    # State

    @property
    def is_connected(self) -> bool:
        """Whether a server is connected right now."""
        return self._core.link is not None

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed for good."""
        return self._core.is_closed

    @property
    def is_reconnecting(self) -> bool:
        """Whether the connection is down and reconnecting."""
        return self._core.reconnecting is not None

    @property
    def is_draining(self) -> bool:
        """Whether ``drain`` is in progress."""
        return self._core.draining

    @property
    def connected_url(self) -> str | None:
        """The URL of the connected server, without credentials; None when disconnected."""
        link = self._core.link  # read once: the blocking facade calls this while the loop may change it
        return str(link.url) if link is not None else None

    @property
    def server_info(self) -> ServerInfo:
        """The most recent INFO of the current server, or of the previous one while disconnected."""
        return self._core.info

    @property
    def client_id(self) -> int:
        """The server's id for this connection, as shown in the server's monitoring."""
        return self._core.info.client_id

    @property
    def max_payload(self) -> int:
        """The largest message (headers + body) that the server accepts."""
        return self._core.outbox.max_payload

    @property
    def servers(self) -> list[str]:
        """All servers of the pool, without credentials."""
        return [str(server.url) for server in self._core.pool.servers]

    @property
    def discovered_servers(self) -> list[str]:
        """Servers that the cluster announced."""
        return [str(server.url) for server in self._core.pool.servers if server.discovered]

    @property
    def last_error(self) -> JetsparkError | None:
        """The last error of the connection, even if it has recovered since."""
        return self._core.last_error

    @property
    def stats(self) -> Statistics:
        """Counters since the connection was made."""
        stats = self._core.stats.copy()
        link = self._core.link
        if link is not None:
            stats.in_bytes += link.bytes_in
        return stats

    def __repr__(self) -> str:
        state = "closed" if self._core.is_closed else (self.connected_url or "reconnecting")
        return f"Connection({state})"

    def __del__(self) -> None:
        # This happens only when its loop is gone: until then the loop holds a reference to it.
        if self.is_connected and not self.is_closed:
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

        While disconnected, messages are kept and sent after the reconnect, up to ``reconnect_buffer_size``
        bytes (:class:`OutboundBufferFull` beyond that). Waits if the server reads more slowly than you write.
        """
        core = self._core
        core.check_loop()
        outbox = core.outbox
        if core.observer is not None:
            with core.observer.publishing("core", subject, data, headers) as sending:
                outbox.publish(subject, data, reply, sending.headers)
                if outbox.size >= FLUSH_AT:
                    await outbox.give_way()
            sending.done(None)
            return
        outbox.publish(subject, data, reply, headers)
        if outbox.size >= FLUSH_AT:
            await outbox.give_way()

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
        async or not, called with each message in order; without it, iterate the subscription. If it raises,
        the error is reported with its traceback (on stderr unless logging is set up), the listener gets
        :class:`CallbackFailed`, and the next message follows.
        ``max_messages``: end after this many messages (0: never). ``pending_*_limit``: how much may be
        buffered before the newest messages are dropped (defaults 524,288 messages and 128 MiB; 0: no limit).
        """
        if callable(callback) and self._core.observer is not None:
            callback = self._core.observer.handling(callback)
        sink = await self._core.subscribe(
            subject,
            queue=queue,
            callback=callback,
            max_messages=max_messages,
            pending_messages_limit=pending_messages_limit,
            pending_bytes_limit=pending_bytes_limit,
        )
        return Subscription(sink)

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

        Raises :class:`NoRespondersError` at once if nothing listens on the subject, :class:`RequestTimeout`
        after ``timeout`` seconds (default: ``request_timeout``), :class:`ConnectionLost` if the link breaks.
        """
        core = self._core
        if core.observer is None:
            return await core.request(subject, data, timeout=timeout, headers=headers)
        with core.observer.publishing("request", subject, data, headers) as sending:
            answer = await core.request(subject, data, timeout=timeout, headers=sending.headers)
        sending.done(None)
        return answer

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
        """Publish one request and yield every answer, until the first of these happens:

        ``timeout`` seconds have passed (default: ``request_timeout``), ``max_messages`` answers have arrived,
        ``stall`` seconds have passed since the last answer, or ``sentinel`` is true for an answer (which is
        not yielded). Raises :class:`NoRespondersError` if nothing listens on the subject,
        :class:`ConnectionLost` if the link breaks.
        """
        check_request_many(timeout, stall, max_messages)
        now = self._core.loop.time
        limit = now() + (self._core.options.request_timeout if timeout is None else timeout)
        inbox = self.new_inbox()
        async with await self.subscribe(inbox, max_messages=max_messages or 0) as answers:
            sink_of(answers).asked = subject
            await self.publish(subject, data, reply=inbox, headers=headers)
            count = 0
            while max_messages is None or count < max_messages:
                deadline = limit if stall is None or count == 0 else min(limit, now() + stall)
                try:
                    answer = await answers.next(timeout=max(0.0, deadline - now()))
                except RequestTimeout:
                    return
                if is_no_responders(answer):
                    raise NoRespondersError(subject)
                if sentinel is not None and sentinel(answer):
                    return
                count += 1
                yield answer

    def new_inbox(self) -> str:
        """A new unique subject under ``inbox_prefix``."""
        return self._core.new_inbox()

    # Flush, drain, close

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until the server has processed everything sent so far (PING, PONG)."""
        await self._core.flush(timeout)

    async def rtt(self, timeout: float | None = None) -> float:
        """Seconds from a PING to its PONG."""
        self._core.outbox.flush()
        start = time.perf_counter()
        await self._core.flush(timeout)
        return time.perf_counter() - start

    async def drain(self) -> None:
        """Stop receiving, let user code finish what has arrived, send everything, then close.

        Callbacks, loops over a subscription or a ``consume``, and the acks of publishers have
        ``drain_timeout`` seconds (:class:`DrainTimeout` after that; the connection is closed all the same).
        Then the consumers that ``js.subscribe`` created are deleted; if that fails, the listener gets
        :class:`ConsumerDeleteFailed`. A callback or a loop that calls ``drain`` itself can't be waited for:
        what is buffered for it is dropped.
        """
        if self._core.is_closed or self._core.draining:
            return
        self._core.check_loop()
        if self._core.closing:
            await self.close()
            return
        self._core.draining = True
        try:
            async with asyncio.timeout(self._core.options.drain_timeout):
                caller = asyncio.current_task()  # may be the callback of one of them
                await self._drain_sinks(caller)
                # While disconnected, waiting for a server makes sense only if something is left to send.
                if self._core.link is not None or self._core.outbox.pieces:
                    await self.flush(self._core.options.drain_timeout)
        except TimeoutError as error:
            if isinstance(error, DrainTimeout):
                raise
            seconds = self._core.options.drain_timeout
            raise DrainTimeout(f"not drained within drain_timeout={seconds:g}s") from None
        except ConnectionLost as error:
            self._core.last_error = error
        except ConnectionClosed:
            if not self._core.closing:
                raise
            # Another caller lost patience and called close.
        finally:
            await self.close()
            self._core.draining = False

    async def _drain_sinks(self, caller: asyncio.Task[Any] | None) -> None:
        """Drain every sink to its end, even if some fail; then raise the first :class:`JetsparkError`.

        Consumers are deleted at the end of their drain.
        """
        sinks = list({*self._core.router.sinks.values(), *self._core.router.drained})
        results = await asyncio.gather(*(sink._drain(caller) for sink in sinks), return_exceptions=True)
        for sink, error in zip(sinks, results, strict=True):
            if error is not None and not isinstance(error, JetsparkError):
                self._core.guard.failed(sink, "drain", error)
        for error in results:
            if isinstance(error, JetsparkError):
                raise error

    async def close(self) -> None:
        """Send what is buffered, wait until the server has it, and close.

        Waits at most ``connect_timeout`` for a server that does not answer. Pending requests fail with
        :class:`ConnectionClosed`.
        """
        if self._core.is_closed:
            return
        self._core.check_loop()
        if self._core.closing:
            if self._core.close_waiter is not None:
                await asyncio.shield(self._core.close_waiter)
            return
        self._core.outbox.flush(even_if_behind=True)
        self._core.closing = True
        self._core.close_waiter = self._core.loop.create_future()
        unanswered = len(self._core.pongs)
        link = self._core.drop_link()
        try:
            await self._end_tasks([self._core.reconnecting])
            if link is not None:
                await link.close(grace=self._core.options.connect_timeout, unanswered=unanswered)
        finally:
            # Even if the caller was cancelled: others may be waiting for this close.
            self._core.reconnecting = None
            if link is not None:
                link.abort(ConnectionClosed("closed"))
            self._core.finish(None)
            self._core.close_waiter.set_result(None)
        # Listeners may finish handling the close; callbacks had their chance in drain.
        listening = self._core.listening.tasks - {asyncio.current_task()}
        if listening:
            await asyncio.wait(listening, timeout=self._core.options.connect_timeout)
        await self._end_tasks([*self._core.tasks, *listening])

    @staticmethod
    async def _end_tasks(tasks: Iterable[asyncio.Task[None] | None]) -> None:
        """Cancel our own tasks and wait for them, except for the calling task."""
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
        """Drop the current link and connect again, to another server if there is one."""
        self._core.check_open()
        if self._core.link is not None:
            # What has not been written yet is kept for the next link.
            self._core.link.abort(ConnectionLost("force_reconnect was called"))
        attempts = max(2, len(self._core.pool.servers))
        await self._core.wait_connected(self._core.options.connect_timeout * attempts)

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def check_request_many(timeout: float | None, stall: float | None, max_messages: int | None) -> None:
    """Check what limits the answers of ``request_many``, before anything is sent."""
    for field, seconds in (("timeout", timeout), ("stall", stall)):
        if seconds is not None:
            check_timeout(field, seconds)
    if max_messages is not None and (type(max_messages) is not int or max_messages < 1):
        raise InvalidArgument("max_messages", max_messages, "must be an integer, 1 or more")


def core_of(connection: Connection) -> Core:
    """The core of a connection, for our own packages."""
    return connection._core
