"""The driver of the push machine: messages of a push consumer, buffered until a reader takes them.

Most of it is in :class:`~jetspark.jetstream.consume.flow_sink.FlowSink`. This module adds what pushing needs.

**Flow control by position** (ADR-15 "Flow Control"). A flow-control request is answered when it would have
been handed to the user had it been a message: at its place in the buffer, when the reader asks for what
follows it. ``mark`` tells readers at which length of the buffer that is, so a message costs no more than its
place in the deque. Without a reader nothing is answered, and the server stops at its window. That
limits the memory.

**Limits** apply only without flow control: above them the newest messages are dropped with a
:class:`~jetspark.connection.events.SlowConsumer` event, as with core subscriptions. With acks the server
delivers them again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jetspark._checks import is_whole
from jetspark._log import fields, get_logger
from jetspark.connection.events import SlowConsumer
from jetspark.connection.subscription_sink import DEFAULT_PENDING_BYTES, DEFAULT_PENDING_MESSAGES
from jetspark.errors import ConnectionClosed, ConnectionLost, InvalidArgument, JetsparkError
from jetspark.jetstream.consume.flow_sink import FlowSink
from jetspark.jetstream.consume.pull import message_size
from jetspark.jetstream.flow.ack_reply import NotJetStreamMessage, sequences
from jetspark.jetstream.flow.actions import NOTHING, Action, Conclude, Raise, SendFlowControl, Warn
from jetspark.jetstream.flow.push import DEFAULT_ALARM_FACTOR, PushFlow
from jetspark.jetstream.flow.statuses import Kind, Status
from jetspark.jetstream.message import Message
from jetspark.jetstream.models.consumer_config import AckPolicy
from jetspark.jetstream.subscribe.checks import PullRequired, check_active

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from jetspark.connection.core import Core
    from jetspark.jetstream.models.consumer_config import ConsumerConfig
    from jetspark.jetstream.models.consumer_info import ConsumerInfo
    from jetspark.wire.parser import Factory

logger = get_logger("jetstream")

ACK_PREFIX = "$JS.ACK."
# No request is waiting: a mark that no buffer length reaches.
_NEVER = -(1 << 62)
_ALL = 1 << 62
# Maximum number of errors kept while there is no reader.
_MAX_TROUBLE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """How to receive from a push consumer; the rest is the consumer's own config."""

    #: The alarm is raised after this many idle-heartbeat intervals of silence; above 1.
    alarm_factor: float = DEFAULT_ALARM_FACTOR
    #: Buffered messages and bytes at which new ones are dropped; 0 means no limit. Not with flow control.
    pending_messages_limit: int = DEFAULT_PENDING_MESSAGES
    pending_bytes_limit: int = DEFAULT_PENDING_BYTES
    #: End after this many messages.
    stop_after: int | None = None
    #: Whether errors from the server wait for the reader (otherwise they are warnings).
    raises: bool = False
    # As in PullOptions: threads report what they have taken in steps of a sixteenth of this.
    max_messages: int | None = None
    buffer_messages: int = 2048

    def __post_init__(self) -> None:
        for name in ("pending_messages_limit", "pending_bytes_limit"):
            value = getattr(self, name)
            if not is_whole(value, 0):
                raise InvalidArgument(name, value, "must be 0 (no limit) or a positive integer")
        if self.stop_after is not None and not is_whole(self.stop_after, 1):
            raise InvalidArgument("stop_after", self.stop_after, "must be a positive integer")


class PushTarget:
    """What a push sink needs to know about its consumer. Also the owner of the messages it receives."""

    def __init__(
        self,
        core: Core,
        config: ConsumerConfig,
        *,
        api_timeout: float,
        first_sequence: int | None = None,
        message: Factory = Message,
    ) -> None:
        self.core = core
        self.outbox = core.outbox
        self.message = message
        self.acks = config.ack_policy != AckPolicy.NONE
        self.api_timeout = api_timeout
        self.subject = config.deliver_subject or ""
        self.queue = config.deliver_group or ""
        # A queue group has no heartbeats; if the consumer's config has them, the checks refuse it.
        self.heartbeat = config.idle_heartbeat.ns / 1e9 if config.idle_heartbeat and not self.queue else 0.0
        self.flow_control = bool(config.flow_control)
        # 1 for a consumer that was created for this subscription; None when it may be at any position.
        self.first_sequence = first_sequence


