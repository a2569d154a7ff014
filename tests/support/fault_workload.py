"""A user of the client for the table of faults: publishes ids, consumes them with acks, and keeps the books.

Each message is an id, the body and the msg id at once. A :class:`Ledger` notes which ids were acked and which
were processed, and what the user was shown. Contradictions (an id under two sequences, an error that is not
documented) are noted while the fault lasts; :func:`audit` compares the books with the stream afterwards.
Nothing here repairs what the client should do by itself: only the one-by-one publisher repeats an id, and
only after an error whose documentation tells it to.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import jetspark
from jetspark import ConsumerConfig, StorageType, StreamConfig, blocking
from jetspark.errors import (
    ConnectionLost,
    JetsparkError,
    NoStreamResponse,
    PublishFailed,
    PullWarning,
    RequestTimeout,
    Unavailable,
)
from support.helpers import until_answered, when_answered
from support.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from support.fault_table import Outcome

#: Of each consume. A leader that is killed says nothing, and who is connected to another server finds that
#: out by two missed heartbeats (half of expires each): after 4 s here, after 30 s by default.
EXPIRES = 4.0
#: What ``js.publish`` may raise when servers die; for all of them it says: again, with the same msg_id.
AGAIN = (ConnectionLost, RequestTimeout, NoStreamResponse, Unavailable)
_POLL = 0.01


async def within(seconds: float, condition: Callable[[], object]) -> bool:
    """Whether the condition comes true in time; a row reports it if not, and goes on."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(_POLL)
    return True


def some(names: set[str] | dict[str, Any]) -> str:
    """How many and a few of them, for a problem's text."""
    first = sorted(names, key=lambda name: int(name[1:]))[:3]
    return f"{len(names)} (such as {', '.join(first)})"


