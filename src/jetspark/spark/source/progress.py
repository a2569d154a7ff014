"""A query's progress on the server: a durable consumer that moves along, and work queues that are emptied.

Spark's checkpoint alone decides what is read. The durable mirrors it for ``nats consumer info`` and
dashboards; on interest streams it keeps messages until the query has committed them.
It is moved by CONSUMER.RESET; servers before 2.14 have it walked
(:mod:`jetspark.spark.source.progress_walk`).
"""

from __future__ import annotations

import logging
import time
import uuid
from typing import TYPE_CHECKING

import msgspec

from jetspark.errors import ConsumerNotFound, JetsparkError, PermissionViolationError
from jetspark.jetstream.models.consumer_config import AckPolicy, ConsumerConfig, DeliverPolicy
from jetspark.jetstream.models.stream_config import RetentionPolicy
from jetspark.spark.options import OptionError
from jetspark.spark.source import progress_walk
from jetspark.spark.source.claims import Outcome, found_of, judge_stream
from jetspark.spark.source.data_loss import identity
from jetspark.spark.source.progress_walk import ACK_WAIT, Standing, Walk, can_reset
from jetspark.spark.source.range_proof import tail_time

if TYPE_CHECKING:
    from jetspark.blocking.consumer import Consumer
    from jetspark.blocking.jetstream import JetStream
    from jetspark.jetstream.models.stream_info import StreamInfo
    from jetspark.spark.source.offsets import Offset, StreamOffset
    from jetspark.spark.source.options import SourceOptions

logger = logging.getLogger("jetspark.spark")

#: Seconds before the next attempt when one failed.
RETRY = 5.0


