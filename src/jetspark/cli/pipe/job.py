"""A job of ``jetspark pipe``, from flags or a TOML file: parsed and checked without Spark and server.

Mistakes that show in the words alone are refused here, so users do not wait for a JVM to learn of a typo.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jetspark.cli.errors import CommandFailed, UsageError
from jetspark.cli.pipe.json_schema import check_clash, check_schema
from jetspark.cli.pipe.record import bare_sql, without_comments
from jetspark.cli.values import duration, words
from jetspark.errors import InvalidArgument
from jetspark.jetstream.models.validation import check_name
from jetspark.spark.options import OptionError
from jetspark.spark.source.options import EARLIEST, LATEST, parse_position, parse_streams
from jetspark.spark.subject_template import SubjectTemplate, parse_template
from jetspark.wire.subjects import validate_filter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FILE_KINDS = ("parquet", "csv", "json")
SINKS = "jetstream:STREAM[:SUBJECT], parquet:DIR, csv:DIR, json:DIR, table:NAME or console"
OUTPUT_MODES = ("append", "update", "complete")
AVAILABLE_NOW = "available-now"
ONCE = "once"
COMMITTED = "committed"
DEFAULT_TRIGGER = "1s"
DEFAULT_MASTER = "local[*]"
_STARTS = (
    "earliest, latest, a sequence from 1, a time such as 2026-01-31T12:00:00Z (UTC without a zone) "
    "or an age such as 1h"
)

_TABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){0,2}")
_STATEMENT = re.compile(r"\s*\(*\s*(select|with|from|values|table)\b", re.IGNORECASE)
_INPUT = re.compile(r"\binput\b", re.IGNORECASE)
_WATERMARK = re.compile(r"([\w.`]+)\s+(\S.*)")
_MASTER = re.compile(r"(local(\[(\*|\d+)(,\s*\d+)?\])?|yarn|(spark|k8s|mesos)://\S+)")


@dataclass(frozen=True, slots=True)
class Sink:
    """Where rows go. ``target``: a stream, a folder or a table; ``subject``: fixed, or with ``{column}``."""

    kind: str
    target: str = ""
    subject: str | None = None

    def __str__(self) -> str:
        return ":".join(part for part in (self.kind, self.target, self.subject) if part)

    @property
    def template(self) -> SubjectTemplate | None:
        """The subject with its columns."""
        return None if self.subject is None else parse_template(self.subject)

    @property
    def is_file(self) -> bool:
        """Whether it is a folder of files."""
        return self.kind in FILE_KINDS

    def key(self, conf: Mapping[str, str] | None = None) -> str:
        """What tells it from other sinks: its kind and where its rows are. A relative path depends on where
        the command runs, and so does a table without a metastore. ``conf``: Spark's settings."""
        where = self.target
        if self.is_file and "://" not in where:
            where = os.path.abspath(where)
        elif self.kind == "table" and (conf or {}).get("spark.sql.catalogImplementation") != "hive":
            where += "@" + os.path.abspath((conf or {}).get("spark.sql.warehouse.dir", "spark-warehouse"))
        return f"{self.kind}:{where}"

    def slug(self, key: str) -> str:
        """A name for its checkpoint: readable and unique."""
        return self._slug(key)

    @property
    def legacy_slug(self) -> str:
        """Its name in versions before named jobs: with the subject, and relative."""
        return self._slug(str(self))

    def _slug(self, text: str) -> str:
        where = re.sub(r"[^A-Za-z0-9]+", "-", Path(self.target).name).strip("-")[:40]
        mark = hashlib.sha256(text.encode()).hexdigest()[:6]
        return "-".join(part for part in (self.kind, where, mark) if part)


