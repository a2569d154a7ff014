"""``consume``, for threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from jetspark.blocking import _process
from jetspark.blocking._facade import Facade
from jetspark.blocking._mirror import documented_by, mirrors
from jetspark.blocking.message import Message
from jetspark.errors import InvalidArgument
from jetspark.jetstream.consume.consume import Consume as AsyncConsume
from jetspark.jetstream.consume.consume import ConsumeBase as AsyncConsumeBase
from jetspark.jetstream.consume.consume import ConsumeBatches as AsyncConsumeBatches
from jetspark.jetstream.consume.consume import ConsumeCallback as AsyncConsumeCallback
from jetspark.jetstream.consume.consume import Inside, InsideCallback

if TYPE_CHECKING:
    from types import TracebackType

    from jetspark.blocking._client import EngineCore
    from jetspark.blocking._engine import Engine
    from jetspark.blocking._pull import ReadByThreads
    from jetspark.blocking._threads import Courier

A = TypeVar("A", bound=AsyncConsumeBase)
Handler = Callable[[Message], Any]


class ConsumeBase(Facade[A]):
    """What all forms share: start at ``with``, stop or drain, and the end."""

    def __init__(self, engine: Engine, target: A, errors: Courier | None) -> None:
        super().__init__(engine, target)
        self._inside = Inside(target)
        self._errors = errors

    @property
    @documented_by(AsyncConsumeBase.closed)
    def closed(self) -> bool:
        return self._target.closed or self._engine.is_foreign

    @property
    @documented_by(AsyncConsumeBase.pending)
    def pending(self) -> int:
        return self._target.pending

    def __enter__(self) -> Self:
        self._start(self._open, self._abandon)
        return self

    async def _open(self) -> None:
        await self._inside.start()

    async def _abandon(self) -> None:
        if self._inside.sink is not None:
            self._inside.sink.stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._errors is not None and not self._engine.is_foreign:
            self._errors.stop(self._core.options.connect_timeout)

    @documented_by(AsyncConsumeBase.stop)
    def stop(self) -> None:
        self._stop()

    @documented_by(AsyncConsumeBase.drain)
    def drain(self) -> None:
        sink = self._started()
        if self._engine.is_foreign:
            raise _process.forked(self._engine.pid)
        if not sink.done:
            self._run(AsyncConsumeBase.drain, self._target)

    @property
    def _core(self) -> EngineCore:
        return cast("EngineCore", self._started().core)

    def _started(self) -> ReadByThreads:
        if self._inside.sink is None:
            raise InvalidArgument("consume", self, "not started; use 'with consumer.consume() as messages'")
        return cast("ReadByThreads", self._inside.sink)

    def _stop(self) -> None:
        sink = self._started()
        if not (self._engine.is_foreign or sink.done):
            self._run(AsyncConsumeBase.stop, self._target)
        elif not self._engine.is_foreign:
            # It has already ended; messages that were not read are dropped here too.
            sink.runs.clear()
            sink.takers.clear()

    def _read(self, sink: ReadByThreads) -> None:
        """This thread reads messages from now on."""
        # A forked child must not touch the lock in there: it may be held by a thread that the child lacks.
        if not self._engine.is_foreign:
            sink.takers.add(threading.current_thread())

    def _has_read(self, sink: ReadByThreads) -> None:
        """This thread has reached the end."""
        if not self._engine.is_foreign:
            sink.takers.remove(threading.current_thread())

    def _raise_end(self, sink: ReadByThreads) -> None:
        self._has_read(sink)
        error = self._inside.end(sink)
        if error is not None:
            raise error


@mirrors(
    AsyncConsume,
    note="Several threads may iterate it; each message goes to exactly one of them.",
)
class Consume(ConsumeBase[AsyncConsume]):
    def __iter__(self) -> Iterator[Message]:
        sink = self._started()
        return chain.from_iterable(self._parts(sink))

    def __next__(self) -> Message:
        sink = self._started()
        self._read(sink)
        message: Message | None = sink.take()
        if message is None:
            self._raise_end(sink)
            raise StopIteration
        return message

    def _parts(self, sink: ReadByThreads) -> Iterator[Any]:
        self._read(sink)
        yield from sink.parts()
        self._raise_end(sink)


@mirrors(
    AsyncConsumeBatches,
    note="Several threads may iterate it; each message goes to exactly one of them.",
)
class ConsumeBatches(ConsumeBase[AsyncConsumeBatches]):
    def __iter__(self) -> Iterator[list[Message]]:
        sink = self._started()
        # In C, as with single messages. An empty list means that another thread was faster.
        return filter(None, map(list, self._parts(sink)))

    def __next__(self) -> list[Message]:
        for batch in self:
            return batch
        raise StopIteration

    def _parts(self, sink: ReadByThreads) -> Iterator[Any]:
        self._read(sink)
        yield from sink.batches()
        self._raise_end(sink)


@mirrors(
    AsyncConsumeCallback,
    note="Each of the ``concurrency`` callbacks has a thread of its own, so it may block and use the API.",
)
class ConsumeCallback(ConsumeBase[AsyncConsumeCallback]):
    def __init__(self, engine: Engine, target: AsyncConsumeCallback, errors: Courier | None) -> None:
        super().__init__(engine, target, errors)
        self._callback = InsideCallback(target)
        self._threads: list[threading.Thread] = []
        self._ending = threading.Lock()

    async def _open(self) -> None:
        await super()._open()
        sink = self._started()
        self._threads = [
            threading.Thread(target=self._work, args=(sink,), name=f"jetspark-consume-{number}", daemon=True)
            for number in range(self._callback.concurrency)
        ]
        # In the loop's thread, where no signal can leave a thread half started.
        for thread in self._threads:
            self._core.add_worker(thread)
            thread.start()
            sink.takers.add(thread)

    @documented_by(AsyncConsumeCallback.stop)
    def stop(self) -> None:
        self._stop()
        self._finish_workers()

    @documented_by(AsyncConsumeCallback.wait)
    def wait(self) -> None:
        sink = self._started()
        if self._engine.is_foreign:
            raise _process.forked(self._engine.pid)
        self._finish_workers()
        self._raise_end(sink)

    def _finish_workers(self) -> None:
        # A callback may stop its own consume. It can't wait for itself, nor for others that do the same.
        if not self._engine.is_foreign and threading.current_thread() not in self._threads:
            for thread in self._threads:
                thread.join()

    def _work(self, sink: ReadByThreads) -> None:
        callback = cast("Handler", self._callback.callback)
        for message in chain.from_iterable(sink.parts()):
            try:
                callback(message)
            except BaseException as error:
                # SystemExit too: Python would silently end the thread, and with it the consuming.
                self._callback.failed(error, cast("Any", message))
        with self._ending:
            self._callback.worker_ends(sink)
        self._has_read(sink)
