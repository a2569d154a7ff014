"""`stream copy` of a replicated stream: a replica that is behind makes no shorter copy."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import jetspark
from jetspark import StreamConfig, blocking
from jetspark.cli.errors import CommandFailed
from jetspark.cli.stream import transfer
from support.helpers import three_nodes
from support.lagging import behind, follower_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jetspark.server import Server


@pytest.fixture
async def js(server: Server) -> AsyncIterator[jetspark.JetStream]:
    async with jetspark.connect(server.url) as nc:
        yield nc.jetstream()


@pytest.mark.cluster
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "consumer"])
async def test_a_replica_that_is_behind_makes_no_shorter_copy(
    direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    original = transfer._stored_on_replica

    def counted(*arguments: object) -> object:
        nonlocal reads
        reads += 1
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(transfer, "_stored_on_replica", counted)
    with three_nodes() as cluster, blocking.connect(cluster.urls) as nc:
        publishing = nc.jetstream()
        publishing.create_stream(StreamConfig(name="S", subjects=["s"], num_replicas=3, allow_direct=direct))
        follower = follower_of(cluster, publishing, "S")
        async with jetspark.connect(follower.url) as beside:
            js = beside.jetstream()
            stream = await js.get_stream("S")
            # Whether a copy meets the replica while it is behind is a matter of luck, so until one did.
            for _ in range(20):
                reads = 0
                with behind(follower, publishing, "S", "s") as last:
                    for _ in range(10):
                        found = transfer._stored(js, stream, None, last - 99, None, last)
                        assert [one.sequence async for one in found] == [*range(last - 99, last + 1)]
                if reads > 10:
                    break
        assert reads > 10, "no copy met the replica that was behind"


async def test_from_a_time_on_and_nothing_there(js: jetspark.JetStream) -> None:
    stream = await js.create_stream(StreamConfig(name="COPYTIMES", subjects=["copytimes"]))
    await js.publish("copytimes", b"")
    later = datetime.now(UTC) + timedelta(hours=1)
    assert [one async for one in transfer._stored(js, stream, None, None, later, 1)] == []
    assert [one.sequence async for one in transfer._stored(js, stream, None, None, None, 1)] == [1]
    await stream.delete()


async def test_a_replica_that_never_catches_up_is_an_error(
    js: jetspark.JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real one can't be had: a replica that is away does not answer. So one that has nothing."""

    async def nothing(*arguments: object) -> object:
        for one in ():
            yield one

    monkeypatch.setattr(transfer, "_stored_on_replica", nothing)
    monkeypatch.setattr(transfer, "_LONGEST_PAUSE", 0.1)
    stream = await js.create_stream(StreamConfig(name="COPYSTUCK", subjects=["copystuck"]))
    await js.publish("copystuck", b"")
    with pytest.raises(CommandFailed, match="ends before sequence 1 and does not catch up"):
        await anext(transfer._stored(js, stream, None, None, None, 1))
    await stream.delete()
