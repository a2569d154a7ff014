"""Stored messages as record batches: every kind of message, pages, gaps, filters; what breaks is told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import pytest_asyncio

import jetspark
from jetspark import RetentionPolicy, StorageType, StreamConfig, blocking
from jetspark.arrow import SCHEMA, get_arrow
from jetspark.errors import (
    ConnectionLost,
    InvalidArgument,
    JetStreamNotEnabled,
    ProtocolError,
    RequestTimeout,
)
from jetspark.jetstream.direct_columns import Page, _page_of, check_chain
from jetspark.wire.columns import Columns
from support.fault_proxy import FaultProxy
from support.helpers import unique

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jetspark.server import Server


@pytest_asyncio.fixture
async def js(server: Server) -> AsyncIterator[jetspark.JetStream]:
    async with jetspark.connect(server.url) as nc:
        yield nc.jetstream()


async def make(js: jetspark.JetStream, count: int = 0, **config: Any) -> jetspark.Stream:
    name = unique()
    stream = await js.create_stream(
        StreamConfig(
            name=name,
            subjects=[f"{name}.>"],
            storage=StorageType.MEMORY,
            retention=RetentionPolicy.WORK_QUEUE,
            allow_direct=True,
            **config,
        )
    )
    for number in range(count):
        await js.publish(f"{name}.{'ab'[number % 2]}", b"%d" % number)
    return stream


async def table(stream: jetspark.Stream, *args: Any, **options: Any) -> pa.Table:
    batches = [batch async for batch in get_arrow(stream, *args, **options)]
    return pa.Table.from_batches(batches, SCHEMA if "columns" not in options else None)


async def test_every_kind_of_message_is_what_get_msgs_says(js: jetspark.JetStream, server: Server) -> None:
    stream = await make(js)
    name = stream.name
    await js.publish(f"{name}.plain", b"")
    await js.publish(f"{name}.headers", b"x", headers={"A": ["1", "2"], "b": "ä", "Nats-Sequence": "7"})
    # A message that was republished has headers of the server's names of its own.
    own = {"Nats-Stream": "S", "Nats-Subject": "s", "Nats-Sequence": "9", "Nats-Last-Sequence": "8"}
    await js.publish(f"{name}.again", b"y", headers=own)
    await js.publish(f"{name}.large", b"z" * 100_000)
    # What no careful client sends: a status line and a blank line in a header block, bytes that are no UTF-8.
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n')
    for header in (
        b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\n\r\n",
        b"NATS/1.0\r\nA: \xff\r\n\r\nB: 1\r\n\r\n",
    ):
        writer.write(
            b"HPUB %s.odd.\xff %d %d\r\n%sdata\r\n" % (name.encode(), len(header), len(header) + 4, header)
        )
    writer.write(b"PING\r\n")
    while (line := await reader.readline()) != b"PONG\r\n":
        assert line.startswith((b"INFO", b"PING")), line
    writer.close()
    await writer.wait_closed()
    await js.publish(f"{name}.plain", b"last")
    found = (await table(stream)).to_pylist()
    stored = [message async for message in stream.get_msgs()]
    assert [row["sequence"] for row in found] == [one.sequence for one in stored] == list(range(1, 8))
    assert [row["data"] for row in found] == [one.data for one in stored]
    assert {row["stream"] for row in found} == {name}
    for row, one in zip(found, stored, strict=True):
        assert int(row["timestamp"].timestamp() * 1_000_000 + 0.5) == one.timestamp.ns // 1000
        assert row["subject"] == one.subject.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    headers = [dict(row["headers"]) for row in found]
    assert headers[:4] == [
        {},
        {"A": ["1", "2"], "b": ["ä"], "Nats-Sequence": ["7"]},
        {k: [v] for k, v in own.items()},
        {},
    ]
    assert headers[4] == {"Nats-Num-Pending": ["0"]}
    assert headers[5]["A"] == ["\ufffd"]


async def test_pages_gaps_filters_and_ends(js: jetspark.JetStream) -> None:
    stream = await make(js, 100)
    for sequence in (1, 2, 40, 41, 42, 99, 100):
        await stream.delete_msg(sequence)
    left = [one for one in range(3, 99) if one not in (40, 41, 42)]

    async def sequences(*args: Any, **options: Any) -> list[int]:
        return [one for one in (await table(stream, *args, **options)).column("sequence").to_pylist()]

    assert await sequences() == left
    for batch in (1, 7, 93, 94, 5000):
        assert await sequences(batch=batch) == left
        assert await sequences(batch=batch, seq=30, end=60) == [one for one in left if 30 <= one < 60]
        odd = [one for one in left if one % 2 == 1]
        assert await sequences(f"{stream.name}.a", batch=batch) == odd
    assert await sequences(max_bytes=1) == left
    assert await sequences(seq=99) == await sequences(seq=5000) == []
    assert await sequences(f"{stream.name}.none") == []
    assert await sequences(end=41, seq=40) == []
    # Nothing was consumed.
    assert (await stream.info()).state.messages == len(left)


async def test_columns(js: jetspark.JetStream) -> None:
    stream = await make(js, 3)
    found = await table(stream, columns=["data", "sequence"])
    assert found.to_pydict() == {"data": [b"0", b"1", b"2"], "sequence": [1, 2, 3]}
    assert found.schema == pa.schema([SCHEMA.field("data"), SCHEMA.field("sequence")])


def test_a_blocking_stream(server: Server) -> None:
    with blocking.connect(server.url) as connection:
        js = connection.jetstream()
        name = unique()
        stream = js.create_stream(StreamConfig(name=name, subjects=[name], allow_direct=True))
        for number in range(25):
            js.publish(name, b"%d" % number)
        batches = list(get_arrow(stream, batch=10))
        assert [batch.num_rows for batch in batches] == [10, 10, 5]
        # Left in the middle: nothing keeps on coming.
        for batch in get_arrow(stream, batch=10):
            assert batch.num_rows == 10
            break
        assert js.publish(name, b"x").seq == 26
        with pytest.raises(InvalidArgument, match="is a blocking stream; use 'for'"):
            asyncio.run(table(stream))  # type: ignore[arg-type]
        js.delete_stream(name)


async def test_what_is_refused(js: jetspark.JetStream) -> None:
    stream = await make(js, 1)
    with pytest.raises(InvalidArgument, match="columns"):
        get_arrow(stream, columns=["nope"])
    with pytest.raises(InvalidArgument, match="seq=0"):
        get_arrow(stream, seq=0)
    with pytest.raises(InvalidArgument, match="subject"):
        get_arrow(stream, "a..b")
    with pytest.raises(InvalidArgument, match="must be a Stream"):
        get_arrow("S")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="is an async stream; use 'async for'"):
        next(iter(get_arrow(stream)))
    await js.update_stream(stream.config.replace(allow_direct=False))
    with pytest.raises(JetStreamNotEnabled):
        await table(stream)


async def test_a_server_that_went_silent_is_named(js: jetspark.JetStream, server: Server) -> None:
    stream = await make(js, 30)
    async with FaultProxy(server) as proxy, jetspark.connect(proxy.url) as nc:
        through = await nc.jetstream(timeout=0.2).get_stream(stream.name)
        proxy.stall_down = True
        with pytest.raises(RequestTimeout, match=rf"DIRECT\.GET\.{stream.name}' went silent for 0\.2s"):
            await table(through)
        proxy.heal()
        assert (await table(through)).num_rows == 30


def page(*rows: tuple[int, int], last: int) -> Page:
    """(sequence, sequence before) of each."""
    blocks = {
        row: (
            f"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: s\r\nNats-Sequence: {sequence}\r\n"
            "Nats-Time-Stamp: 2026-01-31T12:00:00Z\r\nNats-Num-Pending: 5\r\n"
            f"Nats-Last-Sequence: {before}\r\n\r\n"
        ).encode()
        for row, (sequence, before) in enumerate(rows)
    }
    found = _page_of("S", [Columns("1", [], [], [b""] * len(rows), blocks)])
    found.last = last
    return found


@pytest.mark.parametrize(
    ("rows", "last", "sound"),
    [
        ([], 0, True),
        ([(4, 0)], 4, True),
        ([(4, 0), (5, 4), (9, 5)], 9, True),
        ([(4, 0), (9, 5)], 9, False),  # one in the middle is lost
        ([(4, 0), (5, 4)], 9, False),  # the last is lost
        ([(5, 4), (9, 5)], 9, True),  # a server that counts from before the page
        ([(4, 0), (4, 0), (5, 4), (5, 4)], 5, False),  # two servers answered
    ],
)
def test_a_page_proves_that_nothing_of_it_is_lost(
    rows: list[tuple[int, int]], last: int, sound: bool
) -> None:
    if sound:
        check_chain("S", page(*rows, last=last))
    else:
        with pytest.raises(ConnectionLost, match="answers were lost"):
            check_chain("S", page(*rows, last=last))


def test_headers_in_another_order_are_read_as_well() -> None:
    block = (
        b"NATS/1.0\r\nA: 1\r\nNats-Sequence: 3\r\nNats-Subject: s\r\nNats-Stream: S\r\n"
        b"Nats-Last-Sequence: 2\r\nNats-Num-Pending: 5\r\nNats-Time-Stamp: 2026-01-31T12:00:00Z\r\n\r\n"
    )
    found = _page_of("S", [Columns("1", [], [], [b"x"], {0: block})])
    assert (found.subjects, found.sequences, found.previous) == ([b"s"], [b"3"], [b"2"])
    assert found.columns.headers == {0: b"NATS/1.0\r\nA: 1\r\n\r\n"}
    odd = block.replace(b"Nats-Sequence: 3", b"Nats-Sequence: -3")
    with pytest.raises(ProtocolError, match="odd headers"):
        _page_of("S", [Columns("1", [], [], [b"x"], {0: odd})])
    with pytest.raises(RequestTimeout, match=r"older than 2\.11"):
        _page_of("S", [Columns("1", [], [], [b"x"], {})])
