"""Statistics: messages, bytes and reconnects are counted."""

from __future__ import annotations

import jetspark
from support.helpers import unique
from support.monitoring import connz


async def test_a_fresh_connection_has_counted_nothing_but_the_handshake(server) -> None:
    async with jetspark.connect(server.url) as nc:
        stats = nc.stats
        assert (stats.in_msgs, stats.out_msgs, stats.reconnects) == (0, 0, 0)
        assert stats.in_bytes > 0  # INFO and PONG


async def test_messages_and_bytes_in_both_directions(server) -> None:
    subject, count, payload = unique("stat"), 100, b"x" * 1000
    async with jetspark.connect(server.url) as nc:
        await nc.subscribe(subject)
        before = nc.stats
        for _ in range(count):
            await nc.publish(subject, payload)
        await nc.publish(subject, payload, headers={"A": "1"})
        await nc.flush()
        stats = nc.stats
        assert (stats.out_msgs, stats.in_msgs) == (count + 1, count + 1)
        line = len(f"PUB {subject} 1000\r\n\r\n")
        headers = len("NATS/1.0\r\nA: 1\r\n\r\n") + len("H 00")
        commands = len(f"SUB {subject} 1\r\nPING\r\n")
        assert stats.out_bytes - before.out_bytes == (count + 1) * (1000 + line) + headers + commands
        assert stats.in_bytes - before.in_bytes > (count + 1) * 1000
        # The server adds up what a read brought at its end, with the first PONG already on its way.
        await nc.flush()
        shown = await connz(server, nc)
        assert (shown["in_msgs"], shown["out_msgs"]) == (count + 1, count + 1)


async def test_a_snapshot_does_not_change(server) -> None:
    async with jetspark.connect(server.url) as nc:
        before = nc.stats
        await nc.publish("a")
        assert (before.out_msgs, nc.stats.out_msgs) == (0, 1)
        assert before == jetspark.models.Statistics(in_bytes=before.in_bytes, out_bytes=before.out_bytes)


async def test_counters_survive_a_reconnect_and_the_close(server) -> None:
    subject = unique("stat")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        await nc.publish(subject, b"1")
        await sub.next()
        before = nc.stats
        await nc.force_reconnect()
        await nc.publish(subject, b"2")
        await sub.next()
        stats = nc.stats
        assert (stats.in_msgs, stats.out_msgs, stats.reconnects) == (2, 2, 1)
        assert stats.in_bytes > before.in_bytes
        assert stats.out_bytes > before.out_bytes
    assert nc.stats.in_bytes >= stats.in_bytes
    assert nc.stats.in_msgs == 2


async def test_dropped_messages_were_still_received(server) -> None:
    subject = unique("stat")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject, pending_messages_limit=1)
        for _ in range(5):
            await nc.publish(subject)
        await nc.flush()
        assert (nc.stats.in_msgs, sub.dropped) == (5, 4)
