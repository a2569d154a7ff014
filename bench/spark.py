"""The Spark source and sink beside nats-py in the same places and beside the raw limit.

Unlike the other benches it runs in one process: a Spark session costs more to start than a case to measure.
Each case is a list of contenders that take turns; before the clock counts the JVM and Spark's Python workers
are warmed up.

- `read_1`, `read_2`, `read_4`: batch read of all columns in so many partitions, count(*), sum(length(data)).
- `read_4k`: the same with 4 kB messages, in two partitions.
- `stream_available_now`: the same as one micro-batch of a streaming query, two partitions, into Spark's noop
  sink; the time is that of the micro-batch, without the start of the query.
- `sink`: a batch write in two partitions, ids and all, every row acked.
- `work_queue`: batch read of a work queue in two partitions, which is by batch direct get; `raw` is one plain
  socket that asks for the same pages and parses nothing. `work_queue_objects`: the way the source had before,
  an object for each message.
- `many_streams_ms`: batch read of 1,000 streams of 20 messages. `many_streams_tasks_ms`: the same with a task
  for each stream, as the source had it before. Once a run, because it takes so long.
- `tiny_batch_ms`: a micro-batch of one message, its whole duration; `raw` is a source that invents its row.

`raw` reads: one plain socket pulls as much and parses nothing. `raw` sink: one plain socket, no headers.
`nats-py`: a minimal Python data source that fetches 1,000 at a time; for the sink, `publish_async` in
`mapInArrow`.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _harness import HERE, nats_server, options, table
from _raw import RawConn, direct_page, drain_pull, encode_publishes, publish_pipelined, send_pipelined
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

COLUMNS = (
    "stream string, sequence long, subject string, timestamp timestamp, "
    "headers map<string,array<string>>, data binary"
)
WINDOW = 20_000
# The JVM compiles what it runs often, on the same two cores: each of the first reads is quicker than the one
# before it, by a quarter in all.
WARM_READS = 6
# One pass of the raw socket takes a second, and one differs from the next by a tenth.
RAW_PASSES = 2


@dataclass(slots=True)
class Sizes:
    """How much each contender does; a quick run ends in about half a minute."""

    small: int
    large: int
    peer: int
    sink: int
    sink_peer: int
    tiny: int
    queue: int
    streams: int
    rounds: int


FULL = Sizes(1_000_000, 100_000, 50_000, 1_000_000, 50_000, 24, 300_000, 1_000, 3)
QUICK = Sizes(200_000, 20_000, 3_000, 100_000, 3_000, 5, 40_000, 60, 1)
# Messages of one of the many streams, and of one page of a raw direct get.
FEW = 20
PAGE = 10_000


# --- the peer -------------------------------------------------------------------------------------


class Piece(InputPartition):
    """A range of sequences, `begin` inclusive, `end` exclusive."""

    def __init__(self, begin: int, end: int) -> None:
        super().__init__((begin, end))
        self.begin, self.end = begin, end


class NatsPySource(DataSource):
    """What one writes in an afternoon: a range a partition, read with nats-py's fetch."""

    @classmethod
    def name(cls) -> str:
        return "natspy"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: Any) -> DataSourceReader:
        return NatsPyReader(self.options)


class NatsPyReader(DataSourceReader):
    def __init__(self, given: Any) -> None:
        self.url, self.stream = given["servers"], given["stream"]
        self.count, self.parts = int(given["count"]), int(given["parts"])

    def partitions(self) -> Sequence[InputPartition]:
        edges = [1 + self.count * i // self.parts for i in range(self.parts + 1)]
        return [Piece(edges[i], edges[i + 1]) for i in range(self.parts)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        with asyncio.Runner() as runner:
            yield from runner.run(self._fetch(partition.begin, partition.end))

    async def _fetch(self, begin: int, end: int) -> list[pa.RecordBatch]:
        import nats
        import pyarrow as pa
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        kinds = pa.schema(
            [
                ("stream", pa.string()),
                ("sequence", pa.int64()),
                ("subject", pa.string()),
                ("timestamp", pa.timestamp("us", "UTC")),
                ("headers", pa.map_(pa.string(), pa.list_(pa.string()))),
                ("data", pa.binary()),
            ]
        )
        connection = await nats.connect(self.url)
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=begin,
            mem_storage=True,
        )
        js = connection.jetstream()
        made = await js.add_consumer(self.stream, config)
        subscription = await js.pull_subscribe_bind(made.name, self.stream)
        found = []
        left = end - begin
        while left:
            messages = await subscription.fetch(min(1000, left), timeout=10)
            left -= len(messages)
            rows = [(one.metadata, one) for one in messages]
            arrays: list[list[Any]] = [
                [meta.stream for meta, _ in rows],
                [meta.sequence.stream for meta, _ in rows],
                [one.subject for _, one in rows],
                [meta.timestamp for meta, _ in rows],
                [[(name, [value]) for name, value in (one.headers or {}).items()] for _, one in rows],
                [one.data for _, one in rows],
            ]
            columns = [pa.array(values, kind.type) for values, kind in zip(arrays, kinds, strict=True)]
            found.append(pa.RecordBatch.from_arrays(columns, schema=kinds))
        await connection.close()
        return found


# --- the way before -------------------------------------------------------------------------------


class ObjectsSource(DataSource):
    """A work queue, an object for each message: how the source read them before it had columns for it."""

    @classmethod
    def name(cls) -> str:
        return "objects"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: Any) -> DataSourceReader:
        return ObjectsReader(self.options)


