"""Secrets in options never show: not in plans, event log, progress, checkpoint or errors. A canary tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.canaries import shown_by_spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from conftest import StartServer


CANARY = "cAnArY-5f1d7b"


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
    wrong = {name: value if name == "user" else f"{CANARY}-wrong" for name, value in auth.items()}
    shown = shown_by_spark(spark, server, auth, wrong, tmp_path, event_log, f"marker-{way}")
    assert [place for place, said in shown.items() if CANARY.encode() in said] == []
    assert all(shown.values())


def test_urls_with_passwords_are_refused(spark: SparkSession) -> None:
    reader = spark.read.format("jetstream").option("stream", "S")
    with pytest.raises(Exception, match="contains credentials") as caught:
        reader.option("servers", f"nats://reader:{CANARY}@127.0.0.1:4222").load()
    assert CANARY not in str(caught.value)
