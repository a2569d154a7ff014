"""Values of a type that can't work are refused by name; row F12 of the faults table found each of these."""

from __future__ import annotations

from typing import Any

import pytest

from jetspark import ConsumerConfig, Expect, Headers, StreamConfig
from jetspark.connection.options import check_timeout
from jetspark.errors import InvalidArgument
from jetspark.jetstream.flow.options import FetchOptions, PullOptions
from jetspark.jetstream.models.schedule import ttl_text
from jetspark.jetstream.models.validation import validate_consumer_config, validate_stream_config
from jetspark.jetstream.publish.publish import publish_headers

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize("options", [FetchOptions, PullOptions])
@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_messages", ["5", 1.5, True]),
        ("max_bytes", ["5", 1.5, True]),
        ("expires", ["5", True, NAN, INFINITY]),
        ("idle_heartbeat", ["5", True, NAN, INFINITY]),
        ("priority", ["x", 1.5, True]),
        ("group", [5, b"g"]),
    ],
)
def test_pull_options(options: type, field: str, values: list[Any]) -> None:
    for value in values:
        given = {"max_messages": 1} if options is FetchOptions and field != "max_messages" else {}
        with pytest.raises(InvalidArgument) as caught:
            options(**{**given, field: value})
        assert caught.value.field == field


@pytest.mark.parametrize("value", [1, "no", None])
def test_a_flag_is_a_bool(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"no_wait=.*True or False"):
        FetchOptions(max_messages=1, no_wait=value)


@pytest.mark.parametrize("value", [-1, -0.1, "5", True, NAN, [1]])
def test_no_time_to_wait(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"timeout=.*number of seconds"):
        check_timeout("timeout", value)


@pytest.mark.parametrize("value", [0, 0.0, 5, 0.5, INFINITY])
def test_times_to_wait(value: float) -> None:
    assert check_timeout("timeout", value) is None


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"msg_id": 5}, "msg_id"),
        ({"msg_id": b"x"}, "msg_id"),
        ({"expect": 5}, "expect"),
        ({"msg_id": "1", "expect": {"last_seq": 5}}, "expect"),
        ({"schedule": "@every 5s"}, "schedule"),
        ({"headers": [1]}, "headers"),
    ],
)
def test_options_of_a_publish(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        publish_headers(**{"headers": None, **options})
    assert caught.value.field == field


def test_good_options_of_a_publish() -> None:
    headers = publish_headers({"A": "b"}, msg_id="1", expect=Expect(last_seq=5))
    assert headers == Headers([("A", "b"), ("Nats-Msg-Id", "1"), ("Nats-Expected-Last-Sequence", "5")])


@pytest.mark.parametrize("text", ["soon", "1x", "-1s", "1h30", "NEVER"])
def test_no_ttl(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"ttl=.*'1h30m', or 'never'"):
        ttl_text(text)


@pytest.mark.parametrize("text", ["never", "5", "1s", "1h30m", "1.5h", "90000ms"])
def test_ttls(text: str) -> None:
    assert ttl_text(text) == text


@pytest.mark.parametrize("value", [None, "S", {"name": "S"}, 5, ConsumerConfig])
def test_configs_are_of_their_class(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"config=.*must be a StreamConfig"):
        validate_stream_config(value)
    with pytest.raises(InvalidArgument, match=r"config=.*must be a ConsumerConfig"):
        validate_consumer_config(value)


@pytest.mark.parametrize("pairs", [[1], [("a",)], [("a", "b", "c")], [None]])
def test_headers_are_pairs(pairs: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"headers=.*pair of a name and a value"):
        Headers(pairs)


def test_a_long_value_is_shown_by_its_beginning() -> None:
    with pytest.raises(InvalidArgument) as caught:
        validate_stream_config(StreamConfig(name="S", subjects=["s"], metadata={"k": "v" * (128 * 1024)}))
    assert len(str(caught.value)) < 400
    assert str(caught.value).startswith("metadata={'k': 'vvv")
    assert "... (131081 characters): keys and values together" in str(caught.value)
    assert len(caught.value.value["k"]) == 128 * 1024
