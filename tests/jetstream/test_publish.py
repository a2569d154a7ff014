"""js.publish: acks, duplicates, expectations, TTL, roll-ups, retries, and what is never sent twice."""

from __future__ import annotations

import asyncio
import time
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import DiscardPolicy, Expect, StorageType, Stream, StreamConfig
from jetspark.errors import (
    ApiError,
    ConnectionLost,
    InvalidArgument,
    InvalidCounter,
    InvalidMessageTTL,
    MaxPayloadExceeded,
    MessageNotFound,
    MessageTooLarge,
    NoRespondersError,
    NoStreamResponse,
    PermissionViolationError,
    RequestTimeout,
    StoreFailed,
    WrongLastMessageId,
    WrongLastSequence,
    WrongStream,
)
from support.helpers import eventually, unique

if TYPE_CHECKING:
    from jetspark.server import Server


async def make(js: jetspark.JetStream, **options: Any) -> Stream:
    name = unique()
    options.setdefault("subjects", [f"{name}.>"])
    options.setdefault("storage", StorageType.MEMORY)
    return await js.create_stream(StreamConfig(name=name, **options))


async def test_the_ack_names_stream_and_sequence(js: jetspark.JetStream) -> None:
    stream = await make(js)
    first = await js.publish(f"{stream.name}.a", b"one")
    second = await js.publish(f"{stream.name}.a", headers={"A": "b"})
    assert (first.stream, first.seq, first.duplicate, first.domain) == (stream.name, 1, False, None)
    assert second.seq == 2
    stored = await stream.get_msg(2)
    assert (stored.data, stored.headers.items()) == (b"", [("A", "b")])


@pytest.mark.parametrize("name", ["error", "an-error", '"error"'])
async def test_a_stream_may_be_named_error(js: jetspark.JetStream, name: str) -> None:
    """The quick look for an error in the ack must not take the stream's name for one."""
    subject = unique()
    await js.create_or_update_stream(StreamConfig(name=name, subjects=[subject], storage=StorageType.MEMORY))
    try:
        assert (await js.publish(subject)).stream == name
    finally:
        await js.delete_stream(name)


async def test_a_second_message_of_an_id_is_a_duplicate(js: jetspark.JetStream) -> None:
    stream = await make(js)
    first = await js.publish(f"{stream.name}.a", b"1", msg_id="x")
    again = await js.publish(f"{stream.name}.a", b"2", msg_id="x")
    other = await js.publish(f"{stream.name}.a", b"3", msg_id="y")
    assert (first.seq, first.duplicate) == (1, False)
    assert (again.seq, again.duplicate) == (1, True)
    assert (other.seq, other.duplicate) == (2, False)
    assert (await stream.info()).state.messages == 2


async def test_after_the_duplicate_window_it_is_stored_again(js: jetspark.JetStream) -> None:
    stream = await make(js, duplicate_window=0.1)
    await js.publish(f"{stream.name}.a", msg_id="x")

    async def stored_again() -> bool:
        return not (await js.publish(f"{stream.name}.a", msg_id="x")).duplicate

    await eventually(stored_again)
    assert (await stream.info()).state.messages == 2


async def test_the_callers_headers_are_not_changed(js: jetspark.JetStream) -> None:
    stream = await make(js)
    headers = jetspark.Headers({"A": "b"})
    await js.publish(f"{stream.name}.a", headers=headers, msg_id="x", expect=Expect(last_seq=0))
    assert headers.items() == [("A", "b")]
    assert (await stream.get_msg(1)).headers["Nats-Msg-Id"] == "x"


