"""Ordered consumers when messages are lost, servers fall silent or start again."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

import jetspark
from jetspark import StorageType, StreamConfig
from jetspark.errors import JetsparkError, MissedHeartbeat
from support.consuming import fill, make
from support.helpers import eventually
from support.lossy_proxy import LossyProxy
from support.ordered_reading import Reader, pull_waits, reasons, seqs, span

if TYPE_CHECKING:
    from jetspark import Stream
    from jetspark.server import Cluster, Server


# --- lost messages, silence, restarts -------------------------------------------------------------------


async def test_a_gap_resets(server: Server, js: jetspark.JetStream) -> None:
    stream = await make(js)
    async with LossyProxy(server) as proxy, jetspark.connect(proxy.url) as nc:
        consumer = await nc.jetstream().create_ordered_consumer(stream.name)
        reader = Reader(consumer)
        await fill(js, stream, 5)
        await reader.until(5)
        proxy.swallow_down = True
        await fill(js, stream, 5)
        await eventually(lambda: proxy.swallowed > 5 * len(stream.name))
        proxy.swallow_down = False
        await fill(js, stream, 5)
        await reader.until(15)
        assert len(reasons(reader.warnings)) == 1
        assert "gap: consumer sequence" in reasons(reader.warnings)[0]
        await reader.stop()


async def test_the_heartbeat_tells_when_the_last_messages_were_lost(
    server: Server, js: jetspark.JetStream
) -> None:
    stream = await make(js)
    async with LossyProxy(server) as proxy, jetspark.connect(proxy.url) as nc:
        consumer = await nc.jetstream().create_ordered_consumer(stream.name)
        reader = Reader(consumer, expires=10, idle_heartbeat=1)
        await fill(js, stream, 5)
        await reader.until(5)
        proxy.swallow_down = True
        await fill(js, stream, 5)
        # All of them: the last one has the body 4.
        await eventually(lambda: b"\r\n4\r\n" in proxy.lost)
        proxy.swallow_down = False
        await reader.until(10)
        assert "gap: heartbeat at consumer sequence 10" in reasons(reader.warnings)[0]
        await reader.stop()


@pytest.mark.slow
async def test_missed_heartbeats_reset(server: Server, js: jetspark.JetStream) -> None:
    stream = await make(js)
    async with LossyProxy(server) as proxy, jetspark.connect(proxy.url) as nc:
        consumer = await nc.jetstream(timeout=3).create_ordered_consumer(stream.name)
        reader = Reader(consumer, expires=1)
        await fill(js, stream, 5)
        await reader.until(5)
        proxy.swallow_down = True
        await fill(js, stream, 5)
        await eventually(lambda: reasons(reader.warnings))
        proxy.swallow_down = False
        await reader.until(10)
        assert any(isinstance(warning, MissedHeartbeat) for warning in reader.warnings)
        assert "missed heartbeats" in reasons(reader.warnings)
        await reader.stop()


async def test_a_reconnect_resets(js: jetspark.JetStream, server: Server) -> None:
    stream = await make(js)
    async with jetspark.connect(server.url) as nc:
        consumer = await nc.jetstream().create_ordered_consumer(stream.name)
        reader = Reader(consumer)
        for number in range(1, 4):
            await fill(js, stream, 100)
            await nc.force_reconnect()
            await reader.until(100 * number)
        assert reasons(reader.warnings) == ["reconnect"] * 3
        await reader.stop()


async def test_a_fetch_survives_a_reconnect(js: jetspark.JetStream, server: Server) -> None:
    stream = await make(js)
    async with jetspark.connect(server.url) as nc:
        consumer = await nc.jetstream().create_ordered_consumer(stream.name)
        await fill(js, stream, 2)
        waiting = asyncio.ensure_future(consumer.fetch(4, expires=20))
        await pull_waits(consumer)
        await nc.force_reconnect()
        await fill(js, stream, 2)
        assert seqs(await waiting) == span(1, 4)


async def on_disk(js: jetspark.JetStream) -> Stream:
    return await js.create_stream(StreamConfig(name="S", subjects=["S.>"], storage=StorageType.FILE))


@pytest.mark.parametrize("end", ["kill", "terminate"])
async def test_server_restart(own_server: Server, end: str) -> None:
    """The consumer lived in memory: after the restart there is none."""
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream()
        stream = await on_disk(js)
        consumer = await stream.create_ordered_consumer()
        reader = Reader(consumer)
        for number in range(1, 3):
            await fill(js, stream, 500)
            await reader.until(1_000 * number - 500)
            getattr(own_server, end)()
            await asyncio.to_thread(own_server.start)
            await eventually(lambda: nc.is_connected, 15)
            await fill(js, stream, 500)
            await reader.until(1_000 * number)
        await reader.stop()


async def test_server_restart_between_fetches(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream()
        stream = await on_disk(js)
        await fill(js, stream, 6)
        consumer = await stream.create_ordered_consumer()
        assert seqs(await consumer.fetch(3)) == [1, 2, 3]
        own_server.kill()
        await eventually(lambda: not nc.is_connected, 15)
        waiting = asyncio.ensure_future(consumer.fetch(3, expires=20))
        await asyncio.to_thread(own_server.start)
        assert seqs(await waiting) == [4, 5, 6]


async def test_the_node_of_the_consumer_is_killed(own_cluster: Cluster) -> None:
    async with jetspark.connect(own_cluster.urls) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(
            StreamConfig(name="S", subjects=["S.>"], storage=StorageType.FILE, num_replicas=3)
        )
        consumer = await stream.create_ordered_consumer()
        reader = Reader(consumer, expires=2)
        await fill(js, stream, 500)
        await reader.until(500)
        info = await consumer.info()
        assert info.cluster is not None
        index = [server.name for server in own_cluster.servers].index(info.cluster.leader or "")
        own_cluster.kill(index)
        for number in range(501, 601):
            await _publish(js, number)
        await reader.until(600, timeout=40)
        await reader.stop()


async def _publish(js: jetspark.JetStream, number: int) -> None:
    """Store it once, whatever the cluster is busy with."""

    async def stored() -> bool:
        with contextlib.suppress(JetsparkError):
            await js.publish("S.a", b"%d" % number, msg_id=str(number), timeout=2)
            return True
        return False

    await eventually(stored, 30)
