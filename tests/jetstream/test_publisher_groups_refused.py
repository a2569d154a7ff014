"""Plain messages that share a reply and are refused in part: each future names its own message's fate."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from group_truth import COMPILED, TOGETHER, WARM, Held, Sent, check_truth, count_lookups, failures_of
from helpers import eventually, unique
from jetspark import ConsumerConfig, DiscardPolicy, PublisherStats, RetentionPolicy, StorageType, StreamConfig
from jetspark.errors import ConnectionClosed, ConnectionLost, RequestTimeout
from jetspark.jetstream import publisher_acks
from jetspark.jetstream.errors import ApiError, MessageNotFound
from jetspark.jetstream.publisher_stats import PublishUnclear

if TYPE_CHECKING:
    from jetspark import Stream
    from jetspark.jetstream.publisher import Publisher
    from jetspark.server import Server


async def make(js: jetspark.JetStream, **options: Any) -> Stream:
    name = unique()
    return await js.create_stream(
        StreamConfig(
            name=name,
            subjects=[f"{name}.>"],
            storage=StorageType.MEMORY,
            allow_direct=True,
            discard=DiscardPolicy.NEW,
            **options,
        )
    )


def subject_of(stream: Stream) -> str:
    """As long as any other: it counts when the stream counts bytes."""
    return f"{stream.name}.".ljust(40, "x")


@pytest.fixture
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups come back soon after trouble, to have more of it in less time."""
    monkeypatch.setattr(publisher_acks, "AFTER_TROUBLE", 100)


@pytest.mark.parametrize("room", [1, 7, TOGETHER, 1_003])
async def test_a_stream_becomes_full(js: jetspark.JetStream, room: int) -> None:
    stream = await make(js, max_msgs=WARM + room)
    subject = subject_of(stream)
    async with js.publisher() as publisher:
        sent = Sent(publisher)
        await sent.warm_up(subject)
        await sent.publish(subject, 1_500)
        assert (sent.most_grouped > 0) == COMPILED
        assert await failures_of(publisher) == 1_500 - room
        sent.check_empty()
        truth = {"acked": WARM + room, "refused": 1_500 - room}
        held = await Held.by(stream)
        assert check_truth(sent, held) == truth
        assert [error is None for error in sent.errors()] == [True] * (WARM + room) + [False] * (1_500 - room)
        # And it recovers.
        await stream.purge()
        again = Sent(publisher)
        await again.publish(subject, 500)
        assert await failures_of(publisher) == 0
        assert check_truth(again, await Held.by(stream)) == {"acked": 500}
        assert again.most_grouped == 0
    assert publisher.stats == PublisherStats(
        published=WARM + 2_000, acked=WARM + room + 500, failed=1_500 - room
    )


