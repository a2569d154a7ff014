"""OpenTelemetry spans, for ``connect(tracing=True)`` (extra ``otel``).

Nothing here runs on a connection without it: a traced connection has an observer, which wraps the calls.

The spans follow the messaging conventions of OpenTelemetry:

- *publish* (and *request*), PRODUCER: from the call to its end, which is the stream's ack if the call, or the
  future it returns, has one. The context of this span travels in the message's headers ``traceparent`` and
  ``tracestate``, in the format that the W3C defines for HTTP; the server's own message tracing (ADR-41) reads
  the same.
- *fetch*, CLIENT: one request for messages, with a **link** to the publish span of each message that it
  returned. The messages have many parents, and a span can have only one.
- *process*, CONSUMER: a callback of ``subscribe`` or ``consume``, or the block under :func:`process`. Its
  **parent** is the publish span: there is exactly one, so the path of a message is a single trace from the
  publisher through every service that handles it. A span that is current around the block, such as that of
  the fetch loop, becomes a link, or the parent if the message carries no context.

Loops (``async for message in ...``) have no callback to wrap; use ``with process(message):`` in them.
Bodies, headers and credentials are never recorded.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from jetspark.connection.client import core_of
from jetspark.connection.message import owner_of
from jetspark.connection.observer import Observer, Sending, SendingMany, nothing
from jetspark.errors import InvalidArgument, JetsparkError
from jetspark.jetstream.flow.ack_reply import parse_ack_reply
from jetspark.jetstream.publish.many import as_publishing
from jetspark.wire.headers import Headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.trace import Span, TracerProvider

    from jetspark.connection.core import Core
    from jetspark.connection.observer import Api
    from jetspark.connection.outbox import HeadersLike
    from jetspark.jetstream.publish.many import Publishing


__all__ = ["Tracing", "extract", "inject", "process"]

_W3C = TraceContextTextMapPropagator()


# How a connection is traced, by its core.
_traced: WeakKeyDictionary[Core, Tracing] = WeakKeyDictionary()


class _HeadersGetter(Getter[Headers]):
    def get(self, carrier: Headers, key: str) -> list[str] | None:
        return carrier.get_all(key) or None

    def keys(self, carrier: Headers) -> list[str]:
        return carrier.keys()


_GETTER = _HeadersGetter()


def inject(headers: HeadersLike | None = None) -> HeadersLike | None:
    """The headers with the context of the current span; unchanged if there is no such context."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier)
    if not carrier:
        return headers
    result = Headers(headers)
    for name, value in carrier.items():
        result[name] = value
    return result


def extract(message: Any, context: Context | None = None) -> Context:
    """The context that a message carries; ``context`` if it carries none that can be read."""
    try:
        headers = message.headers
    except JetsparkError:
        headers = Headers()  # a malformed header block is no reason to lose the message
    return _W3C.extract(headers, context, _GETTER)


@contextmanager
def process(message: Any) -> Iterator[Span]:
    """The span of a message's processing, for loops: ``with process(message): ...``

    Uses the ``tracing`` of the message's connection; without one, the global tracer provider.
    """
    tracing: Tracing = _traced.get(_core_of_message(message)) or Tracing()
    with tracing.process(message) as span:
        yield span


def _carries_context(headers: Any) -> bool:
    return isinstance(headers, Headers | Mapping) and "traceparent" in headers


class Tracing:
    """How to trace, for ``connect(tracing=Tracing(...))``; ``tracing=True`` is one with the defaults.

    ``tracer_provider``: whose tracer to use (default: the global one). ``destination``: turns a subject into
    a template, as in ``lambda subject: subject.partition(".")[0] + ".*"``, for subjects that contain ids. The
    template becomes part of span names, which should be few (default: the subject).
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
        """The span of a message's processing. ``around``: the surrounding context, by default the current."""
        attributes = self._attributes(_core_of_message(message), "process", "process", message.subject)
        attributes["messaging.message.body.size"] = len(message.data)
        # A core subscription may get such messages too, and not every reply can be parsed.
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
        """A span that is current in the block. It stays open after the block, unless the block raises."""
        span = self._tracer.start_span(_name(attributes), parent, kind, attributes, links)
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield span
        except BaseException as error:
            span.set_attribute("error.type", type(error).__qualname__)
            if isinstance(error, InvalidArgument):
                # Its text quotes the argument, which may be a header with a secret in it.
                span.set_status(trace.StatusCode.ERROR, type(error).__qualname__)
            elif isinstance(error, Exception):
                span.record_exception(error)
                span.set_status(trace.StatusCode.ERROR, f"{type(error).__qualname__}: {error}")
            span.end()
            raise

    def _attributes(self, core: Core, operation: str, kind: str, destination: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "messaging.system": "nats",
            "messaging.operation.name": operation,
            "messaging.operation.type": kind,
        }
        # Exporters accept only UTF-8, and a subject is bytes from another client. The call itself refuses
        # what is not a str.
        destination = str(destination).encode("utf-8", "replace").decode()
        if destination:
            found["messaging.destination.name"] = destination
        if destination.startswith(core.options.inbox_prefix + "."):
            found["messaging.destination.temporary"] = True
        elif self._destination is not None and destination and kind != "receive":
            found["messaging.destination.template"] = self._destination(destination)
        if core.options.name:
            found["messaging.client.id"] = core.options.name
        server = core.server
        if server is not None:
            found["server.address"], found["server.port"] = server.url.host, server.url.port
        return found


