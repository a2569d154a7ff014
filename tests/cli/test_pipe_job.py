"""Jobs of ``jetspark pipe`` as words: what is refused before Spark and server are asked, and what is made."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from jetspark._secret import Secret
from jetspark.cli.errors import CommandFailed, UsageError
from jetspark.cli.pipe.checks import connection_arguments
from jetspark.cli.pipe.errors import brief, failed
from jetspark.cli.pipe.job import Sink, build, load, parse_sink, parse_start, parse_trigger
from jetspark.cli.pipe.json_schema import check_schema, infer
from jetspark.cli.pipe.record import plain_sql
from jetspark.cli.settings import Settings
from jetspark.cli.stopping import Flag
from jetspark.spark.helpers import option_strings
from support.cli_runner import environment, inside

if TYPE_CHECKING:
    from pathlib import Path

SQL = "SELECT * FROM input"
GOOD = ["--from", "S", "--sql", SQL, "--to", "console"]


def without(flag: str) -> list[str]:
    place = GOOD.index(flag)
    return GOOD[:place] + GOOD[place + 2 :]


WRONG_USE: list[tuple[list[str], str]] = [
    ([], "Usage: jetspark pipe"),
    (without("--from"), "missing --from; give a stream"),
    (without("--sql"), "missing --sql; give a query"),
    (without("--to"), "missing --to; use jetstream:STREAM[:SUBJECT]"),
    ([*GOOD, "--from", "a.b"], "invalid --from 'a.b': a stream's name must not"),
    ([*GOOD, "--subjects", "a..b"], "--subjects: 'a..b' must not have empty tokens"),
    ([*without("--sql"), "--sql", " "], "missing --sql"),
    (
        [*without("--sql"), "--sql", "DROP TABLE input"],
        "invalid --sql 'DROP TABLE input': not a query; use SELECT",
    ),
    ([*without("--sql"), "--sql", "SELECT 1"], "it must read the messages, the view 'input'"),
    ([*without("--sql"), "--sql", f"{SQL}; {SQL}"], "one statement, without ';'"),
    ([*GOOD, "--to", "kafka:x"], "invalid --to 'kafka:x': not a sink; use jetstream:STREAM"),
    ([*GOOD, "--to", "parquet"], "'parquet': the target is missing"),
    ([*GOOD, "--to", "parquet:"], "'parquet:': the target is missing"),
    ([*GOOD, "--to", "console:x"], "console takes no target"),
    ([*GOOD, "--to", "console"], "--to console is given twice"),
    ([*GOOD, "--to", "csv:/etc/hostname"], "/etc/hostname is a file; give a folder"),
    ([*GOOD, "--to", "table:a b"], "'a b' is not a table name"),
    ([*GOOD, "--to", "jetstream:a.b"], "invalid --to 'jetstream:a.b': a stream's name must not"),
    ([*GOOD, "--to", "jetstream:OUT:"], "the subject is empty"),
    ([*GOOD, "--to", "jetstream:OUT:a.*"], "wildcard"),
    ([*GOOD, "--to", "jetstream:OUT:a.{b"], "write a column as {name}"),
    ([*GOOD, "--to", "jetstream:OUT:a.{}"], "must have a column name between braces"),
    ([*GOOD, "--trigger", "soon"], "invalid --trigger 'soon'; use 5s, available-now or once"),
    ([*GOOD, "--start", "yesterday"], "invalid --start 'yesterday'; use earliest, latest, a sequence"),
    ([*GOOD, "--start", "0"], "invalid --start '0'; use earliest, latest, a sequence from 1"),
    ([*GOOD, "--json-schema", "id long", "--json-infer"], "--json-infer and --json-schema can't be combined"),
    ([*GOOD, "--json-schema", "id"], "'id' is not a field; use a name and a type"),
    ([*GOOD, "--json-schema", "id lnog"], "id has the unknown type 'lnog'; did you mean 'long'?"),
    ([*GOOD, "--json-schema", "a array<int"], "brackets or quotes do not match"),
    ([*GOOD, "--json-schema", "subject string"], "--json-into body keeps the fields apart"),
    ([*GOOD, "--json-schema", "a int, A long"], "'A' is given twice"),
    ([*GOOD, "--json-into", "x"], "--json-into needs --json-schema or --json-infer"),
    ([*GOOD, "--unique", "id"], "--unique needs --watermark"),
    ([*GOOD, "--watermark", "10m"], "use a column and a duration: 'timestamp 10m'"),
    ([*GOOD, "--watermark", "timestamp 10x"], "is not a duration"),
    ([*GOOD, "--output-mode", "some"], "invalid --output-mode 'some'; use append, update or complete"),
    (
        [*GOOD, "--to", "csv:x", "--output-mode", "update"],
        "files do not support output mode 'update'; csv:x needs append",
    ),
    (
        [*GOOD, "--to", "jetstream:O:o", "--output-mode", "complete"],
        "streams do not support output mode 'complete'",
    ),
    ([*GOOD, "--partition-by", "a"], "--partition-by needs a parquet, csv, json or table sink"),
    ([*GOOD, "--max-per-batch", "0"], "invalid --max-per-batch 0; it must be greater than zero"),
    ([*GOOD, "--master", "here"], "invalid --master 'here': not a Spark master URL"),
    ([*GOOD, "--conf", "a"], "invalid --conf 'a'; use spark.KEY=VALUE"),
    ([*GOOD, "--conf", "a=b"], "invalid --conf 'a': Spark settings begin with"),
    ([*GOOD, "--name", "a/b"], "invalid --name 'a/b'; use up to 60 letters"),
    ([*GOOD, "--checkpoint", "/etc/hostname"], "/etc/hostname is a file"),
    ([*GOOD, "--restart-from", "soon"], "invalid --restart-from 'soon'; use committed"),
    ([*GOOD, "--restart-from", "1", "--new-checkpoint"], "leave out --new-checkpoint"),
    (["--json", "run", "x.toml"], "put options after 'run FILE'"),
    (["run"], "Missing argument 'FILE'"),
]


@pytest.mark.parametrize(("words", "message"), WRONG_USE, ids=lambda value: str(value)[-60:])
def test_wrong_use_is_found_without_spark_and_server(tmp_path: Path, words: list[str], message: str) -> None:
    # Neither exists here: no server listens on port 1, and without PATH there is no java.
    env = environment(tmp_path, NATS_URL="nats://127.0.0.1:1", PATH="", JAVA_HOME="")
    ran = inside(env, "pipe", *words)
    assert ran.code == 2, ran
    assert message in " ".join(ran.err.split())
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert message.startswith("Usage") or len(ran.err.splitlines()) <= 2


FILES = [
    ("from = ", 2, "is not valid TOML"),
    ('from = "S"\nsink = "console"', 2, "unknown key 'sink'"),
    ('form = "S"', 2, "did you mean 'from'?"),
    ("from = 3", 2, "'from' must be text or a list of texts, not 3"),
    ('json_infer = "yes"', 2, "'json_infer' must be true or false"),
    ('conf = "x"', 2, "'conf' must be a table"),
    ("sql = 1", 2, "'sql' must be text"),
    ("new_checkpoint = true", 2, "unknown key 'new_checkpoint'"),
    ('from = "S"\nsql = "SELECT 1 FROM input"', 2, "missing --to"),
    (
        'from = "S"\nsql = "SELECT 1 FROM input"\nto = "console"\ntrigger = "x"',
        2,
        "invalid --trigger 'x'; use 5s",
    ),
]


@pytest.mark.parametrize(("text", "code", "message"), FILES)
def test_a_bad_job_file_is_refused(tmp_path: Path, text: str, code: int, message: str) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text)
    ran = inside(environment(tmp_path, NATS_URL="nats://127.0.0.1:1"), "pipe", "run", str(path))
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err
    assert len(ran.err.splitlines()) <= 2


def test_a_job_file_that_is_not_there(tmp_path: Path) -> None:
    env = environment(tmp_path, NATS_URL="nats://127.0.0.1:1")
    assert "nope.toml: No such file" in inside(env, "pipe", "run", "nope.toml").err
    assert "is a folder" in inside(env, "pipe", "run", str(tmp_path)).err


def test_what_is_missing_on_the_machine_is_said_before_spark_starts(tmp_path: Path) -> None:
    env = environment(tmp_path, NATS_URL="nats://127.0.0.1:1", PATH="", JAVA_HOME="")
    ran = inside(env, "pipe", *GOOD)
    assert ran.code == 1
    assert "Spark needs Java 17 or newer" in ran.err


def test_no_server_is_said_before_spark_starts(tmp_path: Path) -> None:
    ran = inside(environment(tmp_path, NATS_URL="nats://127.0.0.1:1"), "pipe", *GOOD)
    assert ran.code == 1
    assert "127.0.0.1:1" in ran.err
    assert "starting Spark" not in ran.err


def test_flags_and_file_make_the_same_job(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(
        'from = ["A", "B"]\nsubjects = "a.>"\nstart = 17\njson_schema = "id long"\n'
        'sql = "SELECT id FROM input;"\n'
        'to = ["parquet:out", "jetstream:C:c.{id}"]\ntrigger = "5s"\npartition_by = ["id"]\n'
        'watermark = "timestamp 10 minutes"\nunique = ["id"]\n[conf]\nspark.sql.shuffle.partitions = 3\n'
    )
    flags = {
        "from": ["A,B"],
        "subjects": ["a.>"],
        "start": "17",
        "json_schema": "id long",
        "sql": "SELECT id FROM input",
        "to": ["parquet:out", "jetstream:C:c.{id}"],
        "trigger": "5s",
        "partition_by": ["id"],
        "watermark": "timestamp 10m",
        "unique": ["id"],
        "conf": ["spark.sql.shuffle.partitions=3"],
    }
    job = build(load(path))
    assert job == build(flags)
    assert job.streams == ("A", "B")
    assert job.sinks == (Sink("parquet", "out"), Sink("jetstream", "C", "c.{id}"))
    assert job.watermark == ("timestamp", "600000 milliseconds")
    assert job.trigger.arguments() == {"processingTime": "5000 milliseconds"}
    assert job.conf == (("spark.sql.shuffle.partitions", "3"),)


def test_the_folder_of_a_job_follows_from_its_identity(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    given: dict[str, Any] = {"from": ["S"], "sql": SQL, "to": ["parquet:out"]}
    root = tmp_path / "jetspark" / "pipe"
    place = build(given).folder("nats://a:1,nats://b:1")
    assert place.startswith(str(root / "unnamed" / "S-"))
    edits: list[dict[str, Any]] = [
        {"sql": "SELECT subject FROM input"},
        {"to": ["parquet:out", "console"]},
        {"trigger": "once", "master": "local[1]", "json_schema": "id long", "title": "job"},
    ]
    for edit in edits:
        assert build({**given, **edit}).folder("nats://b:1, nats://A:1") == place
    assert build({**given, "from": ["T"]}).folder("nats://a:1") != place
    assert build(given).folder("nats://c") != place
    named = build({**given, "name": "nightly"})
    assert named.folder("nats://a") == named.folder("nats://b") == str(root / "named" / "nightly")
    assert build({**given, "checkpoint": "here", "name": "x"}).folder("nats://a") == "here"


def test_sinks_have_places_of_their_own() -> None:
    sinks = ["parquet:a/x", "parquet:b/x", "csv:a/x", "jetstream:OUT", "jetstream:IN:s", "console", "table:x"]
    found = [parse_sink(text) for text in sinks]
    slugs = [sink.slug(sink.key()) for sink in found]
    assert len(set(slugs)) == len(sinks)
    assert all(part.replace("-", "").isalnum() for part in slugs)
    # Another subject is another projection, not another sink; a folder is the same by any name.
    assert parse_sink("jetstream:OUT:s.{x}").key() == parse_sink("jetstream:OUT").key()
    assert parse_sink("parquet:a/x").key() == parse_sink(f"parquet:{os.getcwd()}/b/../a/x").key()
    assert parse_sink("table:t").key() != parse_sink("table:t").key({"spark.sql.warehouse.dir": "/w"})


def test_signs_of_comments_inside_quotes_are_no_comments() -> None:
    sql = "SELECT '-- no /* comment */; here' AS a, `b--c` -- but; this is\nFROM input /* and\n; this */ ;"
    built = build({"from": ["S"], "sql": sql, "to": ["console"]}).sql
    assert plain_sql(built) == "SELECT '-- no /* comment */; here' AS a, `b--c` FROM input"


@pytest.mark.parametrize(
    ("text", "found"),
    [("EARLIEST", "earliest"), ("007", "7"), ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00+00:00")],
)
def test_starts(text: str, found: str) -> None:
    assert parse_start(text) == found


def test_a_start_may_be_an_age() -> None:
    assert parse_start("-1h") <= parse_start("59m")


def test_triggers() -> None:
    assert parse_trigger("available-now").arguments() == {"availableNow": True}
    assert parse_trigger("ONCE").arguments() == {"once": True}
    assert parse_trigger("250ms").arguments() == {"processingTime": "250 milliseconds"}
    assert not parse_trigger("1s").ends


SCHEMAS = [
    ("id long", ["id"]),
    ("id: long, `a b` string COMMENT 'x'", ["id", "a b"]),
    ("a array<struct<x: int, y: map<string, int>>>, d decimal(12,2) NOT NULL", ["a", "d"]),
    ("struct<id: long>", ["id"]),
]


@pytest.mark.parametrize(("ddl", "names"), SCHEMAS)
def test_good_schemas(ddl: str, names: list[str]) -> None:
    assert check_schema(ddl) == names


SAMPLES = [
    ([b'{"a": 1}', b'{"a": 2.5, "b": null}'], "a double, b string", 0),
    ([b'{"a": true}', b'{"a": 1}'], "a string", 0),
    (
        [b'{"a": [1, 2.0], "b": {"c": "x", "d": []}}'],
        "a array<double>, b struct<c: string, d: array<string>>",
        0,
    ),
    ([b'{"a b": {}}', b"nonsense", b"[1]"], "`a b` string", 2),
    ([b'{"a": 9223372036854775808}'], "a double", 0),
    ([b"1", b""], None, 2),
]


@pytest.mark.parametrize(("bodies", "ddl", "other"), SAMPLES)
def test_schemas_from_samples(bodies: list[bytes], ddl: str | None, other: int) -> None:
    assert infer(bodies) == (ddl, other)
    if ddl is not None:
        assert check_schema(ddl)


ERRORS = [
    (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. SQLSTATE: 42703; "
        "line 1 pos 7;\n'Project ['nope]\n+- View\n",
        "--sql: A column with name `nope` cannot be resolved. (line 1, position 7)",
    ),
    (
        "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL",
        "--sql: Syntax error at or near 'SELEC'. (line 1, position 0)",
    ),
    (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted\n\tat java.Thing\n"
        "Traceback (most recent call last):\n  File x, line 3\n"
        "jetspark.errors.ConnectionLost: it broke\n\n\tat org.x",
        "--sql: it broke",
    ),
    ("", "--sql: ValueError"),
]


@pytest.mark.parametrize(("text", "shown"), ERRORS)
def test_errors_of_spark_in_a_line(text: str, shown: str) -> None:
    assert str(failed("--sql", ValueError(text))).splitlines()[0] == shown
    assert len(brief(ValueError(text * 20))[0]) <= 430


def test_credentials_in_urls_go_where_spark_hides_them() -> None:
    found = connection_arguments(Settings(server="nats://u:p%40x@a:1, u:p%40x@b", no_context=True))
    assert (found["servers"], found["user"], found["password"]) == ("nats://a:1,b", "u", "p@x")
    with pytest.raises(CommandFailed, match="--server: the URLs have different credentials") as caught:
        connection_arguments(Settings(server="u:p@a,v:q@b", no_context=True))
    assert "p@" not in str(caught.value)


def test_settings_become_options_of_the_same_meaning() -> None:
    given = Settings(
        server="a:1",
        user="u",
        password=Secret("p"),
        tlsca="/ca.pem",
        tlsfirst=True,
        inbox_prefix="_I",
        js_domain="hub",
        timeout=3,
        no_context=True,
    )
    assert option_strings(connection_arguments(given), ()) == {
        "servers": "a:1",
        "user": "u",
        "password": "p",
        "tlsCa": "/ca.pem",
        "tlsFirst": "true",
        "inboxPrefix": "_I",
        "domain": "hub",
        "connectionName": "jetspark-cli",
        "connectTimeout": "3 seconds",
        "requestTimeout": "10 seconds",
    }


def test_build_raises_usage_errors_and_no_others() -> None:
    with pytest.raises(UsageError):
        build({})
    with pytest.raises(CommandFailed):
        build({"from": ["S"], "sql": SQL, "to": ["parquet:/proc/1/nope"]})


class Ending:
    """Queries that do their last micro-batch, or die of it, when all were just asked for their reports."""

    def __init__(self, together: list[Ending], error: Exception | None) -> None:
        self.isActive = True
        self._together = together
        self._error = error

    @property
    def recentProgress(self) -> list[Any]:
        if not self.isActive:
            report = {"id": "q", "batchId": 0, "timestamp": "2026-01-01T00:00:00Z", "numInputRows": 4}
            metrics = {"observedMetrics": {"jetspark": {"rows": 3}}}
            return [SimpleNamespace(json=json.dumps({**report, **metrics}))]
        if self is self._together[-1]:
            for one in self._together:
                one.isActive = False
        return []

    def exception(self) -> Exception | None:
        return None if self.isActive else self._error


def watch(*errors: Exception | None) -> list[tuple[int, int, int]]:
    from jetspark.cli.pipe.run import Tally, _watch

    queries: list[Ending] = []
    queries += [Ending(queries, error) for error in errors]
    tallies = [Tally(Sink("console", str(number))) for number, _ in enumerate(queries)]
    _watch(cast("Any", queries), tallies, Flag(), cast("Any", None), as_json=True)
    return [(one.batches, one.rows_in, one.rows_out) for one in tallies]


def test_what_a_query_reports_at_its_very_end_is_counted() -> None:
    assert watch(None, None) == [(1, 4, 3)] * 2


def test_what_a_query_dies_of_while_others_are_asked_is_no_success() -> None:
    with pytest.raises(CommandFailed, match="it broke"):
        watch(ValueError("it broke"), None)
