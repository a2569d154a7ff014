"""Plain messages that share a reply, where more than one server or stream answers: no future may lie."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from group_truth import COMPILED, TOGETHER, WARM, Held, Sent, check_truth, count_lookups, failures_of
from helpers import eventually, three_nodes, unique, until_answered
from jetspark import DiscardPolicy, PublisherStats, StorageType, StreamConfig
from jetspark.errors import NoRespondersError, RequestTimeout
from jetspark.jetstream import publisher_acks
from jetspark.jetstream.errors import ApiError, NoSuitablePeers
from jetspark.jetstream.publisher_stats import PublishUnclear
from jetspark.server import Cluster, Server
from jetspark.server._ports import ReservedPort
from lossy_proxy import LossyProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetspark import Stream
    from jetspark.jetstream.publisher import Publisher

USERS = """
    authorization { users: [
        { user: boss, password: x }
        { user: blind, password: x, permissions: { publish: { deny: "$JS.API.STREAM.MSG.GET.>" } } }
    ] }
    """
TWO_STREAMS = """
    mappings = {
        even: [ { destination: "one.even", weight: 50% }, { destination: "two.even", weight: 50% } ]
        rare: [ { destination: "one.rare", weight: 99% }, { destination: "two.rare", weight: 1% } ]
    }
    """


@pytest.fixture(scope="module")
def users() -> Iterator[Cluster]:
    """Three nodes with a user who may do anything, and one who may not read streams."""
    with three_nodes(USERS, user="boss", password="x") as running:
        yield running


@pytest.fixture(scope="module")
def mapped() -> Iterator[Server]:
    with Server(name="mapped", config=TWO_STREAMS) as running:
        yield running


@pytest.fixture
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups come back soon after trouble, to have more of it in less time."""
    monkeypatch.setattr(publisher_acks, "AFTER_TROUBLE", 100)


async def replicated(js: jetspark.JetStream, **options: Any) -> Stream:
    """A stream of three replicas, whose leader our server knows; it is empty."""
    name = unique()
    config = StreamConfig(
        name=name,
        subjects=[f"{name}.>"],
        num_replicas=3,
        storage=StorageType.MEMORY,
        allow_direct=True,
        **options,
    )
    made: list[Stream] = []

    async def created() -> bool:
        try:
            made.append(await until_answered(lambda: js.create_stream(config)))
        except NoSuitablePeers:
            return False  # a node of a new cluster that its leader has not heard of lately
        return True

    await eventually(created, 30)
    (stream,) = made
    await until_answered(lambda: js.publish(f"{name}.a", b"", retries=100))
    await until_answered(stream.purge)
    await eventually(lambda: is_empty(stream))
    return stream


async def is_empty(stream: Stream) -> bool:
    return (await stream.info()).state.messages == 0


COUNTED_TWICE = 1
"""With replicas and ``discard=new`` the server adds what is on its way to what is stored, and takes a message
off the former only when it is in the latter. In between it has room for one message less than it has.
"""


@pytest.mark.usefixtures("soon_again")
async def test_a_replicated_stream_becomes_full(users: Cluster) -> None:
    """The leader refuses at once, while what it took before waits for the replicas."""
    limit = WARM + COUNTED_TWICE
    async with jetspark.connect(users.urls, user="boss", password="x") as nc:
        js = nc.jetstream()
        stream = await replicated(js, max_msgs=limit, discard=DiscardPolicy.NEW)
        subject = f"{stream.name}.a"
        async with js.publisher() as publisher:
            asked = count_lookups(publisher)
            sent = Sent(publisher)
            await sent.warm_up(subject)
            held = await Held.by(stream)
            assert set(held.by_sequence.values()) <= set(sent.datas), "somebody else took up room"
            assert check_truth(sent, held) == {"acked": WARM}
            for turn in range(20):
                await stream.purge()
                # Groups are back. The room that is left ends anywhere in a group.
                before = Sent(publisher)
                await before.publish(subject, limit - 400 - 3 * turn)
                assert await failures_of(publisher) == 0
                fresh = Sent(publisher)
                await fresh.publish(subject, 1_000)
                failed = await failures_of(publisher)
                fresh.check_empty()
                assert (fresh.most_grouped > 0) == COMPILED
                held = await Held.by(stream)
                assert check_truth(before, held) == {"acked": len(before.datas)}
                assert check_truth(fresh, held) == {"acked": 1_000 - failed, "refused": failed}
                assert 0 <= failed - (1_000 - (400 + 3 * turn)) <= COUNTED_TWICE
                if turn >= 5 and (asked or not COMPILED):
                    break
            assert bool(asked) == COMPILED, "no group was mixed"


