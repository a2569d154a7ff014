"""Push subscriptions (ADR-15), for threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

from jetspark.blocking import _process
from jetspark.blocking._facade import Facade
from jetspark.blocking._mirror import documented_by, mirrors
from jetspark.errors import JetsparkError, RequestTimeout
from jetspark.jetstream.subscribe.subscribe import PushSubscription as AsyncPushSubscription
from jetspark.jetstream.subscribe.subscribe import PushSubscriptionClosed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from jetspark.blocking._engine import Engine
    from jetspark.blocking._pull import PushedToThreads
    from jetspark.blocking._threads import Courier
    from jetspark.blocking.message import Message
    from jetspark.connection.options import ConnectOptions
    from jetspark.jetstream.models.consumer_info import ConsumerInfo


class Workplace(Protocol):
    """What a subscription whose callback runs in a thread needs from its connection."""

    held: Callable[[], Engine | None]

    def add_worker(self, worker: threading.Thread) -> None: ...

    def detach_caller(self) -> None: ...


class ThreadPushSubscription(AsyncPushSubscription):
    """A push subscription whose callback runs in its own thread."""

    @property
    def workplace(self) -> Workplace:
        """The connection, as code that runs callbacks needs it."""
        return cast("Workplace", self._core)

    @property
    def options(self) -> ConnectOptions:
        """The options that the connection was made with."""
        return self._core.options

    @property
    def sink(self) -> PushedToThreads:
        """The sink that threads read from."""
        return cast("PushedToThreads", self._started)

    def end(self) -> JetsparkError | None:
        """The error to raise at the end, once."""
        return self._end()

    def came_to_end(self) -> None:
        """Everything has been handed out."""
        self._came_to_end()

    def refuse_callback(self) -> None:
        """Raise if there is a callback, which is then the only reader."""
        self._refuse_callback()

    async def _drain(self, asker: asyncio.Task[Any] | None) -> None:
        # A callback that drains its own subscription can't be waited for.
        await super()._drain(self._runner if self.sink.detached else asker)

    async def _drain_all(self, asker: asyncio.Task[Any] | None) -> None:
        await super()._drain_all(self._runner if self.sink.detached else asker)

    async def _run_callback(self, callback: Any) -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def finish() -> None:
            if not done.done():
                done.set_result(None)

        def work(_held: object = self.workplace.held()) -> None:
            # The argument keeps the connection alive: while its callbacks run, it is in use.
            self._work(callback)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for this
                loop.call_soon_threadsafe(finish)

        worker = threading.Thread(target=work, name=f"jetspark-push-{self.subject}", daemon=True)
        self.sink.worker = worker
        self.workplace.add_worker(worker)
        worker.start()
        try:
            await done
        except asyncio.CancelledError:
            # Unsubscribed, closed, or timed out: the running callback can't be stopped, the rest can.
            self.sink.buffer.clear()
            raise
        ended = self._end()
        if ended is not None:
            self._tell(ended)
        self._came_to_end()

    def _work(self, callback: Any) -> None:
        for message in chain.from_iterable(self.sink.parts()):
            try:
                callback(message)
                if self._auto_ack:
                    message.ack()
            except BaseException as error:
                # SystemExit too: Python would silently end the thread, and with it the subscription.
                self._failed(error, message)


@mirrors(
    AsyncPushSubscription,
    note=(
        "Several threads may read one subscription; each message goes to exactly one of them. A callback\n"
        "has a thread of its own, ``on_error`` another one, so both may block and use the API."
    ),
)
class PushSubscription(Facade[AsyncPushSubscription]):
    _target: ThreadPushSubscription

    def __init__(self, engine: Engine, target: AsyncPushSubscription, errors: Courier | None) -> None:
        super().__init__(engine, target)
        self._errors = errors

    @property
    @documented_by(AsyncPushSubscription.subject)
    def subject(self) -> str:
        return self._target.subject

    @property
    @documented_by(AsyncPushSubscription.queue)
    def queue(self) -> str:
        return self._target.queue

    @property
    @documented_by(AsyncPushSubscription.deliver_subject)
    def deliver_subject(self) -> str:
        return self._target.deliver_subject

    @property
    @documented_by(AsyncPushSubscription.stream_name)
    def stream_name(self) -> str:
        return self._target.stream_name

    @property
    @documented_by(AsyncPushSubscription.consumer_name)
    def consumer_name(self) -> str:
        return self._target.consumer_name

    @property
    @documented_by(AsyncPushSubscription.cached_info)
    def cached_info(self) -> ConsumerInfo:
        return self._target.cached_info

    @property
    @documented_by(AsyncPushSubscription.pending)
    def pending(self) -> int:
        return self._target.pending

    @property
    @documented_by(AsyncPushSubscription.delivered)
    def delivered(self) -> int:
        return self._target.delivered

    @property
    @documented_by(AsyncPushSubscription.dropped)
    def dropped(self) -> int:
        return self._target.dropped

    @property
    @documented_by(AsyncPushSubscription.closed)
    def closed(self) -> bool:
        return self._target.closed or self._engine.is_foreign

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closed with its connection, or it belongs to another process: nothing is left to do.
        if not (self._engine.is_foreign or self._engine.is_stopped):
            self.unsubscribe()

    def __iter__(self) -> Iterator[Message]:
        self._check_reader()
        return chain.from_iterable(self._parts())

    def __next__(self) -> Message:
        self._check_reader()
        self._target.sink.takers.add(threading.current_thread())
        message: Message | None = self._target.sink.take()
        if message is None:
            self._came_to_end()
            raise StopIteration
        return message

    @documented_by(AsyncPushSubscription.next)
    def next(self, timeout: float | None = None) -> Message:
        self._check_reader()
        self._target.sink.takers.add(threading.current_thread())
        seconds = self._target.options.request_timeout if timeout is None else timeout
        try:
            message: Message | None = self._target.sink.take(time.monotonic() + seconds)
        except RequestTimeout:
            raise
        except TimeoutError:
            raise RequestTimeout(f"no message on {self.subject!r} within {seconds:g}s") from None
        if message is None:
            self._came_to_end()
            raise PushSubscriptionClosed(self.subject)
        return message

    @documented_by(AsyncPushSubscription.consumer_info)
    def consumer_info(self) -> ConsumerInfo:
        return self._run(self._target.consumer_info)

    @documented_by(
        AsyncPushSubscription.unsubscribe, note="A callback that runs right now is not waited for."
    )
    def unsubscribe(self, max_messages: int = 0) -> None:
        if self._engine.is_foreign or (self._target.closed and self._engine.is_stopped):
            return
        self._run(self._target.unsubscribe, max_messages)
        if not max_messages and self._errors is not None:
            self._errors.stop(self._target.options.connect_timeout)

    @documented_by(AsyncPushSubscription.drain)
    def drain(self) -> None:
        if self._engine.is_foreign:
            raise _process.forked(self._engine.pid)
        if not self._engine.is_stopped:
            self._target.workplace.detach_caller()
            self._run(self._target.drain)

    def _parts(self) -> Iterator[Any]:
        self._target.sink.takers.add(threading.current_thread())
        yield from self._target.sink.parts()
        self._came_to_end()

    def _came_to_end(self) -> None:
        """Everything was handed out: raise the error that ended it, and delete the consumer if due."""
        if not self._engine.is_stopped:
            self._engine.spawn(self._delete_late)
        self._target.sink.takers.remove(threading.current_thread())
        error = self._target.end()
        if error is not None:
            raise error

    async def _delete_late(self) -> None:
        self._target.came_to_end()

    def _check_reader(self) -> None:
        if self._engine.pid != _process.pid:
            raise _process.forked(self._engine.pid)
        self._target.refuse_callback()
