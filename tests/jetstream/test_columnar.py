"""consume as columns, on the real server. ``test_arrow`` has what becomes of them."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import AckPolicy, Consumer, ConsumerConfig, StorageType, StreamConfig, blocking
from jetspark.errors import ConnectionLost, ConsumerDeleted, InvalidArgument, PushConsumerError
from jetspark.jetstream.consume import columnar
from jetspark.jetstream.consume.columnar import ColumnarSink, ConsumeColumns
from jetspark.jetstream.consume.pull import PullSink
from jetspark.jetstream.flow.ack_reply import parse_ack_reply
from jetspark.jetstream.flow.options import PullOptions
from support.consuming import durable, fill, make, make_filled
from support.helpers import eventually, eventually_sync, unique

if TYPE_CHECKING:
    from jetspark.server import Server
    from jetspark.wire.columns import Columns

COUNT = 50_000
NONE = AckPolicy.NONE


def columns_of(consumer: Consumer, on_error: Any = None, **options: Any) -> ConsumeColumns:
    options.setdefault("max_messages", 100)
    if "max_bytes" in options:
        del options["max_messages"]
    return ConsumeColumns(consumer, PullOptions(**options), on_error)


def sequences(columns: Columns) -> list[int]:
    return [parse_ack_reply(reply.decode()).sequence.stream for reply in columns.replies]


async def take(source: ConsumeColumns) -> Columns:
    """The next rows; they have to come."""
    columns = await source.take(timeout=10)
    assert columns is not None
    assert len(columns.subjects) == len(columns.replies) == len(columns.payloads) == len(columns) > 0
    return columns


async def collect(source: ConsumeColumns, count: int) -> list[int]:
    """The numbers that ``fill`` gave the next ``count`` messages."""
    found: list[int] = []
    while len(found) < count:
        found += map(int, (await take(source)).payloads)
    return found


async def waits(consumer: Consumer) -> bool:
    return (await consumer.info()).num_waiting == 1


async def delivered(consumer: Consumer, count: int) -> bool:
    return (await consumer.info()).delivered.stream_seq == count


def sinks_of(nc: jetspark.Connection, kind: type[PullSink] = ColumnarSink) -> list[Any]:
    assert nc._core.link is not None
    assert set(nc._core.link.parser.routes) == set(nc._core.router.sinks)
    return [sink for sink in nc._core.router.sinks.values() if isinstance(sink, kind)]


@pytest.fixture(scope="module")
def large(_shared_server: Server) -> str:
    """A stream of 50,000 messages on five subjects; every seventh has a header. Its name."""
    name = unique("LARGE")
    with blocking.connect(_shared_server.url) as nc:
        js = nc.jetstream()
        js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"], storage=StorageType.MEMORY))
        for number in range(COUNT):
            headers = {"Number": str(number)} if number % 7 == 0 else None
            nc.publish(f"{name}.{number % 5}", b"%d" % number, headers=headers)
        # The stream stores them after the server has received them.
        eventually_sync(lambda: js.get_stream(name).cached_info.state.messages == COUNT, 60)
    return name


async def large_consumer(js: jetspark.JetStream, large: str, **options: Any) -> Consumer:
    stream = await js.get_stream(large)
    return await durable(stream, durable_name=unique("C"), ack_policy=NONE, mem_storage=True, **options)


# All of it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "options"),
    [
        # A round trip a message: the last 5,000 will do.
        (COUNT - 5_000 + 1, {"max_messages": 1}),
        (1, {"max_messages": 10}),
        (1, {"max_messages": 5_000}),
        (1, {"max_messages": 5_000, "max_bytes_per_request": 30_000}),
        (1, {"max_bytes": 20_000}),
    ],
)
async def test_every_message_once_and_in_order(
    js: jetspark.JetStream, large: str, first: int, options: dict[str, Any]
) -> None:
    start: dict[str, Any] = (
        {"deliver_policy": "by_start_sequence", "opt_start_seq": first} if first > 1 else {}
    )
    consumer = await large_consumer(js, large, **start)
    expected = first
    async with columns_of(consumer, **options) as source:
        sink = source._sink
        assert isinstance(sink, ColumnarSink)
        while expected <= COUNT:
            columns = await take(source)
            rows = range(expected - 1, expected - 1 + len(columns))
            assert columns.payloads == [b"%d" % row for row in rows]
            assert columns.subjects == [f"{large}.{row % 5}".encode() for row in rows]
            assert sequences(columns) == [row + 1 for row in rows]
            assert columns.headers == {
                index: b"NATS/1.0\r\nNumber: %d\r\n\r\n" % row
                for index, row in enumerate(rows)
                if row % 7 == 0
            }
            if "max_bytes" in options:
                assert sink.flow.pending_bytes <= options["max_bytes"]
            else:
                assert len(columns) <= options["max_messages"]
            expected += len(columns)
        assert expected == COUNT + 1
        assert await source.take(timeout=0.01) is None
        assert source.pending == 0
        assert not source.closed
    assert (await consumer.info()).num_pending == 0


@pytest.mark.parametrize("max_messages", [1, 10, 5_000])
@pytest.mark.parametrize("wanted", [1, 999, 1_000])
async def test_stop_after_is_exact_on_both_sides(
    js: jetspark.JetStream, large: str, max_messages: int, wanted: int
) -> None:
    consumer = await large_consumer(js, large)
    async with columns_of(consumer, max_messages=max_messages, stop_after=wanted) as source:
        assert await collect(source, wanted) == list(range(wanted))
        assert source.closed
        assert await source.take() is None
        assert await source.take() is None
    # The next one goes on where it ended: nothing was asked for in vain and lost.
    assert (await consumer.info()).delivered.stream_seq == wanted
    async with columns_of(consumer, max_messages=10, stop_after=5) as source:
        assert await collect(source, 5) == list(range(wanted, wanted + 5))


async def test_stop_after_with_max_bytes(js: jetspark.JetStream, large: str) -> None:
    consumer = await large_consumer(js, large)
    async with columns_of(consumer, max_bytes=5_000, stop_after=777) as source:
        assert await collect(source, 777) == list(range(777))
        assert await source.take() is None
        assert source.closed


async def test_what_came_too_much_is_cut_off_with_its_headers(js: jetspark.JetStream) -> None:
    # More than was asked for can only come of requests that were written off; so the sink gets it directly.
    _, consumer = await make_filled(js, 0, ack_policy=NONE)
    source = columns_of(consumer, stop_after=3)
    async with source:
        sink = source._sink
        assert isinstance(sink, ColumnarSink)
        reply = b"$JS.ACK.s.c.1.1.1.1.0"
        for _ in range(2):
            sink.deliver_columns(
                columnar.Columns("1", [b"s"] * 2, [reply] * 2, [b"a", b"b"], {0: b"h0", 1: b"h1"}, 100)
            )
        assert source.pending == 4
        columns = await take(source)
        assert columns.payloads == [b"a", b"b", b"a"]
        assert (len(columns.subjects), len(columns.replies)) == (3, 3)
        assert columns.headers == {0: b"h0", 1: b"h1", 2: b"h0"}
        assert source.closed
        assert await source.take() is None


async def test_one_take_is_limited_in_bytes(js: jetspark.JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    # More than one read of the socket can bring: what came at once is not cut.
    monkeypatch.setattr(columnar, "MAX_TAKE", 1_500_000)
    _, consumer = await make_filled(js, 60, size=60_000, ack_policy=NONE)
    async with columns_of(consumer, max_messages=60) as source:
        await eventually(lambda: source.pending == 60)
        found: list[int] = []
        takes = 0
        while len(found) < 60:
            columns = await take(source)
            assert columns.nbytes <= 1_500_000
            found += map(int, columns.payloads)
            assert source.pending == 60 - len(found)
            takes += 1
        assert found == list(range(60))
        assert 3 <= takes < 15


# Refusals


@pytest.mark.parametrize("policy", [AckPolicy.EXPLICIT, AckPolicy.ALL])
async def test_consumers_that_want_acks_are_refused(js: jetspark.JetStream, policy: AckPolicy) -> None:
    _, consumer = await make_filled(js, 0, ack_policy=policy)
    with pytest.raises(InvalidArgument, match="ack_policy none") as caught:
        columns_of(consumer)
    assert caught.value.field == "ack_policy"


async def test_push_consumers_are_refused(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 0, ack_policy=NONE, deliver_subject=unique("deliver"))
    with pytest.raises(PushConsumerError):
        columns_of(consumer)


async def test_it_must_be_entered_and_only_once(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 0, ack_policy=NONE)
    source = columns_of(consumer)
    assert (source.pending, source.closed) == (0, False)
    with pytest.raises(InvalidArgument, match="not started"):
        await source.take()
    async with source:
        with pytest.raises(InvalidArgument, match="once"):
            await source.__aenter__()


# Waiting


async def test_take_waits_for_the_first_row_and_no_longer_than_asked(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0, ack_policy=NONE)
    async with columns_of(consumer) as source:
        loop = asyncio.get_running_loop()
        for timeout in (0, 0.05):
            before = loop.time()
            assert await source.take(timeout=timeout) is None
            assert timeout <= loop.time() - before + 0.001
        assert not source.closed
        waiting = asyncio.create_task(source.take())
        await fill(js, stream, 1)
        columns = await asyncio.wait_for(waiting, 20)
        assert columns is not None
        assert columns.payloads == [b"0"]


async def test_a_cancelled_take_costs_nothing(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0, ack_policy=NONE)
    async with columns_of(consumer) as source:
        sink = source._sink
        assert sink is not None
        waiting = asyncio.create_task(source.take())
        await eventually(lambda: bool(sink._waiters))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not sink._waiters
        await fill(js, stream, 3)
        assert await collect(source, 3) == [0, 1, 2]


async def test_several_tasks_may_take(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0, ack_policy=NONE)

    async def work(source: ConsumeColumns) -> list[int]:
        found: list[int] = []
        # None is the end, never that another task was faster.
        while (columns := await source.take()) is not None:
            found += map(int, columns.payloads)
        assert source.closed
        return found

    async with columns_of(consumer, max_messages=10, stop_after=500) as source:
        tasks = [asyncio.create_task(work(source)) for _ in range(3)]
        await fill(js, stream, 500)
        shares = await asyncio.wait_for(asyncio.gather(*tasks), 20)
    assert sorted(itertools.chain(*shares)) == list(range(500))


async def test_rows_that_are_there_do_not_wait_for_the_time_out(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 5, ack_policy=NONE)
    async with columns_of(consumer) as source:
        await eventually(lambda: source.pending == 5)
        columns = await source.take(timeout=0)
        assert columns is not None
        assert len(columns) == 5


# The end


async def test_a_deleted_consumer_raises_behind_its_last_row(
    nc: jetspark.Connection, js: jetspark.JetStream
) -> None:
    _, consumer = await make_filled(js, 30, ack_policy=NONE)
    told: list[Any] = []
    async with columns_of(consumer, told.append) as source:
        await eventually(lambda: source.pending == 30)
        await consumer.delete()
        await eventually(lambda: source.closed)
        assert await collect(source, 30) == list(range(30))
        with pytest.raises(ConsumerDeleted):
            await source.take()
        # Once is enough.
        assert await source.take() is None
    assert [type(error) for error in told] == [ConsumerDeleted]
    assert sinks_of(nc) == []


async def test_a_waiting_take_hears_of_the_end(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 0, ack_policy=NONE)
    async with columns_of(consumer) as source:
        waiting = asyncio.create_task(source.take())
        # The server tells those whose pull it has; it could do the delete before the pull.
        await eventually(lambda: waits(consumer))
        await consumer.delete()
        with pytest.raises(ConsumerDeleted):
            await asyncio.wait_for(waiting, 5)


async def test_stop_drops_what_is_buffered(nc: jetspark.Connection, js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 30, ack_policy=NONE)
    async with columns_of(consumer) as source:
        assert len(sinks_of(nc)) == 1
        await eventually(lambda: source.pending == 30)
        await source.stop()
        assert (source.closed, source.pending) == (True, 0)
        assert await source.take() is None
        await source.stop()
    assert sinks_of(nc) == []


async def test_drain_hands_out_what_has_arrived(nc: jetspark.Connection, js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 30, ack_policy=NONE)
    async with columns_of(consumer) as source:
        await eventually(lambda: source.pending == 30)
        await source.drain()
        await eventually(lambda: not sinks_of(nc))
        await fill(js, stream, 5, start=30)
        assert not source.closed
        assert await collect(source, 30) == list(range(30))
        assert source.closed
        assert await source.take() is None
    # What came after the drain is for the next one.
    async with columns_of(consumer, stop_after=5) as source:
        assert await collect(source, 5) == [30, 31, 32, 33, 34]


async def test_a_drain_with_nothing_buffered_ends_a_waiting_take(js: jetspark.JetStream) -> None:
    _, consumer = await make_filled(js, 0, ack_policy=NONE)
    async with columns_of(consumer) as source:
        waiting = asyncio.create_task(source.take())
        await source.drain()
        assert await asyncio.wait_for(waiting, 5) is None
        assert source.closed


async def test_leaving_in_any_way_leaves_no_subscription(
    nc: jetspark.Connection, js: jetspark.JetStream
) -> None:
    _, consumer = await make_filled(js, 50, ack_policy=NONE)
    for _ in range(3):
        async with columns_of(consumer, max_messages=5) as source:
            await take(source)
    with pytest.raises(RuntimeError, match="user"):
        async with columns_of(consumer):
            raise RuntimeError("user")
    async with columns_of(consumer, stop_after=1) as source:
        await take(source)
        assert sinks_of(nc) == []
    assert sinks_of(nc) == []
    assert (await consumer.info()).num_waiting == 0


async def test_closing_the_connection_ends_it_quietly(server: Server) -> None:
    async with jetspark.connect(server.url) as nc:
        _, consumer = await make_filled(nc.jetstream(), 10, ack_policy=NONE)
        source = await columns_of(consumer).__aenter__()
        await eventually(lambda: source.pending == 10)
    assert source.closed
    assert await source.take() is None


# Strangers and leftovers


@pytest.mark.parametrize("max_messages", [1, 2, 100])
async def test_strangers_messages_in_the_inbox_take_no_room(
    nc: jetspark.Connection, js: jetspark.JetStream, max_messages: int, caplog: pytest.LogCaptureFixture
) -> None:
    stream, consumer = await make_filled(js, 0, ack_policy=NONE)
    async with columns_of(consumer, max_messages=max_messages) as source:
        (sink,) = sinks_of(nc)
        for headers in (None, {"A": "b"}):
            for payload in (b"", b"who are you?"):
                await nc.publish(sink.subject, payload, headers=headers)
        await fill(js, stream, 20)
        assert await collect(source, 20) == list(range(20))
        assert not sink.buffer
        assert sink.flow.buffered == 0
    assert "not JetStream's" in caplog.text


async def test_what_a_cancelled_fetch_left_comes_first(
    nc: jetspark.Connection, js: jetspark.JetStream
) -> None:
    # Without acks the server never delivers it again.
    stream, consumer = await make_filled(js, 0, ack_policy=NONE)
    fetching = asyncio.ensure_future(consumer.fetch(10, expires=30))
    await eventually(lambda: waits(consumer))
    await js.publish(f"{stream.name}.ü", b"0", headers={"A": "ä"})
    await fill(js, stream, 4, start=1)
    await eventually(lambda: delivered(consumer, 5))
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    # Its subscription is still there for a moment, for what is on its way.
    await eventually(lambda: len(consumer._stash) == 5 and not any(sinks_of(nc, PullSink)))
    await fill(js, stream, 5, start=5)
    async with columns_of(consumer, stop_after=10) as source:
        columns = await take(source)
        assert columns.headers[0].startswith(b"NATS/1.0\r\nA: ")
        assert columns.subjects[0] == f"{stream.name}.ü".encode()
        found = [*map(int, columns.payloads)]
        found += await collect(source, 10 - len(found))
        assert found == list(range(10))
        assert source.closed


# Pinned clients

BLOCKS = {
    "none": b"",
    "plain": b"NATS/1.0\r\nA: b\r\n\r\n",
    "malformed": b"NATS/1.0\r\nno colon\r\n\r\n",
    "forged": b"NATS/1.0\r\nNats-Pin-Id: forged\r\n\r\n",
}


@pytest.mark.parametrize("form", ["columns", "objects"])
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS.keys())
async def test_a_pin_is_read_from_any_header_block(
    server: Server, nc: jetspark.Connection, js: jetspark.JetStream, block: bytes, form: str
) -> None:
    # Regression: a malformed block of some publisher broke the connection of the pinned client.
    stream, consumer = await make_filled(
        js, 3, ack_policy=NONE, priority_policy="pinned_client", priority_groups=["A"]
    )
    reader, writer = await asyncio.open_connection(server.host, server.port)
    command = b"HPUB" if block else b"PUB"
    sizes = b"%d %d" % (len(block), len(block) + 1) if block else b"1"
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n')
    writer.write(b"%s %s.a %s\r\n%s3\r\nPING\r\n" % (command, stream.name.encode(), sizes, block))
    while await reader.readline() != b"PONG\r\n":
        pass
    writer.close()
    await writer.wait_closed()
    await fill(js, stream, 3, start=4)
    pins = set()
    if form == "columns":
        async with columns_of(consumer, max_messages=1, stop_after=7, group="A") as source:
            found = []
            for _ in range(7):
                found += await collect(source, 1)
                pins.add(consumer._target.pin_id)
    else:
        async with consumer.consume(max_messages=1, stop_after=7, group="A") as messages:
            found = []
            async for message in messages:
                found.append(int(message.data))
                pins.add(consumer._target.pin_id)
    assert found == list(range(7))
    assert len(pins) == 1
    assert not pins & {"", "forged"}
    assert nc.stats.reconnects == 0


# A connection that breaks


async def test_an_orderly_restart_between_messages_costs_none(own_server: Server) -> None:
    async with (
        jetspark.connect(own_server.url, reconnect_wait=0.02) as nc,
        jetspark.connect(own_server.url, reconnect_wait=0.02) as producer,
    ):
        js = producer.jetstream()
        stream = await make(js, storage=StorageType.FILE)
        consumer = await (await nc.jetstream().get_stream(stream.name)).create_consumer(
            ConsumerConfig(durable_name="worker", ack_policy=NONE)
        )
        found: list[int] = []
        async with columns_of(consumer, max_messages=1_000) as source:
            for start in (0, 500, 1_000):
                await fill(js, stream, 500, start=start)
                # It stays in the buffer while the server is away.
                await eventually(lambda: source.pending == 500)
                await asyncio.to_thread(own_server.restart)
                found += await collect(source, 500)
                await eventually(lambda: producer.is_connected and nc.is_connected)
        assert found == list(range(1_500))
        assert len(sinks_of(nc)) == 0


@pytest.mark.parametrize("wanted_cuts", [1, 3])
async def test_a_cut_connection_costs_at_most_what_was_in_flight(
    own_server: Server, wanted_cuts: int
) -> None:
    async with jetspark.connect(own_server.url, reconnect_wait=0.02) as nc:
        js = nc.jetstream()
        _, consumer = await make_filled(js, 20_000, size=200, ack_policy=NONE)
        found: list[int] = []
        cuts = 0
        async with columns_of(consumer, max_messages=2_000) as source:
            while not found or found[-1] != 20_000:
                columns = await source.take(timeout=1)
                if columns is None:
                    if (await consumer.info()).num_pending == source.pending == 0:
                        break  # the last ones were in flight
                    continue
                found += sequences(columns)
                if cuts < wanted_cuts and len(found) > 3_000 * (cuts + 1):
                    cuts += 1
                    await nc.force_reconnect()
            assert nc.stats.reconnects == cuts == wanted_cuts
            # Ack none: what was on its way at the cut is gone by design. Nothing comes twice or out of
            # order, and there is one gap a cut at most.
            gaps = [after - before - 1 for before, after in itertools.pairwise(found)]
            assert all(gap >= 0 for gap in gaps)
            assert sum(gap > 0 for gap in gaps) <= cuts
            if cuts == 1:
                # No more can be on its way than fits the buffer. Later it can: the server may honour the
                # requests from before a cut beside the one from after it.
                assert max(gaps) <= 2_000
            assert (await consumer.info()).num_pending == 0


async def test_a_killed_server_costs_no_row_that_had_arrived(own_server: Server) -> None:
    async with jetspark.connect(own_server.url, reconnect_wait=0.02) as nc:
        js = nc.jetstream()
        stream = await make(js, storage=StorageType.FILE)
        await fill(js, stream, 5_000, size=200)
        consumer = await durable(stream, ack_policy=NONE)
        async with columns_of(consumer, max_messages=1_000) as source:
            await eventually(lambda: source.pending == 1_000)
            await asyncio.to_thread(own_server.kill)
            await eventually(lambda: not nc.is_connected)
            found = await collect(source, 1_000)
            assert found == list(range(1_000))
            assert not source.closed
            await asyncio.to_thread(own_server.restart)
            # SIGKILL: the server may have lost where an ack-none consumer stood and deliver again from
            # there. What it delivers is complete and in order all the same.
            again = await collect(source, 1)
            while again[-1] != 4_999:
                again += await collect(source, 1)
            assert again == list(range(again[0], 5_000))
            assert again[0] <= 1_000


async def test_a_connection_lost_for_good_raises_behind_the_rows(own_server: Server) -> None:
    async with jetspark.connect(own_server.url, reconnect=False) as nc:
        _, consumer = await make_filled(nc.jetstream(), 10, ack_policy=NONE)
        source = await columns_of(consumer).__aenter__()
        await eventually(lambda: source.pending == 10)
        await asyncio.to_thread(own_server.kill)
        await eventually(lambda: source.closed)
        assert await collect(source, 10) == list(range(10))
        with pytest.raises(ConnectionLost):
            await source.take()
