"""Options of ``consume`` and of ``fetch``/``next``, checked before anything is sent.

Defaults and limits are those of ADR-37 "Defaults and constraints" and "Fetch Configuration options".
Where the server has its own limit, the field's comment names it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from jetspark._checks import is_number
from jetspark.errors import InvalidArgument

DEFAULT_MAX_MESSAGES = 500
DEFAULT_EXPIRES = 30.0
#: ADR-37: with max_bytes a request must still name a batch, else the server sends a single message.
BATCH_WITH_MAX_BYTES = 1_000_000

_MIN_HEARTBEAT = 0.5
_MAX_HEARTBEAT = 30.0
_GROUP = re.compile(r"[A-Za-z0-9\-_/=]{1,16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions:
    """How a ``consume`` keeps its buffer filled.

    ``max_messages`` and ``max_bytes`` are the size of the buffer; set one of them, not both.
    """

    #: Size of the buffer in messages. Default 500 when ``max_bytes`` is not set. The consumer's
    #: ``max_request_batch`` limits a single request; larger buffers are then filled by several.
    max_messages: int | None = None
    #: Size of the buffer in bytes, counted as the server does: subject + ack reply + headers + payload.
    max_bytes: int | None = None
    #: Refill when this many messages or fewer are pending. Default half of ``max_messages``; at most that.
    threshold_messages: int | None = None
    #: Refill when this many bytes or fewer are pending. Default half of ``max_bytes``; at most that.
    threshold_bytes: int | None = None
    #: With ``max_messages``: the most bytes that a single request may return. Default: no cap.
    max_bytes_per_request: int | None = None
    #: Seconds until the server gives up a request. Default 30, at least 1; the consumer's
    #: ``max_request_expires`` limits it.
    expires: float = DEFAULT_EXPIRES
    #: Seconds of silence after which the server sends a heartbeat. Default half of ``expires``, within
    #: 0.5 to 30. The server refuses more than half of ``expires``. Can't be switched off.
    idle_heartbeat: float | None = None
    #: End after this many messages were processed. Default: never.
    stop_after: int | None = None
    #: Priority group (ADR-42, server 2.11+); required when the consumer has groups. At most 16 characters.
    group: str | None = None
    #: Overflow policy: deliver only while at least this many messages are pending on the consumer.
    min_pending: int | None = None
    #: Overflow policy: deliver only while at least this many messages await their ack.
    min_ack_pending: int | None = None
    #: Prioritized policy (server 2.12+): 0 (first served, default) to 9.
    priority: int = 0

    def __post_init__(self) -> None:
        _positive("max_messages", self.max_messages)
        _positive("max_bytes", self.max_bytes)
        _positive("max_bytes_per_request", self.max_bytes_per_request)
        _positive("stop_after", self.stop_after)
        if self.max_messages is not None and self.max_bytes is not None:
            raise InvalidArgument(
                "max_bytes",
                self.max_bytes,
                "excludes max_messages: set one of them; to bound the bytes of each request beside "
                "max_messages use max_bytes_per_request",
            )
        if self.max_bytes is not None and self.max_bytes_per_request is not None:
            raise InvalidArgument(
                "max_bytes_per_request", self.max_bytes_per_request, "goes with max_messages, not max_bytes"
            )
        _threshold("threshold_messages", self.threshold_messages, "max_messages", self.buffer_messages)
        _threshold("threshold_bytes", self.threshold_bytes, "max_bytes", self.max_bytes)
        _seconds("expires", self.expires)
        if self.expires < 1.0:
            raise InvalidArgument("expires", self.expires, "must be at least 1 second")
        if self.idle_heartbeat is not None:
            _seconds("idle_heartbeat", self.idle_heartbeat)
            if not _MIN_HEARTBEAT <= self.idle_heartbeat <= _MAX_HEARTBEAT:
                raise InvalidArgument("idle_heartbeat", self.idle_heartbeat, "must be 0.5 to 30 seconds")
            if self.idle_heartbeat > self.expires / 2:
                raise InvalidArgument(
                    "idle_heartbeat", self.idle_heartbeat, f"must be at most half of expires={self.expires}"
                )
        _priority_group(self.group, self.min_pending, self.min_ack_pending, self.priority)

    @property
    def buffer_messages(self) -> int | None:
        """The limit in messages; None when the buffer is measured in bytes."""
        if self.max_bytes is not None:
            return None
        return DEFAULT_MAX_MESSAGES if self.max_messages is None else self.max_messages

    @property
    def by_bytes(self) -> bool:
        """Whether the buffer is measured in bytes rather than in messages."""
        return self.max_bytes is not None

    @property
    def limit(self) -> int:
        """The size of the buffer, in messages or bytes."""
        return self.max_bytes or self.buffer_messages or DEFAULT_MAX_MESSAGES

    @property
    def threshold(self) -> int:
        """The threshold in effect, in messages or bytes."""
        threshold = self.threshold_bytes if self.by_bytes else self.threshold_messages
        return self.limit // 2 if threshold is None else threshold

    @property
    def request_bytes(self) -> int:
        """The most bytes that one request may return; 0: the request sets no limit in bytes."""
        return self.max_bytes or self.max_bytes_per_request or 0

    @property
    def wait(self) -> float:
        """Seconds that the server waits."""
        return self.expires

    @property
    def heartbeat(self) -> float:
        """The heartbeat in effect."""
        if self.idle_heartbeat is not None:
            return self.idle_heartbeat
        return min(max(self.expires / 2, _MIN_HEARTBEAT), _MAX_HEARTBEAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """One request, then the end. ``next`` is a fetch of one message.

    At least one of ``max_messages`` and ``max_bytes`` is required; with both, the first one reached ends it.
    """

    #: At most this many messages; the consumer's ``max_request_batch`` limits it.
    max_messages: int | None = None
    #: At most this many bytes, counted as the server does; ``max_request_max_bytes`` limits it.
    max_bytes: int | None = None
    #: Seconds to wait for the messages. Default 30, or none with ``no_wait``; the consumer's
    #: ``max_request_expires`` limits it.
    expires: float | None = None
    #: Take what is available. With ``expires`` the server waits that long for a first message; without it,
    #: not at all.
    no_wait: bool = False
    #: Seconds of silence after which the server sends a heartbeat; 0 switches it off. Default: half of
    #: ``expires`` (at most 30) when ``expires`` is above 30, else off. The server refuses more than half.
    idle_heartbeat: float | None = None
    #: Priority group (ADR-42, server 2.11+); required when the consumer has groups. At most 16 characters.
    group: str | None = None
    #: Overflow policy: deliver only while at least this many messages are pending on the consumer.
    min_pending: int | None = None
    #: Overflow policy: deliver only while at least this many messages await their ack.
    min_ack_pending: int | None = None
    #: Prioritized policy (server 2.12+): 0 (first served, default) to 9.
    priority: int = 0

    def __post_init__(self) -> None:
        _positive("max_messages", self.max_messages)
        _positive("max_bytes", self.max_bytes)
        if self.max_messages is None and self.max_bytes is None:
            raise InvalidArgument("max_messages", None, "a fetch needs max_messages or max_bytes")
        if not isinstance(self.no_wait, bool):
            raise InvalidArgument("no_wait", self.no_wait, "must be True or False")
        if self.expires is not None:
            _seconds("expires", self.expires)
            if self.expires <= 0:
                raise InvalidArgument(
                    "expires", self.expires, "must be above 0; use no_wait to not wait at all"
                )
        if self.idle_heartbeat is not None:
            _seconds("idle_heartbeat", self.idle_heartbeat)
            if self.idle_heartbeat < 0:
                raise InvalidArgument("idle_heartbeat", self.idle_heartbeat, "must not be negative")
            if self.idle_heartbeat > self.wait / 2:
                raise InvalidArgument(
                    "idle_heartbeat", self.idle_heartbeat, f"must be at most half of expires={self.wait}"
                )
        _priority_group(self.group, self.min_pending, self.min_ack_pending, self.priority)

    def without(self, count: int, size: int) -> FetchOptions | None:
        """The same fetch, reduced by this many messages and bytes; None when nothing is left to ask for."""
        max_messages, max_bytes = self.max_messages, self.max_bytes
        if max_messages is not None:
            max_messages -= count
        if max_bytes is not None:
            max_bytes -= size
        if max_messages == 0 or max_bytes == 0:
            return None
        return replace(self, max_messages=max_messages, max_bytes=max_bytes)

    @property
    def batch(self) -> int:
        """The number of messages in the request."""
        return BATCH_WITH_MAX_BYTES if self.max_messages is None else self.max_messages

    @property
    def request_bytes(self) -> int:
        """The most bytes that the request may return; 0: the request sets no limit in bytes."""
        return self.max_bytes or 0

    @property
    def wait(self) -> float:
        """Seconds that the server waits; 0 for ``no_wait`` without ``expires``."""
        if self.expires is not None:
            return self.expires
        return 0.0 if self.no_wait else DEFAULT_EXPIRES

    @property
    def heartbeat(self) -> float:
        """The heartbeat in effect; 0 when off."""
        if self.idle_heartbeat is not None:
            return self.idle_heartbeat
        return min(self.wait / 2, _MAX_HEARTBEAT) if self.wait > 30.0 else 0.0


def _positive(field: str, value: int | None) -> None:
    if value is not None and (type(value) is not int or value < 1):
        raise InvalidArgument(field, value, "must be an integer and at least 1")


def _seconds(field: str, value: object) -> None:
    # Sent to the server as nanoseconds; "5", True, NaN and infinity can't be converted.
    if not is_number(value) or not math.isfinite(value):
        raise InvalidArgument(field, value, "must be a number of seconds")


def _threshold(field: str, value: int | None, limit_field: str, limit: int | None) -> None:
    if value is None:
        return
    if limit is None:
        raise InvalidArgument(field, value, f"needs {limit_field}, the constraint it belongs to")
    if type(value) is not int or not 0 <= value <= limit:
        raise InvalidArgument(field, value, f"must be 0 to {limit_field}={limit}")


def _priority_group(
    group: str | None, min_pending: int | None, min_ack_pending: int | None, priority: int
) -> None:
    if group is not None and not (isinstance(group, str) and _GROUP.fullmatch(group)):
        raise InvalidArgument("group", group, "must be 1 to 16 of the characters A-Z a-z 0-9 - _ / =")
    _positive("min_pending", min_pending)
    _positive("min_ack_pending", min_ack_pending)
    if type(priority) is not int or not 0 <= priority <= 9:
        raise InvalidArgument("priority", priority, "must be 0 to 9")
    if group is None:
        for field, value in (("min_pending", min_pending), ("min_ack_pending", min_ack_pending)):
            if value is not None:
                raise InvalidArgument(field, value, "needs group, the consumer's priority group")
        if priority:
            raise InvalidArgument("priority", priority, "needs group, the consumer's priority group")
