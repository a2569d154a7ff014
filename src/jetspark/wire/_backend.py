"""Which inner loops run: the compiled ones when they were built, unless ``JETSPARK_WIRE=python``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from types import ModuleType

speed: ModuleType | None = None
if os.environ.get("JETSPARK_WIRE", "").lower() != "python":
    try:
        from jetspark.wire import _speed as speed
    except ImportError:
        # Built where a C compiler was at hand when jetspark was installed; nothing is missing without it.
        speed = None

backend: Literal["c", "python"] = "python" if speed is None else "c"
