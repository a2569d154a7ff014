"""Messages as columns: the parser's path for readers that want Arrow instead of objects.

A subscription whose route has the factory :data:`COLUMNAR` gets its user messages as columns: no object, no
decoding, no header parsing. The inner loop stops as soon as a line is anything but the next complete message
of the same subscription, and the parser's general loop takes over from there. So statuses, errors and limits
are handled in one place. The inner loop raises nothing: an error would cost the rows before it.

The loop in Python makes :class:`Columns`, three parallel lists of slices of the received chunk. The compiled
one makes :class:`PackedColumns`, which records where everything lies in the chunks and copies it once, into
the buffers of Arrow arrays. Both can be read in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from jetspark.wire.headers import VERSION_LINE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jetspark.wire._speed import Rows


class Columns(msgspec.Struct):
    """A run of messages with a reply, as columns. ``headers``: the blocks of those rows that have headers."""

    sid: str
    subjects: list[bytes]
    replies: list[bytes]
    payloads: list[bytes]
    headers: dict[int, bytes]
    nbytes: int = 0
    size: int = 0
    """Bytes as the server counts them (ADR-37 'Message Size Calculation')."""

    def __len__(self) -> int:
        return len(self.payloads)

    def measure(self) -> int:
        """Compute ``size`` again."""
        return (
            sum(map(len, self.subjects))
            + sum(map(len, self.replies))
            + sum(map(len, self.payloads))
            + sum(map(len, self.headers.values()))
        )

    def reply(self, row: int) -> bytes:
        """The reply of one row; negative counts from the end."""
        return self.replies[row]

    def truncate(self, count: int) -> None:
        """Keep the first rows only."""
        del self.subjects[count:], self.replies[count:], self.payloads[count:]
        self.headers = {row: block for row, block in self.headers.items() if row < count}
        self.size = self.measure()

    def select(self, rows: Sequence[int]) -> Columns:
        """The given rows, in this order."""
        headers = {place: self.headers[row] for place, row in enumerate(rows) if row in self.headers}
        selected = Columns(
            self.sid,
            [self.subjects[row] for row in rows],
            [self.replies[row] for row in rows],
            [self.payloads[row] for row in rows],
            headers,
            self.nbytes * len(rows) // len(self),
        )
        selected.size = selected.measure()
        return selected


class PackedColumns(msgspec.Struct):
    """The same, made by the compiled loop. Lists are built on demand, which is rare."""

    sid: str
    rows: Rows
    headers: dict[int, bytes]
    nbytes: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def subjects(self) -> list[bytes]:
        return self.rows.cells(0)

    @property
    def replies(self) -> list[bytes]:
        return self.rows.cells(1)

    @property
    def payloads(self) -> list[bytes]:
        return self.rows.cells(2)

    @property
    def size(self) -> int:
        return self.rows.size()

    def reply(self, row: int) -> bytes:
        return self.rows.reply(row)

    def truncate(self, count: int) -> None:
        self.rows.truncate(count)
        self.headers = {row: block for row, block in self.headers.items() if row < count}

    def select(self, rows: Sequence[int]) -> Columns:
        return self.unpack().select(rows)

    def unpack(self) -> Columns:
        """The same columns as lists."""
        return Columns(
            self.sid, self.subjects, self.replies, self.payloads, self.headers, self.nbytes, self.size
        )


AnyColumns = Columns | PackedColumns


def join_columns(parts: Sequence[AnyColumns]) -> AnyColumns:
    """One set of columns from all parts; the parts must not be used afterwards."""
    if len(parts) == 1:
        return parts[0]
    joined: AnyColumns
    if all(type(part) is PackedColumns for part in parts):
        first, *others = parts
        assert isinstance(first, PackedColumns)
        rows, headers, nbytes = first.rows, first.headers, first.nbytes
        for part in others:
            assert isinstance(part, PackedColumns)
            _shift(part.headers, len(rows), headers)
            rows.extend(part.rows)
            nbytes += part.nbytes
        return PackedColumns(first.sid, rows, headers, nbytes)
    joined = Columns(parts[0].sid, [], [], [], {})
    for part in parts:
        _shift(part.headers, len(joined), joined.headers)
        joined.subjects += part.subjects
        joined.replies += part.replies
        joined.payloads += part.payloads
        joined.nbytes += part.nbytes
        joined.size += part.size
    return joined


def _shift(headers: dict[int, bytes], offset: int, target: dict[int, bytes]) -> None:
    for row, block in headers.items():
        target[offset + row] = block


def COLUMNAR(subject: str, reply: str, data: bytes, header: bytes | None, owner: Any) -> Any:
    """Marks a route as columnar; its owner is the (factory, owner) for statuses. Never called."""
    raise AssertionError("a columnar route makes no objects")


def ANSWERS(subject: str, reply: str, data: bytes, header: bytes | None, owner: Any) -> Any:
    """Marks a route whose messages have no replies of their own. They become :class:`PackedColumns` with the
    compiled core, otherwise objects made by the route's owner, a (factory, owner). Never called."""
    raise AssertionError("a route of answers makes no objects")


