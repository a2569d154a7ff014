"""Runs a plan of ``jetspark pipe``: one streaming query for each sink, watched until the end.

Each sink has its own query and checkpoint. They read the same streams independently, so a slow or broken
one does not hold back the others, and each is exactly as safe as Spark makes it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from jetspark.cli import output
from jetspark.cli.errors import CommandFailed
from jetspark.cli.pipe.errors import brief, failed
from jetspark.cli.pipe.files import is_remote
from jetspark.cli.pipe.places import check_target, refuse, save
from jetspark.cli.pipe.query import METRIC, as_before, build, columns_of, is_stateful, table_folder, write
from jetspark.cli.pipe.record import UNCHANGED, compare
from jetspark.cli.stopping import SIGNALS, Flag
from jetspark.spark.lag_listener import StreamLagListener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from jetspark.cli.pipe.checks import Plan
    from jetspark.cli.pipe.job import Sink
    from jetspark.cli.pipe.places import Place

POLL = 0.1
#: Seconds for which Ctrl-C lets a micro-batch finish; the next run repeats an interrupted one.
PATIENCE = 60.0
#: Seconds between two lines about a sink when stderr is not a terminal.
QUIET = 2.0
#: Seconds for which a failure waits for a signal that would explain it.
SIGNAL_DELAY = 0.5
_AGAIN = "the next run repeats the current micro-batch"


@dataclass(slots=True)
class Tally:
    """What one sink has done in this run."""

    sink: Sink
    batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    last_batch: int | None = None
    rate: float = 0.0
    lag: int | None = None
    seen: set[str] = field(default_factory=set)
    told: float = 0.0

    def take(self, report: dict[str, Any], lags: StreamLagListener) -> bool:
        """Count a progress report of Spark; False when it was known or empty."""
        mark = f"{report['batchId']}@{report['timestamp']}"
        if mark in self.seen:
            return False
        self.seen.add(mark)
        found = lags.take(report)
        if found:
            self.lag = sum(one.lag for one in found)
        rows = int(report.get("numInputRows") or 0)
        out = int(((report.get("observedMetrics") or {}).get(METRIC) or {}).get("rows") or 0)
        if not rows and not out:
            return False
        self.batches += 1
        self.last_batch = int(report["batchId"])
        self.rows_in += rows
        self.rows_out += out
        self.rate = float(report.get("processedRowsPerSecond") or 0.0)
        return True

    def facts(self) -> dict[str, Any]:
        """The figures, under stable names."""
        return {
            "sink": str(self.sink),
            "batch": self.last_batch,
            "batches": self.batches,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "rows_per_second": round(self.rate, 1),
            "lag": self.lag,
        }

    def line(self) -> str:
        """The same in a line."""
        if self.last_batch is None:
            return f"{self.sink}: waiting for messages"
        lag = "-" if self.lag is None else output.number(self.lag)
        return (
            f"{self.sink}: batch {self.last_batch}, {output.number(self.rows_in)} in, "
            f"{output.number(self.rows_out)} out, {output.short_number(self.rate)} rows/s, lag {lag}"
        )


def run_plan(plan: Plan, *, json: bool, verbose: bool) -> None:
    """Run the job, with a JVM from here on. Returns when the job has ended or was stopped."""
    log = None if verbose else plan.notes / "spark.log"
    for text in plan.said:
        output.notice(text)
    _describe(plan, plan.places())
    with _stopping() as stop:
        output.notice("starting Spark" + (f", which logs to {log}" if log else ""))
        spark = start_spark(plan, log)
        stop.arm()
        try:
            if not stop.is_set():
                with _jvm_may_end(stop, log):
                    _run(spark, plan, stop, log, json)
        finally:
            with contextlib.suppress(*_jvm_errors()):
                spark.stop()


def _run(spark: SparkSession, plan: Plan, stop: Flag, log: Path | None, as_json: bool) -> None:
    ready = _prepare(spark, plan)
    if is_remote(plan.checkpoint):
        _describe(plan, [place for place, _ in ready])
    for place, _ in ready:
        if place.comparison.changed:
            output.notice(f"{place.sink}: {', '.join(place.comparison.changed)} changed; it continues")
        if place.unfinished is not None:
            _finish(spark, plan, place, stop)
    if stop.is_set():
        return
    tallies = [Tally(sink) for sink in plan.job.sinks]
    queries = _start(spark, plan, ready, as_json)
    began = time.monotonic()
    try:
        with _jvm_may_end(stop, log):
            _watch(queries, tallies, stop, plan, as_json)
    finally:
        for query in queries:
            with contextlib.suppress(Exception):
                query.stop()
    _totals(tallies, time.monotonic() - began, plan, as_json)


def _jvm_errors() -> tuple[type[Exception], ...]:
    """What calls raise while the JVM ends: Spark's own errors, then those of py4j's connection."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return Py4JError, PySparkException, ConnectionError