@pytest.mark.usefixtures("soon_again")
async def test_a_full_stream_takes_what_is_small_enough(js: jetspark.JetStream) -> None:
    """So some in the middle of a group are refused: whose acks the others are, only the stream can tell."""
    stream = await make(js, max_bytes=100_000)
    subject = subject_of(stream)
    async with js.publisher() as publisher:
        asked = count_lookups(publisher)
        sent = Sent(publisher)
        refused = 0
        for turn in range(12):
            await stream.purge()
            # Groups are back, and sizes proven.
            for _ in range(WARM // 50 if turn == 0 else 4):
                await sent.publish(subject, 50, size=1_000)
                await sent.settled()
                await stream.purge()
            for number in range(600):
                await sent.publish(subject, size=1_000 if number % (3 + turn) else 10)
            failed = await failures_of(publisher)
            refused += failed
            assert 0 < failed < 600
            sent.check_empty()
            fresh = Sent(publisher, sent.datas[-600:], sent.futures[-600:])
            truth = check_truth(fresh, await Held.by(stream))
            assert truth == {"acked": 600 - failed, "refused": failed}
    assert (sent.most_grouped > 0, bool(asked)) == (COMPILED, COMPILED)
    assert publisher.stats.failed == refused


async def test_large_messages_and_a_full_stream(js: jetspark.JetStream) -> None:
    stream = await make(js, max_msgs=WARM + 505)
    subject = subject_of(stream)
    async with js.publisher() as publisher:
        sent = Sent(publisher)
        await sent.warm_up(subject)
        for _ in range(10):
            await sent.publish(subject, 1, size=20_000)
            await sent.publish(subject, 99)
        assert await failures_of(publisher) == 495
        sent.check_empty()
    assert check_truth(sent, await Held.by(stream)) == {"acked": WARM + 505, "refused": 495}


@pytest.mark.usefixtures("soon_again")
async def test_a_full_queue_that_is_worked_off(js: jetspark.JetStream, server: Server) -> None:
    """There is room for some of a group at any time, and what was stored may be gone when it is asked for."""
    stream = await make(js, max_msgs=40, retention=RetentionPolicy.WORK_QUEUE)
    subject = subject_of(stream)
    consumer = await stream.create_consumer(ConsumerConfig(durable_name="w", max_ack_pending=-1))
    held = Held(stream.name, None, {})

    async def work() -> None:
        async with jetspark.connect(server.url) as nc:
            own = await (await nc.jetstream().get_stream(stream.name)).get_consumer(consumer.name)
            async with own.consume() as messages:
                async for message in messages:
                    held.by_sequence[message.metadata.sequence.stream] = bytes(message.data)
                    await message.ack_sync()

    working = asyncio.create_task(work())
    try:
        async with js.publisher(ack_timeout=10) as publisher:
            count_lookups(publisher)
            sent = Sent(publisher)
            while publisher.stats.acked < WARM:
                await sent.publish(subject, 20)
                await sent.settled()
            for _ in range(150):
                await sent.publish(subject, 60)
                await sent.settled()
            failed = await failures_of(publisher)
            sent.check_empty()

        async def empty() -> bool:
            return (await stream.info()).state.messages == 0

        await eventually(empty)
    finally:
        working.cancel()
        await asyncio.wait([working])
    truth = check_truth(sent, held)
    assert truth["unknown"] == 0
    assert truth["refused"] + truth["unclear"] == failed > 0
    assert truth["unclear"] < truth["acked"]
    assert (sent.most_grouped > 0) == COMPILED


async def mixed(publisher: Publisher, subject: str, large: int = 1_000) -> Sent:
    """Messages to a stream of 100,000 bytes, of which large ones are refused between small ones."""
    sent = Sent(publisher)
    for number in range(600):
        await sent.publish(subject, size=large if number % 4 else 10)
    return sent


async def warm(publisher: Publisher, stream: Stream) -> None:
    """Pass the probation, and leave the stream empty."""
    sent = Sent(publisher)
    for _ in range(1 + WARM // 50):
        await sent.publish(subject_of(stream), 50, size=1_000)
        await sent.settled()
        await stream.purge()


@pytest.mark.usefixtures("soon_again")
async def test_what_was_stored_is_gone_when_it_is_asked_for(js: jetspark.JetStream) -> None:
    stream = await make(js, max_bytes=100_000)
    async with js.publisher() as publisher:
        inner = publisher._lookup
        assert inner is not None

        held = Held(stream.name, None, {})

        async def keep() -> None:
            held.by_sequence |= (await Held.by(stream)).by_sequence

        async def late(name: str, sequence: int) -> bytes:
            await keep()
            await stream.purge(seq=max(held.by_sequence) + 1)
            return await inner(name, sequence)

        publisher._lookup = late
        # Where in a group the first refusal comes is luck: when only its last ones are refused, it is clear.
        for turn in range(10):
            await warm(publisher, stream)
            sent = await mixed(publisher, subject_of(stream), 1_000 - 70 * turn)
            failed = await failures_of(publisher)
            sent.check_empty()
            await keep()
            truth = check_truth(sent, held)
            assert truth["refused"] + truth["unclear"] == failed
            errors = sent.errors()
            unclear = {error for error in errors if isinstance(error, PublishUnclear)}
            for error in unclear:
                assert 0 < len(error.sequences) < error.count == errors.count(error) <= TOGETHER
                assert isinstance(error.why, MessageNotFound)
                assert isinstance(error.refusal, ApiError)
            if unclear or not COMPILED:
                break
        assert bool(unclear) == COMPILED


@pytest.mark.parametrize("how", ["closed", "lost", "late"])
async def test_something_else_comes_while_the_stream_is_asked(server: Server, how: str) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()
    async with jetspark.connect(server.url, reconnect_wait=0.01) as nc:
        js = nc.jetstream()
        stream = await make(js, max_bytes=100_000)
        publisher = js.publisher(ack_timeout=1)
        inner = publisher._lookup
        assert inner is not None

        async def slow(name: str, sequence: int) -> bytes:
            asked.set()
            await answer.wait()
            return await inner(name, sequence)

        publisher._lookup = slow
        all_sent: list[Sent] = []

        async def publish() -> None:
            async with publisher:
                await warm(publisher, stream)
                all_sent.append(await mixed(publisher, subject_of(stream)))
                if COMPILED:
                    await asyncio.wait_for(asked.wait(), 10)
                    assert publisher.pending > 1
                if how == "lost":
                    await nc.force_reconnect()
                if how != "closed":
                    await failures_of(publisher)
                    answer.set()
                    await asyncio.gather(*publisher._lookups.values())
                raise RuntimeError("out of the block")

        with pytest.raises(RuntimeError, match="out of the block"):
            await publish()
        await asyncio.gather(*publisher._lookups.values(), return_exceptions=True)
        (sent,) = all_sent
        sent.check_empty()
        truth = check_truth(sent, await Held.by(stream))
        assert truth["unclear"] == 0
        assert publisher.stats.acked + publisher.stats.failed == publisher.stats.published
        if COMPILED:
            # Nobody waits for what the stream would have said.
            assert truth["unknown"] > 1
            reason = {"closed": ConnectionClosed, "lost": ConnectionLost, "late": RequestTimeout}[how]
            assert any(isinstance(error, reason) for error in sent.errors())
