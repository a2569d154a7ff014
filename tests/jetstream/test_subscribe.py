"""The subscribe workflow of ADR-15 on the real server: finding, checking, making and deleting consumers."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import ConsumerConfig, DeliverPolicy, PushSubscription
from jetspark.errors import (
    ConsumerNotFound,
    InvalidArgument,
    PermissionViolationError,
    PushConsumerError,
    PushSubscriptionClosed,
    RequestTimeout,
    StreamNotFound,
)
from jetspark.events import ConsumerDeleteFailed
from jetspark.jetstream.subscribe import checks
from support.consuming import fill, make, make_filled, numbers
from support.helpers import eventually, unique
from support.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from conftest import StartServer
    from jetspark import Message
    from jetspark.server import Server


async def names(js: jetspark.JetStream, stream: str) -> list[str]:
    return [name async for name in js.consumer_names(stream)]


async def take(sub: PushSubscription, count: int) -> list[Message]:
    return [await sub.next(timeout=20) for _ in range(count)]


# --- the stream ----------------------------------------------------------------------------------------


async def test_the_stream_is_found_by_the_subject(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 3)
    async with await js.subscribe(f"{stream.name}.a") as sub:
        assert sub.stream_name == stream.name
        assert numbers(await take(sub, 3)) == [0, 1, 2]
        assert sub.cached_info.config.filter_subject == f"{stream.name}.a"


async def test_exactly_one_stream_must_capture_the_subject(js: jetspark.JetStream) -> None:
    with pytest.raises(StreamNotFound, match="no stream captures"):
        await js.subscribe(unique("nobody"))
    prefix = unique("two")
    await make(js, subjects=[f"{prefix}.a"])
    await make(js, subjects=[f"{prefix}.b"])
    with pytest.raises(StreamNotFound, match="2 streams"):
        await js.subscribe(f"{prefix}.*")


async def test_a_stream_without_a_subject_delivers_everything(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await js.publish(f"{stream.name}.a", b"1")
    await js.publish(f"{stream.name}.b", b"2")
    async with await js.subscribe(stream=stream.name) as sub:
        assert numbers(await take(sub, 2)) == [1, 2]
        assert sub.subject == ""


async def test_neither_subject_nor_stream_is_refused_without_asking(js: jetspark.JetStream) -> None:
    sent = js.connection.stats.out_msgs
    with pytest.raises(InvalidArgument, match="name the stream"):
        await js.subscribe()
    assert js.connection.stats.out_msgs == sent


@pytest.mark.parametrize("option", [{"idle_heartbeat": 1.0}, {"flow_control": True}])
async def test_a_queue_with_heartbeats_or_flow_control_is_refused(
    js: jetspark.JetStream, option: dict[str, Any]
) -> None:
    stream = await make(js)
    sent = js.connection.stats.out_msgs
    with pytest.raises(InvalidArgument, match="does not go with a queue"):
        await js.subscribe(f"{stream.name}.a", queue="q", **option)
    assert js.connection.stats.out_msgs == sent


@pytest.mark.parametrize("policy", ["none", "all"])
async def test_pull_with_ack_none_or_all_is_refused(js: jetspark.JetStream, policy: str) -> None:
    stream = await make(js)
    with pytest.raises(InvalidArgument) as caught:
        await js.pull_subscribe(f"{stream.name}.a", "d", config=ConsumerConfig(ack_policy=policy))
    assert caught.value.field == "ack_policy"


# --- making a consumer ---------------------------------------------------------------------------------


async def test_an_ephemeral_consumer_is_made_and_deleted(js: jetspark.JetStream) -> None:
    stream = await make(js)
    sub = await js.subscribe(f"{stream.name}.a")
    info = await sub.consumer_info()
    assert info.push_bound
    assert info.config.durable_name is None
    assert info.config.deliver_subject == sub.deliver_subject
    assert await names(js, stream.name) == [sub.consumer_name]
    await sub.unsubscribe()
    assert await names(js, stream.name) == []
    assert sub.closed


async def test_a_durable_is_made_with_the_config_given(js: jetspark.JetStream) -> None:
    stream = await make(js)
    config = ConsumerConfig(max_deliver=4, ack_wait=7.0)
    sub = await js.subscribe(
        f"{stream.name}.a", durable="d", config=config, deliver_policy="new", idle_heartbeat=2.0
    )
    found = sub.cached_info.config
    assert (found.durable_name, found.max_deliver, found.ack_wait) == ("d", 4, 7.0)
    assert (found.deliver_policy, found.idle_heartbeat) == (DeliverPolicy.NEW, 2.0)
    await sub.unsubscribe()


async def test_the_subscription_is_there_before_the_consumer(js: jetspark.JetStream, server: Server) -> None:
    """When the request to create arrives, the deliver subject has interest: nothing is sent to nobody."""
    stream = await make(js)
    await fill(js, stream, 5)
    order: list[str] = []
    router = js._core.router
    add, request = router.add, js._api.request

    def adding(sink: Any) -> None:
        order.append(f"SUB {sink.subject}")
        add(sink)

    async def requesting(operation: str, body: Any = None, **rest: Any) -> Any:
        order.append(operation.split(".")[1])
        return await request(operation, body, **rest)

    router.add, js._api.request = adding, requesting  # type: ignore[method-assign]
    sub = await js.subscribe(f"{stream.name}.a")
    del router.add, js._api.request  # type: ignore[method-assign]
    mine = [step for step in order if step in (f"SUB {sub.deliver_subject}", "CREATE")]
    assert mine == [f"SUB {sub.deliver_subject}", "CREATE"]
    assert numbers(await take(sub, 5)) == [0, 1, 2, 3, 4]
    await sub.unsubscribe()


async def test_a_consumer_that_the_server_refuses_leaves_no_subscription(js: jetspark.JetStream) -> None:
    stream = await make(js)
    before = len(js._core.router.sinks)
    with pytest.raises(jetspark.errors.ApiError):
        await js.subscribe(f"{stream.name}.a", config=ConsumerConfig(num_replicas=3))
    assert len(js._core.router.sinks) == before
    assert await names(js, stream.name) == []


# --- queues --------------------------------------------------------------------------------------------


async def test_the_queue_name_is_the_durable_name_and_members_share(js: jetspark.JetStream) -> None:
    stream = await make(js)
    subs = [await js.subscribe(f"{stream.name}.a", queue="workers") for _ in range(3)]
    assert await names(js, stream.name) == ["workers"]
    assert {sub.deliver_subject for sub in subs} == {subs[0].deliver_subject}
    await fill(js, stream, 60)
    await eventually(lambda: sum(sub.pending for sub in subs) == 60)
    got = [numbers(await take(sub, sub.pending)) for sub in subs]
    assert sorted(chain.from_iterable(got)) == list(range(60))
    assert all(part == sorted(part) for part in got)
    for sub in reversed(subs):
        await sub.unsubscribe()
    assert await names(js, stream.name) == ["workers"]


@pytest.mark.parametrize(
    "options", [{}, {"durable": "shared"}, {"config": ConsumerConfig(name="named", inactive_threshold=60)}]
)
async def test_a_queue_keeps_its_consumer_when_the_member_that_made_it_leaves(
    js: jetspark.JetStream, options: dict[str, Any]
) -> None:
    stream = await make(js)
    async with await js.subscribe(f"{stream.name}.a", queue="q", **options) as first:
        second = await js.subscribe(f"{stream.name}.a", queue="q", **options)
        name = first.consumer_name
    await fill(js, stream, 3)
    assert numbers(await take(second, 3)) == [0, 1, 2]
    await second.drain()
    assert await names(js, stream.name) == [name]


async def test_a_queue_refuses_to_delete_its_consumer(js: jetspark.JetStream) -> None:
    stream = await make(js)
    with pytest.raises(InvalidArgument, match="other members of queue 'q'") as caught:
        await js.subscribe(f"{stream.name}.a", queue="q", delete_on_close=True)
    assert caught.value.field == "delete_on_close"
    assert await names(js, stream.name) == []


# --- binding -------------------------------------------------------------------------------------------


async def is_bound(consumer: jetspark.Consumer, wanted: bool) -> bool:
    """Whether the server has noticed that somebody listens, or that nobody does any more."""
    return (await consumer.info()).push_bound is wanted


async def test_binding_goes_on_where_the_consumer_is_and_leaves_it(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 4, deliver_subject=unique("deliver"))
    sub = await js.subscribe(stream=stream.name, consumer="worker")
    for message in await take(sub, 2):
        await message.ack_sync()
    await sub.unsubscribe()
    assert (await consumer.info()).ack_floor.stream_seq == 2
    await eventually(lambda: is_bound(consumer, False))
    sub = await js.subscribe(f"{stream.name}.a", durable="worker")
    assert sub.deliver_subject == consumer.config.deliver_subject
    await sub.drain()
    assert await names(js, stream.name) == ["worker"]


async def test_a_consumer_to_bind_to_must_exist(js: jetspark.JetStream) -> None:
    stream = await make(js)
    with pytest.raises(ConsumerNotFound):
        await js.subscribe(f"{stream.name}.a", consumer="nobody")
    assert await names(js, stream.name) == []


async def test_a_second_subscription_is_refused_until_the_first_has_gone(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 0, deliver_subject=unique("deliver"))
    first = await js.subscribe(f"{stream.name}.a", durable="worker")
    await eventually(lambda: is_bound(consumer, True))
    with pytest.raises(checks.ConsumerInUse, match="push_bound"):
        await js.subscribe(f"{stream.name}.a", durable="worker")
    with pytest.raises(checks.ConsumerInUse):
        await js.subscribe(stream=stream.name, consumer="worker")
    await first.unsubscribe()
    await eventually(lambda: is_bound(consumer, False))
    async with await js.subscribe(f"{stream.name}.a", durable="worker") as second:
        assert second.consumer_name == "worker"


@pytest.mark.parametrize(
    ("config", "options", "error"),
    [
        ({"deliver_group": "g"}, {}, checks.QueueRequired),
        ({"deliver_group": "g"}, {"queue": "other"}, checks.QueueMismatch),
        ({}, {"queue": "q"}, checks.NoDeliverGroup),
        ({"deliver_group": "g", "flow_control": True}, {"queue": "g"}, checks.QueueFlowControl),
        ({"deliver_group": "g"}, {"queue": "g"}, checks.QueueHeartbeat),
        ({"idle_heartbeat": None}, {"idle_heartbeat": 3.0}, checks.ConsumerConfigMismatch),
        ({}, {"config": ConsumerConfig(max_deliver=9)}, checks.ConsumerConfigMismatch),
        ({}, {"config": ConsumerConfig(deliver_subject="elsewhere")}, checks.ConsumerConfigMismatch),
        ({"filter_subject": "{stream}.b"}, {}, checks.SubjectMismatch),
        ({"deliver_subject": None, "idle_heartbeat": None}, {}, checks.PullRequired),
    ],
)
async def test_a_consumer_that_does_not_fit_is_refused_and_left_alone(
    js: jetspark.JetStream, config: dict[str, Any], options: dict[str, Any], error: type[Exception]
) -> None:
    stream = await make(js)
    config = {"durable_name": "d", "deliver_subject": unique("deliver"), "idle_heartbeat": 1.0} | config
    if "filter_subject" in config:
        config["filter_subject"] = config["filter_subject"].format(stream=stream.name)
    consumer = await stream.create_consumer(ConsumerConfig(**config))
    before = len(js._core.router.sinks)
    with pytest.raises(error):
        await js.subscribe(f"{stream.name}.a", durable="d", **options)
    assert len(js._core.router.sinks) == before
    assert (await consumer.info()).config == consumer.config


async def test_pulling_from_a_push_consumer_is_refused(js: jetspark.JetStream) -> None:
    stream, consumer = await make_filled(js, 1, deliver_subject=unique("deliver"))
    with pytest.raises(PushConsumerError):
        await js.pull_subscribe(f"{stream.name}.a", "worker")
    with pytest.raises(PushConsumerError):
        consumer.fetch(1)
    with pytest.raises(PushConsumerError):
        await consumer.next()


# --- the lost race -------------------------------------------------------------------------------------


async def lose_the_race(js: jetspark.JetStream, stream: str, config: ConsumerConfig, **options: Any) -> Any:
    """Subscribe, while somebody else makes the consumer between our look-up and our creation."""
    put = js._put_consumer
    lost = []

    async def late(stream: str, wanted: ConsumerConfig, action: str, pedantic: bool) -> Any:
        lost.append(wanted.deliver_subject)
        js._put_consumer = put  # type: ignore[method-assign]
        await js.create_consumer(stream, config)
        return await put(stream, wanted, action, pedantic)

    js._put_consumer = late  # type: ignore[method-assign]
    try:
        sub = await js.subscribe(f"{stream}.a", **options)
    finally:
        js._put_consumer = put  # type: ignore[method-assign]
    assert lost
    assert sub.deliver_subject not in lost
    return sub


async def test_who_loses_the_race_moves_to_the_real_deliver_subject(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 4)
    deliver = unique("deliver")
    winner = ConsumerConfig(durable_name="q", deliver_subject=deliver, deliver_group="q")
    before = len(js._core.router.sinks)
    sub = await lose_the_race(js, stream.name, winner, queue="q")
    assert (sub.deliver_subject, sub.queue) == (deliver, "q")
    assert len(js._core.router.sinks) == before + 1
    assert numbers(await take(sub, 4)) == [0, 1, 2, 3]
    await sub.unsubscribe()
    assert await names(js, stream.name) == ["q"]


async def test_the_winner_is_checked_like_any_other_consumer(js: jetspark.JetStream) -> None:
    stream = await make(js)
    before = len(js._core.router.sinks)
    plain = ConsumerConfig(durable_name="q", deliver_subject=unique("deliver"))
    with pytest.raises(checks.NoDeliverGroup):
        await lose_the_race(js, stream.name, plain, queue="q")
    await js.delete_consumer(stream.name, "q")
    with pytest.raises(checks.PullRequired):
        await lose_the_race(js, stream.name, ConsumerConfig(durable_name="q"), durable="q")
    assert len(js._core.router.sinks) == before


async def test_members_that_start_at_the_same_time_all_get_in(server: Server) -> None:
    """No order is forced here: whoever loses must end up on the winner's deliver subject."""
    connections = [await jetspark.connect(server.url) for _ in range(6)]
    js = connections[0].jetstream()
    stream = await make(js)
    subs = await asyncio.gather(
        *(nc.jetstream().subscribe(f"{stream.name}.a", queue="q") for nc in connections)
    )
    assert len({sub.deliver_subject for sub in subs}) == 1
    await fill(js, stream, 120)
    await eventually(lambda: sum(sub.pending for sub in subs) == 120)
    for nc in connections:
        await nc.close()


