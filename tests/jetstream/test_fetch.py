"""``fetch`` on the real server (ADR-37 'Fetch'): limits, waiting, partial results, and nothing ever lost."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

import jetspark
from consuming import PullSpy, durable, fill, make, make_filled, numbers
from helpers import eventually, unique
from jetspark import AckPolicy
from jetspark.errors import ConnectionClosed, InvalidArgument, PermissionViolationError
from jetspark.jetstream.consume_errors import (
    BadRequest,
    ConsumerDeleted,
    MaxRequestBatchExceeded,
    MaxRequestExpiresExceeded,
    MaxRequestMaxBytesExceeded,
    MissedHeartbeat,
    NoConsumerResponders,
    PushConsumerError,
)
from jetspark.jetstream.pull import message_size
from monitoring import subscriptions

if TYPE_CHECKING:
    from conftest import StartServer
    from jetspark import Consumer
    from jetspark.server import Server


async def no_pull_waits(consumer: Consumer) -> None:
    async def none() -> bool:
        return (await consumer.info()).num_waiting == 0

    await eventually(none)


# --- how much ------------------------------------------------------------------------------------------


async def test_a_batch_in_order(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 7)
    batch = await consumer.fetch(5)
    assert numbers(batch) == [0, 1, 2, 3, 4]
    assert batch.error is None
    batch.raise_for_error()
    assert numbers(await consumer.fetch(2)) == [5, 6]


async def test_one_by_one(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 5)
    got = [number for _ in range(5) for number in numbers(await consumer.fetch(1))]
    assert got == [0, 1, 2, 3, 4]


async def test_what_came_until_expires(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 3)
    began = time.monotonic()
    batch = await consumer.fetch(10, expires=0.3)
    assert 0.25 < time.monotonic() - began < 1.2
    assert numbers(batch) == [0, 1, 2]
    assert batch.error is None


async def test_nothing_is_an_empty_batch(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 0)
    batch = await consumer.fetch(10, expires=0.2)
    assert batch == []
    assert batch.error is None


async def test_messages_that_come_while_it_waits(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0)
    waiting = asyncio.ensure_future(consumer.fetch(3, expires=10)._collect())
    await eventually(lambda: _waiting(consumer))
    await fill(js, stream, 3)
    assert numbers(await waiting) == [0, 1, 2]


async def _waiting(consumer: Consumer) -> bool:
    return (await consumer.info()).num_waiting == 1


async def test_a_large_batch(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 5000, ack_policy=AckPolicy.NONE)
    assert numbers(await consumer.fetch(5000)) == list(range(5000))


async def test_iterating_gives_each_message_as_it_comes(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 1)
    got: list[int] = []
    async for message in consumer.fetch(3, expires=10):
        got.append(int(message.data))
        if len(got) < 3:
            # Only published once the one before it was handed out: nothing waits for the whole batch.
            await fill(js, stream, 1, start=len(got))
    assert got == [0, 1, 2]


# --- bytes ---------------------------------------------------------------------------------------------


async def test_bytes_that_come_out_even(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 9, size=100)
    (first,) = await consumer.fetch(1)
    size = message_size(first)
    began = time.monotonic()
    batch = await consumer.fetch_bytes(4 * size, expires=5)
    assert numbers(batch) == [1, 2, 3, 4]
    assert time.monotonic() - began < 2


async def test_the_last_message_does_not_fit_the_bytes(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 9, size=100)
    (first,) = await consumer.fetch(1)
    began = time.monotonic()
    batch = await consumer.fetch_bytes(4 * message_size(first) - 1, expires=5)
    assert numbers(batch) == [1, 2, 3]
    assert batch.error is None
    assert time.monotonic() - began < 2
    assert numbers(await consumer.fetch(1)) == [4]


async def test_a_single_message_larger_than_max_bytes(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1, size=1000)
    began = time.monotonic()
    assert await consumer.fetch_bytes(200, expires=5) == []
    assert time.monotonic() - began < 2
    assert numbers(await consumer.fetch(1)) == [0]


async def test_bytes_until_expires(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 3, size=100)
    assert numbers(await consumer.fetch_bytes(100_000, expires=0.2)) == [0, 1, 2]


@pytest.mark.parametrize(("max_messages", "count"), [(2, 2), (50, 4)])
async def test_with_both_limits_the_first_one_reached_ends_it(
    js: jetspark.JetStream, max_messages: int, count: int
) -> None:
    _, consumer = await make_filled(js, 20, size=100)
    (first,) = await consumer.fetch(1)
    began = time.monotonic()
    batch = await consumer.fetch(max_messages, max_bytes=4 * message_size(first) + 50, expires=5)
    assert numbers(batch) == list(range(1, 1 + count))
    assert time.monotonic() - began < 2


async def test_the_size_of_a_message_is_the_servers(js: jetspark.JetStream) -> None:
    """One byte less than the sum, and the server keeps the last one back: with headers and UTF-8 too."""
    stream = await make(js)
    for number in range(4):
        await js.publish(f"{stream.name}.ü{number}", b"x" * 50, headers={"A": "b" * number, "U": "é"})
    first = await durable(stream, durable_name="one", ack_policy=AckPolicy.NONE)
    size = sum(map(message_size, await first.fetch(4)))
    exact = await durable(stream, durable_name="two", ack_policy=AckPolicy.NONE)
    assert len(await exact.fetch_bytes(size, expires=2)) == 4
    less = await durable(stream, durable_name="six", ack_policy=AckPolicy.NONE)
    assert len(await less.fetch_bytes(size - 1, expires=2)) == 3


# --- not waiting ---------------------------------------------------------------------------------------


async def test_no_wait_takes_what_is_there(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 3)
    began = time.monotonic()
    assert numbers(await consumer.fetch_no_wait(10)) == [0, 1, 2]
    assert await consumer.fetch_no_wait(10) == []
    await fill(js, stream, 5, start=3)
    assert numbers(await consumer.fetch(2, no_wait=True)) == [3, 4]
    assert time.monotonic() - began < 2


async def test_no_wait_with_expires_waits_for_a_first_message_only(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 3)
    began = time.monotonic()
    assert numbers(await consumer.fetch(10, no_wait=True, expires=5)) == [0, 1, 2]
    assert time.monotonic() - began < 2
    waiting = asyncio.ensure_future(consumer.fetch(1, no_wait=True, expires=5)._collect())
    await eventually(lambda: _waiting(consumer))
    await fill(js, stream, 1, start=3)
    assert numbers(await waiting) == [3]
    assert await consumer.fetch(10, no_wait=True, expires=0.2) == []


# --- what is sent --------------------------------------------------------------------------------------


async def test_requests_carry_what_was_asked_for_and_the_defaults(
    js: jetspark.JetStream, server: Server
) -> None:
    _, consumer = await make_filled(js, 2000)
    second = 1_000_000_000
    async with await PullSpy.on(server.url, consumer) as spy:
        for fetch, body in (
            (consumer.fetch(1), {"batch": 1, "expires": 30 * second}),
            (consumer.fetch(2, expires=1.5), {"batch": 2, "expires": 3 * second // 2}),
            (
                consumer.fetch(3, expires=40),
                {"batch": 3, "expires": 40 * second, "idle_heartbeat": 20 * second},
            ),
            (
                consumer.fetch(3, expires=100),
                {"batch": 3, "expires": 100 * second, "idle_heartbeat": 30 * second},
            ),
            (
                consumer.fetch(3, expires=4, idle_heartbeat=1),
                {"batch": 3, "expires": 4 * second, "idle_heartbeat": second},
            ),
            (consumer.fetch(3, expires=40, idle_heartbeat=0), {"batch": 3, "expires": 40 * second}),
            (consumer.fetch_no_wait(4), {"batch": 4, "no_wait": True}),
            (
                consumer.fetch(5, no_wait=True, expires=2),
                {"batch": 5, "expires": 2 * second, "no_wait": True},
            ),
            (
                consumer.fetch_bytes(1000, expires=2),
                {"batch": 1_000_000, "max_bytes": 1000, "expires": 2 * second},
            ),
            (
                consumer.fetch(2, max_bytes=1000, expires=2),
                {"batch": 2, "max_bytes": 1000, "expires": 2 * second},
            ),
        ):
            assert await fetch
            sent = await spy.next()
            del sent["reply"]
            assert sent == body


async def test_options_that_can_not_work_are_refused_before_anything_is_sent(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1)
    with pytest.raises(InvalidArgument, match="max_messages"):
        consumer.fetch()
    with pytest.raises(InvalidArgument, match="expires"):
        consumer.fetch(1, expires=-0.05)
    with pytest.raises(InvalidArgument, match="idle_heartbeat"):
        consumer.fetch(1, expires=5, idle_heartbeat=20)
    with pytest.raises(InvalidArgument, match="idle_heartbeat"):
        consumer.fetch_bytes(5, expires=5, idle_heartbeat=20)
    with pytest.raises(InvalidArgument, match="max_messages"):
        consumer.fetch(0)
    with pytest.raises(InvalidArgument, match="max_bytes"):
        consumer.fetch_bytes(-1)
    assert (await consumer.info()).delivered.consumer_seq == 0


async def test_every_fetch_has_its_own_inbox_which_is_gone_afterwards(
    js: jetspark.JetStream, nc: jetspark.Connection, server: Server
) -> None:
    _, consumer = await make_filled(js, 4)
    before = await subscriptions(server, nc)
    async with await PullSpy.on(server.url, consumer) as spy:
        for _ in range(2):
            await consumer.fetch(2)
        assert (await spy.next())["reply"] != (await spy.next())["reply"]
    assert await subscriptions(server, nc) == before


async def test_the_inbox_prefix_is_that_of_the_connection(server: Server) -> None:
    async with jetspark.connect(server.url, inbox_prefix="mine") as nc:
        _, consumer = await make_filled(nc.jetstream(), 1)
        async with await PullSpy.on(server.url, consumer) as spy:
            assert len(await consumer.fetch(1)) == 1
            assert (await spy.next())["reply"].startswith("mine.")


# --- statuses that end it ------------------------------------------------------------------------------


async def test_deleting_the_consumer_keeps_what_had_come_and_says_why(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 3)
    waiting = asyncio.ensure_future(consumer.fetch(10, expires=10)._collect())
    await eventually(lambda: _waiting(consumer))
    await consumer.delete()
    batch = await waiting
    assert numbers(batch) == [0, 1, 2]
    assert isinstance(batch.error, ConsumerDeleted)
    with pytest.raises(ConsumerDeleted):
        batch.raise_for_error()


async def test_iterating_raises_behind_the_last_message(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 3)
    got: list[int] = []

    async def iterate() -> None:
        async for message in consumer.fetch(10, expires=10):
            got.append(int(message.data))
            if len(got) == 3:
                await consumer.delete()

    with pytest.raises(ConsumerDeleted):
        await iterate()
    assert got == [0, 1, 2]


async def test_an_error_without_a_message_is_raised(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 0)
    waiting = asyncio.ensure_future(consumer.fetch(10, expires=10)._collect())
    await eventually(lambda: _waiting(consumer))
    await consumer.delete()
    with pytest.raises(ConsumerDeleted, match="create it again"):
        await waiting


async def test_a_consumer_that_does_not_exist(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1)
    await consumer.delete()
    began = time.monotonic()
    with pytest.raises(NoConsumerResponders):
        await consumer.fetch(1)
    with pytest.raises(NoConsumerResponders):
        await consumer.fetch_bytes(100)
    with pytest.raises(NoConsumerResponders):
        await consumer.fetch_no_wait(1)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("limit", "fetch", "error", "text"),
    [
        ({"max_batch": 5}, {"max_messages": 6}, MaxRequestBatchExceeded, "of 5"),
        ({"max_expires": 1}, {"max_messages": 6, "expires": 2}, MaxRequestExpiresExceeded, "of 1s"),
        ({"max_bytes": 500}, {"max_bytes": 501}, MaxRequestMaxBytesExceeded, "of 500"),
    ],
)
async def test_the_consumers_limits_are_errors_with_their_numbers(
    js: jetspark.JetStream, limit: dict[str, int], fetch: dict[str, int], error: type[Exception], text: str
) -> None:
    _, consumer = await make_filled(js, 1, **limit)
    with pytest.raises(error, match=text):
        await consumer.fetch(**fetch)  # type: ignore[arg-type]


async def test_a_push_consumer_is_refused_here_and_by_the_server(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    stream, consumer = await make_filled(js, 1)
    push = await durable(stream, durable_name="push", deliver_subject=nc.new_inbox())
    with pytest.raises(PushConsumerError):
        push.fetch(1)
    # A handle that does not know: the server's word.
    consumer._target.next_subject = consumer._target.next_subject.replace(".worker", ".push")
    with pytest.raises(PushConsumerError, match="409"):
        await consumer.fetch(1)


async def test_a_bad_request_names_the_servers_reason(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1, priority_groups=["A"], priority_policy="overflow")
    with pytest.raises(BadRequest, match="400 Bad Request - Priority Group missing"):
        await consumer.fetch(1, expires=2)
    with pytest.raises(BadRequest, match="400 Bad Request - Invalid Priority Group"):
        await consumer.fetch(1, group="B", expires=2)


async def test_a_missing_permission_is_an_error_at_once(start_server: StartServer) -> None:
    server = start_server(
        config="authorization { users: ["
        " { user: admin, password: admin },"
        ' { user: poor, password: poor, permissions: { publish: { deny: "$JS.API.CONSUMER.MSG.NEXT.>" } } }'
        " ] }"
    )
    async with (
        jetspark.connect(server.url, user="admin", password="admin") as admin,
        jetspark.connect(server.url, user="poor", password="poor") as poor,
    ):
        stream, _ = await make_filled(admin.jetstream(), 1)
        consumer = await poor.jetstream().get_consumer(stream.name, "worker")
        began = time.monotonic()
        with pytest.raises(PermissionViolationError, match=r"CONSUMER\.MSG\.NEXT"):
            await consumer.fetch(1, expires=20)
        async with consumer.consume() as messages:
            with pytest.raises(PermissionViolationError):
                await anext(messages)
        assert time.monotonic() - began < 3


# --- nothing is lost -----------------------------------------------------------------------------------


async def test_a_cancelled_fetch_leaves_its_messages_to_the_next_one(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 5, ack_policy=AckPolicy.NONE)
    waiting = asyncio.ensure_future(consumer.fetch(10, expires=10)._collect())

    async def delivered() -> bool:
        return (await consumer.info()).delivered.consumer_seq == 5

    await eventually(delivered)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await no_pull_waits(consumer)
    assert numbers(await consumer.fetch(2, expires=1)) == [0, 1]
    assert numbers(await consumer.fetch(10, expires=0.2)) == [2, 3, 4]


async def test_cancelling_at_any_moment_loses_nothing(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 300, ack_policy=AckPolicy.NONE)
    got: list[int] = []
    turns = 0
    while len(got) < 300:
        waiting = asyncio.ensure_future(consumer.fetch(7, expires=1)._collect())
        for _ in range(turns % 13):
            await asyncio.sleep(0)
        turns += 1
        waiting.cancel()
        try:
            got += numbers(await waiting)
        except asyncio.CancelledError:
            pass
        else:
            continue
        if turns % 3 == 0:
            got += numbers(await consumer.fetch(5, expires=0.5))
    assert sorted(got) == list(range(300))


async def test_leaving_the_loop_early_leaves_the_rest_to_the_next_fetch(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 6, ack_policy=AckPolicy.NONE)
    got: list[int] = []
    async for message in consumer.fetch(6):
        got.append(int(message.data))
        if len(got) == 2:
            break
    assert numbers(await consumer.fetch(10, expires=0.2)) == [2, 3, 4, 5]
    assert got == [0, 1]


async def test_an_exception_in_the_loop_leaves_the_rest_to_the_next_fetch(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 4, ack_policy=AckPolicy.NONE)

    async def failing() -> None:
        async for _ in consumer.fetch(10, expires=10):
            raise LookupError("user code")

    with pytest.raises(LookupError):
        await failing()
    await no_pull_waits(consumer)
    assert numbers(await consumer.fetch(3)) == [1, 2, 3]


async def test_an_iterator_can_be_closed(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 4, ack_policy=AckPolicy.NONE)
    iterator = aiter(consumer.fetch(4))
    assert int((await anext(iterator)).data) == 0
    await iterator.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(iterator)
    assert numbers(await consumer.fetch(3)) == [1, 2, 3]


async def test_consume_begins_with_what_a_cancelled_fetch_left(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 6, ack_policy=AckPolicy.NONE)
    iterator = aiter(consumer.fetch(4))
    await anext(iterator)
    await iterator.aclose()
    async with consumer.consume(max_messages=2, stop_after=5) as messages:
        assert messages.pending == 3
        assert numbers([message async for message in messages]) == [1, 2, 3, 4, 5]


async def test_what_consume_does_not_want_stays_for_the_next_fetch(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 4, ack_policy=AckPolicy.NONE)
    iterator = aiter(consumer.fetch(4))
    await anext(iterator)
    await iterator.aclose()
    async with consumer.consume(stop_after=1) as messages:
        assert numbers([message async for message in messages]) == [1]
    assert numbers(await consumer.fetch(2)) == [2, 3]


async def test_the_stash_respects_the_limits_of_the_next_fetch(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 5, size=100, ack_policy=AckPolicy.NONE)
    iterator = aiter(consumer.fetch(5))
    size = message_size(await anext(iterator))
    await iterator.aclose()
    batch = await consumer.fetch_bytes(2 * size + 10, expires=0.3)
    assert numbers(batch) == [1, 2]
    assert numbers(await consumer.fetch(1)) == [3]
    assert numbers(await consumer.fetch_bytes(size)) == [4]


async def test_what_the_server_delivers_again_is_not_kept(js: jetspark.JetStream) -> None:
    """After ack_wait a kept copy would be a second delivery beside the server's own."""
    _, consumer = await make_filled(js, 3, ack_wait=0.5)
    iterator = aiter(consumer.fetch(3))
    await (await anext(iterator)).ack()
    await iterator.aclose()
    stash = consumer._stash
    await eventually(lambda: stash._messages[0][0] < stash.loop.time())
    batch = await consumer.fetch(2, expires=3)
    assert [(int(m.data), m.metadata.num_delivered) for m in batch] == [(1, 2), (2, 2)]


