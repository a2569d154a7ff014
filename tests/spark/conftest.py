"""One Spark session for all Spark tests of a worker, and streams to read."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

# Before Spark starts its workers: the Python that runs the tests, not whichever is first in PATH.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import SparkSession

from jetspark import blocking
from support.spark_helpers import Box

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jetspark.server import Server


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shared session writes its event log."""
    return tmp_path_factory.mktemp("spark-events")


@pytest.fixture(scope="session")
def spark(event_log: Path) -> Iterator[SparkSession]:
    """The session all tests share."""
    session = (
        SparkSession.builder.master("local[2]")
        .appName("jetspark-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", event_log.as_uri())
        .config("spark.eventLog.compress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def js(server: Server) -> Iterator[blocking.JetStream]:
    """JetStream on the worker's shared server, blocking as the tests here are."""
    with blocking.connect(server.url) as connection:
        yield connection.jetstream()


@pytest.fixture
def box(spark: SparkSession, server: Server, js: blocking.JetStream, tmp_path: Path) -> Iterator[Box]:
    """Makes streams, reads them in every way, and cleans up."""
    made = Box(spark, server.url, js, tmp_path)
    yield made
    made.close()
