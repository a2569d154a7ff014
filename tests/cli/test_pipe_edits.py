"""A job of ``jetspark pipe`` that was edited: nothing is lost, nothing comes twice, or it is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from jetspark.cli.pipe.job import build
from support.piping import NOW, SCHEMA, bodies, publish

if TYPE_CHECKING:
    from conftest import Run
    from support.piping import Pipe

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class Job:
    """A job file that is edited from run to run."""

    def __init__(self, pipe: Pipe, home: Path, stream: str, to: list[str], **keys: Any) -> None:
        self._pipe = pipe
        self.path = home / f"{stream}.toml"
        self.folder = home / stream
        self.keys: dict[str, Any] = {
            "from": stream,
            "json_schema": SCHEMA,
            "sql": "SELECT id, region FROM input",
            "to": to,
            **keys,
        }

    def run(self, *words: str, **edits: Any) -> Any:
        self.keys |= edits
        lines = [f"{key} = {json.dumps(value)}" for key, value in self.keys.items() if value is not None]
        self.path.write_text("\n".join(lines) + "\n")
        return self._pipe("run", str(self.path), *NOW, *words)

    def works(self, *words: str, **edits: Any) -> Any:
        ran = self.run(*words, **edits)
        assert ran.code == 0, ran
        return ran

    def refused(self, *words: str, started: bool = False, **edits: Any) -> str:
        ran = self.run(*words, **edits)
        assert ran.code == 1, ran
        assert ("starting Spark" in ran.err) == started, ran.err
        error = ran.err[ran.err.index("error: ") :]
        assert len(error.splitlines()) == 2, error
        return error


def parquet_ids(folder: Path) -> list[int]:
    """As Spark reads it: the files that its log names."""
    found: list[int] = []
    for log in (folder / "_spark_metadata").iterdir():
        if log.name.isdecimal():
            for line in log.read_text().splitlines()[1:]:
                path = json.loads(line)["path"].removeprefix("file://")
                found += pq.read_table(path)["id"].to_pylist()
    return sorted(found)


def stream_ids(cli: Run, stream: str) -> list[int]:
    return sorted(body["id"] for _, body in bodies(cli, stream))


@pytest.mark.parametrize("name", [None, "edited"])
def test_an_edit_loses_and_doubles_nothing(
    pipe: Pipe, cli: Run, home: Path, orders: str, target: str, name: str | None
) -> None:
    """The defect: a blank in the SQL left 2 of 6 rows out of the files and stored 4 twice in the stream."""
    files = home / orders / "p"
    job = Job(pipe, home, orders, [f"jetstream:{target}:{target}.x", f"parquet:{files}"])
    if name:
        job.keys["name"] = f"{name}-{orders}"
    job.works()
    count = 4
    edits: list[dict[str, Any]] = [
        {"sql": "SELECT id,  region FROM input -- a blank and a comment"},
        {"sql": "SELECT id, upper(region) AS region FROM input WHERE id >= 0"},
        {"sql": "SELECT id, region, amount FROM input"},
        {"json_schema": f"{SCHEMA}, more string", "trigger": "1s", "max_per_batch": 1000},
        {"to": [f"jetstream:{target}:{target}.y.{{region}}", f"parquet:{files}"]},
        {"to": [f"jetstream:{target}:{target}.y.{{region}}", f"parquet:{files}", f"parquet:{files}2"]},
        {"to": [f"parquet:{files}2", f"jetstream:{target}:{target}.x", f"parquet:{files}"]},
        {"to": [f"parquet:{files}", f"jetstream:{target}:{target}.x"]},
    ]
    for edit in edits if name is None else edits[1::4]:
        publish(cli, orders, range(count, count + 2))
        count += 2
        job.works(**edit)
        assert stream_ids(cli, target) == list(range(count)), edit
        assert parquet_ids(files) == list(range(count)), edit
    # The added sink began at the start. Taken out of the job, it got no more.
    assert parquet_ids(Path(f"{files}2")) == list(range(count - (0 if name else 2)))


def test_the_added_sink_is_told_apart_from_those_that_continue(
    pipe: Pipe, cli: Run, home: Path, orders: str, target: str
) -> None:
    job = Job(pipe, home, orders, [f"jetstream:{target}:{target}.x"])
    assert "new, starts at earliest; a rerun of the same job continues there" in job.works().err
    ran = job.works(to=[f"jetstream:{target}:{target}.x", "console"])
    assert f"  jetstream:{target}:{target}.x: continues\n" in ran.err
    assert "  console: new, starts at earliest" in ran.err
    ran = job.works(sql="SELECT id FROM input", to=[f"jetstream:{target}:{target}.z"])
    assert f"jetstream:{target}:{target}.z: --sql, --to changed; it continues" in ran.err


def test_another_query_on_the_console_shows_all_rows(pipe: Pipe, home: Path, orders: str) -> None:
    words = ("--from", orders, "--json-schema", SCHEMA, "--to", "console", *NOW, "--json")
    for sql, rows in [
        ("SELECT id FROM input", 4),
        ("SELECT  id FROM input", 0),
        ("SELECT region FROM input", 4),
    ]:
        ran = pipe(*words, "--sql", sql)
        assert ran.code == 0, ran
        assert sum(line["type"] == "row" for line in ran.lines) == rows


def test_what_a_checkpoint_does_not_take_is_refused_with_the_choice(
    pipe: Pipe, cli: Run, home: Path, orders: str, target: str
) -> None:
    totals = "SELECT region, count(*) AS n FROM input GROUP BY region"
    job = Job(pipe, home, orders, [f"jetstream:{target}:{target}.x"], output_mode="update", sql=totals)
    job.works()
    before = bodies(cli, target)
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"sql": totals.replace("count(*)", "sum(amount)")}, "--sql: the query keeps state"),
        ({"sql": totals + " HAVING n > 1"}, "--sql: the query keeps state"),
        ({"json_schema": SCHEMA + ", x int"}, "--json-schema: the query keeps state"),
        ({"subjects": f"{orders}.new"}, "--subjects: the query's state comes from other messages"),
    ]
    for edit, words in refusals:
        kept = dict(job.keys)
        error = job.refused(**edit)
        assert words in error
        for choice in ("--restart-from committed", "--restart-from earliest", "--new-checkpoint"):
            assert choice in error
        job.keys = kept
    job.works()
    assert bodies(cli, target) == before
    # The choice taken: the new query counts what comes from now on, and the old checkpoint stays.
    publish(cli, orders, range(10, 12))
    ran = job.works("--restart-from", "committed", sql=totals.replace("count(*) AS n", "sum(id) AS total"))
    assert "the old one stays in" in ran.err
    assert [body for _, body in bodies(cli, target)][len(before) :] == [
        {"region": "eu", "total": 10},
        {"region": "us", "total": 11},
    ]
    # From here on it is the job's checkpoint.
    publish(cli, orders, range(12, 13))
    job.works()
    assert bodies(cli, target)[-1][1] == {"region": "eu", "total": 22}


def test_state_that_only_spark_sees_is_refused_before_the_first_batch(
    pipe: Pipe, cli: Run, home: Path, orders: str, target: str
) -> None:
    job = Job(pipe, home, orders, [f"parquet:{home}/{orders}/p"], watermark="timestamp 1h")
    job.works()
    error = job.refused(sql="SELECT a.id FROM input a JOIN input b ON a.id = b.id", started=True)
    assert "--sql: the new query keeps state, which would lack everything read so far" in error
    error = job.refused(sql="SELECT cast(id AS string) AS id, region FROM input", started=True)
    assert "column id was bigint, now it is string" in error
    assert f"move {home}/{orders}/p away and start a new checkpoint with --restart-from committed" in error
    publish(cli, orders, range(4, 6))
    job.works(sql="SELECT id, region FROM input")
    assert parquet_ids(home / orders / "p") == list(range(6))


def uncommitted(ran: Any, number: int) -> None:
    """As after a kill between the last ack of a micro-batch and Spark's note that it is done."""
    folder = Path(ran.lines[-1]["checkpoint"])
    for path in folder.glob(f"*/commits/*{number}*"):
        path.unlink()


