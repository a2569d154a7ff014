"""Ordered push consumers: each message once and in order, pushed, without acks, whatever happens.

:class:`~jetspark.jetstream.flow.ordered.OrderedFlow` decides when the consumer must be replaced, and
:class:`~jetspark.jetstream.consume.ordered_chain.OrderedChain` creates and deletes consumers, as for ordered
pull consumers. This module has the sink that they push to. Each consumer has its own inbox, subscribed before
the consumer is created. The server pushes as soon as the consumer exists, often before the reply to its
creation is read: messages that arrive that early are held until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from jetspark.errors import InvalidArgument
from jetspark.jetstream.consume.errors import MissedHeartbeat
from jetspark.jetstream.consume.ordered_chain import LOST, OrderedChain
from jetspark.jetstream.consume.ordered_config import OrderedConsumerConfig
from jetspark.jetstream.flow.ack_reply import NotJetStreamMessage, sequences
from jetspark.jetstream.flow.actions import Warn
from jetspark.jetstream.flow.ordered import OrderedFlow, OrderedState, Verdict
from jetspark.jetstream.flow.statuses import Kind, Status
from jetspark.jetstream.models.consumer_config import AckPolicy, ConsumerConfig
from jetspark.jetstream.subscribe.checks import Wish, check_ordered, filters_of
from jetspark.jetstream.subscribe.push import PushOptions, PushSink, PushTarget, ends_of
from jetspark.jetstream.subscribe.subscribe import PushSubscription, find_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetspark.errors import JetsparkError
    from jetspark.jetstream.flow.actions import Actions, CreateConsumer
    from jetspark.jetstream.home import Home

#: Seconds. Ordered consumers always have heartbeats, because they reveal lost messages.
DEFAULT_HEARTBEAT = 5.0
# The consumer is deleted when done; this is for clients that disappear.
_INACTIVE_THRESHOLD = 30.0


class OrderedPushSink(PushSink):
    """The messages that the chain's current consumer pushes, in order."""

    def __init__(
        self,
        chain: OrderedPushChain,
        options: PushOptions,
        on_warning: Callable[[JetsparkError], Any] | None = None,
    ) -> None:
        super().__init__(chain.push_target, options, on_warning)
        self._chain = chain
        self._ordered = chain.flow
        self._held: list[tuple[list[Any], int]] = []
        self.serial = 0

    @property
    def label(self) -> str:
        return self._chain.label

    # What the chain calls

    @property
    def wants_more(self) -> bool:
        return not self.done and self._draining is None

    def pause(self) -> None:
        """The consumer is in doubt: no alarm, no replies."""
        if not self.done:
            self._perform(self.flow.on_disconnect(self._now()))
            self._arm()

    def renew(self) -> None:
        """Use a new inbox for the next consumer; messages that still arrive for the old one are dropped."""
        self._held.clear()
        self.core.router.remove(self)
        self.subject = self.core.new_inbox()
        self.core.router.add(self)

    def resume(self) -> None:
        """The next consumer exists."""
        self.serial = self._ordered.serial
        if self.done:
            return
        self._perform(self.flow.on_new_consumer(self._now()))
        held, self._held = self._held, []
        for items, nbytes in held:
            if self.serial != self._ordered.serial or self._ordered.state is not OrderedState.ACTIVE:
                break  # a gap among them: the rest belongs to an abandoned consumer
            super().deliver(items, nbytes)
        self._arm()

    # What the connection calls

    def deliver(self, items: list[Any], nbytes: int) -> None:
        state = self._ordered.state
        if state is OrderedState.ACTIVE and self.serial == self._ordered.serial:
            super().deliver(items, nbytes)
        elif state in (OrderedState.CREATING, OrderedState.ACTIVE):
            self._held.append((items, nbytes))

    def link_lost(self, error: JetsparkError) -> None:
        self._chain.perform(self._ordered.on_disconnect(self._now()))
        super().link_lost(error)

    def link_restored(self) -> None:
        self._chain.perform(self._ordered.on_reconnect(self._now()))

    def on_status(self, status: Status) -> None:
        ordered, now = self._ordered, self._now()
        reason = LOST.get(status.kind)
        if reason is not None:
            self._chain.perform(ordered.on_lost(self.serial, reason, now))
            return
        if status.kind is Kind.HEARTBEAT:
            self._chain.perform(ordered.on_heartbeat(self.serial, status.last_consumer_seq, now))
            if ordered.state is not OrderedState.ACTIVE:
                return  # it revealed lost messages
        super().on_status(status)

    # Internals

    def _deliver_messages(self, items: list[Any]) -> None:
        if self.done:
            return
        keep, actions = _in_order(self._ordered, self.serial, items, self._now())
        if keep:
            first, last, _ = ends_of(keep)
            # The order machine has found no gap before or between them.
            self._perform(self.flow.on_messages(len(keep), first, last, 0, self._now()))
            self._accept(keep)
        self._chain.perform(actions)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._now()
        actions = self.flow.on_timer(now)
        self._perform(actions)
        if any(isinstance(a, Warn) and isinstance(a.warning, MissedHeartbeat) for a in actions):
            self._chain.perform(self._ordered.on_missed_heartbeat(self.serial, now))
        self._arm()

    def _finish(self, error: JetsparkError | None, *, discard: bool) -> None:
        if self.done:
            return
        super()._finish(error, discard=discard)
        self._held.clear()
        self._chain.release(self, 0, settled=False)


