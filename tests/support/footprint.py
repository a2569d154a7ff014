"""What a process and a server hold on to: memory, descriptors, tasks, threads, objects, subscriptions."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import threading
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jetspark.connection.client import Connection
from jetspark.connection.sink import Sink
from support.helpers import LIMIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetspark.server import Server

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MB = 1_000_000


def rss() -> float:
    """Resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / _MB


def descriptors() -> dict[str, str]:
    """Open descriptors and what they lead to."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue  # the one that listed the folder
    return found


def threads() -> list[str]:
    """Names of all threads but those that asyncio keeps for blocking calls of the test itself."""
    return sorted(each.name for each in threading.enumerate() if not each.name.startswith("asyncio_"))


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one process holds at a moment."""

    descriptors: int
    tasks: int
    threads: int
    objects: int
    """Connections and their subscriptions that are still alive, after a collection."""

    @classmethod
    def now(cls) -> Footprint:
        gc.collect()
        objects = sum(isinstance(each, Connection | Sink) for each in gc.get_objects())
        return cls(len(descriptors()), len(asyncio.all_tasks()), len(threads()), objects)

    @classmethod
    async def settled(cls, start: Footprint, patience: float = 15.0) -> Footprint:
        """The footprint once it is as small as at the start, or when patience ends."""
        for _ in range(round(patience / 0.5)):
            if not cls.now().excess(start):
                break
            await asyncio.sleep(0.5)
        return cls.now()

    def excess(self, start: Footprint) -> list[str]:
        """What is more now than at the start, named where there are names."""
        found = []
        for name in ("descriptors", "tasks", "threads", "objects"):
            before, after = getattr(start, name), getattr(self, name)
            if after > before:
                found.append(f"{name}: {before} at the start, {after} at the end; {_names(name)}")
        return found


def _names(kind: str) -> str:
    if kind == "descriptors":
        held = [target.split(":")[0] for target in descriptors().values()]
    elif kind == "tasks":
        held = [task.get_name() for task in asyncio.all_tasks()]
    elif kind == "threads":
        held = threads()
    else:
        held = [type(each).__name__ for each in gc.get_objects() if isinstance(each, Connection | Sink)]
    return ", ".join(f"{count} {name}" for name, count in Counter(held).most_common(8))


def look(server: Server, page: str) -> dict[str, Any]:
    """A page of the server's monitoring."""
    with urllib.request.urlopen(f"{server.http_url}/{page}", timeout=LIMIT) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


async def varz(server: Server) -> dict[str, Any]:
    """The server's general figures: connections, total_connections, subscriptions, ..."""
    return await asyncio.to_thread(look, server, "varz")


async def client_subscriptions(server: Server) -> dict[str, int]:
    """Subscriptions that the server holds for each connection, by the connection's name."""
    found = await asyncio.to_thread(look, server, "connz")
    return {each.get("name", ""): each.get("subscriptions", 0) for each in found["connections"]}


async def consumers(server: Server) -> list[str]:
    """All consumers of the server as stream/consumer."""
    found = await asyncio.to_thread(look, server, "jsz?accounts=true&streams=true&consumers=true")
    return sorted(
        f"{stream['name']}/{consumer['name']}"
        for account in found.get("account_details", [])
        for stream in account.get("stream_detail", [])
        for consumer in stream.get("consumer_detail") or []
    )


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """The rise of (seconds, value) samples a minute, by least squares."""
    count = len(samples)
    middle = sum(at for at, _ in samples) / count
    mean = sum(value for _, value in samples) / count
    spread = sum((at - middle) ** 2 for at, _ in samples)
    if not spread:
        return 0.0
    return 60 * sum((at - middle) * (value - mean) for at, value in samples) / spread
