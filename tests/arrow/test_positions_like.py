"""Sequence and time of replies that begin as the one before: the compiled core against pure Python.

Packed columns are read by the core, the same as lists by Python. Without the core both are the latter.
"""

from __future__ import annotations

from itertools import cycle, pairwise, product
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jetspark.arrow import _positions
from jetspark.errors import NotJetStreamMessage
from jetspark.wire import Parser, backend
from jetspark.wire.columns import COLUMNAR, Columns, PackedColumns

if TYPE_CHECKING:
    from collections.abc import Sequence

NS = b"1700000000123456789"


def refused(*arguments: Any) -> None:
    raise AssertionError("no statuses here")


LINES = [
    b"MSG a 1 %b 1\r\nx\r\n",
    b"MSG a.longer.subject 1 %b 13\r\nMSG a 1 b 1\r\n\r\n",
    b"HMSG a 1 %b 12 13\r\nNATS/1.0\r\n\r\nx\r\n",
    b"HMSG a 1 %b 0 1\r\nx\r\n",
]


def read(replies: list[bytes], *, compiled: bool, lines: Sequence[int] = (0,)) -> Columns | PackedColumns:
    parser = Parser(compiled=compiled)
    parser.routes["1"] = (COLUMNAR, (refused, None))
    text = b"".join(LINES[line] % reply for line, reply in zip(cycle(lines), replies, strict=False))
    (columns,) = parser.feed(text)
    assert isinstance(columns, Columns | PackedColumns)
    assert columns.replies == replies
    return columns


def outcome(columns: Columns | PackedColumns) -> Any:
    """Both columns as numbers, or how it was refused."""
    try:
        sequences, times = _positions(columns)
    except Exception as error:
        return type(error), str(error)
    assert len(sequences) == len(times) == len(columns)
    return sequences.to_pylist(), times.cast("int64").to_pylist()


def same(replies: list[bytes], lines: Sequence[int] = (0,)) -> Any:
    packed = read(replies, compiled=True, lines=lines)
    assert type(packed) is (PackedColumns if backend == "c" else Columns)
    expected = outcome(read(replies, compiled=False, lines=lines))
    assert outcome(packed) == expected
    return expected


def v1(
    sequence: bytes = b"5",
    time: bytes = NS,
    pending: bytes = b"0",
    *,
    consumer: bytes = b"c",
    delivered: bytes = b"1",
    consumer_sequence: bytes = b"7",
) -> bytes:
    return b".".join([b"$JS.ACK.S", consumer, delivered, sequence, consumer_sequence, time, pending])


def v2(sequence: bytes = b"5", time: bytes = NS, pending: bytes = b"0", *more: bytes) -> bytes:
    return b".".join([b"$JS.ACK._.hash.S.c.1", sequence, b"7", time, pending, *more])


PLAIN = {
    "9 tokens": v1(),
    "9 tokens, higher": v1(b"123456789", NS[:-1] + b"0", b"1234567"),
    "11 tokens": v2(),
    "12 tokens": v2(b"6", NS, b"3", b"token"),
    "15 tokens": v2(b"6", NS, b"3", b"a", b"b", b"c", b"d"),
    "other consumer": v1(b"6", consumer=b"d"),
    "longer consumer": v1(b"6", consumer=b"c2"),
    "consumer in digits": v1(b"6", consumer=b"1"),
    "redelivered": v1(b"6", delivered=b"2"),
    "redelivered often": v1(b"6", delivered=b"12"),
    "time of 18 digits": v1(b"6", b"999999999999999999"),
    "time of 17 digits": v1(b"6", b"12345678901234567"),
    "time of 3 digits": v1(b"6", b"999"),
    "time 0": v1(b"6", b"0"),
    "the last time of all": v1(b"6", b"9223372036854775807"),
    "time of 19 digits with a zero in front": v1(b"6", b"0999999999999999999"),
    "sequence of 18 digits": v1(b"9" * 18),
    "sequence of 19 digits": v1(b"1" + b"0" * 18),
    "the last sequence of all": v1(b"9223372036854775807"),
    "sequence 0": v1(b"0"),
    "sequence with zeros in front": v1(b"0005"),
    "consumer sequence of 20 digits": v1(b"6", consumer_sequence=b"18446744073709551615"),
    "pending of 20 digits": v1(b"6", NS, b"18446744073709551615"),
}
"""What every road reads."""

