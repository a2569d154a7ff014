"""Exactly once, proved by killing: `python tests/exactly_once.py` (100,000 messages, 10 kills, some minutes).

A Spark job (`tests/spark/exactly_once_job.py`) copies a stream to another stream and to a parquet table and
keeps totals, while messages are being published. It is killed with SIGKILL again and again: the driver with
its JVM and workers, at random moments of its work or of its start, or only one of its Python processes. At
the end each message must be in the table once and in the output stream once, and the totals must be right.

What it does is decided by the seed that it prints; when a kill hits is not, because nobody decides how fast a
machine is. `--control` adds the same copy without message ids, to see that the kills do harm.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from jetspark import StreamConfig, blocking
from jetspark.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

JOB = Path(__file__).parent / "spark" / "exactly_once_job.py"
KEYS = 40
QUERIES = ("copy", "totals", "table")
_PATIENCE = 120.0


@dataclass(slots=True)
class Outcome:
    """What was found. ``inside``: kills that left a micro-batch of some query begun and not committed."""

    seed: int
    kills: collections.Counter[str] = field(default_factory=collections.Counter)
    inside: int = 0
    problems: list[str] = field(default_factory=list)
    control_duplicates: int | None = None
    seconds: float = 0.0


class Publisher:
    """Publishes in the background, up to a share that grows with the kills, so that it never runs ahead."""

    def __init__(self, js: blocking.JetStream, messages: int) -> None:
        self._js, self._messages = js, messages
        self._allowed = self._done = 0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="publisher")
        self._thread.start()

    def allow(self, share: float) -> None:
        with self._changed:
            self._allowed = max(self._allowed, min(self._messages, int(self._messages * share)))
            self._changed.notify()

    def finish(self) -> None:
        self.allow(1.0)
        self._thread.join()

    def _run(self) -> None:
        with self._js.publisher() as publisher:
            while self._done < self._messages:
                with self._changed:
                    self._changed.wait_for(lambda: self._allowed > self._done)
                for number in range(self._done, min(self._done + 250, self._allowed)):
                    body = json.dumps({"n": number, "key": number % KEYS}).encode()
                    publisher.publish(f"in.{number % 7}", body, msg_id=str(number))
                    self._done = number + 1
                publisher.flush()
                time.sleep(0.05)  # a pace, not a synchronisation: many micro-batches instead of one


class Job:
    """The child process and all that it starts; its session tells them from everybody else's."""

    def __init__(self, url: str, folder: Path, *flags: str) -> None:
        self._folder = folder
        self._done = {query: last(folder, query, "commits") for query in QUERIES}
        self._begun = {query: last(folder, query, "offsets") for query in QUERIES}
        self._hurt = False
        self._log = folder / "job.log"
        with self._log.open("ab") as log:
            self._begin = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, str(JOB), url, str(folder), *flags],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def said(self) -> str:
        with self._log.open("rb") as log:
            log.seek(self._begin)
            return log.read().decode(errors="replace")

    @property
    def excused(self) -> bool:
        """Whether it died of something that is not its fault.

        Of a busy machine, because Spark gives each Python process ten seconds to start; or of the kill of one
        of its Python processes, because a query does not survive its planner. That shows seconds after the
        kill.
        """
        return self.process.poll() not in (None, 0) and (
            self._hurt or "failed to connect back" in self.said()
        )

    def wait_working(self, query: str, *, done: bool) -> bool:
        """Wait until a query has begun a micro-batch since the start, or done one; False: see `excused`."""
        deadline = time.monotonic() + _PATIENCE
        while last(self._folder, query, "commits") <= self._done[query] and (
            done or last(self._folder, query, "offsets") <= self._begun[query]
        ):
            ended = self.process.poll() is not None  # first: it may die while we look for an excuse
            if self.excused:
                return False
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"the job does not work:\n{self.said()[-6000:]}")
            time.sleep(0.05)
        return True

    def pids(self) -> Iterator[tuple[int, str]]:
        """The processes of its session: Spark's Python daemon leaves the process group, but not that."""
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                pid = int(entry.name)
                if os.getsid(pid) == self.process.pid:
                    yield pid, (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()

    def kill(self) -> None:
        """Everything, the JVM first: nothing may get a chance to tidy up."""
        for pid, _ in sorted(self.pids(), key=lambda one: "java" not in one[1]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def kill_python(self, chance: random.Random) -> bool:
        """One or all of Spark's Python processes: workers of tasks, planners of queries."""
        found = sorted(
            pid for pid, command in self.pids() if "pyspark.daemon" in command or "runner" in command
        )
        if not found:
            return False
        self._hurt = True
        for pid in found if chance.random() < 0.3 else [chance.choice(found)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return True


def last(folder: Path, query: str, log: str) -> int:
    """The last micro-batch in a query's log of those begun (offsets) or those done (commits)."""
    return max((int(one.name) for one in (folder / query / log).glob("[0-9]*")), default=-1)


def begun(folder: Path) -> bool:
    """Whether some query has a micro-batch in its log that is not committed."""
    return any(last(folder, query, "offsets") > last(folder, query, "commits") for query in QUERIES)


def prove(
    *,
    messages: int,
    kills: int,
    seed: int,
    trigger: int | None = None,
    control: bool = False,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Run it. Problems found are in the outcome; the list is empty when the promise was kept.

    ``trigger``: the messages of a micro-batch, at most.
    """
    started = time.monotonic()
    chance = random.Random(seed)
    outcome = Outcome(seed)
    with (
        tempfile.TemporaryDirectory(prefix="exactly-once-") as text,
        Server() as server,
        blocking.connect(server.url) as connection,
    ):
        folder = Path(text)
        js = connection.jetstream()
        for name in ("IN", "OUT", "TOTALS", "CONTROL"):
            js.create_stream(
                StreamConfig(
                    name=name, subjects=[f"{name.lower()}.>"], allow_direct=True, duplicate_window=600.0
                )
            )
        publisher = Publisher(js, messages)
        # Small enough for many micro-batches, large enough to be through in time.
        trigger = trigger or max(1000, messages // 16)
        flags = ["--trigger", str(trigger), *(["--control"] if control else [])]
        job: Job | None = None
        lives: list[tuple[str, ...]]
        try:
            # Lives of the job, in an order of the seed's choosing: cut off while it starts, or at work, where
            # one of its Python processes goes first and then all of it.
            lives = [("python", "driver")] * max(1, round(kills * 0.3))
            lives += [("start",)] * (kills - 2 * len(lives))
            chance.shuffle(lives)
            kinds = [kind for life in lives for kind in life][:kills]
            for number, kind in enumerate(kinds):
                publisher.allow((number + 1) / (kills + 1))
                if job is not None and job.process.poll() is not None:
                    job = None  # a query did not survive the kill of its planner
                if kind == "start" and job is not None:
                    job.kill()
                    job = None
                if job is None:
                    job = Job(server.url, folder, *flags)
                if kind == "start":
                    time.sleep(chance.uniform(1.0, 10.0))
                else:
                    query, done = chance.choice(QUERIES), chance.random() < 0.5
                    while not job.wait_working(query, done=done):
                        job = Job(server.url, folder, *flags)
                    time.sleep(chance.uniform(0.0, 2.0))
                # While it starts, what is begun is what the kill before left behind.
                cut = kind != "start" and begun(folder)
                if kind != "python" or not job.kill_python(chance):
                    job.kill()
                    job = None
                outcome.kills[kind] += 1
                outcome.inside += cut
                say(
                    f"{time.monotonic() - started:5.0f} s  kill {number + 1}/{kills}: {kind}"
                    f"{', inside a micro-batch' if cut else ''}; {js.get_stream('IN').info().state.messages}"
                    f" published, {js.get_stream('OUT').info().state.messages} copied"
                )
            if job is not None:
                job.kill()
            publisher.finish()
            for final in (False, False, True):
                job = Job(server.url, folder, *flags, "--finish")
                if job.process.wait(timeout=_PATIENCE * 2) == 0:
                    break
                if final or not job.excused:
                    raise AssertionError(f"seed {seed}: the last run failed:\n{job.said()[-6000:]}")
            _check(js, job.said(), messages, control, outcome)
        finally:
            if job is not None:
                job.kill()
            publisher.finish()
    outcome.seconds = time.monotonic() - started
    return outcome


def _check(js: blocking.JetStream, said: str, messages: int, control: bool, outcome: Outcome) -> None:
    lines = [line for line in said.splitlines() if line.startswith("TABLE ")]
    table = json.loads(lines[-1].removeprefix("TABLE "))
    wanted = {"rows": messages, "distinct": messages, "sequences": messages, "min": 0, "max": messages - 1}
    if table != wanted:
        outcome.problems.append(f"table: {table}, wanted {wanted}")
    for name in ("OUT", "CONTROL") if control else ("OUT",):
        counts = collections.Counter(json.loads(one.data)["n"] for one in js.get_stream(name).get_msgs(seq=1))
        lost = [number for number in range(messages) if number not in counts]
        twice = [number for number, count in counts.items() if count > 1]
        if lost:
            outcome.problems.append(f"{name}: {len(lost)} lost, the first {lost[:5]}")
        if name == "CONTROL":
            outcome.control_duplicates = len(twice)
        elif twice or len(counts) != messages:
            outcome.problems.append(f"{name}: {len(twice)} stored twice, the first {sorted(twice)[:5]}")
    totals: dict[int, list[tuple[int, int]]] = collections.defaultdict(list)
    for one in js.get_stream("TOTALS").get_msgs(seq=1):
        body = json.loads(one.data)
        totals[int(one.subject.rpartition(".")[2])].append((body["count"], body["sum"]))
    for key in range(KEYS):
        numbers = range(key, messages, KEYS)
        history = totals[key]
        if not history or history[-1] != (len(numbers), sum(numbers)):
            outcome.problems.append(f"totals of {key}: {history[-1:]}, wanted {len(numbers)}, {sum(numbers)}")
        # A replayed micro-batch that wrote other totals, or the same again, would show here.
        if any(after[0] <= before[0] for before, after in itertools.pairwise(history)):
            outcome.problems.append(f"totals of {key} do not grow: {history}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--control", action="store_true")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    outcome = prove(
        messages=arguments.messages,
        kills=arguments.kills,
        seed=arguments.seed,
        control=arguments.control,
        say=lambda text: print(text, flush=True),
    )
    print(
        f"{sum(outcome.kills.values())} kills ({dict(outcome.kills)}), {outcome.inside} inside a "
        f"micro-batch, {arguments.messages} messages, {outcome.seconds:.0f} s, seed {outcome.seed}"
    )
    if outcome.control_duplicates is not None:
        print(f"without message ids {outcome.control_duplicates} messages were stored twice")
    for problem in outcome.problems:
        print("PROBLEM " + problem)
    print("FAILED" if outcome.problems else "each message once: in the table, in the stream, in the totals")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
