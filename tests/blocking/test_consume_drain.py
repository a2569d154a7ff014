"""Draining a connection lets loops and callbacks of a consume finish what has arrived, and ack it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from helpers import eventually_sync, unique
from jetspark import ConsumerConfig, StorageType, StreamConfig, blocking
from jetspark.errors import ConnectionClosed, DrainTimeout

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

    def run(self, **options: Any) -> None:
        with self.theirs.consume(**options) as self.consume:
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
    assert reader.began.wait(10), "a loop that has not begun is waited for by nobody"
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
    with reader.theirs.consume(callback=reader.handle, concurrency=3) as consuming:
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

    with reader.theirs.consume(callback=handle):
        assert drained.wait(10)
    assert reader.nc.is_closed


def test_a_loop_that_does_not_end_is_named(server: Server, consumer: blocking.Consumer) -> None:
    reader = Reader(server.url, consumer, drain_timeout=0.3)
    thread = threading.Thread(target=reader.run)
    thread.start()
    assert reader.began.wait(10), "a loop that has not begun is waited for by nobody"
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
        eventually_sync(lambda: not reader.nc._client._sinks or messages._target._sink.flow._unsubscribed)
        reader.nc.close()
        assert [int(message.data) for message in messages] == list(range(20))
