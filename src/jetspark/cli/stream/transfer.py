"""Export of a stream to JSON lines or parquet, and back.

Both formats hold the same: the stream's config, and for each message its sequence, time, subject, headers
and body. In JSON lines the stream is the first line, in parquet it is in the file's metadata. An export is
written to a temporary file and renamed when it is complete, so the target is never half written.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import msgspec

from jetspark import Expect, RetentionPolicy, StoredMsg, StreamConfig
from jetspark.cli import output
from jetspark.cli.errors import CommandFailed, UsageError
from jetspark.cli.settings import find_stream, jetstream
from jetspark.errors import MessageNotFound, StreamNotFound
from jetspark.jetstream.stream import next_on_leader
from jetspark.models import Timestamp
from jetspark.wire.headers import Headers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from datetime import datetime

    from jetspark import JetStream, PubAck, Stream

VERSION = 1
_ROWS = 5000
# Seconds between two checks of a replica that is behind; doubled each time.
_LONGEST_PAUSE = 10.0
# Headers that were conditions or commands for the original publish.
_SPENT = ("Nats-Expected-", "Nats-Batch-", "Nats-Rollup")


def message_fields(message: StoredMsg) -> dict[str, Any]:
    """A stored message as JSON: the names that exports and ``--json`` share."""
    fields: dict[str, Any] = {
        "stream": message.stream,
        "seq": message.sequence,
        "time": message.timestamp.to_rfc3339(),
        "subject": output.clean(message.subject),
    }
    if message.headers:
        fields["headers"] = output.header_fields(message.headers)
    return fields | output.data_fields(message.data)


def file_kind(file: str, asked: str | None) -> str:
    """``jsonl`` or ``parquet``, from the option or the name."""
    if asked is not None:
        if asked not in ("jsonl", "parquet"):
            raise UsageError(f"invalid --format {asked!r}; use jsonl or parquet")
        if asked == "parquet" and file == "-":
            raise UsageError("--format parquet needs a file, not a pipe")
        return asked
    if file == "-" or file.endswith((".jsonl", ".ndjson", ".json")):
        return "jsonl"
    if file.endswith((".parquet", ".pq")):
        return "parquet"
    raise UsageError(f"{file}: unknown format; name it .jsonl or .parquet, or give --format")


class _Writer(Protocol):
    def write(self, message: StoredMsg) -> None: ...

    def close(self) -> None: ...


class _JsonLines:
    def __init__(self, file: BinaryIO, head: dict[str, Any]) -> None:
        self._file = file
        self._encode = msgspec.json.Encoder().encode
        file.write(self._encode(head) + b"\n")

    def write(self, message: StoredMsg) -> None:
        self._file.write(self._encode(message_fields(message)) + b"\n")

    def close(self) -> None:
        self._file.flush()


class _Parquet:
    def __init__(self, file: BinaryIO, head: dict[str, Any]) -> None:
        self._pa, self._pq = _arrow()
        pa = self._pa
        self._schema = pa.schema(
            [
                ("seq", pa.int64()),
                ("time", pa.timestamp("ns", tz="UTC")),
                ("subject", pa.string()),
                ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))),
                ("data", pa.binary()),
            ],
            metadata={"jetspark.stream": json.dumps(head)},
        )
        self._writer = self._pq.ParquetWriter(file, self._schema, compression="zstd")
        self._rows: list[StoredMsg] = []

    def write(self, message: StoredMsg) -> None:
        self._rows.append(message)
        if len(self._rows) == _ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        columns = [
            [row.sequence for row in rows],
            [row.timestamp.ns for row in rows],
            [output.clean(row.subject) for row in rows],
            [_header_rows(row) for row in rows],
            [row.data for row in rows],
        ]
        arrays = [
            self._pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)
        ]
        self._writer.write_batch(self._pa.record_batch(arrays, schema=self._schema))


def _header_rows(message: StoredMsg) -> list[dict[str, str]]:
    return [
        {"name": output.clean(name), "value": output.clean(value)} for name, value in message.headers.items()
    ]


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise CommandFailed('parquet needs pyarrow: pip install "jetspark[arrow]", or use .jsonl') from None
    return pyarrow, pyarrow.parquet


async def copy(
    name: str,
    file: str,
    kind: str,
    *,
    subjects: list[str] | None,
    seq: int | None,
    start_time: datetime | None,
    quiet: bool,
) -> dict[str, Any]:
    """Export; returns what was done."""
    if kind == "parquet":
        _arrow()
    began = time.monotonic()
    async with jetstream() as js:
        stream = await find_stream(js, name)
        info = stream.cached_info
        head = {
            "jetspark_export": VERSION,
            "config": info.config.to_wire(),
            "created": info.created.to_rfc3339() if info.created else None,
            "state": info.state.to_wire(),
        }
        last = info.state.last_seq
        count = size = 0
        with contextlib.ExitStack() as closing:
            opened = closing.enter_context(_written(file))
            writer: _Writer = (_Parquet if kind == "parquet" else _JsonLines)(opened, head)
            total = info.state.messages if subjects is None and seq is None and start_time is None else None
            advance = closing.enter_context(output.progress(f"copying {name}", total, quiet=quiet))
            async for message in _stored(js, stream, subjects, seq, start_time, last):
                if message.sequence > last:
                    break
                writer.write(message)
                count += 1
                size += len(message.data)
                if count % 500 == 0:
                    advance(500)
                if message.sequence == last:
                    break
            advance(count % 500)
            writer.close()
    return {
        "stream": name,
        "file": file,
        "format": kind,
        "messages": count,
        "bytes": size,
        "seconds": round(time.monotonic() - began, 3),
    }


@contextlib.contextmanager
def _written(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdout.buffer
        return
    draft = f"{file}.partial"
    try:
        with open(draft, "wb") as opened:
            yield opened
        os.replace(draft, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


async def _stored(
    js: JetStream,
    stream: Stream,
    subjects: list[str] | None,
    seq: int | None,
    start_time: datetime | None,
    last: int,
) -> AsyncIterator[StoredMsg]:
    """Every stored message from the start on, to the sequence ``last`` of the leader at least.

    The replica that answers may be behind its leader and end too early; then reading continues.
    """
    pause = 0.05
    position = None if start_time is not None else seq or 1
    while True:
        async for message in _stored_on_replica(js, stream, subjects, seq, start_time):
            position, pause = message.sequence + 1, 0.05
            yield message
        try:
            if position is None and start_time is not None:
                position = (await stream.get_msg(start_time=start_time, from_leader=True)).sequence
        except MessageNotFound:
            return
        assert position is not None
        more = await next_on_leader(stream, position, subjects or ()) if position <= last else None
        if more is None or more > last:
            return
        if pause > _LONGEST_PAUSE:
            raise CommandFailed(
                f"stream {stream.name}: a replica ends before sequence {more} and does not catch up with its "
                "leader; look at the cluster's health, then copy again"
            )
        await asyncio.sleep(pause)
        seq, start_time, pause = position, None, pause * 2


async def _stored_on_replica(
    js: JetStream, stream: Stream, subjects: list[str] | None, seq: int | None, start_time: datetime | None
) -> AsyncIterator[StoredMsg]:
    """Every message that one replica has stored.

    Direct gets where the stream allows them. Single gets on work-queue and interest streams, where a
    consumer would affect what is kept. Otherwise an ordered consumer, which is far faster than single gets.
    """
    config = stream.config
    if config.allow_direct or config.retention != RetentionPolicy.LIMITS:
        async for message in stream.get_msgs(subjects, seq=seq, start_time=start_time):
            yield message
        return
    reader = await stream.create_ordered_consumer(
        filter_subjects=subjects, opt_start_seq=seq, opt_start_time=start_time
    )
    async with reader:
        if (await reader.info()).num_pending == 0:
            return
        async with reader.consume(max_messages=5000) as messages:
            async for delivered in messages:
                metadata = delivered.metadata
                yield StoredMsg(
                    stream=stream.name,
                    subject=delivered.subject,
                    sequence=metadata.sequence.stream,
                    timestamp=metadata.timestamp,
                    data=delivered.data,
                    headers=delivered.headers,
                )
                if metadata.num_pending == 0:
                    return


class _Export:
    """A file that is read back: what the stream was, and its messages."""

    def __init__(self, file: str, kind: str) -> None:
        self.name = file
        self._kind = kind
        self.total: int | None = None
        if kind == "parquet":
            _, parquet = _arrow()
            try:
                self._parquet = parquet.ParquetFile(file)
            except ValueError as error:  # pyarrow's own errors derive from it
                raise CommandFailed(f"{file} is not a parquet file: {error}") from None
            metadata = self._parquet.schema_arrow.metadata or {}
            if b"jetspark.stream" not in metadata:
                raise CommandFailed(f"{file} was not written by 'jetspark stream copy'")
            self.head: dict[str, Any] = json.loads(metadata[b"jetspark.stream"])
            self.total = self._parquet.metadata.num_rows
        else:
            self._lines = sys.stdin.buffer if file == "-" else open(file, "rb")  # noqa: SIM115
            try:
                self.head = json.loads(self._lines.readline() or b"{}")
            except ValueError:
                self.head = {}
            if not isinstance(self.head, dict) or "jetspark_export" not in self.head:
                self.close()
                raise CommandFailed(f"{file} was not written by 'jetspark stream copy': no stream in line 1")
        if self.head.get("jetspark_export") != VERSION:
            self.close()
            raise CommandFailed(f"{file} has version {self.head.get('jetspark_export')}; upgrade jetspark")

    def close(self) -> None:
        if self._kind == "parquet":
            self._parquet.close()
        elif self.name != "-":
            self._lines.close()

    def messages(self) -> Iterator[StoredMsg]:
        return self._from_parquet() if self._kind == "parquet" else self._from_lines()

    def _from_lines(self) -> Iterator[StoredMsg]:
        for number, line in enumerate(self._lines, 2):
            try:
                fields = msgspec.json.decode(line)
                data = fields.get("data")
                when = Timestamp.parse(fields["time"])
                if when is None:
                    raise ValueError("no time")
                headers = Headers()
                for name, texts in fields.get("headers", {}).items():
                    for text in texts:
                        headers.add(name, text)
                message = StoredMsg(
                    stream=fields["stream"],
                    subject=fields["subject"],
                    sequence=fields["seq"],
                    timestamp=when,
                    data=base64.b64decode(fields["data_base64"]) if data is None else data.encode(),
                    headers=headers,
                )
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise CommandFailed(f"{self.name}, line {number}: not a message: {error!r}") from None
            yield message

    def _from_parquet(self) -> Iterator[StoredMsg]:
        stream = self.head["config"]["name"]
        for batch in self._parquet.iter_batches(batch_size=_ROWS):
            times = batch.column("time").cast("int64").to_pylist()
            columns = [batch.column(name).to_pylist() for name in ("seq", "subject", "headers", "data")]
            for when, seq, subject, pairs, data in zip(times, *columns, strict=True):
                headers = Headers()
                for pair in pairs or ():
                    headers.add(pair["name"], pair["value"])
                yield StoredMsg(
                    stream=stream,
                    subject=subject,
                    sequence=seq,
                    timestamp=Timestamp.from_ns(when),
                    data=data,
                    headers=headers,
                )


async def restore(
    file: str,
    kind: str,
    *,
    stream: str | None,
    subjects: list[str] | None,
    quiet: bool,
    new_ids: bool = False,
) -> dict[str, Any]:
    """Publish an export; returns what was done.

    A message whose id the stream knows is not stored again. ``missing`` counts those that are no longer in
    the stream: it was purged, and still remembers their ids. ``new_ids`` stores all of them.
    """
    began = time.monotonic()
    export = _Export(file, kind)
    try:
        config = StreamConfig.from_wire(export.head["config"])
        if config.allow_msg_counter:
            raise CommandFailed(f"{file} holds counters, which can't be published again")
        wanted = _for_restore(config, export.head, stream, subjects)
        async with jetstream() as js:
            created = await _ensure(js, wanted, subjects)
            count = size = 0
            seen: set[int] = set()
            known: list[int] = []  # sequences of what the stream had
            expected = Expect(stream=wanted.name)
            identity = f"{config.name}:{export.head.get('created')}"
            if new_ids:
                identity += f":{uuid.uuid4().hex[:16]}"

            def note(ack: asyncio.Future[PubAck]) -> None:
                if not ack.cancelled() and ack.exception() is None and ack.result().duplicate:
                    known.append(ack.result().seq)

            async with js.publisher() as publisher:
                with output.progress(f"restoring {wanted.name}", export.total, quiet=quiet) as advance:
                    for message in export.messages():
                        headers = _kept(message.headers)
                        own = None if new_ids else headers.get("Nats-Msg-Id")
                        if own is not None and hash(own) in seen:
                            # The id occurs twice: in the old stream outside the duplicate window, here
                            # inside.
                            own = None
                        elif own is not None:
                            seen.add(hash(own))
                        acked = await publisher.publish(
                            message.subject,
                            message.data,
                            headers=headers,
                            msg_id=own or f"{identity}:{message.sequence}",
                            # Another stream may capture the subject; the server then refuses the message.
                            expect=expected,
                        )
                        acked.add_done_callback(note)
                        count += 1
                        size += len(message.data)
                        if count % 500 == 0:
                            advance(500)
                    await publisher.flush()
                    advance(count % 500)
            state = (await (await js.get_stream(wanted.name)).info()).state
            return {
                "stream": wanted.name,
                "created": created,
                "file": file,
                "format": kind,
                "messages": publisher.stats.acked,
                "stored": publisher.stats.acked - publisher.stats.duplicates,
                "duplicates": publisher.stats.duplicates,
                "missing": sum(seq < state.first_seq for seq in known),
                "bytes": size,
                "seconds": round(time.monotonic() - began, 3),
            }
    finally:
        export.close()


def _for_restore(
    config: StreamConfig, head: dict[str, Any], name: str | None, subjects: list[str] | None
) -> StreamConfig:
    """The config of a stream that takes the messages as they were stored."""
    if config.mirror is not None or config.sources:
        output.notice("the exported stream copied from others; the restored one does not")
    if config.subject_transform is not None:
        output.notice("the exported stream rewrote subjects; the restored one does not")
    metadata = {key: value for key, value in (config.metadata or {}).items() if not key.startswith("_nats.")}
    first = head.get("state", {}).get("first_seq") or 0
    return config.replace(
        name=name or config.name,
        subjects=subjects or config.subjects,
        mirror=None,
        mirror_direct=None,
        sources=None,
        subject_transform=None,
        sealed=None,
        no_ack=None,
        metadata=metadata or None,
        first_seq=first if first > 1 else None,
    )


async def _ensure(js: JetStream, wanted: StreamConfig, subjects: list[str] | None) -> bool:
    """Create the stream unless it exists."""
    try:
        existing = await js.get_stream(wanted.name)
    except StreamNotFound:
        if not wanted.subjects:
            raise UsageError("the export names no subjects: give --subjects") from None
        await js.create_stream(wanted)
        return True
    if subjects and set(subjects) != set(existing.config.subjects or ()):
        raise UsageError(f"stream {wanted.name} exists with other subjects; leave --subjects out")
    return False


def _kept(headers: Headers) -> Headers:
    kept = Headers()
    for name, value in headers.items():
        if not name.startswith(_SPENT):
            kept.add(name, value)
    return kept
