"""Advisories as typed objects and dead letters, from the real server."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import ConsumerConfig, PriorityPolicy, RetentionPolicy, StreamConfig, blocking
from jetspark.advisories import (
    AckMetric,
    Advisory,
    AdvisoryAction,
    ApiAuditAdvisory,
    BatchAbandonedAdvisory,
    ConsumerActionAdvisory,
    ConsumerLeaderAdvisory,
    ConsumerPauseAdvisory,
    ConsumerQuorumLostAdvisory,
    GenericAdvisory,
    GroupPinnedAdvisory,
    GroupUnpinnedAdvisory,
    MaxDeliveriesAdvisory,
    NakAdvisory,
    StreamActionAdvisory,
    StreamLeaderAdvisory,
    StreamQuorumLostAdvisory,
    TerminatedAdvisory,
    decode_advisory,
)
from jetspark.errors import ConnectionClosed, InvalidArgument, MessageNotFound, ProtocolError, RequestTimeout
from jetspark.jetstream.advisory.feed import feed_subjects
from jetspark.jetstream.models.advisories import KINDS
from support.consuming import durable, fill, make, make_filled
from support.helpers import eventually, unique

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetspark import Message
    from jetspark.server import Cluster, Server


async def take(consumer: jetspark.Consumer) -> Message:
    message = await consumer.next(expires=5)
    assert message is not None
    return message


# What the server tells


async def test_max_deliveries(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 1, max_deliver=2, ack_wait=0.1)
    async with js.advisories(stream.name, consumer.name, kinds=[MaxDeliveriesAdvisory]) as advisories:
        await take(consumer)
        await take(consumer)
        assert await consumer.next(expires=1) is None
        advisory = await advisories.next()
    assert isinstance(advisory, MaxDeliveriesAdvisory)
    assert (advisory.stream, advisory.consumer) == (stream.name, consumer.name)
    assert (advisory.stream_seq, advisory.deliveries) == (1, 2)
    assert advisory.id
    assert advisory.timestamp is not None
    assert abs(advisory.timestamp - datetime.now(UTC)) < timedelta(minutes=1)


async def test_terminated_with_its_reason(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 2)
    async with js.advisories(stream.name, kinds=[TerminatedAdvisory]) as advisories:
        await (await take(consumer)).term("no such customer")
        await (await take(consumer)).term()
        first, second = await advisories.next(), await advisories.next()
    assert isinstance(first, TerminatedAdvisory)
    assert (first.stream_seq, first.consumer_seq, first.deliveries) == (1, 1, 1)
    assert first.reason == "no such customer"
    assert isinstance(second, TerminatedAdvisory)
    assert (second.stream_seq, second.reason) == (2, "")


async def test_nak(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 1)
    async with js.advisories(stream.name, consumer.name) as advisories:
        await (await take(consumer)).nak()
        advisory = await advisories.next()
    assert isinstance(advisory, NakAdvisory)
    assert (advisory.stream_seq, advisory.consumer_seq, advisory.deliveries) == (1, 1, 1)


async def test_ack_metrics(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 1, sample_freq="100%")
    async with js.advisories(stream.name, consumer.name, kinds=[AckMetric]) as advisories:
        message = await take(consumer)
        await asyncio.sleep(0.05)  # what is measured
        await message.ack()
        metric = await advisories.next()
    assert isinstance(metric, AckMetric)
    assert (metric.stream_seq, metric.consumer_seq, metric.deliveries) == (1, 1, 1)
    assert metric.ack_time is not None
    assert 0.05 <= metric.ack_time < 5


async def test_actions_of_streams_and_consumers_in_order(js: jetspark.JetStream) -> None:
    name = unique()
    async with js.advisories(name, kinds=[StreamActionAdvisory, ConsumerActionAdvisory]) as advisories:
        stream = await js.create_stream(StreamConfig(name=name, subjects=[name]))
        await js.update_stream(stream.config.replace(description="x"))
        await durable(stream)
        await stream.delete_consumer("worker")
        await stream.delete()
        got = [await advisories.next() for _ in range(5)]
    # Within each family the order is kept.
    of_stream = [one.action for one in got if isinstance(one, StreamActionAdvisory)]
    of_consumer = [one.action for one in got if isinstance(one, ConsumerActionAdvisory)]
    assert of_stream == [AdvisoryAction.CREATE, AdvisoryAction.MODIFY, AdvisoryAction.DELETE]
    assert of_consumer == [AdvisoryAction.CREATE, AdvisoryAction.DELETE]


async def test_pause_and_resume(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0)
    async with js.advisories(stream.name, kinds=[ConsumerPauseAdvisory]) as advisories:
        until = datetime.now(UTC) + timedelta(hours=1)
        await consumer.pause(until)
        paused = await advisories.next()
        await consumer.resume()
        resumed = await advisories.next()
    assert isinstance(paused, ConsumerPauseAdvisory)
    assert paused.paused
    assert paused.pause_until == until
    assert isinstance(resumed, ConsumerPauseAdvisory)
    assert not resumed.paused


async def test_pinned_and_unpinned(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(
        js, 1, priority_groups=["A"], priority_policy=PriorityPolicy.PINNED_CLIENT
    )
    kinds = [GroupPinnedAdvisory, GroupUnpinnedAdvisory]
    async with js.advisories(stream.name, consumer.name, kinds=kinds) as advisories:
        assert await consumer.next(expires=5, group="A") is not None
        pinned = await advisories.next()
        await consumer.unpin("A")
        unpinned = await advisories.next()
    assert isinstance(pinned, GroupPinnedAdvisory)
    assert pinned.group == "A"
    assert pinned.pinned_id
    assert isinstance(unpinned, GroupUnpinnedAdvisory)
    assert (unpinned.group, unpinned.reason) == ("A", "admin")


async def test_an_abandoned_batch(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream = await make(js, allow_atomic=True)
    async with js.advisories(stream.name, kinds=[BatchAbandonedAdvisory]) as advisories:
        headers = {"Nats-Batch-Id": "b1", "Nats-Batch-Sequence": "1"}
        await nc.request(f"{stream.name}.a", b"", headers=headers)
        # A hole in the numbers.
        await nc.publish(f"{stream.name}.a", b"", headers={**headers, "Nats-Batch-Sequence": "3"})
        advisory = await advisories.next()
    assert isinstance(advisory, BatchAbandonedAdvisory)
    assert (advisory.batch, advisory.reason) == ("b1", "incomplete")


async def test_audit_of_the_api_for_one_stream(js: jetspark.JetStream) -> None:
    stream, _ = await make_filled(js, 0)
    other = await make(js)
    async with js.advisories(stream.name, "second", kinds=[ApiAuditAdvisory]) as advisories:
        await durable(other, durable_name="second")
        await durable(stream, durable_name="first")
        await durable(stream, durable_name="second")
        audit = await advisories.next()
    assert isinstance(audit, ApiAuditAdvisory)
    assert audit.subject == f"$JS.API.CONSUMER.CREATE.{stream.name}.second"
    assert json.loads(audit.request)["config"]["durable_name"] == "second"
    assert json.loads(audit.response)["name"] == "second"
    assert audit.client


async def test_leaders(cluster: Cluster) -> None:
    async with jetspark.connect(cluster.urls) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=unique(), subjects=[unique()], num_replicas=3))
        await durable(stream)
        kinds = [StreamLeaderAdvisory, ConsumerLeaderAdvisory]
        async with js.advisories(stream.name, kinds=kinds) as advisories:
            await js._api.request(f"STREAM.LEADER.STEPDOWN.{stream.name}")
            of_stream = await advisories.next(timeout=20)
            # Those of their creation may still be on their way.
            while not isinstance(of_stream, StreamLeaderAdvisory):
                of_stream = await advisories.next(timeout=20)
            await js._api.request(f"CONSUMER.LEADER.STEPDOWN.{stream.name}.worker")
            of_consumer = await advisories.next(timeout=20)
            while not isinstance(of_consumer, ConsumerLeaderAdvisory):
                of_consumer = await advisories.next(timeout=20)
        names = {node.name for node in cluster.servers}
        assert of_stream.leader in names
        assert of_stream.replicas is not None
        assert {of_stream.leader, *(peer.name for peer in of_stream.replicas)} == names
        assert of_consumer.leader in names
        assert of_consumer.consumer == "worker"
        await stream.delete()


@pytest.mark.slow
async def test_a_lost_majority(own_cluster: Cluster) -> None:
    """Takes as long as the server needs to be sure: about 20 s."""
    async with jetspark.connect(own_cluster.urls) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=unique(), subjects=[unique()], num_replicas=3))
        await durable(stream)
    leader = own_cluster.leader_of(stream.name)
    assert leader is not None
    async with jetspark.connect(leader.url, ignore_discovered=True) as nc:
        kinds = [StreamQuorumLostAdvisory, ConsumerQuorumLostAdvisory]
        async with nc.jetstream().advisories(stream.name, kinds=kinds) as advisories:
            for index, node in enumerate(own_cluster.servers):
                if node is not leader:
                    own_cluster.kill(index)
            got: dict[type[Advisory], Advisory] = {}
            while len(got) < 2:
                advisory = await advisories.next(timeout=60)
                got[type(advisory)] = advisory
    of_stream, of_consumer = got[StreamQuorumLostAdvisory], got[ConsumerQuorumLostAdvisory]
    assert isinstance(of_stream, StreamQuorumLostAdvisory)
    assert isinstance(of_consumer, ConsumerQuorumLostAdvisory)
    assert of_consumer.consumer == "worker"
    names = {node.name for node in own_cluster.servers}
    assert {peer.name for peer in of_stream.replicas or []} == names
    assert {peer.name for peer in of_consumer.replicas or []} == names


# What is listened to


@pytest.mark.parametrize(
    ("stream", "consumer", "kinds", "subjects"),
    [
        (None, None, None, ["$JS.EVENT.ADVISORY.>", "$JS.EVENT.METRIC.>"]),
        (
            "S",
            None,
            None,
            [
                "$JS.EVENT.ADVISORY.CONSUMER.*.S.*",
                "$JS.EVENT.METRIC.CONSUMER.*.S.*",
                "$JS.EVENT.ADVISORY.STREAM.*.S",
            ],
        ),
        ("S", "C", None, ["$JS.EVENT.ADVISORY.CONSUMER.*.S.C", "$JS.EVENT.METRIC.CONSUMER.*.S.C"]),
        (None, None, (NakAdvisory,), ["$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.*.*"]),
        ("S", "C", (NakAdvisory, TerminatedAdvisory), ["$JS.EVENT.ADVISORY.CONSUMER.*.S.C"]),
        ("S", None, (AckMetric,), ["$JS.EVENT.METRIC.CONSUMER.ACK.S.*"]),
        ("S", None, (StreamActionAdvisory,), ["$JS.EVENT.ADVISORY.STREAM.*.S"]),
        ("S", None, (StreamQuorumLostAdvisory,), ["$JS.EVENT.ADVISORY.STREAM.QUORUM_LOST.S"]),
        ("S", None, (ApiAuditAdvisory,), ["$JS.EVENT.ADVISORY.API"]),
    ],
)
def test_subjects(
    stream: str | None, consumer: str | None, kinds: tuple[type[Advisory], ...] | None, subjects: list[str]
) -> None:
    assert feed_subjects(stream, consumer, kinds) == subjects


async def test_everything_of_the_account(js: jetspark.JetStream) -> None:
    async with js.advisories() as advisories:
        stream, consumer = await make_filled(js, 1)
        await (await take(consumer)).nak()
        got: set[type[Advisory]] = set()
        # Other tests of this server speak on these subjects too.
        while not got.issuperset(
            {StreamActionAdvisory, ConsumerActionAdvisory, NakAdvisory, ApiAuditAdvisory}
        ):
            advisory = await advisories.next()
            if getattr(advisory, "stream", stream.name) == stream.name:
                got.add(type(advisory))
    assert NakAdvisory in got


async def test_only_what_was_asked_for(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 1)
    async with js.advisories(stream.name, kinds=[TerminatedAdvisory, MaxDeliveriesAdvisory]) as advisories:
        message = await take(consumer)
        await message.nak()
        await (await take(consumer)).term()
        # The nak came on the same subscription and before.
        assert isinstance(await advisories.next(), TerminatedAdvisory)


async def test_strangers_messages_are_ignored(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream = unique()
    subject = f"$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.{stream}.C"
    async with js.advisories(stream, kinds=[NakAdvisory]) as advisories:
        for body in (b"", b"hello", b"[]", b'{"type": 7}'):
            await nc.publish(subject, body)
        await nc.publish(subject, b'{"type": "x.nak", "stream": "S", "consumer": "C", "stream_seq": 9}')
        advisory = await advisories.next()
    assert isinstance(advisory, NakAdvisory)
    assert advisory.stream_seq == 9


async def test_kinds_of_the_future_are_generic(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream = unique()
    body = {"type": "io.nats.jetstream.advisory.v1.comet", "id": "1", "stream": stream, "tail": [1, 2]}
    async with js.advisories(stream) as advisories:
        await nc.publish(f"$JS.EVENT.ADVISORY.STREAM.COMET.{stream}", json.dumps(body).encode())
        advisory = await advisories.next()
    assert isinstance(advisory, GenericAdvisory)
    assert (advisory.type, advisory.id) == (body["type"], "1")
    assert advisory.extra == {"stream": stream, "tail": [1, 2]}


def test_a_known_kind_with_other_fields_is_generic() -> None:
    body = {"type": "io.nats.jetstream.advisory.v2.nak", "stream_seq": "seven"}
    advisory = decode_advisory(json.dumps(body).encode())
    assert isinstance(advisory, GenericAdvisory)
    assert advisory.extra["stream_seq"] == "seven"


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("stream_quorum_lost", {"stream": "S", "replicas": [{"name": "n1", "current": False, "active": 5}]}),
        (
            "consumer_quorum_lost",
            {"stream": "S", "consumer": "C", "replicas": [{"name": "n1", "offline": True}]},
        ),
    ],
)
def test_lost_quorum(kind: str, fields: dict[str, Any]) -> None:
    body = {"type": f"io.nats.jetstream.advisory.v1.{kind}", "account": "A", **fields}
    advisory = decode_advisory(json.dumps(body).encode())
    assert isinstance(advisory, StreamQuorumLostAdvisory | ConsumerQuorumLostAdvisory)
    assert advisory.kind == kind
    assert (advisory.stream, advisory.account) == ("S", "A")
    assert advisory.replicas is not None
    assert advisory.replicas[0].name == "n1"
    assert advisory.extra == {}


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b"{}", b'{"type": 1}'])
def test_what_is_no_advisory(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="not an advisory"):
        decode_advisory(body)


def test_every_kind_has_its_own_name_and_subjects() -> None:
    assert len({one.kind for one in KINDS}) == len(KINDS)
    events = [event for one in KINDS for event in one.events]
    assert len(set(events)) == len(events)


async def test_misuse(js: jetspark.JetStream) -> None:
    with pytest.raises(InvalidArgument, match="needs the stream"):
        js.advisories(consumer="C")
    with pytest.raises(InvalidArgument, match="kinds"):
        js.advisories(kinds=[])
    wrong: Any = "nak"
    with pytest.raises(InvalidArgument, match="classes of advisories"):
        js.advisories(kinds=[wrong])
    with pytest.raises(InvalidArgument, match="stream"):
        js.advisories("a.b")
    advisories = js.advisories("S")
    with pytest.raises(InvalidArgument, match="entered"):
        await advisories.next()
    async with advisories:
        with pytest.raises(InvalidArgument, match="once"):
            await advisories.__aenter__()


async def test_its_end(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream, consumer = await make_filled(js, 1)
    async with js.advisories(stream.name, kinds=[NakAdvisory]) as advisories:
        with pytest.raises(RequestTimeout):
            await advisories.next(timeout=0.01)
        await (await take(consumer)).nak()
        got: list[Advisory] = []
        async for advisory in advisories:
            got.append(advisory)
            await advisories.close()
    assert len(got) == 1
    assert advisories.closed
    with pytest.raises(ConnectionClosed):
        await advisories.next()
    async with js.advisories(stream.name) as advisories:
        await nc.close()
        assert [one async for one in advisories] == []


async def test_a_reader_that_falls_behind_loses_nothing(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    stream = unique()
    count = 3000
    async with js.advisories(stream, kinds=[NakAdvisory]) as advisories:
        for number in range(count):
            body = b'{"type":"x.nak","stream":"S","consumer":"C","stream_seq":%d}' % number
            await nc.publish(f"$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.{stream}.C", body)
        await nc.flush()
        got = [await advisories.next() for _ in range(count)]
    assert [one.stream_seq for one in got if isinstance(one, NakAdvisory)] == list(range(count))


# Dead letters


async def test_dead_letters_of_every_kind(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await js.publish(
        f"{stream.name}.eu",
        b"poison",
        headers={"Trace": "7", "Nats-Expected-Stream": stream.name},
        msg_id="m1",
    )
    await js.publish(f"{stream.name}.eu", b"bad")
    consumer = await durable(stream, max_deliver=2, ack_wait=0.1)
    dead = await make(js)
    async with js.dead_letters(stream.name, consumer.name) as letters:
        # Together: a second request could get the first message once more.
        _, bad = await consumer.fetch(2, expires=5)
        await bad.term("malformed")
        terminated = await letters.next()
        await take(consumer)
        assert await consumer.next(expires=1) is None
        exhausted = await letters.next()
        assert terminated.reason == "malformed"
        assert terminated.stored is not None
        assert terminated.stored.data == b"bad"
        assert exhausted.reason == "max_deliver"
        assert exhausted.advisory.deliveries == 2
        assert exhausted.stored is not None
        assert exhausted.stored.sequence == 1
        ack = await exhausted.republish(f"{dead.name}.orders", headers={"By": "test"})
        # The same letter again is a duplicate.
        assert (await exhausted.republish(f"{dead.name}.orders")).duplicate
    message = await dead.get_msg(ack.seq)
    assert (message.subject, message.data) == (f"{dead.name}.orders", b"poison")
    headers = dict(message.headers.items())
    assert headers.pop("Nats-Msg-Id") == f"{stream.name}.worker.1.2"
    assert headers == {
        "Trace": "7",
        "By": "test",
        "Dead-Letter-Stream": stream.name,
        "Dead-Letter-Subject": f"{stream.name}.eu",
        "Dead-Letter-Sequence": "1",
        "Dead-Letter-Consumer": "worker",
        "Dead-Letter-Deliveries": "2",
        "Dead-Letter-Reason": "max_deliver",
    }


async def test_a_letter_may_go_back_to_its_own_stream(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await js.publish(f"{stream.name}.a", b"again", msg_id="m1")
    consumer = await durable(stream, max_deliver=1, ack_wait=0.1)
    async with js.dead_letters(stream.name) as letters:
        await take(consumer)
        assert await consumer.next(expires=1) is None
        letter = await letters.next()
        ack = await letter.republish(f"{stream.name}.a")
    # Not swallowed as a duplicate of the first one.
    assert (ack.seq, ack.duplicate) == (2, False)
    assert (await take(consumer)).data == b"again"


async def nothing_unacked(consumer: jetspark.Consumer) -> bool:
    return (await consumer.info()).num_ack_pending == 0


async def test_without_terminated_ones(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 2, max_deliver=1, ack_wait=0.1)
    async with js.dead_letters(stream.name, terminated=False) as letters:
        await (await take(consumer)).term()
        await eventually(lambda: nothing_unacked(consumer))
        await take(consumer)
        assert await consumer.next(expires=1) is None
        letter = await letters.next()
    assert letter.advisory.stream_seq == 2
    assert "max_deliver" in repr(letter)


async def test_a_message_that_is_gone(js: jetspark.JetStream) -> None:
    stream = await make(js, retention=RetentionPolicy.WORK_QUEUE)
    await fill(js, stream, 1)
    consumer = await durable(stream)
    async with js.dead_letters(stream.name) as letters:
        await (await take(consumer)).term()
        async for letter in letters:
            assert letter.stored is None
            with pytest.raises(MessageNotFound, match="no longer stored"):
                await letter.republish("x")
            break
    assert letters.closed


async def test_a_letter_that_could_not_be_fetched_is_not_lost(
    js: jetspark.JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, consumer = await make_filled(js, 1)
    async with js.dead_letters(stream.name) as letters:
        await (await take(consumer)).term()
        request = type(js._api).request

        async def hang(*_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

        monkeypatch.setattr(type(js._api), "request", hang)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(letters.next(), 0.2)
        monkeypatch.setattr(type(js._api), "request", request)
        letter = await letters.next()
    assert letter.advisory.stream_seq == 1


async def test_a_stream_that_captures_advisories_keeps_them(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 1)
    kept = await js.create_stream(
        StreamConfig(name=unique(), subjects=[f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{stream.name}.*"])
    )
    await (await take(consumer)).term("why")
    reader = await kept.create_consumer(ConsumerConfig(ack_policy="none"))
    advisory = decode_advisory((await take(reader)).data)
    assert isinstance(advisory, TerminatedAdvisory)
    assert advisory.reason == "why"


# The blocking twin


@pytest.mark.parametrize("how", ["next", "iterate"])
def test_blocking(server: Server, how: str) -> None:
    with blocking.connect(server.url) as nc:
        js = nc.jetstream()
        name = unique()
        stream = js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"]))
        dead = js.create_stream(StreamConfig(name=unique(), subjects=[f"dead.{name}"]))
        consumer = stream.create_consumer(ConsumerConfig(durable_name="worker"))
        js.publish(f"{name}.a", b"x")
        read: Callable[[Any], Any] = next if how == "iterate" else lambda source: source.next(timeout=20)
        with js.advisories(name, kinds=[TerminatedAdvisory]) as advisories, js.dead_letters(name) as letters:
            message = consumer.next(expires=5)
            assert message is not None
            message.term("bad")
            advisory = read(iter(advisories))
            assert isinstance(advisory, TerminatedAdvisory)
            assert advisory.reason == "bad"
            letter = read(iter(letters))
            assert isinstance(letter, blocking.DeadLetter)
            assert letter.stored is not None
            assert letter.republish(f"dead.{name}").stream == dead.name
            with pytest.raises(RequestTimeout):
                advisories.next(timeout=0.01)
        assert advisories.closed
        assert list(advisories) == []
        assert list(letters) == []


async def test_a_defect_in_reading_one_ends_the_feed_and_is_seen(
    js: jetspark.JetStream, nc: jetspark.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(data: bytes) -> None:
        raise LookupError("a defect")

    monkeypatch.setattr("jetspark.jetstream.advisory.feed.decode_advisory", broken)
    said: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))
    stream = await make(js)
    async with js.advisories(stream.name) as advisories:
        await nc.publish(f"$JS.EVENT.ADVISORY.STREAM.CREATED.{stream.name}", b"{}")
        with pytest.raises(ProtocolError, match="LookupError"):
            await advisories.next(timeout=60)
    (context,) = said
    assert isinstance(context["exception"], LookupError)
