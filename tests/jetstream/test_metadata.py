"""What a message tells of itself (ADR-15 'JSAck'): replies of both versions, and those that are none."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import jetspark
from jetspark import Message, Metadata
from jetspark.errors import NotJetStreamMessage
from jetspark.jetstream.flow.ack_reply import parse_ack_reply
from jetspark.models import SequencePair, Timestamp
from support.consuming import make, make_filled

NS = 1_622_131_904_123_456_789
V1 = f"$JS.ACK.ORDERS.worker.2.30.4.{NS}.5"
TAIL = f"ORDERS.worker.2.30.4.{NS}.5"


@pytest.mark.parametrize(
    ("reply", "domain"),
    [
        (V1, ""),
        (f"$JS.ACK._.hash.{TAIL}", ""),
        (f"$JS.ACK.hub.hash.{TAIL}", "hub"),
        (f"$JS.ACK.hub.hash.{TAIL}.random", "hub"),
        (f"$JS.ACK._.hash.{TAIL}.random.and.more", ""),
    ],
)
def test_replies_of_v1_and_v2(reply: str, domain: str) -> None:
    assert parse_ack_reply(reply) == Metadata(
        stream="ORDERS",
        consumer="worker",
        sequence=SequencePair(consumer=4, stream=30),
        num_delivered=2,
        num_pending=5,
        timestamp=Timestamp.from_ns(NS),
        domain=domain,
    )


def test_the_time_is_exact_to_the_nanosecond() -> None:
    assert parse_ack_reply(V1).timestamp == Timestamp.from_ns(NS)
    assert parse_ack_reply(V1).timestamp != Timestamp.from_ns(NS + 1)


@pytest.mark.parametrize("stream", ["ACK", "9", "über", "a-b_c=d"])
def test_names_are_taken_as_they_are(stream: str) -> None:
    assert parse_ack_reply(f"$JS.ACK.{stream}.ACK.1.1.1.1.0").stream == stream


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "foo",
        "_INBOX.abc",
        "$JS.ACK",
        f"$JS.NAK.{TAIL}",
        f"$KV.ACK.{TAIL}",
        f"$js.ack.{TAIL}",
        f"$JS.ACK.{TAIL}".removesuffix(".5"),  # 8 tokens
        f"$JS.ACK.hub.{TAIL}",  # 10 tokens
        V1.replace(".30.", ".x."),
        V1.replace(".30.", ".-30."),
        V1.replace(".30.", ".3_0."),
        V1.replace(".30.", "..").replace("..", ". ."),
        V1.replace(".30.", ".٣٠."),
        V1.replace(".2.", ".2e0."),
        V1 + "x",
        V1.removesuffix("5"),
    ],
)
def test_other_replies_are_errors(reply: str) -> None:
    with pytest.raises(NotJetStreamMessage) as caught:
        parse_ack_reply(reply)
    assert caught.value.reply == reply
    assert repr(reply) in str(caught.value)


async def test_a_core_message_has_no_metadata_and_can_not_be_acked(
    js: jetspark.JetStream,
) -> None:
    _, consumer = await make_filled(js, 0)
    message = Message("a", "", b"", None, consumer._target)
    with pytest.raises(NotJetStreamMessage):
        _ = message.metadata
    with pytest.raises(NotJetStreamMessage):
        await message.ack()
    with pytest.raises(NotJetStreamMessage):
        await message.ack_sync()
    assert not message.is_acked


async def test_metadata_on_the_real_server(js: jetspark.JetStream) -> None:
    before = datetime.now(UTC)
    stream, consumer = await make_filled(js, 3)
    first, second, _ = await consumer.fetch(3)
    assert first.subject == f"{stream.name}.a"
    assert first.data == b"0"
    assert not first.headers
    metadata = second.metadata
    assert metadata is second.metadata
    assert (metadata.stream, metadata.consumer, metadata.domain) == (stream.name, "worker", "")
    assert metadata.sequence == SequencePair(consumer=2, stream=2)
    assert (metadata.num_delivered, metadata.num_pending) == (1, 1)
    assert before <= metadata.timestamp <= datetime.now(UTC)
    await first.nak()
    (again,) = await consumer.fetch(1)
    assert again.metadata.sequence == SequencePair(consumer=4, stream=1)
    assert again.metadata.num_delivered == 2


async def test_the_time_is_that_of_the_stored_message(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 1)
    (message,) = await consumer.fetch(1)
    assert message.metadata.timestamp == (await stream.get_msg(1)).timestamp


async def test_headers_subject_and_data_of_a_message(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await js.publish(f"{stream.name}.a.b", b"\x00\r\n\xff", headers={"K": ["v1", "v2"], "Other": "ä"})
    consumer = await stream.create_consumer(jetspark.ConsumerConfig())
    (message,) = await consumer.fetch(1)
    assert (message.subject, message.data) == (f"{stream.name}.a.b", b"\x00\r\n\xff")
    assert message.headers.get_all("k") == ["v1", "v2"]
    assert message.headers["Other"] == "ä"
    assert message.reply.startswith(f"$JS.ACK.{stream.name}.")
    assert "a.b" in repr(message)
