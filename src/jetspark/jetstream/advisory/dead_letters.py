"""Dead letters: messages that a consumer will no longer deliver, fetched so that they can go elsewhere.

The server has no dead-letter queue. It stops delivering a message after ``max_deliver`` attempts, or when a
client sends ``term``, and publishes an advisory. This module joins the advisory with the stored message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeAlias

from jetspark.jetstream import stored
from jetspark.jetstream.advisory.feed import Advisories
from jetspark.jetstream.errors import MessageNotFound
from jetspark.jetstream.models.advisories import Advisory, MaxDeliveriesAdvisory, TerminatedAdvisory
from jetspark.jetstream.models.validation import check_name
from jetspark.wire.headers import Headers

if TYPE_CHECKING:
    from types import TracebackType

    from jetspark.connection.outbox import HeadersLike
    from jetspark.jetstream.home import Home
    from jetspark.jetstream.models.puback import PubAck
    from jetspark.jetstream.stored import StoredMsg

LetterAdvisory: TypeAlias = MaxDeliveriesAdvisory | TerminatedAdvisory


class DeadLetter:
    """A message that ran out of deliveries or was terminated. Returned by ``js.dead_letters``."""

    def __init__(self, js: Home, advisory: LetterAdvisory, message: StoredMsg | None) -> None:
        self._js = js
        self._advisory = advisory
        self._stored = message

    @property
    def advisory(self) -> LetterAdvisory:
        """The server's report: consumer, sequence, number of deliveries, and the reason of a ``term``."""
        return self._advisory

    @property
    def stored(self) -> StoredMsg | None:
        """The message, or None when the stream no longer has it.

        A terminated message of a work-queue or interest stream is removed immediately.
        """
        return self._stored

    @property
    def reason(self) -> str:
        """``max_deliver``, or the reason of the ``term``, or ``terminated``."""
        if isinstance(self._advisory, TerminatedAdvisory):
            return self._advisory.reason or "terminated"
        return "max_deliver"

    def __repr__(self) -> str:
        advisory = self._advisory
        return f"DeadLetter({advisory.stream!r}, {advisory.stream_seq}, {self.reason!r})"

    async def republish(
        self, subject: str, *, headers: HeadersLike | None = None, msg_id: str | None = None
    ) -> PubAck:
        """Publish the message to another subject and wait until it is stored there.

        Body and headers are kept, except the ``Nats-`` headers: they were instructions to the first stream,
        and the old ``Nats-Msg-Id`` would make it a duplicate. ``Dead-Letter-Stream``, ``-Subject``,
        ``-Sequence``, ``-Consumer``, ``-Deliveries`` and ``-Reason`` record where it comes from. ``headers``
        are added last and win. ``msg_id``: by default built from stream, consumer, sequence and deliveries,
        so a second call within the stream's duplicate window stores nothing.

        Raises :class:`MessageNotFound` when the message is gone.
        """
        message, advisory = self._stored, self._advisory
        if message is None:
            raise MessageNotFound(404, 10037, f"message {advisory.stream_seq} is no longer stored")
        all_headers = Headers()
        for name, value in message.headers.items():
            if not name.lower().startswith("nats-"):
                all_headers.add(name, value)
        for name, value in (
            ("Stream", advisory.stream),
            ("Subject", message.subject),
            ("Sequence", str(message.sequence)),
            ("Consumer", advisory.consumer),
            ("Deliveries", str(advisory.deliveries)),
            ("Reason", self.reason),
        ):
            # A client chose the reason, which may contain line breaks.
            all_headers[f"Dead-Letter-{name}"] = " ".join(value.splitlines())
        for name, value in Headers(headers).items() if headers is not None else ():
            all_headers[name] = value
        if msg_id is None:
            msg_id = f"{advisory.stream}.{advisory.consumer}.{advisory.stream_seq}.{advisory.deliveries}"
        return await self._js.publish(subject, message.data, headers=all_headers, msg_id=msg_id)


class DeadLetters:
    """Messages of a stream that its consumers give up on, as it happens. Returned by ``js.dead_letters``.

    Use it with ``async with`` and iterate over it, or call ``next``. Messages that are given up while this is
    not listening are not reported here; they are still in the stream.
    """

    def __init__(self, js: Home, stream: str, consumer: str | None, *, terminated: bool = True) -> None:
        check_name("stream", stream)
        kinds: list[type[Advisory]] = [MaxDeliveriesAdvisory]
        if terminated:
            kinds.append(TerminatedAdvisory)
        self._js = js
        self._stream = stream
        self._feed = Advisories(js._core, stream=stream, consumer=consumer, kinds=kinds)

    @property
    def closed(self) -> bool:
        """Whether it was closed or has ended. Dead letters received before that can still be read."""
        return self._feed.closed

    def __repr__(self) -> str:
        return f"DeadLetters({self._stream!r}, closed={self.closed})"

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> DeadLetter:
        while True:
            letter = await self._letter(await anext(self._feed))
            if letter is not None:
                return letter

    async def next(self, timeout: float | None = None) -> DeadLetter:
        """The next one; waits at most ``timeout`` seconds (default: the connection's ``request_timeout``).

        Raises :class:`RequestTimeout` when none arrived, and :class:`ConnectionClosed` when no more can
        arrive. Cancelling it loses nothing.
        """
        while True:
            letter = await self._letter(await self._feed.next(timeout))
            if letter is not None:
                return letter

    async def close(self) -> None:
        """Stop listening. Dead letters that have arrived can still be read."""
        await self._feed.close()

    async def _start(self) -> None:
        await self._feed._start()

    async def _letter(self, advisory: Advisory) -> DeadLetter | None:
        if not isinstance(advisory, MaxDeliveriesAdvisory | TerminatedAdvisory) or advisory.stream_seq < 1:
            return None  # an unexpected format: it names no message that could be fetched
        message: StoredMsg | None
        try:
            # Ask the leader: a replica may not have it yet, or may still have it after its deletion.
            message = await stored.get_by_api(self._js._api, self._stream, {"seq": advisory.stream_seq})
        except MessageNotFound:
            message = None
        except BaseException:
            # Cancelled, or the server did not reply: the next call tries again.
            self._feed._put_back(advisory)
            raise
        return DeadLetter(self._js, advisory, message)
