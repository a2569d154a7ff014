"""Waking an idle query: the server tells of the next message, so that polling can be slow and latency low.

An ephemeral consumer behind the query's place, asked for one message without its body. It costs one pull
request in half a minute. It is a hint and nothing more: what is read is decided by looking at the stream.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from jetspark.errors import JetsparkError
from jetspark.jetstream.consumer_config import AckPolicy, ConsumerConfig, DeliverPolicy

if TYPE_CHECKING:
    from jetspark.arrow import ConsumeArrow
    from jetspark.blocking.consumer import Consumer
    from jetspark.blocking.jetstream import JetStream

logger = logging.getLogger("jetspark.spark")

#: Seconds after which the server removes the consumer when the query is gone.
INACTIVE_THRESHOLD = 30.0


class Watch:
    """Waits for the message at or behind a sequence of one stream."""

    def __init__(self, consumer: Consumer, waiting: ConsumeArrow, following: int) -> None:
        self._consumer = consumer
        self._waiting = waiting
        self.following = following

    @classmethod
    def start(cls, js: JetStream, stream: str, following: int) -> Watch | None:
        """Begin to wait; None when the server does not let us (a work queue, limits, permissions)."""
        from jetspark.arrow import consume_arrow

        config = ConsumerConfig(
            description="jetspark: wakes an idle Spark query",
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=following,
            headers_only=True,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=INACTIVE_THRESHOLD,
        )
        try:
            consumer = js.create_consumer(stream, config)
            waiting = consume_arrow(consumer, columns=["sequence"], max_messages=1, stop_after=1)
            waiting.__enter__()
        except JetsparkError as error:
            logger.debug("no watch on stream %r, polling only: %s", stream, error)
            return None
        return cls(consumer, waiting, following)

    @property
    def broken(self) -> bool:
        """Whether nothing will come any more, message or not."""
        return self._waiting.closed

    def wait(self, timeout: float) -> bool:
        """Whether a message came within ``timeout`` seconds."""
        try:
            return self._waiting.next_batch(timeout) is not None
        except JetsparkError as error:
            logger.debug("watch on stream %r ended: %s", self._consumer.stream_name, error)
            return False

    def close(self) -> None:
        """Stop waiting and remove the consumer."""
        with contextlib.suppress(JetsparkError):
            self._waiting.__exit__(None, None, None)
        with contextlib.suppress(JetsparkError):
            self._consumer.delete()
