"""Responses recorded from nats-server 2.15.1 decode, and their configs go back without a difference."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from jetspark import (
    AckPolicy,
    Compression,
    ConsumerInfo,
    DeliverPolicy,
    PriorityPolicy,
    PubAck,
    ReplayPolicy,
    RetentionPolicy,
    StreamInfo,
)
from jetspark.errors import ApiError, ProtocolError, WrongLastSequence
from jetspark.jetstream.models.model import Model
from jetspark.jetstream.models.validation import validate_consumer_config, validate_stream_config
from jetspark.models import AccountInfo, ClusterInfo, ConsumerPause, PersistMode

RECORDED = Path(__file__).parent / "server_responses"
STREAMS = sorted(path.stem for path in RECORDED.glob("stream_*.json"))
CONSUMERS = sorted(path.stem for path in RECORDED.glob("consumer_[ci][rn]*.json"))
ENVELOPE = {"type", "total", "offset", "limit", "did_create"}


def load(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_bytes())
    return data


def with_news(data: Any, *, free: bool = False) -> Any:
    """The same object as a newer server might send it: one more field on every level that has fixed
    fields."""
    if isinstance(data, list):
        return [with_news(item) for item in data]
    if not isinstance(data, dict):
        return data
    grown = {key: with_news(value, free=key in ("metadata", "subjects")) for key, value in data.items()}
    return grown if free else {**grown, "of_the_future": {"a": [1]}}


def unknown_fields(model: Model) -> dict[str, Any]:
    """Fields on any level that the models have no name for."""
    found = dict(model.extra)
    for name in model.__struct_fields__:
        value = getattr(model, name)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Model):
                found.update(unknown_fields(item))
    return found


def test_recordings_are_there() -> None:
    assert len(STREAMS) >= 8
    assert len(CONSUMERS) >= 5


@pytest.mark.parametrize("name", STREAMS)
def test_stream_config_survives_an_update(name: str) -> None:
    raw = load(name)
    info = StreamInfo.from_wire(raw)
    assert info.config.to_wire() == raw["config"]
    assert info.config.replace(description="new").to_wire() == {**raw["config"], "description": "new"}
    assert set(unknown_fields(info)) <= ENVELOPE
    assert pickle.loads(pickle.dumps(info)) == info


@pytest.mark.parametrize("name", CONSUMERS)
def test_consumer_config_survives_an_update(name: str) -> None:
    raw = load(name)
    info = ConsumerInfo.from_wire(raw)
    assert info.config.to_wire() == raw["config"]
    assert set(unknown_fields(info)) <= ENVELOPE
    assert pickle.loads(pickle.dumps(info)) == info


@pytest.mark.parametrize("name", STREAMS)
def test_what_the_server_holds_passes_validation(name: str) -> None:
    assert validate_stream_config(StreamInfo.from_wire(load(name)).config, update=True) is None


@pytest.mark.parametrize("name", CONSUMERS)
def test_consumers_the_server_holds_pass_validation(name: str) -> None:
    assert validate_consumer_config(ConsumerInfo.from_wire(load(name)).config) is None


@pytest.mark.parametrize("name", STREAMS)
def test_fields_of_a_newer_server_survive_in_streams(name: str) -> None:
    raw = with_news(load(name))
    assert StreamInfo.from_wire(raw).config.to_wire() == raw["config"]


@pytest.mark.parametrize("name", CONSUMERS)
def test_fields_of_a_newer_server_survive_in_consumers(name: str) -> None:
    raw = with_news(load(name))
    assert ConsumerInfo.from_wire(raw).config.to_wire() == raw["config"]


@pytest.mark.parametrize("name", STREAMS)
def test_the_whole_stream_info_goes_back_to_what_came(name: str) -> None:
    raw = load(name)
    wire = StreamInfo.from_wire(raw).to_wire()
    for key in ("config", "created", "ts", "mirror"):
        assert wire.get(key) == raw.get(key)
    state = {key: value for key, value in raw["state"].items() if value != "0001-01-01T00:00:00Z"}
    assert {key: value for key, value in wire["state"].items() if key in state} == state


def test_a_stream_with_everything() -> None:
    info = StreamInfo.from_wire((RECORDED / "stream_info_full.json").read_bytes())
    config = info.config
    assert config.max_age is not None
    assert config.max_age.ns == 3_600_000_000_001
    assert config.compression is Compression.S2
    assert config.consumer_limits is not None
    assert config.consumer_limits.inactive_threshold == 86_400
    assert config.sources is not None
    assert config.sources[0].opt_start_time is not None
    assert config.sources[0].opt_start_time.nanosecond == 789
    assert config.sources[2].external is not None
    assert config.sources[2].external.api == "$JS.hub.API"
    assert config.republish is not None
    assert config.republish.headers_only
    assert info.state.subjects == {"s.a": 3, "s.b": 1, "s.c": 1}
    assert info.state.first_seq == 100
    assert info.state.first_ts is not None
    assert info.created is not None
    assert info.created < info.state.first_ts
    assert info.sources is not None
    assert info.sources[0].never_active
    assert info.cluster is not None
    assert info.cluster.leader == "n1"


def test_an_empty_stream_has_no_times() -> None:
    state = StreamInfo.from_wire(load("stream_create_empty")).state
    assert state.messages == 0
    assert state.first_ts is None
    assert state.last_ts is None


def test_deleted_messages() -> None:
    state = StreamInfo.from_wire(load("stream_info_deleted")).state
    assert state.deleted == [3]
    assert state.num_deleted == 1


def test_policies_of_streams() -> None:
    assert StreamInfo.from_wire(load("stream_create_empty")).config.retention is RetentionPolicy.WORK_QUEUE
    config = StreamInfo.from_wire(load("stream_create_async_schedules")).config
    assert config.persist_mode is PersistMode.ASYNC
    assert config.allow_msg_schedules


def test_replicas() -> None:
    info = StreamInfo.from_wire(load("stream_info_cluster"))
    assert info.cluster is not None
    assert info.cluster.leader_since is not None
    assert sorted([peer.name for peer in info.cluster.replicas] + [info.cluster.leader or ""]) == [
        "n1",
        "n2",
        "n3",
    ]
    assert all(peer.current and 0 < peer.active < 60 for peer in info.cluster.replicas)
    consumer = ConsumerInfo.from_wire(load("consumer_info_cluster"))
    assert consumer.cluster is not None
    assert len(consumer.cluster.replicas) == 2


def test_a_move_in_progress() -> None:
    # Not recorded: a move between servers is over in a moment.
    desired = {
        "name": "C2",
        "replicas": [{"name": "n4", "current": False, "active": 5, "peer": "p", "pending": True}],
        "origin": {"replicas": 1, "placement": {"cluster": "C1"}, "retention": "limits"},
        "status": {"description": "waiting for catch-up", "type": "catchup", "err": "slow"},
    }
    info = ClusterInfo.from_wire({"name": "C1", "desired": desired})
    assert info.desired is not None
    assert info.desired.replicas[0].pending
    assert info.desired.origin is not None
    assert info.desired.origin.retention is RetentionPolicy.LIMITS
    assert info.desired.status is not None
    assert info.desired.status.type == "catchup"
    assert unknown_fields(info) == {}


def test_a_pull_consumer() -> None:
    config = ConsumerInfo.from_wire(load("consumer_create_pull")).config
    assert config.deliver_policy is DeliverPolicy.BY_START_TIME
    assert config.opt_start_time is not None
    assert config.opt_start_time.nanosecond == 1
    assert config.backoff == [1, 2.5]
    assert config.ack_wait == 1
    assert config.replay_policy is ReplayPolicy.ORIGINAL
    assert config.max_expires == 30
    assert not config.is_push


def test_a_push_consumer() -> None:
    config = ConsumerInfo.from_wire(load("consumer_create_push")).config
    assert config.is_push
    assert config.ack_policy is AckPolicy.NONE
    assert config.idle_heartbeat == 5
    assert config.filter_subjects == ["g.a", "g.b"]


def test_a_pinned_consumer() -> None:
    info = ConsumerInfo.from_wire(load("consumer_info_pinned"))
    assert info.config.priority_policy is PriorityPolicy.PINNED_CLIENT
    assert info.config.priority_timeout == 120
    assert info.priority_groups is not None
    assert info.priority_groups[0].group == "A"
    assert info.priority_groups[0].pinned_client_id
    assert info.priority_groups[0].pinned_ts is not None
    assert info.ack_floor.stream_seq == 1
    assert info.ack_floor.last_active is not None


def test_a_paused_consumer() -> None:
    info = ConsumerInfo.from_wire(load("consumer_info_paused"))
    assert info.paused
    assert info.pause_remaining is not None
    assert info.pause_remaining > 0
    assert str(info.config.pause_until) == "2199-01-02T03:04:05Z"
    pause = ConsumerPause.from_wire(load("consumer_pause"))
    assert pause.paused
    assert pause.pause_until == info.config.pause_until
    resumed = ConsumerPause.from_wire(load("consumer_resume"))
    assert not resumed.paused
    assert resumed.pause_until is None


def test_a_list_of_consumers() -> None:
    infos = [ConsumerInfo.from_wire(item) for item in load("consumer_list")["consumers"]]
    assert sorted(info.name for info in infos) == ["pin", "push"]


def test_an_account() -> None:
    info = AccountInfo.from_wire(load("account_info"))
    assert info.api.level == 5
    assert info.limits.max_streams == -1
    assert info.streams > 0
    assert info.tiers == {}
    assert set(unknown_fields(info)) <= ENVELOPE


def test_an_account_with_tiers() -> None:
    # Not recorded: tiers need an operator's JWTs.
    tier = {"memory": 1, "storage": 2, "streams": 3, "consumers": 4, "limits": {"max_storage": 5}}
    info = AccountInfo.from_wire({**load("account_info"), "tiers": {"R1": tier, "R3": tier}, "domain": "hub"})
    assert info.domain == "hub"
    assert info.tiers["R3"].limits.max_storage == 5
    assert info.tiers["R1"].streams == 3


@pytest.mark.parametrize("name", ["puback", "puback_batch", "puback_counter", "puback_duplicate"])
def test_publish_acks(name: str) -> None:
    ack = PubAck.from_response((RECORDED / f"{name}.json").read_bytes())
    assert ack.to_wire() == load(name)
    assert pickle.loads(pickle.dumps(ack)) == ack


def test_what_a_publish_ack_tells() -> None:
    def ack(name: str) -> PubAck:
        return PubAck.from_response((RECORDED / f"{name}.json").read_bytes())

    assert ack("puback").stream == "FULL"
    assert not ack("puback").duplicate
    assert ack("puback_duplicate").duplicate
    assert ack("puback_counter").val == "41"
    assert ack("puback_batch").batch == "b2"
    assert ack("puback_batch").count == 2


def test_a_refused_publish() -> None:
    with pytest.raises(WrongLastSequence) as caught:
        PubAck.from_response((RECORDED / "error_wrong_last_sequence.json").read_bytes())
    assert caught.value.last_sequence == 106
    assert isinstance(caught.value, ApiError)


def test_a_stream_may_be_called_error() -> None:
    assert PubAck.from_response(b'{"stream":"error","seq":1,"later":2}').stream == "error"


@pytest.mark.parametrize("data", [b"", b"{", b"{}", b"[]", b'"error"', b'{"stream": 5}', b"\xff\xfe"])
def test_what_is_no_publish_ack(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a publish ack"):
        PubAck.from_response(data)
