"""Subscriptions against the real server: iterators, callbacks, queue groups and limits."""

from __future__ import annotations

import asyncio
import itertools

import pytest

import jetspark
from jetspark.errors import ConnectionClosed, InvalidArgument, RequestTimeout
from jetspark.events import CallbackFailed
from support.helpers import eventually, unique
from support.monitoring import subscriptions
from support.recorder import Recorder


async def publish_numbers(nc: jetspark.Connection, subject: str, *numbers: int) -> None:
    for number in numbers:
        await nc.publish(subject, b"%d" % number)
    await nc.flush()


async def take(sub: jetspark.Subscription, count: int) -> list[int]:
    return [int((await sub.next()).data) for _ in range(count)]


# Iterators


async def test_async_for_yields_in_order_until_the_limit(server) -> None:
    subject = unique("sub")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject, max_messages=5)
        await publish_numbers(nc, subject, *range(8))
        assert [int(msg.data) async for msg in sub] == [0, 1, 2, 3, 4]
        assert sub.closed
        assert (sub.delivered, sub.dropped, sub.pending_messages, sub.pending_bytes) == (5, 0, 0, 0)
        assert await subscriptions(server, nc) == []


async def test_breaking_out_of_a_loop_and_going_on_loses_nothing(server) -> None:
    subject, seen = unique("sub"), []
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject, max_messages=10)
        await publish_numbers(nc, subject, *range(10))
        for stop in (2, 5, 99):
            async for msg in sub:
                seen.append(int(msg.data))
                if seen[-1] == stop:
                    break
        assert seen == list(range(10))


async def test_several_iterators_share_one_subscription(server) -> None:
    subject, seen = unique("sub"), []
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject, max_messages=100)

        async def read() -> int:
            mine = 0
            async for msg in sub:
                seen.append(int(msg.data))
                mine += 1
                await asyncio.sleep(0)
            return mine

        readers = [asyncio.create_task(read()) for _ in range(4)]
        await eventually(lambda: len(sub._sink._waiters) == 4)
        await publish_numbers(nc, subject, *range(100))
        shares = await asyncio.gather(*readers)
    assert sorted(seen) == list(range(100))
    assert min(shares) > 0


async def test_cancelling_a_waiting_next_loses_nothing(server) -> None:
    subject = unique("sub")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        for number in range(20):
            waiting = asyncio.create_task(sub.next())
            await eventually(lambda: sub._sink._waiters)
            await nc.publish(subject, b"%d" % number)
            if number % 2:
                await nc.flush()
            waiting.cancel()
            done = await asyncio.gather(waiting, return_exceptions=True)
            if isinstance(done[0], asyncio.CancelledError):
                assert await take(sub, 1) == [number]
            else:
                assert int(done[0].data) == number
        assert sub.delivered == 20
        assert not sub._sink._waiters


async def test_a_next_woken_and_cancelled_in_the_same_turn_loses_nothing(server) -> None:
    subject = unique("sub")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        waiting = asyncio.create_task(sub.next())
        await eventually(lambda: sub._sink._waiters)
        wake = sub._sink._wake
        sub._sink._wake = lambda: (wake(), waiting.cancel())  # type: ignore[method-assign]
        await nc.publish(subject, b"7")
        with pytest.raises(asyncio.CancelledError):
            await waiting
        del sub._sink._wake
        assert await take(sub, 1) == [7]


async def test_next_times_out_with_a_named_error_and_works_again(server) -> None:
    subject = unique("sub")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        with pytest.raises(RequestTimeout, match=subject):
            await sub.next(timeout=0.01)
        with pytest.raises(TimeoutError):
            await sub.next(timeout=0)
        await publish_numbers(nc, subject, 1)
        assert int((await sub.next(timeout=0)).data) == 1


async def test_next_on_a_closed_subscription(server) -> None:
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(unique("sub"))
        waiting = asyncio.create_task(sub.next())
        await eventually(lambda: sub._sink._waiters)
        await sub.unsubscribe()
        with pytest.raises(ConnectionClosed, match=sub.subject):
            await waiting
        with pytest.raises(ConnectionClosed, match=sub.subject):
            await sub.next()
        assert [msg async for msg in sub] == []


# Unsubscribe


async def test_unsubscribe_stops_now_and_drops_what_is_buffered(server) -> None:
    subject = unique("sub")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        await publish_numbers(nc, subject, 1, 2, 3)
        assert await take(sub, 1) == [1]
        await sub.unsubscribe()
        await sub.unsubscribe()
        assert [msg async for msg in sub] == []
        assert (sub.closed, sub.delivered, sub.pending_messages, sub.pending_bytes) == (True, 1, 0, 0)
        await nc.flush()
        assert await subscriptions(server, nc) == []


