"""What type checkers see of the blocking API. Nothing here runs; mypy and pyright read it (``make lint``)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import assert_type

from jetspark import (
    AckBatch,
    ConsumerConfig,
    ConsumerInfo,
    OrderedConsumerConfig,
    PubAck,
    Publishing,
    StoredMsg,
    StreamConfig,
    StreamInfo,
    blocking,
    errors,
    events,
)
from jetspark.advisories import Advisory
from jetspark.arrow import ConsumeArrow


def connections(seen: list[events.Event]) -> None:
    with blocking.connect("nats://127.0.0.1", listener=seen.append) as nc:
        assert_type(nc, blocking.Connection)
        assert_type(nc.publish("s", data=b"x"), None)
        assert_type(nc.request("s", b"x"), blocking.Msg)
        assert_type(nc.request_many("s"), Iterator[blocking.Msg])
        with nc.subscribe("s") as sub:
            assert_type(sub, blocking.Subscription)
            for msg in sub:
                assert_type(msg, blocking.Msg)
            assert_type(sub.unsubscribe(max_messages=7), None)
        js = nc.jetstream()
        assert_type(js, blocking.JetStream)
        assert_type(js.connection, blocking.Connection)


def streams(js: blocking.JetStream) -> None:
    stream = js.create_stream(StreamConfig(name="S", max_age=timedelta(days=1)))
    assert_type(stream, blocking.Stream)
    assert_type(js.list_streams(), Iterator[StreamInfo])
    assert_type(stream.get_msg(5), StoredMsg)
    assert_type(stream.get_msgs(seq=1), Iterator[StoredMsg])


def consumers(js: blocking.JetStream, stream: blocking.Stream, until: datetime) -> None:
    consumer = stream.create_consumer(ConsumerConfig(durable_name="c"))
    assert_type(consumer, blocking.Consumer)
    assert_type(consumer.info(), ConsumerInfo)
    ordered = OrderedConsumerConfig(opt_start_seq=5)
    assert_type(js.create_ordered_consumer("S", ordered), blocking.OrderedConsumer)
    with stream.create_ordered_consumer(opt_start_time=until) as reader:
        assert_type(reader, blocking.OrderedConsumer)
        assert_type(reader.last_sequence, int)


def reading(consumer: blocking.Consumer) -> None:
    batch = consumer.fetch(10)
    assert_type(batch, blocking.MessageBatch)
    assert_type(batch[0], blocking.Message)
    assert_type(consumer.next(), blocking.Message | None)
    with consumer.consume(stop_after=3) as messages:
        assert_type(messages, blocking.Consume)
        for message in messages:
            assert_type(message, blocking.Message)
            assert_type(message.ack(), None)
    with consumer.consume_batches() as batches:
        assert_type(batches, blocking.ConsumeBatches)
        for several in batches:
            assert_type(several, list[blocking.Message])

    def handle(message: blocking.Message) -> None: ...
    def report(error: errors.JetsparkError) -> None: ...

    with consumer.consume_with(handle, concurrency=5, on_error=report) as running:
        assert_type(running, blocking.ConsumeCallback)
        assert_type(running.wait(), None)
    with consumer.consume_arrow() as arrow:
        assert_type(arrow, ConsumeArrow)

    consumer.consume(batches=True)  # type: ignore[call-arg]
    consumer.consume(callback=handle)  # type: ignore[call-arg]
    consumer.consume_with()  # type: ignore[call-arg]


def old_ways(js: blocking.JetStream) -> None:
    assert_type(js.pull_subscribe("s", "durable").fetch(5), blocking.MessageBatch)
    with js.subscribe("s", durable="d", delete_on_close=None) as push:
        assert_type(push, blocking.PushSubscription)
        assert_type(push.next(), blocking.Message)


def publishing(js: blocking.JetStream) -> None:
    assert_type(js.publish("s", b"x"), PubAck)
    with js.publisher() as publisher:
        assert_type(publisher, blocking.Publisher)
        assert_type(publisher.publish("s", b"x"), Future[PubAck])
        assert_type(publisher.publish_many([("s", b"x")]), AckBatch)
        assert_type(publisher.publish_many([Publishing("s"), ("s", b"x")]), AckBatch)
        publisher.publish_many([("s", b"x", None)])  # type: ignore[list-item]
    with js.atomic_batch() as batch:
        assert_type(batch, blocking.AtomicBatch)
    with js.fast_ingest() as ingest:
        assert_type(ingest, blocking.FastIngest)


def advisories(js: blocking.JetStream) -> None:
    with js.advisories() as feed:
        assert_type(feed, blocking.Advisories)
        for advisory in feed:
            assert_type(advisory, Advisory)
    with js.dead_letters("S") as letters:
        for letter in letters:
            assert_type(letter, blocking.DeadLetter)
