"""Pull subscriptions (ADR-13), for threads."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Self

from jetspark.blocking._facade import Facade
from jetspark.blocking._mirror import documented_by, mirrors
from jetspark.blocking.consumer import Consumer
from jetspark.blocking.message import MessageBatch, take_batch
from jetspark.jetstream.subscribe.pull_subscribe import PullSubscription as AsyncPullSubscription
from jetspark.jetstream.subscribe.pull_subscribe import stash_of

if TYPE_CHECKING:
    from types import TracebackType

    from jetspark.jetstream.models.consumer_info import ConsumerInfo


@mirrors(AsyncPullSubscription)
class PullSubscription(Facade[AsyncPullSubscription]):
    @property
    @documented_by(AsyncPullSubscription.subject)
    def subject(self) -> str:
        return self._target.subject

    @property
    @documented_by(AsyncPullSubscription.consumer)
    def consumer(self) -> Consumer:
        return Consumer(self._engine, self._target.consumer)

    @property
    @documented_by(AsyncPullSubscription.pending)
    def pending(self) -> int:
        return self._target.pending

    @property
    @documented_by(AsyncPullSubscription.delivered)
    def delivered(self) -> int:
        return self._target.delivered

    @property
    @documented_by(AsyncPullSubscription.closed)
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

    @documented_by(AsyncPullSubscription.fetch)
    def fetch(self, batch: int = 1, timeout: float = 5.0) -> MessageBatch:
        return take_batch(self._engine, partial(self._target.fetch, batch, timeout), stash_of(self._target))

    @documented_by(AsyncPullSubscription.unsubscribe)
    def unsubscribe(self, max_messages: int = 0) -> None:
        self._run(self._target.unsubscribe, max_messages)

    @documented_by(AsyncPullSubscription.consumer_info)
    def consumer_info(self) -> ConsumerInfo:
        return self._run(self._target.consumer_info)
