"""Consuming and publishing across forks, Ctrl-C and the interpreter's end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from jetspark import ConsumerConfig, blocking
from jetspark.errors import ConnectionClosed
from support.helpers import PROMPT, eventually_sync, unique

if TYPE_CHECKING:
    import subprocess

    from jetspark.server import Server

Fill = Callable[[int], None]
Spawn = Callable[[Any, str], "subprocess.Popen[str]"]
InChild = Callable[[Callable[[], None]], int]


def test_forked_child_is_refused(
    js: blocking.JetStream, stream: blocking.Stream, fill: Fill, in_child: InChild
) -> None:
    fill(100)
    worker = stream.create_consumer(ConsumerConfig(durable_name="worker"))
    other = stream.create_consumer(ConsumerConfig(durable_name="other"))
    subject = f"{stream.name}.b"
    with (
        js.publisher() as publisher,
        js.atomic_batch() as batch,
        js.fast_ingest() as ingest,
        worker.consume(max_messages=50) as messages,
        other.consume_with(lambda msg: None) as consuming,
    ):
        future = publisher.publish(subject)
        future.result(5)
        reading = iter(messages)
        message = next(reading)

        def check() -> None:
            for call in (
                message.ack,
                message.ack_sync,
                lambda: message.ack_next(1),
                # In the middle of what is buffered, too.
                lambda: next(reading),
                lambda: list(messages),
                lambda: next(messages),
                messages.drain,
                consuming.wait,
                worker.next,
                lambda: worker.fetch(1),
                lambda: worker.consume().__enter__(),
                lambda: publisher.publish(subject),
                publisher.flush,
                lambda: js.publisher().__enter__(),
                lambda: batch.publish(subject),
                batch.commit,
                lambda: ingest.publish(subject),
            ):
                with pytest.raises(ConnectionClosed, match="open a new connection in the child"):
                    call()
            assert messages.closed
            assert future.result().seq == 101
            for block in (consuming, messages, ingest, batch, publisher):
                block.__exit__(None, None, None)

        assert in_child(check) == 0
        # The parent has lost nothing.
        assert [int(next(reading).data) for _ in range(99)] == list(range(1, 100))
        assert publisher.publish(subject).result(5).seq == 102


@pytest.mark.parametrize(
    "wait",
    [
        "worker.next(expires=60)",
        "worker.fetch(10, expires=60)",
        "for msg in worker.consume().__enter__(): pass",
        "next(worker.consume().__enter__())",
        "for batch in worker.consume_batches().__enter__(): pass",
        "worker.consume_with(print).__enter__().wait()",
        "sub.fetch(5, timeout=60)",
    ],
)
def test_ctrl_c_interrupts_waiting(server: Server, spawn: Spawn, wait: str, stream: blocking.Stream) -> None:
    process = spawn(
        server,
        f"""
        from jetspark import ConsumerConfig
        with blocking.connect(URL) as nc:
            js = nc.jetstream()
            worker = js.create_consumer({stream.name!r}, ConsumerConfig(durable_name="w"))
            sub = js.pull_subscribe(stream={stream.name!r}, consumer="w")
            try:
                print("waiting", flush=True)
                {wait}
            except KeyboardInterrupt:
                assert nc.rtt() > 0
                raise
        """,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert time.monotonic() - start < PROMPT
    assert process.returncode == -signal.SIGINT
    assert stderr.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.slow
@pytest.mark.parametrize("batches", [False, True], ids=["messages", "batches"])
def test_signals_while_reading_lose_nothing(
    server: Server, spawn: Spawn, stream: blocking.Stream, fill: Fill, batches: bool
) -> None:
    """Interrupted again and again, each message is seen once and in order, without the help of acks.

    Signals count only while the loop is on its way to the next message; what happens in its body is ours.
    """
    fill(60_000)
    take = "got += [int(m.data) for m in msg]" if batches else "got.append(int(msg.data))"
    call = "consume_batches" if batches else "consume"
    process = spawn(
        server,
        f"""
        import signal
        from jetspark import ConsumerConfig

        armed = False
        def interrupt(*args):
            if armed:
                raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        got, hits = [], 0
        with blocking.connect(URL) as nc:
            config = ConsumerConfig(ack_policy="none", mem_storage=True)
            worker = nc.jetstream().create_consumer({stream.name!r}, config)
            with worker.{call}(max_messages=200, stop_after=60_000) as messages:
                signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
                while len(got) < 60_000:
                    try:
                        armed = True
                        for msg in messages:
                            armed = False
                            {take}
                            armed = True
                        armed = False
                    except KeyboardInterrupt:
                        armed = False
                        hits += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
        print(len(got), got == list(range(60_000)), hits > 20)
        """,
    )
    stdout, stderr = process.communicate(timeout=50)
    assert (stdout, stderr, process.returncode) == ("60000 True True\n", "", 0)


def test_interrupted_fetch_keeps_its_messages(
    server: Server, spawn: Spawn, stream: blocking.Stream, fill: Fill
) -> None:
    fill(50)
    process = spawn(
        server,
        f"""
        import signal
        from jetspark import ConsumerConfig
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        with blocking.connect(URL) as nc:
            config = ConsumerConfig(ack_policy="none", mem_storage=True)
            worker = nc.jetstream().create_consumer({stream.name!r}, config)
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            try:
                worker.fetch(100, expires=60)
            except KeyboardInterrupt:
                print([int(msg.data) for msg in worker.fetch(50, expires=2)] == list(range(50)))
        """,
    )
    stdout, stderr = process.communicate(timeout=60)
    assert (stdout, stderr, process.returncode) == ("True\n", "", 0)


@pytest.mark.parametrize(
    "body",
    [
        "messages = worker.consume().__enter__(); next(messages)",
        "worker.consume_with(lambda msg: None, concurrency=3).__enter__()",
        "import threading; ms = worker.consume().__enter__(); "
        "threading.Thread(target=lambda: list(ms), daemon=True).start()",
        "worker.consume(on_error=print).__enter__()",
        "publisher = js.publisher().__enter__(); publisher.publish(subject)",
        "batch = js.atomic_batch().__enter__(); batch.publish(subject)",
        "ingest = js.fast_ingest().__enter__()",
        "ordered = js.create_ordered_consumer(stream); ordered.consume().__enter__()",
    ],
    ids=["iterator", "callback", "thread", "listener", "publisher", "atomic", "ingest", "ordered"],
)
def test_exit_without_close_is_quick_and_silent(
    server: Server, spawn: Spawn, stream: blocking.Stream, fill: Fill, body: str
) -> None:
    fill(100)
    process = spawn(
        server,
        f"""
        from jetspark import ConsumerConfig
        nc = blocking.connect(URL)
        js = nc.jetstream()
        stream, subject = {stream.name!r}, {stream.name + ".b"!r}
        worker = js.create_consumer(stream, ConsumerConfig(durable_name={unique("w")!r}))
        {body}
        print("end")
        """,
    )
    stdout, stderr = process.communicate(timeout=60)  # nothing of it would end by itself
    assert (stdout, stderr, process.returncode) == ("end\n", "", 0)


def test_exit_without_close_sends_acks_and_publishes(
    server: Server, spawn: Spawn, stream: blocking.Stream, fill: Fill
) -> None:
    fill(500)
    worker = stream.create_consumer(ConsumerConfig(durable_name="worker"))
    process = spawn(
        server,
        f"""
        nc = blocking.connect(URL)
        js = nc.jetstream()
        for msg in js.get_consumer({stream.name!r}, "worker").fetch(500, expires=5):
            msg.ack()
        publisher = js.publisher().__enter__()
        for number in range(500):
            publisher.publish({stream.name + ".b"!r}, b"x")
        """,
    )
    _, stderr = process.communicate(timeout=60)
    assert (stderr, process.returncode) == ("", 0)
    # The server works them off after the connection has gone.
    eventually_sync(lambda: worker.info().ack_floor.stream_seq == 500)
    eventually_sync(lambda: stream.info().state.messages == 1000)
