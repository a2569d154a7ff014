"""Publishers and batches of a connection with an observer; connections without one pay nothing for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetspark.jetstream.publish.atomic_batch import AtomicBatch
from jetspark.jetstream.publish.fast_ingest import FastIngest
from jetspark.jetstream.publish.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetspark.connection.core import Core
    from jetspark.connection.observer import Observer
    from jetspark.jetstream.publish.many import AckBatch, Publishing


class _Observed:
    _core: Core

    @property
    def _observer(self) -> Observer:
        assert self._core.observer is not None
        return self._core.observer

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Any = None,
        msg_id: str | None = None,
        **options: Any,
    ) -> Any:
        inner: Any = super()
        with self._observer.publishing("publisher", subject, data, headers, msg_id) as sending:
            result = await inner.publish(subject, data, headers=sending.headers, msg_id=msg_id, **options)
        sending.done(result)
        return result


class ObservedPublisher(_Observed, Publisher):
    """A publisher that reports each message to the observer."""

    def publish_nowait(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Any = None,
        msg_id: str | None = None,
        **options: Any,
    ) -> Any:
        with self._observer.publishing("publisher", subject, data, headers, msg_id) as sending:
            future = super().publish_nowait(subject, data, headers=sending.headers, msg_id=msg_id, **options)
        sending.done(future)
        return future

    async def publish_many(self, messages: Iterable[Publishing | tuple[str, bytes]]) -> AckBatch:
        with self._observer.publishing_many(messages) as sending:
            batch = await super().publish_many(sending.messages)
        sending.done(batch)
        return batch


class ObservedAtomicBatch(_Observed, AtomicBatch):
    """A batch that reports each message to the observer."""


class ObservedFastIngest(_Observed, FastIngest):
    """A fast-ingest batch that reports each message to the observer."""


def publisher_kind(core: Core) -> type[Publisher]:
    """The class of publishers for this connection."""
    return Publisher if core.observer is None else ObservedPublisher


def atomic_batch_kind(core: Core) -> type[AtomicBatch]:
    """The class of atomic batches for this connection."""
    return AtomicBatch if core.observer is None else ObservedAtomicBatch


def fast_ingest_kind(core: Core) -> type[FastIngest]:
    """The class of fast-ingest batches for this connection."""
    return FastIngest if core.observer is None else ObservedFastIngest
