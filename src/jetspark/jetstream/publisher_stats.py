"""What a pipelined publisher says of its messages as a whole: how many there were, and that some failed."""

from __future__ import annotations

from dataclasses import dataclass

from jetspark.errors import JetsparkError


class PublishFailed(JetsparkError):
    """Some messages of a pipelined publisher were not stored, or their fate is unknown.

    ``count`` of them; ``first`` is the first error. The future of each message has its own.
    """

    def __init__(self, count: int, first: JetsparkError) -> None:
        super().__init__(f"{count} message{'s' if count > 1 else ''} not acked; the first: {first}")
        self.count = count
        self.first = first


class PublishUnclear(JetsparkError):
    """Some of a few messages that share their answers were refused, and nobody can say which.

    Only when a stream stores some of the messages of one moment and refuses others, as when it becomes full,
    and may not be read: permission for ``$JS.API.STREAM.MSG.GET.<stream>`` makes it certain, and so does a
    ``msg_id``, whose answers are its own. ``count`` messages, 16 at most; ``sequences`` of those that are
    stored; ``refusal`` is the first.
    """

    def __init__(
        self, count: int, sequences: list[int], refusal: JetsparkError, why: JetsparkError | None
    ) -> None:
        reason = f"; the stream could not be asked: {why}" if why is not None else ""
        super().__init__(
            f"{len(sequences)} of {count} messages that were sent together are stored, at "
            f"{', '.join(map(str, sequences))}; the others were refused: {refusal}{reason}"
        )
        self.count = count
        self.sequences = sequences
        self.refusal = refusal
        self.why = why


@dataclass(slots=True)
class PublisherStats:
    """Counters of one publisher."""

    published: int = 0
    """Messages handed to ``publish``."""
    acked: int = 0
    """Messages stored, duplicates included."""
    duplicates: int = 0
    """Acks that say the stream had the ``msg_id`` already."""
    failed: int = 0
    """Messages refused, timed out or lost with the connection."""
    resent: int = 0
    """Messages sent again by ``retry``."""
