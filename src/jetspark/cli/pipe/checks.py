"""What ``jetspark pipe`` asks before it starts Spark: is everything installed, are the streams there, is the
checkpoint free? Each answer takes milliseconds; a JVM takes seconds."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote

from jetspark.cli import settings
from jetspark.cli.errors import CommandFailed
from jetspark.cli.pipe.files import LocalFiles, files_for, is_remote
from jetspark.cli.pipe.json_schema import check_clash, fields_of, infer
from jetspark.cli.pipe.places import check_target, find, record_of, settle, slug_of
from jetspark.wire.subjects import subject_matches, subjects_overlap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from jetspark import JetStream, Stream
    from jetspark.cli.pipe.job import Job, Sink
    from jetspark.cli.pipe.places import Place
    from jetspark.cli.settings import Settings

SAMPLE = 500
_USERINFO = re.compile(r"(\w+://)?([^@/]+)@(.*)")
_GLOB = re.compile(r"[*?\[]")
# From the names of jetspark.connect to those of the data source.
_OPTIONS = {
    "user": "user",
    "password": "password",
    "token": "token",
    "creds": "credentials",
    "nkey": "nkey",
    "tls_cert": "tlsCert",
    "tls_key": "tlsKey",
    "tls_ca": "tlsCa",
    "tls_handshake_first": "tlsFirst",
    "inbox_prefix": "inboxPrefix",
    "name": "connectionName",
    "context": "context",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A job that may start: options for Spark, the schema of the bodies, the place of its progress."""

    job: Job
    source: dict[str, str]
    sinks: dict[Sink, dict[str, str]]
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
        """Where each sink's query runs. Raises when one may not. Empty when it takes Spark to tell."""
        files = files_for(self.checkpoint, spark)
        if files is None:
            return []
        found = [find(self.job, sink, self.checkpoint, self.server, files) for sink in self.job.sinks]
        places = []
        for one in found:
            schema = self.schema
            if self.job.json_infer and one.before is not None and one.before.json_infer:
                # The query rests on it, whatever messages look like now.
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
            "Spark needs Java 17 or newer, and there is no java in PATH or JAVA_HOME\n"
            "on Debian or Ubuntu: apt-get install openjdk-17-jre-headless"
        )


