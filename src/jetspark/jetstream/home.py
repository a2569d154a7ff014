"""What the handles need from the context that created them; a protocol, because the context imports them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from datetime import datetime

    from jetspark.connection.core import Core
    from jetspark.connection.outbox import HeadersLike
    from jetspark.jetstream.api import Api
    from jetspark.jetstream.consume.pull import PullTarget
    from jetspark.jetstream.kinds import JetStreamKinds
    from jetspark.jetstream.models.consumer_config import ConsumerConfig
    from jetspark.jetstream.models.consumer_info import ConsumerInfo, ConsumerPause
    from jetspark.jetstream.models.puback import PubAck


class Informed(Protocol):
    """A newly created consumer: its info, and the subject for requesting its messages."""

    _target: PullTarget

    @property
    def cached_info(self) -> ConsumerInfo: ...


class Home(Protocol):
    """A :class:`~jetspark.jetstream.context.JetStream`, as the handles see it."""

    _core: Core
    _kinds: JetStreamKinds
    _api: Api

    async def stream_name_by_subject(self, subject: str) -> str: ...

    async def delete_consumer(self, stream: str, consumer: str) -> None: ...

    async def pause_consumer(self, stream: str, consumer: str, until: datetime) -> ConsumerPause: ...

    async def resume_consumer(self, stream: str, consumer: str) -> ConsumerPause: ...

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: HeadersLike | None = None,
        msg_id: str | None = None,
    ) -> PubAck: ...

    async def _consumer_info(self, stream: str, consumer: str) -> ConsumerInfo: ...

    async def _put_consumer(
        self, stream: str, config: ConsumerConfig, action: str, pedantic: bool
    ) -> Informed: ...
