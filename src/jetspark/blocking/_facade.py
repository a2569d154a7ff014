"""What the facades of handles (streams, consumers, ...) share.

A facade wraps one async object. Its methods are one line each: ``self._run(self._target.method, ...)`` for
a coroutine, ``self._iterate(self._target.method, ...)`` for an async generator.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from jetspark.errors import InvalidArgument, JetsparkError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from jetspark.blocking._engine import Engine

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")

# The largest number of items of an async generator that cross the thread boundary at once.
_LARGEST_BATCH = 1024


class Facade(Generic[A]):
    """An async object and the engine that it runs in."""

    def __init__(self, engine: Engine, target: A) -> None:
        self._engine = engine
        self._target = target

    def __repr__(self) -> str:
        return repr(self._target)

    def _run(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._engine.run(function, *args, **kwargs)

    def _start(
        self, start: Callable[[], Coroutine[Any, Any, Any]], undo: Callable[[], Coroutine[Any, Any, Any]]
    ) -> None:
        """Start what runs until the end of a ``with`` block; an interrupt before the block undoes it."""
        try:
            self._run(start)
        except JetsparkError:
            raise
        except BaseException:
            self._engine.spawn(undo)
            raise

    def _iterate(
        self, function: Callable[P, AsyncIterator[T]], *args: P.args, **kwargs: P.kwargs
    ) -> Iterator[T]:
        """Yield what the async generator yields.

        Batches grow from one item, so the first arrives as soon as possible and the rest costs few hops.
        """
        source: Any = function(*args, **kwargs)
        size, ended = 1, False
        try:
            while not ended:
                batch, ended, error = self._engine.run(_take, source, size)
                yield from batch
                if error is not None:
                    raise error
                size = min(size * 2, _LARGEST_BATCH)
        finally:
            if not ended:
                self._engine.spawn(source.aclose)


def inside(facade: Facade[A]) -> tuple[Engine, A]:
    """The engine and the async object of a facade, for our own packages."""
    return facade._engine, facade._target


async def _take(source: AsyncIterator[T], count: int) -> tuple[list[T], bool, BaseException | None]:
    """At most ``count`` items, whether the source has ended, and the error that ended it after them."""
    found: list[T] = []
    try:
        while len(found) < count:
            found.append(await anext(source))
    except StopAsyncIteration:
        return found, True, None
    except Exception as error:
        return found, True, error
    return found, False, None


def check_plain(field: str, function: object) -> None:
    """Refuse a coroutine function: nothing here would await its result."""
    if inspect.iscoroutinefunction(function):
        raise InvalidArgument(
            field, function, "must be a plain function; async ones are for jetspark.connect()"
        )
