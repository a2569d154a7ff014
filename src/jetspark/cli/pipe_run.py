"""Runs a plan of ``jetspark pipe``: one streaming query for each sink, watched until the end.

Each sink has a query and a checkpoint of its own: they read the same streams independently, so a slow or
broken one does not hold back the others' progress, and each is exactly as safe as Spark makes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jetspark.cli import output
from jetspark.cli.errors import CommandFailed
from jetspark.cli.pipe_errors import brief, failed
from jetspark.cli.stopping import SIGNALS, Flag
from jetspark.spark.helpers import decode_json, route
from jetspark.spark.lag_listener import StreamLagListener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from jetspark.cli.pipe_checks import Plan
    from jetspark.cli.pipe_job import Sink

POLL = 0.1
#: Seconds for which Ctrl-C lets a micro-batch finish; what is cut off then is done again by the next run.
PATIENCE = 60.0
#: Seconds between two lines about a sink where nobody can see a line change.
QUIET = 2.0
SHOWN_ROWS = 20
CONSOLE_BATCH = 10_000
_METRIC = "jetspark"
_PAYLOAD = ("subject", "data", "headers", "msg_id", "ttl")


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
        out = int(((report.get("observedMetrics") or {}).get(_METRIC) or {}).get("rows") or 0)
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
    """From here on there is a JVM. Returns when the job has ended or was told to."""
    log = None if verbose else plan.notes / "spark.log"
    for text in plan.said:
        output.notice(text)
    output.notice(f"checkpoint: {plan.checkpoint} ({_how(plan)})")
    with _stopping() as stop:
        output.notice("starting Spark" + (f", which logs to {log}" if log else ""))
        spark = start_spark(plan, log)
        stop.arm()
        try:
            if stop.is_set():
                return
            tallies = [Tally(sink) for sink in plan.job.sinks]
            queries = _start(spark, plan, json)
            began = time.monotonic()
            try:
                _watch(queries, tallies, stop, plan, json)
            finally:
                for query in queries:
                    with contextlib.suppress(Exception):
                        query.stop()
            _totals(tallies, time.monotonic() - began, plan, json)
        finally:
            spark.stop()


def _how(plan: Plan) -> str:
    if plan.continues:
        return "this run continues there"
    return f"new, starts at {plan.job.start}; a rerun of the same job continues there"


def start_spark(plan: Plan, log: Path | None) -> SparkSession:
    """A session for the job. With ``log`` the JVM and its workers write there instead of to the terminal."""
    # The Python of this command, not whichever is first in PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    job = plan.job
    builder = SparkSession.builder.master(job.master).appName(f"jetspark pipe {job.label}")
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.sql.streaming.stopTimeout": "30s",
    }
    if job.master.startswith("local"):
        # 200 shuffle partitions are for clusters.
        defaults["spark.sql.shuffle.partitions"] = str(_cores(job.master))
        defaults["spark.driver.bindAddress"] = defaults["spark.driver.host"] = "127.0.0.1"
    for key, value in {**defaults, **dict(job.conf)}.items():
        builder = builder.config(key, value)
    with _into(log):
        try:
            spark = builder.getOrCreate()
        except Exception as error:
            tail = f"\nits log: {log}" if log else ""
            raise CommandFailed(f"Spark did not start: {brief(error)[0]}{tail}") from error
    spark.sparkContext.setLogLevel("WARN")
    return spark


def _cores(master: str) -> int:
    inside = master.partition("[")[2].partition("]")[0].partition(",")[0].strip()
    return int(inside) if inside.isdecimal() else (os.cpu_count() or 1) if inside == "*" else 1


@contextlib.contextmanager
def _into(log: Path | None) -> Iterator[None]:
    """What is started meanwhile inherits the log as its stdout and stderr."""
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


def _start(spark: SparkSession, plan: Plan, as_json: bool) -> list[StreamingQuery]:
    """Everything that can be wrong with schema, SQL and columns is found before the first query runs."""
    from pyspark.errors import PySparkException

    job = plan.job
    ready: list[tuple[Sink, DataFrame]] = []
    for sink in job.sinks:
        options = dict(plan.source)
        if sink.kind == "console":
            # Its rows come to the driver; so not too many at once.
            options.setdefault("maxMessagesPerTrigger", str(CONSOLE_BATCH))
        frame = spark.readStream.format("jetstream").options(**options).load()
        if plan.schema is not None:
            try:
                frame = decode_json(frame, plan.schema, into=job.json_into)
            except PySparkException as error:
                raise failed("--json-schema", error) from error
        try:
            if job.watermark is not None:
                frame = frame.withWatermark(*job.watermark)
            if job.unique:
                frame = frame.dropDuplicatesWithinWatermark(list(job.unique))
        except PySparkException as error:
            raise failed("--watermark and --unique", error) from error
        frame.createOrReplaceTempView("input")
        try:
            frame = spark.sql(job.sql)
        except PySparkException as error:
            raise failed("--sql", error) from error
        if not frame.isStreaming:
            raise CommandFailed("--sql: the result does not come from the view 'input'")
        ready.append((sink, _shape(frame, sink, plan)))
    queries: list[StreamingQuery] = []
    for sink, frame in ready:
        try:
            queries.append(_write(spark, frame, sink, plan, as_json))
            # One after the other: each starts a Python process, and Spark waits ten seconds for it at most.
            while queries[-1].isActive and queries[-1].status["message"].startswith("Initializing"):
                time.sleep(POLL / 5)
        except Exception as error:
            for query in queries:
                query.stop()
            raise failed(str(sink), error) from error
    return queries


def _shape(frame: DataFrame, sink: Sink, plan: Plan) -> DataFrame:
    """The columns as the sink can take them."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

    missing = [name for name in plan.job.partition_by if name not in frame.columns]
    if missing and (sink.is_file or sink.kind == "table"):
        raise CommandFailed(
            f"--partition-by: {missing[0]!r} is no column of the result\nthose are {', '.join(frame.columns)}"
        )
    if sink.kind == "jetstream":
        return _messages(frame, sink)
    if sink.kind in ("parquet", "table"):
        return frame
    columns = []
    for one in frame.schema.fields:
        column = F.col(_quoted(one.name))
        if isinstance(one.dataType, BinaryType):
            column = column.cast("string").alias(one.name)
        elif sink.kind == "csv" and isinstance(one.dataType, ArrayType | MapType | StructType):
            column = F.to_json(column).alias(one.name)
        columns.append(column)
    return frame.select(*columns)


