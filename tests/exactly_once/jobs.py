"""What the child processes of scenarios share: arguments, a session, the source, and waiting."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from exactly_once.scenario import SETTINGS
from jetspark.spark import read_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class Arguments:
    """``URL FOLDER [--trigger N] [--control] [--finish] [--queries NAME ...]``."""

    url: str
    folder: Path
    trigger: int
    control: bool
    finish: bool
    queries: list[str]


def arguments() -> Arguments:
    """What the scenario gave."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--finish", action="store_true")
    parser.add_argument("--trigger", type=int, default=3000, help="messages of a micro-batch, at most")
    parser.add_argument("--queries", nargs="*", default=[], help="those to run, where there is a choice")
    return Arguments(**vars(parser.parse_args()))


def session(*, connect: bool = False) -> SparkSession:
    """A session in this process, or behind a Spark Connect server that this process starts."""
    # A task may fail four times before its query does: a killed Python worker is then only a retry.
    builder = SparkSession.builder.appName("exactly-once")
    builder = builder.remote("local[2,4]") if connect else builder.master("local[2,4]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if not connect:
        spark.sparkContext.setLogLevel("OFF")
    return spark


def source(spark: SparkSession, given: Arguments) -> DataFrame:
    """The stream IN as a streaming DataFrame: sequence, subject, data."""
    return read_stream(
        spark,
        servers=given.url,
        stream="IN",
        schema="sequence long, subject string, data binary",
        starting_position="earliest",
        min_partitions=2,
        max_messages_per_trigger=given.trigger,
    )


def foreach(
    rows: DataFrame, function: Callable[[DataFrame, int], None], name: str, given: Arguments
) -> StreamingQuery:
    """Start a query with a function for each micro-batch."""
    writer = rows.writeStream.foreachBatch(function).queryName(name)
    writer = writer.option("checkpointLocation", str(given.folder / name))
    return (writer.trigger(availableNow=True) if given.finish else writer).start()


def begin(query: StreamingQuery) -> StreamingQuery:
    """Wait until it has started, so that queries start one after the other.

    Spark gives the Python process of a query ten seconds to start.
    """
    while query.isActive and query.status["message"] == "Initializing sources":
        time.sleep(0.05)
    return query


def run_on(spark: SparkSession, queries: Sequence[StreamingQuery], *, finish: bool) -> None:
    """Until all queries have read what is there (``finish``), or until this process is killed."""
    print("STARTED", flush=True)
    if not finish:
        spark.streams.awaitAnyTermination()  # raises what ended a query, which ends this process
        raise SystemExit("a query ended by itself")
    for query in queries:
        query.awaitTermination()


def say_table(rows: DataFrame) -> None:
    """Print what :func:`exactly_once.checks.table_right` reads; column ``n`` has the numbers."""
    found = rows.agg(
        F.count("*").alias("rows"),
        F.countDistinct("n").alias("distinct"),
        F.min("n").alias("min"),
        F.max("n").alias("max"),
    ).first()
    assert found is not None
    print("TABLE " + json.dumps(found.asDict()), flush=True)
