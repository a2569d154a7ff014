"""Fewer, larger reads while a flood of messages comes in.

Left alone, the loop wakes up for every few hundred messages, and on a machine that has no core to spare the
waking costs more than the messages do. A flood is many large reads in a row while we say nothing; while it
lasts, the kernel lets us sleep until more has come (SO_RCVLOWAT), for which it also makes room. When nothing
was read for a tick, what is there waits no longer: so nothing is ever later by more than two ticks, and
outside of a flood nothing is later at all. Who knows that the end is near says so, and we sleep no more. The
end of the connection wakes us in any case, and so does a full buffer.

Whoever answers us is no flood, however much it is: the end of each answer would wait for a tick, and we for
the end of the answer. So a word of ours wakes us, and it takes large reads in a row to sleep again: fewer of
them with each time that enough came, many more once we had slept on the end of an answer.

Only asyncio's own plain sockets have the settings that this needs; others are left as they are. And only
Linux is known to look again at what is there when less is enough: the BSDs would keep it until more comes.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import sys
from typing import Any

from jetspark.wire.columns import Columns, PackedColumns

LARGE_READ = 32_768
"""Bytes of a read that may be part of a flood."""
LARGE_READS = 16
"""So many in a row begin it, as long as nothing else is known of the peer."""
FEWEST_READS = 2
MOST_READS = 1_024
TICK = 0.004
QUIET_TICKS = 10
"""So many ticks without a large read end it."""

# What asyncio reads at once. Reading more small messages would keep the loop busy for too long, unless they
# cost next to nothing, as in columns. While large ones are coming in, which the part of one at the end of a
# read tells, it cuts fewer of them in two.
FULL_READ = 262_144
MORE = 1_048_576
MORE_WAIT = 524_288
LARGE_MESSAGE = 2_048
_IN_COLUMNS = (PackedColumns, Columns)

# Lowering the mark wakes us.
_MAY_SLEEP = sys.platform == "linux"


@functools.cache
def keep_memory() -> None:
    """Have the allocator keep what large reads and their record batches take.

    glibc gives a block beyond a threshold back to the kernel at once and gets the next one page by page,
    which costs more than filling it. The threshold grows to the size of the largest such block that was
    freed, so we free one; what may stay with the process for it are 16 MiB. Other allocators don't mind.
    """
    bytes(8 * 1_048_576)


class Flood:
    """Watches the reads of one link and, in a flood, slows down its waking."""

    __slots__ = (
        "_in_a_row",
        "_large",
        "_loop",
        "_quiet",
        "_reads",
        "_sleeping",
        "_slept_on",
        "_timer",
        "_transport",
        "lasts",
        "needed",
    )

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.lasts = False
        self.needed = LARGE_READS
        """Large reads in a row, without a word of ours, after which we sleep."""
        self._in_a_row = 0
        self._large = False  # one was large, in this tick
        self._reads = 0  # of any size, in this tick
        self._quiet = 0
        self._sleeping = False  # the kernel wakes us late
        self._slept_on = 0  # so many large reads from now on tell that the peer had only paused

    def on_read(self, size: int, held: int, events: list[Any]) -> None:
        """A read of ``size`` bytes made ``events``; ``held`` bytes are the beginning of a message."""
        self._reads += 1
        if size < LARGE_READ:
            self._in_a_row = 0
            return
        self._large = True
        self._in_a_row += 1
        if self._slept_on:
            self._slept_on -= 1
        elif self._sleeping and self.needed > FEWEST_READS:
            self.needed -= 1
        if self._in_a_row < self.needed:
            return
        if not self.lasts:
            if getattr(self._transport, "max_size", None) != FULL_READ:
                return
            self._begin()
        more = held >= LARGE_MESSAGE or (bool(events) and type(events[-1]) in _IN_COLUMNS)
        if more and self._transport.max_size != MORE:
            keep_memory()
            self._transport.max_size = MORE
            self._sleeping = False
        if not self._sleeping:
            self._sleeping = self._wake_for(MORE_WAIT if self._transport.max_size == MORE else FULL_READ)

    def on_write(self) -> None:
        """We have said something, and what comes now may be the answer."""
        self._in_a_row = 0
        if self._sleeping:
            self._wake()
        if self._slept_on:
            self._slept_on = 0
            self.needed = min(self.needed * 4, MOST_READS)

    def on_end(self) -> None:
        """So little is left that the mark would not be met."""
        self._in_a_row = 0
        if self._sleeping:
            self._wake()

    def close(self) -> None:
        """The link is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self.lasts = True
        self._quiet = 0
        self._timer = self._loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        if not self._reads and self._sleeping:
            self._wake()
            # The first is what we slept on.
            self._slept_on = 2
        self._quiet = 0 if self._large else self._quiet + 1
        self._reads, self._large = 0, False
        if self._quiet < QUIET_TICKS:
            self._timer = self._loop.call_later(TICK, self._tick)
            return
        self._timer = None
        self.lasts = False
        self._in_a_row = 0
        self._transport.max_size = FULL_READ
        if self._sleeping:
            self._wake()

    def _wake(self) -> None:
        self._sleeping = False
        self._wake_for(1)

    def _wake_for(self, count: int) -> bool:
        """Have the kernel wake us for so many bytes; False where it can't."""
        if not _MAY_SLEEP:
            return False
        sock = self._transport.get_extra_info("socket")
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
        except (OSError, AttributeError):
            return False
        return True
