"""Plain messages of a publisher, which the compiled core sends by itself: as all others, only quicker.

The same holds without the compiled core.
"""

from __future__ import annotations

import asyncio
import collections.abc
import gc
import sys
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import Publishing, StorageType, StreamConfig
from jetspark.connection.outbox import FLUSH_AT
from jetspark.errors import (
    ConnectionClosed,
    ConnectionLost,
    InvalidArgument,
    MaxPayloadExceeded,
    PublishFailed,
)
from jetspark.jetstream.publish.many import Columns
from jetspark.models import PublisherStats
from support.helpers import eventually, unique

if TYPE_CHECKING:
    import concurrent.futures

    from jetspark import Stream
    from jetspark.server import Server


async def make(js: jetspark.JetStream, **options: Any) -> Stream:
    name = unique()
    options.setdefault("storage", StorageType.MEMORY)
    return await js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"], **options))


async def test_what_publish_returns_is_a_coroutine_in_every_way(js: jetspark.JetStream) -> None:
    stream = await make(js)
    subject = f"{stream.name}.a"
    async with js.publisher() as publisher:
        found: list[asyncio.Future[jetspark.PubAck]] = []
        for _ in range(3):  # the first and the later ones take different roads
            coroutine = publisher.publish(subject, b"")
            assert isinstance(coroutine, collections.abc.Coroutine)
            found.append(await coroutine)
            with pytest.raises(RuntimeError, match="already awaited"):
                await coroutine
        tasks = [asyncio.create_task(publisher.publish(subject, b"")) for _ in range(10)]
        assert "Task" in repr(tasks)
        found += [await task for task in tasks]
        found += await asyncio.gather(*(publisher.publish(subject, b"") for _ in range(10)))
        found += [await asyncio.wait_for(publisher.publish(subject, b""), 5) for _ in range(10)]
        assert sorted([(await future).seq for future in found]) == list(range(1, 34))
    assert publisher.stats == PublisherStats(published=33, acked=33)


