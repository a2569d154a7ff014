"""Offsets: what Spark writes into its checkpoint about a query's place in each stream.

``begin`` inclusive, ``next`` exclusive. An offset describes the micro-batch that it ends: ``[begin,
next)`` of each stream. Spark asks for the initial offset more than once, and again after a restart when
batch 0 never committed; a ``latest`` that is resolved again would skip messages. So the start travels inside
the end: what a batch reads is decided by its end offset alone, which is in the log before the batch runs.

``created`` tells a stream from another one of the same name that was made after it was deleted.
``earliest`` marks a place that was the beginning of the stream and from which nothing has been read yet:
what expires there before the first read is not loss. ``ahead`` marks a starting sequence that the
stream has not reached yet; any other place behind a stream's end means that the stream lost its tail.
``skipped`` marks a place before which there may be messages of ``subjects`` that the query has not read: it
began behind the stream's beginning, or had other subjects before. Such messages must not be released.
``seen`` is what the leader said when the batch was planned, against which losses are judged
(:mod:`jetspark.spark.source.claims`); offsets of older releases have none. ``subjects`` is the filter the
batch was planned with, so that a replay after a change of options reads the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from jetspark._checks import is_whole
from jetspark.errors import JetsparkError
from jetspark.spark.source.claims import Seen

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 1


class OffsetError(JetsparkError):
    """The checkpoint holds an offset that can't be used: damaged, or of a newer version."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The place in one stream: the batch that ends here read ``[begin, next)``."""

    next: int
    begin: int
    created: str
    earliest: bool = False
    ahead: bool = False
    seen: Seen | None = None
    skipped: bool = False

    @property
    def unread(self) -> bool:
        """Whether the batch that ends here read nothing."""
        return self.begin == self.next


@dataclass(frozen=True, slots=True)
class Offset:
    """The place in all streams. ``initial``: nothing has been read; not yet in any log."""

    streams: Mapping[str, StreamOffset] = field(default_factory=dict)
    subjects: tuple[str, ...] = ()
    initial: bool = False

    def to_json(self) -> dict[str, Any]:
        """As Spark stores it: the same offset always gives the same text."""
        found: dict[str, Any] = {"version": VERSION}
        if self.initial:
            found["initial"] = True
        if self.subjects:
            found["subjects"] = list(self.subjects)
        found["streams"] = {
            name: {
                "next": one.next,
                "begin": one.begin,
                "created": one.created,
                **({"earliest": True} if one.earliest else {}),
                **({"ahead": True} if one.ahead else {}),
                **({"skipped": True} if one.skipped else {}),
                **({"seen": one.seen.to_json()} if one.seen is not None else {}),
            }
            for name, one in sorted(self.streams.items())
        }
        return found

    def settled(self) -> Offset:
        """The same place, as a batch without rows that ends here."""
        streams = {
            name: replace(one, begin=one.next, earliest=one.earliest and one.unread)
            for name, one in self.streams.items()
        }
        return Offset(streams, self.subjects)

    def skips(self, stream: str, created: str, subjects: tuple[str, ...]) -> bool:
        """Whether a batch of these subjects that goes on from here leaves messages of theirs unread."""
        one = self.streams.get(stream)
        if one is None or one.created != created or (one.earliest and one.unread):
            return False  # it begins at the stream's beginning
        return one.skipped or (bool(self.subjects) and subjects != self.subjects)


def parse_offset(value: object) -> Offset:
    """An offset as Spark returned it; :class:`OffsetError` for anything else."""
    if not isinstance(value, dict):
        raise OffsetError(f"offset in the checkpoint is not a JSON object: {value!r:.200}; {_REMEDY}")
    version = value.get("version")
    if isinstance(version, int) and not isinstance(version, bool) and version > VERSION:
        raise OffsetError(
            f"offset in the checkpoint has version {version}, this jetspark reads up to {VERSION}: it was "
            "written by a newer release; upgrade jetspark here, or start with a new checkpoint"
        )
    if version != VERSION or isinstance(version, bool):
        raise OffsetError(f"offset in the checkpoint has an unknown version: {version!r:.50}; {_REMEDY}")
    streams = value.get("streams")
    if not isinstance(streams, dict):
        raise OffsetError(f"offset in the checkpoint has no streams: {value!r:.200}; {_REMEDY}")
    subjects = value.get("subjects", [])
    if not isinstance(subjects, list) or not all(isinstance(one, str) for one in subjects):
        raise OffsetError(f"offset in the checkpoint has invalid subjects: {subjects!r:.200}; {_REMEDY}")
    return Offset(
        {str(name): _parse_stream(str(name), one) for name, one in streams.items()},
        tuple(subjects),
        value.get("initial") is True,
    )


_REMEDY = "restore the checkpoint from a backup, or start with a new one and startingSequence"


def _parse_stream(name: str, value: object) -> StreamOffset:
    if not isinstance(value, dict):
        raise _damaged(name, value)
    following: Any = value.get("next")
    begin: Any = value.get("begin")
    created = value.get("created")
    if not _sequence(following) or not _sequence(begin) or not isinstance(created, str) or begin > following:
        raise _damaged(name, value)
    earliest, ahead = value.get("earliest") is True, value.get("ahead") is True
    told = value.get("seen")
    seen = Seen.from_json(told) if isinstance(told, dict) else None
    if seen is None and told is not None:
        raise _damaged(name, value)
    return StreamOffset(following, begin, created, earliest, ahead, seen, value.get("skipped") is True)


def _sequence(value: Any) -> bool:
    return is_whole(value, 1)


def _damaged(name: str, value: object) -> OffsetError:
    return OffsetError(f"offset of stream {name!r} in the checkpoint is damaged: {value!r:.200}; {_REMEDY}")
