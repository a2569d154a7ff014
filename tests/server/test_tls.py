"""A server with TLS, seen through Python's own ssl."""

from __future__ import annotations

import json
import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from jetspark.server import ServerTLS
from support.helpers import LIMIT
from support.pki import PKI

if TYPE_CHECKING:
    from conftest import StartServer


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> PKI:
    return PKI(tmp_path_factory.mktemp("pki"))


def ping(port: int, context: ssl.SSLContext, *, info_first: bool) -> tuple[dict[str, object], bytes]:
    """INFO and the answer to PING, over TLS that starts after or before INFO."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as plain:
        received = b""
        if info_first:
            while not received.endswith(b"\r\n"):
                received += plain.recv(1)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            while not received.endswith(b"\r\n"):
                received += secure.recv(1)
            secure.sendall(b'CONNECT {"verbose":false,"tls_required":true}\r\nPING\r\n')
            answer = b""
            while not answer.endswith(b"PONG\r\n"):
                chunk = secure.recv(4096)
                if not chunk:
                    break
                answer += chunk
    return json.loads(received.removeprefix(b"INFO ")), answer


def test_tls_after_info(start_server: StartServer, pki: PKI) -> None:
    server = start_server(tls=ServerTLS(cert=pki.server.cert, key=pki.server.key), websocket=True)
    assert server.url.startswith("tls://127.0.0.1:")
    assert server.ws_url.startswith("wss://127.0.0.1:")
    info, answer = ping(server.port, ssl.create_default_context(cafile=pki.ca), info_first=True)
    assert info["tls_required"] is True
    assert answer.endswith(b"PONG\r\n")


def test_handshake_first(start_server: StartServer, pki: PKI) -> None:
    tls = ServerTLS(cert=pki.server.cert, key=pki.server.key, handshake_first=True)
    server = start_server(tls=tls)
    _, answer = ping(server.port, ssl.create_default_context(cafile=pki.ca), info_first=False)
    assert answer.endswith(b"PONG\r\n")


def test_client_certificates(start_server: StartServer, pki: PKI) -> None:
    tls = ServerTLS(cert=pki.server.cert, key=pki.server.key, ca=pki.ca, verify=True)
    server = start_server(tls=tls)
    context = ssl.create_default_context(cafile=pki.ca)
    context.load_cert_chain(pki.client.cert, pki.client.key)
    info, answer = ping(server.port, context, info_first=True)
    assert info["tls_verify"] is True
    assert answer.endswith(b"PONG\r\n")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ping(server.port, ssl.create_default_context(cafile=pki.ca), info_first=True)
