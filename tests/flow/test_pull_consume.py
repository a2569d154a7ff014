"""ADR-37 for ``consume``, rule by rule, in simulated time. A test is named after the rule it holds."""

from __future__ import annotations

import json

import pytest

from flow.flow_harness import HEARTBEAT, Sim, conclusions, pulls, warnings
from jetspark.jetstream import consume_errors as errors
from jetspark.jetstream.flow_actions import ClearPin, Conclude, SendPull, Unsubscribe
from jetspark.jetstream.pull_flow import BACKOFF_MAX, LATE_PAUSE, MAX_REQUESTS, State
from jetspark.jetstream.pull_options import PullOptions


def consuming(**options: object) -> tuple[Sim, list[SendPull]]:
    sim = Sim(PullOptions(**options))  # type: ignore[arg-type]
    return sim, pulls(sim.start())


# --- requests and buffer -------------------------------------------------------------------------------


def test_first_request_fills_the_buffer() -> None:
    sim, first = consuming(max_messages=200)
    assert [(pull.batch, pull.max_bytes) for pull in first] == [(200, 0)]
    assert sim.flow.pending_messages == 200


def test_a_request_carries_exactly_the_fields_that_are_set() -> None:
    _, (plain,) = consuming(max_messages=10, expires=10.0)
    assert json.loads(plain.to_json()) == {
        "batch": 10,
        "expires": 10_000_000_000,
        "idle_heartbeat": 5_000_000_000,
    }


def test_priority_group_options_pass_through() -> None:
    sim = Sim(PullOptions(group="jobs", min_pending=5, min_ack_pending=6, priority=3), pin_id="abc")
    (pull,) = pulls(sim.start())
    body = json.loads(pull.to_json())
    assert (body["group"], body["min_pending"], body["min_ack_pending"]) == ("jobs", 5, 6)
    assert (body["priority"], body["id"]) == (3, "abc")


def test_max_bytes_asks_for_a_batch_of_a_million() -> None:
    _, first = consuming(max_bytes=5000)
    assert [(pull.batch, pull.max_bytes) for pull in first] == [(1_000_000, 5000)]


def test_heartbeats_are_always_on_and_at_most_half_of_expires() -> None:
    _, (pull,) = consuming(expires=1.0)
    assert 0 < pull.idle_heartbeat_ns * 2 <= pull.expires_ns


def test_receiving_does_not_change_pending_processing_does() -> None:
    sim, _ = consuming(max_messages=100)
    assert sim.receive(30) == []
    assert sim.flow.pending_messages == 100
    assert sim.process(30) == []
    assert sim.flow.pending_messages == 70


def test_refill_at_the_default_threshold_of_half() -> None:
    sim, _ = consuming(max_messages=100)
    sim.receive(100)
    assert sim.process(49) == []
    (refill,) = pulls(sim.process(1))
    assert refill.batch == 50
    assert sim.flow.pending_messages == 100


def test_refill_at_a_threshold_of_choice() -> None:
    sim, _ = consuming(max_messages=100, threshold_messages=90)
    sim.receive(100)
    assert sim.process(9) == []
    assert [pull.batch for pull in pulls(sim.process(1))] == [10]


def test_threshold_equal_to_the_limit_refills_what_was_processed() -> None:
    sim, _ = consuming(max_messages=100, threshold_messages=100)
    sim.receive(100)
    assert [pull.batch for pull in pulls(sim.process(1))] == [1]


def test_threshold_zero_refills_only_an_empty_buffer() -> None:
    sim, _ = consuming(max_messages=100, threshold_messages=0)
    sim.receive(100)
    assert sim.process(99) == []
    assert [pull.batch for pull in pulls(sim.process(1))] == [100]


def test_max_messages_1_never_stalls() -> None:
    sim, first = consuming(max_messages=1)
    assert [pull.batch for pull in first] == [1]
    for _ in range(100):
        assert sim.receive(1) == []
        assert [pull.batch for pull in pulls(sim.process(1))] == [1]


def test_bytes_refill_at_their_threshold() -> None:
    sim, _ = consuming(max_bytes=1000)
    sim.receive(5, 1000)
    assert sim.process(2, 400) == []
    (refill,) = pulls(sim.process(1, 200))
    assert (refill.batch, refill.max_bytes) == (1_000_000, 600)
    assert sim.flow.pending_bytes == 1000


def test_bytes_threshold_of_choice() -> None:
    sim, _ = consuming(max_bytes=1000, threshold_bytes=900)
    sim.receive(10, 1000)
    assert [pull.max_bytes for pull in pulls(sim.process(1, 100))] == [100]


