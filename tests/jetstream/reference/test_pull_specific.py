"""The 'Pull-specific' rows of the consumer reference, on the real server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from jetspark.errors import (
    InvalidArgument,
    MaxRequestBatchExceeded,
    MaxRequestExpiresExceeded,
    MaxRequestMaxBytesExceeded,
    MaxWaitingExceeded,
)
from support.consuming import durable, fill, make, make_filled, numbers
from support.deliveries import take
from support.helpers import eventually, unique

if TYPE_CHECKING:
    import jetspark
    from jetspark import Consumer


async def waiting(consumer: Consumer) -> int:
    return (await consumer.info()).num_waiting


async def test_max_waiting_limits_the_requests_that_wait(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0, max_waiting=2)
    pulls = [asyncio.create_task(consumer.next(expires=10)) for _ in range(2)]

    async def both() -> bool:
        return await waiting(consumer) == 2

    await eventually(both)
    with pytest.raises(MaxWaitingExceeded):
        await consumer.next(expires=5)
    # Those that were waiting are served.
    await fill(js, stream, 2)
    got = await asyncio.gather(*pulls)
    assert sorted(numbers(message for message in got if message)) == [0, 1]
    # And there is room again.
    assert await consumer.next(expires=0.1) is None


async def test_max_waiting_has_a_default(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 0)
    assert consumer.config.max_waiting == 512


@pytest.mark.parametrize(
    ("limit", "within", "beyond", "error", "text"),
    [
        ({"max_batch": 3}, {"max_messages": 3}, {"max_messages": 4}, MaxRequestBatchExceeded, "of 3"),
        (
            {"max_expires": 2.5},
            {"max_messages": 1, "expires": 2.4},
            {"max_messages": 1, "expires": 5},
            MaxRequestExpiresExceeded,
            "of 2.5s",
        ),
        (
            {"max_bytes": 2048},
            {"max_bytes": 2048, "expires": 1},
            {"max_bytes": 2049, "expires": 1},
            MaxRequestMaxBytesExceeded,
            "of 2048",
        ),
    ],
    ids=["batch", "expires", "max_bytes"],
)
async def test_a_request_beyond_a_limit_is_refused_and_says_which(
    js: jetspark.JetStream,
    limit: dict[str, Any],
    within: dict[str, Any],
    beyond: dict[str, Any],
    error: type[Exception],
    text: str,
) -> None:
    _, consumer = await make_filled(js, 5, **limit)
    assert len(await consumer.fetch(**within)) > 0
    with pytest.raises(error, match=text):
        await consumer.fetch(**beyond)


@pytest.mark.parametrize(
    ("limit", "error"),
    [
        ({"max_batch": 3}, MaxRequestBatchExceeded),
        ({"max_expires": 1.5}, MaxRequestExpiresExceeded),
    ],
    ids=["batch", "expires"],
)
async def test_a_consume_is_warned_of_a_limit_and_keeps_to_it(
    js: jetspark.JetStream, limit: dict[str, Any], error: type[Exception]
) -> None:
    _, consumer = await make_filled(js, 20, **limit)
    warnings: list[Exception] = []
    async with consumer.consume(max_messages=10, stop_after=20, on_error=warnings.append) as messages:
        got = [message async for message in messages]
    assert numbers(got) == list(range(20))
    assert [type(warning) for warning in warnings] == [error]


@pytest.mark.parametrize(
    ("request_limits", "count"),
    [({"max_messages": 3, "max_bytes": 4000}, 3), ({"max_messages": 10, "max_bytes": 2500}, 2)],
    ids=["messages first", "bytes first"],
)
async def test_with_both_limits_whichever_is_hit_first(
    js: jetspark.JetStream, request_limits: dict[str, int], count: int
) -> None:
    _, consumer = await make_filled(js, 10, size=1000, max_batch=10, max_bytes=4000)
    assert len(await consumer.fetch(**request_limits, expires=1)) == count


async def test_max_waiting_is_not_for_push_consumers(js: jetspark.JetStream) -> None:
    stream = await make(js)
    with pytest.raises(InvalidArgument, match="pull consumers"):
        await durable(stream, deliver_subject=unique("deliver"), max_waiting=5)


async def test_the_client_decides_when_and_how_much(js: jetspark.JetStream) -> None:
    """Dispatch type pull: nothing is delivered unless asked for, and no more than that."""
    _, consumer = await make_filled(js, 10)
    assert (await consumer.info()).delivered.consumer_seq == 0
    await take(consumer)
    await consumer.fetch(4)
    assert (await consumer.info()).delivered.consumer_seq == 5


async def test_more_clients_share_the_work(js: jetspark.JetStream) -> None:
    """Dispatch type pull scales out: any number of readers, each message to one of them."""
    _, consumer = await make_filled(js, 60)

    async def reader() -> list[int]:
        got: list[int] = []
        while batch := await consumer.fetch(5, no_wait=True):
            got += numbers(batch)
            for message in batch:
                await message.ack()
            await asyncio.sleep(0)
        return got

    parts = await asyncio.gather(*(reader() for _ in range(3)))
    assert sorted(number for part in parts for number in part) == list(range(60))
    assert all(parts)
