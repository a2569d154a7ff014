"""The truth about streams, kept without jetspark, and what a reader owes to say about it.

Every message that was ever stored is remembered, with the reason why it is gone if it is. A *life* is a
stream between its creation and its deletion. A restore from an older backup stays the same life: the stream's
``created`` time is the same, but sequences behind the backup's end are used again for other messages. So
messages are told apart by their payload, which is a number of our own.

`duty` is the contract as one pure function: which missing messages have to be told, which may be, and which
must not. WARN is for losses that need not end a query with ``failOnDataLoss=true``, but have to be named:

- A stream at its limits loses its oldest messages all the time. Were it an error that some went between the
  planning and the first row of the first batch, nobody could read such a stream from its beginning.
- Where messages have TTLs, nothing tells a purge from their end.

(One message alone that is gone from the head is a warning as well: nothing tells a purge from a single
delete there. That is for the judge, who knows what was named together.)

MAY is for what no reader can know, because two histories leave the server in the same state:

- A head that moved says nothing about why. So messages that were deleted one by one *at the head*, or were
  replaced and then passed by a head that limits moved, look like a purge, and a purge by subject looks like
  single deletes. Silence about a real loss is the greater evil, so a purge must be told, and an alarm
  about single deletes at the head is accepted.
- Where the head has passed a query with a filter, nothing tells the subjects of what is gone. An alarm that
  says so is accepted.
- Where a stream replaced values in the same stretch, a purge in it can't be told from that. Nor can a purge
  of a work queue or interest stream be told from acks, where the query has a filter.
- A sequence that was lost by a restore and is used again looks like the message that was there before.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from support.raw_nats import RawApiError, RawNats

STREAM_NOT_FOUND = 10059


class Cause(StrEnum):
    """Why a message is gone."""

    DELETED = "deleted singly"
    TTL = "expired by its own TTL"
    REPLACED = "replaced by a newer one of its subject"
    CONSUMED = "consumed by a worker"
    RELEASED = "released by the query itself"
    PURGED = "purged"
    PURGED_BY_SUBJECT = "purged by subject"
    AGED = "expired by max_age"
    PUSHED_OUT = "pushed out by max_msgs or max_bytes"
    TAIL_LOST = "lost by a restore"
    STREAM_GONE = "its stream was deleted"


LOSSES = frozenset({Cause.PURGED, Cause.AGED, Cause.PUSHED_OUT, Cause.TAIL_LOST, Cause.STREAM_GONE})


class Say(Enum):
    """What a reader owes about a missing message."""

    MUST = "must be told"
    WARN = "must be told, be it as a warning"
    MAY = "may be told"
    MUST_NOT = "must not be told"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A message of a query's range that is not among its rows, and what decides whether that is told.

    ``claimed``: it was there when the range was planned. ``beginning``: the range begins wherever the stream
    did. ``preceded``: the batch has rows before it. ``head``: the stream begins behind it now. ``queue``:
    messages go when they are acked (work queue, interest). ``limited``: the stream has limits of age, number
    or size. ``ttl``: its messages may have TTLs. ``mixed``: messages of the same stretch were replaced.
    ``reused``: its sequence belongs to another message now.
    ``passed``: a loss has moved the head over it: messages behind it were purged, have expired or were pushed
    out, or ones before it were when it was gone already. ``thinned``: subjects have vanished, or none has as
    many messages as ``max_msgs_per_subject`` allows, for which docs/spark.md announces an error.
    ``filtered``: the query has a filter.
    """

    cause: Cause
    matches: bool = True
    claimed: bool = True
    beginning: bool = False
    preceded: bool = False
    head: bool = True
    queue: bool = False
    limited: bool = False
    ttl: bool = False
    mixed: bool = False
    reused: bool = False
    passed: bool = False
    thinned: bool = False
    filtered: bool = False


def duty(case: Case) -> Say:
    """The contract. `tests/unit/test_source_truth.py` has it as a table."""
    cause = case.cause
    if cause in (Cause.STREAM_GONE, Cause.TAIL_LOST):
        return Say.MUST if case.matches and not case.reused else Say.MAY
    if cause in (Cause.DELETED, Cause.TTL, Cause.PURGED_BY_SUBJECT):
        return Say.MAY if case.head else Say.MUST_NOT
    if cause is Cause.RELEASED:
        return Say.MUST_NOT
    if cause is Cause.REPLACED:
        # Only full subjects prove replacement. On a queue that is read as a whole acks thin them.
        unclear = case.passed or case.thinned or (case.queue and not case.filtered)
        return Say.MAY if case.head and unclear else Say.MUST_NOT
    if cause is Cause.CONSUMED:
        # Who reads all of a queue may want to know that others take from it.
        return Say.MAY if case.head and (case.limited or not case.filtered) else Say.MUST_NOT
    # Purged, expired or pushed out.
    if case.queue and case.filtered:
        return Say.MAY
    if case.beginning and not case.claimed:
        return Say.MUST_NOT
    if not case.matches or case.mixed:
        return Say.MAY
    edge = case.beginning and case.limited and (case.filtered or not case.preceded)
    return Say.WARN if edge or case.ttl else Say.MUST


