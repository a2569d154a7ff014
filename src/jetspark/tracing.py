"""OpenTelemetry spans, for ``connect(tracing=True)`` (extra ``otel``).

Nothing here runs on a connection without it: the methods of a traced connection, and of what it makes, are
wrapped when they are made, so those of others stay as they are.

The spans follow the messaging conventions of OpenTelemetry:

- *publish* (and *request*), PRODUCER: from the call to the end of it, which is the ack of the stream where
  the call, or the future it returns, has one. The context of this span travels in the message's headers
  ``traceparent`` and ``tracestate``, as the W3C writes them for HTTP; the server's own message tracing
  (ADR-41) reads the same.
- *fetch*, CLIENT: one request for messages, with a **link** to the publish span of each message that it
  brought. They have many parents, and a span can have one.
- *process*, CONSUMER: a callback of ``subscribe`` or ``consume``, or the block under :func:`process`. Its
  **parent** is the publish span: there is just one, and so a message's way is a single trace from the
  publisher through every service that handles it. A span that is current around it, of the fetch loop say,
  becomes a link. A message without a context is a child of the current span.

Loops (``async for message in ...``) have no callback to wrap; say ``with process(message):`` in them.
Bodies, headers and credentials are never recorded.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from jetspark.errors import InvalidArgument, JetsparkError
from jetspark.wire.headers import Headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

    from jetspark.connection.core import HeadersLike
    from jetspark.jetstream.message import MessageBase

_W3C = TraceContextTextMapPropagator()
_TEMPORARY = "(temporary)"


class _HeadersGetter(Getter[Headers]):
    def get(self, carrier: Headers, key: str) -> list[str] | None:
        return carrier.get_all(key) or None

    def keys(self, carrier: Headers) -> list[str]:
        return carrier.keys()


_GETTER = _HeadersGetter()


def inject(headers: HeadersLike | None = None) -> HeadersLike | None:
    """The headers with the context of the current span; unchanged when there is none to tell of."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier)
    if not carrier:
        return headers
    result = Headers(headers)
    for name, value in carrier.items():
        result[name] = value
    return result


def extract(message: Any, context: Context | None = None) -> Context:
    """The context that a message carries; ``context`` when it carries none that can be read."""
    try:
        headers = message.headers
    except JetsparkError:
        headers = Headers()  # a malformed header block is no reason to lose the message
    return _W3C.extract(headers, context, _GETTER)


@contextmanager
def process(message: Any) -> Iterator[Span]:
    """The span of a message's processing, for loops: ``with process(message): ...``

    Of the connection's ``tracing``; without one it belongs to the global tracer provider.
    """
    owner: Any = message._owner
    client = getattr(owner, "client", None) or getattr(owner, "_client", owner)
    tracing: Tracing = getattr(client, "_tracing", None) or Tracing()
    with tracing.process(message) as span:
        yield span


