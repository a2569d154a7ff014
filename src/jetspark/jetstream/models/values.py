"""Durations, times and open enums: the scalar values that JetStream's JSON and Python spell differently.

On the wire a duration is an integer of nanoseconds and a time is RFC 3339 with up to nine decimals.
Python's own ``float`` and ``datetime`` can't hold either without loss, and a config that is read, changed
and written back must not change values that were not touched. So the two types here *are* a ``float`` and a
``datetime``, can be used wherever those can, and carry the exact nanoseconds as well.
"""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Self, SupportsIndex, TypeVar, overload

from jetspark._checks import is_number
from jetspark.errors import InvalidArgument, ProtocolError

NANOS_PER_SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Go serializes an unset time.Time as this.
_ZERO_TIME_PREFIX = "0001-01-01T00:00:00"
_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9})\d*)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


class Duration(float):
    """Seconds, as a ``float``, that also knows its exact nanoseconds.

    Create one with ``Duration(1.5)``, ``Duration(timedelta(minutes=2))`` or ``Duration.from_ns(1)``.
    It compares, adds and prints like the float; arithmetic returns a plain float.
    """

    __slots__ = ("ns",)

    ns: int
    """The exact length in nanoseconds, as sent on the wire."""

    def __new__(cls, value: float | timedelta) -> Self:
        return cls.from_ns(to_nanoseconds(value))

    @classmethod
    def from_ns(cls, ns: int) -> Self:
        """A duration of ``ns`` nanoseconds."""
        self = float.__new__(cls, ns / NANOS_PER_SECOND)
        self.ns = ns
        return self

    def to_timedelta(self) -> timedelta:
        """The nearest ``timedelta`` (microseconds, rounded half to even)."""
        return timedelta(microseconds=self.ns / 1000)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Duration):
            return self.ns == other.ns
        return float.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    # Equal nanoseconds give equal floats, so the float's hash stays consistent with __eq__.
    __hash__ = float.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).from_ns, (self.ns,))


def wire_number(text: str) -> int | None:
    """A number in a header or a subject: ASCII digits that fit into a uint64. None for anything else."""
    # isascii: int() would accept digits of any script, and raises its own error for very long strings.
    if not (text.isascii() and text.isdigit()) or len(text) > 20:
        return None
    number = int(text)
    return number if number < 1 << 64 else None


def to_nanoseconds(value: float | timedelta, *, field: str = "duration") -> int:
    """Exact nanoseconds of seconds or a ``timedelta``.

    A float is read as the decimal number that Python prints for it: 0.1 is 100,000,000 ns, not the
    0.1000000000000000055 that binary holds. Anything finer than a nanosecond is rounded.
    """
    if isinstance(value, Duration):
        return value.ns
    if isinstance(value, timedelta):
        return (value.days * 86_400 + value.seconds) * NANOS_PER_SECOND + value.microseconds * 1000
    if not is_number(value):
        raise InvalidArgument(field, value, "must be seconds (int or float) or a timedelta")
    if isinstance(value, int):
        ns = value * NANOS_PER_SECOND
    else:
        if value != value or value in (float("inf"), float("-inf")):
            raise InvalidArgument(field, value, "must be a finite number of seconds")
        ns = round(Decimal(repr(value)) * NANOS_PER_SECOND)
    if abs(ns) >= 1 << 63:
        raise InvalidArgument(field, value, "exceeds the 292 years that a duration on the wire can hold")
    return ns


