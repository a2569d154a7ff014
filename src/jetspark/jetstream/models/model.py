"""The base of every JetStream config and info: a frozen struct that loses nothing between wire and Python.

Theory of operation. Attributes have the names of the JSON fields, so they can be compared directly with the
server's documentation, other tools and raw API responses. ``None`` means "not set": the field is not sent.
Each class gets two tables from its annotations, built once. One converts what a caller passes (a
``timedelta``, a tuple, a plain string for an enum), the other what the server sent. Fields that the class
does not know go to ``extra`` at every level and are written back by :meth:`Model.to_wire`, so an update
sent by an old client does not remove what a newer server had stored.
"""

import types
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

import msgspec

from jetspark.errors import InvalidArgument, ProtocolError
from jetspark.jetstream.models.field_docs import show_field_docs
from jetspark.jetstream.models.values import Duration, OpenEnum, Timestamp, to_nanoseconds

Convert = Callable[[Any, str], Any]


class Model(msgspec.Struct, kw_only=True, frozen=True, repr_omit_defaults=True):
    """Base of all configs and infos. Change one with :meth:`replace`; instances themselves are immutable."""

    extra: dict[str, Any] = {}
    """Fields of the JSON object that this version of the library does not know, as the server sent them.
    They are sent back on update. May be passed to use a server feature before the library has a name for
    it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        show_field_docs(cls)

    def __post_init__(self) -> None:
        for name, convert in _tables(type(self))[0].items():
            value = getattr(self, name)
            if value is not None:
                converted = convert(value, name)
                if converted is not value:
                    msgspec.structs.force_setattr(self, name, converted)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any] | bytes) -> Self:
        """From a decoded JSON object, or from the JSON itself."""
        if isinstance(data, bytes | bytearray | memoryview):
            try:
                data = msgspec.json.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ProtocolError(f"{cls.__name__}: not valid JSON: {error}") from None
        if not isinstance(data, Mapping):
            raise ProtocolError(f"{cls.__name__}: expected a JSON object, got {type(data).__name__}")
        known: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        decoders = _tables(cls)[1]
        for name, value in data.items():
            decode = decoders.get(name)
            if decode is None:
                extra[name] = value
            elif value is not None:
                known[name] = decode(value, f"{cls.__name__}.{name}")
        try:
            return cls(**known, extra=extra)
        except TypeError as error:
            # A required field is missing; the struct's own message names it.
            raise ProtocolError(f"{cls.__name__}: {error}") from None

    def to_wire(self) -> dict[str, Any]:
        """The JSON object: only fields that are set, durations in nanoseconds, times in RFC 3339, unknown
        fields merged in."""
        wire: dict[str, Any] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name != "extra" and value is not None:
                wire[name] = _to_wire(value)
        for name, value in self.extra.items():
            wire.setdefault(name, value)
        return wire

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed; ``None`` unsets one."""
        unknown = [name for name in changes if name not in self.__struct_fields__]
        if unknown:
            raise InvalidArgument(unknown[0], changes[unknown[0]], f"{type(self).__name__} has no such field")
        current = {name: getattr(self, name) for name in self.__struct_fields__}
        return type(self)(**{**current, **changes})


def _to_wire(value: Any) -> Any:
    if isinstance(value, Model):
        return value.to_wire()
    if isinstance(value, Duration):
        return value.ns
    if isinstance(value, Timestamp):
        return value.to_rfc3339()
    if isinstance(value, OpenEnum):
        return value.value
    if isinstance(value, list):
        return [_to_wire(item) for item in value]
    if isinstance(value, dict):
        return {key: _to_wire(item) for key, item in value.items()}
    return value


@cache
def _tables(cls: type[Model]) -> tuple[dict[str, Convert], dict[str, Convert]]:
    hints = get_type_hints(cls)
    fields = [name for name in cls.__struct_fields__ if name != "extra"]
    accept = {name: _acceptor(hints[name]) for name in fields}
    accept["extra"] = _accept_extra
    return accept, {name: _decoder(hints[name]) for name in fields}


def _plain(hint: Any) -> Any:
    """The hint without ``None``."""
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (arg for arg in get_args(hint) if arg is not type(None))
    return hint


def _accept_extra(value: Any, field: str) -> Any:
    if not isinstance(value, Mapping):
        raise InvalidArgument(field, value, "must be a mapping of JSON field names to values")
    return value