ODD = {
    "sequence too large": v1(b"9223372036854775808"),
    "sequence of 20 digits": v1(b"18446744073709551615"),
    "time too large by 1": v1(b"6", b"9223372036854775808"),
    "time too large by less than a microsecond": v1(b"6", b"9223372036854775999"),
    "time too large by a microsecond": v1(b"6", b"9223372036854776000"),
    "time of 19 nines": v1(b"6", b"9" * 19),
    "time of 20 digits": v1(b"6", b"1" + NS),
    "time that is none": v1(b"6", NS[:-1] + b"x"),
    "time that is none, in front": v1(b"6", b"x" + NS[1:]),
    "time below 0": v1(b"6", b"-" + NS[1:]),
    "no time": v1(b"6", b""),
    "sequence that is none": v1(b"6x"),
    "no sequence": v1(b""),
    "sequence below 0": v1(b"-6"),
    "two sequences": v1(b"6.6"),
    "8 tokens": b".".join([b"$JS.ACK.S.c.1.6.7", NS]),
    "10 tokens": v1(b"6") + b".x",
    "10 tokens that begin alike": b"$JS.ACK.S.c.1.6.7.7." + NS + b".0",
    "other first word": b"$JX" + v1(b"6")[3:],
    "no ack": b"_INBOX.x.y",
}
"""What some or all roads refuse."""

CASES = PLAIN | ODD


@pytest.mark.parametrize("reply", CASES.values(), ids=CASES.keys())
def test_each_alone(reply: bytes) -> None:
    assert same([reply])


