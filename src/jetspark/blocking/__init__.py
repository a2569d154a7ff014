"""The same API for threads: ``with blocking.connect() as nc``, the same names, no async.

One asyncio connection in one background thread does the work; messages and publishes cross over in batches.
Any number of threads may share a connection. After a fork, open a new connection in the child.
"""

from jetspark.blocking.advisories import Advisories, DeadLetter, DeadLetters
from jetspark.blocking.atomic_batch import AtomicBatch
from jetspark.blocking.connecting import connect
from jetspark.blocking.connection import Connection
from jetspark.blocking.consume import Consume, ConsumeBatches, ConsumeCallback
from jetspark.blocking.consumer import Consumer
from jetspark.blocking.fast_ingest import FastIngest
from jetspark.blocking.jetstream import JetStream
from jetspark.blocking.message import Message, MessageBatch, Msg
from jetspark.blocking.ordered import OrderedConsumer
from jetspark.blocking.publisher import Publisher
from jetspark.blocking.pull_subscribe import PullSubscription
from jetspark.blocking.stream import Stream
from jetspark.blocking.subscribe import PushSubscription
from jetspark.blocking.subscription import Subscription

__all__ = [
    "Advisories",
    "AtomicBatch",
    "Connection",
    "Consume",
    "ConsumeBatches",
    "ConsumeCallback",
    "Consumer",
    "DeadLetter",
    "DeadLetters",
    "FastIngest",
    "JetStream",
    "Message",
    "MessageBatch",
    "Msg",
    "OrderedConsumer",
    "Publisher",
    "PullSubscription",
    "PushSubscription",
    "Stream",
    "Subscription",
    "connect",
]