async def test_async_with_unsubscribes(server) -> None:
    async with jetspark.connect(server.url) as nc:
        async with await nc.subscribe(unique("sub")) as sub:
            await nc.flush()
            assert await subscriptions(server, nc) == [sub.subject]
        await nc.flush()
        assert await subscriptions(server, nc) == []


@pytest.mark.parametrize("limit", [1, 3, 5, 6, 10])
async def test_a_limit_set_in_mid_stream_counts_from_the_beginning(server, limit: int) -> None:
    subject = unique("sub")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        await publish_numbers(nc, subject, 1, 2, 3, 4, 5)
        assert await take(sub, 1) == [1]
        await sub.unsubscribe(limit)
        await publish_numbers(nc, subject, *range(6, 12))
        assert [int(msg.data) async for msg in sub] == list(range(2, limit + 1))
        assert (sub.delivered, sub.pending_bytes) == (limit, 0)


async def test_a_limit_in_mid_stream_lets_the_callback_finish(server) -> None:
    subject, seen = unique("sub"), []
    async with jetspark.connect(server.url) as nc:
        gate = asyncio.Event()

        async def callback(msg: jetspark.Msg) -> None:
            await gate.wait()
            seen.append(int(msg.data))

        sub = await nc.subscribe(subject, callback=callback)
        await publish_numbers(nc, subject, *range(10))
        await sub.unsubscribe(4)
        gate.set()
        await eventually(lambda: len(seen) == 4)
        await sub._sink._runner
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize("limit", [-1, 1.5, True, "1", None])
async def test_bad_limits_are_refused(server, limit: object) -> None:
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(unique("sub"))
        with pytest.raises(InvalidArgument) as caught:
            await sub.unsubscribe(limit)  # type: ignore[arg-type]
        assert caught.value.field == "max_messages"


# Callbacks


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_callback_gets_every_message_in_order(server, kind: str) -> None:
    subject, seen = unique("sub"), []

    async def later(msg: jetspark.Msg) -> None:
        await asyncio.sleep(0)
        seen.append(int(msg.data))

    async with jetspark.connect(server.url) as nc:
        callback = later if kind == "async" else lambda msg: seen.append(int(msg.data))
        sub = await nc.subscribe(subject, callback=callback)
        await publish_numbers(nc, subject, *range(2_000))
        await eventually(lambda: len(seen) == 2_000)
        assert (sub.delivered, sub.pending_messages, sub.pending_bytes) == (2_000, 0, 0)
    assert seen == list(range(2_000))


async def test_a_callback_that_raises_is_an_event_and_the_next_message_follows(server) -> None:
    subject, seen, events = unique("sub"), [], Recorder()

    def callback(msg: jetspark.Msg) -> None:
        if msg.data == b"1":
            raise ValueError("bad message")
        seen.append(int(msg.data))

    async with jetspark.connect(server.url, listener=events) as nc:
        await nc.subscribe(subject, callback=callback)
        await publish_numbers(nc, subject, 0, 1, 2)
        event = await events.wait(CallbackFailed)
        await eventually(lambda: seen == [0, 2])
    assert event.subject == subject
    assert repr(event.error) == "ValueError('bad message')"


async def test_a_cancelled_thing_inside_a_callback_does_not_end_the_subscription(server) -> None:
    subject, seen, events = unique("sub"), [], Recorder()

    async def callback(msg: jetspark.Msg) -> None:
        if msg.data == b"1":
            inner = asyncio.get_running_loop().create_future()
            inner.cancel()
            await inner
        seen.append(int(msg.data))

    async with jetspark.connect(server.url, listener=events) as nc:
        await nc.subscribe(subject, callback=callback)
        await publish_numbers(nc, subject, 0, 1, 2)
        assert isinstance((await events.wait(CallbackFailed)).error, asyncio.CancelledError)
        await eventually(lambda: seen == [0, 2])


async def test_unsubscribe_inside_the_callback(server) -> None:
    subject, seen = unique("sub"), []
    async with jetspark.connect(server.url) as nc:

        async def callback(msg: jetspark.Msg) -> None:
            seen.append(int(msg.data))
            if len(seen) == 3:
                await sub.unsubscribe()

        sub = await nc.subscribe(subject, callback=callback)
        await publish_numbers(nc, subject, *range(10))
        await asyncio.wait([sub._sink._runner])
        assert sub.closed
        await nc.flush()
        assert await subscriptions(server, nc) == []
    assert seen == [0, 1, 2]


