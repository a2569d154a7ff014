"""F9: a storm of reconnects: hundreds of clients of one server that restarts again and again.

The server stays down until every client has failed several times to reach it. So their waits are long when it
comes back, and the spread of those waits tells whether chance keeps them apart.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING

import jetspark
from jetspark.events import Disconnected, Reconnected, ReconnectFailed
from jetspark.server import Server
from support.fault_table import Outcome, Row, Scale, check
from support.fault_workload import within
from support.helpers import Stalls

if TYPE_CHECKING:
    from jetspark.events import Event

BACK = 5.0
FAILURES = 4
# The waits before the attempt number FAILURES add up to 0.4 s on average, and are the same for all clients if
# there is no jitter. With it they are spread over 0.2 s. Times would differ on a busy machine anyway.
SPREAD = 0.12


class Member:
    """One client with its subscription."""

    def __init__(self, number: int) -> None:
        self.subject = f"storm.{number}"
        self.waits: list[float] = []
        """What the client chose to wait before each attempt that failed."""
        self._last = 0.0
        self.back_at: float | None = None
        self.got = 0
        """Number of the last round that its subscription heard of."""

    async def connect(self, url: str) -> None:
        self.nc = await jetspark.connect(url, listener=self._on_event, connect_timeout=20)
        await self.nc.subscribe(self.subject, callback=self._on_message)
        await self.nc.flush()

    def _on_event(self, event: Event) -> None:
        now = time.monotonic()
        if isinstance(event, Disconnected):
            self._last = now
            self.waits.clear()
            self.back_at = None
        elif isinstance(event, ReconnectFailed):
            self.waits.append(max(0.0, self.nc._core.pool.servers[0].not_before - self._last))
            self._last = now
        elif isinstance(event, Reconnected):
            self.back_at = now

    async def _on_message(self, message: jetspark.Msg) -> None:
        self.got = int(message.data)


async def storm(*, clients: int, restarts: int, patience: float = 20.0, timed: bool = True) -> Outcome:
    """``timed``: whether all have to be back in time, which takes a machine that does nothing else."""
    outcome = Outcome()
    slowest, spreads, crowds = [], [], []
    deaf = 0
    with Server(name="f9", jetstream=False) as server:
        members = [Member(number) for number in range(clients)]
        for member in members:
            await member.connect(server.url)
        for number in range(1, restarts + 1):
            server.kill()
            if not await within(patience, lambda: all(len(one.waits) >= FAILURES for one in members)):
                outcome.problems.append(f"round {number}: not all clients try again while the server is down")
                break
            waits = sorted(sum(one.waits[:FAILURES]) for one in members)
            started = time.monotonic()
            await asyncio.to_thread(server.start)
            ready = time.monotonic()
            async with Stalls() as stalls:
                back = await within(patience, lambda: all(one.back_at is not None for one in members))
            missing = sum(one.back_at is None for one in members)
            if not back:
                outcome.problems.append(f"round {number}: {missing} clients did not come back")
                break
            times = sorted((one.back_at or 0.0) - started for one in members)
            slowest.append(times[-1])
            # A busy machine starts the server late, and keeps us from running.
            outcome.require(
                times[-1] <= BACK + (ready - started) + stalls.seconds or not timed,
                f"round {number}: all back after {times[-1]:.2f} s, server ready in {ready - started:.2f} s",
            )
            if clients >= 10:
                spreads.append(_spread(waits))
                crowds.append(_busiest(times, 0.1))
            deaf += await _deaf(server, members, number, patience)
        for member in members:
            await member.nc.close()
    outcome.require(not deaf, f"{deaf} subscriptions are dead after a reconnect")
    spread = statistics.median(spreads) if spreads else 0.0
    outcome.require(spread >= SPREAD, f"no jitter: the waits of all clients differ by {spread:.3f} s")
    outcome.figures = {
        "clients": clients,
        "restarts": len(slowest),
        "slowest back s": round(max(slowest, default=0.0), 2),
        "spread of waits s": round(spread, 2),
        "back in the busiest 0.1 s": round(statistics.median(crowds)) if crowds else 0,
        "dead subscriptions": deaf,
    }
    return outcome


def _spread(times: list[float]) -> float:
    """Between the first and the last tenth."""
    return times[len(times) * 9 // 10] - times[len(times) // 10]


def _busiest(times: list[float], width: float) -> int:
    return max(sum(begin <= one < begin + width for one in times) for begin in times)


async def _deaf(server: Server, members: list[Member], number: int, patience: float) -> int:
    """How many subscriptions do not get a message that is sent to each of them."""
    async with jetspark.connect(server.url) as nc:
        for member in members:
            await nc.publish(member.subject, str(number).encode())
        await nc.flush()
        await within(min(5.0, patience), lambda: all(one.got == number for one in members))
    return sum(one.got != number for one in members)


async def run(scale: Scale) -> Outcome:
    return await storm(
        clients=200, restarts=scale.pick(1, 10), patience=20.0 if scale.full else 60.0, timed=scale.full
    )


ROW = Row(9, "storm of reconnects", run, alone=True, minutes=5)


def test_f09() -> None:
    check(ROW)
