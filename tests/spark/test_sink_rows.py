"""Rows to messages, without a server: checks, ids, dead letters; and the checks of options and columns."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DayTimeIntervalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from jetspark import Expect
from jetspark.errors import NoStreamResponse
from jetspark.jetstream.publish.publish import publish_headers
from jetspark.spark.options import OptionError
from jetspark.spark.sink.options import SinkSchemaError, check_columns, parse_sink
from jetspark.spark.sink.rows import BadRow, MessageIds, PlainRows, RowPlanner, SinkColumns
from jetspark.spark.sink.target import NotExactlyOnce, UnfitStream
from jetspark.spark.sink.task import RowNotAcked
from jetspark.spark.source.origin import UnknownMicroBatch
from jetspark.wire.headers import encode_headers

if TYPE_CHECKING:
    from jetspark.errors import JetsparkError

SERVER = {"servers": "nats://127.0.0.1:4222"}
ALL = SinkColumns(subject=0, data=1, headers=2, msg_id=3, ttl=4)
MULTI = pa.map_(pa.string(), pa.list_(pa.string()))
SINGLE = pa.map_(pa.string(), pa.string())


def planner(columns: SinkColumns | None = None, **options: Any) -> RowPlanner:
    return RowPlanner(
        columns or SinkColumns(subject=0, data=1), **{"partition": 3, "max_size": 1 << 20, **options}
    )


def rows(subjects: list[Any] | pa.Array, datas: list[Any], **columns: pa.Array) -> pa.RecordBatch:
    kind = pa.string() if any(isinstance(data, str) for data in datas) else pa.binary()
    return pa.record_batch(
        [
            subjects if isinstance(subjects, pa.Array) else pa.array(subjects, pa.string()),
            pa.array(datas, kind),
            *columns.values(),
        ],
        names=["subject", "data", *columns],
    )


# Rows that are well


def test_binary_and_string_bodies_come_out_as_bytes() -> None:
    binary = planner().plan(rows(["a.b", "a.c"], [b"\xff\x00", b""]))
    text = planner().plan(rows(["a.b"], ["grüße"]))
    assert [(m.row, m.subject, m.data, m.headers, m.msg_id, m.dead) for m in binary] == [
        (0, "a.b", b"\xff\x00", None, None, False),
        (1, "a.c", b"", None, None, False),
    ]
    assert text[0].data == "grüße".encode()


def test_rows_are_numbered_through_the_record_batches_of_a_task() -> None:
    plan = planner()
    assert [m.row for m in plan.plan(rows(["a", "b"], [b"", b""]))] == [0, 1]
    assert [m.row for m in plan.plan(rows(["c"], [b""]))] == [2]
    assert plan.rows == 3


def test_a_constant_subject_and_no_rows() -> None:
    plan = planner(SinkColumns(subject=None, data=0), subject="all.of.them")
    assert [m.subject for m in plan.plan(pa.record_batch([pa.array([b"x"])], names=["data"]))] == [
        "all.of.them"
    ]
    assert plan.plan(pa.record_batch([pa.array([], pa.binary())], names=["data"])) == []


@pytest.mark.parametrize(
    ("kind", "value", "pairs"),
    [
        (MULTI, [("A", ["1", "2"]), ("b", [])], [("A", "1"), ("A", "2")]),
        (SINGLE, [("A", "ü"), ("B", "")], [("A", "ü"), ("B", "")]),
    ],
)
def test_headers_of_both_kinds(kind: pa.DataType, value: Any, pairs: list[tuple[str, str]]) -> None:
    batch = rows(["a", "a", "a"], [b"", b"", b""], headers=pa.array([value, None, []], kind))
    made = planner(SinkColumns(0, 1, headers=2)).plan(batch)
    assert made[0].headers is not None
    assert made[0].headers.items() == pairs
    assert made[1].headers is None
    assert made[2].headers is None


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (pa.array([90]), "90"),
        (pa.array([timedelta(minutes=2)], pa.duration("us")), "120"),
        (pa.array(["1h30m"]), "1h30m"),
        (pa.array(["never"]), "never"),
        (pa.array([None], pa.int64()), None),
    ],
)
def test_a_ttl_in_seconds_as_interval_or_text(array: pa.Array, text: str | None) -> None:
    batch = rows(["a"], [b""], ttl=array)
    assert planner(SinkColumns(0, 1, ttl=2)).plan(batch)[0].ttl == text


def test_an_id_comes_from_the_column_then_from_the_header_then_from_the_row() -> None:
    batch = rows(
        ["a"] * 3,
        [b""] * 3,
        headers=pa.array([[("Nats-Msg-Id", "of-header")], [("nats-msg-id", "of-header")], None], SINGLE),
        msg_id=pa.array(["of-column", None, None]),
    )
    columns = SinkColumns(0, 1, headers=2, msg_id=3)
    made = planner(columns, ids=MessageIds("q-7", 3), keep_nats_headers=True).plan(batch)
    assert [m.msg_id for m in made[:2]] == ["of-column", "of-header"]
    assert made[2].msg_id is not None
    assert made[2].msg_id.startswith("q-7-3-")


# Derived ids


def ids_of(batch: pa.RecordBatch, origin: str = "q-7", partition: int = 3, **options: Any) -> list[str]:
    made = planner(ids=MessageIds(origin, partition, **options), partition=partition).plan(batch)
    return [m.msg_id or "" for m in made]


def test_the_same_rows_get_the_same_ids_and_all_are_different() -> None:
    batch = rows(["a", "a", "a", "b"], [b"1", b"2", b"1", b"1"])
    assert ids_of(batch) == ids_of(batch)
    assert len(set(ids_of(batch))) == 4


def test_another_query_batch_or_partition_gives_other_ids() -> None:
    batch = rows(["a"], [b"1"])
    made = {*ids_of(batch), *ids_of(batch, "q-8"), *ids_of(batch, "q-7", 4), *ids_of(batch, "r-7")}
    assert len(made) == 4


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([b"", b"1", b"2"])), min_size=1),
    st.randoms(use_true_random=False),
)
def test_ids_do_not_depend_on_the_order_of_rows(content: list[tuple[str, bytes]], random: Any) -> None:
    mixed = list(content)
    random.shuffle(mixed)
    before = ids_of(rows([s for s, _ in content], [d for _, d in content]))
    after = ids_of(rows([s for s, _ in mixed], [d for _, d in mixed]))
    assert sorted(before) == sorted(after)
    assert len(set(before)) == len(before)


def test_behind_the_memory_limit_ids_are_still_unique_and_never_name_another_row() -> None:
    batch = rows(["a"] * 4, [b"1", b"1", b"2", b"1"])
    swapped = rows(["a"] * 4, [b"1", b"1", b"1", b"2"])
    first, second = ids_of(batch, remembered=2), ids_of(swapped, remembered=2)
    assert len(set(first)) == 4
    assert first == ids_of(batch, remembered=2)
    # The swap may store a row twice, but no row takes the id of a different one.
    assert set(first[2:]).isdisjoint(second[2:])


def test_headers_and_ttl_are_part_of_what_is_hashed() -> None:
    batch = rows(
        ["a"] * 4,
        [b"x"] * 4,
        headers=pa.array([None, [("A", "1")], [("A", "2")], None], SINGLE),
        ttl=pa.array([None, None, None, 5]),
    )
    made = planner(SinkColumns(0, 1, headers=2, ttl=3), ids=MessageIds("q", 0)).plan(batch)
    digests = {(m.msg_id or "").split("-")[2] for m in made}
    assert len(digests) == 4


# Rows that are not well

NOT_UTF8 = pa.array([b"ok", b"\xff\xfe"]).view(pa.string())
BAD_ROWS = [
    ({"subjects": NOT_UTF8}, "subject", "b'\\xff", "UTF-8"),
    ({"msg_id": NOT_UTF8}, "msg_id", "b'\\xff", "UTF-8"),
    ({"ttl": pa.array([b"1s", b"\xff"]).view(pa.string())}, "ttl", "b'\\xff", "UTF-8"),
    (
        {"headers": pa.MapArray.from_arrays([0, 1, 2], pa.array(["A", "B"]), NOT_UTF8)},
        "headers",
        "not UTF-8",
        "must be UTF-8",
    ),
    ({"subjects": ["ok", None]}, "subject", "None", "null"),
    ({"subjects": ["ok", ""]}, "subject", "''", "empty"),
    ({"subjects": ["ok", "a b"]}, "subject", "'a b'", "space"),
    ({"subjects": ["ok", "a..b"]}, "subject", "'a..b'", "empty tokens"),
    ({"subjects": ["ok", "a.*"]}, "subject", "'a.*'", "wildcard"),
    ({"datas": [b"", None]}, "data", "None", "coalesce"),
    ({"datas": [b"", b"x" * 5000]}, "data", "b'xxx", "exceed the limit"),
    ({"headers": pa.array([None, [("b d", "1")]], SINGLE)}, "headers", "'b d'", "token"),
    ({"headers": pa.array([None, [("A", "1\r\n2")]], SINGLE)}, "headers", "'A'", "CR or LF"),
    ({"headers": pa.array([None, [("A", None)]], SINGLE)}, "headers", "'A'", "null"),
    ({"headers": pa.array([None, [("A", ["1", None])]], MULTI)}, "headers", "'A'", "null"),
    ({"headers": pa.array([None, [("A", "x" * 5000)]], SINGLE)}, "data", "b''", "exceed the limit of 4096"),
    ({"msg_id": pa.array(["ok", ""])}, "msg_id", "''", "printable"),
    ({"msg_id": pa.array(["ok", "a\nb"])}, "msg_id", "'a\\nb'", "printable"),
    ({"ttl": pa.array([1, 0])}, "ttl", "0", "at least 1 second"),
    ({"ttl": pa.array(["1s", "soon"])}, "ttl", "'soon'", "duration"),
    ({"ttl": pa.array([None, timedelta(seconds=1.5)], pa.duration("us"))}, "ttl", "1", "whole seconds"),
]


def two_rows(
    subjects: list[Any] | pa.Array | None = None,
    datas: list[Any] | None = None,
    headers: pa.Array | None = None,
    msg_id: pa.Array | None = None,
    ttl: pa.Array | None = None,
) -> pa.RecordBatch:
    return rows(
        ["ok", "ok"] if subjects is None else subjects,
        datas or [b"", b""],
        headers=pa.nulls(2, SINGLE) if headers is None else headers,
        msg_id=pa.nulls(2, pa.string()) if msg_id is None else msg_id,
        ttl=pa.nulls(2, pa.int64()) if ttl is None else ttl,
    )


@pytest.mark.parametrize(("change", "column", "value", "rule"), BAD_ROWS)
def test_a_bad_row_is_named_with_place_value_and_rule(
    change: dict[str, Any], column: str, value: str, rule: str
) -> None:
    plan = planner(ALL, max_size=4096)
    plan.plan(two_rows())
    with pytest.raises(BadRow) as caught:
        plan.plan(two_rows(**change))
    error = caught.value
    assert (error.partition, error.row, error.column) == (3, 3, column)
    assert value in error.value
    assert rule in error.rule
    assert "partition 3, row 3" in str(error)
    assert "deadLetterSubject" in str(error)
    assert len(str(error)) < 600
    assert plan.rows == 2  # nothing of the record batch counts


@pytest.mark.parametrize(("change", "column", "value", "rule"), BAD_ROWS)
def test_with_a_dead_letter_subject_a_bad_row_is_kept_with_its_reason(
    change: dict[str, Any], column: str, value: str, rule: str
) -> None:
    del value
    plan = planner(ALL, max_size=4096, dead_letter_subject="dead.rows", ids=MessageIds("q", 3))
    good, dead = plan.plan(two_rows(**change))
    assert (good.dead, good.subject) == (False, "ok")
    assert (dead.dead, dead.subject, dead.row) == (True, "dead.rows", 1)
    assert dead.headers is not None
    reason = dead.headers["Jetspark-Error"]
    assert reason.startswith(f"{column}: ")
    assert rule in reason
    assert dead.headers["Jetspark-Row"] == "3/1"
    assert dead.msg_id is not None
    assert dead.msg_id.startswith("dead-q-3-")
    sent = publish_headers(dead.headers, msg_id=dead.msg_id)
    assert sent is not None
    assert len(encode_headers(sent)) + len(dead.data) <= 4096


def test_a_dead_letter_keeps_what_it_can_of_the_row() -> None:
    batch = rows(
        ["a b"],
        [b"body"],
        headers=pa.array([[("Nats-Msg-Id", "x"), ("Nats-Rollup", "all"), ("K", "v")]], SINGLE),
    )
    (dead,) = planner(SinkColumns(0, 1, headers=2), dead_letter_subject="dead").plan(batch)
    assert dead.data == b"body"
    assert dead.headers is not None
    assert dead.headers["Jetspark-Subject"] == "a b"
    assert dead.headers["K"] == "v"
    # Nothing in a dead letter may steer the server.
    assert not [name for name in dead.headers if name.lower().startswith("nats-")]
    assert dead.headers["Jetspark-Nats-Msg-Id"] == "x"


def test_a_body_that_is_a_string_need_not_be_utf8() -> None:
    batch = pa.record_batch([pa.array(["a", "b"]), NOT_UTF8], names=["subject", "data"])
    assert [m.data for m in planner().plan(batch)] == [b"ok", b"\xff\xfe"]


def test_ids_of_dead_letters_do_not_depend_on_the_order_either() -> None:
    one, two = rows(["a b", "a", "c d"], [b"1", b"1", b"1"]), rows(["c d", "a b", "a"], [b"1", b"1", b"1"])
    ids = [
        sorted(m.msg_id or "" for m in planner(dead_letter_subject="d", ids=MessageIds("q", 3)).plan(batch))
        for batch in (one, two)
    ]
    assert ids[0] == ids[1]


def test_a_dead_letter_that_is_too_large_is_cut_and_says_so() -> None:
    (dead,) = planner(max_size=4096, dead_letter_subject="dead").plan(rows(["a"], [b"x" * 9000]))
    assert dead.headers is not None
    assert dead.headers["Jetspark-Truncated"] == "9000"
    assert 2000 < len(dead.data) < 4096


def test_all_bad_rows_of_a_record_batch_are_counted() -> None:
    with pytest.raises(BadRow, match="and 2 more bad rows") as caught:
        planner().plan(rows(["ok", "a b", None, "c d"], [b""] * 4))
    assert caught.value.row == 1
    assert caught.value.others == 2


@given(st.integers(0, 60), st.booleans())
def test_the_size_limit_counts_headers_exactly(distance: int, over: bool) -> None:
    expect = Expect(stream="S")
    head = len(encode_headers(publish_headers({"A": "1"}, msg_id="id", expect=expect, ttl="7") or {}))
    size = 4096 - head + (1 + distance if over else -distance)
    batch = rows(
        ["a"],
        [b"x" * size],
        headers=pa.array([[("A", "1")]], SINGLE),
        msg_id=pa.array(["id"]),
        ttl=pa.array([7]),
    )
    plan = planner(ALL, max_size=4096, expect=expect)
    if over:
        with pytest.raises(BadRow, match="exceed the limit of 4096"):
            plan.plan(batch)
    else:
        assert len(plan.plan(batch)) == 1


# Options and columns

KINDS = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "interval day to second": DayTimeIntervalType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "map<string,array<string>>": MapType(StringType(), ArrayType(StringType())),
    "map<string,int>": MapType(StringType(), IntegerType()),
    "struct<a:int>": StructType([StructField("a", IntegerType())]),
}


def columns_of(ddl: str) -> StructType:
    """StructType.fromDDL asks a running Spark; this does not."""
    fields = [column.split(" ", 1) for column in ddl.split(", ")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in fields])


def test_options_have_their_defaults_and_are_read_in_any_case() -> None:
    plain = parse_sink(SERVER, streaming=True)
    assert (plain.window, plain.ack_timeout, plain.required_duplicate_window) == (4000, 30.0, 120.0)
    assert (plain.derive_msg_id, plain.require_exactly_once, plain.stream) == (True, False, None)
    given = parse_sink(
        {**SERVER, "ACKTIMEOUT": "5s", "Window": "10", "stream": "S", "deadlettersubject": "d.x"},
        streaming=True,
    )
    assert (given.ack_timeout, given.window, given.stream, given.dead_letter_subject) == (5.0, 10, "S", "d.x")


@pytest.mark.parametrize(
    ("options", "option", "text"),
    [
        ({"windw": "1"}, "windw", "did you mean 'window'"),
        ({"window": "0"}, "window", "1 or more"),
        ({"ackTimeout": "soon"}, "ackTimeout", "duration"),
        ({"subject": "a.*"}, "subject", "wildcard"),
        ({"deadLetterSubject": "a b"}, "deadLetterSubject", "space"),
        ({"stream": "ORDERS-*"}, "stream", "not to a list or a glob"),
        ({"requireExactlyOnce": "maybe"}, "requireExactlyOnce", "true or false"),
        ({"startingPosition": "earliest"}, "startingPosition", "is for reading"),
        ({"msgIdPrefix": "x"}, "msgIdPrefix", "batch writes"),
    ],
)
def test_a_bad_option_is_named_with_the_remedy(options: dict[str, str], option: str, text: str) -> None:
    with pytest.raises(OptionError, match=text) as caught:
        parse_sink({**SERVER, **options}, streaming=True)
    assert caught.value.option == option


def test_overwrite_is_refused_for_batches_and_names_append() -> None:
    with pytest.raises(OptionError, match=r"mode\('append'\)"):
        parse_sink(SERVER, streaming=False, overwrite=True)
    assert parse_sink(SERVER, streaming=True, overwrite=True).window == 4000  # Spark's complete mode


@pytest.mark.parametrize(
    "schema",
    [
        "subject string, data binary",
        "DATA string, Subject string",
        "subject string, data string, headers map<string,string>, msg_id string, ttl int",
        "subject string, data string, headers map<string,array<string>>, ttl bigint",
        "subject string, data string, ttl string",
        "subject string, data string, ttl interval day to second",
    ],
)
def test_columns_that_can_be_written(schema: str) -> None:
    kind = columns_of(schema)
    columns = check_columns(kind, parse_sink(SERVER, streaming=True))
    assert columns.data == [field.name.lower() for field in kind.fields].index("data")


@pytest.mark.parametrize(
    ("schema", "column", "text"),
    [
        ("subject string", "data", "missing"),
        ("data string", "subject", "missing"),
        ("subject string, data string, sequence bigint", "sequence", "to_json"),
        ("subject string, data string, DATA string", "DATA", "twice"),
        ("subject int, data string", "subject", "cast"),
        ("subject string, data struct<a:int>", "data", "to_json"),
        ("subject string, data string, headers map<string,int>", "headers", "array<string>"),
        ("subject string, data string, msg_id bigint", "msg_id", "cast"),
        ("subject string, data string, ttl double", "ttl", "whole seconds"),
    ],
)
def test_columns_that_can_not_be_written_are_named_with_the_remedy(
    schema: str, column: str, text: str
) -> None:
    with pytest.raises(SinkSchemaError, match=text) as caught:
        check_columns(columns_of(schema), parse_sink(SERVER, streaming=True))
    assert caught.value.column == column


def test_subject_as_option_and_as_column_contradict_each_other() -> None:
    options = parse_sink({**SERVER, "subject": "a"}, streaming=True)
    assert check_columns(columns_of("data string"), options).subject is None
    with pytest.raises(OptionError, match="contradicts the column"):
        check_columns(columns_of("subject string, data string"), options)


def test_exactly_once_without_any_ids_is_refused() -> None:
    options = parse_sink({**SERVER, "requireExactlyOnce": "true", "deriveMsgId": "false"}, streaming=True)
    with pytest.raises(OptionError, match="needs ids"):
        check_columns(columns_of("subject string, data string"), options)
    with_ids = columns_of("subject string, data string, msg_id string")
    assert check_columns(with_ids, options).msg_id == 2


@pytest.mark.parametrize(
    "error",
    [
        BadRow(1, 2, "subject", "a b", "no spaces", 3),
        RowNotAcked(1, 2, "a", NoStreamResponse("a"), 4, "hint"),
        SinkSchemaError("x", "is odd"),
        NotExactlyOnce("window"),
        UnfitStream("sealed"),
        UnknownMicroBatch("which?"),
        OptionError("x", "is odd"),
    ],
)
def test_errors_survive_the_trip_from_an_executor(error: JetsparkError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy).keys() == vars(error).keys()


# The quick way


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["a.b", "a.c", "ü", None, "a b"]), st.sampled_from([b"", b"x", b"\xff", None])
            ),
            max_size=6,
        ),
        max_size=5,
    ),
    st.integers(0, 12),
)
def test_the_quick_way_gives_the_same_messages_or_gives_up(
    batches: list[list[tuple[str | None, bytes | None]]], remembered: int
) -> None:
    ids = [MessageIds("q-1", 3, remembered) for _ in range(2)]
    slow, quick = (planner(ids=one, dead_letter_subject="dead") for one in ids)
    for batch in batches:
        given = rows([subject for subject, _ in batch], [data for _, data in batch])
        expected = slow.plan(given)
        plain = quick.plan_plain(given)
        assert (plain is None) == (not batch or any(one.dead for one in expected))
        if plain is None:
            quick.plan(given)
            continue
        assert plain.first == expected[0].row
        assert plain.subjects == [one.subject for one in expected]
        assert plain.datas == [one.data for one in expected]
        assert [one.decode() for one in plain.ids] == [one.msg_id for one in expected]
    assert quick.rows == slow.rows


def test_the_quick_way_is_for_rows_with_subject_and_data_only() -> None:
    ids = MessageIds("q", 0)
    one = rows(["a"], ["x"], msg_id=pa.array(["m"]))
    assert planner(ids=ids).plan_plain(rows(["a"], ["x"])) is not None
    assert planner(SinkColumns(subject=0, data=1, msg_id=2), ids=ids).plan_plain(one) is None
    assert planner().plan_plain(rows(["a"], ["x"])) == PlainRows(0, ["a"], [b"x"], None), "no ids, none made"
    assert planner(ids=ids, max_size=600).plan_plain(rows(["a"], ["x" * 100])) is None
    assert planner(ids=MessageIds(" q", 0)).plan_plain(rows(["a"], ["x"])) is None
