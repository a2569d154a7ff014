"""Pull consumers: messages of prefilled streams on file storage; publish-to-handler latency."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import TYPE_CHECKING, Any

from _consume_meters import (
    LARGE,
    LATENCY,
    LATENCY_SUBJECT,
    MAX_ACK_PENDING,
    STREAM,
    SUBJECT,
    Handler,
    Latencies,
    Meter,
    by_bytes,
    iterate,
)
from _consume_peers import (
    natspy_ack_explicit,
    natspy_fetch_1000,
    natspy_latency,
    natspy_push_callback,
    natspy_push_iter,
    natsrpy_ack_explicit,
    natsrpy_consume_iter,
    natsrpy_fetch_1000,
    natsrpy_fetch_10000,
    natsrpy_latency,
)
from _harness import (
    Bench,
    Context,
    Figures,
    Measure,
    Params,
    Row,
    expect,
    in_blocking_passes,
    in_passes,
    in_turns,
    main,
    module,
    now,
    ours_connect,
    percentiles,
    rate,
    ready,
    warmed,
)
from _raw import CHUNK, RawConn, drain_pull, drain_pull_explicit, publish_pipelined

if TYPE_CHECKING:
    from collections.abc import Callable

PURE = {"JETSPARK_WIRE": "python"}  # without the compiled core
BUFFER = 20_000  # our consume(max_messages=...)
INTERVAL = 0.001  # latency: one message a millisecond


def prefill(ctx: Context, quick: bool) -> None:
    ctx.admin.create_stream(LATENCY, LATENCY_SUBJECT)
    # As many as whoever reads most of them does. With more, a consumer of ours had the server prepare a
    # buffer full of messages that nobody counts while the last ones that are counted were on their way.
    counts = (
        {128: 300_000, 4_096: 40_000, 65_536: 3_200}
        if quick
        else {128: 600_000, 4_096: 120_000, 65_536: 9_000}
    )
    with RawConn(ctx.host, ctx.port) as conn:
        conn.send(b"SUB _INBOX.raw.pull 3\r\n")
        for size, count in counts.items():
            stream, subject = LARGE.get(size, (STREAM, SUBJECT))
            ctx.admin.create_stream(stream, subject)
            window = max(100, min(20_000, (16 << 20) // size))
            publish_pipelined(conn, subject, count, size, window, step=min(500, window // 4))
            # The first reader of a fresh file store pays for cold caches; let that be nobody's figure.
            conn.create_pull_consumer(stream, "first-reader")
            drain_pull(conn, stream, "first-reader", 1, count, **unseen(size, count))


def unseen(size: int, count: int) -> dict[str, int]:
    """How little a raw reader has to look at: nothing before the last chunk's worth of bytes."""
    return {"recent": size + 1024, "blind": max(0, count * size - CHUNK - 2 * size)} if size > 128 else {}


def stream_of(p: Params) -> str:
    return LARGE.get(p.size, (STREAM,))[0]


def pace(ctx: Context, p: Params, phase: int) -> None:
    ctx.drive(op="pace", subject=LATENCY_SUBJECT, count=p.total, size=p.size, interval=INTERVAL)


def check_acked(ctx: Context, p: Params) -> None:
    """Every ack must have reached the consumer: the floor is looked at, not the client's word."""
    deadline = time.monotonic() + 10
    while True:
        info = ctx.admin.api(f"CONSUMER.INFO.{STREAM}.{p.run_id}-t")
        floor = info["ack_floor"]["stream_seq"]
        if floor >= p.n:
            break
        if time.monotonic() > deadline:
            raise RuntimeError(f"acked up to {floor} of {p.n}")
        time.sleep(0.05)
    ctx.admin.api(f"CONSUMER.DELETE.{STREAM}.{p.run_id}-t")


# --- ours: what the API looks like is written in this section only --------------------------------


async def ours_consumer(nc: Any, name: str, stream: str = STREAM, **config: Any) -> Any:
    settings = {"name": name, "ack_policy": "none", "mem_storage": True, "inactive_threshold": 60.0}
    return await nc.jetstream().create_or_update_consumer(
        stream, module("jetspark").ConsumerConfig(**{**settings, **config})
    )


