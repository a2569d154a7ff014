"""The table of faults: what a row is, its short form as a test, and the runner of the full forms.

A row lives in `tests/faults/test_fNN_*.py` as the module's ``ROW``. Its test is the short form (`check`);
`make faults` runs the full forms of all rows and prints the table. A row checks safety while the fault lasts
and liveness after it, and says with figures what it saw. Both forms print the seed that repeats them.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import importlib.util
import inspect
import json
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

FOLDER = Path(__file__).parents[1] / "faults"
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
PROGRESS = "PROGRESS "
"""Begins the lines of a row that are shown while it runs."""
BEGIN, END = "<!-- the table: make faults ARGS=--record -->", "<!-- end of the table -->"


@dataclass(frozen=True, slots=True)
class Scale:
    """How much a row does: the short form belongs to `make test`, the full one to `make faults`."""

    full: bool
    seed: int

    def pick(self, short: int, full: int) -> int:
        return full if self.full else short

    def chance(self) -> random.Random:
        return random.Random(self.seed)


@dataclass(slots=True)
class Outcome:
    """What a row saw. ``problems`` is empty when it passes; ``missing`` says why it could not run here."""

    figures: dict[str, object] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    missing: str = ""

    def require(self, kept: bool, problem: str) -> None:
        """Note a problem unless the promise was kept."""
        if not kept:
            self.problems.append(problem)


@dataclass(frozen=True, slots=True)
class Row:
    """``alone``: its promise is a time, so that nothing else may run beside the full form.

    ``minutes``: the limit of the full form; a row that takes longer hangs, which is a failure.
    """

    number: int
    what: str
    run: Callable[[Scale], Outcome | Awaitable[Outcome]]
    alone: bool = False
    minutes: float = 12.0

    @property
    def name(self) -> str:
        return f"F{self.number}"


def perform(row: Row, scale: Scale) -> Outcome:
    """Run one form of a row in a loop of its own when it is a coroutine."""
    result = row.run(scale)
    if inspect.isawaitable(result):

        async def wait() -> Outcome:
            return await result

        return asyncio.run(wait())
    return result


def check(row: Row) -> None:
    """The short form, as the test of the row's module, always with the same seed.

    `make soak-tests` runs it with others, by way of ``FAULT_SEED``.
    """
    scale = Scale(full=False, seed=int(os.environ.get("FAULT_SEED") or 1))
    print(f"{row.name} seed {scale.seed}")
    outcome = perform(row, scale)
    print(_line(row, outcome, 0.0))
    assert outcome.problems == [], f"{row.name}, FAULT_SEED={scale.seed}: {outcome.problems}"
    assert outcome.figures or outcome.missing, f"{row.name} says nothing of what it saw"


def rows() -> Iterator[Row]:
    """All rows, in the order of their numbers."""
    found = []
    for path in FOLDER.glob("test_f[0-9]*.py"):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        found.append(module.ROW)
    yield from sorted(found, key=lambda row: row.number)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the table of faults in its full form.")
    parser.add_argument("rows", nargs="*", help="F1 F4 ...; all when none is named")
    parser.add_argument("--short", action="store_true", help="the short forms")
    parser.add_argument("--seed", type=int, default=_seed())
    parser.add_argument("--json", type=Path, help="write the outcomes to this file")
    parser.add_argument("--record", action="store_true", help="put the table into docs/reliability.md")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    wanted = [row for row in rows() if not arguments.rows or row.name in arguments.rows]
    if not wanted:
        parser.error(f"no such row: {' '.join(arguments.rows)}")
    if arguments.one:
        outcome = perform(wanted[0], Scale(not arguments.short, arguments.seed))
        print("OUTCOME " + json.dumps([outcome.figures, outcome.problems, outcome.missing]), flush=True)
        return 0
    started = time.monotonic()
    print(f"seed {arguments.seed}", flush=True)

    def run(row: Row) -> tuple[Row, Outcome, float]:
        began = time.monotonic()
        outcome = _child(row, arguments.seed, short=arguments.short)
        took = time.monotonic() - began
        print(_line(row, outcome, took), flush=True)
        return row, outcome, took

    # Rows that mostly wait share the machine in pairs; those whose promise is a time have it alone.
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(run, [row for row in wanted if not row.alone]))
    results += [run(row) for row in wanted if row.alone]
    results.sort(key=lambda one: one[0].number)
    print(f"\nThe table, after {(time.monotonic() - started) / 60:.1f} minutes, seed {arguments.seed}:\n")
    for row, outcome, took in results:
        print(_line(row, outcome, took))
    minutes = (time.monotonic() - started) / 60
    if arguments.json:
        report = {
            "seed": arguments.seed,
            "minutes": round(minutes, 1),
            "rows": {
                row.name: {"what": row.what, "seconds": round(took), "passed": not outcome.problems}
                | {"figures": outcome.figures, "problems": outcome.problems, "missing": outcome.missing}
                for row, outcome, took in results
            },
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    if arguments.record:
        head, rest = PAGE.read_text().split(BEGIN)
        tail = rest.split(END)[1]
        PAGE.write_text(head + BEGIN + _markdown(results, arguments.seed, minutes) + END + tail)
    return 1 if any(outcome.problems for _, outcome, _ in results) else 0


def _child(row: Row, seed: int, *, short: bool) -> Outcome:
    """One row in a process of its own: a crash or a hang is that row's failure and nobody else's."""
    command = [sys.executable, __file__, row.name, "--one", "--seed", str(seed), *["--short"] * short]
    said: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        assert child.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(row.minutes * 60, end)
        timer.start()
        try:
            for line in child.stdout:
                said.append(line)
                if line.startswith(PROGRESS):
                    print(line.removeprefix(PROGRESS), end="", flush=True)
        finally:
            timer.cancel()
    if late.is_set():
        return Outcome(problems=[f"no end within {row.minutes} minutes"])
    for line in said:
        if line.startswith("OUTCOME "):
            return Outcome(*json.loads(line.removeprefix("OUTCOME ")))
    return Outcome(problems=[f"exit code {child.returncode}: {''.join(said)[-3000:]}"])


def _line(row: Row, outcome: Outcome, took: float) -> str:
    verdict = "FAILED" if outcome.problems else "not run" if outcome.missing else "passed"
    seen = ", ".join(f"{name} {value}" for name, value in outcome.figures.items())
    text = f"{row.name:4} {verdict:7} {took:5.0f} s  {row.what}: {outcome.missing or seen}"
    return "\n".join([text, *(f"       {problem}" for problem in outcome.problems)])


def _markdown(results: list[tuple[Row, Outcome, float]], seed: int, minutes: float) -> str:
    """The table as the documentation has it."""
    today, cores = datetime.date.today(), os.cpu_count()
    lines = [
        "",
        f"Last full run: {today}, seed {seed}, {minutes:.0f} minutes on {cores} cores.",
        "",
        "| row | what | | seen | s |",
        "|---|---|---|---|---|",
    ]
    for row, outcome, took in results:
        verdict = "failed" if outcome.problems else "not run" if outcome.missing else "passed"
        seen = outcome.missing or ", ".join(f"{name}: {value}" for name, value in outcome.figures.items())
        lines.append(f"| {row.name} | {row.what} | {verdict} | {seen.replace('|', '/')} | {took:.0f} |")
    return "\n".join([*lines, ""])


def _seed() -> int:
    return int(os.environ.get("FAULT_SEED") or random.SystemRandom().randrange(1_000_000))


if __name__ == "__main__":
    raise SystemExit(main())
