"""Runs the tests: everything with the compiled core, and beside it what touches the wire in pure Python.

Many tests wait for a server rather than compute, so both parts run at the same time. The report of the second
one comes when the first one is through, and the last lines name every failed test of both: the end of a long
log is enough to know them. The exit status is not 0 when either fails. With arguments for pytest it runs just
that, in one part.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
PURE = ("tests/wire", "tests/arrow", "tests/jetstream", "tests/blocking")
"""What reads or writes the wire, and so differs with the compiled core."""


class Parts:
    """Parts of a run: none of them outlives the block."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self, workers: int, *arguments: str, into: IO[str] | None = None, **more: str
    ) -> subprocess.Popen[bytes]:
        return self._run("-n", str(workers), "--dist", "loadgroup", *arguments, into=into, **more)

    def rewrite(self, *arguments: str) -> None:
        """Have pytest rewrite the assertions of changed test files once, where each worker would do the same
        work at the same moment: on a fresh clone that is most of what the start of a run costs."""
        if any(map(_changed, TESTS.rglob("*.py"))):
            with open(os.devnull, "w") as nowhere:
                self._run("--collect-only", "-q", *arguments, into=nowhere).wait()

    def prepare_spark(self) -> subprocess.Popen[bytes]:
        """Have Spark's classes in an archive, which pays back many times in a whole run."""
        part = subprocess.Popen([sys.executable, str(TESTS / "support" / "quick_spark.py")], cwd=ROOT)
        self._started.append(part)
        return part

    def _run(self, *arguments: str, into: IO[str] | None, **more: str) -> subprocess.Popen[bytes]:
        # Without byte code each worker, and each process that a test starts, compiles everything again.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        command = [sys.executable, "-m", "pytest", *arguments]
        part = subprocess.Popen(command, cwd=ROOT, env=kept | more, stdout=into, stderr=into)
        self._started.append(part)
        return part

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is KeyboardInterrupt:  # Ctrl-C has reached them too: they report, and end on their own.
            for part in self._started:
                part.wait()
        for part in self._started:
            if part.poll() is None:
                part.terminate()
                part.wait()


def _changed(source: Path) -> bool:
    """Whether pytest has kept no rewritten form of a test file since it was changed."""
    kept = source.parent.joinpath("__pycache__").glob(f"{source.stem}.*-pytest-*.pyc")
    changed = source.stat().st_mtime
    return source.name.startswith("test_") and not any(one.stat().st_mtime >= changed for one in kept)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests.")
    parser.add_argument("--jobs", type=int, default=4, help="workers for the part with the compiled core")
    parser.add_argument("--pure-jobs", type=int, default=2, help="workers for the part in pure Python")
    parser.add_argument("--option", action="append", default=[], help="for pytest, in all parts: --option=-x")
    parser.add_argument("pytest", nargs=argparse.REMAINDER, help="run just this, in one part")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    selected = [one for one in arguments.pytest if one != "--"]
    with Parts() as parts:
        if selected:
            parts.rewrite(*selected)
            return parts.start(arguments.jobs, *arguments.option, *selected).wait()
        spark = parts.prepare_spark()
        parts.rewrite()
        spark.wait()
        return _both(parts, arguments.jobs, arguments.pure_jobs, arguments.option)


def _both(parts: Parts, jobs: int, pure_jobs: int, options: list[str]) -> int:
    began = time.monotonic()
    if not _compiled():
        print("There is no compiled core: all tests run in pure Python. Install gcc, then: make clean setup")
        status = parts.start(jobs, *options).wait()
        print("in pure Python alone: there is no compiled core", flush=True)
        return status
    with (
        tempfile.TemporaryFile("w+", errors="replace") as report,
        tempfile.TemporaryDirectory(prefix="run-tests-") as folder,
    ):
        results = {"compiled": Path(folder, "compiled.xml"), "pure": Path(folder, "pure.xml")}
        compiled = parts.start(jobs, *options, f"--junitxml={results['compiled']}")
        pure = parts.start(
            pure_jobs, *options, f"--junitxml={results['pure']}", *PURE, into=report, JETSPARK_WIRE="python"
        )
        status = compiled.wait()
        print("\nin pure Python, without the compiled core: what touches the wire", flush=True)
        pure_status = pure.wait()
        report.seek(0)
        print(report.read())
        for part, result in results.items():
            for name in failures(result):
                print(f"{part}: {name}")
    verdict = "FAILED" if status or pure_status else "passed"
    print(f"both parts: {verdict} in {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    return status or pure_status


def failures(result: Path) -> list[str]:
    """The tests that failed, from the XML file that a part wrote; none when it ended before it wrote one."""
    if not result.exists():
        return []
    return [
        f"{case.get('classname')}::{case.get('name')}: {trouble.tag}: {(trouble.get('message') or '')[:300]}"
        for case in ElementTree.parse(result).iter("testcase")
        for trouble in case
        if trouble.tag in ("failure", "error")
    ]


def _compiled() -> bool:
    """Whether the compiled core is there."""
    asked = [sys.executable, "-c", "from jetspark.wire import backend; print(backend)"]
    return subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True).stdout.strip() == "c"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
