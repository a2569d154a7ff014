"""F11: connect, fetch, cancel, close, again and again: nothing may stay behind, here or on the server.

Every cycle has a connection of its own. What differs is when the fetch is given up: before the request is
written, when the server holds it, while a message is on its way, or by closing the connection under it. One
cycle in twenty uses the blocking API, whose connection is a thread.
"""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections import Counter
from typing import TYPE_CHECKING

import jetspark
from jetspark import ConsumerConfig, StorageType, StreamConfig, blocking
from jetspark.errors import ConnectionClosed
from jetspark.server import Server
from support.fault_table import Outcome, Row, Scale, check
from support.fault_workload import within
from support.footprint import Footprint, rss, varz
from support.helpers import eventually

if TYPE_CHECKING:
    from jetspark import Consumer

# At a time: the rest of the machine has something to do while one of them waits for an answer.
LANES = 8
BLOCKING = 0.05
# What the allocator and the interpreter may still learn after the first tenth of the cycles.
GROWTH_MB = 8.0


async def cycle(url: str, way: str, made: weakref.WeakSet[jetspark.Connection]) -> None:
    nc = await jetspark.connect(url, connect_timeout=30)
    made.add(nc)
    try:
        consumer = await nc.jetstream().get_consumer("S", "worker")
        await fetch_and_give_up(nc, consumer, way)
    finally:
        await nc.close()


async def fetch_and_give_up(nc: jetspark.Connection, consumer: Consumer, way: str) -> None:
    async def fetch() -> int:
        return len(await consumer.fetch(2, expires=30))

    task = asyncio.create_task(fetch())
    await asyncio.sleep(0)
    if way == "held":
        await nc.flush()
    elif way == "arriving":
        await nc.publish("S.a", b"x")
    elif way == "closed":
        await nc.flush()
        await nc.close()
    if way != "closed":
        task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        assert way != "closed"
    except ConnectionClosed:
        assert way == "closed"


def blocking_cycle(url: str, way: str) -> None:
    with blocking.connect(url, connect_timeout=30) as nc:
        consumer = nc.jetstream().get_consumer("S", "worker")
        if way == "arriving":
            nc.publish("S.a", b"x")
        for _ in consumer.fetch(2, expires=0.02 if way == "held" else None, no_wait=way != "held"):
            break  # leave the iteration early, with the request open


class Cycles:
    """Hands out the cycles to the lanes and notes the memory on the way."""

    def __init__(self, url: str, count: int, chance: random.Random) -> None:
        self.url = url
        self.count = count
        self.left = count
        self.chance = chance
        self.done: Counter[str] = Counter()
        self.memory: list[float] = []
        self.made: weakref.WeakSet[jetspark.Connection] = weakref.WeakSet()

    async def lane(self) -> None:
        while self.left > 0:
            self.left -= 1
            way = self.chance.choice(("at once", "held", "arriving", "closed"))
            if self.chance.random() < BLOCKING:
                await asyncio.to_thread(blocking_cycle, self.url, way)
                self.done["blocking"] += 1
            else:
                await cycle(self.url, way, self.made)
                self.done[way] += 1
            if self.left % (self.count // 10) == 0:
                self.memory.append(rss())

    def gone(self) -> bool:
        """Whether none of the connections is left: what the process holds of others may change meanwhile."""
        gc.collect()
        return not self.made


async def run(scale: Scale) -> Outcome:
    outcome = Outcome()
    chance = scale.chance()
    with Server(name="cycles") as server:
        async with jetspark.connect(server.url) as nc:
            stream = await nc.jetstream().create_stream(
                StreamConfig(name="S", subjects=["S.>"], storage=StorageType.MEMORY, max_msgs=100)
            )
            consumer = await stream.create_consumer(
                ConsumerConfig(durable_name="worker", ack_wait=5, max_ack_pending=-1, max_waiting=10_000)
            )
            # What is made once for the process, such as threads for blocking calls, is not a leak.
            warm_up = Cycles(server.url, 40, random.Random(1))
            await asyncio.gather(*(warm_up.lane() for _ in range(LANES)))

            async def alone() -> dict[str, int] | None:
                found = await varz(server)
                return found if found["connections"] == 1 else None

            before = await eventually(alone, 30)
            start = Footprint.now()
            cycles = Cycles(server.url, scale.pick(1500, 100_000), chance)
            await asyncio.gather(*(cycles.lane() for _ in range(LANES)))
            after = await eventually(alone, 30)
            # The server forgets the subscriptions of a connection a moment after the connection.
            for _ in range(100):
                if after["subscriptions"] <= before["subscriptions"]:
                    break
                await asyncio.sleep(0.05)
                after = await varz(server)
            end = await Footprint.settled(start)
            if not await within(5.0, cycles.gone):
                outcome.problems.append(f"objects: {len(cycles.made)} connections are still there")

            async def withdrawn() -> bool:
                return (await consumer.info()).num_waiting == 0

            try:
                await eventually(withdrawn, 10)
            except AssertionError:
                outcome.problems.append(f"{(await consumer.info()).num_waiting} requests left on the server")
    connected = after["total_connections"] - before["total_connections"]
    growth = cycles.memory[-1] - cycles.memory[0]
    outcome.figures = {
        "cycles": sum(cycles.done.values()),
        "of them blocking": cycles.done["blocking"],
        "descriptors": f"{start.descriptors} -> {end.descriptors}",
        "tasks": f"{start.tasks} -> {end.tasks}",
        "threads": f"{start.threads} -> {end.threads}",
        "objects": f"{start.objects} -> {end.objects}",
        "server subscriptions": f"{before['subscriptions']} -> {after['subscriptions']}",
        "RSS growth MB": round(growth, 1),
    }
    outcome.require(connected == cycles.count, f"{cycles.count} cycles, {connected} connections")
    outcome.problems += end.excess(start)
    outcome.require(
        after["subscriptions"] <= before["subscriptions"],
        f"server subscriptions: {before['subscriptions']} at the start, {after['subscriptions']} at the end",
    )
    outcome.require(growth < GROWTH_MB, f"memory grew by {growth:.1f} MB: {cycles.memory}")
    return outcome


ROW = Row(11, "cycles of connect, fetch, cancel, close", run, minutes=8)


def test_f11() -> None:
    check(ROW)
