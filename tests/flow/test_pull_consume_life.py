"""ADR-37 for ``consume`` over its life in simulated time: heartbeats, reconnects, pins and the end."""

from __future__ import annotations

import pytest

from flow.flow_harness import HEARTBEAT, Sim, conclusions, consuming, pulls, warnings
from jetspark.jetstream.consume import errors
from jetspark.jetstream.flow.actions import ChangeInbox, ClearPin, Conclude, SendPull, Unsubscribe, Warn
from jetspark.jetstream.flow.options import PullOptions
from jetspark.jetstream.flow.pull import LATE_PAUSE, State

# --- heartbeats ----------------------------------------------------------------------------------------


def test_the_alarm_comes_at_twice_the_heartbeat_warns_and_pulls_again() -> None:
    sim, _ = consuming(max_messages=10, expires=10.0)
    assert sim.advance(9.99) == []
    told = sim.advance(0.01)
    assert [type(w) for w in warnings(told)] == [errors.MissedHeartbeat]
    assert [pull.batch for pull in pulls(told)] == [10]
    assert not sim.flow.concluded


def test_the_alarm_repeats_but_never_concludes() -> None:
    sim, _ = consuming(max_messages=10, expires=10.0)
    told = sim.advance(100.0)
    assert len(warnings(told)) == 10
    assert conclusions(told) == []


@pytest.mark.parametrize("traffic", ["message", "status", "heartbeat"])
def test_the_timer_is_reset_by_any_traffic(traffic: str) -> None:
    sim, _ = consuming(max_messages=100, expires=60.0, idle_heartbeat=5.0)
    for _ in range(3):
        assert sim.advance(9.9) == []
        if traffic == "message":
            sim.receive(1)
        elif traffic == "status":
            sim.status(101, "Whatever")
        else:
            sim.flow.on_status(HEARTBEAT, sim.now)
    assert warnings(sim.advance(10.0)) != []


def test_a_slow_handler_with_a_full_buffer_raises_no_alarm() -> None:
    sim, _ = consuming(max_messages=10, expires=10.0)
    sim.receive(10)
    assert sim.flow.next_deadline() is None
    assert sim.advance(3600.0) == []
    assert len(pulls(sim.process(10))) == 1
    # The server owes a heartbeat only from this request on.
    assert sim.advance(9.99) == []
    assert len(warnings(sim.advance(0.01))) == 1


def test_a_handler_that_blocks_the_loop_raises_no_alarm() -> None:
    sim, _ = consuming(max_messages=10, expires=200.0, idle_heartbeat=5.0)
    sim.now += 60.0  # the timer fires late, before the socket could be read
    assert sim.flow.on_timer(sim.now) == ()
    assert sim.flow.next_deadline() == pytest.approx(sim.now + LATE_PAUSE)
    sim.heartbeat()
    assert sim.advance(LATE_PAUSE) == []


def test_a_late_timer_alarms_when_there_was_nothing_to_read() -> None:
    sim, _ = consuming(max_messages=10, expires=10.0)
    sim.now += 60.0
    sim.flow.on_timer(sim.now)
    assert len(warnings(sim.advance(LATE_PAUSE))) == 1


def test_on_timer_before_its_time_does_nothing() -> None:
    sim, _ = consuming(max_messages=10)
    assert sim.flow.on_timer(sim.now + 1) == ()


def test_a_request_past_its_client_side_deadline_is_written_off() -> None:
    sim, _ = consuming(max_messages=10, expires=10.0)
    told = []
    for _ in range(7):  # heartbeats keep coming, the time-out of the request does not
        told += sim.advance(2.0)
        told += sim.heartbeat()
    assert warnings(told) == []
    assert [pull.batch for pull in pulls(told)] == [10]


# --- connection ----------------------------------------------------------------------------------------


def test_disconnect_pauses_the_timer_and_stops_pulls() -> None:
    sim, _ = consuming(max_messages=10, expires=10.0)
    sim.receive(10)
    sim.process(10)
    assert sim.flow.outstanding_requests == 1
    sim.receive(10)
    sim.process(1)
    assert sim.disconnect() == []
    assert sim.flow.outstanding_requests == 0
    assert sim.flow.next_deadline() is None
    assert sim.process(9) == []
    assert sim.advance(3600.0) == []


def test_reconnect_resets_pending_and_the_timer_and_pulls_again() -> None:
    sim, _ = consuming(max_messages=10, expires=10.0)
    sim.receive(4)
    sim.disconnect()
    sim.advance(3600.0)
    told = sim.reconnect()
    assert [type(action) for action in told] == [SendPull]
    assert [pull.batch for pull in pulls(told)] == [6]
    assert sim.advance(9.99) == []
    assert len(warnings(sim.advance(0.01))) == 1


