"""An empty fetch means that the server said so. Without its word a fetch raises, or ``batch.error`` says why.

"Fetch until empty, then exit" must not end as a success while messages wait and nobody answers.
"""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import AckPolicy, PullSubscription
from jetspark.errors import (
    ConnectionLost,
    MissedHeartbeat,
    NextMessageTooLarge,
    NoConsumerResponders,
    NotConnected,
    PullSubscriptionClosed,
    PullUnanswered,
    RequestTimeout,
)
from jetspark.jetstream.consume.pull import message_size
from support.consuming import durable, fill, has_pull, make, make_filled, numbers
from support.helpers import eventually
from support.lossy_proxy import LossyProxy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jetspark import Consumer
    from jetspark.server import Server

Face = "Callable[[Consumer], Awaitable[Any]]"


async def iterate(consumer: Consumer) -> Any:
    return [message async for message in consumer.fetch(3, expires=0.3)]


def subscribed(*, batch: int) -> Callable[[Consumer], Awaitable[Any]]:
    async def fetch(consumer: Consumer) -> Any:
        sub = PullSubscription(consumer, "", owned=False)
        return await sub.fetch(batch, timeout=0.3)

    return fetch


FACES: dict[str, Callable[[Consumer], Awaitable[Any]]] = {
    "fetch": lambda consumer: consumer.fetch(3, expires=0.3)._collect(),
    "iterated": iterate,
    "fetch_bytes": lambda consumer: consumer.fetch_bytes(1000, expires=0.3)._collect(),
    "fetch_no_wait": lambda consumer: consumer.fetch_no_wait(3)._collect(),
    "no_wait with expires": lambda consumer: consumer.fetch(3, no_wait=True, expires=0.3)._collect(),
    "next": lambda consumer: consumer.next(expires=0.3),
    "pull_subscribe of one": subscribed(batch=1),
    "pull_subscribe of several": subscribed(batch=3),
}
faces = pytest.mark.parametrize("face", FACES.values(), ids=FACES)


async def killed(server: Server, nc: jetspark.Connection) -> None:
    server.kill()
    await eventually(lambda: not nc.is_connected)


def received(nc: jetspark.Connection, count: int) -> bool:
    return any(getattr(sink, "received", 0) == count for sink in nc._core.router.sinks.values())


# --- the link is down ------------------------------------------------------------------------------------


@faces
async def test_without_a_link_it_says_so(own_server: Server, face: Callable[[Any], Awaitable[Any]]) -> None:
    async with jetspark.connect(own_server.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 3)
        await killed(own_server, nc)
        with pytest.raises(NotConnected) as caught:
            await face(consumer)
    text = str(caught.value)
    assert f"{own_server.host}:{own_server.port}" in text
    assert "disconnected" in text
    assert isinstance(caught.value, ConnectionLost)
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


@faces
async def test_an_ordered_consumer_without_a_link_says_so(
    own_server: Server, face: Callable[[Any], Awaitable[Any]]
) -> None:
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream()
        stream = await make(js)
        await fill(js, stream, 3)
        consumer = await js.create_ordered_consumer(stream.name)
        await killed(own_server, nc)
        with pytest.raises(NotConnected):
            await face(consumer)


async def test_a_link_lost_in_the_middle_keeps_what_had_come_and_says_why(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 2)
        waiting = asyncio.ensure_future(consumer.fetch(5, expires=1)._collect())
        await eventually(lambda: received(nc, 2))
        await killed(own_server, nc)
        batch = await waiting
        assert numbers(batch) == [0, 1]
        assert isinstance(batch.error, NotConnected)


async def test_a_link_lost_in_the_middle_of_an_iteration_is_raised_behind_the_last(
    own_server: Server,
) -> None:
    async with jetspark.connect(own_server.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 2)
        got: list[int] = []

        async def read() -> None:
            async for message in consumer.fetch(5, expires=1):
                got.append(int(message.data))
                if len(got) == 2:
                    own_server.kill()

        with pytest.raises(NotConnected):
            await read()
        assert got == [0, 1]


# --- the server does not answer ---------------------------------------------------------------------------


@faces
async def test_a_server_that_hangs_is_not_an_empty_one(
    own_server: Server, face: Callable[[Any], Awaitable[Any]]
) -> None:
    async with jetspark.connect(own_server.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 3)
        own_server.suspend()
        try:
            with pytest.raises(PullUnanswered, match="unknown whether messages wait"):
                await face(consumer)
        finally:
            own_server.resume()


