"""What the tests of ``jetspark pipe`` share: orders as messages, and a child process that runs many pipes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from support.cli_runner import Ran

if TYPE_CHECKING:
    from conftest import Run

SCHEMA = "id long, region string, amount double"
NOW = ("--trigger", "available-now", "--master", "local[1]")


class Pipe(Protocol):
    def __call__(self, *args: str) -> Ran: ...


class PipeChild:
    """Runs ``jetspark pipe`` again and again in one process, and so with one Spark."""

    def __init__(self, env: dict[str, str], cwd: Path) -> None:
        self._child = subprocess.Popen(
            [sys.executable, str(Path(__file__).parents[1] / "cli" / "pipe_child.py")],
            env=env,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *args: str) -> Ran:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps(["pipe", *args]) + "\n")
        self._child.stdin.flush()
        return Ran(*json.loads(self._child.stdout.readline()))

    def close(self) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait(60)
        self._child.stdout.close()


def publish(cli: Run, stream: str, ids: range) -> None:
    """Orders with these ids."""
    regions = ("eu", "us")
    lines = [json.dumps({"id": n, "region": regions[n % 2], "amount": n + 0.5}) for n in ids]
    sent = cli(
        "pub", f"{stream}.new", "--js", "--send-on", "newline", stdin="\n".join(lines).encode() + b"\n"
    )
    assert sent.code == 0, sent


def bodies(cli: Run, stream: str) -> list[tuple[str, dict[str, Any]]]:
    """Subjects and bodies of a stream's messages."""
    ran = cli("stream", "view", stream, "--json")
    assert ran.code == 0, ran
    found = [json.loads(line) for line in ran.out.splitlines()]
    return [(one["subject"], json.loads(one["data"])) for one in found]
