"""No server outlives the process that started it, however that process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from jetspark.server import Server, ServerProcessError
from support.helpers import LIMIT, eventually_sync, gone

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _folders_of_killed_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody is left to remove the folder of a server whose owner was killed; let it be pytest.
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def child(body: str) -> tuple[subprocess.Popen[str], list[str]]:
    """Run ``body`` in another interpreter after starting a server; returns the words it printed."""
    code = "import os, sys\nfrom jetspark.server import Server\nserver = Server().start()\n"
    code += "words = [server.pid, server._watchdog.group, server.config_path.parent]\n" + textwrap.dedent(
        body
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().split()


def finish(process: subprocess.Popen[str]) -> int:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    return process.wait(LIMIT)


def test_a_killed_parent_takes_server_and_watchdog_along() -> None:
    process, words = child("print(*words, flush=True); sys.stdin.read()")
    server, watchdog = int(words[0]), int(words[1])
    assert not gone(server)
    assert not gone(watchdog)
    process.kill()
    finish(process)
    assert eventually_sync(lambda: gone(server) and gone(watchdog), 30)


def test_a_suspended_server_goes_too() -> None:
    process, words = child("server.suspend(); print(*words, flush=True); sys.stdin.read()")
    process.kill()
    finish(process)
    assert eventually_sync(lambda: gone(int(words[0])), 30)


def test_an_idle_forked_child_does_not_keep_the_server_alive() -> None:
    process, words = child(
        """
        pid = os.fork()
        if pid == 0:
            os.read(0, 1)  # outlives its parent: ends when the test closes the pipe
            os._exit(0)
        print(*words, pid, flush=True)
        sys.stdin.read()
        """
    )
    forked = int(words[3])
    process.kill()
    process.wait(LIMIT)
    try:
        assert eventually_sync(lambda: gone(int(words[0])), 30)
        assert not gone(forked)
    finally:
        finish(process)
    assert eventually_sync(lambda: gone(forked), 30)


def test_a_forked_child_can_not_stop_the_parents_server() -> None:
    process, words = child(
        """
        pid = os.fork()
        if pid == 0:
            server.stop()
            try:
                server.start()
            except Exception as error:
                os._exit(7 if "fork" in str(error) else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(*words, status, server.running, flush=True)
        """
    )
    assert words[3:] == ["7", "True"]
    assert finish(process) == 0


@pytest.mark.parametrize("ending", ["sys.exit(0)", "raise SystemExit(0)", "pass"])
def test_a_forgotten_server_is_stopped_in_order_at_exit(ending: str) -> None:
    process, words = child(f"print(*words, flush=True); {ending}")
    assert finish(process) == 0
    assert gone(int(words[0]))
    assert gone(int(words[1]))
    assert not os.path.exists(words[2])


def test_stop_ends_the_watchdog(own_server: Server) -> None:
    assert own_server._watchdog is not None
    watchdog = own_server._watchdog.group
    own_server.restart()
    assert own_server._watchdog.group == watchdog
    own_server.stop()
    assert gone(watchdog)


def test_a_lost_watchdog_is_replaced_at_restart(own_server: Server) -> None:
    assert own_server._watchdog is not None
    first = own_server._watchdog.group
    os.kill(first, signal.SIGKILL)
    assert eventually_sync(lambda: own_server._watchdog and not own_server._watchdog.alive)
    own_server.restart()
    assert own_server._watchdog.group != first
    assert own_server.running


def test_the_terminals_interrupt_does_not_reach_the_server(own_server: Server) -> None:
    assert os.getpgid(own_server.pid) != os.getpgid(0)


def test_a_stopped_server_can_not_be_signalled(own_server: Server) -> None:
    own_server.stop()
    with pytest.raises(ServerProcessError, match="does not run"):
        own_server.signal_lame_duck()
