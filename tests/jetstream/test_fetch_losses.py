"""``fetch`` on the real server when it is cancelled, left, cut off or kept waiting: nothing is ever lost."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

import jetspark
from jetspark import AckPolicy
from jetspark.errors import ConnectionClosed, MissedHeartbeat, PullUnanswered
from jetspark.jetstream.consume.pull import message_size
from jetspark.wire.headers import HeaderBlock
from support.consuming import durable, fill, has_pull, make, make_filled, numbers, received
from support.helpers import FOREVER, PROMPT, eventually, unique

if TYPE_CHECKING:
    from jetspark import Consumer
    from jetspark.jetstream.flow.pull import PullFlow
    from jetspark.server import Server


async def no_pull_waits(consumer: Consumer) -> None:
    async def none() -> bool:
        return (await consumer.info()).num_waiting == 0

    await eventually(none)


async def arrived(consumer: Consumer, count: int) -> None:
    """Until the fetch under way has so many messages that it has not handed out."""
    await eventually(lambda: len(consumer._stash._waiting[0].buffer) == count)


# --- nothing is lost -----------------------------------------------------------------------------------


async def test_a_cancelled_fetch_leaves_its_messages_to_the_next_one(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 5, ack_policy=AckPolicy.NONE)
    waiting = asyncio.ensure_future(consumer.fetch(10, expires=10)._collect())

    async def delivered() -> bool:
        return (await consumer.info()).delivered.consumer_seq == 5

    await eventually(delivered)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await no_pull_waits(consumer)
    assert numbers(await consumer.fetch(2, expires=1)) == [0, 1]
    assert numbers(await consumer.fetch(10, expires=0.2)) == [2, 3, 4]


async def test_cancelling_at_any_moment_loses_nothing(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 300, ack_policy=AckPolicy.NONE)
    got: list[int] = []
    turns = 0
    while len(got) < 300:
        waiting = asyncio.ensure_future(consumer.fetch(7, expires=1)._collect())
        for _ in range(turns % 13):
            await asyncio.sleep(0)
        turns += 1
        waiting.cancel()
        try:
            got += numbers(await waiting)
        except asyncio.CancelledError:
            pass
        else:
            continue
        if turns % 3 == 0:
            got += numbers(await consumer.fetch(5, expires=0.5))
    assert sorted(got) == list(range(300))


async def test_leaving_the_loop_early_leaves_the_rest_to_the_next_fetch(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 6, ack_policy=AckPolicy.NONE)
    got: list[int] = []
    async for message in consumer.fetch(6):
        got.append(int(message.data))
        if len(got) == 2:
            break
    assert numbers(await consumer.fetch(10, expires=0.2)) == [2, 3, 4, 5]
    assert got == [0, 1]


async def test_an_exception_in_the_loop_leaves_the_rest_to_the_next_fetch(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 4, ack_policy=AckPolicy.NONE)

    async def failing() -> None:
        async for _ in consumer.fetch(10, expires=10):
            raise LookupError("user code")

    with pytest.raises(LookupError):
        await failing()
    await no_pull_waits(consumer)
    assert numbers(await consumer.fetch(3)) == [1, 2, 3]


async def test_an_iterator_can_be_closed(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 4, ack_policy=AckPolicy.NONE)
    iterator = aiter(consumer.fetch(4))
    assert int((await anext(iterator)).data) == 0
    await arrived(consumer, 3)
    await iterator.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(iterator)
    assert numbers(await consumer.fetch(3)) == [1, 2, 3]


async def test_consume_begins_with_what_a_cancelled_fetch_left(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 6, ack_policy=AckPolicy.NONE)
    iterator = aiter(consumer.fetch(4))
    await anext(iterator)
    await arrived(consumer, 3)
    await iterator.aclose()
    async with consumer.consume(max_messages=2, stop_after=5) as messages:
        assert messages.pending == 3
        assert numbers([message async for message in messages]) == [1, 2, 3, 4, 5]


async def test_what_consume_does_not_want_stays_for_the_next_fetch(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 4, ack_policy=AckPolicy.NONE)
    iterator = aiter(consumer.fetch(4))
    await anext(iterator)
    await arrived(consumer, 3)
    await iterator.aclose()
    async with consumer.consume(stop_after=1) as messages:
        assert numbers([message async for message in messages]) == [1]
    assert numbers(await consumer.fetch(2)) == [2, 3]


async def test_the_stash_respects_the_limits_of_the_next_fetch(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 5, size=100, ack_policy=AckPolicy.NONE)
    iterator = aiter(consumer.fetch(5))
    size = message_size(await anext(iterator))
    await arrived(consumer, 4)
    await iterator.aclose()
    batch = await consumer.fetch_bytes(2 * size + 10, expires=0.3)
    assert numbers(batch) == [1, 2]
    assert numbers(await consumer.fetch(1)) == [3]
    assert numbers(await consumer.fetch_bytes(size)) == [4]


async def test_what_the_server_delivers_again_is_not_kept(js: jetspark.JetStream) -> None:
    """After ack_wait a kept copy would be a second delivery beside the server's own."""
    _, consumer = await make_filled(js, 3, ack_wait=0.5)
    iterator = aiter(consumer.fetch(3))
    await (await anext(iterator)).ack()
    await arrived(consumer, 2)
    await iterator.aclose()
    stash = consumer._stash
    await eventually(lambda: stash._messages[0][0] < stash.loop.time())
    batch = await consumer.fetch(2, expires=10)
    assert [(int(m.data), m.metadata.num_delivered) for m in batch] == [(1, 2), (2, 2)]