class TestExpect:
    """The stream holds two messages: a with id 1, b with id 2."""

    @pytest.mark.parametrize(
        ("expect", "error"),
        [
            ({"stream": "{}"}, None),
            ({"stream": "other"}, WrongStream),
            ({"last_seq": 2}, None),
            ({"last_seq": 1}, WrongLastSequence),
            ({"last_seq": 0}, WrongLastSequence),
            ({"last_seq": 3}, WrongLastSequence),
            ({"last_subject_seq": 1}, None),
            ({"last_subject_seq": 2}, WrongLastSequence),
            ({"last_subject_seq": 0}, WrongLastSequence),
            ({"last_subject_seq": 2, "last_subject_seq_subject": "{}.b"}, None),
            ({"last_subject_seq": 2, "last_subject_seq_subject": "{}.*"}, None),
            ({"last_subject_seq": 0, "last_subject_seq_subject": "{}.new"}, None),
            ({"last_subject_seq": 1, "last_subject_seq_subject": "{}.b"}, WrongLastSequence),
            ({"last_msg_id": "2"}, None),
            ({"last_msg_id": "1"}, WrongLastMessageId),
            ({"stream": "{}", "last_seq": 2, "last_subject_seq": 1, "last_msg_id": "2"}, None),
        ],
    )
    async def test_is_met_or_nothing_is_stored(
        self, js: jetspark.JetStream, expect: dict[str, Any], error: type[ApiError] | None
    ) -> None:
        stream = await make(js)
        await js.publish(f"{stream.name}.a", msg_id="1")
        await js.publish(f"{stream.name}.b", msg_id="2")
        wanted = {
            field: value.format(stream.name) if isinstance(value, str) else value
            for field, value in expect.items()
        }
        if error is None:
            assert (await js.publish(f"{stream.name}.a", expect=Expect(**wanted))).seq == 3
            return
        with pytest.raises(error):
            await js.publish(f"{stream.name}.a", expect=Expect(**wanted))
        assert (await stream.info()).state.last_seq == 2

    async def test_the_first_message_of_a_subject_and_of_a_stream(self, js: jetspark.JetStream) -> None:
        stream = await make(js)
        await js.publish(f"{stream.name}.a", expect=Expect(last_seq=0))
        await js.publish(f"{stream.name}.b", expect=Expect(last_subject_seq=0))
        assert (await stream.info()).state.messages == 2

    async def test_the_error_tells_the_actual_sequence(self, js: jetspark.JetStream) -> None:
        stream = await make(js)
        for _ in range(3):
            await js.publish(f"{stream.name}.a")
        with pytest.raises(WrongLastSequence) as caught:
            await js.publish(f"{stream.name}.a", expect=Expect(last_seq=1))
        assert caught.value.last_sequence == 3
        assert (caught.value.code, caught.value.err_code) == (400, 10071)

    @pytest.mark.parametrize(
        ("values", "field"),
        [
            ({"stream": "a.b"}, "expect.stream"),
            ({"stream": ""}, "expect.stream"),
            ({"last_seq": -1}, "expect.last_seq"),
            ({"last_seq": True}, "expect.last_seq"),
            ({"last_seq": "1"}, "expect.last_seq"),
            ({"last_subject_seq": -1}, "expect.last_subject_seq"),
            ({"last_subject_seq_subject": "a"}, "expect.last_subject_seq_subject"),
            ({"last_subject_seq": 1, "last_subject_seq_subject": "a b"}, "expect.last_subject_seq_subject"),
        ],
    )
    def test_refuses_what_makes_no_sense(self, values: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidArgument) as caught:
            Expect(**values)
        assert caught.value.field == field


class TestTTL:
    @pytest.mark.slow
    async def test_the_message_expires(self, js: jetspark.JetStream) -> None:
        stream = await make(js, allow_msg_ttl=True)
        await js.publish(f"{stream.name}.a", ttl=3)
        await js.publish(f"{stream.name}.a", ttl="1h")
        await js.publish(f"{stream.name}.a", ttl="never")
        stored = [await stream.get_msg(seq) for seq in (1, 2, 3)]
        assert [message.headers["Nats-TTL"] for message in stored] == ["3", "1h", "never"]
        await eventually(lambda: _count(stream, 2))
        with pytest.raises(MessageNotFound):
            await stream.get_msg(1)

    async def test_needs_a_stream_that_allows_it(self, js: jetspark.JetStream) -> None:
        stream = await make(js)
        with pytest.raises(InvalidMessageTTL):
            await js.publish(f"{stream.name}.a", ttl=5)

    async def test_a_duration_that_is_too_short_is_the_servers_to_refuse(
        self, js: jetspark.JetStream
    ) -> None:
        stream = await make(js, allow_msg_ttl=True)
        with pytest.raises(InvalidMessageTTL):
            await js.publish(f"{stream.name}.a", ttl="500ms")

    @pytest.mark.parametrize("ttl", [0, 0.5, -1, 1.5, "", "soon", True])
    async def test_refuses_what_the_server_would_not_keep(self, js: jetspark.JetStream, ttl: Any) -> None:
        with pytest.raises(InvalidArgument) as caught:
            await js.publish(unique(), ttl=ttl)
        assert caught.value.field == "ttl"


