"""The pipeline that `tests/exactly_once.py` kills: three queries in one driver, each with its own checkpoint.

- ``copy``: every message goes to the stream OUT.
- ``table``: every message becomes a row of a parquet table.
- ``totals``: count and sum for each key, kept by Spark, written to the stream TOTALS whenever they change.
- ``control`` (with ``--control``): as ``copy``, but without message ids, so at least once only. It shows what
  the kills would have done.

`python exactly_once_job.py URL FOLDER [--control] [--finish]`. Without ``--finish`` it runs until it is
killed; with it, until all messages that are there are through, and then it says what is in the table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jetspark.spark import decode_json, read_stream, write_stream

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--finish", action="store_true")
    parser.add_argument("--trigger", type=int, default=3000, help="messages of a micro-batch, at most")
    arguments = parser.parse_args()
    url, folder, finish = arguments.url, arguments.folder, arguments.finish

    spark = (
        # A task may fail four times before its query does: a killed Python worker is then only a retry.
        SparkSession.builder.master("local[2,4]")
        .appName("exactly-once")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        # It lives for seconds only: what is compiled for the long run is never paid back.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")

    def source() -> DataFrame:
        return read_stream(
            spark,
            servers=url,
            stream="IN",
            schema="sequence long, subject string, data binary",
            starting_position="earliest",
            min_partitions=2,
            max_messages_per_trigger=arguments.trigger,
        )

    queries: list[StreamingQuery] = []

    def begin(query: StreamingQuery) -> None:
        """One after the other: Spark gives the Python process of a query ten seconds to start."""
        queries.append(query)
        while query.isActive and query.status["message"] == "Initializing sources":
            time.sleep(0.05)

    def to_stream(name: str, df: DataFrame, **options: object) -> None:
        query = write_stream(
            df,
            servers=url,
            checkpoint_location=folder / name,
            query_name=name,
            available_now=finish,
            **options,  # type: ignore[arg-type]
        )
        begin(query)

    copied = source().select(F.regexp_replace("subject", "^in", "out").alias("subject"), "data")
    decoded = decode_json(source().drop("subject"), "n long, key int")
    totals = decoded.groupBy("key").agg(F.count("*").alias("count"), F.sum("n").alias("sum"))
    to_stream("copy", copied, stream="OUT", require_exactly_once=True, required_duplicate_window="10 minutes")
    to_stream(
        "totals",
        totals.selectExpr("concat('totals.', key) AS subject", "to_json(struct(count, sum)) AS data"),
        stream="TOTALS",
        output_mode="update",
        require_exactly_once=True,
        required_duplicate_window="10 minutes",
    )
    table = decoded.select("sequence", "n", "key").writeStream.format("parquet").queryName("table")
    table = table.option("path", str(folder / "parquet")).option("checkpointLocation", str(folder / "table"))
    begin((table.trigger(availableNow=True) if finish else table).start())
    if arguments.control:
        control = copied.withColumn("subject", F.regexp_replace("subject", "^out", "control"))
        to_stream("control", control, stream="CONTROL", derive_msg_id=False)
    print("STARTED", flush=True)
    if not finish:
        spark.streams.awaitAnyTermination()  # raises what ended a query, which ends this process
        raise SystemExit("a query ended by itself")
    for query in queries:
        query.awaitTermination()
    rows = spark.read.parquet(str(folder / "parquet"))
    found = rows.agg(
        F.count("*").alias("rows"),
        F.countDistinct("n").alias("distinct"),
        F.countDistinct("sequence").alias("sequences"),
        F.min("n").alias("min"),
        F.max("n").alias("max"),
    ).first()
    assert found is not None
    print("TABLE " + json.dumps(found.asDict()), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
