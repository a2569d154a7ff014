"""TLS against the real server: what is trusted, what is not, and that nothing leaves before it is up."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark.connection import events as ev
from jetspark.connection.options import ConnectOptions
from jetspark.errors import (
    AuthorizationError,
    InvalidArgument,
    JetsparkError,
    NoServersAvailable,
    ProtocolError,
    TLSError,
)
from jetspark.server import Server, ServerTLS
from support.catchers import PlainServer, TLSServer, info
from support.fault_proxy import FaultProxy
from support.helpers import eventually
from support.pki import PKI, CertFiles
from support.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CANARY = "canary-credential"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> PKI:
    return PKI(tmp_path_factory.mktemp("pki"))


def tls_server(files: CertFiles, **tls: Any) -> Server:
    return Server(jetstream=False, websocket=True, tls=ServerTLS(cert=files.cert, key=files.key, **tls))


@pytest.fixture(scope="module")
def good(pki: PKI) -> Iterator[Server]:
    with tls_server(pki.server) as server:
        yield server


@pytest.fixture(scope="module")
def expired(pki: PKI) -> Iterator[Server]:
    with tls_server(pki.expired) as server:
        yield server


@pytest.fixture(scope="module")
def wrong_host(pki: PKI) -> Iterator[Server]:
    with tls_server(pki.wrong_host) as server:
        yield server


@pytest.fixture(scope="module")
def mutual(pki: PKI) -> Iterator[Server]:
    with tls_server(pki.server, ca=pki.ca, verify=True) as server:
        yield server


@pytest.fixture(scope="module")
def first(pki: PKI) -> Iterator[Server]:
    with tls_server(pki.server, handshake_first=True) as server:
        yield server


async def works(url: str, **options: Any) -> bool:
    """Whether a message comes back over a connection with these options."""
    async with jetspark.connect(url, **options) as nc:
        sub = await nc.subscribe("hello")
        await nc.publish("hello", b"x" * 100_000)
        return len((await sub.next()).data) == 100_000


def own_context(pki: PKI) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(pki.ca))


async def test_tls_url_with_an_authority(good: Server, pki: PKI) -> None:
    assert await works(good.url, tls_ca=pki.ca)


async def test_a_context_of_ones_own(good: Server, pki: PKI) -> None:
    assert await works(good.url, tls=own_context(pki))


async def test_a_nats_url_is_upgraded_when_the_server_requires_tls(good: Server, pki: PKI) -> None:
    url = good.url.replace("tls://", "nats://")
    assert await works(url, tls_ca=pki.ca)
    with pytest.raises(TLSError, match="not trusted"):
        await jetspark.connect(url)
    with pytest.raises(TLSError, match="tls=False forbids"):
        await jetspark.connect(url, tls=False)


async def test_verification_can_be_switched_off_in_so_many_words(expired: Server, wrong_host: Server) -> None:
    assert await works(expired.url, tls_verify=False)
    assert await works(wrong_host.url.replace("tls://", "nats://"), tls_verify=False)


async def test_tls_hostname_names_what_to_expect(wrong_host: Server, pki: PKI) -> None:
    assert await works(wrong_host.url, tls_ca=pki.ca, tls_hostname="elsewhere.test")


async def test_mutual_tls(mutual: Server, pki: PKI) -> None:
    assert await works(mutual.url, tls_ca=pki.ca, tls_cert=pki.client.cert, tls_key=pki.client.key)
    assert await works(mutual.url, tls_ca=pki.ca, tls_cert=pki.client.combined)


async def test_handshake_first(first: Server, pki: PKI) -> None:
    assert await works(first.url, tls_ca=pki.ca, tls_handshake_first=True)


@pytest.mark.parametrize("attempt", range(5))
async def test_client_certificate_missing_or_refused(mutual: Server, pki: PKI, attempt: int) -> None:
    # In TLS 1.3 the refusal comes after our side of the handshake, and may meet our CONNECT on its way:
    # several attempts, because both orders must end the same.
    with pytest.raises(TLSError, match="tls_cert"):
        await jetspark.connect(mutual.url, tls_ca=pki.ca)
    stranger = {"tls_cert": pki.other_client.cert, "tls_key": pki.other_client.key}
    with pytest.raises(TLSError, match="tls_cert"):
        await jetspark.connect(mutual.url, tls_ca=pki.ca, **stranger)


REFUSED: dict[str, tuple[str, Callable[[PKI], dict[str, Any]], str]] = {
    "unknown authority": ("good", lambda pki: {"tls_ca": pki.other_ca}, "not trusted here: set tls_ca"),
    "system authorities": ("good", lambda pki: {}, "not trusted here: set tls_ca"),
    "expired": ("expired", lambda pki: {"tls_ca": pki.ca}, "has expired"),
    "wrong host": ("wrong_host", lambda pki: {"tls_ca": pki.ca}, "not for 127.0.0.1.*tls_hostname"),
    "wrong tls_hostname": (
        "good",
        lambda pki: {"tls_ca": pki.ca, "tls_hostname": "elsewhere.test"},
        "not for elsewhere.test",
    ),
    "first, without the server": (
        "good",
        lambda pki: {"tls_ca": pki.ca, "tls_handshake_first": True},
        "tls_handshake_first",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_refused_at_once_with_a_reason(case: str, pki: PKI, request: pytest.FixtureRequest) -> None:
    which, options, text = REFUSED[case]
    server: Server = request.getfixturevalue(which)
    start = time.monotonic()
    with pytest.raises(TLSError, match=text):
        await jetspark.connect(server.url, connect_timeout=60, **options(pki))
    assert time.monotonic() - start < 20


async def test_a_server_that_waits_for_the_handshake_first(first: Server, pki: PKI) -> None:
    # It sends no INFO to a client that waits for one; the time-out is all there is.
    with pytest.raises(JetsparkError, match=r"connect_timeout=0\.3"):
        await jetspark.connect(first.url, tls_ca=pki.ca, connect_timeout=0.3)


async def test_tls_survives_a_restart(pki: PKI) -> None:
    recorder = Recorder()
    with tls_server(pki.server) as server:
        async with jetspark.connect(server.url, tls_ca=pki.ca, listener=recorder) as nc:
            sub = await nc.subscribe("hello")
            await asyncio.to_thread(server.kill)
            await recorder.wait(ev.Disconnected)
            await asyncio.to_thread(server.restart)
            await recorder.wait(ev.Reconnected)
            await nc.publish("hello", b"again")
            assert (await sub.next()).data == b"again"


def test_tls_options_and_plain_websocket_contradict_each_other(pki: PKI) -> None:
    for options in ({"tls_ca": pki.ca}, {"tls": True}, {"tls_handshake_first": True}, {"tls_hostname": "a"}):
        with pytest.raises(InvalidArgument, match="use wss://"):
            jetspark.connect("ws://127.0.0.1:1", **options)
    with pytest.raises(InvalidArgument, match="contradicts"):
        jetspark.connect("tls://127.0.0.1:1", tls=False)
    with pytest.raises(InvalidArgument, match="contradicts"):
        jetspark.connect("nats://127.0.0.1:1", tls=False, tls_hostname="a")


CREDENTIALS: dict[str, dict[str, Any]] = {
    "token": {"token": CANARY},
    "password": {"user": CANARY, "password": CANARY},
    "function": {"auth": lambda nonce: {"auth_token": CANARY}},
}


@pytest.mark.parametrize("kind", CREDENTIALS)
async def test_a_plain_text_server_gets_not_one_byte_from_a_tls_client(kind: str) -> None:
    async with PlainServer(info()).running() as fake:
        with pytest.raises(TLSError, match="offers no TLS"):
            await jetspark.connect(fake.url, **CREDENTIALS[kind])
        await asyncio.wait_for(fake.gone.wait(), 20)
        assert (fake.clients, fake.received) == (1, b"")


@pytest.mark.parametrize(
    "options", [{"tls": True}, {"tls_hostname": "localhost"}, {"tls_handshake_first": True}, {"tls_ca": True}]
)
async def test_any_tls_option_keeps_credentials_from_a_plain_text_server(
    options: dict[str, Any], pki: PKI
) -> None:
    if "tls_ca" in options:
        options = {"tls_ca": pki.ca}
    async with PlainServer(info()).running() as fake:
        url = fake.url.replace("tls://", "nats://")
        with pytest.raises(TLSError):
            await jetspark.connect(url, token=CANARY, **options)
        await asyncio.wait_for(fake.gone.wait(), 20)
        assert CANARY.encode() not in fake.received
        # A ClientHello is all that may have left, and only to a server that was said to expect it.
        assert bool(fake.received) == ("tls_handshake_first" in options)


async def test_a_url_with_credentials_keeps_them_from_a_plain_text_server() -> None:
    async with PlainServer(info()).running() as fake:
        with pytest.raises(TLSError):
            await jetspark.connect(fake.url.replace("://", f"://{CANARY}:{CANARY}@"))
        await asyncio.wait_for(fake.gone.wait(), 20)
        assert fake.received == b""


async def test_what_comes_in_plain_text_after_info_is_not_believed() -> None:
    # A PONG slipped in before the handshake would be taken for the server's consent afterwards.
    async with PlainServer(info(tls_required=True) + b"PONG\r\n").running() as fake:
        with pytest.raises(NoServersAvailable, match="more than INFO before the TLS handshake"):
            await jetspark.connect(fake.url, token=CANARY, tls_verify=False)
        await asyncio.wait_for(fake.gone.wait(), 20)
        assert fake.received == b""


async def test_a_server_that_is_none(pki: PKI) -> None:
    async with PlainServer(b"HTTP/1.1 400 Bad Request\r\n\r\n").running() as fake:
        with pytest.raises((NoServersAvailable, ProtocolError)):
            await jetspark.connect(fake.url, token=CANARY)
        await asyncio.wait_for(fake.gone.wait(), 20)
        assert fake.received == b""


# What comes before TLS, and what comes after it


def rewritten(**lies: Any) -> Callable[[bytes], bytes]:
    """A man in the middle's hand at the plain INFO."""
    return lambda line: b"INFO " + json.dumps({**json.loads(line[5:]), **lies}).encode() + b"\r\n"


