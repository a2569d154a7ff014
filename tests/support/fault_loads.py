"""Publish, consume and request traffic over one connection, by the async and by the blocking API.

Both loads say the same about themselves: which ids were acked and which were consumed, what errors the calls
ended with, which calls overran their timeout, and what the connection's listener heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from typing import Any, Self

import jetspark
import jetspark.blocking
from jetspark import ConsumerConfig
from jetspark.errors import JetsparkError
from jetspark.events import Disconnected, Event, Reconnected

TIMEOUT = 1.5
"""Seconds that a call may wait."""
GRACE = 20.0
"""Seconds that it may end late, for this is a busy machine. A hang has no end."""
PAUSE = 0.004
"""Seconds between two calls."""

OPTIONS: dict[str, Any] = {
    "ping_interval": 1.5,
    "connect_timeout": 2.0,
    "reconnect_wait": 0.02,
    "reconnect_wait_max": 0.2,
}


class Load:
    """What both have in common."""

    api = ""

    def __init__(self, url: str, stream: str) -> None:
        self.url, self.stream = url, stream
        self.acked: set[str] = set()
        self.taken: set[str] = set()
        self.answered = 0
        self.errors: Counter[str] = Counter()
        self.late: list[str] = []
        self.foreign: list[str] = []
        self.events: list[Event] = []
        self.ended = False

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def counts(self) -> tuple[int, int]:
        """How often the connection was lost and restored."""
        return len(self.of(Disconnected)), len(self.of(Reconnected))

    def note(self, call: str, started: float, error: BaseException | None) -> None:
        took = time.monotonic() - started
        if took > TIMEOUT + GRACE:
            self.late.append(f"{call} took {took:.1f} s")
        if isinstance(error, JetsparkError):
            self.errors[type(error).__name__] += 1
        elif error is not None:
            self.foreign.append(f"{call}: {error!r}")

    def take(self, message: Any) -> None:
        # Garbage that fell into the middle of a message is not for us to find.
        with contextlib.suppress(JetsparkError):
            self.taken.add(message.headers.get("Nats-Msg-Id") or "")

    def config(self) -> ConsumerConfig:
        return ConsumerConfig(durable_name=self.api, filter_subject=f"{self.stream}.{self.api}", ack_wait=2)


class AsyncLoad(Load):
    api = "async"

    async def __aenter__(self) -> Self:
        self.nc = await jetspark.connect(self.url, listener=self.events.append, **OPTIONS)
        self.js = self.nc.jetstream(timeout=TIMEOUT)
        self.consumer = await self.js.create_consumer(self.stream, self.config())
        self._tasks = [asyncio.ensure_future(job()) for job in (self._publish, self._consume, self._request)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.ended = True
        done, hanging = await asyncio.wait(self._tasks, timeout=TIMEOUT + GRACE)
        for task in hanging:
            task.cancel()
            self.late.append(f"{task!r} does not end")
        for task in done:
            if task.exception() is not None:
                self.foreign.append(repr(task.exception()))
        await self.nc.close()

    @property
    def closed(self) -> bool:
        return self.nc.is_closed

    async def in_flight(self, timeout: float) -> BaseException | None:
        """The error of a request that nobody answers."""
        try:
            await self.nc.request("hole", timeout=timeout)
        except Exception as error:
            return error
        return None

    async def _publish(self) -> None:
        number = 0
        while not self.ended:
            number += 1
            name = f"a{number}"
            while name not in self.acked and not self.ended:
                started, failure = time.monotonic(), None
                try:
                    await self.js.publish(f"{self.stream}.async", b"x" * 100, msg_id=name)
                    self.acked.add(name)
                except Exception as error:
                    failure = error
                self.note("publish", started, failure)
                await asyncio.sleep(PAUSE)

    async def _request(self) -> None:
        while not self.ended:
            started, failure = time.monotonic(), None
            try:
                await self.nc.request("echo", b"?", timeout=TIMEOUT)
                self.answered += 1
            except Exception as error:
                failure = error
            self.note("request", started, failure)
            await asyncio.sleep(PAUSE)

    async def _consume(self) -> None:
        async with self.consumer.consume(max_messages=100, expires=30, idle_heartbeat=0.5) as messages:
            while not self.ended:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        message = await anext(messages)
                        self.take(message)
                        await message.ack()


class BlockingLoad(Load):
    api = "blocking"

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._stop)

    def _start(self) -> None:
        self.nc = jetspark.blocking.connect(self.url, listener=self.events.append, **OPTIONS)
        self.js = self.nc.jetstream(timeout=TIMEOUT)
        self.consumer = self.js.create_consumer(self.stream, self.config())
        jobs = (self._publish, self._consume, self._request)
        self._threads = [threading.Thread(target=self._guard, args=(job,), daemon=True) for job in jobs]
        for thread in self._threads:
            thread.start()

    def _guard(self, job: Any) -> None:
        try:
            job()
        except Exception as error:
            self.foreign.append(repr(error))

    def _stop(self) -> None:
        self.ended = True
        for thread in self._threads:
            thread.join(TIMEOUT + GRACE)
            if thread.is_alive():
                self.late.append(f"{thread!r} does not end")
        self.nc.close()

    @property
    def closed(self) -> bool:
        return self.nc.is_closed

    async def in_flight(self, timeout: float) -> BaseException | None:
        """The error of a request that nobody answers."""

        def ask() -> BaseException | None:
            try:
                self.nc.request("hole", timeout=timeout)
            except Exception as error:
                return error
            return None

        return await asyncio.to_thread(ask)

    def _publish(self) -> None:
        number = 0
        while not self.ended:
            number += 1
            name = f"b{number}"
            while name not in self.acked and not self.ended:
                started, failure = time.monotonic(), None
                try:
                    self.js.publish(f"{self.stream}.blocking", b"x" * 100, msg_id=name)
                    self.acked.add(name)
                except Exception as error:
                    failure = error
                self.note("publish", started, failure)
                time.sleep(PAUSE)

    def _request(self) -> None:
        while not self.ended:
            started, failure = time.monotonic(), None
            try:
                self.nc.request("echo", b"?", timeout=TIMEOUT)
                self.answered += 1
            except Exception as error:
                failure = error
            self.note("request", started, failure)
            time.sleep(PAUSE)

    def _consume(self) -> None:
        def handle(message: Any) -> None:
            self.take(message)
            message.ack()

        with self.consumer.consume_with(max_messages=100, expires=30, idle_heartbeat=0.5, callback=handle):
            while not self.ended:
                time.sleep(0.05)
