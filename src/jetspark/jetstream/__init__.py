"""JetStream: contexts, streams, consumers, publishing."""

from jetspark.jetstream.account import AccountInfo, AccountLimits, AccountTier, ApiStats
from jetspark.jetstream.advisories import (
    AckMetric,
    Advisory,
    AdvisoryAction,
    ApiAuditAdvisory,
    BatchAbandonedAdvisory,
    ConsumerActionAdvisory,
    ConsumerLeaderAdvisory,
    ConsumerPauseAdvisory,
    ConsumerQuorumLostAdvisory,
    GenericAdvisory,
    GroupPinnedAdvisory,
    GroupUnpinnedAdvisory,
    MaxDeliveriesAdvisory,
    NakAdvisory,
    ServerOutOfStorageAdvisory,
    StreamActionAdvisory,
    StreamLeaderAdvisory,
    StreamQuorumLostAdvisory,
    TerminatedAdvisory,
    decode_advisory,
)
from jetspark.jetstream.advisory_feed import Advisories
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
from jetspark.jetstream.dead_letters import DeadLetter, DeadLetters
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
    "AckMetric",
    "AckPolicy",
    "Advisories",
    "Advisory",
    "AdvisoryAction",
    "ApiAuditAdvisory",
    "ApiStats",
    "AtomicBatch",
    "BatchAbandonedAdvisory",
    "ClusterInfo",
    "Compression",
    "Consumer",
    "ConsumerActionAdvisory",
    "ConsumerConfig",
    "ConsumerInfo",
    "ConsumerLeaderAdvisory",
    "ConsumerLimits",
    "ConsumerPause",
    "ConsumerPauseAdvisory",
    "ConsumerQuorumLostAdvisory",
    "ConsumerSource",
    "CounterValue",
    "DeadLetter",
    "DeadLetters",
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
    "GenericAdvisory",
    "GroupPinnedAdvisory",
    "GroupUnpinnedAdvisory",
    "IngestGap",
    "JetStream",
    "LostStreamData",
    "MaxDeliveriesAdvisory",
    "NakAdvisory",
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
    "ServerOutOfStorageAdvisory",
    "StorageType",
    "StoredMsg",
    "Stream",
    "StreamActionAdvisory",
    "StreamAlternate",
    "StreamConfig",
    "StreamInfo",
    "StreamLeaderAdvisory",
    "StreamQuorumLostAdvisory",
    "StreamSource",
    "StreamSourceInfo",
    "StreamState",
    "SubjectTransform",
    "TerminatedAdvisory",
    "Timestamp",
    "decode_advisory",
]
