"""What tests of the consumer reference share: deliveries with the time at which they came."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import TYPE_CHECKING

from support.helpers import LIMIT

if TYPE_CHECKING:
    import jetspark
    from jetspark import Consumer, ConsumerInfo, Message

#: How much too early a redelivery may seem: the server's clock runs from its side of the delivery.
EARLY = 0.05


async def take(consumer: Consumer, *, within: float = LIMIT) -> Message:
    """The next message, which must come; its ack is up to the caller."""
    message = await consumer.next(expires=within)
    assert message is not None
    return message


async def arrivals(consumer: Consumer, count: int, *, within: float = LIMIT) -> list[tuple[float, Message]]:
    """The next deliveries and when they came, not acked."""
    got: list[tuple[float, Message]] = []
    async with asyncio.timeout(within), consumer.consume(max_messages=count) as messages:
        async for message in messages:
            got.append((time.monotonic(), message))
            if len(got) == count:
                break
    return got


def pauses(got: list[tuple[float, Message]]) -> list[float]:
    """Seconds between the arrivals."""
    times = [at for at, _ in got]
    return [after - before for before, after in pairwise(times)]


async def pushed(sub: jetspark.Subscription, count: int, *, within: float = LIMIT) -> list[jetspark.Msg]:
    """The next messages on a deliver subject, statuses left out."""
    got: list[jetspark.Msg] = []
    async with asyncio.timeout(within):
        while len(got) < count:
            message = await sub.next(timeout=within)
            if message.status is None:
                got.append(message)
    return got


async def gone(consumer: Consumer) -> bool:
    """Whether the server has removed it."""
    names = [name async for name in consumer._js.consumer_names(consumer.stream_name)]
    return consumer.name not in names


async def settled(consumer: Consumer, num_ack_pending: int) -> ConsumerInfo | None:
    """The info once so many messages wait for their ack; for ``eventually``."""
    info = await consumer.info()
    return info if info.num_ack_pending == num_ack_pending else None
