"""The actions that flow machines request from their driver. Plain values; the driver does the IO.

A machine returns a tuple of actions, to be performed in order. Most calls return the same empty tuple.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    from jetspark.errors import JetsparkError

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class SendPull:
    """Publish a pull request to ``CONSUMER.MSG.NEXT`` with the subscription's subject as reply.

    Zero, False and empty stand for "leave the field out".
    """

    batch: int
    max_bytes: int = 0
    expires_ns: int = 0
    idle_heartbeat_ns: int = 0
    no_wait: bool = False
    group: str = ""
    min_pending: int = 0
    min_ack_pending: int = 0
    priority: int = 0
    pin_id: str = ""

    def to_json(self) -> bytes:
        """The body of the request, with only the fields that are set."""
        body: dict[str, Any] = {"batch": self.batch}
        for name, value in (
            ("max_bytes", self.max_bytes),
            ("expires", self.expires_ns),
            ("idle_heartbeat", self.idle_heartbeat_ns),
            ("no_wait", self.no_wait),
            ("group", self.group),
            ("min_pending", self.min_pending),
            ("min_ack_pending", self.min_ack_pending),
            ("priority", self.priority),
            ("id", self.pin_id),
        ):
            if value:
                body[name] = value
        return _encode(body)


@dataclass(frozen=True, slots=True)
class Warn:
    """Notify the user's warning listener; consumption continues."""

    warning: JetsparkError


@dataclass(frozen=True, slots=True)
class Raise:
    """Raise to the reader of the next message (or pass to the error listener); the subscription stays."""

    error: JetsparkError


@dataclass(frozen=True, slots=True)
class ClearPin:
    """Forget the pin id stored for the consumer (ADR-42); another client is pinned."""


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Unsubscribe, wait until the server has confirmed it (PONG), then call ``on_unsubscribed``."""


@dataclass(frozen=True, slots=True)
class ChangeInbox:
    """Unsubscribe the inbox, report what arrives until the server has confirmed it (PONG), subscribe another
    one, then call ``on_inbox_changed``. If the connection breaks, it is never confirmed."""


@dataclass(frozen=True, slots=True)
class SendFlowControl:
    """Publish an empty message to the subject: the server may send more (ADR-15 "Flow Control")."""

    subject: str


@dataclass(frozen=True, slots=True)
class CreateConsumer:
    """Create the next consumer of an ordered consumer, then call ``on_created`` or ``on_create_failed``.

    The rest of its configuration is constant: ack none, memory storage, one replica.
    """

    name: str
    serial: int
    deliver_policy: str
    opt_start_seq: int | None = None
    opt_start_time: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteConsumer:
    """Delete a consumer in the background. Failures are ignored, because it has an inactive_threshold."""

    name: str


@dataclass(frozen=True, slots=True)
class Conclude:
    """The end. Unsubscribe, hand out buffered messages (unless ``discard``), then raise ``error`` if any."""

    error: JetsparkError | None = None
    discard: bool = False


Action: TypeAlias = (
    SendPull
    | Warn
    | Raise
    | ClearPin
    | Unsubscribe
    | ChangeInbox
    | SendFlowControl
    | CreateConsumer
    | DeleteConsumer
    | Conclude
)
Actions: TypeAlias = tuple[Action, ...]
NOTHING: Actions = ()
