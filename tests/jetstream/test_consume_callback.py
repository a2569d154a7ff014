"""``consume`` with a callback on the real server: concurrency, failures, and every way to end it."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import AckPolicy
from jetspark.errors import ConsumerDeleted, DrainTimeout, HandlerFailed, NoServersAvailable
from support.consuming import fill, make_filled, numbers
from support.helpers import eventually

if TYPE_CHECKING:
    from jetspark import Consumer, Message
    from jetspark.errors import JetsparkError
    from jetspark.server import Server


async def ack_pending(consumer: Consumer, count: int) -> None:
    async def so() -> bool:
        info = await consumer.info()
        return info.num_ack_pending == count and info.num_pending == 0

    await eventually(so)


@pytest.mark.parametrize("options", [{}, {"max_messages": 1}, {"max_messages": 7}, {"max_bytes": 900}])
async def test_messages_in_order_to_an_async_callback(
    js: jetspark.JetStream, options: dict[str, Any]
) -> None:
    stream, consumer = await make_filled(js, 50)
    got: list[int] = []

    async def handle(message: Message) -> None:
        got.append(int(message.data))
        await message.ack()

    async with consumer.consume_with(handle, **options) as messages:
        await eventually(lambda: len(got) == 50)
        await fill(js, stream, 50, start=50)
        await eventually(lambda: len(got) == 100)
        assert not messages.closed
    assert got == list(range(100))
    await ack_pending(consumer, 0)


async def test_a_plain_function_as_callback(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1000, ack_policy=AckPolicy.NONE)
    got: list[Message] = []
    async with consumer.consume_with(got.append, stop_after=1000) as messages:
        await messages.wait()
    assert numbers(got) == list(range(1000))


async def test_concurrency_is_real_and_bounded(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 60)
    running = most = 0
    together = asyncio.Event()

    async def handle(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 5:
            together.set()
        # Nobody gets past this before five are in it: proof that they run at the same time.
        await together.wait()
        await asyncio.sleep(0)
        running -= 1
        await message.ack()

    async with consumer.consume_with(handle, concurrency=5, stop_after=60) as messages:
        async with asyncio.timeout(10):
            await messages.wait()
    assert most == 5
    await ack_pending(consumer, 0)


async def test_one_at_a_time_by_default(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 20)
    running = 0
    got: list[int] = []

    async def handle(message: Message) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0.001)
        running -= 1
        got.append(int(message.data))

    async with consumer.consume_with(handle, stop_after=20) as messages:
        await messages.wait()
    assert got == list(range(20))


async def test_a_callback_that_raises_is_reported_and_consuming_goes_on(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 5)
    seen: list[JetsparkError] = []
    got: list[int] = []

    async def handle(message: Message) -> None:
        if message.data == b"2":
            raise LookupError("no such order")
        got.append(int(message.data))
        await message.ack()

    async with consumer.consume_with(handle, on_error=seen.append, stop_after=5) as messages:
        await messages.wait()
    assert got == [0, 1, 3, 4]
    (failure,) = seen
    assert isinstance(failure, HandlerFailed)
    assert isinstance(failure.error, LookupError)
    assert failure.message.data == b"2"
    assert "LookupError" in str(failure)
    assert "no such order" in str(failure)
    await ack_pending(consumer, 1)
    copy = pickle.loads(pickle.dumps(failure))
    assert str(copy) == str(failure)


async def test_a_callback_that_waits_for_something_cancelled_does_not_end_it(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 3)
    seen: list[JetsparkError] = []
    got: list[int] = []

    async def handle(message: Message) -> None:
        if message.data == b"0":
            never = asyncio.get_running_loop().create_future()
            never.cancel()
            await never
        got.append(int(message.data))

    async with consumer.consume_with(handle, on_error=seen.append, stop_after=3) as messages:
        async with asyncio.timeout(5):
            await messages.wait()
    assert got == [1, 2]
    assert [type(error) for error in seen] == [HandlerFailed]


async def test_an_error_listener_that_raises_harms_nothing(
    js: jetspark.JetStream, caplog: pytest.LogCaptureFixture
) -> None:
    _, consumer = await make_filled(js, 2)

    def handle(message: Message) -> None:
        raise LookupError

    def listener(error: JetsparkError) -> None:
        raise ZeroDivisionError

    async with consumer.consume_with(handle, on_error=listener, stop_after=2) as messages:
        await messages.wait()
    assert "on_error of consumer 'worker' of stream" in caplog.text


async def test_an_async_error_listener_is_awaited(
    js: jetspark.JetStream, caplog: pytest.LogCaptureFixture
) -> None:
    _, consumer = await make_filled(js, 2)
    seen: list[JetsparkError] = []

    def handle(message: Message) -> None:
        raise LookupError

    async def listener(error: JetsparkError) -> None:
        await asyncio.sleep(0)
        seen.append(error)
        raise ZeroDivisionError

    async with consumer.consume_with(handle, on_error=listener, stop_after=2) as messages:
        await messages.wait()
        await eventually(lambda: len(seen) == 2)
    assert "on_error of consumer 'worker' of stream" in caplog.text


async def test_an_error_listener_may_stop_it(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 100)
    calls = 0

    def handle(message: Message) -> None:
        nonlocal calls
        calls += 1
        raise LookupError

    async def listener(error: JetsparkError) -> None:
        await messages.stop()

    messages = consumer.consume_with(handle, on_error=listener, max_messages=10)
    async with messages, asyncio.timeout(5):
        await messages.wait()
    assert messages.closed
    assert calls <= 20


async def test_stop_from_inside_the_callback(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 50)
    got: list[int] = []

    async def handle(message: Message) -> None:
        got.append(int(message.data))
        await message.ack()
        if len(got) == 5:
            await messages.stop()

    messages = consumer.consume_with(handle)
    async with messages, asyncio.timeout(5):
        await messages.wait()
    assert got == [0, 1, 2, 3, 4]


async def test_several_callbacks_may_stop_it_at_once(js: jetspark.JetStream) -> None:
    """Each of them waiting for the others to finish would be a deadlock."""
    _, consumer = await make_filled(js, 50)
    inside = 0
    both = asyncio.Event()

    async def handle(message: Message) -> None:
        nonlocal inside
        inside += 1
        if inside == 2:
            both.set()
        await both.wait()
        await messages.stop()

    messages = consumer.consume_with(handle, concurrency=2)
    async with asyncio.timeout(5), messages:
        await messages.wait()
    assert inside == 2


async def test_stop_finishes_callbacks_under_way_and_starts_no_others(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 50)
    started: list[int] = []
    finished: list[int] = []
    go = asyncio.Event()

    async def handle(message: Message) -> None:
        started.append(int(message.data))
        await go.wait()
        await message.ack()
        finished.append(int(message.data))

    async with consumer.consume_with(handle, concurrency=3) as messages:
        await eventually(lambda: len(started) == 3)
        stopping = asyncio.create_task(messages.stop())
        await eventually(lambda: messages.closed)
        assert not stopping.done()
        go.set()
        await stopping
        assert finished == started == [0, 1, 2]
        await messages.wait()


async def test_drain_hands_everything_to_the_callback_and_wait_ends(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 20)
    got: list[int] = []
    go = asyncio.Event()

    async def handle(message: Message) -> None:
        await go.wait()
        got.append(int(message.data))
        await message.ack()

    async with consumer.consume_with(handle) as messages:
        await eventually(lambda: messages.pending == 19)
        await messages.drain()
        waiting = asyncio.create_task(messages.wait())
        await fill(js, stream, 5, start=20)
        assert not waiting.done()
        go.set()
        await waiting
        assert messages.closed
    assert got[:20] == list(range(20))
    info = await consumer.info()
    assert info.num_pending + len(got) == 25


async def test_drain_from_inside_the_callback(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 10)
    got: list[int] = []

    async def handle(message: Message) -> None:
        if not got:
            await messages.drain()
        got.append(int(message.data))

    messages = consumer.consume_with(handle)
    async with messages, asyncio.timeout(5):
        await eventually(lambda: bool(got))
        await messages.wait()
    assert got == list(range(len(got)))


async def test_waiting_for_one_that_has_ended(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1)
    async with consumer.consume_with(lambda message: None) as messages:
        await messages.stop()
        await messages.wait()
        await messages.wait()
    assert messages.closed


async def test_deleting_the_consumer_is_told_and_raised_by_wait(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 3)
    seen: list[JetsparkError] = []
    got: list[Message] = []
    async with consumer.consume_with(got.append, on_error=seen.append) as messages:
        await eventually(lambda: len(got) == 3)
        await consumer.delete()
        with pytest.raises(ConsumerDeleted):
            await messages.wait()
        assert messages.closed
    assert [type(error) for error in seen] == [ConsumerDeleted]


async def test_an_error_that_ends_it_is_told_although_nobody_waits(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 0)
    seen: list[JetsparkError] = []
    async with consumer.consume_with(lambda message: None, on_error=seen.append) as messages:

        async def waits() -> bool:
            return (await consumer.info()).num_waiting == 1

        await eventually(waits)
        await consumer.delete()
        await eventually(lambda: messages.closed)
        await eventually(lambda: bool(seen))
    assert [type(error) for error in seen] == [ConsumerDeleted]


async def test_closing_the_connection_ends_it(server: Server) -> None:
    nc = await jetspark.connect(server.url)
    _, consumer = await make_filled(nc.jetstream(), 3)
    got: list[Message] = []
    seen: list[JetsparkError] = []
    async with consumer.consume_with(got.append, on_error=seen.append) as messages:
        await eventually(lambda: len(got) == 3)
        await nc.close()
        await messages.wait()
        assert messages.closed
    assert seen == []


async def test_two_of_them_share_the_messages(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 500)
    first: list[int] = []
    second: list[int] = []

    def handler(mine: list[int]) -> Any:
        async def handle(message: Message) -> None:
            mine.append(int(message.data))
            await message.ack()
            await asyncio.sleep(0)

        return handle

    async with (
        consumer.consume_with(handler(first), max_messages=10),
        consumer.consume_with(handler(second), max_messages=10),
    ):
        await eventually(lambda: len(first) + len(second) == 500)
    assert sorted(first + second) == list(range(500))
    assert first
    assert second


async def test_a_message_taken_twice_is_acked_once(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    _, consumer = await make_filled(js, 30)
    acks = await nc.subscribe(f"$JS.ACK.{consumer.stream_name}.>")
    await nc.flush()

    async def handle(message: Message) -> None:
        await message.ack()
        await message.ack()
        await message.nak()

    async with consumer.consume_with(handle, stop_after=30, concurrency=4) as messages:
        await messages.wait()
    await nc.flush()
    assert acks.pending_messages == 30


async def test_a_connection_lost_for_good_is_told_and_raised_by_wait(own_server: Server) -> None:
    async with jetspark.connect(own_server.url, max_reconnects=2, reconnect_wait=0.01) as nc:
        _, consumer = await make_filled(nc.jetstream(), 3)
        got: list[Message] = []
        seen: list[JetsparkError] = []
        async with consumer.consume_with(got.append, on_error=seen.append) as messages:
            await eventually(lambda: len(got) == 3)
            own_server.kill()
            with pytest.raises(NoServersAvailable):
                async with asyncio.timeout(10):
                    await messages.wait()
        assert [type(error) for error in seen] == [NoServersAvailable]


@pytest.mark.parametrize("ordered", [False, True])
async def test_draining_the_connection_lets_callbacks_finish_what_has_arrived(
    js: jetspark.JetStream, server: Server, ordered: bool
) -> None:
    stream, consumer = await make_filled(js, 20)
    got: list[int] = []
    go = asyncio.Event()

    async def handle(message: Message) -> None:
        await go.wait()
        await asyncio.sleep(0.005)
        await message.ack()
        got.append(int(message.data))

    seen: list[JetsparkError] = []
    async with jetspark.connect(server.url) as other:
        if ordered:
            theirs: Consumer = await other.jetstream().create_ordered_consumer(stream.name)
        else:
            theirs = await other.jetstream().get_consumer(stream.name, "worker")
        async with theirs.consume_with(handle, on_error=seen.append) as messages:
            await eventually(lambda: messages.pending == 19)
            go.set()
            await other.drain()
            assert got == list(range(20))
            assert messages.closed
            await messages.wait()
    assert seen == []
    if not ordered:
        await ack_pending(consumer, 0)


async def test_a_callback_may_drain_its_connection(js: jetspark.JetStream, server: Server) -> None:
    stream, _ = await make_filled(js, 20)
    calls = 0

    async def handle(message: Message) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            await other.drain()

    other = await jetspark.connect(server.url)
    theirs = await other.jetstream().get_consumer(stream.name, "worker")
    async with asyncio.timeout(5), theirs.consume_with(handle) as messages:
        await messages.wait()
    assert other.is_closed
    assert calls >= 3


async def test_a_callback_that_does_not_end_is_named_when_the_drain_times_out(
    js: jetspark.JetStream, server: Server
) -> None:
    stream, _ = await make_filled(js, 5)
    go = asyncio.Event()

    async def handle(message: Message) -> None:
        await go.wait()

    async with jetspark.connect(server.url, drain_timeout=0.3) as other:
        theirs = await other.jetstream().get_consumer(stream.name, "worker")
        async with theirs.consume_with(handle) as messages:
            await eventually(lambda: messages.pending == 4)
            with pytest.raises(DrainTimeout):
                await other.drain()
            go.set()
