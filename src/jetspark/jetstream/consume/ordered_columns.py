"""Ordered consumers as columns: applies the check of :mod:`ordered_chain` to the runs of :mod:`columnar`.

The check needs only the first and the last reply of a run, and columns give direct access to those. So order
costs nothing here either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetspark.jetstream.consume.columnar import ColumnarSink
from jetspark.jetstream.consume.ordered_chain import OrderedSink
from jetspark.jetstream.flow.ack_reply import NotJetStreamMessage, sequences
from jetspark.jetstream.flow.ordered import Verdict

if TYPE_CHECKING:
    from jetspark.wire.columns import AnyColumns


class OrderedColumnarSink(OrderedSink, ColumnarSink):
    """Columns from the chain's current consumer."""

    def deliver_columns(self, columns: AnyColumns) -> None:
        if self.done:
            return
        try:
            first, _ = _sequences(columns.reply(0))
            last, stream_seq = _sequences(columns.reply(-1))
        except NotJetStreamMessage:
            self._inspect_columns(columns)
            return
        verdict = self._ordered.on_batch(first, last, stream_seq, len(columns), self.serial, 0.0)
        if verdict is Verdict.DELIVER:
            super().deliver_columns(columns)
        elif verdict is Verdict.INSPECT:
            self._inspect_columns(columns)

    def preload(self, items: list[Any]) -> None:
        """Messages of an earlier fetch, which have passed the order check."""
        if items:
            super().deliver_columns(self._columns_of(items))

    def _inspect_columns(self, columns: AnyColumns) -> None:
        rows: list[int] = []
        keys: list[tuple[int, int, int]] = []
        for row, reply in enumerate(columns.replies):
            try:
                consumer_seq, stream_seq = _sequences(reply)
            except NotJetStreamMessage:
                continue  # another client published to our inbox
            rows.append(row)
            keys.append((self.serial, consumer_seq, stream_seq))
        keep, actions = self._ordered.on_each(keys, self._now())
        if keep:
            super().deliver_columns(columns.select([rows[index] for index in keep]))
        self._chain.perform(actions)

    def _unread_at(self) -> int:
        return _sequences(self.chunks[0].reply(0))[1] if self.chunks else 0


def _sequences(reply: bytes) -> tuple[int, int]:
    return sequences(reply.decode("utf-8", "surrogateescape"))
