"""What a job of ``jetspark pipe`` was when it last used a checkpoint, and whether another may continue there.

Spark's checkpoint knows a place in the streams and the state of aggregates. It does not know the query that
made them. So a record of the query is kept beside each checkpoint. :func:`compare` reads an old and a new one
and says which changes the checkpoint allows. It follows Spark's rules for changes of a streaming query:
other filters and projections are fine, other stateful operators are not.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from jetspark.cli.errors import CommandFailed
from jetspark.spark.source.options import parse_streams
from jetspark.wire.subjects import is_subset, subjects_overlap

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = 1

# Quoted text first: a comment sign inside it does not start a comment.
_QUOTED = r"(?P<quoted>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`)"
_SQL_COMMENT = re.compile(_QUOTED + r"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_SQL_PART = re.compile(_QUOTED + r"|(?:\s|--[^\n]*|/\*.*?\*/)+", re.DOTALL)
# A query with one of these keeps state. One without them may do so as well, which only Spark knows.
_KEEPS_STATE = re.compile(r"\bgroup\s+by\b|\bselect\s+distinct\b", re.IGNORECASE)


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The query of one sink. ``folder``: its checkpoint, relative to the folder of the job or absolute."""

    version: int = VERSION
    folder: str
    sink: str
    """Kind and target: what :attr:`Sink.key` says."""
    name: str | None = None
    streams: tuple[str, ...] = ()
    created: dict[str, str] = {}
    """When each stream was created, which tells it from another one of the same name."""
    sql: str = ""
    subject: str | None = None
    subjects: tuple[str, ...] = ()
    json_schema: str | None = None
    json_infer: bool = False
    json_into: str | None = None
    watermark: tuple[str, str] | None = None
    unique: tuple[str, ...] = ()
    output_mode: str = "append"
    partition_by: tuple[str, ...] = ()
    stateful: bool | None = None
    """None: Spark has not been asked yet."""
    columns: tuple[tuple[str, str], ...] | None = None
    """Names and types of the rows that are written; None: not known yet."""
    restart_from: str | None = None
    """Where ``--restart-from`` wanted it to begin. It holds until the first micro-batch is planned."""

    @property
    def kind(self) -> str:
        """The kind of the sink."""
        return self.sink.partition(":")[0]


def decode(text: str, where: str) -> Record:
    """A record that was read from ``where``."""
    try:
        version = msgspec.json.decode(text, type=dict[str, object]).get("version")
        if isinstance(version, int) and version > VERSION:
            raise CommandFailed(
                f"{where} has version {version}; this jetspark reads up to {VERSION}\n"
                "run the newer jetspark that wrote it"
            )
        return msgspec.json.decode(text, type=Record)
    except msgspec.MsgspecError as error:
        raise CommandFailed(
            f"{where} is damaged: {error}\nit describes the checkpoint beside it: restore it, or use another "
            "--checkpoint"
        ) from None


