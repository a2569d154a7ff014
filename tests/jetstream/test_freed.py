"""A closed connection is freed, whatever was left in its buffers.

Messages refer to their connection and are invisible to the garbage collector, so a circle through one of them
would live for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import TYPE_CHECKING

import pytest

import jetspark
from jetspark import ConsumerConfig
from support.consuming import durable, fill, make
from support.helpers import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jetspark.server import Server


async def cancelled_fetch(nc: jetspark.Connection, stream: str) -> object:
    consumer = await nc.jetstream().get_consumer(stream, "worker")
    fetch = asyncio.ensure_future(consumer.fetch(50, expires=30)._collect())
    await eventually(lambda: consumer._stash.in_use and len(consumer._stash._waiting[0].buffer) == 20)
    fetch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await fetch
    assert len(consumer._stash) == 20
    return consumer


async def iteration_left(nc: jetspark.Connection, stream: str) -> object:
    consumer = await nc.jetstream().get_consumer(stream, "worker")
    async for _ in consumer.fetch(50, expires=30):
        # Some are here when it is left: what arrives later is not kept.
        await eventually(lambda: consumer._stash._waiting[0].buffer)
        break
    await eventually(lambda: len(consumer._stash))
    return consumer


async def consume_not_read(nc: jetspark.Connection, stream: str) -> object:
    consumer = await nc.jetstream().get_consumer(stream, "worker")
    messages = consumer.consume()
    await messages.__aenter__()
    await eventually(lambda: messages.pending)
    return messages


async def ordered_fetch_left(nc: jetspark.Connection, stream: str) -> object:
    consumer = await nc.jetstream().create_ordered_consumer(stream)
    async for _ in consumer.fetch(20, expires=30):
        break
    return consumer


async def push_not_read(nc: jetspark.Connection, stream: str) -> object:
    sub = await nc.jetstream().subscribe(f"{stream}.a", config=ConsumerConfig())
    await eventually(lambda: sub.pending)
    return sub


async def core_not_read(nc: jetspark.Connection, stream: str) -> object:
    sub = await nc.subscribe(f"{stream}.core")
    await nc.publish(f"{stream}.core")
    await eventually(lambda: sub.pending_messages)
    return sub


@pytest.mark.parametrize(
    "leave",
    [
        cancelled_fetch,
        iteration_left,
        consume_not_read,
        ordered_fetch_left,
        push_not_read,
        core_not_read,
    ],
)
@pytest.mark.parametrize("handle", ["kept until closed", "dropped before"])
async def test_what_was_left_behind_does_not_keep_the_connection(
    server: Server,
    js: jetspark.JetStream,
    leave: Callable[[jetspark.Connection, str], Awaitable[object]],
    handle: str,
) -> None:
    stream = await make(js)
    await durable(stream)
    await fill(js, stream, 20)
    nc = await jetspark.connect(server.url)
    left: object = await leave(nc, stream.name)
    if handle == "dropped before":
        del left
        await nc.close()
    else:
        await nc.close()
        del left
    connection = weakref.ref(nc)
    del nc

    def freed() -> bool:
        gc.collect()
        return connection() is None

    await eventually(freed)
    assert connection() is None
