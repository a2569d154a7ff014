"""Status messages of JetStream: one parser, one table.

A status message is an empty payload with a status line in its header block (``NATS/1.0 408 Request
Timeout``). Statuses differ only by code and text, so this module is the only place that compares the text
(case-folded). Everything else asks the table for *traits*: who is told about the status, what it does to
the outstanding requests, and how a ``consume`` continues.

The rows follow ADR-37 "Status handling", ADR-42 (priority groups) and what the server sends:

====  =================================  ========  ==========  ==========  =================
code  description                        severity  ends        recovery    pending headers
====  =================================  ========  ==========  ==========  =================
100   Idle Heartbeat                     quiet     nothing     -           no
100   FlowControl Request (with reply)   quiet     nothing     -           no
400   Bad Request - ...                  error     one         fatal       no
404   No Messages                        quiet     one         at once     no
408   Request Timeout                    quiet     one         at once     yes
408   Interest Expired                   quiet     one         at once     yes
408   Requests Pending (no_wait)         quiet     one         at once     no
409   Message Size Exceeds MaxBytes      quiet     one         at once     yes
409   Batch Completed                    quiet     one         at once     yes
409   Server Shutdown                    warning   all         at once     of one request
409   Leadership Change                  warning   all         at once     no
409   Exceeded MaxRequestBatch of N      warning   one         back off    no
409   Exceeded MaxRequestExpires of D    warning   one         back off    no
409   Exceeded MaxRequestMaxBytes of N   warning   one         back off    no
409   Exceeded MaxWaiting                warning   one         back off    no
409   Exceeded MaxAckPending             warning   one         back off    no
409   Consumer Deleted                   error     all         fatal       no
409   Consumer is push based             error     one         fatal       no
412   Required Api Level                 error     one         fatal       no
423   Nats-Wrong-Pin-Id                  quiet     one         at once     yes
423   Nats-Pin-Id mismatch               quiet     one         at once     no
503   (none, or No Responders)           warning   one         back off    no
any   anything else >= 200               warning   one         back off    if there
====  =================================  ========  ==========  ==========  =================

Leadership Change and Server Shutdown end *all*: the server keeps one entry per reply subject, so a
subscription with three outstanding requests is told once. "At once" is bounded: a flow backs off when
the same status repeats without traffic in between. Current servers do not send Exceeded MaxWaiting to
requests with a heartbeat: they stay silent, and only the missing heartbeats reveal it.
"""

from __future__ import annotations

from enum import Enum, unique
from typing import NamedTuple, Protocol

from jetspark._times import parse_duration
from jetspark.jetstream.models.values import wire_number

PENDING_MESSAGES = "Nats-Pending-Messages"
PENDING_BYTES = "Nats-Pending-Bytes"
LAST_CONSUMER = "Nats-Last-Consumer"
LAST_STREAM = "Nats-Last-Stream"
CONSUMER_STALLED = "Nats-Consumer-Stalled"
PIN_ID = "Nats-Pin-Id"


class HeaderLookup(Protocol):
    """What a status needs from headers: the first value of a name."""

    def get(self, name: str, /) -> str | None: ...


class _NoHeaders:
    __slots__ = ()

    def get(self, name: str, /) -> str | None:
        return None


_NO_HEADERS = _NoHeaders()


@unique
class Severity(Enum):
    """Who is told about a status: the user as an error, the user as a warning, or no one."""

    ERROR = "error"
    WARNING = "warning"
    QUIET = "quiet"


@unique
class Ends(Enum):
    """Which of the outstanding pull requests a status terminates."""

    NOTHING = "nothing"
    ONE = "one"
    ALL = "all"


@unique
class Recovery(Enum):
    """How a ``consume`` continues after the status."""

    AT_ONCE = "at once"
    BACK_OFF = "back off"
    FATAL = "fatal"


class Traits(NamedTuple):
    """What a kind of status means; one row of the table."""

    severity: Severity
    ends: Ends
    recovery: Recovery


