"""A model test of the Spark source: random things happen to streams while random queries read them.

A run is decided by its seed: which streams, what happens to them, which queries, and at which of the queries'
moments it happens. The truth is kept by a plain socket (`source_truth`), the queries are driven as Spark
drives them (`source_queries`), and each committed batch is judged (`source_judge`): every row is right, and
what is missing is excused or was told. `python tests/support/source_model.py --seed 7` repeats a run and
prints what happened in it; `--runs 50 --seed 1` makes fifty, with seeds from 1 on.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

import jetspark.spark.patience
import jetspark.spark.source.stream_reader
from support.source_judge import Judge, Listener, Verdicts
from support.source_queries import BatchQuery, LastPerSubjectQuery, QueryFailed, StreamingQuery
from support.source_world import Host, World

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 6.0
"""Seconds for which the source waits for a server: shorter than a user's, or lost tails take minutes."""
CLUSTER_PATIENCE = 30.0
"""The same where leaders change. One request that a leader took with it costs 10 seconds."""
_FAILED = "the model itself failed: "
FILTERS = ("", "*.a.>", "*.b.*", "*.a.1", "*.a.1,*.b.>", "*.c.>")


@dataclass(frozen=True, slots=True)
class Result:
    """What a run found."""

    seed: int
    problems: list[str]
    figures: Counter[str]
    events: Counter[str]
    log: list[str]
    flavour: str


class Run:
    """One seed: a world, and the queries that read it."""

    def __init__(self, host: Host, seed: int) -> None:
        self.host, self.seed = host, seed
        self.chance = random.Random(seed)
        self.verdicts = Verdicts()
        self.listener = Listener()
        self.world = World(host, self.chance, seed)
        self._queues = all(one["retention"] == "workqueue" for one in self.world.configs.values())
        self._busy = self.chance.choice((0.05, 0.15, 0.3, 0.5))
        self._quiet = False

    def play(self) -> Result:
        logger = logging.getLogger("jetspark.spark")
        world = self.world
        logger.addHandler(self.listener)
        propagate, logger.propagate = logger.propagate, False
        try:
            if self.chance.random() < 0.3:
                self._batches()
            else:
                self._streaming()
        except Exception:
            self.verdicts.problems.append(_FAILED + traceback.format_exc())
        finally:
            logger.removeHandler(self.listener)
            logger.propagate = propagate
            world.close()
        return Result(
            self.seed,
            self.verdicts.problems,
            self.verdicts.figures,
            world.events,
            world.truth.log,
            world.flavour,
        )

    def moment(self, _: str) -> None:
        """Something may happen now."""
        if not self._quiet and self.chance.random() < self._busy:
            self.world.some(2)

    def _options(self) -> dict[str, str]:
        """Options of any query; filters and streams that it is about."""
        chance = self.chance
        names = self.world.names
        options = {"servers": ",".join(self.host.urls), "stream": ",".join(names)}
        if chance.random() < 0.2:
            options["stream"] = f"M{self.seed}_*"
        elif len(names) > 1 and chance.random() < 0.2:
            options["stream"] = chance.choice(names)
        options["failOnDataLoss"] = chance.choice(("true", "true", "false"))
        subjects = chance.choice(FILTERS)
        if subjects and chance.random() < 0.6:
            options["subjects"] = subjects
        options["recordBatchRows"] = str(chance.choice((1, 3, 10, 1000)))
        options["bufferMessages"] = str(chance.choice((1, 5, 20, 1000)))
        if chance.random() < 0.4:
            options["minPartitions"] = str(chance.choice((2, 4)))
        if chance.random() < 0.3:
            options["maxMessagesPerPartition"] = str(chance.choice((7, 20)))
        return options

    # Batch

    def _batches(self) -> None:
        for number in range(self.chance.choice((1, 2, 3))):
            options = self._options()
            judge = Judge(self.world.truth, self.verdicts, f"batch {number + 1}")
            arguments = (self.world.truth, judge, self.listener, self.moment, self.chance.random())
            with contextlib.suppress(QueryFailed):
                if self.chance.random() < 0.3:
                    LastPerSubjectQuery(*arguments).run(options)
                else:
                    start, end = self._bounds(options)
                    BatchQuery(*arguments).run(options, start=start, end=end)
            self.verdicts.figures["queries"] += 1
            self.world.some(3)

    def _bounds(self, options: dict[str, str]) -> tuple[int | None, int | None]:
        longest = max((life.last for life in self.world.truth.alive(self.world.names)), default=1)
        start = end = None
        if self.chance.random() < 0.4:
            start = self.chance.randrange(1, longest + 3)
            options["startingSequence"] = str(start)
        if self.chance.random() < 0.3:
            end = self.chance.randrange(start or 1, longest + 5)
            options["endingSequence"] = str(end)
        return start, end

    # Streaming

    def _streaming(self) -> None:
        judge = Judge(self.world.truth, self.verdicts, "query")
        arguments = (self.world.truth, judge, self.listener, self.moment, self.chance.random())
        query = StreamingQuery(*arguments)
        options = self._stream_options()
        start = self.chance.choice(("earliest", "earliest", "latest", "sequence"))
        if start == "sequence":
            options["startingSequence"] = str(self.chance.randrange(1, 30))
        else:
            options["startingPosition"] = start
        if start != "earliest":
            options.pop("releaseWorkQueue", None)  # it would be refused
        for _ in range(self.chance.choice((1, 2, 3))):
            self._session(query, options)
            self.world.some(3)
            if self.chance.random() < 0.5:
                options = self._changed(options, refused=query.refiltered)
            elif "false" not in options["failOnDataLoss"] and judge.alarms:
                options = {**options, "failOnDataLoss": "false"}
        self._quiet = True
        self._last(query, {**options, "failOnDataLoss": "false"})
        self.verdicts.figures["queries"] += 1

    def _changed(self, before: dict[str, str], *, refused: bool) -> dict[str, str]:
        """Other options for the same query. One that releases a work queue keeps on, with the same filter.

        One that does not may begin to, with any filter: it is refused if it would delete messages that it
        did not read (``refused``: it was).
        """
        kept = {name: value for name, value in before.items() if name.startswith("starting")}
        options = {**self._stream_options(), **kept}
        if before.get("startingPosition") != "earliest":
            options.pop("releaseWorkQueue", None)
        if refused:
            options.pop("releaseWorkQueue", None)
        elif "releaseWorkQueue" in before:
            options["releaseWorkQueue"] = "true"
            options.pop("subjects", None)
            options |= {"subjects": before["subjects"]} if "subjects" in before else {}
        return options

    def _stream_options(self) -> dict[str, str]:
        options = self._options()
        if self.chance.random() < 0.6:
            options["maxMessagesPerTrigger"] = str(self.chance.choice((3, 10, 40)))
        if self.chance.random() < 0.1:
            options["maxBytesPerTrigger"] = str(self.chance.choice((300, 3000)))
        if self.chance.random() < 0.1:
            options["durable"] = "spark"
        if self._queues and self.chance.random() < 0.5:
            options["releaseWorkQueue"] = "true"
        return options

    def _session(self, query: StreamingQuery, options: dict[str, str]) -> None:
        """From a start to an end, a crash or an error."""
        now = self.chance.random() < 0.4
        try:
            query.start(options, available_now=now)
            for _ in range(self.chance.randrange(1, 8)):
                crash = self.chance.choices(("", "planned", "read"), (12, 1, 1))[0]
                if not query.trigger(crash=crash) and now:
                    break
                self.moment("between triggers")
        except QueryFailed as error:
            query.truth.note(f"ended: {str(error)[:200]}")
        finally:
            query.stop()

    def _last(self, query: StreamingQuery, options: dict[str, str]) -> None:
        """Nothing happens any more, and the query reads to the end."""
        query.options = options
        if query.refiltered:
            options.pop("releaseWorkQueue", None)  # it would be refused
        for name in self.world.names:
            if self.world.truth.current(name) is None:
                self.world._create(name)
        try:
            query.start(options, available_now=True)
            query.drain()
            query.look()
            query.judge.finished(query.streams, query.filter)
        except QueryFailed as error:
            query.judge.problem(f"the last run ended: {str(error)[:300]}")
        finally:
            query.stop()


