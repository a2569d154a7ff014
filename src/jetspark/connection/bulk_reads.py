"""Fewer, larger reads on a link while a reader consumes from it in bulk.

Theory of operation
===================

By default the event loop wakes up for every few hundred messages. Reading columns costs next to nothing per
message, so there the wake-ups cost more than the messages do, most of all on a machine whose cores are busy
with the server. Readers of columns therefore declare that they read in bulk (``Core.bulk_reads``). While
there is at least one, the link has a :class:`BulkReads`.

After a large read, the kernel wakes the loop only when ``WAIT_FOR`` bytes have arrived (SO_RCVLOWAT); it also
makes room for them. Three things end the wait earlier: ``TICK`` seconds without a read, any write to the
link, and the end of the connection. A small read does not start a wait. So:

- while messages pour in, any message of this connection may be late, by at most ``TICK``;
- the last messages of a backlog wait once, for at most ``TICK``;
- messages that arrive one by one do not wait at all, nor does a connection without a bulk reader.

This needs Linux, which checks again what has arrived when the mark is lowered (the BSDs would wait until
more arrives), and asyncio's own plain sockets, which read ``WAIT_FOR`` bytes at once. Everywhere else,
including TLS and uvloop, nothing changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from typing import Any

TICK = 0.004
LARGE_READ = 32_768
"""After a read of at least this many bytes, more data is expected to follow."""
WAIT_FOR = 262_144


class BulkReads:
    """Bulk reads on one link, until ``end`` or ``close``."""

    __slots__ = ("_loop", "_read_at", "_timer", "_transport", "waits")

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._read_at = 0.0
        self.waits = False
        """Whether the kernel currently wakes us only after many bytes."""

    @staticmethod
    def possible(transport: Any) -> bool:
        return sys.platform == "linux" and getattr(transport, "max_size", 0) >= WAIT_FOR

    def on_read(self, size: int) -> None:
        self._read_at = self._loop.time()
        if size >= LARGE_READ and not self.waits:
            self.waits = True
            self._set_mark(WAIT_FOR)
            if self._timer is None:
                self._timer = self._loop.call_later(TICK, self._tick)

    def on_write(self) -> None:
        """Stop waiting: what arrives next may be the answer to this write."""
        if self.waits:
            self._wake()

    def end(self) -> None:
        """Read as usual from now on."""
        self.close()
        self.on_write()

    def close(self) -> None:
        """The link is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        if not self.waits:
            return
        due = self._read_at + TICK
        if self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._tick)
        else:
            self._wake()

    def _wake(self) -> None:
        self.waits = False
        self._set_mark(1)

    def _set_mark(self, count: int) -> None:
        sock = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the socket is gone
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
