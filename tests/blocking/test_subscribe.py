"""Push subscriptions for threads, on the real server."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from jetspark import AckPolicy, ConsumerConfig, blocking
from jetspark.errors import (
    ConsumerDeleted,
    ConsumerInUse,
    InvalidArgument,
    MissedHeartbeat,
    OrderedReset,
    PushSubscriptionClosed,
    RequestTimeout,
    UnexpectedStatus,
)
from jetspark.events import CallbackFailed
from jetspark.wire.headers import HeaderBlock
from support.helpers import eventually_sync, unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jetspark.server import Server

NONE = ConsumerConfig(ack_policy=AckPolicy.NONE)


def numbers(messages: Iterable[blocking.Message]) -> list[int]:
    return [int(message.data) for message in messages]


def take(sub: blocking.PushSubscription, count: int) -> list[int]:
    return [int(sub.next(timeout=20).data) for _ in range(count)]


def send_status(nc: blocking.Connection, subject: str, line: bytes) -> None:
    async def send() -> None:
        nc._core.outbox.publish(subject, b"", "", HeaderBlock(b"NATS/1.0 " + line + b"\r\n\r\n"))

    nc._engine.run(send)


def test_iterate_ack_and_unsubscribe(
    js: blocking.JetStream, stream: blocking.Stream, fill: Callable[[int], None]
) -> None:
    fill(500)
    got: list[int] = []
    with js.subscribe(f"{stream.name}.>", durable="d", idle_heartbeat=1.0, flow_control=True) as sub:
        for message in sub:
            message.ack()
            got.append(int(message.data))
            if len(got) == 500:
                break
        eventually_sync(lambda: sub.consumer_info().ack_floor.stream_seq == 500)
        assert (sub.delivered, sub.pending, sub.dropped) == (500, 0, 0)
        assert (sub.stream_name, sub.consumer_name, sub.queue) == (stream.name, "d", "")
    assert got == list(range(500))
    assert sub.closed
    assert list(js.consumer_names(stream.name)) == ["d"], "a durable stays for the next start"
    with js.subscribe(f"{stream.name}.>", durable="other", delete_on_close=True):
        pass
    assert list(js.consumer_names(stream.name)) == ["d"]


def test_next_times_out_and_tells_of_the_end(js: blocking.JetStream, stream: blocking.Stream) -> None:
    sub = js.subscribe(f"{stream.name}.>")
    with pytest.raises(RequestTimeout, match="within"):
        sub.next(timeout=0.05)
    sub.unsubscribe()
    with pytest.raises(PushSubscriptionClosed):
        sub.next()
    assert list(sub) == []
    with pytest.raises(StopIteration):
        next(sub)  # type: ignore[call-overload]


@pytest.mark.parametrize("manual", [False, True])
def test_a_callback_runs_in_a_thread_and_acks(
    js: blocking.JetStream, stream: blocking.Stream, fill: Callable[[int], None], manual: bool
) -> None:
    fill(100)
    got: list[int] = []
    threads = set()

    def handle(message: blocking.Message) -> None:
        threads.add(threading.current_thread().name)
        # It may use the API.
        assert js.get_stream(stream.name).name == stream.name
        got.append(int(message.data))

    sub = js.subscribe(f"{stream.name}.>", callback=handle, manual_ack=manual)
    eventually_sync(lambda: len(got) == 100, timeout=20)
    eventually_sync(lambda: sub.consumer_info().num_ack_pending == (100 if manual else 0))
    sub.unsubscribe()
    assert got == list(range(100))
    assert len(threads) == 1
    with pytest.raises(InvalidArgument):
        sub.next()


def test_a_callback_that_raises_is_told(
    server: Server, js: blocking.JetStream, stream: blocking.Stream, fill: Callable[[int], None]
) -> None:
    fill(2)
    events: list[Any] = []
    got: list[int] = []

    def handle(message: blocking.Message) -> None:
        got.append(int(message.data))
        raise ZeroDivisionError

    with blocking.connect(server.url, listener=events.append) as nc:
        nc.jetstream().subscribe(f"{stream.name}.>", callback=handle)
        eventually_sync(lambda: sum(isinstance(event, CallbackFailed) for event in events) == 2)
    assert got == [0, 1]


def test_coroutine_functions_are_refused(js: blocking.JetStream, stream: blocking.Stream) -> None:
    async def handle(message: Any) -> None: ...

    with pytest.raises(InvalidArgument, match="plain function"):
        js.subscribe(f"{stream.name}.>", callback=handle)


def test_drain_waits_for_the_callback_then_deletes(
    js: blocking.JetStream, stream: blocking.Stream, fill: Callable[[int], None]
) -> None:
    fill(30)
    got: list[int] = []
    gate = threading.Event()

    def handle(message: blocking.Message) -> None:
        gate.wait(20)
        got.append(int(message.data))

    sub = js.subscribe(f"{stream.name}.>", callback=handle)
    eventually_sync(lambda: sub.delivered + sub.pending == 30)
    threading.Timer(0.1, gate.set).start()
    sub.drain()
    assert got == list(range(30))
    assert list(js.consumer_names(stream.name)) == []


def test_a_callback_may_drain_its_own_subscription(
    js: blocking.JetStream, stream: blocking.Stream, fill: Callable[[int], None]
) -> None:
    fill(10)
    got: list[int] = []
    ready = threading.Event()

    def handle(message: blocking.Message) -> None:
        ready.wait(20)
        got.append(int(message.data))
        if len(got) == 1:
            sub.drain()

    sub = js.subscribe(f"{stream.name}.>", callback=handle)
    eventually_sync(lambda: sub.delivered + sub.pending == 10)
    ready.set()
    eventually_sync(lambda: list(js.consumer_names(stream.name)) == [])
    assert got == list(range(10))


def test_drain_lets_an_iterator_have_the_rest(
    js: blocking.JetStream, stream: blocking.Stream, fill: Callable[[int], None]
) -> None:
    fill(300)
    sub = js.subscribe(f"{stream.name}.>", config=NONE)
    eventually_sync(lambda: sub.pending == 300)
    sub.drain()
    assert numbers(sub) == list(range(300))
    eventually_sync(lambda: list(js.consumer_names(stream.name)) == [])


@pytest.mark.parametrize("before", [0, 5, 150])
def test_unsubscribe_after_a_number_of_messages(
    js: blocking.JetStream, stream: blocking.Stream, fill: Callable[[int], None], before: int
) -> None:
    fill(500)
    sub = js.subscribe(f"{stream.name}.>", config=NONE)
    eventually_sync(lambda: sub.pending == 500)
    got = take(sub, before)
    sub.unsubscribe(max_messages=200)
    assert got + numbers(sub) == list(range(200))


def test_errors_are_raised_at_their_place(
    nc: blocking.Connection, js: blocking.JetStream, stream: blocking.Stream, fill: Callable[[int], None]
) -> None:
    fill(3)
    sub = js.subscribe(f"{stream.name}.>")
    eventually_sync(lambda: sub.pending == 3)
    send_status(nc, sub.deliver_subject, b"409 Something New")
    nc.flush()
    got: list[int] = []
    with pytest.raises(UnexpectedStatus):
        got.extend(int(message.data) for message in sub)
    assert got == [0, 1, 2]
    # A reader that waits hears of it too, and the subscription stays.
    timer = threading.Timer(0.1, send_status, (nc, sub.deliver_subject, b"777 Odd"))
    timer.start()
    with pytest.raises(UnexpectedStatus):
        sub.next(timeout=10)
    send_status(nc, sub.deliver_subject, b"409 Consumer Deleted")
    with pytest.raises(ConsumerDeleted):
        sub.next(timeout=10)


def test_members_of_a_queue_share(
    js: blocking.JetStream, stream: blocking.Stream, fill: Callable[[int], None]
) -> None:
    got: list[list[int]] = [[], []]
    subs = [
        js.subscribe(f"{stream.name}.>", queue="q", callback=lambda m, to=to: to.append(int(m.data)))
        for to in got
    ]
    fill(100)
    eventually_sync(lambda: len(got[0]) + len(got[1]) == 100)
    assert sorted(got[0] + got[1]) == list(range(100))
    for sub in reversed(subs):
        sub.unsubscribe()


def test_checks_and_warnings_come_through(js: blocking.JetStream, stream: blocking.Stream) -> None:
    stream.create_consumer(
        ConsumerConfig(durable_name="d", deliver_subject=unique("deliver"), idle_heartbeat=0.1)
    )
    errors: list[Any] = []
    with js.subscribe(stream=stream.name, consumer="d", on_error=errors.append) as sub:
        # The server notices a moment later that somebody listens.
        eventually_sync(lambda: sub.consumer_info().push_bound)
        with pytest.raises(ConsumerInUse):
            js.subscribe(stream=stream.name, consumer="d")
        js.delete_consumer(stream.name, "d")
        eventually_sync(lambda: any(isinstance(error, MissedHeartbeat) for error in errors))


def test_a_slow_reader_is_paced_by_flow_control(js: blocking.JetStream, stream: blocking.Stream) -> None:
    size, count = 16_384, 600
    with js.publisher() as publisher:
        for number in range(count):
            publisher.publish(f"{stream.name}.a", b"%d" % number + b" " * (size - len(str(number))))
    sub = js.subscribe(
        f"{stream.name}.a", config=NONE, idle_heartbeat=0.2, flow_control=True, pending_messages_limit=1
    )
    eventually_sync(lambda: sub._target._started.flow.next_answer)
    assert sub.pending < count
    got = []
    for message in sub:
        got.append(int(message.data))
        if len(got) % 100 == 0:
            time.sleep(0.002)
        if len(got) == count:
            break
    assert got == list(range(count))
    sub.unsubscribe()


def test_an_ordered_subscription_goes_on_after_a_reconnect(
    nc: blocking.Connection, js: blocking.JetStream, stream: blocking.Stream, fill: Callable[[int], None]
) -> None:
    fill(1_000)
    errors: list[Any] = []
    with js.subscribe(f"{stream.name}.>", ordered=True, on_error=errors.append) as sub:
        got = take(sub, 1_000)
        nc.force_reconnect()
        js.publish(f"{stream.name}.a", b"1000")
        assert got + take(sub, 1) == list(range(1_001))
        eventually_sync(lambda: any(isinstance(error, OrderedReset) for error in errors))
    eventually_sync(lambda: list(js.consumer_names(stream.name)) == [])
