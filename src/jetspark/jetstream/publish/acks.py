"""The connection side of a pipelined publisher: replies, lost links, timers.

:class:`~jetspark.jetstream.flow.publish.PublishFlow` makes the decisions; this module carries them out.
Futures are settled after the flow's lock is released: in the blocking publisher their callbacks are user
code.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from jetspark.connection.requests import is_no_responders
from jetspark.connection.sink import Receiver
from jetspark.connection.waiters import Waiters
from jetspark.errors import JetsparkError, MaxPayloadExceeded, ProtocolError
from jetspark.jetstream.errors import ApiError, NoStreamResponse
from jetspark.jetstream.flow.publish import PublishFlow, contents
from jetspark.jetstream.models.puback import PubAck, decode_puback
from jetspark.jetstream.publish.many import AckBatch
from jetspark.jetstream.publish.stats import PublisherStats
from jetspark.wire._backend import speed
from jetspark.wire.columns import ANSWERS, PackedColumns
from jetspark.wire.commands import MAX_TARGET, encode_pub

if TYPE_CHECKING:
    import asyncio

    from jetspark.connection.core import Core
    from jetspark.jetstream.flow.publish import Flight
    from jetspark.wire.columns import AnyColumns

# Longer serials are not from us. The compiled core reads the same number of digits.
_MAX_DIGITS = 18
_MAX_SEQUENCE = 2**64 - 1
_SERIAL_DIGITS = 20

Settled = tuple["Flight", PubAck | JetsparkError]


class PendingAcks:
    """See the module docstring. The publisher is a subclass that accepts messages."""

    def __init__(self, core: Core, *, window: int, ack_timeout: float, retry: bool) -> None:
        self._base = core.new_inbox() + "."
        self._core = core
        self._receiver = Receiver(
            core,
            self._base + "*",
            self,
            deliver=self._deliver,
            deliver_columns=self._deliver_columns,
            link_dropped=self._link_dropped,
            link_lost=self._link_lost,
            link_restored=self._link_restored,
            publish_refused=self._publish_refused,
            ended=self._ended,
            drain=self._drain,
        )
        self._outbox = core.outbox
        self._base_bytes = self._base.encode()
        # The longest line that the server accepts.
        self._longest_prefix = MAX_TARGET - len(self._base_bytes) - _SERIAL_DIGITS - 1
        self._flow = PublishFlow(window=window, ack_timeout=ack_timeout, retry=retry)
        # Held during calls of the flow when threads publish.
        self._guard: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self._open = False
        self._timer: asyncio.TimerHandle | None = None
        self._space = Waiters()
        self._connected = Waiters()
        self._stats = PublisherStats()
        self._failures = 0
        self._first_failure: JetsparkError | None = None
        if speed is not None:
            receiver = self._receiver
            receiver.factory, receiver.owner = ANSWERS, (receiver.factory, receiver.owner)

    # What the connection calls

    def _deliver_columns(self, columns: AnyColumns) -> None:
        taken = 0
        if isinstance(columns, PackedColumns) and self._flow.plain:
            acked, duplicates, taken = columns.rows.settle(
                len(self._base_bytes), self._flow.pending, PubAck, AckBatch
            )
            self._stats.acked += acked
            self._stats.duplicates += duplicates
            if taken == len(columns):
                self._wake()
                return
            # Everything after a reply of another kind is read here too, so that all replies are read in
            # order.
        make, owner = self._receiver.owner
        subjects, datas, headers = columns.subjects, columns.payloads, columns.headers
        self._deliver(
            [
                make(
                    subjects[row].decode("utf-8", "surrogateescape"), "", datas[row], headers.get(row), owner
                )
                for row in range(taken, len(columns))
            ],
            columns.nbytes,
        )

    def _deliver(self, items: list[Any], nbytes: int) -> None:
        flow, cut = self._flow, len(self._base)
        settled: list[Settled] = []
        now = self._core.loop.time()
        with self._guard:
            for message in items:
                token = message.subject[cut:]
                if len(token) > _MAX_DIGITS or not (token.isascii() and token.isdigit()):
                    continue  # not one of our replies
                serial = int(token)
                flight = flow.pending.get(serial)
                if flight is None:
                    continue  # it already has its reply: it expired, or was sent twice
                answer = read_answer(message, flight[1])
                if isinstance(answer, PubAck):
                    found = flow.acked(serial)
                    if found is not None:
                        settled.append((found, answer))
                else:
                    # For example "this msg_id is in process": the copy we sent before is still being stored.
                    try_again = isinstance(answer, NoStreamResponse) or (
                        isinstance(answer, ApiError) and answer.retryable
                    )
                    failed = flow.refused(serial, now, answer, try_again=try_again)
                    if failed is not None:
                        settled.append(failed)
            settled += self._pump()
        self._finish(settled)

    def _link_dropped(self) -> None:
        with self._guard:
            self._flow.link_dropped()

    def _link_lost(self, error: JetsparkError) -> None:
        with self._guard:
            self._flow.link_lost(error)
            settled = self._pump()
        self._finish(settled)

    def _link_restored(self) -> None:
        with self._guard:
            self._flow.link_restored(self._core.loop.time())
            settled = self._pump()
        self._finish(settled)
        self._connected.wake()

    def _publish_refused(self, subject: str, error: JetsparkError) -> None:
        with self._guard:
            self._flow.publish_refused(subject, error)
            settled = self._pump()
        self._finish(settled)

    def _ended(self, error: JetsparkError | None) -> None:
        raise NotImplementedError

    async def _drain(self, asker: asyncio.Task[Any] | None) -> None:
        raise NotImplementedError

    # Time

    def _arm(self) -> None:
        """Set the timer to the flow's next deadline."""
        deadline = self._flow.next_deadline()
        timer = self._timer
        if timer is None or timer.when() != deadline:
            if timer is not None:
                timer.cancel()
            self._timer = self._core.loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        assert self._timer is not None
        # The loop may call slightly early, by the resolution of its clock.
        now = max(self._core.loop.time(), self._timer.when())
        self._timer = None
        with self._guard:
            self._flow.on_timer(now)
            settled = self._pump()
        self._finish(settled)

    # What the flow decided

    def _pump(self) -> list[Settled]:
        """Send what is due. The caller holds the guard, and passes the result to ``_finish`` after releasing
        it."""
        flow, outbox = self._flow, self._outbox
        failed: list[Settled] = []
        while flow.recovering and (due := flow.due()):
            for serial, flight, first in due:
                data, block = contents(flight)
                size = len(data) + len(block or b"")
                if size > outbox.max_payload:
                    # The current server accepts less than the previous one.
                    too_large = MaxPayloadExceeded(size, outbox.max_payload)
                    refused = flow.refused(serial, self._core.loop.time(), too_large, try_again=False)
                    if refused is not None:
                        failed.append(refused)
                    continue
                prefix = outbox.prefixes.get(flight[1]) or outbox.remember_prefix(flight[1])
                outbox.send_once(encode_pub(prefix, self._base_bytes, serial, data, block))
                if not first:
                    self._stats.resent += 1
        return failed + flow.take_failed()

    def _finish(self, settled: list[Settled]) -> None:
        """Settle the futures and batches; the guard is not held."""
        stats = self._stats
        for (target, _, index, _, _), answer in settled:
            if isinstance(answer, PubAck):
                stats.acked += 1
                stats.duplicates += answer.duplicate
                if isinstance(target, AckBatch):
                    target.acked_many(answer.stream, 1, answer.duplicate)
                elif not target.done():  # the user may have cancelled it
                    target.set_result(answer)
                continue
            stats.failed += 1
            self._failures += 1
            if self._first_failure is None:
                self._first_failure = answer
            if isinstance(target, AckBatch):
                target.failed(index, answer)
            elif not target.done():
                target.set_exception(answer)
                if not target.cancelled():  # by another thread, just now
                    # Marks the exception as retrieved: flush reports it if the future was thrown away.
                    target.exception()
        if self._open:
            self._arm()
        self._wake()

    def _wake(self) -> None:
        """Something was settled: wake the tasks that wait for room or for the end."""
        self._space.wake()


def read_answer(message: Any, subject: str) -> PubAck | JetsparkError:
    """The reply to a publish."""
    if message.header_block is not None and is_no_responders(message):
        return NoStreamResponse(subject)
    try:
        try:
            ack = decode_puback(message.data)
        except msgspec.DecodeError:
            ack = PubAck.from_response(message.data)
        if not 0 < ack.seq <= _MAX_SEQUENCE:
            # An ack has a sequence. A reply without one may be an error, which can name its stream too.
            PubAck.from_response(message.data)
            return ProtocolError(f"not a publish ack: {message.data[:100]!r}: its sequence is none")
    except (JetsparkError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as failure:
        return failure if isinstance(failure, JetsparkError) else ProtocolError(str(failure))
    return ack
