"""Server addresses: text in, :class:`ServerURL` out, and no secret ever back in text.

A url may carry credentials (``nats://user:password@host``). They are taken apart once, here, and kept
as :class:`~jetspark._secret.Secret`; ``str()`` and ``repr()`` of the result, and every error raised on
the way, show scheme, host, port and path only. A malformed url is redacted with the same care, because
the typo is often in the credentials themselves.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote_to_bytes

from jetspark._secret import Secret, hides_locals
from jetspark.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_PORTS = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
"""The schemes that can be connected to, each with its default port."""

_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_PATH_CHARS = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:/%]*")
_QUERY_CHARS = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:@/?%]*")


@dataclass(frozen=True, slots=True, repr=False)
class ServerURL:
    """One server to connect to. Hashable and comparable by value, credentials included."""

    scheme: str
    """``nats``, ``tls`` (TLS required), ``ws`` or ``wss`` (WebSocket, plain and over TLS)."""
    host: str
    """Host name in lower case, or an IP address; an IPv6 address has no brackets here."""
    port: int
    user: Secret | None = None
    password: Secret | None = None
    token: Secret | None = None
    """The user part of a url without a password: NATS reads it as a token."""
    path: str = ""
    """Path of the WebSocket endpoint, with its leading slash; empty for ``nats`` and ``tls``."""
    query: Secret | None = None
    """Query of a WebSocket url without the ``?``; a secret, because gateways take access keys there."""
    tls_name: str | None = None
    """The name to expect in the certificate when it is not ``host``: see :func:`discovered_url`."""

    @property
    def needs_tls(self) -> bool:
        """Whether the url demands TLS: then a server that offers none must be refused."""
        return self.scheme in ("tls", "wss")

    @property
    def is_websocket(self) -> bool:
        return self.scheme in ("ws", "wss")

    @property
    def hostport(self) -> str:
        """``host:port``, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def has_credentials(self) -> bool:
        return self.user is not None or self.token is not None

    def __str__(self) -> str:
        return f"{self.scheme}://{self.hostport}{self.path}{'?***' if self.query is not None else ''}"

    def __repr__(self) -> str:
        return f"ServerURL({str(self)!r})"


Servers: TypeAlias = "str | Secret | ServerURL | Sequence[str | Secret | ServerURL]"
"""What the ``servers`` option takes."""


@hides_locals
def parse_server_url(text: str) -> ServerURL:
    """Read one address: ``host``, ``host:port``, ``[ipv6]:port`` or any of them after ``scheme://``.

    Without a scheme it is ``nats``. User and password are percent-decoded. A user without a password is
    a token, as in every NATS client.
    """
    if not isinstance(text, str):
        raise InvalidArgument("servers", type(text).__name__, "a server url must be a string")
    stripped = text.strip()
    scheme, separator, rest = stripped.partition("://")
    if not separator:
        scheme, rest = "nats", stripped
    scheme = scheme.lower()
    if scheme not in DEFAULT_PORTS:
        raise _refuse(stripped, f"the scheme must be one of {', '.join(DEFAULT_PORTS)}")
    if not rest:
        raise _refuse(stripped, "it names no host")

    authority_end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    authority, resource = rest[:authority_end], rest[authority_end:]
    userinfo, at, hostport = authority.rpartition("@")
    path, query = _split_resource(stripped, scheme, resource)
    host, port = _split_hostport(stripped, hostport, DEFAULT_PORTS[scheme])
    user, password, token = _split_userinfo(stripped, userinfo) if at else (None, None, None)
    return ServerURL(scheme, host, port, user, password, token, path, query)


@hides_locals
def parse_servers(servers: Servers) -> list[ServerURL]:
    """Read the ``servers`` option: one url, a comma-separated list, or a sequence of either.

    A url may come as :class:`Secret` too, or already parsed. Order is kept and repeats are dropped, since
    trying one server twice in a round only costs time.
    """
    if isinstance(servers, bytes) or not isinstance(servers, str | Secret | ServerURL | Iterable):
        raise InvalidArgument("servers", type(servers).__name__, "must be a url or a list of them")
    entries = [servers] if isinstance(servers, str | Secret | ServerURL) else list(servers)
    found: dict[ServerURL, None] = {}
    for entry in entries:
        if isinstance(entry, ServerURL):
            found[entry] = None
            continue
        text = entry.reveal() if isinstance(entry, Secret) else entry
        if not isinstance(text, str):
            raise InvalidArgument("servers", type(text).__name__, "each server url must be a string")
        for part in text.split(","):
            if part.strip():
                found[parse_server_url(part)] = None
    if not found:
        raise InvalidArgument("servers", "", "at least one server url is needed")
    return list(found)


