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
    Flood,
)
from jetspark.server import Server, ServerTLS
from jetspark.wire.columns import Columns
from support.helpers import eventually
from support.pki import PKI

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


async def test_who_knows_the_end_wakes_us(pair: Pair) -> None:
    pair.read(FULL_READ, LARGE_READS)
    assert pair.mark == FULL_READ
    pair.writer.write(b"the end")
    pair.flood.on_end()
    async with asyncio.timeout(SOON):
        await pair.client.until(b"the end")
    assert (pair.flood.lasts, pair.mark, pair.flood.needed) == (True, 1, LARGE_READS)
    pair.read(FULL_READ, LARGE_READS - 1)
    assert pair.mark == 1
    pair.flood.on_end()
    pair.read(FULL_READ, LARGE_READS - 1)
    assert pair.mark == 1, "it counts anew"
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
