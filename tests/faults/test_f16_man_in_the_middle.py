"""F16: a man in the middle adds a server of his own to the INFO that comes before TLS, then cuts the line.

His server has a certificate under an authority that the client trusts, for its own name. All TLS bytes pass
him untouched. The client never comes to his server, so no credential does, and it goes on with the true one.
With the plain INFO he lies about everything else too; the client believes what the server says over TLS.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jetspark
from jetspark import blocking
from jetspark.events import Disconnected, Reconnected
from jetspark.server import Server, ServerTLS
from support.catchers import TLSServer
from support.fault_proxy import FaultProxy
from support.fault_table import Outcome, Row, Scale, check
from support.pki import PKI
from support.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

CANARY = "CanaryS3cret"

KINDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "password": lambda url: {"servers": url, "user": "u", "password": CANARY},
    "url": lambda url: {"servers": url.replace("://", f"://u:{CANARY}@")},
    "function": lambda url: {"servers": url, "auth": lambda nonce: {"user": "u", "pass": CANARY}},
}


def lying(address: str) -> Callable[[bytes], bytes]:
    """Everything that a client might act on, in favour of the server at ``address``."""
    lies = {
        "connect_urls": [address],
        "ws_connect_urls": [address],
        "headers": False,
        "max_payload": 1,
        "ldm": True,
        "version": "1.0.0",
    }
    return lambda line: b"INFO " + json.dumps({**json.loads(line[5:]), **lies}).encode() + b"\r\n"


async def attack(
    name: str, make: Callable[[str], dict[str, Any]], scheme: str, true: Server, pki: PKI, cuts: int
) -> list[str]:
    """What went wrong."""
    problems: list[str] = []
    evil = pki.authority.issue("evil", hosts=("localhost",))
    recorder = Recorder()
    async with TLSServer(evil).running() as thief, FaultProxy(true) as proxy:
        proxy.rewrite = lying(f"localhost:{thief.port}")
        options = make(proxy.url.replace("nats://", f"{scheme}://"))
        options["reconnect_wait_max"] = 0.1
        async with jetspark.connect(**options, tls_ca=pki.ca, listener=recorder) as nc:
            sub = await nc.subscribe("f16")
            for number in range(1, cuts + 1):
                if nc.discovered_servers or nc.max_payload == 1 or not nc.server_info.headers:
                    problems.append(f"{name}, {scheme}: the plain INFO was believed: {nc.server_info}")
                proxy.cut()
                await recorder.wait(Disconnected, number)
                await recorder.wait(Reconnected, number)
                await nc.publish("f16", b"x" * 100, headers={"A": "b"})
                if (await sub.next(timeout=20)).headers.get("A") != "b":
                    problems.append(f"{name}, {scheme}: headers were stripped")
        if thief.clients:
            problems.append(f"{name}, {scheme}: {thief.clients} connections to the thief")
        if CANARY.encode() in thief.received:
            problems.append(f"{name}, {scheme}: the thief has the password")
    return problems


async def thief_works(pki: PKI) -> bool:
    """Whether the thief takes what a client that is led to it sends: else his silence says nothing."""
    evil = pki.authority.issue("evil", hosts=("localhost",))
    async with TLSServer(evil).running() as thief:
        nc = await jetspark.connect(f"tls://localhost:{thief.port}", user="u", password=CANARY, tls_ca=pki.ca)
        await nc.close()
        return CANARY.encode() in thief.received


async def run(scale: Scale) -> Outcome:
    outcome = Outcome()
    cuts = scale.pick(2, 20)
    with tempfile.TemporaryDirectory() as folder:
        pki = PKI(Path(folder))
        files = pki.authority.issue("true", hosts=("127.0.0.1",))
        config = f"authorization {{ users: [ {{ user: u, password: {CANARY} }} ] }}"
        with Server(jetstream=False, config=config, tls=ServerTLS(cert=files.cert, key=files.key)) as true:
            outcome.require(await thief_works(pki), "the thief is deaf")
            for name, make in KINDS.items():
                for scheme in ("tls", "nats"):
                    outcome.problems += await attack(name, make, scheme, true, pki, cuts)
            with blocking.connect(true.url, user="u", password=CANARY, tls_ca=pki.ca) as nc:
                nc.flush()
    outcome.figures = {
        "kinds of credentials": len(KINDS),
        "cuts": cuts * len(KINDS) * 2,
        "believed or stolen": len(outcome.problems),
    }
    return outcome


ROW = Row(16, "man in the middle adds a server to the plain INFO", run, minutes=3)


def test_f16() -> None:
    check(ROW)
