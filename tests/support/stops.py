"""Gets the tests ready for `make soak-tests` to stop them, and their servers, at random.

A server that a test has suspended must stay so.
The tests and the stopper agree through a folder: a file with the process id of each server that a test holds
suspended, and a lock. A test writes the file and stops the server under the lock; the stopper looks for the
file and lets the server go on under the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING

from jetspark import blocking, connecting
from jetspark.server import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = "JETSPARK_SOAK_STOPS"
"""The environment variable that names the folder. Every process of a soak run has it, and is known by it."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    with open(folder / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def suspended(folder: Path, pid: int) -> bool:
    """Whether a test holds this server suspended."""
    return (folder / str(pid)).exists()


def expect_stops() -> None:
    """Get ready, in a run in which processes are stopped.

    The library's own time limits would end in vain what stands still for 2 seconds, the default time to
    connect. Tests that set a limit keep theirs.
    """
    if FOLDER in os.environ:
        announce_suspended_servers()
        for connect in (connecting.connect, blocking.connect):
            defaults = inspect.unwrap(connect).__kwdefaults__
            assert defaults is not None
            defaults.update(connect_timeout=10.0, request_timeout=20.0)


def announce_suspended_servers() -> None:
    """Tell the stopper of each server that a test of this process suspends."""
    folder = Path(os.environ[FOLDER])
    suspend, resume = Server.suspend, Server.resume

    @functools.wraps(suspend)
    def announced(server: Server) -> None:
        with locked(folder):
            (folder / str(server.pid)).touch()
            suspend(server)

    @functools.wraps(resume)
    def withdrawn(server: Server) -> None:
        with locked(folder):
            resume(server)
            (folder / str(server.pid)).unlink(missing_ok=True)

    Server.suspend, Server.resume = announced, withdrawn  # type: ignore[assignment, method-assign]
