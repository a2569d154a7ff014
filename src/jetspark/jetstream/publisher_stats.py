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
    """A few messages share their answers, and nobody can say which of them are stored.

    When a stream stores some of the messages of one moment and refuses others, as when it becomes full, or
    when two streams of one name answer; and it may not be read. Permission for
    ``$JS.API.STREAM.MSG.GET.<stream>`` makes it certain, and so does a ``msg_id``, whose answers are its own.
    ``count`` messages, 16 at most; ``sequences`` that were acked; ``refusal``: the first, if there was one.
    """

    def __init__(
        self, count: int, sequences: list[int], refusal: JetsparkError | None, why: JetsparkError
    ) -> None:
        told = ", ".join(map(str, sequences))
        text = f"of {count} messages that were sent together, these were acked: {told}"
        if refusal is not None:
            text += f"; others were refused: {refusal}"
        super().__init__(f"{text}; the stream could not be asked which: {why}")
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
