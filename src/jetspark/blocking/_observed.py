"""Publishers and batches of an observed connection; the observer runs in the caller's thread and context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetspark.blocking.atomic_batch import AtomicBatch
from jetspark.blocking.fast_ingest import FastIngest
from jetspark.blocking.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetspark.connection.core import Core
    from jetspark.connection.observer import Observer
    from jetspark.jetstream.publish.many import AckBatch, Publishing


class _Observed:
    _target: Any

    @property
    def _observer(self) -> Observer:
        core: Core = self._target.engine_core
        assert core.observer is not None
        return core.observer

    def _publish_with(
        self,
        method: Any,
        subject: str,
        data: bytes,
        headers: Any,
        msg_id: str | None,
        options: dict[str, Any],
    ) -> Any:
        with self._observer.publishing("publisher", subject, data, headers, msg_id) as sending:
            result = method(subject, data, headers=sending.headers, msg_id=msg_id, **options)
        sending.done(result)
        return result

    def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Any = None,
        msg_id: str | None = None,
        **options: Any,
    ) -> Any:
        inner: Any = super()
        return self._publish_with(inner.publish, subject, data, headers, msg_id, options)


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
        return self._publish_with(super().publish_nowait, subject, data, headers, msg_id, options)

    def publish_many(self, messages: Iterable[Publishing | tuple[str, bytes]]) -> AckBatch:
        with self._observer.publishing_many(messages) as sending:
            batch = super().publish_many(sending.messages)
        sending.done(batch)
        return batch


class ObservedAtomicBatch(_Observed, AtomicBatch):
    """A batch that reports each message to the observer."""


class ObservedFastIngest(_Observed, FastIngest):
    """A fast-ingest batch that reports each message to the observer."""
