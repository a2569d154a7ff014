"""Ordered consumers on the real server: whatever happens, each message once, in order, by stream sequence."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import AckPolicy, ConsumerConfig, DeliverPolicy, OrderedConsumerConfig, ReplayPolicy
from jetspark.errors import (
    InvalidArgument,
    JetsparkError,
    NextMessageTooLarge,
    OrderedConsumerBusy,
    OrderedConsumerClosed,
    OrderedResetFailed,
    StreamNotFound,
    WorkQueueConflict,
)
from jetspark.jetstream.flow.ack_reply import sequences
from support.consuming import fill, make
from support.helpers import eventually, unique
from support.ordered_reading import Reader, names, pull_waits, seqs, span

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jetspark import OrderedConsumer, Stream
    from jetspark.server import Server


# --- what is created ------------------------------------------------------------------------------------


async def test_the_consumer_on_the_server(js: jetspark.JetStream) -> None:
    stream = await make(js)
    consumer = await stream.create_ordered_consumer()
    info = await consumer.info()
    prefix, _, number = info.name.rpartition("_")
    assert (len(prefix), number) == (22, "1")
    config = info.config
    assert config.durable_name is None
    assert config.ack_policy == AckPolicy.NONE
    assert config.deliver_policy == DeliverPolicy.ALL
    assert config.replay_policy == ReplayPolicy.INSTANT
    assert (config.mem_storage, config.num_replicas, config.inactive_threshold) == (True, 1, 300.0)
    assert (config.filter_subject, config.filter_subjects) == (None, None)
    assert consumer.cached_info.name == consumer.name == info.name
    assert consumer.stream_name == stream.name
    assert repr(consumer) == f"OrderedConsumer({stream.name!r}, {info.name!r})"


async def test_a_config_in_place_of_keywords(js: jetspark.JetStream) -> None:
    stream = await make(js)
    config = OrderedConsumerConfig(opt_start_seq=7, headers_only=True, name_prefix=unique("pre"))
    for made in (js.create_ordered_consumer(stream.name, config), stream.create_ordered_consumer(config)):
        async with await made as consumer:
            assert (consumer.config.opt_start_seq, consumer.config.headers_only) == (7, True)
            assert consumer.name == f"{config.name_prefix}_1"
    with pytest.raises(InvalidArgument, match="excludes keywords"):
        await stream.create_ordered_consumer(config, headers_only=True)
    with pytest.raises(InvalidArgument, match="must be an OrderedConsumerConfig"):
        await stream.create_ordered_consumer(ConsumerConfig())  # type: ignore[arg-type]


async def test_every_option_reaches_the_server(js: jetspark.JetStream) -> None:
    stream = await make(js)
    prefix = unique("pre")
    consumer = await js.create_ordered_consumer(
        stream.name,
        filter_subjects=[f"{stream.name}.a", f"{stream.name}.b"],
        opt_start_seq=7,
        replay_policy="original",
        inactive_threshold=timedelta(seconds=20),
        headers_only=True,
        name_prefix=prefix,
        metadata={"team": "x"},
    )
    config = (await consumer.info()).config
    assert config.name == f"{prefix}_1"
    assert config.filter_subjects == [f"{stream.name}.a", f"{stream.name}.b"]
    assert (config.deliver_policy, config.opt_start_seq) == (DeliverPolicy.BY_START_SEQUENCE, 7)
    assert config.replay_policy == ReplayPolicy.ORIGINAL
    assert (config.inactive_threshold, config.headers_only) == (20.0, True)
    assert (config.metadata or {})["team"] == "x"


async def test_numbers_of_the_prefix_count_up_and_taken_ones_are_skipped(js: jetspark.JetStream) -> None:
    stream = await make(js)
    first = await stream.create_ordered_consumer(name_prefix="pre")
    second = await stream.create_ordered_consumer(name_prefix="pre")
    assert (first.name, second.name) == ("pre_1", "pre_2")
    await fill(js, stream, 1)
    await js.delete_consumer(stream.name, "pre_1")
    assert seqs(await first.fetch(1)) == [1]
    assert first.name == "pre_3"
    assert seqs(await second.fetch(1)) == [1]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"deliver_policy": "sideways"}, "deliver_policy"),
        ({"deliver_policy": "by_start_sequence"}, "opt_start_seq"),
        ({"deliver_policy": "all", "opt_start_seq": 3}, "opt_start_seq"),
        ({"deliver_policy": "by_start_time"}, "opt_start_time"),
        ({"opt_start_seq": 0}, "opt_start_seq"),
        ({"opt_start_seq": True}, "opt_start_seq"),
        ({"filter_subjects": "a b"}, "filter_subjects"),
        ({"name_prefix": "a.b"}, "name_prefix"),
        ({"inactive_threshold": 0}, "inactive_threshold"),
        ({"max_reset_attempts": 0}, "max_reset_attempts"),
    ],
)
async def test_bad_options_are_refused_before_anything_is_sent(
    js: jetspark.JetStream, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await js.create_ordered_consumer("nowhere", **options)
    assert caught.value.field == field


async def test_mistakes_show_when_it_is_created(js: jetspark.JetStream) -> None:
    with pytest.raises(StreamNotFound):
        await js.create_ordered_consumer(unique("nowhere"))
    queue = await make(js, retention="workqueue")
    with pytest.raises(WorkQueueConflict):
        await queue.create_ordered_consumer()


# --- deliver policies -----------------------------------------------------------------------------------


async def two_subjects(js: jetspark.JetStream) -> Stream:
    """Sequences 1 to 6: a, b, a, b, a, b."""
    stream = await make(js)
    for _ in range(3):
        await js.publish(f"{stream.name}.a", b"a")
        await js.publish(f"{stream.name}.b", b"b")
    return stream


@pytest.mark.parametrize(
    ("options", "before", "after"),
    [
        ({}, span(1, 6), [7]),
        ({"deliver_policy": "all"}, span(1, 6), [7]),
        ({"deliver_policy": DeliverPolicy.LAST}, [6], [7]),
        ({"deliver_policy": "new"}, [], [7]),
        ({"deliver_policy": "last_per_subject"}, [5, 6], [7]),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 4}, [4, 5, 6], [7]),
        ({"opt_start_seq": 4}, [4, 5, 6], [7]),
        ({"opt_start_seq": 100}, [], []),
    ],
)
async def test_deliver_policy(
    js: jetspark.JetStream, options: dict[str, Any], before: list[int], after: list[int]
) -> None:
    stream = await two_subjects(js)
    consumer = await stream.create_ordered_consumer(**options)
    assert seqs(await consumer.fetch_no_wait(10)) == before
    await js.publish(f"{stream.name}.a", b"later")
    # Not fetch_no_wait: consumers hear of a message a moment after its ack.
    assert seqs(await consumer.fetch(1, expires=5 if after else 0.5)) == after


async def test_start_time(js: jetspark.JetStream) -> None:
    stream = await two_subjects(js)
    stored = (await stream.get_msg(4)).timestamp
    consumer = await stream.create_ordered_consumer(opt_start_time=stored)
    assert seqs(await consumer.fetch_no_wait(10)) == [4, 5, 6]


@pytest.mark.parametrize("several", [False, True])
async def test_filters(js: jetspark.JetStream, several: bool) -> None:
    stream = await two_subjects(js)
    await js.publish(f"{stream.name}.c", b"c")
    filters: Any = [f"{stream.name}.b", f"{stream.name}.c"] if several else f"{stream.name}.b"
    consumer = await stream.create_ordered_consumer(filter_subjects=filters)
    expected = [2, 4, 6, 7] if several else [2, 4, 6]
    assert seqs(await consumer.fetch(2)) == expected[:2]
    # Holes in the stream sequence are no gap; and a reset keeps the filter.
    await js.delete_consumer(stream.name, consumer.name)
    assert seqs(await consumer.fetch_no_wait(5)) == expected[2:]


async def test_headers_only(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await js.publish(f"{stream.name}.a", b"four")
    consumer = await stream.create_ordered_consumer(headers_only=True)
    (message,) = await consumer.fetch(1)
    assert (message.data, message.headers["Nats-Msg-Size"]) == (b"", "4")


@pytest.mark.parametrize("policy", ["new", "last"])
async def test_new_and_last_keep_their_place_before_the_first_message(
    js: jetspark.JetStream, policy: str
) -> None:
    stream = await two_subjects(js)
    consumer = await stream.create_ordered_consumer(deliver_policy=policy, filter_subjects=f"{stream.name}.c")
    await js.delete_consumer(stream.name, consumer.name)
    for _ in range(3):
        await js.publish(f"{stream.name}.c", b"c")
    assert seqs(await consumer.fetch_no_wait(10)) == [7, 8, 9]


# --- fetch and next -------------------------------------------------------------------------------------


async def test_fetches_go_on_where_the_last_one_ended(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 30)
    consumer = await stream.create_ordered_consumer()
    name = consumer.name
    assert seqs(await consumer.fetch(10)) == span(1, 10)
    first = await consumer.next()
    assert first is not None
    assert seqs([first]) == [11]
    assert [one async for one in consumer.fetch(5)] != []
    assert seqs(await consumer.fetch_no_wait(4)) == span(17, 20)
    got = seqs(await consumer.fetch_bytes(200, expires=0.5))
    assert got == span(21, 20 + len(got))
    rest = seqs(await consumer.fetch(100, no_wait=True))
    assert got + rest == span(21, 30)
    assert consumer.name == name  # healthy all the time: one consumer
    assert consumer.last_sequence == 30


async def test_nothing_there(js: jetspark.JetStream) -> None:
    stream = await make(js)
    consumer = await stream.create_ordered_consumer()
    assert await consumer.fetch(5, expires=0.2) == []
    assert await consumer.next(expires=0.2) is None
    assert await consumer.fetch_no_wait(5) == []
    await fill(js, stream, 2)
    assert seqs(await consumer.fetch(5, expires=1)) == [1, 2]
    assert await consumer.next(expires=0.2) is None
    await fill(js, stream, 1)
    assert seqs(await consumer.fetch(1)) == [3]


FETCHES: dict[str, Callable[[OrderedConsumer], Awaitable[Any]]] = {
    "fetch": lambda consumer: consumer.fetch(5, expires=5),
    "fetch_bytes": lambda consumer: consumer.fetch(5, max_bytes=100_000, expires=5),
    "fetch_no_wait": lambda consumer: consumer.fetch_no_wait(5),
}


@pytest.mark.parametrize("kind", FETCHES)
async def test_deleted_between_fetches(js: jetspark.JetStream, kind: str) -> None:
    stream = await make(js)
    await fill(js, stream, 20)
    consumer = await stream.create_ordered_consumer()
    got: list[int] = []
    for _ in range(4):
        got += seqs(await FETCHES[kind](consumer))
        await js.delete_consumer(stream.name, consumer.name)
    assert got == span(1, 20)
    assert consumer.name.endswith("_4")


async def test_deleted_while_a_fetch_waits(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 3)
    consumer = await stream.create_ordered_consumer()
    waiting = asyncio.ensure_future(consumer.fetch(6, expires=20))
    await pull_waits(consumer)
    await js.delete_consumer(stream.name, consumer.name)
    await fill(js, stream, 3)
    batch = await waiting
    assert (seqs(batch), batch.error) == (span(1, 6), None)


async def test_messages_lost_between_fetches(js: jetspark.JetStream) -> None:
    """Somebody else pulls from the consumer: to us a gap."""
    stream = await make(js)
    await fill(js, stream, 12)
    consumer = await stream.create_ordered_consumer()
    assert seqs(await consumer.fetch(4)) == span(1, 4)
    thief = await js.get_consumer(stream.name, consumer.name)
    assert len(await thief.fetch(3)) == 3
    assert seqs(await consumer.fetch(8)) == span(5, 12)
    assert consumer.name.endswith("_2")


async def test_a_cancelled_fetch_loses_nothing(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 3)
    consumer = await stream.create_ordered_consumer()
    got: list[int] = []
    for number in range(3):
        waiting = asyncio.ensure_future(consumer.fetch(10, expires=20))
        await pull_waits(consumer)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await fill(js, stream, 2)
        if number:
            got += seqs(await consumer.fetch(2, expires=5))
    got += seqs(await consumer.fetch(10, expires=1.5))
    assert got == span(1, 9)


async def test_leaving_a_fetch_early_loses_nothing(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 20)
    consumer = await stream.create_ordered_consumer()
    got: list[int] = []
    for _ in range(4):
        async for message in consumer.fetch(10, expires=5):
            got += seqs([message])
            if len(got) % 5 == 3:
                break
    async with consumer.consume(stop_after=20 - len(got)) as messages:
        async for message in messages:
            got += seqs([message])
    assert got == span(1, 20)


async def test_what_a_cancelled_fetch_left_is_not_overtaken(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 30, size=100)
    consumer = await stream.create_ordered_consumer()
    waiting = asyncio.ensure_future(consumer.fetch(100, expires=20))
    await eventually(lambda: consumer.last_sequence == 30)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await fill(js, stream, 10, size=100)
    got: list[int] = []
    for _ in range(2):
        async for message in consumer.fetch(10):
            got += seqs([message])
            if len(got) % 5 == 3:
                break
    # Room for two and a half: newer ones would fit, but it is not their turn.
    got += seqs(await consumer.fetch_bytes(400, expires=2))
    assert got == span(1, len(got))
    assert 8 < len(got) < 12
    with pytest.raises(NextMessageTooLarge):
        await consumer.fetch_bytes(10, expires=2)
    got += seqs(await consumer.fetch(40 - len(got)))
    assert got == span(1, 40)


async def test_inactive_consumer_is_made_again(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 4)
    consumer = await stream.create_ordered_consumer(inactive_threshold=0.1)
    assert seqs(await consumer.fetch(2)) == [1, 2]

    async def gone() -> bool:
        return await names(stream) == []

    await eventually(gone)
    assert seqs(await consumer.fetch(2)) == [3, 4]


# --- one at a time --------------------------------------------------------------------------------------


async def test_one_at_a_time(js: jetspark.JetStream) -> None:
    stream = await make(js)
    consumer = await stream.create_ordered_consumer()
    async with consumer.consume():
        with pytest.raises(OrderedConsumerBusy, match=consumer.name):
            await consumer.fetch(1)
        with pytest.raises(OrderedConsumerBusy):
            await consumer.next()
        with pytest.raises(OrderedConsumerBusy):
            await consumer.fetch_bytes(100)
        with pytest.raises(OrderedConsumerBusy):
            async with consumer.consume():
                pass
        with pytest.raises(OrderedConsumerBusy):
            async with consumer.consume_with(print):
                pass
    waiting = asyncio.ensure_future(consumer.fetch(1, expires=10))
    await asyncio.sleep(0)
    with pytest.raises(OrderedConsumerBusy):
        await consumer.fetch_no_wait(1)
    with pytest.raises(OrderedConsumerBusy):
        async with consumer.consume():
            pass
    await fill(js, stream, 2)
    assert seqs(await waiting) == [1]
    assert seqs(await consumer.fetch(1)) == [2]


async def test_a_fetch_that_was_not_read_to_its_end_is_in_the_way(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 10)
    consumer = await stream.create_ordered_consumer()
    messages = aiter(consumer.fetch(5))
    assert seqs([await anext(messages)]) == [1]
    with pytest.raises(OrderedConsumerBusy):
        await consumer.fetch(1)
    await messages.aclose()
    assert seqs(await consumer.fetch(9)) == span(2, 10)


async def test_what_ordered_consumers_do_not_have(js: jetspark.JetStream) -> None:
    stream = await make(js)
    consumer = await stream.create_ordered_consumer()
    with pytest.raises(InvalidArgument, match="reset"):
        await consumer.reset(1)
    with pytest.raises(InvalidArgument, match="unpin"):
        await consumer.unpin("g")
    with pytest.raises(InvalidArgument, match="priority groups"):
        await consumer.fetch(1, group="g")
    await fill(js, stream, 1)
    (message,) = await consumer.fetch(1)
    await message.ack()
    assert not message.is_acked
    assert await message.ack_next() == []


# --- the end --------------------------------------------------------------------------------------------


async def test_max_reset_attempts(js: jetspark.JetStream) -> None:
    stream = await make(js, max_consumers=1)
    consumer = await stream.create_ordered_consumer(max_reset_attempts=2)
    await fill(js, stream, 3)
    reader = Reader(consumer)
    await reader.until(3)
    await pull_waits(consumer)
    await js.delete_consumer(stream.name, consumer.name)
    # Whoever is first has the place; when it is the reset, once more.
    while True:
        with contextlib.suppress(JetsparkError):
            await stream.create_consumer(ConsumerConfig(durable_name="squatter"))
            break
        await pull_waits(consumer)
        await js.delete_consumer(stream.name, consumer.name)
    with pytest.raises(OrderedResetFailed) as caught:
        await asyncio.wait_for(reader.task, 15)
    assert (caught.value.attempts, caught.value.last_sequence) == (2, 3)
    assert "start a new one at sequence 4" in str(caught.value)
    with pytest.raises(OrderedResetFailed):
        await consumer.fetch(1)


async def test_attempts_go_on_until_there_is_room(js: jetspark.JetStream) -> None:
    stream = await make(js, max_consumers=1)
    consumer = await stream.create_ordered_consumer()
    await js.delete_consumer(stream.name, consumer.name)
    await stream.create_consumer(ConsumerConfig(durable_name="squatter"))
    await fill(js, stream, 3)
    reader = Reader(consumer)
    await eventually(lambda: reader.warnings)
    await stream.delete_consumer("squatter")
    await reader.until(3)
    await reader.stop()


async def test_stream_deleted(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 3)
    consumer = await stream.create_ordered_consumer()
    reader = Reader(consumer)
    await reader.until(3)
    await pull_waits(consumer)
    await stream.delete()
    with pytest.raises(StreamNotFound):
        await asyncio.wait_for(reader.task, 15)
    assert isinstance(reader.warnings[-1], StreamNotFound)
    with pytest.raises(StreamNotFound):
        await consumer.fetch(1)


async def test_close_deletes_the_consumer(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 3)
    async with await stream.create_ordered_consumer() as consumer:
        assert seqs(await consumer.fetch(2)) == [1, 2]
        assert await names(stream) == [consumer.name]
    assert await names(stream) == []
    with pytest.raises(OrderedConsumerClosed, match="opt_start_seq=3"):
        await consumer.fetch(1)
    with pytest.raises(OrderedConsumerClosed):
        await consumer.info()
    await consumer.close()
    await consumer.delete()


async def test_close_ends_a_consume(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 3)
    consumer = await stream.create_ordered_consumer()
    reader = Reader(consumer)
    await reader.until(3)
    await consumer.close()
    await asyncio.wait_for(reader.task, 20)
    assert await names(stream) == []


async def test_closing_the_connection_ends_a_consume(server: Server, js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 3)
    async with jetspark.connect(server.url) as nc:
        consumer = await nc.jetstream().create_ordered_consumer(stream.name)
        reader = Reader(consumer)
        await reader.until(3)
    await asyncio.wait_for(reader.task, 20)
    assert reader.got == [1, 2, 3]
    await consumer.close()


@pytest.mark.parametrize("error", [OrderedConsumerBusy("c"), OrderedConsumerClosed("c", 7)])
def test_errors_survive_pickle(error: JetsparkError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("$JS.ACK.S.c.1.20.3.1700000000000000000.0", (3, 20)),
        ("$JS.ACK._.ACCHASH.S.c.1.20.3.1700000000000000000.0", (3, 20)),
        ("$JS.ACK.hub.ACCHASH.S.c.1.20.3.1700000000000000000.0.rnd", (3, 20)),
        ("$JS.ACK.hub.ACCHASH.S.c.1.20.3.17", None),
        ("$JS.ACK.S.c.1.x.3.1700000000000000000.0", None),
        ("$JS.ACK.S.c.1.20", None),
        ("_INBOX.x", None),
        ("", None),
    ],
)
def test_sequences_of_a_reply(reply: str, expected: tuple[int, int] | None) -> None:
    if expected is not None:
        assert sequences(reply) == expected
        return
    with pytest.raises(JetsparkError, match="ack subject"):
        sequences(reply)
