"""F15: a canary in every kind of credentials, looked for in everything that anybody might read.

The short form leaves out what needs Spark; that is what tests/spark/test_secrets.py looks at.
"""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import tempfile
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import jetspark
from jetspark import StreamConfig, blocking
from jetspark.connection.client import core_of
from jetspark.errors import AuthorizationError, NoServersAvailable
from jetspark.server._ports import ReservedPort
from jetspark.spark.source.batch_reader import JetStreamReader
from jetspark.spark.source.options import parse_source
from jetspark.spark.source.schema import SCHEMA
from jetspark.spark.source.stream_reader import JetStreamStreamReader
from support.canaries import CANARY, USER, Case, canary_cases, everything_about, everything_in, shown_by_spark
from support.cli_runner import environment, inside
from support.fault_table import Outcome, Row, Scale, check
from support.recorder import Recorder
from support.spark_session import event_log, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# The options of connect() that the command line has as flags, and that Spark has as options.
FLAGS = {"user": "--user", "password": "--password", "token": "--token", "nkey": "--nkey", "creds": "--creds"}
IN_SPARK = {"password": {}, "token": {}, "nkey file": {}, "creds": {"creds": "credentials"}}


class Ear(logging.Handler):
    """Hears everything that is logged by anybody, to the last attribute of a record."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(f"{self.format(record)} {record.__dict__!r}")


class Hunt:
    """Where was looked, and where a canary was heard."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.texts: Counter[str] = Counter()
        self.ear = Ear()

    def look(self, place: str, kind: str, texts: Iterable[str | bytes], secrets: Iterable[str]) -> None:
        for text in texts:
            data = text.encode(errors="replace") if isinstance(text, str) else text
            self.texts[place] += 1
            for secret in secrets:
                where = data.find(secret.encode())
                around = data[max(0, where - 100) : where] if where >= 0 else b""
                self.outcome.require(where < 0, f"{kind}: a secret in {place}, after {around!r}")

    def logs(self, kind: str, secrets: Iterable[str]) -> None:
        heard, self.ear.heard = self.ear.heard, []
        self.look("DEBUG logs", kind, heard, secrets)

    def __enter__(self) -> Hunt:
        self._level = logging.getLogger().level
        logging.getLogger().addHandler(self.ear)
        logging.getLogger().setLevel(logging.DEBUG)
        for name in ("jetspark", "asyncio", "websockets"):
            logging.getLogger(name).setLevel(logging.DEBUG)
        return self

    def __exit__(self, *exc: object) -> None:
        logging.getLogger().removeHandler(self.ear)
        logging.getLogger().setLevel(self._level)
        for name in ("jetspark", "asyncio", "websockets"):
            logging.getLogger(name).setLevel(logging.NOTSET)


def shown(connection: Any) -> Iterator[str]:
    """What one may print of a connection, and what a debugger finds below it."""
    yield from (repr(connection), str(connection), repr(connection.stats), repr(connection.server_info))
    yield from (str(connection.connected_url), *connection.servers, repr(connection.last_error))
    yield from everything_in(connection)


async def through_asyncio(hunt: Hunt, kind: str, case: Case) -> None:
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 0
    recorder = Recorder()
    connecting = jetspark.connect(**{"servers": case.server.url, "listener": recorder, **case.good})
    hunt.look("repr and str", kind, [repr(connecting), str(connecting)], case.secrets)
    async with connecting as nc:
        js = nc.jetstream()
        hunt.look(
            "repr and str",
            kind,
            [repr(js), str(js), repr(core_of(nc).options), str(core_of(nc).options)],
            case.secrets,
        )
        options = {
            field.name: getattr(core_of(nc).options, field.name) for field in fields(core_of(nc).options)
        }
        hunt.look("vars()", kind, [repr(options)], case.secrets)
        await nc.force_reconnect()
        await nc.flush()
        hunt.look("vars()", kind, shown(nc), case.secrets)
    hunt.look("vars()", kind, shown(nc), case.secrets)
    hunt.look("events", kind, map(repr, recorder.events), case.secrets)
    try:
        await jetspark.connect(**{"servers": case.server.url, **case.bad})
        hunt.outcome.problems.append(f"{kind}: wrong credentials were accepted")
    except AuthorizationError as error:
        hunt.look("exceptions", kind, everything_about(error), case.secrets)


def through_blocking(hunt: Hunt, kind: str, case: Case) -> None:
    with blocking.connect(**{"servers": case.server.url, **case.good}) as nc:
        hunt.look("repr and str", kind, [repr(nc), str(nc), repr(nc.jetstream())], case.secrets)
        hunt.look("vars()", kind, everything_in(nc), case.secrets)
    for options, expected in ((case.bad, AuthorizationError), (unreachable(case), NoServersAvailable)):
        try:
            blocking.connect(**{"servers": case.server.url, **options})
            hunt.outcome.problems.append(f"{kind}: {expected.__name__} expected")
        except expected as error:
            hunt.look("exceptions", kind, everything_about(error), case.secrets)


def unreachable(case: Case) -> dict[str, Any]:
    """The same credentials for a server that is not there: the port is ours, and nobody listens."""
    closed = ReservedPort("127.0.0.1")
    closed.release()
    url = case.good.get("servers", case.server.url)
    for port in [case.server.port] + [case.server._ports[name].number for name in case.server._ports]:
        url = url.replace(f":{port}", f":{closed.number}")
    return {**case.good, "servers": url}


