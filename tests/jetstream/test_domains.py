"""JetStream of another domain, of another account, and through inboxes of another prefix.

Whatever the road, management, publishing, reading and consumer infos must work through it, and nothing may
fall back to ``$JS.API`` or ``_INBOX``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import jetspark
from jetspark import ConsumerConfig, StorageType, StreamConfig
from jetspark.errors import StreamNotFound
from jetspark.server import Server
from jetspark.server._ports import ReservedPort
from support.helpers import eventually, unique

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def leaf_and_hub() -> Iterator[tuple[Server, Server]]:
    """A leaf node with the domain 'leaf', connected to a hub with the domain 'hub'."""
    port = ReservedPort("127.0.0.1")
    port.about_to_listen()
    listen = f'leafnodes {{ host: "127.0.0.1", port: {port.number} }}'
    remote = f'leafnodes {{ remotes: [ {{ url: "nats://127.0.0.1:{port.number}" }} ], reconnect: "100ms" }}'
    try:
        with (
            Server(name="hub", domain="hub", config=listen) as hub,
            Server(name="leaf", domain="leaf", config=remote) as leaf,
        ):
            yield leaf, hub
    finally:
        port.release()


@pytest.fixture(scope="module")
def accounts() -> Iterator[Server]:
    """OWNER has the streams; GUEST has imported its API under another prefix, and its subjects."""
    config = """
        accounts {
            OWNER {
                jetstream: enabled
                users: [ { user: owner, password: x } ]
                exports: [
                    { service: "$JS.API.>", response_type: stream }
                    { service: "$JS.ACK.>" }
                    { service: "shared.>" }
                ]
            }
            GUEST {
                users: [ { user: guest, password: x } ]
                imports: [
                    { service: { account: OWNER, subject: "$JS.API.>" }, to: "from.owner.API.>" }
                    { service: { account: OWNER, subject: "$JS.ACK.>" } }
                    { service: { account: OWNER, subject: "shared.>" } }
                ]
            }
        }
        """
    with Server(name="accounts", config=config) as running:
        yield running


async def exercise(js: jetspark.JetStream, subject: str) -> None:
    """Every kind of request that goes through the API prefix, and publishes."""
    name = unique()
    config = StreamConfig(name=name, subjects=[f"{subject}.>"], storage=StorageType.MEMORY, allow_direct=True)
    stream = await js.create_stream(config)
    assert (await js.get_stream(name)).config == stream.config
    stream = await js.update_stream(stream.config.replace(description="x"))
    assert stream.config.description == "x"
    assert [one async for one in js.stream_names(f"{subject}.a")] == [name]
    assert [info.config.name async for info in js.list_streams(f"{subject}.a")] == [name]
    assert await js.stream_name_by_subject(f"{subject}.a") == name
    assert (await js.account_info()).streams >= 1

    # Across a leaf node the interest in the subject takes a moment to arrive.
    ack = await js.publish(f"{subject}.a", b"1", msg_id="1", retries=40)
    assert (ack.stream, ack.seq) == (name, 1)
    async with js.publisher(window=10) as publisher:
        for number in range(2, 101):
            await publisher.publish(f"{subject}.{'ab'[number % 2]}", str(number).encode())
    assert publisher.stats.acked == 99

    assert (await stream.get_msg(1)).data == b"1"
    assert (await stream.get_msg(last_by_subject=f"{subject}.b")).sequence == 99
    assert [message.sequence async for message in stream.get_msgs(batch=30)] == list(range(1, 101))
    last = [message.sequence async for message in stream.get_last_msgs_for(f"{subject}.*", batch=1)]
    assert last == [99, 100]
    info = await stream.info(subjects_filter=">")
    assert info.state.subjects == {f"{subject}.a": 51, f"{subject}.b": 49}

    consumer = await stream.create_consumer(ConsumerConfig(durable_name="w", filter_subject=f"{subject}.b"))
    assert (await consumer.info()).num_pending == 49
    assert (await stream.get_consumer("w")).name == "w"
    assert [one async for one in stream.consumer_names()] == ["w"]
    assert (await consumer.reset(51)).num_pending == 25
    first, *others = await consumer.fetch(5, expires=5)
    await first.ack_sync()
    for message in others:
        await message.ack()
    await eventually(lambda: _acked(consumer, others[-1].metadata.sequence.stream))
    async with consumer.consume(stop_after=20) as messages:
        rest = [message async for message in messages]
    assert [message.metadata.sequence.stream for message in rest] == list(range(61, 101, 2))
    await consumer.delete()

    await stream.delete_msg(1)
    assert await stream.purge(keep=10) == 89
    plain = await js.update_stream(stream.config.replace(allow_direct=False))
    assert (await plain.get_msg(100)).data == b"100"
    assert [message.sequence async for message in plain.get_msgs(seq=98)] == [98, 99, 100]
    await plain.delete()
    with pytest.raises(StreamNotFound):
        await js.get_stream(name)


@pytest.mark.parametrize(("connected_to", "domain"), [("hub", "leaf"), ("leaf", "hub"), ("leaf", "leaf")])
async def test_a_domain_through_a_leaf_node(
    leaf_and_hub: tuple[Server, Server], connected_to: str, domain: str
) -> None:
    leaf, hub = leaf_and_hub
    server = leaf if connected_to == "leaf" else hub
    async with jetspark.connect(server.url) as nc:
        js = nc.jetstream(domain=domain)
        await eventually(lambda: _answers(js), timeout=20)
        assert (await js.account_info()).domain == domain
        await exercise(js, unique("subject"))


async def test_domains_are_apart(leaf_and_hub: tuple[Server, Server]) -> None:
    _, hub = leaf_and_hub
    async with jetspark.connect(hub.url) as nc:
        there, here = nc.jetstream(domain="leaf"), nc.jetstream()
        await eventually(lambda: _answers(there), timeout=20)
        name = unique()
        stream = await there.create_stream(
            StreamConfig(name=name, subjects=[name], storage=StorageType.MEMORY)
        )
        assert (await stream.info()).domain == "leaf"
        # The subject's interest travels to the hub on its own.
        await eventually(lambda: _stored(there, name), timeout=10)
        ack = await there.publish(name)
        assert ack.domain == "leaf"
        with pytest.raises(StreamNotFound):
            await here.get_stream(name)
        assert (await here.account_info()).domain == "hub"
        await stream.delete()


async def test_the_api_of_another_account_under_a_prefix(accounts: Server) -> None:
    async with jetspark.connect(accounts.url, user="guest", password="x") as nc:
        js = nc.jetstream(api_prefix="from.owner.API")
        await exercise(js, f"shared.{unique('subject')}")
        with pytest.raises(jetspark.errors.JetsparkError, match="not enabled"):
            await nc.jetstream().account_info()


async def test_prefix_and_account_see_the_same_stream(accounts: Server) -> None:
    async with (
        jetspark.connect(accounts.url, user="guest", password="x") as guest,
        jetspark.connect(accounts.url, user="owner", password="x") as owner,
    ):
        name = unique()
        subject = f"shared.{name}"
        stream = await owner.jetstream().create_stream(
            StreamConfig(name=name, subjects=[subject], storage=StorageType.MEMORY)
        )
        js = guest.jetstream(api_prefix="from.owner.API.")
        ack = await js.publish(subject, b"from guest")
        assert (ack.stream, ack.seq) == (name, 1)
        assert (await stream.get_msg(1)).data == b"from guest"
        assert (await (await js.get_stream(name)).info()).created == stream.cached_info.created


async def test_inboxes_of_another_prefix_where_the_usual_one_is_forbidden() -> None:
    config = """
        authorization { users: [ { user: u, password: x, permissions: {
            publish: ">", subscribe: { allow: ["my.own.inbox.>"] } } } ] }
        """
    with Server(name="inboxes", config=config) as server:
        async with jetspark.connect(server.url, user="u", password="x", inbox_prefix="my.own.inbox") as nc:
            assert nc.new_inbox().startswith("my.own.inbox.")
            await exercise(nc.jetstream(), unique("subject"))
            assert nc.last_error is None


async def test_domain_and_prefix_of_a_context_file(
    accounts: Server, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "nats" / "context"  # type: ignore[operator]
    folder.mkdir(parents=True)
    (folder / "guest.json").write_text(
        json.dumps(
            {"url": accounts.url, "user": "guest", "password": "x", "jetstream_api_prefix": "from.owner.API"}
        )
    )
    (folder / "far.json").write_text(
        json.dumps({"url": accounts.url, "user": "guest", "password": "x", "jetstream_domain": "far"})
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    async with jetspark.connect(context="guest") as nc:
        assert nc.jetstream().api_prefix == "from.owner.API"
        assert (await nc.jetstream().account_info()).api.level >= 1
        assert nc.jetstream(domain="hub").api_prefix == "$JS.hub.API"
    async with jetspark.connect(context="far") as nc:
        assert nc.jetstream().api_prefix == "$JS.far.API"
        assert nc.jetstream(api_prefix="other").api_prefix == "other"


async def _answers(js: jetspark.JetStream) -> bool:
    try:
        await js.account_info()
    except jetspark.errors.JetsparkError:
        return False
    return True


async def _stored(js: jetspark.JetStream, subject: str) -> bool:
    try:
        await js.publish(subject, retries=0)
    except jetspark.errors.NoRespondersError:
        return False
    return True


async def _acked(consumer: jetspark.Consumer, sequence: int) -> bool:
    info = await consumer.info()
    return info.ack_floor.stream_seq == sequence and info.num_ack_pending == 0
