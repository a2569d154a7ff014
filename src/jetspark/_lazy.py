"""Packages that load their parts when they are asked for (PEP 562).

A program pays at its start for what it uses: ``import jetspark`` alone loads next to nothing, and
``jetspark.connect`` loads the connection. Type checkers see the same names as plain imports, from the
package's ``if TYPE_CHECKING`` block.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def exports(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package. ``places``: by module, the names that it gives."""
    homes = {name: module for module, names in places.items() for name in names.split()}

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is not None:
            value = getattr(import_module(home), name)
            # From now on it is found without us.
            setattr(sys.modules[package], name, value)
            return value
        # A module of the package, as if it had been imported with it.
        if not name.startswith("__") and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names