LIES: dict[str, Any] = {
    "connect_urls": ["localhost:4222", "192.0.2.1:4222"],
    "ws_connect_urls": ["localhost:4222"],
    "headers": False,
    "max_payload": 1,
    "ldm": True,
    "jetstream": True,
    "version": "1.0.0",
    "server_name": "liar",
    "server_id": "liar",
    "cluster": "liar",
    "domain": "liar",
    "client_id": 12345678,
    "client_ip": "192.0.2.1",
    "proto": 0,
    "auth_required": True,
    "xkey": "liar",
}


@pytest.mark.parametrize("scheme", ["tls", "nats"])
async def test_nothing_of_the_plain_info_is_believed(good: Server, pki: PKI, scheme: str) -> None:
    recorder = Recorder()
    async with FaultProxy(good) as proxy:
        proxy.rewrite = rewritten(**LIES)
        url = proxy.url.replace("nats://", f"{scheme}://")
        async with jetspark.connect(url, tls_ca=pki.ca, listener=recorder) as nc:
            for _ in range(2):
                told = nc.server_info
                assert (nc.servers, nc.discovered_servers) == ([url], [])
                assert {name for name in LIES if getattr(told, name) == LIES[name]} <= {"auth_required"}
                assert (told.server_name, nc.max_payload) == (good.name, 1_048_576)
                # Headers work in both directions: the server was not made to strip them.
                sub = await nc.subscribe("h")
                await nc.publish("h", b"x" * 1000, headers={"A": "b"})
                assert (await sub.next()).headers["A"] == "b"
                await nc.force_reconnect()
    assert set(recorder.names()) == {"Connected", "Disconnected", "Reconnected", "Closed"}


