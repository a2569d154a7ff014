"""Connections that are dropped without a close: a warning names them, and nothing of them stays."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from jetspark import blocking
from jetspark.errors import ConnectionClosed
from support.helpers import eventually_sync, unique

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetspark.server import Server


@contextlib.contextmanager
def nothing_stays() -> Iterator[None]:
    """Threads and descriptors end as they were."""
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    eventually_sync(lambda: threading.active_count() <= threads)
    eventually_sync(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)


@contextlib.contextmanager
def warned(count: int) -> Iterator[list[str]]:
    """So many connections are told of in the block; their warnings, when it has ended."""
    told: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield told
        gc.collect()
    told += [str(warning.message) for warning in caught if warning.category is ResourceWarning]
    assert len(told) == len(caught) == count, caught


def test_twenty_dropped_connections_are_named_and_freed(server: Server) -> None:
    with nothing_stays(), warned(20) as told:
        for number in range(20):
            nc = blocking.connect(server.url, name=f"dropped {number}", listener=lambda event: None)
            nc.subscribe(unique("dropped"))
            nc.jetstream()
            nc.flush()
            del nc
    assert f"unclosed blocking connection 'dropped 0' to {server.url}:" in sorted(told)[0]


def test_what_was_published_before_is_sent(server: Server) -> None:
    subject = unique("dropped")
    with blocking.connect(server.url) as other:
        sub = other.subscribe(subject)
        other.flush()
        with warned(1):
            nc: Any = blocking.connect(server.url)
            for number in range(1000):
                nc.publish(subject, b"%d" % number)
            nc = None
        assert [int(sub.next().data) for _ in range(1000)] == list(range(1000))


@pytest.mark.parametrize("how", ["with", "close", "drain"])
def test_a_closed_one_is_no_news(server: Server, how: str) -> None:
    with nothing_stays(), warned(0):
        nc: Any = blocking.connect(server.url)
        if how == "with":
            with nc:
                pass
        else:
            getattr(nc, how)()
        nc = None


def test_anything_that_was_made_of_it_keeps_it_open(server: Server) -> None:
    subject = unique("dropped")

    def subscribed() -> blocking.Subscription:
        return blocking.connect(server.url).subscribe(subject)

    with blocking.connect(server.url) as other:
        with warned(0):
            sub: Any = subscribed()
            js: Any = blocking.connect(server.url).jetstream()
            gc.collect()
            other.publish(subject, b"1", reply=subject)
            message = sub.next()
            message.respond(b"2")
            reading = iter(sub)
            sub = None
            gc.collect()
            assert next(reading).data == b"2"
            assert js.account_info()
        with warned(2):
            del reading, js
        # A message does not.
        with pytest.raises(ConnectionClosed):
            message.respond(b"3")


def test_callbacks_keep_it_open(server: Server) -> None:
    subject, got = unique("dropped"), []

    def serve() -> None:
        nc = blocking.connect(server.url)
        nc.subscribe(subject, callback=got.append)
        nc.flush()

    with blocking.connect(server.url) as other, warned(0):
        serve()
        gc.collect()
        other.publish(subject, b"1")
        eventually_sync(lambda: got)
        got[0]._owner.core.held().connection.close()


@pytest.mark.parametrize("flags", [[], ["-X", "dev"], ["-W", "error"]], ids=" ".join)
@pytest.mark.parametrize(
    "body",
    [
        "nc = blocking.connect(URL)",
        "nc = blocking.connect(URL); sub = nc.subscribe('a', callback=print)",
        "sub = blocking.connect(URL).subscribe('a'); js = blocking.connect(URL).jetstream()",
        "with blocking.connect(URL) as nc: pass",
    ],
)
def test_the_exit_of_the_interpreter_is_clean(server: Server, flags: list[str], body: str) -> None:
    code = f"from jetspark import blocking\nURL = {server.url!r}\n{body}\nprint('end')"
    done = subprocess.run(
        [sys.executable, *flags, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    # With -X dev asyncio tells of slow steps, which a busy machine has.
    told = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert (done.stdout, told, done.returncode) == ("end\n", [], 0)
