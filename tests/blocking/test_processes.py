"""Forks, Ctrl-C and the interpreter's end: each in a process of its own."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from jetspark import blocking
from jetspark.errors import ConnectionClosed
from support.helpers import PROMPT, unique

if TYPE_CHECKING:
    import subprocess

    from jetspark.server import Server


Spawn = Callable[[Any, str], "subprocess.Popen[str]"]
InChild = Callable[[Callable[[], None]], int]


def test_forked_child_is_refused_by_every_call_and_the_parent_goes_on(
    server: Server, in_child: InChild
) -> None:
    subject = unique("fork")
    with blocking.connect(server.url) as nc:
        sub = nc.subscribe(subject)
        for number in range(3):
            nc.publish(subject, b"%d" % number)
        nc.flush()
        reading = iter(sub)
        assert next(reading).data == b"0"

        def check() -> None:
            for call in (
                lambda: nc.publish(subject, b"child"),
                lambda: nc.subscribe("a"),
                lambda: nc.request("a"),
                lambda: list(nc.request_many("a")),
                nc.flush,
                nc.rtt,
                nc.drain,
                nc.force_reconnect,
                lambda: next(reading),
                lambda: list(sub),
                sub.next,
                sub.drain,
            ):
                with pytest.raises(ConnectionClosed, match="open a new connection in the child"):
                    call()
            assert nc.is_closed
            assert not nc.is_connected
            assert sub.closed
            sub.unsubscribe()
            nc.close()

        assert in_child(check) == 0
        assert [msg.data for msg in (next(reading), sub.next())] == [b"1", b"2"]
        assert nc.rtt() > 0
        assert nc.stats.out_msgs == 3


def test_forked_child_refuses_though_the_parent_held_every_lock(server: Server, in_child: InChild) -> None:
    with blocking.connect(server.url) as nc:
        sub = nc.subscribe(unique("locks"))

        def check() -> None:
            for call in (lambda: nc.publish("a"), nc.flush, sub.next):
                with pytest.raises(ConnectionClosed):
                    call()
            nc.close()

        with nc._engine.loop._lock, nc._core.outbox._lock:
            assert in_child(check) == 0


def test_forked_child_opens_its_own_connection(server: Server, in_child: InChild) -> None:
    subject = unique("fresh")
    with blocking.connect(server.url) as nc:
        sub = nc.subscribe(subject)
        nc.flush()

        def check() -> None:
            with blocking.connect(server.url) as own:
                own.publish(subject, b"from the child")
                own.flush()

        assert in_child(check) == 0
        assert sub.next(timeout=20).data == b"from the child"


@pytest.mark.parametrize(
    "wait",
    [
        "sub.next(timeout=120)",
        "next(sub)",
        "list(sub)",
        "nc.request(subject, timeout=120)",
        "list(nc.request_many(subject, timeout=120))",
    ],
)
def test_ctrl_c_interrupts_waiting(server: Server, spawn: Spawn, wait: str) -> None:
    process = spawn(
        server,
        f"""
        import sys, time
        subject = {unique("ctrlc")!r}
        with blocking.connect(URL) as nc:
            sub = nc.subscribe(subject)
            try:
                print("waiting", flush=True)
                {wait}
            except KeyboardInterrupt:
                # The connection is as good as before.
                assert nc.rtt() > 0
                raise
        """,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    start = time.monotonic()
    # Early signals hit the call on its way into waiting, which must work as well.
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert time.monotonic() - start < PROMPT
    assert process.returncode == -signal.SIGINT
    assert stderr.rstrip().endswith("KeyboardInterrupt")


def test_interrupted_request_is_cancelled_in_the_loop(server: Server, spawn: Spawn) -> None:
    process = spawn(
        server,
        f"""
        import signal, time
        subject = {unique("cancelled")!r}
        with blocking.connect(URL) as nc:
            sub = nc.subscribe(subject)
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 1.5)
            try:
                nc.request(subject, timeout=60)
            except KeyboardInterrupt:
                nc.flush()
                print(len(nc._core.inbox._pending), sub.pending_messages)
        """,
    )
    stdout, stderr = process.communicate(timeout=60)
    assert (stdout, stderr, process.returncode) == ("0 1\n", "", 0)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "sub = nc.subscribe('idle')",
        "nc.subscribe('idle', callback=print)",
        "import threading; threading.Thread(target=lambda: list(nc.subscribe('idle')), daemon=True).start()",
        "other = blocking.connect(URL, listener=lambda event: None)",
    ],
    ids=["open", "subscribed", "callback", "reading", "two"],
)
def test_exit_without_close_is_quick_and_silent(server: Server, spawn: Spawn, body: str) -> None:
    process = spawn(server, f"nc = blocking.connect(URL)\n{body}\nprint('end')")
    stdout, stderr = process.communicate(timeout=60)  # nothing of it would end by itself
    assert (stdout, stderr, process.returncode) == ("end\n", "", 0)


def test_exit_without_close_sends_what_was_published(server: Server, spawn: Spawn) -> None:
    subject = unique("exit")
    with blocking.connect(server.url) as nc:
        sub = nc.subscribe(subject)
        nc.flush()
        process = spawn(
            server,
            f"nc = blocking.connect(URL)\nfor n in range(1000): nc.publish({subject!r}, b'%d' % n)",
        )
        _, stderr = process.communicate(timeout=60)
        assert (stderr, process.returncode) == ("", 0)
        got = [sub.next(timeout=20).data for _ in range(1000)]
        assert got == [b"%d" % number for number in range(1000)]


def test_exit_says_what_was_published_while_disconnected_and_never_sent(
    own_server: Server, spawn: Spawn
) -> None:
    process = spawn(
        own_server,
        """
        import time
        nc = blocking.connect(URL)
        print("connected", flush=True)
        input()
        while nc.is_connected:
            time.sleep(0.01)
        nc.publish("a", b"lost")
        """,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "connected\n"
    own_server.kill()
    _, stderr = process.communicate("go\n", timeout=60)
    assert process.returncode == 0
    assert "the process ends before about 15 bytes that it published were sent to the server\n" in stderr


def test_exit_does_not_wait_for_a_dead_server(own_server: Server, spawn: Spawn) -> None:
    process = spawn(
        own_server,
        """
        # So that neither publishing nor the exit waits for anything but the server.
        nc = blocking.connect(URL, connect_timeout=120, write_buffer_size=100_000_000)
        print("connected", flush=True)
        input()
        for _ in range(100):
            nc.publish("a", b"x" * 100_000)
        """,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "connected\n"
    own_server.suspend()
    start = time.monotonic()
    _, stderr = process.communicate("go\n", timeout=60)
    own_server.resume()
    assert process.returncode == 0
    # What is lost by it is said: 10 MB less what the kernel took.
    said = re.fullmatch(
        r"the process ends before about (\d+) bytes that it published were sent to the server\n", stderr
    )
    assert said is not None, stderr
    assert 0 < int(said[1]) <= 100 * 100_020
    assert time.monotonic() - start < PROMPT


def test_uncaught_error_leaves_with_statement_and_process(server: Server, spawn: Spawn) -> None:
    process = spawn(server, "with blocking.connect(URL) as nc:\n    raise SystemExit(7)")
    _, stderr = process.communicate(timeout=60)
    assert (stderr, process.returncode) == ("", 7)
