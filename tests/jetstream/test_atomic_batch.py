"""Atomic batches on the real server: all or nothing, in every way a batch can end."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import AtomicBatch, Expect, PubAck, StreamConfig
from jetspark.errors import (
    AtomicBatchDuplicate,
    AtomicBatchFailed,
    AtomicBatchIncomplete,
    AtomicPublishDisabled,
    ConnectionClosed,
    ConnectionLost,
    InvalidArgument,
    MaxPayloadExceeded,
    MessageTooLarge,
    NoStreamResponse,
    PermissionViolationError,
    RequestTimeout,
    TooManyRequests,
    WrongLastSequence,
)
from support.frame_proxy import FrameProxy
from support.helpers import eventually, unique
from support.lossy_proxy import LossyProxy

if TYPE_CHECKING:
    from conftest import StartServer
    from jetspark import JetStream, Stream
    from jetspark.server import Cluster, Server


async def make(js: JetStream, **config: Any) -> Stream:
    name = unique("AB")
    return await js.create_stream(
        StreamConfig(name=name, subjects=[f"{name}.>"], **{"allow_atomic": True, **config})
    )


async def send(js: JetStream, *messages: tuple[str, dict[str, Any]], **options: Any) -> AtomicBatch:
    """A batch of (subject, options) from its begin to its commit."""
    async with js.atomic_batch(**options) as batch:
        for subject, extra in messages:
            await batch.publish(subject, **extra)
    return batch


async def bodies(stream: Stream) -> list[bytes]:
    return [message.data async for message in stream.get_msgs()]


async def count(stream: Stream) -> int:
    return (await stream.info()).state.messages


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("hold", [0, 262_144])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
async def test_a_batch_is_stored_in_order(js: JetStream, size: int, hold: int, storage: str) -> None:
    stream = await make(js, storage=storage, allow_direct=True)
    await js.publish(f"{stream.name}.before")
    async with js.atomic_batch(hold=hold) as batch:
        for number in range(size):
            await batch.publish(f"{stream.name}.{number % 7}", b"%d" % number)
            if size < 10:
                assert await count(stream) == 1
    assert isinstance(batch.ack, PubAck)
    assert (batch.ack.seq, batch.ack.count, batch.ack.batch) == (size + 1, size, batch.id)
    assert batch.count == size
    assert await bodies(stream) == [b"", *(b"%d" % number for number in range(size))]


async def test_commit_by_hand(js: JetStream) -> None:
    stream = await make(js)
    async with js.atomic_batch() as batch:
        await batch.publish(f"{stream.name}.a", b"1")
        await batch.publish(f"{stream.name}.b", b"2", headers={"X": "y"}, msg_id="m2")
        assert batch.ack is None
        ack = await batch.commit()
        with pytest.raises(ConnectionClosed, match="committed"):
            await batch.publish(f"{stream.name}.c")
    assert batch.ack is ack
    stored = await stream.get_msg(2)
    assert stored.headers["X"] == "y"
    assert stored.headers["Nats-Msg-Id"] == "m2"


async def test_an_empty_block_does_nothing(js: JetStream) -> None:
    async with js.atomic_batch() as batch:
        pass
    assert batch.ack is None
    with pytest.raises(InvalidArgument, match="no message to commit"):
        await js.atomic_batch().commit()


@pytest.mark.parametrize("hold", [0, 262_144])
async def test_an_exception_in_the_block_stores_nothing(js: JetStream, hold: int) -> None:
    stream = await make(js)
    batch = js.atomic_batch(hold=hold)

    async def fail() -> None:
        async with batch:
            for number in range(10):
                await batch.publish(f"{stream.name}.a", b"%d" % number)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert batch.ack is None
    assert "discarded" in repr(batch)
    await js.publish(f"{stream.name}.after", b"after")
    assert await bodies(stream) == [b"after"]


async def test_discard_frees_the_servers_place_at_once(js: JetStream) -> None:
    # A stream has room for 50 open batches; were they not freed, the 51st would be refused.
    stream = await make(js)
    for _ in range(60):
        batch = js.atomic_batch(hold=0)
        await batch.publish(f"{stream.name}.a")
        await batch.publish(f"{stream.name}.a")
        await batch.discard()
        await batch.discard()
        with pytest.raises(ConnectionClosed, match="discarded"):
            await batch.commit()
    assert await count(stream) == 0


async def test_too_many_open_batches(js: JetStream) -> None:
    stream = await make(js)
    opened: list[AtomicBatch] = []
    for _ in range(50):
        batch = js.atomic_batch(hold=0)
        await batch.publish(f"{stream.name}.a")
        await batch.publish(f"{stream.name}.a")
        opened.append(batch)
    one_more = js.atomic_batch(hold=0)
    await one_more.publish(f"{stream.name}.a")
    with pytest.raises(TooManyRequests):
        await one_more.publish(f"{stream.name}.a")
    with pytest.raises(TooManyRequests):
        await one_more.commit()
    for batch in opened:
        await batch.commit()
    assert await count(stream) == 100


async def test_a_stream_without_the_flag(js: JetStream) -> None:
    stream = await make(js, allow_atomic=False)
    for size in (1, 2, 5):
        with pytest.raises(AtomicPublishDisabled, match="allow_atomic=True"):
            await send(js, *[(f"{stream.name}.a", {})] * size)
    assert await count(stream) == 0


async def test_expectations_are_judged_at_the_commit(js: JetStream) -> None:
    stream = await make(js)
    first = await js.publish(f"{stream.name}.a")
    async with js.atomic_batch() as batch:
        await batch.publish(f"{stream.name}.a", expect=Expect(last_seq=1, last_subject_seq=first.seq))
        await batch.publish(f"{stream.name}.b", expect=Expect(last_subject_seq=0))
    assert await count(stream) == 3
    with pytest.raises(WrongLastSequence) as info:
        await send(js, (f"{stream.name}.c", {}), (f"{stream.name}.b", {"expect": Expect(last_subject_seq=1)}))
    assert info.value.err_code == 10071
    assert await count(stream) == 3


async def test_duplicates_refuse_the_whole_batch(js: JetStream) -> None:
    stream = await make(js)
    await send(js, (f"{stream.name}.a", {"msg_id": "1"}), (f"{stream.name}.b", {"msg_id": "2"}))
    with pytest.raises(AtomicBatchDuplicate):
        await send(js, (f"{stream.name}.c", {}), (f"{stream.name}.b", {"msg_id": "2"}))
    assert await count(stream) == 2


async def test_the_error_names_the_message_that_was_refused(js: JetStream) -> None:
    stream = await make(js, max_msg_size=1000)
    sizes = (("a", 1), ("b", 1), ("big", 2000), ("c", 1), ("d", 1))
    messages = [(f"{stream.name}.{subject}", {"data": b"x" * size}) for subject, size in sizes]
    with pytest.raises(MessageTooLarge, match=r"message 3 of the batch, '.*\.big'"):
        await send(js, *messages, hold=0)
    assert await count(stream) == 0


async def test_a_subject_that_no_stream_captures(js: JetStream) -> None:
    stream = await make(js)
    nowhere = unique("nowhere")
    for subjects in ((nowhere,), (nowhere, nowhere), (f"{stream.name}.a", nowhere, f"{stream.name}.a")):
        with pytest.raises(NoStreamResponse, match=nowhere):
            await send(js, *((subject, {}) for subject in subjects))
    assert await count(stream) == 0


@pytest.mark.parametrize("first", ["any", "commit", "other"])
async def test_a_subject_of_another_stream(server: Server, js: JetStream, first: str) -> None:
    """Both streams refuse their part, in any order; the error names the message that went elsewhere."""
    one, other = await make(js), await make(js)
    async with FrameProxy(server) as proxy, jetspark.connect(proxy.url) as nc:
        late = {"any": b"", "commit": b".2 ", "other": b".3 "}[first]

        def hold(frame: bytes) -> bool:
            line = frame.partition(b"\r\n")[0]
            return frame.startswith(b"MSG") and bool(late) and late in line

        proxy.hold_down = hold
        with pytest.raises(AtomicBatchIncomplete, match=f"message 2.*'{other.name}.a'"):
            await send(nc.jetstream(), (f"{one.name}.a", {}), (f"{other.name}.a", {}), (f"{one.name}.a", {}))
    assert await count(one) == await count(other) == 0


async def test_the_servers_own_limit(js: JetStream) -> None:
    stream = await make(js)
    with pytest.raises(AtomicBatchFailed, match="too large: 1000") as info:
        await send(js, *[(f"{stream.name}.a", {})] * 1001, max_messages=1001)
    assert info.value.err_code == 10199
    assert await count(stream) == 0


@pytest.mark.slow
async def test_an_idle_batch_is_abandoned_and_says_so(start_server: StartServer) -> None:
    server = start_server()
    async with jetspark.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await make(js)
        advisories = await nc.subscribe(f"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.{stream.name}")
        held = js.atomic_batch()
        await held.publish(f"{stream.name}.held")
        await held.publish(f"{stream.name}.held")
        batch = js.atomic_batch(hold=0)
        begun = time.monotonic()
        await batch.publish(f"{stream.name}.a")
        await batch.publish(f"{stream.name}.a")
        assert b'"timeout"' in (await advisories.next(timeout=60)).data
        assert time.monotonic() - begun > 9
        with pytest.raises(AtomicBatchIncomplete, match=r"idle for \d+\.\ds .* nothing of it is stored"):
            await batch.commit()
        # What was held back here has not expired.
        assert (await held.commit()).count == 2
        assert await count(stream) == 2


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"hold": -1}, "hold"),
        ({"hold": True}, "hold"),
        ({"max_messages": 0}, "max_messages"),
        ({"timeout": 0}, "timeout"),
    ],
)
async def test_options_are_checked(js: JetStream, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as info:
        js.atomic_batch(**options)
    assert info.value.field == field


async def test_rules_are_checked_before_anything_is_sent(nc: jetspark.Connection, js: JetStream) -> None:
    subject = unique("unsent")
    batch = js.atomic_batch()
    await batch.publish(subject, expect=Expect(last_seq=0), msg_id="1")
    before = nc.stats.out_msgs
    refused: list[tuple[dict[str, Any], str]] = [
        ({"expect": Expect(last_seq=1)}, "expect.last_seq"),
        ({"expect": Expect(last_msg_id="x")}, "expect.last_msg_id"),
        ({"headers": {"Nats-Expected-Last-Msg-Id": "x"}}, "expect.last_msg_id"),
        ({"headers": {"nats-batch-id": "x"}}, "headers"),
        ({"expect": Expect(last_subject_seq=1)}, "expect.last_subject_seq"),
        (
            {"expect": Expect(last_subject_seq=1, last_subject_seq_subject=subject), "subject": "b"},
            "expect.last_subject_seq",
        ),
        ({"msg_id": "1"}, "msg_id"),
        ({"subject": "a.*"}, "subject"),
        ({"subject": ""}, "subject"),
        ({"data": "text"}, "data"),
    ]
    for options, field in refused:
        with pytest.raises(InvalidArgument) as info:
            await batch.publish(**{"subject": subject, **options})
        assert info.value.field == field
    with pytest.raises(MaxPayloadExceeded):
        await batch.publish(subject, b"x" * nc.max_payload)
    assert batch.count == 1
    small = js.atomic_batch(max_messages=2)
    await small.publish(subject)
    await small.publish(subject)
    with pytest.raises(InvalidArgument, match="max_messages=2"):
        await small.publish(subject)
    assert nc.stats.out_msgs == before


async def test_the_largest_message_may_be_the_last(nc: jetspark.Connection, js: JetStream) -> None:
    # The commit header comes on top; a message that fits only without it is refused at once.
    stream = await make(js)
    async with js.atomic_batch() as batch:
        with pytest.raises(MaxPayloadExceeded) as info:
            await batch.publish(f"{stream.name}.a", b"x" * nc.max_payload)
        room = nc.max_payload - (info.value.size - nc.max_payload)
        await batch.publish(f"{stream.name}.a", bytearray(room))
        await batch.publish(f"{stream.name}.b", b"x" * room)
    assert batch.ack is not None
    assert batch.ack.count == 2


@pytest.mark.slow
async def test_more_bytes_than_the_server_would_queue(start_server: StartServer) -> None:
    server = start_server()
    async with jetspark.connect(server.url) as nc:
        js = nc.jetstream()
        stream = await make(js, storage="memory")
        async with js.atomic_batch(timeout=30) as batch:
            for _ in range(200):
                await batch.publish(f"{stream.name}.a", b"x" * 1_000_000)
        assert await count(stream) == 200


async def test_tasks_may_share_a_batch(js: JetStream) -> None:
    stream = await make(js)

    async def part(name: str, batch: AtomicBatch) -> None:
        for number in range(50):
            await batch.publish(f"{stream.name}.{name}", b"%d" % number)
            await asyncio.sleep(0)

    async with js.atomic_batch(hold=0) as batch:
        await asyncio.gather(*(part(name, batch) for name in "abcd"))
    assert batch.ack is not None
    assert batch.ack.count == 200
    for name in "abcd":
        kept = [message.data async for message in stream.get_msgs(f"{stream.name}.{name}")]
        assert kept == [b"%d" % number for number in range(50)]


async def test_a_stream_that_does_not_ack(js: JetStream) -> None:
    stream = await make(js, no_ack=True)
    with pytest.raises(RequestTimeout, match="no_ack"):
        await send(js, *[(f"{stream.name}.a", {})] * 2, timeout=0.3)
    assert await count(stream) == 0


async def test_a_subject_that_is_not_permitted(start_server: StartServer) -> None:
    server = start_server(
        config='authorization { users: [{user: a, password: a, permissions: {publish: {deny: "P.no"}}}] }'
    )
    async with jetspark.connect(server.url, user="a", password="a") as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name="P", subjects=["P.>"], allow_atomic=True))
        with pytest.raises(PermissionViolationError):
            await send(js, ("P.a", {}), ("P.no", {}), ("P.b", {}))
        assert await count(stream) == 0


@pytest.mark.parametrize("cut_off", ["kill", "reconnect"])
async def test_a_lost_connection_stores_nothing(own_server: Server, cut_off: str) -> None:
    async with jetspark.connect(own_server.url, reconnect_wait=0.01) as nc:
        js = nc.jetstream()
        stream = await make(js)
        batch = js.atomic_batch(hold=0)
        for _ in range(20):
            await batch.publish(f"{stream.name}.a")
        await nc.flush()
        if cut_off == "kill":
            own_server.kill()
            own_server.start()
            await eventually(lambda: nc.stats.reconnects, timeout=10)
        else:
            await nc.force_reconnect()
        for call in (batch.publish(f"{stream.name}.a"), batch.commit()):
            with pytest.raises(ConnectionLost, match="nothing of it is stored"):
                await call
        await batch.discard()
        await eventually(lambda: nc.is_connected, timeout=10)
        await js.publish(f"{stream.name}.after")
        assert await count(stream) == 1


async def test_messages_that_get_lost_on_the_way_store_nothing(server: Server) -> None:
    async with LossyProxy(server) as proxy, jetspark.connect(proxy.url, reconnect_wait=0.01) as nc:
        js = nc.jetstream()
        stream = await make(js)
        batch = js.atomic_batch(hold=0)
        for _ in range(10):
            await batch.publish(f"{stream.name}.a")
        proxy.swallow_up = True
        committing = asyncio.create_task(batch.commit())
        await eventually(lambda: proxy.swallowed)
        await proxy.cut()
        # The commit was on its way: we can't know that it was swallowed.
        with pytest.raises(ConnectionLost, match="as a whole or not at all"):
            await committing
        assert await count(stream) == 0


async def test_an_ack_that_gets_lost_on_the_way_leaves_a_whole_batch(server: Server) -> None:
    async with LossyProxy(server) as proxy, jetspark.connect(proxy.url, reconnect_wait=0.01) as nc:
        js = nc.jetstream()
        stream = await make(js)
        batch = js.atomic_batch(hold=0)
        for number in range(10):
            await batch.publish(f"{stream.name}.a", msg_id=str(number))
        await nc.flush()
        proxy.swallow_down = True
        committing = asyncio.create_task(batch.commit())
        await eventually(lambda: proxy.swallowed)
        await proxy.cut()
        with pytest.raises(ConnectionLost, match="as a whole or not at all"):
            await committing
        assert await count(stream) == 10
        # Who tries again with the same ids learns that it had succeeded.
        with pytest.raises(AtomicBatchDuplicate):
            await send(js, *((f"{stream.name}.a", {"msg_id": str(number)}) for number in range(10)))


async def test_killed_at_any_moment_a_batch_is_whole_or_absent(own_server: Server) -> None:
    # Batches one after the other while the server is killed again and again; each has its own subject.
    async with jetspark.connect(own_server.url, reconnect_wait=0.01, reconnect_wait_max=0.05) as nc:
        js = nc.jetstream(timeout=3)
        stream = await make(js, allow_direct=True)
        fates: dict[str, str] = {}
        stop = asyncio.Event()

        async def publish() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                subject = f"{stream.name}.{number}"
                try:
                    async with js.atomic_batch(hold=0) as batch:
                        for item in range(100):
                            await batch.publish(subject, b"%d" % item)
                    fates[subject] = "stored"
                except (ConnectionLost, RequestTimeout, NoStreamResponse, AtomicBatchFailed) as error:
                    fates[subject] = "unknown" if "as a whole or not at all" in str(error) else "absent"

        task = asyncio.create_task(publish())
        for cycle in range(3):
            wanted = len(fates) + 3 + cycle
            await eventually(lambda wanted=wanted: len(fates) >= wanted, timeout=20)  # type: ignore[misc]
            own_server.kill()
            own_server.start()
        stop.set()
        await task

        async def look() -> Any:
            try:
                return await stream.info(subjects_filter=">")
            except ConnectionLost:
                return None  # that of the server that was killed last

        counts = (await eventually(look)).state.subjects or {}
        for subject, fate in fates.items():
            expected = {"stored": {100}, "absent": {0}, "unknown": {0, 100}}[fate]
            assert counts.get(subject, 0) in expected, (subject, fate)
        assert "stored" in fates.values()
        assert set(counts) <= set(fates)


async def answers(js: jetspark.JetStream, subject: str) -> bool:
    """Whether the leader of a new stream is known to the node that we are connected to; stores nothing."""
    try:
        await js.publish(subject, expect=Expect(last_seq=999))
    except WrongLastSequence:
        return True
    except NoStreamResponse:
        return False
    raise AssertionError("stored")


async def test_replicated(cluster: Cluster) -> None:
    async with jetspark.connect(cluster.urls) as nc:
        js = nc.jetstream()
        stream = await make(js, num_replicas=3)
        await eventually(lambda: answers(js, f"{stream.name}.0"), 20)
        async with js.atomic_batch() as batch:
            for number in range(1000):
                await batch.publish(f"{stream.name}.{number % 5}", b"%d" % number)
        assert batch.ack is not None
        assert (batch.ack.seq, batch.ack.count) == (1000, 1000)
        with pytest.raises(WrongLastSequence):
            await send(js, (f"{stream.name}.1", {"expect": Expect(last_seq=999)}), (f"{stream.name}.2", {}))
        assert await count(stream) == 1000
