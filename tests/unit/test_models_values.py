"""Durations, times and open enums keep what the wire holds."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetspark import AckPolicy
from jetspark.errors import InvalidArgument, ProtocolError
from jetspark.jetstream.models.values import to_nanoseconds
from jetspark.models import Duration, Timestamp

YEAR = 366 * 86_400 * 1_000_000_000


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        (0, 0),
        (1, 1_000_000_000),
        (0.1, 100_000_000),
        (0.3, 300_000_000),
        (1.1, 1_100_000_000),
        (1e-9, 1),
        (2.5e-9, 2),
        (-1, -1_000_000_000),
        (31_536_000.5, 31_536_000_500_000_000),
        (timedelta(microseconds=1), 1_000),
        (timedelta(days=400, microseconds=7), 34_560_000_000_007_000),
        (timedelta(seconds=-1.5), -1_500_000_000),
    ],
)
def test_seconds_and_timedeltas_become_exact_nanoseconds(value: float | timedelta, ns: int) -> None:
    assert to_nanoseconds(value) == ns
    assert Duration(value).ns == ns


@given(st.integers(-YEAR, YEAR))
def test_any_nanoseconds_round_trip(ns: int) -> None:
    duration = Duration.from_ns(ns)
    assert duration.ns == ns
    assert Duration(duration).ns == ns
    assert pickle.loads(pickle.dumps(duration)).ns == ns
    assert float(duration) == pytest.approx(ns / 1e9)


@given(st.integers(0, 104 * 86_400 * 1_000_000_000 // 1_000))
def test_plain_floats_are_exact_to_the_microsecond_for_months(micros: int) -> None:
    assert to_nanoseconds(micros / 1_000_000) == micros * 1_000


@given(st.timedeltas(timedelta(days=-1000), timedelta(days=1000)))
def test_timedeltas_round_trip(delta: timedelta) -> None:
    assert Duration(delta).to_timedelta() == delta


def test_a_duration_is_a_float() -> None:
    duration = Duration(timedelta(minutes=2))
    assert duration == 120
    assert duration == 120.0
    assert duration != 121
    assert hash(duration) == hash(120.0)
    assert duration + 1 == 121
    assert duration < 121
    assert repr(duration) == "120.0"
    assert copy.deepcopy(duration).ns == duration.ns


def test_durations_that_differ_by_a_nanosecond_differ() -> None:
    left, right = Duration.from_ns(YEAR), Duration.from_ns(YEAR + 1)
    assert float(left) == float(right)
    assert left != right


@pytest.mark.parametrize("bad", ["5s", None, True, float("nan"), float("inf"), 1e12, 10**12])
def test_what_is_no_duration_is_refused(bad: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        to_nanoseconds(bad, field="ack_wait")  # type: ignore[arg-type]
    assert caught.value.field == "ack_wait"


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("2024-05-06T07:08:09.123456789Z", 1_714_979_289_123_456_789),
        ("2024-05-06T09:08:09.123456789+02:00", 1_714_979_289_123_456_789),
        ("2024-05-06T01:38:09.123456789-05:30", 1_714_979_289_123_456_789),
        ("2024-05-06t07:08:09.5z", 1_714_979_289_500_000_000),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("2199-01-02T03:04:05Z", 7_226_679_845_000_000_000),
    ],
)
def test_rfc3339_to_nanoseconds(text: str, ns: int) -> None:
    parsed = Timestamp.parse(text)
    assert parsed is not None
    assert parsed.ns == ns
    assert parsed.utcoffset() == timedelta(0)


@given(st.integers(-62_135_596_799_000_000_000, 253_402_300_799_999_999_999))
def test_times_round_trip_to_the_nanosecond(ns: int) -> None:
    time = Timestamp.from_ns(ns)
    assert time.ns == ns
    again = Timestamp.parse(time.to_rfc3339())
    assert again == time
    assert again is not None
    assert again.ns == ns
    assert pickle.loads(pickle.dumps(time)).ns == ns
    assert copy.deepcopy(time).ns == ns


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"])
def test_the_zero_time_of_go_is_none(text: str) -> None:
    assert Timestamp.parse(text) is None


@pytest.mark.parametrize(
    "text",
    ["", "now", "2024-05-06", "2024-13-06T07:08:09Z", "2024-05-06T07:08:09", "9999-12-31T23:59:59-01:00"],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="RFC 3339"):
        Timestamp.parse(text)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1, "1970-01-01T00:00:00.000000001Z"),
        (120_000_000, "1970-01-01T00:00:00.12Z"),
        (-62_135_596_799_000_000_000, "0001-01-01T00:00:01Z"),
    ],
)
def test_times_are_written_with_the_decimals_they_need(ns: int, text: str) -> None:
    assert Timestamp.from_ns(ns).to_rfc3339() == text
    assert str(Timestamp.from_ns(ns)) == text


def test_times_compare_with_each_other_and_with_datetimes() -> None:
    early, late = Timestamp.from_ns(1_000_000_001), Timestamp.from_ns(1_000_000_002)
    plain = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert early < late
    assert late > early
    assert early <= late
    assert late >= early
    assert early != late
    assert plain < early
    assert early > plain
    assert early != plain
    assert plain != early
    assert not early < early
    assert early <= early
    assert early >= early
    exact = Timestamp.from_ns(1_000_000_000)
    assert exact == plain
    assert plain == exact
    assert hash(exact) == hash(plain)
    assert sorted([late, plain, early]) == [plain, early, late]
    assert exact != "1970-01-01T00:00:01Z"


def test_naive_times_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="timezone-aware"):
        Timestamp.from_datetime(datetime(2024, 1, 1), field="opt_start_time")
    with pytest.raises(TypeError):
        assert Timestamp.from_ns(0) < datetime(2024, 1, 1)
    with pytest.raises(TypeError, match="str"):
        assert Timestamp.from_ns(0) < "2024"  # type: ignore[operator]


def test_times_of_other_zones_become_utc() -> None:
    local = datetime(2024, 5, 6, 9, 0, tzinfo=timezone(timedelta(hours=2)))
    time = Timestamp.from_datetime(local)
    assert time == local
    assert time.to_rfc3339() == "2024-05-06T07:00:00Z"
    assert time.astimezone(local.tzinfo).hour == 9


def test_time_arithmetic_keeps_nanoseconds() -> None:
    time = Timestamp.from_ns(5)
    assert (time + timedelta(seconds=1)).ns == 1_000_000_005
    assert (timedelta(seconds=1) + time).ns == 1_000_000_005
    assert (time - timedelta(seconds=1)).ns == -999_999_995
    assert Timestamp.from_ns(2_000_000_005) - time == timedelta(seconds=2)
    assert time.to_datetime() == datetime(1970, 1, 1, tzinfo=UTC)
    assert type(time.to_datetime()) is datetime


def test_a_known_value_is_the_member() -> None:
    assert AckPolicy("all") is AckPolicy.ALL
    assert AckPolicy.ALL.is_known
    assert AckPolicy.ALL == "all"
    assert AckPolicy.ALL in {"all"}
    assert f"{AckPolicy.ALL}" == "all"
    assert repr(AckPolicy.ALL) == "AckPolicy.ALL"


def test_an_unknown_value_is_kept() -> None:
    newer = AckPolicy("by_pigeon")
    assert not newer.is_known
    assert newer == "by_pigeon"
    assert newer == AckPolicy("by_pigeon")
    assert newer != AckPolicy.ALL
    assert isinstance(newer, AckPolicy)
    assert repr(newer) == "AckPolicy('by_pigeon')"
    assert pickle.loads(pickle.dumps(newer)) == newer
    assert "by_pigeon" not in [member.value for member in AckPolicy]
    with pytest.raises(ValueError, match="5"):
        AckPolicy(5)
