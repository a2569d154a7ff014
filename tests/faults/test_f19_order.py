"""F19: a publisher with retry over cut links and restarts: each subject in order, the last value last."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import jetspark
from jetspark import StorageType, StreamConfig
from jetspark.server import Server
from support.fault_table import Outcome, Row, Scale, check
from support.helpers import eventually, unique
from support.lossy_proxy import LossyProxy

if TYPE_CHECKING:
    from random import Random

SUBJECTS = 7
PATIENCE = 60.0


async def _strike(server: Server, proxy: LossyProxy, chance: Random, restart: bool) -> None:
    """What is on its way is lost, in one direction or both; then the link is, perhaps with the server."""
    proxy.swallow_up = chance.random() < 0.7
    proxy.swallow_down = not proxy.swallow_up or chance.random() < 0.3
    await asyncio.sleep(chance.random() * 0.02)
    if restart:
        server.kill()
    await proxy.cut()
    if restart:
        await asyncio.sleep(chance.random() * 0.05)
        await asyncio.to_thread(server.restart)


async def order(seed: int, *, faults: int) -> Outcome:
    chance, outcome = Scale(full=False, seed=seed).chance(), Outcome()
    name = unique("F19")
    last: dict[str, int] = {}
    with Server(name="f19") as server:
        async with (
            LossyProxy(server) as proxy,
            jetspark.connect(proxy.url, reconnect_wait=0.005, reconnect_wait_max=0.05) as nc,
        ):
            js = nc.jetstream(timeout=PATIENCE)
            await js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"], storage=StorageType.FILE))
            done = asyncio.Event()
            futures: list[asyncio.Future[jetspark.PubAck]] = []

            async def publish() -> None:
                while not done.is_set():
                    number = len(futures)
                    subject = f"{name}.{chance.randrange(SUBJECTS)}"
                    last[subject] = number
                    futures.append(await publisher.publish(subject, b"%d" % number, msg_id=str(number)))
                    if number % 50 == 0:
                        await asyncio.sleep(0)

            async with js.publisher(retry=True, ack_timeout=PATIENCE, window=500) as publisher:
                publishing = asyncio.create_task(publish())
                for number in range(faults):
                    acked = publisher.stats.acked
                    await _strike(server, proxy, chance, restart=number % 3 == 2)
                    await eventually(lambda acked=acked: publisher.stats.acked >= acked + 500, PATIENCE)
                done.set()
                await publishing
            stats, reconnects = publisher.stats, nc.stats.reconnects
        async with jetspark.connect(server.url) as reader:
            stream = await reader.jetstream(timeout=PATIENCE).get_stream(name)
            stored = [
                (message.subject, int(message.data), message.sequence)
                async for message in stream.get_msgs(batch=5000)
            ]
    numbers = [number for _, number, _ in stored]
    back = sum(one > another for one, another in itertools.pairwise(numbers))
    outcome.require(back == 0, f"{back} steps back in time")
    outcome.require(numbers == list(range(len(futures))), f"{len(numbers)} stored of {len(futures)}")
    found = {subject: number for subject, number, _ in stored}
    wrong = [subject for subject, number in last.items() if found.get(subject) != number]
    outcome.require(not wrong, f"the last value is an old one: {wrong}")
    lies = [number for _, number, sequence in stored if futures[number].result().seq != sequence]
    outcome.require(not lies, f"acks with another sequence: {lies[:5]}")
    outcome.require(stats.failed == 0, f"{stats.failed} failed")
    outcome.require(stats.resent > 0, "nothing had to be sent again")
    outcome.figures = {
        "faults": faults,
        "reconnects": reconnects,
        "published": len(futures),
        "sent again": stats.resent,
        "duplicates refused": stats.duplicates,
        "steps back in time": back,
    }
    return outcome


async def run(scale: Scale) -> Outcome:
    return await order(scale.seed, faults=scale.pick(6, 120))


ROW = Row(19, "publisher with retry: order over cut links and restarts", run)


def test_f19() -> None:
    check(ROW)
