"""The ordered consumer: gap detection and reset. No IO, no clock; ``now`` is an argument.

Theory of operation
===================

An ordered consumer reads a stream in order without acks. It is a chain of short-lived consumers named
``<prefix>_<serial>``. When the current one is in doubt, it is abandoned, and the next one is created
after the last message that was delivered. So the user sees each message once and in order, whatever
happens.

**What causes a reset**: a gap in the consumer sequence (seen in a message, or reported by an idle heartbeat
whose ``Nats-Last-Consumer`` is ahead), missed heartbeats, deletion, 503, and a reconnect. The driver reports
these events with the serial of the consumer they concern. Events for an older serial are dropped, messages
included.

**Where it continues**: at ``last stream sequence + 1``, or, before the first message, by the user's own
deliver policy. ``new`` and ``last`` are an exception: evaluated again, they would mean a later position and
lose what was stored meanwhile, so the position where the first consumer started is kept. The old consumer is
deleted in the background; its ``inactive_threshold`` is the safety net.

**Suspend.** When there is no longer a reader, and messages may be on their way or were discarded unread, the
driver suspends: the consumer is deleted, and the next ``start`` creates one at the given position.

**How fast**: as fast as it makes progress. A reset is immediate, but at least 0.02 s after the previous one,
so that a server that always loses the second message is not hammered. Each consumer that becomes
doubtful before it delivered a message or a heartbeat doubles that pause, up to 10 s. When creation fails,
the next attempt waits 1 s, doubling up to 10 s. ``max_reset_attempts`` attempts in a row conclude with an
error. Nothing is attempted while disconnected.

**Bulk.** ``on_batch`` checks a received chunk by its ends: the consumer sequences of one consumer always
increase, so ``count`` messages from ``expected`` to ``expected + count - 1`` have no gap. Only when that
does not hold must the driver inspect each message and call ``on_each``.
"""

from __future__ import annotations

from enum import Enum, unique
from typing import TYPE_CHECKING

