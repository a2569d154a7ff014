"""F20: workers that fetch until empty while the server is stopped, killed and restarted: no false "empty".

A job that ends with the first empty answer is a success only if the server gave that answer. So each empty
answer is compared with the truth: the server was there in the time of the fetch, and its consumer has nothing
that it has not sent. (What was sent to a link that broke comes again after ack_wait. That is not "waiting".)
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import jetspark
from jetspark import ConsumerConfig, StorageType, StreamConfig, blocking
from jetspark.errors import JetsparkError
from jetspark.server import Server
from support.fault_table import Outcome, Row, Scale, check
from support.fault_workload import within

if TYPE_CHECKING:
    import random

JOBS = 120
ACK_WAIT = 2.0


class Truth:
    """The server, what happens to it, and what workers were told."""

    def __init__(self, server: Server, chance: random.Random) -> None:
        self.server, self.chance = server, chance
        self.outcome = Outcome()
        self.done: set[int] = set()
        self.down = False
        self.changes = 0
        """Counts each end and each return of the server."""
        self.kills = 0
        self.figures: Counter[str] = Counter()
        self._lock = threading.Lock()

    def change(self, *, down: bool) -> None:
        with self._lock:
            self.down = down
            self.changes += 1

    def take(self, message: Any) -> None:
        with self._lock:
            self.done.add(int(message.data))

    def failed(self, error: JetsparkError) -> None:
        with self._lock:
            self.figures[type(error).__name__] += 1

    def was_away(self, before: int) -> bool:
        """Whether it has been away ever since there had been so many changes."""
        with self._lock:
            return self.down and self.changes == before

    def judge(self, worker: str, kills: int, waiting: int) -> None:
        """An empty answer after so many kills, and what the consumer had left when it was asked later."""
        with self._lock:
            if kills != self.kills:
                self.figures["unchecked"] += 1  # a killed server forgets what it sent last
                return
            self.figures["checked"] += 1
        self.outcome.require(not waiting, f"{worker}: empty, but {waiting} messages wait")

    def lie(self, worker: str) -> None:
        self.outcome.problems.append(f"{worker}: empty, but the server was away all the time")

    async def fault(self, kinds: tuple[str, ...], away: float) -> None:
        """Away for a moment that is shorter or longer than a fetch."""
        kind = self.chance.choice(kinds)
        pause = away or self.chance.uniform(0.2, 3.0)
        self.figures[kind] += 1
        self.kills += kind == "kill"
        await asyncio.to_thread(getattr(self.server, kind))
        self.change(down=True)
        await asyncio.sleep(pause)
        self.change(down=False)
        await asyncio.to_thread(self.server.resume if kind == "suspend" else self.server.start)


Fetch = Callable[[Any], Awaitable[list[Any]]]


async def _next(consumer: jetspark.Consumer) -> list[Any]:
    message = await consumer.next(expires=0.5)
    return [] if message is None else [message]


async def _iterate(consumer: jetspark.Consumer) -> list[Any]:
    return [message async for message in consumer.fetch(3, expires=0.5)]


FACES: dict[str, Fetch] = {
    "fetch": lambda consumer: consumer.fetch(3, expires=0.5)._collect(),
    "no_wait": lambda consumer: consumer.fetch_no_wait(3)._collect(),
    "next": _next,
    "iterated": _iterate,
}


async def work(truth: Truth, name: str, fetch: Fetch, pace: float, ready: threading.Semaphore) -> None:
    """Fetch until empty."""
    async with jetspark.connect(truth.server.url, reconnect_wait=0.05, reconnect_wait_max=0.2) as nc:
        consumer = await nc.jetstream(timeout=1).get_consumer("F20", "worker")
        ready.release()
        while True:
            before, kills = truth.changes, truth.kills
            try:
                batch = await fetch(consumer)
            except JetsparkError as error:
                truth.failed(error)
                await asyncio.sleep(0.05)
                continue
            for message in batch:
                truth.take(message)
                await message.ack()
            await asyncio.sleep(pace)
            if batch:
                continue
            if truth.was_away(before):
                truth.lie(name)
                return
            while True:
                with contextlib.suppress(JetsparkError):
                    waiting = (await consumer.info()).num_pending
                    break
            truth.judge(name, kills, waiting)
            return


def work_in_a_thread(truth: Truth, pace: float, ready: threading.Semaphore) -> None:
    with blocking.connect(truth.server.url, reconnect_wait=0.05, reconnect_wait_max=0.2) as nc:
        consumer = nc.jetstream(timeout=1).get_consumer("F20", "worker")
        ready.release()
        while True:
            before, kills = truth.changes, truth.kills
            try:
                batch = consumer.fetch(3, expires=0.5)
            except JetsparkError as error:
                truth.failed(error)
                continue
            for message in batch:
                truth.take(message)
                message.ack()
            time.sleep(pace)
            if batch:
                continue
            if truth.was_away(before):
                truth.lie("blocking fetch")
                return
            while True:
                with contextlib.suppress(JetsparkError):
                    waiting = consumer.info().num_pending
                    break
            truth.judge("blocking fetch", kills, waiting)
            return


async def one_round(truth: Truth, faults: int, kinds: tuple[str, ...], away: float) -> None:
    truth.done.clear()
    async with jetspark.connect(truth.server.url, reconnect_wait=0.05, reconnect_wait_max=0.2) as nc:
        js = nc.jetstream(timeout=10)
        config = StreamConfig(name="F20", subjects=["f20"], storage=StorageType.FILE)
        stream = await js.create_stream(config)
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker", ack_wait=ACK_WAIT))
        for number in range(JOBS):
            await js.publish("f20", b"%d" % number)
        pace = 0.02
        ready = threading.Semaphore(0)
        workers = [
            asyncio.create_task(work(truth, name, fetch, pace, ready)) for name, fetch in FACES.items()
        ]
        workers.append(asyncio.create_task(asyncio.to_thread(work_in_a_thread, truth, pace, ready)))
        for _ in workers:
            await asyncio.to_thread(ready.acquire)
        for part in range(1, faults + 1):
            # In the middle of the work.
            goal = truth.chance.randrange(JOBS * part // (faults + 1))
            await within(20.0, lambda: len(truth.done) >= goal or all(one.done() for one in workers))  # noqa: B023
            await truth.fault(kinds, away)
        await asyncio.wait_for(asyncio.gather(*workers), 60)

        async def finished() -> bool:
            with contextlib.suppress(JetsparkError):
                for message in await consumer.fetch(50, expires=0.5):
                    truth.take(message)
                    await message.ack_sync(timeout=2)
                info = await consumer.info()
                return not (info.num_pending or info.num_ack_pending)
            return False

        deadline = asyncio.get_running_loop().time() + 30
        while not await finished() and asyncio.get_running_loop().time() < deadline:
            pass
        lacking = sorted(set(range(JOBS)) - truth.done)
        truth.outcome.require(not lacking, f"{len(lacking)} jobs never done: {lacking[:5]}")
        await js.delete_stream("F20")


async def until_empty(
    *,
    rounds: int,
    faults: int,
    chance: random.Random,
    kinds: tuple[str, ...] = ("suspend", "kill", "terminate"),
    away: float = 0.0,
) -> Outcome:
    """``away``: seconds of each fault; 0: by chance."""
    with Server(name="f20") as server:
        truth = Truth(server, chance)
        for _ in range(rounds):
            await one_round(truth, faults, kinds, away)
    outcome = truth.outcome
    counts = truth.figures
    told = {name: count for name, count in sorted(counts.items()) if name[0].isupper()}
    outcome.figures = {
        "rounds": rounds,
        "stops": counts["suspend"],
        "kills": counts["kill"],
        "restarts": counts["terminate"],
        "empty answers checked": counts["checked"],
        "not to be checked": counts["unchecked"],
        "errors instead": told,
    }
    outcome.require(bool(told), "no fetch met a fault")
    return outcome


async def run(scale: Scale) -> Outcome:
    return await until_empty(rounds=scale.pick(2, 25), faults=scale.pick(2, 3), chance=scale.chance())


ROW = Row(20, "fetch until empty while the server goes and comes", run, minutes=8)


def test_f20() -> None:
    check(ROW)