@contextlib.contextmanager
def _jvm_may_end(stop: Flag, log: Path | None) -> Iterator[None]:
    """A service manager signals all processes, Spark included. Then the JVM ends before we stop it."""
    try:
        yield
    except _jvm_errors() as error:
        if _told_to_stop(stop):
            output.notice(f"the signal ended Spark, too; {_AGAIN}")
        elif _jvm_has_ended():
            tail = f"\nits log: {log}" if log else ""
            raise CommandFailed(f"Spark's JVM ended unexpectedly{tail}") from error
        else:
            raise


def _jvm_has_ended() -> bool:
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    return process is None or process.poll() is not None


def _told_to_stop(stop: Flag) -> bool:
    """Whether a signal has arrived or arrives now: it may reach Spark a moment before us."""
    deadline = time.monotonic() + SIGNAL_DELAY
    while not stop.is_set() and time.monotonic() < deadline:
        stop.wait(POLL / 5)
    return stop.is_set()


def _describe(plan: Plan, places: list[Place]) -> None:
    """Print where the progress is kept, and where each sink continues."""
    new = "; a rerun of the same job continues there"
    said = {place.said for place in places}
    if len(said) != 1:
        output.notice(f"checkpoint: {plan.checkpoint}")
        for place in places:
            output.notice(f"  {place.sink}: {place.said}{'' if place.continues else new}")
        return
    text = said.pop()
    how = (
        f"{text}{new}"
        if not places[0].continues
        else text.replace("continues", "this run continues there", 1)
    )
    output.notice(f"checkpoint: {plan.checkpoint} ({how})")


def start_spark(plan: Plan, log: Path | None) -> SparkSession:
    """A session for the job. With ``log`` the JVM and its workers write there instead of to the terminal."""
    # The Python of this command, not whichever is first in PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    job = plan.job
    settings = {
        "spark.master": job.master,
        "spark.app.name": f"jetspark pipe {job.label}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.sql.streaming.stopTimeout": "30s",
    }
    if job.master.startswith("local"):
        # 200 shuffle partitions are for clusters.
        settings["spark.sql.shuffle.partitions"] = str(_cores(job.master))
        settings["spark.driver.bindAddress"] = settings["spark.driver.host"] = "127.0.0.1"
    settings |= dict(job.conf)
    # py4j logs a traceback to the root logger when the JVM ends. Spark logs JSON for each error of a query.
    # Our own messages replace them.
    logging.getLogger().addFilter(_not_py4j)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    with _into(log):
        try:
            _launch(settings)
            builder = SparkSession.builder
            for key, value in settings.items():
                builder = builder.config(key, value)
            spark = builder.getOrCreate()
        except Exception as error:
            tail = f"\nits log: {log}" if log else ""
            raise CommandFailed(f"Spark did not start: {brief(error)[0]}{tail}") from error
    spark.sparkContext.setLogLevel("WARN")
    return spark


def _not_py4j(record: logging.LogRecord) -> bool:
    return f"{os.sep}py4j{os.sep}" not in record.pathname


def _launch(settings: dict[str, str]) -> None:
    """Start the JVM in its own session.

    A signal to our process group (``timeout``, Ctrl-C) then reaches us alone. Spark and its Python workers
    finish their work. The JVM still ends with us, however we end: it watches a pipe to us.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:
        conf = SparkConf().setAll(list(settings.items()))
        launch: Any = launch_gateway  # which has no types
        SparkContext(conf=conf, gateway=launch(conf, {"start_new_session": True}))


def _cores(master: str) -> int:
    inside = master.partition("[")[2].partition("]")[0].partition(",")[0].strip()
    return int(inside) if inside.isdecimal() else (os.cpu_count() or 1) if inside == "*" else 1


@contextlib.contextmanager
def _into(log: Path | None) -> Iterator[None]:
    """Processes started inside inherit the log as stdout and stderr."""
    if log is None:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    try:
        with open(log, "ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        yield
    finally:
        for number, saved in enumerate(kept, start=1):
            os.dup2(saved, number)
            os.close(saved)


def _prepare(spark: SparkSession, plan: Plan) -> list[tuple[Place, DataFrame]]:
    """Build all queries and compare them with their checkpoints, before the first one runs."""
    ready: list[tuple[Place, DataFrame]] = []
    for place in plan.places(spark):
        frame = build(spark, plan, place)
        record = msgspec.structs.replace(place.record, stateful=is_stateful(frame), columns=columns_of(frame))
        comparison = UNCHANGED if place.before is None else compare(place.before, record)
        refuse(place.sink, comparison, place.checkpoint)
        place = replace(place, record=record, comparison=comparison)
        if place.sink.kind == "table" and (folder := table_folder(spark, place.sink.target)) is not None:
            check_target(place, folder, spark)
        ready.append((place, frame))
    return ready


def _start(
    spark: SparkSession, plan: Plan, ready: list[tuple[Place, DataFrame]], as_json: bool
) -> list[StreamingQuery]:
    queries: list[StreamingQuery] = []
    for place, frame in ready:
        save(place, spark)
        try:
            queries.append(write(spark, frame, place, plan, as_json, plan.job.trigger.arguments()))
            # One at a time: each starts a Python process, for which Spark waits ten seconds at most.
            while queries[-1].isActive and queries[-1].status["message"].startswith("Initializing"):
                time.sleep(POLL / 5)
        except Exception as error:
            for query in queries:
                query.stop()
            raise failed(str(place.sink), error) from error
    return queries


def _finish(spark: SparkSession, plan: Plan, place: Place, stop: Flag) -> None:
    """Finish an interrupted micro-batch with the query that began it.

    The new query may make other rows of the same messages, which would be stored beside the old ones.
    """
    assert place.before is not None
    output.notice(
        f"{place.sink}: micro-batch {place.unfinished} was interrupted; the old job finishes it first"
    )
    old_plan, old_place = as_before(plan, place, place.before)
    try:
        # 'once' runs what was planned and nothing more.
        query = write(spark, build(spark, old_plan, old_place), old_place, old_plan, False, {"once": True})
        while query.isActive:
            if stop.wait(POLL):
                query.stop()
        error = None if stop.is_set() else query.exception()
        if error is not None:
            raise failed(str(place.sink), error)
    except CommandFailed as error:
        first = str(error).splitlines()[0]
        raise CommandFailed(
            f"micro-batch {place.unfinished} was interrupted, and the old job can't finish it: {first}\n"
            f"{place.sink} may have some of its rows. Undo the change, or use --restart-from committed, "
            "which writes the whole micro-batch again"
        ) from error


class _Stop(Flag):
    """Set by the first Ctrl-C or SIGTERM; a second one interrupts."""

    def arm(self) -> None:
        """Install the handlers. Again after Spark has started, which handles Ctrl-C itself to cancel jobs."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        if self.is_set():
            raise KeyboardInterrupt
        self.set()


