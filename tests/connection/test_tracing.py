"""OpenTelemetry: spans of publish, fetch and handlers, and the context that joins them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import jetspark
from jetspark import ConsumerConfig, Publishing, StreamConfig, blocking
from jetspark.errors import InvalidArgument, NoRespondersError, NoStreamResponse
from jetspark.metrics import MemoryMetrics
from jetspark.tracing import Tracing, process
from support.helpers import eventually, eventually_sync, unique

if TYPE_CHECKING:
    from collections.abc import Sequence


class Spans:
    """A tracer provider and what was exported through it."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(tracer_provider=self.provider)
        self.tracer = self.provider.get_tracer("test")

    def of(self, operation: str) -> list[ReadableSpan]:
        """The finished spans of an operation, in the order of their ends."""
        return [
            span
            for span in self.exporter.get_finished_spans()
            if (span.attributes or {}).get("messaging.operation.name") == operation
        ]

    def one(self, operation: str) -> ReadableSpan:
        (span,) = self.of(operation)
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def header_of(span: ReadableSpan) -> str:
    context = span.context
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def span_ids(contexts: Sequence[Any]) -> list[int]:
    return [item.context.span_id for item in contexts]


async def orders(nc: Any, **config: Any) -> tuple[Any, str, Any]:
    """A stream, its subject, and a consumer."""
    name = unique("ORDERS")
    js = nc.jetstream()
    stream = await js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"]))
    consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker", **config))
    return js, f"{name}.new", consumer


# Publish


async def test_core_publish_has_a_span_and_its_context_is_in_the_headers(server, spans) -> None:
    subject = unique("traced")
    async with jetspark.connect(server.url, name="shop", tracing=spans.tracing) as nc:
        sub = await nc.subscribe(subject)
        await nc.publish(subject, b"four", headers={"Kept": "yes"})
        message = await sub.next()
    span = spans.one("publish")
    assert (span.name, span.kind) == (f"publish {subject}", SpanKind.PRODUCER)
    assert attributes(span) == {
        "messaging.system": "nats",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": subject,
        "messaging.message.body.size": 4,
        "messaging.client.id": "shop",
        "server.address": "127.0.0.1",
        "server.port": server.port,
    }
    assert message.headers.items() == [("Kept", "yes"), ("traceparent", header_of(span))]


async def test_data_may_be_given_by_name(server, spans) -> None:
    subject = unique("traced")
    async with jetspark.connect(server.url, tracing=spans.tracing) as nc:
        sub = await nc.subscribe(subject)
        await nc.publish(subject=subject, data=b"by name")
        assert (await sub.next()).data == b"by name"
    assert attributes(spans.one("publish"))["messaging.message.body.size"] == 7


async def test_jetstream_publish_ends_with_its_ack(server, spans) -> None:
    async with jetspark.connect(server.url, tracing=spans.tracing) as nc:
        js, subject, _ = await orders(nc)
        with spans.tracer.start_as_current_span("checkout") as around:
            ack = await js.publish(subject, b"1", msg_id="id-1")
        stream = await js.get_stream(ack.stream)
        stored = await stream.get_msg(ack.seq)
    span = spans.one("publish")
    assert span.parent is not None
    assert span.parent.span_id == around.get_span_context().span_id
    shown = attributes(span)
    assert shown["messaging.message.id"] == "id-1"
    assert (shown["nats.stream"], shown["nats.stream.sequence"]) == (ack.stream, ack.seq)
    assert stored.headers["traceparent"] == header_of(span)
    assert stored.headers["Nats-Msg-Id"] == "id-1"
    # Neither the requests of the API nor the one under publish have spans of their own.
    assert [span.name for span in spans.exporter.get_finished_spans()] == [f"publish {subject}", "checkout"]


async def test_a_publish_that_fails_says_so(server, spans) -> None:
    async with jetspark.connect(server.url, tracing=spans.tracing) as nc:
        with pytest.raises(NoStreamResponse):
            await nc.jetstream().publish(unique("nowhere"), b"", retries=0)
    span = spans.one("publish")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "NoStreamResponse"
    assert [event.name for event in span.events] == ["exception"]


