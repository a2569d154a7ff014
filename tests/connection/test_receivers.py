"""A receiver that fails in any of its callbacks harms neither the connection nor its neighbours."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark.connection import events as ev
from jetspark.connection.client import core_of
from jetspark.connection.sink import Sink
from jetspark.wire.columns import COLUMNAR
from support.helpers import eventually, unique
from support.recorder import Recorder

if TYPE_CHECKING:
    from jetspark import Subscription
    from jetspark.server import Server

CALLBACKS = (
    "deliver",
    "deliver_columns",
    "link_dropped",
    "link_lost",
    "link_restored",
    "publish_refused",
    "ended",
    "closed_behind",
)
CONFIG = (
    "authorization { users: [ { user: u, password: p, permissions: { publish: { deny: forbidden } } } ] }"
)
RAISED = {
    "our error": jetspark.errors.ProtocolError("on purpose"),
    "a defect": KeyError("on purpose"),
    "cancelled": asyncio.CancelledError("on purpose"),
}


class Bad(Sink):
    """Raises in one of its callbacks, each time."""

    def __init__(self, client: Any, subject: str, callback: str, error: BaseException) -> None:
        super().__init__(client, subject)
        self.called = 0
        if callback == "deliver_columns":
            self.factory, self.owner = COLUMNAR, (self.factory, self.owner)

        def fail(*args: object) -> None:
            self.called += 1
            raise error

        setattr(self, callback, fail)

    async def fails(self, *args: object) -> None:
        self.called += 1
        raise KeyError("on purpose")

    def deliver(self, items: list[Any], nbytes: int) -> None:
        pass

    def deliver_columns(self, columns: Any) -> None:
        pass


async def provoke(nc: jetspark.Connection, bad: Bad, callback: str, other: Subscription) -> None:
    """Do what makes the connection call the receiver, and see that the neighbour is well."""
    if callback == "publish_refused":
        await nc.publish("forbidden")
    for number in range(3):
        # One chunk: the failing one is served first.
        await nc.publish(bad.subject, b"x", reply="r")  # columns are made of messages with replies
        await nc.publish(other.subject, b"%d" % number)
    await nc.flush()
    assert [(await other.next()).data for _ in range(3)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("callback", CALLBACKS)
async def test_the_connection_and_its_neighbours_go_on(start_server, callback: str, kind: str) -> None:
    server: Server = start_server(
        jetstream=False,
        config=CONFIG,
    )
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
    recorder = Recorder()
    nc = await jetspark.connect(server.url, user="u", password="p", listener=recorder)
    bad = Bad(core_of(nc), unique("bad"), callback, RAISED[kind])
    nc._core.router.add(bad)
    other = await nc.subscribe(unique("other"))
    await provoke(nc, bad, callback, other)
    link = nc._core.link
    assert link is not None
    assert recorder.names("PermissionViolation", "CallbackFailed") == ["Connected"]  # still the first link
    await asyncio.to_thread(server.kill)
    await recorder.wait(ev.Disconnected)
    await asyncio.to_thread(server.restart)
    await recorder.wait(ev.Reconnected)
    await provoke(nc, bad, callback, other)
    if callback == "closed_behind":
        nc._core.router.remove(bad)
        nc._core.router.drained.add(bad)
    pending = asyncio.ensure_future(anext(other, None))
    await nc.close()
    assert nc.is_closed
    assert await pending is None  # told of the end, although it comes behind the one that fails
    assert recorder.names()[-1] == "Closed"
    assert bad.called
    # Each failure is reported in asyncio's manner, with the subscription in the text, and told as an event.
    assert len(reports) == bad.called
    assert all(bad.subject in report["message"] and callback in report["message"] for report in reports)
    assert all(report["exception"] is RAISED[kind] for report in reports)
    assert [event.subject for event in recorder.of(ev.CallbackFailed)] == [bad.subject] * bad.called


async def test_messages_behind_a_failure_in_the_same_read_are_delivered(server) -> None:
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
    async with jetspark.connect(server.url) as nc, jetspark.connect(server.url) as far:
        bad = Bad(core_of(nc), unique("bad"), "deliver", ValueError("on purpose"))
        nc._core.router.add(bad)
        good = await nc.subscribe(unique("good"))
        await nc.flush()
        for number in range(1000):
            await far.publish(bad.subject)
            await far.publish(good.subject, b"%d" % number)
        await far.flush()
        assert [int((await good.next()).data) for _ in range(1000)] == list(range(1000))
        await eventually(lambda: bad.called == 1000)
        # A read has many failures and makes few reports.
        assert 0 < len(reports) <= 1000
        assert nc.stats.reconnects == 0


async def test_a_failing_drain_ends_in_a_closed_connection_and_the_neighbours_are_drained(server) -> None:
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
    seen: list[bytes] = []
    nc = await jetspark.connect(server.url)
    bad = Bad(core_of(nc), unique("bad"), "link_lost", KeyError("on purpose"))
    bad._drain = bad.fails  # type: ignore[method-assign]
    nc._core.router.add(bad)
    subject = unique("good")
    gate = asyncio.Event()

    async def slow(message: Any) -> None:
        await gate.wait()
        seen.append(message.data)

    await nc.subscribe(subject, callback=slow)
    for _ in range(3):
        await nc.publish(subject, b"x")
    await nc.flush()
    draining = asyncio.create_task(nc.drain())
    await eventually(lambda: bad.called)
    gate.set()
    await draining
    assert nc.is_closed
    assert seen == [b"x"] * 3
    assert [bad.subject in report["message"] for report in reports] == [True]


@pytest.mark.parametrize("error", [ValueError("on purpose"), asyncio.CancelledError("on purpose")])
async def test_a_listener_that_raises_anything_keeps_nobody_from_reconnecting(start_server, error) -> None:
    server: Server = start_server(jetstream=False)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    seen: list[str] = []

    def listener(event: ev.Event) -> None:
        seen.append(type(event).__name__)
        raise error

    nc = await jetspark.connect(server.url, listener=listener)
    sub = await nc.subscribe("x")
    await asyncio.to_thread(server.kill)
    await eventually(lambda: "Disconnected" in seen)
    await asyncio.to_thread(server.restart)
    await eventually(lambda: "Reconnected" in seen)
    await nc.publish("x", b"again")
    assert (await sub.next()).data == b"again"
    await nc.close()
    assert seen[-1] == "Closed"
