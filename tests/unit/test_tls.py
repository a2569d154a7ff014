from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest

from jetspark.connection.tls import build_ssl_context, translate_ssl_error
from jetspark.errors import InvalidArgument, TLSError

if TYPE_CHECKING:
    from pathlib import Path
from support.pki import PKI, CertFiles


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> PKI:
    return PKI(tmp_path_factory.mktemp("pki"))


def handshake(
    client: ssl.SSLContext, server: ssl.SSLContext, host: str = "localhost"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """A whole TLS handshake in memory; raises what the client (or, failing that, the server) raises."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(to_client, to_server, server_hostname=host)
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client_side, server_side]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
        if not waiting:
            return client_side, server_side
    raise AssertionError("the handshake did not end")


def server_context(files: CertFiles, *, client_ca: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(**options: object) -> ssl.SSLContext:
    context = build_ssl_context(True, **options)  # type: ignore[arg-type]
    assert context is not None
    return context


# --- building ---


@pytest.mark.parametrize(("tls", "verify"), [(None, True), (False, True), (None, False), (False, False)])
def test_nothing_asks_for_tls(tls: bool | None, verify: bool) -> None:
    assert build_ssl_context(tls, verify=verify) is None


def test_verification_and_modern_versions_are_the_default() -> None:
    context = client_context()
    assert context.check_hostname is True
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_system_authorities_are_replaced_by_ours(pki: PKI) -> None:
    context = build_ssl_context(ca=pki.ca)
    assert context is not None
    assert context.cert_store_stats()["x509_ca"] == 1


def test_verify_false_is_the_only_way_to_switch_verification_off(pki: PKI) -> None:
    context = client_context(verify=False)
    assert context.check_hostname is False
    assert context.verify_mode is ssl.CERT_NONE
    client, _ = handshake(context, server_context(pki.wrong_host))
    assert client.version() == "TLSv1.3"


def test_own_context_is_passed_through() -> None:
    own = ssl.create_default_context()
    assert build_ssl_context(own) is own


def test_client_certificate_in_one_file_or_two(pki: PKI) -> None:
    server = server_context(pki.server, client_ca=pki.ca)
    for options in ({"cert": pki.client.cert, "key": pki.client.key}, {"cert": str(pki.client.combined)}):
        _, server_side = handshake(client_context(ca=pki.ca, **options), server)
        peer = server_side.getpeercert()
        assert peer is not None
        assert peer["subjectAltName"] == (("email", PKI.CLIENT_EMAIL),)


def test_home_directory_is_expanded(pki: PKI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(pki.ca.parent))
    assert client_context(ca=f"~/{pki.ca.name}").cert_store_stats()["x509_ca"] == 1


def test_ca_may_be_a_directory(pki: PKI) -> None:
    assert client_context(ca=pki.ca.parent).verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tls": False, "ca": "ca.pem"}, "tls=False: can't be combined with tls_ca"),
        (
            {"tls": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "cert": "c.pem"},
            "can't be combined with tls_cert",
        ),
        (
            {"tls": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "verify": False},
            "can't be combined with tls_verify",
        ),
        ({"key": "k.pem"}, "tls_key='k.pem': needs tls_cert"),
        ({"ca": ""}, "tls_ca='': the path is empty"),
        ({"tls": "yes"}, "tls='str': must be"),
    ],
)
def test_contradictions_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        build_ssl_context(**options)  # type: ignore[arg-type]
    assert text in str(caught.value)


def test_unusable_files_are_named(pki: PKI, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("not a certificate")
    encrypted = pki.authority.issue("encrypted", client=True, password=b"pw")
    cases: list[tuple[dict[str, Path], list[str]]] = [
        ({"ca": missing}, ["tls_ca", str(missing), "No such file"]),
        ({"ca": garbage}, ["tls_ca", str(garbage), "no PEM certificate"]),
        ({"cert": missing}, ["tls_cert", str(missing), "No such file"]),
        ({"cert": tmp_path}, ["tls_cert", str(tmp_path), "directory"]),
        ({"cert": pki.client.cert, "key": missing}, ["tls_key", str(missing), "No such file"]),
        ({"cert": pki.client.cert}, ["tls_cert", str(pki.client.cert), "tls_key"]),
        ({"cert": garbage, "key": pki.client.key}, [str(garbage), "PEM certificate"]),
        ({"cert": pki.client.cert, "key": pki.server.key}, [str(pki.server.key), "not the private key"]),
        ({"cert": encrypted.cert, "key": encrypted.key}, [str(encrypted.key), "encrypted"]),
        ({"cert": encrypted.combined}, [str(encrypted.combined), "encrypted"]),
    ]
    for options, expected in cases:
        with pytest.raises(TLSError) as caught:
            client_context(**options)
        assert [part for part in expected if part not in str(caught.value)] == []


# --- explaining ---


def test_failed_verification_is_explained(pki: PKI) -> None:
    trusting = client_context(ca=pki.ca)
    cases = [
        (pki.expired, "localhost", "has expired"),
        (pki.not_yet_valid, "localhost", "not valid yet"),
        (pki.wrong_host, "localhost", "tls_hostname"),
        (pki.wrong_host, "127.0.0.1", "tls_hostname"),
        (pki.other_server, "localhost", "tls_ca"),
    ]
    for files, host, expected in cases:
        with pytest.raises(ssl.SSLCertVerificationError) as caught:
            handshake(trusting, server_context(files), host)
        error = translate_ssl_error(caught.value, host)
        assert expected in str(error)
        assert host in str(error)


def test_good_certificate_for_every_local_name(pki: PKI) -> None:
    for host in ("localhost", "127.0.0.1", "::1"):
        client, _ = handshake(client_context(ca=pki.ca), server_context(pki.server), host)
        assert client.getpeercert() is not None


@pytest.mark.parametrize("greeting", [b'INFO {"server_id":"N"} \r\n', b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_plain_text_server_is_explained(greeting: bytes) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context().wrap_bio(incoming, outgoing, server_hostname="h")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    incoming.write(greeting)
    with pytest.raises(ssl.SSLError) as caught:
        client.do_handshake()
    assert "plain text" in str(translate_ssl_error(caught.value, "h"))


def test_old_protocol_versions_are_explained(pki: PKI) -> None:
    server = server_context(pki.server)
    server.minimum_version = ssl.TLSVersion.TLSv1_3
    client = client_context(ca=pki.ca)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError) as caught:
        handshake(client, server)
    assert "TLS 1.2 or newer" in str(translate_ssl_error(caught.value, "h"))


def _client_alert(client: ssl.SSLContext, server: ssl.SSLContext) -> ssl.SSLError:
    """With TLS 1.3 the client learns of the refusal when it reads, after its own handshake is done."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    with pytest.raises(ssl.SSLWantReadError):
        client_side.do_handshake()
    with pytest.raises(ssl.SSLWantReadError):
        server_side.do_handshake()
    client_side.do_handshake()
    with pytest.raises(ssl.SSLError):
        server_side.do_handshake()
    with pytest.raises(ssl.SSLError) as caught:
        client_side.read()
    return caught.value


def test_missing_and_refused_client_certificates_are_explained(pki: PKI) -> None:
    server = server_context(pki.server, client_ca=pki.ca)
    missing = _client_alert(client_context(ca=pki.ca), server)
    assert "set tls_cert" in str(translate_ssl_error(missing, "h"))
    refused = _client_alert(client_context(ca=pki.ca, cert=pki.other_client.combined), server)
    assert "refused our client certificate" in str(translate_ssl_error(refused, "h"))


@pytest.mark.parametrize(
    ("exc", "text"),
    [
        (ssl.SSLEOFError(8, "EOF occurred"), "closed the connection"),
        (ConnectionResetError(104, "reset"), "closed the connection"),
        (TimeoutError(), "in time"),
        (ssl.SSLError(1, "[SSL: WEIRD] weird"), "weird"),
        (OSError(), "OSError"),
    ],
)
def test_other_failures_name_the_host(exc: OSError, text: str) -> None:
    error = translate_ssl_error(exc, "example:4222")
    assert isinstance(error, TLSError)
    assert text in str(error)
    assert "example:4222" in str(error)