def discovered_url(entry: str, like: ServerURL) -> ServerURL:
    """Turn an entry of the server's ``connect_urls`` (``host:port``) into a url.

    Scheme, path and credentials come from ``like``, the url through which the cluster was found: its
    members share them, and a ``tls`` pool must never be led to a plaintext connection by gossip.

    Clusters gossip addresses while their certificates contain names. So a server with an address is
    expected to present the name through which the cluster was found.
    """
    if "://" in entry or "@" in entry or "/" in entry:
        raise _refuse(entry, "a discovered server must be host:port")
    found = parse_server_url(f"{like.scheme}://{entry}")
    name = like.tls_name or like.host
    tls_name = name if _is_address(found.host) and not _is_address(name) else None
    return replace(like, host=found.host, port=found.port, tls_name=tls_name)


def discovered_urls(entries: Iterable[str], like: ServerURL) -> tuple[list[ServerURL], list[str]]:
    """The readable entries of ``connect_urls``, as urls, and the unreadable ones."""
    found, unreadable = [], []
    for entry in entries:
        try:
            found.append(discovered_url(entry, like))
        except InvalidArgument:
            unreadable.append(entry)
    return found, unreadable


def redact_url(text: str) -> str:
    """The part of an unparsable url that may be shown: never anything that may be a user or a password."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    elif not re.fullmatch(r"[A-Za-z][A-Za-z0-9+]{0,9}", scheme):
        scheme = "***"
    # Up to the *last* @: an unescaped / or @ in a password must not push its tail into the host.
    _, at, rest = rest.rpartition("@")
    end = min(
        (position for position in map(rest.find, "/?#") if position >= 0),
        default=len(rest),
    )
    host, colon, port = rest[:end].rpartition(":")
    if not colon:
        host, port = rest[:end], ""
    elif not re.fullmatch(r"[0-9]{0,7}", port) and not port.endswith("]"):
        # Text after a colon that is not a number may well be a password whose @host got lost.
        port = "***"
    tail = "" if end == len(rest) else rest[end] + ("***" if end + 1 < len(rest) else "")
    return f"{scheme}{separator}{'***@' if at else ''}{host}{colon}{port}{tail}"


def _refuse(text: str, rule: str) -> InvalidArgument:
    return InvalidArgument("servers", redact_url(text), rule)


def _split_resource(text: str, scheme: str, resource: str) -> tuple[str, Secret | None]:
    if "#" in resource:
        raise _refuse(text, "a server url has no fragment; write # in a password as %23")
    if scheme in ("nats", "tls"):
        if resource not in ("", "/"):
            raise _refuse(
                text,
                f"a {scheme} url has no path; write / in a password as %2F and ? as %3F",
            )
        return "", None
    path, mark, query = resource.partition("?")
    # An @ here is more likely the end of a password with an unescaped slash than part of a path.
    if not _PATH_CHARS.fullmatch(path) or not _QUERY_CHARS.fullmatch(query) or _BAD_PERCENT.search(resource):
        raise _refuse(text, "path and query must be percent-encoded (@ in a path is %40)")
    return path, Secret(query) if mark else None


def _split_hostport(text: str, hostport: str, default_port: int) -> tuple[str, int]:
    if hostport.startswith("["):
        host, bracket, tail = hostport[1:].partition("]")
        host = host.replace("%25", "%")  # RFC 6874 writes the % before a zone as %25
        if not bracket or not _is_ipv6(host):
            raise _refuse(text, "brackets must hold an IPv6 address, as in [::1]:4222")
        if tail and not tail.startswith(":"):
            raise _refuse(text, "only :port may follow the brackets of an IPv6 address")
        colon, port_text = tail[:1], tail[1:]
    else:
        if hostport.count(":") > 1:
            raise _refuse(text, "put an IPv6 address in brackets, as in [::1]:4222")
        host, colon, port_text = hostport.partition(":")
        if not host:
            raise _refuse(text, "it names no host")
        if not all(char.isalnum() or char in "-._" for char in host):
            raise _refuse(
                text,
                "the host may hold letters, digits, dots, hyphens and underscores only",
            )
    if not colon:
        return host.lower(), default_port
    if not re.fullmatch(r"[0-9]{1,5}", port_text) or not 1 <= int(port_text) <= 65535:
        raise _refuse(text, "the port must be a number from 1 to 65535")
    return host.lower(), int(port_text)


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _split_userinfo(text: str, userinfo: str) -> tuple[Secret | None, Secret | None, Secret | None]:
    user_text, colon, password_text = userinfo.partition(":")
    user, password = _unquote(user_text), _unquote(password_text)
    if user is None or password is None:
        raise _refuse(
            text,
            "user and password must be percent-encoded UTF-8; write % itself as %25",
        )
    if not user:
        raise _refuse(text, "the part before @ names no user and no token")
    if not colon:
        return None, None, Secret(user)
    return Secret(user), Secret(password), None


def _unquote(text: str) -> str | None:
    # None instead of an exception: UnicodeDecodeError would carry the secret bytes in its context.
    if _BAD_PERCENT.search(text):
        return None
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        return None
