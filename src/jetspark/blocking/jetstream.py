"""The JetStream context, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from jetspark.blocking._facade import Facade
from jetspark.blocking._mirror import documented_by, mirrors
from jetspark.blocking.consumer import Consumer
from jetspark.blocking.publisher import Publisher, ThreadPublisher
from jetspark.blocking.stream import Stream
from jetspark.jetstream.context import JetStream as AsyncJetStream
from jetspark.jetstream.publish import DEFAULT_RETRIES, DEFAULT_RETRY_WAIT
from jetspark.jetstream.publisher import DEFAULT_WINDOW

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from jetspark.blocking._client import EngineConnection
    from jetspark.connection.core import HeadersLike
    from jetspark.jetstream.account import AccountInfo
    from jetspark.jetstream.consumer_config import ConsumerConfig
    from jetspark.jetstream.consumer_info import ConsumerInfo, ConsumerPause
    from jetspark.jetstream.puback import PubAck
    from jetspark.jetstream.publish import Expect
    from jetspark.jetstream.schedule import Schedule
    from jetspark.jetstream.stream_config import StreamConfig
    from jetspark.jetstream.stream_info import StreamInfo


@mirrors(AsyncJetStream)
class JetStream(Facade[AsyncJetStream]):
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

    @documented_by(AsyncJetStream.publisher)
    def publisher(
        self,
        *,
        window: int = DEFAULT_WINDOW,
        ack_timeout: float = 30.0,
        retry: bool = False,
    ) -> Publisher:
        target = ThreadPublisher(self._client, window=window, ack_timeout=ack_timeout, retry=retry)
        return Publisher(self._engine, target)

    @property
    def _client(self) -> EngineConnection:
        return cast("EngineConnection", self._target._client)
