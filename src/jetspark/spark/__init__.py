"""JetStream as a Spark data source: ``spark.read``, ``readStream``, ``write``, ``writeStream``.

Spark finds ``format("jetstream")`` by itself through the package ``pyspark_jetstream``; :func:`register` does
it by hand where that look-up is switched off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetspark.spark.helpers import decode_json, read, read_stream, route, write, write_stream
from jetspark.spark.lag_listener import StreamLag, StreamLagListener
from jetspark.spark.sessions import active_session
from jetspark.spark.sink.write_result import WriteResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "StreamLag",
    "StreamLagListener",
    "WriteResult",
    "active_session",
    "decode_json",
    "read",
    "read_stream",
    "register",
    "route",
    "write",
    "write_stream",
]


def register(spark: SparkSession) -> None:
    """Register ``format("jetstream")`` with a session, classic or Spark Connect."""
    from jetspark.spark.data_source import DefaultSource

    spark.dataSource.register(DefaultSource)
