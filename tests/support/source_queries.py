"""Queries of the Spark source, without a Spark: the calls of Spark 4.3 in their order, in this process.

Between any two calls, and between any two record batches of a task, `moment` is called; who owns the query
lets things happen there. What goes from driver to executor is pickled, what goes into the checkpoint is JSON.
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

from jetspark.spark.data_source import DefaultSource
from jetspark.spark.source.data_loss import DataLossError
from jetspark.spark.source.schema import SCHEMA
from support.source_judge import Judge, Place, Plan, Row, Stretch, stretches
from support.source_truth import LOSSES, Cause, Life, Message, matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from support.source_judge import Listener
    from support.source_truth import Truth

Moment = Callable[[str], None]
_MOST_BATCHES = 200


class QueryFailed(Exception):
    """The query ended with an error. Data loss was judged already."""


class Reading:
    """What batch and streaming queries have in common: reading tasks, and hearing what is told."""

    def __init__(self, truth: Truth, judge: Judge, listener: Listener, moment: Moment, seed: float) -> None:
        self.truth, self.judge, self.listener, self.moment = truth, judge, listener, moment
        self.chance = random.Random(seed)
        self.options: dict[str, str] = {}
        self.plan: Plan | None = None

    @property
    def subjects(self) -> tuple[str, ...]:
        """The filter that is in force: of the planned batch, else of the options."""
        if self.plan is not None:
            return self.plan.subjects
        return self.filter

    @property
    def filter(self) -> tuple[str, ...]:
        return tuple(one for one in self.options.get("subjects", "").split(",") if one)

    @property
    def streams(self) -> list[str]:
        """The names of the streams that are asked for."""
        asked = self.options["stream"].split(",")
        return [name for name in self.truth.lives if any(fnmatchcase(name, one) for one in asked)]

    def call(self, what: str, do: Callable[[], Any]) -> Any:
        """One call of Spark: with the truth before and after it, and with what it told."""
        self.look()
        self.truth.tick(f"{self.judge.name} {what}")
        try:
            found = do()
        except StopIteration:
            raise
        except DataLossError as error:
            self._hear()
            self.look()
            if self.options.get("failOnDataLoss", "true") == "false":
                self.judge.problem(f"{what} failed in spite of failOnDataLoss=false: {error}")
            self.judge.alarm(error, self.subjects, self.plan)
            raise QueryFailed(str(error)) from error
        except Exception as error:
            self._hear()
            self.look()
            if not self._expected(error):
                self.judge.problem(f"{what}: {type(error).__name__} instead of rows or data loss: {error}")
            raise QueryFailed(f"{type(error).__name__}: {error}") from error
        self._hear()
        self.look()
        return found

    def _hear(self) -> None:
        for error, doubt in self.listener.take():
            self.judge.alarm(error, self.subjects, self.plan, doubt=doubt)

    def _expected(self, error: Exception) -> bool:
        """A named stream that is not there when a query starts is an error of its own."""
        return type(error).__name__ == "StreamsNotFound" and any(
            self.truth.current(name) is None for name in self.streams
        )

    def look(self) -> None:
        """Bring the books up to date: messages expire when they like, and a query may release its own."""
        release = self.options.get("releaseWorkQueue") == "true"
        for name in self.truth.lives:
            life = self.truth.current(name)
            ours = release and life is not None and life.config["retention"] == "workqueue"
            why = (lambda _: Cause.RELEASED) if ours else None
            for message in self.truth.look(name, why):
                if message.gone is Cause.RELEASED and message.number not in self.judge.committed:
                    self.judge.problem(f"released before it was committed: {message}")

    def tasks(self, make: Callable[[], Any], partitions: Sequence[Any]) -> list[Row]:
        """Read all partitions, in turns or one after the other, each on a reader of its own."""
        shipped = [pickle.loads(pickle.dumps(one)) for one in partitions]
        running = [(number, iter(make().read(one))) for number, one in enumerate(shipped)]
        together = self.chance.random() < 0.4
        rows: list[Row] = []
        try:
            while running:
                index = self.chance.randrange(len(running)) if together else 0
                number, task = running[index]
                try:
                    batch = self.call(f"reads on in task {number}", partial(next, task))
                except StopIteration:
                    running.pop(index)
                    self._hear()
                    self.look()
                    continue
                rows += _rows(batch)
                self.truth.note(f"{len(rows)} rows")
                self.moment("between record batches")
        finally:
            for _, task in running:
                task.close()
        return rows


@dataclass(slots=True)
class Logged:
    """A batch in the checkpoint."""

    start: dict[str, Any]
    end: dict[str, Any]
    plan: Plan


@dataclass(slots=True)
class Checkpoint:
    """What stays when a query ends."""

    batches: list[Logged] = field(default_factory=list)
    commits: int = 0


class StreamingQuery(Reading):
    """``spark.readStream``: `start`, then `trigger` again and again."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.checkpoint = Checkpoint()
        self._reader: Any = None
        self._start: dict[str, Any] = {}
        self._limit: Any = None
        self._available_now = False

    def start(self, options: Mapping[str, str], *, available_now: bool) -> None:
        """A new process: nothing is left but options and checkpoint."""
        self.options = dict(options)
        self.plan = None
        shown = {key: value for key, value in options.items() if key != "servers"}
        self.truth.tick(f"{self.judge.name} starts, available now {available_now}: {shown}")
        self._reader = self._make()
        self._available_now = available_now
        if available_now:
            self.call("prepareForTriggerAvailableNow", self._reader.prepareForTriggerAvailableNow)
            self.moment("after prepare")
        self._limit = self._reader.getDefaultReadLimit()
        log = self.checkpoint
        if not log.batches:
            self._initial()
        if len(log.batches) > log.commits:
            logged = log.batches[-1]
            if log.commits == 0:
                self.call("initialOffset", self._reader.initialOffset)
            self.plan = logged.plan
            self._run(logged)
        elif log.batches:
            self._start = log.batches[-1].end

    def _initial(self) -> None:
        offset = self.call("initialOffset", lambda: _through_json(self._reader.initialOffset()))
        self.moment("after initialOffset")
        again = self.call("initialOffset", lambda: _through_json(self._reader.initialOffset()))
        if offset != again:
            self.judge.problem(f"initialOffset moved from {offset} to {again}")
        self._start = offset
        self.judge.places.clear()
        earliest = self.options.get("startingPosition", "latest") == "earliest"
        for name, (created, _, begin) in stretches(offset).items():
            life = self.truth.life(name, created)
            assert life is not None
            self.judge.places[name] = Place(
                created, 1 if earliest else begin, beginning=earliest, ahead=begin > life.last + 1
            )

    def _make(self) -> Any:
        return DefaultSource(dict(self.options)).streamReader(SCHEMA)

    @property
    def refiltered(self) -> bool:
        """Whether it has read with other subjects than it has now: then it may release nothing."""
        return any(one.plan.subjects != self.filter for one in self.checkpoint.batches)

    def _expected(self, error: Exception) -> bool:
        if type(error).__name__ == "OptionError" and "would delete messages that were not read" in str(error):
            return self.refiltered
        return super()._expected(error)

    def stop(self) -> None:
        """As when a process is killed: the consumers stay, the connection goes."""
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

    def trigger(self, *, crash: str = "") -> bool:
        """One micro-batch; False when there was nothing for it. ``crash``: '', 'planned' or 'read'."""
        self.plan = None
        before = self.truth.step
        start = self._start
        end = self.call("latestOffset", lambda: _through_json(self._reader.latestOffset(start, self._limit)))
        self._reader.reportLatestOffset()
        if end == start:
            self._stale(before)
            return False
        log = self.checkpoint
        self.plan = Plan(self.filter, stretches(end), self.truth.step)
        self.truth.note(f"planned {self._shown(start, end)}")
        log.batches.append(Logged(start, end, self.plan))
        self.moment("after planning")
        if log.commits:
            done = log.batches[log.commits - 1].end
            self.call("commit", lambda: self._reader.commit(done))
        if crash == "planned":
            raise QueryFailed("crash after planning")
        self._run(log.batches[-1], crash=crash)
        return True

    def _run(self, logged: Logged, *, crash: str = "") -> None:
        partitions = self.call("partitions", lambda: self._reader.partitions(logged.start, logged.end))
        self.moment("before reading")
        rows = self.tasks(self._make, partitions)
        if crash == "read":
            raise QueryFailed("crash after reading")
        self.checkpoint.commits = len(self.checkpoint.batches)
        self.truth.tick(f"{self.judge.name} commits a batch of {len(rows)} rows")
        self.judge.commit(logged.plan, rows)
        self._start = logged.end
        self.plan = None
        self.moment("after the commit")

    def _stale(self, before: int) -> None:
        """No news, says the source. Then there was nothing when it was asked."""
        if self._available_now or "minMessagesPerTrigger" in self.options:
            return
        for life in self.truth.alive(self.streams):
            place = self.judge.places.get(life.name)
            if place is None or place.created != life.created:
                continue
            waiting = [life.now[one] for one in life.existing if one >= place.next]
            if any(one.stored_at <= before and matches(self.filter, one.subject) for one in waiting):
                self.judge.problem(
                    f"latestOffset has no news, but {life.name} had messages from {place.next} on"
                )

    def drain(self) -> None:
        """Trigger until there is nothing more, and check that there is not."""
        for _ in range(_MOST_BATCHES):
            if not self.trigger():
                break
        else:
            self.judge.problem(f"no end after {_MOST_BATCHES} batches")
        self.plan = None

    def _shown(self, start: dict[str, Any], end: dict[str, Any]) -> str:
        before = {name: one.next for name, one in stretches(start).items()}
        return ", ".join(
            f"{name} [{begin}, {following})"
            + (f" after {before[name]}" if before.get(name, begin) != begin else "")
            for name, (_, begin, following) in stretches(end).items()
        )


