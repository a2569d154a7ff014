"""Streams, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetspark.blocking._facade import Facade, inside
from jetspark.blocking._mirror import documented_by, mirrors
from jetspark.blocking.consumer import Consumer
from jetspark.blocking.ordered import OrderedConsumer
from jetspark.jetstream.consume.ordered_config import INACTIVE_THRESHOLD
from jetspark.jetstream.models.consumer_config import ReplayPolicy
from jetspark.jetstream.stored import DEFAULT_BATCH, DEFAULT_BATCH_BYTES
from jetspark.jetstream.stream import Stream as AsyncStream
from jetspark.jetstream.stream import next_on_leader as async_next_on_leader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from jetspark.jetstream.consume.ordered_config import OrderedConsumerConfig
    from jetspark.jetstream.models.consumer_config import ConsumerConfig, DeliverPolicy
    from jetspark.jetstream.models.consumer_info import ConsumerInfo, ConsumerPause
    from jetspark.jetstream.models.counter import CounterValue
    from jetspark.jetstream.models.stream_config import StreamConfig
    from jetspark.jetstream.models.stream_info import StreamInfo
    from jetspark.jetstream.stored import StoredMsg


@mirrors(AsyncStream)
class Stream(Facade[AsyncStream]):
    @property
    @documented_by(AsyncStream.name)
    def name(self) -> str:
        return self._target.name

    @property
    @documented_by(AsyncStream.cached_info)
    def cached_info(self) -> StreamInfo:
        return self._target.cached_info

    @property
    @documented_by(AsyncStream.config)
    def config(self) -> StreamConfig:
        return self._target.config

    @documented_by(AsyncStream.info)
    def info(self, *, subjects_filter: str | None = None, deleted_details: bool = False) -> StreamInfo:
        return self._run(self._target.info, subjects_filter=subjects_filter, deleted_details=deleted_details)

    @documented_by(AsyncStream.purge)
    def purge(self, *, subject: str | None = None, seq: int | None = None, keep: int | None = None) -> int:
        return self._run(self._target.purge, subject=subject, seq=seq, keep=keep)

    @documented_by(AsyncStream.delete)
    def delete(self) -> None:
        self._run(self._target.delete)

    @documented_by(AsyncStream.get_msg)
    def get_msg(
        self,
        seq: int | None = None,
        *,
        last_by_subject: str | None = None,
        next_by_subject: str | None = None,
        start_time: datetime | None = None,
        from_leader: bool = False,
    ) -> StoredMsg:
        return self._run(
            self._target.get_msg,
            seq,
            last_by_subject=last_by_subject,
            next_by_subject=next_by_subject,
            start_time=start_time,
            from_leader=from_leader,
        )

    @documented_by(AsyncStream.counter)
    def counter(self, subject: str) -> CounterValue:
        return self._run(self._target.counter, subject)

    @documented_by(AsyncStream.counters)
    def counters(self, subjects: str | Sequence[str] = ">") -> Iterator[CounterValue]:
        return self._iterate(self._target.counters, subjects)

    @documented_by(AsyncStream.get_msgs)
    def get_msgs(
        self,
        subjects: str | Sequence[str] | None = None,
        *,
        seq: int | None = None,
        start_time: datetime | None = None,
        max_messages: int | None = None,
        batch: int = DEFAULT_BATCH,
        max_bytes: int = DEFAULT_BATCH_BYTES,
    ) -> Iterator[StoredMsg]:
        return self._iterate(
            self._target.get_msgs,
            subjects,
            seq=seq,
            start_time=start_time,
            max_messages=max_messages,
            batch=batch,
            max_bytes=max_bytes,
        )

    @documented_by(AsyncStream.get_last_msgs_for)
    def get_last_msgs_for(
        self,
        subjects: str | Sequence[str],
        *,
        up_to_seq: int | None = None,
        up_to_time: datetime | None = None,
        batch: int = DEFAULT_BATCH,
    ) -> Iterator[StoredMsg]:
        return self._iterate(
            self._target.get_last_msgs_for, subjects, up_to_seq=up_to_seq, up_to_time=up_to_time, batch=batch
        )

    @documented_by(AsyncStream.delete_msg)
    def delete_msg(self, seq: int, *, secure: bool = False) -> None:
        self._run(self._target.delete_msg, seq, secure=secure)

    @documented_by(AsyncStream.get_consumer)
    def get_consumer(self, consumer: str) -> Consumer:
        return Consumer(self._engine, self._run(self._target.get_consumer, consumer))

    @documented_by(AsyncStream.create_consumer)
    def create_consumer(self, config: ConsumerConfig, *, pedantic: bool = False) -> Consumer:
        return Consumer(self._engine, self._run(self._target.create_consumer, config, pedantic=pedantic))

    @documented_by(AsyncStream.update_consumer)
    def update_consumer(self, config: ConsumerConfig, *, pedantic: bool = False) -> Consumer:
        return Consumer(self._engine, self._run(self._target.update_consumer, config, pedantic=pedantic))

    @documented_by(AsyncStream.create_or_update_consumer)
    def create_or_update_consumer(self, config: ConsumerConfig, *, pedantic: bool = False) -> Consumer:
        return Consumer(
            self._engine, self._run(self._target.create_or_update_consumer, config, pedantic=pedantic)
        )

    @documented_by(AsyncStream.create_ordered_consumer)
    def create_ordered_consumer(
        self,
        config: OrderedConsumerConfig | None = None,
        *,
        filter_subjects: str | Sequence[str] | None = None,
        deliver_policy: DeliverPolicy | str | None = None,
        opt_start_seq: int | None = None,
        opt_start_time: datetime | None = None,
        replay_policy: ReplayPolicy | str = ReplayPolicy.INSTANT,
        inactive_threshold: float | timedelta = INACTIVE_THRESHOLD,
        headers_only: bool = False,
        max_reset_attempts: int | None = None,
        name_prefix: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> OrderedConsumer:
        return OrderedConsumer(
            self._engine,
            self._run(
                self._target.create_ordered_consumer,
                config,
                filter_subjects=filter_subjects,
                deliver_policy=deliver_policy,
                opt_start_seq=opt_start_seq,
                opt_start_time=opt_start_time,
                replay_policy=replay_policy,
                inactive_threshold=inactive_threshold,
                headers_only=headers_only,
                max_reset_attempts=max_reset_attempts,
                name_prefix=name_prefix,
                metadata=metadata,
            ),
        )

    @documented_by(AsyncStream.delete_consumer)
    def delete_consumer(self, consumer: str) -> None:
        self._run(self._target.delete_consumer, consumer)

    @documented_by(AsyncStream.pause_consumer)
    def pause_consumer(self, consumer: str, until: datetime) -> ConsumerPause:
        return self._run(self._target.pause_consumer, consumer, until)

    @documented_by(AsyncStream.resume_consumer)
    def resume_consumer(self, consumer: str) -> ConsumerPause:
        return self._run(self._target.resume_consumer, consumer)

    @documented_by(AsyncStream.list_consumers)
    def list_consumers(self) -> Iterator[ConsumerInfo]:
        return self._iterate(self._target.list_consumers)

    @documented_by(AsyncStream.consumer_names)
    def consumer_names(self) -> Iterator[str]:
        return self._iterate(self._target.consumer_names)


def next_on_leader(stream: Stream, seq: int, subjects: Sequence[str] = ()) -> int | None:
    """See :func:`jetspark.jetstream.stream.next_on_leader`."""
    engine, target = inside(stream)
    return engine.run(async_next_on_leader, target, seq, subjects)
