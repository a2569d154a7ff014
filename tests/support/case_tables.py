"""Tables of cases that live beside their own tests, for rows that run all of them together."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

TESTS = Path(__file__).parents[1]


@cache
def module(path: str) -> ModuleType:
    """A test module by its path below tests/; the folders are no packages."""
    name = "tables_of_" + path.removesuffix(".py").replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, TESTS / path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def parameters(path: str, test: str) -> list[Any]:
    """What a test is parametrized with."""
    (mark,) = [mark for mark in getattr(module(path), test).pytestmark if mark.name == "parametrize"]
    return list(mark.args[1])
