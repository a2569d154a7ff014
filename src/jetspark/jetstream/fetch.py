"""``fetch`` and ``next`` (ADR-37 'Fetch', 'Next'): one request, then the end.

Each fetch has an inbox of its own, so a late status of one can't reach another, and unsubscribing it
withdraws the request from the server.

Cancelling a fetch loses nothing. What had arrived, and what arrives until the server has confirmed the
UNSUB, goes to the consumer handle's *stash* and is the first thing that the next fetch of that handle
returns; unless its ack_wait has passed, for then the server delivers it again anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from jetspark.jetstream.pull import PullSink, PullTarget, message_size

if TYPE_CHECKING:
    from collections.abc import Generator

    from jetspark.errors import JetsparkError
    from jetspark.jetstream.message import Message
    from jetspark.jetstream.pull_options import FetchOptions

# Go's default, and the server's, for consumers that leave ack_wait out.
_DEFAULT_ACK_WAIT = 30.0


class MessageBatch(list["Message"]):
    """The messages of a fetch. ``error`` is what ended it early, None when nothing did."""

    error: JetsparkError | None = None

    def raise_for_error(self) -> None:
        """Raise ``error`` if there is one."""
        if self.error is not None:
            raise self.error


class Stash:
    """Messages that a cancelled fetch had received."""

    def __init__(self, target: PullTarget, ack_wait: float | None, max_deliver: int | None = None) -> None:
        self._target = target
        # What is not delivered again may not be thrown away.
        again = target.acks and max_deliver != 1
        self._keep = (ack_wait or _DEFAULT_ACK_WAIT) if again else float("inf")
        self._messages: deque[tuple[float, Any]] = deque()

    def take(self, count: int | None, max_bytes: int | None = None) -> list[Any]:
        """Messages that may still be processed, within the limits of whoever asks; None is no limit."""
        now = self.loop.time()
        found: list[Any] = []
        room = float("inf") if max_bytes is None else max_bytes
        while self._messages and len(found) != count:
            until, message = self._messages[0]
            if until > now:
                room -= message_size(message)
                if room < 0:
                    break
                found.append(message)
            self._messages.popleft()
        return found

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the connection."""
        return self._target.client._loop

    def put_back(self, sink: PullSink) -> None:
        """Take over everything from a fetch that nobody waits for any more."""
        self.keep(sink.buffer)
        if not sink.done:
            sink.on_done = lambda: self.keep(sink.buffer)
            sink.drain()

    def keep(self, messages: deque[Any]) -> None:
        """Take the messages over, in their order."""
        until = self.loop.time() + self._keep
        self._messages.extend((until, message) for message in messages)
        messages.clear()


class Fetch:
    """A fetch: ``await`` it for all messages at once, or ``async for`` over them as they come.

    An empty result is an empty batch, not an exception. What ends a fetch early (consumer deleted, missed
    heartbeats, a limit of the consumer) leaves the messages that came before it: awaiting gives them with
    ``batch.error`` set, or raises the error when there are none; iterating raises it behind the last one.
    """

    def __init__(self, target: PullTarget, options: FetchOptions, stash: Stash) -> None:
        self._target = target
        self._options = options
        self._stash = stash

    def __await__(self) -> Generator[Any, None, MessageBatch]:
        return self._collect().__await__()

    async def _collect(self) -> MessageBatch:
        batch = MessageBatch()
        sink = self._start(batch)
        if sink is not None:
            try:
                while not sink.done:
                    await sink.wait()
            except BaseException:
                sink.buffer.extendleft(reversed(batch))
                self._stash.put_back(sink)
                raise
            batch.extend(sink.buffer)
            sink.buffer.clear()
            batch.error = sink.error
            if sink.error is not None and not batch:
                raise sink.error
        return batch

    def __aiter__(self) -> FetchIterator:
        stashed: list[Message] = []
        sink = self._start(stashed)
        return FetchIterator(self._stash, stashed, sink)

    def _start(self, stashed: list[Message]) -> PullSink | None:
        """Send the request for what the stash does not have; None when it has all."""
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
    """The messages of a fetch as they come. Leaving the loop early gives the rest to the stash, at once.

    A class and not an async generator: those are closed some time after the loop was left, so that the
    next fetch would overtake what this one had received.
    """

    def __init__(self, stash: Stash, stashed: list[Message], sink: PullSink | None) -> None:
        self._stash = stash
        self._sink = sink
        if sink is None:
            self._buffer: deque[Message] = deque(stashed)
        else:
            self._buffer = sink.buffer
            self._buffer.extendleft(reversed(stashed))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        buffer, sink = self._buffer, self._sink
        while not buffer:
            if sink is None:
                raise StopAsyncIteration
            if sink.done:
                self._sink = None
                if sink.error is not None:
                    raise sink.error
                raise StopAsyncIteration
            await sink.wait()
        return buffer.popleft()

    async def aclose(self) -> None:
        """End the iteration; what was not handed out is for the next fetch of the consumer."""
        self._give_back()

    def __del__(self) -> None:
        sink = self._sink
        if sink is None and not self._buffer:
            return
        loop = self._stash.loop
        if asyncio._get_running_loop() is loop:
            self._give_back()
        else:
            # Collected elsewhere or later; when the loop is closed, so is the connection.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._give_back)

    def _give_back(self) -> None:
        sink, self._sink = self._sink, None
        if sink is None:
            self._stash.keep(self._buffer)
        else:
            self._stash.put_back(sink)
        self._buffer = deque()
