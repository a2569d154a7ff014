"""Typed helpers over ``format("jetstream")``: options as keyword arguments, JSON bodies, subjects of rows.

Plain Spark can do the same: ``read_stream(spark, stream="ORDERS", max_trigger_delay=5)`` is
``spark.readStream.format("jetstream").option("stream", "ORDERS")...load()``. An option ``maxTriggerDelay``
is the argument ``max_trigger_delay``. Values may be what they are in Python: numbers, booleans, ``timedelta``
(or a number of seconds) for durations, ``datetime`` for times, lists for comma lists, dicts for JSON.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, cast

from jetspark._secret import Secret
from jetspark.errors import InvalidArgument
from jetspark.spark.options import (
    CONNECTION_OPTIONS,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    option_of,
    split_credentials,
)
from jetspark.spark.sessions import active_session, is_connect, numbered_write, query_of_checkpoint
from jetspark.spark.sink.write_result import WriteResult, load_result
from jetspark.spark.subject_template import parse_template

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

Text = str | os.PathLike[str]
Span = str | float | timedelta
"""A duration: text with a unit (``"5 seconds"``), seconds, or a timedelta."""
Place = str | int | Mapping[str, str | int]
Moment = str | datetime


class ConnectionArguments(TypedDict, total=False):
    """How to reach the server; see :class:`jetspark.spark.options.ConnectionOptions`."""

    servers: str | Sequence[str]
    context: str
    connection_name: str
    user: str
    password: str | Secret
    token: str | Secret
    credentials: Text
    nkey: Text
    tls: bool
    tls_ca: Text
    tls_cert: Text
    tls_key: Text
    tls_hostname: str
    tls_verify: bool
    tls_first: bool
    inbox_prefix: str
    domain: str
    api_prefix: str
    connect_timeout: Span
    request_timeout: Span


class SourceArguments(ConnectionArguments, total=False):
    """What to read; see :mod:`jetspark.spark.source.options`."""

    stream: str | Sequence[str]
    subjects: str | Sequence[str]
    starting_position: Place
    starting_sequence: Place
    starting_time: Moment | Mapping[str, str]
    ending_position: Place
    ending_sequence: Place
    ending_time: Moment | Mapping[str, str]
    fail_on_data_loss: bool
    min_partitions: int
    max_messages_per_partition: int
    max_messages_per_trigger: int
    max_bytes_per_trigger: int
    min_messages_per_trigger: int
    max_trigger_delay: Span
    durable: str
    release_work_queue: bool
    record_batch_rows: int
    buffer_messages: int


class SinkArguments(ConnectionArguments, total=False):
    """Where and how to write; see :mod:`jetspark.spark.sink.options`."""

    stream: str
    subject: str
    window: int
    ack_timeout: Span
    dead_letter_subject: str
    derive_msg_id: bool
    msg_id_prefix: str
    batch_id: int
    keep_nats_headers: bool
    require_exactly_once: bool
    required_duplicate_window: Span
    result_file: Text


_DURATIONS = frozenset(
    ("connect_timeout", "request_timeout", "max_trigger_delay", "ack_timeout", "required_duplicate_window")
)
_CAPITAL = re.compile(r"[A-Z]")


def read(
    spark: SparkSession, *, schema: StructType | str | None = None, **options: Unpack[SourceArguments]
) -> DataFrame:
    """A batch read of streams; ``schema``: the columns to read, all by default."""
    with active_session(spark):
        reader = spark.read.format("jetstream").options(**option_strings(options, SOURCE_OPTIONS))
        return (reader if schema is None else reader.schema(schema)).load()


def read_stream(
    spark: SparkSession, *, schema: StructType | str | None = None, **options: Unpack[SourceArguments]
) -> DataFrame:
    """A streaming read of streams; ``schema``: the columns to read, all by default."""
    with active_session(spark):
        reader = spark.readStream.format("jetstream").options(**option_strings(options, SOURCE_OPTIONS))
        return (reader if schema is None else reader.schema(schema)).load()


def write(df: DataFrame, **options: Unpack[SinkArguments]) -> WriteResult | None:
    """Append the rows of a DataFrame to a stream; returns when every row is acked.

    The result says how many rows were stored and how many the stream already had. It is None when the driver
    runs on another machine, which only happens with Spark Connect; the driver's log has it.

    In foreachBatch a repeated micro-batch stores nothing twice. Where Spark does not report the micro-batch
    (Spark Connect, your own threads) give ``batch_id`` and ``msg_id_prefix``, or the write is refused.
    """
    strings = option_strings(options, SINK_OPTIONS)
    with numbered_write(df, strings), active_session(df.sparkSession):
        if "resultFile" in strings:
            _save(df, strings)
            return load_result(strings["resultFile"])
        with tempfile.TemporaryDirectory(prefix="jetspark-write-") as folder:
            path = os.path.join(folder, "result.json")
            _save(df, {**strings, "resultFile": path})
            return load_result(path)


def write_stream(
    df: DataFrame,
    *,
    checkpoint_location: Text,
    query_name: str | None = None,
    output_mode: Literal["append", "update", "complete"] = "append",
    available_now: bool = False,
    once: bool = False,
    processing_time: str | None = None,
    **options: Unpack[SinkArguments],
) -> StreamingQuery:
    """Start a query that appends the rows of a streaming DataFrame to a stream.

    ``available_now``: read what is there, then stop. ``once``: the same in one micro-batch, ignoring its
    limits. ``processing_time``: e.g. ``"5 seconds"``; default: the next micro-batch as soon as the last is
    done. ``output_mode="update"``, which Spark does not offer to Python sinks, uses ``foreachBatch`` and a
    batch write per micro-batch, with ids that are just as safe.
    """
    if once and available_now:
        raise InvalidArgument("once", once, "contradicts available_now; give one")
    if (available_now or once) and processing_time is not None:
        other = "available_now" if available_now else "once"
        raise InvalidArgument("processing_time", processing_time, f"contradicts {other}; give one")
    strings = option_strings(options, SINK_OPTIONS)
    checkpoint = os.fspath(checkpoint_location)
    if output_mode == "update":
        strings.setdefault("msgIdPrefix", "update")
        writer = df.writeStream.foreachBatch(partial(_write_update, strings, checkpoint))
    else:
        writer = df.writeStream.format("jetstream").options(**strings)
    writer = writer.option("checkpointLocation", checkpoint).outputMode(output_mode)
    if query_name is not None:
        writer = writer.queryName(query_name)
    if available_now:
        writer = writer.trigger(availableNow=True)
    elif once:
        writer = writer.trigger(once=True)
    elif processing_time is not None:
        writer = writer.trigger(processingTime=processing_time)
    with active_session(df.sparkSession):
        return writer.start()


def decode_json(
    df: DataFrame,
    schema: StructType | str,
    *,
    column: str = "data",
    into: str | None = None,
    on_error: Literal["null", "fail"] = "null",
    corrupt_column: str | None = None,
) -> DataFrame:
    """Decode a column of JSON text (string or UTF-8 binary) with a schema, and add the result.

    ``schema``: a StructType or DDL such as ``"id long, amount double"``. ``into``: name of one struct column;
    default: each field becomes a column, and a name that exists already is refused. ``on_error``: ``"null"``:
    a body that does not fit gives nulls (``corrupt_column``: and its text in this column). ``"fail"``: it
    fails the query, which then can't get past that message.
    """
    from pyspark.sql import functions as F

    if on_error not in ("null", "fail"):
        raise InvalidArgument("on_error", on_error, "must be 'null' or 'fail'")
    if on_error == "fail" and corrupt_column is not None:
        raise InvalidArgument("corrupt_column", corrupt_column, "stays empty with on_error='fail'; drop it")
    if column not in df.columns:
        raise InvalidArgument("column", column, f"is not one of the columns {', '.join(df.columns)}")
    text = F.col(column).cast("string")
    place = into if into is not None else "_jetspark_json"
    taken = {name.lower() for name in df.columns}
    for new in (place, *([] if corrupt_column is None else [corrupt_column])):
        if new.lower() in taken:
            raise InvalidArgument("into" if new == place else "corrupt_column", new, "already exists")
    if on_error == "fail":
        decoded = df.withColumn(place, F.from_json(text, schema, {"mode": "FAILFAST"}))
    else:
        # A damaged body gives a struct of nulls, like a body whose fields are null. Keep them apart.
        parsed = F.from_json(text, _with_corrupt(schema), {"columnNameOfCorruptRecord": _CORRUPT})
        damaged = F.col(place)[_CORRUPT]
        decoded = df.withColumn(place, parsed)
        if corrupt_column is not None:
            decoded = decoded.withColumn(corrupt_column, damaged)
        decoded = decoded.withColumn(
            place, F.when(damaged.isNull(), F.col(place).dropFields(_CORRUPT)).otherwise(F.lit(None))
        )
    if into is not None:
        return decoded
    fields = decoded.select(f"{place}.*").columns
    clash = [name for name in fields if name.lower() in taken]
    if clash:
        raise InvalidArgument(
            "schema",
            ", ".join(clash),
            "already exists; use into='value' to keep the fields in a struct",
        )
    return decoded.select("*", f"{place}.*").drop(place)


def route(
    df: DataFrame,
    template: str,
    *,
    column: str = "subject",
    on_unsafe: Literal["fail", "null", "replace"] = "fail",
) -> DataFrame:
    """Add the subject of each row: ``route(df, "orders.{region}.{id}")``.

    Each ``{...}`` is a column, or a field such as ``{address.city}``, and becomes exactly one token. Null, an
    empty text, and one with a dot, a wildcard, white space or a control character can't be a token.
    ``"fail"`` fails the query. ``"null"`` makes the subject null, which the sink refuses or sends to
    ``deadLetterSubject``. ``"replace"`` puts ``_`` in place of each such character, or of the missing text.
    """
    from pyspark.sql import functions as F

    if on_unsafe not in ("fail", "null", "replace"):
        raise InvalidArgument("on_unsafe", on_unsafe, "must be 'fail', 'null' or 'replace'")
    parts: list[Column] = []
    for literal, field in parse_template(template).parts:
        if literal:
            parts.append(F.lit(literal))
        if field is not None:
            parts.append(_token(F.col(field), field, on_unsafe))
    # concat is null as soon as one part is.
    return df.withColumn(column, F.concat(*parts))


def option_strings(arguments: Mapping[str, object], known: Iterable[str]) -> dict[str, str]:
    """Keyword arguments as Spark's options: ``max_trigger_delay=5`` to ``maxTriggerDelay: "5 seconds"``."""
    names = {argument_name(option): option for option in (*CONNECTION_OPTIONS, *known)}
    found: dict[str, str] = {}
    for name, value in arguments.items():
        if name not in names:
            nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else f"; known are {', '.join(sorted(names))}"
            raise TypeError(f"unexpected keyword argument {name!r}{hint}")
        if value is not None:
            found[names[name]] = _string(name, value)
    return found


