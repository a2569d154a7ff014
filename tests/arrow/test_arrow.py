"""Record batches: exact types, every column, both APIs; the reading of ack replies in all their shapes."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import pytest_asyncio

import jetspark
from jetspark import AckPolicy, ConsumerConfig, StorageType, StreamConfig, arrow, blocking
from jetspark.arrow import SCHEMA, consume_arrow, to_record_batch
from jetspark.errors import ConsumerDeleted, InvalidArgument, NotJetStreamMessage
from jetspark.jetstream.flow.ack_reply import parse_ack_reply
from jetspark.wire.columns import COLUMNAR, Columns, join_columns
from jetspark.wire.parser import Parser
from support.consuming import has_pending
from support.helpers import eventually, eventually_sync, unique

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from jetspark.server import Server

NONE = AckPolicy.NONE
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest_asyncio.fixture
async def js(server: Server) -> AsyncIterator[jetspark.JetStream]:
    async with jetspark.connect(server.url) as nc:
        yield nc.jetstream()


@pytest.fixture
def threads_js(server: Server) -> Iterator[blocking.JetStream]:
    with blocking.connect(server.url) as nc:
        yield nc.jetstream()


async def make(
    js: jetspark.JetStream, name: str = "", consumer: str = "worker", **options: Any
) -> jetspark.Consumer:
    name = name or unique()
    stream = await js.create_stream(
        StreamConfig(name=name, subjects=[f"{name}.>"], storage=StorageType.MEMORY)
    )
    return await stream.create_consumer(ConsumerConfig(durable_name=consumer, ack_policy=NONE, **options))


def make_blocking(js: blocking.JetStream, count: int) -> blocking.Consumer:
    name = unique()
    stream = js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"], storage=StorageType.MEMORY))
    for number in range(count):
        js.publish(f"{name}.{number}", b"%d" % number)
    return stream.create_consumer(ConsumerConfig(durable_name="worker", ack_policy=NONE))


async def publish_raw(server: Server, subject: bytes, header: bytes, data: bytes) -> None:
    """What no careful client sends: subjects that are not UTF-8, header blocks that are none."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n')
        if header:
            writer.write(b"HPUB %s %d %d\r\n" % (subject, len(header), len(header) + len(data)))
        else:
            writer.write(b"PUB %s %d\r\n" % (subject, len(data)))
        writer.write(header + data + b"\r\nPING\r\n")
        while (line := await reader.readline()) != b"PONG\r\n":
            assert line.startswith((b"INFO", b"PING")), line
    finally:
        writer.close()
        await writer.wait_closed()


async def read(consumer: jetspark.Consumer, count: int, **options: Any) -> pa.Table:
    """The next ``count`` messages as one table; each batch has the schema asked for."""
    batches = []
    async with consume_arrow(consumer, stop_after=count, **options) as source:
        async for batch in source:
            batch.validate(full=True)
            batches.append(batch)
        assert source.closed
    table = pa.Table.from_batches(batches)
    assert table.num_rows == count
    return table


# Types and columns


def test_the_schema_is_what_spark_takes():
    assert [(field.name, str(field.type), field.nullable) for field in SCHEMA] == [
        ("stream", "string", True),
        ("sequence", "int64", True),
        ("subject", "string", True),
        ("timestamp", "timestamp[us, tz=UTC]", True),
        ("headers", "map<string, list<item: string>>", True),
        ("data", "binary", True),
    ]


async def test_it_is_a_method_of_the_consumer_too(
    js: jetspark.JetStream, threads_js: blocking.JetStream
) -> None:
    """The function has what the method says, and the method all that the function can do."""
    consumer = await make(js)
    await js.publish(f"{consumer.stream_name}.a", b"1")
    async with consumer.consume_arrow(columns=["data"], stop_after=1) as batches:
        assert isinstance(batches, arrow.ConsumeArrow)
        assert [batch.to_pylist() async for batch in batches] == [[{"data": b"1"}]]

    def read_in_a_thread() -> list[Any]:
        with make_blocking(threads_js, 2).consume_arrow(columns=["data"], stop_after=2) as batches:
            return [row["data"] for batch in batches for row in batch.to_pylist()]

    assert await asyncio.to_thread(read_in_a_thread) == [b"0", b"1"]
    assert options_of(jetspark.Consumer.consume_arrow) == options_of(consume_arrow)


