"""Record batches that the compiled core hands to Arrow whole: what they say, and how long they live.

That any rows give the batch that the Python loop gives is ``test_compiled``; here are the choices of
columns, the rows that need another way, and the memory.
"""

from __future__ import annotations

import gc
import itertools
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jetspark.arrow import SCHEMA, to_record_batch
from jetspark.wire._backend import speed
from jetspark.wire.columns import PackedColumns, join_columns
from support import columns_wire
from support.columns_wire import V1, line, read

CHOICES = [list(names) for size in (1, 2) for names in itertools.permutations(SCHEMA.names, size)]
CHOICES += [SCHEMA.names, SCHEMA.names[::-1], ["headers", "data", "headers", "data"], []]


def some_rows(count: int = 40, seed: int = 0, subjects: int = 3) -> bytes:
    rng = random.Random(seed)
    return b"".join(
        line(b"s.%d" % rng.randrange(subjects), V1 % (row + 1), rng.randbytes(rng.randrange(40)))
        for row in range(count)
    )


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("names", CHOICES, ids=",".join)
def test_any_choice_of_columns_is_what_python_makes(names: list[str], views: bool) -> None:
    wire = some_rows()
    batch = to_record_batch(read(wire, compiled=True), names, "S", views=views)
    batch.validate(full=True)
    assert batch.schema.names == names
    assert batch == to_record_batch(read(wire, compiled=False), names, "S", views=views)


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize(
    "odd",
    [
        line("größe".encode(), V1 % 9, b"x"),
        line(b"\xff", V1 % 9, b"x"),
        line(b"a", b"$JS.ACK.s.c.1.9.7.9223372036854775807.0", b"x"),
        line(b"a", V1 % 9, b"x", b"NATS/1.0\r\nA: b\r\n\r\n"),
    ],
    ids=["UTF-8", "no UTF-8", "time", "headers"],
)
@pytest.mark.parametrize("place", ["first", "last"])
def test_rows_that_need_another_way_get_it(odd: bytes, place: str, views: bool) -> None:
    wire = odd + some_rows(3) if place == "first" else some_rows(3) + odd
    batch = to_record_batch(read(wire, compiled=True), SCHEMA.names, "S", views=views)
    batch.validate(full=True)
    assert batch == to_record_batch(read(wire, compiled=False), SCHEMA.names, "S", views=views)


@pytest.mark.parametrize("subjects", [[b"a"], [b"a", b"b"], [b"a", b"ab"], [b"ab", b"a", b"ab"], [b"", b"a"]])
def test_subjects_alike_and_different_in_many_chunks(subjects: list[bytes]) -> None:
    """A column of one subject is made without a look at the rows; one chunk may differ from the next."""
    wires = [line(b"x" + one, V1 % 1, b"d") * 3 for one in subjects]
    joined = join_columns([read(wire, compiled=True) for wire in wires])
    batch = to_record_batch(joined, ["subject"], "S")
    assert batch.column(0).to_pylist() == [f"x{one.decode()}" for one in subjects for _ in range(3)]
    joined.truncate(2)
    assert to_record_batch(joined, ["subject"], "S").column(0).to_pylist() == [f"x{subjects[0].decode()}"] * 2


def test_a_batch_outlives_its_rows_and_a_column_its_batch() -> None:
    wire = bytes(bytearray(some_rows(200)))
    expected = to_record_batch(read(wire, compiled=False), SCHEMA.names, "S", views=True).to_pydict()
    columns = read(bytes(bytearray(wire)), compiled=True)
    batch = to_record_batch(columns, SCHEMA.names, "S", views=True)
    del columns
    gc.collect()
    noise = [bytes(len(wire)) for _ in range(50)]
    assert batch.to_pydict() == expected
    column, part = batch.column("data"), batch.slice(50, 20)
    del batch
    gc.collect()
    noise += [b"\xff" * len(wire) for _ in range(50)]
    assert column.to_pylist() == expected["data"]
    assert part.column("subject").to_pylist() == expected["subject"][50:70]
    assert noise


def rows_of(chunk: bytes) -> PackedColumns:
    assert speed is not None
    rows = speed.Rows()
    assert rows.read(chunk, 0, b"1", {}, 65_536, 1_048_576, True) == len(chunk)
    return PackedColumns("1", rows, {}, len(chunk))


