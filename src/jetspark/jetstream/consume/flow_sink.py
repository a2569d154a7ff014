"""What the drivers of the flow machines share: an inbox, a buffer, a timer, and the waiting readers.

A :class:`FlowSink` joins a machine (:mod:`~jetspark.jetstream.flow.pull`,
:mod:`~jetspark.jetstream.flow.push`) to a connection. It separates statuses from messages, reports arriving
messages to the machine in runs, performs the actions that come back, and keeps the messages until a reader
takes them. ``fetch``, ``next``, ``consume`` and subscriptions are thin layers above it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from jetspark._log import fields, get_logger
from jetspark.connection.listening import report_failure
from jetspark.connection.readers import Readers
from jetspark.connection.sink import Sink
from jetspark.connection.waiters import Waiters
from jetspark.errors import ConnectionClosed, JetsparkError, ProtocolError
from jetspark.jetstream.flow.statuses import Kind, Status
from jetspark.jetstream.message import Message

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Iterable

    from jetspark.connection.core import Core
    from jetspark.jetstream.flow.actions import Action, Actions
    from jetspark.wire.parser import Factory

logger = get_logger("jetstream")


class Machine(Protocol):
    """What the machines have in common."""

    def next_deadline(self) -> float | None: ...

    def start(self, now: float) -> Actions: ...

    def on_status(self, status: Status, now: float) -> Actions: ...

    def on_disconnect(self, now: float) -> Actions: ...

    def on_reconnect(self, now: float) -> Actions: ...

    def on_timer(self, now: float) -> Actions: ...

    def stop(self, now: float) -> Actions: ...


class FlowSink(Sink):
    """One subscription with its machine and its buffer. Subclasses set ``flow``."""

    core: Core

    flow: Machine

    def __init__(
        self,
        core: Core,
        subject: str,
        queue: str = "",
        message: Factory = Message,
        on_warning: Callable[[JetsparkError], Any] | None = None,
    ) -> None:
        super().__init__(core, subject, queue)
        self.factory = message
        self.buffer: deque[Any] = deque()
        self.error: JetsparkError | None = None
        self.done = False
        self.closed_by_user = False
        # Called once at the end, when nothing more can arrive.
        self.on_done: Callable[[], None] | None = None
        # Called when the connection is drained, with the task that requested it. None: simply let it close.
        self.drain_all: Callable[[asyncio.Task[Any] | None], Awaitable[None]] | None = None
        self.takers = Readers()
        # Report processed messages when the buffer is no longer than this.
        self.mark = -1
        self._on_warning = on_warning
        self._unreported = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._waiters = Waiters()

    @property
    def label(self) -> str:
        """Its name in the log and in errors."""
        return f"subscription to {self.subject!r}"

    # Life

    async def open(self) -> None:
        """Run the checks that need the server, then ``start``."""
        self.start()

    def start(self) -> None:
        """Subscribe and start the machine."""
        self.core.check_open()
        self.core.router.add(self)
        self._perform(self.flow.start(self._now()))
        self._arm()

    def stop(self) -> None:
        """End now. Buffered messages are discarded and, with acks, delivered again after ack_wait."""
        self._perform(self.flow.stop(self._now()))
        self._finish(None, discard=True)

    def drain(self) -> None:
        """Stop receiving, let the user take the messages that have arrived, then end."""
        raise NotImplementedError

    async def _drain(self, asker: asyncio.Task[Any] | None) -> None:
        if self.drain_all is not None:
            await self.drain_all(asker)

    # Taking messages

    @property
    def deliverable(self) -> int:
        """How many of the buffered messages may be handed out."""
        raise NotImplementedError

    def report(self) -> None:
        """Report to the machine what was taken out of the buffer since the last report."""
        raise NotImplementedError

    async def wait(self) -> None:
        """Sleep until there is something in the buffer or the end is reached."""
        await self._waiters.wait()

    # What the connection calls

    def deliver(self, items: list[Any], nbytes: int) -> None:
        marked = [index for index, item in enumerate(items) if item.header_block is not None]
        if marked:
            self._deliver_mixed(items, marked)
        else:
            self._deliver_messages(items)

    def link_lost(self, error: JetsparkError) -> None:
        self._perform(self.flow.on_disconnect(self._now()))
        self._arm()

    def link_restored(self) -> None:
        self._perform(self.flow.on_reconnect(self._now()))
        self._arm()

    def ended(self, error: JetsparkError | None) -> None:
        # Closed by the user: buffered messages can no longer be acked.
        self.closed_by_user = error is None
        self._finish(error or ConnectionClosed("the connection was closed"), discard=error is None)

    def closed_behind(self) -> None:
        # Readers in other threads may learn of it after the loop that could have told them is gone.
        self._finish(None, discard=False)

    # Internals

    def _deliver_messages(self, items: list[Any]) -> None:
        raise NotImplementedError

    def _perform(self, actions: Iterable[Action]) -> None:
        raise NotImplementedError

    def _may_be_status(self, item: Any) -> bool:
        """Whether a message with headers is a status, if it has a status line.

        A delivered message has an ack reply, a status has none. Without this check, a client could publish an
        empty message with a status line, and it would never reach the user.
        """
        return not (item.data or item.reply)

    def _deliver_mixed(self, items: list[Any], marked: list[int]) -> None:
        """Statuses among messages: keep the order, and report each run of messages between statuses."""
        begin = 0
        for index in marked:
            item = items[index]
            if not self._may_be_status(item):
                continue
            try:
                status = item.status
            except ProtocolError:
                continue  # a publisher's malformed header block: left to the user's code
            if status is None:
                continue
            if index > begin:
                self._deliver_messages(items[begin:index])
            begin = index + 1
            try:
                headers = item.headers
            except ProtocolError:
                headers = None  # its status line is valid; treat the unreadable headers as absent
            self.on_status(Status(status[0], status[1], headers, item.reply))
            if self.done:
                return
        if begin < len(items):
            self._deliver_messages(items[begin:] if begin else items)

    def on_status(self, status: Status) -> None:
        """A status message, in order with the messages around it."""
        self._perform(self.flow.on_status(status, self._now()))
        if status.kind is not Kind.HEARTBEAT:
            self._arm()

    def _enqueue(self, items: list[Any]) -> None:
        self.buffer.extend(items)
        self._unreported += len(items)
        self.mark += len(items)
        if self._waiters:
            self._wake()

    def _warn(self, warning: JetsparkError) -> None:
        """Log it and notify the listener."""
        logger.warning("%s: %s", self.label, warning, extra=fields(source=self.label, error=warning))
        self._notify(warning)

    def callback_failed(self, failure: JetsparkError, what: str, error: BaseException) -> None:
        """User code raised: tell the loop's exception handler and the listener. Callable from any thread."""
        report_failure(self.core.loop, what, error)
        self._notify(failure)

    def _notify(self, warning: JetsparkError) -> None:
        if self._on_warning is not None:
            self._on_warning(warning)
        if self.core.observer is not None:
            self.core.observer.warned(warning)

    def _finish(self, error: JetsparkError | None, *, discard: bool) -> None:
        if self.done:
            return
        self.done = True
        self.error = error
        if discard:
            self.buffer.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.core.router.remove(self)
        self.core.router.drained.discard(self)
        self._wake()
        if self.on_done is not None:
            self.on_done()

    def _wake(self) -> None:
        self._waiters.wake()

    def _now(self) -> float:
        return self.core.loop.time()

    def _arm(self) -> None:
        """Set the timer to the machine's next deadline. An earlier timer may fire; it then checks again."""
        due = None if self.done else self.flow.next_deadline()
        if due is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = self.core.loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._perform(self.flow.on_timer(self._now()))
        self._arm()


class ChainedSink(Protocol):
    """What the chain of an ordered consumer needs from the sink that reads from its consumers."""

    @property
    def wants_more(self) -> bool: ...

    def pause(self) -> None: ...

    def renew(self) -> None: ...

    def resume(self) -> None: ...

    def stop(self) -> None: ...

    def _warn(self, warning: JetsparkError) -> None: ...

    def _finish(self, error: JetsparkError | None, *, discard: bool) -> None: ...
