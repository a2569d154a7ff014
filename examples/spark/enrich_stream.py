"""Stream to stream: read orders, join them with a table of customers, publish them under new subjects.

Exactly once: the source is replayed from the checkpoint, and the sink gives each row a message id, so what is
written again after a failure is recognised by the stream's duplicate window.

Run it: python examples/spark/enrich_stream.py
"""

import json
import os
import sys
import tempfile

from pyspark.sql import SparkSession

from jetspark import StreamConfig, blocking
from jetspark.server import Server
from jetspark.spark import decode_json, read_stream, route, write_stream

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def main() -> None:
    with (
        Server() as server,
        blocking.connect(server.url) as nc,
        tempfile.TemporaryDirectory() as folder,
    ):
        js = nc.jetstream()
        js.create_stream(StreamConfig(name="ORDERS", subjects=["orders.>"]))
        # A restart within ten minutes writes nothing twice.
        enriched = js.create_stream(
            StreamConfig(name="ENRICHED", subjects=["enriched.>", "rejected"], duplicate_window=600)
        )
        with js.publisher() as publisher:
            for number in range(200):
                order = {"id": number, "customer": number % 5, "amount": number / 2}
                publisher.publish("orders.new", json.dumps(order).encode())
            publisher.publish("orders.new", b"this is not JSON")

        spark = SparkSession.builder.master("local[2]").appName("enrich-stream").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        customers = spark.createDataFrame(
            [
                (0, "Ada", "eu"),
                (1, "Grace", "us"),
                (2, "Edsger", "eu"),
                (3, "Barbara", "us"),
                (4, "Tony", "eu"),
            ],
            "customer long, name string, region string",
        )
        orders = read_stream(
            spark, servers=server.url, stream="ORDERS", starting_position="earliest", schema="data binary"
        )
        known = decode_json(orders, "id long, customer long, amount double").join(
            customers, "customer", "left"
        )
        # Rows without a region get no subject, and what has no subject goes to the dead letters.
        routed = route(known, "enriched.{region}.{id}", on_unsafe="null")
        query = write_stream(
            routed.selectExpr(
                "subject",
                "coalesce(to_json(struct(id, name, amount)), '') AS data",
                "map('source', 'orders') AS headers",
            ),
            servers=server.url,
            dead_letter_subject="rejected",
            require_exactly_once=True,
            required_duplicate_window="10 minutes",
            stream="ENRICHED",
            checkpoint_location=f"{folder}/checkpoint",
            available_now=True,
        )
        query.awaitTermination()

        # The join spreads the orders over tasks, so they are not stored in the order of their ids.
        europe = sorted(enriched.get_msgs("enriched.eu.*", seq=1), key=lambda one: json.loads(one.data)["id"])
        print(f"{enriched.info().state.messages} messages, {len(europe)} of them European")
        print(f"the first: {europe[0].subject} {europe[0].data.decode()}")
        for letter in enriched.get_msgs("rejected", seq=1):
            print(f"rejected: {letter.headers['Jetspark-Error']}")
        spark.stop()


if __name__ == "__main__":
    main()
