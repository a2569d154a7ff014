"""Floods on whole connections: with a scripted server, and with the real one."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import AckPolicy, ConsumerConfig, StorageType, StreamConfig
from jetspark.arrow import consume_arrow
from jetspark.connection import flood as flood_module
from jetspark.connection.flood import (
    FULL_READ,
    LARGE_READS,
    QUIET_TICKS,
    TICK,
    Flood,
)
from support.fake_server import FakeServer, Peer
from support.helpers import eventually, unique

if TYPE_CHECKING:
    from jetspark.server import Server

pytestmark = pytest.mark.slow

# Far more than the two ticks that it may take, however busy the machine is, and far less than for ever.
SOON = 20.0
FOR_EVER = 3600.0


def raw_socket(nc: jetspark.Connection) -> Any:
    assert nc._link is not None
    assert nc._link._transport is not None
    return nc._link._transport.get_extra_info("socket")


# A whole connection

MESSAGE = b"MSG flood %b 128\r\n" + bytes(128) + b"\r\n"


async def flood_until_it_lasts(peer: Peer, lasts: Any) -> None:
    """Send messages until the client takes it for a flood."""
    chunk = MESSAGE % (await peer.sid("flood")).encode() * 4000
    for _ in range(1000):
        await peer.send(chunk)
        if lasts():
            return
    raise AssertionError("half a gigabyte is no flood")


class Ended:
    """The connection under test, and what its server's script waits for."""

    def __init__(self) -> None:
        self.nc: jetspark.Connection | None = None
        self.sent = asyncio.Event()

    def lasts(self) -> bool:
        link = None if self.nc is None else self.nc._link
        return link is not None and link._flood is not None and link._flood.lasts


async def test_a_message_behind_a_flood_arrives_and_then_all_is_as_before() -> None:
    state = Ended()

    async def script(peer: Peer) -> None:
        await peer.welcome()
        await flood_until_it_lasts(peer, state.lasts)
        for number in range(3):
            await peer.send(b"MSG last %b 1\r\n%d\r\n" % ((await peer.sid("last")).encode(), number))
            await peer.reply_of(f"go.{number}")
        await peer.stay()

    got = 0

    async def count(message: jetspark.Msg) -> None:
        nonlocal got
        got += 1

    async with FakeServer(script) as server, jetspark.connect(server.url) as nc:
        last = await nc.subscribe("last")
        await nc.subscribe("flood", callback=count, pending_messages_limit=0, pending_bytes_limit=0)
        await nc.flush()
        state.nc = nc
        assert (await last.next(timeout=60)).data == b"0"
        for number in range(3):
            await nc.publish(f"go.{number}")
            if number < 2:
                assert (await last.next(timeout=SOON)).data == b"%d" % (number + 1)
        await eventually(lambda: not state.lasts())
        assert nc._link is not None
        assert nc._link._transport.max_size == FULL_READ  # type: ignore[union-attr]
        assert raw_socket(nc).getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
        assert got > LARGE_READS
    assert server.errors == []


async def test_a_connection_lost_in_a_flood_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Ended()

    async def script(peer: Peer) -> None:
        await peer.welcome()
        await flood_until_it_lasts(peer, state.lasts)
        state.sent.set()

    async def ignore(message: jetspark.Msg) -> None:
        return None

    async with FakeServer(script) as server:
        async with jetspark.connect(server.url, reconnect=False) as nc:
            await nc.subscribe("flood", callback=ignore, pending_messages_limit=0, pending_bytes_limit=0)
            await nc.flush()
            assert nc._link is not None
            flood = nc._link._flood
            assert flood is not None
            # No tick helps.
            monkeypatch.setattr(flood_module, "TICK", FOR_EVER)
            state.nc = nc
            async with asyncio.timeout(60):
                await state.sent.wait()
            await eventually(lambda: nc.is_closed, timeout=SOON)
            assert flood._timer is None
        assert server.errors == []


