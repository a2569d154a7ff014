"""Atomic batches, fast ingest, ordered consumers and pull subscriptions through the facade."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from jetspark import ConsumerConfig, Expect, StorageType, StreamConfig, blocking
from jetspark.errors import (
    ConnectionClosed,
    InvalidArgument,
    OrderedConsumerBusy,
    OrderedConsumerClosed,
    PullSubscriptionClosed,
    WrongLastSequence,
)
from support.helpers import eventually_sync, unique

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetspark.models import IngestGap
    from jetspark.server import Server

Fill = Callable[[int], None]


@pytest.fixture
def target(js: blocking.JetStream) -> Iterator[blocking.Stream]:
    """A stream that takes batches of both kinds."""
    name = unique("BATCH")
    made = js.create_stream(
        StreamConfig(
            name=name,
            subjects=[f"{name}.>"],
            allow_atomic=True,
            allow_batched=True,
            allow_direct=True,
            storage=StorageType.MEMORY,
        )
    )
    yield made
    made.delete()


# Atomic batches


@pytest.mark.parametrize("hold", [0, 1000, 262_144])
def test_atomic_batch_is_stored_at_the_end_of_the_block(
    js: blocking.JetStream, target: blocking.Stream, hold: int
) -> None:
    with js.atomic_batch(hold=hold) as batch:
        for number in range(100):
            batch.publish(f"{target.name}.a", b"%d" % number)
        assert batch.count == 100
        assert batch.ack is None
        assert target.info().state.messages == 0
    assert batch.ack is not None
    assert (batch.ack.seq, batch.ack.count, batch.ack.batch) == (100, 100, batch.id)
    assert [int(msg.data) for msg in target.get_msgs()] == list(range(100))


def test_atomic_batch_is_dropped_by_an_error_in_the_block(
    js: blocking.JetStream, target: blocking.Stream
) -> None:
    batch = js.atomic_batch(hold=0)

    def use() -> None:
        with batch:
            batch.publish(f"{target.name}.a")
            batch.publish(f"{target.name}.a")
            raise KeyError

    with pytest.raises(KeyError):
        use()
    with pytest.raises(ConnectionClosed, match="discarded"):
        batch.publish(f"{target.name}.a")
    assert target.info().state.messages == 0


def test_atomic_batch_refused_by_the_server(js: blocking.JetStream, target: blocking.Stream) -> None:
    batch = js.atomic_batch()
    with batch:
        batch.publish(f"{target.name}.a", expect=Expect(last_seq=7))
        with pytest.raises(WrongLastSequence):
            batch.commit()
    assert target.info().state.messages == 0


def test_threads_fill_one_atomic_batch(js: blocking.JetStream, target: blocking.Stream) -> None:
    with js.atomic_batch(hold=500) as batch:

        def work() -> None:
            for _ in range(100):
                batch.publish(f"{target.name}.a", b"x" * 50)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert batch.ack is not None
    assert batch.ack.count == 400


# Fast ingest


def test_fast_ingest(js: blocking.JetStream, target: blocking.Stream) -> None:
    with js.fast_ingest() as ingest:
        numbers = [ingest.publish(f"{target.name}.a", b"%d" % number) for number in range(5000)]
    assert numbers == list(range(1, 5001))
    assert ingest.ack is not None
    assert (ingest.ack.seq, ingest.ack.count) == (5000, 5000)
    assert (ingest.published, ingest.acked, ingest.lost) == (5000, 5000, 0)
    assert [int(msg.data) for msg in target.get_msgs()] == list(range(5000))


def test_threads_share_a_fast_ingest(js: blocking.JetStream, target: blocking.Stream) -> None:
    numbers: list[list[int]] = []
    with js.fast_ingest(ping_interval=0.01) as ingest:  # pings between the messages

        def work() -> None:
            numbers.append([ingest.publish(f"{target.name}.a") for _ in range(3000)])

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert sorted(number for part in numbers for number in part) == list(range(1, 12_001))
    assert target.info().state.messages == 12_000


def test_fast_ingest_reports_gaps_in_a_thread_that_may_use_the_api(
    js: blocking.JetStream, target: blocking.Stream
) -> None:
    seen: list[tuple[IngestGap, int]] = []

    def on_gap(gap: IngestGap) -> None:
        seen.append((gap, target.info().state.messages))

    with js.fast_ingest(gap="ok", on_gap=on_gap, ping_interval=0.2) as ingest:
        ingest.publish(f"{target.name}.a")
        ingest.publish(f"{target.name}.a")
        # A number that never reaches the server.
        with ingest._target.order:
            ingest._target._flow.sent += 1
        ingest.publish(f"{target.name}.a")
    eventually_sync(lambda: [gap.first for gap, _ in seen] == [3])
    assert ingest.lost == 1


def test_fast_ingest_must_be_open(js: blocking.JetStream, target: blocking.Stream) -> None:
    ingest = js.fast_ingest()
    with pytest.raises(ConnectionClosed, match="use it with 'with'"):
        ingest.publish(f"{target.name}.a")
    with ingest:
        ingest.publish(f"{target.name}.a")
    with pytest.raises(ConnectionClosed):
        ingest.publish(f"{target.name}.a")
    with pytest.raises(InvalidArgument, match="plain function"):
        js.fast_ingest(on_gap=_async_function)  # type: ignore[arg-type]


async def _async_function(gap: IngestGap) -> None:
    raise AssertionError


# Ordered consumers


def test_ordered_consumer_reads_in_order(stream: blocking.Stream, fill: Fill) -> None:
    fill(3000)
    with stream.create_ordered_consumer() as ordered:
        assert type(ordered) is blocking.OrderedConsumer
        assert [int(msg.data) for msg in ordered.fetch(10, expires=2)] == list(range(10))
        with ordered.consume(max_messages=100, stop_after=2000) as messages:
            assert next(messages).data == b"10"
            with pytest.raises(OrderedConsumerBusy):
                ordered.consume().__enter__()
            assert [int(msg.data) for msg in messages] == list(range(11, 2010))
        message = ordered.next(expires=2)
        assert message is not None
        assert message.data == b"2010"
        assert ordered.last_sequence == 2011
        assert ordered.info().config.mem_storage
        with pytest.raises(InvalidArgument, match="ordered consumer has no pause"):
            ordered.pause(datetime.now(UTC))
    with pytest.raises(OrderedConsumerClosed):
        ordered.fetch(1)
    assert list(stream.consumer_names()) == []


def test_ordered_consumer_goes_on_with_what_was_not_handed_out(
    js: blocking.JetStream, stream: blocking.Stream, fill: Fill
) -> None:
    fill(1000)
    got: list[int] = []
    with js.create_ordered_consumer(stream.name) as ordered:
        while len(got) < 1000:
            with ordered.consume(max_messages=300) as messages:
                for msg in messages:
                    got.append(int(msg.data))
                    if len(got) % 130 == 0 or len(got) == 1000:
                        break
    assert got == list(range(1000))


def test_ordered_consumer_survives_kill_and_restart(own_server: Server) -> None:
    with blocking.connect(own_server.url) as nc:
        js = nc.jetstream(timeout=20)
        name = unique()
        stream = js.create_stream(StreamConfig(name=name, subjects=[name]))
        with js.publisher() as publisher:
            for number in range(3000):
                publisher.publish(name, b"%d" % number)
        got: list[int] = []
        restart = threading.Thread(target=own_server.restart)
        with (
            stream.create_ordered_consumer() as ordered,
            ordered.consume(max_messages=200, stop_after=3000) as messages,
        ):
            for msg in messages:
                got.append(int(msg.data))
                if len(got) == 500:
                    own_server.kill()  # while most of them are still to come
                    restart.start()
        restart.join()
        assert nc.stats.reconnects == 1
        assert got == list(range(3000))


# Pull subscriptions


def test_pull_subscription(js: blocking.JetStream, stream: blocking.Stream, fill: Fill) -> None:
    fill(5)
    with js.pull_subscribe(f"{stream.name}.a", "worker") as sub:
        assert type(sub.consumer) is blocking.Consumer
        batch = sub.fetch(3)
        assert type(batch) is blocking.MessageBatch
        for msg in batch:
            msg.ack()
        assert [int(msg.data) for msg in batch] == [0, 1, 2]
        assert [int(msg.data) for msg in sub.fetch(10, timeout=1)] == [3, 4]
        assert sub.fetch(1, timeout=0.1) == []
        assert (sub.delivered, sub.pending, sub.closed, sub.subject) == (5, 0, False, f"{stream.name}.a")
        assert sub.consumer_info().name == "worker"
    assert sub.closed
    with pytest.raises(PullSubscriptionClosed):
        sub.fetch()
    assert stream.create_or_update_consumer(
        ConsumerConfig(durable_name="worker", filter_subject=f"{stream.name}.a")
    )