def options_of(function: Any) -> list[tuple[str, Any]]:
    return [(one.name, one.default) for one in inspect.signature(function).parameters.values()][1:]


async def test_every_column(js: jetspark.JetStream) -> None:
    consumer = await make(js)
    name = consumer.stream_name
    sent: list[tuple[str, bytes, dict[str, Any] | None]] = [
        (f"{name}.a", b"one", None),
        (f"{name}.größe.日本.😀", b"\x00\xff\r\n", {"A": ["1", "2"], "B": "grün 😀", "Empty": ""}),
        (f"{name}.a", b"", {"A": "3"}),
        (f"{name}.b", b"x" * 1_000_000, None),
        (f"{name}.a", b"", None),
    ]
    for subject, data, headers in sent:
        await js.publish(subject, data, headers=headers)
    table = await read(consumer, len(sent))
    assert table.schema.equals(SCHEMA, check_metadata=True)
    assert all(column.null_count == 0 for column in table.columns)
    rows = table.to_pydict()
    assert rows["stream"] == [name] * len(sent)
    assert rows["sequence"] == [1, 2, 3, 4, 5]
    assert rows["subject"] == [subject for subject, _, _ in sent]
    assert rows["data"] == [data for _, data, _ in sent]
    assert rows["headers"] == [
        [],
        [("A", ["1", "2"]), ("B", ["grün 😀"]), ("Empty", [""])],
        [("A", ["3"])],
        [],
        [],
    ]


