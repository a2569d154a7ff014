"""Options and columns of the sink, checked offline before a query or a job starts.

Options (names in any case), beside those of the connection:

- ``subject``: the subject of every row, instead of a column ``subject``.
- ``stream``: name of the stream that must store the rows. Recommended: it is checked at the start and again
  by the server for each message (``Nats-Expected-Stream``), so no row ends up in another stream.
- ``window`` (4000): messages in flight per task; a task waits while this many have no ack.
- ``ackTimeout`` (``30 seconds``): how long a message may wait for its ack. Until then it is sent again after
  a reconnect or while a stream has no leader; after that the task fails.
- ``deadLetterSubject``: where rows go that can't be messages (null or bad subject, too large, bad header);
  the reason is in their headers. Without it such a row fails the task.
- ``deriveMsgId`` (true): give rows without ``msg_id`` a derived id, so that a repeated task or micro-batch
  stores nothing twice. False saves the header; then failures may store rows twice.
- ``msgIdPrefix``: batch writes only. A name for this write: a second write of the same rows under the same
  name stores nothing twice. Default: random for each write. In foreachBatch the query's id and micro-batch
  are part of the ids with and without it; several writes there of rows that may be equal need different
  names.
- ``batchId``: batch writes only. The micro-batch, where Spark does not report it (Spark Connect, threads
  inside foreachBatch); ``msgIdPrefix`` must then name the query. See :mod:`jetspark.spark.source.origin`.
- ``keepNatsHeaders`` (false): pass on headers named ``Nats-*`` of the column ``headers``. The server obeys
  such headers: an id copied from another stream makes it drop rows, a roll-up empties the stream. By default
  they are left out, with a warning.
- ``requireExactlyOnce`` (false): refuse, instead of warning, when the stream can't recognise repeated rows
  for ``requiredDuplicateWindow``, when rows have no ids, and when their micro-batch is unknown.
- ``requiredDuplicateWindow`` (``2 minutes``): the stream's ``duplicate_window`` must be at least this. Choose
  the longest time that you expect between a crash of the query and its restart.
- ``resultFile``: batch writes only. A file that the driver creates when the write is done, with its counts as
  JSON; see :class:`jetspark.spark.sink.write_result.WriteResult`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from jetspark.errors import InvalidArgument, JetsparkError
from jetspark.jetstream.models.validation import check_name
from jetspark.spark.options import (
    CONNECTION_OPTIONS,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    SPARK_OPTIONS,
    ConnectionOptions,
    OptionError,
    Options,
    parse_connection,
)
from jetspark.spark.sink.rows import SinkColumns
from jetspark.wire.subjects import validate_subject

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_WINDOW = 4000
DEFAULT_ACK_TIMEOUT = 30.0
DEFAULT_DUPLICATE_WINDOW = 120.0

_SELECT = "df.select('subject', 'data')"


class SinkSchemaError(JetsparkError, ValueError):
    """The columns of the DataFrame are not those that the sink can write; ``column`` is the wrong one."""

    def __init__(self, column: str, problem: str) -> None:
        super().__init__(f"column {column!r}: {problem}")
        self.column = column
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """See the module."""

    connection: ConnectionOptions
    stream: str | None = None
    subject: str | None = None
    window: int = DEFAULT_WINDOW
    ack_timeout: float = DEFAULT_ACK_TIMEOUT
    dead_letter_subject: str | None = None
    derive_msg_id: bool = True
    msg_id_prefix: str | None = None
    batch_id: int | None = None
    keep_nats_headers: bool = False
    require_exactly_once: bool = False
    required_duplicate_window: float = DEFAULT_DUPLICATE_WINDOW
    result_file: str | None = None


def parse_sink(
    given: Mapping[str, str],
    *,
    streaming: bool,
    overwrite: bool = False,
    connection: ConnectionOptions | None = None,
) -> SinkOptions:
    """The options of a write, or :class:`OptionError`. ``connection``: its options, when parsed already."""
    if overwrite and not streaming:
        raise OptionError(
            "mode",
            "'overwrite' is not supported: streams only grow; use mode('append'), and purge the stream "
            "first (stream.purge()) if it must be empty",
        )
    for name in SOURCE_OPTIONS:
        if name not in SINK_OPTIONS and name.lower() in {key.lower() for key in given}:
            raise OptionError(name, "is for reading, not for writing")
    options = Options(given, (*CONNECTION_OPTIONS, *SINK_OPTIONS, *SPARK_OPTIONS))
    prefix = options.text("msgIdPrefix")
    if prefix is not None:
        if streaming:
            options.fail(
                "msgIdPrefix",
                "is for batch writes (also in foreachBatch); a streaming write derives ids from its query "
                "and micro-batch, or set a column 'msg_id'",
            )
        if not prefix.isprintable() or len(prefix) > 200:
            options.fail("msgIdPrefix", "must be printable and at most 200 characters")
        if not options.flag("deriveMsgId", True):
            options.fail("msgIdPrefix", "contradicts deriveMsgId=false")
    if streaming:
        for name in ("batchId", "resultFile"):
            if options.given(name):
                options.fail(name, "is for batch writes (also in foreachBatch)")
    return SinkOptions(
        connection=connection or parse_connection(options),
        stream=_stream(options),
        subject=_subject(options, "subject"),
        window=options.integer("window") or DEFAULT_WINDOW,
        ack_timeout=options.seconds("ackTimeout") or DEFAULT_ACK_TIMEOUT,
        dead_letter_subject=_subject(options, "deadLetterSubject"),
        derive_msg_id=options.flag("deriveMsgId", True),
        msg_id_prefix=prefix,
        batch_id=options.integer("batchId", minimum=0),
        keep_nats_headers=options.flag("keepNatsHeaders", False),
        require_exactly_once=options.flag("requireExactlyOnce", False),
        required_duplicate_window=options.seconds("requiredDuplicateWindow") or DEFAULT_DUPLICATE_WINDOW,
        result_file=options.text("resultFile"),
    )


def check_columns(schema: StructType, options: SinkOptions) -> SinkColumns:
    """The index of each column, or :class:`SinkSchemaError` with the remedy."""
    found: dict[str, int] = {}
    for index, field in enumerate(schema.fields):
        name = field.name.lower()
        if name not in _TYPES:
            raise SinkSchemaError(
                field.name,
                f"is not one of {', '.join(_TYPES)}; drop it, e.g. {_SELECT}, or put it into the message: "
                "to_json(struct(...)) AS data",
            )
        if name in found:
            raise SinkSchemaError(field.name, "is there twice; Spark ignores case in column names")
        remedy = _TYPES[name](field.dataType)
        if remedy is not None:
            raise SinkSchemaError(field.name, f"is {field.dataType.simpleString()}; {remedy}")
        found[name] = index
    if "data" not in found:
        raise SinkSchemaError(
            "data", "is missing: the body of the message, binary or string, e.g. to_json(struct(*)) AS data"
        )
    if "subject" not in found and options.subject is None:
        raise SinkSchemaError(
            "subject",
            "is missing; add it, e.g. concat('orders.', region) AS subject, or set the option",
        )
    if "subject" in found and options.subject is not None:
        raise OptionError("subject", "contradicts the column 'subject'; drop one of them")
    if options.require_exactly_once and not options.derive_msg_id and "msg_id" not in found:
        raise OptionError("requireExactlyOnce", "needs ids: leave deriveMsgId on, or add a column 'msg_id'")
    return SinkColumns(
        found.get("subject"), found["data"], found.get("headers"), found.get("msg_id"), found.get("ttl")
    )


def _stream(options: Options) -> str | None:
    stream = options.text("stream")
    if stream is not None:
        try:
            check_name("stream", stream)
        except InvalidArgument as error:
            options.fail("stream", f"{error.rule}; a write goes to one stream, not to a list or a glob")
    return stream


def _subject(options: Options, name: str) -> str | None:
    subject = options.text(name)
    if subject is not None:
        try:
            validate_subject(subject)
        except InvalidArgument as error:
            options.fail(name, error.rule)
    return subject


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _want_text(kind: DataType) -> str | None:
    return None if _is_text(kind) else "it must be string; cast it"


def _want_data(kind: DataType) -> str | None:
    if _is_text(kind) or isinstance(kind, BinaryType):
        return None
    return "it must be binary or string; use cast(... AS string), or to_json(...) for structs"


def _want_headers(kind: DataType) -> str | None:
    if isinstance(kind, MapType) and _is_text(kind.keyType):
        value = kind.valueType
        if _is_text(value) or (isinstance(value, ArrayType) and _is_text(value.elementType)):
            return None
    return "it must be map<string,string> or map<string,array<string>>"


def _want_ttl(kind: DataType) -> str | None:
    if _is_text(kind) or isinstance(
        kind, ByteType | ShortType | IntegerType | LongType | DayTimeIntervalType
    ):
        return None
    return (
        "it must be whole seconds (int or long), a day-time interval, or a string such as '1h30m' or 'never'"
    )


_TYPES = {
    "subject": _want_text,
    "data": _want_data,
    "headers": _want_headers,
    "msg_id": _want_text,
    "ttl": _want_ttl,
}
