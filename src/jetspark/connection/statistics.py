"""Counters of a connection."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(slots=True)
class Statistics:
    """Messages and bytes in both directions, and how often the connection was renewed.

    ``server_errors`` counts every ``-ERR``, including those that are too many to become events.
    """

    in_msgs: int = 0
    out_msgs: int = 0
    in_bytes: int = 0
    out_bytes: int = 0
    reconnects: int = 0
    server_errors: int = 0

    def copy(self) -> Statistics:
        """A snapshot."""
        return replace(self)
