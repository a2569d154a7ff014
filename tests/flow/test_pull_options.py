"""ADR-37 "Defaults and constraints": what is refused before anything is sent, and what is filled in."""

from __future__ import annotations

from typing import Any

import pytest

from jetspark.errors import InvalidArgument
from jetspark.jetstream.flow.options import FetchOptions, PullOptions


def test_max_messages_and_max_bytes_are_exclusive() -> None:
    with pytest.raises(InvalidArgument, match="max_messages"):
        PullOptions(max_messages=10, max_bytes=1000)


def test_default_is_max_messages_and_no_max_bytes() -> None:
    assert PullOptions().buffer_messages == 500
    assert PullOptions().max_bytes is None


@pytest.mark.parametrize(
    ("expires", "heartbeat"), [(30.0, 15.0), (1.0, 0.5), (10.0, 5.0), (60.0, 30.0), (600.0, 30.0)]
)
def test_heartbeat_defaults_to_half_of_expires_within_its_limits(expires: float, heartbeat: float) -> None:
    assert PullOptions(expires=expires).heartbeat == heartbeat


@pytest.mark.parametrize(
    "bad",
    [
        {"max_messages": 0},
        {"max_messages": -1},
        {"max_bytes": 0},
        {"expires": 0.999},
        {"expires": float("nan")},
        {"idle_heartbeat": 0.499},
        {"idle_heartbeat": 30.1, "expires": 100.0},
        {"idle_heartbeat": 5.1, "expires": 10.0},
        {"threshold_messages": 501},
        {"threshold_messages": -1},
        {"max_messages": 10, "threshold_messages": 11},
        {"threshold_bytes": 5},
        {"max_bytes": 100, "threshold_bytes": 101},
        {"max_bytes": 100, "threshold_messages": 1},
        {"max_bytes": 100, "max_bytes_per_request": 50},
        {"max_bytes_per_request": 0},
        {"stop_after": 0},
        {"min_pending": 5},
        {"min_ack_pending": 5},
        {"priority": 1},
        {"group": "g", "priority": 10},
        {"group": "g", "priority": -1},
        {"group": "g", "min_pending": 0},
        {"group": ""},
        {"group": "a" * 17},
        {"group": "with space"},
    ],
    ids=str,
)
def test_consume_refuses(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        PullOptions(**bad)
    assert caught.value.field in str(caught.value)


def test_threshold_may_equal_its_constraint() -> None:
    assert PullOptions(max_messages=10, threshold_messages=10).threshold_messages == 10
    assert PullOptions(max_bytes=10, threshold_bytes=10).threshold_bytes == 10


def test_fetch_needs_max_messages_or_max_bytes() -> None:
    with pytest.raises(InvalidArgument, match="max_messages or max_bytes"):
        FetchOptions()


@pytest.mark.parametrize(
    ("options", "heartbeat"),
    [
        ({}, 0.0),
        ({"expires": 30.0}, 0.0),
        ({"expires": 31.0}, 15.5),
        ({"expires": 120.0}, 30.0),
        ({"expires": 120.0, "idle_heartbeat": 0.0}, 0.0),
        ({"expires": 4.0, "idle_heartbeat": 2.0}, 2.0),
    ],
    ids=str,
)
def test_fetch_heartbeats_are_on_by_default_above_30_seconds(
    options: dict[str, Any], heartbeat: float
) -> None:
    assert FetchOptions(max_messages=1, **options).heartbeat == heartbeat


@pytest.mark.parametrize(
    "bad",
    [
        {"max_messages": 0},
        {"max_bytes": 0},
        {"max_messages": 1, "expires": 0.0},
        {"max_messages": 1, "expires": 4.0, "idle_heartbeat": 2.1},
        {"max_messages": 1, "no_wait": True, "idle_heartbeat": 1.0},
        {"max_messages": 1, "idle_heartbeat": -1.0},
        {"max_messages": 1, "min_pending": 1},
    ],
    ids=str,
)
def test_fetch_refuses(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        FetchOptions(**bad)
    assert caught.value.field in str(caught.value)


def test_fetch_waits_30_seconds_by_default_and_not_at_all_with_no_wait() -> None:
    assert FetchOptions(max_messages=1).wait == 30.0
    assert FetchOptions(max_messages=1, no_wait=True).wait == 0.0
    assert FetchOptions(max_messages=1, no_wait=True, expires=2.0).wait == 2.0
    assert FetchOptions(max_bytes=10).batch == 1_000_000
