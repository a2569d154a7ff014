"""The metrics hook: what is counted, and how Prometheus reads it."""

from __future__ import annotations

import gc
import re
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import AckPolicy, ConsumerConfig, Message, Publishing, StreamConfig, blocking
from jetspark.connection.client import core_of
from jetspark.errors import InvalidArgument, NoStreamResponse
from jetspark.jetstream.consume.pull import PullSink
from jetspark.metrics import METRICS, MemoryMetrics
from jetspark.wire.parser import Messages
from support.deliveries import settled
from support.helpers import eventually, eventually_sync, unique

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.fixture
def metrics() -> MemoryMetrics:
    return MemoryMetrics()


def read(metrics: MemoryMetrics, name: str, **labels: str) -> float:
    assert f"jetspark_{name}" in METRICS
    return metrics.value(f"jetspark_{name}", **labels)


async def orders(nc: Any, **config: Any) -> tuple[Any, str, Any]:
    """A stream, its subject, and a consumer."""
    name = unique("ORDERS")
    js = nc.jetstream()
    stream = await js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"]))
    consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker", **config))
    return js, f"{name}.new", consumer


# Connection


async def test_core_messages_requests_and_bytes(server, metrics) -> None:
    subject, count = unique("core"), 50
    async with jetspark.connect(server.url, metrics=metrics) as nc:
        sub = await nc.subscribe(subject)
        for _ in range(count):
            await nc.publish(subject, b"x" * 100)
        for _ in range(count):
            await sub.next()
        await nc.subscribe(subject + ".ask", callback=lambda message: message.respond(b"pong"))
        await nc.request(subject + ".ask")
        stats = nc.stats
    assert read(metrics, "published_total", api="core") == count + 1  # and the answer
    assert read(metrics, "delivered_total", api="core") == count + 1  # and the question
    assert read(metrics, "requests_total") == 1
    assert read(metrics, "sent_messages_total") == stats.out_msgs == count + 2
    assert read(metrics, "received_messages_total") == stats.in_msgs == count + 2
    assert read(metrics, "sent_bytes_total") >= stats.out_bytes > count * 100
    assert read(metrics, "received_bytes_total") >= stats.in_bytes > count * 100
    assert read(metrics, "errors_total") == 0


async def test_figures_come_once_a_second_not_only_at_the_end(server, metrics) -> None:
    subject = unique("core")
    async with jetspark.connect(server.url, metrics=metrics) as nc:
        await nc.subscribe(subject)
        await nc.publish(subject)
        await nc.flush()
        await eventually(lambda: read(metrics, "delivered_total") == 1)
        assert read(metrics, "connected") == 1
        assert read(metrics, "buffered_messages") == 1
    assert read(metrics, "connected") == 0
    assert read(metrics, "delivered_total") == 1


async def test_reconnects_and_what_broke(own_server, metrics) -> None:
    async with jetspark.connect(own_server.url, metrics=metrics) as nc:
        own_server.kill()
        await eventually(lambda: nc.is_reconnecting)
        await eventually(lambda: read(metrics, "connected") == 0)
        await eventually(lambda: read(metrics, "errors_total", type="ReconnectFailed"))
        own_server.restart()
        await eventually(lambda: nc.is_connected, 10)
    assert read(metrics, "reconnects_total") == 1
    assert read(metrics, "reconnect_seconds") == 1  # observations
    assert read(metrics, "errors_total", type="Disconnected") == 1
    assert read(metrics, "errors_total", type="ReconnectFailed") >= 1


async def test_drops_of_a_slow_consumer(server, metrics) -> None:
    subject = unique("slow")
    async with jetspark.connect(server.url, metrics=metrics) as nc:
        await nc.subscribe(subject, pending_messages_limit=2)
        for _ in range(5):
            await nc.publish(subject)
        await nc.flush()
    assert read(metrics, "dropped_total", direction="in") == 3
    assert read(metrics, "delivered_total", api="core") == 2
    assert read(metrics, "errors_total", type="SlowConsumer") == 1


