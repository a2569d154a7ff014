"""Each field of the configs is set on the real server, read back, and changed where it can be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import (
    AckPolicy,
    Compression,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    Placement,
    PriorityPolicy,
    ReplayPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamSource,
    SubjectTransform,
)
from jetspark.errors import ApiError
from jetspark.jetstream.models.model import Model
from jetspark.models import ConsumerLimits, External, PersistMode, RePublish, Timestamp
from support.helpers import unique

if TYPE_CHECKING:
    from jetspark.server import Cluster

TIME = Timestamp.parse("2026-01-02T03:04:05.123456789Z")
assert TIME is not None
FUTURE = datetime.now(UTC).replace(microsecond=654321) + timedelta(days=1)

# Field, value, another value for an update (None: no update is tried), what it needs beside it.
# "{}" in a text stands for the stream's name.
STREAM = [
    ("description", "a text with ü", "another", {}),
    ("subjects", ["{}.x", "{}.y.*"], ["{}.z"], {}),
    ("retention", RetentionPolicy.LIMITS, RetentionPolicy.INTEREST, {}),
    ("retention", RetentionPolicy.INTEREST, RetentionPolicy.LIMITS, {}),
    ("retention", RetentionPolicy.WORK_QUEUE, None, {}),
    ("max_consumers", 7, 8, {}),
    ("max_msgs", 8, 9, {}),
    ("max_bytes", 9000, 10_000, {}),
    ("max_age", 12.5, timedelta(minutes=3), {"duplicate_window": 5}),
    ("max_msgs_per_subject", 3, 4, {}),
    ("max_msg_size", 1000, 2000, {}),
    ("discard", DiscardPolicy.NEW, DiscardPolicy.OLD, {}),
    ("storage", StorageType.FILE, None, {}),
    ("storage", StorageType.MEMORY, None, {}),
    ("num_replicas", 1, None, {}),
    ("no_ack", True, False, {}),
    ("duplicate_window", 5.5, 0.25, {}),
    ("placement", Placement(cluster="here", tags=["a", "b"]), None, {}),
    ("mirror", StreamSource(name="O", opt_start_seq=3, filter_subject="a.>"), None, {}),
    ("mirror", StreamSource(name="O", opt_start_time=TIME), None, {}),
    (
        "mirror",
        StreamSource(
            name="O",
            subject_transforms=[SubjectTransform(src="a.*", dest="b.$1")],
            external=External(api="$JS.far.API", deliver="deliver.here"),
        ),
        None,
        {},
    ),
    (
        "sources",
        [
            StreamSource(name="O", opt_start_time=TIME, filter_subject="a.>"),
            StreamSource(name="P", opt_start_seq=7, external=External(api="$JS.far.API", deliver="far.to")),
            StreamSource(
                name="Q", subject_transforms=[SubjectTransform(src="a.*", dest="b.{{wildcard(1)}}")]
            ),
        ],
        [StreamSource(name="R")],
        {},
    ),
    ("compression", Compression.S2, Compression.NONE, {"storage": StorageType.FILE}),
    ("first_seq", 100, None, {}),
    (
        "subject_transform",
        SubjectTransform(src="{}.*", dest="stored.{{{{wildcard(1)}}}}"),
        SubjectTransform(src="{}.>", dest="other.>"),
        {},
    ),
    (
        "republish",
        RePublish(src="{}.>", dest="again.>", headers_only=True),
        RePublish(src=">", dest="more.>"),
        {},
    ),
    ("allow_direct", True, False, {}),
    ("mirror_direct", True, None, {"mirror": StreamSource(name="O")}),
    ("discard_new_per_subject", True, False, {"discard": DiscardPolicy.NEW, "max_msgs_per_subject": 2}),
    ("deny_delete", True, None, {}),
    ("deny_purge", True, None, {}),
    ("allow_rollup_hdrs", True, False, {}),
    (
        "consumer_limits",
        ConsumerLimits(inactive_threshold=30, max_ack_pending=50),
        ConsumerLimits(inactive_threshold=40, max_ack_pending=60),
        {},
    ),
    ("allow_msg_ttl", True, None, {}),
    ("subject_delete_marker_ttl", 60, 61.0, {}),
    ("allow_msg_counter", True, None, {}),
    ("allow_atomic", True, False, {}),
    ("allow_msg_schedules", True, None, {}),
    ("persist_mode", PersistMode.ASYNC, None, {"storage": StorageType.FILE}),
    ("allow_batched", True, False, {}),
    ("metadata", {"a": "1", "b": "2"}, {"a": "3"}, {}),
]
# The name is in every case; sealed is below; templates ended with 2.10.
STREAM_ELSEWHERE = {"name", "sealed", "template_owner", "extra"}

PUSH = {"deliver_subject": "to.me"}
GROUPS = {"priority_policy": PriorityPolicy.PINNED_CLIENT, "priority_groups": ["g"]}
CONSUMER = [
    ("durable_name", "{}-durable", None, {}),
    ("name", "{}-named", None, {"inactive_threshold": 60}),
    ("description", "a text with ü", "another", {}),
    ("deliver_policy", DeliverPolicy.ALL, None, {}),
    ("deliver_policy", DeliverPolicy.LAST, None, {}),
    ("deliver_policy", DeliverPolicy.NEW, None, {}),
    ("deliver_policy", DeliverPolicy.LAST_PER_SUBJECT, None, {"filter_subject": "{}.>"}),
    ("opt_start_seq", 12, None, {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE}),
    ("opt_start_time", TIME, None, {"deliver_policy": DeliverPolicy.BY_START_TIME}),
    ("ack_policy", AckPolicy.EXPLICIT, None, {}),
    ("ack_policy", AckPolicy.ALL, None, {}),
    ("ack_policy", AckPolicy.NONE, None, {}),
    ("ack_policy", AckPolicy.FLOW_CONTROL, None, PUSH),
    ("ack_wait", 1.5, timedelta(minutes=2), {}),
    ("max_deliver", 5, 6, {}),
    ("backoff", [1, 2.5, timedelta(minutes=1)], [3, 4], {"max_deliver": 9}),
    ("filter_subject", "{}.a.*", "{}.b", {}),
    ("filter_subjects", ["{}.a", "{}.b.>"], ["{}.c"], {}),
    ("replay_policy", ReplayPolicy.ORIGINAL, None, {}),
    ("rate_limit_bps", 80_000, 160_000, PUSH),
    ("sample_freq", "30%", "40", {}),
    ("max_waiting", 17, None, {}),
    ("max_ack_pending", 18, -1, {}),
    ("flow_control", True, None, {**PUSH, "idle_heartbeat": 5}),
    ("headers_only", True, False, {}),
    ("max_batch", 19, 20, {}),
    ("max_expires", 2.5, 3, {}),
    ("max_bytes", 2000, 3000, {}),
    ("deliver_subject", "to.me", "to.you", {}),
    ("deliver_group", "group", "other", PUSH),
    ("idle_heartbeat", 1.25, None, PUSH),
    ("inactive_threshold", 90.5, 91, {}),
    ("num_replicas", 1, None, {}),
    ("mem_storage", True, None, {}),
    ("metadata", {"a": "1", "b": "2"}, {"a": "3"}, {}),
    ("pause_until", FUTURE, None, {}),
    ("priority_groups", ["g-1_/="], ["h"], {"priority_policy": PriorityPolicy.OVERFLOW}),
    ("priority_policy", PriorityPolicy.OVERFLOW, PriorityPolicy.PRIORITIZED, {"priority_groups": ["g"]}),
    ("priority_policy", PriorityPolicy.PINNED_CLIENT, None, {"priority_groups": ["g"]}),
    ("priority_policy", PriorityPolicy.PRIORITIZED, None, {"priority_groups": ["g"]}),
    ("priority_timeout", 33, 44, GROUPS),
]
# For servers among themselves.
CONSUMER_ELSEWHERE = {"direct", "sourcing", "extra"}


def test_no_field_is_forgotten() -> None:
    assert {case[0] for case in STREAM} | STREAM_ELSEWHERE == set(StreamConfig.__struct_fields__)
    assert {case[0] for case in CONSUMER} | CONSUMER_ELSEWHERE == set(ConsumerConfig.__struct_fields__)


def named(value: Any, name: str) -> Any:
    """The value with the stream's name in the place of {}."""
    if isinstance(value, Model):
        fields = {field: named(getattr(value, field), name) for field in value.__struct_fields__}
        return type(value)(**fields)
    if isinstance(value, list):
        return [named(item, name) for item in value]
    if type(value) is str and "{}" in value:
        return value.format(name)
    return value


