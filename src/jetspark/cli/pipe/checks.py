"""What ``jetspark pipe`` checks before it starts Spark: is everything installed, do the streams exist, is the
checkpoint free? Each check takes milliseconds; a JVM takes seconds to start."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from jetspark.cli import settings
from jetspark.cli.errors import CommandFailed
from jetspark.cli.pipe.files import LocalFiles, files_for, is_remote
from jetspark.cli.pipe.json_schema import check_clash, fields_of, infer
from jetspark.cli.pipe.places import check_target, find, record_of, settle, slug_of
from jetspark.spark.options import SINK_OPTIONS, SOURCE_OPTIONS, OptionError
from jetspark.spark.source.options import check_stream, parse_source, parse_streams
from jetspark.wire.subjects import subject_matches, subjects_overlap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

    from jetspark import JetStream, Stream
    from jetspark.cli.pipe.job import Job, Sink
    from jetspark.cli.pipe.places import Place
    from jetspark.cli.settings import Settings
    from jetspark.spark.helpers import ConnectionArguments, SinkArguments, SourceArguments

SAMPLE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A job that may start: options for Spark, the schema of the bodies, the place of its progress."""

    job: Job
    connection: ConnectionArguments
    source: SourceArguments
    sinks: dict[Sink, SinkArguments]
    schema: str | None
    created: dict[str, str]
    """When each stream that is read was created."""
    server: str
    checkpoint: str
    """The folder of the job, with a checkpoint for each sink."""
    notes: Path
    """A local folder for what is not Spark's: locks, log."""
    said: tuple[str, ...] = ()
    """Notices for the user."""

    def places(self, spark: SparkSession | None = None) -> list[Place]:
        """Where each sink's query runs. Raises when one must not run. Empty when only Spark can tell."""
        files = files_for(self.checkpoint, spark)
        if files is None:
            return []
        found = [find(self.job, sink, self.checkpoint, self.server, files) for sink in self.job.sinks]
        places = []
        for one in found:
            schema = self.schema
            if self.job.json_infer and one.before is not None and one.before.json_infer:
                # The query was built on it, whatever messages look like now.
                schema = one.before.json_schema
            wanted = record_of(self.job, one.sink, self.created, schema)
            place = settle(self.job, one, wanted, files, list(self.created))
            if one.sink.is_file:
                check_target(place, one.sink.target, spark)
            places.append(place)
        return places


def require_spark() -> None:
    """Refuse when PySpark, pyarrow or Java is missing."""
    for module in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(module) is None:
            raise CommandFailed(f'pipe needs {module}: pip install "jetspark[spark]"')
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and os.access(os.path.join(home, "bin", "java"), os.X_OK)):
        raise CommandFailed(
            "Spark needs Java 17 or newer; no java found in PATH or JAVA_HOME\n"
            "on Debian or Ubuntu: apt-get install openjdk-17-jre-headless"
        )


def check(job: Job) -> Plan:
    """Check everything that can be known before Spark starts. The user's flags win over the job file."""
    require_spark()
    given = settings.current()
    if given.server is None and given.context is None:
        settings.use(replace(given, server=job.server, context=job.context))
    connection = connection_arguments(settings.current())
    source: SourceArguments = {"stream": job.streams, "starting_position": job.start}
    source |= cast("SourceArguments", connection)
    if job.subjects:
        source["subjects"] = job.subjects
    if job.allow_data_loss:
        source["fail_on_data_loss"] = False
    if job.max_per_batch is not None:
        source["max_messages_per_trigger"] = job.max_per_batch
    sinks = {sink: sink_arguments(connection, sink) for sink in job.sinks}
    _check_options(source, sinks.values())
    server = str(connection.get("servers") or f"context {connection.get('context')}")
    checkpoint = job.folder(server)
    notes = Path(replace(job, checkpoint=None).folder(server) if is_remote(checkpoint) else checkpoint)
    known = _known_schema(job, checkpoint, server, notes) if job.json_infer and not job.restarts else None
    schema, created, said = settings.run(_ask(job, known))
    if job.json_infer and known is None and is_remote(checkpoint) and schema is not None:
        LocalFiles().write(str(notes / "schema.ddl"), schema + "\n")
    plan = Plan(
        job=job,
        connection=connection,
        source=source,
        sinks=sinks,
        schema=schema,
        created=created,
        server=server,
        checkpoint=checkpoint,
        notes=notes,
        said=said,
    )
    plan.places()
    return plan


def _known_schema(job: Job, checkpoint: str, server: str, notes: Path) -> str | None:
    """The schema that an earlier run inferred; its checkpoints depend on it."""
    files = files_for(checkpoint, None)
    if files is not None:
        for sink in job.sinks:
            before = find(job, sink, checkpoint, server, files).before
            if before is not None and before.json_infer and before.json_schema is not None:
                return before.json_schema
    kept = LocalFiles().read(str(notes / "schema.ddl"))
    return kept.strip() if kept else None


def sink_arguments(connection: ConnectionArguments, sink: Sink) -> SinkArguments:
    """Arguments of ``write_stream`` for a stream; empty for every other sink."""
    if sink.kind != "jetstream":
        return {}
    found: SinkArguments = {"stream": sink.target}
    found |= cast("SinkArguments", connection)
    if sink.template is not None and not sink.template.columns:
        found["subject"] = sink.template.filled()
    return found


