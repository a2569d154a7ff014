"""Columns are the object path in another form: same rows, order and refusals, however the bytes are cut."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from wire_cases import TRAILING, Got, new_parser, run, single_bytes

from jetspark.wire import Messages, Parser, Ping, backend
from jetspark.wire.columns import COLUMNAR, Columns, PackedColumns
from jetspark.wire.parser import MAX_LINE

# Both where both are there; with JETSPARK_WIRE=python, or without a compiler, there is only one.
CORES = (False, True) if backend == "c" else (False,)
KIND = PackedColumns if backend == "c" else Columns
COLUMN_SIDS = ("1", "77")
OBJECT_SID = "2"
HEADER = b"NATS/1.0\r\nA: b\r\n\r\n"
STATUS = b"NATS/1.0 404 No Messages\r\n\r\n"


class Row(NamedTuple):
    """A message of either path."""

    sid: str
    subject: str
    reply: str
    data: bytes
    header: bytes | None


class Flat(NamedTuple):
    """What came of a stream of bytes, one entry a message or control line; and bytes by subscription."""

    events: list[Any]
    nbytes: Counter[str]
    error: str | None


def columnar_parser(**options: Any) -> Parser:
    parser = new_parser(**options)
    for sid in COLUMN_SIDS:
        parser.routes[sid] = (COLUMNAR, (Got, "owner-" + sid))
    return parser


def flat(chunks: list[bytes], parser: Parser) -> Flat:
    events, error = run(chunks, parser)
    entries: list[Any] = []
    nbytes: Counter[str] = Counter()
    for event in events:
        if isinstance(event, Columns | PackedColumns):
            count = len(event)
            assert count, "an empty run was reported"
            assert parser.routes[event.sid][0] is COLUMNAR
            assert len(event.subjects) == len(event.replies) == len(event.payloads) == count
            assert set(event.headers) <= set(range(count))
            nbytes[event.sid] += event.nbytes
            for row in range(count):
                subject, reply = (
                    text.decode("utf-8", "surrogateescape")
                    for text in (event.subjects[row], event.replies[row])
                )
                assert reply, "a message without a reply came as a row"
                entries.append(Row(event.sid, subject, reply, event.payloads[row], event.headers.get(row)))
        elif isinstance(event, Messages):
            nbytes[event.sid] += event.nbytes
            for item in event.items:
                assert item.owner == "owner-" + event.sid
                if parser.routes[event.sid][0] is COLUMNAR:
                    assert not item.reply, "a message with a reply came as an object"
                entries.append(Row(event.sid, *item[:4]))
        else:
            entries.append(event)
    return Flat(entries, nbytes, str(error) if error else None)


def same_as_objects(wire: bytes, *cuts: list[bytes], **options: Any) -> Flat:
    """Whole, byte by byte and in the given pieces: what the object path makes of the whole."""
    expected = flat([wire], new_parser(**options, compiled=False))
    for chunks in ([wire], single_bytes(wire) if len(wire) < 5000 else [wire], *cuts):
        for compiled in CORES:
            assert flat(chunks, columnar_parser(**options, compiled=compiled)) == expected
            assert flat(chunks, new_parser(**options, compiled=compiled)) == expected
    return expected


def msg(subject: str, sid: str, reply: str, data: bytes = b"", header: bytes | None = None) -> bytes:
    words = " ".join([subject, sid, *([reply] if reply else [])])
    if header is None:
        line = f"MSG {words} {len(data)}\r\n"
    else:
        line = f"HMSG {words} {len(header)} {len(header) + len(data)}\r\n"
    return line.encode() + (header or b"") + data + b"\r\n"


# Single cases


@pytest.mark.parametrize(
    "wire",
    [
        msg("a.b", "1", "r", b"hello"),
        msg("a.b", "1", "r"),
        msg("a", "1", "r", b"\r\n"),
        msg("a", "1", "r", b"MSG a 1 r 5\r\nhello\r\n"),
        msg("a", "1", "r", b"hi", HEADER),
        msg("a", "1", "r", b"", HEADER),
        # A user's message that looks like a status is the user's message: it has a reply.
        msg("a", "1", "r", b"", STATUS),
        msg("größe.日本", "1", "antwort.ü", b"hi"),
        b"MSG a\xff\xfe 1 r\xfe 2\r\nhi\r\n",
        b"MSG a 1 r 0002\r\nhi\r\n",
        b"HMSG a 1 r 0 2\r\nhi\r\n",
        b"MSG  1 r 2\r\nhi\r\n",
        msg("a", "1", "r", b"x") * 3,
        msg("a", "1", "r", b"x", HEADER) + msg("a", "1", "r", b"y") + msg("b", "1", "r", b"z", HEADER),
        msg("a" * (MAX_LINE - len("MSG  1 r 2")), "1", "r", b"hi"),
        msg("a" * (MAX_LINE - len("HMSG  1 r 18 20")), "1", "r", b"hi", HEADER) * 2,
    ],
)
def test_rows(wire):
    outcome = same_as_objects(wire)
    assert outcome.events
    assert outcome.error is None
    assert outcome.nbytes == {"1": len(wire)}
    events = columnar_parser().feed(wire)
    assert [type(event) for event in events] == [KIND]
    parser = columnar_parser()
    assert flat([wire + TRAILING], columnar_parser()).events[: len(outcome.events)] == outcome.events
    parser.feed(wire + TRAILING)
    assert parser.held == len(TRAILING) - len(b"PONG\r\n")


@pytest.mark.parametrize(
    "wire",
    [
        msg("a", "1", "", b"", STATUS),
        msg("a", "1", "", b"body", STATUS),
        msg("a", "1", "", b"", HEADER),
        msg("a", "1", "", b"hello"),
        b"HMSG a 1 0 2\r\nhi\r\n",
        # Two blanks: an empty reply is no reply.
        b"MSG a 1  2\r\nhi\r\n",
        b"HMSG a 1  18 18\r\n" + HEADER + b"\r\n",
    ],
)
def test_messages_without_a_reply_are_objects_of_the_factory_behind_the_marker(wire):
    outcome = same_as_objects(wire)
    assert outcome.nbytes == {"1": len(wire)}
    (event,) = columnar_parser().feed(wire)
    assert isinstance(event, Messages)
    assert [item.owner for item in event.items] == ["owner-1"]


def test_statuses_keep_their_place_between_rows():
    row, status = msg("a", "1", "r", b"x"), msg("a", "1", "", b"", STATUS)
    wire = row + row + status + status + row + b"PING\r\n" + row + status
    events = columnar_parser().feed(wire)
    kinds = [(type(event).__name__, len(event) if isinstance(event, KIND) else 1) for event in events]
    assert kinds == [
        (KIND.__name__, 2),
        ("Messages", 1),
        ("Messages", 1),
        (KIND.__name__, 1),
        ("Ping", 1),
        (KIND.__name__, 1),
        ("Messages", 1),
    ]
    same_as_objects(wire)


def test_interleaved_subscriptions():
    wire = b"".join(
        msg(f"s{number}", sid, f"r{number}", b"%d" % number, HEADER if number % 3 == 0 else None)
        for number, sid in enumerate(["1", "77", "1", "2", "2", "1", "1", "404", "1", "77", "77", "2", "404"])
    )
    outcome = same_as_objects(wire)
    assert [row.sid for row in outcome.events] == ["1", "77", "1", "2", "2", "1", "1", "1", "77", "77", "2"]
    assert set(outcome.nbytes) == {"1", "2", "77"}


def test_one_event_a_run():
    wire = msg("a", "1", "r", b"x" * 100) * 1000
    (event,) = columnar_parser().feed(wire)
    assert (len(event), event.nbytes, event.headers) == (1000, len(wire), {})
    assert event.payloads == [b"x" * 100] * 1000


FRAME = b"MSG a 1 r 5\r\nhello\r\n"  # 20 bytes
INTERRUPTIONS = {
    "nothing": b"",
    "another size": msg("a", "1", "r", b"longer"),
    "another spelling of the size": b"MSG a 1 r 0023\r\n" + b"x" * 23 + b"\r\n",
    "headers": msg("a", "1", "r", b"x" * 5, HEADER),
    "status": msg("a", "1", "", b"", STATUS),
    "no reply": msg("a", "1", "", b"x" * 23),
    "empty subject": msg("", "1", "r", b"x" * 23),
    "a sid that begins alike": msg("a", "11", "r", b"x" * 23),
    "other columns": msg("a", "77", "r", b"x" * 23),
    "ping": b"PING\r\n",
    "long subject": msg("a" * 40_000, "1", "r", b"x" * 23),
    "carriage return in a word": b"MSG a\rb 1 r 23\r\n" + b"x" * 23 + b"\r\n",
    "unknown": b"BAD\r\n",
    "payload too short": b"MSG a 1 r 23\r\nshort\r\n",
    "line too long": msg("a" * 33_000, "1", "r" * 33_000, b"x" * 23),
}


@pytest.mark.parametrize("place", [0, 1, 15, 16, 17, 31, 32, 33, 40, 90])
@pytest.mark.parametrize("between", INTERRUPTIONS.values(), ids=INTERRUPTIONS.keys())
def test_many_of_one_size(between, place):
    # Long enough to be read many at a time; the payload looks like a message itself.
    rows = [msg(f"s.{row}", "1", f"r.{row}", FRAME + b"end") for row in range(90)]
    wire = b"".join(rows[:place]) + between + b"".join(rows[place:])
    cut = len(wire) // 3
    outcome = same_as_objects(wire, [wire[:cut], wire[cut:]], [wire[: cut * 2], wire[cut * 2 :]])
    assert len(outcome.events) >= place


def test_a_large_payload_across_chunks():
    data = bytes(range(256)) * 8192
    wire = msg("a", "1", "r0", b"small") + msg("a", "1", "r1", data, HEADER) + msg("a", "1", "r2", b"small")
    pieces = [wire[at : at + 65_536] for at in range(0, len(wire), 65_536)]
    outcome = same_as_objects(wire, pieces, [wire[:20], wire[20:-9], wire[-9:]])
    assert [len(row.data) for row in outcome.events] == [5, len(data), 5]
    parser = columnar_parser()
    for piece in pieces[:-1]:
        parser.feed(piece)
    # Held in pieces, not joined anew with each.
    assert len(parser._chunks) == len(pieces) - 1


@pytest.mark.parametrize("compiled", CORES)
@pytest.mark.parametrize("cut", range(1, 40))
def test_a_route_that_changes_between_two_chunks(compiled: bool, cut: int) -> None:
    """What comes next may be one more row of the columns, half of it held: the newest route decides."""
    parser = columnar_parser(compiled=compiled)
    row = b"MSG a 1 r.1 6\r\nsome d\r\n"
    wire = row * 4
    cut = len(row) + cut
    (columns,) = parser.feed(wire[:cut])
    assert isinstance(columns, Columns | PackedColumns)
    assert len(columns) == cut // len(row)
    parser.routes["1"] = (Got, "new owner")
    runs = parser.feed(wire[cut:])
    assert [item.owner for run in runs for item in run.items] == ["new owner"] * (4 - len(columns))
    del parser.routes["1"]
    assert parser.feed(row * 2) == []
    parser.routes["1"] = (COLUMNAR, (Got, "owner-1"))
    (columns,) = parser.feed(row)
    assert isinstance(columns, Columns | PackedColumns)


def test_a_subscription_that_ends_in_the_middle_of_a_run():
    parser = columnar_parser()
    wire = msg("a", "1", "r", b"x")
    assert [len(event) for event in parser.feed(wire * 2)] == [2]
    del parser.routes["1"]
    assert parser.feed(wire * 2 + b"PING\r\n") == [Ping()]


# Refusals

ROW = msg("a", "1", "r", b"hi")
BAD = {
    "unknown": b"BAD\r\n",
    "size": b"MSG a 1 r -1\r\n",
    "size not seen before": b"MSG a 1 r 9x\r\n",
    "size of 11 digits": b"MSG a 1 r 00000000002\r\nhi\r\n",
    "size in another script": "MSG a 1 r \u0665\r\nhello\r\n".encode(),
    "no size": b"MSG a 1 r \r\n\r\n",
    "too large": b"MSG a 1 r 1001\r\n",
    "header size": b"HMSG a 1 r x 20\r\n",
    "size behind a header size": b"HMSG a 1 r 18 x\r\n",
    "header too large": b"HMSG a 1 r 1001 20\r\n",
    "header larger than the message": b"HMSG a 1 r 19 18\r\n" + HEADER + b"\r\n",
    "header of another kind": b"HMSG a 1 r 5 10\r\nhelloworld\r\n",
    "payload longer than its size": b"MSG a 1 r 2\r\nhi!\r\n",
    "payload shorter than its size": b"MSG a 1 r 3\r\nhi\r\n",
    "header message without its end": b"HMSG a 1 r 18 18\r\n" + HEADER + b"xx",
    "LF": b"MSG a 1 r 2\nhi\r\n",
    "LF in a header message": b"HMSG a 1 r 18 18\n" + HEADER + b"\r\n",
    "only LF": b"\n",
    "too few words": b"MSG a 1\r\n",
    "too many words": b"MSG a 1 r x 2\r\nhi\r\n",
    "too many words of a header message": b"HMSG a 1 r x 12 12\r\n",
    "two blanks": b"MSG a  1 2\r\nhi\r\n",
    "line too long": b"MSG " + b"a" * (MAX_LINE - len("MSG  1 r 2") + 1) + b" 1 r 2\r\nhi\r\n",
    "lower case": b"msg a 1 r 2\r\nhi\r\n",
}

GOOD = {
    "nothing": b"",
    "row": ROW,
    "rows": ROW * 3,
    "header row": ROW + msg("a", "1", "r", b"x", HEADER),
    "status": ROW + msg("a", "1", "", b"", STATUS),
    "other columns": ROW + msg("a", "77", "r", b"x"),
    "object": ROW + msg("a", "2", "r", b"x"),
    "control line": ROW + b"PING\r\n",
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("good", GOOD.values(), ids=GOOD.keys())
def test_rows_in_front_of_malformed_bytes_are_delivered(good, bad):
    wire = good + bad
    outcome = same_as_objects(wire + ROW, max_message=1000)
    assert outcome.error is not None
    before = flat([good], columnar_parser())
    assert (outcome.events, outcome.nbytes) == (before.events, before.nbytes)


# Any stream

SIDS = st.sampled_from(["1", "1", "1", "77", OBJECT_SID, "404"])
TOKENS = st.text(st.characters(exclude_characters=" \r\n", exclude_categories=["Cs"]), min_size=1, max_size=6)
PAYLOADS = st.one_of(
    st.binary(max_size=40), st.sampled_from([b"", b"\r\n", b"\n", b"PING\r\n", b"MSG a 1 r 5\r\n", b"\r"])
)
MESSAGES = st.builds(
    msg,
    TOKENS,
    SIDS,
    st.one_of(TOKENS, TOKENS, st.just("")),
    PAYLOADS,
    st.one_of(st.none(), st.none(), st.sampled_from([HEADER, STATUS, b"NATS/1.0\r\n\r\n"])),
)
CONTROL = st.sampled_from(
    [b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'Stale Connection'\r\n", b"INFO {}\r\n"]
)
STREAMS = st.lists(st.one_of(MESSAGES, MESSAGES, MESSAGES, CONTROL), max_size=12).map(b"".join)


@st.composite
def cuts_of(draw, wire: bytes) -> list[bytes]:
    ends = sorted(draw(st.lists(st.integers(0, len(wire)), max_size=12)))
    return [wire[start:end] for start, end in zip([0, *ends], [*ends, len(wire)], strict=True)]


@settings(deadline=None)
@given(st.data(), STREAMS)
def test_valid_streams(data, wire):
    outcome = same_as_objects(wire, data.draw(cuts_of(wire)))
    assert outcome.error is None


@st.composite
def mutated(draw):
    wire = bytearray(draw(STREAMS))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(wire)))
        action = draw(st.sampled_from(["insert", "delete", "replace", "double"]))
        if action == "insert":
            wire[at:at] = draw(st.sampled_from([b" ", b"\r", b"\n", b"\r\n", b"\x00", b"\xff", b"9", b"-"]))
        elif action == "delete":
            del wire[at : at + draw(st.integers(1, 5))]
        elif action == "replace":
            wire[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        else:
            wire[at:at] = wire[max(0, at - 6) : at]
    return bytes(wire)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.data(), mutated())
@example(data=None, wire=ROW + b"MSG a 1 r 2x\r\nhi\r\n")
@example(data=None, wire=ROW + b"HMSG a 1 r 0 2\r\nhi\r\n" + ROW)
def test_mutated_streams(data, wire):
    outcome = same_as_objects(wire, data.draw(cuts_of(wire)) if data else [wire[:1], wire[1:]])
    assert outcome.events or outcome.error or not flat([wire], new_parser()).events


WORDS = st.sampled_from(
    b"MSG HMSG MSG HMSG PING 1 12 0 -1 a r NATS/1.0 99999999999 \xff".split(b" ")
    + [b" "] * 5
    + [b"\r\n"] * 3
    + [b"\n", b"\r", ROW, ROW]
)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.data(), st.lists(WORDS, max_size=30).map(b"".join))
def test_protocol_words_in_any_order(data, wire):
    outcome = same_as_objects(wire, data.draw(cuts_of(wire)))
    assert len(outcome.events) <= len(wire)
