"""Plain messages that share a reply: each future tells the truth about its own message, whatever happens.

The same outcomes hold without the compiled core, where there are no groups.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from group_truth import COMPILED, TOGETHER, WARM, Held, Sent, check_truth, failures_of
from helpers import eventually, unique
from jetspark import PublisherStats, PublishUnclear, StorageType, StreamConfig
from jetspark.errors import ConnectionClosed, ConnectionLost, RequestTimeout
from jetspark.jetstream.errors import NoStreamResponse
from jetspark.jetstream.publish_many import Columns, Publishing
from lossy_proxy import LossyProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jetspark import PubAck, Stream
    from jetspark.server import Server


async def make(js: jetspark.JetStream, **options: Any) -> Stream:
    name = unique()
    options.setdefault("subjects", [f"{name}.>"])
    options.setdefault("storage", StorageType.MEMORY)
    return await js.create_stream(StreamConfig(name=name, allow_direct=True, **options))


@pytest.fixture
async def others(server: Server) -> AsyncIterator[jetspark.Connection]:
    """A second client."""
    async with jetspark.connect(server.url) as connection:
        yield connection


async def test_messages_of_one_publisher(js: jetspark.JetStream, others: jetspark.Connection) -> None:
    stream = await make(js)
    subject, count = f"{stream.name}.a", 20_000
    replies: Counter[str] = Counter()
    await others.subscribe(subject, callback=lambda message: replies.update([message.reply]))
    await others.flush()
    async with js.publisher() as publisher:
        sent = Sent(publisher)
        await sent.warm_up(subject)
        assert sent.most_grouped == 0
        assert publisher.stats == PublisherStats(published=WARM, acked=WARM)
        await sent.publish(subject, count)
        assert publisher.stats.published == WARM + count
        assert await failures_of(publisher) == 0
        sent.check_empty()
        assert publisher.stats == PublisherStats(published=WARM + count, acked=WARM + count)
        acks = [future.result() for future in sent.futures]
    assert [ack.seq for ack in acks] == list(range(1, WARM + count + 1))
    assert 1_000 < sent.most_pending <= 4_000
    assert check_truth(sent, await Held.by(stream)) == {"acked": WARM + count}
    await eventually(lambda: replies.total() == WARM + count)
    assert max(replies.values()) == (TOGETHER if COMPILED else 1)
    if COMPILED:
        assert len(replies) < WARM + count / 10
    else:
        assert len(replies) == WARM + count


async def test_every_size_of_a_burst(js: jetspark.JetStream, others: jetspark.Connection) -> None:
    """The last group of a write has as many messages as are left."""
    stream = await make(js)
    subject = f"{stream.name}.a"
    async with js.publisher() as publisher:
        sent = Sent(publisher)
        await sent.warm_up(subject)
        for count in [*range(1, 3 * TOGETHER), 0, 500]:
            await sent.publish(subject, count)
            assert await failures_of(publisher) == 0
            sent.check_empty()
    assert check_truth(sent, await Held.by(stream)) == {"acked": publisher.stats.published}
    assert (sent.most_grouped > 400) == COMPILED


async def test_several_publishers_of_one_stream(js: jetspark.JetStream, others: jetspark.Connection) -> None:
    """Then the sequences that one of them gets have gaps."""
    stream = await make(js)
    done = asyncio.Event()

    async def disturb() -> int:
        count = 0
        while not done.is_set():
            await others.jetstream().publish(f"{stream.name}.a", b"")
            count += 1
        return count

    async with js.publisher() as one, others.jetstream().publisher() as two, js.publisher() as three:
        all_sent = [Sent(publisher) for publisher in (one, two, three)]
        third = asyncio.create_task(disturb())

        async def work(sent: Sent) -> None:
            await sent.warm_up(f"{stream.name}.a")
            for _ in range(50):
                await sent.publish(f"{stream.name}.a", 100)
                await asyncio.sleep(0)  # the others' turn

        await asyncio.gather(*map(work, all_sent))
        done.set()
        disturbances = await third
    held = await Held.by(stream)
    for sent in all_sent:
        assert check_truth(sent, held) == {"acked": WARM + 5_000}
        assert (sent.most_grouped > 0) == COMPILED
        sent.check_empty()
    assert len(held.by_sequence) == 3 * (WARM + 5_000) + disturbances
    sequences = [future.result().seq for future in all_sent[0].futures]
    assert sequences[-1] - sequences[0] > len(sequences)


async def test_several_subjects_and_growing_sizes(
    js: jetspark.JetStream, others: jetspark.Connection
) -> None:
    """Messages larger than any that were stored before go alone."""
    stream = await make(js)
    sizes: dict[str, set[int]] = {}

    def note(message: jetspark.Msg) -> None:
        sizes.setdefault(message.reply, set()).add(len(message.data))

    await others.subscribe(f"{stream.name}.>", callback=note)
    await others.flush()
    async with js.publisher() as publisher:
        sent = Sent(publisher)
        await sent.warm_up(f"{stream.name}.a", size=50)
        # Not acked before the last is sent, so that nothing proves the larger ones.
        for number in range(900):
            await sent.publish(f"{stream.name}.{'aabbbc'[number % 6]}", size=40 + number % 30)
        assert await failures_of(publisher) == 0
        if COMPILED:
            assert 0 < sent.most_grouped < 900
        for number in range(3_000):
            await sent.publish(f"{stream.name}.{'aabbbc'[number // 20 % 6]}", size=40 + number % 4_100)
    held = await Held.by(stream)
    assert check_truth(sent, held) == {"acked": WARM + 3_900}
    await eventually(lambda: others.stats.in_msgs >= WARM + 3_900)
    if COMPILED:
        shared = [found for found in sizes.values() if len(found) > 1]
        assert shared


async def test_among_messages_of_all_kinds(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream = await make(js)
    subject = f"{stream.name}.a"
    async with js.publisher() as publisher:
        sent = Sent(publisher)
        await sent.warm_up(subject)
        batches = []
        for number in range(100):
            await sent.publish(subject, 7)
            await nc.publish(subject, b"")
            await sent.publish(subject, 7)
            await publisher.publish(subject, b"", headers={"a": "b"}, msg_id=f"{number}")
            await sent.publish(subject, 7)
            batches.append(await publisher.publish_many([Publishing(subject, b"")] * 3))
            await sent.publish(subject, 7)
            batches.append(await publisher._publish_columns(Columns([subject] * 3, [b""] * 3, None)))
        assert await failures_of(publisher) == 0
        sent.check_empty()
        published = WARM + 100 * (28 + 1 + 6)
        assert publisher.stats == PublisherStats(published=published, acked=published)
        assert [await batch for batch in batches]
    held = await Held.by(stream)
    assert len(held.by_sequence) == published + 100
    assert check_truth(sent, held) == {"acked": WARM + 2_800}
    assert (sent.most_grouped > 0) == COMPILED


async def test_large_messages_among_small_ones(js: jetspark.JetStream) -> None:
    """While large ones wait for their acks, all answers go through Python."""
    stream = await make(js)
    subject = f"{stream.name}.a"
    async with js.publisher() as publisher:
        sent = Sent(publisher)
        await sent.warm_up(subject)
        for number in range(60):
            await sent.publish(subject, 60)
            await sent.publish(subject, 1, size=20_000 if number % 3 else 6_000)
            await sent.publish(subject, 5)
        assert await failures_of(publisher) == 0
        sent.check_empty()
        assert publisher.stats.acked == publisher.stats.published == WARM + 60 * 66
    assert (sent.most_grouped > 0) == COMPILED
    assert check_truth(sent, await Held.by(stream)) == {"acked": WARM + 60 * 66}


async def test_a_reconnect_in_the_middle(server: Server) -> None:
    async with jetspark.connect(server.url, reconnect_wait=0.01) as nc:
        js = nc.jetstream()
        stream = await make(js)
        subject = f"{stream.name}.a"
        async with js.publisher() as publisher:
            sent = Sent(publisher)
            await sent.warm_up(subject)
            for _ in range(3):
                await sent.publish(subject, 1_000)
                await nc.force_reconnect()
            await sent.publish(subject, 1_000)
            failed = await failures_of(publisher)
            sent.check_empty()
            later = Sent(publisher)
            await later.publish(subject, 1_000)
            assert await failures_of(publisher) == 0
            # Everything that is known of the server is known anew.
            assert later.most_grouped == 0
        assert (sent.most_grouped > 0) == COMPILED
        held = await Held.by(stream)
        truth = check_truth(sent, held)
        assert (truth["refused"], truth["unknown"]) == (0, failed)
        assert failed > 0
        assert all(error is None or isinstance(error, ConnectionLost) for error in sent.errors())
        assert check_truth(later, held) == {"acked": 1_000}
        assert publisher.stats.failed == failed


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_connection_is_cut_with_groups_in_flight(server: Server, direction: str) -> None:
    """What the server got is stored, and nobody heard of it; what it did not get is not."""
    async with LossyProxy(server) as proxy, jetspark.connect(proxy.url, reconnect_wait=0.01) as nc:
        js = nc.jetstream()
        stream = await make(js)
        subject = f"{stream.name}.a"
        async with js.publisher() as publisher:
            sent = Sent(publisher)
            await sent.warm_up(subject)
            if direction == "up":
                proxy.swallow_up = True
            else:
                proxy.swallow_down = True
            lost = Sent(publisher)
            await lost.publish(subject, 1_000)
            assert publisher.pending == 1_000
            assert (lost.most_grouped > 900) == COMPILED
            await eventually(lambda: len(proxy.lost) > 20_000)
            await proxy.cut()
            assert await failures_of(publisher) == 1_000
            assert all(isinstance(error, ConnectionLost) for error in lost.errors())
            lost.check_empty()
            later = Sent(publisher)
            await later.publish(subject, 1_000)
            assert await failures_of(publisher) == 0
        held = await Held.by(stream)
        assert check_truth(sent, held) == {"acked": WARM}
        assert check_truth(lost, held) == {"unknown": 1_000}
        assert check_truth(later, held) == {"acked": 1_000}
        assert publisher.stats == PublisherStats(published=WARM + 2_000, acked=WARM + 1_000, failed=1_000)


async def test_a_stream_is_deleted_in_the_middle(js: jetspark.JetStream, others: jetspark.Connection) -> None:
    stream = await make(js)
    subject = f"{stream.name}.a"
    await others.jetstream().get_stream(stream.name)
    async with js.publisher(ack_timeout=2) as publisher:
        sent = Sent(publisher)
        await sent.warm_up(subject)
        held = await Held.by(stream)
        rest = Sent(publisher)
        deleting = asyncio.create_task(others.jetstream().delete_stream(stream.name))
        while not deleting.done():
            await rest.publish(subject, 100)
            await asyncio.sleep(0)
        await deleting
        after = Sent(publisher)
        await after.publish(subject, 100)
        failed = await failures_of(publisher)
        rest.check_empty()
    assert check_truth(sent, held) == {"acked": WARM}
    # Those with an ack were stored for a moment. What the stream had taken in and not stored when it went,
    # the server never answers.
    errors = rest.errors()
    acked = errors.count(None)
    assert [future.result().seq for future in rest.futures[:acked]] == list(range(WARM + 1, WARM + acked + 1))
    assert {type(error) for error in errors[acked:]} <= {NoStreamResponse, RequestTimeout, PublishUnclear}
    assert {type(error) for error in after.errors()} == {NoStreamResponse}
    assert failed == len(errors) - acked + 100


async def test_a_stream_is_made_anew_between_bursts(js: jetspark.JetStream) -> None:
    stream = await make(js)
    subject = f"{stream.name}.a"
    async with js.publisher(ack_timeout=10) as publisher:
        sent = Sent(publisher)
        await sent.warm_up(subject)
        for _ in range(5):
            await stream.delete()
            stream = await js.create_stream(stream.config)
            fresh = Sent(publisher)
            await fresh.publish(subject, 300)
            assert await failures_of(publisher) == 0
            fresh.check_empty()
            # Sequences start again.
            assert [future.result().seq for future in fresh.futures] == list(range(1, 301))
            assert check_truth(fresh, await Held.by(stream)) == {"acked": 300}
            assert (fresh.most_grouped > 0) == COMPILED


async def test_each_one_has_its_own_future(js: jetspark.JetStream) -> None:
    """To cancel, to wait for, to get a call from: the others of its group do not notice."""
    stream = await make(js)
    subject = f"{stream.name}.a"
    called: list[tuple[int, PubAck]] = []
    async with js.publisher() as publisher:
        sent = Sent(publisher)
        await sent.warm_up(subject)
        fresh = Sent(publisher)
        for number in range(2_000):
            await fresh.publish(subject)
            future = fresh.futures[-1]
            match number % 5:
                case 0:
                    assert future.cancel()
                case 1:
                    future.add_done_callback(
                        lambda done, number=number: called.append((number, done.result()))
                    )
                case 2 if number % 500 == 2:
                    assert (await asyncio.wait_for(future, 10)).seq == WARM + number + 1
        assert await failures_of(publisher) == 0
        fresh.check_empty()
        assert publisher.stats == PublisherStats(published=WARM + 2_000, acked=WARM + 2_000)
    assert (fresh.most_grouped > 0) == COMPILED
    assert check_truth(fresh, await Held.by(stream)) == {"acked": 1_600, "cancelled": 400}
    assert [(number, ack.seq) for number, ack in called] == [
        (number, WARM + number + 1) for number in range(1, 2_000, 5)
    ]


async def test_callbacks_that_fail_keep_nobody_from_his_ack(js: jetspark.JetStream) -> None:
    stream = await make(js)
    subject = f"{stream.name}.a"
    said: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: said.append(context.get("exception")))

    def fail(_: asyncio.Future[PubAck]) -> None:
        raise RuntimeError("of the user")

    async with js.publisher() as publisher:
        sent = Sent(publisher)
        await sent.warm_up(subject)
        await sent.publish(subject, 200)
        for future in sent.futures[WARM::2]:
            future.add_done_callback(fail)
        assert await failures_of(publisher) == 0
        sent.check_empty()
    await eventually(lambda: len(said) == 100)
    assert {str(error) for error in said} == {"of the user"}
    assert check_truth(sent, await Held.by(stream)) == {"acked": WARM + 200}


@pytest.mark.parametrize("window", [1, 2, 5, TOGETHER, 17, 100])
async def test_windows(js: jetspark.JetStream, window: int) -> None:
    stream = await make(js)
    subject = f"{stream.name}.a"
    async with js.publisher(window=window) as publisher, asyncio.timeout(60):
        sent = Sent(publisher)
        await sent.warm_up(subject)
        await sent.publish(subject, 1_000)
        assert sent.most_pending == window
        assert await failures_of(publisher) == 0
        sent.check_empty()
    assert check_truth(sent, await Held.by(stream)) == {"acked": WARM + 1_000}


async def test_several_tasks_share_a_small_window(js: jetspark.JetStream) -> None:
    stream = await make(js)
    async with js.publisher(window=20) as publisher, asyncio.timeout(60):
        first = Sent(publisher)
        await first.warm_up(f"{stream.name}.a")
        all_sent = [Sent(publisher) for _ in range(10)]
        await asyncio.gather(
            *(sent.publish(f"{stream.name}.{'ab'[n % 2]}", 200) for n, sent in enumerate(all_sent))
        )
        assert await failures_of(publisher) == 0
        first.check_empty()
    held = await Held.by(stream)
    assert [check_truth(sent, held) for sent in all_sent] == [{"acked": 200}] * 10
    assert all(sent.most_pending <= 20 for sent in all_sent)


@pytest.mark.parametrize("closed", ["publisher", "connection"])
async def test_closed_with_groups_in_flight(server: Server, closed: str) -> None:
    async with jetspark.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await make(js)
        subject = f"{stream.name}.a"
        publisher = js.publisher()
        sent, rest = Sent(publisher), Sent(publisher)

        async def publish() -> None:
            async with publisher:
                await sent.warm_up(subject)
                await rest.publish(subject, 500)
                if closed == "connection":
                    await nc.close()
                else:
                    raise RuntimeError("out of the block")

        with pytest.raises((RuntimeError, jetspark.PublishFailed)):
            await publish()
        await rest.settled()
        assert (rest.most_grouped > 400) == COMPILED
        rest.check_empty()
        assert all(isinstance(error, ConnectionClosed) for error in rest.errors())
        assert publisher.stats == PublisherStats(published=WARM + 500, acked=WARM, failed=500)
    async with jetspark.connect(server.url) as nc:
        held = await Held.by(await nc.jetstream().get_stream(stream.name))
    assert check_truth(rest, held) == {"unknown": 500}


async def test_a_publisher_opened_again_after_it_was_closed_with_groups(js: jetspark.JetStream) -> None:
    stream = await make(js)
    subject = f"{stream.name}.a"
    publisher = js.publisher()
    sent, later = Sent(publisher), Sent(publisher)

    async def leave() -> None:
        async with publisher:
            await sent.warm_up(subject)
            await sent.publish(subject, 500)
            raise RuntimeError("out of the block")

    with pytest.raises(RuntimeError, match="out of the block"):
        await leave()
    with pytest.raises(jetspark.PublishFailed):
        async with publisher:
            await later.publish(subject, 500)
    later.check_empty()
    held = await Held.by(stream)
    assert check_truth(sent, held) == {"acked": WARM, "unknown": 500}
    assert check_truth(later, held) == {"acked": 500}
