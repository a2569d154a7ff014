"""A canary in every kind of credentials, and every place where it must not sing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import traceback
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import Secret, blocking
from jetspark.connection import events as ev
from jetspark.connection.client import core_of
from jetspark.connection.contexts import load_context
from jetspark.errors import AuthorizationError, InvalidArgument, JetsparkError, NoServersAvailable
from support.canaries import (
    CANARY,
    Case,
    OwnAuthenticator,
    canary_cases,
    check_silence,
    everything_about,
    everything_in,
    failing,
    locals_of,
)
from support.catchers import PlainServer, TLSServer, info
from support.fake_server import FakeServer, Peer
from support.fault_proxy import FaultProxy
from support.jwt_mint import corrupt
from support.pki import PKI
from support.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Case]]:
    with canary_cases(tmp_path_factory.mktemp("secrets")) as made:
        yield made


KINDS = [
    "password",
    "url",
    "function",
    "auth",
    "websocket",
    "token",
    "url token",
    "nkey",
    "nkey file",
    "jwt",
    "jwt of another",
    "creds",
    "creds text",
]


@pytest.fixture
def logs(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Everything that is logged by anybody, asyncio's account of every callback included."""
    caplog.set_level(logging.DEBUG)
    for name in ("jetspark", "asyncio", "websockets"):
        caplog.set_level(logging.DEBUG, logger=name)
    return caplog


def chatty_loop() -> None:
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 0


@pytest.mark.parametrize("kind", KINDS)
async def test_accepted(kind: str, cases: dict[str, Case], logs: pytest.LogCaptureFixture) -> None:
    case = cases[kind]
    chatty_loop()
    recorder = Recorder()
    connecting = jetspark.connect(**{"servers": case.server.url, "listener": recorder, **case.good})
    check_silence(iter([repr(connecting), str(connecting)]), case.secrets)
    nc = await connecting
    await nc.force_reconnect()
    await nc.flush()
    check_silence(everything_in(nc), case.secrets)
    values = {field.name: getattr(core_of(nc).options, field.name) for field in fields(core_of(nc).options)}
    check_silence(iter([repr(core_of(nc).options), str(core_of(nc).options), repr(values)]), case.secrets)
    shown = [repr(nc), str(nc), str(nc.connected_url), *nc.servers, repr(nc.server_info), repr(nc.stats)]
    check_silence(iter(shown), case.secrets)
    await nc.close()
    check_silence(everything_in(nc), case.secrets)
    check_silence((repr(event) for event in recorder.events), case.secrets)
    check_silence((repr(record.__dict__) for record in logs.records), case.secrets)
    check_silence(iter([logs.text]), case.secrets)


@pytest.mark.parametrize("kind", KINDS)
async def test_refused(kind: str, cases: dict[str, Case], logs: pytest.LogCaptureFixture) -> None:
    case = cases[kind]
    chatty_loop()
    with pytest.raises(AuthorizationError) as caught:
        await jetspark.connect(**{"servers": case.server.url, **case.bad})
    check_silence(everything_about(caught.value), case.secrets)
    check_silence(iter([logs.text]), case.secrets)


@pytest.mark.parametrize("kind", KINDS)
async def test_unreachable(
    kind: str, cases: dict[str, Case], logs: pytest.LogCaptureFixture, unused_tcp_port: int
) -> None:
    case = cases[kind]
    chatty_loop()
    options = {"servers": case.server.url, **case.good}
    for port in {case.server.port, case.server._ports["client"].number}:
        options["servers"] = options["servers"].replace(f":{port}", f":{unused_tcp_port}")
    if kind == "websocket":
        options["servers"] = f"ws://127.0.0.1:{unused_tcp_port}/?key={CANARY}"
    with pytest.raises(NoServersAvailable) as caught:
        await jetspark.connect(**options)
    check_silence(everything_about(caught.value), case.secrets)
    check_silence(iter([logs.text]), case.secrets)


