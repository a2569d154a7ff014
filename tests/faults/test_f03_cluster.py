"""F3: leaders die, servers restart and leave, under publish and consume of a replicated stream.

Recovery is the longest standstill of acks or of messages from the fault until an id published after it is
acked and one is processed, for the async and the blocking user. It includes the election, for which the
server takes 4 to 9 s after a kill: a follower waits so long, at random, before it stands for election. When
the votes are split, or a busy machine keeps the new leader from its work, it takes longer, as the server's
own monitoring shows. The client has two seconds from the end of the election on, which is twice what it waits
between two tries, and what the machine kept this process from running.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark.errors import JetsparkError
from jetspark.events import LameDuck
from jetspark.jetstream.publish import acks as publisher_acks
from support.fault_table import Outcome, Row, Scale, check
from support.fault_workload import BlockingWorkload, Workload, audit, within
from support.helpers import Stalls, three_nodes, unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jetspark import PubAck
    from jetspark.server import Cluster, Server

RECOVERY = 10.0
LONGEST_ELECTION = 9.0
AFTER_ELECTION = 2.0
LEAVE_SOON = 'lame_duck_duration: "30s"\nlame_duck_grace_period: "200ms"'


def leaders(cluster: Cluster, stream: str) -> dict[str, Server]:
    """Who leads the stream and its consumer now, by their own word: keys "stream" and "consumer"."""
    found: dict[str, Server] = {}
    for server in cluster.servers:
        if not server.running:
            continue
        for details in _jsz(server).get("account_details", []):
            for one in details.get("stream_detail", []):
                if one["name"] != stream:
                    continue
                if one.get("cluster", {}).get("leader") == server.name:
                    found["stream"] = server
                for consumer in one.get("consumer_detail") or []:
                    if consumer.get("cluster", {}).get("leader") == server.name:
                        found["consumer"] = server
    return found


def _jsz(server: Server) -> dict[str, Any]:
    url = f"{server.http_url}/jsz?accounts=true&streams=true&consumers=true"
    try:
        with urllib.request.urlopen(url, timeout=2.0) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except OSError:
        return {}


@contextlib.contextmanager
def refusals() -> Iterator[Counter[str]]:
    """Counts what pipelined publishers were refused with, and so had to try again."""
    seen: Counter[str] = Counter()
    original = publisher_acks.read_answer

    def read(message: Any, subject: str) -> PubAck | JetsparkError:
        answer = original(message, subject)
        if isinstance(answer, JetsparkError):
            seen[type(answer).__name__] += 1
        return answer

    publisher_acks.read_answer = read
    try:
        yield seen
    finally:
        publisher_acks.read_answer = original


class Trial:
    """One cluster, both users, and the books on how long each fault was felt."""

    def __init__(self, cluster: Cluster, patience: float, timed: bool) -> None:
        self.cluster, self.patience, self.timed = cluster, patience, timed
        self.outcome = Outcome()
        options: dict[str, Any] = {"replicas": 3, "pace": 0.005, "ack_wait": 5.0, "ack_timeout": 24.0}
        self.aio = Workload(cluster.urls, unique("F3A"), **options)
        self.threads = BlockingWorkload(cluster.urls, unique("F3B"), **options)
        self.users = (self.aio, self.threads)
        self.recoveries: dict[str, list[float]] = {}
        self.elections: list[float] = []
        self.long_elections = 0
        self.down: Server | None = None

    async def start(self) -> None:
        await self.aio.start()
        await asyncio.to_thread(self.threads.start)
        await self._flowing()

    async def finish(self) -> int:
        await self.aio.finish(self.patience, self.outcome)
        await asyncio.to_thread(self.threads.finish, self.patience, self.outcome)
        stored = 0
        for user in self.users:
            await self._replicas_agree(user.name)
            stored += await audit(self.cluster.urls, user.name, user.ledger, self.outcome)
        return stored

    async def _flowing(self) -> None:
        """All servers run and both users publish and process, so that the fault strikes in the middle."""
        if self.down is not None:
            await asyncio.to_thread(self.down.start)
            self.down = None
        for user in self.users:
            user.ledger.mark()
            user.ledger.struck()
        if not await within(self.patience, self._recovered):
            self.outcome.problems.append(f"stands still without a fault: {self._state()}")

    def _recovered(self) -> bool:
        return all(user.ledger.recovered() for user in self.users)

    def _state(self) -> str:
        return " | ".join(f"{user.name}: {user.ledger.state}" for user in self.users)

    async def fault(self, kind: str, strike: Callable[[], None]) -> bool:
        """Strike, wait for recovery and judge it; False when there was none."""
        for user in self.users:
            user.ledger.mark()
        began = time.monotonic()
        await asyncio.to_thread(strike)
        for user in self.users:
            user.ledger.struck()
        election = asyncio.create_task(self._election(began))
        async with Stalls() as stalls:
            recovered = await within(self.patience, self._recovered)
        if not recovered:
            election.cancel()
            self.outcome.problems.append(f"{kind}: no recovery in {self.patience:g} s: {self._state()}")
            return False
        took = max(user.ledger.recovery() for user in self.users)
        elected = await election
        self.recoveries.setdefault(kind, []).append(took)
        self.elections.append(elected)
        long = elected > LONGEST_ELECTION
        self.long_elections += long
        limit = max(RECOVERY, elected + AFTER_ELECTION + stalls.seconds)
        self.outcome.require(
            took <= limit or not self.timed,
            f"{kind}: recovery took {took:.1f} s, the election {elected:.1f} s: {self._state()}",
        )
        return True

    async def _election(self, began: float) -> float:
        """Seconds until both streams and their consumers have leaders."""
        while True:
            found = [await asyncio.to_thread(leaders, self.cluster, user.name) for user in self.users]
            if all(len(one) == 2 for one in found):
                return time.monotonic() - began
            await asyncio.sleep(0.1)

    async def kill_leader(self, user: Workload | BlockingWorkload, of: str) -> bool:
        await self._flowing()
        found: dict[str, Server] = {}

        async def known() -> bool:
            found.update(await asyncio.to_thread(leaders, self.cluster, user.name))
            return of in found

        deadline = time.monotonic() + self.patience
        while not await known():
            if time.monotonic() > deadline:
                self.outcome.problems.append(f"nobody leads the {of} of {user.name}")
                return False
        victim = found[of]
        back = await self.fault(f"kill of the {of}'s leader", victim.kill)
        self.down = victim
        return back

    async def restart(self, server: Server) -> bool:
        await self._flowing()
        back = await self.fault("restart", server.terminate)
        self.down = server
        return back

    async def lame_duck(self) -> bool:
        """The server that the async user is connected to leaves."""
        await self._flowing()
        port = self.aio.nc.connected_url.rpartition(":")[2]
        server = next(one for one in self.cluster.servers if one.url.endswith(f":{port}"))
        told, moved = len(self.aio.events.of(LameDuck)), self.aio.nc.stats.reconnects

        back = await self.fault("lame duck", lambda: self._let_go(server))
        self.outcome.require(self.aio.nc.stats.reconnects > moved, "nobody left the server in lame duck mode")
        self.outcome.require(len(self.aio.events.of(LameDuck)) > told, "no LameDuck event")
        self.down = server
        return back

    def _let_go(self, server: Server) -> None:
        """It hands over what it leads, sends its clients away and ends."""
        server.signal_lame_duck()
        deadline = time.monotonic() + self.patience
        while server.running:
            if time.monotonic() > deadline:
                self.outcome.problems.append("the server in lame duck mode did not end")
                return
            time.sleep(0.05)

    async def _replicas_agree(self, stream: str) -> None:
        """Any replica answers a direct get, so all that run must have everything."""
        others = sum(server.running for server in self.cluster.servers) - 1
        async with jetspark.connect(self.cluster.urls) as nc:
            js = nc.jetstream(timeout=5)
            deadline = time.monotonic() + self.patience
            while time.monotonic() < deadline:
                with contextlib.suppress(JetsparkError):
                    info = await (await js.get_stream(stream)).info()
                    replicas = info.cluster.replicas if info.cluster else []
                    if sum(one.current and not one.lag for one in replicas) == others:
                        return
                await asyncio.sleep(0.1)
        self.outcome.problems.append(f"the replicas of {stream} do not agree after {self.patience:g} s")


async def cluster_faults(
    seed: int, *, kills: int, restarts: int, lame_ducks: int, timed: bool, patience: float = 40.0
) -> Outcome:
    """``timed``: whether a recovery has to be in time, which takes a machine that does nothing else."""
    chance = random.Random(seed)
    with three_nodes(LEAVE_SOON) as cluster, refusals() as refused:
        trial = Trial(cluster, patience, timed)
        await trial.start()
        aio, threads = trial.users
        targets = [(aio, "stream"), (threads, "consumer"), (threads, "stream"), (aio, "consumer")]
        first = chance.randrange(4)
        steps: list[Any] = [
            (lambda target=targets[(first + number) % 4]: trial.kill_leader(*target))
            for number in range(kills)
        ]
        # Rolling: all servers, one after the other.
        steps += [
            (lambda server=cluster.servers[number % 3]: trial.restart(server)) for number in range(restarts)
        ]
        steps += [trial.lame_duck] * lame_ducks
        for step in steps:
            if not await step():
                break
        stored = await trial.finish()
        outcome = trial.outcome
    stats = [user.publisher.stats for user in trial.users]
    for one in stats:
        outcome.require(one.failed == 0, f"the publisher counts {one.failed} failures")
    ledgers = [user.ledger for user in trial.users]
    outcome.figures = {
        **{f"{kind}s": len(times) for kind, times in trial.recoveries.items()},
        "published": sum(ledger.issued for ledger in ledgers),
        "acked": sum(len(ledger.acked) for ledger in ledgers),
        "stored": stored,
        "sent again": sum(one.resent for one in stats),
        "processed": sum(len(ledger.processed) for ledger in ledgers),
        "delivered again": sum(ledger.again for ledger in ledgers),
        "slowest recovery s": {kind: round(max(times), 1) for kind, times in trial.recoveries.items()},
        "recoveries over 10 s": sum(took > RECOVERY for times in trial.recoveries.values() for took in times),
        "slowest election s": round(max(trial.elections, default=0.0), 1),
        "elections over 9 s": trial.long_elections,
        "refusals retried": dict(refused),
        "errors shown by js.publish": dict(sum((ledger.shown for ledger in ledgers), Counter())),
        "warnings of consume": dict(sum((ledger.warned for ledger in ledgers), Counter())),
    }
    return outcome


async def run(scale: Scale) -> Outcome:
    return await cluster_faults(
        scale.seed,
        kills=scale.pick(1, 10),
        restarts=scale.pick(0, 9),
        lame_ducks=scale.pick(0, 1),
        timed=scale.full,
    )


ROW = Row(3, "cluster: leader kills, rolling restarts, lame duck", run, minutes=12)


@pytest.mark.cluster
def test_f03() -> None:
    check(ROW)