def test_a_batch_that_was_cut_off_is_finished_as_the_job_was_then(
    pipe: Pipe, cli: Run, home: Path, orders: str, target: str
) -> None:
    """The new query makes other rows of the same messages, so their ids would not be recognized."""
    files = home / orders / "p"
    job = Job(pipe, home, orders, [f"jetstream:{target}:{target}.x", f"parquet:{files}"])
    uncommitted(job.works("--json"), 0)
    publish(cli, orders, range(4, 6))
    ran = job.works(sql="SELECT id, 'new' AS region FROM input")
    assert (
        f"jetstream:{target}:{target}.x: micro-batch 0 was interrupted; the old job finishes it first"
        in ran.err
    )
    assert f"parquet:{files}: micro-batch" not in ran.err
    found = {body["id"]: body["region"] for _, body in bodies(cli, target)}
    assert found == {0: "eu", 1: "us", 2: "eu", 3: "us", 4: "new", 5: "new"}
    assert stream_ids(cli, target) == parquet_ids(files) == list(range(6))
    # A blank is no other query: nothing special happens.
    uncommitted(job.works("--json"), 1)
    assert "interrupted" not in job.works(sql="SELECT id,  'new' AS region FROM input").err
    assert stream_ids(cli, target) == list(range(6))


def test_a_batch_that_fails_is_no_dead_end(
    pipe: Pipe, cli: Run, home: Path, orders: str, target: str
) -> None:
    bad, good = (f"SELECT id, {cast}(region AS int) AS n FROM input" for cast in ("cast", "try_cast"))
    files = home / orders / "p"
    for sink in (f"jetstream:{target}:{target}.x", f"parquet:{files}"):
        job = Job(pipe, home, orders, [sink], sql=bad)
        assert "use try_cast" in job.refused(started=True)
        if sink.startswith("jetstream"):
            error = job.refused(sql=good, started=True)
            assert "micro-batch 0 was interrupted, and the old job can't finish it" in error
            job.works("--restart-from", "committed")
        else:
            # Files take a micro-batch as a whole or not at all.
            job.works(sql=good)
    assert stream_ids(cli, target) == parquet_ids(files) == list(range(4))


