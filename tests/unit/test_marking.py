"""Marks are true: a test that starts what its marks do not say fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.marking import SLOW_FILES

if TYPE_CHECKING:
    from collections.abc import Callable

TESTS = Path(__file__).parent.parent
SETTINGS = f"""
[pytest]
pythonpath = {TESTS}
addopts = --strict-markers -p no:cacheprovider
markers =
    spark
    cluster
    slow
"""
CONFTEST = """
from support.marking import Marking

def pytest_configure(config):
    config.pluginmanager.register(Marking())

def pytest_collection_finish(session):
    for item in session.items:
        for mark in item.iter_markers("xdist_group"):
            print("group:", item.name, mark.args[0])
"""
CLUSTERS = """
from collections.abc import Iterator

import pytest

from jetspark.server import Cluster

class Two(Cluster):
    def __init__(self):
        super().__init__(2, binary="/nonexistent")

@pytest.fixture
def pair() -> Iterator[Cluster]:
    yield None

@pytest.fixture(scope="module")
def lasting() -> Iterator[Cluster]:
    yield None

@pytest.fixture
def by_way_of(pair):
    return pair

def test_unmarked():
    with Two():
        pass

@pytest.mark.cluster
def test_marked():
    with pytest.raises(Exception, match="/nonexistent"), Two():
        pass

def test_fixture(by_way_of):
    pass

def test_lasting_fixture(lasting):
    pass
"""
SPARKS = """
import os
import subprocess
import sys

import pytest

def start():
    code = "from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate()"
    subprocess.run([sys.executable, "-c", code], check=True)

@pytest.fixture
def spark():
    pass

def test_unmarked():
    start()

@pytest.mark.spark
def test_marked():
    assert "without" not in os.environ.get("SPARK_HOME", "")

def test_fixture(spark):
    pass
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """A function that runs these tests and returns what pytest prints."""
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    (tmp_path / "conftest.py").write_text(CONFTEST)

    def start(tests: str, *arguments: str) -> str:
        (tmp_path / "test_planted.py").write_text(tests)
        command = [sys.executable, "-m", "pytest", "-v", "-rfE", *arguments]
        clean = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, env=clean | {"COLUMNS": "200"}
        )
        return done.stdout + done.stderr

    return start


@pytest.mark.slow
def test_a_cluster_needs_its_mark(run: Callable[..., str]) -> None:
    said = run(CLUSTERS)
    assert "1 failed, 3 passed" in said, said
    assert "test_unmarked - Failed: starts a Cluster: mark the test with @pytest.mark.cluster" in said


@pytest.mark.slow
def test_a_fixture_that_makes_a_cluster_marks_its_tests(run: Callable[..., str]) -> None:
    said = run(CLUSTERS, "-m", "not cluster", "--collect-only", "-q")
    assert "1/4 tests collected" in said, said
    assert "test_unmarked" in said


@pytest.mark.slow
def test_a_spark_needs_its_mark(run: Callable[..., str]) -> None:
    said = run(SPARKS)
    assert "1 failed, 2 passed" in said, said
    assert "/this/test/starts/Spark/without/pytest.mark.spark" in said


@pytest.mark.slow
def test_the_fixture_spark_marks_its_tests(run: Callable[..., str]) -> None:
    said = run(SPARKS, "-m", "spark", "--collect-only", "-q")
    assert "2/3 tests collected" in said, said


@pytest.mark.slow
def test_one_worker_runs_what_shares_a_session_or_a_lasting_cluster(run: Callable[..., str]) -> None:
    sparks = run(SPARKS, "--collect-only")
    assert "group: test_fixture spark\n" in sparks, sparks
    assert "group: test_marked spark processes of " in sparks
    clusters = run(CLUSTERS, "--collect-only")
    assert "group: test_lasting_fixture cluster of test_planted\n" in clusters, clusters
    assert "group: test_fixture " not in clusters


def test_every_slow_file_is_there() -> None:
    assert [name for name in sorted(SLOW_FILES) if not (TESTS / name).is_file()] == []
