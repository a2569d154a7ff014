"""What a planned range claims, and what may be missing from it without loss. No IO, no clock.

A planned range is a claim: "the messages with sequences ``[begin, end)`` and these subjects, of the
stream that was created then, which began and ended *there* at planning" (:class:`Seen`). A task proves
the claim or raises before its micro-batch commits. With ``failOnDataLoss=false`` it logs a warning
instead and goes on.

**Never loss: what disappears behind the stream's first sequence.** While the first sequence is at or
below a missing one, the missing message was removed by itself: it has a subject that we do not read, was
deleted, purged by subject, acked, has outlived its own TTL, or was replaced by a newer message of its
subject.

**Loss, whatever the options** (:func:`judge_stream`): another stream has the name; the stream ends before
the end that it had; the message at the end that it had is another one (restored from a backup, then
written to). A stream that is gone is loss as well, unless every sequence of the range was read.

**The first sequence has passed what was not read** (:func:`judge_gap`). The server does not say why, so
the causes that its config and counters allow decide. In this order, the first line that fits:

1. The range begins at the head that ``earliest`` found, its first rows were not read yet (with
   ``subjects``: in the whole first piece), and the limits explain it (below): a warning. These messages
   were there at planning, so they are named. But a stream at its limits loses its oldest messages all the
   time, also in the second between planning and reading. If that were an error, no such stream could be
   read from its beginning. What limits or a purge remove *before* planning was never part of the read.
2. A work queue or interest stream, read with ``subjects``: not loss. Acks of other subjects' consumers do
   this all the time.
3. ``max_msgs_per_subject``, and the limits do not explain it, and the stream has as many subjects as it
   had: not loss, replaced by newer messages. With a limit above 1 at least one subject must hold as many
   messages as the limit allows; without one nothing was replaced.
4. The limits do not explain it, and one message alone is missing (a single delete), or the stream has
   ``allow_msg_ttl`` (a message outlived its TTL): a warning.
5. Anything else: loss. With ``subjects`` the error says that the server can't tell whether any of the
   missing messages had a subject that is read.

*The limits explain it* when ``max_age`` is set and the oldest unread message may be that old by now, or
when the stream is full (``max_msgs`` reached, or half of ``max_bytes``) and discards old messages.

**What can't be known, and how it is taken.**

- A purge of unread messages is taken for a TTL's work on streams with ``allow_msg_ttl`` (warning), for
  acks on work queues and interest streams read with ``subjects`` (nothing), and for replacement on
  streams with ``max_msgs_per_subject`` when as many new subjects came as went and, with a limit above 1,
  some subject was full again (nothing).
- Several messages deleted singly at the very head, and messages replaced by a rollup, are taken for a
  purge (error).
- Messages of other subjects that limits or a purge removed while a query with ``subjects`` was behind the
  head are taken for loss (error), since nothing tells their subjects any more.
- A purge of one subject is taken for single deletes (nothing).
- A stream that lost its tail and was written to since is known by the message at its end of then. If that
  one was deleted or replaced meanwhile, only an end that is too low tells (else nothing).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from jetspark._checks import is_whole
from jetspark.jetstream.models.stream_config import DiscardPolicy, RetentionPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jetspark.jetstream.models.stream_info import StreamInfo

#: Clocks of servers may differ by this much, or by a tenth of max_age when that is less.
_SKEW = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Seen:
    """What the leader said about a stream when a range was planned. Times in nanoseconds, 0 when unknown."""

    head: int
    """The first sequence; one behind ``tail`` in an empty stream."""
    tail: int
    """The last sequence ever stored."""
    keys: int = 0
    """Number of distinct subjects."""
    time: int = 0
    """The server's clock."""
    head_time: int = 0
    """When the first message was stored."""
    tail_time: int = 0
    """When the last message was stored."""

    def to_json(self) -> dict[str, int]:
        """The form in an offset."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Seen | None:
        """From an offset; None when it is damaged."""
        numbers = [value.get(name, 0) for name in cls.__slots__]
        if not all(is_whole(one, 0) for one in numbers):
            return None
        return cls(*numbers) if numbers[0] >= 1 else None


@dataclass(frozen=True, slots=True)
class Rules:
    """What a stream's config lets it remove."""

    retention: str = RetentionPolicy.LIMITS
    max_age: int = 0
    """Nanoseconds; 0: none, as for the others."""
    max_msgs: int = 0
    max_bytes: int = 0
    per_subject: int = 0
    ttl: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What the leader says now."""

    first: int
    last: int
    messages: int = 0
    size: int = 0
    keys: int = 0
    time: int = 0
    rules: Rules = Rules()


@dataclass(frozen=True, slots=True)
class Gap:
    """``missing`` sequences of ``[begin, end)`` without a row. The stream begins at ``end`` or behind it."""

    begin: int
    end: int
    missing: int


class Outcome(StrEnum):
    """What a missing message means."""

    FINE = "fine"
    WARNING = "warning"
    LOSS = "loss"


def judge_gap(
    gap: Gap,
    seen: Seen | None,
    found: Found,
    *,
    filtered: bool,
    earliest: bool = False,
    full: bool = False,
) -> Outcome:
    """What it means that a stream's first sequence has passed what was not read; see the module.

    ``seen`` is None when nothing is known about the past: a starting sequence that the user named, or an
    offset of an older release. ``full``: some subject holds ``max_msgs_per_subject`` messages.
    """
    if gap.missing <= 0:
        return Outcome.FINE
    rules = found.rules
    limits = limits_explain(gap.begin, seen, found)
    if earliest and limits:
        return Outcome.WARNING
    if filtered and rules.retention != RetentionPolicy.LIMITS:
        return Outcome.FINE
    if rules.per_subject and not limits:
        kept = seen is None or found.keys >= seen.keys
        if kept and (rules.per_subject == 1 or full):
            return Outcome.FINE
    if not limits and (rules.ttl or gap.missing == 1):
        return Outcome.WARNING
    return Outcome.LOSS


def judge_keys(given: int, seen: Seen | None, found: Found, *, filtered: bool) -> Outcome:
    """Whether keys of a last-per-subject snapshot were lost since it was planned.

    ``given`` keys were read of those that there were. As in :func:`judge_gap`, keys that vanish behind the
    first sequence were deleted by themselves, and what the limits remove between planning and reading is a
    warning. With ``subjects`` the keys of the whole stream are compared.
    """
    if seen is None or found.first <= seen.head:
        return Outcome.FINE
    lost = seen.keys - (found.keys if filtered else given)
    if lost <= 0 or (filtered and found.rules.retention != RetentionPolicy.LIMITS):
        return Outcome.FINE
    doubtful = lost == 1 or found.rules.ttl or limits_explain(seen.head, seen, found)
    return Outcome.WARNING if doubtful else Outcome.LOSS


def limits_explain(begin: int, seen: Seen | None, found: Found) -> bool:
    """Whether the stream's own limits may have removed messages from ``begin`` on."""
    rules = found.rules
    if rules.max_msgs and found.messages >= rules.max_msgs:
        return True
    if rules.max_bytes and found.size * 2 >= rules.max_bytes:
        return True
    if not rules.max_age:
        return False
    # The greatest possible age of the unread messages: they are younger than the look that did not see them.
    since = 0
    if seen is not None and begin >= seen.head:
        since = seen.time if begin > seen.tail else seen.head_time
    if not since or not found.time:
        return True
    return found.time - since >= rules.max_age - min(_SKEW, rules.max_age // 10)


def judge_stream(end: int, seen: Seen | None, found: Found, tail_time: int | None) -> Outcome:
    """Whether the stream still is what it was when a range up to ``end`` was planned, or read up to there.

    ``tail_time``: when the message that is now at ``seen.tail`` was stored; None when there is none.
    """
    if found.last < end - 1:
        return Outcome.LOSS
    if seen is None or tail_time is None or not seen.tail_time:
        return Outcome.FINE
    return Outcome.FINE if tail_time == seen.tail_time else Outcome.LOSS


def first_sequence(info: StreamInfo) -> int:
    """The first sequence that can still be read; one behind the last in an empty stream."""
    if info.state.messages == 0:
        return info.state.last_seq + 1
    return max(1, info.state.first_seq)


def seen_of(info: StreamInfo) -> Seen:
    """A look at a stream, to be remembered."""
    state = info.state
    return Seen(
        first_sequence(info),
        state.last_seq,
        state.num_subjects,
        _ns(info.ts),
        _ns(state.first_ts) if state.messages else 0,
        _ns(state.last_ts),
    )


def found_of(info: StreamInfo) -> Found:
    """A look at a stream, to be compared with an earlier one."""
    state, config = info.state, info.config
    old = config.discard == DiscardPolicy.OLD
    rules = Rules(
        str(config.retention),
        _ns(config.max_age),
        max(0, config.max_msgs or 0) if old else 0,
        max(0, config.max_bytes or 0) if old else 0,
        0 if config.discard_new_per_subject else max(0, config.max_msgs_per_subject or 0),
        bool(config.allow_msg_ttl),
    )
    return Found(
        first_sequence(info),
        state.last_seq,
        state.messages,
        state.bytes,
        state.num_subjects,
        _ns(info.ts),
        rules,
    )


def is_filtered(info: StreamInfo, subjects: Sequence[str]) -> bool:
    """Whether a filter leaves out any of the stream's subjects."""
    if not subjects or ">" in subjects:
        return False
    stored = info.config.subjects or [">"]
    return not set(stored) <= set(subjects)


def _ns(value: Any) -> int:
    found = getattr(value, "ns", 0)
    return found if isinstance(found, int) else 0
