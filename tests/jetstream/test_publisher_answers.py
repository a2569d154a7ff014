"""The pipelined publisher: whatever answers a publish, and messages that are large."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jetspark
from jetspark.errors import ApiError, ProtocolError, PublishFailed
from support.helpers import eventually, unique


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (
            b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 7"}}',
            ApiError,
            "wrong",
        ),
        (
            b'{"error":{"code":400,"err_code":10071,"description":"wrong last"},"stream":"S","seq":0}',
            ApiError,
            "wrong last",
        ),
        (b'{"seq":1}', ProtocolError, "stream"),
        (b"\xff\xfe", ProtocolError, "not a publish ack"),
        (b"", ProtocolError, "not a publish ack"),
    ],
)
async def test_whatever_answers_is_an_ack_or_a_typed_error(
    nc: jetspark.Connection, answer: bytes, kind: type[Exception], text: str
) -> None:
    async def respond(message: jetspark.Msg) -> None:
        await message.respond(answer)

    await nc.subscribe("answers.odd", callback=respond)
    publisher = nc.jetstream().publisher()
    async with publisher:
        future = await publisher.publish("answers.odd", b"x")
        with pytest.raises(kind, match=text):
            await future
        with pytest.raises(PublishFailed):
            await publisher.flush()
        assert publisher.stats.acked == 0


async def test_large_messages_wait_for_bytes_and_not_only_for_the_window(nc: jetspark.Connection) -> None:
    # A stream refuses what it can't buffer; the default window times a large message is more than that.
    subject = unique("slow.")
    asked: list[jetspark.Msg] = []

    async def note(message: jetspark.Msg) -> None:
        asked.append(message)

    await nc.subscribe(subject, callback=note)
    data = bytes(1_000_000)
    async with nc.jetstream().publisher() as publisher:

        async def publish() -> None:
            for _ in range(50):
                await publisher.publish(subject, data)

        task = asyncio.create_task(publish())
        await eventually(lambda: publisher.pending == 34 == len(asked))
        await asyncio.sleep(0.05)
        assert publisher.pending == 34, "the 35th was sent while 32 MiB were on their way"
        for number in range(50):
            await eventually(lambda number=number: len(asked) > number)
            await asked[number].respond(b'{"stream":"S","seq":%d}' % (number + 1))
        await task
        await publisher.flush()
        assert publisher.stats.acked == 50
        assert publisher._flow.large == {}
        assert publisher._flow.large_sent == publisher._flow.large_done == 50 * len(data)


@pytest.mark.parametrize(
    ("token", "data"),
    [
        ("99999", b'{"stream":"S","seq":-1' + b"0" * 30 + b"}"),
        ("0", b'{"stream":"S","seq":' + b"9" * 400 + b"}"),
        ("9" * 18, b'{"stream":"S","seq":' + b"9" * 5000 + b"}"),
        ("9" * 4300, b'{"stream":"S","seq":1}'),
        ("9" * 5000, b'{"stream":"S","seq":1}'),
        ("-1", b'{"stream":"S","seq":1}'),
        ("+1", b'{"stream":"S","seq":1}'),
        ("0_1", b'{"stream":"S","seq":1}'),
        ("\u0661", b'{"stream":"S","seq":1}'),
    ],
)
@pytest.mark.parametrize("size", [10, 20_000])
async def test_answers_of_a_stranger_cost_nothing(
    start_server: Any, size: int, token: str, data: bytes
) -> None:
    """Whoever may read the subject knows the inbox, and may be allowed to publish to it."""
    server = start_server(config="max_control_line: 16384", jetstream=False)
    async with jetspark.connect(server.url) as nc, jetspark.connect(server.url) as stranger:
        asked: asyncio.Queue[jetspark.Msg] = asyncio.Queue()
        await stranger.subscribe("s", callback=asked.put)
        await stranger.flush()
        async with nc.jetstream().publisher() as publisher:
            future = await publisher.publish("s", bytes(size))
            message = await asked.get()
            reply = (message.reply.rpartition(".")[0] + "." + token).encode()
            # Past our own checks: such a line is not ours.
            stranger._core.outbox.send((b"PUB %b %d\r\n%b\r\n" % (reply, len(data), data),), 0)
            await stranger.flush()
            await nc.flush()
            assert not future.done()
            await message.respond(b'{"stream":"S","seq":7}')
            assert (await future).seq == 7
        assert (nc.stats.reconnects, nc.is_connected) == (0, True)


@pytest.mark.parametrize(
    "data",
    [
        b'{"stream":"S","seq":0}',
        b'{"stream":"S","seq":-1' + b"0" * 30 + b"}",
        b'{"stream":"S","seq":' + b"9" * 400 + b"}",
        b'{"stream":"S","seq":' + b"9" * 5000 + b"}",
        b'{"stream":"S","seq":18446744073709551616}',
        b'{"x":' + b"[" * 200_000,
    ],
)
@pytest.mark.parametrize("size", [10, 20_000])
async def test_an_ack_without_a_sequence_is_none(nc: jetspark.Connection, size: int, data: bytes) -> None:
    subject = unique()

    async def respond(message: jetspark.Msg) -> None:
        await message.respond(data)

    await nc.subscribe(subject, callback=respond)
    async with nc.jetstream().publisher() as publisher:
        future = await publisher.publish(subject, bytes(size))
        with pytest.raises(ProtocolError):
            await future
        with pytest.raises(PublishFailed):
            await publisher.flush()
    assert nc.stats.reconnects == 0


async def test_of_two_answers_the_first_counts(nc: jetspark.Connection) -> None:
    """Also when both come in one read: a refusal that is not to be tried again, then an ack."""
    subject = unique()
    refusal = b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 7"}}'

    async def respond(message: jetspark.Msg) -> None:
        first, second = (refusal, b'{"stream":"S","seq":5}')[:: -1 if message.data == b"ack" else 1]
        await message.respond(first)
        await message.respond(second)

    await nc.subscribe(subject, callback=respond)
    async with nc.jetstream().publisher() as publisher:
        refused = await publisher.publish(subject, b"refuse")
        acked = await publisher.publish(subject, b"ack")
        with pytest.raises(ApiError, match="wrong"):
            await refused
        assert (await acked).seq == 5
        with pytest.raises(PublishFailed):
            await publisher.flush()
    assert (publisher.stats.acked, publisher.stats.failed) == (1, 1)
