"""Batch direct get (ADR-31) in bulk: pages of stored messages as columns, without one object per message.

Theory of operation
-------------------
The server replies to a request with stored messages, one after the other, until it has sent ``batch`` of them
or ``max_bytes``. It ends this page with a status that says how many are left. The next page is requested as
soon as that status arrives, before the page is handed out: the server reads the next page while the caller
works on this one. At most two pages are in memory. A page is requested only from a known position, so gaps
and filters cost nothing.

Each reply names the sequence of the reply before it, and the status names the sequence of the last one. So a
page proves that nothing of it was lost on its way; :func:`check_chain` checks this.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from jetspark.connection.subscription_sink import SubscriptionSink
from jetspark.errors import ConnectionLost, ProtocolError, RequestTimeout
from jetspark.jetstream.errors import JetStreamNotEnabled
from jetspark.jetstream.models.values import wire_number
from jetspark.jetstream.stored import batch_silence, end_of_page, raise_status, split_added
from jetspark.wire._backend import speed
from jetspark.wire.columns import ANSWERS, AnyColumns, Columns, join_columns
from jetspark.wire.headers import VERSION_LINE, decode_headers, decode_status

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from jetspark.connection.core import Core
    from jetspark.jetstream.api import Api

#: Messages and bytes per page. The server sends a page without flow control, and two may be in memory.
PAGE = 10_000
PAGE_BYTES = 8 * 1_048_576

# The headers of a reply, which the server appends to the publisher's own. Most messages have none of those.
_TAIL = (
    rb"Nats-Stream: [^\r\n]*+\r\nNats-Subject: ([^\r\n]*+)\r\nNats-Sequence: ([0-9]{1,19})\r\n"
    rb"Nats-Time-Stamp: ([^\r\n]*+)\r\nNats-Num-Pending: [0-9]{1,20}\r\n"
    rb"Nats-Last-Sequence: ([0-9]{1,19})\r\n\r\n"
)
_plain = re.compile(rb"NATS/1\.0()\r\n" + _TAIL).fullmatch
_mixed = re.compile(rb"(NATS/1\.0.*\r\n)" + _TAIL, re.DOTALL).fullmatch


class Page(msgspec.Struct):
    """Messages in order of their sequences. ``columns`` has the payloads and, by row, the publisher's own
    headers; the lists have the server's data per message. ``previous``: the preceding sequence in this
    page."""

    columns: AnyColumns
    subjects: list[bytes]
    sequences: list[bytes]
    times: list[bytes]
    previous: list[bytes]
    left: int = 0
    """Messages that follow after this page."""
    last: int = 0
    """The sequence of the last message."""

    def __len__(self) -> int:
        return len(self.sequences)


class _Answers(SubscriptionSink):
    """The inbox of one page; it delivers columns."""

    core: Core

    def __init__(self, core: Core, subject: str) -> None:
        super().__init__(core, core.new_inbox(), "", None, 0, 0, 0)
        # A lost connection or a missing permission ends it with that error instead of a timeout.
        self.asked = subject
        if speed is not None:
            self.factory, self.owner = ANSWERS, (self.factory, self.owner)

    def deliver_columns(self, columns: AnyColumns) -> None:
        self.received += len(columns)
        self._pending.append(columns)  # type: ignore[arg-type]
        self._accepted += 1
        self._wake()

    def deliver(self, items: list[Any], nbytes: int) -> None:
        columns = Columns(self.sid, [], [], [item.data for item in items], {}, nbytes)
        columns.headers = {
            row: item.header_block for row, item in enumerate(items) if item.header_block is not None
        }
        self.deliver_columns(columns)

    async def chunk(self, timeout: float) -> AnyColumns:
        """The next replies."""
        found: object = await self.next(timeout)
        assert isinstance(found, AnyColumns)
        return found


async def read_pages(
    api: Api,
    stream: str,
    *,
    subject: str = ">",
    seq: int = 1,
    end: int | None = None,
    batch: int = PAGE,
    max_bytes: int = PAGE_BYTES,
) -> AsyncGenerator[Page]:
    """The messages that match one filter, from ``seq`` to the end of the stream.

    ``end``: no page is requested at or after this sequence; the last page may extend beyond it. Pages may be
    empty. Raises :class:`JetStreamNotEnabled` when the stream does not allow direct get.
    """
    body: dict[str, Any] = {"max_bytes": max_bytes, "next_by_subj": subject}

    def request(seq: int) -> _Answers:
        size = batch if end is None else min(batch, max(1, end - seq))
        api.core.check_open()
        answers = _Answers(api.core, api.subject(f"DIRECT.GET.{stream}"))
        api.core.router.add(answers)
        encoded = msgspec.json.encode({**body, "seq": seq, "batch": size})
        api.core.outbox.publish(answers.asked, encoded, answers.subject, own_reply=True)
        return answers

    answers = request(seq)
    try:
        while True:
            page = await _read_page(api, stream, answers)
            await answers.unsubscribe()
            following = page.last + 1
            more = page.left > 0 and page.last > 0 and (end is None or following < end)
            if more:
                answers = request(following)
            yield page
            if not more:
                return
    finally:
        await answers.unsubscribe()


async def _read_page(api: Api, stream: str, answers: _Answers) -> Page:
    chunks: list[AnyColumns] = []
    while True:
        try:
            columns = await answers.chunk(api.timeout)
        except RequestTimeout:
            raise batch_silence(answers.asked, api.timeout) from None
        last = len(columns) - 1
        block = columns.headers.get(last, b"")
        status = decode_status(block)
        # A stored message with its own status line must not end the page.
        if status is not None and b"\r\nNats-Sequence: " not in block:
            break
        chunks.append(columns)
    columns.truncate(last)
    if last:
        chunks.append(columns)
    page = _page_of(stream, chunks)
    code, description = status
    if code == 204:
        page.left, page.last, _ = end_of_page(decode_headers(block))
        check_chain(stream, page)
    elif code == 503:
        raise JetStreamNotEnabled.no_responders(answers.asked)
    elif code != 404:
        raise_status(code, description)
    return page


def _page_of(stream: str, chunks: list[AnyColumns]) -> Page:
    columns: AnyColumns = join_columns(chunks) if chunks else Columns("", [], [], [], {})
    found, own = columns.headers, dict[int, bytes]()
    blocks = [*found.values()] if len(found) == len(columns) else [b""]
    matches: list[Any] = [*map(_plain, blocks)]
    rows: list[tuple[bytes, ...]]
    if None not in matches:
        rows = [match.groups() for match in matches]
    else:
        rows = []
        for row, match in enumerate(matches):
            if match is None:
                match = _mixed(blocks[row])
                rows.append(_slow(stream, blocks[row]) if match is None else match.groups())
                own[row] = rows[-1][0] + b"\r\n"
            else:
                rows.append(match.groups())
    columns.headers = own
    lists: Any = zip(*rows, strict=True) if rows else ([] for _ in range(5))
    _, subjects, sequences, times, previous = map(list, lists)
    return Page(columns, subjects, sequences, times, previous)


def _slow(stream: str, block: bytes) -> tuple[bytes, ...]:
    """The same for a reply whose headers are in another order than today's servers use."""
    headers = decode_headers(block) if block else None
    if headers is None or "Nats-Num-Pending" not in headers:
        raise RequestTimeout(
            f"the server of stream {stream!r} is older than 2.11: it does not support batch get"
        )
    own, added = split_added(headers, in_batch=True)
    if wire_number(added["Nats-Sequence"]) is None or wire_number(added["Nats-Last-Sequence"]) is None:
        raise ProtocolError(f"direct get answer with odd headers: {added!r:.200}")
    lines = "".join(f"{name}: {value}\r\n" for name, value in own)
    names = ("Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Last-Sequence")
    values = [VERSION_LINE.decode() + "\r\n" + lines, *(added[name] for name in names)]
    return tuple(value.encode("utf-8", "surrogateescape") for value in values)


def check_chain(stream: str, page: Page) -> None:
    """Raise unless each reply names the one before it, and the end of the page names the last one."""
    sequences = page.sequences
    if not sequences:
        return
    if page.previous[1:] != sequences[:-1] or int(sequences[-1]) != page.last:
        raise ConnectionLost(
            f"batch get on stream {stream!r}: answers were lost between servers, or two servers answered: "
            f"{len(sequences)} came, up to sequence {int(sequences[-1])}; the server sent up to {page.last}"
        )
