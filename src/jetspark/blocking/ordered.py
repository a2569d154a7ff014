"""Ordered consumers, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from jetspark.blocking._mirror import documented_by, mirrors
from jetspark.blocking.consumer import Consumer
from jetspark.jetstream.consume.ordered import OrderedConsumer as AsyncOrderedConsumer

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    from jetspark.blocking._engine import Engine
    from jetspark.jetstream.models.consumer_info import ConsumerInfo, ConsumerPause


@mirrors(
    AsyncOrderedConsumer,
    note="The order holds for one reading thread; several share the messages, each in order.",
)
class OrderedConsumer(Consumer):
    _target: AsyncOrderedConsumer

    def __init__(self, engine: Engine, target: AsyncOrderedConsumer) -> None:
        super().__init__(engine, target)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closed with its connection, or it belongs to another process: the server removes it by itself.
        if not (self._engine.is_foreign or self._engine.is_stopped):
            self.close()

    @property
    @documented_by(AsyncOrderedConsumer.last_sequence)
    def last_sequence(self) -> int:
        return self._target.last_sequence

    @documented_by(AsyncOrderedConsumer.info)
    def info(self) -> ConsumerInfo:
        return self._run(self._target.info)

    @documented_by(AsyncOrderedConsumer.close)
    def close(self) -> None:
        self._run(self._target.close)

    @documented_by(AsyncOrderedConsumer.delete)
    def delete(self) -> None:
        self._run(self._target.delete)

    @documented_by(AsyncOrderedConsumer.pause)
    def pause(self, until: datetime) -> ConsumerPause:
        return self._run(self._target.pause, until)

    @documented_by(AsyncOrderedConsumer.resume)
    def resume(self) -> ConsumerPause:
        return self._run(self._target.resume)

    @documented_by(AsyncOrderedConsumer.unpin)
    def unpin(self, group: str) -> None:
        self._run(self._target.unpin, group)

    @documented_by(AsyncOrderedConsumer.reset)
    def reset(self, seq: int | None = None) -> ConsumerInfo:
        return self._run(self._target.reset, seq)
