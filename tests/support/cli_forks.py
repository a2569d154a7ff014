"""Commands as processes of their own that cost no start: children of a process that has imported everything.

What a child has is real: its pid, its session and controlling terminal, its stdio. What it lacks is the start
of an interpreter, which tests of the installed script pay in full. The parent must be a process without
threads, which one of pytest is not; so it is one of its own, and runs this file.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any, NoReturn

_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!i")


class Forked:
    """A running command, with what the tests use of ``subprocess.Popen``."""

    def __init__(self, status: int) -> None:
        self._status = os.fdopen(status, "rb", buffering=0)
        self.pid = self._number()
        self.returncode: int | None = None

    def _number(self) -> int:
        read = self._status.read(_NUMBER.size)
        if not read:
            raise AssertionError("the process that forks has died")
        return int(_NUMBER.unpack(read)[0])

    def poll(self, timeout: float = 0) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if selector.select(timeout):
                    self.returncode = self._number()
                    self._status.close()
        return self.returncode

    def wait(self, timeout: float = 60) -> int:
        code = self.poll(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("jetspark", timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Piped:
    """A running command in pipes."""

    def __init__(self, process: Forked | subprocess.Popen[bytes], out: int, err: int) -> None:
        self.process = process
        self._ends = (out, err)
        self._said = {out: b"", err: b""}
        self._selector = selectors.DefaultSelector()
        for one in self._ends:
            self._selector.register(one, selectors.EVENT_READ)

    @property
    def out(self) -> str:
        return self._said[self._ends[0]].decode()

    @property
    def err(self) -> str:
        return self._said[self._ends[1]].decode()

    def expect(self, text: str, timeout: float = 60) -> None:
        """Read until the text has come from either end."""
        deadline = time.monotonic() + timeout
        while text not in self.out + self.err:
            if not self._read(deadline):
                raise AssertionError(f"{text!r} was not said; this was: {self.out}{self.err}")

    def end(self, timeout: float = 60) -> int:
        """Read until the process ends; its exit code."""
        deadline = time.monotonic() + timeout
        while self._read(deadline):
            pass
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def _read(self, deadline: float) -> bool:
        ready = (
            self._selector.select(max(0.0, deadline - time.monotonic())) if self._selector.get_map() else []
        )
        for key, _ in ready:
            chunk = os.read(key.fd, 65536)
            self._said[key.fd] += chunk
            if not chunk:
                self._selector.unregister(key.fd)
        return bool(ready)

    def __enter__(self) -> Piped:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._selector.close()
        for one in self._ends:
            os.close(one)


def installed(script: Path, env: dict[str, str], *args: str) -> Piped:
    """The installed script in pipes, as users call it, with nothing on its stdin."""
    (out, given_out), (err, given_err) = os.pipe(), os.pipe()
    process = subprocess.Popen(
        [script, *args], env=env, stdin=subprocess.DEVNULL, stdout=given_out, stderr=given_err
    )
    for one in (given_out, given_err):
        os.close(one)
    return Piped(process, out, err)


class Forks:
    """The process that forks; ``start`` gives a running command."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, Path(__file__), str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )

    def start(self, env: dict[str, str], args: tuple[str, ...], stdio: tuple[int, int, int]) -> Forked:
        """Run a command with these as its stdin, stdout and stderr; they stay open here, too."""
        reading, writing = os.pipe()
        request = json.dumps({"env": env, "args": args}).encode()
        socket.send_fds(self._ours, [_LENGTH.pack(len(request))], [*stdio, writing])
        self._ours.sendall(request)
        os.close(writing)
        return Forked(reading)

    def begin(self, env: dict[str, str], *args: str, stdin: bytes = b"") -> Piped:
        """Run a command in pipes. ``stdin``: no more than a pipe holds."""
        (taken, feed), (out, given_out), (err, given_err) = (os.pipe() for _ in range(3))
        forked = self.start(env, args, (taken, given_out, given_err))
        for one in (taken, given_out, given_err):
            os.close(one)
        os.write(feed, stdin)
        os.close(feed)
        return Piped(forked, out, err)

    def close(self) -> None:
        self._ours.close()
        self._process.wait(60)


def _serve(channel: socket.socket) -> None:
    while True:
        head, fds, _, _ = socket.recv_fds(channel, _LENGTH.size, 4)
        if not head:
            return
        length = _LENGTH.unpack(head)[0]
        body = b""
        while len(body) < length:
            body += channel.recv(length - len(body))
        # Two forks: one that runs the command, and between us a parent that waits for its end.
        watcher = os.fork()
        if not watcher:
            channel.close()
            _watch(json.loads(body), fds[:3], fds[3])
        for fd in fds:
            os.close(fd)


def _watch(request: dict[str, Any], stdio: list[int], status: int) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if not child:
        os.close(status)
        _command(request, stdio)
    for fd in stdio:
        os.close(fd)
    os.write(status, _NUMBER.pack(child))
    if hasattr(os, "pidfd_open"):
        # Whoever waits for it may be killed; then nobody needs the command, which may be one that stays.
        poll = select.poll()
        poll.register(os.pidfd_open(child), select.POLLIN)
        poll.register(status, select.POLLERR)
        if any(fd == status for fd, _ in poll.poll()):
            os.kill(child, signal.SIGKILL)
            os._exit(0)
    _, ended = os.waitpid(child, 0)
    os.write(status, _NUMBER.pack(os.waitstatus_to_exitcode(ended)))
    os._exit(0)


def _command(request: dict[str, Any], stdio: list[int]) -> NoReturn:
    code = 99
    try:
        os.setsid()
        for number, fd in enumerate(stdio):
            os.dup2(fd, number)
        for fd in set(stdio):
            os.close(fd)
        if os.isatty(0):
            # The controlling one, or Ctrl-C reaches nobody.
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.environ.clear()
        os.environ.update(request["env"])
        # As the interpreter makes them: lines on a terminal, blocks in a pipe.
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.argv = ["jetspark", *request["args"]]
        from jetspark.cli import main

        code = main()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _preload() -> None:
    """All that commands import on use, and the tree of commands built."""
    import importlib

    for name in ("rich.live", "rich.progress", "rich.table", "pydantic", "uvloop", "jetspark.server"):
        importlib.import_module(name)
    importlib.import_module("jetspark.connecting")
    importlib.import_module("jetspark.jetstream.context")
    from jetspark.cli.app import tree

    def walk(command: Any) -> None:
        for child in getattr(command, "commands", {}).values():
            walk(child)

    walk(tree())


if __name__ == "__main__":
    # Nobody waits for the watchers.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _preload()
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        _serve(channel)
