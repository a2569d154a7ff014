"""Subscribe (ADR-15): a subject in, messages of a push consumer out.

The workflow follows the order of the document. Mistakes are refused first. The stream is found by the subject
(exactly one must capture it). A consumer that was named, or a durable that exists, is looked up and checked.
Otherwise one is created, *after* the NATS subscription, so that the server can tell whether it is in use. If
another client creates it in between, it is looked up and checked in the same way, and the subscription moves
to its actual deliver subject.

A consumer that the library created is deleted at the end of ``unsubscribe`` or ``drain``, unless it is
durable or belongs to a queue group. ADR-15 deletes those too; ``delete_on_close=True`` does so for durables.
A consumer that already existed stays. Heartbeats, flow control and other statuses never reach the user
("Automatic Status Management").
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Self

from jetspark._checks import is_whole
from jetspark._log import fields, get_logger
from jetspark.connection.events import ConsumerDeleteFailed, ConsumerDisturbed
from jetspark.connection.listening import call_listener
from jetspark.connection.nuid import next_nuid
from jetspark.connection.outbox import FLUSH_AT
from jetspark.errors import DrainTimeout, InvalidArgument, JetsparkError, RequestTimeout
from jetspark.jetstream.consume.consume import tell_failure
from jetspark.jetstream.consume.errors import ConsumeError
from jetspark.jetstream.errors import ConsumerExists, ConsumerNotFound
from jetspark.jetstream.message import ACK
from jetspark.jetstream.models.validation import validate_consumer_config
from jetspark.jetstream.subscribe.checks import check_binding
from jetspark.jetstream.subscribe.push import PushOptions, PushSink, PushTarget

if TYPE_CHECKING:
    from types import TracebackType

    from jetspark.jetstream.consume.consume import ErrorListener, Handler
    from jetspark.jetstream.consume.ordered_chain import OrderedChain
    from jetspark.jetstream.home import Home
    from jetspark.jetstream.message import Message
    from jetspark.jetstream.models.consumer_config import ConsumerConfig
    from jetspark.jetstream.models.consumer_info import ConsumerInfo
    from jetspark.jetstream.subscribe.checks import Wish

logger = get_logger("jetstream")

#: Metadata key for consumers with a deliver subject chosen by the user: identifies the creator.
CREATOR = "jetspark.creator"
# How many callbacks run before the event loop gets a turn to read, write and answer PINGs.
_CALLBACKS_A_TURN = 512


class PushSubscriptionClosed(ConsumeError):
    """The push subscription was unsubscribed or drained, or has delivered its maximum number of messages."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"the push subscription to {subject!r} is closed; call subscribe again")
        self.subject = subject


