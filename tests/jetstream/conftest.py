"""A connection and a JetStream context on the worker's shared server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

import jetspark

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jetspark.server import Server


@pytest_asyncio.fixture
async def nc(server: Server) -> AsyncIterator[jetspark.Connection]:
    async with jetspark.connect(server.url) as connection:
        yield connection


@pytest_asyncio.fixture
async def js(nc: jetspark.Connection) -> jetspark.JetStream:
    return nc.jetstream()
