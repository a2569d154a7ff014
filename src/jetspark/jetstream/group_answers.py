"""What a few messages with one reply subject were answered, where it is more than the acks of one stream.

See :mod:`jetspark.jetstream.publisher_acks`, "Groups". No IO.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jetspark.errors import JetsparkError

#: Name and domain of a stream.
Home = tuple[str, str | None]


class GroupAnswers:
    """Acks by stream, in the order in which they came, and refusals with the stream that they name.

    A refusal that names none, None, is the server's word that there is no stream; one that names "" is
    nobody's.
    """

    __slots__ = ("acks", "refusals")

    def __init__(self, home: Home | None, seqs: list[int]) -> None:
        self.acks: dict[Home, list[int]] = {} if home is None else {home: seqs}
        self.refusals: list[tuple[str | None, JetsparkError]] = []

    def ack(self, home: Home, seq: int) -> None:
        """One that came already, as of the next leader, is no news."""
        seqs = self.acks.setdefault(home, [])
        if seq not in seqs:
            seqs.append(seq)

    @property
    def plain(self) -> bool:
        """Whether it is no more than the acks of one stream in order."""
        return not self.refusals and len(self.acks) == 1 and all(map(_ascends, self.acks.values()))

    def confirmed(self, count: int) -> Home | None:
        """A stream that has acknowledged all of them, as their order tells."""
        for home, seqs in self.acks.items():
            if len(seqs) == count and _ascends(seqs):
                return home
        return None

    def refused(self, count: int) -> bool:
        """Whether one stream, or the server, has refused all of them."""
        names = {name for name, _ in self.refusals if name is not None}
        return not self.acks and len(self.refusals) >= count and len(names) < 2

    def worth_asking(self, count: int) -> Home | None:
        """A stream that has answered to all of them, one way or the other."""
        for home, seqs in self.acks.items():
            if len(seqs) + len(self.refusals_of(home)) >= count:
                return home
        return None

    def refusals_of(self, home: Home) -> list[JetsparkError]:
        """Those of a stream; none where there are several of its name, for they do not say their domain."""
        if sum(name == home[0] for name, _ in self.acks) > 1:
            return []
        return [error for name, error in self.refusals if name is None or name == home[0]]


def _ascends(seqs: Sequence[int]) -> bool:
    return all(one < next_one for one, next_one in itertools.pairwise(seqs))


def places_of(datas: Sequence[bytes], stored: Iterable[tuple[int, bytes]]) -> dict[int, int]:
    """Which messages a stream has at which sequence, given what it has there, in ascending order.

    What is none of them was acked by another stream of the same name.
    """
    found: dict[int, int] = {}
    begin = 0
    for seq, data in stored:
        for place in range(begin, len(datas)):
            if datas[place] == data:
                found[place] = seq
                begin = place + 1
                break
    return found