def test_a_stream_that_was_made_again_is_another_stream(
    pipe: Pipe, cli: Run, home: Path, orders: str, target: str
) -> None:
    job = Job(pipe, home, orders, [f"jetstream:{target}:{target}.x"])
    job.works()
    assert cli("stream", "rm", orders, "--force").code == 0
    assert cli("stream", "add", orders, "--subjects", f"{orders}.>", "--storage", "memory").code == 0
    publish(cli, orders, range(20, 22))
    assert f"stream {orders} was deleted and created again" in job.refused()
    job.works("--new-checkpoint")
    assert stream_ids(cli, target) == [0, 1, 2, 3, 20, 21]
    job.works()
    assert stream_ids(cli, target) == [0, 1, 2, 3, 20, 21]


def test_messages_that_are_gone_end_the_job_until_it_may_go_on_without_them(
    pipe: Pipe, cli: Run, home: Path, orders: str, target: str
) -> None:
    job = Job(pipe, home, orders, [f"jetstream:{target}:{target}.x"])
    job.works()
    publish(cli, orders, range(4, 6))
    assert cli("stream", "purge", orders, "--force").code == 0
    publish(cli, orders, range(6, 8))
    ran = job.run()
    assert ran.code == 1, ran
    assert "messages 5 to 6 (2 sequences) were purged or have expired before they were read" in ran.err
    assert "use --allow-data-loss to continue without them" in ran.err
    job.works("--allow-data-loss")
    assert stream_ids(cli, target) == [0, 1, 2, 3, 6, 7]


def test_a_folder_of_another_query_is_noticed_before_the_first_batch(
    pipe: Pipe, cli: Run, home: Path, orders: str
) -> None:
    files = home / orders / "p"
    sink = [f"parquet:{files}"]
    Job(pipe, home, orders, sink, name=f"one-{orders}").works()
    other = Job(pipe, home, orders, sink, name=f"two-{orders}")
    assert "has the files of another query, up to micro-batch 0" in other.refused()
    first = Job(pipe, home, orders, sink, name=f"one-{orders}")
    assert "has the files of another query" in first.refused("--new-checkpoint")
    publish(cli, orders, range(4, 6))
    first.works()
    assert parquet_ids(files) == list(range(6))
    # An emptied folder: Spark would go on in it and fail some batches later.
    shutil.move(files, f"{files}-away")
    assert "does not belong to the checkpoint" in first.refused()
    first.works("--restart-from", "earliest")
    assert parquet_ids(files) == list(range(6))
    # A table is a folder as well.
    table = f"t_{orders.lower()}"
    tables = Job(pipe, home, orders, [f"table:{table}"], name=f"three-{orders}")
    tables.works()
    tables.keys["name"] = f"four-{orders}"
    assert "has the files of another query" in tables.refused(started=True)


