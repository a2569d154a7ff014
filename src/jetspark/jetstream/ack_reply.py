"""The ack reply subject of a delivered message (ADR-15 'JSAck') and what it tells."""

from __future__ import annotations

import msgspec

from jetspark.errors import JetsparkError
from jetspark.jetstream.values import Timestamp


class NotJetStreamMessage(JetsparkError):
    """The message was not delivered by a JetStream consumer: its reply is no ack subject."""

    def __init__(self, reply: str) -> None:
        super().__init__(
            f"reply {reply!r} is not a JetStream ack subject ($JS.ACK with 9 tokens, or 11 and more): "
            "the message comes from core NATS, or from a consumer with ack policy none behind a re-mapping"
        )
        self.reply = reply


class SequencePair(msgspec.Struct, frozen=True):
    """Where a message stands in its consumer and in its stream."""

    consumer: int
    stream: int


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """What the server says of a delivery."""

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
    """JetStream domain; empty when there is none (``_`` on the wire)."""


def parse_ack_reply(reply: str) -> Metadata:
    """Read v1 (9 tokens) and v2 (11 and more; further ones are ignored) replies."""
    tokens = reply.split(".")
    count = len(tokens)
    if tokens[0] != "$JS" or count < 9 or count == 10 or tokens[1] != "ACK":
        raise NotJetStreamMessage(reply)
    domain = ""
    first = 2
    if count > 9:
        domain = "" if tokens[2] == "_" else tokens[2]
        first = 4
    numbers = tokens[first + 2 : first + 7]
    # isascii: int() alone would take digits of any script, signs and underscores. 20 digits hold a uint64.
    if not all(number.isascii() and number.isdigit() and len(number) <= 20 for number in numbers):
        raise NotJetStreamMessage(reply)
    delivered, stream_seq, consumer_seq, timestamp, pending = map(int, numbers)
    return Metadata(
        stream=tokens[first],
        consumer=tokens[first + 1],
        sequence=SequencePair(consumer_seq, stream_seq),
        num_delivered=delivered,
        num_pending=pending,
        timestamp=Timestamp.from_ns(timestamp),
        domain=domain,
    )


def num_pending(reply: bytes) -> int:
    """What an ack reply says is left for the consumer; 0 when it says nothing of it."""
    tokens = reply.split(b".", 11)
    count = len(tokens)
    if count < 9 or count == 10 or tokens[0] != b"$JS" or tokens[1] != b"ACK":
        return 0
    number = tokens[8 if count == 9 else 10]
    return int(number) if number.isdigit() and len(number) <= 20 else 0


def sequences(reply: str) -> tuple[int, int]:
    """Consumer and stream sequence of an ack reply: what the check needs, and no more of it."""
    tokens = reply.split(".", 9)
    count = len(tokens)
    try:
        if tokens[0] != "$JS" or tokens[1] != "ACK" or count < 9:
            raise NotJetStreamMessage(reply)
        if count == 9:
            return int(tokens[6]), int(tokens[5])
        # Domain and account come first; with exactly ten tokens it is neither form.
        if "." not in tokens[9]:
            raise NotJetStreamMessage(reply)
        return int(tokens[8]), int(tokens[7])
    except (IndexError, ValueError):
        raise NotJetStreamMessage(reply) from None