class ObjectsReader(NatsPyReader):
    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        from jetspark import blocking
        from jetspark.spark.source.range_reader import stored_batch
        from jetspark.spark.source.schema import SCHEMA

        with blocking.connect(self.url) as connection:
            stream = connection.jetstream().get_stream(self.stream)
            rows = []
            for message in stream.get_msgs(seq=partition.begin, max_messages=partition.end - partition.begin):
                rows.append(message)
                if len(rows) == WINDOW:
                    yield stored_batch(rows, SCHEMA.names)
                    rows = []
            if rows:
                yield stored_batch(rows, SCHEMA.names)


def natspy_sink(url: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For mapInArrow: publishes every row and gives back how many there were."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import nats
        import pyarrow as pa

        async def publish() -> int:
            connection = await nats.connect(url)
            js = connection.jetstream(publish_async_max_pending=WINDOW)
            count = 0
            for batch in batches:
                subjects, bodies = batch.column(0).to_pylist(), batch.column(1).to_pylist()
                for subject, body in zip(subjects, bodies, strict=True):
                    await js.publish_async(subject, body)
                count += batch.num_rows
            await js.publish_async_completed()
            await connection.close()
            return count

        with asyncio.Runner() as runner:
            yield pa.RecordBatch.from_pydict({"n": [runner.run(publish())]})

    return write


# --- Spark's own floor ----------------------------------------------------------------------------


class InventedSource(DataSource):
    """One invented row a micro-batch, as fast as Spark asks."""

    @classmethod
    def name(cls) -> str:
        return "invented"

    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return InventedReader()


class InventedReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"n": start["n"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(end["n"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        from datetime import UTC, datetime

        yield ("INVENTED", partition.value, "x", datetime.now(UTC), {}, b"x")


# --- the contenders -------------------------------------------------------------------------------


@dataclass(slots=True)
class Case:
    """One row of the table: contenders by name (`ours`, `raw`, `nats-py`), each returning its figure.

    ``turns``: how often ours and raw do it in a round, one after the other; peers do it once.
    ``once``: in the first round only.
    """

    name: str
    contenders: dict[str, Callable[[], float]]
    unit: str = "rows/s"
    turns: int = 1
    once: bool = False
    figures: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


class SparkBench:
    """The server's streams, the session, and how each contender does its work."""

    def __init__(self, host: str, port: int, sizes: Sizes, folder: Path) -> None:
        self.host, self.port, self.sizes, self.folder = host, port, sizes, folder
        self.url = f"nats://{host}:{port}"
        self.runs = 0
        with RawConn(host, port) as conn:
            for name, size, count in (("SMALL", 128, sizes.small), ("LARGE", 4096, sizes.large)):
                conn.create_stream(name, f"bench.{name}")
                publish_pipelined(conn, f"bench.{name}", count, size, WINDOW if size < 1000 else 1000, 250)
                # Once through, so that the first contender does not pay for the server's cold cache.
                self._drain(conn, name, count)
            conn.create_stream("QUEUE", "bench.QUEUE", retention="workqueue", allow_direct=True)
            publish_pipelined(conn, "bench.QUEUE", sizes.queue, 128, WINDOW, 250)
            for number in range(sizes.streams):
                conn.create_stream(f"MANY-{number}", f"bench.MANY.{number}", storage="memory")
                conn.send(b"PUB bench.MANY.%d 1\r\nx\r\n" % number * FEW)
            conn.create_stream("TINY", "bench.TINY")
            conn.create_stream("SINK", "bench.SINK")
        builder = SparkSession.builder.master("local[2]")
        if sizes is QUICK:
            # Half a minute is too short for the second compiler to pay for itself.
            builder = builder.config(
                "spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
            )
        self.spark = (
            builder.appName("jetspark-bench")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
            .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
            .getOrCreate()
        )
        self.spark.sparkContext.setLogLevel("OFF")
        self.spark.dataSource.register(NatsPySource)
        self.spark.dataSource.register(ObjectsSource)
        self.spark.dataSource.register(InventedSource)

    def _drain(self, conn: RawConn, stream: str, count: int) -> None:
        name = f"raw-{time.monotonic_ns()}"
        conn.create_pull_consumer(stream, name)
        conn.send(b"SUB _INBOX.raw.pull 5\r\n")
        drain_pull(conn, stream, name, 1, count, 8192)
        conn.send(b"UNSUB 5\r\n")
        conn.api(f"CONSUMER.DELETE.{stream}.{name}")

    def raw_read(self, stream: str, count: int) -> float:
        with RawConn(self.host, self.port) as conn:
            started = time.perf_counter()
            for _ in range(RAW_PASSES):
                self._drain(conn, stream, count)
            return RAW_PASSES * count / (time.perf_counter() - started)

    def _total(self, frame: DataFrame, count: int, size: int) -> float:
        started = time.perf_counter()
        row = frame.selectExpr("count(*) AS n", "sum(length(data)) AS bytes").first()
        took = time.perf_counter() - started
        if row is None or (row.n, row.bytes) != (count, count * size):
            raise RuntimeError(f"read {row}, wanted {count} rows of {size} bytes")
        return count / took

    def ours_read(self, stream: str, count: int, size: int, parts: int) -> float:
        reader = self.spark.read.format("jetstream").option("servers", self.url).option("stream", stream)
        reader = reader.option("minPartitions", parts).option("maxMessagesPerPartition", -(-count // parts))
        return self._total(reader.load(), count, size)

    def natspy_read(self, stream: str, count: int, size: int, parts: int) -> float:
        reader = self.spark.read.format("natspy").option("servers", self.url).option("stream", stream)
        return self._total(reader.option("count", count).option("parts", parts).load(), count, size)

    # Work queues, and many streams

    def objects_read(self, stream: str, count: int, size: int, parts: int) -> float:
        reader = self.spark.read.format("objects").option("servers", self.url).option("stream", stream)
        return self._total(reader.option("count", count).option("parts", parts).load(), count, size)

    def raw_direct(self, stream: str, count: int) -> float:
        with RawConn(self.host, self.port) as conn:
            conn.send(b"SUB _INBOX.raw.direct 7\r\n")
            started = time.perf_counter()
            for begin in range(1, count + 1, PAGE):
                direct_page(conn, stream, begin, min(PAGE, count + 1 - begin))
            return count / (time.perf_counter() - started)

    def many_streams(self, parts: int | None = None) -> float:
        count = self.sizes.streams
        reader = self.spark.read.format("jetstream").option("servers", self.url).option("stream", "MANY-*")
        if parts is not None:
            reader = reader.option("minPartitions", parts)
        return 1000 * count * FEW / self._total(reader.load(), count * FEW, 1)

    def ours_stream(self) -> float:
        count = self.sizes.small
        reader = self.spark.readStream.format("jetstream").option("servers", self.url)
        reader = reader.option("stream", "SMALL").option("startingPosition", "earliest")
        reader = reader.option("minPartitions", 2).option("maxMessagesPerPartition", count)
        query = self._query(reader.load(), availableNow=True)
        query.awaitTermination()
        (progress,) = [one for one in query.recentProgress if one["numInputRows"]]
        if progress["numInputRows"] != count:
            raise RuntimeError(f"read {progress['numInputRows']} of {count}")
        return float(count / (progress["durationMs"]["triggerExecution"] / 1000))

    def _query(self, frame: DataFrame, **trigger: Any) -> Any:
        self.runs += 1
        writer = frame.writeStream.format("noop").trigger(**trigger)
        return writer.option("checkpointLocation", str(self.folder / f"checkpoint-{self.runs}")).start()

    # The sink

    def _rows(self, count: int) -> DataFrame:
        rows = self.spark.range(0, count, 1, 2)
        return rows.selectExpr(
            "'bench.SINK' AS subject", "cast(lpad(cast(id AS string), 128, '0') AS binary) AS data"
        )

    def _stored(self, count: int) -> None:
        with RawConn(self.host, self.port) as conn:
            stored = conn.api("STREAM.INFO.SINK")["state"]["messages"]
            conn.api("STREAM.DELETE.SINK")
            conn.create_stream("SINK", "bench.SINK")
        if stored != count:
            raise RuntimeError(f"{stored} of {count} rows were stored")

    def ours_sink(self, count: int, *, ids: bool = True) -> float:
        writer = self._rows(count).write.format("jetstream").option("servers", self.url)
        writer = writer.option("window", WINDOW // 2)  # two tasks: as many in flight as the raw socket has
        writer = writer.option("stream", "SINK") if ids else writer.option("deriveMsgId", "false")
        started = time.perf_counter()
        writer.mode("append").save()
        took = time.perf_counter() - started
        self._stored(count)
        return count / took

    def natspy_sink(self) -> float:
        count = self.sizes.sink_peer
        started = time.perf_counter()
        self._rows(count).mapInArrow(natspy_sink(self.url), "n long").collect()
        took = time.perf_counter() - started
        self._stored(count)
        return count / took

    def raw_sink(self, ids: str = "") -> float:
        """A reply subject for each message; with `ids` also the headers of the sink."""
        count = self.sizes.sink
        blocks = encode_publishes("bench.SINK", "_INBOX.raw.sink", count, 128, 500, "SINK", ids)
        with RawConn(self.host, self.port) as conn:
            started = time.perf_counter()
            send_pipelined(conn, "_INBOX.raw.sink", blocks, count, WINDOW, 500)
            took = time.perf_counter() - started
        self._stored(count)
        return count / took

    # Tiny micro-batches

    def ours_tiny(self) -> float:
        reader = self.spark.readStream.format("jetstream").option("servers", self.url)
        query = self._query(reader.option("stream", "TINY").load(), processingTime="0 seconds")
        with RawConn(self.host, self.port) as conn:
            deadline = time.monotonic() + 60
            while (done := self._tiny_batches(query)) is None or len(done) < self.sizes.tiny:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{len(done or [])} tiny micro-batches in 60 s")
                conn.send(b"PUB bench.TINY 1\r\nx\r\n")
                self._wait_for_batch(query, deadline)
        query.stop()
        return statistics.median(done)

    @staticmethod
    def _wait_for_batch(query: Any, deadline: float) -> None:
        """Until the message has been through: two in one micro-batch would not count as a tiny one."""

        def rows() -> int:
            return sum(one["numInputRows"] for one in query.recentProgress)

        before = rows()
        # The very first message may come before the query has decided where it starts.
        patience = min(deadline, time.monotonic() + 2)
        while rows() == before and time.monotonic() < patience:
            time.sleep(0.02)

    def floor_tiny(self) -> float:
        query = self._query(self.spark.readStream.format("invented").load(), processingTime="0 seconds")
        deadline = time.monotonic() + 60
        while len(done := self._tiny_batches(query)) < self.sizes.tiny:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(done)} invented micro-batches in 60 s")
            time.sleep(0.1)
        query.stop()
        return statistics.median(done)

    def _tiny_batches(self, query: Any) -> list[float]:
        if query.exception() is not None:
            raise RuntimeError(str(query.exception()))
        # The first two pay for the start.
        found = [one for one in query.recentProgress if one["numInputRows"] == 1][2:]
        return [float(one["durationMs"]["triggerExecution"]) for one in found]

    def cases(self) -> list[Case]:
        sizes = self.sizes
        small, large, peer = sizes.small, sizes.large, sizes.peer

        def reads(parts: int) -> dict[str, Callable[[], float]]:
            found: dict[str, Callable[[], float]] = {
                "ours": lambda: self.ours_read("SMALL", small, 128, parts),
                "raw": lambda: self.raw_read("SMALL", small),
            }
            if parts == 2 or sizes is not QUICK:
                found["nats-py"] = lambda: self.natspy_read("SMALL", peer, 128, parts)
            return found

        return [
            Case("read_1", reads(1)),
            # Ours and raw differ from their neighbours by a fifth: three pairs are too few for its bar.
            Case("read_2", reads(2), turns=3),
            Case("read_4", reads(4)),
            Case(
                "read_4k",
                {
                    "ours": lambda: self.ours_read("LARGE", large, 4096, 2),
                    "raw": lambda: self.raw_read("LARGE", large),
                    "nats-py": lambda: self.natspy_read("LARGE", min(peer, large), 4096, 2),
                },
            ),
            Case("stream_available_now", {"ours": self.ours_stream, "raw": reads(2)["raw"]}),
            Case(
                "work_queue",
                {
                    "ours": lambda: self.ours_read("QUEUE", sizes.queue, 128, 2),
                    "raw": lambda: self.raw_direct("QUEUE", sizes.queue),
                },
            ),
            Case(
                "work_queue_objects",
                {
                    "ours": lambda: self.objects_read("QUEUE", sizes.queue, 128, 2),
                    "raw": lambda: self.raw_direct("QUEUE", sizes.queue),
                },
            ),
            Case("many_streams_ms", {"ours": self.many_streams}, unit="ms"),
            Case(
                "many_streams_tasks_ms",
                {"ours": lambda: self.many_streams(sizes.streams)},
                unit="ms",
                once=True,
            ),
            Case(
                "sink",
                {
                    "ours": lambda: self.ours_sink(sizes.sink),
                    "raw": lambda: self.raw_sink(f"{time.monotonic_ns():032x}-0"),
                    "nats-py": self.natspy_sink,
                },
            ),
            Case(
                "sink_plain",
                {"ours": lambda: self.ours_sink(sizes.sink, ids=False), "raw": self.raw_sink},
            ),
            Case("tiny_batch_ms", {"ours": self.ours_tiny, "raw": self.floor_tiny}, unit="ms"),
        ]


def order(case: Case, round_: int) -> list[str]:
    """Who does it when in a round: the order turns, so that nobody is always first."""
    found: list[str] = []
    for turn in range(case.turns):
        names = [name for name in case.contenders if turn == 0 or name in ("ours", "raw")]
        first = (round_ + turn) % len(names)
        found += names[first:] + names[:first]
    return found


def run(cases: list[Case], rounds: int) -> None:
    """Every case once a round; who fails is left out from then on."""
    for turn in range(rounds):
        for case in cases:
            if case.once and turn:
                continue
            for name in order(case, turn):
                if name in case.errors:
                    continue
                begun = time.monotonic()
                try:
                    figure = case.contenders[name]()
                    case.figures.setdefault(name, []).append(figure)
                    said = f"{figure:,.0f} {case.unit}"
                except Exception as error:
                    if os.environ.get("BENCH_TRACEBACK"):
                        import traceback

                        traceback.print_exc()
                    case.errors[name] = f"{type(error).__name__}: {error}"
                    said = f"ERROR {case.errors[name][:300]}"
                print(
                    f"  round {turn + 1}  {name + ':' + case.name:<28} {said}  "
                    f"({time.monotonic() - begun:.1f} s, load {os.getloadavg()[0]:.1f})",
                    file=sys.stderr,
                )


def main() -> int:
    arguments = options("The Spark bench; see bench/README.md.").parse_args()
    sizes = QUICK if arguments.quick else FULL
    # For Spark's workers: this Python, and the source tree when jetspark is not installed.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    found = filter(None, [os.environ.get("PYTHONPATH"), str(HERE.parent / "src"), str(HERE)])
    os.environ["PYTHONPATH"] = os.pathsep.join(found)
    with (
        nats_server() as (host, port, _),
        tempfile.TemporaryDirectory(prefix="jetspark-bench-spark-") as folder,
    ):
        bench = SparkBench(host, port, sizes, Path(folder))
        cases = [
            case
            for case in bench.cases()
            if not arguments.only or any(word in case.name for word in arguments.only)
        ]
        # Warm: workers import, the JVM compiles. A quick run can't afford more than one read of each kind.
        for _ in range(1 if sizes is QUICK else WARM_READS):
            bench.ours_read("SMALL", sizes.small, 128, 2)
        bench.natspy_read("SMALL", 1000, 128, 2)
        bench.ours_sink(1000)
        run(cases, arguments.repeats or sizes.rounds)
        bench.spark.stop()
    rows: list[dict[str, Any]] = []
    for case in cases:
        middle = {name: round(statistics.median(found), 1) for name, found in case.figures.items()}
        peers = {"nats-py": middle["nats-py"]} if "nats-py" in middle else {}
        rows.append(
            {
                "case": case.name,
                "rounds": case.figures,
                "unit": case.unit,
                "ours": middle.get("ours"),
                "raw": middle.get("raw"),
                "peers": peers,
            }
        )
    spreads = {
        case.name: (max(found) - min(found)) / 2 / statistics.median(found)
        for case in cases
        if (found := case.figures.get("ours"))
    }
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"\nspark: median of {arguments.repeats or sizes.rounds} rounds, {machine}\n")
    print(table(rows, spreads))
    for case in cases:
        for name, error in case.errors.items():
            print(f"{name}:{case.name}: {error}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 1 if any(case.errors for case in cases) else 0


if __name__ == "__main__":
    raise SystemExit(main())