def connection_arguments(given: Settings) -> ConnectionArguments:
    """The connection of the command line as arguments of the Spark helpers."""
    from jetspark.spark import helpers

    connect = given.connect_options()
    connect |= {"domain": given.js_domain, "api_prefix": given.js_api_prefix}
    connect["request_timeout"] = max(given.timeout, 10.0)
    try:
        return helpers.connection_arguments(connect)
    except OptionError as error:
        raise CommandFailed(f"--server: {error.problem}") from None


def _check_options(source: SourceArguments, sinks: Iterable[SinkArguments]) -> None:
    # Imported here: they import PySpark, which require_spark has found.
    from jetspark.spark.helpers import option_strings
    from jetspark.spark.sink.options import parse_sink

    check_stream(parse_source(option_strings(source, SOURCE_OPTIONS)))
    for sink in sinks:
        if sink:
            parse_sink(option_strings(sink, SINK_OPTIONS), streaming=True)


async def _ask(job: Job, known: str | None) -> tuple[str | None, dict[str, str], tuple[str, ...]]:
    """Ask the server for the streams, and for a sample when the schema is to be inferred."""
    from jetspark.spark.source.data_loss import identity

    async with settings.jetstream() as js:
        streams = await _sources(js, job)
        for sink in job.sinks:
            if sink.kind == "jetstream":
                await _check_target(js, sink, streams)
        created = {one.cached_info.config.name: identity(one.cached_info) for one in streams}
        if not job.json_infer:
            return job.json_schema, created, ()
        if known is not None:
            return known, created, (f"schema (as in the first run): {known}",)
        schema, said = await _infer(job, streams)
        return schema, created, said


async def _sources(js: JetStream, job: Job) -> list[Stream]:
    wanted = parse_streams(job.streams)
    found = [await settings.find_stream(js, name) for name in wanted.names]
    if wanted.patterns:
        matching = [one async for one in js.stream_names() if wanted.selects(one)]
        if not matching:
            raise CommandFailed(
                f"no stream matches {str(wanted)!r} here\n'jetspark stream ls' lists the streams"
            )
        found += [await js.get_stream(one) for one in matching if one not in wanted.names]
    for subject in job.subjects:
        of_all = [own for stream in found for own in _subjects(stream)]
        if of_all and not any(subjects_overlap(own, subject) for own in of_all):
            raise CommandFailed(
                f"--subjects: {', '.join(job.streams)} does not store {subject!r}\n"
                f"its subjects are {', '.join(of_all)}"
            )
    return found


def _subjects(stream: Stream) -> list[str]:
    return list(stream.cached_info.config.subjects or [])


async def _check_target(js: JetStream, sink: Sink, sources: list[Stream]) -> None:
    target = await settings.find_stream(js, sink.target)
    own = _subjects(target)
    template = sink.template
    if template is None:
        if any(source.cached_info.config.name == sink.target for source in sources):
            raise CommandFailed(f"--to: the job reads {sink} itself, so it would never end")
        return
    # A column may have any value: the subject of some row must fit.
    fits = subjects_overlap if template.columns else subject_matches
    if not any(fits(one, template.filled("*")) for one in own):
        raise CommandFailed(
            f"--to: stream {sink.target} does not store subject {sink.subject!r}\n"
            f"its subjects are {', '.join(own) or 'none'}"
        )
    for source in sources:
        if source.cached_info.config.name == sink.target:
            raise CommandFailed(f"--to: the job reads {sink} itself, so it would never end")


async def _infer(job: Job, streams: list[Stream]) -> tuple[str, tuple[str, ...]]:
    """A schema from a sample of both ends of the streams."""
    bodies: list[bytes] = []
    for stream in streams:
        state = stream.cached_info.state
        starts = {max(1, state.first_seq), max(1, state.first_seq, state.last_seq - SAMPLE + 1)}
        for start in sorted(starts):
            messages: Any = stream.get_msgs(list(job.subjects) or None, seq=start, max_messages=SAMPLE)
            bodies += [message.data async for message in messages]
    if not bodies:
        raise CommandFailed(
            "--json-infer: the stream has no messages yet\ngive the schema: --json-schema 'id long, ...'"
        )
    found, other = infer(bodies)
    if found is None:
        raise CommandFailed(
            f"--json-infer: none of the {len(bodies)} messages is a JSON object\n"
            "leave it out and use the column 'data' in the SQL"
        )
    check_clash("--json-infer", fields_of(found) if job.json_into is None else [job.json_into])
    said = [f"schema from {len(bodies)} messages: {found}"]
    if other:
        said.append(f"{other} of them are not JSON objects; their fields will be null")
    return found, tuple(said)


@contextlib.contextmanager
def locked(plan: Plan) -> Iterator[None]:
    """Hold the checkpoints: two runs at once would damage each other's progress."""
    plan.notes.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        for sink in plan.job.sinks:
            file = held.enter_context(open(plan.notes / f"{slug_of(plan.job, sink)}.lock", "a+"))
            _lock(file, sink, plan)
            file.seek(0)
            file.truncate()
            file.write(f"{os.getpid()}\n")
            file.flush()
        yield


def _lock(file: IO[str], sink: Sink, plan: Plan) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        holder = file.read().strip()
        raise CommandFailed(
            f"this job is already running{f' as process {holder}' if holder else ''} and writes to {sink}: "
            f"{plan.checkpoint}\nstop it first, or give this run its own --checkpoint"
        ) from None
