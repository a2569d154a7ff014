"""A publisher tells the truth: acked is stored at that sequence, refused is not, or the error says so."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import StorageType, StreamConfig
from jetspark.errors import (
    ApiError,
    ConnectionClosed,
    NoRespondersError,
    PermissionViolationError,
    PublishFailed,
    RequestTimeout,
)
from jetspark.server import Server
from jetspark.server._ports import ReservedPort
from support.helpers import eventually, unique
from support.lossy_proxy import LossyProxy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jetspark import PubAck, Stream

Futures = dict[bytes, "asyncio.Future[PubAck]"]


async def contents(stream: Stream) -> dict[int, bytes]:
    return {message.sequence: bytes(message.data) async for message in stream.get_msgs()}


def check(futures: Futures, holds: Sequence[dict[int, bytes]]) -> tuple[int, int]:
    """Whether no future lies; how many were acked and refused."""
    acked = refused = 0
    for data, future in futures.items():
        error = future.exception()
        if error is None:
            acked += 1
            seq = future.result().seq
            assert any(held.get(seq) == data for held in holds), f"{data!r} is not stored at {seq}"
        elif isinstance(error, ApiError):
            refused += 1
        else:
            raise error
    return acked, refused


@contextlib.contextmanager
def leaf_and_hub(domains: bool) -> Iterator[tuple[Server, Server]]:
    port = ReservedPort("127.0.0.1")
    port.about_to_listen()
    listen = f'leafnodes {{ host: "127.0.0.1", port: {port.number} }}'
    remote = f'leafnodes {{ remotes: [ {{ url: "nats://127.0.0.1:{port.number}" }} ], reconnect: "100ms" }}'
    try:
        with (
            Server(name="hub", domain="hub" if domains else None, config=listen) as hub,
            Server(name="leaf", domain="leaf" if domains else None, config=remote) as leaf,
        ):
            yield leaf, hub
    finally:
        port.release()


@pytest.mark.parametrize("domains", [True, False], ids=["domains", "no domains"])
@pytest.mark.parametrize("full", [False, True], ids=["room", "full"])
async def test_a_leaf_node_and_its_hub_with_streams_of_one_name(domains: bool, full: bool) -> None:
    """Each message has two answers. ``full``: both streams refuse after a part, at different places."""
    with leaf_and_hub(domains) as (leaf, hub):
        async with jetspark.connect(leaf.url) as nc, jetspark.connect(hub.url) as there:
            contexts = {"leaf": nc.jetstream(), "hub": there.jetstream()}
            streams = {
                name: await js.create_stream(
                    StreamConfig(
                        name="S",
                        subjects=["s"],
                        storage=StorageType.MEMORY,
                        allow_direct=True,
                        first_seq=100_000 if name == "leaf" else None,
                    )
                )
                for name, js in contexts.items()
            }

            async def both() -> bool:
                with contextlib.suppress(NoRespondersError):
                    await contexts["leaf"].publish("s", b"", retries=0)
                return (await streams["hub"].info()).state.messages > 0

            await eventually(both)
            for room, (name, stream) in zip((700, 900), streams.items(), strict=True):
                await stream.purge()
                if full:
                    config = (await stream.info()).config
                    changed = config.replace(max_msgs=room, discard=jetspark.DiscardPolicy.NEW)
                    await contexts[name].update_stream(changed)
            everything: list[Futures] = []
            for turn, js in enumerate([*contexts.values()] * 3):
                async with js.publisher(ack_timeout=30) as publisher:
                    futures: Futures = {}
                    for number in range(500):
                        data = b"%d.%d" % (turn, number)
                        futures[data] = await publisher.publish("s", data)
                    with contextlib.suppress(PublishFailed):
                        await publisher.flush()
                everything.append(futures)

            async def arrived() -> bool:
                infos = [await stream.info() for stream in streams.values()]
                counts = [info.state.messages for info in infos]
                return counts == ([700, 900] if full else [3_000, 3_000])

            await eventually(arrived)
            holds = [await contents(stream) for stream in streams.values()]
            total = [check(futures, holds) for futures in everything]
            if not full:
                assert total == [(500, 0)] * 6
            assert sum(acked for acked, _ in total) >= 700


class Holding(LossyProxy):
    """Holds back the acks of publishes, which are all messages that come down, and lets all else pass."""

    holding = False

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.held: list[bytes] = []
        self._down: asyncio.StreamWriter | None = None

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, upwards: bool) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if upwards:
                await super()._pump(source, sink, upwards=True)
                return
            self._down = sink
            while True:
                line = await source.readuntil(b"\r\n")
                if line.startswith(b"MSG "):
                    line += await source.readexactly(int(line.split()[-1]) + 2)
                    if self.holding:
                        self.held.append(line)
                        continue
                sink.write(line)

    def release(self, count: int | None = None) -> None:
        """Let so many of them pass; None: all of them, and all that come."""
        assert self._down is not None
        self._down.write(b"".join(self.held[:count]))
        del self.held[:count]
        if count is None:
            self.holding = False


def config(denied: str) -> str:
    return f"""authorization {{ users: [
        {{ user: u, password: x, permissions: {{ publish: {{ deny: "{denied}" }} }} }}
        {{ user: admin, password: x }} ] }}"""


async def test_a_permission_taken_away_fails_what_was_refused_and_nothing_else(start_server: Any) -> None:
    """The refusal of a message overtakes the acks of those before it."""
    server = start_server(config=config("nothing"))
    async with (
        Holding(server) as proxy,
        jetspark.connect(proxy.url, user="u", password="x") as nc,
        jetspark.connect(server.url, user="admin", password="x") as admin,
    ):
        js = admin.jetstream()
        await js.create_stream(StreamConfig(name="T", subjects=["T.>"], storage=StorageType.MEMORY))
        async with nc.jetstream().publisher() as publisher:
            await nc.flush()
            proxy.holding = True
            stored = [await publisher.publish("T.a") for _ in range(10)]
            await eventually(lambda: len(proxy.held) == 10)
            await asyncio.to_thread(server.reload, config("T.a"))
            refused = [await publisher.publish("T.a") for _ in range(5)]
            other = await publisher.publish("T.b")
            await eventually(lambda: nc.stats.server_errors == 5)
            await nc.flush()
            assert not any(future.done() for future in [*stored, *refused, other])
            proxy.release()
            assert [(await future).seq for future in stored] == list(range(1, 11))
            assert (await other).seq == 11
            for future in refused:
                with pytest.raises(PermissionViolationError, match=r"T\.a"):
                    await future
            # And from now on at once.
            with pytest.raises(PermissionViolationError):
                await (await publisher.publish("T.a"))
            with pytest.raises(PublishFailed) as caught:
                await publisher.flush()
            assert caught.value.count == 6
        info = await (await js.get_stream("T")).info()
        assert info.state.messages == 11


async def test_a_lost_ack_beside_a_refusal_is_said_to_be_unknown(start_server: Any) -> None:
    server = start_server(config=config("nothing"))
    async with (
        Holding(server) as proxy,
        jetspark.connect(proxy.url, user="u", password="x") as nc,
        jetspark.connect(server.url, user="admin", password="x") as admin,
    ):
        js = admin.jetstream()
        await js.create_stream(StreamConfig(name="T", subjects=["T.>"], storage=StorageType.MEMORY))
        async with nc.jetstream().publisher(ack_timeout=1) as publisher:
            await nc.flush()
            proxy.holding = True
            stored = await publisher.publish("T.a")
            await eventually(lambda: len(proxy.held) == 1)
            await asyncio.to_thread(server.reload, config("T.a"))
            refused = await publisher.publish("T.a")
            # Each may be the one that was refused.
            for future in (stored, refused):
                with pytest.raises(RequestTimeout, match="may be stored"):
                    await future
            with pytest.raises(PublishFailed):
                await publisher.flush()


@pytest.mark.parametrize("then", ["forbidden", "sealed"])
async def test_a_refusal_of_the_second_copy_does_not_say_that_the_first_is_not_stored(
    start_server: Any, then: str
) -> None:
    server = start_server(config=config("nothing"))
    async with (
        Holding(server) as proxy,
        jetspark.connect(proxy.url, user="u", password="x", reconnect_wait=0.01) as nc,
        jetspark.connect(server.url, user="admin", password="x") as admin,
    ):
        stream = await admin.jetstream().create_stream(
            StreamConfig(name="T", subjects=["T.>"], storage=StorageType.MEMORY)
        )
        async with nc.jetstream().publisher(retry=True) as publisher:
            await nc.flush()
            proxy.holding = True
            future = await publisher.publish("T.a", msg_id="1")
            await eventually(lambda: len(proxy.held) == 1)
            if then == "sealed":
                await admin.jetstream().update_stream((await stream.info()).config.replace(sealed=True))
            else:
                await asyncio.to_thread(server.reload, config("T.a"))
            proxy.holding = False
            await proxy.cut()
            with pytest.raises(RequestTimeout, match="may be stored") as caught:
                await future
            cause = caught.value.__cause__
            assert isinstance(cause, PermissionViolationError if then == "forbidden" else ApiError)
            # What is sent once is refused for certain.
            with pytest.raises(type(cause)):
                await (await publisher.publish("T.a", msg_id="2"))
            with pytest.raises(PublishFailed):
                await publisher.flush()
        assert (await stream.info()).state.messages == 1


async def test_flush_waits_for_what_was_published_before_it_and_for_nothing_else(server: Server) -> None:
    async with Holding(server) as proxy, jetspark.connect(proxy.url) as nc:
        name = unique()
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=name, subjects=[name], storage=StorageType.MEMORY))
        async with js.publisher() as publisher:
            await nc.flush()
            proxy.holding = True
            first = await publisher.publish(name)
            flushing = asyncio.create_task(publisher.flush())
            await eventually(lambda: len(proxy.held) == 1)
            second = await publisher.publish(name)
            await eventually(lambda: len(proxy.held) == 2)
            assert not flushing.done()
            proxy.release(1)
            await asyncio.wait_for(flushing, 20)
            assert (first.done(), second.done()) == (True, False)
            proxy.release()
        await stream.delete()


async def test_drain_waits_for_acks(server: Server) -> None:
    async with (
        Holding(server) as proxy,
        jetspark.connect(server.url) as other,
    ):
        name = unique()
        stream = await other.jetstream().create_stream(
            StreamConfig(name=name, subjects=[name], storage=StorageType.MEMORY)
        )
        nc = await jetspark.connect(proxy.url)
        publisher = nc.jetstream().publisher()
        await publisher.__aenter__()
        await nc.flush()
        proxy.holding = True
        futures = [await publisher.publish(name) for _ in range(100)]
        draining = asyncio.create_task(nc.drain())
        await eventually(lambda: len(proxy.held) == 100)
        assert not draining.done()
        proxy.release()
        await draining
        assert [future.result().seq for future in futures] == list(range(1, 101))
        await publisher.__aexit__(None, None, None)
        await stream.delete()


async def test_without_permission_to_get_acks_messages_may_be_stored(start_server: Any) -> None:
    """The server takes the publishes and refuses the subscription to the inbox."""
    server = start_server(
        config="""authorization { users: [
            { user: u, password: x, permissions: { subscribe: { deny: "_INBOX.>" } } }
            { user: admin, password: x } ] }"""
    )
    async with (
        jetspark.connect(server.url, user="u", password="x") as nc,
        jetspark.connect(server.url, user="admin", password="x") as admin,
    ):
        stream = await admin.jetstream().create_stream(
            StreamConfig(name="T", subjects=["T.>"], storage=StorageType.MEMORY)
        )
        async with nc.jetstream().publisher() as publisher:
            future = await publisher.publish("T.a")
            with pytest.raises(RequestTimeout, match="may be stored") as caught:
                await future
            assert isinstance(caught.value.__cause__, PermissionViolationError)
            with pytest.raises(ConnectionClosed, match=r"not permitted to subscribe"):
                await publisher.publish("T.a")
            with pytest.raises(PublishFailed):
                await publisher.flush()

        async def stored() -> bool:
            return (await stream.info()).state.messages == 1

        await eventually(stored)
