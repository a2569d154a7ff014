"""The connection, for threads: a thin facade over the asyncio one in the engine's thread."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import time
import warnings
import weakref
from functools import partial
from typing import TYPE_CHECKING, cast

from jetspark._log import get_logger
from jetspark.blocking import _process
from jetspark.blocking._engine import closed_error
from jetspark.blocking._facade import check_plain
from jetspark.blocking._mirror import documented_by, mirrors
from jetspark.blocking.jetstream import JetStream
from jetspark.blocking.subscription import Callback, Subscription
from jetspark.connecting import Connection as AsyncConnection
from jetspark.connection.client import check_request_many, core_of
from jetspark.connection.requests import is_no_responders
from jetspark.connection.subscription import sink_of
from jetspark.connection.subscription_sink import DEFAULT_PENDING_BYTES, DEFAULT_PENDING_MESSAGES
from jetspark.errors import (
    ConnectionClosed,
    JetsparkError,
    NoRespondersError,
    RequestTimeout,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from jetspark.blocking._client import EngineConnection, ThreadSubscription
    from jetspark.blocking._engine import Engine, EngineLoop
    from jetspark.blocking._threads import ListenerThread
    from jetspark.blocking.message import Msg
    from jetspark.connection.outbox import HeadersLike
    from jetspark.connection.statistics import Statistics
    from jetspark.wire.info import ServerInfo

logger = get_logger("blocking")

# How long connections that were never closed may delay the interpreter's exit.
_EXIT_GRACE = 2.0


@mirrors(
    AsyncConnection,
    note=(
        "Any number of threads may use it. It works for the process that made it: in a forked child every\n"
        "call raises :class:`ConnectionClosed`, and closing is harmless."
    ),
)
class Connection:
    def __init__(self, engine: Engine, client: EngineConnection, listener: ListenerThread | None) -> None:
        self._engine = engine
        self._client = client
        self._listener = listener
        engine.connection = self
        self._core = client.engine_core
        self._core.held = weakref.ref(engine)
        self._core.message_owner = _MessageOwner(self)
        _open_connections.add(self)
        self._finalizer = weakref.finalize(self, _dropped, engine.loop, client, listener)
        self._finalizer.atexit = False

    # State

    @property
    @documented_by(AsyncConnection.is_connected)
    def is_connected(self) -> bool:
        return self._client.is_connected and not self._engine.is_foreign

    @property
    @documented_by(AsyncConnection.is_closed)
    def is_closed(self) -> bool:
        return self._client.is_closed or self._engine.is_foreign

    @property
    @documented_by(AsyncConnection.is_reconnecting)
    def is_reconnecting(self) -> bool:
        return self._client.is_reconnecting and not self._engine.is_foreign

    @property
    @documented_by(AsyncConnection.is_draining)
    def is_draining(self) -> bool:
        return self._client.is_draining and not self._engine.is_foreign

    @property
    @documented_by(AsyncConnection.connected_url)
    def connected_url(self) -> str | None:
        return None if self._engine.is_foreign else self._client.connected_url

    @property
    @documented_by(AsyncConnection.server_info)
    def server_info(self) -> ServerInfo:
        return self._client.server_info

    @property
    @documented_by(AsyncConnection.client_id)
    def client_id(self) -> int:
        return self._client.client_id

    @property
    @documented_by(AsyncConnection.max_payload)
    def max_payload(self) -> int:
        return self._client.max_payload

    @property
    @documented_by(AsyncConnection.servers)
    def servers(self) -> list[str]:
        return self._client.servers

    @property
    @documented_by(AsyncConnection.discovered_servers)
    def discovered_servers(self) -> list[str]:
        return self._client.discovered_servers

    @property
    @documented_by(AsyncConnection.last_error)
    def last_error(self) -> JetsparkError | None:
        return self._client.last_error

    @property
    @documented_by(AsyncConnection.stats)
    def stats(self) -> Statistics:
        return self._client.stats

    def __repr__(self) -> str:
        return repr(self._client)

    # Publish

    @documented_by(AsyncConnection.publish)
    def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        reply: str = "",
        headers: HeadersLike | None = None,
    ) -> None:
        core = self._core
        if core.observer is not None:
            with core.observer.publishing("core", subject, data, headers) as sending:
                core.outbox.publish(subject, data, reply, sending.headers)
                core.give_way()
            sending.done(None)
            return
        core.outbox.publish(subject, data, reply, headers)
        core.give_way()

    # Subscribe

    @documented_by(
        AsyncConnection.subscribe,
        note="The callback runs in a thread of the subscription's own, so it may block and use the API.",
    )
    def subscribe(
        self,
        subject: str,
        *,
        queue: str = "",
        callback: Callback | None = None,
        max_messages: int = 0,
        pending_messages_limit: int = DEFAULT_PENDING_MESSAGES,
        pending_bytes_limit: int = DEFAULT_PENDING_BYTES,
    ) -> Subscription:
        check_plain("callback", callback)
        made = self._engine.run(
            self._client.subscribe,
            subject,
            queue=queue,
            callback=callback,  # type: ignore[arg-type]
            max_messages=max_messages,
            pending_messages_limit=pending_messages_limit,
            pending_bytes_limit=pending_bytes_limit,
        )
        return Subscription(self._engine, cast("ThreadSubscription", sink_of(made)))

    # Requests

    @documented_by(AsyncConnection.request)
    def request(
        self,
        subject: str,
        data: bytes = b"",
        *,
        timeout: float | None = None,
        headers: HeadersLike | None = None,
    ) -> Msg:
        answer = self._engine.run(self._client.request, subject, data, timeout=timeout, headers=headers)
        return cast("Msg", answer)  # the parser makes the class that the connection's kinds specify

    @documented_by(AsyncConnection.request_many)
    def request_many(
        self,
        subject: str,
        data: bytes = b"",
        *,
        timeout: float | None = None,
        max_messages: int | None = None,
        stall: float | None = None,
        sentinel: Callable[[Msg], bool] | None = None,
        headers: HeadersLike | None = None,
    ) -> Iterator[Msg]:
        check_request_many(timeout, stall, max_messages)
        # Written out instead of running the async generator, which would cost a hop for each answer.
        limit = time.monotonic() + (self._core.options.request_timeout if timeout is None else timeout)
        inbox = self.new_inbox()
        with self.subscribe(inbox, max_messages=max_messages or 0) as answers:
            answers._sink.asked = subject
            self.publish(subject, data, reply=inbox, headers=headers)
            count = 0
            while max_messages is None or count < max_messages:
                now = time.monotonic()
                deadline = limit if stall is None or count == 0 else min(limit, now + stall)
                try:
                    answer = answers.next(timeout=max(0.0, deadline - now))
                except RequestTimeout:
                    return
                if is_no_responders(answer):
                    raise NoRespondersError(subject)
                if sentinel is not None and sentinel(answer):
                    return
                count += 1
                yield answer

    @documented_by(AsyncConnection.new_inbox)
    def new_inbox(self) -> str:
        return self._client.new_inbox()

    # JetStream

    @documented_by(AsyncConnection.jetstream)
    def jetstream(
        self,
        *,
        domain: str | None = None,
        api_prefix: str | None = None,
        timeout: float = 5.0,
    ) -> JetStream:
        target = self._client.jetstream(domain=domain, api_prefix=api_prefix, timeout=timeout)
        return JetStream(self._engine, target, self)

    # Flush, drain, close

    @documented_by(AsyncConnection.flush)
    def flush(self, timeout: float | None = None) -> None:
        self._engine.run(self._client.flush, timeout)

    @documented_by(AsyncConnection.rtt)
    def rtt(self, timeout: float | None = None) -> float:
        return self._engine.run(self._client.rtt, timeout)

    @documented_by(AsyncConnection.drain)
    def drain(self) -> None:
        if self._engine.is_foreign:
            raise _process.forked(self._engine.pid)
        if self._engine.is_stopped:
            return
        self._core.detach_caller()
        try:
            ours = self._engine.run(self._drain, threading.current_thread())
        except JetsparkError:
            self._shut_down()
            raise
        if ours:
            self._shut_down()

    async def _drain(self, caller: threading.Thread) -> bool:
        self._core.detach_reader(caller)
        if self._client.is_draining:
            return False  # another thread's drain, which is still in progress
        await self._client.drain()
        return True

    @documented_by(
        AsyncConnection.close,
        note="Waits ``connect_timeout`` seconds for running callbacks; what they have not seen is dropped.",
    )
    def close(self) -> None:
        if self._engine.is_foreign or self._engine.is_stopped:
            return
        # Never cancelled: Ctrl-C here interrupts the waiting, and the loop finishes what it has started.
        with contextlib.suppress(ConnectionClosed):  # another thread was faster
            self._engine.finish(self._client.close)
        self._shut_down()

    def _shut_down(self) -> None:
        self._finalizer.detach()
        self._engine.stop()
        _open_connections.discard(self)
        grace = self._core.options.connect_timeout
        self._core.join_workers(grace)
        if self._listener is not None:
            self._listener.stop(grace)

    @documented_by(AsyncConnection.force_reconnect)
    def force_reconnect(self) -> None:
        self._engine.run(self._client.force_reconnect)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _MessageOwner:
    """Core messages respond through this. A message does not keep its connection open."""

    def __init__(self, connection: Connection) -> None:
        self.core = connection._core
        self._connection = weakref.ref(connection)

    def publish(self, subject: str, data: bytes, *, headers: HeadersLike | None) -> None:
        """Publish through the facade, including its observers."""
        connection = self._connection()
        if connection is None:
            raise closed_error()
        connection.publish(subject, data, headers=headers)


def _dropped(engine: EngineLoop, client: EngineConnection, listener: ListenerThread | None) -> None:
    """User code holds no part of the connection any more, and has not closed it."""
    if engine.is_foreign or engine.is_stopped:
        return
    was_open, where = not client.is_closed, client.connected_url or ", ".join(client.servers)

    async def leave() -> None:
        await client.close()
        if listener is not None:
            listener.stop(0.0)

    engine.leave(leave)
    if was_open:
        given = core_of(client).options.name
        name = f" {given!r}" if given else ""
        warnings.warn(
            f"unclosed blocking connection{name} to {where}: call close(), or use it in a with statement",
            ResourceWarning,
            stacklevel=2,
        )


_open_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


@atexit.register
def _close_at_exit() -> None:
    """Send what was published and close, but never delay the exit for long."""
    deadline = time.monotonic() + _EXIT_GRACE
    for connection in list(_open_connections):
        engine = connection._engine
        if engine.is_foreign or engine.is_stopped:
            continue
        grace = max(0.0, deadline - time.monotonic())
        with contextlib.suppress(JetsparkError, TimeoutError):
            engine.finish(partial(_leave, connection._client, grace), grace)


async def _leave(client: EngineConnection, grace: float) -> None:
    # Closing while the server still sends (acks, for example) may make TCP discard our data that the server
    # has not read. Its PONG says that it has read everything; the close itself gets the rest of the time.
    try:
        await asyncio.wait_for(client.flush(), grace * 0.75)
    except (JetsparkError, TimeoutError):
        unsent = client.engine_core.outbox.unsent
        if unsent:
            logger.warning(
                "the process ends before about %d bytes that it published were sent to the server",
                unsent,
            )
    await client.close()
