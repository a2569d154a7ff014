"""Message ids in foreachBatch: replays store nothing twice, and no two rows share an id."""

from __future__ import annotations

import json
import threading
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import inheritable_thread_target

from jetspark import StreamConfig, blocking
from jetspark.spark import WriteResult, read, write, write_stream
from jetspark.spark.options import OptionError
from jetspark.spark.source.origin import Place, UnknownMicroBatch, batch_origin, stream_origin
from support.helpers import LIMIT, unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from jetspark.server import Server

QUERY = "c557ba87-dd2a-493d-bf5d-b311ba12b037"
KNOWN = Place(QUERY, "7", True)
UNKNOWN = Place(None, None, True)
JOB = Place()


@pytest.mark.parametrize(
    ("place", "prefix", "batch_id", "origin"),
    [
        (KNOWN, None, None, "c557ba87dd2a493d-7"),
        (KNOWN, None, 7, "c557ba87dd2a493d-7"),
        (KNOWN, "etl", None, "etl-c557ba87dd2a493d-7"),
        (KNOWN, "etl", 7, "etl-c557ba87dd2a493d-7"),
        (UNKNOWN, "etl", 7, "etl-b7"),
        (JOB, "etl", 7, "etl-b7"),
        (JOB, "import-1", None, "import-1"),
        (JOB, None, None, "random"),
    ],
)
def test_the_origin_names_query_and_micro_batch_or_the_job(
    place: Place, prefix: str | None, batch_id: int | None, origin: str
) -> None:
    made = batch_origin(place, prefix=prefix, batch_id=batch_id, job="random", needed=True)
    assert made == origin


