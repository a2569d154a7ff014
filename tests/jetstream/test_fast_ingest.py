"""Fast ingest on the real server: what was stored is known, whatever happens on the way."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import Expect, StreamConfig
from jetspark.errors import (
    ClusterUnavailable,
    ConnectionClosed,
    ConnectionLost,
    FastIngestBroken,
    FastIngestDisabled,
    FastIngestFailed,
    InvalidArgument,
    MaxPayloadExceeded,
    MessageTooLarge,
    NoStreamResponse,
    PermissionViolationError,
    RequestTimeout,
    WrongLastSequence,
)
from jetspark.events import CallbackFailed
from support.helpers import eventually, unique
from support.lossy_proxy import LossyProxy
from support.recorder import Recorder

if TYPE_CHECKING:
    from conftest import StartServer
    from jetspark import FastIngest, JetStream, Stream, StreamInfo
    from jetspark.models import IngestGap, StreamState
    from jetspark.server import Cluster, Server


async def make(js: JetStream, **config: Any) -> Stream:
    name = unique("FI")
    defaults = {"subjects": [f"{name}.>"], "allow_batched": True, "allow_direct": True}
    return await js.create_stream(StreamConfig(name=name, **{**defaults, **config}))


async def numbers(stream: Stream) -> list[int]:
    return [int(message.data) async for message in stream.get_msgs()]


async def pour(ingest: FastIngest, subject: str, count: int) -> None:
    """Publish so many messages whose bodies are their numbers in the batch."""
    for _ in range(count):
        await ingest.publish(subject, b"%d" % (ingest.published + 1))


def split(gaps: list[IngestGap]) -> tuple[set[int], set[int]]:
    """The numbers of messages that are certainly and that are possibly lost."""
    sure = {number for gap in gaps if gap.certain for number in range(gap.first, gap.last + 1)}
    perhaps = {number for gap in gaps if not gap.certain for number in range(gap.first, gap.last + 1)}
    return sure, perhaps


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("gap", ["fail", "ok"])
@pytest.mark.parametrize("count", [1, 2, 500, 2345])
async def test_a_batch_is_stored_in_order(js: JetStream, count: int, gap: Any, storage: str) -> None:
    stream = await make(js, storage=storage)
    await js.publish(f"{stream.name}.a", b"0")
    async with js.fast_ingest(gap=gap) as ingest:
        for number in range(1, count + 1):
            assert await ingest.publish(f"{stream.name}.{number % 3}", b"%d" % number) == number
    assert ingest.ack is not None
    assert (ingest.ack.seq, ingest.ack.count, ingest.ack.batch) == (count + 1, count, ingest.id)
    assert (ingest.published, ingest.acked, ingest.lost) == (count, count, 0)
    assert await numbers(stream) == list(range(count + 1))
    assert "done" in repr(ingest)


async def test_an_empty_block_does_nothing(nc: jetspark.Connection, js: JetStream) -> None:
    before = nc.stats.out_msgs
    async with js.fast_ingest() as ingest:
        pass
    assert ingest.ack is None
    assert nc.stats.out_msgs == before
    for closed in (ingest, js.fast_ingest()):
        with pytest.raises(ConnectionClosed, match="not open"):
            await closed.publish("a")


async def test_options_of_messages(js: JetStream) -> None:
    stream = await make(js, allow_msg_ttl=True)
    async with js.fast_ingest() as ingest:
        await ingest.publish(f"{stream.name}.a", b"1", headers={"X": "y"}, msg_id="one", ttl=60)
        await ingest.publish(f"{stream.name}.a", b"1", msg_id="one")
        await ingest.publish(f"{stream.name}.a", bytearray(b"2"), msg_id="two", expect=Expect(last_seq=1))
    assert await numbers(stream) == [1, 2]
    stored = await stream.get_msg(1)
    assert dict(stored.headers.items()) == {"X": "y", "Nats-Msg-Id": "one", "Nats-TTL": "60"}
    assert ingest.ack is not None
    assert ingest.ack.count == 3


@pytest.mark.parametrize("outstanding", [1, 2, 3])
@pytest.mark.parametrize("flow", [1, 7, 65_535])
async def test_any_flow(js: JetStream, flow: int, outstanding: int) -> None:
    stream = await make(js)
    async with js.fast_ingest(flow=flow, max_outstanding_acks=outstanding) as ingest:
        for number in range(1, 2001):
            await ingest.publish(f"{stream.name}.a", b"%d" % number)
            assert number - ingest.acked <= min(flow, 500) * outstanding
    assert await numbers(stream) == list(range(1, 2001))


async def test_many_batches_share_a_stream(js: JetStream) -> None:
    stream = await make(js)

    async def one(name: str) -> None:
        async with js.fast_ingest() as ingest:
            for number in range(3000):
                await ingest.publish(f"{stream.name}.{name}", b"%d" % number)
        assert ingest.acked == 3000

    await asyncio.gather(*(one(name) for name in "abcd"))
    for name in "abcd":
        kept = [int(message.data) async for message in stream.get_msgs(f"{stream.name}.{name}")]
        assert kept == list(range(3000))


async def test_tasks_may_share_a_batch(js: JetStream) -> None:
    stream = await make(js)
    async with js.fast_ingest(flow=3) as ingest:
        await asyncio.gather(*(pour(ingest, f"{stream.name}.{name}", 500) for name in "abcd"))
    assert (ingest.published, ingest.acked) == (2000, 2000)
    counts = (await stream.info(subjects_filter=">")).state.subjects
    assert counts == {f"{stream.name}.{name}": 500 for name in "abcd"}


async def test_leaving_by_an_exception_keeps_what_was_sent(js: JetStream) -> None:
    stream = await make(js)

    async def fail() -> None:
        async with js.fast_ingest() as ingest:
            await pour(ingest, f"{stream.name}.a", 100)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()

    async def all_there() -> bool:
        return await numbers(stream) == list(range(1, 101))

    await eventually(all_there)
    # The server's side is gone as well: a lone batch is granted more than 1 at once, one of several is not.
    async with js.fast_ingest() as ingest:
        await ingest.publish(f"{stream.name}.a", b"0")
        assert ingest._flow.flow > 1


@pytest.mark.slow
async def test_an_idle_batch_lives_on(js: JetStream) -> None:
    stream = await make(js)
    async with js.fast_ingest(ping_interval=0.5) as ingest:
        await ingest.publish(f"{stream.name}.a", b"1")
        # Longer than the ten seconds after which the server forgets a batch.
        deadline = time.monotonic() + 10.5
        await eventually(lambda: time.monotonic() > deadline, timeout=20)
        await ingest.publish(f"{stream.name}.a", b"2")
    assert await numbers(stream) == [1, 2]


# Refused at the begin


async def test_a_stream_without_the_flag(js: JetStream) -> None:
    stream = await make(js, allow_batched=False)
    ingest = await js.fast_ingest().__aenter__()
    for _ in range(2):
        with pytest.raises(FastIngestDisabled, match="allow_batched=True"):
            await ingest.publish(f"{stream.name}.a")
    # Whoever swallows it hears of it at the end.
    with pytest.raises(FastIngestDisabled):
        await ingest.__aexit__(None, None, None)
    assert await numbers(stream) == []


async def test_the_first_message_is_refused(js: JetStream) -> None:
    stream = await make(js)

    async def attempt() -> None:
        async with js.fast_ingest() as ingest:
            await ingest.publish(f"{stream.name}.a", b"1", expect=Expect(last_seq=5))
            await pour(ingest, f"{stream.name}.a", 2000)

    with pytest.raises(WrongLastSequence):
        await attempt()
    assert await numbers(stream) == []


async def test_no_stream_at_all(js: JetStream) -> None:
    stream = await make(js)
    async with js.fast_ingest() as ingest:
        with pytest.raises(NoStreamResponse):
            await ingest.publish(unique("nowhere"))
        # Nobody has the batch, so it can begin elsewhere.
        await ingest.publish(f"{stream.name}.a", b"1")
    assert await numbers(stream) == [1]


async def test_a_stream_that_does_not_ack(js: JetStream) -> None:
    stream = await make(js, no_ack=True)
    ingest = js.fast_ingest(timeout=0.3)
    await ingest.__aenter__()
    with pytest.raises(RequestTimeout, match="no_ack"):
        await ingest.publish(f"{stream.name}.a", b"1")
    with pytest.raises(RequestTimeout, match="no_ack"):
        await ingest.__aexit__(None, None, None)


# Refused on the way


async def broken(ingest: FastIngest, *calls: Any) -> FastIngestBroken:
    """Run the calls and the end of the batch; return how it broke."""
    with pytest.raises(FastIngestBroken) as info:  # noqa: PT012
        try:
            for call in calls:
                await call
        except FastIngestBroken as error:
            await ingest.__aexit__(FastIngestBroken, error, None)
            raise
        await ingest.__aexit__(None, None, None)
    assert ingest.published == info.value.published
    return info.value


@pytest.mark.parametrize("keep_on", [False, True])
@pytest.mark.parametrize(
    ("trouble", "cause"),
    [("expect", WrongLastSequence), ("size", MessageTooLarge), ("nowhere", NoStreamResponse)],
)
async def test_a_refused_message_ends_a_batch_without_gaps(
    js: JetStream, trouble: str, cause: type[Exception], keep_on: bool
) -> None:
    stream = await make(js, max_msg_size=100)
    subject = f"{stream.name}.a"
    ingest = await js.fast_ingest().__aenter__()
    await pour(ingest, subject, 9)
    options: dict[str, Any] = {
        "expect": {"subject": subject, "expect": Expect(last_seq=1)},
        "size": {"subject": subject, "data": b"0" * 200},
        "nowhere": {"subject": unique("nowhere")},
    }[trouble]
    calls = [ingest.publish(**options)]
    if keep_on:
        calls.append(pour(ingest, subject, 100_000))
    error = await broken(ingest, *calls)
    assert isinstance(error.cause, cause)
    assert error.stored == 9
    assert error.ack is not None
    assert (error.ack.count, error.ack.seq) == (9, 9)
    assert await numbers(stream) == list(range(1, 10))


@pytest.mark.parametrize("at_the_end", [False, True])
@pytest.mark.parametrize("trouble", ["expect", "size", "nowhere"])
async def test_a_batch_with_gaps_goes_on(js: JetStream, trouble: str, at_the_end: bool) -> None:
    stream = await make(js, max_msg_size=100)
    subject = f"{stream.name}.a"
    gaps: list[IngestGap] = []
    options: dict[str, Any] = {
        "expect": {"subject": subject, "expect": Expect(last_seq=1)},
        "size": {"subject": subject, "data": b"0" * 200},
        "nowhere": {"subject": unique("nowhere")},
    }[trouble]
    async with js.fast_ingest(gap="ok", on_gap=gaps.append) as ingest:
        await pour(ingest, subject, 9)
        await ingest.publish(**options)
        if not at_the_end:
            await pour(ingest, subject, 90)
    lost = {number for gap in gaps for number in range(gap.first, gap.last + 1)}
    assert lost == {10}
    assert ingest.published - len(lost) == len(await numbers(stream))
    assert 10 not in await numbers(stream)


async def test_a_window_full_of_refusals_does_not_stall(js: JetStream) -> None:
    stream = await make(js)
    gaps: list[IngestGap] = []
    async with js.fast_ingest(gap="ok", on_gap=gaps.append, flow=5, max_outstanding_acks=1) as ingest:
        await pour(ingest, f"{stream.name}.a", 5)
        for _ in range(50):
            await ingest.publish(f"{stream.name}.a", expect=Expect(last_seq=1))
        await pour(ingest, f"{stream.name}.a", 5)
    assert ingest.lost == 50
    assert [gap.first for gap in gaps] == list(range(6, 56))
    assert all(isinstance(gap.error, WrongLastSequence) for gap in gaps)
    assert await numbers(stream) == [1, 2, 3, 4, 5, 56, 57, 58, 59, 60]


async def test_a_subject_of_another_stream(js: JetStream) -> None:
    one, other = await make(js), await make(js)
    ingest = await js.fast_ingest().__aenter__()
    await pour(ingest, f"{one.name}.a", 3)
    error = await broken(ingest, ingest.publish(f"{other.name}.a", b"4"))
    # The other stream does not know the batch, its own misses a message; either may be heard first.
    assert isinstance(error.cause, FastIngestFailed | ConnectionLost)

    async def all_three() -> bool:
        return await numbers(one) == [1, 2, 3]

    # The other's refusal may come before the last of them is stored.
    await eventually(all_three)
    assert await numbers(other) == []


@pytest.mark.slow
async def test_a_deleted_stream(js: JetStream) -> None:
    stream = await make(js)
    ingest = await js.fast_ingest(ping_interval=0.2, ack_timeout=4).__aenter__()
    await pour(ingest, f"{stream.name}.a", 10)
    await stream.delete()
    error = await broken(ingest, pour(ingest, f"{stream.name}.a", 5000))
    assert isinstance(error.cause, NoStreamResponse | FastIngestFailed)


async def test_a_callback_that_raises_is_told_and_harmless(server: Server) -> None:
    recorder = Recorder()
    async with jetspark.connect(server.url, listener=recorder) as nc:
        js = nc.jetstream()
        stream = await make(js)

        def fail(gap: IngestGap) -> None:
            raise ZeroDivisionError

        async with js.fast_ingest(gap="ok", on_gap=fail) as ingest:
            await ingest.publish(f"{stream.name}.a", b"1")
            await ingest.publish(f"{stream.name}.a", expect=Expect(last_seq=7))
        assert isinstance((await recorder.wait(CallbackFailed)).error, ZeroDivisionError)
        assert ingest.lost == 1


async def test_a_gap_nobody_listens_to_is_logged(js: JetStream, caplog: pytest.LogCaptureFixture) -> None:
    stream = await make(js)
    async with js.fast_ingest(gap="ok") as ingest:
        await ingest.publish(f"{stream.name}.a", b"1")
        await ingest.publish(f"{stream.name}.a", expect=Expect(last_seq=7))
    assert any(ingest.id in record.getMessage() for record in caplog.records)


async def test_too_large_for_the_server_is_no_gap(nc: jetspark.Connection, js: JetStream) -> None:
    stream = await make(js)
    async with js.fast_ingest() as ingest:
        for number in (1, 2):
            with pytest.raises(MaxPayloadExceeded):
                await ingest.publish(f"{stream.name}.a", b"x" * (nc.max_payload + 1))
            await ingest.publish(f"{stream.name}.a", b"%d" % number)
    assert await numbers(stream) == [1, 2]


async def test_a_subject_that_is_not_permitted(start_server: StartServer) -> None:
    server = start_server(
        config='authorization { users: [{user: a, password: a, permissions: {publish: {deny: "P.no"}}}] }'
    )
    async with jetspark.connect(server.url, user="a", password="a") as nc:
        js = nc.jetstream()
        await js.create_stream(StreamConfig(name="P", subjects=["P.>"], allow_batched=True))
        ingest = await js.fast_ingest().__aenter__()
        with pytest.raises(PermissionViolationError):
            await ingest.publish("P.no")
        with pytest.raises(PermissionViolationError):
            await ingest.__aexit__(None, None, None)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"gap": "maybe"}, "gap"),
        ({"flow": 0}, "flow"),
        ({"flow": 65_536}, "flow"),
        ({"flow": True}, "flow"),
        ({"max_outstanding_acks": 0}, "max_outstanding_acks"),
        ({"max_outstanding_acks": 4}, "max_outstanding_acks"),
        ({"ping_interval": 0}, "ping_interval"),
        ({"ack_timeout": -1}, "ack_timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"on_gap": 5}, "on_gap"),
    ],
)
async def test_options_are_checked(js: JetStream, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as info:
        js.fast_ingest(**options)
    assert info.value.field == field


# The connection and the server break


async def test_closing_the_connection(server: Server) -> None:
    async with jetspark.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await make(js)
        ingest = await js.fast_ingest().__aenter__()
        await pour(ingest, f"{stream.name}.a", 10)
        await nc.close()
        error = await broken(ingest, ingest.publish(f"{stream.name}.a"))
        assert isinstance(error.cause, ConnectionClosed)


@pytest.mark.parametrize("gap", ["fail", "ok"])
async def test_reconnecting_in_full_flight(server: Server, gap: Any) -> None:
    async with jetspark.connect(server.url, reconnect_wait=0.01) as nc:
        js = nc.jetstream()
        stream = await make(js)
        gaps: list[IngestGap] = []
        ingest = await js.fast_ingest(gap=gap, on_gap=gaps.append, ping_interval=0.2).__aenter__()
        error: FastIngestBroken | None = None
        try:
            for _ in range(5):
                pouring = asyncio.create_task(pour(ingest, f"{stream.name}.a", 4000))
                wanted = ingest.published + 1500
                await eventually(
                    lambda wanted=wanted, task=pouring: ingest.published > wanted or task.done()  # type: ignore[misc]
                )
                await nc.force_reconnect()
                await pouring
            await ingest.__aexit__(None, None, None)
        except FastIngestBroken as caught:
            error = caught
            await ingest.__aexit__(FastIngestBroken, caught, None)
        stored = await numbers(stream)
        if gap == "fail":
            assert stored == list(range(1, len(stored) + 1))
            if error is not None:
                assert error.stored <= len(stored)
                assert error.ack is None or error.stored == len(stored)
            else:
                assert len(stored) == ingest.published == 20_000
        else:
            assert error is None
            certain, doubtful = split(gaps)
            missing = set(range(1, 20_001)) - set(stored)
            assert certain <= missing <= certain | doubtful
            assert ingest.lost == len(certain)
            assert len(stored) == len(set(stored))


async def lose_some(proxy: LossyProxy, ingest: FastIngest) -> None:
    """Let messages get lost, as many as the flow allows, and break the connection."""
    proxy.swallow_up = True
    begun = proxy.swallowed
    await eventually(lambda: proxy.swallowed > begun + 1000)
    await proxy.cut()


async def test_lost_messages_end_a_batch_without_gaps(server: Server) -> None:
    async with LossyProxy(server) as proxy, jetspark.connect(proxy.url, reconnect_wait=0.01) as nc:
        js = nc.jetstream()
        stream = await make(js)
        ingest = await js.fast_ingest(ping_interval=0.2).__aenter__()
        pouring = asyncio.create_task(pour(ingest, f"{stream.name}.a", 1_000_000))
        await eventually(lambda: ingest.acked > 3000)
        await lose_some(proxy, ingest)
        error = await broken(ingest, pouring)
        assert "did not reach the stream" in str(error)
        assert error.ack is not None
        stored = await numbers(stream)
        assert error.stored == error.ack.count == len(stored) < error.published
        assert stored == list(range(1, len(stored) + 1))


@pytest.mark.slow
async def test_lost_messages_are_reported_by_a_batch_with_gaps(server: Server) -> None:
    async with LossyProxy(server) as proxy, jetspark.connect(proxy.url, reconnect_wait=0.01) as nc:
        js = nc.jetstream()
        stream = await make(js)
        gaps: list[IngestGap] = []
        async with js.fast_ingest(gap="ok", on_gap=gaps.append, ping_interval=0.2) as ingest:
            for _ in range(3):
                pouring = asyncio.create_task(pour(ingest, f"{stream.name}.a", 10_000))
                await eventually(lambda acked=ingest.acked: ingest.acked > acked + 3000)  # type: ignore[misc]
                await lose_some(proxy, ingest)
                await pouring
        sure, perhaps = split(gaps)
        assert perhaps == set()
        assert set(range(1, 30_001)) - set(await numbers(stream)) == sure
        assert ingest.lost == len(sure) > 0


async def test_a_report_that_gets_lost_leaves_doubt_not_silence(server: Server) -> None:
    async with LossyProxy(server) as proxy, jetspark.connect(proxy.url, reconnect_wait=0.01) as nc:
        js = nc.jetstream()
        stream = await make(js)
        gaps: list[IngestGap] = []
        async with js.fast_ingest(gap="ok", on_gap=gaps.append, ping_interval=0.2) as ingest:
            pouring = asyncio.create_task(pour(ingest, f"{stream.name}.a", 10_000))
            await eventually(lambda: ingest.acked > 3000)
            before = nc.stats.reconnects
            await lose_some(proxy, ingest)
            # The new link works until the ping is through; its answers do not come back.
            await eventually(lambda: nc.stats.reconnects > before)
            proxy.swallow_down = True
            await eventually(lambda begun=proxy.swallowed: proxy.swallowed > begun)  # type: ignore[misc]
            await proxy.cut()
            await pouring
        sure, perhaps = split(gaps)
        missing = set(range(1, 10_001)) - set(await numbers(stream))
        assert missing
        assert sure <= missing <= sure | perhaps


@pytest.mark.parametrize("gap", ["fail", "ok"])
async def test_a_killed_server_is_never_silent(own_server: Server, gap: Any) -> None:
    async with jetspark.connect(own_server.url, reconnect_wait=0.01, reconnect_wait_max=0.05) as nc:
        js = nc.jetstream()
        stream = await make(js)
        ingest = await js.fast_ingest(gap=gap, ping_interval=0.2).__aenter__()
        pouring = asyncio.create_task(pour(ingest, f"{stream.name}.a", 1_000_000))
        await eventually(lambda: ingest.acked > 3000)
        own_server.kill()
        own_server.start()
        error = await broken(ingest, pouring)
        assert isinstance(error.cause, FastIngestFailed)
        assert error.ack is None
        stored = await numbers(stream)
        # What was acked is there, and nothing has a hole.
        assert 3000 < error.stored <= len(stored)
        assert stored == list(range(1, len(stored) + 1))


# The new leader does not answer yet, or not for itself.
NOT_YET = (RequestTimeout, ClusterUnavailable)


async def body_at(nc: jetspark.Connection, stream: Stream, seq: int) -> bytes | None:
    try:
        return (await (await nc.jetstream(timeout=1).get_stream(stream.name)).get_msg(seq)).data
    except NOT_YET:
        return None


async def state_of(nc: jetspark.Connection, stream: Stream) -> StreamState:
    async def asked() -> StreamInfo | None:
        try:
            return await (await nc.jetstream(timeout=1).get_stream(stream.name)).info()
        except NOT_YET:
            return None

    info = await eventually(asked, timeout=20)
    assert info is not None
    return info.state


async def known(js: JetStream, stream: Stream) -> None:
    """Until the node that we are connected to knows the way to a new stream; stores nothing."""
    with pytest.raises(WrongLastSequence):
        await js.publish(f"{stream.name}.a", expect=Expect(last_seq=999), retries=40)


async def step_down(nc: jetspark.Connection, stream: Stream) -> None:
    answer = await nc.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{stream.name}")
    assert b'"success":true' in answer.data


@pytest.mark.parametrize("gap", ["fail", "ok"])
async def test_a_new_leader(cluster: Cluster, gap: Any) -> None:
    async with jetspark.connect(cluster.urls) as nc:
        js = nc.jetstream(timeout=10)
        stream = await make(js, num_replicas=3, allow_direct=False)
        await known(js, stream)
        gaps: list[IngestGap] = []
        ingest = await js.fast_ingest(gap=gap, on_gap=gaps.append, ping_interval=0.3).__aenter__()
        error: FastIngestBroken | None = None
        pouring = asyncio.create_task(pour(ingest, f"{stream.name}.a", 30_000))
        await eventually(lambda: ingest.acked > 3000, timeout=20)
        await step_down(nc, stream)
        try:
            await pouring
            await ingest.__aexit__(None, None, None)
        except FastIngestBroken as caught:
            error = caught
            await ingest.__aexit__(FastIngestBroken, caught, None)
        state = await state_of(nc, stream)
        count = state.messages
        if gap == "ok":
            assert error is None
            # What the old leader had taken may be stored although the new one has called it missing.
            assert 30_000 - len(split(gaps)[0]) <= count <= 30_000
        elif error is None:
            assert count == 30_000
        else:
            assert error.stored <= count <= error.published
        if gap == "fail":
            # Its number says that nothing before it is missing.
            assert await eventually(lambda: body_at(nc, stream, state.last_seq), timeout=20) == b"%d" % count


async def test_the_leader_is_killed(own_cluster: Cluster) -> None:
    async with jetspark.connect(own_cluster.urls, reconnect_wait=0.01, ping_interval=1) as nc:
        js = nc.jetstream(timeout=10)
        stream = await make(js, num_replicas=3, allow_direct=False)
        await known(js, stream)
        gaps: list[IngestGap] = []
        async with js.fast_ingest(gap="ok", on_gap=gaps.append, ping_interval=0.3) as ingest:
            pouring = asyncio.create_task(pour(ingest, f"{stream.name}.a", 20_000))
            await eventually(lambda: ingest.acked > 3000, timeout=20)
            leader = own_cluster.leader_of(stream.name)
            assert leader is not None
            leader.kill()
            await pouring
        certain, doubtful = split(gaps)
        missing = 20_000 - (await state_of(nc, stream)).messages
        # What the leader had taken may be stored although the next one has called it missing.
        assert 0 <= missing <= len(certain | doubtful)
