"""``df.writeStream.format("jetstream")``: micro-batches, restarts, ids, failures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from jetspark import StreamConfig, blocking
from jetspark.spark.sink.writers import SinkCommit, make_stream_writer
from support.helpers import LIMIT, unique

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from jetspark import StoredMsg
    from jetspark.server import Server


class Copy:
    """A stream to read, a stream to write, and a query between them that can run many times."""

    def __init__(self, spark: SparkSession, server: Server, js: blocking.JetStream, folder: Path) -> None:
        self.spark, self.js, self.folder = spark, js, folder
        self.name = unique("C")
        self.prefix = self.name.lower()
        js.create_stream(StreamConfig(name=self.name + "_IN", subjects=[f"{self.prefix}.in.>"]))
        self.out = js.create_stream(
            StreamConfig(name=self.name + "_OUT", subjects=[f"{self.prefix}.out.>"], allow_direct=True)
        )
        self.servers = {"servers": server.url}

    def publish(self, values: range) -> None:
        with self.js.publisher() as publisher:
            for value in values:
                publisher.publish(f"{self.prefix}.in.{value % 5}", str(value).encode())

    def rows(self, **options: str) -> DataFrame:
        reader = self.spark.readStream.format("jetstream").options(
            **{**self.servers, "stream": self.name + "_IN", "startingPosition": "earliest", **options}
        )
        return reader.load().selectExpr(
            f"concat('{self.prefix}.out.', split(subject, '[.]')[2]) AS subject", "data"
        )

    def run(
        self, df: DataFrame, mode: str = "append", checkpoint: str = "checkpoint", **options: str
    ) -> None:
        """Trigger.AvailableNow to its end; raises what ended it."""
        query = (
            df.writeStream.format("jetstream")
            .options(**{**self.servers, "stream": self.name + "_OUT", **options})
            .option("checkpointLocation", str(self.folder / checkpoint))
            .outputMode(mode)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(LIMIT), "the query did not end"

    def stored(self) -> list[StoredMsg]:
        return list(self.out.get_msgs(seq=1)) if self.out.info().state.messages else []

    def forget_last_commit(self, checkpoint: str = "checkpoint") -> None:
        """Make the checkpoint look as if the driver died after the last write, before it was noted."""
        commits = self.folder / checkpoint / "commits"
        last = max(
            (path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
        )
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def copy(spark: SparkSession, server: Server, js: blocking.JetStream, tmp_path: Path) -> Iterator[Copy]:
    made = Copy(spark, server, js, tmp_path)
    yield made
    js.delete_stream(made.name + "_IN")
    js.delete_stream(made.name + "_OUT")


def test_a_stream_is_copied_and_a_replayed_micro_batch_stores_nothing_twice(copy: Copy) -> None:
    copy.publish(range(200))
    copy.run(copy.rows())
    assert sorted(int(m.data) for m in copy.stored()) == list(range(200))
    copy.forget_last_commit()
    copy.publish(range(200, 260))
    copy.run(copy.rows())
    assert sorted(int(m.data) for m in copy.stored()) == list(range(260))
    assert all(m.subject == f"{copy.prefix}.out.{int(m.data) % 5}" for m in copy.stored())


def test_a_replay_behind_a_shuffle_keeps_its_ids_whatever_the_order(copy: Copy) -> None:
    copy.publish(range(300))

    def shuffled(**options: str) -> DataFrame:
        # Equal rows on purpose: they must all be stored, once each.
        rows = copy.rows(**options).selectExpr("subject", "cast(cast(data AS string) % 50 AS string) AS data")
        return rows.repartition(2, "data")

    copy.run(shuffled())
    assert len(copy.stored()) == 300
    copy.forget_last_commit()
    # Read by other tasks than before, the rows come out of the shuffle in another order.
    copy.run(shuffled(minPartitions="4"))
    assert len(copy.stored()) == 300


def test_a_new_checkpoint_is_a_new_query_and_writes_again(copy: Copy) -> None:
    copy.publish(range(20))
    copy.run(copy.rows(), checkpoint="a")
    copy.run(copy.rows(), checkpoint="b")
    assert len(copy.stored()) == 40


def test_own_ids_hold_over_checkpoints(copy: Copy) -> None:
    copy.publish(range(20))
    named = copy.rows().selectExpr("*", "cast(data AS string) AS msg_id")
    copy.run(named, checkpoint="a")
    copy.run(named, checkpoint="b")
    assert sorted(m.headers["Nats-Msg-Id"] for m in copy.stored()) == sorted(str(n) for n in range(20))


def test_a_failed_micro_batch_is_written_whole_after_the_cause_is_gone(copy: Copy) -> None:
    copy.publish(range(50))
    rows = copy.rows().coalesce(1)
    bad = rows.selectExpr("if(data = X'3337', 'a b', subject) AS subject", "data")  # the row 37
    with pytest.raises(Exception, match="BadRow: partition 0, row 37, column 'subject': 'a b'"):
        copy.run(bad)
    assert copy.stored() == []
    copy.run(rows)
    assert sorted(int(m.data) for m in copy.stored()) == list(range(50))


def test_aggregates_in_complete_mode_are_appended_whole(copy: Copy) -> None:
    copy.publish(range(100))
    counts = copy.rows().groupBy("subject").count().selectExpr("subject", "to_json(struct(count)) AS data")
    copy.run(counts, mode="complete")
    assert {m.subject[-1]: json.loads(m.data)["count"] for m in copy.stored()} == dict.fromkeys("01234", 20)
    copy.forget_last_commit()
    copy.run(counts, mode="complete")
    assert len(copy.stored()) == 5


def test_in_foreach_batch_a_prefix_makes_a_replay_safe(copy: Copy) -> None:
    copy.publish(range(100))
    counts = copy.rows().groupBy("subject").count().selectExpr("subject", "to_json(struct(count)) AS data")
    options = {**copy.servers, "stream": copy.name + "_OUT"}

    def write(batch: DataFrame, batch_id: int) -> None:
        for name in ("a", "b"):
            batch.write.format("jetstream").options(**options, msgIdPrefix=name).mode("append").save()

    def run() -> None:
        query = (
            counts.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(copy.folder / "f"))
            .outputMode("update")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(LIMIT)

    run()
    assert len(copy.stored()) == 10
    copy.forget_last_commit("f")
    run()
    assert len(copy.stored()) == 10
    copy.publish(range(100))  # the same numbers again: the next micro-batch is another one
    run()
    assert len(copy.stored()) == 20


def test_dead_letters_are_written_once_too(copy: Copy) -> None:
    copy.publish(range(10))
    bad = copy.rows().selectExpr("if(data = X'33', '', subject) AS subject", "data")
    letters = f"{copy.prefix}.out.dead"
    copy.run(bad, deadLetterSubject=letters)
    copy.forget_last_commit()
    copy.run(bad, deadLetterSubject=letters)
    assert len(copy.stored()) == 10
    (dead,) = [m for m in copy.stored() if m.subject == letters]
    assert dead.data == b"3"
    assert "must not be empty" in dead.headers["Jetspark-Error"]


def test_an_unfit_target_stops_the_query_before_the_first_row(copy: Copy) -> None:
    copy.publish(range(5))
    with pytest.raises(Exception, match=r"NotExactlyOnce: stream .* for 120 s only .* 600 s are required"):
        copy.run(copy.rows(), requireExactlyOnce="true", requiredDuplicateWindow="10 minutes")
    with pytest.raises(Exception, match=r"msgIdPrefix.*batch writes"):
        copy.run(copy.rows(), msgIdPrefix="x", checkpoint="b")
    assert copy.stored() == []


def test_commit_and_abort_tell_the_counts(
    server: Server, js: blocking.JetStream, caplog: pytest.LogCaptureFixture
) -> None:
    from pyspark.sql.types import StringType, StructField, StructType

    name = unique("W")
    js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"]))
    schema = StructType([StructField("subject", StringType()), StructField("data", StringType())])
    options: dict[str, Any] = {"servers": server.url, "stream": name, "checkpointlocation": "/x"}
    writer = make_stream_writer(options, schema, overwrite=False)
    done = SinkCommit(0, 0, 10, 7, 2, 1, 3, 500, (name,), ())
    with caplog.at_level("INFO"):
        writer.commit([done, done], 7)
        writer.abort([done, None], 8)
    assert "micro-batch 7 written: 20 rows, 14 stored, 4 duplicates, 2 dead letters" in caplog.text
    assert "micro-batch 8 failed; already stored: 10 rows, 7 stored" in caplog.text
    assert "(1 of 2 tasks)" in caplog.text
    js.delete_stream(name)


def test_the_server_may_restart_while_a_query_writes(
    spark: SparkSession, own_server: Server, tmp_path: Path
) -> None:
    with blocking.connect(own_server.url) as connection:
        js = connection.jetstream()
        stream = js.create_stream(StreamConfig(name="R", subjects=["r.>"], allow_direct=True))
        query = (
            spark.readStream.format("rate-micro-batch")
            .options(rowsPerBatch="2000", numPartitions="2")
            .load()
            .selectExpr("'r.x' AS subject", "cast(value AS string) AS data")
            .writeStream.format("jetstream")
            .options(servers=own_server.url, stream="R", checkpointLocation=str(tmp_path / "c"))
            .start()
        )
        try:
            _wait_for(lambda: _count(stream) >= 4000, query)
            own_server.kill()
            own_server.start()
            # Before that our own connection may not have noticed, and asks the server that is gone.
            _wait_for(lambda: connection.stats.reconnects >= 1, query)
            before = _count(stream)
            _wait_for(lambda: _count(stream) >= before + 4000, query)
        finally:
            query.stop()
        values = [int(m.data) for m in stream.get_msgs(seq=1)]
    # The last micro-batch may have been cut off; all before it are there, nothing is there twice.
    assert len(values) == len(set(values))
    whole = (max(values) // 2000) * 2000
    assert set(range(whole)) <= set(values)


def _count(stream: blocking.Stream) -> int:
    return stream.info().state.messages


def _wait_for(condition: Any, query: Any) -> None:
    from support.helpers import eventually_sync

    def met() -> bool:
        assert query.isActive, query.exception()
        return bool(condition())

    eventually_sync(met)
