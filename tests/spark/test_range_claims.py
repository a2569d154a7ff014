"""Losses and false alarms on a real server: a task raises before its micro-batch can commit, or is right.

No Spark session: the readers' methods are called in Spark's order, so the moment between planning and reading
is ours.
"""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from jetspark import ConsumerConfig, RetentionPolicy, StreamConfig, blocking
from jetspark.errors import RequestTimeout
from jetspark.spark.options import OptionError
from jetspark.spark.source.batch_reader import JetStreamReader
from jetspark.spark.source.claims import seen_of
from jetspark.spark.source.data_loss import DataLossError, identity
from jetspark.spark.source.options import parse_source
from jetspark.spark.source.planning import Range
from jetspark.spark.source.range_proof import RangeProof
from jetspark.spark.source.schema import SCHEMA
from jetspark.spark.source.stream_reader import JetStreamStreamReader
from support.helpers import eventually_sync as until
from support.helpers import unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from jetspark.server import Server

ALL = ReadAllAvailable()


class World:
    """A stream, and readers of it."""

    def __init__(self, url: str, js: blocking.JetStream) -> None:
        self.url = url
        self.js = js
        self.name = unique("C")

    def make(self, messages: int = 0, **config: Any) -> blocking.Stream:
        stream = self.js.create_stream(StreamConfig(name=self.name, subjects=[f"{self.name}.>"], **config))
        self.fill(messages)
        return stream

    def fill(self, messages: int, subject: str = "a", **how: Any) -> None:
        if messages >= 1000:
            with self.js.publisher() as publisher:
                for _ in range(messages):
                    publisher.publish(f"{self.name}.{subject}", b"x" * 100)
            return
        for _ in range(messages):
            self.js.publish(f"{self.name}.{subject}", b"x" * 100, **how)

    def options(self, given: dict[str, Any]) -> Any:
        texts = {"servers": self.url, "stream": self.name, **given}
        if "subjects" in texts:
            texts["subjects"] = f"{self.name}.{texts['subjects']}"
        return parse_source({name: str(value) for name, value in texts.items()})

    def source(self, **options: Any) -> JetStreamStreamReader:
        return JetStreamStreamReader(self.options(options), SCHEMA)

    def batch(self, **options: Any) -> JetStreamReader:
        return JetStreamReader(self.options(options), SCHEMA)


@pytest.fixture
def world(server: Server, js: blocking.JetStream) -> Iterator[World]:
    made = World(server.url, js)
    yield made
    if made.name in list(js.stream_names()):
        js.delete_stream(made.name)


def read(
    reader: JetStreamReader | JetStreamStreamReader,
    partitions: Any,
    after: Callable[[list[int]], None] | None = None,
) -> list[int]:
    """The sequences of all partitions; ``after`` is called with those so far after each record batch."""
    found: list[int] = []
    for partition in partitions:
        for batch in reader.read(partition):
            found += batch.column("sequence").to_pylist()
            if after is not None:
                after(found)
    return found


def once(do: Callable[[], object]) -> Callable[[list[int]], None]:
    """For ``read``: do it when the first ten rows are there, in however many record batches they came."""
    left = [do]

    def after(found: list[int]) -> None:
        if len(found) >= 10 and left:
            left.pop()()

    return after


def to_the_end(source: JetStreamStreamReader, start: Any = None) -> tuple[Any, list[int]]:
    """One micro-batch with all that there is: its end offset and rows."""
    begin = source.initialOffset() if start is None else start
    end = source.latestOffset(begin, ALL)
    return end, read(source, source.partitions(begin, end))


SMALL = {"recordBatchRows": 10, "bufferMessages": 10}


# Loss in the first read (review D5)


@pytest.mark.parametrize("upto", [100, 400, 1000])
@pytest.mark.parametrize("pieces", [1, 4])
def test_a_purge_while_a_batch_is_first_read(world: World, pieces: int, upto: int) -> None:
    stream = world.make(400)
    reader = world.batch(minPartitions=pieces, **SMALL)
    partitions = reader.partitions()
    assert len(partitions) == pieces
    with pytest.raises(DataLossError, match=r"messages \d+ to \d+ .* were purged or have expired"):
        read(reader, partitions, once(lambda: stream.purge(seq=upto)))


