"""Spark sessions for the helpers: the active one, the query of a checkpoint, the writes of a micro-batch."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING

from jetspark.errors import JetsparkError
from jetspark.spark.source.origin import BATCH_ID, QUERY_ID, short_query

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

# Spark's name of the local property with the id of a query's run.
_RUN_ID = "spark.jobGroup.id"


class NoQueryId(JetsparkError):
    """The id of a query can't be read from its checkpoint, so no safe message ids can be derived."""


def register(spark: SparkSession) -> None:
    """Register ``format("jetstream")`` with a session, classic or Spark Connect."""
    from jetspark.spark.data_source import DefaultSource

    spark.dataSource.register(DefaultSource)


def is_connect(spark: SparkSession) -> bool:
    """Whether it is a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


@contextlib.contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """Make it the active session of this thread, and restore the previous one afterwards.

    Spark looks for a Python data source in the active session of the calling thread. A thread that Python
    started has none, and Spark would report DATA_SOURCE_NOT_FOUND.
    """
    if is_connect(spark):
        yield  # its server finds the session by the request
        return
    sessions = spark._get_j_spark_session_class(spark._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def query_of_checkpoint(spark: SparkSession, checkpoint: str) -> str:
    """The short id of a checkpoint's query. Spark writes it before the first micro-batch."""
    # Each run of a query has its own session.
    key = (str(spark.session_id), checkpoint)  # type: ignore[attr-defined]
    if key not in _queries:
        try:
            line = spark.read.text(f"{checkpoint.rstrip('/')}/metadata").first()
            _queries[key] = short_query(str(json.loads(line[0])["id"]))  # type: ignore[index]
        except Exception as error:
            raise NoQueryId(
                f"checkpoint {checkpoint!r}: its file 'metadata' can't be read, so the query's id is "
                f"unknown: {error}"
            ) from error
    return _queries[key]


_queries: dict[tuple[str, str], str] = {}


@contextlib.contextmanager
def numbered_write(df: DataFrame, options: dict[str, str]) -> Iterator[None]:
    """Number the writes of one micro-batch to one stream, by their order.

    Derived ids hold query, micro-batch, partition and the row's content. A second write of an equal row in
    the same call of foreachBatch would look like a repetition, so it gets its own prefix. Only writes that
    succeed count, so a repeated write keeps its ids. Each thread counts separately, because the order of
    threads is not the same each time.
    """
    spark = df.sparkSession
    if is_connect(spark) or "batchId" in options:
        yield
        return
    told = spark.sparkContext.getLocalProperty
    run, query, batch = told(_RUN_ID), told(QUERY_ID), told(BATCH_ID)
    if query is None or batch is None:
        yield
        return
    place = (query, threading.get_ident())
    prefix = options.get("msgIdPrefix")
    write = (options.get("stream"), prefix)
    with _lock:
        if place not in _done or _done[place][0] != (run, batch):
            _done[place] = ((run, batch), {})
        counts = _done[place][1]
    number = counts.get(write, 0) + 1
    if number > 1:
        options["msgIdPrefix"] = f"w{number}" if prefix is None else f"{prefix}-w{number}"
    yield
    counts[write] = number


_lock = threading.Lock()
# By query and thread: the run and micro-batch seen last, and the writes done in it.
_done: dict[tuple[str, int], tuple[tuple[str | None, str], dict[tuple[str | None, str | None], int]]] = {}
