"""Planning, as arithmetic: how far a micro-batch goes, and how ranges become partitions. No IO, no clock.

Ranges are of sequences, ``begin`` inclusive, ``end`` exclusive. A sequence may hold no message (deleted,
expired, of another subject), so a range is an upper bound of its rows.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jetspark.spark.source.claims import Seen

#: Fixed cost of a range, in messages: looking up its stream and creating and deleting a consumer takes as
#: long as reading some hundred small messages.
RANGE_COST = 500
#: Ranges are combined up to this cost, in messages. A separate task for less would cost more than it reads.
#: Twenty tiny streams reach it.
TASK_COST = 10_000


@dataclass(frozen=True, slots=True)
class Range:
    """A piece of a stream, ``[begin, end)``.

    ``created`` is the stream's identity, and ``seen`` what the leader said when the range was planned:
    together they are the claim that a task proves (:mod:`jetspark.spark.source.claims`). ``earliest``: the
    piece begins where the stream began then, so what expires there before the first row was read is not
    missed. ``last_per_subject``: only the newest message of each subject is wanted, as of ``end - 1``.
    """

    stream: str
    begin: int
    end: int
    created: str
    subjects: tuple[str, ...] = ()
    earliest: bool = False
    last_per_subject: bool = False
    seen: Seen | None = None

    def __len__(self) -> int:
        return max(0, self.end - self.begin)


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a stream has from ``begin`` on: sequences up to ``end`` (exclusive) of a mean size in bytes."""

    begin: int
    end: int
    mean_bytes: float = 0.0

    @property
    def messages(self) -> int:
        return max(0, self.end - self.begin)


def limit(
    backlogs: Mapping[str, Backlog], *, max_messages: int | None = None, max_bytes: int | None = None
) -> dict[str, int]:
    """The end (exclusive) for each stream, within the limits.

    Streams share a limit in proportion to their backlogs, as Kafka's partitions do. There is always
    progress: when the limit is smaller than the number of streams, the longest backlogs go first.
    """
    shares = {name: backlog.messages for name, backlog in backlogs.items()}
    if max_messages is not None:
        shares = _share(shares, max_messages)
    if max_bytes is not None:
        total = sum(shares[name] * backlogs[name].mean_bytes for name in shares)
        if total > max_bytes:
            # Scaled by bytes, so that a stream of large messages does not take the others' share.
            scaled = sum(shares.values()) * max_bytes / total
            shares = _share(shares, max(1, int(scaled)))
    return {name: backlog.begin + shares[name] for name, backlog in backlogs.items()}


def _share(wanted: Mapping[str, int], total: int) -> dict[str, int]:
    """Whole parts of ``total`` in proportion to ``wanted``, none above what it wants."""
    asked = sum(wanted.values())
    if asked <= total:
        return dict(wanted)
    parts = {name: size * total // asked for name, size in wanted.items()}
    left = total - sum(parts.values())
    # What rounding left over goes one by one to the largest remainders; the name decides a tie.
    for name in sorted(wanted, key=lambda one: (-(wanted[one] * total % asked), -wanted[one], one)):
        if left == 0:
            break
        if parts[name] < wanted[name]:
            parts[name] += 1
            left -= 1
    return parts


def should_wait(available: int, *, minimum: int | None, waited: float, max_delay: float) -> bool:
    """Whether a micro-batch waits until there are ``minimum`` messages or ``max_delay`` has passed."""
    return minimum is not None and available < minimum and waited < max_delay


def split(
    ranges: Iterable[Range], *, min_partitions: int | None = None, max_messages: int | None = None
) -> list[Range]:
    """Ranges into partitions: none larger than ``max_messages``, at least ``min_partitions`` if possible.

    Pieces of one range differ by at most one sequence in size. Empty ranges vanish. The order is that of
    the ranges, and within a range that of the sequences.
    """
    pieces = [one for one in ranges if len(one) > 0 or one.last_per_subject]
    if max_messages is not None:
        pieces = [part for one in pieces for part in _cut(one, -(-len(one) // max_messages))]
    if min_partitions is None or len(pieces) >= min_partitions:
        return pieces
    counts = _pieces(pieces, min_partitions)
    return [part for one, count in zip(pieces, counts, strict=True) for part in _cut(one, count)]


def plan(
    ranges: Iterable[Range], *, min_partitions: int | None = None, max_messages: int | None = None
) -> list[tuple[Range, ...]]:
    """Ranges into partitions, each of one large piece or of several small ones.

    As :func:`split` cuts them; then small pieces are put together (:func:`group`). The result depends on the
    arguments alone: a repeated micro-batch must partition its rows as before.
    """
    pieces = split(ranges, min_partitions=min_partitions, max_messages=max_messages)
    return group(pieces, min_partitions=min_partitions, max_messages=max_messages)


def group(
    pieces: Sequence[Range], *, min_partitions: int | None = None, max_messages: int | None = None
) -> list[tuple[Range, ...]]:
    """Combine small pieces, so that a thousand small streams are not a thousand tasks.

    A piece that costs :data:`TASK_COST` or more is its own partition. The others are spread evenly over
    partitions of about that cost. There are at least ``min_partitions`` partitions (if there are that many
    pieces), and no partition of several pieces has more than ``max_messages`` sequences. Partitions
    are in the order of their first pieces.
    """
    costs = [RANGE_COST + len(one) for one in pieces]
    alone = [(index,) for index, cost in enumerate(costs) if cost >= TASK_COST]
    small = [index for index, cost in enumerate(costs) if cost < TASK_COST]
    count = max(-(-sum(costs[index] for index in small) // TASK_COST), (min_partitions or 1) - len(alone))
    # The most expensive first, each into the cheapest partition so far: (cost, sequences, number of the
    # partition).
    loads = [(0, 0, number) for number in range(min(count, len(small)))]
    members: list[list[int]] = [[] for _ in loads]
    for index in sorted(small, key=lambda one: (-costs[one], one)):
        cost, held, number = loads[0]
        if members[number] and max_messages is not None and held + len(pieces[index]) > max_messages:
            number = len(members)
            members.append([index])
            heapq.heappush(loads, (costs[index], len(pieces[index]), number))
            continue
        members[number].append(index)
        heapq.heapreplace(loads, (cost + costs[index], held + len(pieces[index]), number))
    found = sorted([*alone, *(tuple(sorted(one)) for one in members)])
    return [tuple(pieces[index] for index in one) for one in found]


def _pieces(ranges: Sequence[Range], wanted: int) -> list[int]:
    """Into how many parts each range is cut so that there are ``wanted``, the largest parts cut first."""
    counts = [1] * len(ranges)
    divisible = [index for index, one in enumerate(ranges) if not one.last_per_subject]
    total = sum(len(ranges[index]) for index in divisible)
    if total == 0:
        return counts
    for index in divisible:
        counts[index] = max(1, min(len(ranges[index]), wanted * len(ranges[index]) // total))
    while sum(counts) < wanted:
        index = max(divisible, key=lambda one: len(ranges[one]) / counts[one])
        if counts[index] >= len(ranges[index]):
            break
        counts[index] += 1
    return counts


def _cut(one: Range, count: int) -> list[Range]:
    if count <= 1 or one.last_per_subject:
        return [one]
    size = len(one)
    edges = [one.begin + size * index // count for index in range(count + 1)]
    # Only the first piece is at the head: what expires in the others was there when they were planned.
    return [
        replace(one, begin=edges[index], end=edges[index + 1], earliest=one.earliest and index == 0)
        for index in range(count)
    ]
