"""``jetspark pipe`` on a real server with a real Spark. All runs but one share a process, and so a Spark."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from support.helpers import unique
from support.piping import NOW, SCHEMA, bodies, publish

if TYPE_CHECKING:
    from conftest import Open, Run
    from support.piping import Pipe

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_every_sink_and_a_restart(pipe: Pipe, cli: Run, home: Path, orders: str, target: str) -> None:
    folder = home / orders
    # A path, so that the job's name and with it the checkpoint is the same in both runs.
    job = home / f"{orders}.toml"
    table = f"t_{orders.lower()}"
    sinks = [f"parquet:{folder}/p", f"csv:{folder}/c", f"json:{folder}/j", f"table:{table}"]
    sinks += ["console", f"jetstream:{target}:{target}.{{region}}"]
    job.write_text(
        f'from = "{orders}"\njson_infer = true\nto = {json.dumps(sinks)}\npartition_by = "region"\n'
        'sql = "SELECT id, amount * 2 AS twice, region FROM input WHERE id <> 2"\n'
    )
    first = pipe("run", str(job), *NOW)
    assert first.code == 0, first
    assert "schema from 4 messages: id bigint, region string, amount double" in first.err
    assert "new, starts at earliest; a rerun of the same job continues there" in first.err
    assert f"parquet:{folder}/p: 4 rows read, 3 written in 1 batch" in first.err
    assert first.out.splitlines()[0].split() == ["id", "twice", "region"]
    assert [line.split()[0] for line in first.out.splitlines()[1:]] == ["0", "1", "3"]

    publish(cli, orders, range(4, 6))
    second = pipe("run", str(job), *NOW, "--json")
    assert second.code == 0, second
    assert "this run continues there" in second.err
    rows = [line["row"] for line in second.lines if line["type"] == "row"]
    assert rows == [{"id": 4, "twice": 9.0, "region": "eu"}, {"id": 5, "twice": 11.0, "region": "us"}]
    totals = second.lines[-1]
    assert totals["type"] == "totals"
    assert {
        one["sink"]: (one["rows_in"], one["rows_out"], one["lag"]) for one in totals["sinks"]
    } == dict.fromkeys(sinks, (2, 2, 0))
    assert (Path(totals["checkpoint"]) / "spark.log").exists()

    ids = [0, 1, 3, 4, 5]
    for place in (folder / "p", home / "spark-warehouse" / table):
        files = ds.dataset(place, format="parquet", partitioning="hive", exclude_invalid_files=False)
        assert sorted(files.to_table()["id"].to_pylist()) == ids
        assert (place / "region=eu").is_dir()
    lines = [line for path in (folder / "c").rglob("*.csv") for line in path.read_text().splitlines()]
    assert sorted(line for line in lines if line != "id,twice") == [
        "0,1.0",
        "1,3.0",
        "3,7.0",
        "4,9.0",
        "5,11.0",
    ]
    texts = [line for path in (folder / "j").rglob("*.json") for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["id"] for line in texts) == ids
    stored = bodies(cli, target)
    assert sorted(body["id"] for _, body in stored) == ids  # type: ignore[type-var]
    assert {subject for subject, body in stored if body["region"] == "us"} == {f"{target}.us"}


def test_errors_that_only_spark_can_find_are_short(pipe: Pipe, orders: str, target: str) -> None:
    base = ["--from", orders, "--json-schema", SCHEMA, *NOW]
    for sql, sink, message in [
        (
            "SELECT nope FROM input",
            "console",
            "--sql: A column, variable, or function parameter with name `nope`",
        ),
        ("SELECT id FORM input", "console", "--sql: "),
        ("SELECT id FROM input JOIN elsewhere", "console", "`elsewhere` cannot be found"),
        ("SELECT count(*) AS n FROM input", "console", "use --output-mode update"),
        ("SELECT id FROM input", f"jetstream:{target}", "needs a subject: name one"),
        (
            "SELECT id FROM input",
            f"jetstream:{target}:{target}.{{region}}",
            "'region' is not a column of the result",
        ),
        ("SELECT cast(region AS int) AS n FROM input", "console", "use try_cast"),
    ]:
        ran = pipe(*base, "--sql", sql, "--to", sink)
        assert ran.code == 1, (sql, ran)
        error = ran.err[ran.err.index("error: ") :]
        assert message in error
        assert len(error.splitlines()) <= 2, error
        assert "at org." not in error
        assert "ContextLogger" not in ran.err
        assert "Traceback" not in ran.err


def test_a_bad_schema_is_short(pipe: Pipe, orders: str) -> None:
    ran = pipe(
        "--from",
        orders,
        "--json-schema",
        "id map<long>",
        "--sql",
        "SELECT * FROM input",
        "--to",
        "console",
        *NOW,
    )
    assert ran.code == 1
    assert "error: --json-schema: " in ran.err
    assert len(ran.err[ran.err.index("error: ") :].splitlines()) <= 2


def test_aggregates_unique_rows_and_updates(pipe: Pipe, cli: Run, orders: str, target: str) -> None:
    publish(cli, orders, range(4))  # once more
    ran = pipe(
        *("--from", orders, "--json-schema", SCHEMA, "--json-into", "order", "--output-mode", "update"),
        *(
            "--sql",
            "SELECT order.region AS region, count(DISTINCT order.id) AS n FROM input GROUP BY order.region",
        ),
        *("--to", f"jetstream:{target}:{target}.totals", *NOW),
    )
    # Spark has no distinct aggregates in streams: one line says so.
    assert ran.code == 1
    assert "istinct" in ran.err
    ran = pipe(
        *("--from", orders, "--json-schema", SCHEMA, "--watermark", "timestamp 1h", "--unique", "id"),
        *(
            "--name",
            f"{orders}-ids",
            "--sql",
            "SELECT id, region FROM input",
            "--to",
            f"jetstream:{target}:{target}.ids",
            *NOW,
        ),
    )
    assert ran.code == 0, ran
    assert "8 rows read, 4 written" in ran.err
    ran = pipe(
        *("--from", orders, "--json-schema", SCHEMA, "--output-mode", "update", "--name", f"{orders}-totals"),
        *("--sql", "SELECT region, count(*) AS n FROM input GROUP BY region"),
        *("--to", f"jetstream:{target}:{target}.totals", *NOW),
    )
    assert ran.code == 0, ran
    found = bodies(cli, target)
    assert sorted(body["id"] for subject, body in found if subject.endswith("ids")) == [0, 1, 2, 3]  # type: ignore[type-var]
    assert {body["region"]: body["n"] for subject, body in found if subject.endswith("totals")} == {
        "eu": 4,
        "us": 4,
    }


def test_ctrl_c_finishes_the_batch_and_the_next_run_goes_on(
    terminal: Open, pipe: Pipe, cli: Run, orders: str, tmp_path: Path
) -> None:
    words = ["--from", orders, "--json-schema", SCHEMA, "--sql", "SELECT id FROM input"]
    words += ["--to", f"parquet:{tmp_path}/p", "--checkpoint", f"{tmp_path}/check", "--master", "local[1]"]
    with terminal("pipe", *words, "--trigger", "100ms", columns=160) as shown:
        shown.expect("4 in, 4 out", timeout=120)
        # While it runs nobody else may use its checkpoint.
        busy = pipe(*words, *NOW)
        assert busy.code == 1
        assert f"this job is already running as process {shown.process.pid}" in busy.err
        publish(cli, orders, range(4, 6))
        shown.expect("6 in, 6 out", timeout=60)
        shown.process.send_signal(signal.SIGINT)
        shown.expect("stopping after the current micro-batch", timeout=30)
        ended = shown.end(timeout=90)
    assert ended.code == 0, ended
    assert f"parquet:{tmp_path}/p: 6 rows read, 6 written in" in " ".join(ended.out.split())
    publish(cli, orders, range(6, 7))
    again = pipe(*words, *NOW)
    assert again.code == 0, again
    assert "1 rows read, 1 written" in again.err
    found = ds.dataset(tmp_path / "p", format="parquet").to_table()["id"].to_pylist()
    assert sorted(found) == list(range(7))


def test_what_the_server_knows_is_asked_before_spark_starts(cli: Run, orders: str, target: str) -> None:
    good = ("--sql", "SELECT * FROM input", *NOW)
    plain = unique("PLAIN")
    assert cli("stream", "add", plain, "--subjects", f"{plain}.>", "--storage", "memory").code == 0
    empty = (*good, "--from", plain, "--to", "console", "--json-infer")
    cases = [
        ((*good, "--from", "NOPE_X", "--to", "console"), "no stream 'NOPE_X' here"),
        ((*good, "--from", f"{orders},NOPE_X", "--to", "console"), "no stream 'NOPE_X' here"),
        ((*good, "--from", "NOPE-*", "--to", "console"), "no stream matches 'NOPE-*'"),
        ((*good, "--from", orders, "--to", "jetstream:NOPE_X"), "no stream 'NOPE_X' here"),
        (
            (*good, "--from", orders, "--to", f"jetstream:{target}:other"),
            f"stream {target} does not store subject 'other'",
        ),
        (
            (*good, "--from", orders, "--to", f"jetstream:{target}:x.{{id}}"),
            "does not store subject 'x.{id}'",
        ),
        ((*good, "--from", orders, "--to", f"jetstream:{orders}"), "so it would never end"),
        (
            (*good, "--from", orders, "--subjects", "other.>", "--to", "console"),
            f"{orders} does not store 'other.>'",
        ),
        (empty, "the stream has no messages yet"),
    ]
    for words, message in cases:
        ran = cli("pipe", *words)
        assert ran.code == 1, (words, ran)
        assert message in ran.err
        assert "starting Spark" not in ran.err
        assert len(ran.err.splitlines()) <= 2
    assert cli("pub", f"{plain}.x", "no json", "--js").code == 0
    assert "none of the 1 messages is a JSON object" in cli("pipe", *empty).err
    assert cli("pub", f"{plain}.x", '{"data": 1}', "--js").code == 0
    clash = cli("pipe", *empty)
    assert (clash.code, "'data' is already a column of the messages" in clash.err) == (2, True)
