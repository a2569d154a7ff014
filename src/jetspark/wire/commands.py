"""Client commands as bytes. Everything that could smuggle a second command is refused first."""

from __future__ import annotations

from typing import Any

import msgspec

from jetspark.errors import InvalidArgument
from jetspark.wire.subjects import validate_filter, validate_queue, validate_subject

# The server's default max_control_line; it closes the connection when a line is longer.
MAX_CONTROL_LINE = 4096

PING = b"PING\r\n"
PONG = b"PONG\r\n"

_encode_json = msgspec.json.Encoder().encode


def encode_connect(options: dict[str, Any]) -> bytes:
    """CONNECT with its JSON options."""
    return b"CONNECT " + _encode_json(options) + b"\r\n"


def pub_prefix(subject: str, reply: str = "") -> bytes:
    """``PUB <subject> [reply] `` without the size: checked once, then reused for each message."""
    return b"PUB " + _target(subject, reply)


def hpub_prefix(subject: str, reply: str = "") -> bytes:
    """``HPUB <subject> [reply] `` without the sizes."""
    return b"HPUB " + _target(subject, reply)


def encode_sub(subject: str, queue: str, sid: str) -> bytes:
    """SUB, with the queue group when there is one."""
    validate_filter(subject)
    if queue:
        validate_queue(queue)
        line = f"SUB {subject} {queue} {sid}\r\n".encode()
    else:
        line = f"SUB {subject} {sid}\r\n".encode()
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


def _target(subject: str, reply: str) -> bytes:
    validate_subject(subject)
    if reply:
        validate_subject(reply, field="reply")
        target = f"{subject} {reply} ".encode()
    else:
        target = f"{subject} ".encode()
    # Two sizes of at most 10 digits, the verb and CRLF have to fit beside it.
    if len(target) > MAX_CONTROL_LINE - 32:
        raise InvalidArgument(
            "subject",
            subject,
            f"with reply makes a line longer than the {MAX_CONTROL_LINE} bytes a server takes",
        )
    return target
