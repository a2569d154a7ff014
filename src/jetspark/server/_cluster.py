"""Several servers that form one JetStream cluster."""

from __future__ import annotations

import json
import time
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

from jetspark.errors import InvalidArgument
from jetspark.server._config import quote
from jetspark.server._placement import refuses_replicas
from jetspark.server._ports import ReservedPort
from jetspark.server._server import Server
from jetspark.server.errors import ServerStartError

if TYPE_CHECKING:
    import os
    from collections.abc import Set
    from types import TracebackType

_POLL = 0.02


class Cluster:
    """``size`` servers named n1, n2, ... on this machine, routed together, with JetStream.

    ::

        with Cluster(3) as cluster:
            nc = await jetspark.connect(cluster.urls)
            cluster.kill(0)
            cluster.restart(0)

    size: how many servers, at least 2; 3 is what replicated streams want. Default: 3.
    name: the cluster's name. Default: "jetspark".
    config: more configuration text for every server.
    binary: the nats-server to run; default: see :func:`find_server`.
    ready_timeout: seconds to wait until the cluster is ready, see `wait_ready`. Default: 30.
    """

    def __init__(
        self,
        size: int = 3,
        *,
        name: str = "jetspark",
        config: str = "",
        binary: str | os.PathLike[str] | None = None,
        ready_timeout: float = 30.0,
    ) -> None:
        if size < 2:
            raise InvalidArgument("size", size, "a cluster has at least 2 servers; use Server for one")
        self.name = name
        self._ready_timeout = ready_timeout
        self._routes: list[ReservedPort] = []
        self.servers: list[Server] = [
            Server(name=f"n{number}", config=config, binary=binary, ready_timeout=ready_timeout)
            for number in range(1, size + 1)
        ]

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    def start(self) -> Self:
        """Start all servers, and wait until they are ready: see `wait_ready`."""
        if not self._routes:
            self._routes = [ReservedPort(server.host) for server in self.servers]
        try:
            routes = ", ".join(f"nats://{s.host}:{p.number}" for s, p in self._members())
            # All processes first, then the waiting: none of them is healthy without a majority.
            for server, port in self._members():
                server._cluster_block = (
                    f"cluster {{ name: {quote(self.name)}, host: {quote(server.host)}, "
                    f"port: {port.number}, routes: [{routes}] }}"
                )
                server._prepare()
                port.about_to_listen()
                server._spawn()
            self.wait_ready(self._ready_timeout)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self, timeout: float = 5.0) -> None:
        for server in self.servers:
            server.stop(timeout)
        for port in self._routes:
            port.release()
        self._routes = []

    def kill(self, index: int) -> None:
        """SIGKILL server number ``index``, counted from 0."""
        self.servers[index].kill()

    def restart(self, index: int) -> None:
        """Bring server number ``index`` back with its ports and data; waits until it is healthy.

        `wait_ready` waits for its routes to all others besides.
        """
        self.servers[index].restart()

    def wait_ready(self, timeout: float = 30.0) -> None:
        """Wait until all that run are healthy, agree on a meta leader, have routes to each other, and place
        replicas.

        The last is tested: a small stream in memory is created and deleted. Where the configuration demands
        TLS or credentials it can't be tested, and for some moments the leader may answer `NoSuitablePeers` to
        a client that asks for replicas; try again then.
        """
        deadline = time.monotonic() + timeout
        for server in self.servers:
            if server.running:
                server.wait_ready(max(0.0, deadline - time.monotonic()))
        while problem := self._unready():
            if time.monotonic() >= deadline:
                raise ServerStartError(
                    f"cluster {self.name!r} {problem} after {timeout} s", self.servers[0].log()
                )
            time.sleep(_POLL)

    def _unready(self) -> str:
        """Why it is not ready, or "". A leader and healthy servers are not enough."""
        running = {server.name: server for server in self.servers if server.running}
        leader = self.meta_leader()
        if leader is None:
            return "has no leader"
        # Without a route, what one server sends to another is lost, for example the answer "created" to a
        # client, which then waits in vain.
        for name, server in running.items():
            others = running.keys() - {name}
            if missing := missing_routes(self._ask(server, "/varz"), self._ask(server, "/routez"), others):
                return f"has no route from {name} to {', '.join(missing)}"
        asked = running.get(leader)
        if asked is None or refuses_replicas(asked.host, asked.port, len(running)):
            return f"places no replicas on {len(running)} servers"
        return ""

    def meta_leader(self) -> str | None:
        """The name of the server that leads the cluster; None while they do not agree on one."""
        names = {
            self._ask(s, "/jsz").get("meta_cluster", {}).get("leader") for s in self.servers if s.running
        }
        return names.pop() if len(names) == 1 else None

    def leader_of(self, stream: str, account: str = "$G") -> Server | None:
        """The server that leads ``stream``; None when the stream is unknown or has no leader now."""
        for server in self.servers:
            if not server.running:
                continue
            for details in self._ask(server, "/jsz?streams=true&accounts=true").get("account_details", []):
                if details.get("name") != account:
                    continue
                for found in details.get("stream_detail", []):
                    if found.get("name") == stream and found.get("cluster", {}).get("leader") == server.name:
                        return server
        return None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _members(self) -> list[tuple[Server, ReservedPort]]:
        return list(zip(self.servers, self._routes, strict=True))

    def _ask(self, server: Server, path: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"{server.http_url}{path}", timeout=2.0) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except OSError:
            return {}


def missing_routes(varz: dict[str, Any], routez: dict[str, Any], others: Set[str]) -> list[str]:
    """The servers to which the server with these ``/varz`` and ``/routez`` has no route.

    From 2.10 on there is a pool of routes to each, and one more for the system account, over which replicas
    and the JetStream API talk; a server without a pool has one route for everything.
    """
    pool = varz.get("cluster", {}).get("pool_size", 0)
    wanted = {"": max(1, pool)} | ({varz["system_account"]: 1} if pool > 0 else {})
    routes = routez.get("routes") or []
    found = Counter((route.get("remote_name"), route.get("account", "")) for route in routes)
    return [
        name
        for name in sorted(others)
        if any(found[name, account] < count for account, count in wanted.items())
    ]
