"""Priority groups on the real server (ADR-42): overflow, pinned clients with failover, priorities."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import Consumer, PriorityPolicy
from jetspark.errors import ConsumerNotFound, InvalidArgument
from support.consuming import PullSpy, fill, make_filled, numbers
from support.helpers import eventually

if TYPE_CHECKING:
    from jetspark import Message
    from jetspark.server import Server

OVERFLOW = {"priority_groups": ["A"], "priority_policy": PriorityPolicy.OVERFLOW}
PRIORITIZED = {"priority_groups": ["A"], "priority_policy": PriorityPolicy.PRIORITIZED}


def pinned(seconds: float) -> dict[str, Any]:
    return {
        "priority_groups": ["A"],
        "priority_policy": PriorityPolicy.PINNED_CLIENT,
        "priority_timeout": seconds,
    }


class Reader:
    """A consume with a handle of its own, as another process would have, that remembers what it got."""

    def __init__(self, consumer: Consumer, **options: Any) -> None:
        self.got: list[int] = []
        self.errors: list[Exception] = []
        self.consumer = consumer
        options.setdefault("idle_heartbeat", 1)
        self.consume = consumer.consume_with(self._handle, on_error=self.errors.append, group="A", **options)

    @classmethod
    async def of(cls, js: jetspark.JetStream, consumer: Consumer, **options: Any) -> Reader:
        return cls(await js.get_consumer(consumer.stream_name, consumer.name), **options)

    async def _handle(self, message: Message) -> None:
        self.got.append(int(message.data))
        await message.ack()

    async def __aenter__(self) -> Reader:
        await self.consume.__aenter__()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.consume.stop()


async def pulls_wait(consumer: Consumer, count: int) -> None:
    async def so() -> bool:
        return (await consumer.info()).num_waiting == count

    await eventually(so)


# --- overflow ------------------------------------------------------------------------------------------


async def test_overflow_fetch_waits_for_enough_pending(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 9, **OVERFLOW)
    assert await consumer.fetch(5, group="A", min_pending=10, expires=0.3) == []
    await fill(js, stream, 1, start=9)
    assert numbers(await consumer.fetch(1, group="A", min_pending=10, expires=2)) == [0]
    # One taken: nine are pending again.
    assert await consumer.next(group="A", min_pending=10, expires=0.3) is None
    assert numbers(await consumer.fetch(2, group="A", expires=2)) == [1, 2]


async def test_overflow_fetch_waits_for_enough_unacked(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 20, **OVERFLOW)
    assert await consumer.fetch(5, group="A", min_ack_pending=3, expires=0.3) == []
    await consumer.fetch(3, group="A", expires=2)
    assert numbers(await consumer.fetch(2, group="A", min_ack_pending=3, expires=2)) == [3, 4]


async def test_overflow_consume(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 9, **OVERFLOW)
    reader = Reader(consumer, min_pending=10, max_messages=1)
    async with reader:
        await pulls_wait(consumer, 1)
        assert reader.got == []
        await fill(js, stream, 11, start=9)
        # It leaves nine to those without the condition.
        await eventually(lambda: len(reader.got) >= 11)
        await pulls_wait(consumer, 1)
        assert reader.got == list(range(11))
    assert (await consumer.info()).num_pending == 9
    assert reader.errors == []


async def test_requests_carry_group_and_conditions(js: jetspark.JetStream, server: Server) -> None:
    _, consumer = await make_filled(js, 1, **OVERFLOW)
    async with await PullSpy.on(server.url, consumer) as spy:
        await consumer.fetch(1, group="A", min_pending=5, min_ack_pending=6, expires=0.1)
        request = await spy.next()
        assert (request["group"], request["min_pending"], request["min_ack_pending"]) == ("A", 5, 6)
        async with consumer.consume(group="A", min_pending=7):
            request = await spy.next()
            assert (request["group"], request["min_pending"]) == ("A", 7)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"min_pending": 1}, "min_pending"),
        ({"min_ack_pending": 1}, "min_ack_pending"),
        ({"priority": 1}, "priority"),
        ({"group": "A", "priority": 10}, "priority"),
        ({"group": "A", "priority": -1}, "priority"),
        ({"group": ""}, "group"),
        ({"group": "seventeen-letters"}, "group"),
        ({"group": "a b"}, "group"),
        ({"group": "A", "min_pending": 0}, "min_pending"),
    ],
)
async def test_options_that_can_not_work(js: jetspark.JetStream, options: dict[str, Any], field: str) -> None:
    _, consumer = await make_filled(js, 0, **OVERFLOW)
    for call in (lambda: consumer.fetch(1, **options), lambda: consumer.consume(**options)):
        with pytest.raises(InvalidArgument) as caught:
            call()
        assert caught.value.field == field
    with pytest.raises(InvalidArgument):
        await consumer.next(**options)


# --- pinned client -------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_one_client_is_pinned_and_the_other_takes_over_when_it_is_gone(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 100, **pinned(3))
    first = await Reader.of(js, consumer, max_messages=10)
    second = await Reader.of(js, consumer, max_messages=10)
    async with first:
        await eventually(lambda: len(first.got) == 100)
        async with second:
            await fill(js, stream, 100, start=100)
            await eventually(lambda: len(first.got) == 200)
            assert second.got == []
            await first.consume.stop()
            await fill(js, stream, 50, start=200)
            await eventually(lambda: len(second.got) == 50)
    assert first.got == list(range(200))
    assert second.got == list(range(200, 250))
    assert first.errors == second.errors == []


async def test_unpin_moves_the_pin_to_the_other_and_the_first_stands_by(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 20, **pinned(60))
    first = await Reader.of(js, consumer, max_messages=10)
    second = await Reader.of(js, consumer, max_messages=10)
    async with first:
        await eventually(lambda: len(first.got) == 20)
        async with second:
            await eventually(lambda: bool(second.consume._sink))
            await consumer.unpin("A")
            number = 20
            # Who is served next is the server's choice; sooner or later it is the other one.
            for _ in range(50):
                await fill(js, stream, 5, start=number)
                number += 5
                await eventually(lambda wanted=number: len(first.got) + len(second.got) == wanted)
                if second.got:
                    break
                await consumer.unpin("A")
            assert second.got
            before = len(first.got)
            await fill(js, stream, 50, start=number)
            await eventually(lambda: len(first.got) + len(second.got) == number + 50)
            # One of them has them all, the other none.
            assert {len(first.got) - before, 50 - (len(first.got) - before)} == {0, 50}
    assert sorted(first.got + second.got) == list(range(number + 50))


async def test_the_pin_id_is_kept_and_sent(js: jetspark.JetStream, server: Server) -> None:
    _, consumer = await make_filled(js, 4, **pinned(60))
    async with await PullSpy.on(server.url, consumer) as spy:
        (message,) = await consumer.fetch(1, group="A", expires=2)
        pin = message.headers["Nats-Pin-Id"]
        assert pin
        assert "id" not in await spy.next()
        await consumer.fetch(1, group="A", expires=2)
        assert (await spy.next())["id"] == pin
        async with consumer.consume(group="A") as messages:
            await anext(messages)
            assert (await spy.next())["id"] == pin


async def test_a_fetch_of_another_client_gets_nothing_while_one_is_pinned(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 5, **pinned(60))
    other = await js.get_consumer(consumer.stream_name, consumer.name)
    assert numbers(await consumer.fetch(2, group="A", expires=2)) == [0, 1]
    assert await other.fetch(2, group="A", expires=0.3) == []
    assert numbers(await consumer.fetch(2, group="A", expires=2)) == [2, 3]


async def test_a_fetch_whose_pin_was_taken_drops_it_and_asks_again(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 5, **pinned(60))
    other = await js.get_consumer(consumer.stream_name, consumer.name)
    assert numbers(await consumer.fetch(1, group="A", expires=2)) == [0]
    await consumer.unpin("A")
    assert numbers(await other.fetch(1, group="A", expires=2)) == [1]
    stale = consumer._target.pin_id
    assert stale
    assert await consumer.fetch(1, group="A", expires=0.3) == []
    assert consumer._target.pin_id == ""
    await consumer.unpin("A")
    assert numbers(await consumer.fetch(1, group="A", expires=2)) == [2]
    assert consumer._target.pin_id not in ("", stale)


async def test_unpin_of_what_does_not_exist(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1, **pinned(60))
    await consumer.delete()
    with pytest.raises(ConsumerNotFound):
        await consumer.unpin("A")


async def test_the_pin_is_shown_in_the_consumers_info(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 1, **pinned(60))
    (message,) = await consumer.fetch(1, group="A", expires=2)
    (state,) = (await consumer.info()).priority_groups or []
    assert state.group == "A"
    assert state.pinned_client_id == message.headers["Nats-Pin-Id"]


# --- prioritized ---------------------------------------------------------------------------------------


async def test_the_lowest_number_is_served_and_the_next_one_takes_over(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0, **PRIORITIZED)
    first = await Reader.of(js, consumer, priority=0, max_messages=20)
    second = await Reader.of(js, consumer, priority=1, max_messages=20)
    async with second, first:
        await pulls_wait(consumer, 2)
        # No more than one request may bring, so that the first one always has one waiting.
        await fill(js, stream, 10)
        await eventually(lambda: len(first.got) == 10)
        assert second.got == []
        await first.consume.stop()
        await pulls_wait(consumer, 1)
        await fill(js, stream, 10, start=10)
        await eventually(lambda: len(second.got) == 10)
    assert first.got == list(range(10))
    assert second.got == list(range(10, 20))


@pytest.mark.slow
async def test_prioritized_fetches(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0, **PRIORITIZED)
    later = asyncio.ensure_future(consumer.fetch(3, group="A", priority=5, expires=3)._collect())
    await pulls_wait(consumer, 1)
    sooner = asyncio.ensure_future(consumer.fetch(3, group="A", priority=1, expires=15)._collect())
    await pulls_wait(consumer, 2)
    await fill(js, stream, 3)
    assert numbers(await sooner) == [0, 1, 2]
    assert await later == []
