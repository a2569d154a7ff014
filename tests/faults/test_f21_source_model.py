"""F21: random things happen to streams while random Spark queries read them: no silent difference.

Publishes, deletes, purges, expiries, limits, restarts, restores, streams made again and leader changes come
between the calls and between the record batches of batch and streaming queries. tests/source_model.py says
how that is judged. The full form is 200 runs: on one server, on a cluster, and some through a Spark session.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING

from fault_table import Outcome, Row, Scale, check
from source_model import Lane, Result

if TYPE_CHECKING:
    from collections.abc import Iterator

LANE = 10
"""Runs on one server: then another one begins."""


def lanes(scale: Scale) -> list[Lane]:
    """The runs of a form. The short one has no cluster and no Spark: tests/spark/test_source_model.py has."""
    chance = scale.chance()

    def seeds(count: int) -> tuple[int, ...]:
        return tuple(chance.randrange(1_000_000) for _ in range(count))

    found = [Lane(seeds(LANE)) for _ in range(scale.pick(1, 16))]
    if scale.full:
        found += [Lane(seeds(LANE), "cluster") for _ in range(3)]
        found += [Lane(seeds(LANE), "spark")]
    return found


def results(wanted: list[Lane], full: bool) -> Iterator[tuple[Lane, list[Result]]]:
    """Each lane with what it found. In the full form they run in processes, two at a time."""
    if not full:
        for lane in wanted:
            yield lane, lane()
        return
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(lane): lane for lane in wanted}
        for future in as_completed(running):
            yield running[future], future.result()


def source_model(scale: Scale) -> Outcome:
    outcome = Outcome()
    figures: Counter[str] = Counter()
    events: Counter[str] = Counter()
    wanted = lanes(scale)
    runs = 0
    folder: Path | None = None
    for lane, found in results(wanted, scale.full):
        for result in found:
            runs += 1
            figures += result.figures
            events += result.events
            if not result.problems:
                continue
            folder = folder or Path(tempfile.mkdtemp(prefix="source-model-"))
            log = folder / f"seed-{result.seed}{lane.kind}.log"
            log.write_text("\n".join([*result.log, *result.problems, ""]))
            figures["runs with differences"] += 1
            first = result.problems[0][:400]
            more = f" (and {len(result.problems) - 1} more)" if len(result.problems) > 1 else ""
            outcome.problems.append(f"{lane.command(result.seed)}: {first}{more}; what happened: {log}")
        total = sum(len(one.seeds) for one in wanted)
        print(f"PROGRESS F21: {runs} of {total} runs, {len(outcome.problems)} with differences", flush=True)
    outcome.figures = {"runs": runs, **dict(sorted(figures.items())), "events": dict(events.most_common())}
    outcome.require(figures["batches"] > runs, f"only {figures['batches']} batches in {runs} runs")
    outcome.require(figures["true alarms"] > 0, "nothing was lost in any run: the model is blind")
    return outcome


ROW = Row(21, "random events and random Spark queries against the truth", source_model, minutes=40)


def test_f21() -> None:
    check(ROW)
