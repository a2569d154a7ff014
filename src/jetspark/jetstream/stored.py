"""Reading stored messages by sequence, subject or time, without a consumer (ADR-31).

Any replica that has the stream may answer a direct get, which needs ``allow_direct``; the API route asks
the leader. Both return the same :class:`StoredMsg`.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec

from jetspark._checks import is_whole
from jetspark.errors import InvalidArgument, NoRespondersError, ProtocolError, RequestTimeout
from jetspark.jetstream.errors import ApiError, JetStreamNotEnabled, MessageNotFound
from jetspark.jetstream.models.values import Timestamp, wire_number
from jetspark.wire.headers import Headers, decode_headers, trusted_headers
from jetspark.wire.subjects import has_wildcard, validate_filter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from datetime import datetime

    from jetspark.connection.message import Msg
    from jetspark.jetstream.api import Api

# Headers that the server appends to the publisher's own in a direct reply, and in a batch reply.
_ADDED = frozenset(("Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp"))
_ADDED_IN_BATCH = _ADDED | {"Nats-Num-Pending", "Nats-Last-Sequence"}

DEFAULT_BATCH = 1000
# The server sends a batch without flow control; this limits what may accumulate in the client.
DEFAULT_BATCH_BYTES = 16 * 1_048_576


class StoredMsg(msgspec.Struct, frozen=True, kw_only=True):
    """A message as the stream stores it."""

    stream: str
    subject: str
    sequence: int
    timestamp: Timestamp
    """When the server stored it, to the nanosecond."""
    data: bytes = b""
    headers: Headers = msgspec.field(default_factory=Headers)


def message_request(
    *,
    seq: int | None = None,
    last_by_subject: str | None = None,
    next_by_subject: str | None = None,
    start_time: datetime | None = None,
) -> dict[str, Any]:
    """The request body for one message; refuses combinations that make no sense."""
    if last_by_subject is not None and (seq, next_by_subject, start_time) != (None, None, None):
        raise InvalidArgument(
            "last_by_subject", last_by_subject, "excludes seq, next_by_subject and start_time"
        )
    if seq is not None and start_time is not None:
        raise InvalidArgument("start_time", start_time, f"excludes seq={seq}; give one of them")
    body: dict[str, Any] = {}
    if seq is not None:
        check_positive("seq", seq)
        body["seq"] = seq
    if start_time is not None:
        body["start_time"] = Timestamp.from_datetime(start_time, field="start_time").to_rfc3339()
        # The filter makes the server skip deleted messages; without it, a deleted message is a 404.
        body["next_by_subj"] = ">"
    if last_by_subject is not None:
        validate_filter(last_by_subject, field="last_by_subject")
        body["last_by_subj"] = last_by_subject
    if next_by_subject is not None:
        validate_filter(next_by_subject, field="next_by_subject")
        body["next_by_subj"] = next_by_subject
        if start_time is None:
            body.setdefault("seq", 1)
    if not body:
        raise InvalidArgument("seq", None, "give seq, last_by_subject, next_by_subject or start_time")
    return body


async def get_direct(api: Api, stream: str, body: dict[str, Any]) -> StoredMsg:
    """One message by direct get."""
    last = body.get("last_by_subj")
    if last is not None and not has_wildcard(last):
        # The form with the subject appended, so that permissions can be granted per subject.
        answer = await api.ask(f"DIRECT.GET.{stream}." + last)
    else:
        answer = await api.ask(f"DIRECT.GET.{stream}", body)
    _raise_status(answer)
    return stored_from_direct(answer)


async def get_by_api(api: Api, stream: str, body: dict[str, Any]) -> StoredMsg:
    """One message from the stream's leader."""
    response = await api.request(f"STREAM.MSG.GET.{stream}", body)
    try:
        message = msgspec.convert(response.get("message"), _Stored)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"answer without a stored message: {response!r:.200}: {error}") from None
    time = Timestamp.parse(message.time)
    if time is None:
        raise ProtocolError(f"stored message without a time: {message!r:.200}")
    return StoredMsg(
        stream=stream,
        subject=message.subject,
        sequence=message.seq,
        timestamp=time,
        data=message.data or b"",
        headers=decode_headers(message.hdrs) if message.hdrs else Headers(),
    )


class _Stored(msgspec.Struct, frozen=True):
    """A message as the API returns it; bytes are base64 there."""

    subject: str
    seq: Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
    time: str
    data: bytes | None = None
    hdrs: bytes | None = None


async def batch_direct(
    api: Api,
    stream: str,
    *,
    subject: str,
    seq: int | None,
    start_time: datetime | None,
    batch: int,
    max_bytes: int,
) -> AsyncGenerator[StoredMsg]:
    """All messages that match one filter, from a position on, in pages that end with the server's EOB."""
    body: dict[str, Any] = {"batch": batch, "max_bytes": max_bytes, "next_by_subj": subject}
    if start_time is not None:
        body["start_time"] = Timestamp.from_datetime(start_time, field="start_time").to_rfc3339()
    else:
        body["seq"] = seq or 1
    while True:
        page = _Page()
        async with aclosing(_read_page(api, stream, body, page)) as messages:
            async for message in messages:
                yield message
        if page.pending == 0 or page.last == 0:
            return
        body.pop("start_time", None)
        body["seq"] = page.last + 1


