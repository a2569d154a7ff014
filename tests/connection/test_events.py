"""Events: to listeners of every kind, and to the log."""

from __future__ import annotations

import asyncio
import logging

import pytest

import jetspark
from jetspark.events import (
    CallbackFailed,
    Closed,
    Connected,
    Event,
    Reconnected,
    ReconnectFailed,
    ServerError,
    SlowConsumer,
)
from support.helpers import eventually, unique
from support.recorder import Recorder


async def test_a_plain_listener_hears_the_life_of_a_connection(server) -> None:
    heard: list[Event] = []
    async with jetspark.connect(server.url, listener=heard.append) as nc:
        address = nc.connected_url.removeprefix("nats://")
        assert heard == [Connected(address)]
        await nc.force_reconnect()
    # On a busy machine a first attempt may come to nothing.
    names = [type(event).__name__ for event in heard if not isinstance(event, ReconnectFailed)]
    assert names == ["Connected", "Disconnected", "Reconnected", "Closed"]
    assert heard[-1] == Closed(None)


async def test_an_async_listener_hears_all_and_close_waits_for_it(server) -> None:
    heard: list[str] = []

    async def listener(event: Event) -> None:
        await asyncio.sleep(0)
        heard.append(type(event).__name__)

    async with jetspark.connect(server.url, listener=listener):
        await eventually(lambda: heard == ["Connected"])
    assert heard == ["Connected", "Closed"]


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_listener_that_raises_is_logged_and_hurts_nobody(server, caplog, kind: str) -> None:
    heard: list[str] = []

    def plain(event: Event) -> None:
        heard.append(type(event).__name__)
        raise ValueError("listener is broken")

    async def later(event: Event) -> None:
        plain(event)

    subject = unique("ev")
    async with jetspark.connect(server.url, listener=plain if kind == "sync" else later) as nc:
        sub = await nc.subscribe(subject, pending_messages_limit=1)
        await nc.publish(subject)
        await nc.publish(subject)
        await nc.flush()
        assert (sub.pending_messages, sub.dropped) == (1, 1)
    assert heard == ["Connected", "SlowConsumer", "Closed"]
    failures = [record for record in caplog.records if record.levelno == logging.ERROR]
    said = [record.getMessage() for record in failures]
    assert said == [f"listener of the connection raised on {name}" for name in heard]
    # By way of the loop's exception handler.
    assert all(record.name == "asyncio" and record.exc_info for record in failures)


async def test_a_listener_may_be_an_object(server) -> None:
    class Listener:
        def __init__(self) -> None:
            self.heard: list[Event] = []

        async def __call__(self, event: Event) -> None:
            self.heard.append(event)

    listener = Listener()
    async with jetspark.connect(server.url, listener=listener):
        pass
    assert len(listener.heard) == 2


async def test_an_async_listener_may_close_the_connection(server) -> None:
    subject, closed = unique("ev"), asyncio.Event()

    async def listener(event: Event) -> None:
        if isinstance(event, SlowConsumer):
            await nc.close()
            closed.set()

    nc = await jetspark.connect(server.url, listener=listener)
    await nc.subscribe(subject, pending_messages_limit=1)
    await nc.publish(subject)
    await nc.publish(subject)
    await asyncio.wait_for(closed.wait(), 20)
    assert nc.is_closed


async def test_events_are_logged_with_their_level(server, caplog) -> None:
    subject = unique("ev")
    with caplog.at_level(logging.DEBUG, logger="jetspark"):
        async with jetspark.connect(server.url) as nc:
            await nc.subscribe(subject, pending_messages_limit=1)
            for _ in range(3):
                await nc.publish(subject)
            await nc.flush()
            await nc.subscribe(subject, callback=lambda msg: 1 / 0)
            await nc.publish(subject)
            await eventually(lambda: "ZeroDivisionError" in caplog.text)
    levels = {record.getMessage().partition("(")[0]: record.levelname for record in caplog.records}
    assert levels == {
        "Connected": "INFO",
        "SlowConsumer": "WARNING",
        f"callback of the subscription to {subject!r} raised": "ERROR",
        "Closed": "INFO",
    }
    assert {record.name for record in caplog.records} == {"jetspark.connection", "asyncio"}
    assert subject in caplog.text


async def test_a_server_error_is_an_event_and_last_error(start_server) -> None:
    server, events = start_server(jetstream=False, config="max_subs: 2"), Recorder()
    async with jetspark.connect(server.url, listener=events) as nc:
        for number in range(3):
            await nc.subscribe(f"a.{number}")
        event = await events.wait(ServerError)
        assert "maximum subscriptions exceeded" in event.message.lower()
        assert "maximum subscriptions exceeded" in str(nc.last_error).lower()


async def test_what_a_server_says_before_it_hangs_up_is_an_event(server) -> None:
    events = Recorder()
    async with jetspark.connect(server.url, listener=events) as nc:
        nc._core.outbox.control(b"NONSENSE\r\n")
        event = await events.wait(ServerError)
        assert "unknown protocol operation" in event.message.lower()
        await events.wait(Reconnected)
        names = events.names("ReconnectFailed")
        assert names == ["Connected", "ServerError", "Disconnected", "Reconnected"]
        await nc.flush()


async def test_events_compare_and_print(server) -> None:
    events = Recorder()
    async with jetspark.connect(server.url, listener=events) as nc:
        await nc.flush()
    assert repr(events.events[0]).startswith("Connected(server='127.0.0.1:")
    assert CallbackFailed("a", ValueError()) != CallbackFailed("b", ValueError())