@pytest.mark.parametrize(
    "options",
    [
        {"servers": f"nats://u:{CANARY}@"},
        {"servers": f"nats://u:{CANARY}@host:notaport"},
        {"servers": f"nats://u:{CANARY}@host/path"},
        {"servers": f"http://u:{CANARY}@host"},
        {"servers": f"nats://u:{CANARY}%zz@host"},
        {"servers": f"tls://u:{CANARY}@host", "tls": False},
        {"servers": [f"ws://u:{CANARY}@a", f"nats://u:{CANARY}@b"]},
        {"servers": f"ws://u:{CANARY}@a/?key={CANARY}", "tls": True},
        {"token": CANARY, "user": "u", "password": CANARY},
        {"password": CANARY},
        {"nkey": "SU" + CANARY * 4, "jwt": CANARY, "creds": CANARY},
        {"servers": "ws://a", "ws_headers": {"X": f"{CANARY}\n"}},
        {"token": CANARY, "connect_timeout": -1},
    ],
)
def test_options_that_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        jetspark.connect(**options)
    check_silence(everything_about(caught.value), (CANARY,))


@pytest.mark.parametrize(
    "options",
    [
        {"nkey": f"SU{CANARY.upper() * 4}"},
        {"jwt": f"{CANARY}.{CANARY}.{CANARY}"},
        {"creds": f"-----BEGIN NATS USER JWT-----\n{CANARY}\n------END NATS USER JWT------\n"},
        {"auth": lambda nonce: {"user": CANARY, "pass": {CANARY}, 1: CANARY}},
        {"auth": lambda nonce: {"user": CANARY, "pass": object()}},
        {"token": lambda: [CANARY]},
    ],
)
async def test_credentials_that_make_no_sense(options: dict[str, Any], cases: dict[str, Case]) -> None:
    with pytest.raises(JetsparkError) as caught:
        await jetspark.connect(cases["nkey"].server.url, **options)
    check_silence(everything_about(caught.value), (CANARY, CANARY.upper()))


# The locals of tracebacks


def at(case: Case, port: int, scheme: str = "") -> dict[str, Any]:
    """The good options of a case for another server."""
    url = re.sub(r":\d+(?=/|$)", f":{port}", case.good.get("servers", case.server.url))
    if scheme and url.startswith("nats://"):
        url = url.replace("nats://", f"{scheme}://")
    return {**case.good, "servers": url}


@contextlib.asynccontextmanager
async def fake(first: bytes, after: bytes | None = b"") -> AsyncIterator[int]:
    """A peer that says ``first``, reads a CONNECT, says ``after`` and hangs up; None: it says no more."""

    async def script(peer: Peer) -> None:
        await peer.send(first)
        if first:
            await peer._reader.readuntil(b"CONNECT")
        if after is None:
            await asyncio.Event().wait()
        await peer.send(after or b"")

    async with FakeServer(script) as server:
        yield server.port


@contextlib.asynccontextmanager
async def tls_peer(pki: PKI, kind: str) -> AsyncIterator[int]:
    peer = PlainServer(info()) if kind == "offers none" else TLSServer(pki.other_server)
    async with peer.running() as server:
        yield server.port


PEERS: dict[str, tuple[Callable[[PKI], Any], str]] = {
    "no nonce": (lambda pki: fake(info(nonce=None), b"-ERR 'Authorization Violation'\r\n"), ""),
    "refused": (lambda pki: fake(info(), b"-ERR 'Authorization Violation'\r\n"), ""),
    "refused for another reason": (lambda pki: fake(info(), b"-ERR 'maximum connections exceeded'\r\n"), ""),
    "hangs up": (lambda pki: fake(info()), ""),
    "rubbish": (lambda pki: fake(info(), b"HTTP/1.1 400 Bad Request\r\n\r\n"), ""),
    "silent": (lambda pki: fake(b"", None), ""),
    "silent after CONNECT": (lambda pki: fake(info(), None), ""),
    "no TLS": (lambda pki: tls_peer(pki, "offers none"), "tls"),
    "TLS by a stranger": (lambda pki: tls_peer(pki, "stranger"), "tls"),
}


def patience(peer: str) -> float:
    """Seconds to connect: few with a peer that says nothing, where the time-out is the error."""
    return 0.1 if peer.startswith("silent") else 20.0


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> PKI:
    return PKI(tmp_path_factory.mktemp("pki"))


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("kind", KINDS)
async def test_no_frame_of_a_failed_connect_holds_a_secret(
    kind: str, peer: str, cases: dict[str, Case], pki: PKI
) -> None:
    case = cases[kind]
    make, scheme = PEERS[peer]
    async with make(pki) as port:
        with pytest.raises(JetsparkError) as caught:
            await jetspark.connect(**at(case, port, scheme), connect_timeout=patience(peer))
        check_silence(everything_about(caught.value), case.secrets)