class Tracing:
    """How to trace, for ``connect(tracing=Tracing(...))``; ``tracing=True`` is one with the defaults.

    ``tracer_provider``: whose tracer to use (default: the global one). ``destination``: makes a template of
    a subject, as in ``lambda subject: subject.partition(".")[0] + ".*"``, for subjects that contain ids: it
    goes into the names of spans, of which there should be few (default: the subject).
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        destination: Callable[[str], str] | None = None,
    ) -> None:
        if destination is not None and not callable(destination):
            raise InvalidArgument("destination", destination, "must be a function that takes a subject")
        self._destination = destination
        self._tracer = trace.get_tracer("jetspark", tracer_provider=tracer_provider)

    # Spans

    @contextmanager
    def process(self, message: MessageBase) -> Iterator[Span]:
        """The span of a message's processing."""
        owner: Any = message._owner
        client = getattr(owner, "client", None) or getattr(owner, "_client", owner)
        attributes = self._attributes(client, "process", "process", message.subject)
        attributes["messaging.message.body.size"] = len(message.data)
        if message.reply.startswith("$JS.ACK."):
            metadata = message.metadata
            attributes["messaging.destination.subscription.name"] = metadata.consumer
            attributes["nats.stream"] = metadata.stream
            attributes["nats.stream.sequence"] = metadata.sequence.stream
            attributes["nats.delivery_count"] = metadata.num_delivered
        around = trace.get_current_span().get_span_context()
        parent = extract(message, contexts.get_current())
        apart = around.is_valid and around != trace.get_current_span(parent).get_span_context()
        span = self._tracer.start_span(
            self._name("process", message.subject),
            parent,
            trace.SpanKind.CONSUMER,
            attributes,
            [trace.Link(around)] if apart else None,
        )
        with _failing(span), trace.use_span(span):
            yield span
        span.end()

    @contextmanager
    def _send(self, client: Any, operation: str, subject: str, data: Any, **more: Any) -> Iterator[Span]:
        """A span that goes on after the block, unless the block raises."""
        attributes = self._attributes(client, operation, "send", subject)
        if isinstance(data, bytes | bytearray | memoryview):
            attributes["messaging.message.body.size"] = len(data)
        attributes.update((name, value) for name, value in more.items() if value is not None)
        name = self._name(operation, subject)
        span = self._tracer.start_span(name, kind=trace.SpanKind.PRODUCER, attributes=attributes)
        with _failing(span), trace.use_span(span):
            yield span

    @contextmanager
    def _receive(self, client: Any, stream: str, consumer: str) -> Iterator[Span]:
        attributes = self._attributes(client, "fetch", "receive", stream)
        attributes["messaging.destination.subscription.name"] = consumer
        span = self._tracer.start_span(f"fetch {stream}", kind=trace.SpanKind.CLIENT, attributes=attributes)
        with _failing(span), trace.use_span(span):
            yield span
        span.end()

    def _attributes(self, client: Any, operation: str, kind: str, destination: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "messaging.system": "nats",
            "messaging.operation.name": operation,
            "messaging.operation.type": kind,
            "messaging.destination.name": destination,
        }
        client = getattr(client, "_client", client)  # of the blocking facade
        if destination.startswith(client.options.inbox_prefix + "."):
            found["messaging.destination.temporary"] = True
        elif self._destination is not None and kind != "receive":
            found["messaging.destination.template"] = self._destination(destination)
        if client.options.name:
            found["messaging.client.id"] = client.options.name
        server = client._server
        if server is not None:
            found["server.address"], found["server.port"] = server.url.host, server.url.port
        return found

    def _name(self, operation: str, subject: str) -> str:
        if subject.startswith(("_INBOX.", "_R_.")):
            subject = _TEMPORARY
        elif self._destination is not None:
            subject = self._destination(subject)
        return f"{operation} {subject}"

    # Wrapping

    def instrument(self, client: Any) -> None:
        """Trace a connection and what will be made of it; both faces of the API."""
        client._tracing = self
        self._wrap_publish(client, client)
        if inspect.iscoroutinefunction(client.request):
            self._wrap_request(client)
            self._wrap_callback(client, client, "subscribe")
        _on_result(client, "jetstream", functools.partial(self._instrument_jetstream, client))

    def _instrument_jetstream(self, client: Any, js: Any) -> None:
        for name in ("publisher", "atomic_batch", "fast_ingest"):
            _on_result(js, name, functools.partial(self._wrap_publish, client))
        if not inspect.iscoroutinefunction(js.publish):
            return  # the facade, whose other calls end in those of the connection in its thread
        client._api_prefixes.add(js._api.prefix + ".")
        self._wrap_publish(client, js)
        self._wrap_callback(client, js, "subscribe")
        for name in ("get_consumer", "_put_consumer", "create_ordered_consumer"):
            _on_result(js, name, functools.partial(self._instrument_consumer, client))
        _on_result(js, "pull_subscribe", functools.partial(self._instrument_pull, client))

    def _instrument_consumer(self, client: Any, consumer: Any) -> None:
        self._wrap_callback(client, consumer, "consume")
        _on_result(
            consumer, "_new_fetch", lambda fetch: self._wrap_fetch(client, consumer, fetch, "_collect")
        )

    def _instrument_pull(self, client: Any, subscription: Any) -> None:
        self._wrap_fetch(client, subscription.consumer, subscription, "fetch")

    def _wrap_publish(self, client: Any, thing: Any) -> None:
        inner = thing.publish
        send = functools.partial(self._send, client, "publish")

        def details(body: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
            data = body[0] if body else options.get("data", options.get("payload", b""))
            return {"data": data, "messaging.message.id": options.get("msg_id")}

        if inspect.iscoroutinefunction(inner):

            @functools.wraps(inner)
            async def publish(subject: str, *body: Any, headers: Any = None, **options: Any) -> Any:
                with send(subject, **details(body, options)) as span:
                    result = await inner(subject, *body, headers=inject(headers), **options)
                _end_with(span, result)
                return result

        else:

            @functools.wraps(inner)
            def publish(subject: str, *body: Any, headers: Any = None, **options: Any) -> Any:
                with send(subject, **details(body, options)) as span:
                    result = inner(subject, *body, headers=inject(headers), **options)
                _end_with(span, result)
                return result

        thing.publish = publish
        if hasattr(thing, "publish_many"):
            self._wrap_publish_many(client, thing)

    def _wrap_publish_many(self, client: Any, publisher: Any) -> None:
        inner = publisher.publish_many

        @contextmanager
        def sending(messages: Any) -> Iterator[list[Any]]:
            """One span for all of them: its context is in every message."""
            many = list(messages)
            subjects = {message[0] for message in many}
            subject = subjects.pop() if len(subjects) == 1 else "(several)"
            count = {"messaging.batch.message_count": len(many)}
            with self._send(client, "publish_many", subject, None, **count) as span:
                # The third field of a Publishing is its headers; a plain tuple may end before it.
                yield [(*m[:2], *([b""] * (2 - len(m))), inject((*m, None, None)[2]), *m[3:]) for m in many]
            span.end()

        # Short tuples are refused by publish_many itself, so missing fields are filled up to its length.
        def full(messages: list[Any]) -> list[Any]:
            return [(*message, *([None] * (6 - len(message)))) for message in messages]

        if inspect.iscoroutinefunction(inner):

            @functools.wraps(inner)
            async def publish_many(messages: Any) -> Any:
                with sending(messages) as traced:
                    return await inner(full(traced))

        else:

            @functools.wraps(inner)
            def publish_many(messages: Any) -> Any:
                with sending(messages) as traced:
                    return inner(full(traced))

        publisher.publish_many = publish_many

    def _wrap_request(self, client: Any) -> None:
        inner = client.request
        client._api_prefixes = {"$JS."}

        @functools.wraps(inner)
        async def request(subject: str, *body: Any, headers: Any = None, **options: Any) -> Any:
            # Not the API's own requests, nor those of js.publish, which has a span.
            if subject.startswith(tuple(client._api_prefixes)) or (headers and "traceparent" in headers):
                return await inner(subject, *body, headers=headers, **options)
            data = body[0] if body else options.get("payload", b"")
            with self._send(client, "request", subject, data) as span:
                answer = await inner(subject, *body, headers=inject(headers), **options)
            span.end()
            return answer

        client.request = request

    def _wrap_callback(self, client: Any, thing: Any, name: str) -> None:
        """Give the callback that ``thing.name(callback=...)`` gets a span for each call."""
        inner = getattr(thing, name)
        blocking = hasattr(client, "engine")

        @functools.wraps(inner)
        def wrapped(*args: Any, callback: Any = None, **options: Any) -> Any:
            traced = callback if not callable(callback) else self._handler(callback, blocking)
            return inner(*args, callback=traced, **options)

        setattr(thing, name, wrapped)

    def _handler(self, callback: Callable[[Any], Any], blocking: bool) -> Callable[[Any], Any]:
        if blocking:

            @functools.wraps(callback)
            def handle(message: Any) -> Any:
                with self.process(message):
                    return callback(message)

        else:

            @functools.wraps(callback)
            async def handle(message: Any) -> Any:
                with self.process(message):
                    result = callback(message)
                    if inspect.isawaitable(result):
                        await result

        return handle

    def _wrap_fetch(self, client: Any, consumer: Any, thing: Any, name: str) -> None:
        inner = getattr(thing, name)

        @functools.wraps(inner)
        async def fetch(*args: Any, **options: Any) -> Any:
            with self._receive(client, consumer.stream_name, consumer.name) as span:
                batch = await inner(*args, **options)
                span.set_attribute("messaging.batch.message_count", len(batch))
                for message in batch if span.is_recording() else ():
                    origin = trace.get_current_span(extract(message)).get_span_context()
                    if origin.is_valid:
                        span.add_link(origin)
                return batch

        setattr(thing, name, fetch)


def _on_result(thing: Any, name: str, instrument: Callable[[Any], None]) -> None:
    """Let ``instrument`` see what a method returns before the caller has it."""
    inner = getattr(thing, name)
    if inspect.iscoroutinefunction(inner):

        @functools.wraps(inner)
        async def wrapped(*args: Any, **options: Any) -> Any:
            result = await inner(*args, **options)
            instrument(result)
            return result

    else:

        @functools.wraps(inner)
        def wrapped(*args: Any, **options: Any) -> Any:
            result = inner(*args, **options)
            instrument(result)
            return result

    setattr(thing, name, wrapped)


@contextmanager
def _failing(span: Span) -> Iterator[None]:
    """End the span when the block raises; ``use_span`` has recorded what."""
    try:
        yield
    except BaseException as error:
        span.set_attribute("error.type", type(error).__qualname__)
        span.end()
        raise


def _end_with(span: Span, result: Any) -> None:
    """End the span of a publish: now, or when its ack comes."""
    if hasattr(result, "add_done_callback"):
        result.add_done_callback(functools.partial(_settle, span))
        return
    if hasattr(result, "seq"):  # a PubAck
        span.set_attribute("nats.stream", result.stream)
        span.set_attribute("nats.stream.sequence", result.seq)
    span.end()


def _settle(span: Span, future: Any) -> None:
    if future.cancelled():
        span.set_attribute("error.type", "CancelledError")
        span.end()
        return
    error = future.exception()
    if error is None:
        _end_with(span, future.result())
        return
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(trace.Status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}"))
    span.record_exception(error)
    span.end()
