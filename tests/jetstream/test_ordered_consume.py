"""``consume`` of ordered consumers on the real server, as an iterator and as columns."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import ConsumerConfig, DeliverPolicy
from jetspark.arrow import consume_arrow
from jetspark.errors import ConsumerNotFound, OrderedConsumerBusy, OrderedReset
from support.consuming import PullSpy, fill, make
from support.helpers import eventually
from support.lossy_proxy import LossyProxy
from support.ordered_reading import Reader, names, pull_waits, reasons, seqs, span

if TYPE_CHECKING:
    from jetspark import Message, OrderedConsumer
    from jetspark.errors import JetsparkError
    from jetspark.server import Server


# --- consume --------------------------------------------------------------------------------------------


async def test_consume_deleted_again_and_again(js: jetspark.JetStream) -> None:
    stream = await make(js)
    consumer = await stream.create_ordered_consumer()
    reader = Reader(consumer)
    for number in range(1, 4):
        await fill(js, stream, 10)
        await reader.until(10 * number)
        await pull_waits(consumer)
        await js.delete_consumer(stream.name, consumer.name)
    await fill(js, stream, 10)
    await reader.until(40)
    assert reasons(reader.warnings) == ["consumer deleted"] * 3
    assert [w.last_sequence for w in reader.warnings if isinstance(w, OrderedReset)] == [10, 20, 30]
    assert consumer.name.endswith("_4")
    await reader.stop()

    async def gone() -> bool:
        return await names(stream) == []

    await eventually(gone)


async def test_reset_before_the_first_message(js: jetspark.JetStream) -> None:
    stream = await make(js)
    consumer = await stream.create_ordered_consumer(deliver_policy="last_per_subject")
    reader = Reader(consumer)
    await pull_waits(consumer)
    await js.delete_consumer(stream.name, consumer.name)
    await pull_waits(consumer)
    config = (await consumer.info()).config
    assert config.deliver_policy == DeliverPolicy.LAST_PER_SUBJECT
    assert config.filter_subject == ">"
    await fill(js, stream, 5)
    await eventually(lambda: reader.got and reader.got[-1] == 5)
    await reader.stop()


async def test_the_consumer_was_gone_when_consuming_began(js: jetspark.JetStream) -> None:
    stream = await make(js)
    consumer = await stream.create_ordered_consumer()
    await js.delete_consumer(stream.name, consumer.name)
    await fill(js, stream, 5)
    reader = Reader(consumer)
    await reader.until(5)
    assert reasons(reader.warnings) == ["no responders"]
    await reader.stop()


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_callback(js: jetspark.JetStream, concurrency: int) -> None:
    stream = await make(js)
    await fill(js, stream, 50)
    consumer = await stream.create_ordered_consumer()
    got: list[int] = []

    async def handle(message: Message) -> None:
        got.extend(seqs([message]))
        if len(got) == 50:
            await pull_waits(consumer)
            await js.delete_consumer(stream.name, consumer.name)
            await fill(js, stream, 50)

    async with consumer.consume_with(handle, concurrency=concurrency, stop_after=100) as consuming:
        await asyncio.wait_for(consuming.wait(), 20)
    assert got == span(1, 100)


async def test_batches(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 300)
    consumer = await stream.create_ordered_consumer()
    got: list[int] = []
    async with consumer.consume_batches(max_messages=100, stop_after=450) as batches:
        async for batch in batches:
            got += seqs(batch)
            if len(got) == 300:
                await pull_waits(consumer)
                await js.delete_consumer(stream.name, consumer.name)
                await fill(js, stream, 300)
    assert got == span(1, 450)
    assert seqs(await consumer.fetch(150)) == span(451, 600)


async def test_buffer_limited_in_bytes(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 200, size=100)
    consumer = await stream.create_ordered_consumer()
    reader = Reader(consumer, max_bytes=4_000)
    await reader.until(200)
    await pull_waits(consumer)
    await js.delete_consumer(stream.name, consumer.name)
    await fill(js, stream, 200, size=100)
    await reader.until(400)
    await reader.stop()


async def test_deleted_under_load(js: jetspark.JetStream) -> None:
    """A pull that the server takes in while it deletes the consumer gets no answer: the heartbeat tells."""
    stream = await make(js)
    await fill(js, stream, 5_000)
    consumer = await stream.create_ordered_consumer()
    got: list[int] = []
    async with consumer.consume(max_messages=100, expires=1, stop_after=5_000) as messages:
        async for message in messages:
            got += seqs([message])
            if len(got) % 1_000 == 500:
                with contextlib.suppress(ConsumerNotFound):
                    await js.delete_consumer(stream.name, consumer.name)
    assert got == span(1, 5_000)


async def test_stop_and_go_on_with_what_was_not_handed_out(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 100)
    consumer = await stream.create_ordered_consumer(deliver_policy="all")
    got: list[int] = []
    for count in (1, 30, 7):
        async with consumer.consume() as messages:
            async for message in messages:
                got += seqs([message])
                count -= 1
                if not count:
                    await eventually(lambda: messages.pending > 0)
                    break
    got += seqs(await consumer.fetch(100, expires=1))
    assert got == span(1, 100)


async def test_drain_hands_out_what_has_arrived(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 100)
    consumer = await stream.create_ordered_consumer()
    got: list[int] = []
    async with consumer.consume(max_messages=50) as messages:
        async for message in messages:
            got += seqs([message])
            if len(got) == 10:
                await messages.drain()
        assert messages.closed
    assert 10 <= len(got) <= 100
    got += seqs(await consumer.fetch(100, expires=1))
    assert got == span(1, 100)


async def test_stop_after_counts_across_resets(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 10)
    consumer = await stream.create_ordered_consumer()
    reader = Reader(consumer, stop_after=25)
    await reader.until(10)
    await pull_waits(consumer)
    await js.delete_consumer(stream.name, consumer.name)
    await fill(js, stream, 30)
    await asyncio.wait_for(reader.task, 20)
    assert reader.got == span(1, 25)
    assert seqs(await consumer.fetch(15)) == span(26, 40)


async def test_stop_while_it_is_made_anew(js: jetspark.JetStream) -> None:
    stream = await make(js, max_consumers=1)
    consumer = await stream.create_ordered_consumer()
    await js.delete_consumer(stream.name, consumer.name)
    await stream.create_consumer(ConsumerConfig(durable_name="squatter"))
    reader = Reader(consumer)
    await eventually(lambda: reader.warnings)
    await asyncio.wait_for(reader.stop(), 20)
    assert reader.got == []
    assert await names(stream) == ["squatter"]


async def test_info_tells_of_the_current_consumer(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 3)
    consumer = await stream.create_ordered_consumer()
    first = await consumer.info()
    reader = Reader(consumer)
    await reader.until(3)
    await pull_waits(consumer)
    await js.delete_consumer(stream.name, first.name)
    await eventually(lambda: reader.warnings)
    second = await consumer.info()
    assert second.name != first.name
    assert (second.config.deliver_policy, second.config.opt_start_seq) == ("by_start_sequence", 4)
    await reader.stop()
    # None is left after a stop: info makes one.
    third = await consumer.info()
    assert third.name not in (first.name, second.name)
    await fill(js, stream, 1)
    assert seqs(await consumer.fetch(1)) == [4]


async def test_somebody_elses_message_in_the_inbox_is_ignored(
    js: jetspark.JetStream, nc: jetspark.Connection, server: Server
) -> None:
    stream = await make(js)
    consumer = await stream.create_ordered_consumer()
    async with await PullSpy.on(server.url, consumer) as spy:
        reader = Reader(consumer)
        inbox = (await spy.next())["reply"]
    await nc.publish(inbox, b"hello")
    await nc.publish(inbox, b"hello", reply="$JS.ACK.a.b")
    await nc.flush()
    await fill(js, stream, 3)
    await reader.until(3)
    assert reasons(reader.warnings) == []
    await reader.stop()


# --- columns --------------------------------------------------------------------------------------------


async def rows(consumer: OrderedConsumer, count: int, **options: Any) -> list[int]:
    """At least ``count`` sequences, as record batches; what came with the last batch is kept too."""
    got: list[int] = []
    async with consume_arrow(consumer, **options) as batches:
        async for batch in batches:
            got += batch.column("sequence").to_pylist()
            if len(got) >= count:
                break
    return got


async def test_arrow_goes_on_where_it_was(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 3_000)
    consumer = await stream.create_ordered_consumer()
    got = seqs(await consumer.fetch(10))
    got += await rows(consumer, 500, max_messages=200)
    got += await rows(consumer, 500, max_messages=200)
    async for message in consumer.fetch(20, expires=5):
        got += seqs([message])
        break
    got += await rows(consumer, 3_000 - len(got), stop_after=3_000 - len(got))
    assert got == span(1, 3_000)


async def test_arrow_with_a_gap(server: Server, js: jetspark.JetStream) -> None:
    stream = await make(js)
    async with LossyProxy(server) as proxy, jetspark.connect(proxy.url) as nc:
        consumer = await nc.jetstream().create_ordered_consumer(stream.name)
        warnings: list[JetsparkError] = []
        got: list[int] = []
        await fill(js, stream, 5)
        async with consume_arrow(consumer, on_error=warnings.append, stop_after=15) as batches:
            async for batch in batches:
                got += batch.column("sequence").to_pylist()
                if len(got) == 5:
                    proxy.swallow_down = True
                    await fill(js, stream, 5)
                    await eventually(lambda: proxy.swallowed > 5 * len(stream.name))
                    proxy.swallow_down = False
                    await fill(js, stream, 5)
        assert got == span(1, 15)
        assert "gap: consumer sequence" in reasons(warnings)[0]


async def test_arrow_is_one_reader_too(js: jetspark.JetStream) -> None:
    stream = await make(js)
    consumer = await stream.create_ordered_consumer()
    async with consumer.consume():
        with pytest.raises(OrderedConsumerBusy):
            async with consume_arrow(consumer):
                pass
    async with consume_arrow(consumer):
        with pytest.raises(OrderedConsumerBusy):
            await consumer.fetch(1)