async def last_for_direct(
    api: Api,
    stream: str,
    *,
    subjects: Sequence[str],
    up_to_seq: int | None,
    up_to_time: datetime | None,
    batch: int,
) -> AsyncGenerator[StoredMsg]:
    """The last message of each subject, at one point in time, paged on a stable snapshot."""
    check_positive("batch", batch)
    body: dict[str, Any] = {"multi_last": list(subjects), "batch": batch}
    if up_to_seq is not None:
        check_positive("up_to_seq", up_to_seq)
        body["up_to_seq"] = up_to_seq
    if up_to_time is not None:
        body["up_to_time"] = Timestamp.from_datetime(up_to_time, field="up_to_time").to_rfc3339()
    while True:
        page = _Page()
        async with aclosing(_read_page(api, stream, body, page)) as messages:
            async for message in messages:
                yield message
        if page.pending == 0 or page.last == 0:
            return
        # The same point in time for the next page, whatever has been written since.
        body.pop("up_to_time", None)
        body["up_to_seq"] = page.up_to or up_to_seq
        body["seq"] = page.last + 1


class _Page:
    """What the end of a page says about the rest."""

    def __init__(self) -> None:
        self.pending = 0
        self.last = 0
        self.up_to = 0


async def _read_page(api: Api, stream: str, body: dict[str, Any], page: _Page) -> AsyncGenerator[StoredMsg]:
    core = api.core
    subject = api.subject(f"DIRECT.GET.{stream}")
    inbox = core.new_inbox()
    async with await core.subscribe(inbox, pending_messages_limit=0, pending_bytes_limit=0) as answers:
        # A lost connection or a missing permission ends it with that error instead of a timeout.
        answers.asked = subject
        core.outbox.publish(subject, msgspec.json.encode(body), inbox, own_reply=True)
        while True:
            try:
                answer = await answers.next(timeout=api.timeout)
            except RequestTimeout:
                raise batch_silence(subject, api.timeout) from None
            status = answer.status
            if status is None:
                if "Nats-Num-Pending" not in answer.headers:
                    raise RequestTimeout(
                        f"the server of stream {stream!r} is older than 2.11: it does not support batch get"
                    )
                yield stored_from_direct(answer, in_batch=True)
                continue
            code, description = status
            if code == 404:
                return
            if code == 503:
                raise JetStreamNotEnabled.no_responders(subject)
            if code != 204:
                raise_status(code, description)
            page.pending, page.last, page.up_to = end_of_page(answer.headers)
            return


def batch_silence(subject: str, timeout: float) -> RequestTimeout:
    """The error when the server did not end the page."""
    return RequestTimeout(
        f"batch get on {subject!r} went silent for {timeout:g}s: connection or server broke in the middle, "
        "or the server is older than 2.11"
    )


def end_of_page(headers: Headers) -> tuple[int, int, int]:
    """What the end of a page says: messages left, sequence of the last one, sequence of the snapshot."""
    names = ("Nats-Num-Pending", "Nats-Last-Sequence", "Nats-UpTo-Sequence")
    left, last, up_to = (_number(headers, name) for name in names)
    return left, last, up_to


def stored_from_direct(answer: Msg, *, in_batch: bool = False) -> StoredMsg:
    """Convert a direct reply into the message that it carries."""
    own, added = split_added(answer.headers, in_batch=in_batch)
    time = Timestamp.parse(added["Nats-Time-Stamp"])
    sequence = wire_number(added["Nats-Sequence"])
    if time is None or sequence is None:
        raise ProtocolError(f"direct get answer with odd headers: {added!r:.200}")
    kept = trusted_headers(own)  # other publishers stored these headers; we do not validate them
    return StoredMsg(
        stream=added["Nats-Stream"],
        subject=added["Nats-Subject"],
        sequence=sequence,
        timestamp=time,
        data=answer.data,
        headers=kept,
    )


def split_added(headers: Headers, *, in_batch: bool) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Split the headers of a direct reply: the publisher's own, and the server's data about the message."""
    expected = _ADDED_IN_BATCH if in_batch else _ADDED
    own = headers.items()
    added: dict[str, str] = {}
    # Search from the end: a message that was republished into the stream has its own headers with these
    # names, and the server appends.
    while own and own[-1][0] in expected and own[-1][0] not in added:
        name, value = own.pop()
        added[name] = value
    if added.keys() != expected:
        raise ProtocolError(f"direct get answer without its headers: {headers.items()!r:.200}")
    return own, added


def _number(headers: Headers, name: str) -> int:
    value = headers.get(name) or "0"
    number = wire_number(value)
    if number is None:
        raise ProtocolError(f"batch get ended with {name}: {value!r:.100}, which is no number")
    return number


def _raise_status(answer: Msg) -> None:
    status = answer.status
    if status is not None:
        raise_status(*status)


def raise_status(code: int, description: str) -> NoReturn:
    """Raise the error for a status other than the end of a page."""
    if code == 404:
        raise MessageNotFound(404, 10037, description or "no message found")
    if code == 413:
        raise ApiError(
            413, 0, f"{description or 'too many results'}: a multi-subject get matches at most 1024 subjects"
        )
    raise ApiError(code, 0, description or "direct get refused")


def check_positive(field: str, value: int) -> None:
    """Refuse anything but an integer of 1 or more; 1 is the first sequence."""
    if not is_whole(value, 1, (1 << 64) - 1):
        raise InvalidArgument(field, value, "must be an integer, 1 or more, that fits 64 bits")


def is_direct_refusal(error: Exception) -> bool:
    """Whether direct gets of this stream have no responder: it does not (or no longer) allow them."""
    return isinstance(error, NoRespondersError) or (
        isinstance(error, JetStreamNotEnabled) and error.err_code == 0
    )
