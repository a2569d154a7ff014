"""Advisories and dead letters, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from jetspark.blocking._facade import Facade
from jetspark.blocking._mirror import documented_by, mirrors
from jetspark.jetstream.advisory.dead_letters import DeadLetter as AsyncDeadLetter
from jetspark.jetstream.advisory.dead_letters import DeadLetters as AsyncDeadLetters
from jetspark.jetstream.advisory.feed import Advisories as AsyncAdvisories

if TYPE_CHECKING:
    from types import TracebackType

    from jetspark.connection.outbox import HeadersLike
    from jetspark.jetstream.advisory.dead_letters import LetterAdvisory
    from jetspark.jetstream.models.advisories import Advisory
    from jetspark.jetstream.models.puback import PubAck
    from jetspark.jetstream.stored import StoredMsg


@mirrors(AsyncAdvisories)
class Advisories(Facade[AsyncAdvisories]):
    @property
    @documented_by(AsyncAdvisories.closed)
    def closed(self) -> bool:
        return self._target.closed or self._engine.is_foreign

    def __enter__(self) -> Self:
        self._start(self._target.__aenter__, self._target.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closed with its connection, or it belongs to another process: nothing is left to do.
        if not (self._engine.is_foreign or self._engine.is_stopped):
            self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Advisory:
        try:
            return self._run(self._target.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    @documented_by(AsyncAdvisories.next)
    def next(self, timeout: float | None = None) -> Advisory:
        return self._run(self._target.next, timeout)

    @documented_by(AsyncAdvisories.close)
    def close(self) -> None:
        self._run(self._target.close)


@mirrors(AsyncDeadLetter)
class DeadLetter(Facade[AsyncDeadLetter]):
    @property
    @documented_by(AsyncDeadLetter.advisory)
    def advisory(self) -> LetterAdvisory:
        return self._target.advisory

    @property
    @documented_by(AsyncDeadLetter.stored)
    def stored(self) -> StoredMsg | None:
        return self._target.stored

    @property
    @documented_by(AsyncDeadLetter.reason)
    def reason(self) -> str:
        return self._target.reason

    @documented_by(AsyncDeadLetter.republish)
    def republish(
        self, subject: str, *, headers: HeadersLike | None = None, msg_id: str | None = None
    ) -> PubAck:
        return self._run(self._target.republish, subject, headers=headers, msg_id=msg_id)


@mirrors(AsyncDeadLetters)
class DeadLetters(Facade[AsyncDeadLetters]):
    @property
    @documented_by(AsyncDeadLetters.closed)
    def closed(self) -> bool:
        return self._target.closed or self._engine.is_foreign

    def __enter__(self) -> Self:
        self._start(self._target.__aenter__, self._target.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closed with its connection, or it belongs to another process: nothing is left to do.
        if not (self._engine.is_foreign or self._engine.is_stopped):
            self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> DeadLetter:
        try:
            return DeadLetter(self._engine, self._run(self._target.__anext__))
        except StopAsyncIteration:
            raise StopIteration from None

    @documented_by(AsyncDeadLetters.next)
    def next(self, timeout: float | None = None) -> DeadLetter:
        return DeadLetter(self._engine, self._run(self._target.next, timeout))

    @documented_by(AsyncDeadLetters.close)
    def close(self) -> None:
        self._run(self._target.close)
