"""The future of an ack: a ``concurrent.futures.Future`` that costs a fraction of one.

The standard one makes a lock, a condition and two lists when it is born and notifies when it is done: more
than publishing a message takes. Here all futures of a publisher share one lock and one crowd of sleepers,
which the loop wakes once for all acks of a received chunk. ``wait``, ``as_completed`` and
``asyncio.wrap_future`` work as with any other.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError, Future
from threading import get_ident
from typing import TYPE_CHECKING, Any

from jetspark.blocking import _process
from jetspark.blocking._threads import ThreadWaiters
from jetspark.connection.listening import report_failure
from jetspark.errors import JetsparkError
from jetspark.jetstream.models.puback import PubAck

if TYPE_CHECKING:
    from jetspark.blocking._client import EngineConnection

# As concurrent.futures spells them; wait() and as_completed() look at them.
_PENDING = "PENDING"
_FINISHED = "FINISHED"
_CANCELLED = ("CANCELLED", "CANCELLED_AND_NOTIFIED")


class AckDesk:
    """What the futures of a publisher share."""

    def __init__(self, client: EngineConnection) -> None:
        self.pid = client.pid
        self.loop = client._loop
        self.loop_thread = client._thread
        self.lock = threading.RLock()
        # For concurrent.futures. Entering it is a call in Python, entering its lock is not.
        self.condition = threading.Condition(self.lock)
        self.sleepers = ThreadWaiters()


class AckFuture(Future[PubAck]):
    """See the module. Callbacks run in the connection's thread, so they must not block."""

    _state = _PENDING
    _result: Any = None
    _exception: BaseException | None = None
    _watchers: list[Any] | None = None
    _callbacks: list[Any] | None = None

    def __init__(self, desk: AckDesk) -> None:
        self._desk = desk

    # What concurrent.futures reaches for

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        return self._desk.condition

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        if self._watchers is None:
            self._watchers = []
        return self._watchers

    @property
    def _done_callbacks(self) -> list[Any]:
        if self._callbacks is None:
            self._callbacks = []
        return self._callbacks

    # In any thread

    def done(self) -> bool:
        return self._state is not _PENDING

    def cancel(self) -> bool:
        """Stop waiting for the ack. The message is on its way all the same."""
        cancelled = super().cancel()
        self._desk.sleepers.wake_all()
        return cancelled

    def result(self, timeout: float | None = None) -> PubAck:
        self._wait(timeout)
        if self._exception is not None:
            try:
                raise self._exception
            finally:
                del self  # or the error's traceback would hold the future that holds the error
        ack: PubAck = self._result
        return ack

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._wait(timeout)
        return self._exception

    def _wait(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        desk = self._desk
        while not self.done():
            if _process.pid != desk.pid:
                raise _process.forked(desk.pid)
            if get_ident() == desk.loop_thread:
                raise JetsparkError(
                    "to wait for an ack in the connection's own thread would be for ever: callbacks of "
                    "futures must not wait"
                )
            left = None if deadline is None else deadline - time.monotonic()
            if not desk.sleepers.wait(self.done, left) and not self.done():
                raise TimeoutError(f"no ack within {timeout:g}s; it may still come")
        if self._state in _CANCELLED:
            raise CancelledError

    # In the loop's thread, which then wakes the sleepers once for all

    def set_result(self, result: PubAck) -> None:
        self._finish(result, None)

    def set_exception(self, exception: BaseException | None) -> None:
        self._finish(None, exception)

    def _finish(self, result: PubAck | None, error: BaseException | None) -> None:
        with self._desk.lock:
            if self._state is not _PENDING:
                return  # cancelled a moment ago
            self._result, self._exception = result, error
            self._state = _FINISHED
            for watcher in self._watchers or ():
                if error is None:
                    watcher.add_result(self)
                else:
                    watcher.add_exception(self)
        for callback in self._callbacks or ():
            try:
                callback(self)
            except BaseException as failure:
                # SystemExit too: it would end the loop, and with it the connection, in silence.
                report_failure(self._desk.loop, "callback of a publisher's future raised", failure)
