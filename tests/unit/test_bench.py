"""The benches without their runs: arguments, bars, which contenders are chosen, tables and charts."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.helpers import LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a script of bench/ by name, as if it were run there, and forgets it afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(BENCH) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def row(case: str, ours: float | None, raw: float | None, **peers: float) -> dict[str, Any]:
    found = {name.replace("_", "-"): value for name, value in peers.items()}
    return {"bench": "consume", "case": case, "unit": "msgs/s", "ours": ours, "raw": raw, "peers": found}


@pytest.mark.parametrize(
    ("case", "ours", "raw", "peers", "verdict"),
    [
        ("arrow", 85.0, 100.0, {}, ">=0.85 raw met"),
        ("arrow", 84.9, 100.0, {}, ">=0.85 raw MISSED"),
        ("arrow_pure", 70.0, 100.0, {}, ""),
        ("consume_iter", 60.0, 100.0, {"nats_py": 7.0}, ">=0.6 raw met, >=10 nats-py MISSED"),
        ("consume_iter", 60.0, 100.0, {}, ">=0.6 raw met, >=10 nats-py no figure"),
        ("latency_p99_us", 200.0, 100.0, {"nats_py": 200.0}, "<=nats-py met"),
        ("latency_p99_us", 201.0, 100.0, {"nats_py": 200.0}, "<=nats-py MISSED"),
        ("tiny_batch_ms", 160.0, 100.0, {}, "<=raw+60 met"),
        ("tiny_batch_ms", 161.0, 100.0, {}, "<=raw+60 MISSED"),
        ("arrow", None, 100.0, {}, ">=0.85 raw no figure"),
        ("atomic_batch", 1.0, 100.0, {}, ""),
    ],
)
def test_bars(
    load: Callable[[str], ModuleType],
    case: str,
    ours: float | None,
    raw: float | None,
    peers: dict[str, float],
    verdict: str,
) -> None:
    bars = load("_bars")
    assert bars.verdict(bars.judge(row(case, ours, raw, **peers))) == verdict


def test_every_bar_is_about_a_case_that_is_measured(load: Callable[[str], ModuleType]) -> None:
    cases = {one.case for name in ("core", "publish", "consume") for one in load(name).BENCH.rows}
    spark = (BENCH / "spark.py").read_text()
    for bar in load("_bars").BARS:
        assert bar.case in cases or f'"{bar.case}"' in spark, bar


@pytest.mark.parametrize("name", ["core", "publish", "consume"])
def test_rows_name_measures_that_exist(load: Callable[[str], ModuleType], name: str) -> None:
    bench = load(name).BENCH
    keys = [measure.key for measure in bench.measures]
    assert len(keys) == len(set(keys))
    for one in bench.rows:
        assert {one.ours, one.raw, *one.peers.values()} - {None} <= set(keys), one


def test_only_keeps_the_raw_limit_of_what_it_chooses(load: Callable[[str], ModuleType]) -> None:
    bench = load("consume").BENCH
    chosen = load("_harness").chosen
    assert [m.key for m in chosen(bench, ["arrow_4k"])] == ["ours:arrow_4k", "raw:pull_4k"]
    assert [m.key for m in chosen(bench, ["ours:blocking"])] == ["raw:pull", "ours:blocking_iter"]
    assert chosen(bench, ["no such thing"]) == []
    assert chosen(bench, []) == bench.measures


def test_both_cores_run_in_one_bench(load: Callable[[str], ModuleType]) -> None:
    pure = [m for m in load("consume").BENCH.measures if m.env.get("JETSPARK_WIRE") == "python"]
    assert {m.key for m in pure} == {"ours:consume_iter_pure", "ours:arrow_pure"}


WORKER = """
import json, sys
key = sys.argv[2]
params = json.loads(sys.argv[4])
def note(what):
    with open(params["stream"], "a") as log:
        log.write(f"{key} {what}\\n")
note("warm")
if key == "silent":
    sys.exit(3)
if key == "loaded":
    print("READY", flush=True)
figures = []
for number in range(int(params["n"])):
    print("TURN", flush=True)
    assert sys.stdin.readline() == "GO\\n"
    note(number)
    if key == "broken" and number == 1:
        print("ERROR " + json.dumps("it broke"), flush=True)
        sys.exit(1)
    figures.append({"rate": number})