@pytest.mark.parametrize("deliver", [None, "chosen"])
async def test_a_durable_raced_for_without_a_queue_has_one_winner(
    server: Server, deliver: str | None
) -> None:
    config = ConsumerConfig(deliver_subject=deliver and unique(deliver))
    connections = [await jetspark.connect(server.url) for _ in range(5)]
    stream = await make(connections[0].jetstream())
    results = await asyncio.gather(
        *(nc.jetstream().subscribe(f"{stream.name}.a", durable="d", config=config) for nc in connections),
        return_exceptions=True,
    )
    winners = [result for result in results if isinstance(result, PushSubscription)]
    assert len(winners) == 1, results
    assert all(isinstance(result, checks.ConsumerInUse) for result in results if result not in winners)
    for nc in connections:
        await nc.close()


# --- unsubscribe and drain -----------------------------------------------------------------------------


async def test_what_the_library_made_is_deleted_when_asked_and_nothing_else(js: jetspark.JetStream) -> None:
    stream, _ = await make_filled(js, 0, deliver_subject=unique("deliver"))
    made = await js.subscribe(f"{stream.name}.a", durable="made", delete_on_close=True)
    bound = await js.subscribe(f"{stream.name}.a", durable="worker", delete_on_close=True)
    assert set(await names(js, stream.name)) == {"made", "worker"}
    await made.unsubscribe()
    await bound.unsubscribe()
    assert await names(js, stream.name) == ["worker"]


