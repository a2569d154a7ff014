"""Publishing against the real server: payloads, replies, echo, fairness and back-pressure."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest

import jetspark
from jetspark.connection.client import core_of
from jetspark.errors import InvalidArgument
from support.helpers import eventually, unique
from support.monitoring import connz


async def test_a_message_arrives_with_subject_payload_reply_and_headers(server) -> None:
    subject = unique("pub")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        await nc.publish(subject, b"data", reply="some.reply", headers={"A": "1"})
        msg = await sub.next()
    assert (msg.subject, msg.data, msg.reply) == (subject, b"data", "some.reply")
    assert msg.headers.items() == [("A", "1")]


async def test_a_plain_message_has_no_reply_and_falsy_headers(server) -> None:
    subject = unique("pub")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        await nc.publish(subject)
        msg = await sub.next()
    assert (msg.data, msg.reply, msg.status) == (b"", "", None)
    assert not msg.headers


@pytest.mark.parametrize(
    "payload",
    [b"bytes", bytearray(b"bytearray"), memoryview(b"memoryview"), memoryview(b"s-l-i-c-e-d")[::2], b""],
)
async def test_any_bytes_like_payload(server, payload: bytes | bytearray | memoryview) -> None:
    subject = unique("pub")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        await nc.publish(subject, payload)  # type: ignore[arg-type]
        assert (await sub.next()).data == bytes(payload)


async def test_a_buffer_changed_after_publish_does_not_change_the_message(server) -> None:
    subject = unique("pub")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        buffer = bytearray(b"before")
        await nc.publish(subject, buffer)
        buffer[:] = b"after!"
        assert (await sub.next()).data == b"before"


@pytest.mark.parametrize("payload", ["text", None, 5, ["a"], {"a": 1}])
async def test_other_payloads_are_refused_and_nothing_is_sent(server, payload: object) -> None:
    async with jetspark.connect(server.url) as nc:
        with pytest.raises(InvalidArgument) as caught:
            await nc.publish("a", payload)  # type: ignore[arg-type]
        assert caught.value.field == "data"
        assert "encode" in caught.value.rule
        assert nc.stats.out_msgs == 0


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 1_048_576])
async def test_payloads_of_every_size_come_back_unchanged(server, size: int) -> None:
    subject, payload = unique("pub"), os.urandom(size)
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        await nc.publish(subject, payload)
        await nc.publish(subject, b"next")
        assert (await sub.next()).data == payload
        assert (await sub.next()).data == b"next"


async def test_protocol_text_in_a_payload_is_only_payload(server) -> None:
    subject, payload = unique("pub"), b"\r\nMSG x 1 1\r\n-ERR 'x'\r\nPING\r\n"
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        await nc.publish(subject, payload)
        assert (await sub.next()).data == payload
        assert nc.last_error is None


@pytest.mark.parametrize("name", ["größe.温度", "emoji.🚀", "a.b-c_d/e:f@g"])
async def test_unicode_and_odd_subjects(server, name: str) -> None:
    subject = f"{unique('pub')}.{name}"
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        await nc.publish(subject, b"x", reply=f"réponse.{name}")
        msg = await sub.next()
        assert (msg.subject, msg.reply) == (subject, f"réponse.{name}")


async def test_order_is_kept_across_publishers_buffer_flushes(server) -> None:
    subject = unique("pub")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        for i in range(5_000):
            await nc.publish(subject, b"%d" % i)
        await nc.flush()
        assert [int((await sub.next()).data) for _ in range(5_000)] == list(range(5_000))


async def test_many_subjects_outgrow_the_prefix_cache(server) -> None:
    base = unique("pub")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(f"{base}.*")
        subjects = [f"{base}.{i}" for i in range(5_000)]
        for subject in subjects:
            await nc.publish(subject)
        assert [(await sub.next()).subject for _ in subjects] == subjects


async def test_echo_false_keeps_our_own_messages_away(server) -> None:
    subject = unique("pub")
    async with jetspark.connect(server.url, echo=False) as mute, jetspark.connect(server.url) as other:
        sub = await mute.subscribe(subject)
        await mute.flush()
        await mute.publish(subject, b"own")
        await mute.flush()
        await other.publish(subject, b"foreign")
        assert (await sub.next()).data == b"foreign"
        assert sub.pending_messages == 0


async def test_a_publisher_in_a_tight_loop_lets_other_tasks_run(server) -> None:
    subject, ticks = unique("pub"), 0

    async def heartbeat() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async with jetspark.connect(server.url) as nc:
        task = asyncio.create_task(heartbeat())
        for _ in range(20_000):
            await nc.publish(subject, b"x" * 100)
        task.cancel()
        # 2 MB in pieces of 64 KiB: each piece gives the others a turn.
        assert ticks >= 20


@pytest.mark.parametrize("yielding", [False, True], ids=["tight loop", "yielding publisher"])
async def test_publishing_to_a_stuck_server_keeps_memory_bounded(own_server, yielding: bool) -> None:
    limit = 256 * 1024
    async with jetspark.connect(own_server.url, write_buffer_size=limit) as nc:
        own_server.suspend()
        published = 0

        async def publish() -> None:
            nonlocal published
            while True:
                await nc.publish("a", b"x" * 8192)
                published += 1
                if yielding:
                    await asyncio.sleep(0)

        task = asyncio.create_task(publish())
        try:
            link = nc._core.link
            assert link is not None
            assert link._transport is not None
            await eventually(lambda: not link.writable)
            before = -1
            while before != published:  # until the publisher stands still for 20 turns of the loop
                before = published
                for _ in range(20):
                    await asyncio.sleep(0)
            held = link._transport.get_write_buffer_size() + nc._core.outbox.size
            # Over the limit by at most one flush and one message.
            assert held <= limit + 2 * (65_536 + 8192)
        finally:
            own_server.resume()
        await eventually(lambda: published > before)
        task.cancel()
        await asyncio.wait([task])
        await nc.flush()
        # Nothing that was accepted is lost on the way: out_bytes went to the server to the last one.
        assert nc._core.outbox.size == 0


async def test_waiting_publishers_go_on_when_the_connection_closes(own_server) -> None:
    nc = await jetspark.connect(own_server.url, write_buffer_size=1024)
    core_of(nc).options = replace(
        core_of(nc).options, connect_timeout=0.2
    )  # so long does close wait for the server
    own_server.suspend()

    async def publish() -> None:
        while True:
            await nc.publish("a", b"x" * 65_536)

    tasks = [asyncio.create_task(publish()) for _ in range(3)]
    await eventually(lambda: len(nc._core.outbox.waiters) == 3)
    await nc.close()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in done] == [jetspark.errors.ConnectionClosed] * 3
    own_server.resume()


async def test_a_cancelled_publisher_leaves_the_connection_usable(own_server) -> None:
    async with jetspark.connect(own_server.url, write_buffer_size=1024) as nc:
        own_server.suspend()

        async def publish() -> None:
            while True:
                await nc.publish("a", b"x" * 65_536)

        task = asyncio.create_task(publish())
        await eventually(lambda: nc._core.outbox.waiters)
        task.cancel()
        await asyncio.wait([task])
        own_server.resume()
        sub = await nc.subscribe("b")
        await nc.publish("b", b"after")
        assert (await sub.next()).data == b"after"


async def test_respond_needs_a_reply_subject(server) -> None:
    subject = unique("pub")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        await nc.publish(subject)
        msg = await sub.next()
        with pytest.raises(InvalidArgument, match="no reply subject"):
            await msg.respond(b"x")


async def test_name_and_client_id_show_in_the_monitoring(server) -> None:
    name = unique("ünïcode name")
    async with jetspark.connect(server.url, name=name) as nc:
        shown = await connz(server, nc)
        assert shown["name"] == name
        assert shown["lang"] == "python-jetspark"
        assert shown["version"] == jetspark.__version__
