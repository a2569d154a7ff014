"""JetStream messages as Arrow record batches: the columnar fast path.

Between the received bytes and Arrow there is no Python object per message. The compiled core records where
everything lies in the received chunks and copies it once, into the buffers of Arrow arrays; with ``views``,
payloads are not copied at all. In pure Python the parser cuts columns of bytes
(:mod:`jetspark.wire.columns`), Arrow copies each column in one go, and sequence and timestamp are read from
the ack replies one by one.

Needs the ``arrow`` extra: ``pip install "jetspark[arrow]"``.
"""

from __future__ import annotations

import contextlib
import functools
from array import array
from typing import TYPE_CHECKING, Any, Literal, Self

from jetspark.errors import ConnectionClosed, InvalidArgument, JetsparkError, ProtocolError
from jetspark.jetstream.consume.columnar import ConsumeColumns
from jetspark.jetstream.consumer import Consumer
from jetspark.jetstream.direct_columns import PAGE, PAGE_BYTES, read_pages
from jetspark.jetstream.flow.ack_reply import Metadata, parse_ack_reply, position
from jetspark.jetstream.flow.options import PullOptions
from jetspark.jetstream.models.values import Timestamp
from jetspark.jetstream.stored import check_positive
from jetspark.jetstream.stream import Stream
from jetspark.wire.columns import PackedColumns
from jetspark.wire.headers import decode_headers
from jetspark.wire.subjects import validate_filter

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:  # pragma: no cover
    raise ImportError('jetspark.arrow needs pyarrow: pip install "jetspark[arrow]"') from error

from jetspark.blocking._facade import Facade, inside
from jetspark.jetstream.stream import api_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
    from types import TracebackType

    from jetspark import blocking
    from jetspark.blocking._engine import Engine
    from jetspark.blocking._threads import Courier
    from jetspark.jetstream.direct_columns import Page
    from jetspark.wire._speed import Rows
    from jetspark.wire.columns import AnyColumns

__all__ = [
    "SCHEMA",
    "ConsumeArrow",
    "GetArrow",
    "consume_arrow",
    "get_arrow",
]

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
"""All columns: where a message is stored, when (server time), its headers (an empty map if it has none) and
its payload."""

_INT64, _TIME, _MAP = (SCHEMA.field(name).type for name in ("sequence", "timestamp", "headers"))
_ENTRIES = pa.struct([_MAP.key_field, _MAP.item_field])

DEFAULT_BUFFER = 24 * 1_048_576
"""In bytes, as the server counts them. A server drops a client that is behind by more than ``max_pending``,
64 MiB by default. It counts everything it is writing until the last byte is written; meanwhile we may have
read that and requested as much again. On the wire, the smallest messages take a third more than is counted.
So up to three eighths of ``max_pending`` is safe."""

DEFAULT_THRESHOLD = DEFAULT_BUFFER * 3 // 4
"""Refilling the buffer in small steps keeps the server busy without a pause. When half is refilled at a time,
as in ``consume`` (ADR-37 'Max messages and max bytes options'), the server reads in bursts. With a larger
buffer that costs a few percent of the rate of large messages, with this one little (docs/performance.md)."""

# A consumer that allows fewer waiting requests would refuse some.
_MANY_WAITING = 16

# How long the end of a 'with' block waits for an error listener that is still running.
_LISTENER_GRACE = 2.0