async def test_with_max_deliver_1_a_kept_message_is_kept(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 2, ack_wait=0.2, max_deliver=1)
    iterator = aiter(consumer.fetch(2))
    await (await anext(iterator)).ack()
    await iterator.aclose()
    began = time.monotonic()
    await eventually(lambda: time.monotonic() - began > 0.3)
    assert numbers(await consumer.fetch(1, expires=0.5)) == [1]


async def test_the_status_of_an_old_fetch_reaches_no_other(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0)
    for _ in range(3):
        waiting = asyncio.ensure_future(consumer.fetch(1, expires=0.3)._collect())
        await eventually(lambda: _waiting(consumer))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    # Longer than all of those would have waited: their 408s would end it early.
    waiting = asyncio.ensure_future(consumer.fetch(1, expires=5)._collect())
    assert await consumer.fetch(1, expires=0.5) == []
    assert not waiting.done()
    await fill(js, stream, 1)
    assert numbers(await waiting) == [0]


async def test_no_pull_is_left_behind(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 3)
    assert numbers(await consumer.fetch(3)) == [0, 1, 2]
    assert await consumer.fetch(1, expires=0.1) == []
    assert await consumer.fetch_no_wait(1) == []
    waiting = [asyncio.ensure_future(consumer.fetch(1, expires=30)._collect()) for _ in range(5)]

    async def five() -> bool:
        return (await consumer.info()).num_waiting == 5

    await eventually(five)
    for one in waiting:
        one.cancel()
    await asyncio.wait(waiting)
    await no_pull_waits(consumer)


