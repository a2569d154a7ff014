"""Configs: what a caller may pass, what goes on the wire, and that nothing is lost on the way."""

from __future__ import annotations

import ast
import inspect
import pickle
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from jetspark import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    PriorityPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamSource,
    SubjectTransform,
)
from jetspark.errors import InvalidArgument, ProtocolError
from jetspark.jetstream.models.consumer_config import consumer_create_request
from jetspark.jetstream.models.model import Model
from jetspark.jetstream.models.stream_config import stream_config_request
from jetspark.models import ConsumerLimits, Duration, Timestamp


def test_only_set_fields_go_on_the_wire() -> None:
    assert ConsumerConfig(durable_name="w").to_wire() == {
        "durable_name": "w",
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "replay_policy": "instant",
    }
    assert StreamConfig(name="S", subjects=["a"]).to_wire() == {
        "name": "S",
        "subjects": ["a"],
        "retention": "limits",
        "discard": "old",
        "storage": "file",
    }


def test_zero_and_false_are_set() -> None:
    wire = StreamConfig(name="S", max_age=0, allow_direct=False, max_msgs=0, description="").to_wire()
    assert wire["max_age"] == 0
    assert wire["allow_direct"] is False
    assert wire["max_msgs"] == 0
    assert wire["description"] == ""


