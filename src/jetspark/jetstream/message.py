"""A message delivered by a consumer, and its acks (ADR-15 'Ack Handling')."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetspark.connection.message import MsgBase
from jetspark.connection.outbox import FLUSH_AT
from jetspark.errors import InvalidArgument
from jetspark.jetstream.flow.ack_reply import Metadata, NotJetStreamMessage, parse_ack_reply
from jetspark.jetstream.flow.options import FetchOptions
from jetspark.jetstream.models.values import to_nanoseconds
from jetspark.wire.commands import body_line

if TYPE_CHECKING:
    from datetime import timedelta

    from jetspark.connection.outbox import Outbox
    from jetspark.jetstream.consume.fetch import Fetch

ACK = b"+ACK"
PROGRESS = b"+WPI"
_ACK_LINE = body_line(ACK)


class MessageBase(MsgBase, eq=False, gc=False):
    """What delivered messages of the asyncio and the blocking API have in common."""

    _acked: bool = False
    _metadata: Metadata | None = None

    @property
    def metadata(self) -> Metadata:
        """Stream and consumer, sequences, delivery count, time; parsed from the reply on first use.

        Raises :class:`NotJetStreamMessage` when the reply is not an ack subject.
        """
        metadata = self._metadata
        if metadata is None:
            metadata = self._metadata = parse_ack_reply(self.reply)
        return metadata

    @property
    def is_acked(self) -> bool:
        """Whether a terminal ack (ack, nak, term) was sent for this delivery."""
        return self._acked

    def _wants_ack(self, body: bytes, *, terminal: bool) -> bool:
        """Buffer an ack, unless it has no effect: ack policy none, or an ack was already sent."""
        owner = self._owner
        if self._acked or not owner.acks:
            return False
        if not self.reply:
            raise NotJetStreamMessage(self.reply)
        reply = self.reply.encode("utf-8", "surrogateescape")
        outbox = owner.outbox
        outbox.answer(reply, _ACK_LINE if body is ACK else body_line(body))
        if outbox.observer is not None:
            outbox.observer.acked(body)
        if terminal:
            # Set only now: if the send raised because the connection is closed, the user may try again.
            self._acked = True
        return True


def nak_body(delay: float | timedelta | None) -> bytes:
    """``-NAK``, with the delay in the server's format."""
    if delay is None:
        return b"-NAK"
    nanoseconds = to_nanoseconds(delay, field="delay")
    if nanoseconds < 0:
        raise InvalidArgument("delay", delay, "must not be negative")
    return b'-NAK {"delay": %d}' % nanoseconds


def term_body(reason: str | None) -> bytes:
    """``+TERM``, with the reason that the server puts into its advisory (2.10.4)."""
    if reason is None or reason == "":
        return b"+TERM"
    if not isinstance(reason, str):
        raise InvalidArgument("reason", reason, f"must be a str, not {type(reason).__name__}")
    if "\r" in reason or "\n" in reason:
        raise InvalidArgument("reason", reason, "must not contain CR or LF")
    try:
        return b"+TERM " + reason.encode()
    except UnicodeEncodeError:
        raise InvalidArgument("reason", reason, "must be encodable as UTF-8") from None


class Message(MessageBase, eq=False, gc=False):
    """A message of a consumer.

    The first terminal ack (``ack``, ``nak``, ``term``) counts; later ones are ignored. With ack policy none
    all of them do nothing. They raise only when the ack can't be sent.
    """

    async def ack(self) -> None:
        """Acknowledge: processed, do not deliver again. Returns when the ack is buffered for sending."""
        if self._wants_ack(ACK, terminal=True):
            outbox = self._owner.outbox
            if outbox.size >= FLUSH_AT:
                await outbox.give_way()

    async def ack_sync(self, timeout: float | None = None) -> None:
        """Acknowledge and wait until the server has recorded it (a double ack).

        Raises :class:`RequestTimeout` after ``timeout`` seconds (default: the context's). The ack may have
        been recorded anyway, and calling it again is safe.
        """
        owner = self._owner
        if self._acked or not owner.acks:
            return
        if not self.reply:
            raise NotJetStreamMessage(self.reply)
        await owner.core.request(self.reply, ACK, timeout=owner.api_timeout if timeout is None else timeout)
        self._acked = True

    async def nak(self, delay: float | timedelta | None = None) -> None:
        """Not processed: deliver it again, immediately or after ``delay`` seconds."""
        if self._wants_ack(nak_body(delay), terminal=True):
            await self._give_way()

    async def term(self, reason: str | None = None) -> None:
        """Never deliver it again. The server publishes an advisory, with the reason (2.10.4)."""
        if self._wants_ack(term_body(reason), terminal=True):
            await self._give_way()

    async def in_progress(self) -> None:
        """Still working on it: restart ack_wait. May be called often, before a terminal ack."""
        if self._wants_ack(PROGRESS, terminal=False):
            await self._give_way()

    def ack_next(
        self,
        n: int = 1,
        *,
        expires: float | None = None,
        no_wait: bool = False,
        idle_heartbeat: float | None = None,
        group: str | None = None,
    ) -> Fetch:
        """Acknowledge and ask for the next ``n`` messages in one publish; pull consumers only.

        The result is a fetch: ``await`` it for the batch, or ``async for`` over the messages. The options are
        those of ``fetch``. Nothing is sent before. If a terminal ack was already sent, or with ack policy
        none, it does nothing and the batch is empty.
        """
        from jetspark.jetstream.consume.ack_next import AckNext  # it imports this module

        options = FetchOptions(
            max_messages=n, expires=expires, no_wait=no_wait, idle_heartbeat=idle_heartbeat, group=group
        )
        return AckNext(self, options)

    async def _give_way(self) -> None:
        outbox: Outbox = self._owner.outbox
        if outbox.size >= FLUSH_AT:
            await outbox.give_way()