def test_a_request_whose_bytes_are_used_up_is_done_whatever_its_batch() -> None:
    sim, _ = consuming(max_bytes=1000)
    sim.receive(5, 500)
    sim.process(5, 500)
    assert sim.flow.outstanding_requests == 2
    sim.receive(5, 500)
    assert sim.flow.outstanding_requests == 1
    assert sim.flow.pending_bytes == 1000


def test_per_request_byte_cap_beside_max_messages() -> None:
    sim, first = consuming(max_messages=100, max_bytes_per_request=500)
    assert [(pull.batch, pull.max_bytes) for pull in first] == [(100, 500)]
    sim.receive(4, 400)
    again = pulls(sim.status(409, "Message Size Exceeds MaxBytes", (96, 100)))
    assert [(pull.batch, pull.max_bytes) for pull in again] == [(96, 500)]
    assert sim.flow.pending_messages == 100


def test_per_request_byte_cap_that_comes_out_even_ends_the_request_silently() -> None:
    sim, _ = consuming(max_messages=100, max_bytes_per_request=500)
    sim.receive(5, 500)
    assert sim.flow.pending_messages == 5
    assert [pull.batch for pull in pulls(sim.process(1, 100))] == [96]


def test_pending_is_never_above_the_limit_nor_below_zero() -> None:
    sim, _ = consuming(max_messages=10)
    sim.receive(10)
    sim.process(10)
    assert sim.flow.pending_messages == 10
    sim.status(408, "Request Timeout", (999, 999))
    assert sim.flow.pending_messages == 10
    sim.process(50)
    assert 0 <= sim.flow.pending_messages <= 10


def test_messages_of_written_off_requests_keep_their_room() -> None:
    sim, _ = consuming(max_messages=10)
    sim.disconnect()
    sim.reconnect()
    sim.receive(15)
    assert sim.flow.buffered == 15
    assert sim.process(5) == []
    assert sim.flow.pending_messages == 10


def test_nothing_is_sent_before_start() -> None:
    sim = Sim(PullOptions())
    assert sim.flow.next_deadline() is None
    assert sim.reconnect() == []
    assert len(pulls(sim.start())) == 1
    assert sim.start() == []


# --- statuses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("description", "error"),
    [
        ((400, "Bad Request - heartbeat value too large"), errors.BadRequest),
        ((409, "Consumer Deleted"), errors.ConsumerDeleted),
        ((409, "Consumer is push based"), errors.PushConsumerError),
        ((412, "Required Api Level"), errors.BadRequest),
    ],
)
def test_errors_conclude_and_keep_what_is_buffered(
    description: tuple[int, str], error: type[Exception]
) -> None:
    sim, _ = consuming(max_messages=10)
    sim.receive(3)
    (end,) = sim.status(*description)
    assert isinstance(end, Conclude)
    assert type(end.error) is error
    assert not end.discard
    assert sim.flow.concluded
    assert sim.flow.next_deadline() is None
    assert sim.receive(1) + sim.process(1) + sim.heartbeat() + sim.reconnect() == []


@pytest.mark.parametrize(
    ("description", "warning"),
    [
        ((409, "Exceeded MaxRequestBatch of 1000"), errors.MaxRequestBatchExceeded),
        ((409, "Exceeded MaxRequestExpires of 1h"), errors.MaxRequestExpiresExceeded),
        ((409, "Exceeded MaxRequestMaxBytes of 1000"), errors.MaxRequestMaxBytesExceeded),
        ((409, "Exceeded MaxWaiting"), errors.MaxWaitingExceeded),
        ((409, "Exceeded MaxAckPending"), errors.MaxAckPendingExceeded),
        ((503, ""), errors.NoConsumerResponders),
        ((777, "Never Seen"), errors.UnexpectedStatus),
    ],
)
def test_warnings_take_the_whole_request_and_back_off(
    description: tuple[int, str], warning: type[Exception]
) -> None:
    sim, _ = consuming(max_messages=10)
    told = sim.status(*description)
    assert [type(w) for w in warnings(told)] == [warning]
    assert pulls(told) == []
    assert sim.flow.pending_messages == 0
    assert [pull.batch for pull in pulls(sim.advance(0.1))] == [10]


