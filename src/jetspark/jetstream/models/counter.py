"""Distributed counters (ADR-49): streams whose messages are increments, server 2.12 or later.

Every subject of a stream with ``allow_msg_counter`` is a counter. An increment is a message with a
``Nats-Incr`` header and no body; the server writes the new total into it and into the ack. Numbers are
integers of any size, as in Python. A counter that other streams feed by sourcing knows what each of
them has contributed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from jetspark.errors import InvalidArgument, ProtocolError
from jetspark.jetstream.errors import InvalidCounter

if TYPE_CHECKING:
    from jetspark.jetstream.stored import StoredMsg

_DECIMAL = re.compile(r"[+-]?[0-9]+", re.ASCII)
# The increment is sent in a header; the server limits all headers together to 64 KiB. Python also refuses to
# convert longer decimal strings into numbers (sys.int_max_str_digits).
_MAX_DIGITS = 4000


class CounterValue(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a counter, from its last message."""

    subject: str
    """The counter's subject."""
    value: int
    """The total."""
    delta: int
    """The last increment: that of the last message."""
    sequence: int
    """Stream sequence of the last message."""
    sources: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    """What other streams have contributed: stream -> their subject -> their total. Empty if none did."""

    @classmethod
    def from_message(cls, message: StoredMsg) -> CounterValue:
        """From a stored message; raises :class:`InvalidCounter` when it does not belong to a counter."""
        delta = message.headers.get("Nats-Incr")
        if delta is None:
            raise InvalidCounter(
                400,
                10169,
                f"message {message.sequence} of {message.subject!r} has no Nats-Incr header: not a counter",
            )
        sources = message.headers.get("Nats-Counter-Sources")
        try:
            return cls(
                subject=message.subject,
                value=_integer(msgspec.json.decode(message.data, type=dict[str, Any])["val"]),
                delta=_integer(delta),
                sequence=message.sequence,
                sources={
                    stream: {subject: _integer(value) for subject, value in subjects.items()}
                    for stream, subjects in (_SOURCES.decode(sources) if sources else {}).items()
                },
            )
        except (msgspec.DecodeError, KeyError, ValueError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(
                f"message {message.sequence} of {message.subject!r} is not a counter's: {error}"
            ) from None


_SOURCES = msgspec.json.Decoder(dict[str, dict[str, str]])


def delta_text(delta: int | str) -> str:
    """The value of ``Nats-Incr``, with its sign, from an integer or a decimal string; floats are refused."""
    if isinstance(delta, str) and _DECIMAL.fullmatch(delta) and len(delta) <= _MAX_DIGITS:
        return f"{int(delta):+d}"
    if isinstance(delta, bool) or not isinstance(delta, int):
        raise InvalidArgument("delta", delta, "must be an integer, or a string of decimal digits with a sign")
    if abs(delta) >= 10**_MAX_DIGITS:
        # Not the value itself: Python refuses to print it.
        raise InvalidArgument("delta", "too large", f"must have at most {_MAX_DIGITS} digits")
    return f"{delta:+d}"


def _integer(text: object) -> int:
    if not isinstance(text, str) or not _DECIMAL.fullmatch(text):
        raise ValueError(f"{text!r:.50} is no number")
    return int(text)
