"""``consume`` as an iterator on the real server (ADR-37 'Consume'): buffer, requests, thresholds."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import AckPolicy
from jetspark.errors import InvalidArgument
from jetspark.jetstream.consume.pull import message_size
from support.consuming import PullSpy, fill, make_filled, numbers, take, waiting
from support.helpers import FOREVER, PROMPT, eventually
from support.monitoring import subscriptions

if TYPE_CHECKING:
    from jetspark import Consumer
    from jetspark.server import Server

SECOND = 1_000_000_000


# --- the plain case and its defaults ---------------------------------------------------------------------


async def test_messages_in_order_and_those_that_come_later(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 3)
    async with consumer.consume() as messages:
        assert numbers(await take(messages, 3)) == [0, 1, 2]
        await fill(js, stream, 3, start=3)
        for message in await take(messages, 3):
            await message.ack()
        assert not messages.closed
    assert messages.closed
    assert message.data == b"5"


async def test_many_more_than_the_buffer_holds(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 3000)
    got: list[int] = []
    async with consumer.consume(max_messages=100) as messages:
        async for message in messages:
            await message.ack()
            got.append(int(message.data))
            assert messages.pending <= 100
            if len(got) == 3000:
                break
    assert got == list(range(3000))
    await eventually(lambda: _acked(consumer, 3000))


async def _acked(consumer: Consumer, floor: int) -> bool:
    return (await consumer.info()).ack_floor.stream_seq == floor


async def test_the_defaults_of_a_request(js: jetspark.JetStream, server: Server) -> None:
    _, consumer = await make_filled(js, 0)
    async with await PullSpy.on(server.url, consumer) as spy, consumer.consume():
        request = await spy.next()
    del request["reply"]
    assert request == {"batch": 500, "expires": 30 * SECOND, "idle_heartbeat": 15 * SECOND}


@pytest.mark.parametrize(
    ("options", "body"),
    [
        (
            {"max_messages": 7, "expires": 2},
            {"batch": 7, "expires": 2 * SECOND, "idle_heartbeat": SECOND},
        ),
        ({"expires": 1}, {"batch": 500, "expires": SECOND, "idle_heartbeat": SECOND // 2}),
        ({"expires": 120}, {"batch": 500, "expires": 120 * SECOND, "idle_heartbeat": 30 * SECOND}),
        (
            {"expires": 10, "idle_heartbeat": 0.5},
            {"batch": 500, "expires": 10 * SECOND, "idle_heartbeat": SECOND // 2},
        ),
        (
            {"max_bytes": 4000},
            {
                "batch": 1_000_000,
                "max_bytes": 4000,
                "expires": 30 * SECOND,
                "idle_heartbeat": 15 * SECOND,
            },
        ),
        (
            {"max_messages": 9, "max_bytes_per_request": 1000},
            {"batch": 9, "max_bytes": 1000, "expires": 30 * SECOND, "idle_heartbeat": 15 * SECOND},
        ),
        (
            {"max_messages": 9, "stop_after": 4},
            {"batch": 4, "expires": 30 * SECOND, "idle_heartbeat": 15 * SECOND},
        ),
    ],
)
async def test_options_of_a_request(
    js: jetspark.JetStream, server: Server, options: dict[str, Any], body: dict[str, Any]
) -> None:
    _, consumer = await make_filled(js, 0)
    async with await PullSpy.on(server.url, consumer) as spy, consumer.consume(**options):
        request = await spy.next()
    del request["reply"]
    assert request == body


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_messages": 10, "max_bytes": 1000}, "max_bytes"),
        ({"max_messages": 0}, "max_messages"),
        ({"max_messages": -1}, "max_messages"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"threshold_messages": 501}, "threshold_messages"),
        ({"max_messages": 10, "threshold_messages": 11}, "threshold_messages"),
        ({"max_bytes": 10, "threshold_bytes": 11}, "threshold_bytes"),
        ({"threshold_bytes": 11}, "threshold_bytes"),
        ({"expires": 0.999}, "expires"),
        ({"expires": -1}, "expires"),
        ({"idle_heartbeat": 0.4}, "idle_heartbeat"),
        ({"idle_heartbeat": 31, "expires": 100}, "idle_heartbeat"),
        ({"idle_heartbeat": 20}, "idle_heartbeat"),
        ({"stop_after": 0}, "stop_after"),
        ({"max_bytes": 10, "max_bytes_per_request": 5}, "max_bytes_per_request"),
    ],
)
async def test_options_that_can_not_work(js: jetspark.JetStream, options: dict[str, Any], field: str) -> None:
    _, consumer = await make_filled(js, 0)
    for call in (consumer.consume, consumer.consume_batches, partial(consumer.consume_with, print)):
        with pytest.raises(InvalidArgument) as caught:
            call(**options)
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("callback", "concurrency", "field"),
    [(5, 1, "callback"), (print, 0, "concurrency"), (print, True, "concurrency")],
)
async def test_callbacks_that_can_not_work(
    js: jetspark.JetStream, callback: Any, concurrency: Any, field: str
) -> None:
    _, consumer = await make_filled(js, 0)
    with pytest.raises(InvalidArgument) as caught:
        consumer.consume_with(callback, concurrency=concurrency)
    assert caught.value.field == field


async def test_a_single_subscription_for_all_its_requests(
    js: jetspark.JetStream, nc: jetspark.Connection, server: Server
) -> None:
    _, consumer = await make_filled(js, 100)
    before = await subscriptions(server, nc)
    async with (
        await PullSpy.on(server.url, consumer) as spy,
        consumer.consume(max_messages=10) as messages,
    ):
        await take(messages, 100)
        during = await subscriptions(server, nc)
        assert len(during) == len(before) + 1
        (inbox,) = set(during) - set(before)
        replies = {(await spy.next())["reply"] for _ in range(10)}
        assert replies == {inbox}
    await eventually(lambda: _subscriptions_are(server, nc, before))


async def _subscriptions_are(server: Server, nc: jetspark.Connection, wanted: list[str]) -> bool:
    return await subscriptions(server, nc) == wanted


# --- refills -------------------------------------------------------------------------------------------


async def test_max_messages_1_never_stalls(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 200)
    began = time.monotonic()
    async with consumer.consume(max_messages=1, expires=FOREVER) as messages:
        got = await take(messages, 200)
    assert numbers(got) == list(range(200))
    assert time.monotonic() - began < PROMPT


@pytest.mark.parametrize(
    ("threshold", "batches"),
    [(None, [8, 4, 4]), (2, [8, 6, 6]), (7, [8, 1, 1]), (0, [8, 8, 8])],
)
async def test_a_refill_at_the_threshold_asks_for_all_the_room(
    js: jetspark.JetStream, server: Server, threshold: int | None, batches: list[int]
) -> None:
    _, consumer = await make_filled(js, 50)
    async with (
        await PullSpy.on(server.url, consumer) as spy,
        consumer.consume(max_messages=8, threshold_messages=threshold) as messages,
    ):
        await take(messages, 40)
        assert [(await spy.next())["batch"] for _ in batches] == batches


async def test_threshold_equal_to_the_limit_keeps_the_buffer_full(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 100)
    async with consumer.consume(max_messages=8, threshold_messages=8) as messages:
        assert numbers(await take(messages, 100)) == list(range(100))


async def test_nothing_is_pulled_while_nothing_is_processed(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 100)
    async with consumer.consume(max_messages=10, expires=1) as messages:
        await eventually(lambda: messages.pending == 10)
        await waiting(consumer, 0)
        # Longer than a request lives: still nothing more is asked for.
        began = time.monotonic()
        await eventually(lambda: time.monotonic() - began > 1.2)
        info = await consumer.info()
        assert (info.num_ack_pending, info.num_waiting, messages.pending) == (10, 0, 10)


# --- bytes ---------------------------------------------------------------------------------------------


async def test_a_buffer_of_bytes_is_never_above_its_limit(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 300, size=200)
    got: list[int] = []
    async with consumer.consume(max_bytes=3000) as messages:
        async for message in messages:
            got.append(int(message.data))
            buffered = messages._sink.buffer if messages._sink else ()
            assert sum(map(message_size, buffered)) <= 3000
            if len(got) == 300:
                break
    assert got == list(range(300))


async def test_a_buffer_of_bytes_that_fits_one_message(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 20, size=200)
    (first,) = await consumer.fetch(1)
    began = time.monotonic()
    async with consumer.consume(max_bytes=message_size(first) + 20, expires=FOREVER) as messages:
        assert numbers(await take(messages, 19)) == list(range(1, 20))
    assert time.monotonic() - began < PROMPT


async def test_messages_of_all_sizes_in_a_small_buffer_of_bytes(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0, ack_policy=AckPolicy.NONE)
    for number in range(120):
        await js.publish(f"{stream.name}.a", b"%d" % number + b" " * (number * 37 % 900))
    async with consumer.consume(max_bytes=1500) as messages:
        assert numbers(await take(messages, 120)) == list(range(120))


async def test_a_threshold_of_bytes(js: jetspark.JetStream, server: Server) -> None:
    _, consumer = await make_filled(js, 50, size=100, ack_policy=AckPolicy.NONE)
    (first,) = await consumer.fetch(1)
    size = message_size(first)
    async with (
        await PullSpy.on(server.url, consumer) as spy,
        consumer.consume(max_bytes=10 * size, threshold_bytes=3 * size) as messages,
    ):
        await eventually(lambda: messages.pending >= 9)
        assert (await spy.next())["max_bytes"] == 10 * size
        await take(messages, 6)
        await js.connection.flush()
        assert spy.waiting == 0
        await take(messages, 2)
        assert 7 * size <= (await spy.next())["max_bytes"] <= 9 * size


async def test_max_messages_with_a_limit_of_bytes_for_each_request(
    js: jetspark.JetStream, server: Server
) -> None:
    _, consumer = await make_filled(js, 100, size=100)
    async with await PullSpy.on(server.url, consumer) as spy:
        async with consumer.consume(max_messages=40, max_bytes_per_request=1000) as messages:
            assert numbers(await take(messages, 100)) == list(range(100))
        requests = [await spy.next() for _ in range(5)]
    assert {request["max_bytes"] for request in requests} == {1000}
    assert max(request["batch"] for request in requests) <= 40