async def test_concurrent_fetches_share_the_messages(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 100, ack_policy=AckPolicy.NONE)
    batches = await asyncio.gather(*(consumer.fetch(10)._collect() for _ in range(10)))
    assert all(len(batch) == 10 for batch in batches)
    assert sorted(number for batch in batches for number in numbers(batch)) == list(range(100))


# --- servers that hang, connections that break -----------------------------------------------------------


async def test_the_clients_deadline_is_later_than_expires_when_the_server_hangs(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 2)
        waiting = asyncio.ensure_future(consumer.fetch(5, expires=0.5)._collect())
        await eventually(lambda: _waiting(consumer))
        own_server.suspend()
        began = time.monotonic()
        try:
            batch = await waiting
        finally:
            own_server.resume()
        assert numbers(batch) == [0, 1]
        assert 1.0 < time.monotonic() - began < 4.0


async def test_missed_heartbeats_end_a_fetch(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 2)
        waiting = asyncio.ensure_future(consumer.fetch(5, expires=30, idle_heartbeat=0.5)._collect())
        await eventually(lambda: _waiting(consumer))
        own_server.suspend()
        began = time.monotonic()
        try:
            batch = await waiting
        finally:
            own_server.resume()
        assert numbers(batch) == [0, 1]
        assert isinstance(batch.error, MissedHeartbeat)
        assert time.monotonic() - began < 3


