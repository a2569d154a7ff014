"""Streaming to parquet: everything in a stream lands in a table once, over as many runs as you like.

Run it: python examples/spark/stream_to_parquet.py
"""

import os
import sys
import tempfile

from pyspark.sql import DataFrame, SparkSession

from jetspark import StreamConfig, blocking
from jetspark.server import Server
from jetspark.spark import StreamLagListener, read_stream

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def land(events: DataFrame, folder: str) -> None:
    """Write what is there and stop; the checkpoint remembers the place for the next run."""
    query = (
        events.selectExpr("sequence", "subject", "timestamp", "cast(data AS string) AS body")
        .writeStream.format("parquet")
        .option("path", f"{folder}/table")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main() -> None:
    with (
        Server() as server,
        blocking.connect(server.url) as nc,
        tempfile.TemporaryDirectory() as folder,
    ):
        js = nc.jetstream()
        js.create_stream(StreamConfig(name="EVENTS", subjects=["events.>"]))
        spark = SparkSession.builder.master("local[2]").appName("stream-to-parquet").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        spark.streams.addListener(
            StreamLagListener(on_lag=lambda lag: print(f"batch {lag.batch_id}: lag {lag.lag}", flush=True))
        )
        events = read_stream(
            spark,
            servers=server.url,
            stream="EVENTS",
            starting_position="earliest",
            max_messages_per_trigger=400,
        )
        for run in range(2):
            with js.publisher() as publisher:
                for number in range(500):
                    publisher.publish("events.click", f"run {run} event {number}".encode())
            land(events, folder)
            table = spark.read.parquet(f"{folder}/table")
            distinct = table.select("sequence").distinct().count()
            print(f"after run {run}: {table.count()} rows, {distinct} distinct")
        spark.stop()


if __name__ == "__main__":
    main()