async def test_pipelined_publishes_have_a_span_until_the_ack_of_each(server, spans) -> None:
    async with jetspark.connect(server.url, tracing=spans.tracing) as nc:
        js, subject, consumer = await orders(nc)
        async with js.publisher() as publisher:
            futures = [await publisher.publish(subject, b"%d" % number) for number in range(3)]
            acks = [await future for future in futures]
        messages = await consumer.fetch(3)
    published = spans.of("publish")
    assert [attributes(span)["nats.stream.sequence"] for span in published] == [ack.seq for ack in acks]
    assert [message.headers["traceparent"] for message in messages] == [header_of(s) for s in published]


async def test_a_pipelined_publish_without_an_ack_is_an_error(server, spans) -> None:
    async with jetspark.connect(server.url, tracing=spans.tracing) as nc:
        with pytest.raises(jetspark.errors.PublishFailed):
            async with nc.jetstream().publisher() as publisher:
                await publisher.publish(unique("nowhere"), b"")
    span = spans.one("publish")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "NoStreamResponse"


async def test_publish_many_is_one_span(server, spans) -> None:
    async with jetspark.connect(server.url, tracing=spans.tracing) as nc:
        js, subject, consumer = await orders(nc)
        async with js.publisher() as publisher:
            batch = await publisher.publish_many(
                [Publishing(subject, b"a", msg_id="a"), Publishing(subject, b"b")]
            )
            await batch
        messages = await consumer.fetch(2)
    span = spans.one("publish_many")
    assert attributes(span)["messaging.batch.message_count"] == 2
    assert {message.headers["traceparent"] for message in messages} == {header_of(span)}
    assert messages[0].headers["Nats-Msg-Id"] == "a"


async def test_batches_and_fast_ingest_carry_the_context_too(server, spans) -> None:
    async with jetspark.connect(server.url, tracing=spans.tracing) as nc:
        js, name = nc.jetstream(), unique("BATCH")
        config = StreamConfig(name=name, subjects=[f"{name}.>"], allow_atomic=True, allow_batched=True)
        stream = await js.create_stream(config)
        async with js.atomic_batch() as batch:
            await batch.publish(f"{name}.a", b"1")
        async with js.fast_ingest() as ingest:
            await ingest.publish(f"{name}.b", b"2")
        stored = [await stream.get_msg(number) for number in (1, 2)]
    published = spans.of("publish")
    assert [message.headers["traceparent"] for message in stored] == [header_of(s) for s in published]


async def test_request_and_its_answer_are_one_trace(server, spans) -> None:
    subject = unique("ask")

    async def answer(message: jetspark.Msg) -> None:
        await message.respond(b"pong")

    async with jetspark.connect(server.url, tracing=spans.tracing) as nc:
        await nc.subscribe(subject, callback=answer)
        reply = await nc.request(subject, b"ping")
        with pytest.raises(NoRespondersError):
            await nc.request(unique("nobody"))
    asked, refused = spans.of("request")
    handled, responded = spans.one("process"), spans.one("publish")
    assert asked.kind is SpanKind.PRODUCER
    assert handled.parent is not None
    assert handled.parent.span_id == asked.context.span_id
    assert responded.parent is not None
    assert responded.parent.span_id == handled.context.span_id
    # Inboxes are not put into names: there is one for each request.
    assert responded.name == "publish (temporary)"
    assert attributes(responded)["messaging.destination.temporary"] is True
    assert reply.headers["traceparent"] == header_of(responded)
    assert attributes(refused)["error.type"] == "NoRespondersError"


@pytest.mark.parametrize("wrong", [None, 7, b"bytes", "with blank", ""])
async def test_what_is_wrong_is_refused_as_without_tracing(server, spans, wrong: Any) -> None:
    async with jetspark.connect(server.url, tracing=spans.tracing) as nc:
        for call in (nc.publish, nc.request, nc.jetstream().publish):
            with pytest.raises(InvalidArgument, match="subject="):
                await call(wrong)
        with pytest.raises(InvalidArgument, match="callback="):
            await nc.subscribe("a", callback="no function")
    assert {attributes(span)["error.type"] for span in spans.exporter.get_finished_spans()} == {
        "InvalidArgument"
    }


