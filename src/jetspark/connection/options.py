"""The options of a connection, checked before anything is opened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jetspark._checks import is_number, is_whole
from jetspark._secret import hides_locals
from jetspark.connection.auth import Authenticator, build_authenticator
from jetspark.connection.events import Event
from jetspark.connection.tls import build_ssl_context
from jetspark.connection.websocket import WebSocketCodec
from jetspark.errors import AuthorizationError, InvalidArgument, JetsparkError
from jetspark.wire.subjects import validate_subject

if TYPE_CHECKING:
    import ssl

    from jetspark._secret import Secret
    from jetspark.connection.urls import ServerURL
    from jetspark.wire.info import ServerInfo

Listener = Callable[[Event], "Awaitable[None] | None"]

MIB = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """See :func:`jetspark.connect`, which documents every option."""

    servers: tuple[ServerURL, ...]
    name: str | None = None
    authenticator: Authenticator | None = field(default=None, repr=False)
    tls: ssl.SSLContext | bool | None = None
    tls_hostname: str | None = None
    tls_verify: bool = True
    tls_handshake_first: bool = False
    tls_context: ssl.SSLContext | None = field(default=None, repr=False)
    inbox_prefix: str = "_INBOX"
    connect_timeout: float = 2.0
    ping_interval: float = 20.0
    reconnect: bool = True
    max_reconnects: int | None = None
    reconnect_wait: float = 0.05
    reconnect_wait_max: float = 2.0
    reconnect_jitter: float = 0.5
    reconnect_buffer_size: int = 8 * MIB
    write_buffer_size: int = MIB
    randomize: bool = True
    ignore_discovered: bool = False
    echo: bool = True
    drain_timeout: float = 30.0
    request_timeout: float = 5.0
    listener: Listener | None = field(default=None, repr=False)
    ws_headers: Mapping[str, Secret] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in (
            "connect_timeout",
            "ping_interval",
            "reconnect_wait",
            "reconnect_wait_max",
            "drain_timeout",
            "request_timeout",
        ):
            _positive(name, getattr(self, name))
        for name in (
            "reconnect",
            "randomize",
            "ignore_discovered",
            "echo",
            "tls_verify",
            "tls_handshake_first",
        ):
            if not isinstance(getattr(self, name), bool):
                # The string "false" from an environment variable would count as true.
                raise InvalidArgument(name, getattr(self, name), "must be True or False")
        for name in ("name", "tls_hostname"):
            if not isinstance(getattr(self, name), str | None):
                raise InvalidArgument(name, getattr(self, name), "must be a string")
        if self.tls_hostname == "":
            raise InvalidArgument("tls_hostname", "", "is empty; leave the option out instead")
        if self.reconnect_wait_max < self.reconnect_wait:
            raise InvalidArgument(
                "reconnect_wait_max",
                self.reconnect_wait_max,
                f"must not be below reconnect_wait={self.reconnect_wait}",
            )
        if not is_number(self.reconnect_jitter) or not 0 <= self.reconnect_jitter <= 1:
            raise InvalidArgument(
                "reconnect_jitter",
                self.reconnect_jitter,
                "must be a fraction from 0 to 1",
            )
        if self.max_reconnects is not None and not is_whole(self.max_reconnects, 0):
            raise InvalidArgument(
                "max_reconnects",
                self.max_reconnects,
                "must be None (never give up), 0 or more",
            )
        if not is_whole(self.reconnect_buffer_size, 0):
            raise InvalidArgument(
                "reconnect_buffer_size",
                self.reconnect_buffer_size,
                "must be 0 (refuse) or more bytes",
            )
        if not is_whole(self.write_buffer_size, 1):
            raise InvalidArgument("write_buffer_size", self.write_buffer_size, "must be at least 1 byte")
        validate_subject(self.inbox_prefix, field="inbox_prefix")
        if self.listener is not None and not callable(self.listener):
            raise InvalidArgument("listener", self.listener, "must be a function that takes an event")
        if self.tls is False and any(url.needs_tls for url in self.servers):
            raise InvalidArgument("tls", False, "contradicts a tls:// or wss:// URL; drop one of them")
        if self.tls is False and (self.tls_handshake_first or self.tls_hostname):
            raise InvalidArgument(
                "tls",
                False,
                "contradicts tls_handshake_first and tls_hostname; drop one of them",
            )
        for url in self.servers:
            if url.scheme == "ws" and self.wants_tls(url):
                raise InvalidArgument(
                    "servers", str(url), "a TLS option was given, and ws:// is plain text; use wss://"
                )
            if url.is_websocket:
                # Reports bad headers and a missing package before anything is opened.
                WebSocketCodec(url, self.ws_headers)
        kinds = {url.is_websocket for url in self.servers}
        if len(kinds) > 1:
            raise InvalidArgument(
                "servers",
                [str(url) for url in self.servers],
                "must be all WebSocket (ws, wss) or none; servers announced by a cluster are of one kind",
            )

    def wants_tls(self, url: ServerURL) -> bool:
        """Whether the client side demands TLS: by URL, or because a TLS option was given."""
        return (
            url.needs_tls
            or self.tls_context is not None
            or self.tls_handshake_first
            or self.tls_hostname is not None
        )

    def tls_name(self, url: ServerURL) -> str:
        """The name that the certificate of the server at ``url`` must hold."""
        return self.tls_hostname or url.tls_name or url.host

    def ssl_context(self) -> ssl.SSLContext:
        """The configured context, or one that verifies against the system's authorities."""
        if self.tls_context is not None:
            return self.tls_context
        context = build_ssl_context(True, verify=self.tls_verify)
        assert context is not None
        return context

    @hides_locals
    def connect_fields(
        self, url: ServerURL, info: ServerInfo, version: str, *, tls: bool = False
    ) -> dict[str, Any]:
        """The JSON of CONNECT. It contains secrets, so it goes straight to the socket and nowhere else."""
        fields: dict[str, Any] = {
            "verbose": False,
            "pedantic": False,
            "tls_required": tls or self.wants_tls(url),
            "lang": "python-jetspark",
            "version": version,
            "protocol": 1,
            "echo": self.echo,
            "headers": info.headers,
            "no_responders": info.headers,
        }
        if self.name:
            fields["name"] = self.name
        authenticator = self.authenticator
        if authenticator is None and url.has_credentials:
            # Credentials in a URL apply to that server; options apply to all servers and win.
            authenticator = build_authenticator(user=url.user, password=url.password, token=url.token)
        if authenticator is not None:
            try:
                fields.update(authenticator.connect_fields(info.nonce))
            except JetsparkError:
                raise
            except Exception as error:
                # A user's own authenticator: whatever it raises must not end the reconnecting.
                raise AuthorizationError(
                    f"the authenticator given as auth raised {type(error).__name__}"
                ) from error
        return fields


def check_timeout(field: str, value: object) -> None:
    """Refuse values that are not a time to wait; 0 means not to wait, infinity to wait without end."""
    if not is_number(value) or not value >= 0:  # NaN is not at least 0
        raise InvalidArgument(field, value, "must be a number of seconds, 0 or more")


def _positive(name: str, value: Any) -> None:
    if not is_number(value) or not 0 < value < float("inf"):
        raise InvalidArgument(name, value, "must be a positive number of seconds")
