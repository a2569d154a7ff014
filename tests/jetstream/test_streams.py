"""Streams through the context: create, update, get, delete, find, purge, and what their handles know."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import RetentionPolicy, StorageType, StreamConfig
from jetspark.errors import (
    InvalidArgument,
    InvalidStreamConfig,
    MessageNotFound,
    NotFound,
    PedanticError,
    StreamNameInUse,
    StreamNotFound,
    StreamSealed,
    StreamSubjectsOverlap,
)
from support.helpers import unique
from support.jwt_mint import Operator

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import StartServer


def memory(name: str, **options: object) -> StreamConfig:
    options.setdefault("subjects", [f"{name}.>"])
    return StreamConfig(name=name, storage=StorageType.MEMORY, **options)  # type: ignore[arg-type]


async def test_a_created_stream_has_its_config_with_the_servers_defaults(js: jetspark.JetStream) -> None:
    name = unique()
    before = datetime.now(UTC)
    stream = await js.create_stream(memory(name, max_msgs=10, description="first"))

    assert stream.name == name
    assert repr(stream) == f"Stream({name!r})"
    assert stream.config.max_msgs == 10
    assert stream.config.description == "first"
    assert stream.config.max_consumers == -1
    assert stream.config.duplicate_window == 120
    assert stream.cached_info.state.messages == 0
    created = stream.cached_info.created
    assert created is not None
    assert abs((created - before).total_seconds()) < 5


async def test_creating_it_again_with_the_same_config_is_the_same_stream(js: jetspark.JetStream) -> None:
    config = memory(unique(), max_msgs=10)
    first = await js.create_stream(config)
    second = await js.create_stream(config)
    assert second.cached_info.created == first.cached_info.created


async def test_creating_it_again_with_another_config_is_a_name_in_use(js: jetspark.JetStream) -> None:
    config = memory(unique(), max_msgs=10)
    await js.create_stream(config)
    with pytest.raises(StreamNameInUse) as caught:
        await js.create_stream(config.replace(max_msgs=11))
    assert caught.value.err_code == 10058


async def test_subjects_of_another_stream_are_refused(js: jetspark.JetStream) -> None:
    name = unique()
    await js.create_stream(memory(name))
    with pytest.raises(StreamSubjectsOverlap):
        await js.create_stream(memory(unique(), subjects=[f"{name}.a"]))


async def test_an_update_changes_what_it_names_and_keeps_the_rest(js: jetspark.JetStream) -> None:
    stream = await js.create_stream(memory(unique(), max_msgs=10, description="first", metadata={"a": "1"}))
    updated = await js.update_stream(stream.config.replace(max_msgs=20))

    assert updated.config.max_msgs == 20
    assert updated.config.description == "first"
    assert (updated.config.metadata or {})["a"] == "1"
    assert stream.config.max_msgs == 10, "the old handle's cache is its own"
    assert (await stream.info()).config.max_msgs == 20
    assert stream.config.max_msgs == 20


async def test_an_update_of_what_can_not_change_is_refused(js: jetspark.JetStream) -> None:
    stream = await js.create_stream(memory(unique()))
    with pytest.raises(InvalidStreamConfig):
        await js.update_stream(stream.config.replace(storage=StorageType.FILE))
    with pytest.raises(InvalidStreamConfig):
        await js.update_stream(stream.config.replace(retention=RetentionPolicy.WORK_QUEUE))


@pytest.mark.parametrize("call", ["get_stream", "delete_stream"])
async def test_a_stream_that_does_not_exist_is_not_found(js: jetspark.JetStream, call: str) -> None:
    with pytest.raises(StreamNotFound) as caught:
        await getattr(js, call)(unique())
    assert isinstance(caught.value, NotFound)
    assert (caught.value.code, caught.value.err_code) == (404, 10059)


async def test_an_update_of_a_stream_that_does_not_exist_is_not_found(js: jetspark.JetStream) -> None:
    with pytest.raises(StreamNotFound):
        await js.update_stream(memory(unique()))


async def test_create_or_update_does_what_is_needed(js: jetspark.JetStream) -> None:
    config = memory(unique(), max_msgs=1)
    first = await js.create_or_update_stream(config)
    second = await js.create_or_update_stream(config.replace(max_msgs=2))
    assert second.cached_info.created == first.cached_info.created
    assert second.config.max_msgs == 2


async def test_create_or_update_by_many_at_once_succeeds_for_all(js: jetspark.JetStream) -> None:
    config = memory(unique())
    streams = await asyncio.gather(
        *(js.create_or_update_stream(config.replace(max_msgs=count)) for count in range(1, 21))
    )
    assert len({stream.cached_info.created for stream in streams}) == 1
    assert (await streams[0].info()).config.max_msgs in range(1, 21)


async def test_create_or_update_survives_deletes_in_between(js: jetspark.JetStream) -> None:
    config = memory(unique())

    async def delete() -> None:
        with contextlib.suppress(StreamNotFound):
            while True:
                await js.delete_stream(config.name)

    for _ in range(10):
        await js.create_or_update_stream(config)
        stream, _ = await asyncio.gather(js.create_or_update_stream(config), delete())
        assert stream.name == config.name


async def test_get_and_delete(js: jetspark.JetStream) -> None:
    created = await js.create_stream(memory(unique()))
    stream = await js.get_stream(created.name)
    assert stream.cached_info.config == created.config
    await stream.delete()
    with pytest.raises(StreamNotFound):
        await stream.info()


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a*", "a>", "a/b", "a\\b", "a\tb", "a\r\nb"])
@pytest.mark.parametrize("call", ["get_stream", "delete_stream"])
async def test_names_that_would_break_the_subject_are_refused_before_sending(
    js: jetspark.JetStream, nc: jetspark.Connection, call: str, name: str
) -> None:
    before = nc.stats.out_msgs
    with pytest.raises(InvalidArgument, match="stream="):
        await getattr(js, call)(name)
    assert nc.stats.out_msgs == before


async def test_an_invalid_config_is_refused_before_sending(
    js: jetspark.JetStream, nc: jetspark.Connection
) -> None:
    before = nc.stats.out_msgs
    with pytest.raises(InvalidArgument, match="duplicate_window"):
        await js.create_stream(memory(unique(), max_age=1, duplicate_window=2))
    with pytest.raises(InvalidArgument, match="sealed"):
        await js.create_stream(memory(unique(), sealed=True))
    assert nc.stats.out_msgs == before


async def test_pedantic_refuses_what_the_server_would_adjust(js: jetspark.JetStream) -> None:
    config = memory(unique(), max_age=1)
    # Without it the duplicate window of two minutes is cut to max_age in silence.
    adjusted = await js.create_stream(config)
    assert adjusted.config.duplicate_window == 1
    with pytest.raises(PedanticError, match="duplicate window"):
        await js.create_stream(config.replace(name=unique(), subjects=[unique()]), pedantic=True)
    with pytest.raises(PedanticError):
        await js.update_stream(adjusted.config.replace(duplicate_window=None), pedantic=True)


async def test_a_sealed_stream_takes_nothing(js: jetspark.JetStream) -> None:
    stream = await js.create_stream(memory(unique()))
    await js.publish(f"{stream.name}.a")
    await js.update_stream(stream.config.replace(sealed=True))
    with pytest.raises(StreamSealed):
        await js.publish(f"{stream.name}.a")
    assert (await stream.info()).state.messages == 1


async def test_a_subject_leads_to_its_stream(js: jetspark.JetStream) -> None:
    name = unique()
    await js.create_stream(memory(name, subjects=[f"{name}.a", f"{name}.b.*"]))
    assert await js.stream_name_by_subject(f"{name}.a") == name
    assert await js.stream_name_by_subject(f"{name}.b.c") == name
    with pytest.raises(StreamNotFound, match="no stream captures"):
        await js.stream_name_by_subject(f"{name}.c")


async def test_a_subject_of_several_streams_is_ambiguous(js: jetspark.JetStream) -> None:
    name = unique()
    await js.create_stream(memory(unique(), subjects=[f"{name}.a"]))
    await js.create_stream(memory(unique(), subjects=[f"{name}.b"]))
    with pytest.raises(StreamNotFound, match="2 streams capture"):
        await js.stream_name_by_subject(f"{name}.*")


async def test_lists_are_filtered_by_subject(js: jetspark.JetStream) -> None:
    name = unique()
    streams = [await js.create_stream(memory(unique(), subjects=[f"{name}.{key}.*"])) for key in "abc"]
    wanted = {stream.name for stream in streams}
    assert {one async for one in js.stream_names(f"{name}.>")} == wanted
    assert {info.config.name async for info in js.list_streams(f"{name}.>")} == wanted
    assert [one async for one in js.stream_names(f"{name}.b.x")] == [streams[1].name]
    assert [one async for one in js.stream_names(unique())] == []
    assert wanted <= {one async for one in js.stream_names()}
    with pytest.raises(InvalidArgument, match="subject"):
        await anext(js.stream_names("a b"))


async def test_info_has_state_subjects_and_deleted_messages(js: jetspark.JetStream) -> None:
    stream = await js.create_stream(memory(unique()))
    for key in "aab":
        await js.publish(f"{stream.name}.{key}", b"12345")
    await stream.delete_msg(2)

    info = await stream.info(subjects_filter=">", deleted_details=True)
    assert info.state.subjects == {f"{stream.name}.a": 1, f"{stream.name}.b": 1}
    assert info.state.deleted == [2]
    assert (info.state.messages, info.state.first_seq, info.state.last_seq) == (2, 1, 3)
    assert info.state.num_subjects == 2
    assert info.state.num_deleted == 1
    assert info.state.first_ts is not None
    assert info.state.last_ts is not None
    assert info.state.first_ts < info.state.last_ts
    assert stream.cached_info.state.messages == 2
    assert stream.cached_info.state.subjects is None

    narrow = await stream.info(subjects_filter=f"{stream.name}.b")
    assert narrow.state.subjects == {f"{stream.name}.b": 1}
    none = await stream.info(subjects_filter=unique())
    assert none.state.subjects == {}
    assert (await stream.info()).state.subjects is None
    with pytest.raises(InvalidArgument, match="subjects_filter"):
        await stream.info(subjects_filter="a..b")


async def test_subjects_that_are_deleted_between_two_pages_of_the_list(
    js: jetspark.JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await js.create_stream(memory(unique()))
    # The server gives 100,000 at once, sorted.
    subjects = [f"{stream.name}.{number:06d}" for number in range(100_300)]
    async with js.publisher() as publisher:
        for subject in subjects:
            await publisher.publish(subject, b"")
    ask, gone = js._api.request, False

    async def request(operation: str, body: Any = None) -> Any:
        nonlocal gone
        if body is not None and "offset" in body and not gone:
            gone = True
            await stream.purge(seq=1501)
        return await ask(operation, body)

    monkeypatch.setattr(js._api, "request", request)
    found = (await stream.info(subjects_filter=">")).state.subjects
    assert gone
    assert found is not None
    assert set(subjects[1500:]) <= found.keys() <= set(subjects)
    await stream.delete()


class TestPurge:
    """What each way to purge leaves: subjects a b a b a b, sequences 1 to 6."""

    @pytest.mark.parametrize(
        ("options", "purged", "left"),
        [
            ({}, 6, []),
            ({"subject": "a"}, 3, [2, 4, 6]),
            ({"subject": "*"}, 6, []),
            ({"seq": 4}, 3, [4, 5, 6]),
            ({"seq": 1}, 0, [1, 2, 3, 4, 5, 6]),
            ({"seq": 99}, 6, []),
            ({"keep": 2}, 4, [5, 6]),
            ({"keep": 0}, 6, []),
            ({"keep": 9}, 0, [1, 2, 3, 4, 5, 6]),
            ({"subject": "a", "seq": 4}, 2, [2, 4, 5, 6]),
            ({"subject": "b", "keep": 1}, 2, [1, 3, 5, 6]),
            ({"subject": "none"}, 0, [1, 2, 3, 4, 5, 6]),
        ],
    )
    async def test_removes_and_counts(
        self, js: jetspark.JetStream, options: dict[str, object], purged: int, left: list[int]
    ) -> None:
        stream = await js.create_stream(memory(unique(), allow_direct=True))
        for key in "ababab":
            await js.publish(f"{stream.name}.{key}")
        if "subject" in options:
            options = {**options, "subject": f"{stream.name}.{options['subject']}"}
        assert await stream.purge(**options) == purged  # type: ignore[arg-type]
        assert [message.sequence async for message in stream.get_msgs()] == left

    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"seq": 3, "keep": 1}, "keep"),
            # The server takes 0 for "not given" and would remove everything.
            ({"seq": 0}, "seq"),
            ({"seq": -1}, "seq"),
            ({"seq": True}, "seq"),
            ({"keep": -1}, "keep"),
            ({"keep": "1"}, "keep"),
            ({"subject": "a b"}, "subject"),
        ],
    )
    async def test_refuses_what_makes_no_sense_and_removes_nothing(
        self, js: jetspark.JetStream, options: dict[str, object], field: str
    ) -> None:
        stream = await js.create_stream(memory(unique()))
        await js.publish(f"{stream.name}.a")
        with pytest.raises(InvalidArgument) as caught:
            await stream.purge(**options)  # type: ignore[arg-type]
        assert caught.value.field == field
        assert (await stream.info()).state.messages == 1

    async def test_is_refused_by_a_stream_that_denies_it(self, js: jetspark.JetStream) -> None:
        stream = await js.create_stream(memory(unique(), deny_purge=True))
        with pytest.raises(jetspark.errors.JetsparkError, match="purge") as caught:
            await stream.purge()
        assert not isinstance(caught.value, MessageNotFound)


async def test_account_info_counts_what_the_account_has(js: jetspark.JetStream) -> None:
    await js.create_stream(memory(unique()))
    info = await js.account_info()
    assert info.streams >= 1
    assert info.limits.max_streams == -1
    assert info.api.level >= 1
    assert info.api.total > 0
    assert info.tiers == {}


async def test_account_info_by_tier(start_server: StartServer, tmp_path: Path) -> None:
    operator = Operator()
    tiers = {"R1": {"streams": 3, "disk_storage": 1_000_000}, "R3": {"streams": 2, "consumer": 7}}
    user = operator.account("TIERS", tiers=tiers).user("u")
    creds = tmp_path / "u.creds"
    creds.write_text(user.creds())
    server = start_server(config=operator.resolver_config())
    async with jetspark.connect(server.url, creds=creds) as nc:
        js = nc.jetstream()
        await js.create_stream(StreamConfig(name="S", subjects=["s"], max_bytes=5000))
        await js.publish("s", b"x" * 100)
        info = await js.account_info()
        assert set(info.tiers) == {"R1", "R3"}
        one, three = info.tiers["R1"], info.tiers["R3"]
        assert (one.limits.max_streams, one.limits.max_storage) == (3, 1_000_000)
        assert (three.limits.max_streams, three.limits.max_consumers) == (2, 7)
        assert (one.streams, three.streams, info.streams) == (1, 0, 1)
        assert one.storage > 100
        assert one.reserved_storage == 5000


async def test_the_context_says_what_it_is(nc: jetspark.Connection) -> None:
    js = nc.jetstream(timeout=2)
    assert (js.api_prefix, js.timeout) == ("$JS.API", 2.0)
    assert repr(js) == "JetStream('$JS.API')"
    assert js.connection.is_connected
    assert nc.jetstream(domain="hub").api_prefix == "$JS.hub.API"
    assert nc.jetstream(api_prefix="other.api.").api_prefix == "other.api"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"domain": "a", "api_prefix": "b"}, "api_prefix"),
        ({"domain": "a.b"}, "domain"),
        ({"domain": ""}, "domain"),
        ({"api_prefix": "a b"}, "api_prefix"),
        ({"api_prefix": "a.*"}, "api_prefix"),
        ({"api_prefix": ""}, "api_prefix"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"timeout": "5"}, "timeout"),
    ],
)
async def test_a_context_refuses_bad_options(
    nc: jetspark.Connection, options: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        nc.jetstream(**options)  # type: ignore[arg-type]
    assert caught.value.field == field
