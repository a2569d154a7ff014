"""fetch, next, consume and acks through the facade."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from jetspark import ConsumerConfig, StorageType, StreamConfig, blocking
from jetspark.errors import ConnectionClosed, ConsumerDeleted, HandlerFailed, InvalidArgument, JetsparkError
from support.helpers import eventually_sync, unique

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetspark.server import Server

Fill = Callable[[int], None]


def durable(stream: blocking.Stream, **options: Any) -> blocking.Consumer:
    return stream.create_consumer(ConsumerConfig(durable_name=unique("worker"), **options))


def numbers(messages: Iterable[blocking.Message]) -> list[int]:
    return [int(message.data) for message in messages]


def in_threads(count: int, work: Callable[[], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def pulled(worker: blocking.Consumer) -> None:
    """Wait until the server knows of a pull request: one that a deletion overtakes gets no answer."""
    eventually_sync(lambda: worker.info().num_waiting == 1)


def our_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("jetspark-con")}


# Fetch and next


def test_fetch_returns_a_batch(stream: blocking.Stream, fill: Fill) -> None:
    fill(10)
    worker = durable(stream)
    batch = worker.fetch(7, expires=2)
    assert type(batch) is blocking.MessageBatch
    assert numbers(batch) == list(range(7))
    assert batch.error is None
    batch.raise_for_error()
    for msg in worker.fetch(100, expires=1):
        assert type(msg) is blocking.Message
        msg.ack()
    eventually_sync(lambda: worker.info().num_ack_pending == 7)


def test_fetch_that_finds_nothing_is_empty(stream: blocking.Stream) -> None:
    worker = durable(stream)
    assert worker.fetch(5, expires=0.2) == []
    assert worker.fetch_no_wait(5) == []
    assert worker.next(expires=0.2) is None


def test_fetch_bytes_stops_before_the_limit(stream: blocking.Stream, fill: Fill) -> None:
    fill(10)
    worker = durable(stream)
    size = sum(map(len, (f"{stream.name}.a", worker.fetch(1)[0].reply, "0")))
    assert len(worker.fetch_bytes(size * 4, expires=1)) in (3, 4)


def test_next_waits_for_a_message(js: blocking.JetStream, stream: blocking.Stream) -> None:
    worker = durable(stream)
    timer = threading.Timer(0.1, js.publish, [f"{stream.name}.a", b"late"])
    timer.start()
    message = worker.next(expires=5)
    assert message is not None
    assert message.data == b"late"
    assert message.metadata.sequence.stream == 1
    timer.join()


def test_fetch_of_a_deleted_consumer_raises_or_says_so(stream: blocking.Stream, fill: Fill) -> None:
    fill(3)
    worker = durable(stream)
    results: list[blocking.MessageBatch] = []
    threads = in_threads(1, lambda: results.append(worker.fetch(10, expires=10)))
    eventually_sync(lambda: worker.info().num_ack_pending == 3)
    stream.delete_consumer(worker.name)
    join(threads)
    assert numbers(results[0]) == [0, 1, 2]
    assert isinstance(results[0].error, ConsumerDeleted)
    with pytest.raises(ConsumerDeleted):
        results[0].raise_for_error()


@pytest.mark.slow
def test_fetches_of_several_threads_share_the_messages(stream: blocking.Stream, fill: Fill) -> None:
    fill(400)
    worker = durable(stream)
    seen: Counter[int] = Counter()

    def work() -> None:
        while batch := worker.fetch(20, expires=2):
            seen.update(numbers(batch))

    join(in_threads(4, work))
    assert seen == Counter(range(400))


# Acks


def test_acks_reach_the_server(stream: blocking.Stream, fill: Fill) -> None:
    fill(5)
    worker = durable(stream, ack_wait=30)
    first, second, third, fourth, fifth = worker.fetch(5, expires=2)
    first.ack()
    second.ack_sync()
    third.term("rotten")
    fourth.nak()
    fifth.in_progress()
    assert [msg.is_acked for msg in (first, second, third, fourth, fifth)] == [True, True, True, True, False]
    again = worker.next(expires=2)
    assert again is not None
    assert (again.data, again.metadata.num_delivered) == (b"3", 2)
    again.ack_sync(timeout=2)
    first.nak()  # too late: the first one counts
    eventually_sync(lambda: worker.info().num_ack_pending == 1)
    assert worker.info().ack_floor.stream_seq == 4


def test_nak_with_delay_comes_later(stream: blocking.Stream, fill: Fill) -> None:
    fill(1)
    worker = durable(stream)
    message = worker.next(expires=2)
    assert message is not None
    start = time.monotonic()
    message.nak(0.3)
    assert worker.next(expires=5) is not None
    assert time.monotonic() - start >= 0.25


def test_ack_next_brings_the_next_ones(stream: blocking.Stream, fill: Fill) -> None:
    fill(4)
    worker = durable(stream)
    message = worker.next(expires=2)
    assert message is not None
    batch = message.ack_next(3, expires=2)
    assert type(batch) is blocking.MessageBatch
    assert numbers(batch) == [1, 2, 3]
    assert message.is_acked
    eventually_sync(lambda: worker.info().ack_floor.stream_seq == 1)


def test_acks_of_many_threads(stream: blocking.Stream, fill: Fill) -> None:
    fill(2000)
    worker = durable(stream, max_ack_pending=5000)
    batch = worker.fetch(2000, expires=5)
    parts = iter([batch[begin::4] for begin in range(4)])
    lock = threading.Lock()

    def work() -> None:
        with lock:
            part = next(parts)
        for msg in part:
            msg.ack()

    join(in_threads(4, work))
    eventually_sync(lambda: worker.info().ack_floor.stream_seq == 2000)


def test_ack_after_close_raises_and_may_be_tried_elsewhere(server: Server, stream: blocking.Stream) -> None:
    with blocking.connect(server.url) as other:
        js = other.jetstream()
        js.publish(f"{stream.name}.a", b"x")
        durable(stream)
        worker = js.get_consumer(stream.name, next(iter(stream.consumer_names())))
        message = worker.next(expires=2)
        assert message is not None
    with pytest.raises(ConnectionClosed):
        message.ack()
    assert not message.is_acked


# Iterating


def test_iterates_as_in_the_readme(stream: blocking.Stream, fill: Fill) -> None:
    fill(100)
    worker = durable(stream)
    got: list[int] = []
    with worker.consume(max_messages=50) as messages:
        for msg in messages:
            got.append(int(msg.data))
            msg.ack()
            if len(got) == 100:
                break
        assert not messages.closed
    assert messages.closed
    assert got == list(range(100))
    eventually_sync(lambda: worker.info().ack_floor.stream_seq == 100)


@pytest.mark.parametrize("buffer", [1, 2, 7, 100, 5000])
def test_every_size_of_buffer_brings_all_in_order(stream: blocking.Stream, fill: Fill, buffer: int) -> None:
    fill(300)
    with durable(stream).consume(max_messages=buffer, stop_after=300) as messages:
        assert numbers(messages) == list(range(300))


def test_limits_in_bytes(stream: blocking.Stream, fill: Fill) -> None:
    fill(500)
    with durable(stream).consume(max_bytes=4000, stop_after=500) as messages:
        assert numbers(messages) == list(range(500))


def test_stop_after_ends_the_iteration(stream: blocking.Stream, fill: Fill) -> None:
    fill(20)
    worker = durable(stream)
    with worker.consume(stop_after=7) as messages:
        assert numbers(messages) == list(range(7))
        assert list(messages) == []
        assert messages.closed
    assert numbers(worker.fetch(100, expires=0.5)) == list(range(7, 20))


def test_next_takes_one(stream: blocking.Stream, fill: Fill) -> None:
    fill(3)
    with durable(stream).consume(stop_after=3) as messages:
        assert [next(messages).data for _ in range(3)] == [b"0", b"1", b"2"]
        with pytest.raises(StopIteration):
            next(messages)


def test_iteration_may_be_left_and_resumed(stream: blocking.Stream, fill: Fill) -> None:
    fill(30)
    got: list[int] = []
    with durable(stream).consume(stop_after=30) as messages:
        while len(got) < 30:
            for msg in messages:
                got.append(int(msg.data))
                if len(got) % 4 == 0:
                    break
    assert got == list(range(30))


def test_batches(stream: blocking.Stream, fill: Fill) -> None:
    fill(1000)
    got: list[int] = []
    with durable(stream).consume_batches(max_messages=300, stop_after=1000) as batches:
        first = next(batches)
        assert type(first[0]) is blocking.Message
        got += numbers(first)
        for batch in batches:
            assert batch
            got += numbers(batch)
    assert got == list(range(1000))


def test_four_threads_share_one_consume(stream: blocking.Stream, fill: Fill) -> None:
    fill(20_000)
    worker = durable(stream, max_ack_pending=50_000)
    parts: list[list[int]] = []
    with worker.consume(max_messages=1000, stop_after=20_000) as messages:

        def work() -> None:
            part = []
            for msg in messages:
                part.append(int(msg.data))
                msg.ack()
            parts.append(part)

        join(in_threads(4, work))
    assert len(parts) == 4
    assert sorted(number for part in parts for number in part) == list(range(20_000))
    assert all(part == sorted(part) for part in parts)
    eventually_sync(lambda: worker.info().ack_floor.stream_seq == 20_000)


def test_four_threads_share_batches(stream: blocking.Stream, fill: Fill) -> None:
    fill(20_000)
    seen: Counter[int] = Counter()
    lock = threading.Lock()
    with durable(stream, max_ack_pending=50_000).consume_batches(stop_after=20_000) as batches:

        def work() -> None:
            for batch in batches:
                with lock:
                    seen.update(numbers(batch))

        join(in_threads(4, work))
    assert seen == Counter(range(20_000))


def test_slow_readers_do_not_hold_messages_of_others(stream: blocking.Stream, fill: Fill) -> None:
    fill(4)
    meeting = threading.Barrier(4, timeout=10)
    met: list[int] = []
    with durable(stream).consume(stop_after=4) as messages:

        def work() -> None:
            for msg in messages:
                meeting.wait()  # passes when each of four threads has one
                met.append(int(msg.data))

        join(in_threads(4, work))
    assert sorted(met) == [0, 1, 2, 3]


@pytest.mark.parametrize("flow_control", [False, True])
def test_push_consumers_are_read_as_well(stream: blocking.Stream, fill: Fill, flow_control: bool) -> None:
    fill(20_000)
    worker = durable(
        stream,
        deliver_subject=unique("deliver"),
        ack_policy="none",
        flow_control=flow_control,
        idle_heartbeat=1 if flow_control else None,
    )
    parts: list[list[int]] = []
    with worker.consume(stop_after=20_000) as messages:
        join(in_threads(2, lambda: parts.append(numbers(messages))))
    assert sorted(number for part in parts for number in part) == list(range(20_000))


# The end


def test_stop_from_another_thread_ends_a_waiting_reader(stream: blocking.Stream) -> None:
    with durable(stream).consume() as messages:
        got: list[blocking.Message] = []
        threads = in_threads(2, lambda: got.extend(messages))
        eventually_sync(lambda: len(messages._started().readers._sleepers) == 2)
        messages.stop()
        join(threads)
        assert got == []
        assert messages.closed
        messages.stop()


def test_stop_drops_what_is_buffered(stream: blocking.Stream, fill: Fill) -> None:
    fill(100)
    worker = durable(stream)
    with worker.consume() as messages:
        reading = iter(messages)
        assert next(reading).data == b"0"
        eventually_sync(lambda: messages.pending == 99)
        messages.stop()
        assert messages.pending == 0
        assert list(reading) == []


def test_drain_from_another_thread_hands_out_the_rest(stream: blocking.Stream, fill: Fill) -> None:
    fill(100)
    worker = durable(stream)
    got: list[int] = []
    with worker.consume(max_messages=50) as messages:
        go = threading.Event()

        def work() -> None:
            for msg in messages:
                got.append(int(msg.data))
                msg.ack()
                go.wait(20)

        threads = in_threads(1, work)
        eventually_sync(lambda: messages.pending == 49)
        messages.drain()
        go.set()
        join(threads)
        messages.drain()
    assert got == list(range(50))
    eventually_sync(lambda: worker.info().ack_floor.stream_seq == 50)


def test_closing_the_connection_ends_the_iteration(server: Server, stream: blocking.Stream) -> None:
    worker = durable(stream)
    with blocking.connect(server.url) as other:
        handle = other.jetstream().get_consumer(stream.name, worker.name)
        with handle.consume() as messages:
            threads = in_threads(1, lambda: list(messages))
            eventually_sync(lambda: bool(messages._started().readers))
            other.close()
            join(threads)
            assert messages.closed


def test_deleted_consumer_raises_behind_the_last_message(stream: blocking.Stream, fill: Fill) -> None:
    fill(10)
    worker = durable(stream)
    errors: list[JetsparkError] = []
    got: list[int] = []
    with worker.consume(on_error=errors.append) as messages:
        eventually_sync(lambda: messages.pending == 10)
        worker.delete()
        eventually_sync(lambda: messages.closed)
        with pytest.raises(ConsumerDeleted):
            got.extend(int(msg.data) for msg in messages)
    assert got == list(range(10))
    assert [type(error) for error in errors] == [ConsumerDeleted]


def test_listener_may_use_the_api(stream: blocking.Stream) -> None:
    worker = durable(stream)
    names: list[list[str]] = []
    with worker.consume(on_error=lambda error: names.append(list(stream.consumer_names()))) as messages:
        pulled(worker)
        worker.delete()
        with pytest.raises(ConsumerDeleted):
            list(messages)
        eventually_sync(lambda: names == [[]])


def test_consume_must_be_entered_and_once(stream: blocking.Stream) -> None:
    consume = durable(stream).consume()
    for use in (lambda: list(consume), lambda: next(consume), consume.stop, consume.drain):
        with pytest.raises(InvalidArgument, match="not started; use 'with"):
            use()
    with consume, pytest.raises(InvalidArgument, match="entered once"):
        consume.__enter__()


def test_async_functions_are_refused(stream: blocking.Stream) -> None:
    async def handle(msg: object) -> None:
        raise AssertionError

    worker = durable(stream)
    with pytest.raises(InvalidArgument, match="plain function"):
        worker.consume_with(handle)
    with pytest.raises(InvalidArgument, match="plain function"):
        worker.consume(on_error=handle)


# Callbacks


def test_callback_gets_messages_in_order(stream: blocking.Stream, fill: Fill) -> None:
    fill(500)
    worker = durable(stream)
    got: list[int] = []

    def handle(msg: blocking.Message) -> None:
        got.append(int(msg.data))
        msg.ack()

    with worker.consume_with(handle, stop_after=500) as consuming:
        consuming.wait()
    assert got == list(range(500))
    eventually_sync(lambda: worker.info().ack_floor.stream_seq == 500)
    assert our_threads() == set()


def test_callbacks_run_side_by_side(js: blocking.JetStream, stream: blocking.Stream, fill: Fill) -> None:
    fill(8)
    meeting = threading.Barrier(4, timeout=10)
    names: set[str] = set()

    def handle(msg: blocking.Message) -> None:
        meeting.wait()
        names.add(threading.current_thread().name)
        js.account_info()  # callbacks may use the API
        msg.ack_sync()

    with durable(stream).consume_with(handle, concurrency=4, stop_after=8) as consuming:
        consuming.wait()
    assert names == {f"jetspark-consume-{number}" for number in range(4)}


def test_callback_that_raises_is_reported_and_goes_on(stream: blocking.Stream, fill: Fill) -> None:
    fill(5)
    worker = durable(stream)
    errors: list[JetsparkError] = []

    def handle(msg: blocking.Message) -> None:
        if msg.data == b"2":
            raise ValueError("two")
        msg.ack()

    with worker.consume_with(handle, on_error=errors.append, stop_after=5) as consuming:
        consuming.wait()
    (failure,) = errors
    assert isinstance(failure, HandlerFailed)
    assert isinstance(failure.error, ValueError)
    assert failure.message.data == b"2"
    eventually_sync(lambda: worker.info().num_ack_pending == 1)


def test_callback_may_stop_its_own_consume(stream: blocking.Stream, fill: Fill) -> None:
    fill(10)
    got: list[int] = []
    entered = threading.Event()

    def handle(msg: blocking.Message) -> None:
        assert entered.wait(20)
        got.append(int(msg.data))
        if len(got) == 3:
            consuming.stop()

    with durable(stream).consume_with(handle) as consuming:
        entered.set()
        consuming.wait()
        assert consuming.closed
    assert got == [0, 1, 2]


def test_stop_waits_for_the_callback_under_way(stream: blocking.Stream, fill: Fill) -> None:
    fill(10)
    started, go = threading.Event(), threading.Event()
    done: list[int] = []

    def handle(msg: blocking.Message) -> None:
        started.set()
        go.wait(20)
        done.append(int(msg.data))

    with durable(stream).consume_with(handle) as consuming:
        assert started.wait(20)
        timer = threading.Timer(0.2, go.set)
        timer.start()
        consuming.stop()
        assert done == [0]
        timer.join()


def test_wait_raises_what_ended_it(stream: blocking.Stream) -> None:
    worker = durable(stream)
    with worker.consume_with(lambda msg: None) as consuming:
        pulled(worker)
        worker.delete()
        with pytest.raises(ConsumerDeleted):
            consuming.wait()


def test_close_of_the_connection_ends_callbacks(server: Server, stream: blocking.Stream) -> None:
    worker = durable(stream)
    with blocking.connect(server.url) as other:
        handle = other.jetstream().get_consumer(stream.name, worker.name)
        with handle.consume_with(lambda msg: None, concurrency=3) as consuming:
            assert len(our_threads()) == 3
            other.close()
            consuming.wait()
    assert our_threads() == set()


# Faults


def test_kill_and_restart_while_consuming(own_server: Server) -> None:
    name = unique()
    with blocking.connect(own_server.url) as nc:
        js = nc.jetstream(timeout=20)
        stream = js.create_stream(StreamConfig(name=name, subjects=[name], storage=StorageType.FILE))
        with js.publisher() as publisher:
            for number in range(5000):
                publisher.publish(name, b"%d" % number)
        worker = durable(stream, ack_wait=2, max_ack_pending=2000)
        seen: Counter[int] = Counter()
        restart = threading.Thread(target=own_server.restart)
        with worker.consume(max_messages=200, expires=5) as messages:
            for msg in messages:
                seen[int(msg.data)] += 1
                msg.ack()
                if sum(seen.values()) == 1000:
                    own_server.kill()  # while most of them are still to come
                    restart.start()
                if len(seen) == 5000:
                    break
        restart.join()
        assert set(seen) == set(range(5000))
        assert nc.stats.reconnects == 1
        # What was acked before the kill may come again, for its ack may have been lost; not more than that.
        assert sum(seen.values()) <= 5000 + 2000
