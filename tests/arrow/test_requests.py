"""Pull requests of columns: heartbeats, the size of refills, and what a hanging server does to them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

import jetspark
from jetspark import AckPolicy, ConsumerConfig, StorageType, StreamConfig
from jetspark.arrow import DEFAULT_BUFFER, DEFAULT_THRESHOLD, ConsumeArrow, consume_arrow
from jetspark.errors import InvalidArgument, MissedHeartbeat
from jetspark.jetstream.flow.ack_reply import num_pending
from jetspark.server import Server
from support.consuming import PullSpy, fill, has_pending, make_filled
from support.helpers import eventually, unique

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jetspark import Consumer, Stream

COUNT = 5_000
BUFFER = 500


@pytest_asyncio.fixture
async def js(server: Server) -> AsyncIterator[jetspark.JetStream]:
    async with jetspark.connect(server.url) as nc:
        yield nc.jetstream()


async def filled(js: jetspark.JetStream, count: int = COUNT) -> tuple[Stream, Consumer]:
    """A stream and a consumer that has heard of all its messages."""
    stream, consumer = await make_filled(js, count, ack_policy=AckPolicy.NONE)
    await eventually(lambda: has_pending(consumer, count))
    return stream, consumer


async def rows(source: ConsumeArrow, count: int) -> list[int]:
    """The numbers that the next ``count`` rows carry; fails when they do not come."""
    found: list[int] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += map(int, (await anext(source)).column("data").to_pylist())
    assert len(found) == count
    return found


async def seen(js: jetspark.JetStream, spy: PullSpy) -> list[dict[str, Any]]:
    """The requests so far."""
    await js.connection.flush()
    await spy._nc.flush()
    return [await spy.next() for _ in range(spy.waiting)]


async def requests_for(server: Server, js: jetspark.JetStream, count: int, **config: Any) -> list[int]:
    """The bytes that each request of a default buffer asks for while messages of 0.9 MB are read."""
    name = unique()
    stream = await js.create_stream(StreamConfig(name=name, subjects=[name], storage=StorageType.MEMORY))
    for _ in range(count):
        await js.publish(name, bytes(900_000))
    consumer = await stream.create_consumer(
        ConsumerConfig(durable_name="c", ack_policy=AckPolicy.NONE, **config)
    )
    source = consume_arrow(consumer, columns=["sequence"])
    found = 0
    async with await PullSpy.on(server.url, consumer) as spy, source, asyncio.timeout(20):
        while found < count:
            found += (await anext(source)).num_rows
        requests = await seen(js, spy)
    await stream.delete()
    return [request["max_bytes"] for request in requests]


async def test_the_default_buffer_is_filled_up_in_quarters(server: Server, js: jetspark.JetStream) -> None:
    first, *others = await requests_for(server, js, 12)
    assert first == DEFAULT_BUFFER
    step = DEFAULT_BUFFER - DEFAULT_THRESHOLD
    assert step == DEFAULT_BUFFER // 4
    assert others, "10.8 MB are more than one step"
    # One read brings a few of these messages at most.
    assert all(step <= size < 2 * step + 1_048_576 for size in others)


@pytest.mark.parametrize(("waiting", "step"), [(15, DEFAULT_BUFFER // 2), (16, DEFAULT_BUFFER // 4)])
async def test_a_consumer_that_lets_few_requests_wait_gets_few(
    server: Server, js: jetspark.JetStream, waiting: int, step: int
) -> None:
    _, *others = await requests_for(server, js, 16, max_waiting=waiting)
    assert others, "14.4 MB are half of it and more"
    assert min(others) >= step


@pytest.mark.slow
async def test_a_buffer_of_three_eighths_of_max_pending_is_safe() -> None:
    """The server counts what it writes until all is written, and we may have asked for as much again."""
    assert DEFAULT_BUFFER == 64 * 1_048_576 * 3 // 8
    pending = 4 * 1_048_576
    with Server(config=f"max_pending: {pending}") as small:
        async with jetspark.connect(small.url) as nc:
            stream = await nc.jetstream().create_stream(StreamConfig(name="S", subjects=["s"]))
            async with nc.jetstream().publisher() as publisher:
                for _ in range(4_000):
                    await publisher.publish("s", bytes(10_000))
            for turn in range(8):
                consumer = await stream.create_consumer(
                    ConsumerConfig(durable_name=f"c{turn}", ack_policy=AckPolicy.NONE)
                )
                size = pending * 3 // 8
                found = 0
                async with (
                    asyncio.timeout(20),
                    consume_arrow(consumer, max_bytes=size, threshold_bytes=size * 3 // 4) as source,
                ):
                    async for batch in source:
                        found += batch.num_rows
                        if found == 4_000:
                            break
            assert nc.stats.reconnects == 0


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({"max_messages": 100}, 50),
        ({"max_messages": 100, "threshold_messages": 0}, 100),
        ({"max_messages": 100, "threshold_messages": 99}, 1),
    ],
    ids=["half", "none left", "any taken"],
)
async def test_how_much_may_be_left_when_it_is_filled_up(
    server: Server, js: jetspark.JetStream, options: dict[str, Any], least: int
) -> None:
    _, consumer = await filled(js, 300)
    source = consume_arrow(consumer, **options)
    async with await PullSpy.on(server.url, consumer) as spy, source:
        assert await rows(source, 300) == list(range(300))
        first, *others = [request["batch"] for request in await seen(js, spy)]
    assert first == 100
    assert others
    assert min(others) >= least
    assert sum(others) >= 200


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"threshold_messages": 1}, "threshold_messages"),
        ({"threshold_bytes": DEFAULT_BUFFER + 1}, "threshold_bytes"),
        ({"max_messages": 10, "threshold_messages": 11}, "threshold_messages"),
        ({"max_messages": 10, "threshold_bytes": 1}, "threshold_bytes"),
        ({"max_bytes": 1000, "threshold_bytes": -1}, "threshold_bytes"),
    ],
)
async def test_thresholds_that_fit_no_buffer(
    js: jetspark.JetStream, options: dict[str, Any], field: str
) -> None:
    _, consumer = await filled(js, 1)
    with pytest.raises(InvalidArgument, match=field):
        consume_arrow(consumer, **options)


@pytest.mark.parametrize("buffer", [{"max_messages": BUFFER}, {"max_bytes": 50_000}])
async def test_each_request_asks_for_heartbeats(
    server: Server, js: jetspark.JetStream, buffer: dict[str, int]
) -> None:
    """As ADR-37 has it, be it in the midst of a backlog."""
    _, consumer = await filled(js)
    source = consume_arrow(consumer, **buffer)
    async with await PullSpy.on(server.url, consumer) as spy, source:
        assert await rows(source, COUNT) == list(range(COUNT))
        requests = await seen(js, spy)
    assert len(requests) > 3
    assert {request["idle_heartbeat"] for request in requests} == {15_000_000_000}
    assert {request["expires"] for request in requests} == {30_000_000_000}


async def test_those_of_ordered_consumers_too(server: Server, js: jetspark.JetStream) -> None:
    stream, _ = await filled(js)
    consumer = await stream.create_ordered_consumer()
    source = consume_arrow(consumer, max_messages=BUFFER)
    async with await PullSpy.on(server.url, consumer) as spy, source:
        assert await rows(source, COUNT) == list(range(COUNT))
        requests = await seen(js, spy)
    assert len(requests) > 3
    assert all("idle_heartbeat" in request for request in requests)
    await consumer.close()


@pytest.mark.slow
@pytest.mark.parametrize("taken_away", ["purged", "paused", "consumed"])
async def test_a_backlog_that_goes_away_raises_no_alarm(
    server: Server, js: jetspark.JetStream, taken_away: str
) -> None:
    stream, consumer = await filled(js)
    alarms: list[Exception] = []
    # So long that a busy server is not late: the alarm comes after 10 s.
    source = consume_arrow(
        consumer, max_messages=BUFFER, expires=10.0, idle_heartbeat=5.0, on_error=alarms.append
    )
    async with await PullSpy.on(server.url, consumer) as spy, source:
        await eventually(lambda: source._source.pending == BUFFER)
        await spy.next()
        if taken_away == "purged":
            await stream.purge()
        elif taken_away == "paused":
            await consumer.pause(datetime.now(UTC) + timedelta(minutes=5))
        else:
            other = await consumer.fetch(COUNT - BUFFER)
            assert len(other) == COUNT - BUFFER
            await spy.next()
        assert await rows(source, BUFFER) == list(range(BUFFER))
        request = await spy.next()
        assert (request["batch"], request["expires"]) == (BUFFER, 10_000_000_000)
        if taken_away != "paused":
            # It still brings what comes. The reader does not take it, so it keeps its room.
            await fill(js, stream, 2, start=COUNT)
            await eventually(lambda: source._source.pending == 2)
        buffered = 0 if taken_away == "paused" else 2
        # Its time-out, behind a heartbeat: so no alarm.
        request = await spy.next()
        assert request["batch"] == BUFFER - buffered
        assert source._source.pending == buffered
        if taken_away == "paused":
            await consumer.resume()
            assert await rows(source, COUNT - BUFFER) == list(range(BUFFER, COUNT))
        else:
            await fill(js, stream, 98, start=COUNT + 2)
            assert await rows(source, 100) == list(range(COUNT, COUNT + 100))
    assert alarms == []


async def test_a_hanging_server_is_noticed(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        _, consumer = await filled(nc.jetstream())
        alarms: list[Exception] = []
        source = consume_arrow(
            consumer, max_messages=BUFFER, expires=1.0, idle_heartbeat=0.5, on_error=alarms.append
        )
        async with source:
            await eventually(lambda: source._source.pending == BUFFER)
            own_server.suspend()
            try:
                assert len(await rows(source, BUFFER)) == BUFFER
                await eventually(lambda: len(alarms) == 2)
            finally:
                own_server.resume()
            assert [type(alarm) for alarm in alarms[:2]] == [MissedHeartbeat, MissedHeartbeat]
            assert await rows(source, COUNT - BUFFER) == list(range(BUFFER, COUNT))


@pytest.mark.parametrize(
    ("reply", "left"),
    [
        (b"$JS.ACK.S.C.1.2.3.1700000000000000000.77", 77),
        (b"$JS.ACK.hub.acc.S.C.1.2.3.1700000000000000000.77", 77),
        (b"$JS.ACK._.acc.S.C.1.2.3.1700000000000000000.77.token.more", 77),
        (b"$JS.ACK.S.C.1.2.3.1700000000000000000.77.88", 0),
        (b"$JS.ACK.S.C.1.2.3.1700000000000000000.-7", 0),
        (b"$JS.ACK.S.C.1.2.3.1700000000000000000.", 0),
        (b"$JS.ACK.S.C.1.2.3.1700000000000000000." + b"9" * 21, 0),
        (b"$JS.API.S.C.1.2.3.1700000000000000000.77", 0),
        (b"_INBOX.abc", 0),
        (b"", 0),
    ],
)
def test_what_a_reply_says_is_left(reply: bytes, left: int) -> None:
    assert num_pending(reply) == left
