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
  publisher through every service that handles it. A span that is current around a block, of the fetch loop
  say, becomes a link, and the parent when the message carries no context.

Loops (``async for message in ...``) have no callback to wrap; say ``with process(message):`` in them.
Bodies, headers and credentials are never recorded.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from jetspark.errors import InvalidArgument, JetsparkError
from jetspark.jetstream.flow.ack_reply import parse_ack_reply
from jetspark.jetstream.publish.many import Publishing
from jetspark.wire.headers import Headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span, TracerProvider

    from jetspark.connection.core import HeadersLike

    # The arguments to call with, and what to do with the result.
    Around = tuple[tuple[Any, ...], dict[str, Any], Callable[[Any], object] | None]

__all__ = ["Tracing", "extract", "inject", "process"]

_W3C = TraceContextTextMapPropagator()


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
    tracing: Tracing = getattr(_client_of(message), "_tracing", None) or Tracing()
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
    def process(self, message: Any, around: Context | None = None) -> Iterator[Span]:
        """The span of a message's processing. ``around``: what surrounds it (default: what is current)."""
        attributes = self._attributes(_client_of(message), "process", "process", message.subject)
        attributes["messaging.message.body.size"] = len(message.data)
        # A core subscription may get these too, and not every one can be read.
        if message.reply.startswith("$JS.ACK."):
            with suppress(JetsparkError):
                metadata = parse_ack_reply(message.reply)
                attributes["messaging.destination.subscription.name"] = metadata.consumer
                attributes["nats.stream"] = metadata.stream
                attributes["nats.stream.sequence"] = metadata.sequence.stream
                attributes["nats.delivery_count"] = metadata.num_delivered
        around = contexts.get_current() if around is None else around
        outer = trace.get_current_span(around).get_span_context()
        parent = extract(message, around)
        apart = outer.is_valid and outer != trace.get_current_span(parent).get_span_context()
        links = [trace.Link(outer)] if apart else None
        with self._span(trace.SpanKind.CONSUMER, attributes, parent, links) as span:
            yield span
        span.end()

    @contextmanager
    def _span(
        self,
        kind: trace.SpanKind,
        attributes: dict[str, Any],
        parent: Context | None = None,
        links: list[trace.Link] | None = None,
    ) -> Iterator[Span]:
        """A span that is current in the block. It goes on after it, unless the block raises."""
        span = self._tracer.start_span(_name(attributes), parent, kind, attributes, links)
        try:
            with trace.use_span(span):
                yield span
        except BaseException as error:
            span.set_attribute("error.type", type(error).__qualname__)
            span.end()
            raise

    def _attributes(self, client: Any, operation: str, kind: str, destination: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "messaging.system": "nats",
            "messaging.operation.name": operation,
            "messaging.operation.type": kind,
        }
        client = getattr(client, "_client", client)  # of the blocking facade
        # Exporters take UTF-8 alone, and a subject is bytes that somebody sent. What is no str is refused
        # by the call itself.
        destination = str(destination).encode("utf-8", "replace").decode()
        if destination:
            found["messaging.destination.name"] = destination
        if destination.startswith(client.options.inbox_prefix + "."):
            found["messaging.destination.temporary"] = True
        elif self._destination is not None and destination and kind != "receive":
            found["messaging.destination.template"] = self._destination(destination)
        if client.options.name:
            found["messaging.client.id"] = client.options.name
        server = client._server
        if server is not None:
            found["server.address"], found["server.port"] = server.url.host, server.url.port
        return found

    # Wrapping

    def instrument(self, client: Any) -> None:
        """Trace a connection and what will be made of it; both faces of the API."""
        client._tracing = self
        self._trace_publish(client, client)
        if inspect.iscoroutinefunction(client.request):
            client._api_prefixes = {"$JS."}
            _wrap(client, "request", functools.partial(self._request, client))
            _wrap(client, "subscribe", functools.partial(self._callback, client))
        _see(client, "jetstream", functools.partial(self._trace_jetstream, client))

    def _trace_jetstream(self, client: Any, js: Any) -> None:
        for name in ("publisher", "atomic_batch", "fast_ingest"):
            _see(js, name, functools.partial(self._trace_publish, client))
        if not inspect.iscoroutinefunction(js.publish):
            return  # the facade, whose other calls end in those of the connection in its thread
        client._api_prefixes.add(js._api.prefix + ".")
        self._trace_publish(client, js)
        _wrap(js, "subscribe", functools.partial(self._callback, client))
        for name in ("get_consumer", "_put_consumer", "create_ordered_consumer"):
            _see(js, name, functools.partial(self._trace_consumer, client))
        _see(js, "pull_subscribe", functools.partial(self._trace_pull, client))

    def _trace_consumer(self, client: Any, consumer: Any) -> None:
        fetching = functools.partial(self._fetch, client, consumer)
        _wrap(consumer, "consume_with", functools.partial(self._first_callback, client))
        _see(consumer, "_new_fetch", lambda fetch: _wrap(fetch, "_collect", fetching))

    def _trace_pull(self, client: Any, subscription: Any) -> None:
        _wrap(subscription, "fetch", functools.partial(self._fetch, client, subscription.consumer))

    def _trace_publish(self, client: Any, thing: Any) -> None:
        for name in ("publish", "publish_nowait"):
            if hasattr(thing, name):
                _wrap(thing, name, functools.partial(self._publish, client))
        if hasattr(thing, "publish_many"):
            _wrap(thing, "publish_many", functools.partial(self._publish_many, client))

    # What is around a call: each yields the arguments to call with, and what to do with the result

    @contextmanager
    def _publish(
        self,
        client: Any,
        subject: str,
        *body: Any,
        headers: Any = None,
        operation: str = "publish",
        **options: Any,
    ) -> Iterator[Around]:
        attributes = self._attributes(client, operation, "send", subject)
        data = body[0] if body else options.get("data", b"")
        if isinstance(data, bytes | bytearray | memoryview):
            attributes["messaging.message.body.size"] = len(data)
        if options.get("msg_id") is not None:
            attributes["messaging.message.id"] = options["msg_id"]
        with self._span(trace.SpanKind.PRODUCER, attributes) as span:
            options["headers"] = inject(headers)
            yield (subject, *body), options, functools.partial(_end_with, span)

    @contextmanager
    def _publish_many(self, client: Any, messages: Iterable[Any]) -> Iterator[Around]:
        """One span for all of them: its context is in every message."""
        many = [Publishing(*message) for message in messages]
        subjects = {message.subject for message in many}
        subject = subjects.pop() if len(subjects) == 1 else ""
        attributes = self._attributes(client, "publish_many", "send", subject)
        attributes["messaging.batch.message_count"] = len(many)
        with self._span(trace.SpanKind.PRODUCER, attributes) as span:
            traced = [message._replace(headers=inject(message.headers)) for message in many]
            yield (traced,), {}, lambda _: span.end()

    @contextmanager
    def _request(
        self, client: Any, subject: str, *body: Any, headers: Any = None, **options: Any
    ) -> Iterator[Around]:
        # Not the API's own requests, nor those of js.publish, which has a span.
        if str(subject).startswith(tuple(client._api_prefixes)) or (headers and "traceparent" in headers):
            yield (subject, *body), {**options, "headers": headers}, None
            return
        with self._publish(client, subject, *body, headers=headers, operation="request", **options) as traced:
            yield traced

    @contextmanager
    def _fetch(self, client: Any, consumer: Any, *args: Any, **options: Any) -> Iterator[Around]:
        attributes = self._attributes(client, "fetch", "receive", consumer.stream_name)
        attributes["messaging.destination.subscription.name"] = consumer.name
        with self._span(trace.SpanKind.CLIENT, attributes) as span:
            yield args, options, functools.partial(_end_with_batch, span)

    @contextmanager
    def _callback(self, client: Any, *args: Any, callback: Any = None, **options: Any) -> Iterator[Around]:
        """A call that takes a callback: give each message that it will be called with a span."""
        if callable(callback):
            callback = self._handler(callback, blocking=hasattr(client, "engine"))
        yield args, {**options, "callback": callback}, None

    @contextmanager
    def _first_callback(self, client: Any, callback: Any, **options: Any) -> Iterator[Around]:
        """The same for a call whose first argument it is."""
        with self._callback(client, callback=callback, **options) as (_, traced, after):
            yield (traced.pop("callback"),), traced, after

    def _handler(self, callback: Callable[[Any], Any], *, blocking: bool) -> Callable[[Any], Any]:
        # The task that runs callbacks has the context in which it was made, which is over.
        nothing = Context()

        def handle_here(message: Any) -> Any:
            with self.process(message, nothing):
                return callback(message)

        async def handle(message: Any) -> None:
            with self.process(message, nothing):
                result = callback(message)
                if inspect.isawaitable(result):
                    await result

        return handle_here if blocking else handle