def consume_arrow(
    consumer: Consumer | blocking.Consumer,
    *,
    columns: Sequence[str] | None = None,
    max_messages: int | None = None,
    max_bytes: int | None = None,
    threshold_messages: int | None = None,
    threshold_bytes: int | None = None,
    expires: float = 30.0,
    idle_heartbeat: float | None = None,
    stop_after: int | None = None,
    views: bool = False,
    on_error: Callable[[JetsparkError], Any] | None = None,
) -> ConsumeArrow:
    """Consume a stream as record batches, from an async or a blocking consumer with ack policy none.

    An ordered consumer is best (``js.create_ordered_consumer``): it is created again at its position when a
    server restarts or a message is missing. Any other consumer may be gone then, and its position in the
    stream with it. In that case this ends with ``ConsumerLost``, after the rows that had arrived.

    ``async with consume_arrow(c) as batches: async for batch in batches``, or the same without ``async`` for
    a blocking consumer. ``columns``: which of :data:`SCHEMA`, in this order (default all); columns that are
    left out cost nothing. ``max_bytes``: size of the buffer, default 24 MiB; it must hold the largest message
    twice. If the server keeps more for a client (``max_pending``, 64 MiB by default), a larger buffer makes
    large messages a few percent faster, up to three eighths of ``max_pending``. Or ``max_messages``: the same
    in messages. ``threshold_bytes``, ``threshold_messages``: refill when this much or less is left; default
    half of the buffer, or three quarters of the default buffer. ``views`` (default False): the column
    ``data`` has the type ``binary_view``, whose payloads stay where they were received. That saves a copy,
    which pays off from a few kilobytes per message on. Not all Arrow functions accept that type;
    ``cast(pa.binary())`` makes the copy. The columns of a batch share its memory, as with a batch read from a
    file. To keep one column of many batches and release the payloads, keep a copy
    (``column.to_numpy().copy()``, ``to_pylist()``). The other options are those of ``consumer.consume``. With
    a buffer of 1 MiB or more, the connection is read in larger pieces while this is open: any message on it,
    including those of other subscriptions, may then be late by up to 4 ms.
    """
    names = _names(columns)
    if max_messages is None and max_bytes is None:
        max_bytes = DEFAULT_BUFFER
        waiting = getattr(getattr(consumer, "config", None), "max_waiting", None) or _MANY_WAITING
        if threshold_bytes is None and waiting >= _MANY_WAITING:
            threshold_bytes = DEFAULT_THRESHOLD
    options = PullOptions(
        max_messages=max_messages,
        max_bytes=max_bytes,
        threshold_messages=threshold_messages,
        threshold_bytes=threshold_bytes,
        expires=expires,
        idle_heartbeat=idle_heartbeat,
        stop_after=stop_after,
    )
    if not isinstance(views, bool):
        raise InvalidArgument("views", views, "must be True or False")
    return ConsumeArrow(consumer, names, options, on_error, views=views)


def _names(columns: Sequence[str] | None) -> list[str]:
    names = list(SCHEMA.names) if columns is None else list(columns)
    unknown = [name for name in names if name not in SCHEMA.names]
    if unknown:
        raise InvalidArgument("columns", unknown[0], f"must be among {', '.join(SCHEMA.names)}")
    if not names or len(set(names)) < len(names):
        raise InvalidArgument("columns", names, "must name at least one column, and none twice")
    return names


def _inside(handle: Any) -> tuple[Engine | None, Any]:
    """The engine of a blocking handle, and the async handle."""
    if isinstance(handle, Facade):
        return inside(handle)
    return None, handle


class ConsumeArrow:
    """The record batches of a consumer; made by :func:`consume_arrow`."""

    def __init__(
        self,
        consumer: Consumer | blocking.Consumer,
        names: list[str],
        options: PullOptions,
        on_error: Callable[[JetsparkError], Any] | None,
        *,
        views: bool = False,
    ) -> None:
        self._views = views
        self._engine, source = _inside(consumer)
        if not isinstance(source, Consumer):
            raise InvalidArgument(
                "consumer", consumer, "must be a Consumer of jetspark or of jetspark.blocking"
            )
        self._errors: Courier | None = None
        if self._engine is not None and on_error is not None:
            from jetspark.blocking._facade import check_plain
            from jetspark.blocking._threads import Courier

            # In its own thread: user code in the loop's thread could never use the API.
            check_plain("on_error", on_error)
            self._errors = Courier(
                on_error, f"on_error of consumer {source.name!r} of stream {source.stream_name!r}"
            )
            on_error = self._errors.put
        self._names = names
        self._stream = source.stream_name
        self._source = ConsumeColumns(source, options, on_error, for_threads=self._engine is not None)
        self._last_reply = b""

    @property
    def closed(self) -> bool:
        """Whether it has ended: stopped, ``stop_after`` reached, or an error."""
        return self._source.closed

    @property
    def last_metadata(self) -> Metadata | None:
        """Sequence, delivery and pending count of the last row that was returned; None before the first."""
        return parse_ack_reply(self._last_reply.decode()) if self._last_reply else None

    # async

    async def __aenter__(self) -> Self:
        if self._engine is not None:
            raise InvalidArgument("consumer", self._stream, "is a blocking consumer; use 'with' and 'for'")
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
        # If the connection was closed inside the block, this has ended too.
        with contextlib.suppress(ConnectionClosed):
            self._blocking_engine().run(self._source.stop)
        if self._errors is not None:
            self._errors.stop(_LISTENER_GRACE)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = self.next_batch()
        if batch is None:
            raise StopIteration
        return batch

    def next_batch(self, timeout: float | None = None) -> pa.RecordBatch | None:
        """The rows that have arrived, waiting at most ``timeout`` seconds for the first (None: forever).

        Returns None if nothing arrived in time, or at the end (``closed``).
        """
        columns = self._blocking_engine().run(self._source.take, timeout)
        return None if columns is None else self._convert(columns)

    def _blocking_engine(self) -> Engine:
        if self._engine is None:
            raise InvalidArgument(
                "consumer", self._stream, "is an async consumer; use 'async with' and 'async for'"
            )
        return self._engine

    def _convert(self, columns: AnyColumns) -> pa.RecordBatch:
        batch = to_record_batch(columns, self._names, self._stream, views=self._views)
        self._last_reply = columns.reply(-1)
        return batch


