"""The client of the untrusted-server row, in a process of its own so that its memory and CPU can be told.

One JSON line in is one task, one JSON line out what came of it. A task connects, does its part until the
message ``end`` arrives, and says which errors the user saw, the peak of memory, and the CPU time: in all and
the longest stretch in which the event loop did nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import resource
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jetspark
import jetspark.blocking
from jetspark.connection.client import core_of
from jetspark.errors import JetsparkError

if TYPE_CHECKING:
    from jetspark.events import Event

PATIENCE = 240.0
"""Seconds of a clock on the wall that a task waits for its ``end``; whoever gave it counts CPU time."""
OPTIONS: dict[str, Any] = {
    # The first handshake is honest, and the machine may be busy; later ones get ``handshake`` seconds.
    "connect_timeout": 30.0,
    "ping_interval": 30.0,
    "reconnect_wait": 0.01,
    "reconnect_wait_max": 0.05,
    "request_timeout": 2.0,
    "ignore_discovered": False,
}
HANDSHAKE = [30.0]


class Diary:
    """What the user of a connection gets to see."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.texts: list[str] = []
        self.loop_errors: list[str] = []

    def saw(self, error: BaseException) -> None:
        if not isinstance(error, JetsparkError):
            self.loop_errors.append(f"{type(error).__name__}: {error}"[:300])
        self.errors[type(error).__name__] += 1
        if len(self.texts) < 5:
            self.texts.append(str(error)[:300])

    def listen(self, event: Event) -> None:
        self.events[type(event).__name__] += 1
        error = getattr(event, "error", None)
        if error is not None:
            self.saw(error)

    def loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.loop_errors.append(f"{context.get('message')}: {context.get('exception')!r}"[:300])


async def task_connect(url: str, diary: Diary) -> str:
    """Just connect. ``refused`` is as good an end as any, when the error says why."""
    options = OPTIONS | {"connect_timeout": HANDSHAKE[0]}
    try:
        nc = await jetspark.connect(url, listener=diary.listen, **options)
    except JetsparkError as error:
        diary.saw(error)
        return "refused"
    await nc.close()
    return "connected"


async def task_subscribe(url: str, diary: Diary) -> str:
    """Read a subscription and its headers until ``end`` comes."""
    async with jetspark.connect(url, listener=diary.listen, **OPTIONS) as nc:
        core_of(nc).options = replace(core_of(nc).options, connect_timeout=HANDSHAKE[0])
        sub = await nc.subscribe("s", pending_messages_limit=1000, pending_bytes_limit=8 << 20)
        end = await nc.subscribe("end")
        reading = asyncio.ensure_future(_read(sub, diary))
        await end.next(timeout=PATIENCE)
        diary.events["servers"] = len(nc.servers)
        await sub.unsubscribe()
        reading.cancel()
        await asyncio.wait([reading])
    return "end"


async def _read(sub: jetspark.Subscription, diary: Diary) -> None:
    async for msg in sub:
        diary.events["messages"] += 1
        try:
            _ = msg.status, msg.headers, repr(msg)
            if msg.reply:
                await msg.respond(b"x")
        except JetsparkError as error:
            diary.saw(error)


async def task_request(url: str, diary: Diary) -> str:
    """Ask until ``end`` comes."""
    async with jetspark.connect(url, listener=diary.listen, **OPTIONS) as nc:
        end = await nc.subscribe("end")
        while not end.pending_messages:
            try:
                answer = await nc.request("ask", timeout=0.5)
                _ = answer.headers, answer.status
            except JetsparkError as error:
                diary.saw(error)
                await asyncio.sleep(0.01)
    return "end"


async def task_api(url: str, diary: Diary) -> str:
    """The JetStream API, whose answers are the server's word."""
    async with jetspark.connect(url, listener=diary.listen, **OPTIONS) as nc:
        js = nc.jetstream(timeout=0.5)
        end = await nc.subscribe("end")
        while not end.pending_messages:
            for ask in (
                lambda: js.account_info(),
                lambda: js.get_stream("S"),
                lambda: js.get_consumer("S", "C"),
                lambda: js.publish("P", b"x"),
                lambda: anext(js.stream_names()),
                lambda: anext(js.list_streams()),
            ):
                if end.pending_messages:
                    break
                try:
                    await ask()
                except StopAsyncIteration:
                    pass
                except JetsparkError as error:
                    diary.saw(error)
            await asyncio.sleep(0)
    return "end"


async def task_publisher(url: str, diary: Diary) -> str:
    """A publisher, of which each third message is large, until ``end`` comes."""
    async with jetspark.connect(url, listener=diary.listen, **OPTIONS) as nc:
        end = await nc.subscribe("end")
        publisher = nc.jetstream().publisher(ack_timeout=60)
        await publisher.__aenter__()
        sizes = itertools.cycle((1, 10, 20_000))
        while not end.pending_messages:
            future = await publisher.publish("P", bytes(next(sizes)))
            try:
                while not future.done() and not end.pending_messages:
                    await asyncio.wait([future], timeout=0.05)
                if future.done():
                    await future
            except JetsparkError as error:
                diary.saw(error)
    return "end"


