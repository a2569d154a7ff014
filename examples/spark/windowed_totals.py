"""Windowed aggregation: counts for each second of the server's clock, published when a window is complete.

The column ``timestamp`` is when the server stored a message, so it never runs backwards and a short watermark
is enough: nothing comes late.

Run it: python examples/spark/windowed_totals.py
"""

import json
import os
import sys
import tempfile
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from jetspark import StreamConfig, blocking
from jetspark.server import Server
from jetspark.spark import read_stream, write_stream

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def main() -> None:
    with (
        Server() as server,
        blocking.connect(server.url) as nc,
        tempfile.TemporaryDirectory() as folder,
    ):
        js = nc.jetstream()
        js.create_stream(StreamConfig(name="CLICKS", subjects=["clicks.>"]))
        totals = js.create_stream(StreamConfig(name="TOTALS", subjects=["totals.>"]))
        published = 0
        end = time.monotonic() + 4
        while time.monotonic() < end:
            js.publish(f"clicks.page{published % 3}", b"")
            published += 1
            time.sleep(0.01)

        spark = SparkSession.builder.master("local[2]").appName("windowed-totals").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        clicks = read_stream(
            spark,
            servers=server.url,
            stream="CLICKS",
            starting_position="earliest",
            schema="subject string, timestamp timestamp",
        )
        counts = (
            clicks.withWatermark("timestamp", "1 second")
            .groupBy(F.window("timestamp", "1 second"), "subject")
            .count()
            .selectExpr(
                "concat('totals.', split(subject, '[.]')[1]) AS subject",
                "to_json(struct(window.start AS start, count)) AS data",
                # One id for each window and page: as safe as it gets, even over a new checkpoint.
                "concat(subject, '@', window.start) AS msg_id",
            )
        )
        query = write_stream(
            counts,
            servers=server.url,
            stream="TOTALS",
            checkpoint_location=f"{folder}/checkpoint",
            available_now=True,
        )
        query.awaitTermination()

        complete = [json.loads(message.data) for message in totals.get_msgs(seq=1)]
        starts = sorted({total["start"] for total in complete})
        print(f"{published} clicks; {len(complete)} totals of {len(starts)} complete seconds")
        print(f"counted so far: {sum(total['count'] for total in complete)}")
        spark.stop()


if __name__ == "__main__":
    main()
