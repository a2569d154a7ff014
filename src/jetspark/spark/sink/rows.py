"""From Arrow record batches to messages: checks, message ids, dead letters. No connection, no Spark.

Theory of operation
-------------------
A record batch becomes messages as a whole: every row is checked before the first one may be published, so a
bad row stops its task while nothing of its record batch is on the wire. With a dead-letter subject, bad rows
become messages to that subject instead, with the reason in their headers.

A derived message id names *what* is written and not only its position: ``<origin>-<partition>-<hash of the
row>``, and a number for further equal rows. ``origin`` is the query and micro-batch, or the batch job. So a
repeated task may see its rows in another order, as happens after a shuffle, and still gives each its old id.
With an id made of the position, the server would drop one row as the duplicate of another. Counting equal
rows costs memory, so after :data:`REMEMBERED_ROWS` rows a task switches to ids of position and hash: those
repeat only when the order does, and at worst a row is stored twice.
"""

from __future__ import annotations

import contextlib
from binascii import hexlify
from datetime import timedelta
from hashlib import sha1
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jetspark.errors import InvalidArgument, JetsparkError
from jetspark.jetstream.models.schedule import ttl_text
from jetspark.jetstream.publish.publish import publish_headers
from jetspark.wire.headers import Headers, encode_headers
from jetspark.wire.subjects import validate_subject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jetspark.jetstream.publish.publish import Expect

REMEMBERED_ROWS = 500_000
"""Rows of a task whose ids don't depend on the order of rows; about 60 MB."""

# A server adds nothing to the headers that it counts, but these bound the work of measuring them exactly.
_HEADER_SLACK = 512
_SHOWN = 120
# Headers that the server obeys begin with this.
_NATS = "nats-"

REASON_HEADER = "Jetspark-Error"
SUBJECT_HEADER = "Jetspark-Subject"
POSITION_HEADER = "Jetspark-Row"
TRUNCATED_HEADER = "Jetspark-Truncated"


class BadRow(JetsparkError, ValueError):
    """A row can't become a message; nothing of its record batch was published.

    ``partition`` and ``row`` (from 0, within the partition) say where it was, ``column`` and ``value``
    (shortened) what is wrong with it. ``others``: further bad rows of the same record batch.
    """

    def __init__(
        self, partition: int, row: int, column: str, value: object, rule: str, others: int = 0
    ) -> None:
        more = f" (and {others} more bad rows in the same record batch)" if others else ""
        super().__init__(
            f"partition {partition}, row {row}, column {column!r}: {shorten(value)}: {rule}{more}; nothing "
            "of this record batch was published. Fix or filter out such rows, or set deadLetterSubject"
        )
        self.partition = partition
        self.row = row
        self.column = column
        self.value = shorten(value)
        self.rule = rule
        self.others = others


class Outgoing(NamedTuple):
    """A message to publish."""

    row: int
    subject: str
    data: bytes
    headers: Headers | None
    msg_id: str | None
    ttl: str | None
    dead: bool


class SinkColumns(NamedTuple):
    """The index of each column in a record batch; None: missing."""

    subject: int | None
    data: int
    headers: int | None = None
    msg_id: int | None = None
    ttl: int | None = None


class PlainRows(NamedTuple):
    """The messages of a record batch in which no row has more than a subject, data and a derived id.

    Without ids where none are derived.
    """

    first: int
    subjects: list[str]
    datas: list[bytes]
    ids: list[bytes] | None


class MessageIds:
    """Derived ids of one task; see the module."""

    def __init__(self, origin: str, partition: int, remembered: int = REMEMBERED_ROWS) -> None:
        self._prefix = f"{origin}-{partition}-"
        self.plain = self._prefix.isprintable() and not self._prefix[0].isspace()
        self._seen: dict[bytes, int] = {}
        self._left = remembered

    def derive(self, row: int, subject: str, data: bytes, headers: Headers | None, ttl: str | None) -> str:
        """The id of a row; call it once for each row, in the order of rows."""
        # The separators keep ("a", "bc") and ("ab", "c") apart: neither subjects nor headers may hold them.
        if headers is None and ttl is None:
            head = f"{subject}\n\r\n".encode()
        else:
            pairs = [] if headers is None else headers.items()
            text = "".join([f"{name}:{value}\n" for name, value in pairs])
            head = f"{subject}\n{text}\r{ttl}\n\r\n".encode()
        digest = sha1(head + data).digest()[:8]
        if self._left <= 0:
            return f"{self._prefix}{digest.hex()}@{row}"
        self._left -= 1
        number = self._seen.get(digest, 0)
        self._seen[digest] = number + 1
        if number:
            return f"{self._prefix}{digest.hex()}-{number}"
        return self._prefix + digest.hex()

    def derive_many(self, first: int, subjects: list[str], datas: list[bytes]) -> list[bytes]:
        """The same for rows without headers and ttl, from row ``first`` on."""
        heads = {subject: f"{subject}\n\r\n".encode() for subject in set(subjects)}
        if self._left >= len(datas):
            if len(heads) == 1:
                (head,) = heads.values()
                digests = [sha1(head + data).digest()[:8] for data in datas]
            else:
                digests = [
                    sha1(heads[subject] + data).digest()[:8]
                    for subject, data in zip(subjects, datas, strict=True)
                ]
            fresh = dict.fromkeys(digests, 1)
            if len(fresh) == len(digests) and self._seen.keys().isdisjoint(digests):
                self._left -= len(digests)
                self._seen.update(fresh)
                prefix = self._prefix.encode()
                return [prefix + hexlify(digest) for digest in digests]
        return [
            self.derive(first + index, subject, data, None, None).encode()
            for index, (subject, data) in enumerate(zip(subjects, datas, strict=True))
        ]


