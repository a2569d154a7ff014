"""Core NATS, messages of 128 bytes: subscribe (iterator and callback), publish, request latency."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

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
    main,
    module,
    natsrpy_connect,
    now,
    ours_connect,
    percentiles,
    rate,
    ready,
)
from _raw import CHUNK, RawConn, payload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NO_LIMIT = 1 << 30  # pending limits no bench reaches: a dropped message would look like speed


def blast(ctx: Context, p: Params, phase: int) -> None:
    """The warm-up first; the timed messages when the receiver has handled all of it.

    So no message of the timed part was received or parsed before the clock ran.
    """
    ctx.drive(op="blast", subject=p.subject, count=(p.warm, p.n)[phase], size=p.size)


_received_before = 0


def note_received(ctx: Context, p: Params) -> None:
    global _received_before
    _received_before = ctx.messages_in()


def check_received(ctx: Context, p: Params) -> None:
    deadline = time.monotonic() + 2  # the server's counters follow a little later
    while (got := ctx.messages_in() - _received_before) < p.total:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the server received {got} of {p.total} messages")
        time.sleep(0.02)


class Counter:
    """The handler of every callback contender: counts, touches the payload, keeps the two times."""

    __slots__ = ("count", "done", "ended", "started", "total", "volume", "warm")

    def __init__(self, p: Params) -> None:
        self.count = self.volume = 0
        self.warm, self.total = p.warm, p.total
        self.started = self.ended = 0.0
        self.done = asyncio.Event()

    def add(self, size: int) -> None:
        self.volume += size
        self.count = count = self.count + 1
        if count == self.warm:
            ready()
        elif count == self.warm + 1:
            self.started = now()
        elif count == self.total:
            self.ended = now()
            self.done.set()

    async def figures(self, p: Params) -> Figures:
        await self.done.wait()
        expect("payload bytes", self.volume, p.total * p.size)
        return rate(p.n - 1, self.started, self.ended)


async def iterate(messages: Any, p: Params) -> Figures:
    """`async for`, the same loop for ours and nats-py."""
    count = volume = 0
    warm, first, total = p.warm, p.warm + 1, p.total
    started = 0.0
    async for msg in messages:
        volume += len(msg.data)
        count += 1
        if count == warm:
            ready()
        elif count == first:
            started = now()
        elif count == total:
            break
    ended = now()
    expect("payload bytes", volume, total * p.size)
    return rate(p.n - 1, started, ended)


async def publish_all(publish: Callable[[str, bytes], Awaitable[None]], p: Params, count: int) -> None:
    subject, data = p.subject, payload(p.size)
    for _ in range(count):
        await publish(subject, data)


async def timed_publish(publish: Any, flush: Any, p: Params) -> Figures:
    await publish_all(publish, p, p.warm)
    await flush()
    started = now()
    await publish_all(publish, p, p.n)
    await flush()
    return rate(p.n, started, now())


async def timed_requests(request: Any, p: Params) -> list[Figures]:
    data = payload(p.size)

    async def run(_: str, count: int) -> Figures:
        samples: list[int] = []
        for _ in range(count):
            started = time.perf_counter_ns()
            await request("bench.echo", data)
            samples.append(time.perf_counter_ns() - started)
        return percentiles(samples)

    return await in_passes(run, p)


# --- ours -----------------------------------------------------------------------------------------


async def ours_subscribe_iter(p: Params) -> Figures:
    nc = await ours_connect(p)
    sub = await nc.subscribe(p.subject, pending_messages_limit=NO_LIMIT, pending_bytes_limit=NO_LIMIT)
    await nc.flush()
    ready()
    return await iterate(sub, p)


async def ours_subscribe_callback(p: Params) -> Figures:
    nc = await ours_connect(p)
    counter = Counter(p)

    async def handle(msg: Any) -> None:
        counter.add(len(msg.data))

    await nc.subscribe(
        p.subject, callback=handle, pending_messages_limit=NO_LIMIT, pending_bytes_limit=NO_LIMIT
    )
    await nc.flush()
    ready()
    return await counter.figures(p)


async def ours_publish(p: Params) -> Figures:
    nc = await ours_connect(p)
    return await timed_publish(nc.publish, nc.flush, p)


async def ours_request(p: Params) -> list[Figures]:
    nc = await ours_connect(p)
    return await timed_requests(nc.request, p)


# --- nats-py --------------------------------------------------------------------------------------


async def natspy_subscribe_iter(p: Params) -> Figures:
    nc = await module("nats").connect(p.url)
    sub = await nc.subscribe(p.subject, pending_msgs_limit=NO_LIMIT, pending_bytes_limit=NO_LIMIT)
    await nc.flush()
    ready()
    return await iterate(sub.messages, p)


async def natspy_subscribe_callback(p: Params) -> Figures:
    nc = await module("nats").connect(p.url)
    counter = Counter(p)

    async def handle(msg: Any) -> None:
        counter.add(len(msg.data))

    await nc.subscribe(p.subject, cb=handle, pending_msgs_limit=NO_LIMIT, pending_bytes_limit=NO_LIMIT)
    await nc.flush()
    ready()
    return await counter.figures(p)


async def natspy_publish(p: Params) -> Figures:
    nc = await module("nats").connect(p.url)

    async def flush() -> None:
        # Its PING overtakes what it still buffers (up to 2 MB); the second one comes after all of it.
        await nc.flush()
        await nc.flush()

    return await timed_publish(nc.publish, flush, p)


async def natspy_request(p: Params) -> list[Figures]:
    nc = await module("nats").connect(p.url)
    return await timed_requests(nc.request, p)


# --- natsrpy --------------------------------------------------------------------------------------


async def natsrpy_subscribe_iter(p: Params) -> Figures:
    nc = await natsrpy_connect(p)
    count = volume = 0
    started = 0.0
    async with nc.subscribe(p.subject) as sub:
        await nc.request("bench.echo", b"x")  # its flush is no round trip; this is, so the SUB is in place
        ready()
        async for msg in sub:
            volume += len(msg.payload)
            count += 1
            if count == p.warm:
                ready()
            elif count == p.warm + 1:
                started = now()
            elif count == p.total:
                break
        ended = now()
    expect("payload bytes", volume, p.total * p.size)
    return rate(p.n - 1, started, ended)


async def natsrpy_subscribe_callback(p: Params) -> Figures:
    nc = await natsrpy_connect(p)
    counter = Counter(p)

    async def handle(msg: Any) -> None:
        counter.add(len(msg.payload))

    async with nc.subscribe(p.subject, callback=handle):
        await nc.request("bench.echo", b"x")
        ready()
        return await counter.figures(p)


async def natsrpy_publish(p: Params) -> Figures:
    nc = await natsrpy_connect(p)

    async def flush() -> None:
        await nc.flush()
        await nc.request("bench.echo", b"x")

    return await timed_publish(nc.publish, flush, p)


async def natsrpy_request(p: Params) -> list[Figures]:
    nc = await natsrpy_connect(p)
    return await timed_requests(nc.request, p)


# --- raw ------------------------------------------------------------------------------------------


def raw_subscribe(p: Params) -> Figures:
    """Receives the same bytes and counts them; nothing is parsed."""
    with RawConn(p.host, p.port) as conn:
        conn.send(b"SUB %s 1\r\n" % p.subject.encode())
        conn.ping()
        each = len(b"MSG %s 1 %d\r\n\r\n" % (p.subject.encode(), p.size)) + p.size
        warm, total = p.warm * each, p.total * each
        buffer = bytearray(CHUNK)
        receive = conn.sock.recv_into
        ready()
        got = 0
        while got < warm:
            got += receive(buffer)
        ready()
        got += receive(buffer)
        started = now()
        while got < total:
            got += receive(buffer)
        return rate(p.n, started, now())


def raw_publish(p: Params) -> Figures:
    with RawConn(p.host, p.port) as conn:
        one = b"PUB %s %d\r\n%s\r\n" % (p.subject.encode(), p.size, payload(p.size))
        step = 400
        block = one * step
        conn.send(one * p.warm)
        conn.ping()
        started = now()
        for _ in range(p.n // step):
            conn.send(block)
        conn.send(one * (p.n % step))
        conn.ping()
        return rate(p.n, started, now())


def raw_request(p: Params) -> list[Figures]:
    with RawConn(p.host, p.port) as conn:
        conn.send(b"SUB _INBOX.raw.request 1\r\n")
        one = b"PUB bench.echo _INBOX.raw.request %d\r\n%s\r\n" % (p.size, payload(p.size))

        def run(_: str, count: int) -> Figures:
            samples: list[int] = []
            for _ in range(count):
                started = time.perf_counter_ns()
                conn.send(one)
                conn.read_msg()
                samples.append(time.perf_counter_ns() - started)
            return percentiles(samples)

        return in_blocking_passes(run, p)


# natsrpy drops messages beyond 65,536 waiting ones and has no option for it: its subscribe counts stay below.
BENCH = Bench(
    name="core",
    measures=[
        Measure("ours:subscribe_iter", ours_subscribe_iter, 400_000, 150_000, load=blast),
        Measure("nats-py:subscribe_iter", natspy_subscribe_iter, 60_000, 20_000, load=blast),
        Measure("natsrpy:subscribe_iter", natsrpy_subscribe_iter, 40_000, 10_000, load=blast),
        Measure("raw:subscribe", raw_subscribe, 1_000_000, 300_000, load=blast),
        Measure("ours:subscribe_callback", ours_subscribe_callback, 400_000, 150_000, load=blast),
        Measure("nats-py:subscribe_callback", natspy_subscribe_callback, 150_000, 80_000, load=blast),
        Measure("natsrpy:subscribe_callback", natsrpy_subscribe_callback, 40_000, 10_000, load=blast),
        Measure("ours:publish", ours_publish, 500_000, 150_000, setup=note_received, check=check_received),
        Measure(
            "nats-py:publish", natspy_publish, 300_000, 100_000, setup=note_received, check=check_received
        ),
        Measure("natsrpy:publish", natsrpy_publish, 15_000, 6_000, setup=note_received, check=check_received),
        Measure("raw:publish", raw_publish, 2_000_000, 500_000, setup=note_received, check=check_received),
        Measure("ours:request", ours_request, 1_500, 800, turns="request"),
        Measure("nats-py:request", natspy_request, 1_500, 800, turns="request"),
        Measure("natsrpy:request", natsrpy_request, 1_500, 800, turns="request"),
        Measure("raw:request", raw_request, 1_500, 800, turns="request"),
    ],
    rows=[
        *(
            Row(case, f"ours:{case}", raw, {"nats-py": f"nats-py:{case}", "natsrpy": f"natsrpy:{case}"})
            for case, raw in (
                ("subscribe_iter", "raw:subscribe"),
                ("subscribe_callback", "raw:subscribe"),
                ("publish", "raw:publish"),
            )
        ),
        *(
            Row(
                f"request_{figure}_us",
                "ours:request",
                "raw:request",
                {"nats-py": "nats-py:request", "natsrpy": "natsrpy:request"},
                unit="us",
                figure=figure,
            )
            for figure in ("p50", "p99")
        ),
    ],
)

if __name__ == "__main__":
    raise SystemExit(main(BENCH))
