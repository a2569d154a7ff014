"""Planning, as tables, and the laws that hold for every input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetspark.spark.source.claims import Seen
from jetspark.spark.source.planning import (
    RANGE_COST,
    TASK_COST,
    Backlog,
    Range,
    limit,
    plan,
    should_wait,
    split,
)


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
    whole = Range("A", 1, 9, "now", ("a.>",), earliest=True, seen=Seen(1, 8))
    pieces = split([whole], min_partitions=4)
    assert {(one.stream, one.created, one.subjects, one.seen) for one in pieces} == {
        ("A", "now", ("a.>",), Seen(1, 8))
    }
    # Messages that expire in the middle of a stream were there when the range was planned.
    assert [one.earliest for one in pieces] == [True, False, False, False]
    assert [one.earliest for one in split([whole], min_partitions=4, max_messages=4)] == [
        True,
        *[False] * 3,
    ]


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


def sizes(found: list[tuple[Range, ...]]) -> list[list[int]]:
    return [[len(one) for one in partition] for partition in found]


def streams(*lengths: int) -> list[Range]:
    return [r(f"S{index:04}", 1, 1 + length) for index, length in enumerate(lengths)]


@pytest.mark.parametrize(
    ("lengths", "least", "most", "expected"),
    [
        ([], None, None, []),
        ([0, 0], None, None, []),
        ([20], None, None, [[20]]),
        # Small ones together, in the order of the streams.
        ([20, 0, 30, 40], None, None, [[20, 30, 40]]),
        # As many partitions as come to the cost of a task each, evenly.
        ([4000] * 6, None, None, [[4000, 4000]] * 3),
        ([9000, 100, 100, 9000], None, None, [[9000], [100, 100], [9000]]),
        # Large ones keep a task each, whatever else there is.
        ([100_000, 20, 60_000, 20], None, None, [[100_000], [20, 20], [60_000]]),
        ([600_000], None, 250_000, [[200_000], [200_000], [200_000]]),
        # minPartitions holds for what there is, cut or not.
        ([20, 30, 40], 2, None, [[20, 30], [40]]),
        ([20, 30, 40], 3, None, [[20], [30], [40]]),
        ([50_000, 20, 20, 20], 3, None, [[50_000], [20, 20], [20]]),
        ([1, 1], 5, None, [[1], [1]]),
        # maxMessagesPerPartition is for the whole partition.
        ([20, 30, 40], None, 60, [[20, 30], [40]]),
        ([100] * 4, None, 100, [[100]] * 4),
    ],
)
def test_plan(lengths: list[int], least: int | None, most: int | None, expected: list[list[int]]) -> None:
    assert sizes(plan(streams(*lengths), min_partitions=least, max_messages=most)) == expected


def test_a_thousand_small_streams_are_some_tasks() -> None:
    found = plan(streams(*[20] * 1000), max_messages=250_000)
    assert len(found) == 52
    assert {len(one) for one in found} == {19, 20}


def test_last_per_subject_is_never_cut_but_shares_a_task() -> None:
    wanted = [Range(f"S{index}", 1, 11, "now", last_per_subject=True) for index in range(3)]
    assert plan(wanted, min_partitions=2, max_messages=4) == [(one,) for one in wanted]
    assert plan(wanted) == [tuple(wanted)]


@given(
    st.lists(st.integers(0, 30_000), max_size=20),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(2000, 20_000),
)
def test_a_plan_has_every_piece_once_and_keeps_the_limits(
    lengths: list[int], least: int | None, most: int | None
) -> None:
    ranges = streams(*lengths)
    pieces = split(ranges, min_partitions=least, max_messages=most)
    found = plan(ranges, min_partitions=least, max_messages=most)
    assert found == plan(ranges, min_partitions=least, max_messages=most)
    key = lambda one: (one.stream, one.begin)  # noqa: E731
    assert sorted((one for partition in found for one in partition), key=key) == pieces
    assert all(partition == tuple(sorted(partition, key=key)) for partition in found)
    assert [key(partition[0]) for partition in found] == sorted(key(partition[0]) for partition in found)
    assert len(found) >= min(least or 1, len(pieces))
    for partition in found:
        rows = sum(map(len, partition))
        assert len(partition) == 1 or most is None or rows <= most
        # None is larger than two of the cost that makes a task worth it.
        assert len(partition) == 1 or rows + RANGE_COST * len(partition) < 2 * TASK_COST


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