async def ours_consume_iter(p: Params) -> list[Figures]:
    nc = await ours_connect(p)

    async def run(name: str, count: int) -> Figures:
        consumer = await ours_consumer(nc, name)
        started = now()
        async with consumer.consume(max_messages=BUFFER) as messages:
            await iterate(messages, count, p.size)
            return rate(count, started, now())

    return await in_passes(run, p)


async def ours_consume_callback(p: Params) -> Figures:
    nc = await ours_connect(p)

    async def run(name: str, count: int) -> Figures:
        consumer = await ours_consumer(nc, name)
        handler = Handler(count, p.size)
        started = now()
        async with consumer.consume_with(handler.handle, max_messages=BUFFER):
            return rate(count, started, await handler.ended)

    return await warmed(run, p)


async def ours_fetch_1000(p: Params) -> Figures:
    nc = await ours_connect(p)

    async def run(name: str, total: int) -> Figures:
        consumer = await ours_consumer(nc, name)
        meter = Meter(total, p.size)
        done = False
        while not done:
            count = volume = 0
            for msg in await consumer.fetch(1_000, expires=2):
                count += 1
                volume += len(msg.data)
            done = meter.add(count, volume)
        return meter.figures()

    return await warmed(run, p)


async def ours_batches(p: Params) -> list[Figures]:
    nc = await ours_connect(p)

    async def run(name: str, count: int) -> Figures:
        consumer = await ours_consumer(nc, name)
        meter = Meter(count, p.size)
        async with consumer.consume_batches(max_messages=BUFFER) as batches:
            async for batch in batches:
                if meter.add(len(batch), sum([len(msg.data) for msg in batch])):
                    break
            return meter.figures()

    return await in_passes(run, p)


async def read_arrow(p: Params, payload_bytes: Callable[[Any], int], **options: Any) -> list[Figures]:
    """Rows are counted in each pass. A look at the payloads costs as much as making the batch; so all of them
    are measured in the warm-up, and those of the last batch in each pass.
    """
    nc = await ours_connect(p)
    consume_arrow = module("jetspark.arrow").consume_arrow

    async def run(name: str, total: int) -> Figures:
        consumer = await ours_consumer(nc, name, stream_of(p))
        timed = not name.endswith("-w")
        count = 0
        started = now()
        async with consume_arrow(consumer, **options) as batches:
            async for batch in batches:
                count += batch.num_rows
                if not timed or count >= total:
                    ended = now()
                    expect("payload bytes", payload_bytes(batch.column("data")), batch.num_rows * p.size)
                    if count >= total:
                        break
        return by_bytes(rate(count, started, ended), p.size)

    return await in_passes(run, p)


async def ours_arrow(p: Params) -> list[Figures]:
    return await read_arrow(p, lambda data: int(data.buffers()[2].size))


async def ours_arrow_views(p: Params) -> list[Figures]:
    """As the documentation advises it from some kilobytes a message on. Each view begins with its length."""
    return await read_arrow(p, lambda data: sum(memoryview(data.buffers()[1]).cast("i")[::4]), views=True)


def ours_blocking_iter(p: Params) -> list[Figures]:
    jetspark = module("jetspark")
    with module("jetspark.blocking").connect(p.url) as nc:

        def run(name: str, total: int) -> Figures:
            config = jetspark.ConsumerConfig(
                name=name, ack_policy="none", mem_storage=True, inactive_threshold=60.0
            )
            consumer = nc.jetstream().create_or_update_consumer(STREAM, config)
            count = volume = 0
            started = now()
            with consumer.consume(max_messages=BUFFER) as messages:
                for msg in messages:
                    volume += len(msg.data)
                    count += 1
                    if count == total:
                        break
                ended = now()
            expect("payload bytes", volume, total * p.size)
            return rate(total, started, ended)

        return in_blocking_passes(run, p)


