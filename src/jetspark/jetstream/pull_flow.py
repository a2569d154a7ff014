"""The pull machine: ADR-37's accounting, statuses and timers. No IO, no clock; ``now`` is an argument.

Theory of operation
===================

One machine serves ``consume`` (:class:`PullOptions`: keep a buffer filled) and ``fetch``/``next``
(:class:`FetchOptions`: one request, then conclude). A driver owns the subscription and the buffer. It
reports what happens, performs the actions that come back, and wakes the machine at ``next_deadline()``.

**Pending** (ADR-37 "Buffering messages") is what was requested minus what was processed. It has two parts
with different fates: *outstanding* (requested, not received; the ledger) and *buffered* (received, not
processed by the user). A disconnect or a lost heartbeat voids what is outstanding; what is buffered stays
and keeps its room. So pending is never above the limit, also across reconnects, unless the server still
honours requests that were written off.

**Bulk.** ``on_messages`` is called once for each received chunk and ``on_processed`` once for each bulk
that user code took; there is no work for a single message. Sizes are the server's ("Message Size
Calculation").

**Refill** ("Max messages and max bytes options"). When pending is at or below the threshold, one request
asks for all the room there is. "At or below" lets ``max_messages=1`` (threshold 0) pull again as soon as
its message was processed. With ``max_bytes`` a request names batch 1,000,000 and the room in bytes. The
consumer's own limits are learnt from its refusals ("Exceeded MaxRequestBatch of N" and its two siblings):
later requests stay within them, and several of them, at most 16 at a time, fill the buffer.

**Statuses** ("Status handling") are classified by the table in :mod:`statuses`. One that ends a request
takes with it what the headers say is left, or, without headers, the whole request; Leadership Change and
Server Shutdown take all. ``consume`` then pulls again, except after Consumer Deleted, Consumer is push
based, 400 and 412.

**Never a tight loop.** A refusal (503, MaxWaiting, ...) holds pulls for 0.1 s, doubling up to 1 s for as
long as an election takes, later up to 5 s; never longer than one heartbeat. What recovers at once
(leadership, shutdown, ...) does so the first time and is held like a refusal when it repeats. Messages,
heartbeats and plain time-outs reset the count. No recovery waits for the heartbeat alarm. A message larger
than the room left waits for room; one larger than any request can be is warned about and retried with
backoff, since an operator may remove it.

**Heartbeats** ("Idle heartbeats"). The alarm comes after two heartbeats without *received* traffic while
a request is outstanding. Without one the server owes nothing, so a slow handler with a full buffer raises
no alarm. If the driver wakes the machine late (user code blocked the loop), the machine first asks for a
moment to read what lies in the socket. The alarm warns, writes off what is outstanding and pulls again; a
fetch concludes with it.

**Client-side deadline** ("Operations", note). A request that is older than ``expires`` plus a grace of 1
to 5 s is written off. A fetch then concludes with what it has; messages still arriving extend its
deadline.

**Disconnects** ("Server reconnects"): timers pause and nothing is sent; on reconnect the machine pulls
again. It checks nothing and never terminates. A fetch asks for the rest, for the time it has left.

**Pins** (ADR-42): the driver reports ``Nats-Pin-Id`` values; each pull carries the last one. 423 drops
it, and the machine pulls again without, to stand by.

**The end.** ``stop`` discards the buffer. ``drain`` pulls no more, lets the driver unsubscribe, and
concludes when the buffer was processed. ``Conclude`` is the last action, and a concluded machine ignores
all events.
"""

from __future__ import annotations

from enum import Enum, unique
from typing import TYPE_CHECKING

from jetspark.jetstream.consume_errors import MessageTooLarge, MissedHeartbeat, PullUnanswered, error_for
from jetspark.jetstream.flow_actions import (
    NOTHING,
    Action,
    Actions,
    ClearPin,
    Conclude,
    SendPull,
    Unsubscribe,
    Warn,
)
from jetspark.jetstream.pull_ledger import Ledger, Request
from jetspark.jetstream.pull_options import BATCH_WITH_MAX_BYTES, FetchOptions, PullOptions
from jetspark.jetstream.statuses import Ends, Kind, Recovery, Severity, Status

if TYPE_CHECKING:
    from jetspark.errors import JetsparkError