class Tracer(Observer):
    """Traces one connection."""

    def __init__(self, tracing: Tracing, core: Core) -> None:
        _traced[core] = tracing
        self._tracing = tracing
        self._core = core

    @contextmanager
    def publishing(
        self, api: Api, subject: str, data: Any, headers: Any, msg_id: str | None = None
    ) -> Iterator[Sending]:
        operation = "request" if api == "request" else "publish"
        # No span for requests to JetStream's API, nor for those that already carry a context.
        if api == "request" and (str(subject).startswith("$JS.") or _carries_context(headers)):
            yield Sending(headers, nothing)
            return
        attributes = self._tracing._attributes(self._core, operation, "send", subject)
        if isinstance(data, bytes | bytearray | memoryview):
            attributes["messaging.message.body.size"] = len(data)
        if msg_id is not None:
            attributes["messaging.message.id"] = msg_id
        with self._tracing._span(trace.SpanKind.PRODUCER, attributes) as span:
            yield Sending(inject(headers), functools.partial(_end_with, span))

    @contextmanager
    def publishing_many(self, messages: Iterable[Publishing]) -> Iterator[SendingMany]:
        """One span for all of them: every message carries its context."""
        if not isinstance(messages, Iterable):
            # Let the call refuse it, as it does without tracing.
            yield SendingMany(messages, nothing)
            return
        many = [as_publishing(message) for message in messages]
        subjects = {str(message.subject) for message in many}
        subject = subjects.pop() if len(subjects) == 1 else ""
        attributes = self._tracing._attributes(self._core, "publish_many", "send", subject)
        attributes["messaging.batch.message_count"] = len(many)
        with self._tracing._span(trace.SpanKind.PRODUCER, attributes) as span:
            traced = [message._replace(headers=inject(message.headers)) for message in many]
            yield SendingMany(traced, lambda _: span.end())

    @contextmanager
    def fetching(self, stream: str, consumer: str) -> Iterator[Callable[[Any], None]]:
        attributes = self._tracing._attributes(self._core, "fetch", "receive", stream)
        attributes["messaging.destination.subscription.name"] = consumer
        with self._tracing._span(trace.SpanKind.CLIENT, attributes) as span:
            yield functools.partial(_end_with_batch, span)

    def handling(self, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
        # The task that runs callbacks has the context in which it was created, and that one is over.
        context = Context()
        tracing = self._tracing

        def handle_here(message: Any) -> Any:
            with tracing.process(message, context):
                return callback(message)

        async def handle(message: Any) -> None:
            with tracing.process(message, context):
                result = callback(message)
                if inspect.isawaitable(result):
                    await result

        return handle_here if self._core.threads else handle


def _core_of_message(message: Any) -> Core:
    """The core of the connection that the message came from."""
    owner = owner_of(message)
    core: Core | None = getattr(owner, "core", None)
    return core_of(owner) if core is None else core


def _name(attributes: dict[str, Any]) -> str:
    """Operation and destination; never an inbox: there are too many of them."""
    destination = attributes.get("messaging.destination.name", "")
    if "messaging.destination.temporary" in attributes:
        destination = "(temporary)"
    destination = attributes.get("messaging.destination.template", destination)
    return f"{attributes['messaging.operation.name']} {destination}".rstrip()


def _end_with(span: Span, result: Any) -> None:
    """End the span of a publish: now, or when its ack arrives."""
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
