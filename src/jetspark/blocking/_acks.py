"""The future of an ack, for threads: a future of ``concurrent.futures`` that knows its connection.

Waiting for it in the connection's own thread or in a forked process would never end, so both raise. A future
that is cancelled while its ack arrives stays cancelled. Callbacks run in the connection's thread and must not
end it.
"""

from __future__ import annotations

import contextlib
import functools
from concurrent.futures import Future, InvalidStateError, wait
from threading import get_ident
from typing import TYPE_CHECKING, Any

from jetspark.blocking import _process
from jetspark.connection.listening import report_failure
from jetspark.errors import JetsparkError
from jetspark.jetstream.models.puback import PubAck

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetspark.blocking._client import EngineCore


class AckFuture(Future[PubAck]):
    """See the module docstring."""

    def __init__(self, core: EngineCore) -> None:
        super().__init__()
        self._core = core

    def result(self, timeout: float | None = None) -> PubAck:
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        if self.done():
            return
        if _process.pid != self._core.pid:
            raise _process.forked(self._core.pid)
        if get_ident() == self._core.thread:
            raise JetsparkError(
                "waiting for an ack in the connection's own thread would never end: callbacks of "
                "futures must not wait"
            )
        if not wait([self], timeout).done:
            raise TimeoutError(f"no ack within {timeout:g}s; it may still come")

    def add_done_callback(self, fn: Callable[[Future[PubAck]], Any]) -> None:
        super().add_done_callback(functools.partial(self._call, fn))

    def _call(self, callback: Callable[[Future[PubAck]], Any], _: Future[PubAck]) -> None:
        try:
            callback(self)
        except BaseException as failure:
            if get_ident() != self._core.thread:
                raise
            # SystemExit too: it would silently end the loop, and with it the connection.
            report_failure(self._core.loop, "callback of a publisher's future raised", failure)

    # In the connection's thread; the user may cancel the future at the same moment

    def set_result(self, result: PubAck) -> None:
        with contextlib.suppress(InvalidStateError):
            super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        with contextlib.suppress(InvalidStateError):
            super().set_exception(exception)
