"""Scheduled messages (ADR-51): a stream that publishes a message later, or repeatedly.

A schedule is a stored message with ``Nats-Schedule`` headers. When it is due, the stream itself stores a
copy of it (or of the last message of another subject) under the target subject. One subject holds one
schedule: publishing a new one there replaces it; purging the subject or deleting the message ends it.

The stream needs ``allow_msg_schedules`` (2.12, else ``SchedulesDisabled``) and must capture the subject, the
target and the source of the schedule. Published messages carry ``Nats-Scheduler`` (the schedule's subject)
and ``Nats-Schedule-Next`` (when it fires next, or ``purge`` for the last time).
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from jetspark._checks import is_number
from jetspark._times import server_duration
from jetspark.errors import InvalidArgument
from jetspark.jetstream.models.validation import check_flag, check_subject
from jetspark.jetstream.models.values import NANOS_PER_SECOND, Timestamp, to_nanoseconds

if TYPE_CHECKING:
    from jetspark.wire.headers import Headers

_PREDEFINED = frozenset(
    ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"),
)
_CRON_FIELD = re.compile(r"[0-9A-Za-z*?,/-]+", re.ASCII)
# What Go's time.LoadLocation accepts; a UTC offset is not valid.
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*", re.ASCII)


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """When and where the stream publishes a message: the ``schedule`` option of ``publish``.

    Give exactly one of ``at``, ``every`` and ``cron``, and a ``target``::

        await js.publish("later.42", b"...", schedule=Schedule(at=when, target="orders"))
        await js.publish("ticks.minute", schedule=Schedule(every=60, target="ticks"))
        await stream.purge(subject="ticks.minute")  # ends it

    The ``ttl`` option of ``publish`` limits the life of the schedule itself: after a long outage a message
    that is due fires immediately, unless its TTL has removed it.
    """

    target: str
    """Subject of the published messages. Must be one of the stream's subjects, without wildcards, and not the
    subject of the schedule."""

    at: datetime | None = None
    """Publish once, at this time (aware datetime), and remove the schedule. Immediately if it is in the past.
    Since 2.12."""

    every: float | timedelta | None = None
    """Publish at this interval in seconds (or a ``timedelta``), at least 1 s; the first time after one
    interval. The server counts in whole seconds. Since 2.14."""

    cron: str | None = None
    """Publish by a cron pattern of six fields (second, minute, hour, day of month, month, day of week;
    ``"0 30 4 * * mon-fri"``) or one of ``@yearly``, ``@annually``, ``@monthly``, ``@weekly``, ``@daily``,
    ``@midnight``, ``@hourly``. In UTC unless ``timezone`` says otherwise. Since 2.14."""

    timezone: str | None = None
    """Time zone of ``cron``, as an IANA name (``Europe/Amsterdam``) that the server's host knows. Default:
    UTC. Only with ``cron``; not an offset such as ``+02:00``. A time that daylight saving skips or repeats
    is skipped or repeated. Since 2.14."""

    source: str | None = None
    """Publish the last message of this subject instead of the schedule's own body and headers, which are
    used only while the subject has no message. Must be one of the stream's subjects, without wildcards, and
    neither the target nor the subject of the schedule. Since 2.14."""

    ttl: float | str | None = None
    """``Nats-TTL`` of the published messages: whole seconds, a duration such as ``"5m"``, or ``"never"``.
    Default: none. Needs ``allow_msg_ttl``. Since 2.12."""

    rollup: bool = False
    """Each published message replaces the earlier ones of the target. Since 2.14."""

    def __post_init__(self) -> None:
        check_subject("schedule.target", self.target, wildcards=False)
        given = [name for name in ("at", "every", "cron") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidArgument(
                "schedule",
                given or None,
                "give exactly one of at (once), every (interval), cron (pattern)",
            )
        if self.timezone is not None:
            if self.cron is None:
                raise InvalidArgument("schedule.timezone", self.timezone, f"only with cron, not {given[0]}")
            if not isinstance(self.timezone, str) or not _ZONE.fullmatch(self.timezone):
                raise InvalidArgument(
                    "schedule.timezone", self.timezone, "must be an IANA name such as 'Europe/Amsterdam'"
                )
        if self.source is not None:
            check_subject("schedule.source", self.source, wildcards=False)
            if self.source == self.target:
                raise InvalidArgument("schedule.source", self.source, "must not be the target")
        if self.ttl is not None:
            ttl_text(self.ttl, field="schedule.ttl")
        check_flag("schedule.rollup", self.rollup)
        self._pattern()

    def add_to(self, headers: Headers, subject: str) -> None:
        """Write the schedule in the server's format; ``subject`` is where it is published."""
        for field, value in (("target", self.target), ("source", self.source)):
            if value == subject:
                raise InvalidArgument(
                    f"schedule.{field}", value, "must not be the subject that holds the schedule"
                )
        headers["Nats-Schedule"] = self._pattern()
        headers["Nats-Schedule-Target"] = self.target
        if self.source is not None:
            headers["Nats-Schedule-Source"] = self.source
        if self.ttl is not None:
            headers["Nats-Schedule-TTL"] = ttl_text(self.ttl, field="schedule.ttl")
        if self.timezone is not None:
            headers["Nats-Schedule-Time-Zone"] = self.timezone
        if self.rollup:
            headers["Nats-Schedule-Rollup"] = "sub"

    @staticmethod
    def stop_headers(subject: str) -> dict[str, str]:
        """Headers for a message that ends the schedule at ``subject`` when it is stored (2.14).

        Publish it to any other subject of the stream: to the target, to fire early, or to a subject that
        records the cancellation. With ``Expect(last_subject_seq=..., last_subject_seq_subject=subject)`` it
        is refused if the schedule has fired or changed meanwhile. To end a schedule without a message, purge
        its subject.
        """
        check_subject("subject", subject, wildcards=False)
        return {"Nats-Schedule-Next": "purge", "Nats-Scheduler": subject}

    def _pattern(self) -> str:
        if self.at is not None:
            if not isinstance(self.at, datetime):
                raise InvalidArgument("schedule.at", self.at, "must be an aware datetime")
            return f"@at {Timestamp.from_datetime(self.at, field='schedule.at').to_rfc3339()}"
        if self.every is not None:
            ns = to_nanoseconds(self.every, field="schedule.every")
            if ns < NANOS_PER_SECOND:
                raise InvalidArgument("schedule.every", self.every, "must be at least 1 second")
            seconds, rest = divmod(ns, NANOS_PER_SECOND)
            return f"@every {ns}ns" if rest else f"@every {seconds}s"
        pattern = self.cron
        if not isinstance(pattern, str):
            raise InvalidArgument("schedule.cron", pattern, "must be a str")
        fields = pattern.split()
        if pattern not in _PREDEFINED and (
            len(fields) != 6 or not all(_CRON_FIELD.fullmatch(field) for field in fields)
        ):
            raise InvalidArgument(
                "schedule.cron",
                pattern,
                "must have six fields (second minute hour day month weekday) or be one of "
                + ", ".join(sorted(_PREDEFINED)),
            )
        return " ".join(fields)


def ttl_text(ttl: float | str, *, field: str = "ttl") -> str:
    """The value of ``Nats-TTL``: whole seconds, a Go duration, or ``never``.

    Any duration of :mod:`jetspark._times` is accepted. The server refuses less than 1 second.
    """
    if isinstance(ttl, str):
        text = ttl if ttl == "never" else server_duration(ttl)
        if text is None:
            raise InvalidArgument(field, ttl, "must be seconds, a duration such as '1h30m', or 'never'")
        return text
    # The comparison refuses NaN too.
    if not is_number(ttl) or not 1 <= ttl < 1 << 62:
        raise InvalidArgument(field, ttl, "must be at least 1 second, or 'never'")
    if ttl != int(ttl):
        raise InvalidArgument(field, ttl, "must be whole seconds; the server keeps no fractions")
    return str(int(ttl))
