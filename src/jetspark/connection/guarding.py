"""Keeps failing receivers and listeners from harming the connection or the other receivers.

What they raise is reported to the event loop's exception handler, as asyncio does for callbacks, and as an
event. Then the connection continues.
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

# CancelledError: something that the receiver used was cancelled, not the connection.
FAILURES = (Exception, asyncio.CancelledError)


class Guard:
    """Calls receivers and ``emit``s events for a connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, emit: Callable[[Event], None]) -> None:
        self._loop = loop
        self._emit = emit

    def call(self, sinks: Iterable[Sink], callback: str, *args: Any) -> None:
        """Call a method of each receiver, even if others fail."""
        for sink in list(sinks):
            try:
                getattr(sink, callback)(*args)
            except FAILURES as error:
                self.failed(sink, callback, error)

    def tell(self, event: Event) -> None:
        """Emit an event, even if the listener or an observer fails."""
        try:
            self._emit(event)
        except FAILURES as error:
            self._report(f"telling of {type(event).__name__}", error)

    def failed(self, sink: Sink, callback: str, error: BaseException) -> None:
        """A method of a receiver raised."""
        self._report(f"{callback} of the subscription to {sink.subject!r} (sid {sink.sid})", error)
        self.tell(CallbackFailed(sink.subject, error))

    def _report(self, what: str, error: BaseException) -> None:
        with contextlib.suppress(*FAILURES):  # raised by the application's own handler
            report_failure(self._loop, f"{what} failed", error)