async def test_failures_of_callbacks(server, metrics) -> None:
    def fail(message: Any) -> None:
        raise LookupError("no such article")

    async with jetspark.connect(server.url, metrics=metrics) as nc:
        subject = unique("core")
        await nc.subscribe(subject, callback=fail)
        await nc.publish(subject)
        await eventually(lambda: read(metrics, "errors_total", type="CallbackFailed") == 1)
        js, subject, consumer = await orders(nc)
        await js.publish(subject)
        async with consumer.consume_with(fail):
            await eventually(lambda: read(metrics, "errors_total", type="HandlerFailed") == 1)


# JetStream


async def test_publishes_and_their_acks(server, metrics) -> None:
    async with jetspark.connect(server.url, metrics=metrics) as nc:
        js, subject, _ = await orders(nc)
        await js.publish(subject, b"1", msg_id="a")
        await js.publish(subject, b"1", msg_id="a")
        with pytest.raises(NoStreamResponse):
            await js.publish(unique("nowhere"), retries=0)
        async with js.publisher() as publisher:
            for number in range(10):
                await publisher.publish(subject, b"%d" % number)
            await publisher.publish_many([Publishing(subject, b"a"), Publishing(subject, b"b", msg_id="a")])
    assert read(metrics, "published_total", api="jetstream") == 15
    assert read(metrics, "published_total", api="core") == 0
    assert read(metrics, "publish_acked_total") == 14
    assert read(metrics, "publish_duplicates_total") == 2
    assert read(metrics, "publish_failed_total") == 1
    assert read(metrics, "publish_seconds") == 2  # observations
    assert read(metrics, "errors_total", type="NoStreamResponse") == 1


async def test_batches_and_fast_ingest(server, metrics) -> None:
    async with jetspark.connect(server.url, metrics=metrics) as nc:
        js, name = nc.jetstream(), unique("BATCH")
        config = StreamConfig(name=name, subjects=[f"{name}.>"], allow_atomic=True, allow_batched=True)
        await js.create_stream(config)
        async with js.atomic_batch() as batch:
            for _ in range(3):
                await batch.publish(f"{name}.a")
        async with js.fast_ingest() as ingest:
            for _ in range(4):
                await ingest.publish(f"{name}.b")
    assert read(metrics, "published_total", api="jetstream") == 7
    assert read(metrics, "publish_acked_total") == 7


async def test_publishes_that_die_with_the_connection(server, metrics) -> None:
    async with jetspark.connect(server.url, metrics=metrics) as nc:
        publisher = nc.jetstream().publisher()
        await publisher.__aenter__()
        await nc.subscribe(subject := unique("silent"))
        future = await publisher.publish(subject)
        await eventually(lambda: read(metrics, "unacked_publishes") == 1)
    assert future.exception() is not None
    assert read(metrics, "publish_failed_total") == 1


async def test_deliveries_redeliveries_acks_and_pulls(server, metrics) -> None:
    async with jetspark.connect(server.url, metrics=metrics) as nc:
        js, subject, consumer = await orders(nc)
        for number in range(6):
            await js.publish(subject, b"%d" % number)
        first, *rest = await consumer.fetch(6)
        await first.nak()
        (again,) = await consumer.fetch(1)
        await again.in_progress()
        await again.ack_sync()
        await rest[0].ack()
        await rest[0].ack()  # the second does nothing
        await rest[1].term("broken")
        await rest[2].ack_next(1, no_wait=True)
        assert (again.data, type(again).__name__, again.is_acked) == (b"0", "Message", True)
        await eventually(lambda: settled(consumer, 2))
    assert read(metrics, "delivered_total", api="jetstream") == 7
    assert read(metrics, "redelivered_total") == 1
    acks = {
        kind: read(metrics, "acked_total", kind=kind) for kind in ("ack", "nak", "term", "progress", "next")
    }
    assert acks == {"ack": 2, "nak": 1, "term": 1, "progress": 1, "next": 1}
    assert read(metrics, "pulls_total") == 3


