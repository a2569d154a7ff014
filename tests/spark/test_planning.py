"""Planning, as tables, and the laws that hold for every input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetspark.spark.planning import Backlog, Range, limit, should_wait, split


def r(stream: str, begin: int, end: int) -> Range:
    return Range(stream, begin, end, "now")


@pytest.mark.parametrize(
    ("ranges", "least", "most", "expected"),
    [
        ([], None, None, []),
        ([r("A", 1, 1)], None, None, []),
        ([r("A", 1, 11)], None, None, [(1, 11)]),
        ([r("A", 1, 11)], 3, None, [(1, 4), (4, 7), (7, 11)]),
        ([r("A", 1, 11)], None, 4, [(1, 4), (4, 7), (7, 11)]),
        ([r("A", 1, 11)], 2, 4, [(1, 4), (4, 7), (7, 11)]),
        ([r("A", 1, 3)], 5, None, [(1, 2), (2, 3)]),
        ([r("A", 1, 101), r("B", 1, 11)], 4, None, [(1, 34), (34, 67), (67, 101), (1, 11)]),
        ([r("A", 1, 11), r("B", 5, 5), r("C", 1, 11)], 2, None, [(1, 11), (1, 11)]),
    ],
)
def test_split(
    ranges: list[Range], least: int | None, most: int | None, expected: list[tuple[int, int]]
) -> None:
    pieces = split(ranges, min_partitions=least, max_messages=most)
    assert [(one.begin, one.end) for one in pieces] == expected


def test_split_keeps_what_belongs_to_the_range() -> None:
    whole = Range("A", 1, 9, "now", ("a.>",), earliest=True)
    assert all(
        (one.stream, one.created, one.subjects, one.earliest) == ("A", "now", ("a.>",), True)
        for one in split([whole], min_partitions=4)
    )


def test_last_per_subject_is_one_piece() -> None:
    whole = Range("A", 1, 1_000_000, "now", last_per_subject=True)
    assert split([whole], min_partitions=8, max_messages=10) == [whole]


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 500)), max_size=6),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 200),
)
def test_split_covers_every_sequence_once(
    shapes: list[tuple[int, int]], least: int | None, most: int | None
) -> None:
    ranges = [r(f"S{index}", begin, begin + size) for index, (begin, size) in enumerate(shapes)]
    pieces = split(ranges, min_partitions=least, max_messages=most)
    covered = [(one.stream, sequence) for one in pieces for sequence in range(one.begin, one.end)]
    assert covered == [(one.stream, sequence) for one in ranges for sequence in range(one.begin, one.end)]
    assert all(len(one) > 0 for one in pieces)
    if most is not None:
        assert all(len(one) <= most for one in pieces)
    if least is not None:
        assert len(pieces) >= min(least, len(covered))


@pytest.mark.parametrize(
    ("backlogs", "messages", "size", "expected"),
    [
        ({"A": Backlog(1, 101)}, None, None, {"A": 101}),
        ({"A": Backlog(1, 101)}, 10, None, {"A": 11}),
        ({"A": Backlog(1, 101), "B": Backlog(1, 301)}, 40, None, {"A": 11, "B": 31}),
        ({"A": Backlog(1, 2), "B": Backlog(1, 1001)}, 10, None, {"A": 1, "B": 11}),
        ({"A": Backlog(5, 5), "B": Backlog(1, 101)}, 10, None, {"A": 5, "B": 11}),
        ({"A": Backlog(1, 3), "B": Backlog(1, 2), "C": Backlog(1, 2)}, 1, None, {"A": 2, "B": 1, "C": 1}),
        ({"A": Backlog(1, 101, 100.0)}, None, 1000, {"A": 11}),
        ({"A": Backlog(1, 101, 100.0)}, 5, 1000, {"A": 6}),
        ({"A": Backlog(1, 101, 5000.0)}, None, 1000, {"A": 2}),
    ],
)
def test_limit(
    backlogs: dict[str, Backlog], messages: int | None, size: int | None, expected: dict[str, int]
) -> None:
    assert limit(backlogs, max_messages=messages, max_bytes=size) == expected


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8), st.integers(1, 500))
def test_a_limit_is_kept_and_there_is_always_progress(sizes: list[int], most: int) -> None:
    backlogs = {f"S{index}": Backlog(1, 1 + size) for index, size in enumerate(sizes)}
    taken = {name: end - 1 for name, end in limit(backlogs, max_messages=most).items()}
    assert sum(taken.values()) == min(most, sum(sizes))
    assert all(taken[name] <= backlogs[name].messages for name in taken)


@pytest.mark.parametrize(
    ("available", "minimum", "waited", "expected"),
    [
        (5, None, 0.0, False),
        (5, 10, 0.0, True),
        (10, 10, 0.0, False),
        (5, 10, 60.0, False),
        (0, 10, 1.0, True),
    ],
)
def test_should_wait(available: int, minimum: int | None, waited: float, expected: bool) -> None:
    assert should_wait(available, minimum=minimum, waited=waited, max_delay=60.0) is expected
