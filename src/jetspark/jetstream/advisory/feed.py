"""Listening to advisories: which subjects to subscribe to, and one iterator over all of them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self

from jetspark.connection.listening import report_failure
from jetspark.errors import ConnectionClosed, InvalidArgument, JetsparkError, ProtocolError, RequestTimeout
from jetspark.jetstream.models.advisories import Advisory, ApiAuditAdvisory, GenericAdvisory, decode_advisory
from jetspark.jetstream.models.validation import check_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from jetspark.connection.core import Core
    from jetspark.connection.message import Msg
    from jetspark.connection.subscription_sink import SubscriptionSink

ADVISORY = "$JS.EVENT.ADVISORY"
METRIC = "$JS.EVENT.METRIC"
# Maximum number of decoded advisories that wait for the reader. More wait in the subscriptions, which have
# their own limits.
_READY = 1024


def feed_subjects(
    stream: str | None, consumer: str | None, kinds: tuple[type[Advisory], ...] | None
) -> list[str]:
    """The subjects that carry the wanted advisories, and as little else as possible.

    One per family (consumers, streams, metrics ...): advisories of one family keep their order.
    """
    at_consumer = f"{stream or '*'}.{consumer or '*'}"
    if kinds is None:
        if stream is None:
            return [f"{ADVISORY}.>", f"{METRIC}.>"]
        subjects = [f"{ADVISORY}.CONSUMER.*.{at_consumer}", f"{METRIC}.CONSUMER.*.{at_consumer}"]
        return subjects if consumer is not None else [*subjects, f"{ADVISORY}.STREAM.*.{stream}"]
    families: dict[str, set[str]] = {}
    for kind in kinds:
        for event in kind.events:
            family, _, name = event.rpartition(".")
            families.setdefault(family, set()).add(name)
    subjects = []
    for family, names in families.items():
        name = names.pop() if len(names) == 1 else "*"
        if family == "CONSUMER":
            subjects.append(f"{ADVISORY}.CONSUMER.{name}.{at_consumer}")
        elif family == "METRIC.CONSUMER":
            subjects.append(f"{METRIC}.CONSUMER.{name}.{at_consumer}")
        elif family == "STREAM":
            subjects.append(f"{ADVISORY}.STREAM.{name}.{stream or '*'}")
        else:
            subjects.append(f"{ADVISORY}.{family}.{name}" if family else f"{ADVISORY}.{name}")
    return subjects


class Advisories:
    """The server's advisories as they arrive. Returned by ``js.advisories``.

    Use it with ``async with`` and iterate over it, or call ``next``. Iteration ends when it is closed, and
    raises when the connection is lost for good. Advisories published while the connection is down are lost.
    """

    def __init__(
        self,
        core: Core,
        *,
        stream: str | None = None,
        consumer: str | None = None,
        kinds: Iterable[type[Advisory]] | None = None,
    ) -> None:
        if stream is not None:
            check_name("stream", stream)
        if consumer is not None:
            check_name("consumer", consumer)
            if stream is None:
                raise InvalidArgument("consumer", consumer, "needs the stream it belongs to; give stream too")
        wanted = None if kinds is None else tuple(kinds)
        for kind in wanted or ():
            if not (isinstance(kind, type) and issubclass(kind, Advisory) and kind.events):
                raise InvalidArgument(
                    "kinds", kind, "must be classes of advisories, such as MaxDeliveriesAdvisory"
                )
        if wanted is not None and not wanted:
            raise InvalidArgument("kinds", wanted, "must name a kind, or leave it out for all of them")
        self._core = core
        self._stream = stream
        self._consumer = consumer
        self._kinds = wanted
        self._subscriptions: list[SubscriptionSink] = []
        self._pumps: list[asyncio.Task[None]] = []
        self._ready: deque[Advisory] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._error: JetsparkError | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether it was closed or has ended. Advisories received before that can still be read."""
        return self._closed

    def __repr__(self) -> str:
        return f"Advisories(stream={self._stream!r}, consumer={self._consumer!r}, closed={self._closed})"

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Advisory:
        if not self._pumps and not self._closed:
            raise InvalidArgument("advisories", repr(self), "must be entered first, as a context manager")
        while not self._ready:
            if self._closed:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        advisory = self._ready.popleft()
        self._room.set()
        return advisory

    async def next(self, timeout: float | None = None) -> Advisory:
        """The next one; waits at most ``timeout`` seconds (default: the connection's ``request_timeout``).

        Raises :class:`RequestTimeout` when none arrived, and :class:`ConnectionClosed` when no more can
        arrive. Cancelling it loses nothing.
        """
        seconds = self._core.options.request_timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                return await self.__anext__()
        except StopAsyncIteration:
            raise ConnectionClosed("the advisories were closed; call js.advisories again") from None
        except TimeoutError:
            raise RequestTimeout(f"no advisory within {seconds:g}s") from None

    async def close(self) -> None:
        """Stop listening. Advisories that have arrived can still be read."""
        self._end(None)
        for subscription in self._subscriptions:
            await subscription.unsubscribe()
        for pump in self._pumps:
            pump.cancel()
        if self._pumps:
            await asyncio.wait(self._pumps)

    async def _start(self) -> None:
        if self._pumps or self._closed:
            raise InvalidArgument("advisories", repr(self), "can be entered once only; make another one")
        try:
            for subject in feed_subjects(self._stream, self._consumer, self._kinds):
                subscription = await self._core.subscribe(subject)
                self._subscriptions.append(subscription)
                self._pumps.append(asyncio.create_task(self._pump(subscription)))
            # Once the server has replied, it knows our interest and reports everything from now on.
            await self._core.flush()
        except BaseException:
            await self.close()
            raise

    async def _pump(self, subscription: SubscriptionSink) -> None:
        error: JetsparkError | None = None
        try:
            async for message in subscription:
                advisory = self._read(message)
                if advisory is None:
                    continue
                while len(self._ready) >= _READY:
                    self._room.clear()
                    await self._room.wait()
                self._ready.append(advisory)
                self._changed.set()
        except JetsparkError as caught:
            error = caught
        except Exception as caught:
            # A defect in this library: the reader must not wait forever.
            error = ProtocolError(f"reading an advisory failed with {type(caught).__name__}")
            report_failure(self._core.loop, "reading an advisory failed", caught)
        self._end(error)

    def _read(self, message: Msg) -> Advisory | None:
        """The advisory, or None when it is not one of the requested kinds."""
        try:
            advisory = decode_advisory(message.data)
        except ProtocolError:
            # Another client published to the server's subjects. That is no reason to stop listening.
            return None
        if self._kinds is not None and not isinstance(advisory, self._kinds):
            # An advisory that we can't decode is wanted when its subject is.
            named = {event.rpartition(".")[2] for kind in self._kinds for event in kind.events}
            if not isinstance(advisory, GenericAdvisory) or named.isdisjoint(message.subject.split(".")[3:5]):
                return None
        if isinstance(advisory, ApiAuditAdvisory) and self._stream is not None:
            tokens = advisory.subject.split(".")
            if self._stream not in tokens or (self._consumer is not None and self._consumer not in tokens):
                return None
        return advisory

    def _put_back(self, advisory: Advisory) -> None:
        self._ready.appendleft(advisory)
        self._changed.set()

    def _end(self, error: JetsparkError | None) -> None:
        if not self._closed:
            self._closed = True
            self._error = error
        self._changed.set()
        self._room.set()