async def ours_ack_explicit(p: Params) -> Figures:
    nc = await ours_connect(p)

    async def run(name: str, total: int) -> Figures:
        consumer = await ours_consumer(nc, name, ack_policy="explicit", max_ack_pending=MAX_ACK_PENDING)
        count = 0
        started = now()
        async with consumer.consume(max_messages=BUFFER) as messages:
            async for msg in messages:
                await msg.ack()
                count += 1
                if count == total:
                    break
            await nc.flush()
            return rate(total, started, now())

    return await warmed(run, p)


async def ours_latency(p: Params) -> list[Figures]:
    nc = await ours_connect(p)

    async def run(name: str) -> Figures:
        consumer = await ours_consumer(nc, name, LATENCY, deliver_policy="new")
        latencies = Latencies(p)
        async with consumer.consume(max_messages=BUFFER) as messages:
            asyncio.get_running_loop().call_later(0.2, ready)  # the first pull is on its way by then
            async for msg in messages:
                if latencies.add(msg.data):
                    break
        return latencies.figures()

    return await in_turns(run, p)


# --- raw ------------------------------------------------------------------------------------------


async def raw_pull(p: Params) -> list[Figures]:
    stream = stream_of(p)
    with RawConn(p.host, p.port) as conn:
        conn.send(b"SUB _INBOX.raw.pull 3\r\n")

        async def run(name: str, count: int) -> Figures:
            conn.create_pull_consumer(stream, name)
            started = now()
            drain_pull(conn, stream, name, 1, count, **unseen(p.size, count))
            return by_bytes(rate(count, started, now()), p.size)

        return await in_passes(run, p)


def raw_ack_explicit(p: Params) -> Figures:
    with RawConn(p.host, p.port) as conn:
        for suffix in "wt":
            conn.create_pull_consumer(
                STREAM, f"{p.run_id}-{suffix}", ack_policy="explicit", max_ack_pending=MAX_ACK_PENDING
            )
        conn.send(b"SUB _INBOX.raw.pull 3\r\n")
        drain_pull_explicit(conn, STREAM, f"{p.run_id}-w", p.warm)
        started = now()
        drain_pull_explicit(conn, STREAM, f"{p.run_id}-t", p.n)
        return rate(p.n, started, now())


async def raw_latency(p: Params) -> list[Figures]:
    with RawConn(p.host, p.port) as conn:
        conn.send(b"SUB _INBOX.raw.pull 3\r\n")

        async def run(name: str) -> Figures:
            conn.create_pull_consumer(LATENCY, name, deliver_policy="new")
            conn.pull(LATENCY, name, "_INBOX.raw.pull", p.total)
            conn.ping()
            ready()
            samples = []
            for _ in range(p.total):
                data = conn.read_msg()[2]
                samples.append(time.monotonic_ns() - struct.unpack_from("<q", data)[0])
            return percentiles(samples[p.warm :])

        return await in_turns(run, p)


