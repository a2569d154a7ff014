"""``spark.read.format("jetstream")``: what is there when the DataFrame is first used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from jetspark.spark.source.options import SourceOptions, check_batch
from jetspark.spark.source.planning import Range, plan
from jetspark.spark.source.schema import arrow_schema, check_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """One task's ranges; empty when there is nothing to read, because Spark needs at least one partition."""

    ranges: tuple[Range, ...] = ()


def read_ranges(
    options: SourceOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """A task: the rows of a partition, over the worker process's connection."""
    assert isinstance(partition, RangePartition)
    if not partition.ranges:
        return
    from jetspark.spark.connections import jetstream
    from jetspark.spark.source.range_reader import RangeReader

    reader = RangeReader(
        jetstream(options.connection),
        arrow_schema(schema),
        fail_on_data_loss=options.fail_on_data_loss,
        batch_rows=options.batch_rows,
        buffer_messages=options.buffer_messages,
    )
    for wanted in partition.ranges:
        yield from reader.read(wanted)


class JetStreamReader(DataSourceReader):
    """Plans on the driver, reads on executors; only the options are shipped."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = check_batch(options)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Called once per DataFrame; 'latest' is resolved here."""
        from jetspark.spark.connections import jetstream
        from jetspark.spark.source.positions import batch_ranges

        options = self._options
        found = plan(
            batch_ranges(jetstream(options.connection), options),
            min_partitions=options.min_partitions,
            max_messages=options.max_messages_per_partition,
        )
        return [RangePartition(ranges) for ranges in found] or [RangePartition()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_ranges(self._options, self._schema, partition)
