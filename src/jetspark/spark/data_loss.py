"""Messages that are gone before they were read: what counts as loss, and what is said about it.

Not loss: single messages deleted inside a range, messages of subjects we do not read, and the messages a
stream with ``max_msgs_per_subject`` replaces by newer ones of the same subject; such a stream keeps the last
values, not the history, as a compacted topic does.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jetspark.errors import JetsparkError

if TYPE_CHECKING:
    from jetspark.jetstream.stream_info import StreamInfo

logger = logging.getLogger("jetspark.spark")


class DataLossError(JetsparkError):
    """Messages that should have been read are no longer there. ``stream`` says where, ``kind`` why."""

    def __init__(self, stream: str, kind: str, problem: str, remedy: str) -> None:
        super().__init__(f"stream {stream!r}: {problem}; {remedy}")
        self.stream = stream
        self.kind = kind


_GO_ON = "set failOnDataLoss=false to go on without them"


def vanished(stream: str, following: int) -> DataLossError:
    """The stream is no longer there."""
    return DataLossError(
        stream,
        "vanished",
        f"the stream does not exist any more; it was read up to sequence {following - 1}",
        "restore it, take it out of option 'stream', or set failOnDataLoss=false to go on with the others",
    )


def recreated(stream: str, following: int, before: str, now: str) -> DataLossError:
    """Another stream has the name now: sequences mean something else."""
    return DataLossError(
        stream,
        "recreated",
        f"the stream was deleted and made again (created {now}, the checkpoint is of the one created "
        f"{before} and stands at sequence {following})",
        "start with a new checkpoint, or set failOnDataLoss=false to read the new stream from its beginning",
    )


def removed(stream: str, following: int, first: int) -> DataLossError:
    """The head of the range was purged or has expired."""
    return DataLossError(
        stream,
        "removed",
        f"messages {following} to {first - 1} ({first - following} sequences) were purged or have expired "
        f"before they were read; the first that is left is {first}",
        f"raise the stream's limits, read faster, or {_GO_ON}",
    )


def rewound(stream: str, following: int, last: int) -> DataLossError:
    """The stream ends before the place we have read up to."""
    return DataLossError(
        stream,
        "rewound",
        f"the stream ends at sequence {last}, but was read up to {following - 1}: it was restored from an "
        "older backup or lost its tail",
        "start with a new checkpoint, or set failOnDataLoss=false to go on with what comes next",
    )


def report(error: DataLossError, *, fail: bool) -> None:
    """Raise it, or warn and go on."""
    if fail:
        raise error
    logger.warning("data loss, going on because of failOnDataLoss=false: %s", error)


def compacts(info: StreamInfo) -> bool:
    """Whether the stream removes old messages of a subject for newer ones, which is not loss."""
    return (info.config.max_msgs_per_subject or 0) > 0


def first_sequence(info: StreamInfo) -> int:
    """The first sequence that can still be read; one behind the last in an empty stream."""
    if info.state.messages == 0:
        return info.state.last_seq + 1
    return max(1, info.state.first_seq)


def identity(info: StreamInfo) -> str:
    """What tells this stream from another one of the same name."""
    created = info.created
    return "" if created is None else created.to_rfc3339()
