"""The pipelined publisher, for threads.

The calling thread checks and encodes the message, records it under a lock and leaves it in the connection's
outbox. The loop sends what has collected there, and settles the futures of all acks of a received chunk
together. So no message costs a hop between threads.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Self, cast

from jetspark.blocking import _process
from jetspark.blocking._acks import AckFuture
from jetspark.blocking._facade import Facade, inside
from jetspark.blocking._mirror import documented_by, mirrors
from jetspark.blocking._threads import ThreadWaiters
from jetspark.errors import ConnectionClosed, OutboundBufferFull
from jetspark.jetstream.publish.publisher import Publisher as AsyncPublisher
from jetspark.jetstream.publish.publisher import encode_options
from jetspark.jetstream.publish.publisher import publish_columns as async_publish_columns
from jetspark.jetstream.publish.stats import PublisherFull

if TYPE_CHECKING:
    from concurrent.futures import Future
    from types import TracebackType

    from jetspark.blocking._client import EngineCore
    from jetspark.blocking._engine import Engine
    from jetspark.connection.outbox import HeadersLike
    from jetspark.jetstream.models.puback import PubAck
    from jetspark.jetstream.models.schedule import Schedule
    from jetspark.jetstream.publish.many import AckBatch, Columns, Publishing
    from jetspark.jetstream.publish.publish import Expect
    from jetspark.jetstream.publish.stats import PublisherStats


class ThreadPublisher(AsyncPublisher):
    """The loop's side: the async publisher, which also wakes threads.

    Threads add messages, under the guard; everything else happens in the loop's thread. So each message is
    settled once, by the loop.
    """

    def __init__(self, core: EngineCore, *, window: int, ack_timeout: float, retry: bool) -> None:
        super().__init__(core, window=window, ack_timeout=ack_timeout, retry=retry)
        self.blocked = ThreadWaiters()
        # Reentrant, because the finalizer of a collected object may publish in the thread that holds it.
        self._guard = threading.RLock()
        self._new_future = functools.partial(AckFuture, core)

    @property
    def engine_core(self) -> EngineCore:
        """The core of its connection."""
        return cast("EngineCore", self._core)

    def has_room(self) -> bool:
        """Whether a waiting publish may continue, even if only to learn that the publisher is closed."""
        return not (self._flow.full and self._open)

    def take(self, subject: str, data: bytes, block: bytes | None, msg_id: str | None) -> Future[PubAck]:
        """In a thread: add a message."""
        with self._guard:
            return cast("Future[PubAck]", self._submit(subject, data, block, msg_id))

    def raise_failures(self) -> None:
        """Raise what failed since the last flush."""
        self._raise_failures()

    async def wait_connected(self, full: OutboundBufferFull) -> None:
        """Wait for the connection; raise ``full`` if it is not back in time."""
        await self._wait_connected(full)

    async def end(self) -> None:
        """End it; messages without an ack fail."""
        self._close(ConnectionClosed("the publisher was closed before the ack came"))

    def _send_due_soon(self) -> None:
        # Called in a thread, which must not settle anything.
        self._core.loop.call_soon_threadsafe(self._send_due)

    def _why_closed(self) -> str:
        return super()._why_closed().replace("async with", "with")

    def _wake(self) -> None:
        super()._wake()
        if self.blocked and self.has_room():
            self.blocked.wake_all()


@mirrors(
    AsyncPublisher,
    note=(
        "Any number of threads may publish through it. Its futures are those of ``concurrent.futures``;\n"
        "their callbacks run in the connection's thread and must not block."
    ),
)
class Publisher(Facade[ThreadPublisher]):
    def __init__(self, engine: Engine, target: ThreadPublisher) -> None:
        super().__init__(engine, target)
        self._core = target.engine_core

    @property
    @documented_by(AsyncPublisher.pending)
    def pending(self) -> int:
        return self._target.pending

    @property
    @documented_by(AsyncPublisher.stats)
    def stats(self) -> PublisherStats:
        return self._target.stats

    def __enter__(self) -> Self:
        self._start(self._target.__aenter__, self._target.end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._engine.is_foreign:
            return  # the messages belong to the parent process
        try:
            if kind is None:
                self.flush()
        finally:
            if not self._engine.is_stopped:
                self._engine.finish(self._target.end)

    @documented_by(AsyncPublisher.publish)
    def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: HeadersLike | None = None,
        msg_id: str | None = None,
        expect: Expect | None = None,
        ttl: float | str | None = None,
        schedule: Schedule | None = None,
    ) -> Future[PubAck]:
        target = self._target
        block = self._encode(headers, msg_id, expect, ttl, schedule, subject)
        self._core.give_way()
        while True:
            try:
                return target.take(subject, data, block, msg_id)
            except PublisherFull:
                target.blocked.wait(target.has_room)
            except OutboundBufferFull as full:
                self._run(target.wait_connected, full)

    @documented_by(AsyncPublisher.publish_nowait)
    def publish_nowait(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: HeadersLike | None = None,
        msg_id: str | None = None,
        expect: Expect | None = None,
        ttl: float | str | None = None,
        schedule: Schedule | None = None,
    ) -> Future[PubAck]:
        block = self._encode(headers, msg_id, expect, ttl, schedule, subject)
        return self._target.take(subject, data, block, msg_id)

    def _encode(
        self,
        headers: HeadersLike | None,
        msg_id: str | None,
        expect: Expect | None,
        ttl: float | str | None,
        schedule: Schedule | None,
        subject: str,
    ) -> bytes | None:
        if self._core.pid != _process.pid:
            raise _process.forked(self._core.pid)
        return encode_options(headers, msg_id, expect, ttl, schedule, subject)

    @documented_by(AsyncPublisher.publish_many)
    def publish_many(self, messages: Iterable[Publishing | tuple[str, bytes]]) -> AckBatch:
        # The code that produces them runs in the caller's thread.
        made = list(messages) if isinstance(messages, Iterable) else messages
        return self._run(self._target.publish_many, made)

    @documented_by(AsyncPublisher.flush)
    def flush(self) -> None:
        if self._engine.is_stopped:
            # Closed with the connection: nothing is pending, and the failures are known.
            self._target.raise_failures()
        else:
            self._run(self._target.flush)


def publish_columns(publisher: Publisher, columns: Columns) -> AckBatch:
    """See :func:`jetspark.jetstream.publish.publisher.publish_columns`; for our own packages."""
    engine, target = inside(publisher)
    return engine.run(async_publish_columns, target, columns)
