"""The thread that runs a blocking connection's event loop, and the way into it.

Theory of operation
-------------------
One daemon thread a connection, started by the first call. ``run(function, ...)`` may be called by any
number of threads: the coroutine becomes a task of the loop and the caller sleeps on a lock of its own until
the task is done. An exception that hits the sleeping caller (Ctrl-C) cancels the task and goes on its way.

No caller sleeps for ever: calls are registered, and whatever is left when the loop ends, even what it
never got to start, fails with :class:`ConnectionClosed`.

A fork copies locks in any state and no thread, so a child touches nothing here but the owner's pid, which
is looked at first in every call.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from jetspark.blocking import _process
from jetspark.blocking._threads import take
from jetspark.errors import ConnectionClosed, JetsparkError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

P = ParamSpec("P")
T = TypeVar("T")


def closed_error() -> ConnectionClosed:
    """What every call after ``close`` gets."""
    return ConnectionClosed("the connection is closed; open a new one with jetspark.blocking.connect()")


class _Call(Generic[T]):
    """A function on its way through the loop and the caller that waits for its result."""

    __slots__ = ("_cancelled", "_make", "_task", "done", "error", "value")

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        self.done = threading.Lock()
        self.done.acquire()
        self.value: T | None = None
        self.error: BaseException | None = None

    def start(self, engine: Engine) -> None:
        if engine.is_stopped or self._cancelled:
            engine._calls.discard(self)
            self.abandon()
        else:
            self._task = asyncio.get_running_loop().create_task(self._run(engine))

    async def _run(self, engine: Engine) -> None:
        # The caller is woken from here and not by a callback of the task: that would be a loop turn later.
        try:
            self.value = await self._make()
        except asyncio.CancelledError:
            # By Ctrl-C, then nobody looks at this any more, or because the engine stops.
            self.error = closed_error()
        except BaseException as error:
            self.error = error
        finally:
            engine._calls.discard(self)
            self.done.release()

    def cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def abandon(self) -> None:
        """It will never run, or never end: tell the caller."""
        self.error = closed_error()
        self.done.release()


class Engine:
    """An event loop in a thread of its own."""

    def __init__(self, name: str = "jetspark-engine") -> None:
        self.pid = _process.pid
        self._name = name
        self._lock = threading.Lock()
        self._calls: set[_Call[Any]] = set()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._stopped = False

    @property
    def is_foreign(self) -> bool:
        """Whether this is a forked child of the process that the engine runs in."""
        return self.pid != _process.pid

    @property
    def is_stopped(self) -> bool:
        """Whether it takes no more calls."""
        return self._stopped

    def run(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the async function in the loop and return its result, or raise what it raised.

        The coroutine is made in the loop's thread, so an interrupted or refused call leaves none behind. An
        exception in the waiting thread, such as Ctrl-C, cancels it.
        """
        return self._wait(_Call(functools.partial(function, *args, **kwargs)))

    def finish(self, function: Callable[[], Coroutine[Any, Any, T]], timeout: float | None = None) -> T:
        """The same for what must not be cancelled half-way; TimeoutError when it takes too long."""
        return self._wait(_Call(function), cancel=False, timeout=timeout)

    def spawn(self, function: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Start it in the loop and wait for nothing; may be called by any thread, also by the loop's."""
        if self.pid == _process.pid and not self._stopped:
            call = _Call(function)
            self._calls.add(call)  # keeps it alive
            self._signal(functools.partial(call.start, self))

    def _wait(self, call: _Call[T], *, cancel: bool = True, timeout: float | None = None) -> T:
        if self.pid != _process.pid:
            raise _process.forked(self.pid)
        try:
            self._submit(call)
            if not take(call.done, timeout):
                raise TimeoutError
        except BaseException:
            if cancel:
                self._signal(call.cancel)
            raise
        if call.error is not None:
            try:
                raise call.error
            finally:
                del call  # it would be a cycle: the error's traceback holds this frame
        return call.value  # type: ignore[return-value]

    def stop(self) -> None:
        """End the loop, cancel what runs in it, and wait for the thread. Repeating it is harmless."""
        if self.is_foreign:
            return
        with self._lock:
            thread, self._stopped = self._thread, True
        if thread is None:
            return
        self._ready.wait()  # a start may have been interrupted
        assert self._stop is not None
        self._signal(self._stop.set)
        if thread is not threading.current_thread():
            thread.join()

    def _submit(self, call: _Call[Any]) -> None:
        if self._thread is threading.current_thread():
            raise JetsparkError(
                "a blocking call from the connection's own thread would wait for itself: "
                "functions that supply credentials must not use the connection they are for"
            )
        with self._lock:
            if self._stopped:
                raise closed_error()
            if self._loop is None:
                self._start()
            assert self._loop is not None
            self._calls.add(call)
            self._loop.call_soon_threadsafe(call.start, self)

    def _signal(self, function: Callable[[], object]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(function)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._main, name=self._name, daemon=True)
        self._thread.start()
        self._ready.wait()

    def _main(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        finally:
            with self._lock:
                self._stopped = True
                left, self._calls = self._calls, set()
            for call in left:
                call.abandon()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._ready.set()
        await self._stop.wait()
