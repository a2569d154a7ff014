"""The asyncio connection as the facade needs it: messages and publishes cross the thread border in batches.

Receiving. The loop's thread puts a run of messages into the subscription's buffer, the very deque that
pending limits are counted on, and wakes sleeping readers once. Readers take from that deque directly; its
operations are atomic, so each message goes to exactly one of them, nothing is copied or held a second time,
and an interrupted reader can't lose what it has not taken.

Publishing. The caller's thread checks and encodes, appends to an outbox, and wakes the loop only when the
outbox was empty. The loop runs callbacks in the order they were asked for, so whatever the same thread
calls afterwards (flush, request, close) finds its publishes sent before.
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
from jetspark.connection.core import volatile
from jetspark.connection.subscription import Subscription
from jetspark.errors import JetsparkError, OutboundBufferFull, RequestTimeout
from jetspark.jetstream.consume.flow_sink import FlowSink

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator, Mapping

    from jetspark.blocking._engine import Engine, EngineLoop
    from jetspark.connection.options import ConnectOptions

# A publishing thread lets the loop catch up after so many bytes: often enough to bound what is unsent, and
# seldom enough that the hop costs nothing a message.
GIVE_WAY_AT = 262_144


class ThreadSubscription(Subscription):
    """A subscription that is read by threads, or by a worker thread of its own that calls the callback."""

    def __init__(self, *args: Any) -> None:
        self.readers = ThreadWaiters()
        self.worker: threading.Thread | None = None
        super().__init__(*args)

    @property
    def connection(self) -> EngineConnection:
        """The connection it belongs to."""
        return cast("EngineConnection", self.client)

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

        def work(_held: object = self.connection.held()) -> None:
            # Held: a connection whose callbacks run is in use.
            self._work(callback)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for this
                loop.call_soon_threadsafe(finish)

        self.worker = threading.Thread(target=work, name=f"jetspark-callback-{self.subject}", daemon=True)
        self.connection.add_worker(self.worker)
        self.worker.start()
        try:
            await done
        except asyncio.CancelledError:
            # Unsubscribed, closed, or out of time: the callback that runs can't be stopped, the rest can.
            self._pending.clear()
            raise

    # In threads of user code

    def read(self) -> Iterator[Msg]:
        """Yield messages until the subscription ends."""
        owner = self.connection.pid
        pending = cast("deque[Msg]", self._pending)
        popleft = pending.popleft
        while True:
            if _process.pid != owner:
                raise _process.forked(owner)
            # Looked at first: what was delivered before the end must be yielded.
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
        """The next message, None at the end, RequestTimeout when ``timeout`` seconds have passed."""
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
        # JetsparkError: why the subscription ended; the connection has reported it.
        with contextlib.suppress(JetsparkError):
            for message in self.read():
                try:
                    callback(message)
                except BaseException as error:
                    # SystemExit too: Python would end the thread, and with it the subscription, in silence.
                    self._failed(error)


class EngineConnection(Connection):
    """The connection that lives in the engine's loop. Made in the loop's thread."""

    _subscription_class = ThreadSubscription
    _consumer_message_class = Message
    _pull_sink_class = ThreadPullSink
    _push_sink_class = ThreadPushSink
    _ordered_sink_class = ThreadOrderedSink
    _ordered_push_sink_class = ThreadOrderedPushSink
    _push_subscription_class = ThreadPushSubscription

    def __init__(
        self,
        engine: EngineLoop,
        options: ConnectOptions,
        jetstream_defaults: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(options, jetstream_defaults)
        self._message_class = Msg
        # What user code holds of the engine, while it holds any.
        self.held: Callable[[], Engine | None] = lambda: None
        self.engine = engine
        self.pid = engine.pid
        self._thread = get_ident()
        self._workers: list[threading.Thread] = []
        self._outbox: list[bytes] = []
        self._outbox_size = 0
        self._outbox_count = 0
        self._outbox_lock = threading.Lock()
        # Bytes published by threads since one of them last waited for the loop.
        self._unyielded = 0

    def __del__(self) -> None:
        """Nothing: the facade tells of a connection that was never closed."""

    def give_way(self) -> None:
        """For threads, after publishing: wait for the loop when much was published, and for a slow server."""
        if self._unyielded >= GIVE_WAY_AT:
            self._unyielded = 0
            self.engine.run(self._give_way)

    def _send(self, pieces: tuple[bytes, ...], size: int) -> None:
        if get_ident() == self._thread:
            super()._send(pieces, size)
            return
        if self.pid != _process.pid:
            raise _process.forked(self.pid)
        if self._link is None:
            self._check_open()
            total = self._out_size + self._outbox_size + size
            if total > self.options.reconnect_buffer_size:
                raise OutboundBufferFull(total, self.options.reconnect_buffer_size)
        self._leave(pieces, size)

    def _send_once(self, commands: bytes, count: int = 1) -> None:
        if get_ident() == self._thread:
            self.collect()
            super()._send_once(commands, count)
        else:
            self._leave((volatile(commands),), len(commands))

    def _leave(self, pieces: tuple[bytes, ...], size: int) -> None:
        """In a thread: leave one whole publish for the loop."""
        with self._outbox_lock:
            self._outbox += pieces
            self._outbox_size += size
            self._outbox_count += 1
            # Again and again: a wake-up lost to Ctrl-C right here must not keep later publishes back.
            wake = self._outbox_count % 256 == 1
            self._unyielded += size
        if wake:
            try:
                self._loop.call_soon_threadsafe(self._collect)
            except RuntimeError:
                raise closed_error() from None

    def collect(self) -> None:
        """In the loop: put what threads have left in line before whatever comes next."""
        if self._outbox:
            self._collect()

    def _collect(self) -> None:
        with self._outbox_lock:
            pieces, size, count = self._outbox, self._outbox_size, self._outbox_count
            self._outbox, self._outbox_size, self._outbox_count = [], 0, 0
        if self._closed:
            return
        self._out += pieces
        self._out_size += size
        self._stats.out_msgs += count
        self._flush_out()

    def _gather(self) -> None:
        self.collect()

    def _command(self, command: bytes) -> None:
        self.collect()
        super()._command(command)

    def _flush_out(self, *, even_if_behind: bool = False) -> None:
        self.collect()
        super()._flush_out(even_if_behind=even_if_behind)

    @property
    def unsent(self) -> int:
        """Bytes published that have not left the process."""
        waiting = self._out_size + self._outbox_size
        return waiting + (self._link.unsent if self._link is not None else 0)

    def _check_open(self) -> None:
        if self._closed or self._closing:
            raise closed_error()

    def add_worker(self, worker: threading.Thread) -> None:
        """Remember a thread that runs callbacks."""
        self._workers = [other for other in self._workers if other.is_alive()]
        self._workers.append(worker)

    def join_workers(self, grace: float) -> None:
        """Wait for running callbacks, at most ``grace`` seconds; the caller may be one of them."""
        deadline = time.monotonic() + grace
        for worker in self._workers:
            if worker is not threading.current_thread() and worker.is_alive():
                worker.join(max(0.0, deadline - time.monotonic()))

    def detach_caller(self) -> None:
        """When a callback drains its own subscription or connection, nobody may wait for that callback."""
        caller = threading.current_thread()
        for sink in list(self._sinks.values()):
            if isinstance(sink, ThreadSubscription) and sink.worker is caller:
                sink._runner = None
            elif isinstance(sink, PushedToThreads) and sink.worker is caller:
                sink.detached = True

    def detach_reader(self, caller: threading.Thread) -> None:
        """Nor may anybody wait for the thread that drains the connection, if it reads from something.

        To be called in the loop, which changes the set of drained sinks at any time.
        """
        for sink in [*self._sinks.values(), *self._drained_sinks]:
            if isinstance(sink, FlowSink | Subscription):
                sink.takers.remove(caller)
