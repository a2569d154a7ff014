"""The engine of a connection: links, reconnecting, sinks and the outgoing buffer.

Theory of operation
-------------------
A connection outlives the :class:`~jetspark.connection.transport.Link` it uses. While a link is up,
the messages it parses go to the sinks (subscriptions, the request inbox, JetStream consumers) by sid. When it
breaks, one task tries the servers of the pool until a new link is up, renews every subscription on it,
sends what was published meanwhile and notifies the sinks.

Outgoing commands collect in the :class:`~jetspark.connection.outbox.Outbox`. The
:class:`~jetspark.connection.sink.Router` knows the receivers.

The names without an underscore are the interface for our own packages: JetStream, the blocking facade,
metrics and tracing. Users see a :class:`~jetspark.connection.client.Connection`, which has a core;
:func:`~jetspark.connection.client.core_of` gives it to those packages.

The dead-peer check: a PING is sent every ``ping_interval``. If neither its PONG nor anything else has arrived
when the next one is due, the peer is dead. So death is noticed within two intervals. A peer that keeps
sending but leaves ``MAX_UNANSWERED`` PINGs without a PONG is dead too: the path to it is broken.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import TYPE_CHECKING, Any

from jetspark.connection import events as ev
from jetspark.connection.discovery import Discovery
from jetspark.connection.guarding import FAILURES, Guard
from jetspark.connection.kinds import Kinds
from jetspark.connection.listening import Listening, report_failure
from jetspark.connection.long_lines import find_long_lines
from jetspark.connection.nuid import next_nuid
from jetspark.connection.observer import Observer, Observers
from jetspark.connection.options import check_timeout
from jetspark.connection.pool import PooledServer, ServerPool
from jetspark.connection.requests import RequestInbox
from jetspark.connection.server_errors import parse_violation
from jetspark.connection.sink import Router, Sink
from jetspark.connection.statistics import Statistics
from jetspark.connection.subscription_sink import DEFAULT_PENDING_BYTES, DEFAULT_PENDING_MESSAGES
from jetspark.connection.transport import Attempt, Link, is_auth_error, is_line_error, open_link
from jetspark.errors import (
    AuthorizationError,
    ConnectionClosed,
    ConnectionLost,
    JetsparkError,
    MaxPayloadExceeded,
    NoServersAvailable,
    PermissionViolationError,
    RequestTimeout,
    TLSError,
)
from jetspark.wire.columns import Columns, PackedColumns
from jetspark.wire.commands import PING, PONG, encode_sub
from jetspark.wire.info import ServerInfo
from jetspark.wire.parser import Err, Event, Info, Messages, Ping, Pong

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetspark.connection.message import Msg
    from jetspark.connection.options import ConnectOptions
    from jetspark.connection.outbox import HeadersLike
    from jetspark.connection.subscription_sink import Callback, SubscriptionSink

# More than two: the PONGs of a busy server queue behind megabytes of messages.
MAX_UNANSWERED = 5
# How many errors, and failures of receivers, within one read of the socket become events. Honest servers send
# one error and hang up. A hostile one fits tens of thousands into a read, and each event costs a log line and
# a call of the listener.
MAX_ERRORS_A_READ = 20
# How many servers an error names; a cluster may have announced hundreds.
_NAMED = 5


class Core:
    """Keeps a connection alive. ``kinds``: the classes it is built from."""

    def __init__(self, options: ConnectOptions, kinds: Kinds | None = None) -> None:
        self.options = options
        self.kinds = kinds or Kinds()
        self.loop = asyncio.get_running_loop()
        self.stats = Statistics()
        self.outbox = self.kinds.outbox(self.loop, options, self.stats, self.check_open)
        self.router = Router(self.outbox)
        # The class of the messages that the parser makes, and the object through which they publish.
        self.message_class = self.kinds.message
        self.message_owner: Any = self
        #: Whether callbacks run in their own threads.
        self.threads = False
        self.observer: Observer | None = None
        self.pool = ServerPool(
            wait=options.reconnect_wait,
            wait_max=options.reconnect_wait_max,
            jitter=options.reconnect_jitter,
            max_failures=options.max_reconnects,
            random=random.Random(),
        )
        self.pool.seed(options.servers, randomize=options.randomize)
        self.link: Link | None = None
        self.bulk_readers = 0
        self.server: PooledServer | None = None
        self.info = ServerInfo()
        self.guard = Guard(self.loop, self.emit)
        self._discovery = Discovery(self.loop, self.pool, self.guard.tell)
        self._tls_used = False
        self._lame = False
        self._line_refused = False  # the server hung up on a command that was too long, not known which
        self.pongs: deque[asyncio.Future[None] | None] = deque()
        self.inbox: RequestInbox | None = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self._ping_mark = -1
        self._pong_waits_since = -1
        self.reconnecting: asyncio.Task[None] | None = None
        self.listening = Listening(options, self.loop)
        self.tasks: set[asyncio.Task[None]] = set()
        self.closing = False
        self.is_closed = False
        self.draining = False
        self.last_error: JetsparkError | None = None
        self._lost_at: float | None = None
        self.close_waiter: asyncio.Future[None] | None = None

    # For receivers and the API

    @property
    def is_connected(self) -> bool:
        """Whether a server is connected right now."""
        return self.link is not None

    def emit(self, event: ev.Event) -> None:
        """Log an event and pass it to the listener."""
        self.listening.tell(event)
        if self.observer is not None:
            self.observer.event(event)

    def observe(self, observer: Observer) -> None:
        """Notify the observer of everything from now on; a later observer wraps the earlier ones."""
        both = observer if self.observer is None else Observers(observer, self.observer)
        self.observer = self.outbox.observer = self.router.observer = both

    def callback_failed(self, what: str, subject: str, error: BaseException) -> None:
        """A callback raised: tell the loop's exception handler and the listener. Any thread may call this."""
        report_failure(self.loop, what, error)
        self.emit(ev.CallbackFailed(subject, error))

    def check_open(self) -> None:
        """Raise :class:`ConnectionClosed` when the connection is closed."""
        if self.is_closed or self.closing:
            raise ConnectionClosed("the connection is closed; open a new one with jetspark.connect()")
        self.check_loop()

    def check_loop(self) -> None:
        """Raise :class:`ConnectionClosed` when the event loop is closed."""
        if self.loop.is_closed():
            raise ConnectionClosed(
                "the event loop that this connection was opened in is closed, and the connection with it; "
                "close connections before their loop ends, and open a new one with jetspark.connect()"
            )

    def new_inbox(self) -> str:
        """A new unique subject under ``inbox_prefix``."""
        return f"{self.options.inbox_prefix}.{next_nuid()}"

    def bulk_reads(self, on: bool) -> None:
        """Count a bulk reader that starts or ends (see :mod:`jetspark.connection.bulk_reads`)."""
        self.bulk_readers += 1 if on else -1
        if self.link is not None:
            self.link.bulk_reads(self.bulk_readers > 0)

    async def subscribe(
        self,
        subject: str,
        *,
        queue: str = "",
        callback: Callback | None = None,
        max_messages: int = 0,
        pending_messages_limit: int = DEFAULT_PENDING_MESSAGES,
        pending_bytes_limit: int = DEFAULT_PENDING_BYTES,
    ) -> SubscriptionSink:
        """See :meth:`Connection.subscribe`."""
        self.check_open()
        if self.draining:
            raise ConnectionClosed("the connection is draining; it takes no new subscription")
        encode_sub(subject, queue, self.router.next_sid)
        sub = self.kinds.subscription(
            self, subject, queue, callback, max_messages, pending_messages_limit, pending_bytes_limit
        )
        self.router.add(sub)
        if max_messages:
            self.router.limit(sub)
        return sub

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        timeout: float | None = None,
        headers: HeadersLike | None = None,
    ) -> Msg:
        """See :meth:`Connection.request`."""
        self.check_open()
        if timeout is not None:
            check_timeout("timeout", timeout)
        if self.inbox is None:
            self.inbox = RequestInbox(self, self.options.inbox_prefix)
            self.router.add(self.inbox)
        return await self.inbox.request(
            subject, payload, headers, self.options.request_timeout if timeout is None else timeout
        )

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until the server has processed everything sent so far (PING, PONG)."""
        self.check_open()
        seconds = self.options.request_timeout if timeout is None else timeout
        check_timeout("timeout", seconds)
        if self.link is None:
            await self.wait_connected(seconds)
        pong: asyncio.Future[None] = self.loop.create_future()
        self.pongs.append(pong)
        self.outbox.control(PING)
        self.outbox.flush()
        try:
            async with asyncio.timeout(seconds):
                await pong
        except TimeoutError:
            url = None if self.link is None else str(self.link.url)
            raise RequestTimeout(f"no PONG from {url} within {seconds:g}s") from None

    # Links

    async def connect_first(self) -> None:
        """Try every server once. Refused credentials and bad certificates are final."""
        reasons: list[JetsparkError] = []
        permanent: JetsparkError | None = None
        for server in list(self.pool.servers):
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
        """Connect to the server, adopt its link and emit the ``news``."""
        attempt = attempt or Attempt()
        attempt.tls_demanded = self._tls_used
        try:
            link, early = await open_link(server.url, self.options, attempt)
        finally:
            # If so, every later link must use TLS: a man in the middle could claim that there is none.
            self._tls_used = self._tls_used or attempt.tls_used
        if self._line_refused:
            early += await self._end_long_lines(link)
        if self.closing:
            link.abort(ConnectionClosed("closed while connecting"))
            raise ConnectionClosed("closed while connecting")
        # It may have died since its PONG; once the callbacks are replaced, that would go unnoticed.
        link.check_alive()
        self.pool.succeeded(server, self.loop.time())
        self.server = server
        self._ping_mark = -1
        link.limit_write_buffer(self.options.write_buffer_size)
        self.router.renew(link)
        link.on_events = self._on_events
        link.on_lost = self._on_lost
        link.on_writable = self.outbox.on_writable
        self.link = self.outbox.link = link
        link.bulk_reads(self.bulk_readers > 0)
        self._lost_at = None
        self._ping_timer = self.loop.call_later(self.options.ping_interval, self._on_ping_timer)
        self.info = link.info
        self._lame = False
        self.outbox.takes_headers = link.info.headers
        too_large = self._set_max_payload(link.info.max_payload)
        self.outbox.flush()
        # Before the events that arrived after the handshake: they may break the link again.
        self.reconnecting = None
        self.guard.tell(news)
        for dropped in too_large:
            self.guard.tell(dropped)
        self._take_info(link.info)
        if isinstance(news, ev.Reconnected):
            self.stats.reconnects += 1
            self.guard.call(self.router.sinks.values(), "link_restored")
        if early:
            self._on_events(early)

    async def _end_long_lines(self, link: Link) -> deque[Event]:
        """End the longest subscriptions if the server can't take them; returns events that came meanwhile."""
        seen, refused = await find_long_lines(link, self.router.sinks.values(), self.options.connect_timeout)
        for sink, error in refused:
            self._refuse_sink(sink, error, tell_server=False)
            self.guard.tell(ev.SubscriptionRefused(sink.subject, error))
        if refused:
            raise ConnectionLost(f"{link.url.hostport} hung up on a command that is too long")
        self._line_refused = False
        return seen

    def _set_max_payload(self, limit: int) -> list[ev.PublishDropped]:
        """Apply the new server's limit; returns the events for messages that exceed it."""
        return [
            ev.PublishDropped(subject, MaxPayloadExceeded(size, limit))
            for subject, size in self.outbox.limit(limit)
        ]

    def drop_link(self) -> Link | None:
        link, self.link = self.link, None
        self.outbox.link = None
        if link is None:
            return None
        self.guard.call(self.router.sinks.values(), "link_dropped")
        self.outbox.gather()
        self._discovery.link_ended()
        self.stats.in_bytes += link.bytes_in
        self._pong_waits_since = -1
        if self._ping_timer is not None:
            self._ping_timer.cancel()
            self._ping_timer = None
        self.outbox.drop_volatile()
        pongs, self.pongs = self.pongs, deque()
        for pong in pongs:
            if pong is not None and not pong.done():
                pong.set_exception(
                    ConnectionClosed("closed before the PONG came")
                    if self.closing
                    else ConnectionLost("connection lost before the PONG came")
                )
                pong.exception()  # there may be no waiter left to retrieve it
        self.outbox.waiters.wake()
        return link

    def _on_lost(self, error: JetsparkError) -> None:
        if self.drop_link() is None:
            return
        server = self.server
        assert server is not None
        self.last_error = error
        self._lost_at = self.loop.time()
        self.guard.tell(ev.Disconnected(server.url.hostport, error))
        self.guard.call(self.router.sinks.values(), "link_lost", error)
        if not self.options.reconnect:
            self.finish(error)
            return
        self.pool.lost(server, self.loop.time())
        self.reconnecting = self.loop.create_task(self._reconnect(), name="jetspark-reconnect")

    async def _reconnect(self) -> None:
        attempts = 0
        last: JetsparkError = self.last_error or ConnectionLost("disconnected")
        while True:
            choice = self.pool.next(self.loop.time())
            if choice is None:
                self.reconnecting = None
                if isinstance(last, AuthorizationError | TLSError):
                    self.finish(last)
                else:
                    self.finish(
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
                last = self.last_error = error
                self.guard.tell(ev.ReconnectFailed(server.url.hostport, error, attempts))
                if isinstance(error, AuthorizationError) and not attempt.own_fault:
                    self.pool.refused(server, attempt.credentials, self.loop.time())
                else:
                    self.pool.failed(server, self.loop.time())
            except Exception as error:
                # A bug in jetspark: better to close with an error than to stay disconnected silently.
                self.reconnecting = None
                self.finish(ConnectionLost(f"reconnecting failed with {type(error).__name__}"))
                raise

    def finish(self, error: JetsparkError | None) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if error is not None:
            self.last_error = error
        self.outbox.close()
        self.guard.call(self.router.close(), "ended", error)
        self.guard.call(self.router.drained, "closed_behind")
        self.guard.tell(ev.Closed(error))

    # What the link reports

    def _on_events(self, events: Iterable[Event]) -> None:
        sinks, observer = self.router.sinks, self.observer
        newest: ServerInfo | None = None
        errors = failures = 0
        left = iter(events)
        event: Event | None = None
        sink: Sink | None = None
        while True:
            # One try for all events: when a receiver raises, the loop continues with the next event.
            try:
                for event in left:
                    if type(event) is Messages:
                        self.stats.in_msgs += len(event.items)
                        sink = sinks.get(event.sid)
                        if sink is not None:
                            sink.deliver(event.items, event.nbytes)
                            if observer is not None:
                                observer.delivered(sink, event.items)
                    elif type(event) is PackedColumns or type(event) is Columns:
                        self.stats.in_msgs += len(event)
                        sink = sinks.get(event.sid)
                        if sink is not None:
                            sink.deliver_columns(event)
                            if observer is not None:
                                observer.delivered_columns(sink, event)
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
                    self.guard.failed(sink, callback, error)
        if newest is not None:
            # Each INFO replaces the previous ones, so only the last one of a read matters.
            self._take_info(newest)

    def _answer_ping(self) -> None:
        # While the server is behind, only one PONG waits to be sent: a peer that sends PINGs and never reads
        # must not make us pile up answers.
        link, writes = self.link, self.outbox.writes
        if link is not None and (link.writable or self._pong_waits_since != writes):
            self._pong_waits_since = -1 if link.writable else writes
            self.outbox.control(PONG)

    def _on_pong(self) -> None:
        if self.pongs:
            pong = self.pongs.popleft()
            if pong is not None and not pong.done():
                pong.set_result(None)

    def _on_ping_timer(self) -> None:
        link = self.link
        if link is None:
            return
        unanswered = self.pongs.count(None)
        if self._ping_mark == link.bytes_in or unanswered >= MAX_UNANSWERED:
            why = f"nothing came for {self.options.ping_interval:g}s after a PING"
            if self._ping_mark != link.bytes_in:
                why = f"it sends, but left {unanswered} PINGs unanswered"
            link.abort(ConnectionLost(f"{link.url.hostport} is dead: {why}"))
            return
        self.pongs.append(None)
        self.outbox.control(PING)
        self.outbox.flush()
        self._ping_mark = link.bytes_in
        self._ping_timer = self.loop.call_later(self.options.ping_interval, self._on_ping_timer)

    def _take_info(self, info: ServerInfo) -> None:
        self.info = info
        self.outbox.max_payload = info.max_payload
        self.outbox.takes_headers = info.headers
        link = self.link
        if link is None:
            return
        announced = info.ws_connect_urls if link.url.is_websocket else info.connect_urls
        if announced and not self.options.ignore_discovered:
            self._discovery.announce(announced, link.url)
        if info.ldm and not self._lame:
            self._lame = True
            self.guard.tell(ev.LameDuck(link.url.hostport))

    def _on_err(self, message: str, *, quiet: bool = False) -> None:
        """``quiet``: emit no event, unless the error names the refused subject."""
        self.stats.server_errors += 1
        violation = parse_violation(message)
        if violation is not None:
            operation, subject, queue = violation
            error = PermissionViolationError(operation, subject, message)
            self.last_error = error
            self.guard.tell(ev.PermissionViolation(operation, subject, message))
            if operation == "publish":
                self.guard.call(self.router.sinks.values(), "publish_refused", subject, error)
                refused = [sink for sink in self.router.sinks.values() if sink.asked == subject]
            else:
                sinks = self.router.sinks.values()
                refused = [sink for sink in sinks if (sink.subject, sink.queue) == (subject, queue)]
            for sink in refused:
                self._refuse_sink(sink, error, tell_server=operation == "publish")
        elif not quiet and is_auth_error(message):
            self.last_error = AuthorizationError(f"the server ended the session: {message}")
            self.guard.tell(ev.AuthExpired(message))
        elif not quiet:
            self._line_refused = self._line_refused or is_line_error(message)
            self.last_error = ConnectionLost(f"server error: {message}")
            self.guard.tell(ev.ServerError(message))

    def _refuse_sink(self, sink: Sink, error: JetsparkError, *, tell_server: bool) -> None:
        self.router.remove(sink, tell_server=tell_server)
        self.guard.call([sink], "ended", error)
        if sink is self.inbox:
            # The next request subscribes again instead of waiting on a dead inbox.
            self.inbox = None

    def absence(self) -> str:
        """For errors: which servers can't be reached, since when and why; empty while one is connected."""
        if self.link is not None or self._lost_at is None:
            return ""
        servers = [server.url.hostport for server in self.pool.servers]
        names = ", ".join(servers[:_NAMED]) + (f" and {len(servers) - _NAMED} more" * (len(servers) > _NAMED))
        return (
            f"disconnected from {names or 'every server'} for {self.loop.time() - self._lost_at:.1f} s, "
            f"reconnecting; the last error: {self.last_error}"
        )

    async def wait_connected(self, seconds: float) -> None:
        task = self.reconnecting
        if task is not None:
            await asyncio.wait([task], timeout=seconds)
        self.check_open()
        if self.link is None:
            raise RequestTimeout(f"still disconnected after {seconds:g}s: {self.absence()}")
