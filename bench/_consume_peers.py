"""The contenders of consume.py that are not ours: nats-py and natsrpy."""

from __future__ import annotations

import asyncio
from typing import Any

from _consume_meters import (
    LATENCY,
    LATENCY_SUBJECT,
    MAX_ACK_PENDING,
    STREAM,
    SUBJECT,
    Handler,
    Latencies,
    Meter,
    iterate,
)
from _harness import Figures, Params, in_turns, module, natsrpy_connect, now, rate, ready, warmed

NO_LIMIT = 1 << 30

# --- nats-py: fetch is its only pull API; for iterators and callbacks it has push consumers -------


async def natspy_pull(nc: Any, name: str, **config: Any) -> Any:
    api = module("nats.js.api")
    settings = {"ack_policy": api.AckPolicy.NONE, "mem_storage": True, "inactive_threshold": 60.0}
    return await nc.jetstream().pull_subscribe(
        SUBJECT,
        durable=name,
        stream=STREAM,
        config=api.ConsumerConfig(**{**settings, **config}),
        pending_msgs_limit=NO_LIMIT,
        pending_bytes_limit=NO_LIMIT,
    )


async def natspy_push(nc: Any, **options: Any) -> Any:
    return await nc.jetstream().subscribe(
        SUBJECT,
        stream=STREAM,
        ordered_consumer=True,
        pending_msgs_limit=NO_LIMIT,
        pending_bytes_limit=NO_LIMIT,
        **options,
    )


async def natspy_fetch_1000(p: Params) -> Figures:
    nc = await module("nats").connect(p.url)

    async def run(name: str, count: int) -> Figures:
        sub = await natspy_pull(nc, name)
        meter = Meter(count, p.size)
        done = False
        while not done:
            batch = await sub.fetch(1_000, timeout=2)
            done = meter.add(len(batch), sum([len(msg.data) for msg in batch]))
        return meter.figures()

    return await warmed(run, p)


# A push consumer sends as soon as it exists, so these are timed from their first message; creating is free.


async def natspy_push_iter(p: Params) -> Figures:
    nc = await module("nats").connect(p.url)

    async def run(name: str, count: int) -> Figures:
        sub = await natspy_push(nc)
        figures = rate(count - 1, await iterate(sub.messages, count, p.size), now())
        await sub.unsubscribe()
        return figures

    return await warmed(run, p)


async def natspy_push_callback(p: Params) -> Figures:
    nc = await module("nats").connect(p.url)

    async def run(name: str, count: int) -> Figures:
        handler = Handler(count, p.size)
        sub = await natspy_push(nc, cb=handler.handle)
        ended = await handler.ended
        await sub.unsubscribe()
        return rate(count - 1, handler.first, ended)

    return await warmed(run, p)


async def natspy_ack_explicit(p: Params) -> Figures:
    nc = await module("nats").connect(p.url)
    explicit = module("nats.js.api").AckPolicy.EXPLICIT

    async def run(name: str, count: int) -> Figures:
        sub = await natspy_pull(nc, name, ack_policy=explicit, max_ack_pending=MAX_ACK_PENDING)
        meter = Meter(count, 0)
        done = False
        while not done:
            batch = await sub.fetch(1_000, timeout=2)
            for msg in batch:
                await msg.ack()
            done = meter.add(len(batch), 0)
        await nc.flush()
        await nc.flush()  # see core.py
        return meter.figures()

    return await warmed(run, p)


async def natspy_latency(p: Params) -> list[Figures]:
    nc = await module("nats").connect(p.url)
    api = module("nats.js.api")

    async def run(name: str) -> Figures:
        latencies = Latencies(p)

        async def handle(msg: Any) -> None:
            latencies.add(msg.data)

        subscription = await nc.jetstream().subscribe(
            LATENCY_SUBJECT,
            stream=LATENCY,
            cb=handle,
            manual_ack=True,
            config=api.ConsumerConfig(
                name=name, ack_policy=api.AckPolicy.NONE, deliver_policy=api.DeliverPolicy.NEW
            ),
        )
        await nc.flush()
        ready()
        await latencies.done.wait()
        await subscription.unsubscribe()
        await nc.flush()
        return latencies.figures()

    return await in_turns(run, p)


# --- natsrpy --------------------------------------------------------------------------------------


async def natsrpy_consumer(nc: Any, name: str, stream: str = STREAM, **config: Any) -> Any:
    api = module("natsrpy.js")
    settings = {"ack_policy": api.AckPolicy.NONE, "memory_storage": True, "inactive_threshold": 60.0}
    handle = await (await nc.jetstream()).streams.get(stream)
    return await handle.consumers.create(api.PullConsumerConfig(name=name, **{**settings, **config}))


async def _natsrpy_fetch(p: Params, size: int) -> Figures:
    nc = await natsrpy_connect(p)

    async def run(name: str, count: int) -> Figures:
        consumer = await natsrpy_consumer(nc, name)
        meter = Meter(count, p.size)
        done = False
        while not done:
            batch = await consumer.fetch(size, expires=2.0, timeout=5.0)
            done = meter.add(len(batch), sum([len(msg.payload) for msg in batch]))
        return meter.figures()

    return await warmed(run, p)


async def natsrpy_fetch_1000(p: Params) -> Figures:
    return await _natsrpy_fetch(p, 1_000)


async def natsrpy_fetch_10000(p: Params) -> Figures:
    return await _natsrpy_fetch(p, 10_000)


async def natsrpy_consume_iter(p: Params) -> Figures:
    nc = await natsrpy_connect(p)

    async def run(name: str, count: int) -> Figures:
        consumer = await natsrpy_consumer(nc, name)
        meter = Meter(count, p.size)
        async with consumer.consume() as messages:
            async for msg in messages:
                if meter.add(1, len(msg.payload)):
                    break
            return meter.figures()

    return await warmed(run, p)


async def natsrpy_ack_explicit(p: Params) -> Figures:
    nc = await natsrpy_connect(p)
    explicit = module("natsrpy.js").AckPolicy.EXPLICIT

    async def run(name: str, count: int) -> Figures:
        consumer = await natsrpy_consumer(nc, name, ack_policy=explicit, max_ack_pending=MAX_ACK_PENDING)
        meter = Meter(count, 0)
        done = False
        while not done:
            batch = await consumer.fetch(1_000, expires=2.0, timeout=5.0)
            for msg in batch:
                await msg.ack()
            done = meter.add(len(batch), 0)
        await nc.flush()
        await nc.request("bench.echo", b"x")
        return meter.figures()

    return await warmed(run, p)


async def natsrpy_latency(p: Params) -> list[Figures]:
    nc = await natsrpy_connect(p)
    policy = module("natsrpy.js").DeliverPolicy.NEW

    async def run(name: str) -> Figures:
        consumer = await natsrpy_consumer(nc, name, LATENCY, deliver_policy=policy)
        latencies = Latencies(p)
        async with consumer.consume() as messages:
            asyncio.get_running_loop().call_later(0.2, ready)
            async for msg in messages:
                if latencies.add(msg.payload):
                    break
        return latencies.figures()

    return await in_turns(run, p)
