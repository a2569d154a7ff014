"""A server is killed with -9 and comes back: what users of a connection see of it, and what they don't."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark.connection import events as ev
from jetspark.errors import (
    ConnectionClosed,
    ConnectionLost,
    DrainTimeout,
    NoServersAvailable,
    OutboundBufferFull,
    RequestTimeout,
)
from jetspark.server import Server
from support.helpers import FOREVER, PROMPT, eventually
from support.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def mortal() -> Iterator[Server]:
    """A server to kill; without JetStream, as that starts faster."""
    with Server(name="mortal", jetstream=False) as server:
        yield server


async def kill(server: Server, recorder: Recorder) -> None:
    """Kill -9, and wait until the connection knows."""
    count = len(recorder.of(ev.Disconnected))
    await asyncio.to_thread(server.kill)
    await recorder.wait(ev.Disconnected, count + 1)


async def revive(server: Server, recorder: Recorder) -> None:
    count = len(recorder.of(ev.Reconnected))
    await asyncio.to_thread(server.restart)
    await recorder.wait(ev.Reconnected, count + 1)


async def take(sub: jetspark.Subscription, count: int) -> list[bytes]:
    return [(await sub.next()).data for _ in range(count)]


async def test_every_kind_of_subscription_works_again(mortal: Server) -> None:
    recorder = Recorder()
    called: list[bytes] = []
    async with jetspark.connect(mortal.url, listener=recorder) as nc:
        plain = await nc.subscribe("a.b")
        wild = await nc.subscribe("a.*")
        full = await nc.subscribe("a.>")
        first, second = [await nc.subscribe("a.b", queue="q") for _ in range(2)]
        await nc.subscribe("a.b", callback=lambda message: called.append(message.data))
        gone = await nc.subscribe("a.b")
        await gone.unsubscribe()
        for round_number in range(2):
            data = b"%d" % round_number
            await nc.publish("a.b", data)
            for sub in (plain, wild, full):
                assert await take(sub, 1) == [data]
            await nc.flush()
            # Each message goes to one member of a queue group.
            assert first.pending_messages + second.pending_messages == round_number + 1
            await eventually(lambda seen=round_number + 1: len(called) == seen)
            if round_number == 0:
                await kill(mortal, recorder)
                await revive(mortal, recorder)
        assert nc.stats.reconnects == 1
    names = recorder.names("ReconnectFailed")
    assert names == ["Connected", "Disconnected", "Reconnected", "Closed"]


async def test_a_subscription_made_while_down_works(mortal: Server) -> None:
    recorder = Recorder()
    async with jetspark.connect(mortal.url, listener=recorder) as nc:
        doomed = await nc.subscribe("doomed")
        await kill(mortal, recorder)
        sub = await nc.subscribe("late", max_messages=2)
        await doomed.unsubscribe()
        await revive(mortal, recorder)
        for _ in range(5):
            await nc.publish("late", b"x")
        assert [message.data async for message in sub] == [b"x", b"x"]


async def test_a_limit_counts_messages_of_all_links(mortal: Server) -> None:
    recorder = Recorder()
    async with jetspark.connect(mortal.url, listener=recorder) as nc:
        early = await nc.subscribe("n", max_messages=5)
        late = await nc.subscribe("n")
        for number in range(3):
            await nc.publish("n", b"%d" % number)
        assert await take(early, 3) == await take(late, 3)
        await kill(mortal, recorder)
        await revive(mortal, recorder)
        # A limit given after the reconnect counts from the first subscribe on as well.
        await late.unsubscribe(max_messages=5)
        for number in range(3, 10):
            await nc.publish("n", b"%d" % number)
        for sub in (early, late):
            assert [message.data async for message in sub] == [b"3", b"4"]
            assert sub.closed
        # The server has no subscription left of which we know nothing.
        await nc.flush()
        assert await subscriptions(mortal) == 0


async def subscriptions(server: Server) -> int:
    import json
    import urllib.request

    def ask() -> int:
        with urllib.request.urlopen(f"{server.http_url}/connz", timeout=15) as answer:
            return sum(client["subscriptions"] for client in json.load(answer)["connections"])

    return await asyncio.to_thread(ask)


async def test_publisher_and_subscriber_live_through_kills(mortal: Server) -> None:
    """No exception reaches user code; what arrives is whole and in order."""
    recorder = Recorder()
    received: list[int] = []
    stop = False

    async def produce(nc: jetspark.Connection) -> int:
        number = 0
        while not stop:
            await nc.publish("stream", b"%d:" % number + b"x" * (number % 3000))
            number += 1
            if number % 20 == 0:
                await asyncio.sleep(0.001)
        return number

    async def consume(sub: jetspark.Subscription) -> None:
        async for message in sub:
            digits, _, filler = message.data.partition(b":")
            assert filler == b"x" * (int(digits) % 3000)
            received.append(int(digits))

    async with (
        jetspark.connect(mortal.url, listener=recorder, reconnect_wait=0.02) as consumer,
        jetspark.connect(mortal.url, reconnect_wait=0.02) as producer,
    ):
        sub = await consumer.subscribe("stream")
        await consumer.flush()
        producing = asyncio.create_task(produce(producer))
        consuming = asyncio.create_task(consume(sub))
        for _ in range(3):
            seen = len(received)
            await eventually(lambda seen=seen: len(received) > seen + 100)
            await kill(mortal, recorder)
            await revive(mortal, recorder)
        await eventually(lambda: producer.stats.reconnects == 3 and producer.is_connected)
        # Whatever is published once the subscription is known to be back has to arrive.
        await consumer.flush()
        seen = len(received)
        await eventually(lambda: len(received) > seen)
        stop = True
        last = await producing - 1
        await producer.flush()
        await eventually(lambda: received[-1] == last or consuming.done())
        await consumer.close()
        await consuming
    assert received == sorted(set(received)), "in order and without repeats"
    names = recorder.names("ReconnectFailed")
    assert names == ["Connected", *["Disconnected", "Reconnected"] * 3, "Closed"]


async def test_publishes_made_while_down_arrive_whole_and_in_order(mortal: Server) -> None:
    recorder = Recorder()
    async with jetspark.connect(mortal.url, listener=recorder, reconnect_buffer_size=100_000) as nc:
        sub = await nc.subscribe("d")
        await kill(mortal, recorder)
        kept = 0

        async def fill() -> None:
            nonlocal kept
            while True:
                await nc.publish("d", b"%06d" % kept + b"x" * 994, headers={"N": str(kept)})
                kept += 1

        with pytest.raises(OutboundBufferFull, match="reconnect_buffer_size=100000"):
            await fill()
        assert 90 <= kept <= 100
        # There is still room for a small one: the refused one took nothing.
        await nc.publish("d", b"small")
        await revive(mortal, recorder)
        for number in range(kept):
            message = await sub.next()
            assert message.data == b"%06d" % number + b"x" * 994
            assert message.headers["N"] == str(number)
        assert (await sub.next()).data == b"small"
        await nc.flush()
        assert sub.pending_messages == 0


async def test_a_buffer_of_nothing_refuses_at_once(mortal: Server) -> None:
    recorder = Recorder()
    async with jetspark.connect(mortal.url, listener=recorder, reconnect_buffer_size=0) as nc:
        await kill(mortal, recorder)
        with pytest.raises(OutboundBufferFull):
            await nc.publish("x", b"")


async def test_pending_requests_fail_at_once_and_none_hangs(mortal: Server) -> None:
    recorder = Recorder()
    async with jetspark.connect(mortal.url, listener=recorder) as nc:
        silent = await nc.subscribe("slow")
        waiting = [asyncio.create_task(nc.request("slow", timeout=60)) for _ in range(50)]
        await take(silent, 50)
        await kill(mortal, recorder)
        outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20)
        assert {type(outcome) for outcome in outcomes} == {ConnectionLost}
        assert "'slow'" in str(outcomes[0])
        # A request made while down waits for the server and is answered.
        task = asyncio.create_task(nc.request("slow", b"again", timeout=10))
        await revive(mortal, recorder)
        await (await silent.next()).respond(b"done")
        assert (await task).data == b"done"


async def test_a_request_made_while_down_times_out(mortal: Server) -> None:
    recorder = Recorder()
    async with jetspark.connect(mortal.url, listener=recorder) as nc:
        await kill(mortal, recorder)
        with pytest.raises(RequestTimeout):
            await nc.request("x", timeout=0.05)


async def test_flush_and_rtt_while_down(mortal: Server) -> None:
    recorder = Recorder()
    async with jetspark.connect(mortal.url, listener=recorder) as nc:
        await kill(mortal, recorder)
        with pytest.raises(RequestTimeout, match="still disconnected"):
            await nc.flush(timeout=0.05)
        waiting = asyncio.create_task(nc.flush(timeout=10))
        await revive(mortal, recorder)
        await waiting
        assert 0 < await nc.rtt(timeout=20) < 20


async def test_a_flush_under_way_fails_by_name(mortal: Server) -> None:
    recorder = Recorder()
    async with jetspark.connect(mortal.url, listener=recorder) as nc:
        mortal.suspend()
        waiting = asyncio.create_task(nc.flush(timeout=60))
        await asyncio.sleep(0)
        await kill(mortal, recorder)
        with pytest.raises(ConnectionLost):
            await waiting


async def test_giving_up_is_final_and_everybody_hears_of_it(mortal: Server) -> None:
    recorder = Recorder()
    nc = await jetspark.connect(
        mortal.url, listener=recorder, max_reconnects=3, reconnect_wait=0.01, reconnect_wait_max=0.02
    )
    sub = await nc.subscribe("x")
    reading = asyncio.create_task(anext(sub))
    await asyncio.to_thread(mortal.kill)
    closed = await recorder.wait(ev.Closed)
    assert isinstance(closed.error, NoServersAvailable)
    assert "gave up after 3 attempts" in str(closed.error)
    assert [event.attempt for event in recorder.of(ev.ReconnectFailed)] == [1, 2, 3]
    with pytest.raises(NoServersAvailable):
        await reading
    with pytest.raises(NoServersAvailable):
        await sub.next()
    assert (nc.is_closed, nc.is_connected, nc.is_reconnecting) == (True, False, False)
    assert nc.last_error is closed.error
    calls: list[Callable[[], Any]] = [
        lambda: nc.publish("x"),
        lambda: nc.subscribe("x"),
        lambda: nc.request("x"),
        lambda: nc.flush(),
        lambda: nc.force_reconnect(),
    ]
    for call in calls:
        with pytest.raises(ConnectionClosed):
            await call()
    await nc.close()
    await nc.drain()
    assert recorder.names().count("Closed") == 1


@pytest.mark.parametrize("options", [{"reconnect": False}, {"max_reconnects": 0}])
async def test_without_reconnecting_the_first_loss_is_final(mortal: Server, options: dict[str, Any]) -> None:
    recorder = Recorder()
    nc = await jetspark.connect(mortal.url, listener=recorder, **options)
    sub = await nc.subscribe("x")
    waiting = asyncio.create_task(nc.request("x", timeout=60))
    await sub.next()
    await asyncio.to_thread(mortal.kill)
    closed = await recorder.wait(ev.Closed)
    assert isinstance(closed.error, ConnectionLost)
    assert recorder.names() == ["Connected", "Disconnected", "Closed"]
    with pytest.raises(ConnectionLost):
        await waiting
    with pytest.raises(ConnectionLost):
        await sub.next()


async def test_force_reconnect_keeps_subscriptions_and_unsent_publishes(server: Server) -> None:
    recorder = Recorder()
    async with jetspark.connect(server.url, listener=recorder) as nc:
        inbox = nc.new_inbox()
        sub = await nc.subscribe(inbox)
        before = nc.client_id
        await nc.publish(inbox, b"unsent")
        await nc.force_reconnect()
        await nc.publish(inbox, b"after")
        assert await take(sub, 2) == [b"unsent", b"after"]
        assert nc.client_id != before
    assert recorder.names("ReconnectFailed") == ["Connected", "Disconnected", "Reconnected", "Closed"]


async def test_the_first_seed_is_dead(server: Server, unused_tcp_port: int) -> None:
    dead = f"nats://127.0.0.1:{unused_tcp_port}"
    async with jetspark.connect([dead, server.url], randomize=False) as nc:
        assert nc.connected_url == server.url
        assert nc.servers[:2] == [dead, server.url]


async def test_every_unreachable_server_is_named_with_its_reason(unused_tcp_port: int) -> None:
    with pytest.raises(NoServersAvailable) as caught:
        await jetspark.connect(
            [f"nats://127.0.0.1:{unused_tcp_port}", "nats://host.invalid:4222", "nats://a..b:4222"]
        )
    for part in (f"127.0.0.1:{unused_tcp_port}", "refused", "host.invalid", "a..b"):
        assert part in str(caught.value)


async def test_ipv6() -> None:
    with Server(jetstream=False, config='host: "::"') as server:
        async with jetspark.connect(f"nats://[::1]:{server.port}") as nc:
            sub = await nc.subscribe("x")
            await nc.publish("x", b"six")
            assert (await sub.next()).data == b"six"
            assert nc.connected_url == f"nats://[::1]:{server.port}"


async def test_a_cancelled_connect_leaves_nothing(mortal: Server) -> None:
    mortal.suspend()
    tasks, files = asyncio.all_tasks(), open_files()
    for _ in range(5):
        connecting = asyncio.ensure_future(jetspark.connect(mortal.url, connect_timeout=60))
        await eventually(lambda: open_files() > files)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        await eventually(lambda: open_files() <= files)
    assert asyncio.all_tasks() == tasks


async def test_close_during_reconnect(mortal: Server) -> None:
    recorder = Recorder()
    nc = await jetspark.connect(mortal.url, listener=recorder)
    sub = await nc.subscribe("x")
    await kill(mortal, recorder)
    await nc.publish("x", b"never sent")
    assert nc.is_reconnecting
    await nc.close()
    await nc.close()
    assert (nc.is_closed, nc.is_reconnecting) == (True, False)
    assert [message async for message in sub] == []
    assert recorder.names("ReconnectFailed") == ["Connected", "Disconnected", "Closed"]
    assert recorder.of(ev.Closed)[0].error is None


async def test_concurrent_and_cancelled_closes_all_end(mortal: Server) -> None:
    nc = await jetspark.connect(mortal.url)
    mortal.suspend()
    await nc.subscribe("x")
    first = asyncio.create_task(nc.close())
    second = asyncio.create_task(nc.close())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait_for(second, 20)
    assert nc.is_closed
    assert first.cancelled()


async def test_drain_while_down_with_nothing_to_send_is_immediate(mortal: Server) -> None:
    recorder = Recorder()
    nc = await jetspark.connect(mortal.url, listener=recorder, connect_timeout=FOREVER, drain_timeout=FOREVER)
    sub = await nc.subscribe("x")
    await nc.publish("x", b"buffered")
    await eventually(lambda: sub.pending_messages)
    await kill(mortal, recorder)
    start = time.monotonic()
    await nc.drain()
    assert time.monotonic() - start < PROMPT
    assert nc.is_closed
    assert [message.data async for message in sub] == [b"buffered"]


async def test_drain_while_down_waits_for_a_server_to_send_to(mortal: Server) -> None:
    recorder = Recorder()
    nc = await jetspark.connect(mortal.url, listener=recorder)
    await kill(mortal, recorder)
    await nc.publish("x", b"kept")
    draining = asyncio.create_task(nc.drain())
    await asyncio.to_thread(mortal.restart)
    await draining
    assert nc.is_closed
    assert nc.stats.reconnects == 1

    nc = await jetspark.connect(mortal.url, listener=recorder, drain_timeout=0.1)
    await kill(mortal, recorder)
    await nc.publish("x", b"lost")
    with pytest.raises(DrainTimeout):
        await nc.drain()
    assert nc.is_closed


async def test_one_subscription_drained_while_down(mortal: Server) -> None:
    recorder = Recorder()
    async with jetspark.connect(mortal.url, listener=recorder) as nc:
        sub = await nc.subscribe("x")
        await kill(mortal, recorder)
        await sub.drain()
        assert [message async for message in sub] == []
        await revive(mortal, recorder)
        await nc.flush()
        assert await subscriptions(mortal) == 0


async def test_a_listener_that_raises_or_is_slow_harms_nobody(mortal: Server) -> None:
    seen: list[str] = []
    done = asyncio.Event()

    async def listener(event: ev.Event) -> None:
        seen.append(type(event).__name__)
        if isinstance(event, ev.Reconnected):
            done.set()
        if isinstance(event, ev.Disconnected):
            raise RuntimeError("listener")

    async with jetspark.connect(mortal.url, listener=listener) as nc:
        await eventually(lambda: "Connected" in seen)
        await asyncio.to_thread(mortal.kill)
        await eventually(lambda: "Disconnected" in seen)
        await asyncio.to_thread(mortal.restart)
        await asyncio.wait_for(done.wait(), 30)
        await nc.flush()
    assert seen[-1] == "Closed"


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_nothing_is_left_after_close(mortal: Server) -> None:
    # Once beforehand: what is imported or opened for good at first use is no leak.
    await (await jetspark.connect(mortal.url)).close()
    gc.collect()
    tasks, files = asyncio.all_tasks(), open_files()
    for _ in range(5):
        recorder = Recorder()

        async def listener(event: ev.Event, record: Recorder = recorder) -> None:
            await asyncio.sleep(0)
            record(event)

        async def never_ends(message: jetspark.Msg) -> None:
            await asyncio.Event().wait()

        nc = await jetspark.connect(mortal.url, listener=listener)
        await nc.subscribe("x", callback=never_ends)
        limited = await nc.subscribe("x", callback=never_ends, max_messages=1)
        await nc.publish("x", b"1")
        await nc.flush()
        await eventually(lambda sub=limited: sub.closed)
        await kill(mortal, recorder)
        await revive(mortal, recorder)
        await kill(mortal, recorder)
        await nc.close()
        assert asyncio.all_tasks() == tasks
        assert recorder.names()[-1] == "Closed"
        await asyncio.to_thread(mortal.restart)
    for _ in range(5):
        with pytest.raises(NoServersAvailable):
            await jetspark.connect("nats://127.0.0.1:1")
    await eventually(lambda: open_files() <= files)
    assert asyncio.all_tasks() == tasks
