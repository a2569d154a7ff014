"""Marks tests by what they start, and fails a test that starts what its marks do not say.

``-m`` selects by these marks, so a wrong one is a lie: `make quick` would start a Spark, or a cluster. Where
the fixtures of a test tell, the mark is set here. A test that starts a cluster or a Spark in another way
carries ``pytest.mark.cluster`` or ``pytest.mark.spark`` itself.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

from jetspark.server import Cluster

if TYPE_CHECKING:
    from collections.abc import Generator

SLOW_FOLDERS = {"faults"}
"""The short forms of the table of faults, and what else kills servers for seconds."""

SLOW_FILES = {
    "blocking/test_consume_processes.py",
    "blocking/test_dropped.py",
    "blocking/test_fetch_unanswered.py",
    "blocking/test_processes.py",
    "connection/test_dead_peer.py",
    "connection/test_discovery.py",
    "connection/test_visible.py",
    "jetstream/test_consume_crowded.py",
    "jetstream/test_consume_frozen.py",
    "jetstream/test_fetch_unanswered.py",
    "jetstream/test_ordered_lossy.py",
    "jetstream/test_publish_many.py",
    "jetstream/test_push_answers.py",
    "jetstream/test_schedules.py",
    "spark/test_source_model.py",
}
"""Below `tests/`: most of their tests wait for seconds, or start a Python of their own."""

NO_SPARK = "/this/test/starts/Spark/without/pytest.mark.spark"
"""Stands in SPARK_HOME while tests without the mark run: whatever starts a Spark fails, and names it."""


class Marking:
    """The plugin. `tests/conftest.py` registers it."""

    def __init__(self) -> None:
        self._running: pytest.Item | None = None
        self._patch = pytest.MonkeyPatch()

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        if not isinstance(item, pytest.Function):
            return
        group = ""
        if item.get_closest_marker("spark"):
            group = f"spark processes of {item.path.parent.name}"
        if "spark" in item.fixturenames:
            item.add_marker("spark")
            group = "spark"
        for fixture in _clusters(item):
            item.add_marker("cluster")
            if not group and fixture.scope != "function":
                group = "cluster" if fixture.scope == "session" else f"cluster of {item.path.stem}"
        folder = item.path.parent.name
        if folder in SLOW_FOLDERS or f"{folder}/{item.path.name}" in SLOW_FILES:
            item.add_marker("slow")
        # One worker runs all tests of a group: no more than three of them run JVMs at a time, and a shared
        # cluster is started once, not once by each worker.
        if group and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(group))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._running = item
        try:
            return (yield)
        finally:
            self._running = None

    @pytest.fixture(autouse=True)
    def _no_spark_without_the_mark(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not request.node.get_closest_marker("spark"):
            monkeypatch.setenv("SPARK_HOME", NO_SPARK)

    def pytest_sessionstart(self) -> None:
        start = Cluster.start

        @functools.wraps(start)
        def checked(cluster: Cluster) -> Any:
            if self._running is not None and not self._running.get_closest_marker("cluster"):
                pytest.fail("starts a Cluster: mark the test with @pytest.mark.cluster", pytrace=False)
            return start(cluster)

        self._patch.setattr(Cluster, "start", checked)

    def pytest_sessionfinish(self) -> None:
        self._patch.undo()


def _clusters(item: pytest.Function) -> list[pytest.FixtureDef[Any]]:
    """The fixtures of the test, its own and theirs, that make a cluster: their annotation says so."""
    return [
        definitions[-1]
        for definitions in item._fixtureinfo.name2fixturedefs.values()
        if "Cluster" in str(definitions[-1].func.__annotations__.get("return", ""))
    ]