async def test_counters_are_exact_at_any_time(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream = await make(js)
    subject, data = f"{stream.name}.a", bytes(100)
    before = nc.stats
    async with js.publisher(window=100_000) as publisher:
        for count in range(1, 2_001):
            await publisher.publish(subject, data)
            if count in (1, 2, 3, 50, 1_000, 2_000):
                assert publisher.stats.published == count
                assert nc.stats.out_msgs - before.out_msgs == count
        await publisher.flush()
        assert publisher.stats == PublisherStats(published=2_000, acked=2_000)
    assert nc.stats.out_msgs - before.out_msgs == 2_000
    # PUB, subject, inbox with serial, sizes and line ends: each is written once.
    assert 2_000 * 100 < nc.stats.out_bytes - before.out_bytes < 2_000 * (100 + len(subject) + 80)


async def test_nothing_overtakes_what_was_called_before_it(js: jetspark.JetStream) -> None:
    stream = await make(js)
    subject = f"{stream.name}.a"
    async with js.publisher() as publisher:
        await publisher.publish(subject, b"0")
        await publisher.publish(subject, b"0")
        await asyncio.gather(
            publisher.publish(subject, b"1", msg_id="x"),
            publisher.publish(subject, b"2" * 5000),
            publisher.publish(subject, b"3"),
            publisher.publish(subject, b"4"),
        )
    assert b"".join([message.data[:1] async for message in stream.get_msgs()]) == b"001234"


async def test_other_threads_may_hand_in_coroutines(js: jetspark.JetStream) -> None:
    stream = await make(js)
    loop = asyncio.get_running_loop()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        async with js.publisher(window=100_000) as publisher:

            def work(name: str) -> list[concurrent.futures.Future[asyncio.Future[jetspark.PubAck]]]:
                return [
                    asyncio.run_coroutine_threadsafe(publisher.publish(f"{stream.name}.{name}", b""), loop)
                    for _ in range(1_000)
                ]

            workers = [asyncio.create_task(asyncio.to_thread(work, name)) for name in "ab"]
            futures = []
            while not all(worker.done() for worker in workers):
                futures.append(await publisher.publish(f"{stream.name}.own", b""))
                await asyncio.sleep(0)
            for worker in workers:
                futures += [await asyncio.wrap_future(one) for one in worker.result()]
            acks = await asyncio.gather(*futures)
    finally:
        sys.setswitchinterval(before)
    assert sorted(ack.seq for ack in acks) == list(range(1, len(futures) + 1))
    assert publisher.stats == PublisherStats(published=len(futures), acked=len(futures))


async def test_a_loss_with_messages_unwritten(own_server: Server) -> None:
    """What is buffered is counted once, and a listener may publish when it hears of the loss."""
    said: list[asyncio.Task[asyncio.Future[jetspark.PubAck]]] = []

    def listen(event: object) -> None:
        if isinstance(event, jetspark.events.Disconnected):
            said.append(asyncio.ensure_future(publisher.publish(subject, b"from the listener")))

    async with jetspark.connect(own_server.url, listener=listen, reconnect_wait=0.01) as nc:
        js = nc.jetstream()
        stream = await make(js)
        subject = f"{stream.name}.a"
        publisher = js.publisher()
        async with publisher:
            for _ in range(300):
                await publisher.publish(subject, bytes(100))
            assert nc._core.link is not None
            nc._core.link.abort(ConnectionLost("cut"))
            await eventually(lambda: said)
            assert abs(nc._core.outbox.size - sum(map(len, nc._core.outbox.pieces))) < 300 * 40
            assert (await (await said[0])).stream == stream.name
            with pytest.raises(PublishFailed):
                await publisher.flush()


async def test_other_tasks_run_while_one_publishes(js: jetspark.JetStream) -> None:
    stream = await make(js)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(turn())
    data = bytes(1000)
    async with js.publisher(window=1_000_000) as publisher:
        for _ in range(10 * FLUSH_AT // len(data)):
            await publisher.publish(f"{stream.name}.a", data)
        # At least once for each write.
        assert turns >= 9
    other.cancel()


async def test_subjects_that_leave_no_room_for_a_reply_are_refused_each_time(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    stream = await make(js)
    long = f"{stream.name}." + "x" * (4_060 - len(stream.name))
    async with js.publisher() as publisher:
        for _ in range(3):
            with pytest.raises(InvalidArgument, match="shorten it"):
                await publisher.publish(long, b"")
            with pytest.raises(InvalidArgument, match="shorten it"):
                await publisher.publish_many([Publishing(f"{stream.name}.a"), Publishing(long)])
            with pytest.raises(InvalidArgument, match="shorten it"):
                await publisher._publish_columns(Columns([f"{stream.name}.a", long], [b"", b""], None))
        assert (await (await publisher.publish(f"{stream.name}.a", b""))).seq == 1
    assert (nc.stats.reconnects, nc.stats.server_errors) == (0, 0)


@pytest.mark.parametrize("data", [b"", b"x", bytes(4_096), bytes(4_097), bytearray(b"x"), memoryview(b"x")])
async def test_all_kinds_of_data(js: jetspark.JetStream, data: Any) -> None:
    stream = await make(js)
    subject = f"{stream.name}.a"
    async with js.publisher() as publisher:
        for _ in range(3):
            await publisher.publish(subject, data)
        await publisher.publish(subject=subject, data=data)
        await publisher.publish(subject, data=data)
        await publisher.publish(subject, data, headers={"a": "b"})
    assert [bytes(message.data) async for message in stream.get_msgs()] == [bytes(data)] * 6


async def test_bad_arguments_in_the_middle(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    stream = await make(js)
    subject = f"{stream.name}.a"
    async with js.publisher() as publisher:
        for _ in range(3):
            await publisher.publish(subject, b"")
            with pytest.raises(TypeError):
                await publisher.publish()  # type: ignore[call-arg]
            with pytest.raises(TypeError):
                await publisher.publish(subject, b"", None)  # type: ignore[call-arg]
            with pytest.raises(TypeError):
                await publisher.publish(subject, b"", nothing=1)  # type: ignore[call-arg]
            with pytest.raises(InvalidArgument):
                await publisher.publish("a b", b"")
            with pytest.raises(InvalidArgument):
                await publisher.publish(subject, "text")  # type: ignore[arg-type]
            with pytest.raises(MaxPayloadExceeded):
                await publisher.publish(subject, bytes(nc.max_payload + 1))
    assert publisher.stats == PublisherStats(published=3, acked=3)


async def test_a_method_kept_from_before_the_end_refuses_too(js: jetspark.JetStream) -> None:
    stream = await make(js)
    async with js.publisher() as publisher:
        publish = publisher.publish
        for _ in range(3):
            await publish(f"{stream.name}.a", b"")
    for method in (publish, publisher.publish):
        with pytest.raises(ConnectionClosed):
            await method(f"{stream.name}.a", b"")
    assert (await stream.info()).state.messages == 3


async def test_a_publisher_may_be_opened_again(js: jetspark.JetStream) -> None:
    stream = await make(js)
    publisher = js.publisher()
    for _ in range(2):
        async with publisher:
            for _ in range(5):
                await publisher.publish(f"{stream.name}.a", b"")
    assert publisher.stats == PublisherStats(published=10, acked=10)
    assert (await stream.info()).state.messages == 10


async def test_a_kill_in_the_middle_names_what_was_lost(own_server: Server) -> None:
    async with jetspark.connect(own_server.url, reconnect_wait=0.05) as nc:
        js = nc.jetstream()
        stream = await make(js, storage=StorageType.FILE)
        subject = f"{stream.name}.a"
        futures: list[asyncio.Future[jetspark.PubAck]] = []
        async with js.publisher(window=500) as publisher:
            for number in range(6_000):
                if number == 3_000:
                    own_server.kill()
                    restarting = asyncio.create_task(asyncio.to_thread(own_server.restart))
                futures.append(await publisher.publish(subject, b"%d" % number))
            await restarting
            await asyncio.wait(futures)
            lost = [future for future in futures if isinstance(future.exception(), ConnectionLost)]
            acked = [future.result().seq for future in futures if future.exception() is None]
            assert len(lost) + len(acked) == 6_000
            assert 0 < len(lost) <= 500
            with pytest.raises(PublishFailed) as caught:
                await publisher.flush()
            assert caught.value.count == len(lost)
        assert publisher.stats == PublisherStats(published=6_000, acked=len(acked), failed=len(lost))
        assert len(set(acked)) == len(acked)
        assert (await stream.info()).state.messages >= len(acked)


async def test_messages_published_while_down_are_sent_after_it(own_server: Server) -> None:
    async with jetspark.connect(own_server.url, reconnect_wait=0.05) as nc:
        js = nc.jetstream()
        stream = await make(js, storage=StorageType.FILE)
        subject = f"{stream.name}.a"
        async with js.publisher() as publisher:
            for _ in range(3):
                await publisher.publish(subject, b"")
            await publisher.flush()
            own_server.kill()
            await eventually(lambda: not nc.is_connected)
            later = [await publisher.publish(subject, b"%d" % number) for number in range(100)]
            own_server.restart()
            assert [(await future).seq for future in later] == list(range(4, 104))
        assert publisher.stats == PublisherStats(published=103, acked=103)


async def test_nothing_keeps_a_publisher_that_is_closed(js: jetspark.JetStream) -> None:
    stream = await make(js)
    publisher = js.publisher()
    async with publisher:
        for _ in range(3):
            await publisher.publish(f"{stream.name}.a", b"")
    gone = weakref.ref(publisher)
    del publisher
    gc.collect()
    assert gone() is None
