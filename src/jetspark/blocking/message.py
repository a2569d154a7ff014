"""Received messages, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetspark.blocking._mirror import documented_by, mirrors
from jetspark.connection.message import Msg as AsyncMsg
from jetspark.connection.message import MsgBase
from jetspark.jetstream.fetch import MessageBatch as AsyncMessageBatch
from jetspark.jetstream.message import ACK, PROGRESS, MessageBase, nak_body, term_body
from jetspark.jetstream.message import Message as AsyncMessage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from jetspark.blocking._client import EngineConnection
    from jetspark.blocking.connection import Connection
    from jetspark.errors import JetsparkError
    from jetspark.wire.headers import Headers


@mirrors(AsyncMsg)
class Msg(MsgBase, eq=False, gc=False):
    @property
    def _client(self) -> Connection:
        client: Connection = self._owner
        return client

    @documented_by(AsyncMsg.respond)
    def respond(
        self,
        data: bytes = b"",
        *,
        headers: Headers | Mapping[str, str | Sequence[str]] | None = None,
    ) -> None:
        self._client.publish(self._reply_subject(), data, headers=headers)


@mirrors(AsyncMessage, note="Any thread may ack it. Acks are sent in batches, without waiting for each.")
class Message(MessageBase, eq=False, gc=False):
    @documented_by(AsyncMessage.ack)
    def ack(self) -> None:
        if self._wants_ack(ACK, terminal=True):
            self._client.give_way()

    @documented_by(AsyncMessage.ack_sync)
    def ack_sync(self, timeout: float | None = None) -> None:
        # The async method reads nothing that this class does not have.
        call: Any = AsyncMessage.ack_sync
        self._client.engine.run(call, self, timeout)

    @documented_by(AsyncMessage.nak)
    def nak(self, delay: float | timedelta | None = None) -> None:
        if self._wants_ack(nak_body(delay), terminal=True):
            self._client.give_way()

    @documented_by(AsyncMessage.term)
    def term(self, reason: str | None = None) -> None:
        if self._wants_ack(term_body(reason), terminal=True):
            self._client.give_way()

    @documented_by(AsyncMessage.in_progress)
    def in_progress(self) -> None:
        if self._wants_ack(PROGRESS, terminal=False):
            self._client.give_way()

    @property
    def _client(self) -> EngineConnection:
        client: EngineConnection = self._owner.client
        return client


@mirrors(AsyncMessageBatch, attributes=("error",))
class MessageBatch(list[Message]):
    error: JetsparkError | None = None

    @documented_by(AsyncMessageBatch.raise_for_error)
    def raise_for_error(self) -> None:
        if self.error is not None:
            raise self.error