def connection_arguments(connect: Mapping[str, Any]) -> ConnectionArguments:
    """Arguments of ``jetspark.connect`` (and ``domain``, ``api_prefix``) as those of the helpers.

    Credentials inside URLs become arguments of their own, whose options Spark redacts.
    """
    found = {argument_name(option_of(name)): value for name, value in connect.items() if value is not None}
    servers = found.pop("servers", None)
    if servers is not None:
        found = {**split_credentials(servers.split(",") if isinstance(servers, str) else servers), **found}
    return cast("ConnectionArguments", found)


def argument_name(option: str) -> str:
    """``maxTriggerDelay`` to ``max_trigger_delay``."""
    return _CAPITAL.sub(lambda match: "_" + match[0].lower(), option)


_CORRUPT = "_jetspark_corrupt"
# What would end, split or widen a token of a subject.
_UNSAFE = r"[.*>\s\p{Cntrl}]"


def _save(df: DataFrame, options: Mapping[str, str]) -> None:
    df.write.format("jetstream").options(**options).mode("append").save()


def _write_update(options: Mapping[str, str], checkpoint: str, batch: DataFrame, batch_id: int) -> None:
    """A micro-batch of update mode. Module level, because Spark Connect ships it to its server."""
    prefix = options["msgIdPrefix"]
    if is_connect(batch.sparkSession):
        # Tasks do not know their query there. The checkpoint keeps its id.
        prefix = f"{prefix}-{query_of_checkpoint(batch.sparkSession, checkpoint)}"
    _save(batch, {**options, "msgIdPrefix": prefix, "batchId": str(batch_id)})