@pytest.mark.parametrize(
    "description",
    [
        (408, "Request Timeout", (7, 0)),
        (409, "Batch Completed", (0, 0)),
        (408, "Interest Expired", (7, 0)),
    ],
)
def test_not_telegraphed_statuses_are_quiet_and_take_what_their_headers_say(
    description: tuple[int, str, tuple[int, int]],
) -> None:
    sim, _ = consuming(max_messages=10)
    sim.receive(3)
    told = sim.status(*description)
    assert warnings(told) == []
    assert conclusions(told) == []
    assert sim.flow.pending_messages == 10
    assert [pull.batch for pull in pulls(told)] == ([7] if description[2][0] else [])


def test_no_messages_404_takes_the_whole_request() -> None:
    sim, _ = consuming(max_messages=10)
    told = sim.status(404, "No Messages")
    assert warnings(told) == []
    assert [pull.batch for pull in pulls(told)] == [10]


def test_request_timeout_with_a_full_buffer_does_not_pull() -> None:
    sim, _ = consuming(max_messages=10)
    sim.receive(9)
    assert sim.status(408, "Request Timeout", (1, 0)) == []
    assert sim.flow.pending_messages == 9


def test_headers_of_unknown_statuses_are_honoured() -> None:
    sim, _ = consuming(max_messages=10)
    sim.receive(6)
    sim.status(499, "Future", (4, 0))
    assert sim.flow.pending_messages == 6


def test_unknown_information_ends_nothing() -> None:
    sim, _ = consuming(max_messages=10)
    assert sim.status(101, "Something New") == []
    assert sim.flow.pending_messages == 10


def test_a_refusal_is_about_the_newest_request_and_takes_exactly_that() -> None:
    sim, _ = consuming(max_messages=100)
    sim.receive(60)
    assert [pull.batch for pull in pulls(sim.process(60))] == [60]
    sim.receive(30)  # the server serves both requests in turn; booked on the older one
    sim.status(503)
    # 100 + 60 requested, 90 received, 60 processed, and the 60 refused: 10 outstanding and 30 buffered.
    assert sim.flow.pending_messages == 40


def test_a_refused_request_gives_back_what_was_booked_on_it() -> None:
    sim, _ = consuming(max_messages=100, threshold_messages=100)
    sim.receive(60)
    assert [pull.batch for pull in pulls(sim.process(60))] == [60]  # will be refused: the limit is 40 now
    sim.receive(20)
    assert [pull.batch for pull in pulls(sim.process(20))] == [20]  # small enough, accepted
    sim.receive(40)  # the rest of the first request and all of the third, booked on the first and second
    told = sim.status(409, "Exceeded MaxRequestBatch of 40")
    assert [pull.batch for pull in pulls(told)] == [40, 20]
    assert sim.flow.pending_messages == 100


@pytest.mark.parametrize("description", ["Leadership Change", "Server Shutdown"])
def test_leadership_change_and_shutdown_void_all_and_recover_at_once(description: str) -> None:
    sim, _ = consuming(max_messages=100)
    sim.receive(60)
    sim.process(60)
    sim.receive(10)
    told = sim.status(409, description, (3, 0) if description == "Server Shutdown" else None)
    assert len(warnings(told)) == 1
    assert [pull.batch for pull in pulls(told)] == [90]
    assert sim.flow.outstanding_requests == 1


@pytest.mark.parametrize("description", ["Leadership Change", "Server Shutdown"])
def test_leadership_change_and_shutdown_do_not_loop_tightly(description: str) -> None:
    sim, _ = consuming(max_messages=10)
    assert len(pulls(sim.status(409, description))) == 1
    assert pulls(sim.status(409, description)) == []
    assert pulls(sim.advance(0.09)) == []
    assert len(pulls(sim.advance(0.02))) == 1
    sim.receive(1)
    sim.process(1)
    assert len(pulls(sim.status(409, description))) == 1


def test_backoff_doubles_up_to_its_cap_and_is_reset_by_traffic() -> None:
    sim, _ = consuming(max_messages=10)
    waits = []
    for _ in range(18):
        assert pulls(sim.status(503)) == []
        due = sim.flow.next_deadline()
        assert due is not None
        waits.append(round(due - sim.now, 6))
        assert len(pulls(sim.advance(due - sim.now))) == 1
    # Short ones for as long as an election takes (9 s), so that a new leader is found within a second.
    assert waits == [0.1, 0.2, 0.4, 0.8] + [1.0] * 11 + [BACKOFF_MAX] * 3
    assert sum(waits[:15]) > 9
    sim.heartbeat()
    sim.status(503)
    assert sim.flow.next_deadline() == pytest.approx(sim.now + 0.1)


