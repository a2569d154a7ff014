"""Pull consumers: 128-byte messages of one prefilled stream on file storage; publish-to-handler latency."""

from __future__ import annotations

import asyncio
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
)
from _raw import RawConn, drain_pull, drain_pull_explicit, publish_pipelined

STREAM = "BENCH"
SUBJECT = "bench.stored"
LATENCY = "LATENCY"
LATENCY_SUBJECT = "bench.latency"
BUFFER = 20_000  # our consume(max_messages=...)
MAX_ACK_PENDING = 100_000  # so that no contender waits for the server's default of 1,000
INTERVAL = 0.001  # latency: one message a millisecond
NO_LIMIT = 1 << 30


def prefill(ctx: Context, quick: bool) -> None:
    count = 350_000 if quick else 1_200_000
    ctx.admin.create_stream(STREAM, SUBJECT)
    ctx.admin.create_stream(LATENCY, LATENCY_SUBJECT)
    with RawConn(ctx.host, ctx.port) as conn:
        publish_pipelined(conn, SUBJECT, count, 128, 20_000)
        # The first reader of a fresh file store pays for cold caches; let that be nobody's figure.
        conn.create_pull_consumer(STREAM, "first-reader")
        conn.send(b"SUB _INBOX.raw.pull 3\r\n")
        drain_pull(conn, STREAM, "first-reader", 1, count)


def pace(ctx: Context, p: Params) -> None:
    ctx.drive(op="pace", subject=LATENCY_SUBJECT, count=p.total, size=p.size, interval=INTERVAL)


def check_acked(ctx: Context, p: Params) -> None:
    """Every ack must have reached the consumer: the floor is looked at, not the client's word."""
    deadline = time.monotonic() + 10
    while True:
        info = ctx.admin.api(f"CONSUMER.INFO.{STREAM}.{p.run_id}")
        floor = info["ack_floor"]["stream_seq"]
        if floor >= p.total:
            break
        if time.monotonic() > deadline:
            raise RuntimeError(f"acked up to {floor} of {p.total}")
        time.sleep(0.05)
    ctx.admin.api(f"CONSUMER.DELETE.{STREAM}.{p.run_id}")


class Meter:
    """Counts messages (or batches of them) and keeps the time of message `warm` and of message `total`.

    A batch may cross either mark: the rate is taken over the messages actually between the two times.
    """

    __slots__ = ("begun_at", "count", "ended", "started", "total", "volume", "warm")

    def __init__(self, p: Params) -> None:
        self.warm, self.total = p.warm, p.total
        self.count = self.volume = self.begun_at = 0
        self.started = self.ended = 0.0

    def add(self, messages: int, volume: int) -> bool:
        """True when the total is reached."""
        self.count += messages
        self.volume += volume
        if not self.begun_at and self.count >= self.warm:
            self.started, self.begun_at = now(), self.count
        if self.count >= self.total:
            self.ended = now()
            return True
        return False

    def figures(self, p: Params) -> Figures:
        expect("payload bytes", self.volume, self.count * p.size)
        return rate(self.count - self.begun_at, self.started, self.ended)


async def iterate(messages: Any, p: Params) -> Figures:
    """`async for`, one message at a time, the same loop for ours and nats-py."""
    count = volume = 0
    warm, total = p.warm, p.total
    started = 0.0
    async for msg in messages:
        volume += len(msg.data)
        count += 1
        if count == warm:
            started = now()
        elif count == total:
            break
    ended = now()
    expect("payload bytes", volume, total * p.size)
    return rate(p.n, started, ended)


class Handler:
    """The callback of every callback contender; what arrives after the last counted message is ignored."""

    def __init__(self, p: Params) -> None:
        self._p = p
        self._meter = Meter(p)
        self.result: asyncio.Future[Figures] = asyncio.get_running_loop().create_future()

    async def handle(self, msg: Any) -> None:
        meter = self._meter
        if not meter.ended and meter.add(1, len(msg.data)):
            self.result.set_result(meter.figures(self._p))


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


