"""F21: the Spark source against a model: purges, limits, restores and leader changes while queries read.

Every row is right and comes once, and what is missing was excused or told before its batch was committed.
`tests/support/source_model.py` has the runs and repeats one by its seed; `tests/support/source_truth.py` has
the contract.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed

from support.fault_table import PROGRESS, Outcome, Row, Scale, check
from support.source_model import Lane, Result

#: Runs of the full form, 200 in all: on one server, on a cluster of three nodes, through a Spark session.
FULL = {"": 170, "cluster": 24, "spark": 6}
SHORT = {"": 3}
#: Runs that share a server. The fewer, the less is lost when one fails it.
RUNS = 10


def lanes(scale: Scale) -> list[Lane]:
    """The runs, by kind: the slow kinds first, so that two processes end at about the same time."""
    chance = scale.chance()
    found: list[Lane] = []
    for kind, count in reversed((FULL if scale.full else SHORT).items()):
        seeds = [chance.randrange(1_000_000) for _ in range(count)]
        found += [Lane(tuple(seeds[first : first + RUNS]), kind) for first in range(0, count, RUNS)]
    return found


def run(scale: Scale) -> Outcome:
    found: list[tuple[Lane, Result]] = []
    if not scale.full:
        return judge([(lane, result) for lane in lanes(scale) for result in lane()])
    # Each lane replaces parts of its own process, and a JVM stays as long as its process.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context, max_tasks_per_child=1) as pool:
        waiting = {pool.submit(lane): lane for lane in lanes(scale)}
        for done in as_completed(waiting):
            found += [(waiting[done], result) for result in done.result()]
            wrong = sum(bool(result.problems) for _, result in found)
            print(f"{PROGRESS}F21: {len(found)} runs, {wrong} with problems", flush=True)
    return judge(found)


def judge(found: list[tuple[Lane, Result]]) -> Outcome:
    counts: Counter[str] = Counter()
    events: Counter[str] = Counter()
    problems = []
    for lane, result in found:
        counts += result.figures
        events += result.events
        if result.problems:
            problems.append(f"{lane.command(result.seed)}: {result.problems[:3]}")
            print("\n".join([*result.log, *result.problems]))
    kinds = Counter(lane.kind or "one server" for lane, _ in found)
    figures = {
        "runs": len(found),
        "by kind": dict(kinds),
        "events": events.total(),
        "batches": counts["batches"] + counts["snapshots"],
        "rows": counts["rows"],
        "lost messages told": counts["losses told"],
        "alarms": counts["alarms"],
        "of them true": counts["true alarms"],
        "not to be judged": counts["alarms nobody can judge"],
        "warnings": counts["doubts"],
        "missing, excused": counts["missing, excused"],
        "missing, not to be judged": counts["missing, nobody can judge"],
        "runs with problems": len(problems),
    }
    return Outcome(figures=figures, problems=problems[:10])


ROW = Row(21, "the Spark source against a model", run, minutes=30)


def test_f21() -> None:
    check(ROW)
