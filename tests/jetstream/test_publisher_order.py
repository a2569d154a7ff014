"""Order with ``retry``: after a lost connection what has no ack is stored first, and newer messages after it.

Each test makes the moment that it needs: a stopped server reads nothing, so what was sent to it is in flight
and is lost with it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import Publishing, StorageType, StreamConfig
from jetspark.errors import ConnectionLost, PublishFailed, RequestTimeout
from jetspark.jetstream.publish.many import Columns
from support.helpers import eventually, unique
from support.lossy_proxy import LossyProxy

if TYPE_CHECKING:
    from jetspark import Stream
    from jetspark.server import Server


async def make(js: jetspark.JetStream, **options: Any) -> Stream:
    name = unique()
    options.setdefault("storage", StorageType.FILE)
    return await js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"], **options))


async def stored(stream: Stream) -> list[str]:
    return [message.data.decode() async for message in stream.get_msgs()]


async def publish(publisher: jetspark.Publisher, subject: str, numbers: range, how: str = "publish") -> None:
    """One by one, or together in either way."""
    if how == "publish":
        for number in numbers:
            await publisher.publish(subject, str(number).encode(), msg_id=str(number))
    elif how == "many":
        await publisher.publish_many(
            [Publishing(subject, str(number).encode(), msg_id=str(number)) for number in numbers]
        )
    else:
        texts = [str(number).encode() for number in numbers]
        await publisher._publish_columns(Columns([subject] * len(texts), texts, texts))


@pytest.mark.parametrize("how", ["publish", "many", "columns"])
async def test_what_was_in_flight_is_stored_before_what_was_published_while_down(
    own_server: Server, how: str
) -> None:
    async with jetspark.connect(own_server.url, reconnect_wait=0.05) as nc:
        js = nc.jetstream(timeout=20)
        stream = await make(js)
        subject = f"{stream.name}.price"
        async with js.publisher(retry=True, ack_timeout=60) as publisher:
            await publish(publisher, subject, range(20), how)
            await publisher.flush()
            own_server.suspend()
            await publish(publisher, subject, range(20, 70), how)
            own_server.kill()
            await eventually(lambda: not nc.is_connected)
            await publish(publisher, subject, range(70, 120), how)
            own_server.restart()
            await publish(publisher, subject, range(120, 150), how)
        assert await stored(stream) == [str(number) for number in range(150)]
        assert publisher.stats.acked == 150


async def test_what_was_not_written_yet_keeps_its_place(own_server: Server) -> None:
    """The link breaks with messages in the outgoing buffer."""
    async with jetspark.connect(own_server.url, reconnect_wait=0.01) as nc:
        js = nc.jetstream(timeout=20)
        stream = await make(js)
        async with js.publisher(retry=True, ack_timeout=60) as publisher:
            own_server.suspend()
            await publish(publisher, f"{stream.name}.a", range(10))
            await asyncio.sleep(0)  # these are written
            await publish(publisher, f"{stream.name}.a", range(10, 20))
            assert nc._core.link is not None
            nc._core.link.abort(ConnectionLost("cut"))
            own_server.kill()
            await eventually(lambda: not nc.is_connected)
            own_server.restart()
        assert await stored(stream) == [str(number) for number in range(20)]


async def test_a_message_whose_future_failed_is_not_sent_later(own_server: Server) -> None:
    """Without retry: what was buffered when the link broke fails, so it must not be stored afterwards."""
    async with jetspark.connect(own_server.url, reconnect_wait=0.01) as nc:
        js = nc.jetstream(timeout=20)
        stream = await make(js)
        async with js.publisher() as publisher:
            future = await publisher.publish(f"{stream.name}.a", b"lost")
            assert nc._core.link is not None
            nc._core.link.abort(ConnectionLost("cut"))
            with pytest.raises(ConnectionLost):
                await future
            later = await publisher.publish(f"{stream.name}.a", b"later")
            assert (await later).seq == 1
            with pytest.raises(PublishFailed):
                await publisher.flush()
        assert await stored(stream) == ["later"]


async def test_newer_messages_wait_for_a_stream_that_is_not_ready(server: Server) -> None:
    async with (
        LossyProxy(server) as proxy,
        jetspark.connect(proxy.url, reconnect_wait=0.01) as nc,
        jetspark.connect(server.url) as other,
    ):
        js = other.jetstream(timeout=20)
        name = unique()
        async with nc.jetstream(timeout=20).publisher(retry=True, ack_timeout=60) as publisher:
            await nc.flush()
            proxy.swallow_up = True
            for number in range(30):
                await publisher.publish(f"{name}.{number % 3}", str(number).encode(), msg_id=str(number))
            nc._core.outbox.flush()
            await eventually(lambda: proxy.swallowed)
            await proxy.cut()
            # The connection is back, and no stream is there: the oldest is refused again and again.
            await eventually(lambda: publisher.stats.resent >= 3)
            for number in range(30, 60):
                await publisher.publish(f"{name}.{number % 3}", str(number).encode(), msg_id=str(number))
            assert publisher.pending == 60
            stream = await js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"]))
        assert await stored(stream) == [str(number) for number in range(60)]


async def test_each_subject_keeps_its_order_when_one_of_two_streams_is_not_ready(server: Server) -> None:
    async with (
        LossyProxy(server) as proxy,
        jetspark.connect(proxy.url, reconnect_wait=0.01) as nc,
        jetspark.connect(server.url) as other,
    ):
        js = other.jetstream(timeout=20)
        ready = await make(js, storage=StorageType.MEMORY)
        name = unique()
        async with nc.jetstream(timeout=20).publisher(retry=True, ack_timeout=60) as publisher:
            await nc.flush()
            proxy.swallow_up = True
            for number in range(40):
                subject = f"{ready.name}.a" if number % 2 == 0 else f"{name}.a"
                await publisher.publish(subject, str(number).encode(), msg_id=str(number))
            nc._core.outbox.flush()
            await eventually(lambda: proxy.swallowed)
            await proxy.cut()
            await eventually(lambda: publisher.stats.resent >= 5)
            late = await js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"]))
        assert await stored(ready) == [str(number) for number in range(0, 40, 2)]
        assert await stored(late) == [str(number) for number in range(1, 40, 2)]


async def test_a_message_that_no_stream_takes_delays_others_and_does_not_fail_them(
    js: jetspark.JetStream,
) -> None:
    stream = await make(js, storage=StorageType.MEMORY)
    nowhere = unique()
    async with js.publisher(retry=True, ack_timeout=1) as publisher:
        bad = [await publisher.publish(nowhere, msg_id=f"bad{number}") for number in range(5)]
        await eventually(lambda: publisher._flow.recovering)
        good = [await publisher.publish(f"{stream.name}.a", msg_id=str(number)) for number in range(50)]
        assert [(await future).seq for future in good] == list(range(1, 51))
        for future in bad:
            assert isinstance(future.exception(), RequestTimeout | jetspark.errors.NoRespondersError)
        with pytest.raises(PublishFailed) as caught:
            await publisher.flush()
    assert caught.value.count == 5


async def test_a_later_refusal_is_held_against_nobody(js: jetspark.JetStream) -> None:
    """Without retry nothing waits: a refusal is final."""
    stream = await make(js, storage=StorageType.MEMORY)
    async with js.publisher() as publisher:
        refused = await publisher.publish(unique(), msg_id="1")
        good = await publisher.publish(f"{stream.name}.a", msg_id="2")
        assert (await good).seq == 1
        assert isinstance(await asyncio.wait_for(_error(refused), 10), jetspark.errors.NoRespondersError)
        with pytest.raises(PublishFailed):
            await publisher.flush()
    assert publisher.stats.resent == 0


async def _error(future: asyncio.Future[Any]) -> BaseException | None:
    await asyncio.wait([future])
    return future.exception()
