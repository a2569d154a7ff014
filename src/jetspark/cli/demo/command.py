"""``jetspark demo``: the product in a minute: a server, live orders, a Spark pipeline, a crash, and proof.

The pipeline is a job of ``jetspark pipe`` in its own process, exactly as a user would run it. Everything
is measured from outside: what was acked, what is stored, what came out, compared order by order.
"""

import asyncio
import contextlib
import json as jsonlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jetspark import JetStream, StreamConfig
from jetspark.cli import output
from jetspark.cli.declare import Json, command
from jetspark.cli.demo.chart import text_chart, write_png
from jetspark.cli.demo.orders import CLOSING_REGION, Order, closing, make_orders
from jetspark.cli.demo.reconcile import Reconciliation, Total, reconcile
from jetspark.cli.demo.screen import Picture, Quiet, Screen
from jetspark.cli.errors import CommandFailed, UsageError
from jetspark.cli.settings import run as run_loop
from jetspark.cli.stopping import stopped_by_signal
from jetspark.connecting import connect

if TYPE_CHECKING:
    from jetspark.server import Server

#: Seconds that the server is down.
OUTAGE = 1.5
#: Seconds that the results may take after the last order, on a slow machine.
PATIENCE = 120.0
_TOTALS_IN = ("REVENUE stream", "parquet")

JOB = """\
# The pipeline of the demo. Run it yourself: jetspark pipe run job.toml
name = "revenue"
from = "ORDERS"
json_schema = "order_id string, region string, amount decimal(12,2), time timestamp"
# Orders may come this late, and the ones that come twice are counted once.
watermark = "time 5m"
unique = "order_id"
sql = '''
SELECT region,
       date_format(window.start, 'HH:mm') AS minute,
       count(*) AS orders,
       sum(amount) AS revenue,
       sort_array(collect_list(order_id)) AS ids
FROM input
GROUP BY region, window(time, '1 minute')
'''
to = ["jetstream:REVENUE:revenue.{region}", %(folder)s]
trigger = "1s"
master = "local[2]"
server = %(server)s
checkpoint = %(checkpoint)s
"""


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "demo", example="jetspark demo\njetspark demo --orders 20000 --seconds 60 --out /tmp/demo")(
        demo
    )


