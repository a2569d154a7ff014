"""The id of the current process, cheap enough to check for each message.

``os.getpid`` is a system call. The id can change only in a fork, and Python notifies us of those.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from jetspark.errors import ConnectionClosed


class Clearable(Protocol):
    """Something that must be empty in a forked child."""

    def clear(self) -> None:
        """Empty it."""


pid = os.getpid()

emptied_by_fork: weakref.WeakSet[Clearable] = weakref.WeakSet()
"""Buffers of received messages: a forked child finds them empty, so readers need not check each time."""


def _after_fork() -> None:
    global pid
    pid = os.getpid()
    for buffer in list(emptied_by_fork):
        buffer.clear()


os.register_at_fork(after_in_child=_after_fork)


def forked(owner: int) -> ConnectionClosed:
    """The error for a connection of the process ``owner`` that is used in this process."""
    return ConnectionClosed(
        f"this connection belongs to process {owner} and this is process {pid}, forked from it: "
        "a fork takes no threads along; open a new connection in the child with jetspark.blocking.connect()"
    )