@pytest.mark.usefixtures("soon_again")
async def test_a_replicated_stream_takes_what_is_small_enough(users: Cluster) -> None:
    """Then acks and refusals mix at will."""
    async with jetspark.connect(users.urls, user="boss", password="x") as nc:
        js = nc.jetstream()
        stream = await replicated(js, max_bytes=150_000, discard=DiscardPolicy.NEW)
        subject = f"{stream.name}.a"
        async with js.publisher() as publisher:
            asked = count_lookups(publisher)
            warm = Sent(publisher)
            for _ in range(11):
                await warm.publish(subject, 100, size=1_000)
                await warm.settled()
                await stream.purge()
            for turn in range(6):
                fresh = Sent(publisher)
                for number in range(500):
                    await fresh.publish(subject, size=1_000 if number % (2 + turn) else 10)
                failed = await failures_of(publisher)
                fresh.check_empty()
                assert 0 < failed < 500
                held = await Held.by(stream)
                assert check_truth(fresh, held) == {"acked": 500 - failed, "refused": failed}
                await stream.purge()
                await warm.publish(subject, 110, size=1_000)
                assert await failures_of(publisher) == 0
                await stream.purge()
            assert bool(asked) == COMPILED, "no group was mixed"


async def test_a_replicated_stream_that_may_not_be_read(users: Cluster) -> None:
    """Only of the group in which it became full nobody can tell which messages are stored."""
    async with (
        jetspark.connect(users.urls, user="boss", password="x") as boss,
        jetspark.connect(users.urls, user="blind", password="x") as nc,
    ):
        stream = await replicated(boss.jetstream(), max_msgs=WARM + 1_007, discard=DiscardPolicy.NEW)
        subject = f"{stream.name}.a"
        async with nc.jetstream().publisher() as publisher:
            sent = Sent(publisher)
            await sent.warm_up(subject)
            await sent.publish(subject, 2_000)
            failed = await failures_of(publisher)
            sent.check_empty()
            held = await Held.by(stream)
            truth = check_truth(sent, held)
            assert (sent.most_grouped > 0) == COMPILED
            assert truth["unclear"] <= (TOGETHER if COMPILED else 0)
            assert truth["unclear"] + truth["refused"] == failed
            assert truth["acked"] + failed == WARM + 2_000
            assert all(isinstance(error, ApiError | PublishUnclear | None) for error in sent.errors())
            stored = set(held.by_sequence.values())
            assert 0 <= WARM + 1_007 - len(stored) <= COUNTED_TWICE
            # And it goes on.
            await stream.purge()
            later = Sent(publisher)
            await later.publish(subject, 500)
            assert await failures_of(publisher) == 0
            assert check_truth(later, await Held.by(stream)) == {"acked": 500}


async def test_new_leaders(users: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_acks, "AFTER_TROUBLE", 300)
    async with (
        jetspark.connect(users.urls, user="boss", password="x") as boss,
        jetspark.connect(users.urls, user="boss", password="x") as nc,
    ):
        stream = await replicated(boss.jetstream())
        subject = f"{stream.name}.a"

        async def leader() -> Server | None:
            return await asyncio.to_thread(users.leader_of, stream.name)

        async def depose() -> None:
            before = await leader()
            await until_answered(
                lambda: boss.jetstream()._api.request(f"STREAM.LEADER.STEPDOWN.{stream.name}")
            )

            async def deposed() -> bool:
                return await leader() not in (None, before)

            await eventually(deposed, 30)

        async with nc.jetstream().publisher(ack_timeout=5) as publisher:
            all_sent = [Sent(publisher)]
            await all_sent[0].warm_up(subject)
            for _ in range(4):
                sent = Sent(publisher)
                all_sent.append(sent)
                deposing = asyncio.create_task(depose())
                while not deposing.done():
                    await sent.publish(subject, 200)
                    # Without a leader all are refused at once; what was lost on the way need not hold it up.
                    await asyncio.wait(sent.futures[-200:], timeout=0.2)
                await deposing
                # Until groups are back.
                await eventually(lambda: _grouping(publisher, subject, all_sent), 30)
            assert any(sent.most_grouped > 0 for sent in all_sent) == COMPILED
            failed = await failures_of(publisher)
            all_sent[0].check_empty()
        held = await Held.by(stream)
        truths = [check_truth(sent, held) for sent in all_sent]
        assert sum(truth["refused"] + truth["unknown"] for truth in truths) == failed
        assert sum(truth["unclear"] for truth in truths) == 0
        assert sum(truth["acked"] for truth in truths) + failed == publisher.stats.published


