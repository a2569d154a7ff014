"""``format("jetstream")``. Imported by Spark in many short-lived processes: keep the imports few."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from jetspark.spark.options import (
    CONNECTION_OPTIONS,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    SPARK_OPTIONS,
    Options,
    parse_connection,
)
from jetspark.spark.source.options import parse_source

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from jetspark.spark.source.options import SourceOptions


class DefaultSource(DataSource):
    """Streams as tables and sinks. Options are checked here, so errors show at ``load()``, not in a task."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # Parsed once for each query: Spark pickles this object for the processes that follow.
        self._source: SourceOptions | None = None
        known = (*CONNECTION_OPTIONS, *SOURCE_OPTIONS, *SINK_OPTIONS, *SPARK_OPTIONS)
        found = Options(options, known)
        # Spark does not say whether this is for reading or writing; a name that only a sink has does.
        only_sink = set(SINK_OPTIONS) - set(SOURCE_OPTIONS)
        if found.given("stream") and not found.given_of(*only_sink, *SPARK_OPTIONS):
            self._source = parse_source(options)
        self._connection = self._source.connection if self._source else parse_connection(found)

    @property
    def _parsed(self) -> SourceOptions:
        if self._source is None:
            self._source = parse_source(self.options)
        return self._source

    @classmethod
    def name(cls) -> str:
        return "jetstream"

    def schema(self) -> StructType:
        from jetspark.spark.source.schema import SCHEMA

        _ = self._parsed
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        from jetspark.spark.source.batch_reader import JetStreamReader

        return JetStreamReader(self._parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from jetspark.spark.source.stream_reader import JetStreamStreamReader

        return JetStreamStreamReader(self._parsed, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from jetspark.spark.sink.writers import make_writer

        return make_writer(self.options, schema, overwrite, self._connection)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from jetspark.spark.sink.writers import make_stream_writer

        return make_stream_writer(self.options, schema, overwrite, self._connection)