async def ours_consumer(p: Params, stream: str = STREAM, **config: Any) -> tuple[Any, Any]:
    jetspark = module("jetspark")
    nc = await ours_connect(p)
    settings = {"name": p.run_id, "ack_policy": "none", "mem_storage": True, "inactive_threshold": 60.0}
    consumer = await nc.jetstream().create_or_update_consumer(
        stream, jetspark.ConsumerConfig(**{**settings, **config})
    )
    return nc, consumer


async def ours_consume_iter(p: Params) -> Figures:
    _, consumer = await ours_consumer(p)
    async with consumer.consume(max_messages=BUFFER) as messages:
        return await iterate(messages, p)


async def ours_consume_callback(p: Params) -> Figures:
    _, consumer = await ours_consumer(p)
    handler = Handler(p)
    async with consumer.consume(callback=handler.handle, max_messages=BUFFER):
        return await handler.result


async def ours_fetch_1000(p: Params) -> Figures:
    _, consumer = await ours_consumer(p)
    meter = Meter(p)
    done = False
    while not done:
        batch = await consumer.fetch(1_000, expires=2)
        count = volume = 0
        for msg in batch:
            count += 1
            volume += len(msg.data)
        done = meter.add(count, volume)
    return meter.figures(p)


async def ours_batches(p: Params) -> Figures:
    _, consumer = await ours_consumer(p)
    meter = Meter(p)
    async with consumer.consume(batches=True, max_messages=BUFFER) as batches:
        async for batch in batches:
            if meter.add(len(batch), sum([len(msg.data) for msg in batch])):
                break
    return meter.figures(p)


async def ours_arrow(p: Params) -> Figures:
    pc = module("pyarrow.compute")
    _, consumer = await ours_consumer(p)
    meter = Meter(p)
    async with consumer.consume_arrow(max_messages=BUFFER) as batches:
        async for batch in batches:
            if meter.add(batch.num_rows, pc.sum(pc.binary_length(batch.column("data"))).as_py()):
                break
    return meter.figures(p)


def ours_blocking_iter(p: Params) -> Figures:
    jetspark = module("jetspark")
    blocking = module("jetspark.blocking")
    meter = Meter(p)
    with blocking.connect(p.url) as nc:
        config = jetspark.ConsumerConfig(
            name=p.run_id, ack_policy="none", mem_storage=True, inactive_threshold=60.0
        )
        consumer = nc.jetstream().create_or_update_consumer(STREAM, config)
        count = volume = 0
        warm, total = p.warm, p.total
        with consumer.consume(max_messages=BUFFER) as messages:
            for msg in messages:
                volume += len(msg.data)
                count += 1
                if count == warm:
                    meter.started = now()
                elif count == total:
                    meter.ended = now()
                    break
    meter.count, meter.volume, meter.begun_at = count, volume, warm
    return meter.figures(p)


async def ours_ack_explicit(p: Params) -> Figures:
    nc, consumer = await ours_consumer(p, ack_policy="explicit", max_ack_pending=MAX_ACK_PENDING)
    count = 0
    started = 0.0
    async with consumer.consume(max_messages=BUFFER, stop_after=p.total) as messages:
        async for msg in messages:
            await msg.ack()
            count += 1
            if count == p.warm:
                started = now()
            elif count == p.total:
                break
        await nc.flush()
    return rate(p.n, started, now())


async def ours_latency(p: Params) -> Figures:
    _, consumer = await ours_consumer(p, LATENCY, deliver_policy="new")
    latencies = Latencies(p)
    async with consumer.consume(max_messages=BUFFER) as messages:
        asyncio.get_running_loop().call_later(0.2, ready)  # the first pull is on its way by then
        async for msg in messages:
            if latencies.add(msg.data):
                break
    return latencies.figures()


# --- nats-py: fetch is its only pull API; for iterators and callbacks it has push consumers -------


