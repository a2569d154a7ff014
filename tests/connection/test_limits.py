"""Limits: pending messages and bytes with their drop policy, max_payload, the control line."""

from __future__ import annotations

import asyncio

import pytest

import jetspark
from jetspark.connection import events as ev
from jetspark.errors import ConnectionLost, ControlLineExceeded, InvalidArgument, MaxPayloadExceeded
from jetspark.events import Disconnected, PublishDropped, Reconnected, ServerError, SlowConsumer
from support.helpers import eventually, unique
from support.recorder import Recorder


async def publish_numbers(nc: jetspark.Connection, subject: str, *numbers: int) -> None:
    for number in numbers:
        await nc.publish(subject, b"%d" % number)
    await nc.flush()


async def numbers(sub: jetspark.Subscription) -> list[int]:
    return [int((await sub.next()).data) for _ in range(sub.pending_messages)]


# Pending limits


async def test_past_the_message_limit_the_newest_are_dropped_and_counted(server) -> None:
    subject, events = unique("lim"), Recorder()
    async with jetspark.connect(server.url, listener=events) as nc:
        sub = await nc.subscribe(subject, pending_messages_limit=10)
        await publish_numbers(nc, subject, *range(25))
        assert (sub.pending_messages, sub.dropped) == (10, 15)
        (event,) = events.of(SlowConsumer)
        assert (event.subject, event.sid, event.pending_messages) == (subject, sub._sink.sid, 10)
        assert 1 <= event.dropped <= 15
        assert await numbers(sub) == list(range(10))
        assert sub.delivered == 10


async def test_one_event_an_episode(server) -> None:
    subject, events = unique("lim"), Recorder()
    async with jetspark.connect(server.url, listener=events) as nc:
        sub = await nc.subscribe(subject, pending_messages_limit=2)
        for start in (0, 10, 20):  # three rounds of one and the same episode
            await publish_numbers(nc, subject, *range(start, start + 4))
        assert (sub.dropped, len(events.of(SlowConsumer))) == (10, 1)
        assert await numbers(sub) == [0, 1]
        await publish_numbers(nc, subject, 30)  # there is room again: the episode is over
        assert (sub.dropped, len(events.of(SlowConsumer))) == (10, 1)
        await publish_numbers(nc, subject, 31, 32)
        assert (sub.dropped, len(events.of(SlowConsumer))) == (11, 2)
        assert events.of(SlowConsumer)[1].dropped == 11
        assert await numbers(sub) == [30, 31]


async def test_an_episode_that_ends_with_a_run_at_the_limit_is_told_from_the_next(server) -> None:
    # What was read is settled when the byte limit seems reached; the run that fits then ends the episode.
    subject, events = unique("lim"), Recorder()
    async with jetspark.connect(server.url, listener=events) as nc:
        sub = await nc.subscribe(subject, pending_bytes_limit=3000)
        for _ in range(2):
            for _ in range(3):
                await nc.publish(subject, b"x" * 1200)
            await nc.flush()
            await sub.next()
            await sub.next()
            await nc.publish(subject, b"x" * 2500)
            await nc.flush()
            await sub.next()
        assert (sub.dropped, len(events.of(SlowConsumer))) == (2, 2)


async def test_past_the_byte_limit_the_newest_are_dropped(server) -> None:
    subject, events = unique("lim"), Recorder()
    async with jetspark.connect(server.url, listener=events) as nc:
        sub = await nc.subscribe(subject, pending_bytes_limit=10_000)
        for _ in range(20):
            await nc.publish(subject, b"x" * 1000)
        await nc.flush()
        # Each takes 1000 bytes and its line of some 30.
        assert (sub.pending_messages, sub.dropped) == (9, 11)
        assert 9_000 < sub.pending_bytes <= 10_000
        event = await events.wait(SlowConsumer)
        assert (event.pending_messages, event.pending_bytes) == (9, sub.pending_bytes)
        for _ in range(9):
            await sub.next()
        assert (sub.pending_messages, sub.pending_bytes) == (0, 0)


@pytest.mark.parametrize("big_first", [True, False])
async def test_byte_limits_count_each_message_at_its_size(server, big_first: bool) -> None:
    subject, limit = unique("lim"), 20_000
    sizes = [15_000, *[10] * 500] if big_first else [*[10] * 500, 15_000]
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject, pending_bytes_limit=limit)
        for _ in range(5):
            for size in sizes:
                await nc.publish(subject, b"x" * size)
            await nc.flush()
        assert sub.pending_messages + sub.dropped == 5 * 501
        held = 0
        for _ in range(sub.pending_messages):
            held += len((await sub.next()).data)
        assert held <= limit
        assert sub.pending_bytes == 0


