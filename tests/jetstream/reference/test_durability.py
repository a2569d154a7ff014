"""Durable and ephemeral consumers, their names, and ordered ones: the reference on the real server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import jetspark
from jetspark import AckPolicy, ConsumerConfig, StorageType
from jetspark.errors import ConsumerNotFound, InvalidArgument, OrderedReset
from support.consuming import durable, fill, make, make_filled, numbers
from support.deliveries import gone, take
from support.helpers import eventually

if TYPE_CHECKING:
    from jetspark.server import Server

pytestmark = pytest.mark.slow


async def test_clients_of_a_durable_resume_until_it_is_deleted(
    js: jetspark.JetStream, server: Server
) -> None:
    stream, consumer = await make_filled(js, 4)
    for message in await consumer.fetch(2):
        await message.ack_sync()
    async with jetspark.connect(server.url) as nc:
        again = await nc.jetstream().get_consumer(stream.name, "worker")
        assert numbers(await again.fetch(2)) == [2, 3]
        await again.delete()
    with pytest.raises(ConsumerNotFound):
        await consumer.info()


@pytest.mark.parametrize(
    "name", ["a b", "a.b", "a*", "a>", "a/b", "a\\b", "a\tb", "a\nb", "a\x00b", "a\x7fb"]
)
@pytest.mark.parametrize("field", ["durable_name", "name"])
async def test_names_that_a_consumer_can_not_have(js: jetspark.JetStream, field: str, name: str) -> None:
    stream = await make(js)
    with pytest.raises(InvalidArgument) as caught:
        await stream.create_consumer(ConsumerConfig(**{field: name}))
    assert (caught.value.field, caught.value.value) == (field, name)
    assert [info async for info in stream.list_consumers()] == []


@pytest.mark.parametrize("name", ["a-b_C", "größe", "日本", "a,b;c", "x" * 255])
async def test_names_that_it_can_have(js: jetspark.JetStream, name: str) -> None:
    stream, consumer = await make_filled(js, 1, durable_name=name)
    assert (await stream.get_consumer(name)).name == name
    message = await take(consumer)
    assert message.metadata.consumer == name
    await message.ack_sync()


async def test_durables_outlive_the_server_and_ephemerals_do_not(own_server: Server) -> None:
    """A single server finds an ephemeral on its disk again, and removes it since nobody is bound to it."""
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream()
        stream = await make(js, storage=StorageType.FILE)
        await fill(js, stream, 3)
        kept = await durable(stream, durable_name="kept")
        await (await take(kept)).ack_sync()
        ephemeral = await stream.create_consumer(ConsumerConfig())
        await (await take(ephemeral)).ack_sync()
    own_server.restart()
    async with jetspark.connect(own_server.url) as nc:
        js = nc.jetstream()
        again = await js.get_consumer(stream.name, "kept")
        assert numbers([await take(again)]) == [1]

        async def only_the_durable() -> bool:
            return [name async for name in js.consumer_names(stream.name)] == ["kept"]

        await eventually(only_the_durable, timeout=15)


async def test_an_ephemeral_is_removed_when_nobody_uses_it(js: jetspark.JetStream) -> None:
    stream = await make(js)
    began = time.monotonic()
    ephemeral = await stream.create_consumer(ConsumerConfig())
    staying = await durable(stream)
    await eventually(lambda: gone(ephemeral), timeout=20)
    # The server's own default, 5 s.
    assert time.monotonic() - began > 4
    assert not await gone(staying)


async def test_both_kinds_deliver_alike(js: jetspark.JetStream) -> None:
    stream, lasting = await make_filled(js, 2, ack_wait=0.3)
    passing = await stream.create_consumer(ConsumerConfig(ack_wait=0.3))
    for consumer in (lasting, passing):
        # Together: a second request could get the first message once more.
        first, second = await consumer.fetch(2)
        await second.ack_sync()
        again = await take(consumer)
        assert (first.data, again.data, again.metadata.num_delivered) == (b"0", b"0", 2)


async def test_an_inactive_threshold_keeps_a_named_consumer_as_long(js: jetspark.JetStream) -> None:
    stream = await make(js)
    named = await stream.create_consumer(ConsumerConfig(name="n", inactive_threshold=3600))
    assert named.config.durable_name is None
    assert named.config.inactive_threshold == 3600
    plain = await stream.create_consumer(ConsumerConfig(name="p"))
    # The one without is gone after 5 s; the other is still there.
    await eventually(lambda: gone(plain), timeout=20)
    assert not await gone(named)


# Ordered consumers


async def test_an_ordered_consumer_is_ephemeral_without_acks_and_in_memory(js: jetspark.JetStream) -> None:
    stream = await make(js, storage=StorageType.FILE)
    await fill(js, stream, 2)
    async with await stream.create_ordered_consumer() as ordered:
        message = await ordered.next(expires=5)
        assert message is not None
        config = (await ordered.info()).config
        assert config.durable_name is None
        assert config.ack_policy is AckPolicy.NONE
        assert (config.mem_storage, config.num_replicas) == (True, 1)
        await message.ack()
        assert not message.is_acked
    names = [name async for name in stream.consumer_names()]
    assert names == []


async def test_an_ordered_consumer_is_made_anew_when_it_is_lost(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 10)
    seen: list[Exception] = []
    async with await stream.create_ordered_consumer() as ordered:
        got = []
        async with ordered.consume(max_messages=2, on_error=seen.append) as messages:
            async for message in messages:
                got.append(int(message.data))
                if len(got) == 4:
                    await js.delete_consumer(stream.name, (await ordered.info()).name)
                if len(got) == 10:
                    break
    assert got == list(range(10))
    assert any(isinstance(error, OrderedReset) for error in seen)


async def test_two_ordered_consumers_share_nothing(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 5)
    for _ in range(2):
        async with await stream.create_ordered_consumer() as ordered:
            assert numbers(await ordered.fetch(5)) == [0, 1, 2, 3, 4]


async def test_an_ordered_push_subscription_paces_itself(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 5)
    async with await js.subscribe(f"{stream.name}.>", ordered=True) as sub:
        assert numbers([await sub.next() for _ in range(5)]) == [0, 1, 2, 3, 4]
        config = (await sub.consumer_info()).config
        assert config.flow_control
        assert config.idle_heartbeat
        assert config.durable_name is None
        assert (config.ack_policy, config.max_deliver) == (AckPolicy.NONE, 1)
