"""API errors: found by err_code, nothing of the answer lost, and fit to travel between processes."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from jetspark import errors
from jetspark.errors import (
    ApiError,
    ConsumerExists,
    ConsumerNotFound,
    InvalidConsumerConfig,
    JetsparkError,
    JetStreamNotEnabled,
    MessageNotFound,
    NoRespondersError,
    NoStreamResponse,
    NotFound,
    PublishRefused,
    StreamNotFound,
    Unavailable,
    WrongLastSequence,
)
from jetspark.jetstream.errors import error_from_response

RECORDED = Path(__file__).parent / "server_responses"
# nats-server 2.15 numbers its errors without a gap.
KNOWN = range(10002, 10228)
CLASSES = sorted({*ApiError.registry.values()}, key=lambda cls: cls.__name__)


def test_every_code_of_the_server_has_a_class() -> None:
    assert [code for code in KNOWN if code not in ApiError.registry] == []


@pytest.mark.parametrize("code", KNOWN)
def test_each_code_makes_its_class_and_survives_pickle(code: int) -> None:
    error = error_from_response({"code": 400, "err_code": code, "description": "what: 7"})
    assert type(error) is ApiError.registry[code]
    assert code in type(error).err_codes
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert (again.code, again.err_code, again.description) == (400, code, "what: 7")
        assert str(again) == str(error)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_each_class_says_when_and_what_to_do(cls: type[ApiError]) -> None:
    assert cls.__doc__
    assert issubclass(cls, JetsparkError)
    assert getattr(errors, cls.__name__) is cls


@pytest.mark.parametrize(
    ("name", "cls", "code", "err_code"),
    [
        ("error_stream_not_found", StreamNotFound, 404, 10059),
        ("error_wrong_last_sequence", WrongLastSequence, 400, 10071),
        ("error_no_message", MessageNotFound, 404, 10037),
        ("error_consumer_exists", ConsumerExists, 400, 10148),
    ],
)
def test_recorded_answers(name: str, cls: type[ApiError], code: int, err_code: int) -> None:
    response: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_bytes())
    error = error_from_response(response)
    assert type(error) is cls
    assert error.code == code
    assert error.err_code == err_code
    assert error.description == response["error"]["description"]
    assert error.description in str(error)
    assert str(err_code) in str(error)
    assert str(error_from_response(response["error"])) == str(error)


def test_unknown_codes_keep_all_three_values() -> None:
    error = error_from_response({"error": {"code": 499, "err_code": 19999, "description": "of the future"}})
    assert type(error) is ApiError
    assert (error.code, error.err_code, error.description) == (499, 19999, "of the future")


@pytest.mark.parametrize("response", [{}, {"error": {}}, {"error": {"code": "x", "err_code": None}}])
def test_answers_without_values_still_make_an_error(response: dict[str, Any]) -> None:
    error = error_from_response(response)
    assert type(error) is ApiError
    assert (error.code, error.err_code) == (0, 0)
    assert error.description == "no description"


@pytest.mark.parametrize(
    ("code", "base"),
    [
        (10059, NotFound),
        (10014, NotFound),
        (10037, NotFound),
        (10071, PublishRefused),
        (10138, InvalidConsumerConfig),
        (10084, InvalidConsumerConfig),
        (10008, Unavailable),
        (10163, PublishRefused),
    ],
)
def test_bases_group_what_calls_for_the_same_reaction(code: int, base: type[ApiError]) -> None:
    assert isinstance(error_from_response({"err_code": code}), base)


def test_what_is_worth_a_retry() -> None:
    assert error_from_response({"err_code": 10008}).retryable
    assert error_from_response({"err_code": 10167}).retryable
    assert error_from_response({"err_code": 10163}).retryable
    assert not error_from_response({"err_code": 10059}).retryable


@pytest.mark.parametrize(
    ("err_code", "description", "last"),
    [
        (10071, "wrong last sequence: 42", 42),
        (10071, "wrong last sequence: 0", 0),
        (10164, "wrong last sequence", None),
    ],
)
def test_the_actual_last_sequence(err_code: int, description: str, last: int | None) -> None:
    error = error_from_response({"code": 400, "err_code": err_code, "description": description})
    assert isinstance(error, WrongLastSequence)
    assert error.last_sequence == last
    assert pickle.loads(pickle.dumps(error)).last_sequence == last


@pytest.mark.parametrize("err_code", [10039, 10076])
def test_jetstream_not_enabled(err_code: int) -> None:
    assert isinstance(error_from_response({"code": 503, "err_code": err_code}), JetStreamNotEnabled)


def test_an_api_that_nobody_answers() -> None:
    error = JetStreamNotEnabled.no_responders("$JS.hub.API.INFO")
    assert (error.code, error.err_code) == (503, 0)
    assert "$JS.hub.API.INFO" in str(error)
    assert pickle.loads(pickle.dumps(error)).description == error.description


def test_a_publish_that_no_stream_takes() -> None:
    error = NoStreamResponse("orders.new")
    assert isinstance(error, NoRespondersError)
    assert error.subject == "orders.new"
    assert "orders.new" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is NoStreamResponse
    assert (str(again), again.subject) == (str(error), "orders.new")


def test_a_code_belongs_to_one_class() -> None:
    with pytest.raises(TypeError, match="ConsumerNotFound"):
        type("Second", (ApiError,), {}, err_code=10014)
    assert ApiError.registry[10014] is ConsumerNotFound
