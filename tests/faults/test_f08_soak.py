"""F8: hours in minutes: every way to receive goes on while the server and the way to it fail all the time.

After each fault every part must go on. The process may not grow, and when all is closed nothing may be left
of it, neither here nor on the server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

import jetspark
from jetspark.server import Server
from support.fault_table import Outcome, Row, Scale, check
from support.footprint import Footprint, client_subscriptions, consumers, rss, slope, varz
from support.helpers import eventually
from support.lossy_proxy import LossyProxy
from support.soaking import PARTS, Soak, prepare

if TYPE_CHECKING:
    import random

# MB a minute. Half a minute, which the short form has after its warm-up, is too little for the fine limit.
SLOPE_LIMIT = 1.0
# Seconds that any part may need to go on after a fault is over.
PATIENCE = 15.0


class Faults:
    """What can go wrong, by name."""

    def __init__(self, server: Server, proxy: LossyProxy, soak: Soak) -> None:
        self._server = server
        self._proxy = proxy
        self._soak = soak

    async def restart(self) -> None:
        await asyncio.to_thread(self._server.restart)

    async def kill(self) -> None:
        await asyncio.to_thread(self._server.kill)
        await asyncio.to_thread(self._server.restart)

    async def cut(self) -> None:
        await self._proxy.cut()

    async def stall(self) -> None:
        """A second of a dead network, then a cut."""
        self._proxy.swallow_up = self._proxy.swallow_down = True
        await asyncio.sleep(1.0)
        await self._proxy.cut()

    async def force(self) -> None:
        await self._soak.nc.force_reconnect()

    async def strike(self, chance: random.Random) -> str:
        name = chance.choice(("restart", "kill", "cut", "cut", "stall", "force"))
        await getattr(self, name)()
        return name


class Memory:
    """Samples of the resident memory; the slope is that of the time after the warm-up."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.samples: list[tuple[float, float]] = []

    async def watch(self) -> None:
        while True:
            self.samples.append((time.monotonic() - self._began, rss()))
            await asyncio.sleep(0.5)

    def slope(self, warm_up: float) -> float:
        return slope([sample for sample in self.samples if sample[0] >= warm_up])


async def run(scale: Scale) -> Outcome:
    logger = logging.getLogger("jetspark")
    level = logger.level
    # A test run keeps every record, which would be growth.
    logger.setLevel(logging.CRITICAL)
    try:
        return await soak_in_faults(scale)
    finally:
        logger.setLevel(level)


async def soak_in_faults(scale: Scale) -> Outcome:
    outcome = Outcome()
    seconds, warm_up = scale.pick(55, 600), scale.pick(20, 120)
    with Server(name="soak") as server:
        async with jetspark.connect(server.url) as nc:
            await prepare(nc)
            # What the server and the interpreter make at first use is not a leak.
            async with Soak(server.url, "first", capacity=1000) as soak:
                await eventually(lambda: not soak.stuck(Counter()), PATIENCE)
            await (await nc.jetstream().get_stream("JOBS")).purge()

        async def alone() -> dict[str, int] | None:
            found = await varz(server)
            return None if found["connections"] else found

        before = await eventually(alone, 30)
        start, kept = Footprint.now(), await consumers(server)
        memory = Memory()
        async with LossyProxy(server) as proxy:
            watching = asyncio.create_task(memory.watch())
            await endure(server, proxy, seconds, scale.pick(3, 5), scale.chance(), outcome)
            watching.cancel()
            await asyncio.wait([watching])
        await finish(server, start, before, kept, outcome)
        outcome.figures |= {
            "RSS slope MB/min": round(memory.slope(warm_up), 2),
            "RSS MB": f"{memory.samples[0][1]:.0f} -> {memory.samples[-1][1]:.0f}",
        }
        # A short slope is chance; there, what is held at the end is judged alone.
        outcome.require(
            memory.slope(warm_up) < SLOPE_LIMIT or not scale.full,
            f"memory grows by {memory.slope(warm_up):.2f} MB a minute",
        )
    return outcome


