"""kill -9 of the server in the middle of many publishes: what was acked is stored, and nothing twice.

The short form runs always; PUBLISH_KILL_MESSAGES=100000 PUBLISH_KILLS=5 makes it the long one.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

import jetspark
from helpers import unique
from jetspark import PublishFailed, StorageType, StreamConfig
from jetspark.errors import ConnectionLost

if TYPE_CHECKING:
    from jetspark.server import Server

MESSAGES = int(os.environ.get("PUBLISH_KILL_MESSAGES", "30000"))
KILLS = int(os.environ.get("PUBLISH_KILLS", "2"))


async def stored_ids(stream: jetspark.Stream) -> dict[str, int]:
    """Id and sequence of each stored message; fails when an id is there twice."""
    found: dict[str, int] = {}
    async for message in stream.get_msgs(batch=5000):
        name = message.data.decode()
        assert message.headers.get("Nats-Msg-Id", name) == name
        assert name not in found, f"{name} is stored as {found[name]} and as {message.sequence}"
        found[name] = message.sequence
    return found


async def make(js: jetspark.JetStream) -> jetspark.Stream:
    name = unique()
    # File storage: what was acked must outlive the process.
    config = StreamConfig(name=name, subjects=[name], storage=StorageType.FILE, allow_direct=True)
    return await js.create_stream(config)


class Killer:
    """Kills and restarts the server each time another part of the messages has its acks."""

    def __init__(self, server: Server, kills: int, total: int) -> None:
        self.server = server
        self.points = [number * total // (kills + 1) for number in range(1, kills + 1)]
        self.acked = 0
        self.news = asyncio.Event()

    def on_ack(self, _: object) -> None:
        self.acked += 1
        if self.acked in self.points:
            self.news.set()

    async def run(self) -> int:
        for _ in self.points:
            await self.news.wait()
            self.news.clear()
            self.server.kill()
            await asyncio.to_thread(self.server.restart)
        return len(self.points)


async def test_with_ids_and_retry_everything_is_stored_exactly_once(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream(timeout=20)
        stream = await make(js)
        killer = Killer(own_server, KILLS, MESSAGES)
        killing = asyncio.create_task(killer.run())
        futures: list[asyncio.Future[jetspark.PubAck]] = []
        async with js.publisher(retry=True, ack_timeout=60) as publisher:
            for number in range(MESSAGES):
                name = f"m{number}"
                future = await publisher.publish(stream.name, name.encode(), msg_id=name)
                future.add_done_callback(killer.on_ack)
                futures.append(future)
        assert await killing == KILLS

        acks = [future.result() for future in futures]
        found = await stored_ids(stream)
        assert found == {f"m{number}": ack.seq for number, ack in enumerate(acks)}
        assert (await stream.info()).state.messages == MESSAGES
        assert nc.stats.reconnects == KILLS
        stats = publisher.stats
        assert (stats.published, stats.acked, stats.failed) == (MESSAGES, MESSAGES, 0)
        assert stats.resent > 0


async def test_without_retry_what_was_acked_is_stored_and_the_rest_is_named(own_server: Server) -> None:
    total = MESSAGES // 3
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream(timeout=20)
        stream = await make(js)
        killer = Killer(own_server, 1, total)
        killing = asyncio.create_task(killer.run())
        futures: list[asyncio.Future[jetspark.PubAck]] = []
        with pytest.raises(PublishFailed) as caught:
            await _publish_all(js, stream, total, killer, futures)
        assert await killing == 1
        lost = [future.exception() for future in futures if future.exception() is not None]
        assert lost
        assert all(isinstance(error, ConnectionLost) for error in lost)
        assert caught.value.count == len(lost)

        found = await stored_ids(stream)
        for number, future in enumerate(futures):
            if future.exception() is None:
                assert found[f"m{number}"] == future.result().seq
        # What failed may be stored or not, as its error says; nothing else is there.
        assert total - len(lost) <= len(found) <= total


async def _publish_all(
    js: jetspark.JetStream,
    stream: jetspark.Stream,
    total: int,
    killer: Killer,
    futures: list[asyncio.Future[jetspark.PubAck]],
) -> None:
    async with js.publisher(ack_timeout=60) as publisher:
        for number in range(total):
            future = await publisher.publish(stream.name, f"m{number}".encode())
            future.add_done_callback(killer.on_ack)
            futures.append(future)