def expect(model: Model, field: str, wanted: Any, name: str) -> None:
    """The field of the answer is what was asked for, to the nanosecond."""
    asked = getattr(type(model)(**{"name": name, field: wanted}), field)
    got = getattr(model, field)
    if field == "metadata":
        # The server adds its own keys.
        got = {key: value for key, value in got.items() if not key.startswith("_nats.")}
    if asked in (False, None):
        assert not got
    else:
        assert got == asked
        assert type(got) is type(asked)
    if hasattr(asked, "ns"):
        assert got.ns == asked.ns


@pytest.mark.parametrize(("field", "value", "other", "needs"), STREAM, ids=[case[0] for case in STREAM])
async def test_a_stream_field(
    js: jetspark.JetStream, field: str, value: Any, other: Any, needs: dict[str, Any]
) -> None:
    name = unique()
    options: dict[str, Any] = {"storage": StorageType.MEMORY, **needs, field: value}
    if "mirror" not in options:
        options.setdefault("subjects", [f"{name}.>"])
    config = StreamConfig(name=name, **named_all(options, name))
    stream = await js.create_stream(config)
    try:
        expect(stream.config, field, named(value, name), name)
        info = await js.get_stream(name)
        expect(info.config, field, named(value, name), name)
        assert info.config.extra == {}, "the server knows a field that we do not"
        # What was read can be written back: nothing changes.
        again = await js.update_stream(info.config)
        assert unmarked(again.config) == unmarked(info.config)
        if other is not None:
            changed = named(other, name)
            updated = await js.update_stream(info.config.replace(**{field: changed}))
            expect(updated.config, field, changed, name)
            expect((await js.get_stream(name)).config, field, changed, name)
    finally:
        await js.delete_stream(name)