# Fetch and process


async def test_a_fetch_is_linked_to_the_publishers_of_its_messages(server, spans) -> None:
    async with jetspark.connect(server.url, tracing=spans.tracing) as nc:
        js, subject, consumer = await orders(nc)
        for number in range(2):
            await js.publish(subject, b"%d" % number)
        async with jetspark.connect(server.url) as plain:
            await plain.jetstream().publish(subject, b"without a context")
        batch = await consumer.fetch(3)
        assert len(batch) == 3
        assert await consumer.fetch_no_wait(1) == []
    full, empty = spans.of("fetch")
    assert (full.name, full.kind) == (f"fetch {consumer.stream_name}", SpanKind.CLIENT)
    assert full.parent is None
    assert attributes(full)["messaging.operation.type"] == "receive"
    assert attributes(full)["messaging.destination.subscription.name"] == "worker"
    assert attributes(full)["messaging.batch.message_count"] == 3
    assert span_ids(full.links) == span_ids(spans.of("publish"))
    assert attributes(empty)["messaging.batch.message_count"] == 0


async def test_next_and_pull_subscriptions_fetch_as_well(server, spans) -> None:
    async with jetspark.connect(server.url, tracing=spans.tracing) as nc:
        js, subject, consumer = await orders(nc)
        await js.publish(subject, b"1")
        message = await consumer.next()
        assert message is not None
        subscription = await js.pull_subscribe(subject)
        assert len(await subscription.fetch(1)) == 1
    assert [span_ids(span.links) for span in spans.of("fetch")] == [span_ids(spans.of("publish"))] * 2


async def test_a_handler_continues_the_trace_of_the_publisher(server, spans) -> None:
    done = asyncio.Event()
    seen: list[int] = []

    async def handle(message: Any) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)
        await message.ack()
        done.set()

    async with jetspark.connect(server.url, tracing=spans.tracing) as nc:
        js, subject, consumer = await orders(nc)
        ack = await js.publish(subject, b"order")
        async with consumer.consume_with(handle):
            await asyncio.wait_for(done.wait(), 20)
        await eventually(lambda: spans.of("process"))
    publish, handled = spans.one("publish"), spans.one("process")
    assert (handled.name, handled.kind) == (f"process {subject}", SpanKind.CONSUMER)
    assert handled.context.trace_id == publish.context.trace_id
    assert handled.parent is not None
    assert handled.parent.span_id == publish.context.span_id
    assert seen == [handled.context.span_id]
    shown = attributes(handled)
    assert shown["messaging.destination.name"] == subject
    assert shown["messaging.destination.subscription.name"] == "worker"
    assert (shown["nats.stream"], shown["nats.stream.sequence"]) == (ack.stream, ack.seq)
    assert shown["nats.delivery_count"] == 1


async def test_a_handler_that_raises_is_an_error_and_consuming_goes_on(server, spans) -> None:
    failures: list[Any] = []

    def handle(message: Any) -> None:
        raise LookupError("no such article")

    async with jetspark.connect(server.url, tracing=spans.tracing) as nc:
        js, subject, consumer = await orders(nc)
        await js.publish(subject, b"1")
        await js.publish(subject, b"2")
        async with consumer.consume_with(handle, on_error=failures.append):
            await eventually(lambda: len(failures) == 2)
    assert [type(failure.error) for failure in failures] == [LookupError, LookupError]
    assert [attributes(span)["error.type"] for span in spans.of("process")] == ["LookupError"] * 2
    assert {span.status.status_code for span in spans.of("process")} == {StatusCode.ERROR}


async def test_push_subscriptions_and_plain_callbacks(server, spans) -> None:
    got: list[bytes] = []
    async with jetspark.connect(server.url, tracing=spans.tracing) as nc:
        js, subject, _ = await orders(nc)
        await js.publish(subject, b"pushed")
        sub = await js.subscribe(subject, callback=lambda message: got.append(message.data))
        await eventually(lambda: spans.of("process"))
        await sub.unsubscribe()
    assert got == [b"pushed"]
    assert spans.one("process").parent.span_id == spans.one("publish").context.span_id


