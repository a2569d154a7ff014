"""Every example runs and says what it should; so do Spark Connect and declarative pipelines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

FOLDER = Path(__file__).parents[2] / "examples" / "spark"
# One after the other in one process, and with one session: only the last one's ``spark.stop()`` is obeyed.
RUN_ALL = """
import runpy, sys
from pyspark.sql import SparkSession
stop, SparkSession.stop = SparkSession.stop, lambda spark: None
for path in sys.argv[1:]:
    if path == sys.argv[-1]:
        SparkSession.stop = stop
    print("== " + path, flush=True)
    runpy.run_path(path, run_name="__main__")
"""
EXPECTED = {
    "batch_analytics": [
        "orders.eu: 750 orders, 3875.0",
        "orders.us: 250 orders, 1125.0",
        "European among the last hundred: 75",
    ],
    "enrich_stream": [
        "201 messages, 120 of them European",
        'the first: enriched.eu.0 {"id":0,"name":"Ada","amount":0.0}',
        "rejected: subject: None: must not be null",
    ],
    "windowed_totals": ["complete seconds"],
    "foreach_batch": ["totals.shop0: 100", "totals.shop2: 200", "6 rows in parquet"],
    # The last one: what its listener prints comes some time later, but before Spark has stopped.
    "stream_to_parquet": [
        "batch 0: lag 100",
        "batch 1: lag 0",
        "after run 0: 500 rows, 500 distinct",
        "after run 1: 1000 rows, 1000 distinct",
    ],
}
CONNECT = """
import sys
from pyspark.sql import SparkSession
from jetspark import StreamConfig, blocking
from jetspark.server import Server
from jetspark.spark import decode_json, read, read_stream, register, route, write, write_stream

with Server() as server, blocking.connect(server.url) as nc:
    js = nc.jetstream()
    js.create_stream(StreamConfig(name="IN", subjects=["in.>"]))
    out = js.create_stream(StreamConfig(name="OUT", subjects=["out.>"]))
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    register(spark)
    rows = spark.sql("SELECT id, to_json(struct(id, id % 2 AS side)) AS data FROM range(50)")
    write(route(rows, "in.{id}").drop("id"), servers=server.url, stream="IN")
    found = decode_json(read(spark, servers=server.url, stream="IN"), "id long, side long")
    print("read", found.count(), found.agg({"id": "sum"}).first()[0], flush=True)
    stored = read_stream(spark, servers=server.url, stream="IN", starting_position="earliest")
    events = decode_json(stored, "id long, side long")
    query = write_stream(
        route(events.drop("subject"), "out.{side}").select("subject", "data"),
        servers=server.url, stream="OUT", checkpoint_location=sys.argv[1], available_now=True,
    )
    assert query.awaitTermination(200)
    print("written", out.info().state.messages, flush=True)
    try:
        write(spark.sql("SELECT 'out.a b' AS subject, 'x' AS data"), servers=server.url, stream="OUT")
    except Exception as error:
        print("refused", "partition 0, row 0, column 'subject': 'out.a b'" in str(error), flush=True)
    spark.stop()
"""


# Spark Connect has one port for all, unless this asks it for a free one.
FREE_PORT = {"SPARK_TESTING": "1"}


def run(folder: Path, *command: str, **settings: str) -> str:
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONWARNINGS": "default", **settings}
    done = subprocess.run(
        [sys.executable, *command],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    return done.stdout


def test_no_example_is_forgotten() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {*EXPECTED, "declarative_pipeline"}


def test_the_examples_run_and_say_what_they_should(tmp_path: Path) -> None:
    output = run(tmp_path, "-c", RUN_ALL, *(str(FOLDER / f"{name}.py") for name in EXPECTED))
    parts = output.split("== ")[1:]
    assert len(parts) == len(EXPECTED)
    for (name, lines), part in zip(EXPECTED.items(), parts, strict=True):
        assert part.startswith(str(FOLDER / name))
        for line in lines:
            assert line in part


def test_the_declarative_pipeline_runs(tmp_path: Path) -> None:
    output = run(tmp_path, str(FOLDER / "declarative_pipeline.py"), **FREE_PORT)
    assert "Run is COMPLETED" in output
    assert "large orders: ['large.100', 'large.101', 'large.102'] ..." in output
    assert "20 in all" in output


def test_spark_connect_reads_and_writes(tmp_path: Path) -> None:
    output = run(tmp_path, "-c", CONNECT, str(tmp_path / "checkpoint"), **FREE_PORT)
    assert "read 50 1225" in output
    assert "written 50" in output
    assert "refused True" in output
