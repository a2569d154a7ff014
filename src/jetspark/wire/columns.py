"""Messages as columns: the parser's road for those who want Arrow instead of objects.

A subscription whose route has the factory :data:`COLUMNAR` gets its user messages as three parallel lists
of bytes, slices of the received chunk and nothing else: no object, no decoding, no header parsing. The
inner loop leaves as soon as a line is anything but the next complete message of the same subscription, and
the parser's general loop takes over from there; so statuses, errors and limits have one home. It raises
nothing: an error would cost the rows in front of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from jetspark.wire.headers import VERSION_LINE

if TYPE_CHECKING:
    from collections.abc import Callable


class Columns(msgspec.Struct):
    """A run of messages with a reply, as columns. ``headers`` has the blocks of those rows that have one."""

    sid: str
    subjects: list[bytes]
    replies: list[bytes]
    payloads: list[bytes]
    headers: dict[int, bytes]
    nbytes: int = 0

    def __len__(self) -> int:
        return len(self.payloads)


def COLUMNAR(subject: str, reply: str, data: bytes, header: bytes | None, owner: Any) -> Any:
    """Marks a route as columnar; its owner is the (factory, owner) for statuses. Never called."""
    raise AssertionError("a columnar route makes no objects")


# Sizes remembered for the inner loop; distinct ones are few.
MAX_SIZES = 8192


def read_columns(
    buf: bytes,
    pos: int,
    columns: Columns,
    sizes: dict[bytes, int],
    size_of: Callable[[bytes], int],
    max_line: int,
) -> int:
    """Append complete messages of ``columns.sid`` from ``pos`` on; where it stopped.

    A message without a reply stops it: on a consumer's inbox that is a status. ``size_of`` reads digits
    that ``sizes`` does not have and is negative for a size that must be refused.
    """
    sid = columns.sid.encode()
    add_subject, add_reply, add_payload = (
        columns.subjects.append,
        columns.replies.append,
        columns.payloads.append,
    )
    find, total, begin = buf.find, len(buf), pos
    get_size = sizes.get
    while pos < total:
        eol = find(b"\n", pos)
        if eol < 0 or eol - pos > max_line + 1:
            break
        # The CR stays on the last argument: a size that is known with its CR needs no other check of it.
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
        else:
            break
        add_subject(subject)
        add_reply(reply)
        add_payload(buf[start:end])
        pos = pos_after
    columns.nbytes += pos - begin
    return pos
