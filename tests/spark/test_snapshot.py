"""``startingPosition=last-per-subject`` on a stream that is written to: every key once, of one moment."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from jetspark import RetentionPolicy, StreamConfig, blocking
from jetspark.spark.source import snapshot
from jetspark.spark.source.claims import seen_of
from jetspark.spark.source.data_loss import DataLossError, identity
from jetspark.spark.source.planning import Range
from jetspark.spark.source.range_reader import RangeReader
from support.helpers import three_nodes, unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEYS = 40
COLUMNS = pa.schema([("data", pa.binary())])


class Values:
    """A stream of values by key, and what its history is."""

    def __init__(self, js: blocking.JetStream) -> None:
        self.js = js
        self.name = unique("V")
        self.history: dict[str, list[tuple[int, bytes]]] = {}

    def make(self, **config: Any) -> None:
        self.stream = self.js.create_stream(
            StreamConfig(name=self.name, subjects=[f"{self.name}.>"], **config)
        )

    def put(self, key: int | str) -> None:
        known = self.history.setdefault(str(key), [])
        value = f"{key}@{len(known)}".encode()
        known.append((self.js.publish(f"{self.name}.{key}", value).seq, value))

    def plan(self, *keys: str) -> Range:
        info = self.stream.info()
        subjects = tuple(f"{self.name}.{key}" for key in keys)
        return Range(
            self.name,
            1,
            info.state.last_seq + 1,
            identity(info),
            subjects,
            earliest=True,
            last_per_subject=True,
            seen=seen_of(info),
        )

    def read(
        self, wanted: Range, after: Callable[[], None] | None = None, *, fail: bool = True
    ) -> list[bytes]:
        """The values read; ``after`` is called once, after the first record batch."""
        reader = RangeReader(self.js, COLUMNS, fail_on_data_loss=fail, batch_rows=5, buffer_messages=5)
        found: list[bytes] = []
        for batch in reader.read(wanted):
            found += batch.column("data").to_pylist()
            if after is not None:
                after()
                after = None
        return found

    def as_of(self, sequence: int, keys: int = KEYS) -> set[bytes]:
        """The snapshot as it was."""
        return {
            [value for number, value in self.history[str(key)] if number <= sequence][-1]
            for key in range(keys)
        }


@pytest.fixture
def values(js: blocking.JetStream) -> Iterator[Values]:
    made = Values(js)
    yield made
    if made.name in list(js.stream_names()):
        js.delete_stream(made.name)


@pytest.fixture(params=[10_000, 7], ids=["one piece", "many pieces"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_PIECE", request.param)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("retention", [RetentionPolicy.LIMITS, RetentionPolicy.WORK_QUEUE])
@pytest.mark.parametrize("limit", [None, 50])
def test_a_stream_with_history_gives_what_was_there(
    values: Values, direct: bool, retention: RetentionPolicy, limit: int | None
) -> None:
    if retention == RetentionPolicy.WORK_QUEUE and not direct:
        direct = True  # a work queue can't be read otherwise
    values.make(allow_direct=direct, retention=retention, max_msgs_per_subject=limit)
    for round_ in range(3):
        for key in range(KEYS):
            if (key + round_) % 3 or not round_:
                values.put(key)
    wanted = values.plan()
    expected = values.as_of(wanted.end - 1)

    def write() -> None:
        for key in range(0, KEYS, 2):
            values.put(key)
        if limit is None:
            values.put("new")

    write()
    found = values.read(wanted, write)
    assert sorted(found) == sorted(expected)
    # A task that runs again reads the same.
    assert sorted(values.read(wanted, write)) == sorted(expected)


@pytest.mark.parametrize("limit", [1, 2])
def test_a_stream_that_replaces_values_gives_every_key_once(values: Values, limit: int) -> None:
    values.make(max_msgs_per_subject=limit)
    for key in range(KEYS):
        values.put(key)
    wanted = values.plan()
    expected = values.as_of(wanted.end - 1)

    written = (1, 2, 3, *range(0, KEYS, 4), KEYS - 1)

    def write() -> None:
        # First some that have come already when the first rows are there, then others.
        for _ in range(limit):
            for key in written:
                values.put(key)

    found = values.read(wanted, write)
    assert found[0] == b"0@0"
    keys = [value.split(b"@")[0] for value in found]
    assert sorted(keys, key=int) == [str(key).encode() for key in range(KEYS)]
    # Keys that were not written since come as they were.
    replaced = {str(key) for key in written}
    old = {value for value in found if value.split(b"@")[0].decode() not in replaced}
    assert old == {value for value in expected if value.split(b"@")[0].decode() not in replaced}


def test_a_key_that_is_deleted_meanwhile_and_one_of_another_filter(
    values: Values, caplog: pytest.LogCaptureFixture
) -> None:
    values.make(max_msgs_per_subject=1)
    for key in range(KEYS):
        values.put(key)
    wanted = values.plan("1", "2", "3")
    values.put(1)
    values.put(7)
    values.stream.delete_msg(values.history["2"][0][0])
    with caplog.at_level(logging.WARNING, "jetspark.spark"):
        assert sorted(values.read(wanted)) == [b"1@1", b"3@0"]
    assert not caplog.records


def test_a_purge_of_the_keys_is_loss(values: Values) -> None:
    values.make(max_msgs_per_subject=1)
    for key in range(KEYS):
        values.put(key)
    wanted = values.plan()
    values.stream.purge(seq=11)
    with pytest.raises(
        DataLossError, match="10 of the 40 subjects that were there when the read was planned"
    ):
        values.read(wanted)
    assert len(values.read(wanted, fail=False)) == 30


def test_an_interrupted_snapshot_goes_on(values: Values) -> None:
    values.make()
    for key in range(KEYS):
        values.put(key)
    wanted = values.plan()

    def interrupt() -> None:
        for name in list(values.stream.consumer_names()):
            values.stream.delete_consumer(name)
        values.put(0)
        values.put(KEYS - 1)

    assert sorted(values.read(wanted, interrupt)) == sorted(values.as_of(wanted.end - 1))


@pytest.mark.cluster
def test_a_snapshot_of_a_replicated_stream_is_the_leaders() -> None:
    with three_nodes() as cluster, blocking.connect(cluster.urls) as connection:
        values = Values(connection.jetstream())
        values.make(num_replicas=3)
        for key in range(KEYS):
            values.put(key)
        for _ in range(3):
            for key in range(0, KEYS, 3):
                values.put(key)
            wanted = values.plan()
            expected = values.as_of(wanted.end - 1)
            values.put(5)
            assert sorted(values.read(wanted)) == sorted(expected)
