"""The compiled core packs columns; the batch must be what the lists of the Python loop give."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jetspark.arrow import SCHEMA, to_record_batch
from jetspark.errors import NotJetStreamMessage
from jetspark.wire import backend
from jetspark.wire.columns import AnyColumns, Columns, PackedColumns, join_columns
from support.columns_wire import V1, V2, line, read


def outcome(columns: AnyColumns) -> Any:
    try:
        batch = to_record_batch(columns, SCHEMA.names, "S")
    except NotJetStreamMessage as error:
        return str(error)
    batch.validate(full=True)
    return batch


def test_the_core_that_was_asked_for_runs() -> None:
    packed = read(line(b"a", V1 % 1, b"x"), compiled=True)
    assert type(packed) is (PackedColumns if backend == "c" else Columns)
    assert type(read(line(b"a", V1 % 1, b"x"), compiled=False)) is Columns


@pytest.mark.parametrize(
    "reply",
    [
        V1 % 5,
        V2 % 5,
        b"$JS.ACK.s.c.1.5.7.999.0",
        b"$JS.ACK.s.c.1.5.7.0.0",
        b"$JS.ACK.s.c.1.999999999999999999.7.999999999999999999.0",
        b"$JS.ACK.s.c.1.5.7.9223372036854775807.0",
        b"$JS.ACK._.h.s.c.1.2.3.4.5",
        b"$JS.ACK._.h.s.c.1.2.3.4.5.a.b.c.d.e",
        # What is no ack reply is named, by both.
        b"$JS.ACK._.h.s.c.1.2.3.4",
        b"$JS.ACK.s.c.1.2.3.4",
        b"$JS.ACK.s.c.1.x.7.5.0",
        b"$JS.ACK.s.c.1..7.5.0",
        b"$JS.ACK.s.c.1.5.7.-5.0",
        b"........",
        b"_INBOX.a.b.c.1.2.3.4.5",
        b"r\xff\xfe",
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_positions(reply: bytes, place: int) -> None:
    replies = [V1 % 1, V1 % 2]
    replies.insert(place, reply)
    wire = b"".join(line(b"a", one, b"x") for one in replies)
    assert outcome(read(wire, compiled=True)) == outcome(read(wire, compiled=False))


def test_rows_of_many_chunks_keep_their_bytes_and_headers() -> None:
    header = b"NATS/1.0\r\nKey: %d\r\n\r\n"
    wires = [
        b"".join(
            line(
                b"s.%d" % row,
                V1 % (100 * chunk + row + 1),
                b"%d/%d" % (chunk, row) * row,
                header % row if row % 3 == 0 else None,
            )
            for row in range(20)
        )
        for chunk in range(5)
    ]
    joined = join_columns([read(bytes(bytearray(wire)), compiled=True) for wire in wires])
    expected = join_columns([read(wire, compiled=False) for wire in wires])
    assert joined.size == expected.size
    assert outcome(joined) == outcome(expected)
    for columns in (joined, expected):
        columns.truncate(33)
    assert len(joined) == 33
    assert outcome(joined) == outcome(expected)
    rows = [32, 0, 21]
    assert outcome(joined.select(rows)) == outcome(expected.select(rows))
    mixed = join_columns([read(wires[0], compiled=True), read(wires[1], compiled=False)])
    assert outcome(mixed) == outcome(join_columns([read(wire, compiled=False) for wire in wires[:2]]))


TOKENS = st.text(st.characters(exclude_characters=" \r\n", exclude_categories=["Cs"]), min_size=1, max_size=6)
LINES = st.builds(
    line,
    st.one_of(
        TOKENS.map(str.encode), st.binary(min_size=1, max_size=4).filter(lambda b: not set(b" \r\n") & set(b))
    ),
    st.one_of(
        st.integers(1, 10**18).map(lambda seq: V1 % seq),
        st.integers(1, 10**18).map(lambda seq: V2 % seq),
        TOKENS.map(str.encode),
    ),
    st.binary(max_size=30),
    st.one_of(st.none(), st.none(), st.just(b"NATS/1.0\r\nA: b\r\n\r\n")),
)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(LINES, min_size=1, max_size=20))
@example([line(b"\xff", V1 % 1, b"")])
def test_any_rows(lines: list[bytes]) -> None:
    wire = b"".join(lines)
    assert outcome(read(wire, compiled=True)) == outcome(read(wire, compiled=False))
