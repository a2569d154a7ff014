"""How long trouble that may pass is waited out.

A server that restarts, or a cluster that elects a leader, is away for seconds. A task or a query that gave up
at once would cost far more than the wait: in local mode Spark does not try a task again, and a streaming
query ends with its first failed micro-batch. What can't pass (refused credentials, a bad certificate, a
missing stream) is never waited for.
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
#: What a server that restarts or elects a leader answers, or does not answer.
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
    """Call it again while it fails with what may pass. ``what`` it is doing is logged once."""
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
