"""What the consumer has left, as far as its newest message or its info told: whether a request would wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetspark.jetstream.flow.ack_reply import num_pending
from jetspark.jetstream.flow.statuses import Kind

if TYPE_CHECKING:
    from jetspark.jetstream.flow.pull_ledger import Ledger


_LEAST = 50.0
#: What ends a request that was served: it says nothing against the backlog.
_SERVED = (Kind.MESSAGE_TOO_LARGE, Kind.BATCH_COMPLETED)


class Backlog:
    """See the module. In bytes it is an estimate, by the newest messages; a silent request that waits all
    the same is no harm."""

    __slots__ = ("_left", "mean", "short", "trusted")

    def __init__(self, trusted: bool) -> None:
        self.trusted = trusted
        self._left: int | bytes = 0
        #: The last request asked for more than is left.
        self.short = False
        #: Bytes of a message; no less than its ack reply before the first has come.
        self.mean = _LEAST

    @property
    def left(self) -> int:
        """Messages; 0 when nothing is known. Set it to an ack reply that says so; it is read when it matters,
        once for many messages."""
        left = self._left
        if isinstance(left, bytes):
            self._left = left = num_pending(left)
        return left

    @left.setter
    def left(self, count: int | bytes) -> None:
        self._left = count
        if count == 0:
            self.short = False

    def covers(self, ledger: Ledger, batch: int, size: int) -> bool:
        """Whether it is enough for one more request beside all that is outstanding."""
        if not self.trusted:
            return False
        left = self.left
        if not left:
            return False
        if ledger.by_bytes:
            enough = left * self.mean >= ledger.size + size
        else:
            enough = left >= ledger.messages + batch
        self.short = not enough
        return enough

    def heard(self, kind: Kind) -> None:
        """A status came: of a request that waited, most likely."""
        if kind not in _SERVED:
            self.left = 0
