"""``fetch`` and ``next`` (ADR-37 'Fetch', 'Next'): one request, then the end.

Each fetch has an inbox of its own, so a late status of one can't reach another, and unsubscribing it
withdraws the request from the server.

Cancelling a fetch loses nothing. What had arrived, and what arrives until the server has confirmed the
UNSUB, goes to the consumer handle's *stash* and is the first thing that the next fetch of that handle
returns; unless its ack_wait has passed, for then the server delivers it again anyway.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from jetspark.jetstream.pull import PullSink, PullTarget

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator

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

    def __init__(self, target: PullTarget, ack_wait: float | None) -> None:
        self._target = target
        # Without acks nothing is delivered again, so nothing may be thrown away.
        self._keep = (ack_wait or _DEFAULT_ACK_WAIT) if target.acks else float("inf")
        self._messages: deque[tuple[float, Any]] = deque()

    def take(self, count: int) -> list[Any]:
        """At most ``count`` messages that may still be processed."""
        now = self._target.client._loop.time()
        found: list[Any] = []
        while self._messages and len(found) < count:
            until, message = self._messages.popleft()
            if until > now:
                found.append(message)
        return found

    def put_back(self, sink: PullSink) -> None:
        """Take over everything from a fetch that nobody waits for any more."""
        self._collect(sink)
        if not sink.done:
            sink.on_done = lambda: self._collect(sink)
            sink.drain()

    def _collect(self, sink: PullSink) -> None:
        until = self._target.client._loop.time() + self._keep
        self._messages.extend((until, message) for message in sink.buffer)
        sink.buffer.clear()


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

    async def __aiter__(self) -> AsyncIterator[Message]:
        stashed: list[Message] = []
        sink = self._start(stashed)
        if sink is None:
            for message in stashed:
                yield message
            return
        buffer = sink.buffer
        buffer.extendleft(reversed(stashed))
        try:
            while True:
                while buffer:
                    yield buffer.popleft()
                if sink.done:
                    break
                await sink.wait()
        finally:
            if buffer or not sink.done:
                self._stash.put_back(sink)
        if sink.error is not None:
            raise sink.error

    def _start(self, stashed: list[Message]) -> PullSink | None:
        """Send the request for what the stash does not have; None when it has all."""
        options = self._options
        stashed.extend(self._stash.take(options.batch))
        if len(stashed) == options.batch:
            return None
        if stashed and options.max_messages is not None:
            options = options.fewer(len(stashed))
        sink = PullSink(self._target, options)
        sink.start()
        return sink
