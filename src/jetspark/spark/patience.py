"""How long tasks and queries wait for transient failures to pass.

A server that restarts, or a cluster that elects a leader, is away for seconds. Giving up at once would cost
far more than the wait: in local mode Spark does not retry tasks, and a streaming query ends with its first
failed micro-batch. Permanent failures (refused credentials, a bad certificate, a missing stream) are reported
at once.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, TypeVar

from jetspark.errors import (
    ConnectionLost,
    JetStreamNotEnabled,
    NoRespondersError,
    RequestTimeout,
    Unavailable,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetspark.errors import JetsparkError

log = logging.getLogger("jetspark.spark")

T = TypeVar("T")

#: Seconds without progress after which a task or a query gives up.
PATIENCE = 60.0
#: Errors that occur while a server restarts or elects a leader.
PASSING = (ConnectionLost, RequestTimeout, NoRespondersError, JetStreamNotEnabled, Unavailable)


class Patience:
    """How long something may fail without progress."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._pause = 0.05

    def lost(self, progress: bool, error: JetsparkError) -> None:
        """Another attempt failed: wait a little, or give up with the reason."""
        now = time.monotonic()
        if progress:
            self._since, self._pause = now, 0.05
        if now - self._since > PATIENCE:
            raise error
        time.sleep(self._pause)
        self._pause = min(2.0, self._pause * 2)


def patiently(call: Callable[[], T], what: str) -> T:
    """Retry while the call fails with a transient error. ``what`` names the work in one log line."""
    patience = Patience()
    told = False
    while True:
        try:
            return call()
        except PASSING as error:
            if not told:
                log.warning("%s: %s; trying again for %g s", what, error, PATIENCE)
                told = True
            patience.lost(False, error)
