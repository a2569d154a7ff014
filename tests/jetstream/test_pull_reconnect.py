"""A new link brings new requests, and the old ones must not be served beside them."""

from __future__ import annotations

import jetspark
from jetspark import ConsumerConfig, StreamConfig
from support.helpers import eventually, unique


async def test_the_buffer_keeps_its_limit_over_reconnects(server):
    name = unique("REFILL")
    limit = 500
    async with jetspark.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=name, subjects=[name]))
        consumer = await stream.create_consumer(ConsumerConfig(ack_policy="none", inactive_threshold=60))
        async with consumer.consume(max_messages=limit) as messages:
            # The request waits on the server; each new link adds one of its own.
            for _ in range(4):
                await nc.flush()
                await nc.force_reconnect()
            await nc.flush()
            async with js.publisher() as publisher:
                for number in range(5 * limit):
                    await publisher.publish(name, b"%d" % number)
            await eventually(lambda: messages.pending == limit)
            await nc.flush()
            assert messages.pending == limit
            info = await consumer.info()
            assert info.delivered.consumer_seq == limit
            seen = [int((await anext(messages)).data) for _ in range(5 * limit)]
    assert seen == list(range(5 * limit))
