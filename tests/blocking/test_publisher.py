"""The pipelined publisher through the facade, and its futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

import pytest

from jetspark import PubAck, StorageType, StreamConfig, blocking
from jetspark.errors import (
    ConnectionClosed,
    ConnectionLost,
    InvalidArgument,
    JetsparkError,
    NoStreamResponse,
    OutboundBufferFull,
    PublisherFull,
    PublishFailed,
)
from support.helpers import eventually_sync, unique

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jetspark.server import Server


def test_futures_bring_the_acks(js: blocking.JetStream, stream: blocking.Stream) -> None:
    subject = f"{stream.name}.a"
    with js.publisher() as publisher:
        futures = [publisher.publish(subject, b"%d" % number) for number in range(5000)]
        assert isinstance(futures[0], concurrent.futures.Future)
        assert [future.result(10).seq for future in futures] == list(range(1, 5001))
        assert futures[0].exception() is None
    stats = publisher.stats
    assert (stats.published, stats.acked, stats.failed) == (5000, 5000, 0)
    assert publisher.pending == 0
    assert [int(msg.data) for msg in stream.get_msgs()] == list(range(5000))


def test_options_of_publish(js: blocking.JetStream, stream: blocking.Stream) -> None:
    subject = f"{stream.name}.a"
    with js.publisher() as publisher:
        publisher.publish(subject, b"x", msg_id="one", headers={"A": "b"})
        assert publisher.publish(subject, b"x", msg_id="one").result(5).duplicate
    assert stream.get_msg(1).headers["A"] == "b"
    assert publisher.stats.duplicates == 1


def test_full_window_makes_publish_wait(own_server: Server) -> None:
    with blocking.connect(own_server.url) as nc:
        js = nc.jetstream()
        js.create_stream(StreamConfig(name="S", subjects=["s"]))
        with js.publisher(window=10) as publisher:
            own_server.suspend()
            futures = [publisher.publish("s") for _ in range(10)]
            late: list[Future[PubAck]] = []
            thread = threading.Thread(target=lambda: late.append(publisher.publish("s")))
            thread.start()
            eventually_sync(lambda: bool(publisher._target.blocked))
            assert not any(future.done() for future in futures)
            own_server.resume()
            thread.join(10)
            assert late[0].result(10).seq == 11


def test_large_messages_wait_for_bytes(own_server: Server) -> None:
    asked: list[blocking.Msg] = []
    with blocking.connect(own_server.url) as nc, blocking.connect(own_server.url) as other:
        other.subscribe("s", callback=asked.append)
        other.flush()
        with nc.jetstream().publisher() as publisher:
            data = bytes(1_000_000)
            thread = threading.Thread(target=lambda: [publisher.publish("s", data) for _ in range(40)])
            thread.start()
            eventually_sync(lambda: len(asked) == 34 and bool(publisher._target.blocked), 20)
            assert publisher.pending == 34
            for number in range(40):
                eventually_sync(lambda number=number: len(asked) > number)
                asked[number].respond(b'{"stream":"S","seq":%d}' % (number + 1))
            thread.join(20)
            publisher.flush()
        assert publisher.stats.acked == 40


def test_threads_share_a_publisher(js: blocking.JetStream, stream: blocking.Stream) -> None:
    parts: list[list[int]] = []
    with js.publisher(window=100) as publisher:

        def work() -> None:
            futures = [publisher.publish(f"{stream.name}.a", b"x") for _ in range(2000)]
            parts.append([future.result(20).seq for future in futures])

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert sorted(seq for part in parts for seq in part) == list(range(1, 8001))
    assert all(part == sorted(part) for part in parts)
    assert publisher.stats.published == 8000


def test_publish_nowait_waits_for_nothing(own_server: Server) -> None:
    with blocking.connect(own_server.url) as nc:
        js = nc.jetstream()
        js.create_stream(StreamConfig(name="S", subjects=["s"]))
        with js.publisher(window=10) as publisher:
            own_server.suspend()
            futures = [publisher.publish_nowait("s", b"x", msg_id=str(number)) for number in range(10)]
            with pytest.raises(PublisherFull, match="window=10"):
                publisher.publish_nowait("s")
            own_server.resume()
            assert [future.result(10).seq for future in futures] == list(range(1, 11))
        assert publisher.stats.published == 10
        with pytest.raises(ConnectionClosed):
            publisher.publish_nowait("s")


def test_publish_nowait_while_disconnected(own_server: Server) -> None:
    with blocking.connect(own_server.url, reconnect_buffer_size=10_000, reconnect_wait=0.05) as nc:
        js = nc.jetstream(timeout=20)
        js.create_stream(StreamConfig(name="S", subjects=["s"]))
        with js.publisher() as publisher:
            own_server.kill()
            eventually_sync(lambda: not nc.is_connected)
            futures = [publisher.publish_nowait("s", bytes(1000)) for _ in range(10)]
            with pytest.raises(OutboundBufferFull):
                publisher.publish_nowait("s", bytes(1000))
            own_server.restart()
            assert [future.result(10).seq for future in futures] == list(range(1, 11))
        assert publisher.stats.published == 10


def test_what_was_in_flight_is_stored_before_what_was_published_while_down(own_server: Server) -> None:
    with blocking.connect(own_server.url, reconnect_wait=0.05) as nc:
        js = nc.jetstream(timeout=20)
        stream = js.create_stream(StreamConfig(name="S", subjects=["s"]))
        with js.publisher(retry=True, ack_timeout=60) as publisher:
            own_server.suspend()
            for number in range(50):
                publisher.publish("s", b"%d" % number, msg_id=str(number))
            own_server.kill()
            eventually_sync(lambda: not nc.is_connected)
            for number in range(50, 100):
                publisher.publish("s", b"%d" % number, msg_id=str(number))
            own_server.restart()
            for number in range(100, 150):
                publisher.publish("s", b"%d" % number, msg_id=str(number))
        assert [int(message.data) for message in stream.get_msgs()] == list(range(150))


def test_a_callback_may_publish_and_wait_for_a_lock_of_threads_that_publish(
    js: blocking.JetStream, stream: blocking.Stream
) -> None:
    """Futures are settled while no lock of the publisher is held."""
    subject = f"{stream.name}.a"
    lock = threading.RLock()  # of a future that is done the callback runs at once
    more: list[Future[PubAck]] = []
    with js.publisher(window=10**6) as publisher:

        def answered(_: Future[PubAck]) -> None:
            with lock:
                more.append(publisher.publish_nowait(subject))

        def work() -> None:
            for _ in range(300):
                with lock:
                    publisher.publish_nowait(subject).add_done_callback(answered)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        eventually_sync(lambda: len(more) == 900)
    assert publisher.stats.acked == 1800


# Failures


def test_failures_are_raised_by_flush_and_at_the_end(js: blocking.JetStream) -> None:
    nowhere = unique("nowhere")

    def use() -> None:
        with js.publisher() as publisher:
            future = publisher.publish(nowhere)
            with pytest.raises(NoStreamResponse):
                future.result(5)
            assert isinstance(future.exception(), NoStreamResponse)
            publisher.publish(nowhere)
            with pytest.raises(PublishFailed):
                publisher.flush()
            publisher.flush()
            publisher.publish(nowhere)

    with pytest.raises(PublishFailed) as caught:
        use()
    assert caught.value.count == 1


def test_an_error_in_the_block_is_not_covered(js: blocking.JetStream) -> None:
    futures = []

    def use() -> None:
        with js.publisher() as publisher:
            futures.append(publisher.publish(unique("nowhere")))
            raise KeyError

    with pytest.raises(KeyError):
        use()
    assert futures[0].done()


def test_mistakes_are_raised_at_once_and_count_for_nothing(js: blocking.JetStream) -> None:
    with js.publisher() as publisher:
        with pytest.raises(InvalidArgument):
            publisher.publish("a b")
        with pytest.raises(InvalidArgument):
            publisher.publish("a", msg_id="")
        assert publisher.pending == 0
    assert publisher.stats.published == 0
    with pytest.raises(InvalidArgument):
        js.publisher(window=0)


def test_publisher_must_be_open(js: blocking.JetStream) -> None:
    publisher = js.publisher()
    with pytest.raises(ConnectionClosed, match="use it with 'with'"):
        publisher.publish("a")
    with publisher:
        pass
    with pytest.raises(ConnectionClosed, match="closed"):
        publisher.publish("a")
    assert publisher.pending == 0


def test_closing_the_connection_fails_what_is_pending(own_server: Server) -> None:
    with blocking.connect(own_server.url, connect_timeout=1.5) as nc:
        js = nc.jetstream()
        js.create_stream(StreamConfig(name="S", subjects=["s"]))
        publisher = js.publisher(window=1)
        publisher.__enter__()
        own_server.suspend()
        future = publisher.publish("s")
        errors: list[JetsparkError] = []

        def wait() -> None:
            try:
                publisher.publish("s")
            except JetsparkError as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        eventually_sync(lambda: bool(publisher._target.blocked))
        nc.close()
        thread.join(10)
        own_server.resume()
        assert [type(error) for error in errors] == [ConnectionClosed]
        with pytest.raises(ConnectionClosed):
            future.result(5)
        with pytest.raises(PublishFailed):
            publisher.__exit__(None, None, None)


# Futures


def test_future_can_be_waited_for_with_a_timeout(own_server: Server) -> None:
    with blocking.connect(own_server.url) as nc:
        js = nc.jetstream()
        js.create_stream(StreamConfig(name="S", subjects=["s"]))
        with js.publisher() as publisher:
            own_server.suspend()
            future = publisher.publish("s")
            with pytest.raises(TimeoutError):
                future.result(0.05)
            with pytest.raises(TimeoutError):
                future.exception(0)
            own_server.resume()
            assert future.result(10).seq == 1


def test_futures_work_with_concurrent_futures(js: blocking.JetStream, stream: blocking.Stream) -> None:
    subject = f"{stream.name}.a"
    with js.publisher() as publisher:
        futures = [publisher.publish(subject) for _ in range(500)]
        done, not_done = concurrent.futures.wait(futures, timeout=10)
        assert (len(done), len(not_done)) == (500, 0)
        more = [publisher.publish(subject) for _ in range(500)]
        assert len(list(concurrent.futures.as_completed(more, timeout=10))) == 500
        first = concurrent.futures.wait(
            [publisher.publish(subject) for _ in range(10)],
            timeout=10,
            return_when=concurrent.futures.FIRST_COMPLETED,
        )
        assert first.done


def test_futures_work_with_asyncio(js: blocking.JetStream, stream: blocking.Stream) -> None:
    async def gather(futures: list[Future[PubAck]]) -> list[PubAck]:
        return await asyncio.gather(*map(asyncio.wrap_future, futures))

    with js.publisher() as publisher:
        futures = [publisher.publish(f"{stream.name}.a") for _ in range(100)]
        assert [ack.seq for ack in asyncio.run(gather(futures))] == list(range(1, 101))


def test_callbacks_are_called_once_also_when_it_is_done(
    js: blocking.JetStream, stream: blocking.Stream
) -> None:
    called: list[Any] = []
    with js.publisher() as publisher:
        future = publisher.publish(f"{stream.name}.a")
        future.add_done_callback(called.append)
        future.result(5)
        eventually_sync(lambda: called == [future])
        future.add_done_callback(called.append)
        assert called == [future, future]


def test_callback_must_not_wait(own_server: Server) -> None:
    seen: list[BaseException] = []
    with blocking.connect(own_server.url) as nc:
        js = nc.jetstream()
        js.create_stream(StreamConfig(name="S", subjects=["s"]))
        with js.publisher() as publisher:
            own_server.suspend()
            first, second = publisher.publish("s"), publisher.publish("s")

            def wait(future: Future[PubAck]) -> None:
                try:
                    second.result()  # whose ack comes behind this one's
                except JetsparkError as error:
                    seen.append(error)

            first.add_done_callback(wait)
            own_server.resume()
            assert second.result(10).seq == 2
    assert "callbacks of futures must not wait" in str(seen[0])


def test_cancelled_future(own_server: Server) -> None:
    with blocking.connect(own_server.url) as nc:
        js = nc.jetstream()
        js.create_stream(StreamConfig(name="S", subjects=["s"]))
        with js.publisher() as publisher:
            own_server.suspend()
            future = publisher.publish("s")
            assert future.cancel()
            assert future.cancelled()
            assert future.done()
            with pytest.raises(CancelledError):
                future.result(1)
            own_server.resume()
            other = publisher.publish("s")
            assert other.result(10).seq == 2
            assert not other.cancel()
        assert publisher.stats.acked == 2


# Faults


def test_kill_and_restart_with_ids_and_retry_stores_each_once(own_server: Server) -> None:
    with blocking.connect(own_server.url) as nc:
        js = nc.jetstream(timeout=20)
        name = unique()
        stream = js.create_stream(
            StreamConfig(name=name, subjects=[name], storage=StorageType.FILE, allow_direct=True)
        )
        futures = []
        killed = threading.Thread(target=lambda: (own_server.kill(), own_server.restart()))
        with js.publisher(retry=True, ack_timeout=60, window=500) as publisher:
            for number in range(6000):
                if number == 2000:
                    killed.start()
                futures.append(publisher.publish(name, b"%d" % number, msg_id=f"{number}"))
        killed.join()
        acks = {number: future.result().seq for number, future in enumerate(futures)}
        assert {int(msg.data): msg.sequence for msg in stream.get_msgs()} == acks
        assert stream.info().state.messages == 6000
        assert nc.stats.reconnects >= 1


def test_kill_without_retry_fails_futures_by_name_and_none_hangs(own_server: Server) -> None:
    with blocking.connect(own_server.url) as nc:
        js = nc.jetstream(timeout=20)
        name = unique()
        js.create_stream(StreamConfig(name=name, subjects=[name], storage=StorageType.FILE))
        outcomes: list[type[Any]] = []

        def use() -> None:
            with js.publisher() as publisher:
                own_server.suspend()
                futures = [publisher.publish(name) for _ in range(100)]
                own_server.kill()
                outcomes.extend(type(future.exception(10)) for future in futures)
                own_server.restart()

        with pytest.raises(PublishFailed):
            use()
        assert set(outcomes) == {ConnectionLost}


@pytest.mark.parametrize(
    "raised", [SystemExit(3), ValueError("oops")], ids=lambda error: type(error).__name__
)
@pytest.mark.parametrize("acked", [True, False], ids=["acked", "failed"])
def test_what_a_callback_of_a_future_raises_harms_no_other(
    own_server: Server, caplog: pytest.LogCaptureFixture, raised: BaseException, acked: bool
) -> None:
    """The connection's thread calls it. Leaving that by sys.exit would end the connection in silence."""

    def broken(future: Future[PubAck]) -> None:
        raise raised

    with blocking.connect(own_server.url) as nc:
        js = nc.jetstream()
        js.create_stream(StreamConfig(name="S", subjects=["s"]))
        publisher = js.publisher()
        with publisher, contextlib.suppress(PublishFailed):
            own_server.suspend()
            futures = [publisher.publish("s" if acked else "nobody") for _ in range(10)]
            heard: list[Any] = []
            for callback in (broken, heard.append):
                futures[3].add_done_callback(callback)
            own_server.resume()
            concurrent.futures.wait(futures, timeout=20)
            assert [future.done() for future in futures] == [True] * 10
            publisher.flush()
        assert heard == [futures[3]]
        assert js.publish("s").seq == (11 if acked else 1)
    said = [
        record for record in caplog.records if "callback of a publisher's future raised" in record.message
    ]
    assert [record.exc_info[1] for record in said if record.exc_info] == [raised]


def test_a_future_that_is_cancelled_in_the_moment_in_which_it_fails(
    js: blocking.JetStream, stream: blocking.Stream
) -> None:
    with js.publisher() as publisher, contextlib.suppress(PublishFailed):
        new_future = publisher._target._new_future
        made: list[Any] = []

        def racing() -> Any:
            future = made.append(new_future()) or made[-1]
            if len(made) == 1:
                # The thread that cancels it is a moment later than the loop's look at it.
                future.done = lambda: type(future).done(future) or not future.cancel()
            return future

        publisher._target._new_future = racing
        futures = [publisher.publish("nobody") for _ in range(10)]
        assert [type(future.exception(20)) for future in futures[1:]] == [NoStreamResponse] * 9
        assert futures[0].cancelled()
        publisher.flush()


@pytest.mark.parametrize("messages", [None, 5, "text", [b"data"]], ids=repr)
def test_what_is_no_list_of_messages_is_refused_by_name(js: blocking.JetStream, messages: Any) -> None:
    with js.publisher() as publisher, pytest.raises(InvalidArgument, match="messages="):
        publisher.publish_many(messages)
