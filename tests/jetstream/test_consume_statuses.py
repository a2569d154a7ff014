"""Statuses, limits and heartbeats during ``consume``, from the real server: warned, recovered, or the end."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import AckPolicy
from jetspark.errors import (
    ConsumerDeleted,
    MaxRequestBatchExceeded,
    MaxRequestExpiresExceeded,
    MaxRequestMaxBytesExceeded,
    MaxWaitingExceeded,
    MissedHeartbeat,
    NextMessageTooLarge,
    NoConsumerResponders,
    PullRefused,
    PushConsumerError,
)
from support.consuming import PullSpy, durable, fill, make_filled, numbers
from support.helpers import PROMPT, eventually

if TYPE_CHECKING:
    from jetspark import Consume, Consumer, Message
    from jetspark.server import Server


async def take(messages: Consume, count: int) -> list[Message]:
    async with asyncio.timeout(10):
        return [await anext(messages) for _ in range(count)]


async def pull_waits(consumer: Consumer) -> None:
    async def so() -> bool:
        return (await consumer.info()).num_waiting > 0

    await eventually(so)


# --- the consumer's limits: warned of once, then respected ----------------------------------------------


@pytest.mark.parametrize(
    ("limit", "options", "warning"),
    [
        ({"max_batch": 5}, {"max_messages": 20}, MaxRequestBatchExceeded),
        ({"max_batch": 5}, {"max_bytes": 2000}, MaxRequestBatchExceeded),
        ({"max_batch": 1}, {}, MaxRequestBatchExceeded),
        ({"max_expires": 2}, {}, MaxRequestExpiresExceeded),
        ({"max_expires": 0.5}, {"expires": 1}, MaxRequestExpiresExceeded),
        ({"max_bytes": 1000}, {"max_bytes": 5000}, MaxRequestMaxBytesExceeded),
        ({"max_bytes": 1000}, {"max_bytes_per_request": 5000}, MaxRequestMaxBytesExceeded),
    ],
)
async def test_a_limit_of_the_consumer_is_warned_of_once_and_respected_then(
    js: jetspark.JetStream, limit: dict[str, Any], options: dict[str, Any], warning: type[Exception]
) -> None:
    _, consumer = await make_filled(js, 100, size=50, **limit)
    seen: list[Exception] = []
    began = time.monotonic()
    async with consumer.consume(on_error=seen.append, **options) as messages:
        assert numbers(await take(messages, 100)) == list(range(100))
    assert [type(error) for error in seen] == [warning]
    assert time.monotonic() - began < PROMPT


async def test_a_limited_buffer_is_filled_by_several_requests(js: jetspark.JetStream, server: Server) -> None:
    _, consumer = await make_filled(js, 100, max_batch=10)
    async with await PullSpy.on(server.url, consumer) as spy, consumer.consume(max_messages=30) as messages:
        await eventually(lambda: messages.pending == 30)
        assert [(await spy.next())["batch"] for _ in range(4)] == [30, 10, 10, 10]


async def test_all_limits_at_once(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 60, size=50, max_batch=7, max_expires=2, max_bytes=1000)
    seen: list[Exception] = []
    async with consumer.consume(max_bytes=4000, on_error=seen.append) as messages:
        assert numbers(await take(messages, 60)) == list(range(60))
    assert {type(error) for error in seen} <= {
        MaxRequestBatchExceeded,
        MaxRequestExpiresExceeded,
        MaxRequestMaxBytesExceeded,
    }
    assert len(seen) == 3


async def test_max_waiting_of_a_fetch_is_an_error(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 0, max_waiting=1)
    first = asyncio.create_task(consumer.next(expires=20))
    await pull_waits(consumer)
    with pytest.raises(MaxWaitingExceeded, match="max_waiting"):
        await consumer.fetch(1, expires=5)
    first.cancel()
    await asyncio.wait([first])


async def test_max_waiting_of_a_consume_is_warned_of_and_recovers(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0, max_waiting=1)
    first = asyncio.create_task(consumer.next(expires=20))
    await pull_waits(consumer)
    seen: list[Exception] = []
    async with consumer.consume(expires=2, idle_heartbeat=0.5, on_error=seen.append) as messages:
        await eventually(lambda: bool(seen))
        assert isinstance(seen[0], MaxWaitingExceeded | MissedHeartbeat)
        assert not messages.closed
        first.cancel()
        await asyncio.wait([first])
        await fill(js, stream, 1)
        assert numbers(await take(messages, 1)) == [0]


# --- the end -------------------------------------------------------------------------------------------


async def test_deleting_the_consumer_while_a_pull_waits_ends_it_behind_the_buffer(
    js: jetspark.JetStream,
) -> None:
    _, consumer = await make_filled(js, 5)
    seen: list[Exception] = []
    async with consumer.consume(on_error=seen.append) as messages:
        await eventually(lambda: messages.pending == 5)
        await consumer.delete()
        await eventually(lambda: messages.closed)
        assert numbers(await take(messages, 5)) == [0, 1, 2, 3, 4]
        with pytest.raises(ConsumerDeleted):
            await anext(messages)
        with pytest.raises(StopAsyncIteration):
            await anext(messages)
    assert [type(error) for error in seen] == [ConsumerDeleted]


async def test_deleting_the_stream_ends_it(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 1)
    async with consumer.consume() as messages:
        await take(messages, 1)
        await js.delete_stream(stream.name)
        with pytest.raises(ConsumerDeleted):
            async with asyncio.timeout(5):
                await anext(messages)


async def test_deleting_the_consumer_ends_an_iteration_in_batches(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 3)
    got: list[int] = []

    async def read() -> None:
        async with consumer.consume_batches() as batches:
            async for batch in batches:
                got.extend(numbers(batch))
                if len(got) == 3:
                    await consumer.delete()

    with pytest.raises(ConsumerDeleted):
        await read()
    assert got == [0, 1, 2]


async def test_a_push_consumer_ends_it(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream, consumer = await make_filled(js, 1)
    push = await durable(stream, durable_name="push", deliver_subject=nc.new_inbox())
    with pytest.raises(PushConsumerError):
        push.fetch(1)
    consumer._target.next_subject = consumer._target.next_subject.replace(".worker", ".push")
    async with consumer.consume() as messages:
        with pytest.raises(PushConsumerError, match="deliver_subject"):
            await anext(messages)


async def test_a_bad_request_ends_it(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1, priority_groups=["A"], priority_policy="overflow")
    async with consumer.consume() as messages:
        with pytest.raises(PullRefused, match="Priority Group missing"):
            await anext(messages)


# --- what it recovers from -----------------------------------------------------------------------------


async def test_a_consumer_that_does_not_exist_is_asked_for_with_backoff_until_it_does(
    js: jetspark.JetStream, server: Server
) -> None:
    stream, consumer = await make_filled(js, 3)
    config = consumer.config
    await consumer.delete()
    seen: list[Exception] = []
    began = time.monotonic()
    async with consumer.consume(on_error=seen.append) as messages:
        await eventually(lambda: len(seen) >= 3)
        assert {type(error) for error in seen} == {NoConsumerResponders}
        # 0.1 s after the first, 0.2 s after the second: no tight loop.
        assert time.monotonic() - began > 0.29
        assert not messages.closed
        await stream.create_consumer(config)
        assert numbers(await take(messages, 3)) == [0, 1, 2]


@pytest.mark.slow
async def test_requests_that_expire_are_renewed_in_silence(js: jetspark.JetStream, server: Server) -> None:
    stream, consumer = await make_filled(js, 0)
    seen: list[Exception] = []
    async with (
        await PullSpy.on(server.url, consumer) as spy,
        consumer.consume(expires=8, on_error=seen.append) as messages,
    ):
        for _ in range(2):
            assert (await spy.next())["batch"] == 500
        await fill(js, stream, 2)
        assert numbers(await take(messages, 2)) == [0, 1]
    assert seen == []


@pytest.mark.slow
async def test_heartbeats_keep_an_idle_one_quiet(js: jetspark.JetStream, server: Server) -> None:
    stream, consumer = await make_filled(js, 0)
    seen: list[Exception] = []
    async with (
        await PullSpy.on(server.url, consumer) as spy,
        consumer.consume(idle_heartbeat=4, on_error=seen.append) as messages,
    ):
        await spy.next()
        # Without them the alarm would come after 8 s.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(messages), 9)
        assert spy.waiting == 0
        await fill(js, stream, 1)
        await take(messages, 1)
    assert seen == []


async def test_a_hanging_server_is_warned_of_after_two_heartbeats_and_it_goes_on(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream()
        stream, consumer = await make_filled(js, 1)
        seen: list[Exception] = []
        began = time.monotonic()
        async with consumer.consume(idle_heartbeat=0.5, on_error=seen.append) as messages:
            await take(messages, 1)
            own_server.suspend()
            try:
                await eventually(lambda: len(seen) == 2)
            finally:
                own_server.resume()
            assert time.monotonic() - began > 1.4
            assert [type(error) for error in seen] == [MissedHeartbeat, MissedHeartbeat]
            assert isinstance(seen[0], MissedHeartbeat)
            assert seen[0].heartbeat == 0.5
            assert 0.9 < seen[0].silence < 5
            assert not messages.closed
            await fill(js, stream, 2, start=1)
            assert numbers(await take(messages, 2)) == [1, 2]


async def test_a_slow_reader_with_a_full_buffer_raises_no_alarm(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 50, ack_policy=AckPolicy.NONE)
    seen: list[Exception] = []
    async with consumer.consume(max_messages=5, threshold_messages=1, on_error=seen.append) as messages:
        await take(messages, 1)
        await eventually(lambda: messages.pending == 4)
        # No request is open, so the server owes nothing, and nothing waits for it.
        assert messages._started().flow.next_deadline() is None
        assert numbers(await take(messages, 49)) == list(range(1, 50))
    assert seen == []


async def test_a_message_larger_than_the_buffer_is_warned_of_until_it_is_gone(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 2, size=20, ack_policy=AckPolicy.NONE)
    await js.publish(f"{stream.name}.a", b"x" * 2000)
    await fill(js, stream, 2, start=3, size=20)
    seen: list[Exception] = []
    async with consumer.consume(max_bytes=600, on_error=seen.append) as messages:
        assert numbers(await take(messages, 2)) == [0, 1]
        await eventually(lambda: bool(seen))
        assert isinstance(seen[0], NextMessageTooLarge)
        assert not messages.closed
        await stream.delete_msg(3)
        assert numbers(await take(messages, 2)) == [3, 4]
    assert {type(error) for error in seen} == {NextMessageTooLarge}
    assert len(seen) < 8


async def test_a_message_that_fits_only_an_empty_buffer_waits_for_room(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 3, size=100, ack_policy=AckPolicy.NONE)
    await js.publish(f"{stream.name}.a", b"3".ljust(480))
    await fill(js, stream, 2, start=4, size=100)
    seen: list[Exception] = []
    async with consumer.consume(max_bytes=600, on_error=seen.append) as messages:
        assert numbers(await take(messages, 6)) == [0, 1, 2, 3, 4, 5]
    assert seen == []


@pytest.mark.slow
async def test_max_ack_pending_pauses_delivery_without_an_alarm(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 20, max_ack_pending=4)
    seen: list[Exception] = []
    async with consumer.consume(idle_heartbeat=4, on_error=seen.append) as messages:
        held = await take(messages, 4)
        # Without heartbeats the alarm would come after 8 s.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(messages), 9)
        got = numbers(held)
        for message in held:
            await message.ack()
        for _ in range(16):
            (message,) = await take(messages, 1)
            got.append(int(message.data))
            await message.ack()
    assert got == list(range(20))
    assert seen == []


@pytest.mark.slow
async def test_a_paused_consumer_delivers_when_it_is_resumed(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0)
    seen: list[Exception] = []
    async with consumer.consume(idle_heartbeat=4, on_error=seen.append) as messages:
        await pull_waits(consumer)
        await consumer.pause(datetime.now(UTC) + timedelta(minutes=5))
        await fill(js, stream, 2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(messages), 9)
        await consumer.resume()
        assert numbers(await take(messages, 2)) == [0, 1]
    assert seen == []