class Timestamp(datetime):
    """A UTC ``datetime`` that keeps nanoseconds.

    Create one with :meth:`from_ns`, :meth:`from_datetime` or :meth:`parse`. Comparison is exact to the
    nanosecond, also with ordinary aware datetimes. Adding or subtracting a ``timedelta`` keeps the
    nanoseconds; ``replace`` and ``astimezone`` work on the microseconds only.
    """

    __slots__ = ("_nanos",)

    _nanos: int  # 0..999, the nanoseconds below the microsecond

    def __new__(
        cls,
        year: SupportsIndex,
        month: SupportsIndex,
        day: SupportsIndex,
        hour: SupportsIndex = 0,
        minute: SupportsIndex = 0,
        second: SupportsIndex = 0,
        microsecond: SupportsIndex = 0,
        tzinfo: tzinfo | None = UTC,
        *,
        fold: int = 0,
        nanosecond: int = 0,
    ) -> Self:
        if tzinfo is None:
            tzinfo = UTC
        self = super().__new__(cls, year, month, day, hour, minute, second, microsecond, tzinfo, fold=fold)
        self._nanos = nanosecond
        return self

    @classmethod
    def from_ns(cls, ns: int) -> Self:
        """From nanoseconds since 1970-01-01T00:00:00Z, as ack replies and headers carry them."""
        micros, nanos = divmod(ns, 1000)
        return cls._of(_EPOCH + timedelta(microseconds=micros), nanos)

    @classmethod
    def from_datetime(cls, value: datetime, *, field: str = "time") -> Self:
        """From an aware datetime in any zone. A naive one is refused, because the instant it means is
        unknown."""
        if isinstance(value, Timestamp):
            return cls._of(value, value._nanos)
        if not isinstance(value, datetime):
            raise InvalidArgument(field, value, "must be a timezone-aware datetime")
        if value.utcoffset() is None:
            raise InvalidArgument(
                field, value, "must be timezone-aware; add tzinfo, for example datetime.now(timezone.utc)"
            )
        return cls._of(value.astimezone(UTC), 0)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """From RFC 3339 with up to nine decimals; ``None`` for Go's zero time, which means "not set"."""
        match = _RFC3339.fullmatch(text)
        if match is None:
            raise ProtocolError(f"not an RFC 3339 time: {text!r:.100}")
        if text.startswith(_ZERO_TIME_PREFIX) and not (match[7] or "").strip("0"):
            return None
        fraction = (match[7] or "").ljust(9, "0")
        zone = match[8]
        try:
            year, month, day, hour, minute, second = (int(match[group]) for group in range(1, 7))
            moment = datetime(year, month, day, hour, minute, second, int(fraction[:6]), UTC)
            if zone not in "Zz":
                offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6]))
                moment = moment - offset if zone[0] == "+" else moment + offset
        except (ValueError, OverflowError) as error:
            raise ProtocolError(f"not an RFC 3339 time: {text!r:.100}: {error}") from None
        return cls._of(moment, int(fraction[6:]))

    @classmethod
    def _of(cls, utc: datetime, nanos: int) -> Self:
        return cls(
            utc.year,
            utc.month,
            utc.day,
            utc.hour,
            utc.minute,
            utc.second,
            utc.microsecond,
            UTC,
            nanosecond=nanos,
        )

    @property
    def nanosecond(self) -> int:
        """The nanoseconds below the microsecond, 0 to 999."""
        return self._nanos

    @property
    def ns(self) -> int:
        """Nanoseconds since 1970-01-01T00:00:00Z."""
        return to_nanoseconds(datetime.__sub__(self, _EPOCH)) + self._nanos

    def to_datetime(self) -> datetime:
        """A plain UTC datetime; nanoseconds below the microsecond are cut off."""
        return datetime(
            self.year,
            self.month,
            self.day,
            self.hour,
            self.minute,
            self.second,
            self.microsecond,
            self.tzinfo,
        )

    def astimezone(self, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        """The same moment in another zone, as a plain datetime."""
        return self.to_datetime().astimezone(tz)

    def to_rfc3339(self) -> str:
        """The wire form: UTC with ``Z`` and only as many decimals as needed."""
        fraction = f"{self.microsecond:06d}{self._nanos:03d}".rstrip("0")
        # strftime("%Y") does not pad years below 1000 on every platform; isoformat does.
        text = self.to_datetime().replace(microsecond=0, tzinfo=None).isoformat()
        return f"{text}.{fraction}Z" if fraction else f"{text}Z"

    def __str__(self) -> str:
        return self.to_rfc3339()

    def __repr__(self) -> str:
        return f"Timestamp({self.to_rfc3339()!r})"

    def __add__(self, other: timedelta) -> Self:
        if not isinstance(other, timedelta):
            return NotImplemented
        return self._of(datetime.__add__(self.to_datetime(), other), self._nanos)

    __radd__ = __add__

    @overload  # type: ignore[override]
    def __sub__(self, other: datetime) -> timedelta: ...
    @overload
    def __sub__(self, other: timedelta) -> Self: ...
    def __sub__(self, other: datetime | timedelta) -> timedelta | Self:
        if isinstance(other, timedelta):
            return self._of(datetime.__sub__(self.to_datetime(), other), self._nanos)
        return datetime.__sub__(self, other)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, datetime):
            return NotImplemented
        nanos = other._nanos if isinstance(other, Timestamp) else 0
        return datetime.__eq__(self, other) and self._nanos == nanos

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: datetime) -> bool:  # type: ignore[override]
        return _less(self, other, or_equal=False)

    def __le__(self, other: datetime) -> bool:  # type: ignore[override]
        return _less(self, other, or_equal=True)

    def __gt__(self, other: datetime) -> bool:  # type: ignore[override]
        return not _less(self, other, or_equal=True)

    def __ge__(self, other: datetime) -> bool:  # type: ignore[override]
        return not _less(self, other, or_equal=False)

    def __hash__(self) -> int:
        # Without nanoseconds it equals a plain datetime, so it must hash like one.
        return hash((datetime.__hash__(self), self._nanos)) if self._nanos else datetime.__hash__(self)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return (type(self).from_ns, (self.ns,))