class BatchQuery(Reading):
    """``spark.read``: plan, read, done. ``start`` and ``end`` are sequences; None is the stream's edge."""

    def run(self, options: Mapping[str, str], *, start: int | None, end: int | None) -> None:
        self.options = dict(options)
        shown = {key: value for key, value in options.items() if key != "servers"}
        self.truth.tick(f"{self.judge.name} starts: {shown}")
        reader = DefaultSource(dict(self.options)).reader(SCHEMA)
        self.look()
        planned: dict[str, Stretch] = {}
        for life in self.truth.alive(self.streams):
            begin = life.first if start is None else start
            last = life.last + 1 if end is None else min(end, life.last + 1)
            self.judge.places[life.name] = Place(life.created, begin, beginning=start is None)
            planned[life.name] = Stretch(life.created, begin, max(begin, last))
        partitions = self.call("partitions", reader.partitions)
        self.plan = Plan(self.filter, planned, self.truth.step)
        ranges = ", ".join(f"{name} [{one.begin}, {one.next})" for name, one in planned.items())
        self.truth.note(f"planned {ranges}")
        self.moment("before reading")
        rows = self.tasks(lambda: DefaultSource(dict(self.options)).reader(SCHEMA), partitions)
        self.truth.tick(f"{self.judge.name} is done with {len(rows)} rows")
        self.judge.commit(self.plan, rows)