async def natspy_pull(p: Params, **config: Any) -> tuple[Any, Any]:
    nc = await module("nats").connect(p.url)
    api = module("nats.js.api")
    settings = {"ack_policy": api.AckPolicy.NONE, "mem_storage": True, "inactive_threshold": 60.0}
    sub = await nc.jetstream().pull_subscribe(
        SUBJECT,
        durable=p.run_id,
        stream=STREAM,
        config=api.ConsumerConfig(**{**settings, **config}),
        pending_msgs_limit=NO_LIMIT,
        pending_bytes_limit=NO_LIMIT,
    )
    return nc, sub


async def natspy_fetch_1000(p: Params) -> Figures:
    _, sub = await natspy_pull(p)
    meter = Meter(p)
    done = False
    while not done:
        batch = await sub.fetch(1_000, timeout=2)
        done = meter.add(len(batch), sum([len(msg.data) for msg in batch]))
    return meter.figures(p)


async def natspy_push_iter(p: Params) -> Figures:
    nc = await module("nats").connect(p.url)
    sub = await nc.jetstream().subscribe(
        SUBJECT,
        stream=STREAM,
        ordered_consumer=True,
        pending_msgs_limit=NO_LIMIT,
        pending_bytes_limit=NO_LIMIT,
    )
    return await iterate(sub.messages, p)


async def natspy_push_callback(p: Params) -> Figures:
    nc = await module("nats").connect(p.url)
    handler = Handler(p)
    await nc.jetstream().subscribe(
        SUBJECT,
        stream=STREAM,
        cb=handler.handle,
        ordered_consumer=True,
        pending_msgs_limit=NO_LIMIT,
        pending_bytes_limit=NO_LIMIT,
    )
    return await handler.result


async def natspy_ack_explicit(p: Params) -> Figures:
    api = module("nats.js.api")
    nc, sub = await natspy_pull(p, ack_policy=api.AckPolicy.EXPLICIT, max_ack_pending=MAX_ACK_PENDING)
    meter = Meter(p)
    done = False
    while not done:
        batch = await sub.fetch(min(1_000, p.total - meter.count), timeout=2)
        for msg in batch:
            await msg.ack()
        done = meter.add(len(batch), 0)
    await nc.flush()
    return rate(meter.count - meter.begun_at, meter.started, now())


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


async def natsrpy_consumer(p: Params, stream: str = STREAM, **config: Any) -> Any:
    consumers = module("natsrpy.js")
    nc = await natsrpy_connect(p)
    js = await nc.jetstream()
    settings = {"ack_policy": consumers.AckPolicy.NONE, "memory_storage": True, "inactive_threshold": 60.0}
    handle = await js.streams.get(stream)
    consumer = await handle.consumers.create(
        consumers.PullConsumerConfig(name=p.run_id, **{**settings, **config})
    )
    return nc, consumer


async def _natsrpy_fetch(p: Params, size: int) -> Figures:
    _, consumer = await natsrpy_consumer(p)
    meter = Meter(p)
    done = False
    while not done:
        batch = await consumer.fetch(size, expires=2.0, timeout=5.0)
        done = meter.add(len(batch), sum([len(msg.payload) for msg in batch]))
    return meter.figures(p)


async def natsrpy_fetch_1000(p: Params) -> Figures:
    return await _natsrpy_fetch(p, 1_000)


async def natsrpy_fetch_10000(p: Params) -> Figures:
    return await _natsrpy_fetch(p, 10_000)


async def natsrpy_consume_iter(p: Params) -> Figures:
    _, consumer = await natsrpy_consumer(p)
    meter = Meter(p)
    async with consumer.consume() as messages:
        async for msg in messages:
            if meter.add(1, len(msg.payload)):
                break
    return meter.figures(p)


async def natsrpy_ack_explicit(p: Params) -> Figures:
    ack_policy = module("natsrpy.js").AckPolicy.EXPLICIT
    nc, consumer = await natsrpy_consumer(p, ack_policy=ack_policy, max_ack_pending=MAX_ACK_PENDING)
    meter = Meter(p)
    done = False
    while not done:
        batch = await consumer.fetch(min(1_000, p.total - meter.count), expires=2.0, timeout=5.0)
        for msg in batch:
            await msg.ack()
        done = meter.add(len(batch), 0)
    await nc.flush()
    await nc.request("bench.echo", b"x")
    return rate(meter.count - meter.begun_at, meter.started, now())