@contextlib.contextmanager
def impatient(seconds: float) -> Iterator[None]:
    """The source gives a server less time."""
    places = [(jetspark.spark.patience, "PATIENCE"), (jetspark.spark.source.stream_reader, "PATIENCE")]
    before = [getattr(module, name, None) for module, name in places]
    for module, name in places:
        setattr(module, name, seconds)
    try:
        yield
    finally:
        for (module, name), value in zip(places, before, strict=True):
            setattr(module, name, value)


def play(host: Host, seed: int) -> Result:
    """One run."""
    with impatient(PATIENCE if host.cluster is None else CLUSTER_PATIENCE):
        try:
            run = Run(host, seed)
        except Exception:
            return Result(seed, [_FAILED + traceback.format_exc()], Counter(), Counter(), [], "")
        return run.play()


@dataclass(frozen=True, slots=True)
class Lane:
    """Runs that follow each other on one server or cluster, in a process of their own or in this one."""

    seeds: tuple[int, ...]
    kind: str = ""
    """'': one server, 'cluster': three nodes, 'spark': one server, through a Spark session."""

    def __call__(self) -> list[Result]:
        if self.kind == "spark":
            return self._through_spark()
        found: list[Result] = []
        while len(found) < len(self.seeds):
            # A server on which the model itself failed is not used for the next run.
            with Host.replicated() if self.kind == "cluster" else Host.single() as host:
                for seed in self.seeds[len(found) :]:
                    found.append(play(host, seed))
                    if any(_FAILED in problem for problem in found[-1].problems):
                        break
        return found

    def _through_spark(self) -> list[Result]:
        from support.source_spark import SparkRun
        from support.spark_session import spark_session

        with (
            tempfile.TemporaryDirectory() as folder,
            spark_session(Path(folder)) as spark,
            Host.single() as host,
        ):
            path = Path(folder)
            return [SparkRun(host, seed, spark, path, random.Random(seed)).play() for seed in self.seeds]

    def command(self, seed: int) -> str:
        """What repeats a run."""
        return f"python tests/support/source_model.py --seed {seed}" + (
            f" --{self.kind}" if self.kind else ""
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs of the model test of the Spark source.")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--cluster", action="store_true", help="replicated streams on three nodes")
    parser.add_argument("--spark", action="store_true", help="through a Spark session")
    parser.add_argument("--quiet", action="store_true", help="print the log of runs with problems only")
    arguments = parser.parse_args()
    kind = "spark" if arguments.spark else "cluster" if arguments.cluster else ""
    failed = 0
    for first in range(arguments.seed, arguments.seed + arguments.runs, 10):
        seeds = range(first, min(first + 10, arguments.seed + arguments.runs))
        for result in Lane(tuple(seeds), kind)():
            failed += bool(result.problems)
            if result.problems or not arguments.quiet:
                print("\n".join(result.log))
            for problem in result.problems:
                print(f"seed {result.seed}: {problem}")
            print(f"seed {result.seed}: {len(result.problems)} problems; {result.flavour}")
            print(f"    {dict(result.events)} {dict(result.figures)}", flush=True)
    print(f"{failed} of {arguments.runs} runs with problems")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
