"""The child process of :mod:`exactly_once.connect`: it starts a Spark Connect server and is its client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from exactly_once import jobs
from jetspark.spark import decode_json, write, write_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


def main() -> None:
    given = jobs.arguments()
    spark = jobs.session(connect=True)
    url = given.url  # what the function below takes along to the server

    def each(batch: DataFrame, batch_id: int) -> None:
        write(
            batch,
            servers=url,
            stream="EACH",
            subject="each.x",
            batch_id=batch_id,
            msg_id_prefix="each",
            require_exactly_once=True,
        )

    def to_stream(name: str, df: DataFrame, **options: Any) -> StreamingQuery:
        query = write_stream(
            df,
            servers=given.url,
            checkpoint_location=given.folder / name,
            query_name=name,
            available_now=given.finish,
            require_exactly_once=True,
            **options,
        )
        return jobs.begin(query)

    source = jobs.source(spark, given)
    copied = source.select(F.regexp_replace("subject", "^in", "out").alias("subject"), "data")
    decoded = decode_json(source.drop("subject"), "n long, key int")
    totals = decoded.groupBy("key").agg(F.count("*").alias("count"), F.sum("n").alias("sum"))
    totals = totals.selectExpr("concat('totals.', key) AS subject", "to_json(struct(count, sum)) AS data")
    queries = [
        to_stream("copy", copied, stream="OUT"),
        to_stream("totals", totals, stream="TOTALS", output_mode="update"),
        jobs.begin(jobs.foreach(source.select("data"), each, "each", given)),
    ]
    jobs.run_on(spark, queries, finish=given.finish)
    spark.stop()


if __name__ == "__main__":
    main()
