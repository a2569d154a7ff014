"""Lists of messages through a pipelined publisher, with one object for all their acks."""

from __future__ import annotations

import asyncio

import pytest

import jetspark
from jetspark import Expect, Publishing, StreamConfig, blocking
from jetspark.errors import ConnectionLost, InvalidArgument, MaxPayloadExceeded, PublishFailed, WrongStream
from jetspark.jetstream.publish.many import Columns
from support.helpers import eventually, unique


@pytest.fixture
async def stream(js):
    name = unique("MANY")
    return await js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"]))


@pytest.mark.slow
async def test_all_are_stored_in_order_and_acked_together(js, stream):
    messages = [Publishing(f"{stream.name}.{n % 3}", b"%d" % n, msg_id=f"id-{n}") for n in range(5000)]
    async with js.publisher(window=700) as publisher:
        batch = await publisher.publish_many(messages)
        assert (await batch) is batch
        assert (batch.done, batch.count, batch.failures) == (True, 5000, {})
        assert batch.streams == {stream.name}
        again = await publisher.publish_many(messages[:10])
        await again
        assert again.duplicates == 10
    stored = [message async for message in stream.get_msgs()]
    assert [int(message.data) for message in stored] == list(range(5000))
    assert stored[7].headers["Nats-Msg-Id"] == "id-7"
    assert publisher.stats.published == publisher.stats.acked == 5010


async def test_options_of_each_message(js, stream):
    async with js.publisher() as publisher:
        await publisher.publish_many(
            [
                Publishing(f"{stream.name}.plain", b"a"),
                Publishing(f"{stream.name}.headers", b"b", headers={"X": ["1", "2"]}, msg_id="m"),
                Publishing(f"{stream.name}.expect", b"c", msg_id="n", expect=Expect(stream=stream.name)),
            ]
        )
    plain, headers, expect = [message async for message in stream.get_msgs()]
    assert not plain.headers
    assert headers.headers.items() == [("X", "1"), ("X", "2"), ("Nats-Msg-Id", "m")]
    assert expect.headers.items() == [("Nats-Msg-Id", "n"), ("Nats-Expected-Stream", stream.name)]


async def test_pairs_of_subject_and_data(js, stream):
    async with js.publisher() as publisher:
        batch = await publisher.publish_many(
            [(f"{stream.name}.1", b"a"), Publishing(f"{stream.name}.2", b"b", msg_id="m")]
        )
        assert (await batch).failures == {}
    stored = [message async for message in stream.get_msgs()]
    assert [(one.subject, one.data) for one in stored] == [
        (f"{stream.name}.1", b"a"),
        (f"{stream.name}.2", b"b"),
    ]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (("a b", b""), InvalidArgument),
        (("a", "text"), InvalidArgument),
        (("a",), InvalidArgument),
        (("a", b"", None), InvalidArgument),
        (Publishing("a b", b""), InvalidArgument),
        (Publishing("a", "text"), InvalidArgument),  # type: ignore[arg-type]
        (Publishing("a", b"", msg_id="x\r\ny"), InvalidArgument),
        (Publishing("a", b"", headers={"bad name": "x"}), InvalidArgument),
        (Publishing("a", b"x" * 2_000_000), MaxPayloadExceeded),
    ],
)
async def test_a_bad_message_is_found_before_the_first_is_sent(js, stream, bad, error):
    async with js.publisher() as publisher:
        with pytest.raises(error):
            await publisher.publish_many([Publishing(f"{stream.name}.good", b""), bad])
        assert publisher.stats.published == 0
    assert (await stream.info()).state.messages == 0


async def test_failures_by_their_place(js, stream):
    good = Publishing(f"{stream.name}.x", b"")
    wrong = good._replace(expect=Expect(stream="ANOTHER"))
    async with js.publisher() as publisher:
        batch = await publisher.publish_many([good, wrong, good, wrong])
        await batch
        assert list(batch.failures) == [1, 3]
        assert all(isinstance(error, WrongStream) for error in batch.failures.values())
        with pytest.raises(PublishFailed) as failed:
            await publisher.flush()
    assert failed.value.count == 2
    assert (await stream.info()).state.messages == 2


async def test_a_restart_of_the_server_neither_loses_nor_doubles(own_server):
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name="KILL", subjects=["kill"]))
        async with js.publisher(window=500, retry=True) as publisher:
            messages = [Publishing("kill", b"x" * 100, msg_id=str(n)) for n in range(20_000)]
            sending = asyncio.create_task(publisher.publish_many(messages))
            await eventually(lambda: publisher.stats.acked > 1000)
            await asyncio.to_thread(own_server.kill)
            await asyncio.to_thread(own_server.restart)
            batch = await sending
            await batch
            assert batch.failures == {}
        assert (await stream.info()).state.messages == 20_000


# In columns, as the Spark sink has them


def columns(name: str, count: int, *, subjects: int = 3, expect: Expect | None = None) -> Columns:
    return Columns(
        [f"{name}.100%d.{n % subjects}" for n in range(count)],
        [b"%d" % n for n in range(count)],
        [b"id%%-%d" % n for n in range(count)],
        expect,
    )


