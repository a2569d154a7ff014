"""Messages of a consumer on the wire, and the columns that either core reads out of them."""

from __future__ import annotations

from typing import Any

from jetspark.wire import Parser
from jetspark.wire.columns import COLUMNAR, AnyColumns, Columns, PackedColumns, join_columns

V1 = b"$JS.ACK.s.c.1.%d.7.1700000000123456789.0"
V2 = b"$JS.ACK._.hash.s.c.1.%d.7.1700000000123456789.0.token"


def refused(*arguments: Any) -> None:
    raise AssertionError("no statuses here")


def read(wire: bytes, *, compiled: bool) -> AnyColumns:
    parser = Parser(compiled=compiled)
    parser.routes["1"] = (COLUMNAR, (refused, None))
    events = parser.feed(wire)
    assert parser.error is None
    columns = [event for event in events if isinstance(event, Columns | PackedColumns)]
    assert len(columns) == len(events)
    return join_columns(columns)


def line(subject: bytes, reply: bytes, data: bytes, header: bytes | None = None) -> bytes:
    if header is None:
        return b"MSG %b 1 %b %d\r\n%b\r\n" % (subject, reply, len(data), data)
    sizes = b"%d %d" % (len(header), len(header) + len(data))
    return b"HMSG %b 1 %b %b\r\n%b%b\r\n" % (subject, reply, sizes, header, data)
