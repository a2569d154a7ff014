"""No receiver and no listener may harm the connection, or the receivers beside it.

What one raises is reported to the exception handler of the event loop, as asyncio does with callbacks, and
told as an event. Then the connection goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from jetspark.connection.events import CallbackFailed
from jetspark.connection.listening import report_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jetspark.connection.events import Event
    from jetspark.connection.sink import Sink

# CancelledError: something that the receiver looked at was cancelled, and not the connection.
FAILURES = (Exception, asyncio.CancelledError)


class Guard:
    """Calls receivers, and ``emit``s events, for a connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, emit: Callable[[Event], None]) -> None:
        self._loop = loop
        self._emit = emit

    def call(self, sinks: Iterable[Sink], callback: str, *args: Any) -> None:
        """Call a method of each receiver, whatever the others do."""
        for sink in list(sinks):
            try:
                getattr(sink, callback)(*args)
            except FAILURES as error:
                self.failed(sink, callback, error)

    def tell(self, event: Event) -> None:
        """Tell an event, whatever the listener and those who observe the connection do."""
        try:
            self._emit(event)
        except FAILURES as error:
            self._report(f"telling of {type(event).__name__}", error)

    def failed(self, sink: Sink, callback: str, error: BaseException) -> None:
        """A method of a receiver raised."""
        self._report(f"{callback} of the subscription to {sink.subject!r} (sid {sink.sid})", error)
        self.tell(CallbackFailed(sink.subject, error))

    def _report(self, what: str, error: BaseException) -> None:
        with contextlib.suppress(*FAILURES):  # of a handler of the application's own
            report_failure(self._loop, f"{what} failed", error)
