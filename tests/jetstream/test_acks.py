"""Acks on the real server (ADR-15 'Ack Handling'): what each does, once only, and when it fails."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import AckPolicy
from jetspark.errors import ConnectionClosed, InvalidArgument, RequestTimeout
from support.consuming import make_filled, numbers
from support.helpers import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jetspark import Consumer, Message
    from jetspark.server import Server

#: Every ack that ends a delivery.
TERMINAL = pytest.mark.parametrize(
    "end",
    [
        lambda message: message.ack(),
        lambda message: message.ack_sync(),
        lambda message: message.nak(),
        lambda message: message.nak(delay=60),
        lambda message: message.term(),
        lambda message: message.term("bad"),
    ],
    ids=["ack", "ack_sync", "nak", "nak_delay", "term", "term_reason"],
)


async def acks_of(nc: jetspark.Connection, message: Message) -> jetspark.Subscription:
    """Everything that is sent to the message's ack subject from now on."""
    sub = await nc.subscribe(message.reply)
    await nc.flush()
    return sub


async def take(sub: jetspark.Subscription) -> list[bytes]:
    await sub._sink.core.flush()
    return [(await sub.next(timeout=1)).data for _ in range(sub.pending_messages)]


async def ack_pending(consumer: Consumer, count: int) -> None:
    async def so() -> bool:
        return (await consumer.info()).num_ack_pending == count

    await eventually(so)


async def first(consumer: Consumer) -> Message:
    message = await consumer.next(expires=5)
    assert message is not None
    return message


