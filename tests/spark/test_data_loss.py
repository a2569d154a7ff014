"""failOnDataLoss: what counts as loss, on the driver and in a task."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql.streaming.datasource import ReadAllAvailable

from jetspark.spark.source.data_loss import DataLossError
from jetspark.spark.source.options import parse_source
from jetspark.spark.source.planning import Range
from jetspark.spark.source.range_proof import first_gap
from jetspark.spark.source.range_reader import RangeReader
from jetspark.spark.source.schema import SCHEMA, arrow_schema
from jetspark.spark.source.stream_reader import JetStreamStreamReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.spark_helpers import Box


@pytest.fixture
def reader(box: Box) -> Iterator[Any]:
    made: list[JetStreamStreamReader] = []

    def make(stream: str, **options: Any) -> JetStreamStreamReader:
        texts = {name: str(value) for name, value in box.options(stream, options).items()}
        made.append(JetStreamStreamReader(parse_source(texts), SCHEMA))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def task(box: Box, wanted: Range, *, fail: bool = True) -> list[int]:
    """The sequences that a task reads."""
    made = RangeReader(
        box.js, arrow_schema(SCHEMA), fail_on_data_loss=fail, batch_rows=1000, buffer_messages=1000
    )
    return [number for batch in made.read(wanted) for number in batch.column("sequence").to_pylist()]


def created(box: Box, name: str) -> str:
    found = box.js.get_stream(name).cached_info.created
    assert found is not None
    return found.to_rfc3339()


def test_a_batch_read_that_starts_before_the_first_message(box: Box) -> None:
    name = box.make(messages=10)
    box.js.get_stream(name).purge(seq=4)
    with pytest.raises(Exception, match=r"messages 2 to 3 \(2 sequences\) were purged or have expired"):
        box.read(name, startingSequence=2).collect()
    assert box.sequences(name, startingSequence=2, failOnDataLoss="false") == list(range(4, 11))
    assert box.sequences(name) == list(range(4, 11))


def test_a_range_that_is_purged_before_its_task_runs(box: Box) -> None:
    name = box.make(messages=10)
    wanted = Range(name, 3, 9, created(box, name))
    box.js.get_stream(name).purge(seq=6)
    with pytest.raises(DataLossError, match="messages 3 to 5"):
        task(box, wanted)
    assert task(box, wanted, fail=False) == [6, 7, 8]
    # A purge is no expiry: nor is it at the beginning of a stream that is read 'from earliest'.
    with pytest.raises(DataLossError, match="messages 1 to 5"):
        task(box, Range(name, 1, 9, wanted.created, earliest=True))
    box.js.get_stream(name).purge()
    with pytest.raises(DataLossError, match="messages 3 to 8"):
        task(box, wanted)
    assert task(box, wanted, fail=False) == []


def test_a_stream_that_is_gone_or_another_when_the_task_runs(box: Box) -> None:
    name = box.make(messages=10)
    wanted = Range(name, 3, 9, created(box, name))
    box.js.delete_stream(name)
    with pytest.raises(DataLossError, match="no longer exists; it was read up to sequence 2"):
        task(box, wanted)
    assert task(box, wanted, fail=False) == []
    box.make(name, messages=10)
    with pytest.raises(DataLossError, match="was deleted and created again"):
        task(box, wanted)
    assert task(box, wanted, fail=False) == []


def test_errors_of_tasks_reach_the_driver_with_their_name(box: Box) -> None:
    name = box.make(messages=10)
    frame = box.read(name, startingSequence=2)
    frame.rdd.getNumPartitions()  # plans: from here on the range is fixed
    box.js.get_stream(name).purge(seq=5)
    with pytest.raises(PythonException, match=r"DataLossError.*messages 2 to 4"):
        frame.collect()


def test_messages_deleted_one_by_one_are_no_loss(box: Box) -> None:
    name = box.make(messages=10)
    for sequence in (4, 5, 9, 10):
        box.js.get_stream(name).delete_msg(sequence)
    assert task(box, Range(name, 3, 11, created(box, name))) == [3, 6, 7, 8]
    assert task(box, Range(name, 4, 6, created(box, name))) == []


@pytest.mark.parametrize("upto", [200, 1000])
def test_messages_that_expire_while_a_task_reads(box: Box, upto: int) -> None:
    name = box.make(messages=400)
    stream = box.js.get_stream(name)
    stream.delete_msg(3)  # no loss, and not reported as such

    def read(*, fail: bool, **mark: bool) -> list[int]:
        made = RangeReader(
            box.js, arrow_schema(SCHEMA), fail_on_data_loss=fail, batch_rows=10, buffer_messages=10
        )
        found: list[int] = []
        for batch in made.read(Range(name, 1, 401, created(box, name), **mark)):
            found += batch.column("sequence").to_pylist()
            if found[-1] >= 10:
                stream.purge(seq=upto)
        return found

    with pytest.raises(DataLossError, match=rf"to {min(upto, 401) - 1} .* were purged or have expired"):
        read(fail=True)
    box.js.delete_stream(name)
    box.make(name, messages=400)
    found = read(fail=False)
    assert found == sorted(set(found))
    assert found[:10] == list(range(1, 11))
    assert [number for number in found if number >= 200] == list(range(upto, 401))


@pytest.mark.parametrize(
    ("sequences", "position", "expected"),
    [
        ([1, 2, 3], 1, None),
        ([3, 4], 1, (1, 3)),
        ([1, 2, 4, 5], 1, (3, 4)),
        ([1, 3], 1, (2, 3)),
        ([1, 2, 3, 9], 1, (4, 9)),
        ([7], 7, None),
        ([1, 5, 6, 9], 1, (2, 5)),
    ],
)
def test_the_first_gap(sequences: list[int], position: int, expected: tuple[int, int] | None) -> None:
    assert first_gap(pa.array(sequences), position) == expected


def test_a_stream_that_vanishes_under_a_query(
    box: Box, reader: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gone, stays = box.make(messages=2), box.make(messages=2)
    strict = reader(f"{gone},{stays}", startingPosition="earliest")
    end = strict.latestOffset(strict.initialOffset(), ReadAllAvailable())
    box.js.delete_stream(gone)
    box.fill(stays, 1)
    fresh = reader(f"{gone},{stays}")
    with pytest.raises(DataLossError, match=f"stream '{gone}': the stream no longer exists"):
        fresh.latestOffset(end, ReadAllAvailable())
    lenient = reader(f"{gone},{stays}", failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "jetspark.spark"):
        following = lenient.latestOffset(end, ReadAllAvailable())
        assert lenient.latestOffset(following, ReadAllAvailable()) == following
    assert [one.ranges[0].stream for one in lenient.partitions(end, following)] == [stays]
    # Said once, not at every look.
    assert sum("no longer exists" in record.message for record in caplog.records) == 1


def test_a_stream_that_was_purged_to_its_end_is_settled_at_once(
    box: Box, reader: Any, caplog: pytest.LogCaptureFixture
) -> None:
    name = box.make(messages=3)
    source = reader(name, startingPosition="earliest", failOnDataLoss="false")
    end = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    box.fill(name, 3)
    box.js.get_stream(name).purge()
    fresh = reader(name, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "jetspark.spark"):
        following = fresh.latestOffset(end, ReadAllAvailable())
        assert fresh.latestOffset(following, ReadAllAvailable()) == following
    assert fresh.partitions(end, following) == []
    assert sum("messages 4 to 6" in record.message for record in caplog.records) == 1


def test_a_stream_whose_tail_is_gone(box: Box, reader: Any) -> None:
    name = box.make(messages=6)
    source = reader(name, startingPosition="earliest")
    end = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    # As after the restore of a backup that is older than the checkpoint.
    end["streams"][name]["next"] = 50
    with pytest.raises(DataLossError, match="ends at sequence 6, but was read up to 49"):
        reader(name).latestOffset(end, ReadAllAvailable())
    lenient = reader(name, failOnDataLoss="false")
    following = lenient.latestOffset(end, ReadAllAvailable())
    assert following["streams"][name]["next"] == 7


def test_a_purge_of_what_was_read_is_no_loss(box: Box, reader: Any) -> None:
    name = box.make(messages=6)
    source = reader(name, startingPosition="earliest")
    end = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    box.js.get_stream(name).purge()
    box.fill(name, 2)
    fresh = reader(name)
    following = fresh.latestOffset(end, ReadAllAvailable())
    (partition,) = fresh.partitions(end, following)
    assert [(one.begin, one.end) for one in partition.ranges] == [(7, 9)]
