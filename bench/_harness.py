"""Runs contenders side by side against one nats-server and prints ratios.

Theory of operation. A bench is a list of *measures* (one contender doing one thing) and a list of *rows* (one
case: which measure is ours, which is the raw limit, which are the peers'). A *round* runs every measure once;
rounds repeat, each starting at another place of the list, so that a slow minute of the machine hits
everybody. The reported figure is the median over the rounds.

Those that come close to each other *take turns*: each does several passes, and one pass of each follows the
other. The speed of a machine may change within seconds, and what is judged is the ratio of neighbours.

Each measure runs in a fresh process, `python bench/<name>.py --worker KEY --params JSON` (`_workers.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import importlib
import inspect
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _bars import judge, ratio, summary, verdict
from _raw import RawConn
from _workers import run_together

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

HERE = Path(__file__).resolve().parent
QUICK_BUDGET = (
    33.0  # seconds of measuring in a --quick run; set-up and tear-down come on top, one round is the least
)
MEASURE_TIMEOUT = 90.0
QUICK_MEASURE_TIMEOUT = 12.0
PEERS = ("nats-py", "natsrpy")

# A receiver must never be cut or throttled for being slow: the bench measures how slow it is.
SERVER_CONFIG = """
max_pending: 2GB
write_deadline: "90s"
ping_interval: "10m"
jetstream {{ store_dir: "{store}", max_file_store: 20GB, max_memory_store: 2GB, max_buffered_msgs: 200000 }}
"""


@dataclass(slots=True)
class Params:
    """What a worker is told: where the server is, how much to do, and names that no other run uses."""

    host: str
    port: int
    run_id: str
    n: int
    warm: int
    size: int = 128
    passes: int = 1
    window: int = 20_000
    stream: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    @property
    def subject(self) -> str:
        return f"bench.{self.run_id}"

    @property
    def total(self) -> int:
        """Messages to handle: the first `warm` of them are not timed."""
        return self.warm + self.n


Figures = dict[str, float]
Passes = Figures | list[Figures]


@dataclass(slots=True)
class Measure:
    """One contender doing one thing. `n` timed operations in a full run, `quick` in a quick one."""

    key: str
    run: Callable[[Params], Passes | Awaitable[Passes]]
    n: int
    quick: int
    warm: float = 0.1
    """Untimed share done first, in the same process and connection."""
    setup: Callable[[Context, Params], None] | None = None
    load: Callable[[Context, Params, int], None] | None = None
    """Called at each READY of the worker, with 0, 1, ...: what to send to it."""
    check: Callable[[Context, Params], None] | None = None
    """Runs in the parent afterwards; raises when the contender did not do the work."""
    size: int = 128
    """Bytes of a message."""
    env: dict[str, str] = field(default_factory=dict)
    """Added to the worker's environment."""
    turns: str = ""
    """Measures in a row that have the same word here take turns."""
    passes: int = 3
    """So many timed passes of a round, for those that take turns."""


@dataclass(slots=True)
class Row:
    """One case. Measures are named `contender:what`; `figure` picks one of a measure's results."""

    case: str
    ours: str
    raw: str | None = None
    peers: dict[str, str] = field(default_factory=dict)
    unit: str = "msgs/s"
    figure: str = "rate"


@dataclass(slots=True)
class Bench:
    name: str
    measures: list[Measure]
    rows: list[Row]
    prepare: Callable[[Context, bool], None] | None = None