# The real server

COUNT = 200_000


async def stored(nc: jetspark.Connection) -> tuple[str, jetspark.Stream]:
    name = unique("FLOOD")
    stream = await nc.jetstream().create_stream(
        StreamConfig(name=name, subjects=[f"{name}.>"], storage=StorageType.MEMORY)
    )
    data = bytes(128)
    async with nc.jetstream().publisher() as publisher:
        for _ in range(COUNT):
            await publisher.publish(f"{name}.a", data)
    return name, stream


@pytest.mark.parametrize(
    ("more", "beside", "mark"),
    [(True, False, FULL_READ), (False, False, 1), (True, True, 1)],
    ids=["more of the same", "a question", "a question beside it"],
)
async def test_who_asks_for_more_of_a_flood_does_not_end_it(
    server: Server, monkeypatch: pytest.MonkeyPatch, more: bool, beside: bool, mark: int
) -> None:
    monkeypatch.setattr(flood_module, "TICK", FOR_EVER)
    async with jetspark.connect(server.url) as nc:
        assert nc._link is not None
        flood = nc._link._flood
        assert flood is not None
        for _ in range(LARGE_READS):
            flood.on_read(FULL_READ, 0, [])
        assert raw_socket(nc).getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == FULL_READ
        sent = nc.stats.out_bytes
        nc._pub_volatile("a", b"b", "c", more=more)
        if beside:
            await nc.publish("a", b"b", reply="c")
        await eventually(lambda: nc.stats.out_bytes > sent)
        assert raw_socket(nc).getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == mark
        flood.on_write()


@pytest.mark.parametrize("options", [{}, {"max_messages": 50_000}], ids=["bytes", "messages"])
async def test_the_end_of_a_stream_does_not_wait_for_a_tick(
    server: Server, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(flood_module, "TICK", FOR_EVER)
    async with jetspark.connect(server.url) as other, jetspark.connect(server.url) as nc:
        name, stream = await stored(other)
        consumer = await (await nc.jetstream().get_stream(name)).create_consumer(
            ConsumerConfig(durable_name="c", ack_policy=AckPolicy.NONE)
        )
        assert nc._link is not None
        flood = nc._link._flood
        assert flood is not None
        # However the system cuts it, each read is taken for a part of a flood.
        monkeypatch.setattr(flood_module, "LARGE_READ", 1)
        flood.needed = 1
        got = slept = 0
        async with (
            asyncio.timeout(SOON),
            consume_arrow(consumer, columns=["sequence"], **options) as batches,
        ):
            async for batch in batches:
                slept += flood._sleeping
                got += batch.num_rows
                if got == COUNT:
                    break
        assert slept
        assert not flood._sleeping
        await stream.delete()


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, True), ({"max_bytes": 4_000_000}, False), ({"max_messages": 50_000}, False)],
    ids=["24 MiB", "4 MB", "messages"],
)
async def test_a_request_behind_a_lot_that_is_to_come_asks_for_more(
    server: Server, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], expected: bool
) -> None:
    async with jetspark.connect(server.url) as other, jetspark.connect(server.url) as nc:
        name, stream = await stored(other)
        consumer = await (await nc.jetstream().get_stream(name)).create_consumer(
            ConsumerConfig(durable_name="c", ack_policy=AckPolicy.NONE)
        )
        told: list[bool] = []
        publish = nc._pub_volatile

        def spy(subject: str, payload: bytes, reply: str, *, more: bool = False) -> None:
            told.append(more)
            publish(subject, payload, reply, more=more)

        monkeypatch.setattr(nc, "_pub_volatile", spy)
        got = 0
        async with (
            asyncio.timeout(60),
            consume_arrow(consumer, columns=["sequence"], **options) as batches,
        ):
            async for batch in batches:
                got += batch.num_rows
                if got == COUNT:
                    break
        first, *others = told
        assert not first, "whoever asks first waits for the answer"
        assert others
        assert set(others) == {expected}
        await consumer.fetch(1, no_wait=True)
        assert not told[-1]
        await stream.delete()