async def test_consume_push_and_ordered(server, metrics) -> None:
    async with jetspark.connect(server.url, metrics=metrics) as nc:
        js, subject, consumer = await orders(nc)
        for _ in range(100):
            await js.publish(subject)
        async with consumer.consume(stop_after=100) as messages:
            async for message in messages:
                await message.ack()
        ordered = await js.create_ordered_consumer(consumer.stream_name)
        async with ordered, ordered.consume(stop_after=100) as messages:
            assert len([message async for message in messages]) == 100
        done: list[Any] = []
        sub = await js.subscribe(subject, callback=done.append)
        await eventually(lambda: len(done) == 100)
        await sub.drain()
    assert read(metrics, "delivered_total", api="jetstream") == 300
    assert read(metrics, "redelivered_total") == 0
    assert read(metrics, "acked_total", kind="ack") == 200
    assert read(metrics, "pulls_total") >= 2


async def test_replies_that_can_not_be_read_disturb_nothing(server, metrics) -> None:
    async with jetspark.connect(server.url, metrics=metrics) as nc:
        _, _, consumer = await orders(nc)
        async with consumer.consume(stop_after=4) as messages:
            sink = messages._sink
            # The server lets nobody publish with such replies; who knows about others.
            replies = ("$JS.ACK.no.such", "$JS.ACK.S.c.1.2.3.4.5", "$JS.ACK._.h.S.c.2.2.3.4.5", "other")
            items = [Message(consumer.name, reply, b"data", None, sink.owner) for reply in replies]
            core_of(nc)._on_events([Messages(sink.sid, items, 100)])
            assert [message.reply async for message in messages] == list(replies)
    assert read(metrics, "redelivered_total") == 1
    assert read(metrics, "delivered_total", api="jetstream") == 4


def test_blocking(server, metrics) -> None:
    with blocking.connect(server.url, metrics=metrics) as nc:
        js, name = nc.jetstream(), unique("ORDERS")
        stream = js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"]))
        consumer = stream.create_consumer(ConsumerConfig(durable_name="worker"))
        with js.publisher() as publisher:
            for number in range(100):
                publisher.publish(f"{name}.a", b"%d" % number)
        js.publish(f"{name}.b")
        nc.publish(f"{name}.c")
        nc.flush()
        for message in consumer.fetch(2):
            message.nak()
        seen: list[Any] = []

        def handle(message: Any) -> None:
            message.ack()
            seen.append(message)

        with consumer.consume_with(handle, concurrency=2):
            eventually_sync(lambda: len(seen) == 102)
        nc.flush()
    assert read(metrics, "published_total", api="jetstream") == 101
    assert read(metrics, "published_total", api="core") == 1
    assert read(metrics, "publish_acked_total") == 101
    assert read(metrics, "delivered_total", api="jetstream") == 104
    assert read(metrics, "redelivered_total") == 2
    assert read(metrics, "acked_total", kind="ack") == 102
    assert read(metrics, "acked_total", kind="nak") == 2
    assert type(seen[0]) is blocking.Message


@pytest.mark.slow
async def test_fetches_leave_nothing_behind(server, metrics) -> None:
    def sinks() -> int:
        gc.collect()
        return sum(isinstance(thing, PullSink) for thing in gc.get_objects())

    async with jetspark.connect(server.url, metrics=metrics, tracing=True) as nc:
        _, _, consumer = await orders(nc)
        before = sinks()
        for _ in range(50):
            await consumer.fetch_no_wait(1)
        await eventually(lambda: sinks() == before)
    assert read(metrics, "pulls_total") == 50


# The hook