class RowPlanner:
    """Turns the record batches of one task into messages.

    ``subject``: the constant subject when there is no such column. ``max_size``: most bytes of headers and
    data together. ``expect`` is what each publish will say, because its header counts too. ``ids``: None
    derives none. ``keep_nats_headers``: pass headers named ``Nats-*`` on to the server, which obeys them.
    ``require_ids``: a row without an id is a bad row.
    """

    def __init__(
        self,
        columns: SinkColumns,
        *,
        partition: int,
        max_size: int,
        subject: str | None = None,
        ids: MessageIds | None = None,
        expect: Expect | None = None,
        dead_letter_subject: str | None = None,
        keep_nats_headers: bool = False,
        require_ids: bool = False,
    ) -> None:
        self._columns = columns
        self._partition = partition
        self._max_size = max_size
        self._subject = subject
        self._ids = ids
        self._expect = expect
        self._dead_letter_subject = dead_letter_subject
        self._keep_nats_headers = keep_nats_headers
        self._require_ids = require_ids
        # Of the current record batch: what was left out of the headers of a row, for its dead letter.
        self._left_out: dict[int, Headers] = {}
        self._row = 0
        self.dropped_headers: set[str] = set()

    @property
    def rows(self) -> int:
        """Rows seen so far."""
        return self._row

    def plan(self, batch: pa.RecordBatch) -> list[Outgoing]:
        """The messages of a record batch, in its order, or :class:`BadRow`."""
        first, count = self._row, batch.num_rows
        bad: dict[int, tuple[str, object, str]] = {}
        columns = self._columns
        datas = self._datas(batch.column(columns.data), bad)
        subjects = self._subjects(batch, count, bad)
        headers = self._headers(batch, count, bad)
        ttls = self._ttls(batch, count, bad)
        msg_ids = self._msg_ids(batch, count, bad)
        self._check_sizes(batch.column(columns.data), datas, headers, ttls, msg_ids, bad)
        if bad and self._dead_letter_subject is None:
            index = min(bad)
            column, value, rule = bad[index]
            raise BadRow(self._partition, first + index, column, value, rule, len(bad) - 1)
        self._row = first + count
        derive = None if self._ids is None else self._ids.derive
        messages: list[Outgoing] = []
        append = messages.append
        for index, (subject, data, header, msg_id, ttl) in enumerate(
            zip(subjects, datas, headers, msg_ids, ttls, strict=True)
        ):
            row = first + index
            if bad and index in bad:
                append(
                    self._dead_letter(
                        row, bad[index], subject, data, header, self._left_out.get(index), derive
                    )
                )
                continue
            if msg_id is None and header is not None:
                msg_id = header.get("Nats-Msg-Id")
            if msg_id is None and derive is not None:
                msg_id = derive(row, subject, data, header, ttl)
            append(Outgoing(row, subject, data, header, msg_id, ttl, False))
        return messages

    def plan_plain(self, batch: pa.RecordBatch) -> PlainRows | None:
        """The fast path for a record batch with only subject and data, all of them valid.

        None: use :meth:`plan`, which finds out what is wrong.
        """
        columns, ids = self._columns, self._ids
        others = (columns.headers, columns.ttl, columns.msg_id)
        if (ids is not None and not ids.plain) or others != (None, None, None) or not batch.num_rows:
            return None
        column = batch.column(columns.data)
        if column.null_count or pc.max(pc.binary_length(column)).as_py() + _HEADER_SLACK > self._max_size:
            return None
        bad: dict[int, tuple[str, object, str]] = {}
        datas, subjects = self._datas(column, bad), self._subjects(batch, batch.num_rows, bad)
        if bad:
            return None
        first, self._row = self._row, self._row + batch.num_rows
        derived = None if ids is None else ids.derive_many(first, subjects, datas)
        return PlainRows(first, subjects, datas, derived)

    def _datas(self, column: pa.Array, bad: dict[int, tuple[str, object, str]]) -> list[Any]:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = column.cast(pa.binary() if pa.types.is_string(column.type) else pa.large_binary())
        if column.null_count:
            for index in _nulls(column):
                bad[index] = (
                    "data",
                    None,
                    "must not be null; write coalesce(data, X'') for messages without a body",
                )
        return _values(column)

    def _subjects(
        self, batch: pa.RecordBatch, count: int, bad: dict[int, tuple[str, object, str]]
    ) -> list[Any]:
        if self._columns.subject is None:
            return [self._subject] * count
        values = _texts(batch.column(self._columns.subject), "subject", bad)
        # Rows usually share few subjects; each is checked once.
        wrong: dict[object, str] = {}
        for subject in set(values):
            try:
                if subject is None:
                    raise InvalidArgument("subject", None, "must not be null")
                validate_subject(subject)
            except InvalidArgument as error:
                wrong[subject] = error.rule
        if wrong:
            for index, subject in enumerate(values):
                if subject in wrong and index not in bad:
                    bad[index] = ("subject", subject, wrong[subject])
        return values

    def _headers(
        self, batch: pa.RecordBatch, count: int, bad: dict[int, tuple[str, object, str]]
    ) -> Sequence[Headers | None]:
        self._left_out.clear()
        if self._columns.headers is None:
            return [None] * count
        keep = self._keep_nats_headers
        found: list[Headers | None] = []
        for index, pairs in enumerate(_maps(batch.column(self._columns.headers), bad)):
            if not pairs:
                found.append(None)
                continue
            headers = Headers()
            for name, value in pairs:
                if not keep and isinstance(name, str) and name.lower().startswith(_NATS):
                    self._drop(index, name, value)
                    continue
                try:
                    _add_header(headers, name, value)
                except InvalidArgument as error:
                    bad.setdefault(index, ("headers", {name: value}, error.rule))
            found.append(headers or None)
        return found

    def _drop(self, index: int, name: str, value: object) -> None:
        self.dropped_headers.add(name)
        if self._dead_letter_subject is not None:
            with contextlib.suppress(InvalidArgument):
                _add_header(self._left_out.setdefault(index, Headers()), name, value)

    def _ttls(
        self, batch: pa.RecordBatch, count: int, bad: dict[int, tuple[str, object, str]]
    ) -> Sequence[str | None]:
        if self._columns.ttl is None:
            return [None] * count
        found: list[str | None] = []
        known: dict[object, str] = {}
        column = batch.column(self._columns.ttl)
        is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        for index, value in enumerate(_texts(column, "ttl", bad) if is_text else _values(column)):
            if value is None:
                found.append(None)
                continue
            text = known.get(value)
            if text is None:
                try:
                    text = known[value] = _ttl(value)
                except InvalidArgument as error:
                    bad.setdefault(index, ("ttl", value, error.rule))
            found.append(text)
        return found

    def _msg_ids(
        self, batch: pa.RecordBatch, count: int, bad: dict[int, tuple[str, object, str]]
    ) -> Sequence[str | None]:
        if self._columns.msg_id is None:
            return [None] * count
        values: list[str | None] = _texts(batch.column(self._columns.msg_id), "msg_id", bad)
        for index, value in enumerate(values):
            if value is None and self._require_ids:
                bad.setdefault(
                    index, ("msg_id", None, "must not be null with requireExactlyOnce and deriveMsgId=false")
                )
            if value is not None and (not value or not value.isprintable() or value != value.strip()):
                bad.setdefault(
                    index, ("msg_id", value, "must be printable text without spaces around it, or null")
                )
        return values

    def _check_sizes(
        self,
        column: pa.Array,
        datas: list[Any],
        headers: Sequence[Headers | None],
        ttls: Sequence[str | None],
        msg_ids: Sequence[str | None],
        bad: dict[int, tuple[str, object, str]],
    ) -> None:
        """Find what is too large; rows far below the limit cost nothing."""
        largest = pc.max(pc.binary_length(column)).as_py() or 0
        plain = self._columns.headers is None and self._columns.msg_id is None
        if plain and largest + _HEADER_SLACK <= self._max_size:
            return
        for index, data in enumerate(datas):
            if index in bad:
                continue
            header, msg_id = headers[index], msg_ids[index]
            if plain and len(data) + _HEADER_SLACK <= self._max_size:
                continue
            rough = 0 if header is None else sum(len(n) + 4 * len(v) + 4 for n, v in header.items())
            if len(data) + rough + 4 * len(msg_id or "") + _HEADER_SLACK <= self._max_size:
                continue
            # A derived id is not known yet; its longest form is used instead.
            whole = publish_headers(
                header,
                msg_id=msg_id or (None if self._ids is None else "x" * 80),
                expect=self._expect,
                ttl=ttls[index],
            )
            size = len(data) + (0 if whole is None else len(encode_headers(whole)))
            if size > self._max_size:
                bad[index] = (
                    "data",
                    data,
                    f"{size} bytes (headers and data) exceed the limit of {self._max_size}; split the row, "
                    "or raise max_payload of the server and max_msg_size of the stream",
                )

    def _dead_letter(
        self,
        row: int,
        reason: tuple[str, object, str],
        subject: str | None,
        data: bytes | None,
        header: Headers | None,
        left_out: Headers | None,
        derive: Callable[..., str] | None,
    ) -> Outgoing:
        assert self._dead_letter_subject is not None
        column, value, rule = reason
        headers = Headers()
        headers[REASON_HEADER] = _one_line(f"{column}: {shorten(value)}: {rule}")
        headers[POSITION_HEADER] = f"{self._partition}/{row}"
        if subject is not None:
            headers[SUBJECT_HEADER] = _one_line(subject)[:1024]
        # Nats-* headers control the server (ids, roll-ups, expectations), so they get other names.
        for kept in (header, left_out):
            for name, text in [] if kept is None else kept.items():
                headers.add(name if not name.lower().startswith(_NATS) else f"Jetspark-{name}", text)
        body = b"" if data is None else data
        # The space keeps it apart from a good row of the same subject and body.
        msg_id = None if derive is None else "dead-" + derive(row, f"dead {subject}", body, None, None)
        room = self._max_size - len(encode_headers(headers)) - _HEADER_SLACK
        if room < 0:  # the headers alone are too large
            headers = Headers({name: headers[name] for name in (REASON_HEADER, POSITION_HEADER)})
            room = self._max_size - len(encode_headers(headers)) - _HEADER_SLACK
        if len(body) > room:
            headers[TRUNCATED_HEADER] = str(len(body))
            body = body[: max(0, room)]
        return Outgoing(row, self._dead_letter_subject, body, headers, msg_id, None, True)


