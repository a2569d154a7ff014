"""What a fuzzer does with the wire parser: the target, what it starts from, and a plain mutator.

Run as a program it is atheris' target: ``python tests/support/parser_fuzz.py -runs=1000 FOLDER``, with any
option of libFuzzer. The target takes every backend of the parser that is here and holds them to the same
promises:

- nothing but ProtocolError comes out, and a parser that gave up stays so and keeps no bytes;
- how the bytes are cut never changes what is parsed;
- all backends say the same.

The first byte of an input decides what the subscriptions want, the second how the rest is cut.
"""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from random import Random

try:
    import atheris
except ImportError:  # no wheel for this Python or platform: the plain fuzz works without
    atheris = None


def _watched() -> contextlib.AbstractContextManager[Any]:
    """Only jetspark.wire tells the fuzzer where it has been; atheris takes the packages around it along."""
    if atheris is None or __name__ != "__main__":
        return contextlib.nullcontext()
    source = Path(__file__).parents[2] / "src" / "jetspark"
    around = [f"jetspark.{path.stem}" for path in source.iterdir() if path.stem not in ("wire", "__init__")]
    return atheris.instrument_imports(include=["jetspark.wire"], exclude=around)


with _watched():
    import jetspark.wire
    from jetspark.errors import InvalidArgument, ProtocolError
    from jetspark.wire.columns import COLUMNAR, AnyColumns, join_columns
    from jetspark.wire.headers import decode_headers, decode_status, encode_headers
    from jetspark.wire.parser import Messages, Parser


class Backend(NamedTuple):
    """One implementation of the parser."""

    name: str
    parser: Callable[[], Parser]


def backends() -> list[Backend]:
    """The backend in use, and the pure one beside a compiled one."""
    found = [Backend(jetspark.wire.backend, Parser)]
    if jetspark.wire.backend != "python":
        found.append(Backend("python", partial(Parser, compiled=False)))
    return found


def _message(subject: str, reply: str, data: bytes, header: bytes | None, owner: Any) -> tuple[Any, ...]:
    return (owner, subject, reply, data, header)


class Seen(NamedTuple):
    """What came of a stream, free of how it was cut into chunks and runs."""

    items: list[Any]
    wire_bytes: dict[str, int]
    error: str
    held: int


def play(backend: Backend, chunks: Iterable[bytes], wish: int = 0, *, thorough: bool = True) -> Seen:
    """Feed the chunks as a connection would. ``wish``: which of the sids 1 and 2 want columns.

    ``thorough``: look at everything that columns can do.
    """
    parser = backend.parser()
    for bit, sid in ((1, "1"), (2, "2")):
        parser.routes[sid] = (COLUMNAR, (_message, sid)) if wish & bit else (_message, sid)
    items: list[Any] = []
    wire_bytes: dict[str, int] = {}
    columns: dict[str, list[AnyColumns]] = {}
    raised: ProtocolError | None = None
    try:
        for chunk in chunks:
            for event in parser.feed(chunk):
                if isinstance(event, Messages):
                    assert event.items, "an empty run"
                    items += event.items
                    wire_bytes[event.sid] = wire_bytes.get(event.sid, 0) + event.nbytes
                elif isinstance(event, AnyColumns):
                    items += rows_of(event)
                    wire_bytes[event.sid] = wire_bytes.get(event.sid, 0) + event.nbytes
                    if thorough:
                        columns.setdefault(event.sid, []).append(event)
                else:
                    items.append(repr(event))
    except ProtocolError as error:
        raised = error
    if thorough:
        for parts in columns.values():
            check_join(parts)
    if parser.error is not None:
        assert raised is None or raised is parser.error, "raised one error and kept another"
        assert parser.held == 0, "a parser that gave up keeps bytes"
        try:
            parser.feed(b"PING\r\n")
        except ProtocolError as error:
            raised = error
        assert raised is parser.error, "a parser that gave up goes on"
    else:
        assert raised is None, "raised and not kept"
    return Seen(items, wire_bytes, str(parser.error), parser.held)


def rows_of(columns: AnyColumns) -> list[tuple[Any, ...]]:
    """The rows, in the shape of messages; their bytes stay bytes."""
    sid, header, count = columns.sid, columns.headers.get, len(columns)
    cells = zip(columns.subjects, columns.replies, columns.payloads, strict=True)
    rows = [(sid, subject, reply, data, header(row)) for row, (subject, reply, data) in enumerate(cells)]
    assert len(rows) == count > 0, "ragged columns"
    return rows


def check_join(parts: list[AnyColumns]) -> None:
    """Joining and shortening columns keeps the rows that should stay."""
    rows = [row for part in parts for row in rows_of(part)]
    joined = join_columns(parts)
    assert rows_of(joined) == rows, "joining changed the rows"
    assert joined.reply(len(rows) - 1) == joined.reply(-1) == rows[-1][2]
    assert joined.size == sum(len(s) + len(r) + len(d) + len(h or b"") for _, s, r, d, h in rows)
    assert all(0 <= row < len(rows) for row in joined.headers), "a header without a row"
    keep = (len(rows) + 1) // 2
    joined.truncate(keep)
    assert rows_of(joined) == rows[:keep], "shortening changed the rows"


def read_headers(block: bytes) -> None:
    """A header block can be read or is refused; what was read can be sent on or is refused."""
    with contextlib.suppress(ProtocolError):
        decode_status(block)
    try:
        headers = decode_headers(block)
    except ProtocolError:
        return
    # What would make two headers of one must be refused.
    with contextlib.suppress(InvalidArgument):
        assert decode_headers(encode_headers(headers)).items() == headers.items()