# --- what callers pass ------------------------------------------------------------------------------------


def _acceptor(hint: Any) -> Convert:
    hint = _plain(hint)
    origin = get_origin(hint)
    if origin is list:
        return _accept_list(_acceptor(get_args(hint)[0]))
    if origin is dict:
        return _accept_dict(_acceptor(get_args(hint)[1]))
    if hint is Any:
        return lambda value, field: value
    if hint is Duration:
        return _accept_duration
    if hint is Timestamp:
        return _accept_time
    if issubclass(hint, OpenEnum):
        return _accept_enum(hint)
    return _accept_type(hint)


def _accept_list(item: Convert) -> Convert:
    def accept(value: Any, field: str) -> Any:
        # A lone string is iterable too: subjects="a.b" would become ["a", ".", "b"].
        if not isinstance(value, list | tuple):
            raise InvalidArgument(field, value, "must be a list or tuple")
        return [item(element, f"{field}[{index}]") for index, element in enumerate(value)]

    return accept


def _accept_dict(item: Convert) -> Convert:
    def accept(value: Any, field: str) -> Any:
        if not isinstance(value, Mapping):
            raise InvalidArgument(field, value, "must be a mapping")
        for key in value:
            if not isinstance(key, str):
                raise InvalidArgument(field, value, f"keys must be strings, not {type(key).__name__}")
        return {key: item(element, f"{field}[{key!r}]") for key, element in value.items()}

    return accept


def _accept_duration(value: Any, field: str) -> Any:
    return value if isinstance(value, Duration) else Duration.from_ns(to_nanoseconds(value, field=field))


def _accept_time(value: Any, field: str) -> Any:
    if not isinstance(value, datetime):
        raise InvalidArgument(field, value, "must be a timezone-aware datetime")
    return value if isinstance(value, Timestamp) else Timestamp.from_datetime(value, field=field)


def _accept_enum(enum: type[OpenEnum]) -> Convert:
    def accept(value: Any, field: str) -> Any:
        if isinstance(value, enum):
            return value
        # A member of another enum is a str as well; taking it would hide a mix-up.
        if not isinstance(value, str) or isinstance(value, OpenEnum):
            raise InvalidArgument(field, value, f"must be a {enum.__name__} or a string")
        return enum(value)

    return accept


def _accept_type(kind: type) -> Convert:
    def accept(value: Any, field: str) -> Any:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise InvalidArgument(
                field, value, f"must be of type {kind.__name__}, not {type(value).__name__}"
            )
        return value

    return accept


# --- what the server sent ---------------------------------------------------------------------------------


def _decoder(hint: Any) -> Convert:
    hint = _plain(hint)
    origin = get_origin(hint)
    if origin is list:
        return _decode_list(_decoder(get_args(hint)[0]))
    if origin is dict:
        return _decode_dict(_decoder(get_args(hint)[1]))
    if hint is Any:
        return lambda value, where: value
    if hint is Duration:
        return lambda value, where: Duration.from_ns(_checked(value, int, where, (1 << 63) - 1))
    if hint is Timestamp:
        return lambda value, where: Timestamp.parse(_checked(value, str, where))
    if issubclass(hint, OpenEnum):
        enum = hint
        return lambda value, where: enum(_checked(value, str, where))
    if issubclass(hint, Model):
        return _decode_model(hint)
    kind: type = hint
    return lambda value, where: _checked(value, kind, where)


def _checked(value: Any, kind: type, where: str, most: int = (1 << 64) - 1) -> Any:
    """The value if it has the right type; an integer must fit into 64 bits, as JSON integers have any
    size."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ProtocolError(f"{where}: expected {kind.__name__}, got {value!r:.100}")
    if isinstance(value, int) and not -(1 << 63) <= value <= most:
        raise ProtocolError(f"{where}: {value!r:.50} does not fit 64 bits")
    return value


def _decode_model(model: type[Model]) -> Convert:
    def decode(value: Any, where: str) -> Any:
        return model.from_wire(_checked(value, dict, where))

    return decode


def _decode_list(item: Convert) -> Convert:
    def decode(value: Any, where: str) -> Any:
        return [item(element, where) for element in _checked(value, list, where)]

    return decode


def _decode_dict(item: Convert) -> Convert:
    def decode(value: Any, where: str) -> Any:
        return {key: item(element, where) for key, element in _checked(value, dict, where).items()}

    return decode
