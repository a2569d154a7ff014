"""The consumers behind an ordered consumer: how they are created, read and replaced.

:class:`OrderedFlow` decides when the consumer on the server must be replaced and where the next one starts.
This module drives it: :class:`OrderedChain` creates and deletes the consumers, and :class:`OrderedSink` is
the pull that reads from the current one.

To the pull machine a reset looks like a lost connection: its requests are void, the buffer stays, and
"reconnected" means that the next consumer exists. Each consumer has its own inbox, so a message of an old
consumer can't reach the order check.

A received chunk is checked by its first and last message alone. Only when these do not match the expected
sequences is each message inspected.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from jetspark._log import fields, get_logger
from jetspark.connection.nuid import next_nuid
from jetspark.errors import ConnectionLost, JetsparkError, RequestTimeout
from jetspark.jetstream.consume.errors import ConsumeError, MissedHeartbeat, PullUnanswered
from jetspark.jetstream.consume.ordered_config import consumer_config
from jetspark.jetstream.consume.pull import PullSink, PullTarget
from jetspark.jetstream.errors import ConsumerExists, StreamNotFound
from jetspark.jetstream.flow.ack_reply import NotJetStreamMessage, sequences
from jetspark.jetstream.flow.actions import Action, Conclude, CreateConsumer, DeleteConsumer, Warn
from jetspark.jetstream.flow.options import FetchOptions, PullOptions
from jetspark.jetstream.flow.ordered import OrderedFlow, OrderedState, Verdict
from jetspark.jetstream.flow.pull import State
from jetspark.jetstream.flow.statuses import Ends, Kind, Status
from jetspark.jetstream.models.validation import check_name
from jetspark.jetstream.models.values import Timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from jetspark.jetstream.consume.flow_sink import ChainedSink
    from jetspark.jetstream.consume.ordered_config import OrderedConsumerConfig
    from jetspark.jetstream.home import Home
    from jetspark.jetstream.models.consumer_config import ConsumerConfig
    from jetspark.jetstream.models.consumer_info import ConsumerInfo

logger = get_logger("jetstream")

# Statuses that mean the consumer is gone: it lives in the memory of one server.
LOST = {
    Kind.CONSUMER_DELETED: "consumer deleted",
    Kind.NO_RESPONDERS: "no responders",
    Kind.SERVER_SHUTDOWN: "server shutdown",
    Kind.LEADERSHIP_CHANGE: "leadership change",
}


class OrderedConsumerBusy(ConsumeError):
    """Two fetches or consumes used one ordered consumer at once, which would break its order. Create a second
    one."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"ordered consumer {name!r} is in use by another fetch or consume; "
            "end that first, or create a second ordered consumer"
        )
        self.name = name


class OrderedConsumerClosed(ConsumeError):
    """The ordered consumer was closed. Create a new one, with ``opt_start_seq`` to continue at its
    position."""

    def __init__(self, name: str, last_sequence: int) -> None:
        super().__init__(
            f"ordered consumer {name!r} is closed; create a new one"
            + (f" with opt_start_seq={last_sequence + 1}" if last_sequence else "")
        )
        self.name = name
        self.last_sequence = last_sequence