def test_the_same_rows_under_another_identity_are_refused(
    pipe: Pipe, cli: Run, home: Path, orders: str, target: str
) -> None:
    job = Job(pipe, home, orders, [f"jetstream:{target}:{target}.x"])
    job.works()
    error = job.refused(name=f"named-{orders}")
    assert f"already has rows of {orders}, written by a job without a name" in error
    folder = error.partition("--checkpoint ")[2].split()[0]
    other = f"{orders}X"
    assert cli("stream", "add", other, "--subjects", f"{other}.>", "--storage", "memory").code == 0
    both = {"from": [orders, other], "name": None}
    assert "written by a job without a name" in job.refused(**both)
    publish(cli, other, range(4, 6))
    job.works("--checkpoint", folder, **both)
    assert stream_ids(cli, target) == list(range(6))


def test_a_job_without_edits_goes_on_where_an_older_version_was(
    pipe: Pipe, cli: Run, home: Path, orders: str, target: str, monkeypatch: pytest.MonkeyPatch, server: Any
) -> None:
    to = [f"jetstream:{target}:{target}.x", f"parquet:{home}/{orders}/p"]
    job = Job(pipe, home, orders, to)
    ran = job.works("--json")
    made = Path(ran.lines[-1]["checkpoint"])
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    built = build({**job.keys, "from": [orders], "title": orders})
    legacy = built.legacy_folder(server.url)
    legacy.mkdir()
    for sink, checkpoint in zip(
        built.sinks, (made / sink.slug(sink.key()) for sink in built.sinks), strict=True
    ):
        checkpoint.rename(legacy / sink.legacy_slug)
    shutil.rmtree(made)
    # Edited, it could be this job or another one.
    publish(cli, orders, range(4, 6))
    error = job.refused(sql="SELECT region, id FROM input")
    assert f"an older version left a checkpoint in {legacy}" in error
    ran = job.works(sql="SELECT id, region FROM input")
    assert "which an older version made" in ran.err
    assert stream_ids(cli, target) == parquet_ids(home / orders / "p") == list(range(6))
    # Now it is recorded, and edits are judged as any.
    publish(cli, orders, range(6, 8))
    job.works(sql="SELECT region, id FROM input")
    assert stream_ids(cli, target) == parquet_ids(home / orders / "p") == list(range(8))


def test_progress_where_only_spark_can_read(
    pipe: Pipe, cli: Run, home: Path, orders: str, target: str, tmp_path: Path
) -> None:
    """A checkpoint by URL, as on HDFS or S3: the same rules, after Spark has started."""
    files = f"file://{tmp_path}/p"
    job = Job(pipe, home, orders, [f"jetstream:{target}:{target}.x", f"parquet:{files}"])
    words = ("--checkpoint", f"file://{tmp_path}/check")
    ran = job.works(*words)
    assert "new, starts at earliest" in ran.err
    publish(cli, orders, range(4, 6))
    ran = job.works(*words, sql="SELECT region, id FROM input")
    assert "this run continues there" in ran.err
    error = job.refused(*words, started=True, sql="SELECT DISTINCT region, id FROM input")
    assert "--sql: the new query keeps state" in error
    publish(cli, orders, range(6, 8))
    job.works(*words, "--restart-from", "committed", sql="SELECT id FROM input", to=job.keys["to"][:1])
    assert stream_ids(cli, target) == list(range(8))
    assert parquet_ids(tmp_path / "p") == list(range(6))
    error = job.refused("--checkpoint", f"file://{tmp_path}/check2", started=True, to=[f"parquet:{files}"])
    assert "has the files of another query" in error