async def _grouping(publisher: Publisher, subject: str, all_sent: list[Sent]) -> bool:
    """Whether some more messages share replies, if they ever do, and all are stored."""
    sent = Sent(publisher)
    await sent.publish(subject, 100)
    all_sent.append(sent)
    await sent.settled()
    return (sent.most_grouped > 0) == COMPILED and not any(sent.errors())


async def two_streams(js: jetspark.JetStream, subject: str) -> list[Stream]:
    return [
        await js.create_stream(
            StreamConfig(
                name=unique(name),
                subjects=[f"{name}.{subject}"],
                storage=StorageType.MEMORY,
                allow_direct=True,
            )
        )
        for name in ("one", "two")
    ]


async def test_a_subject_that_is_mapped_to_two_streams(mapped: Server) -> None:
    async with jetspark.connect(mapped.url) as nc:
        js = nc.jetstream()
        streams = await two_streams(js, "even")
        async with js.publisher() as publisher:
            sent = Sent(publisher)
            for _ in range(10):
                await sent.publish("even", WARM)
                assert await failures_of(publisher) == 0
            assert sent.most_grouped == 0
            sent.check_empty()
        holds = [await Held.by(stream) for stream in streams]
        assert check_truth(sent, *holds) == {"acked": 10 * WARM}
        assert all(len(held.by_sequence) > 4 * WARM for held in holds)
        assert publisher.stats == PublisherStats(published=10 * WARM, acked=10 * WARM)


