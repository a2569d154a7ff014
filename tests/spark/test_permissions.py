"""docs/spark.md, 'Permissions': a user with exactly what a row of the table says can do what it is for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jetspark import RetentionPolicy, StreamConfig, blocking
from jetspark.errors import PermissionViolationError
from jetspark.server import Server
from jetspark.spark.data_source import DefaultSource
from jetspark.spark.options import OptionError
from support.helpers import LIMIT
from support.spark_helpers import Batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
COUNT = 20
READING = "reading"


def table() -> dict[str, list[str]]:
    """What each row is for, and the subjects it names, with those of the rows that it refers to."""
    section = PAGE.read_text().split("### Permissions", 1)[1].split("\n## ", 1)[0]
    rows = dict(re.findall(r"^\| (.+?) \| (.+) \|$", section, re.M)[1:])
    found: dict[str, list[str]] = {}
    for name, text in rows.items():
        subjects = re.findall(r"`(\$[^`]+)`", text)
        if text.startswith("also"):
            subjects = found[READING] + subjects
        elif text.startswith("as work queues"):
            subjects = found["reading work queues"] + subjects
        elif text.startswith("as writing"):
            subjects = found["writing"] + subjects
        if "the subjects" in text:
            subjects.append("<subjects>")
        found[name] = subjects
    return found


TABLE = table()


def added(row: str) -> list[str]:
    """What a row has beyond the one that it refers to."""
    base = {"releaseWorkQueue": "reading work queues", "writing with option `subject`": "writing"}
    found = [one for one in TABLE[row] if not one.startswith("$JS.ACK")]  # for servers before 2.14
    return [one for one in found if one not in TABLE[base.get(row.strip("`"), READING)]]


class World:
    """A server where one user may do everything, and another what a row says."""

    def __init__(self, folder: Path, publish: list[str]) -> None:
        allowed = [one.replace("<stream>", "S").replace("<subjects>", "S.>") for one in publish]
        quoted = ", ".join(f'"{one}"' for one in allowed)
        self.server = Server(
            store_dir=folder,
            config="authorization { users: [\n"
            '  { user: "admin", password: "x" }\n'
            '  { user: "spark", password: "x", permissions: {\n'
            f'    publish: {{ allow: [{quoted}] }}, subscribe: {{ allow: ["_INBOX.>"] }}\n'
            "  } }\n] }\n",
        )
        self.options = {"user": "spark", "password": "x", "requestTimeout": "3s"}

    def __enter__(self) -> World:
        self.server.start()
        self._nc = blocking.connect(self.server.url, user="admin", password="x")
        self._nc.__enter__()
        self.js = self._nc.jetstream()
        self.options["servers"] = self.server.url
        return self

    def __exit__(self, *exc: object) -> None:
        self._nc.__exit__(None, None, None)
        self.server.stop()

    def make(self, **config: Any) -> None:
        self.js.create_stream(StreamConfig(name="S", subjects=["S.>"], **config))
        for number in range(COUNT):
            self.js.publish("S.x", b"%d" % number)

    def source(self, **options: str) -> DefaultSource:
        return DefaultSource({**self.options, "stream": "S", **options})


def batch(world: World, **options: str) -> None:
    """A batch read: what the driver does, then what the tasks do."""
    source = world.source(**options)
    reader = source.reader(source.schema())
    rows = sum(piece.num_rows for part in reader.partitions() for piece in reader.read(part))
    assert rows == COUNT


def streaming(world: World, **options: str) -> None:
    """Two micro-batches, with the calls that Spark makes."""
    source = world.source(startingPosition="earliest", **options)
    reader: Any = source.streamReader(source.schema())
    try:
        limit = reader.getDefaultReadLimit()
        start = reader.initialOffset()
        end = reader.latestOffset(start, limit)
        parts = reader.partitions(start, end)
        assert sum(piece.num_rows for part in parts for piece in reader.read(part)) == COUNT
        # Spark asks for the next batch when this one is committed.
        assert reader.latestOffset(end, limit) == end
        reader.commit(end)
    finally:
        reader.stop()


def reading(world: World) -> None:
    world.make()
    batch(world)
    batch(world, subjects="S.x")
    batch(world, startingTime="-1 hour")
    streaming(world)


def by_pattern(world: World) -> None:
    world.make()
    batch(world, stream="S*")
    streaming(world, stream="S*")


def work_queue(world: World) -> None:
    world.make(retention=RetentionPolicy.WORK_QUEUE, allow_direct=True)
    batch(world)
    streaming(world)


def durable(world: World) -> None:
    world.make()
    streaming(world, durable="shown")
    assert world.js.get_consumer("S", "shown").cached_info.ack_floor.stream_seq == COUNT


def release(world: World) -> None:
    world.make(retention=RetentionPolicy.WORK_QUEUE, allow_direct=True)
    streaming(world, releaseWorkQueue="true")
    assert world.js.get_stream("S").cached_info.state.messages == 0


FEATURES: dict[str, Callable[[World], None]] = {
    "reading": reading,
    "reading by a pattern (`ORDERS-*`)": by_pattern,
    "reading work queues": work_queue,
    "`durable`": durable,
    "`releaseWorkQueue`": release,
}
WRITING = {"writing": {}, "writing with option `subject`": {"subject": "S.y"}}


def test_each_row_is_tried() -> None:
    assert set(TABLE) == {*FEATURES, *WRITING}


@pytest.mark.parametrize("row", FEATURES)
def test_a_user_with_what_the_row_says_can_do_it(tmp_path: Path, row: str) -> None:
    with World(tmp_path, TABLE[row]) as world:
        FEATURES[row](world)


@pytest.mark.parametrize(("row", "missing"), [(row, one) for row in FEATURES for one in added(row)])
def test_what_is_missing_is_an_error_that_names_it(tmp_path: Path, row: str, missing: str) -> None:
    """Before, ``releaseWorkQueue`` without the right to purge ran on and emptied nothing."""
    subject = missing.replace("<stream>", "S").rstrip("*>")
    with World(tmp_path, [one for one in TABLE[row] if one != missing]) as world:
        with pytest.raises((PermissionViolationError, OptionError)) as caught:
            FEATURES[row](world)
        assert subject in str(caught.value)


@pytest.mark.parametrize("row", WRITING)
def test_writing(spark: SparkSession, tmp_path: Path, row: str) -> None:
    with World(tmp_path, TABLE[row]) as world:
        world.make()
        options = {**world.options, "stream": "S", "requireExactlyOnce": "true", **WRITING[row]}
        rows = spark.range(10).selectExpr("'S.y' AS subject", "cast(id AS string) AS data")
        if "subject" in WRITING[row]:
            rows = rows.drop("subject")
        rows.write.format("jetstream").options(**options).mode("append").save()
        assert world.js.get_stream("S").cached_info.state.messages == COUNT + 10


def test_a_query_that_may_not_purge_does_not_start(spark: SparkSession, tmp_path: Path) -> None:
    with World(tmp_path / "store", TABLE["reading work queues"]) as world:
        world.make(retention=RetentionPolicy.WORK_QUEUE, allow_direct=True)
        options = {**world.options, "stream": "S", "startingPosition": "earliest", "releaseWorkQueue": "true"}
        rows = Batches()
        query = (
            spark.readStream.format("jetstream")
            .options(**options)
            .load()
            .writeStream.foreachBatch(rows)
            .option("checkpointLocation", str(tmp_path / "cp"))
            .start()
        )
        with pytest.raises(Exception, match=r"not permitted to publish '\$JS.API.STREAM.PURGE.S'"):
            query.awaitTermination(LIMIT)
        assert rows.rows == []


def test_a_stream_that_denies_purges_is_refused(tmp_path: Path) -> None:
    with World(tmp_path, TABLE["`releaseWorkQueue`"]) as world:
        world.make(retention=RetentionPolicy.WORK_QUEUE, allow_direct=True, deny_purge=True)
        with pytest.raises(OptionError, match="has deny_purge"):
            streaming(world, releaseWorkQueue="true")


@pytest.fixture(autouse=True)
def _no_connection_stays() -> Iterator[None]:
    """The source keeps connections by options; the next server may have the same port."""
    yield
    from jetspark.spark import connections

    for connection in list(connections._open.values()):
        connection.close()