async def test_ack(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    _, consumer = await make_filled(js, 1)
    message = await first(consumer)
    sub = await acks_of(nc, message)
    assert not message.is_acked
    await message.ack()
    assert message.is_acked
    assert await take(sub) == [b"+ACK"]
    await ack_pending(consumer, 0)
    assert (await consumer.info()).ack_floor.stream_seq == 1


async def test_ack_sync_returns_when_the_server_has_recorded_it(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 50)
    batch = await consumer.fetch(50)
    assert len(batch) == 50
    for message in batch:
        await message.ack_sync()
        assert message.is_acked
        assert (await consumer.info()).ack_floor.stream_seq == message.metadata.sequence.stream


async def test_nak_delivers_again_at_once(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    _, consumer = await make_filled(js, 1)
    message = await first(consumer)
    sub = await acks_of(nc, message)
    await message.nak()
    again = await first(consumer)
    assert await take(sub) == [b"-NAK"]
    assert (again.data, again.metadata.num_delivered) == (b"0", 2)


@pytest.mark.parametrize("delay", [0.4, timedelta(seconds=0.4)])
async def test_nak_with_a_delay(
    js: jetspark.JetStream, nc: jetspark.Connection, delay: float | timedelta
) -> None:
    _, consumer = await make_filled(js, 1)
    message = await first(consumer)
    sub = await acks_of(nc, message)
    began = time.monotonic()
    await message.nak(delay=delay)
    again = await first(consumer)
    assert time.monotonic() - began >= 0.39
    assert await take(sub) == [b'-NAK {"delay": 400000000}']
    assert again.metadata.num_delivered == 2


@pytest.mark.parametrize(("reason", "body"), [(None, b"+TERM"), ("no such order", b"+TERM no such order")])
async def test_term_never_delivers_again_and_the_server_tells(
    js: jetspark.JetStream, nc: jetspark.Connection, reason: str | None, body: bytes
) -> None:
    stream, consumer = await make_filled(js, 1, ack_wait=0.3)
    told = await nc.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{stream.name}.worker")
    message = await first(consumer)
    sub = await acks_of(nc, message)
    await message.term(reason)
    advisory = json.loads((await told.next(timeout=20)).data)
    assert advisory.get("reason", None) == reason
    assert advisory["stream_seq"] == 1
    assert await take(sub) == [body]
    await ack_pending(consumer, 0)
    assert await consumer.next(expires=0.5) is None


@pytest.mark.slow
async def test_in_progress_starts_ack_wait_anew(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    _, consumer = await make_filled(js, 1, ack_wait=4)
    message = await first(consumer)
    sub = await acks_of(nc, message)
    for _ in range(2):
        await asyncio.sleep(1)  # what is won by it
        last = time.monotonic()
        await message.in_progress()
    assert not message.is_acked
    again = await consumer.next(expires=60)
    assert again is not None
    assert again.metadata.num_delivered == 2
    assert time.monotonic() - last >= 3.95
    assert await take(sub) == [b"+WPI", b"+WPI"]
    await message.ack_sync()
    assert await consumer.next(expires=4.5) is None


async def test_without_an_ack_it_is_delivered_again_after_ack_wait(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1, ack_wait=0.3)
    await first(consumer)
    assert (await first(consumer)).metadata.num_delivered == 2


async def test_ack_sync_of_a_delivery_that_was_superseded(js: jetspark.JetStream) -> None:
    """The ack of the first delivery, late, still counts; and so does that of the second."""
    _, consumer = await make_filled(js, 1, ack_wait=0.3)
    late, again = await first(consumer), await first(consumer)
    assert again.metadata.num_delivered == 2
    await late.ack_sync()
    await again.ack_sync()
    info = await consumer.info()
    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 1)
    assert await consumer.next(expires=0.5) is None


@TERMINAL
async def test_the_first_terminal_ack_counts_and_later_ones_are_ignored(
    js: jetspark.JetStream, nc: jetspark.Connection, end: Callable[[Message], Awaitable[None]]
) -> None:
    _, consumer = await make_filled(js, 1)
    message = await first(consumer)
    sub = await acks_of(nc, message)
    await end(message)
    assert message.is_acked
    await message.in_progress()
    await message.ack()
    await message.ack_sync()
    await message.nak()
    await message.nak(delay=1)
    await message.term("again")
    assert len(await take(sub)) == 1


@TERMINAL
async def test_ack_policy_none_sends_nothing(
    js: jetspark.JetStream, nc: jetspark.Connection, end: Callable[[Message], Awaitable[None]]
) -> None:
    _, consumer = await make_filled(js, 1, ack_policy=AckPolicy.NONE)
    message = await first(consumer)
    sub = await acks_of(nc, message)
    await message.in_progress()
    await end(message)
    assert await take(sub) == []
    assert not message.is_acked


async def test_ack_policy_all_covers_what_came_before(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 5, ack_policy=AckPolicy.ALL)
    batch = await consumer.fetch(5)
    await batch[3].ack_sync()
    info = await consumer.info()
    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (1, 4)


async def test_two_handles_of_one_delivery_ack_without_harm(js: jetspark.JetStream) -> None:
    """The server answers a repeated double ack too: it is idempotent."""
    _, consumer = await make_filled(js, 2)
    message = await first(consumer)
    await message.ack_sync()
    message._acked = False
    await message.ack_sync()
    info = await consumer.info()
    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 1)


async def test_acks_go_out_in_order_and_together(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1000)
    for message in await consumer.fetch(1000):
        await message.ack()
    await ack_pending(consumer, 0)
    assert (await consumer.info()).ack_floor.stream_seq == 1000


@TERMINAL
async def test_an_ack_after_the_connection_was_closed_raises(
    server: Server, end: Callable[[Message], Awaitable[None]]
) -> None:
    async with jetspark.connect(server.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 1)
        message = await first(consumer)
    with pytest.raises(ConnectionClosed):
        await end(message)
    with pytest.raises(ConnectionClosed):
        await message.in_progress()
    assert not message.is_acked


async def test_acks_sent_right_before_close_arrive(js: jetspark.JetStream, server: Server) -> None:
    stream, consumer = await make_filled(js, 100)
    async with jetspark.connect(server.url) as other:
        theirs = await other.jetstream().get_consumer(stream.name, "worker")
        batch = await theirs.fetch(100)
        assert len(batch) == 100
        await ack_pending(consumer, 100)
        for message in batch:
            await message.ack()
    await ack_pending(consumer, 0)
    assert (await consumer.info()).ack_floor.stream_seq == 100


async def test_acks_while_disconnected_are_sent_on_reconnect(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    _, consumer = await make_filled(js, 10)
    batch = await consumer.fetch(10)
    assert len(batch) == 10
    reconnecting = asyncio.create_task(nc.force_reconnect())
    await asyncio.sleep(0)  # its first step breaks the link; a millisecond later there is a new one
    assert not nc.is_connected
    for message in batch:
        await message.ack()
    await reconnecting
    await ack_pending(consumer, 0)
    assert (await consumer.info()).ack_floor.stream_seq == 10


async def test_ack_sync_of_a_hanging_server_times_out_and_may_be_repeated(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 1)
        message = await first(consumer)
        own_server.suspend()
        try:
            with pytest.raises(RequestTimeout):
                await message.ack_sync(timeout=0.2)
        finally:
            own_server.resume()
        assert not message.is_acked
        await message.ack_sync()
        assert message.is_acked
        assert (await consumer.info()).num_ack_pending == 0


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda message: message.nak(delay=-1), "delay"),
        (lambda message: message.term("a\r\nPUB x 0"), "reason"),
        (lambda message: message.term("a\nb"), "reason"),
    ],
)
async def test_bad_arguments_are_refused_and_leave_the_message_open(
    js: jetspark.JetStream, call: Callable[[Message], Awaitable[None]], field: str
) -> None:
    _, consumer = await make_filled(js, 1)
    message = await first(consumer)
    with pytest.raises(InvalidArgument, match=field):
        await call(message)
    assert not message.is_acked
    await message.ack_sync()


async def test_max_ack_pending_holds_delivery_until_something_is_acked(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 5, max_ack_pending=2)
    batch = await consumer.fetch(5, expires=1)
    assert numbers(batch) == [0, 1]
    await batch[0].ack()
    assert numbers(await consumer.fetch(5, expires=1)) == [2]


async def test_max_deliver(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1, max_deliver=2, ack_wait=0.2)
    got: list[Any] = [await consumer.next(expires=seconds) for seconds in (5, 5, 1)]
    assert [message and message.metadata.num_delivered for message in got] == [1, 2, None]
