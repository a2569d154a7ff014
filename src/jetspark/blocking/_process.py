"""Which process this is, cheap enough to ask for each message.

``os.getpid`` is a system call; the number can only change in a fork, and Python tells us of those.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from jetspark.errors import ConnectionClosed


class Clearable(Protocol):
    """Something a child must find empty."""

    def clear(self) -> None:
        """Empty it."""


pid = os.getpid()

emptied_by_fork: weakref.WeakSet[Clearable] = weakref.WeakSet()
"""Buffers of received messages: a forked child finds them empty, so that readers need not ask each time."""


def _after_fork() -> None:
    global pid
    pid = os.getpid()
    for buffer in list(emptied_by_fork):
        buffer.clear()


os.register_at_fork(after_in_child=_after_fork)


def forked(owner: int) -> ConnectionClosed:
    """The error for a connection of process ``owner`` that is used in this one."""
    return ConnectionClosed(
        f"this connection belongs to process {owner} and this is process {pid}, forked from it: "
        "a fork takes no threads along; open a new connection in the child with jetspark.blocking.connect()"
    )
