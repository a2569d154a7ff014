"""Servers die in the middle of many publishes: what was acked is stored, and nothing twice.

The plainest case, the async publisher with retry and a single server, is row F1 of the table of faults.
"""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import StorageType, StreamConfig, blocking
from jetspark.errors import ConnectionLost, MaxPayloadExceeded, PublishFailed
from support.helpers import eventually, unique

if TYPE_CHECKING:
    from jetspark.server import Cluster, Server

MESSAGES = 30_000


async def stored_ids(stream: jetspark.Stream) -> dict[str, int]:
    """Id and sequence of each stored message; fails when an id is there twice."""
    found: dict[str, int] = {}
    async for message in stream.get_msgs(batch=5000):
        name = message.data.decode()
        assert message.headers.get("Nats-Msg-Id", name) == name
        assert name not in found, f"{name} is stored as {found[name]} and as {message.sequence}"
        found[name] = message.sequence
    return found


async def make(js: jetspark.JetStream, **options: Any) -> jetspark.Stream:
    name = unique()
    # File storage: what was acked must outlive the process.
    options.setdefault("allow_direct", True)
    config = StreamConfig(name=name, subjects=[name], storage=StorageType.FILE, **options)
    return await js.create_stream(config)


def test_the_blocking_publisher_survives_it_as_well(own_server: Server) -> None:
    """Messages so large that the reconnect buffer is full while the server is away."""
    total = MESSAGES // 6
    with blocking.connect(own_server.url, reconnect_buffer_size=100_000) as nc:
        js = nc.jetstream(timeout=20)
        name = unique()
        stream = js.create_stream(StreamConfig(name=name, subjects=[name], allow_direct=True))
        futures = []
        with js.publisher(retry=True, ack_timeout=60, window=1000) as publisher:
            for number in range(total):
                if number == total // 2:
                    # It stands still first, so that messages are certainly in flight; with an empty window,
                    # so that there is room for them.
                    publisher.flush()
                    own_server.suspend()
                elif number == total // 2 + 100:
                    own_server.kill()
                    restart = threading.Thread(target=own_server.restart)
                    restart.start()
                body = b"m%d " % number + b"x" * 1000
                futures.append(publisher.publish(name, body, msg_id=f"m{number}"))
        restart.join()
        acks = [future.result() for future in futures]
        found = [(message.data.split()[0].decode(), message.sequence) for message in stream.get_msgs()]
        assert sorted(found) == sorted((f"m{number}", ack.seq) for number, ack in enumerate(acks))
        assert publisher.stats.acked == total
        assert publisher.stats.resent >= 100