@pytest.mark.slow
@pytest.mark.parametrize("subjects", [1, 3])
async def test_columns_are_stored_as_lists_are(js, stream, subjects):
    given = columns(stream.name, 5000, subjects=subjects, expect=Expect(stream=stream.name))
    async with js.publisher(window=700) as publisher:
        batch = await publisher._publish_columns(given)
        assert publisher.pending <= 700
        assert (await batch) is batch
        assert (batch.done, batch.count, batch.failures) == (True, 5000, {})
        assert batch.streams == {stream.name}
        again = await publisher._publish_columns(columns(stream.name, 10, subjects=subjects))
        assert (await again).duplicates == 10
        assert (await publisher._publish_columns(Columns([], [], []))).done
    stored = [message async for message in stream.get_msgs()]
    assert [message.subject for message in stored] == given.subjects
    assert [message.data for message in stored] == given.datas
    assert stored[7].headers.items() == [("Nats-Msg-Id", "id%-7"), ("Nats-Expected-Stream", stream.name)]
    assert publisher.stats.published == publisher.stats.acked == 5010


@pytest.mark.parametrize("expected", [True, False])
async def test_columns_without_ids_have_no_headers_of_their_own(js, stream, expected):
    expect = Expect(stream=stream.name) if expected else None
    given = columns(stream.name, 3000, expect=expect)._replace(ids=None)
    given.datas[5] = b"large" * 10
    async with js.publisher(window=500) as publisher:
        batch = await (await publisher._publish_columns(given))
        assert (batch.failures, batch.duplicates, batch.streams) == ({}, 0, {stream.name})
        huge = given._replace(subjects=given.subjects[:2], datas=[b"x" * 20_000, b"y"])
        assert (await (await publisher._publish_columns(huge))).failures == {}
    stored = [message async for message in stream.get_msgs()]
    assert [message.subject for message in stored] == given.subjects + given.subjects[:2]
    assert [message.data for message in stored] == given.datas + huge.datas
    headers = [("Nats-Expected-Stream", stream.name)] if expected else []
    assert all(message.headers.items() == headers for message in stored)


async def test_columns_without_ids_are_not_sent_again(own_server):
    """A second copy of a message without an id would be stored twice."""
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream()
        await js.create_stream(StreamConfig(name="ONCE", subjects=["once"]))
        async with js.publisher(retry=True) as publisher:
            own_server.suspend()
            batch = await publisher._publish_columns(Columns(["once"] * 10, [b"x"] * 10, None))
            await asyncio.to_thread(own_server.kill)
            await asyncio.to_thread(own_server.restart)
            await batch
            assert all(isinstance(error, ConnectionLost) for error in batch.failures.values())
            assert len(batch.failures) == 10
            assert publisher.stats.resent == 0
            with pytest.raises(PublishFailed):
                await publisher.flush()


async def test_columns_that_fail_say_where(js, stream):
    given = columns(stream.name, 4)
    given.subjects[2] = "elsewhere.and.nowhere"
    async with js.publisher() as publisher:
        batch = await (await publisher._publish_columns(given))
        assert list(batch.failures) == [2]
        with pytest.raises(PublishFailed):
            await publisher.flush()
        wrong = columns(stream.name, 3, expect=Expect(stream="ANOTHER"))
        batch = await (await publisher._publish_columns(wrong))
        assert [type(error) for _, error in sorted(batch.failures.items())] == [WrongStream] * 3
        with pytest.raises(PublishFailed):
            await publisher.flush()


async def test_columns_with_large_messages(js, stream):
    given = columns(stream.name, 3)
    given.datas[1] = b"x" * 600_000
    async with js.publisher() as publisher:
        await (await publisher._publish_columns(given))
        given.datas[1] = b"x" * 2_000_000
        with pytest.raises(MaxPayloadExceeded):
            await publisher._publish_columns(given)
    assert [len(message.data) async for message in stream.get_msgs()] == [1, 600_000, 1]


async def test_columns_survive_a_restart_of_the_server(own_server):
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name="KILL", subjects=["kill.>"]))
        async with js.publisher(window=500, retry=True) as publisher:
            sending = asyncio.create_task(publisher._publish_columns(columns("kill", 20_000)))
            await eventually(lambda: publisher.stats.acked > 1000)
            await asyncio.to_thread(own_server.kill)
            await asyncio.to_thread(own_server.restart)
            batch = await (await sending)
            assert batch.failures == {}
        assert (await stream.info()).state.messages == 20_000


def test_blocking(server):
    name = unique("MANY")
    with blocking.connect(server.url) as nc:
        js = nc.jetstream()
        stream = js.create_stream(StreamConfig(name=name, subjects=[name]))
        with js.publisher(window=100) as publisher:
            batch = publisher.publish_many(Publishing(name, b"%d" % n) for n in range(1000))
            publisher.flush()
            assert batch.done
            assert batch.streams == {name}
        assert stream.info().state.messages == 1000


async def test_a_server_without_headers_gets_none(start_server) -> None:
    """Before, publish_many sent them, and such a server closes the connection for it."""
    server = start_server(config="no_header_support: true")
    async with jetspark.connect(server.url) as nc:
        async with nc.jetstream().publisher() as publisher:
            with pytest.raises(InvalidArgument, match="does not support headers"):
                await publisher.publish_many([Publishing("a", b"x", {"Name": "SECRET"})])
            with pytest.raises(InvalidArgument, match="does not support headers"):
                await publisher.publish("a", b"x", msg_id="1")
        await nc.flush()
        assert nc.stats.reconnects == 0
