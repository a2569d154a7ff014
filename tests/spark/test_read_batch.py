"""spark.read: the right rows of every kind of stream, and errors that show at load()."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, PythonException

from jetspark import ConsumerConfig, RetentionPolicy, blocking
from jetspark._times import Moment
from jetspark.spark import register
from jetspark.spark.source.batch_reader import JetStreamReader
from jetspark.spark.source.options import Position, parse_source
from jetspark.spark.source.planning import Range
from jetspark.spark.source.positions import resolve
from jetspark.spark.source.range_reader import RangeReader
from jetspark.spark.source.schema import SCHEMA, arrow_schema
from support.helpers import eventually_sync, unique

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from support.spark_helpers import Box


def test_every_column_of_every_kind_of_message(box: Box) -> None:
    name = box.make()
    before = datetime.now(UTC)
    big = bytes(range(256)) * 4095
    box.js.publish(f"{name}.plain", b"one")
    box.js.publish(f"{name}.empty", b"")
    box.js.publish(f"{name}.big", big)
    box.js.publish(f"{name}.bytes", b"\xff\xfe\x00")
    box.js.publish(f"{name}.größe.日本", b"u")
    box.js.publish(f"{name}.headers", b"h", headers={"A": "1", "B": ["2", "3"], "C": "ä", "a": "4"})
    rows = box.read(name).orderBy("sequence").collect()
    assert [row.sequence for row in rows] == [1, 2, 3, 4, 5, 6]
    assert {row.stream for row in rows} == {name}
    assert [row.subject.removeprefix(f"{name}.") for row in rows] == [
        "plain",
        "empty",
        "big",
        "bytes",
        "größe.日本",
        "headers",
    ]
    assert [bytes(row.data) for row in rows] == [b"one", b"", big, b"\xff\xfe\x00", b"u", b"h"]
    assert [row.headers for row in rows[:5]] == [{}] * 5
    # Names that differ in case are different names, as on the server.
    assert rows[5].headers == {"A": ["1"], "B": ["2", "3"], "C": ["ä"], "a": ["4"]}
    stored = [box.js.get_stream(name).get_msg(sequence).timestamp for sequence in range(1, 7)]
    assert [row.timestamp for row in rows] == [one.to_datetime().replace(tzinfo=None) for one in stored]
    assert all(before - timedelta(seconds=5) < one for one in stored)


def test_ranges_are_read_in_parallel_and_together_give_every_message_once(box: Box) -> None:
    name = box.make(messages=100)
    frame = box.read(name, minPartitions=5)
    assert frame.rdd.getNumPartitions() == 5
    assert sorted(row.sequence for row in frame.collect()) == list(range(1, 101))
    assert box.read(name, maxMessagesPerPartition=30).rdd.getNumPartitions() == 4
    # Used twice and joined with itself: Spark keeps partitions on the source, which must not matter.
    assert frame.alias("a").join(frame.alias("b"), "sequence").count() == 100


def test_lists_and_patterns_of_streams(box: Box) -> None:
    base = unique("G")
    one, two = box.make(f"{base}-1", messages=3), box.make(f"{base}-2", messages=4)
    other = box.make(messages=2)
    for streams, expected in ((f"{base}-*", {one: 3, two: 4}), (f"{one},{other}", {one: 3, other: 2})):
        counts = {row.stream: row["count"] for row in box.read(streams).groupBy("stream").count().collect()}
        assert counts == expected


def test_subjects_are_filtered_on_the_server(box: Box) -> None:
    name = box.make()
    for number in range(30):
        box.js.publish(f"{name}.{'abc'[number % 3]}", b"x")
    assert box.sequences(name, subjects=f"{name}.b") == list(range(2, 31, 3))
    both = box.sequences(name, subjects=f"{name}.a,{name}.c", minPartitions=4)
    assert both == [number for number in range(1, 31) if number % 3 != 2]
    assert box.sequences(name, subjects=f"{name}.nothing", minPartitions=3) == []


def test_where_to_start_and_to_end(box: Box) -> None:
    name = box.make(messages=10)
    middle = box.js.get_stream(name).get_msg(6).timestamp.to_rfc3339()
    assert box.sequences(name, startingSequence=4, endingSequence=7) == [4, 5, 6]
    assert box.sequences(name, startingPosition="8") == [8, 9, 10]
    assert box.sequences(name, startingTime=middle) == [6, 7, 8, 9, 10]
    assert box.sequences(name, endingTime=middle) == [1, 2, 3, 4, 5]
    assert box.sequences(name, startingTime="-1 hour") == list(range(1, 11))
    assert box.sequences(name, endingTime="-1 hour") == []
    assert box.sequences(name, startingPosition=f'{{"{name}": 9}}') == [9, 10]
    assert box.sequences(name, endingSequence=1000) == list(range(1, 11))
    assert box.sequences(name, startingSequence=1000) == []
    # Times between, before and after messages, with some of them deleted.
    stream = box.js.get_stream(name)
    times = {number: stream.get_msg(number).timestamp for number in range(1, 11)}
    for number in (1, 5, 6):
        stream.delete_msg(number)
    js, info = box.js, stream.info()
    for number, expected in ((1, 2), (4, 4), (5, 7), (7, 7), (10, 10)):
        assert resolve(js, info, Position(moment=Moment(at=times[number]))) == expected
    assert resolve(js, info, Position(moment=Moment(seconds_ago=-3600.0))) == 11
    assert list(stream.consumer_names()) == []


def test_last_per_subject(box: Box) -> None:
    name = box.make()
    for number in range(12):
        box.js.publish(f"{name}.{number % 4}", str(number).encode())
    assert box.sequences(name, startingPosition="last-per-subject") == [9, 10, 11, 12]
    assert box.sequences(name, startingPosition="last-per-subject", subjects=f"{name}.1") == [10]


def test_gaps_of_every_kind_neither_hang_nor_give_wrong_rows(box: Box) -> None:
    name = box.make(messages=40)
    stream = box.js.get_stream(name)
    for sequence in (*range(11, 21), 25, *range(35, 41)):
        stream.delete_msg(sequence)
    left = [*range(1, 11), *range(21, 25), *range(26, 35)]
    # Partitions of four: some are empty altogether, one is empty at the stream's end.
    assert box.sequences(name, minPartitions=10) == left
    stream.purge(seq=5)
    assert box.sequences(name, minPartitions=10) == left[4:]
    stream.purge()
    assert box.sequences(name) == []
    assert box.sequences(box.make()) == []


def test_streams_that_keep_the_last_messages_of_a_subject(box: Box) -> None:
    name = box.make(max_msgs_per_subject=1)
    for number in range(50):
        box.js.publish(f"{name}.{number % 5}", str(number).encode())
    assert box.sequences(name, minPartitions=3) == [46, 47, 48, 49, 50]
    # A stream that forgets by design is no data loss.
    assert box.sequences(name, startingSequence=1) == [46, 47, 48, 49, 50]


def test_columns_left_out_are_not_read(box: Box) -> None:
    name = box.make(messages=3)
    reader = box.spark.read.format("jetstream").options(**box.options(name, {}))
    frame = reader.schema("data binary, subject string").load()
    assert frame.columns == ["data", "subject"]
    assert sorted(bytes(row.data) for row in frame.collect()) == [b"0", b"1", b"2"]
    assert reader.schema("sequence long").load().agg({"sequence": "sum"}).collect()[0][0] == 6
    with pytest.raises(Exception, match=r"column 'data' is binary, not string; convert it with cast"):
        reader.schema("data string").load().collect()
    with pytest.raises(Exception, match=r"'nope'.* choose from stream, sequence"):
        reader.schema("nope string").load().collect()


def test_work_queues_are_read_without_consuming_them(box: Box) -> None:
    name = box.make(messages=25, retention=RetentionPolicy.WORK_QUEUE, allow_direct=True)
    box.js.publish(f"{name}.h", b"x", headers={"A": ["1", "2"]})
    assert box.sequences(name, minPartitions=3) == list(range(1, 27))
    row = box.read(name, subjects=f"{name}.h").collect()[0]
    assert (row.sequence, row.headers, row.subject) == (26, {"A": ["1", "2"]}, f"{name}.h")
    assert box.sequences(name, startingPosition="last-per-subject") == [25, 26]
    middle = box.js.get_stream(name).get_msg(20).timestamp.to_rfc3339()
    assert box.sequences(name, startingTime=middle, endingTime="2100-01-01") == list(range(20, 27))
    assert box.js.get_stream(name).cached_info.state.messages == 26
    for sequence in (8, 9, 21, 22, 24, 25, 26):
        box.js.get_stream(name).delete_msg(sequence)
    assert box.sequences(name, minPartitions=6) == [*range(1, 8), *range(10, 21), 23]
    assert box.sequences(name, subjects=f"{name}.other") == []
    closed = box.make(messages=1, retention=RetentionPolicy.WORK_QUEUE, allow_direct=False)
    with pytest.raises(PythonException, match=r"is a work queue.*update the stream with allow_direct=true"):
        box.read(closed).collect()


def test_work_queues_with_several_filters_that_partly_overlap(box: Box) -> None:
    name = box.make(retention=RetentionPolicy.WORK_QUEUE, allow_direct=True)
    for number in range(60):
        box.fill(name, 1, subject=("a.b", "a.c", "d.b", "e.e")[number % 4])
    both = box.sequences(name, subjects=f"{name}.a.*,{name}.*.b")
    assert both == [number for number in range(1, 61) if number % 4 != 0]


def test_a_stream_with_no_consumer_to_spare(box: Box) -> None:
    # By direct get where the stream allows it, else an error that says what to do.
    name = box.make(messages=30, max_consumers=1, allow_direct=True)
    box.js.create_consumer(name, ConsumerConfig(durable_name="only"))
    assert box.sequences(name, minPartitions=3) == list(range(1, 31))
    closed = box.make(messages=3, max_consumers=1, allow_direct=False)
    box.js.create_consumer(closed, ConsumerConfig(durable_name="only"))
    with pytest.raises(
        PythonException, match=rf"stream '{closed}' has 1 consumers, and max_consumers=1 .* Raise the limit"
    ):
        box.read(closed).collect()


def test_small_streams_share_tasks(box: Box) -> None:
    base = unique("MANY")
    for number in range(30):
        box.make(f"{base}-{number}", messages=number % 3)
    rows = sorted((row.stream, row.sequence) for row in box.read(f"{base}-*").collect())
    expected = [(f"{base}-{number}", one + 1) for number in range(30) for one in range(number % 3)]
    assert rows == sorted(expected)

    def partitions(**options: str) -> int:
        given = parse_source({"servers": box.url, "stream": f"{base}-*", **options})
        return len(JetStreamReader(given, SCHEMA).partitions())

    # Twenty of them have messages. It was a task for each.
    assert partitions() == 2
    assert partitions(minPartitions="8") == 8
    assert partitions(maxMessagesPerPartition="1") == 30


def test_errors_show_at_load(box: Box) -> None:
    name = box.make()
    with pytest.raises(AnalysisException, match="did you mean 'startingPosition'"):
        box.read(name, startingOffsets="earliest")
    with pytest.raises(AnalysisException, match="option 'stream': is required"):
        box.spark.read.format("jetstream").option("servers", box.url).load()
    with pytest.raises(AnalysisException, match=r"endingTime.*contradicts option 'endingSequence'"):
        box.read(name, endingSequence=1, endingTime="now")
    with pytest.raises(AnalysisException, match=r"'a\.b' is part of 'a\.>': filters must not overlap"):
        box.read(name, subjects="a.>,a.b")
    with pytest.raises(Exception, match="stream 'NO-SUCH' does not exist"):
        box.read("NO-SUCH").collect()
    with pytest.raises(Exception, match=r"no stream matches 'NO-SUCH-\*'"):
        box.read("NO-SUCH-*").collect()


def test_views_and_registration_by_hand(box: Box, spark: SparkSession) -> None:
    name = box.make(messages=3)
    register(spark)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW v USING jetstream OPTIONS (servers '{box.url}', stream '{name}')"
    )
    assert spark.sql("SELECT count(*) FROM v").collect()[0][0] == 3


def test_no_consumer_is_left_behind(box: Box) -> None:
    name = box.make(messages=50)
    assert box.sequences(name, minPartitions=4) == list(range(1, 51))
    assert box.read(name, minPartitions=4).limit(1).count() == 1
    # Spark does not wait for the end of tasks whose rows it does not need.
    eventually_sync(lambda: list(box.js.get_stream(name).consumer_names()) == [])


def test_a_task_goes_on_behind_the_last_row_when_its_consumer_is_taken_away(box: Box) -> None:
    name = box.make(messages=400)
    stream = box.js.get_stream(name)
    reader = RangeReader(
        box.js, arrow_schema(SCHEMA), fail_on_data_loss=True, batch_rows=10, buffer_messages=40
    )
    created = stream.cached_info.created
    assert created is not None
    found: list[int] = []
    taken = 0
    for batch in reader.read(Range(name, 1, 401, created.to_rfc3339())):
        found += batch.column("sequence").to_pylist()
        assert batch.num_rows <= 10
        if taken < 3:
            for consumer in list(stream.list_consumers()):
                # It may outlive a task that dies by this and no more.
                assert consumer.config.inactive_threshold == 60
                assert consumer.config.mem_storage
                stream.delete_consumer(consumer.name)
            taken += 1
    assert taken == 3
    assert found == list(range(1, 401))


@pytest.mark.parametrize("retention", [RetentionPolicy.LIMITS, RetentionPolicy.WORK_QUEUE])
def test_messages_lost_with_a_connection_are_read_again(box: Box, retention: RetentionPolicy) -> None:
    name = box.make(retention=retention, allow_direct=True)
    with blocking.connect(box.url) as connection:
        js = connection.jetstream()
        box.fill(name, [b"x" * 2000] * 3000)
        made = js.get_stream(name).cached_info.created
        assert made is not None
        reader = RangeReader(
            js, arrow_schema(SCHEMA), fail_on_data_loss=True, batch_rows=200, buffer_messages=500
        )
        found: list[int] = []
        cut = 0
        for batch in reader.read(Range(name, 1, 3001, made.to_rfc3339())):
            found += batch.column("sequence").to_pylist()
            if len(found) > (cut + 1) * 700:
                # What is on its way now is lost: with ack policy none the server does not send it again.
                connection.force_reconnect()
                cut += 1
        assert cut >= 3
        assert found == list(range(1, 3001))