def dropped_in_a_thread(held: list[Any]) -> None:
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()


if speed is not None:

    @pytest.mark.parametrize("drop", [list.clear, dropped_in_a_thread], ids=["here", "in a thread"])
    def test_the_last_reference_lets_the_chunk_go(drop: Any) -> None:
        chunk = some_rows()
        alone = sys.getrefcount(chunk)
        held: list[Any] = [to_record_batch(rows_of(chunk), SCHEMA.names, "S", views=True)]
        held.append(held[0].column("data"))
        held.pop(0)
        assert sys.getrefcount(chunk) == alone + 1, "the column needs it"
        drop(held)
        assert sys.getrefcount(chunk) == alone

    def test_what_nobody_takes_over_is_let_go() -> None:
        chunk = some_rows()
        constants = (bytes(4 * 41), b"", bytes(4 * 41))
        alone = sys.getrefcount(chunk), sys.getrefcount(constants)
        rows = rows_of(chunk).rows
        for _ in range(3):
            assert rows.export(b"nqsthv", constants)
        assert sys.getrefcount(constants) == alone[1] + 1, "only the last one holds on to it"
        del rows
        assert (sys.getrefcount(chunk), sys.getrefcount(constants)) == alone

    def test_many_batches_leave_nothing_behind() -> None:
        chunk = some_rows(5_000)
        columns = rows_of(chunk)
        for views in (False, True):
            to_record_batch(columns, SCHEMA.names, "S", views=views)
        before, references = pa.total_allocated_bytes(), sys.getrefcount(chunk)
        blocks = sys.getallocatedblocks()
        for _ in range(500):
            to_record_batch(columns, SCHEMA.names, "S", views=True)
        assert (pa.total_allocated_bytes(), sys.getrefcount(chunk)) == (before, references)
        assert sys.getallocatedblocks() - blocks < 100

    @pytest.mark.parametrize(
        ("kinds", "constants", "error"),
        [
            (b"x", (bytes(164), b"", bytes(164)), ValueError),
            (b"", (bytes(164), b"", bytes(164)), TypeError),
            (b"qqqqqqq", (bytes(164), b"", bytes(164)), TypeError),
            ("q", (bytes(164), b"", bytes(164)), TypeError),
            (b"q", (bytes(164), b""), TypeError),
            (b"q", [bytes(164), b"", bytes(164)], TypeError),
            (b"n", (bytes(160), b"", bytes(164)), ValueError),
            (b"h", (bytes(164), b"", bytes(160)), ValueError),
            (b"q", (bytes(164), None, bytes(164)), TypeError),
        ],
    )
    def test_what_makes_no_sense_is_refused(kinds: Any, constants: Any, error: type[Exception]) -> None:
        with pytest.raises(error):
            rows_of(some_rows(40)).rows.export(kinds, constants)

    @pytest.mark.parametrize("kinds", [b"hhh", b"vv", b"dv", b"qtq", b"nn"])
    def test_a_column_that_is_wanted_twice_needs_another_way(kinds: bytes) -> None:
        rows = rows_of(some_rows(40)).rows
        for _ in range(40):
            rows.extend(rows_of(some_rows(1)).rows)
        assert rows.export(kinds, (bytes(400), b"", bytes(400))) == 0

    @pytest.mark.slow
    def test_pandas_is_not_imported_for_a_batch() -> None:
        """Where it is installed, pyarrow imports it to look at Python values, which takes its time."""
        script = (
            "import sys; sys.path.insert(0, sys.argv[1]); from support.columns_wire import V1, line, read\n"
            "from jetspark.arrow import SCHEMA, to_record_batch\n"
            "to_record_batch(read(line(b'a', V1 % 1, b'x'), compiled=True), SCHEMA.names, 'S')\n"
            "print('pandas' in sys.modules)\n"
            "import pyarrow; pyarrow.scalar('x'); print('pandas' in sys.modules)\n"
        )
        command = [sys.executable, "-c", script, str(Path(columns_wire.__file__).parents[1])]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
        assert said == ["False", "True"], "by our batch, and by a look at a value"
