"""Clusters: servers that announce each other, die, and leave in order; and one that lies."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import pytest

import jetspark
from jetspark.connection import events as ev
from jetspark.errors import ProtocolError, TLSError
from jetspark.server import Cluster
from support.helpers import eventually, unique
from support.pki import PKI
from support.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from jetspark.server import Server


def node(cluster: Cluster, nc: jetspark.Connection) -> Server:
    """The server that the connection is connected to."""
    return next(server for server in cluster.servers if server.url == nc.connected_url)


async def test_announced_servers_join_the_pool_unless_ignored(cluster: Cluster) -> None:
    recorder = Recorder()
    seed = cluster.urls[0]
    async with (
        jetspark.connect(seed, listener=recorder) as nc,
        jetspark.connect(seed, ignore_discovered=True) as stubborn,
    ):
        # Nodes learn of each other one by one; the client hears of all of them in the end.
        await eventually(lambda: sorted(nc.servers) == sorted(cluster.urls))
        assert sorted(nc.discovered_servers) == sorted(cluster.urls[1:])
        announced = [server for event in recorder.of(ev.ServersDiscovered) for server in event.servers]
        assert sorted(announced) == sorted(url.removeprefix("nats://") for url in cluster.urls[1:])
        assert set(recorder.names()[1:]) == {"ServersDiscovered"}
        await stubborn.flush()
        assert (stubborn.servers, stubborn.discovered_servers) == ([seed], [])


async def test_force_reconnect_goes_to_another_server(cluster: Cluster) -> None:
    async with jetspark.connect(cluster.urls, randomize=False) as nc:
        visited = [nc.connected_url]
        for _ in range(2):
            await nc.force_reconnect()
            visited.append(nc.connected_url)
        assert sorted(map(str, visited)) == sorted(cluster.urls)


@pytest.mark.cluster
async def test_clients_move_when_their_server_dies() -> None:
    recorder = Recorder()
    subject = unique("move")
    with Cluster(2) as cluster:
        async with (
            jetspark.connect(cluster.urls[0], listener=recorder) as nc,
            jetspark.connect(cluster.urls[1]) as other,
        ):
            sub = await nc.subscribe(subject)
            await recorder.wait(ev.ServersDiscovered)
            await asyncio.to_thread(cluster.kill, 0)
            # One seed only: the way out is what the cluster announced.
            await recorder.wait(ev.Reconnected)
            assert nc.connected_url == cluster.urls[1]
            await nc.flush()
            await other.publish(subject, b"x")
            assert (await sub.next()).data == b"x"
    names = recorder.names("ReconnectFailed")
    assert names[:4] == ["Connected", "ServersDiscovered", "Disconnected", "Reconnected"]


@pytest.mark.cluster
async def test_lame_duck_is_announced_before_the_server_leaves() -> None:
    recorder = Recorder()
    with Cluster(2, config='lame_duck_grace_period: "3s"\nlame_duck_duration: "30s"') as cluster:
        async with jetspark.connect(cluster.urls, randomize=False, listener=recorder) as nc:
            sub = await nc.subscribe("x")
            duck = node(cluster, nc)
            assert duck.url == cluster.urls[0]
            duck.signal_lame_duck()
            news = await recorder.wait(ev.LameDuck)
            assert news.server == duck.url.removeprefix("nats://")
            # Still there, and still of use.
            await nc.publish("x", b"before")
            assert (await sub.next()).data == b"before"
            await recorder.wait(ev.Reconnected)
            assert nc.connected_url == cluster.urls[1]
            await nc.publish("x", b"after")
            assert (await sub.next()).data == b"after"
            await eventually(lambda: not duck.running)
    names = [name for name in recorder.names() if name in {"LameDuck", "Disconnected", "Reconnected"}]
    assert names == ["LameDuck", "Disconnected", "Reconnected"]


class HostileServer:
    """Shakes hands, then answers a publish with what it is told to and hangs up: no real server does that."""

    def __init__(self, info: dict[str, object], *after: bytes) -> None:
        self.greeting = (
            b"INFO " + json.dumps({"server_id": "H", "max_payload": 1000, **info}).encode() + b"\r\n"
        )
        # One for each connection; the one after them is left open.
        self.after = list(after)
        self.url = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.greeting)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"PING\r\n")
            writer.write(b"PONG\r\n")
            if self.after:
                await reader.readuntil(b"PUB go 0\r\n\r\n")
                writer.write(self.after.pop(0))
            else:
                await reader.read()
        writer.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[HostileServer]:
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        async with listener:
            yield self


async def test_nonsense_in_the_gossip_does_not_end_the_reconnecting() -> None:
    nonsense = ["a..b:1", "x" * 70 + ":1", "http://evil/", "u:p@host:1", "[::1", "", "host:99999", "\u2028:1"]
    recorder = Recorder()
    async with (
        HostileServer({"connect_urls": nonsense}, b"").running() as hostile,
        jetspark.connect(hostile.url, listener=recorder, max_reconnects=1000) as nc,
    ):
        await nc.publish("go")
        await recorder.wait(ev.Reconnected)
        assert nc.connected_url == hostile.url
        assert all("evil" not in server and "u:p" not in server for server in nc.servers)


@pytest.mark.parametrize(
    "rubbish", [b"HELLO\r\n", b"MSG x 1 -5\r\n", b"MSG x 1 99999999999\r\n", b"INFO {\r\n", b"\x00" * 100_000]
)
async def test_rubbish_on_the_wire_costs_the_link_and_not_the_connection(rubbish: bytes) -> None:
    recorder = Recorder()
    async with (
        HostileServer({}, rubbish).running() as hostile,
        jetspark.connect(hostile.url, listener=recorder) as nc,
    ):
        await nc.publish("go")
        await recorder.wait(ev.Reconnected)
        lost = recorder.of(ev.Disconnected)[0]
        assert isinstance(lost.error, ProtocolError)
        assert lost.server in str(lost.error)
        assert nc.is_connected
    assert recorder.names("ReconnectFailed") == ["Connected", "Disconnected", "Reconnected", "Closed"]


@pytest.mark.cluster
async def test_gossiped_addresses_are_verified_by_the_name_of_the_cluster(tmp_path: Path) -> None:
    pki = PKI(tmp_path)
    files = pki.authority.issue("name-only", hosts=("localhost",))
    recorder = Recorder()
    with Cluster(2, config=f'tls {{ cert_file: "{files.cert}", key_file: "{files.key}" }}') as cluster:
        url = f"tls://localhost:{cluster.servers[0].port}"
        async with jetspark.connect(url, tls_ca=pki.ca, listener=recorder) as nc:
            await eventually(lambda: f"tls://127.0.0.1:{cluster.servers[1].port}" in nc.servers)
            await asyncio.to_thread(cluster.kill, 0)
            await recorder.wait(ev.Reconnected)
            assert nc.connected_url == f"tls://127.0.0.1:{cluster.servers[1].port}"
            await nc.flush()
    assert not [event for event in recorder.of(ev.ReconnectFailed) if isinstance(event.error, TLSError)]
