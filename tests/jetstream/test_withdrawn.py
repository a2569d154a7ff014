"""Requests that are withdrawn where nothing is delivered again: not before the server has served them.

The proxy holds messages while PONGs pass: the server's consumer is later than the server.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

import jetspark
from jetspark import AckPolicy
from jetspark.jetstream.consume.columnar import ConsumeColumns
from jetspark.jetstream.flow.options import PullOptions
from support.consuming import fill, make_filled, numbers, received, take
from support.frame_proxy import FrameProxy
from support.helpers import FOREVER, PROMPT, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jetspark import Message
    from jetspark.server import Server

LOSSY = [{"ack_policy": AckPolicy.NONE}, {"max_deliver": 1}]
PASSED = 10
# Several times what a driver waits when it knows of nothing that is left.
LONG = 0.5


class LateConsumer(FrameProxy):
    """Lets ten messages pass and holds the others; tells when a client unsubscribes."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.passed = 0
        self.unsubscribed = asyncio.Event()
        self.pings = 0
        self.hold_down = self._late
        self.lose_up = self._watch

    def _late(self, frame: bytes) -> bool:
        if b" $JS.ACK." not in frame.partition(b"\r\n")[0]:
            return False
        self.passed += 1
        return self.passed > PASSED

    def _watch(self, frame: bytes) -> bool:
        if frame.startswith(b"UNSUB"):
            self.unsubscribed.set()
        self.pings += frame.startswith(b"PING")
        return False

    async def not_unsubscribed(self) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(self.unsubscribed.wait(), LONG)


@pytest_asyncio.fixture
async def late(server: Server) -> AsyncIterator[LateConsumer]:
    async with LateConsumer(server) as proxy:
        yield proxy


async def _all(messages: Any) -> list[Message]:
    return [message async for message in messages]


@pytest.mark.parametrize("config", LOSSY, ids=["ack none", "max_deliver 1"])
async def test_drain_waits_for_what_is_on_its_way(late: LateConsumer, config: dict[str, Any]) -> None:
    async with jetspark.connect(late.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 300, **config)
        async with consumer.consume(max_messages=100, threshold_messages=0) as messages:
            got = await take(messages, PASSED)
            await eventually(lambda: len(late.held) == 90)
            await messages.drain()
            await late.not_unsubscribed()
            late.release()
            got += await _all(messages)
        assert numbers(got) == list(range(100))
        assert numbers(await consumer.fetch(1)) == [100]


async def test_drain_of_columns_waits_too(late: LateConsumer) -> None:
    async with jetspark.connect(late.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 300, ack_policy=AckPolicy.NONE)
        options = PullOptions(max_messages=100, threshold_messages=0)
        async with ConsumeColumns(consumer, options) as source:
            columns = await source.take()
            assert columns is not None
            count = len(columns)
            await eventually(lambda: len(late.held) == 90)
            await source.drain()
            await late.not_unsubscribed()
            late.release()
            while (columns := await source.take()) is not None:
                count += len(columns)
        assert count == 100
        assert numbers(await consumer.fetch(1)) == [100]


async def test_drain_does_not_wait_for_what_others_took(late: LateConsumer) -> None:
    """What was left is gone, and the request stays open: the drain ends all the same."""
    async with jetspark.connect(late.url, drain_timeout=2) as nc:
        _, consumer = await make_filled(nc.jetstream(), 30, ack_policy=AckPolicy.NONE)
        async with consumer.consume(max_messages=100) as messages:
            got = await take(messages, PASSED)
            await eventually(lambda: len(late.held) == 20)
            late.held.clear()
            await messages.drain()
            got += await _all(messages)
        assert numbers(got) == list(range(PASSED))


@pytest.mark.parametrize("config", LOSSY, ids=["ack none", "max_deliver 1"])
async def test_a_cancelled_fetch_waits_for_what_is_on_its_way(
    late: LateConsumer, config: dict[str, Any]
) -> None:
    async with jetspark.connect(late.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 100, **config)
        fetch = asyncio.ensure_future(consumer.fetch(50))
        await eventually(lambda: len(late.held) == 40)
        fetch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetch
        # One that waits already gets what the cancelled one receives later.
        late.unsubscribed.clear()
        waiting = asyncio.ensure_future(consumer.fetch(90))
        await late.not_unsubscribed()
        late.release()
        got = numbers(await waiting)
        got += numbers(await consumer.fetch_no_wait(100))
        assert sorted(got) == list(range(100))


@pytest.mark.parametrize("config", LOSSY, ids=["ack none", "max_deliver 1"])
async def test_a_cancelled_fetch_that_has_all_there_was_takes_nothing_that_comes_later(
    server: Server, config: dict[str, Any]
) -> None:
    async with jetspark.connect(server.url) as nc:
        stream, consumer = await make_filled(nc.jetstream(), 1, **config)
        # It brings the one message, which says that none are left, and goes on waiting for the others.
        fetch = asyncio.ensure_future(consumer.fetch(1_000_000, expires=FOREVER)._collect())
        await eventually(lambda: received(nc, 1))
        fetch.cancel()

        async def withdrawn() -> bool:
            # Messages never stop to come, as on a stream in use.
            await fill(nc.jetstream(), stream, 1, start=1)
            return (await consumer.info()).num_waiting == 0

        await eventually(withdrawn, PROMPT)
        with pytest.raises(asyncio.CancelledError):
            await fetch


async def test_a_stopped_server_gets_no_unsub_before_it_has_the_request(own_server: Server) -> None:
    async with FrameProxy(own_server) as proxy, jetspark.connect(proxy.url) as nc:
        frames: list[bytes] = []

        def watch(frame: bytes) -> bool:
            frames.append(frame.partition(b" ")[0].strip())
            return False

        _, consumer = await make_filled(nc.jetstream(), 100, ack_policy=AckPolicy.NONE)
        own_server.suspend()
        try:
            proxy.lose_up = watch
            async with consumer.consume(max_messages=50) as messages:
                await eventually(lambda: b"PUB" in frames)
                await messages.drain()
                await eventually(lambda: b"PING" in frames or b"UNSUB" in frames)
                own_server.resume()
                got = numbers(await _all(messages))
        finally:
            own_server.resume()
        assert b"UNSUB" not in frames[: frames.index(b"PING")]
        assert got == list(range(50))
        assert numbers(await consumer.fetch(1)) == [50]


async def test_after_an_alarm_the_requests_are_withdrawn_when_the_server_has_served_them(
    late: LateConsumer,
) -> None:
    """All that the server sends is late, as after a stop; a PONG is the first sign that it goes on."""
    async with jetspark.connect(late.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 300, ack_policy=AckPolicy.NONE)
        alarms: list[Exception] = []
        async with consumer.consume(
            max_messages=100, threshold_messages=0, expires=1, idle_heartbeat=0.5, on_error=alarms.append
        ) as messages:
            got = await take(messages, PASSED)
            late.hold_down = lambda frame: True
            pings = late.pings
            await eventually(lambda: bool(alarms))
            await eventually(lambda: late.pings > pings or late.unsubscribed.is_set())
            assert not late.unsubscribed.is_set()
            late.release()
            got += await take(messages, 300 - PASSED)
        assert numbers(got) == list(range(300))
