"""The pipelined publisher, for threads.

The calling thread checks, encodes and registers the message, and leaves it in the connection's outbox; the
loop sends what has gathered there, and settles the futures of all acks of a received chunk together. So no
message costs a hop between threads.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self, cast

from jetspark.blocking import _process
from jetspark.blocking._acks import AckDesk, AckFuture
from jetspark.blocking._facade import Facade
from jetspark.blocking._mirror import documented_by, mirrors
from jetspark.blocking._threads import ThreadWaiters
from jetspark.connection.subscription import Sink
from jetspark.errors import ConnectionClosed, OutboundBufferFull
from jetspark.jetstream.publish import publish_headers
from jetspark.jetstream.publisher import Publisher as AsyncPublisher
from jetspark.jetstream.publisher_acks import LARGE
from jetspark.wire.headers import encode_headers

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future
    from types import TracebackType

    from jetspark.blocking._client import EngineConnection
    from jetspark.blocking._engine import Engine
    from jetspark.connection.core import HeadersLike
    from jetspark.jetstream.puback import PubAck
    from jetspark.jetstream.publish import Expect
    from jetspark.jetstream.publish_many import AckBatch, Columns, Publishing
    from jetspark.jetstream.publisher_stats import PublisherStats
    from jetspark.jetstream.schedule import Schedule


class ThreadPublisher(AsyncPublisher):
    """The loop's side: the async publisher, which wakes threads too."""

    def __init__(self, client: EngineConnection, *, window: int, ack_timeout: float, retry: bool) -> None:
        super().__init__(client, window=window, ack_timeout=ack_timeout, retry=retry)
        self.desk = AckDesk(client)
        self.blocked = ThreadWaiters()

    def has_room(self) -> bool:
        """Whether a waiting publish may go on, be it to learn that the publisher is closed."""
        return not (self._full and self._open)

    def _wake(self) -> None:
        super()._wake()
        if self.desk.sleepers:
            self.desk.sleepers.wake_all()
        if self.blocked and self.has_room():
            self.blocked.wake_all()


@mirrors(
    AsyncPublisher,
    internal=(*vars(Sink), "publish_refused"),  # the connection's side of it
    note=(
        "Any number of threads may publish through it. Its futures are those of ``concurrent.futures``;\n"
        "their callbacks run in the connection's thread and must not block."
    ),
)
class Publisher(Facade[ThreadPublisher]):
    def __init__(self, engine: Engine, target: ThreadPublisher) -> None:
        super().__init__(engine, target)
        self._client = cast("EngineConnection", target.client)
        self._lock = threading.Lock()

    @property
    @documented_by(AsyncPublisher.pending)
    def pending(self) -> int:
        return self._target.pending

    @property
    @documented_by(AsyncPublisher.stats)
    def stats(self) -> PublisherStats:
        return self._target.stats

    def __enter__(self) -> Self:
        self._start(self._target.__aenter__, self._close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._engine.is_foreign:
            return  # the parent's messages are the parent's
        try:
            if kind is None:
                self.flush()
        finally:
            if not self._engine.is_stopped:
                self._engine.finish(self._close)

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
        target, client = self._target, self._client
        if client.pid != _process.pid:
            raise _process.forked(client.pid)
        while not target.has_room():
            target.blocked.wait(target.has_room)
        block: bytes | None = None
        if (
            headers is not None
            or msg_id is not None
            or expect is not None
            or ttl is not None
            or schedule is not None
        ):
            typed = publish_headers(
                headers, msg_id=msg_id, expect=expect, ttl=ttl, schedule=schedule, subject=subject
            )
            block = None if typed is None else encode_headers(typed)
        try:
            return self._send(subject, data, block, msg_id)
        except OutboundBufferFull as full:
            self._run(target._wait_connected, full)
            return self._send(subject, data, block, msg_id)

    def _send(self, subject: str, data: bytes, block: bytes | None, msg_id: str | None) -> Future[PubAck]:
        target, client = self._target, self._client
        pending = target._pending
        future = AckFuture(target.desk)
        serial = target._reserve(1)
        with self._lock:
            target._stats.published += 1
            if type(data) is bytes and len(data) > LARGE:
                target._note_large(serial, len(data))
        again = (data, block) if target._retry and target._may_resend(msg_id, block) else None
        # Before it is sent: the ack may come at once, in the other thread.
        pending[serial] = cast("Any", (future, subject, 0, again))
        try:
            # Only now: a publisher that closes after this finds the message and fails it.
            if not target._open:
                raise ConnectionClosed(target._why_closed().replace("async with", "with"))
            client._pub(subject, data, f"{target._base}{serial}", block, own_reply=True)
        except BaseException:
            pending.pop(serial, None)
            with self._lock:
                target._stats.published -= 1
                target._large_sent -= target._large.pop(serial, 0)
            raise
        client.give_way()
        return future

    @documented_by(AsyncPublisher.publish_many)
    def publish_many(self, messages: Iterable[Publishing]) -> AckBatch:
        return self._run(self._target.publish_many, list(messages))

    def _publish_columns(self, columns: Columns) -> AckBatch:
        return self._run(self._target._publish_columns, columns)

    @documented_by(AsyncPublisher.flush)
    def flush(self) -> None:
        if self._engine.is_stopped:
            # Closed with the connection: nothing is pending, and what failed is known.
            self._target._raise_failures()
        else:
            self._run(self._target.flush)

    async def _close(self) -> None:
        self._target._close(ConnectionClosed("the publisher was closed before the ack came"))
