"""The child process of :mod:`exactly_once.queries`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from exactly_once import jobs
from jetspark.spark import decode_json, write_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


def main() -> None:
    given = jobs.arguments()
    spark = jobs.session()
    queries: list[StreamingQuery] = []

    def to_stream(name: str, df: DataFrame, **options: object) -> None:
        query = write_stream(
            df,
            servers=given.url,
            checkpoint_location=given.folder / name,
            query_name=name,
            available_now=given.finish,
            **options,  # type: ignore[arg-type]
        )
        queries.append(jobs.begin(query))

    source = jobs.source(spark, given)
    copied = source.select(F.regexp_replace("subject", "^in", "out").alias("subject"), "data")
    decoded = decode_json(source.drop("subject"), "n long, key int")
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
    table = table.option("path", str(given.folder / "parquet"))
    table = table.option("checkpointLocation", str(given.folder / "table"))
    queries.append(jobs.begin((table.trigger(availableNow=True) if given.finish else table).start()))
    if given.control:
        control = copied.withColumn("subject", F.regexp_replace("subject", "^out", "control"))
        to_stream("control", control, stream="CONTROL", derive_msg_id=False)
    jobs.run_on(spark, queries, finish=given.finish)
    jobs.say_table(spark.read.parquet(str(given.folder / "parquet")))
    spark.stop()


if __name__ == "__main__":
    main()
