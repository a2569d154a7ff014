"""Bytes from a server -> events. Sans-IO: no socket, no clock, no task.

Theory of operation
-------------------
``feed(chunk)`` parses everything in the chunk in one loop and returns the events in wire order. Messages
are most of the traffic, so they do not cost an event each: consecutive messages of one subscription form
a *run*, one :class:`Messages` event with a list of them. The receiver does its bookkeeping once per run
instead of once per message; this makes the client fast.

The message objects are made right here, by the class that the subscription registered in ``routes``
(sid -> (class, owner)), so they need not be wrapped or copied again. A route marked
:data:`~jetspark.wire.columns.COLUMNAR` gets columns instead of objects, and with the compiled core so does a
route marked :data:`~jetspark.wire.columns.ANSWERS`. Messages of an unknown sid (those
still in flight after UNSUB) are parsed and dropped.

If the compiled core is available (:mod:`jetspark.wire._backend`), it reads the rest of a run: the loop below
finds the start of a run and handles everything that is not the next message of it.

Incomplete data at the end of a chunk is kept as a list of chunks and joined once when the rest has arrived,
with just the bytes that it lacks. So a large payload that arrives in many pieces is copied once, the data
after it in its last chunk is not copied at all, and a control line that arrives byte by byte is searched for
its end in the new bytes only.

Limits: control line, INFO, declared sizes and header block are bounded. Anything outside the protocol is a
:class:`ProtocolError`; after it the parser has lost its place in the stream and accepts no more data. Events
before the bad bytes are never lost: ``feed`` returns them, keeps the error in ``error`` and raises it on the
next call. So the outcome does not depend on how the bytes were split.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jetspark.errors import InvalidArgument, ProtocolError
from jetspark.wire._backend import speed
from jetspark.wire.columns import ANSWERS, COLUMNAR, Columns, PackedColumns, read_columns
from jetspark.wire.headers import VERSION_LINE
from jetspark.wire.info import ServerInfo, decode_info

if TYPE_CHECKING:
    from jetspark.wire._speed import Rows

# Lines from the server carry the subject and reply of a publisher's line (at most 4096 bytes) plus, for
# JetStream, an ack reply; 64 KiB leaves room for servers that are configured for longer control lines.
MAX_LINE: Final = 65_536
# A cluster of thousands of nodes announces itself in INFO; a whole megabyte of it is not a real cluster.
MAX_INFO: Final = 1_048_576
# A server's max_payload is at most 64 MiB unless its max_pending was raised too.
MAX_MESSAGE: Final = 128 * 1_048_576

# The highest possible limit: the compiled core and Arrow count the bytes of a message in 31 bits.
MOST_MESSAGE: Final = 1 << 30

# Distinct sizes are few; looking up the digits in a dict is faster than int() and needs no further check.
_SIZE_CACHE: Final = 8192

# Shorter pieces of incomplete data are copied together; larger ones stay where they are until all are joined.
_SMALL: Final = 1024
_LARGE: Final = 4096

Factory = Callable[[str, str, bytes, "bytes | None", Any], Any]
"""Makes a message from (subject, reply, data, header block or None, owner)."""


class Messages(msgspec.Struct, gc=False):
    """A run of consecutive messages of one subscription; ``nbytes`` is their size on the wire."""

    sid: str
    items: list[Any]
    nbytes: int


class Info(msgspec.Struct, gc=False):
    """INFO, at the start and whenever the server has news."""

    info: ServerInfo


class Ping(msgspec.Struct, gc=False):
    """PING: answer with PONG."""


class Pong(msgspec.Struct, gc=False):
    """PONG: the answer to our oldest unanswered PING."""


class Ok(msgspec.Struct, gc=False):
    """+OK, in verbose mode only."""


class Err(msgspec.Struct, gc=False):
    """-ERR with its text, quotes removed."""

    message: str


Event = Messages | Columns | PackedColumns | Info | Ping | Pong | Ok | Err

_PING, _PONG, _OK = Ping(), Pong(), Ok()


def _drop(subject: str, reply: str, data: bytes, header: bytes | None, owner: Any) -> None:
    return None


_NO_ROUTE: tuple[Factory, Any] = (_drop, None)


class Parser:
    """An incremental parser of the server's side of the protocol.

    ``compiled=False`` uses pure Python even if the compiled core is available.
    """

    __slots__ = (
        "_byte_sizes",
        "_chunks",
        "_columnar",
        "_compiled",
        "_held",
        "_line_sizes",
        "_max_message",
        "_need",
        "_sizes",
        "error",
        "routes",
    )

    def __init__(self, *, max_message: int = MAX_MESSAGE, compiled: bool = True) -> None:
        if not 0 < max_message <= MOST_MESSAGE:
            raise InvalidArgument("max_message", max_message, f"must be from 1 to {MOST_MESSAGE} bytes")
        self._compiled = speed if compiled else None
        self.routes: dict[str, tuple[Factory, Any]] = {}
        self._sizes: dict[str, int] = {}
        self._byte_sizes: dict[bytes, int] = {}
        # The same with the CR after the digits, for the columnar loop.
        self._line_sizes: dict[bytes, int] = {}
        self._max_message = max_message
        # Incomplete data: chunks in order, their total length, and how many bytes make it worth another look
        # (0: the end of a line is missing, so only a line break does).
        self._chunks: list[bytes | bytearray | memoryview] = []
        self._held = 0
        self._need = 0
        # The last subscription whose messages were read as columns; more of them are likely to arrive.
        self._columnar = ""
        self.error: ProtocolError | None = None

    @property
    def held(self) -> int:
        """Bytes kept from an incomplete line or message."""
        return self._held

    def feed(self, data: bytes) -> list[Event]:
        """Parse a chunk; returns events in wire order. Raises ProtocolError as described above."""
        if self.error is not None:
            raise self.error
        events: list[Event] = []
        try:
            used = self._resume(data, events) if self._columnar else 0
            if self._held and not used:
                used = self._complete(data, events)
            if used < len(data) and not self._held and self.error is None:
                self._parse(data, used, 0, events)
        except ProtocolError as error:
            self.error = error
        if self.error is not None:
            self._let_go()
            if not events:
                raise self.error
        return events

    def _resume(self, data: bytes, events: list[Event]) -> int:
        """Continue the columns of the last chunk in one call of the compiled core; returns how much of
        ``data`` it used. 0: something else came, or too little; the general loop will find out.
        """
        sid, compiled = self._columnar, self._compiled
        assert compiled is not None
        make, _ = self.routes.get(sid, _NO_ROUTE)
        if make is not COLUMNAR and make is not ANSWERS:
            self._columnar = ""
            return 0
        headers: dict[int, bytes] = {}
        rows: Rows = compiled.Rows()
        used = rows.resume(
            self._chunks,
            self._need,
            data,
            sid.encode(),
            headers,
            MAX_LINE,
            self._max_message,
            make is COLUMNAR,
        )
        if not used:
            # Until columns come again: what is held may be a large message of another subscription.
            self._columnar = ""
            return 0
        events.append(PackedColumns(sid, rows, headers, self._held + used))
        if self._held:
            self._let_go()
        if rows.need:
            self._hold(data, used, rows.need)
        return used

    def _complete(self, data: bytes, events: list[Event]) -> int:
        """Add the missing bytes to what is held, and no more: the rest of a chunk stays where it is.

        Returns how many bytes of ``data`` were used; all of them if it is still incomplete.
        """
        used, total = 0, len(data)
        while self._held and used < total:
            scan = 0
            if self._need:
                wanted = self._need - self._held
            else:
                scan = self._held
                wanted = (data.find(b"\n", used) + 1 or total + 1) - used
            if wanted > total - used:
                self._keep(data[used:] if used else data)
                if not self._need:
                    self._check_held_line()
                return total
            piece = memoryview(data) if wanted >= _LARGE else data
            self._chunks.append(piece[used : used + wanted])
            used += wanted
            joined = b"".join(self._chunks)
            self._let_go()
            self._parse(joined, 0, scan, events)
        return used

    def _keep(self, data: bytes) -> None:
        """Hold one more piece. Small ones are merged: each on its own costs many times its size."""
        last = self._chunks[-1]
        if len(data) >= _SMALL:
            self._chunks.append(data)
        elif isinstance(last, bytearray):
            last += data
        else:
            self._chunks.append(bytearray(data))
        self._held += len(data)

    def _let_go(self) -> None:
        self._chunks.clear()
        self._held = self._need = 0

    def _parse(self, buf: bytes, pos: int, scan: int, events: list[Event]) -> None:
        routes, sizes, compiled = self.routes, self._sizes, self._compiled
        find, total = buf.find, len(buf)
        # The current run: its sid, where it began, its messages and how to make them.
        # None, not "": a line with two blanks in a row has an empty sid, which must not join a run.
        run_sid: str | None = None
        run_pos = 0
        run: list[Any] = []
        append = run.append
        make: Factory = _drop
        owner: Any = None
        try:
            while pos < total:
                eol = find(b"\n", scan or pos)
                scan = 0
                if eol < 0:
                    self._hold(buf, pos, 0)
                    self._check_held_line()
                    break
                if buf[eol - 1] != 13:
                    raise ProtocolError("control line ends with LF instead of CRLF")
                if eol - pos > MAX_LINE + 1 and not buf.startswith(b"INFO ", pos):
                    raise ProtocolError(f"control line longer than {MAX_LINE} bytes")
                args = buf[pos : eol - 1].decode("utf-8", "surrogateescape").split(" ")
                op = args[0]
                start = eol + 1
                if op == "MSG":
                    hdr_digits = ""
                    if len(args) == 5:
                        _, subject, sid, reply, digits = args
                    elif len(args) == 4:
                        _, subject, sid, digits = args
                        reply = ""
                    else:
                        raise _bad_line(buf, pos, eol)
                elif op == "HMSG":
                    if len(args) == 6:
                        _, subject, sid, reply, hdr_digits, digits = args
                    elif len(args) == 5:
                        _, subject, sid, hdr_digits, digits = args
                        reply = ""
                    else:
                        raise _bad_line(buf, pos, eol)
                else:
                    if run_sid is not None:
                        if make is not _drop:
                            events.append(Messages(run_sid, run, pos - run_pos))
                        run = []
                        append = run.append
                        run_sid = None
                    events.append(_control(op, buf, pos, eol))
                    pos = start
                    continue
                size = sizes.get(digits)
                if size is None:
                    size = self._size(digits)
                end = start + size
                if hdr_digits or op == "HMSG":
                    hdr_size = sizes.get(hdr_digits)
                    if hdr_size is None:
                        hdr_size = self._size(hdr_digits)
                    if hdr_size > size:
                        raise ProtocolError(f"header of {hdr_size} bytes in a message of {size}")
                    body = start + hdr_size
                else:
                    body = start
                if end + 2 > total:
                    self._hold(buf, pos, end + 2 - pos)
                    break
                if buf[end : end + 2] != b"\r\n":
                    raise ProtocolError(f"payload of {size} bytes is not followed by CRLF")
                if body == start:
                    header = None
                else:
                    header = buf[start:body]
                    if not header.startswith(VERSION_LINE):
                        raise ProtocolError(f"header block starts with {header[:32]!r}, not with NATS/1.0")
                if sid != run_sid:
                    if not sid:
                        raise _bad_line(buf, pos, eol)
                    if run_sid is not None:
                        if make is not _drop:
                            events.append(Messages(run_sid, run, pos - run_pos))
                        run = []
                        append = run.append
                    run_sid, run_pos = sid, pos
                    make, owner = routes.get(sid, _NO_ROUTE)
                    if make is ANSWERS and compiled is None:
                        make, owner = owner
                    if make is COLUMNAR or make is ANSWERS:
                        if compiled is not None:
                            self._columnar = sid
                        after = self._read_columns(buf, pos, sid, events, need_reply=make is COLUMNAR)
                        run_sid = None
                        if after > pos:
                            pos = after
                        else:
                            # No reply, so it is a status: an object, made by the factory behind the marker.
                            make, owner = owner
                            item = make(subject, reply, buf[body:end], header, owner)
                            events.append(Messages(sid, [item], end + 2 - pos))
                            pos = end + 2
                        make = _drop
                        if self._held:
                            break
                        continue
                    if compiled is not None and (make is not _drop or sid.isascii()):
                        made = None if make is _drop else make
                        pos = compiled.read_run(
                            buf, pos, sid.encode(), made, owner, run, MAX_LINE, self._max_message
                        )
                        continue
                append(make(subject, reply, buf[body:end], header, owner))
                pos = end + 2
        finally:
            if run_sid is not None and make is not _drop:
                events.append(Messages(run_sid, run, pos - run_pos))

    def _read_columns(self, buf: bytes, pos: int, sid: str, events: list[Event], *, need_reply: bool) -> int:
        """Add columns from ``pos`` on to the events; returns where they end: ``pos`` if there is no row.

        A message after them that is known to be incomplete is held.
        """
        if self._compiled is None:
            columns = Columns(sid, [], [], [], {})
            after = read_columns(buf, pos, columns, self._line_sizes, self._byte_size, MAX_LINE)
            if after > pos:
                events.append(columns)
            return after
        last = events[-1] if events else None
        # The message that a chunk completed and those that follow it in the chunk are one run.
        if not (isinstance(last, PackedColumns) and last.sid == sid):
            last = PackedColumns(sid, self._compiled.Rows(), {})
        rows = last.rows
        end = rows.read(buf, pos, sid.encode(), last.headers, MAX_LINE, self._max_message, need_reply)
        if end > pos:
            if not last.nbytes:
                events.append(last)
            last.nbytes += end - pos
        if rows.need:
            self._hold(buf, end, rows.need)
        return end

    def _size(self, digits: str) -> int:
        # isascii: int() would accept digits of any script, signs and underscores.
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 10:
            raise ProtocolError(f"size {digits[:32]!r} is not a decimal number of at most 10 digits")
        size = int(digits)
        if size > self._max_message:
            raise ProtocolError(f"declared size {size} exceeds the limit of {self._max_message} bytes")
        if len(self._sizes) < _SIZE_CACHE:
            self._sizes[digits] = size
        return size

    def _byte_size(self, digits: bytes) -> int:
        """The size, or -1: refusing it is left to the general loop, which keeps the messages before it."""
        size = self._byte_sizes.get(digits)
        if size is None:
            try:
                size = self._size(digits.decode("utf-8", "surrogateescape"))
            except ProtocolError:
                return -1
            if len(self._byte_sizes) < _SIZE_CACHE:
                self._byte_sizes[digits] = size
        return size

    def _hold(self, buf: bytes, pos: int, need: int) -> None:
        size = len(buf) - pos
        # Only lines are searched. A view keeps the whole chunk alive, so it must be worth it.
        large = need and size >= _LARGE and size * 32 >= len(buf)
        rest = memoryview(buf)[pos:] if large else buf[pos:] if pos else buf
        self._chunks.append(rest)
        self._held = len(rest)
        self._need = need

    def _check_held_line(self) -> None:
        # INFO is the only line that may be long, and a prefix of its name may still become INFO.
        start = self._chunks[0][:5]
        if len(start) < 5:
            start = b"".join(self._chunks[:5])[:5]
        limit = MAX_INFO if b"INFO ".startswith(start) else MAX_LINE
        if self._held > limit + 1:
            self.error = ProtocolError(f"control line longer than {limit} bytes")


def _control(op: str, buf: bytes, pos: int, eol: int) -> Event:
    if eol == pos:
        # The caller looked for the CR before the buffer, and that index is its last byte.
        raise ProtocolError("control line ends with LF instead of CRLF")
    line = buf[pos : eol - 1]
    # Some letters outside ASCII have an upper case in ASCII.
    verb = op.upper() if op.isascii() else op
    if verb == "PING":
        return _PING
    if verb == "PONG":
        return _PONG
    if verb == "+OK":
        return _OK
    if verb == "INFO":
        if len(line) > MAX_INFO:
            raise ProtocolError(f"INFO longer than {MAX_INFO} bytes")
        try:
            return Info(decode_info(line[5:]))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"INFO that can't be read: {error}") from error
    if verb == "-ERR":
        text = line[4:].decode("utf-8", "replace").strip()
        return Err(text[1:-1] if len(text) > 1 and text[0] == text[-1] == "'" else text)
    raise _bad_line(buf, pos, eol)


def _bad_line(buf: bytes, pos: int, eol: int) -> ProtocolError:
    # The start is enough to recognise it; what follows may be user data.
    return ProtocolError(f"unknown or malformed line {buf[pos : min(eol - 1, pos + 48)]!r}")