class Helper:
    """A load generator process (see `_load.py`)."""

    def __init__(self, host: str, port: int, role: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "_load.py"), host, str(port), role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._expect("READY")

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if line != word:
            raise RuntimeError(f"load generator said {line!r} instead of {word!r}")

    def start(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        self._expect("DONE")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass(slots=True)
class Context:
    """The parent's side of a run: the server, a raw connection for set-up, the load generators."""

    host: str
    port: int
    monitor: str
    admin: RawConn
    driver: Helper
    driving: int = 0

    def drive(self, **command: Any) -> None:
        self.driver.start(**command)
        self.driving += 1

    def messages_in(self) -> int:
        """Messages that the server has received from all clients so far."""
        with urllib.request.urlopen(f"{self.monitor}/varz", timeout=5) as answer:
            return int(json.load(answer)["in_msgs"])

    def settle(self) -> None:
        """Waits until the load generator has done all it was told."""
        while self.driving:
            self.driver.wait()
            self.driving -= 1


# --- the worker's side ----------------------------------------------------------------------------


def ready() -> None:
    """Tells the parent that the load may start."""
    gc.collect()
    print("READY", flush=True)


def now() -> float:
    return time.perf_counter()


def rate(n: int, started: float, ended: float) -> Figures:
    return {"rate": n / (ended - started)}


async def warmed(run: Callable[[str, int], Awaitable[Figures]], p: Params) -> Figures:
    """Runs twice on the same connection, under another name each time; the first is the warm-up."""
    await run(f"{p.run_id}-w", p.warm)
    gc.collect()
    return await run(f"{p.run_id}-t", p.n)


# Before each pass of those that take turns there is a moment of quiet, so that none pays for what the one
# before left behind.
QUIET = 0.2

# A second round that is shorter is done in any case: without it there is no spread. Longer ones have passes.
SHORT_ROUND = 60.0


async def in_passes(run: Callable[[str, int], Awaitable[Figures]], p: Params) -> list[Figures]:
    """As `warmed`, with several timed passes."""
    await run(f"{p.run_id}-w", p.warm)
    found: list[Figures] = []
    for number in range(p.passes):
        wait_for_turn()
        await asyncio.sleep(QUIET)
        found.append(await run(f"{p.run_id}-t{number}", p.n))
    return found


def in_blocking_passes(run: Callable[[str, int], Figures], p: Params) -> list[Figures]:
    run(f"{p.run_id}-w", p.warm)
    found: list[Figures] = []
    for number in range(p.passes):
        wait_for_turn()
        time.sleep(QUIET)
        found.append(run(f"{p.run_id}-t{number}", p.n))
    return found


async def in_turns(run: Callable[[str], Awaitable[Figures]], p: Params) -> list[Figures]:
    """As `in_passes`, where each pass has a warm-up of its own."""
    found: list[Figures] = []
    for number in range(p.passes):
        wait_for_turn()
        found.append(await run(f"{p.run_id}-{number}"))
    return found


def wait_for_turn() -> None:
    """Until the parent says so. The loop stands still, which nobody minds: all of it was read."""
    gc.collect()
    print("TURN", flush=True)
    sys.stdin.readline()


def percentiles(samples_ns: list[int]) -> Figures:
    ordered = sorted(samples_ns)
    count = len(ordered)
    return {"p50": ordered[count // 2] / 1e3, "p99": ordered[min(count - 1, count * 99 // 100)] / 1e3}


def expect(what: str, got: int, wanted: int) -> None:
    if got != wanted:
        raise RuntimeError(f"{what}: got {got}, wanted {wanted}")


def module(name: str) -> Any:
    """Imports by name, so that the benches type-check with and without the contenders installed."""
    return importlib.import_module(name)


async def ours_connect(p: Params) -> Any:
    return await module("jetspark").connect(p.url)


_kept: list[Any] = []


async def natsrpy_connect(p: Params) -> Any:
    nc = module("natsrpy").Nats([p.url])
    _kept.append(nc)  # it complains on stderr when collected; the worker's exit is the clean-up
    await nc.startup()
    return nc


def _work(bench: Bench, key: str, params: Params) -> int:
    measure = next(m for m in bench.measures if m.key == key)
    loop = os.environ.get("BENCH_LOOP", "asyncio")
    try:
        outcome = measure.run(params)
        if inspect.iscoroutine(outcome):
            factory = module("uvloop").new_event_loop if loop == "uvloop" else None
            with asyncio.Runner(loop_factory=factory) as runner:
                outcome = runner.run(outcome)
        print("RESULT " + json.dumps(outcome), flush=True)
        code = 0
    except Exception as error:
        if os.environ.get("BENCH_TRACEBACK"):
            import traceback

            traceback.print_exc()
        print("ERROR " + json.dumps(f"{type(error).__name__}: {error}"), flush=True)
        code = 1
    sys.stdout.flush()
    os._exit(code)  # a client's threads or pending tasks must not delay the next contender


# --- the parent's side ----------------------------------------------------------------------------


@contextlib.contextmanager
def nats_server() -> Iterator[tuple[str, int, str]]:
    """One server with JetStream on file storage in a temporary directory: its host, port, monitoring URL."""
    sys.path.insert(0, str(HERE.parent / "src"))
    with tempfile.TemporaryDirectory(prefix="jetspark-bench-") as store:
        server = module("jetspark.server").Server(store_dir=store, config=SERVER_CONFIG.format(store=store))
        with server:
            yield server.host, server.port, server.http_url


@dataclass(slots=True)
class Outcome:
    """All rounds of one measure, and all passes of a round."""

    figures: list[Figures] = field(default_factory=list)
    rounds: int = 0
    error: str | None = None

    def median(self, name: str) -> float | None:
        values = [f[name] for f in self.figures]
        return statistics.median(values) if values and self.error is None else None


def chosen(bench: Bench, only: list[str]) -> list[Measure]:
    """Measures with one of the texts in their name, and the raw limit of every case they belong to."""
    keys = {m.key for m in bench.measures if not only or any(word in m.key for word in only)}
    keys |= {row.raw for row in bench.rows if row.raw and keys & {row.ours, *row.peers.values()}}
    return [m for m in bench.measures if m.key in keys]


def run_bench(
    bench: Bench, *, quick: bool, repeats: int, only: list[str], budget: float | None = None
) -> dict[str, Outcome]:
    """All rounds; with a budget in seconds no round begins that would go beyond it, except the first, and in
    a full run a second that is short: there is no spread without it."""
    measures = chosen(bench, only)
    outcomes = {m.key: Outcome() for m in measures}
    if not measures:
        return outcomes
    timeout = QUICK_MEASURE_TIMEOUT if quick else MEASURE_TIMEOUT
    groups = [list(group) for _, group in itertools.groupby(measures, lambda one: one.turns or one.key)]
    with contextlib.ExitStack() as stack:
        host, port, monitor = stack.enter_context(nats_server())
        admin = stack.enter_context(RawConn(host, port))
        driver = Helper(host, port, "drive")
        stack.callback(driver.close)
        stack.callback(Helper(host, port, "respond").close)
        ctx = Context(host, port, monitor, admin, driver)
        if bench.prepare is not None:
            bench.prepare(ctx, quick)
        started = last = time.monotonic()
        longest = 0.0
        for turn in range(repeats):
            short = turn == 1 and not quick and longest < SHORT_ROUND
            if budget is not None and turn and not short and time.monotonic() - started + longest > budget:
                break
            shift = turn * 3 % len(groups)
            for group in groups[shift:] + groups[:shift]:
                begun = time.monotonic()
                asked = [
                    (measure, _params(measure, host, port, turn, quick=quick))
                    for measure in group
                    if outcomes[measure.key].error is None
                ]
                for key, found in run_together(bench.name, asked, ctx, timeout).items():
                    if isinstance(found, str):
                        outcomes[key].error = said = f"ERROR {found}"
                    else:
                        outcomes[key].figures += found
                        outcomes[key].rounds += 1
                        said = " | ".join(
                            " ".join(f"{name}={value:,.0f}" for name, value in one.items()) for one in found
                        )
                    print(f"  round {turn + 1}  {key:<28} {said}", file=sys.stderr)
                print(f"  {time.monotonic() - begun:.1f} s", file=sys.stderr)
            longest = max(longest, time.monotonic() - last)
            last = time.monotonic()
    return outcomes


def _params(measure: Measure, host: str, port: int, turn: int, *, quick: bool) -> Params:
    n = measure.quick if quick else measure.n
    run_id = f"{measure.key}-{turn}".replace(":", "-").replace(".", "-")
    passes = measure.passes if measure.turns else 1
    return Params(host, port, run_id, n, int(n * measure.warm), measure.size, passes)


def rows_of(bench: Bench, outcomes: dict[str, Outcome]) -> list[dict[str, Any]]:
    """The rows of the JSON contract, in the bench's order."""

    def value(key: str | None, name: str) -> float | None:
        got = outcomes[key].median(name) if key in outcomes else None
        return round(got, 1) if got is not None else None

    def all_of(key: str | None, name: str) -> list[float]:
        return [round(one[name], 1) for one in outcomes[key].figures] if key in outcomes else []

    rows: list[dict[str, Any]] = []
    for row in bench.rows:
        if row.ours not in outcomes and not outcomes.keys() & row.peers.values():
            continue
        peers = {peer: value(key, row.figure) for peer, key in row.peers.items()}
        contenders = {"ours": row.ours, "raw": row.raw, **row.peers}
        rows.append(
            {
                "case": row.case,
                "unit": row.unit,
                "ours": value(row.ours, row.figure),
                "raw": value(row.raw, row.figure),
                "peers": peers,
                "rounds": {
                    name: found for name, key in contenders.items() if (found := all_of(key, row.figure))
                },
            }
        )
    return rows


def spread_of(row: dict[str, Any], contender: str) -> float | None:
    """Half of the distance between the worst and the best round, as a share of the median."""
    found = row.get("rounds", {}).get(contender)
    return (max(found) - min(found)) / 2 / statistics.median(found) if found and len(found) > 1 else None


def table(rows: list[dict[str, Any]], spreads: dict[str, float] | None = None) -> str:
    """Figures, then ours divided by each of the others (the median of the rounds' ratios), then the bars. For
    `us` and `ms` smaller is better.

    `spreads`: those of ours for rows that do not bring their rounds.
    """

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:,.0f}"

    def divided(row: dict[str, Any], other: str) -> str:
        found = ratio(row, other)
        return "-" if found is None else f"{found:.2f}"

    def share(value: float | None) -> str:
        return "" if value is None else f"{value:.0%}"

    ratios = [f"/{other}" for other in ("raw", *PEERS)]
    columns = ["case", "unit", "ours", "+-", "raw", "+-", *PEERS, *ratios, "bar"]
    left = {0, 1, len(columns) - 1}
    lines = [columns]
    for row in rows:
        spread = spread_of(row, "ours")
        spread = (spreads or {}).get(row["case"]) if spread is None else spread
        peers = [row["peers"].get(peer) for peer in PEERS]
        lines.append(
            [
                row["case"],
                row["unit"],
                number(row["ours"]),
                share(spread),
                number(row["raw"]),
                share(spread_of(row, "raw")),
                *map(number, peers),
                *(divided(row, other) for other in ("raw", *PEERS)),
                verdict(judge(row)),
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def options(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="smaller counts, under a minute")
    parser.add_argument("--json", metavar="PATH", type=Path, help="write the rows to PATH")
    parser.add_argument("--repeats", type=int, metavar="N", help="rounds (default 5, with --quick at most 3)")
    parser.add_argument(
        "--budget", type=float, metavar="SECONDS", help="begin no further round that would take longer in all"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="measures with TEXT in the name, and their raw limit",
    )
    return parser


def main(bench: Bench) -> int:
    parser = options(f"The {bench.name} bench; see bench/README.md.")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--params", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return _work(bench, arguments.worker, Params(**json.loads(arguments.params)))

    quick = arguments.quick
    repeats = arguments.repeats or (3 if quick else 5)
    budget = arguments.budget
    if quick:
        repeats = min(repeats, 3)
        budget = QUICK_BUDGET if budget is None else budget
    outcomes = run_bench(bench, quick=quick, repeats=repeats, only=arguments.only, budget=budget)
    rows = rows_of(bench, outcomes)
    rounds = max((outcome.rounds for outcome in outcomes.values()), default=0)
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    print(f"\n{bench.name}: median of {rounds} rounds, {machine}\n")
    print(table(rows))
    print(f"\n{summary(rows)}")
    failed = {key: outcome.error for key, outcome in outcomes.items() if outcome.error is not None}
    for key, error in failed.items():
        print(f"{key}: {error}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 1 if failed else 0
