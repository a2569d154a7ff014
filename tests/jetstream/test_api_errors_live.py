"""Every refusal of the real server that is simple to provoke arrives as the class registered for it."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

import jetspark
from jetspark import ConsumerConfig, RetentionPolicy, StorageType, Stream, StreamConfig, StreamSource, errors
from jetspark.errors import (
    ApiError,
    JetStreamNotEnabled,
    NoStreamResponse,
    PermissionViolationError,
    RequestTimeout,
)
from jetspark.models import ConsumerLimits
from jetspark.server import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from conftest import StartServer

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def prepared() -> Iterator[Server]:
    """A server with one stream or consumer for each thing that can be in the way."""
    with Server(name="errors") as running:
        asyncio.run(_prepare(running.url))
        yield running


async def _prepare(url: str) -> None:
    def memory(name: str, **options: Any) -> StreamConfig:
        options.setdefault("subjects", [f"{name}.>"])
        return StreamConfig(name=name, storage=StorageType.MEMORY, **options)

    async with jetspark.connect(url) as nc:
        js = nc.jetstream()
        have = await js.create_stream(memory("HAVE"))
        await have.create_consumer(ConsumerConfig(durable_name="c"))
        await have.create_consumer(
            ConsumerConfig(durable_name="late", deliver_policy="by_start_sequence", opt_start_seq=5)
        )
        await js.create_stream(
            StreamConfig(name="MIRROR", storage=StorageType.MEMORY, mirror=StreamSource(name="HAVE"))
        )
        await js.create_stream(memory("DENY", deny_purge=True, deny_delete=True))
        limits = ConsumerLimits(max_ack_pending=10, inactive_threshold=10)
        await js.create_stream(memory("LIMITS", consumer_limits=limits))
        await js.create_stream(memory("WQ", retention=RetentionPolicy.WORK_QUEUE))
        queue = await js.create_stream(memory("BUSY", retention=RetentionPolicy.WORK_QUEUE))
        await queue.create_consumer(ConsumerConfig(durable_name="all"))
        full = await js.create_stream(memory("FULL", max_consumers=1, max_msgs=1, discard="new"))
        await full.create_consumer(ConsumerConfig(durable_name="c"))
        await js.create_stream(memory("SMALL", max_msg_size=10))
        await js.create_stream(memory("COUNT", allow_msg_counter=True))
        await js.create_stream(memory("TTL", allow_msg_ttl=True))
        await js.create_stream(memory("LATER", allow_msg_schedules=True))
        sealed = await js.create_stream(memory("SEALED"))
        for subject in ("HAVE.a", "DENY.a", "FULL.a"):
            await js.publish(subject, msg_id="first")
        await js.update_stream(sealed.config.replace(sealed=True))


@pytest_asyncio.fixture
async def js(prepared: Server) -> AsyncIterator[jetspark.JetStream]:
    async with jetspark.connect(prepared.url) as nc:
        yield nc.jetstream()


def check(error: ApiError, err_code: int, name: str) -> None:
    assert error.err_code == err_code
    assert type(error) is getattr(errors, name)
    assert type(error) is ApiError.registry[err_code]
    assert error.code >= 400
    assert error.description
    assert str(err_code) in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.err_code) == (type(error), str(error), err_code)


@pytest.mark.parametrize(
    ("operation", "body", "err_code", "name"),
    [
        ("STREAM.INFO.NONE", None, 10059, "StreamNotFound"),
        ("STREAM.UPDATE.NONE", {"name": "NONE"}, 10059, "StreamNotFound"),
        ("STREAM.DELETE.NONE", None, 10059, "StreamNotFound"),
        ("STREAM.DELETE.HAVE", {"x": 1}, 10038, "BadRequest"),
        ("STREAM.PURGE.NONE", None, 10059, "StreamNotFound"),
        ("STREAM.PURGE.HAVE", {"seq": 1, "keep": 1}, 10003, "BadRequest"),
        ("STREAM.PURGE.DENY", None, 10110, "StreamOperationFailed"),
        ("STREAM.MSG.GET.HAVE", {"seq": 99}, 10037, "MessageNotFound"),
        ("STREAM.MSG.GET.HAVE", {}, 10003, "BadRequest"),
        ("STREAM.MSG.GET.NONE", {"seq": 1}, 10059, "StreamNotFound"),
        ("STREAM.MSG.DELETE.DENY", {"seq": 1}, 10057, "StreamOperationFailed"),
        ("STREAM.SNAPSHOT.HAVE", {}, 10003, "BadRequest"),
        ("STREAM.LEADER.STEPDOWN.HAVE", None, 10010, "ClusterRequired"),
        ("STREAM.PEER.REMOVE.HAVE", {"peer": "x"}, 10010, "ClusterRequired"),
        ("CONSUMER.LEADER.STEPDOWN.HAVE.c", None, 10010, "ClusterRequired"),
        ("CONSUMER.INFO.HAVE.none", None, 10014, "ConsumerNotFound"),
        ("CONSUMER.INFO.NONE.c", None, 10059, "StreamNotFound"),
        ("CONSUMER.DELETE.HAVE.none", None, 10014, "ConsumerNotFound"),
        ("CONSUMER.PAUSE.HAVE.none", {}, 10014, "ConsumerNotFound"),
        ("CONSUMER.RESET.HAVE.late", {"seq": 1}, 10204, "InvalidReset"),
        ("CONSUMER.UNPIN.HAVE.c", {"group": "g"}, 10160, "InvalidPriorityGroup"),
        ("CONSUMER.UNPIN.HAVE.c", {}, 10025, "InvalidJSON"),
    ],
)
async def test_operations(
    js: jetspark.JetStream, operation: str, body: dict[str, Any] | None, err_code: int, name: str
) -> None:
    with pytest.raises(ApiError) as caught:
        await js._api.request(operation, body)
    check(caught.value, err_code, name)


@pytest.mark.parametrize(
    ("config", "err_code", "name"),
    [
        ({"name": "OTHER"}, 10056, "StreamNameMismatch"),
        ({"name": "HAVE", "subjects": ["HAVE.a"]}, 10058, "StreamNameInUse"),
        ({"subjects": ["HAVE.x"]}, 10065, "StreamSubjectsOverlap"),
        ({"subjects": ["a b"]}, 10052, "InvalidStreamConfig"),
        ({"sealed": True}, 10052, "InvalidStreamConfig"),
        ({"max_age": 1000}, 10052, "InvalidStreamConfig"),
        ({"num_replicas": 3}, 10074, "ReplicasNotSupported"),
        ({"max_msgs": "x"}, 10025, "InvalidJSON"),
        ({"no_such_field": 1}, 10025, "InvalidJSON"),
        ({"max_age": SECOND, "pedantic": True}, 10157, "PedanticError"),
        ({"mirror": {"name": "M"}, "subjects": ["y"]}, 10034, "InvalidMirror"),
        ({"mirror": {"name": "M"}, "sources": [{"name": "Q"}]}, 10031, "InvalidMirror"),
        ({"mirror": {"name": "M"}, "first_seq": 5}, 10143, "InvalidMirror"),
        ({"mirror": {"name": "M"}, "allow_msg_counter": True}, 10173, "InvalidMirror"),
        ({"sources": [{"name": "Q"}, {"name": "Q"}]}, 10140, "InvalidSource"),
        (
            {
                "sources": [
                    {"name": "Q", "filter_subject": "a", "subject_transforms": [{"src": "a", "dest": "b"}]}
                ]
            },
            10144,
            "InvalidSource",
        ),
        (
            {"sources": [{"name": "Q", "external": {"api": "$JS.API", "deliver": "d"}}]},
            10021,
            "InvalidExternal",
        ),
        ({"subject_transform": {"src": "a b", "dest": "b"}}, 10155, "InvalidSubjectTransform"),
        (
            {"subject_transform": {"src": "a.*", "dest": "b.{{wildcard(9)}}"}},
            10156,
            "InvalidSubjectTransform",
        ),
    ],
)
async def test_stream_configs(
    js: jetspark.JetStream, config: dict[str, Any], err_code: int, name: str
) -> None:
    body = {"name": "NEW", **config}
    subject_name = "NEW" if body["name"] == "OTHER" else body["name"]
    with pytest.raises(ApiError) as caught:
        await js._api.request(f"STREAM.CREATE.{subject_name}", body)
    check(caught.value, err_code, name)


@pytest.mark.parametrize(
    ("config", "err_code", "name"),
    [
        ({"name": "HAVE", "subjects": ["HAVE.>"], "storage": "file"}, 10052, "InvalidStreamConfig"),
        ({"name": "MIRROR", "storage": "memory", "mirror": {"name": "OTHER"}}, 10055, "MirrorNotUpdatable"),
    ],
)
async def test_stream_updates(
    js: jetspark.JetStream, config: dict[str, Any], err_code: int, name: str
) -> None:
    with pytest.raises(ApiError) as caught:
        await js._api.request(f"STREAM.UPDATE.{config['name']}", config)
    check(caught.value, err_code, name)


@pytest.mark.parametrize(
    ("stream", "config", "err_code", "name"),
    [
        ("NONE", {}, 10059, "StreamNotFound"),
        ("FULL", {}, 10026, "MaximumConsumersReached"),
        ("HAVE", {"durable_name": "other"}, 10017, "InvalidConsumerName"),
        ("HAVE", {"filter_subject": "HAVE.a", "filter_subjects": ["HAVE.b"]}, 10136, "InvalidFilter"),
        ("HAVE", {"filter_subjects": ["HAVE.>", "HAVE.a"]}, 10138, "InvalidFilter"),
        ("HAVE", {"filter_subjects": ["HAVE.a", ""]}, 10139, "InvalidFilter"),
        ("HAVE", {"deliver_policy": "by_start_sequence"}, 10094, "InvalidDeliverPolicy"),
        ("HAVE", {"deliver_policy": "by_start_time"}, 10094, "InvalidDeliverPolicy"),
        ("HAVE", {"deliver_policy": "last_per_subject"}, 10094, "InvalidDeliverPolicy"),
        ("HAVE", {"opt_start_seq": 3}, 10094, "InvalidDeliverPolicy"),
        ("HAVE", {"deliver_subject": "d.*"}, 10079, "InvalidDeliverSubject"),
        ("HAVE", {"deliver_subject": "HAVE.a"}, 10081, "InvalidDeliverSubject"),
        ("HAVE", {"deliver_subject": "d", "max_waiting": 3}, 10080, "PullOnly"),
        ("HAVE", {"flow_control": True}, 10089, "PushOnly"),
        ("HAVE", {"idle_heartbeat": SECOND}, 10088, "PushOnly"),
        ("HAVE", {"rate_limit_bps": 10}, 10086, "PushOnly"),
        ("HAVE", {"direct": True}, 10090, "PushOnly"),
        ("HAVE", {"ack_policy": "flow_control"}, 10218, "PushOnly"),
        ("HAVE", {"deliver_subject": "d", "flow_control": True}, 10108, "InvalidConsumerValue"),
        ("HAVE", {"deliver_subject": "d", "idle_heartbeat": 1000}, 10083, "InvalidConsumerValue"),
        ("HAVE", {"backoff": [1, 2, 3], "max_deliver": 2}, 10116, "InvalidAckSettings"),
        ("HAVE", {"ack_wait": -1}, 10183, "InvalidAckSettings"),
        ("HAVE", {"max_expires": 10}, 10115, "InvalidConsumerValue"),
        ("HAVE", {"sample_freq": "x"}, 10095, "InvalidConsumerValue"),
        ("HAVE", {"description": "x" * 5000}, 10107, "InvalidConsumerValue"),
        ("HAVE", {"metadata": {"x": "y" * 140_000}}, 10135, "InvalidConsumerValue"),
        ("HAVE", {"num_replicas": 3}, 10074, "ReplicasNotSupported"),
        ("HAVE", {"ack_policy": "x"}, 10025, "InvalidJSON"),
        ("HAVE", {"no_such_field": 1}, 10025, "InvalidJSON"),
        ("HAVE", {"priority_policy": "overflow"}, 10159, "InvalidPriorityGroup"),
        ("HAVE", {"priority_groups": ["g"]}, 10196, "InvalidPriorityGroup"),
        ("HAVE", {"priority_policy": "overflow", "priority_groups": ["b d"]}, 10162, "InvalidPriorityGroup"),
        ("HAVE", {"priority_policy": "overflow", "priority_groups": [""]}, 10161, "InvalidPriorityGroup"),
        (
            "HAVE",
            {"priority_policy": "overflow", "priority_groups": ["g"], "deliver_subject": "d"},
            10178,
            "PullOnly",
        ),
        ("LIMITS", {"max_ack_pending": 5000}, 10121, "ConsumerLimitExceeded"),
        ("LIMITS", {"inactive_threshold": 3600 * SECOND}, 10153, "ConsumerLimitExceeded"),
        ("WQ", {"ack_policy": "none"}, 10084, "WorkQueueConflict"),
        ("WQ", {"deliver_policy": "new"}, 10101, "WorkQueueConflict"),
        ("BUSY", {}, 10099, "WorkQueueConflict"),
        ("BUSY", {"filter_subject": "BUSY.a"}, 10100, "WorkQueueConflict"),
    ],
)
async def test_consumer_configs(
    js: jetspark.JetStream, stream: str, config: dict[str, Any], err_code: int, name: str
) -> None:
    full = {"name": "new", "ack_policy": "explicit", **config}
    if "durable_name" in config:
        del full["name"]
    with pytest.raises(ApiError) as caught:
        await js._api.request(f"CONSUMER.CREATE.{stream}.new", {"stream_name": stream, "config": full})
    check(caught.value, err_code, name)


@pytest.mark.parametrize(
    ("action", "consumer", "err_code", "name"),
    [("create", "c", 10148, "ConsumerExists"), ("update", "new", 10149, "ConsumerDoesNotExist")],
)
async def test_consumer_actions(
    js: jetspark.JetStream, action: str, consumer: str, err_code: int, name: str
) -> None:
    config = {"durable_name": consumer, "ack_policy": "all"}
    body = {"stream_name": "HAVE", "config": config, "action": action}
    with pytest.raises(ApiError) as caught:
        await js._api.request(f"CONSUMER.CREATE.HAVE.{consumer}", body)
    check(caught.value, err_code, name)


@pytest.mark.parametrize(
    ("subject", "headers", "err_code", "name"),
    [
        ("HAVE.a", {"Nats-Expected-Stream": "OTHER"}, 10060, "WrongStream"),
        ("HAVE.a", {"Nats-Expected-Last-Sequence": "77"}, 10071, "WrongLastSequence"),
        ("HAVE.a", {"Nats-Expected-Last-Subject-Sequence": "77"}, 10071, "WrongLastSequence"),
        ("HAVE.a", {"Nats-Expected-Last-Msg-Id": "other"}, 10070, "WrongLastMessageId"),
        ("HAVE.a", {"Nats-TTL": "5"}, 10166, "MessageTTLDisabled"),
        ("TTL.a", {"Nats-TTL": "soon"}, 10165, "InvalidMessageTTL"),
        ("HAVE.a", {"Nats-Incr": "1"}, 10168, "CountersDisabled"),
        ("COUNT.a", {"Nats-Incr": "one"}, 10171, "InvalidCounter"),
        ("COUNT.a", {}, 10169, "InvalidCounter"),
        (
            "HAVE.a",
            {"Nats-Schedule": "@every 1h", "Nats-Schedule-Target": "HAVE.b"},
            10188,
            "SchedulesDisabled",
        ),
        (
            "LATER.a",
            {"Nats-Schedule": "sometime", "Nats-Schedule-Target": "LATER.b"},
            10189,
            "InvalidSchedule",
        ),
        ("HAVE.a", {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"}, 10174, "AtomicPublishDisabled"),
        ("SEALED.a", {}, 10109, "StreamSealed"),
        ("SMALL.a", {"A": "0123456789"}, 10054, "MessageTooLarge"),
        ("FULL.a", {}, 10077, "StoreFailed"),
    ],
)
async def test_publishes(
    js: jetspark.JetStream, subject: str, headers: dict[str, str], err_code: int, name: str
) -> None:
    with pytest.raises(ApiError) as caught:
        await js.publish(subject, headers=headers or None)
    check(caught.value, err_code, name)
    assert isinstance(caught.value, errors.PublishRefused)


@pytest.fixture(scope="module")
def limited() -> Iterator[Server]:
    """Two accounts, without JetStream and with little of it."""
    config = """
        accounts {
            NONE { users: [ { user: none, password: x } ] }
            FEW {
                users: [ { user: few, password: x } ]
                jetstream {
                    max_streams: 1, max_consumers: 1, max_mem: 1MB, max_file: 1MB, max_bytes_required: true
                }
            }
        }
        """
    with Server(name="limited", config=config) as running:
        yield running


class TestAccountLimits:
    async def test_an_account_without_jetstream(self, limited: Server) -> None:
        async with jetspark.connect(limited.url, user="none", password="x") as nc:
            with pytest.raises(JetStreamNotEnabled) as caught:
                await nc.jetstream().account_info()
            with pytest.raises(NoStreamResponse):
                await nc.jetstream().publish("a", retries=0)
        check(caught.value, 10039, "JetStreamNotEnabled")

    @pytest.mark.parametrize(
        ("config", "err_code", "name"),
        [
            ({"max_bytes": -1}, 10113, "AccountLimitExceeded"),
            ({"max_bytes": 10_000_000}, 10047, "InsufficientResources"),
            ({"max_bytes": 10_000_000, "storage": "memory"}, 10028, "InsufficientResources"),
        ],
    )
    async def test_what_a_stream_may_take(
        self, limited: Server, config: dict[str, Any], err_code: int, name: str
    ) -> None:
        async with jetspark.connect(limited.url, user="few", password="x") as nc:
            with pytest.raises(ApiError) as caught:
                await nc.jetstream().create_stream(StreamConfig(name="S", subjects=["s"], **config))
        check(caught.value, err_code, name)
        assert isinstance(caught.value, errors.LimitExceeded)

    async def test_how_many_there_may_be(self, limited: Server) -> None:
        async with jetspark.connect(limited.url, user="few", password="x") as nc:
            js = nc.jetstream()
            stream = await js.create_stream(StreamConfig(name="ONE", subjects=["one"], max_bytes=1000))
            with pytest.raises(errors.LimitExceeded) as caught:
                await js.create_stream(StreamConfig(name="TWO", subjects=["two"], max_bytes=1000))
            check(caught.value, 10027, "AccountLimitExceeded")
            await stream.create_consumer(ConsumerConfig(durable_name="one"))
            with pytest.raises(errors.MaximumConsumersReached):
                await stream.create_consumer(ConsumerConfig(durable_name="two"))
            info = await js.account_info()
            assert (info.streams, info.consumers) == (1, 1)
            assert (info.limits.max_streams, info.limits.max_consumers) == (1, 1)
            assert info.limits.max_bytes_required
            assert (info.limits.max_memory, info.limits.max_storage) == (1_048_576, 1_048_576)
            assert info.reserved_storage == 1000
            await stream.delete()


class TestNobodyThere:
    async def test_a_server_without_jetstream(self, start_server: StartServer) -> None:
        server = start_server(jetstream=False)
        async with jetspark.connect(server.url) as nc:
            js = nc.jetstream()
            with pytest.raises(JetStreamNotEnabled, match=r"\$JS\.API\.INFO.*not enabled") as caught:
                await js.account_info()
            assert (caught.value.code, caught.value.err_code) == (503, 0)
            with pytest.raises(NoStreamResponse, match=r"'orders\.new'"):
                await js.publish("orders.new", retries=0)

    async def test_a_domain_that_does_not_exist(self, prepared: Server) -> None:
        async with jetspark.connect(prepared.url) as nc:
            js = nc.jetstream(domain="nowhere")
            with pytest.raises(JetStreamNotEnabled, match=r"\$JS\.nowhere\.API\.STREAM\.INFO\.HAVE.*domain"):
                await js.get_stream("HAVE")

    async def test_a_time_out_names_the_subject_and_the_seconds(self, own_server: Server) -> None:
        async with jetspark.connect(own_server.url) as nc:
            made = await nc.jetstream().create_stream(
                StreamConfig(name="S", subjects=["s"], storage=StorageType.MEMORY, allow_direct=True)
            )
            stream = Stream(nc.jetstream(timeout=0.2), made.cached_info)
            own_server.suspend()
            try:
                with pytest.raises(RequestTimeout, match=r"\$JS\.API\.STREAM\.INFO\.S' within 0\.2s"):
                    await stream.info()
                with pytest.raises(RequestTimeout, match=r"\$JS\.API\.DIRECT\.GET\.S' within 0\.2s"):
                    await stream.get_msg(1)
                with pytest.raises(RequestTimeout, match=r"\$JS\.API\.DIRECT\.GET\.S'.* 0\.2s"):
                    await anext(stream.get_msgs())
            finally:
                own_server.resume()


async def test_no_permission_names_the_subject_at_once(start_server: StartServer) -> None:
    server = start_server(
        config="""authorization { users: [
            { user: u, password: x, permissions: { publish: { deny: "$JS.API.STREAM.DELETE.>" } } } ] }"""
    )
    async with jetspark.connect(server.url, user="u", password="x") as nc, asyncio.timeout(20):
        js = nc.jetstream(timeout=60)
        stream = await js.create_stream(StreamConfig(name="S", subjects=["s"], storage=StorageType.MEMORY))
        with pytest.raises(PermissionViolationError, match=r"\$JS\.API\.STREAM\.DELETE\.S"):
            await stream.delete()
        assert (await stream.info()).config.name == "S"


async def test_an_inbox_without_permission_is_named_each_time(start_server: StartServer) -> None:
    server = start_server(
        config="""authorization { users: [
            { user: u, password: x, permissions: { subscribe: { deny: "_INBOX.>" } } } ] }"""
    )
    async with jetspark.connect(server.url, user="u", password="x") as nc, asyncio.timeout(20):
        js = nc.jetstream(timeout=60)
        for _ in range(2):
            with pytest.raises(PermissionViolationError, match="_INBOX"):
                await js.account_info()