async def test_what_is_published_while_the_server_is_away_is_sent_once(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream(timeout=20)
        stream = await make(js)
        async with js.publisher(retry=True, ack_timeout=60) as publisher:
            own_server.kill()
            await eventually(lambda: not nc.is_connected)
            for number in range(1000):
                await publisher.publish(stream.name, b"x", msg_id=str(number))
            await asyncio.to_thread(own_server.restart)
        assert publisher.stats.acked == 1000
        assert publisher.stats.resent == 0
        # A read is counted at its end, when the acks of what it brought may be here already.
        await nc.flush()
        # The restarted server counts from zero, and these were the first messages that it got.
        assert (await asyncio.to_thread(messages_in, own_server)) == 1000


def messages_in(server: Server) -> int:
    with urllib.request.urlopen(f"{server.http_url}/varz", timeout=15) as answer:
        count: int = json.load(answer)["in_msgs"]
    return count


async def test_what_waits_and_is_too_large_for_the_server_that_comes_back_fails(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream(timeout=20)
        stream = await make(js)
        futures: list[asyncio.Future[jetspark.PubAck]] = []
        with pytest.raises(PublishFailed) as caught:
            await _publish_to_a_smaller_server(own_server, nc, js, stream.name, futures)
        assert caught.value.count == 1
        assert isinstance(futures[0].exception(), MaxPayloadExceeded)
        assert futures[1].result().seq == 1


async def _publish_to_a_smaller_server(
    server: Server,
    nc: jetspark.Connection,
    js: jetspark.JetStream,
    subject: str,
    futures: list[asyncio.Future[jetspark.PubAck]],
) -> None:
    async with js.publisher(retry=True, ack_timeout=60) as publisher:
        server.kill()
        await eventually(lambda: not nc.is_connected)
        futures.append(await publisher.publish(subject, bytes(2000), msg_id="large"))
        futures.append(await publisher.publish(subject, bytes(20), msg_id="small"))
        server._config = "max_payload: 1000"
        await asyncio.to_thread(server.restart)
        # At once, not when ack_timeout is over.
        await asyncio.wait_for(publisher.flush(), 30)


async def test_without_retry_what_was_acked_is_stored_and_the_rest_is_named(own_server: Server) -> None:
    """A server that stands still reads nothing, so what is sent to it is in flight when it dies."""
    kills, share, in_flight = 3, MESSAGES // 10, 500
    async with jetspark.connect(own_server.url, reconnect_wait=0.05) as nc:
        js = nc.jetstream(timeout=20)
        stream = await make(js)
        futures: list[asyncio.Future[jetspark.PubAck]] = []
        lost: list[asyncio.Future[jetspark.PubAck]] = []

        async def publish(count: int) -> list[asyncio.Future[jetspark.PubAck]]:
            begin = len(futures)
            for number in range(begin, begin + count):
                futures.append(await publisher.publish(stream.name, f"m{number}".encode()))
            return futures[begin:]

        async with js.publisher(ack_timeout=60) as publisher:
            for _ in range(kills):
                await publish(share)
                await asyncio.wait(futures)
                own_server.suspend()
                lost += await publish(in_flight)
                own_server.kill()
                await asyncio.to_thread(own_server.restart)
            await publish(share)
            with pytest.raises(PublishFailed) as caught:
                await publisher.flush()
        for future in lost:
            assert isinstance(future.exception(), ConnectionLost)
        assert caught.value.count == len(lost) == kills * in_flight

        found = await stored_ids(stream)
        acked = [number for number, future in enumerate(futures) if future.exception() is None]
        assert len(acked) == (kills + 1) * share
        for number in acked:
            assert found[f"m{number}"] == futures[number].result().seq
        # What failed may be stored or not, as its error says; nothing else is there.
        assert set(found) <= {f"m{number}" for number in range(len(futures))}


async def test_reconnects_in_the_middle_of_a_replicated_stream(cluster: Cluster) -> None:
    """What is sent again meets its first copy that is still being replicated: 'try again' is no failure."""
    total = MESSAGES // 6
    async with jetspark.connect(cluster.urls) as nc:
        js = nc.jetstream(timeout=20)
        stream = await make(js, num_replicas=3, allow_direct=False)  # only the leader knows all
        futures: list[asyncio.Future[jetspark.PubAck]] = []
        async with js.publisher(retry=True, ack_timeout=60) as publisher:
            for number in range(total):
                name = f"m{number}"
                futures.append(await publisher.publish(stream.name, name.encode(), msg_id=name))
                if number % (total // 4) == total // 8:
                    await nc.force_reconnect()
        assert publisher.stats.resent > 0
        assert nc.stats.reconnects == 4
        await _expect_exactly_once(stream, futures)
        await stream.delete()


async def test_the_leader_of_a_replicated_stream_dies_and_our_server_lives(own_cluster: Cluster) -> None:
    total = MESSAGES // 10
    async with jetspark.connect(own_cluster.urls[0], ignore_discovered=True) as nc:
        js = nc.jetstream(timeout=20)
        stream = await make(js, num_replicas=3, allow_direct=False)  # only the leader knows all
        leader = await eventually(lambda: own_cluster.leader_of(stream.name), timeout=20)
        if leader is own_cluster.servers[0]:
            # Our own server must not be the one that dies.
            await js._api.request(f"STREAM.LEADER.STEPDOWN.{stream.name}")
            leader = await eventually(
                lambda: next(
                    (one for one in [own_cluster.leader_of(stream.name)] if one not in (None, leader)), None
                ),
                timeout=20,
            )
        futures: list[asyncio.Future[jetspark.PubAck]] = []
        async with js.publisher(retry=True, ack_timeout=24, window=500) as publisher:
            for number in range(total):
                name = f"m{number}"
                futures.append(await publisher.publish(stream.name, name.encode(), msg_id=name))
                if number == total // 2:
                    leader.kill()
        assert nc.stats.reconnects == 0
        assert publisher.stats.resent > 0
        await _expect_exactly_once(stream, futures)


async def test_sent_again_while_the_first_copy_waits_for_its_replicas(own_cluster: Cluster) -> None:
    """The leader says 'this id is in process': that is no failure, the message is tried again."""
    async with jetspark.connect(own_cluster.urls, ignore_discovered=True) as nc:
        js = nc.jetstream(timeout=20)
        stream = await make(js, num_replicas=3, allow_direct=False)
        leader = await eventually(lambda: own_cluster.leader_of(stream.name), timeout=20)
        async with jetspark.connect(leader.url, ignore_discovered=True) as direct:
            async with direct.jetstream().publisher(retry=True, ack_timeout=60) as publisher:
                others = [server for server in own_cluster.servers if server is not leader]
                for server in others:
                    server.suspend()
                futures = [
                    await publisher.publish(stream.name, f"m{number}".encode(), msg_id=f"m{number}")
                    for number in range(100)
                ]
                await direct.flush()
                await direct.force_reconnect()
                # The oldest goes alone until it is taken: the others wait for it.
                await eventually(lambda: publisher.stats.resent >= 3)
                assert not any(future.done() for future in futures)
                for server in others:
                    server.resume()
            await _expect_exactly_once(stream, futures)


async def _expect_exactly_once(
    stream: jetspark.Stream, futures: list[asyncio.Future[jetspark.PubAck]]
) -> None:
    found = await stored_ids(stream)
    assert found == {f"m{number}": future.result().seq for number, future in enumerate(futures)}
