"""Servers die, hand over and leave during ``consume``: nothing is lost and nothing acked twice, by id.

Each message has an id. A handler asks for a confirmed ack and asks again until it has it, so that at the end
every id has exactly one confirmed ack, whatever happened in between, and the consumer agrees.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import StorageType
from jetspark.errors import JetsparkError, LeadershipChanged, MissedHeartbeat, PullWarning, ServerShutdown
from jetspark.events import LameDuck
from support.consuming import durable, make
from support.helpers import eventually, three_nodes
from support.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from jetspark import Consumer, Message
    from jetspark.server import Cluster, Server

COUNT = 1200


class Tally:
    """The handler: who came, and whose ack is confirmed."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.go = asyncio.Event()
        self.go.set()
        self.last = 0.0
        self.delivered: Counter[int] = Counter()
        self.acked: Counter[int] = Counter()
        self.unsure: set[int] = set()
        self.errors: list[JetsparkError] = []

    async def handle(self, message: Message) -> None:
        number = int(message.data)
        self.delivered[number] += 1
        await asyncio.sleep(0.005)  # some work, so that things happen in the middle of it
        await self.go.wait()
        until = time.monotonic() + self.patience
        while not message.is_acked:
            try:
                await message.ack_sync(timeout=0.5)
            except JetsparkError:
                if time.monotonic() > until:
                    # A killed server does not know of this delivery any more and answers nothing. Without
                    # patience it may be a busy one as well, which has the ack and does not ask for another.
                    if not self.patience:
                        self.unsure.add(number)
                    return
                # Nobody leads the consumer, or the way to it is broken: ask again, it is idempotent.
                await asyncio.sleep(0.05)
        self.acked[number] += 1
        self.last = time.monotonic()

    async def reach(self, count: int, timeout: float = 60.0) -> None:
        await eventually(lambda: len(self.acked.keys() | self.unsure) >= count, timeout)

    def twice(self) -> set[int]:
        return {number for number, count in self.acked.items() if count > 1}


async def store(js: jetspark.JetStream, **options: Any) -> Consumer:
    """A stream with the numbered messages, on disk, and the consumer to take them."""
    ack_wait = options.pop("ack_wait")
    stream = await make(js, storage=StorageType.FILE, **options)
    consumer = await durable(stream, ack_wait=ack_wait, max_ack_pending=5000)
    async with js.publisher(retry=True) as publisher:
        for number in range(COUNT):
            await publisher.publish(f"{stream.name}.a", b"%d" % number, msg_id=str(number))
    return consumer


@asynccontextmanager
async def consuming(consumer: Consumer, patience: float = 5.0) -> AsyncIterator[Tally]:
    tally = Tally(patience)
    async with consumer.consume_with(
        tally.handle,
        concurrency=8,
        max_messages=50,
        expires=4,
        on_error=tally.errors.append,
    ) as messages:
        yield tally
        assert not messages.closed, "nothing of this may end a consume"


async def settled(consumer: Consumer, tally: Tally) -> None:
    """All there, all acked, and the server says so."""
    await tally.reach(COUNT, 150)  # what got lost on its way comes again after ack_wait

    async def so() -> bool:
        try:
            info = await consumer.info()
        except JetsparkError:
            return False
        return (info.ack_floor.stream_seq, info.num_ack_pending, info.num_pending) == (COUNT, 0, 0)

    await eventually(so, 20)
    assert set(tally.delivered) == set(range(COUNT))
    assert all(isinstance(error, PullWarning) for error in tally.errors), tally.errors