@pytest.mark.parametrize("limit", [None, 5])
def test_a_purge_while_a_part_of_the_subjects_is_read(world: World, limit: int | None) -> None:
    stream = world.make(max_msgs_per_subject=limit)
    for number in range(300):
        world.fill(1, f"{'ab'[number % 2]}.{number // 2}")
    reader = world.batch(subjects="a.>", **SMALL)
    partitions = reader.partitions()
    with pytest.raises(DataLossError, match="the server can't tell whether any of them had a subject of"):
        read(reader, partitions, lambda found: found[-1] < 60 and stream.purge(seq=250))


@pytest.mark.parametrize("pieces", [1, 4])
def test_a_purge_before_the_first_row_is_read(world: World, pieces: int) -> None:
    stream = world.make(40)
    reader = world.batch(minPartitions=pieces)
    partitions = reader.partitions()
    stream.purge(seq=31)
    with pytest.raises(DataLossError, match=rf"messages 1 to {40 // pieces if pieces > 1 else 30} "):
        read(reader, partitions)
    lenient = world.batch(minPartitions=pieces, failOnDataLoss="false")
    assert read(lenient, partitions) == list(range(31, 41))


def test_a_purge_while_the_first_micro_batch_is_read(world: World) -> None:
    stream = world.make(400)
    source = world.source(startingPosition="earliest", minPartitions=4, **SMALL)
    begin = source.initialOffset()
    end = source.latestOffset(begin, ALL)
    partitions = source.partitions(begin, end)
    with pytest.raises(DataLossError, match="were purged or have expired"):
        read(source, partitions, once(lambda: stream.purge(seq=300)))
    # Not committed, so the same batch comes again after a restart, and is not whole then either.
    fresh = world.source(startingPosition="earliest", minPartitions=4)
    with pytest.raises(DataLossError, match="were purged or have expired"):
        read(fresh, fresh.partitions(begin, end))
    source.stop()


