"""The asyncio connection as the facade needs it: messages and publishes change threads in batches.

Receiving. The loop's thread appends a run of messages to the subscription's buffer, the same deque that the
pending limits are counted on, and wakes sleeping readers once. Readers take from that deque directly. Its
operations are atomic, so each message goes to exactly one reader, nothing is copied or held a second time,
and an interrupted reader can't lose what it has not taken.

Publishing. The caller's thread checks and encodes, appends to an outbox, and wakes the loop only when the
outbox was empty. The loop runs callbacks in the order in which they were requested, so whatever the same
thread calls afterwards (flush, request, close) finds its earlier publishes sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from threading import get_ident
from typing import TYPE_CHECKING, Any, cast

from jetspark.blocking import _process
from jetspark.blocking._engine import closed_error
from jetspark.blocking._pull import (
    PushedToThreads,
    ThreadOrderedPushSink,
    ThreadOrderedSink,
    ThreadPullSink,
    ThreadPushSink,
)
from jetspark.blocking._threads import ThreadWaiters
from jetspark.blocking.message import Message, Msg
from jetspark.blocking.subscribe import ThreadPushSubscription
from jetspark.connecting import Connection
from jetspark.connection.core import Core
from jetspark.connection.kinds import Kinds
from jetspark.connection.outbox import Outbox, volatile
from jetspark.connection.subscription_sink import SubscriptionSink
from jetspark.errors import JetsparkError, OutboundBufferFull, RequestTimeout
from jetspark.jetstream.consume.flow_sink import FlowSink
from jetspark.jetstream.kinds import JetStreamKinds

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator, Mapping

    from jetspark.blocking._engine import Engine, EngineLoop
    from jetspark.connection.options import ConnectOptions

# A publishing thread lets the loop catch up after this many bytes: often enough to bound what is unsent, and
# rarely enough that the hop between threads costs next to nothing per message.
GIVE_WAY_AT = 262_144


class ThreadSubscription(SubscriptionSink):
    """A subscription that is read by threads, or by its own worker thread that calls the callback."""

    def __init__(self, *args: Any) -> None:
        self.readers = ThreadWaiters()
        self.worker: threading.Thread | None = None
        super().__init__(*args)

    @property
    def engine_core(self) -> EngineCore:
        """The core of its connection."""
        return cast("EngineCore", self.core)

    # In the loop's thread

    def deliver(self, items: list[Any], nbytes: int) -> None:
        super().deliver(items, nbytes)
        if self.readers:
            self.readers.wake_all()

    def _wake(self) -> None:
        super()._wake()
        self.readers.wake_all()

    async def _run_callback(self, callback: Any) -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def finish() -> None:
            if not done.done():
                done.set_result(None)

        def work(_held: object = self.engine_core.held()) -> None:
            # _held keeps the connection alive: while its callbacks run, it is in use.
            self._work(callback)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for this
                loop.call_soon_threadsafe(finish)

        self.worker = threading.Thread(target=work, name=f"jetspark-callback-{self.subject}", daemon=True)
        self.engine_core.add_worker(self.worker)
        self.worker.start()
        try:
            await done
        except asyncio.CancelledError:
            # Unsubscribed, closed, or timed out: the running callback can't be stopped, the rest can.
            self._pending.clear()
            raise

    # In threads of user code

    def refuse_callback(self) -> None:
        """Raise if there is a callback, which is then the only reader."""
        self._refuse_callback()

    def read(self) -> Iterator[Msg]:
        """Yield messages until the subscription ends."""
        owner = self.engine_core.pid
        pending = cast("deque[Msg]", self._pending)
        popleft = pending.popleft
        while True:
            if _process.pid != owner:
                raise _process.forked(owner)
            # Checked first: what was delivered before the end must be yielded.
            closed = self._closed
            try:
                message = popleft()
            except IndexError:
                if closed:
                    if self._error is not None:
                        raise self._error from None
                    return
                self.readers.wait(self._ready)
                continue
            yield message

    def read_one(self, timeout: float | None) -> Msg | None:
        """The next message, None at the end; raises RequestTimeout after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            closed = self._closed
            try:
                return cast("Msg", self._pending.popleft())
            except IndexError:
                pass
            if closed:
                if self._error is not None:
                    raise self._error
                return None
            left = None if deadline is None else deadline - time.monotonic()
            if not self.readers.wait(self._ready, left):
                raise RequestTimeout(f"no message on {self.subject!r} within {timeout:g}s")

    def _ready(self) -> bool:
        return bool(self._pending) or self._closed

    def _work(self, callback: Any) -> None:
        # JetsparkError: the reason why the subscription ended; the connection has reported it.
        with contextlib.suppress(JetsparkError):
            for message in self.read():
                try:
                    callback(message)
                except BaseException as error:
                    # SystemExit too: Python would silently end the thread, and with it the subscription.
                    self._failed(error)


