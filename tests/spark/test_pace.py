"""When an idle source looks at the server, in simulated time."""

from __future__ import annotations

import pytest

from jetspark.spark.source.pace import (
    BUSY_INTERVAL,
    IDLE_INTERVAL,
    LONGEST_INTERVAL,
    PAUSE,
    Pace,
    idle_interval,
)

POLL = 0.011
"""Seconds between an answer and Spark's next question."""


def idle(pace: Pace, now: float, seconds: float, streams: int = 1) -> tuple[float, int]:
    """Spark asks and asks, and there is nothing: the time afterwards, and how often the server was asked."""
    until, looks = now + seconds, 0
    while now < until:
        now += pace.wait(now)
        pace.looked(now)
        looks += 1
        pace.nothing(now, streams)
        now += POLL
    return now, looks


def test_the_first_question_and_the_one_after_news_are_looked_into_at_once() -> None:
    pace = Pace()
    assert pace.wait(100.0) == 0.0
    now, _ = idle(pace, 100.0, 10.0)
    assert pace.wait(now) > 0.9
    pace.news()
    assert pace.wait(now) == 0.0


def test_waits_grow_to_the_idle_interval() -> None:
    pace = Pace()
    waits = []
    now = 0.0
    for _ in range(8):
        waits.append(wait := pace.wait(now))
        now += wait
        pace.looked(now)
        pace.nothing(now, 1)
    assert waits == pytest.approx([0.0, BUSY_INTERVAL, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


@pytest.mark.parametrize(("streams", "most"), [(1, 62), (30, 62), (200, 62), (1000, 14), (100_000, 8)])
def test_an_idle_minute_is_a_look_a_second_and_fewer_of_many_streams(streams: int, most: int) -> None:
    pace = Pace()
    now, _ = idle(pace, 0.0, 30.0, streams)
    _, looks = idle(pace, now, 60.0, streams)
    assert 60 / LONGEST_INTERVAL <= looks <= most


def test_a_question_after_a_pause_is_not_made_to_wait() -> None:
    # A trigger interval, or another source of the query, is at work meanwhile.
    pace = Pace()
    now, _ = idle(pace, 0.0, 10.0)
    assert pace.wait(now) > 0.5
    assert pace.wait(now - POLL + PAUSE + 0.001) == 0.0


@pytest.mark.parametrize(
    ("streams", "expected"), [(0, 1.0), (1, 1.0), (200, 1.0), (400, 2.0), (1000, 5.0), (10**6, 10.0)]
)
def test_the_idle_interval(streams: int, expected: float) -> None:
    assert idle_interval(streams) == expected * IDLE_INTERVAL
