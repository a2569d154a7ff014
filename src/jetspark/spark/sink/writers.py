"""The sink: ``df.write.format("jetstream")`` and ``df.writeStream.format("jetstream")``.

Columns: ``subject`` (or the option of that name), ``data`` (binary or string), and if wanted ``headers``
(map<string,string> or map<string,array<string>>), ``msg_id`` and ``ttl``. Options: see
:mod:`jetspark.spark.sink.options`.

Promised: a task succeeds only when the server has acked each of its rows. Rows carry a ``Nats-Msg-Id``, so
repeated tasks and micro-batches store nothing twice, whatever the order of their rows. Not promised: a replay
later than the stream's duplicate window, and a replayed micro-batch or job whose rows are partitioned
differently (a changed ``spark.sql.shuffle.partitions``, another ``repartition``), may store rows twice; give
such rows their own ``msg_id``. Order holds within a partition as long as nothing has to be sent again. Rows
of a failed write stay in the stream: it has no transactions.

Output modes: Spark lets Python sinks write in "append" and "complete" mode. For "update", write each
micro-batch as a batch in ``foreachBatch``; ``jetspark.spark.write_stream`` does.

Where things run (PySpark 4.3): the batch writer is made on the driver and shipped to tasks. The streaming
writer is made for each micro-batch, in a process that stays, and again in another one for ``commit``; so each
process remembers the start check.
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

from jetspark.spark.patience import patiently
from jetspark.spark.sink.options import SinkOptions, check_columns, parse_sink
from jetspark.spark.sink.target import Target, inspect_target
from jetspark.spark.sink.write_result import WriteResult, save_result, total
from jetspark.spark.source.origin import batch_origin, place_of_task, stream_origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from jetspark.spark.options import ConnectionOptions
    from jetspark.spark.sink.rows import SinkColumns

log = logging.getLogger("jetspark.spark.sink")


@dataclass
class SinkCommit(WriterCommitMessage):
    """What a task reports to the driver: the counts of its rows."""

    partition: int
    attempt: int
    rows: int
    stored: int
    duplicates: int
    dead_letters: int
    resent: int
    bytes: int
    streams: tuple[str, ...]
    dropped_headers: tuple[str, ...]

    @property
    def unexpected_duplicates(self) -> int:
        """Duplicates that neither an earlier attempt of the task nor a repeated send explains."""
        return 0 if self.attempt else max(0, self.duplicates - self.resent)


class JetStreamWriter(DataSourceArrowWriter):
    """Writes a batch."""

    def __init__(self, options: SinkOptions, columns: SinkColumns, target: Target) -> None:
        self._options = options
        self._columns = columns
        self._target = target
        # Made once per job, so a repeated task derives the same ids.
        self._job = uuid.uuid4().hex[:16]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        """In a task: publish the rows of a partition."""
        options = self._options
        all_derived = self._columns.msg_id is None
        origin = batch_origin(
            place_of_task(),
            prefix=options.msg_id_prefix,
            batch_id=options.batch_id,
            job=self._job,
            needed=options.derive_msg_id and (all_derived or options.require_exactly_once),
        )
        return _write(iterator, options, self._columns, self._target, origin)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, when all tasks succeeded."""
        result = _tell("batch", messages, self._options, self._columns)
        if self._options.result_file is not None:
            save_result(result, self._options.result_file)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, when a task failed. A stream can't take back what it has stored."""
        log.warning("batch failed; already stored: %s", _stored(messages))


class JetStreamStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def __init__(self, options: SinkOptions, columns: SinkColumns, target: Target) -> None:
        self._options = options
        self._columns = columns
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        """In a task: publish the rows of a partition of a micro-batch."""
        origin = stream_origin(place_of_task())
        return _write(iterator, self._options, self._columns, self._target, origin)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, when all tasks of the micro-batch succeeded."""
        _tell(f"micro-batch {batchId}", messages, self._options, self._columns)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, when a task failed; Spark will write the micro-batch again after a restart."""
        log.warning("micro-batch %d failed; already stored: %s", batchId, _stored(messages))


