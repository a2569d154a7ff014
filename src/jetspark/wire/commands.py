"""Client commands as bytes. Anything that could smuggle in a second command is refused first."""

from __future__ import annotations

from typing import Any

import msgspec

from jetspark.errors import InvalidArgument
from jetspark.wire.subjects import validate_filter, validate_queue, validate_subject

# The server's default max_control_line; it closes the connection when a line is longer.
MAX_CONTROL_LINE = 4096
# What this leaves for verb, subject and reply beside two sizes of at most 10 digits and CRLF.
MAX_TARGET = MAX_CONTROL_LINE - 26

PING = b"PING\r\n"
PONG = b"PONG\r\n"

SIZE_LINES: dict[int, bytes] = {}
"""The digits of a size with CRLF, formatted once for each size in use."""

_encode_json = msgspec.json.Encoder().encode


def encode_connect(options: dict[str, Any]) -> bytes:
    """CONNECT with its JSON options."""
    return b"CONNECT " + _encode_json(options) + b"\r\n"


def pub_prefix(subject: str, *, literal: bool = True) -> bytes:
    """``PUB <subject> `` without reply and size: checked once, then reused for each message.

    With an ``H`` in front it is the start of HPUB. ``literal=False`` lets wildcard tokens pass.
    """
    if literal:
        validate_subject(subject)
    else:
        validate_filter(subject)
    # encode, not an f-string: an f-string writes the member of a string enum as its name.
    prefix = b"PUB %b " % subject.encode()
    if len(prefix) > MAX_TARGET:
        raise InvalidArgument(
            "subject", subject, f"makes a line longer than {MAX_CONTROL_LINE} bytes; shorten it"
        )
    return prefix


def body_line(body: bytes) -> bytes:
    """The rest of a PUB after its subjects: size and body."""
    return b" %d\r\n%b\r\n" % (len(body), body)


def encode_pub(prefix: bytes, base: bytes, serial: int, data: bytes, block: bytes | None) -> bytes:
    """A whole PUB or HPUB with the reply subject ``base`` plus ``serial``."""
    if block is None:
        return b"%b%b%d %d\r\n%b\r\n" % (prefix, base, serial, len(data), data)
    size = len(block)
    return b"H%b%b%d %d %d\r\n%b%b\r\n" % (prefix, base, serial, size, size + len(data), block, data)


def split_oversized(publishes: bytes, limit: int) -> tuple[bytes, list[tuple[str, int]]]:
    """Split whole PUB and HPUB commands: those within ``limit``, and (subject, size) of the others."""
    kept, oversized, pos = [], [], 0
    while pos < len(publishes):
        eol = publishes.index(b"\r\n", pos)
        words = publishes[pos:eol].split(b" ")
        size = int(words[-1])
        end = eol + 2 + size + 2
        if size > limit:
            oversized.append((words[1].decode(), size))
        else:
            kept.append(publishes[pos:end])
        pos = end
    return b"".join(kept), oversized


def size_line(size: int) -> bytes:
    """The end of a PUB line; cached in ``SIZE_LINES`` while there is room."""
    line = b"%d\r\n" % size
    if len(SIZE_LINES) < 65_536:
        SIZE_LINES[size] = line
    return line


def to_bytes(payload: object) -> bytes:
    """The payload of a publish, from any bytes-like object; text is refused."""
    if isinstance(payload, bytes | bytearray | memoryview):
        # A copy: the caller may change a mutable buffer before it is sent.
        return bytes(payload)
    raise InvalidArgument(
        "data",
        type(payload).__name__,
        "must be bytes; encode text first, as in text.encode()",
    )


def encode_sub(subject: str, queue: str, sid: str) -> bytes:
    """SUB, with the queue group if there is one."""
    validate_filter(subject)
    target = subject.encode()
    if queue:
        validate_queue(queue)
        target += b" " + queue.encode()
    line = b"SUB %b %b\r\n" % (target, sid.encode())
    if len(line) > MAX_CONTROL_LINE:
        raise InvalidArgument(
            "subject",
            subject,
            f"makes a SUB line longer than {MAX_CONTROL_LINE} bytes; shorten it",
        )
    return line


def encode_unsub(sid: str, limit: int = 0) -> bytes:
    """UNSUB, at once or after ``limit`` messages in all since SUB."""
    return f"UNSUB {sid} {limit}\r\n".encode() if limit else f"UNSUB {sid}\r\n".encode()
