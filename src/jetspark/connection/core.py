"""The engine of a connection: links, reconnecting, sinks and the outgoing buffer.

Theory of operation
-------------------
A connection outlives the :class:`~jetspark.connection.transport.Link` it uses. While a link is up,
what it parses goes to the sinks (subscriptions, the request inbox, JetStream consumers) by sid. When it
breaks, one task tries the servers of the pool until a new link is up, renews every subscription on it,
sends what was published meanwhile and tells the sinks.

Outgoing commands collect in ``_out`` and are written once a turn of the event loop, or at once when they
amount to ``FLUSH_AT`` bytes: publishers pay a system call a batch, and a lone message waits for nothing
but the end of the current callback. Publishers wait when the transport holds more than
``write_buffer_size`` unsent bytes. Only publishes outlive a lost link in ``_out``; SUB, UNSUB and PING are
:class:`_Control` and dropped, since renewing does their job.

The dead-peer check: a PING every ``ping_interval``; when neither its PONG nor anything else has arrived at
the next one, the peer is dead. So death is noticed within two intervals. A peer that goes on sending and
leaves ``MAX_UNANSWERED`` PINGs without a PONG is dead too: the way to it is broken.
"""

from __future__ import annotations

import asyncio
import random
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jetspark.connection import events as ev
from jetspark.connection.discovery import Discovery
from jetspark.connection.guarding import FAILURES, Guard
from jetspark.connection.listening import Listening
from jetspark.connection.long_lines import find_long_lines
from jetspark.connection.message import Msg
from jetspark.connection.pool import PooledServer, ServerPool
from jetspark.connection.server_errors import parse_violation
from jetspark.connection.statistics import Statistics
from jetspark.connection.transport import Attempt, Link, is_auth_error, is_line_error, open_link
from jetspark.errors import (
    AuthorizationError,
    ConnectionClosed,
    ConnectionLost,
    InvalidArgument,
    JetsparkError,
    MaxPayloadExceeded,
    NoServersAvailable,
    OutboundBufferFull,
    PermissionViolationError,
    RequestTimeout,
    TLSError,
)
from jetspark.wire.columns import Columns, PackedColumns
from jetspark.wire.commands import (
    MAX_TARGET,
    PING,
    PONG,
    SIZE_LINES,
    encode_sub,
    encode_unsub,
    pub_prefix,
    size_line,
    split_oversized,
    to_bytes,
)
from jetspark.wire.headers import HeaderBlock, Headers, encode_headers
from jetspark.wire.info import ServerInfo
from jetspark.wire.parser import Err, Event, Factory, Info, Messages, Ping, Pong
from jetspark.wire.subjects import validate_subject

if TYPE_CHECKING:
    from jetspark.connection.options import ConnectOptions
    from jetspark.connection.requests import RequestInbox
    from jetspark.connection.sink import Sink

HeadersLike = Headers | Mapping[str, str | Sequence[str]]

FLUSH_AT = 65_536
_CRLF = b"\r\n"
_PREFIX_CACHE = 4096
# More than two: the PONGs of a busy server wait behind megabytes of messages.
MAX_UNANSWERED = 5
# Errors, and failures of receivers, that one read of the socket may make events of. Honest servers send one
# error and hang up; a hostile one fits tens of thousands into a read, and each event costs a line of the log
# and a call of the listener.
MAX_ERRORS_A_READ = 20
# Servers that an error names; a cluster may have announced hundreds.
_NAMED = 5


class _Control(bytes):
    """A command that must not survive its link."""


def volatile(commands: bytes) -> bytes:
    """Mark commands that must not survive their link."""
    return _Control(commands)


