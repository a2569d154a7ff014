"""`make soak-tests`: failures are reported with their seed, and no process is left standing still."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jetspark.server import Server
from support import stops
from support.helpers import eventually_sync, gone

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parent.parent
TOOL = TESTS.parent / "tools" / "soak_tests.py"
_spec = importlib.util.spec_from_file_location("soak_tests", TOOL)
assert _spec is not None
assert _spec.loader is not None
soak_tests = importlib.util.module_from_spec(_spec)
sys.modules["soak_tests"] = soak_tests
_spec.loader.exec_module(soak_tests)

WORKER = "import sys;exec(eval(sys.stdin.readline()))"
PROFILE = "from hypothesis import settings\nsettings.register_profile('searching')\n"
FLAKY = """
import os

def test_steady():
    pass

def test_flaky():
    assert int(os.environ["FAULT_SEED"]) % 2 == 0, "an odd seed"
"""
# Look-alikes of workers in sessions of their own: they end with the worker that has their stdin, unless they
# stand still.
ENDLESS = f"""
import subprocess
import sys
import time

def test_endless():
    for _ in range(6):
        subprocess.Popen([sys.executable, "-c", {WORKER!r}], stdin=subprocess.PIPE, start_new_session=True)
    time.sleep(300)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a soak run of which this process, and what it starts, is a part."""
    shared = tmp_path / "stops"
    shared.mkdir()
    monkeypatch.setenv(stops.FOLDER, str(shared))
    monkeypatch.setattr(Server, "suspend", Server.suspend)  # so that they come back after the test
    monkeypatch.setattr(Server, "resume", Server.resume)
    stops.announce_suspended_servers()
    return shared


@pytest.fixture
def worker(folder: Path) -> Iterator[int]:
    """A process that looks like a worker of pytest-xdist."""
    with subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE) as process:
        eventually_sync(lambda: process.pid in soak_tests.processes(folder))
        yield process.pid
        process.kill()


def command(*arguments: str) -> list[str]:
    return [sys.executable, str(TOOL), "--jobs=1", *arguments]


def stopped(pid: int) -> bool:
    return soak_tests.state(pid) == "T"


@pytest.mark.slow
def test_a_flaky_test_is_reported_with_its_seed_and_how_to_repeat_it(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PROFILE)
    planted = tmp_path / "test_planted.py"
    planted.write_text(FLAKY)
    logs = tmp_path / "logs"
    done = subprocess.run(
        command("--runs=2", "--loads", "idle", "--seed=6", f"--logs={logs}", "--", str(planted)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    rows = [line.split()[:5] for line in done.stdout.splitlines() if line.startswith("    ")]
    assert rows == [["1", "idle", "6", "2", "0"], ["2", "idle", "7", "1", "1"]], done.stdout
    assert "run 2 (idle, seed 7)" in done.stdout
    assert "repeat: make soak-tests LOADS=idle SEED=7 ARGS=" in done.stdout
    assert "test_planted.py::test_flaky" in done.stdout
    assert "an odd seed" in (logs / "2-idle.log").read_text()


@pytest.mark.slow
def test_a_run_without_failures_ends_well_under_each_load(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PROFILE)
    planted = tmp_path / "test_planted.py"
    planted.write_text("def test_steady():\n    pass\n")
    done = subprocess.run(command("--", str(planted)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    loads = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("    ")]
    assert loads == ["idle", "busy", "stops"]


def test_a_run_that_ends_without_a_report_is_a_failure(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Fatal Python error: Segmentation fault\n")
    run = soak_tests.Run(1, "idle", 5, log)
    run.read(-11)
    assert run.failures == ["ERROR exit status -11: Fatal Python error: Segmentation fault"]
    assert run.repeat(run.failures[0]) == "make soak-tests LOADS=idle SEED=5"


def test_failures_of_both_parts_and_their_commands(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "FAILED tests/spark/test_a.py::test_a[x y]@spark-processes - assert 1 == 2\n"
        "=== 1 failed, 10 passed in 3.1s ===\n"
        "in pure Python, without the compiled core: what touches the wire\n"
        "ERROR tests/wire/test_b.py::test_b\n"
        "=== 5 passed, 1 error in 1.0s ===\n"
    )
    run = soak_tests.Run(1, "stops", 9, log)
    run.read(1)
    assert run.passed == 15
    assert [run.repeat(failure) for failure in run.failures] == [
        """make soak-tests LOADS=stops SEED=9 ARGS=''"'"'tests/spark/test_a.py::test_a[x y]'"'"''""",
        "JETSPARK_WIRE=python make soak-tests LOADS=stops SEED=9 ARGS=tests/wire/test_b.py::test_b",
    ]


def test_a_process_stands_still_for_its_time_and_goes_on(folder: Path, worker: int) -> None:
    stopper = soak_tests.Stopper(folder, seed=1)
    try:
        stopper.step(now=100.0)
        eventually_sync(lambda: stopped(worker))
        assert stopper.count == 1
        stopper.step(now=100.0 + soak_tests.SHORTEST / 2)
        assert stopped(worker)
    finally:
        stopper.release()
    eventually_sync(lambda: not stopped(worker))


def test_a_server_that_a_test_suspends_while_it_stands_still_stays_suspended(folder: Path) -> None:
    with Server(jetstream=False) as server:
        eventually_sync(lambda: server.pid in soak_tests.processes(folder))
        stopper = soak_tests.Stopper(folder, seed=1)
        stopper.step(now=100.0)
        eventually_sync(lambda: stopped(server.pid))
        server.suspend()
        stopper.release()
        assert stopped(server.pid)
        stopper.step(now=200.0)
        assert stopper.count == 1  # one that a test has suspended is no candidate
        server.resume()
        eventually_sync(lambda: not stopped(server.pid))
        stopper.step(now=300.0)
        assert stopper.count == 2
        stopper.release()
        eventually_sync(lambda: not stopped(server.pid))


def test_what_others_have_stopped_is_left_alone(folder: Path, worker: int) -> None:
    os.kill(worker, signal.SIGSTOP)
    eventually_sync(lambda: stopped(worker))
    stopper = soak_tests.Stopper(folder, seed=1)
    stopper.step(now=100.0)
    stopper.release()
    assert stopped(worker)
    assert stopper.count == 0


@pytest.mark.parametrize(("expected", "seconds"), [(False, "2.0"), (True, "10.0")])
def test_the_default_limits_have_room_for_stops(
    monkeypatch: pytest.MonkeyPatch, expected: bool, seconds: str
) -> None:
    """A process that stands still as long as a connect may take is no failure of a test."""
    monkeypatch.delenv(stops.FOLDER, raising=False)
    if expected:
        monkeypatch.setenv(stops.FOLDER, "/nonexistent")
    code = (
        f"import sys; sys.path.insert(0, {str(TESTS)!r}); import inspect, jetspark\n"
        "from support import stops\n"
        "stops.expect_stops()\n"
        "print(inspect.unwrap(jetspark.connect).__kwdefaults__['connect_timeout'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == seconds


def test_processes_of_others_are_none_of_its_business(folder: Path, tmp_path: Path, worker: int) -> None:
    assert worker not in set(soak_tests.processes(tmp_path))
    assert os.getppid() not in set(soak_tests.processes(folder))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_behind_when_it_is_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "conftest.py").write_text(PROFILE)
    planted = tmp_path / "test_planted.py"
    planted.write_text(ENDLESS)
    home = tmp_path / "home"
    home.mkdir()

    def ours() -> list[int]:
        folders = [entry for entry in home.iterdir() if entry.name.startswith("soak-")]
        return [pid for one in folders for pid in soak_tests.processes(one)]

    with subprocess.Popen(
        command("--loads", "stops", f"--logs={tmp_path}", "--", str(planted)),
        env=os.environ | {"TMPDIR": str(home)},
        stdout=subprocess.PIPE,
        text=True,
    ) as tool:
        eventually_sync(lambda: len(ours()) >= 7, 60)
        seen = ours()
        eventually_sync(lambda: sum(map(stopped, seen)) >= 2, 60)
        tool.send_signal(number)
        said, _ = tool.communicate()
    assert tool.returncode == 130
    assert "interrupted" in said
    eventually_sync(lambda: all(map(gone, seen)))