def demo(
    orders: Annotated[int, typer.Option("--orders", metavar="N", help="Orders to publish.", min=100)] = 6000,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", help="Time to publish them in.", min=0.5)
    ] = 16.0,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where chart, parquet, job and logs go.")
    ] = Path("jetspark-demo"),
    crash: Annotated[bool, typer.Option("--crash/--no-crash", help="Kill the server in the middle.")] = True,
    json: Json = False,
) -> None:
    """Show everything at once: live orders, a Spark pipeline, a server crash, and that nothing was lost.

    Starts its own server. A Spark pipeline drops orders that came twice, sums the revenue by region and
    minute, and writes it to a stream and to parquet. In the middle the server is killed with -9. At the end
    all orders are compared by their ids; the exit code is 1 if one was lost or counted twice.
    """
    from jetspark.cli.pipe.checks import require_spark

    require_spark()
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out: {out} is a file; give a folder")
    # We report the planned loss of the connection ourselves.
    logging.getLogger("jetspark").addHandler(logging.NullHandler())
    began = time.monotonic()
    minutes = max(5, min(30, orders // 60))
    show = Show(make_orders(orders, minutes), minutes, seconds, out, crash)
    screen = (Quiet if json else Picture if output.is_terminal() else Screen)(len(show.messages))
    result = run_loop(show.play(screen))
    if result is None:
        return
    found, totals = result
    png = write_png(out / "revenue.png", totals)
    if json:
        output.print_json({**asdict(found), "seconds": round(time.monotonic() - began, 1)})
    else:
        output.line()
        for text in text_chart(totals):
            output.line(text)
        output.line()
        if png:
            output.line(f"chart: {out / 'revenue.png'}, totals in parquet: {out / 'revenue'}")
        else:
            output.line(f'totals in parquet: {out / "revenue"}; for a chart: pip install "jetspark[demo]"')
        output.line(f"{found.line()}  ({time.monotonic() - began:.0f} s)")
    if not found.ok:
        raise CommandFailed("; ".join(found.problems))


@dataclass(slots=True)
class Show:
    """One run of the demo."""

    messages: list[Order]
    minutes: int
    seconds: float
    out: Path
    crash: bool
    sent: list[Order] = field(default_factory=list)
    running: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the pipeline has done its first micro-batch."""
    rows_in: dict[str, int] = field(default_factory=dict)

    async def play(self, screen: Screen) -> tuple[Reconciliation, list[Total]] | None:
        """Run it; None when it was interrupted."""
        async with stopped_by_signal() as stopped:
            work = asyncio.ensure_future(self._scenes(screen))
            waiting = asyncio.ensure_future(stopped.wait())
            await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if stopped.is_set() and not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                output.notice("stopped")
                return None
            return await work

    async def _scenes(self, screen: Screen) -> tuple[Reconciliation, list[Total]]:
        from jetspark.server import Server

        self._clean()
        with (
            tempfile.TemporaryDirectory(prefix="jetspark-demo-") as folder,
            Server(name="demo", store_dir=os.path.join(folder, "store")) as server,
            screen,
        ):
            screen.say(f"nats-server {server.url}, pid {server.pid}, with JetStream on disk")
            async with connect(server.url, name="demo") as nc:
                js = nc.jetstream()
                for name, subject in (("ORDERS", "orders.>"), ("REVENUE", "revenue.>")):
                    await js.create_stream(StreamConfig(name=name, subjects=[subject], allow_direct=True))
                job = self._job(server, folder)
                screen.say(f"pipeline: jetspark pipe run {job}")
                async with self._pipeline(job, screen) as pipeline, self._consumer(js, screen):
                    await _both(self._publish(js, server, screen), pipeline)
                    await _both(self._complete(js), pipeline)
                    await pipeline.finish()
                screen.say("pipeline ended after its last micro-batch; comparing all orders by their ids")
                return await self._reconcile(js)

    def _clean(self) -> None:
        """Remove what an earlier demo left, and nothing else."""
        self.out.mkdir(parents=True, exist_ok=True)
        if (self.out / "revenue" / "_spark_metadata").is_dir():
            shutil.rmtree(self.out / "revenue")
        for name in ("revenue.png", "job.toml", "pipe.log"):
            (self.out / name).unlink(missing_ok=True)

    def _job(self, server: "Server", folder: str) -> Path:
        path = self.out / "job.toml"
        texts = {
            "folder": f"parquet:{(self.out / 'revenue').absolute()}",
            "server": server.url,
            "checkpoint": os.path.join(folder, "checkpoint"),
        }
        path.write_text(JOB % {name: jsonlib.dumps(text) for name, text in texts.items()})
        return path

    # -- the four tasks ----------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _pipeline(self, job: Path, screen: Screen) -> AsyncIterator["Pipeline"]:
        pipeline = await Pipeline.start(job, self.out / "pipe.log")
        reading = asyncio.ensure_future(self._listen(pipeline, screen))
        try:
            yield pipeline
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await pipeline.end()

    async def _listen(self, pipeline: "Pipeline", screen: Screen) -> None:
        """Reads the progress reports of the pipeline."""
        async for line in pipeline.stdout:
            report = jsonlib.loads(line)
            if report["type"] == "progress":
                if not self.running.is_set():
                    screen.say("pipeline: Spark runs, first micro-batch done")
                self.running.set()
                screen.progressed(report)
            elif report["type"] == "totals":
                for one in report["sinks"]:
                    kind = one["sink"].partition(":")[0]
                    # The closing message is not an order.
                    self.rows_in[_TOTALS_IN[kind == "parquet"]] = one["rows_in"] - 1

    @contextlib.asynccontextmanager
    async def _consumer(self, js: JetStream, screen: Screen) -> AsyncIterator[None]:
        """Shows results as they arrive."""

        async def show() -> None:
            consumer = await js.create_ordered_consumer("REVENUE")
            async with consumer, consumer.consume_batches() as groups:
                async for group in groups:
                    screen.arrived([Total.from_row(jsonlib.loads(message.data)) for message in group])

        task = asyncio.ensure_future(show())
        try:
            yield
        finally:
            task.cancel()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(ended, Exception):
            raise ended

    async def _publish(self, js: JetStream, server: "Server", screen: Screen) -> None:
        """Publishes at a steady pace; the server is killed under it."""
        half = len(self.messages) // 2
        pause = self.seconds / len(self.messages)
        # Messages sent again after the crash are late by at most the window: half a minute of orders.
        window = max(10, len(self.messages) // self.minutes // 2)
        acks: list[tuple[Order, asyncio.Future[Any]]] = []
        crash: asyncio.Future[None] | None = None
        try:
            async with js.publisher(window=window, retry=True, ack_timeout=60.0) as publisher:
                due = time.monotonic()
                for count, order in enumerate(self.messages, start=1):
                    if count == half:
                        await self.running.wait()
                        due = time.monotonic()
                        if self.crash:
                            crash = asyncio.ensure_future(self._crash(server, screen))
                    acks.append(
                        (order, await publisher.publish(order.subject, order.body(), msg_id=order.message_id))
                    )
                    due += pause
                    if count % 10 == 0:
                        screen.published(count)
                        await asyncio.sleep(max(0.0, due - time.monotonic()))
                if crash is not None:
                    await asyncio.shield(crash)
                await publisher.flush()
                last = closing(self.minutes)
                await publisher.publish(last.subject, last.body(), msg_id=last.message_id)
        finally:
            if crash is not None:
                # Also when interrupted: the server must not be restarted after its end.
                await asyncio.gather(crash, return_exceptions=True)
        screen.published(len(self.messages))
        self.sent = [order for order, ack in acks if ack.done() and ack.exception() is None]

    async def _crash(self, server: "Server", screen: Screen) -> None:
        server.kill()
        screen.say(f"CRASH: nats-server killed with -9; down for {OUTAGE:g} s, publisher and pipeline go on")
        await asyncio.sleep(OUTAGE)
        await asyncio.to_thread(server.restart)
        screen.say(f"nats-server is back, pid {server.pid}")

    # -- the end -----------------------------------------------------------------------------------------

    async def _complete(self, js: JetStream) -> None:
        """Wait until every order is in both outputs. The reconciliation reports what is missing then."""
        wanted = {order.order_id for order in self.sent}
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for totals in (read_parquet(self.out / "revenue"), await _read_stream(js)):
                if not wanted <= {one for total in totals for one in total.ids}:
                    break
            else:
                return
            await asyncio.sleep(0.25)

    async def _reconcile(self, js: JetStream) -> tuple[Reconciliation, list[Total]]:
        orders = await js.get_stream("ORDERS")
        bodies = [jsonlib.loads(message.data) async for message in orders.get_msgs(seq=1)]
        stored = [body["order_id"] for body in bodies if body["region"] != CLOSING_REGION]
        totals = await _read_stream(js)
        outputs = dict(zip(_TOTALS_IN, (totals, read_parquet(self.out / "revenue")), strict=True))
        read = {place: self.rows_in.get(place, 0) for place in _TOTALS_IN}
        return reconcile(self.sent, stored, read, outputs), totals


async def _both(work: Any, pipeline: "Pipeline") -> None:
    """Do something while the pipeline runs. Fails when the pipeline ends first."""
    task = asyncio.ensure_future(work)
    ended = asyncio.ensure_future(pipeline.process.wait())
    try:
        await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise CommandFailed(f"the pipeline ended early: {pipeline.complaint()}")
        task.result()
    finally:
        for one in (task, ended):
            one.cancel()
        await asyncio.gather(task, ended, return_exceptions=True)


async def _read_stream(js: JetStream) -> list[Total]:
    stream = await js.get_stream("REVENUE")
    if not stream.cached_info.state.messages:
        return []
    return [Total.from_row(jsonlib.loads(message.data)) async for message in stream.get_msgs(seq=1)]


def read_parquet(folder: Path) -> list[Total]:
    """The rows of the files that the query has committed; others may be there from a batch that failed."""
    import pyarrow.parquet as pq

    found: list[Total] = []
    for name in sorted(committed_files(folder)):
        found += [Total.from_row(row) for row in pq.read_table(folder / name, partitioning=None).to_pylist()]
    return found


def committed_files(folder: Path) -> set[str]:
    """The names in the log that Spark keeps in ``_spark_metadata``: one per batch, and summaries."""
    names: set[str] = set()
    with contextlib.suppress(FileNotFoundError):
        for log in (folder / "_spark_metadata").iterdir():
            if not log.name.removesuffix(".compact").isdecimal():
                continue  # being written
            for line in log.read_text().splitlines()[1:]:
                names.add(jsonlib.loads(line)["path"].rpartition("/")[2])
    return names


@dataclass(slots=True)
class Pipeline:
    """``jetspark pipe run`` in its own process."""

    process: asyncio.subprocess.Process
    log: Path

    @classmethod
    async def start(cls, job: Path, log: Path) -> "Pipeline":
        """Start it. It ends by itself when this process is gone."""
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        # Its own session: Ctrl-C reaches us alone, and we end it in order.
        # The job names its server; nothing else may.
        env = {name: value for name, value in os.environ.items() if not name.startswith("NATS_")}
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "jetspark.cli", "pipe", "run", str(job), "--json", "--no-context"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=descriptor,
                start_new_session=True,
                env={**env, "JETSPARK_PIPE_PARENT": str(os.getpid())},
            )
        finally:
            os.close(descriptor)
        return cls(process, log)

    @property
    def stdout(self) -> asyncio.StreamReader:
        """Its JSON lines."""
        assert self.process.stdout is not None
        return self.process.stdout

    async def finish(self) -> None:
        """Ctrl-C for the pipeline: it finishes its micro-batch and prints totals."""
        self.process.send_signal(signal.SIGINT)
        try:
            code = await asyncio.wait_for(self.process.wait(), 90.0)
        except TimeoutError:
            raise CommandFailed(f"the pipeline did not stop; its log: {self.log}") from None
        if code:
            raise CommandFailed(f"the pipeline ended with {code}: {self.complaint()}")

    async def end(self) -> None:
        """Leave no process behind."""
        if self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), 15.0)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()

    def complaint(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        return f"{errors[-1].removeprefix('error: ')}\nits log: {self.log}" if errors else f"see {self.log}"
