"""What ``jetspark top`` knows and shows: samples in, rows with rates out, lines at any width. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jetspark.cli.output import bytes_text, short_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetspark import ConsumerInfo, StreamInfo


@dataclass(frozen=True, slots=True)
class Sample:
    """The account at one moment of a monotonic clock."""

    now: float
    streams: Sequence[StreamInfo]
    consumers: Sequence[ConsumerInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRow:
    """A stream, with its rate since the sample before."""

    stream: str
    messages: int
    bytes: int
    last_seq: int
    consumers: int
    in_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRow:
    """A consumer, with its rates since the sample before."""

    stream: str
    consumer: str
    lag: int
    out_per_second: float | None
    ack_pending: int
    redelivered: int
    waiting: int
    paused: bool


@dataclass(slots=True)
class View:
    """What the user chose: the order, and its direction."""

    sort: str = "lag"
    reverse: bool = False
    paused: bool = False
    marks: dict[str, str] = field(default_factory=dict)

    def press(self, key: str) -> bool:
        """Take a key; False when it ends the view."""
        if key in ("q", "Q", "\x03", "\x1b"):
            return False
        if key in KEYS:
            self.reverse = not self.reverse if self.sort == KEYS[key] else False
            self.sort = KEYS[key]
        elif key == "r":
            self.reverse = not self.reverse
        elif key == " ":
            self.paused = not self.paused
        return True


KEYS = {
    "n": "name",
    "l": "lag",
    "m": "messages",
    "i": "rate",
    "a": "acks",
    "d": "redelivered",
    "w": "waiting",
}
SORTS = tuple(KEYS.values())

_STREAM_ORDER = {
    "messages": lambda row: row.messages,
    "rate": lambda row: row.in_per_second or 0.0,
}
_CONSUMER_ORDER = {
    "lag": lambda row: row.lag,
    "rate": lambda row: row.out_per_second or 0.0,
    "acks": lambda row: row.ack_pending,
    "redelivered": lambda row: row.redelivered,
    "waiting": lambda row: row.waiting,
}


def rows(sample: Sample, before: Sample | None) -> tuple[list[StreamRow], list[ConsumerRow]]:
    """Rows of a sample. Rates need a sample before, in which the same stream or consumer existed."""
    seconds = sample.now - before.now if before is not None else 0.0
    old_streams = {(one.config.name, one.created): one for one in before.streams} if before else {}
    old_consumers = (
        {(one.stream_name, one.name, one.created): one for one in before.consumers} if before else {}
    )

    def rate(now: int, then: int | None) -> float | None:
        return None if then is None or seconds <= 0 else max(0.0, (now - then) / seconds)

    streams = []
    for info in sample.streams:
        old = old_streams.get((info.config.name, info.created))
        streams.append(
            StreamRow(
                stream=info.config.name,
                messages=info.state.messages,
                bytes=info.state.bytes,
                last_seq=info.state.last_seq,
                consumers=info.state.consumer_count,
                in_per_second=rate(info.state.last_seq, None if old is None else old.state.last_seq),
            )
        )
    consumers = []
    for one in sample.consumers:
        was = old_consumers.get((one.stream_name, one.name, one.created))
        consumers.append(
            ConsumerRow(
                stream=one.stream_name,
                consumer=one.name,
                lag=one.num_pending,
                out_per_second=rate(
                    one.delivered.consumer_seq, None if was is None else was.delivered.consumer_seq
                ),
                ack_pending=one.num_ack_pending,
                redelivered=one.num_redelivered,
                waiting=one.num_waiting,
                paused=one.paused,
            )
        )
    return streams, consumers


def ordered(
    streams: list[StreamRow], consumers: list[ConsumerRow], view: View
) -> tuple[list[StreamRow], list[ConsumerRow]]:
    """In the order the user chose: names upwards, numbers with the largest first, names among equals."""
    by_name = sorted(streams, key=lambda row: row.stream)
    by_names = sorted(consumers, key=lambda row: (row.stream, row.consumer))
    # Rows without the chosen column are sorted by their most important one.
    stream_key: Any = _STREAM_ORDER.get(view.sort, _STREAM_ORDER["messages"])
    consumer_key: Any = _CONSUMER_ORDER.get(view.sort, _CONSUMER_ORDER["lag"])
    if view.sort != "name":
        by_name.sort(key=stream_key, reverse=True)
        by_names.sort(key=consumer_key, reverse=True)
    if view.reverse:
        by_name.reverse()
        by_names.reverse()
    return by_name, by_names


_STREAMS = (("MSGS", 8), ("SIZE", 10), ("IN/S", 8), ("CONS", 5))
_CONSUMERS = (("LAG", 8), ("OUT/S", 8), ("ACKS", 7), ("REDEL", 6), ("WAIT", 5))


def lines(
    streams: list[StreamRow], consumers: list[ConsumerRow], view: View, *, width: int, height: int, title: str
) -> list[str]:
    """The screen, cut to its width and height."""
    fixed = 6
    room = max(2, height - fixed)
    stream_room = min(len(streams), max(1, room - min(len(consumers), room - 1)), max(1, room // 2))
    stream_room = max(stream_room, min(len(streams), room - len(consumers)))
    consumer_room = max(0, room - stream_room)
    shown = [_cut(title, width), "", _heading("STREAM", _STREAMS, width)]
    for row in streams[:stream_room]:
        cells = (
            short_number(row.messages),
            bytes_text(row.bytes),
            _rate(row.in_per_second),
            short_number(row.consumers),
        )
        shown.append(_row(row.stream, cells, _STREAMS, width))
    if len(streams) > stream_room:
        shown[-1] = _cut(f"  ... {len(streams) - stream_room + 1} more streams", width)
    shown += ["", _heading("CONSUMER", _CONSUMERS, width)]
    for one in consumers[:consumer_room]:
        numbers = (
            short_number(one.lag),
            "paused" if one.paused else _rate(one.out_per_second),
            short_number(one.ack_pending),
            short_number(one.redelivered),
            short_number(one.waiting),
        )
        shown.append(_row(f"{one.stream} > {one.consumer}", numbers, _CONSUMERS, width))
    if len(consumers) > consumer_room and consumer_room:
        shown[-1] = _cut(f"  ... {len(consumers) - consumer_room + 1} more consumers", width)
    direction = ", reversed" if view.reverse else ""
    halted = ", paused" if view.paused else ""
    keys = "q quit  sort: n)ame l)ag m)sgs i)n/out a)cks d) redel w)ait  r)everse"
    shown.append(_cut(f"by {view.sort}{direction}{halted}  {keys}", width))
    return shown


def _rate(value: float | None) -> str:
    return "-" if value is None else short_number(value)


def _heading(name: str, columns: Sequence[tuple[str, int]], width: int) -> str:
    return _row(name, [title for title, _ in columns], columns, width)


def _row(name: str, cells: Sequence[str], columns: Sequence[tuple[str, int]], width: int) -> str:
    right = "".join(f" {cell:>{size}}" for cell, (_, size) in zip(cells, columns, strict=True))
    room = max(8, width - len(right))
    return _cut(f"{_cut(name, room):<{room}}{right}", width)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"
