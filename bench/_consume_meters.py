"""What the contenders of consume.py share: the streams that they read, and how they count and time it."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Any

from _harness import Figures, Params, expect, now, percentiles, rate

STREAM = "BENCH"
SUBJECT = "bench.stored"
LARGE = {4_096: ("BENCH-4K", "bench.stored-4k"), 65_536: ("BENCH-64K", "bench.stored-64k")}
LATENCY = "LATENCY"
LATENCY_SUBJECT = "bench.latency"
MAX_ACK_PENDING = 100_000  # so that no contender waits for the server's default of 1,000


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
