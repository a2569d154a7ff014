"""NATS over WebSocket against the real server, plain and over TLS."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark.connection import events as ev
from jetspark.errors import (
    AuthorizationError,
    InvalidArgument,
    NoRespondersError,
    NoServersAvailable,
    TLSError,
)
from jetspark.server import Server, ServerTLS
from support.helpers import unique
from support.pki import PKI
from support.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> PKI:
    return PKI(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def secure(pki: PKI) -> Iterator[Server]:
    tls = ServerTLS(cert=pki.server.cert, key=pki.server.key)
    with Server(jetstream=False, websocket=True, tls=tls) as server:
        yield server


@pytest.fixture(params=["ws", "wss"])
def endpoint(request: pytest.FixtureRequest, server: Server, pki: PKI) -> tuple[str, dict[str, Any]]:
    """URL and options of a plain and of a secure WebSocket."""
    if request.param == "ws":
        return server.ws_url, {}
    return request.getfixturevalue("secure").ws_url, {"tls_ca": pki.ca}


async def test_publish_subscribe_request(endpoint: tuple[str, dict[str, Any]]) -> None:
    url, options = endpoint
    subject = unique("ws")
    async with jetspark.connect(url, **options) as nc:
        assert nc.connected_url == url

        async def answer(message: jetspark.Msg) -> None:
            await message.respond(message.data[::-1], headers={"Seen": message.headers["X"]})

        await nc.subscribe(f"{subject}.echo", callback=answer)
        reply = await nc.request(f"{subject}.echo", b"abc", headers={"X": "ü"})
        assert (reply.data, reply.headers["Seen"]) == (b"cba", "ü")
        with pytest.raises(NoRespondersError):
            await nc.request(f"{subject}.nobody")


async def test_large_and_many_messages(endpoint: tuple[str, dict[str, Any]]) -> None:
    url, options = endpoint
    subject = unique("ws")
    async with jetspark.connect(url, **options) as nc:
        sub = await nc.subscribe(subject)
        sizes = [1_000_000, 0, 65_535, 65_536, 125, 126, nc.max_payload, *range(200)]
        for size in sizes:
            await nc.publish(subject, bytes(itertools.islice(itertools.cycle(range(251)), size)))
        for size in sizes:
            data = (await sub.next()).data
            assert len(data) == size
            assert data[:300] == bytes(number % 251 for number in range(min(size, 300)))


async def test_between_websocket_and_tcp(server: Server) -> None:
    subject = unique("ws")
    async with jetspark.connect(server.ws_url) as web, jetspark.connect(server.url) as tcp:
        sub = await tcp.subscribe(subject)
        await tcp.flush()
        await web.publish(subject, b"x")
        assert (await sub.next()).data == b"x"


async def test_reconnect_after_kill_9() -> None:
    recorder = Recorder()
    with Server(jetstream=False, websocket=True) as server:
        async with jetspark.connect(server.ws_url, listener=recorder) as nc:
            sub = await nc.subscribe("hello")
            await asyncio.to_thread(server.kill)
            await recorder.wait(ev.Disconnected)
            await nc.publish("hello", b"while down")
            await asyncio.to_thread(server.restart)
            await recorder.wait(ev.Reconnected)
            await nc.publish("hello", b"after")
            assert [(await sub.next()).data for _ in range(2)] == [b"while down", b"after"]
    assert recorder.names("ReconnectFailed") == ["Connected", "Disconnected", "Reconnected", "Closed"]


async def test_a_suspended_server_is_noticed() -> None:
    recorder = Recorder()
    with Server(jetstream=False, websocket=True) as server:
        async with jetspark.connect(server.ws_url, listener=recorder, ping_interval=1) as nc:
            server.suspend()
            lost = await recorder.wait(ev.Disconnected)
            assert "is dead" in str(lost.error)
            server.resume()
            await recorder.wait(ev.Reconnected)
            await nc.flush()


async def test_untrusted_certificate(secure: Server) -> None:
    with pytest.raises(TLSError, match="not trusted"):
        await jetspark.connect(secure.ws_url)


async def test_wrong_credentials() -> None:
    with Server(jetstream=False, websocket=True, token="right") as server:
        with pytest.raises(AuthorizationError):
            await jetspark.connect(server.ws_url, token="wrong")
        async with jetspark.connect(server.ws_url, token="right") as nc:
            assert nc.is_connected


async def test_wrong_port_and_wrong_scheme_say_so(server: Server, secure: Server) -> None:
    with pytest.raises(NoServersAvailable, match="speaks plain NATS, not WebSocket"):
        await jetspark.connect(server.url.replace("nats://", "ws://"))
    with pytest.raises(NoServersAvailable, match=r"wss://"):
        await jetspark.connect(secure.ws_url.replace("wss://", "ws://"))
    with pytest.raises(TLSError):
        await jetspark.connect(server.ws_url.replace("ws://", "wss://"))


def test_options_are_checked_before_anything_is_opened() -> None:
    with pytest.raises(InvalidArgument, match="all WebSocket"):
        jetspark.connect(["ws://127.0.0.1:1", "nats://127.0.0.1:2"])
    with pytest.raises(InvalidArgument, match="line breaks"):
        jetspark.connect("ws://127.0.0.1:1", ws_headers={"X": "a\r\nb"})
    with pytest.raises(InvalidArgument, match="must be text"):
        jetspark.connect("ws://127.0.0.1:1", ws_headers={"X": 1})  # type: ignore[dict-item]


async def test_headers_of_the_upgrade_reach_the_server() -> None:
    config = "authorization { users: [ { user: u, password: p } ] }"
    with Server(jetstream=False, websocket=True, config=config) as server:
        async with jetspark.connect(
            server.ws_url, user="u", password="p", ws_headers={"Cookie": "a=b"}
        ) as nc:
            assert nc.is_connected
