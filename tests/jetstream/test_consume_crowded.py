"""``consume`` on a consumer whose ``max_waiting`` is reached: it is told, and nothing waits for an alarm.

The server refuses a request that asks for heartbeats in silence. With the default ``expires`` of 30 s a
consume that waits for the alarm would stand still for 30 s; here all have to be done long before.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from jetspark import AckPolicy
from jetspark.errors import MaxWaitingExceeded
from support.consuming import fill, make_filled, numbers, take, waiting
from support.helpers import eventually

if TYPE_CHECKING:
    import jetspark

ROUNDS = 40


@pytest.mark.parametrize(
    "options",
    [
        {"max_messages": 10, "threshold_messages": 2},
        {"max_messages": 10, "threshold_messages": 0},
        {"max_messages": 10},
        {"max_messages": 10, "threshold_messages": 10},
        {"max_bytes": 3000},
        {"max_bytes": 3000, "threshold_bytes": 200},
        {"max_messages": 10, "max_bytes_per_request": 1000, "threshold_messages": 2},
    ],
    ids=str,
)
async def test_a_trickle_with_room_for_one_request(js: jetspark.JetStream, options: dict[str, Any]) -> None:
    stream, consumer = await make_filled(js, 0, max_waiting=1, ack_policy=AckPolicy.NONE)
    seen: list[Exception] = []
    async with asyncio.timeout(20), consumer.consume(**options, on_error=seen.append) as messages:
        await waiting(consumer, 1)
        for number in range(ROUNDS):
            await fill(js, stream, 1, start=number, size=100)
            assert numbers(await take(messages, 1)) == [number]
        await waiting(consumer, 1)
    assert {type(error) for error in seen} <= {MaxWaitingExceeded}
    # Told once, not with each request.
    assert len(seen) <= 1


async def test_as_many_workers_as_requests_may_wait(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0, max_waiting=3, ack_policy=AckPolicy.NONE)
    got: list[int] = []
    seen: list[Exception] = []

    def handle(message: Any) -> None:
        got.append(int(message.data))

    options: dict[str, Any] = {"max_messages": 10, "threshold_messages": 2, "on_error": seen.append}
    async with (
        asyncio.timeout(20),
        consumer.consume_with(handle, **options),
        consumer.consume_with(handle, **options),
        consumer.consume_with(handle, **options),
    ):
        await waiting(consumer, 3)
        for number in range(3 * ROUNDS):
            await fill(js, stream, 1, start=number)
            await eventually(lambda: len(got) == number + 1)  # noqa: B023
    assert got == list(range(3 * ROUNDS))
    assert {type(error) for error in seen} <= {MaxWaitingExceeded}


async def test_one_too_many_is_told_and_takes_over_when_there_is_room(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0, max_waiting=1)
    seen: list[Exception] = []
    holding = asyncio.create_task(consumer.next(expires=20))
    await waiting(consumer, 1)
    async with asyncio.timeout(20), consumer.consume(on_error=seen.append) as messages:
        await eventually(lambda: len(seen) >= 2)
        assert {type(error) for error in seen} == {MaxWaitingExceeded}
        assert "max_waiting" in str(seen[0])
        holding.cancel()
        await asyncio.wait([holding])
        await fill(js, stream, 3)
        assert numbers(await take(messages, 3)) == [0, 1, 2]