async def test_a_loop_has_spans_by_process(server, spans) -> None:
    async with jetspark.connect(server.url, tracing=spans.tracing) as nc:
        js, subject, consumer = await orders(nc)
        await js.publish(subject, b"1")
        with spans.tracer.start_as_current_span("loop") as loop:
            async with consumer.consume(stop_after=1) as messages:
                async for message in messages:
                    with process(message) as span:
                        span.set_attribute("article", 7)
                        await message.ack()
    handled = spans.one("process")
    assert attributes(handled)["article"] == 7
    assert handled.parent is not None
    assert handled.parent.span_id == spans.one("publish").context.span_id
    assert span_ids(handled.links) == [loop.get_span_context().span_id]


async def test_a_message_without_a_context_belongs_to_the_current_span(server, spans) -> None:
    subject = unique("plain")
    async with (
        jetspark.connect(server.url) as plain,
        jetspark.connect(server.url, tracing=spans.tracing) as nc,
    ):
        sub = await nc.subscribe(subject)
        await nc.flush()
        await plain.publish(subject, b"", headers={"traceparent": "00-no-such-1"})
        message = await sub.next()
        with spans.tracer.start_as_current_span("loop") as loop, process(message):
            pass
    handled = spans.one("process")
    assert handled.parent is not None
    assert handled.parent.span_id == loop.get_span_context().span_id
    assert list(handled.links) == []


async def test_a_callback_has_nothing_to_do_with_the_span_it_was_registered_in(server, spans) -> None:
    subject = unique("startup")
    async with (
        jetspark.connect(server.url) as plain,
        jetspark.connect(server.url, tracing=spans.tracing) as nc,
    ):
        with spans.tracer.start_as_current_span("startup"):
            await nc.subscribe(subject, callback=lambda message: None)
            await nc.flush()
        await plain.publish(subject)
        await eventually(lambda: spans.of("process"))
        await nc.publish(subject)
        await eventually(lambda: len(spans.of("process")) == 2)
    alone, joined = spans.of("process")
    assert alone.parent is None
    assert joined.parent.span_id == spans.one("publish").context.span_id
    assert [*alone.links, *joined.links] == []


async def test_what_can_not_be_read_keeps_no_message_back(server, spans) -> None:
    subject, got = unique("hostile"), []
    async with jetspark.connect(server.url, tracing=spans.tracing) as nc:
        await nc.subscribe(f"{subject}.>", callback=lambda message: got.append(message.subject))
        nc._core.outbox.send((f"PUB {subject}.".encode(), b"\xff 0\r\n\r\n"), 100)
        nc._core.outbox.send((f"HPUB {subject}.a 20 20\r\n".encode(), b"NATS/1.0\r\nbroken\r\n\r\n\r\n"), 100)
        await eventually(lambda: len(spans.of("process")) == 2)
        # The server lets nobody publish with such a reply; who knows about others.
        with process(jetspark.Msg(f"{subject}.b", "$JS.ACK.no.such", b"", None, nc)):
            got.append("processed")
    assert got == [f"{subject}.\udcff", f"{subject}.a", "processed"]
    assert [span.name.rpartition(".")[2] for span in spans.of("process")] == ["?", "a", "b"]
    assert all("nats.stream" not in attributes(span) for span in spans.of("process"))


async def test_a_core_subscription_to_what_a_push_consumer_delivers(server, spans) -> None:
    async with jetspark.connect(server.url, tracing=spans.tracing) as nc:
        js, subject, consumer = await orders(nc)
        sub = await nc.subscribe(deliver := unique("deliver"))
        config = ConsumerConfig(deliver_subject=deliver, durable_name="pushed")
        await js.create_consumer(consumer.stream_name, config)
        await js.publish(subject, b"1")
        with process(await sub.next()):
            pass
    assert attributes(spans.one("process"))["messaging.destination.subscription.name"] == "pushed"


