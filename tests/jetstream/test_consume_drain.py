"""Draining a connection lets loops over a consume finish what has arrived, and ack it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import ConsumerConfig
from jetspark.errors import DrainTimeout
from support.consuming import make_filled, numbers
from support.helpers import eventually

if TYPE_CHECKING:
    from jetspark import Consumer
    from jetspark.server import Server


class Reader:
    """A loop in a task of its own that waits before the first message, so that the others are buffered."""

    def __init__(self, consumer: Consumer, *, batches: bool = False) -> None:
        self.start: Any = consumer.consume_batches if batches else consumer.consume
        self.go = asyncio.Event()
        self.held = 0
        self.got: list[int] = []
        self.consume: Any = None

    async def run(self) -> None:
        async with self.start() as self.consume:
            await self.loop()

    async def loop(self) -> None:
        async for found in self.consume:
            messages = found if isinstance(found, list) else [found]
            self.held += len(messages)
            await self.go.wait()
            for message in messages:
                await asyncio.sleep(0.002)
                await message.ack()
                self.got += numbers([message])

    async def reads(self) -> None:
        """Wait until it has its first message and the rest is buffered."""
        await eventually(lambda: self.consume is not None and self.consume.closed is False)
        await eventually(lambda: self.held and self.held + self.consume.pending == 20)


async def drained(nc: jetspark.Connection, reader: Reader) -> None:
    """Drain while the reader has not begun."""
    task = asyncio.create_task(reader.run())
    await reader.reads()
    draining = asyncio.create_task(nc.drain())
    await eventually(lambda: nc.is_draining)
    reader.go.set()
    await draining
    assert task.done(), "the loop ends before the connection does"
    await task


@pytest.mark.parametrize("kind", ["pull", "batches", "push", "ordered"])
async def test_a_loop_gets_and_acks_what_has_arrived(
    js: jetspark.JetStream, server: Server, kind: str
) -> None:
    stream, consumer = await make_filled(js, 20)
    nc = await jetspark.connect(server.url)
    theirs: Any = await nc.jetstream().get_consumer(stream.name, "worker")
    if kind == "push":
        consumer = await stream.create_consumer(
            ConsumerConfig(durable_name="pushed", deliver_subject=nc.new_inbox())
        )
        theirs = await nc.jetstream().get_consumer(stream.name, "pushed")
    elif kind == "ordered":
        theirs = await nc.jetstream().create_ordered_consumer(stream.name)
    reader = Reader(theirs, batches=kind == "batches")
    await drained(nc, reader)
    assert reader.got == list(range(20))
    if kind != "ordered":
        await eventually(lambda: acked(consumer))


async def acked(consumer: Consumer) -> bool:
    info = await consumer.info()
    return (info.num_ack_pending, info.num_pending) == (0, 0)


async def test_all_who_share_a_consume_are_waited_for(js: jetspark.JetStream, server: Server) -> None:
    stream, consumer = await make_filled(js, 20)
    nc = await jetspark.connect(server.url)
    reader = Reader(await nc.jetstream().get_consumer(stream.name, "worker"))
    async with reader.start() as reader.consume:
        tasks = [asyncio.create_task(reader.loop()) for _ in range(3)]
        await eventually(lambda: reader.consume.pending == 17)
        draining = asyncio.create_task(nc.drain())
        await eventually(lambda: nc.is_draining)
        reader.go.set()
        await draining
        assert all(task.done() for task in tasks)
    assert sorted(reader.got) == list(range(20))
    await eventually(lambda: acked(consumer))


async def test_a_loop_that_waits_for_messages_ends_at_once(js: jetspark.JetStream, server: Server) -> None:
    stream, _ = await make_filled(js, 0)
    nc = await jetspark.connect(server.url)
    reader = Reader(await nc.jetstream().get_consumer(stream.name, "worker"))
    task = asyncio.create_task(reader.run())
    await eventually(lambda: reader.consume is not None and reader.consume._sink._waiters)
    async with asyncio.timeout(5):
        await nc.drain()
    assert task.done()
    await task


async def test_a_loop_may_drain_its_connection(js: jetspark.JetStream, server: Server) -> None:
    stream, _ = await make_filled(js, 20)
    nc = await jetspark.connect(server.url)
    theirs = await nc.jetstream().get_consumer(stream.name, "worker")
    seen = 0
    async with asyncio.timeout(5), theirs.consume() as messages:
        async for _ in messages:
            seen += 1
            if seen == 3:
                await nc.drain()
    assert nc.is_closed
    assert seen >= 3


@pytest.mark.parametrize("how", ["never read", "left by a task that has ended"])
async def test_a_consume_that_nobody_reads_is_not_waited_for(
    js: jetspark.JetStream, server: Server, how: str
) -> None:
    stream, _ = await make_filled(js, 20)
    nc = await jetspark.connect(server.url)
    theirs = await nc.jetstream().get_consumer(stream.name, "worker")
    async with asyncio.timeout(5), theirs.consume() as messages:
        if how != "never read":
            await asyncio.create_task(anext(messages))  # type: ignore[arg-type]
        await eventually(lambda: messages.pending >= 19)
        await nc.drain()
    assert nc.is_closed


async def test_a_consume_that_is_stopped_meanwhile_is_not_waited_for(
    js: jetspark.JetStream, server: Server
) -> None:
    stream, _ = await make_filled(js, 20)
    nc = await jetspark.connect(server.url)
    reader = Reader(await nc.jetstream().get_consumer(stream.name, "worker"))
    task = asyncio.create_task(reader.run())
    await reader.reads()
    draining = asyncio.create_task(nc.drain())
    await eventually(lambda: nc.is_draining)
    async with asyncio.timeout(5):
        await reader.consume.stop()
        await draining
    assert nc.is_closed
    task.cancel()
    await asyncio.wait([task])


async def test_a_loop_that_does_not_end_is_named(js: jetspark.JetStream, server: Server) -> None:
    stream, _ = await make_filled(js, 20)
    nc = await jetspark.connect(server.url, drain_timeout=0.3)
    reader = Reader(await nc.jetstream().get_consumer(stream.name, "worker"))
    task = asyncio.create_task(reader.run())
    await reader.reads()
    with pytest.raises(DrainTimeout):
        await nc.drain()
    assert nc.is_closed
    task.cancel()
    await asyncio.wait([task])