async def natsrpy_latency(p: Params) -> Figures:
    policy = module("natsrpy.js").DeliverPolicy.NEW
    _, consumer = await natsrpy_consumer(p, LATENCY, deliver_policy=policy)
    latencies = Latencies(p)
    async with consumer.consume() as messages:
        asyncio.get_running_loop().call_later(0.2, ready)
        async for msg in messages:
            if latencies.add(msg.payload):
                break
    return latencies.figures()


# --- raw ------------------------------------------------------------------------------------------


def raw_pull(p: Params) -> Figures:
    with RawConn(p.host, p.port) as conn:
        conn.create_pull_consumer(STREAM, p.run_id)
        conn.send(b"SUB _INBOX.raw.pull 3\r\n")
        drain_pull(conn, STREAM, p.run_id, 1, p.warm)
        started = now()
        drain_pull(conn, STREAM, p.run_id, p.warm + 1, p.total)
        return rate(p.n, started, now())


def raw_ack_explicit(p: Params) -> Figures:
    with RawConn(p.host, p.port) as conn:
        conn.create_pull_consumer(STREAM, p.run_id, ack_policy="explicit", max_ack_pending=MAX_ACK_PENDING)
        conn.send(b"SUB _INBOX.raw.pull 3\r\n")
        drain_pull_explicit(conn, STREAM, p.run_id, p.warm)
        started = now()
        drain_pull_explicit(conn, STREAM, p.run_id, p.n)
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
        Measure("raw:pull", raw_pull, 1_000_000, 300_000),
        Measure("ours:consume_iter", ours_consume_iter, 1_000_000, 200_000),
        Measure("nats-py:push_iter", natspy_push_iter, 100_000, 20_000),
        Measure("natsrpy:consume_iter", natsrpy_consume_iter, 20_000, 3_000),
        Measure("ours:consume_callback", ours_consume_callback, 1_000_000, 200_000),
        Measure("nats-py:push_callback", natspy_push_callback, 100_000, 20_000),
        Measure("ours:fetch_1000", ours_fetch_1000, 500_000, 100_000),
        Measure("nats-py:fetch_1000", natspy_fetch_1000, 50_000, 10_000),
        Measure("natsrpy:fetch_1000", natsrpy_fetch_1000, 300_000, 60_000),
        Measure("ours:batches", ours_batches, 1_000_000, 200_000),
        Measure("natsrpy:fetch_10000", natsrpy_fetch_10000, 500_000, 150_000),
        Measure("ours:arrow", ours_arrow, 1_000_000, 200_000),
        Measure("ours:blocking_iter", ours_blocking_iter, 1_000_000, 200_000),
        Measure("ours:ack_explicit", ours_ack_explicit, 200_000, 50_000, check=check_acked),
        Measure("nats-py:ack_explicit", natspy_ack_explicit, 50_000, 10_000, check=check_acked),
        Measure("natsrpy:ack_explicit", natsrpy_ack_explicit, 20_000, 3_000, check=check_acked),
        Measure("raw:ack_explicit", raw_ack_explicit, 200_000, 50_000, check=check_acked),
        Measure("ours:latency", ours_latency, 5_000, 600, load=pace),
        Measure("nats-py:latency", natspy_latency, 5_000, 600, load=pace),
        Measure("natsrpy:latency", natsrpy_latency, 5_000, 600, load=pace),
        Measure("raw:latency", raw_latency, 5_000, 600, load=pace),
    ],
    rows=[
        Row(
            "consume_iter",
            "ours:consume_iter",
            "raw:pull",
            {"nats-py": "nats-py:push_iter", "natsrpy": "natsrpy:consume_iter"},
        ),
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
        Row("arrow", "ours:arrow", "raw:pull"),
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