def _messages(frame: DataFrame, sink: Sink) -> DataFrame:
    """Rows as messages: a body, a subject, and what else the sink knows."""
    from pyspark.sql import functions as F

    if sink.subject is not None and "{" in sink.subject:
        fields = [part.partition("}")[0] for part in sink.subject.split("{")[1:]]
        unknown = [name for name in fields if name.partition(".")[0] not in frame.columns]
        if unknown:
            raise CommandFailed(
                f"--to: {sink}: {unknown[0]!r} is no column of the result\n"
                f"those are {', '.join(frame.columns)}"
            )
    elif sink.subject is None and "subject" not in frame.columns:
        raise CommandFailed(
            f"--to: {sink} needs a subject: name one, as in jetstream:{sink.target}:SUBJECT\n"
            "or select it, as in concat('totals.', region) AS subject"
        )
    if "data" not in frame.columns:
        body = [name for name in frame.columns if name not in _PAYLOAD]
        if not body:
            raise CommandFailed(f"--to: {sink}: no column is left for the body of the messages")
        frame = frame.withColumn("data", F.to_json(F.struct(*map(_quoted, body))))
    if sink.subject is not None:
        template = sink.subject
        if "{" in template:
            frame = route(frame, template, column="_jetspark_subject").drop("subject")
            frame = frame.withColumnRenamed("_jetspark_subject", "subject")
        elif "subject" in frame.columns:
            frame = frame.drop("subject")
    return frame.select(*(name for name in _PAYLOAD if name in frame.columns))


def _write(spark: SparkSession, frame: DataFrame, sink: Sink, plan: Plan, as_json: bool) -> StreamingQuery:
    from pyspark.sql import functions as F

    job = plan.job
    frame = frame.observe(_METRIC, F.count(F.lit(1)).alias("rows"))
    writer = frame.writeStream.option("checkpointLocation", f"{plan.checkpoint}/{sink.slug}")
    writer = writer.outputMode(job.output_mode).trigger(**job.trigger.arguments())
    if job.partition_by and (sink.is_file or sink.kind == "table"):
        writer = writer.partitionBy(*job.partition_by)
    if sink.kind == "console":
        return writer.foreachBatch(_printer(sink, as_json)).start()
    if sink.kind == "jetstream":
        options = plan.sinks[sink]
        if job.output_mode == "append":
            return writer.format("jetstream").options(**options).start()
        return writer.foreachBatch(_updater(options)).start()
    if sink.kind == "table":
        _remember_table(spark, sink.target, frame.schema, job.partition_by)
        return writer.format("parquet").toTable(sink.target)
    if sink.kind == "csv":
        writer = writer.option("header", "true")
    return writer.format(sink.kind).start(sink.target)


