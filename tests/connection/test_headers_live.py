"""Headers through the real server, and to and from another client (nats-py)."""

from __future__ import annotations

import asyncio
from typing import Any

import nats
import pytest

import jetspark
from jetspark.errors import InvalidArgument
from support.helpers import unique


async def roundtrip(server, headers: object, data: bytes = b"") -> jetspark.Msg:
    subject = unique("hdr")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        await nc.publish(subject, data, headers=headers)  # type: ignore[arg-type]
        return await sub.next()


async def test_many_values_keep_order_and_case(server) -> None:
    headers = jetspark.Headers()
    pairs = [("X-One", "1"), ("x-two", "a"), ("X-ONE", "2"), ("X-Two", "b"), ("X-One", "3")]
    for name, value in pairs:
        headers.add(name, value)
    msg = await roundtrip(server, headers, b"body")
    assert msg.headers.items() == pairs
    assert msg.headers.get_all("x-one") == ["1", "2", "3"]
    assert msg.headers["X-TWO"] == "a"
    assert msg.data == b"body"


@pytest.mark.parametrize(
    "value",
    ["plain", "größe 温度 🚀", "", "a: b: c", "with  two blanks", "tab\tinside", "x" * 10_000, '"quoted"'],
)
async def test_any_text_is_a_value(server, value: str) -> None:
    msg = await roundtrip(server, {"Name": value, "Last": "end"}, b"body")
    assert msg.headers.items() == [("Name", value), ("Last", "end")]
    assert msg.data == b"body"


async def test_a_mapping_of_lists_and_a_headers_object(server) -> None:
    wanted = [("A", "1"), ("A", "2"), ("B", "3")]
    assert (await roundtrip(server, {"A": ["1", "2"], "B": "3"})).headers.items() == wanted
    assert (await roundtrip(server, jetspark.Headers({"A": ["1", "2"], "B": "3"}))).headers.items() == wanted


async def test_empty_headers_arrive_as_none(server) -> None:
    for empty in ({}, jetspark.Headers()):
        msg = await roundtrip(server, empty, b"body")
        assert (msg.data, bool(msg.headers), msg.status) == (b"body", False, None)


async def test_names_of_every_token_character(server) -> None:
    name = "!#$%&'*+-.^_`|~09azAZ"
    assert (await roundtrip(server, {name: "v"})).headers.items() == [(name, "v")]


async def test_received_headers_can_be_sent_on(server) -> None:
    first = await roundtrip(server, {"A": ["1", "ü"], "B": ""})
    second = await roundtrip(server, first.headers)
    assert second.headers == first.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"a b": "1"},
        {"": "1"},
        {"a:b": "1"},
        {"ü": "1"},
        {"a": "1\r\nb: 2"},
        {"a": "1\n"},
        {"a\r\nb": "1"},
        {"a": 1},
    ],
)
async def test_what_could_smuggle_is_refused_before_a_byte_is_written(server, headers: Any) -> None:
    async with jetspark.connect(server.url) as nc:
        for call in (nc.publish, nc.request):
            with pytest.raises(InvalidArgument, match="header"):
                await call("a", headers=headers)
        assert nc.stats.out_msgs == 0


async def test_many_headers(server) -> None:
    pairs = {f"Name-{number}": str(number) for number in range(1_000)}
    assert (await roundtrip(server, pairs)).headers.items() == list(pairs.items())


async def test_nats_py_reads_ours(server) -> None:
    subject = unique("hdr")
    theirs = await nats.connect(server.url)
    try:
        sub = await theirs.subscribe(subject)
        await theirs.flush()
        async with jetspark.connect(server.url) as nc:
            await nc.publish(subject, b"body", reply="answer.here", headers={"Name": "value", "Other": "x y"})
            await nc.publish(subject, b"plain")
        msg = await sub.next_msg(timeout=5)
        assert (msg.data, msg.reply, msg.headers) == (
            b"body",
            "answer.here",
            {"Name": "value", "Other": "x y"},
        )
        assert (await sub.next_msg(timeout=5)).headers is None
    finally:
        await theirs.close()


async def test_we_read_those_of_nats_py(server) -> None:
    subject = unique("hdr")
    theirs = await nats.connect(server.url)
    try:
        async with jetspark.connect(server.url) as nc:
            sub = await nc.subscribe(subject)
            await nc.flush()
            await theirs.publish(
                subject, b"body", reply="answer.here", headers={"Name": "value", "Size": "ü"}
            )
            await theirs.publish(subject, b"plain")
            msg = await sub.next()
            assert (msg.data, msg.reply) == (b"body", "answer.here")
            assert msg.headers.items() == [("Name", "value"), ("Size", "ü")]
            assert not (await sub.next()).headers
    finally:
        await theirs.close()


async def test_requests_between_nats_py_and_us(server) -> None:
    subject = unique("hdr")
    theirs = await nats.connect(server.url)
    try:

        async def their_service(msg) -> None:
            await theirs.publish(msg.reply, b"theirs: " + msg.data, headers={"From": "them"})

        await theirs.subscribe(f"{subject}.theirs", cb=their_service)
        await theirs.flush()
        async with jetspark.connect(server.url) as nc:
            await nc.subscribe(
                f"{subject}.ours",
                callback=lambda msg: msg.respond(b"ours: " + msg.data, headers={"From": "us"}),
            )
            await nc.flush()
            answer = await nc.request(f"{subject}.theirs", b"1")
            assert (answer.data, answer.headers["from"]) == (b"theirs: 1", "them")
            reply = await theirs.request(f"{subject}.ours", b"2", timeout=5)
            assert (reply.data, reply.headers) == (b"ours: 2", {"From": "us"})
    finally:
        await theirs.close()


async def test_headers_that_are_not_utf8_cost_nothing_else(server) -> None:
    subject, block = unique("hdr"), b"NATS/1.0\r\nGood: 1\r\nBad: \xff\xfe\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        await nc.flush()
        await reader.readline()
        writer.write(b'CONNECT {"headers":true,"verbose":false}\r\n')
        writer.write(b"HPUB %s %d %d\r\n%sbody\r\n" % (subject.encode(), len(block), len(block) + 4, block))
        await writer.drain()
        msg = await sub.next()
        assert (msg.data, msg.headers["Good"]) == (b"body", "1")
        assert msg.headers["Bad"].encode("utf-8", "surrogateescape") == b"\xff\xfe"
    writer.close()
    await writer.wait_closed()
