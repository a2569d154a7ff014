"""Consumers as objects: create, update, get, delete, pause, resume, unpin, reset. Consuming is elsewhere."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import jetspark
from jetspark import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    RetentionPolicy,
    StorageType,
    Stream,
    StreamConfig,
)
from jetspark.errors import (
    ApiError,
    ConsumerDoesNotExist,
    ConsumerExists,
    ConsumerNotFound,
    InvalidArgument,
    InvalidConsumerConfig,
    InvalidReset,
    MaximumConsumersReached,
    NotFound,
    PedanticError,
    StreamNotFound,
    WorkQueueConflict,
)
from support.consuming import has_pending
from support.helpers import eventually, unique


async def make(js: jetspark.JetStream, **options: Any) -> Stream:
    name = unique()
    options.setdefault("subjects", [f"{name}.>"])
    return await js.create_stream(StreamConfig(name=name, storage=StorageType.MEMORY, **options))


async def pull(nc: jetspark.Connection, stream: str, consumer: str, batch: int, **more: Any) -> list[Any]:
    """Take messages with a raw pull request: these tests are not about consuming."""
    body = json.dumps({"batch": batch, "expires": 5_000_000_000, **more}).encode()
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    return [message async for message in nc.request_many(subject, body, max_messages=batch, timeout=5)]


async def test_a_durable_has_its_config_with_the_servers_defaults(js: jetspark.JetStream) -> None:
    stream = await make(js)
    consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker", description="first"))
    assert (consumer.name, consumer.stream_name) == ("worker", stream.name)
    assert repr(consumer) == f"Consumer({stream.name!r}, 'worker')"
    assert consumer.config.durable_name == "worker"
    assert consumer.config.description == "first"
    assert consumer.config.ack_policy is AckPolicy.EXPLICIT
    assert consumer.config.ack_wait == 30
    assert consumer.config.max_ack_pending == 1000
    assert not consumer.config.is_push
    assert consumer.cached_info.num_pending == 0
    await js.publish(f"{stream.name}.a")
    # A consumer hears of a message a moment after its ack.
    await eventually(lambda: has_pending(consumer, 1))
    assert consumer.cached_info.num_pending == 1


async def test_a_consumer_without_a_name_gets_one(js: jetspark.JetStream) -> None:
    stream = await make(js)
    first = await stream.create_consumer(ConsumerConfig())
    second = await stream.create_consumer(ConsumerConfig())
    assert first.name != second.name
    assert first.config.durable_name is None
    assert {name async for name in stream.consumer_names()} == {first.name, second.name}


async def test_a_named_consumer_without_durable_is_ephemeral(js: jetspark.JetStream) -> None:
    stream = await make(js)
    consumer = await stream.create_consumer(ConsumerConfig(name="seen", inactive_threshold=60))
    assert (consumer.name, consumer.config.durable_name) == ("seen", None)
    assert consumer.config.inactive_threshold == 60


async def test_creating_an_existing_one_is_refused_even_with_the_same_config(js: jetspark.JetStream) -> None:
    stream = await make(js)
    config = ConsumerConfig(durable_name="worker")
    await stream.create_consumer(config)
    for again in (config.replace(description="other"), config.replace(ack_wait=5)):
        with pytest.raises(ConsumerExists):
            await stream.create_consumer(again)


async def test_update_changes_what_it_names_and_keeps_the_rest(js: jetspark.JetStream) -> None:
    stream = await make(js)
    config = ConsumerConfig(durable_name="worker", description="first", ack_wait=10, metadata={"a": "1"})
    consumer = await stream.create_consumer(config)
    updated = await stream.update_consumer(consumer.config.replace(ack_wait=20))
    assert updated.config.ack_wait == 20
    assert updated.config.description == "first"
    assert (updated.config.metadata or {})["a"] == "1"
    assert updated.cached_info.created == consumer.cached_info.created


async def test_update_of_one_that_does_not_exist(js: jetspark.JetStream) -> None:
    stream = await make(js)
    with pytest.raises(ConsumerDoesNotExist) as caught:
        await stream.update_consumer(ConsumerConfig(durable_name="worker"))
    assert isinstance(caught.value, NotFound)
    with pytest.raises(InvalidArgument, match="name"):
        await stream.update_consumer(ConsumerConfig())


async def test_update_of_what_can_not_change_is_refused(js: jetspark.JetStream) -> None:
    stream = await make(js)
    consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker"))
    with pytest.raises(InvalidConsumerConfig, match="deliver policy can not be updated"):
        await stream.update_consumer(consumer.config.replace(deliver_policy=DeliverPolicy.NEW))


async def test_create_or_update_does_what_is_needed(js: jetspark.JetStream) -> None:
    stream = await make(js)
    config = ConsumerConfig(durable_name="worker", ack_wait=10)
    first = await stream.create_or_update_consumer(config)
    second = await stream.create_or_update_consumer(config.replace(ack_wait=20))
    assert second.cached_info.created == first.cached_info.created
    assert second.config.ack_wait == 20


async def test_create_or_update_by_many_at_once_succeeds_for_all(js: jetspark.JetStream) -> None:
    stream = await make(js)
    consumers = await asyncio.gather(
        *(
            stream.create_or_update_consumer(ConsumerConfig(durable_name="worker", ack_wait=10 + number))
            for number in range(20)
        )
    )
    assert len({consumer.cached_info.created for consumer in consumers}) == 1
    assert [name async for name in stream.consumer_names()] == ["worker"]


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"filter_subject": "{}.a"},
        {"filter_subject": "{}.*.b"},
        {"filter_subject": "{}.>"},
        {"filter_subjects": ["{}.a"]},
        {"filter_subjects": ["{}.a", "{}.b.*"]},
    ],
)
async def test_filters_are_those_of_the_config(js: jetspark.JetStream, filters: dict[str, Any]) -> None:
    stream = await make(js)
    wanted = {
        field: value.format(stream.name)
        if isinstance(value, str)
        else [one.format(stream.name) for one in value]
        for field, value in filters.items()
    }
    consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker", **wanted))
    assert consumer.config.filter_subject == wanted.get("filter_subject")
    assert consumer.config.filter_subjects == wanted.get("filter_subjects")
    # And an update may change them.
    updated = await stream.update_consumer(
        consumer.config.replace(filter_subject=f"{stream.name}.z", filter_subjects=None)
    )
    assert updated.config.filter_subject == f"{stream.name}.z"


async def test_get_and_delete_by_context_and_by_stream(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await js.create_consumer(stream.name, ConsumerConfig(durable_name="one"))
    await js.create_or_update_consumer(stream.name, ConsumerConfig(durable_name="two"))
    await js.update_consumer(stream.name, ConsumerConfig(durable_name="two", description="x"))
    one = await stream.get_consumer("one")
    two = await js.get_consumer(stream.name, "two")
    assert two.config.description == "x"
    assert {info.name async for info in js.list_consumers(stream.name)} == {"one", "two"}
    assert {info.name async for info in stream.list_consumers()} == {"one", "two"}
    await one.delete()
    with pytest.raises(ConsumerNotFound) as caught:
        await one.info()
    assert isinstance(caught.value, NotFound)
    await js.delete_consumer(stream.name, "two")
    with pytest.raises(ConsumerNotFound):
        await stream.get_consumer("two")
    with pytest.raises(ConsumerNotFound):
        await stream.delete_consumer("two")
    assert [name async for name in js.consumer_names(stream.name)] == []


async def test_a_stream_that_does_not_exist_is_not_found(js: jetspark.JetStream) -> None:
    name = unique()
    with pytest.raises(StreamNotFound):
        await js.get_consumer(name, "worker")
    with pytest.raises(StreamNotFound):
        await js.create_consumer(name, ConsumerConfig(durable_name="worker"))
    with pytest.raises(StreamNotFound):
        await anext(js.list_consumers(name))
    with pytest.raises(StreamNotFound):
        await anext(js.consumer_names(name))


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("get_consumer", ("s", "a.b")),
        ("get_consumer", ("s.t", "a")),
        ("delete_consumer", ("s", "")),
        ("delete_consumer", ("*", "a")),
        ("pause_consumer", ("s", "a b", datetime.now(UTC))),
        ("resume_consumer", ("s", ">")),
        ("create_consumer", ("s t", ConsumerConfig())),
        ("create_consumer", ("s", ConsumerConfig(name="a.b"))),
        ("update_consumer", ("s", ConsumerConfig(durable_name="a/b"))),
        ("pause_consumer", ("s", "a", datetime(2030, 1, 1))),  # naive
    ],
)
async def test_bad_names_and_times_are_refused_before_sending(
    js: jetspark.JetStream, nc: jetspark.Connection, call: str, arguments: tuple[Any, ...]
) -> None:
    before = nc.stats.out_msgs
    with pytest.raises(InvalidArgument):
        await getattr(js, call)(*arguments)
    assert nc.stats.out_msgs == before


async def test_pedantic_refuses_what_the_server_would_adjust(js: jetspark.JetStream) -> None:
    stream = await make(js, consumer_limits=jetspark.models.ConsumerLimits(max_ack_pending=7))
    config = ConsumerConfig(durable_name="worker")
    adjusted = await stream.create_consumer(config)
    assert adjusted.config.max_ack_pending == 7
    with pytest.raises(PedanticError):
        await stream.create_consumer(config.replace(durable_name="other"), pedantic=True)
    with pytest.raises(PedanticError):
        await stream.update_consumer(config, pedantic=True)
    strict = await stream.create_or_update_consumer(adjusted.config.replace(description="d"), pedantic=True)
    assert strict.config.description == "d"


async def test_limits_and_work_queues(js: jetspark.JetStream) -> None:
    stream = await make(js, max_consumers=1)
    await stream.create_consumer(ConsumerConfig(durable_name="one"))
    with pytest.raises(MaximumConsumersReached):
        await stream.create_consumer(ConsumerConfig(durable_name="two"))
    queue = await make(js, retention=RetentionPolicy.WORK_QUEUE)
    with pytest.raises(WorkQueueConflict):
        await queue.create_consumer(ConsumerConfig(durable_name="none", ack_policy=AckPolicy.NONE))
    await queue.create_consumer(ConsumerConfig(durable_name="one"))
    with pytest.raises(WorkQueueConflict):
        await queue.create_consumer(ConsumerConfig(durable_name="two"))


class TestPause:
    async def test_until_and_resume(self, js: jetspark.JetStream) -> None:
        stream = await make(js)
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker"))
        until = datetime.now(UTC).replace(microsecond=123456) + timedelta(hours=1)

        paused = await consumer.pause(until)
        assert paused.paused
        assert paused.pause_until == until
        assert paused.pause_remaining is not None
        assert 3500 < paused.pause_remaining <= 3601
        info = await consumer.info()
        assert info.paused
        assert info.config.pause_until == until

        resumed = await consumer.resume()
        assert not resumed.paused
        assert resumed.pause_until is None
        assert not (await consumer.info()).paused

    async def test_by_stream_and_by_context(self, js: jetspark.JetStream) -> None:
        stream = await make(js)
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker"))
        until = datetime.now(UTC) + timedelta(hours=1)
        assert (await stream.pause_consumer("worker", until)).paused
        assert not (await stream.resume_consumer("worker")).paused
        assert (await js.pause_consumer(stream.name, "worker", until)).paused
        assert not (await js.resume_consumer(stream.name, "worker")).paused
        assert not (await consumer.info()).paused

    async def test_at_creation(self, js: jetspark.JetStream) -> None:
        stream = await make(js)
        until = datetime.now(UTC) + timedelta(hours=1)
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker", pause_until=until))
        assert consumer.cached_info.paused
        assert consumer.config.pause_until == until

    async def test_into_the_past_is_no_pause(self, js: jetspark.JetStream) -> None:
        stream = await make(js)
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker"))
        assert not (await consumer.pause(datetime.now(UTC) - timedelta(hours=1))).paused

    async def test_of_nothing_is_not_found(self, js: jetspark.JetStream) -> None:
        stream = await make(js)
        with pytest.raises(ConsumerNotFound):
            await stream.pause_consumer("worker", datetime.now(UTC))
        with pytest.raises(ConsumerNotFound):
            await stream.resume_consumer("worker")


class TestUnpin:
    async def test_frees_the_group_for_another_client(
        self, js: jetspark.JetStream, nc: jetspark.Connection
    ) -> None:
        stream = await make(js)
        config = ConsumerConfig(
            durable_name="worker", priority_policy="pinned_client", priority_groups=["g"], priority_timeout=60
        )
        consumer = await stream.create_consumer(config)
        await js.publish(f"{stream.name}.a")
        (message,) = await pull(nc, stream.name, "worker", 1, group="g")
        groups = (await consumer.info()).priority_groups or []
        assert [group.pinned_client_id for group in groups] == [message.headers["Nats-Pin-Id"]]
        assert groups[0].pinned_ts is not None

        await consumer.unpin("g")
        groups = (await consumer.info()).priority_groups or []
        assert [group.pinned_client_id for group in groups] == [None]

    async def test_refuses_a_group_that_is_not_there(self, js: jetspark.JetStream) -> None:
        stream = await make(js)
        config = ConsumerConfig(durable_name="worker", priority_policy="pinned_client", priority_groups=["g"])
        consumer = await stream.create_consumer(config)
        with pytest.raises(ApiError):
            await consumer.unpin("other")
        with pytest.raises(InvalidArgument):
            await consumer.unpin("")
        plain = await stream.create_consumer(ConsumerConfig(durable_name="plain"))
        with pytest.raises(ApiError):
            await plain.unpin("g")


class TestReset:
    async def test_moves_forward_and_back(self, js: jetspark.JetStream, nc: jetspark.Connection) -> None:
        stream = await make(js)
        for _ in range(10):
            await js.publish(f"{stream.name}.a")
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker"))

        info = await consumer.reset(6)
        assert consumer.cached_info == info
        assert info.ack_floor.stream_seq == 5
        assert info.num_pending == 5
        (message,) = await pull(nc, stream.name, "worker", 1)
        assert message.reply.split(".")[5] == "6"

        await consumer.reset(2)
        (message,) = await pull(nc, stream.name, "worker", 1)
        assert message.reply.split(".")[5] == "2"

    async def test_without_a_sequence_delivers_again_what_was_not_acked(
        self, js: jetspark.JetStream, nc: jetspark.Connection
    ) -> None:
        stream = await make(js)
        for _ in range(5):
            await js.publish(f"{stream.name}.a")
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker"))
        first, _, _ = await pull(nc, stream.name, "worker", 3)
        await nc.publish(first.reply, b"+ACK")
        await eventually(lambda: _acked(consumer, 1))
        info = await consumer.reset()
        assert (info.num_ack_pending, info.num_pending) == (0, 4)
        (message,) = await pull(nc, stream.name, "worker", 1)
        assert message.reply.split(".")[5] == "2"

    async def test_of_nothing_is_not_found(self, nc: jetspark.Connection) -> None:
        """The server does not answer a reset of a consumer that is not there."""
        stream = await make(nc.jetstream())
        consumer = await nc.jetstream(timeout=1.5).create_consumer(
            stream.name, ConsumerConfig(durable_name="worker")
        )
        await consumer.delete()
        with pytest.raises(ConsumerNotFound):
            await consumer.reset(1)

    async def test_is_refused_below_the_start_of_the_consumer(self, js: jetspark.JetStream) -> None:
        stream = await make(js)
        for _ in range(5):
            await js.publish(f"{stream.name}.a")
        config = ConsumerConfig(
            durable_name="worker", deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=3
        )
        consumer = await stream.create_consumer(config)
        with pytest.raises(InvalidReset):
            await consumer.reset(1)

    @pytest.mark.parametrize("seq", [0, -1, True, "1"])
    async def test_refuses_what_is_no_sequence(self, js: jetspark.JetStream, seq: Any) -> None:
        stream = await make(js)
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker"))
        with pytest.raises(InvalidArgument) as caught:
            await consumer.reset(seq)
        assert caught.value.field == "seq"


async def _acked(consumer: jetspark.Consumer, seq: int) -> bool:
    return (await consumer.info()).ack_floor.stream_seq == seq