class OrderedSink(PullSink):
    """A pull from the chain's current consumer."""

    def __init__(
        self,
        chain: OrderedChain,
        options: PullOptions | FetchOptions,
        on_warning: Callable[[JetsparkError], Any] | None = None,
    ) -> None:
        super().__init__(chain.target, options, on_warning)
        self._chain = chain
        self._ordered = chain.flow
        self._is_fetch = isinstance(options, FetchOptions)
        # Whether the sink, if it ended now, would leave no request open on the server.
        self._settled = False
        self.serial = 0

    @property
    def label(self) -> str:
        return self._chain.label

    @property
    def wants_more(self) -> bool:
        """Whether creating a next consumer is worthwhile."""
        return self.flow.state is State.RUNNING

    # Life

    def start(self) -> None:
        self.core.check_open()
        chain = self._chain
        chain.begin(self)
        self.core.router.add(self)
        now = self._now()
        self.serial = self._ordered.serial
        self.asked = self.target.next_subject
        if not chain.ready:
            self.flow.on_disconnect(now)
        self._perform(self.flow.start(now))
        self._arm()
        chain.ensure()

    def preload(self, items: list[Any]) -> None:
        """Messages of an earlier fetch, which have passed the order check."""
        if items:
            super()._deliver_messages(items)

    def pause(self) -> None:
        """The consumer is in doubt: its requests are void, and nothing is sent."""
        if not self.done:
            self._perform(self.flow.on_disconnect(self._now()))
            self._arm()

    def renew(self) -> None:
        """Use a new inbox for the next consumer; messages that still arrive for the old one are dropped."""
        self.core.router.remove(self)
        self.subject = self.core.new_inbox()
        self.core.router.add(self)

    def resume(self) -> None:
        """The next consumer exists: pull from it."""
        self.serial = self._ordered.serial
        self.asked = self.target.next_subject
        if not self.done and self.core.is_connected:
            self._perform(self.flow.on_reconnect(self._now()))
            self._arm()

    # What the connection calls

    def link_lost(self, error: JetsparkError) -> None:
        self._chain.perform(self._ordered.on_disconnect(self._now()))
        super().link_lost(error)

    def link_restored(self) -> None:
        self._chain.perform(self._ordered.on_reconnect(self._now()))

    def on_status(self, status: Status) -> None:
        ordered, now = self._ordered, self._now()
        reason = LOST.get(status.kind)
        if reason is not None and self.flow.state is State.RUNNING:
            self._chain.perform(ordered.on_lost(self.serial, reason, now))
            return
        if status.kind is Kind.HEARTBEAT:
            self._chain.perform(ordered.on_heartbeat(self.serial, status.last_consumer_seq, now))
        elif status.traits.ends is Ends.ONE:
            ordered.on_heartbeat(self.serial, None, now)  # any reply is also a sign of life
        self._settled = self._is_fetch
        super().on_status(status)
        self._settled = False

    # Internals

    def _deliver_messages(self, items: list[Any]) -> None:
        if self.done:
            return
        try:
            first, _ = sequences(items[0].reply)
            last, stream_seq = sequences(items[-1].reply)
        except NotJetStreamMessage:
            self._inspect(items)
            return
        verdict = self._ordered.on_batch(first, last, stream_seq, len(items), self.serial, 0.0)
        if verdict is Verdict.DELIVER:
            self._accept(items)
        elif verdict is Verdict.INSPECT:
            self._inspect(items)

    def _accept(self, items: list[Any]) -> None:
        self._settled = self._is_fetch
        super()._deliver_messages(items)
        self._settled = False

    def _inspect(self, items: list[Any]) -> None:
        """The ends of the chunk do not match: inspect each message."""
        ours: list[Any] = []
        keys: list[tuple[int, int, int]] = []
        for item in items:
            try:
                consumer_seq, stream_seq = sequences(item.reply)
            except NotJetStreamMessage:
                continue  # another client published to our inbox
            ours.append(item)
            keys.append((self.serial, consumer_seq, stream_seq))
        keep, actions = self._ordered.on_each(keys, self._now())
        if keep:
            self._accept([ours[index] for index in keep])
        self._chain.perform(actions)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._now()
        actions = self.flow.on_timer(now)
        missed = [a for a in actions if isinstance(a, Warn) and isinstance(a.warning, MissedHeartbeat)]
        if missed:
            # Skip the pulls that come with it: they would go to the abandoned consumer.
            self._perform(missed)
            self._chain.perform(self._ordered.on_missed_heartbeat(self.serial, now))
        else:
            self._perform(actions)
        self._arm()

    def _explained(self, error: JetsparkError | None) -> JetsparkError | None:
        explained = super()._explained(error)
        trouble = self._chain.trouble
        if explained is error and isinstance(error, PullUnanswered) and trouble is not None:
            reason = f"its consumer could not be made: {trouble}"
            return PullUnanswered(error.waited, error.expires, reason)
        return explained

    def _finish(self, error: JetsparkError | None, *, discard: bool) -> None:
        if self.done:
            return
        resume_at = self._unread_at() if discard else 0
        super()._finish(error, discard=discard)
        self._chain.release(self, resume_at, settled=self._settled)

    def _unread_at(self) -> int:
        """Stream sequence of the first message in the buffer; 0 when it is empty."""
        unread = self._first_unread()
        return 0 if unread is None else sequences(unread.reply)[1]

    def _first_unread(self) -> Any:
        """The first message in the buffer, or None."""
        return self.buffer[0] if self.buffer else None


