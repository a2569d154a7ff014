"""Rows that a copied header, a known id or a wrong subject would lose: what a task does. No Spark needed."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType

from jetspark import StreamConfig, blocking
from jetspark.spark import connections
from jetspark.spark.sink import writers
from jetspark.spark.sink.options import parse_sink
from jetspark.spark.sink.rows import BadRow, SinkColumns
from jetspark.spark.sink.target import Target
from jetspark.spark.sink.task import RowNotAcked, TaskCounts, write_task
from jetspark.spark.sink.writers import SinkCommit, make_writer
from support.helpers import unique

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import StartServer
    from jetspark.server import Server

HEADERS = pa.map_(pa.string(), pa.list_(pa.string()))
COPIED = SinkColumns(subject=0, data=1, headers=2)


class Target_:
    """A stream with messages in it, and a task that writes to it."""

    def __init__(self, server: Server, js: blocking.JetStream) -> None:
        self.name = unique("T")
        self.stream = js.create_stream(
            StreamConfig(
                name=self.name, subjects=[f"{self.name}.>"], allow_direct=True, allow_rollup_hdrs=True
            )
        )
        self.js, self.url = js, server.url

    def write(
        self, rows: list[tuple[str, str, dict[str, list[str]]]], *, origin: str = "q-1", **options: str
    ) -> TaskCounts:
        batch = pa.record_batch(
            [
                pa.array([f"{self.name}.{subject}" for subject, _, _ in rows]),
                pa.array([data for _, data, _ in rows]),
                pa.array([list(headers.items()) for _, _, headers in rows], HEADERS),
            ],
            names=["subject", "data", "headers"],
        )
        parsed = parse_sink({"servers": self.url, "stream": self.name, **options}, streaming=True)
        try:
            return write_task([batch], parsed, COPIED, Target(self.name), partition=0, origin=origin)
        finally:
            connections.close(parsed.connection)

    def count(self) -> int:
        return self.stream.info().state.messages


@pytest.fixture
def target(server: Server, js: blocking.JetStream) -> Iterator[Target_]:
    made = Target_(server, js)
    yield made
    js.delete_stream(made.name)


def test_ids_copied_from_other_streams_drop_no_rows(target: Target_) -> None:
    # Two streams whose publishers number their messages, merged: 2,000 rows, 1,000 stored.
    rows = [("a", f"{part}-{n}", {"Nats-Msg-Id": [str(n)]}) for part in "xy" for n in range(10)]
    counts = target.write(rows)
    assert (counts.stored, counts.duplicates) == (20, 0)
    assert target.count() == 20
    assert counts.dropped_headers == {"Nats-Msg-Id"}


@pytest.mark.parametrize(
    "header",
    [
        {"Nats-Rollup": ["all"]},
        {"Nats-Expected-Stream": ["ANOTHER"]},
        {"Nats-Expected-Last-Sequence": ["7"]},
        {"Nats-Stream-Source": ["A 1 > > a"]},
        {"Nats-TTL": ["1s"]},
        {"Nats-Batch-Id": ["b"], "Nats-Batch-Sequence": ["1"]},
        {"nats-anything": ["x"]},
    ],
    ids=lambda header: next(iter(header)),
)
def test_headers_that_the_server_obeys_are_left_out(target: Target_, header: dict[str, list[str]]) -> None:
    target.write([("a", "before", {})] * 3)
    counts = target.write([("a", "copied", {**header, "Kept": ["1", "2"]})], origin="q-2")
    assert counts.stored == 1
    assert counts.dropped_headers == set(header)
    assert target.count() == 4
    last = target.stream.get_msg(seq=4)
    assert last.headers.get_all("Kept") == ["1", "2"]
    assert last.headers.get("Nats-Expected-Stream") == target.name  # the sink's own
    assert not [name for name in header if name != "Nats-Expected-Stream" and name in last.headers]


def test_they_are_kept_on_request(target: Target_) -> None:
    target.write([("a", "before", {})] * 3)
    counts = target.write([("a", "x", {"Nats-Rollup": ["all"]})], origin="q-2", keepNatsHeaders="true")
    assert (counts.stored, counts.dropped_headers, target.count()) == (1, set(), 1)
    rows = [("a", "x", {"Nats-Msg-Id": ["one"]}), ("a", "y", {"Nats-Msg-Id": ["one"]})]
    counts = target.write(rows, keepNatsHeaders="true")
    assert (counts.stored, counts.duplicates) == (1, 1)
    with pytest.raises(BadRow, match="part of an atomic batch"):
        target.write([("a", "x", {"Nats-Batch-Id": ["b"]})], keepNatsHeaders="true")


def test_a_dead_letter_shows_what_was_left_out(target: Target_) -> None:
    rows = [("a b", "x", {"Nats-Msg-Id": ["one"], "K": ["v"]})]
    counts = target.write(rows, deadLetterSubject=f"{target.name}.dead")
    assert (counts.rows, counts.stored, counts.dead_letters) == (1, 0, 1)
    (dead,) = target.stream.get_msgs(seq=1)
    assert dead.headers["Jetspark-Nats-Msg-Id"] == "one"
    assert dead.headers["K"] == "v"


# What the driver says


def commit(**fields: Any) -> SinkCommit:
    known: dict[str, Any] = {
        "partition": 0,
        "attempt": 0,
        "rows": 10,
        "stored": 10,
        "duplicates": 0,
        "dead_letters": 0,
        "resent": 0,
        "bytes": 100,
        "streams": ("S",),
        "dropped_headers": (),
    }
    return SinkCommit(**{**known, **fields})


@pytest.mark.parametrize(
    ("fields", "warned"),
    [
        ({}, 0),
        ({"stored": 7, "duplicates": 3}, 3),
        # An earlier attempt of the task stored them, or an earlier copy of the message.
        ({"stored": 7, "duplicates": 3, "attempt": 1}, 0),
        ({"stored": 7, "duplicates": 3, "resent": 5}, 0),
        ({"stored": 7, "duplicates": 3, "resent": 1}, 2),
    ],
)
@pytest.mark.parametrize("own", [False, True])
def test_duplicates_in_a_first_attempt_are_warned_of(
    target: Target_, caplog: pytest.LogCaptureFixture, fields: dict[str, int], warned: int, own: bool
) -> None:
    names = ["subject", "data", *(["msg_id"] if own else [])]
    schema = StructType([StructField(name, StringType()) for name in names])
    writer = make_writer({"servers": target.url, "stream": target.name}, schema, overwrite=False)
    with caplog.at_level(logging.WARNING):
        writer.commit([commit(**fields)])
    assert (f"{warned} of 10 rows were not stored" in caplog.text) is bool(warned)
    if warned:
        assert ("different rows with one id are lost" in caplog.text) is own
    else:
        assert caplog.text == ""


def test_left_out_headers_are_warned_of_once(
    target: Target_, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "_told_dropped", set())
    headers = MapType(StringType(), ArrayType(StringType()))
    kinds = {"subject": StringType(), "data": StringType(), "headers": headers}
    schema = StructType([StructField(name, kind) for name, kind in kinds.items()])
    writer = make_writer({"servers": target.url, "stream": target.name}, schema, overwrite=False)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            writer.commit([commit(dropped_headers=("Nats-Rollup",)), commit(dropped_headers=("Nats-TTL",))])
    assert caplog.text.count("headers Nats-Rollup, Nats-TTL were left out") == 1
    assert "keepNatsHeaders=true" in caplog.text


# Ids that are required


def test_exactly_once_refuses_a_row_without_an_id(target: Target_) -> None:
    batch = pa.record_batch(
        [pa.array([f"{target.name}.a"] * 2), pa.array(["x", "y"]), pa.array(["1", None])],
        names=["subject", "data", "msg_id"],
    )
    options = {"servers": target.url, "stream": target.name, "deriveMsgId": "false"}
    for extra, refused in (({}, False), ({"requireExactlyOnce": "true"}, True)):
        parsed = parse_sink({**options, **extra}, streaming=True)
        columns = SinkColumns(subject=0, data=1, msg_id=2)
        if refused:
            with pytest.raises(BadRow, match="must not be null with requireExactlyOnce"):
                write_task([batch], parsed, columns, Target(target.name), partition=0, origin="q")
        else:
            assert (
                write_task([batch], parsed, columns, Target(target.name), partition=0, origin="q").stored == 2
            )
        connections.close(parsed.connection)


# Subjects that no stream stores


@pytest.mark.parametrize("known", [False, True], ids=["stream unknown", "stream known"])
@pytest.mark.parametrize("good", [0, 3000])
def test_a_subject_that_no_stream_stores_is_found_at_once(target: Target_, known: bool, good: int) -> None:
    options = {"servers": target.url, "ackTimeout": "5 minutes", **({"stream": target.name} if known else {})}
    parsed = parse_sink(options, streaming=True)
    subjects = [*[f"{target.name}.a"] * good, "nobody.stores.this"]
    batch = pa.record_batch(
        [pa.array(subjects), pa.array([str(n) for n in range(len(subjects))])], names=["subject", "data"]
    )
    found = Target(target.name, None, (f"{target.name}.>",)) if known else Target()
    began = time.monotonic()
    with pytest.raises(RowNotAcked, match="no stream stores this subject: add it") as caught:
        write_task([batch], parsed, SinkColumns(0, 1), found, partition=0, origin="q")
    assert caught.value.row == good
    # A safety net, far below ackTimeout.
    assert time.monotonic() - began < 150
    connections.close(parsed.connection)


def test_a_subject_that_the_account_maps_to_a_stream_is_written(start_server: StartServer) -> None:
    """The server knows no stream for the subject, and stores the rows all the same."""
    own = start_server(config='mappings { "orders.*": "mapped.$1" }')
    with blocking.connect(own.url) as connection:
        js = connection.jetstream()
        stream = js.create_stream(StreamConfig(name="MAPPED", subjects=["mapped.>"]))
        parsed = parse_sink({"servers": own.url, "stream": "MAPPED"}, streaming=True)
        batch = pa.record_batch(
            [pa.array([f"orders.{n % 3}" for n in range(100)]), pa.array([str(n) for n in range(100)])],
            names=["subject", "data"],
        )
        found = Target("MAPPED", None, ("mapped.>",))
        for stored in (100, 0):
            counts = write_task([batch], parsed, SinkColumns(0, 1), found, partition=0, origin="q")
            assert (counts.rows, counts.stored, counts.duplicates) == (100, stored, 100 - stored)
        assert stream.info().state.messages == 100
        connections.close(parsed.connection)
