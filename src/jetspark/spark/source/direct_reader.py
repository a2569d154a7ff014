"""Reading a range by batch direct get: for work queues, which refuse consumers that consume nothing.

The pages come as columns (:func:`jetspark.arrow.get_arrow`); the next one is requested while a page is
processed. A request has one filter. Several filters are concurrent requests, whose answers are merged by
sequence; a message that matches two of them comes once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from jetspark.arrow import get_arrow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jetspark.blocking.stream import Stream
    from jetspark.spark.source.planning import Range


def direct_batches(
    stream: Stream, wanted: Range, position: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of the range from ``position`` on, in order of sequence, which must be among the columns."""
    sources = [
        iter(get_arrow(stream, subject, seq=position, end=wanted.end, columns=columns))
        for subject in wanted.subjects or (">",)
    ]
    return sources[0] if len(sources) == 1 else merged(sources)


def merged(sources: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Batches in order of sequence out of several such; rows of the same sequence are one row."""
    held: dict[int, pa.RecordBatch] = {}
    open_ones = dict(enumerate(sources))
    while True:
        for index, source in list(open_ones.items()):
            if index not in held:
                batch = next(source, None)
                if batch is None:
                    del open_ones[index]
                else:
                    held[index] = batch
        if not held:
            return
        # Behind the end of the shortest batch there may be more of its source.
        upto = min(batch.column("sequence")[-1].as_py() for batch in held.values())
        parts = []
        for index, batch in list(held.items()):
            inside = pc.sum(pc.less_equal(batch.column("sequence"), upto), min_count=0).as_py()
            parts.append(batch.slice(0, inside))
            if inside == batch.num_rows:
                del held[index]
            else:
                held[index] = batch.slice(inside)
        yield _in_order(parts)


def _in_order(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(parts)
    table = table.take(pc.sort_indices(table.column("sequence")))
    sequences = table.column("sequence").combine_chunks()
    if len(sequences) > 1:
        first = pc.not_equal(sequences[1:], sequences[:-1])
        table = table.filter(pa.concat_arrays([pa.array([True]), first]))
    (batch,) = table.combine_chunks().to_batches()
    return batch
