"""What tests of consuming share: a stream, numbered messages in it, and a durable to take them with."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import jetspark
from jetspark import Consumer, ConsumerConfig, StorageType, Stream, StreamConfig
from support.helpers import LIMIT, eventually, unique

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetspark import Consume, Message


async def make(js: jetspark.JetStream, **options: Any) -> Stream:
    """A stream with a name nobody else uses, which takes every subject below its name."""
    name = unique()
    options.setdefault("storage", StorageType.MEMORY)
    options.setdefault("subjects", [f"{name}.>"])
    return await js.create_stream(StreamConfig(name=name, **options))


async def fill(js: jetspark.JetStream, stream: Stream, count: int, *, start: int = 0, size: int = 0) -> None:
    """Store ``count`` messages whose bodies are their numbers, padded with blanks to ``size`` bytes."""
    subject = f"{stream.name}.a"
    # One connection, one subject: when the last one has its ack, all are there. In a cluster the first one
    # needs an ack too, for the server may not know the way to a new stream yet.
    acked = {start + count - 1} if stream.cached_info.cluster is None else {start, start + count - 1}
    for number in range(start, start + count):
        body = (b"%d" % number).ljust(size)
        if number in acked:
            await js.publish(subject, body, retries=40)
        else:
            await js.connection.publish(subject, body)


async def durable(stream: Stream, **options: Any) -> Consumer:
    """A durable consumer of the stream."""
    options.setdefault("durable_name", "worker")
    return await stream.create_consumer(ConsumerConfig(**options))


async def make_filled(
    js: jetspark.JetStream, count: int, *, size: int = 0, **options: Any
) -> tuple[Stream, Consumer]:
    """A stream with ``count`` messages and a durable consumer with ``options``."""
    stream = await make(js)
    if count:
        await fill(js, stream, count, size=size)
    return stream, await durable(stream, **options)


def received(nc: jetspark.Connection, count: int) -> bool:
    """Whether a fetch has so many messages; that the server holds its pull request says nothing of them."""
    return any(getattr(sink, "received", 0) == count for sink in nc._core.router.sinks.values())


def numbers(messages: Iterable[Message]) -> list[int]:
    """The numbers that ``fill`` gave them."""
    return [int(message.data) for message in messages]


async def take(messages: Consume, count: int) -> list[Message]:
    """The next ``count`` messages; fails when they do not come."""
    async with asyncio.timeout(LIMIT):
        return [await anext(messages) for _ in range(count)]


async def waiting(consumer: Consumer, count: int) -> None:
    """Until the server holds so many pull requests."""

    async def so() -> bool:
        return (await consumer.info()).num_waiting == count

    await eventually(so)


async def has_pending(consumer: Consumer, count: int) -> bool:
    """Whether it has heard of so many messages that it has not delivered: a moment after their acks."""
    return (await consumer.info()).num_pending == count


async def has_pull(consumer: Consumer) -> bool:
    """Whether the server holds one pull request."""
    return (await consumer.info()).num_waiting == 1


class PullSpy:
    """Sees every pull request that anybody sends to a consumer: a second connection on its API subject."""

    def __init__(self, nc: jetspark.Connection, sub: jetspark.Subscription) -> None:
        self._nc = nc
        self._sub = sub

    @classmethod
    async def on(cls, url: str, consumer: Consumer) -> PullSpy:
        nc = await jetspark.connect(url)
        sub = await nc.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{consumer.stream_name}.{consumer.name}")
        await nc.flush()
        return cls(nc, sub)

    async def next(self) -> dict[str, Any]:
        """The next request."""
        message = await self._sub.next(timeout=LIMIT)
        return dict(json.loads(message.data), reply=message.reply)

    @property
    def waiting(self) -> int:
        """Requests seen and not yet asked for."""
        return self._sub.pending_messages

    async def __aenter__(self) -> PullSpy:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._nc.close()
