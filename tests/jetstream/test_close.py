"""Closing delivers what was published, also while answers arrive that nobody will read."""

from __future__ import annotations

import jetspark
from jetspark import StreamConfig
from support.helpers import eventually, unique


async def test_close_loses_nothing_while_acks_arrive(server):
    """Unread bytes in the socket turn a close into a reset, and a reset may overtake what was sent."""
    count, rounds = 2000, 25
    async with jetspark.connect(server.url) as watcher:
        js = watcher.jetstream()
        stream = await js.create_stream(StreamConfig(name=unique("CLOSE"), subjects=[unique("close")]))
        subject = (stream.config.subjects or [""])[0]
        for done in range(1, rounds + 1):
            async with jetspark.connect(server.url) as nc:
                inbox = nc.new_inbox()
                await nc.subscribe(inbox)
                for _ in range(count):
                    await nc.publish(subject, b"x" * 128, reply=inbox)
            expected = done * count

            async def stored(expected: int = expected) -> bool:
                return (await stream.info()).state.messages == expected

            await eventually(stored)
