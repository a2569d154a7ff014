"""Durations and times: one table, read through every entry that takes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from jetspark._times import Moment, parse_duration, parse_moment, server_duration
from jetspark.cli import values
from jetspark.cli.errors import UsageError
from jetspark.cli.output import time_text
from jetspark.errors import InvalidArgument
from jetspark.jetstream.flow.statuses import Status
from jetspark.jetstream.models.schedule import ttl_text
from jetspark.spark.options import OptionError, Options
from jetspark.spark.source.options import parse_source

# Text, seconds, and what a server gets as a TTL.
DURATIONS = [
    ("5", 5.0, "5"),
    ("1.5", 1.5, "1500000000ns"),
    ("250ms", 0.25, "250ms"),
    ("10us", 1e-5, "10us"),
    ("10\u00b5s", 1e-5, "10\u00b5s"),
    ("1h30m", 5400.0, "1h30m"),
    ("1.1h", 3960.0, "1.1h"),
    ("1d 2h", 93_600.0, "93600"),
    ("2w", 1_209_600.0, "1209600"),
    ("1y", 31_536_000.0, "31536000"),
    ("10 minutes", 600.0, "600"),
    ("1 Minute", 60.0, "60"),
    ("5 mins", 300.0, "300"),
    ("2 hrs", 7200.0, "7200"),
    ("3 milliseconds", 0.003, "3000000ns"),
    ("1 hour 30 minutes", 5400.0, "5400"),
    ("30 s", 30.0, "30"),
]
NOT_DURATIONS = ["", "s", "minutes", "5 apples", "1h-2m", "-5s", "h1", "1.s", "1h30", "1M", "293y", "\u0663s"]


@pytest.mark.parametrize(("text", "seconds", "ttl"), DURATIONS)
def test_a_duration_is_the_same_for_every_entry(text: str, seconds: float, ttl: str) -> None:
    assert parse_duration(text) == seconds
    assert values.duration("--x", text) == seconds
    assert Options({"ackTimeout": text}, ["ackTimeout"]).seconds("ackTimeout") == seconds
    assert ttl_text(text) == server_duration(text) == ttl
    assert parse_duration(ttl) == seconds
    assert Status(409, f"Exceeded MaxRequestExpires of {text}").limit_seconds == seconds


@pytest.mark.parametrize("text", NOT_DURATIONS)
def test_what_is_not_a_duration_is_refused_by_every_entry(text: str) -> None:
    assert parse_duration(text) is None
    with pytest.raises(UsageError, match="is not a duration; use 500ms, 30s, 1h30m or 7d"):
        values.duration("--x", text)
    with pytest.raises(OptionError, match=r"duration greater than zero|is empty"):
        Options({"ackTimeout": text}, ["ackTimeout"]).seconds("ackTimeout")
    with pytest.raises(InvalidArgument, match="'1h30m', or 'never'"):
        ttl_text(text)
    if text != "1M":  # the text of a status is read in any case
        assert Status(409, f"Exceeded MaxRequestExpires of {text}").limit_seconds is None


# A time without a zone is UTC.
TIMES = [
    ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
    ("2026-01-31T12:00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ("2026-01-31 12:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
    ("20260131", datetime(2026, 1, 31, tzinfo=UTC)),
]
AGES = [("now", 0.0), ("-10 minutes", 600.0), ("10 minutes", 600.0), ("1h30m", 5400.0), ("-1d", 86_400.0)]
# Among them seconds and milliseconds since 1970, which must not pass for an age or a year.
NOT_TIMES = ["noon", "-soon", "17", "1612010101", "1612010112345", "0.5", "-5", "999999y", "20261399"]


def of_option(text: str) -> Moment | None:
    start = parse_source({"servers": "nats://127.0.0.1:4222", "stream": "S", "startingTime": text}).start
    assert start is not None
    return start.default.moment


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize(("text", "time"), TIMES)
def test_a_time_is_the_same_for_every_entry_in_every_zone(
    monkeypatch: pytest.MonkeyPatch, zone: str, text: str, time: datetime
) -> None:
    import time as clock

    monkeypatch.setenv("TZ", zone)
    clock.tzset()
    try:
        assert parse_moment(text) == of_option(text) == Moment(at=time)
        assert values.moment("--x", text, past=True) == values.moment("--x", text, past=False) == time
    finally:
        monkeypatch.undo()
        clock.tzset()


@pytest.mark.parametrize(("text", "seconds"), AGES)
def test_an_age_is_the_same_for_every_entry(text: str, seconds: float) -> None:
    assert parse_moment(text) == of_option(text) == Moment(seconds_ago=seconds)
    age = datetime.now(UTC) - values.moment("--x", text, past=True)
    assert abs(age - timedelta(seconds=seconds)) < timedelta(seconds=30)


def test_a_time_that_was_printed_is_read_back_as_the_same_time() -> None:
    when = datetime(2026, 1, 31, 12, 30, 15, tzinfo=timezone(timedelta(hours=9)))
    assert time_text(when) == "2026-01-31 03:30:15Z"
    assert values.moment("--x", time_text(when), past=True) == when


def test_a_duration_may_also_be_a_time_ahead() -> None:
    assert parse_moment("1h", ahead=True) == Moment(seconds_ago=-3600.0)
    assert values.moment("--x", "1h", past=False) > datetime.now(UTC) + timedelta(minutes=59)
    assert parse_moment("-1h", ahead=True) == Moment(seconds_ago=3600.0)


@pytest.mark.parametrize("text", NOT_TIMES)
def test_what_is_not_a_time_is_refused_by_every_entry(text: str) -> None:
    assert parse_moment(text) is None
    with pytest.raises(UsageError, match="is not a time; use 2026-01-31T12:00:00Z"):
        values.moment("--x", text, past=True)
    with pytest.raises(OptionError, match="a time such as 2026-01-31T12:00:00Z"):
        of_option(text)