@pytest.mark.parametrize("end", ["unsubscribe", "drain", "block"])
async def test_a_durable_keeps_its_place_for_the_next_start(js: jetspark.JetStream, end: str) -> None:
    stream = await make(js)
    await fill(js, stream, 2)
    async with await js.subscribe(f"{stream.name}.a", durable="d") as sub:
        for message in await take(sub, 2):
            await message.ack_sync()
        if end != "block":
            await getattr(sub, end)()
    consumer = await js.get_consumer(stream.name, "d")
    assert (await consumer.info()).ack_floor.stream_seq == 2
    await eventually(lambda: is_bound(consumer, False))
    await fill(js, stream, 1, start=2)
    async with await js.subscribe(f"{stream.name}.a", durable="d", delete_on_close=True) as sub:
        assert numbers(await take(sub, 1)) == [2]
    # It was there before, so it is not this subscription's to delete.
    assert await names(js, stream.name) == ["d"]


async def test_an_ephemeral_consumer_stays_when_asked(js: jetspark.JetStream) -> None:
    stream = await make(js)
    async with await js.subscribe(f"{stream.name}.a", delete_on_close=False) as sub:
        name = sub.consumer_name
    assert await names(js, stream.name) == [name]
    with pytest.raises(InvalidArgument, match="ordered"):
        await js.subscribe(f"{stream.name}.a", ordered=True, delete_on_close=False)


