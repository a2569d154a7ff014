"""One task of a write: rows in, acked messages out, or an error that names the row.

A task holds one pipelined publisher over the process's connection. Record batches are planned whole
(:mod:`jetspark.spark.sink.rows`) and handed over. Acks are checked a few record batches later, so a refused
row ends the task early, and the pipeline is never drained in between. The task succeeds when every ack has
arrived.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from jetspark.blocking.publisher import publish_columns
from jetspark.errors import JetsparkError, NoRespondersError, NotFound, RequestTimeout
from jetspark.jetstream.publish.many import Columns, Publishing
from jetspark.jetstream.publish.publish import Expect
from jetspark.jetstream.publish.stats import PublishFailed
from jetspark.spark import connections
from jetspark.spark.patience import patiently
from jetspark.spark.sink.rows import MessageIds, Outgoing, PlainRows, RowPlanner, shorten
from jetspark.spark.sink.subjects import SubjectCheck
from jetspark.spark.sink.target import Target, check_stream

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from jetspark.blocking import JetStream, Publisher
    from jetspark.jetstream.publish.many import AckBatch
    from jetspark.spark.sink.options import SinkOptions
    from jetspark.spark.sink.rows import SinkColumns

log = logging.getLogger("jetspark.spark.sink")

# Record batches whose acks may be outstanding before the oldest is checked.
_UNCHECKED = 2
# A row to a subject that no stream seems to store: an account's mapping may know better.
_FIRST_TRIES = 8
_FIRST_PAUSE = 0.25


class RowNotAcked(JetsparkError):
    """The server refused a row, or its ack never arrived; the task fails.

    ``partition`` and ``row`` say which, ``subject`` where it went, ``cause`` why. With message ids, writing
    it again is safe within the stream's duplicate window.
    """

    def __init__(
        self, partition: int, row: int, subject: str, cause: JetsparkError, failed: int, hint: str = ""
    ) -> None:
        super().__init__(
            f"partition {partition}, row {row}, subject {shorten(subject)}: not acked: {cause}"
            f"{f'; {hint}' if hint else ''} ({failed} row{'s' if failed > 1 else ''} of this task so far)"
        )
        self.partition = partition
        self.row = row
        self.subject = subject
        self.cause = cause
        self.failed = failed


@dataclass(slots=True)
class TaskCounts:
    """What a task did; see :class:`jetspark.spark.sink.write_result.WriteResult`."""

    rows: int = 0
    stored: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    resent: int = 0
    bytes: int = 0
    streams: set[str] = field(default_factory=set)
    dropped_headers: set[str] = field(default_factory=set)


def write_task(
    batches: Iterable[pa.RecordBatch],
    options: SinkOptions,
    columns: SinkColumns,
    target: Target,
    *,
    partition: int,
    origin: str,
) -> TaskCounts:
    """Publish every row and wait for every ack. ``origin`` begins the derived message ids."""
    connection = patiently(lambda: connections.connection(options.connection), "connecting to write")
    js = connections.jetstream(options.connection)
    expect = None if options.stream is None else Expect(stream=options.stream)
    planner = RowPlanner(
        columns,
        partition=partition,
        max_size=min(connection.max_payload, target.max_msg_size or connection.max_payload),
        subject=options.subject,
        ids=MessageIds(origin, partition) if options.derive_msg_id else None,
        expect=expect,
        dead_letter_subject=options.dead_letter_subject,
        keep_nats_headers=options.keep_nats_headers,
        require_ids=options.require_exactly_once and not options.derive_msg_id,
    )
    publisher = js.publisher(window=options.window, ack_timeout=options.ack_timeout, retry=True)
    pipeline = _Pipeline(js, publisher, options, columns, partition, expect, target)
    failure: PublishFailed | None = None
    try:
        with publisher:
            for batch in batches:
                plain = planner.plan_plain(batch)
                if plain is not None:
                    pipeline.publish_plain(plain)
                else:
                    pipeline.publish(planner.plan(batch))
    except PublishFailed as error:
        failure = error
    pipeline.finish()  # names the row
    if failure is not None:
        raise failure
    counts = pipeline.counts
    counts.rows, counts.resent = planner.rows, publisher.stats.resent
    counts.dropped_headers = planner.dropped_headers
    return counts


# Streams whose duplicate window this process has checked.
_checked: set[tuple[SinkOptions, str]] = set()


class _Pipeline:
    """A publisher and the rows on their way through it."""

    def __init__(
        self,
        js: JetStream,
        publisher: Publisher,
        options: SinkOptions,
        columns: SinkColumns,
        partition: int,
        expect: Expect | None,
        target: Target,
    ) -> None:
        self._js = js
        self._publisher = publisher
        self._options = options
        self._columns = columns
        self._partition = partition
        self._expect = expect
        self._known_stream = target.stream
        self._subjects = SubjectCheck(js, target.subjects)
        self._doubts: set[str] = set()
        self._flights: deque[tuple[list[Outgoing] | PlainRows, AckBatch]] = deque()
        self.counts = TaskCounts()

    def publish(self, messages: list[Outgoing]) -> None:
        """Send them; waits for room in the window. Raises when an earlier row was refused."""
        messages = self._try_first(messages)
        if not messages:
            return
        dead = [message for message in messages if message.dead]
        for part in (messages,) if not dead else ([m for m in messages if not m.dead], dead):
            if part:
                self._flights.append((part, self._send(part)))
        self.counts.bytes += sum(len(message.data) for message in messages)
        self._check_some()

    def publish_plain(self, rows: PlainRows) -> None:
        """The same for the common case."""
        first, subjects, datas, ids = rows
        if self._doubtful(subjects):
            texts = [None] * len(datas) if ids is None else [one.decode() for one in ids]
            parts = zip(count(first), subjects, datas, texts)  # count has no end
            self.publish([Outgoing(row, to, data, None, id, None, False) for row, to, data, id in parts])
            return
        self._flights.append(
            (rows, publish_columns(self._publisher, Columns(subjects, datas, ids, self._expect)))
        )
        self.counts.bytes += sum(map(len, datas))
        self._check_some()

    def _doubtful(self, subjects: list[str]) -> bool:
        """Whether no stream seems to store some of their subjects."""
        if self._columns.subject is not None:  # else it was checked at the start
            self._doubts.update(self._subjects.not_stored(subjects))
        return bool(self._doubts)

    def _try_first(self, messages: list[Outgoing]) -> list[Outgoing]:
        """Publish the first row of each doubtful subject alone; the others wait."""
        if not self._doubtful([message.subject for message in messages if not message.dead]):
            return messages
        left: list[Outgoing] = []
        for message in messages:
            if message.dead or message.subject not in self._doubts:
                left.append(message)
                continue
            self._doubts.remove(message.subject)
            self._publish_alone(message)
        return left

    def _publish_alone(self, message: Outgoing) -> None:
        row, subject, data, headers, msg_id, ttl, _ = message
        try:
            ack = self._js.publish(
                subject,
                data,
                headers=headers,
                msg_id=msg_id,
                expect=self._expect,
                ttl=ttl,
                timeout=self._options.ack_timeout,
                retries=_FIRST_TRIES,
                retry_wait=min(_FIRST_PAUSE, self._options.ack_timeout / _FIRST_TRIES),
            )
        except JetsparkError as error:
            raise RowNotAcked(self._partition, row, subject, error, 1, self._hint(subject, error)) from None
        self.counts.stored += not ack.duplicate
        self.counts.duplicates += ack.duplicate
        self.counts.bytes += len(data)
        self.counts.streams.add(ack.stream)

    def _check_some(self) -> None:
        while len(self._flights) > _UNCHECKED and self._flights[0][1].done:
            self._check()

    def finish(self) -> None:
        """Check the remaining acks; all have arrived or failed."""
        while self._flights:
            self._check()

    def _send(self, messages: list[Outgoing]) -> AckBatch:
        expect = self._expect
        return self._publisher.publish_many(
            [
                Publishing(subject, data, headers, msg_id, None if dead else expect, ttl)
                for _, subject, data, headers, msg_id, ttl, dead in messages
            ]
        )

    def _check(self) -> None:
        """Check the acks of the oldest record batch; all have arrived or failed."""
        rows, batch = self._flights.popleft()
        if batch.failures:
            index = min(batch.failures)
            error = batch.failures[index]
            if isinstance(rows, PlainRows):
                row, subject = rows.first + index, rows.subjects[index]
            else:
                row, subject = rows[index].row, rows[index].subject
            failed = self._publisher.stats.failed
            raise RowNotAcked(self._partition, row, subject, error, failed, self._hint(subject, error))
        if not isinstance(rows, PlainRows) and rows[0].dead:
            self.counts.dead_letters += batch.count
            return  # dead letters go to another stream than the rows
        self.counts.duplicates += batch.duplicates
        self.counts.stored += batch.count - batch.duplicates
        streams = self.counts.streams
        if self._expect is not None and self._expect.stream is not None:
            streams.add(self._expect.stream)  # the server has checked it
            return
        streams |= batch.streams
        for stream in batch.streams:
            self._look_at(stream)

    def _look_at(self, stream: str) -> None:
        """The first ack names the stream if it was unknown before: warn if its window is short."""
        key = (self._options, stream)
        if stream == self._known_stream or key in _checked:
            return
        _checked.add(key)
        try:
            config = self._js.get_stream(stream).cached_info.config
        except JetsparkError as error:
            log.warning(
                "stream %r: its duplicate_window is unknown, its info is not readable: %s", stream, error
            )
            return
        check_stream(stream, config, self._options, self._columns)

    def _hint(self, subject: str, error: JetsparkError) -> str:
        """Find out which of two causes a publish time-out has."""
        if not isinstance(error, RequestTimeout | NoRespondersError):
            return ""
        try:
            self._js.stream_name_by_subject(subject)
        except NotFound:
            return "no stream stores this subject: add it to the subjects of one, or correct the row"
        except JetsparkError:
            return ""
        return "the stream exists: it may have no leader; raise ackTimeout if that can take longer"
