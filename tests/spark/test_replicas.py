"""Reading from a replica that is behind its leader: late, but whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from jetspark import ConsumerConfig, RetentionPolicy, StreamConfig, blocking
from jetspark.errors import RequestTimeout
from jetspark.spark import patience
from jetspark.spark.source import moments, positions, range_proof
from jetspark.spark.source.data_loss import DataLossError, identity
from jetspark.spark.source.options import Moment, Position
from jetspark.spark.source.planning import Range
from jetspark.spark.source.range_proof import LeaderBehind, RangeInterrupted, prove_end
from jetspark.spark.source.range_reader import RangeReader
from support.helpers import three_nodes, unique
from support.lagging import behind, follower_of

if TYPE_CHECKING:
    from jetspark.server import Cluster

SEQUENCE = pa.schema([("sequence", pa.int64())])


def reader(js: blocking.JetStream, *, fail: bool = True) -> RangeReader:
    return RangeReader(js, SEQUENCE, fail_on_data_loss=fail, batch_rows=10_000, buffer_messages=10_000)


def read(js: blocking.JetStream, wanted: Range) -> list[int]:
    return [one for batch in reader(js).read(wanted) for one in batch.column(0).to_pylist()]


@pytest.mark.cluster
@pytest.mark.parametrize("retention", [RetentionPolicy.LIMITS, RetentionPolicy.WORK_QUEUE])
@pytest.mark.parametrize("subjects", [(), ("s.a", "s.b")])
def test_a_replica_that_is_behind_loses_no_row(
    monkeypatch: pytest.MonkeyPatch, retention: RetentionPolicy, subjects: tuple[str, ...]
) -> None:
    interrupted = 0

    def noted(*arguments: object) -> None:
        nonlocal interrupted
        try:
            prove_end(*arguments)  # type: ignore[arg-type]
        except RangeInterrupted as error:
            interrupted += not isinstance(error, LeaderBehind)
            raise

    monkeypatch.setattr(range_proof, "prove_end", noted)
    with three_nodes() as cluster, blocking.connect(cluster.urls) as nc:
        js = nc.jetstream()
        config = StreamConfig(
            name="S", subjects=["s.*"], num_replicas=3, retention=retention, allow_direct=True
        )
        created = identity(js.create_stream(config).cached_info)
        follower = follower_of(cluster, js, "S")
        with blocking.connect(follower.url) as beside:
            # Whether a read meets the replica while it is behind is a matter of luck, so until one did.
            for _ in range(20):
                with behind(follower, js, "S", "s.a") as last:
                    wanted = Range("S", last - 99, last + 1, created, subjects)
                    for _ in range(10):
                        assert read(beside.jetstream(), wanted) == list(range(last - 99, last + 1))
                if interrupted:
                    break
        assert interrupted, "no read met the replica that was behind"


@pytest.mark.parametrize("retention", [RetentionPolicy.LIMITS, RetentionPolicy.WORK_QUEUE])
def test_what_is_deleted_or_of_other_subjects_at_the_end_is_not_waited_for(
    js: blocking.JetStream, retention: RetentionPolicy
) -> None:
    stream = js.create_stream(
        StreamConfig(name="TAIL", subjects=["tail.*"], retention=retention, allow_direct=True)
    )
    for number in range(10):
        js.publish(f"tail.{'a' if number < 6 else 'b'}", b"")
    stream.delete_msg(6)
    stream.delete_msg(10)
    created = identity(stream.cached_info)
    prove_end(stream, Range("TAIL", 1, 11, created), 10)
    prove_end(stream, Range("TAIL", 1, 11, created, ("tail.a",)), 6)
    with pytest.raises(RangeInterrupted, match="ends before sequence 9, which the leader has"):
        prove_end(stream, Range("TAIL", 1, 11, created, ("tail.a", "tail.b")), 9)
    assert read(js, Range("TAIL", 1, 11, created, ("tail.a",))) == [1, 2, 3, 4, 5]
    stream.delete()


def test_a_stream_that_lost_its_end(js: blocking.JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE", 0.2)
    stream = js.create_stream(
        StreamConfig(
            name="REWOUND", subjects=["rewound"], retention=RetentionPolicy.WORK_QUEUE, allow_direct=True
        )
    )
    for _ in range(3):
        js.publish("rewound", b"")
    wanted = Range("REWOUND", 1, 6, identity(stream.cached_info))
    with pytest.raises(DataLossError, match="ends at sequence 3, but was read up to 5"):
        next(reader(js).read(wanted))
    assert sum(batch.num_rows for batch in reader(js, fail=False).read(wanted)) == 3
    stream.delete()


@pytest.mark.parametrize("last", [False, True])
def test_trouble_while_the_leader_is_asked_is_waited_out(
    js: blocking.JetStream, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    stream = js.create_stream(
        StreamConfig(
            name="TROUBLE", subjects=["trouble.*"], retention=RetentionPolicy.WORK_QUEUE, allow_direct=True
        )
    )
    for name in "aaabbb":
        js.publish(f"trouble.{name}", b"")
    created = identity(stream.cached_info)
    asked = 0

    def troubled(*arguments: object) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RequestTimeout("an election")
        prove_end(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(range_proof, "prove_end", troubled)
    found = read(js, Range("TROUBLE", 1, 7, created, ("trouble.a",), earliest=True, last_per_subject=last))
    assert (found, asked) == ([3] if last else [1, 2, 3], 2)
    # And a stream that has lost its end, whatever is read of it.
    monkeypatch.setattr(patience, "PATIENCE", 0.2)
    short = Range("TROUBLE", 1, 9, created, ("trouble.a",), earliest=True, last_per_subject=last)
    rows = [batch.num_rows for batch in reader(js, fail=False).read(short)]
    assert sum(rows) == (1 if last else 3)
    with pytest.raises(DataLossError, match="ends at sequence 6"):
        list(reader(js).read(short))
    stream.delete()


def test_times_before_the_leader_knew_them(js: blocking.JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = js.create_stream(StreamConfig(name="TIMES", subjects=["times"]))
    for _ in range(4):
        js.publish("times", b"")
    info = stream.info()
    times = [stream.get_msg(number).timestamp for number in range(1, 5)]
    for since in ((2, 11), (99, 0)):
        monkeypatch.setattr(moments, "_TIMES_SINCE", since)
        found = [positions.resolve(js, info, Position(moment=Moment(at=one))) for one in times]
        assert found == [1, 2, 3, 4]
        assert positions.resolve(js, info, Position(moment=Moment(seconds_ago=-3600.0))) == 5
    assert list(stream.consumer_names()) == []
    stream.delete()


@pytest.mark.parametrize("last", [False, True])
def test_replicated_interest_streams(cluster: Cluster, last: bool) -> None:
    """Their consumers must have as many replicas as they have. Before, they could not be read."""
    with blocking.connect(cluster.urls) as nc:
        js = nc.jetstream()
        name = unique("INTEREST")
        stream = js.create_stream(
            StreamConfig(
                name=name, subjects=[f"{name}.*"], num_replicas=3, retention=RetentionPolicy.INTEREST
            )
        )
        stream.create_consumer(ConsumerConfig(durable_name="keeps"))
        for subject in "aab":
            js.publish(f"{name}.{subject}", b"")
        wanted = Range(name, 1, 4, identity(stream.cached_info), last_per_subject=last)
        assert sorted(read(js, wanted)) == ([2, 3] if last else [1, 2, 3])
        stream.delete()
