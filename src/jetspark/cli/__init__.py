"""The ``jetspark`` command. Everything it needs beside the library is in the extra ``cli``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXTRA = ("typer", "rich")


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 1 failed, 2 wrong use."""
    try:
        from jetspark.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        print(f'error: the command line needs {error.name}: pip install "jetspark[cli]"', file=sys.stderr)
        return 1
    return run(args)
