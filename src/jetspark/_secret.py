"""A value that must never be shown: passwords, tokens, seeds, JWTs."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Secret:
    """Wraps a secret so that no ``repr``, ``str``, ``format``, ``vars`` or log record can show it.

    The value lives in a closure instead of an attribute: ``vars()``, ``dataclasses.asdict`` and
    debuggers that print attributes have nothing to print. ``reveal()`` is the one way out, so a search
    for that word lists every place where a secret leaves its wrapper.
    """

    __slots__ = ("reveal",)

    def __init__(self, value: str) -> None:
        # Keep the string itself out of the slots: only this function can reach it.
        self.reveal: Callable[[], str] = lambda: value

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        # surrogatepass: secrets out of the environment may hold bytes that are not UTF-8, and the text of
        # a UnicodeEncodeError would show them.
        mine, theirs = (one.reveal().encode("utf-8", "surrogatepass") for one in (self, other))
        return hmac.compare_digest(mine, theirs)

    def __hash__(self) -> int:
        return hash(self.reveal())

    def __bool__(self) -> bool:
        return bool(self.reveal())

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        # Spark ships options to its executors by pickle; the pickle itself is as secret as its transport.
        return (Secret, (self.reveal(),))
