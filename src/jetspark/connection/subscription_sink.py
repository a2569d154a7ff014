"""The connection's side of subscriptions: it gets runs of messages and hands them to user code.

:class:`SubscriptionSink` turns the runs into an async iterator or callbacks; users hold it through a
:class:`~jetspark.connection.subscription.Subscription`. A waiting reader is woken once per run.

Pending limits bound the memory of a reader that is slower than its publishers. Beyond them the *newest*
messages are dropped (what is already buffered stays in order and without holes), the drop is counted, and a
:class:`~jetspark.connection.events.SlowConsumer` event reports it once per episode.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Self

from jetspark._checks import is_whole
from jetspark.connection.events import SlowConsumer
from jetspark.connection.message import Msg
from jetspark.connection.options import check_timeout
from jetspark.connection.readers import Readers
from jetspark.connection.sink import Sink
from jetspark.connection.waiters import Waiters
from jetspark.errors import (
    ConnectionClosed,
    ConnectionLost,
    DrainTimeout,
    InvalidArgument,
    JetsparkError,
    RequestTimeout,
)

if TYPE_CHECKING:
    from types import TracebackType

    from jetspark.connection.sink import SinkCore

Callback = Callable[[Msg], "Awaitable[None] | None"]

DEFAULT_PENDING_MESSAGES = 524_288
DEFAULT_PENDING_BYTES = 128 * 1_048_576

# How many callbacks run before the event loop gets a turn to read, write and answer PINGs.
_CALLBACKS_A_TURN = 512


class SubscriptionSink(Sink):
    """A core NATS subscription; :class:`~jetspark.connection.subscription.Subscription` documents the API."""

    def __init__(
        self,
        core: SinkCore,
        subject: str,
        queue: str,
        callback: Callback | None,
        max_messages: int,
        pending_messages_limit: int,
        pending_bytes_limit: int,
    ) -> None:
        super().__init__(core, subject, queue)
        for name, value in (
            ("max_messages", max_messages),
            ("pending_messages_limit", pending_messages_limit),
            ("pending_bytes_limit", pending_bytes_limit),
        ):
            if not is_whole(value, 0):
                raise InvalidArgument(name, value, "must be 0 (no limit) or a positive integer")
        if callback is not None and not callable(callback):
            raise InvalidArgument("callback", callback, "must be a function that takes a message")
        self.limit = max_messages
        self._messages_limit = pending_messages_limit
        self._bytes_limit = pending_bytes_limit
        self._callback = callback
        self._pending: deque[Msg] = deque()
        # (messages accepted up to the end of the run, bytes of the run): bytes are settled run by run.
        self._runs: deque[tuple[int, int]] = deque()
        self._bytes = 0
        self._accepted = 0
        self._dropped = 0
        self._dropping = False
        self._closed = False
        self._error: JetsparkError | None = None
        self._waiters = Waiters()
        self._runner: asyncio.Task[None] | None = None
        # Loops over it. A caller of next() may never come back, so it is not waited for.
        self.takers = Readers()
        if callback is not None:
            self._runner = asyncio.get_running_loop().create_task(
                self._run_callback(callback), name=f"jetspark-subscription-{subject}"
            )
            core.tasks.add(self._runner)
            self._runner.add_done_callback(core.tasks.discard)

    # What the user calls

    @property
    def pending_messages(self) -> int:
        """Messages received and not yet taken by user code."""
        return len(self._pending)

    @property
    def pending_bytes(self) -> int:
        """Bytes of the pending messages as they were on the wire, updated in whole runs."""
        self._settle()
        return self._bytes

    @property
    def delivered(self) -> int:
        """Messages handed to user code so far."""
        return self._accepted - len(self._pending)

    @property
    def dropped(self) -> int:
        """Messages dropped because the pending limits were reached."""
        return self._dropped

    @property
    def closed(self) -> bool:
        """Whether no further message will arrive. Buffered messages may still be there."""
        return self._closed

    def __aiter__(self) -> Self:
        self._refuse_callback()
        self.takers.add(asyncio.current_task())
        return self

    async def __anext__(self) -> Msg:
        pending = self._pending
        while not pending:
            if self._closed:
                self.takers.remove(asyncio.current_task())
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self.takers.add(asyncio.current_task())
            await self._waiters.wait()
        if self.takers.nobody:
            self.takers.add(asyncio.current_task())
        return pending.popleft()

    async def next(self, timeout: float | None = None) -> Msg:
        """The next message. Cancelling it loses no message."""
        self._refuse_callback()
        seconds = self.core.options.request_timeout
        if timeout is not None:
            check_timeout("timeout", timeout)
            seconds = timeout
        try:
            async with asyncio.timeout(seconds):
                while not self._pending:
                    if self._closed:
                        raise self._error or ConnectionClosed(
                            f"the subscription to {self.subject!r} is closed"
                        )
                    await self._waiters.wait()
                return self._pending.popleft()
        except TimeoutError:
            raise RequestTimeout(f"no message on {self.subject!r} within {seconds:g}s") from None

    async def unsubscribe(self, limit: int = 0) -> None:
        """Stop now and drop what is buffered, or stop after ``limit`` messages in all since subscribing."""
        if not is_whole(limit, 0):
            raise InvalidArgument("max_messages", limit, "must be 0 (now) or a positive integer")
        if self._closed:
            return
        if limit > self.received:
            self.limit = limit
            self.core.router.limit(self)
            return
        self.core.router.remove(self)
        self._discard(self.received - limit if limit else len(self._pending))
        self.ended(None)
        if not limit:
            self.takers.clear()
        if not limit and self._runner is not None and self._runner is not asyncio.current_task():
            self._runner.cancel()
            await asyncio.wait([self._runner])

    async def drain(self) -> None:
        """Stop receiving, but let user code have everything that has arrived."""
        await self._end_gently(asyncio.current_task())

    async def _drain(self, asker: asyncio.Task[Any] | None) -> None:
        await self._end_gently(asker)
        timeout = self.core.options.drain_timeout
        if not await self.takers.finished(asker, timeout):
            raise DrainTimeout(
                f"reader of {self.subject!r} left {len(self._pending)} messages, or works on the last one, "
                f"after drain_timeout={timeout:g}s"
            )

    async def _end_gently(self, asker: asyncio.Task[Any] | None) -> None:
        core = self.core
        if not self._closed:
            core.router.drained.add(self)
            try:
                # Without a link nothing is in flight, so there is nothing to wait for.
                if core.link is not None:
                    core.router.unsubscribe(self)
                    # The PONG arrives after every message that the server had sent to us.
                    with contextlib.suppress(ConnectionLost, ConnectionClosed):
                        await core.flush()
            finally:
                core.router.remove(self)
                self.ended(None)
        runner = self._runner
        # A callback that drains its own subscription can't be waited for.
        if runner is not None and runner is not asker:
            _, unfinished = await asyncio.wait([runner], timeout=core.options.drain_timeout)
            if unfinished:
                runner.cancel()
                raise DrainTimeout(
                    f"callback of {self.subject!r} left {len(self._pending)} messages "
                    f"after drain_timeout={core.options.drain_timeout:g}s"
                )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.unsubscribe()

    def __repr__(self) -> str:
        # Users know it by the name of the object that they hold.
        queue = f", queue={self.queue!r}" if self.queue else ""
        state = "closed" if self._closed else "open"
        return f"Subscription({self.subject!r}{queue}, {state}, pending={len(self._pending)})"

    # What the connection calls

    def deliver(self, items: list[Any], nbytes: int) -> None:
        self.received += len(items)
        if self.limit and self.received > self.limit:
            # They were sent before the server learned of the limit.
            keep = max(0, len(items) - (self.received - self.limit))
            items, nbytes = items[:keep], nbytes * keep // len(items)
        if (self._messages_limit and len(self._pending) + len(items) > self._messages_limit) or (
            self._bytes_limit and self._bytes + nbytes > self._bytes_limit
        ):
            items, nbytes = self._fit(items, nbytes)
        elif self._dropping:
            self._dropping = False
        if items:
            self._pending.extend(items)
            self._accepted += len(items)
            self._bytes += nbytes
            self._runs.append((self._accepted, nbytes))
            if len(self._runs) > 64:
                self._settle()
            if self._waiters:
                self._wake()
        if self.limit and self.received >= self.limit:
            # The server has already ended it, after the UNSUB with this limit.
            self.core.router.remove(self, tell_server=False)
            self.ended(None)

    def ended(self, error: JetsparkError | None) -> None:
        if self._closed:
            return
        self._closed = True
        self._error = error
        self._wake()

    def link_lost(self, error: JetsparkError) -> None:
        if self.asked:
            # The request or its answers were lost with the link; waiting for them would end without an error.
            self.core.router.remove(self, tell_server=False)
            self.ended(
                ConnectionLost(f"connection lost while waiting for answers to {self.asked!r}: {error}")
            )

    def detach(self) -> None:
        """The callback drains its own subscription, so it can't be waited for."""
        self._runner = None

    # Internals

    def _refuse_callback(self) -> None:
        if self._callback is not None:
            raise InvalidArgument(
                "callback",
                self._callback,
                f"the subscription to {self.subject!r} has a callback; it can't be iterated",
            )

    def _fit(self, items: list[Msg], nbytes: int) -> tuple[list[Msg], int]:
        self._settle()
        keep = len(items)
        if self._messages_limit:
            keep = min(keep, self._messages_limit - len(self._pending))
        keep = max(0, keep)
        # Per message: an average would let large messages in at the price of the small ones of the run.
        sizes = [len(item.data) + (len(item.header_block) if item.header_block else 0) for item in items]
        line = (nbytes - sum(sizes)) // max(1, len(items))
        kept_bytes = kept = 0
        for size in sizes[:keep]:
            if self._bytes_limit and self._bytes + kept_bytes + size + line > self._bytes_limit:
                break
            kept_bytes += size + line
            kept += 1
        lost = len(items) - kept
        self._dropped += lost
        starts = lost > 0 and not self._dropping
        self._dropping = lost > 0
        if starts:
            self.core.emit(
                SlowConsumer(
                    self.subject,
                    self.sid,
                    self._dropped,
                    len(self._pending) + kept,
                    self._bytes + kept_bytes,
                )
            )
        return items[:kept], kept_bytes

    def _discard(self, count: int) -> None:
        """Drop the newest ``count`` of the buffered messages, as if they had never been accepted."""
        for _ in range(min(count, len(self._pending))):
            with contextlib.suppress(IndexError):  # a reader in another thread was faster
                self._pending.pop()
                self._accepted -= 1
        self._runs = deque((min(end, self._accepted), nbytes) for end, nbytes in self._runs)
        self._settle()

    def _settle(self) -> None:
        taken = self._accepted - len(self._pending)
        runs = self._runs
        while runs and runs[0][0] <= taken:
            self._bytes -= runs.popleft()[1]

    def _wake(self) -> None:
        self._waiters.wake()

    def _failed(self, error: BaseException) -> None:
        what = f"callback of the subscription to {self.subject!r} raised"
        self.core.callback_failed(what, self.subject, error)

    async def _run_callback(self, callback: Callback) -> None:
        pending = self._pending
        while True:
            for _ in range(min(len(pending), _CALLBACKS_A_TURN)):
                if not pending:
                    break  # unsubscribed by its own callback
                message = pending.popleft()
                try:
                    result = callback(message)
                    if result is not None and inspect.isawaitable(result):
                        await result
                except asyncio.CancelledError as error:
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise
                    # Not our cancellation: something that the callback awaited was cancelled.
                    self._failed(error)
                except Exception as error:
                    self._failed(error)
            if pending:
                await asyncio.sleep(0)
            elif self._closed:
                return
            else:
                await self._waiters.wait()
