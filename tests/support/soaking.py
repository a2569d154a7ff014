"""The work that goes on during a soak: every way to receive, on an async and on a blocking connection.

Each part counts what it has done in ``progress``, so that one which is stuck shows. Nothing here grows with
time, for the memory of the process is what a soak measures.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import itertools
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import jetspark
from jetspark import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig, blocking
from jetspark.errors import JetsparkError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jetspark import Message

PAUSE = 0.02
ACK_WAIT = 3.0


async def prepare(nc: jetspark.Connection) -> None:
    """The streams and durables that are there from the beginning to the end."""
    js = nc.jetstream()
    jobs = await js.create_stream(
        StreamConfig(
            name="JOBS", subjects=["jobs"], storage=StorageType.FILE, retention=RetentionPolicy.WORK_QUEUE
        )
    )
    await jobs.create_consumer(ConsumerConfig(durable_name="worker", ack_wait=ACK_WAIT))
    log = await js.create_stream(
        StreamConfig(name="LOG", subjects=["log"], storage=StorageType.FILE, max_msgs=1000)
    )
    await log.create_consumer(ConsumerConfig(durable_name="fetcher", ack_policy=AckPolicy.NONE))
    await log.create_consumer(
        ConsumerConfig(
            durable_name="pushed",
            deliver_subject="deliver.pushed",
            ack_policy=AckPolicy.NONE,
            idle_heartbeat=1,
            flow_control=True,
        )
    )


class Soak:
    """``async with Soak(url, name, capacity) as soak``: all parts work until the end of the block."""

    def __init__(self, url: str, name: str, capacity: int) -> None:
        self.url = url
        self._name = name
        self.progress: Counter[str] = Counter()
        self.unexpected: Counter[str] = Counter()
        self.published = 0
        # The sequence of each job whose publish is acked, and 1 for each that was processed. Two threads
        # write here, so that no entry may depend on what it was: they are two, and each is only set.
        self._stored = array.array("Q", bytes(8 * capacity))
        self._processed = bytearray(capacity)
        self._ending = asyncio.Event()
        self._ending_sync = threading.Event()
        self._publishing = True
        self._stack = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def unprocessed(self) -> dict[int, int]:
        """Jobs that the server has and nobody has seen, each with its sequence in the stream."""
        pairs = enumerate(zip(self._stored, self._processed, strict=True))
        return {job: sequence for job, (sequence, processed) in pairs if sequence and not processed}

    async def __aenter__(self) -> Soak:
        self.nc = await jetspark.connect(self.url, name="async", ping_interval=2.0, request_timeout=5.0)
        self._bc = await asyncio.to_thread(
            blocking.connect, self.url, name="blocking", ping_interval=2.0, request_timeout=5.0
        )
        await self.nc.subscribe("echo", callback=self._echo)
        js = self.nc.jetstream(timeout=5.0)
        worker = await js.get_consumer("JOBS", "worker")
        await self._stack.enter_async_context(
            worker.consume_with(self._work, concurrency=2, max_messages=20, expires=5)
        )
        pushed = await js.get_consumer("LOG", "pushed")
        sub = await js.subscribe("log", ordered=True)
        self._stack.push_async_callback(sub.unsubscribe)
        ordered = await js.create_ordered_consumer("LOG")
        self._stack.push_async_callback(ordered.close)
        self._publisher = self._spawn(self._publish_jobs(js))
        self._spawn(self._publish_log())
        self._spawn(self._read("push", self._consumed(pushed.consume())))
        self._spawn(self._read("ordered push", sub))
        self._spawn(self._read("ordered", self._consumed(ordered.consume(max_messages=50, expires=5))))
        self._spawn(self._fetch(await js.get_consumer("LOG", "fetcher")))
        self._spawn(self._ask())
        self._thread = threading.Thread(target=self._work_blocking, name="soak-blocking")
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending.set()
        self._ending_sync.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for task in self._tasks:
            if not task.cancelled() and task.exception() is not None:
                self.unexpected[f"{task.get_name()} ended: {task.exception()!r}"] += 1
        await self._stack.aclose()
        await self.nc.close()
        await asyncio.to_thread(self._bc.close)
        await asyncio.to_thread(self._thread.join)

    async def stop_publishing(self) -> None:
        """No more jobs, not even one under way: what is there can be finished."""
        self._publishing = False
        await asyncio.wait([self._publisher])

    def stuck(self, since: Counter[str]) -> list[str]:
        """The parts that have done nothing since then."""
        return [part for part in PARTS if self.progress[part] == since[part]]

    # The parts

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=work.__name__)
        self._tasks.append(task)
        return task

    async def _publish_jobs(self, js: jetspark.JetStream) -> None:
        for number in itertools.count():
            if not self._publishing or number == len(self._stored):
                return
            while True:
                try:
                    ack = await js.publish("jobs", b"%d" % number, msg_id=f"{self._name}-{number}")
                    break
                except JetsparkError:
                    await asyncio.sleep(PAUSE)  # perhaps stored, perhaps not: the same id settles it
            self.published += 1
            self._stored[number] = ack.seq
            self.progress["publish"] += 1
            await asyncio.sleep(PAUSE)

    async def _publish_log(self) -> None:
        for number in itertools.count():
            await self.nc.publish("log", b"%d" % number)
            await asyncio.sleep(PAUSE)

    def _done(self, message: Any, part: str) -> None:
        self._processed[int(message.data)] = 1
        self.progress[part] += 1

    async def _work(self, message: Message) -> None:
        await asyncio.sleep(PAUSE)
        self._done(message, "callback")
        await message.ack()

    def _work_blocking(self) -> None:
        with contextlib.suppress(JetsparkError):
            consumer = self._bc.jetstream().get_consumer("JOBS", "worker")
            with consumer.consume(max_messages=10, expires=5) as messages:
                for message in messages:
                    self._done(message, "blocking")
                    self._ending_sync.wait(PAUSE)
                    message.ack()

    @staticmethod
    async def _consumed(consume: Any) -> AsyncIterator[Any]:
        async with consume as messages:
            async for message in messages:
                yield message

    async def _read(self, part: str, source: Any) -> None:
        async for _ in source:
            self.progress[part] += 1

    async def _fetch(self, consumer: jetspark.Consumer) -> None:
        """Fetches, every other one of which is given up."""
        for number in itertools.count():
            fetch = consumer.fetch(10, expires=2)
            with contextlib.suppress(JetsparkError, TimeoutError):
                async with asyncio.timeout(0.05 if number % 2 else 5):
                    self.progress["fetch"] += len(await fetch)
            await asyncio.sleep(PAUSE)

    async def _echo(self, message: jetspark.Msg) -> None:
        await message.respond(message.data)

    async def _ask(self) -> None:
        while True:
            try:
                await self.nc.request("echo", b"?", timeout=1.0)
                self.progress["request"] += 1
            except JetsparkError:
                pass  # broken or too late: the next one counts
            await asyncio.sleep(PAUSE)


PARTS = ("publish", "callback", "blocking", "push", "ordered push", "ordered", "fetch", "request")