@pytest.mark.parametrize("kind", KINDS)
async def test_no_frame_of_a_failed_blocking_connect_holds_a_secret(
    kind: str, cases: dict[str, Case], unused_tcp_port: int
) -> None:
    case = cases[kind]
    for options in ({"servers": case.server.url, **case.bad}, at(case, unused_tcp_port)):
        with pytest.raises(JetsparkError) as caught:
            await asyncio.to_thread(blocking.connect, **options)
        texts = [text for text in locals_of(caught.value) if "concurrent/futures" not in text]
        texts = [text for text in texts if "asyncio/threads" not in text]  # how this test calls it
        check_silence(iter(texts), case.secrets)


@pytest.mark.parametrize("peer", [name for name in PEERS if not PEERS[name][1]])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "websocket"])
async def test_no_frame_of_a_failed_reconnect_holds_a_secret(
    kind: str, peer: str, cases: dict[str, Case], pki: PKI
) -> None:
    case = cases[kind]
    recorder = Recorder()
    async with PEERS[peer][0](pki) as port, FaultProxy(case.server) as proxy:
        options = at(case, int(proxy.url.rpartition(":")[2]))
        nc = await jetspark.connect(**options, connect_timeout=20, max_reconnects=2, listener=recorder)
        sub = await nc.subscribe("x")
        # Only from here on, as the honest server may be slow on a busy machine.
        core_of(nc).options = replace(core_of(nc).options, connect_timeout=patience(peer))
        proxy.target = Elsewhere(port)
        proxy.cut()
        await recorder.wait(ev.Closed)
        with pytest.raises(JetsparkError) as caught:
            await anext(sub)
        await nc.close()
    errors = [event.error for event in recorder.events if getattr(event, "error", None) is not None]
    assert len(errors) >= 3
    for error in [*errors, caught.value, nc.last_error]:
        check_silence(everything_about(error), case.secrets)


class Elsewhere:
    def __init__(self, port: int) -> None:
        self.host, self.port = "127.0.0.1", port


