"""The child process of :mod:`exactly_once.foreach`: `... URL FOLDER [--finish] --queries NAME ...`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from exactly_once import jobs
from jetspark.spark import write

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame


def to(batch: DataFrame, stream: str) -> DataFrame:
    """The rows with subjects of the stream."""
    return batch.withColumn("subject", F.regexp_replace("subject", "^in", stream.lower()))


def main() -> None:
    given = jobs.arguments()
    spark = jobs.session()

    def plain(batch: DataFrame, batch_id: int) -> None:
        options = {"servers": given.url, "stream": "PLAIN"}
        to(batch, "PLAIN").write.format("jetstream").options(**options).mode("append").save()

    def helper(batch: DataFrame, batch_id: int) -> None:
        for _ in range(2):
            write(to(batch, "OUT"), servers=given.url, stream="OUT", require_exactly_once=True)

    def threads(batch: DataFrame, batch_id: int) -> None:
        def one(stream: str) -> None:
            write(
                to(batch, stream),
                servers=given.url,
                stream=stream,
                batch_id=batch_id,
                msg_id_prefix="threads",
                require_exactly_once=True,
            )

        with ThreadPoolExecutor() as pool:
            list(pool.map(one, ("LEFT", "RIGHT")))

    functions: dict[str, Callable[[DataFrame, int], None]] = {
        "plain": plain,
        "helper": helper,
        "threads": threads,
    }
    rows = jobs.source(spark, given).select("subject", "data")
    queries = [jobs.begin(jobs.foreach(rows, functions[name], name, given)) for name in given.queries]
    jobs.run_on(spark, queries, finish=given.finish)
    spark.stop()


if __name__ == "__main__":
    main()
