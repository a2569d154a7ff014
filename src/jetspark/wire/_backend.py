"""Selects the inner loops: the compiled ones if they were built, otherwise those in Python.

``JETSPARK_WIRE=python`` disables the compiled core; ``JETSPARK_WIRE=c`` makes it an error if the core can't
be used. A core that was built from other sources, such as a left-over of an earlier version, is not used.
"""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from jetspark.errors import InvalidArgument

if TYPE_CHECKING:
    from types import ModuleType

#: The version of the interface between Python and the compiled core; the same number is in ``_speed.c``.
ABI = 3

_CORE = "jetspark.wire._speed"


def load(wanted: str) -> ModuleType | None:
    """The compiled core, or None to run pure Python. ``wanted`` is the value of ``JETSPARK_WIRE``."""
    if wanted not in ("", "c", "python"):
        raise InvalidArgument("JETSPARK_WIRE", wanted, "must be c, python, or not set")
    if wanted == "python":
        return None
    try:
        core = import_module(_CORE)
    except ImportError as error:
        if wanted == "c":
            raise ImportError(
                f"JETSPARK_WIRE=c, but the compiled core can't be loaded ({error}): install jetspark with "
                "JETSPARK_BUILD=c where there is a C compiler, or unset JETSPARK_WIRE"
            ) from error
        # It is built if a C compiler is available when jetspark is installed; nothing is missing without it.
        return None
    found = getattr(core, "ABI", None)
    if found != ABI:
        text = (
            f"the compiled core {core.__file__} was built from other sources than this jetspark "
            f"(its number is {found}, not {ABI}): install jetspark again"
        )
        if wanted == "c":
            raise ImportError(f"JETSPARK_WIRE=c, but {text}")
        warnings.warn(f"{text}; pure Python runs until then", RuntimeWarning, stacklevel=2)
        return None
    return core


speed: ModuleType | None = load(os.environ.get("JETSPARK_WIRE", "").lower())
backend: Literal["c", "python"] = "python" if speed is None else "c"
