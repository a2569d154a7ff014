"""Tasks that sleep until something has happened."""

from __future__ import annotations

import asyncio


class Waiters:
    """Waiting tasks. All of them are woken together, and each checks for itself what has happened."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    def __bool__(self) -> bool:
        return bool(self._futures)

    def __len__(self) -> int:
        return len(self._futures)

    async def wait(self) -> None:
        """Sleep until ``wake``. A wait that is cancelled leaves nothing behind."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        try:
            await future
        finally:
            # Cancelled before it was woken; a wake replaces the list.
            if future in self._futures:
                self._futures.remove(future)

    def wake(self) -> None:
        """Wake all tasks that are waiting now."""
        if not self._futures:
            return
        futures, self._futures = self._futures, []
        for future in futures:
            if not future.done():
                future.set_result(None)
