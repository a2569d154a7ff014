"""Draining a connection: readers of push subscriptions ack what has arrived, then consumers are deleted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import ConsumerConfig
from jetspark.errors import DrainTimeout, JetsparkError, PushSubscriptionClosed
from jetspark.events import ConsumerDeleteFailed
from support.consuming import fill, make
from support.helpers import eventually
from support.pushing import no_consumers
from support.recorder import Recorder

if TYPE_CHECKING:
    from conftest import StartServer
    from jetspark import Message, PushSubscription
    from jetspark.server import Server

COUNT = 300


class Reader:
    """A task that waits at its first message, so that the others are buffered, and then acks each."""

    def __init__(self, sub: PushSubscription, how: str = "loop") -> None:
        self.sub = sub
        self.go = asyncio.Event()
        self.seen: list[int] = []
        self.failed: list[JetsparkError] = []
        self.task = asyncio.create_task(getattr(self, how)())

    async def loop(self) -> None:
        async for message in self.sub:
            await self.handle(message)

    async def anext(self) -> None:
        while True:
            try:
                message = await anext(self.sub)
            except StopAsyncIteration:
                return
            await self.handle(message)

    async def next(self) -> None:
        while True:
            try:
                message = await self.sub.next()
            except PushSubscriptionClosed:
                return
            await self.handle(message)

    async def handle(self, message: Message) -> None:
        self.seen.append(int(message.data))
        await self.go.wait()
        await asyncio.sleep(0)
        try:
            await message.ack_sync()
        except JetsparkError as error:
            self.failed.append(error)

    async def holds(self, count: int) -> None:
        await eventually(lambda: len(self.seen) + self.sub.pending == count and self.seen)


@pytest.fixture
async def filled(js: jetspark.JetStream) -> str:
    stream = await make(js)
    await fill(js, stream, COUNT)
    return stream.name


async def drained(nc: jetspark.Connection, reader: Reader) -> None:
    await reader.holds(COUNT)
    draining = asyncio.create_task(nc.drain())
    await eventually(lambda: reader.sub.closed)
    reader.go.set()
    await draining


@pytest.mark.parametrize("how", ["loop", "anext", "next"])
async def test_a_reader_gets_and_acks_what_has_arrived_and_the_consumer_is_deleted(
    server: Server, js: jetspark.JetStream, filled: str, how: str
) -> None:
    events = Recorder()
    nc = await jetspark.connect(server.url, listener=events)
    reader = Reader(await nc.jetstream().subscribe(f"{filled}.a", durable="d", delete_on_close=True), how)
    await drained(nc, reader)
    assert reader.task.done(), "the reader ends before the connection does"
    assert (reader.seen, reader.failed) == (list(range(COUNT)), [])
    assert await no_consumers(js, filled)
    assert events.of(ConsumerDeleteFailed) == []


async def test_an_ordered_subscription_too(server: Server, js: jetspark.JetStream, filled: str) -> None:
    nc = await jetspark.connect(server.url)
    reader = Reader(await nc.jetstream().subscribe(f"{filled}.a", ordered=True))
    await drained(nc, reader)
    assert (reader.task.done(), reader.seen) == (True, list(range(COUNT)))
    assert await no_consumers(js, filled)


async def test_a_consumer_that_was_there_stays_with_every_ack(
    server: Server, js: jetspark.JetStream, filled: str
) -> None:
    await js.create_consumer(
        filled, ConsumerConfig(durable_name="d", deliver_subject=js.connection.new_inbox())
    )
    nc = await jetspark.connect(server.url)
    reader = Reader(await nc.jetstream().subscribe(f"{filled}.a", durable="d"))
    await drained(nc, reader)
    assert reader.failed == []
    info = await js._consumer_info(filled, "d")
    assert (info.num_ack_pending, info.num_pending) == (0, 0)


async def test_a_subscription_that_was_drained_before_is_waited_for(
    server: Server, js: jetspark.JetStream, filled: str
) -> None:
    nc = await jetspark.connect(server.url)
    reader = Reader(await nc.jetstream().subscribe(f"{filled}.a", durable="d", delete_on_close=True))
    await reader.holds(COUNT)
    await reader.sub.drain()
    draining = asyncio.create_task(nc.drain())
    await eventually(lambda: nc.is_draining)
    reader.go.set()
    await draining
    assert (reader.task.done(), reader.seen, reader.failed) == (True, list(range(COUNT)), [])
    assert await no_consumers(js, filled)


@pytest.mark.parametrize("how", ["never read", "read by who drains", "left by a task that has ended"])
async def test_when_nobody_can_be_waited_for_the_consumer_is_deleted_all_the_same(
    server: Server, js: jetspark.JetStream, filled: str, how: str
) -> None:
    nc = await jetspark.connect(server.url)
    sub = await nc.jetstream().subscribe(f"{filled}.a", durable="d", delete_on_close=True)
    async with asyncio.timeout(10):
        if how == "read by who drains":
            await anext(sub)
        elif how != "never read":
            await asyncio.create_task(sub.next())
        await nc.drain()
    assert nc.is_closed
    assert await no_consumers(js, filled)


async def test_a_callback_may_drain_its_connection_and_the_consumer_is_deleted(
    server: Server, js: jetspark.JetStream, filled: str
) -> None:
    nc = await jetspark.connect(server.url)

    async def stop(message: Message) -> None:
        await nc.drain()

    sub = await nc.jetstream().subscribe(f"{filled}.a", callback=stop)
    await eventually(lambda: nc.is_closed)
    assert sub.closed
    assert await no_consumers(js, filled)


async def test_a_reader_that_does_not_end_is_named_and_the_consumer_that_stays_is_told_of(
    server: Server, js: jetspark.JetStream, filled: str
) -> None:
    events = Recorder()
    nc = await jetspark.connect(server.url, drain_timeout=0.3, listener=events)
    reader = Reader(await nc.jetstream().subscribe(f"{filled}.a", durable="d", delete_on_close=True))
    await reader.holds(COUNT)
    with pytest.raises(DrainTimeout):
        await nc.drain()
    assert nc.is_closed
    (event,) = events.of(ConsumerDeleteFailed)
    assert (event.stream, event.consumer) == (filled, "d")
    assert isinstance(event.error, DrainTimeout)
    reader.task.cancel()
    await asyncio.wait([reader.task])


async def test_a_deletion_that_fails_is_told_before_the_connection_is_closed(
    start_server: StartServer,
) -> None:
    guarded = start_server(
        name="keeper",
        config="""authorization { users = [ { user: keeper, password: pw,
          permissions: { publish: { deny: ["$JS.API.CONSUMER.DELETE.>"] } } } ] }""",
    )
    events = Recorder()
    nc = await jetspark.connect(guarded.url, user="keeper", password="pw", listener=events)
    stream = await make(nc.jetstream())
    await fill(nc.jetstream(), stream, COUNT)
    reader = Reader(await nc.jetstream().subscribe(f"{stream.name}.a", durable="d", delete_on_close=True))
    await drained(nc, reader)
    (event,) = events.of(ConsumerDeleteFailed)
    assert (event.stream, event.consumer) == (stream.name, "d")
    names: list[Any] = events.names()
    assert names.index("ConsumerDeleteFailed") < names.index("Closed")
