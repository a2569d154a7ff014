"""Columns of a consumer that is gone without a status: a server restarted, or the link was down meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import jetspark
from jetspark import AckPolicy, ConsumerConfig, StreamConfig, blocking
from jetspark.arrow import ConsumeArrow, consume_arrow
from jetspark.errors import ConsumerDeleted, ConsumerLost, NoConsumerResponders
from jetspark.server import Server
from support.helpers import unique

if TYPE_CHECKING:
    from pathlib import Path

    from jetspark.errors import JetsparkError

COUNT = 500
PLAIN = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True)


async def filled(js: jetspark.JetStream, stream: str) -> None:
    await js.create_stream(StreamConfig(name=stream, subjects=[f"{stream}.>"]))
    for number in range(COUNT):
        await js.publish(f"{stream}.a", b"%d" % number)


async def counted(batches: ConsumeArrow) -> int:
    async with asyncio.timeout(60):
        return sum([len(batch) async for batch in batches])


async def test_a_plain_consumer_that_went_with_its_server_is_an_error(tmp_path: Path) -> None:
    """Before, this waited for ever, and said so to the log alone."""
    stream = unique("GONE")
    warnings: list[JetsparkError] = []
    with Server(store_dir=tmp_path) as server:
        async with jetspark.connect(server.url) as nc:
            js = nc.jetstream()
            await filled(js, stream)
            consumer = await js.create_consumer(stream, PLAIN)
            rows = 0
            async with consume_arrow(consumer, max_messages=100, on_error=warnings.append) as batches:
                rows += len(await anext(batches))
                await asyncio.to_thread(server.restart)
                with pytest.raises(ConsumerLost, match="use an ordered consumer"):
                    rows += await counted(batches)
                assert batches.closed
            assert rows > 0
    assert any(isinstance(one, NoConsumerResponders) for one in warnings)
    assert isinstance(warnings[-1], ConsumerDeleted)


def test_the_same_from_threads(tmp_path: Path) -> None:
    stream = unique("GONE")
    with Server(store_dir=tmp_path) as server, blocking.connect(server.url) as nc:
        js = nc.jetstream()
        js.create_stream(StreamConfig(name=stream, subjects=[f"{stream}.>"]))
        consumer = js.create_consumer(stream, PLAIN)
        with consume_arrow(consumer) as batches:
            server.restart()
            with pytest.raises(ConsumerLost):
                batches.next_batch(60)


async def test_a_stream_in_memory_goes_with_its_consumers(tmp_path: Path) -> None:
    stream = unique("GONE")
    with Server(store_dir=tmp_path) as server:
        async with jetspark.connect(server.url) as nc:
            js = nc.jetstream()
            await js.create_stream(StreamConfig(name=stream, subjects=[stream], storage="memory"))
            consumer = await js.create_consumer(stream, PLAIN)
            async with consume_arrow(consumer) as batches:
                await asyncio.to_thread(server.restart)
                with pytest.raises(ConsumerLost, match="stream not found"):
                    await counted(batches)


async def test_an_ordered_consumer_goes_on_and_misses_nothing(tmp_path: Path) -> None:
    stream = unique("KEPT")
    with Server(store_dir=tmp_path) as server:
        async with jetspark.connect(server.url) as nc:
            js = nc.jetstream()
            await filled(js, stream)
            consumer = await js.create_ordered_consumer(stream)
            sequences: list[int] = []
            async with consume_arrow(consumer, max_messages=100) as batches:
                sequences += (await anext(batches)).column("sequence").to_pylist()
                await asyncio.to_thread(server.restart)
                async with asyncio.timeout(60):
                    async for batch in batches:
                        sequences += batch.column("sequence").to_pylist()
                        if sequences[-1] >= COUNT:
                            break
    assert sequences == list(range(1, COUNT + 1))
