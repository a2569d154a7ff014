"""Waking an idle query: the server reports news, so that looks can be rare and latency low.

Both kinds of watch are only hints: what is read is decided by looking at the streams.

:class:`StreamWatch` is for one stream: an ephemeral consumer behind the query's place, asked for one message
without its body. It costs one pull request per half minute. Spark kills the process of a stopped query, so
the server has to remove the consumer: it does within twice ``INACTIVE_THRESHOLD``, because no request waits
any more. Streams with retention interest or work queue are not watched in this way: a consumer there would
hold messages or be refused. Nor are streams that limit the number of their consumers.

:class:`AccountWatch` is for many streams, where a look at all of them is expensive. It asks for the account's
usage, half a kilobyte, once per second. Changed usage is news. Unchanged usage proves nothing: a stream at
its limits may have replaced a message by another one of the same size.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Protocol

from jetspark.errors import JetsparkError, PermissionViolationError
from jetspark.jetstream.models.consumer_config import AckPolicy, ConsumerConfig, DeliverPolicy
from jetspark.jetstream.models.stream_config import RetentionPolicy

if TYPE_CHECKING:
    from jetspark.arrow import ConsumeArrow
    from jetspark.blocking.consumer import Consumer
    from jetspark.blocking.jetstream import JetStream
    from jetspark.jetstream.models.stream_info import StreamInfo

logger = logging.getLogger("jetspark.spark")

#: Seconds without a waiting request after which the server removes the consumer.
INACTIVE_THRESHOLD = 2.0
#: Seconds between two looks at the account.
ACCOUNT_INTERVAL = 1.0


class Watch(Protocol):
    """Waits for news."""

    @property
    def broken(self) -> bool:
        """Whether it has ended and will report nothing more."""

    def wait(self, timeout: float) -> bool:
        """Whether there was news within ``timeout`` seconds."""

    def close(self) -> None:
        """Stop waiting, leave nothing on the server."""


def watchable(info: StreamInfo) -> bool:
    """Whether a consumer on the stream has no side effects."""
    config = info.config
    limited = config.max_consumers is not None and config.max_consumers > 0
    return config.retention == RetentionPolicy.LIMITS and not limited


class StreamWatch:
    """Waits for the message at or behind a sequence of one stream."""

    def __init__(self, consumer: Consumer, waiting: ConsumeArrow, following: int) -> None:
        self._consumer = consumer
        self._waiting = waiting
        self.following = following

    @classmethod
    def start(cls, js: JetStream, stream: str, following: int) -> StreamWatch | None:
        """Begin to wait; None when the server does not let us (limits, permissions)."""
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
        return self._waiting.closed

    def wait(self, timeout: float) -> bool:
        begun = time.monotonic()
        try:
            if self._waiting.next_batch(timeout) is not None:
                return True
        except JetsparkError as error:
            logger.debug("watch on stream %r ended: %s", self._consumer.stream_name, error)
        # It has ended early; the caller still waits for the whole time.
        time.sleep(max(0.0, begun + timeout - time.monotonic()))
        return False

    def close(self) -> None:
        with contextlib.suppress(JetsparkError):
            self._waiting.__exit__(None, None, None)
        with contextlib.suppress(JetsparkError):
            self._consumer.delete()


class AccountWatch:
    """Waits until the account's usage differs from that of the last look."""

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._usage: tuple[int, int, int] | None = None
        self.broken = False

    def looking(self) -> None:
        """The streams are looked at now: what is used from here on is news."""
        self._usage = self._ask()

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(ACCOUNT_INTERVAL, left))
            if left <= ACCOUNT_INTERVAL:
                break
            found = self._ask()
            if found is not None and found != self._usage:
                return True
        return False

    def close(self) -> None:
        pass

    def _ask(self) -> tuple[int, int, int] | None:
        if self.broken:
            return None
        try:
            info = self._js.account_info()
        except JetsparkError as error:
            # A missing permission is permanent; other errors show at the next look at the streams.
            self.broken = isinstance(error, PermissionViolationError)
            logger.debug("no watch on the account, polling only: %s", error)
            return None
        return info.memory, info.storage, info.streams
