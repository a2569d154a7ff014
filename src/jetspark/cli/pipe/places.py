"""Where each sink of ``jetspark pipe`` keeps its progress, and whether this run may continue there.

A job has a folder. In it each sink has a checkpoint, and beside that a record of the query that made it
(:mod:`jetspark.cli.pipe.record`). The record also names the checkpoint's folder: a restart writes a record
that names a new folder, in one step, and leaves the old one where it is.

Two mistakes would silently lose or duplicate rows, so they are refused before the first micro-batch:

- A new checkpoint where an older one wrote the same messages to the same sink.
- A checkpoint and a folder of files that do not belong together. Spark numbers micro-batches by checkpoint
  and keeps the numbers in the folder (``_spark_metadata``). It skips a number that already exists.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from jetspark.cli.errors import CommandFailed
from jetspark.cli.pipe.files import Files, LocalFiles, files_for, is_remote
from jetspark.cli.pipe.job import COMMITTED, state_folder
from jetspark.cli.pipe.record import (
    UNCHANGED,
    Comparison,
    Record,
    compare,
    decode,
    definition_mark,
    encode,
    keeps_state,
    same_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from jetspark.cli.pipe.job import Job, Sink
    from jetspark.spark.source.offsets import Offset

_LEGACY = re.compile(r"(.+)-[0-9a-f]{10}")
_LOG_FILE = re.compile(r"(\d+)(\.compact)?")


@dataclass(frozen=True, slots=True)
class Progress:
    """Numbers of micro-batches in a checkpoint: the last planned one and the last finished one."""

    planned: int | None = None
    committed: int | None = None

    @property
    def pending(self) -> int | None:
        """A micro-batch that was planned and not finished. Spark runs it again first."""
        return self.planned if self.planned != self.committed else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The progress of a sink that was found. ``before`` is None when nothing is recorded."""

    sink: Sink
    job_folder: str
    slug: str
    folder: str
    """The checkpoint, relative to the job's folder or absolute."""
    before: Record | None = None
    progress: Progress = Progress()
    legacy: str | None = None
    """Which older version's folder is used; "" when none is."""

    @property
    def record_path(self) -> str:
        return f"{self.job_folder}/{self.slug}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a sink's query runs: allowed, and described."""

    sink: Sink
    checkpoint: str
    record_path: str
    record: Record
    before: Record | None
    progress: Progress
    start: str
    """The source's startingPosition, which counts until the first micro-batch is planned."""
    comparison: Comparison = UNCHANGED
    said: str = ""

    @property
    def continues(self) -> bool:
        return self.progress.planned is not None

    @property
    def unfinished(self) -> int | None:
        """A micro-batch that the old job has to finish.

        Some of its rows may be in the stream. The new job could store other rows for the same messages.
        """
        if self.sink.kind != "jetstream" or self.before is None or not self.comparison.rows_differ:
            return None
        return self.progress.pending


def record_of(job: Job, sink: Sink, created: Mapping[str, str], schema: str | None) -> Record:
    """The query of a sink as this run wants it. What only Spark knows is missing."""
    files = sink.is_file or sink.kind == "table"
    return Record(
        folder="",
        sink=sink.key(dict(job.conf)),
        name=job.name,
        streams=job.streams,
        created=dict(created),
        sql=job.sql,
        subject=sink.subject,
        subjects=job.subjects,
        json_schema=schema,
        json_infer=job.json_infer,
        json_into=job.json_into,
        watermark=job.watermark,
        unique=job.unique,
        output_mode=job.output_mode,
        partition_by=job.partition_by if files else (),
        stateful=keeps_state(job.sql, job.unique),
    )


def slug_of(job: Job, sink: Sink) -> str:
    """The name of a sink's checkpoint inside the folder of the job."""
    key = sink.key(dict(job.conf))
    if sink.kind == "console" and job.name is None and job.checkpoint is None:
        # It keeps no rows, so another query is another job, and users see all rows of each query they try.
        key += definition_mark(record_of(job, sink, {}, job.json_schema))
    return sink.slug(key)


def find(job: Job, sink: Sink, folder: str, server: str, files: Files) -> Found:
    """Look for the progress of a sink, also where older versions left it."""
    slug = slug_of(job, sink)
    found = Found(sink=sink, job_folder=folder, slug=slug, folder=slug)
    text = files.read(found.record_path)
    if text is not None:
        before = decode(text, found.record_path)
        path = _joined(folder, before.folder)
        own = files if is_remote(path) == is_remote(folder) else LocalFiles()
        return replace(found, folder=before.folder, before=before, progress=progress(own, path))
    legacy = sink.legacy_slug
    for name in (slug, legacy):
        here = progress(files, f"{folder}/{name}")
        if here.planned is not None:
            return replace(found, folder=name, progress=here, legacy=f"{folder}/{name}")
    if job.checkpoint is None:
        exact = job.legacy_folder(server) / legacy
        there = progress(LocalFiles(), str(exact))
        if there.planned is not None:
            # The whole job is in the name of that folder, so it is this one.
            before = msgspec.structs.replace(
                record_of(job, sink, {}, job.json_schema), folder=str(exact), stateful=None
            )
            if job.json_infer:
                kept = LocalFiles().read(str(exact.parent / "schema.ddl"))
                before = msgspec.structs.replace(before, json_schema=kept.strip() if kept else None)
            return replace(found, folder=str(exact), before=before, progress=there, legacy=str(exact))
    return found


