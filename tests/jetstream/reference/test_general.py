"""The 'General' rows of the consumer reference: what each field does on the real server."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import ConsumerConfig, ReplayPolicy, StorageType, StreamConfig
from jetspark.advisories import AckMetric, AdvisoryAction, ConsumerActionAdvisory, MaxDeliveriesAdvisory
from jetspark.errors import (
    ApiError,
    ConsumerNotFound,
    InvalidArgument,
    PermissionViolationError,
    RequestTimeout,
)
from support.consuming import durable, fill, make, make_filled, numbers
from support.deliveries import EARLY, arrivals, gone, pauses, pushed, settled, take
from support.helpers import FOREVER, PROMPT, eventually, unique

if TYPE_CHECKING:
    from conftest import StartServer
    from jetspark.server import Cluster, Server


# AckWait


async def test_ack_wait_is_counted_for_each_message_from_its_delivery(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 2, ack_wait=3)
    began = time.monotonic()
    await take(consumer)
    await asyncio.sleep(0.25)  # what tells them apart
    second = time.monotonic()
    await take(consumer)
    (first_again, one), (second_again, two) = await arrivals(consumer, 2)
    assert numbers([one, two]) == [0, 1]
    assert [message.metadata.num_delivered for message in (one, two)] == [2, 2]
    assert first_again - began >= 3 - EARLY
    assert second_again - second >= 3 - EARLY


async def test_an_ack_within_ack_wait_ends_it(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1, ack_wait=1)
    await (await take(consumer)).ack()
    assert await consumer.next(expires=1.5) is None


# MaxDeliver


@pytest.mark.parametrize("how", ["no ack", "nak"])
async def test_max_deliver_stops_leaves_the_message_and_tells(js: jetspark.JetStream, how: str) -> None:
    stream, consumer = await make_filled(js, 1, max_deliver=3, ack_wait=0.2)
    async with js.advisories(stream.name, consumer.name, kinds=[MaxDeliveriesAdvisory]) as advisories:
        for number in (1, 2, 3):
            message = await take(consumer)
            assert message.metadata.num_delivered == number
            if how == "nak":
                await message.nak()
        assert await consumer.next(expires=1) is None
        advisory = await advisories.next()
    assert isinstance(advisory, MaxDeliveriesAdvisory)
    assert (advisory.stream_seq, advisory.deliveries) == (1, 3)
    assert (await stream.get_msg(1)).data == b"0"


async def test_without_max_deliver_it_never_stops(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1)
    assert consumer.config.max_deliver == -1
    for number in range(1, 31):
        message = await take(consumer)
        assert message.metadata.num_delivered == number
        await message.nak()


# Backoff


@pytest.mark.slow
async def test_backoff_sets_the_delays_and_repeats_the_last(js: jetspark.JetStream) -> None:
    # ack_wait would be two minutes: the first delay takes its place.
    _, consumer = await make_filled(js, 1, backoff=[0.2, 0.4, 0.6], max_deliver=5, ack_wait=FOREVER)
    assert consumer.config.ack_wait == 0.2
    began = time.monotonic()
    got = await arrivals(consumer, 5)
    assert [message.metadata.num_delivered for _, message in got] == [1, 2, 3, 4, 5]
    # Never too early, counted from the beginning: one that we saw late shortens the pause behind it.
    for (arrived, _), due in zip(got, [0, 0.2, 0.6, 1.2, 1.8], strict=True):
        assert arrived - began >= due - EARLY
    for pause in pauses(got):
        assert pause < PROMPT
    assert await consumer.next(expires=1) is None


async def test_backoff_does_not_apply_to_a_nak(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1, backoff=[FOREVER, FOREVER])
    began = time.monotonic()
    await (await take(consumer)).nak()
    assert (await take(consumer)).metadata.num_delivered == 2
    assert time.monotonic() - began < PROMPT


async def test_a_nak_with_a_delay_is_obeyed_under_backoff(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1, backoff=[FOREVER, FOREVER])
    message = await take(consumer)
    began = time.monotonic()
    await message.nak(delay=0.5)
    assert (await take(consumer)).metadata.num_delivered == 2
    assert 0.5 - EARLY <= time.monotonic() - began < PROMPT


async def test_backoff_longer_than_max_deliver_is_refused(js: jetspark.JetStream) -> None:
    stream = await make(js)
    with pytest.raises(InvalidArgument, match="max_deliver=2"):
        await durable(stream, backoff=[1, 2, 3], max_deliver=2)
    assert (await durable(stream, backoff=[1, 2, 3], max_deliver=3)).config.backoff == [1, 2, 3]


async def test_a_negative_ack_is_immediate_without_backoff(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1, ack_wait=FOREVER)
    began = time.monotonic()
    await (await take(consumer)).nak()
    assert (await take(consumer)).metadata.num_delivered == 2
    assert time.monotonic() - began < PROMPT


# MaxAckPending


async def test_max_ack_pending_suspends_delivery_over_all_subscriptions(
    js: jetspark.JetStream, server: Server
) -> None:
    stream, consumer = await make_filled(js, 10, max_ack_pending=4)
    async with jetspark.connect(server.url) as nc:
        other = await nc.jetstream().get_consumer(stream.name, "worker")
        first = await consumer.fetch(3, expires=2)
        second = await other.fetch(5, expires=1)
        assert (numbers(first), numbers(second)) == ([0, 1, 2], [3])
        # An ack of one makes room for one, whoever asks.
        await first[0].ack_sync()
        assert numbers(await other.fetch(5, expires=1)) == [4]


async def test_max_ack_pending_without_a_limit_and_its_default(js: jetspark.JetStream) -> None:
    stream, unlimited = await make_filled(js, 1500, max_ack_pending=-1)
    default = await durable(stream, durable_name="default")
    assert default.config.max_ack_pending == 1000
    assert len(await default.fetch(1500, expires=2)) == 1000
    assert len(await unlimited.fetch(1500, expires=20)) == 1500


async def test_max_ack_pending_paces_a_push_consumer(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream = await make(js)
    await fill(js, stream, 10)
    sub = await nc.subscribe(unique("deliver"))
    await durable(stream, deliver_subject=sub.subject, max_ack_pending=3)
    got = await pushed(sub, 3)
    await nc.flush()
    await nc.flush()
    assert sub.pending_messages == 0
    await nc.publish(got[0].reply, b"+ACK")
    assert [int(message.data) for message in await pushed(sub, 1)] == [3]


async def test_a_low_max_ack_pending_with_a_fitting_ack_wait_redelivers_nothing(
    js: jetspark.JetStream,
) -> None:
    """Slow work: few at a time, and time enough for each."""
    _, consumer = await make_filled(js, 6, max_ack_pending=2, ack_wait=60)
    delivered: list[int] = []
    async with consumer.consume(stop_after=6) as messages:
        async for message in messages:
            await asyncio.sleep(0.05)  # the work
            delivered.append(message.metadata.num_delivered)
            await message.ack()
    assert delivered == [1] * 6


# InactiveThreshold


@pytest.mark.parametrize("kind", ["durable", "named", "ephemeral", "push"])
async def test_inactive_threshold_removes_it(js: jetspark.JetStream, kind: str) -> None:
    stream = await make(js)
    names: dict[str, Any] = {
        "durable": {"durable_name": "d"},
        "named": {"name": "n"},
        "ephemeral": {},
        "push": {"durable_name": "p", "deliver_subject": unique("deliver")},
    }
    async with js.advisories(stream.name, kinds=[ConsumerActionAdvisory]) as advisories:
        began = time.monotonic()
        config = ConsumerConfig(inactive_threshold=0.4, **names[kind])
        consumer = await stream.create_consumer(config)
        created, deleted = await advisories.next(), await advisories.next(timeout=20)
    assert isinstance(created, ConsumerActionAdvisory)
    assert isinstance(deleted, ConsumerActionAdvisory)
    assert (created.action, deleted.action) == (AdvisoryAction.CREATE, AdvisoryAction.DELETE)
    assert deleted.consumer == consumer.name
    assert time.monotonic() - began >= 0.4 - EARLY
    # It is told a moment before it is done.
    await eventually(lambda: gone(consumer))
    with pytest.raises(ConsumerNotFound):
        await consumer.info()


@pytest.mark.slow
async def test_a_pull_that_waits_is_activity(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 0, inactive_threshold=1.5)
    assert await consumer.next(expires=3) is None
    assert not await gone(consumer)
    await eventually(lambda: gone(consumer), timeout=10)


# ReplayPolicy


async def test_replay_keeps_the_rhythm_or_is_instant(js: jetspark.JetStream) -> None:
    stream = await make(js)
    for number, pause in enumerate([0, 0.5, 0.1, 0.3]):
        await asyncio.sleep(pause)
        await js.publish(f"{stream.name}.a", b"%d" % number)
    stored = [message.timestamp async for message in stream.get_msgs()]
    rhythm = [(after - before).total_seconds() for before, after in pairwise(stored)]
    original = await durable(stream, durable_name="original", replay_policy=ReplayPolicy.ORIGINAL)
    began = time.monotonic()
    got = await arrivals(original, 4)
    assert numbers(message for _, message in got) == [0, 1, 2, 3]
    # Never too early, counted from the beginning: one that we saw late shortens the pause behind it.
    for (arrived, _), due in zip(got[1:], accumulate(rhythm), strict=True):
        assert arrived - began >= due - EARLY
    for ours, theirs in zip(pauses(got), rhythm, strict=True):
        assert ours < theirs + 3
    instant = await durable(stream, durable_name="instant")
    got = await arrivals(instant, 4)
    assert got[-1][0] - got[0][0] < sum(rhythm) - EARLY


# Replicas


async def test_replicas_are_those_of_the_stream_unless_set_and_can_change(cluster: Cluster) -> None:
    async with jetspark.connect(cluster.urls) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=unique(), subjects=[unique()], num_replicas=3))
        inherited = await durable(stream, durable_name="inherited")
        single = await durable(stream, durable_name="single", num_replicas=1)

        def servers(info: jetspark.ConsumerInfo) -> int:
            # Without a leader for a moment, the server leaves it out.
            return 0 if info.cluster is None else 1 + len(info.cluster.replicas or [])

        assert servers(inherited.cached_info) == 3
        assert servers(single.cached_info) == 1
        await stream.update_consumer(single.config.replace(num_replicas=3))

        async def spread() -> bool:
            return servers(await single.info()) == 3

        await eventually(spread, timeout=20)
        await stream.delete()


# MemoryStorage


async def test_memory_storage_forgets_what_file_storage_keeps(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream()
        stream = await make(js, storage=StorageType.FILE)
        await fill(js, stream, 3)
        for name, memory in (("disk", False), ("memory", True)):
            consumer = await durable(stream, durable_name=name, mem_storage=memory)
            await (await take(consumer)).ack_sync()
    own_server.terminate()
    own_server.restart()
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream()
        disk = await js.get_consumer(stream.name, "disk")
        assert disk.cached_info.ack_floor.stream_seq == 1
        assert numbers([await take(disk)]) == [1]
        # A single server has nobody to get the state from: the consumer has gone with it.
        with pytest.raises(ConsumerNotFound):
            await js.get_consumer(stream.name, "memory")


# SampleFrequency


@pytest.mark.parametrize(("frequency", "low", "high"), [("100", 200, 200), ("50%", 50, 150), ("0", 0, 0)])
async def test_sample_frequency_is_the_percentage_of_acks_that_are_told(
    js: jetspark.JetStream, frequency: str, low: int, high: int
) -> None:
    stream, consumer = await make_filled(js, 200, sample_freq=frequency)
    async with js.advisories(stream.name, consumer.name, kinds=[AckMetric]) as advisories:
        for message in await consumer.fetch(200):
            await message.ack()
        await eventually(lambda: settled(consumer, 0))
        # A last one that is told for certain, to know that all before it have come.
        await stream.update_consumer(consumer.config.replace(sample_freq="100%"))
        await fill(js, stream, 1, start=200)
        await (await take(consumer)).ack()
        samples: list[AckMetric] = []
        while not samples or samples[-1].stream_seq != 201:
            metric = await advisories.next()
            assert isinstance(metric, AckMetric)
            samples.append(metric)
    assert low <= len(samples) - 1 <= high
    for metric in samples:
        assert metric.deliveries == 1
        assert metric.ack_time is not None
        assert 0 <= metric.ack_time < 60


@pytest.mark.parametrize("frequency", ["half", "-1", "1.5", "%"])
async def test_a_sample_frequency_that_is_no_percentage_is_refused(
    js: jetspark.JetStream, frequency: str
) -> None:
    stream = await make(js)
    with pytest.raises(InvalidArgument, match="percentage"):
        await durable(stream, sample_freq=frequency)


# Description and Metadata


async def test_description_and_metadata_tell_what_an_ephemeral_is_for(js: jetspark.JetStream) -> None:
    stream = await make(js)
    config = ConsumerConfig(description="nightly report", metadata={"owner": "bi", "größe": "日本"})
    created = await stream.create_consumer(config)
    (listed,) = [info async for info in stream.list_consumers()]
    for info in (listed, await created.info()):
        assert info.config.description == "nightly report"
        assert info.config.metadata is not None
        ours = {key: value for key, value in info.config.metadata.items() if not key.startswith("_nats.")}
        assert ours == {"owner": "bi", "größe": "日本"}


async def test_metadata_and_description_have_their_limits(js: jetspark.JetStream) -> None:
    stream = await make(js)
    with pytest.raises(InvalidArgument, match="description"):
        await durable(stream, description="x" * 5000)
    with pytest.raises(InvalidArgument, match="metadata"):
        await durable(stream, metadata={"x": "y" * 140_000})


# FilterSubject and FilterSubjects


async def test_a_filter_is_applied_by_the_server(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream = await make(js)
    for subject in ("A.made", "B.made", "A.packed", "C.made"):
        await js.publish(f"{stream.name}.{subject}", subject.encode())
    consumer = await durable(stream, filter_subject=f"{stream.name}.A.*")
    assert consumer.cached_info.num_pending == 2
    received = nc.stats.in_msgs
    got = await consumer.fetch(10, no_wait=True)
    assert [message.data for message in got] == [b"A.made", b"A.packed"]
    # Two messages, the status behind them and nothing else have crossed the wire.
    assert nc.stats.in_msgs - received == 3


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["A.*", "B.*"], [b"A.made", b"B.made", b"A.packed"]),
        (["*.made", "*.sent"], [b"A.made", b"B.made", b"C.made"]),
        (["A.made"], [b"A.made"]),
    ],
)
async def test_several_filters_deliver_in_the_order_of_the_stream(
    js: jetspark.JetStream, filters: list[str], found: list[bytes]
) -> None:
    stream = await make(js)
    for subject in ("A.made", "B.made", "A.packed", "C.made"):
        await js.publish(f"{stream.name}.{subject}", subject.encode())
    consumer = await durable(stream, filter_subjects=[f"{stream.name}.{one}" for one in filters])
    assert [message.data for message in await consumer.fetch(10, no_wait=True)] == found


async def test_one_filter_or_several_but_not_both(js: jetspark.JetStream) -> None:
    stream = await make(js)
    with pytest.raises(InvalidArgument, match="filter_subjects"):
        await durable(stream, filter_subject=f"{stream.name}.a", filter_subjects=[f"{stream.name}.b"])
    with pytest.raises(InvalidArgument, match="overlap"):
        await durable(stream, filter_subjects=[f"{stream.name}.*", f"{stream.name}.b"])
    # The server's own word on it, for those who bypass us.
    config = {"durable_name": "x", "filter_subject": "a", "filter_subjects": ["b"], "ack_policy": "explicit"}
    answer = await js.connection.request(
        f"$JS.API.CONSUMER.CREATE.{stream.name}.x",
        json.dumps({"stream_name": stream.name, "config": config}).encode(),
    )
    assert json.loads(answer.data)["error"]["err_code"] == 10136


async def test_permissions_can_be_given_for_one_filter_but_not_for_several(start_server: StartServer) -> None:
    """A single filter is the last part of the subject that creates the consumer; several are not in it."""
    server = start_server(
        config="""
        authorization { users = [
          { user: admin, password: pw }
          { user: factory, password: pw, permissions: { publish: { allow: [
              "$JS.API.CONSUMER.CREATE.EVENTS.*.events.A.*", "$JS.API.CONSUMER.MSG.NEXT.EVENTS.*" ] } } }
        ] }""",
    )
    async with (
        jetspark.connect(server.url, user="admin", password="pw") as admin,
        jetspark.connect(server.url, user="factory", password="pw") as nc,
    ):
        await admin.jetstream().create_stream(StreamConfig(name="EVENTS", subjects=["events.*.*"]))
        for subject in ("events.A.made", "events.B.made"):
            await admin.jetstream().publish(subject, subject.encode())
        js = nc.jetstream()
        allowed = ConsumerConfig(durable_name="a", filter_subject="events.A.*", ack_policy="none")
        consumer = await js.create_consumer("EVENTS", allowed)
        assert [message.data for message in await consumer.fetch(9, no_wait=True)] == [b"events.A.made"]
        for refused in (
            {"filter_subject": "events.B.*"},
            {"filter_subject": "events.*.*"},
            {"filter_subjects": ["events.A.*", "events.B.made"]},
            {},
        ):
            with pytest.raises((PermissionViolationError, RequestTimeout)):
                await js.create_consumer("EVENTS", ConsumerConfig(durable_name="b", **refused))
        # The server compares the subject with the body: the token can't be forged.
        body = {"stream_name": "EVENTS", "config": {"name": "b", "filter_subject": "events.B.*"}}
        with pytest.raises(ApiError) as caught:
            await js._api.request("CONSUMER.CREATE.EVENTS.b.events.A.*", body)
        assert caught.value.err_code == 10131
