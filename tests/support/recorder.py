"""A listener that remembers what happened to a connection, and waits for it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from support.helpers import LIMIT

if TYPE_CHECKING:
    from jetspark.events import Event

E = TypeVar("E", bound="Event")


class Recorder:
    """Pass it as ``listener``; ``events`` holds everything in order, ``times`` when (monotonic)."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.times: list[float] = []
        self._news = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.times.append(time.monotonic())
        self._news.set()

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def names(self, *without: str) -> list[str]:
        """The names of all events in order."""
        names = [type(event).__name__ for event in self.events]
        return [name for name in names if name not in without]

    def time_of(self, kind: type[Event]) -> float:
        """When the first event of this kind came."""
        return next(at for event, at in zip(self.events, self.times, strict=True) if isinstance(event, kind))

    async def wait(self, kind: type[E], count: int = 1, *, seconds: float = LIMIT) -> E:
        """Wait for the ``count``-th event of a kind, counted from the beginning."""
        try:
            async with asyncio.timeout(seconds):
                while len(self.of(kind)) < count:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"no {kind.__name__} number {count} in {seconds} s: {self.events}") from None
        return self.of(kind)[count - 1]
