"""Which server to try next, and how long to wait first. Sans-IO: time and randomness are arguments.

The pool holds the seed servers in random order (unless ``randomize=False``) and the servers that the cluster
announced. Each server remembers its consecutive failures. The wait before it is tried again doubles from
``wait`` to ``wait_max`` and is spread by ``jitter``, so that the clients of a restarted server do not all
come back at the same moment. Another server that has not failed is tried at once.

Credentials that a server refuses may soon be renewed, by a person or by a job that runs every minute. So a
server is given up only when it has refused the same credentials at least twice, over at least
``REFUSAL_WINDOW`` seconds. Different credentials restart the count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from jetspark.connection.urls import ServerURL

REFUSAL_WINDOW = 120.0
"""For how many seconds refused credentials are tried again."""


@dataclass(slots=True)
class PooledServer:
    """A server and its history."""

    url: ServerURL
    discovered: bool = False
    failures: int = 0
    refusals: int = 0
    refused_since: float = 0.0
    refused_credentials: bytes = b""
    short_lives: int = 0
    connected_at: float = 0.0
    not_before: float = 0.0


@dataclass(slots=True)
class ServerPool:
    """The servers of a connection. ``max_failures`` None: never give up a server."""

    wait: float
    wait_max: float
    jitter: float
    max_failures: int | None
    random: Random
    servers: list[PooledServer] = field(default_factory=list)

    def seed(self, urls: Iterable[ServerURL], *, randomize: bool) -> None:
        """Fill the pool with the seed servers."""
        self.servers = [PooledServer(url) for url in urls]
        if randomize:
            self.random.shuffle(self.servers)

    def add_discovered(self, urls: Iterable[ServerURL]) -> list[ServerURL]:
        """Add announced servers; returns the new ones. Announced ones no longer listed are removed."""
        announced = list(dict.fromkeys(urls))
        names = {url.hostport for url in announced}
        known = {server.url.hostport for server in self.servers}
        fresh = [url for url in announced if url.hostport not in known]
        self.servers = [s for s in self.servers if not s.discovered or s.url.hostport in names]
        for url in fresh:
            # Anywhere but the front: the head of the list is the current position of the rotation.
            place = self.random.randint(min(1, len(self.servers)), len(self.servers))
            self.servers.insert(place, PooledServer(url, discovered=True))
        return fresh

    def next(self, now: float) -> tuple[PooledServer, float] | None:
        """The server to try and the seconds to wait first; None if every server was given up."""
        if not self.servers:
            return None
        # The server that may be tried soonest; the order of the list decides between equals.
        server = min(self.servers, key=lambda candidate: max(candidate.not_before, now))
        return server, max(0.0, server.not_before - now)

    def lost(self, server: PooledServer, now: float) -> None:
        """An established connection broke: try others first, and this one after a short random pause."""
        if self.max_failures == 0:
            self.remove(server)
            return
        self._rotate(server)
        # A server that drops us right after each handshake is backed off from like one that refuses us.
        short = now - server.connected_at < self.wait_max
        server.short_lives = server.short_lives + 1 if short else 0
        server.not_before = now + self.random.uniform(0, self._base(server.short_lives) * (1 + self.jitter))

    def failed(self, server: PooledServer, now: float) -> None:
        """An attempt failed: back off, and give up the server after ``max_failures`` in a row."""
        server.failures += 1
        if self.max_failures is not None and server.failures >= self.max_failures:
            self.remove(server)
            return
        self._rotate(server)
        server.not_before = now + self._base(server.failures - 1) * (
            1 + self.random.uniform(-self.jitter, self.jitter)
        )

    def refused(self, server: PooledServer, credentials: bytes, now: float) -> None:
        """The server refused these credentials (their fingerprint): back off, and give it up in the end."""
        if not server.refusals or credentials != server.refused_credentials:
            server.refusals, server.refused_since, server.refused_credentials = 0, now, credentials
        server.refusals += 1
        self.failed(server, now)
        if server.refusals >= 2 and now - server.refused_since >= REFUSAL_WINDOW:
            self.remove(server)

    def succeeded(self, server: PooledServer, now: float) -> None:
        """Connected: reset the record of failures."""
        server.failures = server.refusals = 0
        server.not_before = 0.0
        server.connected_at = now

    def remove(self, server: PooledServer) -> None:
        """Give up a server for good."""
        self.servers = [other for other in self.servers if other is not server]

    def _base(self, doublings: int) -> float:
        return min(self.wait_max, self.wait * float(2 ** min(doublings, 30)))

    def _rotate(self, server: PooledServer) -> None:
        if any(other is server for other in self.servers):
            self.remove(server)
            self.servers.append(server)