def test_reconnect_forgets_the_backoff() -> None:
    sim, _ = consuming(max_messages=10)
    for _ in range(5):
        sim.status(503)
        sim.advance(5.0)
    sim.status(503)
    sim.disconnect()
    assert len(pulls(sim.reconnect())) == 1


def test_reconnects_never_terminate() -> None:
    sim, _ = consuming(max_messages=10)
    for _ in range(50):
        assert conclusions(sim.disconnect() + sim.advance(100.0) + sim.reconnect()) == []
    assert sim.flow.state is State.RUNNING


def test_a_reconnect_without_a_disconnect_sends_nothing() -> None:
    sim, _ = consuming(max_messages=10)
    assert sim.reconnect() == []


def test_started_while_disconnected_pulls_on_reconnect() -> None:
    sim = Sim(PullOptions(max_messages=10), connected=False)
    assert sim.start() == []
    assert len(pulls(sim.reconnect())) == 1


# --- pins (ADR-42) -------------------------------------------------------------------------------------


def test_the_pin_id_of_messages_is_sent_with_every_later_pull() -> None:
    sim, (first,) = consuming(max_messages=10, group="g")
    assert first.pin_id == ""
    sim.flow.on_pin_id("abc")
    sim.receive(10)
    assert [pull.pin_id for pull in pulls(sim.process(10))] == ["abc"]


@pytest.mark.parametrize("with_headers", [True, False])
def test_423_drops_the_pin_and_pulls_again_without_it(with_headers: bool) -> None:
    sim = Sim(PullOptions(max_messages=10, group="g"), pin_id="old")
    sim.start()
    if with_headers:
        told = sim.status(423, "Nats-Wrong-Pin-Id", (10, 0))
    else:
        told = sim.status(423, "Nats-Pin-Id mismatch")
    assert [type(action) for action in told] == [ClearPin, SendPull]
    assert [(pull.batch, pull.pin_id) for pull in pulls(told)] == [(10, "")]


def test_423_of_several_requests_is_no_reason_to_wait() -> None:
    sim = Sim(PullOptions(max_messages=100, group="g"), pin_id="old")
    sim.start()
    sim.receive(60)
    sim.process(60)
    told = sim.status(423, "Nats-Wrong-Pin-Id", (40, 0)) + sim.status(423, "Nats-Wrong-Pin-Id", (60, 0))
    assert len([action for action in told if isinstance(action, ClearPin)]) == 1
    assert sum(pull.batch for pull in pulls(told)) == 100


def test_423_without_a_pin_does_not_loop_tightly() -> None:
    sim, _ = consuming(max_messages=10, group="g")
    sent = 0
    for _ in range(10):
        sent += len(pulls(sim.status(423, "Nats-Pin-Id mismatch")))
    assert sent <= 1
    assert len(pulls(sim.advance(0.2))) == 1


# --- the end -------------------------------------------------------------------------------------------


def test_stop_discards_the_buffer() -> None:
    sim, _ = consuming(max_messages=10)
    sim.receive(5)
    assert sim.flow.stop(sim.now) == (Conclude(None, discard=True),)
    assert sim.flow.stop(sim.now) == ()


def test_drain_pulls_no_more_delivers_what_is_buffered_and_then_concludes() -> None:
    sim, _ = consuming(max_messages=10)
    sim.receive(5)
    assert sim.flow.drain(sim.now) == (Unsubscribe(),)
    assert sim.receive(2) == []  # was on its way
    assert sim.process(4) == []
    assert sim.flow.on_unsubscribed(sim.now) == ()
    assert sim.flow.next_deadline() is None
    assert sim.process(2) == []
    assert sim.process(1) == [Conclude()]


def test_drain_waits_for_the_unsubscribe_even_when_the_buffer_is_empty() -> None:
    sim, _ = consuming(max_messages=10)
    assert sim.flow.drain(sim.now) == (Unsubscribe(),)
    assert sim.flow.drain(sim.now) == ()
    assert sim.status(408, "Request Timeout", (10, 0)) == []
    assert sim.flow.on_unsubscribed(sim.now) == (Conclude(),)


def test_drain_concludes_although_the_connection_breaks() -> None:
    sim, _ = consuming(max_messages=10)
    sim.receive(1)
    sim.flow.drain(sim.now)
    assert sim.disconnect() == []
    assert sim.reconnect() == []
    assert sim.process(1) == [Conclude()]


