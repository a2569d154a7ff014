"""The connection's side of a subscription, and what it needs of the connection.

The connection calls ``deliver`` once for each run of messages in a received chunk, never once a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio
    import weakref

    from jetspark.connection.events import Event
    from jetspark.connection.options import ConnectOptions
    from jetspark.connection.transport import Link
    from jetspark.errors import JetsparkError
    from jetspark.wire.columns import AnyColumns
    from jetspark.wire.parser import Factory


class SinkClient(Protocol):
    """What receivers need of their connection: :class:`~jetspark.connection.client.Connection`."""

    options: ConnectOptions
    _message_class: Factory
    _message_owner: Any
    _callback_tasks: set[asyncio.Task[None]]
    _drained_sinks: weakref.WeakSet[Sink]
    _link: Link | None

    async def flush(self, timeout: float | None = None) -> None: ...

    def _pub(
        self, subject: str, payload: bytes, reply: str, headers: Any = None, *, own_reply: bool = False
    ) -> None: ...

    def _remove_sink(self, sink: Sink, *, tell_server: bool = True) -> None: ...

    def _send_unsub(self, sink: Sink) -> None: ...

    def _limit_sink(self, sink: Sink) -> None: ...

    def _absence(self) -> str: ...

    def _emit(self, event: Event) -> None: ...

    def _callback_failed(self, what: str, subject: str, error: BaseException) -> None: ...


class Sink:
    """One server-side subscription. Subclasses say what happens to its messages."""

    def __init__(self, client: SinkClient, subject: str, queue: str = "") -> None:
        self.client = client
        self.subject = subject
        self.queue = queue
        self.sid = ""
        self.received = 0
        self.limit = 0  # stop after so many messages in all; 0: never
        self.renewed_at = 0  # what had been received when the current link was made
        self.asked = ""  # the subject of the request whose answers come here, of request_many alone
        # The blocking facade replaces both on its connection, so that the parser makes its messages.
        self.factory: Factory = client._message_class
        self.owner: Any = client._message_owner

    def deliver(self, items: list[Any], nbytes: int) -> None:
        """A run of messages arrived. Called by the event loop; must not block."""
        raise NotImplementedError

    def deliver_columns(self, columns: AnyColumns) -> None:
        """The same for a sink whose factory is ``COLUMNAR``."""
        raise NotImplementedError

    def link_dropped(self) -> None:
        """There is no link any more; nobody has been told yet."""

    def link_lost(self, error: JetsparkError) -> None:
        """The connection broke; it will be renewed."""

    def link_restored(self) -> None:
        """The connection is back and this subscription was renewed on it."""

    def publish_refused(self, subject: str, error: JetsparkError) -> None:
        """The server's permissions forbid to publish to this subject; answers to it will never come."""

    def ended(self, error: JetsparkError | None) -> None:
        """No message will ever come again: closed, or refused by the server."""

    def closed_behind(self) -> None:
        """The connection is closed; this one was drained before, and what it holds may still be taken."""

    async def _drain(self, asker: asyncio.Task[Any] | None) -> None:
        """The connection is drained at the request of ``asker``: let user code have what has arrived."""
