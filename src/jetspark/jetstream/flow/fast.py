"""The fast-ingest machine of ADR-50 ('Fast-ingest Batch Publishing'): how far it may run ahead of the acks.

Theory of operation
-------------------
Messages of a batch are numbered from 1. After every ``flow`` messages the server acks with the number up to
which it has stored the batch (``BatchFlowAck``); it may change ``flow`` each time. Up to ``outstanding`` such
acks may be due, so the highest number that may be sent is ``limit = acked + flow * outstanding``. An ack
covers all earlier ones, so a lost ack does no harm.

    NEW -> STARTING -> OPEN -> COMMITTING -> DONE
                         \\-> ENDING -------/

STARTING waits for the reply to the first message, as the ADR requires. With ``gap="fail"`` the first problem
(a gap, a refused message) means that the server stores nothing after it. The state is then ENDING: nothing
more is sent, and the final ack says how far the batch got. With ``gap="ok"`` problems are reported and the
batch continues. The server does not ack a refused message until it stores a later one, so the machine widens
the limit itself.

Silence is answered with pings: when nothing was received for ``ping_interval``, send a ping. This one rule
serves three purposes. It keeps an idle batch alive (the server forgets it after 10 seconds), it replaces lost
acks, and after a reconnect it makes the server report what is missing. Reports can be lost as well. But the
reply to a ping comes after them on the same connection, so when a connection breaks before that reply, the
messages it covered are reported as uncertain.

Events in, actions out; time is an argument. Only ``sent`` is written by the caller, once per message.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated, Any

import msgspec

from jetspark.errors import ConnectionLost, JetsparkError, ProtocolError, RequestTimeout
from jetspark.jetstream.errors import (
    ApiError,
    FastIngestDisabled,
    FastIngestFailed,
    NoStreamResponse,
    RequiredApiLevel,
    error_from_response,
)
from jetspark.jetstream.models.puback import PubAck

# Operations of the reply subject.
START, APPEND, COMMIT, END, PING = range(5)


class IngestGap(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a fast-ingest batch that the stream does not have. Numbers count from 1 in the batch.

    If a replicated stream changes its leader meanwhile, nats-server 2.15.1 may name messages that the old
    leader had accepted and that are stored after all.
    """

    first: int
    """Number of the first missing message."""
    last: int
    """Number of the last missing message, inclusive."""
    error: JetsparkError | None = None
    """Why the server refused it; None when the messages did not reach the stream."""
    certain: bool = True
    """False when the connection broke twice and the server's report was lost: some may be stored."""

    @property
    def count(self) -> int:
        """How many messages are missing."""
        return self.last - self.first + 1


class FastIngestBroken(JetsparkError):
    """A fast-ingest batch ended early.

    With ``gap="fail"`` messages 1 to ``stored`` are in the stream. If ``ack`` is set, then by the server's
    count no later one is; without ``ack`` the server could not be asked, and later ones may be stored. The
    server counts too few when a replicated stream changes its leader at that moment: messages that the old
    leader had accepted may be stored after all (2.15.1), without a gap. If that matters, check the stream's
    last message before you start a new batch with the missing ones. With ``gap="ok"`` the gaps reported so
    far are subtracted from ``stored``.
    """

    def __init__(self, published: int, stored: int, ack: PubAck | None, cause: JetsparkError | None) -> None:
        later = (
            "by the server's count none of the later ones"
            if ack is not None
            else "later ones may be: the server could not be asked"
        )
        why = f": {cause}" if cause is not None else ""
        super().__init__(
            f"fast-ingest batch ended early after {published} messages; the first {stored} are stored, "
            f"{later}{why}"
        )
        self.published = published
        self.stored = stored
        self.ack = ack
        self.cause = cause


class State(Enum):
    """State of a batch; see the module docstring."""

    NEW = auto()
    STARTING = auto()
    OPEN = auto()
    ENDING = auto()
    COMMITTING = auto()
    DONE = auto()


@dataclass(slots=True, frozen=True)
class SendPing:
    """Send operation PING with the number of the last message."""


@dataclass(slots=True, frozen=True)
class SendEnd:
    """Send operation END, which commits and is not stored itself."""


@dataclass(slots=True, frozen=True)
class Report:
    """Report a gap to the user."""

    gap: IngestGap


Action = SendPing | SendEnd | Report


_Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
# The server keeps it in 16 bits.
_MAX_FLOW = 65_535


class _Reply(msgspec.Struct, frozen=True):
    type: str = ""
    seq: _Number = 0
    msgs: _Number = 0
    last_seq: _Number = 0
    error: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Reply).decode


