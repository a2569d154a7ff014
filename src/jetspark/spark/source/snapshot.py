"""The last message of each subject, as of one sequence, on an executor: no key missing, none twice.

The snapshot is of the stream's last sequence at planning. The stream may be written to meanwhile, so a
key's newest message may be a newer one by now. Each key that was there at planning comes once, with

- its newest message up to the snapshot's sequence, while the stream has it;
- else, when the stream replaces messages (``max_msgs_per_subject``, rollups), its newest message at all:
  that of the snapshot was replaced since;
- nothing when it was deleted since, which :func:`jetspark.spark.source.claims.judge_keys` takes for loss
  or not.

A key that is first written after planning does not come, except on streams that replace messages: there
it can't be told from a key whose message was replaced.

How: a last-per-subject consumer gives the newest message of each subject as of its creation. When all of
them are within the snapshot, that is it. Otherwise the leader is asked for the list of subjects, and
those that are missing are looked for in the stretch of the stream before the snapshot's end, which is
read backwards in growing pieces: a key that was written again a moment later was most likely written
shortly before, too. Multi-subject direct gets could answer that as well, but any replica or mirror may
answer them, and one that is behind answers with an older message. Work queues refuse the consumer; there
all subjects are looked for in this way.

On replicated streams the consumer is made again until it lives with the stream's leader: the newest
message of a replica that is behind may not be the newest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from jetspark.errors import ConsumerDeleted, ConsumerNotFound, MessageNotFound
from jetspark.jetstream.models.stream_config import RetentionPolicy
from jetspark.spark.patience import PASSING, Patience, patiently
from jetspark.spark.source.claims import Outcome, found_of, is_filtered, judge_keys
from jetspark.spark.source.data_loss import act, identity, keys_removed, recreated, report
from jetspark.spark.source.range_proof import RangeInterrupted, RangeOver

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from contextlib import AbstractContextManager

    from jetspark.blocking.consumer import Consumer
    from jetspark.blocking.stream import Stream
    from jetspark.jetstream.stored import StoredMsg
    from jetspark.spark.source.planning import Range

#: Sequences of the first piece that is read backwards; each further one is four times as long.
_PIECE = 10_000
#: Up to this many subjects the server filters; a consumer with more filters costs more than it saves.
_FILTERS = 64
#: Rows of one batch of looked-up messages.
_LOOKED_UP = 1000


class Reader(Protocol):
    """What a snapshot needs of the reader of ranges."""

    def with_columns(self, *names: str) -> Reader: ...

    def read(self, wanted: Range, *, gaps: bool = True) -> Iterator[pa.RecordBatch]: ...

    def stored(self, messages: Sequence[StoredMsg]) -> pa.RecordBatch: ...

    def consumer(self, stream: Stream, wanted: Range, position: int) -> AbstractContextManager[Consumer]: ...

    def drain(
        self, consumer: Consumer, stream: Stream, wanted: Range, position: int
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array]]: ...


class Snapshot:
    """Reads one snapshot, with the columns that ``reader`` gives, ``sequence`` and ``subject``."""

    def __init__(self, reader: Reader, stream: Stream, wanted: Range, *, fail: bool) -> None:
        self._reader = reader.with_columns("sequence", "subject")
        self._stream = stream
        self._wanted = wanted
        self._fail = fail
        self._given: set[str] = set()

    def read(self) -> Iterator[pa.RecordBatch]:
        """One row for each subject, in no order."""
        config = self._stream.config
        limit = 0 if config.discard_new_per_subject else max(0, config.max_msgs_per_subject or 0)
        whole = False
        if config.retention != RetentionPolicy.WORK_QUEUE:
            whole = yield from self._newest(replaces=limit == 1)
        if not whole:
            missing = self._subjects() - self._given
            if limit != 1:
                yield from self._before(missing)
            if limit or config.allow_rollup_hdrs:
                yield from self._look_up(missing)
        self._check_keys()

    def _newest(self, *, replaces: bool) -> Generator[pa.RecordBatch, None, bool]:
        """What a last-per-subject consumer gives; returns whether that is all. ``replaces``: newer too."""
        patience = Patience()
        while True:
            before = len(self._given)
            try:
                with self._reader.consumer(self._stream, self._wanted, 1) as consumer:
                    self._require_leader(consumer)
                    expected, whole = consumer.cached_info.num_pending, True
                    for batch, sequences in self._reader.drain(consumer, self._stream, self._wanted, 1):
                        numbers = sequences.to_pylist()
                        within = [one < self._wanted.end for one in numbers]
                        whole = whole and all(within)
                        yield from self._fresh(batch, within if not replaces else [True] * len(within))
                return whole and not before and len(self._given) == expected
            except (RangeInterrupted, ConsumerDeleted, ConsumerNotFound, *PASSING) as error:
                patience.lost(len(self._given) > before, error)

    def _require_leader(self, consumer: Consumer) -> None:
        if (self._stream.config.num_replicas or 1) == 1:
            return
        here = consumer.cached_info.cluster
        leader = self._stream.info().cluster
        if here is None or leader is None or not leader.leader or here.leader != leader.leader:
            raise RangeInterrupted(
                f"stream {self._wanted.stream!r}: no consumer could be created on the stream's leader, which "
                "alone knows the last message of each subject; check the cluster's health"
            )
        if self._stream.cached_info.state.last_seq < self._wanted.end - 1:
            raise RangeInterrupted(f"stream {self._wanted.stream!r}: its new leader is not up to date yet")

    def _fresh(self, batch: pa.RecordBatch, within: Sequence[bool]) -> Iterator[pa.RecordBatch]:
        """The rows within the snapshot whose subjects did not come yet."""
        rows = []
        for index, subject in enumerate(batch.column("subject").to_pylist()):
            if within[index] and subject not in self._given:
                self._given.add(subject)
                rows.append(index)
        if len(rows) == batch.num_rows:
            yield batch
        elif rows:
            yield batch.take(pa.array(rows, pa.int64()))

    def _subjects(self) -> set[str]:
        """The subjects that there are, as the leader has them."""
        found: set[str] = set()
        for one in self._wanted.subjects or (">",):
            info = patiently(
                lambda one=one: self._stream.info(subjects_filter=one),  # type: ignore[misc]
                f"the subjects of stream {self._wanted.stream!r}",
            )
            found.update(info.state.subjects or ())
            if identity(info) != self._wanted.created:
                error = recreated(
                    self._wanted.stream, self._wanted.begin, self._wanted.created, identity(info)
                )
                report(error, fail=self._fail)
                raise RangeOver
        return found

    def _before(self, missing: set[str]) -> Iterator[pa.RecordBatch]:
        """The newest messages of ``missing`` within the snapshot; found ones are taken off ``missing``."""
        end, size = self._wanted.end, _PIECE
        first = found_of(self._stream.cached_info).first
        while missing and end > first:
            begin = max(first, end - size)
            subjects = tuple(missing) if len(missing) <= _FILTERS else self._wanted.subjects
            piece = replace(
                self._wanted, begin=begin, end=end, subjects=subjects, last_per_subject=False, seen=None
            )
            newest: dict[str, pa.RecordBatch] = {}
            for batch in self._reader.read(piece, gaps=False):
                last = {
                    subject: index
                    for index, subject in enumerate(batch.column("subject").to_pylist())
                    if subject in missing
                }
                newest.update((subject, batch.slice(index, 1)) for subject, index in last.items())
            if newest:
                table = pa.Table.from_batches(newest.values()).combine_chunks()
                yield from table.to_batches()
            missing.difference_update(newest)
            self._given.update(newest)
            end, size = begin, size * 4

    def _look_up(self, missing: set[str]) -> Iterator[pa.RecordBatch]:
        """The newest messages of ``missing`` subjects at all."""
        found: list[StoredMsg] = []
        for subject in missing:
            try:
                message = patiently(
                    lambda subject=subject: self._stream.get_msg(  # type: ignore[misc]
                        last_by_subject=subject, from_leader=True
                    ),
                    f"the last message of {subject!r}",
                )
            except MessageNotFound:
                continue  # deleted since
            found.append(message)
            self._given.add(subject)
            if len(found) == _LOOKED_UP:
                yield self._reader.stored(found)
                found = []
        if found:
            yield self._reader.stored(found)

    def _check_keys(self) -> None:
        wanted = self._wanted
        if wanted.seen is None:
            return
        info = patiently(self._stream.info, f"the state of stream {wanted.stream!r}")
        found, filtered = found_of(info), is_filtered(info, wanted.subjects)
        outcome = judge_keys(len(self._given), wanted.seen, found, filtered=filtered)
        if outcome != Outcome.FINE:
            given = found.keys if filtered else len(self._given)
            error = keys_removed(wanted.stream, given, wanted.seen.keys, filtered=filtered)
            act(outcome, error, fail=self._fail)
