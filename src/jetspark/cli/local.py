"""Where the servers of ``jetspark server`` are noted, so that other commands find them.

One file per server, ``$XDG_STATE_HOME/jetspark/servers/<pid>.json`` (``~/.local/state`` when unset), written
when it is ready and removed when it ends. A file whose process is gone is left over from a kill -9 and is
ignored and removed by the next reader.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalServer:
    """A server that ``jetspark server`` runs on this machine for this user."""

    urls: list[str]
    pid: int
    """Process of the command, not of nats-server."""
    started: float
    """Seconds since 1970."""
    monitoring: list[str]
    store: str | None
    """Where its data is; None for a temporary folder."""


def folder() -> Path:
    """Where the notes are."""
    parent = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(parent) / "jetspark" / "servers"


def note(urls: list[str], monitoring: list[str], store: str | None) -> Path:
    """Write down the server that this process runs."""
    server = LocalServer(urls=urls, pid=os.getpid(), started=time.time(), monitoring=monitoring, store=store)
    where = folder()
    where.mkdir(parents=True, exist_ok=True)
    path = where / f"{server.pid}.json"
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(asdict(server), indent=2) + "\n")
    draft.replace(path)
    return path


def running() -> list[LocalServer]:
    """The servers that run now, the newest first."""
    found = []
    for path in sorted(folder().glob("*.json")):
        server = _read(path)
        if server is None or not _alive(server.pid):
            with contextlib.suppress(OSError):
                path.unlink()
            continue
        found.append(server)
    return sorted(found, key=lambda server: server.started, reverse=True)


def _read(path: Path) -> LocalServer | None:
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
        return LocalServer(**fields)
    except (OSError, ValueError, TypeError):
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
