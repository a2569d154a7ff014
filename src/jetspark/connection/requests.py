"""Requests over one shared inbox: one wildcard subscription, answers matched by the last token."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from jetspark.connection.nuid import next_nuid
from jetspark.connection.sink import Sink, SinkCore
from jetspark.errors import (
    ConnectionClosed,
    ConnectionLost,
    JetsparkError,
    NoRespondersError,
    RequestTimeout,
)

if TYPE_CHECKING:
    from jetspark.connection.message import Msg, MsgBase

NO_RESPONDERS = b"NATS/1.0 503"


def is_no_responders(message: MsgBase) -> bool:
    """Whether the message is the server's notice that nothing listens on the subject."""
    header = message.header_block
    return header is not None and not message.data and header.startswith(NO_RESPONDERS)


class _Pending:
    """A request in flight."""

    __slots__ = ("future", "subject", "timer")

    def __init__(self, future: asyncio.Future[Msg], subject: str, timer: asyncio.TimerHandle) -> None:
        self.future = future
        self.subject = subject
        self.timer = timer


class RequestInbox(Sink):
    """The multiplexed inbox of a connection."""

    def __init__(self, core: SinkCore, prefix: str) -> None:
        self.base = f"{prefix}.{next_nuid()}."
        super().__init__(core, self.base + "*")
        self._cut = len(self.base)
        self._serial = 0
        self._pending: dict[str, _Pending] = {}

    async def request(self, subject: str, payload: bytes, headers: Any, timeout: float) -> Msg:
        """Publish with our inbox as reply and wait for the first answer."""
        loop = asyncio.get_running_loop()
        self._serial += 1
        token = format(self._serial, "x")
        future: asyncio.Future[Msg] = loop.create_future()
        self.core.outbox.publish(subject, payload, self.base + token, headers, own_reply=True)
        timer = loop.call_later(timeout, self._expire, token, timeout)
        self._pending[token] = _Pending(future, subject, timer)
        try:
            return await future
        finally:
            timer.cancel()
            self._pending.pop(token, None)

    def deliver(self, items: list[Any], nbytes: int) -> None:
        for message in items:
            pending = self._pending.pop(message.subject[self._cut :], None)
            # None: the request timed out or was cancelled, or this is a second answer to it.
            if pending is None or pending.future.done():
                continue
            if message.header_block is not None and is_no_responders(message):
                pending.future.set_exception(NoRespondersError(pending.subject))
            else:
                pending.future.set_result(message)

    def link_lost(self, error: JetsparkError) -> None:
        self._fail_all(
            lambda subject: ConnectionLost(
                f"connection lost while waiting for the answer to {subject!r}: {error}"
            )
        )

    def ended(self, error: JetsparkError | None) -> None:
        self._fail_all(
            lambda subject: error or ConnectionClosed(f"closed while waiting for the answer to {subject!r}")
        )

    def publish_refused(self, subject: str, error: JetsparkError) -> None:
        for pending in list(self._pending.values()):
            if pending.subject == subject and not pending.future.done():
                pending.future.set_exception(error)

    def _expire(self, token: str, timeout: float) -> None:
        pending = self._pending.pop(token, None)
        if pending is not None and not pending.future.done():
            reason = self.core.absence() or "the responder is slow or gone"
            pending.future.set_exception(
                RequestTimeout(f"no answer to {pending.subject!r} within {timeout:g}s: {reason}")
            )

    def _fail_all(self, make: Any) -> None:
        pending, self._pending = self._pending, {}
        for one in pending.values():
            if not one.future.done():
                one.future.set_exception(make(one.subject))
