"""Runs every bench, prints one table with the bars, writes bench/results.json, draws docs/bench.png.

    python bench/run.py                       # what `make bench` does: under 10 minutes on two idle cores
    python bench/run.py --quick               # smaller counts, few rounds: about 3 minutes
    python bench/run.py consume --only arrow  # one bench, some measures

Spark runs first because its length is the one that can't be cut; the others share what is left of the time
and do as many rounds as fit into it. Exit code 1: a contender failed; a missed bar is no failure.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _bars import judge, summary
from _chart import draw
from _harness import HERE, options, table
from _machine import machine, title

if TYPE_CHECKING:
    import argparse

# In the order of the table. The number is a bench's share of the time that Spark leaves.
BENCHES = {"core": 0.19, "publish": 0.18, "consume": 0.63, "spark": 0.0}
WHOLE = 580.0  # seconds
SET_UP = 8.0  # seconds a bench takes beside its rounds: server, prefilled streams
SPARK_LIMIT = 420.0  # a Spark that hangs is cut off; the rest of the table is still worth having
BENCH_LIMIT = 900.0
CHART = HERE.parent / "docs" / "bench.png"


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = options("All benches; see bench/README.md.")
    parser.add_argument("benches", nargs="*", metavar="BENCH", help=f"{', '.join(BENCHES)} (default: all)")
    parser.add_argument(
        "--chart", metavar="PATH", type=Path, help=f"default {CHART.name} in docs/, of whole runs"
    )
    arguments = parser.parse_args(words)
    unknown = [name for name in arguments.benches if name not in BENCHES]
    if unknown:
        parser.error(f"no bench {unknown[0]!r}; there are {', '.join(BENCHES)}")
    return arguments


def budget(name: str, names: list[str], left: float) -> float:
    """Seconds for the rounds of a bench when `left` remain for the benches `names`, itself included."""
    shares = sum(BENCHES[one] for one in names)
    return max(20.0, left * BENCHES[name] / shares - SET_UP)


def run_one(name: str, words: list[str], limit: float) -> tuple[list[dict[str, Any]], int]:
    """The rows of a bench and its exit code; in a session of its own, so that all of it can be ended."""
    with tempfile.TemporaryDirectory(prefix="jetspark-bench-rows-") as folder:
        written = Path(folder) / "rows.json"
        command = [sys.executable, str(HERE / f"{name}.py"), *words, "--json", str(written)]
        process = subprocess.Popen(command, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            print(f"{name}: cut off after {limit:.0f} s", file=sys.stderr)
            code = 1
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        rows = json.loads(written.read_text())["rows"] if written.exists() else []
    return [{"bench": name, **row} for row in rows], code


def main() -> int:
    arguments = parse()
    started = time.monotonic()
    about = machine()
    print(title(about), file=sys.stderr)
    names = [name for name in BENCHES if not arguments.benches or name in arguments.benches]
    passed_on = ["--quick"] if arguments.quick else []
    passed_on += ["--repeats", str(arguments.repeats)] if arguments.repeats else []
    passed_on += [word for text in arguments.only for word in ("--only", text)]
    found: dict[str, list[dict[str, Any]]] = {}
    failed: list[str] = []
    waiting = sorted(names, key=lambda name: name != "spark")
    while waiting:
        name = waiting[0]
        words = list(passed_on)
        if name != "spark" and not arguments.quick:
            whole = arguments.budget or WHOLE
            seconds = budget(name, waiting, whole - (time.monotonic() - started))
            words += ["--budget", f"{seconds:.0f}"]
        print(f"\n== {name} {' '.join(words)}", file=sys.stderr)
        found[name], code = run_one(name, words, SPARK_LIMIT if name == "spark" else BENCH_LIMIT)
        if code:
            failed.append(name)
        waiting.pop(0)
    rows = [row for name in names for row in found[name]]
    about["minutes"] = round((time.monotonic() - started) / 60, 1)
    for row in rows:
        row["bars"] = judge(row)
    print(f"\nall benches: {title(about)}; took {about['minutes']} minutes\n")
    print(table(rows))
    print(f"\n{summary(rows)}")
    if failed:
        print(f"failed, see above: {', '.join(failed)}")
    whole_run = not arguments.only and not arguments.benches
    if arguments.json or whole_run:
        target = arguments.json or HERE / "results.json"
        target.write_text(json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")
        print(f"written to {target}")
    if arguments.chart or whole_run:
        target = arguments.chart or CHART
        print(f"drawn to {target}" if draw(rows, title(about), target) else "no chart: matplotlib is missing")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