def test_drain_while_disconnected_and_before_start() -> None:
    sim, _ = consuming(max_messages=10)
    sim.disconnect()
    assert sim.flow.drain(sim.now) == (Conclude(),)
    assert Sim(PullOptions()).flow.drain(0.0) == (Conclude(),)


def test_stop_after_concludes_and_never_requests_more() -> None:
    sim, first = consuming(max_messages=10, stop_after=15)
    requested = sum(pull.batch for pull in first)
    ended: list[Conclude] = []
    for _ in range(15):
        assert sim.flow.deliverable > 0
        sim.receive(1)
        told = sim.process(1)
        requested += sum(pull.batch for pull in pulls(told))
        ended += conclusions(told)
    assert requested == 15
    assert len(ended) == 1
    assert sim.flow.deliverable == 0


def test_stop_after_with_max_bytes_has_one_exact_request_at_a_time() -> None:
    sim, first = consuming(max_bytes=1000, stop_after=5)
    assert [pull.batch for pull in first] == [5]
    sim.receive(3, 1000)  # comes out even: the request is gone without a word
    (refill,) = pulls(sim.process(3, 1000))
    assert (refill.batch, refill.max_bytes) == (2, 1000)


# --- what was written off ------------------------------------------------------------------------------


def writing_off() -> Sim:
    """Ten messages were asked for, and the alarm has come; the inbox is being changed."""
    sim = Sim(PullOptions(max_messages=10, expires=10.0), confirms=False)
    sim.start()
    told = sim.advance(10.0)
    assert [type(action) for action in told] == [Warn, ChangeInbox]
    return sim


def test_nothing_is_pulled_until_the_old_requests_are_gone() -> None:
    sim = writing_off()
    assert sim.process(0) == []
    told = sim.advance(30.0)
    assert [type(action) for action in told] == [Warn, Warn, Warn]
    assert [pull.batch for pull in pulls(sim.change_inbox())] == [10]
    assert sim.change_inbox() == []


def test_messages_of_a_request_that_was_written_off_take_up_room() -> None:
    sim = writing_off()
    sim.receive(7)
    assert sim.flow.pending_messages == 7
    # Room for three: more than half is left.
    assert sim.change_inbox() == []
    assert [pull.batch for pull in pulls(sim.process(2))] == [5]


def test_the_late_end_of_a_request_that_was_written_off_takes_nothing_from_the_next() -> None:
    sim = writing_off()
    assert sim.status(408, "Request Timeout", (10, 0)) == []
    assert [pull.batch for pull in pulls(sim.change_inbox())] == [10]
    assert sim.flow.pending_messages == 10


def test_all_requests_are_void_and_go_with_their_inbox() -> None:
    """One that was sent just before may have reached the new leader and live on."""
    sim = Sim(PullOptions(max_messages=10, expires=10.0), confirms=False)
    sim.start()
    told = sim.status(409, "Leadership Change")
    assert [type(action) for action in told] == [Warn, ChangeInbox]
    assert [pull.batch for pull in pulls(sim.change_inbox())] == [10]


def test_a_link_that_is_lost_meanwhile_starts_from_nothing() -> None:
    sim = writing_off()
    sim.disconnect()
    assert not sim.flow.changing_inbox
    assert sim.change_inbox() == []
    assert [pull.batch for pull in pulls(sim.reconnect())] == [10]


# --- max_waiting ---------------------------------------------------------------------------------------


def test_a_narrow_consumer_is_asked_so_that_a_refusal_is_heard() -> None:
    options = PullOptions(max_messages=10, threshold_messages=2, expires=10.0)
    sim = Sim(options, narrow=True)
    (first,) = pulls(sim.start())
    assert (first.idle_heartbeat_ns, first.expires_ns) == (0, 5_000_000_000)
    sim.receive(8)
    (second,) = pulls(sim.process(8))
    assert second.batch == 8
    told = sim.status(409, "Exceeded MaxWaiting")
    assert [type(w) for w in warnings(told)] == [errors.MaxWaitingExceeded]
    assert pulls([*told, *sim.advance(1.0)]) == []
    # The first is used up: now there is room.
    (third,) = pulls(sim.receive(2))
    assert third.batch == 8


def test_a_lone_request_that_is_refused_is_repeated_with_backoff() -> None:
    sim = Sim(PullOptions(max_messages=10, expires=10.0), narrow=True)
    sim.start()
    told = sim.status(409, "Exceeded MaxWaiting")
    assert pulls(told) == []
    assert len(pulls(sim.advance(0.1))) == 1