@dataclass(frozen=True, slots=True)
class Trigger:
    """When micro-batches run: every N seconds, or until what is there now is read."""

    seconds: float | None = None
    kind: str = "every"

    @property
    def ends(self) -> bool:
        """Whether the job ends by itself."""
        return self.kind != "every"

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for Spark's ``trigger``."""
        if self.kind == AVAILABLE_NOW:
            return {"availableNow": True}
        if self.kind == ONCE:
            return {"once": True}
        return {"processingTime": f"{round((self.seconds or 0) * 1000)} milliseconds"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to read, what to do with it, where to put it."""

    streams: tuple[str, ...]
    sql: str
    sinks: tuple[Sink, ...]
    subjects: tuple[str, ...] = ()
    start: str = "earliest"
    json_schema: str | None = None
    json_infer: bool = False
    json_into: str | None = None
    watermark: tuple[str, str] | None = None
    unique: tuple[str, ...] = ()
    trigger: Trigger = Trigger(1.0)
    output_mode: str = "append"
    partition_by: tuple[str, ...] = ()
    max_per_batch: int | None = None
    checkpoint: str | None = None
    master: str = DEFAULT_MASTER
    conf: tuple[tuple[str, str], ...] = ()
    name: str | None = None
    server: str | None = None
    context: str | None = None

    title: str | None = None
    """What to call a job without a name: the name of its file. It is not part of the identity."""
    restart_from: str | None = None
    new_checkpoint: bool = False
    allow_data_loss: bool = False

    @property
    def label(self) -> str:
        """What to call it: its name, or what it reads."""
        return self.name or self.title or self._source

    @property
    def restarts(self) -> bool:
        """Whether this run starts with a new checkpoint."""
        return self.new_checkpoint or self.restart_from is not None

    @property
    def _source(self) -> str:
        return "-".join(re.sub(r"\W+", "_", stream) for stream in self.streams)

    def folder(self, server: str) -> str:
        """Where its checkpoints are: the given folder, or one that follows from its identity.

        A job is identified by its name, or without one by what it reads and from which server. SQL, sinks,
        trigger and everything else may change and are not part of it.
        """
        if self.checkpoint is not None:
            return self.checkpoint
        if self.name is not None:
            return str(state_folder() / "named" / self.name)
        servers = sorted(one.strip().rstrip("/").lower() for one in server.split(","))
        text = json.dumps([servers, sorted(self.streams)])
        mark = hashlib.sha256(text.encode()).hexdigest()[:8]
        return str(state_folder() / "unnamed" / f"{self._source[:60]}-{mark}")

    @property
    def legacy_labels(self) -> set[str]:
        """How the names of older versions' folders may begin for this job."""
        return {one for one in (self.name, self.title, self._source) if one}

    def legacy_folder(self, server: str) -> Path:
        """Where older versions kept the checkpoint of exactly this job: they hashed all of it."""
        kept: tuple[str, ...] = (
            "streams",
            "sql",
            "subjects",
            "start",
            "json_schema",
            "json_infer",
            "json_into",
            "watermark",
        )
        kept += ("unique", "output_mode", "partition_by", "server", "context")
        parts: dict[str, Any] = {key: getattr(self, key) for key in kept}
        parts["name"] = self.name or self.title
        parts["sinks"] = [
            [sink.kind, os.path.abspath(sink.target) if sink.is_file else sink.target, sink.subject]
            for sink in self.sinks
        ]
        text = json.dumps([server, parts], sort_keys=True)
        mark = hashlib.sha256(text.encode()).hexdigest()[:10]
        return state_folder() / f"{self.label}-{mark}"


def state_folder() -> Path:
    """Where checkpoints are kept by default."""
    parent = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(parent) / "jetspark" / "pipe"


# The keys of a job file, and the flag of the same meaning.
KEYS = {
    "from": "--from",
    "subjects": "--subjects",
    "start": "--start",
    "json_schema": "--json-schema",
    "json_infer": "--json-infer",
    "json_into": "--json-into",
    "watermark": "--watermark",
    "unique": "--unique",
    "sql": "--sql",
    "to": "--to",
    "trigger": "--trigger",
    "output_mode": "--output-mode",
    "partition_by": "--partition-by",
    "max_per_batch": "--max-per-batch",
    "checkpoint": "--checkpoint",
    "master": "--master",
    "conf": "--conf",
    "name": "--name",
    "server": "--server",
    "context": "--context",
}
_LISTS = frozenset(("from", "subjects", "unique", "to", "partition_by"))


def load(path: Path) -> dict[str, Any]:
    """The keys of a job file; types are checked, values are for :func:`build`."""
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder; give the TOML file of a job") from None
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    for key, value in found.items():
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(KEYS)}"
            raise UsageError(f"{path}: unknown key {key!r}; {hint}")
        _check_type(path, key, value)
    return {
        key: [value] if key in _LISTS and isinstance(value, str) else value for key, value in found.items()
    }


def _check_type(path: Path, key: str, value: Any) -> None:
    if key in _LISTS:
        good = isinstance(value, str) or (
            isinstance(value, list) and all(isinstance(one, str) for one in value)
        )
        wanted = "text or a list of texts"
    elif key == "conf":
        good, wanted = isinstance(value, dict), "a table, [conf], of Spark's settings"
    elif key == "json_infer":
        good, wanted = isinstance(value, bool), "true or false"
    elif key == "max_per_batch":
        good, wanted = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    elif key == "start":
        good, wanted = isinstance(value, str | int) and not isinstance(value, bool), "text or a number"
    else:
        good, wanted = isinstance(value, str), "text"
    if not good:
        raise UsageError(f"{path}: {key!r} must be {wanted}, not {value!r}")


