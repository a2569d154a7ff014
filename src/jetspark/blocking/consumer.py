"""Consumers, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from jetspark.blocking._facade import Facade, check_plain
from jetspark.blocking._mirror import documented_by, mirrors
from jetspark.blocking._threads import Courier
from jetspark.blocking.consume import Consume, ConsumeBatches, ConsumeCallback, Handler
from jetspark.blocking.message import MessageBatch, take_batch
from jetspark.jetstream.consume.fetch import collecting
from jetspark.jetstream.consumer import Consumer as AsyncConsumer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from jetspark.arrow import ConsumeArrow
    from jetspark.blocking.message import Message
    from jetspark.jetstream.consume.consume import ErrorListener
    from jetspark.jetstream.models.consumer_config import ConsumerConfig
    from jetspark.jetstream.models.consumer_info import ConsumerInfo, ConsumerPause


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

    # Pull

    @documented_by(
        AsyncConsumer.fetch,
        note=(
            "What ends it early (consumer deleted, missed heartbeats, a limit of the consumer) leaves the\n"
            "messages that came before it: they are returned with ``batch.error`` set; without any it is\n"
            "raised. Ctrl-C loses no message: the next fetch has them (see ``next`` for the exception)."
        ),
    )
    def fetch(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        expires: float | None = None,
        no_wait: bool = False,
        idle_heartbeat: float | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int = 0,
    ) -> MessageBatch:
        request = self._target.fetch(
            max_messages,
            max_bytes=max_bytes,
            expires=expires,
            no_wait=no_wait,
            idle_heartbeat=idle_heartbeat,
            group=group,
            min_pending=min_pending,
            min_ack_pending=min_ack_pending,
            priority=priority,
        )
        return take_batch(self._engine, *collecting(request))

    @documented_by(AsyncConsumer.fetch_bytes)
    def fetch_bytes(
        self, max_bytes: int, *, expires: float | None = None, idle_heartbeat: float | None = None
    ) -> MessageBatch:
        return self.fetch(max_bytes=max_bytes, expires=expires, idle_heartbeat=idle_heartbeat)

    @documented_by(AsyncConsumer.fetch_no_wait)
    def fetch_no_wait(self, max_messages: int) -> MessageBatch:
        return self.fetch(max_messages, no_wait=True)

    @documented_by(AsyncConsumer.next)
    def next(
        self,
        expires: float | None = None,
        *,
        idle_heartbeat: float | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int = 0,
    ) -> Message | None:
        batch = self.fetch(
            1,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            group=group,
            min_pending=min_pending,
            min_ack_pending=min_ack_pending,
            priority=priority,
        )
        return batch[0] if batch else None

    @documented_by(
        AsyncConsumer.consume,
        note="``on_error`` runs in a thread of its own, so it may block and use the API.",
    )
    def consume(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        max_bytes_per_request: int | None = None,
        expires: float = 30.0,
        idle_heartbeat: float | None = None,
        stop_after: int | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int = 0,
        on_error: ErrorListener | None = None,
    ) -> Consume:
        errors = self._error_thread(on_error)
        target = self._target.consume(
            max_messages=max_messages,
            max_bytes=max_bytes,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            max_bytes_per_request=max_bytes_per_request,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            stop_after=stop_after,
            group=group,
            min_pending=min_pending,
            min_ack_pending=min_ack_pending,
            priority=priority,
            on_error=on_error if errors is None else errors.put,
        )
        return Consume(self._engine, target, errors)

    @documented_by(
        AsyncConsumer.consume_batches,
        note="``on_error`` runs in a thread of its own, so it may block and use the API.",
    )
    def consume_batches(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        max_bytes_per_request: int | None = None,
        expires: float = 30.0,
        idle_heartbeat: float | None = None,
        stop_after: int | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int = 0,
        on_error: ErrorListener | None = None,
    ) -> ConsumeBatches:
        errors = self._error_thread(on_error)
        target = self._target.consume_batches(
            max_messages=max_messages,
            max_bytes=max_bytes,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            max_bytes_per_request=max_bytes_per_request,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            stop_after=stop_after,
            group=group,
            min_pending=min_pending,
            min_ack_pending=min_ack_pending,
            priority=priority,
            on_error=on_error if errors is None else errors.put,
        )
        return ConsumeBatches(self._engine, target, errors)

    @documented_by(
        AsyncConsumer.consume_with,
        note=(
            "Callbacks run in threads of their own, ``on_error`` in another one, so all of them may block\n"
            "and use the API."
        ),
    )
    def consume_with(
        self,
        callback: Handler,
        *,
        concurrency: int = 1,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        max_bytes_per_request: int | None = None,
        expires: float = 30.0,
        idle_heartbeat: float | None = None,
        stop_after: int | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int = 0,
        on_error: ErrorListener | None = None,
    ) -> ConsumeCallback:
        check_plain("callback", callback)
        errors = self._error_thread(on_error)
        target = self._target.consume_with(
            cast("Any", callback),
            concurrency=concurrency,
            max_messages=max_messages,
            max_bytes=max_bytes,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            max_bytes_per_request=max_bytes_per_request,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            stop_after=stop_after,
            group=group,
            min_pending=min_pending,
            min_ack_pending=min_ack_pending,
            priority=priority,
            on_error=on_error if errors is None else errors.put,
        )
        return ConsumeCallback(self._engine, target, errors)

    @documented_by(AsyncConsumer.consume_arrow)
    def consume_arrow(
        self,
        *,
        columns: Sequence[str] | None = None,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        expires: float = 30.0,
        idle_heartbeat: float | None = None,
        stop_after: int | None = None,
        views: bool = False,
        on_error: ErrorListener | None = None,
    ) -> ConsumeArrow:
        from jetspark.arrow import consume_arrow  # imported here: it needs pyarrow, and it imports this class

        return consume_arrow(
            self,
            columns=columns,
            max_messages=max_messages,
            max_bytes=max_bytes,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            stop_after=stop_after,
            views=views,
            on_error=on_error,
        )

    def _error_thread(self, on_error: ErrorListener | None) -> Courier | None:
        """A thread that calls the listener."""
        check_plain("on_error", on_error)
        if not callable(on_error):
            return None
        return Courier(on_error, f"on_error of consumer {self.name!r} of stream {self.stream_name!r}")