class ProgressMirror:
    """Follows the committed offsets of a query.

    Failures are logged: the mirror must not stop the query. A missing permission is an error, because it is
    permanent, and a work queue that is not emptied would grow silently.
    """

    def __init__(self, js: JetStream, options: SourceOptions) -> None:
        self._js = js
        self._options = options
        # For servers before 2.14; None: reset.
        self._walks: dict[str, Walk | None] = {}
        self._mirrored: dict[str, tuple[str, int]] = {}
        self._consumers: dict[str, Consumer] = {}
        self._retry_at = 0.0
        # Streams that we are known to be allowed to purge.
        self._may_purge: set[str] = set()

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
                    f"stream {name!r} is not a work queue (retention {info.config.retention}); this option "
                    "deletes what was read, so it is for work queues only",
                )
            if self._options.release_work_queue and name not in self._may_purge:
                self._check_purge(name, info)

    def _check_purge(self, stream: str, info: StreamInfo) -> None:
        """Refuse a stream that we may not purge, before anything is read from it."""
        if info.config.deny_purge:
            raise OptionError(
                "releaseWorkQueue",
                f"stream {stream!r} has deny_purge, so messages can't be deleted from it; use another "
                "stream, or leave the option out",
            )
        try:
            # For a subject without messages, so that nothing is deleted.
            self._js.get_stream(stream).purge(subject=f"_jetspark.{uuid.uuid4().hex}", seq=1)
            self._may_purge.add(stream)
        except PermissionViolationError as error:
            raise _not_permitted("releaseWorkQueue", error) from error
        except JetsparkError as error:
            logger.warning("could not check yet whether stream %r may be purged: %s", stream, error)

    def begin(self, offset: Offset) -> None:
        """The query starts here: have the durables in place before anything more is published."""
        if self._options.durable is None:
            return
        for name, one in offset.streams.items():
            self._attempt(name, one, release=False)

    def follow(self, offset: Offset) -> None:
        """Everything before this offset is committed."""
        if self._options.release_work_queue and offset.subjects != self._options.subjects:
            # Before its place are messages of the new filter that were never read.
            raise OptionError(
                "releaseWorkQueue",
                f"the query that made the checkpoint had subjects {list(offset.subjects) or 'all'}, this one "
                f"has {list(self._options.subjects) or 'all'}, so it would delete unread messages; keep "
                "the subjects, start with a new checkpoint, or leave the option out",
            )
        skipped = [name for name, one in offset.streams.items() if one.skipped]
        if self._options.release_work_queue and skipped:
            raise OptionError(
                "releaseWorkQueue",
                f"the query did not begin at the beginning of stream {skipped[0]!r}, or had other subjects "
                "before: this would delete messages that were not read; start with a new checkpoint and "
                "startingPosition=earliest, or leave the option out",
            )
        for name, one in offset.streams.items():
            if self._mirrored.get(name) != (one.created, one.next) and time.monotonic() >= self._retry_at:
                self._attempt(name, one, release=True)

    def _attempt(self, stream: str, one: StreamOffset, *, release: bool) -> None:
        following = one.next
        try:
            if release and not self._is_same(stream, one):
                return
            if self._options.durable is not None and not self._move(stream, self._options.durable, following):
                self._retry_at = time.monotonic() + RETRY
                return
            if release and self._options.release_work_queue and following > 1:
                self._release(stream, following)
            if release:
                self._mirrored[stream] = (one.created, following)
        except OptionError:
            raise
        except PermissionViolationError as error:
            option = "releaseWorkQueue" if self._options.durable is None else "durable"
            raise _not_permitted(option, error) from error
        except JetsparkError as error:
            self._consumers.pop(stream, None)
            self._walks.pop(stream, None)
            self._retry_at = time.monotonic() + RETRY
            logger.warning(
                "progress of stream %r (sequence %d) was not mirrored: %s", stream, following - 1, error
            )

    def _is_same(self, stream: str, one: StreamOffset) -> bool:
        """Whether the stream still is the one that was read.

        Otherwise, made again or restored from a backup, it has messages before the place that were not read.
        They must not be released, nor acked for a durable. That it is another one is reported where it is
        read on.
        """
        handle = self._js.get_stream(stream)
        info = handle.cached_info
        if identity(info) != one.created:
            return False
        end = 1 if one.ahead else one.next
        return judge_stream(end, one.seen, found_of(info), tail_time(handle, info, one.seen)) == Outcome.FINE

    def _move(self, stream: str, name: str, following: int) -> bool:
        consumer = self._durable(stream, name, following)
        if stream not in self._walks:
            self._walks[stream] = self._walk(stream, consumer)
        walk = self._walks[stream]
        if walk is not None:
            return walk.to(following)
        consumer.reset(following)
        return True

    def _walk(self, stream: str, consumer: Consumer) -> Walk | None:
        if can_reset(consumer, self._js.connection.server_info.version):
            return None
        if not self._is_queue(stream):
            return Walk(consumer)
        # An ack deletes there, which only releaseWorkQueue may do; and the purge moves the consumer.
        if not self._options.release_work_queue:
            logger.warning(
                "durable %r can't show progress on the work queue %r: that needs server 2.14, or "
                "releaseWorkQueue=true, which deletes what was read",
                *(consumer.name, stream),
            )
        return Standing(consumer)

    def _durable(self, stream: str, name: str, following: int) -> Consumer:
        found = self._consumers.get(stream)
        if found is None:
            try:
                found = self._js.get_consumer(stream, name)
            except ConsumerNotFound:
                found = self._js.create_consumer(stream, self._config(stream, name, following))
            if found.config.is_push or found.config.ack_policy == AckPolicy.NONE:
                raise OptionError(
                    "durable",
                    f"consumer {name!r} of stream {stream!r} is a push consumer or has ack policy none, and "
                    "can't show progress; choose another name",
                )
            self._consumers[stream] = found
        return found

    def _config(self, stream: str, name: str, following: int) -> ConsumerConfig:
        subjects = self._options.subjects
        config = ConsumerConfig(
            durable_name=name,
            description="jetspark: shows the progress of a Spark query",
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.EXPLICIT,
            filter_subject=subjects[0] if len(subjects) == 1 else None,
            filter_subjects=list(subjects) if len(subjects) > 1 else None,
        )
        version = self._js.connection.server_info.version_tuple
        if version >= progress_walk.RESET_SINCE or self._is_queue(stream):
            return config
        # To be walked: as little of each message as there is, one ack for many, and no walk to the beginning.
        return msgspec.structs.replace(
            config,
            ack_policy=AckPolicy.ALL,
            ack_wait=ACK_WAIT,
            headers_only=True,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=following,
        )

    def _is_queue(self, stream: str) -> bool:
        return self._js.get_stream(stream).cached_info.config.retention == RetentionPolicy.WORK_QUEUE

    def _release(self, stream: str, following: int) -> None:
        handle = self._js.get_stream(stream)
        for subject in self._options.subjects or (None,):
            handle.purge(subject=subject, seq=following)


def _not_permitted(option: str, error: PermissionViolationError) -> OptionError:
    return OptionError(
        option,
        f"{error}; permit the user to {error.operation} that subject (docs/spark.md, 'Permissions'), or "
        "leave the option out",
    )