@pytest.mark.parametrize("form", ["messages", "arrow"])
async def test_a_lone_message_and_a_request_behind_a_flood(server: Server, form: str) -> None:
    async with jetspark.connect(server.url) as other, jetspark.connect(server.url) as nc:
        name, stream = await stored(other)
        consumer = await (await nc.jetstream().get_stream(name)).create_consumer(
            ConsumerConfig(durable_name="c", ack_policy=AckPolicy.NONE)
        )

        async def echo(message: jetspark.Msg) -> None:
            await message.respond(message.data)

        await other.subscribe(f"echo.{name}", callback=echo)
        await other.flush()

        async def after_the_flood() -> None:
            answer = await nc.request(f"echo.{name}", b"question", timeout=SOON)
            assert answer.data == b"question"
            await other.jetstream().publish(f"{name}.last", b"last")

        last = b""
        got = 0
        if form == "messages":
            async with asyncio.timeout(120), consumer.consume(max_messages=20_000) as messages:
                async for message in messages:
                    got += 1
                    last = message.data
                    if got == COUNT:
                        await after_the_flood()
                    if got > COUNT:
                        break
        else:
            async with asyncio.timeout(120), consume_arrow(consumer, columns=["data"]) as batches:
                async for batch in batches:
                    got += batch.num_rows
                    last = batch.column(0)[-1].as_py()
                    if got == COUNT:
                        await after_the_flood()
                    if got > COUNT:
                        break
        assert (got, last) == (COUNT + 1, b"last")
        assert nc._link is not None
        await eventually(lambda: raw_socket(nc).getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1)
        assert await nc.rtt() < SOON
        await stream.delete()
    assert TICK * QUIET_TICKS < SOON


async def test_large_answers_are_no_flood(server: Server) -> None:
    data = bytes(300_000)

    async def answer(message: jetspark.Msg) -> None:
        await message.respond(data)

    async with jetspark.connect(server.url) as other, jetspark.connect(server.url) as nc:
        subject = unique("LARGE")
        await other.subscribe(subject, callback=answer)
        await other.flush()
        assert nc._link is not None
        flood = nc._link._flood
        assert flood is not None
        for _ in range(10 * LARGE_READS):
            assert (await nc.request(subject)).data == data
            assert (flood.lasts, flood.needed) == (False, LARGE_READS)


async def test_fetches_of_large_messages_soon_wait_for_no_tick(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A fetch brings more than begins a flood, and its end has to be asked behind. That a busy server pauses
    # in the middle of one is no matter: what counts is the end, after which we ask again.
    slept = 0
    on_write = Flood.on_write

    def count(flood: Flood) -> None:
        nonlocal slept
        slept += bool(flood._slept_on)
        on_write(flood)

    monkeypatch.setattr(Flood, "on_write", count)
    count_of_one, fetches = 120, 60
    async with jetspark.connect(server.url) as other, jetspark.connect(server.url) as nc:
        name = unique("FETCH")
        js = other.jetstream()
        stream = await js.create_stream(
            StreamConfig(name=name, subjects=[name], storage=StorageType.MEMORY, max_msgs=count_of_one)
        )
        for _ in range(count_of_one):
            await js.publish(name, bytes(65_536))
        for _ in range(fetches):
            consumer = await (await nc.jetstream().get_stream(name)).create_consumer(
                ConsumerConfig(ack_policy=AckPolicy.NONE)
            )
            assert len(await consumer.fetch(count_of_one)) == count_of_one
            await nc.jetstream().delete_consumer(name, consumer.name)
        await stream.delete()
    # 16, 64, 256, 1024: with each time it takes four times as many reads.
    assert slept <= 4
