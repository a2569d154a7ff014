"""Peers that hang instead of hanging up: stopped processes, black holes, servers that read too slowly."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import jetspark
from jetspark.connection import events as ev
from jetspark.connection.client import core_of
from jetspark.errors import ConnectionLost, NoServersAvailable, OutboundBufferFull
from jetspark.server import Server
from support.helpers import Stalls, eventually
from support.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

# Beside what the machine kept us waiting, by Stalls. Far less than the interval that it is added to.
SLACK = 0.25


@pytest.fixture
def frozen() -> Iterator[Server]:
    """A server to suspend; it is resumed, then stopped, after the test."""
    with Server(name="frozen", jetstream=False) as server:
        yield server


@pytest.mark.parametrize("interval", [0.7, 1.4])
async def test_a_stopped_server_is_noticed_within_two_intervals(frozen: Server, interval: float) -> None:
    recorder = Recorder()
    async with jetspark.connect(frozen.url, listener=recorder, ping_interval=interval) as nc:
        sub = await nc.subscribe("x")
        await nc.flush()
        async with Stalls() as stalls:
            stopped = time.monotonic()
            frozen.suspend()
            waiting = asyncio.create_task(nc.request("nobody", timeout=60))
            lost = await recorder.wait(ev.Disconnected)
        assert recorder.time_of(ev.Disconnected) - stopped < 2 * interval + SLACK + stalls.seconds
        assert isinstance(lost.error, ConnectionLost)
        assert "is dead" in str(lost.error)
        with pytest.raises(ConnectionLost):
            await waiting
        frozen.resume()
        await recorder.wait(ev.Reconnected)
        await nc.publish("x", b"alive")
        assert (await sub.next()).data == b"alive"
    assert recorder.names("ReconnectFailed") == ["Connected", "Disconnected", "Reconnected", "Closed"]


async def test_a_quiet_server_is_not_taken_for_a_dead_one(server: Server) -> None:
    for interval in (0.25, 1, 3):  # the short one is enough unless the server can't run for so long
        recorder = Recorder()
        async with jetspark.connect(server.url, listener=recorder, ping_interval=interval) as nc:
            before = nc.stats.in_bytes
            # Four PONGs and nothing else.
            await eventually(lambda: nc.stats.in_bytes >= before + 4 * len(b"PONG\r\n"))  # noqa: B023
            names = recorder.names()
        if "Disconnected" not in names:
            break
    assert names == ["Connected"]


def block_the_loop(seconds: float) -> None:
    time.sleep(seconds)


async def test_user_code_that_blocks_the_loop_does_not_cost_the_connection(server: Server) -> None:
    for interval in (0.25, 1, 3):  # the short one is enough unless the server can't run for so long
        recorder = Recorder()
        async with jetspark.connect(server.url, listener=recorder, ping_interval=interval) as nc:
            for _ in range(2):
                block_the_loop(2.4 * interval)
                with contextlib.suppress(ConnectionLost):
                    await nc.flush()
            names = recorder.names()
        if "Disconnected" not in names:
            break
    assert names == ["Connected"]


async def test_a_server_that_accepts_and_says_nothing(frozen: Server) -> None:
    frozen.suspend()
    async with Stalls() as stalls:
        start = time.monotonic()
        with pytest.raises(NoServersAvailable, match=r"connect_timeout=0\.3"):
            await jetspark.connect(frozen.url, connect_timeout=0.3)
    assert time.monotonic() - start < 0.3 + SLACK + stalls.seconds


class BlackHole:
    """A proxy that forwards until it is told to swallow everything, which no peer can see."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.swallow = False
        self.url = ""

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                if not self.swallow:
                    writer.write(data)
                    await writer.drain()
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(self._pump(reader, up_writer), self._pump(up_reader, writer))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[BlackHole]:
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        async with listener:
            yield self


async def test_a_black_hole_is_left_for_a_server_that_answers(server: Server) -> None:
    recorder = Recorder()
    async with (
        BlackHole(server.port).running() as hole,
        jetspark.connect([hole.url, server.url], randomize=False, listener=recorder, ping_interval=0.7) as nc,
    ):
        assert nc.connected_url == hole.url
        async with Stalls() as stalls:
            started = time.monotonic()
            hole.swallow = True
            await recorder.wait(ev.Disconnected)
        assert recorder.time_of(ev.Disconnected) - started < 1.4 + SLACK + stalls.seconds
        await recorder.wait(ev.Reconnected)
        assert nc.connected_url == server.url
        await nc.flush()


async def test_publishers_wait_for_a_server_that_does_not_read(frozen: Server) -> None:
    count, size = 600, 65_536
    published = 0

    async def produce(nc: jetspark.Connection) -> None:
        nonlocal published
        for number in range(count):
            await nc.publish("bulk", number.to_bytes(4, "big") + bytes(size - 4))
            published += 1

    async with jetspark.connect(frozen.url, ping_interval=60, write_buffer_size=100_000) as nc:
        sub = await nc.subscribe("bulk")
        await nc.flush()
        frozen.suspend()
        producing = asyncio.create_task(produce(nc))
        await eventually(lambda: nc._core.outbox.waiters)
        # What was taken is in the kernel's buffers and in ours, and ours is small.
        assert published < count
        assert nc._core.outbox.size + nc._core.link._transport.get_write_buffer_size() < 100_000 + 3 * size  # type: ignore[union-attr]
        frozen.resume()
        for number in range(count):
            assert int.from_bytes((await sub.next()).data[:4], "big") == number
        await producing


async def test_a_waiting_publisher_is_released_when_the_server_is_found_dead(frozen: Server) -> None:
    recorder = Recorder()
    options = {"write_buffer_size": 100_000, "reconnect_buffer_size": 1_000_000}

    async def produce(nc: jetspark.Connection) -> None:
        while True:
            await nc.publish("bulk", bytes(65_536))

    async with jetspark.connect(frozen.url, listener=recorder, ping_interval=0.2, **options) as nc:
        frozen.suspend()
        with pytest.raises(OutboundBufferFull):
            await asyncio.wait_for(produce(nc), 30)
        assert recorder.names("ReconnectFailed") == ["Connected", "Disconnected"]
        assert nc.is_reconnecting


async def test_close_does_not_wait_for_a_dead_server_for_ever(frozen: Server) -> None:
    nc = await jetspark.connect(frozen.url, write_buffer_size=100_000_000)
    core_of(nc).options = replace(core_of(nc).options, connect_timeout=0.3)
    frozen.suspend()
    for _ in range(300):
        await nc.publish("bulk", bytes(65_536))
    async with Stalls() as stalls:
        start = time.monotonic()
        await nc.close()
    assert time.monotonic() - start < 0.3 + 4 * SLACK + stalls.seconds
    assert nc.is_closed
