"""The same on uvloop, whose transports are not asyncio's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

import jetspark
from jetspark.connection import events as ev
from jetspark.errors import TLSError
from jetspark.server import Server, ServerTLS
from support.pki import PKI
from support.recorder import Recorder

if TYPE_CHECKING:
    from pathlib import Path


async def live_through_a_kill(server: Server, url: str, **options: Any) -> list[str]:
    recorder = Recorder()
    async with jetspark.connect(url, listener=recorder, **options) as nc:
        sub = await nc.subscribe("x")
        await nc.publish("x", bytes(500_000))
        assert len((await sub.next()).data) == 500_000
        await asyncio.to_thread(server.kill)
        await recorder.wait(ev.Disconnected)
        await nc.publish("x", b"while down")
        await asyncio.to_thread(server.restart)
        assert (await sub.next()).data == b"while down"
    return recorder.names("ReconnectFailed")


@pytest.mark.parametrize("kind", ["nats", "tls", "ws", "wss"])
def test_connect_publish_reconnect(kind: str, tmp_path: Path) -> None:
    pki = PKI(tmp_path)
    secure = kind in ("tls", "wss")
    tls = ServerTLS(cert=pki.server.cert, key=pki.server.key) if secure else None
    options = {"tls_ca": pki.ca} if secure else {}
    with Server(jetstream=False, websocket=True, tls=tls) as server:
        url = server.ws_url if "ws" in kind else server.url
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            names = runner.run(live_through_a_kill(server, url, **options))
    assert names == ["Connected", "Disconnected", "Reconnected", "Closed"]


def test_a_bad_certificate_has_the_same_name(tmp_path: Path) -> None:
    pki = PKI(tmp_path)

    async def refused(url: str) -> None:
        with pytest.raises(TLSError, match="not trusted here"):
            await jetspark.connect(url, tls_ca=pki.other_ca)

    tls = ServerTLS(cert=pki.server.cert, key=pki.server.key)
    with (
        Server(jetstream=False, tls=tls) as server,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(refused(server.url))
