"""The blocking connection against a real server."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from jetspark import blocking, events
from jetspark.errors import (
    ConnectionClosed,
    InvalidArgument,
    JetsparkError,
    MaxPayloadExceeded,
    NoRespondersError,
    NoServersAvailable,
    RequestTimeout,
)
from support.helpers import FOREVER, PROMPT, eventually_sync, unique

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetspark.server import Server


@pytest.fixture
def nc(server: Server) -> Iterator[blocking.Connection]:
    with blocking.connect(server.url) as connection:
        yield connection


def our_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("jetspark-")}


def read(sub: blocking.Subscription, count: int) -> list[blocking.Msg]:
    return [sub.next(timeout=20) for _ in range(count)]


# Connecting and closing


def test_connects_and_tells_its_state(server: Server) -> None:
    with blocking.connect(server.url, name="facade") as nc:
        assert nc.is_connected
        assert not nc.is_closed
        assert not nc.is_reconnecting
        assert not nc.is_draining
        assert nc.connected_url == server.url
        assert nc.servers == [server.url]
        assert nc.client_id == nc.server_info.client_id > 0
        assert nc.max_payload == nc.server_info.max_payload
        assert nc.last_error is None
        assert nc.rtt() > 0
        assert repr(nc) == f"Connection({server.url})"
    assert nc.is_closed
    assert not nc.is_connected


def test_no_thread_is_left_after_close(server: Server) -> None:
    before = our_threads()
    seen: list[events.Event] = []
    nc = blocking.connect(server.url, listener=seen.append)
    subject = unique("close")
    nc.subscribe(subject, callback=lambda msg: None)
    nc.publish(subject, b"x")
    nc.flush()
    # One for the loop, one for the listener, one for the callback.
    eventually_sync(lambda: len(our_threads() - before) == 3)
    nc.close()
    assert our_threads() <= before
    assert seen == [events.Connected(server.url.removeprefix("nats://")), events.Closed()]


def test_no_thread_is_left_after_a_failed_connect() -> None:
    before = our_threads()
    with pytest.raises(NoServersAvailable):
        blocking.connect("nats://127.0.0.1:1", listener=lambda event: None)
    assert our_threads() <= before


def test_close_may_be_repeated_and_everything_else_refuses(nc: blocking.Connection) -> None:
    sub = nc.subscribe(unique("closed"))
    nc.close()
    nc.close()
    nc.drain()
    sub.unsubscribe()
    sub.drain()
    assert list(sub) == []
    for call in (
        lambda: nc.publish("a", b""),
        lambda: nc.subscribe("a"),
        lambda: nc.request("a"),
        lambda: list(nc.request_many("a")),
        nc.flush,
        nc.rtt,
        nc.force_reconnect,
        sub.next,
    ):
        with pytest.raises(ConnectionClosed):
            call()


def test_close_fails_what_other_threads_wait_for(server: Server) -> None:
    nc = blocking.connect(server.url)
    subject = unique("silent")
    nc.subscribe(subject)
    outcomes: list[object] = []

    def ask() -> None:
        try:
            nc.request(subject, timeout=60)
        except JetsparkError as error:
            outcomes.append(type(error))

    def iterate(sub: blocking.Subscription) -> None:
        outcomes.append(list(sub))

    other = nc.subscribe(unique("nothing"))
    threads = [threading.Thread(target=ask), threading.Thread(target=iterate, args=(other,))]
    for thread in threads:
        thread.start()
    eventually_sync(lambda: nc.stats.out_msgs == 1 and bool(other._sink.readers))
    nc.close()
    for thread in threads:
        thread.join(20)
    assert [] in outcomes
    assert ConnectionClosed in outcomes


def test_two_threads_may_close_at_once(server: Server) -> None:
    nc = blocking.connect(server.url)
    threads = [threading.Thread(target=nc.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert nc.is_closed
    assert not any(thread.is_alive() for thread in threads)


def test_force_reconnect_renews_subscriptions(nc: blocking.Connection) -> None:
    subject = unique("forced")
    sub = nc.subscribe(subject)
    first = nc.client_id
    nc.force_reconnect()
    assert nc.client_id != first
    assert nc.stats.reconnects == 1
    nc.publish(subject, b"after")
    assert sub.next(timeout=20).data == b"after"


# Publishing and subscribing


def test_publish_reaches_an_iterating_reader_in_order(nc: blocking.Connection) -> None:
    subject = unique("order")
    sub = nc.subscribe(subject + ".*", max_messages=1000)
    for number in range(1000):
        nc.publish(f"{subject}.{number % 7}", b"%d" % number, reply="re.ply", headers={"N": str(number)})
    got = list(sub)
    assert [int(msg.data) for msg in got] == list(range(1000))
    assert {type(msg) for msg in got} == {blocking.Msg}
    assert got[5].reply == "re.ply"
    assert got[5].headers["N"] == "5"
    assert sub.closed
    assert sub.delivered == 1000


def test_flush_means_the_server_has_everything(nc: blocking.Connection, server: Server) -> None:
    subject = unique("flush")
    with blocking.connect(server.url) as other:
        sub = other.subscribe(subject)
        other.flush()
        for _ in range(20_000):
            nc.publish(subject, b"x" * 64)
        nc.flush()
        other.flush()
        # Both PONGs came after all of it.
        assert sub.pending_messages == 20_000
        assert sub.pending_bytes > 20_000 * 64
    assert nc.stats.out_msgs == 20_000


def test_next_and_iteration_share_one_buffer(nc: blocking.Connection) -> None:
    subject = unique("mixed")
    sub = nc.subscribe(subject, max_messages=6)
    for number in range(6):
        nc.publish(subject, b"%d" % number)
    nc.flush()
    iterator = iter(sub)
    got = [next(iterator), sub.next(), next(sub), next(iterator), *sub]
    assert [msg.data for msg in got] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    with pytest.raises(ConnectionClosed, match="closed"):
        sub.next()
    with pytest.raises(StopIteration):
        next(sub)


def test_next_times_out_and_loses_nothing(nc: blocking.Connection) -> None:
    subject = unique("late")
    sub = nc.subscribe(subject)
    start = time.monotonic()
    with pytest.raises(RequestTimeout, match=subject):
        sub.next(timeout=0.05)
    assert time.monotonic() - start > 0.04
    nc.publish(subject, b"late")
    assert sub.next(timeout=60).data == b"late"


def test_mistakes_raise_in_the_caller_and_send_nothing(nc: blocking.Connection) -> None:
    for call in (
        lambda: nc.publish("with space", b""),
        lambda: nc.publish("", b""),
        lambda: nc.publish("a", "text"),  # type: ignore[arg-type]
        lambda: nc.publish("a", b"", headers={"A": "x\r\ny"}),
        lambda: nc.publish("a", b"", reply="wild.*"),
        lambda: nc.subscribe("a..b"),
        lambda: nc.subscribe("a", max_messages=-1),
        lambda: nc.subscribe("a", callback=5),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgument):
            call()
    with pytest.raises(MaxPayloadExceeded):
        nc.publish("a", b"x" * (nc.max_payload + 1))
    assert nc.stats.out_msgs == 0


async def _async_function(_: object) -> None: ...


def test_async_functions_are_refused(nc: blocking.Connection, server: Server) -> None:
    with pytest.raises(InvalidArgument, match="plain function"):
        nc.subscribe("a", callback=_async_function)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="plain function"):
        blocking.connect(server.url, listener=_async_function)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="listener"):
        blocking.connect(server.url, listener=5)  # type: ignore[arg-type]


def test_unsubscribe_ends_iteration_and_drops_the_rest(nc: blocking.Connection) -> None:
    subject = unique("unsub")
    with nc.subscribe(subject) as sub:
        for _ in range(10):
            nc.publish(subject)
        nc.flush()
        assert sub.next().subject == subject
    assert sub.closed
    assert list(sub) == []


def test_unsubscribe_after_a_limit(nc: blocking.Connection) -> None:
    subject = unique("limit")
    sub = nc.subscribe(subject)
    sub.unsubscribe(max_messages=3)
    for _ in range(5):
        nc.publish(subject)
    assert len(list(sub)) == 3


def test_drained_subscription_yields_what_has_arrived(nc: blocking.Connection) -> None:
    subject = unique("drain")
    sub = nc.subscribe(subject)
    for _ in range(100):
        nc.publish(subject)
    sub.drain()
    assert len(list(sub)) == 100
    assert nc.is_connected


def test_slow_reader_drops_the_newest_and_one_event_tells(server: Server) -> None:
    seen: list[events.Event] = []
    subject = unique("slow")
    with blocking.connect(server.url, listener=seen.append) as nc:
        sub = nc.subscribe(subject, pending_messages_limit=10)
        for number in range(50):
            nc.publish(subject, b"%d" % number)
        nc.flush()
        assert sub.dropped == 40
        assert [msg.data for msg in read(sub, 10)] == [b"%d" % number for number in range(10)]
        slow = eventually_sync(lambda: [event for event in seen if isinstance(event, events.SlowConsumer)])
        assert len(slow) == 1
        assert slow[0].subject == subject
        nc.publish(subject, b"room again")
        assert sub.next(timeout=20).data == b"room again"


# Callbacks and listeners


def test_callback_may_block_and_use_the_connection(nc: blocking.Connection) -> None:
    front, back = unique("front"), unique("back")
    nc.subscribe(back, callback=lambda msg: msg.respond(msg.data.upper()))
    nc.subscribe(front, callback=lambda msg: msg.respond(nc.request(back, msg.data, timeout=5).data + b"!"))
    assert nc.request(front, b"hello", timeout=5).data == b"HELLO!"


def test_callback_sees_messages_in_order_in_one_thread(nc: blocking.Connection) -> None:
    subject = unique("calls")
    got: list[bytes] = []
    threads: set[int] = set()

    def callback(msg: blocking.Msg) -> None:
        got.append(msg.data)
        threads.add(threading.get_ident())

    sub = nc.subscribe(subject, callback=callback)
    for number in range(5000):
        nc.publish(subject, b"%d" % number)
    sub.drain()
    assert got == [b"%d" % number for number in range(5000)]
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    with pytest.raises(InvalidArgument, match="callback"):
        iter(sub)
    with pytest.raises(InvalidArgument, match="callback"):
        sub.next()


def test_callback_that_raises_is_reported_and_goes_on(server: Server) -> None:
    seen: list[events.Event] = []
    got: list[bytes] = []
    subject = unique("raises")

    def callback(msg: blocking.Msg) -> None:
        if msg.data == b"bad":
            raise ValueError("no good")
        got.append(msg.data)

    with blocking.connect(server.url, listener=seen.append) as nc:
        sub = nc.subscribe(subject, callback=callback)
        for data in (b"a", b"bad", b"b"):
            nc.publish(subject, data)
        sub.drain()
    assert got == [b"a", b"b"]
    failed = [event for event in seen if isinstance(event, events.CallbackFailed)]
    assert [(event.subject, str(event.error)) for event in failed] == [(subject, "no good")]


@pytest.mark.parametrize("action", ["unsubscribe", "drain_sub", "drain", "close"])
def test_callback_may_end_what_it_belongs_to(server: Server, action: str) -> None:
    before = our_threads()
    subject = unique("suicide")
    took: list[float] = []
    nc = blocking.connect(server.url, connect_timeout=FOREVER, drain_timeout=FOREVER)
    subs: list[blocking.Subscription] = []

    def callback(msg: blocking.Msg) -> None:
        start = time.monotonic()
        {
            "unsubscribe": lambda: subs[0].unsubscribe(),
            "drain_sub": lambda: subs[0].drain(),
            "drain": nc.drain,
            "close": nc.close,
        }[action]()
        took.append(time.monotonic() - start)

    subs.append(nc.subscribe(subject, callback=callback, max_messages=1000))
    nc.publish(subject)
    eventually_sync(lambda: took)
    assert took[0] < PROMPT
    assert subs[0].closed
    nc.close()
    eventually_sync(lambda: our_threads() <= before)


def test_listener_may_block_and_use_the_connection(server: Server) -> None:
    rtts: list[float] = []
    order: list[type] = []
    made: list[blocking.Connection] = []
    ready = threading.Event()

    def listener(event: events.Event) -> None:
        ready.wait(20)
        order.append(type(event))
        if isinstance(event, events.Reconnected):
            rtts.append(made[0].rtt())

    with blocking.connect(server.url, listener=listener) as nc:
        made.append(nc)
        nc.force_reconnect()
        assert nc.rtt() > 0  # the listener sleeps, the connection does not
        ready.set()
        eventually_sync(lambda: rtts)
    assert order == [events.Connected, events.Disconnected, events.Reconnected, events.Closed]


# Requests


def test_request_without_responders_fails_at_once(nc: blocking.Connection) -> None:
    with pytest.raises(NoRespondersError):
        nc.request(unique("nobody"), timeout=30)
    with pytest.raises(NoRespondersError):
        list(nc.request_many(unique("nobody"), timeout=30))


def test_request_times_out(nc: blocking.Connection) -> None:
    subject = unique("mute")
    nc.subscribe(subject)
    with pytest.raises(RequestTimeout):
        nc.request(subject, timeout=0.05)


@pytest.mark.slow
def test_request_many_ends_by_count_stall_sentinel_or_break(nc: blocking.Connection) -> None:
    subject = unique("many")

    def answer(msg: blocking.Msg) -> None:
        for number in range(5):
            msg.respond(b"%d" % number)

    nc.subscribe(subject, callback=answer)
    assert [msg.data for msg in nc.request_many(subject, max_messages=3)] == [b"0", b"1", b"2"]
    assert len(list(nc.request_many(subject, stall=1))) == 5
    until = nc.request_many(subject, sentinel=lambda msg: msg.data == b"2")
    assert [msg.data for msg in until] == [b"0", b"1"]
    assert len(list(nc.request_many(subject, timeout=2))) == 5
    for msg in nc.request_many(subject):
        assert msg.data == b"0"
        break
    assert len([sink for sink in nc._core.router.sinks.values() if sink.subject.startswith("_INBOX")]) <= 1


def test_respond_needs_a_reply_subject(nc: blocking.Connection) -> None:
    subject = unique("noreply")
    sub = nc.subscribe(subject)
    nc.publish(subject)
    with pytest.raises(InvalidArgument, match="reply"):
        sub.next().respond(b"")


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": "1"},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"stall": "x"},
        {"stall": -1},
        {"max_messages": 0},
        {"max_messages": True},
    ],
    ids=str,
)
def test_limits_of_request_many_are_checked_before_it_is_sent(
    nc: blocking.Connection, options: dict[str, object]
) -> None:
    sent = nc.stats.out_msgs
    with pytest.raises(InvalidArgument):
        list(nc.request_many(unique("answers"), **options))  # type: ignore[arg-type]
    assert nc.stats.out_msgs == sent