_HARMLESS = Traits(Severity.QUIET, Ends.NOTHING, Recovery.AT_ONCE)
_ENDED = Traits(Severity.QUIET, Ends.ONE, Recovery.AT_ONCE)
_REFUSED = Traits(Severity.WARNING, Ends.ONE, Recovery.BACK_OFF)
_MOVED = Traits(Severity.WARNING, Ends.ALL, Recovery.AT_ONCE)
_FATAL = Traits(Severity.ERROR, Ends.ONE, Recovery.FATAL)


@unique
class Kind(Enum):
    """Every status that JetStream sends to a consumer's inbox."""

    HEARTBEAT = "idle heartbeat"
    FLOW_CONTROL = "flow control request"
    INFORMATION = "unknown information"
    BAD_REQUEST = "bad request"
    NO_MESSAGES = "no messages"
    REQUEST_TIMEOUT = "request timeout"
    INTEREST_EXPIRED = "interest expired"
    REQUESTS_PENDING = "requests pending"
    MESSAGE_TOO_LARGE = "message size exceeds maxbytes"
    BATCH_COMPLETED = "batch completed"
    SERVER_SHUTDOWN = "server shutdown"
    LEADERSHIP_CHANGE = "leadership change"
    MAX_REQUEST_BATCH = "exceeded maxrequestbatch"
    MAX_REQUEST_EXPIRES = "exceeded maxrequestexpires"
    MAX_REQUEST_MAX_BYTES = "exceeded maxrequestmaxbytes"
    MAX_WAITING = "exceeded maxwaiting"
    MAX_ACK_PENDING = "exceeded maxackpending"
    CONSUMER_DELETED = "consumer deleted"
    PUSH_BASED = "consumer is push based"
    REQUIRED_API_LEVEL = "required api level"
    PIN_ID_MISMATCH = "pin id mismatch"
    NO_RESPONDERS = "no responders"
    UNKNOWN = "unknown status"

    @property
    def traits(self) -> Traits:
        return TRAITS[self]


TRAITS: dict[Kind, Traits] = {
    Kind.HEARTBEAT: _HARMLESS,
    Kind.FLOW_CONTROL: _HARMLESS,
    Kind.INFORMATION: _HARMLESS,
    Kind.BAD_REQUEST: _FATAL,
    Kind.NO_MESSAGES: _ENDED,
    Kind.REQUEST_TIMEOUT: _ENDED,
    Kind.INTEREST_EXPIRED: _ENDED,
    Kind.REQUESTS_PENDING: _ENDED,
    Kind.MESSAGE_TOO_LARGE: _ENDED,
    Kind.BATCH_COMPLETED: _ENDED,
    Kind.SERVER_SHUTDOWN: _MOVED,
    Kind.LEADERSHIP_CHANGE: _MOVED,
    Kind.MAX_REQUEST_BATCH: _REFUSED,
    Kind.MAX_REQUEST_EXPIRES: _REFUSED,
    Kind.MAX_REQUEST_MAX_BYTES: _REFUSED,
    Kind.MAX_WAITING: _REFUSED,
    Kind.MAX_ACK_PENDING: _REFUSED,
    Kind.CONSUMER_DELETED: Traits(Severity.ERROR, Ends.ALL, Recovery.FATAL),
    Kind.PUSH_BASED: _FATAL,
    Kind.REQUIRED_API_LEVEL: _FATAL,
    Kind.PIN_ID_MISMATCH: _ENDED,
    Kind.NO_RESPONDERS: _REFUSED,
    Kind.UNKNOWN: _REFUSED,
}

