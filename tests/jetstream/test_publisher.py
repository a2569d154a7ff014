"""The pipelined publisher: window, futures, flush, failures with names, and nothing that hangs or leaks."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import Expect, PubAck, StorageType, Stream, StreamConfig
from jetspark.errors import (
    ConnectionClosed,
    ConnectionLost,
    InvalidArgument,
    MaxPayloadExceeded,
    MessageTooLarge,
    NoStreamResponse,
    OutboundBufferFull,
    PermissionViolationError,
    PublisherFull,
    PublishFailed,
    RequestTimeout,
    WrongLastSequence,
)
from jetspark.models import PublisherStats
from support.helpers import eventually, unique

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetspark.server import Server


async def make(js: jetspark.JetStream, **options: Any) -> Stream:
    name = unique()
    options.setdefault("subjects", [f"{name}.>"])
    options.setdefault("storage", StorageType.MEMORY)
    return await js.create_stream(StreamConfig(name=name, **options))


@pytest.fixture(autouse=True)
def complaints() -> Iterator[list[dict[str, Any]]]:
    """What the event loop would print, such as 'Future exception was never retrieved': nothing is allowed."""
    found: list[dict[str, Any]] = []
    before = asyncio.BaseEventLoop.call_exception_handler

    def note(self: asyncio.BaseEventLoop, context: dict[str, Any]) -> None:
        found.append(context)
        before(self, context)

    asyncio.BaseEventLoop.call_exception_handler = note  # type: ignore[method-assign]
    try:
        yield found
        gc.collect()
    finally:
        asyncio.BaseEventLoop.call_exception_handler = before  # type: ignore[method-assign]
    assert found == []


async def test_each_future_has_the_ack_of_its_message(js: jetspark.JetStream) -> None:
    stream = await make(js, allow_direct=True)
    async with js.publisher() as publisher:
        futures = [await publisher.publish(f"{stream.name}.a", str(n).encode()) for n in range(5000)]
        acks = await asyncio.gather(*futures)
    assert [ack.seq for ack in acks] == list(range(1, 5001))
    assert {ack.stream for ack in acks} == {stream.name}
    stored = [message.data async for message in stream.get_msgs()]
    assert stored == [str(n).encode() for n in range(5000)]
    assert publisher.stats == PublisherStats(published=5000, acked=5000)
    assert publisher.pending == 0
    assert repr(publisher) == "Publisher(window=4000, pending=0)"


async def test_the_end_of_the_block_waits_for_every_ack(js: jetspark.JetStream) -> None:
    stream = await make(js)
    async with js.publisher() as publisher:
        for _ in range(1000):
            await publisher.publish(f"{stream.name}.a")
    assert (await stream.info()).state.messages == 1000


async def test_options_are_those_of_publish(js: jetspark.JetStream) -> None:
    stream = await make(js, allow_msg_ttl=True)
    async with js.publisher() as publisher:
        await publisher.publish(
            f"{stream.name}.a",
            b"x",
            headers={"A": "b"},
            msg_id="1",
            expect=Expect(stream=stream.name),
            ttl=60,
        )
        again = await publisher.publish(f"{stream.name}.a", msg_id="1")
        assert (await again).duplicate
    message = await stream.get_msg(1)
    assert dict(message.headers.items()) == {
        "A": "b",
        "Nats-Msg-Id": "1",
        "Nats-Expected-Stream": stream.name,
        "Nats-TTL": "60",
    }
    assert publisher.stats == PublisherStats(published=2, acked=2, duplicates=1)


@pytest.mark.parametrize("window", [1, 2, 7, 100])
async def test_the_window_is_never_exceeded(js: jetspark.JetStream, window: int) -> None:
    stream = await make(js)
    most = 0
    async with js.publisher(window=window) as publisher:
        for _ in range(300):
            await publisher.publish(f"{stream.name}.a")
            most = max(most, publisher.pending)
        assert publisher.pending <= window
    assert most == window
    assert publisher.stats.acked == 300


async def test_many_tasks_share_one_window(js: jetspark.JetStream) -> None:
    stream = await make(js)
    most = 0

    async def work() -> None:
        nonlocal most
        for _ in range(20):
            await publisher.publish(f"{stream.name}.a")
            most = max(most, publisher.pending)

    async with js.publisher(window=5) as publisher:
        await asyncio.gather(*(work() for _ in range(50)))
    assert most == 5
    assert (await stream.info()).state.messages == 1000


async def test_many_publishers_share_one_connection(js: jetspark.JetStream, nc: jetspark.Connection) -> None:
    streams = [await make(js) for _ in range(20)]
    before = len(nc._core.router.sinks)

    async def work(stream: Stream) -> PublisherStats:
        async with js.publisher(window=50) as publisher:
            for _ in range(200):
                await publisher.publish(f"{stream.name}.a")
        return publisher.stats

    stats = await asyncio.gather(*(work(stream) for stream in streams))
    assert stats == [PublisherStats(published=200, acked=200)] * 20
    assert [(await stream.info()).state.messages for stream in streams] == [200] * 20
    assert len(nc._core.router.sinks) == before


async def test_waiting_for_room_can_be_cancelled(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream()
        stream = await make(js)
        async with js.publisher(window=1) as publisher:
            own_server.suspend()
            await publisher.publish(f"{stream.name}.a")
            waiting = asyncio.create_task(publisher.publish(f"{stream.name}.b"))
            flushing = asyncio.create_task(publisher.flush())
            await eventually(lambda: len(publisher._space) == 2)
            waiting.cancel()
            flushing.cancel()
            await asyncio.wait([waiting, flushing])
            assert waiting.cancelled()
            assert not publisher._space
            own_server.resume()
            await publisher.publish(f"{stream.name}.c")
        assert publisher.stats == PublisherStats(published=2, acked=2)


async def test_a_publish_that_is_cancelled_before_it_begins_sends_nothing(js: jetspark.JetStream) -> None:
    stream = await make(js)
    async with js.publisher() as publisher:
        await publisher.publish(f"{stream.name}.a")
        await publisher.publish(f"{stream.name}.a")
        task = asyncio.create_task(publisher.publish(f"{stream.name}.a"))
        task.cancel()
        await asyncio.wait([task])
        publisher.publish(f"{stream.name}.a").close()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(publisher.publish(f"{stream.name}.a"), 0)
        assert inspect.iscoroutinefunction(publisher.publish)
        assert "msg_id" in inspect.signature(publisher.publish).parameters
    assert publisher.stats == PublisherStats(published=2, acked=2)
    assert (await stream.info()).state.messages == 2


async def test_a_window_of_any_size(js: jetspark.JetStream) -> None:
    stream = await make(js)
    async with js.publisher(window=2**63) as publisher:
        assert (await (await publisher.publish(f"{stream.name}.a"))).seq == 1


class TestNoWait:
    async def test_returns_the_future_at_once(self, js: jetspark.JetStream) -> None:
        stream = await make(js, allow_msg_ttl=True)
        subject = f"{stream.name}.a"
        async with js.publisher() as publisher:
            futures = [publisher.publish_nowait(subject, b"%d" % number) for number in range(1000)]
            futures.append(publisher.publish_nowait(subject, msg_id="x", headers={"A": "b"}, ttl=60))
            assert publisher.pending == 1001
            assert [(await future).seq for future in futures] == list(range(1, 1002))
        assert (await stream.get_msg(1001)).headers["Nats-Msg-Id"] == "x"

    async def test_a_full_window_is_an_error(self, js: jetspark.JetStream) -> None:
        stream = await make(js)
        async with js.publisher(window=3) as publisher:
            futures = [publisher.publish_nowait(f"{stream.name}.a") for _ in range(3)]
            with pytest.raises(PublisherFull, match="window=3") as caught:
                publisher.publish_nowait(f"{stream.name}.a")
            assert (caught.value.pending, caught.value.window) == (3, 3)
            await futures[0]
            assert (await publisher.publish_nowait(f"{stream.name}.a")).seq == 4
        assert publisher.stats == PublisherStats(published=4, acked=4)

    async def test_large_messages_fill_it_by_their_bytes(self, own_server: Server) -> None:
        async with jetspark.connect(own_server.url) as nc:
            js = nc.jetstream(timeout=20)
            stream = await make(js)
            async with js.publisher() as publisher:
                for _ in range(34):
                    publisher.publish_nowait(f"{stream.name}.a", bytes(1_000_000))
                with pytest.raises(PublisherFull, match="34 messages"):
                    publisher.publish_nowait(f"{stream.name}.a", bytes(1_000_000))

    async def test_a_full_buffer_while_disconnected_is_an_error(self, own_server: Server) -> None:
        async with jetspark.connect(own_server.url, reconnect_buffer_size=10_000, reconnect_wait=0.05) as nc:
            js = nc.jetstream(timeout=20)
            stream = await make(js, storage=StorageType.FILE)
            async with js.publisher() as publisher:
                own_server.kill()
                await eventually(lambda: not nc.is_connected)
                kept = [publisher.publish_nowait(f"{stream.name}.a", bytes(1000)) for _ in range(10)]
                with pytest.raises(OutboundBufferFull):
                    publisher.publish_nowait(f"{stream.name}.a", bytes(1000))
                own_server.restart()
                assert [(await future).seq for future in kept] == list(range(1, 11))
            assert publisher.stats == PublisherStats(published=10, acked=10)

    async def test_must_be_open_and_checks_as_publish_does(self, js: jetspark.JetStream) -> None:
        publisher = js.publisher()
        with pytest.raises(ConnectionClosed, match="async with"):
            publisher.publish_nowait("a")
        async with publisher:
            with pytest.raises(InvalidArgument, match="subject"):
                publisher.publish_nowait("a b")
            with pytest.raises(InvalidArgument, match="msg_id"):
                publisher.publish_nowait("a", msg_id="")
        assert publisher.stats == PublisherStats()


class TestFailures:
    async def test_a_refused_message_fails_its_own_future_only(self, js: jetspark.JetStream) -> None:
        stream = await make(js)
        async with js.publisher() as publisher:
            futures = []
            for number in range(10):
                expect = Expect(last_seq=99) if number in (3, 7) else None
                futures.append(await publisher.publish(f"{stream.name}.a", expect=expect))
            results = await asyncio.gather(*futures, return_exceptions=True)
            with pytest.raises(PublishFailed) as caught:
                await publisher.flush()
        wrong = [number for number, result in enumerate(results) if isinstance(result, WrongLastSequence)]
        assert wrong == [3, 7]
        assert [result.seq for result in results if isinstance(result, PubAck)] == list(range(1, 9))
        assert caught.value.count == 2
        assert caught.value.first is results[3]
        assert "2 messages not acked" in str(caught.value)
        assert publisher.stats == PublisherStats(published=10, acked=8, failed=2)

    async def test_the_end_of_the_block_tells_when_nobody_looked(self, js: jetspark.JetStream) -> None:
        stream = await make(js, max_msg_size=10)
        with pytest.raises(PublishFailed, match="1 message not acked") as caught:
            async with js.publisher() as publisher:
                await publisher.publish(f"{stream.name}.a", b"x" * 100)
        assert isinstance(caught.value.first, MessageTooLarge)

    async def test_flush_tells_once(self, js: jetspark.JetStream) -> None:
        stream = await make(js, max_msg_size=10)
        async with js.publisher() as publisher:
            await publisher.publish(f"{stream.name}.a", b"x" * 100)
            with pytest.raises(PublishFailed) as first:
                await publisher.flush()
            await publisher.flush()
            for _ in range(2):
                await publisher.publish(f"{stream.name}.a", b"x" * 100)
            with pytest.raises(PublishFailed) as second:
                await publisher.flush()
        assert (first.value.count, second.value.count) == (1, 2)
        assert publisher.stats.failed == 3

    async def test_no_stream_names_the_subject(self, js: jetspark.JetStream) -> None:
        subject = unique()
        async with js.publisher() as publisher:
            future = await publisher.publish(subject)
            with pytest.raises(NoStreamResponse, match=subject):
                await future
            with pytest.raises(PublishFailed):
                await publisher.flush()

    async def test_messages_kept_for_a_reconnect_that_does_not_come_say_that_they_were_not_sent(
        self, own_server: Server
    ) -> None:
        async with (
            jetspark.connect(own_server.url) as nc,
            nc.jetstream().publisher(ack_timeout=0.4) as publisher,
        ):
            own_server.kill()
            await eventually(lambda: not nc.is_connected)
            future = await publisher.publish("a")
            with pytest.raises(RequestTimeout, match="was not sent"):
                await future
            with pytest.raises(PublishFailed):
                await publisher.flush()

    async def test_no_permission_is_told_at_once(self, start_server: Any) -> None:
        server = start_server(
            config="""authorization { users: [
                { user: u, password: x, permissions: { publish: { deny: "T.secret" } } } ] }"""
        )
        async with jetspark.connect(server.url, user="u", password="x") as nc:
            js = nc.jetstream()
            await js.create_stream(StreamConfig(name="T", subjects=["T.>"], storage=StorageType.MEMORY))
            async with asyncio.timeout(10), js.publisher() as publisher:
                future = await publisher.publish("T.secret")
                other = await publisher.publish("T.open")
                with pytest.raises(PermissionViolationError, match=r"T\.secret"):
                    await future
                assert (await other).seq == 1
                with pytest.raises(PublishFailed):
                    await publisher.flush()

    async def test_an_inbox_that_is_not_permitted_is_told_at_once(self, start_server: Any) -> None:
        server = start_server(
            config="""authorization { users: [
                { user: u, password: x, permissions: { subscribe: "mine.>" } } ] }"""
        )
        async with (
            jetspark.connect(server.url, user="u", password="x") as nc,
            asyncio.timeout(10),
            nc.jetstream().publisher() as publisher,
        ):
            future = await publisher.publish("a")
            with pytest.raises(RequestTimeout, match=r"may be stored: not permitted to subscribe '_INBOX"):
                await future
            with pytest.raises(PublishFailed):
                await publisher.flush()
            with pytest.raises(ConnectionClosed, match="_INBOX"):
                await publisher.publish("a")

    async def test_a_cancelled_future_disturbs_nobody(self, js: jetspark.JetStream) -> None:
        stream = await make(js, max_msg_size=10)
        async with js.publisher() as publisher:
            stored = await publisher.publish(f"{stream.name}.a")
            refused = await publisher.publish(f"{stream.name}.a", b"x" * 100)
            kept = await publisher.publish(f"{stream.name}.a")
            stored.cancel()
            refused.cancel()
            assert (await kept).seq == 2
            with pytest.raises(PublishFailed) as caught:
                await publisher.flush()
        assert caught.value.count == 1
        assert publisher.stats == PublisherStats(published=3, acked=2, failed=1)

    async def test_what_can_not_be_sent_is_raised_and_not_counted(
        self, js: jetspark.JetStream, nc: jetspark.Connection
    ) -> None:
        stream = await make(js)
        async with js.publisher() as publisher:
            with pytest.raises(MaxPayloadExceeded):
                await publisher.publish(f"{stream.name}.a", b"x" * (nc.max_payload + 1))
            with pytest.raises(InvalidArgument, match="subject"):
                await publisher.publish("a b")
            with pytest.raises(InvalidArgument, match="msg_id"):
                await publisher.publish(f"{stream.name}.a", msg_id="")
            with pytest.raises(InvalidArgument, match="data"):
                await publisher.publish(f"{stream.name}.a", "text")  # type: ignore[arg-type]
            assert publisher.pending == 0
        assert publisher.stats == PublisherStats()

    async def test_an_ack_that_never_comes_expires(self, own_server: Server) -> None:
        async with jetspark.connect(own_server.url) as nc:
            js = nc.jetstream()
            stream = await make(js)
            async with js.publisher(ack_timeout=1.5) as publisher:
                own_server.suspend()
                try:
                    futures = [await publisher.publish(f"{stream.name}.a") for _ in range(10)]
                    with pytest.raises(PublishFailed, match=r"ack_timeout=1\.5s") as caught:
                        await publisher.flush()
                finally:
                    own_server.resume()
                assert caught.value.count == 10
                assert all(isinstance(future.exception(), RequestTimeout) for future in futures)
                # The acks of those come late and must not be taken for others.
                late = await publisher.publish(f"{stream.name}.a")
                assert (await late).seq == 11
            assert publisher.stats == PublisherStats(published=11, acked=1, failed=10)

    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"window": 0}, "window"),
            ({"window": True}, "window"),
            ({"window": 1.5}, "window"),
            ({"ack_timeout": 0}, "ack_timeout"),
            ({"ack_timeout": -1}, "ack_timeout"),
            ({"ack_timeout": "1"}, "ack_timeout"),
        ],
    )
    async def test_refuses_bad_options(
        self, js: jetspark.JetStream, options: dict[str, Any], field: str
    ) -> None:
        with pytest.raises(InvalidArgument) as caught:
            js.publisher(**options)
        assert caught.value.field == field


class TestEnd:
    async def test_a_publisher_that_is_not_open_refuses(self, js: jetspark.JetStream) -> None:
        publisher = js.publisher()
        with pytest.raises(ConnectionClosed, match="async with"):
            await publisher.publish("a")
        async with publisher:
            pass
        with pytest.raises(ConnectionClosed):
            await publisher.publish("a")

    async def test_an_error_in_the_block_fails_what_is_pending_and_stays_itself(
        self, own_server: Server
    ) -> None:
        async with jetspark.connect(own_server.url) as nc:
            js = nc.jetstream()
            stream = await make(js)
            own_server.suspend()
            try:
                publisher = js.publisher()
                futures = []
                with pytest.raises(ZeroDivisionError):
                    await self.publish_and_fail(publisher, f"{stream.name}.a", futures)
            finally:
                own_server.resume()
            (future,) = futures
            with pytest.raises(ConnectionClosed, match="publisher was closed"):
                await future
            assert publisher.stats.failed == 1

    @staticmethod
    async def publish_and_fail(publisher: jetspark.Publisher, subject: str, futures: list[Any]) -> None:
        async with publisher:
            futures.append(await publisher.publish(subject))
            raise ZeroDivisionError

    async def test_closing_the_connection_fails_what_is_pending(self, own_server: Server) -> None:
        nc = await jetspark.connect(own_server.url, connect_timeout=1.5)
        js = nc.jetstream()
        stream = await make(js)
        publisher = js.publisher(window=2)
        await publisher.__aenter__()
        own_server.suspend()
        try:
            futures = [await publisher.publish(f"{stream.name}.a") for _ in range(2)]
            waiting = asyncio.create_task(publisher.publish(f"{stream.name}.a"))
            flushing = asyncio.create_task(publisher.flush())
            await eventually(lambda: len(publisher._space) == 2)
            await nc.close()
            for future in futures:
                with pytest.raises(ConnectionClosed):
                    await future
            with pytest.raises(ConnectionClosed):
                await waiting
            with pytest.raises(PublishFailed):
                await flushing
        finally:
            own_server.resume()

    async def test_a_lost_connection_fails_what_is_pending_by_name(self, own_server: Server) -> None:
        async with jetspark.connect(own_server.url) as nc:
            js = nc.jetstream()
            stream = await make(js, storage=StorageType.FILE)
            async with js.publisher(window=3) as publisher:
                own_server.suspend()
                # A msg_id alone is no wish to send again: retry is off.
                futures = [await publisher.publish(f"{stream.name}.a", msg_id=str(n)) for n in range(3)]
                waiting = asyncio.create_task(publisher.publish(f"{stream.name}.b"))
                await eventually(lambda: len(publisher._space) == 1)
                own_server.kill()
                for future in futures:
                    with pytest.raises(ConnectionLost, match="may be stored"):
                        await future
                later = await waiting  # found room, and waits for the reconnect
                own_server.restart()
                assert (await later).stream == stream.name
                with pytest.raises(PublishFailed) as caught:
                    await publisher.flush()
            assert caught.value.count == 3
            assert publisher.stats == PublisherStats(published=4, acked=1, failed=3)


class TestBufferFull:
    """While disconnected, publishes are buffered; at the limit of the buffer the publisher waits."""

    async def test_waits_for_the_reconnect(self, own_server: Server) -> None:
        async with jetspark.connect(own_server.url, reconnect_buffer_size=10_000) as nc:
            js = nc.jetstream()
            stream = await make(js, storage=StorageType.FILE)
            async with js.publisher(retry=True) as publisher:
                own_server.kill()
                await eventually(lambda: not nc.is_connected)

                async def work() -> None:
                    for number in range(50):
                        await publisher.publish(f"{stream.name}.a", b"x" * 1000, msg_id=str(number))

                working = asyncio.create_task(work())
                await eventually(lambda: len(publisher._connected) == 1)
                assert 5 <= publisher.pending <= 10
                own_server.restart()
                await working
            assert publisher.stats.acked == 50
            assert (await stream.info()).state.messages == 50

    async def test_says_so_when_there_is_none(self, own_server: Server) -> None:
        async with (
            jetspark.connect(own_server.url, reconnect_buffer_size=100) as nc,
            nc.jetstream().publisher(ack_timeout=0.2) as publisher,
        ):
            own_server.kill()
            await eventually(lambda: not nc.is_connected)
            with pytest.raises(OutboundBufferFull):
                await publisher.publish("a", b"x" * 1000)
            assert not publisher._connected

    async def test_a_closed_connection_ends_it(self, own_server: Server) -> None:
        nc = await jetspark.connect(own_server.url, reconnect_buffer_size=100)
        async with nc.jetstream().publisher() as publisher:
            own_server.kill()
            await eventually(lambda: not nc.is_connected)
            waiting = asyncio.create_task(publisher.publish("a", b"x" * 1000))
            await eventually(lambda: len(publisher._connected) == 1)
            await nc.close()
            with pytest.raises(ConnectionClosed):
                await waiting


class TestRetry:
    async def test_messages_with_an_id_survive_a_kill_and_the_others_are_named(
        self, own_server: Server
    ) -> None:
        async with jetspark.connect(own_server.url) as nc:
            js = nc.jetstream()
            stream = await make(js, storage=StorageType.FILE)
            async with js.publisher(retry=True) as publisher:
                own_server.suspend()
                safe = [await publisher.publish(f"{stream.name}.a", msg_id=str(n)) for n in range(100)]
                lost = await publisher.publish(f"{stream.name}.a")
                own_server.kill()
                with pytest.raises(ConnectionLost):
                    await lost
                assert not any(future.done() for future in safe)
                # Published while disconnected: sent after the reconnect.
                safe.append(await publisher.publish(f"{stream.name}.a", msg_id="while away"))
                own_server.restart()
                acks = await asyncio.gather(*safe)
                with pytest.raises(PublishFailed) as caught:
                    await publisher.flush()
            assert caught.value.count == 1
            assert len({ack.seq for ack in acks}) == 101
            assert publisher.stats.acked == 101
            assert publisher.stats.resent >= 100
            state = (await stream.info()).state
            assert state.messages in (101, 102)

    async def test_no_stream_is_tried_until_there_is_one(self, js: jetspark.JetStream) -> None:
        name = unique()
        async with js.publisher(retry=True) as publisher:
            future = await publisher.publish(f"{name}.a", msg_id="1")
            other = await publisher.publish(f"{name}.a")
            with pytest.raises(NoStreamResponse):
                await other
            stream = await js.create_stream(
                StreamConfig(name=name, subjects=[f"{name}.>"], storage=StorageType.MEMORY)
            )
            assert (await future).seq == 1
            with pytest.raises(PublishFailed):
                await publisher.flush()
        assert publisher.stats.resent >= 1
        assert (await stream.info()).state.messages == 1

    async def test_ends_with_the_ack_timeout(self, js: jetspark.JetStream) -> None:
        async with js.publisher(retry=True, ack_timeout=2) as publisher:
            future = await publisher.publish(unique(), msg_id="1")
            with pytest.raises(RequestTimeout):
                await future
            with pytest.raises(PublishFailed):
                await publisher.flush()
        assert publisher.stats.resent >= 1
        assert publisher.pending == 0

    async def test_a_refusal_is_final(self, js: jetspark.JetStream) -> None:
        stream = await make(js)
        async with js.publisher(retry=True) as publisher:
            future = await publisher.publish(f"{stream.name}.a", msg_id="1", expect=Expect(last_seq=9))
            with pytest.raises(WrongLastSequence):
                await future
            with pytest.raises(PublishFailed):
                await publisher.flush()
        assert publisher.stats.resent == 0

    async def test_a_message_that_expects_a_sequence_is_not_sent_again(self, own_server: Server) -> None:
        """Its second copy would be refused by a stream that has stored the first: a failure that is none."""
        async with jetspark.connect(own_server.url) as nc:
            js = nc.jetstream()
            stream = await make(js, storage=StorageType.FILE)
            async with js.publisher(retry=True) as publisher:
                own_server.suspend()
                subject = f"{stream.name}.a"
                futures = [
                    await publisher.publish(subject, msg_id="1", expect=Expect(last_seq=0)),
                    await publisher.publish(subject, msg_id="2", expect=Expect(last_subject_seq=1)),
                ]
                safe = await publisher.publish(subject, msg_id="3", expect=Expect(stream=stream.name))
                own_server.kill()
                own_server.restart()
                for future in futures:
                    with pytest.raises(ConnectionLost, match="may be stored"):
                        await future
                assert (await safe).stream == stream.name
                with pytest.raises(PublishFailed):
                    await publisher.flush()

    async def test_a_server_that_takes_less_after_the_reconnect_fails_that_message_only(
        self, start_server: Any
    ) -> None:
        server = start_server(config="max_payload: 10000")
        async with jetspark.connect(server.url) as nc:
            js = nc.jetstream()
            stream = await make(js, storage=StorageType.FILE)
            async with js.publisher(retry=True) as publisher:
                server.suspend()
                large = await publisher.publish(f"{stream.name}.a", b"x" * 5000, msg_id="1")
                small = await publisher.publish(f"{stream.name}.a", b"x", msg_id="2")
                server.kill()
                await eventually(lambda: not nc.is_connected)
                unsent = await publisher.publish(f"{stream.name}.a", b"x" * 5000, msg_id="3")
                server._config = "max_payload: 1000"
                server.restart()
                with pytest.raises(RequestTimeout, match=r"may be stored.*max_payload of 1000"):
                    await large
                with pytest.raises(MaxPayloadExceeded):
                    await unsent
                assert (await small).stream == stream.name
                with pytest.raises(PublishFailed):
                    await publisher.flush()


async def test_a_publish_that_is_cancelled_while_the_server_reads_nothing_is_not_sent(
    own_server: Server,
) -> None:
    async with jetspark.connect(own_server.url, write_buffer_size=65_536) as nc:
        js = nc.jetstream()
        stream = await make(js)
        async with js.publisher() as publisher:
            own_server.suspend()
            try:
                futures = []
                while True:
                    task = asyncio.create_task(publisher.publish(f"{stream.name}.a", b"x" * 10_000))
                    await eventually(lambda task=task: task.done() or nc._core.outbox.waiters)
                    if not task.done():
                        break
                    futures.append(task.result())
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            finally:
                own_server.resume()
            await publisher.flush()
            assert publisher.stats.published == len(futures)
        assert (await stream.info()).state.messages == len(futures)


@pytest.mark.slow
async def test_nothing_stays_of_a_message_that_was_acked(js: jetspark.JetStream) -> None:
    stream = await make(js, max_msgs=1000)
    subject = f"{stream.name}.a"

    async def burst(publisher: jetspark.Publisher, count: int) -> int:
        for number in range(count):
            await publisher.publish(subject, b"x" * 128, msg_id=str(number) if number % 10 == 0 else None)
        await publisher.flush()
        gc.collect()
        return sys.getallocatedblocks()

    async with js.publisher(retry=True) as publisher:
        before = await burst(publisher, 20_000)
        after = await burst(publisher, 60_000)
    assert publisher.stats.acked == 80_000
    # One object left of each message would be 60,000.
    assert after - before < 3_000
