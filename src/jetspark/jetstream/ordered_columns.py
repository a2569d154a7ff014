"""Ordered consumers as columns: the check of :mod:`ordered` on what :mod:`columnar` hands on.

The check needs the first and the last reply of a run, and columns have those at hand. So order costs nothing
here either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetspark.jetstream.ack_reply import NotJetStreamMessage, sequences
from jetspark.jetstream.columnar import ColumnarSink
from jetspark.jetstream.ordered import OrderedSink
from jetspark.jetstream.ordered_flow import Verdict
from jetspark.wire.columns import Columns

if TYPE_CHECKING:
    from collections.abc import Sequence


class OrderedColumnarSink(OrderedSink, ColumnarSink):
    """Columns from whatever consumer the chain has at the moment."""

    def deliver_columns(self, columns: Columns) -> None:
        if self.done:
            return
        replies = columns.replies
        try:
            first, _ = _sequences(replies[0])
            last, stream_seq = _sequences(replies[-1])
        except NotJetStreamMessage:
            self._inspect_columns(columns)
            return
        verdict = self._ordered.on_batch(first, last, stream_seq, len(columns), self.serial, 0.0)
        if verdict is Verdict.DELIVER:
            super().deliver_columns(columns)
        elif verdict is Verdict.INSPECT:
            self._inspect_columns(columns)

    def preload(self, items: list[Any]) -> None:
        """What an earlier fetch had received: it has passed the check."""
        if items:
            super().deliver_columns(self._columns_of(items))

    def _inspect_columns(self, columns: Columns) -> None:
        rows: list[int] = []
        keys: list[tuple[int, int, int]] = []
        for row, reply in enumerate(columns.replies):
            try:
                consumer_seq, stream_seq = _sequences(reply)
            except NotJetStreamMessage:
                continue  # somebody else published to our inbox
            rows.append(row)
            keys.append((self.serial, consumer_seq, stream_seq))
        keep, actions = self._ordered.on_each(keys, self._now())
        if keep:
            super().deliver_columns(_select(columns, [rows[index] for index in keep]))
        self._chain.perform(actions)

    def _unread_at(self) -> int:
        return _sequences(self.chunks[0].replies[0])[1] if self.chunks else 0


def _select(columns: Columns, rows: Sequence[int]) -> Columns:
    headers = {}
    for place, row in enumerate(rows):
        block = columns.headers.get(row)
        if block is not None:
            headers[place] = block
    return Columns(
        columns.sid,
        [columns.subjects[row] for row in rows],
        [columns.replies[row] for row in rows],
        [columns.payloads[row] for row in rows],
        headers,
        columns.nbytes * len(rows) // len(columns),
    )


def _sequences(reply: bytes) -> tuple[int, int]:
    return sequences(reply.decode("utf-8", "surrogateescape"))
