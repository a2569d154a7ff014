"""One way to run a wire case: whole, byte by byte, and with bytes that follow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from jetspark.errors import ProtocolError
from jetspark.wire import Messages, Parser, Ping, Pong

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

KNOWN = ("1", "2", "77")

# What follows a case in the third run: a complete command, and the start of one that never completes.
TRAILING = b"PONG\r\nMSG tail 1 10\r\nhal"


class Got(NamedTuple):
    """A message as the factory saw it."""

    subject: str
    reply: str
    data: bytes
    header: bytes | None
    owner: Any


class Outcome(NamedTuple):
    """What came of a stream of bytes: events (runs of one sid merged), and the error that ended it."""

    events: list[Any]
    error: ProtocolError | None


def new_parser(**options: Any) -> Parser:
    parser = Parser(**options)
    for sid in KNOWN:
        parser.routes[sid] = (Got, "owner-" + sid)
    return parser


def got(subject: str, reply: str, data: bytes, header: bytes | None = None, sid: str = "1") -> Got:
    return Got(subject, reply, data, header, "owner-" + sid)


def run(chunks: Iterable[bytes], parser: Parser | None = None) -> Outcome:
    """Feed the chunks as a connection would; any exception but ProtocolError fails the test."""
    parser = parser or new_parser()
    events: list[Any] = []
    for chunk in chunks:
        try:
            events += parser.feed(chunk)
        except ProtocolError:
            break
    if parser.error is not None:
        assert parser.held == 0, "a parser that gave up keeps no bytes"
        with pytest.raises(ProtocolError) as again:
            parser.feed(b"PING\r\n")
        assert again.value is parser.error
    return Outcome(merge(events), parser.error)


def merge(events: Sequence[Any]) -> list[Any]:
    """Join neighbouring runs of one sid: where chunks end may cut a run, never what is in it."""
    merged: list[Any] = []
    for event in events:
        if isinstance(event, Messages):
            assert event.items, "an empty run was reported"
            if merged and isinstance(merged[-1], Messages) and merged[-1].sid == event.sid:
                last = merged[-1]
                merged[-1] = Messages(last.sid, last.items + event.items, last.nbytes + event.nbytes)
                continue
        merged.append(event)
    return merged


def single_bytes(wire: bytes) -> list[bytes]:
    return [wire[index : index + 1] for index in range(len(wire))]


def three_ways(wire: bytes, expected: Sequence[Any]) -> None:
    """The wire bytes give exactly these events, however they arrive, and leave nothing behind."""
    expected = merge(expected)
    for chunks in ([wire], single_bytes(wire)):
        parser = new_parser()
        assert run(chunks, parser) == Outcome(expected, None)
        assert parser.held == 0
        # Nothing of the case sticks to the parser: it works as a new one does.
        assert parser.feed(b"PING\r\n") == [Ping()]
    parser = new_parser()
    assert run([wire + TRAILING], parser) == Outcome(merge([*expected, Pong()]), None)
    assert parser.held == len(TRAILING) - len(b"PONG\r\n")


def refused_three_ways(wire: bytes, match: str, before: Sequence[Any] = ()) -> None:
    """The wire bytes are refused however they arrive, after the events in front of the bad ones."""
    before = merge(before)
    for chunks in ([wire], single_bytes(wire), [wire + TRAILING]):
        outcome = run(chunks)
        assert outcome.events == before
        assert isinstance(outcome.error, ProtocolError)
        assert match in str(outcome.error)
