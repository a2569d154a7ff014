"""What a client has requested and not yet received: the only place that counts it.

ADR-37 "Buffering messages" needs only a total, and the total is exact. In addition, each request is
remembered, for two reasons: a refusal carries no count, so the whole request must be removed; and
a request past its expiry must be written off whatever the server said.

The server serves the waiting requests of a consumer in turn, and a message does not say which request it
belongs to. So messages are counted against the oldest request first. The sum is exact, and the only possible
error is that a request looks younger than it is: nothing is written off too early.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Request:
    """One pull request: what it asked for, and how much of that is still open."""

    __slots__ = ("batch", "deadline", "expires", "max_bytes", "messages", "pinned", "size", "taken")

    def __init__(self, batch: int, max_bytes: int, expires: float, deadline: float, pinned: bool) -> None:
        self.batch = batch
        self.max_bytes = max_bytes
        self.expires = expires
        self.deadline = deadline
        self.pinned = pinned
        self.messages = batch
        self.size = max_bytes
        #: Messages arrived while it was the only request, so it can no longer be refused.
        self.taken = False


class Ledger:
    """Open requests, oldest first, and their sums.

    ``by_bytes`` says which number measures the buffer. If true, a request whose bytes are used up is done,
    whatever is left of its (nominal) batch.
    """

    __slots__ = ("by_bytes", "messages", "requests", "size")

    def __init__(self, by_bytes: bool) -> None:
        self.by_bytes = by_bytes
        self.requests: deque[Request] = deque()
        self.messages = 0
        self.size = 0

    def add(self, request: Request) -> None:
        self.requests.append(request)
        self.messages += request.batch
        self.size += request.max_bytes

    def received(self, count: int, nbytes: int) -> None:
        """Messages arrived. Messages of requests that were written off are not counted."""
        requests = self.requests
        if not requests:
            return
        head = requests[0]
        if len(requests) == 1:
            head.taken = True
        if count < head.messages and (nbytes < head.size or not head.max_bytes):
            # Nearly always: the oldest request has room for all of them, and some room is left.
            head.messages -= count
            self.messages -= count
            if head.max_bytes:
                head.size -= nbytes
                self.size -= nbytes
            return
        self._take(count, nbytes)

    def ended(self, messages: int, nbytes: int) -> None:
        """A request ended with this much left (Nats-Pending-Messages, Nats-Pending-Bytes)."""
        self._take(messages, nbytes)

    def newest(self, fits: Callable[[Request], bool] | None = None) -> Request | None:
        """The request a refusal is about. It was refused on arrival, so it is the newest that could be
        meant."""
        suspects = self._suspects(fits)
        return suspects[-1] if suspects else None

    def differ(self, fits: Callable[[Request], bool] | None = None) -> bool:
        """Whether a refusal may be about one of several requests that asked for different things."""
        return len({(request.batch, request.max_bytes) for request in self._suspects(fits)}) > 1

    def _suspects(self, fits: Callable[[Request], bool] | None) -> list[Request]:
        """The requests that a refusal may be about."""
        fitting = [request for request in self.requests if fits is None or fits(request)]
        suspects = [request for request in fitting if not request.taken]
        return suspects or fitting or list(self.requests)

    def refused(self, request: Request) -> None:
        """The server never accepted the request: remove all of it. What was counted against it belongs to
        others."""
        self._drop(request)
        self._take(request.batch - request.messages, request.max_bytes - request.size)

    def overdue(self, now: float) -> bool:
        """Whether a request is past its client-side deadline."""
        return bool(self.requests) and self.requests[0].deadline <= now

    def void(self) -> None:
        """No request is alive."""
        self.requests.clear()
        self.messages = 0
        self.size = 0

    def _drop(self, request: Request) -> None:
        self.requests.remove(request)
        self.messages -= request.messages
        self.size -= request.size

    def _take(self, messages: int, nbytes: int) -> None:
        limited = self.size > 0
        for request in self.requests:
            if messages <= 0 and nbytes <= 0:
                break
            part = min(messages, request.messages)
            request.messages -= part
            self.messages -= part
            messages -= part
            part = min(nbytes, request.size)
            request.size -= part
            self.size -= part
            nbytes -= part
        while self.requests and self._done(self.requests[0]):
            self._drop(self.requests[0])
        if limited and self.size == 0:
            # The server silently drops a request whose bytes are used up exactly. Without any bytes left no
            # request can be alive, so what is left of their batches will never arrive. It makes no difference
            # whether messages used up the last bytes or the end of another request returned the rest.
            self.void()

    def _done(self, request: Request) -> bool:
        if request.size:
            # A full batch with bytes left: the server reports it (Batch Completed) with the remaining bytes.
            return False
        return self.by_bytes or not request.messages
