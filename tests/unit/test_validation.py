"""Every rule for names and consumer configs: a value that breaks it, and its nearest neighbour that does
not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jetspark import ConsumerConfig
from jetspark.errors import InvalidArgument
from jetspark.jetstream.models.validation import (
    check_name,
    check_subject,
    validate_consumer_config,
)

START = datetime(2024, 1, 1, tzinfo=UTC)
PUSH = {"deliver_subject": "push.here"}
PINNED = {"priority_policy": "pinned_client", "priority_groups": ["g"]}

Case = tuple[dict[str, Any], str, str, dict[str, Any]]

# (what breaks the rule, field named, part of the rule's text, what keeps it)
CONSUMER_CASES: list[Case] = [
    ({"durable_name": ""}, "durable_name", "empty", {"durable_name": "a"}),
    ({"durable_name": "a.b"}, "durable_name", "must not contain", {"durable_name": "a-b_c"}),
    ({"name": "a b"}, "name", "must not contain", {"name": "näme"}),
    ({"name": "a/b"}, "name", "must not contain", {"name": "a:b"}),
    ({"name": "x" * 256}, "name", "255", {"name": "x" * 200}),
    ({"durable_name": "a", "name": "b"}, "name", "durable_name", {"durable_name": "a", "name": "a"}),
    ({"description": "x" * 4097}, "description", "4096", {"description": "x" * 4096}),
    ({"metadata": {"k": "v" * (128 * 1024)}}, "metadata", "131072", {"metadata": {"k": "v" * 1000}}),
    ({"num_replicas": -1}, "num_replicas", "between 0 and 5", {"num_replicas": 0}),
    ({"num_replicas": 6}, "num_replicas", "between 0 and 5", {"num_replicas": 1}),
    ({"opt_start_seq": 5}, "opt_start_seq", "by_start_sequence", {"opt_start_seq": 0}),
    (
        {"deliver_policy": "by_start_sequence"},
        "opt_start_seq",
        "1 or more",
        {"deliver_policy": "by_start_sequence", "opt_start_seq": 1},
    ),
    (
        {"deliver_policy": "by_start_sequence", "opt_start_seq": -1},
        "opt_start_seq",
        "between 0",
        {"deliver_policy": "by_start_sequence", "opt_start_seq": 9},
    ),
    ({"opt_start_time": START}, "opt_start_time", "by_start_time", {"deliver_policy": "new"}),
    (
        {"deliver_policy": "by_start_time"},
        "opt_start_time",
        "must be set",
        {"deliver_policy": "by_start_time", "opt_start_time": START},
    ),
    (
        {"deliver_policy": "by_start_time", "opt_start_time": START, "opt_start_seq": 4},
        "opt_start_seq",
        "by_start_sequence",
        {"deliver_policy": "last"},
    ),
    (
        {"deliver_policy": "last_per_subject"},
        "deliver_policy",
        "filter",
        {"deliver_policy": "last_per_subject", "filter_subject": ">"},
    ),
    (
        {"filter_subject": "s.a", "filter_subjects": ["s.b"]},
        "filter_subject",
        "filter_subjects",
        {"filter_subjects": ["s.a", "s.b"]},
    ),
    ({"filter_subject": "s..a"}, "filter_subject", "empty tokens", {"filter_subject": "s.*"}),
    ({"filter_subject": "s.>.a"}, "filter_subject", "last token", {"filter_subject": "s.>"}),
    ({"filter_subjects": [""]}, "filter_subjects", "empty", {"filter_subjects": []}),
    (
        {"filter_subjects": ["s.*", "s.b"]},
        "filter_subjects",
        "overlap",
        {"filter_subjects": ["s.*.x", "s.b"]},
    ),
    (
        {"filter_subjects": ["s.b", "s.>"]},
        "filter_subjects",
        "overlap",
        {"filter_subjects": ["s.*.b", "s.a.*"]},
    ),
    ({"filter_subjects": ["s.b", "s.b"]}, "filter_subjects", "overlap", {"filter_subjects": ["s.b"]}),
    ({"ack_wait": -1}, "ack_wait", "negative", {"ack_wait": 0.001}),
    ({"backoff": [1, -1]}, "backoff", "negative", {"backoff": [1, 0]}),
    (
        {"backoff": [1, 2, 3], "max_deliver": 2},
        "backoff",
        "max_deliver=2",
        {"backoff": [1, 2], "max_deliver": 2},
    ),
    (
        {"backoff": [1, 2, 3], "max_deliver": 1},
        "backoff",
        "max_deliver=1",
        {"backoff": [1, 2, 3], "max_deliver": -1},
    ),
    ({"deliver_subject": "a.*"}, "deliver_subject", "wildcard", {"deliver_subject": "a.b"}),
    ({"deliver_subject": "a..b"}, "deliver_subject", "empty tokens", {"deliver_subject": "a"}),
    ({**PUSH, "max_waiting": 5}, "max_waiting", "pull", {"max_waiting": 5}),
    (
        {**PUSH, "ack_policy": "none", "max_ack_pending": 5},
        "max_ack_pending",
        "ack_policy",
        {"ack_policy": "none", "max_ack_pending": 5},
    ),
    (
        {**PUSH, "idle_heartbeat": 0.099},
        "idle_heartbeat",
        "0.1 s",
        {**PUSH, "idle_heartbeat": timedelta(milliseconds=100)},
    ),
    (
        {**PUSH, "flow_control": True},
        "flow_control",
        "idle_heartbeat",
        {**PUSH, "flow_control": True, "idle_heartbeat": 5},
    ),
    ({**PUSH, **PINNED}, "priority_policy", "pull", {**PINNED}),
    ({"rate_limit_bps": 1000}, "rate_limit_bps", "push", {**PUSH, "rate_limit_bps": 1000}),
    ({**PUSH, "rate_limit_bps": -1}, "rate_limit_bps", "between 0", {"rate_limit_bps": 0}),
    ({"idle_heartbeat": 5}, "idle_heartbeat", "push", {"idle_heartbeat": 0}),
    ({"flow_control": True, "idle_heartbeat": 0}, "flow_control", "push", {"flow_control": False}),
    ({"max_expires": 0.0005}, "max_expires", "1 ms", {"max_expires": 0.001}),
    ({"sample_freq": "often"}, "sample_freq", "percentage", {"sample_freq": "30"}),
    ({"sample_freq": "-1"}, "sample_freq", "percentage", {"sample_freq": "100%"}),
    ({"sample_freq": "5%%"}, "sample_freq", "percentage", {"sample_freq": "5%"}),
    ({"priority_groups": ["g"]}, "priority_groups", "priority_policy", {"priority_groups": []}),
    (
        {"priority_policy": "none", "priority_groups": ["g"]},
        "priority_groups",
        "priority_policy",
        {"priority_policy": "none"},
    ),
    ({"priority_timeout": 5}, "priority_timeout", "priority_policy", {**PINNED, "priority_timeout": 5}),
    (
        {"priority_policy": "overflow"},
        "priority_policy",
        "priority_groups",
        {"priority_policy": "overflow", "priority_groups": ["g"]},
    ),
    (
        {"priority_policy": "prioritized", "priority_groups": [""]},
        "priority_groups",
        "1 to 16",
        {"priority_policy": "prioritized", "priority_groups": ["A-z_0/=9"]},
    ),
    (
        {"priority_policy": "overflow", "priority_groups": ["x" * 17]},
        "priority_groups",
        "1 to 16",
        {"priority_policy": "overflow", "priority_groups": ["x" * 16]},
    ),
    (
        {"priority_policy": "overflow", "priority_groups": ["a b"]},
        "priority_groups",
        "1 to 16",
        {"priority_policy": "overflow", "priority_groups": ["a-b"]},
    ),
    ({"ack_policy": "flow_control"}, "ack_policy", "deliver_subject", {**PUSH, "ack_policy": "flow_control"}),
    (
        {**PUSH, "ack_policy": "flow_control", "max_ack_pending": -1},
        "max_ack_pending",
        "above 0",
        {**PUSH, "ack_policy": "flow_control", "max_ack_pending": 10},
    ),
    (
        {**PUSH, "ack_policy": "flow_control", "ack_wait": 1},
        "ack_wait",
        "unset",
        {**PUSH, "ack_policy": "flow_control", "ack_wait": 0},
    ),
    (
        {**PUSH, "ack_policy": "flow_control", "backoff": [1]},
        "backoff",
        "unset",
        {**PUSH, "ack_policy": "flow_control", "flow_control": True},
    ),
    (
        {**PUSH, "ack_policy": "flow_control", "max_deliver": 1},
        "max_deliver",
        "unset",
        {**PUSH, "ack_policy": "flow_control", "max_deliver": -1},
    ),
    ({"max_batch": 1 << 63}, "max_batch", "between", {"max_batch": 100}),
    ({"max_deliver": 1 << 63}, "max_deliver", "between", {"max_deliver": 3}),
]

# What looks wrong and yet the server takes; validation must let it pass.
CONSUMER_ACCEPTED: list[dict[str, Any]] = [
    {},
    {"deliver_group": "g"},
    {**PUSH, "deliver_group": "g"},
    {**PUSH, "max_batch": 5, "max_expires": 5, "max_bytes": 5},
    {"max_waiting": -1},
    {"max_batch": -1, "max_expires": -1, "max_bytes": -1},
    {"max_deliver": -7},
    {"max_ack_pending": -7},
    {"idle_heartbeat": -1},
    {"inactive_threshold": -1},
    {"priority_timeout": -1},
    {"sample_freq": "150"},
    {"sample_freq": ""},
    {"filter_subject": ""},
    {"filter_subjects": ["s.*.b", "s.a.*"]},
    {"headers_only": True, "mem_storage": True},
    {"replay_policy": "original"},
    {"backoff": [1, 2, 3]},
    {"backoff": [1, 2, 3], "max_deliver": 0},
    {"ack_policy": "all", "ack_wait": 3},
    {**PINNED},
    {"metadata": {}},
    {"pause_until": START},
]

CONSUMER_PEDANTIC_CASES: list[Case] = [
    ({"max_deliver": -2}, "max_deliver", "-1", {"max_deliver": -1}),
    ({"max_ack_pending": -2}, "max_ack_pending", "-1", {"max_ack_pending": -1}),
    ({"max_waiting": -1}, "max_waiting", "negative", {"max_waiting": 1}),
    ({"max_batch": -1}, "max_batch", "negative", {"max_batch": 1}),
    ({"max_bytes": -1}, "max_bytes", "negative", {"max_bytes": 1}),
    ({"max_expires": -1}, "max_expires", "negative", {"max_expires": 1}),
    ({"inactive_threshold": -1}, "inactive_threshold", "negative", {"inactive_threshold": 10}),
    ({"idle_heartbeat": -1}, "idle_heartbeat", "negative", {**PUSH, "idle_heartbeat": 1}),
    ({"priority_timeout": -1}, "priority_timeout", "negative", {**PINNED, "priority_timeout": 1}),
    ({"backoff": [1, 2]}, "ack_wait", "first backoff", {"backoff": [1, 2], "ack_wait": 1}),
]


def consumer(fields: dict[str, Any]) -> ConsumerConfig:
    return ConsumerConfig(**fields)


def _ids(cases: list[Case]) -> list[str]:
    return [f"{field}-{rule}-{index}" for index, (_, field, rule, _) in enumerate(cases)]


@pytest.mark.parametrize("case", CONSUMER_CASES, ids=_ids(CONSUMER_CASES))
def test_consumer_rule(case: Case) -> None:
    bad, field, rule, good = case
    with pytest.raises(InvalidArgument) as caught:
        validate_consumer_config(consumer(bad))
    assert caught.value.field == field
    assert rule in caught.value.rule
    assert validate_consumer_config(consumer(good)) is None


@pytest.mark.parametrize("fields", CONSUMER_ACCEPTED, ids=repr)
def test_consumer_config_that_the_server_accepts_passes(fields: dict[str, Any]) -> None:
    assert validate_consumer_config(consumer(fields)) is None


@pytest.mark.parametrize("case", CONSUMER_PEDANTIC_CASES, ids=_ids(CONSUMER_PEDANTIC_CASES))
def test_consumer_rule_of_pedantic_mode(case: Case) -> None:
    bad, field, rule, good = case
    with pytest.raises(InvalidArgument) as caught:
        validate_consumer_config(consumer(bad), pedantic=True)
    assert caught.value.field == field
    assert rule in caught.value.rule
    assert validate_consumer_config(consumer(bad)) is None
    assert validate_consumer_config(consumer(good), pedantic=True) is None


@pytest.mark.parametrize(
    "bad", [">", "*", ".", "/", "\\", "\t", "\r", "\n", "\f", " ", "\x00", "\x1b", "\u200b", "a b", ""]
)
def test_names_with_forbidden_characters(bad: str) -> None:
    value = f"x{bad}" if bad else ""
    with pytest.raises(InvalidArgument) as caught:
        check_name("stream", value)
    assert caught.value.field == "stream"
    assert caught.value.value == value


def test_name_length_counts_bytes() -> None:
    assert check_name("stream", "ä" * 127) is None
    with pytest.raises(InvalidArgument, match="255 bytes"):
        check_name("stream", "ä" * 128)


@pytest.mark.parametrize("value", [None, 5, b"x"])
def test_names_and_subjects_must_be_strings(value: object) -> None:
    with pytest.raises(InvalidArgument, match="must be a str"):
        check_name("stream", value)
    with pytest.raises(InvalidArgument, match="must be a str"):
        check_subject("subject", value)


def test_check_subject_takes_wildcards_only_where_they_make_sense() -> None:
    assert check_subject("filter_subject", "a.*.>") is None
    with pytest.raises(InvalidArgument) as caught:
        check_subject("deliver_subject", "a.*", wildcards=False)
    assert caught.value.field == "deliver_subject"


def test_policies_of_newer_servers_are_left_to_the_server() -> None:
    newer = ConsumerConfig(deliver_policy="by_moon_phase", ack_policy="by_pigeon", opt_start_seq=3)
    assert validate_consumer_config(newer) is None
