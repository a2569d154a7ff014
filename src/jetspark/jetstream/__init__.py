"""JetStream: contexts, streams, consumers, publishing."""

from typing import TYPE_CHECKING

from jetspark._lazy import exports

if TYPE_CHECKING:
    from jetspark.jetstream.advisory.dead_letters import DeadLetter, DeadLetters
    from jetspark.jetstream.advisory.feed import Advisories
    from jetspark.jetstream.consume.ordered import OrderedConsumer
    from jetspark.jetstream.consumer import Consumer
    from jetspark.jetstream.context import JetStream
    from jetspark.jetstream.flow.fast import FastIngestBroken, IngestGap
    from jetspark.jetstream.models.account import AccountInfo, AccountLimits, AccountTier, ApiStats
    from jetspark.jetstream.models.advisories import (
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
    from jetspark.jetstream.models.cluster import (
        ClusterInfo,
        DesiredCluster,
        DesiredOrigin,
        DesiredStatus,
        PeerInfo,
    )
    from jetspark.jetstream.models.consumer_config import (
        AckPolicy,
        ConsumerConfig,
        DeliverPolicy,
        PriorityPolicy,
        ReplayPolicy,
    )
    from jetspark.jetstream.models.consumer_info import (
        ConsumerInfo,
        ConsumerPause,
        PriorityGroupState,
        SequenceInfo,
    )
    from jetspark.jetstream.models.counter import CounterValue
    from jetspark.jetstream.models.puback import PubAck
    from jetspark.jetstream.models.schedule import Schedule
    from jetspark.jetstream.models.stream_config import (
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
    from jetspark.jetstream.models.stream_info import (
        LostStreamData,
        StreamAlternate,
        StreamInfo,
        StreamSourceInfo,
        StreamState,
    )
    from jetspark.jetstream.models.values import Duration, Timestamp
    from jetspark.jetstream.publish.atomic_batch import AtomicBatch
    from jetspark.jetstream.publish.fast_ingest import FastIngest
    from jetspark.jetstream.publish.publish import Expect
    from jetspark.jetstream.publish.publisher import Publisher
    from jetspark.jetstream.publish.stats import PublisherFull, PublisherStats, PublishFailed
    from jetspark.jetstream.stored import StoredMsg
    from jetspark.jetstream.stream import Stream
    from jetspark.jetstream.subscribe.pull_subscribe import PullSubscription
    from jetspark.jetstream.subscribe.subscribe import PushSubscription

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
    "jetspark.jetstream.models.account": "AccountInfo AccountLimits AccountTier ApiStats",
    "jetspark.jetstream.models.advisories": (
        "AckMetric Advisory AdvisoryAction ApiAuditAdvisory BatchAbandonedAdvisory ConsumerActionAdvisory "
        "ConsumerLeaderAdvisory ConsumerPauseAdvisory ConsumerQuorumLostAdvisory GenericAdvisory "
        "GroupPinnedAdvisory GroupUnpinnedAdvisory MaxDeliveriesAdvisory NakAdvisory "
        "ServerOutOfStorageAdvisory StreamActionAdvisory StreamLeaderAdvisory StreamQuorumLostAdvisory "
        "TerminatedAdvisory decode_advisory"
    ),
    "jetspark.jetstream.advisory.feed": "Advisories",
    "jetspark.jetstream.publish.atomic_batch": "AtomicBatch",
    "jetspark.jetstream.models.cluster": "ClusterInfo DesiredCluster DesiredOrigin DesiredStatus PeerInfo",
    "jetspark.jetstream.consumer": "Consumer",
    "jetspark.jetstream.models.consumer_config": (
        "AckPolicy ConsumerConfig DeliverPolicy PriorityPolicy ReplayPolicy"
    ),
    "jetspark.jetstream.models.consumer_info": "ConsumerInfo ConsumerPause PriorityGroupState SequenceInfo",
    "jetspark.jetstream.context": "JetStream",
    "jetspark.jetstream.models.counter": "CounterValue",
    "jetspark.jetstream.advisory.dead_letters": "DeadLetter DeadLetters",
    "jetspark.jetstream.flow.fast": "FastIngestBroken IngestGap",
    "jetspark.jetstream.publish.fast_ingest": "FastIngest",
    "jetspark.jetstream.consume.ordered": "OrderedConsumer",
    "jetspark.jetstream.models.puback": "PubAck",
    "jetspark.jetstream.publish.publish": "Expect",
    "jetspark.jetstream.publish.publisher": "Publisher",
    "jetspark.jetstream.publish.stats": "PublisherFull PublisherStats PublishFailed",
    "jetspark.jetstream.subscribe.pull_subscribe": "PullSubscription",
    "jetspark.jetstream.models.schedule": "Schedule",
    "jetspark.jetstream.stored": "StoredMsg",
    "jetspark.jetstream.stream": "Stream",
    "jetspark.jetstream.models.stream_config": (
        "Compression ConsumerLimits ConsumerSource DiscardPolicy External PersistMode Placement RePublish "
        "RetentionPolicy StorageType StreamConfig StreamSource SubjectTransform"
    ),
    "jetspark.jetstream.models.stream_info": (
        "LostStreamData StreamAlternate StreamInfo StreamSourceInfo StreamState"
    ),
    "jetspark.jetstream.subscribe.subscribe": "PushSubscription",
    "jetspark.jetstream.models.values": "Duration Timestamp",
}

if not TYPE_CHECKING:
    __getattr__, __dir__, _ = exports(__name__, _PLACES)
