"""AckPolicy, DeliverPolicy and late acks of the consumer reference, on the real server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import AckPolicy, ConsumerConfig, DeliverPolicy
from jetspark.errors import InvalidArgument
from support.consuming import durable, fill, make, make_filled, numbers
from support.deliveries import pushed, settled, take
from support.helpers import eventually, unique

if TYPE_CHECKING:
    from jetspark import Stream
    from jetspark.server import Server


# AckPolicy


async def test_ack_explicit_is_the_default_and_each_message_needs_its_own(js: jetspark.JetStream) -> None:
    stream, _ = await make_filled(js, 3)
    consumer = await stream.create_consumer(ConsumerConfig(durable_name="w", ack_wait=0.3))
    assert consumer.config.ack_policy is AckPolicy.EXPLICIT
    batch = await consumer.fetch(3)
    await batch[2].ack_sync()
    # The ack of the last says nothing about those before it.
    assert (await consumer.info()).ack_floor.stream_seq == 0
    again = await consumer.fetch(2, expires=5)
    assert sorted(numbers(again)) == [0, 1]
    assert [message.metadata.num_delivered for message in again] == [2, 2]


@pytest.mark.parametrize("dispatch", ["pull", "push"])
async def test_ack_none_takes_delivery_for_ack(
    js: jetspark.JetStream, nc: jetspark.Connection, dispatch: str
) -> None:
    stream = await make(js)
    await fill(js, stream, 3)
    if dispatch == "push":
        sub = await nc.subscribe(unique("deliver"))
        consumer = await durable(stream, ack_policy=AckPolicy.NONE, deliver_subject=sub.subject)
        await pushed(sub, 3)
    else:
        consumer = await durable(stream, ack_policy=AckPolicy.NONE)
        assert len(await consumer.fetch(3)) == 3
    info = await consumer.info()
    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 3)
    assert info.num_redelivered == 0


@pytest.mark.slow
async def test_ack_all_covers_what_every_pull_subscriber_has(js: jetspark.JetStream, server: Server) -> None:
    stream, consumer = await make_filled(js, 6, ack_policy=AckPolicy.ALL, ack_wait=5)
    async with jetspark.connect(server.url) as nc:
        other = await nc.jetstream().get_consumer(stream.name, "worker")
        ours = await consumer.fetch(3)
        theirs = await other.fetch(3)
        assert (numbers(ours), numbers(theirs)) == ([0, 1, 2], [3, 4, 5])
        await theirs[1].ack_sync()
    info = await consumer.info()
    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (1, 5)
    # Only what came after the ack is delivered again.
    assert set(numbers(await consumer.fetch(6, expires=7))) == {5}


async def test_ack_all_of_a_push_consumer(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream = await make(js)
    await fill(js, stream, 4)
    sub = await nc.subscribe(unique("deliver"))
    consumer = await durable(stream, ack_policy=AckPolicy.ALL, deliver_subject=sub.subject)
    got = await pushed(sub, 4)
    await nc.publish(got[2].reply, b"+ACK")
    info = await eventually(lambda: settled(consumer, 1))
    assert info.ack_floor.stream_seq == 3


async def test_an_ack_out_of_the_window_still_counts(js: jetspark.JetStream, server: Server) -> None:
    """Of two processes the first is late and its message went to the second; its ack counts all the same."""
    stream, consumer = await make_filled(js, 1, ack_wait=0.3)
    async with jetspark.connect(server.url) as nc:
        other = await nc.jetstream().get_consumer(stream.name, "worker")
        late = await take(consumer)
        again = await take(other)
        assert again.metadata.num_delivered == 2
        await late.ack()
        info = await eventually(lambda: settled(consumer, 0))
        assert info.ack_floor.stream_seq == 1
        # The second never acks, and nothing is delivered any more.
        assert await other.next(expires=0.8) is None


async def test_an_ack_of_a_message_that_waits_for_its_redelivery_counts(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1, ack_wait=0.2)
    late = await take(consumer)
    await asyncio.sleep(0.4)  # out of the window, and nobody has asked for it again
    await late.ack_sync()
    assert await consumer.next(expires=0.5) is None


# DeliverPolicy


async def prepared(js: jetspark.JetStream) -> Stream:
    """Two subjects in turn: a0 b1 a2 b3 a4."""
    stream = await make(js)
    for number in range(5):
        await js.publish(f"{stream.name}.{'ab'[number % 2]}", b"%d" % number)
    return stream


async def everything(stream: Stream, **config: Any) -> list[int]:
    consumer = await stream.create_consumer(ConsumerConfig(ack_policy=AckPolicy.NONE, **config))
    return numbers(await consumer.fetch(100, no_wait=True))


@pytest.mark.parametrize(
    ("policy", "filters", "found"),
    [
        (DeliverPolicy.ALL, [], [0, 1, 2, 3, 4]),
        (DeliverPolicy.ALL, ["b"], [1, 3]),
        (DeliverPolicy.LAST, [], [4]),
        (DeliverPolicy.LAST, ["b"], [3]),
        (DeliverPolicy.LAST, ["none"], []),
        (DeliverPolicy.LAST_PER_SUBJECT, ["*"], [3, 4]),
        (DeliverPolicy.LAST_PER_SUBJECT, ["a", "b"], [3, 4]),
        (DeliverPolicy.LAST_PER_SUBJECT, ["b"], [3]),
        (DeliverPolicy.NEW, [], []),
    ],
)
async def test_where_a_deliver_policy_starts(
    js: jetspark.JetStream, policy: DeliverPolicy, filters: list[str], found: list[int]
) -> None:
    stream = await prepared(js)
    subjects = [f"{stream.name}.{one}" for one in filters]
    options: dict[str, Any] = {"filter_subjects": subjects} if len(subjects) > 1 else {}
    if len(subjects) == 1:
        options["filter_subject"] = subjects[0]
    assert await everything(stream, deliver_policy=policy, **options) == found


async def test_the_default_is_all(js: jetspark.JetStream) -> None:
    stream = await prepared(js)
    assert ConsumerConfig().deliver_policy is DeliverPolicy.ALL
    assert await everything(stream) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("policy", "first"), [(DeliverPolicy.LAST, [4, 5]), (DeliverPolicy.LAST_PER_SUBJECT, [3, 4, 5])]
)
async def test_after_the_last_ones_the_new_ones_come(
    js: jetspark.JetStream, policy: DeliverPolicy, first: list[int]
) -> None:
    stream = await prepared(js)
    consumer = await durable(stream, deliver_policy=policy, filter_subject=f"{stream.name}.*")
    await fill(js, stream, 1, start=5)
    assert numbers(await consumer.fetch(100, no_wait=True)) == first


async def knows_of(consumer: jetspark.Consumer, count: int) -> bool:
    """A consumer hears of a message a moment after its ack; until then no_wait finds nothing."""
    return (await consumer.info()).num_pending == count


async def test_new_is_what_comes_after_the_consumer(js: jetspark.JetStream) -> None:
    stream = await prepared(js)
    consumer = await durable(stream, deliver_policy=DeliverPolicy.NEW)
    await fill(js, stream, 2, start=5)
    await eventually(lambda: knows_of(consumer, 2))
    assert numbers(await consumer.fetch(100, no_wait=True)) == [5, 6]


@pytest.mark.parametrize(("seq", "found"), [(1, [0, 1, 2, 3, 4, 5]), (4, [3, 4, 5]), (6, [5]), (99, [])])
async def test_by_start_sequence(js: jetspark.JetStream, seq: int, found: list[int]) -> None:
    stream = await prepared(js)
    consumer = await durable(stream, deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=seq)
    await fill(js, stream, 1, start=5)
    await eventually(lambda: knows_of(consumer, len(found)))
    assert numbers(await consumer.fetch(100, no_wait=True)) == found


async def test_by_start_sequence_of_a_deleted_message_starts_at_the_next(js: jetspark.JetStream) -> None:
    stream = await prepared(js)
    await stream.delete_msg(3)
    found = await everything(stream, deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=3)
    assert found == [3, 4]


async def test_by_start_time_is_at_or_after_it_to_the_nanosecond(js: jetspark.JetStream) -> None:
    stream = await prepared(js)
    policy = DeliverPolicy.BY_START_TIME
    moment = (await stream.get_msg(3)).timestamp
    assert await everything(stream, deliver_policy=policy, opt_start_time=moment) == [2, 3, 4]
    later = jetspark.models.Timestamp.from_ns(moment.ns + 1)
    assert await everything(stream, deliver_policy=policy, opt_start_time=later) == [3, 4]
    future = datetime.now(UTC) + timedelta(hours=1)
    assert await everything(stream, deliver_policy=policy, opt_start_time=future) == []


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"deliver_policy": "by_start_sequence"}, "opt_start_seq"),
        ({"deliver_policy": "by_start_time"}, "opt_start_time"),
        ({"opt_start_seq": 3}, "by_start_sequence"),
        ({"opt_start_time": datetime.now(UTC)}, "by_start_time"),
        ({"deliver_policy": "last_per_subject"}, "filter"),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 0}, "1 or more"),
    ],
)
async def test_policies_and_their_starts_go_together(
    js: jetspark.JetStream, config: dict[str, Any], text: str
) -> None:
    stream = await make(js)
    with pytest.raises(InvalidArgument, match=text):
        await durable(stream, **config)
