"""What the Spark tests share: streams with messages in them, and short ways to read them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from jetspark import StreamConfig
from jetspark.errors import NotFound
from support.helpers import LIMIT, unique

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from jetspark import blocking


class Batches:
    """What a streaming query wrote: the sequences of each micro-batch, by batch id."""

    def __init__(self) -> None:
        self.by_id: dict[int, list[Any]] = {}
        self.fail_on: int | None = None
        self.column = "sequence"

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        if batch_id == self.fail_on:
            raise RuntimeError(f"batch {batch_id} is told to fail")
        self.by_id[batch_id] = [row[self.column] for row in frame.select(self.column).collect()]

    @property
    def rows(self) -> list[Any]:
        """All rows in the order of the batches."""
        return [row for _, batch in sorted(self.by_id.items()) for row in batch]

    @property
    def sizes(self) -> list[int]:
        """Rows of each batch that had any."""
        return [len(batch) for _, batch in sorted(self.by_id.items()) if batch]


class Box:
    """Streams and queries of one test."""

    def __init__(self, spark: SparkSession, url: str, js: blocking.JetStream, folder: Path) -> None:
        self.spark = spark
        self.url = url
        self.js = js
        self.folder = folder
        self._streams: list[str] = []
        self._queries: list[StreamingQuery] = []

    def make(self, name: str | None = None, *, messages: int = 0, **config: Any) -> str:
        """A stream that stores ``<name>.>``, with some messages ``0``, ``1``, ...; its name."""
        name = name or unique("S")
        self.js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"], **config))
        if name not in self._streams:
            self._streams.append(name)
        self.fill(name, messages)
        return name

    def fill(self, name: str, messages: int | Iterable[bytes], subject: str = "x") -> None:
        """Publish messages: so many, or these."""
        payloads = (
            [str(number).encode() for number in range(messages)] if isinstance(messages, int) else messages
        )
        for payload in payloads:
            self.js.publish(f"{name}.{subject}", payload)

    def options(self, stream: str, options: dict[str, Any]) -> dict[str, Any]:
        return {"servers": self.url, "stream": stream, **options}

    def read(self, stream: str, **options: Any) -> DataFrame:
        """A batch read."""
        return self.spark.read.format("jetstream").options(**self.options(stream, options)).load()

    def sequences(self, stream: str, **options: Any) -> list[int]:
        """The sequences of a batch read, sorted."""
        return sorted(row.sequence for row in self.read(stream, **options).select("sequence").collect())

    def read_stream(self, stream: str, **options: Any) -> DataFrame:
        """A streaming read."""
        return self.spark.readStream.format("jetstream").options(**self.options(stream, options)).load()

    def start(
        self,
        stream: str,
        into: Batches,
        *,
        checkpoint: str = "checkpoint",
        trigger: dict[str, Any] | None = None,
        **options: Any,
    ) -> StreamingQuery:
        """A streaming query into ``into``."""
        writer = self.read_stream(stream, **options).writeStream.foreachBatch(into)
        writer = writer.option("checkpointLocation", str(self.folder / checkpoint))
        query = writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()
        self._queries.append(query)
        return query

    def drain(
        self, stream: str, into: Batches, *, checkpoint: str = "checkpoint", **options: Any
    ) -> StreamingQuery:
        """Trigger.AvailableNow to its end."""
        query = self.start(stream, into, checkpoint=checkpoint, trigger={"availableNow": True}, **options)
        assert query.awaitTermination(LIMIT), "the query did not end"
        return query

    def close(self) -> None:
        for query in self._queries:
            with contextlib.suppress(Exception):
                query.stop()
        for name in self._streams:
            with contextlib.suppress(NotFound):
                self.js.delete_stream(name)
