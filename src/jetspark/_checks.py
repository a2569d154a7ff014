"""Argument checks where ``isinstance`` is not enough: True and False are integers in Python."""

from __future__ import annotations

from typing import TypeGuard


def is_whole(value: object, least: int, most: int | None = None) -> TypeGuard[int]:
    """Whether it is an integer of at least ``least``, and at most ``most`` if given; a bool is not."""
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and value >= least
        and (most is None or value <= most)
    )


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a number; a bool is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_positive(value: object) -> bool:
    """Whether it is a number above 0, as most durations must be."""
    return is_number(value) and value > 0
