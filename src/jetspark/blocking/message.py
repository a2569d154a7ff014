"""Received messages, for threads."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from jetspark.blocking._mirror import documented_by, mirrors
from jetspark.connection.message import Msg as AsyncMsg
from jetspark.connection.message import MsgBase
from jetspark.errors import JetsparkError
from jetspark.jetstream.consume.fetch import MessageBatch as AsyncMessageBatch
from jetspark.jetstream.consume.fetch import collecting
from jetspark.jetstream.message import ACK, PROGRESS, MessageBase, nak_body, term_body
from jetspark.jetstream.message import Message as AsyncMessage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import timedelta

    from jetspark.blocking._engine import Engine, EngineLoop
    from jetspark.jetstream.consume.fetch import Fetch
    from jetspark.jetstream.consume.pull import Stash
    from jetspark.wire.headers import Headers


class Yielding(Protocol):
    """What a message needs from its connection."""

    engine: EngineLoop

    def give_way(self) -> None: ...


@mirrors(AsyncMsg)
class Msg(MsgBase, eq=False, gc=False):
    @documented_by(AsyncMsg.respond)
    def respond(
        self,
        data: bytes = b"",
        *,
        headers: Headers | Mapping[str, str | Sequence[str]] | None = None,
    ) -> None:
        self._owner.publish(self._reply_subject(), data, headers=headers)


@mirrors(AsyncMessage, note="Any thread may ack it. Acks are sent in batches, without waiting for each.")
class Message(MessageBase, eq=False, gc=False):
    @documented_by(AsyncMessage.ack)
    def ack(self) -> None:
        if self._wants_ack(ACK, terminal=True):
            self._core.give_way()

    @documented_by(AsyncMessage.ack_sync)
    def ack_sync(self, timeout: float | None = None) -> None:
        # The async method uses nothing that this class does not have.
        call: Any = AsyncMessage.ack_sync
        self._core.engine.run(call, self, timeout)

    @documented_by(AsyncMessage.nak)
    def nak(self, delay: float | timedelta | None = None) -> None:
        if self._wants_ack(nak_body(delay), terminal=True):
            self._core.give_way()

    @documented_by(AsyncMessage.term)
    def term(self, reason: str | None = None) -> None:
        if self._wants_ack(term_body(reason), terminal=True):
            self._core.give_way()

    @documented_by(AsyncMessage.in_progress)
    def in_progress(self) -> None:
        if self._wants_ack(PROGRESS, terminal=False):
            self._core.give_way()

    @documented_by(AsyncMessage.ack_next)
    def ack_next(
        self,
        n: int = 1,
        *,
        expires: float | None = None,
        no_wait: bool = False,
        idle_heartbeat: float | None = None,
        group: str | None = None,
    ) -> MessageBatch:
        call: Any = AsyncMessage.ack_next
        request: Fetch = call(
            self, n, expires=expires, no_wait=no_wait, idle_heartbeat=idle_heartbeat, group=group
        )
        return take_batch(self._core.engine, *collecting(request))

    @property
    def _core(self) -> Yielding:
        core: Yielding = self._owner.core
        return core


@mirrors(AsyncMessageBatch, attributes=("error",))
class MessageBatch(list[Message]):
    error: JetsparkError | None = None

    @documented_by(AsyncMessageBatch.raise_for_error)
    def raise_for_error(self) -> None:
        if self.error is not None:
            raise self.error


def take_batch(
    engine: Engine | EngineLoop, fetch: Callable[[], Awaitable[AsyncMessageBatch]], stash: Stash
) -> MessageBatch:
    """The result of a fetch in the loop. An interrupt (Ctrl-C) at any moment leaves it in the stash."""
    batch = MessageBatch()
    try:
        engine.run(_collect, fetch, batch)
    except JetsparkError:
        raise
    except BaseException:
        # The fetch was cancelled, or it has ended without our knowing: then its messages are here.
        engine.spawn(partial(_give_back, stash, batch))
        raise
    return batch


async def _collect(fetch: Callable[[], Awaitable[AsyncMessageBatch]], into: MessageBatch) -> None:
    found = await fetch()
    into.error = found.error
    into.extend(found)  # type: ignore[arg-type]  # the parser makes the class that the kinds specify


async def _give_back(stash: Stash, batch: MessageBatch) -> None:
    stash.keep(deque(batch))