@pytest.mark.parametrize("reply", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_among_equals(reply: bytes, place: int) -> None:
    replies = [v1(b"%d" % number, consumer_sequence=b"%d" % number) for number in (8, 9, 10)]
    replies.insert(place, reply)
    assert same(replies)


@pytest.mark.parametrize("reply", PLAIN.values(), ids=PLAIN.keys())
def test_all_alike(reply: bytes) -> None:
    sequences, times = same([reply] * 5)
    tokens = reply.split(b".")
    first = 5 if len(tokens) == 9 else 7
    assert sequences == [int(tokens[first])] * 5
    assert times == [int(tokens[first + 2]) // 1000] * 5


# 18 digits are what the core takes for a sequence; with more of them Python has to look.
BY_THE_CORE = {
    name: reply
    for name, reply in PLAIN.items()
    if name not in ("sequence of 19 digits", "the last sequence of all")
}


@pytest.mark.parametrize("first", [None, *BY_THE_CORE.values()], ids=["itself", *BY_THE_CORE.keys()])
def test_the_core_reads_them_itself_whatever_the_first_is_like(first: bytes | None) -> None:
    # Python would find the same, but much later: replies with a domain had gone that way.
    for reply in BY_THE_CORE.values():
        columns = read([first or reply, reply, reply], compiled=True)
        assert isinstance(columns, Columns) or columns.rows.positions() is not None


@pytest.mark.slow
def test_every_pair() -> None:
    for pair in product(CASES.values(), repeat=2):
        assert same(list(pair))


@pytest.mark.parametrize(
    "reply",
    [
        v1(b"6", NS, b"x"),
        v1(b"6", NS, b""),
        v1(b"6", NS, b"0x"),
        v1(b"6", NS, b"-1"),
        v1(b"6", consumer_sequence=b""),
        v1(b"6", consumer_sequence=b"x"),
        v1(b"6", consumer_sequence=b"7x"),
        v1(b"6", delivered=b"x"),
        v1(b"6", delivered=b""),
        v1(b"6", delivered=b"-1"),
        v1(b"6", delivered=b"1" + b"0" * 20),
        v1(b"6", delivered=b"18446744073709551616"),
        v1(b"6", NS, b"1" + b"0" * 20),
        v1(b"6", NS, b"18446744073709551616"),
        v1(b"6", consumer_sequence=b"1" + b"0" * 20),
        v1(b"0x6"),
        v1(b"+6"),
        v1(b"6", b"+" + NS),
        b"$JX" + v1(b"6")[3:],
        b"$JS.ACC" + v1(b"6")[7:],
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("other", [v1(b"8"), v2(b"8"), v2(b"8", NS, b"0", b"more")])
def test_what_parse_ack_reply_refuses_is_refused_whatever_is_beside_it(
    reply: bytes, place: int, other: bytes
) -> None:
    # Also where nobody asks for the number that is wrong: what comes out must not depend on the neighbours.
    replies = [other, v1(b"9")]
    replies.insert(place, reply)
    assert same(replies)[0] is NotJetStreamMessage
    assert same([reply] * 3)[0] is NotJetStreamMessage


def test_counting_over_every_length() -> None:
    # 9 -> 10, 99 -> 100 and so on: the front is the same, the lengths are not.
    numbers = [10**power + step for power in range(18) for step in (-1, 0) if 10**power + step < 10**18]
    replies = [v1(b"%d" % one, b"%d" % (int(NS) + one % 10**6), b"%d" % one) for one in numbers]
    sequences, times = same(replies)
    assert sequences == numbers
    assert times == [(int(NS) + one % 10**6) // 1000 for one in numbers]
    assert all(before <= after for before, after in pairwise(sequences))


NUMBERS = st.one_of(
    st.integers(0, 2**63 - 1).map(lambda number: b"%d" % number), st.sampled_from([b"0", b"7", b"10", b"007"])
)
TIMES = st.one_of(
    st.integers(10**18, 2**63 - 1).map(lambda number: b"%d" % number),
    st.integers(0, 10**20 - 1).map(lambda number: b"%d" % number),
    st.just(NS),
)
REPLIES = st.one_of(
    st.builds(v1, NUMBERS, TIMES, NUMBERS, consumer=st.sampled_from([b"c", b"c", b"d", b"cc"])),
    st.builds(v1, NUMBERS, st.just(NS), NUMBERS, consumer_sequence=NUMBERS),
    st.builds(v2, NUMBERS, TIMES, NUMBERS),
    st.builds(v2, NUMBERS, TIMES, NUMBERS, st.sampled_from([b"a", b"token"])),
    st.sampled_from(list(CASES.values())),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.lists(REPLIES, min_size=1, max_size=12))
@example([v1(b"5"), v1(b"6"), v2(b"7"), v1(b"8")])
def test_any_replies(replies: list[bytes]) -> None:
    assert same(replies)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(
    st.lists(REPLIES, min_size=1, max_size=12),
    st.lists(st.integers(0, len(LINES) - 1), min_size=1, max_size=5),
)
@example([v1(b"%d" % number) for number in range(8, 13)], [0, 2, 1])
def test_any_replies_in_lines_of_any_kind(replies: list[bytes], lines: list[int]) -> None:
    assert same(replies, lines)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.integers(0, 4), st.integers(0, 100), st.sampled_from([bytes([byte]) for byte in b"..0199x-\xff$"]))
def test_one_byte_of_one_among_equals(row: int, place: int, byte: bytes) -> None:
    replies = [v1(b"%d" % (100 + number)) for number in range(5)]
    changed = replies[row]
    place = 5 + place % (len(changed) - 5)
    # The words before the sequence are names, except for the count of deliveries.
    replies[row] = changed[:place] + byte + changed[place + 1 :]
    assert same(replies)
