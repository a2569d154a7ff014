"""F17: after a cut somebody answers in the place of a TLS server, in plain text, and asks for no TLS.

The URLs are nats://, so that only the server's wish made the first link a TLS one. All that follow must be of
that kind: the impostor, and a plain server of the pool, get not one byte, and the error names the reason. The
connection comes back by itself when the true server does.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark.connection.transport import Link
from jetspark.errors import TLSError
from jetspark.events import Disconnected, Reconnected, ReconnectFailed
from jetspark.server import Server, ServerTLS
from support.catchers import PlainServer, info
from support.fault_proxy import FaultProxy
from support.fault_table import Outcome, Row, Scale, check, perform
from support.jwt_mint import Operator
from support.pki import PKI
from support.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

CANARY = "CanaryS3cret"
MESSAGE = b"a secret message"

KINDS = ("password", "url", "token", "bearer JWT")

# What the impostor says of TLS.
GREETINGS: dict[str, dict[str, Any]] = {
    "no word of TLS": {},
    "tls_required: false": {"tls_required": False},
    "asks for credentials": {"tls_required": False, "tls_available": False, "auth_required": True},
}


class World:
    """A TLS server with users of each kind, and the ways to be one of them."""

    def __init__(self, folder: Path) -> None:
        self.pki = PKI(folder)
        tls = ServerTLS(cert=self.pki.server.cert, key=self.pki.server.key)
        users = f"authorization {{ users: [ {{ user: u, password: {CANARY} }} ] }}"
        operator = Operator()
        bearer = operator.account("A", jetstream=False).user("u", bearer=True)
        self.by_user = Server(jetstream=False, tls=tls, config=users)
        self.by_token = Server(jetstream=False, tls=tls, token=CANARY)
        self.by_jwt = Server(jetstream=False, tls=tls, config=operator.resolver_config())
        self.ways: dict[str, tuple[Server, Callable[[str], dict[str, Any]]]] = {
            "password": (self.by_user, lambda url: {"servers": url, "user": "u", "password": CANARY}),
            "url": (self.by_user, lambda url: {"servers": url.replace("://", f"://u:{CANARY}@")}),
            "token": (self.by_token, lambda url: {"servers": url, "token": CANARY}),
            "bearer JWT": (self.by_jwt, lambda url: {"servers": url, "jwt": bearer.jwt}),
        }


async def attack(
    name: str, server: Server, make: Callable[[str], dict[str, Any]], cuts: int, outcome: Outcome
) -> int:
    """Connections that the impostors had."""
    clients = 0
    recorder = Recorder()
    async with FaultProxy(server) as proxy, PlainServer(info()).running() as member:
        options = make(proxy.url)
        options["servers"] = [options["servers"], member.url.replace("tls://", "nats://")]
        options |= {"listener": recorder, "randomize": False, "reconnect_wait_max": 0.1}
        async with jetspark.connect(**options) as nc:
            sub = await nc.subscribe("f17")
            for _ in range(cuts):
                for words, fields in GREETINGS.items():
                    async with PlainServer(info(**fields)).running() as impostor:
                        failed, back = len(recorder.of(ReconnectFailed)), len(recorder.of(Reconnected))
                        proxy.target = impostor
                        proxy.cut()
                        await recorder.wait(Disconnected, back + 1)
                        await nc.publish("f17", MESSAGE)  # waits for the next link
                        await recorder.wait(ReconnectFailed, failed + 4)
                        proxy.target = server
                        await recorder.wait(Reconnected, back + 1)
                        message = await sub.next(timeout=20)
                        outcome.require(message.data == MESSAGE, f"{name}, {words}: {message.data!r}")
                        outcome.require(
                            impostor.received == b"", f"{name}, {words}: {impostor.received!r:.200}"
                        )
                        outcome.require(impostor.clients > 0, f"{name}, {words}: the impostor was not tried")
                        clients += impostor.clients
        outcome.require(member.received == b"", f"{name}: {member.received!r:.200} to a plain server")
        clients += member.clients
    for event in recorder.of(ReconnectFailed):
        right = isinstance(event.error, TLSError) and "has used TLS before" in str(event.error)
        outcome.require(right, f"{name}: {event.error!r}")
    return clients


async def run(scale: Scale) -> Outcome:
    outcome = Outcome()
    cuts, clients = scale.pick(1, 20), 0
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        world = World(Path(folder))
        # The authority is the system's, as for public certificates: a TLS option would demand TLS by itself.
        patch.setitem(os.environ, "SSL_CERT_FILE", str(world.pki.ca))
        with world.by_user, world.by_token, world.by_jwt:
            for name in KINDS:
                server, make = world.ways[name]
                clients += await attack(name, server, make, cuts, outcome)
    outcome.figures = {
        "kinds of credentials": len(KINDS),
        "cuts": cuts * len(GREETINGS) * len(KINDS),
        "connections to plain servers": clients,
        "problems": len(outcome.problems),
    }
    return outcome


ROW = Row(17, "TLS is gone after a cut", run, minutes=3)


def test_f17() -> None:
    check(ROW)


def test_the_row_finds_a_client_that_forgets_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Link, "_needs_tls", lambda self, options, attempt: self.info.tls_required)
    monkeypatch.setattr(sys.modules[__name__], "GREETINGS", {"no word of TLS": {}})
    monkeypatch.setattr(sys.modules[__name__], "KINDS", ("password",))
    problems = perform(ROW, Scale(full=False, seed=1)).problems
    assert any(CANARY in problem for problem in problems)
