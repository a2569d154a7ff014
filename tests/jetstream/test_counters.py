"""Counters of ADR-49 on the real server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from jetspark import Headers, PubAck, StoredMsg, StreamConfig, StreamSource, SubjectTransform
from jetspark.errors import (
    CountersDisabled,
    InvalidArgument,
    InvalidCounter,
    MessageNotFound,
    NoStreamResponse,
    ProtocolError,
)
from jetspark.jetstream.models.counter import delta_text
from jetspark.models import CounterValue, Timestamp
from support.helpers import eventually, unique

if TYPE_CHECKING:
    from jetspark import JetStream, Stream


async def make(js: JetStream, **config: Any) -> Stream:
    name = unique("CT")
    defaults = {"subjects": [f"{name}.>"], "allow_msg_counter": True, "allow_direct": True}
    return await js.create_stream(StreamConfig(name=name, **{**defaults, **config}))


async def test_increments_return_the_value(js: JetStream) -> None:
    stream = await make(js)
    hits = f"{stream.name}.hits"
    assert await js.increment(hits) == 1
    assert await js.increment(hits, 41) == 42
    assert await js.increment(hits, -50) == -8
    assert await js.increment(hits, 0) == -8
    assert await js.increment(hits, "+10") == 2
    assert await js.increment(f"{stream.name}.other", "5") == 5


async def test_numbers_of_any_size(js: JetStream) -> None:
    stream = await make(js)
    big = 10**300 + 7
    assert await js.increment(f"{stream.name}.a", big) == big
    assert await js.increment(f"{stream.name}.a", -1) == big - 1
    assert (await stream.counter(f"{stream.name}.a")).value == big - 1


async def test_many_at_once_count_exactly(js: JetStream) -> None:
    stream = await make(js)
    values = await asyncio.gather(*(js.increment(f"{stream.name}.a", 2) for _ in range(200)))
    assert sorted(values) == list(range(2, 402, 2))


@pytest.mark.parametrize("direct", [True, False])
async def test_reading_a_counter(js: JetStream, direct: bool) -> None:
    stream = await make(js, allow_direct=direct)
    subject = f"{stream.name}.a"
    with pytest.raises(MessageNotFound):
        await stream.counter(subject)
    await js.increment(subject, 5)
    await js.increment(subject, -2)
    assert await stream.counter(subject) == CounterValue(subject=subject, value=3, delta=-2, sequence=2)


async def test_reading_many(js: JetStream) -> None:
    stream = await make(js)
    for number in range(5):
        await js.increment(f"{stream.name}.{number}", number)
    values = {counter.subject: counter.value async for counter in stream.counters()}
    assert values == {f"{stream.name}.{number}": number for number in range(5)}
    assert [one.value async for one in stream.counters([f"{stream.name}.2", f"{stream.name}.4"])] == [2, 4]


async def test_a_retried_increment_counts_once(js: JetStream) -> None:
    stream = await make(js)
    subject = f"{stream.name}.a"
    assert await js.increment(subject, 3, msg_id="once") == 3
    assert await js.increment(subject, 1) == 4
    assert await js.increment(subject, 3, msg_id="once") == 4
    assert (await stream.counter(subject)).value == 4


async def test_sources_tell_what_they_contributed(js: JetStream) -> None:
    one, two = await make(js), await make(js)
    await js.increment(f"{one.name}.hits", 3)
    await js.increment(f"{two.name}.hits", 4)
    name = unique("CT")
    sources = [
        StreamSource(
            name=stream.name,
            subject_transforms=[SubjectTransform(src=f"{stream.name}.hits", dest=f"total.{name}")],
        )
        for stream in (one, two)
    ]
    total = await js.create_stream(
        StreamConfig(name=name, sources=sources, allow_msg_counter=True, allow_direct=True)
    )

    async def sum_is(value: int) -> bool:
        try:
            return (await total.counter(f"total.{name}")).value == value
        except MessageNotFound:
            return False

    await eventually(lambda: sum_is(7))
    await js.increment(f"{two.name}.hits", 10)
    await eventually(lambda: sum_is(17))
    counter = await total.counter(f"total.{name}")
    assert counter.sources == {one.name: {f"{one.name}.hits": 3}, two.name: {f"{two.name}.hits": 14}}


async def test_a_stream_without_the_flag(js: JetStream) -> None:
    stream = await make(js, allow_msg_counter=False)
    with pytest.raises(CountersDisabled, match="allow_msg_counter=True"):
        await js.increment(f"{stream.name}.a")
    await js.publish(f"{stream.name}.a", b"plain")
    with pytest.raises(InvalidCounter, match="no Nats-Incr header"):
        await stream.counter(f"{stream.name}.a")


async def test_what_a_counter_refuses(js: JetStream) -> None:
    stream = await make(js)
    with pytest.raises(InvalidCounter) as info:
        await js.publish(f"{stream.name}.a")
    assert info.value.err_code == 10169
    with pytest.raises(InvalidCounter) as info:
        await js.publish(f"{stream.name}.a", b"body", headers={"Nats-Incr": "+1"})
    assert info.value.err_code == 10170
    with pytest.raises(InvalidCounter) as info:
        await js.publish(f"{stream.name}.a", headers={"Nats-Incr": "one"})
    assert info.value.err_code == 10171
    with pytest.raises(NoStreamResponse):
        await js.increment(unique("nowhere"))


@pytest.mark.parametrize(
    ("delta", "text"),
    [(1, "+1"), (0, "+0"), (-7, "-7"), ("12", "+12"), ("-12", "-12"), ("+007", "+7"), (10**30, f"+{10**30}")],
)
def test_deltas(delta: int | str, text: str) -> None:
    assert delta_text(delta) == text


@pytest.mark.parametrize(
    "delta",
    [1.0, True, None, "", "1.5", "one", " 1", "--1", "\uff11", pytest.param(10**5000, id="huge"), "9" * 5000],
    ids=lambda delta: repr(delta)[:10],
)
def test_deltas_that_are_none(delta: Any) -> None:
    with pytest.raises(InvalidArgument) as info:
        delta_text(delta)
    assert info.value.field == "delta"


def test_the_value_in_an_ack() -> None:
    assert PubAck.from_response(b'{"stream":"S","seq":1,"val":"-12"}').value == -12
    assert PubAck.from_response(b'{"stream":"S","seq":1}').value is None


@pytest.mark.parametrize("data", [b"", b"{}", b'{"val":1}', b'{"val":"x"}', b"[]"])
def test_a_message_that_is_no_counter(data: bytes) -> None:
    message = StoredMsg(
        stream="S",
        subject="a",
        sequence=1,
        timestamp=Timestamp.from_ns(0),
        data=data,
        headers=Headers({"Nats-Incr": "+1"}),
    )
    with pytest.raises(ProtocolError, match="message 1 of 'a'"):
        CounterValue.from_message(message)
