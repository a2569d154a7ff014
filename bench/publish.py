"""JetStream publishing with acks: 128 bytes, file storage, one replica, 20,000 unacknowledged at most."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from _harness import (
    Bench,
    Context,
    Figures,
    Measure,
    Params,
    Row,
    in_blocking_passes,
    in_passes,
    main,
    module,
    natsrpy_connect,
    now,
    ours_connect,
    rate,
)
from _raw import RawConn, encode_publishes, payload, send_pipelined

STEP = 500  # publishes of one write of a plain socket
BATCH = 1_000  # messages of an atomic batch: the server's limit
FLOW = 500  # fast ingest: the largest ack interval we ask for
OUTSTANDING = 2  # fast ingest: acks awaited at a time, ADR-50's advice


def stream_of(p: Params) -> str:
    return f"PUB-{p.run_id}"


def create_stream(ctx: Context, p: Params) -> None:
    ctx.admin.create_stream(stream_of(p), p.subject, allow_atomic=True, allow_batched=True)


def check_stored(ctx: Context, p: Params) -> None:
    """The stream says how many messages arrived; then it goes, so no run pays for another's files."""
    stored = ctx.admin.api(f"STREAM.INFO.{stream_of(p)}")["state"]["messages"]
    ctx.admin.api(f"STREAM.DELETE.{stream_of(p)}")
    sent = p.warm + p.passes * p.n
    if stored != sent:
        raise RuntimeError(f"{stored} of {sent} messages were stored")


# --- ours -----------------------------------------------------------------------------------------


async def ours_publisher(p: Params) -> list[Figures]:
    nc = await ours_connect(p)
    js = nc.jetstream()
    subject, data = p.subject, payload(p.size)
    async with js.publisher(window=p.window) as publisher:

        async def run(_: str, count: int) -> Figures:
            started = now()
            for _ in range(count):
                await publisher.publish(subject, data)
            await publisher.flush()
            return rate(count, started, now())

        return await in_passes(run, p)


async def ours_publisher_nowait(p: Params) -> list[Figures]:
    """`publish_nowait` as long as the window has room, then one `publish`, which waits."""
    nc = await ours_connect(p)
    js = nc.jetstream()
    subject, data = p.subject, payload(p.size)
    async with js.publisher(window=p.window) as publisher:
        send = publisher.publish_nowait

        async def run(_: str, count: int) -> Figures:
            started = now()
            left = count
            while left:
                burst = min(left - 1, STEP, p.window - publisher.pending)
                for _ in range(burst):
                    send(subject, data)
                await publisher.publish(subject, data)
                left -= max(burst, 0) + 1
            await publisher.flush()
            return rate(count, started, now())

        return await in_passes(run, p)


