"""foreachBatch: each micro-batch into two places, and running totals, which need the output mode "update".

A micro-batch that runs again writes the same rows again. ``msg_id_prefix`` names a write, so that the stream
recognises them; parquet is overwritten batch by batch.

Run it: python examples/spark/foreach_batch.py
"""

import json
import os
import sys
import tempfile

from pyspark.sql import DataFrame, SparkSession

from jetspark import StreamConfig, blocking
from jetspark.server import Server
from jetspark.spark import decode_json, read_stream, write

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def main() -> None:
    with (
        Server() as server,
        blocking.connect(server.url) as nc,
        tempfile.TemporaryDirectory() as folder,
    ):
        js = nc.jetstream()
        js.create_stream(StreamConfig(name="SALES", subjects=["sales.>"]))
        totals = js.create_stream(
            # A table that is a stream: the last total of each shop.
            StreamConfig(name="TOTALS", subjects=["totals.>"], max_msgs_per_subject=1)
        )
        spark = SparkSession.builder.master("local[2]").appName("foreach-batch").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        spark.conf.set("spark.sql.shuffle.partitions", "2")

        def both(batch: DataFrame, batch_id: int) -> None:
            batch.persist()
            batch.write.mode("overwrite").parquet(f"{folder}/totals/batch={batch_id}")
            write(
                batch.selectExpr("concat('totals.', shop) AS subject", "to_json(struct(*)) AS data"),
                servers=server.url,
                stream="TOTALS",
                msg_id_prefix="totals",
            )
            batch.unpersist()

        sales = read_stream(spark, servers=server.url, stream="SALES", starting_position="earliest")
        running = (
            decode_json(sales, "shop string, amount long")
            .groupBy("shop")
            .sum("amount")
            .withColumnRenamed("sum(amount)", "total")
        )
        for _ in range(2):
            with js.publisher() as publisher:
                for number in range(300):
                    sale = {"shop": f"shop{number % 3}", "amount": 1}
                    publisher.publish("sales.till", json.dumps(sale).encode())
            query = (
                running.writeStream.outputMode("update")
                .foreachBatch(both)
                .option("checkpointLocation", f"{folder}/checkpoint")
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            for message in sorted(totals.get_msgs(seq=1), key=lambda message: message.subject):
                print(f"{message.subject}: {json.loads(message.data)['total']}")
        print(f"{spark.read.parquet(f'{folder}/totals').count()} rows in parquet")
        spark.stop()


if __name__ == "__main__":
    main()