async def test_tracestate_travels_along(server, spans) -> None:
    subject = unique("state")
    remote = trace.SpanContext(
        1 << 100, 1 << 50, True, trace.TraceFlags(1), trace.TraceState([("vendor", "a:b")])
    )
    around = trace.set_span_in_context(trace.NonRecordingSpan(remote))
    async with jetspark.connect(server.url, tracing=spans.tracing) as nc:
        sub = await nc.subscribe(subject)
        with spans.tracer.start_as_current_span("edge", around):
            await nc.publish(subject)
        message = await sub.next()
        with process(message):
            pass
    assert message.headers["tracestate"] == "vendor=a:b"
    context = spans.one("process").context
    assert (context.trace_id, context.trace_state["vendor"]) == (remote.trace_id, "a:b")


async def test_destination_makes_names_of_subjects_with_ids(server, spans) -> None:
    tracing = Tracing(tracer_provider=spans.provider, destination=lambda subject: "orders.*")
    subject = f"{unique('orders')}.4711"
    async with jetspark.connect(server.url, tracing=tracing) as nc:
        await nc.publish(subject)
    span = spans.one("publish")
    assert span.name == "publish orders.*"
    assert attributes(span)["messaging.destination.template"] == "orders.*"
    assert attributes(span)["messaging.destination.name"] == subject


# Blocking


def test_blocking_publish_fetch_and_handler(server, spans) -> None:
    with blocking.connect(server.url, tracing=spans.tracing) as nc:
        js, name = nc.jetstream(), unique("ORDERS")
        stream = js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"]))
        consumer = stream.create_consumer(ConsumerConfig(durable_name="worker"))
        with spans.tracer.start_as_current_span("checkout") as around:
            js.publish(f"{name}.a", b"1")
            nc.publish(f"{name}.b", b"2")
            with js.publisher() as publisher:
                publisher.publish(f"{name}.c", b"3").result(5)
        batch = consumer.fetch(3)
        assert [message.data for message in batch] == [b"1", b"2", b"3"]
        with process(batch[0]):
            batch[0].nak()
        seen: list[bytes] = []
        with consumer.consume_with(lambda message: seen.append(message.data)):
            eventually_sync(lambda: len(spans.of("process")) == 2)
    assert seen == [b"1"]
    published = {attributes(span)["messaging.destination.name"][-1]: span for span in spans.of("publish")}
    assert sorted(published) == ["a", "b", "c"]
    assert {span.parent.span_id for span in published.values()} == {around.get_span_context().span_id}
    assert sorted(span_ids(spans.one("fetch").links)) == sorted(span_ids(list(published.values())))
    first, again = spans.of("process")
    assert {first.parent.span_id, again.parent.span_id} == {published["a"].context.span_id}
    assert attributes(again)["nats.delivery_count"] == 2


def test_blocking_core_subscription_request_and_batches(server, spans) -> None:
    subject = unique("ask")
    with blocking.connect(server.url, tracing=spans.tracing) as nc:
        nc.subscribe(subject, callback=lambda message: message.respond(b"pong"))
        assert nc.request(subject, b"ping").data == b"pong"
        # The answer is here before the thread that gave it has ended its spans.
        eventually_sync(lambda: spans.of("process"))
        js, name = nc.jetstream(), unique("BATCH")
        stream = js.create_stream(
            StreamConfig(name=name, subjects=[f"{name}.>"], allow_atomic=True, allow_batched=True)
        )
        with js.atomic_batch() as batch:
            batch.publish(f"{name}.a")
        with js.fast_ingest() as ingest:
            ingest.publish(f"{name}.b")
        with js.publisher() as publisher:
            publisher.publish_many([Publishing(f"{name}.c")])
        stored = [stream.get_msg(number) for number in (1, 2, 3)]
    asked, handled = spans.one("request"), spans.one("process")
    assert handled.parent.span_id == asked.context.span_id
    responded, *batched = spans.of("publish")
    assert responded.parent.span_id == handled.context.span_id
    carried = [message.headers["traceparent"] for message in stored]
    assert carried == [header_of(span) for span in (*batched, spans.one("publish_many"))]