def _less(left: Timestamp, right: datetime, *, or_equal: bool) -> bool:
    if not isinstance(right, datetime):
        raise TypeError(f"can't compare Timestamp to {type(right).__name__}")
    if datetime.__lt__(left, right):
        return True
    if not datetime.__eq__(left, right):
        return False
    nanos = right._nanos if isinstance(right, Timestamp) else 0
    return left._nanos <= nanos if or_equal else left._nanos < nanos


class OpenEnum(StrEnum):
    """A string enum that accepts values it does not know.

    A newer server may send a policy that this version has no name for. Decoding keeps it as an unnamed member
    that carries the raw string, equals it and is sent back unchanged; ``is_known`` distinguishes the two.
    """

    # Enum hashes the member's name, which breaks ``AckPolicy.ALL in {"all"}`` although they compare equal.
    __hash__ = str.__hash__

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        member = str.__new__(cls, value)
        member._name_ = value
        member._value_ = value
        return member

    @property
    def is_known(self) -> bool:
        """Whether this version of the library has a name for the value."""
        return self._value_ in type(self)._value2member_map_

    def __str__(self) -> str:
        return str(self._value_)

    def __repr__(self) -> str:
        if self.is_known:
            return f"{type(self).__name__}.{self._name_}"
        return f"{type(self).__name__}({self._value_!r})"


UNSET: Any = None
"""Default of an optional config field: not set, so the field is not sent and the server's default applies."""

E = TypeVar("E", bound=OpenEnum)

if TYPE_CHECKING:
    from collections.abc import Sequence

    # A field returns another type than it accepts: a timedelta goes in, a Duration comes out. Type
    # checkers learn that from a descriptor; at run time the fields are ordinary struct fields that the
    # model converts.
    class DurationField:
        def __get__(self, obj: object, owner: object = None) -> Duration | None: ...
        def __set__(self, obj: object, value: float | timedelta | None) -> None: ...

    class DurationListField:
        def __get__(self, obj: object, owner: object = None) -> list[Duration] | None: ...
        def __set__(self, obj: object, value: Sequence[float | timedelta] | None) -> None: ...

    class TimeField:
        def __get__(self, obj: object, owner: object = None) -> Timestamp | None: ...
        def __set__(self, obj: object, value: datetime | None) -> None: ...

    class OpenField(Generic[E]):
        def __get__(self, obj: object, owner: object = None) -> E: ...
        def __set__(self, obj: object, value: E | str) -> None: ...

    class OptionalOpenField(Generic[E]):
        def __get__(self, obj: object, owner: object = None) -> E | None: ...
        def __set__(self, obj: object, value: E | str | None) -> None: ...
else:
    DurationField = Duration | None
    DurationListField = list[Duration] | None
    TimeField = Timestamp | None

    class OpenField:
        def __class_getitem__(cls, enum):
            return enum

    class OptionalOpenField:
        def __class_getitem__(cls, enum):
            return enum | None
