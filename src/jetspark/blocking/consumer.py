"""Consumers, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetspark.blocking._facade import Facade
from jetspark.blocking._mirror import documented_by, mirrors
from jetspark.jetstream.consumer import Consumer as AsyncConsumer

if TYPE_CHECKING:
    from datetime import datetime

    from jetspark.jetstream.consumer_config import ConsumerConfig
    from jetspark.jetstream.consumer_info import ConsumerInfo, ConsumerPause


@mirrors(AsyncConsumer)
class Consumer(Facade[AsyncConsumer]):
    @property
    @documented_by(AsyncConsumer.name)
    def name(self) -> str:
        return self._target.name

    @property
    @documented_by(AsyncConsumer.stream_name)
    def stream_name(self) -> str:
        return self._target.stream_name

    @property
    @documented_by(AsyncConsumer.cached_info)
    def cached_info(self) -> ConsumerInfo:
        return self._target.cached_info

    @property
    @documented_by(AsyncConsumer.config)
    def config(self) -> ConsumerConfig:
        return self._target.config

    @documented_by(AsyncConsumer.info)
    def info(self) -> ConsumerInfo:
        return self._run(self._target.info)

    @documented_by(AsyncConsumer.delete)
    def delete(self) -> None:
        self._run(self._target.delete)

    @documented_by(AsyncConsumer.pause)
    def pause(self, until: datetime) -> ConsumerPause:
        return self._run(self._target.pause, until)

    @documented_by(AsyncConsumer.resume)
    def resume(self) -> ConsumerPause:
        return self._run(self._target.resume)

    @documented_by(AsyncConsumer.unpin)
    def unpin(self, group: str) -> None:
        self._run(self._target.unpin, group)

    @documented_by(AsyncConsumer.reset)
    def reset(self, seq: int | None = None) -> ConsumerInfo:
        return self._run(self._target.reset, seq)
