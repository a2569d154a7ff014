"""The blocking connection with many threads on it, while it drains and when its server is in trouble."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from jetspark import blocking, events
from jetspark.errors import (
    ConnectionClosed,
    DrainTimeout,
    JetsparkError,
    OutboundBufferFull,
)
from support.helpers import eventually_sync, unique

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetspark.server import Server


@pytest.fixture
def nc(server: Server) -> Iterator[blocking.Connection]:
    with blocking.connect(server.url) as connection:
        yield connection


def read(sub: blocking.Subscription, count: int) -> list[blocking.Msg]:
    return [sub.next(timeout=20) for _ in range(count)]


def publish_many(nc: blocking.Connection, subject: str, count: int) -> None:
    for _ in range(count):
        nc.publish(subject, b"x" * 100)


# Drain


def test_drain_lets_callbacks_finish_and_sends_their_answers(server: Server) -> None:
    subject, answers = unique("work"), unique("answers")
    with blocking.connect(server.url) as watcher:
        got = watcher.subscribe(answers)
        watcher.flush()
        nc = blocking.connect(server.url)
        nc.subscribe(subject, callback=lambda msg: nc.publish(answers, msg.data))
        for number in range(500):
            nc.publish(subject, b"%d" % number)
        nc.drain()
        assert nc.is_closed
        assert [msg.data for msg in read(got, 500)] == [b"%d" % number for number in range(500)]


def test_drain_gives_up_on_a_stuck_callback(server: Server) -> None:
    stuck, free = threading.Event(), threading.Event()
    nc = blocking.connect(server.url, drain_timeout=0.2, connect_timeout=1.5)
    subject = unique("stuck")

    def callback(msg: blocking.Msg) -> None:
        stuck.set()
        free.wait(20)

    nc.subscribe(subject, callback=callback)
    nc.publish(subject)
    assert stuck.wait(20)
    with pytest.raises(DrainTimeout):
        nc.drain()
    assert nc.is_closed
    free.set()


# Threads


def test_eight_threads_publish_and_request_over_one_connection(nc: blocking.Connection) -> None:
    service, sink = unique("echo"), unique("sink")
    nc.subscribe(service, callback=lambda msg: msg.respond(msg.data))
    sub = nc.subscribe(sink)
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for number in range(100):
                for part in range(5):
                    nc.publish(sink, b"%d %d" % (thread, number * 5 + part))
                body = b"%d-%d" % (thread, number)
                assert nc.request(service, body, timeout=20).data == body
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    nc.flush()
    assert sub.pending_messages == 8 * 500
    got: dict[int, list[int]] = {}
    for msg in read(sub, 8 * 500):
        thread_number, number = map(int, msg.data.split())
        got.setdefault(thread_number, []).append(number)
    # Each thread's own messages stay in its order.
    assert got == {number: list(range(500)) for number in range(8)}


def test_many_threads_share_a_subscription_each_message_once(nc: blocking.Connection) -> None:
    subject = unique("shared")
    count = 20_000
    sub = nc.subscribe(subject, max_messages=count)
    got: list[list[bytes]] = [[] for _ in range(6)]

    def by_iteration(mine: list[bytes]) -> None:
        for msg in sub:
            mine.append(msg.data)

    def by_next(mine: list[bytes]) -> None:
        while True:
            try:
                mine.append(sub.next(timeout=20).data)
            except ConnectionClosed:
                return

    threads = [
        threading.Thread(target=by_iteration if n % 2 else by_next, args=(mine,))
        for n, mine in enumerate(got)
    ]
    for thread in threads:
        thread.start()
    for number in range(count):
        nc.publish(subject, b"%d" % number)
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    seen = Counter(data for mine in got for data in mine)
    assert len(seen) == count
    assert set(seen.values()) == {1}
    # What one thread took is in order.
    assert all(mine == sorted(mine, key=int) for mine in got)


# Trouble


def test_iteration_survives_kill_and_restart_of_the_server(own_server: Server) -> None:
    seen: list[events.Event] = []
    subject = unique("survive")
    with blocking.connect(own_server.url, listener=seen.append) as nc:
        sub = nc.subscribe(subject)
        nc.publish(subject, b"before")
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.extend(msg.data for msg in sub))
        reader.start()
        eventually_sync(lambda: got == [b"before"])
        own_server.kill()
        eventually_sync(lambda: nc.is_reconnecting)
        assert nc.connected_url is None
        nc.publish(subject, b"meanwhile")
        own_server.restart()
        eventually_sync(lambda: nc.is_connected, timeout=20)
        nc.publish(subject, b"after")
        eventually_sync(lambda: got == [b"before", b"meanwhile", b"after"])
        sub.unsubscribe()
        reader.join(20)
        assert not reader.is_alive()
    kinds = [type(event) for event in seen if not isinstance(event, events.ReconnectFailed)]
    assert kinds == [events.Connected, events.Disconnected, events.Reconnected, events.Closed]


def test_publishing_while_disconnected_is_bounded(own_server: Server) -> None:
    subject = unique("bounded")
    with blocking.connect(own_server.url, reconnect_buffer_size=10_000) as nc:
        own_server.kill()
        eventually_sync(lambda: nc.is_reconnecting)
        publish_many(nc, subject, 50)
        with pytest.raises(OutboundBufferFull, match="reconnect_buffer_size=10000"):
            publish_many(nc, subject, 50)


@pytest.mark.slow
def test_a_suspended_server_makes_publishers_wait(own_server: Server) -> None:
    with blocking.connect(own_server.url, ping_interval=60, connect_timeout=1.5) as nc:
        own_server.suspend()
        sent = 0

        def publish() -> None:
            nonlocal sent
            while sent < 100_000:
                nc.publish("a", b"x" * 4096)
                sent += 1

        thread = threading.Thread(target=publish)
        thread.start()
        eventually_sync(lambda: nc._core.outbox.waiters)
        # Sockets' buffers plus write_buffer_size plus what was on its way: far from everything.
        assert sent < 20_000
        own_server.resume()
        thread.join(60)
        assert sent == 100_000
        nc.flush(30)


def test_reading_raises_when_the_connection_is_lost_for_good(own_server: Server) -> None:
    with blocking.connect(own_server.url, reconnect=False) as nc:
        sub = nc.subscribe("a")
        nc.flush()
        own_server.kill()
        with pytest.raises(JetsparkError):
            list(sub)
        assert nc.is_closed
        with pytest.raises(ConnectionClosed):
            nc.publish("a", b"")


def test_credentials_function_must_not_use_the_connection(server: Server) -> None:
    made: list[blocking.Connection] = []
    refusals: list[str] = []

    def token() -> str:
        if made:
            try:
                made[0].flush()
            except JetsparkError as error:
                refusals.append(str(error))
        return "secret"

    with blocking.connect(server.url, token=token) as nc:
        made.append(nc)
        nc.force_reconnect()
    assert len(refusals) == 1
    assert "own thread" in refusals[0]
