"""Requests without heartbeats while the consumer has plenty left, in simulated time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flow.flow_harness import Sim, pulls, warnings
from jetspark.jetstream.consume.errors import MissedHeartbeat
from jetspark.jetstream.flow.options import FetchOptions, PullOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetspark.jetstream.flow.actions import Action, SendPull

PLENTY = 1_000_000
HEARTBEAT_NS = 5_000_000_000


def trusting(**options: object) -> Sim:
    """A consume of 100 messages at a time that trusts what it hears; its first requests are sent."""
    settings = {"max_messages": 100, "expires": 10.0, **options}
    sim = Sim(PullOptions(**settings), trust_backlog=True)  # type: ignore[arg-type]
    first = pulls(sim.start())
    assert first
    assert all(pull.idle_heartbeat_ns for pull in first)
    return sim


def brought(sim: Sim, count: int, left: int) -> list[Action]:
    """A chunk arrives whose last message says what is left; the user takes it at once."""
    sim.flow.on_backlog(left)
    return [*sim.receive(count), *sim.process(count)]


def silent(pull: SendPull) -> bool:
    return pull.idle_heartbeat_ns == 0


def half_silent() -> Sim:
    """50 messages of a request with heartbeats are outstanding, and 50 of a silent one."""
    sim = trusting()
    (pull,) = pulls(brought(sim, 50, PLENTY))
    assert (pull.batch, silent(pull)) == (50, True)
    return sim


def all_silent() -> Sim:
    """What is outstanding is silent: 50 messages. 50 more are in the user's hands, not taken yet."""
    sim = half_silent()
    sim.flow.on_backlog(PLENTY)
    assert sim.receive(50) == []
    assert sim.flow.pending_messages == 100
    return sim


# --- when ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "expected"), [(0, False), (99, False), (100, True), (PLENTY, True)])
def test_silent_when_the_backlog_covers_it_and_all_that_is_outstanding(left: int, expected: bool) -> None:
    sim = trusting()
    (pull,) = pulls(brought(sim, 50, left))
    # 50 of the first request are to come, this one asks for 50 more.
    assert pull.batch == 50
    assert silent(pull) is expected


def test_a_silent_request_expires_when_its_first_heartbeat_would_have_come() -> None:
    sim = trusting()
    (pull,) = pulls(brought(sim, 100, PLENTY))
    assert (pull.batch, pull.expires_ns, pull.idle_heartbeat_ns) == (100, HEARTBEAT_NS, 0)
    assert b"idle_heartbeat" not in pull.to_json()


def test_of_several_requests_those_that_the_backlog_covers() -> None:
    sim = trusting()
    sim.status(409, "Exceeded MaxRequestBatch of 30")
    assert sim.flow.pending_messages == 100
    told = pulls(brought(sim, 100, 70))
    assert [(pull.batch, silent(pull)) for pull in told] == [(30, True), (30, True), (30, False), (10, False)]


def test_the_end_of_a_backlog_is_waited_for_with_heartbeats() -> None:
    sim = trusting()
    seen: list[bool] = []
    outstanding = 100
    for left in range(450, -1, -50):
        told = pulls(brought(sim, 50, left))
        outstanding += sum(pull.batch for pull in told) - 50
        seen += [silent(pull) for pull in told]
    assert seen == [True] * 8 + [False] * 2
    assert outstanding == sim.flow.pending_messages == 100


def test_stop_after_and_a_buffer_of_one() -> None:
    sim = trusting(stop_after=120)
    (pull,) = pulls(brought(sim, 50, PLENTY))
    assert (pull.batch, silent(pull)) == (20, True)
    one = trusting(max_messages=1)
    (pull,) = pulls(brought(one, 1, PLENTY))
    assert (pull.batch, silent(pull)) == (1, True)


@pytest.mark.parametrize(("left", "expected"), [(0, False), (9, False), (10, True), (PLENTY, True)])
def test_a_buffer_of_bytes_goes_by_the_size_of_the_newest_messages(left: int, expected: bool) -> None:
    sim = trusting(max_messages=None, max_bytes=10_000)
    assert not pulls([*sim.receive(20, 2_000), *sim.process(20, 2_000)])
    sim.flow.on_backlog(left)
    # 4,000 bytes of the first request are to come, this one asks for 6,000 more: ten messages of 1,000.
    (pull,) = pulls([*sim.receive(4, 4_000), *sim.process(4, 4_000)])
    assert (pull.max_bytes, silent(pull)) == (6_000, expected)


