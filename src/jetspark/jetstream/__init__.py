"""JetStream: contexts, streams, consumers, publishing."""

from jetspark.jetstream.account import AccountInfo, AccountLimits, AccountTier, ApiStats
from jetspark.jetstream.atomic_batch import AtomicBatch
from jetspark.jetstream.cluster import ClusterInfo, DesiredCluster, DesiredOrigin, DesiredStatus, PeerInfo
from jetspark.jetstream.consumer import Consumer
from jetspark.jetstream.consumer_config import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    PriorityPolicy,
    ReplayPolicy,
)
from jetspark.jetstream.consumer_info import ConsumerInfo, ConsumerPause, PriorityGroupState, SequenceInfo
from jetspark.jetstream.context import JetStream
from jetspark.jetstream.counter import CounterValue
from jetspark.jetstream.fast_flow import FastIngestBroken, IngestGap
from jetspark.jetstream.fast_ingest import FastIngest
from jetspark.jetstream.ordered import OrderedConsumer
from jetspark.jetstream.puback import PubAck
from jetspark.jetstream.publish import Expect
from jetspark.jetstream.publisher import Publisher, PublisherStats, PublishFailed
from jetspark.jetstream.pull_subscribe import PullSubscription
from jetspark.jetstream.schedule import Schedule
from jetspark.jetstream.stored import StoredMsg
from jetspark.jetstream.stream import Stream
from jetspark.jetstream.stream_config import (
    Compression,
    ConsumerLimits,
    ConsumerSource,
    DiscardPolicy,
    External,
    PersistMode,
    Placement,
    RePublish,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamSource,
    SubjectTransform,
)
from jetspark.jetstream.stream_info import (
    LostStreamData,
    StreamAlternate,
    StreamInfo,
    StreamSourceInfo,
    StreamState,
)
from jetspark.jetstream.subscribe import PushSubscription
from jetspark.jetstream.values import Duration, Timestamp

__all__ = [
    "AccountInfo",
    "AccountLimits",
    "AccountTier",
    "AckPolicy",
    "ApiStats",
    "AtomicBatch",
    "ClusterInfo",
    "Compression",
    "Consumer",
    "ConsumerConfig",
    "ConsumerInfo",
    "ConsumerLimits",
    "ConsumerPause",
    "ConsumerSource",
    "CounterValue",
    "DeliverPolicy",
    "DesiredCluster",
    "DesiredOrigin",
    "DesiredStatus",
    "DiscardPolicy",
    "Duration",
    "Expect",
    "External",
    "FastIngest",
    "FastIngestBroken",
    "IngestGap",
    "JetStream",
    "LostStreamData",
    "OrderedConsumer",
    "PeerInfo",
    "PersistMode",
    "Placement",
    "PriorityGroupState",
    "PriorityPolicy",
    "PubAck",
    "PublishFailed",
    "Publisher",
    "PublisherStats",
    "PullSubscription",
    "PushSubscription",
    "RePublish",
    "ReplayPolicy",
    "RetentionPolicy",
    "Schedule",
    "SequenceInfo",
    "StorageType",
    "StoredMsg",
    "Stream",
    "StreamAlternate",
    "StreamConfig",
    "StreamInfo",
    "StreamSource",
    "StreamSourceInfo",
    "StreamState",
    "SubjectTransform",
    "Timestamp",
]
