"""Where a task's rows come from: the beginning of the message ids that the sink derives.

An id protects a row when it is the same each time the row is written again, and different for every other
row. So it has to name the query and the micro-batch, or the batch job. What Spark reports:

=======================================  ====================  =========================================
the write                                Spark reports         origin
=======================================  ====================  =========================================
``df.writeStream.format("jetstream")``   query and batch       query and batch
``foreachBatch``, its own thread         query and batch       query and batch, ``msgIdPrefix`` in front
``foreachBatch``, another thread         nothing               ``msgIdPrefix`` and ``batchId``, or refused
``foreachBatch`` of Spark Connect        nothing               ``msgIdPrefix`` and ``batchId``, or refused
a batch job                              nothing               ``msgIdPrefix``, or random for this job
=======================================  ====================  =========================================

Lines three and four look like the last one, but must be treated differently: a constant ``msgIdPrefix`` there
would give equal rows of different micro-batches one id, and the server would drop all but the first. The
session tells them apart: Spark runs a query in its own session, with settings that it makes for queries only,
and tasks see the settings of their session.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark import TaskContext

from jetspark.errors import JetsparkError
from jetspark.spark.options import OptionError

# Spark's names of the local properties of a streaming task.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
# What Spark sets in the session of a query. The first is new in Spark 4.3; the other two are older.
_STATE_PARTITIONS = "spark.sql.streaming.internal.stateStore.partitions"
_CLUSTER_KEYS = "spark.sql.requireAllClusterKeysForDistribution"
_COST_BASED = "spark.sql.cbo.enabled"


class UnknownMicroBatch(JetsparkError):
    """Spark does not say to which micro-batch of a streaming query the rows belong; nothing was written."""


class Place(NamedTuple):
    """What Spark reports to a task. ``streaming``: the session is that of a streaming query."""

    query: str | None = None
    batch: str | None = None
    streaming: bool = False


def place_of_task() -> Place:
    """The place of the current task."""
    context = TaskContext.get()
    assert context is not None
    told = context.getLocalProperty
    older = told(_CLUSTER_KEYS) == "false" and told(_COST_BASED) == "false"
    return Place(told(QUERY_ID), told(BATCH_ID), older or told(_STATE_PARTITIONS) is not None)


def short_query(query: str) -> str:
    """A query's id, short enough for message ids: 64 of its 122 random bits."""
    return query.replace("-", "")[:16]


def stream_origin(place: Place) -> str:
    """The origin of a streaming write."""
    if place.query is None or place.batch is None:
        raise UnknownMicroBatch(
            f"Spark did not report this task's query and micro-batch (properties {QUERY_ID} and "
            f"{BATCH_ID}), so no safe message ids can be derived"
        )
    return f"{short_query(place.query)}-{place.batch}"


def batch_origin(place: Place, *, prefix: str | None, batch_id: int | None, job: str, needed: bool) -> str:
    """The origin of a batch write, which may be inside foreachBatch.

    ``job`` names this write alone. ``needed``: without safe ids rows could be lost or stored twice; False
    when the rows have their own ids, or need none.
    """
    if place.query is not None and place.batch is not None:
        if batch_id is not None and str(batch_id) != place.batch:
            raise OptionError(
                "batchId",
                f"is {batch_id}, but Spark runs micro-batch {place.batch}; pass what foreachBatch got",
            )
        known = stream_origin(place)
        return known if prefix is None else f"{prefix}-{known}"
    if batch_id is not None:
        if prefix is None:
            raise OptionError(
                "batchId",
                "needs msgIdPrefix here, because Spark does not report the query of this job: choose a name "
                "that no other query and no other write of this query has",
            )
        return f"{prefix}-b{batch_id}"
    if place.streaming and needed:
        raise UnknownMicroBatch(
            "this write belongs to a streaming query, but Spark does not say to which micro-batch (Spark "
            "Connect, or a thread inside foreachBatch), so no safe message ids can be derived. Set batchId "
            "to the id that foreachBatch got, and msgIdPrefix to a name that no other query or write has: "
            "write(df, batch_id=batch_id, msg_id_prefix='orders-etl', ...). Or give the rows a column "
            "'msg_id', or start the thread with pyspark.inheritable_thread_target"
        )
    return job if prefix is None or place.streaming else prefix
