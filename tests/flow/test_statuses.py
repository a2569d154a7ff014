"""The table of statuses: every row that the server sends, with what it means."""

from __future__ import annotations

import inspect
import pickle
from typing import TYPE_CHECKING

import pytest

from jetspark.jetstream.consume import errors as consume_errors
from jetspark.jetstream.flow.statuses import TRAITS, Ends, Kind, Recovery, Severity, Status, classify

if TYPE_CHECKING:
    from jetspark.errors import JetsparkError

ROWS = [
    # code, description, kind, severity, ends, recovery
    (100, "Idle Heartbeat", Kind.HEARTBEAT, Severity.QUIET, Ends.NOTHING, Recovery.AT_ONCE),
    (100, "FlowControl Request", Kind.FLOW_CONTROL, Severity.QUIET, Ends.NOTHING, Recovery.AT_ONCE),
    (199, "Something New", Kind.INFORMATION, Severity.QUIET, Ends.NOTHING, Recovery.AT_ONCE),
    (400, "Bad Request", Kind.BAD_REQUEST, Severity.ERROR, Ends.ONE, Recovery.FATAL),
    (
        400,
        "Bad Request - heartbeat value too large",
        Kind.BAD_REQUEST,
        Severity.ERROR,
        Ends.ONE,
        Recovery.FATAL,
    ),
    (404, "No Messages", Kind.NO_MESSAGES, Severity.QUIET, Ends.ONE, Recovery.AT_ONCE),
    (408, "Request Timeout", Kind.REQUEST_TIMEOUT, Severity.QUIET, Ends.ONE, Recovery.AT_ONCE),
    (408, "Interest Expired", Kind.INTEREST_EXPIRED, Severity.QUIET, Ends.ONE, Recovery.AT_ONCE),
    (408, "Requests Pending", Kind.REQUESTS_PENDING, Severity.QUIET, Ends.ONE, Recovery.AT_ONCE),
    (
        409,
        "Message Size Exceeds MaxBytes",
        Kind.MESSAGE_TOO_LARGE,
        Severity.QUIET,
        Ends.ONE,
        Recovery.AT_ONCE,
    ),
    (409, "Batch Completed", Kind.BATCH_COMPLETED, Severity.QUIET, Ends.ONE, Recovery.AT_ONCE),
    (409, "Server Shutdown", Kind.SERVER_SHUTDOWN, Severity.WARNING, Ends.ALL, Recovery.AT_ONCE),
    (409, "Leadership Change", Kind.LEADERSHIP_CHANGE, Severity.WARNING, Ends.ALL, Recovery.AT_ONCE),
    (
        409,
        "Exceeded MaxRequestBatch of 10",
        Kind.MAX_REQUEST_BATCH,
        Severity.WARNING,
        Ends.ONE,
        Recovery.BACK_OFF,
    ),
    (
        409,
        "Exceeded MaxRequestExpires of 1s",
        Kind.MAX_REQUEST_EXPIRES,
        Severity.WARNING,
        Ends.ONE,
        Recovery.BACK_OFF,
    ),
    (
        409,
        "Exceeded MaxRequestMaxBytes of 9",
        Kind.MAX_REQUEST_MAX_BYTES,
        Severity.WARNING,
        Ends.ONE,
        Recovery.BACK_OFF,
    ),
    (409, "Exceeded MaxWaiting", Kind.MAX_WAITING, Severity.WARNING, Ends.ONE, Recovery.BACK_OFF),
    (409, "Exceeded MaxAckPending", Kind.MAX_ACK_PENDING, Severity.WARNING, Ends.ONE, Recovery.BACK_OFF),
    (409, "Consumer Deleted", Kind.CONSUMER_DELETED, Severity.ERROR, Ends.ALL, Recovery.FATAL),
    (409, "Consumer is push based", Kind.PUSH_BASED, Severity.ERROR, Ends.ONE, Recovery.FATAL),
    (409, "Something Else", Kind.UNKNOWN, Severity.WARNING, Ends.ONE, Recovery.BACK_OFF),
    (412, "Required Api Level", Kind.REQUIRED_API_LEVEL, Severity.ERROR, Ends.ONE, Recovery.FATAL),
    (423, "Nats-Wrong-Pin-Id", Kind.PIN_ID_MISMATCH, Severity.QUIET, Ends.ONE, Recovery.AT_ONCE),
    (423, "Nats-Pin-Id mismatch", Kind.PIN_ID_MISMATCH, Severity.QUIET, Ends.ONE, Recovery.AT_ONCE),
    (503, "", Kind.NO_RESPONDERS, Severity.WARNING, Ends.ONE, Recovery.BACK_OFF),
    (503, "No Responders", Kind.NO_RESPONDERS, Severity.WARNING, Ends.ONE, Recovery.BACK_OFF),
    (777, "Whatever", Kind.UNKNOWN, Severity.WARNING, Ends.ONE, Recovery.BACK_OFF),
]


