"""How often an idle source asks the server, as arithmetic. Time is an argument.

Theory of operation
-------------------
Spark asks an idle source for news about ninety times per second, and relies on every answer:
``processAllAvailable()`` returns when a question that was put after the call is answered with "nothing new".
So each answer needs a look at the server that began after the question came. To keep requests rare, the
source waits *before* the look, so that the answer is as fresh as possible. After news it waits 0.05 s, then
twice as long each time, up to ``IDLE_INTERVAL``. A watch ends the wait when there is
something new.

A question that comes after a pause is answered at once: a trigger interval, or another source of the same
query, already sets the pace, and a wait would slow down the other source.

With many streams a look is expensive, about 700 bytes per stream. Beyond ``MANY_STREAMS`` the waits grow with
them.
"""

from __future__ import annotations

#: Seconds between two looks: short after news, doubling to the idle interval.
BUSY_INTERVAL = 0.05
IDLE_INTERVAL = 1.0
#: From this many streams on the idle interval grows in proportion, up to ``LONGEST_INTERVAL`` seconds.
MANY_STREAMS = 200
LONGEST_INTERVAL = 10.0
#: Seconds between answer and next question that are a pause. Spark's own polling is at 0.01 s, and its
#: smallest micro-batch takes longer than this.
PAUSE = 0.1


def idle_interval(streams: int) -> float:
    """Seconds between two looks at this many streams when nothing happens."""
    return min(LONGEST_INTERVAL, IDLE_INTERVAL * max(1.0, streams / MANY_STREAMS))


class Pace:
    """When the source looks at the server again."""

    def __init__(self) -> None:
        self.interval = 0.0
        self._looked = float("-inf")
        self._answered = float("-inf")

    def wait(self, now: float) -> float:
        """Seconds to wait before the look for a question that came ``now``."""
        if now - self._answered > PAUSE:
            return 0.0
        return max(0.0, self._looked + self.interval - now)

    def looked(self, now: float) -> None:
        """The server is asked now."""
        self._looked = now

    def news(self) -> None:
        """There is something to read."""
        self.interval = 0.0
        self._answered = float("-inf")

    def nothing(self, now: float, streams: int) -> None:
        """The question is answered with "nothing new" in this many streams."""
        self.interval = min(idle_interval(streams), max(BUSY_INTERVAL, self.interval * 2))
        self._answered = now
