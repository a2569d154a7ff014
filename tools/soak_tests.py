"""Runs all tests again and again, in three moods of the machine, and reports each failure with its seed.

    idle    nothing beside the tests
    busy    one endless loop for each core beside them
    stops   test processes and their servers stand still for 0.1 to 2 seconds at random moments

A run's seed decides the examples of hypothesis, the table of faults and the stops; the machine's own timing
stays what it is. Logs stay in a folder.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.stops import FOLDER, locked, suspended  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

LOADS = ("idle", "busy", "stops")
SHORTEST, LONGEST = 0.1, 2.0
"""How long a process stands still, in seconds."""
EVERY = 1.0
"""A stop begins each so many seconds, on average."""
NEWS = 20.0
"""Seconds between two lines of progress."""
LOOK = 0.02

_SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(10**6): pass\n"
# How execnet, and so pytest-xdist, starts a worker.
_WORKER = b"exec(eval(sys.stdin.readline()))"


@dataclass
class Run:
    """One run of the tests, and how it went."""

    number: int
    load: str
    seed: int
    log: Path
    passed: int = 0
    failures: list[str] = field(default_factory=list)
    minutes: float = 0.0
    stops: int = 0

    def read(self, status: int) -> None:
        """Take the outcome from the log and the exit status."""
        text = self.log.read_text(errors="replace")
        self.passed = sum(int(count) for count in re.findall(r"\b(\d+) passed\b.* in \d", text))
        backend = "compiled"
        for line in text.splitlines():
            if line.startswith("in pure Python"):
                backend = "pure"
            if line.startswith(("FAILED ", "ERROR ")):
                self.failures.append(("JETSPARK_WIRE=python " if backend == "pure" else "") + line)
        if status and not self.failures:
            last = text.strip().splitlines()[-1:] or ["nothing was printed"]
            self.failures.append(f"ERROR exit status {status}: {last[0]}")

    def repeat(self, failure: str) -> str:
        """The command that repeats a failure: that test alone, with the load and the seed of the run."""
        words = [f"make soak-tests LOADS={self.load} SEED={self.seed}"]
        if test := re.search(r"(?:FAILED|ERROR) (\S+\.py::.+?)(?:@[\w -]+?\]?)?(?: - |$)", failure):
            words.append(f"ARGS={shlex.quote(shlex.quote(test[1]))}")
        if failure.startswith("JETSPARK_WIRE"):
            words.insert(0, "JETSPARK_WIRE=python")
        return " ".join(words)


class Stopper:
    """Stops processes of one run at random, and lets each go on after its time.

    Only workers of pytest-xdist and nats-servers, never what controls them. What stands still already is left
    alone: a test wants it so.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.count = 0
        self._folder = folder
        self._chance = random.Random(seed)
        self._until: dict[int, float] = {}
        self._next = 0.0

    def step(self, now: float) -> None:
        """What is due at this moment. Call it often."""
        for pid, until in list(self._until.items()):
            if now >= until:
                self._go_on(pid)
        if now < self._next:
            return
        self._next = now + self._chance.expovariate(1 / EVERY)
        candidates = [pid for pid in sorted(processes(self._folder)) if pid not in self._until]
        if candidates:
            self._stop(self._chance.choice(candidates), now)

    def _stop(self, pid: int, now: float) -> None:
        # Under the lock: so no worker stands still while it holds it.
        with locked(self._folder):
            if suspended(self._folder, pid) or state(pid) not in "RSD":
                return
            # Noted first: whatever happens to us next, it goes on.
            self._until[pid] = now + self._chance.uniform(SHORTEST, LONGEST)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
            self.count += 1

    def _go_on(self, pid: int) -> None:
        with locked(self._folder):
            if not suspended(self._folder, pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            del self._until[pid]

    def release(self) -> None:
        """All go on, now."""
        for pid in list(self._until):
            self._go_on(pid)


def processes(folder: Path) -> Iterator[int]:
    """The workers and servers of the run that this folder belongs to: it is in their environment."""
    mark = f"{FOLDER}={folder}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        try:
            if mark not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            if is_server(pid) or _WORKER in (entry / "cmdline").read_bytes():
                yield pid
        except OSError:
            continue


def is_server(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "nats-server"
    except OSError:
        return False


def state(pid: int) -> str:
    """As in /proc: R, S and D are alive; T stands still."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """One endless loop for each core. They end with us, however we end."""
    loops = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(os.cpu_count() or 2)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def perform(run: Run, of: int, command: list[str]) -> None:
    """Run the tests once."""
    began = time.monotonic()
    name = f"run {run.number}/{of} {run.load}, seed {run.seed}"
    print(f"{name}: {shlex.join(command)} > {run.log}", flush=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        if run.load == "busy":
            stack.enter_context(busy_cores())
        log = stack.enter_context(open(run.log, "wb"))
        environment = os.environ | {"FAULT_SEED": str(run.seed)}
        if run.load == "stops":
            environment[FOLDER] = str(folder)
        # A session of its own: Ctrl-C is for us, and we pass it on when all processes can react.
        tests = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        stack.callback(_end, tests)
        stopper = Stopper(folder, run.seed)
        stack.callback(stopper.release)
        news = began + NEWS
        while tests.poll() is None:
            now = time.monotonic()
            if run.load == "stops":
                stopper.step(now)
            if now >= news:
                print(f"{name}: {_progress(run.log)}, {(now - began) / 60:.1f} minutes", flush=True)
                news = now + NEWS
            time.sleep(LOOK)
    run.stops = stopper.count
    run.minutes = (time.monotonic() - began) / 60
    run.read(tests.returncode)


def _end(tests: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C would: pytest reports and ends. What does not end is killed."""
    with contextlib.suppress(ProcessLookupError):
        if tests.poll() is None:
            os.killpg(tests.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                tests.wait(30)
        # Its group may outlive it.
        os.killpg(tests.pid, signal.SIGKILL)
    tests.wait()


def _progress(log: Path) -> str:
    text = log.read_text(errors="replace")
    done = re.findall(r"\[ *(\d+%)\]$", text, re.MULTILINE)
    lines = re.findall(r"^[.FE]+(?= \[|$)", text, re.MULTILINE)
    trouble = sum(line.count("F") + line.count("E") for line in lines)
    return f"{done[-1] if done else '0%'}, {trouble} failed so far"


def report(runs: list[Run]) -> None:
    print("\n  run  load      seed   passed  failed  stops  minutes")
    for run in runs:
        print(
            f"{run.number:5}  {run.load:5} {run.seed:8} {run.passed:8} {len(run.failures):7} {run.stops:6}"
            f" {run.minutes:8.1f}"
        )
    for run in runs:
        for failure in run.failures:
            print(f"\nrun {run.number} ({run.load}, seed {run.seed}), log {run.log}:\n  {failure}")
            print(f"  repeat: {run.repeat(failure)}")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Run all tests again and again, and report each failure.")
    parser.add_argument("--runs", type=int, default=1, help="for each load; default 1")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS, help="default: all three")
    parser.add_argument("--seed", type=int, help="of the first run; each next run has the next number")
    parser.add_argument("--logs", type=Path, help="where the logs go; default: a new temporary folder")
    parser.add_argument("--jobs", type=int, default=4, help="workers, as in make test")
    parser.add_argument("pytest", nargs=argparse.REMAINDER, help="after --: run just this")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = random.SystemRandom().randrange(1_000_000) if arguments.seed is None else arguments.seed
    logs = arguments.logs or Path(tempfile.mkdtemp(prefix="soak-tests-"))
    logs.mkdir(parents=True, exist_ok=True)
    loads = [load for _ in range(arguments.runs) for load in arguments.loads]
    runs: list[Run] = []
    try:
        for number, load in enumerate(loads, 1):
            run = Run(number, load, seed + number - 1, logs / f"{number}-{load}.log")
            command = [sys.executable, "tools/run_tests.py", f"--jobs={arguments.jobs}"]
            command += ["--option=--hypothesis-profile=searching", f"--option=--hypothesis-seed={run.seed}"]
            perform(run, len(loads), command + arguments.pytest)
            runs.append(run)
            print(f"run {number}: {run.passed} passed, {len(run.failures)} failed", flush=True)
    except KeyboardInterrupt:
        report(runs)
        print("interrupted")
        return 130
    report(runs)
    return 1 if any(run.failures for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
