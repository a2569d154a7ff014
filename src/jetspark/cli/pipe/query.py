"""From a plan of ``jetspark pipe`` to Spark's DataFrames and writers: one query for one sink."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jetspark.cli import output
from jetspark.cli.errors import CommandFailed
from jetspark.cli.pipe.checks import sink_arguments
from jetspark.cli.pipe.errors import failed
from jetspark.spark.helpers import decode_json, read_stream, route, write_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from jetspark.cli.pipe.checks import Plan
    from jetspark.cli.pipe.job import Job, Sink
    from jetspark.cli.pipe.places import Place
    from jetspark.cli.pipe.record import Record
    from jetspark.spark.helpers import SourceArguments

METRIC = "jetspark"
SHOWN_ROWS = 20
CONSOLE_BATCH = 10_000
_PAYLOAD = ("subject", "data", "headers", "msg_id", "ttl")
# Operators that keep state from one micro-batch to the next. A join does so when both sides are streams.
_STATEFUL = (
    "Aggregate",
    "Distinct",
    "Deduplicate",
    "FlatMapGroups",
    "TransformWith",
    "GlobalLimit",
    "LocalLimit",
)


def build(spark: SparkSession, plan: Plan, place: Place) -> DataFrame:
    """The rows of a sink, in its shape. Finds every mistake in schema, SQL and columns."""
    from pyspark.errors import PySparkException

    job = plan.job
    options: SourceArguments = {**plan.source, "starting_position": place.start}
    if place.sink.kind == "console":
        # Its rows go to the driver, so limit them.
        options.setdefault("max_messages_per_trigger", CONSOLE_BATCH)
    frame = read_stream(spark, **options)
    if place.record.json_schema is not None:
        try:
            frame = decode_json(frame, place.record.json_schema, into=job.json_into)
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
    return _shape(frame, place.sink, plan)


def as_before(plan: Plan, place: Place, before: Record) -> tuple[Plan, Place]:
    """The query of a sink as it was when its checkpoint was last used."""
    sink = replace(place.sink, subject=before.subject)
    job: Job = replace(
        plan.job,
        streams=before.streams,
        sql=before.sql,
        sinks=(sink,),
        subjects=before.subjects,
        json_into=before.json_into,
        watermark=before.watermark,
        unique=before.unique,
    )
    source: SourceArguments = {**plan.source, "stream": job.streams, "subjects": job.subjects}
    if not job.subjects:
        del source["subjects"]
    sinks = {sink: sink_arguments(plan.connection, sink)}
    return replace(plan, job=job, source=source, sinks=sinks), replace(place, sink=sink, record=before)


def is_stateful(frame: DataFrame) -> bool:
    """Whether the query keeps state, by its plan."""
    # Typed as Any: py4j has no types.
    waiting: list[Any] = [frame._jdf.queryExecution().analyzed()]
    while waiting:
        node = waiting.pop()
        if not node.isStreaming():
            continue
        children = [node.children().apply(index) for index in range(node.children().size())]
        if node.nodeName().startswith(_STATEFUL):
            return True
        if node.nodeName().startswith("Join") and all(child.isStreaming() for child in children):
            return True
        waiting += children
    return False


def columns_of(frame: DataFrame) -> tuple[tuple[str, str], ...]:
    """Names and types, for the record."""
    return tuple((one.name, one.dataType.simpleString()) for one in frame.schema.fields)


def _shape(frame: DataFrame, sink: Sink, plan: Plan) -> DataFrame:
    """The columns as the sink can take them."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

    missing = [name for name in plan.job.partition_by if name not in frame.columns]
    if missing and (sink.is_file or sink.kind == "table"):
        raise CommandFailed(
            f"--partition-by: {missing[0]!r} is not a column of the result\n"
            f"its columns are {', '.join(frame.columns)}"
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
    """Rows as messages: a body, a subject, and the other columns that the sink takes."""
    from pyspark.sql import functions as F

    template = sink.template
    if template is not None:
        unknown = [name for name in template.columns if name.partition(".")[0] not in frame.columns]
        if unknown:
            raise CommandFailed(
                f"--to: {sink}: {unknown[0]!r} is not a column of the result\n"
                f"its columns are {', '.join(frame.columns)}"
            )
    elif "subject" not in frame.columns:
        raise CommandFailed(
            f"--to: {sink} needs a subject: name one, as in jetstream:{sink.target}:SUBJECT\n"
            "or select it, as in concat('totals.', region) AS subject"
        )
    if "data" not in frame.columns:
        body = [name for name in frame.columns if name not in _PAYLOAD]
        if not body:
            raise CommandFailed(f"--to: {sink}: there is no column for the message body")
        frame = frame.withColumn("data", F.to_json(F.struct(*map(_quoted, body))))
    if sink.subject is not None and template is not None:
        if template.columns:
            frame = route(frame, sink.subject, column="_jetspark_subject").drop("subject")
            frame = frame.withColumnRenamed("_jetspark_subject", "subject")
        elif "subject" in frame.columns:
            frame = frame.drop("subject")
    return frame.select(*(name for name in _PAYLOAD if name in frame.columns))


def write(
    spark: SparkSession, frame: DataFrame, place: Place, plan: Plan, as_json: bool, trigger: dict[str, Any]
) -> StreamingQuery:
    """Start the query."""
    from pyspark.sql import functions as F

    job, sink = plan.job, place.sink
    frame = frame.observe(METRIC, F.count(F.lit(1)).alias("rows"))
    if sink.kind == "jetstream":
        return write_stream(
            frame,
            checkpoint_location=place.checkpoint,
            output_mode="append" if job.output_mode == "append" else "update",
            available_now=trigger.get("availableNow", False),
            once=trigger.get("once", False),
            processing_time=trigger.get("processingTime"),
            **plan.sinks[sink],
        )
    writer = frame.writeStream.option("checkpointLocation", place.checkpoint)
    writer = writer.outputMode(job.output_mode).trigger(**trigger)
    if job.partition_by and (sink.is_file or sink.kind == "table"):
        writer = writer.partitionBy(*job.partition_by)
    if sink.kind == "console":
        return writer.foreachBatch(_printer(sink, as_json)).start()
    if sink.kind == "table":
        _remember_table(spark, sink.target, frame.schema, job.partition_by)
        return writer.format("parquet").toTable(sink.target)
    if sink.kind == "csv":
        writer = writer.option("header", "true")
    return writer.format(sink.kind).start(sink.target)


def table_folder(spark: SparkSession, name: str) -> str | None:
    """Where the files of a table are, or will be; None when only its catalog knows."""
    if spark.catalog.tableExists(name):
        rows = spark.sql(f"DESCRIBE FORMATTED {name}").collect()
        found = [row[1] for row in rows if row[0] == "Location"]
        return found[0].removeprefix("file:") if found else None
    warehouse = spark.conf.get("spark.sql.warehouse.dir") or "spark-warehouse"
    return str(Path(warehouse.removeprefix("file:")) / name.rpartition(".")[2].lower())


def _remember_table(
    spark: SparkSession, name: str, schema: StructType, partition_by: tuple[str, ...]
) -> None:
    """Create the table over the files of an earlier run: by default Spark's catalog is in memory."""
    if spark.catalog.tableExists(name):
        return
    folder = table_folder(spark, name)
    if folder is not None and (Path(folder) / "_spark_metadata").is_dir():
        columns = ", ".join(f"{_quoted(one.name)} {one.dataType.simpleString()}" for one in schema.fields)
        parts = f"PARTITIONED BY ({', '.join(map(_quoted, partition_by))})" if partition_by else ""
        spark.sql(f"CREATE TABLE {name} ({columns}) USING parquet {parts} LOCATION '{folder}'")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


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
