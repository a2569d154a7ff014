"""Pull consumers: messages of prefilled streams on file storage; publish-to-handler latency."""

from __future__ import annotations

import asyncio
import gc
import struct
import time
from typing import Any

from _harness import (
    Bench,
    Context,
    Figures,
    Measure,
    Params,
    Row,
    expect,
    main,
    module,
    natsrpy_connect,
    now,
    ours_connect,
    percentiles,
    rate,
    ready,
    warmed,
)
from _raw import CHUNK, RawConn, drain_pull, drain_pull_explicit, publish_pipelined

STREAM = "BENCH"
SUBJECT = "bench.stored"
LARGE = {4_096: ("BENCH-4K", "bench.stored-4k"), 65_536: ("BENCH-64K", "bench.stored-64k")}
PURE = {"JETSPARK_WIRE": "python"}  # without the compiled core
LATENCY = "LATENCY"
LATENCY_SUBJECT = "bench.latency"
BUFFER = 20_000  # our consume(max_messages=...)
MAX_ACK_PENDING = 100_000  # so that no contender waits for the server's default of 1,000
INTERVAL = 0.001  # latency: one message a millisecond
NO_LIMIT = 1 << 30


def prefill(ctx: Context, quick: bool) -> None:
    ctx.admin.create_stream(LATENCY, LATENCY_SUBJECT)
    counts = (
        {128: 350_000, 4_096: 42_000, 65_536: 3_500}
        if quick
        else {128: 750_000, 4_096: 130_000, 65_536: 9_500}
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


class Meter:
    """Counts what batches bring until `total` messages are there, from its creation on.

    A batch may go beyond the total: the rate is taken over all that was handled.
    """

    __slots__ = ("count", "size", "started", "total", "volume")

    def __init__(self, total: int, size: int) -> None:
        self.total, self.size = total, size
        self.count = self.volume = 0
        self.started = now()

    def add(self, messages: int, volume: int) -> bool:
        """True when the total is reached."""
        self.count += messages
        self.volume += volume
        return self.count >= self.total

    def figures(self) -> Figures:
        ended = now()
        expect("payload bytes", self.volume, self.count * self.size)
        return by_bytes(rate(self.count, self.started, ended), self.size)


def by_bytes(figures: Figures, size: int) -> Figures:
    return {**figures, "mb": figures["rate"] * size / 1e6}


async def iterate(messages: Any, total: int, size: int) -> float:
    """`async for`, one message at a time, the same loop for ours and nats-py. Returns the first's time."""
    count = volume = 0
    first = 0.0
    async for msg in messages:
        volume += len(msg.data)
        count += 1
        if count == 1:
            first = now()
        elif count == total:
            break
    expect("payload bytes", volume, total * size)
    return first


class Handler:
    """The callback of every callback contender; what arrives after the last counted message is ignored."""

    def __init__(self, total: int, size: int) -> None:
        self._total, self._size = total, size
        self._count = self._volume = 0
        self.first = 0.0
        self.ended: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def handle(self, msg: Any) -> None:
        self._volume += len(msg.data)
        self._count = count = self._count + 1
        if count == 1:
            self.first = now()
        elif count == self._total:
            expect("payload bytes", self._volume, self._total * self._size)
            self.ended.set_result(now())


class Latencies:
    __slots__ = ("done", "samples", "total", "warm")

    def __init__(self, p: Params) -> None:
        self.samples: list[int] = []
        self.warm, self.total = p.warm, p.total
        self.done = asyncio.Event()

    def add(self, data: bytes) -> bool:
        arrived = time.monotonic_ns()
        self.samples.append(arrived - struct.unpack_from("<q", data)[0])
        if len(self.samples) == self.total:
            self.done.set()
            return True
        return False

    def figures(self) -> Figures:
        return percentiles(self.samples[self.warm :])


# --- ours: what the API looks like is written in this section only --------------------------------


async def ours_consumer(nc: Any, name: str, stream: str = STREAM, **config: Any) -> Any:
    settings = {"name": name, "ack_policy": "none", "mem_storage": True, "inactive_threshold": 60.0}
    return await nc.jetstream().create_or_update_consumer(
        stream, module("jetspark").ConsumerConfig(**{**settings, **config})
    )


async def ours_consume_iter(p: Params) -> Figures:
    nc = await ours_connect(p)

    async def run(name: str, count: int) -> Figures:
        consumer = await ours_consumer(nc, name)
        started = now()
        async with consumer.consume(max_messages=BUFFER) as messages:
            await iterate(messages, count, p.size)
            return rate(count, started, now())

    return await warmed(run, p)


async def ours_consume_callback(p: Params) -> Figures:
    nc = await ours_connect(p)

    async def run(name: str, count: int) -> Figures:
        consumer = await ours_consumer(nc, name)
        handler = Handler(count, p.size)
        started = now()
        async with consumer.consume(callback=handler.handle, max_messages=BUFFER):
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


async def ours_batches(p: Params) -> Figures:
    nc = await ours_connect(p)

    async def run(name: str, count: int) -> Figures:
        consumer = await ours_consumer(nc, name)
        meter = Meter(count, p.size)
        async with consumer.consume(batches=True, max_messages=BUFFER) as batches:
            async for batch in batches:
                if meter.add(len(batch), sum([len(msg.data) for msg in batch])):
                    break
            return meter.figures()

    return await warmed(run, p)


def payload_bytes(data: Any) -> int:
    """Of an Arrow array, out of its buffers: the last one, or the lengths that the views begin with."""
    buffers = data.buffers()
    if str(data.type) == "binary_view":
        return sum(memoryview(buffers[1]).cast("i")[::4].tolist())
    return int(buffers[2].size)


async def ours_arrow(p: Params) -> Figures:
    nc = await ours_connect(p)

    async def run(name: str, count: int) -> Figures:
        consumer = await ours_consumer(nc, name, stream_of(p))
        meter = Meter(count, p.size)
        # From some kilobytes on views are what the documentation advises.
        async with module("jetspark.arrow").consume_arrow(consumer, views=p.size > 128) as batches:
            async for batch in batches:
                if meter.add(batch.num_rows, payload_bytes(batch.column("data"))):
                    break
            return meter.figures()

    return await warmed(run, p)


def ours_blocking_iter(p: Params) -> Figures:
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

        run(f"{p.run_id}-w", p.warm)
        gc.collect()
        return run(f"{p.run_id}-t", p.n)


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


async def ours_latency(p: Params) -> Figures:
    consumer = await ours_consumer(await ours_connect(p), p.run_id, LATENCY, deliver_policy="new")
    latencies = Latencies(p)
    async with consumer.consume(max_messages=BUFFER) as messages:
        asyncio.get_running_loop().call_later(0.2, ready)  # the first pull is on its way by then
        async for msg in messages:
            if latencies.add(msg.data):
                break
    return latencies.figures()


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


async def natspy_latency(p: Params) -> Figures:
    nc = await module("nats").connect(p.url)
    api = module("nats.js.api")
    latencies = Latencies(p)

    async def handle(msg: Any) -> None:
        latencies.add(msg.data)

    await nc.jetstream().subscribe(
        LATENCY_SUBJECT,
        stream=LATENCY,
        cb=handle,
        manual_ack=True,
        config=api.ConsumerConfig(ack_policy=api.AckPolicy.NONE, deliver_policy=api.DeliverPolicy.NEW),
    )
    await nc.flush()
    ready()
    await latencies.done.wait()
    return latencies.figures()


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


async def natsrpy_latency(p: Params) -> Figures:
    policy = module("natsrpy.js").DeliverPolicy.NEW
    consumer = await natsrpy_consumer(await natsrpy_connect(p), p.run_id, LATENCY, deliver_policy=policy)
    latencies = Latencies(p)
    async with consumer.consume() as messages:
        asyncio.get_running_loop().call_later(0.2, ready)
        async for msg in messages:
            if latencies.add(msg.payload):
                break
    return latencies.figures()


# --- raw ------------------------------------------------------------------------------------------


def raw_pull(p: Params) -> Figures:
    stream = stream_of(p)
    with RawConn(p.host, p.port) as conn:
        conn.create_pull_consumer(stream, f"{p.run_id}-w")
        conn.create_pull_consumer(stream, f"{p.run_id}-t")
        conn.send(b"SUB _INBOX.raw.pull 3\r\n")
        drain_pull(conn, stream, f"{p.run_id}-w", 1, p.warm, **unseen(p.size, p.warm))
        started = now()
        drain_pull(conn, stream, f"{p.run_id}-t", 1, p.n, **unseen(p.size, p.n))
        return by_bytes(rate(p.n, started, now()), p.size)


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


def raw_latency(p: Params) -> Figures:
    with RawConn(p.host, p.port) as conn:
        conn.create_pull_consumer(LATENCY, p.run_id, deliver_policy="new")
        conn.send(b"SUB _INBOX.raw.pull 3\r\n")
        conn.pull(LATENCY, p.run_id, "_INBOX.raw.pull", p.total)
        conn.ping()
        ready()
        samples = []
        for _ in range(p.total):
            data = conn.read_msg()[2]
            samples.append(time.monotonic_ns() - struct.unpack_from("<q", data)[0])
        return percentiles(samples[p.warm :])


BENCH = Bench(
    name="consume",
    prepare=prefill,
    measures=[
        Measure("raw:pull", raw_pull, 600_000, 300_000),
        Measure("ours:consume_iter", ours_consume_iter, 500_000, 200_000),
        Measure("ours:consume_iter_pure", ours_consume_iter, 500_000, 200_000, env=PURE),
        Measure("nats-py:push_iter", natspy_push_iter, 50_000, 20_000),
        Measure("natsrpy:consume_iter", natsrpy_consume_iter, 10_000, 3_000),
        Measure("ours:consume_callback", ours_consume_callback, 500_000, 200_000),
        Measure("nats-py:push_callback", natspy_push_callback, 50_000, 20_000),
        Measure("ours:fetch_1000", ours_fetch_1000, 300_000, 100_000),
        Measure("nats-py:fetch_1000", natspy_fetch_1000, 30_000, 10_000),
        Measure("natsrpy:fetch_1000", natsrpy_fetch_1000, 200_000, 60_000),
        Measure("ours:batches", ours_batches, 600_000, 200_000),
        Measure("natsrpy:fetch_10000", natsrpy_fetch_10000, 300_000, 150_000),
        Measure("ours:arrow", ours_arrow, 600_000, 200_000),
        # Once more, next to what it is compared with.
        Measure("raw:pull_beside", raw_pull, 600_000, 300_000),
        Measure("ours:arrow_pure", ours_arrow, 600_000, 200_000, env=PURE),
        Measure("ours:arrow_4k", ours_arrow, 120_000, 40_000, size=4_096),
        Measure("raw:pull_4k", raw_pull, 120_000, 40_000, size=4_096),
        Measure("ours:arrow_64k", ours_arrow, 9_000, 3_200, size=65_536),
        Measure("raw:pull_64k", raw_pull, 9_000, 3_200, size=65_536),
        Measure("ours:blocking_iter", ours_blocking_iter, 500_000, 200_000),
        Measure("ours:ack_explicit", ours_ack_explicit, 150_000, 50_000, check=check_acked),
        Measure("nats-py:ack_explicit", natspy_ack_explicit, 30_000, 10_000, check=check_acked),
        Measure("natsrpy:ack_explicit", natsrpy_ack_explicit, 10_000, 3_000, check=check_acked),
        Measure("raw:ack_explicit", raw_ack_explicit, 150_000, 50_000, check=check_acked),
        # A third of them first: what is judged is the settled state.
        Measure("ours:latency", ours_latency, 3_000, 1_000, warm=0.33, load=pace),
        Measure("nats-py:latency", natspy_latency, 3_000, 1_000, warm=0.33, load=pace),
        Measure("natsrpy:latency", natsrpy_latency, 3_000, 1_000, warm=0.33, load=pace),
        Measure("raw:latency", raw_latency, 3_000, 1_000, warm=0.33, load=pace),
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