def cut(wire: bytes, how: int) -> list[bytes]:
    """The bytes in chunks of ``how`` bytes."""
    how = max(1, how)
    return [wire[start : start + how] for start in range(0, len(wire), how)]


def make_target() -> Callable[[bytes], None]:
    """The function that the fuzzer calls with each input."""
    first, *others = backends()

    def target(data: bytes) -> None:
        wish, how, wire = (data[0], data[1], data[2:]) if len(data) > 1 else (0, 0, data)
        # Every promise costs its time, so each is checked on some of the inputs.
        lot = crc32(data)
        thorough = not lot & 7
        whole = play(first, [wire], wish, thorough=thorough)
        if lot & 32:
            for other in others:
                seen = play(other, [wire], wish, thorough=thorough)
                assert seen == whole, f"{other.name} and {first.name} differ: {seen} {whole}"
        if thorough:
            for backend in (first, *others):
                parts = play(backend, cut(wire, how & 31), wish)
                assert parts == whole, f"{backend.name}: cut {parts}, whole {whole}"
        for item in whole.items:
            if type(item) is tuple and item[4] is not None:
                read_headers(item[4])

    return target


WIRE_SEEDS = [
    b"PING\r\nPONG\r\n+OK\r\n-ERR 'Stale Connection'\r\n",
    b'INFO {"server_id":"A","max_payload":1048576,"connect_urls":["a:1","b:2"],"nonce":"x","ldm":true} \r\n',
    b"MSG a 1 5\r\nhello\r\nMSG a.b 1 reply 0\r\n\r\nMSG c 2 2\r\n\r\n\r\n",
    b"MSG a 1 r 2\r\nab\r\nMSG b 1 r 3\r\nabc\r\nMSG c 1 r 10\r\n0123456789\r\nMSG d 1 1\r\nx\r\n",
    b"HMSG a 1 12 17\r\nNATS/1.0\r\n\r\nhello\r\nHMSG a 2 r 22 22\r\nNATS/1.0\r\nA: b\r\nA:c\r\n\r\n\r\n",
    b"HMSG a 1 r 18 20\r\nNATS/1.0\r\nA: b\r\n\r\nok\r\nMSG a 1 r 1\r\nx\r\n"
    b"HMSG a 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
    b"HMSG a 1 30 30\r\nNATS/1.0 409 Message Size Ex\r\n\r\n",
    b"HMSG a 1 81 81\r\nNATS/1.0 100 Idle Heartbeat\r\n"
    b"Nats-Last-Consumer: 1\r\nNats-Last-Stream: 12\r\n\r\n\r\n",
    b"MSG a 404 3\r\nabc\r\nMSG a 1 3\r\nabc\r\nMSG a 404 0\r\n\r\n",
    b"MSG a 1 99999999999\r\n",
    b"MSG a 1 -1\r\n\r\nHMSG a 1 9 3\r\nabc\r\n",
    b"MSG \xff\xfe 1 r\xc3\xa9 4\r\n\xf0\x9f\x9a\x80\r\n",
    b"MSG a  1 1\r\nx\r\n\nPING\r",
    b"ping\r\npOnG\r\n+ok\r\n-err x\r\n",
    b"HMSG a 1 r 0 0\r\n\r\nHMSG a 1 r 0 1\r\nx\r\n",
    b"MSG a 1 r 134217729\r\n",
    b"INFO [[[[[[[[[[\r\n",
    b"MSG a 1 0\r\n\r\nPING\r\nMSG b  x 2\r\nno\r\n",
    b"HMSG a 2 r 14 14\r\nNATS/1.0\r\n: \r\n\r\n",
]
SEEDS = [bytes([wish, how]) + wire for wire in WIRE_SEEDS for wish in (0, 3) for how in (1, 7)]

WORDS = [
    *(
        b"MSG ",
        b"HMSG ",
        b"PING\r\n",
        b"PONG\r\n",
        b"+OK\r\n",
        b"-ERR ",
        b"INFO {",
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
    ),
    *(
        b"9999999999",
        b"134217728",
        b"134217729",
        b"18446744073709551616",
        b"\xc2\xb2",
        b"\xd9\xa1",
        b"\x00",
        b"\xff",
        b"\t",
    ),
]


def dictionary() -> str:
    """The words in libFuzzer's form."""
    return "".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in WORDS)


def mutations(chance: Random) -> Iterator[bytes]:
    """Seeds spliced and hurt without end, for where atheris is not."""
    while True:
        data = bytearray(chance.choice(SEEDS))
        for _ in range(chance.randint(0, 3)):
            other = chance.choice(SEEDS)
            data[chance.randint(0, len(data)) :] = other[chance.randint(0, len(other)) :]
        for _ in range(chance.randint(0, 6)):
            at = chance.randint(0, len(data))
            match chance.randrange(4):
                case 0:
                    data[at:at] = chance.choice(WORDS)
                case 1:
                    data[at : at + 1] = chance.randbytes(1)
                case 2:
                    del data[at : at + chance.randint(1, 8)]
                case 3:
                    data[at:at] = data[max(0, at - chance.randint(1, 30)) : at]
        yield bytes(data)


def main() -> None:
    atheris.Setup(sys.argv, make_target())
    atheris.Fuzz()


if __name__ == "__main__":
    main()