def _remember_table(
    spark: SparkSession, name: str, schema: StructType, partition_by: tuple[str, ...]
) -> None:
    """Spark's catalog is in memory unless configured otherwise; the files of an earlier run are the table."""
    if spark.catalog.tableExists(name):
        return
    warehouse = spark.conf.get("spark.sql.warehouse.dir") or "spark-warehouse"
    folder = Path(warehouse.removeprefix("file:")) / name.rpartition(".")[2].lower()
    if (folder / "_spark_metadata").is_dir():
        columns = ", ".join(f"{_quoted(one.name)} {one.dataType.simpleString()}" for one in schema.fields)
        parts = f"PARTITIONED BY ({', '.join(map(_quoted, partition_by))})" if partition_by else ""
        spark.sql(f"CREATE TABLE {name} ({columns}) USING parquet {parts} LOCATION '{folder}'")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _updater(options: dict[str, str]) -> Callable[[DataFrame, int], None]:
    # The prefix makes ids follow from query, micro-batch and row: one that runs again stores nothing twice.
    options = {"msgIdPrefix": "update", **options}

    def write(batch: DataFrame, number: int) -> None:
        batch.write.format("jetstream").options(**options).mode("append").save()

    return write


def _printer(sink: Sink, as_json: bool) -> Callable[[DataFrame, int], None]:
    def show(batch: DataFrame, number: int) -> None:
        from pyspark.sql import functions as F

        names = batch.columns
        if as_json:
            whole = F.to_json(F.struct(*map(_quoted, names)), {"ignoreNullFields": "false"})
            for (text,) in batch.select(whole).collect():
                output.print_json_line({"type": "row", "batch": number, "row": json.loads(text)})
            return
        rows = batch.collect()
        if not rows:
            return
        cells = [["null" if cell is None else str(cell) for cell in row] for row in rows[:SHOWN_ROWS]]
        output.table(f"Batch {number}", names, cells, left=len(names))
        if len(rows) > SHOWN_ROWS:
            output.line(f"... and {output.number(len(rows) - SHOWN_ROWS)} more rows")
        sys.stdout.flush()

    return show


class _Stop(Flag):
    """Set by the first Ctrl-C or SIGTERM; a second one interrupts."""

    def arm(self) -> None:
        """Take the signals. Once more after Spark has started: it takes Ctrl-C for itself, to cancel jobs."""
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
    """Until all queries have ended, one has failed, or we are told to stop."""
    lags = StreamLagListener()
    parent = os.environ.get("JETSPARK_PIPE_PARENT")
    deadline: float | None = None
    with _display(tallies, plan, as_json) as show:
        while True:
            # Before its reports are read: one that ends meanwhile has said its last word only then.
            active = [query for query in queries if query.isActive]
            for query, tally in zip(queries, tallies, strict=True):
                for report in query.recentProgress:
                    if tally.take(json.loads(report.json), lags):
                        show(tally)
                error = None if query in active else query.exception()
                if error is not None:
                    raise failed(str(tally.sink), error) from error
            show(None)
            if not active:
                return
            if parent is not None and os.getppid() != int(parent):
                stop.set()  # whoever started us is gone
            if not stop.is_set():
                stop.wait(POLL)
                continue
            if deadline is None:
                deadline = time.monotonic() + PATIENCE
                output.notice(
                    "stopping: the micro-batch that runs is finished first; Ctrl-C again cuts it off"
                )
            for query in active:
                if not query.status["isTriggerActive"] or time.monotonic() > deadline:
                    query.stop()
            time.sleep(POLL / 5)


@contextlib.contextmanager
def _display(tallies: list[Tally], plan: Plan, as_json: bool) -> Iterator[Callable[[Tally | None], None]]:
    """A function that shows progress: of a sink that has news, or (None) of time that passes."""
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
