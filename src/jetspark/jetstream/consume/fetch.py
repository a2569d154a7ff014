"""``fetch`` and ``next`` (ADR-37 'Fetch', 'Next'): one request, then the end.

Each fetch has its own inbox, so a late status of one fetch can't reach another, and unsubscribing the inbox
withdraws the request from the server.

**Empty means that the server said so**: 404, 408, or the end of a request that was served. Anything else that
ends a fetch without a message is raised: no connection, no reply by the client's own deadline, no leader, or
a message larger than ``max_bytes``.

Cancelling a fetch loses nothing. Messages that had arrived, and those that arrive until the server has
confirmed the UNSUB, go to the *stash* of the consumer handle: to a waiting fetch of that handle, or else to
the next one. Messages whose ack_wait has passed are dropped, because the server delivers them again anyway.

A message that the server sends at the very moment it processes the UNSUB is dropped. With acks it is
delivered again. Where it would not be (ack policy none, max_deliver 1), the UNSUB of a cancelled fetch is
sent later, when the server has sent what it had for the request (``PullSink._served``). A message published
at that very moment is still lost: the protocol has no other way to withdraw a request, and a request that
stays open would take messages from other readers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from jetspark.jetstream.consume.errors import NextMessageTooLarge
from jetspark.jetstream.consume.pull import PullSink, PullTarget, Stash, message_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from jetspark.errors import JetsparkError
    from jetspark.jetstream.flow.options import FetchOptions
    from jetspark.jetstream.message import Message


class MessageBatch(list["Message"]):
    """The messages of a fetch. ``error`` is the error that ended it early, or None."""

    error: JetsparkError | None = None

    def raise_for_error(self) -> None:
        """Raise ``error`` if there is one."""
        if self.error is not None:
            raise self.error


class Fetch:
    """A fetch: ``await`` it for all messages at once, or ``async for`` over them as they come.

    An empty batch means that the server said so. A fetch may end early (consumer deleted, missed heartbeats,
    a limit of the consumer) or get no reply (:class:`NotConnected`, :class:`PullUnanswered`). The messages
    that came before are kept: awaiting returns them with ``batch.error`` set, or raises the error when there
    are none; iterating raises the error after the last message.

    It is not a coroutine: to run one as a task use ``asyncio.ensure_future(consumer.fetch(10))``.
    """

    def __init__(self, target: PullTarget, options: FetchOptions, stash: Stash) -> None:
        self._target = target
        self._options = options
        self._stash = stash

    def __await__(self) -> Generator[Any, None, MessageBatch]:
        return self._collect().__await__()

    async def _collect(self) -> MessageBatch:
        observer = self._target.core.observer
        if observer is None:
            return await self._gather()
        with observer.fetching(*self._target.names) as done:
            batch = await self._gather()
        done(batch)
        return batch

    async def _gather(self) -> MessageBatch:
        batch = MessageBatch()
        sink = self._start(batch)
        if sink is None:
            return batch
        self._stash.join(sink)
        taken = False
        try:
            while not sink.complete:
                await sink.wait()
            taken = True
            buffer = sink.buffer
            while buffer and len(batch) < self._options.batch:
                batch.append(buffer.popleft())
        finally:
            if not taken:
                sink.buffer.extendleft(reversed(batch))
            self._stash.leave(sink)
        if len(batch) < self._options.batch:
            batch.error = self._error_of(sink, len(batch))
        if not batch:
            if batch.error is not None:
                raise batch.error
            batch.extend(self._last_look())
        return batch

    def __aiter__(self) -> FetchIterator:
        stashed: list[Message] = []
        sink = self._start(stashed)
        return FetchIterator(self, stashed, sink)

    def _error_of(self, sink: PullSink, found: int) -> JetsparkError | None:
        """The error that ended it early. A fetch that has messages ends normally when the next is too
        large."""
        return None if found and isinstance(sink.error, NextMessageTooLarge) else sink.error

    def _last_look(self) -> list[Message]:
        """After the server said that it has nothing: what other fetches of this handle have left since."""
        options = self._options
        found = self._stash.take(options.batch, options.max_bytes)
        if not found and len(self._stash):
            raise NextMessageTooLarge(409, "Message Size Exceeds MaxBytes")
        return found

    def _start(self, stashed: list[Message]) -> PullSink | None:
        """Send the request for what the stash lacks; None when the stash has everything."""
        options = self._options
        stashed.extend(self._stash.take(options.batch, options.max_bytes))
        if stashed:
            rest = options.without(len(stashed), sum(map(message_size, stashed)))
            if rest is None:
                return None
            options = rest
        sink = self._new_sink(options)
        sink.start()
        return sink

    def _new_sink(self, options: FetchOptions) -> PullSink:
        return PullSink(self._target, options)


class FetchIterator:
    """The messages of a fetch as they come. Leaving the loop early returns the rest to the stash immediately.

    This is a class and not an async generator: generators are closed some time after the loop was left, so
    the next fetch would overtake the messages that this one had received.
    """

    def __init__(self, fetch: Fetch, stashed: list[Message], sink: PullSink | None) -> None:
        self._fetch = fetch
        self._stash = stash = fetch._stash
        self._sink = sink
        self._limit = self._left = fetch._options.batch
        if sink is None:
            self._buffer: deque[Message] = deque(stashed)
        else:
            stash.join(sink)
            self._buffer = sink.buffer
            self._buffer.extendleft(reversed(stashed))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        while not self._buffer:
            sink = self._sink
            if sink is None:
                raise StopAsyncIteration
            if sink.complete:
                self._give_back()
                found = self._limit - self._left
                error = self._fetch._error_of(sink, found)
                if error is not None:
                    raise error
                self._buffer.extend(() if found else self._fetch._last_look())
                continue
            await sink.wait()
        message = self._buffer.popleft()
        self._left -= 1
        if self._left == 0:
            self._give_back()
        return message

    async def aclose(self) -> None:
        """End the iteration. Messages that were not handed out go to the next fetch of the consumer."""
        self._give_back()

    def __del__(self) -> None:
        if self._sink is None and not self._buffer:
            return
        loop = self._stash.loop
        if asyncio._get_running_loop() is loop:
            self._give_back()
        else:
            # Garbage-collected in another thread, or later. If the loop is closed, so is the connection.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._give_back)

    def _give_back(self) -> None:
        buffer, self._buffer = self._buffer, deque()
        sink, self._sink = self._sink, None
        if sink is None:
            self._stash.keep(buffer)
        else:
            self._stash.leave(sink)


def collecting(fetch: Fetch) -> tuple[Callable[[], Awaitable[MessageBatch]], Stash]:
    """The function that collects a fetch's messages, and the stash for the rest. Internal to jetspark."""
    return fetch._collect, fetch._stash