async def test_unsubscribe_drops_what_is_buffered_and_may_be_repeated(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 5)
    sub = await js.subscribe(f"{stream.name}.a")
    await eventually(lambda: sub.pending == 5)
    await sub.unsubscribe()
    assert sub.pending == 0
    with pytest.raises(PushSubscriptionClosed, match="subscribe again"):
        await sub.next()
    await sub.unsubscribe()
    assert [message async for message in sub] == []


async def test_unsubscribe_after_a_number_of_messages(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 9)
    sub = await js.subscribe(f"{stream.name}.a")
    first = await take(sub, 1)
    await sub.unsubscribe(max_messages=4)
    rest = [message async for message in sub]
    assert numbers(first + rest) == [0, 1, 2, 3]
    await eventually(lambda: is_gone(js, stream.name))
    with pytest.raises(InvalidArgument):
        await sub.unsubscribe(max_messages=-1)


async def is_gone(js: jetspark.JetStream, stream: str) -> bool:
    return await names(js, stream) == []


async def test_drain_hands_out_the_rest_and_deletes_behind_the_last(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 5)
    sub = await js.subscribe(f"{stream.name}.a", durable="d", delete_on_close=True)
    await eventually(lambda: sub.pending == 5)
    await sub.drain()
    await fill(js, stream, 3, start=5)
    assert sub.closed
    got = []
    async for message in sub:
        # Still there: what is handed out can be acked.
        await message.ack_sync()
        got.append(message)
    assert numbers(got) == [0, 1, 2, 3, 4]
    await eventually(lambda: is_gone(js, stream.name))


