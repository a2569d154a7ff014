"""Push consumers on the real server (ADR-15): acks, heartbeats, gaps, flow control and limits."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

import jetspark
from jetspark import ConsumerConfig, PushSubscription
from jetspark.errors import (
    ConsumerGap,
    HandlerFailed,
    InvalidArgument,
    MissedHeartbeat,
    PermissionViolationError,
    RequestTimeout,
)
from jetspark.events import CallbackFailed, ConsumerDisturbed, SlowConsumer
from support.consuming import fill, make, numbers
from support.frame_proxy import FrameProxy
from support.helpers import eventually, unique
from support.lossy_proxy import LossyProxy
from support.pushing import NONE, Errors, fill_large, lose_one, send_status, take
from support.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from conftest import StartServer
    from jetspark import Message
    from jetspark.server import Server


COUNT = int(os.environ.get("JETSPARK_PUSH_MESSAGES", "50000"))


@pytest_asyncio.fixture
async def lossy(server: Server) -> AsyncIterator[tuple[LossyProxy, jetspark.JetStream]]:
    async with LossyProxy(server) as proxy, jetspark.connect(proxy.url) as nc:
        yield proxy, nc.jetstream()


# --- taking messages -----------------------------------------------------------------------------------


async def test_messages_come_in_order_with_their_metadata(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 100)
    async with await js.subscribe(f"{stream.name}.a") as sub:
        got: list[Message] = []
        async for message in sub:
            got.append(message)
            if len(got) == 100:
                break
        assert numbers(got) == list(range(100))
        assert [message.metadata.sequence.consumer for message in got] == list(range(1, 101))
        assert (sub.delivered, sub.pending) == (100, 0)


async def test_next_times_out_and_a_cancelled_one_loses_nothing(js: jetspark.JetStream) -> None:
    stream = await make(js)
    async with await js.subscribe(f"{stream.name}.a") as sub:
        with pytest.raises(RequestTimeout, match="within"):
            await sub.next(timeout=0.05)
        waiting = asyncio.ensure_future(sub.next(timeout=10))
        await asyncio.sleep(0)
        waiting.cancel()
        await fill(js, stream, 1)
        assert numbers([await sub.next()]) == [0]


async def test_a_subscription_with_a_callback_can_not_be_iterated(js: jetspark.JetStream) -> None:
    stream = await make(js)
    async with await js.subscribe(f"{stream.name}.a", callback=print) as sub:
        with pytest.raises(InvalidArgument, match="has a callback"):
            await sub.next()
    with pytest.raises(InvalidArgument):
        await js.subscribe(f"{stream.name}.a", callback=3)  # type: ignore[arg-type]


# --- acks ----------------------------------------------------------------------------------------------


async def ack_floor(sub: PushSubscription) -> int:
    return (await sub.consumer_info()).ack_floor.stream_seq


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_callback_acks_when_it_returns(js: jetspark.JetStream, kind: str) -> None:
    stream = await make(js)
    await fill(js, stream, 10)
    seen: list[bool] = []

    async def slow(message: Message) -> None:
        await asyncio.sleep(0)
        seen.append(message.is_acked)

    def quick(message: Message) -> None:
        seen.append(message.is_acked)

    async with await js.subscribe(f"{stream.name}.a", callback=slow if kind == "async" else quick) as sub:
        await eventually(lambda: reached(sub, 10))
    assert seen == [False] * 10


async def reached(sub: PushSubscription, floor: int) -> bool:
    return await ack_floor(sub) == floor


async def test_with_manual_ack_acking_is_up_to_the_callback(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 4)
    got: list[Message] = []
    sub = await js.subscribe(f"{stream.name}.a", callback=got.append, manual_ack=True)
    await eventually(lambda: len(got) == 4)
    assert (await sub.consumer_info()).num_ack_pending == 4
    await got[0].ack()
    await eventually(lambda: reached(sub, 1))
    await sub.unsubscribe()


async def test_without_a_callback_nothing_is_acked(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 3)
    async with await js.subscribe(f"{stream.name}.a") as sub:
        assert not any(message.is_acked for message in await take(sub, 3))
        assert (await sub.consumer_info()).num_ack_pending == 3


async def test_what_the_callback_acked_otherwise_stays_so(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 1)
    deliveries: list[int] = []

    async def nak_once(message: Message) -> None:
        deliveries.append(message.metadata.num_delivered)
        if len(deliveries) == 1:
            await message.nak()

    async with await js.subscribe(f"{stream.name}.a", callback=nak_once) as sub:
        await eventually(lambda: reached(sub, 1))
    assert deliveries == [1, 2]


@pytest.mark.parametrize("listens", [True, False])
async def test_a_callback_that_raises_does_not_ack_and_the_next_message_comes(
    server: Server, listens: bool
) -> None:
    events, errors, calls = Recorder(), Errors(), []

    def handle(message: Message) -> None:
        calls.append((int(message.data), message.metadata.num_delivered))
        if calls[-1] == (0, 1):
            raise ZeroDivisionError("oops")

    async with jetspark.connect(server.url, listener=events) as nc:
        js = nc.jetstream()
        stream = await make(js)
        await fill(js, stream, 2)
        sub = await js.subscribe(
            f"{stream.name}.a",
            callback=handle,
            config=ConsumerConfig(ack_wait=2),
            on_error=errors if listens else None,
        )
        await eventually(lambda: reached(sub, 2))
        await sub.unsubscribe()
    assert calls == [(0, 1), (1, 1), (0, 2)]
    if listens:
        (failure,) = await errors.of(HandlerFailed)
        assert isinstance(failure.error, ZeroDivisionError)
        assert events.of(CallbackFailed) == []
    else:
        assert isinstance(events.of(CallbackFailed)[0].error, ZeroDivisionError)


async def test_ack_none_makes_acks_no_ops(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 2)
    async with await js.subscribe(f"{stream.name}.a", config=NONE) as sub:
        first, second = await take(sub, 2)
        await first.ack()
        await second.nak()
        assert [first.is_acked, second.is_acked] == [False, False]
        with pytest.raises(InvalidArgument, match="pull consumers"):
            await first.ack_next()


# --- heartbeats ----------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_heartbeats_keep_the_alarm_quiet_and_never_reach_the_user(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    stream, errors = await make(js), Errors()
    sub = await js.subscribe(f"{stream.name}.a", idle_heartbeat=0.5, on_error=errors, alarm_factor=12.0)
    spy = await nc.subscribe(sub.deliver_subject)
    # Without them it would come after twelve.
    for _ in range(14):
        assert (await spy.next()).status == (100, "Idle Heartbeat")
    assert (sub.pending, sub.delivered, errors) == (0, 0, [])
    await sub.unsubscribe()


@pytest.mark.parametrize(("factor", "after"), [(3.0, 0.6), (1.5, 0.3)])
async def test_silence_raises_the_alarm_at_three_heartbeats_or_as_set(
    js: jetspark.JetStream, factor: float, after: float
) -> None:
    stream, errors = await make(js), Errors()
    sub = await js.subscribe(f"{stream.name}.a", idle_heartbeat=0.2, on_error=errors, alarm_factor=factor)
    # The server does not tell a push subscription that its consumer was deleted; silence does.
    await js.delete_consumer(stream.name, sub.consumer_name)
    missed = await errors.of(MissedHeartbeat, count=2)
    assert after <= missed[0].silence < after + 5
    assert missed[0].heartbeat == 0.2
    assert not sub.closed
    await sub.unsubscribe()


async def test_without_a_listener_the_alarm_is_an_event(server: Server) -> None:
    events = Recorder()
    async with jetspark.connect(server.url, listener=events) as nc:
        js = nc.jetstream()
        stream = await make(js)
        sub = await js.subscribe(f"{stream.name}.a", idle_heartbeat=0.1)
        await js.delete_consumer(stream.name, sub.consumer_name)
        event = await events.wait(ConsumerDisturbed)
        assert event.subject == f"{stream.name}.a"
        assert isinstance(event.error, MissedHeartbeat)


@pytest.mark.slow
async def test_a_slow_reader_raises_no_alarm(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream, errors = await make(js), Errors()
    await fill(js, stream, 3)
    sub = await js.subscribe(f"{stream.name}.a", idle_heartbeat=0.5, on_error=errors, alarm_factor=12.0)
    spy = await nc.subscribe(sub.deliver_subject)
    await sub.next()
    for _ in range(14):
        await spy.next()
    assert (sub.pending, errors) == (2, [])
    await sub.unsubscribe()


@pytest.mark.parametrize("factor", [1.0, 0.0, -1.0])
async def test_the_factor_must_leave_room_for_one_late_heartbeat(
    js: jetspark.JetStream, factor: float
) -> None:
    stream = await make(js)
    with pytest.raises(InvalidArgument) as caught:
        await js.subscribe(f"{stream.name}.a", idle_heartbeat=1.0, alarm_factor=factor)
    assert caught.value.field == "alarm_factor"


# --- gaps ----------------------------------------------------------------------------------------------


async def test_a_lost_message_is_noticed_by_the_next_one(
    js: jetspark.JetStream, lossy: tuple[LossyProxy, jetspark.JetStream]
) -> None:
    proxy, lossy_js = lossy
    stream, errors = await make(js), Errors()
    await fill(js, stream, 2)
    sub = await lossy_js.subscribe(f"{stream.name}.a", on_error=errors)
    await take(sub, 2)
    await lose_one(proxy, js, sub, b"2")
    await js.publish(sub.subject, b"3")
    assert numbers(await take(sub, 1)) == [3]
    (gap,) = errors
    assert isinstance(gap, ConsumerGap)
    assert (gap.expected, gap.received, gap.sequence) == (3, 4, 4)


async def test_a_lost_message_is_noticed_by_a_heartbeat(
    js: jetspark.JetStream, lossy: tuple[LossyProxy, jetspark.JetStream]
) -> None:
    proxy, lossy_js = lossy
    stream, errors = await make(js), Errors()
    await fill(js, stream, 1)
    sub = await lossy_js.subscribe(f"{stream.name}.a", idle_heartbeat=1.0, on_error=errors, alarm_factor=20.0)
    await take(sub, 1)
    await lose_one(proxy, js, sub, b"1")
    (gap,) = await errors.of(ConsumerGap)
    assert (gap.expected, gap.received, gap.sequence) == (2, 3, 2)
    await js.publish(sub.subject, b"2")
    assert numbers(await take(sub, 1)) == [2]
    assert len(errors) == 1


@pytest.mark.parametrize("lost", [[1, 5], [1, 2, 3, 9, 30, 31, 99], list(range(1, 100, 2))])
async def test_every_lost_message_is_told_of(server: Server, js: jetspark.JetStream, lost: list[int]) -> None:
    stream, errors = await make(js), Errors()
    await fill(js, stream, 100)
    missing = set(lost)

    def loses(frame: bytes) -> bool:
        found = re.match(rb"MSG \S+ \S+ \$JS\.ACK\.\S+?\.1\.\d+\.(\d+)\.", frame)
        return found is not None and int(found[1]) in missing

    async with FrameProxy(server) as proxy, jetspark.connect(proxy.url) as nc:
        proxy.lose_down = loses
        sub = await nc.jetstream().subscribe(f"{stream.name}.a", config=NONE, on_error=errors)
        got = await take(sub, 100 - len(lost))
        assert [message.metadata.sequence.consumer for message in got] == sorted(set(range(1, 101)) - missing)
        gaps = [error for error in errors if isinstance(error, ConsumerGap)]
        assert [seq for gap in gaps for seq in range(gap.expected, gap.received)] == lost
        assert len(gaps) == len(errors)
        await sub.unsubscribe()


async def test_members_of_a_queue_see_no_gaps(js: jetspark.JetStream) -> None:
    stream, errors = await make(js), Errors()
    subs = [await js.subscribe(f"{stream.name}.a", queue="q", on_error=errors) for _ in range(2)]
    await fill(js, stream, 200)
    await eventually(lambda: sum(sub.pending for sub in subs) == 200)
    assert all(sub.pending for sub in subs)
    assert errors == []
    for sub in reversed(subs):
        await sub.unsubscribe()


async def test_redeliveries_are_no_gap(js: jetspark.JetStream) -> None:
    stream, errors = await make(js), Errors()
    await fill(js, stream, 4)
    config = ConsumerConfig(ack_wait=0.2)
    async with await js.subscribe(f"{stream.name}.a", config=config, on_error=errors) as sub:
        got = await take(sub, 10)
        assert [message.metadata.sequence.consumer for message in got] == list(range(1, 11))
        assert errors == []


# --- flow control --------------------------------------------------------------------------------------

WINDOW = 32 * 1_048_576
"""What the server sends ahead at most."""


async def test_flow_control_is_answered_at_its_place_in_the_buffer_and_once(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    stream = await fill_large(js, 300, 16_384)
    answers = await nc.subscribe(f"$JS.FC.{stream.name}.>")
    sub = await js.subscribe(f"{stream.name}.a", config=NONE, idle_heartbeat=0.1, flow_control=True)
    spy = await nc.subscribe(sub.deliver_subject)
    # The server has stopped, and its heartbeats say what it waits for.
    while not (stalled := (await spy.next()).headers.get("Nats-Consumer-Stalled")):
        pass
    held = sub.pending
    assert 0 < held < 300
    assert answers.pending_messages == 0
    position = sub._started.flow.next_answer
    assert position is not None
    assert 0 < position <= held
    await take(sub, position)
    await nc.flush()
    # Taken is not yet asked for what comes behind it.
    assert answers.pending_messages == 0
    while spy.pending_messages:
        await spy.next()
    (following,) = await take(sub, 1)
    assert int(following.data) == position
    answer = await answers.next()
    assert (answer.subject, answer.data) == (stalled, b"")
    rest = await take(sub, 300 - position - 1)
    assert numbers(rest) == list(range(position + 1, 300))
    await nc.flush()
    subjects = [answer.subject]
    while answers.pending_messages:
        subjects.append((await answers.next()).subject)
    # Once, and again for each heartbeat that the server had sent before it read the answer.
    asked = Counter(set(subjects))
    while spy.pending_messages:
        asked[(await spy.next()).headers.get("Nats-Consumer-Stalled")] += 1
    assert Counter(subjects) <= asked
    await sub.unsubscribe()


async def test_a_reader_that_waits_has_flow_control_answered_at_once(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    stream = await make(js)
    sub = await js.subscribe(f"{stream.name}.a", idle_heartbeat=1.0, flow_control=True)
    prefix = unique("answer")
    waiting = asyncio.ensure_future(sub.next(timeout=10))
    await asyncio.sleep(0)
    answers = await nc.subscribe(f"{prefix}.>")
    send_status(nc, sub.deliver_subject, b"100 FlowControl Request", f"{prefix}.1")
    send_status(nc, sub.deliver_subject, b"100 FlowControl Request", f"{prefix}.1")
    assert (await answers.next()).subject == f"{prefix}.1"
    await nc.flush()
    assert answers.pending_messages == 0
    # Nobody waits: it is due when somebody comes.
    await fill(js, stream, 1)
    assert numbers([await waiting]) == [0]
    send_status(nc, sub.deliver_subject, b"100 FlowControl Request", f"{prefix}.2")
    await nc.flush()
    await nc.flush()
    assert answers.pending_messages == 0
    with pytest.raises(RequestTimeout):
        await sub.next(timeout=0.01)
    assert (await answers.next()).subject == f"{prefix}.2"
    await sub.unsubscribe()


async def test_a_request_that_was_lost_is_answered_from_the_stalled_heartbeat(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    stream = await fill_large(js, 400, 16_384)
    sub = await js.subscribe(f"{stream.name}.a", config=NONE, idle_heartbeat=0.1, flow_control=True)
    await eventually(lambda: sub._started.flow.next_answer)
    spy = await nc.subscribe(sub.deliver_subject)
    while not (await spy.next()).headers.get("Nats-Consumer-Stalled"):
        pass
    # What was asked on the old connection is void; the heartbeats on the new one ask again.
    await nc.force_reconnect()
    assert numbers(await take(sub, 400)) == list(range(400))
    await sub.unsubscribe()


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.timeout(90 + COUNT / 1_000)
async def test_a_slow_handler_neither_loses_nor_reorders_and_memory_stays_flat(
    js: jetspark.JetStream,
) -> None:
    """The full form: JETSPARK_PUSH_MESSAGES=1000000."""
    count, size = COUNT, 2_048
    stream = await fill_large(js, count, size)
    before, largest = resident(), 0
    expected, most, done = 0, 0, asyncio.Event()
    wrong: list[tuple[int, int]] = []
    errors = Errors()

    async def slow(message: Message) -> None:
        nonlocal expected, most, largest
        if int(message.data) != expected:
            wrong.append((expected, int(message.data)))
        expected += 1
        most = max(most, sub.pending)
        if expected % 100 == 0:
            await asyncio.sleep(0.001)
        if expected % 1_000 == 0:
            largest = max(largest, resident())
        if expected == count:
            done.set()

    sub = await js.subscribe(
        f"{stream.name}.a",
        callback=slow,
        config=NONE,
        idle_heartbeat=1.0,
        alarm_factor=20.0,
        flow_control=True,
        # Far below what comes ahead: with flow control nothing is dropped.
        pending_messages_limit=10,
        pending_bytes_limit=1_000,
        on_error=errors,
    )
    async with asyncio.timeout(30 + count / 2_000):
        await done.wait()
    assert (wrong, errors, sub.dropped, sub.pending) == ([], [], 0, 0)
    # The server stops at its window, whatever the number of messages.
    assert 10 < most <= WINDOW // size
    assert largest - before < 4 * WINDOW
    await sub.unsubscribe()
    await stream.delete()


async def test_an_answer_that_is_forbidden_is_raised(start_server: StartServer) -> None:
    guarded = start_server(
        name="nofc",
        config="""authorization { users = [
          { user: mute, password: pw, permissions: { publish: { deny: ["$JS.FC.>"] } } } ] }""",
    )
    async with jetspark.connect(guarded.url, user="mute", password="pw") as nc:
        js = nc.jetstream()
        stream = await fill_large(js, 300, 16_384)
        sub = await js.subscribe(f"{stream.name}.a", config=NONE, idle_heartbeat=1.0, flow_control=True)
        with pytest.raises(PermissionViolationError, match=r"\$JS\.FC"):
            await take(sub, 300)


# --- limits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [{"pending_messages_limit": 10}, {"pending_bytes_limit": 3_000}])
async def test_without_flow_control_the_newest_are_dropped_and_told(
    server: Server, limit: dict[str, int]
) -> None:
    events, errors = Recorder(), Errors()
    async with jetspark.connect(server.url, listener=events) as nc:
        js = nc.jetstream()
        stream = await make(js)
        await fill(js, stream, 100, size=200)
        sub = await js.subscribe(f"{stream.name}.a", config=NONE, on_error=errors, **limit)
        event = await events.wait(SlowConsumer)
        await eventually(lambda: sub.pending + sub.dropped == 100)
        assert event.subject == sub.deliver_subject
        kept = sub.pending
        assert 5 <= kept <= 15
        assert numbers(await take(sub, kept)) == list(range(kept))
        # Dropped here, not lost on the way.
        assert errors == []
        await fill(js, stream, 1, start=100)
        assert numbers(await take(sub, 1)) == [100]


async def test_limits_must_not_be_negative(js: jetspark.JetStream) -> None:
    stream = await make(js)
    with pytest.raises(InvalidArgument) as caught:
        await js.subscribe(f"{stream.name}.a", pending_bytes_limit=-1)
    assert caught.value.field == "pending_bytes_limit"