async def test_an_ordered_consumer_of_a_server_that_hangs(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream()
        stream = await make(js)
        await fill(js, stream, 3)
        consumer = await js.create_ordered_consumer(stream.name)
        own_server.suspend()
        try:
            with pytest.raises(PullUnanswered):
                await consumer.fetch(3, expires=0.3)
        finally:
            own_server.resume()


async def test_a_swallowed_request_keeps_what_had_come_and_says_why(server: Server) -> None:
    """Two messages came; the rest, and the server's 408, are lost on their way."""
    async with LossyProxy(server) as proxy, jetspark.connect(proxy.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 2)
        waiting = asyncio.ensure_future(consumer.fetch(5, expires=1)._collect())
        await eventually(lambda: received(nc, 2))
        proxy.swallow_down = True
        batch = await waiting
        assert numbers(batch) == [0, 1]
        assert isinstance(batch.error, PullUnanswered)


async def test_a_consumer_that_nobody_answers_for(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1)
    await consumer.delete()
    for face in (FACES["fetch"], FACES["iterated"], FACES["next"], FACES["pull_subscribe of one"]):
        with pytest.raises(NoConsumerResponders):
            await face(consumer)


async def test_missed_heartbeats_without_a_message_are_raised(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 1)
        own_server.suspend()
        try:
            with pytest.raises(MissedHeartbeat):
                await consumer.next(expires=30, idle_heartbeat=0.5)
        finally:
            own_server.resume()


# --- messages that wait, but not at the server ------------------------------------------------------------


async def test_a_message_larger_than_max_bytes_is_not_an_empty_consumer(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1, size=1000)
    with pytest.raises(NextMessageTooLarge, match="max_bytes"):
        await consumer.fetch_bytes(200, expires=20)
    with pytest.raises(NextMessageTooLarge):
        [message async for message in consumer.fetch_bytes(200, expires=20)]
    assert numbers(await consumer.fetch(1)) == [0]


async def left_behind(consumer: Consumer) -> int:
    """Leave the second of two messages in the stash; its size."""
    iterator = aiter(consumer.fetch(2))
    size = message_size(await anext(iterator))
    await eventually(lambda: len(consumer._stash._waiting[0].buffer) == 1)
    await iterator.aclose()
    return size


@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
async def test_a_message_that_was_left_behind_and_is_too_large(js: jetspark.JetStream, ordered: bool) -> None:
    stream = await make(js)
    await fill(js, stream, 2, size=1000)
    consumer = await js.create_ordered_consumer(stream.name) if ordered else await durable(stream)
    size = await left_behind(consumer)
    with pytest.raises(NextMessageTooLarge):
        await consumer.fetch_bytes(size // 2, expires=0.2)
    with pytest.raises(NextMessageTooLarge):
        [message async for message in consumer.fetch_bytes(size // 2, expires=0.2)]
    assert numbers(await consumer.fetch(1)) == [1]


async def test_what_comes_to_a_cancelled_fetch_is_found_before_the_next_says_empty(
    js: jetspark.JetStream,
) -> None:
    """A fetch that was cancelled may get messages until the server has confirmed its end."""
    stream, consumer = await make_filled(js, 0, ack_policy=AckPolicy.NONE)
    first = asyncio.ensure_future(consumer.fetch(1, expires=20)._collect())
    await eventually(lambda: has_pull(consumer))
    second = asyncio.ensure_future(consumer.fetch_bytes(5000, expires=0.5)._collect())
    first.cancel()
    # The request of the first is still open for a moment, and served before the second's.
    js._core.outbox.publish(f"{stream.name}.a", b"0")
    assert numbers(await second) == [0]


# --- ended by the user --------------------------------------------------------------------------------------


async def test_an_unsubscribe_during_a_fetch_is_not_an_empty_answer(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0)
    sub = await js.pull_subscribe(None, stream=stream.name, consumer=consumer.name)
    waiting = asyncio.create_task(sub.fetch(5, timeout=30))
    await eventually(lambda: has_pull(consumer))
    await sub.unsubscribe()
    with pytest.raises(PullSubscriptionClosed):
        await waiting


# --- other requests while there is no link ----------------------------------------------------------------


async def test_requests_without_a_link_name_the_disconnection(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream(timeout=0.2)
        stream = await make(js)
        await killed(own_server, nc)
        asks = (stream.info, lambda: nc.request("svc", timeout=0.2), lambda: nc.flush(timeout=0.2))
        for ask in asks:
            with pytest.raises(RequestTimeout, match="disconnected") as caught:
                await ask()
            assert f"{own_server.host}:{own_server.port}" in str(caught.value)
            assert "slow or gone" not in str(caught.value)
