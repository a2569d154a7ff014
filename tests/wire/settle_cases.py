"""Answers to published messages, those who wait for them, and the ways to bring the two together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import strategies as st
from wire_cases import Got

from jetspark import PubAck
from jetspark.wire import Parser
from jetspark.wire.columns import ANSWERS, PackedColumns

if TYPE_CHECKING:
    from collections.abc import Sequence

INBOX = b"_INBOX.abc."
HEADER = b"NATS/1.0 503\r\n\r\n"


class Target:
    """A future that notes what it gets."""

    def __init__(self, *, cancelled: bool = False, error: BaseException | None = None) -> None:
        self._cancelled, self.error = cancelled, error
        self.results: list[Any] = []
        self.failure: BaseException | None = None

    def set_exception(self, failure: BaseException) -> None:
        assert not self.done()
        self.failure = failure

    def exception(self) -> BaseException | None:
        return self.failure

    def set_result(self, result: Any) -> None:
        if self.error is not None:
            raise self.error
        if self._cancelled or self.results:
            raise asyncio.InvalidStateError("done already")
        self.results.append(result)

    def cancelled(self) -> bool:
        return self._cancelled

    def done(self) -> bool:
        return self._cancelled or bool(self.results) or self.failure is not None


class Batch:
    """A batch that notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, int]] = []

    def acked_many(self, stream: str, count: int, duplicates: int) -> None:
        assert isinstance(count, int)
        assert count > 0
        self.heard.append((stream, count, duplicates))

    def sums(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for stream, count, duplicates in self.heard:
            had = found.get(stream, (0, 0))
            found[stream] = (had[0] + count, had[1] + duplicates)
        return found


class Answer(NamedTuple):
    """One answer: whom it is for, as the last token has it, and what it says."""

    token: bytes
    data: bytes
    header: bytes | None = None
    inbox: bytes = INBOX

    def wire(self) -> bytes:
        subject = self.inbox + self.token
        if self.header is None:
            return b"MSG %b 1 %d\r\n%b\r\n" % (subject, len(self.data), self.data)
        sizes = b"%d %d" % (len(self.header), len(self.header) + len(self.data))
        return b"HMSG %b 1 %b\r\n%b%b\r\n" % (subject, sizes, self.header, self.data)


def to(serial: int, data: bytes, header: bytes | None = None) -> Answer:
    return Answer(b"%d" % serial, data, header)


def parse(answers: Sequence[Answer]) -> list[Any]:
    parser = Parser()
    parser.routes["1"] = (ANSWERS, (Got, "owner"))
    events = parser.feed(b"".join(answer.wire() for answer in answers))
    assert parser.error is None
    return events


def rows_of(answers: Sequence[Answer]) -> Any:
    """All of them in one Rows."""
    (columns,) = parse(answers)
    assert type(columns) is PackedColumns
    assert len(columns) == len(answers)
    return columns.rows


def settle(answers: Sequence[Answer], pending: dict[int, Any]) -> Any:
    """By the compiled core alone."""
    return rows_of(answers).settle(len(INBOX), pending, PubAck, Batch)


def serial_of(token: bytes) -> int | None:
    return int(token) if token.isdigit() else None


# Answers of every kind

PLAIN = [
    b'{"stream":"S","seq":1}',
    b'{"stream":"ORDERS", "seq":12345}',
    b'{"stream": "S", "seq": 7}',
    b'{ "stream":"S","seq":7}',
    b'{"seq":3,"stream":"S"}',
    b'{"stream":"S","seq":1,"duplicate":true}',
    b'{"stream":"S","seq":1,"duplicate": true}',
    b'{"duplicate":true,"stream":"S","seq":1}',
    b'{"stream":"S","domain":"hub","seq":1}',
    b'{"domain":"hub","duplicate":true,"seq":9,"stream":"S"}',
    b'{"stream":"S","seq":1, "domain":"hub"}',
    b'{"stream":"error","seq":1}',
    b'{"stream":"a b/c~","seq":1}',
    b'{"stream":"S","seq":999999999999999999}',
]
"""What the core must settle by itself: what servers send, and all of the same kind."""

OTHERS = [
    b"",
    b"{",
    b"{}",
    b"{ ",
    b"null",
    b"+ACK",
    b'{"stream":"S","seq":0}',
    b'{"stream":"S","seq":01}',
    b'{"stream":"S","seq":-1}',
    b'{"stream":"S","seq":1.0}',
    b'{"stream":"S","seq":1e2}',
    b'{"stream":"S","seq":"1"}',
    b'{"stream":"S","seq":1000000000000000000}',
    b'{"stream":"S","seq":18446744073709551615}',
    b'{"stream":"S","seq":99999999999999999999999999}',
    b'{"stream":"S","seq":1}x',
    b'{"stream":"S","seq":1} ',
    b' {"stream":"S","seq":1}',
    b'{"stream":"S","seq":1,}',
    b'{"stream":"S","seq":1 }',
    b'{"stream":"S" ,"seq":1}',
    b'{"stream" :"S","seq":1}',
    b'{"stream":"S","seq":1',
    b'{"stream":"S","seq":',
    b'{"stream":"S","seq',
    b'{"stream":"S',
    b'{"stream":',
    b'{"stream":"S"}',
    b'{"stream":"","seq":1}',
    b'{"seq":1}',
    b'{"stream":null,"seq":1}',
    b'{"stream":"S","seq":1,"domain":""}',
    b'{"stream":"S","seq":1,"domain":null}',
    b'{"stream":"S","seq":1,"duplicate":false}',
    b'{"stream":"S","seq":1,"duplicate":tru',
    b'{"stream":"S","seq":1,"duplicate":true',
    b'{"stream":"S","seq":1,"duplicate":truest}',
    b'{"stream":"S","seq":1,"val":"5"}',
    b'{"stream":"S","seq":1,"batch":"b","count":2}',
    b'{"stream":"S","seq":1,"unknown":{"a":[1]}}',
    b'{"stream":"S","stream":"T","seq":1}',
    b'{"stream":"S","seq":1,"seq":2}',
    b'{"stream":"S","seq":1,"duplicate":true,"duplicate":true}',
    b'{"stream":"S","seq":1,"domain":"a","domain":"b"}',
    b'{"stream":"a\\u0062","seq":1}',
    b'{"str\\u0065am":"S","seq":1}',
    b'{"stream":"a\\"b","seq":1}',
    '{"stream":"größe","seq":1}'.encode(),
    b'{"stream":"\xff","seq":1}',
    b'{"stream":"a\tb","seq":1}',
    b'{"stream":"a\x7fb","seq":1}',
    b'{"Stream":"S","seq":1}',
    b'{"error":{"code":503,"description":"no"},"stream":"S","seq":0}',
    b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 7"}}',
    b"[" * 5000,
    b"\x00" * 30,
]
"""What is left to the JSON decoder, right or wrong."""

ERRORS_WITH_A_SEQUENCE = [
    b'{"error":{"code":503,"description":"no"},"stream":"S","seq":5}',
    b'{"stream":"S","seq":5,"error":{"code":503,"description":"no"}}',
]
"""Which no server sends; the core leaves even these to the publisher."""

STREAMS = ["S", "T", "ORDERS", "a b", "error"]
GOOD_ACKS = st.builds(
    lambda fields, blanks: (
        b"{" + (b", " if blanks else b",").join(b'"%b":%b' % field for field in fields) + b"}"
    ),
    st.tuples(
        st.sampled_from(STREAMS).map(lambda name: (b"stream", b'"%b"' % name.encode())),
        st.integers(1, 10**18 - 1).map(lambda seq: (b"seq", b"%d" % seq)),
        st.sampled_from([None, (b"duplicate", b"true")]),
        st.sampled_from([None, None, (b"domain", b'"hub"')]),
    ).flatmap(lambda fields: st.permutations([field for field in fields if field is not None])),
    st.booleans(),
)


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    """An ack with one place changed."""
    data = bytearray(draw(GOOD_ACKS))
    at = draw(st.integers(0, len(data) - 1))
    action = draw(st.sampled_from(["cut", "delete", "insert", "replace"]))
    if action == "cut":
        del data[at:]
    elif action == "delete":
        del data[at]
    else:
        new = draw(st.sampled_from([bytes([byte]) for byte in b' ",:{}\\0159-.eE+tu\x00\x1f\x7f\xff\xc3\n']))
        data[at : at + (action == "replace")] = new
    return bytes(data)


TOKENS = st.one_of(
    st.integers(1, 12).map(lambda serial: b"%d" % serial),
    st.integers(1, 12).map(lambda serial: b"%d" % serial),
    st.sampled_from([b"0", b"007", b"999", b"x", b"1x", b"9" * 18, b"9" * 19, b"9" * 40, b"1.2"]),
)
ANY_DATA = st.one_of(
    GOOD_ACKS, GOOD_ACKS, GOOD_ACKS, spoiled(), st.sampled_from(PLAIN + OTHERS + ERRORS_WITH_A_SEQUENCE)
)
ANSWER = st.builds(
    Answer, TOKENS, ANY_DATA, st.sampled_from([None] * 8 + [b"NATS/1.0\r\nA: b\r\n\r\n"]), st.just(INBOX)
)
