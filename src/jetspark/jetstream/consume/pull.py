"""The driver of the pull machine: one inbox, one buffer, one timer.

:class:`PullSink` joins a :class:`~jetspark.jetstream.flow.pull.PullFlow` to a connection. It reports arriving
messages to the machine in runs, performs the actions that come back, and keeps the messages until a reader
takes them (:class:`~jetspark.jetstream.consume.flow_sink.FlowSink`). ``fetch``, ``next`` and ``consume`` are
thin layers above it.

Processing is reported in steps of a sixteenth of the buffer, not per message. The machine then notices its
refill threshold at most one step late, and a message costs nothing but its place in a deque.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from jetspark._log import fields, get_logger
from jetspark.errors import JetsparkError, NotConnected, RequestTimeout
from jetspark.jetstream.consume.errors import PullUnanswered
from jetspark.jetstream.consume.flow_sink import FlowSink
from jetspark.jetstream.flow.ack_reply import num_pending
from jetspark.jetstream.flow.actions import (
    Action,
    ChangeInbox,
    ClearPin,
    Conclude,
    SendPull,
    Unsubscribe,
    Warn,
)
from jetspark.jetstream.flow.pull import PullFlow
from jetspark.jetstream.flow.statuses import PIN_ID
from jetspark.jetstream.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jetspark.connection.core import Core
    from jetspark.jetstream.flow.options import FetchOptions, PullOptions
    from jetspark.wire.parser import Factory

logger = get_logger("jetstream")

# The default of Go, and of the server, for consumers that do not set ack_wait.
_DEFAULT_ACK_WAIT = 30.0

#: The server's default for consumers that do not set it.
DEFAULT_MAX_WAITING = 512
_STRIDES = 16
#: For consumers without redelivery: seconds without a message before an open request is withdrawn, first when
#: no message has arrived at all, then when the newest one says that there are more.
QUIET = 0.1
QUIET_WITH_MORE = 5.0
_UNLIMITED = 1 << 62
_PIN_NAME = PIN_ID.lower().encode()


class PullTarget:
    """What a pull needs to know about its consumer. Also the owner of the messages it receives."""

    def __init__(
        self,
        core: Core,
        next_subject: str,
        *,
        acks: bool,
        api_timeout: float,
        pinned: bool = False,
        max_waiting: int | None = None,
        message: Factory = Message,
    ) -> None:
        self.core = core
        self.outbox = core.outbox
        self.message = message
        self.next_subject = next_subject
        self.acks = acks
        self.api_timeout = api_timeout
        # Pinned-client consumers mark their messages; only then must headers be read.
        self.pinned = pinned
        self.pin_id = ""
        # Its requests may be refused at any time; see "A narrow consumer" in ``flow.pull``.
        self.narrow = 0 < (max_waiting or 0) < DEFAULT_MAX_WAITING
        # Whether the server redelivers a lost message. If so, requests may be withdrawn at any time; if not,
        # see ``PullSink._served``.
        self.again = True
        self._stash: weakref.ref[Stash] | None = None

    @property
    def names(self) -> tuple[str, str]:
        """The names of the stream and the consumer."""
        _, stream, consumer = self.next_subject.rsplit(".", 2)  # names have no dots
        return stream, consumer

    @property
    def stash(self) -> Stash | None:
        """Where the messages of a cancelled fetch go; None when the consumer's handle is gone.

        This is a weak reference: messages in the stash refer to this target, and messages are not tracked by
        the garbage collector, so it could never free the cycle.
        """
        return None if self._stash is None else self._stash()

    @stash.setter
    def stash(self, stash: Stash) -> None:
        self._stash = weakref.ref(stash)


class PullSink(FlowSink):
    """One inbox with its machine and its buffer."""

    flow: PullFlow

    def __init__(
        self,
        target: PullTarget,
        options: PullOptions | FetchOptions,
        on_warning: Callable[[JetsparkError], Any] | None = None,
    ) -> None:
        core = target.core
        super().__init__(core, core.new_inbox(), "", target.message, on_warning)
        # If the server denies permission to publish there, the sink ends: no pull can ever be answered.
        self.asked = target.next_subject
        self.owner = self.target = target
        self.flow = PullFlow(
            options,
            pin_id=target.pin_id,
            connected=core.is_connected,
            narrow=target.narrow,
        )
        # The ack reply of the newest message: it says how many are left.
        self._newest = b""
        # Receives messages immediately when no reader takes them out of the buffer any more.
        self.heir: Callable[[deque[Any]], None] | None = None
        # Messages that other fetches handed over to this one; the machine does not know about them.
        self.extra = 0
        # Bytes matter to the machine only when a limit is in bytes; then every message is measured.
        exact = options.max_bytes is not None or getattr(options, "max_bytes_per_request", None) is not None
        self._exact: bool = exact
        self._sizes: deque[int] = deque()
        limit = options.max_messages or getattr(options, "buffer_messages", None)
        # Processing is reported after a sixteenth of the buffer, in messages or in bytes.
        self._stride = max(1, limit // _STRIDES) if limit else _UNLIMITED
        self._stride_bytes = (
            options.max_bytes or getattr(options, "max_bytes_per_request", None) or 0
        ) // _STRIDES
        self._drain_task: asyncio.Task[None] | None = None
        self._changing: asyncio.Task[None] | None = None

    # Life

    def preload(self, items: list[Any]) -> None:
        """Put messages of an earlier fetch into the buffer, before ``start``; they take up room there."""
        if items:
            self._deliver_messages(items)

    def offer(self, items: deque[Any]) -> None:
        """Take what this fetch lacks out of ``items``, which other fetches have left."""
        room = 0 if self.done else self.flow.lacking - self.extra
        if room > 0 and items:
            taken = [items.popleft() for _ in range(min(room, len(items)))]
            self.extra += len(taken)
            self.buffer.extend(taken)
            self._wake()

    @property
    def complete(self) -> bool:
        """Whether a fetch has everything it asked for, or can't get more."""
        return self.done or (self.extra > 0 and self.flow.lacking <= self.extra)

    def drain(self) -> None:
        """Stop pulling, let the user take the messages that have arrived, then end."""
        self._perform(self.flow.drain(self._now()))
        self._arm()

    # Taking messages

    @property
    def label(self) -> str:
        stream, consumer = self.target.names
        return f"consumer {consumer!r} of stream {stream!r}"

    @property
    def deliverable(self) -> int:
        return self.flow.deliverable

    def report(self) -> None:
        """Report to the machine what was taken out of the buffer since the last report."""
        buffer = self.buffer
        taken = self._unreported - len(buffer)
        if taken > 0:
            self._unreported = len(buffer)
            flow = self.flow
            size = self._taken_bytes(taken)
            # The next report is due one step from here, or with the last message that stop_after allows.
            stride = min(self._stride, flow.deliverable - taken)
            if self._exact:
                stride = min(stride, self._stride_in_bytes())
            self.mark = len(buffer) - max(1, stride)
            if not flow.concluded:
                actions = flow.on_processed(taken, size, self._now())
                if actions:
                    self._perform(actions)
                    self._arm()

    def _taken_bytes(self, taken: int) -> int:
        sizes = self._sizes
        return sum(sizes.popleft() for _ in range(min(taken, len(sizes))))

    def _stride_in_bytes(self) -> int:
        """How many of the buffered messages make up a step in bytes; all of them when they are too few."""
        total = 0
        for count, size in enumerate(self._sizes, start=1):
            total += size
            if total >= self._stride_bytes:
                return count
        return len(self._sizes)

    # Internals

    def _deliver_messages(self, items: list[Any]) -> None:
        if self.done:
            return
        if self.target.pinned:
            self._note_pin(items[-1])
        self.received += len(items)
        if not self.target.again:
            self._newest = items[-1].reply.encode("utf-8", "surrogateescape")
        count, size = len(items), self._measure(items) if self._exact else 0
        self._enqueue(items)
        if self.heir is not None:
            self.heir(self.buffer)
        actions = self.flow.on_messages(count, size, self._now())
        if actions:
            self._perform(actions)
            self._arm()

    def _measure(self, items: Iterable[Any]) -> int:
        total = 0
        sizes = self._sizes
        for item in items:
            size = message_size(item)
            sizes.append(size)
            total += size
        return total

    def _note_pin(self, item: Any) -> None:
        pin = pin_of(item.header_block) if item.header_block is not None else ""
        if pin and pin != self.target.pin_id:
            self.target.pin_id = pin
            self.flow.on_pin_id(pin)

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, SendPull):
                self._send_pull(action)
                if self.core.observer is not None:
                    self.core.observer.pulled()
            elif isinstance(action, Warn):
                self._warn(action.warning)
            elif isinstance(action, Conclude):
                self._finish(self._explained(action.error), discard=action.discard)
            elif isinstance(action, ClearPin):
                self.target.pin_id = ""
            elif isinstance(action, Unsubscribe):
                self._drain_task = asyncio.get_running_loop().create_task(self._unsubscribe())
            elif isinstance(action, ChangeInbox):
                self._changing = asyncio.get_running_loop().create_task(self._change_inbox())

    def _explained(self, error: JetsparkError | None) -> JetsparkError | None:
        """The error that ends it. When a reply is missing, it includes what prevented the reply."""
        if isinstance(error, PullUnanswered):
            absence = self.core.absence()
            if absence:
                return NotConnected(f"no answer to the fetch from {self.label}: {absence}")
        return error

    def link_lost(self, error: JetsparkError) -> None:
        # The server keeps the requests of a lost connection for a while. As soon as their inbox has interest
        # again, it would serve them besides the new ones: more than the buffer has room for. So the next
        # connection uses another inbox.
        self.subject = self.core.new_inbox()
        self._changing = None
        super().link_lost(error)

    async def _change_inbox(self) -> None:
        """Withdraw all requests with an UNSUB, accept messages until the PONG, then continue in a new
        inbox."""
        core = self.core
        flow = self.flow
        if not self.target.again and flow.awaits_messages:
            # A server that hung may be in the middle of serving them.
            if not await self._confirmed():
                return
            await self._served(min(QUIET_WITH_MORE, self.flow.heartbeat))
            if not self._still_changing:
                return
        core.router.unsubscribe(self)
        if not await self._confirmed():
            return
        core.router.remove(self, tell_server=False)
        self.subject = core.new_inbox()
        core.router.add(self)
        self._perform(flow.on_inbox_changed(self._now()))
        self._arm()

    @property
    def _still_changing(self) -> bool:
        """Whether the inbox change of this task is still wanted: neither ended nor superseded."""
        return self.flow.changing_inbox and self._changing is asyncio.current_task()

    async def _confirmed(self) -> bool:
        """Wait for a PONG as long as necessary; False when the inbox no longer needs to be changed."""
        while self._still_changing:
            try:
                await self.core.flush()
            except RequestTimeout:
                continue  # the server hangs; if it is dead, the connection drops the link
            except JetsparkError:
                return False
            break
        return self._still_changing

    def _send_pull(self, pull: SendPull) -> None:
        self.core.outbox.publish_volatile(self.target.next_subject, pull.to_json(), self.subject)

    async def _served(self, patience: float) -> None:
        """Wait until the server has sent what it has for the open requests.

        The server drops messages that it is about to send when the UNSUB arrives. While a request is open and
        the newest message says that there are more, more messages are on their way, unless other readers take
        them. So this wait has a limit too. When the newest message says that none are left, the request must
        not stay open: it would take newly published messages from other readers.
        """
        quiet = 0.0
        while self.flow.awaits_messages:
            if self._newest and not num_pending(self._newest):
                return
            received = self.received
            await asyncio.sleep(QUIET)
            if self.received != received:
                quiet = 0.0
                continue
            quiet += QUIET
            if quiet >= (patience if self._newest else QUIET):
                return

    async def _unsubscribe(self) -> None:
        """Send UNSUB and wait for the PONG: after it nothing more can arrive."""
        try:
            if not self.target.again and self.flow.awaits_messages:
                with contextlib.suppress(RequestTimeout):
                    await self.core.flush()
                await self._served(min(QUIET_WITH_MORE, self.core.options.drain_timeout / 2))
            self.core.router.unsubscribe(self)
            await self.core.flush()
        except JetsparkError as error:
            logger.debug(
                "drain of %s ended by %s", self.label, error, extra=fields(source=self.label, error=error)
            )
        finally:
            self.core.router.remove(self, tell_server=False)
        self._perform(self.flow.on_unsubscribed(self._now()))
        if not self.done:
            if self.core.is_closed:
                self.closed_behind()
            else:
                self.core.router.drained.add(self)