class OrderedPushChain(OrderedChain):
    """A chain of consumers that push to the sink's inbox."""

    def __init__(self, js: Home, stream: str, config: OrderedConsumerConfig, heartbeat: float) -> None:
        super().__init__(js, stream, config)
        self._heartbeat = heartbeat
        self.push_target = PushTarget(
            self._core,
            ConsumerConfig(
                ack_policy=AckPolicy.NONE,
                deliver_subject=self._core.new_inbox(),
                idle_heartbeat=heartbeat,
                flow_control=True,
            ),
            api_timeout=js._api.timeout,
            first_sequence=1,
            message=js._kinds.message,
        )

    def _consumer_config(self, create: CreateConsumer) -> ConsumerConfig:
        sink = self.sink
        if isinstance(sink, OrderedPushSink) and create.serial == self.flow.serial:
            inbox = sink.subject
        else:
            # Superseded while its creation was waiting: it must not push into the inbox of its successor.
            inbox = self._core.new_inbox()
        config = super()._consumer_config(create)
        return config.replace(
            deliver_subject=inbox, idle_heartbeat=self._heartbeat, flow_control=True, max_deliver=1
        )


async def subscribe_ordered(
    subscription: PushSubscription, stream: str | None, wish: Wish, options: PushOptions
) -> PushSubscription:
    """Create the chain and its first consumer, so that mistakes show immediately."""
    check_ordered(wish)
    js, config = subscription._js, wish.config
    policy, heartbeat = config.deliver_policy, config.idle_heartbeat
    start = config.opt_start_time
    ordered = OrderedConsumerConfig(
        filter_subjects=filters_of(config) or None,
        deliver_policy=policy,
        opt_start_seq=config.opt_start_seq,
        opt_start_time=None if start is None else start.to_datetime(),
        replay_policy=config.replay_policy,
        inactive_threshold=_INACTIVE_THRESHOLD,
        headers_only=bool(config.headers_only),
        metadata=config.metadata,
    )
    seconds = heartbeat.ns / 1e9 if heartbeat else DEFAULT_HEARTBEAT
    if seconds < 0.1:
        raise InvalidArgument("idle_heartbeat", seconds, "must be at least 0.1 s")
    stream = await find_stream(js, stream, wish.subject)
    chain = OrderedPushChain(js, stream, ordered, seconds)
    sink = cast("OrderedPushSink", js._kinds.ordered_push_sink(chain, options, subscription._tell))
    chain.begin(sink)
    try:
        sink.start()
        await chain.open()
    except BaseException:
        await chain.close()
        raise
    assert chain.info is not None
    subscription._chain = chain
    subscription._adopt(sink, chain.info, owned=True)
    return subscription


def _in_order(flow: OrderedFlow, serial: int, items: list[Any], now: float) -> tuple[list[Any], Actions]:
    """The messages that are next in order, and the machine's actions for the rest."""
    try:
        first, last, stream_seq = ends_of(items)
        verdict = flow.on_batch(first, last, stream_seq, len(items), serial, now)
    except NotJetStreamMessage:
        verdict = Verdict.INSPECT
    if verdict is Verdict.DELIVER:
        return items, ()
    if verdict is Verdict.DROP:
        return [], ()
    ours: list[Any] = []
    keys: list[tuple[int, int, int]] = []
    for item in items:
        try:
            keys.append((serial, *sequences(item.reply)))
        except NotJetStreamMessage:
            continue  # another client published to our inbox
        ours.append(item)
    keep, actions = flow.on_each(keys, now)
    return [ours[index] for index in keep], actions
