"""Unique ids for inboxes, consumers and message ids: 22 characters of base 62, as NATS clients use.

Twelve characters come from the operating system's random source; ten count up from a random start by a random
step. Drawing randomness once and counting afterwards makes an id cheap. The counter is an
``itertools.count``, whose ``next`` is atomic in CPython, so threads need no lock. A forked child would
continue with its parent's numbers, so it draws new random ones instead.
"""

from __future__ import annotations

import itertools
import os
import secrets

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PAIRS = [high + low for high in _DIGITS for low in _DIGITS]
_PAIR = 62**2
_LOW = 62**4
_HIGH_PAIRS = 3
_LIMIT = 62**10
_PREFIX_LENGTH = 12
_MIN_STEP, _MAX_STEP = 33, 333


class NUID:
    """A source of ids. :func:`next_nuid` uses one for the whole process; make your own for isolation."""

    __slots__ = ("_count", "_head")

    def __init__(self) -> None:
        self.reseed()

    def reseed(self) -> None:
        """Draw a new random prefix, start and step."""
        prefix = "".join(secrets.choice(_DIGITS) for _ in range(_PREFIX_LENGTH))
        start = secrets.randbelow(_LIMIT // 2)
        step = _MIN_STEP + secrets.randbelow(_MAX_STEP - _MIN_STEP + 1)
        # The prefix is kept with the counter: a thread that reads both at once can't mix generations.
        self._count = (prefix, itertools.count(start, step))
        # The upper six digits change about once in 100,000 ids, so their text is cached with its number.
        self._head = ("", -1, "")

    def next(self) -> str:
        """The next id: 22 characters, never the same twice."""
        prefix, count = self._count
        number = next(count)
        if number >= _LIMIT:
            self.reseed()
            return self.next()
        high, low = divmod(number, _LOW)
        head_prefix, head_high, head = self._head
        if head_high != high or head_prefix is not prefix:
            head = prefix + _encode_high(high)
            self._head = (prefix, high, head)
        upper, lower = divmod(low, _PAIR)
        return head + _PAIRS[upper] + _PAIRS[lower]


def _encode_high(high: int) -> str:
    pairs = []
    for _ in range(_HIGH_PAIRS):
        high, pair = divmod(high, _PAIR)
        pairs.append(_PAIRS[pair])
    return "".join(reversed(pairs))


_process_wide = NUID()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process_wide.reseed)

next_nuid = _process_wide.next
"""The next id of this process: 22 characters of base 62, safe in threads and after a fork."""
