"""The text of a server's configuration file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTLS:
    """TLS for client connections. All files are PEM.

    cert, key: the server's certificate (chain) and private key.
    ca: authorities whose client certificates are accepted; the system's by default.
    verify: require a client certificate. Default: False.
    handshake_first: expect the TLS handshake before INFO is sent (server 2.10.4+). Default: False.
    """

    cert: str | os.PathLike[str]
    key: str | os.PathLike[str]
    ca: str | os.PathLike[str] | None = None
    verify: bool = False
    handshake_first: bool = False


def quote(value: str | os.PathLike[str]) -> str:
    """A string of the configuration language; its escapes are a subset of JSON's, without \\u."""
    return json.dumps(os.fspath(value), ensure_ascii=False)


def tls_block(tls: ServerTLS, *, handshake_first: bool) -> str:
    lines = [f"cert_file: {quote(os.path.abspath(tls.cert))}", f"key_file: {quote(os.path.abspath(tls.key))}"]
    if tls.ca is not None:
        lines.append(f"ca_file: {quote(os.path.abspath(tls.ca))}")
    if tls.verify:
        lines.append("verify: true")
    if handshake_first:
        lines.append("handshake_first: true")
    return "tls { " + "\n  ".join(lines) + " }"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that the text depends on; see Server for the meaning of each."""

    host: str
    port: int
    http_port: int | None
    websocket_port: int | None
    name: str
    domain: str | None
    store_dir: str | None
    tls: ServerTLS | None
    user: str | None
    password: str | None
    token: str | None
    cluster: str | None
    config: str


def render(settings: Settings) -> str:
    lines = [
        f"server_name: {quote(settings.name)}",
        f"host: {quote(settings.host)}",
        f"port: {settings.port}",
    ]
    if settings.http_port is not None:
        lines.append(f"http: {quote(f'{settings.host}:{settings.http_port}')}")
    if settings.store_dir is not None:
        domain = f", domain: {quote(settings.domain)}" if settings.domain else ""
        lines.append(f"jetstream {{ store_dir: {quote(settings.store_dir)}{domain} }}")
    if settings.tls is not None:
        lines.append(tls_block(settings.tls, handshake_first=settings.tls.handshake_first))
    if settings.websocket_port is not None:
        # handshake_first is an option of the client listener alone.
        security = tls_block(settings.tls, handshake_first=False) if settings.tls else "no_tls: true"
        lines.append(
            f"websocket {{ host: {quote(settings.host)}, port: {settings.websocket_port}\n  {security} }}"
        )
    if settings.token is not None:
        lines.append(f"authorization {{ token: {quote(settings.token)} }}")
    elif settings.user is not None:
        lines.append(
            f"authorization {{ user: {quote(settings.user)}, password: {quote(settings.password or '')} }}"
        )
    if settings.cluster is not None:
        lines.append(settings.cluster)
    if settings.config:
        lines.append(settings.config)
    return "\n".join(lines) + "\n"
