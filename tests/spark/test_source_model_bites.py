"""The model of the Spark source finds what it is there for: with the source broken on purpose, it says so.

One scene, without chance: ten messages are read, twenty more are planned, and five of those are purged (or
not) before they are read. With the source as it is, the judge has nothing to say.
"""

from __future__ import annotations

import logging
import random
import sys
from typing import TYPE_CHECKING, Any

import pytest

from jetspark.spark.source import data_loss, positions, range_proof
from jetspark.spark.source.claims import Outcome
from jetspark.spark.source.stream_reader import JetStreamStreamReader
from support.helpers import unique
from support.source_judge import Judge, Listener, Verdicts
from support.source_queries import QueryFailed, StreamingQuery
from support.source_truth import Cause
from support.source_world import Host, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Host.single() as running:
        yield running


def scene(host: Host, *, purge: bool, fail: bool) -> Verdicts:
    """What the judge says about it."""
    name = unique("BITES")
    config = {"name": name, "subjects": [f"{name}.>"], "storage": "memory", "retention": "limits"}
    world = World(host, random.Random(1), 0, {name: config})
    verdicts = Verdicts()
    listener = Listener()
    moments: list[str] = []

    def moment(where: str) -> None:
        moments.append(where)
        if purge and where == "after planning" and moments.count(where) == 2:
            world.raw.api(f"STREAM.PURGE.{name}", {"seq": 16})
            world.truth.tick("purge")
            world.truth.look(name, lambda _: Cause.PURGED)

    judge = Judge(world.truth, verdicts, "query")
    query = StreamingQuery(world.truth, judge, listener, moment, 1)
    options = {"servers": host.urls[0], "stream": name, "startingPosition": "earliest"}
    logger = logging.getLogger("jetspark.spark")
    logger.addHandler(listener)
    try:
        world.publish(name, 10)
        query.start({**options, "failOnDataLoss": str(fail).lower()}, available_now=False)
        query.trigger()
        world.publish(name, 20)
        query.stop()
        query.start({**options, "failOnDataLoss": str(fail).lower()}, available_now=True)
        query.drain()
        query.look()
        judge.finished([name], ())
    except QueryFailed:
        verdicts.figures["failed"] += 1
    finally:
        logger.removeHandler(listener)
        query.stop()
        world.close()
    return verdicts


@pytest.mark.parametrize("purge", [False, True])
@pytest.mark.parametrize("fail", [True, False])
def test_the_source_as_it_is(host: Host, purge: bool, fail: bool) -> None:
    found = scene(host, purge=purge, fail=fail)
    assert found.problems == []
    assert bool(found.figures["true alarms"]) == purge
    assert found.figures["failed"] == int(purge and fail)
    if not (purge and fail):
        assert found.figures["rows"] == (25 if purge else 30)


def report_nothing(patch: pytest.MonkeyPatch) -> None:
    """The check of gaps finds what it finds, and keeps it to itself."""
    report = data_loss.report
    modules = [one for name, one in list(sys.modules.items()) if name.startswith("jetspark.spark.")]
    users = [one for one in modules if getattr(one, "report", None) is report]
    assert len(users) > 2
    for module in users:
        patch.setattr(module, "report", lambda *_, **__: None)


def only_warn(patch: pytest.MonkeyPatch) -> None:
    """Losses are told, but as something that ends no query."""
    for module in (positions, range_proof):
        patch.setattr(module, "judge_gap", lambda *_, **__: Outcome.WARNING)


def _reading(
    change: Callable[[pa.RecordBatch], list[pa.RecordBatch]],
) -> Callable[[pytest.MonkeyPatch], None]:
    def broken(patch: pytest.MonkeyPatch) -> None:
        read = JetStreamStreamReader.read

        def changed(self: JetStreamStreamReader, partition: Any) -> Iterator[pa.RecordBatch]:
            for batch in read(self, partition):
                yield from change(batch)

        patch.setattr(JetStreamStreamReader, "read", changed)

    return broken


def cry_wolf(patch: pytest.MonkeyPatch) -> None:
    def read(self: JetStreamStreamReader, partition: Any) -> Iterator[pa.RecordBatch]:
        raise data_loss.DataLossError(
            partition_stream(partition), "removed", "messages 3 to 6 are gone", "so what"
        )
        yield

    patch.setattr(JetStreamStreamReader, "read", read)


def partition_stream(partition: Any) -> str:
    """The stream of a partition, by its picture."""
    return repr(partition).split("'")[1]


def skip_a_batch(patch: pytest.MonkeyPatch) -> None:
    """As a broken end of a range would: nothing is read, nothing is said."""
    patch.setattr(JetStreamStreamReader, "read", lambda self, partition: iter(()))


def stop_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JetStreamStreamReader, "latestOffset", lambda self, start, limit: start)


@pytest.mark.parametrize(
    ("breakage", "purge", "found"),
    [
        (report_nothing, True, "SILENT LOSS of 5"),
        (only_warn, True, "SILENT LOSS of 5"),
        (_reading(lambda batch: [batch.slice(0, batch.num_rows - 1)]), False, "not read, though it is there"),
        (_reading(lambda batch: [batch, batch]), False, "row twice"),
        (skip_a_batch, False, "not read, though it is there"),
        (cry_wolf, False, "told as lost, but 3-6 are there"),
        (stop_early, False, "left unread at the end"),
    ],
    ids=["silence", "warning", "row dropped", "row twice", "nothing read", "false alarm", "end too early"],
)
def test_a_broken_source_is_found(
    monkeypatch: pytest.MonkeyPatch,
    host: Host,
    breakage: Callable[[pytest.MonkeyPatch], None],
    purge: bool,
    found: str,
) -> None:
    breakage(monkeypatch)
    problems = scene(host, purge=purge, fail=True).problems
    assert any(found in problem for problem in problems), problems