@pytest.mark.parametrize("count", [b"0", b"99", b"100", b"1000000", b"", b"-1", b"1e9"])
@pytest.mark.parametrize("form", [b"$JS.ACK.s.c.1.5.7.1700000000000000000.", b"$JS.ACK._.h.s.c.1.5.7.99."])
def test_an_ack_reply_says_what_is_left(form: bytes, count: bytes) -> None:
    sim = trusting()
    sim.flow.on_backlog(PLENTY)
    sim.flow.on_backlog(form + count)
    (pull,) = pulls([*sim.receive(50), *sim.process(50)])
    # 50 messages of the first request are to come, and this one asks for 50 more.
    assert silent(pull) is (count in (b"100", b"1000000"))
    assert pull.batch == 50


def test_the_last_messages_are_known_once_a_request_asks_for_more_than_is_left() -> None:
    sim = trusting()
    assert sim.flow.last_left is None
    brought(sim, 50, 1_000)
    assert sim.flow.last_left is None, "there is enough"
    brought(sim, 50, 99)
    assert sim.flow.last_left == 99
    sim.flow.on_backlog(b"$JS.ACK.s.c.1.5.7.1700000000000000000.49")
    assert sim.flow.last_left == 49
    brought(sim, 50, 1_000)
    assert sim.flow.last_left is None, "somebody published"
    brought(sim, 50, 0)
    assert sim.flow.last_left is None, "that says nothing"


def test_the_last_messages_are_forgotten_with_the_rest() -> None:
    sim = trusting()
    brought(sim, 50, 99)
    assert sim.flow.last_left == 99
    sim.status(409, "Leadership Change")
    assert sim.flow.last_left is None


def test_what_an_ack_reply_said_is_forgotten_with_the_rest() -> None:
    sim = trusting()
    sim.flow.on_backlog(b"$JS.ACK.s.c.1.5.7.1700000000000000000.1000000")
    told = pulls([*sim.receive(10), *sim.process(10), *sim.status(408, "Request Timeout", left=(90, 0))])
    assert told
    assert not any(map(silent, told))


@pytest.mark.parametrize("description", ["Message Size Exceeds MaxBytes", "Batch Completed"])
def test_a_request_that_was_served_to_its_end_says_nothing_against_the_backlog(description: str) -> None:
    sim = trusting(max_messages=None, max_bytes=10_000)
    sim.flow.on_backlog(PLENTY)
    assert not pulls([*sim.receive(4, 4_000), *sim.process(4, 4_000)])
    (pull,) = pulls(sim.status(409, description, left=(999_996, 6_000)))
    assert (pull.max_bytes, silent(pull)) == (10_000, True)


# --- when not ------------------------------------------------------------------------------------------


def test_off_by_default() -> None:
    sim = Sim(PullOptions(max_messages=100, expires=10.0))
    told = pulls(sim.start())
    for _ in range(10):
        told += pulls(brought(sim, 50, PLENTY))
    assert len(told) == 11
    assert {pull.idle_heartbeat_ns for pull in told} == {HEARTBEAT_NS}
    assert {pull.expires_ns for pull in told} == {2 * HEARTBEAT_NS}


@pytest.mark.parametrize(
    "options",
    [{"max_bytes_per_request": 10_000}, {"group": "jobs"}],
)
def test_not_with_two_limits_and_not_in_a_priority_group(options: dict[str, object]) -> None:
    sim = trusting(**options)
    told = pulls(brought(sim, 100, PLENTY))
    assert told
    assert not any(map(silent, told))


def test_a_fetch_has_nothing_to_do_with_it() -> None:
    sim = Sim(FetchOptions(max_messages=10, expires=40.0), trust_backlog=True)
    sim.flow.on_backlog(PLENTY)
    (pull,) = pulls(sim.start())
    assert not silent(pull)


# --- what is known is forgotten ------------------------------------------------------------------------


