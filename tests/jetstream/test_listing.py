"""Lists and subject counts are complete, however many pages they take."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

import jetspark
from jetspark import ConsumerConfig, StorageType, StreamConfig
from jetspark.errors import InvalidArgument
from jetspark.server import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

STREAMS = CONSUMERS = 1500
# The server answers with at most 100,000 subjects at a time.
SUBJECTS = 100_001


@pytest.fixture(scope="module")
def quiet() -> Iterator[Server]:
    """A server of our own: on the shared one, streams of other tests would come and go in the lists."""
    with Server(name="listing") as running:
        yield running


@pytest_asyncio.fixture
async def js(quiet: Server) -> AsyncIterator[jetspark.JetStream]:
    async with jetspark.connect(quiet.url) as nc:
        yield nc.jetstream(timeout=30)


async def clear(js: jetspark.JetStream) -> None:
    for name in [name async for name in js.stream_names()]:
        await js.delete_stream(name)


async def test_all_streams_are_listed(js: jetspark.JetStream) -> None:
    await clear(js)
    wanted = [f"S{number}" for number in range(STREAMS)]
    await asyncio.gather(
        *(
            js.create_stream(StreamConfig(name=name, subjects=[f"{name}.a"], storage=StorageType.MEMORY))
            for name in wanted
        )
    )
    names = [name async for name in js.stream_names()]
    assert sorted(names) == sorted(wanted)
    infos = [info async for info in js.list_streams()]
    assert sorted(info.config.name for info in infos) == sorted(wanted)
    assert [name async for name in js.stream_names("S77.a")] == ["S77"]
    assert len([name async for name in js.stream_names("*.a")]) == STREAMS
    assert await js.stream_name_by_subject("S1234.a") == "S1234"
    assert (await js.account_info()).streams == STREAMS


@pytest.mark.slow
async def test_all_consumers_are_listed(js: jetspark.JetStream) -> None:
    await clear(js)
    # Left to itself, a 2.15 server stops at 1,000 consumers a stream.
    stream = await js.create_stream(
        StreamConfig(name="C", subjects=["c"], storage=StorageType.MEMORY, max_consumers=CONSUMERS)
    )
    wanted = [f"C{number}" for number in range(CONSUMERS)]
    await asyncio.gather(
        *(stream.create_consumer(ConsumerConfig(durable_name=name, mem_storage=True)) for name in wanted)
    )
    assert sorted([name async for name in stream.consumer_names()]) == sorted(wanted)
    assert sorted([info.name async for info in stream.list_consumers()]) == sorted(wanted)
    assert (await stream.info()).state.consumer_count == CONSUMERS


@pytest.mark.slow
async def test_all_subjects_are_counted(js: jetspark.JetStream) -> None:
    await clear(js)
    stream = await js.create_stream(StreamConfig(name="N", subjects=["n.*"], storage=StorageType.MEMORY))
    async with js.publisher() as publisher:
        for number in range(SUBJECTS):
            await publisher.publish(f"n.{number}")
        for number in range(0, SUBJECTS, 1000):
            await publisher.publish(f"n.{number}")
    info = await stream.info(subjects_filter=">")
    assert info.state.num_subjects == SUBJECTS
    expected = {f"n.{number}": 2 if number % 1000 == 0 else 1 for number in range(SUBJECTS)}
    assert info.state.subjects == expected
    assert stream.cached_info.state.subjects is None


@pytest.mark.slow
async def test_nothing_is_an_empty_list(js: jetspark.JetStream) -> None:
    await clear(js)
    assert [name async for name in js.stream_names()] == []
    assert [info async for info in js.list_streams()] == []
    stream = await js.create_stream(StreamConfig(name="E", subjects=["e"], storage=StorageType.MEMORY))
    assert [name async for name in stream.consumer_names()] == []
    assert [info async for info in stream.list_consumers()] == []


async def test_the_infos_of_named_streams(js: jetspark.JetStream) -> None:
    names = [f"N{number}" for number in range(80)]
    for name in names:
        await js.create_stream(StreamConfig(name=name, subjects=[name], storage=StorageType.MEMORY))
    await js.publish("N7", b"x")
    found = await js.stream_infos([*reversed(names), "NOT-THERE"])
    assert [*found] == [*reversed(names)]
    assert {name: info.state.messages for name, info in found.items() if info.state.messages} == {"N7": 1}
    assert await js.stream_infos([]) == {}
    # An error other than "not found" is not passed over.
    with pytest.raises(InvalidArgument, match="a b"):
        await js.stream_infos(["N1", "a b", "N2"])
    with pytest.raises(InvalidArgument, match="use get_stream"):
        await js.stream_infos("N1")
    await clear(js)
