"""Message headers (ADR-4): ordered, multi-valued, case preserved, looked up case-insensitively.

Every header block that is sent is a :class:`HeaderBlock`. Only this module makes them, from lines that
:func:`_lines` has checked, so no value can become a second header.

What may be in a header: ADR-4 takes a value from RFC 822, "any ASCII characters, except CR or LF", and the
server stores every other byte as it is. So CR and LF are refused, and a value may contain NUL, a colon or any
other text that can be written as UTF-8. A name must be a token: a colon, a blank or a control character would
end it early.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from jetspark.errors import InvalidArgument, ProtocolError

VERSION_LINE = b"NATS/1.0"
# A sender that repeats a one-letter header could make a megabyte of input cost many megabytes of objects.
MAX_HEADERS = 4096

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class Headers:
    """The headers of one message.

    ``headers["Name"]`` is the first value, ``get_all`` returns all of them, ``items`` every pair in order.
    Names keep the case they were written in and are looked up case-insensitively. As ADR-4 says, blanks
    around a value are not part of it. An instance without pairs is falsy.
    """

    __slots__ = ("_pairs",)

    def __init__(
        self,
        initial: Headers | Mapping[str, str | Sequence[str]] | Iterable[tuple[str, str]] | None = None,
    ) -> None:
        self._pairs: list[tuple[str, str]] = []
        if initial is None:
            return
        if isinstance(initial, Headers):
            self._pairs = list(initial._pairs)
            return
        if isinstance(initial, str | bytes) or not isinstance(initial, Iterable):
            raise InvalidArgument(
                "headers", initial, "must be a mapping of names to values, or an iterable of pairs"
            )
        for pair in initial.items() if isinstance(initial, Mapping) else initial:
            try:
                name, value = pair
            except (TypeError, ValueError):
                raise InvalidArgument("headers", pair, "must be a pair of a name and a value") from None
            if isinstance(value, str | bytes) or not isinstance(value, Iterable):
                self.add(name, value)  # type: ignore[arg-type]  # add refuses what is not a str
            else:
                for one in value:
                    self.add(name, one)

    def add(self, name: str, value: str) -> None:
        """Append a value; existing values of this name stay."""
        _check_pair(name, value)
        self._pairs.append((name, value.strip(" \t")))

    def get(self, name: str, default: str | None = None) -> str | None:
        """The first value of this name, or the default."""
        wanted = name.lower()
        for key, value in self._pairs:
            if key == name or key.lower() == wanted:
                return value
        return default

    def get_all(self, name: str) -> list[str]:
        """All values of this name, in order; empty if there are none."""
        wanted = name.lower()
        return [value for key, value in self._pairs if key.lower() == wanted]

    def items(self) -> list[tuple[str, str]]:
        """Every pair in order, repeated names included."""
        return list(self._pairs)

    def keys(self) -> list[str]:
        """Each name once, in order of first appearance and in its first spelling."""
        seen: dict[str, str] = {}
        for key, _ in self._pairs:
            seen.setdefault(key.lower(), key)
        return list(seen.values())

    def to_dict(self) -> dict[str, list[str]]:
        """A plain dict of lists, one entry per name."""
        return {name: self.get_all(name) for name in self.keys()}

    def __getitem__(self, name: str) -> str:
        value = self.get(name)
        if value is None:
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: str) -> None:
        _check_pair(name, value)
        if self._pairs:
            wanted = name.lower()
            self._pairs = [pair for pair in self._pairs if pair[0].lower() != wanted]
        self._pairs.append((name, value.strip(" \t")))

    def __delitem__(self, name: str) -> None:
        wanted = name.lower()
        kept = [pair for pair in self._pairs if pair[0].lower() != wanted]
        if len(kept) == len(self._pairs):
            raise KeyError(name)
        self._pairs = kept

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Headers):
            return self._pairs == other._pairs
        if isinstance(other, Mapping):
            return self._pairs == Headers(other)._pairs
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Headers({self._pairs!r})"


@lru_cache(maxsize=1024)
def _is_token(name: str) -> bool:
    # Names repeat in every message, and checking one costs as much as everything else.
    return _TOKEN.fullmatch(name) is not None


def _check_pair(name: str, value: str) -> None:
    if not isinstance(name, str) or not _is_token(name):
        raise InvalidArgument(
            "header name",
            name,
            "must be a token: letters, digits and !#$%&'*+-.^_`|~ only, not empty",
        )
    if not isinstance(value, str):
        raise InvalidArgument(
            "header value",
            value,
            f"of {name!r} must be a str, not {type(value).__name__}; convert it first",
        )
    if "\r" in value or "\n" in value:
        raise InvalidArgument("header value", value, f"of {name!r} must not contain CR or LF")


class HeaderBlock(bytes):
    """A header block as HPUB takes it, including the closing blank line; its lines were checked."""

    __slots__ = ()


def _lines(pairs: Sequence[tuple[str, str]]) -> bytes:
    """The one place where headers become bytes. Nothing in a pair can start another line."""
    # No f-string: it writes the member of a string enum as its name.
    text = "".join([name + ": " + value + "\r\n" for name, value in pairs])
    # Pairs that were received, not added, are unchecked: one with a lone CR or LF would become two headers.
    if text.count("\n") != len(pairs) or text.count("\r") != len(pairs):
        for name, value in pairs:
            _check_pair(name, value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Name only the culprit: the other headers do not belong in an error text.
        bad = next(pair for pair in pairs if any("\ud800" <= char <= "\udfff" for char in "".join(pair)))
    raise InvalidArgument("header value", bad[1], f"of {bad[0]!r} must be encodable as UTF-8")


def trusted_headers(pairs: list[tuple[str, str]]) -> Headers:
    """Headers from pairs that need no check: our own, or those of stored messages."""
    headers = Headers()
    headers._pairs = pairs
    return headers


def encode_headers(
    headers: Headers | Mapping[str, str | Sequence[str]] | Iterable[tuple[str, str]],
) -> HeaderBlock:
    """The header block for HPUB, including its closing blank line."""
    pairs = (headers if isinstance(headers, Headers) else Headers(headers))._pairs
    return HeaderBlock(b"NATS/1.0\r\n" + _lines(pairs) + b"\r\n")


def extend_block(block: HeaderBlock, *pairs: tuple[str, str]) -> HeaderBlock:
    """The block with more headers appended."""
    return HeaderBlock(block[:-2] + _lines(pairs) + b"\r\n")


def encode_column(
    name: str, values: Sequence[bytes], rest: Sequence[tuple[str, str]] = ()
) -> list[HeaderBlock]:
    """One block for each value of a header, with the same headers after it. Values must not have blanks
    around them; all are checked for line breaks at once.
    """
    joined = b"".join(values)
    if b"\r" in joined or b"\n" in joined:
        for value in values:
            _check_pair(name, value.decode("utf-8", "surrogateescape"))
    head, tail = b"NATS/1.0\r\n" + _lines([(name, "")])[:-2], b"\r\n" + _lines(rest) + b"\r\n"
    return [HeaderBlock(head + value + tail) for value in values]


def decode_headers(block: bytes) -> Headers:
    """The pairs of a received header block; its status line is read by :func:`decode_status`."""
    headers = Headers()
    # One line break per header, one after the first line, and one that closes the block.
    if block.count(b"\r\n") > MAX_HEADERS + 2:
        raise ProtocolError(f"message has more than {MAX_HEADERS} headers")
    # surrogateescape: a header that is not UTF-8 must not cost the message or its other headers.
    lines = block.decode("utf-8", "surrogateescape").split("\r\n")
    if not lines[0].startswith("NATS/1.0"):
        raise ProtocolError(f"header block starts with {lines[0][:32]!r}, not with NATS/1.0")
    pairs = headers._pairs
    for line in lines[1:]:
        if not line:
            continue
        name, colon, value = line.partition(":")
        if not colon or not name:
            raise ProtocolError(f"header line without a name and colon: {line[:64]!r}")
        pairs.append((name, value.strip(" \t")))
    return headers


def decode_status(block: bytes) -> tuple[int, str] | None:
    """Code and description of the status line (``NATS/1.0 503 No Responders``), None without one."""
    if block[8:9] != b" ":
        return None
    line = block[9:].partition(b"\r\n")[0].decode("utf-8", "replace").strip()
    if not line:
        return None
    code, _, description = line.partition(" ")
    if not (code.isascii() and code.isdigit()) or len(code) > 4:
        raise ProtocolError(f"status line with a code that is no number: {line[:64]!r}")
    return int(code), description.strip()
