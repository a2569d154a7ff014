"""Lag and rates out of Spark's progress reports."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from jetspark.spark import StreamLag, StreamLagListener
from jetspark.spark.source.offsets import Offset, StreamOffset
from support.helpers import eventually_sync

if TYPE_CHECKING:
    from support.spark_helpers import Box


def place(**streams: int) -> str:
    made = Offset({name: StreamOffset(next, next, "2026-01-01T00:00:00Z") for name, next in streams.items()})
    return json.dumps(made.to_json())


def report(second: int, end: str | None, latest: str | None, **more: Any) -> dict[str, Any]:
    return {
        "id": "q1",
        "name": "copy",
        "batchId": second,
        "timestamp": f"2026-01-01T00:00:{second:02}.000Z",
        "sources": [{"endOffset": end, "latestOffset": latest}],
        **more,
    }


def test_lag_and_rates_of_each_stream() -> None:
    listener = StreamLagListener()
    first = listener.take(report(0, place(A=11, B=1), place(A=21, B=1)))
    assert [(one.stream, one.lag, one.read_per_second) for one in first] == [("A", 10, 0.0), ("B", 0, 0.0)]
    listener.take(report(2, place(A=31, B=1), place(A=51, B=5)))
    a = listener.lags["q1", "A"]
    assert (a.lag, a.position, a.latest, a.batch_id, a.query_name) == (20, 31, 51, 2, "copy")
    assert (a.read_per_second, a.arrive_per_second) == (10.0, 15.0)
    assert a.seconds_behind is None  # it is falling behind
    assert listener.lag("B") == 4
    assert listener.lag("A", "q1") == 20
    assert listener.lag("A", "q2") is None
    assert listener.lag("C") is None


def test_time_to_catch_up() -> None:
    def lag(**values: Any) -> StreamLag:
        numbers = {"position": 1, "latest": 101, "read_per_second": 30.0, "arrive_per_second": 10.0, **values}
        return StreamLag(query_id="q", query_name=None, batch_id=0, stream="A", **numbers)

    assert lag().seconds_behind == 5.0
    assert lag(latest=1).seconds_behind == 0.0
    assert lag(arrive_per_second=30.0).seconds_behind is None


def test_an_end_beyond_the_last_look_at_the_stream_is_no_lag() -> None:
    (one,) = StreamLagListener().take(report(0, place(A=30), place(A=21)))
    assert one.lag == 0


@pytest.mark.parametrize("offset", [None, '{"topic":{"0":5}}', "17", "not json", '{"version": 99}'])
def test_other_sources_are_passed_over(offset: str | None) -> None:
    listener = StreamLagListener()
    assert listener.take(report(0, offset, offset)) == []
    assert listener.take(report(0, place(A=1), offset)) == []
    assert listener.lags == {}


def test_large_lags_are_warnings_and_a_broken_callback_is_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    def on_lag(one: StreamLag) -> None:
        seen.append(one.lag)
        raise RuntimeError("metrics are down")

    listener = StreamLagListener(warn_at=10, on_lag=on_lag)
    with caplog.at_level(logging.INFO, logger="jetspark.spark.lag"):
        listener.take(report(0, place(A=1), place(A=5)))
        listener.take(report(1, place(A=1), place(A=11)))
    levels = [
        record.levelname for record in caplog.records if "lag" in record.message and not record.exc_info
    ]
    assert levels == ["INFO", "WARNING"]
    assert "query copy batch 1 stream A: lag 10, at 1 of 11" in caplog.text
    assert "metrics are down" in caplog.text
    assert seen == [4, 10]


def test_a_running_query_is_followed_and_forgotten_when_it_ends(box: Box) -> None:
    from support.spark_helpers import Batches

    stream = box.make(messages=50)
    listener = StreamLagListener()
    box.spark.streams.addListener(listener)
    seen: list[StreamLag] = []
    listener._on_lag = seen.append
    try:
        query = box.start(stream, Batches(), startingPosition="earliest", maxMessagesPerTrigger="20")
        eventually_sync(lambda: seen and seen[-1].lag == 0)
        assert listener.lag(stream, str(query.id)) == 0
        query.stop()
        eventually_sync(lambda: listener.lag(stream) is None)
    finally:
        box.spark.streams.removeListener(listener)
    assert [one.lag for one in seen if one.position in (21, 41)] == [30, 10]
    assert {one.latest for one in seen} == {51}
    assert {one.stream for one in seen} == {stream}
