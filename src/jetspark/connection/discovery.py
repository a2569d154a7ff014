"""Adds the servers that a cluster announces to the pool, a bounded number of times per second.

Each INFO replaces the previous ones. So if several arrive within ``INTERVAL``, only the newest is used, and
an INFO causes at most one event and one log line, however much it contains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetspark._log import get_logger
from jetspark.connection import events as ev
from jetspark.connection.urls import discovered_urls

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from jetspark.connection.pool import ServerPool
    from jetspark.connection.urls import ServerURL

logger = get_logger("connection")

INTERVAL = 1.0
# A hostile or broken server must not fill the pool.
MAX_ANNOUNCED = 1000


class Discovery:
    """Adds announced servers to the ``pool`` and reports new ones with ``emit``."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pool: ServerPool, emit: Callable[[ev.Event], None]
    ) -> None:
        self._loop = loop
        self._pool = pool
        self._emit = emit
        self._timer: asyncio.TimerHandle | None = None
        self._newest: tuple[list[str], ServerURL] | None = None
        self._unreadable = 0

    def announce(self, entries: list[str], link: ServerURL) -> None:
        """An INFO from the server at ``link`` lists these entries."""
        self._newest = (entries[:MAX_ANNOUNCED], link)
        if self._timer is None:
            self._take()
            self._timer = self._loop.call_later(INTERVAL, self._on_timer)

    def link_ended(self) -> None:
        """Apply what is left at once: the choice of the next server depends on it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._take()

    def _on_timer(self) -> None:
        self._timer = None
        if self._newest is not None:
            self._take()
            self._timer = self._loop.call_later(INTERVAL, self._on_timer)

    def _take(self) -> None:
        if self._newest is None:
            return
        (entries, link), self._newest = self._newest, None
        found, unreadable = discovered_urls(entries, link)
        if unreadable:
            self._unreadable += len(unreadable)
            logger.warning(
                "%s announced %d addresses that can't be read, the first %.100r; %d in all so far",
                link.hostport,
                len(unreadable),
                unreadable[0],
                self._unreadable,
            )
        fresh = self._pool.add_discovered(found)
        if fresh:
            self._emit(ev.ServersDiscovered(tuple(url.hostport for url in fresh)))
