"""Ordered consumers: every message once and in order, without acks, whatever happens to the server.

Users hold an :class:`OrderedConsumer`; the consumers behind it belong to
:class:`~jetspark.jetstream.consume.ordered_chain.OrderedChain`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never, Self

from jetspark.errors import InvalidArgument, JetsparkError
from jetspark.jetstream.consume.errors import NextMessageTooLarge
from jetspark.jetstream.consume.fetch import Fetch
from jetspark.jetstream.consume.ordered_chain import OrderedChain, OrderedSink
from jetspark.jetstream.consume.pull import PullSink, Stash, message_size
from jetspark.jetstream.consumer import Consumer
from jetspark.jetstream.flow.ack_reply import sequences

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable
    from datetime import datetime
    from types import TracebackType

    from jetspark.jetstream.consume.ordered_columns import OrderedColumnarSink
    from jetspark.jetstream.consume.ordered_config import OrderedConsumerConfig
    from jetspark.jetstream.flow.options import FetchOptions, PullOptions
    from jetspark.jetstream.home import Home
    from jetspark.jetstream.message import Message
    from jetspark.jetstream.models.consumer_info import ConsumerInfo, ConsumerPause


class OrderedStash(Stash):
    """Without acks nothing is delivered twice, so messages of a cancelled fetch are kept without a time
    limit."""

    def put_back(self, sink: PullSink) -> None:
        """Take over everything immediately: messages still on their way come again from the next consumer."""
        self.keep(sink.buffer)
        sink.stop()

    def keep(self, messages: deque[Any]) -> None:
        """Take over the messages. Those that were taken out and not handed out go back to the front."""
        kept = self._messages
        if kept and messages and sequences(messages[0].reply)[1] < sequences(kept[0][1].reply)[1]:
            kept.extendleft((float("inf"), message) for message in reversed(messages))
            messages.clear()
        else:
            super().keep(messages)


class OrderedFetch(Fetch):
    """A fetch from the consumer that is current when the fetch starts."""

    def __init__(self, chain: OrderedChain, options: FetchOptions, stash: Stash) -> None:
        super().__init__(chain.target, options, stash)
        self._chain = chain

    def _start(self, stashed: list[Message]) -> PullSink | None:
        self._chain.check_free()
        options, stash = self._options, self._stash
        stashed.extend(stash.take(options.batch, options.max_bytes))
        if len(stash):
            # Full, or the next message is too large: newer messages must not overtake it.
            if not stashed:
                raise NextMessageTooLarge(409, "Message Size Exceeds MaxBytes")
            return None
        rest = options.without(len(stashed), sum(map(message_size, stashed))) if stashed else options
        if rest is None:
            return None
        sink = self._new_sink(rest)
        sink.start()
        return sink

    def _new_sink(self, options: FetchOptions) -> PullSink:
        return OrderedSink(self._chain, options)


class OrderedConsumer(Consumer):
    """Reads a stream in order, each message once, without acks. Returned by ``create_ordered_consumer``.

    Behind it is an ephemeral consumer that is replaced whenever it is in doubt: after lost messages, missed
    heartbeats, deletion, a reconnect or a server restart. ``name``, ``info`` and ``cached_info`` describe the
    current one. The handle keeps the position: each fetch or consume continues where the previous one ended,
    and messages that were buffered but not handed out come again. Only one fetch or consume may run at a
    time; a second one raises :class:`OrderedConsumerBusy`.

    Reading ends with :class:`OrderedResetFailed` after ``max_reset_attempts``, and when the stream is
    deleted. ``close`` deletes the consumer on the server; without it the server does so after
    ``inactive_threshold``. As a context manager it closes itself.
    """

    def __init__(self, js: Home, chain: OrderedChain) -> None:
        self._chain = chain
        assert chain.info is not None
        super().__init__(js, chain.info)
        self._target = chain.target
        self._stash = OrderedStash(chain.target, None)
        # Messages on their way to a sink that has ended are delivered again by the next consumer.
        chain.target.again = True

    @property
    def _info(self) -> ConsumerInfo:
        assert self._chain.info is not None
        return self._chain.info

    @_info.setter
    def _info(self, info: ConsumerInfo) -> None:
        self._chain.info = info

    def __repr__(self) -> str:
        return f"OrderedConsumer({self.stream_name!r}, {self.name!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def last_sequence(self) -> int:
        """Stream sequence of the last message received in order; 0 before the first."""
        return self._chain.flow.last_stream_seq

    async def info(self) -> ConsumerInfo:
        """Ask the server for the info of the current consumer; creates a consumer when there is none."""
        if self._chain.error is not None:
            raise self._chain.error
        await self._chain.open()
        return await super().info()

    async def close(self) -> None:
        """End the running fetch or consume and delete the consumer on the server. May be called again."""
        await self._chain.close()

    async def delete(self) -> None:
        """Same as ``close``."""
        await self.close()

    async def pause(self, until: datetime) -> ConsumerPause:
        """Not available for ordered consumers: the next reset would undo it."""
        self._refuse("pause")

    async def resume(self) -> ConsumerPause:
        """Not available for ordered consumers: they can't be paused."""
        self._refuse("resume")

    async def unpin(self, group: str) -> None:
        """Not available for ordered consumers: they have no priority groups."""
        self._refuse("unpin")

    async def reset(self, seq: int | None = None) -> ConsumerInfo:
        """Not available for ordered consumers: create one with ``opt_start_seq`` instead."""
        self._refuse("reset")

    def _refuse(self, operation: str) -> Never:
        raise InvalidArgument(
            "consumer", self.name, f"an ordered consumer has no {operation}(); use create_consumer()"
        )

    def _new_fetch(self, options: FetchOptions) -> Fetch:
        _refuse_group(options)
        return OrderedFetch(self._chain, options, self._stash)

    def _new_sink(self, options: PullOptions, tell: Callable[[JetsparkError], Any]) -> PullSink:
        self._chain.check_free()
        _refuse_group(options)
        return self._js._kinds.ordered_sink(self._chain, options, tell)

    def _new_columnar_sink(
        self, options: PullOptions, tell: Callable[[JetsparkError], Any]
    ) -> OrderedColumnarSink:
        from jetspark.jetstream.consume.ordered_columns import (
            OrderedColumnarSink,  # imported only when columns are used
        )

        self._chain.check_free()
        _refuse_group(options)
        return OrderedColumnarSink(self._chain, options, tell)


def _refuse_group(options: PullOptions | FetchOptions) -> None:
    if options.group is not None:
        raise InvalidArgument("group", options.group, "an ordered consumer has no priority groups")


async def create_ordered(js: Home, stream: str, config: OrderedConsumerConfig) -> OrderedConsumer:
    """Create the chain and its first consumer, so that mistakes show immediately."""
    chain = OrderedChain(js, stream, config)
    await chain.open()
    return OrderedConsumer(js, chain)
