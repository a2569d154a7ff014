"""Bulk reads: when the loop waits for more, that nothing is stuck behind it, and who switches it on."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

import jetspark
from jetspark import AckPolicy, ConsumerConfig, StorageType, StreamConfig
from jetspark.arrow import consume_arrow
from jetspark.connection import bulk_reads
from jetspark.connection.bulk_reads import LARGE_READ, WAIT_FOR, BulkReads
from jetspark.server import Server, ServerTLS
from support.helpers import eventually, unique
from support.pki import PKI

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jetspark import Consumer

# Far more than the tick that it may take, however busy the machine is, and far less than for ever.
SOON = 20.0
FOR_EVER = 3600.0


class Client(asyncio.Protocol):
    """The reading end of a connection: it notes what comes and tells nobody."""

    def __init__(self) -> None:
        self.data = b""
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._news = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self._news.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)

    async def until(self, expected: bytes) -> None:
        async with asyncio.timeout(SOON):
            while self.data != expected:
                self._news.clear()
                await self._news.wait()


class Pair:
    """A connection through the system; ``bulk`` is told of its reads by the tests."""

    def __init__(self, transport: Any, client: Client, writer: asyncio.StreamWriter) -> None:
        self.transport, self.client, self.writer = transport, client, writer
        self.bulk = BulkReads(transport)

    @property
    def mark(self) -> int:
        return mark_of(self.transport)


def mark_of(transport: Any) -> int:
    """Bytes that the kernel wakes us for."""
    found: int = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)
    return found


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result(writer)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    transport, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", port)
    made = Pair(transport, client, await accepted)
    yield made
    made.bulk.close()
    transport.abort()
    made.writer.transport.abort()
    await client.lost
    with contextlib.suppress(OSError):
        await made.writer.wait_closed()
    listener.close()
    await listener.wait_closed()


# --- one link ------------------------------------------------------------------------------------------


async def test_small_reads_never_wait(pair: Pair) -> None:
    for _ in range(100):
        pair.bulk.on_read(LARGE_READ - 1)
    assert (pair.mark, pair.bulk.waits, pair.bulk._timer) == (1, False, None)


async def test_little_behind_a_large_read_waits_for_the_tick_and_no_longer(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_reads, "TICK", 0.3)
    pair.bulk.on_read(LARGE_READ)
    begun = time.monotonic()
    assert pair.mark == WAIT_FOR
    pair.writer.write(b"little")
    await pair.client.until(b"little")
    assert time.monotonic() - begun > 0.25
    assert (pair.mark, pair.bulk.waits, pair.bulk._timer) == (1, False, None)


async def test_the_tick_counts_from_the_last_read(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_reads, "TICK", 0.2)
    pair.bulk.on_read(LARGE_READ)
    for _ in range(5):
        await asyncio.sleep(0.08)
        pair.bulk.on_read(LARGE_READ)
        last = time.monotonic()
        assert pair.bulk.waits
    await eventually(lambda: not pair.bulk.waits)
    assert time.monotonic() - last > 0.15


async def test_enough_wakes_without_a_tick(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_reads, "TICK", FOR_EVER)
    pair.bulk.on_read(LARGE_READ)
    pair.writer.write(bytes(2 * WAIT_FOR))
    await eventually(lambda: len(pair.client.data) >= WAIT_FOR)


async def test_a_write_wakes_and_the_next_large_read_waits_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_reads, "TICK", FOR_EVER)
    pair.bulk.on_read(LARGE_READ)
    pair.writer.write(b"answer")
    pair.bulk.on_write()
    await pair.client.until(b"answer")
    pair.bulk.on_read(6)
    assert pair.mark == 1
    pair.bulk.on_read(LARGE_READ)
    assert pair.mark == WAIT_FOR


async def test_at_the_end_all_is_as_before(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_reads, "TICK", FOR_EVER)
    pair.bulk.on_read(LARGE_READ)
    pair.writer.write(b"little")
    timer = pair.bulk._timer
    assert timer is not None
    pair.bulk.end()
    assert timer.cancelled()
    assert pair.mark == 1
    await pair.client.until(b"little")


@pytest.mark.parametrize("way", ["close", "reset"])
async def test_a_lost_connection_is_noticed_without_a_tick(
    pair: Pair, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_reads, "TICK", FOR_EVER)
    pair.bulk.on_read(LARGE_READ)
    assert pair.mark == WAIT_FOR
    if way == "reset":
        own = pair.writer.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        pair.writer.transport.abort()
    else:
        pair.writer.write(b"the last words")
        pair.writer.close()
    async with asyncio.timeout(SOON):
        error = await asyncio.shield(pair.client.lost)
    assert isinstance(error, ConnectionResetError) == (way == "reset")
    assert pair.client.data == (b"" if way == "reset" else b"the last words")


async def test_ticks_after_the_socket_is_gone_do_no_harm(pair: Pair) -> None:
    pair.bulk.on_read(LARGE_READ)
    pair.transport.abort()
    await asyncio.shield(pair.client.lost)
    await eventually(lambda: not pair.bulk.waits)
    pair.bulk.on_read(LARGE_READ)
    pair.bulk.end()


# --- where nothing changes -----------------------------------------------------------------------------


class NoSetting:
    """Such as TLS or uvloop's: no max_size."""


class SmallReads:
    """Somebody has chosen to read less at once than we would wait for."""

    max_size = 1000


