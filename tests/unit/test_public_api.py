"""What is public: these modules and what they export. All a user needs can be imported from them."""

from __future__ import annotations

import ast
import builtins
import collections.abc
import datetime
import importlib
import inspect
import pkgutil
import re
import typing
from pathlib import Path
from typing import Any

import pytest

import jetspark
from jetspark import Stream

ROOT = Path(__file__).parents[2]
# The public modules. ARCHITECTURE.md has the same list; jetspark.cli is public as the command only.
PUBLIC = (
    "jetspark",
    "jetspark.advisories",
    "jetspark.arrow",
    "jetspark.blocking",
    "jetspark.errors",
    "jetspark.events",
    "jetspark.metrics",
    "jetspark.models",
    "jetspark.server",
    "jetspark.spark",
    "jetspark.tracing",
)
COMMAND = "jetspark.cli"
# Packages and modules that are not for users, although their names do not begin with an underscore.
PRIVATE = ("jetspark.connecting", "jetspark.connection", "jetspark.jetstream", "jetspark.wire")
# Of other libraries and of the language, as they stand in annotations.
KNOWN = {
    *vars(builtins),
    *vars(collections.abc),
    *vars(typing),
    *vars(datetime),
    *("asyncio", "Future", "os", "PathLike", "ssl", "SSLContext", "TracebackType", "Path", "Popen"),
    *("pa", "RecordBatch", "Schema", "Context", "Span", "TracerProvider", "blocking"),
    *("Column", "DataFrame", "SparkSession", "StreamingQuery", "StructType"),
    *("QueryIdleEvent", "QueryProgressEvent", "QueryStartedEvent", "QueryTerminatedEvent"),
}
# Names for longer types (unions, callables, literals), no classes.
ALIASES = {
    *("AuthCallable", "Callback", "ErrorListener", "GapMode", "Handler", "LetterAdvisory", "Listener"),
    *("PathOrSecret", "SecretSource", "Servers", "_Int64"),
}
# Special methods whose annotations a user meets.
SPECIAL = {"__aenter__", "__aiter__", "__anext__", "__await__", "__enter__", "__iter__", "__next__"}
# In methods that the connection calls and users do not.
INTERNAL = {"AnyColumns"}


def exported(module: str) -> dict[str, Any]:
    found = importlib.import_module(module)
    return {name: getattr(found, name) for name in found.__all__}


EXPORTS = {module: exported(module) for module in PUBLIC}
NAMES = {name for names in EXPORTS.values() for name in names}


def annotations(where: str, thing: Any) -> list[tuple[str, Any]]:
    """Every annotation that a user of the thing sees, with its place."""
    found: list[tuple[str, Any]] = []
    if inspect.isclass(thing):
        for base in reversed(thing.__mro__):
            if not base.__module__.startswith("jetspark"):
                continue
            fields = inspect.get_annotations(base)
            found += [(f"{where}.{name}", value) for name, value in fields.items() if name[0] != "_"]
            for name, member in vars(base).items():
                if name[0] != "_" or name in (
                    "__aenter__",
                    "__anext__",
                    "__enter__",
                    "__next__",
                    "__await__",
                ):
                    found += annotations(f"{where}.{name}", member)
    elif isinstance(thing, property):
        found += annotations(where, thing.fget)
    elif isinstance(thing, (staticmethod, classmethod)):
        found += annotations(where, thing.__func__)
    elif inspect.isfunction(thing) and thing.__module__.startswith("jetspark"):
        found += [(where, value) for value in inspect.get_annotations(thing).values()]
    return found


def mentioned(annotation: Any) -> set[str]:
    """The names in an annotation, without those of literals."""
    if not isinstance(annotation, str):
        found = {name for argument in typing.get_args(annotation) for name in mentioned(argument)}
        ours = inspect.isclass(annotation) and annotation.__module__.startswith("jetspark")
        return found | {annotation.__name__} if ours else found
    found = set()
    try:
        tree = ast.parse(re.sub(r"Literal\[[^]]*\]", "str", annotation), mode="eval")
    except SyntaxError:  # the text of a Literal, or of metadata
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= mentioned(node.value)
    return found


def unknown(where: str, thing: Any) -> set[str]:
    return {
        f"{place}: {name}"
        for place, annotation in annotations(where, thing)
        for name in mentioned(annotation)
        if name not in NAMES | KNOWN | ALIASES | INTERNAL
    }


@pytest.mark.parametrize("module", PUBLIC)
def test_whatever_a_public_annotation_mentions_can_be_imported(module: str) -> None:
    found = {problem for name, thing in EXPORTS[module].items() for problem in unknown(name, thing)}
    assert not found, "\n".join(sorted(found))


def test_the_check_finds_a_class_that_is_not_exported() -> None:
    class Hidden:
        pass

    class Shown:
        size: int

        def look(self, at: Hidden | None, how: dict[str, list[Hidden]]) -> Stream | None: ...

    Shown.__module__ = Shown.look.__module__ = "jetspark.somewhere"
    assert unknown("Shown", Shown) == {"Shown.look: Hidden"}


def test_the_facade_stays_small() -> None:
    """What a user types. Rare models, advisories and errors have modules of their own."""
    assert len(jetspark.__all__) <= 50


def test_every_module_is_public_private_by_name_or_in_a_private_package() -> None:
    names = {f"jetspark.{info.name}" for info in pkgutil.iter_modules(jetspark.__path__)}
    loose = {name for name in names if not name.rpartition(".")[2].startswith("_")}
    assert loose == {*PUBLIC, *PRIVATE, COMMAND} - {"jetspark"}


def test_the_architecture_page_names_the_same_modules() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    section = page.partition("## What is public\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(jetspark[\w.]*)`", section, re.MULTILINE)) == {*PUBLIC, COMMAND}


def test_a_name_means_the_same_thing_everywhere() -> None:
    """Except in jetspark.blocking, which has its own classes by the same names."""
    found: dict[str, Any] = {}
    for module in sorted({*PUBLIC} - {"jetspark.blocking"}):
        for name, thing in EXPORTS[module].items():
            assert found.setdefault(name, thing) is thing, f"{name} of {module}"
