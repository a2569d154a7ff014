"""Secrets in options never show: not in plans, event log, progress, checkpoint or errors. A canary tells."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any

import pytest

from helpers import eventually_sync
from jetspark import StreamConfig, blocking
from spark_helpers import Batches, Box

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from conftest import StartServer

pytestmark = pytest.mark.xdist_group("spark")

CANARY = "cAnArY-5f1d7b"


def plans(frame: DataFrame) -> str:
    """Everything that explain() can say about a DataFrame."""
    texts = []
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            frame.explain(mode=mode)
        texts.append(out.getvalue())
    java: Any = frame._jdf
    texts += [java.queryExecution().toString(), java.queryExecution().logical().toJSON(), frame.__repr__()]
    return "\n".join(texts)


def everything(folder: Path) -> bytes:
    """All bytes of all files below a folder."""
    return b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("way", ["password", "token"])
def test_a_secret_shows_nowhere(
    spark: SparkSession, start_server: StartServer, tmp_path: Path, event_log: Path, way: str
) -> None:
    if way == "password":
        server = start_server(config=f'authorization {{ user: reader, password: "{CANARY}" }}\n')
        auth = {"user": "reader", "password": CANARY}
    else:
        server = start_server(config=f'authorization {{ token: "{CANARY}" }}\n')
        auth = {"token": CANARY}
    with blocking.connect(server.url, **auth) as connection:
        js = connection.jetstream()
        js.create_stream(StreamConfig(name="S", subjects=["s.>"]))
        for number in range(3):
            js.publish(f"s.{number}", b"x")
        box = Box(spark, server.url, js, tmp_path)
        frame = box.read("S", **auth)
        spark.sparkContext.setJobDescription(f"marker-{way}")
        assert frame.count() == 3
        shown = plans(frame)
        rows = Batches()
        query = box.drain("S", rows, startingPosition="earliest", **auth)
        assert rows.rows == [1, 2, 3]
        shown += "".join(one.json for one in query.recentProgress) + str(query.status)
        wrong = {name: value if name == "user" else f"{CANARY}-wrong" for name, value in auth.items()}
        for make in (
            lambda: box.read("S", **wrong).collect(),
            lambda: box.read("S", **auth, strem="x"),
            lambda: box.read("S", **auth, minPartitions="x"),
            lambda: box.read("MISSING", **auth).collect(),
            lambda: box.read("S", **auth, credentials="/no/such/file"),
            lambda: box.drain("S", Batches(), checkpoint="other", **wrong),
        ):
            with pytest.raises(Exception) as caught:  # noqa: PT011
                make()
            shown += repr(caught.value) + str(caught.value)
        assert "RelationV2" in shown
        assert CANARY not in shown
        assert CANARY.encode() not in everything(tmp_path / "checkpoint")
        # The log is written in the background; the job's own entry says that ours is in it.
        eventually_sync(lambda: f"marker-{way}".encode() in everything(event_log), 20)
        logged = everything(event_log)
        assert b"jetstream" in logged
        assert CANARY.encode() not in logged
        spark.sparkContext.setJobDescription("")
        box.close()


def test_urls_with_passwords_are_refused(spark: SparkSession) -> None:
    reader = spark.read.format("jetstream").option("stream", "S")
    with pytest.raises(Exception, match="holds credentials") as caught:
        reader.option("servers", f"nats://reader:{CANARY}@127.0.0.1:4222").load()
    assert CANARY not in str(caught.value)
