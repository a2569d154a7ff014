"""Push subscriptions (ADR-15): statuses, strangers, reconnects, and every way to end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import jetspark
from jetspark import PushSubscription, StorageType
from jetspark.errors import (
    ConnectionLost,
    ConsumerDeleted,
    DrainTimeout,
    NoConsumerResponders,
    NotJetStreamMessage,
    StatusError,
    UnexpectedStatus,
)
from support.consuming import fill, make, numbers
from support.helpers import eventually
from support.pushing import Errors, no_consumers, send_status, take

if TYPE_CHECKING:
    from jetspark import Message
    from jetspark.server import Server


# --- statuses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"409 Something New", UnexpectedStatus),
        (b"503", NoConsumerResponders),
        (b"777 Whatever", UnexpectedStatus),
    ],
)
async def test_errors_are_raised_at_their_place_and_the_subscription_stays(
    js: jetspark.JetStream, nc: jetspark.Connection, line: bytes, kind: type[StatusError]
) -> None:
    stream = await make(js)
    await fill(js, stream, 2)
    async with await js.subscribe(f"{stream.name}.a") as sub:
        await eventually(lambda: sub.pending == 2)
        send_status(nc, sub.deliver_subject, line)
        await nc.flush()
        await fill(js, stream, 1, start=2)
        await eventually(lambda: sub.pending == 3)
        assert numbers(await take(sub, 2)) == [0, 1]
        with pytest.raises(kind) as caught:
            await sub.next()
        assert caught.value.code == int(line[:3])
        assert numbers(await take(sub, 1)) == [2]


async def test_with_a_callback_errors_go_to_the_listener(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    stream, errors, got = await make(js), Errors(), []
    sub = await js.subscribe(f"{stream.name}.a", callback=got.append, on_error=errors)
    send_status(nc, sub.deliver_subject, b"409 Something New")
    (error,) = await errors.of(UnexpectedStatus)
    assert error.description == "Something New"
    assert got == []
    await sub.unsubscribe()


async def test_deletion_as_told_by_a_status_ends_it(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream = await make(js)
    await fill(js, stream, 1)
    async with await js.subscribe(f"{stream.name}.a") as sub:
        await eventually(lambda: sub.pending == 1)
        send_status(nc, sub.deliver_subject, b"409 Consumer Deleted")
        assert numbers(await take(sub, 1)) == [0]
        with pytest.raises(ConsumerDeleted):
            await sub.next()
        assert sub.closed
        assert [message async for message in sub] == []


async def test_unknown_information_is_ignored(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream = await make(js)
    async with await js.subscribe(f"{stream.name}.a") as sub:
        send_status(nc, sub.deliver_subject, b"101 News")
        await nc.flush()
        await fill(js, stream, 1)
        assert numbers(await take(sub, 1)) == [0]


async def test_a_stored_message_with_a_status_line_is_a_message(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    stream = await make(js)
    send_status(nc, f"{stream.name}.a", b"409 Consumer Deleted")
    await fill(js, stream, 1)
    async with await js.subscribe(f"{stream.name}.a") as sub:
        first, second = await take(sub, 2)
        assert (first.data, first.metadata.sequence.stream, second.data) == (b"", 1, b"0")


async def test_what_others_publish_to_the_deliver_subject_is_no_message(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    stream = await make(js)
    async with await js.subscribe(f"{stream.name}.a") as sub:
        await nc.publish(sub.deliver_subject, b"hello", reply="somebody")
        await nc.flush()
        await fill(js, stream, 1)
        with pytest.raises(NotJetStreamMessage, match="somebody"):
            await sub.next()
        assert numbers(await take(sub, 1)) == [0]


# --- reconnects ----------------------------------------------------------------------------------------


async def test_it_survives_a_reconnect(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream = await make(js)
    async with await js.subscribe(f"{stream.name}.a", idle_heartbeat=1.0, flow_control=True) as sub:
        await fill(js, stream, 3)
        assert numbers(await take(sub, 3)) == [0, 1, 2]
        await nc.force_reconnect()
        await fill(js, stream, 3, start=3)
        assert numbers(await take(sub, 3)) == [3, 4, 5]


async def test_a_durable_survives_a_restart_of_the_server(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream()
        stream = await make(js, storage=StorageType.FILE)
        await fill(js, stream, 2)
        sub = await js.subscribe(f"{stream.name}.a", durable="d", idle_heartbeat=0.5, flow_control=True)
        for message in await take(sub, 2):
            await message.ack_sync()
        await asyncio.to_thread(own_server.restart)
        await eventually(lambda: nc.is_connected, timeout=20)
        await fill(js, stream, 2, start=2)
        assert numbers(await take(sub, 2)) == [2, 3]
        await sub.unsubscribe()


# --- the end -------------------------------------------------------------------------------------------


async def test_closing_the_connection_ends_the_iteration(server: Server) -> None:
    nc = await jetspark.connect(server.url)
    js = nc.jetstream()
    stream = await make(js)
    sub = await js.subscribe(f"{stream.name}.a")
    reading = asyncio.ensure_future(collect(sub))
    await asyncio.sleep(0)
    await nc.close()
    assert await reading == []
    assert sub.closed
    await sub.unsubscribe()


async def collect(sub: PushSubscription) -> list[Message]:
    return [message async for message in sub]


@pytest.mark.parametrize("callback", [True, False])
async def test_a_connection_lost_for_good_is_told(own_server: Server, callback: bool) -> None:
    errors = Errors()
    nc = await jetspark.connect(own_server.url, reconnect=False)
    js = nc.jetstream()
    stream = await make(js)
    sub = await js.subscribe(f"{stream.name}.a", callback=print if callback else None, on_error=errors)
    own_server.kill()
    if callback:
        assert await errors.of(ConnectionLost)
    else:
        with pytest.raises(ConnectionLost):
            await sub.next(timeout=10)
    assert sub.closed
    await nc.close()


async def test_a_callback_may_unsubscribe_itself(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 10)
    got: list[int] = []

    async def handle(message: Message) -> None:
        got.append(int(message.data))
        if len(got) == 3:
            await sub.unsubscribe()

    sub = await js.subscribe(f"{stream.name}.a", callback=handle)
    await eventually(lambda: no_consumers(js, stream.name))
    assert got == [0, 1, 2]


async def test_a_callback_may_drain_itself(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 10)
    got: list[int] = []
    gate = asyncio.Event()

    async def handle(message: Message) -> None:
        await gate.wait()
        got.append(int(message.data))
        if len(got) == 1:
            await sub.drain()

    sub = await js.subscribe(f"{stream.name}.a", callback=handle)
    await eventually(lambda: sub.delivered + sub.pending == 10)
    gate.set()
    await eventually(lambda: no_consumers(js, stream.name))
    assert got == list(range(10))


async def test_a_callback_that_does_not_finish_is_given_up_at_drain(server: Server) -> None:
    async with jetspark.connect(server.url, drain_timeout=0.2) as nc:
        js = nc.jetstream()
        stream = await make(js)
        await fill(js, stream, 3)
        stuck = asyncio.Event()

        async def handle(message: Message) -> None:
            await stuck.wait()

        sub = await js.subscribe(f"{stream.name}.a", callback=handle)
        await eventually(lambda: sub.delivered == 1 and sub.pending == 2)
        with pytest.raises(DrainTimeout, match="left 2 messages"):
            await sub.drain()
        await sub.unsubscribe()
        assert await no_consumers(js, stream.name)


async def test_a_limit_ends_the_callback_and_deletes(js: jetspark.JetStream) -> None:
    stream = await make(js)
    got: list[int] = []
    sub = await js.subscribe(f"{stream.name}.a", callback=lambda m: got.append(int(m.data)))
    await sub.unsubscribe(max_messages=5)
    await fill(js, stream, 20)
    await eventually(lambda: no_consumers(js, stream.name))
    assert got == [0, 1, 2, 3, 4]
