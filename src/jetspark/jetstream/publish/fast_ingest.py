"""Fast ingest (ADR-50): one long batch into a stream, acked every few hundred messages. Server 2.14 or later.

The costs that the pipelined publisher has per message (an ack, a future, a dictionary entry) occur here once
per several hundred: the server only reports its progress. The price is that there is no ack per
message. The rules are in ``flow.fast``; this module sends, receives and keeps the time.

The number of a message travels in its reply subject,
``<inbox>.<batch id>.<flow>.<ok|fail>.<number>.<operation>.$FI``, so the stored message has no extra header.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Literal, Self

from jetspark._checks import is_positive, is_whole
from jetspark._log import fields, get_logger
from jetspark.connection.outbox import FLUSH_AT, HeadersLike
from jetspark.connection.requests import is_no_responders
from jetspark.connection.sink import Receiver
from jetspark.connection.waiters import Waiters
from jetspark.errors import ConnectionClosed, InvalidArgument, JetsparkError
from jetspark.jetstream.errors import NoStreamResponse
from jetspark.jetstream.flow.fast import (
    END,
    PING,
    START,
    Action,
    FastFlow,
    IngestGap,
    Report,
    SendPing,
    State,
)
from jetspark.jetstream.publish.publish import DEFAULT_RETRIES, DEFAULT_RETRY_WAIT, Expect, publish_headers
from jetspark.wire.headers import HeaderBlock, encode_headers

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from jetspark.connection.core import Core
    from jetspark.jetstream.models.puback import PubAck
    from jetspark.jetstream.models.schedule import Schedule

GapMode = Literal["fail", "ok"]
DEFAULT_FLOW = 1000
DEFAULT_OUTSTANDING = 2

logger = get_logger("jetstream")


class FastIngest:
    """See the module docstring. Returned by ``js.fast_ingest()``; use it with ``async with``.

    The end of the block commits and waits for the final ack. Leaving it by an exception ends the batch;
    messages that were sent stay in the stream.
    """

    def __init__(
        self,
        core: Core,
        *,
        gap: GapMode,
        flow: int,
        max_outstanding_acks: int,
        on_gap: Callable[[IngestGap], None] | None,
        ping_interval: float,
        ack_timeout: float,
        timeout: float,
    ) -> None:
        if gap not in ("fail", "ok"):
            raise InvalidArgument("gap", gap, "must be 'fail' or 'ok'")
        for field, number, most in (
            ("flow", flow, 65_535),
            ("max_outstanding_acks", max_outstanding_acks, 3),
        ):
            if not is_whole(number, 1, most):
                raise InvalidArgument(field, number, f"must be an integer from 1 to {most}")
        for field, seconds in (
            ("ping_interval", ping_interval),
            ("ack_timeout", ack_timeout),
            ("timeout", timeout),
        ):
            if not is_positive(seconds):
                raise InvalidArgument(field, seconds, "must be a positive number of seconds")
        if on_gap is not None and not callable(on_gap):
            raise InvalidArgument("on_gap", on_gap, "must be a function that takes an IngestGap")
        # It has its own inbox, as the ADR asks: once the inbox is gone, the server sends no further replies.
        inbox = core.new_inbox()
        self._core = core
        self._receiver = Receiver(
            core,
            inbox + ".>",
            self,
            deliver=self._deliver,
            link_lost=self._link_lost,
            link_restored=self._link_restored,
            publish_refused=self._publish_refused,
            ended=self._ended,
        )
        self._id = inbox.rpartition(".")[2]
        self._base = f"{inbox}.{flow}.{gap}."
        self._cut = len(self._base)
        self._on_gap = on_gap
        self._timeout = float(timeout)
        self._flow = FastFlow(
            gap_ok=gap == "ok",
            outstanding=max_outstanding_acks,
            ping_interval=float(ping_interval),
            ack_timeout=float(ack_timeout),
            now=core.loop.time(),
        )
        self._gap = gap
        self._subject = ""
        self._beginning = False
        self._timer: asyncio.TimerHandle | None = None
        self._waiters = Waiters()
        self._open = False

    @property
    def id(self) -> str:
        """The batch's id, as used in its ack."""
        return self._id

    @property
    def published(self) -> int:
        """Messages sent so far; also the number of the last one."""
        return self._flow.sent

    @property
    def acked(self) -> int:
        """Number of the last message known to be stored. With ``gap="fail"`` all before it are stored too."""
        return self._flow.acked

    @property
    def lost(self) -> int:
        """With ``gap="ok"``: messages that are certainly not stored."""
        return self._flow.lost

    @property
    def ack(self) -> PubAck | None:
        """The final ack: ``seq`` of the last stored message, ``count`` of the batch (gaps included, with
        ``gap="ok"``). None before the end, and if nothing was published."""
        return self._flow.ack

    def __repr__(self) -> str:
        flow = self._flow
        state = flow.state.name.lower()
        return (
            f"FastIngest({self._id!r}, gap={self._gap!r}, {state}, published={flow.sent}, acked={flow.acked})"
        )

    async def __aenter__(self) -> Self:
        if self._open or self._flow.state is not State.NEW:
            raise ConnectionClosed("a fast-ingest batch can be used once; begin another")
        self._core.check_open()
        self._core.router.add(self._receiver)
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self._commit()
            elif self._flow.state is State.OPEN and self._core.is_connected:
                # Frees the server's resources now instead of after its timeout. The reply is not awaited.
                with contextlib.suppress(JetsparkError):
                    self._send(END)
        finally:
            self._close()

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
    ) -> int:
        """Send a message and return its number in the batch; waits while too many messages have no ack.

        The options are those of ``js.publish``. A duplicate ``msg_id`` is silently skipped, as there. All
        subjects must belong to one stream. Raises :class:`FastIngestBroken` when the batch ended early. If
        the stream refuses the first message, its error is raised, for example :class:`FastIngestDisabled`.
        """
        block: HeaderBlock | None = None
        if (
            headers is not None
            or msg_id is not None
            or expect is not None
            or ttl is not None
            or schedule is not None
        ):
            typed = publish_headers(
                headers, msg_id=msg_id, expect=expect, ttl=ttl, schedule=schedule, subject=subject
            )
            block = None if typed is None else encode_headers(typed)
        flow = self._flow
        while flow.sent >= flow.limit:
            if flow.state is State.NEW and not self._beginning:
                return await self._begin(subject, data, block)
            await self._wait_room()
        number = flow.sent + 1
        core = self._core
        core.outbox.publish(subject, data, f"{self._base}{number}.1.$FI", block, own_reply=True)
        flow.sent = number
        if core.outbox.size >= FLUSH_AT:
            await core.outbox.give_way()
        return number

    # What the connection calls

    def _deliver(self, items: list[Any], nbytes: int) -> None:
        flow = self._flow
        now = self._core.loop.time()
        for message in items:
            tokens = message.subject[self._cut :].split(".")
            if len(tokens) != 3 or not all(one.isdecimal() and len(one) <= 20 for one in tokens[:2]):
                continue  # from another client: not a reply to anything we sent
            number, operation = int(tokens[0]), int(tokens[1])
            if message.header_block is not None and is_no_responders(message):
                self._perform(flow.on_no_responders(number, operation))
            else:
                self._perform(flow.on_reply(message.data, number, operation, now))
        self._wake()

    def _link_lost(self, error: JetsparkError) -> None:
        self._perform(self._flow.on_link_lost(error))
        self._wake()

    def _link_restored(self) -> None:
        self._perform(self._flow.on_link_restored())

    def _publish_refused(self, subject: str, error: JetsparkError) -> None:
        if subject == self._subject:
            self._flow.on_failure(error)
            self._wake()

    def _ended(self, error: JetsparkError | None) -> None:
        self._flow.on_failure(
            error or ConnectionClosed("the connection was closed during a fast-ingest batch")
        )
        self._wake()

    # Internals

    async def _begin(self, subject: str, data: bytes, block: HeaderBlock | None) -> int:
        """Send the first message and wait for the flow that the server grants."""
        if not self._open:
            raise ConnectionClosed("the fast-ingest batch is not open; use it with 'async with'")
        flow, core = self._flow, self._core
        self._beginning = True
        try:
            for attempt in range(DEFAULT_RETRIES + 1):
                if attempt:
                    await asyncio.sleep(DEFAULT_RETRY_WAIT)
                core.outbox.publish(subject, data, f"{self._base}1.{START}.$FI", block, own_reply=True)
                self._subject = subject
                flow.on_start(core.loop.time())
                if self._timer is None:
                    self._set_timer()
                try:
                    async with asyncio.timeout(self._timeout):
                        while flow.state is State.STARTING:
                            await self._waiters.wait()
                except TimeoutError:
                    flow.on_silence_at_start(self._timeout)
                if flow.state is not State.NEW:
                    break
            else:
                raise NoStreamResponse(subject)
        finally:
            self._beginning = False
            self._wake()
        if flow.error is not None:
            raise flow.error
        return 1

    async def _commit(self) -> None:
        flow = self._flow
        if flow.state is State.NEW:
            return
        self._perform(flow.on_commit(self._core.loop.time()))
        while flow.state is not State.DONE:
            await self._waiters.wait()
        if flow.error is not None:
            raise flow.error

    async def _wait_room(self) -> None:
        """Wait until the state or the limit changes; raise when the batch is over."""
        flow = self._flow
        if not self._open or flow.state is State.COMMITTING:
            raise flow.error or ConnectionClosed("the fast-ingest batch is closed; begin another")
        if flow.state is State.DONE:
            raise flow.error or ConnectionClosed("the fast-ingest batch is over; begin another")
        await self._waiters.wait()

    def _wake(self) -> None:
        flow = self._flow
        if flow.sent < flow.limit or flow.state is not State.OPEN:
            self._waiters.wake()

    def _send(self, operation: int) -> None:
        number = self._flow.sent + (operation == END)
        self._core.outbox.publish(self._subject, b"", f"{self._base}{number}.{operation}.$FI", own_reply=True)

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Report):
                self._report(action.gap)
            elif self._core.is_connected:
                # Without a link the server can't be asked; on_link_restored asks again.
                self._send(PING if isinstance(action, SendPing) else END)

    def _report(self, gap: IngestGap) -> None:
        if self._on_gap is None:
            logger.warning("fast-ingest batch %s has a gap: %s", self._id, gap, extra=fields(batch=self._id))
            return
        try:
            self._on_gap(gap)
        except Exception as error:
            what = f"on_gap of fast-ingest batch {self._id} raised"
            self._core.callback_failed(what, self._receiver.subject, error)

    def _set_timer(self) -> None:
        if self._open and self._flow.state is not State.DONE:
            loop = self._core.loop
            self._timer = loop.call_at(self._flow.next_deadline(), self._on_timer)

    def _on_timer(self) -> None:
        self._perform(self._flow.on_timer(self._core.loop.time()))
        self._wake()
        self._set_timer()

    def _close(self) -> None:
        self._open = False
        if self._timer is not None:
            self._timer.cancel()
        self._core.router.remove(self._receiver)
        if self._flow.state is not State.DONE:
            self._flow.on_failure(ConnectionClosed("the fast-ingest batch was closed"))
        self._wake()
