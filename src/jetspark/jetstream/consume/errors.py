"""Errors and warnings during consumption, as types.

There are two families. A :class:`ConsumeError` ends a ``consume``, ``fetch`` or subscription, and is raised
after the messages that had arrived were handed out. A :class:`PullWarning` reports something that ``consume``
recovers from by itself. It goes to the warning listener, and is raised only by a ``fetch`` or ``next`` whose
single request it ended. All of them can be pickled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetspark.errors import JetsparkError
from jetspark.jetstream.flow.statuses import Kind

if TYPE_CHECKING:
    from jetspark.jetstream.flow.statuses import Status


class ConsumeError(JetsparkError):
    """Base of all errors that end or disturb the delivery of messages."""


class StatusError(ConsumeError):
    """The server ended a request or a delivery with a status; ``code`` and ``description`` are the
    server's."""

    remedy = ""

    def __init__(self, code: int, description: str) -> None:
        words = f"{code} {description}".rstrip()
        super().__init__(f"server status {words!r}" + (f": {self.remedy}" if self.remedy else ""))
        self.code = code
        self.description = description


class ConsumerDeleted(StatusError):
    """The consumer was deleted while in use. Create it again, then consume from it."""

    remedy = "the consumer was deleted; create it again and consume from the new one"


class ConsumerLost(ConsumerDeleted):
    """The consumer no longer exists, and no status reported it.

    It was lost when its server restarted, or deleted while the connection was down. This ends column readers
    (``consume_arrow``); ``consume`` waits for a consumer of the same name.
    """

    remedy = (
        "the consumer is gone (its server restarted, or it was deleted while the link was down); create one "
        "that begins behind the last sequence, or use an ordered consumer, which does that by itself"
    )


class PushConsumerError(StatusError):
    """A pull was sent to a push consumer. Subscribe to its deliver subject instead."""

    remedy = "the consumer has a deliver_subject; subscribe to it, or create a consumer without one"


class PullRefused(StatusError):
    """The server refused the pull request as malformed, for example a group the consumer does not have."""

    remedy = "the pull options do not fit the consumer; the server's reason follows its status"


class PullWarning(ConsumeError):
    """A disturbance that ``consume`` recovers from by itself."""


class StatusWarning(StatusError, PullWarning):
    """A status that ended one request; ``consume`` pulls again."""


class MaxRequestBatchExceeded(StatusWarning):
    """The request asked for more messages than the consumer's max_batch; later ones are capped."""

    remedy = "requests are now capped at it; lower max_messages or raise the consumer's max_batch"


class MaxRequestExpiresExceeded(StatusWarning):
    """The request asked for a longer wait than the consumer's max_expires; later ones are capped."""

    remedy = "requests are now capped at it; lower expires or raise the consumer's max_expires"


class MaxRequestMaxBytesExceeded(StatusWarning):
    """The request asked for more bytes than the consumer's max_bytes; later ones are capped."""

    remedy = "requests are now capped at it; lower max_bytes or raise the consumer's max_bytes"


class MaxWaitingExceeded(StatusWarning):
    """Too many pull requests are waiting on the consumer."""

    remedy = "too many pull requests wait; use fewer clients or raise the consumer's max_waiting"


class MaxAckPendingExceeded(StatusWarning):
    """Too many messages are delivered but not yet acknowledged."""

    remedy = "acknowledge faster or raise the consumer's max_ack_pending"


class NoConsumerResponders(StatusWarning):
    """No server responds for the consumer: it does not exist, or its leader is not elected yet."""

    remedy = "the consumer does not exist or has no leader yet; check stream and consumer name"


class LeadershipChanged(StatusWarning):
    """The consumer has a new leader; the requests held by the old leader are void."""


class ServerShutdown(StatusWarning):
    """The server that held the requests is shutting down; they are void."""


class PinIdMismatch(StatusWarning):
    """Another client is pinned now (ADR-42); the pin id is dropped and the client waits for its turn."""

    remedy = "another client holds the pin; pull again without a pin id"


