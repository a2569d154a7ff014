"""The options of the source, as values.

Where to read is a :class:`Position` for each stream: an edge of the stream, a sequence or a time. Ends are
exclusive: ``endingSequence=100`` reads up to 99.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from jetspark._times import Moment, parse_moment
from jetspark.errors import InvalidArgument
from jetspark.jetstream.models.validation import check_name
from jetspark.spark.options import (
    CONNECTION_OPTIONS,
    SOURCE_OPTIONS,
    ConnectionOptions,
    OptionError,
    Options,
    parse_connection,
)
from jetspark.wire.subjects import is_subset, validate_filter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

EARLIEST = "earliest"
LATEST = "latest"
LAST_PER_SUBJECT = "last-per-subject"

DEFAULT_MESSAGES_PER_PARTITION = 250_000
DEFAULT_TRIGGER_DELAY = 900.0
DEFAULT_BATCH_ROWS = 20_000
DEFAULT_BUFFER = 20_000

_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a stream: one of its edges, a sequence, or the first message at or after a time."""

    edge: str | None = None
    sequence: int | None = None
    moment: Moment | None = None

    @property
    def moves(self) -> bool:
        """Whether asking again later gives another answer."""
        return self.edge == LATEST or self.moment is not None


@dataclass(frozen=True, slots=True)
class Positions:
    """A position for each stream: those named, and one for all others."""

    default: Position
    by_stream: tuple[tuple[str, Position], ...] = ()

    def of(self, stream: str) -> Position:
        """The position for a stream."""
        return dict(self.by_stream).get(stream, self.default)

    @property
    def move(self) -> bool:
        """Whether any of them depends on when it is resolved."""
        return self.default.moves or any(position.moves for _, position in self.by_stream)


@dataclass(frozen=True, slots=True)
class Streams:
    """Which streams: names, and patterns with ``*``, ``?`` and ``[abc]``."""

    names: tuple[str, ...]
    patterns: tuple[str, ...] = ()

    def selects(self, stream: str) -> bool:
        """Whether a stream is one of them."""
        return stream in self.names or any(fnmatchcase(stream, pattern) for pattern in self.patterns)

    def __str__(self) -> str:
        return ",".join((*self.names, *self.patterns))


