"""Fewer, larger reads in a flood: when it begins and ends, and that nothing is stuck behind it.

Most tests tell a Flood of the reads of a real socket themselves, because how much a read brings is up to the
system. What waits in that socket behind the low-water mark is real.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

import jetspark
from fake_server import FakeServer, Peer
from helpers import eventually, unique
from jetspark import AckPolicy, ConsumerConfig, StorageType, StreamConfig
from jetspark.arrow import consume_arrow
from jetspark.connection import flood as flood_module
from jetspark.connection.flood import (
    FEWEST_READS,
    FULL_READ,
    LARGE_MESSAGE,
    LARGE_READ,
    LARGE_READS,
    MORE,
    MORE_WAIT,
    MOST_READS,
    QUIET_TICKS,
    TICK,
    Flood,
)
from jetspark.server import Server, ServerTLS
from jetspark.wire.columns import Columns
from pki import PKI

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# Far more than the two ticks that it may take, however busy the machine is, and far less than for ever.
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
        while self.data != expected:
            self._news.clear()
            await self._news.wait()


class Pair:
    """A connection through the system; ``flood`` watches its reading end."""

    def __init__(self, transport: Any, client: Client, writer: asyncio.StreamWriter) -> None:
        self.transport, self.client, self.writer = transport, client, writer
        self.flood = Flood(transport)

    @property
    def mark(self) -> int:
        """Bytes that the kernel wakes us for."""
        return mark_of(self.transport)

    def read(self, size: int, times: int = 1, *, held: int = 0, events: list[Any] | None = None) -> None:
        for _ in range(times):
            self.flood.on_read(size, held, events or [])


def mark_of(transport: Any) -> int:
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
    made.flood.close()
    transport.abort()
    made.writer.transport.abort()
    await client.lost
    with contextlib.suppress(OSError):
        await made.writer.wait_closed()
    listener.close()
    await listener.wait_closed()


# When it begins


async def test_sixteen_large_reads_in_a_row_begin_it(pair: Pair) -> None:
    pair.read(LARGE_READ, LARGE_READS - 1)
    assert (pair.flood.lasts, pair.mark, pair.transport.max_size) == (False, 1, FULL_READ)
    pair.read(LARGE_READ)
    assert (pair.flood.lasts, pair.mark, pair.transport.max_size) == (True, FULL_READ, FULL_READ)


async def test_a_small_read_between_makes_it_count_anew(pair: Pair) -> None:
    for _ in range(10):
        pair.read(FULL_READ, LARGE_READS - 1)
        pair.read(LARGE_READ - 1)
        assert (pair.flood.lasts, pair.mark, pair.transport.max_size) == (False, 1, FULL_READ)
    pair.read(FULL_READ, LARGE_READS)
    assert pair.flood.lasts


async def test_small_reads_never_begin_it(pair: Pair) -> None:
    pair.read(LARGE_READ - 1, 1000)
    assert (pair.flood.lasts, pair.mark, pair.transport.max_size) == (False, 1, FULL_READ)


@pytest.mark.parametrize("held", [0, LARGE_MESSAGE - 1, LARGE_MESSAGE])
@pytest.mark.parametrize("columns", [False, True])
async def test_large_messages_and_columns_are_read_more_at_a_time(
    pair: Pair, held: int, columns: bool
) -> None:
    events = ["first", Columns("1", [], [], [], {}) if columns else "message"]
    pair.read(FULL_READ, LARGE_READS - 1, held=held, events=events)
    assert (pair.transport.max_size, pair.mark) == (FULL_READ, 1)
    pair.read(FULL_READ, held=held, events=events)
    more = columns or held >= LARGE_MESSAGE
    expected = (MORE, MORE_WAIT) if more else (FULL_READ, FULL_READ)
    assert (pair.transport.max_size, pair.mark) == expected


async def test_large_messages_may_come_later_in_a_flood(pair: Pair) -> None:
    pair.read(FULL_READ, LARGE_READS)
    assert (pair.transport.max_size, pair.mark) == (FULL_READ, FULL_READ)
    pair.read(FULL_READ, held=LARGE_MESSAGE)
    assert (pair.transport.max_size, pair.mark) == (MORE, MORE_WAIT)
    pair.read(FULL_READ)
    assert (pair.transport.max_size, pair.mark) == (MORE, MORE_WAIT), "not with every read anew"


# What comes behind it


@pytest.mark.parametrize("held", [0, LARGE_MESSAGE])
async def test_little_behind_a_flood_arrives(pair: Pair, held: int) -> None:
    pair.read(FULL_READ, LARGE_READS, held=held)
    assert pair.mark > 10
    pair.writer.write(b"PING\r\n")
    async with asyncio.timeout(SOON):
        await pair.client.until(b"PING\r\n")


async def test_little_waits_for_the_tick_and_no_longer(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without ticks the kernel keeps it: so it is the tick that brings it.
    monkeypatch.setattr(flood_module, "TICK", FOR_EVER)
    pair.read(FULL_READ, LARGE_READS)
    pair.writer.write(b"PING\r\n")
    # What the kernel has for us, whether it wakes us or not.
    peek = pair.transport.get_extra_info("socket")
    await eventually(lambda: _waiting(peek) == 6)
    for _ in range(5):
        await asyncio.sleep(0)
    assert pair.client.data == b""
    pair.flood._tick()  # the reads that began it were in this one
    assert (pair.client.data, pair.mark) == (b"", FULL_READ)
    pair.flood._tick()
    assert pair.mark == 1
    async with asyncio.timeout(SOON):
        await pair.client.until(b"PING\r\n")


def _waiting(sock: Any) -> int:
    own = socket.socket(fileno=sock.dup().detach())
    try:
        return len(own.recv(100, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return 0
    finally:
        own.close()


async def test_enough_wakes_without_a_tick(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flood_module, "TICK", FOR_EVER)
    pair.read(FULL_READ, LARGE_READS)
    data = bytes(FULL_READ)
    pair.writer.write(data)
    async with asyncio.timeout(SOON):
        await pair.client.until(data)
    assert pair.flood._sleeping, "no tick has ended the wait"


async def test_many_small_ones_behind_a_flood_arrive_one_by_one(pair: Pair) -> None:
    pair.read(FULL_READ, LARGE_READS)
    expected = b""
    for number in range(50):
        piece = b"%d;" % number
        expected += piece
        pair.writer.write(piece)
        async with asyncio.timeout(SOON):
            await pair.client.until(expected)
        pair.read(len(piece))
    assert not pair.flood._sleeping, "small reads don't make it wait again"


# Answers are no flood


async def test_a_word_of_ours_begins_the_count_anew(pair: Pair) -> None:
    for _ in range(50):
        pair.read(FULL_READ, LARGE_READS - 1)
        pair.flood.on_write()
    assert (pair.flood.lasts, pair.mark, pair.flood.needed) == (False, 1, LARGE_READS)


async def test_a_word_of_ours_wakes_us_in_a_flood(pair: Pair) -> None:
    pair.read(FULL_READ, LARGE_READS)
    assert pair.mark == FULL_READ
    pair.flood.on_write()
    assert (pair.flood.lasts, pair.mark) == (True, 1)
    pair.read(FULL_READ, LARGE_READS - 1)
    assert pair.mark == 1, "the answer may be long"
    pair.read(FULL_READ)
    assert pair.mark == FULL_READ


async def test_each_time_that_enough_came_it_takes_less_to_sleep_again(pair: Pair) -> None:
    pair.read(FULL_READ, LARGE_READS)
    assert pair.flood.needed == LARGE_READS
    pair.read(FULL_READ, 3)
    assert pair.flood.needed == LARGE_READS - 3
    pair.read(FULL_READ, 1000)
    assert pair.flood.needed == FEWEST_READS
    pair.flood.on_write()
    pair.read(FULL_READ, FEWEST_READS - 1)
    assert pair.mark == 1
    pair.read(FULL_READ)
    assert pair.mark == FULL_READ


def sleep_on_it(pair: Pair) -> None:
    """Nothing has come for a tick."""
    pair.flood._tick()
    assert pair.flood._sleeping
    pair.flood._tick()
    assert pair.mark == 1


@pytest.mark.parametrize("rest", [100, FULL_READ])
async def test_who_slept_on_the_end_of_an_answer_is_careful(
    pair: Pair, rest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flood_module, "TICK", FOR_EVER)
    needed = LARGE_READS
    while needed < MOST_READS:
        pair.read(FULL_READ, needed)
        sleep_on_it(pair)
        pair.read(rest)
        pair.flood.on_write()
        needed = min(4 * needed, MOST_READS)
        assert pair.flood.needed == needed
    # Once for each: what we say later has another reason.
    pair.flood.on_write()
    pair.read(FULL_READ, MOST_READS - 1)
    assert (pair.flood.needed, pair.mark) == (MOST_READS, 1)
    pair.read(FULL_READ)
    assert pair.mark == FULL_READ


async def test_a_pause_of_the_peer_is_no_end(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flood_module, "TICK", FOR_EVER)
    pair.read(FULL_READ, LARGE_READS)
    sleep_on_it(pair)
    pair.read(FULL_READ, 2)
    assert pair.mark == FULL_READ, "it goes on, and we said nothing"
    pair.flood.on_write()
    assert pair.flood.needed == LARGE_READS


# When it ends


@pytest.mark.parametrize("held", [0, LARGE_MESSAGE])
async def test_it_ends_when_nothing_comes(pair: Pair, held: int) -> None:
    pair.read(FULL_READ, LARGE_READS, held=held)
    await eventually(lambda: not pair.flood.lasts)
    assert (pair.transport.max_size, pair.mark) == (FULL_READ, 1)
    assert pair.flood._timer is None
    # And begins again as the first time.
    pair.read(FULL_READ, LARGE_READS - 1, held=held)
    assert (pair.flood.lasts, pair.mark) == (False, 1)
    pair.read(FULL_READ, held=held)
    assert pair.flood.lasts
    assert pair.mark > 1
    await eventually(lambda: not pair.flood.lasts)
    assert (pair.transport.max_size, pair.mark) == (FULL_READ, 1)


async def test_it_ends_although_small_reads_go_on(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flood_module, "TICK", FOR_EVER)
    pair.read(FULL_READ, LARGE_READS)
    pair.flood._tick()
    for _ in range(QUIET_TICKS - 1):
        pair.read(100)
        pair.flood._tick()
        assert pair.flood.lasts
    pair.read(100)
    pair.flood._tick()
    assert (pair.flood.lasts, pair.transport.max_size, pair.mark) == (False, FULL_READ, 1)


async def test_large_reads_keep_it_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flood_module, "TICK", FOR_EVER)
    pair.read(FULL_READ, LARGE_READS)
    for _ in range(5):
        for _ in range(QUIET_TICKS - 1):
            pair.flood._tick()
        assert pair.mark == 1, "nothing came for a tick"
        pair.read(LARGE_READ)
        assert (pair.flood.lasts, pair.mark) == (True, FULL_READ)
        pair.flood._tick()
        assert (pair.flood.lasts, pair.mark) == (True, FULL_READ)


async def test_a_closed_one_ticks_no_more(pair: Pair) -> None:
    pair.read(FULL_READ, LARGE_READS)
    timer = pair.flood._timer
    assert timer is not None
    pair.flood.close()
    assert timer.cancelled()
    pair.flood.close()
    assert pair.flood._timer is None


# The end of the connection


@pytest.mark.parametrize("way", ["close", "reset"])
async def test_a_lost_connection_is_noticed_without_a_tick(
    pair: Pair, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flood_module, "TICK", FOR_EVER)
    pair.read(FULL_READ, LARGE_READS)
    assert pair.mark == FULL_READ
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
    pair.read(FULL_READ, LARGE_READS)
    pair.transport.abort()
    await asyncio.shield(pair.client.lost)
    await eventually(lambda: not pair.flood.lasts)
    pair.read(FULL_READ, LARGE_READS)
    pair.flood.close()
    assert pair.flood._sleeping is False, "a socket that is gone has no mark"


# Transports that are left alone


class NoSetting:
    """Such as TLS or uvloop's: a socket, but no max_size."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def get_extra_info(self, name: str) -> Any:
        return self._sock


