"""A model of how nats-server serves pull requests: just what a client can observe.

Requests wait in a queue and are served in turn, one message each. ``n`` and ``b`` are what a request has
left. Only a request that asked for heartbeats gets them; only one that did not is told that there are too
many. A request whose bytes come out even vanishes without a word; one whose bytes do not suffice for the next
message ends with a status; a full batch with bytes left ends with another. Everything that is sent goes
through ``outbox``, in order, as on a TCP connection. Each entry knows what it settles of what the client has
outstanding in that inbox (``settles``), so that a test can compare the client's books with the truth. An
inbox that is unsubscribed takes its requests with it; a PONG says when that was. While the server is frozen
(SIGSTOP), what is sent to it waits.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flow.flow_harness import status

if TYPE_CHECKING:
    from jetspark.jetstream.flow.actions import SendPull
    from jetspark.jetstream.flow.statuses import Status

MAX_WAITING = 64


@dataclass(eq=False)
class Waiting:
    n: int
    b: int
    limited: bool
    expires: float
    heartbeat: float
    beat_at: float
    inbox: int


@dataclass(eq=False)
class Sent:
    """One thing on its way to the client: a message of ``size`` bytes, a status, or a PONG."""

    settles: tuple[int, int]
    size: int = 0
    status: Status | None = None
    left: int = 0  # what the ack reply says is left for the consumer
    inbox: int = 0
    pong: bool = False


class ModelServer:
    def __init__(
        self, *, max_request_batch: int = 0, max_request_bytes: int = 0, max_waiting: int = MAX_WAITING
    ) -> None:
        self.max_waiting = max_waiting
        self.max_request_batch = max_request_batch
        self.max_request_bytes = max_request_bytes
        self.stored: deque[int] = deque()
        self.waiting: deque[Waiting] = deque()
        self.outbox: deque[Sent] = deque()
        self.has_leader = True
        self.paused = False
        self.lost = (0, 0)
        self.frozen = False
        self.thawed_at = -math.inf
        self.unread: deque[tuple[SendPull | None, int]] = deque()  # pulls, and UNSUBs as None, of an inbox
        self.unstored: list[int] = []

    def outstanding(self, inbox: int) -> tuple[int, int]:
        """What a client with perfect knowledge would have in its books."""
        waiting = [w for w in self.waiting if w.inbox == inbox]
        sent = [s for s in self.outbox if s.inbox == inbox]
        unread = [pull for pull, its in self.unread if pull is not None and its == inbox]
        messages = sum(w.n for w in waiting) + sum(s.settles[0] for s in sent) + sum(p.batch for p in unread)
        size = sum(w.b for w in waiting) + sum(s.settles[1] for s in sent) + sum(p.max_bytes for p in unread)
        return messages, size

    @property
    def messages_sent(self) -> int:
        """Messages on their way."""
        return sum(sent.status is None and not sent.pong for sent in self.outbox)

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self, now: float, *, publishers_first: bool) -> None:
        """What was sent meanwhile is read, connection by connection; what is overdue happens with the next
        tick."""
        self.frozen = False
        self.thawed_at = now
        unread, self.unread = self.unread, deque()
        stored, self.unstored = self.unstored, []
        if publishers_first:
            self.publish(stored, now)
        for pull, inbox in unread:
            if pull is None:
                self.unsubscribe(inbox)
            else:
                self.pull(pull, inbox, now)
        if not publishers_first:
            self.publish(stored, now)

    def unsubscribe(self, inbox: int) -> None:
        """UNSUB and PING: requests without interest are dropped."""
        if self.frozen:
            self.unread.append((None, inbox))
            return
        self.waiting = deque(w for w in self.waiting if w.inbox != inbox)
        self.outbox.append(Sent((0, 0), inbox=inbox, pong=True))

    def pull(self, request: SendPull, inbox: int, now: float) -> None:
        if self.frozen:
            self.unread.append((request, inbox))
            return
        whole = (request.batch, request.max_bytes)
        if not self.has_leader:
            self._say(status(503), whole, inbox)
        elif self.max_request_batch and request.batch > self.max_request_batch:
            self._say(status(409, f"Exceeded MaxRequestBatch of {self.max_request_batch}"), whole, inbox)
        elif self.max_request_bytes and request.max_bytes > self.max_request_bytes:
            self._say(status(409, f"Exceeded MaxRequestMaxBytes of {self.max_request_bytes}"), whole, inbox)
        elif len(self.waiting) >= self.max_waiting:
            if request.idle_heartbeat_ns:
                self._lose([whole])
            else:
                self._say(status(409, "Exceeded MaxWaiting"), whole, inbox)
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
                    inbox,
                )
            )
            self.serve(now)

    def publish(self, sizes: list[int], now: float) -> None:
        if self.frozen:
            self.unstored.extend(sizes)
            return
        self.stored.extend(sizes)
        self.serve(now)

    def serve(self, now: float) -> None:
        while self.has_leader and not (self.paused or self.frozen) and self.stored and self.waiting:
            size, request = self.stored[0], self.waiting[0]
            if request.limited and size > request.b:
                self.waiting.popleft()
                left = (request.n, request.b)
                self._say(status(409, "Message Size Exceeds MaxBytes", left=left), left, request.inbox)
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
            self.outbox.append(Sent(settles, size, None, len(self.stored), request.inbox))
            if request.n == 0:
                self.waiting.remove(request)
                if request.b:
                    left = (0, request.b)
                    self._say(status(409, "Batch Completed", left=left), left, request.inbox)

    def tick(self, now: float) -> None:
        if self.frozen:
            return
        for request in list(self.waiting):
            if request.expires <= now:
                self.waiting.remove(request)
                left = (request.n, request.b)
                self._say(status(408, "Request Timeout", left=left), left, request.inbox)
            elif request.beat_at <= now:
                request.beat_at = now + request.heartbeat
                self._say(status(100, "Idle Heartbeat"), (0, 0), request.inbox)

    def next_event(self) -> float | None:
        if self.frozen:
            return None
        return min((min(w.expires, w.beat_at) for w in self.waiting), default=None)

    def purge(self, count: int) -> None:
        """Messages that nobody was sent are gone; another client of the consumer does the same to us."""
        for _ in range(min(count, len(self.stored))):
            self.stored.popleft()

    def change_leader(self) -> None:
        """The new leader tells each reply subject once that its requests are void."""
        for inbox in {w.inbox for w in self.waiting}:
            self._say(status(409, "Leadership Change"), self._forget(inbox), inbox)

    def shut_down(self) -> None:
        """Names what one request has left although all are void: there is one entry for each reply."""
        for inbox in {w.inbox for w in self.waiting}:
            last = [w for w in self.waiting if w.inbox == inbox][-1]
            left = (last.n, last.b)
            self._say(status(409, "Server Shutdown", left=left), self._forget(inbox), inbox)

    def crash(self) -> None:
        """kill -9: requests vanish, nobody says anything."""
        self._lose([(w.n, w.b) for w in self.waiting])
        self.waiting.clear()

    def cut(self) -> None:
        """The connection breaks: interest vanishes, and what was on its way is lost (and delivered again)."""
        on_its_way = [sent.size for sent in self.outbox if sent.status is None and not sent.pong]
        self.stored.extendleft(reversed(on_its_way))
        self.outbox.clear()
        self.waiting.clear()
        self.unread.clear()
        self.lost = (0, 0)

    def _forget(self, inbox: int) -> tuple[int, int]:
        gone = [w for w in self.waiting if w.inbox == inbox]
        self.waiting = deque(w for w in self.waiting if w.inbox != inbox)
        return sum(w.n for w in gone), sum(w.b for w in gone)

    def _lose(self, requests: list[tuple[int, int]]) -> None:
        for messages, size in requests:
            self.lost = (self.lost[0] + messages, self.lost[1] + size)

    def _say(self, what: Status, settles: tuple[int, int], inbox: int) -> None:
        self.outbox.append(Sent(settles, 0, what, inbox=inbox))
