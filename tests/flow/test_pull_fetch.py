"""ADR-37 for ``fetch`` and ``next``: one request, then the end."""

from __future__ import annotations

import json

import pytest

from flow.flow_harness import Sim, conclusions, pulls
from jetspark.jetstream.consume import errors
from jetspark.jetstream.flow.actions import Action, ClearPin, Conclude, SendPull, Unsubscribe
from jetspark.jetstream.flow.options import FetchOptions


def fetching(**options: object) -> tuple[Sim, SendPull]:
    sim = Sim(FetchOptions(**options))  # type: ignore[arg-type]
    (pull,) = pulls(sim.start())
    return sim, pull


def ends(actions: list[Action]) -> list[type[Exception] | None]:
    """What concludes it: the kind of error, None for none."""
    return [end.error and type(end.error) for end in conclusions(actions)]


def test_one_request_and_its_fields() -> None:
    _, pull = fetching(max_messages=5, expires=2.0)
    assert json.loads(pull.to_json()) == {"batch": 5, "expires": 2_000_000_000}


def test_max_bytes_names_a_large_batch() -> None:
    _, pull = fetching(max_bytes=5000)
    assert (pull.batch, pull.max_bytes) == (1_000_000, 5000)


def test_long_fetches_have_heartbeats() -> None:
    _, pull = fetching(max_messages=5, expires=60.0)
    assert pull.idle_heartbeat_ns == 30_000_000_000


def test_no_wait_alone_and_with_expires() -> None:
    _, pull = fetching(max_messages=5, no_wait=True)
    assert json.loads(pull.to_json()) == {"batch": 5, "no_wait": True}
    _, pull = fetching(max_messages=5, no_wait=True, expires=1.0)
    assert json.loads(pull.to_json()) == {"batch": 5, "no_wait": True, "expires": 1_000_000_000}


def test_a_filled_batch_is_counted_since_no_status_ends_it() -> None:
    sim, _ = fetching(max_messages=5)
    assert sim.receive(3) == []
    assert sim.receive(2) == [Conclude()]


def test_next_is_a_fetch_of_one() -> None:
    sim, pull = fetching(max_messages=1)
    assert pull.batch == 1
    assert sim.receive(1) == [Conclude()]


def test_bytes_that_come_out_even_conclude() -> None:
    sim, _ = fetching(max_bytes=300)
    assert sim.receive(2, 200) == []
    assert sim.receive(1, 100) == [Conclude()]


def test_processing_never_pulls() -> None:
    sim, _ = fetching(max_messages=5)
    sim.receive(3)
    assert sim.process(3) == []


@pytest.mark.parametrize(
    ("code", "description", "left"),
    [
        (404, "No Messages", None),
        (408, "Request Timeout", (3, 0)),
        (408, "Requests Pending", None),
        (408, "Interest Expired", (3, 0)),
        (409, "Batch Completed", (0, 10)),
        (409, "Message Size Exceeds MaxBytes", (3, 10)),
    ],
)
def test_quiet_statuses_conclude_with_what_is_there(
    code: int, description: str, left: tuple[int, int] | None
) -> None:
    sim, _ = fetching(max_messages=5)
    sim.receive(2)
    assert sim.status(code, description, left) == [Conclude()]


@pytest.mark.parametrize(
    ("code", "description", "error"),
    [
        (400, "Bad Request", errors.PullRefused),
        (409, "Consumer Deleted", errors.ConsumerDeleted),
        (409, "Consumer is push based", errors.PushConsumerError),
        (409, "Exceeded MaxRequestBatch of 1", errors.MaxRequestBatchExceeded),
        (409, "Exceeded MaxRequestExpires of 1s", errors.MaxRequestExpiresExceeded),
        (409, "Exceeded MaxRequestMaxBytes of 1", errors.MaxRequestMaxBytesExceeded),
        (409, "Exceeded MaxWaiting", errors.MaxWaitingExceeded),
        (409, "Leadership Change", errors.LeadershipChanged),
        (409, "Server Shutdown", errors.ServerShutdown),
        (503, "", errors.NoConsumerResponders),
        (777, "Never Seen", errors.UnexpectedStatus),
    ],
)
def test_other_statuses_conclude_with_their_error_and_keep_partial_results(
    code: int, description: str, error: type[Exception]
) -> None:
    sim, _ = fetching(max_messages=5)
    sim.receive(2)
    (end,) = sim.status(code, description)
    assert isinstance(end, Conclude)
    assert type(end.error) is error
    assert not end.discard