class LastPerSubjectQuery(Reading):
    """``startingPosition=last-per-subject``: one row for each subject, as of the planning."""

    def run(self, options: Mapping[str, str]) -> None:
        self.options = {**options, "startingPosition": "last-per-subject"}
        shown = {key: value for key, value in self.options.items() if key != "servers"}
        self.truth.tick(f"{self.judge.name} starts: {shown}")
        reader = DefaultSource(dict(self.options)).reader(SCHEMA)
        self.look()
        lives = self.truth.alive(self.streams)
        wanted = {(life.name, subject): one for life in lives for subject, one in newest(life).items()}
        wanted = {key: one for key, one in wanted.items() if matches(self.filter, one.subject)}
        self.judge.snapshot = list(wanted.values())
        for life in lives:
            self.judge.places[life.name] = Place(life.created, 1)
        partitions = self.call("partitions", reader.partitions)
        planned = {life.name: Stretch(life.created, 1, life.last + 1) for life in lives}
        self.plan = Plan(self.filter, planned, self.truth.step)
        self.truth.note(f"planned {len(wanted)} subjects up to {[one.last for one in lives]}")
        self.moment("before reading")
        rows = self.tasks(lambda: DefaultSource(dict(self.options)).reader(SCHEMA), partitions)
        self.truth.tick(f"{self.judge.name} is done with {len(rows)} rows")
        self._check(wanted, rows)

    def _check(self, wanted: Mapping[tuple[str, str], Message], rows: Sequence[Row]) -> None:
        judge = self.judge
        found: dict[tuple[str, str], Message] = {}
        judge.verdicts.figures["snapshots"] += 1
        for row in rows:
            message = judge._right(row)
            if message is None:
                continue
            key = (message.stream, message.subject)
            if key in found:
                judge.problem(f"subject twice in the snapshot: {message} and {found[key]}")
            found[key] = message
            if not matches(self.filter, message.subject):
                judge.problem(f"row of another subject than {self.filter}: {message}")
        judge.verdicts.figures["rows"] += len(rows)
        for key, last in wanted.items():
            got = found.get(key)
            if got is last:
                continue
            if last.gone is None:
                other = f"has {got}" if got is not None else "has no row"
                judge.problem(f"the snapshot {other} for {last}, which is there")
            elif got is None:
                # Its place may have been taken by a newer one, which the snapshot then shows.
                life = self.truth.life(last.stream, last.created)
                assert life is not None
                heirs = [one for one in life.ever() if one.subject == last.subject and one.gone is None]
                newer = [one for one in heirs if one.sequence > last.sequence]
                if newer and last.gone is Cause.REPLACED:
                    judge.problem(f"the snapshot has no row for {last.subject}, though {newer[-1]} is there")
                elif last.gone in LOSSES and not (life.queue and self.filter):
                    # Limits that run between planning and reading, as at the beginning of any stream.
                    lost = [one for key, one in wanted.items() if key not in found and key[0] == life.name]
                    alone = lost if len(lost) == 1 else []
                    if judge.told(last, alone, warned=life.limited or life.ttl):
                        judge.verdicts.figures["losses told"] += 1
                        continue
                    judge.problem(f"SILENT LOSS in the snapshot: {last} {last.gone}")


def newest(life: Life) -> dict[str, Message]:
    """The last message of each subject that is there."""
    return {life.now[sequence].subject: life.now[sequence] for sequence in sorted(life.existing)}


def _rows(batch: pa.RecordBatch) -> Iterable[Row]:
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    for stream, sequence, subject, data in zip(
        columns["stream"], columns["sequence"], columns["subject"], columns["data"], strict=True
    ):
        yield Row(stream, sequence, subject, data)


def _through_json(offset: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found
