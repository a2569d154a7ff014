"""A connection and a JetStream context on the worker's shared server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

import jetspark
from jetspark.jetstream.flow.pull import PullFlow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jetspark.jetstream.flow.actions import Actions
    from jetspark.server import Server


@pytest_asyncio.fixture
async def nc(server: Server) -> AsyncIterator[jetspark.Connection]:
    async with jetspark.connect(server.url) as connection:
        yield connection


@pytest_asyncio.fixture
async def js(nc: jetspark.Connection) -> jetspark.JetStream:
    return nc.jetstream()


@pytest.fixture
def gave_up(monkeypatch: pytest.MonkeyPatch) -> list[PullFlow]:
    """Those that ended by a deadline of their own, and not by the server's word."""
    found: list[PullFlow] = []
    inner = PullFlow.on_timer

    def on_timer(flow: PullFlow, now: float) -> Actions:
        before = flow.concluded
        actions = inner(flow, now)
        if flow.concluded and not before:
            found.append(flow)
        return actions

    monkeypatch.setattr(PullFlow, "on_timer", on_timer)
    return found