@contextlib.contextmanager
def _stopping() -> Iterator[_Stop]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    stop = _Stop()
    stop.arm()
    try:
        yield stop
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _watch(
    queries: list[StreamingQuery], tallies: list[Tally], stop: Flag, plan: Plan, as_json: bool
) -> None:
    """Watch until all queries have ended, one has failed, or a stop is requested."""
    lags = StreamLagListener()
    parent = os.environ.get("JETSPARK_PIPE_PARENT")
    deadline: float | None = None
    cut_off: list[StreamingQuery] = []
    with _display(tallies, plan, as_json) as show:
        while True:
            # Before the reports are read: a query that ends meanwhile may still report.
            active = [query for query in queries if query.isActive]
            for query, tally in zip(queries, tallies, strict=True):
                for report in query.recentProgress:
                    if tally.take(json.loads(report.json), lags):
                        show(tally)
                error = None if query in active or query in cut_off else query.exception()
                if error is not None:
                    if not _told_to_stop(stop):
                        raise failed(str(tally.sink), error) from error
                    # Its Python workers may have got the signal, too.
                    cut_off.append(query)
                    output.notice(f"{failed(str(tally.sink), error)}\nthe query was interrupted; {_AGAIN}")
            show(None)
            if not active:
                return
            if parent is not None and os.getppid() != int(parent):
                stop.set()  # our parent process is gone
            if not stop.is_set():
                stop.wait(POLL)
                continue
            if deadline is None:
                deadline = time.monotonic() + PATIENCE
                output.notice("stopping after the current micro-batch; Ctrl-C again interrupts it")
            for query in active:
                if not query.status["isTriggerActive"] or time.monotonic() > deadline:
                    query.stop()
            time.sleep(POLL / 5)


@contextlib.contextmanager
def _display(tallies: list[Tally], plan: Plan, as_json: bool) -> Iterator[Callable[[Tally | None], None]]:
    """A function that shows progress: of a sink with news, or (None) as time passes."""
    if as_json:
        yield (
            lambda tally: (
                None if tally is None else output.print_json_line({"type": "progress", **tally.facts()})
            )
        )
        return
    prints = any(sink.kind == "console" for sink in plan.job.sinks) and output.is_terminal()
    if prints or not output.is_terminal(stderr=True):

        def tell(tally: Tally | None) -> None:
            if tally is not None and time.monotonic() - tally.told >= QUIET:
                tally.told = time.monotonic()
                output.notice(tally.line())

        yield tell
        return
    from rich.live import Live
    from rich.text import Text

    with Live(console=output.console(stderr=True), auto_refresh=False, transient=True) as live:

        def draw(tally: Tally | None) -> None:
            live.update(Text("\n".join(one.line() for one in tallies)), refresh=True)

        yield draw


def _totals(tallies: list[Tally], seconds: float, plan: Plan, as_json: bool) -> None:
    if as_json:
        output.print_json_line(
            {
                "type": "totals",
                "seconds": round(seconds, 3),
                "checkpoint": plan.checkpoint,
                "sinks": [tally.facts() for tally in tallies],
            }
        )
        return
    for tally in tallies:
        lag = "" if tally.lag is None else f", lag {output.number(tally.lag)}"
        output.notice(
            f"{tally.sink}: {output.number(tally.rows_in)} rows read, "
            f"{output.number(tally.rows_out)} written in {output.number(tally.batches)} "
            f"batch{'es' if tally.batches != 1 else ''}, "
            f"{output.seconds_text(seconds)}{lag}"
        )