class TestRollup:
    @pytest.mark.parametrize(("scope", "left"), [("sub", [2, 3]), ("all", [3])])
    async def test_replaces_what_was_there(self, js: jetspark.JetStream, scope: str, left: list[int]) -> None:
        stream = await make(js, allow_rollup_hdrs=True, allow_direct=True)
        await js.publish(f"{stream.name}.a")
        await js.publish(f"{stream.name}.b")
        await js.publish(f"{stream.name}.a", headers={"Nats-Rollup": scope})
        assert [message.sequence async for message in stream.get_msgs()] == left

    async def test_needs_a_stream_that_allows_it(self, js: jetspark.JetStream) -> None:
        stream = await make(js)
        with pytest.raises(ApiError, match="rollup"):
            await js.publish(f"{stream.name}.a", headers={"Nats-Rollup": "sub"})


async def test_counters_come_back_in_the_ack(js: jetspark.JetStream) -> None:
    stream = await make(js, allow_msg_counter=True)
    values = [
        (await js.publish(f"{stream.name}.a", headers={"Nats-Incr": step})).val for step in ("+3", "-5")
    ]
    assert values == ["3", "-2"]
    with pytest.raises(InvalidCounter):
        await js.publish(f"{stream.name}.a")


class TestRefused:
    async def test_a_message_above_the_streams_limit(self, js: jetspark.JetStream) -> None:
        stream = await make(js, max_msg_size=100)
        await js.publish(f"{stream.name}.a", b"x" * 100)
        with pytest.raises(MessageTooLarge) as caught:
            await js.publish(f"{stream.name}.a", b"x" * 101)
        assert caught.value.err_code == 10054

    async def test_a_message_above_the_servers_limit(
        self, js: jetspark.JetStream, nc: jetspark.Connection
    ) -> None:
        stream = await make(js)
        await js.publish(f"{stream.name}.a", b"x" * nc.max_payload)
        with pytest.raises(MaxPayloadExceeded) as caught:
            await js.publish(f"{stream.name}.a", b"x" * (nc.max_payload + 1))
        assert caught.value.limit == nc.max_payload
        assert (await stream.info()).state.messages == 1

    async def test_a_full_stream_that_discards_new(self, js: jetspark.JetStream) -> None:
        stream = await make(js, max_msgs=1, discard=DiscardPolicy.NEW)
        await js.publish(f"{stream.name}.a")
        with pytest.raises(StoreFailed, match="maximum messages exceeded"):
            await js.publish(f"{stream.name}.a")

    async def test_no_permission_is_told_at_once(self, start_server: Any) -> None:
        server = start_server(
            config="""authorization { users: [
                { user: u, password: x, permissions: { publish: { deny: "T.secret" } } } ] }"""
        )
        async with jetspark.connect(server.url, user="u", password="x") as nc:
            js = nc.jetstream(timeout=30)
            await js.create_stream(StreamConfig(name="T", subjects=["T.>"], storage=StorageType.MEMORY))
            async with asyncio.timeout(20):
                with pytest.raises(PermissionViolationError, match=r"T\.secret"):
                    await js.publish("T.secret")
            assert (await js.publish("T.open")).seq == 1

    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"msg_id": ""}, "msg_id"),
            ({"headers": {"A B": "c"}}, "header"),
            ({"headers": {"A": "c\r\nd"}}, "header"),
        ],
    )
    async def test_what_makes_no_sense_is_not_sent(
        self, js: jetspark.JetStream, nc: jetspark.Connection, options: dict[str, Any], field: str
    ) -> None:
        before = nc.stats.out_msgs
        with pytest.raises(InvalidArgument, match=field):
            await js.publish(unique(), **options)
        for subject in ("", "a b", "a.*", "a..b"):
            with pytest.raises(InvalidArgument, match="subject"):
                await js.publish(subject)
        with pytest.raises(InvalidArgument, match="data"):
            await js.publish(unique(), "text")  # type: ignore[arg-type]
        assert nc.stats.out_msgs == before