async def test_a_message_larger_than_the_byte_limit_never_enters(server) -> None:
    subject = unique("lim")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject, pending_bytes_limit=100)
        await nc.publish(subject, b"x" * 1000, headers={"A": "1"})
        await nc.flush()
        await publish_numbers(nc, subject, 1)
        assert (sub.dropped, await numbers(sub)) == (1, [1])


async def test_zero_means_no_limit(server) -> None:
    subject = unique("lim")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject, pending_messages_limit=0, pending_bytes_limit=0)
        await publish_numbers(nc, subject, *range(5_000))
        assert (sub.pending_messages, sub.dropped) == (5_000, 0)


async def test_a_slow_subscription_does_not_hurt_its_neighbour(server) -> None:
    subject = unique("lim")
    async with jetspark.connect(server.url) as nc:
        slow = await nc.subscribe(subject, pending_messages_limit=1)
        fast = await nc.subscribe(subject)
        await publish_numbers(nc, subject, *range(100))
        assert (slow.dropped, fast.dropped) == (99, 0)
        assert await numbers(fast) == list(range(100))


async def test_pending_bytes_settle_over_many_runs(server) -> None:
    subject = unique("lim")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        for number in range(300):  # a run each
            await publish_numbers(nc, subject, number)
        sizes = [len(f"MSG {subject} {sub._sink.sid} {len(str(n))}\r\n{n}\r\n") for n in range(300)]
        assert sub.pending_bytes == sum(sizes)
        assert await numbers(sub) == list(range(300))
        assert sub.pending_bytes == 0
        assert len(sub._sink._runs) == 0


async def test_a_limited_callback_drops_while_it_is_busy(server) -> None:
    subject, seen, gate = unique("lim"), [], asyncio.Event()

    async def callback(msg: jetspark.Msg) -> None:
        await gate.wait()
        seen.append(int(msg.data))

    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject, callback=callback, pending_messages_limit=5)
        await publish_numbers(nc, subject, 0)
        await publish_numbers(nc, subject, *range(1, 11))
        assert sub.dropped == 5
        gate.set()
        await sub.drain()
    assert seen == [0, 1, 2, 3, 4, 5]


# max_payload


async def test_headers_and_body_together_may_fill_max_payload_exactly(server) -> None:
    subject, headers = unique("lim"), {"Name": "value"}
    block = len(b"NATS/1.0\r\nName: value\r\n\r\n")
    async with jetspark.connect(server.url) as nc:
        limit = nc.max_payload
        assert limit == nc.server_info.max_payload == 1_048_576
        sub = await nc.subscribe(subject)
        for body, extra in ((limit + 1, None), (limit - block + 1, headers)):
            with pytest.raises(MaxPayloadExceeded) as caught:
                await nc.publish(subject, b"x" * body, headers=extra)
            assert (caught.value.size, caught.value.limit) == (limit + 1, limit)
            with pytest.raises(MaxPayloadExceeded):
                await nc.request(subject, b"x" * body, headers=extra)
        assert nc.stats.out_msgs == 0
        await nc.publish(subject, b"x" * limit)
        await nc.publish(subject, b"x" * (limit - block), headers=headers)
        assert len((await sub.next()).data) == limit
        assert len((await sub.next()).data) == limit - block


async def test_the_limit_is_that_of_the_server_connected_now(start_server) -> None:
    server, events = start_server(jetstream=False, config="max_payload: 1000"), Recorder()
    async with jetspark.connect(server.url, listener=events) as nc:
        assert nc.max_payload == 1000
        with pytest.raises(MaxPayloadExceeded):
            await nc.publish("a", b"x" * 1001)
        server.reload("max_payload: 2000")
        await nc.force_reconnect()
        assert nc.max_payload == 2000
        sub = await nc.subscribe("a")
        await nc.publish("a", b"x" * 2000)
        assert len((await sub.next()).data) == 2000
        with pytest.raises(MaxPayloadExceeded):
            await nc.publish("a", b"x" * 2001)
        assert events.of(ServerError) == []


async def test_what_waits_and_is_too_large_for_the_next_server_is_dropped_alone(start_server) -> None:
    server, events = start_server(jetstream=False, config="max_payload: 4000"), Recorder()
    async with jetspark.connect(server.url, listener=events) as nc:
        sub = await nc.subscribe("a.>")
        await nc.flush()
        server.reload("max_payload: 1000")
        server.kill()
        await events.wait(Disconnected)
        for size in (10, 1001, 1000, 2000, 0):
            await nc.publish(f"a.{size}", b"x" * size, reply="r")
            await nc.publish(f"a.h{size}", b"x" * size, headers={"A": "1"})
        server.restart()
        await events.wait(Reconnected)
        got = [(await sub.next()).subject for _ in range(5)]
        assert got == ["a.10", "a.h10", "a.1000", "a.0", "a.h0"]
        dropped = events.of(PublishDropped)
        assert [event.subject for event in dropped] == ["a.1001", "a.h1001", "a.h1000", "a.2000", "a.h2000"]
        assert all(isinstance(event.error, MaxPayloadExceeded) for event in dropped)
        await nc.flush()
        assert (nc.max_payload, nc.stats.reconnects, events.of(ServerError)) == (1000, 1, [])


