"""F2: the power goes while messages are published. What was acked is there again, if the server syncs.

The server's store lies on a file system of its own. All threads of the server are stopped, the file system
is shut down without a flush, the server is killed; then the file system is mounted again and the server
restarted. A server stopped first is what makes it a power cut: processor and disk go at the same instant,
and no ack can leave for what the disk refused.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import jetspark
from jetspark import StorageType, StreamConfig
from jetspark.server import Server
from support.fault_table import Outcome, Row, Scale, check
from support.power import Disk, NoPower

if TYPE_CHECKING:
    import random

STREAM = "CUT"
AHEAD = 64


@dataclass
class Tally:
    """What one setting of ``sync_interval`` came to."""

    acked: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    stored: dict[str, list[int]] = field(default_factory=dict)
    cuts: int = 0

    @property
    def lost(self) -> list[str]:
        return [name for name in self.acked if name not in self.stored]

    @property
    def twice(self) -> list[str]:
        return [name for name, sequences in self.stored.items() if len(sequences) > 1]

    @property
    def moved(self) -> list[str]:
        """Acked with one sequence and stored under another."""
        return [
            name for name, sequence in self.acked.items() if self.stored.get(name, [sequence])[0] != sequence
        ]


async def power_cuts(disk: Disk, sync: str, cuts: int, per_cut: int, chance: random.Random) -> Tally:
    """Publish with ids and retry through that many cuts, then read the stream."""
    tally = Tally()
    store = disk.path / f"store-{sync}"
    interval = "" if sync == "default" else f", sync_interval: {sync}"
    config = f'jetstream {{ store_dir: "{store}"{interval} }}'
    with Server(store_dir=store, config=config, name=f"sync-{sync}") as server:
        async with jetspark.connect(server.url, reconnect_wait=0.02, reconnect_wait_max=0.1) as nc:
            js = nc.jetstream(timeout=20)
            stream = await js.create_stream(
                StreamConfig(name=STREAM, subjects=[STREAM], storage=StorageType.FILE, allow_direct=True)
            )
            # The stream itself is on the disk, so that a loss is one of messages.
            await asyncio.to_thread(disk.sync)
            enough = asyncio.Event()
            target = 0

            def note(name: str, future: asyncio.Future[jetspark.PubAck]) -> None:
                if future.exception() is not None:
                    tally.failed.append(f"{name}: {future.exception()!r}")
                else:
                    tally.acked[name] = future.result().seq
                if len(tally.acked) + len(tally.failed) >= target:
                    enough.set()

            async with js.publisher(retry=True, ack_timeout=60, window=AHEAD) as publisher:

                async def publish() -> None:
                    number = 0
                    while True:
                        name = f"m{number}"
                        future = await publisher.publish(STREAM, name.encode(), msg_id=name)
                        future.add_done_callback(lambda done, name=name: note(name, done))
                        number += 1

                publishing = asyncio.create_task(publish())
                for _ in range(cuts):
                    target = len(tally.acked) + chance.randint(per_cut // 2, per_cut)
                    enough.clear()
                    await asyncio.wait_for(enough.wait(), 60)
                    await asyncio.to_thread(_cut, server, disk)
                    tally.cuts += 1
                # Liveness: it goes on after the last one as well.
                target = len(tally.acked) + per_cut // 2
                enough.clear()
                await asyncio.wait_for(enough.wait(), 60)
                publishing.cancel()
                await asyncio.wait([publishing])
            async for message in stream.get_msgs(batch=1000):
                tally.stored.setdefault(message.data.decode(), []).append(message.sequence)
    return tally


def _cut(server: Server, disk: Disk) -> None:
    server.suspend()
    disk.cut()
    server.kill()
    disk.unmount()
    disk.mount()
    server.start()


async def run(scale: Scale) -> Outcome:
    outcome = Outcome()
    chance = scale.chance()
    with tempfile.TemporaryDirectory(prefix="jetspark-power-") as folder:
        try:
            with Disk(Path(folder)) as disk:
                always = await power_cuts(disk, "always", scale.pick(10, 20), scale.pick(200, 1500), chance)
                default = await power_cuts(disk, "default", scale.pick(2, 5), scale.pick(500, 5000), chance)
        except NoPower as error:
            return Outcome(missing=str(error))
    outcome.figures = {
        "cuts": always.cuts,
        "acked": len(always.acked),
        "acked lost": len(always.lost),
        "stored twice": len(always.twice),
        "with the default sync_interval acked": len(default.acked),
        "lost": len(default.lost),
    }
    outcome.require(not always.lost, f"acked and lost with sync_interval: always: {always.lost[:10]}")
    outcome.require(not always.twice, f"stored twice: {always.twice[:10]}")
    outcome.require(not always.moved, f"acked with another sequence: {always.moved[:10]}")
    outcome.require(not always.failed, f"not published in spite of retry: {always.failed[:10]}")
    # If nothing is lost here, then no power was cut, and the row above proves nothing.
    outcome.require(bool(default.lost), "the default sync_interval lost nothing: the harness does not bite")
    return outcome


ROW = Row(2, "power cut, sync_interval: always", run, minutes=6)


def test_f02() -> None:
    check(ROW)
