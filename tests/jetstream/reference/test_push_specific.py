"""The 'Push-specific' rows of the consumer reference, as the server sends them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from jetspark import AckPolicy, StorageType
from jetspark.errors import ApiError, InvalidArgument, RequestTimeout
from support.consuming import durable, fill, make, make_filled
from support.deliveries import EARLY, pushed
from support.helpers import eventually, unique

if TYPE_CHECKING:
    import jetspark


# DeliverSubject


async def test_a_deliver_subject_makes_the_server_push(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    stream = await make(js)
    await fill(js, stream, 3)
    sub = await nc.subscribe(unique("deliver"))
    consumer = await durable(stream, deliver_subject=sub.subject)
    assert consumer.config.is_push
    got = await pushed(sub, 3)
    assert [int(message.data) for message in got] == [0, 1, 2]
    # What arrives there has the subject it was stored under, and the ack subject as reply.
    assert {message.subject for message in got} == {f"{stream.name}.a"}
    assert all(message.reply.startswith("$JS.ACK.") for message in got)


async def test_nothing_is_pushed_while_nobody_listens(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    _, consumer = await make_filled(js, 3, deliver_subject=unique("deliver"))
    info = await consumer.info()
    assert (info.push_bound, info.delivered.consumer_seq) == (False, 0)
    sub = await nc.subscribe(str(consumer.config.deliver_subject))
    assert len(await pushed(sub, 3)) == 3
    assert (await consumer.info()).push_bound


@pytest.mark.parametrize("subject", ["a.*", "a.>", "a b", ""])
async def test_a_deliver_subject_must_be_one_subject(js: jetspark.JetStream, subject: str) -> None:
    stream = await make(js)
    if not subject:
        assert not (await durable(stream, deliver_subject=subject)).config.is_push
        return
    with pytest.raises(InvalidArgument, match="deliver_subject"):
        await durable(stream, deliver_subject=subject)


async def test_a_deliver_subject_that_the_stream_captures_is_refused(js: jetspark.JetStream) -> None:
    stream = await make(js)
    with pytest.raises(ApiError, match="cycle"):
        await durable(stream, deliver_subject=f"{stream.name}.loop")


# DeliverGroup


async def test_a_deliver_group_shares_the_messages(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream = await make(js)
    deliver = unique("deliver")
    members = [await nc.subscribe(deliver, queue="workers") for _ in range(3)]
    await nc.flush()
    await durable(stream, deliver_subject=deliver, deliver_group="workers", ack_policy=AckPolicy.NONE)
    await fill(js, stream, 90)

    def all_there() -> bool:
        return sum(sub.pending_messages for sub in members) == 90

    await eventually(all_there)
    shares = [[int((await sub.next()).data) for _ in range(sub.pending_messages)] for sub in members]
    assert sorted(number for share in shares for number in share) == list(range(90))
    assert all(shares)


async def test_a_deliver_group_is_not_served_without_its_members(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    deliver = unique("deliver")
    _, consumer = await make_filled(js, 1, deliver_subject=deliver, deliver_group="workers")
    plain = await nc.subscribe(deliver)
    await nc.flush()
    # Somebody listens, but nobody of the group.
    assert not (await consumer.info()).push_bound
    assert plain.pending_messages == 0
    member = await nc.subscribe(deliver, queue="workers")
    assert len(await pushed(member, 1)) == 1
    assert (await consumer.info()).push_bound


# FlowControl


async def test_flow_control_holds_the_server_until_it_is_answered(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    stream = await make(js, storage=StorageType.FILE)
    async with js.publisher() as publisher:
        for _ in range(300):
            await publisher.publish(f"{stream.name}.a", b"x" * 16_384)
    sub = await nc.subscribe(unique("deliver"))
    await durable(
        stream,
        deliver_subject=sub.subject,
        ack_policy=AckPolicy.NONE,
        flow_control=True,
        idle_heartbeat=0.2,
    )
    got, asked, stalled = 0, [], ""
    while not stalled:
        message = await sub.next(timeout=20)
        if message.status is None:
            got += 1
        elif message.reply:
            assert message.status == (100, "FlowControl Request")
            asked.append(message.reply)
        else:
            stalled = message.headers.get("Nats-Consumer-Stalled") or ""
    # Unanswered, it has stopped long before the end; its heartbeats repeat the question.
    assert 0 < got < 300
    assert stalled in asked
    while got < 300:
        await nc.publish(asked.pop() if asked else stalled)
        message = await sub.next(timeout=20)
        if message.status is None:
            got += 1
        elif message.reply:
            asked.append(message.reply)
    assert got == 300


async def test_flow_control_needs_heartbeats(js: jetspark.JetStream) -> None:
    stream = await make(js)
    with pytest.raises(InvalidArgument, match="idle_heartbeat"):
        await durable(stream, deliver_subject=unique("deliver"), flow_control=True)


# IdleHeartbeat


async def test_idle_heartbeats_are_statuses_100_without_a_reply(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    stream = await make(js)
    await fill(js, stream, 2)
    sub = await nc.subscribe(unique("deliver"))
    began = time.monotonic()
    await durable(stream, deliver_subject=sub.subject, idle_heartbeat=0.25)
    await pushed(sub, 2)
    for _ in range(3):
        heartbeat = await sub.next(timeout=20)
        assert heartbeat.status == (100, "Idle Heartbeat")
        assert heartbeat.reply == ""
        assert heartbeat.data == b""
        assert heartbeat.headers["Nats-Last-Consumer"] == "2"
        assert heartbeat.headers["Nats-Last-Stream"] == "2"
    assert time.monotonic() - began >= 3 * 0.25 - EARLY


async def test_without_idle_heartbeat_it_is_silent(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream = await make(js)
    sub = await nc.subscribe(unique("deliver"))
    await durable(stream, deliver_subject=sub.subject)
    with pytest.raises(RequestTimeout):
        await sub.next(timeout=0.5)


async def test_an_idle_heartbeat_has_a_minimum(js: jetspark.JetStream) -> None:
    stream = await make(js)
    with pytest.raises(InvalidArgument, match=r"0\.1"):
        await durable(stream, deliver_subject=unique("deliver"), idle_heartbeat=0.05)


# RateLimit


async def test_a_rate_limit_holds(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    burst = 4096
    # The server lets one message of the largest size pass at once.
    stream = await make(js, max_msg_size=burst)
    await fill(js, stream, 40, size=1000)
    sub = await nc.subscribe(unique("deliver"))
    bits = 320_000
    began = time.monotonic()
    await durable(stream, deliver_subject=sub.subject, ack_policy=AckPolicy.NONE, rate_limit_bps=bits)
    got = await pushed(sub, 40)
    took = time.monotonic() - began
    sent = sum(len(message.subject) + len(message.reply) + len(message.data) for message in got)
    due = (sent - burst) * 8 / bits
    assert due > 0.9
    assert took >= 0.9 * due


async def test_a_rate_limit_is_for_push_consumers(js: jetspark.JetStream) -> None:
    stream = await make(js)
    with pytest.raises(InvalidArgument, match="push consumers"):
        await durable(stream, rate_limit_bps=1000)


# HeadersOnly


@pytest.mark.parametrize("dispatch", ["push", "pull"])
async def test_headers_only_leaves_the_size_in_place_of_the_body(
    js: jetspark.JetStream, nc: jetspark.Connection, dispatch: str
) -> None:
    stream = await make(js)
    await js.publish(f"{stream.name}.a", b"x" * 321, headers={"Kind": "big"})
    await js.publish(f"{stream.name}.a", b"")
    if dispatch == "push":
        sub = await nc.subscribe(unique("deliver"))
        await durable(stream, deliver_subject=sub.subject, headers_only=True)
        messages: list[Any] = list(await pushed(sub, 2))
    else:
        consumer = await durable(stream, headers_only=True)
        messages = list(await consumer.fetch(2))
    assert [message.data for message in messages] == [b"", b""]
    assert [message.headers["Nats-Msg-Size"] for message in messages] == ["321", "0"]
    assert messages[0].headers["Kind"] == "big"


# Dispatch type push


async def test_a_push_consumer_redelivers_by_itself(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream = await make(js)
    await fill(js, stream, 1)
    sub = await nc.subscribe(unique("deliver"))
    began = time.monotonic()
    await durable(stream, deliver_subject=sub.subject, backoff=[0.2, 0.4], max_deliver=3)
    times = []
    for number in (1, 2, 3):
        (message,) = await pushed(sub, 1)
        times.append(time.monotonic())
        assert message.reply.split(".")[4] == str(number)
    # From the beginning: one that we saw late shortens the pause behind it.
    assert times[1] - began >= 0.2 - EARLY
    assert times[2] - began >= 0.2 + 0.4 - EARLY
    await asyncio.sleep(0.6)  # were there a fourth, it would have come
    assert sub.pending_messages == 0


async def test_pull_fields_and_push_fields_do_not_mix(js: jetspark.JetStream) -> None:
    stream = await make(js)
    for field, value in (("flow_control", True), ("idle_heartbeat", 1.0), ("rate_limit_bps", 1)):
        with pytest.raises(InvalidArgument, match=field):
            await durable(stream, **{field: value})