def make_writer(
    options: Mapping[str, str],
    schema: StructType,
    overwrite: bool,
    connection: ConnectionOptions | None = None,
) -> JetStreamWriter:
    """The batch writer; options, columns and the target stream are checked first."""
    parsed = parse_sink(options, streaming=False, overwrite=overwrite, connection=connection)
    columns = check_columns(schema, parsed)
    return JetStreamWriter(parsed, columns, _inspect(parsed, columns))


def make_stream_writer(
    options: Mapping[str, str],
    schema: StructType,
    overwrite: bool,
    connection: ConnectionOptions | None = None,
) -> JetStreamStreamWriter:
    """The streaming writer, checked in the same way. ``overwrite``: Spark's "complete" mode, appended too."""
    parsed = parse_sink(options, streaming=True, overwrite=overwrite, connection=connection)
    columns = check_columns(schema, parsed)
    key = (parsed, columns)
    now = time.monotonic()
    found, until = _targets.get(key, (None, now))
    if found is None or now >= until:
        # Spark makes a new writer, often in a new process, for each micro-batch of a running query.
        found = patiently(lambda: _inspect(parsed, columns), "looking at the target stream")
        _targets[key] = (found, now + _TRUSTED)
    return JetStreamStreamWriter(parsed, columns, found)


# Targets that this process has checked, and until when the result is valid.
_targets: dict[tuple[SinkOptions, SinkColumns], tuple[Target, float]] = {}
_TRUSTED = 60.0


def _inspect(options: SinkOptions, columns: SinkColumns) -> Target:
    # Its own connection: this process writes nothing, so a shared one would be idle.
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
    from jetspark.spark.sink.task import write_task

    context = TaskContext.get()
    assert context is not None
    partition, attempt = context.partitionId(), context.attemptNumber()
    counts = write_task(batches, options, columns, target, partition=partition, origin=origin)
    return SinkCommit(
        partition=partition,
        attempt=attempt,
        rows=counts.rows,
        stored=counts.stored,
        duplicates=counts.duplicates,
        dead_letters=counts.dead_letters,
        resent=counts.resent,
        bytes=counts.bytes,
        streams=tuple(sorted(counts.streams)),
        dropped_headers=tuple(sorted(counts.dropped_headers)),
    )


def _commits(messages: Sequence[WriterCommitMessage | None]) -> list[SinkCommit]:
    return [message for message in messages if isinstance(message, SinkCommit)]


def _stored(messages: Sequence[WriterCommitMessage | None]) -> str:
    done = _commits(messages)
    return f"{total(done)} ({len(done)} of {len(messages)} tasks)"


def _tell(
    what: str,
    messages: Sequence[WriterCommitMessage | None],
    options: SinkOptions,
    columns: SinkColumns,
) -> WriteResult:
    """Log the counts; warn about what may surprise."""
    done = _commits(messages)
    result = total(done)
    log.info("%s written: %s", what, result)
    again = sum(one.unexpected_duplicates for one in done)
    if again:
        foreign = columns.msg_id is not None or options.keep_nats_headers
        log.warning(
            "%s: %d of %d rows were not stored, because the stream has messages with their ids. %s",
            what,
            again,
            result.rows,
            "The ids are your own: different rows with one id are lost"
            if foreign
            else "Right if it was written before (a restart, or the same msgIdPrefix). If not: equal rows "
            "that two writes of one micro-batch send to one stream need a msgIdPrefix for each write",
        )
    dropped = frozenset(result.dropped_headers) - _told_dropped
    if dropped:
        _told_dropped.update(dropped)
        log.warning(
            "%s: headers %s were left out, because the server obeys them. For ids and TTLs use the columns "
            "msg_id and ttl; keepNatsHeaders=true passes all of them on",
            what,
            ", ".join(sorted(dropped)),
        )
    return result


# Header names that this process has warned about.
_told_dropped: set[str] = set()
