"""The blocking API is the async one without async: names, signatures and docstrings, compared mechanically.

Pairs register themselves with ``@mirrors``. The checker proves itself on small classes first.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
import jetspark.advisories
from jetspark import blocking
from jetspark.blocking._mirror import NOTES, PAIRS, Pair, documented_by, mirrors, translate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

# How a special method of the async protocol is called in the blocking one.
SPECIAL = {
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
}
# Words of annotations that change; class names do not, since both sides use the same ones.
TYPES = (
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAsyncGenerator\[(.*), None\]", r"Iterator[\1]"),
    (r"\bConnecting\b", "Connection"),
    (r"\bFetch\b", "MessageBatch"),
    (r"\basyncio\.Future\b", "Future"),
)
# Made to be awaited: threads get the result at once.
AWAITED = {jetspark.AckBatch, jetspark.Connecting, jetspark.Fetch}
# What the facade does not have yet; an entry that it has got meanwhile fails the test too.
PENDING: set[str] = set()
ASYNC_WORDS = re.compile(r"\b(async|await|awaits|awaited|asyncio|coroutine)\b", re.IGNORECASE)


def plain(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", repr(annotation))
    text = text.replace('"', "")
    for pattern, ours in TYPES:
        text = re.sub(pattern, ours, text)
    return text


def shape(function: Any) -> list[tuple[str, str, str, str]]:
    signature = inspect.signature(function)
    found = [
        (p.name, p.kind.name, repr(p.default), plain(p.annotation)) for p in signature.parameters.values()
    ]
    return [*found, ("return", "", "", plain(signature.return_annotation))]


def public_names(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def compare_docs(where: str, theirs: Any, ours: Any, key: Any) -> Iterator[str]:
    wanted = translate(theirs.__doc__)
    if key in NOTES:
        wanted += "\n\n" + NOTES[key]
    found = inspect.cleandoc(ours.__doc__ or "")
    if found != wanted:
        yield f"{where}: docstring is {found!r}, not {wanted!r}"
    if word := ASYNC_WORDS.search(found):
        yield f"{where}: docstring speaks of {word.group()!r}"


def compare_functions(where: str, theirs: Any, ours: Any) -> Iterator[str]:
    if inspect.iscoroutinefunction(ours) or inspect.isasyncgenfunction(ours):
        yield f"{where}: is async"
    if shape(theirs) != shape(ours):
        changed = [pair for pair in zip(shape(theirs), shape(ours), strict=False) if pair[0] != pair[1]]
        yield f"{where}: signature differs: {changed or (shape(theirs), shape(ours))}"
    yield from compare_docs(where, theirs, ours, ours)


def compare_members(where: str, theirs: Any, ours: Any) -> Iterator[str]:
    if isinstance(theirs, property):
        if not isinstance(ours, property):
            yield f"{where}: is no property"
            return
        if plain(theirs.fget.__annotations__["return"]) != plain(ours.fget.__annotations__["return"]):
            yield f"{where}: type differs"
        yield from compare_docs(where, theirs, ours, ours.fget)
    elif inspect.isfunction(theirs):
        if not inspect.isfunction(ours):
            yield f"{where}: is no method"
            return
        yield from compare_functions(where, theirs, ours)


def differences(pair: Pair) -> list[str]:
    """Everything in which the facade is not the async class without async."""
    theirs, ours = pair.asynchronous, pair.blocking
    found = list(compare_docs(ours.__name__, theirs, ours, ours))
    wanted = public_names(theirs)
    for name in sorted(wanted | pair.attributes):
        where = f"{ours.__name__}.{name}"
        if not hasattr(ours, name):
            found.append(f"{where} is missing")
        elif name in wanted:
            found += compare_members(
                where, inspect.getattr_static(theirs, name), inspect.getattr_static(ours, name)
            )
    for name, special in SPECIAL.items():
        if hasattr(theirs, name) and not hasattr(ours, special):
            found.append(f"{ours.__name__}.{special} is missing")
    for name in sorted(public_names(ours) - wanted - pair.attributes):
        found.append(f"{ours.__name__}.{name} has no async counterpart")
    return found


def is_async(cls: type) -> bool:
    members = [inspect.getattr_static(cls, name) for name in dir(cls)]
    return any(inspect.iscoroutinefunction(m) or inspect.isasyncgenfunction(m) for m in members)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.blocking.__name__)
def test_facade_is_the_async_class_without_async(pair: Pair) -> None:
    name = pair.blocking.__name__
    expected = [f"{entry} is missing" for entry in sorted(PENDING) if entry.startswith(f"{name}.")]
    assert differences(pair) == expected


def test_connect_takes_the_same_options() -> None:
    assert list(compare_functions("connect", jetspark.connect, blocking.connect)) == []


def test_every_async_class_of_the_public_api_has_a_facade() -> None:
    modules = (jetspark, jetspark.advisories)
    exported = [getattr(module, name) for module in modules for name in module.__all__]
    wanted = {cls for cls in exported if inspect.isclass(cls) and is_async(cls)} - AWAITED
    missing = {cls.__name__ for cls in wanted - {pair.asynchronous for pair in PAIRS}}
    assert missing == {entry for entry in PENDING if "." not in entry}


def test_every_facade_is_exported_under_the_same_name() -> None:
    for pair in PAIRS:
        assert pair.blocking.__name__ == pair.asynchronous.__name__
        assert getattr(blocking, pair.blocking.__name__) is pair.blocking
        assert pair.blocking.__name__ in blocking.__all__


# The checker itself


class Source:
    """Opened by :func:`jetspark.connect`; use ``async with``."""

    @property
    def size(self) -> int:
        """How many."""
        return 0

    async def fetch(self, count: int = 1, *, wait: float | None = None) -> list[str]:
        """Fetch ``count`` of them."""
        return []

    async def stream(self) -> AsyncIterator[str]:
        """Yield them."""
        yield ""

    async def __aenter__(self) -> Source:
        return self


def good_facade() -> type:
    class Facade:
        @property
        @documented_by(Source.size)
        def size(self) -> int:
            return 0

        @documented_by(Source.fetch, note="Blocks.")
        def fetch(self, count: int = 1, *, wait: float | None = None) -> list[str]:
            return []

        @documented_by(Source.stream)
        def stream(self) -> Iterator[str]:
            yield ""

        def __enter__(self) -> Facade:
            return self

    mirrors(Source)(Facade)
    PAIRS.pop()
    return Facade


def check(facade: type) -> list[str]:
    return differences(Pair(Source, facade))


def test_checker_accepts_a_faithful_facade() -> None:
    assert check(good_facade()) == []


@pytest.mark.parametrize(
    ("name", "member", "complaint"),
    [
        ("fetch", None, "Facade.fetch is missing"),
        ("size", None, "Facade.size is missing"),
        ("__enter__", None, "Facade.__enter__ is missing"),
        ("extra", lambda self: None, "Facade.extra has no async counterpart"),
        ("size", 7, "Facade.size: is no property"),
        ("stream", Source.stream, "Facade.stream: is async"),
    ],
)
def test_checker_finds_missing_and_foreign_members(name: str, member: Any, complaint: str) -> None:
    facade = good_facade()
    if member is None:
        delattr(facade, name)
    else:
        setattr(facade, name, member)
    assert any(complaint in found for found in check(facade)), check(facade)


def test_checker_finds_a_changed_default() -> None:
    facade = good_facade()

    @documented_by(Source.fetch)
    def fetch(self: Any, count: int = 2, *, wait: float | None = None) -> list[str]:
        return []

    facade.fetch = fetch  # type: ignore[attr-defined]
    assert any("signature differs" in found for found in check(facade))


def test_checker_finds_a_changed_kind_and_annotation() -> None:
    facade = good_facade()

    @documented_by(Source.fetch)
    def fetch(self: Any, count: int = 1, wait: int | None = None) -> list[str]:
        return []

    facade.fetch = fetch  # type: ignore[attr-defined]
    assert any("signature differs" in found for found in check(facade))


def test_checker_finds_a_changed_docstring() -> None:
    facade = good_facade()
    facade.fetch.__doc__ = "Fetch some of them."  # type: ignore[attr-defined]
    assert any("docstring is 'Fetch some of them.'" in found for found in check(facade))


def test_checker_finds_async_words_left_in_a_docstring() -> None:
    facade = good_facade()
    facade.__doc__ = translate(Source.__doc__) + " Awaited by asyncio."
    assert any("speaks of" in found for found in check(facade))


def test_docstrings_are_put_into_the_words_of_the_blocking_api() -> None:
    assert translate(Source.__doc__) == "Opened by :func:`jetspark.blocking.connect`; use ``with``."
