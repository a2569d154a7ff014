"""A byte stream to one server: TCP, TLS or WebSocket, and the handshake on it.

This is the only module that handles ``OSError`` and ``ssl.SSLError``. It turns them into jetspark's errors,
so nothing above has to know them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import socket
import ssl
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from jetspark._secret import hides_locals
from jetspark.connection.auth import expiry_note
from jetspark.connection.bulk_reads import BulkReads
from jetspark.connection.tls import translate_ssl_error
from jetspark.connection.websocket import WebSocketCodec
from jetspark.errors import (
    AuthorizationError,
    ConnectionLost,
    JetsparkError,
    ProtocolError,
    TLSError,
)
from jetspark.wire.commands import PING, encode_connect
from jetspark.wire.info import ServerInfo
from jetspark.wire.parser import Err, Event, Info, Parser, Ping, Pong

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetspark.connection.options import ConnectOptions
    from jetspark.connection.urls import ServerURL

CLIENT_VERSION = "0.1.0"

# Useless outside this process: a fingerprint of weak credentials must not help to guess them.
_MARK_KEY = secrets.token_bytes(32)


@dataclass(slots=True)
class Attempt:
    """One attempt to connect to a server: what is demanded of it, and what is known after a failure."""

    tls_demanded: bool = False
    """TLS was used before on this connection, so no server may do without it."""
    tls_used: bool = False
    """TLS came up in this attempt, whatever happened afterwards."""
    credentials: bytes = b""
    """A fingerprint of the credentials sent: equal for equal credentials, and useless for anything else."""
    own_fault: bool = False
    """Our own credentials could not be made; the server was not asked."""


class Link(asyncio.Protocol):
    """One connection to one server, from connect to loss. Never reused."""

    def __init__(self, url: ServerURL) -> None:
        self.url = url
        self.info = ServerInfo()
        self.parser = Parser()
        self.bytes_in = 0
        self.writable = True
        # The client replaces these once the handshake is complete.
        self.on_events: Callable[[list[Event]], None] = self._queue_events
        self.on_lost: Callable[[JetsparkError], None] = self._wake_waiter
        self.on_writable: Callable[[], None] = lambda: None
        self._early: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._codec: WebSocketCodec | None = None
        self._error: JetsparkError | None = None
        self._lost = False
        self._bulk: BulkReads | None = None
        # TLS is up, but the server has not sent anything over it yet.
        self._tls_unproven = False
        self._expiry_note = ""
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Cast by contract, not by class: uvloop's transports do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        size = len(data)
        self.bytes_in += size
        self._tls_unproven = False
        if self._bulk is not None:
            self._bulk.on_read(size)
        try:
            if self._codec is not None:
                data = self._codec.receive(data)
                self._raw_write(self._codec.outgoing())
            events = self.parser.feed(data)
            if events:
                self.on_events(events)
        except JetsparkError as error:
            self.abort(self._named(error))
            return
        if self.parser.error is not None:
            self.abort(self._named(self.parser.error))

    def _named(self, error: JetsparkError) -> JetsparkError:
        """The error with the server in its text; the parser does not know where its bytes came from."""
        if self.url.hostport in str(error):
            return error
        return ProtocolError(f"{self.url.hostport} broke the protocol: {error}")

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        if self._error is None and exc is not None:
            self._error = translate_error(exc, self.url)
        if self._codec is not None:
            try:
                self._codec.eof()
            except JetsparkError as error:
                self._error = self._error or error
        self._report_lost()

    # Everything else

    def write(self, data: bytes) -> None:
        """Hand bytes to the transport; a link that is gone discards them."""
        if self._codec is not None:
            if self._codec.closed:
                return
            data = self._codec.send(data)
        self._raw_write(data)

    def bulk_reads(self, on: bool) -> None:
        """Switch to fewer, larger reads, or back; where the transport can't do that, nothing changes."""
        if on and self._bulk is None and not self._lost and BulkReads.possible(self._transport):
            self._bulk = BulkReads(self._transport)
        elif not on and self._bulk is not None:
            self._bulk.end()
            self._bulk = None

    def limit_write_buffer(self, high: int) -> None:
        """Set the number of unsent bytes from which on publishers have to wait."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=high)

    @property
    def unsent(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def abort(self, error: JetsparkError) -> None:
        """Drop the connection at once because of ``error``."""
        if self._error is None:
            self._error = error
        if self._transport is not None:
            self._transport.abort()
        self._report_lost()

    async def close(self, grace: float, unanswered: int = 0) -> None:
        """Send what is buffered, wait until the server has read it, then close; cut off after ``grace``.

        Closing a socket while it holds unread bytes resets the connection, and the reset may overtake what we
        have sent. So we keep reading until the PONG of a last PING; ``unanswered`` other PONGs are due before
        it.
        """
        if self._transport is None:
            return
        await self._last_pong(grace, unanswered + 1)
        if self._codec is not None:
            self._raw_write(self._codec.close())
        self._transport.close()
        try:
            await asyncio.wait_for(asyncio.shield(self._closed), grace)
        except TimeoutError:
            self._transport.abort()
            await self._closed

    async def _last_pong(self, grace: float, count: int) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finish(error: JetsparkError | None = None) -> None:
            if not done.done():
                done.set_result(None)

        def look(events: list[Event]) -> None:
            nonlocal count
            count -= sum(type(event) is Pong for event in events)
            if count <= 0:
                finish()

        self.on_events, self.on_lost = look, finish
        if self._lost:
            return
        self.write(PING)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await done

    def _raw_write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            if self._bulk is not None:
                self._bulk.on_write()

    def _report_lost(self) -> None:
        if self._lost:
            return
        self._lost = True
        if self._bulk is not None:
            self._bulk.close()
            self._bulk = None
        self.on_lost(self._error or ConnectionLost(f"{self.url.hostport} closed the connection"))

    # Handshake

    def _queue_events(self, events: list[Event]) -> None:
        self._early.extend(events)
        self._wake()

    def _wake_waiter(self, error: JetsparkError) -> None:
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def check_alive(self) -> None:
        """Raise the reason if the connection is gone."""
        if not self._lost:
            return
        if self._tls_unproven and not isinstance(self._error, TLSError):
            # In TLS 1.3 a server judges our certificate after our side of the handshake is done. When it
            # hangs up while our CONNECT is on its way, the reset can overtake its alert.
            raise TLSError(
                f"{self.url.hostport} hung up right after the TLS handshake: it likely asks for a client "
                "certificate, or refuses ours; check tls_cert and tls_key"
            )
        raise self._error or ConnectionLost(f"{self.url.hostport} closed the connection during the handshake")

    async def _next_event(self) -> Event:
        while not self._early:
            self.check_alive()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._early.popleft()

    async def _read_info(self) -> ServerInfo:
        event = await self._next_event()
        if isinstance(event, Err):
            raise error_from_err(event.message, self.url)
        if not isinstance(event, Info):
            raise ProtocolError(
                f"{self.url.hostport} sent {type(event).__name__} instead of INFO; is it a NATS server?"
            )
        return event.info

    async def _start_tls(self, context: ssl.SSLContext, hostname: str) -> None:
        assert self._transport is not None
        if self._early or self.parser.held:
            # A man in the middle could inject answers that we would take for the server's.
            raise ProtocolError(f"{self.url.hostport} sent more than INFO before the TLS handshake")
        loop = asyncio.get_running_loop()
        transport = await loop.start_tls(self._transport, self, context, server_hostname=hostname)
        if transport is None:
            raise ConnectionLost(f"{self.url.hostport} closed the connection during the TLS handshake")
        self._transport = transport
        self._tls_unproven = True

    async def handshake(self, options: ConnectOptions, attempt: Attempt) -> deque[Event]:
        """INFO, TLS, CONNECT, PING, PONG. Returns the events that came after the PONG."""
        attempt.tls_used = self.url.scheme == "wss" or (
            options.tls_handshake_first and not self.url.is_websocket
        )
        if attempt.tls_used:
            self._tls_unproven = self.bytes_in == 0
        if self._codec is not None:
            self._raw_write(self._codec.handshake())
        self.info = await self._read_info()
        # The server answers the first PING of a session with PONG and INFO, and the second with PONG.
        pongs = 1
        if not attempt.tls_used and not self.url.is_websocket and self._needs_tls(options, attempt):
            plain = self.info
            await self._start_tls(options.ssl_context(), options.tls_name(self.url))
            attempt.tls_used = True
            # Anyone on the network path could have written that INFO. Keep only what CONNECT needs, and the
            # largest payload for servers older than 2.12, which send no INFO over TLS. All servers that we
            # support know headers; a forged value would make the server strip them.
            self.info = ServerInfo(nonce=plain.nonce, headers=True, max_payload=plain.max_payload)
            pongs = 2
        attempt.own_fault = True
        attempt.credentials = self._send_connect(options, pongs, tls=attempt.tls_used)
        attempt.own_fault = False
        while True:
            event = await self._next_event()
            match event:
                case Pong():
                    pongs -= 1
                    if not pongs:
                        early, self._early = self._early, deque()
                        return early
                case Err():
                    raise error_from_err(event.message, self.url, self._expiry_note)
                case Info():
                    self.info = event.info
                case Ping():
                    if self.writable:
                        self.write(b"PONG\r\n")
                case _:
                    pass

    def _needs_tls(self, options: ConnectOptions, attempt: Attempt) -> bool:
        """Whether TLS comes next. We send nothing, above all no credentials, before it is up."""
        offered = self.info.tls_required or self.info.tls_available
        if options.wants_tls(self.url):
            if not offered:
                raise TLSError(
                    f"{self.url.hostport} offers no TLS but the client demands it: "
                    "enable tls in the server, or use a nats:// URL without tls options"
                )
            return True
        if attempt.tls_demanded:
            if not offered:
                raise TLSError(
                    f"{self.url.hostport} offers no TLS, and this connection has used TLS before: enable "
                    "tls in all servers, or open a new connection if plain text is what you want"
                )
            return True
        if self.info.tls_required and options.tls is False:
            raise TLSError(f"{self.url.hostport} requires TLS but tls=False forbids it")
        return self.info.tls_required

    @hides_locals
    def _send_connect(self, options: ConnectOptions, pings: int, *, tls: bool) -> bytes:
        """Send CONNECT; returns a fingerprint of the credentials. Only this frame holds raw secrets."""
        fields = options.connect_fields(self.url, self.info, CLIENT_VERSION, tls=tls)
        try:
            command = encode_connect(fields)
            same = encode_connect({name: value for name, value in fields.items() if name != "sig"})
        except (TypeError, ValueError):
            command = b""
        if not command:
            # Raised outside the except block: an encoder's error may hold what it could not encode.
            raise AuthorizationError("the auth function returned fields that JSON can't hold")
        self._expiry_note = expiry_note(fields)
        self.write(command + PING * pings)
        return hmac.digest(_MARK_KEY, same, "sha256")

    async def probe_line(self, length: int) -> deque[Event] | None:
        """Whether the server takes a command with ``length`` bytes of arguments. Used before sending others.

        None: it does not, and hangs up. Otherwise the events that came meanwhile. An UNSUB of nothing is
        harmless.
        """
        self.write(b"UNSUB " + b"0" * length + b"\r\n" + PING)
        seen: deque[Event] = deque()
        while type(event := await self._next_event()) is not Pong:
            if type(event) is Err and is_line_error(event.message):
                return None
            seen.append(event)
        seen += self._early
        self._early = deque()
        return seen


async def open_link(url: ServerURL, options: ConnectOptions, attempt: Attempt) -> tuple[Link, deque[Event]]:
    """Connect to one server and shake hands within ``connect_timeout``, or raise a typed error."""
    if attempt.tls_demanded and url.scheme == "ws":
        # Before the upgrade request, whose headers may hold credentials.
        raise TLSError(
            f"{url.hostport} is ws://, plain text, and this connection has used TLS before: "
            "give wss:// URLs only"
        )
    link: Link | None = None
    try:
        async with asyncio.timeout(options.connect_timeout):
            loop = asyncio.get_running_loop()
            tls: dict[str, Any] = {}
            if url.scheme == "wss" or (options.tls_handshake_first and not url.is_websocket):
                tls = {
                    "ssl": options.ssl_context(),
                    "server_hostname": options.tls_name(url),
                }
            link = Link(url)
            if url.is_websocket:
                link._codec = WebSocketCodec(url, options.ws_headers)
            made = link
            await loop.create_connection(lambda: made, url.host, url.port, **tls)
            _tune_socket(link)
            return link, await link.handshake(options, attempt)
    except BaseException as error:
        if link is not None:
            link.on_lost = lambda lost: None
            link.abort(ConnectionLost("handshake abandoned"))
        if isinstance(error, TimeoutError):
            raise ConnectionLost(
                f"{url.hostport} did not shake hands within connect_timeout={options.connect_timeout:g}s"
            ) from None
        if isinstance(error, OSError | EOFError):
            raise translate_error(error, url, options.tls_name(url)) from None
        if isinstance(error, UnicodeError):
            # The resolver encodes names as IDNA, which rejects empty and overlong labels this way.
            raise ConnectionLost(f"{url.hostport}: not a valid host name") from None
        raise


def _tune_socket(link: Link) -> None:
    sock = link._transport.get_extra_info("socket") if link._transport is not None else None
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def translate_error(error: BaseException, url: ServerURL, tls_name: str | None = None) -> JetsparkError:
    """A standard library exception as a jetspark error; ``tls_name``: what the certificate must contain."""
    if isinstance(error, JetsparkError):
        return error
    if isinstance(error, ssl.SSLError | ssl.CertificateError):
        return translate_ssl_error(error, tls_name or url.host)
    if isinstance(error, socket.gaierror):
        return ConnectionLost(f"{url.hostport}: host name not found ({error.strerror or error})")
    if isinstance(error, ConnectionRefusedError):
        return ConnectionLost(f"{url.hostport}: connection refused; no server listens there")
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return ConnectionLost(f"{url.hostport}: {reason}")


_AUTH_WORDS = (
    "authorization violation",
    "authentication timeout",
    "authentication expired",
    "authentication revoked",
)


def is_auth_error(message: str) -> bool:
    """Whether an ``-ERR`` text is about credentials."""
    folded = message.casefold()
    return any(word in folded for word in _AUTH_WORDS)


def is_line_error(message: str) -> bool:
    """Whether an ``-ERR`` text says that a command was longer than the server's max_control_line."""
    return "maximum control line exceeded" in message.casefold()


def error_from_err(message: str, url: ServerURL, note: str = "") -> JetsparkError:
    """The error for an ``-ERR`` that ended a handshake; ``note``: what is known about the credentials."""
    if is_auth_error(message):
        remedy = note or "check user, token, nkey or creds"
        return AuthorizationError(f"{url.hostport} refused the credentials: {message}; {remedy}")
    return ConnectionLost(f"{url.hostport} refused the connection: {message}")
