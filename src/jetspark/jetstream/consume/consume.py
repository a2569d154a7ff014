"""``consume`` (ADR-37 'Consume'): a buffer that refills itself, as an iterator or for a callback."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from jetspark._checks import is_whole
from jetspark._log import fields, get_logger
from jetspark.connection.listening import call_listener
from jetspark.errors import DrainTimeout, InvalidArgument, JetsparkError
from jetspark.jetstream.consume.errors import ConsumeError

if TYPE_CHECKING:
    from types import TracebackType

    from jetspark.jetstream.consume.flow_sink import FlowSink
    from jetspark.jetstream.message import Message

logger = get_logger("jetstream")

Handler = Callable[[Any], "Awaitable[None] | None"]
ErrorListener = Callable[[JetsparkError], Any]


class HandlerFailed(ConsumeError):
    """The callback of a ``consume`` raised an exception. The message stays un-acked; consuming continues.

    ``error`` is the exception, ``message`` the message that the callback was called with.
    """

    def __init__(self, error: BaseException, message: Any) -> None:
        super().__init__(
            f"callback raised {type(error).__name__} on a message of {message.subject!r}: {error}"
        )
        self.error = error
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        # A message is bound to its connection, and exceptions of user code may not pickle either, so both
        # are pickled as text.
        rebuild, (cls, args, state) = super().__reduce__()
        return rebuild, (cls, args, {**state, "message": repr(self.message), "error": repr(self.error)})


class ConsumeBase:
    """What all forms of ``consume`` share: start with ``async with``, stop or drain, and a single end.

    Leaving the block stops it: no more messages are pulled, and buffered ones are dropped and delivered again
    after ack_wait. To process the buffered messages first, call ``drain`` before the block ends.
    """

    def __init__(
        self, make_sink: Callable[[ErrorListener], FlowSink], on_error: ErrorListener | None
    ) -> None:
        self._make_sink = make_sink
        self._on_error = on_error
        self._sink: FlowSink | None = None
        self._raised = False
        self._told = False
        self._listening: set[asyncio.Task[None]] = set()

    @property
    def closed(self) -> bool:
        """Whether pulling has ended: stopped, drained, or ended by an error."""
        return self._sink is not None and self._sink.done

    @property
    def pending(self) -> int:
        """Messages buffered and not yet handed out."""
        return 0 if self._sink is None else len(self._sink.buffer)

    async def __aenter__(self) -> Self:
        if self._sink is not None:
            raise InvalidArgument("consume", self, "can be entered once; call consumer.consume() again")
        self._sink = self._make_sink(self._tell)
        self._sink.drain_all = self._drain_all
        await self._sink.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End now. Buffered messages are dropped; the server delivers them again after ack_wait."""
        sink = self._started()
        sink.stop()
        sink.takers.clear()

    async def drain(self) -> None:
        """Stop pulling. Messages that have arrived are still handed out, then the iteration ends.

        Returns immediately. Acks work until the connection is closed.
        """
        self._started().drain()

    def _started(self) -> FlowSink:
        if self._sink is None:
            raise InvalidArgument(
                "consume", self, "not started; use 'async with consumer.consume() as messages'"
            )
        return self._sink

    def _tell(self, error: JetsparkError) -> None:
        if self._on_error is not None:
            sink = self._started()
            what = f"on_error of {sink.label} raised on {type(error).__name__}"
            call_listener(self._on_error, error, what, sink.core.loop, self._listening)

    async def _drain_all(self, asker: asyncio.Task[Any] | None) -> None:
        """The connection is draining: readers get the messages that have arrived, and can still ack them."""
        sink = self._started()
        sink.drain()
        timeout = sink.core.options.drain_timeout
        if not await sink.takers.finished(asker, timeout):
            raise DrainTimeout(
                f"reader of {sink.label} left {len(sink.buffer)} messages, or works on the last one, "
                f"after drain_timeout={timeout:g}s"
            )

    def _end(self, sink: FlowSink) -> JetsparkError | None:
        """The error to raise at the end; returned once. None when the end was requested."""
        if sink.error is None or sink.closed_by_user or self._raised:
            return None
        self._raised = True
        self._announce(sink)
        return sink.error

    def _announce(self, sink: FlowSink) -> None:
        """Report the error that ended it to the listener, once."""
        if sink.error is not None and not sink.closed_by_user and not self._told:
            self._told = True
            self._tell(sink.error)


class Consume(ConsumeBase):
    """Messages one by one: ``async with consumer.consume() as messages: async for message in messages``.

    Warnings (missed heartbeats, limits, leader changes) go to ``on_error`` and the log, and consuming
    continues. Errors without recovery (the consumer was deleted, or is a push consumer) are raised after the
    last message.
    """

    def __aiter__(self) -> Self:
        self._started().takers.add(asyncio.current_task())
        return self

    async def __anext__(self) -> Message:
        sink = self._sink
        if sink is None:
            sink = self._started()
        buffer = sink.buffer
        while not buffer:
            sink.report()
            if sink.done:
                sink.takers.remove(asyncio.current_task())
                error = self._end(sink)
                if error is not None:
                    raise error
                raise StopAsyncIteration
            sink.takers.add(asyncio.current_task())
            await sink.wait()
        message = buffer.popleft()
        if len(buffer) <= sink.mark:
            sink.report()
        return message  # type: ignore[no-any-return]


