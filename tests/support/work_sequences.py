"""Random sequences of what users and networks do to a work consumer, each checked against the model.

Several sequences run at once. Each has a stream, a consumer and a way to the server of its own; a server is
shared by some of them, so that a restart which one sequence makes strikes the others in the middle of theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import jetspark
from jetspark import ConsumerConfig, RetentionPolicy, StorageType, StreamConfig
from jetspark.errors import (
    ConnectionClosed,
    ConnectionLost,
    JetsparkError,
    JetStreamNotEnabled,
    NoConsumerResponders,
    NoRespondersError,
    PullUnanswered,
    RequestTimeout,
    ServerShutdown,
)
from support.helpers import unique
from support.lossy_proxy import LossyProxy
from support.work_model import Model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from jetspark import Consumer, Message, Stream
    from jetspark.server import Server

T = TypeVar("T")

ACK_WAIT = 0.7
# Seconds for anything that must happen once the faults are over.
PATIENCE = 30.0
# What users are told to expect while a server is away.
DISTURBED = (
    ConnectionLost,
    JetStreamNotEnabled,
    NoConsumerResponders,
    NoRespondersError,
    PullUnanswered,
    RequestTimeout,
    ServerShutdown,
)
# Seconds that a server is left alone before a restart at rest.
REST = 1.0


class Host:
    """A server that several sequences use and restart: at rest, or whatever the others are doing."""

    def __init__(self, server: Server, *, at_rest: bool) -> None:
        self.server = server
        self.at_rest = at_rest
        self.restarts: list[float] = []
        self._busy = 0
        self._change = asyncio.Condition()
        self._restarting = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()

    @contextlib.asynccontextmanager
    async def step(self) -> AsyncIterator[None]:
        """One step of a sequence; a restart at rest waits for its end."""
        await self._open.wait()
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            async with self._change:
                self._change.notify_all()

    async def restart(self) -> None:
        async with self._restarting:
            if self.at_rest:
                self._open.clear()
                async with self._change:
                    await self._change.wait_for(lambda: not self._busy)
                # Nothing tells when the server has written what it knows.
                await asyncio.sleep(REST)
            try:
                self._note()
                await asyncio.to_thread(self.server.restart)
                self._note()
            finally:
                self._open.set()

    def _note(self) -> None:
        # Its beginning and its end: what a sequence gets in between is told apart too.
        self.restarts.append(time.monotonic())


class Sequence:
    """One sequence: ``await Sequence(host, seed).play()``, then look at ``mismatches`` and ``trace``."""

    def __init__(self, host: Host, seed: int) -> None:
        self.host = host
        self.seed = seed
        self.chance = random.Random(seed)
        self.model = Model(ACK_WAIT, max_ack_pending=self.chance.choice((5, 20, 1000)))
        self.trace: list[str] = []
        self.steps: Counter[str] = Counter()
        self._work_queue = self.chance.random() < 0.5
        self._began = time.monotonic()
        self._held: list[Message] = []
        self._connections = 0
        # Since when the handle may have messages that were asked for and not handed out.
        self._stashing_since: float | None = None

    @property
    def mismatches(self) -> list[str]:
        return self.model.mismatches

    async def play(self) -> None:
        try:
            async with asyncio.timeout(120), LossyProxy(self.host.server) as proxy:
                self.proxy = proxy
                await self._connect(new=True)
                try:
                    await self._steps()
                    async with self.host.step():
                        await self._settle()
                finally:
                    await self.nc.close()
        except TimeoutError:
            self.mismatches.append(f"stuck: {self.trace[-3:]}")
        except Exception as error:
            # Whatever escapes is something that users would see and that nothing tells them of.
            self.mismatches.append(f"unexpected {error!r} after {self.trace[-3:]}")

    async def _steps(self) -> None:
        steps: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (6, self.publish),
            (4, self.fetch),
            (2, self.fetch_cancelled),
            (2, self.fetch_owed),
            (4, self.consume),
            (2, self.consume_callback),
            (4, self.end_held),
            (2, self.cut),
            (1, self.expire),
            (1, self.drain_connection),
            (2, self.look),
        ]
        if self.chance.random() < 0.2:
            steps.append((2, self.restart))
        weights = [weight for weight, _ in steps]
        await self.publish()
        for _ in range(self.chance.randint(6, 18)):
            _, step = self.chance.choices(steps, weights)[0]
            self.steps[step.__name__] += 1
            self._say(step.__name__)
            if step == self.restart:
                await self.host.restart()
                continue
            async with self.host.step():
                self._note_restarts()
                await step()

    def _note_restarts(self) -> None:
        restarts = self.host.restarts
        if restarts and restarts[-1] > self._began:
            self.model.restarted(restarts[-1], at_rest=self.host.at_rest)

    def _say(self, what: str) -> None:
        self.trace.append(f"{time.monotonic():.2f} {what}")

    # Connection

    async def _connect(self, *, new: bool = False) -> None:
        self._connections += 1
        self.nc = await self._persist(
            lambda: jetspark.connect(
                self.proxy.url, reconnect_wait=0.02, reconnect_wait_max=0.2, request_timeout=3.0
            )
        )
        js = self.js = self.nc.jetstream(timeout=3.0)
        if new:
            name = self.name = unique("M")
            retention = RetentionPolicy.WORK_QUEUE if self._work_queue else RetentionPolicy.LIMITS
            config = StreamConfig(name=name, subjects=[name], storage=StorageType.FILE, retention=retention)
            self.stream: Stream = await self._persist(lambda: js.create_stream(config))
            wanted = ConsumerConfig(
                durable_name="worker", ack_wait=ACK_WAIT, max_ack_pending=self.model.max_ack_pending
            )
            await self._persist(lambda: js.create_consumer(name, wanted))
        else:
            self.stream = await self._persist(lambda: js.get_stream(self.name))
        self.consumer: Consumer = await self._persist(lambda: js.get_consumer(self.name, "worker"))
        self._stashing_since = None

    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Until it works: what is asked for here is safe to ask for again."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return await call()
            except JetsparkError as error:
                if time.monotonic() > until:
                    raise
                self._say(f"again after {type(error).__name__}")
                await asyncio.sleep(0.05)

    @property
    def _link(self) -> int:
        """What tells one link from another; what is sent without one is on none."""
        return self._connections * 1000 + self.nc.stats.reconnects if self.nc.is_connected else -1

    def _link_of(self, message: Message) -> int:
        """The link that an ack of the message goes by: none, if it came on a connection that is closed."""
        return self._link if message._owner.core is self.nc._core else -1

    # Steps

    async def publish(self) -> None:
        for _ in range(self.chance.randint(1, 10)):
            number = self.model.attempt()
            ack = await self._persist(
                lambda number=number: self.js.publish(self.name, b"%d" % number, msg_id=str(number))  # type: ignore[misc]
            )
            self.model.published(number, ack.seq)

    async def fetch(self) -> None:
        no_wait = self.chance.random() < 0.3
        expires = None if no_wait else self.chance.uniform(0.05, 0.6)
        since = self._since()
        with self._disturbance():
            await self._fetch(self.chance.randint(1, 8), expires, since, no_wait=no_wait)

    async def fetch_cancelled(self) -> None:
        since = self._since()
        if self._stashing_since is None:
            self._stashing_since = time.monotonic()
        with self._disturbance():
            try:
                async with asyncio.timeout(self.chance.uniform(0, 0.02)):
                    batch = await self.consumer.fetch(self.chance.randint(1, 8), expires=5)
            except TimeoutError:
                return
            for message in batch:
                await self._take(message, since)

    async def fetch_owed(self) -> None:
        """When there are new messages and room for them, a fetch brings some."""
        await self._persist(self.nc.flush)
        link = self._link
        info = await self._look()
        since = self._since()
        with self._disturbance():
            owed = info.num_pending > 0 and info.num_ack_pending < self.model.max_ack_pending
            if not owed:
                await self._fetch(2, 0.2, since)
                return
            batch = await self.consumer.fetch(2, expires=5)
            if not batch and link == self._link != -1:
                self.mismatches.append(
                    f"{info.num_pending} pending, {info.num_ack_pending} out, and a fetch of 5 s got nothing"
                )
            for message in batch:
                await self._take(message, since)

    async def consume(self) -> None:
        """An iterator that is stopped or drained, perhaps with a cut in between."""
        since = self._since()
        how = self.chance.choice(("stop", "drain", "stop after"))
        limit = self.chance.randint(1, 6) if how == "stop after" else None
        until = time.monotonic() + self.chance.uniform(0.02, 0.5)
        cut_at = self.chance.randint(0, 5) if self.chance.random() < 0.3 else None
        got = 0
        with self._disturbance():
            async with self.consumer.consume(
                max_messages=self.chance.randint(1, 30), expires=2, stop_after=limit
            ) as messages:
                while time.monotonic() < until:
                    if got == cut_at:
                        await self.proxy.cut()
                        cut_at = None
                    try:
                        async with asyncio.timeout(until - time.monotonic()):
                            message = await anext(messages)
                    except (TimeoutError, StopAsyncIteration):
                        break
                    got += 1
                    await self._take(message, since)
                self._say(f"{how} after {got}")
                if how == "drain":
                    await messages.drain()
                    async with asyncio.timeout(PATIENCE):
                        async for message in messages:
                            await self._take(message, since)
                if limit is not None:
                    self.model.require(got <= limit, f"stop_after {limit}, and {got} came")

    async def consume_callback(self) -> None:
        since = self._since()

        async def handle(message: Message) -> None:
            await self._take(message, since)

        with self._disturbance():
            async with self.consumer.consume_with(
                handle, concurrency=self.chance.randint(1, 4), expires=2
            ) as running:
                await asyncio.sleep(self.chance.uniform(0, 0.3))
                if self.chance.random() < 0.5:
                    await running.drain()
                    async with asyncio.timeout(PATIENCE):
                        await running.wait()
                    self.model.require(running.pending == 0, f"{running.pending} left after a drain")

    async def end_held(self) -> None:
        """Ack, nak or term what was taken earlier; its ack_wait may be over by now."""
        self.chance.shuffle(self._held)
        for _ in range(self.chance.randint(1, 10)):
            if self._held:
                await self._end(self._held.pop())

    async def cut(self) -> None:
        await self.proxy.cut()
        if self.chance.random() < 0.5:
            await self._persist(self.nc.flush)

    async def expire(self) -> None:
        await asyncio.sleep(ACK_WAIT * 1.2)

    async def restart(self) -> None:
        """In the middle of what the others do, or at rest, as the host wants."""

    async def drain_connection(self) -> None:
        """Drain it with a consume open, whose reader gets what has arrived; then go on with another one."""
        since = self._since()
        started = asyncio.Event()

        async def read() -> None:
            async with self.consumer.consume(max_messages=20, expires=2) as messages:
                started.set()
                async for message in messages:
                    await self._take(message, since)

        reader = asyncio.create_task(read())
        await started.wait()
        await asyncio.sleep(self.chance.uniform(0, 0.1))
        await self.nc.drain()
        self.model.require(reader.done(), "the connection is drained, and its reader goes on")
        with self._disturbance():
            await reader
        await self._connect()

    async def look(self) -> None:
        """The consumer's figures agree with what was done; some of them a moment later."""
        until = time.monotonic() + 5
        while found := self.model.disagreement(await self._look()):
            if time.monotonic() > until:
                self.mismatches.extend(found)
                break
            await asyncio.sleep(0.05)

    # What they share

    async def _fetch(self, most: int, expires: float | None, since: float, *, no_wait: bool = False) -> None:
        """A fetch that need not bring anything. A server that does not answer it in time is slow, not wrong;
        what it sends later comes with another fetch."""
        try:
            batch = await self.consumer.fetch(most, expires=expires, no_wait=no_wait)
        except PullUnanswered:
            self.steps["unanswered"] += 1
            self._say("unanswered")
            self._stashing_since = since
            return
        for message in batch:
            await self._take(message, since)

    def _since(self) -> float:
        """The server can't have sent earlier what is handed out from now on."""
        return time.monotonic() if self._stashing_since is None else self._stashing_since

    @contextlib.contextmanager
    def _disturbance(self) -> Any:
        """Errors that are documented for what happens here."""
        try:
            yield
        except DISTURBED as error:
            self._say(f"disturbed by {type(error).__name__}")

    async def _look(self) -> jetspark.ConsumerInfo:
        confirmed, handed = self.model.unfloored(), self.model.last_handed
        info = await self._persist(self.consumer.info)
        self._note_restarts()
        self.model.observed(info, confirmed, handed)
        return info

    async def _take(self, message: Message, since: float) -> None:
        now = time.monotonic()
        metadata = message.metadata
        self.steps["delivery"] += 1
        place = metadata.sequence
        self._say(f"got {place.stream}, delivery {metadata.num_delivered} ({place.consumer})")
        self._note_restarts()
        self.model.took(message.data, metadata, since, now)
        if self.chance.random() < 0.25:
            self._held.append(message)
        else:
            await self._end(message)

    async def _end(self, message: Message) -> None:
        seq, link = message.metadata.sequence.stream, self._link_of(message)
        how = self.chance.choices(("ack_sync", "ack", "nak", "nak later", "term"), (5, 3, 2, 1, 1))[0]
        self._say(f"{how} {seq}")
        self.steps[how] += 1
        with self._disturbance(), contextlib.suppress(ConnectionClosed):  # of a connection that was drained
            if how == "ack_sync":
                await self._ack_sync(message)
            elif how == "ack":
                self.model.ended(seq, link)
                await message.ack()
            elif how == "term":
                self.model.ended(seq, link)
                await message.term("no use")
            else:
                delay = 0.3 if how == "nak later" else 0.0
                self.model.naked(seq, time.monotonic(), delay)
                await message.nak(delay or None)

    async def _ack_sync(self, message: Message) -> None:
        seq, link = message.metadata.sequence.stream, self._link_of(message)
        # On no link until it is confirmed: a request is not sent again on the next one.
        self.model.ended(seq, -1)
        await message.ack_sync(timeout=2.0)
        self.model.confirmed(seq, link if link == self._link else -2)

    # The end

    async def _settle(self) -> None:
        """No more faults but perhaps one: everything is delivered and acked, and the server agrees."""
        self._say("settle")
        self._held.clear()
        if self.chance.random() < 0.5:
            await self._settle_by_fetch()
        else:
            await self._settle_by_consume()
        await self.look()
        info = await self._look()
        left = await self._persist(lambda: self._collect_now())
        self.model.require(not left, f"{left} delivered when nothing was pending")
        until, kept = time.monotonic() + 5, 0 if self._work_queue else self.model.stored
        # The server takes an acked message out of the stream a moment after it has ticked it off.
        while (state := (await self._persist(self.stream.info)).state).messages != kept:
            if time.monotonic() > until:
                break
            await asyncio.sleep(0.05)
        self.model.finished(info, state.messages, state.last_seq, work_queue=self._work_queue)

    async def _collect_now(self) -> list[int]:
        """What a fetch brings now, but for what was left of cancelled ones."""
        batch = await self.consumer.fetch_no_wait(10)
        return [
            message.metadata.sequence.stream
            for message in batch
            if message.metadata.sequence.consumer > self._last_delivery
        ]

    async def _all_acked(self) -> bool:
        info = await self._look()
        self._last_delivery = info.delivered.consumer_seq
        return info.num_pending == 0 and info.num_ack_pending == 0

    async def _settle_by_fetch(self) -> None:
        until = time.monotonic() + PATIENCE
        while not await self._all_acked():
            since = self._since()
            batch: list[Message] = await self._persist(
                lambda: self.consumer.fetch(50, expires=0.3)._collect()
            )
            for message in batch:
                await self._take_for_good(message, since)
            if time.monotonic() > until:
                await self._tell_stuck("fetch")
                return

    async def _settle_by_consume(self) -> None:
        since = self._since()
        if self.chance.random() < 0.5:
            await self.proxy.cut()

        async def handle(message: Message) -> None:
            await self._take_for_good(message, since)

        async with self.consumer.consume_with(handle, concurrency=4, expires=10):
            until = time.monotonic() + PATIENCE
            if self.chance.random() < 0.5:
                await self.proxy.cut()
            while not await self._all_acked():
                await asyncio.sleep(0.05)
                if time.monotonic() > until:
                    await self._tell_stuck("consume")
                    return

    async def _take_for_good(self, message: Message, since: float) -> None:
        self._note_restarts()
        self._say(f"got {message.metadata.sequence.stream} ({message.metadata.sequence.consumer}) for good")
        self.steps["delivery"] += 1
        self.model.took(message.data, message.metadata, since, time.monotonic())
        with self._disturbance():
            await self._ack_sync(message)

    async def _tell_stuck(self, by: str) -> None:
        info = await self._look()
        self.mismatches.append(
            f"after {PATIENCE:g} s of {by} {info.num_pending} pending, {info.num_ack_pending} out"
        )