async def ours_atomic_batch(p: Params) -> Figures:
    nc = await ours_connect(p)
    js = nc.jetstream()
    subject, data = p.subject, payload(p.size)

    async def send(count: int) -> None:
        for _ in range(count // BATCH):
            async with js.atomic_batch() as batch:
                for _ in range(BATCH):
                    await batch.publish(subject, data)

    await send(p.warm)
    started = now()
    await send(p.n)
    return rate(p.n, started, now())


async def ours_fast_ingest(p: Params) -> Figures:
    nc = await ours_connect(p)
    js = nc.jetstream()
    subject, data = p.subject, payload(p.size)

    async def send(count: int) -> None:
        async with js.fast_ingest(flow=FLOW) as batch:
            for _ in range(count):
                await batch.publish(subject, data)

    await send(p.warm)
    started = now()
    await send(p.n)
    return rate(p.n, started, now())


# --- peers ----------------------------------------------------------------------------------------


async def natspy_publisher(p: Params) -> Figures:
    nc = await module("nats").connect(p.url)
    js = nc.jetstream(publish_async_max_pending=p.window)
    subject, data = p.subject, payload(p.size)
    for _ in range(p.warm):
        await js.publish_async(subject, data)
    await js.publish_async_completed()
    started = now()
    for _ in range(p.n):
        await js.publish_async(subject, data)
    await js.publish_async_completed()
    return rate(p.n, started, now())


async def natsrpy_publisher(p: Params) -> Figures:
    """It has no pipelined publisher: the fastest way found is to gather publishes that wait for their ack."""
    nc = await natsrpy_connect(p)
    js = await nc.jetstream(max_ack_inflight=p.window)
    subject, data = p.subject, payload(p.size)
    group = 1_000

    async def send(count: int) -> None:
        for begin in range(0, count, group):
            size = min(group, count - begin)
            await asyncio.gather(*[js.publish(subject, data, wait=True) for _ in range(size)])

    await send(p.warm)
    started = now()
    await send(p.n)
    return rate(p.n, started, now())


# --- raw ------------------------------------------------------------------------------------------


def raw_publisher(p: Params) -> list[Figures]:
    """A reply subject for each message, as everyone needs who wants to know which ack is whose."""
    with RawConn(p.host, p.port) as conn:

        def run(name: str, count: int) -> Figures:
            inbox = f"_INBOX.raw.{name}"
            blocks = encode_publishes(p.subject, inbox, count, p.size, STEP)  # not timed
            started = now()
            send_pipelined(conn, inbox, blocks, count, p.window, STEP)
            return rate(count, started, now())

        return in_blocking_passes(run, p)


def raw_atomic_batch(p: Params) -> Figures:
    """Batches one after the other: first message, its empty ack, the rest in one write, the commit's ack."""
    subject, data = p.subject.encode(), payload(p.size)

    def hpub(name: bytes, sequence: int, reply: bytes, commit: bytes = b"") -> bytes:
        head = b"NATS/1.0\r\nNats-Batch-Id:%s\r\nNats-Batch-Sequence:%d\r\n%s\r\n" % (name, sequence, commit)
        words = b" ".join(filter(None, [subject, reply]))
        return b"HPUB %s %d %d\r\n%s%s\r\n" % (words, len(head), len(head) + len(data), head, data)

    def encode(name: bytes) -> tuple[bytes, bytes]:
        first = hpub(name, 1, b"_INBOX.raw.batch")
        middle = [hpub(name, i, b"") for i in range(2, BATCH)]
        return first, b"".join(middle) + hpub(name, BATCH, b"_INBOX.raw.batch", b"Nats-Batch-Commit:1\r\n")

    with RawConn(p.host, p.port) as conn:
        conn.send(b"SUB _INBOX.raw.batch 1\r\n")

        def send(label: str, count: int) -> float:
            batches = [encode(f"{label}-{i}".encode()) for i in range(count // BATCH)]  # not timed
            begun = now()
            for first, rest in batches:
                conn.send(first)
                answer = conn.read_msg()[2]
                conn.send(rest)
                committed = conn.read_msg()[2]
                if answer or b'"error"' in committed:
                    raise RuntimeError(f"atomic batch refused: {answer!r} {committed!r}")
            return begun

        send("w", p.warm)
        return rate(p.n, send("t", p.n), now())


def raw_fast_ingest(p: Params) -> Figures:
    """ADR-50's rule and no more: at most two ack intervals ahead of the newest flow ack."""
    subject, data = p.subject.encode(), payload(p.size)

    def pub(name: bytes, sequence: int, operation: int) -> bytes:
        return b"PUB %s _INBOX.raw.%s.%d.fail.%d.%d.$FI %d\r\n%s\r\n" % (
            subject, name, FLOW, sequence, operation, len(data), data,
        )  # fmt: skip

    with RawConn(p.host, p.port) as conn:

        def send(name: bytes, count: int) -> float:
            conn.send(b"SUB _INBOX.raw.%s.> 1\r\n" % name)
            wire = [pub(name, i, 1) for i in range(2, count)]  # not timed
            begun = now()
            conn.send(pub(name, 1, 0))
            acked, flow, sent = 0, 1, 1

            def take() -> None:
                nonlocal acked, flow
                answer = json.loads(conn.read_msg()[2])
                if answer.get("type") != "ack":
                    raise RuntimeError(f"fast ingest stopped: {answer}")
                acked, flow = answer["seq"], answer["msgs"]

            take()
            while sent < count - 1:
                upto = min(acked + OUTSTANDING * flow, count - 1)
                if upto > sent:
                    conn.send(b"".join(wire[sent - 1 : upto - 1]))
                    sent = upto
                if sent < count - 1:
                    take()
            conn.send(pub(name, count, 2))
            while b'"type":"ack"' in (answer := conn.read_msg()[2]):
                pass
            if b'"error"' in answer or b'"type"' in answer:
                raise RuntimeError(f"fast ingest commit refused: {answer!r}")
            conn.send(b"UNSUB 1\r\n")
            return begun

        send(b"w", p.warm)
        return rate(p.n, send(b"t", p.n), now())


def measure(key: str, run: Any, n: int, quick: int, turns: str = "") -> Measure:
    return Measure(key, run, n, quick, setup=create_stream, check=check_stored, turns=turns, passes=4)


BENCH = Bench(
    name="publish",
    measures=[
        measure("raw:publisher", raw_publisher, 300_000, 100_000, "publisher"),
        measure("ours:publisher", ours_publisher, 300_000, 100_000, "publisher"),
        measure("ours:publisher_nowait", ours_publisher_nowait, 300_000, 100_000, "publisher"),
        measure("nats-py:publisher", natspy_publisher, 60_000, 30_000),
        measure("natsrpy:publisher", natsrpy_publisher, 20_000, 10_000),
        measure("ours:atomic_batch", ours_atomic_batch, 100_000, 50_000),
        measure("raw:atomic_batch", raw_atomic_batch, 100_000, 50_000),
        measure("ours:fast_ingest", ours_fast_ingest, 300_000, 100_000),
        measure("raw:fast_ingest", raw_fast_ingest, 300_000, 100_000),
    ],
    rows=[
        Row(
            "publisher",
            "ours:publisher",
            "raw:publisher",
            {"nats-py": "nats-py:publisher", "natsrpy": "natsrpy:publisher"},
        ),
        Row("publisher_nowait", "ours:publisher_nowait", "raw:publisher"),
        Row("atomic_batch", "ours:atomic_batch", "raw:atomic_batch"),
        Row("fast_ingest", "ours:fast_ingest", "raw:fast_ingest"),
    ],
)

if __name__ == "__main__":
    raise SystemExit(main(BENCH))