def _wrap(thing: Any, name: str, around: Callable[..., AbstractContextManager[Around]]) -> None:
    """Replace a method of one object, plain or async, by itself inside ``around``."""
    inner = getattr(thing, name)

    @functools.wraps(inner)
    def plain(*args: Any, **options: Any) -> Any:
        with around(*args, **options) as (args, options, then):
            result = inner(*args, **options)
        if then is not None:
            then(result)
        return result

    @functools.wraps(inner)
    async def coroutine(*args: Any, **options: Any) -> Any:
        with around(*args, **options) as (args, options, then):
            result = await inner(*args, **options)
        if then is not None:
            then(result)
        return result

    setattr(thing, name, coroutine if inspect.iscoroutinefunction(inner) else plain)


def _see(thing: Any, name: str, trace_it: Callable[[Any], None]) -> None:
    """Let ``trace_it`` have what a method returns before the caller has it."""

    @contextmanager
    def around(*args: Any, **options: Any) -> Iterator[Around]:
        yield args, options, trace_it

    _wrap(thing, name, around)


def _client_of(message: Any) -> Any:
    """The connection in whose loop the message arrived."""
    owner = message._owner
    return getattr(owner, "client", None) or getattr(owner, "_client", owner)


def _name(attributes: dict[str, Any]) -> str:
    """Operation and destination; never an inbox, of which there are too many."""
    destination = attributes.get("messaging.destination.name", "")
    if "messaging.destination.temporary" in attributes:
        destination = "(temporary)"
    destination = attributes.get("messaging.destination.template", destination)
    return f"{attributes['messaging.operation.name']} {destination}".rstrip()


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


def _end_with_batch(span: Span, batch: list[Any]) -> None:
    span.set_attribute("messaging.batch.message_count", len(batch))
    for message in batch if span.is_recording() else ():
        origin = trace.get_current_span(extract(message)).get_span_context()
        if origin.is_valid:
            span.add_link(origin)
    span.end()
