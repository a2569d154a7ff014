"""Ack a message and ask for the next ones in one publish (``+NXT``, ADR-15 'Ack Handling')."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetspark.connection.message import owner_of
from jetspark.errors import InvalidArgument
from jetspark.jetstream.consume.fetch import Fetch
from jetspark.jetstream.consume.pull import PullSink, PullTarget, Stash
from jetspark.jetstream.flow.ack_reply import NotJetStreamMessage
from jetspark.wire.commands import body_line

if TYPE_CHECKING:
    from jetspark.jetstream.flow.actions import SendPull
    from jetspark.jetstream.flow.options import FetchOptions
    from jetspark.jetstream.message import Message, MessageBase


class AckNextSink(PullSink):
    """A fetch whose first request goes to the ack subject of a message. Later requests, for example after a
    reconnect, are ordinary pulls."""

    def __init__(self, target: PullTarget, options: FetchOptions, message: MessageBase) -> None:
        super().__init__(target, options)
        self.asked = message.reply
        self._message: MessageBase | None = message

    def _send_pull(self, pull: SendPull) -> None:
        message, self._message = self._message, None
        if message is None:
            super()._send_pull(pull)
            return
        target = b"%b %b" % (message.reply.encode("utf-8", "surrogateescape"), self.subject.encode())
        body = b"+NXT " + pull.to_json()
        self.core.outbox.answer(target, body_line(body))
        message._acked = True
        if self.core.observer is not None:
            self.core.observer.acked(body)


class AckNext(Fetch):
    """The fetch that ``ack_next`` returns. Nothing is sent until it is awaited or iterated."""

    def __init__(self, message: MessageBase, options: FetchOptions) -> None:
        owner = owner_of(message)
        if not isinstance(owner, PullTarget):
            raise InvalidArgument("message", message.subject, "ack_next is for messages of pull consumers")
        stash = owner.stash
        super().__init__(owner, options, stash if stash is not None else Stash(owner, None))
        self._message = message

    def _start(self, stashed: list[Message]) -> PullSink | None:
        message = self._message
        if message._acked or not self._target.acks:
            return None
        if not message.reply:
            raise NotJetStreamMessage(message.reply)
        sink = AckNextSink(self._target, self._options, message)
        sink.start()
        return sink
