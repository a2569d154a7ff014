"""A handle on a stream (ADR-37 'Streams')."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from contextlib import AsyncExitStack, aclosing, suppress
from typing import TYPE_CHECKING, Any, Protocol

from jetspark._checks import is_whole
from jetspark.errors import InvalidArgument, ProtocolError
from jetspark.jetstream import stored
from jetspark.jetstream.consume.ordered_config import INACTIVE_THRESHOLD
from jetspark.jetstream.consumer import Consumer, ConsumerHome
from jetspark.jetstream.errors import JetStreamNotEnabled, MessageNotFound
from jetspark.jetstream.models.consumer_config import ReplayPolicy
from jetspark.jetstream.models.counter import CounterValue
from jetspark.jetstream.models.stream_info import StreamInfo
from jetspark.jetstream.models.validation import check_flag
from jetspark.jetstream.stored import DEFAULT_BATCH, DEFAULT_BATCH_BYTES, StoredMsg
from jetspark.wire.subjects import validate_filter, validate_subject

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from jetspark.jetstream.api import Api
    from jetspark.jetstream.consume.ordered import OrderedConsumer
    from jetspark.jetstream.consume.ordered_config import OrderedConsumerConfig
    from jetspark.jetstream.models.consumer_config import ConsumerConfig, DeliverPolicy
    from jetspark.jetstream.models.consumer_info import ConsumerInfo, ConsumerPause
    from jetspark.jetstream.models.stream_config import StreamConfig

# How many subjects of one page the next page repeats, to show that none was left out between them.
_PAGE_OVERLAP = 1000


class StreamHome(ConsumerHome, Protocol):
    """A context, as its streams see it."""

    async def delete_stream(self, name: str) -> None: ...

    async def update_consumer(
        self, stream: str, config: ConsumerConfig, *, pedantic: bool = False
    ) -> Consumer: ...

    async def create_or_update_consumer(
        self, stream: str, config: ConsumerConfig, *, pedantic: bool = False
    ) -> Consumer: ...

    async def create_ordered_consumer(
        self,
        stream: str,
        config: OrderedConsumerConfig | None = None,
        *,
        filter_subjects: str | Sequence[str] | None = None,
        deliver_policy: DeliverPolicy | str | None = None,
        opt_start_seq: int | None = None,
        opt_start_time: datetime | None = None,
        replay_policy: ReplayPolicy | str = ReplayPolicy.INSTANT,
        inactive_threshold: float | timedelta = INACTIVE_THRESHOLD,
        headers_only: bool = False,
        max_reset_attempts: int | None = None,
        name_prefix: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> OrderedConsumer: ...

    def list_consumers(self, stream: str) -> AsyncIterator[ConsumerInfo]: ...

    def consumer_names(self, stream: str) -> AsyncIterator[str]: ...


class Stream:
    """A stream. Returned by ``js.create_stream``, ``js.get_stream`` and similar calls."""

    def __init__(self, js: StreamHome, info: StreamInfo) -> None:
        self._js = js
        self._info = info

    @property
    def name(self) -> str:
        """The stream's name."""
        return self._info.config.name

    @property
    def cached_info(self) -> StreamInfo:
        """The info of the last reply, without asking the server."""
        return self._info

    @property
    def config(self) -> StreamConfig:
        """The config of the cached info."""
        return self._info.config

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"

    async def info(self, *, subjects_filter: str | None = None, deleted_details: bool = False) -> StreamInfo:
        """Ask the server for the current info.

        ``subjects_filter`` adds the message count of each matching subject (``state.subjects``), complete
        however many there are; ``deleted_details`` adds the deleted sequences (``state.deleted``).
        """
        operation = f"STREAM.INFO.{self.name}"
        check_flag("deleted_details", deleted_details)
        body: dict[str, Any] = {"deleted_details": True} if deleted_details else {}
        if subjects_filter is None:
            self._info = StreamInfo.from_wire(await self._js._api.request(operation, body or None))
            return self._info
        validate_filter(subjects_filter, field="subjects_filter")
        body["subjects_filter"] = subjects_filter
        first = await self._js._api.request(operation, body)
        subjects: dict[str, int] = first["state"].get("subjects") or {}
        total, back = first.get("total", 0), _PAGE_OVERLAP
        complete = len(subjects) >= total
        while not complete:
            # Each page is cut from the sorted list at the time of its request. A page that starts after the
            # last subject we have may leave some out, because others were deleted: ask again, from further
            # back.
            last = max(subjects, default="")
            offset = max(0, min(len(subjects), total) - back)
            page = await self._js._api.request(operation, {**body, "offset": offset})
            total = page.get("total", 0)
            more: dict[str, int] = page["state"].get("subjects") or {}
            if offset and (not more or min(more) > last):
                back *= 4
                continue
            back, before = _PAGE_OVERLAP, len(subjects)
            subjects.update(more)
            complete = offset + len(more) >= total or len(subjects) == before
        first["state"]["subjects"] = subjects
        info = StreamInfo.from_wire(first)
        # The counts may be large and soon become stale: they are for the caller, not for the cache.
        self._info = info.replace(state=info.state.replace(subjects=None))
        return info

    async def purge(
        self, *, subject: str | None = None, seq: int | None = None, keep: int | None = None
    ) -> int:
        """Remove messages; returns how many were removed.

        Removes all messages, or those of ``subject`` (wildcards allowed), those before ``seq`` (1 or more),
        or all but the last ``keep``. ``seq`` and ``keep`` can't be combined.
        """
        if seq is not None and keep is not None:
            raise InvalidArgument("keep", keep, f"excludes seq={seq}; give one of them")
        body: dict[str, Any] = {}
        if subject is not None:
            validate_filter(subject)
            body["filter"] = subject
        if seq is not None:
            # The server treats 0 as "not given" and would remove everything, although "before 0"
            # matches no message.
            stored.check_positive("seq", seq)
            body["seq"] = seq
        if keep is not None:
            if not is_whole(keep, 0):
                raise InvalidArgument("keep", keep, "must be an integer, 0 or more")
            body["keep"] = keep
        response = await self._js._api.request(f"STREAM.PURGE.{self.name}", body or None)
        purged = response.get("purged", 0)
        if not is_whole(purged, 0, (1 << 64) - 1):
            raise ProtocolError(f"answer to a purge that removed {purged!r:.50} messages")
        return purged

    async def delete(self) -> None:
        """Delete the stream with all its messages and consumers."""
        await self._js.delete_stream(self.name)

    # Messages

    async def get_msg(
        self,
        seq: int | None = None,
        *,
        last_by_subject: str | None = None,
        next_by_subject: str | None = None,
        start_time: datetime | None = None,
        from_leader: bool = False,
    ) -> StoredMsg:
        """One stored message: at ``seq``; the last of a subject; the first of ``next_by_subject`` at or after
        ``seq``; the first at or after ``start_time`` (2.11). Raises :class:`MessageNotFound`.

        Uses direct get when the stream allows it: any replica may answer, so a message stored a moment ago
        may not be there yet. Otherwise, and with ``from_leader`` (default False), the leader answers.
        """
        body = stored.message_request(
            seq=seq, last_by_subject=last_by_subject, next_by_subject=next_by_subject, start_time=start_time
        )
        if self._allows_direct and not from_leader:
            try:
                return await stored.get_direct(self._js._api, self.name, body)
            except JetStreamNotEnabled as error:
                if not stored.is_direct_refusal(error):
                    raise
        return await stored.get_by_api(self._js._api, self.name, body)

    async def counter(self, subject: str) -> CounterValue:
        """The counter at ``subject`` of a stream with ``allow_msg_counter`` (2.12).

        Raises :class:`MessageNotFound` when nothing has been counted there yet. As with ``get_msg``, a
        replica that is slightly behind may answer; ``js.increment(subject, 0)`` asks the leader.
        """
        validate_subject(subject)
        return CounterValue.from_message(await self.get_msg(last_by_subject=subject))

    async def counters(self, subjects: str | Sequence[str] = ">") -> AsyncIterator[CounterValue]:
        """The counters of all matching subjects; rules and limits as for ``get_last_msgs_for``."""
        async for message in self.get_last_msgs_for(subjects):
            yield CounterValue.from_message(message)

    async def get_msgs(
        self,
        subjects: str | Sequence[str] | None = None,
        *,
        seq: int | None = None,
        start_time: datetime | None = None,
        max_messages: int | None = None,
        batch: int = DEFAULT_BATCH,
        max_bytes: int = DEFAULT_BATCH_BYTES,
    ) -> AsyncIterator[StoredMsg]:
        """Stored messages in order, from ``seq`` or ``start_time`` on, to the end of the stream.

        ``subjects``: filters; the results of several are merged in order of sequence, each message once.
        ``max_messages``: stop after this many. ``batch`` and ``max_bytes``: size of one request to the server
        (1,000 messages, 16 MiB). Uses batch direct get (2.11) when the stream allows it, else one request per
        message. Any replica may answer a direct get, and one that is behind ends early.
        """
        if seq is not None and start_time is not None:
            raise InvalidArgument("start_time", start_time, f"excludes seq={seq}; give one of them")
        for field, value in (
            ("seq", seq),
            ("max_messages", max_messages),
            ("batch", batch),
            ("max_bytes", max_bytes),
        ):
            if value is not None:
                stored.check_positive(field, value)
        filters = _filters([">"] if subjects is None else subjects) or [">"]
        for one in filters:
            validate_filter(one, field="subjects")
        count = 0
        if max_messages is not None:
            batch = min(batch, max_messages)
        sources = [self._read(one, seq, start_time, batch, max_bytes) for one in filters]
        async with aclosing(sources[0] if len(sources) == 1 else _merge(sources)) as messages:
            async for message in messages:
                yield message
                count += 1
                if count == max_messages:
                    return

    async def get_last_msgs_for(
        self,
        subjects: str | Sequence[str],
        *,
        up_to_seq: int | None = None,
        up_to_time: datetime | None = None,
        batch: int = DEFAULT_BATCH,
    ) -> AsyncIterator[StoredMsg]:
        """The last message of each matching subject, in order of sequence (2.11; needs ``allow_direct``).

        ``up_to_seq`` or ``up_to_time``: as the stream was at that point. All results are from one point in
        time, even if they take several requests. At most 1,024 subjects may match.
        """
        if up_to_seq is not None and up_to_time is not None:
            raise InvalidArgument(
                "up_to_time", up_to_time, f"excludes up_to_seq={up_to_seq}; give one of them"
            )
        filters = _filters(subjects)
        if not filters:
            raise InvalidArgument("subjects", subjects, "must name at least one subject")
        for one in filters:
            validate_filter(one, field="subjects")
        if not self._allows_direct:
            raise self._no_direct()
        source = stored.last_for_direct(
            self._js._api,
            self.name,
            subjects=filters,
            up_to_seq=up_to_seq,
            up_to_time=up_to_time,
            batch=batch,
        )
        try:
            async with aclosing(source) as messages:
                async for message in messages:
                    yield message
        except JetStreamNotEnabled as error:
            if not stored.is_direct_refusal(error):
                raise
            await self.info()  # raises StreamNotFound if that is the reason
            raise self._no_direct() from None

    async def delete_msg(self, seq: int, *, secure: bool = False) -> None:
        """Delete one message. ``secure`` also overwrites it in the store with random data."""
        stored.check_positive("seq", seq)
        check_flag("secure", secure)
        body: dict[str, Any] = {"seq": seq}
        if not secure:
            body["no_erase"] = True
        await self._js._api.request(f"STREAM.MSG.DELETE.{self.name}", body)

    @property
    def _allows_direct(self) -> bool:
        config = self._info.config
        return bool(config.allow_direct)

    def _no_direct(self) -> InvalidArgument:
        rule = "does not allow direct get, which this needs; update it with allow_direct=True"
        return InvalidArgument("stream", self.name, rule)

    async def _read(
        self, subject: str, seq: int | None, start_time: datetime | None, batch: int, max_bytes: int
    ) -> AsyncGenerator[StoredMsg]:
        if self._allows_direct:
            source = stored.batch_direct(
                self._js._api,
                self.name,
                subject=subject,
                seq=seq,
                start_time=start_time,
                batch=batch,
                max_bytes=max_bytes,
            )
            try:
                async with aclosing(source) as messages:
                    async for message in messages:
                        yield message
                        seq, start_time = message.sequence + 1, None
                return
            except JetStreamNotEnabled as error:
                if not stored.is_direct_refusal(error):
                    raise
        while True:
            body = stored.message_request(seq=seq, next_by_subject=subject, start_time=start_time)
            try:
                message = await stored.get_by_api(self._js._api, self.name, body)
            except MessageNotFound:
                return
            yield message
            seq, start_time = message.sequence + 1, None

    # Consumers

    async def get_consumer(self, consumer: str) -> Consumer:
        """A handle on an existing consumer. Raises :class:`ConsumerNotFound`."""
        return await self._js.get_consumer(self.name, consumer)

    async def create_consumer(self, config: ConsumerConfig, *, pedantic: bool = False) -> Consumer:
        """Create a consumer. Raises :class:`ConsumerExists` when the name is taken."""
        return await self._js.create_consumer(self.name, config, pedantic=pedantic)

    async def update_consumer(self, config: ConsumerConfig, *, pedantic: bool = False) -> Consumer:
        """Change a consumer's config. Raises :class:`ConsumerDoesNotExist` when there is none."""
        return await self._js.update_consumer(self.name, config, pedantic=pedantic)

    async def create_or_update_consumer(self, config: ConsumerConfig, *, pedantic: bool = False) -> Consumer:
        """Create the consumer, or give the existing one this config."""
        return await self._js.create_or_update_consumer(self.name, config, pedantic=pedantic)

    async def create_ordered_consumer(
        self,
        config: OrderedConsumerConfig | None = None,
        *,
        filter_subjects: str | Sequence[str] | None = None,
        deliver_policy: DeliverPolicy | str | None = None,
        opt_start_seq: int | None = None,
        opt_start_time: datetime | None = None,
        replay_policy: ReplayPolicy | str = ReplayPolicy.INSTANT,
        inactive_threshold: float | timedelta = INACTIVE_THRESHOLD,
        headers_only: bool = False,
        max_reset_attempts: int | None = None,
        name_prefix: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> OrderedConsumer:
        """Create a consumer that delivers each message once and in order, without acks; see
        :class:`OrderedConsumer`.

        Takes a ``config``, or its fields as keywords.

        ``filter_subjects``: one filter or several; all subjects by default. ``deliver_policy``: where to
        start (``all``); ``opt_start_seq`` (1 or more) and ``opt_start_time`` (aware) imply theirs. It applies
        until the first message. ``replay_policy``: ``instant``, or ``original`` with the pauses between
        messages. ``inactive_threshold``: seconds after which the server removes it when unused (300).
        ``headers_only``: no bodies. ``max_reset_attempts``: give up after this many failed attempts in a row
        to recreate it (never). ``name_prefix``: consumers are named ``<prefix>_<number>`` (a unique id).
        ``metadata``: free key-value pairs (2.10).
        """
        return await self._js.create_ordered_consumer(
            self.name,
            config,
            filter_subjects=filter_subjects,
            deliver_policy=deliver_policy,
            opt_start_seq=opt_start_seq,
            opt_start_time=opt_start_time,
            replay_policy=replay_policy,
            inactive_threshold=inactive_threshold,
            headers_only=headers_only,
            max_reset_attempts=max_reset_attempts,
            name_prefix=name_prefix,
            metadata=metadata,
        )

    async def delete_consumer(self, consumer: str) -> None:
        """Delete a consumer. Raises :class:`ConsumerNotFound`."""
        await self._js.delete_consumer(self.name, consumer)

    async def pause_consumer(self, consumer: str, until: datetime) -> ConsumerPause:
        """Stop a consumer's delivery until a point in time (2.11)."""
        return await self._js.pause_consumer(self.name, consumer, until)

    async def resume_consumer(self, consumer: str) -> ConsumerPause:
        """End a consumer's pause now (2.11)."""
        return await self._js.resume_consumer(self.name, consumer)

    async def list_consumers(self) -> AsyncIterator[ConsumerInfo]:
        """All consumers of the stream."""
        async for info in self._js.list_consumers(self.name):
            yield info

    async def consumer_names(self) -> AsyncIterator[str]:
        """The names of all consumers of the stream."""
        async for name in self._js.consumer_names(self.name):
            yield name


async def _merge(sources: list[AsyncGenerator[StoredMsg]]) -> AsyncGenerator[StoredMsg]:
    """Merge message sources that are ordered by sequence; a message that is in several of them comes once."""
    heap: list[tuple[int, int, StoredMsg]] = []
    async with AsyncExitStack() as closing:
        for index, source in enumerate(sources):
            closing.push_async_callback(source.aclose)
            first = await anext(source, None)
            if first is not None:
                heap.append((first.sequence, index, first))
        heapq.heapify(heap)
        last = 0
        while heap:
            sequence, index, message = heap[0]
            if sequence > last:
                last = sequence
                yield message
            following = await anext(sources[index], None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (following.sequence, index, following))


def _filters(subjects: str | Sequence[str]) -> list[str]:
    if isinstance(subjects, str):
        return [subjects]
    if isinstance(subjects, bytes) or not isinstance(subjects, Iterable):
        raise InvalidArgument("subjects", subjects, "must be a subject or several")
    return list(subjects)


async def next_on_leader(stream: Stream, seq: int, subjects: Sequence[str] = ()) -> int | None:
    """The first sequence at or after ``seq`` with one of the subjects (default all), according to the leader.

    What is read from another replica, by a consumer that lives there or by direct get, ends where that
    replica ends. This call distinguishes the end of the stream from the end of a replica that is behind.
    """
    found: list[int] = []
    for subject in subjects or (">",):
        with suppress(MessageNotFound):
            message = await stream.get_msg(seq, next_by_subject=subject, from_leader=True)
            found.append(message.sequence)
    return min(found, default=None)


def api_of(stream: Stream) -> Api:
    """The API object that the stream uses. Internal to jetspark."""
    return stream._js._api
