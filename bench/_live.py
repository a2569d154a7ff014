"""A client at work against a server, measured by the processor time that it takes: `python _live.py SPEC`.

SPEC is JSON: what (iter, batches, arrow, publisher), url, stream or subject, n, warm, size, and how: loop
(asyncio, uvloop), gc (default, freeze, high, off), ballast (objects that an application holds), consumers,
streams, publishers, max_bytes, threshold_bytes, bulk (bytes to wait for), sample
(count where the time goes). It prints one line of JSON. Processor time depends little on what else the
machine does; of several runs the least is the truest.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SAMPLE_EVERY = 0.002  # seconds of processor time; the kernel may round it up
BUFFER = 20_000
LARGE = 16 << 20  # bytes in flight; see the experiment "inflight"


def payload(size: int) -> bytes:
    return (b"0123456789abcdef" * (size // 16 + 1))[:size]


async def _consumers(nc: Any, spec: dict[str, Any], label: str) -> list[Any]:
    from jetspark import ConsumerConfig

    made = []
    for i in range(spec.get("consumers", 1)):
        config = ConsumerConfig(
            name=f"{spec['name']}-{label}-{i}", ack_policy="none", mem_storage=True, inactive_threshold=2.0
        )
        stream = spec["streams"][i % len(spec["streams"])]
        made.append(await nc.jetstream().create_or_update_consumer(stream, config))
    return made


async def _iterate(consumer: Any, count: int, size: int, limit: dict[str, Any]) -> None:
    volume = 0
    # Not 'break' at the end: many consumers would each have the server fill a buffer that nobody reads.
    async with consumer.consume(stop_after=count, **limit) as messages:
        async for msg in messages:
            volume += len(msg.data)
    _expect(volume, count * size)


async def _batches(consumer: Any, count: int, size: int, limit: dict[str, Any]) -> None:
    got = volume = 0
    async with consumer.consume_batches(stop_after=count, **limit) as batches:
        async for batch in batches:
            got += len(batch)
            handed_out["batches"] += 1
            volume += sum([len(msg.data) for msg in batch])
    _expect(volume, count * size)


async def _arrow(consumer: Any, count: int, size: int, limit: dict[str, Any]) -> None:
    from jetspark.arrow import consume_arrow

    got = volume = 0
    # A buffer of bytes that has to stop somewhere has one request at a time: no way to compare refills.
    options = limit if "threshold_bytes" in limit else {"stop_after": count, **limit}
    async with consume_arrow(consumer, **options) as batches:
        async for batch in batches:
            handed_out["batches"] += 1
            # The bytes of the payloads lie in the array's last buffer.
            volume += batch.column("data").buffers()[2].size
            got += batch.num_rows
            if got >= count:
                break
    _expect(volume, got * size)


handed_out: Counter[str] = Counter()


def _expect(volume: int, wanted: int) -> None:
    if volume != wanted:
        raise RuntimeError(f"got {volume} bytes, wanted {wanted}")


async def consume(nc: Any, spec: dict[str, Any], count: int, label: str) -> Callable[[], Awaitable[None]]:
    run = {"iter": _iterate, "batches": _batches, "arrow": _arrow}[spec["what"]]
    consumers = await _consumers(nc, spec, label)
    limit: dict[str, Any] = {"max_messages": max(10, min(BUFFER, LARGE // spec["size"]))}
    if "max_bytes" in spec:
        limit = {name: spec[name] for name in ("max_bytes", "threshold_bytes") if name in spec}

    async def work() -> None:
        each = count // len(consumers)
        await asyncio.gather(*[run(one, each, spec["size"], limit) for one in consumers])

    return work


async def publish(nc: Any, spec: dict[str, Any], count: int, label: str) -> Callable[[], Awaitable[None]]:
    subjects, data = spec["subjects"], payload(spec["size"])
    publishers = spec.get("publishers", 1)

    async def send(subject: str, each: int) -> None:
        window = max(50, min(20_000 // publishers, LARGE // len(data)))
        async with nc.jetstream().publisher(window=window) as publisher:
            for _ in range(each):
                await publisher.publish(subject, data)

    async def work() -> None:
        await asyncio.gather(
            *[send(subjects[i % len(subjects)], count // publishers) for i in range(publishers)]
        )

    return work


def _set_up(spec: dict[str, Any]) -> list[Any]:
    ballast = [[i] for i in range(spec.get("ballast", 0))]
    mode = spec.get("gc", "default")
    if mode == "off":
        gc.disable()
    elif mode == "freeze":
        gc.collect()
        gc.freeze()
    elif mode == "high":
        gc.set_threshold(100_000, 50, 50)
    return ballast


class Sampler:
    """Where the time goes: the Python function at work at each tick of processor time.

    What C code does counts for the Python function that called it.
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def _tick(self, number: int, frame: Any) -> None:
        code = frame.f_code
        self.seen[f"{Path(code.co_filename).parent.name}/{Path(code.co_filename).name}:{code.co_name}"] += 1

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._tick)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_EVERY, SAMPLE_EVERY)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)


async def run(spec: dict[str, Any]) -> dict[str, Any]:
    import jetspark
    from jetspark.wire import backend

    if spec["what"] == "arrow":
        import jetspark.arrow  # loading Arrow is no cost of a message
    if "bulk" in spec:
        from jetspark.connection import bulk_reads

        bulk_reads.WAIT_FOR = spec["bulk"]
    make = publish if spec["what"] == "publisher" else consume
    nc = await jetspark.connect(spec["url"])
    if spec["warm"]:
        await (await make(nc, spec, spec["warm"], "w"))()
    work = await make(nc, spec, spec["n"], "t")
    handed_out.clear()
    sampler = Sampler() if spec.get("sample") else None
    gc.collect()
    if spec.get("gc") == "freeze":
        gc.freeze()
    before, begun, started = (
        resource.getrusage(resource.RUSAGE_SELF),
        time.process_time(),
        time.perf_counter(),
    )
    if sampler is not None:
        sampler.start()
    await work()
    if sampler is not None:
        sampler.stop()
    took, ended, after = (
        time.process_time() - begun,
        time.perf_counter(),
        resource.getrusage(resource.RUSAGE_SELF),
    )
    # The sum is exact. How the kernel splits it is sampled by its ticks: rough in a short run.
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    n = spec["n"]
    share = system / (user + system) if user + system else 0.0
    return {
        "us": took / n * 1e6,
        "user_us": took * (1 - share) / n * 1e6,
        "system_us": took * share / n * 1e6,
        "rate": n / (ended - started),
        "batches": handed_out["batches"],
        "backend": backend,
        "samples": dict(sampler.seen) if sampler is not None else {},
    }


def main() -> None:
    spec = json.loads(sys.argv[1])
    kept = _set_up(spec)
    factory = None
    if spec.get("loop") == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        print(json.dumps(runner.run(run(spec))), flush=True)
    del kept
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
