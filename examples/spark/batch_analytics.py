"""Batch analytics: a stream as a table.

Run it: python examples/spark/batch_analytics.py
"""

import json
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from jetspark import StreamConfig, blocking
from jetspark.server import Server
from jetspark.spark import decode_json, read

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run the Python that has jetspark


def main() -> None:
    with Server() as server, blocking.connect(server.url) as nc:
        js = nc.jetstream()
        js.create_stream(StreamConfig(name="ORDERS", subjects=["orders.>"]))
        with js.publisher() as publisher:
            for number in range(1000):
                order = {"id": number, "amount": number % 10 + 0.5}
                publisher.publish(f"orders.{'eu' if number % 4 else 'us'}", json.dumps(order).encode())

        spark = SparkSession.builder.master("local[2]").appName("batch-analytics").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        orders = read(spark, servers=server.url, stream="ORDERS")
        totals = (
            decode_json(orders, "id long, amount double")
            .groupBy("subject")
            .agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
            .orderBy("subject")
        )
        totals.show()
        for row in totals.collect():
            print(f"{row.subject}: {row.orders} orders, {row.amount:.1f}")

        # Filters on subjects and positions run on the server: only these messages travel.
        european = read(
            spark, servers=server.url, stream="ORDERS", subjects="orders.eu", starting_sequence=901
        )
        print(f"European among the last hundred: {european.count()}")
        spark.stop()


if __name__ == "__main__":
    main()
