"""Ending things: drain of a subscription and of a connection, and close."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

import jetspark
from jetspark.connection.client import core_of
from jetspark.errors import ConnectionClosed, DrainTimeout
from jetspark.events import CallbackFailed, Closed
from support.helpers import eventually, unique
from support.monitoring import subscriptions
from support.recorder import Recorder


async def publish_numbers(nc: jetspark.Connection, subject: str, *numbers: int) -> None:
    for number in numbers:
        await nc.publish(subject, b"%d" % number)
    await nc.flush()


# Draining a subscription


async def test_draining_a_subscription_lets_the_iterator_have_the_rest(server) -> None:
    subject = unique("drain")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        for number in range(100):
            await nc.publish(subject, b"%d" % number)
        await sub.drain()  # without a flush: they are still on their way
        assert sub.closed
        assert await subscriptions(server, nc) == []
        await publish_numbers(nc, subject, 100)
        assert [int(msg.data) async for msg in sub] == list(range(100))
        await sub.drain()
        assert nc.is_connected


async def test_draining_a_subscription_waits_for_its_callback(server) -> None:
    subject, seen = unique("drain"), []

    async def callback(msg: jetspark.Msg) -> None:
        await asyncio.sleep(0)
        seen.append(int(msg.data))

    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject, callback=callback)
        for number in range(1_000):
            await nc.publish(subject, b"%d" % number)
        await sub.drain()
        assert seen == list(range(1_000))


async def test_a_subscription_that_can_not_be_drained_in_time(server) -> None:
    subject, stuck = unique("drain"), asyncio.Event()
    async with jetspark.connect(server.url, drain_timeout=0.05) as nc:
        sub = await nc.subscribe(subject, callback=lambda msg: stuck.wait())
        await publish_numbers(nc, subject, 1, 2, 3)
        with pytest.raises(DrainTimeout, match="2 messages") as caught:
            await sub.drain()
        assert isinstance(caught.value, TimeoutError)
        assert subject in str(caught.value)
        assert nc.is_connected


async def test_a_callback_may_drain_its_own_subscription(server) -> None:
    subject, seen = unique("drain"), []
    async with jetspark.connect(server.url) as nc:

        async def callback(msg: jetspark.Msg) -> None:
            seen.append(int(msg.data))
            if len(seen) == 1:
                await sub.drain()

        sub = await nc.subscribe(subject, callback=callback)
        await publish_numbers(nc, subject, *range(5))
        await asyncio.wait([sub._sink._runner])
        assert (sub.closed, seen) == (True, [0, 1, 2, 3, 4])


# Draining a connection


async def test_drain_processes_what_is_in_flight_and_sends_what_callbacks_publish(server) -> None:
    subject, total = unique("drain"), 500
    async with jetspark.connect(server.url) as other:
        results = await other.subscribe(f"{subject}.result")
        await other.flush()
        nc = await jetspark.connect(server.url)

        async def callback(msg: jetspark.Msg) -> None:
            await asyncio.sleep(0)
            await nc.publish(f"{subject}.result", msg.data)

        await nc.subscribe(subject, callback=callback)
        for number in range(total):
            await nc.publish(subject, b"%d" % number)
        await nc.drain()
        assert nc.is_closed
        assert not nc.is_draining
        got = [int((await results.next()).data) for _ in range(total)]
    assert got == list(range(total))


async def test_drain_leaves_the_rest_to_iterators(server) -> None:
    subject = unique("drain")
    nc = await jetspark.connect(server.url)
    sub = await nc.subscribe(subject)
    for number in range(10):
        await nc.publish(subject, b"%d" % number)
    await nc.drain()
    assert [int(msg.data) async for msg in sub] == list(range(10))


async def test_a_request_in_a_callback_works_while_draining(server) -> None:
    subject, answers = unique("drain"), []
    async with jetspark.connect(server.url) as service:
        await service.subscribe(f"{subject}.ask", callback=lambda msg: msg.respond(b"yes"))
        await service.flush()
        nc = await jetspark.connect(server.url)

        async def callback(msg: jetspark.Msg) -> None:
            answers.append((await nc.request(f"{subject}.ask")).data)

        await nc.subscribe(subject, callback=callback)
        for _ in range(3):
            await nc.publish(subject)
        await nc.drain()
    assert answers == [b"yes"] * 3


async def test_while_draining_no_new_subscription_is_taken(server) -> None:
    subject, gate = unique("drain"), asyncio.Event()
    nc = await jetspark.connect(server.url)
    sub = await nc.subscribe(subject, callback=lambda msg: gate.wait())
    await publish_numbers(nc, subject, 1)
    draining = asyncio.create_task(nc.drain())
    await eventually(lambda: sub.closed)
    assert nc.is_draining
    with pytest.raises(ConnectionClosed, match="draining"):
        await nc.subscribe("a")
    await nc.drain()  # a second one does nothing
    assert not nc.is_closed
    gate.set()
    await draining
    assert nc.is_closed


async def test_a_connection_that_can_not_be_drained_in_time_is_closed_all_the_same(server) -> None:
    subject, events, stuck = unique("drain"), Recorder(), asyncio.Event()
    nc = await jetspark.connect(server.url, drain_timeout=0.05, listener=events)
    await nc.subscribe(subject, callback=lambda msg: stuck.wait())
    await publish_numbers(nc, subject, 1)
    with pytest.raises(DrainTimeout):
        await nc.drain()
    assert nc.is_closed
    assert nc._core.tasks == set()
    assert len(events.of(Closed)) == 1


async def test_a_callback_may_drain_its_own_connection(server) -> None:
    subject, other, seen = unique("drain"), unique("drain"), []
    nc = await jetspark.connect(server.url, drain_timeout=60)

    async def stop(msg: jetspark.Msg) -> None:
        await nc.drain()

    sub = await nc.subscribe(subject, callback=stop)
    await nc.subscribe(other, callback=lambda msg: seen.append(msg.data))
    await nc.publish(other, b"work")
    await nc.publish(subject, b"stop")
    async with asyncio.timeout(20):
        await asyncio.wait([sub._sink._runner])
    assert nc.is_closed
    assert nc.last_error is None
    assert seen == [b"work"]


@pytest.mark.parametrize("how", ["close", "drain"])
async def test_a_callback_may_end_the_connection(server, how: str) -> None:
    subject, events = unique("drain"), Recorder()
    nc = await jetspark.connect(server.url, listener=events)
    await nc.subscribe(subject, callback=lambda msg: getattr(nc, how)())
    await nc.publish(subject)
    await events.wait(Closed)
    assert events.of(CallbackFailed) == []


@pytest.mark.slow
async def test_draining_ten_thousand_subscriptions(server) -> None:
    base = unique("drain")
    nc = await jetspark.connect(server.url)
    subs = [await nc.subscribe(f"{base}.{number}") for number in range(10_000)]
    await nc.drain()
    assert all(sub.closed for sub in subs)


# Closing


async def test_close_sends_what_is_buffered(server) -> None:
    subject = unique("close")
    async with jetspark.connect(server.url) as other:
        sub = await other.subscribe(subject)
        await other.flush()
        nc = await jetspark.connect(server.url)
        for number in range(1_000):
            await nc.publish(subject, b"%d" % number + b" " * 1000)
        await nc.close()
        assert [int((await sub.next()).data) for _ in range(1_000)] == list(range(1_000))


async def test_everything_after_close_is_refused_by_name(server) -> None:
    nc = await jetspark.connect(server.url)
    sub = await nc.subscribe("a")
    await nc.close()
    calls = [
        nc.publish("a"),
        nc.subscribe("a"),
        nc.request("a"),
        anext(nc.request_many("a")),
        nc.flush(),
        nc.rtt(),
        nc.force_reconnect(),
        sub.next(),
    ]
    for call in calls:
        with pytest.raises(ConnectionClosed):
            await call
    assert (nc.is_closed, nc.is_connected, nc.connected_url) == (True, False, None)
    assert [msg async for msg in sub] == []
    assert "closed" in repr(nc)
    # What ends things may be called again.
    await nc.close()
    await nc.drain()
    await sub.unsubscribe()
    await sub.drain()


async def test_close_is_idempotent_and_safe_to_call_at_once(server) -> None:
    events = Recorder()
    nc = await jetspark.connect(server.url, listener=events)
    await asyncio.gather(*(nc.close() for _ in range(10)), nc.drain())
    assert nc.is_closed
    assert events.names() == ["Connected", "Closed"]
    assert events.of(Closed)[0].error is None


async def test_close_cuts_a_drain_short(server) -> None:
    subject, stuck = unique("close"), asyncio.Event()
    nc = await jetspark.connect(server.url)
    sub = await nc.subscribe(subject, callback=lambda msg: stuck.wait())
    await publish_numbers(nc, subject, 1)
    draining = asyncio.create_task(nc.drain())
    await eventually(lambda: sub.closed)
    await nc.close()
    async with asyncio.timeout(20):
        await draining
    assert nc.last_error is None


async def test_close_wakes_everybody_who_waits(server) -> None:
    nc = await jetspark.connect(server.url)
    sub = await nc.subscribe(unique("close"))

    async def read() -> list[bytes]:
        return [msg.data async for msg in sub]

    waiting = [asyncio.create_task(sub.next(timeout=30)), asyncio.create_task(read())]
    await eventually(lambda: len(sub._sink._waiters) == 2)
    await nc.close()
    first, second = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(first, ConnectionClosed)
    assert second == []


async def test_a_flush_under_way_ends_with_closed_not_with_lost(own_server) -> None:
    nc = await jetspark.connect(own_server.url)
    core_of(nc).options = replace(
        core_of(nc).options, connect_timeout=0.1
    )  # so long does close wait for the server
    own_server.suspend()
    flushing = asyncio.create_task(nc.flush(timeout=30))
    await eventually(lambda: nc._core.pongs)
    await nc.close()
    with pytest.raises(ConnectionClosed):
        await flushing
    own_server.resume()


async def test_messages_that_arrived_before_close_can_still_be_read(server) -> None:
    subject = unique("close")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        await publish_numbers(nc, subject, 1, 2)
    assert [int(msg.data) async for msg in sub] == [1, 2]


async def test_a_cancelled_close_still_closes(own_server) -> None:
    nc = await jetspark.connect(own_server.url, connect_timeout=60, write_buffer_size=1024)
    own_server.suspend()

    async def fill() -> None:
        while True:
            await nc.publish("a", b"x" * 65_536)

    filling = asyncio.create_task(fill())
    await eventually(lambda: nc._core.outbox.waiters)
    closing = asyncio.create_task(nc.close())
    await eventually(lambda: nc._core.closing)
    other = asyncio.create_task(nc.close())
    await asyncio.wait([filling])
    closing.cancel()
    await asyncio.wait([closing, other], timeout=20)
    assert (closing.cancelled(), other.done(), nc.is_closed) == (True, True, True)
    assert isinstance(filling.exception(), ConnectionClosed)
    own_server.resume()


async def test_async_with_closes_also_after_an_error(server) -> None:
    with pytest.raises(ZeroDivisionError):
        async with jetspark.connect(server.url) as nc:
            raise ZeroDivisionError
    assert nc.is_closed


async def test_no_task_is_left_after_close(server) -> None:
    before = asyncio.all_tasks()
    nc = await jetspark.connect(server.url, listener=Recorder())
    await nc.subscribe("a", callback=print)
    await nc.flush()
    await nc.close()
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("before", [False, True], ids=["at once", "drained before"])
async def test_drain_waits_for_a_loop_that_answers_what_has_arrived(server, before: bool) -> None:
    subject, total, go = unique("drain"), 200, asyncio.Event()
    nc = await jetspark.connect(server.url)
    async with jetspark.connect(server.url) as other:
        answers = await other.subscribe(f"{subject}.answer")
        await other.flush()
        sub = await nc.subscribe(subject)

        async def serve() -> None:
            async for msg in sub:
                await go.wait()
                await asyncio.sleep(0)
                await msg.respond(msg.data)

        serving = asyncio.create_task(serve())
        for number in range(total):
            await nc.publish(subject, b"%d" % number, reply=f"{subject}.answer")
        await eventually(lambda: sub.pending_messages == total - 1)
        if before:
            await sub.drain()
        draining = asyncio.create_task(nc.drain())
        await eventually(lambda: nc.is_draining and sub.closed)
        go.set()
        await draining
        assert serving.done()
        await serving
        assert [int((await answers.next()).data) for _ in range(total)] == list(range(total))


async def test_a_loop_that_does_not_end_is_named(server) -> None:
    subject, stuck = unique("drain"), asyncio.Event()
    nc = await jetspark.connect(server.url, drain_timeout=0.1)
    sub = await nc.subscribe(subject)

    async def read() -> None:
        async for _ in sub:
            await stuck.wait()

    reading = asyncio.create_task(read())
    await publish_numbers(nc, subject, 1, 2)
    await eventually(lambda: sub.pending_messages == 1)
    with pytest.raises(DrainTimeout):
        await nc.drain()
    assert nc.is_closed
    reading.cancel()
    await asyncio.wait([reading])


async def test_who_has_called_next_is_not_waited_for(server) -> None:
    subject, stuck = unique("drain"), asyncio.Event()
    nc = await jetspark.connect(server.url)
    sub = await nc.subscribe(subject)

    async def ask() -> None:
        await sub.next()
        await stuck.wait()

    asking = asyncio.create_task(ask())
    await publish_numbers(nc, subject, 1, 2)
    await eventually(lambda: sub.delivered == 1)
    async with asyncio.timeout(10):
        await nc.drain()
    stuck.set()
    await asking
