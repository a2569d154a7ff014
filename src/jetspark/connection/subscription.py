"""A subscription as users hold it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable
    from types import TracebackType

    from jetspark.connection.message import Msg
    from jetspark.connection.subscription_sink import SubscriptionSink


class Subscription:
    """A core NATS subscription. Iterate it, call ``next``, or give it a callback; close it when done.

    ``async with`` unsubscribes at the end. Iteration ends when the subscription was drained, has reached
    its limit, or its connection was closed by you; it raises when the connection was lost for good or the
    server refused the subscription.
    """

    def __init__(self, sink: SubscriptionSink) -> None:
        self._sink = sink

    @property
    def subject(self) -> str:
        """The subject as it was given, with its wildcards."""
        return self._sink.subject

    @property
    def queue(self) -> str:
        """The queue group, empty when there is none."""
        return self._sink.queue

    @property
    def pending_messages(self) -> int:
        """Messages received and not yet taken by user code."""
        return self._sink.pending_messages

    @property
    def pending_bytes(self) -> int:
        """Bytes of the pending messages as they were on the wire, updated in whole runs."""
        return self._sink.pending_bytes

    @property
    def delivered(self) -> int:
        """Messages handed to user code so far."""
        return self._sink.delivered

    @property
    def dropped(self) -> int:
        """Messages dropped because the pending limits were reached."""
        return self._sink.dropped

    @property
    def closed(self) -> bool:
        """Whether no further message will arrive. Buffered messages may still be there."""
        return self._sink.closed

    def __aiter__(self) -> AsyncIterator[Msg]:
        # The sink itself, so that a loop pays for no layer in between.
        return self._sink.__aiter__()

    def __anext__(self) -> Awaitable[Msg]:
        return self._sink.__anext__()

    async def next(self, timeout: float | None = None) -> Msg:
        """The next message, waiting at most ``timeout`` seconds (default: ``request_timeout``).

        Raises :class:`RequestTimeout` if no message arrived in time, and :class:`ConnectionClosed` if none
        can arrive any more. Cancelling it loses no message.
        """
        return await self._sink.next(timeout)

    async def unsubscribe(self, max_messages: int = 0) -> None:
        """Stop now and drop what is buffered, or stop after ``max_messages`` in all since subscribing.

        If that number has already been reached, buffered messages beyond it are dropped and the rest stays.
        """
        await self._sink.unsubscribe(max_messages)

    async def drain(self) -> None:
        """Stop receiving, but let user code have everything that has arrived.

        Returns once the server has confirmed; with a callback, once the callback has seen every message
        (:class:`DrainTimeout` after ``drain_timeout``). An iterator then yields the rest and ends.
        """
        await self._sink.drain()

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.unsubscribe()

    def __repr__(self) -> str:
        return repr(self._sink)


def sink_of(subscription: Subscription) -> SubscriptionSink:
    """The connection's side of a subscription, for our own packages."""
    return subscription._sink
