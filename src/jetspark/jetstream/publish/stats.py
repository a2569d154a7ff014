"""Totals of a pipelined publisher: counters, and the error that reports failed messages."""

from __future__ import annotations

from dataclasses import dataclass

from jetspark.errors import JetsparkError


class PublishFailed(JetsparkError):
    """Some messages of a pipelined publisher were not stored, or it is unknown whether they were.

    ``count`` is their number, ``first`` the first error. The future of each message has its own error.
    """

    def __init__(self, count: int, first: JetsparkError) -> None:
        super().__init__(f"{count} message{'s' if count > 1 else ''} not acked; the first: {first}")
        self.count = count
        self.first = first


class PublisherFull(JetsparkError):
    """``publish_nowait`` found no room: ``pending`` messages of a pipelined publisher wait for their acks.

    The window is full, or large messages amount to 32 MiB. ``await publish()`` waits for room.
    """

    def __init__(self, pending: int, window: int) -> None:
        super().__init__(
            f"the publisher is full: {pending} messages wait for their acks, window={window}; "
            "use publish(), which waits for room, or a larger window"
        )
        self.pending = pending
        self.window = window


@dataclass(slots=True)
class PublisherStats:
    """Counters of one publisher."""

    published: int = 0
    """Messages handed to ``publish``."""
    acked: int = 0
    """Messages stored, duplicates included."""
    duplicates: int = 0
    """Acks that say the stream already had the ``msg_id``."""
    failed: int = 0
    """Messages refused, timed out or lost with the connection."""
    resent: int = 0
    """Messages sent again by ``retry``."""
