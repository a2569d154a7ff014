"""Pull subscribe (ADR-13): a subject in, lists of messages out.

The older way to consume, for code that is built around subscriptions. A ``fetch`` of one message is one
request that waits. A ``fetch`` of several takes what is available, and waits for the first message only when
there is none. ADR-13 describes two requests for that. Servers since 2.7.1, and so all that we support, accept
both in one request (``no_wait`` with ``expires``).

Each fetch has its own inbox, instead of the shared one that ADR-13 sketches for single messages: messages
arrive under their own subject, so with a shared inbox a late message can't be told from the right one.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Self

from jetspark._checks import is_positive, is_whole
from jetspark._log import fields, get_logger
from jetspark.errors import InvalidArgument, PermissionViolationError, RequestTimeout
from jetspark.jetstream.consume.errors import ConsumeError, PushConsumerError
from jetspark.jetstream.consume.fetch import Fetch, MessageBatch
from jetspark.jetstream.consume.pull import PullSink, PullTarget, Stash
from jetspark.jetstream.consumer import Consumer, ConsumerHome
from jetspark.jetstream.errors import ConsumerExists, ConsumerNotFound, JetStreamNotEnabled
from jetspark.jetstream.flow.options import FetchOptions
from jetspark.jetstream.models.consumer_config import AckPolicy, ConsumerConfig
from jetspark.jetstream.models.consumer_info import ConsumerInfo
from jetspark.jetstream.models.validation import check_name
from jetspark.wire.subjects import validate_filter

if TYPE_CHECKING:
    from types import TracebackType


# The request ends on the server slightly before ``timeout`` (ADR-13), so that the reply arrives in time.
_MARGIN = 0.01


logger = get_logger("jetstream")


class PullSubscriptionClosed(ConsumeError):
    """The pull subscription was unsubscribed, or has delivered its maximum number of messages."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"the pull subscription to {subject!r} is closed; call pull_subscribe again")
        self.subject = subject


class SubscriptionFetch(Fetch):
    """A fetch that its subscription can end."""

    def __init__(
        self, target: PullTarget, options: FetchOptions, stash: Stash, active: set[PullSink]
    ) -> None:
        super().__init__(target, options, stash)
        self._active = active
        self.sink: PullSink | None = None

    def _new_sink(self, options: FetchOptions) -> PullSink:
        self.sink = PullSink(self._target, options)
        self._active.add(self.sink)
        return self.sink


class PullSubscription:
    """A pull subscription: ``fetch`` lists of messages. Returned by ``js.pull_subscribe``.

    As a context manager it unsubscribes at the end.
    """

    def __init__(self, consumer: Consumer, subject: str, *, owned: bool) -> None:
        self._consumer = consumer
        self._subject = subject
        self._owned = owned
        self._stash = consumer._stash
        self._active: set[PullSink] = set()
        self._delivered = 0
        self._limit = 0
        self._closed = False

    @property
    def subject(self) -> str:
        """The subject of the subscription; empty for all subjects of the consumer."""
        return self._subject

    @property
    def consumer(self) -> Consumer:
        """The consumer behind it."""
        return self._consumer

    @property
    def pending(self) -> int:
        """Messages received and not handed out: those of a cancelled fetch."""
        return len(self._stash) + sum(len(sink.buffer) for sink in self._active)

    @property
    def delivered(self) -> int:
        """Messages handed out so far."""
        return self._delivered

    @property
    def closed(self) -> bool:
        """Whether it was unsubscribed or has reached its limit."""
        return self._closed

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"PullSubscription({self._subject!r}, {self._consumer!r}, {state})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.unsubscribe()

    async def fetch(self, batch: int = 1, timeout: float = 5.0) -> MessageBatch:
        """At most ``batch`` messages: those available now; if there are none, waits for the first.

        It waits up to ``timeout`` seconds. An empty list means that the server had nothing in that time.
        Errors of the server (consumer deleted, a limit of the consumer) and a missing reply
        (:class:`NotConnected`, :class:`PullUnanswered`, 1 to 5 s after ``timeout``) are raised. If messages
        came before the error, it is the ``error`` of the list instead; it is never among the messages.
        Cancelling it loses no message.
        """
        if self._closed:
            raise PullSubscriptionClosed(self._subject)
        if not is_whole(batch, 1):
            raise InvalidArgument("batch", batch, "must be a positive integer")
        if not is_positive(timeout):
            raise InvalidArgument("timeout", timeout, "must be a positive number of seconds")
        if self._limit:
            batch = min(batch, self._limit - self._delivered)
        # A single message is either available or has to be waited for.
        options = FetchOptions(
            max_messages=batch, expires=max(timeout - _MARGIN, timeout / 2), no_wait=batch > 1
        )
        fetch = SubscriptionFetch(self._consumer._target, options, self._stash, self._active)
        try:
            found = await fetch
        finally:
            if fetch.sink is not None:
                self._active.discard(fetch.sink)
        self._delivered += len(found)
        if self._limit and self._delivered >= self._limit:
            await self.unsubscribe()
        return found

    async def unsubscribe(self, max_messages: int = 0) -> None:
        """End now, or after ``max_messages`` in total.

        A running fetch returns what it has, or raises :class:`PullSubscriptionClosed` if it has
        nothing. An ephemeral consumer that ``pull_subscribe`` created is deleted;
        durable ones and those it was bound to stay.
        """
        if not is_whole(max_messages, 0):
            raise InvalidArgument("max_messages", max_messages, "must be 0 (now) or a positive integer")
        if self._closed:
            return
        if max_messages > self._delivered:
            self._limit = max_messages
            return
        self._closed = True
        for sink in list(self._active):
            sink._finish(PullSubscriptionClosed(self._subject), discard=False)
        if self._owned and self._consumer._target.core.is_connected:
            with contextlib.suppress(ConsumerNotFound):  # inactive_threshold was faster
                await self._consumer.delete()

    async def consumer_info(self) -> ConsumerInfo:
        """Ask the server for the info of the consumer."""
        return await self._consumer.info()