# Code and the beginning of the case-folded description; the first matching row wins. Only the beginning,
# because the server appends values ("of 100") and reasons ("- heartbeat value too large").
_ROWS: tuple[tuple[int, str, Kind], ...] = (
    (100, "idle heartbeat", Kind.HEARTBEAT),
    (100, "flowcontrol request", Kind.FLOW_CONTROL),
    (400, "", Kind.BAD_REQUEST),
    (404, "", Kind.NO_MESSAGES),
    (408, "interest expired", Kind.INTEREST_EXPIRED),
    (408, "requests pending", Kind.REQUESTS_PENDING),
    (408, "", Kind.REQUEST_TIMEOUT),
    (409, "message size exceeds maxbytes", Kind.MESSAGE_TOO_LARGE),
    (409, "batch completed", Kind.BATCH_COMPLETED),
    (409, "server shutdown", Kind.SERVER_SHUTDOWN),
    (409, "leadership change", Kind.LEADERSHIP_CHANGE),
    (409, "exceeded maxrequestbatch", Kind.MAX_REQUEST_BATCH),
    (409, "exceeded maxrequestexpires", Kind.MAX_REQUEST_EXPIRES),
    (409, "exceeded maxrequestmaxbytes", Kind.MAX_REQUEST_MAX_BYTES),
    (409, "exceeded maxwaiting", Kind.MAX_WAITING),
    (409, "exceeded maxackpending", Kind.MAX_ACK_PENDING),
    (409, "consumer deleted", Kind.CONSUMER_DELETED),
    (409, "consumer is push based", Kind.PUSH_BASED),
    (412, "", Kind.REQUIRED_API_LEVEL),
    (423, "", Kind.PIN_ID_MISMATCH),
    (503, "", Kind.NO_RESPONDERS),
)


def classify(code: int, description: str, reply: str = "") -> Kind:
    """The kind of a status line. ``reply`` marks flow control: a 100 that expects a reply."""
    if code == 100 and reply:
        return Kind.FLOW_CONTROL
    text = description.strip().casefold()
    for row_code, beginning, kind in _ROWS:
        if code == row_code and text.startswith(beginning):
            return kind
    # 1xx informs and ends nothing, even one that a later server introduces.
    return Kind.INFORMATION if code < 200 else Kind.UNKNOWN


class Status:
    """A parsed status message. Headers are parsed only when needed."""

    __slots__ = ("code", "description", "headers", "kind", "reply")

    def __init__(
        self, code: int, description: str = "", headers: HeaderLookup | None = None, reply: str = ""
    ) -> None:
        self.code = code
        self.description = description
        # An empty Headers is falsy but still answers .get; only None needs a stand-in.
        self.headers: HeaderLookup = _NO_HEADERS if headers is None else headers
        self.reply = reply
        self.kind = classify(code, description, reply)

    @property
    def traits(self) -> Traits:
        return TRAITS[self.kind]

    @property
    def pending(self) -> tuple[int, int] | None:
        """Messages and bytes that the ended request still had open; None when the server does not say.

        Read from every status, as ADR-37 "Buffering messages" advises.
        """
        messages = self._number(PENDING_MESSAGES)
        size = self._number(PENDING_BYTES)
        if messages is None and size is None:
            return None
        return messages or 0, size or 0

    @property
    def last_consumer_seq(self) -> int | None:
        """Heartbeats: the consumer sequence of the last message that the server sent."""
        return self._number(LAST_CONSUMER)

    @property
    def last_stream_seq(self) -> int | None:
        """Heartbeats: the stream sequence of the last message that the server sent."""
        return self._number(LAST_STREAM)

    @property
    def stalled(self) -> str:
        """Heartbeats: the flow control subject that the server still waits for, or empty."""
        return self.headers.get(CONSUMER_STALLED) or ""

    @property
    def limit_count(self) -> int | None:
        """N of "Exceeded MaxRequestBatch of N" and "... MaxRequestMaxBytes of N"."""
        _, found, value = self.description.casefold().rpartition(" of ")
        return wire_number(value.strip()) if found else None

    @property
    def limit_seconds(self) -> float | None:
        """D of "Exceeded MaxRequestExpires of D", which the server prints as ``1m30s`` or ``500ms``."""
        _, found, value = self.description.casefold().rpartition(" of ")
        return parse_duration(value) if found else None

    def __str__(self) -> str:
        return f"{self.code} {self.description}".rstrip()

    def __repr__(self) -> str:
        return f"Status({self.code}, {self.description!r}, kind={self.kind.name})"

    def _number(self, name: str) -> int | None:
        value = self.headers.get(name)
        if value is None:
            return None
        # A malformed number is treated as missing: the whole request is then written off.
        return wire_number(value.strip())
