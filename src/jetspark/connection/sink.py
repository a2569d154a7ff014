"""Receivers, the table of which messages go to which of them, and what they need from the connection.

The connection calls ``deliver`` once for each run of messages in a received chunk, never once per message.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

from jetspark.wire.commands import encode_sub, encode_unsub

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from jetspark.connection.events import Event
    from jetspark.connection.observer import Observer
    from jetspark.connection.options import ConnectOptions
    from jetspark.connection.outbox import Outbox
    from jetspark.connection.transport import Link
    from jetspark.errors import JetsparkError
    from jetspark.wire.columns import AnyColumns
    from jetspark.wire.parser import Factory


class SinkCore(Protocol):
    """What receivers need from their connection: :class:`~jetspark.connection.core.Core`."""

    options: ConnectOptions
    loop: asyncio.AbstractEventLoop
    outbox: Outbox
    router: Router
    message_class: Factory
    message_owner: Any
    tasks: set[asyncio.Task[None]]
    link: Link | None
    observer: Observer | None

    async def flush(self, timeout: float | None = None) -> None: ...

    def absence(self) -> str: ...

    def emit(self, event: Event) -> None: ...

    def callback_failed(self, what: str, subject: str, error: BaseException) -> None: ...


class Sink:
    """One server-side subscription. Subclasses define what happens to its messages."""

    def __init__(self, core: SinkCore, subject: str, queue: str = "") -> None:
        self.core = core
        self.subject = subject
        self.queue = queue
        self.sid = ""
        self.received = 0
        self.limit = 0  # stop after this many messages in all; 0: never
        self.renewed_at = 0  # messages received when the current link was made
        self.asked = ""  # only for request_many: the subject of the request whose answers arrive here
        # The blocking facade replaces both on its connection, so that the parser makes blocking messages.
        self.factory: Factory = core.message_class
        self.owner: Any = core.message_owner

    def deliver(self, items: list[Any], nbytes: int) -> None:
        """A run of messages arrived. Called by the event loop; must not block."""
        raise NotImplementedError

    def deliver_columns(self, columns: AnyColumns) -> None:
        """The same for a sink whose factory is ``COLUMNAR``."""
        raise NotImplementedError

    def link_dropped(self) -> None:
        """The link is gone. Called before the listener and the sinks are told."""

    def link_lost(self, error: JetsparkError) -> None:
        """The connection broke; it will be renewed."""

    def link_restored(self) -> None:
        """The connection is back and this subscription was renewed on it."""

    def publish_refused(self, subject: str, error: JetsparkError) -> None:
        """The server's permissions forbid publishing to this subject; its answers will never arrive."""

    def ended(self, error: JetsparkError | None) -> None:
        """No further message will arrive: closed, or refused by the server."""

    def closed_behind(self) -> None:
        """The connection is closed; this sink was drained before, and what it holds may still be read."""

    async def _drain(self, asker: asyncio.Task[Any] | None) -> None:
        """``asker`` drains the connection: let user code read what has arrived."""


def _ignore(*_: Any) -> None:
    pass


class Receiver(Sink):
    """The sink of an object that users hold, so that the object does not show what the connection calls.

    ``face`` is that object; the functions implement the methods of a sink.
    """

    def __init__(
        self,
        core: SinkCore,
        subject: str,
        face: object,
        *,
        deliver: Callable[[list[Any], int], None],
        ended: Callable[[JetsparkError | None], None],
        deliver_columns: Callable[[AnyColumns], None] = _ignore,
        link_dropped: Callable[[], None] = _ignore,
        link_lost: Callable[[JetsparkError], None] = _ignore,
        link_restored: Callable[[], None] = _ignore,
        publish_refused: Callable[[str, JetsparkError], None] = _ignore,
        drain: Callable[[asyncio.Task[Any] | None], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(core, subject)
        self.face = face
        self._on_messages = deliver
        self._on_columns = deliver_columns
        self._on_ended = ended
        self._on_dropped = link_dropped
        self._on_lost = link_lost
        self._on_restored = link_restored
        self._on_refused = publish_refused
        self._on_drain = drain

    def deliver(self, items: list[Any], nbytes: int) -> None:
        self._on_messages(items, nbytes)

    def deliver_columns(self, columns: AnyColumns) -> None:
        self._on_columns(columns)

    def link_dropped(self) -> None:
        self._on_dropped()

    def link_lost(self, error: JetsparkError) -> None:
        self._on_lost(error)

    def link_restored(self) -> None:
        self._on_restored()

    def publish_refused(self, subject: str, error: JetsparkError) -> None:
        self._on_refused(subject, error)

    def ended(self, error: JetsparkError | None) -> None:
        self._on_ended(error)

    async def _drain(self, asker: asyncio.Task[Any] | None) -> None:
        if self._on_drain is not None:
            await self._on_drain(asker)


class Router:
    """Maps subscriptions (sids) to the sinks that get their messages."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._next_sid = 1
        self.observer: Observer | None = None
        self.sinks: dict[str, Sink] = {}
        #: No longer subscribed, but user code may still read from them.
        self.drained: weakref.WeakSet[Sink] = weakref.WeakSet()

    @property
    def next_sid(self) -> str:
        """The sid of the next sink to be added."""
        return str(self._next_sid)

    def add(self, sink: Sink) -> None:
        """Subscribe."""
        command = encode_sub(sink.subject, sink.queue, self.next_sid)
        sink.sid = self.next_sid
        self._next_sid += 1
        self.sinks[sink.sid] = sink
        link = self._outbox.link
        if link is not None:
            link.parser.routes[sink.sid] = (sink.factory, sink.owner)
        self._outbox.control(command)
        if self.observer is not None:
            self.observer.sink_added(sink)

    def remove(self, sink: Sink, *, tell_server: bool = True) -> None:
        """Deliver nothing more to it. ``tell_server``: the server still sends, so unsubscribe."""
        if self.sinks.pop(sink.sid, None) is None:
            return
        link = self._outbox.link
        if link is not None:
            link.parser.routes.pop(sink.sid, None)
        if tell_server:
            self.unsubscribe(sink)
        if self.observer is not None:
            self.observer.sink_removed(sink)

    def unsubscribe(self, sink: Sink) -> None:
        """Tell the server to send nothing more; messages in flight still arrive."""
        self._outbox.control(encode_unsub(sink.sid))

    def limit(self, sink: Sink) -> None:
        """Tell the server to stop after ``sink.limit`` messages."""
        self._outbox.control(encode_unsub(sink.sid, sink.limit - sink.renewed_at))

    def renew(self, link: Link) -> None:
        """Subscribe all sinks on a new link."""
        for sid, sink in self.sinks.items():
            link.parser.routes[sid] = (sink.factory, sink.owner)
        commands = b"".join([self.renewal(sink) for sink in self.sinks.values()])
        if commands:
            link.write(commands)

    @staticmethod
    def renewal(sink: Sink) -> bytes:
        """The commands that subscribe a sink on a new link."""
        command = encode_sub(sink.subject, sink.queue, sink.sid)
        # The server counts from this SUB on, whatever earlier links delivered.
        sink.renewed_at = sink.received
        if sink.limit:
            command += encode_unsub(sink.sid, sink.limit - sink.renewed_at)
        return command

    def close(self) -> list[Sink]:
        """Remove all sinks and return them."""
        sinks, self.sinks = list(self.sinks.values()), {}
        return sinks