class ThreadOutbox(Outbox):
    """An outbox that threads may put publishes into. Made in the loop's thread."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._pid = _process.pid
        self._thread = get_ident()
        self._left: list[bytes] = []
        self._left_size = 0
        self._left_count = 0
        self._lock = threading.Lock()
        #: Bytes published by threads since one of them last waited for the loop.
        self.unyielded = 0

    @property
    def unsent(self) -> int:
        """Bytes that were published and have not left the process."""
        return self.size + self._left_size + (self.link.unsent if self.link is not None else 0)

    def send(self, pieces: tuple[bytes, ...], size: int) -> None:
        if get_ident() == self._thread:
            super().send(pieces, size)
            return
        if self._pid != _process.pid:
            raise _process.forked(self._pid)
        if self.link is None:
            self.check_open()
            total = self.size + self._left_size + size
            if total > self.options.reconnect_buffer_size:
                raise OutboundBufferFull(total, self.options.reconnect_buffer_size)
        self._leave(pieces, size)

    def send_once(self, commands: bytes, count: int = 1) -> None:
        if get_ident() == self._thread:
            self.gather()
            super().send_once(commands, count)
        else:
            self._leave((volatile(commands),), len(commands))

    def _leave(self, pieces: tuple[bytes, ...], size: int) -> None:
        """In a thread: leave one whole publish for the loop."""
        with self._lock:
            self._left += pieces
            self._left_size += size
            self._left_count += 1
            # Repeatedly: a wake-up lost to Ctrl-C right here must not hold back later publishes.
            wake = self._left_count % 256 == 1
            self.unyielded += size
        if wake:
            try:
                self.loop.call_soon_threadsafe(self._collect)
            except RuntimeError:
                raise closed_error() from None

    def gather(self) -> None:
        """In the loop: queue what threads have left before whatever comes next."""
        if self._left:
            self._collect()

    def _collect(self) -> None:
        with self._lock:
            pieces, size, count = self._left, self._left_size, self._left_count
            self._left, self._left_size, self._left_count = [], 0, 0
        if self.closed:
            return
        self.pieces += pieces
        self.size += size
        self.stats.out_msgs += count
        self.flush()

    def control(self, command: bytes) -> None:
        self.gather()
        super().control(command)

    def flush(self, *, even_if_behind: bool = False) -> None:
        self.gather()
        super().flush(even_if_behind=even_if_behind)


class EngineCore(Core):
    """The core of a connection that lives in the engine's loop. Made in the loop's thread."""

    outbox: ThreadOutbox

    def __init__(self, engine: EngineLoop, options: ConnectOptions) -> None:
        super().__init__(options, Kinds(message=Msg, subscription=ThreadSubscription, outbox=ThreadOutbox))
        # Returns the Engine while user code holds it.
        self.held: Callable[[], Engine | None] = lambda: None
        self.engine = engine
        self.pid = engine.pid
        self.thread = get_ident()
        self.threads = True
        self._workers: list[threading.Thread] = []

    def give_way(self) -> None:
        """For threads, after publishing: wait for the loop if much was published, and for a slow server."""
        if self.outbox.unyielded >= GIVE_WAY_AT:
            self.outbox.unyielded = 0
            self.engine.run(self.outbox.give_way)

    def check_open(self) -> None:
        if self.is_closed or self.closing:
            raise closed_error()

    def add_worker(self, worker: threading.Thread) -> None:
        """Register a thread that runs callbacks."""
        self._workers = [other for other in self._workers if other.is_alive()]
        self._workers.append(worker)

    def join_workers(self, grace: float) -> None:
        """Wait for running callbacks, at most ``grace`` seconds; the caller may be one of them."""
        deadline = time.monotonic() + grace
        for worker in self._workers:
            if worker is not threading.current_thread() and worker.is_alive():
                worker.join(max(0.0, deadline - time.monotonic()))

    def detach_caller(self) -> None:
        """If the caller is a callback that drains its own subscription or connection, do not wait for it."""
        caller = threading.current_thread()
        for sink in list(self.router.sinks.values()):
            if isinstance(sink, ThreadSubscription) and sink.worker is caller:
                sink.detach()
            elif isinstance(sink, PushedToThreads) and sink.worker is caller:
                sink.detached = True

    def detach_reader(self, caller: threading.Thread) -> None:
        """Nor wait for the thread that drains the connection, if it is itself a reader.

        Must be called in the loop, which may change the set of drained sinks at any time.
        """
        for sink in [*self.router.sinks.values(), *self.router.drained]:
            if isinstance(sink, FlowSink | SubscriptionSink):
                sink.takers.remove(caller)


class EngineConnection(Connection):
    """The connection that lives in the engine's loop."""

    def __init__(self, core: EngineCore, jetstream_defaults: Mapping[str, Any] | None = None) -> None:
        super().__init__(core.options, jetstream_defaults, core=core, jetstream_kinds=KINDS)
        self.engine_core = core

    def __del__(self) -> None:
        """Nothing: the facade reports a connection that was never closed."""


KINDS = JetStreamKinds(
    message=Message,
    pull_sink=ThreadPullSink,
    push_sink=ThreadPushSink,
    ordered_sink=ThreadOrderedSink,
    ordered_push_sink=ThreadOrderedPushSink,
    push_subscription=ThreadPushSubscription,
)
