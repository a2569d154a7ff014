"""What `test_connect.py` runs behind a real Spark Connect server: `connect_job.py URL FOLDER STEP ...`.

A process of its own, because a process has either classic sessions or those of Spark Connect. The steps run
in one session, because a start costs seconds; each prints what it found.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from jetspark import StreamConfig, blocking
from jetspark.spark import read_stream, register, write, write_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

URL, FOLDER = sys.argv[1], Path(sys.argv[2])


def rows(spark: SparkSession) -> DataFrame:
    """The last state of each device."""
    source = read_stream(spark, servers=URL, stream="IN", starting_position="earliest")
    return source.selectExpr("concat('out.', split(subject, '[.]')[1]) AS subject", "data")


def publish(js: blocking.JetStream, state: str) -> None:
    for device in range(5):
        js.publish(f"in.d{device}", state.encode())


def run(df: DataFrame, function: Callable[[DataFrame, int], Any], name: str) -> str:
    """Run to the end; the error that ended it, or nothing."""
    query = (
        df.writeStream.foreachBatch(function)
        .option("checkpointLocation", str(FOLDER / name))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(200)
    except Exception as error:
        return str(error)
    return ""


def update(spark: SparkSession, js: blocking.JetStream) -> None:
    """States on, off, on, off; each run of the query is repeated, as after a crash before the commit."""
    out = js.get_stream("OUT")
    states = rows(spark).groupBy("subject").agg({"data": "last"}).toDF("subject", "data")
    for number, state in enumerate(("on", "off", "on")):
        publish(js, state)
        for again in (False, True):
            if again:
                (FOLDER / "update" / "commits" / str(number)).unlink()
                (FOLDER / "update" / "commits" / f".{number}.crc").unlink(missing_ok=True)
            query = write_stream(
                states,
                servers=URL,
                stream="OUT",
                output_mode="update",
                checkpoint_location=FOLDER / "update",
                available_now=True,
            )
            assert query.awaitTermination(200)
            last = out.get_msg(last_by_subject="out.d0").data.decode()
            print(
                f"update {number} {'again' if again else state}: {out.info().state.messages} {last}",
                flush=True,
            )
    # Another query with the same rows shares no ids with it.
    query = write_stream(
        states,
        servers=URL,
        stream="OUT",
        output_mode="update",
        checkpoint_location=FOLDER / "other",
        available_now=True,
    )
    assert query.awaitTermination(200)
    print(f"update other query: {out.info().state.messages}", flush=True)


def foreach(spark: SparkSession, js: blocking.JetStream) -> None:
    """foreachBatch: refused without a batch id, exactly once with it, in threads too."""
    url = URL

    def unnamed(batch: DataFrame, batch_id: int) -> None:
        write(batch, servers=url, stream="FOREACH", subject="foreach.x")

    def prefixed(batch: DataFrame, batch_id: int) -> None:
        write(batch, servers=url, stream="FOREACH", subject="foreach.x", msg_id_prefix="etl")

    def named(batch: DataFrame, batch_id: int) -> None:
        def one(number: int) -> None:
            results.append(
                write(
                    batch,
                    servers=url,
                    stream="FOREACH",
                    subject="foreach.x",
                    msg_id_prefix=f"etl-{number}",
                    batch_id=batch_id,
                    require_exactly_once=True,
                )
            )

        results: list[Any] = []
        threads = [threading.Thread(target=one, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [one.rows for one in results] == [rows_each] * 2, results
        if batch_id == fail_at:
            raise RuntimeError("after the writes")

    data = rows(spark).select("data")
    target = js.get_stream("FOREACH")
    for name, function in (("unnamed", unnamed), ("prefixed", prefixed)):
        refused = "UnknownMicroBatch: this write belongs to a streaming query" in run(data, function, name)
        print(f"foreach {name}: refused {refused}, {target.info().state.messages}", flush=True)
    rows_each, fail_at = js.get_stream("IN").info().state.messages, 0
    failed = "after the writes" in run(data, named, "named")
    print(f"foreach named: failed {failed}, {target.info().state.messages}", flush=True)
    fail_at = -1
    print(f"foreach named again:{run(data, named, 'named')} {target.info().state.messages}", flush=True)


def main() -> None:
    with blocking.connect(URL) as connection:
        js = connection.jetstream()
        for name in ("IN", "OUT", "FOREACH"):
            js.create_stream(StreamConfig(name=name, subjects=[f"{name.lower()}.>"], allow_direct=True))
        spark = SparkSession.builder.remote("local[2]").getOrCreate()
        register(spark)
        result = write(spark.sql("SELECT 'out.result' AS subject, 'x' AS data"), servers=URL, stream="OUT")
        print(f"result: {result}", flush=True)
        js.get_stream("OUT").purge()
        for step in sys.argv[3:]:
            {"update": update, "foreach": foreach}[step](spark, js)
        spark.stop()


if __name__ == "__main__":
    main()
