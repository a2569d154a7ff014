"""Draining a connection lets loops and callbacks of a consume finish what has arrived, and ack it."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pytest

from jetspark import ConsumerConfig, StorageType, StreamConfig, blocking
from jetspark.errors import ConnectionClosed, DrainTimeout, JetsparkError, PushSubscriptionClosed
from support.helpers import eventually_sync, unique

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetspark.server import Server


@pytest.fixture
def consumer(server: Server) -> Iterator[blocking.Consumer]:
    """A consumer with 20 messages, on a connection that is not drained."""
    with blocking.connect(server.url) as nc:
        js, name = nc.jetstream(), unique()
        stream = js.create_stream(StreamConfig(name=name, subjects=[name], storage=StorageType.MEMORY))
        for number in range(20):
            js.publish(name, b"%d" % number)
        yield stream.create_consumer(ConsumerConfig(durable_name="worker"))


class Reader:
    """A loop in a thread that waits at its first message, so that the others are buffered."""

    def __init__(self, url: str, consumer: blocking.Consumer, **connect: Any) -> None:
        self.nc = blocking.connect(url, **connect)
        self.theirs = self.nc.jetstream().get_consumer(consumer.stream_name, "worker")
        self.began = threading.Event()
        self.taken = 0
        self.go = threading.Event()
        self.got: list[int] = []
        self.error: BaseException | None = None

    def run(self, *, batches: bool = False) -> None:
        start: Any = self.theirs.consume_batches if batches else self.theirs.consume
        with start() as self.consume:
            try:
                for found in self.consume:
                    messages = found if isinstance(found, list) else [found]
                    self.taken += len(messages)
                    for message in messages:
                        self.handle(message)
            except ConnectionClosed as error:
                self.error = error

    def handle(self, message: Any) -> None:
        self.began.set()
        self.go.wait()
        message.ack()
        self.got.append(int(message.data))


def acked(consumer: blocking.Consumer) -> bool:
    info = consumer.info()
    return (info.num_ack_pending, info.num_pending) == (0, 0)


@pytest.mark.parametrize("batches", [False, True])
def test_a_loop_gets_and_acks_what_has_arrived(
    server: Server, consumer: blocking.Consumer, batches: bool
) -> None:
    reader = Reader(server.url, consumer)
    thread = threading.Thread(target=reader.run, kwargs={"batches": batches})
    thread.start()
    assert reader.began.wait(20), "a loop that has not begun is waited for by nobody"
    eventually_sync(lambda: reader.taken + reader.consume.pending == 20)
    draining = threading.Thread(target=reader.nc.drain)
    draining.start()
    eventually_sync(lambda: reader.nc.is_draining)
    reader.go.set()
    draining.join()
    assert reader.got == list(range(20))
    assert reader.error is None
    thread.join()
    eventually_sync(lambda: acked(consumer))


def test_callbacks_get_and_ack_what_has_arrived(server: Server, consumer: blocking.Consumer) -> None:
    reader = Reader(server.url, consumer)
    with reader.theirs.consume_with(reader.handle, concurrency=3) as consuming:
        eventually_sync(lambda: consuming.pending == 17)
        draining = threading.Thread(target=reader.nc.drain)
        draining.start()
        eventually_sync(lambda: reader.nc.is_draining)
        reader.go.set()
        draining.join()
    assert sorted(reader.got) == list(range(20))
    eventually_sync(lambda: acked(consumer))


def test_a_loop_may_drain_its_connection(server: Server, consumer: blocking.Consumer) -> None:
    reader = Reader(server.url, consumer)
    with reader.theirs.consume() as messages:
        for number, _ in enumerate(messages):
            if number == 3:
                reader.nc.drain()
    assert reader.nc.is_closed
    assert number >= 3


def test_a_callback_may_drain_its_connection(server: Server, consumer: blocking.Consumer) -> None:
    reader = Reader(server.url, consumer)
    drained = threading.Event()

    def handle(message: Any) -> None:
        if message.data == b"3":
            reader.nc.drain()
            drained.set()

    with reader.theirs.consume_with(handle):
        assert drained.wait(20)
    assert reader.nc.is_closed


def test_a_loop_that_does_not_end_is_named(server: Server, consumer: blocking.Consumer) -> None:
    reader = Reader(server.url, consumer, drain_timeout=0.3)
    thread = threading.Thread(target=reader.run)
    thread.start()
    assert reader.began.wait(20), "a loop that has not begun is waited for by nobody"
    eventually_sync(lambda: reader.taken + reader.consume.pending == 20)
    with pytest.raises(DrainTimeout):
        reader.nc.drain()
    assert reader.nc.is_closed
    reader.go.set()
    thread.join()


def test_what_was_drained_is_handed_out_behind_the_end_of_the_connection(
    server: Server, consumer: blocking.Consumer
) -> None:
    reader = Reader(server.url, consumer)
    with reader.theirs.consume() as messages:
        eventually_sync(lambda: messages.pending == 20)
        messages.drain()
        eventually_sync(lambda: not reader.nc._core.router.sinks or messages._target._sink.flow._unsubscribed)
        reader.nc.close()
        assert [int(message.data) for message in messages] == list(range(20))


# Push subscriptions, and core ones


class PushReader:
    """A thread that waits at its first message, so that the others are buffered, and then acks each."""

    def __init__(self, sub: blocking.PushSubscription, how: str) -> None:
        self.sub = sub
        self.go = threading.Event()
        self.seen: list[int] = []
        self.failed: list[JetsparkError] = []
        self.thread = threading.Thread(target=getattr(self, how))
        self.thread.start()

    def loop(self) -> None:
        for message in self.sub:
            self.handle(message)

    def next(self) -> None:
        with contextlib.suppress(PushSubscriptionClosed):
            while True:
                self.handle(self.sub.next())

    def handle(self, message: blocking.Message) -> None:
        self.seen.append(int(message.data))
        self.go.wait()
        try:
            message.ack_sync()
        except JetsparkError as error:
            self.failed.append(error)


@pytest.mark.parametrize("how", ["loop", "next"])
def test_a_reader_of_a_push_subscription_acks_the_rest_and_the_consumer_is_deleted(
    server: Server, consumer: blocking.Consumer, how: str
) -> None:
    stream = consumer.stream_name
    nc = blocking.connect(server.url)
    sub = nc.jetstream().subscribe(stream)
    reader = PushReader(sub, how)
    eventually_sync(lambda: reader.seen and len(reader.seen) + sub.pending == 20)
    draining = threading.Thread(target=nc.drain)
    draining.start()
    eventually_sync(lambda: sub.closed)
    reader.go.set()
    draining.join()
    reader.thread.join()
    assert (reader.seen, reader.failed) == (list(range(20)), [])
    with blocking.connect(server.url) as other:
        assert list(other.jetstream().consumer_names(stream)) == ["worker"]


def test_who_reads_a_push_subscription_may_drain_the_connection(
    server: Server, consumer: blocking.Consumer
) -> None:
    nc = blocking.connect(server.url)
    for message in nc.jetstream().subscribe(consumer.stream_name):
        message.ack()
        nc.drain()
        break
    assert nc.is_closed
    with blocking.connect(server.url) as other:
        assert list(other.jetstream().consumer_names(consumer.stream_name)) == ["worker"]


def test_a_loop_over_a_core_subscription_answers_what_has_arrived(server: Server) -> None:
    subject, go = unique("drain"), threading.Event()
    nc = blocking.connect(server.url)
    with blocking.connect(server.url) as other:
        answers = other.subscribe(f"{subject}.answer")
        other.flush()
        sub = nc.subscribe(subject)

        def serve() -> None:
            for message in sub:
                go.wait()
                message.respond(message.data)

        serving = threading.Thread(target=serve)
        serving.start()
        for number in range(50):
            nc.publish(subject, b"%d" % number, reply=f"{subject}.answer")
        eventually_sync(lambda: sub.pending_messages == 49)
        draining = threading.Thread(target=nc.drain)
        draining.start()
        eventually_sync(lambda: sub.closed)
        go.set()
        draining.join()
        serving.join()
        assert [int(answers.next().data) for _ in range(50)] == list(range(50))


@pytest.mark.parametrize("kind", ["consume", "push", "core"])
def test_a_thread_that_ends_in_the_middle_is_not_waited_for(
    server: Server, consumer: blocking.Consumer, kind: str
) -> None:
    """It leaves its loop after one message, and the loop's end never comes."""
    nc = blocking.connect(server.url, drain_timeout=8)
    js, began, go = nc.jetstream(), threading.Event(), threading.Event()
    name = consumer.stream_name
    with contextlib.ExitStack() as stack:
        source: Any
        if kind == "consume":
            source = stack.enter_context(js.get_consumer(name, "worker").consume())
        elif kind == "push":
            source = js.subscribe(name)
        else:
            source = nc.subscribe(unique("core"))
            for _ in range(3):
                nc.publish(source.subject)

        def read() -> None:
            for _ in source:
                began.set()
                go.wait()
                break

        thread = threading.Thread(target=read)
        thread.start()
        assert began.wait(20)
        draining = Call(nc.drain)
        eventually_sync(lambda: nc.is_draining)
        go.set()
        thread.join()
        draining.join()
    assert draining.error is None


class Call(threading.Thread):
    """A call in a thread of its own, and what it raised."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._function()
        except BaseException as error:
            self.error = error


def test_only_the_loop_looks_at_what_only_the_loop_changes(server: Server) -> None:
    """The set of drained subscriptions may grow at any moment, and Python refuses to iterate it then."""
    threads: set[threading.Thread] = set()

    class Watched(WeakSet[Any]):
        def __iter__(self) -> Iterator[Any]:
            threads.add(threading.current_thread())
            return super().__iter__()

    nc = blocking.connect(server.url)
    nc._core.router.drained = Watched()
    nc.drain()
    assert threads
    assert threading.current_thread() not in threads