print("RESULT " + json.dumps(figures if figures else {"rate": 7}), flush=True)
"""


class Turns:
    """Runs the workers of the script above together; ``log`` has who did what, in order."""

    def __init__(self, load: Callable[[str], ModuleType], folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.harness, self.workers = load("_harness"), load("_workers")
        patch.setattr(self.workers, "HERE", folder)
        (folder / "fake.py").write_text(WORKER)
        self.folder = folder
        self.loads: list[int] = []
        self.settled = 0

    def settle(self) -> None:
        self.settled += 1

    def run(self, passes: int, *keys: str) -> dict[str, Any]:
        def start(ctx: Any, params: Any, phase: int) -> None:
            self.loads.append(phase)

        asked = []
        for key in keys:
            measure = self.harness.Measure(key, lambda params: {}, passes, passes, load=start)
            path = str(self.folder / "log")
            asked.append((measure, self.harness.Params("h", 1, key, passes, 0, stream=path)))
        found: dict[str, Any] = self.workers.run_together("fake", asked, self, 30.0)
        return found

    @property
    def log(self) -> list[str]:
        return (self.folder / "log").read_text().splitlines()


@pytest.fixture
def turns(load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Turns:
    return Turns(load, tmp_path, monkeypatch)


def test_contenders_take_turns_in_another_order_each_time(turns: Turns) -> None:
    found = turns.run(3, "a", "b", "c")
    assert found == {key: [{"rate": 0}, {"rate": 1}, {"rate": 2}] for key in "abc"}
    warm, first, second, third = (turns.log[at : at + 3] for at in range(0, 12, 3))
    assert warm == ["a warm", "b warm", "c warm"]
    assert first == ["b 0", "c 0", "a 0"]
    assert second == ["c 1", "a 1", "b 1"]
    assert third == ["a 2", "b 2", "c 2"]
    assert turns.settled == 3


def test_a_contender_that_fails_does_not_keep_the_others(turns: Turns) -> None:
    found = turns.run(2, "a", "silent", "broken")
    assert found == {
        "a": [{"rate": 0}, {"rate": 1}],
        "silent": "the worker ended without a result (exit code 3)",
        "broken": "it broke",
    }


def test_a_contender_by_itself_waits_for_nobody(turns: Turns) -> None:
    assert turns.run(0, "loaded") == {"loaded": [{"rate": 7}]}
    assert turns.loads == [0]


def test_what_is_compared_closely_is_measured_side_by_side(load: Callable[[str], ModuleType]) -> None:
    """Whoever has a bar beside the raw limit takes turns with it."""
    bench = load("consume").BENCH
    turns = {measure.key: measure.turns for measure in bench.measures}
    rows = {one.case: one for one in bench.rows}
    for bar in load("_bars").BARS:
        if bar.other == "raw" and bar.case in rows:
            one = rows[bar.case]
            assert turns[one.ours] == turns[one.raw] != ""


def test_table_has_ratios_spread_and_bars(load: Callable[[str], ModuleType]) -> None:
    one = {**row("arrow", 95.0, 100.0, nats_py=10.0), "rounds": {"ours": [90.0, 95.0, 109.0], "raw": [100.0]}}
    head, line = load("_harness").table([one]).splitlines()
    assert head.split() == [
        *(
            "case",
            "unit",
            "ours",
            "+-",
            "raw",
            "+-",
            "nats-py",
            "natsrpy",
            "/raw",
            "/nats-py",
            "/natsrpy",
            "bar",
        )
    ]
    assert line.split() == [
        "arrow",
        "msgs/s",
        "95",
        "10%",
        "100",
        "10",
        "-",
        "0.95",
        "9.50",
        "-",
        *[">=0.85", "raw", "met"],
    ]
    assert load("_bars").summary([one, row("arrow_4k", 1.0, 100.0)]) == (
        "bars: 1 of 2 met; missed: arrow_4k >=0.85 raw"
    )


def test_chart_is_drawn(load: Callable[[str], ModuleType], tmp_path: Path) -> None:
    rows = [row("arrow", 95.0, 100.0), {**row("latency_p99_us", 50.0, 40.0, nats_py=100.0), "unit": "us"}]
    chart = load("_chart")
    assert chart.raw_ratios(rows) == [("arrow", 0.95, "consume", 0.85)]
    assert chart.peer_ratios(rows) == [("latency_p99_us", 2.0, "consume", 1)]
    target = tmp_path / "bench.png"
    assert chart.draw(rows, "a machine", target)
    assert target.read_bytes().startswith(b"\x89PNG")


def test_the_chart_has_the_ratios_of_the_table(load: Callable[[str], ModuleType]) -> None:
    """Of medians alone it would be 0.5 and 5."""
    one = row("arrow", 100.0, 200.0, nats_py=20.0)
    one["rounds"] = {
        "ours": [50.0, 100.0, 180.0],
        "raw": [50.0, 200.0, 200.0],
        "nats-py": [5.0, 20.0, 20.0],
    }
    chart = load("_chart")
    assert chart.raw_ratios([one]) == [("arrow", 0.9, "consume", 0.85)]
    assert chart.peer_ratios([one]) == [("arrow", 9.0, "consume", None)]
    assert load("_harness").table([one]).split()[-6:-3] == ["0.90", "9.00", "-"]


def test_spark_reads_take_turns_with_the_raw_limit(load: Callable[[str], ModuleType]) -> None:
    spark = load("spark")
    contenders = dict.fromkeys(("ours", "raw", "nats-py"), lambda: 1.0)
    case = spark.Case("read_2", contenders, turns=3)
    assert spark.order(case, 0) == ["ours", "raw", "nats-py", "raw", "ours", "ours", "raw"]
    assert spark.order(case, 1) == ["raw", "nats-py", "ours", "ours", "raw", "raw", "ours"]
    spark.run([case], 2)
    assert {name: len(found) for name, found in case.figures.items()} == {"ours": 6, "raw": 6, "nats-py": 2}


def test_a_spark_contender_that_fails_is_not_asked_again(load: Callable[[str], ModuleType]) -> None:
    spark = load("spark")

    def fails() -> float:
        raise RuntimeError("no such stream")

    case = spark.Case("read_2", {"ours": fails, "raw": lambda: 1.0}, turns=2)
    spark.run([case], 2)
    assert case.errors == {"ours": "RuntimeError: no such stream"}
    assert case.figures == {"raw": [1.0] * 4}


def test_rounds_share_what_is_left_of_the_time(load: Callable[[str], ModuleType]) -> None:
    run = load("run")
    names = ["core", "publish", "consume"]
    assert sum(run.budget(name, names, 324.0) + run.SET_UP for name in names) == pytest.approx(324.0)
    assert run.budget("core", names, -100.0) == 20.0
    assert run.parse(["consume", "--only", "arrow", "--quick"]).benches == ["consume"]


@pytest.mark.parametrize("name", ["run", "growth", "experiments"])
def test_unknown_names_are_refused(
    load: Callable[[str], ModuleType], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        load(name).parse(["nonsense"])
    assert "nonsense" in capsys.readouterr().err


@pytest.mark.slow
def test_growth_says_where_it_stops_being_flat(load: Callable[[str], ModuleType], tmp_path: Path) -> None:
    growth = load("growth")
    points = [
        growth.Point("payload", at, "iter", 100, cost, cost * 2, 1e6 / cost, 0)
        for at, cost in ((16, 1.0), (128, 1.1), (4096, 1.6), (65_536, 20.0))
    ]
    assert growth.bends(points) == ["payload, iter: from 4,096 on (1.00 us before, 1.60 us there)"]
    assert len(growth.table(points).splitlines()) == 5
    assert growth.draw(points, "a machine", tmp_path / "growth.png")


def test_variants_all_run(load: Callable[[str], ModuleType]) -> None:
    groups = load("_variants").GROUPS
    ran = [function(1000) for group in groups.values() for _, function, _ in group.values()]
    assert ran == [None] * 29


def test_a_worker_says_why_it_failed() -> None:
    params = json.dumps({"host": "127.0.0.1", "port": 1, "run_id": "x", "n": 1, "warm": 1})
    command = [sys.executable, str(BENCH / "consume.py"), "--worker", "raw:pull", "--params", params]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith("ERROR ")
    assert "ConnectionRefusedError" in done.stdout
