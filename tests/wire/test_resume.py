"""Columns that go on in the next chunk: the compiled core completes what is held and reads on, in one call.

That any cut of any stream gives one outcome is in ``test_columns`` and ``test_parser_splits``; here are the
cases in which the call must keep its hands off, and what it keeps.
"""

from __future__ import annotations

import itertools
import random
import sys
from typing import Any

import pytest

from jetspark.wire import Messages, Parser, Ping
from jetspark.wire._backend import speed
from jetspark.wire.columns import COLUMNAR, Columns, PackedColumns
from support.columns_wire import V1, line

MAX_LINE, MAX_MESSAGE = 65_536, 1 << 26
HEADER = b"NATS/1.0\r\nA: b\r\n\r\n"
STATUS = b"HMSG in 1 16 16\r\nNATS/1.0 100\r\n\r\n\r\n"


def note(subject: str, reply: str, data: bytes, header: bytes | None, owner: Any) -> tuple[str, bytes]:
    return subject, data


def parser_of(*, compiled: bool) -> Parser:
    parser = Parser(compiled=compiled)
    parser.routes["1"] = (COLUMNAR, (note, None))
    parser.routes["2"] = (note, None)
    return parser


def story(events: list[Any]) -> list[Any]:
    """What came, in order; a run of rows is its rows."""
    told: list[Any] = []
    for event in events:
        if isinstance(event, Columns | PackedColumns):
            rows = zip(event.subjects, event.replies, event.payloads, strict=True)
            told += [(*row, event.headers.get(index)) for index, row in enumerate(rows)]
        elif isinstance(event, Messages):
            told += event.items
        else:
            told.append(type(event))
    return told


def sizes(events: list[Any]) -> tuple[int, int]:
    """Bytes of the wire, and as the server counts them."""
    columns = [event for event in events if isinstance(event, Columns | PackedColumns)]
    return sum(one.nbytes for one in columns), sum(one.size for one in columns)


def rows(count: int, size: int = 5_000, seed: int = 0) -> list[bytes]:
    rng = random.Random(seed)
    made = []
    for row in range(count):
        header = HEADER if rng.random() < 0.2 else None
        made.append(
            line(b"s.%d" % rng.randrange(2), V1 % (row + 1), rng.randbytes(rng.randrange(size)), header)
        )
    return made


BETWEEN = [STATUS, b"PING\r\n", b"MSG other 2 3\r\nabc\r\n", b"MSG unknown 9 3\r\nabc\r\n", b"+OK\r\n"]


@pytest.mark.parametrize("cut", [100, 777, 4_096, 6_001, 20_000, 1 << 20])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_comes_between_the_rows(cut: int, seed: int) -> None:
    rng = random.Random(seed)
    pieces = rows(60, seed=seed)
    for _ in range(12):
        pieces.insert(rng.randrange(len(pieces)), rng.choice(BETWEEN))
    wire = b"".join(pieces)
    outcomes = []
    for compiled in (True, False):
        parser = parser_of(compiled=compiled)
        events = [event for at in range(0, len(wire), cut) for event in parser.feed(wire[at : at + cut])]
        assert (parser.error, parser.held) == (None, 0)
        outcomes.append((story(events), sizes(events)))
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][0]) > 60


def test_a_route_that_is_gone_gets_nothing_more() -> None:
    wire = b"".join(rows(3))
    parser = parser_of(compiled=True)
    assert story(parser.feed(wire[:-10]))
    del parser.routes["1"]
    assert parser.feed(wire[-10:] + b"PING\r\n") == [Ping()]
    assert parser.held == 0


def test_a_route_that_became_one_of_objects_gets_them() -> None:
    parser = parser_of(compiled=True)
    parser.feed(line(b"a", V1 % 1, b"x"))
    parser.routes["1"] = (note, None)
    assert story(parser.feed(line(b"a", V1 % 2, b"y"))) == [("a", b"y")]


def test_a_message_in_many_pieces() -> None:
    first, second = line(b"a", V1 % 1, b"x"), line(b"a", V1 % 2, bytes(100_000))
    parser = parser_of(compiled=True)
    parser.feed(first)
    events = [event for at in range(0, len(second), 333) for event in parser.feed(second[at : at + 333])]
    assert story(events) == [(b"a", V1 % 2, bytes(100_000), None)]
    assert sizes(events)[0] == len(second)
    assert parser.held == 0


@pytest.mark.parametrize("broken", [b"XX", b"\rX"])
def test_a_message_that_ends_wrong_is_refused_behind_the_rows_before_it(broken: bytes) -> None:
    wire = line(b"a", V1 % 1, b"x") + line(b"a", V1 % 2, bytes(5_000))
    parser = parser_of(compiled=True)
    assert len(story(parser.feed(wire[:-3_000]))) == 1
    with pytest.raises(Exception, match="is not followed by CRLF"):
        parser.feed(wire[-3_000:-2] + broken)
    assert parser.error is not None
    assert parser.held == 0


