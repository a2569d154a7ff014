"""Messages of equal shape are compared with the one before: never to another outcome.

A stream of them changes its shape once, at every place; both columnar loops must notice, wherever the bytes
are cut. The object path of the Python parser says what is right.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from wire_cases import Got, new_parser, run

from jetspark.wire import Messages, Parser, backend
from jetspark.wire.columns import COLUMNAR, Columns, PackedColumns
from jetspark.wire.parser import MAX_LINE

STREAK = 16
CORES = (False, True) if backend == "c" else (False,)
HEADER = b"NATS/1.0\r\nA: b\r\n\r\n"
STATUS = b"NATS/1.0 100 Idle Heartbeat\r\n\r\n"
INBOX_STATUS = b"HMSG _INBOX.x 1 %d %d\r\n%b\r\n" % (len(STATUS), len(STATUS), STATUS)


def msg(subject: bytes, reply: bytes, data: bytes, sid: bytes = b"1") -> bytes:
    return b"MSG %b %b %b %d\r\n%b\r\n" % (subject, sid, reply, len(data), data)


def hmsg(subject: bytes, reply: bytes, header: bytes, data: bytes) -> bytes:
    sizes = b"%d %d" % (len(header), len(header) + len(data))
    return b"HMSG %b 1 %b %b\r\n%b%b\r\n" % (subject, reply, sizes, header, data)


def columnar(**options: Any) -> Parser:
    parser = Parser(**options)
    parser.routes["1"] = (COLUMNAR, (Got, "owner-1"))
    parser.routes["2"] = (Got, "owner-2")
    return parser


Flat = tuple[list[Any], int, int, "str | None"]


def flat(chunks: list[bytes], parser: Parser) -> Flat:
    """Messages and events in order; bytes on the wire and bytes as the server counts them; the error."""
    events, error = run(chunks, parser)
    entries: list[Any] = []
    nbytes = size = 0
    for event in events:
        if isinstance(event, Columns | PackedColumns):
            plain = event.unpack() if isinstance(event, PackedColumns) else event
            assert plain.size == plain.measure() == event.size
            assert len(plain.subjects) == len(plain.replies) == len(plain.payloads) == len(event)
            nbytes += event.nbytes
            size += event.size
            for row, (subject, reply, data) in enumerate(
                zip(plain.subjects, plain.replies, plain.payloads, strict=True)
            ):
                texts = [one.decode("utf-8", "surrogateescape") for one in (subject, reply)]
                entries.append(Got(texts[0], texts[1], data, plain.headers.get(row), "owner-1"))
        elif isinstance(event, Messages):
            nbytes += event.nbytes
            for item in event.items:
                if item.reply and item.owner == "owner-1":
                    texts_size = sum(len(one.encode("utf-8", "surrogateescape")) for one in item[:2])
                    size += texts_size + len(item.data) + len(item.header or b"")
            entries += event.items
        else:
            entries.append(event)
    return entries, nbytes, size, None if error is None else str(error)


def same(wire: bytes, *cuts: list[bytes], **options: Any) -> Flat:
    """Whole and cut, by each core, as columns and as objects."""
    expected = flat([wire], new_parser(**options, compiled=False))
    for chunks in ([wire], *cuts):
        for compiled in CORES:
            assert flat(chunks, columnar(**options, compiled=compiled)) == expected
            assert flat(chunks, new_parser(**options, compiled=compiled)) == expected
    return expected


def alike(count: int, data: bytes = b"x" * 11) -> list[bytes]:
    """Messages of one shape."""
    return [
        msg(b"orders.eu", b"$JS.ACK.S.c.1.%d.%d.0" % (1000 + row, row % 10), data) for row in range(count)
    ]


ONE = alike(1)[0]
REPLY = b"$JS.ACK.S.c.1.1000.0.0"

CHANGES = {
    "nothing": b"",
    "reply longer by a digit": msg(b"orders.eu", REPLY + b"1", b"x" * 11),
    "reply shorter by a digit": msg(b"orders.eu", REPLY[:-1], b"x" * 11),
    "reply of one byte": msg(b"orders.eu", b"r", b"x" * 11),
    "reply longer, payload shorter": msg(b"orders.eu", REPLY + b"1", b"x" * 10),
    "reply shorter, payload longer": msg(b"orders.eu", REPLY[:-1], b"x" * 12),
    "subject of the same length": msg(b"orders.us", REPLY, b"x" * 11),
    "subject of the same length, first byte": msg(b"Orders.eu", REPLY, b"x" * 11),
    "longer subject": msg(b"orders.eur", REPLY, b"x" * 11),
    "shorter subject": msg(b"orders.e", REPLY, b"x" * 11),
    "longer subject, shorter reply": msg(b"orders.eur", REPLY[:-1], b"x" * 11),
    "shorter subject, longer reply": msg(b"orders.e", REPLY + b"1", b"x" * 11),
    "subject that begins alike and goes on in the reply": msg(b"orders.eu", b"1" + REPLY[1:], b"x" * 11),
    "other size of as many digits": msg(b"orders.eu", REPLY, b"x" * 12),
    "other size of more digits": msg(b"orders.eu", REPLY, b"x" * 111),
    "other size of fewer digits": msg(b"orders.eu", REPLY, b"x" * 9),
    "size with a zero in front": b"MSG orders.eu 1 %b 011\r\n%b\r\n" % (REPLY, b"x" * 11),
    "size with a zero in front, reply shorter": b"MSG orders.eu 1 %b 011\r\n%b\r\n" % (REPLY[:-1], b"x" * 11),
    "no payload": msg(b"orders.eu", REPLY, b""),
    "payload of a line end": msg(b"orders.eu", REPLY, b"\r\n" * 5 + b"\n"),
    "payload of a message": msg(b"orders.eu", REPLY, b"MSG a 1 r 0"),
    "payload with whole messages": msg(b"orders.eu", REPLY, ONE * 3),
    "other subscription of the same length": msg(b"orders.eu", REPLY, b"x" * 11, b"2"),
    "unknown subscription": msg(b"orders.eu", REPLY, b"x" * 11, b"9"),
    "longer subscription, shorter reply": msg(b"orders.eu", REPLY[:-1], b"x" * 11, b"11"),
    "no reply": b"MSG orders.eu 1 11\r\n%b\r\n" % (b"x" * 11),
    "no reply and blanks in the payload": b"MSG orders.eu 1 33\r\n%b\r\n" % (b" 11\r\n" * 6 + b"end"),
    # What should be a reply has a blank in it, and everything else lies where it should.
    "blank in the reply": msg(b"orders.eu", REPLY[:5] + b" " + REPLY[6:], b"x" * 11),
    "blank at the start of the reply": msg(b"orders.eu", b" " + REPLY[1:], b"x" * 11),
    "blank at the end of the reply": msg(b"orders.eu", REPLY[:-1] + b" ", b"x" * 11),
    "line end in the reply": msg(b"orders.eu", REPLY[:5] + b"\r\n" + REPLY[7:], b"x" * 11),
    "line feed in the reply": msg(b"orders.eu", REPLY[:5] + b"\n" + REPLY[6:], b"x" * 11),
    # The same, and it is valid: a short message without a reply, then another line.
    "two messages that fit": msg(b"orders.eu", b"r 0\r\n\r\nMSG o 1 abcdefg", b"x" * 11),
    "two messages that fit, the first without reply": msg(
        b"orders.eu", b"0\r\n\r\nMSG o 1 abcdefghi", b"x" * 11
    ),
    "two messages": b"MSG orders.eu 1 0\r\n\r\nMSG orders.e 1 r 0\r\n\r\n",
    "a message and a PING in the reply": b"MSG orders.eu 1 0\r\n\r\nPING\r\nMSG orders.eu 1 1234 11\r\n%b\r\n"
    % (b"x" * 11),
    "carriage return in the reply": msg(b"orders.eu", REPLY[:5] + b"\r" + REPLY[6:], b"x" * 11),
    "carriage return at the end of the reply": msg(b"orders.eu", REPLY[:-1] + b"\r", b"x" * 11),
    "bytes that are no UTF-8 in the reply": msg(b"orders.eu", b"\xff" * len(REPLY), b"x" * 11),
    "headers": hmsg(b"orders.eu", REPLY, HEADER, b"x" * 11),
    "headers without payload": hmsg(b"orders.eu", REPLY, HEADER, b""),
    "status": INBOX_STATUS,
    "PING": b"PING\r\n",
    "error": b"-ERR 'Permissions Violation'\r\n",
    "lower case": b"m" + ONE[1:],
    "LF instead of CRLF": ONE.replace(b"\r\n", b"\n", 1),
    "payload too long": ONE[:-2] + b"x\r\n",
    "payload too short": ONE[:-3] + b"\r\n",
    "other end of the payload": ONE[:-2] + b"\rx",
    "size that is none": ONE.replace(b" 11\r\n", b" 1x\r\n"),
    "size of eleven digits": ONE.replace(b" 11\r\n", b" 00000000011\r\n"),
    "size of ten digits": ONE.replace(b" 11\r\n", b" 0000000011\r\n"),
    "size that is too large": ONE.replace(b" 11\r\n", b" 999999999\r\n"),
    "size and a blank": ONE.replace(b" 11\r\n", b" 11 \r\n"),
    "another word": ONE.replace(b" 11\r\n", b" 11 11\r\n"),
    "empty reply": b"MSG orders.eu 1  11\r\n%b\r\n" % (b"x" * 11),
    # The sizes of the second could be reply and size of a line that begins as the first does.
    "headers, then headers without a reply": hmsg(b"orders.eu", REPLY, HEADER, b"x")
    + b"HMSG orders.eu 1 %d %d\r\n%b\r\n" % (len(HEADER), len(HEADER), HEADER),
    "two blanks before the reply": ONE.replace(b" 1 ", b" 1  "),
    "two blanks before the size": ONE.replace(b" 11\r\n", b"  11\r\n"),
    "line too long": msg(b"orders.eu", b"r" * MAX_LINE, b"x" * 11),
    "the longest line": msg(b"orders.eu", b"r" * (MAX_LINE - len("MSG orders.eu 1  11")), b"x" * 11),
    "longer than the longest line": msg(
        b"orders.eu", b"r" * (MAX_LINE - len("MSG orders.eu 1  11") + 1), b"x" * 11
    ),
}

assert len(CHANGES["two messages that fit"]) == len(ONE)
assert len(CHANGES["two messages that fit, the first without reply"]) == len(ONE)

PLACES = [0, 1, 2, STREAK - 1, STREAK, STREAK + 1, 2 * STREAK, 2 * STREAK + 1, 3 * STREAK, 69, 70]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_of_shape_at_every_place(change: bytes) -> None:
    rows = alike(70)
    for place in PLACES:
        for times in (1, 2, 40):
            wire = b"".join(rows[:place]) + change * times + b"".join(rows[place:])
            entries, *_ = same(wire)
            assert entries[:place] == flat([b"".join(rows[:place])], new_parser())[0]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_cut_at_every_byte_around_a_change(change: bytes) -> None:
    before, after = b"".join(alike(STREAK + 3)), b"".join(alike(STREAK + 3))
    wire = before + change + after
    # Long changes are long because of one word.
    middle = range(len(before) - len(ONE), len(before) + min(len(change), 150) + len(ONE))
    expected = flat([wire], new_parser(compiled=False))
    assert len(expected[0]) >= STREAK + 3
    for cut in middle:
        for compiled in CORES:
            assert flat([wire[:cut], wire[cut:]], columnar(compiled=compiled)) == expected


@pytest.mark.slow
def test_cut_at_every_byte_of_a_stream() -> None:
    rows = alike(20) + [CHANGES["reply longer by a digit"]] * 20 + [INBOX_STATUS] + alike(20)
    wire = b"".join(rows)
    expected = same(wire, [wire[at : at + 1] for at in range(len(wire))])
    assert len(expected[0]) == len(rows)
    assert expected[3] is None
    for cut in range(len(wire)):
        for compiled in CORES:
            assert flat([wire[:cut], wire[cut:]], columnar(compiled=compiled)) == expected


@pytest.mark.parametrize("size", [0, 1, 9, 10, 127, 128, 5000, 16_384, 16_385, 70_000])
def test_payloads_of_every_size(size: int) -> None:
    count = 200 if size < 1000 else 40
    data = (b"MSG orders.eu 1 r 0\r\n\r\n" * (size // 20 + 1))[:size]
    wire = b"".join(alike(count, data))
    third = len(wire) // 3
    entries, nbytes, *_ = same(wire, [wire[:third], wire[third : 2 * third], wire[2 * third :]])
    assert (len(entries), nbytes) == (count, len(wire))


@pytest.mark.parametrize("place", [0, 1, 5, STREAK, 40])
def test_a_size_above_the_limit_among_equals(place: int) -> None:
    rows = alike(40)
    rows.insert(place, msg(b"orders.eu", REPLY, b"x" * 51))
    entries, _, _, error = same(b"".join(rows), max_message=50)
    assert len(entries) == place
    assert error is not None
    assert "51" in error
    assert len(same(b"".join(rows), max_message=51)[0]) == 41


def test_size_is_kept_by_everything_that_changes_columns() -> None:
    rows = [*alike(40), hmsg(b"orders.eu", REPLY, HEADER, b"xy"), *alike(40, b"")]
    (columns,) = columnar(compiled=False).feed(b"".join(rows))
    assert isinstance(columns, Columns)
    assert columns.size == columns.measure() > 0
    some = columns.select([40, 0, 80, 40])
    assert some.size == some.measure() > 0
    assert some.headers == {0: HEADER, 3: HEADER}
    for count in (41, 40, 7, 0):
        columns.truncate(count)
        assert columns.size == columns.measure()
        assert len(columns) == count


# Any stream of few shapes

WORDS = st.text("ab1.", min_size=1, max_size=3).map(str.encode)
DATA = st.sampled_from(
    [b"", b"x", b"\r", b"\n", b"x" * 11, b"\r\nMSG a 1 ", b"MSG a 1 b 1\r\nx\r\n", b" 1\r\n"]
)
PIECE = st.one_of(
    st.builds(lambda subject, reply, data: msg(subject, reply, data), WORDS, WORDS, DATA),
    st.builds(lambda subject, reply, data: msg(subject, reply, data), WORDS, WORDS, DATA),
    st.builds(lambda subject, data: hmsg(subject, b"a", HEADER, data), WORDS, DATA),
    st.builds(lambda subject, data: b"MSG %b 1 %d\r\n%b\r\n" % (subject, len(data), data), WORDS, DATA),
    st.builds(lambda subject, data: msg(subject, b"a", data, b"2"), WORDS, DATA),
    st.just(INBOX_STATUS),
    st.just(b"PING\r\n"),
)
REPEATED = st.builds(lambda piece, times: piece * times, PIECE, st.sampled_from([1, 2, 15, 16, 17, 20, 40]))
STREAMS = st.lists(REPEATED, min_size=1, max_size=5).map(b"".join)


@st.composite
def cuts_of(draw: st.DrawFn, wire: bytes) -> list[bytes]:
    ends = sorted(draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    return [wire[start:end] for start, end in zip([0, *ends], [*ends, len(wire)], strict=True)]


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.data(), STREAMS)
@example(None, msg(b"a", b"b", b"x") * 40)
def test_any_stream(data: Any, wire: bytes) -> None:
    expected = same(wire, data.draw(cuts_of(wire)) if data else [wire[:500], wire[500:]])
    assert expected[3] is None
    assert expected[1] == len(wire) - wire.count(b"PING\r\n") * len(b"PING\r\n")


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.data(), STREAMS, st.binary(min_size=1, max_size=1), st.booleans(), st.integers(0))
def test_any_stream_with_one_byte_changed(
    data: Any, wire: bytes, byte: bytes, insert: bool, place: int
) -> None:
    place %= len(wire)
    changed = wire[:place] + byte + wire[place + (not insert) :]
    entries, *_ = same(changed, data.draw(cuts_of(changed)), max_message=100_000)
    assert len(entries) <= len(changed)


@settings(deadline=None, max_examples=300)
@given(
    st.integers(0, 40), st.integers(0, len(ONE) - 1), st.sampled_from([b" ", b"\n", b"\r", b"1", b"x", b"."])
)
def test_one_byte_of_one_among_equals(row: int, place: int, byte: bytes) -> None:
    rows = alike(41)
    rows[row] = rows[row][:place] + byte + rows[row][place + 1 :]
    entries, *_ = same(b"".join(rows))
    assert len(entries) >= row