@pytest.mark.parametrize(
    ("place", "prefix", "batch_id", "error", "text"),
    [
        (KNOWN, None, 8, OptionError, "Spark runs micro-batch 7"),
        (UNKNOWN, None, None, UnknownMicroBatch, "batch_id=batch_id"),
        # A constant name would make equal rows of different micro-batches one.
        (UNKNOWN, "etl", None, UnknownMicroBatch, "batch_id=batch_id"),
        (UNKNOWN, None, 7, OptionError, "needs msgIdPrefix"),
        (JOB, None, 7, OptionError, "needs msgIdPrefix"),
    ],
)
def test_an_origin_that_can_not_be_known_is_refused(
    place: Place, prefix: str | None, batch_id: int | None, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        batch_origin(place, prefix=prefix, batch_id=batch_id, job="random", needed=True)


def test_rows_with_ids_of_their_own_need_no_micro_batch() -> None:
    # Rows whose own id is null still get one: random, so never taken for another row's.
    assert batch_origin(UNKNOWN, prefix="etl", batch_id=None, job="random", needed=False) == "random"


def test_a_streaming_write_needs_its_micro_batch() -> None:
    assert stream_origin(KNOWN) == "c557ba87dd2a493d-7"
    with pytest.raises(UnknownMicroBatch, match=r"sql\.streaming\.queryId"):
        stream_origin(UNKNOWN)


class States:
    """Devices whose state changes back and forth, and a query over them that can be cut off and repeated.

    It reads files, because a source in Python would start a process for each run.
    """

    def __init__(self, spark: SparkSession, server: Server, js: blocking.JetStream, folder: Path) -> None:
        self.spark, self.js, self.folder, self.url = spark, js, folder, server.url
        self.name = unique("S")
        (folder / "in").mkdir()
        self._files = count()
        self.out = js.create_stream(
            StreamConfig(name=self.name + "_OUT", subjects=[f"{self.name}.out.>"], allow_direct=True)
        )
        self.options: dict[str, str] = {"servers": server.url, "stream": self.name + "_OUT"}

    def publish(self, state: str, devices: int = 5) -> None:
        rows = [{"subject": f"{self.name}.out.d{device}", "data": state} for device in range(devices)]
        draft = self.folder / "draft"
        draft.write_text("".join(json.dumps(row) + "\n" for row in rows))
        draft.rename(self.folder / "in" / f"{next(self._files)}.json")

    def rows(self) -> DataFrame:
        files = self.spark.readStream.format("json").schema("subject string, data string")
        return files.load(str(self.folder / "in")).coalesce(1)

    def run(self, function: Callable[[DataFrame, int], Any], checkpoint: str = "cp") -> None:
        query = (
            self.rows()
            .writeStream.foreachBatch(function)
            .option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(LIMIT)

    def stored(self) -> int:
        return self.out.info().state.messages


@pytest.fixture
def states(spark: SparkSession, server: Server, js: blocking.JetStream, tmp_path: Path) -> Iterator[States]:
    made = States(spark, server, js, tmp_path)
    yield made
    js.delete_stream(made.name + "_OUT")


def plain(df: DataFrame, options: dict[str, str]) -> None:
    df.write.format("jetstream").options(**options).mode("append").save()


@pytest.mark.parametrize("helper", [False, True], ids=["df.write", "write()"])
def test_a_failed_and_repeated_foreach_batch_stores_each_row_once(states: States, helper: bool) -> None:
    failing = True

    def function(batch: DataFrame, batch_id: int) -> None:
        if helper:
            write(batch, **states.options)  # type: ignore[arg-type]
        else:
            plain(batch, states.options)
        if failing:
            raise RuntimeError("after the write")

    states.publish("on")
    with pytest.raises(Exception, match="after the write"):
        states.run(function)
    assert states.stored() == 5
    failing = False
    states.run(function)
    assert states.stored() == 5
    # The same states again are other rows: they are of another micro-batch, or of another query.
    states.publish("on")
    states.run(function)
    assert states.stored() == 10
    states.run(function, checkpoint="another query")
    assert states.stored() == 20


def test_equal_rows_of_two_writes_of_a_micro_batch_are_both_stored(states: States) -> None:
    results: list[WriteResult | None] = []
    failing = True

    def function(batch: DataFrame, batch_id: int) -> None:
        for _ in range(2):
            results.append(write(batch, **states.options))  # type: ignore[arg-type]
        if failing:
            raise RuntimeError("after the writes")

    states.publish("on")
    with pytest.raises(Exception, match="after the writes"):
        states.run(function)
    assert states.stored() == 10
    failing = False
    states.run(function)
    assert states.stored() == 10
    assert [(one.stored, one.duplicates) for one in results if one] == [(5, 0), (5, 0), (0, 5), (0, 5)]


def in_thread(target: Callable[[], Any]) -> Any:
    """Its result, or the error it raised."""
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(target())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("extra", [{}, {"msg_id_prefix": "etl"}], ids=["no prefix", "a prefix"])
def test_a_thread_inside_foreach_batch_needs_the_batch_id(states: States, extra: dict[str, str]) -> None:
    """Without it equal rows of different micro-batches had one id: 20 rows in, 10 stored."""
    outcomes: list[Any] = []

    def function(batch: DataFrame, batch_id: int) -> None:
        outcomes.append(in_thread(lambda: write(batch, **states.options, **extra)))  # type: ignore[arg-type]

    states.publish("on")
    states.run(function)
    (error,) = outcomes
    assert "UnknownMicroBatch: this write belongs to a streaming query" in str(error)
    assert states.stored() == 0


@pytest.mark.parametrize("how", ["batch_id", "inheritable", "own ids"])
def test_threads_inside_foreach_batch_write_each_row_once(states: States, how: str) -> None:
    def function(batch: DataFrame, batch_id: int) -> None:
        options: dict[str, Any] = dict(states.options)
        if how == "batch_id":
            options |= {"batch_id": batch_id, "msg_id_prefix": "etl"}
        if how == "own ids":
            batch = batch.selectExpr("*", f"concat(subject, {batch_id}) AS msg_id")

        def target() -> object:
            return write(batch, **options)

        inherit = inheritable_thread_target(batch.sparkSession)
        result = in_thread(inherit(target) if how == "inheritable" else target)
        assert isinstance(result, WriteResult), result
        if failing:
            raise RuntimeError("after the write")

    for number, state in enumerate(("on", "off", "on")):
        states.publish(state)
        failing = True
        with pytest.raises(Exception, match="after the write"):
            states.run(function)
        failing = False
        states.run(function)
        assert states.stored() == 5 * (number + 1)


def test_update_mode_keeps_every_change(states: States) -> None:
    for number, state in enumerate(("on", "off", "on")):
        states.publish(state)
        for _ in range(2):
            query = write_stream(
                states.rows().groupBy("subject").agg({"data": "last"}).toDF("subject", "data"),
                output_mode="update",
                checkpoint_location=states.folder / "cp",
                available_now=True,
                **states.options,  # type: ignore[arg-type]
            )
            assert query.awaitTermination(LIMIT)
        assert states.stored() == 5 * (number + 1)


def test_in_a_thread_the_helpers_find_the_data_source(states: States) -> None:
    """Spark looks for it in the thread's active session, and a thread that Python started has none."""
    rows = states.spark.sql(f"SELECT '{states.name}.out.a' AS subject, 'x' AS data")
    before = states.spark._jvm.SparkSession.getActiveSession  # type: ignore[union-attr]
    result = in_thread(lambda: write(rows, **states.options))  # type: ignore[arg-type]
    assert isinstance(result, WriteResult), result
    found = in_thread(lambda: read(states.spark, servers=states.url, stream=states.name + "_OUT").collect())
    assert [bytes(row.data) for row in found] == [b"x"], found
    # As it was: neither this thread nor another one is left with an active session that it did not have.
    assert in_thread(lambda: before().isDefined()) is False
    assert before().isDefined()


def test_the_result_tells_stored_rows_duplicates_and_dead_letters(states: States, tmp_path: Path) -> None:
    rows = states.spark.sql(
        f"""SELECT '{states.name}.out.a' AS subject, 'x' AS data, 'one' AS msg_id
        UNION ALL SELECT '{states.name}.out.b', 'yy', 'one' UNION ALL SELECT 'a b', 'z', 'three'"""
    ).coalesce(1)
    dead = f"{states.name}.out.dead"
    result = write(rows, dead_letter_subject=dead, **states.options)  # type: ignore[arg-type]
    assert result == WriteResult(
        rows=3,
        stored=1,
        duplicates=1,
        dead_letters=1,
        resent=0,
        bytes=4,
        streams=(states.name + "_OUT",),
        dropped_headers=(),
    )
    path = tmp_path / "result.json"
    again = write(rows.limit(1), result_file=path, **states.options)  # type: ignore[arg-type]
    assert again is not None
    assert (again.stored, again.duplicates) == (0, 1)
    assert path.exists()