def named_all(options: dict[str, Any], name: str) -> dict[str, Any]:
    return {field: named(value, name) for field, value in options.items()}


def unmarked(config: Any) -> Any:
    """Without the server's own notes on versions."""
    kept = {key: value for key, value in (config.metadata or {}).items() if not key.startswith("_nats.")}
    return config.replace(metadata=kept)


async def test_a_stream_is_sealed_by_an_update(js: jetspark.JetStream) -> None:
    name = unique()
    stream = await js.create_stream(StreamConfig(name=name, subjects=[name], storage=StorageType.MEMORY))
    sealed = await js.update_stream(stream.config.replace(sealed=True))
    assert sealed.config.sealed
    with pytest.raises(ApiError):
        await js.update_stream(sealed.config.replace(sealed=False))
    await sealed.delete()


@pytest.mark.parametrize(
    ("field", "value", "other", "needs"),
    [
        ("storage", StorageType.MEMORY, StorageType.FILE, {}),
        ("retention", RetentionPolicy.LIMITS, RetentionPolicy.WORK_QUEUE, {}),
        ("deny_delete", True, False, {}),
        ("deny_purge", True, False, {}),
        ("allow_msg_ttl", True, False, {}),
        ("allow_msg_schedules", True, False, {}),
        ("allow_msg_counter", True, False, {}),
        ("allow_msg_counter", False, True, {}),
        ("persist_mode", PersistMode.ASYNC, PersistMode.DEFAULT, {"storage": StorageType.FILE}),
        ("mirror", StreamSource(name="O"), StreamSource(name="P"), {}),
    ],
)
async def test_a_stream_field_that_is_not_editable(
    js: jetspark.JetStream, field: str, value: Any, other: Any, needs: dict[str, Any]
) -> None:
    name = unique()
    options: dict[str, Any] = {"storage": StorageType.MEMORY, **needs, field: value}
    if field != "mirror":
        options["subjects"] = [f"{name}.>"]
    stream = await js.create_stream(StreamConfig(name=name, **options))
    try:
        with pytest.raises(ApiError):
            await js.update_stream(stream.config.replace(**{field: other}))
    finally:
        await stream.delete()


@pytest.mark.parametrize(("field", "value", "other", "needs"), CONSUMER, ids=[case[0] for case in CONSUMER])
async def test_a_consumer_field(
    js: jetspark.JetStream, field: str, value: Any, other: Any, needs: dict[str, Any]
) -> None:
    name = unique()
    stream = await js.create_stream(
        StreamConfig(name=name, subjects=[f"{name}.>"], storage=StorageType.MEMORY)
    )
    options: dict[str, Any] = {**needs, field: value}
    if field != "name":
        options.setdefault("durable_name", "c")
    try:
        consumer = await stream.create_consumer(ConsumerConfig(**named_all(options, name)))
        label = consumer.name
        expect(consumer.config, field, named(value, name), label)
        read = await stream.get_consumer(label)
        expect(read.config, field, named(value, name), label)
        assert read.config.extra == {}, "the server knows a field that we do not"
        again = await stream.update_consumer(read.config)
        assert unmarked(again.config) == unmarked(read.config)
        if other is not None:
            changed = named(other, name)
            updated = await stream.update_consumer(read.config.replace(**{field: changed}))
            expect(updated.config, field, changed, label)
            expect((await stream.get_consumer(label)).config, field, changed, label)
    finally:
        await stream.delete()