def build(given: Mapping[str, Any]) -> Job:
    """The job that flags or a file describe, under the keys of a file; None and empty mean not given."""
    got = {key: value for key, value in given.items() if value not in (None, "", [], ())}
    streams = tuple(words(got.get("from", [])))
    if not streams:
        raise UsageError(
            "missing --from; give a stream, several with commas, or a pattern such as 'ORDERS-*'"
        )
    try:
        parse_streams(streams)
    except InvalidArgument as error:
        raise UsageError(f"invalid --from {error.value!r}: a stream's name {error.rule}") from None
    subjects = tuple(words(got.get("subjects", [])))
    for subject in subjects:
        try:
            validate_filter(subject)
        except InvalidArgument as error:
            raise UsageError(f"--subjects: {subject!r} {error.rule}") from None
    sql = _sql(got.get("sql"))
    output_mode = str(got.get("output_mode", "append")).lower()
    if output_mode not in OUTPUT_MODES:
        raise UsageError(f"invalid --output-mode {output_mode!r}; use append, update or complete")
    partition_by = tuple(words(got.get("partition_by", [])))
    sinks = _sinks(got.get("to", []), output_mode, partition_by)
    schema, infer, into = got.get("json_schema"), bool(got.get("json_infer")), got.get("json_into")
    if schema is not None and infer:
        raise UsageError("--json-infer and --json-schema can't be combined; give one of them")
    if into is not None and schema is None and not infer:
        raise UsageError("--json-into needs --json-schema or --json-infer")
    if schema is not None:
        names = check_schema(schema)
        check_clash("--json-schema", names if into is None else [into])
    watermark = _watermark(got.get("watermark"))
    unique = tuple(words(got.get("unique", [])))
    if unique and watermark is None:
        raise UsageError(
            "--unique needs --watermark, which says how long values are remembered\n"
            "e.g. --watermark 'timestamp 10m'"
        )
    most = got.get("max_per_batch")
    if most is not None and most < 1:
        raise UsageError(f"invalid --max-per-batch {most}; it must be greater than zero")
    master = got.get("master", DEFAULT_MASTER)
    if _MASTER.fullmatch(master) is None:
        raise UsageError(
            f"invalid --master {master!r}: not a Spark master URL; use local[2], local[*] or spark://HOST:PORT"
        )
    name = got.get("name")
    if name is not None and re.fullmatch(r"[\w-]{1,60}", name) is None:
        raise UsageError(f"invalid --name {name!r}; use up to 60 letters, digits, '-' and '_'")
    restart_from = got.get("restart_from")
    if restart_from is not None:
        restart_from = parse_restart(restart_from)
        if got.get("new_checkpoint"):
            raise UsageError("--restart-from already starts a new checkpoint; leave out --new-checkpoint")
    checkpoint = got.get("checkpoint")
    if checkpoint is not None:
        _check_folder("--checkpoint", checkpoint)
    return Job(
        streams=streams,
        sql=sql,
        sinks=sinks,
        subjects=subjects,
        start=parse_start(str(got.get("start", "earliest"))),
        json_schema=schema,
        json_infer=infer,
        json_into=into,
        watermark=watermark,
        unique=unique,
        trigger=parse_trigger(got.get("trigger", DEFAULT_TRIGGER)),
        output_mode=output_mode,
        partition_by=partition_by,
        max_per_batch=most,
        checkpoint=checkpoint,
        master=master,
        conf=_conf(got.get("conf", {})),
        name=name,
        server=got.get("server"),
        context=got.get("context"),
        title=got.get("title"),
        restart_from=restart_from,
        new_checkpoint=bool(got.get("new_checkpoint")),
        allow_data_loss=bool(got.get("allow_data_loss")),
    )


def parse_sink(text: str) -> Sink:
    """One ``--to``."""
    kind, _, rest = text.strip().partition(":")
    kind, rest = kind.lower(), rest.strip()
    if kind == "console":
        if rest:
            raise UsageError(f"invalid --to {text!r}; console takes no target")
        return Sink("console")
    if kind not in ("jetstream", "table", *FILE_KINDS):
        raise UsageError(f"invalid --to {text!r}: not a sink; use {SINKS}")
    if not rest:
        raise UsageError(f"invalid --to {text!r}: the target is missing; use {SINKS}")
    if kind == "jetstream":
        stream, _, subject = rest.partition(":")
        try:
            check_name("stream", stream)
            if subject:
                parse_template(subject, field="subject")
        except InvalidArgument as error:
            what = "a stream's name" if error.field == "stream" else f"subject {subject!r}"
            raise UsageError(f"invalid --to {text!r}: {what} {error.rule}") from None
        if ":" in rest and not subject:
            raise UsageError(f"invalid --to {text!r}: the subject is empty; add one or leave out the colon")
        return Sink(kind, stream, subject or None)
    if kind == "table":
        if _TABLE.fullmatch(rest) is None:
            raise UsageError(f"invalid --to {text!r}: {rest!r} is not a table name; use table:orders")
        return Sink(kind, rest)
    _check_folder("--to", rest)
    return Sink(kind, rest)