def progress(files: Files, checkpoint: str) -> Progress:
    """The progress of a checkpoint."""
    return Progress(_last(files, f"{checkpoint}/offsets"), _last(files, f"{checkpoint}/commits"))


def _last(files: Files, folder: str) -> int | None:
    numbers = [int(found[1]) for name in files.names(folder) if (found := _LOG_FILE.fullmatch(name))]
    return max(numbers, default=None)


def settle(job: Job, found: Found, wanted: Record, files: Files, streams: Sequence[str]) -> Place:
    """Decide where a sink's query runs, or refuse. ``streams``: those that are read now."""
    if job.restarts:
        return _restarted(job, found, wanted, files, streams)
    before, began = found.before, found.progress.planned is not None
    if not began:
        # Set by a restart that ended before its first micro-batch; it still applies.
        restart = before.restart_from if before is not None else None
        beside = "" if restart else _refuse_repetition(job, found, wanted)
        start = restart or job.start
        return Place(
            sink=found.sink,
            checkpoint=_joined(found.job_folder, found.folder),
            record_path=found.record_path,
            record=msgspec.structs.replace(wanted, folder=found.folder, restart_from=restart),
            before=None,
            progress=found.progress,
            start=start,
            said=f"new, starts at {start}{beside}",
        )
    checkpoint = _joined(found.job_folder, found.folder)
    said = "continues"
    if found.legacy:
        said = f"continues at {found.legacy}, which an older version made"
    if before is None:
        before = wanted
        said += ", without a description: whether the query has changed is unknown"
    if found.legacy:
        created = _created(files, checkpoint, found.progress)
        before = msgspec.structs.replace(before, created=created)
    found_changes = compare(before, wanted)
    refuse(found.sink, found_changes, checkpoint)
    return Place(
        sink=found.sink,
        checkpoint=checkpoint,
        record_path=found.record_path,
        record=msgspec.structs.replace(wanted, folder=found.folder, restart_from=before.restart_from),
        before=before,
        progress=found.progress,
        start=job.start,
        comparison=found_changes,
        said=said,
    )


def refuse(sink: Sink, found: Comparison, checkpoint: str) -> None:
    """Raise when the changes do not fit the checkpoint."""
    if found.refused:
        # Spark numbers the files of a new checkpoint from 0 again, so the old ones can't stay beside them.
        old_files = ""
        if sink.is_file:
            old_files = f"move {sink.target} away and "
        elif sink.kind == "table":
            old_files = f"move the files of {sink.target} away and "
        raise CommandFailed(
            f"{sink} can't continue at its checkpoint: {'; '.join(found.refused)}\n"
            f"undo the change, or {old_files}start a new checkpoint with --restart-from committed (where "
            "this one ends), --restart-from earliest|latest|SEQ|TIME or --new-checkpoint (at --start). "
            f"The old one stays in {checkpoint}. If this is another job, give each a --name"
        )


def _restarted(job: Job, found: Found, wanted: Record, files: Files, streams: Sequence[str]) -> Place:
    start = job.restart_from or job.start
    old = _joined(found.job_folder, found.folder)
    if start == COMMITTED:
        start = _committed(job, found, files, old, streams)
    folder = found.folder
    if found.progress.planned is not None or folder in files.names(found.job_folder):
        taken = set(files.names(found.job_folder))
        number = 2
        while f"{found.slug}.{number}" in taken:
            number += 1
        folder = f"{found.slug}.{number}" if found.slug in taken else found.slug
    kept = f"; the old one stays in {old}" if found.progress.planned is not None else ""
    return Place(
        sink=found.sink,
        checkpoint=_joined(found.job_folder, folder),
        record_path=found.record_path,
        record=msgspec.structs.replace(wanted, folder=folder, restart_from=start),
        before=None,
        progress=Progress(),
        start=start,
        said=f"new, starts at {start}{kept}",
    )


def _committed(job: Job, found: Found, files: Files, checkpoint: str, streams: Sequence[str]) -> str:
    """The end of the last finished micro-batch, as a startingPosition."""
    number = found.progress.committed
    if number is None:
        return (found.before.restart_from if found.before is not None else None) or job.start
    ends: dict[str, int | str] = dict.fromkeys(streams, "earliest")
    for offset in _offsets(files, checkpoint, number):
        for name, one in offset.streams.items():
            if name in ends:
                known = ends[name]
                ends[name] = min(known, one.next) if isinstance(known, int) else one.next
    return json.dumps(ends)