def test_heartbeats_and_information_end_nothing() -> None:
    sim, _ = fetching(max_messages=5)
    assert sim.heartbeat() + sim.status(101, "Whatever") == []
    assert not sim.flow.concluded


def test_a_fetch_that_can_never_fit_says_so() -> None:
    sim, _ = fetching(max_bytes=10)
    told = sim.status(409, "Message Size Exceeds MaxBytes", (1_000_000, 10))
    assert ends(told) == [errors.NextMessageTooLarge]


def test_the_client_side_deadline_is_later_than_expires_and_keeps_partial_results() -> None:
    sim, _ = fetching(max_messages=5, expires=2.0)
    sim.receive(2)
    assert sim.advance(2.99) == []
    told = sim.advance(0.01)
    assert ends(told) == [errors.PullUnanswered]
    assert not conclusions(told)[0].discard


def test_messages_still_arriving_extend_the_deadline() -> None:
    sim, _ = fetching(max_messages=5, no_wait=True)
    for _ in range(4):
        assert sim.advance(4.0) == []
        sim.receive(1)
    assert ends(sim.advance(5.0)) == [errors.PullUnanswered]


def test_missed_heartbeats_conclude_a_fetch_with_the_alarm() -> None:
    sim, _ = fetching(max_messages=5, expires=60.0, idle_heartbeat=1.0)
    assert sim.advance(1.99) == []
    (end,) = sim.advance(0.01)
    assert isinstance(end, Conclude)
    assert isinstance(end.error, errors.MissedHeartbeat)


def test_a_fetch_goes_on_after_a_reconnect_for_the_rest_of_its_time() -> None:
    sim, _ = fetching(max_messages=5, expires=10.0)
    sim.receive(2)
    sim.disconnect()
    sim.advance(4.0)
    (pull,) = pulls(sim.reconnect())
    assert (pull.batch, pull.expires_ns) == (3, 6_000_000_000)
    assert sim.receive(3) == [Conclude()]


def test_a_fetch_without_time_left_asks_for_what_is_there_on_reconnect() -> None:
    """That there is nothing is for the server to say."""
    sim, _ = fetching(max_messages=5, expires=10.0, idle_heartbeat=1.0)
    sim.receive(1)
    sim.disconnect()
    sim.advance(10.5)
    (pull,) = pulls(sim.reconnect())
    assert json.loads(pull.to_json()) == {"batch": 4, "no_wait": True}
    assert sim.status(404, "No Messages") == [Conclude()]


def test_the_deadline_of_a_fetch_that_asks_again_at_the_last_moment_stays() -> None:
    sim, _ = fetching(max_messages=5, expires=10.0)
    sim.disconnect()
    sim.advance(10.9)
    assert len(pulls(sim.reconnect())) == 1
    assert ends(sim.advance(0.1)) == [errors.PullUnanswered]


def test_a_fetch_does_not_outlive_its_deadline_while_disconnected() -> None:
    sim, _ = fetching(max_messages=5, expires=10.0)
    sim.disconnect()
    assert ends(sim.advance(11.0)) == [errors.PullUnanswered]


def test_a_stale_pin_is_dropped_and_the_request_repeated_once() -> None:
    sim = Sim(FetchOptions(max_messages=5, group="g", expires=10.0), pin_id="old")
    (pull,) = pulls(sim.start())
    assert pull.pin_id == "old"
    told = sim.status(423, "Nats-Pin-Id mismatch")
    assert [type(action) for action in told] == [ClearPin, SendPull]
    assert pulls(told)[0].pin_id == ""
    told = sim.status(423, "Nats-Wrong-Pin-Id", (5, 0))
    assert [type(end.error) for end in conclusions(told)] == [errors.PinIdMismatch]


def test_a_pinned_fetch_does_not_end_by_bytes_the_server_did_not_count() -> None:
    sim, _ = fetching(max_bytes=300, group="g")
    sim.flow.on_pin_id("abc")
    assert sim.receive(3, 320) == []
    assert sim.status(409, "Message Size Exceeds MaxBytes", (1, 20)) == [Conclude()]


def test_stop_and_drain() -> None:
    sim, _ = fetching(max_messages=5)
    assert sim.flow.stop(sim.now) == (Conclude(None, discard=True),)
    sim, _ = fetching(max_messages=5)
    sim.receive(1)
    assert sim.flow.drain(sim.now) == (Unsubscribe(),)
    sim.receive(1)
    assert sim.flow.on_unsubscribed(sim.now) == (Conclude(),)
