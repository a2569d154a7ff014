"""Makes Spark find ``format("jetstream")``: it looks for ``DefaultSource`` in every module ``pyspark_*``.

Nothing is imported before that look: an import error here would hide the Python data sources of everybody.
"""

from __future__ import annotations

import warnings
from typing import Any

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from jetspark.spark.data_source import DefaultSource
    except ImportError as error:
        # Spark asks with hasattr(): this hides our source and leaves the others alone.
        warnings.warn(f"format('jetstream') is not available: {error}", RuntimeWarning, stacklevel=2)
        raise AttributeError(f"DefaultSource needs what is not installed: {error}") from error
    return DefaultSource
