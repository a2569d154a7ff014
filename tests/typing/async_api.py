"""What type checkers see of the async API. Nothing here runs; mypy and pyright read it (``make lint``)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any, assert_type

import jetspark
from jetspark import (
    AckBatch,
    AtomicBatch,
    Connecting,
    Connection,
    Consume,
    ConsumeBatches,
    ConsumeCallback,
    Consumer,
    ConsumerConfig,
    ConsumerInfo,
    Expect,
    FastIngest,
    Fetch,
    Headers,
    JetStream,
    Message,
    MessageBatch,
    Metadata,
    Msg,
    OrderedConsumer,
    OrderedConsumerConfig,
    PubAck,
    Publisher,
    Publishing,
    PullSubscription,
    PushSubscription,
    Schedule,
    Secret,
    StoredMsg,
    Stream,
    StreamConfig,
    StreamInfo,
    Subscription,
    errors,
    events,
)
from jetspark.advisories import Advisories, Advisory, DeadLetter, DeadLetters, NakAdvisory
from jetspark.arrow import ConsumeArrow
from jetspark.models import (
    AccountInfo,
    ConsumerPause,
    CounterValue,
    Duration,
    PublisherStats,
    ServerInfo,
    Statistics,
    StreamState,
    Timestamp,
)


async def connections(seen: list[events.Event]) -> None:
    assert_type(jetspark.connect("nats://127.0.0.1"), Connecting)
    nc = await jetspark.connect(["a", "b"], password=Secret("x"), listener=seen.append)
    assert_type(nc, Connection)
    async with jetspark.connect(tls_ca="ca.pem", metrics=None) as other:
        assert_type(other, Connection)
    assert_type(nc.server_info, ServerInfo)
    assert_type(nc.stats, Statistics)
    assert_type(nc.is_connected, bool)
    assert_type(await nc.publish("s", b"x", headers={"a": ["1", "2"]}), None)
    assert_type(await nc.publish("s", data=b"x", headers=Headers()), None)
    assert_type(await nc.request("s", data=b"x", timeout=1), Msg)
    async for answer in nc.request_many("s", b"x", max_messages=3):
        assert_type(answer, Msg)
    assert_type(await nc.rtt(), float)


async def subscriptions(nc: Connection) -> None:
    async with await nc.subscribe("s", queue="q", max_messages=5) as sub:
        assert_type(sub, Subscription)
        async for msg in sub:
            assert_type(msg, Msg)
            assert_type(msg.data, bytes)
            assert_type(msg.headers, Headers)
            await msg.respond(b"x")
        assert_type(await sub.next(timeout=1), Msg)
        assert_type(await sub.unsubscribe(max_messages=7), None)

    async def handle(msg: Msg) -> None: ...
    def handle_at_once(msg: Msg) -> None: ...

    await nc.subscribe("s", callback=handle)
    await nc.subscribe("s", callback=handle_at_once)


async def streams(nc: Connection) -> None:
    js = nc.jetstream(domain="hub")
    assert_type(js, JetStream)
    assert_type(js.connection.is_connected, bool)
    config = StreamConfig(name="S", max_age=timedelta(days=1), retention="limits")
    assert_type(config.max_age, Duration | None)
    assert_type(config.replace(max_msgs=5), StreamConfig)
    assert_type(await js.create_stream(config), Stream)
    assert_type(await js.update_stream(config, pedantic=True), Stream)
    assert_type(await js.create_or_update_stream(config), Stream)
    assert_type(js.list_streams("s.>"), AsyncIterator[StreamInfo])
    assert_type(await js.stream_infos(["A"]), dict[str, StreamInfo])
    assert_type([name async for name in js.stream_names()], list[str])
    assert_type(await js.account_info(), AccountInfo)
    stream = await js.get_stream("S")
    info = await stream.info(subjects_filter=">")
    assert_type(info, StreamInfo)
    assert_type(info.state, StreamState)
    assert_type(info.created, Timestamp | None)
    assert_type(await stream.purge(seq=5), int)
    message = await stream.get_msg(5)
    assert_type(message, StoredMsg)
    assert_type(message.sequence, int)
    async for one in stream.get_msgs(["a", "b"], seq=1, max_messages=5):
        assert_type(one, StoredMsg)
    assert_type(await stream.counter("c"), CounterValue)


async def consumers(js: JetStream, stream: Stream, until: datetime) -> None:
    config = ConsumerConfig(durable_name="c", ack_wait=5, backoff=[1, timedelta(minutes=1)])
    consumer = await stream.create_consumer(config)
    assert_type(consumer, Consumer)
    assert_type(await js.create_or_update_consumer("S", config), Consumer)
    assert_type(consumer.config.ack_wait, Duration | None)
    assert_type(await consumer.info(), ConsumerInfo)
    assert_type(await consumer.pause(until), ConsumerPause)
    async for info in stream.list_consumers():
        assert_type(info, ConsumerInfo)
    ordered = OrderedConsumerConfig(filter_subjects=["a"], opt_start_seq=5)
    assert_type(await js.create_ordered_consumer("S", ordered), OrderedConsumer)
    assert_type(await js.create_ordered_consumer("S", opt_start_time=until), OrderedConsumer)
    async with await stream.create_ordered_consumer(ordered) as reader:
        assert_type(reader, OrderedConsumer)
        assert_type(reader.last_sequence, int)


async def reading(consumer: Consumer) -> None:
    assert_type(consumer.fetch(10), Fetch)
    batch = await consumer.fetch(10, expires=1)
    assert_type(batch, MessageBatch)
    assert_type(batch[0], Message)
    assert_type(batch.error, errors.JetsparkError | None)
    async for message in consumer.fetch_bytes(1_000):
        assert_type(message, Message)
    assert_type(await consumer.next(), Message | None)
    assert_type(consumer.consume(stop_after=3), Consume)
    async with consumer.consume() as messages:
        assert_type(messages, Consume)
        async for message in messages:
            assert_type(message, Message)
            assert_type(message.metadata, Metadata)
            assert_type(message.metadata.sequence.stream, int)
            await message.ack()
            await message.nak(delay=timedelta(seconds=5))
    assert_type(consumer.consume_batches(), ConsumeBatches)
    async with consumer.consume_batches(max_messages=100) as batches:
        async for several in batches:
            assert_type(several, list[Message])

    async def handle(message: Message) -> None: ...
    def handle_at_once(message: Message) -> None: ...
    def report(error: errors.JetsparkError) -> None: ...

    assert_type(consumer.consume_with(handle_at_once), ConsumeCallback)
    async with consumer.consume_with(handle, concurrency=5, on_error=report) as running:
        assert_type(running, ConsumeCallback)
        assert_type(await running.wait(), None)
    arrow = consumer.consume_arrow(columns=["data"], views=True)
    assert_type(arrow, ConsumeArrow)
    async with arrow as entered:
        assert_type(entered, ConsumeArrow)
        assert_type(entered.last_metadata, Metadata | None)


async def old_ways(js: JetStream) -> None:
    pull = await js.pull_subscribe("s", "durable")
    assert_type(pull, PullSubscription)
    assert_type(await pull.fetch(5), MessageBatch)
    async with await js.subscribe("s", durable="d", delete_on_close=True) as push:
        assert_type(push, PushSubscription)
        async for message in push:
            assert_type(message, Message)
        assert_type(await push.next(), Message)


async def publishing(js: JetStream) -> None:
    ack = await js.publish("s", b"x", msg_id="1", expect=Expect(last_seq=5), ttl=5)
    assert_type(ack, PubAck)
    assert_type(ack.seq, int)
    assert_type(await js.publish("s", schedule=Schedule(target="t", every=60)), PubAck)
    assert_type(await js.increment("c", 5), int)
    async with js.publisher(window=10) as publisher:
        assert_type(publisher, Publisher)
        assert_type(await publisher.publish("s", b"x"), asyncio.Future[PubAck])
        assert_type(publisher.publish_nowait("s", b"x"), asyncio.Future[PubAck])
        pairs = [("s", b"x")]
        assert_type(await publisher.publish_many(pairs), AckBatch)
        acks = await publisher.publish_many([Publishing("s", b"x", msg_id="1"), ("s", b"y")])
        assert_type(acks, AckBatch)
        assert_type(await acks, AckBatch)
        assert_type(acks.failures, dict[int, errors.JetsparkError])
        assert_type(publisher.stats, PublisherStats)
    async with js.atomic_batch() as batch:
        assert_type(batch, AtomicBatch)
    async with js.fast_ingest(gap="ok") as ingest:
        assert_type(ingest, FastIngest)


async def advisories(js: JetStream) -> None:
    async with js.advisories("S", kinds=[NakAdvisory]) as feed:
        assert_type(feed, Advisories)
        async for advisory in feed:
            assert_type(advisory, Advisory)
    async with js.dead_letters("S") as letters:
        assert_type(letters, DeadLetters)
        async for letter in letters:
            assert_type(letter, DeadLetter)
            assert_type(await letter.republish("t"), PubAck)


def failures(error: Exception) -> None:
    if isinstance(error, errors.StreamNotFound):
        assert_type(error.err_code, int)
    if isinstance(error, errors.NextMessageTooLarge):
        assert_type(error.description, str)
    if isinstance(error, errors.OrderedReset):
        assert_type(error.last_sequence, int)
    if isinstance(error, errors.HandlerFailed):
        assert_type(error.error, BaseException)
    if isinstance(error, errors.ConsumerConfigMismatch):
        assert_type(error.differences, dict[str, tuple[Any, Any]])
