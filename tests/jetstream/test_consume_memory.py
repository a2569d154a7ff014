"""A ``consume`` needs no more memory than its buffer, however much flows or however long a handler blocks.

The short forms run always. CONSUME_BLOCK_SECONDS=60 and CONSUME_MEMORY_MESSAGES=5000000 make the long ones.
"""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import jetspark
from jetspark import AckPolicy, StorageType
from jetspark.jetstream.consume.pull import message_size
from support.consuming import fill, make, make_filled
from support.helpers import eventually

if TYPE_CHECKING:
    from jetspark import Message
    from jetspark.server import Server

pytestmark = pytest.mark.slow

BLOCK = float(os.environ.get("CONSUME_BLOCK_SECONDS", "3"))
MESSAGES = int(os.environ.get("CONSUME_MEMORY_MESSAGES", "120000"))
MEGABYTE = 1_048_576


def rss() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_handler_that_blocks_the_loop_raises_no_alarm(js: jetspark.JetStream) -> None:
    """A request waits all the while, and its heartbeats lie in the socket: the client has to read them."""
    for heartbeat in (1, 5):  # the short one is enough unless the server can't run for two of them
        seen = await blocked(js, heartbeat, max(BLOCK, 2.5 * heartbeat))
        if not seen:
            break
    assert seen == []


async def blocked(js: jetspark.JetStream, heartbeat: float, seconds: float) -> list[Exception]:
    """What a consume is told whose handler blocks the loop for so long."""
    # Without acks: the long form is longer than ack_wait.
    stream, consumer = await make_filled(js, 1, ack_policy=AckPolicy.NONE)
    seen: list[Exception] = []
    got: list[int] = []

    def handle(message: Message) -> None:
        got.append(int(message.data))
        if len(got) == 1:
            time.sleep(seconds)  # the work

    async with consumer.consume_with(handle, idle_heartbeat=heartbeat, on_error=seen.append):
        await eventually(lambda: len(got) == 1, seconds + 60)
        await fill(js, stream, 3, start=1)
        await eventually(lambda: len(got) == 4)
        # Two more heartbeats: the alarm would have come by now.
        began = time.monotonic()
        await eventually(lambda: time.monotonic() - began > 2.2 * heartbeat)
    assert got == [0, 1, 2, 3]
    return seen


async def test_a_handler_that_waits_raises_no_alarm_and_the_buffer_stays_within_its_limit(
    js: jetspark.JetStream,
) -> None:
    _, consumer = await make_filled(js, 3000, size=1000, ack_policy=AckPolicy.NONE)
    seen: list[Exception] = []
    async with consumer.consume(max_messages=100, idle_heartbeat=5, on_error=seen.append) as messages:
        await anext(messages)
        began = time.monotonic()
        most = 0

        def waited() -> bool:
            nonlocal most
            most = max(most, messages.pending)
            return time.monotonic() - began > BLOCK

        await eventually(waited, BLOCK + 60)
        assert 50 <= most <= 100
        for number in range(1, 3000):
            assert int((await anext(messages)).data) == number
            assert messages.pending <= 100
    assert seen == []


async def test_a_blocked_loop_with_messages_waiting_keeps_the_buffer_within_its_limit(
    js: jetspark.JetStream,
) -> None:
    _, consumer = await make_filled(js, 2000, size=1000, ack_policy=AckPolicy.NONE)
    seen: list[Exception] = []
    got = 0
    most = 0

    def handle(message: Message) -> None:
        nonlocal got, most
        got += 1
        assert messages._sink is not None
        most = max(most, sum(map(message_size, messages._sink.buffer)))
        if got in (30, 500):
            time.sleep(BLOCK / 2)  # the work

    messages = consumer.consume_with(
        handle, max_bytes=50_000, idle_heartbeat=5, on_error=seen.append, stop_after=2000
    )
    async with messages:
        await messages.wait()
    assert got == 2000
    assert 10_000 < most <= 50_000
    assert seen == []


async def test_memory_is_flat_however_much_flows(server: Server) -> None:
    async with jetspark.connect(server.url) as nc:
        js = nc.jetstream(timeout=20)
        stream = await make(js, storage=StorageType.FILE)
        async with js.publisher() as publisher:
            for number in range(MESSAGES):
                await publisher.publish(f"{stream.name}.a", b"%128d" % number)
        consumer = await stream.create_consumer(
            jetspark.ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=-1)
        )
        count = early = most = 0
        async with consumer.consume(stop_after=MESSAGES) as messages:
            async for message in messages:
                await message.ack()
                count += 1
                if count % (MESSAGES // 20) == 0:
                    gc.collect()
                    most = max(most, rss())
                    if count == MESSAGES // 5:
                        early = most
        await js.delete_stream(stream.name)
    assert count == MESSAGES
    # The buffer of 500 messages is 0.2 MB; the rest is for the allocator.
    assert most - early < 20 * MEGABYTE