def parse_trigger(text: str) -> Trigger:
    """``5s``, ``available-now``, ``once``."""
    plain = text.strip().lower()
    if plain in (AVAILABLE_NOW, "availablenow", "available_now"):
        return Trigger(kind=AVAILABLE_NOW)
    if plain == ONCE:
        return Trigger(kind=ONCE)
    try:
        seconds = duration("--trigger", text)
    except UsageError:
        raise UsageError(f"invalid --trigger {text!r}; use 5s, {AVAILABLE_NOW} or {ONCE}") from None
    return Trigger(seconds)


def parse_start(text: str) -> str:
    """The source's ``startingPosition``: an edge, a sequence, or a time in UTC."""
    try:
        found = parse_position("startingPosition", text, (EARLIEST, LATEST))
    except OptionError:
        raise UsageError(f"invalid --start {text!r}; use {_STARTS}") from None
    if found.moment is not None:
        return found.moment.resolve(datetime.now(UTC)).isoformat()
    return found.edge or str(found.sequence)


def parse_restart(text: str) -> str:
    """``--restart-from``: a start, or where the checkpoint stands."""
    if text.strip().lower() == COMMITTED:
        return COMMITTED
    try:
        return parse_start(text)
    except UsageError:
        raise UsageError(
            f"invalid --restart-from {text!r}; use {COMMITTED} (where the checkpoint ends), {_STARTS}"
        ) from None


def _sql(text: str | None) -> str:
    if text is None or not text.strip():
        raise UsageError("missing --sql; give a query such as --sql 'SELECT * FROM input'")
    bare = without_comments(text).rstrip(";").rstrip()
    if ";" in bare_sql(bare):
        raise UsageError("--sql takes one statement, without ';'")
    if _STATEMENT.match(bare) is None:
        raise UsageError(f"invalid --sql {_short(bare)!r}: not a query; use SELECT ... FROM input")
    if _INPUT.search(bare) is None:
        raise UsageError(f"invalid --sql {_short(bare)!r}: it must read the messages, the view 'input'")
    return bare


def _sinks(texts: Sequence[str], output_mode: str, partition_by: tuple[str, ...]) -> tuple[Sink, ...]:
    if not texts:
        raise UsageError(f"missing --to; use {SINKS}")
    sinks = tuple(parse_sink(text) for text in texts)
    for number, sink in enumerate(sinks):
        if any(sink.kind == other.kind and sink.target == other.target for other in sinks[:number]):
            raise UsageError(f"--to {sink} is given twice")
        if sink.is_file and output_mode != "append":
            raise UsageError(f"files do not support output mode {output_mode!r}; {sink} needs append")
        if sink.kind == "table" and output_mode == "update":
            raise UsageError(f"tables do not support output mode {output_mode!r}; {sink} needs append")
        if sink.kind == "jetstream" and output_mode == "complete":
            raise UsageError(f"streams do not support output mode 'complete'; {sink} needs append or update")
    if partition_by and not any(sink.is_file or sink.kind == "table" for sink in sinks):
        raise UsageError("--partition-by needs a parquet, csv, json or table sink")
    return sinks


def _watermark(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    found = _WATERMARK.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"invalid --watermark {text!r}; use a column and a duration: 'timestamp 10m'")
    seconds = duration("--watermark", found[2])
    return found[1], f"{round(seconds * 1000)} milliseconds"


def _conf(given: Mapping[str, Any] | Sequence[str]) -> tuple[tuple[str, str], ...]:
    if not isinstance(given, dict):
        pairs: list[tuple[str, Any]] = []
        for text in given:
            key, equals, value = text.partition("=")
            if not equals:
                raise UsageError(f"invalid --conf {text!r}; use spark.KEY=VALUE")
            pairs.append((key.strip(), value.strip()))
    else:
        pairs = list(_flat(given))
    for key, _ in pairs:
        if not key.startswith("spark."):
            raise UsageError(f"invalid --conf {key!r}: Spark settings begin with 'spark.'")
    return tuple((key, str(value).lower() if isinstance(value, bool) else str(value)) for key, value in pairs)


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """A key without quotes is a table of tables in TOML: ``spark.sql.x = 1``."""
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        found += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return found


def _check_folder(option: str, folder: str) -> None:
    if "://" in folder:
        return
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise UsageError(f"{option}: {folder} is a file; give a folder")
    parent = path
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise CommandFailed(f"{option}: no permission to write to {parent}; give another folder")


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 50 else f"{flat[:47]}..."
