"""A query's progress on the server: a durable consumer that moves along, and work queues that are emptied.

Spark's checkpoint alone decides what is read. The durable is a mirror of it, for ``nats consumer info`` and
dashboards, and on interest streams the reason why messages are kept until the query has committed them.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from jetspark.errors import JetsparkError
from jetspark.jetstream.consumer_config import AckPolicy, ConsumerConfig, DeliverPolicy
from jetspark.jetstream.errors import ConsumerNotFound
from jetspark.jetstream.stream_config import RetentionPolicy
from jetspark.spark.options import OptionError

if TYPE_CHECKING:
    from jetspark.blocking.consumer import Consumer
    from jetspark.blocking.jetstream import JetStream
    from jetspark.jetstream.stream_info import StreamInfo
    from jetspark.spark.offsets import Offset
    from jetspark.spark.source_options import SourceOptions

logger = logging.getLogger("jetspark.spark")

#: Seconds before the next attempt when one failed.
RETRY = 5.0


class ProgressMirror:
    """Follows the committed offsets of a query. Failures are logged: the mirror must not stop the query."""

    def __init__(self, js: JetStream, options: SourceOptions) -> None:
        self._js = js
        self._options = options
        self._mirrored: dict[str, int] = {}
        self._consumers: dict[str, Consumer] = {}
        self._retry_at = 0.0

    @property
    def wanted(self) -> bool:
        """Whether there is anything to do at all."""
        return self._options.durable is not None or self._options.release_work_queue

    def check(self, infos: dict[str, StreamInfo]) -> None:
        """Refuse at the start what can't work on these streams."""
        for name, info in infos.items():
            queue = info.config.retention == RetentionPolicy.WORK_QUEUE
            if self._options.release_work_queue and not queue:
                raise OptionError(
                    "releaseWorkQueue",
                    f"stream {name!r} is no work queue (retention {info.config.retention}); this option "
                    "deletes what was read, so it is for work queues only",
                )

    def begin(self, offset: Offset) -> None:
        """The query starts here: have the durables in place before anything more is published."""
        if self._options.durable is None:
            return
        for name, one in offset.streams.items():
            self._attempt(name, one.next, release=False)

    def follow(self, offset: Offset) -> None:
        """Everything before this offset is committed."""
        for name, one in offset.streams.items():
            if self._mirrored.get(name) != one.next and time.monotonic() >= self._retry_at:
                self._attempt(name, one.next, release=True)

    def _attempt(self, stream: str, following: int, *, release: bool) -> None:
        try:
            if self._options.durable is not None:
                self._durable(stream, self._options.durable).reset(following)
            if release and self._options.release_work_queue and following > 1:
                self._release(stream, following)
            if release:
                self._mirrored[stream] = following
        except OptionError:
            raise
        except JetsparkError as error:
            self._consumers.pop(stream, None)
            self._retry_at = time.monotonic() + RETRY
            logger.warning(
                "progress of stream %r (sequence %d) was not mirrored: %s", stream, following - 1, error
            )

    def _durable(self, stream: str, name: str) -> Consumer:
        found = self._consumers.get(stream)
        if found is None:
            try:
                found = self._js.get_consumer(stream, name)
            except ConsumerNotFound:
                found = self._js.create_consumer(stream, self._config(name))
            if found.config.is_push or found.config.ack_policy == AckPolicy.NONE:
                raise OptionError(
                    "durable",
                    f"consumer {name!r} of stream {stream!r} is a push consumer or has ack policy none, and "
                    "can't show progress; choose another name",
                )
            self._consumers[stream] = found
        return found

    def _config(self, name: str) -> ConsumerConfig:
        subjects = self._options.subjects
        return ConsumerConfig(
            durable_name=name,
            description="jetspark: shows the progress of a Spark query",
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.EXPLICIT,
            filter_subject=subjects[0] if len(subjects) == 1 else None,
            filter_subjects=list(subjects) if len(subjects) > 1 else None,
        )

    def _release(self, stream: str, following: int) -> None:
        handle = self._js.get_stream(stream)
        for subject in self._options.subjects or (None,):
            handle.purge(subject=subject, seq=following)
