"""Atomic batches, for threads. Messages that are held back cost no hop between threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self, cast

from jetspark.blocking import _process
from jetspark.blocking._facade import Facade
from jetspark.blocking._mirror import documented_by, mirrors
from jetspark.jetstream.publish.atomic_batch import AtomicBatch as AsyncAtomicBatch

if TYPE_CHECKING:
    from types import TracebackType

    from jetspark.blocking._client import EngineCore
    from jetspark.blocking._engine import Engine
    from jetspark.connection.outbox import HeadersLike
    from jetspark.jetstream.models.puback import PubAck
    from jetspark.jetstream.models.schedule import Schedule
    from jetspark.jetstream.publish.publish import Expect


class ThreadAtomicBatch(AsyncAtomicBatch):
    """The loop's side, with the operations that threads do themselves."""

    @property
    def engine_core(self) -> EngineCore:
        """The core of its connection."""
        return cast("EngineCore", self._core)

    @property
    def finished(self) -> str:
        """How it ended, such as "committed"; empty while it is open."""
        return self._finished

    def add(
        self,
        subject: str,
        data: bytes,
        headers: HeadersLike | None,
        msg_id: str | None,
        expect: Expect | None,
        ttl: float | str | None,
        schedule: Schedule | None,
    ) -> bool:
        """In a thread: add a message; returns whether the held messages have to be sent now."""
        return self._add(subject, data, headers, msg_id, expect, ttl, schedule)

    async def send_held(self) -> None:
        """Send what is held."""
        await self._send_held()


@mirrors(
    AsyncAtomicBatch,
    note="Several threads may publish into it, one after the other.",
)
class AtomicBatch(Facade[ThreadAtomicBatch]):
    def __init__(self, engine: Engine, target: ThreadAtomicBatch) -> None:
        super().__init__(engine, target)
        # Also held while the loop sends: only one thread at a time touches the messages that are held back.
        self._lock = threading.Lock()

    @property
    @documented_by(AsyncAtomicBatch.id)
    def id(self) -> str:
        return self._target.id

    @property
    @documented_by(AsyncAtomicBatch.count)
    def count(self) -> int:
        return self._target.count

    @property
    @documented_by(AsyncAtomicBatch.ack)
    def ack(self) -> PubAck | None:
        return self._target.ack

    def __enter__(self) -> Self:
        self._run(self._target.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._engine.is_foreign:
            return  # the batch belongs to the parent process
        if kind is not None:
            if not self._engine.is_stopped:
                self.discard()
        elif self._target.count and not self._target.finished:
            self.commit()

    @documented_by(AsyncAtomicBatch.publish)
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
    ) -> None:
        if self._engine.is_foreign:
            raise _process.forked(self._engine.pid)
        with self._lock:
            if self._target.add(subject, data, headers, msg_id, expect, ttl, schedule):
                self._run(self._target.send_held)

    @documented_by(AsyncAtomicBatch.commit)
    def commit(self) -> PubAck:
        if self._engine.is_foreign:
            raise _process.forked(self._engine.pid)
        with self._lock:
            return self._run(self._target.commit)

    @documented_by(AsyncAtomicBatch.discard)
    def discard(self) -> None:
        self._run(self._target.discard)