@pytest.mark.parametrize(
    ("field", "value", "other", "needs"),
    [
        ("deliver_policy", DeliverPolicy.ALL, DeliverPolicy.NEW, {}),
        ("ack_policy", AckPolicy.EXPLICIT, AckPolicy.ALL, {}),
        ("replay_policy", ReplayPolicy.INSTANT, ReplayPolicy.ORIGINAL, {}),
        ("max_waiting", 17, 18, {}),
        ("opt_start_seq", 2, 3, {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE}),
        ("idle_heartbeat", 1, 2, PUSH),
        ("deliver_subject", None, "to.me", {}),
        ("deliver_subject", "to.me", None, {}),
    ],
)
async def test_a_consumer_field_that_is_not_editable(
    js: jetspark.JetStream, field: str, value: Any, other: Any, needs: dict[str, Any]
) -> None:
    name = unique()
    stream = await js.create_stream(
        StreamConfig(name=name, subjects=[f"{name}.>"], storage=StorageType.MEMORY)
    )
    consumer = await stream.create_consumer(ConsumerConfig(durable_name="c", **{**needs, field: value}))
    changed = consumer.config.replace(**{field: other})
    if field == "deliver_subject":
        changed = changed.replace(max_waiting=None)
    with pytest.raises(ApiError):
        await stream.update_consumer(changed)
    await stream.delete()


class OldConfig(Model, kw_only=True, frozen=True):
    """What a client of years ago knows of a stream: all else is ``extra`` to it."""

    name: str
    description: str | None = None


async def test_an_update_keeps_fields_that_the_client_does_not_know(js: jetspark.JetStream) -> None:
    name = unique()
    config = StreamConfig(
        name=name,
        subjects=[f"{name}.>"],
        storage=StorageType.MEMORY,
        max_age=3600.000000001,
        allow_direct=True,
        allow_msg_ttl=True,
        republish=RePublish(src=">", dest="again.>"),
        consumer_limits=ConsumerLimits(max_ack_pending=50),
        metadata={"a": "1"},
    )
    stream = await js.create_stream(config)
    wire = (await js._api.request(f"STREAM.INFO.{name}"))["config"]
    old = OldConfig.from_wire(wire)
    assert "allow_msg_ttl" in old.extra
    await js._api.request(f"STREAM.UPDATE.{name}", old.replace(description="changed").to_wire())
    now = (await stream.info()).config
    assert now.description == "changed"
    assert unmarked(now) == unmarked(stream.cached_info.config)
    assert unmarked(now.replace(description=None)) == unmarked(
        StreamConfig.from_wire(wire).replace(description=None)
    )
    await stream.delete()


async def test_extra_reaches_the_server_before_the_library_has_a_name_for_it(js: jetspark.JetStream) -> None:
    name = unique()
    base = StreamConfig(name=name, subjects=[name], storage=StorageType.MEMORY)
    stream = await js.create_stream(base.replace(extra={"deny_delete": True}))
    assert stream.config.deny_delete
    consumer = await stream.create_consumer(ConsumerConfig(durable_name="c", extra={"max_batch": 5}))
    assert consumer.config.max_batch == 5
    with pytest.raises(ApiError, match="no_such_field"):
        await js.update_stream(stream.config.replace(extra={"no_such_field": 1}))
    await stream.delete()


async def test_replicas_and_placement_on_a_cluster(cluster: Cluster) -> None:
    async with jetspark.connect(cluster.urls) as nc:
        js = nc.jetstream(timeout=20)
        name = unique()
        config = StreamConfig(
            name=name, subjects=[name], num_replicas=3, placement=Placement(cluster=cluster.name)
        )
        stream = await js.create_stream(config)
        assert (stream.config.num_replicas, stream.config.placement) == (3, Placement(cluster=cluster.name))
        info = await stream.info()
        assert info.cluster is not None
        assert info.cluster.name == cluster.name
        assert len(info.cluster.replicas or []) == 2
        ack = await js.publish(name, msg_id="1", retries=20)
        assert (ack.stream, ack.seq) == (name, 1)
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="c", num_replicas=1))
        assert consumer.config.num_replicas == 1
        assert consumer.cached_info.cluster is not None
        await stream.delete()
