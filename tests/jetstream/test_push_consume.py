"""consume() of push consumers, and ordered push consumers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

import jetspark
from jetspark import AckPolicy, ConsumerConfig, StorageType
from jetspark.errors import (
    ConsumerInUse,
    InvalidArgument,
    JetsparkError,
    MissedHeartbeat,
    OrderedReset,
)
from support.consuming import fill, make, make_filled, numbers
from support.helpers import eventually, unique
from support.lossy_proxy import LossyProxy
from support.pushing import Errors, fill_large, lose_one, no_consumers, take

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jetspark.server import Server


@pytest_asyncio.fixture
async def lossy(server: Server) -> AsyncIterator[tuple[LossyProxy, jetspark.JetStream]]:
    async with LossyProxy(server) as proxy, jetspark.connect(proxy.url) as nc:
        yield proxy, nc.jetstream()


# --- consume -------------------------------------------------------------------------------------------


async def test_consume_reads_from_a_push_consumer_and_leaves_it(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(
        js, 50, deliver_subject=unique("deliver"), idle_heartbeat=1.0, flow_control=True
    )
    async with consumer.consume(stop_after=20) as messages:
        got = [message async for message in messages]
    assert numbers(got) == list(range(20))
    for message in got:
        await message.ack()
    assert (await eventually(lambda: floor_at(consumer, 20))).config == consumer.config


async def floor_at(consumer: jetspark.Consumer, floor: int) -> Any:
    info = await consumer.info()
    return info if info.ack_floor.stream_seq == floor else None


@pytest.mark.parametrize("batches", [False, True])
async def test_a_slow_consume_is_paced_by_flow_control(js: jetspark.JetStream, batches: bool) -> None:
    stream = await fill_large(js, 600, 16_384)
    consumer = await stream.create_consumer(
        ConsumerConfig(
            deliver_subject=unique("deliver"), ack_policy="none", idle_heartbeat=0.2, flow_control=True
        )
    )
    got: list[int] = []
    consume: Any = consumer.consume_batches if batches else consumer.consume
    async with consume(stop_after=600) as source:
        await eventually(lambda: source._started().flow.next_answer)
        assert source.pending < 600
        async for some in source:
            got += numbers(some if batches else [some])
    assert got == list(range(600))


async def unbound(consumer: jetspark.Consumer) -> bool:
    """Whether the server has noticed that nobody listens any more."""
    return not (await consumer.info()).push_bound


async def test_consume_batches_and_callbacks(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 100, deliver_subject=unique("deliver"), ack_policy=AckPolicy.NONE)
    got: list[int] = []
    async with consumer.consume_batches() as batches:
        async for batch in batches:
            got += numbers(batch)
            if len(got) == 100:
                break
    assert got == list(range(100))
    # What is sent to nobody is gone.
    await eventually(lambda: unbound(consumer))
    await fill(js, await js.get_stream(consumer.stream_name), 40, start=100)
    got.clear()
    async with consumer.consume_with(lambda m: got.append(int(m.data)), concurrency=3) as running:
        await eventually(lambda: len(got) == 40)
        await running.drain()
        await running.wait()
    assert sorted(got) == list(range(100, 140))


async def test_a_deliver_group_is_consumed_by_several(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0, deliver_subject=unique("deliver"), deliver_group="g")
    got: list[list[int]] = [[], []]
    async with (
        consumer.consume_with(lambda m: got[0].append(int(m.data))),
        consumer.consume_with(lambda m: got[1].append(int(m.data))),
    ):
        await fill(js, stream, 100)
        await eventually(lambda: len(got[0]) + len(got[1]) == 100)
    assert sorted(got[0] + got[1]) == list(range(100))
    assert got[0]
    assert got[1]


async def test_a_push_consumer_without_a_group_is_consumed_by_one(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1, deliver_subject=unique("deliver"))
    async with consumer.consume() as messages:
        assert numbers([await anext(messages)]) == [0]
        with pytest.raises(ConsumerInUse):
            async with consumer.consume():
                pass


@pytest.mark.parametrize(
    "option",
    [{"max_messages": 5}, {"max_bytes": 5}, {"expires": 5.0}, {"idle_heartbeat": 1.0}, {"group": "g"}],
)
async def test_pull_options_are_refused_for_a_push_consumer(
    js: jetspark.JetStream, option: dict[str, Any]
) -> None:
    _, consumer = await make_filled(js, 0, deliver_subject=unique("deliver"))
    with pytest.raises(InvalidArgument, match="pull consumers") as caught:
        consumer.consume(**option)
    assert caught.value.field == next(iter(option))


async def test_warnings_of_a_push_consume_go_to_its_listener(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 0, deliver_subject=unique("deliver"), idle_heartbeat=0.1)
    errors = Errors()
    async with consumer.consume(on_error=errors):
        await consumer.delete()
        assert await errors.of(MissedHeartbeat)


# --- ordered -------------------------------------------------------------------------------------------


async def test_an_ordered_subscription_reads_everything_in_order(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 5_000)
    sub = await js.subscribe(f"{stream.name}.a", ordered=True)
    config = sub.cached_info.config
    assert (config.ack_policy, config.flow_control, config.idle_heartbeat) == (AckPolicy.NONE, True, 5.0)
    assert (config.mem_storage, config.num_replicas, config.max_deliver) == (True, 1, 1)
    assert numbers(await take(sub, 5_000)) == list(range(5_000))
    await sub.unsubscribe()
    assert [name async for name in js.consumer_names(stream.name)] == []


async def test_an_ordered_subscription_starts_where_it_is_told(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 10)
    async with await js.subscribe(f"{stream.name}.a", ordered=True, opt_start_seq=8) as sub:
        assert numbers(await take(sub, 3)) == [7, 8, 9]
    async with await js.subscribe(f"{stream.name}.a", ordered=True, deliver_policy="last") as sub:
        assert numbers(await take(sub, 1)) == [9]


async def test_mistakes_of_an_ordered_subscription_show_at_once(js: jetspark.JetStream) -> None:
    stream = await make(js)
    before = len(js._core.router.sinks)
    with pytest.raises(InvalidArgument, match="ordered=True"):
        await js.subscribe(f"{stream.name}.a", ordered=True, queue="q")
    with pytest.raises(JetsparkError):
        await js.subscribe("elsewhere", stream=unique("no"), ordered=True)
    assert len(js._core.router.sinks) == before


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["deleted", "reconnect", "gap", "silence"])
async def test_an_ordered_subscription_goes_on_whatever_happens(
    js: jetspark.JetStream, lossy: tuple[LossyProxy, jetspark.JetStream], trouble: str
) -> None:
    proxy, lossy_js = lossy
    stream, errors = await make(js), Errors()
    await fill(js, stream, 10)
    sub = await lossy_js.subscribe(f"{stream.name}.a", ordered=True, idle_heartbeat=0.3, on_error=errors)
    first = sub.consumer_name
    got = numbers(await take(sub, 10))
    if trouble == "deleted":
        await js.delete_consumer(stream.name, first)
    elif trouble == "reconnect":
        await lossy_js.connection.force_reconnect()
    elif trouble == "gap":
        await lose_one(proxy, js, sub, b"10")
    else:
        proxy.swallow_down = True
        await errors.of(MissedHeartbeat)
        proxy.swallow_down = False
    await fill(js, stream, 10, start=11 if trouble == "gap" else 10)
    got += numbers(await take(sub, 11 if trouble == "gap" else 10))
    assert got == list(range(len(got)))
    assert await errors.of(OrderedReset)
    assert sub.consumer_name != first
    await sub.unsubscribe()
    await eventually(lambda: no_consumers(js, stream.name))


async def test_an_ordered_subscription_survives_a_restart_of_the_server(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream()
        stream = await make(js, storage=StorageType.FILE)
        await fill(js, stream, 5)
        got: list[int] = []
        sub = await js.subscribe(f"{stream.name}.a", ordered=True, callback=lambda m: got.append(int(m.data)))
        await eventually(lambda: len(got) == 5)
        await asyncio.to_thread(own_server.restart)
        await eventually(lambda: nc.is_connected, timeout=20)
        await fill(js, stream, 5, start=5)
        await eventually(lambda: len(got) == 10, timeout=20)
        assert got == list(range(10))
        await sub.unsubscribe()


async def test_an_ordered_subscription_with_a_slow_reader_is_paced_by_flow_control(
    js: jetspark.JetStream,
) -> None:
    stream = await fill_large(js, 600, 16_384)
    async with await js.subscribe(f"{stream.name}.a", ordered=True, idle_heartbeat=0.2) as sub:
        await eventually(lambda: sub._started.flow.next_answer)
        assert sub.pending < 600
        assert numbers(await take(sub, 600)) == list(range(600))


async def test_draining_an_ordered_subscription(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 5)
    sub = await js.subscribe(f"{stream.name}.a", ordered=True)
    await eventually(lambda: sub.pending == 5)
    await sub.drain()
    assert numbers([message async for message in sub]) == [0, 1, 2, 3, 4]
    await eventually(lambda: no_consumers(js, stream.name))