BACKOFF_FIRST = 0.1
BACKOFF_MAX = 5.0
#: The server elects a leader within 9 s. The first tries, 12.5 s of them, find it soon after.
ELECTION_TRIES, ELECTION_PAUSE = 15, 1.0
MAX_REQUESTS = 16
#: A timer that fires so late was held up by user code: read the socket before believing the silence.
LATE = 0.02
LATE_PAUSE = 0.1
#: Below this a heartbeat alarm is noise; only reached when max_request_expires forces tiny requests.
_MIN_ALARM = 1.0
#: A fetch that is resumed after a reconnect asks for at least this long.
_MIN_RESUME = 0.05
_UNLIMITED = 1 << 62


@unique
class State(Enum):
    """Life of a machine."""

    NEW = "new"
    RUNNING = "running"
    DRAINING = "draining"
    CONCLUDED = "concluded"


class PullFlow:
    """See the module's theory of operation. All methods return the actions to perform, in order."""

    __slots__ = (
        "_batch_cap",
        "_buffered",
        "_buffered_bytes",
        "_bytes_cap",
        "_connected",
        "_due_at",
        "_expires",
        "_failures",
        "_fetch",
        "_grace",
        "_heartbeat",
        "_late_until",
        "_ledger",
        "_limit",
        "_limited",
        "_max_requests",
        "_must_exceed",
        "_no_wait",
        "_options",
        "_processed",
        "_quiet_since",
        "_received",
        "_received_bytes",
        "_retry_at",
        "_started_at",
        "_state",
        "_stop_after",
        "_threshold",
        "_unpinned",
        "_unsubscribed",
        "pin_id",
    )

    def __init__(
        self, options: PullOptions | FetchOptions, *, pin_id: str = "", connected: bool = True
    ) -> None:
        self._options = options
        self.pin_id = pin_id
        self._connected = connected
        self._state = State.NEW
        self._fetch = isinstance(options, FetchOptions)
        self._heartbeat = options.heartbeat
        self._batch_cap = _UNLIMITED
        self._stop_after: int | None = None
        self._no_wait = False
        if isinstance(options, FetchOptions):
            by_bytes = options.max_messages is None
            self._limit = options.batch
            self._threshold = 0
            self._bytes_cap = options.max_bytes or 0
            self._expires = options.wait
            self._no_wait = options.no_wait
        else:
            by_bytes = options.max_bytes is not None
            limit = options.max_bytes if options.max_bytes is not None else options.buffer_messages
            threshold = options.threshold_bytes if by_bytes else options.threshold_messages
            self._limit = limit or 1
            self._threshold = self._limit // 2 if threshold is None else threshold
            # 0 stands for a request without max_bytes; in a buffer of bytes the room is the cap.
            self._bytes_cap = self._limit if by_bytes else options.max_bytes_per_request or 0
            self._expires = options.expires
            self._stop_after = options.stop_after
        self._ledger = Ledger(by_bytes)
        # Only a lone request tells exactly how much of its nominal batch is left when its bytes are used up.
        self._max_requests = 1 if by_bytes and self._stop_after is not None else MAX_REQUESTS
        self._limited = False
        self._grace = min(max(1.0, self._expires / 10), 5.0) if self._expires else 5.0
        self._buffered = 0
        self._buffered_bytes = 0
        self._processed = 0
        self._received = 0
        self._received_bytes = 0
        self._failures = 0
        self._retry_at: float | None = None
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
    def buffered(self) -> int:
        """Received and not yet processed messages."""
        return self._buffered

    @property
    def deliverable(self) -> int:
        """How many more messages the user may get: all, or what is left of ``stop_after``."""
        if self._stop_after is None:
            return _UNLIMITED
        return max(0, self._stop_after - self._processed)

    @property
    def lacking(self) -> int:
        """How many messages a fetch has yet to receive; 0 for one that is limited by bytes."""
        return self._limit - self._received if self._fetch and not self._bytes_cap else 0

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
        if self._retry_at is not None:
            due = self._retry_at if due is None else min(due, self._retry_at)
        requests = self._ledger.requests
        if requests:
            if not self._fetch:
                due = requests[0].deadline if due is None else min(due, requests[0].deadline)
            if self._heartbeat:
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
        self._due_at = now + self._expires
        return self._pull(now)

    def on_messages(self, count: int, nbytes: int, now: float) -> Actions:
        """A chunk of user messages was received: once for each chunk, before they are handed out."""
        if self._state is State.CONCLUDED:
            return NOTHING
        self._traffic(now)
        self._failures = 0
        self._must_exceed = 0
        self._ledger.received(count, nbytes)
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
                self._failures = 0
            return NOTHING
        if self._state is not State.RUNNING:
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
        self._ledger.void()
        self._retry_at = None
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
        self._failures = 0
        self._retry_at = None
        self._must_exceed = 0
        self._traffic(now)
        return self._pull(now) if self._state is State.RUNNING else NOTHING

    def on_timer(self, now: float) -> Actions:
        """``next_deadline()`` has come. Read what lies in the socket first, if that can be done."""
        due = self.next_deadline()
        if due is None or now < due:
            return NOTHING
        if self._late_until is None and due != self._retry_at and now - due > LATE:
            self._late_until = now + LATE_PAUSE
            return NOTHING
        self._late_until = None
        if self._fetch and now >= self._due_at + self._grace:
            unanswered = PullUnanswered(now - self._started_at, self._expires)
            return (Warn(unanswered), *self._conclude())
        if not self._connected:
            return NOTHING
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
        actions: list[Action] = []
        if self._heartbeat and self._ledger.requests and now >= self._quiet_since + self._alarm_after:
            missed = MissedHeartbeat(now - self._quiet_since, self._heartbeat)
            if self._fetch:
                return self._conclude(missed)
            actions.append(Warn(missed))
            self._ledger.void()
            self._must_exceed = 0
        if not self._fetch:
            self._ledger.expire(now)
            actions.extend(self._refill(now))
        return tuple(actions)

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
        self._unsubscribed = True
        return self._conclude() if self._fetch else self._drained()

    def stop(self, now: float) -> Actions:
        """Conclude now and discard the buffer; the server delivers it again after ack_wait."""
        return NOTHING if self._state is State.CONCLUDED else self._conclude(discard=True)

    # --- accounting -----------------------------------------------------------------------------------

    @property
    def _alarm_after(self) -> float:
        return max(2 * self._heartbeat, _MIN_ALARM)

    def _traffic(self, now: float) -> None:
        self._quiet_since = now
        self._late_until = None

    def _conclude(self, error: JetsparkError | None = None, *, discard: bool = False) -> Actions:
        self._state = State.CONCLUDED
        self._ledger.void()
        return (Conclude(error, discard),)

    def _drained(self) -> Actions:
        return self._conclude() if not self._buffered and self._unsubscribed else NOTHING

    def _pull(self, now: float) -> Actions:
        if not self._fetch:
            return self._refill(now)
        return self._fetch_pull(now)

    def _refill(self, now: float) -> Actions:
        """ADR-37 "Message processing algorithm", steps 1 and 2."""
        ledger = self._ledger
        by_bytes = ledger.by_bytes
        pending = ledger.size + self._buffered_bytes if by_bytes else ledger.messages + self._buffered
        if pending > self._threshold:
            return NOTHING
        if self._state is not State.RUNNING or self._retry_at is not None or not self._connected:
            return NOTHING
        room = self._limit - pending
        if by_bytes and room <= self._must_exceed:
            return NOTHING
        wanted = _UNLIMITED
        if self._stop_after is not None:
            wanted = self._stop_after - self._processed - self._buffered - ledger.messages
        if not by_bytes:
            wanted = room = min(room, wanted)
        actions: list[Action] = []
        while room > 0 and wanted > 0 and len(ledger.requests) < self._max_requests:
            if by_bytes:
                batch, size = min(BATCH_WITH_MAX_BYTES, wanted, self._batch_cap), min(room, self._bytes_cap)
                room -= size
            else:
                batch, size = min(room, self._batch_cap), self._bytes_cap
                room -= batch
            wanted -= batch
            actions.append(self._request(batch, size, self._expires, now))
        self._limited = room > 0 and wanted > 0
        return tuple(actions)

    def _request(self, batch: int, size: int, expires: float, now: float) -> SendPull:
        if not self._ledger.requests:
            # Only from here on the server owes a sign of life.
            self._quiet_since = now
        self._ledger.add(Request(batch, size, expires, now + expires + self._grace, bool(self.pin_id)))
        options = self._options
        expires_ns = round(expires * 1e9)
        return SendPull(
            batch,
            size,
            expires_ns,
            min(round(self._heartbeat * 1e9), expires_ns // 2),
            self._no_wait,
            options.group or "",
            options.min_pending or 0,
            options.min_ack_pending or 0,
            options.priority,
            self.pin_id,
        )

    def _hold(self, recovery: Recovery, now: float) -> None:
        """Count a failure and suspend pulls, unless it is the first of a kind that recovers at once."""
        if self._retry_at is not None:
            return  # several requests failed together: one failure
        doublings = self._failures if recovery is Recovery.BACK_OFF else self._failures - 1
        self._failures += 1
        if doublings >= 0:
            longest = ELECTION_PAUSE if doublings < ELECTION_TRIES else BACKOFF_MAX
            ceiling = min(longest, self._heartbeat or longest)
            self._retry_at = now + min(BACKOFF_FIRST * 2.0 ** min(doublings, 30), ceiling)

    # --- statuses of consume --------------------------------------------------------------------------

    def _consume_ended(self, status: Status, now: float, actions: list[Action]) -> None:
        """Book the end of one or all requests, learn from it, and decide when to go on."""
        kind, ledger = status.kind, self._ledger
        if status.traits.ends is Ends.ALL:
            ledger.void()
            self._hold(Recovery.AT_ONCE, now)
            return
        left = status.pending
        if kind in _LIMITS:
            refused = self._learn_limit(status)
            if refused is not None and left is None:
                ledger.refused(refused)
            if refused is None or not self._now_within_limit(kind, refused):
                self._hold(Recovery.BACK_OFF, now)
            return
        pinned = kind is Kind.PIN_ID_MISMATCH and any(request.pinned for request in ledger.requests)
        if left is not None:
            ledger.ended(*left)
        else:
            request = ledger.newest((lambda r: r.pinned) if pinned else None)
            if request is not None:
                ledger.refused(request)
        if kind is Kind.PIN_ID_MISMATCH:
            if self.pin_id:
                self.pin_id = ""
                actions.append(ClearPin())
            if not pinned:
                self._hold(Recovery.AT_ONCE, now)
        elif kind is Kind.MESSAGE_TOO_LARGE:
            self._too_large(status, left, now, actions)
        elif kind in (Kind.REQUEST_TIMEOUT, Kind.BATCH_COMPLETED):
            self._failures = 0  # a request that lived its life
        else:
            self._hold(status.traits.recovery, now)

    def _learn_limit(self, status: Status) -> Request | None:
        """Adopt the limit that a refusal names; the request it must be about."""
        ledger, count, seconds = self._ledger, status.limit_count, status.limit_seconds
        if status.kind is Kind.MAX_REQUEST_BATCH and count:
            self._batch_cap = min(self._batch_cap, count)
            return ledger.newest(lambda request: request.batch > count)
        if status.kind is Kind.MAX_REQUEST_MAX_BYTES and count:
            self._bytes_cap = min(self._bytes_cap, count) if self._bytes_cap else count
            return ledger.newest(lambda request: request.max_bytes > count)
        if status.kind is Kind.MAX_REQUEST_EXPIRES and seconds:
            self._expires = min(self._expires, seconds)
            self._heartbeat = min(self._heartbeat, self._expires / 2)
            return ledger.newest(lambda request: request.expires > seconds)
        return ledger.newest()

    def _now_within_limit(self, kind: Kind, refused: Request) -> bool:
        """Whether the next request will be smaller than the refused one, so that it may go out at once."""
        if kind is Kind.MAX_REQUEST_BATCH:
            return refused.batch > self._batch_cap
        if kind is Kind.MAX_REQUEST_MAX_BYTES:
            return refused.max_bytes > self._bytes_cap
        return refused.expires > self._expires

    def _too_large(
        self, status: Status, left: tuple[int, int] | None, now: float, actions: list[Action]
    ) -> None:
        """The next message needs more bytes than the request had left."""
        size = left[1] if left is not None else 0
        largest = min(self._limit, self._bytes_cap) if self._ledger.by_bytes else self._bytes_cap
        if size >= largest or left is None:
            actions.append(Warn(MessageTooLarge(status.code, status.description)))
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
        return bool(self._bytes_cap) and self._received_bytes >= self._bytes_cap and not self.pin_id

    def _fetch_pull(self, now: float) -> Actions:
        if not self._connected:
            return NOTHING
        expires = self._expires
        if expires:
            expires = self._due_at - now
            if expires < _MIN_RESUME and now > self._started_at:
                return self._conclude()
        size = max(1, self._bytes_cap - self._received_bytes) if self._bytes_cap else 0
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
            return (Warn(error_for(status)), *self._conclude())
        return self._conclude()


_LIMITS = frozenset({Kind.MAX_REQUEST_BATCH, Kind.MAX_REQUEST_EXPIRES, Kind.MAX_REQUEST_MAX_BYTES})
