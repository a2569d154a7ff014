"""The push machine: ADR-15's heartbeats, gaps and flow control. No IO, no clock; ``now`` is an argument.

Theory of operation
===================

A push consumer sends on its own; the client monitors it.

**Heartbeats** (ADR-15 "Heartbeats"). When neither a message nor a status arrived for three heartbeat
intervals (the factor is configurable), a warning is raised, and raised again after the same time. Only
received traffic counts, not the time that user code takes. The timer pauses while disconnected. If the driver
wakes the machine late (user code blocked the loop), it first asks for a moment to read what is in the socket.

**Gaps** ("Messages Gaps"). Consumer sequences are consecutive, redeliveries included. A gap, seen between
messages or reported by a heartbeat's ``Nats-Last-Consumer``, causes one warning. In a queue group each member
sees only some of the messages, so nothing is checked there.

**Flow control** ("Flow Control"). The server sends a request when it has sent a full window; the reply lets
it continue. The reply is due when the request would have been handed to the user had it been a message: at
its position in the buffer. This is how a slow handler holds back a fast server. A request is answered once,
and counts as answered when the driver reports that the reply is on its way (``on_answered``). A heartbeat
with ``Nats-Consumer-Stalled`` means that the request or its reply was lost. So it is answered like a request,
at its own position, even if the subject was answered before. If the reply is still due, it is not repeated.
So each heartbeat causes at most one reply.

**Statuses** ("Miscellaneous Error Statuses", "Unknown Error Statuses"). 409 Consumer Deleted concludes;
other 409s, 503 and unknown statuses are raised to the user, and the subscription stays.

The driver reports messages in bulk: ``on_messages`` once for each run without a gap, nearly always a whole
received chunk, with the sequences at its ends; ``on_processed`` once for each group that user code took.
"""

from __future__ import annotations

from collections import deque

from jetspark.errors import InvalidArgument
from jetspark.jetstream.consume.errors import ConsumerGap, MissedHeartbeat, error_for
from jetspark.jetstream.flow.actions import (
    NOTHING,
    Actions,
    Conclude,
    Raise,
    SendFlowControl,
    Warn,
)
from jetspark.jetstream.flow.statuses import Ends, Kind, Status

DEFAULT_ALARM_FACTOR = 3.0
LATE = 0.02
LATE_PAUSE = 0.1


