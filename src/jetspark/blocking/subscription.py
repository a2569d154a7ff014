"""Subscriptions, for threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from jetspark.blocking import _process
from jetspark.blocking._mirror import documented_by, mirrors
from jetspark.blocking.message import Msg
from jetspark.connection.subscription import Subscription as AsyncSubscription
from jetspark.errors import ConnectionClosed

if TYPE_CHECKING:
    from types import TracebackType

    from jetspark.blocking._client import ThreadSubscription
    from jetspark.blocking._engine import Engine

Callback = Callable[[Msg], None]


@mirrors(
    AsyncSubscription,
    note="Several threads may read one subscription; each message goes to exactly one of them.",
)
class Subscription:
    def __init__(self, engine: Engine, sink: ThreadSubscription) -> None:
        self._engine = engine
        self._sink = sink

    @property
    @documented_by(AsyncSubscription.subject)
    def subject(self) -> str:
        return self._sink.subject

    @property
    @documented_by(AsyncSubscription.queue)
    def queue(self) -> str:
        return self._sink.queue

    @property
    @documented_by(AsyncSubscription.pending_messages)
    def pending_messages(self) -> int:
        return self._sink.pending_messages

    @property
    @documented_by(AsyncSubscription.pending_bytes)
    def pending_bytes(self) -> int:
        # While the loop runs, only the loop updates the count.
        try:
            return self._engine.run(self._pending_bytes)
        except ConnectionClosed:
            return self._sink.pending_bytes

    async def _pending_bytes(self) -> int:
        return self._sink.pending_bytes

    @property
    @documented_by(AsyncSubscription.delivered)
    def delivered(self) -> int:
        return self._sink.delivered

    @property
    @documented_by(AsyncSubscription.dropped)
    def dropped(self) -> int:
        return self._sink.dropped

    @property
    @documented_by(AsyncSubscription.closed)
    def closed(self) -> bool:
        return self._sink.closed or self._engine.is_foreign

    def __iter__(self) -> Iterator[Msg]:
        self._check_reader()
        return self._read()

    def _read(self) -> Iterator[Msg]:
        takers, reader = self._sink.takers, threading.current_thread()
        takers.add(reader)
        try:
            yield from self._sink.read()
        finally:
            if not self._engine.is_foreign:
                takers.remove(reader)

    def __next__(self) -> Msg:
        self._check_reader()
        self._sink.takers.add(threading.current_thread())
        message = self._sink.read_one(None)
        if message is None:
            self._sink.takers.remove(threading.current_thread())
            raise StopIteration
        return message

    @documented_by(AsyncSubscription.next)
    def next(self, timeout: float | None = None) -> Msg:
        self._check_reader()
        message = self._sink.read_one(self._sink.core.options.request_timeout if timeout is None else timeout)
        if message is None:
            raise ConnectionClosed(f"the subscription to {self.subject!r} is closed")
        return message

    @documented_by(
        AsyncSubscription.unsubscribe,
        note="A callback that runs right now is not waited for.",
    )
    def unsubscribe(self, max_messages: int = 0) -> None:
        if self._engine.is_foreign or (self._sink.closed and self._engine.is_stopped):
            return
        self._engine.run(self._sink.unsubscribe, max_messages)

    @documented_by(AsyncSubscription.drain)
    def drain(self) -> None:
        if self._engine.is_foreign:
            raise _process.forked(self._engine.pid)
        if self._sink.closed:
            return
        self._sink.engine_core.detach_caller()
        self._engine.run(self._sink.drain)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.unsubscribe()

    def __repr__(self) -> str:
        return repr(self._sink)

    def _check_reader(self) -> None:
        if self._engine.pid != _process.pid:
            raise _process.forked(self._engine.pid)
        self._sink.refuse_callback()