def encode(record: Record) -> str:
    """The text for the file, readable."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2).decode() + "\n"


def without_comments(text: str) -> str:
    """The SQL with a blank for each comment. What looks like one inside quotes stays."""
    return _SQL_COMMENT.sub(lambda found: found["quoted"] or " ", text).strip()


def plain_sql(text: str) -> str:
    """The SQL without comments and with single blanks. Quoted text stays as it is."""
    return _SQL_PART.sub(lambda found: found["quoted"] or " ", text).strip()


def bare_sql(text: str) -> str:
    """:func:`plain_sql` without quoted texts, to look for words of SQL."""
    return _SQL_PART.sub(lambda found: "''" if found["quoted"] else " ", text).strip()


def keeps_state(sql: str, unique: Sequence[str]) -> bool | None:
    """Whether a query keeps state, by its words alone; None when unknown."""
    return True if unique or _KEEPS_STATE.search(bare_sql(sql)) else None


def definition_mark(record: Record) -> str:
    """A short text that is the same for queries that do the same, apart from blanks and comments."""
    parts = [plain_sql(record.sql), record.subjects, record.json_schema, record.json_infer, record.json_into]
    parts += [record.watermark, record.unique, record.output_mode]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:6]


@dataclass(frozen=True, slots=True)
class Comparison:
    """``refused``: changes that the checkpoint does not take, as sentences. ``changed``: the options."""

    refused: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    rows_differ: bool = False
    """Whether the new query may write other rows for messages that the old one has read."""


UNCHANGED = Comparison()


def compare(old: Record, new: Record) -> Comparison:
    """Whether a checkpoint that ``old`` made takes ``new``. Pure; each rule has a line in the table test."""
    refused: list[str] = []
    changed: list[str] = []
    stateful = bool(old.stateful or new.stateful)

    for name in sorted(old.created.keys() & new.created.keys()):
        if old.created[name] != new.created[name]:
            refused.append(
                f"stream {name} was deleted and created again, at {new.created[name]}; the one that was "
                f"read was created at {old.created[name]}"
            )
    wanted = parse_streams(new.streams)
    removed = [name for name in old.streams if name not in new.streams and not wanted.selects(name)]
    if removed:
        refused.append(f"--from: {removed[0]} is no longer read, so its unread messages would be lost")
    elif set(old.streams) != set(new.streams):
        changed.append("--from")
        if stateful:
            refused.append("--from: the query's state comes from other streams")

    if set(old.subjects) != set(new.subjects):
        changed.append("--subjects")
        if stateful:
            refused.append("--subjects: the query's state comes from other messages")
        elif not _narrower(new.subjects, old.subjects):
            refused.append("--subjects: earlier messages of the added subjects would never be read")
    if old.output_mode != new.output_mode:
        refused.append(f"--output-mode: it was {old.output_mode}, now it is {new.output_mode}")
    if old.partition_by != new.partition_by:
        refused.append(f"--partition-by: the folders are by {', '.join(old.partition_by) or 'no column'}")

    query = _changed_query(old, new)
    if query and stateful:
        what = "the query keeps state, which another query can't use"
        if not old.stateful and old.stateful is not None:
            what = "the new query keeps state, which would lack everything read so far"
        refused.append(f"{', '.join(query)}: {what}")
    changed += query
    if old.subject != new.subject:
        changed.append("--to")
    if old.columns is not None and new.columns is not None and old.columns != new.columns:
        refused += _columns(new.kind, dict(old.columns), dict(new.columns))
        changed += [] if query else ["the columns"]
    rows_differ = bool(query) or old.subject != new.subject or "the columns" in changed
    return Comparison(tuple(refused), tuple(changed), rows_differ)


def _changed_query(old: Record, new: Record) -> list[str]:
    """Options that say what happens to a message, as far as they differ."""
    pairs: list[tuple[str, object, object]] = [
        ("--sql", plain_sql(old.sql), plain_sql(new.sql)),
        ("--json-schema", _plain(old.json_schema), _plain(new.json_schema)),
        ("--json-into", old.json_into, new.json_into),
        ("--watermark", old.watermark, new.watermark),
        ("--unique", set(old.unique), set(new.unique)),
    ]
    return [option for option, before, now in pairs if before != now]


def _plain(text: str | None) -> str | None:
    return None if text is None else re.sub(r"\s*([,:<>])\s*", r"\1", " ".join(text.split()))


def _columns(kind: str, old: dict[str, str], new: dict[str, str]) -> list[str]:
    """What files can't take: readers see one table, whose files must agree."""
    if kind in ("csv", "table"):
        return [f"the columns were {_list(old)}, now they are {_list(new)}"]
    if kind in ("parquet", "json"):
        return [
            f"column {name} was {old[name]}, now it is {new[name]}"
            for name in old
            if name in new and new[name] != old[name]
        ]
    return []


def _list(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _narrower(new: Sequence[str], old: Sequence[str]) -> bool:
    """Whether every message that the new filters pass was passed by the old ones."""
    return not old or (bool(new) and all(any(is_subset(one, wide) for wide in old) for one in new))


def same_rows(one: Record, other: Record) -> bool:
    """Whether both bring messages of the same stream to the same sink, so that one would repeat the other."""
    if one.sink != other.sink or one.kind == "console":
        return False
    if not any(other.created.get(name) == created for name, created in one.created.items()):
        return False
    return any(
        subjects_overlap(first, second)
        for first in one.subjects or (">",)
        for second in other.subjects or (">",)
    )
