"""What tests share beside fixtures: waiting for conditions, and names nobody else uses."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from jetspark import StorageType, StreamConfig, blocking
from jetspark.errors import NoSuitablePeers, RequestTimeout
from jetspark.server import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

T = TypeVar("T")
LIMIT = 120.0
"""Seconds after which a wait has failed.

A safety net and no promise: only what hangs gets there. So it has room for a busy machine, and for processes
that stand still for seconds.
"""
_POLL = 0.01
# "At once", said so that a busy machine does not matter: what must not be waited for takes FOREVER, and the
# test has PROMPT to be done without it.
FOREVER = 120.0
PROMPT = 60.0
_numbers = itertools.count(1)


def unique(name: str = "T") -> str:
    """A name no other test uses, valid as a stream, consumer, bucket name and as a subject token."""
    return f"{name}_{os.getpid()}_{next(_numbers)}"


def gone(pid: int) -> bool:
    """Whether no such process runs; a zombie (nobody reaps orphans in a bare container) counts as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def eventually(predicate: Callable[[], T | Awaitable[T]], timeout: float = LIMIT) -> T:
    """Wait until ``predicate()`` (plain or async) is true and return its value; fail after ``timeout``."""
    deadline = time.monotonic() + timeout
    while True:
        value: Any = predicate()
        if inspect.isawaitable(value):
            value = await value
        if value:
            found: T = value
            return found
        if time.monotonic() >= deadline:
            raise AssertionError(f"not so after {timeout} s: {_describe(predicate)}; last value: {value!r}")
        await asyncio.sleep(_POLL)


def eventually_sync(predicate: Callable[[], T], timeout: float = LIMIT) -> T:
    """The same for tests without an event loop."""
    deadline = time.monotonic() + timeout
    while not (value := predicate()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not so after {timeout} s: {_describe(predicate)}; last value: {value!r}")
        time.sleep(_POLL)
    return value


@contextlib.contextmanager
def three_nodes(config: str = "", **options: Any) -> Iterator[Cluster]:
    """A new cluster that makes replicas: what it may refuse before is in `Cluster.wait_ready`.

    ``options`` are those of the connection with which that is tried.
    """
    with Cluster(3, config=config) as cluster:
        with blocking.connect(cluster.urls, **options) as nc:
            js = nc.jetstream()
            ready = StreamConfig(name="READY", subjects=["ready"], storage=StorageType.MEMORY, num_replicas=3)

            def made() -> bool:
                with contextlib.suppress(NoSuitablePeers):
                    js.create_stream(ready)
                    return True
                return False

            eventually_sync(made)
            js.delete_stream("READY")
        yield cluster


async def until_answered(ask: Callable[[], Awaitable[T]], timeout: float = LIMIT) -> T:
    """Ask a cluster again what it has left unanswered.

    Who has just connected may be answered by a server that has not yet heard of the inbox: such an answer is
    dropped. So it is when a leader changes.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return await ask()
        except RequestTimeout:
            if time.monotonic() >= deadline:
                raise


def when_answered(ask: Callable[[], T], timeout: float = LIMIT) -> T:
    """The same for blocking calls."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return ask()
        except RequestTimeout:
            if time.monotonic() >= deadline:
                raise


class Stalls:
    """``async with Stalls() as stalls``: how many ``seconds`` of the block this process could not run.

    For limits on a time, which a busy machine would break: those seconds are not the library's.
    """

    def __init__(self) -> None:
        self._sum = 0.0
        self._since = 0.0

    @property
    def seconds(self) -> float:
        return self._sum + self._late()

    def _late(self) -> float:
        return max(0.0, time.monotonic() - self._since - 2 * _POLL)

    async def _watch(self) -> None:
        while True:
            self._since = time.monotonic()
            await asyncio.sleep(_POLL)
            self._sum += self._late()

    async def __aenter__(self) -> Self:
        self._since = time.monotonic()
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._sum, self._since = self.seconds, float("inf")
        self._watching.cancel()
        await asyncio.wait([self._watching])


def _describe(predicate: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(predicate).strip()
    except (OSError, TypeError):
        return repr(predicate)