def parse_streams(entries: Iterable[str]) -> Streams:
    """Names and patterns. Raises InvalidArgument for an entry that can't name a stream."""
    names: list[str] = []
    patterns: list[str] = []
    for entry in entries:
        glob = _GLOB.search(entry) is not None
        try:
            check_name("stream", re.sub(r"[*?\[\]!]", "x", entry) if glob else entry)
        except InvalidArgument as error:
            raise InvalidArgument("stream", entry, error.rule) from None
        (patterns if glob else names).append(entry)
    return Streams(tuple(names), tuple(patterns))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What to read and how; every field is an option of the same meaning.

    - ``stream`` (required): a name, a comma list, or patterns such as ``ORDERS-*``.
    - ``subjects``: filters with NATS wildcards, comma-separated; applied on the server. Default: all.
    - ``startingPosition``: ``earliest`` (default for batch), ``latest`` (default for streaming), a sequence,
      ``last-per-subject`` (batch only), or a JSON object by stream, e.g. ``{"A": 17, "B": "earliest"}``.
    - ``startingSequence``: a sequence, or a JSON object by stream. ``startingTime``: ISO 8601 (UTC when it
      has no zone) or relative (``-10 minutes``, by the server's clock), or a JSON object by stream. A time
      after the last message means latest.
    - ``endingPosition`` (``latest``), ``endingSequence``, ``endingTime``: the same for batch; exclusive.
    - ``failOnDataLoss`` (true): whether messages that are gone before they were read end the query.
    - ``minPartitions``: split until there are this many. ``maxMessagesPerPartition`` (250000). Small ranges
      share a partition within both limits.
    - ``maxMessagesPerTrigger``: sequences in one micro-batch, shared among streams by their backlog.
      ``maxBytesPerTrigger``: the same in bytes, by each stream's mean message size; an approximation.
    - ``minMessagesPerTrigger``: wait for this many, but no longer than ``maxTriggerDelay`` (15 minutes).
    - ``durable``: name of a consumer that is moved along with the query's progress (before server 2.14 by
      reading through it, forward only).
    - ``releaseWorkQueue`` (false): delete from work-queue streams what the query has committed; needs
      ``startingPosition=earliest``.
    - ``recordBatchRows`` (20000): most rows of one Arrow batch. ``bufferMessages`` (20000): messages in
      flight between server and task.
    """

    connection: ConnectionOptions
    streams: Streams
    subjects: tuple[str, ...] = ()
    start: Positions | None = None
    end: Positions | None = None
    ending_options: tuple[str, ...] = ()
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_messages_per_partition: int = DEFAULT_MESSAGES_PER_PARTITION
    max_messages_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_messages_per_trigger: int | None = None
    max_trigger_delay: float = DEFAULT_TRIGGER_DELAY
    trigger_options: tuple[str, ...] = ()
    durable: str | None = None
    release_work_queue: bool = False
    batch_rows: int = DEFAULT_BATCH_ROWS
    buffer_messages: int = DEFAULT_BUFFER

    @property
    def last_per_subject(self) -> bool:
        """Whether only the last message of each subject is wanted."""
        return self.start is not None and self.start.default.edge == LAST_PER_SUBJECT


def parse_source(given: Mapping[str, str]) -> SourceOptions:
    """The source's options; raises :class:`OptionError` for the first that can't work."""
    options = Options(given, (*CONNECTION_OPTIONS, *SOURCE_OPTIONS))
    streams = _streams(options)
    subjects = options.texts("subjects")
    for subject in subjects:
        try:
            validate_filter(subject, field="subjects")
        except InvalidArgument as error:
            raise OptionError("subjects", f"{subject!r} {error.rule}") from None
    _check_overlap(subjects)
    start = _positions(options, "starting", streams, (EARLIEST, LATEST, LAST_PER_SUBJECT))
    end = _positions(options, "ending", streams, (LATEST,))
    ending = tuple(options.given_of("endingPosition", "endingSequence", "endingTime"))
    if start is not None and start.default.edge == LAST_PER_SUBJECT and ending:
        raise OptionError(ending[0], f"contradicts startingPosition={LAST_PER_SUBJECT}; drop one of them")
    if options.given("maxTriggerDelay") and not options.given("minMessagesPerTrigger"):
        raise OptionError("maxTriggerDelay", "has no effect without option 'minMessagesPerTrigger'")
    most, least = options.integer("maxMessagesPerTrigger"), options.integer("minMessagesPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionError("minMessagesPerTrigger", f"{least} is greater than maxMessagesPerTrigger={most}")
    durable = options.text("durable")
    if durable is not None:
        try:
            check_name("durable", durable)
        except InvalidArgument as error:
            raise OptionError("durable", f"{durable!r} {error.rule}") from None
    return SourceOptions(
        connection=parse_connection(options),
        streams=streams,
        subjects=subjects,
        start=start,
        end=end,
        ending_options=ending,
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        min_partitions=options.integer("minPartitions"),
        max_messages_per_partition=options.integer("maxMessagesPerPartition")
        or DEFAULT_MESSAGES_PER_PARTITION,
        max_messages_per_trigger=most,
        max_bytes_per_trigger=options.integer("maxBytesPerTrigger"),
        min_messages_per_trigger=least,
        max_trigger_delay=options.seconds("maxTriggerDelay") or DEFAULT_TRIGGER_DELAY,
        trigger_options=tuple(
            options.given_of(
                "maxMessagesPerTrigger",
                "maxBytesPerTrigger",
                "minMessagesPerTrigger",
                "durable",
                "releaseWorkQueue",
            )
        ),
        durable=durable,
        release_work_queue=options.flag("releaseWorkQueue", False),
        batch_rows=options.integer("recordBatchRows") or DEFAULT_BATCH_ROWS,
        buffer_messages=options.integer("bufferMessages") or DEFAULT_BUFFER,
    )


def check_batch(options: SourceOptions) -> SourceOptions:
    """Refuse what only a streaming read can do."""
    if options.trigger_options:
        raise OptionError(
            options.trigger_options[0], "is not valid in a batch read, which has no triggers; drop it"
        )
    if options.start is not None and options.start.default.edge == LATEST:
        raise OptionError("startingPosition", "'latest' is not valid in a batch read: it would be empty")
    return options


def check_stream(options: SourceOptions) -> SourceOptions:
    """Refuse what only a batch read can do."""
    if options.ending_options:
        raise OptionError(
            options.ending_options[0],
            "is not valid in a streaming read; use trigger(availableNow=True) to stop at what is there",
        )
    if options.last_per_subject:
        raise OptionError(
            "startingPosition", f"{LAST_PER_SUBJECT!r} is not valid in a streaming read; use spark.read"
        )
    starts = options.start
    if options.release_work_queue and (starts is None or starts != Positions(Position(edge=EARLIEST))):
        raise OptionError(
            "releaseWorkQueue",
            "deletes everything before the query's position, so the query must start with the first message; "
            "set startingPosition=earliest",
        )
    return options


def _check_overlap(subjects: tuple[str, ...]) -> None:
    """Refuse what the server refuses: a filter inside of another one. ``a.*`` beside ``*.b`` is fine."""
    for index, subject in enumerate(subjects):
        for other in (*subjects[:index], *subjects[index + 1 :]):
            if is_subset(subject, other):
                raise OptionError(
                    "subjects",
                    f"{subject!r} is part of {other!r}: filters must not overlap; drop {subject!r}",
                )


def _streams(options: Options) -> Streams:
    entries = options.texts("stream")
    if not entries:
        raise OptionError("stream", "is required: a stream's name, a comma list, or a pattern like ORDERS-*")
    try:
        return parse_streams(entries)
    except InvalidArgument as error:
        raise OptionError("stream", f"{error.value!r} {error.rule}") from None


def _positions(options: Options, edge: str, streams: Streams, edges: tuple[str, ...]) -> Positions | None:
    names = options.given_of(f"{edge}Position", f"{edge}Sequence", f"{edge}Time")
    if len(names) > 1:
        raise OptionError(names[1], f"contradicts option {names[0]!r}; give one of them")
    if not names:
        return None
    name = names[0]
    fallback = Position(edge=EARLIEST if edge == "starting" else LATEST)
    by_stream = options.json_object(name)
    if by_stream is None:
        return Positions(parse_position(name, options.text(name), edges))
    found = []
    for stream, value in by_stream.items():
        if not streams.selects(stream):
            raise OptionError(
                name, f"names stream {stream!r}, which option 'stream' ({streams}) does not select"
            )
        position = parse_position(name, value, edges)
        if position.edge == LAST_PER_SUBJECT:
            raise OptionError(name, f"{LAST_PER_SUBJECT!r} must apply to all streams or to none")
        found.append((stream, position))
    missing = [stream for stream in streams.names if stream not in by_stream]
    if missing:
        raise OptionError(name, f"has no position for stream {missing[0]!r}; give each stream one")
    return Positions(fallback, tuple(found))


def parse_position(name: str, value: Any, edges: tuple[str, ...]) -> Position:
    """One value of a position option; which kinds are allowed follows from the option's name."""
    kind = name.removeprefix("starting").removeprefix("ending")
    text = str(value).strip()
    if kind != "Time" and not isinstance(value, bool) and re.fullmatch(r"\d+", text):
        if int(text) < 1:
            raise OptionError(name, f"{text!r} is not a sequence; the first is 1")
        return Position(sequence=int(text))
    if kind == "Position" and text.lower() in edges:
        return Position(edge=text.lower())
    if kind != "Sequence":
        moment = parse_moment(text)
        if moment is not None:
            return Position(moment=moment)
    expected = {
        "Position": f"one of {', '.join(edges)}, a sequence, or a JSON object by stream",
        "Sequence": "a sequence (1 or more), or a JSON object by stream",
        "Time": "a time such as 2026-01-31T12:00:00Z (UTC without a zone) or '-10 minutes', or a JSON object "
        "by stream",
    }[kind]
    raise OptionError(name, f"{text!r} must be {expected}")
