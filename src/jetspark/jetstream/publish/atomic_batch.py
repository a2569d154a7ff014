"""Atomic batches (ADR-50 'Atomic Batched Publishes'): all messages are stored, or none. Server 2.12 or later.

Theory of operation
-------------------
The server stages the messages of a batch beside the stream and stores them in one step when the message
with ``Nats-Batch-Commit`` arrives. Until then nothing is visible, and nothing needs to be undone.

The client holds messages back: up to ``hold`` bytes, and always the last message. So a batch that fits costs
the server nothing until it is committed, and can't expire while you compute. And the last message is known
when it is sent: it carries the commit itself (``1``; no extra ``eob`` message, which would need 2.14). A
batch takes two round trips whatever its size: the first message, whose reply says whether the stream accepts
batches at all, and the commit. Everything between them is sent without waiting. A batch of one message takes
one round trip.

Every message has a reply subject. The replies are empty. They prevent us from flooding the
server (``_WINDOW`` bytes in flight), and when the server refuses a message they say which one and why, while
the commit could only say "incomplete".

The rules that the server applies at the commit are checked here before anything is sent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from jetspark._checks import is_positive, is_whole
from jetspark.connection.nuid import next_nuid
from jetspark.connection.outbox import FLUSH_AT, HeadersLike
from jetspark.connection.requests import is_no_responders
from jetspark.connection.sink import Receiver
from jetspark.errors import (
    ConnectionClosed,
    ConnectionLost,
    InvalidArgument,
    JetsparkError,
    MaxPayloadExceeded,
    ProtocolError,
    RequestTimeout,
)
from jetspark.jetstream.errors import (
    ApiError,
    AtomicBatchIncomplete,
    NoStreamResponse,
    RequiredApiLevel,
)
from jetspark.jetstream.models.puback import PubAck
from jetspark.jetstream.publish.publish import DEFAULT_RETRIES, DEFAULT_RETRY_WAIT, Expect, publish_headers
from jetspark.wire.commands import to_bytes
from jetspark.wire.headers import HeaderBlock, encode_headers, extend_block
from jetspark.wire.subjects import validate_subject

if TYPE_CHECKING:
    from types import TracebackType

    from jetspark.connection.core import Core
    from jetspark.jetstream.models.schedule import Schedule

MAX_MESSAGES = 1000
DEFAULT_HOLD = 262_144
# The server silently abandons a batch that was idle for this long (its max_batch_timeout).
IDLE_LIMIT = 10.0

_WINDOW = 8 * 1_048_576
_COMMIT = ("Nats-Batch-Commit", "1")
_COMMIT_SIZE = len("Nats-Batch-Commit: 1\r\n")
_Message = tuple[str, bytes, HeaderBlock]


class AtomicBatch:
    """See the module docstring. Returned by ``js.atomic_batch()``; use it with ``async with``.

    The end of the block commits; leaving it by an exception discards the batch.
    """

    def __init__(self, core: Core, *, hold: int, max_messages: int, timeout: float) -> None:
        for field, value, least in (("hold", hold, 0), ("max_messages", max_messages, 1)):
            if not is_whole(value, least):
                raise InvalidArgument(field, value, f"must be an integer, {least} or more")
        if not is_positive(timeout):
            raise InvalidArgument("timeout", timeout, "must be a positive number of seconds")
        self._base = core.new_inbox() + "."
        self._core = core
        self._receiver = Receiver(
            core,
            self._base + "*",
            self,
            deliver=self._deliver,
            link_lost=self._link_lost,
            publish_refused=self._publish_refused,
            ended=self._ended,
        )
        self._cut = len(self._base)
        self._id = next_nuid()
        self._hold = hold
        self._max_messages = max_messages
        self._timeout = float(timeout)
        self._count = 0
        self._subjects: set[str] = set()
        self._msg_ids: set[str] = set()
        self._held: list[_Message] = []
        self._held_size = 0
        self._sent = 0
        self._last_sent = 0.0
        # Messages without a reply: sequence -> subject and size.
        self._flights: dict[int, tuple[str, int]] = {}
        self._in_flight = 0
        self._answers: dict[int, asyncio.Future[PubAck | None]] = {}
        self._room: asyncio.Future[None] | None = None
        self._sending = asyncio.Lock()
        self._staged = False  # whether the server holds messages of this batch
        self._committing = False
        self._finished = ""
        self._error: JetsparkError | None = None
        self._ack: PubAck | None = None

    @property
    def id(self) -> str:
        """The batch's id, as used in the ack and the server's advisories."""
        return self._id

    @property
    def count(self) -> int:
        """Messages in the batch so far."""
        return self._count

    @property
    def ack(self) -> PubAck | None:
        """The ack of the committed batch: ``seq`` of its last message, ``count`` of its messages; the others
        have the sequences just before. None if not committed."""
        return self._ack

    def __repr__(self) -> str:
        return f"AtomicBatch({self._id!r}, count={self._count}, {self._finished or 'open'})"

    async def __aenter__(self) -> Self:
        self._core.check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            await self.discard()
        elif not self._finished and self._count:
            await self.commit()

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
    ) -> None:
        """Add a message. It may be held back; nothing is stored before ``commit``.

        The options are those of ``js.publish``, with these rules: ``expect.last_seq`` only on the first
        message, ``expect.last_msg_id`` never, ``expect.last_subject_seq`` only for a subject to which the
        batch has not written, no ``msg_id`` twice (and none at all before 2.12.1). All are checked at the
        commit, against the stream without the batch. All subjects must belong to one stream.
        """
        if self._add(subject, data, headers, msg_id, expect, ttl, schedule):
            await self._send_held()

    def _add(
        self,
        subject: str,
        data: bytes,
        headers: HeadersLike | None,
        msg_id: str | None,
        expect: Expect | None,
        ttl: float | str | None,
        schedule: Schedule | None,
    ) -> bool:
        """Check and hold a message; returns whether more than ``hold`` bytes are held now."""
        self._check_usable()
        if type(data) is not bytes:
            data = to_bytes(data)
        if not isinstance(subject, str) or subject not in self._subjects:
            validate_subject(subject)
        if self._count >= self._max_messages:
            raise InvalidArgument(
                "batch",
                self._count + 1,
                f"exceeds max_messages={self._max_messages} (a server takes 1000): commit, and begin another "
                "batch",
            )
        block = self._block(subject, headers, msg_id, expect, ttl, schedule)
        size = len(block) + len(data)
        if size + _COMMIT_SIZE > self._core.outbox.max_payload:
            raise MaxPayloadExceeded(size + _COMMIT_SIZE, self._core.outbox.max_payload)
        self._count += 1
        self._subjects.add(subject)
        if msg_id is not None:
            self._msg_ids.add(msg_id)
        self._held.append((subject, data, block))
        self._held_size += size
        return self._held_size > self._hold

    async def commit(self) -> PubAck:
        """Store the batch. Returns the ack of its last message.

        Raises the server's refusal, most often :class:`WrongLastSequence` (an expectation failed),
        :class:`AtomicPublishDisabled`, :class:`AtomicBatchIncomplete` (idle for more than 10 seconds after
        its first message was sent) or :class:`TooManyRequests` (50 open batches per stream); then nothing is
        stored. After a :class:`RequestTimeout` or :class:`ConnectionLost` the error text says whether it may
        be stored.
        """
        self._check_usable()
        if not self._count:
            raise InvalidArgument("batch", 0, "has no message to commit; publish one first")
        try:
            await self._send_held()
            async with self._sending:
                subject, data, block = self._held.pop()
                idle = self._core.loop.time() - self._last_sent if self._sent else 0.0
                self._committing = True
                ack = await self._ask(subject, data, extend_block(block, _COMMIT), idle)
            if ack is None:
                raise ProtocolError(f"stream answered the commit of batch {self._id} without an ack")
            if ack.count != self._count and not (self._count == 1 and ack.count is None):
                raise ProtocolError(f"batch {self._id} of {self._count} messages was acked as {ack}")
        except BaseException:
            await self.discard()
            raise
        self._close("committed")
        self._ack = ack
        return ack

    async def discard(self) -> None:
        """Discard the batch; nothing of it is stored. Does nothing if it is committed or discarded."""
        if self._finished:
            return
        if self._staged and self._core.is_connected:
            # A gap makes the server drop what it has staged now, instead of after its timeout: a stream has
            # room for only 50 open batches.
            gap = encode_headers(self._place(self._sent + 2))
            self._core.outbox.publish(self._first_subject, b"", "", gap)
        self._close("discarded")

    # What the connection calls

    def _deliver(self, items: list[Any], nbytes: int) -> None:
        for message in items:
            token = message.subject[self._cut :]
            if not token.isdecimal() or len(token) > 20:
                continue  # from another client: not a reply to anything we sent
            number = int(token)
            subject, size = self._flights.pop(number, ("", 0))
            self._in_flight -= size
            if not subject:
                continue
            answer = self._answers.pop(number, None)
            try:
                result = self._judge(number, subject, message)
            except JetsparkError as error:
                if answer is not None and not answer.done() and self._error is None:
                    answer.set_exception(error)
                    # The first message may be sent again; any other failure ends the batch.
                    if number == 1 and isinstance(error, NoStreamResponse):
                        continue
                self._fail(error)
                continue
            if answer is not None and not answer.done():
                answer.set_result(result)
        if self._room is not None and self._in_flight <= _WINDOW and not self._room.done():
            self._room.set_result(None)

    def _link_lost(self, error: JetsparkError) -> None:
        if self._sent:
            fate = (
                "it is stored as a whole or not at all; look for its last message, or repeat it with msg_ids"
                if self._committing
                else "nothing of it is stored; send it again"
            )
            self._fail(ConnectionLost(f"connection lost during atomic batch {self._id}: {fate}: {error}"))

    def _publish_refused(self, subject: str, error: JetsparkError) -> None:
        """The server denies permission to publish to the subject."""
        if any(flight[0] == subject for flight in self._flights.values()):
            self._fail(error)

    def _ended(self, error: JetsparkError | None) -> None:
        self._fail(error or ConnectionClosed("the connection was closed during an atomic batch"))

    # Internals

    @property
    def _first_subject(self) -> str:
        return next(iter(self._subjects))

    def _check_usable(self) -> None:
        if self._error is not None:
            raise self._error
        if self._finished:
            raise ConnectionClosed(f"the atomic batch was {self._finished}; begin another")
        if self._committing:
            raise ConnectionClosed("the atomic batch is being committed; begin another")
        self._core.check_open()

    def _block(
        self,
        subject: str,
        headers: HeadersLike | None,
        msg_id: str | None,
        expect: Expect | None,
        ttl: float | str | None,
        schedule: Schedule | None,
    ) -> HeaderBlock:
        """The header block of the next message."""
        place = self._place(self._count + 1)
        if headers is None and msg_id is None and expect is None and ttl is None and schedule is None:
            return encode_headers(place)
        typed = publish_headers(
            headers, msg_id=msg_id, expect=expect, ttl=ttl, schedule=schedule, subject=subject
        )
        assert typed is not None
        for name in typed:
            if name.lower().startswith("nats-batch-"):
                raise InvalidArgument("headers", name, "is set by the batch itself")
        if "Nats-Expected-Last-Msg-Id" in typed:
            raise InvalidArgument(
                "expect.last_msg_id", typed["Nats-Expected-Last-Msg-Id"], "is not possible in an atomic batch"
            )
        if self._count and "Nats-Expected-Last-Sequence" in typed:
            raise InvalidArgument(
                "expect.last_seq",
                typed["Nats-Expected-Last-Sequence"],
                "only the first message of an atomic batch may have it",
            )
        if "Nats-Expected-Last-Subject-Sequence" in typed:
            about = typed.get("Nats-Expected-Last-Subject-Sequence-Subject") or subject
            if about in self._subjects:
                raise InvalidArgument(
                    "expect.last_subject_seq",
                    typed["Nats-Expected-Last-Subject-Sequence"],
                    f"an earlier message of the batch writes to {about!r}; expect it of that one",
                )
        if msg_id is not None and msg_id in self._msg_ids:
            raise InvalidArgument("msg_id", msg_id, "is in the batch already")
        return extend_block(encode_headers(typed), *place)

    def _place(self, number: int) -> list[tuple[str, str]]:
        """The headers that make a message number ``number`` of the batch."""
        return [("Nats-Batch-Id", self._id), ("Nats-Batch-Sequence", str(number))]

    async def _send_held(self) -> None:
        """Send everything but the last message."""
        core = self._core
        try:
            async with self._sending:
                if not self._sent and len(self._held) > 1:
                    await self._ask(*self._held.pop(0), 0.0)
                    self._staged = True
                batch, self._held = self._held[:-1], self._held[-1:]
                self._held_size = sum(len(data) + len(block) for _, data, block in self._held)
                for subject, data, block in batch:
                    while self._in_flight > _WINDOW:
                        await self._wait_room()
                    if self._error is not None:
                        raise self._error
                    self._transmit(subject, data, block)
                    if core.outbox.size >= FLUSH_AT:
                        await core.outbox.give_way()
        except JetsparkError as error:
            self._fail(error)
            raise
        except BaseException:
            self._fail(ConnectionClosed("sending the atomic batch was interrupted; nothing of it is stored"))
            raise

    def _transmit(self, subject: str, data: bytes, block: HeaderBlock) -> int:
        number = self._sent + 1
        if not self._receiver.sid:
            self._core.router.add(self._receiver)
        self._core.outbox.publish(subject, data, f"{self._base}{number}", block, own_reply=True)
        self._sent = number
        size = len(data) + len(block)
        self._flights[number] = (subject, size)
        self._in_flight += size
        self._last_sent = self._core.loop.time()
        return number

    async def _ask(self, subject: str, data: bytes, block: HeaderBlock, idle: float) -> PubAck | None:
        """Send a message and wait for its reply: the first one, or the commit."""
        attempt = 0
        while True:
            number = self._transmit(subject, data, block)
            answer: asyncio.Future[PubAck | None] = self._core.loop.create_future()
            self._answers[number] = answer
            try:
                async with asyncio.timeout(self._timeout):
                    return await answer
            except TimeoutError:
                raise self._timed_out(subject, number) from None
            except NoStreamResponse:
                # No stream received it, so it may be sent again (ADR-22).
                if number > 1 or attempt >= DEFAULT_RETRIES:
                    raise
            except AtomicBatchIncomplete as error:
                if idle < IDLE_LIMIT:
                    raise
                raise AtomicBatchIncomplete(
                    error.code,
                    error.err_code,
                    f"{error.description}: it was idle for {idle:.1f}s and the server abandons a batch after "
                    f"{IDLE_LIMIT:g}s; nothing of it is stored",
                ) from None
            finally:
                self._answers.pop(number, None)
            attempt += 1
            self._sent -= 1
            await asyncio.sleep(DEFAULT_RETRY_WAIT)

    def _timed_out(self, subject: str, number: int) -> RequestTimeout:
        if self._committing:
            return RequestTimeout(
                f"no answer to the commit of atomic batch {self._id} within {self._timeout:g}s: it is stored "
                "as a whole or not at all; look for its last message, or repeat it with msg_ids"
            )
        return RequestTimeout(
            f"no answer to message {number} of atomic batch {self._id} to {subject!r} within "
            f"{self._timeout:g}s: nothing of it is stored; is the stream's no_ack set?"
        )

    def _judge(self, number: int, subject: str, message: Any) -> PubAck | None:
        """Interpret a reply: None for a staged message, the ack of the commit, or an error."""
        if message.header_block is not None and is_no_responders(message):
            raise NoStreamResponse(subject)
        if not message.data:
            return None
        try:
            ack = PubAck.from_response(message.data)
        except ApiError as error:
            text = f"{error.description} (message {number} of the batch, {subject!r})"
            # A stream replies in order. A message without a reply so far went to another stream, which also
            # refuses it.
            earlier, elsewhere = next(iter(self._flights.items()), (number, ("", 0)))
            if earlier < number:
                text += f"; message {earlier}, {elsewhere[0]!r}, has no answer: is it of another stream?"
            raise type(error)(error.code, error.err_code, text) from None
        if not self._committing:
            raise RequiredApiLevel(
                400,
                10185,
                f"stream {ack.stream!r} stored message {number} of the batch by itself, at {ack.seq}: "
                "its server does not know atomic batches, which need 2.12",
            )
        return ack

    async def _wait_room(self) -> None:
        if self._error is not None:
            raise self._error
        self._room = self._core.loop.create_future()
        try:
            async with asyncio.timeout(self._timeout):
                await self._room
        except TimeoutError:
            raise self._timed_out(self._first_subject, self._sent) from None
        finally:
            self._room = None

    def _fail(self, error: JetsparkError) -> None:
        if self._error is not None or self._finished:
            return
        self._error = error
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
        if self._room is not None and not self._room.done():
            self._room.set_exception(error)

    def _close(self, how: str) -> None:
        self._finished = how
        self._held.clear()
        self._flights.clear()
        if self._receiver.sid:
            self._core.router.remove(self._receiver)
