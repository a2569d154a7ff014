"""ADR-37 for ``consume``, rule by rule, in simulated time. A test is named after the rule it holds."""

from __future__ import annotations

import json

import pytest

from flow.flow_harness import Sim, conclusions, consuming, pulls, warnings
from jetspark.jetstream.consume import errors
from jetspark.jetstream.flow.actions import ChangeInbox, Conclude
from jetspark.jetstream.flow.options import PullOptions
from jetspark.jetstream.flow.pull import MAX_REQUESTS
from jetspark.jetstream.flow.pull_backoff import BACKOFF_MAX

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
        ((400, "Bad Request - heartbeat value too large"), errors.PullRefused),
        ((409, "Consumer Deleted"), errors.ConsumerDeleted),
        ((409, "Consumer is push based"), errors.PushConsumerError),
        ((412, "Required Api Level"), errors.PullRefused),
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
    assert [type(w) for w in warnings(told)] == [errors.NextMessageTooLarge]
    assert pulls(told) == []
    assert [pull.max_bytes for pull in pulls(sim.advance(0.1))] == [1000]


def test_a_message_larger_than_the_per_request_cap_is_retried_with_backoff() -> None:
    sim, _ = consuming(max_messages=10, max_bytes_per_request=100)
    told = sim.status(409, "Message Size Exceeds MaxBytes", (10, 100))
    assert [type(w) for w in warnings(told)] == [errors.NextMessageTooLarge]
    assert pulls(told) == []
    assert len(pulls(sim.advance(0.1))) == 1


def test_when_it_is_not_clear_which_request_was_refused_none_of_them_stays() -> None:
    """10 and 90 are open, and a 503 is about one of them. Taken for the large one while it was the small one,
    the next request would ask for 90 more than there is room."""
    sim = Sim(PullOptions(max_messages=100, threshold_messages=95), confirms=False)
    assert [pull.batch for pull in pulls(sim.start())] == [100]
    sim.receive(10)
    assert [pull.batch for pull in pulls(sim.process(10))] == [10]
    sim.receive(90)
    assert [pull.batch for pull in pulls(sim.process(90))] == [90]
    told = sim.status(503)
    assert ChangeInbox() in told
    assert pulls([*told, *sim.advance(1.0)]) == []
    sim.receive(90)  # of the one that was taken, before the UNSUB came to the server
    assert [pull.batch for pull in pulls(sim.change_inbox())] == [10]