async def task_fetch(url: str, diary: Diary) -> str:
    """Fetches from a consumer until ``end`` comes."""
    async with jetspark.connect(url, listener=diary.listen, **OPTIONS) as nc:
        end = await nc.subscribe("end")
        consumer = await nc.jetstream().get_consumer("S", "C")
        while not end.pending_messages:
            try:
                async for message in consumer.fetch(100, expires=1):
                    diary.events["messages"] += 1
                    _ = message.headers
            except JetsparkError as error:
                diary.saw(error)
                await asyncio.sleep(0.01)
    return "end"


async def task_push(url: str, diary: Diary) -> str:
    """The reader of a push consumer."""
    return await _consume(url, diary)


async def task_consume(url: str, diary: Diary) -> str:
    """One consume until ``end`` comes; when it gives up, another."""
    return await _consume(url, diary, max_messages=100, expires=1)


async def _consume(url: str, diary: Diary, **options: Any) -> str:
    async with jetspark.connect(url, listener=diary.listen, **OPTIONS) as nc:
        end = await nc.subscribe("end")
        consumer = await nc.jetstream().get_consumer("S", "C")

        async def work() -> None:
            while True:
                try:
                    async with consumer.consume(**options, on_error=diary.saw) as messages:
                        async for message in messages:
                            diary.events["messages"] += 1
                            _ = message.headers
                except JetsparkError as error:
                    diary.saw(error)
                await asyncio.sleep(0.01)

        working = asyncio.ensure_future(work())
        await end.next(timeout=PATIENCE)
        working.cancel()
        await asyncio.wait([working])
    return "end"


def task_blocking(url: str, diary: Diary) -> str:
    """The subscription of a thread."""
    with jetspark.blocking.connect(url, listener=diary.listen, **OPTIONS) as nc:
        sub = nc.subscribe("s", pending_messages_limit=1000, pending_bytes_limit=8 << 20)
        end = nc.subscribe("end")
        until = time.monotonic() + PATIENCE
        ended = False
        while time.monotonic() < until:
            try:
                while True:
                    msg = sub.next(timeout=0.01)
                    diary.events["messages"] += 1
                    _ = msg.status, msg.headers
            except TimeoutError:
                pass
            except JetsparkError as error:
                diary.saw(error)
                continue
            if ended:
                return "end"
            with contextlib.suppress(TimeoutError):
                end.next(timeout=0.01)
                ended = True
    return "no end"


class Stopwatch:
    """The longest CPU time between two turns of the event loop."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.002)
            self.longest = max(self.longest, time.thread_time() - before)


def memory(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise AssertionError(name)


def perform(task: str, url: str) -> dict[str, Any]:
    diary, watch = Diary(), Stopwatch()
    # The peak starts anew: 5 resets VmHWM.
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    before, usage = memory("VmRSS"), resource.getrusage(resource.RUSAGE_SELF)

    async def run() -> str:
        asyncio.get_running_loop().set_exception_handler(diary.loop_failed)
        watching = asyncio.ensure_future(watch.run())
        try:
            return await TASKS[task](url, diary)
        finally:
            watching.cancel()

    try:
        result = task_blocking(url, diary) if task == "blocking" else asyncio.run(run())
    except BaseException as error:
        result = f"{type(error).__name__}: {error}"[:500]
        if isinstance(error, JetsparkError):
            diary.saw(error)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "result": result,
        "errors": diary.errors,
        "events": diary.events,
        "texts": diary.texts,
        "loop_errors": diary.loop_errors[:5],
        "mb": round(memory("VmHWM") - before, 1),
        "cpu": round(used.ru_utime + used.ru_stime - usage.ru_utime - usage.ru_stime, 2),
        "busy": round(watch.longest, 2),
    }


TASKS = {
    "connect": task_connect,
    "subscribe": task_subscribe,
    "request": task_request,
    "api": task_api,
    "publisher": task_publisher,
    "fetch": task_fetch,
    "consume": task_consume,
    "push": task_push,
}


def main() -> None:
    # A user who logs: what is logged must be cheap enough too, and must not fill anything.
    logging.basicConfig(stream=open("/dev/null", "w"), level=logging.INFO)  # noqa: SIM115
    for line in sys.stdin:
        task = json.loads(line)
        OPTIONS["ping_interval"], HANDSHAKE[0] = task["ping_interval"], task["handshake"]
        print(json.dumps(perform(task["task"], task["url"])), flush=True)


if __name__ == "__main__":
    main()
