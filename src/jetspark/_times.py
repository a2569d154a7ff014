"""Durations and times as people write them: one grammar for Spark options, the command line and TTLs.

A duration is a sum of numbers with units: ``250ms``, ``1h30m``, ``1 hour 30 minutes``, ``2d``. A number
without a unit means seconds, as in the Python API. A time is ISO 8601 or relative to now. A time without a
zone is UTC, on every machine and for every entry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_NS = 1_000_000_000
# Nanoseconds by unit: symbols, and words, which may be plural.
_SYMBOLS = {
    **{"ns": 1, "us": 1_000, "\u00b5s": 1_000, "\u03bcs": 1_000, "ms": 1_000_000},
    **{"s": _NS, "m": 60 * _NS, "h": 3_600 * _NS, "d": 86_400 * _NS},
    **{"w": 7 * 86_400 * _NS, "y": 365 * 86_400 * _NS},
}
_WORDS = {
    **{"nanosecond": "ns", "microsecond": "us", "millisecond": "ms", "milli": "ms"},
    **{"second": "s", "sec": "s", "minute": "m", "min": "m", "hour": "h", "hr": "h"},
    **{"day": "d", "week": "w", "year": "y"},
}
# The units of Go's time.ParseDuration, which servers use.
_GO_UNITS = frozenset(("ns", "us", "\u00b5s", "\u03bcs", "ms", "s", "m", "h"))
# At most as many digits as an int64 has: the text may come from a server.
_PART = re.compile(r"\s*([0-9]{1,19})(?:\.([0-9]{1,19}))?\s*([A-Za-z\u00b5\u03bc]*)")
# Servers keep durations as an int64 of nanoseconds, 292 years.
_MOST = (1 << 63) - 1


def parse_duration(text: str) -> float | None:
    """Seconds of ``10 minutes``, ``1h30m``, ``250ms`` or ``5``; None if it is not a duration."""
    parts = _parts(text)
    return None if parts is None else sum(ns for ns, _ in parts) / _NS


def server_duration(text: str) -> str | None:
    """A duration in a form that servers read (Go's notation, or seconds); None if it is not a duration.

    A text that a server can read is returned unchanged.
    """
    parts = _parts(text)
    if parts is None:
        return None
    if text.isdecimal() or (text.split() == [text] and all(unit in _GO_UNITS for _, unit in parts)):
        return text
    seconds, rest = divmod(sum(ns for ns, _ in parts), _NS)
    return f"{seconds * _NS + rest}ns" if rest else str(seconds)


def _parts(text: str) -> list[tuple[int, str]] | None:
    """Nanoseconds and unit of each part."""
    if not text.isprintable():  # for example a line break at the end: the text may go into a header
        return None
    found: list[tuple[int, str]] = []
    text = text.strip()
    position = 0
    while position < len(text) or not found:
        match = _PART.match(text, position)
        if match is None:
            return None
        whole, fraction, unit = match[1], match[2] or "", match[3]
        position = match.end()
        if not unit and (found or position < len(text)):
            return None
        factor = _factor(unit)
        if factor is None:
            return None
        found.append((int(whole + fraction) * factor // 10 ** len(fraction), unit))
    return found if sum(ns for ns, _ in found) <= _MOST else None


def _factor(unit: str) -> int | None:
    if not unit:
        return _NS
    if unit == "M":
        return None  # months in the nats tool; too easily mistaken for minutes
    lower = unit.lower()
    return _SYMBOLS.get(_WORDS.get(lower.removesuffix("s"), lower))


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time: absolute, or in seconds before now. Negative seconds are in the future."""

    at: datetime | None = None
    seconds_ago: float | None = None

    def resolve(self, now: datetime) -> datetime:
        """The absolute time."""
        if self.at is not None:
            return self.at
        return now - timedelta(seconds=self.seconds_ago or 0.0)


def parse_moment(text: str, *, ahead: bool = False) -> Moment | None:
    """``2026-01-31T12:00:00Z``, ``2026-01-31`` (midnight UTC), ``now``, ``10 minutes``; None if not a time.

    ``10 minutes`` and ``-10 minutes`` are ten minutes ago; with ``ahead`` the former is ten minutes from now.
    """
    text = text.strip()
    if text.lower() == "now":
        return Moment(seconds_ago=0.0)
    if text.isdecimal() and len(text) != len("20260131"):
        # Seconds or milliseconds since 1970 are not a date, but would pass for one or for an age.
        return None
    try:
        time = datetime.fromisoformat(text)
        return Moment(at=time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC))
    except (ValueError, OverflowError):
        pass
    ago = text.removeprefix("-")
    seconds = parse_duration(ago)
    if seconds is None or not ago[-1].isalpha():
        return None
    return Moment(seconds_ago=-seconds if ahead and ago == text else seconds)
