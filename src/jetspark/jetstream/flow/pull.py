"""The pull machine: ADR-37's accounting, statuses and timers. No IO, no clock; ``now`` is an argument.

Theory of operation
===================

One machine serves ``consume`` (:class:`PullOptions`: keep a buffer filled) and ``fetch``/``next``
(:class:`FetchOptions`: one request, then conclude). A driver owns the subscription and the buffer. It
reports what happens, performs the actions that come back, and wakes the machine at ``next_deadline()``.
Messages are reported in bulk, when a chunk is received and when user code took some; there is no work for a
single one. Sizes are the server's ("Message Size Calculation").

**Pending** (ADR-37 "Buffering messages") is what was requested minus what was processed. It has two parts
with different fates: *outstanding* (requested, not received; the ledger) and *buffered* (received, not
processed by the user). A disconnect voids what is outstanding; what is buffered stays and keeps its room. So
pending is never above the limit, also across reconnects.

**Written off** is what is outstanding when heartbeats are missed, when a status says that all requests are
void, or when a request is past its deadline. The server may still serve such a request, or end it later, and
its messages and its end look like those of the next one. So the inbox goes with it (``ChangeInbox``): the
driver unsubscribes, which withdraws the requests, and hands in what comes until the server has confirmed
that. Only then the machine pulls again, into another inbox, and only for the room that is left.

**Refill** ("Max messages and max bytes options"). When pending is at or below the threshold, one request
asks for all the room there is. "At or below" lets ``max_messages=1`` (threshold 0) pull again as soon as
its message was processed. With ``max_bytes`` a request names batch 1,000,000 and the room in bytes. The
consumer's own limits are learnt from its refusals (:mod:`pull_caps`): later requests stay within them, and
several of them, at most 16 at a time, fill the buffer.

**Statuses** ("Status handling") are classified by the table in :mod:`statuses`. One that ends a request
takes with it what the headers say is left, or, without headers, the whole request; Leadership Change and
Server Shutdown take all. A refusal does not say which request it is about: when several that differ may be
meant, all are written off. ``consume`` then pulls again, except after Consumer Deleted, Consumer is push
based, 400 and 412.

**Never a tight loop.** A refusal holds pulls for a while (:mod:`pull_backoff`). Messages, heartbeats and
plain time-outs reset the count. Only what the server does not say waits for the heartbeat alarm: a request
that got lost, or was refused in silence because of ``max_waiting``. A message larger than the room left waits
for room; one larger than any request can be is warned about and retried with backoff, since an operator may
remove it.

**Heartbeats** ("Idle heartbeats"). The alarm comes after two heartbeats without *received* traffic while
a request is outstanding. Without one the server owes nothing, so a slow handler with a full buffer raises
no alarm. If the driver wakes the machine late (user code blocked the loop), the machine first asks for a
moment to read what lies in the socket. The alarm warns, writes off what is outstanding and pulls again; a
fetch concludes with it.

**A narrow consumer** is one whose ``max_waiting`` was lowered, so that requests are refused in everyday
life. One that asks for heartbeats the server drops without a word; until the alarm the ledger would hold a
request that does not exist, and that may stand in the way of every further one. So requests to a narrow
consumer ask for no heartbeats and expire after one: the time-out is the sign of life, at the moment the first
heartbeat would have come, and gives back exactly what the request had left. A refusal warns. Beside other
requests it also limits how many are open at a time, to those that were taken, until the next link.

**Client-side deadline** ("Operations", note). A request that is older than ``expires`` plus a grace of 1
to 5 s is written off, and with it all that are open. A fetch then concludes with an error: that there is
nothing is for the server to say. Messages still arriving extend its deadline.

**Disconnects** ("Server reconnects"): timers pause and nothing is sent; on reconnect the machine pulls
again. It checks nothing and never terminates. A fetch asks for the rest, for the time it has left; when that
is over, for what is there, until its deadline.

**Pins** (ADR-42): the driver reports ``Nats-Pin-Id`` values; each pull carries the last one. 423 drops
it, and the machine pulls again without, to stand by.

**The end.** ``stop`` discards the buffer. ``drain`` pulls no more, lets the driver unsubscribe, and
concludes when the buffer was processed. ``Conclude`` is the last action, and a concluded machine ignores
all events.
"""

