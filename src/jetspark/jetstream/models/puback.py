"""The server's reply to a publish."""

import re
from typing import Annotated, Any

import msgspec

from jetspark.errors import ProtocolError
from jetspark.jetstream.errors import error_from_response

_INT64 = msgspec.Meta(ge=0, le=(1 << 63) - 1)
# Counters can have any size, but Python converts at most 4300 digits into a number.
_DECIMAL = re.compile(r"[+-]?[0-9]{1,4300}")


class PubAck(
    msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, repr_omit_defaults=True, gc=False
):
    """The message is stored and, with several replicas, replicated.

    Unlike the configs this is decoded directly from JSON: there may be hundreds of thousands per second,
    and nothing of it is ever sent back.
    """

    stream: str
    """Stream that stored it."""
    seq: Annotated[int, _INT64] = 0
    """Its sequence; for a duplicate, the sequence of the first one; for a batch, of its last message."""
    domain: str | None = None
    """JetStream domain of the stream."""
    duplicate: bool = False
    """The ``Nats-Msg-Id`` was seen within the duplicate window; nothing was stored."""
    val: str | None = None
    """Counter streams: the counter after the increment, as a decimal string (2.12)."""
    batch: str | None = None
    """Id of the batch this ack commits (2.12)."""
    count: Annotated[int, _INT64] | None = None
    """Number of messages in the batch (2.12)."""

    @property
    def value(self) -> int | None:
        """Counter streams: the counter after the increment; None for other streams (2.12)."""
        if self.val is None:
            return None
        if not _DECIMAL.fullmatch(self.val):
            raise ProtocolError(f"ack of a counter whose value is no number: {self.val!r:.100}")
        return int(self.val)

    @classmethod
    def from_response(cls, data: bytes) -> "PubAck":
        """From the reply to a publish; raises the :class:`~jetspark.jetstream.errors.ApiError` it carries, if
        any."""
        if b'"error"' in data:
            # Not proof: a stream may be named "error". The slow path checks properly.
            response = _decode_object(data)
            if response.get("error") is not None:
                raise error_from_response(response)
        try:
            return _DECODER.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"not a publish ack: {bytes(data[:100])!r}: {error}") from None

    def to_wire(self) -> dict[str, Any]:
        """The JSON object, with only the fields that are set."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire


_DECODER = msgspec.json.Decoder(PubAck)
decode_puback = _DECODER.decode
"""The fast path for a reply that is known to contain no error; raises what msgspec raises."""


def _decode_object(data: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a publish ack: {bytes(data[:100])!r}: {error}") from None
