"""From positions to sequences, on the driver: asks the server for the streams and their ends."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jetspark.errors import JetsparkError
from jetspark.spark.patience import patiently
from jetspark.spark.source.claims import Gap, first_sequence, found_of, is_filtered, judge_gap, seen_of
from jetspark.spark.source.data_loss import act, identity, removed
from jetspark.spark.source.moments import sequence_at
from jetspark.spark.source.options import EARLIEST, LATEST, Position, Positions, SourceOptions
from jetspark.spark.source.planning import Range
from jetspark.spark.source.range_proof import some_subject_full

if TYPE_CHECKING:
    from jetspark.blocking.jetstream import JetStream
    from jetspark.blocking.stream import Stream
    from jetspark.jetstream.models.stream_info import StreamInfo
    from jetspark.spark.source.claims import Seen
    from jetspark.spark.source.options import Streams


class StreamsNotFound(JetsparkError):
    """Streams that option 'stream' names do not exist, or no stream matches its pattern."""


def find_streams(js: JetStream, streams: Streams) -> dict[str, StreamInfo]:
    """The selected streams that exist, by name. A list for patterns; names are asked for at the same time."""
    found: dict[str, StreamInfo] = {}
    if streams.patterns:
        for info in js.list_streams():
            if streams.selects(info.config.name):
                found[info.config.name] = info
        return dict(sorted(found.items()))
    return js.stream_infos(streams.names)


def require_streams(js: JetStream, streams: Streams, *, some: bool = True) -> dict[str, StreamInfo]:
    """As :func:`find_streams`; raises when a named stream is missing, or (``some``) when there is none."""
    found = find_streams(js, streams)
    missing = [name for name in streams.names if name not in found]
    if missing:
        raise StreamsNotFound(f"stream {missing[0]!r} does not exist; create it, or fix option 'stream'")
    if some and not found:
        raise StreamsNotFound(f"no stream matches {str(streams)!r}; create one, or fix option 'stream'")
    return found


def resolve(js: JetStream, info: StreamInfo, position: Position) -> int:
    """The sequence of a position: the first at or behind it, ``last + 1`` when nothing is."""
    latest = info.state.last_seq + 1
    if position.edge == LATEST:
        return latest
    if position.sequence is not None:
        return position.sequence
    if position.moment is None:
        return first_sequence(info)
    # The server's clock, which stamped the messages.
    return sequence_at(js, info, position.moment.resolve(info.ts or datetime.now(UTC)))


def begins_earliest(positions: Positions, stream: str) -> bool:
    """Whether reading starts at the beginning of a stream, wherever that is by then."""
    return positions.of(stream).edge == EARLIEST


def batch_ranges(js: JetStream, options: SourceOptions) -> list[Range]:
    """What a batch read covers: a range of each stream, as of now."""
    starts = options.start or Positions(Position(edge=EARLIEST))
    ends = options.end or Positions(Position(edge=LATEST))
    ranges = []
    for name, info in require_streams(js, options.streams).items():
        latest = info.state.last_seq + 1
        if options.last_per_subject:
            begin, end, earliest = 1, latest, True
            if not info.state.messages:
                continue
        else:
            begin = resolve(js, info, starts.of(name))
            end = min(resolve(js, info, ends.of(name)), latest)
            earliest = begins_earliest(starts, name)
            first = first_sequence(info)
            if begin < first:
                if not earliest and begin < end:
                    check_gap(js.get_stream(name), info, begin, min(first, end), options)
                begin = first
        ranges.append(
            Range(
                name,
                begin,
                end,
                identity(info),
                options.subjects,
                earliest=earliest,
                last_per_subject=options.last_per_subject,
                seen=seen_of(info),
            )
        )
    return ranges


def check_gap(
    stream: Stream, info: StreamInfo, begin: int, end: int, options: SourceOptions, seen: Seen | None = None
) -> None:
    """On the driver: judge that a stream begins at ``end`` or behind it, though ``begin`` was to be read."""
    found, filtered = found_of(info), is_filtered(info, options.subjects)
    gap = Gap(begin, end, end - begin)
    full = patiently(lambda: some_subject_full(stream, found), f"the subjects of stream {stream.name!r}")
    outcome = judge_gap(gap, seen, found, filtered=filtered, full=full)
    error = removed(info.config.name, gap, found, filtered=filtered)
    act(outcome, error, fail=options.fail_on_data_loss)