async def test_a_server_that_sends_no_info_over_tls_works_without_discovery(pki: PKI) -> None:
    # As those before 2.12 do; none of the tests' own.
    plain = {"connect_urls": ["localhost:4222"], "max_payload": 2_000_000, "headers": False}
    async with (
        TLSServer(pki.server, **plain).running() as server,
        jetspark.connect(server.url, tls_ca=pki.ca, token=CANARY) as nc,
    ):
        assert (nc.servers, nc.max_payload) == ([server.url], 2_000_000)
        assert (nc.server_info.headers, nc.server_info.version) == (True, "")
        connect = json.loads(server.received.split(b"\r\n")[0].removeprefix(b"CONNECT "))
        assert (connect["headers"], connect["no_responders"], connect["tls_required"]) == (True, True, True)


async def test_what_the_info_over_tls_announces_is_believed(pki: PKI) -> None:
    after = info(connect_urls=["127.0.0.1:1", "127.0.0.1:2"], max_payload=3_000_000)
    async with (
        TLSServer(pki.server, after=after, connect_urls=["192.0.2.1:1"]).running() as server,
        jetspark.connect(server.url, tls_ca=pki.ca) as nc,
    ):
        assert sorted(nc.discovered_servers) == ["tls://127.0.0.1:1", "tls://127.0.0.1:2"]
        assert nc.max_payload == 3_000_000


