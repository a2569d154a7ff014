"""Helpers for threads of user code: waiting for messages, and threads that call listeners."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from jetspark._log import fields, get_logger
from jetspark.connection.events import Closed
from jetspark.connection.listening import MAX_WAITING_EVENTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetspark.connection.events import Event

logger = get_logger("blocking")


# A signal in the instant before CPython begins to wait interrupts nothing; Ctrl-C would go unnoticed until
# the end of the wait. So every wait wakes up now and then.
_SLICE = 1.0


def take(lock: threading.Lock, timeout: float | None = None) -> bool:
    """Wait for a lock that another thread releases; False when ``timeout`` passed first."""
    if timeout is None:
        while not lock.acquire(timeout=_SLICE):
            pass
        return True
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        if lock.acquire(timeout=max(0.0, min(left, _SLICE))):
            return True
        if left <= _SLICE:
            return False


class ThreadWaiters:
    """Threads that sleep until the loop's thread has something for them.

    The order makes lost wake-ups impossible: a sleeper registers *before* it checks for the last time, and
    the waker changes the state *before* it looks for sleepers. A deque's operations are atomic, so no lock is
    shared and the loop never waits for a reader.
    """

    __slots__ = ("_sleepers",)

    def __init__(self) -> None:
        self._sleepers: deque[threading.Lock] = deque()

    def __bool__(self) -> bool:
        return bool(self._sleepers)

    def wait(self, ready: Callable[[], object], timeout: float | None = None) -> bool:
        """Sleep until woken, unless ``ready()`` is true already; False when ``timeout`` passed first."""
        sleeper = threading.Lock()
        sleeper.acquire()
        self._sleepers.append(sleeper)
        woken = False
        try:
            if ready():
                return True
            woken = take(sleeper, timeout)
            return woken
        finally:
            if not woken:
                with contextlib.suppress(ValueError):
                    self._sleepers.remove(sleeper)

    def wake_all(self) -> None:
        """Wake all threads that are sleeping now."""
        sleepers = self._sleepers
        while sleepers:
            try:
                sleeper = sleepers.popleft()
            except IndexError:
                return
            sleeper.release()


class ListenerThread:
    """Calls the listener with each event, in order, in one thread, so it may block or use the API."""

    def __init__(self, listener: Callable[[Event], None]) -> None:
        self._listener = listener
        self._queue: SimpleQueue[Event | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="jetspark-listener", daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        """Hand over an event; never blocks. A slow listener may miss events; the log has them."""
        if self._queue.qsize() < MAX_WAITING_EVENTS or isinstance(event, Closed):
            self._queue.put(event)

    def stop(self, grace: float) -> None:
        """Let it finish what it has, for at most ``grace`` seconds; it may be the calling thread itself."""
        self._queue.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(grace)

    def _main(self) -> None:
        while (event := self._queue.get()) is not None:
            try:
                self._listener(event)
            except BaseException:  # SystemExit too, which would silently end the thread
                name = type(event).__name__
                logger.exception("listener of the connection raised on %s", name, extra=fields(event=name))


class Courier:
    """Calls a function with items from other threads, in order, in a thread that the first item starts.

    The loop's thread must not run user code, which may block or use the API.
    """

    def __init__(self, function: Callable[[Any], object], what: str) -> None:
        self._function = function
        self._what = what
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, item: Any) -> None:
        """Hand over an item; never blocks."""
        self._queue.put(item)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="jetspark-courier", daemon=True)
                self._thread.start()

    def stop(self, grace: float) -> None:
        """Let it finish what it has, for at most ``grace`` seconds; it may be the calling thread itself."""
        with self._lock:
            thread = self._thread
            if thread is None:
                return
            self._thread = None
            self._queue.put(None)
        # Not alive: Ctrl-C struck while the thread was being started.
        if thread is not threading.current_thread() and thread.is_alive():
            thread.join(grace)

    def _main(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._function(item)
            except BaseException:  # SystemExit too, which would silently end the thread
                logger.exception("%s raised on %s", self._what, type(item).__name__)
