"""The pull machine: ADR-37's accounting, statuses and timers. No IO, no clock; ``now`` is an argument.

Theory of operation
===================

One machine serves ``consume`` (:class:`PullOptions`: keep a buffer filled) and ``fetch``/``next``
(:class:`FetchOptions`: one request, then conclude). A driver owns the subscription and the buffer. It
reports events, performs the actions that come back, and wakes the machine at ``next_deadline()``.
Messages are reported in bulk, when a chunk is received and when user code took some; there is no work per
message. Sizes are the server's ("Message Size Calculation").

**Pending** (ADR-37 "Buffering messages") is what was requested minus what was processed. It has two parts
with different fates: *outstanding* (requested, not received; the ledger) and *buffered* (received, not
processed by the user). A disconnect voids what is outstanding; what is buffered stays and keeps its room. So
pending never exceeds the limit, even across reconnects.

**Writing off.** Outstanding requests are written off when heartbeats are missed, when a status says that all
requests are void, or when a request is past its deadline. The server may still serve such a request, or end
it later, and its messages and its end look like those of the next request. So its inbox is replaced
(``ChangeInbox``): the driver unsubscribes, which withdraws the requests, and reports what arrives until the
server has confirmed that. Only then does the machine pull again, into another inbox, and only for the room
that is left.

**Refill** ("Max messages and max bytes options"). When pending is at or below the threshold, one request
asks for all the available room. "At or below" lets ``max_messages=1`` (threshold 0) pull again as soon as
its message was processed. With ``max_bytes`` a request names batch 1,000,000 and the room in bytes. The
consumer's own limits are learnt from its refusals (:mod:`pull_caps`): later requests stay within them, and
several of them, at most 16 at a time, fill the buffer.

**Statuses** ("Status handling") are classified by the table in :mod:`statuses`. A status that ends a request
removes from the ledger what its headers say is left, or, without headers, the whole request; Leadership
Change and Server Shutdown remove all. A refusal does not say which request it is about: when it may be about
one of several different requests, all are written off. ``consume`` then pulls again, except after Consumer
Deleted, Consumer is push based, 400 and 412.

**Never a tight loop.** A refusal holds pulls for a while (:mod:`pull_backoff`). Messages, heartbeats and
plain timeouts reset the count. Only what the server does not report waits for the heartbeat alarm: a request
that was lost, or was silently refused because of ``max_waiting``. A message larger than the room left waits
for room. A message larger than any request can be causes a warning and is retried with backoff, since an
operator may remove it.

**Heartbeats** ("Idle heartbeats"). The alarm is raised after two heartbeats without *received* traffic while
a request is outstanding. Without a request the server owes nothing, so a slow handler with a full buffer
raises no alarm. If the driver wakes the machine late (user code blocked the loop), the machine first asks for
a moment to read what is in the socket. The alarm warns, writes off what is outstanding and pulls again; a
fetch concludes with it.

**A narrow consumer** is one with a lowered ``max_waiting``, so that refused requests are normal. The server
silently drops a refused request that asks for heartbeats. Until the alarm, the ledger would hold a request
that does not exist, and that may block every further one. So requests to a narrow consumer ask for no
heartbeats and expire after one heartbeat interval: the timeout is the sign of life. It comes when the first
heartbeat would have come, and gives back exactly what the request had left. A refusal warns. If other
requests are open, it also limits how many may be open at a time, to those that were accepted, until the next
link.

**Client-side deadline** ("Operations", note). When a request is older than ``expires`` plus a grace of 1
to 5 s, all open requests are written off. A fetch then concludes with an error: only the server can say that
there are no messages. Messages that still arrive extend its deadline.

**Disconnects** ("Server reconnects"): timers pause and nothing is sent; on reconnect the machine pulls
again. It checks nothing and never terminates. A fetch asks for the rest, for the time it has left. When that
time is over, it asks for what is available, until its deadline.

**Pins** (ADR-42): the driver reports ``Nats-Pin-Id`` values; each pull carries the last one. 423 drops
it, and the machine pulls again without a pin, to stand by.

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
#: A timer that fires this late was delayed by user code: read the socket before concluding it was silent.
LATE = 0.02
LATE_PAUSE = 0.1
#: Below this a heartbeat alarm is noise; only reached when max_request_expires forces tiny requests.
_MIN_ALARM = 1.0
#: A fetch that is resumed after a reconnect with less time left than this asks for what is available.
_MIN_RESUME = 0.05


@unique
class State(Enum):
    """Life cycle of a machine."""

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
        # Only a single open request tells exactly how much of its nominal batch is left when its bytes are
        # used up.
        self._most_requests = 1 if by_bytes and self._stop_after is not None else MAX_REQUESTS
        self._max_requests = self._most_requests
        self._narrow = narrow
        # The inbox is being changed: nothing is outstanding, and nothing may be requested.
        self._changing = False
        # How much the requests of the old inbox may still deliver.
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

    # --- state for the driver -------------------------------------------------------------------------

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
        """Whether a request may be open on the server, including requests that were written off."""
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
        """How many messages a fetch still lacks; 0 for a fetch limited by bytes."""
        return self._limit - self._received if self._fetch and not self._caps.size else 0

    @property
    def heartbeat(self) -> float:
        """Seconds between two signs of life; 0: none are requested."""
        return self._caps.heartbeat

    @property
    def changing_inbox(self) -> bool:
        """Whether a ``ChangeInbox`` is under way and still wanted."""
        return self._changing and self._state is State.RUNNING

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_timer`; None for not at all.

        Traffic only moves it later, so a driver may let its timer fire and then check again. It must check
        after any call that returned actions, and after statuses and connection events.
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
        """Start with the first pull (or none while disconnected)."""
        if self._state is not State.NEW:
            return NOTHING
        self._state = State.RUNNING
        self._quiet_since = now
        self._started_at = now
        self._due_at = now + self._caps.expires
        return self._pull(now)

    def on_messages(self, count: int, nbytes: int, now: float) -> Actions:
        """A chunk of user messages was received. Called once per chunk, before they are handed out."""
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
        """User code took this many messages out of the buffer."""
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
        """A status message was received, in order with the messages around it."""
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
        """A message carried ``Nats-Pin-Id``: this client is pinned, and its pulls say so from now on."""
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
            # The subscription ended with the connection; the driver does not restore it while draining.
            return self.on_unsubscribed(now)
        return NOTHING

    def on_reconnect(self, now: float) -> Actions:
        """Connected and subscribed again: pull again. It does not check whether the consumer still exists."""
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
        """``next_deadline()`` was reached. If possible, read what is in the socket first."""
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
        """The ``ChangeInbox`` is done: the old requests are gone, and everything they sent was reported."""
        if self._state is not State.RUNNING or not self._changing:
            return NOTHING
        self._changing = False
        self._written_off = 0
        return self._refill(now)

    def drain(self, now: float) -> Actions:
        """Stop pulling, deliver what is buffered or on its way, then conclude."""
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
        """Give up what is outstanding, together with its inbox. ``open_still``: the server has not said that
        it is void."""
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
            # Only from here on does the server owe a sign of life.
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
        """Record the end of one or all requests, learn from it, and decide when to continue."""
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
                # The accepted requests go on; one more would be refused again.
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
            self._backoff.failures = 0  # a request that ran its full time
        else:
            self._hold(status.traits.recovery, now)

    def _refused(
        self, request: Request, fits: Callable[[Request], bool] | None, actions: list[Action]
    ) -> None:
        """A refusal does not say which request it is about. When that matters, all are written off: if the
        wrong one were removed, the next request might ask for more than there is room for."""
        if self._ledger.differ(fits):
            actions.extend(self._write_off(open_still=True))
        else:
            self._ledger.refused(request)

    def _ended_while_draining(self, status: Status) -> None:
        """No request follows; the driver only needs to know which are open."""
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
        # A pinned client gets messages with a header that the server did not count. Then only a status proves
        # that the fetch is complete.
        return bool(self._caps.size) and self._received_bytes >= self._caps.size and not self.pin_id

    def _fetch_pull(self, now: float) -> Actions:
        if not self._connected:
            return NOTHING
        expires = self._caps.expires
        if expires:
            expires = self._due_at - now
            if expires < _MIN_RESUME and now > self._started_at:
                # Its time is over, but only the server can say that there is nothing: ask for what is
                # available.
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
            # The stale pin is our bookkeeping, not the user's: ask once more, without it.
            self._unpinned = True
            return (ClearPin(), *self._fetch_pull(now))
        if status.traits.severity is not Severity.QUIET:
            return self._conclude(error_for(status))
        if status.kind is Kind.MESSAGE_TOO_LARGE and not self._received:
            return self._conclude(error_for(status))  # there is a message, so this is not an empty fetch
        return self._conclude()
