"""``df.write.format("jetstream")`` on a real Spark and a real server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from jetspark import StreamConfig, blocking
from jetspark.spark import connections
from jetspark.spark.options import OptionError
from jetspark.spark.sink.options import parse_sink
from jetspark.spark.sink.rows import SinkColumns
from jetspark.spark.sink.target import NotExactlyOnce, Target, UnfitStream, check_stream, inspect_target
from jetspark.spark.sink.task import write_task
from support.helpers import unique

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from conftest import StartServer
    from jetspark import StoredMsg
    from jetspark.server import Server


class Out:
    """A stream to write to, and the options that say so."""

    def __init__(self, server: Server, js: blocking.JetStream, **config: Any) -> None:
        self.name = unique("OUT")
        self.prefix = self.name.lower()
        self.stream = js.create_stream(StreamConfig(name=self.name, subjects=[f"{self.prefix}.>"], **config))
        self.options = {"servers": server.url, "stream": self.name}

    def write(self, df: DataFrame, **options: str) -> None:
        df.write.format("jetstream").options(**{**self.options, **options}).mode("append").save()

    def messages(self) -> list[StoredMsg]:
        return list(self.stream.get_msgs(seq=1)) if self.stream.info().state.messages else []


@pytest.fixture
def out(server: Server, js: blocking.JetStream) -> Iterator[Out]:
    made = Out(server, js, allow_direct=True)
    yield made
    js.delete_stream(made.name)


def failure(df: DataFrame, out: Out, **options: str) -> str:
    """The error that a write ends with; nothing else may end it."""
    with pytest.raises(Exception, match="jetspark") as caught:
        out.write(df, **options)
    return str(caught.value)


def test_every_row_is_stored_once_with_its_subject_and_body(spark: SparkSession, out: Out) -> None:
    df = spark.range(3000).selectExpr(
        f"concat('{out.prefix}.', id % 7) AS subject", "cast(id AS string) data"
    )
    out.write(df.repartition(3))
    found = out.messages()
    assert sorted(int(m.data) for m in found) == list(range(3000))
    assert all(m.subject == f"{out.prefix}.{int(m.data) % 7}" for m in found)
    # Ids are there though nobody gave any, and all differ.
    assert len({m.headers["Nats-Msg-Id"] for m in found}) == 3000


def test_all_columns_arrive(spark: SparkSession, server: Server, js: blocking.JetStream) -> None:
    out = Out(server, js, allow_direct=True, allow_msg_ttl=True)
    df = spark.sql(
        f"""SELECT '{out.prefix}.grüße' AS subject, X'ff00fe' AS data, 'my-id' AS msg_id,
            map('A', array('1', '2'), 'B', array('ü')) AS headers, interval 2 hours AS ttl
            UNION ALL SELECT '{out.prefix}.b', X'', NULL, NULL, NULL"""
    )
    out.write(df)
    first, second = sorted(out.messages(), key=lambda m: -len(m.data))
    assert (first.subject, first.data) == (f"{out.prefix}.grüße", b"\xff\x00\xfe")
    assert first.headers.get_all("A") == ["1", "2"]
    assert first.headers["B"] == "ü"
    assert first.headers["Nats-Msg-Id"] == "my-id"
    assert first.headers["Nats-TTL"] == "7200"
    assert first.headers["Nats-Expected-Stream"] == out.name
    assert second.data == b""
    assert second.headers.get("Nats-TTL") is None
    assert second.headers["Nats-Msg-Id"] != "my-id"
    js.delete_stream(out.name)


def test_large_and_empty_bodies_and_an_empty_frame(spark: SparkSession, out: Out) -> None:
    df = spark.sql(
        f"SELECT '{out.prefix}.x' AS subject, repeat('z', n) AS data FROM VALUES (0), (1000000) AS t(n)"
    )
    out.write(df)
    out.write(df.where("1 = 0"))
    assert sorted(len(m.data) for m in out.messages()) == [0, 1_000_000]


def test_a_constant_subject_and_a_small_window(spark: SparkSession, out: Out) -> None:
    out.write(
        spark.range(500).selectExpr("cast(id AS string) AS data"), subject=f"{out.prefix}.one", window="3"
    )
    assert {m.subject for m in out.messages()} == {f"{out.prefix}.one"}
    assert len(out.messages()) == 500


def test_the_same_msg_ids_or_the_same_prefix_store_nothing_twice(spark: SparkSession, out: Out) -> None:
    rows = spark.range(40).selectExpr(f"'{out.prefix}.x' AS subject", "cast(id % 10 AS string) AS data")
    named = rows.selectExpr("*", "concat('m-', data) AS msg_id")
    out.write(named)
    out.write(named)
    assert len(out.messages()) == 10
    out.write(rows.coalesce(1), msgIdPrefix="totals-1")
    # Another order of the same rows in the same partition is still the same write.
    out.write(rows.coalesce(1).sortWithinPartitions("data"), msgIdPrefix="totals-1")
    assert len(out.messages()) == 50
    out.write(rows.coalesce(1), msgIdPrefix="totals-2")
    assert len(out.messages()) == 90


def test_without_derived_ids_there_is_no_header(spark: SparkSession, out: Out) -> None:
    df = spark.range(3).selectExpr(f"'{out.prefix}.x' AS subject", "'same' AS data")
    out.write(df, deriveMsgId="false")
    assert [m.headers.get("Nats-Msg-Id") for m in out.messages()] == [None] * 3


@pytest.mark.parametrize(
    ("row", "texts"),
    [
        ("NULL AS subject, 'x' AS data", ["column 'subject': None", "must not be null"]),
        ("'{p}.a b' AS subject, 'x' AS data", ["a b'", "must not contain space"]),
        ("'{p}.*' AS subject, 'x' AS data", ["wildcard"]),
        ("'{p}.a' AS subject, repeat('y', 1100000) AS data", ["exceed the limit of", "max_payload"]),
        ("'{p}.a' AS subject, cast(NULL AS string) AS data", ["column 'data': None", "coalesce"]),
    ],
)
def test_a_bad_row_fails_with_its_place_before_its_record_batch_is_sent(
    spark: SparkSession, out: Out, row: str, texts: list[str]
) -> None:
    good = spark.range(5).selectExpr(f"'{out.prefix}.good' AS subject", "cast(id AS string) AS data")
    bad = spark.sql("SELECT " + row.format(p=out.prefix))
    error = failure(good.union(bad).coalesce(1), out)
    assert "BadRow: partition 0, row 5," in error
    assert all(text in error for text in texts)
    assert "deadLetterSubject" in error
    assert out.messages() == []


def test_bad_rows_go_to_the_dead_letter_subject_and_the_rest_is_stored(
    spark: SparkSession, server: Server, js: blocking.JetStream, out: Out
) -> None:
    dead = Out(server, js, allow_direct=True)
    df = spark.sql(
        f"""SELECT * FROM VALUES ('{out.prefix}.a', 'good'), ('{out.prefix}.b c', 'bad'), (NULL, 'lost'),
            ('{out.prefix}.d', repeat('L', 1500000)) AS t(subject, data)"""
    ).coalesce(1)
    # Coalesced into one record batch, as Spark makes them.
    out.write(df, deadLetterSubject=f"{dead.prefix}.rows")
    assert [m.data for m in out.messages()] == [b"good"]
    letters = {m.headers["Jetspark-Row"]: m for m in dead.messages()}
    assert sorted(letters) == ["0/1", "0/2", "0/3"]
    assert letters["0/1"].data == b"bad"
    assert letters["0/1"].headers["Jetspark-Subject"] == f"{out.prefix}.b c"
    assert "must not contain space" in letters["0/1"].headers["Jetspark-Error"]
    assert letters["0/2"].data == b"lost"
    assert letters["0/3"].headers["Jetspark-Truncated"] == "1500000"
    assert set(letters["0/3"].data) == {ord("L")}
    js.delete_stream(dead.name)


def test_a_row_that_the_server_refuses_is_named(
    spark: SparkSession, server: Server, js: blocking.JetStream, out: Out
) -> None:
    other = Out(server, js)
    df = spark.sql(
        f"SELECT * FROM VALUES ('{out.prefix}.a', 'x'), ('{other.prefix}.b', 'y') AS t(subject, data)"
    )
    error = failure(df.coalesce(1), out)
    assert f"RowNotAcked: partition 0, row 1, subject '{other.prefix}.b'" in error
    assert other.stream.info().state.messages == 0
    js.delete_stream(other.name)


def test_a_subject_that_no_stream_stores_is_named_with_the_remedy(
    spark: SparkSession, server: Server, out: Out
) -> None:
    df = spark.sql("SELECT 'nobody.stores.this' AS subject, 'x' AS data")
    with pytest.raises(Exception, match="no stream stores this subject"):
        df.write.format("jetstream").options(servers=server.url, ackTimeout="1s").mode("append").save()
    with pytest.raises(Exception, match=r"no stream stores 'nobody\.stores\.this'"):
        df.select("data").write.format("jetstream").options(
            servers=server.url, subject="nobody.stores.this"
        ).mode("append").save()


def test_columns_options_and_modes_are_checked_before_anything_runs(spark: SparkSession, out: Out) -> None:
    df = spark.range(1).selectExpr(f"'{out.prefix}.x' AS subject", "'x' AS data", "id")
    assert "column 'id': is not one of subject, data" in failure(df, out)
    good = df.drop("id")
    assert "did you mean 'ackTimeout'" in failure(good, out, ackTimeuot="1s")
    assert "is for reading" in failure(good, out, failOnDataLoss="true")
    assert "contradicts the column" in failure(good, out, subject=f"{out.prefix}.x")
    with pytest.raises(Exception, match="Append"):  # Spark's own refusal
        good.write.format("jetstream").options(**out.options).save()
    with pytest.raises(Exception, match=r"use mode\('append'\)"):
        good.write.format("jetstream").options(**out.options).mode("overwrite").save()
    assert out.messages() == []


def test_a_missing_stream_is_named(spark: SparkSession, server: Server, out: Out) -> None:
    df = spark.sql(f"SELECT '{out.prefix}.x' AS subject, 'x' AS data")
    assert "UnfitStream: stream 'NOBODY' does not exist" in failure(df, out, stream="NOBODY")


# What the start looks at, without Spark in the way.

ROW = SinkColumns(subject=0, data=1)


def test_a_short_duplicate_window_is_a_warning_or_a_refusal(
    server: Server, js: blocking.JetStream, caplog: pytest.LogCaptureFixture
) -> None:
    out = Out(server, js, duplicate_window=10)
    loose = parse_sink(out.options, streaming=True)
    with caplog.at_level(logging.WARNING):
        assert inspect_target(js, loose, ROW).stream == out.name
    assert "for 10 s only (duplicate_window), and 120 s are required" in caplog.text
    strict = parse_sink({**out.options, "requireExactlyOnce": "true"}, streaming=True)
    with pytest.raises(NotExactlyOnce, match="Raise duplicate_window"):
        inspect_target(js, strict, ROW)
    enough = parse_sink(
        {**out.options, "requireExactlyOnce": "true", "requiredDuplicateWindow": "10 seconds"}, streaming=True
    )
    assert inspect_target(js, enough, ROW).stream == out.name
    js.delete_stream(out.name)


def test_a_stream_that_only_the_acks_tell_of_is_looked_at_once(
    server: Server, js: blocking.JetStream, caplog: pytest.LogCaptureFixture
) -> None:
    out = Out(server, js, duplicate_window=60)  # longer than the two writes take, on whatever machine
    options = parse_sink({"servers": server.url}, streaming=True)
    batch = pa.record_batch(
        [pa.array([f"{out.prefix}.x"] * 3), pa.array([b"1", b"2", b"2"])], names=["subject", "data"]
    )
    with caplog.at_level(logging.WARNING):
        first = write_task([batch, batch], options, ROW, Target(), partition=0, origin="q-1")
        again = write_task([batch, batch], options, ROW, Target(), partition=0, origin="q-1")
    assert (first.rows, first.stored, first.duplicates, first.bytes) == (6, 6, 0, 6)
    assert (again.rows, again.stored, again.duplicates) == (6, 0, 6)
    assert first.streams == {out.name}
    assert caplog.text.count("for 60 s only (duplicate_window)") == 1
    assert out.stream.info().state.messages == 6
    connections.close(options.connection)
    js.delete_stream(out.name)


def test_exactly_once_needs_a_known_stream(server: Server, js: blocking.JetStream) -> None:
    options = parse_sink({"servers": server.url, "requireExactlyOnce": "true"}, streaming=True)
    with pytest.raises(NotExactlyOnce, match="set option 'stream'"):
        inspect_target(js, options, ROW)


def test_streams_that_can_not_take_the_rows_are_refused(server: Server, js: blocking.JetStream) -> None:
    silent, sealed = Out(server, js, no_ack=True), Out(server, js)
    js.update_stream(StreamConfig(name=sealed.name, subjects=[f"{sealed.prefix}.>"], sealed=True))
    with pytest.raises(UnfitStream, match="no_ack"):
        inspect_target(js, parse_sink(silent.options, streaming=True), ROW)
    with pytest.raises(UnfitStream, match="sealed"):
        inspect_target(js, parse_sink(sealed.options, streaming=True), ROW)
    with pytest.raises(UnfitStream, match="allow_msg_ttl"):
        check_stream(
            "S", StreamConfig(name="S"), parse_sink(sealed.options, streaming=True), SinkColumns(0, 1, ttl=2)
        )
    for one in (silent, sealed):
        js.delete_stream(one.name)


def test_subject_and_stream_that_disagree_are_refused(server: Server, js: blocking.JetStream) -> None:
    one, other = Out(server, js), Out(server, js, max_msg_size=1000)
    options = parse_sink({**one.options, "subject": f"{other.prefix}.x"}, streaming=True)
    with pytest.raises(OptionError, match=f"'{other.name}' does"):
        inspect_target(js, options, SinkColumns(None, 0))
    found = inspect_target(
        js, parse_sink({"servers": server.url, "subject": f"{other.prefix}.x"}, streaming=True), ROW
    )
    assert (found.stream, found.max_msg_size) == (other.name, 1000)
    for made in (one, other):
        js.delete_stream(made.name)


def test_a_user_who_may_only_publish_can_write(
    spark: SparkSession, start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    private = start_server(
        config="""
        authorization { users = [
          { user: admin, password: admin },
          { user: writer, password: "canary-secret",
            permissions: { publish: ["p.>"], subscribe: ["_INBOX.>"] } }
        ] }"""
    )
    with blocking.connect(private.url, user="admin", password="admin") as connection:
        js = connection.jetstream()
        stream = js.create_stream(StreamConfig(name="P", subjects=["p.>"]))
        options = {
            "servers": private.url,
            "user": "writer",
            "password": "canary-secret",
            "stream": "P",
            "requestTimeout": "2s",
        }
        df = spark.sql("SELECT 'p.x' AS subject, 'x' AS data")
        df.write.format("jetstream").options(**options).mode("append").save()
        assert stream.info().state.messages == 1
        with pytest.raises(Exception, match="NotExactlyOnce") as caught:
            df.write.format("jetstream").options(**options, requireExactlyOnce="true").mode("append").save()
        assert "canary-secret" not in str(caught.value)


def test_no_cell_becomes_a_second_header_or_command(
    spark: SparkSession, server: Server, js: blocking.JetStream
) -> None:
    out = Out(server, js, allow_direct=True, allow_rollup_hdrs=True, allow_msg_ttl=True)
    for number in range(3):
        js.publish(f"{out.prefix}.a", b"x", msg_id=f"m{number}")
    before = out.stream.info().state
    smuggled = "\r\nNats-Rollup: all"
    good = {"subject": f"{out.prefix}.a", "data": b"x"}
    for column, value, kind in (
        ("msg_id", f"m{smuggled}", "string"),
        ("msg_id", "m\nx", "string"),
        ("headers", {"A": f"x{smuggled}"}, "map<string,string>"),
        ("headers", {f"A{smuggled}": "x"}, "map<string,string>"),
        ("headers", {"A:B": "x"}, "map<string,string>"),
        ("ttl", f"5s{smuggled}", "string"),
        ("subject", f"{out.prefix}.a\r\nPUB {out.prefix}.b 0\r\n\r\n", "string"),
    ):
        row = {**good, column: value}
        schema = ", ".join(
            f"{name} {kind if name == column else 'binary' if name == 'data' else 'string'}" for name in row
        )
        df = spark.createDataFrame([tuple(row.values())], schema).coalesce(1)
        assert column in failure(df, out)
    for option, value in (("subject", f"{out.prefix}.a\r\nPUB x 0\r\n\r\n"), ("msgIdPrefix", f"p{smuggled}")):
        df = spark.createDataFrame([(b"x",)], "data binary")
        options = {"subject": f"{out.prefix}.a", option: value}
        assert option in failure(df, out, **options)
    assert out.stream.info().state == before
    js.delete_stream(out.name)