# How many sizes the inner loop remembers; distinct ones are few.
MAX_SIZES = 8192


def read_columns(
    buf: bytes,
    pos: int,
    columns: Columns,
    sizes: dict[bytes, int],
    size_of: Callable[[bytes], int],
    max_line: int,
) -> int:
    """Append complete messages of ``columns.sid`` from ``pos`` on; returns where it stopped.

    A message without a reply stops it: on a consumer's inbox that is a status. ``size_of`` reads digits
    that are not in ``sizes``; it is negative for a size that must be refused.
    """
    sid = columns.sid.encode()
    add_subject, add_reply, add_payload = (
        columns.subjects.append,
        columns.replies.append,
        columns.payloads.append,
    )
    find, total, begin = buf.find, len(buf), pos
    get_size = sizes.get
    # The bytes of a message that the server does not count: the word MSG, sid, size, blanks and line ends.
    framing, uncounted = len(sid) + 10, 0
    while pos < total:
        eol = find(b"\n", pos)
        if eol < 0 or eol - pos > max_line + 1:
            break
        # The CR stays on the last argument: a size that is known including its CR needs no further check.
        args = buf[pos:eol].split(b" ")
        if len(args) == 5:
            op, subject, to, reply, digits = args
            if op != b"MSG" or to != sid or not reply:
                break
            size = get_size(digits)
            if size is None:
                size = size_of(digits[:-1]) if digits[-1:] == b"\r" else -1
                if size < 0:
                    break
                if len(sizes) < MAX_SIZES:
                    sizes[digits] = size
            start = eol + 1
            end = start + size
            pos_after = end + 2
            if pos_after > total or buf[end:pos_after] != b"\r\n":
                break
            uncounted += framing + len(digits)
        elif len(args) == 6:
            op, subject, to, reply, header_digits, digits = args
            if op != b"HMSG" or to != sid or not reply or digits[-1:] != b"\r":
                break
            size = size_of(digits[:-1])
            header_size = size_of(header_digits)
            end = eol + 1 + size
            pos_after = end + 2
            if not 0 <= header_size <= size or pos_after > total or buf[end:pos_after] != b"\r\n":
                break
            start = eol + 1 + header_size
            if header_size:
                header = buf[eol + 1 : start]
                if not header.startswith(VERSION_LINE):
                    break
                columns.headers[len(columns.payloads)] = header
            uncounted += framing + len(digits) + len(header_digits) + 2
        else:
            break
        add_subject(subject)
        add_reply(reply)
        add_payload(buf[start:end])
        pos = pos_after
    columns.nbytes += pos - begin
    columns.size += pos - begin - uncounted
    return pos