BENCH = Bench(
    name="consume",
    prepare=prefill,
    measures=[
        Measure("raw:pull", raw_pull, 600_000, 300_000, turns="objects"),
        Measure("ours:consume_iter", ours_consume_iter, 600_000, 200_000, turns="objects"),
        Measure("ours:batches", ours_batches, 600_000, 200_000, turns="objects"),
        Measure("ours:blocking_iter", ours_blocking_iter, 600_000, 200_000, turns="objects"),
        # Once more: the closer it comes, the nearer its neighbour has to be, and the more passes it takes.
        Measure("raw:pull_beside", raw_pull, 600_000, 300_000, turns="columns", passes=4),
        Measure("ours:arrow", ours_arrow, 600_000, 200_000, turns="columns", passes=4),
        Measure("ours:arrow_pure", ours_arrow, 600_000, 200_000, env=PURE, turns="columns", passes=4),
        # Nobody else reads these streams. Whoever did it first in a round would find what the server keeps of
        # them gone, and the other find it again; so each reads them once untimed.
        Measure(
            "ours:arrow_4k", ours_arrow_views, 120_000, 40_000, size=4_096, warm=1.0, turns="4k", passes=6
        ),
        Measure("raw:pull_4k", raw_pull, 120_000, 40_000, size=4_096, warm=1.0, turns="4k", passes=6),
        Measure(
            "ours:arrow_64k", ours_arrow_views, 9_000, 3_200, size=65_536, warm=1.0, turns="64k", passes=12
        ),
        Measure("raw:pull_64k", raw_pull, 9_000, 3_200, size=65_536, warm=1.0, turns="64k", passes=12),
        Measure("ours:consume_iter_pure", ours_consume_iter, 500_000, 200_000, env=PURE),
        Measure("nats-py:push_iter", natspy_push_iter, 50_000, 20_000),
        Measure("natsrpy:consume_iter", natsrpy_consume_iter, 10_000, 3_000),
        Measure("ours:consume_callback", ours_consume_callback, 500_000, 200_000),
        Measure("nats-py:push_callback", natspy_push_callback, 50_000, 20_000),
        Measure("ours:fetch_1000", ours_fetch_1000, 300_000, 100_000),
        Measure("nats-py:fetch_1000", natspy_fetch_1000, 30_000, 10_000),
        Measure("natsrpy:fetch_1000", natsrpy_fetch_1000, 200_000, 60_000),
        Measure("natsrpy:fetch_10000", natsrpy_fetch_10000, 300_000, 150_000),
        Measure("ours:ack_explicit", ours_ack_explicit, 150_000, 50_000, check=check_acked),
        Measure("nats-py:ack_explicit", natspy_ack_explicit, 30_000, 10_000, check=check_acked),
        Measure("natsrpy:ack_explicit", natsrpy_ack_explicit, 10_000, 3_000, check=check_acked),
        Measure("raw:ack_explicit", raw_ack_explicit, 150_000, 50_000, check=check_acked),
        # Some first in each pass: what is judged is the settled state.
        Measure("ours:latency", ours_latency, 900, 500, warm=0.3, load=pace, turns="latency", passes=2),
        Measure("nats-py:latency", natspy_latency, 900, 500, warm=0.3, load=pace, turns="latency", passes=2),
        Measure("natsrpy:latency", natsrpy_latency, 900, 500, warm=0.3, load=pace, turns="latency", passes=2),
        Measure("raw:latency", raw_latency, 900, 500, warm=0.3, load=pace, turns="latency", passes=2),
    ],
    rows=[
        Row(
            "consume_iter",
            "ours:consume_iter",
            "raw:pull",
            {"nats-py": "nats-py:push_iter", "natsrpy": "natsrpy:consume_iter"},
        ),
        Row("consume_iter_pure", "ours:consume_iter_pure", "raw:pull"),
        Row("consume_callback", "ours:consume_callback", "raw:pull", {"nats-py": "nats-py:push_callback"}),
        Row(
            "fetch_1000",
            "ours:fetch_1000",
            "raw:pull",
            {"nats-py": "nats-py:fetch_1000", "natsrpy": "natsrpy:fetch_1000"},
        ),
        Row(
            "batches",
            "ours:batches",
            "raw:pull",
            {"nats-py": "nats-py:fetch_1000", "natsrpy": "natsrpy:fetch_10000"},
        ),
        Row("arrow", "ours:arrow", "raw:pull_beside"),
        Row("arrow_pure", "ours:arrow_pure", "raw:pull_beside"),
        Row("arrow_4k", "ours:arrow_4k", "raw:pull_4k", unit="MB/s", figure="mb"),
        Row("arrow_64k", "ours:arrow_64k", "raw:pull_64k", unit="MB/s", figure="mb"),
        Row("blocking_iter", "ours:blocking_iter", "raw:pull"),
        Row(
            "ack_explicit",
            "ours:ack_explicit",
            "raw:ack_explicit",
            {"nats-py": "nats-py:ack_explicit", "natsrpy": "natsrpy:ack_explicit"},
        ),
        *(
            Row(
                f"latency_{figure}_us",
                "ours:latency",
                "raw:latency",
                {"nats-py": "nats-py:latency", "natsrpy": "natsrpy:latency"},
                unit="us",
                figure=figure,
            )
            for figure in ("p50", "p99")
        ),
    ],
)

if __name__ == "__main__":
    raise SystemExit(main(BENCH))
