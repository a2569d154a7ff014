"""``jetspark pipe``: a Spark pipeline in one line, or in a TOML file."""

from pathlib import Path
from typing import Annotated, Any

import typer

from jetspark.cli.declare import Json, command
from jetspark.cli.errors import UsageError
from jetspark.cli.pipe.job import DEFAULT_MASTER, DEFAULT_TRIGGER, SINKS, build, load
from jetspark.cli.tree import Group

_EXAMPLE = """\
jetspark pipe --from ORDERS --sql 'SELECT subject, sequence FROM input' --to console
jetspark pipe --from ORDERS --json-schema 'id long, region string, amount double' \\
    --sql 'SELECT * FROM input WHERE amount > 100' --to jetstream:LARGE:large.{region} --to parquet:large
jetspark pipe run job.toml --trigger available-now"""

Trigger = Annotated[
    str | None,
    typer.Option(
        "--trigger",
        metavar="TIME|available-now|once",
        help=f"Time between micro-batches, or read what is there and end. Default: {DEFAULT_TRIGGER}.",
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="Where progress is kept. Default: a folder for the job's name or its source; it is printed.",
    ),
]
RestartFrom = Annotated[
    str | None,
    typer.Option(
        "--restart-from",
        metavar="committed|earliest|latest|SEQ|TIME",
        help="Start a new checkpoint there; committed: where the old one ends. Rows may be written again.",
    ),
]
NewCheckpoint = Annotated[
    bool, typer.Option("--new-checkpoint", help="Start a new checkpoint at --start; the old one is kept.")
]
AllowDataLoss = Annotated[
    bool,
    typer.Option(
        "--allow-data-loss", help="Go on if messages are gone before they were read; the log says which."
    ),
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help=f"Spark's master. Default: {DEFAULT_MASTER}."),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; may be repeated."),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show Spark's log.")]

