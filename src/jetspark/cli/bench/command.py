"""``jetspark bench``: how fast this server, network and client are together."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Annotated, Any

import typer

from jetspark import AckPolicy, Consumer, ConsumerConfig, JetStream, StreamConfig
from jetspark.cli import output
from jetspark.cli.bench.report import Result, bars, micros, percentiles
from jetspark.cli.declare import Json, command, group
from jetspark.cli.errors import CommandFailed, UsageError
from jetspark.cli.output import bytes_text, number, seconds_text
from jetspark.cli.settings import connection, current, find_stream, run
from jetspark.cli.values import size as parse_size
from jetspark.connecting import Connection
from jetspark.connection import Subscription
from jetspark.errors import StreamNotFound

app = group("Benchmarks of publishing, subscribing and JetStream.")
js_app = group("Benchmarks of JetStream.")
app.add_typer(js_app, name="js")


def register(root: typer.Typer) -> None:
    """Add the commands to the root."""
    root.add_typer(app, name="bench")


Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="Subject to use.", show_default=False)]
Msgs = Annotated[int, typer.Option("--msgs", metavar="N", help="Messages in all.", min=1)]
Size = Annotated[str, typer.Option("--size", metavar="SIZE", help="Bytes of a body.")]
Clients = Annotated[int, typer.Option("--clients", metavar="N", help="Connections.", min=1, max=256)]
StreamOption = Annotated[str, typer.Option("--stream", metavar="NAME", help="Stream to use.")]
Batch = Annotated[int, typer.Option("--batch", metavar="N", help="Messages of one pull.", min=1)]
_SAMPLE = 16


@command(app, "pub", example="jetspark bench pub bench.test --msgs 1000000 --size 128 --clients 2")
def pub(
    subject: Subject, msgs: Msgs = 100_000, size: Size = "128", clients: Clients = 1, json: Json = False
) -> None:
    """Publish as fast as the server takes it. Samples are mean times per message of blocks."""
    body = bytes(_body_size(size))

    async def one(nc: Connection, count: int, samples: list[float], advance: Callable[[int], None]) -> None:
        block = max(1, min(1000, count // 50))
        last = time.perf_counter()
        for done in range(1, count + 1):
            await nc.publish(subject, body)
            if done % block == 0:
                now = time.perf_counter()
                samples.append((now - last) / block)
                last = now
                advance(block)
                await asyncio.sleep(0)
        await nc.flush(60.0)

    _report(run(_parallel("pub", clients, msgs, len(body), one, "message, in blocks")), json)


@command(app, "sub", example="jetspark bench sub bench.test --msgs 1000000")
def sub(subject: Subject, msgs: Msgs = 100_000, clients: Clients = 1, json: Json = False) -> None:
    """Receive messages that another client publishes; the clock starts at the first one."""

    async def one(nc: Connection, count: int, samples: list[float], advance: Callable[[int], None]) -> None:
        async with await nc.subscribe(subject, pending_messages_limit=0, pending_bytes_limit=0) as messages:
            await nc.flush(current().timeout)
            await _receive(messages, count, samples, advance)

    output.notice(f"waiting for messages on {subject}")
    # Each client of a plain subscription gets every message.
    _report(run(_parallel("sub", clients, msgs * clients, 0, one, "message, in blocks")), json)


@command(app, "pubsub", example="jetspark bench pubsub bench.test --msgs 100000 --size 128")
def pubsub(subject: Subject, msgs: Msgs = 100_000, size: Size = "128", json: Json = False) -> None:
    """Publish on one connection and receive on another. Samples are the latencies of single messages."""
    length = max(8, _body_size(size))

    async def work() -> Result:
        async with (
            connection() as sender,
            connection() as receiver,
            await receiver.subscribe(subject, pending_messages_limit=0, pending_bytes_limit=0) as messages,
        ):
            await receiver.flush(current().timeout)
            samples: list[float] = []
            filler = bytes(length - 8)

            async def send() -> None:
                for _ in range(msgs):
                    await sender.publish(subject, time.perf_counter_ns().to_bytes(8) + filler)
                await sender.flush(60.0)

            with output.progress("pubsub", msgs) as advance:
                began = time.perf_counter()
                sending = asyncio.create_task(send())
                try:
                    for got in range(1, msgs + 1):
                        message = await messages.next(timeout=30.0)
                        if got % _SAMPLE == 0 or msgs < 1000:
                            sent = int.from_bytes(message.data[:8])
                            samples.append((time.perf_counter_ns() - sent) / 1e9)
                        if got % 1000 == 0:
                            advance(1000)
                    took = time.perf_counter() - began
                    await sending
                finally:
                    sending.cancel()
        return Result(
            benchmark="pubsub",
            clients=2,
            messages=msgs,
            bytes=msgs * length,
            seconds=took,
            samples=samples,
            sampled="message, one way",
        )

    _report(run(work()), json)


@command(
    js_app,
    "pub",
    example="jetspark bench js pub bench.js --create --msgs 200000\njetspark bench js pub bench.js",
)
def js_pub(
    subject: Subject,
    msgs: Msgs = 100_000,
    size: Size = "128",
    stream: StreamOption = "BENCH",
    create: Annotated[bool, typer.Option("--create", help="Make the stream, in memory.")] = False,
    purge: Annotated[bool, typer.Option("--purge", help="Empty the stream first.")] = False,
    window: Annotated[int, typer.Option("--window", metavar="N", help="Messages in flight.", min=1)] = 4000,
    clients: Clients = 1,
    json: Json = False,
) -> None:
    """Publish into a stream with acks. Samples are the times from publish to ack."""
    body = bytes(_body_size(size))

    async def prepare(js: JetStream) -> None:
        try:
            handle = await js.get_stream(stream)
        except StreamNotFound:
            if not create:
                raise
            handle = await js.create_stream(
                StreamConfig(name=stream, subjects=[subject], storage="memory", allow_direct=True)
            )
        if purge:
            await handle.purge()

    async def one(nc: Connection, count: int, samples: list[float], advance: Callable[[int], None]) -> None:
        clock = time.perf_counter

        def acked(sent: float) -> Callable[[object], None]:
            return lambda future: samples.append(clock() - sent)

        async with nc.jetstream(timeout=current().timeout).publisher(window=window) as publisher:
            for done in range(1, count + 1):
                future = await publisher.publish(subject, body)
                if done % _SAMPLE == 0 or count < 1000:
                    future.add_done_callback(acked(clock()))
                if done % 1000 == 0:
                    advance(1000)
            await publisher.flush()

    _report(run(_parallel("js pub", clients, msgs, len(body), one, "publish to ack", prepare)), json)


@command(
    js_app, "consume", "pull", example="jetspark bench js consume --stream BENCH --msgs 200000 --batch 5000"
)
def js_consume(
    stream: StreamOption = "BENCH",
    msgs: Msgs = 100_000,
    batch: Batch = 5000,
    ack: Annotated[bool, typer.Option("--ack", help="Acknowledge each message.")] = False,
    clients: Clients = 1,
    json: Json = False,
) -> None:
    """Read a stream with a buffer that refills itself. Samples are mean times per message of blocks."""

    async def one(nc: Connection, count: int, samples: list[float], advance: Callable[[int], None]) -> None:
        reader = await _reader(nc, stream, count, ack)
        async with reader.consume(max_messages=batch, stop_after=count) as messages:
            block = max(1, min(1000, count // 50))
            done = 0
            last = time.perf_counter()
            async for message in messages:
                if ack:
                    await message.ack()
                done += 1
                if done % block == 0:
                    now = time.perf_counter()
                    samples.append((now - last) / block)
                    last = now
                    advance(block)

    _report(run(_parallel("js consume", clients, msgs, 0, one, "message, in blocks")), json)


@command(js_app, "fetch", example="jetspark bench js fetch --stream BENCH --msgs 100000 --batch 1000")
def js_fetch(
    stream: StreamOption = "BENCH",
    msgs: Msgs = 100_000,
    batch: Batch = 1000,
    ack: Annotated[bool, typer.Option("--ack", help="Acknowledge each message.")] = False,
    clients: Clients = 1,
    json: Json = False,
) -> None:
    """Read a stream fetch by fetch. Samples are the times of the fetches."""

    async def one(nc: Connection, count: int, samples: list[float], advance: Callable[[int], None]) -> None:
        reader = await _reader(nc, stream, count, ack)
        left = count
        while left:
            began = time.perf_counter()
            got = await reader.fetch(min(batch, left), expires=5.0)
            samples.append(time.perf_counter() - began)
            if not got:
                raise CommandFailed(f"stream {stream} ran out of messages with {number(left)} still to read")
            if ack:
                for message in got:
                    await message.ack()
            left -= len(got)
            advance(len(got))

    _report(run(_parallel("js fetch", clients, msgs, 0, one, "fetch")), json)


async def _reader(nc: Connection, stream: str, count: int, ack: bool) -> Consumer:
    js = nc.jetstream(timeout=current().timeout)
    found = (await find_stream(js, stream)).cached_info
    if found.state.messages < count:
        raise CommandFailed(
            f"stream {stream} has {number(found.state.messages)} messages, fewer than each client "
            "should read\nfill it with 'jetspark bench js pub', or ask for less"
        )
    policy = AckPolicy.EXPLICIT if ack else AckPolicy.NONE
    config = ConsumerConfig(ack_policy=policy, max_ack_pending=-1, mem_storage=True, inactive_threshold=30)
    return await js.create_consumer(stream, config)


async def _receive(
    messages: Subscription, count: int, samples: list[float], advance: Callable[[int], None]
) -> None:
    block = max(1, min(1000, count // 50))
    last = 0.0
    done = 0
    async for _ in messages:
        if done == 0:
            last = time.perf_counter()
        done += 1
        if done % block == 0:
            now = time.perf_counter()
            samples.append((now - last) / block)
            last = now
            advance(block)
        if done == count:
            return


Client = Callable[[Connection, int, list[float], Callable[[int], None]], Coroutine[Any, Any, None]]


async def _parallel(
    name: str,
    clients: int,
    msgs: int,
    length: int,
    one: Client,
    sampled: str,
    prepare: Callable[[JetStream], Awaitable[None]] | None = None,
) -> Result:
    """Run a client's work on several connections at once."""
    if msgs < clients:
        raise UsageError(f"--msgs: {msgs} is too few for {clients} clients")
    async with AsyncExitStack() as closing:
        links = [await closing.enter_async_context(connection()) for _ in range(clients)]
        if prepare is not None:
            await prepare(links[0].jetstream(timeout=current().timeout))
        samples: list[float] = []
        shares = [msgs // clients + (number < msgs % clients) for number in range(clients)]
        with output.progress(name, msgs) as advance:
            bytes_before = sum(link.stats.in_bytes for link in links)
            began = time.perf_counter()
            tasks = [
                asyncio.ensure_future(one(link, share, samples, advance))
                for link, share in zip(links, shares, strict=True)
            ]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
            took = time.perf_counter() - began
        received = sum(link.stats.in_bytes for link in links) - bytes_before
    if name == "sub" and samples:
        # The clock of a subscriber starts with its first message, not with the wait for it.
        took = min(took, sum(samples) / len(samples) * msgs / clients)
    return Result(
        benchmark=name,
        clients=clients,
        messages=msgs,
        bytes=msgs * length if length else received,
        seconds=took,
        samples=samples,
        sampled=sampled,
    )


def _body_size(text: str) -> int:
    found = parse_size("--size", text)
    if found < 0:
        raise UsageError(f"--size: {text!r} must be 0 or more")
    return found


def _report(result: Result, json: bool) -> None:
    if json:
        output.print_json(result.to_json())
        return
    output.table(
        f"Benchmark {result.benchmark}",
        ("Clients", "Messages", "Seconds", "Msgs/s", "Data/s"),
        [
            (
                str(result.clients),
                number(result.messages),
                seconds_text(result.seconds),
                number(result.rate),
                bytes_text(result.bytes / result.seconds if result.seconds else 0),
            )
        ],
        left=0,
    )
    marks = percentiles(result.samples)
    if marks:
        shown = "  ".join(f"{name} {micros(value)}" for name, value in marks.items())
        output.line(f"\ntime of a {result.sampled}: {shown}")
        for text in bars(result.samples):
            output.line(text)