def test_backoff_is_never_longer_than_a_heartbeat() -> None:
    sim, _ = consuming(max_messages=10, expires=1.0)
    for _ in range(20):
        sim.status(503)
        due = sim.flow.next_deadline()
        assert due is not None
        assert due - sim.now <= 0.5 + 1e-9
        sim.advance(due - sim.now)


def test_several_refusals_at_once_count_as_one() -> None:
    sim, _ = consuming(max_messages=100)
    sim.receive(60)
    sim.process(60)
    sim.status(503)
    sim.status(503)
    assert sim.flow.next_deadline() == pytest.approx(sim.now + 0.1)
    assert sum(pull.batch for pull in pulls(sim.advance(0.1))) == 100


def test_processing_during_backoff_does_not_pull() -> None:
    sim, _ = consuming(max_messages=10)
    sim.receive(10)
    sim.process(10)
    sim.status(503)
    sim.receive(2)
    assert sim.process(2) == []
    assert sum(pull.batch for pull in pulls(sim.advance(0.1))) == 10


# --- limits of the consumer are learnt ------------------------------------------------------------------


def test_max_request_batch_caps_later_requests_which_together_fill_the_buffer() -> None:
    sim, _ = consuming(max_messages=100)
    told = sim.status(409, "Exceeded MaxRequestBatch of 40")
    assert len(warnings(told)) == 1
    assert [pull.batch for pull in pulls(told)] == [40, 40, 20]
    assert sim.flow.pending_messages == 100


def test_a_tiny_max_request_batch_is_bounded_in_requests_and_refills_as_they_finish() -> None:
    sim, _ = consuming(max_messages=100)
    told = pulls(sim.status(409, "Exceeded MaxRequestBatch of 1"))
    assert [pull.batch for pull in told] == [1] * MAX_REQUESTS
    assert [pull.batch for pull in pulls(sim.receive(5))] == [1] * 5
    assert sim.flow.outstanding_requests == MAX_REQUESTS


def test_max_request_expires_caps_later_requests() -> None:
    sim, _ = consuming(max_messages=10)
    (pull,) = pulls(sim.status(409, "Exceeded MaxRequestExpires of 2s"))
    assert (pull.expires_ns, pull.idle_heartbeat_ns) == (2_000_000_000, 1_000_000_000)


def test_max_request_max_bytes_caps_later_requests() -> None:
    sim, _ = consuming(max_bytes=1000)
    told = pulls(sim.status(409, "Exceeded MaxRequestMaxBytes of 400"))
    assert [pull.max_bytes for pull in told] == [400, 400, 200]
    assert sim.flow.pending_bytes == 1000


def test_max_request_batch_with_max_bytes_caps_the_nominal_batch() -> None:
    sim, _ = consuming(max_bytes=1000)
    (pull,) = pulls(sim.status(409, "Exceeded MaxRequestBatch of 50"))
    assert (pull.batch, pull.max_bytes) == (50, 1000)
    sim.receive(50, 300)
    assert [pull.max_bytes for pull in pulls(sim.status(409, "Batch Completed", (0, 700)))] == [700]
    assert sim.flow.pending_bytes == 1000


# --- messages larger than the room ----------------------------------------------------------------------


def test_a_message_larger_than_the_room_waits_for_room_without_a_loop() -> None:
    sim, _ = consuming(max_bytes=1000)
    sim.receive(1, 500)
    assert [
        pull.max_bytes for pull in pulls(sim.status(409, "Message Size Exceeds MaxBytes", (1, 500)))
    ] == []
    assert [pull.max_bytes for pull in pulls(sim.process(1, 500))] == [1000]


def test_a_message_larger_than_any_request_is_warned_about_and_retried_with_backoff() -> None:
    sim, _ = consuming(max_bytes=1000)
    told = sim.status(409, "Message Size Exceeds MaxBytes", (1_000_000, 1000))
    assert [type(w) for w in warnings(told)] == [errors.MessageTooLarge]
    assert pulls(told) == []
    assert [pull.max_bytes for pull in pulls(sim.advance(0.1))] == [1000]


def test_a_message_larger_than_the_per_request_cap_is_retried_with_backoff() -> None:
    sim, _ = consuming(max_messages=10, max_bytes_per_request=100)
    told = sim.status(409, "Message Size Exceeds MaxBytes", (10, 100))
    assert [type(w) for w in warnings(told)] == [errors.MessageTooLarge]
    assert pulls(told) == []
    assert len(pulls(sim.advance(0.1))) == 1


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