async def test_timestamps_are_the_servers_to_the_microsecond(js: jetspark.JetStream) -> None:
    consumer = await make(js)
    stream = await js.get_stream(consumer.stream_name)
    for _ in range(50):
        await js.publish(f"{consumer.stream_name}.a")
    table = await read(consumer, 50, columns=["sequence", "timestamp"])
    stored = [await stream.get_msg(sequence) for sequence in range(1, 51)]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [one.timestamp.ns // 1000 for one in stored]
    assert table["timestamp"][0].as_py().tzinfo is not None
    # The same as the objects say.
    await consumer.reset(1)
    async with consumer.consume(stop_after=50) as messages:
        metadata = [message.metadata async for message in messages]
    assert table["sequence"].to_pylist() == [one.sequence.stream for one in metadata]
    assert table["timestamp"].to_pylist() == [
        EPOCH + timedelta(microseconds=one.timestamp.ns // 1000) for one in metadata
    ]


@pytest.mark.parametrize(
    "columns",
    [*([name] for name in SCHEMA.names), ["data", "sequence"], ["timestamp", "subject"], SCHEMA.names[::-1]],
)
async def test_some_columns_in_the_order_asked_for(js: jetspark.JetStream, columns: list[str]) -> None:
    consumer = await make(js)
    await js.publish(f"{consumer.stream_name}.a", b"1", headers={"A": "b"})
    await js.publish(f"{consumer.stream_name}.b", b"2")
    everything = await read(consumer, 2)
    await consumer.reset(1)
    some = await read(consumer, 2, columns=columns)
    assert some.schema == pa.schema([SCHEMA.field(name) for name in columns])
    assert some == everything.select(columns)


@pytest.mark.parametrize(
    ("columns", "value", "rule"),
    [
        (["sequence", "payload"], "payload", "stream, sequence, subject, timestamp, headers, data"),
        (["Data"], "Data", "must be among"),
        ("data", "d", "must be among"),
        ([], [], "at least one"),
        (["data", "data"], ["data", "data"], "none twice"),
    ],
)
async def test_columns_that_are_refused(js: jetspark.JetStream, columns: Any, value: Any, rule: str) -> None:
    consumer = await make(js)
    with pytest.raises(InvalidArgument, match=rule) as caught:
        consume_arrow(consumer, columns=columns)
    assert (caught.value.field, caught.value.value) == ("columns", value)


async def test_text_that_is_not_utf8(server: Server, js: jetspark.JetStream) -> None:
    consumer = await make(js)
    name = consumer.stream_name
    header = b"NATS/1.0\r\nA: caf\xe9\r\nB: ok\r\na: \xff\r\n\xfe: 1\r\n\xff: 2\r\n\r\n"
    await js.publish(f"{name}.ü")
    await publish_raw(server, f"{name}.".encode() + b"\xff\xc3", header, b"\xff")
    rows = (await read(consumer, 2)).to_pydict()
    assert rows["subject"] == [f"{name}.ü", f"{name}.\ufffd\ufffd"]
    # A map has a key once, also when two names became the same. Those that differ in case did not.
    assert rows["headers"] == [
        [],
        [("A", ["caf\ufffd"]), ("B", ["ok"]), ("a", ["\ufffd"]), ("\ufffd", ["1", "2"])],
    ]
    assert rows["data"] == [b"", b"\xff"]


@pytest.mark.parametrize(
    ("block", "entries"),
    [
        (b"NATS/1.0\r\nno colon\r\nA: b\r\n: x\r\nA: c\r\n\r\n", [("A", ["b", "c"])]),
        (b"NATS/1.0\r\nA: b\r\n folded\r\n\r\n", [("A", ["b"])]),
        (b"NATS/1.0\r\n\r\n", []),
        (b"NATS/1.0 503\r\n\r\n", []),
        (
            b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 1\r\n\r\n",
            [("Nats-Pending-Messages", ["1"])],
        ),
        (b"NATS/1.0\r\n" + b"K: v\r\n" * 5_000 + b"\r\n", [("K", ["v"] * 5_000)]),
    ],
)
async def test_odd_header_blocks_cost_no_row(
    server: Server, js: jetspark.JetStream, block: bytes, entries: list[Any]
) -> None:
    consumer = await make(js)
    await publish_raw(server, f"{consumer.stream_name}.a".encode(), block, b"")
    await js.publish(f"{consumer.stream_name}.a", b"next")
    rows = (await read(consumer, 2)).to_pydict()
    assert rows["headers"] == [entries, []]
    assert rows["data"] == [b"", b"next"]


@pytest.mark.parametrize(
    "name",
    [
        '"',
        '"quoted"',
        "a,b",
        "#hash",
        "a;b|c",
        "it's",
        "NULL",
        "NA",
        "1",
        "-",
        "_",
        "ORDERS-eu_1",
        "größe",
        "=1+1",
        "$JS",
    ],
)
async def test_names_that_mean_something_to_csv(js: jetspark.JetStream, name: str) -> None:
    stream = name + unique("-")
    await js.create_stream(StreamConfig(name=stream, subjects=[unique("csv")], storage=StorageType.MEMORY))
    made = await js.get_stream(stream)
    consumer = await made.create_consumer(ConsumerConfig(durable_name=name, ack_policy=NONE))
    subject = made.config.subjects[0]
    for number in range(3):
        await js.publish(subject, b"%d" % number)
    async with consume_arrow(consumer, stop_after=3) as source:
        rows = pa.Table.from_batches([batch async for batch in source]).to_pydict()
        assert source.last_metadata is not None
        assert (source.last_metadata.stream, source.last_metadata.consumer) == (stream, name)
    assert rows["stream"] == [stream] * 3
    assert rows["sequence"] == [1, 2, 3]
    assert rows["data"] == [b"0", b"1", b"2"]


# Ack replies


def v1(
    sequence: int, timestamp: int = 1_700_000_000_123_456_789, stream: str = "s", consumer: str = "c"
) -> bytes:
    return f"$JS.ACK.{stream}.{consumer}.1.{sequence}.7.{timestamp}.0".encode()


def v2(sequence: int, timestamp: int = 1_700_000_000_123_456_789, tail: str = "", domain: str = "_") -> bytes:
    return f"$JS.ACK.{domain}.ACCHASH.s.c.1.{sequence}.7.{timestamp}.0{tail}".encode()


def positions(replies: list[bytes]) -> Any:
    return arrow._positions(Columns("1", [], replies, [b""] * len(replies), {}))


@pytest.mark.parametrize(
    "replies",
    [
        [v1(1)],
        [v1(number, number * 1000 + 999) for number in range(1, 5_000)],
        [v2(1)],
        [v2(5, tail=".token"), v2(6, tail=".token")],
        [v2(5, tail=".token.and.more", domain="hub")],
        [v1(9_223_372_036_854_775_807, 0)],
        [v1(1, stream='"', consumer='"'), v1(2, stream='"', consumer="'")],
        [v1(1, stream=",#;", consumer="\\"), v1(2, stream="", consumer="")],
        [v1(1, stream="größe"), v1(2).replace(b".s.", b".\xff\xfe.")],
        [v1(1, stream="NULL", consumer="nan")],
        [v1(1), v2(2)],
        [v2(1), v1(2), v2(3)],
        [v2(1), v2(2, tail=".token")],
        [v2(1, tail=".token"), v2(2)],
        [v1(number) for number in range(1, 1_000)] + [v2(1_000, domain="hub")],
        # A line break of another kind, which no server would allow in a name.
        [v1(1, stream="a\rb"), v1(2)],
    ],
)
def test_positions_of_ack_replies_of_every_shape(replies: list[bytes]):
    sequences, timestamps = positions(replies)
    assert (sequences.type, timestamps.type) == (pa.int64(), pa.timestamp("us", "UTC"))
    expected = [parse_ack_reply(reply.decode("utf-8", "replace")) for reply in replies]
    assert sequences.to_pylist() == [one.sequence.stream for one in expected]
    assert timestamps.cast(pa.int64()).to_pylist() == [one.timestamp.ns // 1000 for one in expected]


@pytest.mark.parametrize(
    "bad",
    [
        b"_INBOX.abc",
        b"x",
        b"$JS.ACK.s.c.1.2.3.4",
        b"$JS.ACK.s.c.1.x.7.5.0",
        b"$JS.ACK.s.c.1..7.5.0",
        b"$JS.ACK.s.c.1.NULL.7.5.0",
        b"$JS.ACK.s.c.1.5.7.nan.0",
        b"$JS.ACK._.h.s.c.1.2.3.4",
        b"$JS.ACK.s.c.1.2.3.4.5.6",
        b"\xff\xfe",
    ],
)
@pytest.mark.parametrize("place", ["alone", "first", "last"])
def test_a_reply_that_is_no_ack_reply_is_named(bad: bytes, place: str):
    replies = {"alone": [bad], "first": [bad, v1(2)], "last": [v1(1), v1(2), bad]}[place]
    with pytest.raises(NotJetStreamMessage) as caught:
        positions(replies)
    assert caught.value.reply == bad.decode("utf-8", "replace")


def test_no_rows_make_an_empty_batch():
    batch = to_record_batch(Columns("1", [], [], [], {}), SCHEMA.names, "s")
    assert batch.num_rows == 0
    assert batch.schema == SCHEMA


def test_microseconds_are_cut_not_rounded():
    columns = Columns("1", [b"a"] * 2, [v1(1, 1_999), v1(2, 1_700_000_000_123_456_999)], [b""] * 2, {})
    batch = to_record_batch(columns, ["timestamp"], "s")
    assert batch.column(0).cast(pa.int64()).to_pylist() == [1, 1_700_000_000_123_456]


def test_headers_of_some_rows_only():
    block = b"NATS/1.0\r\nKey: 1\r\nother: x\r\nKEY: 2\r\nKey: 3\r\n\r\n"
    columns = Columns("1", [b"a"] * 4, [v1(1)] * 4, [b""] * 4, {1: block, 3: b"NATS/1.0\r\n\r\n"})
    batch = to_record_batch(columns, ["headers"], "s")
    batch.validate(full=True)
    # Names that differ in case are different names, as on the server.
    assert batch.column(0).to_pylist() == [
        [],
        [("Key", ["1", "3"]), ("other", ["x"]), ("KEY", ["2"])],
        [],
        [],
    ]


# The async API


async def test_last_metadata_follows_what_was_handed_out(js: jetspark.JetStream) -> None:
    consumer = await make(js)
    for number in range(10):
        await js.publish(f"{consumer.stream_name}.a", b"%d" % number)
    # A consumer hears of a message a moment after its ack.
    await eventually(lambda: has_pending(consumer, 10))
    async with consume_arrow(consumer, columns=["data"], max_messages=4, stop_after=10) as source:
        assert source.last_metadata is None
        rows = 0
        async for batch in source:
            assert 0 < batch.num_rows <= 4
            rows += batch.num_rows
            assert source.last_metadata is not None
            assert source.last_metadata.sequence.stream == rows
            assert source.last_metadata.num_pending == 10 - rows
            assert source.last_metadata.stream == consumer.stream_name
    assert rows == 10


async def test_waiting_with_a_time_out_loses_nothing(js: jetspark.JetStream) -> None:
    consumer = await make(js)
    async with consume_arrow(consumer, columns=["data"]) as source:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(source)
        assert not source.closed
        await js.publish(f"{consumer.stream_name}.a", b"late")
        async with asyncio.timeout(30):
            batch = await anext(source)
        assert batch.to_pydict() == {"data": [b"late"]}


async def test_max_bytes_is_the_buffer_when_given(js: jetspark.JetStream) -> None:
    consumer = await make(js)
    for _ in range(20):
        await js.publish(f"{consumer.stream_name}.a", b"x" * 1_000)
    sizes = []
    async with consume_arrow(consumer, columns=["data"], max_bytes=5_000, stop_after=20) as source:
        async for batch in source:
            sizes.append(batch.num_rows)
    assert sum(sizes) == 20
    assert max(sizes) <= 5


async def test_an_async_consumer_in_a_plain_with_is_told_so(js: jetspark.JetStream) -> None:
    consumer = await make(js)
    source = consume_arrow(consumer)
    for call in (
        source.__enter__,
        source.next_batch,
        source.__next__,
        lambda: source.__exit__(None, None, None),
    ):
        with pytest.raises(InvalidArgument, match="async consumer; use 'async with' and 'async for'"):
            call()
    with pytest.raises(InvalidArgument, match="not started"):
        await anext(source)


async def test_what_is_no_consumer_is_refused(js: jetspark.JetStream) -> None:
    consumer = await make(js)
    for wrong in (await js.get_stream(consumer.stream_name), None, "worker"):
        with pytest.raises(InvalidArgument, match="must be a Consumer"):
            consume_arrow(wrong)  # type: ignore[arg-type]


async def test_acks_are_refused_with_the_remedy(js: jetspark.JetStream) -> None:
    name = unique()
    stream = await js.create_stream(StreamConfig(name=name, storage=StorageType.MEMORY))
    consumer = await stream.create_consumer(ConsumerConfig(durable_name="c", ack_policy=AckPolicy.EXPLICIT))
    with pytest.raises(InvalidArgument, match="ack_policy none"):
        consume_arrow(consumer)


async def test_a_deleted_consumer_raises_behind_its_rows(js: jetspark.JetStream) -> None:
    consumer = await make(js)
    await js.publish(f"{consumer.stream_name}.a", b"last")
    told: list[Any] = []
    async with consume_arrow(consumer, columns=["data"], on_error=told.append) as source:
        await eventually(lambda: source._source.pending == 1)
        await consumer.delete()
        await eventually(lambda: source.closed)
        assert (await anext(source)).to_pydict() == {"data": [b"last"]}
        with pytest.raises(ConsumerDeleted):
            await anext(source)
        with pytest.raises(StopAsyncIteration):
            await anext(source)
    assert [type(error) for error in told] == [ConsumerDeleted]


# The blocking API


def test_blocking_iteration(threads_js: blocking.JetStream) -> None:
    consumer = make_blocking(threads_js, 50)
    with consume_arrow(consumer, max_messages=20, stop_after=50) as source:
        batches = list(source)
        assert source.closed
        assert source.next_batch() is None
        assert source.last_metadata is not None
        assert source.last_metadata.sequence.stream == 50
    rows = pa.Table.from_batches(batches)
    assert rows.schema == SCHEMA
    assert rows["sequence"].to_pylist() == list(range(1, 51))
    assert rows["data"].to_pylist() == [b"%d" % number for number in range(50)]
    assert rows["subject"].to_pylist() == [f"{consumer.stream_name}.{number}" for number in range(50)]
    assert max(batch.num_rows for batch in batches) <= 20


def test_next_batch_waits_no_longer_than_asked(threads_js: blocking.JetStream) -> None:
    consumer = make_blocking(threads_js, 0)
    with consume_arrow(consumer, columns=["data"]) as source:
        assert source.next_batch(timeout=0) is None
        assert source.next_batch(timeout=0.05) is None
        assert source.last_metadata is None
        assert not source.closed
        threads_js.publish(f"{consumer.stream_name}.a", b"x")
        batch = source.next_batch(timeout=30)
        assert batch is not None
        assert batch.to_pydict() == {"data": [b"x"]}
    assert source.closed
    assert source.next_batch() is None


async def test_a_blocking_consumer_in_an_async_with_is_told_so(threads_js: blocking.JetStream) -> None:
    consumer = await asyncio.to_thread(make_blocking, threads_js, 0)
    with pytest.raises(InvalidArgument, match="blocking consumer; use 'with' and 'for'"):
        async with consume_arrow(consumer):
            pass


def test_a_connection_closed_inside_the_block(server: Server) -> None:
    with blocking.connect(server.url) as nc:
        consumer = make_blocking(nc.jetstream(), 1)
        with consume_arrow(consumer, columns=["data"]) as source:
            assert source.next_batch(timeout=30) is not None
            nc.close()
    assert source.closed


def test_a_listener_of_errors_may_use_the_blocking_api(threads_js: blocking.JetStream) -> None:
    consumer = make_blocking(threads_js, 1)
    told: list[Any] = []

    def listen(error: Exception) -> None:
        told.append((type(error), threads_js.get_stream(consumer.stream_name).name, threading.get_ident()))

    with consume_arrow(consumer, columns=["data"], on_error=listen) as source:
        assert source.next_batch(timeout=30) is not None
        eventually_sync(lambda: consumer.info().num_waiting == 1)
        consumer.delete()
        with pytest.raises(ConsumerDeleted):
            source.next_batch(timeout=30)
    ((kind, name, thread),) = told
    assert (kind, name) == (ConsumerDeleted, consumer.stream_name)
    assert thread != threading.get_ident()


def test_a_coroutine_function_can_not_listen_to_a_blocking_consumer(threads_js: blocking.JetStream) -> None:
    async def listen(error: Exception) -> None:
        raise AssertionError(error)

    consumer = make_blocking(threads_js, 0)
    with pytest.raises(InvalidArgument, match="plain function"):
        consume_arrow(consumer, on_error=listen)


# Views


async def test_views_are_the_same_payloads(js: jetspark.JetStream) -> None:
    """Of all lengths around what a view holds itself, and larger than a read of the socket."""
    consumer = await make(js)
    name = consumer.stream_name
    sizes = [*range(30), 12, 13, 300_000, 0, 900_000, 5, 70_000]
    payloads = [bytes([number % 251]) * size for number, size in enumerate(sizes)] * 3
    for number, data in enumerate(payloads):
        await js.publish(f"{name}.{number}", data)
    found: list[pa.RecordBatch] = []
    async with consume_arrow(consumer, views=True, stop_after=len(payloads)) as batches:
        async for batch in batches:
            batch.validate(full=True)
            found.append(batch)
    table = pa.Table.from_batches(found)
    assert table.schema.field("data").type == pa.binary_view()
    assert [field for field in table.schema if field.name != "data"] == [
        field for field in SCHEMA if field.name != "data"
    ]
    assert table.column("data").to_pylist() == payloads
    assert table.column("data").cast(pa.binary()).to_pylist() == payloads
    assert table.column("sequence").to_pylist() == list(range(1, len(payloads) + 1))


def test_views_of_joined_and_truncated_rows() -> None:
    parser = Parser()
    parser.routes["1"] = (COLUMNAR, (None, None))
    payloads = [b"%0*d" % (size, size) for size in (40, 3, 50, 60, 12, 13)]
    wire = [b"MSG a 1 %b %d\r\n%b\r\n" % (v1(1), len(data), data) for data in payloads]
    parts = [part for one in wire for part in parser.feed(one)]
    columns = join_columns(parts)
    columns.truncate(5)
    batch = to_record_batch(columns, ["data"], "s", views=True)
    del parts, columns
    gc.collect()
    batch.validate(full=True)
    assert batch.column("data").to_pylist() == payloads[:5]
    assert to_record_batch(Columns("1", [], [], [], {}), ["data"], "s", views=True).num_rows == 0


def test_views_in_threads(threads_js: blocking.JetStream) -> None:
    consumer = make_blocking(threads_js, 500)
    with consume_arrow(consumer, columns=["data"], views=True, stop_after=500) as batches:
        data = [value for batch in batches for value in batch.column("data").to_pylist()]
    assert data == [b"%d" % number for number in range(500)]


async def test_views_must_be_a_flag(js: jetspark.JetStream) -> None:
    consumer = await make(js)
    with pytest.raises(InvalidArgument, match=r"views.*must be True or False"):
        consume_arrow(consumer, views="yes")  # type: ignore[arg-type]
