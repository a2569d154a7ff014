"""Ordered consumers on a way that loses messages: all of them come, in order, as fast as it lets them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

import jetspark
from support.consuming import fill, make, numbers
from support.consuming import take as take_consumed
from support.frame_proxy import FrameProxy
from support.pushing import take

if TYPE_CHECKING:
    from jetspark.server import Server

COUNT = 200


@pytest.mark.parametrize("kind", ["push", "pull"])
async def test_three_of_ten_messages_are_lost_and_all_come_in_order(
    server: Server, js: jetspark.JetStream, kind: str
) -> None:
    stream, chance = await make(js), random.Random(7)
    await fill(js, stream, COUNT)
    async with FrameProxy(server) as proxy, jetspark.connect(proxy.url) as nc:
        proxy.lose_down = lambda frame: b" $JS.ACK." in frame and chance.random() < 0.3
        lossy = nc.jetstream()
        if kind == "push":
            sub = await lossy.subscribe(f"{stream.name}.a", ordered=True, idle_heartbeat=0.5)
            assert numbers(await take(sub, COUNT)) == list(range(COUNT))
            await sub.unsubscribe()
        else:
            consumer = await lossy.create_ordered_consumer(stream.name)
            async with consumer.consume(idle_heartbeat=0.5, expires=1) as messages:
                assert numbers(await take_consumed(messages, COUNT)) == list(range(COUNT))
            await consumer.close()
        assert proxy.lost
