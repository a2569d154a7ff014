"""SIGTERM to all that belongs to a ``jetspark pipe``: a process group, and all processes of a service."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from support.cli_runner import SCRIPT
from support.helpers import LIMIT
from support.piping import NOW, SCHEMA, publish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Run
    from support.piping import Pipe

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def family(pid: int) -> list[int]:
    """A process and all that descend from it, as systemd finds them in the group of a service."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids)


class Running:
    """A pipe with a process group of its own."""

    def __init__(self, env: dict[str, str], words: list[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [SCRIPT, "pipe", *words], env=env, stdout=file, stderr=file, start_new_session=True
            )

    @property
    def text(self) -> str:
        return self._log.read_text()

    def expect(self, text: str, timeout: float = 240) -> None:
        deadline = time.monotonic() + timeout
        while text not in self.text:
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.05)


@contextlib.contextmanager
def running(env: dict[str, str], words: list[str], log: Path) -> Iterator[Running]:
    made = Running(env, words, log)
    try:
        yield made
    finally:
        for pid in family(made.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        made.process.wait()


@pytest.mark.parametrize("to", ["process", "group", "service"])
def test_sigterm_ends_it_in_order(
    pipe: Pipe, cli: Run, env: dict[str, str], orders: str, tmp_path: Path, to: str
) -> None:
    """Before, the JVM died of a signal to the group: a traceback of py4j, and exit code 1."""
    words = [
        "--from",
        orders,
        "--json-schema",
        SCHEMA,
        "--sql",
        "SELECT id FROM input",
        "--master",
        "local[1]",
    ]
    words += ["--to", f"parquet:{tmp_path}/p", "--checkpoint", f"{tmp_path}/check"]
    with running(env, [*words, "--trigger", "100ms"], tmp_path / "log") as one:
        one.expect("4 in, 4 out")
        all_of_it = family(one.process.pid)
        assert len(all_of_it) > 2
        if to == "process":
            one.process.terminate()
        elif to == "group":
            os.killpg(one.process.pid, signal.SIGTERM)
        else:
            # Spark first: it is gone when the command looks.
            for pid in reversed(all_of_it):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        assert one.process.wait(LIMIT) == 0, one.text
        assert "Traceback" not in one.text
        assert "rror" not in one.text
        assert "4 rows read, 4 written in" in one.text
        if to != "service":
            assert "stopping after the current micro-batch" in one.text
        deadline = time.monotonic() + LIMIT
        while not gone(all_of_it):
            assert time.monotonic() < deadline, "a process stays"
            time.sleep(0.05)
    publish(cli, orders, range(4, 6))
    again = pipe(*words, *NOW)
    assert again.code == 0, again
    found = ds.dataset(tmp_path / "p", format="parquet").to_table()["id"].to_pylist()
    assert sorted(found) == list(range(6))


def test_a_jvm_that_dies_by_itself_is_an_error(env: dict[str, str], orders: str, tmp_path: Path) -> None:
    words = [
        "--from",
        orders,
        "--sql",
        "SELECT sequence FROM input",
        "--master",
        "local[1]",
        "--to",
        "console",
    ]
    with running(env, [*words, "--trigger", "100ms", "--json"], tmp_path / "log") as one:
        one.expect('"progress"')
        for pid in family(one.process.pid)[1:]:
            with contextlib.suppress(OSError):
                if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]:
                    os.kill(pid, signal.SIGKILL)
        assert one.process.wait(LIMIT) == 1
        assert "error: Spark's JVM ended unexpectedly\nits log: " in one.text
        assert "Traceback" not in one.text


def test_a_jvm_does_not_outlive_a_killed_command(env: dict[str, str], orders: str, tmp_path: Path) -> None:
    words = [
        "--from",
        orders,
        "--sql",
        "SELECT sequence FROM input",
        "--master",
        "local[1]",
        "--to",
        "console",
    ]
    with running(env, [*words, "--trigger", "100ms", "--json"], tmp_path / "log") as one:
        one.expect('"progress"')
        all_of_it = family(one.process.pid)
        one.process.kill()
        one.process.wait(LIMIT)
        deadline = time.monotonic() + LIMIT
        while not gone(all_of_it):
            assert time.monotonic() < deadline, "a process stays"
            time.sleep(0.05)