def get_arrow(
    stream: Stream | blocking.Stream,
    subject: str = ">",
    *,
    seq: int = 1,
    end: int | None = None,
    columns: Sequence[str] | None = None,
    batch: int = PAGE,
    max_bytes: int = PAGE_BYTES,
) -> GetArrow:
    """Stored messages as record batches, from sequence ``seq`` to the end of the stream, or before ``end``.

    ``async for batch in get_arrow(stream)``, or ``for`` with a blocking stream. It uses batch direct get: the
    stream needs ``allow_direct``, and the server must be 2.11 or newer. No consumer is created and nothing is
    consumed, so work queues can be read as well. ``subject``: a filter, default all. ``columns``: which of
    :data:`SCHEMA`, in this order (default all). ``batch`` and ``max_bytes``: size of one request (10,000
    messages, 8 MiB), and so of one record batch. Any replica may answer, and one that is behind ends early.
    """
    names = _names(columns)
    for field, value in (("seq", seq), ("end", end), ("batch", batch), ("max_bytes", max_bytes)):
        if value is not None:
            check_positive(field, value)
    validate_filter(subject, field="subject")
    return GetArrow(
        stream, names, {"subject": subject, "seq": seq, "end": end, "batch": batch, "max_bytes": max_bytes}
    )


class GetArrow:
    """Record batches of stored messages; made by :func:`get_arrow`. Iterate it once."""

    def __init__(self, stream: Stream | blocking.Stream, names: list[str], request: dict[str, Any]) -> None:
        self._engine, source = _inside(stream)
        if not isinstance(source, Stream):
            raise InvalidArgument("stream", stream, "must be a Stream of jetspark or of jetspark.blocking")
        self._names = names
        self._stream = source.name
        self._end = request["end"]
        self._pages = read_pages(api_of(source), source.name, **request)

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        if self._engine is not None:
            raise InvalidArgument("stream", self._stream, "is a blocking stream; use 'for'")
        async with contextlib.aclosing(self._pages) as pages:
            async for page in pages:
                batch = self._convert(page)
                if batch.num_rows:
                    yield batch

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        engine = self._engine
        if engine is None:
            raise InvalidArgument("stream", self._stream, "is an async stream; use 'async for'")
        try:
            while (page := engine.run(_next_page, self._pages)) is not None:
                batch = self._convert(page)
                if batch.num_rows:
                    yield batch
        finally:
            engine.spawn(self._pages.aclose)

    def _convert(self, page: Page) -> pa.RecordBatch:
        sequences = _digits(page.sequences)
        batch = _stored_batch(page, sequences, self._names, self._stream)
        if self._end is None or page.last < self._end:
            return batch
        inside = pc.sum(pc.less(sequences, self._end), min_count=0).as_py()
        return batch.slice(0, inside)


async def _next_page(pages: AsyncGenerator[Page]) -> Page | None:
    return await anext(pages, None)


