"""Modules that load their parts on first use (PEP 562).

A program pays at startup only for what it uses: ``import jetspark`` alone loads next to nothing, and
``jetspark.connect`` loads the connection. One table says which module each name comes from. Type checkers
read the same imports from the module's ``if TYPE_CHECKING`` block, and a test keeps the two equal.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def exports(
    package: str, table: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a module.

    ``table``: for each module, the names that it provides. Names under ``package`` itself are its submodules.
    Classes that the package defines itself are part of ``__all__`` too.
    """
    homes = {name: module for module, names in table.items() for name in names.split()}
    defined = [
        name
        for name, value in vars(sys.modules[package]).items()
        if isinstance(value, type) and value.__module__ == package and not name.startswith("_")
    ]

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is not None and home != package:
            value = getattr(import_module(home), name)
            # Later look-ups find it without this function.
            setattr(sys.modules[package], name, value)
            return value
        # A module of the package, as if it had been imported with it.
        if (
            not name.startswith("__")
            and hasattr(sys.modules[package], "__path__")
            and find_spec(f"{package}.{name}")
        ):
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names, sorted({*homes, *defined})
