"""The driver of the pull machine: one inbox, one buffer, one timer.

:class:`PullSink` joins a :class:`~jetspark.jetstream.flow.pull.PullFlow` to a connection. It hands the
machine what arrives, a run at a time, performs the actions that come back, and keeps the messages until
somebody takes them (:class:`~jetspark.jetstream.consume.flow_sink.FlowSink`). ``fetch``, ``next`` and
``consume`` are thin faces of it.

Processing is reported in strides of a sixteenth of the buffer, not message by message: the threshold at
which the machine pulls again is met within a stride, and a message costs nothing but its place in a deque.
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

# Go's default, and the server's, for consumers that leave ack_wait out.
_DEFAULT_ACK_WAIT = 30.0

#: What the server gives a consumer that names none.
DEFAULT_MAX_WAITING = 512
_STRIDES = 16
#: Seconds without a message before an open request is withdrawn where nothing is delivered again: when none
#: has come at all, and when the newest one says that there are more.
QUIET = 0.1
QUIET_WITH_MORE = 5.0
_UNLIMITED = 1 << 62
_PIN_NAME = PIN_ID.lower().encode()


class PullTarget:
    """What a pull needs to know of its consumer. Also the owner of the messages it brings."""

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
        # Requests to it may be refused at any time; see "A narrow consumer" in ``flow.pull``.
        self.narrow = 0 < (max_waiting or 0) < DEFAULT_MAX_WAITING
        # Whether the server delivers a message again that got lost: then its requests may be withdrawn at
        # any time. Else see ``PullSink._served``.
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

        A weak reference: messages in the stash refer to this target, and the garbage collector does not look
        into messages, so that it could never free the circle.
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
        # Refused permission to publish there ends the sink: no pull can ever be answered.
        self.asked = target.next_subject
        self.owner = self.target = target
        self.flow = PullFlow(
            options,
            pin_id=target.pin_id,
            connected=core.is_connected,
            narrow=target.narrow,
        )
        # The ack reply of the newest message: it tells how many are left.
        self._newest = b""
        # Who gets messages at once when nobody takes them out of the buffer any more.
        self.heir: Callable[[deque[Any]], None] | None = None
        # Messages of other fetches that this one was given; the machine does not know of them.
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
        """Take what a fetch lacks out of ``items``, which others have left behind."""
        room = 0 if self.done else self.flow.lacking - self.extra
        if room > 0 and items:
            taken = [items.popleft() for _ in range(min(room, len(items)))]
            self.extra += len(taken)
            self.buffer.extend(taken)
            self._wake()

    @property
    def complete(self) -> bool:
        """Whether a fetch has all it asked for, or can't get more."""
        return self.done or (self.extra > 0 and self.flow.lacking <= self.extra)

    def drain(self) -> None:
        """Pull no more, let the user have what has arrived, then end."""
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
        """Tell the machine what was taken out of the buffer since the last report."""
        buffer = self.buffer
        taken = self._unreported - len(buffer)
        if taken > 0:
            self._unreported = len(buffer)
            flow = self.flow
            size = self._taken_bytes(taken)
            # The next report is due a stride from here, or with the last message that stop_after allows.
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
        """How many of the buffered messages make up a stride in bytes; all of them when they are too few."""
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
        """The error that ends it; for want of an answer, with what kept the answer away."""
        if isinstance(error, PullUnanswered):
            absence = self.core.absence()
            if absence:
                return NotConnected(f"no answer to the fetch from {self.label}: {absence}")
        return error

    def link_lost(self, error: JetsparkError) -> None:
        # The server keeps requests of a lost link for a while, and would honour them beside the new ones as
        # soon as their inbox has interest again: more than the buffer has room for. So the next link gets
        # another inbox.
        self.subject = self.core.new_inbox()
        self._changing = None
        super().link_lost(error)

    async def _change_inbox(self) -> None:
        """Withdraw all requests by an UNSUB, take what comes until the PONG, then go on in another inbox."""
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
        """Whether the change of the inbox that this task makes was neither ended nor overtaken."""
        return self.flow.changing_inbox and self._changing is asyncio.current_task()

    async def _confirmed(self) -> bool:
        """Wait for a PONG, as long as it takes; False when the inbox need not be changed any more."""
        while self._still_changing:
            try:
                await self.core.flush()
            except RequestTimeout:
                continue  # it hangs: a dead peer is the connection's business, which then drops the link
            except JetsparkError:
                return False
            break
        return self._still_changing

    def _send_pull(self, pull: SendPull) -> None:
        self.core.outbox.publish_volatile(self.target.next_subject, pull.to_json(), self.subject)

    async def _served(self, patience: float) -> None:
        """Wait until the server, which has the open requests, has sent what it has for them.

        It drops what it is about to send when the UNSUB comes. While the newest message says that there are
        more, and a request is open, more is on its way; unless others take it, so this too has a bound. When
        it says that none are left, the request must not stay: it would take what is published from now on
        from those who still read.
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
        """UNSUB, and wait for the PONG: after it nothing more can arrive."""
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
    """Bytes of a message as the server counts them: subject, ack reply, header block, payload (ADR-37)."""
    subject, reply, header = item.subject, item.reply, item.header_block
    size = len(item.data) + (len(header) if header is not None else 0)
    size += len(subject) if subject.isascii() else len(subject.encode("utf-8", "surrogateescape"))
    size += len(reply) if reply.isascii() else len(reply.encode("utf-8", "surrogateescape"))
    return size


def pin_of(block: bytes) -> str:
    """The pin in a header block, empty when there is none.

    Reads any block: the server adds the pin behind whatever a publisher sent, and a malformed block must
    not end the connection that it arrives on. From the end, so that a publisher can't forge it.
    """
    for line in reversed(block.split(b"\r\n")):
        name, _, value = line.partition(b":")
        if name.lower() == _PIN_NAME:
            return value.strip().decode("utf-8", "replace")
    return ""


class Stash:
    """Messages that a cancelled fetch had received."""

    def __init__(self, target: PullTarget, ack_wait: float | None, max_deliver: int | None = None) -> None:
        self._target = target
        # What is not delivered again may not be thrown away.
        again = target.acks and max_deliver != 1
        self._keep = (ack_wait or _DEFAULT_ACK_WAIT) if again else float("inf")
        target.again = again
        self._messages: deque[tuple[float, Any]] = deque()
        # Fetches under way.
        self._waiting: list[PullSink] = []
        target.stash = self

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def in_use(self) -> bool:
        """Whether a fetch is under way, or an iteration that has not handed out all."""
        return bool(self._waiting)

    def take(self, count: int | None, max_bytes: int | None = None) -> list[Any]:
        """Messages that may still be processed, within the limits of whoever asks; None is no limit.

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
        """This fetch waits now: it may have what others leave."""
        self._waiting.append(sink)

    def leave(self, sink: PullSink) -> None:
        """This fetch is over: whatever it has, or may still get, is for others."""
        self._waiting.remove(sink)
        if sink.buffer or not sink.done:
            self.put_back(sink)

    def put_back(self, sink: PullSink) -> None:
        """Take over everything from a fetch that nobody waits for any more; its request too."""
        self.keep(sink.buffer)
        if not sink.done:
            sink.heir = self.keep  # until the server has confirmed its end it may still get messages
            sink.drain()

    def keep(self, messages: deque[Any]) -> None:
        """Hand the messages to those who wait, and keep the rest, in their order."""
        for sink in self._waiting:
            sink.offer(messages)
        until = self.loop.time() + self._keep
        self._messages.extend((until, message) for message in messages)
        messages.clear()
