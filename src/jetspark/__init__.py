"""JetStream for Python and Spark.

What most programs need: ``connect`` and the objects it leads to, the configs and their enums. Beside that:
:mod:`jetspark.errors` (every exception), :mod:`jetspark.events`, :mod:`jetspark.models` (what the server
answers), :mod:`jetspark.advisories`, :mod:`jetspark.blocking`, :mod:`jetspark.arrow`, :mod:`jetspark.spark`,
:mod:`jetspark.server`, :mod:`jetspark.tracing`, :mod:`jetspark.metrics`. Every other module is private.
"""

from typing import TYPE_CHECKING

from jetspark._lazy import exports

if TYPE_CHECKING:
    # isort: off
    from jetspark import advisories as advisories, errors as errors, events as events, models as models
    from jetspark._secret import Secret as Secret
    from jetspark.connecting import Connecting as Connecting, Connection as Connection, connect as connect
    from jetspark.connection import Msg as Msg, Subscription as Subscription
    from jetspark.connection.auth import Authenticator as Authenticator
    from jetspark.jetstream.consume.consume import (
        Consume as Consume,
        ConsumeBatches as ConsumeBatches,
        ConsumeCallback as ConsumeCallback,
    )
    from jetspark.jetstream.consume.fetch import Fetch as Fetch, MessageBatch as MessageBatch
    from jetspark.jetstream.consume.ordered import OrderedConsumer as OrderedConsumer
    from jetspark.jetstream.consume.ordered_config import OrderedConsumerConfig as OrderedConsumerConfig
    from jetspark.jetstream.consumer import Consumer as Consumer
    from jetspark.jetstream.context import JetStream as JetStream
    from jetspark.jetstream.flow.ack_reply import Metadata as Metadata
    from jetspark.jetstream.message import Message as Message
    from jetspark.jetstream.models.consumer_config import (
        AckPolicy as AckPolicy,
        ConsumerConfig as ConsumerConfig,
        DeliverPolicy as DeliverPolicy,
        PriorityPolicy as PriorityPolicy,
        ReplayPolicy as ReplayPolicy,
    )
    from jetspark.jetstream.models.consumer_info import ConsumerInfo as ConsumerInfo
    from jetspark.jetstream.models.puback import PubAck as PubAck
    from jetspark.jetstream.models.schedule import Schedule as Schedule
    from jetspark.jetstream.models.stream_config import (
        Compression as Compression,
        DiscardPolicy as DiscardPolicy,
        Placement as Placement,
        RetentionPolicy as RetentionPolicy,
        StorageType as StorageType,
        StreamConfig as StreamConfig,
        StreamSource as StreamSource,
        SubjectTransform as SubjectTransform,
    )
    from jetspark.jetstream.models.stream_info import StreamInfo as StreamInfo
    from jetspark.jetstream.publish.atomic_batch import AtomicBatch as AtomicBatch
    from jetspark.jetstream.publish.fast_ingest import FastIngest as FastIngest
    from jetspark.jetstream.publish.many import AckBatch as AckBatch, Publishing as Publishing
    from jetspark.jetstream.publish.publish import Expect as Expect
    from jetspark.jetstream.publish.publisher import Publisher as Publisher
    from jetspark.jetstream.stored import StoredMsg as StoredMsg
    from jetspark.jetstream.stream import Stream as Stream
    from jetspark.jetstream.subscribe.pull_subscribe import PullSubscription as PullSubscription
    from jetspark.jetstream.subscribe.subscribe import PushSubscription as PushSubscription
    from jetspark.wire.headers import Headers as Headers
    # isort: on

__version__ = "0.1.0"

# The same exports as the imports above, for run time.
_EXPORTS = {
    "jetspark": "advisories errors events models",
    "jetspark._secret": "Secret",
    "jetspark.connecting": "Connecting Connection connect",
    "jetspark.connection": "Msg Subscription",
    "jetspark.connection.auth": "Authenticator",
    "jetspark.jetstream.consume.consume": "Consume ConsumeBatches ConsumeCallback",
    "jetspark.jetstream.consume.fetch": "Fetch MessageBatch",
    "jetspark.jetstream.consume.ordered": "OrderedConsumer",
    "jetspark.jetstream.consume.ordered_config": "OrderedConsumerConfig",
    "jetspark.jetstream.consumer": "Consumer",
    "jetspark.jetstream.context": "JetStream",
    "jetspark.jetstream.flow.ack_reply": "Metadata",
    "jetspark.jetstream.message": "Message",
    "jetspark.jetstream.models.consumer_config": (
        "AckPolicy ConsumerConfig DeliverPolicy PriorityPolicy ReplayPolicy"
    ),
    "jetspark.jetstream.models.consumer_info": "ConsumerInfo",
    "jetspark.jetstream.models.puback": "PubAck",
    "jetspark.jetstream.models.schedule": "Schedule",
    "jetspark.jetstream.models.stream_config": (
        "Compression DiscardPolicy Placement RetentionPolicy StorageType StreamConfig StreamSource "
        "SubjectTransform"
    ),
    "jetspark.jetstream.models.stream_info": "StreamInfo",
    "jetspark.jetstream.publish.atomic_batch": "AtomicBatch",
    "jetspark.jetstream.publish.fast_ingest": "FastIngest",
    "jetspark.jetstream.publish.many": "AckBatch Publishing",
    "jetspark.jetstream.publish.publish": "Expect",
    "jetspark.jetstream.publish.publisher": "Publisher",
    "jetspark.jetstream.stored": "StoredMsg",
    "jetspark.jetstream.stream": "Stream",
    "jetspark.jetstream.subscribe.pull_subscribe": "PullSubscription",
    "jetspark.jetstream.subscribe.subscribe": "PushSubscription",
    "jetspark.wire.headers": "Headers",
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = exports(__name__, _EXPORTS)
