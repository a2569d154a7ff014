"""What the tests of the blocking API share: streams with numbered messages, scripts, forks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from typing import TYPE_CHECKING

import pytest

from jetspark import StorageType, StreamConfig, blocking
from support.helpers import LIMIT, unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jetspark.server import Server


@pytest.fixture
def nc(server: Server) -> Iterator[blocking.Connection]:
    with blocking.connect(server.url) as connection:
        yield connection


@pytest.fixture
def js(nc: blocking.Connection) -> blocking.JetStream:
    return nc.jetstream()


@pytest.fixture
def stream(js: blocking.JetStream) -> Iterator[blocking.Stream]:
    """A stream that takes every subject below its name."""
    name = unique("BLOCKING")
    made = js.create_stream(
        StreamConfig(name=name, subjects=[f"{name}.>"], allow_direct=True, storage=StorageType.MEMORY)
    )
    server = js.connection.server_info.host, js.connection.server_info.port
    yield made
    with blocking.connect("nats://{}:{}".format(*server)) as cleaner:
        cleaner.jetstream().delete_stream(name)


@pytest.fixture
def fill(js: blocking.JetStream, stream: blocking.Stream) -> Callable[[int], None]:
    """A function that stores so many messages; their bodies are their numbers."""
    numbers = iter(range(1 << 62))

    def publish(count: int) -> None:
        with js.publisher() as publisher:
            for _, number in zip(range(count), numbers, strict=False):
                publisher.publish(f"{stream.name}.a", b"%d" % number)

    return publish


@pytest.fixture
def spawn() -> Iterator[Callable[[Server, str], subprocess.Popen[str]]]:
    """A function that runs a script in a fresh interpreter in which every warning is an error."""
    with contextlib.ExitStack() as cleanup:

        def start(server: Server, script: str) -> subprocess.Popen[str]:
            code = f"from jetspark import blocking\nURL = {server.url!r}\n" + textwrap.dedent(script)
            process = cleanup.enter_context(
                subprocess.Popen(
                    [sys.executable, "-W", "error", "-c", code],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            cleanup.callback(process.kill)
            return process

        yield start


@pytest.fixture
def in_child() -> Callable[[Callable[[], None]], int]:
    """A function that runs another one in a forked child; the exit code, or 99 when it hangs."""

    def run(check: Callable[[], None]) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12+ warns of forks beside threads
            pid = os.fork()
        if pid == 0:
            signal.alarm(round(LIMIT))
            code = 1
            try:
                check()
                code = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        return 99 if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    return run