def test_limits_that_run_into_the_first_read(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.make(100, max_msgs=100)
    reader = world.batch(minPartitions=4, **SMALL)
    partitions = reader.partitions()
    # At the head the limits are quicker than any reader: no error, but it is said which messages went.
    world.fill(10)
    with caplog.at_level(logging.WARNING, "jetspark.spark"):
        assert read(reader, partitions) == list(range(11, 101))
    assert "not treated as data loss" in caplog.text
    assert "messages 1 to 10 (10 sequences)" in caplog.text
    # But what is pushed out of the second piece was there when the read was planned.
    world.fill(30)
    with pytest.raises(DataLossError, match="messages 26 to 40 "):
        read(reader, partitions)


def test_expiry_in_the_first_read(world: World) -> None:
    stream = world.make(50, max_age=1.0, duplicate_window=0.5)
    reader = world.batch(minPartitions=2)
    partitions = reader.partitions()
    until(lambda: stream.info().state.messages == 0)
    world.fill(1)
    head, rest = partitions
    assert read(reader, [head]) == []
    with pytest.raises(DataLossError, match="messages 26 to 50 "):
        read(reader, [rest])


# Streams with max_msgs_per_subject (review D6)


@pytest.mark.parametrize("limit", [1, 100_000])
def test_a_purge_of_a_stream_that_limits_subjects(world: World, limit: int) -> None:
    stream = world.make(max_msgs_per_subject=limit)
    for number in range(10):
        world.fill(1, f"k{number}")
    source = world.source(startingPosition="earliest")
    end, rows = to_the_end(source)
    assert rows == list(range(1, 11))
    for number in range(10):
        world.fill(3, f"k{number}")
    stream.purge()
    world.fill(2, "k1")
    fresh = world.source()
    with pytest.raises(DataLossError, match=r"messages 11 to (40|41) "):
        fresh.latestOffset(end, ALL)
    source.stop()
    fresh.stop()


def test_expiry_in_a_stream_that_limits_subjects(world: World) -> None:
    stream = world.make(10, max_msgs_per_subject=100_000, max_age=1.0, duplicate_window=0.5)
    source = world.source(startingPosition="earliest")
    end, _ = to_the_end(source)
    world.fill(90)
    until(lambda: stream.info().state.messages == 0)
    world.fill(10)
    fresh = world.source()
    with pytest.raises(DataLossError, match="messages 11 to 100 "):
        fresh.latestOffset(end, ALL)
    source.stop()
    fresh.stop()


@pytest.mark.parametrize("limit", [1, 3])
def test_values_that_are_replaced_are_no_loss(
    world: World, limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    world.make(max_msgs_per_subject=limit)
    for number in range(5):
        world.fill(1, f"k{number}")
    source = world.source(startingPosition="earliest")
    begin = source.initialOffset()
    end = source.latestOffset(begin, ALL)
    partitions = source.partitions(begin, end)
    # All that was planned is replaced before it is read, and then what comes next before it is planned.
    for _ in range(2):
        for number in range(5):
            world.fill(limit, f"k{number}")
    with caplog.at_level(logging.WARNING, "jetspark.spark"):
        assert read(source, partitions) == []
        fresh = world.source()
        following, rows = to_the_end(fresh, end)
    assert rows == list(range(following["streams"][world.name]["next"] - 5 * limit, 6 + 10 * limit))
    assert not caplog.records
    source.stop()
    fresh.stop()


# A lost tail (review D11)


class Restored(World):
    """A world on a server of its own, whose store can be set back."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.connection = blocking.connect(server.url)
        super().__init__(server.url, self.connection.jetstream())

    def restart(self, change: Callable[[], object]) -> None:
        self.server.terminate()
        change()
        self.server.start()
        until(self.answers)

    def answers(self) -> bool:
        try:
            return self.js.get_stream(self.name) is not None
        except Exception:
            return False

    def backup(self) -> None:
        self.restart(lambda: shutil.copytree(self.server.store_dir, self.folder / "backup"))

    def restore(self) -> None:
        def change() -> None:
            shutil.rmtree(self.server.store_dir)
            shutil.copytree(self.folder / "backup", self.server.store_dir)

        self.restart(change)


@pytest.fixture
def restored(start_server: Callable[..., Server], tmp_path: Path) -> Iterator[Restored]:
    made = Restored(start_server(name="own", store_dir=tmp_path / "store"), tmp_path)
    yield made
    made.connection.close()


@pytest.mark.parametrize("first", [{"subjects": "a"}, {"startingPosition": "latest"}])
def test_messages_that_a_query_skipped_are_not_released(world: World, first: dict[str, str]) -> None:
    """It had other subjects, or another start, before releaseWorkQueue was on. Before, they were deleted."""
    stream = world.make(retention=RetentionPolicy.WORK_QUEUE, allow_direct=True)
    world.fill(4, "b")
    begin = {"startingPosition": "earliest", "subjects": "b"}
    end, rows = to_the_end(world.source(**{**begin, **first}))
    assert rows == []
    world.fill(2, "b")
    end, rows = to_the_end(world.source(**begin), end)
    assert rows == [5, 6]
    releasing = world.source(**begin, releaseWorkQueue="true")
    with pytest.raises(OptionError, match="would delete messages that were not read"):
        releasing.latestOffset(end, ALL)
    with pytest.raises(OptionError, match="would delete messages that were not read"):
        releasing.commit(end)
    assert stream.info().state.messages == 6


def test_a_tail_lost_between_planning_and_reading(restored: Restored) -> None:
    restored.make(200)
    restored.backup()
    restored.fill(100)
    source = restored.source(startingPosition="earliest")
    begin = source.initialOffset()
    end = source.latestOffset(begin, ALL)
    restored.restore()
    with pytest.raises(DataLossError, match="ends at sequence 200, but was read up to 300"):
        read(source, source.partitions(begin, end))
    # And when new messages have the lost ones' sequences by then: they are not the ones that were planned.
    restored.fill(250)
    with pytest.raises(DataLossError, match="the message at sequence 300 is not the one that was there"):
        read(source, source.partitions(begin, end))
    # Going on, the batch has what is left of the planned ones, and the next one goes back to the new ones:
    # each message comes once. (Before, 201 to 300 came with both.)
    lenient = restored.source(failOnDataLoss="false")
    assert read(lenient, lenient.partitions(begin, end)) == list(range(1, 201))
    _, rows = to_the_end(lenient, end)
    assert rows == list(range(201, 451))
    source.stop()
    lenient.stop()


def test_messages_after_a_restore_are_not_skipped(
    restored: Restored, caplog: pytest.LogCaptureFixture
) -> None:
    restored.make(200)
    restored.backup()
    restored.fill(100)
    source = restored.source(startingPosition="earliest")
    end, rows = to_the_end(source)
    assert rows == list(range(1, 301))
    restored.restore()
    restored.fill(250)
    strict = restored.source()
    for _ in range(2):
        with pytest.raises(DataLossError, match="the message at sequence 300 is not the one that was there"):
            strict.latestOffset(end, ALL)
    lenient = restored.source(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "jetspark.spark"):
        following, rows = to_the_end(lenient, end)
    assert rows == list(range(201, 451))
    assert sum("sequence 300 is not the one" in record.message for record in caplog.records) == 1
    assert lenient.latestOffset(following, ALL) == following
    for one in (source, strict, lenient):
        one.stop()


# False alarms (review D7)


def test_acks_of_other_workers_are_no_loss(world: World, caplog: pytest.LogCaptureFixture) -> None:
    stream = world.make(retention=RetentionPolicy.WORK_QUEUE, allow_direct=True)
    world.fill(10, "a")
    source = world.source(startingPosition="earliest", subjects="a")
    end, rows = to_the_end(source)
    assert rows == list(range(1, 11))
    stream.purge(subject=f"{world.name}.a", seq=11)
    world.fill(20, "b")
    world.fill(10, "a")
    worker = stream.create_consumer(
        ConsumerConfig(durable_name="b", filter_subject=f"{world.name}.b", ack_policy="explicit")
    )
    for message in worker.fetch(20):
        message.ack_sync()
    until(lambda: stream.info().state.first_seq == 31)
    with caplog.at_level(logging.WARNING, "jetspark.spark"):
        fresh = world.source(subjects="a")
        _, rows = to_the_end(fresh, end)
    assert rows == list(range(31, 41))
    assert not caplog.records
    source.stop()
    fresh.stop()


def test_acks_of_what_is_read_are_loss(world: World) -> None:
    stream = world.make(30, retention=RetentionPolicy.WORK_QUEUE, allow_direct=True)
    reader = world.batch()
    partitions = reader.partitions()
    worker = stream.create_consumer(ConsumerConfig(durable_name="w", ack_policy="explicit"))
    for message in worker.fetch(20):
        message.ack_sync()
    with pytest.raises(DataLossError, match=r"messages 1 to 20 .* were acked by other consumers, purged, or"):
        read(reader, partitions)


def test_other_subjects_that_go_behind_the_head_are_no_loss(world: World) -> None:
    stream = world.make()
    world.fill(1, "b")
    for _ in range(3):
        world.fill(5, "a")
        world.fill(5, "b")
    reader = world.batch(subjects="a")
    partitions = reader.partitions()
    stream.purge(subject=f"{world.name}.b", seq=20)
    stream.delete_msg(12)
    assert read(reader, partitions) == [2, 3, 4, 5, 6, 13, 14, 15, 16, *range(22, 27)]


def test_what_can_not_be_known_with_a_filter_is_said(world: World) -> None:
    world.make(max_msgs=20)
    world.fill(5, "a")
    source = world.source(startingPosition="earliest", subjects="a")
    end, _ = to_the_end(source)
    world.fill(40, "b")
    fresh = world.source(subjects="a")
    with pytest.raises(
        DataLossError,
        match=r"messages 6 to 25 .* can't tell whether any of them had a subject of option 'subjects'",
    ):
        fresh.latestOffset(end, ALL)
    source.stop()
    fresh.stop()


def test_single_deletes_at_the_head(world: World, caplog: pytest.LogCaptureFixture) -> None:
    stream = world.make(10)
    stream.delete_msg(1)
    reader = world.batch(startingSequence=1)
    partitions = reader.partitions()
    stream.delete_msg(2)
    with caplog.at_level(logging.WARNING, "jetspark.spark"):
        assert read(reader, partitions) == list(range(3, 11))
    # One when the read is planned, one when it runs.
    assert [record.message.count("not treated as data loss") for record in caplog.records] == [1, 1]
    source = world.source(startingPosition="earliest")
    end, _ = to_the_end(source)
    world.fill(3)
    stream.purge(seq=11)
    stream.delete_msg(11)
    fresh = world.source()
    _, rows = to_the_end(fresh, end)
    assert rows == [12, 13]
    source.stop()
    fresh.stop()


def test_messages_that_outlive_their_own_ttl(world: World, caplog: pytest.LogCaptureFixture) -> None:
    stream = world.make(5, allow_msg_ttl=True)
    source = world.source(startingPosition="earliest")
    end, _ = to_the_end(source)
    stream.purge()
    world.fill(3, ttl=1)
    world.fill(2)
    until(lambda: stream.info().state.first_seq == 9)
    fresh = world.source()
    with caplog.at_level(logging.WARNING, "jetspark.spark"):
        _, rows = to_the_end(fresh, end)
    assert rows == [9, 10]
    assert any("messages 6 to 8 (3 sequences)" in record.message for record in caplog.records)
    source.stop()
    fresh.stop()


def test_single_deletes_in_the_middle_are_no_loss_when_the_head_passes_them_later(world: World) -> None:
    stream = world.make(200)
    for sequence in (3, 4, 50, 51, 52):
        stream.delete_msg(sequence)
    reader = world.batch(**SMALL)
    partitions = reader.partitions()
    expected = [one for one in range(1, 201) if one not in (3, 4, 50, 51, 52)]
    assert read(reader, partitions, lambda found: found[-1] >= 150 and stream.purge(seq=100)) == expected


# A stream that goes while it is read (review D8)


@pytest.mark.parametrize("retention", [RetentionPolicy.LIMITS, RetentionPolicy.WORK_QUEUE])
@pytest.mark.parametrize("again", [False, True])
def test_a_stream_deleted_while_it_is_read(world: World, retention: RetentionPolicy, again: bool) -> None:
    config: dict[str, Any] = {"retention": retention, "allow_direct": True}
    # More than there may be on its way when the first rows are handed out.
    many = 30_000
    world.make(many, **config)

    def delete() -> None:
        world.js.delete_stream(world.name)
        if again:
            world.make(many + 10, **config)

    strict = world.batch(**SMALL)
    with pytest.raises(DataLossError, match="created again" if again else "no longer exists"):
        read(strict, strict.partitions(), once(delete))
    if again:
        world.js.delete_stream(world.name)
    world.make(many, **config)
    lenient = world.batch(failOnDataLoss="false", **SMALL)
    found = read(lenient, lenient.partitions(), once(delete))
    assert found == list(range(1, len(found) + 1))
    assert 10 <= len(found) < many


def test_offsets_of_an_older_release_are_read_on(world: World) -> None:
    stream = world.make(10)
    source = world.source(startingPosition="earliest")
    end, _ = to_the_end(source)
    old = {**end, "streams": {world.name: {**end["streams"][world.name]}}}
    del old["streams"][world.name]["seen"]
    world.fill(5)
    fresh = world.source()
    following, rows = to_the_end(fresh, old)
    assert rows == list(range(11, 16))
    assert following["version"] == 1
    world.fill(5)
    stream.purge(seq=19)
    with pytest.raises(DataLossError, match="messages 11 to 18 "):
        world.source().latestOffset(old, ALL)
    source.stop()
    fresh.stop()


def test_a_purge_behind_the_first_rows_is_told_where_the_head_was_deleted(world: World) -> None:
    """Before, the end of a range was not judged when its rows were dense and a gap was before the first."""
    stream = world.make(19)
    info = stream.info()
    wanted = Range(world.name, 1, 20, identity(info), (f"{world.name}.>",), earliest=True, seen=seen_of(info))
    proof = RangeProof(world.js, wanted, fail=True)
    opened = proof.open()
    stream.delete_msg(1)
    proof.accept(opened, pa.array(range(2, 10)))
    stream.purge()
    with pytest.raises(DataLossError, match="10 to 19"):
        proof.end(opened)


def test_a_range_whose_end_can_not_be_proved_is_not_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, it ended as read when the leader was away for longer than the source waits at its end."""
    world.make(5)
    [partition] = world.batch().partitions()
    reader = world.batch()

    def away(*_: object) -> None:
        raise RequestTimeout("on purpose")

    monkeypatch.setattr(RangeProof, "end", away)
    with pytest.raises(RequestTimeout, match="on purpose"):
        list(reader.read(partition))