class PushSink(FlowSink):
    """The subscription to a deliver subject, with its machine and its buffer."""

    flow: PushFlow
    _exact = False

    def __init__(
        self,
        target: PushTarget,
        options: PushOptions,
        on_warning: Callable[[JetsparkError], Any] | None = None,
    ) -> None:
        super().__init__(target.core, target.subject, target.queue, target.message, on_warning)
        self.options = options
        self.mark = _NEVER
        #: Messages dropped because the pending limits were reached.
        self.dropped = 0
        #: (messages received before it, error): errors from the server, to be raised to the reader.
        self.trouble: deque[tuple[int, JetsparkError]] = deque()
        self._completed = 0
        self._left = options.stop_after
        self._answered = ""
        # The connection's write count when the last reply was put into its outbox.
        self._answered_at = -1
        self._dropping = False
        self._runs: deque[tuple[int, int]] = deque()
        self._bytes = 0
        self._run_bytes = 0
        self._draining: asyncio.Task[None] | None = None
        #: Looks the consumer up on the server before subscribing to it.
        self.look_up: Callable[[], Awaitable[ConsumerInfo]] | None = None
        #: (stream, consumer), once known.
        self.names: tuple[str, str] | None = None
        self._aim(target)

    def _aim(self, target: PushTarget) -> None:
        self.owner = self.target = target
        self.subject, self.queue = target.subject, target.queue
        self._bounded = not target.flow_control
        self.flow = PushFlow(
            idle_heartbeat=target.heartbeat,
            alarm_factor=self.options.alarm_factor,
            queue_group=bool(target.queue),
            first_sequence=target.first_sequence,
            connected=self.core.is_connected,
        )

    @property
    def label(self) -> str:
        if self.names is None:
            return super().label
        stream, consumer = self.names
        return f"consumer {consumer!r} of stream {stream!r}"

    # Life

    async def open(self) -> None:
        """Subscribe to the consumer in its current state, unless it already has a subscription (ADR-15)."""
        if self.look_up is not None:
            info = await self.look_up()
            if not info.config.deliver_subject:
                raise PullRequired(info)
            check_active(info, info.config.deliver_group or "")
            timeout, message = self.target.api_timeout, self.target.message
            self._aim(PushTarget(self.core, info.config, api_timeout=timeout, message=message))
        self.start()
        try:
            # Once the flush is confirmed, the server delivers to us or has refused to.
            await self.core.flush()
        except BaseException:
            self.stop()
            raise
        if self.error is not None:
            raise self.error

    def limit_to(self, count: int) -> None:
        """End after ``count`` messages in total since subscribing; messages beyond that are dropped."""
        excess = min(self.received - count, len(self.buffer))
        if excess > 0:
            self._drop_newest(excess)
            self.received -= excess
        self._left = max(0, count - self.received)
        if not self._left:
            self._finish(None, discard=False)

    def _drop_newest(self, count: int) -> None:
        for _ in range(count):
            self.buffer.pop()

    def drain(self) -> None:
        if self._draining is None and not self.done:
            self._draining = self.core.loop.create_task(self._end_gently(), name="jetspark-push-drain")

    async def drained(self) -> None:
        """Drain, and wait until nothing more can arrive."""
        self.drain()
        if self._draining is not None:
            await asyncio.shield(self._draining)

    async def _end_gently(self) -> None:
        core = self.core
        try:
            # Without a link nothing is on its way to us, so there is nothing to wait for.
            if core.link is not None:
                core.router.unsubscribe(self)
                # The PONG comes after every message that the server had sent to us.
                with contextlib.suppress(ConnectionLost, ConnectionClosed):
                    await core.flush()
        except JetsparkError as error:
            logger.debug(
                "drain of %s ended by %s", self.label, error, extra=fields(source=self.label, error=error)
            )
        finally:
            if not self.done:
                core.router.remove(self, tell_server=False)
                self._finish(None, discard=False)
                core.router.drained.add(self)

    # Taking messages

    @property
    def deliverable(self) -> int:
        return _ALL

    def report(self) -> None:
        """A reader has just taken a message, or asks for more and there is none."""
        self._settle(1 if self.buffer else 0)

    def _is_awaited(self) -> bool:
        """Whether a reader is waiting for the next message."""
        return bool(self._waiters)

    def next_trouble(self) -> JetsparkError | None:
        """The error that is due: every message that came before it was taken."""
        if self.trouble and self.received - len(self.buffer) >= self.trouble[0][0]:
            return self.trouble.popleft()[1]
        return None

    def _settle(self, in_hand: int) -> None:
        """Report as processed everything that was taken, except what the user is working on."""
        completed = self.received - len(self.buffer) - in_hand
        count = completed - self._completed
        if count > 0:
            self._completed = completed
            if not self.done:
                self._perform(self.flow.on_processed(count, self._now()))
        self._set_mark()

    def _set_mark(self) -> None:
        position = self.flow.next_answer
        # One message after the request: the reply is due when the reader asks for what follows it.
        self.mark = _NEVER if position is None else self.received - position - 1

    # What the connection calls

    def deliver(self, items: list[Any], nbytes: int) -> None:
        self._run_bytes = nbytes
        super().deliver(items, nbytes)

    def publish_refused(self, subject: str, error: JetsparkError) -> None:
        if subject and subject == self._answered:
            # The server will never learn that there is room again.
            self._perform((Raise(error),))

    # Internals

    def _may_be_status(self, item: Any) -> bool:
        # A flow-control request also has a reply; only an ack reply identifies a message of the stream.
        return not item.data and not item.reply.startswith(ACK_PREFIX)

    def on_status(self, status: Status) -> None:
        if status.kind is Kind.FLOW_CONTROL or (status.kind is Kind.HEARTBEAT and status.stalled):
            # If a reader is waiting, the request would be handed out immediately.
            self._settle(0 if self._is_awaited() else 1)
            super().on_status(status)
            self._set_mark()
        else:
            super().on_status(status)

    def _deliver_messages(self, items: list[Any]) -> None:
        if self.done:
            return
        now, actions = self._now(), NOTHING
        if self.queue:
            actions = self.flow.on_messages(len(items), 0, 0, 0, now)
        else:
            stretch = _whole(items)
            if stretch is not None:
                actions = self.flow.on_messages(*stretch, now)
            else:
                items, keys = self._without_strangers(items)
                if not items:
                    return
                for stretch in _stretches(keys):
                    actions += self.flow.on_messages(*stretch, now)
        self._accept(items)
        if actions:
            self._perform(actions)

    def _accept(self, items: list[Any]) -> None:
        """Put messages that the machine knows about into the buffer, as far as there is room."""
        count = len(items)
        if self._bounded:
            items = self._fit(items)
        if self._left is not None:
            items = items[: self._left]
            self._left -= len(items)
        self.received += len(items)
        if items:
            self._enqueue(items)
        if len(items) < count:
            # Dropped messages count as processed for the machine, because it was told about them.
            self.flow.on_processed(count - len(items), self._now())
        if self._left == 0:
            self._finish(None, discard=False)

    def _without_strangers(self, items: list[Any]) -> tuple[list[Any], list[tuple[int, int]]]:
        """The ends do not match: either messages were lost, or another client publishes to the subject.

        Returns the consumer's messages, and the consumer and stream sequence of each.
        """
        ours, keys = [], []
        for item in items:
            try:
                keys.append(sequences(item.reply))
            except NotJetStreamMessage as error:
                # ADR-15 "JSAck": not a JetStream message; raised as an error.
                self._perform((Raise(error),))
            else:
                ours.append(item)
        return ours, keys

    def _fit(self, items: list[Any]) -> list[Any]:
        limit, bytes_limit = self.options.pending_messages_limit, self.options.pending_bytes_limit
        size = self._run_bytes if bytes_limit else 0
        if (limit and len(self.buffer) + len(items) > limit) or (
            bytes_limit and self._bytes + size > bytes_limit and self._settled_bytes() + size > bytes_limit
        ):
            items, size = self._cut(items, limit, bytes_limit)
        else:
            self._dropping = False
        if bytes_limit and items:
            # The bytes of a chunk are counted once, with its first run.
            self._run_bytes = 0
            self._bytes += size
            self._runs.append((self.received + len(items), size))
            if len(self._runs) > 64:
                self._settled_bytes()
        return items

    def _cut(self, items: list[Any], limit: int, bytes_limit: int) -> tuple[list[Any], int]:
        room = max(0, limit - len(self.buffer)) if limit else len(items)
        space = bytes_limit - self._bytes if bytes_limit else _ALL
        kept = used = 0
        for item in items[:room]:
            size = message_size(item)
            if used + size > space:
                break
            used += size
            kept += 1
        lost = len(items) - kept
        self.dropped += lost
        starts, self._dropping = lost > 0 and not self._dropping, lost > 0
        if starts:
            self.core.emit(
                SlowConsumer(
                    self.subject, self.sid, self.dropped, len(self.buffer) + kept, self._bytes + used
                )
            )
        return items[:kept], used

    def _settled_bytes(self) -> int:
        """Bytes of the buffered messages, in whole chunks."""
        taken, runs = self.received - len(self.buffer), self._runs
        while runs and runs[0][0] <= taken:
            self._bytes -= runs.popleft()[1]
        return self._bytes

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, SendFlowControl):
                self._answer(action.subject)
            elif isinstance(action, Warn):
                self._warn(action.warning)
            elif isinstance(action, Raise):
                self._raise(action.error)
            elif isinstance(action, Conclude):
                self._finish(action.error, discard=action.discard)

    def _answer(self, subject: str) -> None:
        core = self.core
        if core.outbox.is_behind and core.outbox.writes == self._answered_at:
            # A reply is already waiting in the outbox, and a correct server sends one request at a time. A
            # server that sends requests and never reads must not make us accumulate replies. A heartbeat that
            # says "stalled" requests the reply again.
            return
        try:
            core.outbox.publish(subject)
        except JetsparkError as error:
            self._raise(error)
        else:
            self._answered = subject
            self._answered_at = core.outbox.writes
            self.flow.on_answered(subject)

    def _raise(self, error: JetsparkError) -> None:
        if self.options.raises:
            if len(self.trouble) >= _MAX_TROUBLE:
                return  # there is no reader; the errors already queued are enough
            self.trouble.append((self.received, error))
            self._wake()
        else:
            self._warn(error)


def ends_of(items: list[Any]) -> tuple[int, int, int]:
    """Consumer sequences of the first and the last message, and the stream sequence of the last."""
    first, _ = sequences(items[0].reply)
    return first, *sequences(items[-1].reply)


# Count, consumer sequences of the first and the last message, stream sequence of the first.
Stretch = tuple[int, int, int, int]


def _whole(items: list[Any]) -> Stretch | None:
    """All messages as one run; None when their ends do not match. Sequences always increase."""
    count = len(items)
    try:
        first, stream_seq = sequences(items[0].reply)
        last, _ = sequences(items[-1].reply)
    except NotJetStreamMessage:
        return None
    return (count, first, last, stream_seq) if last - first + 1 == count else None


def _stretches(keys: list[tuple[int, int]]) -> Iterator[Stretch]:
    """Split at each gap in the consumer sequence."""
    begin = 0
    for end in range(1, len(keys) + 1):
        if end == len(keys) or keys[end][0] != keys[end - 1][0] + 1:
            yield end - begin, keys[begin][0], keys[end - 1][0], keys[begin][1]
            begin = end
