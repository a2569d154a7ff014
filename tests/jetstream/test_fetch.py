"""``fetch`` on the real server (ADR-37 'Fetch'): limits, waiting, partial results, statuses."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

import jetspark
from jetspark import AckPolicy
from jetspark.errors import (
    ConsumerDeleted,
    InvalidArgument,
    MaxRequestBatchExceeded,
    MaxRequestExpiresExceeded,
    MaxRequestMaxBytesExceeded,
    NextMessageTooLarge,
    NoConsumerResponders,
    PermissionViolationError,
    PullRefused,
    PushConsumerError,
)
from jetspark.jetstream.consume.pull import message_size
from support.consuming import PullSpy, durable, fill, has_pull, make, make_filled, numbers
from support.helpers import FOREVER, PROMPT, eventually
from support.monitoring import subscriptions

if TYPE_CHECKING:
    from conftest import StartServer
    from jetspark import Consumer
    from jetspark.jetstream.flow.pull import PullFlow
    from jetspark.server import Server


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


async def test_what_came_until_expires(js: jetspark.JetStream, gave_up: list[PullFlow]) -> None:
    for expires in (0.5, 50):  # the short one is enough unless the server can't run for a second
        _, consumer = await make_filled(js, 3)
        gave_up.clear()
        began = time.monotonic()
        batch = await consumer.fetch(10, expires=expires)
        assert time.monotonic() - began > 0.9 * expires
        assert numbers(batch) == [0, 1, 2]
        assert batch.error is None
        if not gave_up:
            break
    assert gave_up == [], "the server's word comes before our own deadline"


async def test_nothing_is_an_empty_batch(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 0)
    batch = await consumer.fetch(10, expires=0.2)
    assert batch == []
    assert batch.error is None


async def test_messages_that_come_while_it_waits(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0)
    waiting = asyncio.ensure_future(consumer.fetch(3, expires=10)._collect())
    await eventually(lambda: has_pull(consumer))
    await fill(js, stream, 3)
    assert numbers(await waiting) == [0, 1, 2]


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
    batch = await consumer.fetch_bytes(4 * size, expires=FOREVER)
    assert numbers(batch) == [1, 2, 3, 4]
    assert time.monotonic() - began < PROMPT


async def test_the_last_message_does_not_fit_the_bytes(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 9, size=100)
    (first,) = await consumer.fetch(1)
    began = time.monotonic()
    batch = await consumer.fetch_bytes(4 * message_size(first) - 1, expires=FOREVER)
    assert numbers(batch) == [1, 2, 3]
    assert batch.error is None
    assert time.monotonic() - began < PROMPT
    assert numbers(await consumer.fetch(1)) == [4]


async def test_a_single_message_larger_than_max_bytes(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1, size=1000)
    began = time.monotonic()
    with pytest.raises(NextMessageTooLarge):
        await consumer.fetch_bytes(200, expires=FOREVER)
    assert time.monotonic() - began < PROMPT
    assert numbers(await consumer.fetch(1)) == [0]


async def test_bytes_until_expires(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 3, size=100)
    assert numbers(await consumer.fetch_bytes(100_000, expires=1)) == [0, 1, 2]


@pytest.mark.parametrize(("max_messages", "count"), [(2, 2), (50, 4)])
async def test_with_both_limits_the_first_one_reached_ends_it(
    js: jetspark.JetStream, max_messages: int, count: int
) -> None:
    _, consumer = await make_filled(js, 20, size=100)
    (first,) = await consumer.fetch(1)
    began = time.monotonic()
    batch = await consumer.fetch(max_messages, max_bytes=4 * message_size(first) + 50, expires=FOREVER)
    assert numbers(batch) == list(range(1, 1 + count))
    assert time.monotonic() - began < PROMPT


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


async def knows_of(consumer: Consumer, count: int) -> bool:
    return (await consumer.info()).num_pending == count


async def test_no_wait_takes_what_is_there(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 3)
    assert numbers(await consumer.fetch_no_wait(10)) == [0, 1, 2]
    assert await consumer.fetch_no_wait(10) == []
    await fill(js, stream, 5, start=3)
    # A consumer hears of a message a moment after its ack.
    await eventually(lambda: knows_of(consumer, 5))
    assert numbers(await consumer.fetch(2, no_wait=True)) == [3, 4]


async def test_no_wait_with_expires_waits_for_a_first_message_only(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 3)
    began = time.monotonic()
    assert numbers(await consumer.fetch(10, no_wait=True, expires=FOREVER)) == [0, 1, 2]
    assert time.monotonic() - began < PROMPT
    waiting = asyncio.ensure_future(consumer.fetch(1, no_wait=True, expires=FOREVER)._collect())
    await eventually(lambda: has_pull(consumer))
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
    # Monitoring asks the server on another road than ours.
    await nc.flush()
    assert await subscriptions(server, nc) == before


async def test_the_inbox_prefix_is_that_of_the_connection(server: Server) -> None:
    async with jetspark.connect(server.url, inbox_prefix="mine") as nc:
        _, consumer = await make_filled(nc.jetstream(), 1)
        async with await PullSpy.on(server.url, consumer) as spy:
            assert len(await consumer.fetch(1)) == 1
            assert (await spy.next())["reply"].startswith("mine.")


# --- statuses that end it ------------------------------------------------------------------------------


def received(nc: jetspark.Connection, count: int) -> bool:
    """Whether a fetch has so many messages; that the server holds its pull request says nothing of them."""
    return any(getattr(sink, "received", 0) == count for sink in nc._core.router.sinks.values())


async def test_deleting_the_consumer_keeps_what_had_come_and_says_why(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    _, consumer = await make_filled(js, 3)
    waiting = asyncio.ensure_future(consumer.fetch(10, expires=10)._collect())
    await eventually(lambda: received(nc, 3))
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
    await eventually(lambda: has_pull(consumer))
    await consumer.delete()
    with pytest.raises(ConsumerDeleted, match="create it again"):
        await waiting


async def test_a_consumer_that_does_not_exist(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1)
    await consumer.delete()
    began = time.monotonic()
    with pytest.raises(NoConsumerResponders):
        await consumer.fetch(1, expires=FOREVER)
    with pytest.raises(NoConsumerResponders):
        await consumer.fetch_bytes(100, expires=FOREVER)
    with pytest.raises(NoConsumerResponders):
        await consumer.fetch_no_wait(1)
    assert time.monotonic() - began < PROMPT


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
    with pytest.raises(PullRefused, match="400 Bad Request - Priority Group missing"):
        await consumer.fetch(1, expires=2)
    with pytest.raises(PullRefused, match="400 Bad Request - Invalid Priority Group"):
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
            await consumer.fetch(1, expires=FOREVER)
        async with consumer.consume(expires=FOREVER) as messages:
            with pytest.raises(PermissionViolationError):
                await anext(messages)
        assert time.monotonic() - began < PROMPT