@pytest.mark.parametrize("kind", CREDENTIALS)
async def test_tls_once_used_is_demanded_after_a_cut(good: Server, pki: PKI, kind: str) -> None:
    recorder = Recorder()
    context = ssl.create_default_context(cafile=str(pki.ca))
    with pytest.MonkeyPatch.context() as patch:
        # A nats:// URL without a TLS option, so that only the server asks for TLS.
        patch.setattr(ConnectOptions, "ssl_context", lambda self: context)
        async with FaultProxy(good) as proxy, PlainServer(info()).running() as thief:
            other = thief.url.replace("tls://", "nats://")
            servers = [proxy.url, other]
            options = {"randomize": False, "listener": recorder, "reconnect_wait_max": 0.1}
            async with jetspark.connect(servers, **CREDENTIALS[kind], **options) as nc:
                sub = await nc.subscribe("x")
                proxy.target = thief
                proxy.cut()
                await recorder.wait(ev.ReconnectFailed, 6)
                proxy.target = good
                await recorder.wait(ev.Reconnected)
                await nc.publish("x", b"safe")
                assert (await sub.next()).data == b"safe"
            assert thief.clients >= 6
            assert thief.received == b""
    for event in recorder.of(ev.ReconnectFailed):
        assert isinstance(event.error, TLSError)
        assert "has used TLS before: enable tls in all servers" in str(event.error)


async def test_tls_that_came_up_at_a_server_that_refuses_is_demanded_of_the_next(pki: PKI) -> None:
    tls = ServerTLS(cert=pki.server.cert, key=pki.server.key)
    with (
        Server(jetstream=False, token="another", tls=tls) as refusing,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(ConnectOptions, "ssl_context", lambda self: own_context(pki))
        async with PlainServer(info()).running() as thief:
            servers = [url.replace("tls://", "nats://") for url in (refusing.url, thief.url)]
            with pytest.raises(AuthorizationError):
                await jetspark.connect(servers, token=CANARY, randomize=False)
            await asyncio.wait_for(thief.gone.wait(), 20)
            assert (thief.clients, thief.received) == (1, b"")


async def test_a_plain_websocket_gets_nothing_after_tls_was_used(good: Server, pki: PKI) -> None:
    recorder = Recorder()
    context = ssl.create_default_context(cafile=str(pki.ca))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConnectOptions, "ssl_context", lambda self: context)
        async with PlainServer(b"").running() as thief:
            servers = [good.ws_url, thief.url.replace("tls://", "ws://")]
            options: dict[str, Any] = {"randomize": False, "listener": recorder, "ws_headers": {"X": CANARY}}
            async with jetspark.connect(servers, **options) as nc:
                assert str(nc.connected_url).startswith("wss://")
                await nc.force_reconnect()
                await eventually(lambda: nc.is_connected)
            assert (thief.clients, thief.received) == (0, b"")
    assert "give wss:// URLs only" in str(recorder.of(ev.ReconnectFailed)[0].error)