app = typer.Typer(
    cls=Group,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


def register(root: typer.Typer) -> None:
    """Add the command to the root."""
    root.add_typer(app, name="pipe")


def _option(flag: str, metavar: str, help: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=help, show_default=False)


_HELP = f"""Run a Spark streaming query over streams: read, transform with SQL, write.

The messages are the view 'input' with the columns stream, sequence, subject, timestamp, headers and data,
and with a JSON schema the fields of the bodies. Ctrl-C finishes the current micro-batch; a rerun of the same
job continues where it ended.

A job is identified by its --name, or without one by what it reads and from where. Each sink has its own
checkpoint, so the SQL may change and sinks may be added or removed. A change that a checkpoint can't take is
refused before the job runs.

A row with a column 'data' is published as it is, any other row as JSON of its columns. The subject is the one
given, in which {{column}} is replaced by that column's value, or the column 'subject'.

\b
Example:
{chr(10).join("  " + line for line in _EXAMPLE.splitlines())}"""


@app.callback(help=_HELP)
def pipe(
    context: typer.Context,
    source: Annotated[
        list[str] | None,
        _option("--from", "STREAM", "Streams to read: names, or patterns such as 'ORDERS-*'."),
    ] = None,
    subjects: Annotated[
        list[str] | None, _option("--subjects", "SUBJECT", "Only these subjects; wildcards allowed.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            metavar="earliest|latest|SEQ|TIME",
            help="Where the first run begins. TIME: an age such as 1h, or a time (UTC without a zone). "
            "Default: earliest.",
        ),
    ] = None,
    json_schema: Annotated[
        str | None, _option("--json-schema", "DDL", "Bodies are JSON like this: 'id long, amount double'.")
    ] = None,
    json_infer: Annotated[
        bool, typer.Option("--json-infer", help="Bodies are JSON; learn the schema from a sample.")
    ] = False,
    json_into: Annotated[
        str | None, _option("--json-into", "COLUMN", "Keep the fields in one struct column of this name.")
    ] = None,
    watermark: Annotated[
        str | None,
        _option(
            "--watermark", "'COLUMN TIME'", "How late rows may be, for windows and --unique: 'timestamp 10m'."
        ),
    ] = None,
    unique: Annotated[
        list[str] | None,
        _option("--unique", "COLUMN", "Drop rows with values seen before, within the watermark."),
    ] = None,
    sql: Annotated[str | None, _option("--sql", "SQL", "What to do: SELECT ... FROM input.")] = None,
    to: Annotated[list[str] | None, _option("--to", "SINK", f"{SINKS}; may be repeated.")] = None,
    trigger: Trigger = None,
    output_mode: Annotated[
        str | None,
        typer.Option(
            "--output-mode",
            metavar="append|update|complete",
            help="For aggregates: final rows, changed rows, or all. Default: append.",
        ),
    ] = None,
    partition_by: Annotated[
        list[str] | None,
        _option("--partition-by", "COLUMN", "Folders by these columns, in files and tables."),
    ] = None,
    max_per_batch: Annotated[
        int | None, typer.Option("--max-per-batch", metavar="N", help="Most messages per micro-batch.")
    ] = None,
    checkpoint: Checkpoint = None,
    restart_from: RestartFrom = None,
    new_checkpoint: NewCheckpoint = False,
    allow_data_loss: AllowDataLoss = False,
    master: Master = None,
    conf: Conf = None,
    name: Annotated[
        str | None,
        _option(
            "--name", "NAME", "The job's identity: its progress is kept under it. Default: what it reads."
        ),
    ] = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    given = {
        "from": source,
        "subjects": subjects,
        "start": start,
        "json_schema": json_schema,
        "json_infer": json_infer or None,
        "json_into": json_into,
        "watermark": watermark,
        "unique": unique,
        "sql": sql,
        "to": to,
        "trigger": trigger,
        "output_mode": output_mode,
        "partition_by": partition_by,
        "max_per_batch": max_per_batch,
        "checkpoint": checkpoint,
        "master": master,
        "conf": conf,
        "name": name,
        "restart_from": restart_from,
        "new_checkpoint": new_checkpoint or None,
        "allow_data_loss": allow_data_loss or None,
    }
    if context.invoked_subcommand is not None:
        if any(given.values()) or json or verbose:
            raise UsageError("pipe run: the file holds the job; put options after 'run FILE'")
        return
    _execute(given, json, verbose)


@command(
    app,
    "run",
    example="jetspark pipe run job.toml\n\njob.toml:\n"
    '  from = "ORDERS"\n  json_schema = "id long, region string, amount double"\n'
    '  sql = "SELECT * FROM input WHERE amount > 100"\n'
    '  to = ["jetstream:LARGE:large.{region}", "parquet:large"]\n  trigger = "5s"',
)
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The job, in TOML.", show_default=False)],
    trigger: Trigger = None,
    checkpoint: Checkpoint = None,
    restart_from: RestartFrom = None,
    new_checkpoint: NewCheckpoint = False,
    allow_data_loss: AllowDataLoss = False,
    master: Master = None,
    conf: Conf = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Run the job in a file. Its keys are the options of 'jetspark pipe' with '_' for '-'.

    Options given here win. The file may also set 'server' and 'context'. Folders are relative to where the
    command runs.
    """
    given = load(file)
    flags: dict[str, Any] = {"trigger": trigger, "checkpoint": checkpoint, "master": master, "conf": conf}
    flags |= {"restart_from": restart_from, "new_checkpoint": new_checkpoint}
    flags["allow_data_loss"] = allow_data_loss
    given |= {key: value for key, value in flags.items() if value}
    given["title"] = file.stem if file.stem.replace("-", "").replace("_", "").isalnum() else None
    _execute(given, json, verbose)


def _execute(given: dict[str, Any], json: bool, verbose: bool) -> None:
    job = build(given)
    from jetspark.cli.pipe.checks import check, locked

    plan = check(job)
    with locked(plan):
        from jetspark.cli.pipe.run import run_plan

        run_plan(plan, json=json, verbose=verbose)
