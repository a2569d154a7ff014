"""The ack reply subject of a delivered message (ADR-15 'JSAck') and the metadata it contains."""

from __future__ import annotations

import msgspec

from jetspark.errors import JetsparkError
from jetspark.jetstream.models.values import Timestamp, wire_number

_MAX_INT64 = (1 << 63) - 1


class NotJetStreamMessage(JetsparkError):
    """The message was not delivered by a JetStream consumer: its reply is not an ack subject."""

    def __init__(self, reply: str) -> None:
        super().__init__(
            f"reply {reply!r:.300} is not a JetStream ack subject ($JS.ACK with 9 tokens, or 11 and more): "
            "the message comes from core NATS, or from a consumer with ack policy none behind a re-mapping"
        )
        self.reply = reply


class SequencePair(msgspec.Struct, frozen=True):
    """The position of a message in its consumer and in its stream."""

    consumer: int
    stream: int


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """The server's metadata of a delivery."""

    stream: str
    consumer: str
    sequence: SequencePair
    num_delivered: int
    """1 for the first delivery, more for redeliveries."""
    num_pending: int
    """Messages of the consumer that were not yet delivered when this one was."""
    timestamp: Timestamp
    """When the server stored the message, to the nanosecond."""
    domain: str = ""
    """JetStream domain; empty if there is none (``_`` on the wire)."""


def parse_ack_reply(reply: str) -> Metadata:
    """Parse v1 (9 tokens) and v2 (11 or more; further tokens are ignored) replies.

    All five numbers must fit into 64 bits; stream sequence and time must fit as signed numbers, because Arrow
    stores them that way. The compiled core (``_speed_reply.h``) accepts no reply that is refused here.
    """
    tokens, first, (delivered, stream_seq, consumer_seq, timestamp, pending) = _read(reply)
    return Metadata(
        stream=tokens[first],
        consumer=tokens[first + 1],
        sequence=SequencePair(consumer_seq, stream_seq),
        num_delivered=delivered,
        num_pending=pending,
        timestamp=Timestamp.from_ns(timestamp),
        domain="" if first == 2 or tokens[2] == "_" else tokens[2],
    )


def position(reply: str) -> tuple[int, int]:
    """Only the stream sequence and the time (nanoseconds) of an ack reply."""
    _, _, (_, stream_seq, _, timestamp, _) = _read(reply)
    return stream_seq, timestamp


def _read(reply: str) -> tuple[list[str], int, tuple[int, int, int, int, int]]:
    """The tokens, the index of the stream's name among them, and the five numbers."""
    tokens = reply.split(".")
    count = len(tokens)
    if tokens[0] != "$JS" or count < 9 or count == 10 or tokens[1] != "ACK":
        raise NotJetStreamMessage(reply)
    first = 2 if count == 9 else 4
    delivered, stream_seq, consumer_seq, timestamp, pending = map(wire_number, tokens[first + 2 : first + 7])
    if (
        delivered is None
        or stream_seq is None
        or consumer_seq is None
        or timestamp is None
        or pending is None
        or stream_seq > _MAX_INT64
        or timestamp > _MAX_INT64
    ):
        raise NotJetStreamMessage(reply)
    return tokens, first, (delivered, stream_seq, consumer_seq, timestamp, pending)


def num_pending(reply: bytes) -> int:
    """How many messages are left for the consumer, according to an ack reply; 0 when it does not say."""
    tokens = reply.split(b".", 11)
    count = len(tokens)
    if count < 9 or count == 10 or tokens[0] != b"$JS" or tokens[1] != b"ACK":
        return 0
    return wire_number(tokens[8 if count == 9 else 10].decode("latin-1")) or 0


def sequences(reply: str) -> tuple[int, int]:
    """Only the consumer and stream sequence of an ack reply, which the order check needs."""
    tokens = reply.split(".", 9)
    count = len(tokens)
    if count < 9 or tokens[0] != "$JS" or tokens[1] != "ACK":
        raise NotJetStreamMessage(reply)
    if count == 9:
        stream_seq, consumer_seq = wire_number(tokens[5]), wire_number(tokens[6])
    elif "." in tokens[9]:
        stream_seq, consumer_seq = wire_number(tokens[7]), wire_number(tokens[8])
    else:
        # Domain and account come first. A reply with exactly ten tokens has neither form.
        raise NotJetStreamMessage(reply)
    if stream_seq is None or consumer_seq is None or stream_seq > _MAX_INT64:
        raise NotJetStreamMessage(reply)
    return consumer_seq, stream_seq