async def test_drain_waits_for_the_callback_then_deletes(js: jetspark.JetStream) -> None:
    stream = await make(js)
    await fill(js, stream, 20)
    got: list[int] = []
    gate = asyncio.Event()

    async def handle(message: Message) -> None:
        await gate.wait()
        got.append(int(message.data))

    sub = await js.subscribe(f"{stream.name}.a", callback=handle)
    await eventually(lambda: sub.delivered + sub.pending == 20)
    draining = asyncio.ensure_future(sub.drain())
    await js.connection.flush()
    assert not draining.done()
    gate.set()
    await draining
    assert got == list(range(20))
    assert await names(js, stream.name) == []


@pytest.fixture
def guarded(start_server: StartServer) -> Server:
    return start_server(
        name="guarded",
        config="""
        authorization { users = [
          { user: free, password: pw }
          { user: keeper, password: pw, permissions: { publish: { deny: ["$JS.API.CONSUMER.DELETE.>"] } } }
          { user: deaf, password: pw, permissions: { subscribe: { deny: ["deliver.>"] } } }
        ] }""",
    )


@pytest.fixture
async def keeper(guarded: Server) -> AsyncIterator[tuple[jetspark.JetStream, Recorder]]:
    events = Recorder()
    async with jetspark.connect(guarded.url, user="keeper", password="pw", listener=events) as nc:
        yield nc.jetstream(), events


