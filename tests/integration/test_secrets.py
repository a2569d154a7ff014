"""A canary in every kind of credentials, and every place where it must not sing."""

from __future__ import annotations

import asyncio
import logging
import pickle
import traceback
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import nkeys
import pytest

import jetspark
from jetspark.errors import AuthorizationError, InvalidArgument, JetsparkError, NoServersAvailable
from jetspark.server import Server
from jwt_mint import Key, Operator
from recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CANARY = "CanaryS3cret"


class Case:
    """A server, options that it accepts, options that it refuses, and what must never be seen."""

    def __init__(self, server: Server, good: dict[str, Any], bad: dict[str, Any], *secrets: str) -> None:
        self.server, self.good, self.bad = server, good, bad
        self.secrets = secrets


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Case]]:
    folder: Path = tmp_path_factory.mktemp("secrets")
    key, stranger = Key(nkeys.PREFIX_BYTE_USER), Key(nkeys.PREFIX_BYTE_USER)
    operator = Operator()
    user = operator.account("A", jetstream=False).user("u")
    other = Operator("OTHER").account("A", jetstream=False).user("s")
    for name, owner in (("good", user), ("bad", other)):
        (folder / f"{name}.creds").write_text(owner.creds())
    (folder / "bad.nk").write_text(stranger.seed)
    (folder / "good.nk").write_text(key.seed)
    users = f"{{ user: {CANARY}-user, password: {CANARY} }}, {{ nkey: {key.public} }}"
    by_user = Server(jetstream=False, websocket=True, config=f"authorization {{ users: [ {users} ] }}")
    by_token = Server(jetstream=False, token=CANARY)
    by_jwt = Server(jetstream=False, config=operator.resolver_config())
    jwts = (user.jwt, user.seed, other.jwt, other.seed)
    seeds = (key.seed, stranger.seed)
    with by_user, by_token, by_jwt:
        name = f"{CANARY}-user"
        url = by_user.url.replace("://", f"://{name}:{{}}@")
        yield {
            "password": Case(
                by_user,
                {"user": name, "password": CANARY},
                {"user": name, "password": f"{CANARY}-x"},
                CANARY,
            ),
            "url": Case(
                by_user, {"servers": url.format(CANARY)}, {"servers": url.format(f"{CANARY}-x")}, CANARY
            ),
            "function": Case(
                by_user,
                {"user": lambda: name, "password": lambda: CANARY},
                {"user": name, "password": lambda: f"{CANARY}-x"},
                CANARY,
            ),
            "auth": Case(
                by_user,
                {"auth": lambda nonce: {"user": name, "pass": CANARY}},
                {"auth": lambda nonce: {"user": name, "pass": f"{CANARY}-x"}},
                CANARY,
            ),
            "websocket": Case(
                by_user,
                {
                    "servers": f"{by_user.ws_url}/?key={CANARY}",
                    "user": name,
                    "password": CANARY,
                    "ws_headers": {"X-Key": CANARY},
                },
                {"servers": f"{by_user.ws_url}/?key={CANARY}", "ws_headers": {"X-Key": CANARY}},
                CANARY,
            ),
            "token": Case(by_token, {"token": CANARY}, {"token": f"{CANARY}-x"}, CANARY),
            "url token": Case(
                by_token,
                {"servers": by_token.url.replace("://", f"://{CANARY}@")},
                {"servers": by_token.url.replace("://", f"://{CANARY}-x@")},
                CANARY,
            ),
            "nkey": Case(by_user, {"nkey": key.seed}, {"nkey": stranger.seed}, *seeds),
            "nkey file": Case(
                by_user, {"nkey": str(folder / "good.nk")}, {"nkey": str(folder / "bad.nk")}, *seeds
            ),
            "jwt": Case(
                by_jwt,
                {"jwt": user.jwt, "nkey": user.seed},
                {"jwt": other.jwt, "nkey": other.seed},
                *jwts,
            ),
            "jwt of another": Case(
                by_jwt,
                {"jwt": lambda: user.jwt, "nkey": user.seed},
                {"jwt": user.jwt, "nkey": other.seed},
                *jwts,
            ),
            "creds": Case(
                by_jwt, {"creds": str(folder / "good.creds")}, {"creds": str(folder / "bad.creds")}, *jwts
            ),
            "creds text": Case(by_jwt, {"creds": user.creds()}, {"creds": other.creds()}, *jwts),
        }


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


def everything_in(value: object, seen: set[int] | None = None) -> Iterator[str]:
    """Every text that can be reached through attributes and containers; what a debugger would show."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes | bytearray):
        yield value.decode(errors="replace")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from everything_in(key, seen)
            yield from everything_in(item, seen)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from everything_in(item, seen)
    elif type(value).__module__.startswith(("jetspark", "asyncio", "websockets")):
        yield repr(value)
        names = list(getattr(value, "__dict__", {}))
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            names += [slots] if isinstance(slots, str) else list(slots)
        for name in names:
            if hasattr(value, name):
                yield from everything_in(getattr(value, name), seen)


def everything_about(error: BaseException) -> Iterator[str]:
    """The error with all that hangs on it, as text, as printed, and as shipped to a Spark driver."""
    chain: BaseException | None = error
    while chain is not None:
        yield str(chain)
        yield repr(chain)
        yield repr(vars(chain))
        chain = chain.__cause__ or chain.__context__
    yield "".join(traceback.format_exception(error))
    yield pickle.dumps(error).decode(errors="replace")


def check_silence(texts: Iterator[str], secrets: tuple[str, ...]) -> None:
    checked = 0
    for text in texts:
        checked += 1
        for secret in secrets:
            assert secret not in text, text[:2000]
    assert checked


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
    values = {field.name: getattr(nc.options, field.name) for field in fields(nc.options)}
    check_silence(iter([repr(nc.options), str(nc.options), repr(values)]), case.secrets)
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
