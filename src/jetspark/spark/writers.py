"""The sink: ``df.write.format("jetstream")`` and ``df.writeStream.format("jetstream")``.

Columns: ``subject`` (or the option of that name), ``data`` (binary or string), and if wanted ``headers``
(map<string,string> or map<string,array<string>>), ``msg_id`` and ``ttl``. Options: see
:mod:`jetspark.spark.sink_options`.

What is promised: a task succeeds only when the server has acked each of its rows, and rows carry a
``Nats-Msg-Id``, so tasks and micro-batches that run again store nothing twice, whatever the order of their
rows. What is not: a replay later than the stream's duplicate window, and a replayed micro-batch or job
whose rows are spread over partitions in another way (a changed ``spark.sql.shuffle.partitions``, another
``repartition``), may store rows twice; give such rows a ``msg_id`` of their own. Order holds within a
partition as long as nothing has to be sent again. Rows of a write that fails stay in the stream: it has no
transactions.

Output modes: Spark lets Python sinks write in "append" and "complete" mode. For "update", write each
micro-batch as a batch in ``foreachBatch`` with option ``msgIdPrefix``; ``jetspark.spark.write_stream`` does.

Where things run (PySpark 4.3): the batch writer is made on the driver and shipped to tasks. The streaming
writer is made anew for each micro-batch, in a process that stays, and again in another one for ``commit``; so
the start check is remembered for each process.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from jetspark.errors import JetsparkError
from jetspark.spark.patience import patiently
from jetspark.spark.sink_options import SinkOptions, check_columns, parse_sink
from jetspark.spark.sink_target import Target, inspect_target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from jetspark.spark.rows import SinkColumns

log = logging.getLogger("jetspark.spark.sink")

# Spark's names of the local properties of a streaming task.
_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"


@dataclass
class SinkCommit(WriterCommitMessage):
    """What a task tells the driver: how many rows it got, and what became of them."""

    partition: int
    rows: int
    acked: int
    duplicates: int
    dead_letters: int
    resent: int
    bytes: int
    streams: tuple[str, ...]


class JetStreamWriter(DataSourceArrowWriter):
    """Writes a batch."""

    def __init__(self, options: SinkOptions, columns: SinkColumns, target: Target) -> None:
        self._options = options
        self._columns = columns
        self._target = target
        # Made once for the job, so a task that runs again derives the same ids.
        self._origin = options.msg_id_prefix or uuid.uuid4().hex[:16]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        """In a task: publish the rows of a partition."""
        origin, batch = self._origin, _micro_batch()
        if batch is not None and self._options.msg_id_prefix is not None:
            # In foreachBatch: the name is the same for each micro-batch, the rows are not.
            origin = f"{origin}-{batch}"
        return _write(iterator, self._options, self._columns, self._target, origin)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, when all tasks succeeded."""
        log.info("batch written: %s", _total(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, when a task failed. A stream can't take back what it has stored."""
        log.warning("batch failed; stored all the same: %s", _total(messages))


class JetStreamStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def __init__(self, options: SinkOptions, columns: SinkColumns, target: Target) -> None:
        self._options = options
        self._columns = columns
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        """In a task: publish the rows of a partition of a micro-batch."""
        origin = _micro_batch()
        if origin is None:
            raise JetsparkError(
                f"Spark did not tell this task its query and micro-batch (properties {_QUERY_ID} and "
                f"{_BATCH_ID}), so no safe message ids can be derived"
            )
        return _write(iterator, self._options, self._columns, self._target, origin)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, when all tasks of the micro-batch succeeded."""
        log.info("micro-batch %d written: %s", batchId, _total(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, when a task failed; Spark will write the micro-batch again after a restart."""
        log.warning("micro-batch %d failed; stored all the same: %s", batchId, _total(messages))


def _micro_batch() -> str | None:
    """Query and micro-batch of this task, short enough for an id; None outside a streaming query."""
    context = TaskContext.get()
    assert context is not None
    query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if query is None or batch is None:
        return None
    return f"{query.replace('-', '')[:16]}-{batch}"


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> JetStreamWriter:
    """The batch writer; options, columns and the target stream are checked first."""
    parsed = parse_sink(options, streaming=False, overwrite=overwrite)
    columns = check_columns(schema, parsed)
    return JetStreamWriter(parsed, columns, _inspect(parsed, columns))


def make_stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> JetStreamStreamWriter:
    """The streaming writer, checked in the same way. ``overwrite``: Spark's "complete" mode, appended too."""
    parsed = parse_sink(options, streaming=True, overwrite=overwrite)
    columns = check_columns(schema, parsed)
    key = (parsed, columns)
    now = time.monotonic()
    found, until = _targets.get(key, (None, now))
    if found is None or now >= until:
        # Spark makes the writer anew, often in a new process, for each micro-batch of a running query.
        found = patiently(lambda: _inspect(parsed, columns), "looking at the target stream")
        _targets[key] = (found, now + _TRUSTED)
    return JetStreamStreamWriter(parsed, columns, found)


# What this process has looked at already, and until when that is believed.
_targets: dict[tuple[SinkOptions, SinkColumns], tuple[Target, float]] = {}
_TRUSTED = 60.0


def _inspect(options: SinkOptions, columns: SinkColumns) -> Target:
    # A connection of its own: this process writes nothing, so it would only lie idle.
    from jetspark import blocking

    with blocking.connect(**options.connection.connect_arguments()) as connection:
        return inspect_target(
            connection.jetstream(**options.connection.jetstream_arguments()), options, columns
        )


def _write(
    batches: Iterator[pa.RecordBatch],
    options: SinkOptions,
    columns: SinkColumns,
    target: Target,
    origin: str,
) -> SinkCommit:
    from jetspark.spark.sink_task import write_task

    context = TaskContext.get()
    assert context is not None
    partition = context.partitionId()
    counts = write_task(batches, options, columns, target, partition=partition, origin=origin)
    return SinkCommit(
        partition=partition,
        rows=counts.rows,
        acked=counts.acked,
        duplicates=counts.duplicates,
        dead_letters=counts.dead_letters,
        resent=counts.resent,
        bytes=counts.bytes,
        streams=tuple(sorted(counts.streams)),
    )


def _total(messages: Sequence[WriterCommitMessage | None]) -> str:
    done = [message for message in messages if isinstance(message, SinkCommit)]
    streams = sorted({stream for one in done for stream in one.streams})
    return (
        f"{sum(one.rows for one in done)} rows of {len(done)}/{len(messages)} tasks, "
        f"{sum(one.acked for one in done)} acked, {sum(one.duplicates for one in done)} stored before, "
        f"{sum(one.dead_letters for one in done)} dead letters, "
        f"{sum(one.resent for one in done)} sent again, "
        f"{sum(one.bytes for one in done)} bytes, streams: {', '.join(streams) or 'none'}"
    )
