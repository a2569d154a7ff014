"""The JetStream context (ADR-37): streams, consumers without a stream handle, publishing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from jetspark.connection.client import core_of
from jetspark.connection.nuid import next_nuid
from jetspark.connection.subscription_sink import DEFAULT_PENDING_BYTES, DEFAULT_PENDING_MESSAGES
from jetspark.errors import InvalidArgument, ProtocolError
from jetspark.jetstream.advisory.dead_letters import DeadLetters
from jetspark.jetstream.advisory.feed import Advisories
from jetspark.jetstream.api import Api, subject_filter
from jetspark.jetstream.asyncio_kinds import KINDS
from jetspark.jetstream.consume.ordered import OrderedConsumer, create_ordered
from jetspark.jetstream.consume.ordered_config import INACTIVE_THRESHOLD, OrderedConsumerConfig, either
from jetspark.jetstream.consumer import Consumer
from jetspark.jetstream.errors import StreamNameInUse, StreamNotFound
from jetspark.jetstream.flow.push import DEFAULT_ALARM_FACTOR
from jetspark.jetstream.models.account import AccountInfo
from jetspark.jetstream.models.consumer_config import (
    ConsumerConfig,
    DeliverPolicy,
    ReplayPolicy,
    consumer_create_request,
)
from jetspark.jetstream.models.consumer_info import ConsumerInfo, ConsumerPause
from jetspark.jetstream.models.counter import delta_text
from jetspark.jetstream.models.stream_config import StreamConfig, stream_config_request
from jetspark.jetstream.models.stream_info import StreamInfo
from jetspark.jetstream.models.validation import (
    check_name,
    check_names,
    validate_consumer_config,
    validate_stream_config,
)
from jetspark.jetstream.models.values import Timestamp
from jetspark.jetstream.publish.atomic_batch import DEFAULT_HOLD, MAX_MESSAGES, AtomicBatch
from jetspark.jetstream.publish.fast_ingest import DEFAULT_FLOW, DEFAULT_OUTSTANDING, FastIngest, GapMode
from jetspark.jetstream.publish.observed import atomic_batch_kind, fast_ingest_kind, publisher_kind
from jetspark.jetstream.publish.publish import DEFAULT_RETRIES, DEFAULT_RETRY_WAIT, Expect, publish
from jetspark.jetstream.publish.publisher import DEFAULT_WINDOW, Publisher
from jetspark.jetstream.stream import Stream
from jetspark.jetstream.subscribe.checks import check_options
from jetspark.jetstream.subscribe.pull_subscribe import PullSubscription, pull_subscribe
from jetspark.jetstream.subscribe.push import PushOptions
from jetspark.jetstream.subscribe.push_ordered import subscribe_ordered
from jetspark.jetstream.subscribe.subscribe import PushSubscription, subscribe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from datetime import datetime, timedelta

    from jetspark.connection.client import Connection
    from jetspark.connection.outbox import HeadersLike
    from jetspark.jetstream.consume.consume import ErrorListener, Handler
    from jetspark.jetstream.flow.fast import IngestGap
    from jetspark.jetstream.kinds import JetStreamKinds
    from jetspark.jetstream.models.advisories import Advisory
    from jetspark.jetstream.models.puback import PubAck
    from jetspark.jetstream.models.schedule import Schedule

# How many requests of one call may wait for their replies at the same time.
_AT_ONCE = 32


class JetStream:
    """The JetStream API of one account, domain or API prefix. Returned by ``nc.jetstream()``."""

    def __init__(
        self,
        connection: Connection,
        *,
        domain: str | None,
        api_prefix: str | None,
        timeout: float,
        kinds: JetStreamKinds | None = None,
    ) -> None:
        self._connection = connection
        self._core = core_of(connection)
        self._api = Api(self._core, domain=domain, api_prefix=api_prefix, timeout=timeout)
        self._kinds = kinds or KINDS

    @property
    def connection(self) -> Connection:
        """The connection it was created from."""
        return self._connection

    @property
    def api_prefix(self) -> str:
        """The subject prefix of every API request, ``$JS.API`` by default."""
        return self._api.prefix

    @property
    def timeout(self) -> float:
        """Seconds that each API request waits for its reply."""
        return self._api.timeout

    def __repr__(self) -> str:
        return f"JetStream({self._api.prefix!r})"

    # Streams

    async def create_stream(self, config: StreamConfig, *, pedantic: bool = False) -> Stream:
        """Create a stream. If a stream with the same config exists, it is returned.

        Raises :class:`StreamNameInUse` when the name is taken by a stream with another config. ``pedantic``
        (2.11) makes the server refuse values that it would silently adjust.
        """
        validate_stream_config(config, pedantic=pedantic)
        return await self._put_stream("CREATE", config, pedantic)

    async def update_stream(self, config: StreamConfig, *, pedantic: bool = False) -> Stream:
        """Change a stream's config. Raises :class:`StreamNotFound` when no stream has this name.

        Start from ``(await stream.info()).config.replace(...)``: fields you leave out are reset to defaults.
        """
        validate_stream_config(config, update=True, pedantic=pedantic)
        return await self._put_stream("UPDATE", config, pedantic)

    async def create_or_update_stream(self, config: StreamConfig, *, pedantic: bool = False) -> Stream:
        """Create the stream, or give the existing one this config."""
        try:
            return await self.update_stream(config, pedantic=pedantic)
        except StreamNotFound:
            pass
        try:
            return await self.create_stream(config, pedantic=pedantic)
        except StreamNameInUse:
            # Another client created it in between.
            return await self.update_stream(config, pedantic=pedantic)

    async def get_stream(self, name: str) -> Stream:
        """A handle on an existing stream. Raises :class:`StreamNotFound`."""
        check_name("stream", name)
        return Stream(self, StreamInfo.from_wire(await self._api.request(f"STREAM.INFO.{name}")))

    async def delete_stream(self, name: str) -> None:
        """Delete a stream with all its messages and consumers. Raises :class:`StreamNotFound`."""
        check_name("stream", name)
        await self._api.request(f"STREAM.DELETE.{name}")

    async def list_streams(self, subject: str | None = None) -> AsyncIterator[StreamInfo]:
        """All streams, or those that capture ``subject``, however many there are."""
        async for item in self._api.pages("STREAM.LIST", "streams", subject_filter(subject)):
            yield StreamInfo.from_wire(item)

    async def stream_infos(self, names: Sequence[str]) -> dict[str, StreamInfo]:
        """The infos of the named streams that exist, in this order. They are requested concurrently, 32 at a
        time."""
        if not isinstance(names, list | tuple):
            raise InvalidArgument("names", names, "must be a list of names; for one stream use get_stream")
        for name in names:
            check_name("stream", name)
        waiting = iter(names)
        found: dict[str, StreamInfo] = {}

        async def ask() -> None:
            for name in waiting:
                with contextlib.suppress(StreamNotFound):
                    found[name] = (await self.get_stream(name)).cached_info

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(_AT_ONCE, len(names))):
                    group.create_task(ask())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return {name: found[name] for name in names if name in found}

    async def stream_names(self, subject: str | None = None) -> AsyncIterator[str]:
        """The names of all streams, or of those that capture ``subject``."""
        async for item in self._api.pages("STREAM.NAMES", "streams", subject_filter(subject)):
            yield item

    async def stream_name_by_subject(self, subject: str) -> str:
        """The one stream that captures the subject; :class:`StreamNotFound` when none or several do."""
        names = [name async for name in self.stream_names(subject)]
        if len(names) != 1:
            found = f"{len(names)} streams capture" if names else "no stream captures"
            raise StreamNotFound(404, 10059, f"{found} subject {subject!r}; name the stream")
        return names[0]

    async def _put_stream(self, verb: str, config: StreamConfig, pedantic: bool) -> Stream:
        body = stream_config_request(config, pedantic=pedantic)
        response = await self._api.request(f"STREAM.{verb}.{config.name}", body)
        return Stream(self, StreamInfo.from_wire(response))

    # Consumers

    async def get_consumer(self, stream: str, consumer: str) -> Consumer:
        """A handle on an existing consumer. Raises :class:`ConsumerNotFound`."""
        return Consumer(self, await self._consumer_info(stream, consumer))

    async def create_consumer(
        self, stream: str, config: ConsumerConfig, *, pedantic: bool = False
    ) -> Consumer:
        """Create a consumer. Raises :class:`ConsumerExists` when the name is taken."""
        return await self._put_consumer(stream, config, "create", pedantic)

    async def update_consumer(
        self, stream: str, config: ConsumerConfig, *, pedantic: bool = False
    ) -> Consumer:
        """Change a consumer's config. Raises :class:`ConsumerDoesNotExist` when there is none."""
        validate_consumer_config(config, pedantic=pedantic)
        if config.effective_name is None:
            raise InvalidArgument("name", None, "an update must name the consumer; set name or durable_name")
        return await self._put_consumer(stream, config, "update", pedantic)

    async def create_or_update_consumer(
        self, stream: str, config: ConsumerConfig, *, pedantic: bool = False
    ) -> Consumer:
        """Create the consumer, or give the existing one this config."""
        return await self._put_consumer(stream, config, "", pedantic)

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
        given = OrderedConsumerConfig(
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
        return await create_ordered(self, stream, either(config, given))

    async def pull_subscribe(
        self,
        subject: str | None = None,
        durable: str | None = None,
        *,
        stream: str | None = None,
        consumer: str | None = None,
        config: ConsumerConfig | None = None,
    ) -> PullSubscription:
        """Subscribe to a subject of a stream and fetch messages from it (ADR-13).

        The stream is the one that captures ``subject``; or name it with ``stream``. ``durable``: use the
        consumer with that name, or create it; without it an ephemeral one is created. ``consumer``: bind to
        an existing one as it is. ``config``: further settings of a new consumer; an existing one must agree
        with them. Acks are explicit.

        Raises :class:`StreamNotFound`, and :class:`ConsumerNotFound` with ``consumer``.
        """
        return await pull_subscribe(self, subject, durable, stream=stream, consumer=consumer, config=config)

    async def subscribe(
        self,
        subject: str | None = None,
        *,
        queue: str = "",
        stream: str | None = None,
        durable: str | None = None,
        consumer: str | None = None,
        config: ConsumerConfig | None = None,
        callback: Handler | None = None,
        manual_ack: bool = False,
        ordered: bool = False,
        idle_heartbeat: float | timedelta | None = None,
        flow_control: bool | None = None,
        deliver_policy: DeliverPolicy | str | None = None,
        opt_start_seq: int | None = None,
        opt_start_time: datetime | None = None,
        alarm_factor: float = DEFAULT_ALARM_FACTOR,
        pending_messages_limit: int = DEFAULT_PENDING_MESSAGES,
        pending_bytes_limit: int = DEFAULT_PENDING_BYTES,
        delete_on_close: bool | None = None,
        on_error: ErrorListener | None = None,
    ) -> PushSubscription:
        """Subscribe to a subject of a stream with a push consumer (ADR-15).

        The stream is the one that captures ``subject``; or name it with ``stream``. ``durable``: use the
        consumer with that name, or create it; without it an ephemeral one is created. ``consumer``: bind to
        an existing one as it is. ``queue``: share the messages with other members; it is also the durable
        name unless you give one. ``config``: further settings of a new consumer; an existing one must agree
        with them. ``idle_heartbeat`` (seconds, at least 0.1; none by default), ``flow_control`` (needs
        ``idle_heartbeat``), ``deliver_policy`` (``all``), ``opt_start_seq`` and ``opt_start_time`` can also
        be set in the config.

        ``delete_on_close``: whether ``unsubscribe``, ``drain`` and the end of the block delete the consumer
        that this call created. By default only an ephemeral one is deleted: a durable keeps its place in the
        stream for the next start, and a queue group's consumer serves the other members. ``True``: a durable
        too, as ADR-15 says; refused with ``queue``. ``False``: nothing is deleted; the server removes an
        ephemeral one that was unused for its ``inactive_threshold``. A consumer that existed before is never
        deleted.

        ``callback``: called with each message, async or not; the message is acked when it returns, unless
        ``manual_ack``. ``ordered``: each message once and in order without acks, whatever happens; see
        ``create_ordered_consumer``. ``alarm_factor``: heartbeat intervals of silence that raise the alarm (3,
        above 1). ``pending_messages_limit``, ``pending_bytes_limit``: how much may be buffered before new
        messages are dropped (524,288 and 128 MiB; 0: no limit); with flow control nothing is dropped.
        ``on_error``: called with missed heartbeats, lost messages and failures of the callback; by default
        they become events of the connection.

        Raises :class:`StreamNotFound`, :class:`ConsumerNotFound` with ``consumer``, and a subclass of
        :class:`IncompatibleConsumer` when the consumer exists but does not match the request.
        """
        subscription: PushSubscription = self._kinds.push_subscription(
            self, subject or "", callback=callback, manual_ack=manual_ack, on_error=on_error
        )
        options = PushOptions(
            alarm_factor=alarm_factor,
            pending_messages_limit=pending_messages_limit,
            pending_bytes_limit=pending_bytes_limit,
            raises=callback is None,
        )
        wish = check_options(
            subject,
            queue=queue,
            stream=stream,
            durable=durable,
            consumer=consumer,
            config=config,
            idle_heartbeat=idle_heartbeat,
            flow_control=flow_control,
            deliver_policy=deliver_policy,
            opt_start_seq=opt_start_seq,
            opt_start_time=opt_start_time,
            delete_on_close=delete_on_close,
        )
        if ordered:
            return await subscribe_ordered(subscription, stream, wish, options)
        return await subscribe(subscription, stream, wish, options)

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        """Delete a consumer. Raises :class:`ConsumerNotFound`."""
        check_names(stream, consumer)
        await self._api.request(f"CONSUMER.DELETE.{stream}.{consumer}")

    async def pause_consumer(self, stream: str, consumer: str, until: datetime) -> ConsumerPause:
        """Stop delivery until a point in time (2.11). Messages in flight can still be acked."""
        check_names(stream, consumer)
        time = Timestamp.from_datetime(until, field="until")
        response = await self._api.request(
            f"CONSUMER.PAUSE.{stream}.{consumer}", {"pause_until": time.to_rfc3339()}
        )
        return ConsumerPause.from_wire(response)

    async def resume_consumer(self, stream: str, consumer: str) -> ConsumerPause:
        """End a pause now (2.11)."""
        check_names(stream, consumer)
        return ConsumerPause.from_wire(await self._api.request(f"CONSUMER.PAUSE.{stream}.{consumer}", {}))

    async def list_consumers(self, stream: str) -> AsyncIterator[ConsumerInfo]:
        """All consumers of a stream."""
        check_name("stream", stream)
        async for item in self._api.pages(f"CONSUMER.LIST.{stream}", "consumers", {}):
            yield ConsumerInfo.from_wire(item)

    async def consumer_names(self, stream: str) -> AsyncIterator[str]:
        """The names of all consumers of a stream."""
        check_name("stream", stream)
        async for item in self._api.pages(f"CONSUMER.NAMES.{stream}", "consumers", {}):
            yield item

    async def _consumer_info(self, stream: str, consumer: str) -> ConsumerInfo:
        check_names(stream, consumer)
        return ConsumerInfo.from_wire(await self._api.request(f"CONSUMER.INFO.{stream}.{consumer}"))

    async def _put_consumer(
        self, stream: str, config: ConsumerConfig, action: str, pedantic: bool
    ) -> Consumer:
        check_name("stream", stream)
        validate_consumer_config(config, pedantic=pedantic)
        name = config.effective_name
        if name is None:
            # We choose the name, so that a retry after a lost reply finds the consumer instead of creating
            # another.
            name = next_nuid()
            config = config.replace(name=name)
        operation = f"CONSUMER.CREATE.{stream}.{name}"
        if config.filter_subject:
            # The filter in the subject lets permissions restrict it; only a single filter has this form.
            operation += "." + config.filter_subject
        body = consumer_create_request(stream, config, action=action, pedantic=pedantic)
        return Consumer(self, ConsumerInfo.from_wire(await self._api.request(operation, body)))

    # Account

    async def account_info(self) -> AccountInfo:
        """What the account uses and may use, by tier if it has tiers."""
        return AccountInfo.from_wire(await self._api.request("INFO"))

    # Advisories

    def advisories(
        self,
        stream: str | None = None,
        consumer: str | None = None,
        *,
        kinds: Iterable[type[Advisory]] | None = None,
    ) -> Advisories:
        """The server's advisories about streams and consumers, as typed objects::

            async with js.advisories("ORDERS", kinds=[MaxDeliveriesAdvisory, NakAdvisory]) as advisories:
                async for advisory in advisories:
                    print(advisory.consumer, advisory.stream_seq)

        ``stream``, ``consumer``: only advisories about them (all). ``kinds``: classes of advisories (all;
        without ``stream`` this includes an :class:`ApiAuditAdvisory` for each API request of any client, with
        ``stream`` you have to ask for it). A kind that this version does not know becomes a
        :class:`GenericAdvisory`. The server keeps no advisories: you only get those published while this is
        listening.
        """
        return Advisories(self._core, stream=stream, consumer=consumer, kinds=kinds)

    def dead_letters(
        self, stream: str, consumer: str | None = None, *, terminated: bool = True
    ) -> DeadLetters:
        """Messages that ran out of deliveries (``max_deliver``) or were terminated, fetched from the stream::

            async with js.dead_letters("ORDERS", "worker") as letters:
                async for letter in letters:
                    await letter.republish("dead.orders")

        ``consumer``: only for this consumer (all). ``terminated``: also messages that a client ended with
        ``term`` (yes).
        """
        return DeadLetters(self, stream, consumer, terminated=terminated)

    # Publish

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: HeadersLike | None = None,
        msg_id: str | None = None,
        expect: Expect | None = None,
        ttl: float | str | None = None,
        schedule: Schedule | None = None,
        timeout: float | None = None,
        retries: int = DEFAULT_RETRIES,
        retry_wait: float = DEFAULT_RETRY_WAIT,
    ) -> PubAck:
        """Publish a message and wait until it is stored.

        ``msg_id``: ``Nats-Msg-Id``; a second message with the same id within the stream's duplicate window is
        not stored again. ``expect``: conditions the stream must meet. ``ttl``: seconds after which the
        message expires, or ``"never"`` (2.11; needs ``allow_msg_ttl``). ``schedule``: let the stream publish
        it later or repeatedly (2.12; needs ``allow_msg_schedules``). ``timeout``: seconds for each attempt
        (default: the context's). ``retries``, ``retry_wait``: retries when no stream responds, as happens
        while a leader is elected (ADR-22: 2 more attempts, 0.25 s apart). A timeout is never retried, because
        the message may have been stored; retry it yourself with the same ``msg_id``.

        Raises :class:`NoStreamResponse` when no stream captures the subject.
        """
        return await publish(
            self._core,
            subject,
            data,
            headers=headers,
            msg_id=msg_id,
            expect=expect,
            ttl=ttl,
            schedule=schedule,
            timeout=self._api.timeout if timeout is None else timeout,
            retries=retries,
            retry_wait=retry_wait,
        )

    async def increment(
        self,
        subject: str,
        delta: int | str = 1,
        *,
        msg_id: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Add to a counter and return its new value (2.12; needs ``allow_msg_counter``).

        ``delta``: an integer of any size, also negative or 0, or the same as a decimal string. With
        ``msg_id`` it is safe to retry after a timeout, when the increment may already be counted: a duplicate
        adds nothing and returns the current value. Raises :class:`CountersDisabled` on a stream without
        counters.
        """
        headers = {"Nats-Incr": delta_text(delta)}
        ack = await self.publish(subject, headers=headers, msg_id=msg_id, timeout=timeout)
        if ack.value is not None:
            return ack.value
        if not ack.duplicate:
            raise ProtocolError(
                f"stream {ack.stream!r} stored the increment but counted nothing; counters need 2.12"
            )
        return (await (await self.get_stream(ack.stream)).counter(subject)).value

    def atomic_batch(
        self,
        *,
        hold: int = DEFAULT_HOLD,
        max_messages: int = MAX_MESSAGES,
        timeout: float | None = None,
    ) -> AtomicBatch:
        """A batch that is stored as a whole or not at all (2.12; needs ``allow_atomic``)::

            async with js.atomic_batch() as batch:
                await batch.publish("orders.1", b"...")
                await batch.publish("stock.7", b"...")
            print(batch.ack)

        ``hold``: bytes of messages kept in the client before the first goes to the server (256 KiB; 0: send
        immediately). Once its first message is sent, a batch must not be idle for 10 seconds.
        ``max_messages``: refuse more than this (1,000, the server's own limit). ``timeout``: seconds to wait
        for the first reply and for the commit (default: the context's).
        """
        return atomic_batch_kind(self._core)(
            self._core,
            hold=hold,
            max_messages=max_messages,
            timeout=self._api.timeout if timeout is None else timeout,
        )

    def fast_ingest(
        self,
        *,
        gap: GapMode = "fail",
        flow: int = DEFAULT_FLOW,
        max_outstanding_acks: int = DEFAULT_OUTSTANDING,
        on_gap: Callable[[IngestGap], None] | None = None,
        ping_interval: float = 2.0,
        ack_timeout: float = 30.0,
        timeout: float | None = None,
    ) -> FastIngest:
        """One long batch, acked every few hundred messages: the fastest way to publish (2.14; needs
        ``allow_batched``)::

            async with js.fast_ingest() as ingest:
                for reading in readings:
                    await ingest.publish("sensors.cnc", reading)
            print(ingest.ack)

        It is not atomic: messages are stored as they arrive. ``gap``: when messages get lost or are refused,
        ``"fail"`` ends the batch there (what is stored has no gap; :class:`FastIngestBroken` says how far
        it got), ``"ok"`` continues and calls ``on_gap`` with each :class:`IngestGap`, or logs it.
        ``flow``: the most messages the server may store before it acks (1 to 65,535; servers up to 2.15 grant
        500, shared by all such batches of the stream). ``max_outstanding_acks``: how many acks may be due
        before ``publish`` waits (1 to 3). ``ping_interval``: seconds of silence after which the client pings
        the server (2; the server forgets a batch after 10). ``ack_timeout``: seconds of silence that end the
        batch (30). ``timeout``: seconds to wait for the reply to the first message (default: the context's).
        """
        return fast_ingest_kind(self._core)(
            self._core,
            gap=gap,
            flow=flow,
            max_outstanding_acks=max_outstanding_acks,
            on_gap=on_gap,
            ping_interval=ping_interval,
            ack_timeout=ack_timeout,
            timeout=self._api.timeout if timeout is None else timeout,
        )

    def publisher(
        self,
        *,
        window: int = DEFAULT_WINDOW,
        ack_timeout: float = 30.0,
        retry: bool = False,
    ) -> Publisher:
        """A pipelined publisher: many messages in flight, each with a future for its ack.

        ``window``: how many messages may wait for their ack before ``publish`` waits (4,000). Large messages
        also wait when 32 MiB are on their way, because a stream buffers 128 MiB and refuses the rest.
        ``ack_timeout``: seconds after which a missing ack fails its future (30). ``retry``: send messages
        that have a ``msg_id`` again when the connection broke, no stream responded, or no ack came for a
        quarter of ``ack_timeout``; they fail after ``ack_timeout`` (False). Messages that expect a
        sequence are never sent again.

        Messages are stored in the order in which they were published. With ``retry`` this also holds across
        lost connections and server restarts: messages without an ack are sent again first, oldest first, and
        newer messages wait until the streams accept the older ones, at most ``ack_timeout``. Messages without
        a ``msg_id`` are not sent again and leave a gap. One case can't be prevented by the client: when the
        leader of a replicated stream dies, or a stream briefly refuses messages, while messages are on their
        way, the stream may have stored a newer one but not an older one. The older one is then sent again and
        stored after it. If order matters more than speed, use ``window=1`` or ``Expect``.
        """
        return publisher_kind(self._core)(self._core, window=window, ack_timeout=ack_timeout, retry=retry)