async def test_kill_and_restart_at_rest(own_server: Server) -> None:
    """Acks pause a moment before each kill, so that the server has written what it confirmed."""
    async with jetspark.connect(own_server.url) as nc:
        consumer = await store(nc.jetstream(timeout=20), ack_wait=30)
        async with consuming(consumer) as tally:
            for part in (1, 2):
                await tally.reach(part * COUNT // 3)
                tally.go.clear()
                await eventually(lambda: time.monotonic() - tally.last > 1.5)
                own_server.kill()
                await asyncio.to_thread(own_server.restart)
                tally.go.set()
            await settled(consumer, tally)
        assert nc.stats.reconnects == 2
        assert tally.twice() == set()


async def test_kill_and_restart_in_full_flight(own_server: Server) -> None:
    """A killed server forgets acks and deliveries of its last moment, though it had confirmed them.

    Those it delivers again, and then they are acked again: once for each delivery, never more.
    """
    async with jetspark.connect(own_server.url) as nc:
        consumer = await store(nc.jetstream(timeout=20), ack_wait=2)
        async with consuming(consumer, patience=0) as tally:
            await tally.reach(COUNT // 3)
            own_server.kill()
            await asyncio.to_thread(own_server.restart)
            await settled(consumer, tally)
        assert nc.stats.reconnects == 1
        assert all(tally.acked[number] <= tally.delivered[number] for number in range(COUNT))
        assert len(tally.twice()) < COUNT // 2


async def test_a_consumer_leader_that_steps_down(cluster: Cluster) -> None:
    async with jetspark.connect(cluster.urls) as nc:
        js = nc.jetstream(timeout=20)
        consumer = await store(js, ack_wait=30, num_replicas=3)
        leaders = set()
        async with consuming(consumer) as tally:
            for part in (1, 2, 3):
                await tally.reach(part * COUNT // 4)
                leaders.add(await leader_of(consumer))
                subject = f"$JS.API.CONSUMER.LEADER.STEPDOWN.{consumer.stream_name}.{consumer.name}"
                await nc.request(subject, timeout=10)
            await settled(consumer, tally)
        assert len(leaders) > 1
        assert tally.twice() == set()
        assert max(tally.delivered.values()) == 1
        assert nc.stats.reconnects == 0


async def leader_of(consumer: Consumer) -> str:
    async def leader() -> str | None:
        try:
            info = await consumer.info()
        except JetsparkError:
            return None
        return info.cluster.leader if info.cluster else None

    found = await eventually(leader, 20)
    assert found
    return found


async def test_an_idle_consume_learns_of_a_new_leader_at_once(cluster: Cluster) -> None:
    """Without a word from the server it would wait for its heartbeats, a minute here."""
    async with jetspark.connect(cluster.urls) as nc:
        js = nc.jetstream(timeout=20)
        stream = await make(js, num_replicas=3)
        consumer = await durable(stream)
        seen: list[Any] = []
        async with consumer.consume(expires=120, idle_heartbeat=30, on_error=seen.append) as messages:
            await leader_of(consumer)

            async def waits() -> bool:
                return (await consumer.info()).num_waiting == 1

            await eventually(waits, 20)
            await nc.request(f"$JS.API.CONSUMER.LEADER.STEPDOWN.{stream.name}.worker", timeout=10)
            await eventually(lambda: any(isinstance(error, LeadershipChanged) for error in seen), 50)
            await js.publish(f"{stream.name}.a", b"1")
            async with asyncio.timeout(20):
                assert (await anext(messages)).data == b"1"


async def test_an_idle_consume_learns_of_a_shutdown_at_once(own_cluster: Cluster) -> None:
    async with jetspark.connect(own_cluster.urls) as nc:
        js = nc.jetstream(timeout=20)
        stream = await make(js, num_replicas=3)
        consumer = await durable(stream)
        seen: list[Any] = []
        async with consumer.consume(expires=120, idle_heartbeat=30, on_error=seen.append) as messages:
            leader = server_named(own_cluster, await leader_of(consumer))
            while leader.url.endswith(f":{nc.connected_url.rpartition(':')[2]}"):
                await nc.force_reconnect()

            async def waits() -> bool:
                return (await consumer.info()).num_waiting == 1

            await eventually(waits, 20)
            await asyncio.to_thread(leader.terminate)
            # Before its first leader was elected it may have heard of that (503) too.
            await eventually(lambda: any(isinstance(e, ServerShutdown | LeadershipChanged) for e in seen), 50)
            await js.publish(f"{stream.name}.a", b"1")
            async with asyncio.timeout(20):
                assert (await anext(messages)).data == b"1"
            assert not any(isinstance(error, MissedHeartbeat) for error in seen)


async def test_the_only_server_of_a_stream_restarts(own_cluster: Cluster) -> None:
    """One replica: for a while nobody answers, and we stay connected to another server."""
    async with jetspark.connect(own_cluster.urls) as nc:
        js = nc.jetstream(timeout=20)
        consumer = await store(js, ack_wait=10, num_replicas=1)
        async with consuming(consumer, patience=9) as tally:
            await tally.reach(COUNT // 4)
            home = server_named(own_cluster, await leader_of(consumer))
            while home.url.endswith(f":{nc.connected_url.rpartition(':')[2]}"):
                await nc.force_reconnect()
            await asyncio.to_thread(home.restart)
            await settled(consumer, tally)
        assert tally.twice() == set()


@pytest.fixture
def leaving_cluster() -> Iterator[Cluster]:
    """A private cluster whose servers leave in a moment once told to."""
    with three_nodes('lame_duck_duration: "30s"\nlame_duck_grace_period: "200ms"') as running:
        yield running


async def test_shutdown_of_the_leader_and_lame_duck_of_the_connected_server(leaving_cluster: Cluster) -> None:
    cluster = leaving_cluster
    events = Recorder()
    async with jetspark.connect(cluster.urls, listener=events) as nc:
        js = nc.jetstream(timeout=20)
        # Longer than the handlers are held while a server starts: none of theirs may come again meanwhile.
        consumer = await store(js, ack_wait=60, num_replicas=3)
        async with consuming(consumer) as tally:
            # First the server that leads the consumer ends in order. We are not connected to it.
            await tally.reach(COUNT // 4)
            tally.go.clear()  # so that there is work left when it does
            leader = server_named(cluster, await leader_of(consumer))
            while leader.url.endswith(f":{nc.connected_url.rpartition(':')[2]}"):
                await nc.force_reconnect()
            tally.go.set()
            assert len(tally.acked) < COUNT // 2
            reconnects = nc.stats.reconnects
            await asyncio.to_thread(leader.terminate)
            await tally.reach(COUNT // 2)
            assert nc.stats.reconnects == reconnects
            tally.go.clear()  # so that there is work left for the second part
            await asyncio.to_thread(leader.start)
            await asyncio.to_thread(cluster.wait_ready)
            tally.go.set()
            assert len(tally.acked) < COUNT

            # Then the one that we are connected to goes into lame duck mode.
            ours = next(s for s in cluster.servers if s.url.endswith(nc.connected_url.rpartition(":")[2]))
            ours.signal_lame_duck()
            await events.wait(LameDuck)
            await eventually(lambda: nc.stats.reconnects > reconnects, 30)
            await settled(consumer, tally)
        assert tally.twice() == set()
        assert nc.connected_url.rpartition(":")[2] != ours.url.rpartition(":")[2]


def server_named(cluster: Cluster, name: str) -> Server:
    return next(server for server in cluster.servers if server.name == name)
