"""Keeps the facade the same API: docstrings come from the async side, and pairs are registered for the test.

Mark a facade class with ``@mirrors(AsyncClass)`` and each of its methods and properties with
``@documented_by(AsyncClass.method)``; ``tests/blocking/test_parity.py`` then compares names, signatures and
docstrings of every registered pair.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

# Words of the async documentation and their blocking replacements, applied in this order.
_WORDS = (
    ("async with ", "with "),
    ("``async with``", "``with``"),
    ("async for ", "for "),
    ("``async for``", "``for``"),
    ("async iterator", "iterator"),
    ("``await``", "call"),
    ("await ", ""),
    ("jetspark.connect`", "jetspark.blocking.connect`"),
    ("jetspark.connect(", "jetspark.blocking.connect("),
)
# Sentences that differ here, regardless of how their lines are broken.
_SENTENCES = (
    (
        "Get some messages: ``await`` it for the batch, or ``async for`` over them as they come.",
        "Get some messages, all that came when it has ended.",
    ),
    (
        "The result is a fetch: ``await`` it for the batch, or ``async for`` over the messages.",
        "The result is the batch, when it has ended.",
    ),
    (" Nothing is sent before.", ""),
    ("Await ``wait`` for the end.", "Call ``wait`` for the end."),
    ("n async context manager", " context manager"),
)
# "a function, async or not, called with": in the blocking API it must be plain.
_EITHER_KIND = re.compile(r",\s+async or not(?=;)|,\s+async or not,|(?<=\()async or not;\s+")


@dataclass(frozen=True)
class Pair:
    """An async class and its facade.

    ``attributes``: names that the async objects have as plain attributes, which inspecting the class does not
    show.
    """

    asynchronous: type
    blocking: type
    attributes: frozenset[str] = frozenset()


PAIRS: list[Pair] = []
"""Every class of the facade, with the class that it mirrors."""

NOTES: dict[object, str] = {}
"""What a facade's docstring says in addition to the async one."""


def translate(doc: str | None) -> str:
    """A docstring of the async API in the words of the blocking API."""
    text = inspect.cleandoc(doc or "")
    text = _EITHER_KIND.sub("", text)
    for sentence, ours in _SENTENCES:
        text = re.sub(r"\s+".join(map(re.escape, sentence.split(" "))), ours, text)
    for word, ours in _WORDS:
        text = text.replace(word, ours)
    return text


def documented_by(source: object, *, note: str = "") -> Callable[[F], F]:
    """Take the docstring of ``source``, plus a ``note`` about threads where one is needed."""

    def copy(function: F) -> F:
        function.__doc__ = _with_note(source, note)
        if note:
            NOTES[function] = note
        return function

    return copy


def mirrors(source: type, *, attributes: Iterable[str] = (), note: str = "") -> Callable[[C], C]:
    """Register the facade of an async class and copy its docstring."""

    def register(cls: C) -> C:
        cls.__doc__ = _with_note(source, note)
        if note:
            NOTES[cls] = note
        PAIRS.append(Pair(source, cls, frozenset(attributes)))
        return cls

    return register


def _with_note(source: object, note: str) -> str:
    text = translate(source.__doc__)
    return f"{text}\n\n{note}" if note else text
