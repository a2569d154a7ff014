"""The 'Editable' column of the consumer reference: what an update changes, and what it refuses."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from jetspark import AckPolicy
from jetspark.advisories import AckMetric
from jetspark.errors import ApiError, ConsumerDoesNotExist, ConsumerExists, MaxRequestBatchExceeded
from support.consuming import durable, fill, make, make_filled, numbers
from support.deliveries import gone, pushed, take
from support.helpers import PROMPT, eventually, unique

if TYPE_CHECKING:
    import jetspark

EDITABLE: list[tuple[str, Any, Any]] = [
    ("filter_subject", "{stream}.a", "{stream}.b"),
    ("filter_subjects", ["{stream}.a", "{stream}.b"], ["{stream}.c"]),
    ("ack_wait", 10, 20),
    ("description", "old", "new"),
    ("inactive_threshold", 100, 200),
    ("max_ack_pending", 10, 20),
    ("max_deliver", 3, 5),
    ("backoff", [1], [2, 3]),
    ("num_replicas", 0, 1),
    ("sample_freq", "10", "20%"),
    ("metadata", {"a": "1"}, {"b": "2"}),
    ("max_expires", 5, 6),
    ("max_batch", 5, 6),
    ("max_bytes", 5000, 6000),
]
EDITABLE_PUSH: list[tuple[str, Any, Any]] = [
    ("deliver_group", "old", "new"),
    ("rate_limit_bps", 1000, 2000),
    ("headers_only", False, True),
    ("deliver_subject", "{stream}-old", "{stream}-new"),
]
FIXED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("ack_policy", {"ack_policy": "explicit"}, {"ack_policy": "all"}, "ack policy"),
    ("deliver_policy", {}, {"deliver_policy": "new"}, "deliver policy"),
    (
        "opt_start_seq",
        {"deliver_policy": "by_start_sequence", "opt_start_seq": 1},
        {"opt_start_seq": 2},
        "start sequence",
    ),
    (
        "opt_start_time",
        {"deliver_policy": "by_start_time", "opt_start_time": datetime(2026, 1, 1, tzinfo=UTC)},
        {"opt_start_time": datetime(2026, 1, 2, tzinfo=UTC)},
        "start time",
    ),
    ("replay_policy", {}, {"replay_policy": "original"}, "replay policy"),
    ("mem_storage", {}, {"mem_storage": True}, "storage type"),
    ("max_waiting", {"max_waiting": 5}, {"max_waiting": 6}, "max waiting"),
    ("deliver_subject", {}, {"deliver_subject": "x", "max_waiting": None}, "pull consumer to push"),
]
# The reference says that these two can be edited; the server (2.15.1) says that they can not.
FIXED_PUSH: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("idle_heartbeat", {"idle_heartbeat": 1}, {"idle_heartbeat": 2}, "heart beats"),
    (
        "flow_control",
        {"idle_heartbeat": 1, "flow_control": False},
        {"flow_control": True},
        "flow control",
    ),
]


def named(value: Any, stream: str) -> Any:
    if isinstance(value, str):
        return value.format(stream=stream)
    return [named(one, stream) for one in value] if isinstance(value, list) else value


def visible(value: Any) -> Any:
    """As configs are compared: without what the server adds to metadata."""
    if isinstance(value, dict):
        return {key: text for key, text in value.items() if not key.startswith("_nats.")}
    return value


async def edit(js: jetspark.JetStream, field: str, old: Any, new: Any, **options: Any) -> None:
    stream = await make(js)
    old, new = named(old, stream.name), named(new, stream.name)
    consumer = await durable(stream, **{**options, field: old})
    changed = await stream.update_consumer(consumer.config.replace(**{field: new}))
    for info in (changed.cached_info, await consumer.info()):
        assert visible(getattr(info.config, field)) == new
    # Nothing else has changed, except what follows from it.
    follows = {"metadata", field} | ({"ack_wait"} if field == "backoff" else set())
    now, before = changed.config.to_wire(), consumer.cached_info.config.to_wire()
    assert {key for key in now.keys() | before.keys() if now.get(key) != before.get(key)} <= follows


@pytest.mark.parametrize(("field", "old", "new"), EDITABLE, ids=[row[0] for row in EDITABLE])
async def test_editable(js: jetspark.JetStream, field: str, old: Any, new: Any) -> None:
    await edit(js, field, old, new, **({"max_deliver": 5} if field == "backoff" else {}))


@pytest.mark.parametrize(("field", "old", "new"), EDITABLE_PUSH, ids=[row[0] for row in EDITABLE_PUSH])
async def test_editable_of_push_consumers(js: jetspark.JetStream, field: str, old: Any, new: Any) -> None:
    options = {} if field == "deliver_subject" else {"deliver_subject": unique("deliver")}
    await edit(js, field, old, new, **options)


async def refuse(js: jetspark.JetStream, options: dict[str, Any], change: dict[str, Any], text: str) -> None:
    stream = await make(js)
    consumer = await durable(stream, **options)
    with pytest.raises(ApiError, match=f"(?i){text}"):
        await stream.update_consumer(consumer.config.replace(**change))
    # It is as it was.
    assert (await consumer.info()).config == consumer.config


@pytest.mark.parametrize(("field", "options", "change", "text"), FIXED, ids=[row[0] for row in FIXED])
async def test_not_editable(
    js: jetspark.JetStream, field: str, options: dict[str, Any], change: dict[str, Any], text: str
) -> None:
    assert field in change
    await refuse(js, options, change, text)


@pytest.mark.parametrize(
    ("field", "options", "change", "text"), FIXED_PUSH, ids=[row[0] for row in FIXED_PUSH]
)
async def test_not_editable_of_push_consumers(
    js: jetspark.JetStream, field: str, options: dict[str, Any], change: dict[str, Any], text: str
) -> None:
    assert field in change
    await refuse(js, {"deliver_subject": unique("deliver"), **options}, change, text)


async def test_a_durable_can_not_be_renamed(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0)
    with pytest.raises(ConsumerDoesNotExist):
        await stream.update_consumer(consumer.config.replace(durable_name="other", name=None))
    assert [name async for name in stream.consumer_names()] == ["worker"]


async def test_push_can_not_become_pull(js: jetspark.JetStream) -> None:
    await refuse(
        js, {"deliver_subject": unique("deliver")}, {"deliver_subject": None}, "push consumer to pull"
    )


async def unbound(consumer: jetspark.Consumer) -> bool:
    """Whether the server has noticed that nobody listens any more."""
    return not (await consumer.info()).push_bound


async def test_a_deliver_subject_in_use_stays(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    """'Not editable', says the reference; the server lets it change while nobody listens."""
    stream = await make(js)
    sub = await nc.subscribe(unique("deliver"))
    consumer = await durable(stream, deliver_subject=sub.subject)
    with pytest.raises(ApiError) as caught:
        await stream.update_consumer(consumer.config.replace(deliver_subject=unique("deliver")))
    assert isinstance(caught.value, ConsumerExists) or "already in use" in str(caught.value)
    await sub.unsubscribe()
    elsewhere = await nc.subscribe(unique("deliver"))
    await eventually(lambda: unbound(consumer))
    await stream.update_consumer(consumer.config.replace(deliver_subject=elsewhere.subject))
    await fill(js, stream, 1)
    assert len(await pushed(elsewhere, 1)) == 1


# An edit takes effect


async def test_a_new_filter_takes_effect(js: jetspark.JetStream) -> None:
    stream = await make(js)
    consumer = await durable(stream, filter_subject=f"{stream.name}.a")
    for subject in "abab":
        await js.publish(f"{stream.name}.{subject}", subject.encode())
    assert (await take(consumer)).data == b"a"
    await stream.update_consumer(consumer.config.replace(filter_subject=f"{stream.name}.b"))
    assert [message.data for message in await consumer.fetch(10, no_wait=True)] == [b"b", b"b"]


async def test_a_larger_max_ack_pending_takes_effect(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 10, max_ack_pending=2)
    assert numbers(await consumer.fetch(10, expires=1)) == [0, 1]
    await stream.update_consumer(consumer.config.replace(max_ack_pending=5))
    assert numbers(await consumer.fetch(10, expires=1)) == [2, 3, 4]


async def test_a_shorter_ack_wait_takes_effect(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 1, ack_wait=60)
    await take(consumer)
    await stream.update_consumer(consumer.config.replace(ack_wait=0.2))
    assert (await take(consumer)).metadata.num_delivered == 2


async def test_a_larger_max_deliver_takes_effect(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 1, max_deliver=1, ack_wait=0.2)
    await take(consumer)
    await stream.update_consumer(consumer.config.replace(max_deliver=2))
    assert (await take(consumer)).metadata.num_delivered == 2
    assert await consumer.next(expires=0.5) is None


async def test_a_new_backoff_takes_effect(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 1, backoff=[60])
    await stream.update_consumer(consumer.config.replace(backoff=[0.2]))
    await take(consumer)
    assert (await take(consumer)).metadata.num_delivered == 2


async def test_a_new_inactive_threshold_takes_effect(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0)
    await stream.update_consumer(consumer.config.replace(inactive_threshold=0.3))
    await eventually(lambda: gone(consumer), timeout=10)


async def test_a_new_sample_frequency_takes_effect(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 2)
    async with js.advisories(stream.name, kinds=[AckMetric]) as advisories:
        await (await take(consumer)).ack_sync()
        await stream.update_consumer(consumer.config.replace(sample_freq="100"))
        await (await take(consumer)).ack_sync()
        metric = await advisories.next()
    assert isinstance(metric, AckMetric)
    assert metric.stream_seq == 2


async def test_headers_only_takes_effect(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 2)
    assert (await take(consumer)).data == b"0"
    await stream.update_consumer(consumer.config.replace(headers_only=True))
    message = await take(consumer)
    assert (message.data, message.headers["Nats-Msg-Size"]) == (b"", "1")


async def test_a_new_limit_of_requests_takes_effect(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 5)
    await stream.update_consumer(consumer.config.replace(max_batch=2))
    with pytest.raises(MaxRequestBatchExceeded):
        await consumer.fetch(3)


async def test_a_rate_limit_that_is_lifted_takes_effect(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    stream = await make(js, max_msg_size=4096)
    sub = await nc.subscribe(unique("deliver"))
    # 30 kB at 100 bytes a second would take minutes.
    consumer = await durable(
        stream, deliver_subject=sub.subject, rate_limit_bps=800, ack_policy=AckPolicy.NONE
    )
    await stream.update_consumer(consumer.config.replace(rate_limit_bps=0))
    await fill(js, stream, 30, size=1000)
    began = time.monotonic()
    assert len(await pushed(sub, 30)) == 30
    assert time.monotonic() - began < PROMPT
