"""A canary in every kind of credentials, and every place where it must not sing."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from canaries import CANARY, Case, canary_cases, check_silence, everything_about, everything_in
from jetspark.errors import AuthorizationError, InvalidArgument, JetsparkError, NoServersAvailable
from recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator


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
