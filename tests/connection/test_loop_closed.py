"""A connection whose event loop has ended."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark.errors import ConnectionClosed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from jetspark.server import Server


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def left_open(server: Server) -> jetspark.Connection:
    async def leave() -> jetspark.Connection:
        nc = await jetspark.connect(server.url)
        await nc.subscribe("a")
        await nc.flush()
        # Its flush is due in the turn of the loop that never comes.
        nc._core.outbox.publish("nobody", b"unsent")
        return nc

    return asyncio.run(leave())


CALLS: dict[str, Callable[[jetspark.Connection], Coroutine[Any, Any, Any]]] = {
    "publish": lambda nc: nc.publish("a"),
    "flush": lambda nc: nc.flush(),
    "rtt": lambda nc: nc.rtt(),
    "request": lambda nc: nc.request("a"),
    "subscribe": lambda nc: nc.subscribe("a"),
    "jetstream": lambda nc: nc.jetstream().publish("a", b""),
    "drain": lambda nc: nc.drain(),
    "close": lambda nc: nc.close(),
}


def test_every_call_says_that_the_loop_is_closed(server: Server) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        nc = left_open(server)
        for call in CALLS.values():
            with pytest.raises(ConnectionClosed, match=r"event loop .* is closed"):
                asyncio.run(call(nc))
        del nc, call
        gc.collect()


def test_a_connection_that_is_dropped_with_its_loop_is_named_and_freed(server: Server) -> None:
    gc.collect()
    before = descriptors()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        left_open(server)
        gc.collect()
    told = [str(warning.message) for warning in caught]
    assert any(f"unclosed connection to {server.url}" in text for text in told), told
    assert descriptors() <= before


def test_a_closed_one_and_a_failed_one_are_no_news(server: Server) -> None:
    async def closed() -> None:
        async with jetspark.connect(server.url) as nc:
            await nc.flush()
        with pytest.raises(jetspark.errors.NoServersAvailable):
            await jetspark.connect("nats://127.0.0.1:1")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(closed())
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
