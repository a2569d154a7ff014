"""JetStream: contexts, streams, consumers, publishing."""

from typing import TYPE_CHECKING

from jetspark._lazy import exports

if TYPE_CHECKING:
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
    from jetspark.jetstream.publisher import Publisher
    from jetspark.jetstream.publisher_stats import PublisherFull, PublisherStats, PublishFailed
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
    "PublisherFull",
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

# The imports above, for run time.
_PLACES = {
    "jetspark.jetstream.account": "AccountInfo AccountLimits AccountTier ApiStats",
    "jetspark.jetstream.advisories": (
        "AckMetric Advisory AdvisoryAction ApiAuditAdvisory BatchAbandonedAdvisory ConsumerActionAdvisory "
        "ConsumerLeaderAdvisory ConsumerPauseAdvisory ConsumerQuorumLostAdvisory GenericAdvisory "
        "GroupPinnedAdvisory GroupUnpinnedAdvisory MaxDeliveriesAdvisory NakAdvisory "
        "ServerOutOfStorageAdvisory StreamActionAdvisory StreamLeaderAdvisory StreamQuorumLostAdvisory "
        "TerminatedAdvisory decode_advisory"
    ),
    "jetspark.jetstream.advisory_feed": "Advisories",
    "jetspark.jetstream.atomic_batch": "AtomicBatch",
    "jetspark.jetstream.cluster": "ClusterInfo DesiredCluster DesiredOrigin DesiredStatus PeerInfo",
    "jetspark.jetstream.consumer": "Consumer",
    "jetspark.jetstream.consumer_config": (
        "AckPolicy ConsumerConfig DeliverPolicy PriorityPolicy ReplayPolicy"
    ),
    "jetspark.jetstream.consumer_info": "ConsumerInfo ConsumerPause PriorityGroupState SequenceInfo",
    "jetspark.jetstream.context": "JetStream",
    "jetspark.jetstream.counter": "CounterValue",
    "jetspark.jetstream.dead_letters": "DeadLetter DeadLetters",
    "jetspark.jetstream.fast_flow": "FastIngestBroken IngestGap",
    "jetspark.jetstream.fast_ingest": "FastIngest",
    "jetspark.jetstream.ordered": "OrderedConsumer",
    "jetspark.jetstream.puback": "PubAck",
    "jetspark.jetstream.publish": "Expect",
    "jetspark.jetstream.publisher": "Publisher",
    "jetspark.jetstream.publisher_stats": "PublisherFull PublisherStats PublishFailed",
    "jetspark.jetstream.pull_subscribe": "PullSubscription",
    "jetspark.jetstream.schedule": "Schedule",
    "jetspark.jetstream.stored": "StoredMsg",
    "jetspark.jetstream.stream": "Stream",
    "jetspark.jetstream.stream_config": (
        "Compression ConsumerLimits ConsumerSource DiscardPolicy External PersistMode Placement RePublish "
        "RetentionPolicy StorageType StreamConfig StreamSource SubjectTransform"
    ),
    "jetspark.jetstream.stream_info": (
        "LostStreamData StreamAlternate StreamInfo StreamSourceInfo StreamState"
    ),
    "jetspark.jetstream.subscribe": "PushSubscription",
    "jetspark.jetstream.values": "Duration Timestamp",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = exports(__name__, _PLACES)
