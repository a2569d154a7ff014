"""The model test of the Spark source, with fixed seeds. The long form is row F21 of the table of faults.

`python tests/support/source_model.py --runs 200` takes longer; `--seed N` repeats a run (`--cluster`: one on
the cluster) and prints what happened in it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from support.source_model import Result, play
from support.source_spark import SparkRun
from support.source_world import Host

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from jetspark.server import Cluster

SEEDS = (4, 7, 23, 34, 41, 46, 62, 64, 69, 70)
"""Between them: limits and purges in the first batch, restores, streams that vanish in the middle of a read,
releases of work queues, snapshots of last values."""
CLUSTER_SEEDS = (1, 2)
SPARK_SEEDS = (1,)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Host.single() as running:
        yield running


def check(result: Result) -> None:
    print("\n".join(result.log))
    assert result.problems == [], f"seed {result.seed}"
    assert result.figures["queries"] or result.figures["Spark queries"]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_events_and_queries(host: Host, seed: int) -> None:
    check(play(host, seed))


@pytest.mark.parametrize("seed", CLUSTER_SEEDS)
def test_replicated_streams_whose_leaders_change(cluster: Cluster, seed: int) -> None:
    with Host.of(cluster) as host:
        check(play(host, seed))


@pytest.mark.parametrize("seed", SPARK_SEEDS)
def test_through_spark(spark: SparkSession, tmp_path: Path, seed: int, host: Host) -> None:
    check(SparkRun(host, seed, spark, tmp_path, random.Random(seed)).play())
