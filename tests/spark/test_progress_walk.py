"""The durable of servers before 2.14: walked, because it can't be reset. Forced on whatever server runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from jetspark import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig
from jetspark.spark.options import OptionError
from jetspark.spark.source import progress_walk
from jetspark.spark.source.claims import Seen
from jetspark.spark.source.data_loss import identity
from jetspark.spark.source.offsets import Offset, StreamOffset
from jetspark.spark.source.options import check_stream, parse_source
from jetspark.spark.source.progress import ProgressMirror
from support.helpers import eventually_sync, unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jetspark import ConsumerInfo
    from jetspark.blocking import JetStream
    from jetspark.server import Server

    Make = Callable[..., str]


@pytest.fixture(autouse=True)
def _no_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_walk, "RESET_SINCE", (99, 0))


@pytest.fixture
def make(js: JetStream) -> Iterator[Make]:
    """Makes streams with so many messages under ``NAME.a`` and ``NAME.b`` in turn."""
    made: list[str] = []

    def stream(messages: int = 0, **config: Any) -> str:
        name = unique("WALK")
        made.append(name)
        js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"], **config))
        fill(js, name, messages)
        return name

    yield stream
    for name in made:
        js.delete_stream(name)


def fill(js: JetStream, stream: str, messages: int) -> None:
    with js.publisher() as publisher:
        for number in range(messages):
            publisher.publish(f"{stream}.{'ab'[number % 2]}", b"a body that does not travel")


def mirror(js: JetStream, server: Server, stream: str, **options: str) -> ProgressMirror:
    given = {"servers": server.url, "stream": stream, "durable": "spark", **options}
    return ProgressMirror(js, parse_source(given))


def at(js: JetStream, stream: str, following: int, **more: Any) -> Offset:
    created = identity(js.get_stream(stream).cached_info)
    return Offset({stream: StreamOffset(next=following, begin=1, created=created, **more)})


def info(js: JetStream, stream: str) -> ConsumerInfo:
    return js.get_consumer(stream, "spark").cached_info


def test_it_follows_over_many_steps(js: JetStream, server: Server, make: Make) -> None:
    name = make(3 * progress_walk.STEP + 7)
    shown = mirror(js, server, name)
    shown.begin(at(js, name, 1))
    assert (info(js, name).ack_floor.stream_seq, info(js, name).config.ack_policy) == (0, AckPolicy.ALL)
    for following in (2, 900, 901, 3 * progress_walk.STEP + 8):
        shown.follow(at(js, name, following))
        found = info(js, name)
        assert found.ack_floor.stream_seq == following - 1
        assert found.num_ack_pending == 0
    assert found.num_pending == 0


def test_it_begins_where_the_query_does(js: JetStream, server: Server, make: Make) -> None:
    name = make(20)
    mirror(js, server, name).begin(at(js, name, 11))
    found = info(js, name)
    assert (found.delivered.consumer_seq, found.num_ack_pending, found.num_pending) == (0, 0, 10)


def test_gaps_and_filters_do_not_carry_it_too_far(js: JetStream, server: Server, make: Make) -> None:
    name = make(40)
    for sequence in range(5, 20):
        js.get_stream(name).delete_msg(sequence)
    shown = mirror(js, server, name, subjects=f"{name}.a")
    shown.begin(at(js, name, 1))
    shown.follow(at(js, name, 21))
    # 1 and 3 are all that is left there; what was delivered beyond stays unacked until its turn.
    first = info(js, name)
    assert first.ack_floor.stream_seq == 3
    assert first.num_ack_pending + first.num_pending == 10
    shown.follow(at(js, name, 31))
    second = info(js, name)
    assert second.ack_floor.stream_seq == 29
    assert second.num_ack_pending + second.num_pending == 5
    shown.follow(at(js, name, 41))
    assert (info(js, name).ack_floor.stream_seq, info(js, name).num_ack_pending) == (39, 0)


def test_interest_streams_release_what_was_committed(js: JetStream, server: Server, make: Make) -> None:
    name = make(retention=RetentionPolicy.INTEREST)
    shown = mirror(js, server, name)
    shown.begin(at(js, name, 1))
    fill(js, name, 30)
    shown.follow(at(js, name, 11))
    state = eventually_sync(lambda: (one := js.get_stream(name).cached_info.state).messages == 20 and one)
    assert state.first_seq == 11


def test_work_queues_are_not_acked_but_released(
    js: JetStream, server: Server, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    name = make(8, retention=RetentionPolicy.WORK_QUEUE)
    with caplog.at_level(logging.WARNING, "jetspark.spark"):
        shown = mirror(js, server, name)
        shown.begin(at(js, name, 1))
        shown.follow(at(js, name, 6))
    # An ack would delete, and nobody asked for that.
    assert caplog.text.count("can't show progress on the work queue") == 1
    assert (js.get_stream(name).cached_info.state.messages, info(js, name).num_pending) == (8, 8)
    mirror(js, server, name, releaseWorkQueue="true").follow(at(js, name, 6))
    assert js.get_stream(name).cached_info.state.messages == 3
    assert eventually_sync(lambda: (one := info(js, name)).num_pending == 3 and one).num_ack_pending == 0


def test_other_subjects_than_the_checkpoint_has_release_nothing(
    js: JetStream, server: Server, make: Make
) -> None:
    name = make(8, retention=RetentionPolicy.WORK_QUEUE)
    changed = mirror(js, server, name, releaseWorkQueue="true", subjects=f"{name}.other")
    with pytest.raises(OptionError, match="would delete unread messages"):
        changed.follow(at(js, name, 6))
    assert js.get_stream(name).cached_info.state.messages == 8


@pytest.mark.parametrize("change", ["made again", "restored and written to", "lost its tail"])
def test_another_stream_than_was_read_releases_nothing(
    js: JetStream, server: Server, make: Make, change: str
) -> None:
    """Before, the unread messages of a stream that was made again were deleted."""
    name = make(8, retention=RetentionPolicy.WORK_QUEUE)
    place = at(js, name, 6)
    if change == "made again":
        config = js.get_stream(name).config
        js.delete_stream(name)
        js.create_stream(config)
        fill(js, name, 8)
    elif change == "restored and written to":
        place = at(js, name, 6, seen=Seen(1, 5, tail_time=1))
    else:
        place = at(js, name, 20)
    mirror(js, server, name, releaseWorkQueue="true").follow(place)
    assert js.get_stream(name).cached_info.state.messages == 8


@pytest.mark.parametrize(
    "start", [{}, {"startingPosition": "latest"}, {"startingSequence": "3"}, {"startingTime": "-1 hour"}]
)
def test_a_query_that_begins_elsewhere_than_at_the_beginning_releases_nothing(start: dict[str, str]) -> None:
    given = {"servers": "nats://127.0.0.1:4222", "stream": "S", "releaseWorkQueue": "true"}
    with pytest.raises(OptionError, match="set startingPosition=earliest"):
        check_stream(parse_source(given | start))
    check_stream(parse_source({**given, "startingPosition": "earliest"}))


def test_what_a_run_before_left_unacked_is_waited_for(
    js: JetStream, server: Server, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetspark.spark.source.progress.ACK_WAIT", 0.5)
    monkeypatch.setattr("jetspark.spark.source.progress.RETRY", 0.0)
    name = make(10)
    mirror(js, server, name).begin(at(js, name, 1))
    # The run that ended had them delivered and never acked.
    assert len(js.get_consumer(name, "spark").fetch_no_wait(10)) == 10
    shown = mirror(js, server, name)

    def arrived() -> bool:
        shown.follow(at(js, name, 11))
        return info(js, name).ack_floor.stream_seq == 10

    eventually_sync(arrived)
    assert info(js, name).num_ack_pending == 0


def test_a_consumer_with_explicit_acks_is_walked_too(js: JetStream, server: Server, make: Make) -> None:
    name = make(25)
    js.create_consumer(name, ConsumerConfig(durable_name="spark"))
    mirror(js, server, name).follow(at(js, name, 24))
    found = info(js, name)
    assert (found.ack_floor.stream_seq, found.num_ack_pending, found.num_pending) == (23, 0, 2)


def test_one_that_is_ahead_stays_and_says_so(
    js: JetStream, server: Server, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    name = make(10)
    mirror(js, server, name).begin(at(js, name, 9))
    shown = mirror(js, server, name)
    with caplog.at_level(logging.WARNING, "jetspark.spark"):
        shown.begin(at(js, name, 3))
        shown.follow(at(js, name, 4))
    assert caplog.text.count("is already at sequence 8, beyond 2") == 1
    assert caplog.text.count("already") == 1
    assert info(js, name).num_pending == 2