def through_command_line(hunt: Hunt, kind: str, case: Case, folder: Path) -> None:
    """Good, bad and unreachable, as flags, in the environment and in a context; with a traceback, too."""
    env = environment(folder, NATS_URL=case.server.url)
    for number, options in enumerate((case.good, case.bad, unreachable(case))):
        if any(callable(value) for value in options.values()) or not options.keys() <= {*FLAGS, "servers"}:
            continue  # nothing that one can type
        server = ["--server", options["servers"]] if "servers" in options else []
        flags = [word for name in options if name in FLAGS for word in (FLAGS[name], str(options[name]))]
        variables = {f"NATS_{name.upper()}": str(options[name]) for name in options if name in FLAGS}
        contexts = folder / "config" / "nats" / "context"
        contexts.mkdir(parents=True, exist_ok=True)
        settings = {"url": options.get("servers", case.server.url)}
        settings |= {name: str(options[name]) for name in options if name in FLAGS}
        (contexts / "canary.json").write_text(json.dumps(settings))
        ran = [
            inside(env, "rtt", *server, *flags),
            inside(env, "account", "info", "--json", *server, *flags),
            inside(env, "rtt", "--debug", *server, *flags),
            inside({**env, **variables}, "rtt", "--debug", *server),
            inside(env, "context", "show", "canary"),
            inside(env, "context", "show", "canary", "--json"),
            inside(env, "context", "ls"),
            inside(env, "rtt", "--context", "canary", "--debug"),
            inside(env, "pub", "--frob", *server, *flags),
            inside(env, "rtt", *server, *flags, "--timeout", "soon"),
        ]
        # What was asked for must have been done, or the silence says nothing.
        done = ran[0].code == 0
        hunt.outcome.require(
            done == (number == 0), f"{kind}: rtt ended with {ran[0].code}: {ran[0].err[:200]}"
        )
        # `context show` shows who one is, and so do the options of Spark below.
        texts = [(one.out + one.err).replace(USER, "") for one in ran]
        hunt.look("CLI output", kind, texts, case.secrets)


def through_pickle(hunt: Hunt, kind: str, case: Case, options: dict[str, str]) -> None:
    """What the driver sends to the workers for each task. (The reader itself must carry the options.)"""
    with blocking.connect(**{"servers": case.server.url, **case.good}) as nc:
        js = nc.jetstream()
        js.create_or_update_stream(StreamConfig(name="S", subjects=["s.>"]))
        js.publish("s.1", b"x")
    parsed = parse_source({"servers": case.server.url, "stream": "S", **options})
    batch, stream = JetStreamReader(parsed, SCHEMA), JetStreamStreamReader(parsed, SCHEMA)
    start = stream.initialOffset()
    parts = [*batch.partitions(), *stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))]
    hunt.outcome.require(len(parts) >= 1, f"{kind}: no partition to look at")
    hunt.look("pickled partitions", kind, [pickle.dumps(part) for part in parts], case.secrets)
    texts = [json.dumps(start), repr(parts), repr(parsed).replace(USER, "")]
    hunt.look("pickled partitions", kind, texts, case.secrets)


def spark_options(kind: str, options: dict[str, Any]) -> dict[str, str]:
    return {IN_SPARK[kind].get(name, name): str(value) for name, value in options.items()}


def run(scale: Scale) -> Outcome:
    outcome = Outcome()
    with (
        tempfile.TemporaryDirectory() as name,
        canary_cases(Path(name), jetstream=True) as cases,
        Hunt(outcome) as hunt,
    ):
        folder = Path(name)
        for kind, case in cases.items():
            asyncio.run(through_asyncio(hunt, kind, case))
            through_blocking(hunt, kind, case)
            through_command_line(hunt, kind, case, folder / "home")
            if kind in IN_SPARK:
                through_pickle(hunt, kind, case, spark_options(kind, case.good))
            hunt.logs(kind, case.secrets)
        if scale.full:
            logging.getLogger("py4j").setLevel(logging.INFO)  # Spark's wire to Java, not ours
            with spark_session(folder) as spark:
                for kind in IN_SPARK:
                    case = cases[kind]
                    good, bad = spark_options(kind, case.good), spark_options(kind, case.bad)
                    said = shown_by_spark(
                        spark, case.server, good, bad, folder / kind, event_log(spark), f"marker-{kind}"
                    )
                    for place, text in said.items():
                        hunt.outcome.require(bool(text), f"{kind}: nothing in {place}")
                        hunt.look(place, kind, [text], case.secrets)
    outcome.figures = {"kinds": len(cases), "texts": hunt.texts.total(), "heard": len(outcome.problems)}
    outcome.figures |= dict(hunt.texts)
    # If the canary is not found where it was put, then the silence elsewhere says nothing.
    probe = Hunt(Outcome())
    probe.look("probe", "probe", [f"a {CANARY} sings"], [CANARY])
    outcome.require(len(probe.outcome.problems) == 1, "the hunt is deaf")
    return outcome


ROW = Row(15, "secrets", run, minutes=5)


@pytest.mark.filterwarnings("ignore:Executing:RuntimeWarning")
def test_f15() -> None:
    check(ROW)