def reconnect(sim: Sim) -> list[Action]:
    return [*sim.disconnect(), *sim.reconnect()]


def stale_while_disconnected(sim: Sim) -> list[Action]:
    sim.disconnect()
    sim.flow.on_backlog(PLENTY)  # the rest of what was received
    return sim.reconnect()


@pytest.mark.parametrize(
    "event",
    [
        reconnect,
        stale_while_disconnected,
        lambda sim: sim.status(408, "Request Timeout", left=(50, 0)),
        lambda sim: sim.status(409, "Leadership Change"),
        lambda sim: sim.status(409, "Exceeded MaxWaiting"),
        lambda sim: sim.heartbeat(),
        lambda sim: sim.advance(10.0),
    ],
    ids=["reconnect", "stale", "408", "leader", "refused", "heartbeat", "alarm"],
)
def test_what_is_known_is_dropped(event: Callable[[Sim], list[Action]]) -> None:
    sim = half_silent()
    told = pulls(event(sim))
    told += pulls(sim.advance(0.1))  # what a refusal holds back
    told += pulls(sim.process(0))
    if not told:
        told = pulls([*sim.receive(50), *sim.process(50)])
    assert told
    assert not any(map(silent, told))
    # Until the next message says it again. In these tests all that was asked for comes at once.
    assert all(map(silent, pulls(brought(sim, sim.flow.pending_messages, PLENTY))))


@pytest.mark.parametrize(("left", "expected"), [(0, False), (89, False), (90, True)])
def test_the_first_request_goes_by_what_the_consumer_had(left: int, expected: bool) -> None:
    sim = Sim(PullOptions(max_messages=100, expires=10.0), trust_backlog=True)
    sim.receive(10)  # a cancelled fetch had left them
    sim.flow.on_backlog(left)
    (pull,) = pulls(sim.start())
    assert (pull.batch, silent(pull)) == (90, expected)


# --- silence -------------------------------------------------------------------------------------------


def test_a_time_out_gives_back_what_was_left_and_heartbeats_follow() -> None:
    sim = all_silent()
    assert sim.advance(5.0) == []
    # The backlog was purged, the user sleeps: his 50 messages keep their room.
    (pull,) = pulls(sim.status(408, "Request Timeout", left=(50, 0)))
    assert (pull.batch, silent(pull), pull.expires_ns) == (50, False, 2 * HEARTBEAT_NS)
    assert sim.flow.pending_messages == 100
    for _ in range(2):
        assert sim.advance(5.0) == []
        assert sim.heartbeat() == []


def test_the_alarm_comes_at_two_heartbeats_when_nobody_answers() -> None:
    sim = all_silent()
    assert sim.advance(9.99) == []
    told = sim.advance(0.01)
    assert [type(warning) for warning in warnings(told)] == [MissedHeartbeat]
    (pull,) = pulls(told)
    assert (pull.batch, silent(pull)) == (50, False)


def test_too_many_requests_are_told_to_a_silent_one_only() -> None:
    """So that is the one to be taken out of the books, not a younger one with heartbeats."""
    sim = Sim(PullOptions(max_messages=100, threshold_messages=99, expires=10.0), trust_backlog=True)
    sim.start()
    (first,) = pulls(brought(sim, 40, PLENTY))
    (second,) = pulls(brought(sim, 10, 0))
    assert [(pull.batch, silent(pull)) for pull in (first, second)] == [(40, True), (10, False)]
    told = sim.status(409, "Exceeded MaxWaiting")
    assert sim.flow.pending_messages == 60
    assert [pull.batch for pull in pulls([*told, *sim.advance(0.1)])] == [40]


def test_time_outs_never_lift_what_is_pending_above_the_limit() -> None:
    sim = trusting()
    outstanding = 100
    for turn in range(40):
        told = pulls(brought(sim, 50, PLENTY if turn % 3 else 0))
        outstanding += sum(pull.batch for pull in told) - 50
        if turn % 4 == 3:
            sim.advance(5.0)
            left = min(30, outstanding)
            told = pulls(sim.status(408, "Request Timeout", left=(left, 0)))
            outstanding += sum(pull.batch for pull in told) - left
        assert outstanding == sim.flow.pending_messages <= 100
