"""Checks at the start that the target stream can keep the sink's promises.

The sink promises that a repeated task or micro-batch stores nothing twice. That depends on the
stream's ``duplicate_window``: within it, a message whose ``Nats-Msg-Id`` was seen is acked and not stored. A
window shorter than the time between a crash and the restart would silently break the promise. So it is
compared with ``requiredDuplicateWindow``: too short a window is a warning, or with ``requireExactlyOnce`` an
error.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetspark.errors import JetsparkError, PermissionViolationError, StreamNotFound
from jetspark.spark.options import OptionError

if TYPE_CHECKING:
    from jetspark.blocking import JetStream
    from jetspark.jetstream.models.stream_config import StreamConfig
    from jetspark.spark.sink.options import SinkOptions
    from jetspark.spark.sink.rows import SinkColumns

log = logging.getLogger("jetspark.spark.sink")


class NotExactlyOnce(JetsparkError):
    """``requireExactlyOnce`` is set and the target can't keep that promise; nothing was written."""


class UnfitStream(JetsparkError):
    """The target stream can't take what the sink would write; nothing was written."""


@dataclass(frozen=True, slots=True)
class Target:
    """The result of the check. ``max_msg_size`` of the stream: None when it sets no limit."""

    stream: str | None = None
    max_msg_size: int | None = None
    subjects: tuple[str, ...] = ()


def inspect_target(js: JetStream, options: SinkOptions, columns: SinkColumns) -> Target:
    """Find the target stream as far as it is known before the first ack, and check it."""
    try:
        stream = _find(js, options)
        if options.dead_letter_subject is not None:
            _covered(js, "deadLetterSubject", options.dead_letter_subject)
        if stream is None:
            return Target()
        config = js.get_stream(stream).cached_info.config
    except StreamNotFound as error:
        raise UnfitStream(
            f"stream {options.stream!r} does not exist ({error}); create it, or correct the option"
        ) from None
    except PermissionViolationError as error:
        if options.require_exactly_once:
            raise NotExactlyOnce(
                f"the target stream's info is not readable, so its duplicate_window is unknown: {error}; "
                "permit $JS.API.STREAM.INFO.* and $JS.API.STREAM.NAMES, or leave requireExactlyOnce out"
            ) from None
        log.warning("the target stream's info is not readable, so it is not checked: %s", error)
        return Target()
    check_stream(stream, config, options, columns)
    size = config.max_msg_size
    return Target(stream, size if size is not None and size > 0 else None, tuple(config.subjects or ()))


def check_stream(stream: str, config: StreamConfig, options: SinkOptions, columns: SinkColumns) -> None:
    """Refuse a stream whose configuration breaks the sink's promises, or warn about it."""
    if config.no_ack:
        raise UnfitStream(f"stream {stream!r} has no_ack set, so rows would never be acked; unset it")
    if config.sealed:
        raise UnfitStream(f"stream {stream!r} is sealed and takes no more messages")
    if columns.ttl is not None and not config.allow_msg_ttl:
        raise UnfitStream(
            f"stream {stream!r} does not allow TTLs per message, but the rows have a column 'ttl': "
            "set allow_msg_ttl on the stream, or drop the column"
        )
    has_ids = options.derive_msg_id or columns.msg_id is not None
    window = float(config.duplicate_window or 0.0)
    if not has_ids or window >= options.required_duplicate_window:
        return
    problem = (
        f"stream {stream!r} recognises messages written again for {window:g} s only (duplicate_window), and "
        f"{options.required_duplicate_window:g} s are required: rows may be stored twice when a task or "
        "query runs again later than that. Raise duplicate_window of the stream (its max_age must not "
        "be shorter), or lower option requiredDuplicateWindow"
    )
    if options.require_exactly_once:
        raise NotExactlyOnce(problem)
    log.warning(problem)


def _find(js: JetStream, options: SinkOptions) -> str | None:
    if options.subject is not None:
        found = _covered(js, "subject", options.subject)
        if options.stream is not None and options.stream != found:
            raise OptionError(
                "stream", f"{options.stream!r} does not store subject {options.subject!r}, {found!r} does"
            )
        return found
    if options.stream is None and options.require_exactly_once:
        raise NotExactlyOnce(
            "requireExactlyOnce needs to know the target stream before the first row: set option 'stream'"
        )
    return options.stream


def _covered(js: JetStream, option: str, subject: str) -> str:
    try:
        return js.stream_name_by_subject(subject)
    except StreamNotFound:
        raise OptionError(
            option, f"no stream stores {subject!r}; add it to a stream's subjects, or correct it"
        ) from None