class PushFlow:
    """See the module's theory of operation.

    ``idle_heartbeat``: seconds, as configured on the consumer; 0 when it has none. ``queue_group``: whether
    the subscription shares its messages with others; heartbeats and flow control are not possible then.
    ``first_sequence``: the consumer sequence of the first message, 1 for a consumer that was created for this
    subscription; None when it existed before and may be at any position.
    """

    __slots__ = (
        "_alarm_after",
        "_answered",
        "_concluded",
        "_connected",
        "_expected",
        "_flow",
        "_heartbeat",
        "_late_until",
        "_processed",
        "_queue_group",
        "_quiet_since",
        "_received",
        "_started",
    )

    def __init__(
        self,
        *,
        idle_heartbeat: float = 0.0,
        alarm_factor: float = DEFAULT_ALARM_FACTOR,
        queue_group: bool = False,
        first_sequence: int | None = None,
        connected: bool = True,
    ) -> None:
        if idle_heartbeat < 0:
            raise InvalidArgument("idle_heartbeat", idle_heartbeat, "must not be negative")
        if not alarm_factor > 1:
            raise InvalidArgument("alarm_factor", alarm_factor, "must be above 1: one heartbeat may be late")
        if queue_group and idle_heartbeat:
            raise InvalidArgument(
                "idle_heartbeat",
                idle_heartbeat,
                "does not go with a queue group: the server would send heartbeats to random members",
            )
        self._heartbeat = idle_heartbeat
        self._alarm_after = idle_heartbeat * alarm_factor
        self._queue_group = queue_group
        self._connected = connected
        self._started = False
        self._concluded = False
        self._quiet_since = 0.0
        self._late_until: float | None = None
        self._expected = first_sequence
        self._received = 0
        self._processed = 0
        # Replies that are due after this many messages.
        self._flow: deque[tuple[int, str]] = deque()
        self._answered = ""

    @property
    def concluded(self) -> bool:
        return self._concluded

    @property
    def buffered(self) -> int:
        """Received and not yet processed messages."""
        return self._received - self._processed

    @property
    def expected(self) -> int | None:
        """The next expected consumer sequence; None before the first message or heartbeat."""
        return self._expected

    @property
    def next_answer(self) -> int | None:
        """How many messages in total must be processed before a flow-control reply is due; None: no
        request is waiting."""
        return self._flow[0][0] if self._flow else None

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_timer`; None for not at all. Traffic only moves it later."""
        if not self._heartbeat or not self._connected or not self._started or self._concluded:
            return None
        return self._late_until if self._late_until is not None else self._quiet_since + self._alarm_after

    # --- events ---------------------------------------------------------------------------------------

    def start(self, now: float) -> Actions:
        """Subscribed: the alarm starts now."""
        self._started = True
        self._traffic(now)
        return NOTHING

    def on_messages(
        self, count: int, first_cseq: int, last_cseq: int, first_sseq: int, now: float
    ) -> Actions:
        """Messages without a gap between them were received: the consumer sequences of the first and the
        last, and the stream sequence of the first."""
        if self._concluded:
            return NOTHING
        self._traffic(now)
        self._received += count
        if self._queue_group:
            return NOTHING
        expected, self._expected = self._expected, last_cseq + 1
        if expected is not None and first_cseq != expected:
            return (Warn(ConsumerGap(expected, first_cseq, first_sseq)),)
        return NOTHING

    def on_processed(self, count: int, now: float) -> Actions:
        """User code took this many messages: answer the flow-control requests that lay between them."""
        self._processed += count
        flow = self._flow
        if not flow or flow[0][0] > self._processed or self._concluded or not self._connected:
            return NOTHING
        answers: list[SendFlowControl] = []
        while flow and flow[0][0] <= self._processed:
            answers.append(SendFlowControl(flow.popleft()[1]))
        return tuple(answers)

    def on_answered(self, subject: str) -> None:
        """The reply to this request is on its way; it need not be answered again."""
        self._answered = subject

    def on_status(self, status: Status, now: float) -> Actions:
        """A status message was received, in order with the messages around it."""
        if self._concluded:
            return NOTHING
        self._traffic(now)
        kind = status.kind
        if kind is Kind.FLOW_CONTROL:
            return self._flow_control(status.reply) if status.reply != self._answered else NOTHING
        if kind is Kind.HEARTBEAT:
            return self._check_heartbeat(status)
        if status.traits.ends is Ends.NOTHING:
            return NOTHING
        error = error_for(status)
        if kind is Kind.CONSUMER_DELETED:
            self._concluded = True
            return (Conclude(error),)
        return (Raise(error),)

    def on_disconnect(self, now: float) -> Actions:
        """The connection broke: the alarm pauses, and flow control of the old connection is void."""
        self._connected = False
        self._late_until = None
        self._flow.clear()
        self._answered = ""
        return NOTHING

    def on_reconnect(self, now: float) -> Actions:
        """Connected and subscribed again: the alarm starts again. Messages lost meanwhile show as a gap."""
        self._connected = True
        self._traffic(now)
        return NOTHING

    def on_new_consumer(self, now: float) -> Actions:
        """Another consumer delivers from now on (ordered consumers); it counts from 1."""
        self._flow.clear()
        self._answered = ""
        self._expected = 1
        return self.on_reconnect(now)

    def on_timer(self, now: float) -> Actions:
        """``next_deadline()`` was reached. If possible, read what is in the socket first."""
        due = self.next_deadline()
        if due is None or now < due:
            return NOTHING
        if self._late_until is None and now - due > LATE:
            self._late_until = now + LATE_PAUSE
            return NOTHING
        missed = MissedHeartbeat(now - self._quiet_since, self._heartbeat)
        self._traffic(now)
        return (Warn(missed),)

    def stop(self, now: float) -> Actions:
        """Conclude now; buffered messages are discarded."""
        if self._concluded:
            return NOTHING
        self._concluded = True
        return (Conclude(None, discard=True),)

    # --- details --------------------------------------------------------------------------------------

    def _traffic(self, now: float) -> None:
        self._quiet_since = now
        self._late_until = None

    def _check_heartbeat(self, status: Status) -> Actions:
        actions: Actions = NOTHING
        last = status.last_consumer_seq
        if last is not None and not self._queue_group:
            if self._expected is not None and last >= self._expected:
                gap = ConsumerGap(self._expected, last + 1, status.last_stream_seq or 0)
                actions = (Warn(gap),)
            if self._expected is None or last >= self._expected:
                # Warn once, then continue from the server's position.
                self._expected = last + 1
        stalled = status.stalled
        return actions + self._flow_control(stalled) if stalled else actions

    def _flow_control(self, subject: str) -> Actions:
        if not subject or (self._flow and self._flow[-1][1] == subject):
            return NOTHING
        if self._received <= self._processed:
            return (SendFlowControl(subject),)
        self._flow.append((self._received, subject))
        return NOTHING
