"""Servers for tests. Each is a real nats-server; see CONTRIBUTING.md for which one to use."""

from __future__ import annotations

import gc
import signal
import socket
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from hypothesis import HealthCheck, settings

from jetspark.server import Cluster, Server
from jetspark.wire import backend
from support import quick_spark
from support.helpers import three_nodes
from support.marking import Marking
from support.stops import expect_stops

if TYPE_CHECKING:
    from collections.abc import Iterator

# A machine that is busy, or a process that stands still for a while, is no failure: no limits on times. And a
# test run repeats: `make soak-tests` searches at random, with seeds.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("repeated", _UNTIMED, derandomize=True, database=None)
settings.register_profile("searching", _UNTIMED)
settings.load_profile("repeated")


def pytest_configure(config: pytest.Config) -> None:
    # What a shell runs in the background ignores Ctrl-C, and so would the processes that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Marking())
    expect_stops()


def pytest_report_header() -> str:
    return f"jetspark.wire: {'compiled core' if backend == 'c' else 'pure Python'}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start the Spark groups and then the slow tests first, and keep the groups of ``--dist loadgroup``.

    Where several workers share the tests, a slow one that starts late makes all others wait for its end, and
    the groups that start JVMs take longer than everything else together.

    pytest-xdist 3.8 loses the groups under pytest 9.2 (issue 1386): it appends the group to a test's id by
    way of a field that pytest reads no more, and says nothing. Each worker would start a Spark of its own.
    """
    if not config.getoption("loadgroup", False):  # pytest-xdist sets it in its workers
        return
    items.sort(key=lambda item: [item.get_closest_marker(mark) is None for mark in ("spark", "slow")])
    for item in items:
        groups = "_".join(sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group")}))
        if groups and not item.nodeid.endswith(f"@{groups}"):
            item._id = type(item._id).parse(f"{item.nodeid}@{groups}")  # type: ignore[attr-defined]


def pytest_collection_finish() -> None:
    """Take the thousands of collected tests out of the garbage collector's sight: each collection would look
    at all of them, which takes longer than most tests."""
    gc.collect()
    gc.freeze()


class StartServer(Protocol):
    def __call__(self, **options: Any) -> Server: ...


@pytest.fixture(scope="session", autouse=True)
def _quick_spark() -> Iterator[None]:
    """Every Spark that tests start, in whatever process, is the quick one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in quick_spark.environment().items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def unused_tcp_port() -> Iterator[int]:
    """A port where nobody listens, and that nobody gets while the test runs."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        yield port


@pytest.fixture(scope="session")
def _shared_server() -> Iterator[Server]:
    with Server(name="shared", websocket=True) as running:
        yield running


@pytest.fixture
def server(_shared_server: Server) -> Server:
    """The worker's shared server with JetStream and WebSocket: use unique(...) names and leave it running."""
    if not _shared_server.running:
        # A test that broke the rule must not take the rest of the worker's tests with it.
        _shared_server.restart()
    return _shared_server


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """A function that starts a private Server(**options); all are stopped after the test."""
    started: list[Server] = []

    def start(**options: Any) -> Server:
        private = Server(**options)
        started.append(private)
        return private.start()

    yield start
    for private in started:
        private.stop()


@pytest.fixture
def own_server(start_server: StartServer) -> Server:
    """A private server with JetStream, to kill, suspend, restart or reload."""
    return start_server(name="own")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three nodes shared by the worker's tests: leave all of them running."""
    with three_nodes() as running:
        yield running


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """Three private nodes, to kill and restart."""
    with three_nodes() as running:
        yield running
