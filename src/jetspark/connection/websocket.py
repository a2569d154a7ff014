"""NATS over WebSocket, without IO: network bytes in, NATS bytes out, and the other way round.

The transport sends :meth:`~WebSocketCodec.handshake`, then feeds what arrives to
:meth:`~WebSocketCodec.receive` and writes what :meth:`~WebSocketCodec.outgoing` holds. Frame boundaries mean
nothing to NATS: the payloads of all binary frames are one byte stream. So fragments are passed on as they
come instead of being joined into messages.

The framing itself is done by the sans-IO core of the ``websockets`` package, an optional dependency.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from jetspark._secret import Secret, hides_locals
from jetspark.errors import (
    AuthorizationError,
    ConnectionLost,
    InvalidArgument,
    JetsparkError,
    ProtocolError,
)

if TYPE_CHECKING:
    from websockets.client import ClientProtocol

    from jetspark.connection.urls import ServerURL

MAX_FRAME_SIZE = 128 * 1024 * 1024
"""Longest frame or fragmented message accepted. A server may put everything that is pending for a client
into one frame, and its ``max_pending`` is 64 MiB by default."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+\-.^_`|~]+")
_RESERVED_HEADERS = frozenset({"host", "upgrade", "connection", "content-length", "transfer-encoding"})

# The library logs headers and frames at DEBUG, and the CONNECT frame holds the password. A logger outside
# the hierarchy, with a level above all others, can't be enabled by any logging configuration.
_SILENT = logging.Logger("jetspark.websocket.silent", logging.CRITICAL + 1)


class WebSocketCodec:
    """One WebSocket connection to the server at ``url``; ``headers`` are added to the upgrade request."""

    __slots__ = ("_ended", "_first", "_protocol", "_request_headers", "_url", "ready")

    ready: bool
    """True once the server has accepted the upgrade; only then may :meth:`send` be called."""

    def __init__(
        self,
        url: ServerURL,
        headers: Mapping[str, str | Secret] | None = None,
        *,
        max_frame_size: int = MAX_FRAME_SIZE,
    ) -> None:
        self._url = url
        self._request_headers = _checked_headers(headers or {})
        self._protocol = _new_protocol(url, max_frame_size)
        self._first = b""
        self._ended = False
        self.ready = False

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open" if self.ready else "connecting"
        return f"WebSocketCodec({str(self._url)!r}, {state})"

    @property
    def closed(self) -> bool:
        """A close frame was sent or received, or the stream ended: nothing can be sent any more."""
        return self._ended or self._protocol.close_sent is not None

    @property
    def close_reason(self) -> str | None:
        """Code and reason of the server's close frame, ``None`` until it arrives."""
        received = self._protocol.close_rcvd
        return None if received is None else f"{received.code} {received.reason}".strip()

    def handshake(self) -> bytes:
        """The HTTP request that asks for the upgrade: the first bytes to send."""
        request = self._protocol.connect()
        for name, value in self._request_headers:
            request.headers[name] = value.reveal()
        self._protocol.send_request(request)
        # The query may be an access key, and it is no longer needed.
        self._protocol.uri = replace(self._protocol.uri, query="")
        return self.outgoing()

    def receive(self, data: bytes) -> bytes:
        """Take bytes from the network and return the NATS bytes in them (of no frame, one or many).

        Raises ``AuthorizationError`` when the upgrade was refused with 401 or 403, ``ProtocolError`` for
        any other refusal and for frames that break the rules. Write :meth:`outgoing` in either case.
        """
        if self._ended:
            return b""
        protocol = self._protocol
        if not self.ready and len(self._first) < 5:
            self._first += data[:5]
        protocol.receive_data(data)
        if not self.ready:
            if protocol.handshake_exc is not None:
                raise self._refused(protocol.handshake_exc)
            if not protocol.events:
                return b""
            protocol.events.pop(0)  # the response
            self.ready = True
        payloads = [self._payload(frame) for frame in protocol.events_received()]
        if protocol.parser_exc is not None:
            raise ProtocolError(f"{self._url} sent a bad WebSocket frame: {protocol.parser_exc}")
        return payloads[0] if len(payloads) == 1 else b"".join(payloads)

    def send(self, data: bytes) -> bytes:
        """Frame NATS bytes for the network. Raises ``ConnectionLost`` once :attr:`closed`."""
        if not self.ready or self.closed:
            state = "closing" if self.ready else "not open yet"
            raise ConnectionLost(f"the WebSocket to {self._url} is {state}")
        protocol = self._protocol
        protocol.send_binary(data)
        return self.outgoing()

    def outgoing(self) -> bytes:
        """Bytes that the protocol itself wants to send: pongs, and the answer to a close frame."""
        writes = self._protocol.data_to_send()
        return writes[0] if len(writes) == 1 else b"".join(writes)

    def close(self) -> bytes:
        """The close frame to send before closing the connection; empty when there is nothing to say."""
        if self.ready and not self.closed:
            self._protocol.send_close(1000)
        return self.outgoing()

    def eof(self) -> None:
        """The network stream ended. Raises like :meth:`receive` when that cut the handshake short."""
        if self._ended:
            return
        self._ended = True
        self._protocol.receive_eof()
        self._protocol.data_to_send()  # there is no peer left to read it
        if not self.ready:
            raise self._refused(self._protocol.handshake_exc)

    def _payload(self, frame: object) -> bytes:
        opcode = getattr(frame, "opcode", None)
        if opcode in (0, 2):  # continuation, binary
            return bytes(frame.data)  # type: ignore[attr-defined]
        if opcode == 1:
            raise ProtocolError(f"{self._url} sent a WebSocket text frame; NATS uses binary frames only")
        return b""

    def _refused(self, exc: Exception | None) -> JetsparkError:
        if self._first.startswith(b"INFO"):
            return ProtocolError(
                f"{self._url} speaks plain NATS, not WebSocket: use nats:// for this port, or the port of "
                "the server's websocket block"
            )
        response = getattr(exc, "response", None)
        if response is not None:
            status = response.status_code
            if status in (401, 403):
                return AuthorizationError(
                    f"{self._url} refused the WebSocket upgrade with status {status}: check ws_headers, "
                    "cookies and the allowed origins of the server or the gateway before it"
                )
            return ProtocolError(
                f"{self._url} answered the WebSocket upgrade with status {status}: check the path of the url "
                "and that a websocket listener runs there"
            )
        if self._ended:
            return ProtocolError(
                f"{self._url} closed the connection during the WebSocket handshake: it may want TLS (wss://)"
            )
        return ProtocolError(f"{self._url} broke the WebSocket handshake: {exc}; it may want TLS (wss://)")