async def test_heartbeats_keep_a_long_fetch_alive(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 0)
    began = time.monotonic()
    batch = await consumer.fetch(1, expires=2.2, idle_heartbeat=0.5)
    assert batch == []
    assert batch.error is None
    assert time.monotonic() - began > 2.1


async def test_a_fetch_goes_on_after_a_reconnect(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream, consumer = await make_filled(js, 2)
    waiting = asyncio.ensure_future(consumer.fetch(4, expires=10)._collect())
    await eventually(lambda: _waiting(consumer))
    await nc.force_reconnect()
    await fill(js, stream, 2, start=2)
    assert numbers(await waiting) == [0, 1, 2, 3]


async def test_closing_the_connection_ends_a_fetch(server: Server) -> None:
    async with jetspark.connect(server.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 0)
        waiting = asyncio.ensure_future(consumer.fetch(4, expires=10)._collect())
        await eventually(lambda: _waiting(consumer))
    with pytest.raises(ConnectionClosed):
        await waiting
    with pytest.raises(ConnectionClosed):
        await consumer.fetch(1)


async def test_in_a_cluster(cluster: jetspark.server.Cluster) -> None:
    async with jetspark.connect(cluster.urls) as nc:
        js = nc.jetstream(timeout=10)
        stream = await make(js, num_replicas=3)
        consumer = await durable(stream)
        await fill(js, stream, 5)
        assert numbers(await consumer.fetch(5)) == [0, 1, 2, 3, 4]
        assert await consumer.fetch_no_wait(5) == []


# --- odd messages --------------------------------------------------------------------------------------


async def test_a_published_message_that_looks_like_a_status_is_a_message(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    """Anyone can store an empty message with a status line; it must neither vanish nor end anything."""
    stream, consumer = await make_filled(js, 0)
    block = b"NATS/1.0 409 Consumer Deleted\r\nA: b\r\n\r\n"
    nc._pub(f"{stream.name}.a", b"", headers=block)
    await js.publish(f"{stream.name}.a", b"1")
    batch = await consumer.fetch(2, expires=2)
    assert batch.error is None
    assert [message.data for message in batch] == [b"", b"1"]
    assert batch[0].headers["A"] == "b"
    assert batch[0].metadata.sequence.stream == 1


async def test_headers_only(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await js.publish(f"{stream.name}.a", b"0123456789", headers={"Colour": "red"})
    consumer = await durable(stream, headers_only=True)
    (message,) = await consumer.fetch(1)
    assert message.data == b""
    assert message.headers["Nats-Msg-Size"] == "10"
    assert message.headers["Colour"] == "red"
    await message.ack_sync()
    assert (await consumer.info()).num_ack_pending == 0


async def test_an_empty_message_with_headers_is_a_message(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0)
    await js.publish(f"{stream.name}.a", b"", headers={unique("H"): "1"})
    assert [message.data for message in await consumer.fetch(1, expires=1)] == [b""]