class OrderedChain:
    """Creates and deletes consumers as the machine decides; at most one sink reads from the current one."""

    def __init__(self, js: Home, stream: str, config: OrderedConsumerConfig) -> None:
        check_name("stream", stream)
        start = config.opt_start_time
        self._js = js
        self._core = js._core
        self._stream = stream
        self._config = config
        self.flow = OrderedFlow(
            config.name_prefix or next_nuid(),
            deliver_policy=config.policy,
            opt_start_seq=config.opt_start_seq,
            opt_start_time=None if start is None else Timestamp.from_datetime(start).to_rfc3339(),
            max_reset_attempts=config.max_reset_attempts,
        )
        # Creating a consumer that exists with exactly the same config succeeds, so two clients with the same
        # prefix would share it. The mark makes the configs differ, and the server reports the name as taken.
        self._mark = f"ordered consumer {next_nuid()}" if config.name_prefix else None
        self.target = PullTarget(
            self._core, "", acks=False, api_timeout=js._api.timeout, message=js._kinds.message
        )
        self.info: ConsumerInfo | None = None
        self.sink: ChainedSink | None = None
        self.error: JetsparkError | None = None
        # Why the latest consumer could not be created; None when it was.
        self.trouble: JetsparkError | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def label(self) -> str:
        """Its name in the log and in errors. Consumers are replaced, so their names would say little."""
        return f"an ordered consumer of stream {self._stream!r}"

    @property
    def ready(self) -> bool:
        """Whether there is a consumer to pull from."""
        return self.flow.state is OrderedState.ACTIVE and self._core.is_connected

    # What readers call

    def check_free(self) -> None:
        """Raise when it is in use, has failed or was closed."""
        if self.error is not None:
            raise self.error
        stash = self.target.stash
        if self.sink is not None or (stash is not None and stash.in_use):
            raise OrderedConsumerBusy(self.flow.name)

    def begin(self, sink: ChainedSink) -> None:
        """The sink starts reading."""
        if self.sink is not None:
            raise OrderedConsumerBusy(self.flow.name)
        self.sink = sink

    def ensure(self) -> None:
        """Create a consumer for the sink unless there is one. Connection events were not tracked while idle,
        so the current state is reported first."""
        now, flow = self._now(), self.flow
        self.perform(flow.on_reconnect(now) if self._core.is_connected else flow.on_disconnect(now))
        if flow.state is OrderedState.NEW:
            self.perform(flow.start(now))

    def release(self, sink: ChainedSink, unread: int, *, settled: bool) -> None:
        """The sink has ended. Unless a server reply ended it, the consumer must be deleted, because
        messages may be on their way that no sink receives."""
        if self.sink is not sink:
            return
        self.sink = None
        if unread or not settled or self.flow.state is not OrderedState.ACTIVE:
            self.perform(self.flow.suspend(self._now(), unread))

    async def open(self) -> None:
        """Create a consumer ahead of the first reader, unless there is one. Raises the error when that
        fails."""
        while self.flow.state is OrderedState.CREATING and self._tasks:
            await asyncio.wait(self._tasks)
        if self.flow.state is OrderedState.NEW:
            now = self._now()
            self.flow.on_reconnect(now)
            (create,) = self.flow.start(now)
            assert isinstance(create, CreateConsumer)
            error = await self._create(create)
            if error is not None:
                raise error

    async def close(self) -> None:
        """End for good and delete the consumer."""
        if self.error is None:
            self.error = OrderedConsumerClosed(self.flow.name, self.flow.last_stream_seq)
        if self.sink is not None:
            self.sink.stop()
        self.perform(self.flow.stop(self._now()))
        if self._tasks:
            await asyncio.wait(self._tasks)

    # The machine's actions

    def perform(self, actions: Iterable[Action]) -> None:
        """Perform the machine's actions, then update the sink and the timer."""
        for action in actions:
            sink = self.sink
            if isinstance(action, CreateConsumer):
                if sink is None or not sink.wants_more:
                    # No reader wants more; the next reader will have it created.
                    self.flow.suspend(self._now())
                else:
                    sink.pause()
                    sink.renew()
                    self._spawn(self._create(action))
            elif isinstance(action, DeleteConsumer):
                self._delete_later(action.name)
            elif isinstance(action, Warn):
                if sink is not None:
                    sink._warn(action.warning)
            elif isinstance(action, Conclude):
                self.error = self.error or action.error
                if sink is not None:
                    sink._finish(action.error, discard=False)
        if self.sink is not None and self.flow.state is not OrderedState.ACTIVE:
            self.sink.pause()
        self._arm()

    async def _create(self, create: CreateConsumer) -> JetsparkError | None:
        flow = self.flow
        while True:
            try:
                config = self._consumer_config(create)
                consumer = await self._js._put_consumer(self._stream, config, "create", False)
                break
            except ConsumerExists:
                actions = flow.on_name_taken(create.serial, self._now())
                if not actions or not isinstance(actions[0], CreateConsumer):
                    return None
                create = actions[0]
            except JetsparkError as error:
                if isinstance(error, RequestTimeout):
                    self._delete_later(create.name)  # it may exist anyway
                if isinstance(error, ConnectionLost) and self.sink is not None and not self.ready:
                    return error  # not a failed attempt: the reconnect starts the next one
                self.trouble = error
                gone = isinstance(error, StreamNotFound)
                self.perform(flow.on_create_failed(create.serial, error, self._now(), permanent=gone))
                return error
            except asyncio.CancelledError:
                self._delete_later(create.name)
                raise
        self.trouble = None
        info = consumer.cached_info
        current = create.serial == flow.serial and flow.state is OrderedState.CREATING
        self.perform(flow.on_created(create.serial, self._now(), info.delivered.stream_seq + 1))
        if current:
            self.info = info
            self.target.next_subject = consumer._target.next_subject
            if self.sink is not None:
                self.sink.resume()
        return None

    def _consumer_config(self, create: CreateConsumer) -> ConsumerConfig:
        return consumer_config(self._config, create, self._mark)

    def _delete_later(self, name: str) -> None:
        if not self._core.is_closed:
            self._spawn(self._delete(name))

    async def _delete(self, name: str) -> None:
        try:
            await self._js.delete_consumer(self._stream, name)
        except JetsparkError as error:
            logger.debug(
                "ordered consumer %s not deleted, its inactive_threshold will: %s",
                name,
                error,
                extra=fields(stream=self._stream, consumer=name, error=error),
            )

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = self._core.loop.create_task(work, name="jetspark-ordered")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.flow.next_deadline()
        if due is not None and self.sink is not None:
            self._timer = self._core.loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.perform(self.flow.on_timer(self._now()))

    def _now(self) -> float:
        return self._core.loop.time()
