"""F13: nine kinds of authentication, let in, refused, expired and revoked, through each of the three APIs.

A refusal has the right class within two seconds and costs one attempt: what can't pass is not tried again.
Credentials that lose their right while they are in use are tried again for a while, for they may be renewed;
then the connection ends. That while is two minutes (tests/unit/test_pool.py) and half a second here.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import blocking
from jetspark.connection import pool
from jetspark.events import AuthExpired, Closed, Disconnected, ReconnectFailed
from jetspark.spark import connections
from jetspark.spark.source.batch_reader import JetStreamReader
from jetspark.spark.source.options import parse_source
from jetspark.spark.source.schema import SCHEMA
from support.auth_world import MESSAGES, STREAM, Attempt, AuthWorld, Kind
from support.case_tables import module
from support.fault_table import Outcome, Row, Scale, check
from support.helpers import PROMPT, eventually, eventually_sync
from support.spark_session import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from jetspark.events import Event

LIMIT = 2.0
# Of the short form, which shares the machine with other tests: it does not hang.
SHORT_LIMIT = PROMPT
# As many connections as a refused read of Spark may cost: each process of it asks once.
SPARK_TRIES = 3
# Of the short form: those that Spark tries too.
SPARK_KINDS = ("token", "creds", "client certificate")
# Seconds for which refused credentials are tried again.
WINDOW = 0.5

total_connections = module("connection/test_auth.py").total_connections


class Tally:
    """What all the attempts came to."""

    def __init__(self, outcome: Outcome, limit: float) -> None:
        self.outcome = outcome
        self.limit = limit
        self.attempts = 0
        self.reads = 0
        self.ended = 0
        self.slowest = 0.0
        self.slowest_end = 0.0
        self.read_takes = 0.0

    def attempt(self, what: str, attempt: Attempt, call: Callable[[], Any], tries: int = 1) -> None:
        """Make the attempt; a refusal must be the right one, soon, and not be tried again."""
        self.attempts += 1
        before, start = total_connections(attempt.server), time.monotonic()
        try:
            call()
            caught = None
        except Exception as error:
            caught = error
        took = time.monotonic() - start
        tried = total_connections(attempt.server) - before
        if attempt.error is None:
            self.outcome.require(caught is None, f"{what}: {caught!r:.300}")
            return
        # Spark knows errors of Python by their text alone.
        name = attempt.error.__name__
        in_spark = type(caught).__name__ == name or f".{name}: " in str(caught)
        right = in_spark if "Spark" in what else isinstance(caught, attempt.error)
        self.outcome.require(right, f"{what}: {attempt.error.__name__} expected, not {caught!r:.300}")
        self.outcome.require(tried <= tries, f"{what}: tried {tried} times")
        if what.endswith(", Spark"):
            took -= self.read_takes
        else:
            self.slowest = max(self.slowest, took)
        self.outcome.require(took < self.limit, f"{what}: took {took:.1f} s")

    def end(self, what: str, events: list[Event], times: list[float], error: BaseException | None) -> None:
        """A connection whose credentials lost their right has ended as it should."""
        self.ended += 1
        lost = [at for event, at in zip(events, times, strict=True) if isinstance(event, Disconnected)]
        closed = [at for event, at in zip(events, times, strict=True) if isinstance(event, Closed)]
        names = [type(event).__name__ for event in events]
        # In the second in which a JWT expires the server still lets it in, and out again at once.
        self.outcome.require(len(lost) >= len(closed) == 1, f"{what}: {names}")
        self.outcome.require(isinstance(error, jetspark.errors.AuthorizationError), f"{what}: {error!r}")
        tried = sum(isinstance(event, ReconnectFailed) for event in events)
        self.outcome.require(tried >= 2, f"{what}: tried {tried} times again")
        if lost and closed:
            took = closed[0] - lost[-1]
            self.outcome.require(took >= WINDOW, f"{what}: closed {took:.1f} s after the cut")
            self.outcome.require(took < self.limit + WINDOW, f"{what}: closed {took:.1f} s after the cut")
            self.slowest_end = max(self.slowest_end, took)


def run_async(attempt: Attempt) -> None:
    async def talk() -> None:
        async with jetspark.connect(attempt.server.url, **attempt.options) as nc:
            stream = await nc.jetstream().get_stream(STREAM)
            assert stream.cached_info.state.messages == MESSAGES

    asyncio.run(talk())


def run_blocking(attempt: Attempt) -> None:
    with blocking.connect(attempt.server.url, **attempt.options) as nc:
        assert nc.jetstream().get_stream(STREAM).cached_info.state.messages == MESSAGES


def run_planner(attempt: Attempt) -> None:
    """What Spark's driver does for a read, without Spark: its limit is in seconds and has no allowance."""
    options = parse_source({"stream": STREAM, **attempt.spark_options})
    try:
        assert JetStreamReader(options, SCHEMA).partitions()
    finally:
        connections.close(options.connection)


def run_spark(spark: SparkSession, attempt: Attempt) -> None:
    reader = spark.read.format("jetstream").options(stream=STREAM, **attempt.spark_options)
    assert reader.load().count() == MESSAGES


