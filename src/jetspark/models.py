"""Values that are sent to the server or received from it: configs, infos, their parts and enums.

The most common ones are in :mod:`jetspark` too. Those of advisories are in :mod:`jetspark.advisories`.
"""

from jetspark.connection.outbox import HeadersLike
from jetspark.connection.statistics import Statistics
from jetspark.jetstream.consume.ordered_config import OrderedConsumerConfig
from jetspark.jetstream.flow.ack_reply import Metadata, SequencePair
from jetspark.jetstream.flow.fast import IngestGap
from jetspark.jetstream.models.account import AccountInfo, AccountLimits, AccountTier, ApiStats
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
from jetspark.jetstream.publish.stats import PublisherStats
from jetspark.wire.info import ServerInfo

__all__ = [
    "AccountInfo",
    "AccountLimits",
    "AccountTier",
    "AckPolicy",
    "ApiStats",
    "ClusterInfo",
    "Compression",
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
    "External",
    "HeadersLike",
    "IngestGap",
    "LostStreamData",
    "Metadata",
    "OrderedConsumerConfig",
    "PeerInfo",
    "PersistMode",
    "Placement",
    "PriorityGroupState",
    "PriorityPolicy",
    "PubAck",
    "PublisherStats",
    "RePublish",
    "ReplayPolicy",
    "RetentionPolicy",
    "Schedule",
    "SequenceInfo",
    "SequencePair",
    "ServerInfo",
    "Statistics",
    "StorageType",
    "StreamAlternate",
    "StreamConfig",
    "StreamInfo",
    "StreamSource",
    "StreamSourceInfo",
    "StreamState",
    "SubjectTransform",
    "Timestamp",
]