def _string(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Secret):
        return value.reveal()
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, int | float):
        if name in _DURATIONS:
            # Never in scientific notation, which is not parsed.
            return f"{value:.3f}".rstrip("0").rstrip(".") + " seconds"
        return str(value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidArgument(name, value, "has no time zone; use e.g. datetime.now(UTC)")
        return value.isoformat()
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if isinstance(value, Sequence) and all(isinstance(one, str) and "," not in one for one in value):
        return ",".join(value)
    raise InvalidArgument(name, value, f"has a type that options don't take: {type(value).__name__}")


def _with_corrupt(schema: StructType | str) -> StructType | str:
    if isinstance(schema, str):
        return f"{schema}, {_CORRUPT} STRING"
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([*schema.fields, StructField(_CORRUPT, StringType())])


def _token(value: Column, field: str, on_unsafe: str) -> Column:
    from pyspark.sql import functions as F

    text = value.cast("string")
    if on_unsafe == "replace":
        clean = F.regexp_replace(text, _UNSAFE, "_")
        return F.when(text.isNull() | (text == ""), F.lit("_")).otherwise(clean)
    safe = text.isNotNull() & (text != "") & ~text.rlike(_UNSAFE)
    if on_unsafe == "null":
        return F.when(safe, text)
    problem = F.concat(
        F.lit(f"route: column {field!r} can't be a token of a subject: '"),
        F.coalesce(text, F.lit("null")),
        F.lit("'; clean it, or use on_unsafe='null' or 'replace'"),
    )
    return F.when(safe, text).otherwise(F.raise_error(problem).cast("string"))
