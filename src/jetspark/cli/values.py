"""How people write durations, sizes, times, headers and pairs on a command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jetspark._times import parse_duration, parse_moment
from jetspark.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_POWER = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def duration(option: str, text: str) -> float:
    """Seconds of ``1h30m``, ``500ms``, ``2 days``; a number without a unit is seconds."""
    seconds = parse_duration(text)
    if seconds is None:
        raise UsageError(f"{option}: {text!r} is not a duration; use 500ms, 30s, 1h30m or 7d")
    return seconds


def size(option: str, text: str) -> int:
    """Bytes of ``512``, ``64k``, ``1.5GB``, ``1GiB`` (powers of 1,024); -1 is no limit."""
    if text.strip() == "-1":
        return -1
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{option}: {text!r} is not a size; use 512, 64KB, 1GB, or -1 for no limit")
    return int(float(found[1]) * _POWER[found[2].lower()])


def moment(option: str, text: str, *, past: bool) -> datetime:
    """A point in time: RFC 3339 (UTC when it has no zone), a date, or a duration from now (into the past or
    the future)."""
    found = parse_moment(text, ahead=not past)
    if found is None:
        raise UsageError(
            f"{option}: {text!r} is not a time; use 2026-01-31T12:00:00Z (UTC without a zone) or a duration "
            "such as 1h"
        )
    return found.resolve(datetime.now(UTC))


def pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """``key=value`` words as a dictionary."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{option}: {text!r} is not a pair; use KEY=VALUE")
        found[key] = value
    return found


def headers(option: str, texts: Iterable[str]) -> dict[str, list[str]]:
    """``Name: value`` words; a name may come several times."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise UsageError(f"{option}: {text!r} is not a header; use 'Name: value'")
        found.setdefault(name.strip(), []).append(value.strip())
    return found


def choice(option: str, text: str, choices: dict[str, str]) -> str:
    """The value for a word; the error for an unknown word lists all words."""
    try:
        return choices[text.strip().lower()]
    except KeyError:
        raise UsageError(f"invalid {option} {text!r}; use one of {', '.join(choices)}") from None


def words(texts: Iterable[str] | None) -> list[str]:
    """Repeated options and commas both separate: ``--subjects a,b --subjects c``."""
    return [word.strip() for text in texts or () for word in text.split(",") if word.strip()]