from __future__ import annotations

from enum import Enum, unique
from typing import TYPE_CHECKING

from jetspark.jetstream.consume.errors import MissedHeartbeat, NextMessageTooLarge, PullUnanswered, error_for
from jetspark.jetstream.flow.actions import (
    NOTHING,
    Action,
    Actions,
    ChangeInbox,
    ClearPin,
    Conclude,
    SendPull,
    Unsubscribe,
    Warn,
)
from jetspark.jetstream.flow.options import BATCH_WITH_MAX_BYTES, FetchOptions, PullOptions
from jetspark.jetstream.flow.pull_backoff import Backoff
from jetspark.jetstream.flow.pull_caps import LIMITS, UNLIMITED, RequestCaps
from jetspark.jetstream.flow.pull_ledger import Ledger, Request
from jetspark.jetstream.flow.statuses import Ends, Kind, Recovery, Severity, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetspark.errors import JetsparkError

MAX_REQUESTS = 16
#: A timer that fires so late was held up by user code: read the socket before believing the silence.
LATE = 0.02
LATE_PAUSE = 0.1
#: Below this a heartbeat alarm is noise; only reached when max_request_expires forces tiny requests.
_MIN_ALARM = 1.0
#: A fetch that is resumed after a reconnect with less time left than this asks for what is there.
_MIN_RESUME = 0.05


@unique
class State(Enum):
    """Life of a machine."""

    NEW = "new"
    RUNNING = "running"
    DRAINING = "draining"
    CONCLUDED = "concluded"


