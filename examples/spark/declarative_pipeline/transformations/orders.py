"""A declarative pipeline: a stream in, a table, and a stream out."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

SERVERS = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    """Everything that is in the stream ORDERS."""
    return (
        spark.readStream.format("jetstream")
        .options(servers=SERVERS, stream="ORDERS", startingPosition="earliest")
        .load()
        .selectExpr(
            "sequence", "subject", "from_json(cast(data AS string), 'id long, amount double') AS order"
        )
    )


# A sink takes what its flows append; large orders are announced on a stream of their own.
dp.create_sink("large_orders", "jetstream", {"servers": SERVERS, "stream": "LARGE"})


@dp.append_flow(target="large_orders")
def announce() -> DataFrame:
    """Orders of 100 and more."""
    return (
        spark.readStream.table("orders")
        .where("order.amount >= 100")
        .selectExpr("concat('large.', order.id) AS subject", "to_json(order) AS data")
    )
