"""The typed helpers: options from arguments, JSON bodies, subjects."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_type_hints

import pytest

from jetspark import Secret, StreamConfig, blocking
from jetspark._times import parse_duration
from jetspark.errors import InvalidArgument
from jetspark.spark import decode_json, read, read_stream, route, write, write_stream
from jetspark.spark.helpers import (
    ConnectionArguments,
    SinkArguments,
    SourceArguments,
    argument_name,
    option_strings,
)
from jetspark.spark.options import CONNECTION_OPTIONS, SINK_OPTIONS, SOURCE_OPTIONS
from support.helpers import LIMIT, unique

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jetspark.server import Server


# Arguments


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (ConnectionArguments, CONNECTION_OPTIONS),
        (SourceArguments, (*CONNECTION_OPTIONS, *SOURCE_OPTIONS)),
        (SinkArguments, (*CONNECTION_OPTIONS, *SINK_OPTIONS)),
    ],
)
def test_every_option_is_an_argument(arguments: type, options: tuple[str, ...]) -> None:
    import jetspark.spark.helpers as module

    names = get_type_hints(arguments, vars(module))
    assert set(names) == {argument_name(option) for option in options}


@pytest.mark.parametrize(
    ("name", "value", "option", "text"),
    [
        ("stream", ["A", "B"], "stream", "A,B"),
        ("fail_on_data_loss", False, "failOnDataLoss", "false"),
        ("max_messages_per_trigger", 1000, "maxMessagesPerTrigger", "1000"),
        ("max_trigger_delay", 1.5, "maxTriggerDelay", "1.5 seconds"),
        ("max_trigger_delay", timedelta(minutes=2), "maxTriggerDelay", "120 seconds"),
        ("max_trigger_delay", "5 minutes", "maxTriggerDelay", "5 minutes"),
        ("starting_position", {"A": 7, "B": "latest"}, "startingPosition", '{"A": 7, "B": "latest"}'),
        ("starting_sequence", 12, "startingSequence", "12"),
        ("starting_time", datetime(2026, 1, 2, tzinfo=UTC), "startingTime", "2026-01-02T00:00:00+00:00"),
        ("credentials", Path("/run/x.creds"), "credentials", "/run/x.creds"),
        ("password", Secret("s3cret"), "password", "s3cret"),
        ("connect_timeout", 100_000_000, "connectTimeout", "100000000 seconds"),
    ],
)
def test_values_become_option_strings(name: str, value: Any, option: str, text: str) -> None:
    assert option_strings({name: value}, SOURCE_OPTIONS) == {option: text}
    if name.endswith(("delay", "timeout")):
        assert parse_duration(text) is not None


def test_what_no_option_can_be_is_refused() -> None:
    with pytest.raises(TypeError, match="did you mean 'ack_timeout'"):
        option_strings({"ack_timeuot": 1}, SINK_OPTIONS)
    with pytest.raises(InvalidArgument, match="no time zone"):
        option_strings({"starting_time": datetime(2026, 1, 2)}, SOURCE_OPTIONS)
    with pytest.raises(InvalidArgument, match="a type that options don't take: object"):
        option_strings({"stream": object()}, SOURCE_OPTIONS)
    assert option_strings({"stream": None}, SOURCE_OPTIONS) == {}


def test_read_write_and_stream_in_a_few_lines(
    spark: SparkSession, server: Server, js: blocking.JetStream, tmp_path: Path
) -> None:
    name = unique("H")
    stream = js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"]))
    rows = spark.sql("SELECT id, to_json(struct(id, id % 3 AS shard)) AS data FROM range(30)")
    write(route(rows, f"{name}.in.{{id}}").drop("id"), servers=server.url, stream=name, ack_timeout=10)
    found = decode_json(
        read(
            spark,
            servers=[server.url],
            stream=name,
            subjects=f"{name}.in.>",
            schema="subject string, data binary",
        ),
        "id long, shard int",
    )
    assert found.columns == ["subject", "data", "id", "shard"]
    assert found.agg({"id": "sum"}).collect()[0][0] == 435

    events = decode_json(
        read_stream(
            spark, servers=server.url, stream=name, subjects=f"{name}.in.>", starting_position="earliest"
        ),
        "id long, shard int",
    )
    totals = events.groupBy("shard").count().selectExpr("shard", "cast(count AS string) AS data")
    for _ in range(2):
        query = write_stream(
            route(totals, f"{name}.out.{{shard}}").drop("shard"),
            servers=server.url,
            stream=name,
            checkpoint_location=tmp_path / "c",
            query_name="totals",
            output_mode="update",
            available_now=True,
        )
        assert query.name == "totals"
        assert query.awaitTermination(LIMIT)
    assert stream.info(subjects_filter=f"{name}.out.>").state.subjects == {
        f"{name}.out.{shard}": 1 for shard in range(3)
    }
    with pytest.raises(InvalidArgument, match="contradicts available_now"):
        write_stream(events, checkpoint_location=tmp_path, available_now=True, processing_time="1 second")
    js.delete_stream(name)


# JSON


def test_bodies_that_are_no_such_json_give_nulls_and_their_text(spark: SparkSession) -> None:
    df = spark.sql(
        """SELECT * FROM VALUES
           (1, cast('{"a": 1, "b": {"c": "x"}}' AS binary)), (2, cast('{"a": ' AS binary)),
           (3, X'ff00'), (4, cast('{"a": null}' AS binary)), (5, NULL) AS t(n, data)"""
    )
    found = {
        row.n: row
        for row in decode_json(df, "a long, b struct<c:string>", into="v", corrupt_column="bad").collect()
    }
    assert (found[1].v.a, found[1].v.b.c, found[1].bad) == (1, "x", None)
    assert (found[2].v, found[2].bad) == (None, '{"a": ')
    assert found[3].v is None
    assert found[3].bad is not None
    assert (found[4].v.a, found[4].bad) == (None, None)
    assert (found[5].v, found[5].bad) == (None, None)
    flat = decode_json(df, "a long, b struct<c:string>")
    assert flat.columns == ["n", "data", "a", "b"]
    assert [row.a for row in flat.orderBy("n").collect()] == [1, None, None, None, None]


def test_a_struct_type_works_as_well_and_fail_means_fail(spark: SparkSession) -> None:
    from pyspark.sql.types import LongType, StructField, StructType

    schema = StructType([StructField("a", LongType())])
    df = spark.sql("SELECT '{\"a\": 7}' AS data")
    assert decode_json(df, schema).collect()[0].a == 7
    with pytest.raises(Exception, match="MALFORMED_RECORD"):
        decode_json(spark.sql("SELECT '{' AS data"), schema, on_error="fail").collect()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"column": "body"}, "is not one of the columns data, n"),
        ({"into": "N"}, "already exists"),
        ({"corrupt_column": "n"}, "already exists"),
        ({"on_error": "ignore"}, "'null' or 'fail'"),
        ({"on_error": "fail", "corrupt_column": "bad"}, "stays empty"),
        ({"schema": "n long"}, "into='value'"),
    ],
)
def test_contradictions_are_found_before_the_query_runs(
    spark: SparkSession, arguments: dict[str, Any], text: str
) -> None:
    df = spark.sql("SELECT '{}' AS data, 1 AS n")
    with pytest.raises(InvalidArgument, match=text):
        decode_json(df, **{"schema": "a long", **arguments})


# Subjects


def routed(spark: SparkSession, template: str, **options: Any) -> list[str | None]:
    df = spark.sql(
        """SELECT * FROM VALUES (1, 'eu', named_struct('city', 'Bonn')), (2, 'a.b', NULL), (3, 'a b>*', NULL),
           (4, '', NULL), (5, NULL, NULL), (6, 'grüße', NULL), (7, 'x\ty', NULL) AS t(id, region, place)"""
    )
    return [row.subject for row in route(df, template, **options).orderBy("id").collect()]


def test_each_placeholder_becomes_exactly_one_token(spark: SparkSession) -> None:
    replaced = routed(spark, "orders.{region}.{id}", on_unsafe="replace")
    assert replaced == [
        "orders.eu.1",
        "orders.a_b.2",
        "orders.a_b__.3",
        "orders._.4",
        "orders._.5",
        "orders.grüße.6",
        "orders.x_y.7",
    ]
    nulls = routed(spark, "orders.{region}.{id}", on_unsafe="null")
    assert nulls == ["orders.eu.1", None, None, None, None, "orders.grüße.6", None]
    assert routed(spark, "{place.city}", on_unsafe="null")[0] == "Bonn"
    assert routed(spark, "n{{x}}-{id}")[0] == "n{x}-1"


def test_by_default_an_unsafe_value_fails_and_is_named(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"column 'region' can't be a token of a subject: 'a\.b'"):
        routed(spark, "orders.{region}")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("orders..{id}", "empty tokens"),
        ("orders.>", "wildcard"),
        ("or ders.{id}", "space"),
        ("orders.{}", "column name"),
        ("orders.{id!r}", "column name"),
        ("orders.{id:04}", "column name"),
        ("orders.{id", "twice"),
        ("", "empty"),
    ],
)
def test_a_template_that_gives_no_subject_is_refused(spark: SparkSession, template: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text) as caught:
        route(spark.range(1), template)
    assert caught.value.field == "template"
    with pytest.raises(InvalidArgument, match="'fail', 'null' or 'replace'"):
        route(spark.range(1), "a", on_unsafe=cast("Any", "drop"))