def _new_protocol(url: ServerURL, max_size: int) -> ClientProtocol:
    try:
        from websockets.client import ClientProtocol
        from websockets.uri import WebSocketURI
    except ImportError as exc:
        raise InvalidArgument(
            "servers",
            str(url),
            'ws:// and wss:// need the websockets package: pip install "jetspark[ws]"',
        ) from exc
    query = "" if url.query is None else url.query.reveal()
    uri = WebSocketURI(url.scheme == "wss", url.host, url.port, url.path or "/", query)
    return ClientProtocol(uri, max_size=max_size, logger=_SILENT)


@hides_locals
def wrap_headers(headers: Mapping[str, str | Secret]) -> dict[str, Secret]:
    """Headers with their values as secrets: access tokens travel in them."""
    if not isinstance(headers, Mapping):
        raise InvalidArgument("ws_headers", type(headers).__name__, "must be a mapping of names to values")
    for name, value in headers.items():
        if not isinstance(value, str | Secret):
            raise InvalidArgument("ws_headers", name, f"its value must be text, not {type(value).__name__}")
    return {name: value if isinstance(value, Secret) else Secret(value) for name, value in headers.items()}


def _checked_headers(headers: Mapping[str, str | Secret]) -> list[tuple[str, Secret]]:
    checked = []
    for name, secret in wrap_headers(headers).items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise InvalidArgument(
                "ws_headers",
                name,
                "a header name holds letters, digits and hyphens only",
            )
        if name.lower() in _RESERVED_HEADERS or name.lower().startswith("sec-websocket-"):
            raise InvalidArgument(
                "ws_headers",
                name,
                "this header belongs to the WebSocket handshake itself",
            )
        if not re.fullmatch(r"[\t\x20-\x7e]*", secret.reveal()):
            # The value stays out of the text: it is likely an access token.
            raise InvalidArgument(
                "ws_headers",
                name,
                "its value must be printable ASCII without line breaks",
            )
        checked.append((name, secret))
    return checked
