"""What is loss: the table of causes, filters, retention, limits and moments, and the laws behind it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetspark import RetentionPolicy, StreamConfig, StreamInfo
from jetspark.spark.source.claims import (
    Found,
    Gap,
    Outcome,
    Rules,
    Seen,
    is_filtered,
    judge_gap,
    judge_keys,
    judge_stream,
    limits_explain,
)

SECOND = 1_000_000_000
FINE, WARNING, LOSS = Outcome.FINE, Outcome.WARNING, Outcome.LOSS
NOW = 10_000 * SECOND
#: A stream of sequences 1 to 100 and 10 subjects, seen 10 s ago; its first message was an hour old then.
SEEN = Seen(1, 100, 10, NOW - 10 * SECOND, NOW - 3610 * SECOND, NOW - 20 * SECOND)
#: Now it begins at 61 and goes on to 120: 60 messages.
FOUND = Found(61, 120, 60, 6000, 10, NOW)

LIMITS, QUEUE, INTEREST = RetentionPolicy.LIMITS, RetentionPolicy.WORK_QUEUE, RetentionPolicy.INTEREST

#: What the stream's config lets it remove, and whether its limits explain that the head has moved.
KEEPING = {
    "no limits": (Rules(), False),
    "max_age, not due": (Rules(max_age=7200 * SECOND), False),
    "max_age, due": (Rules(max_age=3600 * SECOND), True),
    "max_msgs, not full": (Rules(max_msgs=61), False),
    "max_msgs, full": (Rules(max_msgs=60), True),
    "max_bytes, not full": (Rules(max_bytes=12_001), False),
    "max_bytes, full": (Rules(max_bytes=12_000), True),
    "ttl": (Rules(ttl=True), False),
    "ttl and max_age, due": (Rules(ttl=True, max_age=3600 * SECOND), True),
    "last value": (Rules(per_subject=1), False),
    "last value and max_msgs, full": (Rules(per_subject=1, max_msgs=60), True),
    "history of 5": (Rules(per_subject=5), False),
    "history of 5, ttl": (Rules(per_subject=5, ttl=True), False),
}


def expected(
    rules: Rules, limits: bool, *, filtered: bool, earliest: bool, missing: int, full: bool, kept: bool
) -> Outcome:
    """The rules of the module's docstring, in their order."""
    if earliest and limits:
        return WARNING
    if filtered and rules.retention != LIMITS:
        return FINE
    if rules.per_subject and not limits and kept and (rules.per_subject == 1 or full):
        return FINE
    if not limits and (missing == 1 or rules.ttl):
        return WARNING
    return LOSS


@pytest.mark.parametrize("keeping", KEEPING)
@pytest.mark.parametrize("retention", [LIMITS, QUEUE, INTEREST])
def test_the_whole_product(keeping: str, retention: RetentionPolicy) -> None:
    rules, limits = KEEPING[keeping]
    rules = replace(rules, retention=retention)
    for filtered, earliest, full, missing, keys in itertools.product(
        (False, True), (False, True), (False, True), (1, 2, 50), (9, 10, 11)
    ):
        found = replace(FOUND, rules=rules, keys=keys)
        gap = Gap(11, 61, missing)
        assert judge_gap(gap, SEEN, found, filtered=filtered, earliest=earliest, full=full) == expected(
            rules, limits, filtered=filtered, earliest=earliest, missing=missing, full=full, kept=keys >= 10
        ), (filtered, earliest, full, missing, keys)


@pytest.mark.parametrize(
    ("case", "keeping", "retention", "filtered", "earliest", "missing", "keys", "full", "outcome"),
    [
        # cause, limits, retention, subjects given, first read, messages missing, subjects left, some full
        ("purge in a later batch or piece", "no limits", LIMITS, False, False, 50, 10, False, LOSS),
        ("purge in the first read", "no limits", LIMITS, False, True, 50, 10, False, LOSS),
        ("purge in the first read", "max_age, not due", LIMITS, False, True, 50, 10, False, LOSS),
        ("purge, filtered", "no limits", LIMITS, True, False, 50, 10, False, LOSS),
        ("expiry before the first row", "max_age, due", LIMITS, False, True, 50, 10, False, WARNING),
        ("expiry in the first piece, filtered", "max_age, due", LIMITS, True, True, 50, 10, False, WARNING),
        ("expiry in a later batch or piece", "max_age, due", LIMITS, False, False, 50, 10, False, LOSS),
        ("limits before the first row", "max_msgs, full", LIMITS, False, True, 50, 10, False, WARNING),
        ("limits in a later batch or piece", "max_msgs, full", LIMITS, False, False, 50, 10, False, LOSS),
        ("limits in a later batch or piece", "max_bytes, full", LIMITS, False, False, 50, 10, False, LOSS),
        ("limits, filtered", "max_msgs, full", LIMITS, True, False, 50, 10, False, LOSS),
        ("one message deleted at the head", "no limits", LIMITS, False, False, 1, 10, False, WARNING),
        ("one message expired at the head", "max_age, due", LIMITS, False, False, 1, 10, False, LOSS),
        ("own TTLs at the head", "ttl", LIMITS, False, False, 50, 10, False, WARNING),
        ("own TTLs at the head, filtered", "ttl", LIMITS, True, False, 50, 10, False, WARNING),
        ("other workers' acks", "no limits", QUEUE, True, False, 50, 10, False, FINE),
        ("acks of what we read", "no limits", QUEUE, False, False, 50, 10, False, LOSS),
        ("other consumers' acks", "no limits", INTEREST, True, False, 50, 10, False, FINE),
        ("acks of what we read", "no limits", INTEREST, False, False, 50, 10, False, LOSS),
        ("replaced by newer values", "last value", LIMITS, False, False, 50, 10, False, FINE),
        ("purge of a last-value stream", "last value", LIMITS, False, False, 50, 3, False, LOSS),
        ("replaced by newer values", "history of 5", LIMITS, False, False, 50, 10, True, FINE),
        ("purge far below the limit", "history of 5", LIMITS, False, False, 50, 10, False, LOSS),
        ("limits", "last value and max_msgs, full", LIMITS, False, False, 50, 10, False, LOSS),
    ],
)
def test_what_happens_to_users(
    case: str,
    keeping: str,
    retention: RetentionPolicy,
    filtered: bool,
    earliest: bool,
    missing: int,
    keys: int,
    full: bool,
    outcome: Outcome,
) -> None:
    found = replace(FOUND, keys=keys, rules=replace(KEEPING[keeping][0], retention=retention))
    gap = Gap(11, 61, missing)
    assert judge_gap(gap, SEEN, found, filtered=filtered, earliest=earliest, full=full) == outcome, case


