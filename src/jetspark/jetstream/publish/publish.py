"""Publishing one message into a stream and waiting for its ack."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from jetspark._checks import is_number, is_positive, is_whole
from jetspark.errors import InvalidArgument, NoRespondersError, RequestTimeout
from jetspark.jetstream.errors import NoStreamResponse
from jetspark.jetstream.models.puback import PubAck
from jetspark.jetstream.models.schedule import Schedule, ttl_text
from jetspark.jetstream.models.validation import check_name
from jetspark.wire.headers import Headers, trusted_headers
from jetspark.wire.subjects import validate_filter

if TYPE_CHECKING:
    from jetspark.connection.core import Core
    from jetspark.connection.outbox import HeadersLike

# ADR-22: retries when no stream responds, as happens while a leader is elected.
DEFAULT_RETRIES = 2
DEFAULT_RETRY_WAIT = 0.25


class Expect(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that the stream must meet; otherwise the publish is refused and nothing is stored."""

    stream: str | None = None
    """Name of the stream that stores the message (:class:`WrongStream`)."""
    last_seq: int | None = None
    """Last sequence of the stream (:class:`WrongLastSequence`); 0: the stream is empty."""
    last_subject_seq: int | None = None
    """Last sequence of the message's subject; 0: the subject has no message yet."""
    last_subject_seq_subject: str | None = None
    """Check ``last_subject_seq`` for this subject instead, wildcards allowed (2.11)."""
    last_msg_id: str | None = None
    """``Nats-Msg-Id`` of the stream's last message (:class:`WrongLastMessageId`)."""

    def __post_init__(self) -> None:
        if self.stream is not None:
            check_name("expect.stream", self.stream)
        if self.last_msg_id is not None:
            check_msg_id("expect.last_msg_id", self.last_msg_id)
        for field in ("last_seq", "last_subject_seq"):
            value = getattr(self, field)
            if value is not None and not is_whole(value, 0, (1 << 64) - 1):
                raise InvalidArgument(f"expect.{field}", value, "must be a sequence, 0 or more")
        if self.last_subject_seq_subject is not None:
            validate_filter(self.last_subject_seq_subject, field="expect.last_subject_seq_subject")
            if self.last_subject_seq is None:
                raise InvalidArgument(
                    "expect.last_subject_seq_subject",
                    self.last_subject_seq_subject,
                    "needs last_subject_seq beside it",
                )

    def add_to(self, headers: Headers) -> None:
        """Write the conditions in the server's format."""
        for name, value in self.pairs():
            headers[name] = value

    def pairs(self) -> list[tuple[str, str]]:
        """The conditions as headers."""
        found: list[tuple[str, str]] = []
        if self.stream is not None:
            found.append(("Nats-Expected-Stream", self.stream))
        if self.last_seq is not None:
            found.append(("Nats-Expected-Last-Sequence", str(self.last_seq)))
        if self.last_subject_seq is not None:
            found.append(("Nats-Expected-Last-Subject-Sequence", str(self.last_subject_seq)))
        if self.last_subject_seq_subject is not None:
            found.append(("Nats-Expected-Last-Subject-Sequence-Subject", self.last_subject_seq_subject))
        if self.last_msg_id is not None:
            found.append(("Nats-Expected-Last-Msg-Id", self.last_msg_id))
        return found


def check_msg_id(field: str, msg_id: object) -> None:
    """Refuse what can't be a ``Nats-Msg-Id``."""
    if not isinstance(msg_id, str) or not msg_id.strip(" \t"):
        raise InvalidArgument(field, msg_id, "must be a str that is not empty")
    if "\r" in msg_id or "\n" in msg_id:
        raise InvalidArgument(field, msg_id, "must not contain CR or LF")
    if not msg_id.isascii():
        try:
            msg_id.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(field, msg_id, "must be encodable as UTF-8") from None


def publish_headers(
    headers: HeadersLike | None,
    *,
    msg_id: str | None = None,
    expect: Expect | None = None,
    ttl: float | str | None = None,
    schedule: Schedule | None = None,
    subject: str = "",
) -> Headers | None:
    """The headers of a publish with its typed options; None when there are none.

    ``subject``, the subject of the publish, is needed to check a ``schedule``.
    """
    if headers is None and msg_id is None and expect is None and ttl is None and schedule is None:
        return None
    if expect is not None and not isinstance(expect, Expect):
        raise InvalidArgument("expect", expect, "must be a jetspark.Expect, e.g. Expect(last_seq=5)")
    if schedule is not None and not isinstance(schedule, Schedule):
        raise InvalidArgument("schedule", schedule, "must be a jetspark.Schedule, with a target")
    if headers is None and schedule is None and ttl is None and msg_id and isinstance(msg_id, str):
        # The usual case of pipelined publishers: there is nothing to merge, and the header names are our own.
        check_msg_id("msg_id", msg_id)
        pairs = [("Nats-Msg-Id", msg_id.strip(" \t"))]
        return trusted_headers(pairs if expect is None else pairs + expect.pairs())
    result = Headers(headers)
    if msg_id is not None:
        check_msg_id("msg_id", msg_id)
        result["Nats-Msg-Id"] = msg_id
    if expect is not None:
        expect.add_to(result)
    if ttl is not None:
        result["Nats-TTL"] = ttl_text(ttl)
    if schedule is not None:
        schedule.add_to(result, subject)
    return result


async def publish(
    core: Core, subject: str, data: bytes, *, headers: HeadersLike | None, msg_id: str | None, **options: Any
) -> PubAck:
    """See :meth:`jetspark.JetStream.publish`."""
    if core.observer is None:
        return await _publish(core, subject, data, headers, msg_id, **options)
    with core.observer.publishing("jetstream", subject, data, headers, msg_id) as sending:
        ack = await _publish(core, subject, data, sending.headers, msg_id, **options)
    sending.done(ack)
    return ack


async def _publish(
    core: Core,
    subject: str,
    data: bytes,
    headers: HeadersLike | None,
    msg_id: str | None,
    *,
    expect: Expect | None,
    ttl: float | str | None,
    schedule: Schedule | None,
    timeout: float,
    retries: int,
    retry_wait: float,
) -> PubAck:
    if not is_whole(retries, 0):
        raise InvalidArgument("retries", retries, "must be an integer, 0 or more")
    if not is_number(retry_wait) or not retry_wait >= 0:
        raise InvalidArgument("retry_wait", retry_wait, "must be a number of seconds, 0 or more")
    if not is_positive(timeout):
        raise InvalidArgument("timeout", timeout, "must be a positive number of seconds")
    all_headers = publish_headers(
        headers, msg_id=msg_id, expect=expect, ttl=ttl, schedule=schedule, subject=subject
    )
    attempt = 0
    while True:
        try:
            answer = await core.request(subject, data, timeout=timeout, headers=all_headers)
            return PubAck.from_response(answer.data)
        except NoRespondersError:
            # No stream received it, so sending it again can't store it twice.
            if attempt >= retries:
                raise NoStreamResponse(subject) from None
        except RequestTimeout:
            raise RequestTimeout(
                f"no ack for the publish to {subject!r} within {timeout:g}s: it may be stored anyway; "
                "publish it again with the same msg_id"
            ) from None
        attempt += 1
        await asyncio.sleep(retry_wait)