@dataclass(slots=True, eq=False)
class Message:
    """A message that was stored. ``gone_at`` is the step in which it was found to be gone."""

    number: int
    stream: str
    created: str
    sequence: int
    subject: str
    payload: bytes
    stored_at: int
    ttl: float | None = None
    expires: float = 0.0
    gone: Cause | None = None
    gone_at: int = 0
    back_at: int = 0
    """A server that was killed forgets what it removed last: then it is there again."""

    def __str__(self) -> str:
        return f"{self.stream}/{self.sequence} ({self.subject}, no. {self.number})"


@dataclass(slots=True, eq=False)
class Life:
    """A stream from its creation to its deletion."""

    name: str
    created: str
    config: dict[str, Any]
    now: dict[int, Message] = field(default_factory=dict)
    """Who has or had each sequence, by the present count."""
    before: list[Message] = field(default_factory=list)
    """Whose sequence was given to another message after a restore."""
    existing: set[int] = field(default_factory=set)
    first: int = 1
    last: int = 0
    restored_at: int = 0
    ended_at: int = 0
    returned_at: int = 0
    """When a restore first brought it back after its deletion."""

    @property
    def queue(self) -> bool:
        return bool(self.config.get("retention", "limits") != "limits")

    @property
    def ttl(self) -> bool:
        return bool(self.config.get("allow_msg_ttl"))

    @property
    def limited(self) -> bool:
        return any(int(self.config.get(name, 0)) > 0 for name in ("max_age", "max_msgs", "max_bytes"))

    def ever(self) -> list[Message]:
        """All messages that it ever stored."""
        return [*self.now.values(), *self.before]

    @property
    def thinned(self) -> bool:
        """Whether subjects have vanished, or none is as full as ``max_msgs_per_subject`` allows."""
        counts = Counter(self.now[sequence].subject for sequence in self.existing)
        limit = int(self.config.get("max_msgs_per_subject", 0))
        return {one.subject for one in self.ever()} > set(counts) or max(counts.values(), default=0) < limit

    def reused(self, message: Message) -> bool:
        """Whether another message has its sequence, or nobody has it any more."""
        return self.now.get(message.sequence) is not message

    def succeeded(self, message: Message) -> bool:
        """Whether another message got its sequence later, be it gone again or not."""
        return any(
            one.sequence == message.sequence and one.stored_at > message.stored_at for one in self.ever()
        )


@dataclass(frozen=True, slots=True)
class Backup:
    """The truth at the time of a backup: which lives there were, with their messages."""

    lives: dict[str, tuple[Life, dict[int, Message], set[int], dict[str, Any]]]


