"""Reading and deleting stored messages: direct get, batch get and the API route must tell the same."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import StorageType, StoredMsg, Stream, StreamConfig, StreamSource
from jetspark.errors import (
    ApiError,
    ConnectionLost,
    InvalidArgument,
    MessageNotFound,
    PermissionViolationError,
    StreamNotFound,
)
from jetspark.wire.headers import HeaderBlock, encode_headers
from support.helpers import eventually, unique

if TYPE_CHECKING:
    from jetspark.server import Server

ROUTES = pytest.mark.parametrize("direct", [True, False], ids=["direct", "api"])
STORES = pytest.mark.parametrize("storage", list(StorageType))


async def make(js: jetspark.JetStream, **options: Any) -> Stream:
    name = unique()
    options.setdefault("subjects", [f"{name}.>"])
    options.setdefault("storage", StorageType.MEMORY)
    return await js.create_stream(StreamConfig(name=name, **options))


async def fill(js: jetspark.JetStream, stream: Stream, keys: str) -> None:
    """Publish one message for each letter to the subject that it names; its number is the body."""
    async with js.publisher() as publisher:
        for number, key in enumerate(keys, 1):
            await publisher.publish(f"{stream.name}.{key}", str(number).encode())


async def sequences(messages: Any) -> list[int]:
    return [message.sequence async for message in messages]


class TestGetMsg:
    @ROUTES
    async def test_tells_everything_of_the_message(self, js: jetspark.JetStream, direct: bool) -> None:
        stream = await make(js, allow_direct=direct)
        before = datetime.now(UTC)
        headers = {"X": ["1", "2"], "Y": "é"}
        await js.publish(f"{stream.name}.a", b"\x00\xffbody", headers=headers, msg_id="id-1")
        message = await stream.get_msg(1)
        assert isinstance(message, StoredMsg)
        assert (message.stream, message.subject, message.sequence) == (stream.name, f"{stream.name}.a", 1)
        assert message.data == b"\x00\xffbody"
        assert message.headers.items() == [("X", "1"), ("X", "2"), ("Y", "é"), ("Nats-Msg-Id", "id-1")]
        assert abs((message.timestamp - before).total_seconds()) < 5

    @STORES
    async def test_both_routes_give_the_same_result(
        self, js: jetspark.JetStream, storage: StorageType
    ) -> None:
        stream = await make(js, allow_direct=True, storage=storage)
        await js.publish(f"{stream.name}.a", b"x" * 1000, headers={"A": "b"})
        await js.publish(f"{stream.name}.a")
        by_direct = [await stream.get_msg(seq) for seq in (1, 2)]
        by_batch = [message async for message in stream.get_msgs()]
        await js.update_stream(stream.config.replace(allow_direct=False))
        await stream.info()
        assert [await stream.get_msg(seq) for seq in (1, 2)] == by_direct == by_batch
        assert [message async for message in stream.get_msgs()] == by_direct

    @ROUTES
    async def test_headers_that_look_like_the_servers_stay_the_publishers(
        self, js: jetspark.JetStream, direct: bool
    ) -> None:
        """A republished message has these headers; the server appends its own of the same names."""
        stream = await make(js, allow_direct=direct)
        headers = {
            "Nats-Stream": "ELSEWHERE",
            "Nats-Subject": "else.where",
            "Nats-Sequence": "77",
            "Nats-Time-Stamp": "2001-01-01T00:00:00Z",
            "Nats-Num-Pending": "9",
            "Nats-Last-Sequence": "76",
        }
        await js.publish(f"{stream.name}.a", headers=headers)
        one = await stream.get_msg(1)
        many = [message async for message in stream.get_msgs()]
        assert many == [one]
        assert (one.stream, one.subject, one.sequence) == (stream.name, f"{stream.name}.a", 1)
        assert one.timestamp.year > 2001
        assert dict(one.headers.items()) == headers
        if direct:
            assert [message async for message in stream.get_last_msgs_for(f"{stream.name}.>")] == [one]

    @ROUTES
    async def test_headers_that_we_would_not_send_can_be_read(
        self, js: jetspark.JetStream, nc: jetspark.Connection, direct: bool
    ) -> None:
        stream = await make(js, allow_direct=direct)
        block = encode_headers({"Good": "yes"}).removesuffix(b"\r\n") + b"Bad Name: \xff\r\n\r\n"
        nc._core.outbox.publish(f"{stream.name}.a", b"x", headers=HeaderBlock(block))
        await eventually(lambda: _count(stream, 1))
        message = await stream.get_msg(1)
        assert message.headers["Good"] == "yes"
        assert message.headers["Bad Name"].encode("utf-8", "surrogateescape") == b"\xff"
        assert [one async for one in stream.get_msgs()] == [message]

    @ROUTES
    async def test_by_sequence_last_and_next(self, js: jetspark.JetStream, direct: bool) -> None:
        stream = await make(js, allow_direct=direct)
        await fill(js, stream, "abcabc")
        a, everything = f"{stream.name}.a", f"{stream.name}.*"
        assert (await stream.get_msg(3)).data == b"3"
        assert (await stream.get_msg(last_by_subject=a)).sequence == 4
        assert (await stream.get_msg(last_by_subject=everything)).sequence == 6
        assert (await stream.get_msg(next_by_subject=a)).sequence == 1
        assert (await stream.get_msg(2, next_by_subject=a)).sequence == 4
        assert (await stream.get_msg(4, next_by_subject=a)).sequence == 4
        assert (await stream.get_msg(2, next_by_subject=everything)).sequence == 2

    @STORES
    @ROUTES
    async def test_by_time(self, js: jetspark.JetStream, direct: bool, storage: StorageType) -> None:
        stream = await make(js, allow_direct=direct, storage=storage)
        for key in "abc":
            # One at a time, so that no two have the same time.
            await js.publish(f"{stream.name}.{key}")
        times = [(await stream.get_msg(seq)).timestamp for seq in (1, 2, 3)]
        assert times == sorted(set(times))
        assert (await stream.get_msg(start_time=times[0] - timedelta(days=1))).sequence == 1
        assert (await stream.get_msg(start_time=times[1])).sequence == 2
        later = jetspark.models.Timestamp.from_ns(times[1].ns + 1)
        assert (await stream.get_msg(start_time=later)).sequence == 3
        assert (await stream.get_msg(start_time=times[0], next_by_subject=f"{stream.name}.c")).sequence == 3
        with pytest.raises(MessageNotFound):
            await stream.get_msg(start_time=times[2] + timedelta(days=1))
        # The message at that time is gone: the next one is the first at or after it.
        await stream.delete_msg(2)
        assert (await stream.get_msg(start_time=times[1])).sequence == 3
        await stream.delete_msg(3)
        with pytest.raises(MessageNotFound):
            await stream.get_msg(start_time=times[1])
        await stream.purge()
        with pytest.raises(MessageNotFound):
            await stream.get_msg(start_time=times[0])

    @ROUTES
    @pytest.mark.parametrize(
        "request_", [{"seq": 2}, {"seq": 99}, {"last_by_subject": "none"}, {"next_by_subject": "none"}]
    )
    async def test_what_is_not_there_is_not_found(
        self, js: jetspark.JetStream, direct: bool, request_: dict[str, Any]
    ) -> None:
        stream = await make(js, allow_direct=direct)
        await fill(js, stream, "aaa")
        await stream.delete_msg(2)
        with pytest.raises(MessageNotFound) as caught:
            await stream.get_msg(**request_)
        assert (caught.value.code, caught.value.err_code) == (404, 10037)

    @ROUTES
    async def test_an_empty_stream_has_no_message(self, js: jetspark.JetStream, direct: bool) -> None:
        stream = await make(js, allow_direct=direct)
        for request in (
            {"seq": 1},
            {"last_by_subject": ">"},
            {"next_by_subject": ">"},
            {"start_time": datetime.now(UTC)},
        ):
            with pytest.raises(MessageNotFound):
                await stream.get_msg(**request)  # type: ignore[arg-type]
        assert await sequences(stream.get_msgs()) == []

    @pytest.mark.parametrize(
        ("request_", "field"),
        [
            ({}, "seq"),
            ({"seq": 0}, "seq"),
            ({"seq": -1}, "seq"),
            ({"seq": True}, "seq"),
            ({"seq": "1"}, "seq"),
            ({"seq": 1, "last_by_subject": "a"}, "last_by_subject"),
            ({"last_by_subject": "a", "next_by_subject": "a"}, "last_by_subject"),
            ({"last_by_subject": "a", "start_time": datetime.now(UTC)}, "last_by_subject"),
            ({"seq": 1, "start_time": datetime.now(UTC)}, "start_time"),
            ({"start_time": datetime(2026, 1, 1)}, "start_time"),  # naive
            ({"last_by_subject": "a b"}, "last_by_subject"),
            ({"next_by_subject": "a..b"}, "next_by_subject"),
        ],
    )
    async def test_refuses_what_makes_no_sense(
        self, js: jetspark.JetStream, request_: dict[str, Any], field: str
    ) -> None:
        stream = await make(js)
        with pytest.raises(InvalidArgument) as caught:
            await stream.get_msg(**request_)
        assert caught.value.field == field

    async def test_a_handle_that_believes_in_direct_get_finds_the_other_way(
        self, js: jetspark.JetStream
    ) -> None:
        stream = await make(js, allow_direct=True)
        await fill(js, stream, "aba")
        await js.update_stream(stream.config.replace(allow_direct=False))
        assert stream.config.allow_direct
        assert (await stream.get_msg(1)).data == b"1"
        assert await sequences(stream.get_msgs(f"{stream.name}.a", batch=1)) == [1, 3]
        with pytest.raises(InvalidArgument, match="allow_direct"):
            await anext(stream.get_last_msgs_for(">"))

    async def test_a_deleted_stream_is_not_found_on_every_route(self, js: jetspark.JetStream) -> None:
        stream = await make(js, allow_direct=True)
        await stream.delete()
        with pytest.raises(StreamNotFound):
            await stream.get_msg(1)
        with pytest.raises(StreamNotFound):
            await anext(stream.get_msgs())
        with pytest.raises(StreamNotFound):
            await anext(stream.get_last_msgs_for(">"))

    async def test_a_mirror_answers_for_its_origin_and_for_itself(self, js: jetspark.JetStream) -> None:
        origin = await make(js, allow_direct=True)
        await fill(js, origin, "abc")
        mirror = await js.create_stream(
            StreamConfig(
                name=unique(),
                storage=StorageType.MEMORY,
                mirror=StreamSource(name=origin.name),
                mirror_direct=True,
                allow_direct=True,
            )
        )
        await eventually(lambda: _count(mirror, 3))
        for _ in range(20):  # either of them answers
            assert (await origin.get_msg(2)).data == b"2"
        message = await mirror.get_msg(2)
        assert (message.stream, message.subject) == (mirror.name, f"{origin.name}.b")
        assert await sequences(mirror.get_msgs()) == [1, 2, 3]
        assert await sequences(mirror.get_last_msgs_for(f"{origin.name}.*")) == [1, 2, 3]
        plain = await js.create_stream(
            StreamConfig(name=unique(), storage=StorageType.MEMORY, mirror=StreamSource(name=origin.name))
        )
        await eventually(lambda: _count(plain, 3))
        assert not plain.config.allow_direct
        assert (await plain.get_msg(3)).stream == plain.name


class TestGetMsgs:
    @ROUTES
    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, [1, 2, 4, 5, 6, 9]),
            ({"seq": 3}, [4, 5, 6, 9]),
            ({"seq": 9}, [9]),
            ({"seq": 10}, []),
            ({"seq": 1000}, []),
            ({"max_messages": 2}, [1, 2]),
            ({"max_messages": 6}, [1, 2, 4, 5, 6, 9]),
            ({"max_messages": 100}, [1, 2, 4, 5, 6, 9]),
            ({"seq": 2, "max_messages": 2}, [2, 4]),
            ({"subjects": "*"}, [1, 2, 4, 5, 6, 9]),
            ({"subjects": "a"}, [1, 4]),
            ({"subjects": "a", "seq": 2}, [4]),
            ({"subjects": ["a", "b"]}, [1, 2, 4, 5]),
            ({"subjects": ["*", "a", "b"]}, [1, 2, 4, 5, 6, 9]),
            ({"subjects": ["c", "a"], "max_messages": 3}, [1, 4, 6]),
            ({"subjects": ["c", "none"], "seq": 2}, [6, 9]),
            ({"subjects": "none"}, []),
            ({"subjects": ["none", "neither"]}, []),
        ],
    )
    @pytest.mark.parametrize("batch", [1, 2, 3, 6, 7, 1000])
    async def test_selects_pages_and_steps_over_gaps(
        self, js: jetspark.JetStream, direct: bool, batch: int, options: dict[str, Any], expected: list[int]
    ) -> None:
        """Sequences 3, 7 and 8 of a b c a b c a b c are deleted."""
        stream = await make(js, allow_direct=direct)
        await fill(js, stream, "abcabcabc")
        for seq in (3, 7, 8):
            await stream.delete_msg(seq)
        options = dict(options)
        given = options.pop("subjects", None)
        if given is not None:
            names = [given] if isinstance(given, str) else given
            full = [f"{stream.name}.{name}" for name in names]
            options["subjects"] = full[0] if isinstance(given, str) else full
        found = [message async for message in stream.get_msgs(batch=batch, **options)]
        assert [message.sequence for message in found] == expected
        assert [message.data for message in found] == [str(seq).encode() for seq in expected]

    @ROUTES
    async def test_from_a_time_with_and_without_a_subject(self, js: jetspark.JetStream, direct: bool) -> None:
        stream = await make(js, allow_direct=direct)
        for key in "abab":
            await js.publish(f"{stream.name}.{key}")
        second = (await stream.get_msg(2)).timestamp
        assert await sequences(stream.get_msgs(start_time=second)) == [2, 3, 4]
        assert await sequences(stream.get_msgs(start_time=second, batch=1)) == [2, 3, 4]
        assert await sequences(stream.get_msgs(f"{stream.name}.a", start_time=second)) == [3]
        both = [f"{stream.name}.a", f"{stream.name}.b"]
        assert await sequences(stream.get_msgs(both, start_time=second, batch=1)) == [2, 3, 4]
        late = datetime.now(UTC) + timedelta(hours=1)
        assert await sequences(stream.get_msgs(start_time=late)) == []

    @pytest.mark.parametrize("max_bytes", [1, 999, 1000, 1500, 5000, 1 << 30])
    async def test_a_page_has_at_least_one_message_however_small_its_bytes(
        self, js: jetspark.JetStream, max_bytes: int
    ) -> None:
        stream = await make(js, allow_direct=True)
        for _ in range(12):
            await js.publish(f"{stream.name}.a", b"x" * 1000)
        assert await sequences(stream.get_msgs(max_bytes=max_bytes)) == list(range(1, 13))

    async def test_a_first_sequence_above_one(self, js: jetspark.JetStream) -> None:
        stream = await make(js, allow_direct=True, first_seq=1000)
        await fill(js, stream, "abc")
        assert await sequences(stream.get_msgs(batch=2)) == [1000, 1001, 1002]
        assert await sequences(stream.get_msgs(seq=1002)) == [1002]

    async def test_many_messages_in_many_pages(self, js: jetspark.JetStream) -> None:
        stream = await make(js, allow_direct=True)
        await fill(js, stream, "ab" * 5000)
        assert await sequences(stream.get_msgs(batch=777)) == list(range(1, 10_001))
        odd = await sequences(stream.get_msgs(f"{stream.name}.a", batch=777))
        assert odd == list(range(1, 10_001, 2))

    async def test_messages_purged_while_reading_are_left_out(self, js: jetspark.JetStream) -> None:
        stream = await make(js, allow_direct=True)
        await fill(js, stream, "a" * 20)
        seen = []
        async for message in stream.get_msgs(batch=5):
            seen.append(message.sequence)
            if message.sequence == 5:
                await stream.purge(seq=16)
            if message.sequence == 17:
                await stream.purge()
        assert seen == [1, 2, 3, 4, 5, 16, 17, 18, 19, 20]

    async def test_messages_stored_while_reading_are_read(self, js: jetspark.JetStream) -> None:
        stream = await make(js, allow_direct=True)
        await fill(js, stream, "a" * 4)
        seen = []
        async for message in stream.get_msgs(batch=2):
            seen.append(message.sequence)
            if message.sequence == 1:
                await fill(js, stream, "aaa")
        assert seen == [1, 2, 3, 4, 5, 6, 7]

    @pytest.mark.parametrize("subjects", [None, ["a.>", "b.>"]], ids=["one", "merged"])
    async def test_leaving_early_leaves_no_subscription(
        self, js: jetspark.JetStream, nc: jetspark.Connection, subjects: list[str] | None
    ) -> None:
        name = unique()
        stream = await make(js, allow_direct=True, subjects=[f"a.{name}", f"b.{name}"])
        for key in "abab":
            await js.publish(f"{key}.{name}")
        before = len(nc._core.router.sinks)
        assert await sequences(stream.get_msgs(subjects, max_messages=2)) == [1, 2]
        assert len(nc._core.router.sinks) == before
        messages = stream.get_msgs(subjects)
        await anext(messages)
        await messages.aclose()  # type: ignore[attr-defined]
        assert len(nc._core.router.sinks) == before
        assert await sequences(stream.get_msgs(subjects)) == [1, 2, 3, 4]
        assert len(nc._core.router.sinks) == before

    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"seq": 0}, "seq"),
            ({"batch": 0}, "batch"),
            ({"max_bytes": 0}, "max_bytes"),
            ({"max_messages": 0}, "max_messages"),
            ({"max_messages": True}, "max_messages"),
            ({"seq": 1, "start_time": datetime.now(UTC)}, "start_time"),
            ({"start_time": datetime(2026, 1, 1)}, "start_time"),
            ({"subjects": ["a", "b c"]}, "subjects"),
            ({"subjects": ""}, "subjects"),
        ],
    )
    @ROUTES
    async def test_refuses_what_makes_no_sense(
        self, js: jetspark.JetStream, direct: bool, options: dict[str, Any], field: str
    ) -> None:
        stream = await make(js, allow_direct=direct)
        with pytest.raises(InvalidArgument) as caught:
            await anext(stream.get_msgs(**options))
        assert caught.value.field == field


class TestGetLastMsgsFor:
    async def test_the_last_of_each_subject_in_order(self, js: jetspark.JetStream) -> None:
        stream = await make(js, allow_direct=True)
        await fill(js, stream, "abcabd")
        everything, a, d = (f"{stream.name}.{key}" for key in "*ad")
        assert await sequences(stream.get_last_msgs_for(everything)) == [3, 4, 5, 6]
        assert await sequences(stream.get_last_msgs_for(everything, batch=1)) == [3, 4, 5, 6]
        assert await sequences(stream.get_last_msgs_for([a, d])) == [4, 6]
        assert await sequences(stream.get_last_msgs_for([a, everything])) == [3, 4, 5, 6]
        assert await sequences(stream.get_last_msgs_for(everything, up_to_seq=4)) == [2, 3, 4]
        assert await sequences(stream.get_last_msgs_for(everything, up_to_seq=4, batch=2)) == [2, 3, 4]
        assert await sequences(stream.get_last_msgs_for(f"{stream.name}.none")) == []

    async def test_as_of_a_time(self, js: jetspark.JetStream) -> None:
        stream = await make(js, allow_direct=True)
        for key in "abab":
            await js.publish(f"{stream.name}.{key}")
        times = [(await stream.get_msg(seq)).timestamp for seq in range(1, 5)]
        everything = f"{stream.name}.*"
        assert await sequences(stream.get_last_msgs_for(everything, up_to_time=times[2])) == [1, 2]
        assert await sequences(stream.get_last_msgs_for(everything, up_to_time=times[3], batch=1)) == [2, 3]
        late = times[3] + timedelta(hours=1)
        assert await sequences(stream.get_last_msgs_for(everything, up_to_time=late)) == [3, 4]
        early = times[0] - timedelta(hours=1)
        assert await sequences(stream.get_last_msgs_for(everything, up_to_time=early)) == []

    async def test_pages_are_of_one_point_in_time_whatever_is_written_meanwhile(
        self, js: jetspark.JetStream
    ) -> None:
        stream = await make(js, allow_direct=True)
        async with js.publisher() as publisher:
            for number in range(500):
                await publisher.publish(f"{stream.name}.{number}", b"old")
        found = []
        async for message in stream.get_last_msgs_for(f"{stream.name}.*", batch=50):
            found.append(message)
            if len(found) % 50 == 25:
                # Subjects of pages to come are overwritten, and new ones appear.
                await js.publish(f"{stream.name}.{499 - len(found) // 50}", b"new")
                await js.publish(f"{stream.name}.more{len(found)}", b"new")
        assert [message.sequence for message in found] == list(range(1, 501))
        assert {message.data for message in found} == {b"old"}

    async def test_too_many_subjects_are_refused_with_the_limit(self, js: jetspark.JetStream) -> None:
        stream = await make(js, allow_direct=True)
        async with js.publisher() as publisher:
            for number in range(1024):
                await publisher.publish(f"{stream.name}.{number}")
        assert len(await sequences(stream.get_last_msgs_for(f"{stream.name}.*"))) == 1024
        await js.publish(f"{stream.name}.straw")
        with pytest.raises(ApiError, match="1024") as caught:
            await anext(stream.get_last_msgs_for(f"{stream.name}.*"))
        assert caught.value.code == 413

    async def test_an_empty_stream_has_none(self, js: jetspark.JetStream) -> None:
        stream = await make(js, allow_direct=True)
        assert await sequences(stream.get_last_msgs_for(">")) == []

    @pytest.mark.parametrize(
        ("subjects", "options", "field"),
        [
            ([], {}, "subjects"),
            (["a b"], {}, "subjects"),
            ("a", {"up_to_seq": 1, "up_to_time": datetime.now(UTC)}, "up_to_time"),
            ("a", {"up_to_seq": 0}, "up_to_seq"),
            ("a", {"up_to_seq": -1}, "up_to_seq"),
            ("a", {"batch": 0}, "batch"),
            ("a", {"up_to_time": datetime(2026, 1, 1)}, "up_to_time"),
        ],
    )
    async def test_refuses_what_makes_no_sense(
        self, js: jetspark.JetStream, subjects: Any, options: dict[str, Any], field: str
    ) -> None:
        stream = await make(js, allow_direct=True)
        with pytest.raises(InvalidArgument) as caught:
            await anext(stream.get_last_msgs_for(subjects, **options))
        assert caught.value.field == field

    async def test_needs_direct_get(self, js: jetspark.JetStream) -> None:
        stream = await make(js)
        with pytest.raises(InvalidArgument, match="allow_direct=True"):
            await anext(stream.get_last_msgs_for(">"))


class TestDeleteMsg:
    @STORES
    @pytest.mark.parametrize("secure", [True, False])
    async def test_removes_one_message(
        self, js: jetspark.JetStream, storage: StorageType, secure: bool
    ) -> None:
        stream = await make(js, allow_direct=True, storage=storage)
        await fill(js, stream, "aaa")
        await stream.delete_msg(2, secure=secure)
        assert await sequences(stream.get_msgs()) == [1, 3]
        with pytest.raises(MessageNotFound):
            await stream.get_msg(2)

    async def test_twice_is_an_error(self, js: jetspark.JetStream) -> None:
        stream = await make(js)
        await fill(js, stream, "a")
        await stream.delete_msg(1)
        with pytest.raises(ApiError, match=r"no message found|sequence 1 not found"):
            await stream.delete_msg(1)

    async def test_is_refused_by_a_stream_that_denies_it(self, js: jetspark.JetStream) -> None:
        stream = await make(js, deny_delete=True)
        await fill(js, stream, "a")
        with pytest.raises(ApiError, match="not permitted"):
            await stream.delete_msg(1)
        assert (await stream.info()).state.messages == 1

    @pytest.mark.parametrize("seq", [0, -1, True, "1", None])
    async def test_refuses_what_is_no_sequence(self, js: jetspark.JetStream, seq: Any) -> None:
        stream = await make(js)
        with pytest.raises(InvalidArgument) as caught:
            await stream.delete_msg(seq)
        assert caught.value.field == "seq"


async def test_a_batch_get_that_loses_its_connection_says_so_at_once(own_server: Server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream(timeout=30)
        stream = await make(js, allow_direct=True)
        own_server.suspend()
        reading = asyncio.ensure_future(anext(stream.get_msgs()))
        await eventually(
            lambda: any(
                sink.subject.startswith("_INBOX") and sink.asked for sink in nc._core.router.sinks.values()
            )
        )
        own_server.kill()
        async with asyncio.timeout(20):
            with pytest.raises(ConnectionLost):
                await reading


async def test_a_batch_get_without_permission_says_so_at_once(start_server: Any) -> None:
    server = start_server(
        config="""authorization { users: [
            { user: all, password: x },
            { user: few, password: x, permissions: { publish: { deny: "$JS.API.DIRECT.>" } } } ] }"""
    )
    async with (
        jetspark.connect(server.url, user="all", password="x") as owner,
        jetspark.connect(server.url, user="few", password="x") as guest,
    ):
        stream = await make(owner.jetstream(), allow_direct=True)
        as_guest = await guest.jetstream(timeout=30).get_stream(stream.name)
        async with asyncio.timeout(20):
            with pytest.raises(PermissionViolationError):
                await anext(as_guest.get_msgs())
            with pytest.raises(PermissionViolationError):
                await as_guest.get_msg(1)


async def _count(stream: Stream, messages: int) -> bool:
    return (await stream.info()).state.messages == messages
