"""Which edits of a job its checkpoint takes: the rules as a table, and the records that they compare."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jetspark.cli.errors import CommandFailed
from jetspark.cli.pipe.record import Record, compare, decode, encode, keeps_state, plain_sql, same_rows

BASE: dict[str, Any] = {
    "folder": "f",
    "streams": ("A",),
    "created": {"A": "2026-01-01"},
    "sql": "SELECT id, 'a  b' AS x FROM input",
    "json_schema": "id long",
    "stateful": False,
    "columns": (("id", "bigint"), ("x", "string")),
}
SINKS = {kind: f"{kind}:out" for kind in ("jetstream", "parquet", "json", "csv", "table", "console")}

#: (edit of a stateless query, sinks that refuse it, the same for a stateful one, words of the refusal)
ALL, NONE = tuple(SINKS), ()
EDITS: list[tuple[str, dict[str, Any], tuple[str, ...], tuple[str, ...], str]] = [
    ("nothing", {}, NONE, NONE, ""),
    ("a blank", {"sql": "SELECT  id,\n'a  b' AS x FROM input"}, NONE, NONE, ""),
    ("a comment", {"sql": "SELECT id, 'a  b' AS x /* new */ FROM input -- now"}, NONE, NONE, ""),
    (
        "a blank in quotes",
        {"sql": "SELECT id, 'a b' AS x FROM input"},
        NONE,
        ALL,
        "--sql: the query keeps state",
    ),
    ("a filter", {"sql": "SELECT id, 'a  b' AS x FROM input WHERE id > 1"}, NONE, ALL, "--sql"),
    ("a schema with blanks", {"json_schema": " id  long "}, NONE, NONE, ""),
    ("another schema", {"json_schema": "id long, n int"}, NONE, ALL, "--json-schema"),
    ("into a column", {"json_into": "body"}, NONE, ALL, "--json-into"),
    ("a watermark", {"watermark": ("timestamp", "1 s")}, NONE, ALL, "--watermark"),
    ("unique rows", {"unique": ("id",), "stateful": True}, ALL, ALL, "--unique"),
    ("state", {"sql": "SELECT 1 FROM input GROUP BY id", "stateful": True}, ALL, ALL, "--sql"),
    ("another mode", {"output_mode": "update"}, ALL, ALL, "it was append, now it is update"),
    ("another subject", {"subject": "out.{id}"}, NONE, NONE, ""),
    ("fewer subjects", {"subjects": ("a.b",)}, NONE, ALL, "--subjects"),
    (
        "one stream more",
        {"streams": ("A", "B"), "created": {"A": "2026-01-01", "B": "x"}},
        NONE,
        ALL,
        "--from",
    ),
    ("a pattern with it", {"streams": ("A*",)}, NONE, ALL, "--from"),
    ("another stream", {"streams": ("B",), "created": {"B": "x"}}, ALL, ALL, "--from: A is no longer read"),
    ("made again", {"created": {"A": "2026-02-02"}}, ALL, ALL, "stream A was deleted and created again"),
    ("other folders", {"partition_by": ("id",)}, ALL, ALL, "--partition-by: the folders are by no column"),
    (
        "a column more",
        {"columns": (*BASE["columns"], ("y", "int"))},
        ("csv", "table"),
        ("csv", "table"),
        "columns",
    ),
    (
        "another type",
        {"columns": (("id", "string"), ("x", "string"))},
        ("parquet", "json", "csv", "table"),
        ("parquet", "json", "csv", "table"),
        "",
    ),
    ("what Spark has not told yet", {"columns": None, "stateful": None}, NONE, NONE, ""),
    ("another name", {"name": "nightly"}, NONE, NONE, ""),
]


@pytest.mark.parametrize(
    ("edit", "stateless", "stateful", "words"), [row[1:] for row in EDITS], ids=[row[0] for row in EDITS]
)
@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("state", [False, True], ids=["stateless", "stateful"])
def test_edits(
    edit: dict[str, Any],
    stateless: tuple[str, ...],
    stateful: tuple[str, ...],
    words: str,
    kind: str,
    state: bool,
) -> None:
    old = Record(**{**BASE, "sink": SINKS[kind], "stateful": state})
    new = Record(**{**BASE, "sink": SINKS[kind], "stateful": state, **edit})
    found = compare(old, new)
    assert bool(found.refused) == (kind in (stateful if state else stateless)), found
    if found.refused:
        assert words in "; ".join(found.refused)


@pytest.mark.parametrize(
    ("old", "new", "fine"),
    [
        ((), ("a",), True),
        (("a.>",), ("a.b", "a.*.c"), True),
        (("a.*",), ("a.b",), True),
        (("a.b", "c"), ("c",), True),
        (("a.b",), (), False),
        (("a.b",), ("a.b", "a.c"), False),
        (("a.*",), ("a.>",), False),
        (("a.*",), ("a.b.c",), False),
        (("a.>",), ("a",), False),
        (("a.*.*",), ("a.*",), False),
    ],
)
def test_subjects_may_get_fewer_and_not_more(old: tuple[str, ...], new: tuple[str, ...], fine: bool) -> None:
    one = Record(**{**BASE, "sink": "jetstream:O", "subjects": old})
    found = compare(one, msgspec.structs.replace(one, subjects=new))
    assert (not found.refused) == fine
    assert not found.rows_differ


@pytest.mark.parametrize(
    ("edit", "differ"),
    [
        ({}, False),
        ({"sql": "SELECT id, 'a  b' AS x  FROM input"}, False),
        ({"sql": "SELECT id FROM input"}, True),
        ({"json_schema": "id int"}, True),
        ({"subject": "other"}, True),
        ({"columns": (("id", "int"),)}, True),
        ({"streams": ("A", "B")}, False),
    ],
)
def test_whether_a_replay_would_write_other_rows(edit: dict[str, Any], differ: bool) -> None:
    old = Record(**BASE, sink="jetstream:O")
    assert compare(old, msgspec.structs.replace(old, **edit)).rows_differ == differ


@pytest.mark.parametrize(
    ("edit", "same"),
    [
        ({}, True),
        ({"sql": "SELECT 1 FROM input", "name": "other"}, True),
        ({"streams": ("A", "B"), "created": {"A": "2026-01-01", "B": "x"}}, True),
        ({"created": {"A": "elsewhere"}}, False),
        ({"subjects": ("a.*",)}, True),
        ({"subjects": ("b.*",)}, False),
        ({"sink": "jetstream:OTHER"}, False),
    ],
)
def test_which_jobs_bring_the_same_rows(edit: dict[str, Any], same: bool) -> None:
    one = Record(**{**BASE, "sink": "jetstream:O", "subjects": ("a.b",)})
    assert same_rows(msgspec.structs.replace(one, **edit), one) == same
    console = msgspec.structs.replace(one, sink="console:")
    assert not same_rows(console, console)


@pytest.mark.parametrize(
    ("sql", "state"),
    [
        ("SELECT id FROM input", None),
        ("SELECT region, count(*) FROM input group\n by region", True),
        ("SELECT DISTINCT id FROM input", True),
        ("SELECT 'group by' FROM input -- group by", None),
    ],
)
def test_words_that_tell_of_state(sql: str, state: bool | None) -> None:
    assert keeps_state(sql, ()) is state
    assert keeps_state(sql, ("id",)) is True


def test_sql_without_blanks_and_comments() -> None:
    assert (
        plain_sql("SELECT  a -- x\n, ' b  -- c' /* d\n */ FROM\tinput") == "SELECT a , ' b  -- c' FROM input"
    )
    assert plain_sql(r"SELECT 'it\'s  --' , 1") == r"SELECT 'it\'s  --' , 1"


def test_records_are_read_as_they_were_written() -> None:
    one = Record(**BASE, sink="jetstream:O", watermark=("t", "1 s"), restart_from='{"A": 3}')
    assert decode(encode(one), "x.json") == one
    for text, words in [
        ("{", "is damaged"),
        ('{"folder": 3, "sink": "x"}', "is damaged"),
        ('{"version": 9}', "newer"),
    ]:
        with pytest.raises(CommandFailed, match=words):
            decode(text, "x.json")
