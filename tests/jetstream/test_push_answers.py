"""Flow control whose answer is lost, or has to wait: the server goes on (ADR-15 "Flow Control")."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import AckPolicy, ConsumerConfig, StorageType, blocking
from support.consuming import make, numbers
from support.fault_proxy import FaultProxy
from support.frame_proxy import FrameProxy
from support.helpers import eventually, unique
from support.pushing import NONE, Errors, fill_large, take

if TYPE_CHECKING:
    from jetspark import PushSubscription
    from jetspark.server import Server

COUNT, SIZE = 600, 16_384

KINDS: dict[str, dict[str, Any]] = {
    # Soon asked again, and no alarm when a busy machine is late.
    "plain": {"config": NONE, "flow_control": True, "idle_heartbeat": 0.2, "alarm_factor": 100.0},
    "ordered": {"ordered": True, "idle_heartbeat": 0.2, "alarm_factor": 100.0},
}


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_that_was_lost_is_sent_again(
    server: Server, js: jetspark.JetStream, kind: str
) -> None:
    stream = await fill_large(js, COUNT, SIZE)
    async with FrameProxy(server) as proxy, jetspark.connect(proxy.url) as nc:
        proxy.lose_up = lambda frame: frame.startswith(b"PUB $JS.FC.") and not proxy.lost
        errors = Errors()
        sub = await nc.jetstream().subscribe(f"{stream.name}.a", on_error=errors, **KINDS[kind])
        assert numbers(await take(sub, COUNT)) == list(range(COUNT))
        assert len(proxy.lost) == 1
        assert errors == []
        await sub.unsubscribe()


@pytest.mark.parametrize("batches", [False, True])
async def test_an_answer_of_a_consume_that_was_lost_is_sent_again(
    server: Server, js: jetspark.JetStream, batches: bool
) -> None:
    stream = await fill_large(js, COUNT, SIZE)
    await stream.create_consumer(
        ConsumerConfig(
            durable_name="d",
            deliver_subject=unique("deliver"),
            ack_policy=AckPolicy.NONE,
            flow_control=True,
            idle_heartbeat=0.2,
        )
    )
    async with FrameProxy(server) as proxy, jetspark.connect(proxy.url) as nc:
        proxy.lose_up = lambda frame: frame.startswith(b"PUB $JS.FC.") and not proxy.lost
        consumer: Any = await nc.jetstream().get_consumer(stream.name, "d")
        got: list[int] = []
        consume = consumer.consume_batches if batches else consumer.consume
        async with asyncio.timeout(20), consume() as messages:
            while len(got) < COUNT:
                found = await anext(messages)
                got += numbers(found if batches else [found])
        assert got == list(range(COUNT))
        assert len(proxy.lost) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_to_threads_that_was_lost_is_sent_again(
    server: Server, js: jetspark.JetStream, kind: str
) -> None:
    stream = await fill_large(js, COUNT, SIZE)

    def read(url: str) -> list[int]:
        with blocking.connect(url) as nc, nc.jetstream().subscribe(f"{stream.name}.a", **KINDS[kind]) as sub:
            return [int(sub.next(timeout=20).data) for _ in range(COUNT)]

    async with FrameProxy(server) as proxy:
        proxy.lose_up = lambda frame: frame.startswith(b"PUB $JS.FC.") and not proxy.lost
        assert await asyncio.to_thread(read, proxy.url) == list(range(COUNT))
        assert len(proxy.lost) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_waits_while_the_server_does_not_read(
    server: Server, js: jetspark.JetStream, kind: str
) -> None:
    stream = await make(js, storage=StorageType.FILE)
    async with FaultProxy(server) as proxy, jetspark.connect(proxy.url, write_buffer_size=1_024) as nc:
        sub = await nc.jetstream().subscribe(f"{stream.name}.a", **KINDS[kind])
        reading = asyncio.create_task(take(sub, COUNT))
        await fall_behind(nc, proxy)
        await publish(js, f"{stream.name}.a", COUNT)
        # It has sent what it may without an answer, and says so; the reader has taken all of that.
        await eventually(lambda: stalled(js, sub))
        proxy.heal()
        assert numbers(await reading) == list(range(COUNT))
        await sub.unsubscribe()


async def fall_behind(nc: jetspark.Connection, proxy: FaultProxy) -> None:
    """Publish to nobody until the connection holds more than it wants to."""
    proxy.stall_up = True
    subject = unique("nobody")
    while not nc._core.outbox.is_behind:
        nc._core.outbox.publish(subject, b"x" * 65_536)
        await asyncio.sleep(0)


async def publish(js: jetspark.JetStream, subject: str, count: int) -> None:
    async with js.publisher() as publisher:
        for number in range(count):
            await publisher.publish(subject, b"%d" % number + b" " * (SIZE - len(str(number))))


async def stalled(js: jetspark.JetStream, sub: PushSubscription) -> bool:
    """Whether the consumer has more to send, although the reader has taken everything and waits."""
    info = await js._consumer_info(sub.stream_name, sub.consumer_name)
    waits = bool(sub._started._waiters) and not sub.pending
    return bool(waits and info.num_pending and info.delivered.consumer_seq == sub.delivered)


@pytest.mark.parametrize("kind", KINDS)
async def test_who_reads_while_the_connection_publishes_in_bursts_gets_everything(
    server: Server, js: jetspark.JetStream, kind: str
) -> None:
    count, subject = 40_000, unique("nobody")
    stream = await fill_large(js, count, 1_024)
    async with jetspark.connect(server.url) as nc:
        sub = await nc.jetstream().subscribe(f"{stream.name}.a", **KINDS[kind])
        reading = asyncio.create_task(take(sub, count))

        async def bursts() -> None:
            while not reading.done():
                # At once: more than the connection wants to hold, so the server is behind with reading.
                await asyncio.gather(*(nc.publish(subject, b" " * 60_000) for _ in range(400)))

        await asyncio.gather(bursts(), bursts())
        assert numbers(await reading) == list(range(count))
        await sub.unsubscribe()
