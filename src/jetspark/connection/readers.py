"""The readers of a subscription, so that draining the connection can wait until they have read the rest."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TypeAlias

Reader: TypeAlias = "asyncio.Task[object] | threading.Thread | None"

# Seconds between two checks of threads: a thread that ends in the middle of its loop does not say so.
_LOOK = 0.1


class Readers:
    """The tasks, or threads of the blocking facade, that take messages and have not reached the end.

    A reader that has reached the end has acked, or answered, what it had. Any thread may call the methods.
    """

    __slots__ = ("_lock", "_news", "_readers", "nobody")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: frozenset[Reader] = frozenset()
        # Set by a drain that waits: done when a reader may have finished.
        self._news: asyncio.Future[None] | None = None
        #: Whether there are no readers; an attribute, because it is checked for each message.
        self.nobody = True

    def add(self, reader: Reader) -> None:
        """The reader takes messages from now on."""
        if reader not in self._readers:
            with self._lock:
                self._readers = frozenset(filter(_lives, self._readers)) | {reader}
                self.nobody = False

    def remove(self, reader: Reader) -> None:
        """The reader has reached the end, or can't be waited for."""
        if reader in self._readers:
            with self._lock:
                self._readers -= {reader}
                self.nobody = not self._readers
            self._tell()

    def clear(self) -> None:
        """There is nothing more to read."""
        with self._lock:
            self._readers = frozenset()
            self.nobody = True
        self._tell()

    async def finished(self, asker: Reader, timeout: float) -> bool:
        """Wait until all but ``asker`` have reached the end or ended; False after ``timeout`` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            news = self._news = loop.create_future()
            left = [reader for reader in self._readers if reader is not asker and _lives(reader)]
            if not left:
                return True
            seconds = deadline - loop.time()
            if seconds <= 0:
                return False
            tasks = [reader for reader in left if isinstance(reader, asyncio.Task)]
            if len(tasks) < len(left):
                seconds = min(seconds, _LOOK)
            await asyncio.wait([news, *tasks], timeout=seconds, return_when="FIRST_COMPLETED")

    def _tell(self) -> None:
        news = self._news
        if news is not None:
            # The loop is closed only after the drain.
            with contextlib.suppress(RuntimeError):
                news.get_loop().call_soon_threadsafe(_set, news)


def _lives(reader: Reader) -> bool:
    if isinstance(reader, threading.Thread):
        return reader.is_alive()
    return reader is not None and not reader.done()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
