"""``js.pull_subscribe`` (ADR-13) and ``msg.ack_next`` on the real server."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import AckPolicy, ConsumerConfig, PullSubscription, StreamConfig
from jetspark.errors import (
    ConsumerDeleted,
    ConsumerNotFound,
    InvalidArgument,
    NoConsumerResponders,
    PullSubscriptionClosed,
    PushConsumerError,
    StreamNotFound,
)
from support.consuming import PullSpy, fill, make, make_filled, numbers
from support.helpers import FOREVER, PROMPT, eventually, unique
from support.monitoring import subscriptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jetspark import Consumer, Stream
    from jetspark.server import Server


async def ack_floor(consumer: Consumer) -> int:
    return (await consumer.info()).ack_floor.stream_seq


async def no_pull_waits(sub: PullSubscription) -> None:
    async def none() -> bool:
        return (await sub.consumer_info()).num_waiting == 0

    await eventually(none)


# --- finding stream and consumer ----------------------------------------------------------------------


async def test_finds_the_stream_by_subject_and_makes_the_durable_once(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 3)
    first = await js.pull_subscribe(f"{stream.name}.a", "dur")
    assert (first.consumer.stream_name, first.consumer.name) == (stream.name, "dur")
    assert first.subject == f"{stream.name}.a"
    config = (await first.consumer_info()).config
    assert (config.durable_name, config.filter_subject) == ("dur", f"{stream.name}.a")
    assert config.ack_policy == AckPolicy.EXPLICIT
    (message,) = await first.fetch()
    await message.ack_sync()
    await first.unsubscribe()
    # The durable stays, and so does its position.
    second = await js.pull_subscribe(f"{stream.name}.a", "dur")
    assert numbers(await second.fetch(5)) == [1, 2]
    assert [name async for name in stream.consumer_names()] == ["dur"]


async def test_an_ephemeral_consumer_lives_as_long_as_the_subscription(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 2)
    async with await js.pull_subscribe(f"{stream.name}.>") as sub:
        assert numbers(await sub.fetch(2)) == [0, 1]
        assert [name async for name in stream.consumer_names()] == [sub.consumer.name]
    assert [name async for name in stream.consumer_names()] == []
    assert sub.closed


async def test_bind_to_an_existing_consumer(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 2)
    sub = await js.pull_subscribe(stream=stream.name, consumer=consumer.name)
    assert numbers(await sub.fetch(2)) == [0, 1]
    await sub.unsubscribe()
    assert (await consumer.info()).name == consumer.name


async def test_bind_to_a_consumer_that_is_not_there(js: jetspark.JetStream) -> None:
    stream = await make(js)
    with pytest.raises(ConsumerNotFound):
        await js.pull_subscribe(stream=stream.name, consumer="nobody")
    assert [name async for name in stream.consumer_names()] == []


async def test_no_stream_for_the_subject(js: jetspark.JetStream) -> None:
    with pytest.raises(StreamNotFound, match="no stream captures"):
        await js.pull_subscribe(unique("nowhere"), "dur")


async def test_a_push_consumer_is_refused(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream = await make(js)
    await stream.create_consumer(ConsumerConfig(durable_name="push", deliver_subject=nc.new_inbox()))
    with pytest.raises(PushConsumerError):
        await js.pull_subscribe(stream=stream.name, consumer="push")
    with pytest.raises(PushConsumerError):
        await js.pull_subscribe(f"{stream.name}.a", "push")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"config": ConsumerConfig(ack_policy=AckPolicy.NONE)}, "ack_policy"),
        ({"config": ConsumerConfig(ack_policy=AckPolicy.ALL)}, "ack_policy"),
        ({"config": ConsumerConfig(deliver_subject="x")}, "deliver_subject"),
        ({"config": ConsumerConfig(durable_name="other"), "durable": "dur"}, "durable"),
        ({"config": ConsumerConfig(filter_subject="other")}, "subject"),
        ({"consumer": "c", "durable": "dur"}, "durable"),
        ({"consumer": "c", "config": ConsumerConfig()}, "config"),
        ({"durable": "a.b"}, "durable"),
    ],
)
async def test_what_does_not_go_together(js: jetspark.JetStream, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await js.pull_subscribe("some.subject", stream="S", **options)
    assert caught.value.field == field


async def test_neither_subject_nor_stream(js: jetspark.JetStream) -> None:
    with pytest.raises(InvalidArgument, match="name the stream"):
        await js.pull_subscribe(durable="dur")


async def test_an_existing_durable_must_agree(js: jetspark.JetStream) -> None:
    stream = await make(js)
    subject = f"{stream.name}.a"
    config = ConsumerConfig(ack_wait=10.0, max_deliver=3)
    await js.pull_subscribe(subject, "dur", config=config)
    again = await js.pull_subscribe(subject, "dur", config=config)
    assert again.consumer.config.max_deliver == 3
    with pytest.raises(InvalidArgument, match="max_deliver"):
        await js.pull_subscribe(subject, "dur", config=ConsumerConfig(max_deliver=4))
    with pytest.raises(InvalidArgument, match="delivers"):
        await js.pull_subscribe(f"{stream.name}.b", "dur")


# --- fetch ----------------------------------------------------------------------------------------------


@pytest.fixture
async def sub(js: jetspark.JetStream) -> AsyncIterator[PullSubscription]:
    stream = await make(js)
    async with await js.pull_subscribe(f"{stream.name}.a", "dur") as subscription:
        yield subscription


async def stream_of(js: jetspark.JetStream, sub: PullSubscription) -> Stream:
    return await js.get_stream(sub.consumer.stream_name)


async def knows_of(sub: PullSubscription, count: int) -> bool:
    return (await sub.consumer_info()).num_pending == count


async def test_what_is_there_comes_at_once(js: jetspark.JetStream, sub: PullSubscription) -> None:
    await fill(js, await stream_of(js, sub), 3)
    # A consumer hears of a message a moment after its ack; until then there is nothing.
    await eventually(lambda: knows_of(sub, 3))
    begin = time.monotonic()
    batch = await sub.fetch(10, timeout=FOREVER)
    assert numbers(batch) == [0, 1, 2]
    assert batch.error is None
    assert time.monotonic() - begin < PROMPT
    assert sub.delivered == 3
    await no_pull_waits(sub)


async def test_nothing_is_an_empty_list_after_the_timeout(sub: PullSubscription) -> None:
    for batch in (1, 5):
        begin = time.monotonic()
        assert await sub.fetch(batch, timeout=0.3) == []
        assert time.monotonic() - begin >= 0.25
    await no_pull_waits(sub)


@pytest.mark.parametrize("batch", [1, 5])
async def test_waits_for_the_first_message(js: jetspark.JetStream, sub: PullSubscription, batch: int) -> None:
    waiting = asyncio.create_task(sub.fetch(batch, timeout=2))

    async def asked() -> bool:
        return (await sub.consumer_info()).num_waiting == 1

    await eventually(asked)
    await fill(js, await stream_of(js, sub), 1)
    assert numbers(await waiting) == [0]
    await no_pull_waits(sub)


async def test_batches_until_the_stream_is_empty(js: jetspark.JetStream, sub: PullSubscription) -> None:
    await fill(js, await stream_of(js, sub), 25)
    got: list[int] = []
    while batch := await sub.fetch(10, timeout=1.5):
        got += numbers(batch)
        for message in batch:
            await message.ack()
    assert got == list(range(25))


async def test_statuses_are_errors_and_never_messages(js: jetspark.JetStream, sub: PullSubscription) -> None:
    waiting = asyncio.create_task(sub.fetch(5, timeout=10))

    async def asked() -> bool:
        return (await sub.consumer_info()).num_waiting == 1

    await eventually(asked)
    await sub.consumer.delete()
    with pytest.raises(ConsumerDeleted):
        await waiting
    with pytest.raises(NoConsumerResponders):
        await sub.fetch(5, timeout=2)
    with pytest.raises(NoConsumerResponders):
        await sub.fetch(1, timeout=2)


async def test_cancelling_loses_nothing(js: jetspark.JetStream, sub: PullSubscription) -> None:
    stream = await stream_of(js, sub)
    waiting = asyncio.create_task(sub.fetch(1, timeout=10))

    async def asked() -> bool:
        return (await sub.consumer_info()).num_waiting == 1

    await eventually(asked)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await fill(js, stream, 3)
    got: list[int] = []
    while len(got) < 3:
        got += numbers(await sub.fetch(3, timeout=2))
    assert sorted(got) == [0, 1, 2]
    assert sub.pending == 0


async def test_no_inbox_is_left_behind(server: Server, js: jetspark.JetStream, sub: PullSubscription) -> None:
    stream = await stream_of(js, sub)
    await fill(js, stream, 4)
    core = js._core
    before = len(core.router.sinks)
    for batch in (2, 5, 5, 1):
        await sub.fetch(batch, timeout=0.2)
    # One that gave up before the server's word is kept for a round trip more.
    await eventually(lambda: len(core.router.sinks) == before)
    await core.flush()
    inboxes = [one for one in await subscriptions(server, core.message_owner) if one.startswith("_INBOX")]
    assert len(inboxes) <= 1  # that of requests


async def test_bad_arguments(sub: PullSubscription) -> None:
    for batch, timeout in ((0, 1), (True, 1), (1, 0), (1, -1), (1, True)):
        with pytest.raises(InvalidArgument):
            await sub.fetch(batch, timeout)
    with pytest.raises(InvalidArgument):
        await sub.unsubscribe(-1)


# --- requests on the wire -------------------------------------------------------------------------------


async def test_one_request_takes_what_is_there_or_waits(server: Server, js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0)
    sub = await js.pull_subscribe(stream=stream.name, consumer=consumer.name)
    async with await PullSpy.on(server.url, consumer) as spy:
        await sub.fetch(5, timeout=0.3)
        request = await spy.next()
        assert (request["batch"], request["no_wait"], request["expires"]) == (5, True, 290_000_000)
        await sub.fetch(1, timeout=0.3)
        request = await spy.next()
        assert (request["batch"], "no_wait" in request, request["expires"]) == (1, False, 290_000_000)
        assert spy.waiting == 0


async def test_a_fetch_survives_a_reconnect(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0)
    sub = await js.pull_subscribe(stream=stream.name, consumer=consumer.name)
    waiting = asyncio.create_task(sub.fetch(2, timeout=20))

    async def asked() -> bool:
        return (await consumer.info()).num_waiting == 1

    await eventually(asked)
    await js.connection.force_reconnect()
    await eventually(lambda: js.connection.is_connected)
    await fill(js, stream, 1)
    assert numbers(await waiting) == [0]


# --- unsubscribe ----------------------------------------------------------------------------------------


async def test_unsubscribe_ends_a_fetch_with_what_it_has(js: jetspark.JetStream) -> None:
    stream = await make(js)
    sub = await js.pull_subscribe(f"{stream.name}.a", "dur")
    waiting = asyncio.create_task(sub.fetch(5, timeout=30))

    async def asked() -> bool:
        return (await sub.consumer_info()).num_waiting == 1

    await eventually(asked)
    await sub.unsubscribe()
    with pytest.raises(PullSubscriptionClosed):
        await waiting
    with pytest.raises(PullSubscriptionClosed, match=stream.name):
        await sub.fetch()
    await sub.unsubscribe()
    await no_pull_waits(sub)


async def test_unsubscribe_after_so_many_messages(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 10)
    sub = await js.pull_subscribe(f"{stream.name}.a", "dur")
    assert numbers(await sub.fetch(2)) == [0, 1]
    await sub.unsubscribe(5)
    assert numbers(await sub.fetch(2)) == [2, 3]
    assert not sub.closed
    assert numbers(await sub.fetch(5)) == [4]
    assert sub.closed
    with pytest.raises(PullSubscriptionClosed):
        await sub.fetch()
    # Nothing beyond the limit was taken from the consumer.
    assert (await sub.consumer_info()).delivered.consumer_seq == 5


# --- ack_next -------------------------------------------------------------------------------------------


async def test_ack_next_acks_and_brings_the_next(server: Server, js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 4)
    (message,) = await consumer.fetch(1)
    async with await PullSpy.on(server.url, consumer) as spy:
        (second,) = await message.ack_next()
        assert message.is_acked
        assert numbers([second]) == [1]
        assert numbers(await second.ack_next(2)) == [2, 3]
        assert spy.waiting == 0  # not a single pull beside the acks
    assert await ack_floor(consumer) == 2


async def test_ack_next_is_one_publish_with_the_options(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 1)
    (message,) = await consumer.fetch(1)
    sub = await js.connection.subscribe("$JS.ACK." + stream.name + ".>")
    assert await message.ack_next(7, expires=0.4) == []
    sent = await sub.next(timeout=20)
    assert sent.reply.startswith("_INBOX.")
    kind, _, body = sent.data.partition(b" ")
    assert (kind, json.loads(body)) == (b"+NXT", {"batch": 7, "expires": 400_000_000})
    assert sub.pending_messages == 0
    await sub.unsubscribe()
    assert await ack_floor(consumer) == 1


async def test_ack_next_waits_and_can_be_iterated(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 1)
    (message,) = await consumer.fetch(1)

    async def collect() -> list[int]:
        return [int(one.data) async for one in message.ack_next(2, expires=20)]

    waiting = asyncio.create_task(collect())

    async def asked() -> bool:
        return (await consumer.info()).num_waiting == 1

    await eventually(asked)
    await fill(js, stream, 2, start=1)
    assert await waiting == [1, 2]


async def test_a_second_terminal_ack_is_ignored(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 3)
    (message,) = await consumer.fetch(1)
    await message.ack()
    assert await message.ack_next() == []
    assert [one async for one in message.ack_next()] == []
    (message,) = await consumer.fetch(1)
    (third,) = await message.ack_next()
    await message.nak()
    assert await message.ack_next() == []
    assert numbers([third]) == [2]
    info = await consumer.info()
    assert (info.ack_floor.stream_seq, info.num_redelivered) == (2, 0)


async def test_ack_next_without_acks_is_nothing(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 2, ack_policy=AckPolicy.NONE)
    (message,) = await consumer.fetch(1)
    assert await message.ack_next() == []
    assert numbers(await consumer.fetch(1)) == [1]


async def test_a_cancelled_ack_next_leaves_its_messages_to_the_consumer(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 1)
    (message,) = await consumer.fetch(1)
    messages = message.ack_next(3, expires=20)
    waiting = asyncio.ensure_future(messages)

    async def asked() -> bool:
        return (await consumer.info()).num_waiting == 1

    await eventually(asked)
    await fill(js, stream, 2, start=1)

    async def delivered() -> bool:
        return (await consumer.info()).num_ack_pending == 2

    await eventually(delivered)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert numbers(await consumer.fetch(2, expires=5)) == [1, 2]


async def test_ack_next_needs_a_positive_count(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1)
    (message,) = await consumer.fetch(1)
    with pytest.raises(InvalidArgument):
        message.ack_next(0)
    assert not message.is_acked


async def test_a_consumer_that_may_not_be_looked_at_is_pulled_from_all_the_same(start_server):
    """ADR-15 'Consumer name': a failed look-up is no error for a pull subscription."""
    server = start_server(
        config="""
        authorization: { users: [
            { user: admin, password: admin }
            { user: puller, password: puller, permissions: {
                publish: [ "$JS.API.CONSUMER.MSG.NEXT.S.worker", "$JS.ACK.>" ]
                subscribe: "_INBOX.>" } }
        ] }
        """
    )
    async with jetspark.connect(server.url, user="admin", password="admin") as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name="S", subjects=["s"]))
        worker = await stream.create_consumer(ConsumerConfig(durable_name="worker"))
        await js.publish("s", b"1")
        async with jetspark.connect(server.url, user="puller", password="puller") as other:
            pull = await other.jetstream().pull_subscribe(stream="S", consumer="worker")
            (message,) = await pull.fetch(1)
            assert message.data == b"1"
            await message.ack()
            await other.flush()
        await eventually(lambda: _acked(worker))


async def _acked(worker) -> bool:
    return (await worker.info()).ack_floor.stream_seq == 1
