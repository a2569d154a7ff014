"""The answers' side of a pipelined publisher: what has no ack so far, and what becomes of it.

A message is noted under its serial, the last token of its reply subject. One timer for the whole publisher
finds acks that never came: at each tick it notes how far publishing has got, and what was sent before a note
older than ``ack_timeout`` has expired.

Groups (compiled core)
----------------------
A reply subject that the server meets for the first time costs it a fifth of a publish. So plain messages
that go out in one write to one subject share the reply of the first, up to 16 of them. Which ack is whose
their order tells: one stream numbers what one connection sends in the order in which it was sent. A group is
settled when as many acks have come from one stream, in ascending order, as it has messages. Nothing less
confirms any of them, and no reply is used twice, so no ack can be taken for that of another message.

The rest is for the rare case that anything else is answered:

- Some are refused, some stored. With replicas an ack takes its time and a refusal does not, so their order
  tells nothing. The stream is asked what it has under the sequences that were acked, and the payloads tell
  which messages these are. Whoever may not ask gets :class:`PublishUnclear`.
- Acks come from several streams (weighted subject mappings; a leaf node and its hub that both store it), or
  some never come: one stream has to acknowledge all of them, else they fail as messages without an ack do.
- Two streams of one name acknowledge, as a leaf node's and its hub's may that have no domains. Then there are
  second answers to messages that had theirs, and the first message of each write has a reply of its own: what
  answers twice has done so there before it answers to a group behind it. From then on no group that was sent
  before is believed by the order of its acks. The stream is asked, as above.

In all these cases the next messages get replies of their own, those to several streams for good. So do the
first messages of a publisher and the first after a lost connection, until all their acks have come from one
stream, and messages larger than any that were stored before: nothing is known of them.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from jetspark.connection.requests import is_no_responders
from jetspark.connection.subscription import Sink
from jetspark.errors import (
    ConnectionLost,
    JetsparkError,
    NoRespondersError,
    PermissionViolationError,
    ProtocolError,
    RequestTimeout,
)
from jetspark.jetstream.errors import ApiError, MessageNotFound, NoStreamResponse
from jetspark.jetstream.group_answers import GroupAnswers, Home, places_of
from jetspark.jetstream.puback import PubAck, decode_puback
from jetspark.jetstream.publish import DEFAULT_RETRY_WAIT
from jetspark.jetstream.publish_many import AckBatch, EncodedColumns
from jetspark.jetstream.publisher_stats import PublisherStats, PublishUnclear
from jetspark.wire._backend import speed
from jetspark.wire.columns import ANSWERS, PackedColumns
from jetspark.wire.commands import MAX_TARGET

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from jetspark.connection.client import Connection
    from jetspark.wire._speed import AckFuture, Group, Launcher
    from jetspark.wire.columns import AnyColumns
elif speed is not None:
    Group = speed.Group
else:

    class Group:
        """There are none without the compiled core."""


# A stream takes in 128 MiB ahead of its disk (max_buffered_size) and refuses the rest; so large messages are
# counted in bytes too. Smaller ones fill the default window long before they fill that.
LARGE = 16_384
MAX_LARGE_BYTES = 32 * 1_048_576
# Of Nats-Expected-Last-Sequence and -Last-Subject-Sequence.
_EXPECTED_SEQUENCE = b"Nats-Expected-Last-S"
#: Acks of messages with replies of their own before the first group, and after something went wrong.
PROBATION, AFTER_TROUBLE = 1_000, 10_000
_AT_A_TIME = 16  # messages that streams are asked for

# A message without an ack so far: who wants its ack; the subject, for errors that name it; its place in a
# batch; data and header block to send again, or where they are (None: never send it again). A plain tuple,
# which the compiled core takes apart too. Of a plain message it notes no more than the future (AckFuture),
# which knows its subject, or the group that it belongs to.
Again = tuple[bytes, "bytes | None"] | EncodedColumns
Flight = tuple["asyncio.Future[PubAck] | AckBatch", str, int, "Again | None"]


def _again(noted: Flight | AckFuture | Group) -> Again | None:
    return noted[3] if isinstance(noted, tuple) else None


def _subject(noted: Flight | AckFuture | Group) -> str:
    if isinstance(noted, tuple):
        return noted[1]
    return noted.subject if isinstance(noted, Group) else noted._subject


def _named_stream(error: JetsparkError, data: bytes) -> str | None:
    if isinstance(error, NoStreamResponse):
        return None
    try:
        return decode_puback(data).stream
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


class AwaitedAcks(Sink):
    """See the module. The publisher is one of these, which sends messages."""

    def __init__(self, client: Connection, *, window: int, ack_timeout: float, retry: bool) -> None:
        self._base = client.new_inbox() + "."
        super().__init__(client, self._base + "*")
        self._base_bytes = self._base.encode()
        self._overhead = len(self._base_bytes) + 40  # bytes of a publish beside its data, about
        self._window = window
        self._ack_timeout = ack_timeout
        self._retry = retry
        self._last_serial = 0  # see _serial
        # Messages from this serial on were published since the link was lost.
        self._unsent_from = 0
        self._pending: dict[int, Flight | AckFuture | Group] = {}  # by serial
        self._odd: dict[int, GroupAnswers] = {}  # of groups that the core has left to us, by serial
        self._lookup: Callable[[Home, int], Awaitable[bytes]] | None = None
        self._lookups: dict[int, asyncio.Task[None]] = {}
        self._asking = asyncio.Semaphore(_AT_A_TIME)
        self._denied: JetsparkError | None = None
        self._caution = AFTER_TROUBLE
        # Large messages by serial. Two sums that only grow: threads publish, the loop settles.
        self._large: dict[int, int] = {}
        self._large_sent = self._large_done = 0
        self._marks: deque[tuple[float, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._space: list[asyncio.Future[None]] = []
        self._connected: list[asyncio.Future[None]] = []
        self._stats = PublisherStats()
        self._failures = 0
        self._first_failure: JetsparkError | None = None
        # The server takes so long a line; the serial has 20 digits at most.
        self._longest_prefix = MAX_TARGET - len(self._base_bytes) - 21
        self._launcher: Launcher | None = None
        if speed is not None:
            self.factory, self.owner = ANSWERS, (self.factory, self.owner)
            self._launcher = speed.Launcher(self._base_bytes, self._pending, client._loop)

    # What the connection calls

    @property
    def uncounted(self) -> int:
        return 0 if self._launcher is None else self._launcher.count

    def deliver_columns(self, columns: AnyColumns) -> None:
        self._tally()
        rows: Iterable[int] = range(len(columns))
        if isinstance(columns, PackedColumns) and not self._large:
            acked, duplicates, rows = columns.rows.settle(
                len(self._base_bytes), self._pending, PubAck, AckBatch, self._launcher
            )
            self._stats.acked += acked
            self._stats.duplicates += duplicates
            if self._launcher is not None and self._launcher.strays:
                self._isolate(AFTER_TROUBLE)
            if not rows:
                self._wake()
                return
        make, owner = self.owner
        subjects, datas, headers = columns.subjects, columns.payloads, columns.headers
        self.deliver(
            [
                make(
                    subjects[row].decode("utf-8", "surrogateescape"), "", datas[row], headers.get(row), owner
                )
                for row in rows
            ],
            columns.nbytes,
        )

    def deliver(self, items: list[Any], nbytes: int) -> None:
        pending, large, cut = self._pending, self._large, len(self._base)
        for message in items:
            try:
                serial = int(message.subject[cut:])
                noted = pending[serial]
            except (ValueError, KeyError):
                # Expired, or a second ack of a message sent again; or nobody of ours asked for it.
                self._stray(message)
                continue
            answer = self._read(message, _subject(noted))
            if isinstance(noted, Group):
                self._group_answered(serial, noted, answer, message.data)
                continue
            if isinstance(answer, JetsparkError):
                # Such as "this msg_id is in process": what we sent before the link broke is still on its way.
                again = isinstance(answer, NoStreamResponse) or (
                    isinstance(answer, ApiError) and answer.retryable
                )
                self._refused(serial, answer, again=again)
                continue
            del pending[serial]
            if large:
                self._large_done += large.pop(serial, 0)
            self._stats.acked += 1
            if answer.duplicate:
                self._stats.duplicates += 1
            target = noted[0] if isinstance(noted, tuple) else noted
            if isinstance(target, AckBatch):
                target.acked_many(answer.stream, 1, answer.duplicate)
            elif not target.done():  # the user may have cancelled it
                target.set_result(answer)
        self._wake()

    @staticmethod
    def _read(message: Any, subject: str) -> PubAck | JetsparkError:
        if message._header is not None and is_no_responders(message):
            return NoStreamResponse(subject)
        try:
            try:
                ack = decode_puback(message.data)
            except msgspec.DecodeError:
                ack = PubAck.from_response(message.data)
            if not ack.seq:
                # An ack has a sequence; what has none may be an error, which names its stream too.
                ack = PubAck.from_response(message.data)
        except (JetsparkError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as failure:
            return failure if isinstance(failure, JetsparkError) else ProtocolError(str(failure))
        return ack

    def link_dropped(self) -> None:
        self._revoke()

    def link_lost(self, error: JetsparkError) -> None:
        self._unsent_from = self._serial + 1
        self._begin_probation()
        lost = ConnectionLost(f"connection lost before the ack came; the message may be stored: {error}")
        for serial, noted in list(self._pending.items()):
            if _again(noted) is None:
                self._fail(serial, lost)
        self._wake()

    def link_restored(self) -> None:
        limit = self.client._max_payload
        for serial, noted in list(self._pending.items()):
            # What was published meanwhile lay in the connection's buffer and has just been sent from there,
            # unless it is too large for the new server: then sending it fails it.
            if isinstance(noted, tuple) and (again := noted[3]) is not None:
                data, block = again if isinstance(again, tuple) else again[noted[2]]
                if serial < self._unsent_from or len(data) + len(block or b"") > limit:
                    self._send_again(serial)
        self._wake_connected()

    def publish_refused(self, subject: str, error: JetsparkError) -> None:
        for serial, noted in list(self._pending.items()):
            if _subject(noted) == subject:
                self._fail(serial, error)
        self._wake()

    # Groups

    def _group_answered(self, serial: int, group: Group, answer: PubAck | JetsparkError, data: bytes) -> None:
        """An answer that the core has left to us; all that follow are left too."""
        assert self._launcher is not None
        answers = self._odd.get(serial)
        if answers is None:
            home = None if group.stream is None else (group.stream, group.domain)
            answers = self._odd[serial] = GroupAnswers(home, group.seqs)
            group.left = True
        if isinstance(answer, PubAck):
            answers.ack((answer.stream, answer.domain), answer.seq)
        else:
            answers.refusals.append((_named_stream(answer, data), answer))
        if not answers.plain:
            self._launcher.isolate(AFTER_TROUBLE)
        doubted = serial <= self._launcher.doubted
        home = answers.confirmed(group.count)
        if home is not None and not doubted:
            self._end_group(serial, group, home, dict(enumerate(answers.acks[home])), [])
        elif answers.refused(group.count):
            self._end_group(serial, group, ("", None), {}, [error for _, error in answers.refusals])
        elif serial not in self._lookups and (home := answers.worth_asking(group.count)) is not None:
            task = self.client._loop.create_task(self._look_up(serial, group, home))
            if not task.done():
                self._lookups[serial] = task

    async def _look_up(self, serial: int, group: Group, home: Home) -> None:
        """Ask the stream which messages of a group it has. What it does not tell, later answers may."""
        assert self._launcher is not None
        answers, datas = self._odd[serial], group.datas
        known: dict[int, bytes | None] = {}
        try:
            if serial <= self._launcher.doubted and len(set(datas)) < len(datas):
                raise JetsparkError("some of them are alike")
            while missing := [seq for seq in answers.acks[home] if seq not in known]:
                for seq in missing:
                    known[seq] = await self._stored(serial, home, seq)
        except Exception as error:
            refusal = next((one for _, one in answers.refusals), None)
            why = error if isinstance(error, JetsparkError) else ProtocolError(str(error))
            self._lookups.pop(serial, None)
            self._fail(serial, PublishUnclear(group.count, sorted(answers.acks[home]), refusal, why))
            self._wake()
            return
        self._lookups.pop(serial, None)
        stored = [(seq, payload) for seq, payload in sorted(known.items()) if payload is not None]
        places, refusals = places_of(datas, stored), answers.refusals_of(home)
        if serial <= self._launcher.doubted:
            refusals = []  # of whom, they do not say
        if len(places) + len(refusals) >= group.count:
            self._end_group(serial, group, home, places, refusals)
            self._wake()

    async def _stored(self, serial: int, home: Home, seq: int) -> bytes | None:
        assert self._launcher is not None
        while True:
            if self._denied is not None:
                raise self._denied
            if self._lookup is None:
                raise JetsparkError("this publisher does not read streams")
            try:
                async with self._asking:
                    return await self._lookup(home, seq)
            except MessageNotFound:
                if serial > self._launcher.doubted:
                    raise  # it is gone
                return None  # or it is the other stream that has it
            except PermissionViolationError as error:
                self._denied = error
                raise
            except (RequestTimeout, NoRespondersError, ConnectionLost):
                pass  # an election; ack_timeout ends it
            except ApiError as error:
                if not error.retryable:
                    raise
            await asyncio.sleep(DEFAULT_RETRY_WAIT)

    def _end_group(
        self, serial: int, group: Group, home: Home, places: dict[int, int], refusals: list[JetsparkError]
    ) -> None:
        """These messages were stored there, at these sequences, the others refused."""
        assert self._launcher is not None
        self._forget_group(serial)
        left = iter(refusals)
        for place, future in enumerate(self._launcher.disband(group)):
            seq = places.get(place)
            if seq is None:
                self._tell_failure(future, next(left))
            else:
                self._stats.acked += 1
                if not future.done():
                    future.set_result(PubAck(stream=home[0], seq=seq, domain=home[1]))

    def _forget_group(self, serial: int) -> None:
        self._pending.pop(serial, None)
        self._odd.pop(serial, None)
        task = self._lookups.pop(serial, None)
        if task is not None:
            task.cancel()

    def _stray(self, message: Any) -> None:
        """An answer that nobody waits for."""
        token = message.subject[len(self._base) :]
        if self._launcher is None or not token.isdecimal() or int(token) > self._launcher.serial:
            return
        answer = self._read(message, "")
        if not isinstance(answer, PubAck):
            self._launcher.stray(int(token), 0)
        elif not answer.duplicate:
            self._launcher.stray(int(token), min(answer.seq, sys.maxsize))
        if self._launcher.strays:
            self._launcher.isolate(AFTER_TROUBLE)

    def _begin_probation(self) -> None:
        self._isolate(PROBATION)

    def _isolate(self, count: int) -> None:
        if self._launcher is not None:
            self._launcher.isolate(count)

    # Messages that get no ack

    @staticmethod
    def _may_resend(msg_id: str | None, block: bytes | None) -> bool:
        """Whether a second copy is harmless."""
        return msg_id is not None and block is not None and _EXPECTED_SEQUENCE not in block

    def _send_again(self, serial: int) -> None:
        noted = self._pending.get(serial)
        if not isinstance(noted, tuple) or self.client._link is None:
            return  # acked meanwhile; or down again, then link_restored comes
        _, subject, index, again = noted
        if again is None:
            return
        data, block = again if isinstance(again, tuple) else again[index]
        try:
            self.client._pub(subject, data, f"{self._base}{serial}", block, own_reply=True)
        except JetsparkError as error:
            # The server connected now takes less than the one before.
            self._fail(serial, error)
            self._wake()
            return
        self._stats.resent += 1

    def _refused(self, serial: int, error: JetsparkError, *, again: bool) -> None:
        if again and _again(self._pending[serial]) is not None:
            self.client._loop.call_later(DEFAULT_RETRY_WAIT, self._send_again, serial)
        else:
            self._fail(serial, error)

    def _fail(self, serial: int, error: JetsparkError) -> None:
        noted = self._pending.pop(serial)
        self._large_done += self._large.pop(serial, 0)
        if isinstance(noted, Group):
            assert self._launcher is not None
            self._forget_group(serial)
            self._isolate(AFTER_TROUBLE)
            for future in self._launcher.disband(noted):
                self._tell_failure(future, error)
            return
        target, _, index, _ = noted if isinstance(noted, tuple) else (noted, "", 0, None)
        self._tell_failure(target, error, index)

    def _tell_failure(
        self, target: asyncio.Future[PubAck] | AckBatch, error: JetsparkError, index: int = 0
    ) -> None:
        self._stats.failed += 1
        self._failures += 1
        if self._first_failure is None:
            self._first_failure = error
        if isinstance(target, AckBatch):
            target.failed(index, error)
        elif not target.done():
            target.set_exception(error)
            # Marks it as seen: flush reports it to those who threw the future away.
            target.exception()

    # Time

    def _tick(self) -> None:
        now = self.client._loop.time()
        self._marks.append((now, self._serial))
        expired = 0
        while self._marks and now - self._marks[0][0] >= self._ack_timeout:
            expired = self._marks.popleft()[1]
        self._resend_overdue(now)
        if expired:
            overdue = self._up_to(expired)
            if any(isinstance(self._pending[serial], Group) for serial in overdue):
                # Where acks of groups get lost time and again, they are of no use.
                self._caution = min(10 * self._caution, sys.maxsize)
                self._isolate(self._caution)
            for serial in overdue:
                self._fail(
                    serial,
                    RequestTimeout(
                        f"no ack within ack_timeout={self._ack_timeout:g}s; the message may be stored"
                    ),
                )
            self._wake()
        self._timer = self.client._loop.call_later(self._ack_timeout / 8, self._tick)

    def _up_to(self, last: int) -> list[int]:
        """Serials without an ack, up to this one."""
        # A copy: threads publish meanwhile.
        return list(itertools.takewhile(lambda serial: serial <= last, list(self._pending)))

    def _resend_overdue(self, now: float) -> None:
        """A leader that died took its acks along, and no connection broke to tell of it."""
        overdue = 0
        for marked, serial in self._marks:
            if now - marked < self._ack_timeout / 4:
                break
            overdue = serial
        for serial in self._up_to(overdue):
            self._send_again(serial)

    # Room

    @property
    def _in_flight(self) -> int:
        """Messages without an ack so far."""
        grouped = 0 if self._launcher is None else self._launcher.grouped
        return len(self._pending) + grouped

    @property
    def _full(self) -> bool:
        return self._in_flight >= self._window or self._large_sent - self._large_done > MAX_LARGE_BYTES

    def _note_large(self, serial: int, size: int) -> None:
        self._large[serial] = size
        self._large_sent += size
        self._revoke()

    def _wake_connected(self) -> None:
        waiters, self._connected = self._connected, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _wake(self) -> None:
        if self._space and not self._full:
            waiters, self._space = self._space, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    # Serials, and what the compiled core sends by itself

    @property
    def _serial(self) -> int:
        """Of the last message."""
        return self._last_serial if self._launcher is None else self._launcher.serial

    def _reserve(self, count: int) -> int:
        """Serials for so many messages: the first of them."""
        if self._launcher is not None:
            return self._launcher.reserve(count)
        # Threads do this too. In one statement without a call, none gets in between.
        self._last_serial = last = self._last_serial + count
        return last - count + 1

    def _tally(self) -> None:
        """Count what the compiled core has sent by itself."""
        if self._launcher is not None:
            count, size = self._launcher.tally()
            if count:
                client = self.client
                self._stats.published += count
                client._stats.out_msgs += count
                if client._out:  # else it is written already
                    client._out_size += size

    def _revoke(self) -> None:
        """Have the next message come to ``publish``."""
        if self._launcher is not None:
            self._tally()
            self._launcher.revoke()
