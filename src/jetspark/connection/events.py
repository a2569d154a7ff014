"""Connection events: typed objects for the listener.

Every event is also logged under ``jetspark.connection``: informational ones at INFO, trouble at WARNING.
There are two exceptions. An exception from a callback goes to the loop's exception handler instead. Events
that may occur once per message, or per reconnect attempt, are a WARNING once in 10 seconds for each subject
or server, and DEBUG in between.
No event carries a secret: servers are named by host and port only.
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
    """An attempt to reconnect failed; the next one follows."""

    server: str
    error: JetsparkError
    attempt: int


class Reconnected(Event, frozen=True):
    """Reconnected: every subscription was renewed, and what was published meanwhile is on its way."""

    server: str


class Closed(Event, frozen=True):
    """The connection is closed for good; ``error`` is None if you closed it yourself."""

    error: JetsparkError | None = None


class LameDuck(Event, frozen=True):
    """The server is about to shut down; it will disconnect its clients within the next minutes."""

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
    """Any other ``-ERR`` from the server."""

    message: str


class PublishDropped(Event, frozen=True):
    """A message published while disconnected was dropped: it is too large for the new server."""

    subject: str
    error: JetsparkError


class SubscriptionRefused(Event, frozen=True):
    """The server can't take a subscription, so the subscription was ended; the connection stays up."""

    subject: str
    error: JetsparkError


class CallbackFailed(Event, frozen=True):
    """A subscription's callback, or the code that receives its messages, raised. The next message follows.

    The error was also reported with its traceback: by the loop's exception handler, or in the log of
    ``jetspark.blocking``.
    """

    subject: str
    error: BaseException


class ConsumerDisturbed(Event, frozen=True):
    """A push subscription without ``on_error`` had a problem that does not end it: missed heartbeats, lost
    messages, or a status from the server."""

    subject: str
    error: JetsparkError


class ConsumerDeleteFailed(Event, frozen=True):
    """A drained subscription could not delete the consumer that it had created; delete it yourself."""

    stream: str
    consumer: str
    error: JetsparkError


_INFORMATIONAL = (Connected, Reconnected, ServersDiscovered, Closed)


def is_informational(event: Event) -> bool:
    """Whether the event is part of normal operation and is logged at INFO."""
    return isinstance(event, _INFORMATIONAL) and getattr(event, "error", None) is None


def as_dict(event: Event) -> dict[str, object]:
    """The event's name and fields, for the log."""
    found = {name: getattr(event, name) for name in event.__struct_fields__}
    return {"event": type(event).__name__, **found}
