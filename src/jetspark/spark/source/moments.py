"""From a time to a sequence: asks the leader of a stream."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from jetspark.errors import JetsparkError
from jetspark.jetstream.errors import MessageNotFound
from jetspark.jetstream.models.consumer_config import AckPolicy, ConsumerConfig, DeliverPolicy
from jetspark.jetstream.models.stream_config import RetentionPolicy
from jetspark.jetstream.models.values import Timestamp

if TYPE_CHECKING:
    from datetime import datetime

    from jetspark.blocking.jetstream import JetStream
    from jetspark.jetstream.models.stream_info import StreamInfo

# The leader finds messages by time; an older one would not look at the time that it is asked for.
_TIMES_SINCE = (2, 11)


def sequence_at(js: JetStream, info: StreamInfo, time: datetime) -> int:
    """The first sequence at or after a time, ``last + 1`` when there is none.

    The leader is asked: any other replica may be behind, and the messages it does not have yet would be
    skipped. Before server 2.11 a consumer is asked where it would begin, on whichever replica it is made.
    """
    name = info.config.name
    if js.connection.server_info.version_tuple >= _TIMES_SINCE:
        try:
            message = js.get_stream(name).get_msg(start_time=time, from_leader=True)
            if message.timestamp >= time:
                return message.sequence
            # A leader older than the server that we are connected to, which did not look at the time.
        except MessageNotFound:
            # 'latest' as it was before we asked: what has come since is behind it.
            return info.state.last_seq + 1
    config = ConsumerConfig(
        description="jetspark: finds the sequence of a time",
        ack_policy=AckPolicy.NONE,
        deliver_policy=DeliverPolicy.BY_START_TIME,
        opt_start_time=time,
        mem_storage=True,
        num_replicas=1 if info.config.retention == RetentionPolicy.LIMITS else None,
        inactive_threshold=5.0,
    )
    consumer = js.create_consumer(name, config)
    with contextlib.suppress(JetsparkError):
        consumer.delete()
    return consumer.cached_info.delivered.stream_seq + 1


def after(js: JetStream, info: StreamInfo, time: int) -> int:
    """The first sequence that was stored after a time in nanoseconds."""
    return sequence_at(js, info, Timestamp.from_ns(time + 1))
