"""Memory over long runs: resident size after a warm-up and at the end, in one process each.

    python bench/memory.py                 # 5,000,000 consumed, 1,000,000 published
    python bench/memory.py --quick         # a tenth of it

Exit code 1 when the growth exceeds the buffer plus 20 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

import jetspark
from jetspark import ConsumerConfig, StreamConfig
from jetspark.server import Server

SIZE = 128
BUFFER = 5_000
ALLOWED_MB = 20.0


def resident_mb() -> float:
    """Resident memory of this process in megabytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def consume(url: str, total: int) -> float:
    """Consume ``total`` messages with explicit acks off; growth in MB after the first tenth."""
    async with jetspark.connect(url) as nc:
        js = nc.jetstream()
        stored = min(total, 500_000)
        stream = await js.create_stream(StreamConfig(name="MEMORY", subjects=["memory"]))
        async with js.publisher(window=20_000) as publisher:
            for _ in range(stored):
                await publisher.publish("memory", b"x" * SIZE)
        count, base, peak = 0, 0.0, 0.0
        while count < total:
            consumer = await stream.create_consumer(
                ConsumerConfig(ack_policy="none", mem_storage=True, inactive_threshold=60)
            )
            async with consumer.consume(
                max_messages=BUFFER, stop_after=min(stored, total - count)
            ) as messages:
                async for _ in messages:
                    count += 1
                    if count == total // 10:
                        base = peak = resident_mb()
                    elif count % 100_000 == 0:
                        peak = max(peak, resident_mb())
            await consumer.delete()
        await js.delete_stream("MEMORY")
        return peak - base


async def publish(url: str, total: int) -> float:
    """Publish ``total`` messages through the pipeline; growth in MB after the first tenth."""
    async with jetspark.connect(url) as nc:
        js = nc.jetstream()
        await js.create_stream(StreamConfig(name="MEMORY", subjects=["memory"]))
        base = peak = 0.0
        async with js.publisher(window=4_000) as publisher:
            for count in range(1, total + 1):
                await publisher.publish("memory", b"x" * SIZE)
                if count == total // 10:
                    base = peak = resident_mb()
                elif count % 50_000 == 0:
                    peak = max(peak, resident_mb())
        await js.delete_stream("MEMORY")
        return peak - base


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    part = 10 if parser.parse_args().quick else 1
    worst = 0.0
    with Server() as server:
        for name, function, total in (("consume", consume, 5_000_000), ("publish", publish, 1_000_000)):
            growth = asyncio.run(function(server.url, total // part))
            worst = max(worst, growth)
            print(f"{name}: {total // part:,} messages of {SIZE} B, resident size grew by {growth:.1f} MB")
    return 0 if worst <= ALLOWED_MB else 1


if __name__ == "__main__":
    sys.exit(main())
