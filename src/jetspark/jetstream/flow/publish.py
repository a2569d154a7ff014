"""The pipelined publisher's machine: which messages may be sent, in which order, and how they end.

Theory of operation
-------------------
Messages are numbered from 1; the serial is the last token of a message's reply subject. ``pending`` holds the
messages without a reply, in order of their serials. Messages are sent for the first time in that order
too, so two numbers describe the position: ``serial``, the last message accepted, and ``sent``, the last one
sent. Messages between the two wait here, not in the connection's buffer: while there is no link, and while
older ones have to go first.

The window counts messages without a reply. Large messages are counted in bytes as well, because a stream
buffers 128 MiB ahead of its disk and refuses the rest.

Lost link. A message that was sent and must not be sent again fails: it may or may not be stored. A message
may be sent again when ``retry`` is on, it has a ``msg_id`` (the server then drops a second copy), and it
expects no sequence (a stream without replicas checks the sequence before the id, and would refuse what it
stored).

Recovery. With ``retry``, messages are sent again, oldest first, in three cases: when the link is restored;
when a message that may be sent again was refused with "try again" (no stream responds, or "this msg_id is in
process"), after ``RETRY_WAIT``; and when no ack came for a quarter of ``ack_timeout`` (the leader of a
replicated stream died). During recovery two rules keep the order:

- Newer messages wait until all older ones were sent again.
- A subject is *proven* when its stream has acked a message of this recovery. At first one message is sent
  alone. Once it is acked, others follow, but only one at a time for each subject that is not proven. So a
  stream that is not ready yet can refuse the oldest message of a subject, but cannot store a newer one first.

Without ``retry`` a refusal is final, so after a lost link everything that waits is sent immediately, in
order.

Time. ``ack_timeout`` counts from the first time a message is sent; without a link, from when it was
accepted. Messages that wait for older ones do not expire: the older ones do, and make room. A message that
was accepted longer ago than ``ack_timeout`` is not retried when it is refused.

Copies. A message that is refused is not stored, unless another copy of it has no reply: a copy sent
earlier over this link, or over an earlier link. Then the error says that the message may be stored.

Permissions. The server reports a refused publish only by its subject, once per copy. Messages sent before
the permission was revoked are stored, and their acks may arrive after the report. So nothing fails until
there are as many reports as unanswered copies to that subject: then all of these were refused. If
that never happens, ``ack_timeout`` ends the wait with an error that says the message may be stored. When a
message leaves, the reports that may have been about its copies leave with it. (The count is right as long as
nothing else publishes to the same subject over the same connection.)

Events in, decisions out; time is an argument. In the blocking publisher, threads call ``add``; its lock
covers every call here. The one exception is a reply to a plain message (``plain``): it is settled without the
lock, by removing the message from ``pending``, which is a single statement.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from jetspark.errors import ConnectionClosed, ConnectionLost, JetsparkError, RequestTimeout

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Smaller messages fill the default window long before they fill a stream's buffer.
LARGE = 16_384
MAX_LARGE_BYTES = 32 * 1_048_576
RETRY_WAIT = 0.25
# The common prefix of the header names Nats-Expected-Last-Sequence and -Last-Subject-Sequence.
_EXPECTED_SEQUENCE = b"Nats-Expected-Last-S"

# The receiver of the ack; the subject; the index in a batch; (data, header block) or a sequence that has them
# at that index, None when no longer needed; whether it may be sent again. A plain tuple: there is
# one per message, and the compiled core reads the first item.
Flight = tuple[Any, str, int, Any, bool]


def may_repeat(msg_id: str | None, block: bytes | None) -> bool:
    """Whether a second copy of a message is harmless."""
    return msg_id is not None and block is not None and _EXPECTED_SEQUENCE not in block


def contents(flight: Flight) -> tuple[bytes, bytes | None]:
    """Data and header block of a message to be sent."""
    body = flight[3]
    found: tuple[bytes, bytes | None] = body if type(body) is tuple else body[flight[2]]
    return found


def _size(flight: Flight) -> int:
    data, block = contents(flight)
    return len(data) + len(block or b"")


def _unsure(error: JetsparkError, why: str = "no ack came before it was sent again") -> JetsparkError:
    """The error for a message that may be stored, whatever ``error`` says."""
    unsure = RequestTimeout(f"{why}, so the message may be stored: {error}")
    unsure.__cause__ = error
    return unsure


class _Refusals:
    """Reports that publishing to a subject is not permitted, and the messages they may be about.

    ``copies``: how many copies of these were sent over this link and have no reply.
    """

    __slots__ = ("copies", "count", "error", "serials")

    def __init__(self, error: JetsparkError) -> None:
        self.count = self.copies = 0
        self.serials: set[int] = set()
        self.error = error


class PublishFlow:
    """See the module docstring."""

    def __init__(self, *, window: int, ack_timeout: float, retry: bool) -> None:
        self.window = window
        self.ack_timeout = ack_timeout
        self.retry = retry
        self.pending: dict[int, Flight] = {}
        self.serial = 0
        self.sent = 0
        self.unsent_bytes = 0
        self.linked = False
        self.recovering = False
        self.large: dict[int, int] = {}
        # Two sums that only grow, so they can be read without the lock.
        self.large_sent = self.large_done = 0
        self._todo: deque[int] = deque()
        self._resume_at: float | None = None
        self._last_try = 0.0
        self._awaited: dict[str, int] = {}  # for each subject that is not proven, the message that goes first
        self._proven: set[str] = set()
        self._refusals: dict[str, _Refusals] = {}
        # For messages sent again: the number of copies sent over this link without a reply. Others have one.
        self._copies: dict[int, int] = {}
        self._unsure: set[int] = set()  # messages with a copy that was sent over an earlier link
        self._failed: list[tuple[Flight, JetsparkError]] = []
        self._marks: deque[tuple[float, int, int]] = deque()  # time, sent, serial
        self._too_old = 0  # messages up to this one were accepted longer ago than ack_timeout
        self._next_tick = 0.0

    # Room

    @property
    def full(self) -> bool:
        """Whether there is no room for another message."""
        return len(self.pending) >= self.window or self.large_sent - self.large_done > MAX_LARGE_BYTES

    @property
    def plain(self) -> bool:
        """Whether an ack does nothing more than remove its message from ``pending``."""
        return not (self.recovering or self.large or self._copies or self._refusals)

    def unsettled(self, last: int) -> bool:
        """Whether any message up to this one has no reply."""
        return next(iter(self.pending), last + 1) <= last

    # Messages

    def add(
        self, target: Any, subject: str, index: int, data: bytes, block: bytes | None, again: bool
    ) -> int:
        """Accept a message; returns its serial. If it counts as ``sent`` afterwards, send it immediately."""
        self.serial = serial = self.serial + 1
        if len(data) > LARGE:
            self.large[serial] = len(data)
            self.large_sent += len(data)
        if self.linked and not self.recovering:
            self.sent = serial
            body = (data, block) if again and self.retry else None
            self.pending[serial] = (target, subject, index, body, body is not None)
            if self._refusals:
                self._note_sent(serial, subject)
        else:
            self.pending[serial] = (target, subject, index, (data, block), again and self.retry)
            self.unsent_bytes += len(data) + len(block or b"")
            self._queue((serial,))
        return serial

    def add_many(
        self, target: Any, subjects: Sequence[str], body: Any, start: int, stop: int, again: bool
    ) -> int:
        """Accept the messages from ``start`` to ``stop`` of a batch, none of them large; returns the first
        serial.

        If the last of them counts as ``sent`` afterwards, send them immediately.
        """
        first, again = self.serial + 1, again and self.retry
        now = self.linked and not self.recovering
        kept = body if again or not now else None
        serials = range(first, first + stop - start)
        self.pending.update(
            {
                serial: (target, subject, index, kept, again)
                for serial, index, subject in zip(
                    serials, range(start, stop), subjects[start:stop], strict=True
                )
            }
        )
        self.serial = serials[-1]
        if not now:
            self._queue(serials)
            self.unsent_bytes += sum(_size(self.pending[serial]) for serial in serials)
        else:
            self.sent = self.serial
            if self._refusals:
                for serial, subject in zip(serials, subjects[start:stop], strict=True):
                    self._note_sent(serial, subject)
        return first

    def withdraw(self, serial: int) -> bool:
        """Forget a message that could not be sent; False when it already has its reply."""
        return self._take(serial) is not None

    def due(self) -> list[tuple[int, Flight, bool]]:
        """What to send now, in order: serial, message, and whether it is the first time.

        Call it again when one of them could not be sent.
        """
        found: list[tuple[int, Flight, bool]] = []
        if not (self.linked and self.recovering) or self._resume_at is not None:
            return found
        while self._todo:
            serial = self._todo[0]
            flight = self.pending.get(serial)
            if flight is not None and (serial > self.sent or flight[4]):
                subject = flight[1]
                if self.retry and subject not in self._proven:
                    if self._awaited and (not self._proven or subject in self._awaited):
                        return found
                    self._awaited[subject] = serial
                first = serial > self.sent
                found.append((serial, flight, first))
                if first:
                    self.sent = serial
                    self.unsent_bytes -= _size(flight)
                    if not flight[4]:
                        self.pending[serial] = (*flight[:3], None, False)
                else:
                    self._copies[serial] = self._copies.get(serial, 1) + 1
                if self._refusals:
                    self._note_sent(serial, subject)
            self._todo.popleft()
        if not self._awaited:
            self.recovering = False
            self._proven.clear()
        return found

    # Answers

    def acked(self, serial: int) -> Flight | None:
        """The message is stored. None: it already had its reply."""
        flight = self.pending.get(serial)
        if flight is None or serial > self.sent:
            return None  # it can't be stored, because it was not sent
        if self._awaited.get(flight[1]) == serial:
            self._proven.add(flight[1])
        return self._take(serial)

    def refused(
        self, serial: int, now: float, error: JetsparkError, *, try_again: bool
    ) -> tuple[Flight, JetsparkError] | None:
        """A copy was refused. Returns the message with its error; None: it had its reply, or is to be
        resent."""
        flight = self.pending.get(serial)
        if flight is None or serial > self.sent:
            return None
        copies = self._copies.get(serial, 1)
        if try_again and flight[4] and serial > self._too_old:
            if copies:
                self._copies[serial] = copies - 1
                if self._refusals and (refusals := self._refusals.get(flight[1])) is not None:
                    refusals.copies -= serial in refusals.serials
                    self._check_refusals(flight[1], refusals)
            self._recover(now + RETRY_WAIT)
            return None
        if copies > 1 or serial in self._unsure:
            error = _unsure(error)
        self._take(serial)
        return flight, error

    def publish_refused(self, subject: str, error: JetsparkError) -> None:
        """The server reports that publishing a message to this subject was not permitted."""
        if not self.linked:
            return
        refusals = self._refusals.get(subject)
        if refusals is None:
            refusals = _Refusals(error)
            for serial, flight in self.pending.items():
                if flight[1] == subject and serial <= self.sent and (copies := self._copies.get(serial, 1)):
                    refusals.serials.add(serial)
                    refusals.copies += copies
            if not refusals.serials:
                return
            self._refusals[subject] = refusals
        refusals.count += 1
        self._check_refusals(subject, refusals)

    def take_failed(self) -> list[tuple[Flight, JetsparkError]]:
        """Messages that have failed since the last call, and why."""
        failed, self._failed = self._failed, []
        return failed

    # The link

    def begin(self, now: float, *, linked: bool) -> None:
        """The publisher is open."""
        self.linked = linked
        self.recovering = False
        self._resume_at = None
        self._marks.clear()
        self._tick(now)

    def link_dropped(self) -> None:
        """The link is gone: nothing may be sent."""
        self.linked = self.recovering = False
        self._resume_at = None
        self._refusals.clear()

    def link_lost(self, error: JetsparkError) -> None:
        """Messages that were sent and must not be sent again fail."""
        lost = ConnectionLost(f"connection lost before the ack came; the message may be stored: {error}")
        for serial, flight in list(self.pending.items()):
            if serial <= self.sent and not flight[4]:
                self._fail(serial, lost)

    def link_restored(self, now: float) -> None:
        """Everything pending is to be sent, in order."""
        self.linked = True
        for serial in self.pending:
            if serial > self.sent:
                break
            if self._copies.get(serial, 1):
                self._unsure.add(serial)
            self._copies[serial] = 0
        self._recover(now)
        self._resume(now)

    def close(self, error: JetsparkError) -> None:
        """No message will be sent or answered any more."""
        self.link_dropped()
        sent = error
        if not isinstance(error, ConnectionClosed | ConnectionLost):  # e.g. no permission for acks
            sent = _unsure(error, "no ack can come")
        for serial in list(self.pending):
            self._fail(serial, sent if serial <= self.sent else error)
        self._todo.clear()

    # Time

    def next_deadline(self) -> float:
        """When to call ``on_timer``."""
        return self._next_tick if self._resume_at is None else min(self._next_tick, self._resume_at)

    def on_timer(self, now: float) -> None:
        """Check for overdue acks; call ``due`` afterwards."""
        if now >= self._next_tick:
            self._tick(now)
        if self._resume_at is not None and now >= self._resume_at:
            self._resume(now)

    def _tick(self, now: float) -> None:
        self._next_tick = now + self.ack_timeout / 8
        self._marks.append((now, self.sent, self.serial))
        expired = 0
        while now - self._marks[0][0] >= self.ack_timeout:
            _, expired, self._too_old = self._marks.popleft()
        if not self.linked:
            expired = max(expired, self._too_old)
        if self.unsettled(expired):
            error = RequestTimeout(
                f"no ack within ack_timeout={self.ack_timeout:g}s; the message may be stored"
            )
            never_sent = RequestTimeout(
                f"not connected within ack_timeout={self.ack_timeout:g}s; the message was not sent"
            )
            for serial in [one for one in self.pending if one <= expired]:
                self._fail(serial, error if serial <= self.sent else never_sent)
        if self.retry and self.linked and self._resume_at is None:
            self._look_for_overdue(now)

    def _look_for_overdue(self, now: float) -> None:
        """A leader that died took its acks with it, and no broken connection revealed it."""
        patience = self.ack_timeout / 4
        if now - self._last_try < patience:
            return
        overdue = 0
        for marked, sent, _ in self._marks:
            if now - marked < patience:
                break
            overdue = sent
        if self._awaited or any(one <= overdue and flight[4] for one, flight in self.pending.items()):
            self._recover(now)

    # Internals

    def _recover(self, at: float) -> None:
        """Starting at ``at``, send everything again that may be sent again."""
        self.recovering = True
        self._awaited.clear()
        self._proven.clear()
        if self._resume_at is None or at < self._resume_at:
            self._resume_at = at

    def _queue(self, serials: Iterable[int]) -> None:
        if self.linked and self._resume_at is None:  # otherwise all of pending will be queued
            self._todo.extend(serials)

    def _resume(self, now: float) -> None:
        self._resume_at = None
        self._last_try = now
        self._todo = deque(self.pending)

    def _take(self, serial: int, *, answered: bool = True) -> Flight | None:
        flight = self.pending.pop(serial, None)
        if flight is None:
            return None
        if self.large:
            self.large_done += self.large.pop(serial, 0)
        if serial > self.sent:
            self.unsent_bytes -= _size(flight)
        subject, copies = flight[1], 1
        if self._copies:
            copies = self._copies.pop(serial, 1)
            if serial in self._unsure:
                self._unsure.discard(serial)
                answered = False  # for this link; the reply may belong to a copy sent over an earlier one
        if self._awaited.get(subject) == serial:
            del self._awaited[subject]
        if self._refusals and (refusals := self._refusals.get(subject)) is not None:
            if serial in refusals.serials:
                refusals.serials.discard(serial)
                refusals.copies -= copies
                # A copy without a reply may be the one that a report was about.
                refusals.count -= max(0, copies - answered)
            self._check_refusals(subject, refusals)
        return flight

    def _fail(self, serial: int, error: JetsparkError) -> None:
        flight = self._take(serial, answered=False)
        if flight is not None:
            self._failed.append((flight, error))

    def _note_sent(self, serial: int, subject: str) -> None:
        if (refusals := self._refusals.get(subject)) is not None:
            refusals.serials.add(serial)
            refusals.copies += 1

    def _check_refusals(self, subject: str, refusals: _Refusals) -> None:
        """When there are as many reports as copies without a reply, all of these were refused."""
        if refusals.count <= 0:
            del self._refusals[subject]
        elif refusals.copies <= refusals.count:
            del self._refusals[subject]
            for serial in sorted(refusals.serials):
                if self._copies.get(serial, 1):  # otherwise it is to be sent again
                    error = refusals.error
                    self._fail(serial, _unsure(error) if serial in self._unsure else error)
