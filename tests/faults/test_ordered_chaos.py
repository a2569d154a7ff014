"""An ordered consumer read in every way while everything around it breaks: all messages, once, in order."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

import pytest

import jetspark
from jetspark.errors import JetsparkError, NotConnected, PullUnanswered
from support.consuming import make
from support.lossy_proxy import LossyProxy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetspark import Message, OrderedConsumer, Stream
    from jetspark.server import Server

ROUNDS = 12
# A fetch that no server answers says so instead of being empty; the next one goes on where it was.
UNANSWERED = (NotConnected, PullUnanswered)


class Chaos:
    def __init__(self, seed: int, stream: Stream, consumer: OrderedConsumer, proxy: LossyProxy) -> None:
        self.random = random.Random(seed)
        self.stream, self.consumer, self.proxy = stream, consumer, proxy
        self.stored = 0
        self.ended = False
        self.got: list[int] = []

    def take(self, messages: Iterable[Message]) -> None:
        self.got += [message.metadata.sequence.stream for message in messages]

    async def publish(self, js: jetspark.JetStream) -> None:
        while not self.ended:
            count = self.random.choice([1, 5, 50, 500])
            for _ in range(count):
                await js.connection.publish(f"{self.stream.name}.a", b"x" * self.random.choice([1, 100]))
            self.stored += count
            await asyncio.sleep(self.random.random() * 0.05)
        await js.publish(f"{self.stream.name}.a", b"the last")
        self.stored += 1

    async def hurt(self, js: jetspark.JetStream, nc: jetspark.Connection) -> None:
        for _ in range(ROUNDS):
            await asyncio.sleep(self.random.random() * 0.6)
            kind = self.random.choice(["delete", "cut", "deaf", "dumb", "reconnect"])
            with contextlib.suppress(JetsparkError):  # deleted already, or not connected
                if kind == "delete":
                    await js.delete_consumer(self.stream.name, self.consumer.name)
                elif kind == "reconnect":
                    await nc.force_reconnect()
            if kind in ("deaf", "dumb"):
                self.proxy.swallow_down, self.proxy.swallow_up = kind == "deaf", kind == "dumb"
                await asyncio.sleep(self.random.random() * 0.3)
            if kind in ("deaf", "dumb", "cut"):
                await self.proxy.cut()
        self.ended = True

    async def read(self) -> None:
        ways = [self.fetch, self.leave_early, self.cancel, self.consume]
        while not self.ended or not self.got or self.got[-1] != self.stored:
            await self.random.choice(ways)()

    async def fetch(self) -> None:
        with contextlib.suppress(*UNANSWERED):
            self.take(await self.consumer.fetch(self.random.choice([1, 10, 100]), expires=0.5))

    async def leave_early(self) -> None:
        with contextlib.suppress(*UNANSWERED):
            async for message in self.consumer.fetch(100, expires=0.5):
                self.take([message])
                if self.random.random() < 0.02:
                    break

    async def cancel(self) -> None:
        with contextlib.suppress(TimeoutError, *UNANSWERED):
            async with asyncio.timeout(self.random.random() * 0.2):
                batch = await self.consumer.fetch(1000, expires=2)
            self.take(batch)

    async def consume(self) -> None:
        buffer, limit = self.random.choice([1, 10, 500]), self.random.choice([None, 100, 1000])
        with contextlib.suppress(TimeoutError):
            async with (
                self.consumer.consume_batches(expires=1, max_messages=buffer, stop_after=limit) as batches,
                asyncio.timeout(self.random.random() * 2),
            ):
                async for batch in batches:
                    self.take(batch)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_everything_at_once(server: Server, seed: int) -> None:
    print(f"seed {seed}")
    async with (
        LossyProxy(server) as proxy,
        jetspark.connect(server.url) as direct,
        jetspark.connect(proxy.url, ping_interval=1) as nc,
    ):
        js = direct.jetstream()
        stream = await make(js)
        consumer = await nc.jetstream(timeout=5).create_ordered_consumer(stream.name)
        chaos = Chaos(seed, stream, consumer, proxy)
        await asyncio.wait_for(asyncio.gather(chaos.publish(js), chaos.hurt(js, nc), chaos.read()), 120)
    assert chaos.got == list(range(1, chaos.stored + 1))