async def endure(
    server: Server,
    proxy: LossyProxy,
    seconds: float,
    interval: float,
    chance: random.Random,
    outcome: Outcome,
) -> None:
    """The work, and a fault every ``interval`` seconds; after each one every part must go on."""
    struck: Counter[str] = Counter()
    slowest = 0.0
    began = time.monotonic()
    async with Soak(proxy.url, "soak", capacity=round(200 * seconds)) as soak:
        faults = Faults(server, proxy, soak)
        await eventually(lambda: not soak.stuck(Counter()), PATIENCE)
        held = await client_subscriptions(server)
        while time.monotonic() < began + seconds:
            next_one = time.monotonic() + interval
            name = await faults.strike(chance)
            struck[name] += 1
            over, since = time.monotonic(), soak.progress.copy()
            try:
                await eventually(lambda since=since: not soak.stuck(since), PATIENCE)  # type: ignore[misc]
            except AssertionError:
                outcome.problems.append(f"{soak.stuck(since)} stuck after fault {struck.total()}, {name}")
            slowest = max(slowest, time.monotonic() - over)
            await asyncio.sleep(max(0.0, next_one - time.monotonic()))
        await soak.stop_publishing()
        await settle(server, soak, held, outcome)
    outcome.figures |= {
        "minutes": round((time.monotonic() - began) / 60, 1),
        "faults": struck.total(),
        "slowest recovery s": round(slowest, 1),
    }


async def settle(server: Server, soak: Soak, held: dict[str, int], outcome: Outcome) -> None:
    """All is well again: every job is done, and each connection has the subscriptions that it began with."""
    try:
        await eventually(lambda: not soak.unprocessed, 30)
    except AssertionError:
        lost = soak.unprocessed
        outcome.problems.append(
            f"{len(lost)} of {soak.published} stored jobs were never delivered (job: sequence): {lost}"
        )
    jobs = await soak.nc.jetstream().get_stream("JOBS")

    async def acked() -> bool:
        return (await jobs.info()).state.messages == 0

    try:
        await eventually(acked, 20)
    except AssertionError:
        outcome.problems.append(f"{(await jobs.info()).state.messages} jobs are done and not acked")

    async def as_before() -> bool:
        # A fetch under way has one more, in both counts.
        now = await client_subscriptions(server)
        return all(abs(now.get(name, 0) - count) <= 1 for name, count in held.items())

    try:
        await eventually(as_before, 30)
    except AssertionError:
        outcome.problems.append(f"subscriptions: {held} at first, {await client_subscriptions(server)} now")
    outcome.problems += [f"{what} ({count} times)" for what, count in soak.unexpected.items() if count]
    outcome.figures |= {
        "jobs": soak.published,
        "lost": len(soak.unprocessed),
        "received": sum(soak.progress[part] for part in PARTS),
    }


async def finish(
    server: Server, start: Footprint, before: dict[str, int], kept: list[str], outcome: Outcome
) -> None:
    """All is closed: as it was at the start."""

    async def clean() -> bool:
        after = await varz(server)
        return (
            after["connections"] == 0
            and after["subscriptions"] <= before["subscriptions"]
            and await consumers(server) == kept
        )

    try:
        await eventually(clean, 30)
    except AssertionError:
        after = await varz(server)
        outcome.problems.append(
            f"on the server: {after['connections']} connections, {after['subscriptions']} subscriptions "
            f"({before['subscriptions']} at the start), consumers {await consumers(server)}, not {kept}"
        )
    end = await Footprint.settled(start)
    outcome.problems += end.excess(start)
    outcome.figures |= {
        "descriptors": f"{start.descriptors} -> {end.descriptors}",
        "tasks": f"{start.tasks} -> {end.tasks}",
        "threads": f"{start.threads} -> {end.threads}",
        "server consumers": f"{len(kept)} -> {len(await consumers(server))}",
        "server subscriptions": f"{before['subscriptions']} -> {(await varz(server))['subscriptions']}",
    }


ROW = Row(8, "soak with a fault every 5 s", run, minutes=13)


def test_f08() -> None:
    check(ROW)
