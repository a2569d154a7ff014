"""Running the command line: in this process, as a process in pipes, and as a process in a terminal."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.helpers import LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.cli_forks import Forked, Forks

# The installed script, as users call it.
SCRIPT = Path(sysconfig.get_path("scripts")) / "jetspark"
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])")


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


def environment(home: Path, **more: str) -> dict[str, str]:
    """An environment without any NATS setting, and with homes of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "XDG_"))}
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        kept.pop(name, None)
    homes = {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_STATE_HOME": str(home / "state"),
        "TERM": "xterm-256color",
    }
    return {**kept, **homes, **more}


@contextlib.contextmanager
def _swapped(env: dict[str, str], stdin: bytes) -> Iterator[tuple[io.TextIOWrapper, io.TextIOWrapper]]:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    before = (sys.stdin, sys.stdout, sys.stderr, dict(os.environ))
    try:
        os.environ.clear()
        os.environ.update(env)
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
        sys.stdout, sys.stderr = out, err
        yield out, err
    finally:
        sys.stdin, sys.stdout, sys.stderr = before[:3]
        os.environ.clear()
        os.environ.update(before[3])


def inside(env: dict[str, str], *args: str, stdin: bytes = b"") -> Ran:
    """In this process: the same code as the script calls, without the price of a start."""
    from jetspark.cli import main

    with _swapped(env, stdin) as (out, err):
        code = main(args)
        out.flush()
        err.flush()
        return Ran(code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())  # type: ignore[attr-defined]


def process(env: dict[str, str], *args: str, stdin: bytes = b"", timeout: float = LIMIT) -> Ran:
    """As a process of its own, in pipes."""
    done = subprocess.run([SCRIPT, *args], env=env, input=stdin, capture_output=True, timeout=timeout)
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


class Terminal:
    """A process in a pseudo terminal, 80 columns wide unless told otherwise.

    ``forks``: not the installed script but a child of that process, which is as real and starts at once.
    """

    process: subprocess.Popen[bytes] | Forked

    def __init__(
        self, env: dict[str, str], *args: str, columns: int = 80, rows: int = 24, forks: Forks | None = None
    ) -> None:
        import fcntl
        import termios

        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if forks is None:
            self.process = subprocess.Popen(
                [SCRIPT, *args],
                env=env,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                start_new_session=True,
                # The terminal must be the controlling one, or Ctrl-C reaches nobody.
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )
        else:
            self.process = forks.start(env, args, (slave, slave, slave))
        os.close(slave)
        self.raw = ""
        # A read may end in the middle of a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def text(self) -> str:
        """What was shown, without escapes."""
        return ESCAPES.sub("", self.raw).replace("\r", "")

    def expect(self, text: str, timeout: float = LIMIT) -> str:
        """Read until the text has been shown (since the last ``forget``)."""
        deadline = time.monotonic() + timeout
        while text not in self.text:
            if time.monotonic() > deadline or not self._read(deadline):
                raise AssertionError(f"{text!r} was not shown; this was:\n{self.text}")
        return self.text

    def forget(self) -> None:
        self.raw = ""

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def end(self, timeout: float = LIMIT) -> Ran:
        """Read until the process ends."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self._read(deadline):
            pass
        code = self.process.wait(max(0.1, deadline - time.monotonic()))
        return Ran(code, self.text, "")

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            chunk = os.read(self._master, 65536)
        except OSError:  # EIO: the other side is closed
            return False
        self.raw += self._decoder.decode(chunk)
        return bool(chunk)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._master)