async def test_with_max_deliver_1_a_kept_message_is_kept(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 2, ack_wait=0.2, max_deliver=1)
    iterator = aiter(consumer.fetch(2))
    await (await anext(iterator)).ack()
    await arrived(consumer, 1)
    await iterator.aclose()
    began = time.monotonic()
    await eventually(lambda: time.monotonic() - began > 0.3)
    assert numbers(await consumer.fetch(1, expires=0.5)) == [1]


async def test_the_status_of_an_old_fetch_reaches_no_other(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0)
    for _ in range(3):
        waiting = asyncio.ensure_future(consumer.fetch(1, expires=2)._collect())
        await eventually(lambda: has_pull(consumer))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    # Longer than all of those would have waited: their 408s would end it early.
    waiting = asyncio.ensure_future(consumer.fetch(1, expires=20)._collect())
    assert await consumer.fetch(1, expires=2.5) == []
    assert not waiting.done()
    await fill(js, stream, 1)
    assert numbers(await waiting) == [0]


async def test_no_pull_is_left_behind(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 3)
    assert numbers(await consumer.fetch(3)) == [0, 1, 2]
    assert await consumer.fetch(1, expires=0.1) == []
    assert await consumer.fetch_no_wait(1) == []
    waiting = [asyncio.ensure_future(consumer.fetch(1, expires=30)._collect()) for _ in range(5)]

    async def five() -> bool:
        return (await consumer.info()).num_waiting == 5

    await eventually(five)
    for one in waiting:
        one.cancel()
    await asyncio.wait(waiting)
    await no_pull_waits(consumer)


async def test_concurrent_fetches_share_the_messages(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 100, ack_policy=AckPolicy.NONE)
    batches = await asyncio.gather(*(consumer.fetch(10)._collect() for _ in range(10)))
    assert all(len(batch) == 10 for batch in batches)
    assert sorted(number for batch in batches for number in numbers(batch)) == list(range(100))


# --- servers that hang, connections that break -----------------------------------------------------------


