"""F10: the handler is slower than the publisher: memory stays bounded, and whatever is dropped is told of.

Core and push without flow control drop the newest past their limits: as many as they say, after an event that
says so, and never one that was accepted. With acks the server sends those again; with flow control, and when
pulling, there is nothing to drop: what a reader has no room for stays on the server.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import jetspark
from jetspark import AckPolicy, ConsumerConfig, StorageType, StreamConfig, blocking
from jetspark.events import SlowConsumer
from jetspark.server import Server
from support.fault_table import Outcome, Row, Scale, check
from support.footprint import rss
from support.helpers import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jetspark.events import Event

SIZE = 1000
LIMIT = 1000
# With flow control the server's window is the limit: it grows to 32 MiB while the reader keeps up.
WINDOW = 32 * 1_048_576 // SIZE
# What the process may take more than at the beginning of a case: the buffers of one subscription and of both
# connections, and far less than what is published.
ROOM_MB = 40.0


class Reader:
    """A handler that stands still until something was dropped, then dawdles until it is let go.

    Where nothing is ever dropped it stands until then. It remembers the numbers in the order they came.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.events: list[SlowConsumer] = []
        self.peak = 0
        self.pending: Callable[[], int] = lambda: 0
        self._loop = asyncio.get_running_loop()
        self._moves = asyncio.Event()
        self._moves_sync = threading.Event()
        self._hurry = asyncio.Event()
        self._hurry_sync = threading.Event()

    def listen(self, event: Event) -> None:
        if isinstance(event, SlowConsumer):
            self.events.append(event)
            self._moves_sync.set()
            self._loop.call_soon_threadsafe(self._moves.set)

    def hurry(self) -> None:
        for event in (self._moves, self._hurry, self._moves_sync, self._hurry_sync):
            event.set()

    def note(self, message: Any) -> None:
        self.numbers.append(int(message.data))
        self.peak = max(self.peak, self.pending())

    async def handle(self, message: Any) -> None:
        await self._moves.wait()
        self.note(message)
        if not self._hurry.is_set():
            await asyncio.sleep(0.001)  # the slow work

    async def handle_and_ack(self, message: Any) -> None:
        await self.handle(message)
        await message.ack()

    def handle_sync(self, message: Any) -> None:
        self._moves_sync.wait()
        self.note(message)
        self._hurry_sync.wait(0.001)


class Flood:
    """Publishes numbered messages and watches the memory meanwhile."""

    def __init__(self, nc: jetspark.Connection, count: int) -> None:
        self.nc = nc
        self.count = count
        self.most = rss()

    async def core(self, subject: str) -> None:
        for number in range(self.count):
            await self.nc.publish(subject, (b"%d" % number).ljust(SIZE))
            if number % 500 == 0:
                # Let them arrive: it is the reader that is to be late, not the connection.
                await self.nc.flush(timeout=30)
                self.most = max(self.most, rss())
        await self.nc.flush(timeout=30)

    async def stored(self, subject: str) -> None:
        async with self.nc.jetstream(timeout=30).publisher(window=1000) as publisher:
            for number in range(self.count):
                await publisher.publish(subject, (b"%d" % number).ljust(SIZE))
                if number % 500 == 0:
                    self.most = max(self.most, rss())