async def test_a_second_stream_that_the_probation_missed(
    mapped: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What shares its reply with a message for another stream gets no ack; nothing is said that is not so."""
    monkeypatch.setattr(publisher_acks, "PROBATION", 5)
    async with jetspark.connect(mapped.url) as nc:
        js = nc.jetstream()
        streams = await two_streams(js, "rare")
        sent: Sent | None = None
        for _ in range(20):  # until no lone message has met the other stream first
            async with js.publisher(ack_timeout=1) as publisher:
                sent = Sent(publisher)
                await sent.publish("rare", 7, size=50)
                await sent.settled()
                await sent.publish("rare", 4_000)
                failed = await failures_of(publisher)
                sent.check_empty()
                later = Sent(publisher)
                for _ in range(3):
                    await later.publish("rare", 2_000)
                    assert await failures_of(publisher) == 0
            holds = [await Held.by(stream) for stream in streams]
            truth = check_truth(sent, *holds)
            assert truth == {"acked": 4_007 - failed} | ({"unknown": failed} if failed else {})
            # Groups are given up.
            assert later.most_grouped == 0
            assert check_truth(later, *holds) == {"acked": 6_000}
            if sent.most_grouped or not COMPILED:
                break
        assert sent is not None
        assert (sent.most_grouped > 0) == COMPILED
        assert (failed > 0) == COMPILED


@pytest.mark.parametrize("domains", [True, False], ids=["domains", "no domains"])
@pytest.mark.parametrize("ahead", ["leaf", "hub", "neither"])
async def test_a_leaf_node_and_its_hub_that_both_store_it(domains: bool, ahead: str) -> None:
    """Under one name, so that only domain and sequence tell the acks apart."""
    with _leaf_and_hub(domains) as (leaf, hub):
        async with jetspark.connect(leaf.url) as nc, jetspark.connect(hub.url) as there:
            contexts = {"leaf": nc.jetstream(), "hub": there.jetstream()}
            streams = {
                name: await js.create_stream(
                    StreamConfig(
                        name="S",
                        subjects=["s"],
                        storage=StorageType.MEMORY,
                        allow_direct=True,
                        first_seq=100_000 if name == ahead else None,
                    )
                )
                for name, js in contexts.items()
            }

            async def both() -> bool:
                try:
                    await contexts["leaf"].publish("s", b"", retries=0)
                except NoRespondersError:
                    return False
                return (await streams["hub"].info()).state.messages > 0

            await eventually(both)
            for stream in streams.values():
                await stream.purge()
            all_sent: list[Sent] = []
            # Whose acks come first, and when the other's begin, differs from one publisher to the next.
            for js in [*contexts.values()] * 5:
                async with js.publisher(ack_timeout=2) as publisher:
                    sent = Sent(publisher)
                    all_sent.append(sent)
                    for count in (WARM, 500, 1_000):
                        await sent.publish("s", count, size=40)
                        await failures_of(publisher)
                        sent.check_empty()
                    assert publisher.stats.acked + publisher.stats.failed == WARM + 1_500
            total = sum(len(sent.datas) for sent in all_sent)

            async def arrived() -> bool:
                infos = [await stream.info() for stream in streams.values()]
                return all(info.state.messages == total for info in infos)

            await eventually(arrived)
            holds = [await Held.by(stream) for stream in streams.values()]
            for sent in all_sent:
                truth = check_truth(sent, *holds)
                assert truth["acked"] + truth["unknown"] == len(sent.datas)
                assert truth["acked"] >= WARM
                assert all(isinstance(error, RequestTimeout | None) for error in sent.errors())


@contextlib.contextmanager
def _leaf_and_hub(domains: bool) -> Iterator[tuple[Server, Server]]:
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


class SplittingProxy(LossyProxy):
    """Lets only so many more bytes of what clients send pass, when it is told to."""

    left: int | None = None

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, upwards: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                if upwards and self.left is not None:
                    data, self.left = data[: self.left], max(0, self.left - len(data))
                sink.write(data)
                await sink.drain()


async def test_a_stream_of_the_same_name_appears_behind_a_leaf_node() -> None:
    """Then there are two acks for each message: as many as a group has, when half of it has arrived."""
    with _leaf_and_hub(domains=False) as (leaf, hub):
        async with (
            SplittingProxy(hub) as proxy,
            jetspark.connect(proxy.url, reconnect_wait=0.01) as nc,
            jetspark.connect(hub.url) as there,
            jetspark.connect(leaf.url) as behind,
        ):
            config = StreamConfig(name="S", subjects=["s"], storage=StorageType.MEMORY, allow_direct=True)
            stream = await there.jetstream().create_stream(config)
            async with nc.jetstream().publisher(ack_timeout=5) as publisher:
                await Sent(publisher).warm_up("s")
                twin = await behind.jetstream().create_stream(config.replace(first_seq=100_000))

                async def both() -> bool:
                    await there.jetstream().publish("s", b"")
                    return (await twin.info()).state.messages > 0

                await eventually(both)
                before = (await twin.info()).state.messages
                sent = Sent(publisher)
                await sent.publish("s", 1 + TOGETHER)  # the first of a write goes alone
                assert (sent.most_grouped > 0) == COMPILED
                # Ten of the group pass, the rest is lost.
                pieces = b"".join(bytes(piece) for piece in nc._out).split(b"PUB ")
                assert len(pieces) == 2 + TOGETHER
                proxy.left = sum(len(piece) + 4 for piece in pieces[1:12])
                heard = nc.stats.in_msgs

                async def arrived() -> bool:
                    return (await twin.info()).state.messages >= before + 11

                await eventually(arrived)
                await eventually(lambda: nc.stats.in_msgs >= heard + 22)
                await proxy.cut()
                proxy.left = None
                await sent.settled()
                await failures_of(publisher)
            truth = check_truth(sent, await Held.by(stream), await Held.by(twin))
            assert truth["unknown"] >= 6


@pytest.mark.parametrize("may_ask", [True, False], ids=["may ask", "may not ask"])
async def test_a_stream_of_another_account(may_ask: bool) -> None:
    """Each message's reply goes through a mapping of its own, whichever subject it is."""
    config = """
        accounts {
            OWNER {
                jetstream: enabled
                users: [ { user: owner, password: x } ]
                exports: [ { service: "shared" }, { service: "$JS.API.>", response_type: stream } ]
            }
            GUEST {
                users: [ { user: guest, password: x } ]
                imports: [
                    { service: { account: OWNER, subject: "shared" } }
                    { service: { account: OWNER, subject: "$JS.API.>" }, to: "from.owner.>" }
                ]
            }
        }
        """
    with Server(name="accounts", config=config) as server:
        async with (
            jetspark.connect(server.url, user="guest", password="x") as guest,
            jetspark.connect(server.url, user="owner", password="x") as owner,
        ):
            stream = await owner.jetstream().create_stream(
                StreamConfig(
                    name="S",
                    subjects=["shared"],
                    storage=StorageType.MEMORY,
                    allow_direct=True,
                    max_msgs=WARM + 2_005,
                    discard=DiscardPolicy.NEW,
                )
            )
            js = guest.jetstream(api_prefix="from.owner") if may_ask else guest.jetstream()
            async with js.publisher(ack_timeout=5) as publisher:
                sent = Sent(publisher)
                await sent.warm_up("shared")
                await sent.publish("shared", 3_000)
                failed = await failures_of(publisher)
                sent.check_empty()
            assert (sent.most_grouped > 0) == COMPILED
            held = await Held.by(stream)
            assert len(held.by_sequence) == WARM + 2_005
            truth = check_truth(sent, held)
            if may_ask or not COMPILED:
                assert truth == {"acked": WARM + 2_005, "refused": 995}
                assert failed == 995
            else:
                # Of the group in which it became full, if it was in the middle of one.
                assert truth["unclear"] <= TOGETHER
                assert truth["refused"] + truth["unclear"] == failed
                assert truth["acked"] + failed == WARM + 3_000