@pytest.mark.parametrize(
    ("begin", "seen", "time", "explained"),
    [
        # The first message of then was stored 3,610 s ago, and we looked 10 s ago; max_age is an hour.
        (11, SEEN, NOW, True),
        (11, replace(SEEN, head_time=NOW - 3000 * SECOND), NOW, False),
        (11, replace(SEEN, head_time=0), NOW, True),
        # Behind the end of then: nothing there can be older than that look.
        (101, SEEN, NOW, False),
        (101, replace(SEEN, time=NOW - 3600 * SECOND), NOW, True),
        # Clocks that differ by less than a second.
        (101, replace(SEEN, time=NOW - 3599 * SECOND), NOW, True),
        (101, replace(SEEN, time=NOW - 3598 * SECOND), NOW, False),
        # What is not known is taken for possible.
        (101, replace(SEEN, time=0), NOW, True),
        (11, replace(SEEN, head=21, head_time=NOW), NOW, True),  # gone when we looked
        (101, None, NOW, True),
        (101, SEEN, 0, True),
    ],
)
def test_whether_max_age_explains_it(begin: int, seen: Seen | None, time: int, explained: bool) -> None:
    found = replace(FOUND, time=time, rules=Rules(max_age=3600 * SECOND))
    assert limits_explain(begin, seen, found) is explained


def test_nothing_missing_is_never_loss() -> None:
    for rules, _ in KEEPING.values():
        assert judge_gap(Gap(61, 61, 0), SEEN, replace(FOUND, rules=rules), filtered=False) == FINE


@pytest.mark.parametrize(
    ("end", "seen", "last", "tail_time", "outcome"),
    [
        (101, SEEN, 100, SEEN.tail_time, FINE),
        (101, SEEN, 500, SEEN.tail_time, FINE),
        (101, SEEN, 99, None, LOSS),
        (101, SEEN, 500, SEEN.tail_time + 1, LOSS),
        (101, SEEN, 500, None, FINE),  # deleted since: not known
        (101, None, 500, None, FINE),
        (101, None, 99, None, LOSS),
        (51, SEEN, 99, None, FINE),  # the range is there; what lies behind it is the next one's matter
        (101, replace(SEEN, tail_time=0), 500, NOW, FINE),
    ],
)
def test_the_end_of_a_stream(
    end: int, seen: Seen | None, last: int, tail_time: int | None, outcome: Outcome
) -> None:
    assert judge_stream(end, seen, replace(FOUND, last=last), tail_time) == outcome


@pytest.mark.parametrize(
    ("given", "found", "filtered", "outcome"),
    [
        (10, FOUND, False, FINE),
        (12, FOUND, False, FINE),
        (9, FOUND, False, WARNING),
        (7, FOUND, False, LOSS),
        (7, replace(FOUND, first=1), False, FINE),  # deleted by themselves
        (7, replace(FOUND, rules=Rules(max_age=3600 * SECOND)), False, WARNING),
        (7, replace(FOUND, rules=Rules(ttl=True)), False, WARNING),
        (2, FOUND, True, FINE),
        (2, replace(FOUND, keys=7), True, LOSS),
        (2, replace(FOUND, keys=7, rules=Rules(QUEUE)), True, FINE),
    ],
)
def test_the_keys_of_a_snapshot(given: int, found: Found, filtered: bool, outcome: Outcome) -> None:
    assert judge_keys(given, SEEN, found, filtered=filtered) == outcome


@pytest.mark.parametrize(
    ("stored", "subjects", "filtered"),
    [
        (["a.>"], (), False),
        (["a.>"], (">",), False),
        (["a.>"], ("a.>",), False),
        (["a.>"], ("a.b",), True),
        (["a", "b"], ("b", "a"), False),
        (["a", "b"], ("a",), True),
        ([], ("a",), True),
    ],
)
def test_whether_a_filter_leaves_anything_out(
    stored: list[str], subjects: tuple[str, ...], filtered: bool
) -> None:
    info = StreamInfo(config=StreamConfig(name="S", subjects=stored))
    assert is_filtered(info, subjects) is filtered


@given(st.tuples(st.integers(1), *[st.integers(0)] * 5))
def test_what_was_seen_survives_the_checkpoint(numbers: tuple[int, ...]) -> None:
    seen = Seen(*numbers)
    assert Seen.from_json(seen.to_json()) == seen


@pytest.mark.parametrize("value", [{}, {"head": 0, "tail": 3}, {"head": "1"}, {"head": True}, {"head": -1}])
def test_what_was_seen_and_is_damaged(value: dict[str, object]) -> None:
    assert Seen.from_json(value) is None