async def test_unsubscribe_raises_when_the_consumer_can_not_be_deleted(
    keeper: tuple[jetspark.JetStream, Recorder],
) -> None:
    js, _ = keeper
    stream = await make(js)
    sub = await js.subscribe(f"{stream.name}.a", durable="d", delete_on_close=True)
    with pytest.raises((PermissionViolationError, RequestTimeout)):
        await sub.unsubscribe()
    assert await names(js, stream.name) == ["d"]


async def test_a_drain_whose_late_deletion_fails_tells_so_in_an_event(
    keeper: tuple[jetspark.JetStream, Recorder],
) -> None:
    js, events = keeper
    stream = await make(js)
    await fill(js, stream, 1)
    sub = await js.subscribe(f"{stream.name}.a", durable="d", delete_on_close=True)
    await eventually(lambda: sub.pending == 1)
    await sub.drain()
    assert events.of(ConsumerDeleteFailed) == []
    assert numbers([message async for message in sub]) == [0]
    event = await events.wait(ConsumerDeleteFailed)
    assert (event.stream, event.consumer) == (stream.name, "d")
    assert isinstance(event.error, PermissionViolationError | RequestTimeout)


async def test_a_deliver_subject_that_may_not_be_subscribed_is_an_error(guarded: Server) -> None:
    async with (
        jetspark.connect(guarded.url, user="free", password="pw") as free,
        jetspark.connect(guarded.url, user="deaf", password="pw") as deaf,
    ):
        stream, _ = await make_filled(free.jetstream(), 1, deliver_subject="deliver.x")
        with pytest.raises(PermissionViolationError, match=r"deliver\.x"):
            await deaf.jetstream().subscribe(f"{stream.name}.a", durable="worker")
        with pytest.raises(PermissionViolationError, match=r"deliver\.y"):
            await deaf.jetstream().subscribe(
                f"{stream.name}.a", durable="new", config=ConsumerConfig(deliver_subject="deliver.y")
            )
        assert await names(free.jetstream(), stream.name) == ["worker"]


async def test_a_consumer_that_is_gone_already_is_no_error(js: jetspark.JetStream) -> None:
    stream = await make(js)
    sub = await js.subscribe(f"{stream.name}.a")
    await js.delete_consumer(stream.name, sub.consumer_name)
    await sub.unsubscribe()
    assert sub.closed


async def test_draining_the_connection_drains_its_push_subscriptions(server: Server) -> None:
    async with jetspark.connect(server.url) as other:
        js = other.jetstream()
        stream = await make(js)
        await fill(js, stream, 50)
        got: list[int] = []
        gate = asyncio.Event()

        async def handle(message: Message) -> None:
            await gate.wait()
            got.append(int(message.data))

        nc = await jetspark.connect(server.url)
        sub = await nc.jetstream().subscribe(f"{stream.name}.a", callback=handle)
        await eventually(lambda: sub.delivered + sub.pending == 50)
        draining = asyncio.ensure_future(nc.drain())
        await other.flush()
        gate.set()
        await draining
        assert got == list(range(50))
        assert await names(js, stream.name) == []