class NextMessageTooLarge(StatusWarning):
    """The next message is larger than any request may be, so it can't be delivered."""

    remedy = "the next message is larger than the byte limit of a request; raise max_bytes"


class UnexpectedStatus(StatusWarning):
    """A status that this version does not know."""


class MissedHeartbeat(PullWarning):
    """Neither a message nor a heartbeat arrived for so long that the requests must be lost. Not terminal."""

    def __init__(self, silence: float, heartbeat: float) -> None:
        super().__init__(
            f"nothing received for {silence:.3f} s although a heartbeat is due every {heartbeat:.3f} s: "
            "the server, the consumer's leader or the network path is gone, or max_waiting is exhausted"
        )
        self.silence = silence
        self.heartbeat = heartbeat


class PullUnanswered(PullWarning):
    """A fetch received neither all its messages nor a final status, even after it expired.

    This is not an empty fetch, because the server did not say that the consumer has no messages. ``reason``:
    what prevented the reply, where that is known.
    """

    def __init__(self, waited: float, expires: float, reason: str = "") -> None:
        super().__init__(
            f"no answer after {waited:.3f} s to a fetch that expires after {expires:.3f} s, so it is unknown "
            "whether messages wait: "
            + (
                reason
                or "the server hangs, or the request was lost; set idle_heartbeat to learn of it earlier"
            )
        )
        self.waited = waited
        self.expires = expires
        self.reason = reason


class ConsumerGap(ConsumeError):
    """Messages of a push consumer were lost between server and client: its sequence has a gap."""

    def __init__(self, expected: int, received: int, sequence: int) -> None:
        super().__init__(
            f"received consumer sequence {received} (stream sequence {sequence}) instead of {expected}: "
            "messages were lost on the way; with acks the server delivers them again"
        )
        self.expected = expected
        self.received = received
        self.sequence = sequence


class OrderedReset(PullWarning):
    """An ordered consumer is being recreated. Delivery continues after the last message; nothing is lost."""

    def __init__(self, reason: str, last_sequence: int) -> None:
        super().__init__(f"ordered consumer reset ({reason}); it continues after sequence {last_sequence}")
        self.reason = reason
        self.last_sequence = last_sequence


class OrderedResetFailed(ConsumeError):
    """An ordered consumer could not be recreated within ``max_reset_attempts`` attempts."""

    def __init__(self, attempts: int, reason: str, last_sequence: int) -> None:
        super().__init__(
            f"ordered consumer not recovered after {attempts} attempts, last reason: {reason}; "
            f"start a new one at sequence {last_sequence + 1} or raise max_reset_attempts"
        )
        self.attempts = attempts
        self.reason = reason
        self.last_sequence = last_sequence


_CLASSES: dict[Kind, type[StatusError]] = {
    Kind.CONSUMER_DELETED: ConsumerDeleted,
    Kind.PUSH_BASED: PushConsumerError,
    Kind.BAD_REQUEST: PullRefused,
    Kind.REQUIRED_API_LEVEL: PullRefused,
    Kind.MAX_REQUEST_BATCH: MaxRequestBatchExceeded,
    Kind.MAX_REQUEST_EXPIRES: MaxRequestExpiresExceeded,
    Kind.MAX_REQUEST_MAX_BYTES: MaxRequestMaxBytesExceeded,
    Kind.MAX_WAITING: MaxWaitingExceeded,
    Kind.MAX_ACK_PENDING: MaxAckPendingExceeded,
    Kind.NO_RESPONDERS: NoConsumerResponders,
    Kind.LEADERSHIP_CHANGE: LeadershipChanged,
    Kind.SERVER_SHUTDOWN: ServerShutdown,
    Kind.PIN_ID_MISMATCH: PinIdMismatch,
    Kind.MESSAGE_TOO_LARGE: NextMessageTooLarge,
}


def error_for(status: Status) -> StatusError:
    """The typed error for a status; :class:`UnexpectedStatus` when the table has no class for it."""
    return _CLASSES.get(status.kind, UnexpectedStatus)(status.code, status.description)