def _digits(values: list[bytes]) -> pa.Array:
    try:
        return pa.array(values, pa.binary()).cast(pa.string()).cast(_INT64)
    except pa.ArrowInvalid as error:
        raise ProtocolError(f"direct get answer with a sequence beyond 63 bits: {error}") from None


def _stored_batch(page: Page, sequences: pa.Array, names: Sequence[str], stream: str) -> pa.RecordBatch:
    arrays: dict[str, pa.Array] = {"sequence": sequences}
    if "stream" in names:
        arrays["stream"] = _repeated(stream, len(page))
    if "subject" in names:
        arrays["subject"] = _strings_of(page.subjects)
    if "timestamp" in names:
        arrays["timestamp"] = _times(page.times)
    if "headers" in names:
        arrays["headers"] = _headers(page.columns)
    if "data" in names:
        arrays["data"] = _binary(page.columns, 2)
    return pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=_schema(tuple(names), False))


def _times(texts: list[bytes]) -> pa.Array:
    """RFC 3339 times, in microseconds."""
    try:
        nanoseconds = pa.array(texts, pa.binary()).cast(pa.string()).cast(pa.timestamp("ns", "UTC"))
    except pa.ArrowInvalid:
        # After the year 2262, or not a time at all; the slow path tells which.
        found = [Timestamp.parse(text.decode("utf-8", "replace")) for text in texts]
        return pa.array([0 if one is None else one.ns // 1000 for one in found], _INT64).cast(_TIME)
    return pc.divide(nanoseconds.cast(_INT64), 1000).cast(_TIME)


def to_record_batch(
    columns: AnyColumns, names: Sequence[str], stream: str, *, views: bool = False
) -> pa.RecordBatch:
    """The chosen columns of :data:`SCHEMA`, in the order of ``names``; ``views``: data as ``binary_view``."""
    schema = _schema(tuple(names), views)
    if isinstance(columns, PackedColumns) and not columns.headers and names and _import_batch is not None:
        batch = _import_rows(columns.rows, tuple(names), stream, schema, views)
        if batch is not None:
            return batch
    arrays: dict[str, pa.Array] = {}
    if "sequence" in names or "timestamp" in names:
        arrays["sequence"], arrays["timestamp"] = _positions(columns)
    if "stream" in names:
        arrays["stream"] = _repeated(stream, len(columns))
    if "subject" in names:
        arrays["subject"] = _text(columns)
    if "headers" in names:
        arrays["headers"] = _headers(columns)
    if "data" in names:
        arrays["data"] = _data_views(columns) if views else _binary(columns, 2)
    return pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=schema)


@functools.lru_cache(maxsize=64)
def _schema(names: tuple[str, ...], views: bool) -> pa.Schema:
    fields = [SCHEMA.field(name) for name in names]
    if views:
        fields = [field.with_type(pa.binary_view()) if field.name == "data" else field for field in fields]
    return pa.schema(fields)


# Constant columns are slices of cached arrays, whose lengths are powers of two. They are built from raw
# buffers: to inspect a Python value, pyarrow would import pandas if it is installed.


def _enough(count: int) -> int:
    return 1 << max(12, (count - 1).bit_length())


@functools.lru_cache(maxsize=64)
def _strings(text: str, count: int) -> tuple[bytes, bytes]:
    """Offsets and bytes of ``count`` equal strings."""
    data = text.encode()
    if not data:
        return bytes(4 * (count + 1)), b""
    return array("i", range(0, (count + 1) * len(data), len(data))).tobytes(), data * count


@functools.lru_cache(maxsize=8)
def _zeros(count: int) -> bytes:
    """Offsets of ``count`` empty values."""
    return bytes(4 * (count + 1))


def _repeated(text: str, count: int) -> pa.Array:
    offsets, data = _strings(text, _enough(count))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _no_headers(count: int) -> pa.Array:
    offsets = pa.py_buffer(_zeros(_enough(count)))
    return pa.Array.from_buffers(_MAP, count, [None, offsets], children=[pa.nulls(0, _ENTRIES)])


# The compiled core's names of the columns; data has two kinds.
_KINDS = {"stream": b"n", "sequence": b"q", "subject": b"s", "timestamp": b"t", "headers": b"h", "data": b"d"}


@functools.lru_cache(maxsize=64)
def _kinds(names: tuple[str, ...], views: bool) -> bytes:
    return b"".join([b"v" if views and name == "data" else _KINDS[name] for name in names])


# This entrance to Arrow has no public name yet; without it the arrays are made one by one.
_import_batch: Any = getattr(pa.RecordBatch, "_import_from_c", None)


def _import_rows(rows: Rows, names: tuple[str, ...], stream: str, schema: pa.Schema, views: bool) -> Any:
    """A batch of rows without headers, in one piece; None if it must be made in another way.

    Making the arrays one by one has the same result and costs two or three times as much.
    """
    count = _enough(len(rows))
    text, data = _strings(stream, count) if "stream" in names else (b"", b"")
    zeros = _zeros(count) if "headers" in names else b""
    address = rows.export(_kinds(names, views), (text, data, zeros))
    return _import_batch(address, schema) if address else None


def _positions(columns: AnyColumns) -> tuple[pa.Array, pa.Array]:
    """Stream sequences and timestamps of the rows, from their ack replies."""
    if isinstance(columns, PackedColumns):
        packed = columns.rows.positions()
        if packed is not None:
            count, (sequences, times) = len(columns.rows), packed
            return (
                pa.Array.from_buffers(_INT64, count, [None, pa.py_buffer(sequences)]),
                pa.Array.from_buffers(_TIME, count, [None, pa.py_buffer(times)]),
            )
    found = [position(reply.decode("utf-8", "replace")) for reply in columns.replies]
    return (
        pa.array([sequence for sequence, _ in found], _INT64),
        pa.array([nanoseconds // 1000 for _, nanoseconds in found], _INT64).cast(_TIME),
    )


def _binary(columns: AnyColumns, column: Literal[0, 2]) -> pa.Array:
    """Subjects (0) or payloads (2), unchanged."""
    if isinstance(columns, PackedColumns):
        offsets, data = columns.rows.pack(column)
        return pa.Array.from_buffers(
            pa.binary(), len(columns), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )
    return pa.array(columns.payloads if column else columns.subjects, pa.binary())


def _data_views(columns: AnyColumns) -> pa.Array:
    """Payloads as views of the received chunks."""
    if isinstance(columns, PackedColumns):
        views, chunks = columns.rows.views()
        buffers = [None, pa.py_buffer(views), *map(pa.py_buffer, chunks)]
        return pa.Array.from_buffers(pa.binary_view(), len(columns), buffers)
    return pa.array(columns.payloads, pa.binary_view())


def _text(columns: AnyColumns) -> pa.Array:
    if isinstance(columns, PackedColumns):
        offsets, data = columns.rows.pack(0)
        if data.isascii():
            return pa.Array.from_buffers(
                pa.string(), len(columns), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
            )
    try:
        return _binary(columns, 0).cast(pa.string())
    except pa.ArrowInvalid:
        return _strings_of(columns.subjects)


def _strings_of(values: list[bytes]) -> pa.Array:
    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        # A subject that is not UTF-8: the server accepts it, Arrow's string type does not.
        return pa.array([value.decode("utf-8", "replace") for value in values], pa.string())


def _headers(columns: AnyColumns) -> pa.Array:
    if not columns.headers:
        return _no_headers(len(columns))
    rows: list[list[tuple[str, list[str]]]] = [[] for _ in range(len(columns))]
    for row, block in columns.headers.items():
        rows[row] = _entries(block)
    return pa.array(rows, _MAP)


def _entries(block: bytes) -> list[tuple[str, list[str]]]:
    """Each name with all its values. Names that differ in case are different names, as on the server."""
    try:
        pairs = decode_headers(block).items()
    except ProtocolError:
        # The server stores what it gets. One malformed block must not make a stream unreadable forever, so
        # whatever can be read of it is read.
        lines = block.decode("utf-8", "surrogateescape").split("\r\n")[1:]
        halves = [line.partition(":") for line in lines]
        pairs = [(name, value.strip(" \t")) for name, colon, value in halves if name and colon]
    entries: dict[str, list[str]] = {}
    for name, value in pairs:
        entries.setdefault(_clean(name), []).append(_clean(value))
    return list(entries.items())


def _clean(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