@pytest.mark.slow
async def test_the_clients_deadline_is_later_than_expires_when_the_server_hangs(
    own_server: Server, gave_up: list[PullFlow]
) -> None:
    async with jetspark.connect(own_server.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 2)
        began = time.monotonic()
        waiting = asyncio.ensure_future(consumer.fetch(5, expires=2)._collect())
        await eventually(lambda: received(nc, 2))
        own_server.suspend()
        try:
            batch = await waiting
        finally:
            own_server.resume()
        assert numbers(batch) == [0, 1]
        assert isinstance(batch.error, PullUnanswered)
        assert time.monotonic() - began > 2.5
        assert len(gave_up) == 1


async def test_missed_heartbeats_end_a_fetch(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 2)
        waiting = asyncio.ensure_future(consumer.fetch(5, expires=FOREVER, idle_heartbeat=0.5)._collect())
        await eventually(lambda: received(nc, 2))
        own_server.suspend()
        began = time.monotonic()
        try:
            batch = await waiting
        finally:
            own_server.resume()
        assert numbers(batch) == [0, 1]
        assert isinstance(batch.error, MissedHeartbeat)
        assert time.monotonic() - began < PROMPT


@pytest.mark.slow
async def test_heartbeats_keep_a_long_fetch_alive(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 0)
    began = time.monotonic()
    batch = await consumer.fetch(1, expires=9, idle_heartbeat=4)
    assert batch == []
    assert batch.error is None
    assert time.monotonic() - began > 8.9


async def test_a_fetch_goes_on_after_a_reconnect(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream, consumer = await make_filled(js, 2)
    waiting = asyncio.ensure_future(consumer.fetch(4, expires=10)._collect())
    await eventually(lambda: has_pull(consumer))
    # What is on its way when the link breaks comes again only after ack_wait.
    await eventually(lambda: received(nc, 2))
    await nc.force_reconnect()
    await fill(js, stream, 2, start=2)
    assert numbers(await waiting) == [0, 1, 2, 3]


async def test_closing_the_connection_ends_a_fetch(server: Server) -> None:
    async with jetspark.connect(server.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 0)
        waiting = asyncio.ensure_future(consumer.fetch(4, expires=10)._collect())
        await eventually(lambda: has_pull(consumer))
    with pytest.raises(ConnectionClosed):
        await waiting
    with pytest.raises(ConnectionClosed):
        await consumer.fetch(1)


async def test_in_a_cluster(cluster: jetspark.server.Cluster) -> None:
    async with jetspark.connect(cluster.urls) as nc:
        js = nc.jetstream(timeout=10)
        stream = await make(js, num_replicas=3)
        consumer = await durable(stream)
        await fill(js, stream, 5)
        assert numbers(await consumer.fetch(5)) == [0, 1, 2, 3, 4]
        assert await consumer.fetch_no_wait(5) == []


# --- odd messages --------------------------------------------------------------------------------------


async def test_a_published_message_that_looks_like_a_status_is_a_message(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    """Anyone can store an empty message with a status line; it must neither vanish nor end anything."""
    stream, consumer = await make_filled(js, 0)
    block = b"NATS/1.0 409 Consumer Deleted\r\nA: b\r\n\r\n"
    nc._core.outbox.publish(f"{stream.name}.a", b"", headers=HeaderBlock(block))
    await js.publish(f"{stream.name}.a", b"1")
    batch = await consumer.fetch(2, expires=10)
    assert batch.error is None
    assert [message.data for message in batch] == [b"", b"1"]
    assert batch[0].headers["A"] == "b"
    assert batch[0].metadata.sequence.stream == 1


async def test_headers_only(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await js.publish(f"{stream.name}.a", b"0123456789", headers={"Colour": "red"})
    consumer = await durable(stream, headers_only=True)
    (message,) = await consumer.fetch(1)
    assert message.data == b""
    assert message.headers["Nats-Msg-Size"] == "10"
    assert message.headers["Colour"] == "red"
    await message.ack_sync()
    assert (await consumer.info()).num_ack_pending == 0


async def test_an_empty_message_with_headers_is_a_message(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0)
    await js.publish(f"{stream.name}.a", b"", headers={unique("H"): "1"})
    assert [message.data for message in await consumer.fetch(1, expires=10)] == [b""]
