"""Publishes, starts the pipeline of a scenario, kills it, starts it again, and lets the scenario count."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from exactly_once.checks import last
from exactly_once.scenario import KEYS, Run, Scenario
from jetspark import StreamConfig, blocking
from jetspark.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Safety nets with room for a busy machine, where the start of a JVM alone may take a minute.
_PATIENCE = 300.0
_LAST_LIFE = 600.0
# A job that stores nothing for so long has nothing to store.
_IDLE = 30.0


@dataclass(slots=True)
class Outcome:
    """What was found. ``inside``: kills that left a micro-batch of some query begun and not committed."""

    seed: int
    kills: collections.Counter[str] = field(default_factory=collections.Counter)
    inside: int = 0
    problems: list[str] = field(default_factory=list)
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

    def __init__(self, scenario: Scenario, life: int, *, finish: bool = False) -> None:
        command = scenario.command(life, finish=finish)
        self._checkpoints = scenario.checkpoints()
        self._done = {query: last(folder, "commits") for query, folder in self._checkpoints.items()}
        self._begun = {query: last(folder, "offsets") for query, folder in self._checkpoints.items()}
        self._hurt = False
        self._log = scenario.run.folder / "job.log"
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        with self._log.open("ab") as log:
            self._begin = log.tell()
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=scenario.run.folder,
                env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), **scenario.environment()},
                start_new_session=True,
            )
        self._sessions = {self.process.pid}

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

    def wait_working(self, share: float, *, done: bool) -> bool:
        """Wait until a query has begun a micro-batch since the start, or done one; False: see `excused`.

        ``share`` (0 <= share < 1) chooses the query among those of this life, which may differ from the
        queries of the life before.
        """
        query = sorted(self._checkpoints)[int(share * len(self._checkpoints))]
        deadline = time.monotonic() + _PATIENCE
        while not self._works(query, done):
            ended = self.process.poll() is not None  # first: it may die while we look for an excuse
            if self.excused:
                return False
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"the job does not work:\n{self.said()[-6000:]}")
            time.sleep(0.05)
        return True

    def _works(self, query: str, done: bool) -> bool:
        folder = self._checkpoints[query]
        if last(folder, "commits") > self._done[query]:
            return True
        return not done and last(folder, "offsets") > self._begun[query]

    def is_inside(self) -> bool:
        """Whether one of its queries has begun a micro-batch that is not committed."""
        return any(last(folder, "offsets") > last(folder, "commits") for folder in self._checkpoints.values())

    def pids(self) -> Iterator[tuple[int, str]]:
        """The processes of its session: Spark's Python daemon leaves the process group, but not that.

        And those of sessions that its processes have begun: `jetspark pipe` gives the JVM one of its own.
        """
        found: list[tuple[int, int, int, str]] = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                pid = int(entry.name)
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append((pid, parent, os.getsid(pid), command))
        session_of = {pid: session for pid, _, session, _ in found}
        for pid, parent, session, _ in sorted(found):
            if session == pid and session_of.get(parent) in self._sessions:
                self._sessions.add(session)
        yield from ((pid, command) for pid, _, session, command in found if session in self._sessions)

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


def wait_stored(stream: blocking.Stream, job: Job) -> None:
    """Wait until the job has stored a row from now on: the kill that follows hits a half-written micro-batch.

    However late it is on a busy machine. A job that has ended, or has nothing to write, is not waited for.
    """
    before, deadline = stream.info().state.messages, time.monotonic() + _IDLE
    while stream.info().state.messages == before:
        if job.process.poll() is not None or time.monotonic() > deadline:
            return
        time.sleep(0.02)


def prove(
    kind: type[Scenario],
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
        for name in ("IN", *kind.streams):
            js.create_stream(
                StreamConfig(
                    name=name, subjects=[f"{name.lower()}.>"], allow_direct=True, duplicate_window=600.0
                )
            )
        publisher = Publisher(js, messages)
        # Small enough for many micro-batches, large enough to be through in time.
        trigger = trigger or max(1000, messages // 16)
        scenario = kind(Run(server.url, folder, messages, trigger, control))
        started_lives = itertools.count()
        job: Job | None = None
        lives: list[tuple[str, ...]]
        try:
            # Lives of the job, in an order of the seed's choosing: cut off while it starts, or at work, where
            # one of its Python processes goes first and then all of it.
            lives = [("python", "driver")] * max(1, round(kills * 0.3))
            lives += [("start",)] * (kills - 2 * len(lives))
            chance.shuffle(lives)
            planned = [kill for life in lives for kill in life][:kills]
            for number, kill in enumerate(planned):
                publisher.allow((number + 1) / (kills + 1))
                if job is not None and job.process.poll() is not None:
                    job.kill()  # a query did not survive the kill of its planner; its JVM may, for a moment
                    job = None
                if kill == "start" and job is not None:
                    job.kill()
                    job = None
                if job is None:
                    job = Job(scenario, next(started_lives))
                if kill == "start":
                    time.sleep(chance.uniform(1.0, 10.0))
                else:
                    share, done = chance.random(), chance.random() < 0.5
                    while not job.wait_working(share, done=done):
                        job.kill()
                        job = Job(scenario, next(started_lives))
                    if chance.random() < 0.5:
                        wait_stored(js.get_stream(kind.streams[0]), job)
                    else:
                        time.sleep(chance.uniform(0.0, 2.0))
                # While it starts, what is begun is what the kill before left behind.
                cut = kill != "start" and job.is_inside()
                if kill != "python" or not job.kill_python(chance):
                    job.kill()
                    job = None
                outcome.kills[kill] += 1
                outcome.inside += cut
                say(
                    f"{time.monotonic() - started:5.0f} s  kill {number + 1}/{kills}: {kill}"
                    f"{', inside a micro-batch' if cut else ''}; {js.get_stream('IN').info().state.messages}"
                    f" published, {js.get_stream(kind.streams[0]).info().state.messages} written"
                )
            if job is not None:
                job.kill()
            publisher.finish()
            for final in (False, False, True):
                job = Job(scenario, next(started_lives), finish=True)
                if job.process.wait(timeout=_LAST_LIFE) == 0:
                    break
                if final or not job.excused:
                    raise AssertionError(f"seed {seed}: the last run failed:\n{job.said()[-6000:]}")
            assert job is not None
            outcome.problems += scenario.check(js, job.said())
        finally:
            if job is not None:
                job.kill()
            publisher.finish()
    outcome.seconds = time.monotonic() - started
    return outcome
