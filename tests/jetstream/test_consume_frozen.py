"""``consume`` after missed heartbeats: what was written off must not live on beside what comes next."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import jetspark
from jetspark import AckPolicy
from jetspark.errors import MissedHeartbeat
from support.consuming import durable, fill, make, make_filled, numbers, take, waiting
from support.helpers import eventually
from support.lossy_proxy import LossyProxy
from support.monitoring import forgotten

if TYPE_CHECKING:
    from jetspark import Consumer
    from jetspark.server import Server


async def delivered(consumer: Consumer) -> int:
    return (await consumer.info()).delivered.consumer_seq


def alarms(seen: list[Exception]) -> int:
    return sum(isinstance(error, MissedHeartbeat) for error in seen)


@pytest.mark.parametrize("limit", [1, 10])
async def test_after_a_freeze_one_pull_waits_and_the_buffer_keeps_its_limit(
    own_server: Server, limit: int
) -> None:
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream()
        stream, consumer = await make_filled(js, 0)
        seen: list[Exception] = []
        async with consumer.consume(
            max_messages=limit, expires=2, idle_heartbeat=0.5, on_error=seen.append
        ) as messages:
            await waiting(consumer, 1)
            own_server.suspend()
            try:
                # Longer than the request lives: its 408 comes late, too.
                await eventually(lambda: alarms(seen) >= 4)
            finally:
                own_server.resume()
            await waiting(consumer, 1)
            await fill(js, stream, 5 * limit)
            await eventually(lambda: messages.pending == limit)
            await nc.flush()
            assert messages.pending == limit
            assert await delivered(consumer) == limit
            got = []
            for message in await take(messages, 5 * limit):
                got.append(message)
                await message.ack()
            assert numbers(got) == list(range(5 * limit))


async def test_messages_of_a_request_that_was_written_off_are_handed_out_and_counted(
    server: Server, js: jetspark.JetStream
) -> None:
    """They were on their way when the alarm came. Nothing waits for ack_wait, and nothing comes on top."""
    async with LossyProxy(server) as proxy, jetspark.connect(proxy.url) as nc:
        stream = await make(js)
        consumer = await durable(stream)
        mine = await nc.jetstream().get_consumer(stream.name, consumer.name)
        seen: list[Exception] = []
        async with mine.consume(
            max_messages=2, expires=2, idle_heartbeat=0.5, on_error=seen.append
        ) as messages:
            await waiting(consumer, 1)
            proxy.hold_down = True
            await fill(js, stream, 6)

            async def sent() -> bool:
                return await delivered(consumer) == 2

            await eventually(sent)
            await eventually(lambda: alarms(seen) >= 2)
            proxy.hold_down = False
            await eventually(lambda: messages.pending == 2)
            await nc.flush()
            assert messages.pending == 2
            assert await delivered(consumer) == 2
            assert numbers(await take(messages, 6)) == list(range(6))


async def test_the_late_end_of_a_request_that_was_written_off_is_not_booked_on_the_next(
    server: Server, js: jetspark.JetStream
) -> None:
    async with LossyProxy(server) as proxy, jetspark.connect(proxy.url) as nc:
        stream = await make(js)
        consumer = await durable(stream, ack_policy=AckPolicy.NONE)
        mine = await nc.jetstream().get_consumer(stream.name, consumer.name)
        seen: list[Exception] = []
        async with mine.consume(
            max_messages=1, expires=1, idle_heartbeat=0.5, on_error=seen.append
        ) as messages:
            await waiting(consumer, 1)
            # A heartbeat has come, so that the request ends before the alarm.
            before = nc.stats.in_msgs
            await eventually(lambda: nc.stats.in_msgs > before)
            proxy.hold_down = True
            await eventually(lambda: alarms(seen) >= 1 and b"408 Request Timeout" in proxy.held)
            proxy.hold_down = False
            await waiting(consumer, 1)
            await fill(js, stream, 5)
            await eventually(lambda: messages.pending == 1)
            await nc.flush()
            assert await delivered(consumer) == 1
            assert numbers(await take(messages, 5)) == list(range(5))


async def test_a_link_that_breaks_before_the_inbox_is_changed(server: Server, js: jetspark.JetStream) -> None:
    async with LossyProxy(server) as proxy, jetspark.connect(proxy.url) as nc:
        stream = await make(js)
        consumer = await durable(stream)
        mine = await nc.jetstream().get_consumer(stream.name, consumer.name)
        seen: list[Exception] = []
        async with mine.consume(
            max_messages=3, expires=2, idle_heartbeat=0.5, on_error=seen.append
        ) as messages:
            await waiting(consumer, 1)
            proxy.hold_down = True
            await eventually(lambda: alarms(seen) >= 1)
            before = nc.client_id
            await proxy.cut()
            await forgotten(server, before)
            await fill(js, stream, 7)
            assert numbers(await take(messages, 7)) == list(range(7))


@pytest.mark.parametrize("end", ["stop", "drain"])
async def test_ended_before_the_inbox_is_changed(server: Server, js: jetspark.JetStream, end: str) -> None:
    async with LossyProxy(server) as proxy, jetspark.connect(proxy.url) as nc:
        stream = await make(js)
        consumer = await durable(stream)
        mine = await nc.jetstream().get_consumer(stream.name, consumer.name)
        seen: list[Exception] = []
        async with mine.consume(expires=2, idle_heartbeat=0.5, on_error=seen.append) as messages:
            await waiting(consumer, 1)
            proxy.hold_down = True
            await eventually(lambda: alarms(seen) >= 1)
            await getattr(messages, end)()
            proxy.hold_down = False
            async with asyncio.timeout(10):
                assert [message async for message in messages] == []
        await nc.flush()
        await waiting(consumer, 0)
