"""A Spark session for rows of the faults table: the one of the Spark tests where it runs, else a new one."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@contextlib.contextmanager
def spark_session(folder: Path) -> Iterator[SparkSession]:
    """``folder`` is for the event log of a new session, which ends with the block."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    events = folder / "spark-events"
    events.mkdir(parents=True)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("jetspark-faults")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", events.as_uri())
        .config("spark.eventLog.compress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()


def event_log(session: SparkSession) -> Path:
    """Where the session writes what happened."""
    return Path((session.conf.get("spark.eventLog.dir") or "").removeprefix("file://").removeprefix("file:"))