class ConnectionCore:
    """What keeps a connection alive. :class:`~jetspark.connection.client.Connection` is its public face."""

    def __init__(self, options: ConnectOptions) -> None:
        self.options = options
        self._pool = ServerPool(
            wait=options.reconnect_wait,
            wait_max=options.reconnect_wait_max,
            jitter=options.reconnect_jitter,
            max_failures=options.max_reconnects,
            random=random.Random(),
        )
        self._pool.seed(options.servers, randomize=options.randomize)
        self._link: Link | None = None
        self._bulk_readers = 0
        self._server: PooledServer | None = None
        self._info = ServerInfo()
        self._loop = asyncio.get_running_loop()
        # Late: what observes a connection wraps _emit.
        self._guard = Guard(self._loop, lambda event: self._emit(event))
        self._discovery = Discovery(self._loop, self._pool, self._guard.tell)
        self._tls_used = False
        self._lame = False
        self._line_refused = False  # the server hung up on a long command, and it is not known on which
        self._sinks: dict[str, Sink] = {}
        # No longer subscribed, but still read from by whoever holds them.
        self._drained_sinks: weakref.WeakSet[Sink] = weakref.WeakSet()
        self._next_sid = 0
        self._out: list[bytes] = []
        self._out_size = 0
        self._writes = 0  # times that all of _out was handed to the link
        self._flush_scheduled = False
        self._prefixes: dict[str, bytes] = {}
        self._max_payload = self._info.max_payload
        self._pongs: deque[asyncio.Future[None] | None] = deque()
        self._write_waiters: list[asyncio.Future[None]] = []
        self._inbox: RequestInbox | None = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self._ping_mark = -1
        self._pong_waits = False
        self._reconnecting: asyncio.Task[None] | None = None
        self._listening = Listening(options, self._loop)
        self._callback_tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._closed = False
        self._draining = False
        self._last_error: JetsparkError | None = None
        self._lost_at: float | None = None
        self._stats = Statistics()
        self._close_waiter: asyncio.Future[None] | None = None
        # What the parser makes of a message, and what the message speaks through.
        self._message_class: Factory = Msg
        self._message_owner: Any = self

    # Outgoing

    def _pub(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: HeadersLike | bytes | None = None,
        *,
        own_reply: bool = False,
    ) -> None:
        """Check and buffer one publish. ``own_reply``: the reply is an inbox of ours, no need to check it.

        ``headers`` may be an encoded block, for callers that publish many of the same shape: a
        ``HeaderBlock``. Other bytes are refused, for nobody has checked them.
        """
        if type(payload) is not bytes:
            payload = to_bytes(payload)
        size = len(payload)
        try:
            prefix = self._prefixes[subject]
        except (KeyError, TypeError):  # TypeError: it can't be hashed, so it is no str
            prefix = self._remember_prefix(subject)
        if reply:
            if not own_reply:
                validate_subject(reply, field="reply")
            prefix += reply.encode() + b" "
            if len(prefix) > MAX_TARGET:
                raise InvalidArgument(
                    "reply", reply, f"with the subject exceeds {MAX_TARGET} bytes; shorten it"
                )
        if headers is None:
            if size > self._max_payload:
                raise MaxPayloadExceeded(size, self._max_payload)
            line = SIZE_LINES.get(size) or size_line(size)
            self._send((prefix, line, payload, _CRLF), len(prefix) + len(line) + size + 2)
        else:
            block = headers if type(headers) is HeaderBlock else encode_headers(headers)  # type: ignore[arg-type]
            if not self._info.headers and self._link is not None:
                raise InvalidArgument("headers", headers, "the connected server does not support headers")
            size += len(block)
            if size > self._max_payload:
                raise MaxPayloadExceeded(size, self._max_payload)
            line = b"%d %d\r\n" % (len(block), size)
            self._send((b"H", prefix, line, block, payload, _CRLF), len(prefix) + len(line) + size + 3)

    def _pub_volatile(self, subject: str, payload: bytes, reply: str) -> None:
        """A publish that must not outlive its link, such as a pull request: the next link gets its own.

        Dropped while there is no link, and when the link breaks before it is written.
        """
        prefix = self._prefixes.get(subject)
        if prefix is None:
            prefix = self._remember_prefix(subject, literal=False)
        self._command(b"%b%b %d\r\n%b\r\n" % (prefix, reply.encode(), len(payload), payload))

    def _trust_subject(self, subject: str) -> None:
        """Let the next publish to this subject pass with wildcard tokens in it.

        JetStream's API puts filters into the subject of a request, and there a wildcard is a literal.
        """
        if subject not in self._prefixes:
            self._remember_prefix(subject, literal=False)

    def _send(self, pieces: tuple[bytes, ...], size: int) -> None:
        """Buffer one whole publish command."""
        if self._link is None:
            self._check_open()
            if self._out_size + size > self.options.reconnect_buffer_size:
                raise OutboundBufferFull(self._out_size + size, self.options.reconnect_buffer_size)
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_out)
        self._out += pieces
        self._out_size += size
        self._stats.out_msgs += 1

    def _send_once(self, commands: bytes, count: int = 1) -> None:
        """Buffer ``count`` whole publishes that must not outlive their link: the sender looks after them.

        A pipelined publisher sends them again or fails them when the link breaks.
        """
        self._out.append(volatile(commands))
        self._out_size += len(commands)
        self._stats.out_msgs += count
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_out)

    def _gather(self) -> None:
        """Take in what other threads have left for this connection."""

    def _remember_prefix(self, subject: str, *, literal: bool = True) -> bytes:
        prefix = pub_prefix(subject, literal=literal)
        if len(self._prefixes) >= _PREFIX_CACHE:
            self._prefixes.clear()
        self._prefixes[subject] = prefix
        return prefix

    def _command(self, command: bytes) -> None:
        """Buffer a command that renewing a link makes obsolete; dropped while there is no link."""
        if self._link is None:
            return
        self._out.append(_Control(command))
        self._out_size += len(command)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_out)

    def _flush_out(self, *, even_if_behind: bool = False) -> None:
        self._flush_scheduled = False
        # When the server is behind, what we hold back makes publishers wait (see _give_way).
        if self._out and self._link is not None and (self._link.writable or even_if_behind):
            out = self._out
            data = b"".join(out)
            out.clear()
            self._out_size = 0
            self._pong_waits = False
            self._writes += 1
            self._stats.out_bytes += len(data)
            self._link.write(data)

    async def _give_way(self) -> None:
        """Write what is buffered, let the loop read, and wait while the server is behind."""
        self._flush_out()
        await asyncio.sleep(0)
        while self._link is not None and not self._link.writable:
            waiter = self._loop.create_future()
            self._write_waiters.append(waiter)
            await waiter
        self._check_open()

    def _on_writable(self) -> None:
        self._flush_out()
        self._wake_writers()

    def _wake_writers(self) -> None:
        waiters, self._write_waiters = self._write_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _check_open(self) -> None:
        if self._closed or self._closing:
            raise ConnectionClosed("the connection is closed; open a new one with jetspark.connect()")
        self._check_loop()

    def _check_loop(self) -> None:
        if self._loop.is_closed():
            raise ConnectionClosed(
                "the event loop that this connection was opened in is closed, and the connection with it; "
                "close connections before their loop ends, and open a new one with jetspark.connect()"
            )

    # Sinks

    def _bulk_reads(self, on: bool) -> None:
        """A reader in bulk begins or ends; they are counted (see :mod:`jetspark.connection.bulk_reads`)."""
        self._bulk_readers += 1 if on else -1
        if self._link is not None:
            self._link.bulk_reads(self._bulk_readers > 0)

    def _add_sink(self, sink: Sink) -> None:
        self._next_sid += 1
        sink.sid = str(self._next_sid)
        command = encode_sub(sink.subject, sink.queue, sink.sid)
        self._sinks[sink.sid] = sink
        if self._link is not None:
            self._link.parser.routes[sink.sid] = (sink.factory, sink.owner)
        self._command(command)

    def _remove_sink(self, sink: Sink, *, tell_server: bool = True) -> None:
        if self._sinks.pop(sink.sid, None) is None:
            return
        if self._link is not None:
            self._link.parser.routes.pop(sink.sid, None)
        if tell_server:
            self._send_unsub(sink)

    def _send_unsub(self, sink: Sink) -> None:
        self._command(encode_unsub(sink.sid))

    def _limit_sink(self, sink: Sink) -> None:
        self._command(encode_unsub(sink.sid, sink.limit - sink.renewed_at))

    # Links

    async def _connect_first(self) -> None:
        """Try every server once. Refused credentials and bad certificates are final."""
        reasons: list[JetsparkError] = []
        permanent: JetsparkError | None = None
        for server in list(self._pool.servers):
            try:
                await self._adopt(server, ev.Connected(server.url.hostport))
                return
            except (AuthorizationError, TLSError) as error:
                permanent = permanent or error
            except JetsparkError as error:
                reasons.append(error)
        if permanent is not None:
            raise permanent
        raise NoServersAvailable(
            "no server could be reached: " + "; ".join(str(reason) for reason in reasons)
        )

    async def _adopt(
        self, server: PooledServer, news: ev.Connected | ev.Reconnected, attempt: Attempt | None = None
    ) -> None:
        """Connect to the server, make its link ours and tell the ``news``."""
        attempt = attempt or Attempt()
        attempt.tls_demanded = self._tls_used
        try:
            link, early = await open_link(server.url, self.options, attempt)
        finally:
            # Demanded of every later link then: who sits in between could say that there is no TLS.
            self._tls_used = self._tls_used or attempt.tls_used
        if self._line_refused:
            early += await self._end_long_lines(link)
        if self._closing:
            link.abort(ConnectionClosed("closed while connecting"))
            raise ConnectionClosed("closed while connecting")
        # It may have died since its PONG; nobody would hear of it once the callbacks are replaced.
        link.check_alive()
        self._pool.succeeded(server, self._loop.time())
        self._server = server
        self._ping_mark = -1
        link.limit_write_buffer(self.options.write_buffer_size)
        for sid, sink in self._sinks.items():
            link.parser.routes[sid] = (sink.factory, sink.owner)
        renew = [self._renewal(sink) for sink in self._sinks.values()]
        if renew:
            link.write(b"".join(renew))
        link.on_events = self._on_events
        link.on_lost = self._on_lost
        link.on_writable = self._on_writable
        self._link = link
        link.bulk_reads(self._bulk_readers > 0)
        self._lost_at = None
        self._ping_timer = self._loop.call_later(self.options.ping_interval, self._on_ping_timer)
        self._info = link.info
        self._lame = False
        too_large = self._set_max_payload(link.info.max_payload)
        self._flush_out()
        # Before anything that came after the handshake, which may break the link again.
        self._reconnecting = None
        self._guard.tell(news)
        for dropped in too_large:
            self._guard.tell(dropped)
        self._take_info(link.info)
        if isinstance(news, ev.Reconnected):
            self._stats.reconnects += 1
            self._guard.call(self._sinks.values(), "link_restored")
        if early:
            self._on_events(early)

    async def _end_long_lines(self, link: Link) -> deque[Event]:
        """End the longest subscriptions if the server can't take them; events that came meanwhile."""
        seen, refused = await find_long_lines(link, self._sinks.values(), self.options.connect_timeout)
        for sink, error in refused:
            self._refuse_sink(sink, error, tell_server=False)
            self._guard.tell(ev.SubscriptionRefused(sink.subject, error))
        if refused:
            raise ConnectionLost(f"{link.url.hostport} hung up on a command that is too long")
        self._line_refused = False
        return seen

    def _set_max_payload(self, limit: int) -> list[ev.PublishDropped]:
        """Take the new server's limit. What waits and exceeds it would make it hang up on all the rest."""
        lower, self._max_payload = limit < self._max_payload, limit
        if not (lower and self._out):
            return []
        kept, oversized = split_oversized(b"".join(self._out), limit)
        self._out, self._out_size = [kept] if kept else [], len(kept)
        return [ev.PublishDropped(subject, MaxPayloadExceeded(size, limit)) for subject, size in oversized]

    @staticmethod
    def _renewal(sink: Sink) -> bytes:
        command = encode_sub(sink.subject, sink.queue, sink.sid)
        # The server counts from this SUB on, whatever earlier links have delivered.
        sink.renewed_at = sink.received
        if sink.limit:
            command += encode_unsub(sink.sid, sink.limit - sink.renewed_at)
        return command

    def _drop_link(self) -> Link | None:
        link, self._link = self._link, None
        if link is None:
            return None
        self._guard.call(self._sinks.values(), "link_dropped")
        self._gather()
        self._discovery.link_ended()
        self._stats.in_bytes += link.bytes_in
        self._pong_waits = False
        if self._ping_timer is not None:
            self._ping_timer.cancel()
            self._ping_timer = None
        # Whole publishes stay for the next link; commands bound to this link go.
        self._out = [piece for piece in self._out if not isinstance(piece, _Control)]
        self._out_size = sum(map(len, self._out))
        pongs, self._pongs = self._pongs, deque()
        for pong in pongs:
            if pong is not None and not pong.done():
                pong.set_exception(
                    ConnectionClosed("closed before the PONG came")
                    if self._closing
                    else ConnectionLost("connection lost before the PONG came")
                )
                pong.exception()  # nobody may be waiting any more
        self._wake_writers()
        return link

    def _on_lost(self, error: JetsparkError) -> None:
        if self._drop_link() is None:
            return
        server = self._server
        assert server is not None
        self._last_error = error
        self._lost_at = self._loop.time()
        self._guard.tell(ev.Disconnected(server.url.hostport, error))
        self._guard.call(self._sinks.values(), "link_lost", error)
        if not self.options.reconnect:
            self._finish(error)
            return
        self._pool.lost(server, self._loop.time())
        self._reconnecting = self._loop.create_task(self._reconnect(), name="jetspark-reconnect")

    async def _reconnect(self) -> None:
        attempts = 0
        last: JetsparkError = self._last_error or ConnectionLost("disconnected")
        while True:
            choice = self._pool.next(self._loop.time())
            if choice is None:
                self._reconnecting = None
                if isinstance(last, AuthorizationError | TLSError):
                    self._finish(last)
                else:
                    self._finish(
                        NoServersAvailable(
                            f"gave up after {attempts} attempts to reconnect; the last: {last}"
                        )
                    )
                return
            server, wait = choice
            if wait > 0:
                await asyncio.sleep(wait)
            attempts += 1
            attempt = Attempt()
            try:
                await self._adopt(server, ev.Reconnected(server.url.hostport), attempt)
                return
            except ConnectionClosed:
                return
            except JetsparkError as error:
                last = self._last_error = error
                self._guard.tell(ev.ReconnectFailed(server.url.hostport, error, attempts))
                if isinstance(error, AuthorizationError) and not attempt.own_fault:
                    self._pool.refused(server, attempt.credentials, self._loop.time())
                else:
                    self._pool.failed(server, self._loop.time())
            except Exception as error:
                # A defect of ours: better closed with a name than disconnected in silence.
                self._reconnecting = None
                self._finish(ConnectionLost(f"reconnecting failed with {type(error).__name__}"))
                raise

    def _finish(self, error: JetsparkError | None) -> None:
        if self._closed:
            return
        self._closed = True
        if error is not None:
            self._last_error = error
        self._out.clear()
        self._out_size = 0
        self._wake_writers()
        sinks, self._sinks = list(self._sinks.values()), {}
        self._guard.call(sinks, "ended", error)
        self._guard.call(self._drained_sinks, "closed_behind")
        self._guard.tell(ev.Closed(error))

    # What the link reports

    def _on_events(self, events: Iterable[Event]) -> None:
        sinks = self._sinks
        newest: ServerInfo | None = None
        errors = failures = 0
        left = iter(events)
        event: Event | None = None
        sink: Sink | None = None
        while True:
            # One try for all events: when a receiver raises, the loop goes on behind its event.
            try:
                for event in left:
                    if type(event) is Messages:
                        self._stats.in_msgs += len(event.items)
                        sink = sinks.get(event.sid)
                        if sink is not None:
                            sink.deliver(event.items, event.nbytes)
                    elif type(event) is PackedColumns or type(event) is Columns:
                        self._stats.in_msgs += len(event)
                        sink = sinks.get(event.sid)
                        if sink is not None:
                            sink.deliver_columns(event)
                    elif type(event) is Ping:
                        self._answer_ping()
                    elif type(event) is Pong:
                        self._on_pong()
                    elif type(event) is Info:
                        newest = event.info
                    elif type(event) is Err:
                        errors += 1
                        self._on_err(event.message, quiet=errors > MAX_ERRORS_A_READ)
                break
            except FAILURES as error:
                if sink is None or type(event) not in (Messages, PackedColumns, Columns):
                    raise
                failures += 1
                if failures <= MAX_ERRORS_A_READ:
                    callback = "deliver" if type(event) is Messages else "deliver_columns"
                    self._guard.failed(sink, callback, error)
        if newest is not None:
            # Each INFO replaces the ones before it, so only the last of a read is news.
            self._take_info(newest)

    def _answer_ping(self) -> None:
        # While the server is behind, one PONG waits for all: one that asks and never reads must not make us
        # hoard answers.
        if self._link is not None and (self._link.writable or not self._pong_waits):
            self._pong_waits = not self._link.writable
            self._command(PONG)

    @property
    def _is_behind(self) -> bool:
        """Whether the server reads so little that answers to what it sends had better be left out."""
        link = self._link
        return link is not None and not link.writable and self._out_size >= self.options.write_buffer_size

    def _on_pong(self) -> None:
        if self._pongs:
            pong = self._pongs.popleft()
            if pong is not None and not pong.done():
                pong.set_result(None)

    def _on_ping_timer(self) -> None:
        link = self._link
        if link is None:
            return
        unanswered = self._pongs.count(None)
        if self._ping_mark == link.bytes_in or unanswered >= MAX_UNANSWERED:
            why = f"nothing came for {self.options.ping_interval:g}s after a PING"
            if self._ping_mark != link.bytes_in:
                why = f"it sends, but left {unanswered} PINGs unanswered"
            link.abort(ConnectionLost(f"{link.url.hostport} is dead: {why}"))
            return
        self._pongs.append(None)
        self._command(PING)
        self._flush_out()
        self._ping_mark = link.bytes_in
        self._ping_timer = self._loop.call_later(self.options.ping_interval, self._on_ping_timer)

    def _take_info(self, info: ServerInfo) -> None:
        self._info = info
        self._max_payload = info.max_payload
        link = self._link
        if link is None:
            return
        announced = info.ws_connect_urls if link.url.is_websocket else info.connect_urls
        if announced and not self.options.ignore_discovered:
            self._discovery.announce(announced, link.url)
        if info.ldm and not self._lame:
            self._lame = True
            self._guard.tell(ev.LameDuck(link.url.hostport))

    def _on_err(self, message: str, *, quiet: bool = False) -> None:
        """``quiet``: no event, unless it tells which subject was refused."""
        self._stats.server_errors += 1
        violation = parse_violation(message)
        if violation is not None:
            operation, subject, queue = violation
            error = PermissionViolationError(operation, subject, message)
            self._last_error = error
            self._guard.tell(ev.PermissionViolation(operation, subject, message))
            if operation == "publish":
                self._guard.call(self._sinks.values(), "publish_refused", subject, error)
                refused = [sink for sink in self._sinks.values() if sink.asked == subject]
            else:
                refused = [
                    sink for sink in self._sinks.values() if (sink.subject, sink.queue) == (subject, queue)
                ]
            for sink in refused:
                self._refuse_sink(sink, error, tell_server=operation == "publish")
        elif not quiet and is_auth_error(message):
            self._last_error = AuthorizationError(f"the server ended the session: {message}")
            self._guard.tell(ev.AuthExpired(message))
        elif not quiet:
            self._line_refused = self._line_refused or is_line_error(message)
            self._last_error = ConnectionLost(f"server error: {message}")
            self._guard.tell(ev.ServerError(message))

    def _refuse_sink(self, sink: Sink, error: JetsparkError, *, tell_server: bool) -> None:
        self._remove_sink(sink, tell_server=tell_server)
        self._guard.call([sink], "ended", error)
        if sink is self._inbox:
            # The next request asks the server again instead of waiting on a dead inbox.
            self._inbox = None

    def _emit(self, event: ev.Event) -> None:
        self._listening.tell(event)

    def _absence(self) -> str:
        """Which servers can't be reached, since when and why, for errors; empty while one is connected."""
        if self._link is not None or self._lost_at is None:
            return ""
        servers = [server.url.hostport for server in self._pool.servers]
        names = ", ".join(servers[:_NAMED]) + (f" and {len(servers) - _NAMED} more" * (len(servers) > _NAMED))
        return (
            f"disconnected from {names or 'every server'} for {self._loop.time() - self._lost_at:.1f} s, "
            f"reconnecting; the last error: {self._last_error}"
        )

    async def _wait_connected(self, seconds: float) -> None:
        task = self._reconnecting
        if task is not None:
            await asyncio.wait([task], timeout=seconds)
        self._check_open()
        if self._link is None:
            raise RequestTimeout(f"still disconnected after {seconds:g}s: {self._absence()}")
