"""What `quick_spark` lets Spark do once: a bit of all that tests do, to have its classes in the archive."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType


class Numbers(DataSource):
    """A source in Python, as jetspark is one."""

    def schema(self) -> str:
        return "n int"

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader()


class BatchReader(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield from [(1,), (2,)]


class StreamReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:
        return {"next": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        return {"next": 2}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield from [(1,), (2,)]


def main(folder: str) -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    spark.dataSource.register(Numbers)
    spark.createDataFrame([(1, "a"), (2, "b")], ["n", "text"]).createOrReplaceTempView("texts")
    spark.read.format("Numbers").load().createOrReplaceTempView("numbers")
    spark.sql("SELECT text, count(*) FROM numbers JOIN texts USING (n) GROUP BY text ORDER BY text").collect()
    stream = spark.readStream.format("Numbers").load()
    writer = stream.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start(f"{folder}/table", format="parquet").awaitTermination()
    many = stream.writeStream.option("checkpointLocation", f"{folder}/many")
    many.trigger(availableNow=True).foreachBatch(
        lambda rows, _: rows.count() and None
    ).start().awaitTermination()
    spark.read.parquet(f"{folder}/table").toArrow()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
