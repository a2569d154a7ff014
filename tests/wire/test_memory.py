"""What could corrupt memory in the compiled core, kept as it was found: run them under ``make sanitize``.

Without the compiled core there is nothing here that could be wrong, and the tests ask the same of Python.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

import pytest

from jetspark import AckBatch, PubAck
from jetspark.errors import InvalidArgument
from jetspark.wire import Parser, backend
from jetspark.wire._backend import speed
from jetspark.wire.columns import COLUMNAR, Columns, PackedColumns
from jetspark.wire.parser import MAX_MESSAGE, MOST_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetspark.wire._speed import Rows

REPLY = b"$JS.ACK.S.c.1.%d.7.1700000000123456789.0"


def rows_of(count: int, chunks: int = 1, *, first: int = 1) -> Rows:
    assert speed is not None
    rows: Rows = speed.Rows()
    for chunk in range(chunks):
        text = b"".join(
            b"MSG s.%d 1 %b 20\r\n%020d\r\n" % (number % 3, REPLY % number, number)
            for number in range(first + chunk * count, first + (chunk + 1) * count)
        )
        assert rows.read(text, 0, b"1", {}, 65_536, MAX_MESSAGE, True) == len(text)
    return rows


class Meddler:
    """Rubbish in a cycle, whose finalizer changes the rows that are being read."""

    said: list[str]

    def __init__(self, change: Callable[[], Any], said: list[str]) -> None:
        self.change, self.said, self.me = change, said, self

    def __del__(self) -> None:
        try:
            self.change()
            self.said.append("changed")
        except RuntimeError as error:
            self.said.append(str(error))


CONSTANTS = (bytes(4 * 5001), b"", bytes(4 * 5001))
READERS: dict[str, Callable[[Rows], Any]] = {
    "cells": lambda rows: [rows.cells(column) for column in (0, 1, 2)],
    "views": lambda rows: rows.views(),
    "pack": lambda rows: [rows.pack(0), rows.pack(2)],
    "positions": lambda rows: rows.positions(),
    "export": lambda rows: rows.export(b"nqsthv", CONSTANTS) and None,
}
CHANGES: dict[str, Callable[[Rows], Any]] = {
    "extend": lambda rows: rows.extend(rows_of(500, 3, first=100)),
    "truncate": lambda rows: rows.truncate(1),
    "read": lambda rows: rows.read(b"MSG s 1 r 1\r\nx\r\n" * 999, 0, b"1", {}, 65_536, 100, True),
    "resume": lambda rows: rows.resume([], 0, b"MSG s 1 r 1\r\nx\r\n" * 999, b"1", {}, 65_536, 100, True),
}


REFUSED = "the rows can't change while they are read"


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("reader", READERS)
def test_rows_do_not_change_while_the_collector_runs_in_a_reader(reader: str, change: str) -> None:
    if backend == "python":
        return  # lists have no room that could be too small
    expected = READERS[reader](rows_of(2, 2))
    refusals = 0
    for more in range(8):
        rows = rows_of(2, 2)
        said = meddled(rows, CHANGES[change], lambda rows=rows: READERS[reader](rows), more)  # type: ignore[misc]
        refusals += REFUSED in said
        if "changed" not in said:
            # Otherwise it came before the reader, where it may.
            assert READERS[reader](rows) == expected
            assert len(rows) == len(rows.cells(0)) == 4
    # From 3.12 on the collector does not run in the middle of a call.
    if sys.version_info < (3, 12) and reader in ("cells", "views", "export"):
        assert refusals, "the collector never ran in the reader"


def meddled(rows: Rows, change: Callable[[Rows], Any], read: Callable[[], Any], more: int) -> list[str]:
    """Read, with a collection when the reader has made ``more`` objects that the collector looks after."""
    said: list[str] = []
    limits = gc.get_threshold()
    gc.collect()
    gc.freeze()  # objects that are there already, or the collection would look at them and come earlier
    gc.disable()
    try:
        Meddler(lambda: change(rows), said)
        gc.set_threshold(gc.get_count()[0] + more)
        gc.enable()
        read()
    finally:
        gc.set_threshold(*limits)
        gc.enable()
    gc.collect()
    return said


@pytest.mark.parametrize("change", CHANGES)
def test_rows_do_not_change_while_their_acks_are_given_to_futures(change: str) -> None:
    """Callbacks of futures are code of others."""
    if backend == "python":
        return
    assert speed is not None
    rows: Rows = speed.Rows()
    text = b"".join(b'MSG i.%d 1 22\r\n{"stream":"S","seq":%d}\r\n' % (one, one) for one in range(1, 4))
    assert rows.read(text, 0, b"1", {}, 65_536, MAX_MESSAGE, False) == len(text)
    said: list[str] = []

    class Future:
        def set_result(self, ack: PubAck) -> None:
            try:
                CHANGES[change](rows)
            except RuntimeError as error:
                said.append(str(error))

    pending = {serial: (Future(),) for serial in range(1, 4)}
    assert rows.settle(2, pending, PubAck, AckBatch) == (3, 0, 3)
    assert said == [REFUSED] * 3
    assert len(rows) == 3
    CHANGES[change](rows)


@pytest.mark.parametrize(
    "limit", [0, -1, MOST_MESSAGE + 1, 1 << 31, 1 << 32, (1 << 32) + 5, 1 << 63, 1 << 64]
)
@pytest.mark.parametrize("compiled", [True, False])
def test_a_limit_that_the_core_can_not_count_is_refused(limit: int, compiled: bool) -> None:
    with pytest.raises(InvalidArgument, match="max_message="):
        Parser(max_message=limit, compiled=compiled)


@pytest.mark.parametrize(
    "limit", [-1, -(1 << 31), (1 << 31) - 1, 1 << 31, 1 << 32, (1 << 63) - 1, -(1 << 63)]
)
def test_the_core_itself_takes_no_limit_that_it_can_not_count(limit: int) -> None:
    if speed is None:
        return
    text = b"MSG s 1 r 1\r\nx\r\n"
    for limits in ((limit, 100), (100, limit)):
        with pytest.raises(ValueError, match=r"max_(line|message) must be from 0"):
            speed.Rows().read(text, 0, b"1", {}, *limits, True)
        with pytest.raises(ValueError, match=r"max_(line|message) must be from 0"):
            speed.Rows().resume([], 0, text, b"1", {}, *limits, True)
        with pytest.raises(ValueError, match=r"max_(line|message) must be from 0"):
            speed.read_run(text, 0, b"1", None, None, [], *limits)


@pytest.mark.parametrize("limit", [1 << 63, 1 << 64, -(1 << 64)])
def test_numbers_that_c_has_no_type_for(limit: int) -> None:
    if speed is None:
        return
    with pytest.raises(OverflowError):
        speed.Rows().read(b"", 0, b"1", {}, limit, 100, True)
    with pytest.raises(OverflowError):
        speed.Rows().read(b"", limit, b"1", {}, 100, 100, True)


@pytest.mark.parametrize("compiled", [True, False])
def test_declared_sizes_around_the_largest_limit(compiled: bool) -> None:
    for size in (MOST_MESSAGE, MOST_MESSAGE + 1, 1 << 31, 1 << 32, (1 << 32) + 5, 9_999_999_999):
        parser = Parser(max_message=MOST_MESSAGE, compiled=compiled)
        parser.routes["1"] = (COLUMNAR, (lambda *arguments: arguments, None))
        events = parser.feed(b"MSG s 1 r 1\r\nx\r\nMSG s 1 r %d\r\nabcde\r\n" % size)
        assert [len(event) for event in events if isinstance(event, Columns | PackedColumns)] == [1]
        assert (parser.error is None) == (size <= MOST_MESSAGE)


def test_what_is_held_must_be_plain_bytes() -> None:
    if speed is None:
        return

    class Lying(bytes):
        def __len__(self) -> int:
            return 3

    for held in (Lying(b"MSG s 1 r 1\r\n"), [1], "MSG", None):
        with pytest.raises(TypeError, match="held"):
            speed.Rows().resume([held], 16, b"x\r\n", b"1", {}, 100, 100, True)
