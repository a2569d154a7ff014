"""JetStream as a Spark data source: ``spark.read``, ``readStream``, ``write``, ``writeStream``.

Spark finds ``format("jetstream")`` by itself through the package ``pyspark_jetstream``; :func:`register` does
it by hand where that look-up is switched off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register ``format("jetstream")`` with a session, classic or Spark Connect."""
    from jetspark.spark.source import DefaultSource

    spark.dataSource.register(DefaultSource)