class Watched:
    """Two connections, a blocking one and one of asyncio, until their credentials are void."""

    def __init__(self, attempt: Callable[[], Attempt]) -> None:
        self.events: tuple[list[Event], list[Event]] = ([], [])
        self.times: tuple[list[float], list[float]] = ([], [])
        one = attempt()
        self.blocking = blocking.connect(one.server.url, **one.options, listener=self._listener(0))
        self._attempt = attempt

    def _listener(self, which: int) -> Callable[[Event], None]:
        def note(event: Event) -> None:
            self.times[which].append(time.monotonic())
            self.events[which].append(event)

        return note

    def until_void(self, cause: Callable[[], None] | None) -> list[BaseException | None]:
        """Wait until both are closed; how each explains it."""

        async def watch() -> BaseException | None:
            two = self._attempt()  # now: its right may end soon
            nc = await jetspark.connect(two.server.url, **two.options, listener=self._listener(1))
            if cause is not None:
                await asyncio.to_thread(cause)
            try:
                await eventually(lambda: nc.is_closed, 30)
            finally:
                await nc.close()
            return nc.last_error

        try:
            errors = [asyncio.run(watch())]
            eventually_sync(lambda: any(isinstance(event, Closed) for event in self.events[0]), 30)
            return [self.blocking.last_error, *errors]
        finally:
            self.blocking.close()


def lose(kind: Kind, what: str, attempt: Callable[[], Attempt], cause: Any, tally: Tally) -> None:
    watched = Watched(attempt)
    errors = watched.until_void(cause)
    for name, events, times, error in zip(
        ("blocking", "async"), watched.events, watched.times, errors, strict=True
    ):
        tally.end(f"{kind.name}, {what}, {name}", events, times, error)
        if what == "expiring":
            told = any(isinstance(event, AuthExpired) for event in events)
            tally.outcome.require(told, f"{kind.name}, {what}, {name}: no AuthExpired")


def run(scale: Scale) -> Outcome:
    outcome = Outcome()
    tally = Tally(outcome, LIMIT if scale.full else SHORT_LIMIT)
    with tempfile.TemporaryDirectory() as folder, spark_session(Path(folder)) as spark:
        with AuthWorld(Path(folder) / "first") as world:
            for kind in world.kinds:
                for attempt in kind.attempts:
                    through_python(f"{kind.name}, {attempt.state}", attempt, tally)
            through_spark(spark, world, tally, full=scale.full)
        # Servers that Spark's processes are not connected to: they would go on with the lost credentials.
        with AuthWorld(Path(folder) / "second") as world, pytest.MonkeyPatch.context() as patch:
            patch.setattr(pool, "REFUSAL_WINDOW", WINDOW)
            for kind in world.kinds:
                if kind.expiring is not None and (scale.full or kind.name == "creds"):
                    lose(kind, "expiring", kind.expiring, None, tally)
                if kind.revoke is not None:
                    lose(kind, "revoked", lambda kind=kind: kind.good, kind.revoke, tally)
                    revoked = Attempt(
                        "revoked", kind.good.server, kind.good.options, jetspark.errors.AuthorizationError
                    )
                    through_python(f"{kind.name}, revoked", revoked, tally)
                    if scale.full or kind.name == "token":
                        read(spark, f"{kind.name}, revoked", revoked, world.kinds[0].good, tally)
    outcome.figures = {
        "kinds": len(world.kinds),
        "attempts": tally.attempts,
        "of them Spark": tally.reads,
        "slowest refusal outside of Spark, s": round(tally.slowest, 2),
        "rights lost while connected": tally.ended,
        "slowest end, s": round(tally.slowest_end, 2),
    }
    return outcome


def through_python(what: str, attempt: Attempt, tally: Tally) -> None:
    tally.attempt(f"{what}, async", attempt, lambda: run_async(attempt))
    tally.attempt(f"{what}, blocking", attempt, lambda: run_blocking(attempt))
    tally.attempt(f"{what}, planner of Spark's", attempt, lambda: run_planner(attempt))


def through_spark(spark: SparkSession, world: AuthWorld, tally: Tally, *, full: bool) -> None:
    run_spark(spark, world.kinds[0].good)  # starts the Python workers
    for kind in world.kinds:
        if not full and kind.name not in SPARK_KINDS:
            continue
        for attempt in kind.attempts:
            if full or attempt.state in ("good", "bad"):
                read(spark, f"{kind.name}, {attempt.state}", attempt, world.kinds[0].good, tally)


def read(spark: SparkSession, what: str, attempt: Attempt, good: Attempt, tally: Tally) -> None:
    """Spark needs its time for any read, so that a good one before it says how much of it is Spark's."""
    tally.reads += 1
    if attempt.error is not None:
        start = time.monotonic()
        run_spark(spark, good)
        tally.read_takes = time.monotonic() - start
    tally.attempt(f"{what}, Spark", attempt, lambda: run_spark(spark, attempt), SPARK_TRIES)


ROW = Row(13, "authentication", run, alone=True, minutes=5)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_f13() -> None:
    check(ROW)
