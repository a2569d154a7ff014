"""A handle on a consumer (ADR-37 'Consumers')."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from jetspark._checks import is_whole
from jetspark.errors import InvalidArgument, RequestTimeout
from jetspark.jetstream.consume.consume import (
    Consume,
    ConsumeBatches,
    ConsumeCallback,
    ErrorListener,
    Handler,
)
from jetspark.jetstream.consume.errors import PushConsumerError
from jetspark.jetstream.consume.fetch import Fetch
from jetspark.jetstream.consume.pull import PullSink, PullTarget, Stash
from jetspark.jetstream.flow.options import FetchOptions, PullOptions
from jetspark.jetstream.home import Home
from jetspark.jetstream.models.consumer_config import AckPolicy, PriorityPolicy
from jetspark.jetstream.models.consumer_info import ConsumerInfo, ConsumerPause
from jetspark.jetstream.models.validation import check_name
from jetspark.jetstream.subscribe.push import PushOptions, PushSink, PushTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from jetspark.arrow import ConsumeArrow
    from jetspark.jetstream.consume.columnar import ColumnarSink
    from jetspark.jetstream.consume.flow_sink import FlowSink
    from jetspark.jetstream.message import Message
    from jetspark.jetstream.models.consumer_config import ConsumerConfig


class Consumer:
    """A consumer of a stream. Returned by ``stream.get_consumer`` and similar calls; holds no
    subscription."""

    def __init__(self, js: Home, info: ConsumerInfo) -> None:
        self._js = js
        self._info = info
        config = info.config
        self._target = PullTarget(
            js._core,
            js._api.subject(f"CONSUMER.MSG.NEXT.{info.stream_name}.{info.name}"),
            acks=config.ack_policy != AckPolicy.NONE,
            api_timeout=js._api.timeout,
            pinned=config.priority_policy == PriorityPolicy.PINNED_CLIENT,
            max_waiting=config.max_waiting,
            message=js._kinds.message,
        )
        self._stash = Stash(self._target, config.ack_wait, config.max_deliver)

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._info.name

    @property
    def stream_name(self) -> str:
        """The stream it belongs to."""
        return self._info.stream_name

    @property
    def cached_info(self) -> ConsumerInfo:
        """The info of the last reply, without asking the server."""
        return self._info

    @property
    def config(self) -> ConsumerConfig:
        """The config of the cached info."""
        return self._info.config

    def __repr__(self) -> str:
        return f"Consumer({self.stream_name!r}, {self.name!r})"

    async def info(self) -> ConsumerInfo:
        """Ask the server for the current info. Raises :class:`ConsumerNotFound` when it no longer exists."""
        self._info = await self._js._consumer_info(self.stream_name, self.name)
        return self._info

    async def delete(self) -> None:
        """Delete the consumer on the server."""
        await self._js.delete_consumer(self.stream_name, self.name)

    async def pause(self, until: datetime) -> ConsumerPause:
        """Stop delivery until a point in time (2.11). Messages in flight can still be acked."""
        return await self._js.pause_consumer(self.stream_name, self.name, until)

    async def resume(self) -> ConsumerPause:
        """End a pause now (2.11)."""
        return await self._js.resume_consumer(self.stream_name, self.name)

    async def unpin(self, group: str) -> None:
        """Remove the pin from the pinned client of a priority group (2.11); the server pins the next one."""
        check_name("group", group)
        await self._js._api.request(f"CONSUMER.UNPIN.{self.stream_name}.{self.name}", {"group": group})

    async def reset(self, seq: int | None = None) -> ConsumerInfo:
        """Move the consumer to a stream sequence, forward or back (2.14).

        Outstanding deliveries and acks are forgotten; the next message is the first one at or after ``seq``.
        None goes back to the ack floor: everything that is not acked is delivered again.
        """
        body: dict[str, Any] = {}
        if seq is not None:
            if not is_whole(seq, 1, (1 << 64) - 1):
                raise InvalidArgument("seq", seq, "must be a stream sequence, 1 or more, or None")
            body["seq"] = seq
        try:
            response = await self._js._api.request(f"CONSUMER.RESET.{self.stream_name}.{self.name}", body)
        except RequestTimeout:
            # The server does not reply about a consumer that does not exist; the info request does.
            await self.info()
            raise
        self._info = ConsumerInfo.from_wire(response)
        return self._info

    # Pull (ADR-37 'Operations')

    def fetch(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        expires: float | None = None,
        no_wait: bool = False,
        idle_heartbeat: float | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int = 0,
    ) -> Fetch:
        """Get some messages: ``await`` it for the batch, or ``async for`` over them as they come.

        It ends when ``max_messages`` or ``max_bytes`` is reached (at least one is required), or after
        ``expires`` seconds (30) with what has arrived by then. An empty batch means that the server said it
        has nothing. Without that confirmation the fetch raises: :class:`NotConnected` when no server is
        connected, :class:`PullUnanswered` when the server does not reply, both 1 to 5 s after ``expires``;
        :class:`NoConsumerResponders` when the consumer has no leader or does not exist;
        :class:`NextMessageTooLarge` when the next message exceeds ``max_bytes``. When messages came before
        it, the error is in ``batch.error`` instead. A connection that breaks and comes back in time is not an
        error: the fetch requests the rest again.

        ``no_wait``: only what is available now; with ``expires`` it waits that long for a first message.
        ``idle_heartbeat``: seconds of silence after which the server must send a heartbeat (default: on when
        ``expires`` is above 30; at most half of it). ``group``, ``min_pending``, ``min_ack_pending``,
        ``priority``: priority groups (2.11, 2.12). The consumer's ``max_batch``, ``max_expires`` and
        ``max_bytes`` limit a request.
        """
        self._check_pull()
        options = FetchOptions(
            max_messages=max_messages,
            max_bytes=max_bytes,
            expires=expires,
            no_wait=no_wait,
            idle_heartbeat=idle_heartbeat,
            group=group,
            min_pending=min_pending,
            min_ack_pending=min_ack_pending,
            priority=priority,
        )
        return self._new_fetch(options)

    def fetch_bytes(
        self, max_bytes: int, *, expires: float | None = None, idle_heartbeat: float | None = None
    ) -> Fetch:
        """Get messages of at most ``max_bytes`` bytes in total, as the server counts them; see ``fetch``."""
        return self.fetch(max_bytes=max_bytes, expires=expires, idle_heartbeat=idle_heartbeat)

    def fetch_no_wait(self, max_messages: int) -> Fetch:
        """Get at most ``max_messages`` of the messages that are available now; see ``fetch``."""
        return self.fetch(max_messages, no_wait=True)

    async def next(
        self,
        expires: float | None = None,
        *,
        idle_heartbeat: float | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int = 0,
    ) -> Message | None:
        """Get one message, or None when the server has none within ``expires`` seconds (30).

        The request is sent now and ends with the call. Other reasons that end the request are raised:
        consumer deleted, missed heartbeats, a limit of the consumer; and, 1 to 5 s after ``expires``,
        :class:`NotConnected` or :class:`PullUnanswered` when no server replied.

        Cancelling it loses no message: the next call on this handle returns it. There is one exception: with
        ack policy none or max_deliver=1 the server sends nothing twice, so a message that it sends at the
        very moment it processes the withdrawal of the request is lost.
        """
        batch = await self.fetch(
            1,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            group=group,
            min_pending=min_pending,
            min_ack_pending=min_ack_pending,
            priority=priority,
        )
        return batch[0] if batch else None

    def consume(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        max_bytes_per_request: int | None = None,
        expires: float = 30.0,
        idle_heartbeat: float | None = None,
        stop_after: int | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int = 0,
        on_error: ErrorListener | None = None,
    ) -> Consume:
        """Receive messages continuously, one by one, with a buffer that refills itself while you work::

            async with consumer.consume() as messages:
                async for message in messages:
                    await message.ack()

        ``max_messages``: size of the buffer (500), not a limit on what is received. ``max_bytes``: its size
        in bytes instead; use one of the two. ``threshold_messages``, ``threshold_bytes``: refill when this
        much or less is left (half). ``max_bytes_per_request``: with ``max_messages``, the most bytes that one
        request may return. ``expires``: seconds a single request lives on the server (30, at least 1).
        ``idle_heartbeat``: seconds of silence after which the server sends a heartbeat (half of ``expires``,
        0.5 to 30); silence for twice as long causes a warning and a new request. ``stop_after``: end after
        this many messages. ``group``, ``min_pending``, ``min_ack_pending``, ``priority``: priority groups
        (2.11, 2.12). ``on_error``: called with warnings, and with the error that ends it. The consumer's
        ``max_batch``, ``max_expires`` and ``max_bytes`` limit each request.

        A push consumer sends on its own, so only ``stop_after`` and ``on_error`` apply to it, and other
        options are refused. Without a deliver group it allows one reader only; a second raises
        :class:`ConsumerInUse`.

        It survives reconnects, leader changes and server restarts by itself. ``consume_batches`` yields
        lists, ``consume_with`` calls a function, ``consume_arrow`` yields record batches.
        """
        options = PullOptions(
            max_messages=max_messages,
            max_bytes=max_bytes,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            max_bytes_per_request=max_bytes_per_request,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            stop_after=stop_after,
            group=group,
            min_pending=min_pending,
            min_ack_pending=min_ack_pending,
            priority=priority,
        )
        return Consume(self._sink_maker(options), on_error)

    def consume_batches(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        max_bytes_per_request: int | None = None,
        expires: float = 30.0,
        idle_heartbeat: float | None = None,
        stop_after: int | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int = 0,
        on_error: ErrorListener | None = None,
    ) -> ConsumeBatches:
        """Receive messages continuously, in lists as they arrive: for code that processes many at a time.

        The options are those of ``consume``; a list has at most as many messages as the buffer.
        """
        options = PullOptions(
            max_messages=max_messages,
            max_bytes=max_bytes,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            max_bytes_per_request=max_bytes_per_request,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            stop_after=stop_after,
            group=group,
            min_pending=min_pending,
            min_ack_pending=min_ack_pending,
            priority=priority,
        )
        return ConsumeBatches(self._sink_maker(options), on_error)

    def consume_with(
        self,
        callback: Handler,
        *,
        concurrency: int = 1,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        max_bytes_per_request: int | None = None,
        expires: float = 30.0,
        idle_heartbeat: float | None = None,
        stop_after: int | None = None,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int = 0,
        on_error: ErrorListener | None = None,
    ) -> ConsumeCallback:
        """Receive messages continuously and call a function with each of them::

            async with consumer.consume_with(handle, concurrency=10) as running:
                await running.wait()

        ``callback``: a function, async or not, called with each message. ``concurrency``: how many calls may
        run at a time (1, which keeps the order). Exceptions of the callback are reported with their
        traceback, on stderr unless logging is set up, and passed to ``on_error`` as :class:`HandlerFailed`;
        the message stays un-acked. The other options are those of ``consume``.
        """
        options = PullOptions(
            max_messages=max_messages,
            max_bytes=max_bytes,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            max_bytes_per_request=max_bytes_per_request,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            stop_after=stop_after,
            group=group,
            min_pending=min_pending,
            min_ack_pending=min_ack_pending,
            priority=priority,
        )
        observer = self._js._core.observer
        if callable(callback) and observer is not None:
            callback = observer.handling(callback)
        return ConsumeCallback(self._sink_maker(options), on_error, callback, concurrency)

    def consume_arrow(
        self,
        *,
        columns: Sequence[str] | None = None,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        expires: float = 30.0,
        idle_heartbeat: float | None = None,
        stop_after: int | None = None,
        views: bool = False,
        on_error: ErrorListener | None = None,
    ) -> ConsumeArrow:
        """Receive messages continuously as Arrow record batches, without a Python object per message; see
        :func:`jetspark.arrow.consume_arrow`. Needs ack policy none and the extra ``arrow``.
        """
        from jetspark.arrow import consume_arrow  # imported here: it needs pyarrow, and imports this class

        return consume_arrow(
            self,
            columns=columns,
            max_messages=max_messages,
            max_bytes=max_bytes,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            stop_after=stop_after,
            views=views,
            on_error=on_error,
        )

    def _sink_maker(self, options: PullOptions) -> Callable[[ErrorListener], FlowSink]:
        if self._info.config.is_push:
            _refuse_pull_options(options)
            return partial(self._new_push_sink, PushOptions(stop_after=options.stop_after))
        return partial(self._new_pull_sink, options)

    def _new_fetch(self, options: FetchOptions) -> Fetch:
        return Fetch(self._target, options, self._stash)

    def _new_pull_sink(self, options: PullOptions, tell: ErrorListener) -> PullSink:
        sink = self._new_sink(options, tell)
        # A cancelled fetch of this handle may have left messages. All of them come first: they are
        # already in memory, and nothing is pulled until there is room again.
        sink.preload(self._stash.take(options.stop_after))
        return sink

    def _new_push_sink(self, options: PushOptions, tell: ErrorListener) -> PushSink:
        kinds = self._js._kinds
        target = PushTarget(
            self._js._core,
            self._info.config,
            api_timeout=self._target.api_timeout,
            message=kinds.message,
        )
        sink = kinds.push_sink(target, options, tell)
        sink.look_up = self.info
        sink.names = (self.stream_name, self.name)
        return sink

    def _new_sink(self, options: PullOptions, tell: ErrorListener) -> PullSink:
        return self._js._kinds.pull_sink(self._target, options, tell)

    def _new_columnar_sink(self, options: PullOptions, tell: ErrorListener) -> ColumnarSink:
        from jetspark.jetstream.consume.columnar import ColumnarSink  # imported only when columns are used

        sink = ColumnarSink(self._target, options, tell)
        sink.look_up = self.info
        return sink

    def _check_pull(self) -> None:
        if self._info.config.is_push:
            raise PushConsumerError(409, "Consumer is push based")


class ConsumerHome(Home, Protocol):
    """A context, as seen by code that creates consumers."""

    async def get_consumer(self, stream: str, consumer: str) -> Consumer: ...

    async def create_consumer(
        self, stream: str, config: ConsumerConfig, *, pedantic: bool = False
    ) -> Consumer: ...


def _refuse_pull_options(options: PullOptions) -> None:
    default = PullOptions()
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name != "stop_after" and value != getattr(default, field.name):
            raise InvalidArgument(
                field.name, value, "is for pull consumers; what a push consumer sends is up to its config"
            )