def test_python_values_become_wire_values() -> None:
    start = datetime(2024, 5, 6, 7, 8, 9, 120_000, tzinfo=UTC)
    config = ConsumerConfig(
        ack_wait=1.5,
        backoff=(1, 2.5, timedelta(minutes=1)),
        inactive_threshold=timedelta(hours=1),
        deliver_policy="by_start_time",
        opt_start_time=start,
        ack_policy=AckPolicy.ALL,
        priority_policy="overflow",
        filter_subjects=("a", "b"),
    )
    assert config.ack_wait == 1.5
    assert isinstance(config.ack_wait, Duration)
    assert config.backoff == [1, 2.5, 60]
    assert config.deliver_policy is DeliverPolicy.BY_START_TIME
    assert config.opt_start_time == start
    assert isinstance(config.opt_start_time, Timestamp)
    assert config.priority_policy is PriorityPolicy.OVERFLOW
    assert config.filter_subjects == ["a", "b"]
    wire = config.to_wire()
    assert wire["ack_wait"] == 1_500_000_000
    assert wire["backoff"] == [1_000_000_000, 2_500_000_000, 60_000_000_000]
    assert wire["inactive_threshold"] == 3_600_000_000_000
    assert wire["opt_start_time"] == "2024-05-06T07:08:09.12Z"
    assert wire["ack_policy"] == "all"
    assert msgspec.json.decode(msgspec.json.encode(wire)) == wire


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"filter_subjects": "a.b"}, "filter_subjects"),
        ({"filter_subjects": ["a", 5]}, "filter_subjects[1]"),
        ({"ack_wait": "30s"}, "ack_wait"),
        ({"backoff": 5}, "backoff"),
        ({"backoff": [1, "2"]}, "backoff[1]"),
        ({"opt_start_time": "2024-01-01T00:00:00Z"}, "opt_start_time"),
        ({"opt_start_time": datetime(2024, 1, 1)}, "opt_start_time"),
        ({"max_deliver": "5"}, "max_deliver"),
        ({"max_deliver": True}, "max_deliver"),
        ({"headers_only": 1}, "headers_only"),
        ({"ack_policy": 5}, "ack_policy"),
        ({"ack_policy": DeliverPolicy.ALL}, "ack_policy"),
        ({"metadata": [("a", "b")]}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata['a']"),
        ({"metadata": {1: "a"}}, "metadata"),
        ({"durable_name": b"x"}, "durable_name"),
        ({"extra": ["x"]}, "extra"),
    ],
)
def test_values_of_the_wrong_type_are_refused_at_once(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        ConsumerConfig(**fields)
    assert caught.value.field == field


def test_nested_configs_must_be_models() -> None:
    with pytest.raises(InvalidArgument) as caught:
        StreamConfig(name="S", mirror={"name": "O"})  # type: ignore[arg-type]
    assert caught.value.field == "mirror"


def test_configs_are_immutable_and_replaced() -> None:
    config = StreamConfig(name="S", max_age=5, extra={"newer": 1})
    with pytest.raises(AttributeError):
        config.max_age = 7  # type: ignore[misc]
    changed = config.replace(max_age=timedelta(minutes=1), storage="memory")
    assert changed.max_age == 60
    assert changed.storage is StorageType.MEMORY
    assert changed.extra == {"newer": 1}
    assert config.max_age == 5
    assert changed.replace(max_age=None).max_age is None
    with pytest.raises(InvalidArgument, match="no such field"):
        config.replace(max_ages=5)


def test_configs_compare_by_value_and_pickle() -> None:
    config = StreamConfig(
        name="S",
        max_age=Duration.from_ns(1),
        sources=[StreamSource(name="O", opt_start_time=Timestamp.from_ns(1))],
        retention=RetentionPolicy("newer"),
        extra={"x": [1]},
    )
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert again.to_wire() == config.to_wire()
    assert config != config.replace(extra={})


def test_repr_shows_only_what_is_set() -> None:
    assert repr(StreamConfig(name="S", max_age=5)) == "StreamConfig(name='S', max_age=5.0)"


def test_unknown_fields_come_back_at_every_level() -> None:
    newer = {"switch": True, "levels": [1, {"deep": None}]}
    wire = {
        "name": "S",
        "retention": "limits",
        "discard": "old",
        "storage": "file",
        "max_age": 1,
        "newer": newer,
        "mirror": {
            "name": "O",
            "newer": newer,
            "opt_start_time": "2024-05-06T07:08:09.000000001Z",
            "external": {"api": "x", "deliver": "y", "newer": newer},
            "subject_transforms": [{"src": "a", "dest": "b", "newer": newer}],
            "consumer": {"name": "c", "deliver_subject": "d", "newer": newer},
        },
        "sources": [{"name": "O", "newer": newer}],
        "placement": {"cluster": "c", "newer": newer},
        "republish": {"dest": "d", "newer": newer},
        "subject_transform": {"src": "a", "dest": "b", "newer": newer},
        "consumer_limits": {"newer": newer},
        "null_of_the_future": None,
    }
    config = StreamConfig.from_wire(wire)
    assert config.to_wire() == wire
    assert config.extra == {"newer": newer, "null_of_the_future": None}
    assert config.replace(max_age=1).to_wire() == {**wire, "max_age": 1_000_000_000}


def test_extra_never_overrides_a_field_that_is_set() -> None:
    assert StreamConfig(name="S", extra={"name": "T", "max_msgs": 4}).to_wire()["name"] == "S"
    assert StreamConfig(name="S", extra={"name": "T", "max_msgs": 4}).to_wire()["max_msgs"] == 4


def test_policies_of_newer_servers_survive() -> None:
    wire = {"deliver_policy": "by_moon", "ack_policy": "by_pigeon", "replay_policy": "backwards"}
    config = ConsumerConfig.from_wire(wire)
    assert config.ack_policy == "by_pigeon"
    assert not config.ack_policy.is_known
    assert config.to_wire() == wire


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"{", "StreamConfig: not valid JSON"),
        (b"[]", "StreamConfig: expected a JSON object"),
        (b"{}", "name"),
        (b'{"name": 5}', "StreamConfig.name: expected str, got 5"),
        (b'{"name": "S", "max_age": "5s"}', "StreamConfig.max_age: expected int"),
        (b'{"name": "S", "max_msgs": true}', "StreamConfig.max_msgs: expected int"),
        (b'{"name": "S", "subjects": "a"}', "StreamConfig.subjects: expected list"),
        (b'{"name": "S", "metadata": ["a"]}', "StreamConfig.metadata: expected dict"),
        (b'{"name": "S", "mirror": "O"}', "StreamConfig.mirror: expected dict"),
        (b'{"name": "S", "mirror": {"name": "O", "opt_start_time": "x"}}', "RFC 3339"),
        (b'{"name": "S", "storage": 1}', "StreamConfig.storage: expected str"),
    ],
)
def test_malformed_responses_are_named(data: bytes, text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        StreamConfig.from_wire(data)
    assert text in str(caught.value)


def test_null_is_not_set() -> None:
    config = StreamConfig.from_wire(b'{"name": "S", "subjects": null, "mirror": null, "retention": null}')
    assert config.subjects is None
    assert config.retention is RetentionPolicy.LIMITS


def test_push_and_names() -> None:
    assert ConsumerConfig(deliver_subject="d").is_push
    assert not ConsumerConfig().is_push
    assert ConsumerConfig(durable_name="d").effective_name == "d"
    assert ConsumerConfig(name="n").effective_name == "n"
    assert ConsumerConfig().effective_name is None


def test_request_bodies() -> None:
    stream = StreamConfig(name="S")
    assert stream_config_request(stream) == stream.to_wire()
    assert stream_config_request(stream, pedantic=True) == {**stream.to_wire(), "pedantic": True}
    config = ConsumerConfig(name="c")
    assert consumer_create_request("S", config) == {
        "stream_name": "S",
        "config": config.to_wire(),
        "action": "",
    }
    assert consumer_create_request("S", config, action="create", pedantic=True) == {
        "stream_name": "S",
        "config": config.to_wire(),
        "action": "create",
        "pedantic": True,
    }


def test_nested_durations() -> None:
    config = StreamConfig(name="S", consumer_limits=ConsumerLimits(inactive_threshold=timedelta(days=1)))
    assert config.to_wire()["consumer_limits"] == {"inactive_threshold": 86_400_000_000_000}


def _models(base: type[Model] = Model) -> list[type[Model]]:
    found = []
    for cls in base.__subclasses__():
        if cls.__module__.startswith("jetspark."):
            found += [cls, *_models(cls)]
    return found


@pytest.mark.parametrize("cls", [StreamConfig, ConsumerConfig], ids=lambda cls: cls.__name__)
def test_every_config_field_is_documented(cls: type[Model]) -> None:
    # Strings below fields are not kept at run time; read them from the source.
    (definition,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(definition, ast.ClassDef)
    body = definition.body
    documented = {
        field.target.id
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }
    assert documented == set(cls.__struct_fields__) - {"extra"}


def test_every_model_has_a_docstring() -> None:
    assert [cls.__name__ for cls in _models() if not cls.__doc__] == []
    assert SubjectTransform in _models()