def _offsets(files: Files, checkpoint: str, number: int) -> list[Offset]:
    """The offsets of a micro-batch: one for each time that the query reads its source."""
    from jetspark.spark.source.offsets import OffsetError, parse_offset

    path = f"{checkpoint}/offsets/{number}"
    text = files.read(path) or ""
    # Spark's format: a version, its settings, and a line for each source.
    try:
        return [
            parse_offset(json.loads(line)) for line in text.splitlines()[2:] if line.strip() not in ("", "-")
        ]
    except (ValueError, OffsetError) as error:
        raise CommandFailed(
            f"{path} is not a valid offset: {error}\nuse --restart-from SEQ or TIME"
        ) from None


def _created(files: Files, checkpoint: str, have: Progress) -> dict[str, str]:
    """When the streams were created, from the checkpoint's offsets."""
    assert have.planned is not None
    found: dict[str, str] = {}
    for offset in _offsets(files, checkpoint, have.planned):
        found.update({name: one.created for name, one in offset.streams.items()})
    return found


def _refuse_repetition(job: Job, found: Found, wanted: Record) -> str:
    """A new checkpoint reads from the start. Refuse it when the sink has those rows from another one.

    Two names are two jobs, whatever they write; the other one is mentioned then.
    """
    beside = ""
    if found.sink.kind == "console":
        return beside
    for path, other in _records():
        if os.path.abspath(path) == os.path.abspath(found.record_path) or not same_rows(wanted, other):
            continue
        if job.name is not None and other.name is not None:
            beside = f"; job {other.name!r} also writes messages of these streams there"
            continue
        place = _joined(str(path.parent), other.folder)
        if not is_remote(place) and progress(LocalFiles(), place).planned is None:
            continue  # it never began
        whose = f"job {other.name!r}" if other.name else "a job without a name"
        raise CommandFailed(
            f"{found.sink} already has rows of {', '.join(job.streams)}, written by {whose}; a new "
            f"checkpoint would write them again\nuse --checkpoint {path.parent} to continue that one, "
            "or --new-checkpoint or --restart-from to start a new one"
        )
    if job.checkpoint is not None:
        return beside
    for folder in _legacy_folders(job, found.sink):
        raise CommandFailed(
            f"{found.sink} may already have rows of this job: an older version left a checkpoint "
            f"in {folder}\nuse --checkpoint {folder} to continue it, "
            "or --new-checkpoint or --restart-from to start a new one"
        )
    return beside


def _records() -> Iterator[tuple[Path, Record]]:
    for path in sorted(state_folder().glob("*named/*/*.json")):
        yield path, decode(path.read_text(), str(path))


def _legacy_folders(job: Job, sink: Sink) -> list[Path]:
    """Folders of older versions with a checkpoint for this sink, the last used one first."""
    taken = {str(Path(record.folder).parent) for _, record in _records()}
    found = []
    for path in state_folder().glob("*"):
        name = _LEGACY.fullmatch(path.name)
        if name is None or name[1] not in job.legacy_labels or str(path) in taken:
            continue
        if progress(LocalFiles(), str(path / sink.legacy_slug)).planned is not None:
            found.append(path)
    return sorted(found, key=lambda path: (path / sink.legacy_slug / "offsets").stat().st_mtime, reverse=True)


def check_target(place: Place, folder: str, spark: SparkSession | None) -> None:
    """Refuse a folder of files that does not belong to the checkpoint. Without Spark, local ones only."""
    files = files_for(folder, spark)
    if files is None:
        return
    written = _last(files, f"{folder}/_spark_metadata")
    planned, committed = place.progress.planned, place.progress.committed
    if written is not None and (planned is None or written > planned):
        raise CommandFailed(
            f"{place.sink}: {folder} has the files of another query, up to micro-batch {written}; Spark "
            "would silently skip the micro-batches of this query with the same numbers\n"
            "write to another folder or move this one away; to continue the query that wrote it, use its "
            "--checkpoint"
        )
    if committed is not None and (written is None or written < committed):
        raise CommandFailed(
            f"{place.sink}: {folder} does not belong to the checkpoint, which wrote micro-batches up to "
            f"{committed}; the folder has {'none' if written is None else f'those up to {written}'}\n"
            "restore it, or start a new checkpoint in an empty folder: --restart-from or --new-checkpoint"
        )


def save(place: Place, spark: SparkSession | None) -> None:
    """Record what runs now."""
    files = files_for(place.record_path, spark)
    assert files is not None
    files.write(place.record_path, encode(place.record))


def _joined(job_folder: str, folder: str) -> str:
    return folder if is_remote(folder) or os.path.isabs(folder) else f"{job_folder}/{folder}"
