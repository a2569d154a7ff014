"""What a JetStream work consumer owes its clients: a model that is told of everything and finds mismatches.

A message is *new* until its first delivery, then *out* until it is acked or termed. While it is out it may
come again: when ack_wait has passed since the server sent it, or after a nak. The model knows when it asked
and when it got something, not when the server sent it, so each rule is about what both can be sure of:

- a delivery is of a stored message, with the body that was stored under that sequence;
- no delivery is handed out twice: consumer sequences are unique;
- of one message, later deliveries have higher delivery counts; first deliveries come in the stream's order;
- it does not come again before ack_wait, unless it was nak'ed (not before the delay) or the server restarted
  (which keeps the times of deliveries in whole seconds);
- once an ack is confirmed, nothing is delivered that the server had not sent by then;
- the consumer's figures agree: num_pending, num_ack_pending, max_ack_pending, and at the end all is zero.

A server that restarts while it works may forget what it did last (deliveries and acks of the last moments; it
writes a consumer's state behind its back), and then gives the same numbers again. From such a restart on only
bodies are checked, and that everything is delivered and acked in the end; a restart at rest changes nothing.

Acks are confirmed by ``ack_sync``. One consumer's acks are processed in the order in which a link brings
them, so a confirmed one confirms all that were sent before it on the same link.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetspark import ConsumerInfo, Metadata

#: How much too early something may seem.
SLACK = 0.1


@dataclass(slots=True)
class Delivery:
    """One delivery that was handed out. ``since``: the server did not send it before that."""

    consumer_seq: int
    count: int
    since: float


@dataclass(slots=True)
class Entry:
    """One stored message."""

    number: int
    deliveries: list[Delivery] = field(default_factory=list)
    #: When it may come again because of a nak: at once or after a delay, from then on.
    again_at: float | None = None
    #: The links on which an ack or a term was sent.
    ended_on: list[int] = field(default_factory=list)
    confirmed: bool = False
    #: The server's last delivery at a time when the ack was confirmed.
    floor: int | None = None


class Model:
    """Told of publishes, deliveries and acks; ``mismatches`` says what should not have been."""

    def __init__(self, ack_wait: float, max_ack_pending: int) -> None:
        self.ack_wait = ack_wait
        self.max_ack_pending = max_ack_pending
        self.entries: dict[int, Entry] = {}
        self.mismatches: list[str] = []
        self.stored = 0
        self.attempted = 0
        self.forgetful = False
        self._handed: set[int] = set()
        self._restarted_at = float("-inf")

    def require(self, kept: bool, problem: str) -> None:
        if not kept:
            self.mismatches.append(problem)

    # Publishing

    def attempt(self) -> int:
        """The number of the next message; it may be stored from now on."""
        self.attempted += 1
        return self.attempted

    def published(self, number: int, seq: int) -> None:
        """The server has confirmed that it is stored."""
        entry = self.entries.setdefault(seq, Entry(number))
        self.require(entry.number == number, f"{number} is said to be stored as {seq}, as is {entry.number}")
        self.require(seq == number, f"{number} is stored as {seq}: one was lost or stored twice")
        self.stored = max(self.stored, seq)

    # Deliveries

    def took(self, body: bytes, metadata: Metadata, since: float, now: float) -> None:
        """A message was handed out that was asked for at ``since``."""
        seq, count = metadata.sequence.stream, metadata.num_delivered
        number = int(body)
        name = f"message {seq}, delivery {count} ({metadata.sequence.consumer})"
        self.require(number <= self.attempted, f"{name}: {number} was never published")
        entry = self.entries.setdefault(seq, Entry(number))
        self.require(entry.number == number, f"{name}: its body is {number}, not {entry.number}")
        if not self.forgetful:
            self._check_delivery(name, entry, metadata, now)
        self._handed.add(metadata.sequence.consumer)
        entry.deliveries.append(Delivery(metadata.sequence.consumer, count, since))

    def _check_delivery(self, name: str, entry: Entry, metadata: Metadata, now: float) -> None:
        self.require(metadata.sequence.consumer not in self._handed, f"{name}: handed out twice")
        if entry.floor is not None:
            self.require(
                metadata.sequence.consumer <= entry.floor,
                f"{name}: sent after its ack was confirmed at delivery {entry.floor}",
            )
        if metadata.num_delivered == 1:
            self._check_first(name, metadata)
        self._check_counts(name, entry, metadata)
        if entry.deliveries:
            self._check_time(name, entry, now)

    def _check_first(self, name: str, metadata: Metadata) -> None:
        seq = metadata.sequence
        for other_seq, other in self.entries.items():
            for one in other.deliveries:
                if one.count == 1 and (one.consumer_seq < seq.consumer) != (other_seq < seq.stream):
                    self.mismatches.append(f"{name}: overtook the first delivery of {other_seq}")
        # It may say less: the server counts what was just stored a moment later.
        self.require(
            metadata.num_pending <= self.attempted - seq.stream,
            f"{name}: says {metadata.num_pending} pending, {self.attempted} were published",
        )

    def _check_counts(self, name: str, entry: Entry, metadata: Metadata) -> None:
        for one in entry.deliveries:
            later = one.consumer_seq < metadata.sequence.consumer
            self.require(
                (one.count < metadata.num_delivered) == later,
                f"{name}: another was delivery {one.count} ({one.consumer_seq})",
            )

    def _check_time(self, name: str, entry: Entry, now: float) -> None:
        last = max(entry.deliveries, key=lambda one: one.consumer_seq)
        if last.since < self._restarted_at:
            return
        due = last.since + self.ack_wait
        if entry.again_at is not None:
            due = min(due, entry.again_at)
        self.require(now >= due - SLACK, f"{name}: {due - now:.2f} s too early")

    # Acks

    def ended(self, seq: int, link: int) -> None:
        """An ack or a term was sent."""
        self.entries[seq].ended_on.append(link)

    def naked(self, seq: int, now: float, delay: float) -> None:
        """A nak was sent: any later delivery may be due to it."""
        entry = self.entries[seq]
        entry.again_at = min(now + delay, entry.again_at or float("inf"))

    def confirmed(self, seq: int, link: int) -> None:
        """The server has confirmed an ack that was asked for and answered on this link."""
        self.entries[seq].confirmed = True
        for entry in self.entries.values():
            if link in entry.ended_on:
                entry.confirmed = True

    def unfloored(self) -> list[Entry]:
        """Confirmed ones for which the position of the server is not known: take it before asking."""
        return [entry for entry in self.entries.values() if entry.confirmed and entry.floor is None]

    # The server

    def restarted(self, now: float, *, at_rest: bool) -> None:
        self._restarted_at = now
        self.forgetful = self.forgetful or not at_rest

    @property
    def last_handed(self) -> int:
        """The last delivery that was handed out."""
        return max(self._handed, default=0)

    def observed(self, info: ConsumerInfo, confirmed: list[Entry], handed: int) -> None:
        """The consumer's info; ``confirmed`` and ``handed`` are from before it was asked for."""
        if self.forgetful:
            return
        for entry in confirmed:
            entry.floor = info.delivered.consumer_seq
        self.require(
            info.num_ack_pending <= self.max_ack_pending,
            f"{info.num_ack_pending} wait for their ack, the limit is {self.max_ack_pending}",
        )
        self.require(
            info.delivered.consumer_seq >= handed,
            f"the server is at delivery {info.delivered.consumer_seq}, {handed} came before",
        )

    def disagreement(self, info: ConsumerInfo) -> list[str]:
        """What is wrong with the consumer's figures, when nobody acts."""
        if self.forgetful:
            return []
        found = []
        last = info.delivered.stream_seq
        if info.num_pending != self.stored - last:
            found.append(f"num_pending {info.num_pending}, but {last} of {self.stored} were delivered")
        settled = sum(entry.confirmed for entry in self.entries.values())
        out = sum(bool(entry.deliveries) and not entry.ended_on for entry in self.entries.values())
        if not out <= info.num_ack_pending <= last - settled:
            found.append(f"num_ack_pending {info.num_ack_pending}, but {out} to {last - settled} are out")
        return found

    def finished(self, info: ConsumerInfo, messages: int, last_seq: int, *, work_queue: bool) -> None:
        """All is over, and the server says that nothing is pending."""
        self.require(last_seq == self.stored, f"{last_seq} messages in the stream, {self.stored} published")
        expected = 0 if work_queue else self.stored
        self.require(messages == expected, f"{messages} messages left in the stream, not {expected}")
        for seq in range(1, self.stored + 1):
            entry = self.entries.get(seq)
            if entry is None or not entry.deliveries:
                self.mismatches.append(f"message {seq} was never delivered")
            elif not entry.ended_on:
                self.mismatches.append(f"message {seq} is gone, though nobody acked it")
        self.require(
            self.forgetful or (info.ack_floor.stream_seq, info.num_redelivered) == (self.stored, 0),
            f"at the end ack floor {info.ack_floor.stream_seq}, {info.num_redelivered} redelivered",
        )
