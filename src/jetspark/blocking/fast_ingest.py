"""Fast ingest, for threads: a thread numbers and encodes its messages; it meets the loop once per window."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self, cast

from jetspark.blocking import _process
from jetspark.blocking._facade import Facade
from jetspark.blocking._mirror import documented_by, mirrors
from jetspark.errors import ConnectionClosed
from jetspark.jetstream.flow.fast import State
from jetspark.jetstream.publish.fast_ingest import FastIngest as AsyncFastIngest
from jetspark.jetstream.publish.publish import publish_headers
from jetspark.wire.headers import HeaderBlock, encode_headers

if TYPE_CHECKING:
    from types import TracebackType

    from jetspark.blocking._client import EngineCore
    from jetspark.blocking._engine import Engine
    from jetspark.blocking._threads import Courier
    from jetspark.connection.outbox import HeadersLike
    from jetspark.jetstream.models.puback import PubAck
    from jetspark.jetstream.models.schedule import Schedule
    from jetspark.jetstream.publish.publish import Expect


class ThreadFastIngest(AsyncFastIngest):
    """The loop's side. Its pings and the end must not overtake messages that threads have queued."""

    def __init__(self, core: EngineCore, **options: Any) -> None:
        super().__init__(core, **options)
        # Held only briefly, by threads while they number and queue a message, because the loop takes it too.
        self.order = threading.Lock()

    @property
    def engine_core(self) -> EngineCore:
        """The core of its connection."""
        return cast("EngineCore", self._core)

    def _send(self, operation: int) -> None:
        with self.order:
            self._core.outbox.gather()
            super()._send(operation)

    def take(self, subject: str, data: bytes, block: HeaderBlock | None) -> int:
        """In a thread: send a message and return its number; 0 if there is no room."""
        flow = self._flow
        with self.order:
            if flow.sent >= flow.limit:
                return 0
            number = flow.sent + 1
            self._core.outbox.publish(subject, data, f"{self._base}{number}.1.$FI", block, own_reply=True)
            flow.sent = number
            return number

    def check_begun(self) -> None:
        """Raise if the batch was never opened."""
        if self._flow.state is State.NEW and not self._open:
            raise ConnectionClosed("the fast-ingest batch is not open; use it with 'with'")

    async def abandon(self) -> None:
        """End it without a commit."""
        self._close()

    async def make_room(self, subject: str, data: bytes, block: HeaderBlock | None) -> int:
        """Begin the batch with this message and return its number, or wait for room and return 0."""
        flow = self._flow
        if flow.sent < flow.limit:
            return 0  # room was made meanwhile
        if flow.state is State.NEW and not self._beginning:
            return await self._begin(subject, data, block)
        await self._wait_room()
        return 0


@mirrors(
    AsyncFastIngest,
    note="Any number of threads may publish through it.",
)
class FastIngest(Facade[ThreadFastIngest]):
    def __init__(self, engine: Engine, target: ThreadFastIngest, gaps: Courier | None) -> None:
        super().__init__(engine, target)
        self._core = target.engine_core
        self._gaps = gaps

    @property
    @documented_by(AsyncFastIngest.id)
    def id(self) -> str:
        return self._target.id

    @property
    @documented_by(AsyncFastIngest.published)
    def published(self) -> int:
        return self._target.published

    @property
    @documented_by(AsyncFastIngest.acked)
    def acked(self) -> int:
        return self._target.acked

    @property
    @documented_by(AsyncFastIngest.lost)
    def lost(self) -> int:
        return self._target.lost

    @property
    @documented_by(AsyncFastIngest.ack)
    def ack(self) -> PubAck | None:
        return self._target.ack

    def __enter__(self) -> Self:
        self._start(self._target.__aenter__, self._target.abandon)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._engine.is_foreign:
            return  # the batch belongs to the parent process
        try:
            if kind is None or not self._engine.is_stopped:
                self._run(self._target.__aexit__, kind, error, trace)
        finally:
            if self._gaps is not None:
                self._gaps.stop(self._core.options.connect_timeout)

    @documented_by(AsyncFastIngest.publish)
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
    ) -> int:
        target, core = self._target, self._core
        if core.pid != _process.pid:
            raise _process.forked(core.pid)
        block: HeaderBlock | None = None
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
        while not (number := target.take(subject, data, block)):
            target.check_begun()
            number = self._run(target.make_room, subject, data, block)
            if number:
                return number
        core.give_way()
        return number
