"""The asyncio versions of the classes that differ by API; the versions for threads are in
``jetspark.blocking``."""

from __future__ import annotations

from jetspark.jetstream.consume.ordered_chain import OrderedSink
from jetspark.jetstream.consume.pull import PullSink
from jetspark.jetstream.kinds import JetStreamKinds
from jetspark.jetstream.message import Message
from jetspark.jetstream.subscribe.push import PushSink
from jetspark.jetstream.subscribe.push_ordered import OrderedPushSink
from jetspark.jetstream.subscribe.subscribe import PushSubscription

KINDS = JetStreamKinds(
    message=Message,
    pull_sink=PullSink,
    push_sink=PushSink,
    ordered_sink=OrderedSink,
    ordered_push_sink=OrderedPushSink,
    push_subscription=PushSubscription,
)
