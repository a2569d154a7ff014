"""The pipelined publisher: whatever answers a publish, and messages that are large."""

from __future__ import annotations

import asyncio

import pytest

import jetspark
from helpers import eventually, unique
from jetspark import PublishFailed
from jetspark.errors import ProtocolError
from jetspark.jetstream.errors import ApiError


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
        assert publisher._large == {}
        assert publisher._large_sent == publisher._large_done == 50 * len(data)
