"""What the server says about a connection, from its monitoring port."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import TYPE_CHECKING, Any

from support.helpers import LIMIT, eventually

if TYPE_CHECKING:
    import jetspark
    from jetspark.server import Server


async def connz(server: Server, nc: jetspark.Connection) -> dict[str, Any]:
    """The server's view of a connection, its subscriptions included."""
    return (await _connections(server, nc.client_id))[0]


async def forgotten(server: Server, client_id: int) -> None:
    """Wait until the server has noticed that a connection is gone: until then it sends messages into it."""

    async def gone() -> bool:
        return not await _connections(server, client_id)

    await eventually(gone)


async def _connections(server: Server, client_id: int) -> list[dict[str, Any]]:
    url = f"{server.http_url}/connz?subs=1&cid={client_id}"

    def get() -> list[dict[str, Any]]:
        with urllib.request.urlopen(url, timeout=LIMIT) as answer:
            connections: list[dict[str, Any]] = json.load(answer)["connections"]
        return connections

    return await asyncio.to_thread(get)


async def subscriptions(server: Server, nc: jetspark.Connection) -> list[str]:
    """The subjects that the server has this connection subscribed to, sorted."""
    return sorted((await connz(server, nc)).get("subscriptions_list", []))