class PullFlow:
    """See the module's theory of operation. All methods return the actions to perform, in order."""

    def __init__(
        self,
        options: PullOptions | FetchOptions,
        *,
        pin_id: str = "",
        connected: bool = True,
        narrow: bool = False,
    ) -> None:
        self._options = options
        self.pin_id = pin_id
        self._connected = connected
        self._state = State.NEW
        self._fetch = isinstance(options, FetchOptions)
        self._caps = caps = RequestCaps(options.request_bytes, options.wait, options.heartbeat)
        self._stop_after: int | None = None
        self._no_wait = False
        if isinstance(options, FetchOptions):
            by_bytes = options.max_messages is None
            self._limit, self._threshold = options.batch, 0
            self._no_wait = options.no_wait
        else:
            by_bytes = options.by_bytes
            self._limit, self._threshold = options.limit, options.threshold
            self._stop_after = options.stop_after
        self._ledger = Ledger(by_bytes)
        # Only a lone request tells exactly how much of its nominal batch is left when its bytes are used up.
        self._most_requests = 1 if by_bytes and self._stop_after is not None else MAX_REQUESTS
        self._max_requests = self._most_requests
        self._narrow = narrow
        # The inbox is being changed: nothing is outstanding, nothing may be asked for.
        self._changing = False
        # What the requests that went with the old inbox may still bring.
        self._written_off = 0
        self._limited = False
        # Seconds from a request's expiry to our own deadline.
        self._grace = min(max(1.0, caps.expires / 10), 5.0) if caps.expires else 5.0
        self._buffered = 0
        self._buffered_bytes = 0
        self._processed = 0
        self._received = 0
        self._received_bytes = 0
        self._backoff = Backoff()
        self._must_exceed = 0
        self._quiet_since = 0.0
        self._late_until: float | None = None
        self._started_at = 0.0
        self._due_at = 0.0
        self._unpinned = False
        self._unsubscribed = False

    # --- what the driver may look at ------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._state

    @property
    def concluded(self) -> bool:
        return self._state is State.CONCLUDED

    @property
    def pending_messages(self) -> int:
        """Requested minus processed. With ``max_bytes`` it includes the nominal batches and means little."""
        return self._ledger.messages + self._buffered

    @property
    def pending_bytes(self) -> int:
        """Requested minus processed, in bytes; without ``max_bytes`` only what is buffered."""
        return self._ledger.size + self._buffered_bytes

    @property
    def outstanding_requests(self) -> int:
        return len(self._ledger.requests)

    @property
    def awaits_messages(self) -> bool:
        """Whether a request may be open on the server, be it one that was written off."""
        return bool(self._ledger.requests) or self._written_off > 0

    @property
    def buffered(self) -> int:
        """Received and not yet processed messages."""
        return self._buffered

    @property
    def deliverable(self) -> int:
        """How many more messages the user may get: all, or what is left of ``stop_after``."""
        if self._stop_after is None:
            return UNLIMITED
        return max(0, self._stop_after - self._processed)

    @property
    def lacking(self) -> int:
        """How many messages a fetch has yet to receive; 0 for one that is limited by bytes."""
        return self._limit - self._received if self._fetch and not self._caps.size else 0

    @property
    def heartbeat(self) -> float:
        """Seconds between two signs of life; 0: none are asked for."""
        return self._caps.heartbeat

    @property
    def changing_inbox(self) -> bool:
        """Whether a ``ChangeInbox`` is under way and still wanted."""
        return self._changing and self._state is State.RUNNING

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_timer`; None for not at all.

        Traffic only moves it later, so a driver may let its timer fire and then look again. After any call
        that returned actions, and after statuses and connection events, it has to look.
        """
        if self._state is not State.RUNNING:
            return None
        if self._late_until is not None:
            return self._late_until
        due = self._due_at + self._grace if self._fetch else None
        if not self._connected:
            return due
        retry_at = self._backoff.until
        if retry_at is not None:
            due = retry_at if due is None else min(due, retry_at)
        requests = self._ledger.requests
        if requests and not self._fetch:
            due = requests[0].deadline if due is None else min(due, requests[0].deadline)
        if self._caps.heartbeat and (requests or self._changing):
            alarm = self._quiet_since + self._alarm_after
            due = alarm if due is None else min(due, alarm)
        return due

    # --- events ---------------------------------------------------------------------------------------

    def start(self, now: float) -> Actions:
        """Begin: the first pull (or none while disconnected)."""
        if self._state is not State.NEW:
            return NOTHING
        self._state = State.RUNNING
        self._quiet_since = now
        self._started_at = now
        self._due_at = now + self._caps.expires
        return self._pull(now)

    def on_messages(self, count: int, nbytes: int, now: float) -> Actions:
        """A chunk of user messages was received: once for each chunk, before they are handed out."""
        if self._state is State.CONCLUDED:
            return NOTHING
        self._traffic(now)
        self._backoff.failures = 0
        self._must_exceed = 0
        self._ledger.received(count, nbytes)
        self._written_off -= count
        self._buffered += count
        self._buffered_bytes += nbytes
        if self._fetch:
            self._received += count
            self._received_bytes += nbytes
            self._due_at = max(self._due_at, now)
            return self._conclude() if self._filled() and self._state is State.RUNNING else NOTHING
        return self._refill(now) if self._limited else NOTHING

    def on_processed(self, count: int, nbytes: int, now: float) -> Actions:
        """User code took so many messages out of the buffer."""
        if self._state is State.CONCLUDED:
            return NOTHING
        self._buffered = max(0, self._buffered - count)
        self._buffered_bytes = max(0, self._buffered_bytes - nbytes)
        self._processed += count
        if self._stop_after is not None and self._processed >= self._stop_after:
            # Anything still buffered came from requests that were written off; it is not wanted.
            return self._conclude(discard=True)
        if self._state is State.DRAINING:
            return self._drained()
        return NOTHING if self._fetch else self._refill(now)

    def on_status(self, status: Status, now: float) -> Actions:
        """A status message was received; in order with the messages around it."""
        if self._state is State.CONCLUDED:
            return NOTHING
        self._traffic(now)
        traits = status.traits
        if traits.ends is Ends.NOTHING:
            if status.kind is Kind.HEARTBEAT:
                self._backoff.failures = 0
            return NOTHING
        if self._written_off > 0:
            self._written_off -= status.pending[0] if status.pending is not None else self._written_off
        if self._state is not State.RUNNING:
            self._ended_while_draining(status)
            return NOTHING
        if self._fetch:
            return self._fetch_ended(status, now)
        if traits.recovery is Recovery.FATAL:
            return self._conclude(error_for(status))
        actions: list[Action] = []
        if traits.severity is Severity.WARNING:
            actions.append(Warn(error_for(status)))
        self._consume_ended(status, now, actions)
        actions.extend(self._refill(now))
        return tuple(actions)

    def on_pin_id(self, pin_id: str) -> None:
        """A message carried ``Nats-Pin-Id``: this client is pinned, its pulls say so from now on."""
        self.pin_id = pin_id

    def on_disconnect(self, now: float) -> Actions:
        """The connection broke: timers pause, requests are void, nothing is sent."""
        if self._state is State.CONCLUDED:
            return NOTHING
        self._connected = False
        self._changing = False
        self._written_off = 0
        self._ledger.void()
        self._backoff.until = None
        self._late_until = None
        if self._state is State.DRAINING:
            # The subscription ended with the connection; the driver does not bring it back while draining.
            return self.on_unsubscribed(now)
        return NOTHING

    def on_reconnect(self, now: float) -> Actions:
        """Connected again and subscribed again: pull again. No check whether the consumer is still there."""
        if self._state is State.CONCLUDED or self._connected:
            return NOTHING
        self._connected = True
        self._ledger.void()
        self._backoff = Backoff()
        self._must_exceed = 0
        self._max_requests = self._most_requests
        self._traffic(now)
        return self._pull(now) if self._state is State.RUNNING else NOTHING

    def on_timer(self, now: float) -> Actions:
        """``next_deadline()`` has come. Read what lies in the socket first, if that can be done."""
        due = self.next_deadline()
        if due is None or now < due:
            return NOTHING
        if self._late_until is None and due != self._backoff.until and now - due > LATE:
            self._late_until = now + LATE_PAUSE
            return NOTHING
        self._late_until = None
        if self._fetch and now >= self._due_at + self._grace:
            return self._conclude(PullUnanswered(now - self._started_at, self._caps.expires))
        if not self._connected:
            return NOTHING
        self._backoff.pass_time(now)
        actions: list[Action] = []
        owed = self._caps.heartbeat and (self._ledger.requests or self._changing)
        if owed and now >= self._quiet_since + self._alarm_after:
            missed = MissedHeartbeat(now - self._quiet_since, self._caps.heartbeat)
            if self._fetch:
                return self._conclude(missed)
            actions.append(Warn(missed))
            self._quiet_since = now
            actions.extend(self._write_off(open_still=True))
        if not self._fetch:
            if self._ledger.overdue(now):
                actions.extend(self._write_off(open_still=True))
            actions.extend(self._refill(now))
        return tuple(actions)

    def on_inbox_changed(self, now: float) -> Actions:
        """The ``ChangeInbox`` is done: the old requests are gone, with all they sent handed in."""
        if self._state is not State.RUNNING or not self._changing:
            return NOTHING
        self._changing = False
        self._written_off = 0
        return self._refill(now)

    def drain(self, now: float) -> Actions:
        """Pull no more and deliver what is buffered or on its way, then conclude."""
        if self._state is State.NEW:
            return self._conclude()
        if self._state is not State.RUNNING:
            return NOTHING
        self._state = State.DRAINING
        if not self._connected:
            return self.on_unsubscribed(now)
        return (Unsubscribe(),)

    def on_unsubscribed(self, now: float) -> Actions:
        """The ``Unsubscribe`` of a drain is confirmed: nothing more will arrive."""
        if self._state is not State.DRAINING:
            return NOTHING
        self._ledger.void()
        self._written_off = 0
        self._unsubscribed = True
        return self._conclude() if self._fetch else self._drained()

    def stop(self, now: float) -> Actions:
        """Conclude now and discard the buffer; the server delivers it again after ack_wait."""
        return NOTHING if self._state is State.CONCLUDED else self._conclude(discard=True)

    # --- accounting -----------------------------------------------------------------------------------

    @property
    def _alarm_after(self) -> float:
        return max(2 * self._caps.heartbeat, _MIN_ALARM)

    def _traffic(self, now: float) -> None:
        self._quiet_since = now
        self._late_until = None

    def _write_off(self, *, open_still: bool = False) -> Actions:
        """Give up what is outstanding, with its inbox; ``open_still``: the server has not said that it is
        void."""
        self._must_exceed = 0
        if not self._ledger.requests or self._changing:
            return NOTHING
        self._written_off = self._ledger.messages if open_still else 0
        self._ledger.void()
        self._changing = True
        return (ChangeInbox(),)

    def _conclude(self, error: JetsparkError | None = None, *, discard: bool = False) -> Actions:
        self._state = State.CONCLUDED
        self._ledger.void()
        self._written_off = 0
        return (Conclude(error, discard),)

    def _drained(self) -> Actions:
        return self._conclude() if not self._buffered and self._unsubscribed else NOTHING

    def _pull(self, now: float) -> Actions:
        return self._fetch_pull(now) if self._fetch else self._refill(now)

    def _refill(self, now: float) -> Actions:
        """ADR-37 "Message processing algorithm", steps 1 and 2."""
        ledger, caps = self._ledger, self._caps
        by_bytes = ledger.by_bytes
        pending = ledger.size + self._buffered_bytes if by_bytes else ledger.messages + self._buffered
        if pending > self._threshold:
            return NOTHING
        if self._state is not State.RUNNING or not self._connected or self._changing:
            return NOTHING
        if self._backoff.until is not None:
            return NOTHING
        room = self._limit - pending
        if by_bytes and room <= self._must_exceed:
            return NOTHING
        wanted = UNLIMITED
        if self._stop_after is not None:
            wanted = self._stop_after - self._processed - self._buffered - ledger.messages
        if not by_bytes:
            wanted = room = min(room, wanted)
        actions: list[Action] = []
        while room > 0 and wanted > 0 and len(ledger.requests) < self._max_requests:
            if by_bytes:
                batch, size = min(BATCH_WITH_MAX_BYTES, wanted, caps.batch), min(room, caps.size)
                room -= size
            else:
                batch, size = min(room, caps.batch), caps.size
                room -= batch
            wanted -= batch
            actions.append(self._request(batch, size, caps.expires, now))
        self._limited = room > 0 and wanted > 0
        return tuple(actions)

    def _request(self, batch: int, size: int, expires: float, now: float) -> SendPull:
        if not self._ledger.requests:
            # Only from here on the server owes a sign of life.
            self._quiet_since = now
        deadline = now + expires + self._grace
        silent = self._narrow and not self._fetch
        if silent:
            expires = self._caps.heartbeat
        self._ledger.add(Request(batch, size, expires, deadline, bool(self.pin_id)))
        options = self._options
        expires_ns = round(expires * 1e9)
        return SendPull(
            batch,
            size,
            expires_ns,
            0 if silent else min(round(self._caps.heartbeat * 1e9), expires_ns // 2),
            self._no_wait,
            options.group or "",
            options.min_pending or 0,
            options.min_ack_pending or 0,
            options.priority,
            self.pin_id,
        )

    def _hold(self, recovery: Recovery, now: float) -> None:
        self._backoff.hold(recovery, now, self._caps.heartbeat)

    # --- statuses of consume --------------------------------------------------------------------------

    def _consume_ended(self, status: Status, now: float, actions: list[Action]) -> None:
        """Book the end of one or all requests, learn from it, and decide when to go on."""
        kind, ledger = status.kind, self._ledger
        if status.traits.ends is Ends.ALL:
            actions.extend(self._write_off())
            self._hold(Recovery.AT_ONCE, now)
            return
        left = status.pending
        if kind in LIMITS:
            refused = self._caps.learn(status, ledger)
            if refused is not None and left is None:
                self._refused(refused, lambda request: self._caps.shrank(kind, request), actions)
            if refused is None or not self._caps.shrank(kind, refused):
                self._hold(Recovery.BACK_OFF, now)
            return
        pinned = kind is Kind.PIN_ID_MISMATCH and any(request.pinned for request in ledger.requests)
        if left is not None:
            ledger.ended(*left)
        else:
            fits: Callable[[Request], bool] | None = (lambda r: r.pinned) if pinned else None
            request = ledger.newest(fits)
            taken = len(ledger.requests) - 1
            if request is not None:
                self._refused(request, fits, actions)
            if kind is Kind.MAX_WAITING and self._narrow and taken > 0:
                # Those that were taken go on; one more would be refused again.
                self._max_requests = min(self._max_requests, taken)
                return
        if kind is Kind.PIN_ID_MISMATCH:
            if self.pin_id:
                self.pin_id = ""
                actions.append(ClearPin())
            if not pinned:
                self._hold(Recovery.AT_ONCE, now)
        elif kind is Kind.MESSAGE_TOO_LARGE:
            self._too_large(status, left, now, actions)
        elif kind in (Kind.REQUEST_TIMEOUT, Kind.BATCH_COMPLETED):
            self._backoff.failures = 0  # a request that lived its life
        else:
            self._hold(status.traits.recovery, now)

    def _refused(
        self, request: Request, fits: Callable[[Request], bool] | None, actions: list[Action]
    ) -> None:
        """A refusal does not say which request it is about. When that matters, none of them stays: with one
        taken for another, the next request might ask for more than there is room."""
        if self._ledger.differ(fits):
            actions.extend(self._write_off(open_still=True))
        else:
            self._ledger.refused(request)

    def _ended_while_draining(self, status: Status) -> None:
        """No request follows; the driver only has to know which are open."""
        ledger = self._ledger
        if self._fetch or status.traits.ends is Ends.ALL or status.traits.recovery is Recovery.FATAL:
            ledger.void()
        elif status.pending is not None:
            ledger.ended(*status.pending)
        elif ledger.requests:
            ledger.refused(ledger.requests[-1])

    def _too_large(
        self, status: Status, left: tuple[int, int] | None, now: float, actions: list[Action]
    ) -> None:
        """The next message needs more bytes than the request had left."""
        size = left[1] if left is not None else 0
        largest = min(self._limit, self._caps.size) if self._ledger.by_bytes else self._caps.size
        if size >= largest or left is None:
            actions.append(Warn(NextMessageTooLarge(status.code, status.description)))
            self._hold(Recovery.BACK_OFF, now)
        elif self._ledger.by_bytes:
            # Asking again for the same room would be refused again: wait until there is more.
            self._must_exceed = max(self._must_exceed, size)

    # --- fetch ----------------------------------------------------------------------------------------

    def _filled(self) -> bool:
        if self._received >= self._limit:
            return True
        # A pinned client gets messages with a header that the server did not count: then only a status is
        # certain.
        return bool(self._caps.size) and self._received_bytes >= self._caps.size and not self.pin_id

    def _fetch_pull(self, now: float) -> Actions:
        if not self._connected:
            return NOTHING
        expires = self._caps.expires
        if expires:
            expires = self._due_at - now
            if expires < _MIN_RESUME and now > self._started_at:
                # Its time is over, and only the server can say that there is nothing: ask for what is there.
                expires, self._no_wait = 0.0, True
        size = max(1, self._caps.size - self._received_bytes) if self._caps.size else 0
        return (self._request(self._limit - self._received, size, expires, now),)

    def _fetch_ended(self, status: Status, now: float) -> Actions:
        """ADR-37: "Calls to next() and fetch() should be concluded when the pull is terminated"."""
        if status.kind is Kind.PIN_ID_MISMATCH:
            self.pin_id = ""
            self._ledger.void()
            if self._unpinned:
                return (ClearPin(), *self._conclude(error_for(status)))
            # The stale pin is our book-keeping, not the user's: ask once more, without it.
            self._unpinned = True
            return (ClearPin(), *self._fetch_pull(now))
        if status.traits.severity is not Severity.QUIET:
            return self._conclude(error_for(status))
        if status.kind is Kind.MESSAGE_TOO_LARGE and not self._received:
            return self._conclude(error_for(status))  # there is a message, so this is no empty fetch
        return self._conclude()