class Hook:
    """The least that a hook can be."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, float, Mapping[str, str]]] = []

    def count(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self.calls.append(("counter", name, value, labels))

    def gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self.calls.append(("gauge", name, value, labels))

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self.calls.append(("histogram", name, value, labels))


async def test_a_hook_of_ones_own(server) -> None:
    hook = Hook()
    async with jetspark.connect(server.url, name="shop", metrics=hook) as nc:
        js, subject, _ = await orders(nc)
        await js.publish(subject)
    assert all(METRICS[name][0] == kind for kind, name, _, _ in hook.calls)
    assert all(labels["connection"] == "shop" for _, _, _, labels in hook.calls)
    assert all(value > 0 for kind, _, value, _ in hook.calls if kind == "counter")


async def test_a_hook_that_raises_is_logged_and_disturbs_nothing(server, caplog) -> None:
    class Broken(Hook):
        def count(self, name: str, value: float, labels: Mapping[str, str]) -> None:
            raise OSError("no disk")

    subject = unique("core")
    async with jetspark.connect(server.url, metrics=Broken()) as nc:
        sub = await nc.subscribe(subject)
        await nc.publish(subject, b"still")
        assert (await sub.next()).data == b"still"
    # Once: it raises for each of the metrics, every second.
    (failure,) = [record for record in caplog.records if record.name == "jetspark.metrics"]
    assert failure.nats_metric.startswith("jetspark_")


@pytest.mark.parametrize("wrong", [True, "prometheus", object(), MemoryMetrics])
def test_what_is_no_hook_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="metrics="):
        jetspark.connect(metrics=wrong)


async def test_without_a_hook_nothing_is_wrapped(server) -> None:
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(unique("plain"))
        js, subject, consumer = await orders(nc)
        await js.publish(subject)
        (message,) = await consumer.fetch(1)
        assert nc._core.observer is nc._core.outbox.observer is nc._core.router.observer is None
        assert type(message) is Message
        for thing in (nc, sub, js, consumer, nc._core, nc._core.outbox, nc._core.router):
            assert not vars(thing).keys() & vars(type(thing)).keys()


# The text format


def test_the_text_format_of_prometheus() -> None:
    metrics = MemoryMetrics()
    metrics.count("jetspark_published_total", 2, {"connection": 'a"b\\c\nd', "api": "core"})
    metrics.count("jetspark_published_total", 3, {"api": "jetstream"})
    metrics.gauge("jetspark_connected", 1, {})
    metrics.observe("jetspark_publish_seconds", 0.001, {})
    metrics.observe("jetspark_publish_seconds", 0.3, {})
    metrics.observe("jetspark_publish_seconds", 60.0, {})
    lines = metrics.render().splitlines()
    assert lines[:3] == [
        "# HELP jetspark_connected 1 while connected, else 0.",
        "# TYPE jetspark_connected gauge",
        "jetspark_connected 1",
    ]
    assert 'jetspark_published_total{api="core",connection="a\\"b\\\\c\\nd"} 2' in lines
    assert 'jetspark_published_total{api="jetstream"} 3' in lines
    assert "# TYPE jetspark_publish_seconds histogram" in lines
    assert 'jetspark_publish_seconds_bucket{le="0.0005"} 0' in lines
    assert 'jetspark_publish_seconds_bucket{le="0.001"} 1' in lines
    assert 'jetspark_publish_seconds_bucket{le="0.5"} 2' in lines
    assert 'jetspark_publish_seconds_bucket{le="+Inf"} 3' in lines
    assert "jetspark_publish_seconds_sum 60.301" in lines
    assert "jetspark_publish_seconds_count 3" in lines


async def test_what_a_connection_tells_is_valid_text(server, metrics) -> None:
    async with jetspark.connect(server.url, metrics=metrics) as nc:
        js, subject, consumer = await orders(nc)
        await js.publish(subject)
        for message in await consumer.fetch(1):
            await message.ack()
    sample = re.compile(r'jetspark_[a-z_]+(\{([a-z]+="[^"]*",?)+\})? [0-9.e+-]+')
    lines = metrics.render().splitlines()
    assert all(line.startswith("# ") or sample.fullmatch(line) for line in lines)
    typed = [line.split()[2] for line in lines if line.startswith("# TYPE ")]
    assert len(typed) == len(set(typed)) > 8


def test_names_follow_the_conventions() -> None:
    for name, (kind, meaning) in METRICS.items():
        assert name.endswith("_total") == (kind == "counter")
        assert name.endswith("_seconds") == (kind == "histogram")
        assert meaning.endswith(".")


async def test_columns_that_wait_are_buffered_messages(server, metrics) -> None:
    async with jetspark.connect(server.url, metrics=metrics) as nc:
        _, _, consumer = await orders(nc, ack_policy=AckPolicy.NONE)
        async with nc.jetstream().publisher() as publisher:
            await publisher.publish_many([(f"{consumer.stream_name}.a", b"x")] * 50)
        async with consumer.consume_arrow():
            await eventually(lambda: read(metrics, "buffered_messages") >= 50)
