"""The command line against the worker's server, with a home of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

from support.cli_forks import Forks
from support.cli_runner import Ran, Terminal, environment, inside, process
from support.helpers import unique
from support.piping import PipeChild, publish

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jetspark.server import Server
    from support.piping import Pipe


class Run(Protocol):
    def __call__(self, *args: str, stdin: bytes = b"") -> Ran: ...


class Open(Protocol):
    def __call__(self, *args: str, columns: int = 80, rows: int = 24) -> Terminal: ...


@pytest.fixture
def env(tmp_path: Path, server: Server) -> dict[str, str]:
    """An environment that names the worker's server."""
    return environment(tmp_path, NATS_URL=server.url)


@pytest.fixture
def cli(env: dict[str, str]) -> Run:
    """Runs a command in this process."""
    return lambda *args, stdin=b"": inside(env, *args, stdin=stdin)


@pytest.fixture
def script(env: dict[str, str]) -> Run:
    """Runs the installed script in pipes."""
    return lambda *args, stdin=b"": process(env, *args, stdin=stdin)


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Starts commands as processes without the price of a start."""
    running = Forks()
    yield running
    running.close()


@pytest.fixture
def terminal(env: dict[str, str], forks: Forks) -> Open:
    """Runs a command as a process in a terminal."""
    return lambda *args, columns=80, rows=24: Terminal(env, *args, columns=columns, rows=rows, forks=forks)


@pytest.fixture
def stream(cli: Run) -> str:
    """A stream of its own that captures ``NAME.>``, with three messages."""
    name = unique("CLI")
    assert cli("stream", "add", name, "--subjects", f"{name}.>", "--storage", "memory").code == 0
    sent = cli("pub", f"{name}.eu", "order {{Count}}", "--count", "3", "--js", "-H", "No: {{Count}}")
    assert sent.code == 0, sent.err
    return name


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the pipes run."""
    return tmp_path_factory.mktemp("pipe")


@pytest.fixture(scope="session")
def pipe(home: Path, _shared_server: Server) -> Iterator[Pipe]:
    """Runs ``jetspark pipe`` in a child, which has one Spark for all."""
    child = PipeChild(environment(home, NATS_URL=_shared_server.url), home)
    yield child
    child.close()


@pytest.fixture
def orders(cli: Run) -> str:
    """A stream with four orders."""
    name = unique("ORD")
    assert cli("stream", "add", name, "--subjects", f"{name}.>", "--storage", "memory").code == 0
    publish(cli, name, range(4))
    return name


@pytest.fixture
def target(cli: Run) -> str:
    """A stream for results."""
    name = unique("TO")
    assert cli("stream", "add", name, "--subjects", f"{name}.>", "--storage", "memory").code == 0
    return name