class Table:
    """One server, one publisher, and the cases one after the other."""

    def __init__(self, server: Server, nc: jetspark.Connection, scale: Scale, outcome: Outcome) -> None:
        self.url = server.url
        self.nc = nc
        self.count = scale.pick(6_000, 400_000)
        self.outcome = outcome
        self.cases = self.missing = self.dropped = self.repeated = self.events = 0
        self.grown = 0.0

    async def stream(self, name: str) -> str:
        await self.nc.jetstream(timeout=20).create_stream(
            StreamConfig(name=name, subjects=[f"{name}.a"], storage=StorageType.FILE)
        )
        return f"{name}.a"

    async def case(
        self,
        name: str,
        work: Callable[[Reader, Flood], Awaitable[int]],
        *,
        loses: bool,
        repeats: bool = False,
        limit: int = LIMIT,
    ) -> None:
        """``work`` returns how many messages were dropped, as the subscription says."""
        reader, flood = Reader(), Flood(self.nc, self.count)
        before = flood.most
        began = time.monotonic()
        dropped = await work(reader, flood)
        grown = max(flood.most, rss()) - before
        missing = self.count - len(set(reader.numbers))
        print(
            f"{name}: {missing} missing, {dropped} dropped, {len(reader.events)} events, "
            f"{reader.peak} buffered, {grown:+.1f} MB, {time.monotonic() - began:.1f} s"
        )
        self.cases += 1
        self.events += len(reader.events)
        self.grown = max(self.grown, grown)
        if loses:
            self.missing += missing
            self.dropped += dropped
        else:
            self.repeated += dropped
        require = self.outcome.require
        require(reader.peak <= limit, f"{name}: {reader.peak} buffered, the limit is {limit}")
        require(grown < ROOM_MB, f"{name}: memory grew by {grown:.0f} MB")
        require(missing == (dropped if loses else 0), f"{name}: {missing} missing, {dropped} dropped")
        if not repeats:
            require(
                all(one < two for one, two in pairwise(reader.numbers)), f"{name}: out of order, or twice"
            )
        told = [event.dropped for event in reader.events]
        if loses or repeats:
            require(dropped > 0, f"{name}: nothing was dropped, so that this says nothing")
            require(bool(told), f"{name}: dropped without an event")
            require(
                all(a < b for a, b in pairwise(told)) and max(told, default=0) <= dropped, f"{name}: {told}"
            )
        else:
            require(not told and not dropped, f"{name}: {told} dropped, where nothing need be")

    async def all(self) -> None:
        await self.case("core", self.core, loses=True)
        await self.case("core, bytes", self.core_bytes, loses=True)
        await self.case("core, blocking", self.core_blocking, loses=True)
        await self.case("push", self.push, loses=True)
        await self.case("push, blocking", self.push_blocking, loses=True)
        await self.case("push with acks", self.push_acks, loses=False, repeats=True)
        await self.case("push with flow control", self.push_flow_control, loses=False, limit=WINDOW)
        await self.case("pull", self.pull, loses=False)

    # The cases

    async def core(self, reader: Reader, flood: Flood, **limits: int) -> int:
        limits = limits or {"pending_messages_limit": LIMIT}
        async with jetspark.connect(self.url, listener=reader.listen) as nc:
            sub = await nc.subscribe("core", callback=reader.handle, **limits)
            reader.pending = lambda: sub.pending_messages
            await nc.flush()
            await flood.core("core")
            await nc.flush()
            reader.hurry()
            await eventually(lambda: sub.pending_messages == 0, 60)
            await sub.drain()
            return sub.dropped

    async def core_bytes(self, reader: Reader, flood: Flood) -> int:
        return await self.core(reader, flood, pending_bytes_limit=LIMIT * SIZE // 2)

    async def core_blocking(self, reader: Reader, flood: Flood) -> int:
        with await asyncio.to_thread(blocking.connect, self.url, listener=reader.listen) as nc:
            sub = await asyncio.to_thread(
                nc.subscribe, "core", callback=reader.handle_sync, pending_messages_limit=LIMIT
            )
            reader.pending = lambda: sub.pending_messages
            await asyncio.to_thread(nc.flush)
            await flood.core("core")
            await asyncio.to_thread(nc.flush)
            reader.hurry()
            await asyncio.to_thread(sub.drain)
            return sub.dropped

    async def push(self, reader: Reader, flood: Flood) -> int:
        subject = await self.stream("PUSH")
        async with jetspark.connect(self.url, listener=reader.listen) as nc:
            sub = await nc.jetstream().subscribe(
                subject,
                config=ConsumerConfig(ack_policy=AckPolicy.NONE),
                callback=reader.handle,
                pending_messages_limit=LIMIT,
            )
            reader.pending = lambda: sub.pending
            await flood.stored(subject)
            await self.all_sent(sub)
            reader.hurry()
            await eventually(lambda: sub.pending == 0, 60)
            dropped = sub.dropped
            await sub.drain()
            return dropped

    async def push_blocking(self, reader: Reader, flood: Flood) -> int:
        subject = await self.stream("PUSHB")
        with await asyncio.to_thread(blocking.connect, self.url, listener=reader.listen) as nc:
            sub = await asyncio.to_thread(
                nc.jetstream().subscribe,
                subject,
                config=ConsumerConfig(ack_policy=AckPolicy.NONE),
                callback=reader.handle_sync,
                pending_messages_limit=LIMIT,
            )
            reader.pending = lambda: sub.pending
            await flood.stored(subject)
            await eventually(lambda: sub.delivered + sub.pending + sub.dropped >= self.count, 60)
            reader.hurry()
            await eventually(lambda: sub.pending == 0, 60)
            dropped = sub.dropped
            await asyncio.to_thread(sub.drain)
            return dropped

    async def push_acks(self, reader: Reader, flood: Flood) -> int:
        subject = await self.stream("PUSHA")
        async with jetspark.connect(self.url, listener=reader.listen) as nc:
            sub = await nc.jetstream().subscribe(
                subject,
                config=ConsumerConfig(ack_wait=1, max_ack_pending=LIMIT),
                callback=reader.handle_and_ack,
                manual_ack=True,
                pending_messages_limit=LIMIT // 10,
            )
            reader.pending = lambda: sub.pending
            await flood.stored(subject)
            await eventually(lambda: sub.dropped > 0, 20)
            reader.hurry()

            async def acked() -> bool:
                info = await sub.consumer_info()
                return info.num_pending == 0 and info.num_ack_pending == 0

            await eventually(acked, 120)
            dropped = sub.dropped
            await sub.drain()
            return dropped

    async def push_flow_control(self, reader: Reader, flood: Flood) -> int:
        subject = await self.stream("PUSHF")
        async with jetspark.connect(self.url, listener=reader.listen) as nc:
            sub = await nc.jetstream().subscribe(
                subject,
                config=ConsumerConfig(ack_policy=AckPolicy.NONE),
                idle_heartbeat=1,
                flow_control=True,
                callback=reader.handle,
            )
            reader.pending = lambda: sub.pending
            await flood.stored(subject)
            reader.hurry()
            await eventually(lambda: sub.delivered == self.count, 120)
            dropped = sub.dropped
            await sub.drain()
            return dropped

    async def pull(self, reader: Reader, flood: Flood) -> int:
        subject = await self.stream("PULL")
        async with jetspark.connect(self.url, listener=reader.listen) as nc:
            consumer = await nc.jetstream().create_consumer("PULL", ConsumerConfig(durable_name="worker"))
            async with consumer.consume_with(reader.handle_and_ack, max_messages=LIMIT) as running:
                reader.pending = lambda: running.pending
                await flood.stored(subject)
                reader.hurry()
                await eventually(lambda: len(reader.numbers) == self.count, 120)
            return 0

    async def all_sent(self, sub: jetspark.PushSubscription) -> None:
        """Wait until the server has sent everything and it has arrived."""

        def arrived() -> bool:
            return sub.delivered + sub.pending + sub.dropped >= self.count

        await eventually(arrived, 60)


async def run(scale: Scale) -> Outcome:
    outcome = Outcome()
    logger = logging.getLogger("jetspark")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # the events are what is looked at
    try:
        with Server(name="slow") as server:
            async with jetspark.connect(server.url) as nc:
                table = Table(server, nc, scale, outcome)
                await table.all()
                outcome.figures = {
                    "cases": table.cases,
                    "messages a case": table.count,
                    "missing": table.missing,
                    "told as dropped": table.dropped,
                    "dropped and delivered again": table.repeated,
                    "events": table.events,
                    "growth at most MB": round(table.grown, 1),
                }
    finally:
        logger.setLevel(level)
    return outcome


ROW = Row(10, "handler slower than the publisher", run, minutes=8)


def test_f10() -> None:
    check(ROW)
