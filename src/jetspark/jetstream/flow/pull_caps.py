"""The most that one pull request may ask for.

A consumer has its own limits (``max_request_batch``, ``max_request_max_bytes``, ``max_request_expires``).
A client learns them from a refusal that names the limit: "Exceeded MaxRequestBatch of N" and similar ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetspark.jetstream.flow.statuses import Kind

if TYPE_CHECKING:
    from jetspark.jetstream.flow.pull_ledger import Ledger, Request
    from jetspark.jetstream.flow.statuses import Status

UNLIMITED = 1 << 62
#: The refusals that name a limit.
LIMITS = frozenset({Kind.MAX_REQUEST_BATCH, Kind.MAX_REQUEST_EXPIRES, Kind.MAX_REQUEST_MAX_BYTES})


class RequestCaps:
    """Limits of one request in messages, bytes (0: not set) and seconds, and the heartbeat that fits."""

    __slots__ = ("batch", "expires", "heartbeat", "size")

    def __init__(self, size: int, expires: float, heartbeat: float) -> None:
        self.batch = UNLIMITED
        self.size = size
        self.expires = expires
        self.heartbeat = heartbeat

    def learn(self, status: Status, ledger: Ledger) -> Request | None:
        """Adopt the limit that a refusal names; returns the request it must be about."""
        count, seconds = status.limit_count, status.limit_seconds
        if status.kind is Kind.MAX_REQUEST_BATCH and count:
            self.batch = min(self.batch, count)
            return ledger.newest(lambda request: request.batch > count)
        if status.kind is Kind.MAX_REQUEST_MAX_BYTES and count:
            self.size = min(self.size, count) if self.size else count
            return ledger.newest(lambda request: request.max_bytes > count)
        if status.kind is Kind.MAX_REQUEST_EXPIRES and seconds:
            self.expires = min(self.expires, seconds)
            self.heartbeat = min(self.heartbeat, self.expires / 2)
            return ledger.newest(lambda request: request.expires > seconds)
        return ledger.newest()

    def shrank(self, kind: Kind, refused: Request) -> bool:
        """Whether the next request will be smaller than the refused one, so it may be sent immediately."""
        if kind is Kind.MAX_REQUEST_BATCH:
            return refused.batch > self.batch
        if kind is Kind.MAX_REQUEST_MAX_BYTES:
            return refused.max_bytes > self.size
        return refused.expires > self.expires
