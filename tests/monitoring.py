"""What the server says about a connection, from its monitoring port."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import TYPE_CHECKING, Any

from helpers import LIMIT

if TYPE_CHECKING:
    import jetspark
    from jetspark.server import Server


async def connz(server: Server, nc: jetspark.Connection) -> dict[str, Any]:
    """The server's view of a connection, its subscriptions included."""
    url = f"{server.http_url}/connz?subs=1&cid={nc.client_id}"

    def get() -> dict[str, Any]:
        with urllib.request.urlopen(url, timeout=LIMIT) as answer:
            connections: list[dict[str, Any]] = json.load(answer)["connections"]
        return connections[0]

    return await asyncio.to_thread(get)


async def subscriptions(server: Server, nc: jetspark.Connection) -> list[str]:
    """The subjects that the server has this connection subscribed to, sorted."""
    return sorted((await connz(server, nc)).get("subscriptions_list", []))
