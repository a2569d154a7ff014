"""A received core NATS message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from jetspark.errors import InvalidArgument
from jetspark.wire.headers import Headers, decode_headers, decode_status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class MsgBase(msgspec.Struct, eq=False, gc=False):
    """What messages of the async and the blocking API have in common.

    Made by the parser, so the fields are in the order of the arguments of the parser's factory.

    ``gc=False``: millions of messages live and die by reference count alone. None can be part of a cycle that
    outlives its subscription, because a closing subscription releases its buffer.
    """

    subject: str
    reply: str
    data: bytes
    #: The headers as received, including the status line; None if there are none.
    header_block: bytes | None
    _owner: Any
    _headers: Headers | None = None

    @property
    def headers(self) -> Headers:
        """The headers, parsed at first use; empty (and falsy) if there are none."""
        headers = self._headers
        if headers is None:
            headers = self._headers = decode_headers(self.header_block) if self.header_block else Headers()
        return headers

    @property
    def status(self) -> tuple[int, str] | None:
        """Code and description if this is a status from the server instead of a published message."""
        return decode_status(self.header_block) if self.header_block else None

    def _reply_subject(self) -> str:
        """The subject that an answer goes to; raises InvalidArgument if there is none."""
        if not self.reply:
            raise InvalidArgument("reply", self.reply, "this message has no reply subject to respond to")
        return self.reply

    def __repr__(self) -> str:
        reply = f", reply={self.reply!r}" if self.reply else ""
        headers = f", headers={self.headers.items()!r}" if self.header_block else ""
        data = self.data if len(self.data) <= 64 else self.data[:64] + b"..."
        return f"{type(self).__name__}(subject={self.subject!r}{reply}, data={data!r}{headers})"


def owner_of(message: MsgBase) -> Any:
    """What a message publishes through: its connection, or what a consumer's messages ack through."""
    return message._owner


class Responder(Protocol):
    """What a message needs from its connection."""

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Headers | Mapping[str, str | Sequence[str]] | None = None,
    ) -> None: ...


class Msg(MsgBase, eq=False, gc=False):
    """A message: ``subject``, ``reply`` (empty if there is none), ``data`` and ``headers``."""

    @property
    def _client(self) -> Responder:
        client: Responder = self._owner
        return client

    async def respond(
        self,
        data: bytes = b"",
        *,
        headers: Headers | Mapping[str, str | Sequence[str]] | None = None,
    ) -> None:
        """Publish an answer to this message's reply subject."""
        await self._client.publish(self._reply_subject(), data, headers=headers)
