"""How ``consume`` ends on the real server (ADR-37 'Consume'): stop, drain, a lost connection, a restart."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import AckPolicy
from jetspark.errors import ConnectionClosed, ConnectionLost, InvalidArgument, NoServersAvailable
from support.consuming import PullSpy, durable, fill, has_pending, make, make_filled, numbers, take, waiting
from support.helpers import eventually

if TYPE_CHECKING:
    from jetspark import Consume, Consumer, Message
    from jetspark.server import Cluster, Server


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
    async with consumer.consume_batches(stop_after=8) as batches:
        got = [number async for batch in batches for number in numbers(batch)]
    assert got == list(range(8))
    assert numbers(await consumer.fetch(1)) == [8]


async def test_batches(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 2000)
    got: list[int] = []
    count = 0
    async with consumer.consume_batches(max_messages=200) as batches:
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
    _, consumer = await make_filled(js, 10, ack_wait=2)
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
    again = await consumer.fetch(9, expires=15)
    assert [message.metadata.num_delivered for message in again] == [2] * 9


async def test_leaving_the_block_stops(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 3)
    async with consumer.consume() as messages:
        await take(messages, 1)
        await eventually(lambda: messages.pending == 2)
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
        await eventually(lambda: has_pending(consumer, 3))
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
    await eventually(lambda: has_pending(consumer, 5))


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


async def broken(nc: jetspark.Connection) -> asyncio.Task[None]:
    """The task that reconnects; its first step breaks the link, a millisecond later there is a new one."""
    reconnecting = asyncio.create_task(nc.force_reconnect())
    await asyncio.sleep(0)
    assert not nc.is_connected
    return reconnecting


async def test_started_while_disconnected_it_pulls_when_connected(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    _, consumer = await make_filled(js, 3)
    reconnecting = await broken(nc)
    async with consumer.consume() as messages:
        assert numbers(await take(messages, 3)) == [0, 1, 2]
    await reconnecting


async def test_drain_while_disconnected_hands_out_the_buffer_and_ends(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    _, consumer = await make_filled(js, 4)
    async with consumer.consume() as messages:
        await eventually(lambda: messages.pending == 4)
        reconnecting = await broken(nc)
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
