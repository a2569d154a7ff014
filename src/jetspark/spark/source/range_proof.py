"""Proving a range while it is read: that the stream still is the one that was planned, and nothing was lost.

What is loss is decided in :mod:`jetspark.spark.source.claims`; here the leader is asked what that needs. At
the start: identity, end and first sequence. Where the stream was restored from a backup and written to
since, the range ends before the messages stored since: the driver goes back to them. After each run of rows
with gaps: whether the first sequence has passed a gap that was not read before. At the end, where the last
rows are missing: whether the leader has more of the range. A consumer knows no more than the replica it
lives with, and a direct get than the one that answers; either may be behind the leader, which was asked for
the range's end.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from jetspark.blocking.stream import next_on_leader
from jetspark.errors import JetsparkError, MessageNotFound
from jetspark.spark.patience import PASSING, Patience
from jetspark.spark.source.claims import Gap, Outcome, found_of, is_filtered, judge_gap, judge_stream
from jetspark.spark.source.data_loss import act, identity, recreated, removed, replaced, report, rewound
from jetspark.spark.source.moments import after

if TYPE_CHECKING:
    from jetspark.blocking.jetstream import JetStream
    from jetspark.blocking.stream import Stream
    from jetspark.jetstream.models.stream_info import StreamInfo
    from jetspark.spark.source.claims import Found, Seen
    from jetspark.spark.source.planning import Range

#: Seconds between two looks at the first sequence where gaps are expected. The answer waits behind the
#: messages in flight.
INTERVAL = 0.1


class RangeInterrupted(JetsparkError):
    """Deliveries of a range broke off. Another consumer continues; users see it only when that fails, too."""


class LeaderBehind(RangeInterrupted):
    """The stream ends before the range does: its leader is new and catching up, or its tail is lost."""

    def __init__(self, wanted: Range, last: int) -> None:
        super().__init__(f"stream {wanted.stream!r} ends at {last}, before the range's {wanted.end - 1}")
        self.last = last


class RangeOver(Exception):
    """A loss was reported after which there is nothing more to read. Never leaves the reader."""


class RangeProof:
    """The proof of one range. ``position``: every row before it was read or is known not to be there.

    ``gaps``: whether what is missing at the stream's head is judged (default) or is of no interest.
    """

    def __init__(self, js: JetStream, wanted: Range, *, fail: bool, gaps: bool = True) -> None:
        self._js = js
        self._wanted = wanted
        self._fail = fail
        self._gaps = gaps
        # The stream has lost the range's end, which was reported.
        self._short = False
        # The stream has other messages at the end that it had, which was reported.
        self._replaced = False
        # Before this sequence nothing is missing that was not judged; then come rows with gaps.
        self._judged = wanted.begin
        self._unjudged: list[pa.Array] = []
        self._untouched = True
        # Each answer to a direct get may come from another stream of the name.
        self._direct = False
        self._asked = time.monotonic()
        self.position = wanted.begin

    @property
    def wanted(self) -> Range:
        """The range. It gets shorter when it is found that its end was replaced by other messages."""
        return self._wanted

    def open(self) -> Stream:
        """The stream, if it still is what it was when the range was planned."""
        patience = Patience()
        while True:
            try:
                stream = self._js.get_stream(self._wanted.stream)
                self._check_stream(stream)
                break
            except (LeaderBehind, *PASSING) as error:
                if not self.wait(patience, False, error):
                    break
        wanted, first = self._wanted, found_of(stream.cached_info).first
        if not wanted.last_per_subject and first > self.position:
            self._check_gap(stream, min(first, wanted.end))
            self.position = self._judged = min(first, wanted.end)
        return stream

    def by_direct_get(self) -> None:
        """The range is read by direct get from now on."""
        self._direct = True

    def again(self, stream: Stream) -> None:
        """Before reading goes on with another consumer, which may be one of another stream by now."""
        stream.info()
        self._check_identity(stream)
        self._check_tail(stream)

    def accept(self, stream: Stream, sequences: pa.Array) -> None:
        """Take the next rows, whose ascending sequences these are."""
        following = sequences[-1].as_py() + 1
        gap = first_gap(sequences, self.position) is not None
        if self._direct and not self._fail:
            stream.info()
            self._check_identity(stream)
        if gap and (not self._sparse or time.monotonic() - self._asked >= INTERVAL):
            self._judge(stream, following, sequences)
        elif gap or self._unjudged:
            self._unjudged.append(sequences)
        else:
            self._judged, self._untouched = following, False
        self.position = following

    def end(self, stream: Stream) -> None:
        """After the last row: raises :class:`RangeInterrupted` when the leader has more."""
        patience = Patience()
        while not self.proved or self._direct:
            try:
                if self._direct:
                    stream.info()
                    self._check_identity(stream)
                if not self._short:
                    prove_end(stream, self._wanted, self.position)
                if not self.proved:
                    self._judge(stream, self.position if self._short else self._wanted.end)
                return
            except (LeaderBehind, *PASSING) as error:
                self._check_identity(stream)
                self.wait(patience, False, error)

    @property
    def proved(self) -> bool:
        """Whether every row of the range was read, and nothing is missing before them that was not judged."""
        return self.position >= self._wanted.end and not self._unjudged

    def wait(self, patience: Patience, progress: bool, error: JetsparkError) -> bool:
        """Before another attempt. False: go on without what the stream has lost at its end."""
        try:
            if isinstance(error, LeaderBehind) and self._alone:
                raise error  # a single replica has nothing to catch up with
            patience.lost(progress, error)
        except LeaderBehind as behind:
            self._short = True
            report(rewound(self._wanted.stream, self._wanted.end, behind.last), fail=self._fail)
            return False
        return True

    @property
    def _alone(self) -> bool:
        return (self._info.config.num_replicas or 1) == 1

    @property
    def _sparse(self) -> bool:
        """Whether gaps are expected."""
        return bool(self._wanted.subjects) or (self._info.config.max_msgs_per_subject or 0) > 0

    def _judge(self, stream: Stream, until: int, sequences: pa.Array | None = None) -> None:
        """Judge the gaps before ``until``, with the last rows."""
        stream.info()
        self._check_identity(stream)
        rows = [*self._unjudged, *([] if sequences is None else [sequences])]
        self._check_gap(stream, until, pa.concat_arrays(rows) if rows else None)
        self._judged, self._unjudged, self._untouched = until, [], False
        self._asked = time.monotonic()

    def _check_stream(self, stream: Stream) -> None:
        self._check_identity(stream)
        last = found_of(stream.cached_info).last
        if last < self._wanted.end - 1:
            raise LeaderBehind(self._wanted, last)
        self._check_tail(stream)

    def _check_tail(self, stream: Stream) -> None:
        """Whether the stream lost its tail and has other messages in its place by now."""
        wanted, info = self._wanted, stream.cached_info
        stored = tail_time(stream, info, wanted.seen)
        if self._replaced or wanted.seen is None:
            return
        if judge_stream(1, wanted.seen, found_of(info), stored) == Outcome.FINE:
            return
        report(replaced(wanted.stream, wanted.seen.tail), fail=self._fail)
        self._replaced = True
        if not wanted.last_per_subject:
            end = max(wanted.begin, after(self._js, info, wanted.seen.tail_time))
            self._wanted = replace(wanted, end=min(wanted.end, end))

    def _check_identity(self, stream: Stream) -> None:
        wanted, self._info = self._wanted, stream.cached_info
        now = identity(self._info)
        if now != wanted.created:
            report(recreated(wanted.stream, self.position, wanted.created, now), fail=self._fail)
            raise RangeOver

    def _check_gap(self, stream: Stream, until: int, rows: pa.Array | None = None) -> None:
        """Whether the first sequence has passed what was missing and not judged before ``until``."""
        wanted, info = self._wanted, stream.cached_info
        filtered = is_filtered(info, wanted.subjects)
        until = min(found_of(info).first, until)
        begin = self._judged
        if wanted.earliest and self._untouched and rows is not None and not filtered:
            # What is missing before the first row is one thing, what is missing behind it another.
            first = rows[0].as_py()
            self._judge_gap(stream, begin, min(first, until), None, earliest=True)
            self._judge_gap(stream, first, until, rows, earliest=False)
            return
        earliest = wanted.earliest and (self._untouched or filtered)
        self._judge_gap(stream, begin, until, rows, earliest=earliest)

    def _judge_gap(
        self, stream: Stream, begin: int, until: int, rows: pa.Array | None, *, earliest: bool
    ) -> None:
        wanted, info = self._wanted, stream.cached_info
        found = found_of(info)
        if rows is not None:
            # Dense rows may still end before ``until``.
            begin, _ = first_gap(rows, begin) or (min(until, rows[-1].as_py() + 1), until)
        missing = until - begin
        if rows is not None:
            missing -= count_below(rows, until) - count_below(rows, begin)
        if not self._gaps or until <= begin or missing <= 0:
            return
        filtered = is_filtered(info, wanted.subjects)
        gap = Gap(begin, until, missing)
        outcome = judge_gap(
            gap,
            wanted.seen,
            found,
            filtered=filtered,
            earliest=earliest,
            full=some_subject_full(stream, found),
        )
        act(outcome, removed(wanted.stream, gap, found, filtered=filtered), fail=self._fail)


def prove_end(stream: Stream, wanted: Range, position: int) -> None:
    """Ask the leader whether the range has a message at ``position`` or behind it, and raise if it has."""
    if position >= wanted.end:
        return
    before = stream.info()
    if before.state.last_seq < wanted.end - 1:
        raise LeaderBehind(wanted, before.state.last_seq)
    found = next_on_leader(stream, position, wanted.subjects)
    if found is not None and found < wanted.end:
        raise RangeInterrupted(
            f"stream {wanted.stream!r}: the replica ends before sequence {found}, which the leader has: "
            "it is behind and does not catch up; check the cluster's health"
        )
    if before.cluster is not None and before.cluster.leader:
        after = stream.info()
        if after.cluster is None or after.cluster.leader != before.cluster.leader:
            # A new leader may have answered before it had everything that the old one had.
            raise LeaderBehind(wanted, after.state.last_seq)


def tail_time(stream: Stream, info: StreamInfo, seen: Seen | None) -> int | None:
    """When the message that is now at the end of then was stored; None when that is not known."""
    if seen is None or not seen.tail or not seen.tail_time:
        return None
    state = info.state
    if state.last_seq < seen.tail:
        return None
    if state.last_seq == seen.tail and getattr(state.last_ts, "ns", 0) == seen.tail_time:
        return seen.tail_time
    try:
        return stream.get_msg(seen.tail, from_leader=True).timestamp.ns
    except MessageNotFound:
        return None


def some_subject_full(stream: Stream, found: Found) -> bool:
    """Whether any subject holds as many messages as ``max_msgs_per_subject`` allows, when that is above 1."""
    limit = found.rules.per_subject
    if limit < 2:
        return False
    counts = stream.info(subjects_filter=">").state.subjects or {}
    return any(count >= limit for count in counts.values())


def first_gap(sequences: pa.Array, position: int) -> tuple[int, int] | None:
    """The first stretch without messages from ``position`` on in ascending sequences; None when dense."""
    first, last = sequences[0].as_py(), sequences[-1].as_py()
    if first > position:
        return position, first
    if last - first + 1 == len(sequences):
        return None
    # The first index whose sequence is ahead of a dense run: by halving, as ahead once is ahead for good.
    low, high = 0, len(sequences) - 1
    while low < high:
        middle = (low + high) // 2
        if sequences[middle].as_py() == first + middle:
            low = middle + 1
        else:
            high = middle
    return first + low, sequences[low].as_py()


def count_below(sequences: pa.Array, end: int) -> int:
    """How many of the ascending sequences are below ``end``."""
    low, high = 0, len(sequences)
    while low < high:
        middle = (low + high) // 2
        if sequences[middle].as_py() < end:
            low = middle + 1
        else:
            high = middle
    return low
