"""The contract about missing messages that the model test of the Spark source judges by, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from support.source_judge import Alarm
from support.source_truth import Case, Cause, Say, duty, instant, matches, spans

LOST = [Cause.PURGED, Cause.AGED, Cause.PUSHED_OUT]
MUST, WARN, MAY, MUST_NOT = Say.MUST, Say.WARN, Say.MAY, Say.MUST_NOT


@pytest.mark.parametrize(
    ("causes", "case", "expected"),
    [
        (LOST, {}, MUST),
        (LOST, {"claimed": False}, MUST),
        (LOST, {"beginning": True}, MUST),
        (LOST, {"beginning": True, "claimed": False}, MUST_NOT),
        (LOST, {"beginning": True, "limited": True}, WARN),
        (LOST, {"beginning": True, "limited": True, "preceded": True}, MUST),
        (LOST, {"beginning": True, "limited": True, "preceded": True, "filtered": True}, WARN),
        (LOST, {"limited": True}, MUST),
        (LOST, {"ttl": True}, WARN),
        (LOST, {"matches": False}, MAY),
        (LOST, {"matches": False, "claimed": False}, MAY),
        (LOST, {"mixed": True}, MAY),
        (LOST, {"queue": True}, MUST),
        (LOST, {"queue": True, "filtered": True}, MAY),
        ([Cause.STREAM_GONE, Cause.TAIL_LOST], {}, MUST),
        ([Cause.STREAM_GONE, Cause.TAIL_LOST], {"queue": True}, MUST),
        ([Cause.STREAM_GONE, Cause.TAIL_LOST], {"beginning": True, "mixed": True}, MUST),
        ([Cause.STREAM_GONE, Cause.TAIL_LOST], {"matches": False}, MAY),
        ([Cause.TAIL_LOST], {"reused": True}, MAY),
        ([Cause.DELETED, Cause.TTL, Cause.PURGED_BY_SUBJECT], {"head": False}, MUST_NOT),
        ([Cause.DELETED, Cause.TTL, Cause.PURGED_BY_SUBJECT], {"head": True}, MAY),
        ([Cause.REPLACED], {}, MUST_NOT),
        ([Cause.REPLACED], {"limited": True}, MUST_NOT),
        ([Cause.REPLACED], {"passed": True}, MAY),
        ([Cause.REPLACED], {"thinned": True}, MAY),
        ([Cause.REPLACED], {"thinned": True, "head": False}, MUST_NOT),
        ([Cause.REPLACED], {"queue": True}, MAY),
        ([Cause.REPLACED], {"queue": True, "filtered": True}, MUST_NOT),
        ([Cause.REPLACED], {"queue": True, "head": False}, MUST_NOT),
        ([Cause.REPLACED], {"passed": True, "head": False}, MUST_NOT),
        ([Cause.CONSUMED], {"queue": True}, MAY),
        ([Cause.CONSUMED], {"queue": True, "filtered": True}, MUST_NOT),
        ([Cause.CONSUMED], {"queue": True, "filtered": True, "limited": True}, MAY),
        ([Cause.CONSUMED], {"queue": True, "limited": True, "head": False}, MUST_NOT),
        ([Cause.RELEASED], {"queue": True}, MUST_NOT),
    ],
)
def test_what_is_owed(causes: list[Cause], case: dict[str, Any], expected: Say) -> None:
    assert {cause: duty(Case(cause=cause, **case)) for cause in causes} == dict.fromkeys(causes, expected)


@pytest.mark.parametrize(
    ("filters", "subject", "expected"),
    [
        ([], "S.a", True),
        (["S.a"], "S.a", True),
        (["S.a"], "S.a.b", False),
        (["*.a.>"], "S.a.b.c", True),
        (["*.a.>"], "S.a", False),
        (["S.*"], "S.a.b", False),
        (["S.b", "S.*.c"], "S.a.c", True),
    ],
)
def test_filters(filters: list[str], subject: str, expected: bool) -> None:
    assert matches(filters, subject) is expected


@pytest.mark.parametrize(
    ("text", "kind", "named"),
    [
        ("stream 'S': messages 3 to 5 (3 sequences) were purged; the first is 6", "removed", [3, 4, 5]),
        ("stream 'S': messages 3, 5 to 6 and 9 are gone; read faster", "removed", [3, 5, 6, 9]),
        ("stream 'S': message 4 is gone", "removed", [4]),
        ("stream 'S': the stream ends at sequence 2, but was read up to 5", "rewound", []),
    ],
)
def test_which_sequences_an_alarm_names(text: str, kind: str, named: list[int]) -> None:
    alarm = Alarm("S", kind, text, 1, "", doubt=False)
    assert [number for number in range(1, 12) if alarm.names(number)] == named


def test_one_spelling_of_times() -> None:
    assert instant("2026-01-31T12:00:00.5Z") == instant("2026-01-31T12:00:00.500+00:00")


def test_numbers_as_ranges() -> None:
    assert spans([4, 1, 2, 3, 7]) == "1-4, 7"