class ConsumeBatches(ConsumeBase):
    """Messages in lists, as they arrive: for code that processes many at a time."""

    def __aiter__(self) -> Self:
        self._started().takers.add(asyncio.current_task())
        return self

    async def __anext__(self) -> list[Message]:
        sink = self._sink
        if sink is None:
            sink = self._started()
        buffer = sink.buffer
        while not buffer:
            sink.report()
            if sink.done:
                sink.takers.remove(asyncio.current_task())
                error = self._end(sink)
                if error is not None:
                    raise error
                raise StopAsyncIteration
            sink.takers.add(asyncio.current_task())
            await sink.wait()
        batch = list(buffer)
        buffer.clear()
        wanted = sink.deliverable
        if len(batch) > wanted:
            # Put them back into the buffer, which is discarded at the end: an ordered consumer continues
            # there.
            buffer.extend(batch[wanted:])
            del batch[wanted:]
        sink.report()
        return batch


class ConsumeCallback(ConsumeBase):
    """Messages to a callback, async or not; up to ``concurrency`` calls run at a time.

    With concurrency 1 messages are processed in order, one at a time. Await ``wait`` for the end. Exceptions
    of the callback are reported with their traceback, and passed to ``on_error`` as :class:`HandlerFailed`.
    """

    def __init__(
        self,
        make_sink: Callable[[ErrorListener], FlowSink],
        on_error: ErrorListener | None,
        callback: Handler,
        concurrency: int,
    ) -> None:
        super().__init__(make_sink, on_error)
        if not callable(callback):
            raise InvalidArgument("callback", callback, "must be a function that takes a message")
        if not is_whole(concurrency, 1):
            raise InvalidArgument("concurrency", concurrency, "must be a positive integer")
        self._callback = callback
        self._concurrency = concurrency
        self._workers: list[asyncio.Task[None]] = []
        self._left = concurrency

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        sink = self._started()
        loop = asyncio.get_running_loop()
        self._workers = [
            loop.create_task(self._work(sink), name=f"jetspark-consume-{number}")
            for number in range(self._concurrency)
        ]
        return self

    async def stop(self) -> None:
        """End now. Buffered messages are dropped; running callbacks are allowed to finish.

        Waits for them, unless it is called from one of them.
        """
        await super().stop()
        await self._finish_workers()

    async def wait(self) -> None:
        """Wait for the end: ``stop``, ``drain`` or ``stop_after``. Raises the error that ended it
        otherwise."""
        await self._finish_workers()
        error = self._end(self._started())
        if error is not None:
            raise error

    async def _drain_all(self, asker: asyncio.Task[Any] | None) -> None:
        """The connection is draining: callbacks get the messages that have arrived, and can still ack
        them."""
        sink = self._started()
        sink.drain()
        # A callback that drains its own connection can't be waited for.
        if asker in self._workers or not self._workers:
            return
        timeout = sink.core.options.drain_timeout
        _, unfinished = await asyncio.wait(self._workers, timeout=timeout)
        if unfinished:
            raise DrainTimeout(
                f"callback of {sink.label} left {len(sink.buffer)} messages after drain_timeout={timeout:g}s"
            )

    async def _finish_workers(self) -> None:
        # A callback may stop its own consume. It can't wait for itself, or for other callbacks that do the
        # same.
        if self._workers and asyncio.current_task() not in self._workers:
            await asyncio.wait(self._workers)

    async def _work(self, sink: FlowSink) -> None:
        buffer, callback = sink.buffer, self._callback
        while True:
            while buffer:
                message = buffer.popleft()
                if len(buffer) <= sink.mark:
                    sink.report()
                try:
                    result = callback(message)
                    if result is not None and inspect.isawaitable(result):
                        await result
                except asyncio.CancelledError as error:
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():
                        raise
                    # This worker was not cancelled; something that the callback awaited was.
                    self._failed(error, message)
                except Exception as error:
                    self._failed(error, message)
            sink.report()
            if sink.done:
                self._worker_ends(sink)
                return
            await sink.wait()

    def _worker_ends(self, sink: FlowSink) -> None:
        """One worker has reached the end. The last one reports why, since ``wait`` may never be called."""
        self._left -= 1
        if not self._left and sink.error is not None and not sink.closed_by_user:
            logger.warning(
                "consume of %s ended: %s",
                sink.label,
                sink.error,
                extra=fields(source=sink.label, error=sink.error),
            )
            self._announce(sink)

    def _failed(self, error: BaseException, message: Message) -> None:
        tell_failure(self._started(), error, message)


def tell_failure(sink: FlowSink, error: BaseException, message: Message) -> None:
    """A callback raised an exception for a message of this sink."""
    what = f"callback of {sink.label} raised on a message of {message.subject!r}"
    sink.callback_failed(HandlerFailed(error, message), what, error)


class Inside:
    """A consume as the blocking facade sees it, which uses threads instead of tasks."""

    def __init__(self, consume: ConsumeBase) -> None:
        self._consume = consume

    @property
    def sink(self) -> FlowSink | None:
        """The sink that receives the messages; None before the start."""
        return self._consume._sink

    def end(self, sink: FlowSink) -> JetsparkError | None:
        """The error to raise at the end; returned once. None when the end was requested."""
        return self._consume._end(sink)

    async def start(self) -> None:
        """Start without tasks."""
        await ConsumeBase.__aenter__(self._consume)
        sink = self._consume._started()
        sink.drain_all = partial(ConsumeBase._drain_all, self._consume)


class InsideCallback(Inside):
    """The same for a consume with a callback."""

    def __init__(self, consume: ConsumeCallback) -> None:
        super().__init__(consume)
        self.callback = consume._callback
        self.concurrency = consume._concurrency
        self.failed = consume._failed
        self.worker_ends = consume._worker_ends
