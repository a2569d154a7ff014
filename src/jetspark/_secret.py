"""Values that must never be shown (passwords, tokens, seeds, JWTs), and functions that handle such text."""

from __future__ import annotations

import contextlib
import functools
import hmac
import inspect
import sys
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")

# Clearing the frame of a suspended coroutine or generator would end it.
_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Secret:
    """Wraps a secret so that no ``repr``, ``str``, ``format``, ``vars`` or log record can show it.

    The value lives in a closure instead of an attribute: ``vars()``, ``dataclasses.asdict`` and
    debuggers that print attributes have nothing to print. ``reveal()`` is the only way to the value, so a
    search for that word lists every place where a secret leaves its wrapper.
    """

    __slots__ = ("reveal",)

    def __init__(self, value: str) -> None:
        # Keep the string itself out of the slots: only this function has access to it.
        self.reveal: Callable[[], str] = lambda: value

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        # surrogatepass: secrets from the environment may contain bytes that are not UTF-8, and the text of
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


def hides_locals(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that handles raw secrets: exceptions leave it without the locals of its frames.

    Tools that show the locals of a traceback (``pytest -l``, rich, error trackers) would show the secrets.
    The traceback keeps its files and lines.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        handled = sys.exception()
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            failure = error
        # Raised outside the except block, where this frame no longer has its arguments.
        del args, kwargs
        _clear_frames(failure, handled)
        try:
            raise failure
        finally:
            del failure, handled

    return call


def _clear_frames(error: BaseException, handled: BaseException | None) -> None:
    """Clear the locals of all finished frames of the error and of its chain, up to what was ``handled``."""
    seen: set[int] = {id(handled)}
    chain: list[BaseException | None] = [error]
    while chain:
        one = chain.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        chain += [one.__cause__, one.__context__]
        trace = one.__traceback__
        while trace is not None:
            if not trace.tb_frame.f_code.co_flags & _SUSPENDABLE:
                with contextlib.suppress(RuntimeError):  # still running: a caller of the decorated function
                    trace.tb_frame.clear()
            trace = trace.tb_next
