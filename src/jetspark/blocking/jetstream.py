"""The JetStream context, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetspark.blocking._facade import Facade, check_plain
from jetspark.blocking._mirror import documented_by, mirrors
from jetspark.blocking._observed import ObservedAtomicBatch, ObservedFastIngest, ObservedPublisher
from jetspark.blocking._threads import Courier
from jetspark.blocking.advisories import Advisories, DeadLetters
from jetspark.blocking.atomic_batch import AtomicBatch, ThreadAtomicBatch
from jetspark.blocking.consumer import Consumer
from jetspark.blocking.fast_ingest import FastIngest, ThreadFastIngest
from jetspark.blocking.ordered import OrderedConsumer
from jetspark.blocking.publisher import Publisher, ThreadPublisher
from jetspark.blocking.pull_subscribe import PullSubscription
from jetspark.blocking.stream import Stream
from jetspark.blocking.subscribe import PushSubscription
from jetspark.connection.subscription_sink import DEFAULT_PENDING_BYTES, DEFAULT_PENDING_MESSAGES
from jetspark.jetstream.consume.ordered_config import INACTIVE_THRESHOLD
from jetspark.jetstream.context import JetStream as AsyncJetStream
from jetspark.jetstream.flow.push import DEFAULT_ALARM_FACTOR
from jetspark.jetstream.models.consumer_config import ReplayPolicy
from jetspark.jetstream.publish.atomic_batch import DEFAULT_HOLD, MAX_MESSAGES
from jetspark.jetstream.publish.fast_ingest import DEFAULT_FLOW, DEFAULT_OUTSTANDING
from jetspark.jetstream.publish.publish import DEFAULT_RETRIES, DEFAULT_RETRY_WAIT
from jetspark.jetstream.publish.publisher import DEFAULT_WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from jetspark.blocking._engine import Engine
    from jetspark.blocking.connection import Connection
    from jetspark.blocking.consume import Handler
    from jetspark.connection.outbox import HeadersLike
    from jetspark.jetstream.consume.consume import ErrorListener
    from jetspark.jetstream.consume.ordered_config import OrderedConsumerConfig
    from jetspark.jetstream.flow.fast import IngestGap
    from jetspark.jetstream.models.account import AccountInfo
    from jetspark.jetstream.models.advisories import Advisory
    from jetspark.jetstream.models.consumer_config import ConsumerConfig, DeliverPolicy
    from jetspark.jetstream.models.consumer_info import ConsumerInfo, ConsumerPause
    from jetspark.jetstream.models.puback import PubAck
    from jetspark.jetstream.models.schedule import Schedule
    from jetspark.jetstream.models.stream_config import StreamConfig
    from jetspark.jetstream.models.stream_info import StreamInfo
    from jetspark.jetstream.publish.fast_ingest import GapMode
    from jetspark.jetstream.publish.publish import Expect


@mirrors(AsyncJetStream)
class JetStream(Facade[AsyncJetStream]):
    def __init__(self, engine: Engine, target: AsyncJetStream, connection: Connection) -> None:
        super().__init__(engine, target)
        self._connection = connection
        self._core = connection._core

    @property
    @documented_by(AsyncJetStream.connection)
    def connection(self) -> Connection:
        return self._connection

    @property
    @documented_by(AsyncJetStream.api_prefix)
    def api_prefix(self) -> str:
        return self._target.api_prefix

    @property
    @documented_by(AsyncJetStream.timeout)
    def timeout(self) -> float:
        return self._target.timeout

    @documented_by(AsyncJetStream.create_stream)
    def create_stream(self, config: StreamConfig, *, pedantic: bool = False) -> Stream:
        return Stream(self._engine, self._run(self._target.create_stream, config, pedantic=pedantic))

    @documented_by(AsyncJetStream.update_stream)
    def update_stream(self, config: StreamConfig, *, pedantic: bool = False) -> Stream:
        return Stream(self._engine, self._run(self._target.update_stream, config, pedantic=pedantic))

    @documented_by(AsyncJetStream.create_or_update_stream)
    def create_or_update_stream(self, config: StreamConfig, *, pedantic: bool = False) -> Stream:
        return Stream(
            self._engine, self._run(self._target.create_or_update_stream, config, pedantic=pedantic)
        )

    @documented_by(AsyncJetStream.get_stream)
    def get_stream(self, name: str) -> Stream:
        return Stream(self._engine, self._run(self._target.get_stream, name))

    @documented_by(AsyncJetStream.delete_stream)
    def delete_stream(self, name: str) -> None:
        self._run(self._target.delete_stream, name)

    @documented_by(AsyncJetStream.list_streams)
    def list_streams(self, subject: str | None = None) -> Iterator[StreamInfo]:
        return self._iterate(self._target.list_streams, subject)

    @documented_by(AsyncJetStream.stream_infos)
    def stream_infos(self, names: Sequence[str]) -> dict[str, StreamInfo]:
        return self._run(self._target.stream_infos, names)

    @documented_by(AsyncJetStream.stream_names)
    def stream_names(self, subject: str | None = None) -> Iterator[str]:
        return self._iterate(self._target.stream_names, subject)

    @documented_by(AsyncJetStream.stream_name_by_subject)
    def stream_name_by_subject(self, subject: str) -> str:
        return self._run(self._target.stream_name_by_subject, subject)

    @documented_by(AsyncJetStream.get_consumer)
    def get_consumer(self, stream: str, consumer: str) -> Consumer:
        return Consumer(self._engine, self._run(self._target.get_consumer, stream, consumer))

    @documented_by(AsyncJetStream.create_consumer)
    def create_consumer(self, stream: str, config: ConsumerConfig, *, pedantic: bool = False) -> Consumer:
        return Consumer(
            self._engine, self._run(self._target.create_consumer, stream, config, pedantic=pedantic)
        )

    @documented_by(AsyncJetStream.update_consumer)
    def update_consumer(self, stream: str, config: ConsumerConfig, *, pedantic: bool = False) -> Consumer:
        return Consumer(
            self._engine, self._run(self._target.update_consumer, stream, config, pedantic=pedantic)
        )

    @documented_by(AsyncJetStream.create_or_update_consumer)
    def create_or_update_consumer(
        self, stream: str, config: ConsumerConfig, *, pedantic: bool = False
    ) -> Consumer:
        return Consumer(
            self._engine, self._run(self._target.create_or_update_consumer, stream, config, pedantic=pedantic)
        )

    @documented_by(AsyncJetStream.create_ordered_consumer)
    def create_ordered_consumer(
        self,
        stream: str,
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
                stream,
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

    @documented_by(AsyncJetStream.pull_subscribe)
    def pull_subscribe(
        self,
        subject: str | None = None,
        durable: str | None = None,
        *,
        stream: str | None = None,
        consumer: str | None = None,
        config: ConsumerConfig | None = None,
    ) -> PullSubscription:
        target = self._run(
            self._target.pull_subscribe,
            subject,
            durable,
            stream=stream,
            consumer=consumer,
            config=config,
        )
        return PullSubscription(self._engine, target)

    @documented_by(
        AsyncJetStream.subscribe,
        note=(
            "The callback runs in a thread of its own, ``on_error`` in another one, so both may block and\n"
            "use the API."
        ),
    )
    def subscribe(
        self,
        subject: str | None = None,
        *,
        queue: str = "",
        stream: str | None = None,
        durable: str | None = None,
        consumer: str | None = None,
        config: ConsumerConfig | None = None,
        callback: Handler | None = None,
        manual_ack: bool = False,
        ordered: bool = False,
        idle_heartbeat: float | timedelta | None = None,
        flow_control: bool | None = None,
        deliver_policy: DeliverPolicy | str | None = None,
        opt_start_seq: int | None = None,
        opt_start_time: datetime | None = None,
        alarm_factor: float = DEFAULT_ALARM_FACTOR,
        pending_messages_limit: int = DEFAULT_PENDING_MESSAGES,
        pending_bytes_limit: int = DEFAULT_PENDING_BYTES,
        delete_on_close: bool | None = None,
        on_error: ErrorListener | None = None,
    ) -> PushSubscription:
        check_plain("callback", callback)
        check_plain("on_error", on_error)
        errors = (
            Courier(on_error, f"on_error of the push subscription to {subject!r}")
            if callable(on_error)
            else None
        )
        target = self._run(
            self._target.subscribe,
            subject,
            queue=queue,
            stream=stream,
            durable=durable,
            consumer=consumer,
            config=config,
            callback=callback,
            manual_ack=manual_ack,
            ordered=ordered,
            idle_heartbeat=idle_heartbeat,
            flow_control=flow_control,
            deliver_policy=deliver_policy,
            opt_start_seq=opt_start_seq,
            opt_start_time=opt_start_time,
            alarm_factor=alarm_factor,
            pending_messages_limit=pending_messages_limit,
            pending_bytes_limit=pending_bytes_limit,
            delete_on_close=delete_on_close,
            on_error=on_error if errors is None else errors.put,
        )
        return PushSubscription(self._engine, target, errors)

    @documented_by(AsyncJetStream.delete_consumer)
    def delete_consumer(self, stream: str, consumer: str) -> None:
        self._run(self._target.delete_consumer, stream, consumer)

    @documented_by(AsyncJetStream.pause_consumer)
    def pause_consumer(self, stream: str, consumer: str, until: datetime) -> ConsumerPause:
        return self._run(self._target.pause_consumer, stream, consumer, until)

    @documented_by(AsyncJetStream.resume_consumer)
    def resume_consumer(self, stream: str, consumer: str) -> ConsumerPause:
        return self._run(self._target.resume_consumer, stream, consumer)

    @documented_by(AsyncJetStream.list_consumers)
    def list_consumers(self, stream: str) -> Iterator[ConsumerInfo]:
        return self._iterate(self._target.list_consumers, stream)

    @documented_by(AsyncJetStream.consumer_names)
    def consumer_names(self, stream: str) -> Iterator[str]:
        return self._iterate(self._target.consumer_names, stream)

    @documented_by(AsyncJetStream.account_info)
    def account_info(self) -> AccountInfo:
        return self._run(self._target.account_info)

    @documented_by(AsyncJetStream.advisories)
    def advisories(
        self,
        stream: str | None = None,
        consumer: str | None = None,
        *,
        kinds: Iterable[type[Advisory]] | None = None,
    ) -> Advisories:
        return Advisories(
            self._engine, self._target.advisories(stream=stream, consumer=consumer, kinds=kinds)
        )

    @documented_by(AsyncJetStream.dead_letters)
    def dead_letters(
        self, stream: str, consumer: str | None = None, *, terminated: bool = True
    ) -> DeadLetters:
        return DeadLetters(self._engine, self._target.dead_letters(stream, consumer, terminated=terminated))

    @documented_by(AsyncJetStream.publish)
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
        timeout: float | None = None,
        retries: int = DEFAULT_RETRIES,
        retry_wait: float = DEFAULT_RETRY_WAIT,
    ) -> PubAck:
        return self._run(
            self._target.publish,
            subject,
            data,
            headers=headers,
            msg_id=msg_id,
            expect=expect,
            ttl=ttl,
            schedule=schedule,
            timeout=timeout,
            retries=retries,
            retry_wait=retry_wait,
        )

    @documented_by(AsyncJetStream.increment)
    def increment(
        self, subject: str, delta: int | str = 1, *, msg_id: str | None = None, timeout: float | None = None
    ) -> int:
        return self._run(self._target.increment, subject, delta, msg_id=msg_id, timeout=timeout)

    @documented_by(AsyncJetStream.atomic_batch)
    def atomic_batch(
        self,
        *,
        hold: int = DEFAULT_HOLD,
        max_messages: int = MAX_MESSAGES,
        timeout: float | None = None,
    ) -> AtomicBatch:
        target = ThreadAtomicBatch(
            self._core,
            hold=hold,
            max_messages=max_messages,
            timeout=self._target.timeout if timeout is None else timeout,
        )
        return (AtomicBatch if self._core.observer is None else ObservedAtomicBatch)(self._engine, target)

    @documented_by(
        AsyncJetStream.fast_ingest,
        note="``on_gap`` is called in a thread of its own, so it may block and use the API.",
    )
    def fast_ingest(
        self,
        *,
        gap: GapMode = "fail",
        flow: int = DEFAULT_FLOW,
        max_outstanding_acks: int = DEFAULT_OUTSTANDING,
        on_gap: Callable[[IngestGap], None] | None = None,
        ping_interval: float = 2.0,
        ack_timeout: float = 30.0,
        timeout: float | None = None,
    ) -> FastIngest:
        check_plain("on_gap", on_gap)
        gaps = Courier(on_gap, "on_gap of a fast-ingest batch") if callable(on_gap) else None
        target = ThreadFastIngest(
            self._core,
            gap=gap,
            flow=flow,
            max_outstanding_acks=max_outstanding_acks,
            on_gap=on_gap if gaps is None else gaps.put,
            ping_interval=ping_interval,
            ack_timeout=ack_timeout,
            timeout=self._target.timeout if timeout is None else timeout,
        )
        return (FastIngest if self._core.observer is None else ObservedFastIngest)(self._engine, target, gaps)

    @documented_by(AsyncJetStream.publisher)
    def publisher(
        self,
        *,
        window: int = DEFAULT_WINDOW,
        ack_timeout: float = 30.0,
        retry: bool = False,
    ) -> Publisher:
        target = ThreadPublisher(self._core, window=window, ack_timeout=ack_timeout, retry=retry)
        return (Publisher if self._core.observer is None else ObservedPublisher)(self._engine, target)