# Control line


async def test_the_longest_control_lines_pass_and_longer_ones_are_refused(server) -> None:
    events = Recorder()
    async with jetspark.connect(server.url, listener=events) as nc:
        # PUB, blanks and room for two sizes: what is left of 4096 bytes.
        longest = unique("lim").ljust(4096 - 26 - 5, "x")
        sub = await nc.subscribe(longest)
        await nc.publish(longest, b"1")
        await nc.publish(longest, b"2", headers={"A": "1"})
        assert [(await sub.next()).data for _ in range(2)] == [b"1", b"2"]
        with pytest.raises(InvalidArgument, match="4096"):
            await nc.publish(longest + "x")
        with pytest.raises(InvalidArgument):
            await nc.publish("a", reply=longest)
        with pytest.raises(InvalidArgument):
            await nc.request(longest)
        with pytest.raises(InvalidArgument, match="4096"):
            await nc.subscribe("x" * 4090)
        with pytest.raises(InvalidArgument, match="4096"):
            await nc.subscribe("x" * 2000, queue="y" * 2100)
        await nc.flush()
        assert events.names() == ["Connected"]


async def test_multibyte_subjects_count_in_bytes(server) -> None:
    async with jetspark.connect(server.url) as nc:
        with pytest.raises(InvalidArgument, match="4096"):
            await nc.publish("ü" * 2050)
        await nc.flush()
        assert nc.last_error is None


async def test_a_subscription_refused_for_its_length_leaves_no_task_behind(server) -> None:
    async with jetspark.connect(server.url) as nc:
        for _ in range(10):
            await nc.subscribe("a")
        # Fits with a sid of one digit only.
        with pytest.raises(InvalidArgument):
            await nc.subscribe("x" * (4096 - len("SUB  1\r\n")), callback=print)
        assert nc._core.tasks == set()


SHORT_LINES = "max_control_line: 512"


@pytest.mark.parametrize("queue", ["", "q" * 300])
async def test_a_sub_line_that_the_server_can_not_take_ends_that_subscription_alone(
    start_server, queue
) -> None:
    server = start_server(jetstream=False, config=SHORT_LINES)
    recorder = Recorder()
    async with jetspark.connect(server.url, listener=recorder) as nc:
        other = await nc.subscribe("other")
        # The server's limit is for what follows the verb: 512 bytes pass.
        fits = await nc.subscribe("f" * 510)
        await nc.flush()
        poison = await nc.subscribe("p" * (602 - len(queue)), queue=queue)
        heard: list[bytes] = []
        second = await nc.subscribe("s" * 600, callback=lambda message: heard.append(message.data))
        with pytest.raises(ControlLineExceeded) as caught:
            await anext(poison)
        await recorder.wait(ev.SubscriptionRefused, 2)
        await recorder.wait(ev.Reconnected)
        for sub in (other, fits):
            await nc.publish(sub.subject, b"x")
            assert (await sub.next()).data == b"x"
        assert (caught.value.subject, caught.value.size) == (poison.subject, 602 + bool(queue) + 2)
        assert "max_control_line" in str(caught.value)
        assert second.closed
        links = nc.stats.reconnects
        await nc.force_reconnect()
        await nc.flush()
        assert nc.stats.reconnects == links + 1
    refused = [event.subject for event in recorder.of(ev.SubscriptionRefused)]
    assert refused == [poison.subject, second.subject]


async def test_a_publish_line_that_the_server_can_not_take_costs_no_subscription(start_server) -> None:
    server = start_server(jetstream=False, config=SHORT_LINES)
    recorder = Recorder()
    async with jetspark.connect(server.url, listener=recorder) as nc:
        subs = [await nc.subscribe("s" * size) for size in (1, 400, 510)]
        await nc.flush()
        await nc.publish("p" * 600, b"x")
        await recorder.wait(ev.Reconnected)
        for sub in subs:
            await nc.publish(sub.subject, b"x")
            assert (await sub.next()).data == b"x"
    assert recorder.of(ev.ServerError)[0].message == "maximum control line exceeded"
    assert recorder.of(ev.SubscriptionRefused) == []


async def test_an_inbox_that_the_server_can_not_take_is_told_to_the_request(start_server) -> None:
    server = start_server(jetstream=False, config=SHORT_LINES)
    async with jetspark.connect(server.url, inbox_prefix="i" * 600) as nc:
        other = await nc.subscribe("other")
        with pytest.raises((ControlLineExceeded, ConnectionLost)):
            await nc.request("other", b"x", timeout=10)
        await eventually(lambda: nc.is_connected)
        await nc.publish("other", b"y")
        while (await other.next()).data != b"y":
            pass
