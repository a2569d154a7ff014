"""JetStream messages as Arrow record batches: the columnar fast path.

From the received bytes to Arrow there is no Python object for a message: the parser cuts columns of bytes
(:mod:`jetspark.wire.columns`), Arrow copies each column in one go, and sequence and timestamp are read out
of the ack replies by Arrow's CSV reader with ``.`` as the delimiter, which is the fastest integer parser at
hand.

Needs the ``arrow`` extra: ``pip install "jetspark[arrow]"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from jetspark.errors import InvalidArgument, JetsparkError
from jetspark.jetstream.ack_reply import Metadata, parse_ack_reply
from jetspark.jetstream.columnar import ConsumeColumns
from jetspark.jetstream.consumer import Consumer
from jetspark.jetstream.pull_options import PullOptions
from jetspark.wire.headers import decode_headers

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as pcsv
except ImportError as error:  # pragma: no cover
    raise ImportError('jetspark.arrow needs pyarrow: pip install "jetspark[arrow]"') from error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from jetspark import blocking
    from jetspark.wire.columns import Columns

SCHEMA = pa.schema(
    [
        pa.field("stream", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("subject", pa.string()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("headers", pa.map_(pa.string(), pa.list_(pa.string()))),
        pa.field("data", pa.binary()),
    ]
)
"""All columns: where a message is stored, when (server time), its headers (an empty map when it has none)
and its payload."""

DEFAULT_BUFFER = 20_000


def consume_arrow(
    consumer: Consumer | blocking.Consumer,
    *,
    columns: Sequence[str] | None = None,
    max_messages: int | None = None,
    max_bytes: int | None = None,
    expires: float = 30.0,
    idle_heartbeat: float | None = None,
    stop_after: int | None = None,
    on_error: Callable[[JetsparkError], Any] | None = None,
) -> ConsumeArrow:
    """Consume a stream as record batches, from an async or a blocking consumer with ack policy none.

    ``async with consume_arrow(c) as batches: async for batch in batches``, or the same without ``async`` for
    a blocking consumer. ``columns``: which of :data:`SCHEMA`, in this order (default all); what is left out
    costs nothing. ``max_messages``: size of the buffer (20,000). The other options are those of
    ``consumer.consume``.
    """
    names = list(SCHEMA.names) if columns is None else list(columns)
    unknown = [name for name in names if name not in SCHEMA.names]
    if unknown:
        raise InvalidArgument("columns", unknown[0], f"must be among {', '.join(SCHEMA.names)}")
    if max_messages is None and max_bytes is None:
        max_messages = DEFAULT_BUFFER
    options = PullOptions(
        max_messages=max_messages,
        max_bytes=max_bytes,
        expires=expires,
        idle_heartbeat=idle_heartbeat,
        stop_after=stop_after,
    )
    return ConsumeArrow(consumer, names, options, on_error)


class ConsumeArrow:
    """Record batches of a consumer; made by :func:`consume_arrow`."""

    def __init__(
        self,
        consumer: Consumer | blocking.Consumer,
        names: list[str],
        options: PullOptions,
        on_error: Callable[[JetsparkError], Any] | None,
    ) -> None:
        self._engine = None if isinstance(consumer, Consumer) else consumer._engine
        source = consumer if isinstance(consumer, Consumer) else consumer._target
        self._names = names
        self._stream = source.stream_name
        self._source = ConsumeColumns(source, options, on_error)
        self._last_reply = b""

    @property
    def closed(self) -> bool:
        """Whether the end has come: stopped, ``stop_after`` reached, or an error."""
        return self._source.closed

    @property
    def last_metadata(self) -> Metadata | None:
        """Sequence, delivery and pending count of the last row handed out; None before the first."""
        return parse_ack_reply(self._last_reply.decode()) if self._last_reply else None

    # async

    async def __aenter__(self) -> Self:
        await self._source.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._source.stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        columns = await self._source.take()
        if columns is None:
            raise StopAsyncIteration
        return self._convert(columns)

    # blocking

    def __enter__(self) -> Self:
        self._blocking_engine().run(self._source.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocking_engine().run(self._source.stop)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = self.next_batch()
        if batch is None:
            raise StopIteration
        return batch

    def next_batch(self, timeout: float | None = None) -> pa.RecordBatch | None:
        """The rows that have arrived, waiting at most ``timeout`` seconds for the first (None: for ever).

        None when nothing came in time, or at the end (``closed``).
        """
        columns = self._blocking_engine().run(self._source.take, timeout)
        return None if columns is None else self._convert(columns)

    def _blocking_engine(self) -> Any:
        if self._engine is None:
            raise InvalidArgument(
                "consumer", self._stream, "is an async consumer; use 'async with' and 'async for'"
            )
        return self._engine

    def _convert(self, columns: Columns) -> pa.RecordBatch:
        self._last_reply = columns.replies[-1]
        return to_record_batch(columns, self._names, self._stream)


def to_record_batch(columns: Columns, names: Sequence[str], stream: str) -> pa.RecordBatch:
    """The chosen columns of :data:`SCHEMA`, in the order of ``names``."""
    arrays: dict[str, pa.Array] = {}
    if "sequence" in names or "timestamp" in names:
        sequences, nanoseconds = _positions(columns.replies)
        arrays["sequence"] = sequences
        if "timestamp" in names:
            arrays["timestamp"] = pc.divide(nanoseconds, 1000).cast(SCHEMA.field("timestamp").type)
    if "stream" in names:
        arrays["stream"] = pa.repeat(pa.scalar(stream, pa.string()), len(columns))
    if "subject" in names:
        arrays["subject"] = _text(columns.subjects)
    if "headers" in names:
        arrays["headers"] = _headers(columns)
    if "data" in names:
        arrays["data"] = pa.array(columns.payloads, pa.binary())
    fields = [SCHEMA.field(name) for name in names]
    return pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=pa.schema(fields))


# Tokens of an ack reply (ADR-15 'JSAck'): v1 has 9; v2 has 11 or more, with domain and account in front.
_POSITIONS = {9: ("5", "7")}
_POSITIONS_V2 = ("7", "9")


def _positions(replies: list[bytes]) -> tuple[pa.Array, pa.Array]:
    """Stream sequences and timestamps (ns) of a column of ack replies."""
    tokens = replies[0].count(b".") + 1
    sequence, timestamp = _POSITIONS.get(tokens, _POSITIONS_V2)
    text = b"\n".join(replies)
    try:
        table = pcsv.read_csv(
            pa.BufferReader(text),
            read_options=pcsv.ReadOptions(
                column_names=[str(index) for index in range(tokens)],
                use_threads=False,
                block_size=len(text) + 1,
            ),
            parse_options=pcsv.ParseOptions(delimiter=".", quote_char=False),
            convert_options=pcsv.ConvertOptions(
                include_columns=[sequence, timestamp],
                column_types={sequence: pa.int64(), timestamp: pa.int64()},
            ),
        )
        if table.num_rows == len(replies):
            return table.column(0).combine_chunks(), table.column(1).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowKeyError):
        pass  # replies of different shape in one batch; the slow way says which one is wrong
    metadata = [parse_ack_reply(reply.decode("utf-8", "replace")) for reply in replies]
    return (
        pa.array([one.sequence.stream for one in metadata], pa.int64()),
        pa.array([one.timestamp.ns for one in metadata], pa.int64()),
    )


def _text(values: list[bytes]) -> pa.Array:
    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        # A subject that is not UTF-8: the server does not care, Arrow's string type does.
        return pa.array([value.decode("utf-8", "replace") for value in values], pa.string())


def _headers(columns: Columns) -> pa.Array:
    kind = SCHEMA.field("headers").type
    if not columns.headers:
        offsets = pa.repeat(pa.scalar(0, pa.int32()), len(columns) + 1)
        return pa.MapArray.from_arrays(
            offsets, pa.array([], pa.string()), pa.array([], pa.list_(pa.string())), type=kind
        )
    rows: list[list[tuple[str, list[str]]]] = [[] for _ in range(len(columns))]
    for row, block in columns.headers.items():
        rows[row] = [
            (_clean(name), [_clean(value) for value in values])
            for name, values in decode_headers(block).to_dict().items()
        ]
    return pa.array(rows, kind)


def _clean(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