# Beside other things


async def test_tracing_and_metrics_together(server, spans) -> None:
    metrics = MemoryMetrics()
    async with jetspark.connect(server.url, tracing=spans.tracing, metrics=metrics) as nc:
        js, subject, consumer = await orders(nc)
        await js.publish(subject, b"1")
        async with js.publisher() as publisher:
            await publisher.publish(subject, b"2")
        for message in await consumer.fetch(2):
            with process(message):
                await message.ack()
    assert metrics.value("jetspark_publish_acked_total") == len(spans.of("publish")) == 2
    assert metrics.value("jetspark_acked_total") == len(spans.of("process")) == 2


async def test_no_secret_in_spans_metrics_or_headers(start_server, spans) -> None:
    canary = "canary4secret"
    server = start_server(config=f"authorization {{ user: u, password: {canary} }}")
    metrics, subject = MemoryMetrics(), unique("secret")
    url = server.url.replace("nats://", f"nats://u:{canary}@")
    async with jetspark.connect(url, tracing=spans.tracing, metrics=metrics) as nc:
        sub = await nc.subscribe(subject)
        await nc.publish(subject, canary.encode(), headers={"Authorization": canary})
        message = await sub.next()
        with process(message):
            pass
        with pytest.raises(NoRespondersError):
            await nc.request(unique("nobody"), canary.encode())
    shown = [span.to_json() for span in spans.exporter.get_finished_spans()]
    assert len(shown) == 3
    assert canary not in "".join(shown) + metrics.render() + message.headers["traceparent"]


# Off


async def test_without_tracing_nothing_is_wrapped_and_no_header_is_sent(server, spans) -> None:
    subject = unique("plain")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        with spans.tracer.start_as_current_span("around"):
            await nc.publish(subject)
        message = await sub.next()
        assert nc._core.observer is None
        for thing in (nc, nc.jetstream(), nc._core, nc._core.outbox, nc._core.router):
            assert not vars(thing).keys() & vars(type(thing)).keys()
    assert not message.headers
    assert [span.name for span in spans.exporter.get_finished_spans()] == ["around"]


async def test_without_a_provider_no_header_is_sent(server) -> None:
    subject = unique("plain")
    async with jetspark.connect(server.url, tracing=True) as nc:
        sub = await nc.subscribe(subject)
        await nc.publish(subject)
        assert not (await sub.next()).headers


@pytest.mark.parametrize("wrong", ["yes", None, 1, object()])
def test_tracing_must_be_a_tracing(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="tracing="):
        jetspark.connect(tracing=wrong)


def test_without_opentelemetry_the_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import jetspark\n"
        "jetspark.connect()\n"
        "try: jetspark.connect(tracing=True)\n"
        "except jetspark.errors.InvalidArgument as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "pip install 'jetspark[otel]'" in done.stdout, done.stderr


async def test_no_header_reaches_a_span_when_it_is_refused(server, spans) -> None:
    async with jetspark.connect(server.url, tracing=spans.tracing) as nc:
        with pytest.raises(InvalidArgument):
            await nc.publish(unique("traced"), headers={"Authorization": "Bearer SECRET\n"})
    span = spans.one("publish")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "InvalidArgument"
    assert "SECRET" not in span.to_json()


@pytest.mark.parametrize(
    "messages",
    [5, [5], [["a", b"x"]], [("a", b"x", {"b": "c"})], [(["a"], b"x")], [("a",) * 7]],
    ids=str,
)
async def test_publish_many_refuses_the_same_as_without_tracing(server, spans, messages) -> None:
    for tracing in (False, spans.tracing):
        async with jetspark.connect(server.url, tracing=tracing) as nc:
            with pytest.raises(InvalidArgument):
                async with nc.jetstream().publisher() as publisher:
                    await publisher.publish_many(messages)
            for headers in (5, b"bytes"):
                with pytest.raises(InvalidArgument):
                    await nc.request("a", headers=headers)