def message_size(item: Any) -> int:
    """Size of a message as the server counts it: subject, ack reply, header block, payload (ADR-37)."""
    subject, reply, header = item.subject, item.reply, item.header_block
    size = len(item.data) + (len(header) if header is not None else 0)
    size += len(subject) if subject.isascii() else len(subject.encode("utf-8", "surrogateescape"))
    size += len(reply) if reply.isascii() else len(reply.encode("utf-8", "surrogateescape"))
    return size


def pin_of(block: bytes) -> str:
    """The pin in a header block, empty when there is none.

    Reads any block: the server adds the pin after whatever the publisher sent, and a malformed block must
    not end the connection that it arrives on. It reads from the end, so a publisher can't forge the pin.
    """
    for line in reversed(block.split(b"\r\n")):
        name, _, value = line.partition(b":")
        if name.lower() == _PIN_NAME:
            return value.strip().decode("utf-8", "replace")
    return ""


class Stash:
    """Messages that cancelled fetches had received."""

    def __init__(self, target: PullTarget, ack_wait: float | None, max_deliver: int | None = None) -> None:
        self._target = target
        # Messages that are not redelivered must not be thrown away.
        again = target.acks and max_deliver != 1
        self._keep = (ack_wait or _DEFAULT_ACK_WAIT) if again else float("inf")
        target.again = again
        self._messages: deque[tuple[float, Any]] = deque()
        # Running fetches.
        self._waiting: list[PullSink] = []
        target.stash = self

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def in_use(self) -> bool:
        """Whether a fetch is running, or an iteration that has not handed out all its messages."""
        return bool(self._waiting)

    def take(self, count: int | None, max_bytes: int | None = None) -> list[Any]:
        """Messages that may still be processed, within the limits of the caller; None means no limit.

        What is left after that (``len``) is too large, unless ``count`` was reached.
        """
        now = self.loop.time()
        found: list[Any] = []
        room = float("inf") if max_bytes is None else max_bytes
        while self._messages and len(found) != count:
            until, message = self._messages[0]
            if until > now:
                room -= message_size(message)
                if room < 0:
                    break
                found.append(message)
            self._messages.popleft()
        return found

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the connection."""
        return self._target.core.loop

    def join(self, sink: PullSink) -> None:
        """This fetch is waiting: it may receive what other fetches leave."""
        self._waiting.append(sink)

    def leave(self, sink: PullSink) -> None:
        """This fetch is over: whatever it has, or may still receive, goes to others."""
        self._waiting.remove(sink)
        if sink.buffer or not sink.done:
            self.put_back(sink)

    def put_back(self, sink: PullSink) -> None:
        """Take over all messages, and the open request, of a fetch that was abandoned."""
        self.keep(sink.buffer)
        if not sink.done:
            sink.heir = self.keep  # it may still receive messages until the server has confirmed its end
            sink.drain()

    def keep(self, messages: deque[Any]) -> None:
        """Hand the messages to waiting fetches and keep the rest, in order."""
        for sink in self._waiting:
            sink.offer(messages)
        until = self.loop.time() + self._keep
        self._messages.extend((until, message) for message in messages)
        messages.clear()