async def pull_subscribe(
    js: ConsumerHome,
    subject: str | None,
    durable: str | None,
    *,
    stream: str | None,
    consumer: str | None,
    config: ConsumerConfig | None,
) -> PullSubscription:
    """Find the stream, then find or create the consumer."""
    if subject:
        validate_filter(subject)
    if consumer is not None:
        check_name("consumer", consumer)
        for field, value in (("durable", durable), ("config", config)):
            if value is not None:
                raise InvalidArgument(
                    field, value, f"excludes consumer={consumer!r}, which binds to an existing one as it is"
                )
    if stream is None:
        if not subject:
            raise InvalidArgument("subject", subject, "is needed to find the stream; or name the stream")
        stream = await js.stream_name_by_subject(subject)
    if consumer is not None:
        return PullSubscription(await _bind(js, stream, consumer, subject), subject or "", owned=False)
    wanted = _wanted(config or ConsumerConfig(), subject, durable)
    name = wanted.effective_name
    if name is None:
        handle = await js.create_consumer(stream, wanted)
        return PullSubscription(handle, subject or "", owned=True)
    try:
        handle = await js.get_consumer(stream, name)
    except ConsumerNotFound:
        try:
            handle = await js.create_consumer(stream, wanted)
        except ConsumerExists:
            handle = await js.get_consumer(stream, name)  # another client created it in between
    _check_fits(handle, subject, wanted)
    return PullSubscription(handle, subject or "", owned=False)


async def _bind(js: ConsumerHome, stream: str, consumer: str, subject: str | None) -> Consumer:
    """A named consumer. ADR-15 'Consumer name': pulling works without the lookup, so it may fail.

    It fails for consumers of other accounts, if their export contains only the request for messages.
    A reply that there is no such consumer is an error.
    """
    try:
        handle = await js.get_consumer(stream, consumer)
    except (JetStreamNotEnabled, PermissionViolationError, RequestTimeout) as error:
        logger.info(
            "consumer %s of stream %s can't be looked at: %s",
            consumer,
            stream,
            error,
            extra=fields(stream=stream, consumer=consumer, error=error),
        )
        config = ConsumerConfig(durable_name=consumer)
        return Consumer(js, ConsumerInfo(stream_name=stream, name=consumer, config=config))
    _check_fits(handle, subject, ConsumerConfig())
    return handle


def _wanted(config: ConsumerConfig, subject: str | None, durable: str | None) -> ConsumerConfig:
    """The config of the consumer to create. ADR-13 and ADR-15 say what a pull subscription can't have."""
    if config.is_push:
        raise InvalidArgument(
            "deliver_subject", config.deliver_subject, "makes a push consumer; leave it out to pull"
        )
    if config.ack_policy != AckPolicy.EXPLICIT:
        raise InvalidArgument(
            "ack_policy",
            getattr(config.ack_policy, "value", config.ack_policy),
            "a pull subscription needs explicit acks; use create_consumer() or create_ordered_consumer()",
        )
    if durable is not None:
        check_name("durable", durable)
        if config.effective_name not in (None, durable):
            raise InvalidArgument("durable", durable, f"the config names it {config.effective_name!r}")
        config = config.replace(durable_name=durable)
    if subject and not (config.filter_subject or config.filter_subjects):
        config = config.replace(filter_subject=subject)
    elif subject and subject not in _filters(config):
        raise InvalidArgument("subject", subject, f"is not among the config's filters {_filters(config)}")
    return config


def _filters(config: ConsumerConfig) -> list[str]:
    return [config.filter_subject] if config.filter_subject else list(config.filter_subjects or [])


def _check_fits(handle: Consumer, subject: str | None, wanted: ConsumerConfig) -> None:
    """An existing consumer must be what the caller expects: other messages than requested are worse than an
    error."""
    found = handle.config
    if found.is_push:
        raise PushConsumerError(409, "Consumer is push based")
    filters = _filters(found)
    if subject and filters and subject not in filters:
        raise InvalidArgument(
            "subject", subject, f"consumer {handle.name!r} of {handle.stream_name!r} delivers {filters}"
        )
    default = ConsumerConfig()
    for field in wanted.__struct_fields__:
        value = getattr(wanted, field)
        if field in _NOT_COMPARED or value == getattr(default, field):
            continue
        have: Any = getattr(found, field)
        if have != value:
            raise InvalidArgument(
                field,
                value,
                f"consumer {handle.name!r} of {handle.stream_name!r} has {have!r}; "
                "update it with update_consumer(), or leave the option out",
            )


# The consumer was found by its name, filters are compared above, and the server adds its own metadata.
_NOT_COMPARED = frozenset(
    {"name", "durable_name", "filter_subject", "filter_subjects", "metadata", "extra", "pause_until"}
)


def stash_of(subscription: PullSubscription) -> Stash:
    """Where messages of a fetch go that are not taken. Internal to jetspark."""
    return subscription._stash
