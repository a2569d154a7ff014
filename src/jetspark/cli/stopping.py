"""Ctrl-C and SIGTERM as an orderly end: commands that stay finish what they hold and exit with 0."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Flag:
    """A flag that a signal handler may set while the main thread waits for it.

    A threading.Event is not safe here: if the signal arrives while ``wait`` holds the lock, ``set`` hangs.
    """

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def wait(self, seconds: float) -> bool:
        """Whether it is set after this time. Setting it does not end the wait early: use short timeouts."""
        if not self._is_set:
            time.sleep(seconds)
        return self._is_set


@asynccontextmanager
async def stopped_by_signal() -> AsyncIterator[asyncio.Event]:
    """An event that the first signal sets. A second one interrupts as usual."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stopped.set()
        restore()

    def restore() -> None:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    for number in SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield stopped
    finally:
        if not stopped.is_set():
            restore()


async def until(stopped: asyncio.Event, work: Awaitable[None]) -> None:
    """Do the work; when it is told to stop, cancel it and return."""
    task = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        for one in (task, waiting):
            one.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)
