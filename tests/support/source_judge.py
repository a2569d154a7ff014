"""Judges what a query did against the truth: wrong rows, rows in silence missing, alarms without a reason."""

from __future__ import annotations

import logging
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from jetspark.spark.source.data_loss import DataLossError
from support.source_truth import (
    LOSSES,
    Case,
    Cause,
    Life,
    Message,
    Say,
    Truth,
    duty,
    instant,
    matches,
    spans,
    summary,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NUMBERS = re.compile(r"(?:messages?|sequences?) ((?:\d+(?: ?(?:to|-) ?\d+)?(?:, | and )?)+)")
_SPAN = re.compile(r"(\d+)(?: ?(?:to|-) ?(\d+))?")
_WHOLE = frozenset({"vanished", "recreated", "rewound"})
"""Kinds of alarms that are about the stream and not about some of its sequences."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """What was told, and when. ``created``: the stream that it was told of."""

    stream: str
    kind: str
    text: str
    step: int
    created: str
    doubt: bool
    """Told as a mere warning, though the query was to fail on data loss."""

    def names(self, sequence: int) -> bool:
        """Whether the text names a sequence."""
        if self.kind in _WHOLE:
            return False
        for listed in _NUMBERS.findall(self.text.split(";")[0]):
            for low, high in _SPAN.findall(listed):
                if int(low) <= sequence <= int(high or low):
                    return True
        return False


@dataclass(slots=True)
class Place:
    """Where a query stands in a stream: everything before ``next`` is done.

    ``beginning``: nothing was read yet and it began wherever the stream did. ``ahead``: the stream has not
    reached it yet.
    """

    created: str
    next: int
    beginning: bool = False
    ahead: bool = False


class Stretch(NamedTuple):
    """What a batch reads of a stream, as the offset has it: ``begin`` inclusive, ``next`` exclusive."""

    created: str
    begin: int
    next: int


@dataclass(slots=True)
class Plan:
    """A planned batch: with which filter, which stretch of each stream, in which step."""

    subjects: tuple[str, ...]
    stretches: Mapping[str, Stretch]
    step: int

    def claims(self, message: Message) -> bool:
        """Whether the message was there when the batch was planned, and is one of its stretches."""
        stretch = self.stretches.get(message.stream)
        return (
            stretch is not None
            and stretch.created == message.created
            and stretch.begin <= message.sequence < stretch.next
            and message.stored_at < self.step < message.gone_at
        )


@dataclass(slots=True)
class Row:
    stream: str
    sequence: int
    subject: str
    data: bytes


@dataclass(slots=True)
class Verdicts:
    """What was found. ``problems`` is empty when all is well."""

    problems: list[str] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)


class Listener(logging.Handler):
    """Collects the warnings about data loss that a process logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[tuple[DataLossError, bool]] = []
        """What was told, and whether as a mere doubt: "not treated as data loss: ..."."""

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args if isinstance(record.args, tuple) else ()
        doubt = str(record.msg).startswith("not treated as data loss")
        self.heard += [(one, doubt) for one in arguments if isinstance(one, DataLossError)]

    def take(self) -> list[tuple[DataLossError, bool]]:
        heard, self.heard = self.heard, []
        return heard


class Judge:
    """Of one query. The same one stays with a streaming query over its restarts."""

    def __init__(self, truth: Truth, verdicts: Verdicts, name: str) -> None:
        self.truth = truth
        self.verdicts = verdicts
        self.name = name
        self.places: dict[str, Place] = {}
        self.committed: set[int] = set()
        self.alarms: list[Alarm] = []
        self.deaf = False
        """Whether what is told can't be heard: then all that was to be told counts as told."""
        self.snapshot: list[Message] | None = None
        """Of a last-per-subject query: the messages that it is to show."""

    def problem(self, text: str) -> None:
        self.truth.note(f"PROBLEM {self.name}: {text}")
        self.verdicts.problems.append(f"{self.name}: {text}")

    # Alarms

    def alarm(
        self, error: DataLossError, subjects: Sequence[str], plan: Plan | None, *, doubt: bool = False
    ) -> None:
        """The source told of a loss: is there one? A ``doubt`` ends no query, so it needs no proof."""
        truth = self.truth
        life = truth.current(error.stream)
        place = self.places.get(error.stream)
        stretch = plan.stretches.get(error.stream) if plan is not None else None
        if stretch is not None and (place is None or place.created != stretch.created):
            # Planned, so about this one: new, or made again since the last commit.
            place = Place(stretch.created, 1, beginning=True)
        created = place.created if place is not None else life.created if life is not None else ""
        told = Alarm(error.stream, error.kind, str(error), truth.step, created, doubt)
        truth.note(f"{'warned' if doubt else 'told'} {self.name}: {error.kind}: {error}")
        self.alarms.append(told)
        if doubt:
            self.verdicts.figures["doubts"] += 1
            return
        self.verdicts.figures["alarms"] += 1
        if self.snapshot is not None:
            self._judge_snapshot(error)
            return
        if life is None or place is None or place.created != life.created:
            if place is not None or error.stream in truth.lives:
                self.verdicts.figures["true alarms"] += 1
                return  # gone, or another one: that is told whatever was unread
            self.problem(f"false alarm, such a stream was never there: {error}")
            return
        if life.restored_at and error.kind in _WHOLE:
            self.verdicts.figures["true alarms"] += 1
            return  # restored: it may be noticed now or later
        if error.kind in _WHOLE:
            self.problem(f"false alarm, the stream is as it was: {error}")
            return
        named = [one for one in self._unread(life, place) if told.names(one.sequence)]
        duties = {
            self._duty(one, life, place, subjects, plan, named) for one in named if one.gone is not None
        }
        standing = [
            one
            for one in named
            if one.gone is None and not life.reused(one) and matches(subjects, one.subject)
        ]
        if standing:
            self.problem(f"told as lost, but {spans(one.sequence for one in standing)} are there: {error}")
        if not named:
            self.problem(f"false alarm, it names nothing that was unread: {error}")
        elif duties & {Say.MUST, Say.WARN}:
            self.verdicts.figures["true alarms"] += 1
        elif Say.MAY in duties:
            self.verdicts.figures["alarms nobody can judge"] += 1
        else:
            kinds = {str(one.gone) for one in named if one.gone and matches(subjects, one.subject)}
            what = ", ".join(sorted(kinds)) or "all of other subjects"
            self.problem(f"false alarm ({what}; {summary(named)}): {error}")

    def _judge_snapshot(self, error: DataLossError) -> None:
        """An alarm about a snapshot names no sequences: it is about keys."""
        assert self.snapshot is not None
        gone = [one for one in self.snapshot if one.stream == error.stream and one.gone is not None]
        if not any(one.gone is not Cause.REPLACED for one in gone):
            self.problem(f"false alarm, no key of the snapshot is gone: {error}")
        elif any(one.gone in LOSSES for one in gone):
            self.verdicts.figures["true alarms"] += 1

    def told(self, message: Message, others: Sequence[Message] = (), *, warned: bool = False) -> bool:
        """Whether somebody was told that this message is lost.

        ``warned``: a mere warning is enough. It always is for one that names no other of the missing
        messages (``others``): the contract has it that a single message is no proof of a loss.
        """
        if self.deaf:
            return True
        sequences = {one.sequence for one in others}
        alarms = [
            one
            for one in self.alarms
            if warned
            or not one.doubt
            or (others and not any(one.names(other) for other in sequences - {message.sequence}))
        ]
        since = message.gone_at
        whole = self.snapshot is not None or message.gone in (Cause.STREAM_GONE, Cause.TAIL_LOST)
        life = self.truth.life(message.stream, message.created)
        if life is not None and life.ended_at and not whole:
            # However it went: with its stream everything went that was unread.
            whole, since = True, life.ended_at
        return any(
            (one.created == message.created and one.names(message.sequence)) or (whole and one.step >= since)
            for one in alarms
            if one.stream == message.stream
        )

    def _unread(self, life: Life, place: Place) -> list[Message]:
        return [one for one in life.ever() if one.sequence >= place.next and one.number not in self.committed]

    def _duty(
        self,
        message: Message,
        life: Life,
        place: Place,
        subjects: Sequence[str],
        plan: Plan | None,
        others: Sequence[Message],
        first_row: int = 0,
    ) -> Say:
        """``first_row``: the lowest sequence among the batch's rows of the stream; 0 when it has none."""
        assert message.gone is not None
        return duty(
            Case(
                cause=message.gone,
                matches=matches(subjects, message.subject),
                claimed=plan is not None and plan.claims(message),
                beginning=place.beginning,
                preceded=0 < first_row < message.sequence,
                head=bool(life.ended_at) or message.sequence < life.first,
                queue=life.queue,
                limited=life.limited,
                ttl=life.ttl,
                passed=any(
                    one.gone in LOSSES
                    and one.sequence < life.first
                    and (message.sequence < one.sequence or message.gone_at <= one.gone_at)
                    for one in life.ever()
                ),
                thinned=life.thinned,
                filtered=bool(subjects),
                mixed=any(one.gone is Cause.REPLACED for one in others),
                reused=life.succeeded(message),
            )
        )

    # Batches

    def commit(self, plan: Plan, rows: Sequence[Row]) -> None:
        """A batch is done, and nobody can take it back."""
        read: set[int] = set()
        by_stream: dict[str, list[Message]] = {}
        for row in rows:
            message = self._right(row)
            if message is None:
                continue
            if message.number in read or (message.number in self.committed and not self._returned(message)):
                self.problem(f"row twice: {message}")
            read.add(message.number)
            by_stream.setdefault(message.stream, []).append(message)
        for name in by_stream:
            if name not in plan.stretches:
                self.problem(f"rows of stream {name}, which was not planned")
        for name, stretch in plan.stretches.items():
            self._commit_stream(name, stretch, plan, by_stream.get(name, []), read)
        self.committed |= read
        self.verdicts.figures["rows"] += len(read)
        self.verdicts.figures["batches"] += 1

    def _commit_stream(
        self, name: str, stretch: Stretch, plan: Plan, rows: Sequence[Message], read: set[int]
    ) -> None:
        created, begin, following = stretch
        place = self.places.get(name)
        life = self.truth.life(name, created)
        if life is None:
            self.problem(f"stream {name} created {created} is in a plan, but was never there")
            return
        if place is not None and place.created != created:
            old = self.truth.life(name, place.created)
            assert old is not None
            self._account(old, place, self._unread(old, place), plan, read)
        if place is None or place.created != created:
            place = Place(created, 1, beginning=True)
        inside = [one for one in life.ever() if place.next <= one.sequence < following]
        for message in rows:
            again = message.sequence < place.next and self._rewound(message)
            if again and message.created == created and life.restored_at:
                continue  # stored after a restore that was told, where others were before
            if message.created != created or not place.next <= message.sequence < following:
                self.problem(f"row outside of [{place.next}, {following}): {message}")
            elif not matches(plan.subjects, message.subject):
                self.problem(f"row of another subject than {plan.subjects}: {message}")
        owed = [one for one in inside if one.stored_at < plan.step]
        first_row = min((one.sequence for one in rows if one.created == created), default=0)
        self._account(life, place, owed, plan, read, first_row)
        # A stretch without sequences may begin behind the last one's end: what was there is gone, unclaimed.
        untouched = following == begin
        self.places[name] = Place(
            created, following, beginning=place.beginning and untouched, ahead=place.ahead and untouched
        )

    def _account(
        self,
        life: Life,
        place: Place,
        owed: Sequence[Message],
        plan: Plan,
        read: set[int],
        first_row: int = 0,
    ) -> None:
        """Each message that was owed is a row, or excused, or told."""
        missing = [one for one in owed if one.number not in read and one.number not in self.committed]
        silent: list[Message] = []
        for message in missing:
            if message.gone is None:
                if life.reused(message) or max(life.restored_at, message.back_at) > plan.step:
                    continue  # there again since the plan
                if matches(plan.subjects, message.subject) and not self._rewound(message):
                    self.problem(f"not read, though it is there: {message}")
                continue
            say = self._duty(message, life, place, plan.subjects, plan, missing, first_row)
            if say in (Say.MUST, Say.WARN):
                if not self.told(message, missing, warned=say is Say.WARN):
                    silent.append(message)
                    continue
                self.verdicts.figures["losses told"] += 1
            elif not matches(plan.subjects, message.subject):
                continue  # not missing: the query does not read it
            elif say is Say.MAY:
                self.verdicts.figures["missing, nobody can judge"] += 1
                self.verdicts.figures[f"nobody can judge: {message.gone}"] += 1
            else:
                self.verdicts.figures["missing, excused"] += 1
        if silent:
            self.problem(
                f"SILENT LOSS of {len(silent)} in {life.name}: {summary(silent)}; "
                f"planned in step {plan.step}, committed with {len(read)} rows"
            )

    def _rewound(self, message: Message) -> bool:
        """Whether it was told that the stream lost its tail, or was made again, after this was stored."""
        return self.deaf or any(
            one.stream == message.stream and one.kind in _WHOLE and one.step >= message.stored_at
            for one in self.alarms
        )

    def _returned(self, message: Message) -> bool:
        """Whether its stream was deleted and brought back by a restore, and that was told.

        To the source it is another stream than the one that it read last. It says so and, if it is to go on,
        reads it from its beginning, as the error announces. It does not remember the streams before.
        """
        life = self.truth.life(message.stream, message.created)
        if life is None or not life.returned_at:
            return False
        return self.deaf or any(
            one.stream == message.stream and one.kind == "recreated" and one.step >= life.returned_at
            for one in self.alarms
        )

    def _right(self, row: Row) -> Message | None:
        """The message that a row is; None when there was never such a one."""
        try:
            number = int(row.data.split(b" ", 1)[0])
        except ValueError:
            number = -1
        message = self.truth.messages.get(number)
        if message is None:
            self.problem(f"invented row: {row.stream}/{row.sequence} {row.subject} {row.data[:40]!r}")
            return None
        found = (row.stream, row.sequence, row.subject, row.data)
        if found != (message.stream, message.sequence, message.subject, message.payload):
            self.problem(f"wrong row {row.stream}/{row.sequence} {row.subject} for {message}")
        return message

    def finished(self, streams: Sequence[str], subjects: Sequence[str]) -> None:
        """A query that read to the end says that it is done: nothing that is there is left."""
        for life in self.truth.alive(streams):
            place = self.places.get(life.name)
            if place is None or place.created != life.created:
                left = [life.now[one] for one in life.existing]
            else:
                left = [life.now[one] for one in life.existing if one >= place.next]
                if place.next > life.last + 1 and not place.ahead and life.restored_at:
                    known = self.deaf or any(
                        one.stream == life.name and one.step >= life.restored_at for one in self.alarms
                    )
                    if not known:
                        self.problem(
                            f"{life.name} ends at {life.last}, was read up to {place.next - 1}: not told"
                        )
            left = [one for one in left if matches(subjects, one.subject)]
            if left:
                self.problem(f"left unread at the end in {life.name}: {spans(one.sequence for one in left)}")


def stretches(offset: Mapping[str, Any]) -> dict[str, Stretch]:
    """What the batch that ends with an offset of the source reads, by stream."""
    return {
        name: Stretch(instant(one["created"]), int(one["begin"]), int(one["next"]))
        for name, one in dict(offset["streams"]).items()
    }
