"""Many messages at once through a pipelined publisher: one object for all their acks.

For callers that have their messages in lists, such as the Spark sink: encoding is one loop, and an ack costs
a counter instead of a future.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from jetspark.connection.outbox import FLUSH_AT
from jetspark.connection.waiters import Waiters
from jetspark.errors import InvalidArgument, MaxPayloadExceeded
from jetspark.jetstream.flow.publish import may_repeat
from jetspark.jetstream.publish.publish import Expect, publish_headers
from jetspark.wire._backend import speed
from jetspark.wire.commands import MAX_TARGET, encode_pub
from jetspark.wire.headers import HeaderBlock, encode_column, encode_headers
from jetspark.wire.subjects import validate_subject

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from jetspark.connection.outbox import HeadersLike, Outbox
    from jetspark.errors import JetsparkError


class Publishing(NamedTuple):
    """One message for ``publish_many``; the options are those of ``js.publish``."""

    subject: str
    data: bytes = b""
    headers: HeadersLike | None = None
    msg_id: str | None = None
    expect: Expect | None = None
    ttl: float | str | None = None


class Columns(NamedTuple):
    """Messages in columns, with or without an id and with no other headers of their own: they are encoded
    together.

    Subjects and ids must already be checked: valid, and ids without surrounding spaces.
    """

    subjects: list[str]
    datas: list[bytes]
    ids: list[bytes] | None
    expect: Expect | None = None


class AckBatch:
    """The acks of one ``publish_many``. ``await`` it for the end, or check ``done``.

    ``failures`` has the error of each message that was not stored, by its index in the list; ``streams`` has
    the names of the streams that stored the others.
    """

    __slots__ = ("_last_stream", "_left", "_waiters", "count", "duplicates", "failures", "streams")

    def __init__(self, count: int) -> None:
        self.count = count
        self.duplicates = 0
        self.failures: dict[int, JetsparkError] = {}
        self.streams: set[str] = set()
        self._last_stream = ""
        self._left = count
        self._waiters = Waiters()

    @property
    def done(self) -> bool:
        """Whether every message has its ack or has failed."""
        return self._left == 0

    def __await__(self) -> Generator[Any, None, AckBatch]:
        return self._wait().__await__()

    async def _wait(self) -> AckBatch:
        while self._left:
            await self._waiters.wait()
        return self

    def __repr__(self) -> str:
        return f"AckBatch({self.count} messages, {self._left} open, {len(self.failures)} failed)"

    # What the publisher calls, in the order of acks

    def acked_many(self, stream: str, count: int, duplicates: int) -> None:
        """This many more are stored, or were already."""
        if stream != self._last_stream:
            self._last_stream = stream
            self.streams.add(stream)
        self.duplicates += duplicates
        self._left -= count
        if not self._left:
            self._waiters.wake()

    def failed(self, index: int, error: JetsparkError) -> None:
        """The message at ``index`` was not stored, or it is unknown whether it was."""
        self.failures[index] = error
        self._left -= 1
        if not self._left:
            self._waiters.wake()


class Encoded(NamedTuple):
    """A message that passed every check, complete except for its reply subject."""

    subject: str
    data: bytes
    block: HeaderBlock | None
    prefix: bytes
    again: bool


def as_publishing(message: object) -> Publishing:
    """A message of ``publish_many``: a pair, or all of it."""
    if isinstance(message, Publishing):
        return message
    if isinstance(message, tuple) and len(message) == 2:
        return Publishing(*message)
    raise InvalidArgument(
        "messages", message, "must consist of (subject, data) or Publishing(subject, data, ...)"
    )


def encode(outbox: Outbox, messages: Iterable[Publishing | tuple[str, bytes]], longest: int) -> list[Encoded]:
    """Check and encode all messages, so that a bad one is found before the first is sent.

    ``longest``: the maximum size of the command with its subject that leaves room for a reply subject.
    """
    found: list[Encoded] = []
    add = found.append
    limit = outbox.max_payload
    prefix_of = outbox.prefixes.get
    if not isinstance(messages, Iterable):
        raise InvalidArgument("messages", messages, "must be an iterable of Publishing or of pairs")
    for message in messages:
        subject, data, headers, msg_id, expect, ttl = as_publishing(message)
        if type(data) is not bytes:
            raise InvalidArgument(
                "data", type(data).__name__, "must be bytes in publish_many; encode it first"
            )
        typed = publish_headers(headers, msg_id=msg_id, expect=expect, ttl=ttl)
        block = None if typed is None else encode_headers(typed)
        if block is not None:
            outbox.check_headers()
        if not isinstance(subject, str):
            validate_subject(subject)
        prefix = prefix_of(subject) or outbox.remember_prefix(subject)
        if len(prefix) > longest:
            raise too_long(subject)
        size = len(data) if block is None else len(data) + len(block)
        if size > limit:
            raise MaxPayloadExceeded(size, limit)
        add(Encoded(subject, data, block, prefix, may_repeat(msg_id, block)))
    return found


def too_long(subject: str) -> InvalidArgument:
    """The error for a subject that leaves no room for a reply subject."""
    return InvalidArgument(
        "subject", subject, f"with its reply subject exceeds {MAX_TARGET} bytes; shorten it"
    )


class EncodedColumns:
    """Columns that passed the checks, complete except for the serials in their reply subjects."""

    def __init__(self, outbox: Outbox, columns: Columns, base: bytes, longest: int) -> None:
        self.subjects, self.datas, ids, expect = columns
        conditions = [] if expect is None else expect.pairs()
        self.blocks: list[HeaderBlock] | None = None
        if ids is not None:
            self.blocks = encode_column("Nats-Msg-Id", ids, conditions)
        elif conditions:
            self.blocks = [encode_headers(conditions)] * len(self.datas)
        if self.blocks is not None:
            outbox.check_headers()
        self.largest = max(map(len, self.datas))
        size = self.largest + max(map(len, self.blocks or ()), default=0)
        if size > outbox.max_payload:  # perhaps the sum of two different rows, so check each
            size = max(map(self._size, range(len(self.datas))))
            if size > outbox.max_payload:
                raise MaxPayloadExceeded(size, outbox.max_payload)
        #: Number of messages whose commands amount to about one write.
        self.step = 1 + 4 * FLUSH_AT // (sum(map(len, self.datas)) // len(self.datas) + 200)
        self._base = base
        prefixes = {
            subject: outbox.prefixes.get(subject) or outbox.remember_prefix(subject)
            for subject in set(self.subjects)
        }
        for subject, prefix in prefixes.items():
            if len(prefix) > longest:
                raise too_long(subject)
        if len(prefixes) == 1:
            self._prefixes = list(prefixes.values()) * len(self.subjects)
        else:
            self._prefixes = [prefixes[subject] for subject in self.subjects]

    def __getitem__(self, index: int) -> tuple[bytes, HeaderBlock | None]:
        """The data and header block for sending one of them again."""
        return self.datas[index], None if self.blocks is None else self.blocks[index]

    def _size(self, index: int) -> int:
        data, block = self[index]
        return len(data) + len(block or b"")

    def commands(self, start: int, stop: int, serial: int) -> bytes:
        """The commands of some of them; ``serial`` is the serial of the first."""
        return _frames(self._prefixes, self._base, serial, self.blocks, self.datas, start, stop)


def plain_frames(
    prefixes: list[bytes],
    base: bytes,
    serial: int,
    blocks: Sequence[bytes] | None,
    datas: list[bytes],
    start: int,
    stop: int,
) -> bytes:
    """Complete publishes of the rows from start to stop; serial is the serial of the first. The counterpart
    of the compiled core's ``frames``."""
    return b"".join(
        [
            encode_pub(
                prefixes[row], base, serial + row - start, datas[row], None if blocks is None else blocks[row]
            )
            for row in range(start, stop)
        ]
    )


_frames: Callable[..., bytes] = plain_frames if speed is None else speed.frames
