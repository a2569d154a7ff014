"""The compiled core under AddressSanitizer and UBSan: ``make sanitize``.

Builds the core into a folder of its own (build/sanitize) with gcc's sanitizers and with warnings as errors,
then runs a fuzz that compares it with pure Python and the tests of what it does. Any finding ends it: a
report of a sanitizer, a failed test, a difference. Reports go into files and past pytest, which captures what
is printed, and one that is there fails the run whatever the exit codes are.

    python tools/sanitize.py [--seconds 120] [--seed N] [--jobs 2] [pytest arguments]

Needs gcc with libasan and libubsan, which Debian's gcc package brings.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "sanitize"
REPORTS = BUILD / "reports"
SAID = BUILD / "stderr.txt"
GRACE = 5.0
"""Seconds that are left to write a report and to say what else there is to say."""
TESTS = ["tests/wire", "tests/arrow"]

FLAGS = [
    *("-O1", "-g", "-fno-omit-frame-pointer", "-fPIC", "-shared"),
    # CPython prescribes the parameters of a method, whether it uses them or not.
    *("-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
]


class Failed(Exception):
    """What is wrong, for the last line."""


def compiler() -> list[str]:
    command = shlex.split(os.environ.get("CC", "gcc"))
    if shutil.which(command[0]) is None:
        raise Failed(f"{command[0]!r} is not installed; on Debian: apt-get install gcc")
    return command


def library(command: list[str], name: str) -> Path:
    """A sanitizer's run-time library, which has to be there before Python is."""
    asked = subprocess.run([*command, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = Path(asked.stdout.strip())
    # The compiler gives the bare name back when it has none.
    if not path.is_absolute() or not path.exists():
        raise Failed(f"{command[0]} has no {name}; on Debian gcc brings it: apt-get install gcc libc6-dev")
    return path.resolve()


def build(command: list[str]) -> None:
    """The package with a core of its own, beside the one in src/."""
    shutil.rmtree(BUILD, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.so", "*.so.new", "__pycache__")
    shutil.copytree(ROOT / "src", BUILD / "src", ignore=ignored)
    REPORTS.mkdir()
    wire = BUILD / "src" / "jetspark" / "wire"
    target = wire / ("_speed" + str(sysconfig.get_config_var("EXT_SUFFIX") or ".so"))
    include = sysconfig.get_paths()["include"]
    ran = subprocess.run(
        [*command, *FLAGS, f"-I{include}", str(wire / "_core" / "_speed.c"), "-o", str(target)], check=False
    )
    if ran.returncode:
        raise Failed("the core does not compile without warnings")


def environment(preloaded: list[Path]) -> dict[str, str]:
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(map(str, preloaded)),
        # Python and Arrow keep what they have until the process ends; that is not what is looked for here.
        "ASAN_OPTIONS": ":".join(
            [
                "detect_leaks=0",
                "halt_on_error=1",
                "abort_on_error=1",
                "handle_abort=1",
                f"log_path={REPORTS / 'asan'}",
            ]
        ),
        "UBSAN_OPTIONS": "halt_on_error=1:abort_on_error=1:print_stacktrace=1",
        # Each object by itself, or the sanitizer would see only the pools that Python keeps them in.
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join([str(BUILD / "src"), str(ROOT / "tests")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JETSPARK_WIRE": "c",
    }


def reports() -> list[Path]:
    """What there is to show: reports of ASAN, and what was said beside one of UBSan, which has no file."""
    found = [report for report in sorted(REPORTS.iterdir()) if report.stat().st_size]
    return found + [SAID] * (SAID.exists() and b"runtime error:" in SAID.read_bytes())


def run(title: str, command: list[str], env: dict[str, str]) -> None:
    started = time.monotonic()
    print(f"sanitize: {title}", flush=True)
    with (
        SAID.open("wb") as said,
        subprocess.Popen(command, cwd=ROOT, env=env, stderr=said, start_new_session=True) as process,
    ):
        try:
            # A finding ends one process; pytest may wait for ever for a worker that is no more.
            while process.poll() is None and not reports():
                time.sleep(0.2)
            if process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    code = process.returncode
    found = reports()
    for report in found:
        print(f"--- {report}", report.read_text(errors="replace"), sep="\n", file=sys.stderr)
    if found:
        raise Failed(f"{title}: {len(found)} reports of the sanitizers, see above")
    if code:
        print(SAID.read_text(errors="replace"), file=sys.stderr)
        raise Failed(f"{title}: exit code {code}")
    print(f"sanitize: {title}: {time.monotonic() - started:.0f} s", flush=True)


CHECK = """
import jetspark.wire, jetspark.wire._speed as core, sys
assert jetspark.wire.backend == "c"
assert core.__file__.startswith(sys.argv[1]), core.__file__
assert "libasan" in open("/proc/self/maps").read()
"""


def main() -> int:
    options = argparse.ArgumentParser(description="The compiled core under AddressSanitizer and UBSan.")
    options.add_argument("--seconds", type=float, default=120.0, help="of the differential fuzz; default 120")
    options.add_argument("--seed", type=int, default=int(time.time()), help="of the fuzz; default: the time")
    options.add_argument("--jobs", type=int, default=2, help="processes that run tests; default 2")
    given, tests = options.parse_known_args()
    try:
        command = compiler()
        preloaded = [library(command, "libasan.so"), library(command, "libubsan.so")]
        build(command)
        env = environment(preloaded)
        run("the core is the one with the sanitizers", [sys.executable, "-c", CHECK, str(BUILD)], env)
        fuzz = [sys.executable, "tests/support/differential_fuzz.py"]
        run("differential fuzz", [*fuzz, f"--seconds={given.seconds}", f"--seed={given.seed}"], env)
        # --capture=sys: what UBSan writes goes past pytest.
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--capture=sys"]
        parallel = ["-n", str(given.jobs), "--dist", "loadgroup", "--max-worker-restart=0"]
        run("tests", [*pytest, *parallel, *(tests or TESTS)], env)
    except Failed as error:
        print(f"sanitize: FAILED: {error}", file=sys.stderr)
        return 1
    print("sanitize: no findings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