def shorten(value: object) -> str:
    """A value as errors show it."""
    text = repr(value[:_SHOWN] if isinstance(value, str | bytes) else value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _one_line(text: str) -> str:
    return " ".join(text.encode(errors="replace").decode().split())


def _nulls(column: pa.Array) -> list[int]:
    found: list[int] = pc.indices_nonzero(pc.is_null(column)).to_pylist()
    return found


def _values(column: pa.Array) -> list[Any]:
    found: list[Any] = column.to_pylist()
    return found


def _texts(column: pa.Array, name: str, bad: dict[int, tuple[str, object, str]]) -> list[Any]:
    """Strings of a column. Spark's cast of binary to string checks nothing, so they may not be UTF-8."""
    try:
        return _values(column)
    except UnicodeDecodeError:
        found: list[str | None] = []
        kind = pa.binary() if pa.types.is_string(column.type) else pa.large_binary()
        for index, raw in enumerate(_values(column.cast(kind))):
            try:
                found.append(None if raw is None else raw.decode())
            except UnicodeDecodeError:
                bad[index] = (name, raw, "must be UTF-8")
                found.append(raw.decode(errors="replace"))
        return found


def _maps(column: pa.Array, bad: dict[int, tuple[str, object, str]]) -> list[Any]:
    """The same for a column of maps."""
    try:
        return _values(column)
    except UnicodeDecodeError:
        found: list[Any] = []
        for index in range(len(column)):
            try:
                found.append(column[index].as_py())
            except UnicodeDecodeError:
                bad[index] = ("headers", "(not UTF-8)", "names and values must be UTF-8")
                found.append(None)
        return found


def _add_header(headers: Headers, name: object, value: object) -> None:
    if not isinstance(name, str):
        raise InvalidArgument("header name", name, "must not be null")
    if name.lower().startswith("nats-batch-"):
        # Copied from a stream that was filled with atomic batches: the server would wait for the rest.
        raise InvalidArgument("header name", name, "would make the row part of an atomic batch; drop it")
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, str):
            raise InvalidArgument("header value", one, f"of {name!r} must not be null")
        headers.add(name, one)


def _ttl(value: object) -> str:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    return ttl_text(value)  # type: ignore[arg-type]
