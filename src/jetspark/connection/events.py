"""What happens to a connection, as typed objects for the listener.

Every event is also logged under ``jetspark.connection``: informational ones at INFO, trouble at WARNING.
There are two exceptions. What a callback raised goes to the loop's exception handler instead. Events that
may come once per message, or per attempt to reconnect, are a WARNING once in 10 seconds for each subject or
server, and DEBUG in between.
None of them carries a secret: servers are named by host and port only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from jetspark.errors import JetsparkError


class Event(msgspec.Struct, frozen=True):
    """Base of all connection events."""


class Connected(Event, frozen=True):
    """The first connection is up."""

    server: str


class Disconnected(Event, frozen=True):
    """The connection broke; reconnecting starts unless ``reconnect=False``."""

    server: str
    error: JetsparkError | None = None


class ReconnectFailed(Event, frozen=True):
    """One attempt to come back failed; the next one follows."""

    server: str
    error: JetsparkError
    attempt: int


class Reconnected(Event, frozen=True):
    """Back: every subscription was renewed and what was published meanwhile is on its way."""

    server: str


class Closed(Event, frozen=True):
    """The connection is closed for good; ``error`` is None when you asked for it."""

    error: JetsparkError | None = None


class LameDuck(Event, frozen=True):
    """The server is about to shut down; it will move its clients away in the next minutes."""

    server: str


class ServersDiscovered(Event, frozen=True):
    """The cluster announced servers that were not known before."""

    servers: tuple[str, ...]


class SlowConsumer(Event, frozen=True):
    """A subscription's buffer is full: the newest messages are dropped until there is room.

    Sent once when dropping begins, and again for the next episode. ``dropped`` counts all drops of this
    subscription so far.
    """

    subject: str
    sid: str
    dropped: int
    pending_messages: int
    pending_bytes: int


class PermissionViolation(Event, frozen=True):
    """The server refused a publish or a subscription; the connection stays up."""

    operation: str
    subject: str
    message: str


class AuthExpired(Event, frozen=True):
    """The server ended the session because the credentials expired or were revoked.

    Credentials are read again for the reconnect.
    """

    message: str


class ServerError(Event, frozen=True):
    """Any other ``-ERR`` of the server."""

    message: str


class PublishDropped(Event, frozen=True):
    """A message published while disconnected is too large for the server that we came back to."""

    subject: str
    error: JetsparkError


class SubscriptionRefused(Event, frozen=True):
    """The server can't take a subscription, which was ended for that; the connection goes on."""

    subject: str
    error: JetsparkError


class CallbackFailed(Event, frozen=True):
    """A subscription's callback raised, or what receives its messages; it goes on with the next message.

    The error was reported too, with its traceback: by the loop's exception handler, or in the log of
    ``jetspark.blocking``.
    """

    subject: str
    error: BaseException


class ConsumerDisturbed(Event, frozen=True):
    """A push subscription without ``on_error`` met something that it does not end by: missed heartbeats,
    lost messages, a status of the server."""

    subject: str
    error: JetsparkError


class ConsumerDeleteFailed(Event, frozen=True):
    """A drained subscription could not delete the consumer that it had made; delete it yourself."""

    stream: str
    consumer: str
    error: JetsparkError


_INFORMATIONAL = (Connected, Reconnected, ServersDiscovered, Closed)


def is_informational(event: Event) -> bool:
    """Whether the event belongs to normal life and is logged at INFO."""
    return isinstance(event, _INFORMATIONAL) and getattr(event, "error", None) is None


def as_dict(event: Event) -> dict[str, object]:
    """The name of the event and its fields, for the log."""
    found = {name: getattr(event, name) for name in event.__struct_fields__}
    return {"event": type(event).__name__, **found}
