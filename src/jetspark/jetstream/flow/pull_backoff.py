"""How long pulls are held after the server has refused one. No clock; ``now`` is an argument.

A refusal (503, MaxWaiting, ...) holds pulls for 0.1 s, doubling up to 1 s for as long as an election may
take, later up to 5 s, but never longer than one heartbeat. Statuses that allow an immediate retry
(leadership, shutdown, ...) cause no delay the first time; when they repeat, pulls are held as after a
refusal.
"""

from __future__ import annotations

from jetspark.jetstream.flow.statuses import Recovery

BACKOFF_FIRST = 0.1
BACKOFF_MAX = 5.0
#: The server elects a leader within 9 s. The first tries cover 12.5 s, so they find it soon after.
ELECTION_TRIES, ELECTION_PAUSE = 15, 1.0


class Backoff:
    """``until``: the time before which nothing may be pulled; None when pulling is allowed."""

    __slots__ = ("failures", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.until: float | None = None

    def hold(self, recovery: Recovery, now: float, heartbeat: float) -> None:
        """Count a failure and hold pulls, unless it is the first one and allows an immediate retry."""
        if self.until is not None:
            return  # several requests failed together: one failure
        doublings = self.failures if recovery is Recovery.BACK_OFF else self.failures - 1
        self.failures += 1
        if doublings >= 0:
            longest = ELECTION_PAUSE if doublings < ELECTION_TRIES else BACKOFF_MAX
            ceiling = min(longest, heartbeat or longest)
            self.until = now + min(BACKOFF_FIRST * 2.0 ** min(doublings, 30), ceiling)

    def pass_time(self, now: float) -> None:
        """Allow pulls again when the time has come."""
        if self.until is not None and now >= self.until:
            self.until = None