class Truth:
    """Keeps the books. ``step`` counts what was done; whoever does something calls `tick` before."""

    def __init__(self, raw: RawNats) -> None:
        self.raw = raw
        self.step = 0
        self.lives: dict[str, list[Life]] = {}
        self.messages: dict[int, Message] = {}
        self.log: list[str] = []
        self._began = time.monotonic()

    def tick(self, what: str) -> int:
        self.step += 1
        self.log.append(f"{self.step:4} {time.monotonic() - self._began:6.2f} s  {what}")
        return self.step

    def note(self, what: str) -> None:
        self.log.append(f"{'':16}{what}")

    # Streams

    def current(self, name: str) -> Life | None:
        """The stream of this name that there is now."""
        lives = self.lives.get(name)
        return lives[-1] if lives and not lives[-1].ended_at else None

    def life(self, name: str, created: str) -> Life | None:
        """The stream of this name that was created then."""
        return next((one for one in self.lives.get(name, ()) if one.created == created), None)

    def born(self, name: str, config: dict[str, Any]) -> Life:
        info = self.raw.api(f"STREAM.INFO.{name}")
        life = Life(name, instant(info["created"]), config)
        self.lives.setdefault(name, []).append(life)
        return life

    def died(self, name: str) -> None:
        life = self.current(name)
        assert life is not None
        for sequence in life.existing:
            self._gone(life.now[sequence], Cause.STREAM_GONE)
        life.existing.clear()
        life.ended_at = self.step

    # Messages

    def stored(self, message: Message) -> None:
        """A publish was acked."""
        life = self.current(message.stream)
        assert life is not None
        other = life.now.get(message.sequence)
        if other is not None:
            life.before.append(other)
        life.now[message.sequence] = message
        life.existing.add(message.sequence)
        life.last = max(life.last, message.sequence)
        self.messages[message.number] = message

    def look(self, name: str, why: Callable[[Message], Cause | None] | None = None) -> list[Message]:
        """Compare the books with the server; returns the messages that are gone since the last look."""
        life = self.current(name)
        if life is None:
            return []
        info = self._info(name, life)
        state = info["state"]
        first, last = int(state["first_seq"]), int(state["last_seq"])
        present: set[int] = set()
        if int(state["messages"]):
            present = set(range(first, last + 1)) - set(state.get("deleted") or ())
        assert len(present) == int(state["messages"]), f"{name}: the server's state does not add up: {state}"
        unknown = present - life.existing
        strange = sorted(unknown - set(life.now))
        assert not strange, f"{name} holds messages that nobody published: {strange[:5]}"
        for sequence in unknown:
            life.now[sequence].gone, life.now[sequence].back_at = None, self.step
        if unknown:
            self.note(f"{name}: {spans(unknown)} are there again")
        found = [life.now[sequence] for sequence in sorted(life.existing - present)]
        life.existing, life.first, life.last = present, max(1, first if present else last + 1), last
        for message in found:
            cause = (why(message) if why is not None else None) or self._by_itself(life, message)
            self._gone(message, cause)
        if found:
            self.note(f"{name}: gone {summary(found)}; now [{life.first}, {life.last}]")
        return found

    def _info(self, name: str, life: Life) -> dict[str, Any]:
        """A new leader may not have applied yet what the old one had acked."""
        deadline = time.monotonic() + 60
        while True:
            info = self.raw.api(f"STREAM.INFO.{name}", {"deleted_details": True})
            if int(info["state"]["last_seq"]) >= life.last:
                return info
            assert time.monotonic() < deadline, f"{name} ends at {info['state']}, acked was {life.last}"
            time.sleep(0.05)

    def _by_itself(self, life: Life, message: Message) -> Cause:
        """Why a message went without our doing."""
        if message.ttl is not None and time.monotonic() >= message.expires - 0.2:
            return Cause.TTL
        if life.queue:
            return Cause.CONSUMED
        if int(life.config.get("max_age", 0)):
            return Cause.AGED
        raise AssertionError(f"{message} is gone, and nothing explains it")

    def _gone(self, message: Message, cause: Cause) -> None:
        message.gone, message.gone_at = cause, self.step

    # Backups

    def backup(self) -> Backup:
        lives = {}
        for name in self.lives:
            life = self.current(name)
            if life is not None:
                lives[name] = (life, dict(life.now), set(life.existing), dict(life.config))
        return Backup(lives)

    def restore(self, backup: Backup) -> None:
        """All streams are what they were at the time of the backup."""
        for name in self.lives:
            life = self.current(name)
            if life is not None and (name not in backup.lives or backup.lives[name][0] is not life):
                self.died(name)
        for name, (life, now, existing, config) in backup.lives.items():
            if life.ended_at:
                # It is there again: the last of its name, and its messages with it.
                self.lives[name].remove(life)
                self.lives[name].append(life)
                life.ended_at, life.returned_at = 0, life.returned_at or self.step
            lost = [one for sequence, one in life.now.items() if now.get(sequence) is not one]
            for message in lost:
                life.before.append(message)
                # A restore leaves no trace of a purge that it undid. What it leaves is a tail that is lost.
                if message.gone is None or message.gone in LOSSES:
                    self._gone(message, Cause.TAIL_LOST)
            # Who had a sequence that was given away twice has it again.
            life.before = [one for one in life.before if now.get(one.sequence) is not one]
            life.now, life.existing, life.config = dict(now), set(existing), dict(config)
            for sequence in existing:
                now[sequence].gone = None
            life.last = max(now, default=0)
            life.first = min(existing, default=life.last + 1)
            life.restored_at = self.step

    def alive(self, names: Iterable[str]) -> list[Life]:
        return [life for name in names if (life := self.current(name)) is not None]


def matches(filters: Sequence[str], subject: str) -> bool:
    """Whether a subject is one that the filters let through; no filters let all through."""
    return not filters or any(_matches(one.split("."), subject.split(".")) for one in filters)


def _matches(pattern: list[str], tokens: list[str]) -> bool:
    for index, token in enumerate(pattern):
        if token == ">":
            return len(tokens) > index
        if index >= len(tokens) or token not in ("*", tokens[index]):
            return False
    return len(tokens) == len(pattern)


def instant(text: str) -> str:
    """A time in one spelling: nanoseconds, UTC."""
    found = re.fullmatch(r"(\d+-\d+-\d+T\d+:\d+:\d+)(?:\.(\d+))?(?:Z|\+00:00)", text)
    assert found is not None, f"no time in UTC: {text!r}"
    return f"{found[1]}.{(found[2] or '').ljust(9, '0')}Z"


def summary(messages: Sequence[Message]) -> str:
    """Messages by cause, as ranges of sequences."""
    causes: dict[str, list[int]] = {}
    for message in messages:
        causes.setdefault(str(message.gone or "still there"), []).append(message.sequence)
    return "; ".join(f"{spans(sequences)} {cause}" for cause, sequences in causes.items())


def spans(sequences: Iterable[int]) -> str:
    """Numbers as ranges: 1-4, 7."""
    found: list[list[int]] = []
    for number in sorted(set(sequences)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in found[:12])


def missing_stream(error: RawApiError) -> bool:
    return error.code == STREAM_NOT_FOUND
