"""The ``jetspark`` command. Everything it needs beside the library is in the extra ``cli``."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXTRA = ("typer", "rich")


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 1 failed, 2 wrong use."""
    # Looked up rather than tried: rich is imported late, when a command has something to print.
    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        print(
            f'error: the command line needs {" and ".join(missing)}: pip install "jetspark[cli]"',
            file=sys.stderr,
        )
        return 1
    from jetspark.cli.app import run

    return run(args)