@pytest.mark.parametrize(("code", "description", "kind", "severity", "ends", "recovery"), ROWS)
def test_every_row(
    code: int, description: str, kind: Kind, severity: Severity, ends: Ends, recovery: Recovery
) -> None:
    assert classify(code, description) is kind
    assert Status(code, description).traits == (severity, ends, recovery)


@pytest.mark.parametrize(("code", "description", "kind"), [row[:3] for row in ROWS])
def test_descriptions_are_compared_case_folded(code: int, description: str, kind: Kind) -> None:
    assert classify(code, f" {description.upper()} ") is kind
    assert classify(code, description.lower()) is kind


def test_the_table_is_complete() -> None:
    assert set(TRAITS) == set(Kind)


def test_a_100_with_a_reply_is_flow_control_whatever_it_says() -> None:
    assert classify(100, "", "$JS.FC.S.C.abcd") is Kind.FLOW_CONTROL


def test_pending_headers_are_read_from_any_status() -> None:
    both = {"Nats-Pending-Messages": "7", "Nats-Pending-Bytes": "70"}
    assert Status(777, "Future", both).pending == (7, 70)
    assert Status(408, "Request Timeout", {"Nats-Pending-Messages": "7"}).pending == (7, 0)


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "٣"])
def test_malformed_pending_headers_are_as_good_as_none(value: str) -> None:
    headers = {"Nats-Pending-Messages": value, "Nats-Pending-Bytes": value}
    assert Status(408, "Request Timeout", headers).pending is None


def test_no_headers_at_all() -> None:
    bare = Status(503)
    assert bare.pending is None
    assert bare.last_consumer_seq is None
    assert bare.stalled == ""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1s", 1.0), ("500ms", 0.5), ("1m30s", 90.0), ("2h0m0s", 7200.0), ("1.5s", 1.5), ("250µs", 0.00025)],
)
def test_the_expires_limit_is_a_go_duration(text: str, seconds: float) -> None:
    assert Status(409, f"Exceeded MaxRequestExpires of {text}").limit_seconds == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "1x", "s", "1s?"])
def test_an_unreadable_duration_is_none(text: str) -> None:
    assert Status(409, f"Exceeded MaxRequestExpires of {text}").limit_seconds is None


def test_the_batch_limit_is_a_number() -> None:
    assert Status(409, "Exceeded MaxRequestBatch of 25").limit_count == 25
    assert Status(409, "Exceeded MaxRequestBatch").limit_count is None


def _every_error() -> list[JetsparkError]:
    values = {"int": 3, "float": 1.5, "str": "text"}
    samples: list[JetsparkError] = []
    for _, cls in inspect.getmembers(consume_errors, inspect.isclass):
        if not issubclass(cls, consume_errors.ConsumeError):
            continue
        if inspect.isfunction(cls.__init__):
            _, *parameters = inspect.signature(cls.__init__).parameters.values()
            samples.append(cls(*(values[str(p.annotation)] for p in parameters)))
        else:
            samples.append(cls("text"))
    return samples


@pytest.mark.parametrize("error", _every_error(), ids=lambda error: type(error).__name__)
def test_errors_survive_pickle(error: JetsparkError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


@pytest.mark.parametrize("kind", [k for k in Kind if k.traits.severity is not Severity.QUIET])
def test_every_status_that_is_told_has_an_error(kind: Kind) -> None:
    code, description = next(row[:2] for row in ROWS if row[2] is kind)
    error = consume_errors.error_for(Status(code, description))
    assert error.code == code
    assert error.description == description
    fatal = kind.traits.recovery is Recovery.FATAL
    assert isinstance(error, consume_errors.PullWarning) is not fatal
