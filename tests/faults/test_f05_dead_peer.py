"""F5: a server that hangs instead of hanging up (SIGSTOP): it is found in time, and pulls go on elsewhere.

What the consumer sends to pull requests that came through the hanging server is lost until ack_wait is over:
for the rest of the cluster that server is still there. So messages are fed all the time; pulls have resumed
when one of those that were published after the stop arrives, and in the end all of them must have.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

import pytest

import jetspark
from jetspark import ConsumerConfig, StorageType, StreamConfig, blocking
from jetspark.errors import ConnectionLost, JetsparkError, PullWarning
from jetspark.events import Disconnected
from support.fault_table import Outcome, Row, Scale, check
from support.fault_workload import within
from support.helpers import Stalls, three_nodes, unique, until_answered

if TYPE_CHECKING:
    from jetspark.events import Event
    from jetspark.server import Cluster, Server

# Beside what the machine kept us waiting, by Stalls. Far less than the interval that it is added to.
SLACK = 0.25
# To reconnect and to pull; and, where a leader has to be elected, what the server may need for that.
RESUME = 2.0
ELECTION = 10.0
HEARTBEAT = 1.0
ACK_WAIT = 2.0


class User(Protocol):
    """Somebody who pulls. ``got``: what came and when; ``errors``: what it was shown."""

    label: str
    got: dict[int, float]
    errors: list[JetsparkError]

    def disconnects(self) -> list[tuple[float, Disconnected]]: ...

    async def start(self, servers: list[str], stream: str, interval: float) -> None: ...

    async def stop(self) -> None: ...


class Base:
    def __init__(self) -> None:
        self.got: dict[int, float] = {}
        self.errors: list[JetsparkError] = []
        self.events: list[tuple[float, Event]] = []

    def note(self, event: Event) -> None:
        self.events.append((time.monotonic(), event))

    def disconnects(self) -> list[tuple[float, Disconnected]]:
        return [(at, event) for at, event in list(self.events) if isinstance(event, Disconnected)]

    def take(self, message: Any) -> None:
        self.got.setdefault(int(message.data), time.monotonic())


def durable(name: str) -> ConsumerConfig:
    return ConsumerConfig(durable_name=name, ack_wait=ACK_WAIT)


class Consumes(Base):
    label = "consume"

    async def start(self, servers: list[str], stream: str, interval: float) -> None:
        self.nc = await jetspark.connect(
            servers, randomize=False, ping_interval=interval, listener=self.note, ignore_discovered=True
        )
        js = self.nc.jetstream(timeout=2)
        consumer = await until_answered(lambda: js.create_consumer(stream, durable("consume")))
        self.consume = consumer.consume_with(
            self._take, idle_heartbeat=HEARTBEAT, expires=10, on_error=self.errors.append
        )
        await self.consume.__aenter__()

    async def _take(self, message: Any) -> None:
        self.take(message)
        await message.ack()

    async def stop(self) -> None:
        await self.consume.stop()
        await self.nc.close()


class Fetches(Base):
    """One long fetch after the other."""

    label = "fetch"

    async def start(self, servers: list[str], stream: str, interval: float) -> None:
        self.nc = await jetspark.connect(
            servers, randomize=False, ping_interval=interval, listener=self.note, ignore_discovered=True
        )
        js = self.nc.jetstream(timeout=2)
        self.consumer = await until_answered(lambda: js.create_consumer(stream, durable("fetch")))
        self.task = asyncio.create_task(self._fetch())

    async def _fetch(self) -> None:
        while True:
            try:
                for message in await self.consumer.fetch(1, expires=20, idle_heartbeat=HEARTBEAT):
                    self.take(message)
                    await message.ack()
            except JetsparkError as error:
                # A fetch is one request, and ends with what ends it; the next one goes to the new leader.
                self.errors.append(error)
                await asyncio.sleep(0.1)

    async def stop(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        await self.nc.close()


class Blocks(Base):
    label = "blocking consume"

    async def start(self, servers: list[str], stream: str, interval: float) -> None:
        self.nc = await asyncio.to_thread(
            blocking.connect,
            servers,
            randomize=False,
            ping_interval=interval,
            listener=self.note,
            ignore_discovered=True,
        )
        js = self.nc.jetstream(timeout=2)
        config = durable("blocking")
        consumer = await until_answered(lambda: asyncio.to_thread(js.create_consumer, stream, config))
        await asyncio.to_thread(self._start, consumer)

    def _start(self, consumer: blocking.Consumer) -> None:
        self.consume = consumer.consume(
            idle_heartbeat=HEARTBEAT, expires=10, on_error=self.errors.append
        ).__enter__()
        self.thread = threading.Thread(target=self._iterate, daemon=True)
        self.thread.start()

    def _iterate(self) -> None:
        for message in self.consume:
            self.take(message)
            message.ack()

    async def stop(self) -> None:
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        self.consume.__exit__(None, None, None)
        self.thread.join(5)
        self.nc.close()


class Trial:
    def __init__(self, cluster: Cluster, interval: float, patience: float, timed: bool) -> None:
        self.cluster, self.interval, self.patience, self.timed = cluster, interval, patience, timed
        self.outcome = Outcome()
        self.found: list[float] = []
        self.resumed: list[float] = []
        self.elected: list[float] = []
        self.fed = 0

    async def round(self, *, replicas: int, suspend: str) -> None:
        """``suspend``: "ours" is the server of the connections, "leader" that of the stream, or "both"."""
        async with jetspark.connect(self.cluster.urls) as nc:
            js = nc.jetstream(timeout=20)
            name = unique("F5")
            await js.create_stream(
                StreamConfig(name=name, subjects=[name], storage=StorageType.MEMORY, num_replicas=replicas)
            )
            home = await self._leader(name)
            others = [server for server in self.cluster.servers if server is not home]
            ours = home if suspend == "both" else others[0]
            victim = home if suspend == "leader" else ours
            users: list[User] = [Consumes(), Fetches(), Blocks()]
            started: list[User] = []
            servers = [ours.url, *(one.url for one in self.cluster.servers if one is not ours)]
            feeding = asyncio.create_task(self._feed(others[1].url, name))
            try:
                for user in users:
                    await user.start(servers, name, self.interval)
                    started.append(user)
                if await self._resume(users, 30.0):
                    await self._hang(users, victim, suspend)
            finally:
                feeding.cancel()
                await asyncio.wait([feeding])
                for user in started:
                    await user.stop()
            await js.delete_stream(name)

    async def _feed(self, url: str, name: str) -> None:
        """Number after number, by way of a server that lives."""
        self.fed = 0
        async with jetspark.connect(url, ignore_discovered=True) as nc:
            js = nc.jetstream(timeout=1)
            while True:
                # While the stream has no leader: the same id again is harmless.
                with contextlib.suppress(JetsparkError):
                    await js.publish(name, str(self.fed).encode(), msg_id=str(self.fed))
                    self.fed += 1
                    await asyncio.sleep(0.02)

    async def _hang(self, users: list[User], victim: Server, suspend: str) -> None:
        stopped = time.monotonic()
        victim.suspend()
        try:
            elects = suspend != "ours"
            limit = (ELECTION + 2 * HEARTBEAT) if elects else 2 * self.interval + RESUME
            async with Stalls() as stalls:
                took = await self._resume(users, max(limit, self.patience))
            if took is None:
                return
            (self.elected if elects else self.resumed).append(took)
            self.outcome.require(
                took <= limit + stalls.seconds or not self.timed,
                f"{suspend}: pulls resumed after {took:.2f} s of {limit:g} s",
            )
            if suspend != "leader":
                # The listener of a blocking connection has a thread of its own, which may come late.
                await within(10.0, lambda: all(user.disconnects() for user in users))
                for user in users:
                    self._judge_detection(user, stopped, stalls.seconds)
        finally:
            victim.resume()
            await asyncio.to_thread(self.cluster.wait_ready)
        last = self.fed
        complete = await within(
            max(self.patience, ACK_WAIT + 5),
            lambda: all(set(range(last)) <= user.got.keys() for user in users),
        )
        for user in users:
            lacking = sorted(set(range(last)) - user.got.keys())
            self.outcome.require(complete, f"{user.label} never got {len(lacking)}: {lacking[:3]}")
            strange = [error for error in user.errors if not isinstance(error, PullWarning)]
            self.outcome.require(not strange, f"{user.label} was shown {strange[:3]!r}")

    async def _resume(self, users: list[User], seconds: float) -> float | None:
        """Seconds until everybody has got something that was published after this call; None: not in time."""
        # The next but one: the next may be on its way already.
        began, first = time.monotonic(), self.fed + 1

        def resumed() -> bool:
            return all(any(number >= first for number in user.got) for user in users)

        if not await within(seconds, resumed):
            silent = {
                user.label: user.errors[-3:]
                for user in users
                if not any(number >= first for number in user.got)
            }
            self.outcome.problems.append(f"no message in {seconds:g} s: {silent}")
            return None
        return max(min(at for number, at in user.got.items() if number >= first) for user in users) - began

    def _judge_detection(self, user: User, stopped: float, stalled: float) -> None:
        lost = user.disconnects()
        if len(lost) != 1:
            self.outcome.problems.append(f"{user.label}: {len(lost)} disconnects instead of one")
            return
        at, event = lost[0]
        self.found.append(at - stopped)
        self.outcome.require(
            at - stopped <= 2 * self.interval + SLACK + stalled or not self.timed,
            f"{user.label}: found after {at - stopped:.2f} s with ping_interval={self.interval:g}",
        )
        self.outcome.require(
            isinstance(event.error, ConnectionLost) and "is dead" in str(event.error),
            f"{user.label}: the wrong error, {event.error!r}",
        )

    async def _leader(self, stream: str) -> Server:
        found: Server | None = None
        deadline = time.monotonic() + 20
        while found is None and time.monotonic() < deadline:
            found = await asyncio.to_thread(self.cluster.leader_of, stream)
        assert found is not None, f"nobody leads {stream}"
        return found


async def dead_peer(
    *, rounds: int, elections: int, interval: float, patience: float = 20.0, timed: bool = True
) -> Outcome:
    """``timed``: whether it has to be found in time, which takes a machine that does nothing else."""
    with three_nodes() as cluster:
        trial = Trial(cluster, interval, patience, timed)
        for _ in range(rounds):
            await trial.round(replicas=1, suspend="ours")
        for number in range(elections):
            await trial.round(replicas=3, suspend=("both", "leader")[number % 2])
    outcome = trial.outcome
    outcome.figures = {
        "stops": rounds + elections,
        "ping interval s": interval,
        "slowest found s": round(max(trial.found, default=0.0), 2),
        "slowest pull elsewhere s": round(max(trial.resumed, default=0.0), 2),
    }
    if elections:
        outcome.figures["slowest pull with an election s"] = round(max(trial.elected, default=0.0), 2)
    return outcome


async def run(scale: Scale) -> Outcome:
    return await dead_peer(
        rounds=scale.pick(1, 8),
        elections=scale.pick(0, 4),
        interval=1.0 if scale.full else 1.5,
        # The short form shares the machine; tests/connection/test_dead_peer.py has the time.
        patience=20.0 if scale.full else 60.0,
        timed=scale.full,
    )


ROW = Row(5, "dead peer (SIGSTOP)", run, alone=True, minutes=6)


@pytest.mark.cluster
def test_f05() -> None:
    check(ROW)
