"""``consume`` as an iterator on the real server (ADR-37 'Consume'): buffer, requests, thresholds, the end."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from consuming import PullSpy, durable, fill, make, make_filled, numbers
from helpers import eventually
from jetspark import AckPolicy
from jetspark.errors import ConnectionClosed, ConnectionLost, InvalidArgument, NoServersAvailable
from jetspark.jetstream.pull import message_size
from monitoring import subscriptions

if TYPE_CHECKING:
    from jetspark import Consumer
    from jetspark.jetstream.consume import Consume
    from jetspark.jetstream.message import Message
    from jetspark.server import Cluster, Server

SECOND = 1_000_000_000


async def take(messages: Consume, count: int) -> list[Message]:
    """The next ``count`` messages; fails when they do not come."""
    async with asyncio.timeout(10):
        return [await anext(messages) for _ in range(count)]


async def waiting(consumer: Consumer, count: int) -> None:
    async def so() -> bool:
        return (await consumer.info()).num_waiting == count

    await eventually(so)


# --- the plain case and its defaults ---------------------------------------------------------------------


async def test_messages_in_order_and_those_that_come_later(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 3)
    async with consumer.consume() as messages:
        assert numbers(await take(messages, 3)) == [0, 1, 2]
        await fill(js, stream, 3, start=3)
        for message in await take(messages, 3):
            await message.ack()
        assert not messages.closed
    assert messages.closed
    assert message.data == b"5"


async def test_many_more_than_the_buffer_holds(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 3000)
    got: list[int] = []
    async with consumer.consume(max_messages=100) as messages:
        async for message in messages:
            await message.ack()
            got.append(int(message.data))
            assert messages.pending <= 100
            if len(got) == 3000:
                break
    assert got == list(range(3000))
    await eventually(lambda: _acked(consumer, 3000))


async def _acked(consumer: Consumer, floor: int) -> bool:
    return (await consumer.info()).ack_floor.stream_seq == floor


async def test_the_defaults_of_a_request(js: jetspark.JetStream, server: Server) -> None:
    _, consumer = await make_filled(js, 0)
    async with await PullSpy.on(server.url, consumer) as spy, consumer.consume():
        request = await spy.next()
    del request["reply"]
    assert request == {"batch": 500, "expires": 30 * SECOND, "idle_heartbeat": 15 * SECOND}


@pytest.mark.parametrize(
    ("options", "body"),
    [
        (
            {"max_messages": 7, "expires": 2},
            {"batch": 7, "expires": 2 * SECOND, "idle_heartbeat": SECOND},
        ),
        ({"expires": 1}, {"batch": 500, "expires": SECOND, "idle_heartbeat": SECOND // 2}),
        ({"expires": 120}, {"batch": 500, "expires": 120 * SECOND, "idle_heartbeat": 30 * SECOND}),
        (
            {"expires": 10, "idle_heartbeat": 0.5},
            {"batch": 500, "expires": 10 * SECOND, "idle_heartbeat": SECOND // 2},
        ),
        (
            {"max_bytes": 4000},
            {
                "batch": 1_000_000,
                "max_bytes": 4000,
                "expires": 30 * SECOND,
                "idle_heartbeat": 15 * SECOND,
            },
        ),
        (
            {"max_messages": 9, "max_bytes_per_request": 1000},
            {"batch": 9, "max_bytes": 1000, "expires": 30 * SECOND, "idle_heartbeat": 15 * SECOND},
        ),
        (
            {"max_messages": 9, "stop_after": 4},
            {"batch": 4, "expires": 30 * SECOND, "idle_heartbeat": 15 * SECOND},
        ),
    ],
)
async def test_options_of_a_request(
    js: jetspark.JetStream, server: Server, options: dict[str, Any], body: dict[str, Any]
) -> None:
    _, consumer = await make_filled(js, 0)
    async with await PullSpy.on(server.url, consumer) as spy, consumer.consume(**options):
        request = await spy.next()
    del request["reply"]
    assert request == body


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_messages": 10, "max_bytes": 1000}, "max_bytes"),
        ({"max_messages": 0}, "max_messages"),
        ({"max_messages": -1}, "max_messages"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"threshold_messages": 501}, "threshold_messages"),
        ({"max_messages": 10, "threshold_messages": 11}, "threshold_messages"),
        ({"max_bytes": 10, "threshold_bytes": 11}, "threshold_bytes"),
        ({"threshold_bytes": 11}, "threshold_bytes"),
        ({"expires": 0.999}, "expires"),
        ({"expires": -1}, "expires"),
        ({"idle_heartbeat": 0.4}, "idle_heartbeat"),
        ({"idle_heartbeat": 31, "expires": 100}, "idle_heartbeat"),
        ({"idle_heartbeat": 20}, "idle_heartbeat"),
        ({"stop_after": 0}, "stop_after"),
        ({"max_bytes": 10, "max_bytes_per_request": 5}, "max_bytes_per_request"),
        ({"concurrency": 2}, "concurrency"),
        ({"batches": True, "callback": print}, "batches"),
        ({"callback": 5}, "callback"),
        ({"callback": print, "concurrency": 0}, "concurrency"),
        ({"callback": print, "concurrency": True}, "concurrency"),
    ],
)
async def test_options_that_can_not_work(js: jetspark.JetStream, options: dict[str, Any], field: str) -> None:
    _, consumer = await make_filled(js, 0)
    with pytest.raises(InvalidArgument) as caught:
        consumer.consume(**options)
    assert caught.value.field == field


async def test_a_single_subscription_for_all_its_requests(
    js: jetspark.JetStream, nc: jetspark.Connection, server: Server
) -> None:
    _, consumer = await make_filled(js, 100)
    before = await subscriptions(server, nc)
    async with (
        await PullSpy.on(server.url, consumer) as spy,
        consumer.consume(max_messages=10) as messages,
    ):
        await take(messages, 100)
        during = await subscriptions(server, nc)
        assert len(during) == len(before) + 1
        (inbox,) = set(during) - set(before)
        replies = {(await spy.next())["reply"] for _ in range(10)}
        assert replies == {inbox}
    await eventually(lambda: _subscriptions_are(server, nc, before))


async def _subscriptions_are(server: Server, nc: jetspark.Connection, wanted: list[str]) -> bool:
    return await subscriptions(server, nc) == wanted


# --- refills -------------------------------------------------------------------------------------------


async def test_max_messages_1_never_stalls(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 200)
    began = time.monotonic()
    async with consumer.consume(max_messages=1) as messages:
        got = await take(messages, 200)
    assert numbers(got) == list(range(200))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("threshold", "batches"),
    [(None, [8, 4, 4]), (2, [8, 6, 6]), (7, [8, 1, 1]), (0, [8, 8, 8])],
)
async def test_a_refill_at_the_threshold_asks_for_all_the_room(
    js: jetspark.JetStream, server: Server, threshold: int | None, batches: list[int]
) -> None:
    _, consumer = await make_filled(js, 50)
    async with (
        await PullSpy.on(server.url, consumer) as spy,
        consumer.consume(max_messages=8, threshold_messages=threshold) as messages,
    ):
        await take(messages, 40)
        assert [(await spy.next())["batch"] for _ in batches] == batches


async def test_threshold_equal_to_the_limit_keeps_the_buffer_full(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 100)
    async with consumer.consume(max_messages=8, threshold_messages=8) as messages:
        assert numbers(await take(messages, 100)) == list(range(100))


async def test_nothing_is_pulled_while_nothing_is_processed(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 100)
    async with consumer.consume(max_messages=10, expires=1) as messages:
        await eventually(lambda: messages.pending == 10)
        await waiting(consumer, 0)
        # Longer than a request lives: still nothing more is asked for.
        began = time.monotonic()
        await eventually(lambda: time.monotonic() - began > 1.2)
        info = await consumer.info()
        assert (info.num_ack_pending, info.num_waiting, messages.pending) == (10, 0, 10)


# --- bytes ---------------------------------------------------------------------------------------------


async def test_a_buffer_of_bytes_is_never_above_its_limit(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 300, size=200)
    got: list[int] = []
    async with consumer.consume(max_bytes=3000) as messages:
        async for message in messages:
            got.append(int(message.data))
            buffered = messages._sink.buffer if messages._sink else ()
            assert sum(map(message_size, buffered)) <= 3000
            if len(got) == 300:
                break
    assert got == list(range(300))


async def test_a_buffer_of_bytes_that_fits_one_message(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 20, size=200)
    (first,) = await consumer.fetch(1)
    began = time.monotonic()
    async with consumer.consume(max_bytes=message_size(first) + 20) as messages:
        assert numbers(await take(messages, 19)) == list(range(1, 20))
    assert time.monotonic() - began < 5


async def test_messages_of_all_sizes_in_a_small_buffer_of_bytes(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0, ack_policy=AckPolicy.NONE)
    for number in range(120):
        await js.publish(f"{stream.name}.a", b"%d" % number + b" " * (number * 37 % 900))
    async with consumer.consume(max_bytes=1500) as messages:
        assert numbers(await take(messages, 120)) == list(range(120))


async def test_a_threshold_of_bytes(js: jetspark.JetStream, server: Server) -> None:
    _, consumer = await make_filled(js, 50, size=100, ack_policy=AckPolicy.NONE)
    (first,) = await consumer.fetch(1)
    size = message_size(first)
    async with (
        await PullSpy.on(server.url, consumer) as spy,
        consumer.consume(max_bytes=10 * size, threshold_bytes=3 * size) as messages,
    ):
        await eventually(lambda: messages.pending >= 9)
        assert (await spy.next())["max_bytes"] == 10 * size
        await take(messages, 6)
        await js._client.flush()
        assert spy.waiting == 0
        await take(messages, 2)
        assert 7 * size <= (await spy.next())["max_bytes"] <= 9 * size


async def test_max_messages_with_a_limit_of_bytes_for_each_request(
    js: jetspark.JetStream, server: Server
) -> None:
    _, consumer = await make_filled(js, 100, size=100)
    async with await PullSpy.on(server.url, consumer) as spy:
        async with consumer.consume(max_messages=40, max_bytes_per_request=1000) as messages:
            assert numbers(await take(messages, 100)) == list(range(100))
        requests = [await spy.next() for _ in range(5)]
    assert {request["max_bytes"] for request in requests} == {1000}
    assert max(request["batch"] for request in requests) <= 40


# --- the end -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"max_messages": 3}, {"max_messages": 1}, {"max_bytes": 700}])
async def test_stop_after(js: jetspark.JetStream, options: dict[str, Any]) -> None:
    _, consumer = await make_filled(js, 30, ack_policy=AckPolicy.NONE)
    async with consumer.consume(stop_after=8, **options) as messages:
        got = numbers([message async for message in messages])
        assert messages.closed
    assert got == list(range(8))
    if "max_bytes" not in options:
        # Nothing beyond them was requested, so nothing is lost either.
        assert numbers(await consumer.fetch(3)) == [8, 9, 10]


async def test_stop_after_in_batches(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 30, ack_policy=AckPolicy.NONE)
    async with consumer.consume(stop_after=8, batches=True) as batches:
        got = [number async for batch in batches for number in numbers(batch)]
    assert got == list(range(8))
    assert numbers(await consumer.fetch(1)) == [8]


async def test_batches(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 2000)
    got: list[int] = []
    count = 0
    async with consumer.consume(max_messages=200, batches=True) as batches:
        async for batch in batches:
            assert 0 < len(batch) <= 200
            count += 1
            got += numbers(batch)
            for message in batch:
                await message.ack()
            if len(got) >= 2000:
                break
    assert got == list(range(2000))
    assert count < 1000


async def test_stop_discards_what_is_buffered_and_the_server_delivers_it_again(
    js: jetspark.JetStream,
) -> None:
    _, consumer = await make_filled(js, 10, ack_wait=0.5)
    async with consumer.consume() as messages:
        await eventually(lambda: messages.pending == 10)
        (first,) = await take(messages, 1)
        await first.ack()
        await messages.stop()
        assert messages.closed
        assert messages.pending == 0
        assert [message async for message in messages] == []
        await messages.stop()
    await waiting(consumer, 0)
    again = await consumer.fetch(9, expires=5)
    assert [message.metadata.num_delivered for message in again] == [2] * 9


async def test_leaving_the_block_stops(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 3)
    async with consumer.consume() as messages:
        await take(messages, 1)
    assert messages.closed
    await waiting(consumer, 0)
    assert (await consumer.info()).num_ack_pending == 3


async def test_nothing_is_received_after_stop(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 3)
    async with consumer.consume() as messages:
        await take(messages, 3)
        await messages.stop()
        await waiting(consumer, 0)
        await fill(js, stream, 3, start=3)
        assert (await consumer.info()).num_pending == 3
        with pytest.raises(StopAsyncIteration):
            await anext(messages)


async def test_drain_hands_out_what_has_arrived_and_acks_still_work(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 20)
    got: list[Message] = []
    async with consumer.consume() as messages:
        await eventually(lambda: messages.pending == 20)
        got += await take(messages, 1)
        await messages.drain()
        await messages.drain()
        await waiting(consumer, 0)
        await fill(js, stream, 5, start=20)
        got += [message async for message in messages]
        assert messages.closed
        for message in got:
            await message.ack()
    assert numbers(got) == list(range(20))
    for message in got:
        assert message.is_acked
    info = await eventually(lambda: _info_with(consumer, num_ack_pending=0))
    assert info.ack_floor.stream_seq == 20


async def test_drain_without_acks_loses_nothing(js: jetspark.JetStream) -> None:
    """In the middle of a backlog, at many points: the server must not drop what it was about to send."""
    stream, _ = await make_filled(js, 3000)

    async def read(number: int) -> None:
        consumer = await durable(stream, durable_name=f"d{number}", ack_policy=AckPolicy.NONE)
        got: list[int] = []
        async with consumer.consume(max_messages=100) as messages:
            async for message in messages:
                got.append(int(message.data))
                if len(got) == 50 + 13 * number:
                    await messages.drain()
        assert got == list(range(len(got)))
        assert numbers(await consumer.fetch_no_wait(1)) == [len(got)]

    for first in range(0, 40, 10):
        await asyncio.gather(*(read(number) for number in range(first, first + 10)))


async def _info_with(consumer: Consumer, num_ack_pending: int) -> Any:
    info = await consumer.info()
    return info if info.num_ack_pending == num_ack_pending else None


async def test_drain_while_waiting_for_a_message_ends_the_iteration(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 0)
    async with consumer.consume() as messages:
        reader = asyncio.create_task(_all(messages))
        await waiting(consumer, 1)
        await messages.drain()
        assert await reader == []


async def _all(messages: Consume) -> list[Message]:
    return [message async for message in messages]


async def test_stop_while_waiting_for_a_message_ends_the_iteration(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 0)
    async with consumer.consume() as messages:
        reader = asyncio.create_task(_all(messages))
        await waiting(consumer, 1)
        await messages.stop()
        assert await reader == []


async def test_stop_and_drain_of_the_connection_at_once(server: Server) -> None:
    nc = await jetspark.connect(server.url)
    _, consumer = await make_filled(nc.jetstream(), 10)
    async with consumer.consume() as messages:
        await take(messages, 1)
        await asyncio.gather(messages.stop(), nc.drain())
    assert messages.closed
    assert nc.is_closed


async def test_a_wait_with_a_timeout_can_be_repeated_and_loses_nothing(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0, ack_policy=AckPolicy.NONE)
    async with consumer.consume() as messages:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(messages), 0.05)
        await fill(js, stream, 3)
        assert numbers(await take(messages, 3)) == [0, 1, 2]


async def test_cancelling_a_wait_at_any_moment_loses_nothing(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 200, ack_policy=AckPolicy.NONE)
    got: list[int] = []
    turns = 0
    async with consumer.consume(max_messages=10) as messages:
        while len(got) < 200:
            task = asyncio.ensure_future(anext(messages))
            for _ in range(turns % 3):
                await asyncio.sleep(0)
            turns += 1
            task.cancel()
            try:
                got.append(int((await task).data))
            except asyncio.CancelledError:
                await asyncio.sleep(0)
    assert got == list(range(200))


async def test_start_stop_and_start_again(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 5)
    for round_ in range(3):
        async with consumer.consume() as messages:
            for message in await take(messages, 5):
                await message.ack_sync()
                assert message.metadata.num_delivered == 1
        await fill(js, stream, 5, start=5 * (round_ + 1))
    assert (await consumer.info()).num_pending == 5


async def test_two_of_them_share_the_messages(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1000)
    got: list[list[int]] = [[], []]

    async def read(mine: list[int]) -> None:
        async with consumer.consume(max_messages=20) as messages:
            async for message in messages:
                mine.append(int(message.data))
                await message.ack()
                await asyncio.sleep(0)
                if sum(map(len, got)) == 1000:
                    done.set()

    done = asyncio.Event()
    readers = [asyncio.create_task(read(mine)) for mine in got]
    async with asyncio.timeout(20):
        await done.wait()
    for reader in readers:
        reader.cancel()
    await asyncio.wait(readers)
    assert sorted(got[0] + got[1]) == list(range(1000))
    assert all(got)


async def test_misuse(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1)
    messages = consumer.consume()
    with pytest.raises(InvalidArgument, match="async with"):
        aiter(messages)
    with pytest.raises(InvalidArgument, match="async with"):
        await anext(messages)
    with pytest.raises(InvalidArgument, match="async with"):
        await messages.stop()
    assert not messages.closed
    assert messages.pending == 0
    async with messages:
        with pytest.raises(InvalidArgument, match="once"):
            await messages.__aenter__()
    with pytest.raises(InvalidArgument, match="once"):
        async with messages:
            pass


async def test_two_tasks_may_iterate_one_of_them(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 100)
    async with consumer.consume(stop_after=100) as messages:
        first, second = await asyncio.gather(_all(messages), _all(messages))
    assert sorted(numbers(first + second)) == list(range(100))


# --- the connection ------------------------------------------------------------------------------------


async def test_closing_the_connection_ends_the_iteration(server: Server) -> None:
    nc = await jetspark.connect(server.url)
    _, consumer = await make_filled(nc.jetstream(), 0)
    async with consumer.consume() as messages:
        reader = asyncio.create_task(_all(messages))
        await waiting(consumer, 1)
        await nc.close()
        assert await reader == []
    with pytest.raises(ConnectionClosed):
        async with consumer.consume():
            pass


async def test_a_connection_lost_for_good_is_raised_behind_what_was_buffered(own_server: Server) -> None:
    async with jetspark.connect(own_server.url, max_reconnects=2, reconnect_wait=0.01) as nc:
        _, consumer = await make_filled(nc.jetstream(), 5)
        seen: list[Any] = []
        async with consumer.consume(on_error=seen.append) as messages:
            await eventually(lambda: messages.pending == 5)
            own_server.kill()
            await eventually(lambda: messages.closed)
            assert numbers(await take(messages, 5)) == [0, 1, 2, 3, 4]
            with pytest.raises(NoServersAvailable):
                await anext(messages)
            with pytest.raises(StopAsyncIteration):
                await anext(messages)
        assert [type(error) for error in seen] == [NoServersAvailable]


async def test_without_reconnect_the_loss_is_raised(own_server: Server) -> None:
    async with jetspark.connect(own_server.url, reconnect=False) as nc:
        _, consumer = await make_filled(nc.jetstream(), 1)
        async with consumer.consume() as messages:
            await take(messages, 1)
            own_server.kill()
            with pytest.raises(ConnectionLost):
                await anext(messages)


async def test_a_reconnect_pulls_again_at_once_and_checks_nothing(
    js: jetspark.JetStream, nc: jetspark.Connection, server: Server
) -> None:
    stream, consumer = await make_filled(js, 2)
    async with (
        jetspark.connect(server.url) as other,
        await other.subscribe("$JS.API.CONSUMER.INFO.>") as checks,
        await PullSpy.on(server.url, consumer) as spy,
    ):
        await other.flush()
        seen: list[Any] = []
        async with consumer.consume(on_error=seen.append) as messages:
            await take(messages, 2)
            await spy.next()
            for round_ in range(3):
                await nc.force_reconnect()
                again = await spy.next()
                # What was handed out and not yet counted keeps its room: at most a stride.
                assert again["batch"] >= 490
                await fill(js, stream, 1, start=2 + round_)
                assert numbers(await take(messages, 1)) == [2 + round_]
        await other.flush()
        assert checks.pending_messages == 0
        assert seen == []


async def test_started_while_disconnected_it_pulls_when_connected(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    _, consumer = await make_filled(js, 3)
    reconnecting = asyncio.create_task(nc.force_reconnect())
    await eventually(lambda: not nc.is_connected)
    async with consumer.consume() as messages:
        assert numbers(await take(messages, 3)) == [0, 1, 2]
    await reconnecting


async def test_drain_while_disconnected_hands_out_the_buffer_and_ends(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    _, consumer = await make_filled(js, 4)
    async with consumer.consume() as messages:
        await eventually(lambda: messages.pending == 4)
        reconnecting = asyncio.create_task(nc.force_reconnect())
        await eventually(lambda: not nc.is_connected)
        await messages.drain()
        assert numbers(await _all(messages)) == [0, 1, 2, 3]
        await reconnecting


@pytest.mark.parametrize("replicas", [1, 3])
async def test_in_a_cluster_start_stop_and_start_again(cluster: Cluster, replicas: int) -> None:
    async with jetspark.connect(cluster.urls) as nc:
        js = nc.jetstream(timeout=10)
        stream = await make(js, num_replicas=replicas)
        consumer = await durable(stream)
        for round_ in range(2):
            await fill(js, stream, 5, start=5 * round_)
            async with consumer.consume() as messages:
                got = await take(messages, 5)
                assert numbers(got) == list(range(5 * round_, 5 * round_ + 5))
                for message in got:
                    await message.ack_sync()
