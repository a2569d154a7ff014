"""What may watch a connection: metrics and tracing.

A core has at most one observer and asks ``if observer is not None`` where something happens: once per run of
messages, per publish and per ack. Connections without one pay for nothing else.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jetspark.connection.events import Event
    from jetspark.errors import JetsparkError
    from jetspark.wire.columns import AnyColumns


#: Which call publishes: of the connection, of the JetStream context, or of a publisher or batch.
Api = Literal["core", "request", "jetstream", "publisher"]


@dataclass(slots=True)
class Sending:
    """One call that publishes. ``headers``: what to send instead of the user's own; ``done``: to be called
    with the result of the call."""

    headers: Any
    done: Callable[[Any], None]


def _nothing(_: Any) -> None:
    pass


@contextmanager
def _plain(headers: Any) -> Iterator[Sending]:
    yield Sending(headers, _nothing)


class Observer:
    """Does nothing; subclasses override what they want to know of. Most is told after it has happened.

    Called in the connection's thread, and by blocking callers in theirs.
    """

    def publishing(
        self, api: Api, subject: str, data: Any, headers: Any, msg_id: str | None = None
    ) -> AbstractContextManager[Sending]:
        """Around a call of the user's that publishes."""
        return _plain(headers)

    def event(self, event: Event) -> None:
        """An event was logged, and the listener told."""

    def sink_added(self, sink: object) -> None:
        """A receiver subscribed."""

    def sink_removed(self, sink: object) -> None:
        """Nothing more will come to the receiver."""

    def delivered(self, sink: object, items: list[Any]) -> None:
        """A receiver got a run of messages."""

    def delivered_columns(self, sink: object, columns: AnyColumns) -> None:
        """A receiver got a run of messages as columns."""

    def published(self, subject: str, payload: bytes, reply: str, headers: Any, own_reply: bool) -> None:
        """A message was buffered for sending."""

    def acked(self, body: bytes) -> None:
        """An ack for a delivered message was buffered; the first four bytes of ``body`` say which kind."""

    def pulled(self) -> None:
        """A pull request was buffered."""

    def warned(self, warning: JetsparkError) -> None:
        """A consumer or subscription told its listener of trouble."""