# Tests by themselves are no tests where there is no core.
if speed is not None:
    SID = b"1"

    def resume(
        held: list[Any], need: int, buf: bytes, headers: dict[int, bytes] | None = None
    ) -> tuple[int, Any]:
        assert speed is not None
        made = speed.Rows()
        found = {} if headers is None else headers
        return made.resume(held, need, buf, SID, found, MAX_LINE, MAX_MESSAGE, True), made

    ONE, TWO = line(b"a", V1 % 1, b"one" * 9), line(b"a", V1 % 2, b"two", HEADER)

    @pytest.mark.parametrize("cut", range(1, len(ONE)))
    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_what_is_held_is_the_first_row(cut: int, kind: type[Any]) -> None:
        headers: dict[int, bytes] = {}
        half = cut // 2
        pieces = [kind(ONE[:half]), kind(ONE[half:cut])]
        end, made = resume(pieces, len(ONE), ONE[cut:] + TWO + b"MSG a", headers)
        assert (end, made.need, len(made)) == (len(ONE) - cut + len(TWO), 0, 2)
        assert made.cells(2) == [b"one" * 9, b"two"]
        assert headers == {1: HEADER}
        assert made.size() == sum(map(len, [b"a", V1 % 1, b"one" * 9, b"a", V1 % 2, b"two", HEADER]))

    def test_nothing_is_held() -> None:
        end, made = resume([], 0, ONE + TWO[:-1])
        assert (end, made.need, made.cells(2)) == (len(ONE), len(TWO), [b"one" * 9])

    @pytest.mark.parametrize(
        ("held", "need", "buf"),
        [
            ([ONE[:10]], len(ONE), ONE[10:-1]),
            ([ONE[:10]], 0, ONE[10:]),
            ([ONE], len(ONE), TWO),
            ([ONE[:10]], 5, ONE[10:]),
            ([ONE[:10]], -1, ONE[10:]),
            ([STATUS[:10]], len(STATUS), STATUS[10:] + ONE),
            ([b"MSG a 2 r 1\r\n"], 16, b"x\r\n" + ONE),
            ([], 0, b""),
            ([], 0, STATUS + ONE),
            ([], 0, ONE[:-1]),
        ],
        ids=[
            "too little", "a line", "all is there", "more than is needed", "less than nothing", "a status",
            "somebody else's", "empty", "a status first", "the first one is cut",
        ],
    )  # fmt: skip
    def test_what_it_leaves_alone(held: list[bytes], need: int, buf: bytes) -> None:
        end, made = resume(held, need, buf)
        assert (end, len(made)) == (0, 0)

    @pytest.mark.parametrize(
        "arguments",
        [
            (),
            ([], 0, b"", SID, {}, 1, 1),
            ((), 0, b"", SID, {}, 1, 1, True),
            ([], "0", b"", SID, {}, 1, 1, True),
            ([], 0, "", SID, {}, 1, 1, True),
            ([], 0, b"", "1", {}, 1, 1, True),
            ([], 0, b"", SID, [], 1, 1, True),
            (["x"], 5, b"MSG a", SID, {}, 1, 1, True),
            ([7], 5, b"MSG a", SID, {}, 1, 1, True),
            ([memoryview(bytes(8)).cast("i")], 5, b"MSG a", SID, {}, 1, 1, True),
        ],
    )
    def test_arguments_that_are_none(arguments: tuple[Any, ...]) -> None:
        assert speed is not None
        with pytest.raises(TypeError):
            speed.Rows().resume(*arguments)

    def test_it_keeps_what_its_rows_point_into_and_nothing_else() -> None:
        held, buf = [bytearray(ONE[:20])], ONE[20:] + TWO
        counts = sys.getrefcount(held[0]), sys.getrefcount(buf)
        end, made = resume(held, len(ONE), buf)
        assert end == len(buf)
        assert (sys.getrefcount(held[0]), sys.getrefcount(buf)) == (counts[0], counts[1] + 1)
        held[0].extend(b"nobody has a view of it")
        held.clear()
        assert made.cells(2) == [b"one" * 9, b"two"]
        del made
        assert sys.getrefcount(buf) == counts[1]

    def test_rounds_do_not_add_up() -> None:
        """What is refused leaves no reference behind either."""
        held, buf = [ONE[:20]], STATUS
        counts = [sys.getrefcount(one) for one in (held, held[0], buf)]
        for need in itertools.chain.from_iterable([(len(ONE), 21, 0)] * 100):
            assert resume(held, need, buf)[0] == 0
        assert [sys.getrefcount(one) for one in (held, held[0], buf)] == counts