class FastFlow:
    """See the module docstring. The caller compares ``sent`` with ``limit`` and increments ``sent``."""

    __slots__ = (
        "_ack_timeout",
        "_doubt",
        "_extra",
        "_gap_ok",
        "_heard",
        "_heard_at",
        "_outstanding",
        "_ping_interval",
        "_settled",
        "_ticked_at",
        "ack",
        "acked",
        "cause",
        "error",
        "flow",
        "limit",
        "lost",
        "sent",
        "state",
    )

    def __init__(
        self, *, gap_ok: bool, outstanding: int, ping_interval: float, ack_timeout: float, now: float
    ) -> None:
        self._gap_ok = gap_ok
        self._outstanding = outstanding
        self._ping_interval = ping_interval
        self._ack_timeout = ack_timeout
        self._heard = False
        self._heard_at = now
        self._ticked_at = now
        self._settled: deque[int] = deque()  # refused messages above acked
        self._extra = 0
        self._doubt: tuple[int, int] | None = None  # what a lost link may have dropped; no report yet
        self.state = State.NEW
        self.sent = 0
        self.limit = 0
        self.acked = 0
        self.flow = 0
        self.lost = 0
        self.ack: PubAck | None = None
        self.cause: JetsparkError | None = None
        self.error: JetsparkError | None = None

    def next_deadline(self) -> float:
        """When ``on_timer`` is due."""
        return self._ticked_at + self._ping_interval

    # Our side

    def on_start(self, now: float) -> None:
        """The first message is being sent."""
        self.state = State.STARTING
        self.sent = 1
        self._heard_at = self._ticked_at = now

    def on_commit(self, now: float) -> list[Action]:
        """The user requests the end. Without a problem so far, commit; otherwise wait for the final ack."""
        self._heard_at = max(self._heard_at, now)
        if self.state not in (State.STARTING, State.OPEN):
            return []
        self.state = State.COMMITTING
        self.limit = 0
        return [SendEnd()]

    def on_timer(self, now: float) -> list[Action]:
        """``next_deadline`` was reached."""
        self._ticked_at = now
        heard, self._heard = self._heard, False
        if heard or self.state in (State.NEW, State.STARTING, State.DONE):
            return []
        if now - self._heard_at >= self._ack_timeout:
            self._conclude(
                RequestTimeout(f"the server was silent for {now - self._heard_at:.1f}s in spite of pings")
            )
            return []
        return self._ask()

    # Events

    def on_link_lost(self, error: JetsparkError) -> list[Action]:
        """The connection broke. Messages on their way may be lost."""
        if self.state is State.STARTING:
            self._finish(ConnectionLost(f"connection lost; the first message may be stored: {error}"))
            return []
        if self.state in (State.NEW, State.DONE):
            return []
        doubt, self._doubt = self._doubt, None
        if self.sent > self.acked:
            self._doubt = (self.acked + 1, self.sent)
        if doubt is None or not self._gap_ok:
            return []
        return [Report(IngestGap(first=doubt[0], last=doubt[1], certain=False))]

    def on_link_restored(self) -> list[Action]:
        """Messages kept meanwhile are on their way again; ask the server what is missing."""
        return self._ask()

    def on_silence_at_start(self, seconds: float) -> None:
        """The first message got no reply."""
        self._finish(
            RequestTimeout(
                f"no answer to the first message of the fast-ingest batch within {seconds:g}s: it may be "
                "stored; is the stream's no_ack set?"
            )
        )

    def on_failure(self, error: JetsparkError) -> None:
        """The connection is closed for good, or the server denies permission."""
        if self.state is State.STARTING:
            self._finish(error)
        elif self.state not in (State.NEW, State.DONE):
            self._conclude(error)

    def on_no_responders(self, number: int, operation: int) -> list[Action]:
        """No stream received this message: none captures its subject, or the leader is unavailable."""
        if self.state is State.STARTING:
            # No stream received it: the caller may start again.
            self.state = State.NEW
            self.sent = 0
            return []
        if self.state in (State.OPEN, State.COMMITTING) and not self._gap_ok and operation == APPEND:
            # A commit that is on its way asks the same question as a ping.
            missing = NoStreamResponse(f"message {number} of the fast-ingest batch")
            return self._end(missing, ask=self.state is State.OPEN)
        # gap="ok": the server reports the gap as soon as it sees the batch again.
        return []

    def on_reply(self, data: bytes, number: int, operation: int, now: float) -> list[Action]:
        """A reply arrived. ``number`` and ``operation`` are those of the message that it replies to."""
        if self.state in (State.NEW, State.DONE):
            return []
        self._heard = True
        self._heard_at = now
        try:
            reply = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._conclude(ProtocolError(f"not an answer of fast ingest: {data[:100]!r}"))
            return []
        if reply.type == "ack":
            self._on_ack(reply, operation)
            return []
        if reply.type == "gap":
            return self._on_gap(reply.last_seq, reply.seq - 1)
        if reply.type == "err":
            return self._on_refused(reply.seq, error_from_response(reply.error or {}))
        if reply.type:
            return []  # from a future version; the ADR leaves room for more kinds
        return self._on_puback(data, number, operation)

    # Internals

    def _on_ack(self, reply: _Reply, operation: int) -> None:
        if self.state is State.STARTING:
            self.state = State.OPEN
        # The server can't ack what was not sent.
        seq = min(reply.seq, self.sent)
        if seq > self.acked:
            self.acked = seq
            self._extra = 0
            while self._settled and self._settled[0] <= seq:
                self._settled.popleft()
        elif operation == PING and self.sent >= self.limit:
            # The server has received everything and has nothing to ack: reports of refused messages were
            # lost. The next message that it can store makes it count again.
            self._extra += 1
        if operation == PING:
            self._doubt = None
        self.flow = min(max(1, reply.msgs), _MAX_FLOW)
        self._widen()

    def _on_gap(self, first: int, last: int) -> list[Action]:
        last = min(last, self.sent)
        if last < first or self.state is State.STARTING:
            return []
        gap = IngestGap(first=first, last=last)
        if not self._gap_ok:
            return self._end(
                ConnectionLost(f"messages {first} to {last} did not reach the stream"), ask=False
            )
        self.lost += gap.count
        return [Report(gap)]

    def _on_refused(self, number: int, error: JetsparkError, *, ask: bool = False) -> list[Action]:
        if not self._gap_ok:
            return self._end(error, ask=ask)
        self.lost += 1
        if number > self.acked:
            self._settled.append(number)
            self._widen()
        return [Report(IngestGap(first=number, last=number, error=error))]

    def _on_puback(self, data: bytes, number: int, operation: int) -> list[Action]:
        try:
            ack = PubAck.from_response(data)
        except ApiError as error:
            if self.state is State.STARTING or (operation == START and not self._gap_ok):
                # An expectation of the first message fails only after the flow was granted.
                self._finish(error)
            elif operation >= COMMIT or isinstance(error, FastIngestFailed | FastIngestDisabled):
                # The batch itself is refused or unknown: its server restarted, or another stream received it.
                self._conclude(error)
            else:
                # One message is refused, before the server checked its batch; at the next message it sees a
                # gap.
                return self._on_refused(number, error, ask=True)
            return []
        except ProtocolError as error:
            self._conclude(error)
            return []
        if self.state is State.STARTING and ack.batch is None:
            self._finish(
                RequiredApiLevel(
                    400,
                    10185,
                    f"stream {ack.stream!r} stored the first message by itself, at sequence {ack.seq}: its "
                    "server does not know fast ingest, which needs 2.14",
                )
            )
            return []
        self.ack = ack
        stored = min(ack.count or 0, self.sent)
        self.acked = max(self.acked, stored)
        if self.state is State.COMMITTING and self.cause is None and (self._gap_ok or stored >= self.sent):
            self._finish(None)
        else:
            self._conclude(self.cause)
        return []

    def _end(self, cause: JetsparkError, *, ask: bool = True) -> list[Action]:
        """A problem with gap="fail": send no more and wait for the final ack."""
        if self.cause is None:
            self.cause = cause
        if self.state is State.OPEN:
            self.state = State.ENDING
        self.limit = 0
        return [SendPing()] if ask else []

    def _ask(self) -> list[Action]:
        if self.state is State.COMMITTING:
            return [SendEnd()]
        return [SendPing()] if self.state in (State.OPEN, State.ENDING) else []

    def _widen(self) -> None:
        if self.state is State.OPEN:
            self.limit = self.acked + self.flow * self._outstanding + len(self._settled) + self._extra

    def _conclude(self, cause: JetsparkError | None) -> None:
        """The batch ended before its commit."""
        if self.cause is None:
            self.cause = cause
        stored = self.acked if self.ack is None else self.ack.count or 0
        self._finish(FastIngestBroken(self.sent, stored, self.ack, self.cause))

    def _finish(self, error: JetsparkError | None) -> None:
        self.state = State.DONE
        self.error = error
        self.limit = 0