class OtherSetting(NoSetting):
    """Somebody else has chosen a size."""

    max_size = 1000


@pytest.mark.parametrize("kind", [NoSetting, OtherSetting])
async def test_other_transports_are_left_alone(kind: type[NoSetting]) -> None:
    left, right = socket.socketpair()
    with left, right:
        transport = kind(left)
        flood = Flood(transport)
        for _ in range(10 * LARGE_READS):
            flood.on_read(FULL_READ, LARGE_MESSAGE, [])
        assert not flood.lasts
        assert flood._timer is None
        assert left.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
        assert "max_size" not in vars(transport)


async def test_a_system_without_the_mark_is_no_error(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_RCVLOWAT")
    pair.read(FULL_READ, LARGE_READS, held=LARGE_MESSAGE)
    assert pair.flood.lasts
    assert pair.transport.max_size == MORE
    await eventually(lambda: not pair.flood.lasts)
    assert pair.transport.max_size == FULL_READ


async def test_a_system_that_would_not_look_again_is_never_told_to_wait(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The mark is there, but what lies below it stays there when it is lowered.
    monkeypatch.setattr(flood_module, "_MAY_SLEEP", False)
    monkeypatch.setattr(flood_module, "TICK", FOR_EVER)
    pair.read(FULL_READ, LARGE_READS, held=LARGE_MESSAGE)
    assert (pair.flood.lasts, pair.transport.max_size, pair.mark) == (True, MORE, 1)
    pair.writer.write(b"PING\r\n")
    async with asyncio.timeout(SOON):
        await pair.client.until(b"PING\r\n")


def raw_socket(nc: jetspark.Connection) -> Any:
    assert nc._link is not None
    assert nc._link._transport is not None
    return nc._link._transport.get_extra_info("socket")


@pytest.mark.parametrize("first", [False, True])
async def test_tls_is_left_alone(tmp_path: Any, first: bool) -> None:
    pki = PKI(tmp_path)
    tls = ServerTLS(cert=pki.server.cert, key=pki.server.key, handshake_first=first)
    with Server(jetstream=False, tls=tls) as server:
        async with jetspark.connect(server.url, tls_ca=pki.ca, tls_handshake_first=first) as nc:
            assert nc._link is not None
            assert nc._link._flood is not None
            for _ in range(LARGE_READS):
                nc._link._flood.on_read(FULL_READ, LARGE_MESSAGE, [])
            assert not nc._link._flood.lasts
            own = raw_socket(nc)
            assert own.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
            assert await nc.rtt() > 0


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