class TestRetries:
    async def test_no_stream_is_tried_again_and_then_said(
        self, js: jetspark.JetStream, nc: jetspark.Connection
    ) -> None:
        subject = unique()
        before, start = nc.stats.out_msgs, time.monotonic()
        with pytest.raises(NoStreamResponse, match=subject) as caught:
            await js.publish(subject)
        assert isinstance(caught.value, NoRespondersError)
        assert caught.value.subject == subject
        assert nc.stats.out_msgs - before == 3
        assert time.monotonic() - start >= 0.5

    @pytest.mark.parametrize("retries", [0, 1, 4])
    async def test_their_number_and_pause_can_be_set(
        self, js: jetspark.JetStream, nc: jetspark.Connection, retries: int
    ) -> None:
        before = nc.stats.out_msgs
        with pytest.raises(NoStreamResponse):
            await js.publish(unique(), retries=retries, retry_wait=0.001)
        assert nc.stats.out_msgs - before == 1 + retries

    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"retries": -1}, "retries"),
            ({"retries": True}, "retries"),
            ({"retries": 1.5}, "retries"),
            ({"retry_wait": -1}, "retry_wait"),
            ({"timeout": 0}, "timeout"),
            ({"timeout": -1}, "timeout"),
        ],
    )
    async def test_refuses_bad_numbers(
        self, js: jetspark.JetStream, options: dict[str, Any], field: str
    ) -> None:
        with pytest.raises(InvalidArgument) as caught:
            await js.publish(unique(), **options)
        assert caught.value.field == field

    async def test_a_stream_that_appears_between_them_gets_the_message_once(
        self, js: jetspark.JetStream, nc: jetspark.Connection
    ) -> None:
        name = unique()
        before = nc.stats.out_msgs
        publishing = asyncio.create_task(js.publish(f"{name}.a", b"x", retries=1000, retry_wait=0.01))
        await eventually(lambda: nc.stats.out_msgs >= before + 3)
        stream = await js.create_stream(
            StreamConfig(name=name, subjects=[f"{name}.>"], storage=StorageType.MEMORY)
        )
        assert (await publishing).seq == 1
        assert (await stream.info()).state.messages == 1

    async def test_a_time_out_is_never_sent_again(self, own_server: Server) -> None:
        async with jetspark.connect(own_server.url) as nc:
            js = nc.jetstream()
            stream = await make(js)
            await js.publish(f"{stream.name}.a")
            own_server.suspend()
            before = nc.stats.out_msgs
            try:
                with pytest.raises(RequestTimeout, match=rf"{stream.name}\.a.*may be stored.*msg_id"):
                    await js.publish(f"{stream.name}.a", timeout=0.2, retries=5, retry_wait=0)
                assert nc.stats.out_msgs - before == 1
            finally:
                own_server.resume()
            # And stored it is, as the error said.
            await eventually(lambda: _count(stream, 2))

    async def test_a_lost_connection_is_named_and_never_sent_again(self, own_server: Server) -> None:
        async with jetspark.connect(own_server.url) as nc:
            js = nc.jetstream(timeout=30)
            stream = await make(js, storage=StorageType.FILE)
            await js.publish(f"{stream.name}.a")
            own_server.suspend()
            before = nc.stats.out_msgs
            publishing = asyncio.create_task(js.publish(f"{stream.name}.a", retries=5))
            await eventually(lambda: nc.stats.out_msgs > before and not nc._core.outbox.pieces)
            own_server.kill()
            with pytest.raises(ConnectionLost):
                await publishing
            assert nc.stats.out_msgs - before == 1
            own_server.restart()
            await eventually(lambda: nc.is_connected)
            assert (await js.publish(f"{stream.name}.a")).seq in (2, 3)


async def test_a_stream_without_acks_times_out(js: jetspark.JetStream) -> None:
    stream = await make(js, no_ack=True)
    with pytest.raises(RequestTimeout, match=stream.name):
        await js.publish(f"{stream.name}.a", timeout=0.1)
    await eventually(lambda: _count(stream, 1))


async def test_many_at_once(js: jetspark.JetStream) -> None:
    stream = await make(js)
    acks = await asyncio.gather(*(js.publish(f"{stream.name}.{number}") for number in range(1000)))
    assert sorted(ack.seq for ack in acks) == list(range(1, 1001))


async def _count(stream: Stream, messages: int) -> bool:
    return (await stream.info()).state.messages == messages


class Subjects(str, Enum):  # noqa: UP042  # the way to write it that many programs have
    """An f-string writes its members as ``Subjects.ORDERS``."""

    ORDERS = "enums.orders"


async def test_a_subject_may_be_a_member_of_an_enum_of_strings(js: jetspark.JetStream) -> None:
    stream = await js.create_stream(
        StreamConfig(name=unique(), subjects=["enums.*"], storage=StorageType.MEMORY, allow_direct=True)
    )
    await js.publish(Subjects.ORDERS, b"1")
    await js.publish("enums.orders", b"2")  # to the same subject, though its command was made before
    async with js.publisher() as publisher:
        await publisher.publish(Subjects.ORDERS, b"3")
    assert (await stream.get_msg(last_by_subject=Subjects.ORDERS)).data == b"3"
    consumer = await stream.create_consumer(
        jetspark.ConsumerConfig(filter_subject=Subjects.ORDERS, ack_policy=jetspark.AckPolicy.NONE)
    )
    messages = [(message.subject, message.data) for message in await consumer.fetch(3)]
    assert messages == [("enums.orders", b"%d" % number) for number in (1, 2, 3)]
