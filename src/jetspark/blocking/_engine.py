"""The thread that runs a blocking connection's event loop, and the way into it.

Theory of operation
-------------------
One daemon thread per connection, started by the first call. ``run(function, ...)`` may be called by any
number of threads: the coroutine becomes a task of the loop, and the caller sleeps on its own lock until the
task is done. An exception that hits the sleeping caller (Ctrl-C) cancels the task and propagates.

No caller sleeps forever: calls are registered, and whatever is left when the loop ends, even calls that it
never started, fails with :class:`ConnectionClosed`.

A fork copies locks in any state and no threads. So a child touches nothing here but the owner's pid, which
every call checks first.

The thread holds the :class:`EngineLoop`, and so does the connection that lives in it. Facades hold the
:class:`Engine`. When user code has dropped the last facade, the Engine is collected, and the connection's
finalizer runs (see ``connection.py``): a thread must not keep a connection open that can no longer be used.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from jetspark._log import get_logger
from jetspark.blocking import _process
from jetspark.blocking._threads import take
from jetspark.connection.listening import report_failure
from jetspark.errors import ConnectionClosed, JetsparkError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

logger = get_logger("blocking")

P = ParamSpec("P")
T = TypeVar("T")


def closed_error() -> ConnectionClosed:
    """The error of every call after ``close``."""
    return ConnectionClosed("the connection is closed; open a new one with jetspark.blocking.connect()")


def _log_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The loop's exception handler. Like asyncio's own, but in our log: the program knows of no loop."""
    rest = "".join(
        f"\n{key}: {value!r}" for key, value in context.items() if key not in ("message", "exception")
    )
    logger.error("%s%s", context["message"], rest, exc_info=context.get("exception"))


async def _unattended(function: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run what no caller waits for. A connection that is lost or closed has already cleaned up."""
    try:
        await function()
    except JetsparkError as error:
        logger.debug("cleaning up ended by %s", error)
    except Exception as error:
        report_failure(asyncio.get_running_loop(), "cleaning up failed", error)


class _Call(Generic[T]):
    """A function on its way through the loop, and the caller that waits for its result."""

    __slots__ = ("_cancelled", "_make", "_task", "done", "error", "value")

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        self.done = threading.Lock()
        self.done.acquire()
        self.value: T | None = None
        self.error: BaseException | None = None

    def start(self, engine: EngineLoop) -> None:
        if engine.is_stopped or self._cancelled:
            engine._calls.discard(self)
            self.abandon()
        else:
            self._task = asyncio.get_running_loop().create_task(self._run(engine))

    async def _run(self, engine: EngineLoop) -> None:
        # The caller is woken from here and not by a callback of the task: that would be one loop turn later.
        try:
            self.value = await self._make()
        except asyncio.CancelledError:
            # Either by Ctrl-C, and then the result is not used, or because the engine stops.
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
        """It will never run, or never end: wake the caller with an error."""
        self.error = closed_error()
        self.done.release()


class EngineLoop:
    """An event loop in its own thread."""

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
        """Whether it accepts no more calls."""
        return self._stopped

    def run(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the async function in the loop and return its result, or raise what it raised.

        The coroutine is created in the loop's thread, so an interrupted or refused call leaves none behind.
        An exception in the waiting thread, such as Ctrl-C, cancels it.
        """
        return self._wait(_Call(functools.partial(function, *args, **kwargs)))

    def finish(self, function: Callable[[], Coroutine[Any, Any, T]], timeout: float | None = None) -> T:
        """The same for calls that must not be cancelled half-way; TimeoutError if it takes too long."""
        return self._wait(_Call(function), cancel=False, timeout=timeout)

    def spawn(self, function: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Start it in the loop without waiting. Any thread may call this, including the loop's own."""
        if self.pid == _process.pid and not self._stopped:
            call = _Call(functools.partial(_unattended, function))
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
                del call  # otherwise there is a cycle: the error's traceback holds this frame
        return call.value  # type: ignore[return-value]

    def stop(self) -> None:
        """End the loop, cancel what runs in it, and wait for the thread. May be repeated."""
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

    def leave(self, last: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run ``last`` in the loop, then end it. Does not wait: finalizers in any thread may call this."""

        async def end() -> None:
            try:
                await last()
            finally:
                self._stopped = True
                assert self._stop is not None
                self._stop.set()

        self.spawn(end)

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
            with contextlib.suppress(RuntimeError):  # the loop has already ended
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
        self._loop.set_exception_handler(_log_failure)
        self._stop = asyncio.Event()
        self._ready.set()
        await self._stop.wait()


class Engine:
    """What facades hold of the loop: it is collected with the last of them."""

    def __init__(self) -> None:
        self.loop = EngineLoop()
        #: The facade of the connection; it lives as long as anything that was made from it.
        self.connection: object = None

    @property
    def pid(self) -> int:
        """The process that it belongs to."""
        return self.loop.pid

    @property
    def is_foreign(self) -> bool:
        """Whether this is a forked child of the process that the engine runs in."""
        return self.loop.is_foreign

    @property
    def is_stopped(self) -> bool:
        """Whether it accepts no more calls."""
        return self.loop.is_stopped

    def run(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """See :meth:`EngineLoop.run`."""
        return self.loop.run(function, *args, **kwargs)

    def finish(self, function: Callable[[], Coroutine[Any, Any, T]], timeout: float | None = None) -> T:
        """See :meth:`EngineLoop.finish`."""
        return self.loop.finish(function, timeout)

    def spawn(self, function: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """See :meth:`EngineLoop.spawn`."""
        self.loop.spawn(function)

    def stop(self) -> None:
        """See :meth:`EngineLoop.stop`."""
        self.loop.stop()