async def test_other_transports_and_systems_are_left_alone(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not BulkReads.possible(None)
    assert not BulkReads.possible(NoSetting())
    assert not BulkReads.possible(SmallReads())
    assert BulkReads.possible(pair.transport)
    monkeypatch.setattr("sys.platform", "darwin")
    assert not BulkReads.possible(pair.transport)


@pytest.mark.parametrize("first", [False, True])
async def test_tls_is_left_alone(tmp_path: Any, first: bool) -> None:
    pki = PKI(tmp_path)
    tls = ServerTLS(cert=pki.server.cert, key=pki.server.key, handshake_first=first)
    with Server(jetstream=False, tls=tls) as server:
        async with jetspark.connect(server.url, tls_ca=pki.ca, tls_handshake_first=first) as nc:
            nc._core.bulk_reads(True)
            assert nc._core.link is not None
            assert nc._core.link._bulk is None
            assert await nc.rtt() > 0
            nc._core.bulk_reads(False)


# --- who switches it on --------------------------------------------------------------------------------

COUNT = 20_000


def reads_in_bulk(nc: jetspark.Connection) -> bool:
    assert nc._core.link is not None
    return nc._core.link._bulk is not None


async def filled(nc: jetspark.Connection, count: int = COUNT) -> tuple[str, jetspark.Stream]:
    name = unique("BULK")
    stream = await nc.jetstream().create_stream(
        StreamConfig(name=name, subjects=[f"{name}.>"], storage=StorageType.MEMORY)
    )
    async with nc.jetstream().publisher() as publisher:
        for _ in range(count):
            await publisher.publish(f"{name}.a", bytes(128))
    return name, stream


async def consumer_of(nc: jetspark.Connection, name: str, durable: str = "c") -> Consumer:
    return await (await nc.jetstream().get_stream(name)).create_consumer(
        ConsumerConfig(durable_name=durable, ack_policy=AckPolicy.NONE)
    )


@pytest.mark.parametrize(
    ("options", "bulk"),
    [
        ({}, True),
        ({"max_bytes": 1_048_576}, True),
        ({"max_bytes": 1_000_000}, False),
        ({"max_messages": 50_000}, True),
        ({"max_messages": 500}, False),
    ],
    ids=["default", "1 MiB", "1 MB", "50,000 messages", "500 messages"],
)
async def test_a_reader_with_a_large_buffer_reads_in_bulk_until_its_end(
    server: Server, options: dict[str, Any], bulk: bool
) -> None:
    async with jetspark.connect(server.url) as other, jetspark.connect(server.url) as nc:
        name, stream = await filled(other)
        got = 0
        async with consume_arrow(await consumer_of(nc, name), columns=["sequence"], **options) as batches:
            assert not reads_in_bulk(nc), "no row has come"
            async for batch in batches:
                assert reads_in_bulk(nc) is bulk
                got += batch.num_rows
                if got == COUNT:
                    break
        assert not reads_in_bulk(nc)
        assert mark_of(nc._core.link._transport) == 1  # type: ignore[union-attr]
        assert nc._core.bulk_readers == other._core.bulk_readers == 0
        await stream.delete()


async def test_several_readers_share_it_and_a_new_link_has_it_too(server: Server) -> None:
    async with jetspark.connect(server.url) as nc:
        name, stream = await filled(nc, 10)
        first = consume_arrow(await consumer_of(nc, name, "one"))
        second = consume_arrow(await (await nc.jetstream().get_stream(name)).create_ordered_consumer())
        async with first:
            async with second:
                assert (await anext(first)).num_rows
                assert (await anext(second)).num_rows
                assert (nc._core.bulk_readers, reads_in_bulk(nc)) == (2, True)
                await nc.force_reconnect()
                await eventually(lambda: nc.is_connected)
                assert reads_in_bulk(nc)
            assert (nc._core.bulk_readers, reads_in_bulk(nc)) == (1, True)
        assert (nc._core.bulk_readers, reads_in_bulk(nc)) == (0, False)
        await stream.delete()


async def test_no_one_else_reads_in_bulk(server: Server) -> None:
    async with jetspark.connect(server.url) as nc:
        name, stream = await filled(nc)
        consumer = await consumer_of(nc, name)
        assert len(await consumer.fetch(COUNT // 2)) == COUNT // 2
        async with consumer.consume(max_messages=50_000, stop_after=COUNT // 2) as messages:
            assert len([message async for message in messages]) == COUNT // 2
        assert not reads_in_bulk(nc)
        await stream.delete()


async def test_the_end_of_a_backlog_and_a_trickle_behind_it_arrive(server: Server) -> None:
    """So does a message of another subscription, and an answer to a request."""

    async def echo(message: jetspark.Msg) -> None:
        await message.respond(message.data)

    async with jetspark.connect(server.url) as other, jetspark.connect(server.url) as nc:
        name, stream = await filled(other)
        await other.subscribe(f"echo.{name}", callback=echo)
        await other.flush()
        beside = await nc.subscribe(f"beside.{name}")
        await nc.flush()
        got = 0
        async with (
            asyncio.timeout(120),
            consume_arrow(await consumer_of(nc, name), columns=["data"]) as batches,
        ):
            while got < COUNT:
                got += (await anext(batches)).num_rows
            for number in range(20):
                await other.jetstream().publish(f"{name}.late", b"%d" % number)
                batch = await anext(batches)
                assert batch.column(0).to_pylist() == [b"%d" % number]
                assert not nc._core.link._bulk.waits  # type: ignore[union-attr]
            await other.publish(f"beside.{name}", b"x")
            assert (await beside.next(timeout=SOON)).data == b"x"
            assert (await nc.request(f"echo.{name}", b"question", timeout=SOON)).data == b"question"
        await stream.delete()
