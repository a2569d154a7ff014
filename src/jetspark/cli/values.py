"""How people write durations, sizes, times, headers and pairs on a command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from jetspark.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 604_800.0,
    "y": 365 * 86_400.0,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|d|w|y)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_POWER = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def duration(option: str, text: str) -> float:
    """Seconds of ``1h30m``, ``500ms``, ``2d``; a bare number is seconds."""
    compact = text.strip().replace(" ", "")
    if re.fullmatch(r"\d+(\.\d+)?", compact):
        return float(compact)
    parts = _PART.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise UsageError(f"{option}: {text!r} is not a duration; write 500ms, 30s, 1h30m or 7d")
    return float(sum(float(number) * _UNITS[unit] for number, unit in parts))


def size(option: str, text: str) -> int:
    """Bytes of ``512``, ``64k``, ``1.5GB``, ``1GiB`` (powers of 1,024); -1 is no limit."""
    if text.strip() == "-1":
        return -1
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{option}: {text!r} is not a size; write 512, 64KB, 1GB, or -1 for no limit")
    return int(float(found[1]) * _POWER[found[2].lower()])


def moment(option: str, text: str, *, past: bool) -> datetime:
    """A point in time: RFC 3339, a date, or a duration from now (into the past or the future)."""
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        pass
    else:
        # A time without a zone is the local one, as everybody at a terminal means it.
        return when.astimezone(UTC)
    try:
        seconds = duration(option, text)
        distance = timedelta(seconds=seconds)
        return datetime.now(UTC) - distance if past else datetime.now(UTC) + distance
    except (UsageError, OverflowError):
        raise UsageError(
            f"{option}: {text!r} is not a time; write 2026-01-31T12:00:00Z, or a duration such as 1h"
        ) from None


def pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """``key=value`` words as a dictionary."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{option}: {text!r} is not a pair; write KEY=VALUE")
        found[key] = value
    return found


def headers(option: str, texts: Iterable[str]) -> dict[str, list[str]]:
    """``Name: value`` words; a name may come several times."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise UsageError(f"{option}: {text!r} is not a header; write 'Name: value'")
        found.setdefault(name.strip(), []).append(value.strip())
    return found


def choice(option: str, text: str, choices: dict[str, str]) -> str:
    """The value that a word stands for; unknown words are answered with the list."""
    try:
        return choices[text.strip().lower()]
    except KeyError:
        raise UsageError(f"{option}: {text!r} is none of {', '.join(choices)}") from None


def words(texts: Iterable[str] | None) -> list[str]:
    """Repeated options and commas both separate: ``--subjects a,b --subjects c``."""
    return [word.strip() for text in texts or () for word in text.split(",") if word.strip()]
