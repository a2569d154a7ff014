"""A model of how nats-server serves pull requests: just what a client can observe.

Requests wait in a queue and are served in turn, one message each. ``n`` and ``b`` are what a request has
left. Only a request that asked for heartbeats gets them; only one that did not is told that there are too
many. A request whose bytes come out even vanishes without a word; one whose bytes do not suffice for the next
message ends with a status; a full batch with bytes left ends with another. Everything that is sent goes
through ``outbox``, in order, as on a TCP connection. Each entry knows what it settles of what the client has
outstanding (``settles``), so that a test can compare the client's books with the truth.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flow.flow_harness import status

if TYPE_CHECKING:
    from jetspark.jetstream.flow_actions import SendPull
    from jetspark.jetstream.statuses import Status

MAX_WAITING = 64


@dataclass(eq=False)
class Waiting:
    n: int
    b: int
    limited: bool
    expires: float
    heartbeat: float
    beat_at: float


@dataclass(eq=False)
class Sent:
    """One thing on its way to the client: a message of ``size`` bytes, or a status."""

    settles: tuple[int, int]
    size: int = 0
    status: Status | None = None
    pulls_before: int = 0
    left: int = 0  # what the ack reply says is left for the consumer


class ModelServer:
    def __init__(self, *, max_request_batch: int = 0, max_request_bytes: int = 0) -> None:
        self.max_request_batch = max_request_batch
        self.max_request_bytes = max_request_bytes
        self.stored: deque[int] = deque()
        self.waiting: deque[Waiting] = deque()
        self.outbox: deque[Sent] = deque()
        self.has_leader = True
        self.paused = False
        self.lost = (0, 0)
        self.pulls = 0

    def outstanding(self) -> tuple[int, int]:
        """What a client with perfect knowledge would have in its books."""
        messages = sum(w.n for w in self.waiting) + sum(s.settles[0] for s in self.outbox)
        size = sum(w.b for w in self.waiting) + sum(s.settles[1] for s in self.outbox)
        return messages, size

    def pull(self, request: SendPull, now: float) -> None:
        self.pulls += 1
        whole = (request.batch, request.max_bytes)
        if not self.has_leader:
            self._say(status(503), whole)
        elif self.max_request_batch and request.batch > self.max_request_batch:
            self._say(status(409, f"Exceeded MaxRequestBatch of {self.max_request_batch}"), whole)
        elif self.max_request_bytes and request.max_bytes > self.max_request_bytes:
            self._say(status(409, f"Exceeded MaxRequestMaxBytes of {self.max_request_bytes}"), whole)
        elif len(self.waiting) >= MAX_WAITING:
            if request.idle_heartbeat_ns:
                self._lose([whole])
            else:
                self._say(status(409, "Exceeded MaxWaiting"), whole)
        else:
            heartbeat = request.idle_heartbeat_ns / 1e9 or math.inf
            self.waiting.append(
                Waiting(
                    request.batch,
                    request.max_bytes,
                    request.max_bytes > 0,
                    now + request.expires_ns / 1e9,
                    heartbeat,
                    now + heartbeat,
                )
            )
            self.serve(now)

    def publish(self, sizes: list[int], now: float) -> None:
        self.stored.extend(sizes)
        self.serve(now)

    def serve(self, now: float) -> None:
        while self.has_leader and not self.paused and self.stored and self.waiting:
            size, request = self.stored[0], self.waiting[0]
            if request.limited and size > request.b:
                self.waiting.popleft()
                left = (request.n, request.b)
                self._say(status(409, "Message Size Exceeds MaxBytes", left=left), left)
                continue
            self.stored.popleft()
            self.waiting.rotate(-1)
            request.n -= 1
            request.beat_at = now + request.heartbeat
            settles = (1, size if request.limited else 0)
            if request.limited:
                request.b -= size
                if request.b == 0:
                    # Vanishes silently: the message settles what was left of the batch, too.
                    settles = (1 + request.n, size)
                    request.n = 0
            self.outbox.append(Sent(settles, size, None, self.pulls, len(self.stored)))
            if request.n == 0:
                self.waiting.remove(request)
                if request.b:
                    self._say(status(409, "Batch Completed", left=(0, request.b)), (0, request.b))

    def tick(self, now: float) -> None:
        for request in list(self.waiting):
            if request.expires <= now:
                self.waiting.remove(request)
                left = (request.n, request.b)
                self._say(status(408, "Request Timeout", left=left), left)
            elif request.beat_at <= now:
                request.beat_at = now + request.heartbeat
                self._say(status(100, "Idle Heartbeat"), (0, 0))

    def next_event(self) -> float | None:
        return min((min(w.expires, w.beat_at) for w in self.waiting), default=None)

    def purge(self, count: int) -> None:
        """Messages that nobody was sent are gone; another client of the consumer does the same to us."""
        for _ in range(min(count, len(self.stored))):
            self.stored.popleft()

    def change_leader(self) -> None:
        """The new leader tells each reply subject once that its requests are void."""
        if self.waiting:
            settles = self._forget()
            self._say(status(409, "Leadership Change"), settles)

    def shut_down(self) -> None:
        """Names what one request has left although all are void: there is one entry for each reply."""
        if self.waiting:
            last = self.waiting[-1]
            left = (last.n, last.b)
            self._say(status(409, "Server Shutdown", left=left), self._forget())

    def crash(self) -> None:
        """kill -9: requests vanish, nobody says anything."""
        self._lose([(w.n, w.b) for w in self.waiting])
        self.waiting.clear()

    def cut(self) -> None:
        """The connection breaks: interest vanishes, and what was on its way is lost (and delivered again)."""
        self.stored.extendleft(sent.size for sent in reversed(self.outbox) if sent.status is None)
        self.outbox.clear()
        self.waiting.clear()
        self.lost = (0, 0)

    def _forget(self) -> tuple[int, int]:
        total = (sum(w.n for w in self.waiting), sum(w.b for w in self.waiting))
        self.waiting.clear()
        return total

    def _lose(self, requests: list[tuple[int, int]]) -> None:
        for messages, size in requests:
            self.lost = (self.lost[0] + messages, self.lost[1] + size)

    def _say(self, what: Status, settles: tuple[int, int]) -> None:
        self.outbox.append(Sent(settles, 0, what, self.pulls))
