"""A tour in one minute: a server of its own, publish and subscribe, request and reply. Run: make demo"""

from __future__ import annotations

import asyncio

import jetspark
from jetspark.server import Server


async def tour(url: str) -> None:
    async with jetspark.connect(url, name="demo") as nc:
        print(f"connected to {nc.connected_url}")

        async with await nc.subscribe("orders.>") as orders:
            for number in range(1, 4):
                await nc.publish(f"orders.eu.{number}", f"order {number}".encode())
            for _ in range(3):
                msg = await orders.next(timeout=2)
                print(f"received {msg.data.decode()!r} on {msg.subject}")

        async def greet(msg: jetspark.Msg) -> None:
            await msg.respond(b"hello, " + msg.data)

        async with await nc.subscribe("greet", callback=greet):
            answer = await nc.request("greet", b"world", timeout=2)
            print(f"asked 'greet', was told {answer.data.decode()!r}")


def main() -> None:
    with Server(name="demo") as server:
        print(f"started nats-server, pid {server.pid}")
        asyncio.run(tour(server.url))
    print("stopped the server; done")


if __name__ == "__main__":
    main()