from jetspark.errors import InvalidArgument, JetsparkError
from jetspark.jetstream.consume.errors import OrderedReset, OrderedResetFailed
from jetspark.jetstream.flow.actions import (
    NOTHING,
    Action,
    Actions,
    Conclude,
    CreateConsumer,
    DeleteConsumer,
    Warn,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

BACKOFF_FIRST = 1.0
BACKOFF_MAX = 10.0
# Pause between two resets, when the consumer between them delivered messages.
PACE = 0.02

_POLICIES = ("all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject")


@unique
class Verdict(Enum):
    """How to proceed with a chunk of messages."""

    DELIVER = "deliver"
    DROP = "drop"
    INSPECT = "inspect"


@unique
class OrderedState(Enum):
    """Life cycle of an ordered consumer."""

    NEW = "new"
    CREATING = "creating"
    ACTIVE = "active"
    WAITING = "waiting"
    CONCLUDED = "concluded"


class OrderedFlow:
    """See the module's theory of operation.

    ``prefix`` is unique for each ordered consumer (a nuid, or the user's). ``max_reset_attempts=None``
    retries forever.
    """

    __slots__ = (
        "_attempts",
        "_connected",
        "_deliver_policy",
        "_last_error",
        "_max_attempts",
        "_opt_start_seq",
        "_opt_start_time",
        "_prefix",
        "_reset_at",
        "_resume_at",
        "_retry_at",
        "_starting",
        "_state",
        "expected",
        "last_stream_seq",
        "serial",
    )

    def __init__(
        self,
        prefix: str,
        *,
        deliver_policy: str = "all",
        opt_start_seq: int | None = None,
        opt_start_time: str | None = None,
        max_reset_attempts: int | None = None,
        connected: bool = True,
    ) -> None:
        if deliver_policy not in _POLICIES:
            raise InvalidArgument("deliver_policy", deliver_policy, f"must be one of {', '.join(_POLICIES)}")
        if (deliver_policy == "by_start_sequence") != (opt_start_seq is not None):
            raise InvalidArgument(
                "opt_start_seq", opt_start_seq, "goes with deliver_policy by_start_sequence"
            )
        if (deliver_policy == "by_start_time") != (opt_start_time is not None):
            raise InvalidArgument("opt_start_time", opt_start_time, "goes with deliver_policy by_start_time")
        if max_reset_attempts is not None and max_reset_attempts < 1:
            raise InvalidArgument("max_reset_attempts", max_reset_attempts, "must be at least 1, or None")
        self._prefix = prefix
        self._deliver_policy = deliver_policy
        self._opt_start_seq = opt_start_seq
        self._opt_start_time = opt_start_time
        self._max_attempts = max_reset_attempts
        self._connected = connected
        self._state = OrderedState.NEW
        self._attempts = 0
        self._retry_at: float | None = None
        # When the last reset was, or will be.
        self._reset_at = float("-inf")
        self._last_error = ""
        # First stream sequence to deliver when nothing was delivered yet; 0: as the deliver policy says.
        self._resume_at = 0
        self._starting = False
        self.serial = 0
        #: The consumer sequence that the next message must have.
        self.expected = 1
        #: The stream sequence of the last delivered message; 0 before the first.
        self.last_stream_seq = 0

    @property
    def state(self) -> OrderedState:
        return self._state

    @property
    def name(self) -> str:
        """Name of the current consumer."""
        return f"{self._prefix}_{self.serial}"

    @property
    def attempts(self) -> int:
        """Attempts since the last sign of life."""
        return self._attempts

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_timer`; None for not at all."""
        return self._retry_at if self._state is OrderedState.WAITING and self._connected else None

    # --- events ---------------------------------------------------------------------------------------

    def start(self, now: float) -> Actions:
        """Create the first consumer."""
        if self._state is not OrderedState.NEW:
            return NOTHING
        self._state = OrderedState.WAITING
        self._retry_at = now
        self._starting = True
        return self._create() if self._connected else NOTHING

    def on_created(self, serial: int, now: float, starts_at: int = 0) -> Actions:
        """The consumer exists: pull from it (in its own subscription, or checking its serial).

        ``starts_at``: the first stream sequence that it can deliver, from its info; 0 when unknown.
        """
        if serial != self.serial or self._state is not OrderedState.CREATING:
            # Abandoned while its creation was in progress (disconnect, stop): delete it.
            return (DeleteConsumer(f"{self._prefix}_{serial}"),) if self._is_abandoned(serial) else NOTHING
        self._state = OrderedState.ACTIVE
        if self._starting:
            # Not a reset: the first reset is immediate and has all its attempts.
            self._starting = False
            self._attempts = 0
        if not self.last_stream_seq and self._deliver_policy in ("new", "last"):
            self._resume_at = starts_at
        return NOTHING

    def on_name_taken(self, serial: int, now: float) -> Actions:
        """Another client, or an earlier run, has a consumer with this name: try the next name immediately."""
        if serial != self.serial or self._state is not OrderedState.CREATING:
            return NOTHING
        self._attempts -= 1
        return self._create()

    def on_create_failed(
        self, serial: int, error: JetsparkError, now: float, *, permanent: bool = False
    ) -> Actions:
        """Creation failed. ``permanent``: another attempt can't help (no such stream, invalid filter)."""
        if serial != self.serial or self._state is not OrderedState.CREATING:
            return NOTHING
        if permanent:
            self._state = OrderedState.CONCLUDED
            return (Conclude(error),)
        wait = min(BACKOFF_FIRST * 2.0 ** min(self._attempts - 1, 10), BACKOFF_MAX)
        return self._retry(str(error), now, now + wait)

    def on_batch(
        self, first_cseq: int, last_cseq: int, last_sseq: int, count: int, serial: int, now: float
    ) -> Verdict:
        """A chunk of one consumer's messages, checked by its ends. INSPECT: call :meth:`on_each`."""
        if serial != self.serial or self._state is not OrderedState.ACTIVE:
            return Verdict.DROP
        if first_cseq != self.expected or last_cseq - first_cseq + 1 != count:
            return Verdict.INSPECT
        self.expected = last_cseq + 1
        self.last_stream_seq = last_sseq
        self._attempts = 0
        return Verdict.DELIVER

    def on_each(self, messages: Sequence[tuple[int, int, int]], now: float) -> tuple[list[int], Actions]:
        """(serial, consumer seq, stream seq) of each message: returns the indices to deliver, and actions.

        Messages after a gap are dropped: the next consumer delivers them again.
        """
        keep: list[int] = []
        if self._state is not OrderedState.ACTIVE:
            return keep, NOTHING
        for index, (serial, cseq, sseq) in enumerate(messages):
            if serial != self.serial or cseq < self.expected:
                continue
            if cseq > self.expected:
                gap = f"gap: consumer sequence {cseq} where {self.expected} was due"
                return keep, self._reset(gap, now)
            keep.append(index)
            self.expected = cseq + 1
            self.last_stream_seq = sseq
            self._attempts = 0
        return keep, NOTHING

    def on_heartbeat(self, serial: int, last_consumer_seq: int | None, now: float) -> Actions:
        """An idle heartbeat: a sign of life that also reveals when the last messages were lost."""
        if serial != self.serial or self._state is not OrderedState.ACTIVE:
            return NOTHING
        if last_consumer_seq is not None and last_consumer_seq >= self.expected:
            gap = f"gap: heartbeat at consumer sequence {last_consumer_seq} where {self.expected} was due"
            return self._reset(gap, now)
        self._attempts = 0
        return NOTHING

    def on_missed_heartbeat(self, serial: int, now: float) -> Actions:
        """The pull machine raised its alarm."""
        return self._reset_if(serial, "missed heartbeats", now)

    def on_lost(self, serial: int, reason: str, now: float) -> Actions:
        """A status says that the consumer or its server is gone."""
        return self._reset_if(serial, reason, now)

    def on_disconnect(self, now: float) -> Actions:
        """The connection broke; attempts pause. The current consumer is no longer trusted."""
        if self._state is not OrderedState.CONCLUDED:
            self._connected = False
        return NOTHING

    def on_reconnect(self, now: float) -> Actions:
        """Connected again: create a new consumer immediately."""
        if self._state is OrderedState.CONCLUDED or self._connected:
            return NOTHING
        self._connected = True
        if self._state is OrderedState.NEW:
            return NOTHING
        if self._state is OrderedState.WAITING:
            return self._create()
        self._attempts = 0
        return self._reset("reconnect", now)

    def on_timer(self, now: float) -> Actions:
        """``next_deadline()`` was reached."""
        due = self.next_deadline()
        return self._create() if due is not None and now >= due else NOTHING

    def suspend(self, now: float, resume_at: int = 0) -> Actions:
        """There is no reader: abandon the consumer until the next :meth:`start`.

        ``resume_at``: stream sequence of the first message that was not handed out, when messages that had
        passed the check were discarded.
        """
        if self._state is OrderedState.CONCLUDED:
            return NOTHING
        exists = self._state is OrderedState.ACTIVE
        self._state = OrderedState.NEW
        self._retry_at = None
        self._attempts = 0
        if resume_at:
            self._resume_at = resume_at
            self.last_stream_seq = resume_at - 1
        return (DeleteConsumer(self.name),) if exists else NOTHING

    def stop(self, now: float) -> Actions:
        """Conclude and delete the current consumer."""
        if self._state is OrderedState.CONCLUDED:
            return NOTHING
        exists = self._state in (OrderedState.ACTIVE, OrderedState.CREATING)
        self._state = OrderedState.CONCLUDED
        return (DeleteConsumer(self.name), Conclude()) if exists else (Conclude(),)

    # --- reset ----------------------------------------------------------------------------------------

    def _is_abandoned(self, serial: int) -> bool:
        gone = (OrderedState.CONCLUDED, OrderedState.WAITING, OrderedState.NEW)
        return serial < self.serial or self._state in gone

    def _reset_if(self, serial: int, reason: str, now: float) -> Actions:
        if serial != self.serial or self._state is not OrderedState.ACTIVE:
            return NOTHING  # about an abandoned consumer, or a reset is already in progress
        return self._reset(reason, now)

    def _reset(self, reason: str, now: float) -> Actions:
        actions: list[Action] = [
            Warn(OrderedReset(reason, self.last_stream_seq)),
            DeleteConsumer(self.name),
        ]
        pace = min(PACE * 2.0 ** min(self._attempts, 10), BACKOFF_MAX)
        self._reset_at = max(now, self._reset_at + pace)
        actions.extend(self._retry(reason, now, self._reset_at))
        return tuple(actions)

    def _retry(self, reason: str, now: float, retry_at: float) -> Actions:
        """Create the next consumer at that time."""
        if self._max_attempts is not None and self._attempts >= self._max_attempts:
            self._state = OrderedState.CONCLUDED
            return (Conclude(OrderedResetFailed(self._attempts, reason, self.last_stream_seq)),)
        self._state = OrderedState.WAITING
        self._retry_at = retry_at
        return self._create() if self._connected and self._retry_at <= now else NOTHING

    def _create(self) -> Actions:
        self._state = OrderedState.CREATING
        self._retry_at = None
        self._attempts += 1
        self.serial += 1
        self.expected = 1
        resume_at = self.last_stream_seq + 1 if self.last_stream_seq else self._resume_at
        if resume_at:
            start = CreateConsumer(self.name, self.serial, "by_start_sequence", resume_at)
        else:
            start = CreateConsumer(
                self.name, self.serial, self._deliver_policy, self._opt_start_seq, self._opt_start_time
            )
        return (start,)
