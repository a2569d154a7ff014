"""Reports messages that were removed before they were read, as errors or warnings.

What counts as loss is decided in :mod:`jetspark.spark.source.claims`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jetspark.errors import JetsparkError
from jetspark.jetstream.models.stream_config import RetentionPolicy
from jetspark.spark.source.claims import Outcome

if TYPE_CHECKING:
    from jetspark.jetstream.models.stream_info import StreamInfo
    from jetspark.spark.source.claims import Found, Gap

logger = logging.getLogger("jetspark.spark")


class DataLossError(JetsparkError):
    """Messages that should have been read are no longer there. ``stream`` says where, ``kind`` why."""

    def __init__(self, stream: str, kind: str, problem: str, remedy: str) -> None:
        super().__init__(f"stream {stream!r}: {problem}; {remedy}")
        self.stream = stream
        self.kind = kind


_GO_ON = "set failOnDataLoss=false to continue without them"


def vanished(stream: str, following: int) -> DataLossError:
    """The stream is no longer there."""
    return DataLossError(
        stream,
        "vanished",
        f"the stream no longer exists; it was read up to sequence {following - 1}",
        "restore it, remove it from option 'stream', or set failOnDataLoss=false to continue with the others",
    )


def recreated(stream: str, following: int, before: str, now: str) -> DataLossError:
    """Another stream has the name now: sequences mean something else."""
    return DataLossError(
        stream,
        "recreated",
        f"the stream was deleted and created again ({now}; the checkpoint belongs to the one created "
        f"{before} and is at sequence {following})",
        "start with a new checkpoint, or set failOnDataLoss=false to read the new stream from its beginning",
    )


def removed(stream: str, gap: Gap, found: Found, *, filtered: bool) -> DataLossError:
    """The stream's first sequence has passed what was not read."""
    size = gap.end - gap.begin
    counted = f"({size} sequences)" if filtered or gap.missing == size else f"({gap.missing} of them)"
    causes = "were purged or have expired"
    if found.rules.retention != RetentionPolicy.LIMITS:
        causes = "were acked by other consumers, purged, or have expired"
    doubt = ""
    if filtered:
        doubt = "; the server can't tell whether any of them had a subject of option 'subjects'"
    return DataLossError(
        stream,
        "removed",
        f"messages {gap.begin} to {gap.end - 1} {counted} {causes} before they were read; the first that is "
        f"left is {found.first}{doubt}",
        f"raise the stream's limits, read faster, or {_GO_ON}",
    )


def keys_removed(stream: str, given: int, expected: int, *, filtered: bool) -> DataLossError:
    """Keys of a last-per-subject snapshot are gone."""
    doubt = ""
    if filtered:
        doubt = "; the server can't tell whether any of them matched option 'subjects'"
    return DataLossError(
        stream,
        "removed",
        f"{expected - given} of the {expected} subjects that were there when the read was planned were "
        f"purged or have expired before they were read{doubt}",
        f"raise the stream's limits, or {_GO_ON}",
    )


def rewound(stream: str, following: int, last: int) -> DataLossError:
    """The stream ends before the position that was read."""
    return DataLossError(
        stream,
        "rewound",
        f"the stream ends at sequence {last}, but was read up to {following - 1}: it was restored from an "
        "older backup or lost its tail",
        "start with a new checkpoint, or set failOnDataLoss=false to continue with what comes next",
    )


def replaced(stream: str, sequence: int) -> DataLossError:
    """The stream lost its tail, and new messages have the lost ones' sequences."""
    return DataLossError(
        stream,
        "rewound",
        f"the message at sequence {sequence} is not the one that was there: the stream was restored from an "
        "older backup or lost its tail, and has been written to since",
        "start with a new checkpoint, or set failOnDataLoss=false to continue with the messages stored since",
    )


def report(error: DataLossError, *, fail: bool) -> None:
    """Raise it, or warn and go on."""
    if fail:
        raise error
    logger.warning("data loss, continuing because of failOnDataLoss=false: %s", error)


def act(outcome: Outcome, error: DataLossError, *, fail: bool) -> None:
    """Do what an outcome asks for: nothing, a warning, or :func:`report`."""
    if outcome == Outcome.LOSS:
        report(error, fail=fail)
    elif outcome == Outcome.WARNING:
        logger.warning(
            "not treated as data loss: a single delete, the messages' own TTLs, or the stream's limits "
            "before its first rows were read may be the cause, which the server does not report: %s",
            error,
        )


def identity(info: StreamInfo) -> str:
    """What tells this stream from another one of the same name."""
    created = info.created
    return "" if created is None else created.to_rfc3339()