async def test_unsubscribe_from_outside_ends_a_running_callback(server) -> None:
    subject = unique("sub")
    started, ended = asyncio.Event(), asyncio.Event()

    async def callback(msg: jetspark.Msg) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject, callback=callback)
        await publish_numbers(nc, subject, 1, 2)
        await started.wait()
        await sub.unsubscribe()
        assert ended.is_set()


async def test_a_subscription_with_a_callback_can_not_be_iterated(server) -> None:
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(unique("sub"), callback=print)
        with pytest.raises(InvalidArgument, match="callback"):
            await sub.next()
        with pytest.raises(InvalidArgument, match="callback"):
            aiter(sub)


async def test_a_busy_callback_lets_the_loop_run(server) -> None:
    subject, seen, turns = unique("sub"), 0, []

    def callback(msg: jetspark.Msg) -> None:
        nonlocal seen
        seen += 1

    async def watch() -> None:
        while True:
            turns.append(seen)
            await asyncio.sleep(0)

    async with jetspark.connect(server.url) as nc:
        await nc.subscribe(subject, callback=callback)
        watching = asyncio.create_task(watch())
        await publish_numbers(nc, subject, *range(10_000))
        await eventually(lambda: seen == 10_000)
        watching.cancel()
    # 512 a turn; the watcher may have its turn before or after the callbacks.
    assert max(later - before for before, later in itertools.pairwise(turns)) <= 1024


async def test_max_messages_with_a_callback(server) -> None:
    subject, seen = unique("sub"), []
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject, callback=lambda msg: seen.append(int(msg.data)), max_messages=3)
        await publish_numbers(nc, subject, *range(6))
        await asyncio.wait([sub._sink._runner])
        assert (seen, sub.closed) == ([0, 1, 2], True)


# Subjects and queue groups


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [("a", ["a"]), ("*", ["a"]), ("*.*", ["a.b", "b.c"]), ("a.>", ["a.b", "a.b.c"]), ("*.b.>", ["a.b.c"])],
)
async def test_wildcards(server, pattern: str, matches: list[str]) -> None:
    base = unique("sub")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(f"{base}.{pattern}")
        end = await nc.subscribe(f"{base}.end.of.it")
        for subject in ("a", "a.b", "b.c", "a.b.c"):
            await nc.publish(f"{base}.{subject}")
        await nc.publish(f"{base}.end.of.it")
        await end.next()
        got = [(await sub.next()).subject.removeprefix(f"{base}.") for _ in matches]
        assert got == matches
        assert sub.pending_messages == 0


async def test_a_queue_group_shares_and_others_get_all(server) -> None:
    subject, total = unique("sub"), 300
    async with jetspark.connect(server.url) as nc, jetspark.connect(server.url) as other:
        members = [await owner.subscribe(subject, queue="workers") for owner in (nc, nc, other)]
        second = await nc.subscribe(subject, queue="others")
        plain = await nc.subscribe(subject)
        await nc.flush()
        await other.flush()
        await publish_numbers(nc, subject, *range(total))
        await other.flush()
        assert sum(sub.pending_messages for sub in members) == total
        assert all(sub.pending_messages for sub in members)
        assert (second.pending_messages, plain.pending_messages) == (total, total)
        got = [await take(sub, sub.pending_messages) for sub in members]
        assert sorted(number for share in got for number in share) == list(range(total))
        assert members[0].queue == "workers"


async def test_ten_thousand_subscriptions(server) -> None:
    base, count = unique("sub"), 10_000
    async with jetspark.connect(server.url) as nc:
        subs = [await nc.subscribe(f"{base}.{i}") for i in range(count)]
        for i in range(count):
            await nc.publish(f"{base}.{i}", b"%d" % i)
        await nc.flush(timeout=20)
        assert [await take(sub, 1) for sub in subs] == [[i] for i in range(count)]
        for sub in subs:
            await sub.unsubscribe()
        await nc.flush(timeout=20)
        assert nc._core.router.sinks == {}
        assert await subscriptions(server, nc) == []


async def test_two_subscriptions_to_one_subject_both_get_everything(server) -> None:
    subject = unique("sub")
    async with jetspark.connect(server.url) as nc:
        one, two = await nc.subscribe(subject), await nc.subscribe(subject)
        await publish_numbers(nc, subject, 1, 2)
        await one.unsubscribe()
        await publish_numbers(nc, subject, 3)
        assert await take(two, 3) == [1, 2, 3]
