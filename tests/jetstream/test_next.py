"""``next`` on the real server (ADR-37 'Next'): a message, None after expires, or what ended it."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

import jetspark
from jetspark import AckPolicy
from jetspark.errors import ConsumerDeleted, InvalidArgument, MissedHeartbeat, NoConsumerResponders
from support.consuming import PullSpy, fill, make_filled
from support.helpers import FOREVER, PROMPT, eventually

if TYPE_CHECKING:
    from jetspark import Consumer
    from jetspark.jetstream.flow.pull import PullFlow
    from jetspark.server import Server


async def one_pull_waits(consumer: Consumer) -> None:
    async def waits() -> bool:
        return (await consumer.info()).num_waiting == 1

    await eventually(waits)


async def test_messages_one_after_the_other(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 3)
    for number in range(3):
        message = await consumer.next()
        assert message is not None
        assert int(message.data) == number
        await message.ack()


async def test_none_after_expires(js: jetspark.JetStream, gave_up: list[PullFlow]) -> None:
    _, consumer = await make_filled(js, 0)
    for expires in (0.5, 50):  # the short one is enough unless the server can't run for a second
        gave_up.clear()
        began = time.monotonic()
        assert await consumer.next(expires=expires) is None
        assert time.monotonic() - began > 0.9 * expires
        if not gave_up:
            break
    assert gave_up == [], "the server's word comes before our own deadline"


async def test_a_message_that_comes_while_it_waits(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0)
    waiting = asyncio.create_task(consumer.next(expires=10))
    await one_pull_waits(consumer)
    await fill(js, stream, 1)
    message = await waiting
    assert message is not None
    assert message.data == b"0"


async def test_the_request_is_sent_when_it_is_called_and_not_before(
    js: jetspark.JetStream, server: Server
) -> None:
    _, consumer = await make_filled(js, 2)
    async with await PullSpy.on(server.url, consumer) as spy:
        first, second = consumer.next(), consumer.next(expires=60)
        await js.connection.flush()
        assert spy.waiting == 0
        await first
        request = await spy.next()
        assert (request["batch"], request["expires"]) == (1, 30_000_000_000)
        assert "idle_heartbeat" not in request
        await second
        request = await spy.next()
        assert (request["expires"], request["idle_heartbeat"]) == (60_000_000_000, 30_000_000_000)


async def test_deleting_the_consumer_while_it_waits(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 0)
    waiting = asyncio.create_task(consumer.next(expires=10))
    await one_pull_waits(consumer)
    await consumer.delete()
    with pytest.raises(ConsumerDeleted):
        await waiting
    with pytest.raises(NoConsumerResponders):
        await consumer.next()


async def test_options_that_can_not_work(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 0)
    with pytest.raises(InvalidArgument, match="expires"):
        await consumer.next(expires=0)
    with pytest.raises(InvalidArgument, match="idle_heartbeat"):
        await consumer.next(expires=1, idle_heartbeat=1)


@pytest.mark.parametrize("ack_policy", [AckPolicy.NONE, AckPolicy.EXPLICIT])
async def test_cancelling_at_any_moment_loses_no_message(
    js: jetspark.JetStream, ack_policy: AckPolicy
) -> None:
    _, consumer = await make_filled(js, 100, ack_policy=ack_policy)
    got: list[int] = []
    turns = 0
    while len(got) < 100:
        waiting = asyncio.create_task(consumer.next(expires=5))
        for _ in range(turns % 11):
            await asyncio.sleep(0)
        turns += 1
        if turns % 4:
            waiting.cancel()
        try:
            message = await waiting
        except asyncio.CancelledError:
            continue
        assert message is not None
        got.append(int(message.data))
    assert sorted(got) == list(range(100))


async def test_a_timeout_around_it_loses_no_message(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0, ack_policy=AckPolicy.NONE)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(consumer.next(), 0.1)
    await fill(js, stream, 1)
    message = await consumer.next(expires=10)
    assert message is not None
    assert message.data == b"0"


async def test_several_at_once_share_the_messages(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 20)
    messages = await asyncio.gather(*(consumer.next() for _ in range(20)))
    assert sorted(int(message.data) for message in messages if message) == list(range(20))


async def test_a_hanging_server_is_noticed_by_its_missing_heartbeats(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 0)
        waiting = asyncio.create_task(consumer.next(expires=30, idle_heartbeat=0.5))
        await one_pull_waits(consumer)
        own_server.suspend()
        try:
            with pytest.raises(MissedHeartbeat):
                await waiting
        finally:
            own_server.resume()


async def test_a_server_that_dies_while_it_waits_is_waited_for(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream()
        stream, consumer = await make_filled(js, 0)
        own_server.restart()
        # A memory stream is gone with its server; the call ends with the word of the new one.
        with pytest.raises(NoConsumerResponders):
            await consumer.next(expires=10)
        assert consumer.stream_name == stream.name


async def test_what_comes_for_a_cancelled_one_goes_to_the_one_that_waits(js: jetspark.JetStream) -> None:
    """With ack none the cancelled request lives a moment longer; its message must not sit in the stash."""
    stream, consumer = await make_filled(js, 0, ack_policy=AckPolicy.NONE)
    cancelled = asyncio.create_task(consumer.next(expires=FOREVER))
    await one_pull_waits(consumer)
    cancelled.cancel()
    waiting = asyncio.create_task(consumer.next(expires=FOREVER))
    await asyncio.wait([cancelled])
    began = time.monotonic()
    await fill(js, stream, 1)
    message = await waiting
    assert message is not None
    assert message.data == b"0"
    assert time.monotonic() - began < PROMPT


async def test_of_an_ordered_consumer_that_is_deleted_again_and_again(js: jetspark.JetStream) -> None:
    stream, _ = await make_filled(js, 4)
    consumer = await stream.create_ordered_consumer()
    for number in range(4):
        message = await consumer.next(expires=5)
        assert message is not None
        assert int(message.data) == number
        await js.delete_consumer(stream.name, consumer.name)


@pytest.mark.parametrize("policy", [None, "by_start_sequence", "by_start_time"])
async def test_an_ordered_consumer_starts_at_one_place(js: jetspark.JetStream, policy: str | None) -> None:
    stream, _ = await make_filled(js, 1)
    options = {} if policy is None else {"deliver_policy": policy}
    with pytest.raises(InvalidArgument, match="excludes"):
        await stream.create_ordered_consumer(opt_start_seq=3, opt_start_time=datetime.now(UTC), **options)
