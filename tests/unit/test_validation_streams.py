"""Every rule of the client-side validation of stream configs: a config that breaks it, and its nearest
neighbour that does not. All were tried on a real server: what is refused here it refuses, what passes it
accepts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from jetspark import Placement, StreamConfig, StreamSource, SubjectTransform
from jetspark.errors import InvalidArgument
from jetspark.jetstream.models.validation import validate_stream_config
from jetspark.models import ConsumerSource, External, RePublish

START = datetime(2024, 1, 1, tzinfo=UTC)

Case = tuple[dict[str, Any], str, str, dict[str, Any]]


def source(**fields: Any) -> StreamSource:
    return StreamSource(**{"name": "ORIGIN", **fields})


def transform(src: str, dest: str) -> SubjectTransform:
    return SubjectTransform(src=src, dest=dest)


MIRROR = {"subjects": None, "mirror": source()}
FEEDER = ConsumerSource(name="feed", deliver_subject="feed.here")

# (what breaks the rule, field named, part of the rule's text, what keeps it)
STREAM_CASES: list[Case] = [
    ({"name": ""}, "name", "empty", {}),
    ({"name": "a.b"}, "name", "must not contain", {"name": "VALID-a_b"}),
    ({"name": "a*"}, "name", "must not contain", {"name": "VALID-ä"}),
    ({"name": "a\\b"}, "name", "must not contain", {"name": "VALID@b"}),
    ({"name": "x" * 256}, "name", "255", {"name": "VALID" + "x" * 200}),
    ({"description": "x" * 4097}, "description", "4096", {"description": "x" * 4096}),
    ({"metadata": {"k": "v" * (128 * 1024)}}, "metadata", "131072", {"metadata": {"k": "v"}}),
    ({"num_replicas": 6}, "num_replicas", "between 0 and 5", {"num_replicas": 1}),
    ({"num_replicas": -1}, "num_replicas", "between 0 and 5", {"num_replicas": 0}),
    ({"max_msg_size": 1 << 31}, "max_msg_size", "between", {"max_msg_size": (1 << 31) - 1}),
    ({"max_msgs": 1 << 63}, "max_msgs", "between", {"max_msgs": 5}),
    ({"first_seq": -1}, "first_seq", "between 0", {"first_seq": 100}),
    ({"max_age": -1}, "max_age", "negative", {"max_age": 0}),
    ({"max_age": 0.05}, "max_age", "0.1 s", {"max_age": 0.1}),
    ({"duplicate_window": -1}, "duplicate_window", "negative", {"duplicate_window": 0}),
    ({"duplicate_window": 0.05}, "duplicate_window", "0.1 s", {"duplicate_window": 0.1}),
    (
        {"max_age": 10, "duplicate_window": 11},
        "duplicate_window",
        "max_age",
        {"max_age": 10, "duplicate_window": 10},
    ),
    (
        {"subject_delete_marker_ttl": 0.5},
        "subject_delete_marker_ttl",
        "1 s",
        {"subject_delete_marker_ttl": 1},
    ),
    (
        {"subject_delete_marker_ttl": -1},
        "subject_delete_marker_ttl",
        "negative",
        {"subject_delete_marker_ttl": 1, "allow_msg_ttl": True},
    ),
    (
        {"deny_purge": True, "allow_rollup_hdrs": True},
        "allow_rollup_hdrs",
        "deny_purge",
        {"allow_rollup_hdrs": True},
    ),
    (
        {"discard_new_per_subject": True, "max_msgs_per_subject": 5},
        "discard_new_per_subject",
        "discard='new'",
        {"discard_new_per_subject": True, "max_msgs_per_subject": 5, "discard": "new"},
    ),
    (
        {"discard_new_per_subject": True, "discard": "new"},
        "discard_new_per_subject",
        "max_msgs_per_subject",
        {"discard": "new"},
    ),
    (
        {"allow_msg_counter": True, "discard": "new"},
        "allow_msg_counter",
        "discard",
        {"allow_msg_counter": True},
    ),
    (
        {"allow_msg_counter": True, "allow_msg_ttl": True},
        "allow_msg_counter",
        "allow_msg_ttl",
        {"allow_msg_ttl": True},
    ),
    (
        {"allow_msg_counter": True, "allow_msg_schedules": True},
        "allow_msg_counter",
        "allow_msg_schedules",
        {"allow_msg_schedules": True},
    ),
    (
        {"allow_msg_counter": True, "retention": "interest"},
        "allow_msg_counter",
        "retention",
        {"retention": "interest"},
    ),
    ({"allow_msg_schedules": True, "discard": "new"}, "allow_msg_schedules", "discard", {}),
    (
        {"allow_msg_schedules": True, "sources": [source()]},
        "allow_msg_schedules",
        "sources",
        {"sources": [source()]},
    ),
    (
        {"persist_mode": "async", "storage": "memory"},
        "persist_mode",
        "storage",
        {"persist_mode": "async"},
    ),
    (
        {"persist_mode": "async", "num_replicas": 3},
        "persist_mode",
        "num_replicas",
        {"persist_mode": "async", "num_replicas": 1},
    ),
    ({"persist_mode": "async", "allow_atomic": True}, "persist_mode", "allow_atomic", {"allow_atomic": True}),
    ({**MIRROR, "subjects": ["s.a"]}, "subjects", "mirror", {**MIRROR}),
    ({**MIRROR, "sources": [source(name="B")]}, "sources", "mirror", {**MIRROR, "sources": []}),
    ({**MIRROR, "first_seq": 4}, "first_seq", "mirror", {**MIRROR, "first_seq": 0}),
    ({**MIRROR, "allow_msg_counter": True}, "allow_msg_counter", "mirror", {**MIRROR, "allow_direct": True}),
    ({**MIRROR, "allow_atomic": True}, "allow_atomic", "mirror", {**MIRROR, "allow_atomic": False}),
    ({**MIRROR, "allow_batched": True}, "allow_batched", "mirror", {"allow_batched": True}),
    ({**MIRROR, "allow_msg_schedules": True}, "allow_msg_schedules", "mirror", {**MIRROR}),
    (
        {**MIRROR, "subject_delete_marker_ttl": 5},
        "subject_delete_marker_ttl",
        "mirror",
        {**MIRROR, "allow_msg_ttl": True},
    ),
    ({"subjects": None, "mirror": source(name="a.b")}, "mirror.name", "must not contain", {**MIRROR}),
    ({"subjects": None, "name": "SELF", "mirror": source(name="SELF")}, "mirror.name", "itself", {**MIRROR}),
    (
        {"subjects": None, "mirror": source(filter_subject="a", subject_transforms=[transform("b", "c")])},
        "mirror.filter_subject",
        "subject_transforms",
        {"subjects": None, "mirror": source(filter_subject="a")},
    ),
    (
        {
            "subjects": None,
            "mirror": source(subject_transforms=[transform("a.*", "x.$1"), transform("*.b", "y.$1")]),
        },
        "mirror.subject_transforms",
        "overlap",
        {
            "subjects": None,
            "mirror": source(subject_transforms=[transform("a.*", "x.$1"), transform("b", "y")]),
        },
    ),
    (
        {"subjects": None, "mirror": source(subject_transforms=[transform("a..b", "x")])},
        "mirror.subject_transforms",
        "empty tokens",
        {"subjects": None, "mirror": source(subject_transforms=[transform("a.b", "x")])},
    ),
    (
        {"subjects": None, "mirror": source(consumer=FEEDER, opt_start_seq=4)},
        "mirror.opt_start_seq",
        "consumer",
        {"subjects": None, "mirror": source(consumer=FEEDER)},
    ),
    (
        {"subjects": None, "mirror": source(consumer=FEEDER, filter_subject="a")},
        "mirror.filter_subject",
        "consumer",
        {"subjects": None, "mirror": source(opt_start_seq=4)},
    ),
    (
        {"subjects": None, "mirror": source(consumer=ConsumerSource(name="a.b", deliver_subject="x"))},
        "mirror.consumer.name",
        "must not contain",
        {**MIRROR},
    ),
    (
        {"subjects": None, "mirror": source(consumer=ConsumerSource(name="a", deliver_subject="x.*"))},
        "mirror.consumer.deliver_subject",
        "wildcard",
        {**MIRROR},
    ),
    (
        {"subjects": None, "mirror": source(external=External(api="$JS.*.API"))},
        "mirror.external.api",
        "wildcard",
        {"subjects": None, "mirror": source(external=External(api="$JS.hub.API"))},
    ),
    (
        {"subjects": None, "mirror": source(external=External(api="$JS.API"))},
        "mirror.external.api",
        "own API",
        {"subjects": None, "mirror": source(external=External(api="$JS.hub.API", deliver="in.here"))},
    ),
    (
        {"subjects": None, "mirror": source(external=External(api="$JS.hub.API", deliver="in.>"))},
        "mirror.external.deliver",
        "wildcard",
        {"subjects": None, "mirror": source(external=External(api="$JS.hub.API"))},
    ),
    ({"sources": [source(name="a.b")]}, "sources[0].name", "must not contain", {"sources": [source()]}),
    (
        {"sources": [source(), source()]},
        "sources[1]",
        "same source",
        {"sources": [source(filter_subject="a"), source(filter_subject="b")]},
    ),
    (
        {"sources": [source(filter_subject="a", subject_transforms=[transform("b", "c")])]},
        "sources[0].filter_subject",
        "subject_transforms",
        {"sources": [source(subject_transforms=[transform("b", "c")])]},
    ),
    (
        {"sources": [source(subject_transforms=[transform("a.*", "x.$1"), transform("a.b", "y")])]},
        "sources[0].subject_transforms",
        "overlap",
        {"sources": [source(subject_transforms=[transform("a.*", "x.$1"), transform("*.b", "y.$1")])]},
    ),
    (
        {"sources": [source(consumer=FEEDER, opt_start_time=START)]},
        "sources[0].opt_start_time",
        "consumer",
        {"sources": [source(consumer=FEEDER)]},
    ),
    ({"subjects": ["a..b"]}, "subjects", "empty tokens", {"subjects": ["a.b"]}),
    ({"subjects": ["a b"]}, "subjects", "space", {"subjects": ["a"]}),
    ({"subjects": ["a", "a"]}, "subjects", "twice", {"subjects": ["a", "b"]}),
    ({"subjects": ["a.*", "a.b"]}, "subjects", "overlap", {"subjects": ["a.*", "a.b.c"]}),
    ({"subjects": ["a.*", "*.b"]}, "subjects", "overlap", {"subjects": ["a.*", "b.*"]}),
    ({"subjects": [">"]}, "subjects", "no_ack", {"subjects": [">"], "no_ack": True}),
    ({"subjects": [">"], "no_ack": True, "num_replicas": 3}, "subjects", "num_replicas", {}),
    ({"subjects": ["$JS.API.>"]}, "subjects", "JetStream API", {"subjects": ["$JS.EVENT.>"]}),
    ({"subjects": ["*.a"]}, "subjects", "JetStream API", {"subjects": ["*.a"], "no_ack": True}),
    ({"subjects": ["$SYS.>"]}, "subjects", "system API", {"subjects": ["$SYS.ACCOUNT.>"]}),
    (
        {"subject_transform": transform("a..b", "c")},
        "subject_transform.src",
        "empty tokens",
        {"subject_transform": transform("s.*", "t.$1")},
    ),
    (
        {"republish": RePublish(src="s.>", dest="s.again.>")},
        "republish.dest",
        "cycle",
        {"republish": RePublish(src="s.>", dest="again.>")},
    ),
    (
        {"republish": RePublish(dest="s.again")},
        "republish.dest",
        "cycle",
        {"republish": RePublish(dest="again.>", headers_only=True)},
    ),
    (
        {"placement": Placement(preferred="n1")},
        "placement.preferred",
        "step-down",
        {"placement": Placement()},
    ),
    ({"sealed": True}, "sealed", "creation", {"sealed": False}),
    ({"mirror_direct": True}, "mirror_direct", "mirror", {**MIRROR, "mirror_direct": True}),
]

# What looks wrong and yet the server takes; validation must let it pass.
STREAM_ACCEPTED: list[dict[str, Any]] = [
    {},
    {"subjects": None},
    {"subjects": []},
    {"max_msgs": -7, "max_bytes": -7, "max_consumers": -7, "max_msgs_per_subject": -7, "max_msg_size": -7},
    {"max_msgs": 0},
    {"subject_delete_marker_ttl": 60},
    {"subject_delete_marker_ttl": 60, "allow_rollup_hdrs": True},
    {"allow_msg_schedules": True},
    {"allow_msg_schedules": True, "allow_msg_ttl": True, "allow_rollup_hdrs": True},
    {"max_age": 1},
    {"compression": "s2"},
    {"compression": "s2", "storage": "memory"},
    {"retention": "workqueue", "discard": "new"},
    {"deny_delete": True, "deny_purge": True},
    {"allow_direct": True, "allow_atomic": True, "allow_batched": True},
    {"persist_mode": "default", "allow_atomic": True},
    {"republish": RePublish(src="s.*", dest="again.{{wildcard(1)}}")},
    {"metadata": {}},
    {"duplicate_window": 300},
]

STREAM_PEDANTIC_CASES: list[Case] = [
    ({"max_msgs": -2}, "max_msgs", "-1", {"max_msgs": -1}),
    ({"max_bytes": -2}, "max_bytes", "-1", {"max_bytes": -1}),
    ({"max_consumers": -2}, "max_consumers", "-1", {"max_consumers": -1}),
    ({"max_msgs_per_subject": -2}, "max_msgs_per_subject", "-1", {"max_msgs_per_subject": -1}),
    ({"max_msg_size": -2}, "max_msg_size", "-1", {"max_msg_size": -1}),
    (
        {"subject_delete_marker_ttl": 60},
        "subject_delete_marker_ttl",
        "allow_msg_ttl",
        {"subject_delete_marker_ttl": 60, "allow_msg_ttl": True, "allow_rollup_hdrs": True},
    ),
    (
        {"subject_delete_marker_ttl": 60, "allow_msg_ttl": True},
        "subject_delete_marker_ttl",
        "allow_rollup_hdrs",
        {"allow_msg_ttl": True},
    ),
    (
        {"allow_msg_schedules": True},
        "allow_msg_schedules",
        "allow_rollup_hdrs",
        {"allow_msg_schedules": True, "allow_rollup_hdrs": True},
    ),
]


def stream(fields: dict[str, Any]) -> StreamConfig:
    return StreamConfig(**{"name": "VALID", "subjects": ["s.>"], **fields})


def _ids(cases: list[Case]) -> list[str]:
    return [f"{field}-{rule}-{index}" for index, (_, field, rule, _) in enumerate(cases)]


@pytest.mark.parametrize("case", STREAM_CASES, ids=_ids(STREAM_CASES))
def test_stream_rule(case: Case) -> None:
    bad, field, rule, good = case
    with pytest.raises(InvalidArgument) as caught:
        validate_stream_config(stream(bad))
    assert caught.value.field == field
    assert rule in caught.value.rule
    assert validate_stream_config(stream(good)) is None


@pytest.mark.parametrize("fields", STREAM_ACCEPTED, ids=repr)
def test_stream_config_that_the_server_accepts_passes(fields: dict[str, Any]) -> None:
    assert validate_stream_config(stream(fields)) is None


@pytest.mark.parametrize("case", STREAM_PEDANTIC_CASES, ids=_ids(STREAM_PEDANTIC_CASES))
def test_stream_rule_of_pedantic_mode(case: Case) -> None:
    bad, field, rule, good = case
    with pytest.raises(InvalidArgument) as caught:
        validate_stream_config(stream(bad), pedantic=True)
    assert caught.value.field == field
    assert rule in caught.value.rule
    assert validate_stream_config(stream(bad)) is None
    assert validate_stream_config(stream(good), pedantic=True) is None


def test_rules_of_creation_do_not_hold_for_an_update() -> None:
    assert validate_stream_config(stream({"sealed": True, "mirror_direct": True}), update=True) is None