class Ledger:
    """What a user saw of its ids; for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.issued = 0
        self.acked: dict[str, int] = {}
        """Id and the sequence that its ack named."""
        self.sequences: dict[str, int] = {}
        """Id and the sequence that it was delivered under."""
        self.processed: Counter[str] = Counter()
        self.shown: Counter[str] = Counter()
        """Documented errors by class: what the user was shown and may be shown."""
        self.warned: Counter[str] = Counter()
        """What ``on_error`` of the consume was told."""
        self.wrong: list[str] = []
        self._trip: tuple[int, Callable[[], None]] | None = None
        self._mark: int | None = None
        self._moved = {"ack": 0.0, "message": 0.0}
        self._standstill = 0.0
        self._alive: set[str] = set()

    def issue(self, kind: str) -> str:
        with self._lock:
            self.issued += 1
            return f"{kind}{self.issued}"

    def on_ack(self, name: str, sequence: int) -> None:
        trip = None
        with self._lock:
            self.acked[name] = sequence
            self._progress("ack", name)
            if self._trip is not None and len(self.acked) >= self._trip[0]:
                trip, self._trip = self._trip[1], None
        if trip is not None:
            trip()

    def on_message(self, name: str, sequence: int) -> None:
        with self._lock:
            self.processed[name] += 1
            known = self.sequences.setdefault(name, sequence)
            if known != sequence:
                self.wrong.append(f"{name} was delivered as {known} and as {sequence}")
            self._progress("message", name)

    def on_warning(self, error: JetsparkError) -> None:
        with self._lock:
            self.warned[type(error).__name__] += 1
            if not isinstance(error, PullWarning):
                self.wrong.append(f"consume told of {error!r}")

    def on_shown(self, error: BaseException) -> None:
        with self._lock:
            self.shown[type(error).__name__] += 1

    def on_wrong(self, what: str) -> None:
        with self._lock:
            self.wrong.append(what)

    def when_acked(self, count: int, call: Callable[[], None]) -> None:
        """Call, in the thread of the ack, as soon as ``count`` ids have theirs."""
        with self._lock:
            if len(self.acked) < count:
                self._trip = (count, call)
                return
        call()

    def mark(self) -> None:
        """A fault is about to begin."""
        with self._lock:
            now = time.monotonic()
            self._moved = {"ack": now, "message": now}
            self._standstill, self._mark = 0.0, None
            self._alive.clear()

    def struck(self) -> None:
        """It has happened: recovery is when an id issued from now on is acked, and one is processed."""
        with self._lock:
            self._mark = self.issued

    def recovered(self) -> bool:
        return len(self._alive) == len(self._moved)

    def recovery(self) -> float:
        """The longest standstill between the mark and recovery, of acks or of messages: what a user felt."""
        return self._standstill

    def _progress(self, kind: str, name: str) -> None:
        now = time.monotonic()
        if kind not in self._alive:
            self._standstill = max(self._standstill, now - self._moved[kind])
        self._moved[kind] = now
        if self._mark is not None and int(name[1:]) > self._mark:
            self._alive.add(kind)

    @property
    def unprocessed(self) -> set[str]:
        with self._lock:
            return self.acked.keys() - self.processed.keys()

    @property
    def again(self) -> int:
        """Deliveries beyond the first."""
        with self._lock:
            return self.processed.total() - len(self.processed)

    @property
    def state(self) -> str:
        return (
            f"issued {self.issued}, acked {len(self.acked)}, processed {len(self.processed)}, "
            f"shown {dict(self.shown)}, warned {dict(self.warned)}"
        )


async def audit(urls: str | list[str], stream: str, ledger: Ledger, outcome: Outcome) -> int:
    """Compare the books with what is stored; how many messages that is."""
    stored: dict[str, int] = {}
    twice: set[str] = set()
    async with jetspark.connect(urls) as nc:
        handle = await nc.jetstream(timeout=20).get_stream(stream)
        async for message in handle.get_msgs(batch=5000):
            name = message.data.decode()
            if name in stored:
                twice.add(name)
            stored[name] = message.sequence
    lost = ledger.acked.keys() - stored.keys()
    moved = {name for name in ledger.acked.keys() & stored.keys() if ledger.acked[name] != stored[name]}
    unprocessed = stored.keys() - ledger.processed.keys()
    outcome.require(not lost, f"acked ids that are not stored: {some(lost)}")
    outcome.require(not twice, f"ids stored twice: {some(twice)}")
    outcome.require(not moved - twice, f"ids stored elsewhere than their ack says: {some(moved)}")
    outcome.require(not unprocessed, f"stored ids that were never processed: {some(unprocessed)}")
    if ledger.wrong:
        outcome.problems.append(f"{len(ledger.wrong)} times: {'; '.join(ledger.wrong[:3])}")
    return len(stored)


class Workload:
    """The async user: a pipelined publisher, one that waits for each ack, and a consume with acks.

    ``limit``: the pipelined publisher stops at so many ids until it is raised. ``pace``: its seconds between
    two ids. ``budget``: for how long the one-by-one publisher lets the client retry 503.
    """

    def __init__(
        self,
        urls: str | list[str],
        name: str,
        *,
        replicas: int = 1,
        limit: float = float("inf"),
        pace: float = 0.0,
        ack_wait: float = 2.0,
        ack_timeout: float = 30.0,
        budget: float = 10.0,
    ) -> None:
        self.urls, self.name, self.replicas = urls, name, replicas
        self.limit, self.pace = limit, pace
        self.ack_wait, self.ack_timeout, self.budget = ack_wait, ack_timeout, budget
        self.ledger = Ledger()
        self.events = Recorder()
        self._ended = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        # No fault here is a server that hangs; a busy machine must not look like one, for reconnects count.
        self.nc = await jetspark.connect(self.urls, listener=self.events, ping_interval=10.0)
        js = self.nc.jetstream(timeout=min(5.0, self.ack_timeout))
        await until_answered(lambda: js.create_stream(stream_config(self.name, self.replicas)))
        self.consumer = await until_answered(
            lambda: js.create_consumer(self.name, consumer_config(self.ack_wait))
        )
        self.publisher = js.publisher(retry=True, ack_timeout=self.ack_timeout, window=1000)
        self.consume = self.consumer.consume_with(
            self._handle,
            concurrency=2,
            max_messages=500,
            expires=EXPIRES,
            on_error=self.ledger.on_warning,
        )
        await self.consume.__aenter__()
        self._tasks = [
            asyncio.create_task(self._publish(), name="pipelined publisher"),
            asyncio.create_task(self._publish_one_by_one(js), name="one-by-one publisher"),
        ]

    async def finish(self, patience: float, outcome: Outcome) -> None:
        """No more ids: every one of them must come to its end, at the server too, and nothing hangs."""
        self._ended.set()
        _, stuck = await asyncio.wait(self._tasks, timeout=self.ack_timeout + patience)
        for task in stuck:
            outcome.problems.append(f"{self.name}: the {task.get_name()} is stuck: {self.ledger.state}")
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                outcome.problems.append(f"{self.name}: raised {result!r}")
        outcome.require(not self.consume.closed, f"{self.name}: consume ended by itself")
        await self._settle(patience, outcome)
        await self.consume.stop()
        await self.nc.close()

    async def _settle(self, patience: float, outcome: Outcome) -> None:
        deadline = time.monotonic() + patience
        seen = ""
        while time.monotonic() < deadline:
            with contextlib.suppress(JetsparkError):
                info = await self.consumer.info()
                if not (info.num_pending or info.num_ack_pending or self.ledger.unprocessed):
                    return
                seen = f"pending {info.num_pending}, waiting for acks {info.num_ack_pending}, "
            await asyncio.sleep(0.05)
        outcome.problems.append(f"{self.name}: not at rest after {patience:g} s: {seen}{self.ledger.state}")

    async def _publish(self) -> None:
        ledger = self.ledger
        try:
            async with self.publisher as publisher:
                while not self._ended.is_set():
                    if ledger.issued >= self.limit:
                        await asyncio.sleep(_POLL)
                        continue
                    name = ledger.issue("p")
                    future = await publisher.publish(f"{self.name}.a", name.encode(), msg_id=name)
                    future.add_done_callback(lambda done, name=name: _note(ledger, name, done))
                    if self.pace:
                        await asyncio.sleep(self.pace)
        except PublishFailed as error:
            ledger.on_wrong(f"the pipelined publisher raised {error!r}")

    async def _publish_one_by_one(self, js: jetspark.JetStream) -> None:
        while not self._ended.is_set():
            name = self.ledger.issue("s")
            while True:
                began = time.monotonic()
                try:
                    ack = await js.publish(
                        f"{self.name}.a",
                        name.encode(),
                        msg_id=name,
                        retries=round(self.budget / 0.25),
                        retry_wait=0.25,
                    )
                except AGAIN as error:
                    _judge(self.ledger, error, time.monotonic() - began, self.budget)
                    await asyncio.sleep(0.1)
                else:
                    self.ledger.on_ack(name, ack.seq)
                    break
            await asyncio.sleep(0.01)

    async def _handle(self, message: Any) -> None:
        self.ledger.on_message(message.data.decode(), message.metadata.sequence.stream)
        await message.ack()


class BlockingWorkload:
    """The same user with threads. Its methods block."""

    def __init__(
        self,
        urls: str | list[str],
        name: str,
        *,
        replicas: int = 1,
        pace: float = 0.0,
        ack_wait: float = 2.0,
        ack_timeout: float = 30.0,
        budget: float = 10.0,
    ) -> None:
        self.urls, self.name, self.replicas, self.pace = urls, name, replicas, pace
        self.ack_wait, self.ack_timeout, self.budget = ack_wait, ack_timeout, budget
        self.ledger = Ledger()
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self.nc = blocking.connect(self.urls, ping_interval=2.0)
        js = self.nc.jetstream(timeout=min(5.0, self.ack_timeout))
        when_answered(lambda: js.create_stream(stream_config(self.name, self.replicas)))
        self.consumer = when_answered(lambda: js.create_consumer(self.name, consumer_config(self.ack_wait)))
        self.publisher = js.publisher(retry=True, ack_timeout=self.ack_timeout, window=1000)
        self.consume = self.consumer.consume_with(
            self._handle,
            concurrency=2,
            max_messages=500,
            expires=EXPIRES,
            on_error=self.ledger.on_warning,
        )
        self.consume.__enter__()
        self._threads = [
            threading.Thread(target=self._guard, args=(self._publish,), name="pipelined publisher"),
            threading.Thread(
                target=self._guard, args=(self._publish_one_by_one, js), name="one-by-one publisher"
            ),
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def finish(self, patience: float, outcome: Outcome) -> None:
        self._ended.set()
        deadline = time.monotonic() + self.ack_timeout + patience
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                outcome.problems.append(f"{self.name}: the {thread.name} is stuck: {self.ledger.state}")
        outcome.require(not self.consume.closed, f"{self.name}: consume ended by itself")
        self._settle(patience, outcome)
        self.consume.stop()
        self.consume.__exit__(None, None, None)
        self.nc.close()

    def _settle(self, patience: float, outcome: Outcome) -> None:
        deadline = time.monotonic() + patience
        seen = ""
        while time.monotonic() < deadline:
            with contextlib.suppress(JetsparkError):
                info = self.consumer.info()
                if not (info.num_pending or info.num_ack_pending or self.ledger.unprocessed):
                    return
                seen = f"pending {info.num_pending}, waiting for acks {info.num_ack_pending}, "
            time.sleep(0.05)
        outcome.problems.append(f"{self.name}: not at rest after {patience:g} s: {seen}{self.ledger.state}")

    def _guard(self, target: Callable[..., None], *arguments: Any) -> None:
        try:
            target(*arguments)
        except Exception as error:
            self.ledger.on_wrong(f"{threading.current_thread().name} raised {error!r}")

    def _publish(self) -> None:
        ledger = self.ledger
        with self.publisher as publisher:
            while not self._ended.wait(self.pace):
                name = ledger.issue("p")
                future = publisher.publish(f"{self.name}.a", name.encode(), msg_id=name)
                future.add_done_callback(lambda done, name=name: _note(ledger, name, done))

    def _publish_one_by_one(self, js: blocking.JetStream) -> None:
        while not self._ended.wait(0.01):
            name = self.ledger.issue("s")
            while True:
                began = time.monotonic()
                try:
                    ack = js.publish(
                        f"{self.name}.a",
                        name.encode(),
                        msg_id=name,
                        retries=round(self.budget / 0.25),
                        retry_wait=0.25,
                    )
                except AGAIN as error:
                    _judge(self.ledger, error, time.monotonic() - began, self.budget)
                    time.sleep(0.1)
                else:
                    self.ledger.on_ack(name, ack.seq)
                    break

    def _handle(self, message: Any) -> None:
        self.ledger.on_message(message.data.decode(), message.metadata.sequence.stream)
        message.ack()


def stream_config(name: str, replicas: int) -> StreamConfig:
    # On disk: what was acked must outlive the process.
    return StreamConfig(
        name=name,
        subjects=[f"{name}.>"],
        storage=StorageType.FILE,
        num_replicas=replicas,
        allow_direct=True,
    )


def consumer_config(ack_wait: float) -> ConsumerConfig:
    return ConsumerConfig(durable_name="worker", ack_wait=ack_wait, max_ack_pending=5000)


def _note(ledger: Ledger, name: str, done: asyncio.Future[Any] | Future[Any]) -> None:
    if done.cancelled():
        return
    error = done.exception()
    if error is None:
        ledger.on_ack(name, done.result().seq)
    else:
        # With msg ids and retry nothing fails before ack_timeout, which is longer than any fault.
        ledger.on_wrong(f"the publish of {name} failed: {error!r}")


def _judge(ledger: Ledger, error: JetsparkError, took: float, budget: float) -> None:
    """An error of ``js.publish``: documented, but a 503 only when the budget of its retries is used up."""
    ledger.on_shown(error)
    if isinstance(error, NoStreamResponse) and took < budget:
        ledger.on_wrong(f"503 was shown after {took:.2f} s of a budget of {budget:g} s")
