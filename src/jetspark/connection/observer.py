"""The interface for watching a connection, used by metrics and tracing.

A core checks ``if observer is not None`` where something happens: once per run of messages, per publish and
per ack. Connections without an observer pay for nothing else.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jetspark.connection.events import Event
    from jetspark.errors import JetsparkError
    from jetspark.wire.columns import AnyColumns

#: Where a publishing call was made: on the connection, the JetStream context, or a publisher or batch.
Api = Literal["core", "request", "jetstream", "publisher"]


@dataclass(slots=True)
class Sending:
    """One publishing call. ``headers``: what to send instead of the user's own; ``done``: to be called with
    the result of the call."""

    headers: Any
    done: Callable[[Any], None]


@dataclass(slots=True)
class SendingMany:
    """The same for a call with many messages: the messages to send instead of the user's own."""

    messages: Iterable[Any]
    done: Callable[[Any], None]


def nothing(_: Any) -> None:
    """Ignores a result."""


class Observer:
    """Does nothing; subclasses override the methods they need.

    Called in the connection's thread, and for blocking callers in their own threads.
    """

    # What has happened

    def event(self, event: Event) -> None:
        """An event was logged and passed to the listener."""

    def sink_added(self, sink: object) -> None:
        """A receiver subscribed."""

    def sink_removed(self, sink: object) -> None:
        """The receiver will get nothing more."""

    def delivered(self, sink: object, items: list[Any]) -> None:
        """A receiver got a run of messages."""

    def delivered_columns(self, sink: object, columns: AnyColumns) -> None:
        """A receiver got a run of messages as columns."""

    def published(self, subject: str, payload: bytes, reply: str, headers: Any, own_reply: bool) -> None:
        """A message was buffered for sending."""

    def acked(self, body: bytes) -> None:
        """An ack for a delivered message was buffered; the first four bytes of ``body`` tell its kind."""

    def pulled(self) -> None:
        """A pull request was buffered."""

    def warned(self, warning: JetsparkError) -> None:
        """A consumer or subscription reported a problem to its listener."""

    # Around a call by the user

    @contextmanager
    def publishing(
        self, api: Api, subject: str, data: Any, headers: Any, msg_id: str | None = None
    ) -> Iterator[Sending]:
        """Around a call that publishes a message."""
        yield Sending(headers, nothing)

    @contextmanager
    def publishing_many(self, messages: Iterable[Any]) -> Iterator[SendingMany]:
        """Around a call that publishes many messages."""
        yield SendingMany(messages, nothing)

    @contextmanager
    def fetching(self, stream: str, consumer: str) -> Iterator[Callable[[Any], None]]:
        """Around a fetch; the yielded function is to be called with the messages."""
        yield nothing

    def handling(self, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The function to call with each message instead of the callback."""
        return callback


class Observers(Observer):
    """Several observers as one: the first is the outermost around calls, and is notified first."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def event(self, event: Event) -> None:
        for each in self._observers:
            each.event(event)

    def sink_added(self, sink: object) -> None:
        for each in self._observers:
            each.sink_added(sink)

    def sink_removed(self, sink: object) -> None:
        for each in self._observers:
            each.sink_removed(sink)

    def delivered(self, sink: object, items: list[Any]) -> None:
        for each in self._observers:
            each.delivered(sink, items)

    def delivered_columns(self, sink: object, columns: AnyColumns) -> None:
        for each in self._observers:
            each.delivered_columns(sink, columns)

    def published(self, subject: str, payload: bytes, reply: str, headers: Any, own_reply: bool) -> None:
        for each in self._observers:
            each.published(subject, payload, reply, headers, own_reply)

    def acked(self, body: bytes) -> None:
        for each in self._observers:
            each.acked(body)

    def pulled(self) -> None:
        for each in self._observers:
            each.pulled()

    def warned(self, warning: JetsparkError) -> None:
        for each in self._observers:
            each.warned(warning)

    @contextmanager
    def publishing(
        self, api: Api, subject: str, data: Any, headers: Any, msg_id: str | None = None
    ) -> Iterator[Sending]:
        all_done: list[Callable[[Any], None]] = []
        with ExitStack() as stack:
            for each in self._observers:
                sending = stack.enter_context(each.publishing(api, subject, data, headers, msg_id))
                headers = sending.headers
                all_done.append(sending.done)
            yield Sending(headers, _together(all_done))

    @contextmanager
    def publishing_many(self, messages: Iterable[Any]) -> Iterator[SendingMany]:
        all_done: list[Callable[[Any], None]] = []
        with ExitStack() as stack:
            for each in self._observers:
                sending = stack.enter_context(each.publishing_many(messages))
                messages = sending.messages
                all_done.append(sending.done)
            yield SendingMany(messages, _together(all_done))

    @contextmanager
    def fetching(self, stream: str, consumer: str) -> Iterator[Callable[[Any], None]]:
        with ExitStack() as stack:
            contexts = [each.fetching(stream, consumer) for each in self._observers]
            yield _together([stack.enter_context(context) for context in contexts])

    def handling(self, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
        for each in reversed(self._observers):
            callback = each.handling(callback)
        return callback


def _together(all_done: list[Callable[[Any], None]]) -> Callable[[Any], None]:
    def done(result: Any) -> None:
        for each in all_done:
            each(result)

    return done