def check(job: Job) -> Plan:
    """Everything that can be known before Spark starts; what the user gave beside the job wins over it."""
    require_spark()
    given = settings.current()
    if given.server is None and given.context is None:
        settings.use(replace(given, server=job.server, context=job.context))
    connection = connection_options(settings.current())
    source = {**connection, "stream": ",".join(job.streams), "startingPosition": job.start}
    if job.subjects:
        source["subjects"] = ",".join(job.subjects)
    if job.allow_data_loss:
        source["failOnDataLoss"] = "false"
    most = job.max_per_batch
    if most is not None:
        source["maxMessagesPerTrigger"] = str(most)
    sinks: dict[Sink, dict[str, str]] = {}
    for sink in job.sinks:
        sinks[sink] = {}
        if sink.kind == "jetstream":
            sinks[sink] = {**connection, "stream": sink.target}
            if sink.subject is not None and "{" not in sink.subject:
                sinks[sink]["subject"] = sink.subject
    _check_options(source, sinks)
    server = connection.get("servers") or f"context {connection.get('context')}"
    checkpoint = job.folder(server)
    notes = Path(replace(job, checkpoint=None).folder(server) if is_remote(checkpoint) else checkpoint)
    known = _known_schema(job, checkpoint, server, notes) if job.json_infer and not job.restarts else None
    schema, created, said = settings.run(_ask(job, known))
    if job.json_infer and known is None and is_remote(checkpoint) and schema is not None:
        LocalFiles().write(str(notes / "schema.ddl"), schema + "\n")
    plan = Plan(
        job=job,
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
    """The schema that an earlier run has inferred: what its checkpoints rest on."""
    files = files_for(checkpoint, None)
    if files is not None:
        for sink in job.sinks:
            before = find(job, sink, checkpoint, server, files).before
            if before is not None and before.json_infer and before.json_schema is not None:
                return before.json_schema
    kept = LocalFiles().read(str(notes / "schema.ddl"))
    return kept.strip() if kept else None


def connection_options(given: Settings) -> dict[str, str]:
    """The connection of the command line as options of the data source."""
    found: dict[str, str] = {}
    options = given.connect_options()
    servers = options.get("servers")
    if servers is not None:
        found |= split_credentials(servers.split(",") if isinstance(servers, str) else servers)
    for name, option in _OPTIONS.items():
        value = options.get(name)
        if value is not None:
            reveal = getattr(value, "reveal", None)
            found[option] = reveal() if reveal else str(value).lower() if value is True else str(value)
    if given.js_domain is not None:
        found["domain"] = given.js_domain
    if given.js_api_prefix is not None:
        found["apiPrefix"] = given.js_api_prefix
    found["requestTimeout"] = f"{max(given.timeout, 10.0):g}s"
    return found


def split_credentials(servers: list[str]) -> dict[str, str]:
    """URLs without what Spark would show in plans and logs, which goes into options that it redacts."""
    found: dict[str, str] = {}
    bare = []
    for server in servers:
        match = _USERINFO.fullmatch(server.strip())
        bare.append(server.strip() if match is None else (match[1] or "") + match[3])
        if match is not None:
            user, colon, password = match[2].partition(":")
            ways = {"user": user, "password": password} if colon else {"token": user}
            ways = {name: unquote(value) for name, value in ways.items()}
            if found and found != ways:
                raise CommandFailed("--server: the URLs have different credentials; give one user for all")
            found = ways
    return {**found, "servers": ",".join(bare)}


def _check_options(source: dict[str, str], sinks: dict[Sink, dict[str, str]]) -> None:
    # Imported here: they bring PySpark's Python part, which require_spark has found.
    from jetspark.spark.sink.options import parse_sink
    from jetspark.spark.source.options import check_stream, parse_source

    check_stream(parse_source(source))
    for options in sinks.values():
        if options:
            parse_sink(options, streaming=True)


async def _ask(job: Job, known: str | None) -> tuple[str | None, dict[str, str], tuple[str, ...]]:
    """Ask the server for the streams, and for a sample where the schema is to be found out."""
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
    found = []
    for name in job.streams:
        if _GLOB.search(name) is None:
            found.append(await settings.find_stream(js, name))
            continue
        matching = [one async for one in js.stream_names() if fnmatchcase(one, name)]
        if not matching:
            raise CommandFailed(f"no stream matches {name!r} here\n'jetspark stream ls' lists what there is")
        found += [await js.get_stream(one) for one in matching]
    for subject in job.subjects:
        of_all = [own for stream in found for own in _subjects(stream)]
        if of_all and not any(subjects_overlap(own, subject) for own in of_all):
            raise CommandFailed(
                f"--subjects: {subject!r} is nothing that {', '.join(job.streams)} stores\n"
                f"subjects there: {', '.join(of_all)}"
            )
    return found


def _subjects(stream: Stream) -> list[str]:
    return list(stream.cached_info.config.subjects or [])


async def _check_target(js: JetStream, sink: Sink, sources: list[Stream]) -> None:
    target = await settings.find_stream(js, sink.target)
    own = _subjects(target)
    if sink.subject is None:
        if any(source.cached_info.config.name == sink.target for source in sources):
            raise CommandFailed(f"--to: {sink} is what the job reads: it would never come to an end")
        return
    sample = re.sub(r"\{[^}]*\}", "x", sink.subject)
    pattern = re.sub(r"\{[^}]*\}", "*", sink.subject)
    # A column may have any value: the subject of some row must fit.
    fits = subject_matches if sample == sink.subject else subjects_overlap
    if not any(fits(one, pattern) for one in own):
        raise CommandFailed(
            f"--to: stream {sink.target} does not store subject {sink.subject!r}\n"
            f"subjects there: {', '.join(own) or 'none'}"
        )
    for source in sources:
        if source.cached_info.config.name == sink.target:
            raise CommandFailed(f"--to: {sink} is what the job reads: it would never come to an end")


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
            "--json-infer: there are no messages yet to learn from\n"
            "give the schema: --json-schema 'id long, ...'"
        )
    found, other = infer(bodies)
    if found is None:
        raise CommandFailed(
            f"--json-infer: none of {len(bodies)} messages is a JSON object\n"
            "leave it out and use the column 'data' in the SQL"
        )
    check_clash("--json-infer", fields_of(found) if job.json_into is None else [job.json_into])
    said = [f"schema of {len(bodies)} messages: {found}"]
    if other:
        said.append(f"{other} of them are no JSON objects: their fields will be null")
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
            f"this job runs already{f', as process {holder}' if holder else ''}, and writes to {sink}: "
            f"{plan.checkpoint}\nstop it first, or give this run a --checkpoint of its own"
        ) from None