WRONG: dict[str, Callable[[Case], dict[str, Any]]] = {
    "seed with a wrong checksum": lambda jwt: {"nkey": corrupt(jwt.secrets[1])},
    "jwt and a wrong seed": lambda jwt: {"jwt": jwt.secrets[0], "nkey": corrupt(jwt.secrets[1])},
    "creds with a wrong seed": lambda jwt: {"creds": jwt.good["creds"].replace(jwt.secrets[1], CANARY)},
    "creds without a seed": lambda jwt: {"creds": jwt.good["creds"].partition("****")[0]},
    "seed of somebody else": lambda jwt: {"jwt": jwt.secrets[0], "nkey": jwt.secrets[3]},
    "jwt that is no bearer token": lambda jwt: {"jwt": jwt.secrets[0]},
    "jwt function that returns bytes": lambda jwt: {"jwt": lambda: jwt.secrets[0].encode()},
    "password function that raises": lambda jwt: {"user": CANARY, "password": failing},
    "auth function that raises": lambda jwt: {"auth": failing},
    "auth object that raises": lambda jwt: {"auth": OwnAuthenticator()},
    "auth function that returns text": lambda jwt: {"auth": lambda nonce: CANARY},
    "auth function that returns an object": lambda jwt: {"auth": lambda nonce: {"pass": {CANARY}}},
    "bytes as a password": lambda jwt: {"user": "u", "password": CANARY.encode()},
    "bytes as creds": lambda jwt: {"creds": jwt.good["creds"].encode()},
    "bytes as a url": lambda jwt: {"servers": f"nats://u:{CANARY}@h".encode()},
    "a url with a bad port": lambda jwt: {"servers": f"nats://u:{CANARY}@host:port"},
    "a list with a bad url": lambda jwt: {"servers": [f"nats://u:{CANARY}@a", f"nats://{CANARY}@b:x"]},
    "a secret url that is bad": lambda jwt: {"servers": Secret(f"nats://u:{CANARY}@host:port")},
    "an option beside it": lambda jwt: {"token": CANARY, "connect_timeout": -1},
    "an option that there is not": lambda jwt: {"token": CANARY, "tokn": CANARY},
    "a missing file beside it": lambda jwt: {"password": CANARY, "user": CANARY, "tls_ca": "/no/such/file"},
    "a bad header": lambda jwt: {"servers": "ws://a", "ws_headers": {"X": CANARY, "Y": 5}},
    "both": lambda jwt: {"token": CANARY, "user": CANARY, "password": CANARY},
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_no_frame_of_refused_options_holds_a_secret(wrong: str, cases: dict[str, Case]) -> None:
    jwt = cases["creds text"]
    options = {"servers": jwt.server.url, **WRONG[wrong](jwt)}
    secrets = (CANARY, *jwt.secrets, corrupt(jwt.secrets[1]))
    with pytest.raises((JetsparkError, TypeError)) as caught:
        await jetspark.connect(**options)
    check_silence(everything_about(caught.value), secrets)
    with pytest.raises((JetsparkError, TypeError)) as caught:
        blocking.connect(**options)
    check_silence(everything_about(caught.value), secrets)
    # Where it failed is still there to see.
    assert any(entry.name in ("call", "connect", "_open") for entry in caught.traceback)


def test_a_failing_function_of_the_users_own_is_found_by_its_line(cases: dict[str, Case]) -> None:
    with pytest.raises(AuthorizationError) as caught:
        blocking.connect(cases["token"].server.url, token=failing)
    cause = caught.value.__cause__
    assert isinstance(cause, LookupError)
    assert "failing" in [frame.name for frame in traceback.extract_tb(cause.__traceback__)]


def test_an_error_that_is_being_handled_keeps_its_locals() -> None:
    def inner() -> None:
        mine = "kept"
        raise LookupError(mine)

    try:
        inner()
    except LookupError:
        with pytest.raises(InvalidArgument) as caught:
            jetspark.connect(f"nats://u:{CANARY}@host:port")
    handled = caught.value.__context__
    assert isinstance(handled, LookupError)
    frames = traceback.TracebackException.from_exception(handled, capture_locals=True).stack
    assert frames[-1].locals == {"mine": "'kept'"}


CONTEXTS: dict[str, dict[str, Any]] = {
    "field of a wrong type": {"url": f"nats://u:{CANARY}@h", "user": CANARY, "password": CANARY, "creds": 5},
    "bad url": {"url": f"nats://u:{CANARY}@h:x", "token": CANARY},
    "password without a user": {"password": CANARY},
    "a store": {"user": CANARY, "password": f"op://{CANARY}"},
    "tls_first": {"user_jwt": CANARY, "user_seed": CANARY, "tls_first": "yes"},
    "a proxy": {"token": CANARY, "socks_proxy": CANARY},
    "broken JSON": {"token": CANARY, "": None},
}


@pytest.mark.parametrize("which", CONTEXTS)
def test_no_frame_of_a_bad_context_holds_a_secret(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    text = json.dumps(CONTEXTS[which])
    (folder / "c.json").write_text(text[:-1] if which == "broken JSON" else text)
    for load in (lambda: load_context("c"), lambda: jetspark.connect(context="c")):
        with pytest.raises(InvalidArgument) as caught:
            load()
        check_silence(everything_about(caught.value), (CANARY,))


@pytest.mark.parametrize("option", ["creds", "nkey"])
async def test_no_frame_of_an_unreadable_file_holds_a_secret(
    option: str, cases: dict[str, Case], tmp_path: Path
) -> None:
    path = tmp_path / "x"
    for content in (b"", b"\xff" + CANARY.encode(), CANARY.encode(), b"SU" + CANARY.upper().encode() * 5):
        path.write_bytes(content)
        with pytest.raises(AuthorizationError) as caught:
            await jetspark.connect(cases["creds"].server.url, **{option: str(path)})
        check_silence(everything_about(caught.value), (CANARY, CANARY.upper()))
    path.unlink()
    with pytest.raises(AuthorizationError):
        await jetspark.connect(cases["creds"].server.url, **{option: str(path)})