class PushSubscription:
    """A subscription to a push consumer. Returned by ``js.subscribe``.

    Iterate over it, call ``next``, or give ``subscribe`` a callback. With a callback each message is acked
    when the callback returns, unless ``manual_ack``. If the callback raises, the message is not acked, and is
    delivered again; the exception is reported with its traceback, and passed to ``on_error`` or the
    connection's listener. Without a callback your code does the acking.

    Statuses from the server are handled here. Errors among them are raised by the iterator or ``next`` at
    their position among the messages, and the subscription stays. Missed heartbeats and lost messages go to
    ``on_error``, or else to the connection's listener as :class:`ConsumerDisturbed`; with a callback the
    errors do too.

    As a context manager it unsubscribes at the end. A durable consumer stays, with its place in the stream.
    """

    def __init__(
        self,
        js: Home,
        subject: str,
        *,
        callback: Handler | None = None,
        manual_ack: bool = False,
        on_error: ErrorListener | None = None,
    ) -> None:
        for name, function in (("callback", callback), ("on_error", on_error)):
            if function is not None and not callable(function):
                raise InvalidArgument(name, function, "must be a function")
        self._js = js
        self._core = js._core
        self._subject = subject
        observer = js._core.observer
        self._callback = callback if callback is None or observer is None else observer.handling(callback)
        self._auto_ack = callback is not None and not manual_ack
        self._on_error = on_error
        self._sink: PushSink | None = None
        self._info: ConsumerInfo | None = None
        # Whether the consumer was created for this subscription and is to be deleted with it.
        self._owned = False
        # Creates one consumer after the other, for an ordered subscription.
        self._chain: OrderedChain | None = None
        self._deleting: asyncio.Task[None] | None = None
        self._runner: asyncio.Task[None] | None = None
        self._listening: set[asyncio.Task[None]] = set()
        self._raised = False

    @property
    def subject(self) -> str:
        """The subject of the subscription; empty for all subjects of the consumer."""
        return self._subject

    @property
    def queue(self) -> str:
        """The queue group, empty when there is none."""
        return self._started.queue

    @property
    def deliver_subject(self) -> str:
        """The subject that the server delivers to."""
        return self._started.subject

    @property
    def stream_name(self) -> str:
        """The stream that the messages come from."""
        return self.cached_info.stream_name

    @property
    def consumer_name(self) -> str:
        """The consumer behind it."""
        return self.cached_info.name

    @property
    def cached_info(self) -> ConsumerInfo:
        """The info of the consumer from the last reply, without asking the server."""
        info = self._info if self._chain is None else self._chain.info
        assert info is not None
        return info

    @property
    def pending(self) -> int:
        """Messages received and not yet taken by user code."""
        return len(self._started.buffer)

    @property
    def delivered(self) -> int:
        """Messages handed to user code so far."""
        return self._started.received - len(self._started.buffer)

    @property
    def dropped(self) -> int:
        """Messages dropped because the pending limits were reached; never with flow control."""
        return self._started.dropped

    @property
    def closed(self) -> bool:
        """Whether no further message will arrive. There may still be buffered ones."""
        return self._started.done

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return (
            f"PushSubscription({self._subject!r}, {self.stream_name!r}, {self.consumer_name!r}, "
            f"{state}, pending={self.pending})"
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.unsubscribe()

    # Taking messages

    def __aiter__(self) -> Self:
        self._refuse_callback()
        self._started.takers.add(asyncio.current_task())
        return self

    async def __anext__(self) -> Message:
        sink = self._started
        buffer = sink.buffer
        while True:
            if sink.trouble:
                error = sink.next_trouble()
                if error is not None:
                    raise error
            if buffer:
                break
            sink.report()
            if sink.done:
                self._came_to_end()
                sink.takers.remove(asyncio.current_task())
                error = self._end()
                if error is not None:
                    raise error
                raise StopAsyncIteration
            sink.takers.add(asyncio.current_task())
            await sink.wait()
        if sink.takers.nobody:
            sink.takers.add(asyncio.current_task())
        message = buffer.popleft()
        if len(buffer) <= sink.mark:
            sink.report()
        return message  # type: ignore[no-any-return]

    async def next(self, timeout: float | None = None) -> Message:
        """The next message, waiting at most ``timeout`` seconds (default: the connection's
        ``request_timeout``).

        Raises :class:`RequestTimeout` when none arrived, and :class:`PushSubscriptionClosed` when no more can
        arrive. Cancelling it loses no message.
        """
        self._refuse_callback()
        self._started.takers.add(asyncio.current_task())
        seconds = self._core.options.request_timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                return await self.__anext__()
        except StopAsyncIteration:
            raise PushSubscriptionClosed(self._subject) from None
        except RequestTimeout:
            raise
        except TimeoutError:
            raise RequestTimeout(f"no message on {self._subject!r} within {seconds:g}s") from None

    async def consumer_info(self) -> ConsumerInfo:
        """Ask the server for the info of the consumer."""
        info = await self._js._consumer_info(self.stream_name, self.consumer_name)
        if self._chain is None:
            self._info = info
        return info

    # The end

    async def unsubscribe(self, max_messages: int = 0) -> None:
        """Stop now and drop buffered messages, or stop after ``max_messages`` in total since subscribing.

        The consumer is deleted if ``subscribe`` created it and ``delete_on_close`` says so (by default if it
        is ephemeral); it stays if it existed before. Errors of the deletion are raised. With
        ``max_messages`` it is deleted when the last message was taken, as with ``drain``.
        """
        if not is_whole(max_messages, 0):
            raise InvalidArgument("max_messages", max_messages, "must be 0 (now) or a positive integer")
        sink = self._started
        if max_messages:
            if not sink.done:
                sink.limit_to(max_messages)
            return
        if not sink.done:
            sink.stop()
        sink.buffer.clear()
        sink.takers.clear()
        runner = self._runner
        if runner is not None and runner is not asyncio.current_task():
            runner.cancel()
            await asyncio.wait([runner])
        if self._deleting is not None:
            await asyncio.wait([self._deleting])
        await self._delete()

    async def drain(self) -> None:
        """Stop receiving, but let user code process everything that has arrived.

        Returns once the server has confirmed; with a callback, once the callback has processed every message
        (:class:`DrainTimeout` after ``drain_timeout``). An iterator then yields the rest and ends.

        If the consumer is to be deleted, see ``unsubscribe``, that happens when the last message was
        processed: when the callback has returned, or when the iterator has ended. If the deletion fails, the
        connection's listener gets :class:`ConsumerDeleteFailed`.
        """
        await self._drain(asyncio.current_task())

    async def _drain(self, asker: asyncio.Task[Any] | None) -> None:
        sink = self._started
        await sink.drained()
        runner = self._runner
        if runner is None:
            if not sink.buffer:
                self._came_to_end()
        elif runner is not asker:
            timeout = self._core.options.drain_timeout
            _, unfinished = await asyncio.wait([runner], timeout=timeout)
            if unfinished:
                runner.cancel()
                raise DrainTimeout(
                    f"callback of {self._subject!r} left {len(sink.buffer)} messages "
                    f"after drain_timeout={timeout:g}s"
                )
        # A callback that drains its own subscription can't be waited for; the runner deletes the consumer
        # after it.
        if self._deleting is not None and runner is not asker:
            await asyncio.wait([self._deleting])

    async def _drain_all(self, asker: asyncio.Task[Any] | None) -> None:
        """The connection is draining: readers get the messages that have arrived and can still ack them. Then
        the consumer is deleted if the subscription owns it."""
        sink, timeout = self._started, self._core.options.drain_timeout
        try:
            await self._drain(asker)
            if not await sink.takers.finished(asker, timeout):
                raise DrainTimeout(
                    f"reader of {self._subject!r} left {len(sink.buffer)} messages, or works on the last "
                    f"one, after drain_timeout={timeout:g}s"
                )
        except BaseException:
            # Not drained in time: the consumer stays, with the messages that were not processed.
            if self._owned:
                error = DrainTimeout(f"not deleted: {len(sink.buffer)} messages were left to process")
                self._core.emit(ConsumerDeleteFailed(self.stream_name, self.consumer_name, error))
            raise
        if asker is not None and self._runner is asker:
            sink.buffer.clear()  # its callback can't be waited for, and can no longer ack them
        # Also without a reader: buffered messages are lost with the connection.
        if self._deleting is not None:
            await asyncio.wait([self._deleting])
        await self._delete_late()

    def _came_to_end(self) -> None:
        """Everything was handed out and processed: now the consumer can be deleted."""
        if self._owned and self._deleting is None and not self._core.is_closed:
            self._deleting = self._core.loop.create_task(self._delete_late(), name="jetspark-consumer-delete")
            self._core.tasks.add(self._deleting)
            self._deleting.add_done_callback(self._core.tasks.discard)

    async def _delete_late(self) -> None:
        try:
            await self._delete()
        except JetsparkError as error:
            self._core.emit(ConsumerDeleteFailed(self.stream_name, self.consumer_name, error))

    async def _delete(self) -> None:
        if not self._owned or self._core.is_closed:
            return
        self._owned = False
        if self._chain is not None:
            await self._chain.close()
            return
        try:
            await self._js.delete_consumer(self.stream_name, self.consumer_name)
        except ConsumerNotFound:
            logger.debug(
                "consumer %s was gone already",
                self.consumer_name,
                extra=fields(stream=self.stream_name, consumer=self.consumer_name),
            )

    # Internals

    @property
    def _started(self) -> PushSink:
        assert self._sink is not None
        return self._sink

    def _adopt(self, sink: PushSink, info: ConsumerInfo, *, owned: bool) -> None:
        """The subscription is complete: start."""
        self._sink, self._info, self._owned = sink, info, owned
        sink.names = (info.stream_name, info.name)
        sink.drain_all = self._drain_all
        if self._callback is not None:
            self._runner = asyncio.get_running_loop().create_task(
                self._run_callback(self._callback), name=f"jetspark-push-{self._subject}"
            )
            self._core.tasks.add(self._runner)
            self._runner.add_done_callback(self._core.tasks.discard)

    def _refuse_callback(self) -> None:
        if self._callback is not None:
            raise InvalidArgument(
                "callback",
                self._callback,
                f"the subscription to {self._subject!r} has a callback; it can't be iterated",
            )

    def _end(self) -> JetsparkError | None:
        """The error that ended it; returned once. None when the end was requested."""
        sink = self._started
        if sink.error is None or sink.closed_by_user or self._raised:
            return None
        self._raised = True
        return sink.error

    def _tell(self, error: JetsparkError) -> None:
        if self._on_error is None:
            self._core.emit(ConsumerDisturbed(self._subject, error))
            return
        # Messages, and with them warnings, may arrive before the subscription is complete.
        label = f"subscription to {self._subject!r}" if self._sink is None else self._sink.label
        what = f"on_error of {label} raised on {type(error).__name__}"
        call_listener(self._on_error, error, what, self._core.loop, self._listening)

    def _failed(self, error: BaseException, message: Message) -> None:
        if self._on_error is not None:
            tell_failure(self._started, error, message)
            return
        what = f"callback of {self._started.label} raised on a message of {message.subject!r}"
        self._core.callback_failed(what, self._subject, error)

    async def _run_callback(self, callback: Handler) -> None:
        sink, core = self._started, self._core
        buffer = sink.buffer
        while True:
            turn = _CALLBACKS_A_TURN
            while buffer and turn:
                turn -= 1
                message = buffer.popleft()
                if len(buffer) <= sink.mark:
                    sink.report()
                try:
                    result = callback(message)
                    if result is not None and inspect.isawaitable(result):
                        await result
                    if self._auto_ack:
                        message._wants_ack(ACK, terminal=True)
                        if core.outbox.size >= FLUSH_AT:
                            await core.outbox.give_way()
                except asyncio.CancelledError as error:
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise
                    # Not our own cancellation: something that the callback awaited was cancelled.
                    self._failed(error, message)
                except Exception as error:
                    self._failed(error, message)
            if buffer:
                await asyncio.sleep(0)
                continue
            sink.report()
            if sink.done:
                break
            await sink.wait()
        ended = self._end()
        if ended is not None:
            self._tell(ended)
        self._came_to_end()


async def find_stream(js: Home, stream: str | None, subject: str) -> str:
    """ADR-15 "Stream name": the stream that was named, or the only one that captures the subject."""
    return await js.stream_name_by_subject(subject) if stream is None else stream


async def subscribe(
    subscription: PushSubscription, stream: str | None, wish: Wish, options: PushOptions
) -> PushSubscription:
    """Find or create the consumer, and start."""
    js = subscription._js
    stream = await find_stream(js, stream, wish.subject)
    if wish.name is not None:
        try:
            info = await js._consumer_info(stream, wish.name)
        except ConsumerNotFound:
            if wish.bind:
                raise
        else:
            return await _bind(subscription, info, wish, options)
    config = wish.config
    if not config.deliver_subject:
        config = config.replace(deliver_subject=js._core.new_inbox())
    elif wish.name is not None:
        # Creating a consumer that exists with exactly the same config succeeds. So without an inbox to tell
        # them apart, two racing clients would both believe that they created it.
        config = config.replace(metadata={**(config.metadata or {}), CREATOR: next_nuid()})
    validate_consumer_config(config)
    sink = _new_sink(subscription, config, options, first_sequence=1)
    sink.start()
    try:
        consumer = await js._put_consumer(stream, config, "create", False)
    except ConsumerExists:
        sink.stop()
        if wish.name is None:
            raise
        # Another client was faster: apply the same checks as if it had existed before.
        return await _bind(subscription, await js._consumer_info(stream, wish.name), wish, options)
    except BaseException:
        sink.stop()
        raise
    # A durable that can't be used was created in vain.
    failed = sink.error is not None and not wish.queue
    subscription._adopt(sink, consumer.cached_info, owned=wish.delete or failed)
    if sink.error is not None:
        # Denied by the server's permissions; that error arrived before the reply.
        await subscription.unsubscribe()
        raise sink.error
    return subscription


async def _bind(
    subscription: PushSubscription, info: ConsumerInfo, wish: Wish, options: PushOptions
) -> PushSubscription:
    check_binding(info, wish)
    sink = _new_sink(subscription, info.config, options)
    await sink.open()
    subscription._adopt(sink, info, owned=False)
    return subscription


def _new_sink(
    subscription: PushSubscription,
    config: ConsumerConfig,
    options: PushOptions,
    first_sequence: int | None = None,
) -> PushSink:
    js = subscription._js
    target = PushTarget(
        js._core,
        config,
        api_timeout=js._api.timeout,
        first_sequence=first_sequence,
        message=js._kinds.message,
    )
    return js._kinds.push_sink(target, options, subscription._tell)
