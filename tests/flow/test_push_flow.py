"""ADR-15 for push consumers: heartbeats, gaps, flow control and statuses."""

from __future__ import annotations

from collections import deque

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flow.flow_harness import status, warnings
from jetspark.errors import InvalidArgument
from jetspark.jetstream.consume import errors
from jetspark.jetstream.flow.actions import Action, Conclude, Raise, SendFlowControl
from jetspark.jetstream.flow.push import LATE_PAUSE, PushFlow
from jetspark.jetstream.flow.statuses import Status

NOW = 10.0


def flow_control(subject: str) -> Status:
    return Status(100, "FlowControl Request", None, subject)


def heartbeat(last_consumer: int, last_stream: int = 0, stalled: str = "") -> Status:
    headers = {"Nats-Last-Consumer": str(last_consumer), "Nats-Last-Stream": str(last_stream)}
    if stalled:
        headers["Nats-Consumer-Stalled"] = stalled
    return Status(100, "Idle Heartbeat", headers)


def started(**options: object) -> PushFlow:
    flow = PushFlow(**options)  # type: ignore[arg-type]
    assert flow.start(NOW) == ()
    return flow


# --- heartbeats ----------------------------------------------------------------------------------------


def test_the_alarm_comes_at_three_heartbeats_and_repeats() -> None:
    flow = started(idle_heartbeat=2.0)
    assert flow.next_deadline() == NOW + 6.0
    assert flow.on_timer(NOW + 5.99) == ()
    assert [type(w) for w in warnings(flow.on_timer(NOW + 6.0))] == [errors.MissedHeartbeat]
    assert flow.next_deadline() == NOW + 12.0


def test_the_factor_can_be_set() -> None:
    assert started(idle_heartbeat=2.0, alarm_factor=1.5).next_deadline() == NOW + 3.0


def test_any_traffic_resets_the_alarm() -> None:
    flow = started(idle_heartbeat=2.0)
    flow.on_messages(1, 1, 1, 1, NOW + 1)
    assert flow.next_deadline() == NOW + 7.0
    flow.on_status(heartbeat(1), NOW + 2)
    assert flow.next_deadline() == NOW + 8.0
    flow.on_status(status(101, "Whatever"), NOW + 3)
    assert flow.next_deadline() == NOW + 9.0


def test_no_heartbeat_no_alarm() -> None:
    flow = started()
    assert flow.next_deadline() is None
    assert flow.on_timer(NOW + 1000) == ()


def test_the_alarm_pauses_while_disconnected() -> None:
    flow = started(idle_heartbeat=2.0)
    flow.on_disconnect(NOW + 1)
    assert flow.next_deadline() is None
    assert flow.on_timer(NOW + 1000) == ()
    flow.on_reconnect(NOW + 1000)
    assert flow.next_deadline() == NOW + 1006.0


def test_a_handler_that_blocks_the_loop_raises_no_alarm() -> None:
    flow = started(idle_heartbeat=2.0)
    assert flow.on_timer(NOW + 60) == ()
    assert flow.next_deadline() == NOW + 60 + LATE_PAUSE
    flow.on_messages(1, 1, 1, 1, NOW + 60)
    assert flow.on_timer(NOW + 60 + LATE_PAUSE) == ()


def test_a_late_timer_alarms_when_there_was_nothing_to_read() -> None:
    flow = started(idle_heartbeat=2.0)
    flow.on_timer(NOW + 60)
    assert len(warnings(flow.on_timer(NOW + 60 + LATE_PAUSE))) == 1


def test_a_queue_group_can_have_no_heartbeat() -> None:
    with pytest.raises(InvalidArgument, match="queue group"):
        PushFlow(idle_heartbeat=1.0, queue_group=True)
    with pytest.raises(InvalidArgument, match="alarm_factor"):
        PushFlow(idle_heartbeat=1.0, alarm_factor=1.0)
    with pytest.raises(InvalidArgument, match="negative"):
        PushFlow(idle_heartbeat=-1.0)


# --- gaps ----------------------------------------------------------------------------------------------


def gaps(actions: tuple[Action, ...]) -> list[tuple[int, int]]:
    found = [w for w in warnings(actions) if isinstance(w, errors.ConsumerGap)]
    return [(gap.expected, gap.received) for gap in found]


def test_consecutive_chunks_have_no_gap() -> None:
    flow = started()
    assert flow.on_messages(3, 5, 7, 70, NOW) == ()  # an existing consumer starts anywhere
    assert flow.on_messages(2, 8, 9, 90, NOW) == ()
    assert flow.expected == 10


def test_a_gap_between_chunks_is_warned_about_once() -> None:
    flow = started()
    flow.on_messages(3, 1, 3, 3, NOW)
    assert gaps(flow.on_messages(1, 6, 6, 6, NOW)) == [(4, 6)]
    assert flow.on_messages(1, 7, 7, 7, NOW) == ()


def test_a_gap_is_told_with_the_message_behind_it() -> None:
    flow = started(first_sequence=1)
    (gap,) = warnings(flow.on_messages(3, 4, 6, 40, NOW))
    assert isinstance(gap, errors.ConsumerGap)
    assert (gap.expected, gap.received, gap.sequence) == (1, 4, 40)


def test_a_gap_before_the_first_message_of_a_new_consumer() -> None:
    flow = started(first_sequence=1)
    assert gaps(flow.on_messages(1, 3, 3, 3, NOW)) == [(1, 3)]


def test_a_heartbeat_tells_of_lost_messages_once() -> None:
    flow = started()
    flow.on_messages(3, 1, 3, 3, NOW)
    assert flow.on_status(heartbeat(3), NOW) == ()
    assert gaps(flow.on_status(heartbeat(5, 50), NOW)) == [(4, 6)]
    assert flow.on_status(heartbeat(5), NOW) == ()
    assert flow.on_messages(1, 6, 6, 60, NOW) == ()


def test_a_first_heartbeat_sets_the_position() -> None:
    flow = started()
    assert flow.on_status(heartbeat(9), NOW) == ()
    assert gaps(flow.on_messages(1, 12, 12, 12, NOW)) == [(10, 12)]


def test_gaps_are_not_checked_in_a_queue_group() -> None:
    flow = started(queue_group=True)
    assert flow.on_messages(2, 1, 9, 9, NOW) == ()
    assert flow.on_messages(1, 20, 20, 20, NOW) == ()
    assert flow.on_status(heartbeat(50), NOW) == ()


# --- flow control --------------------------------------------------------------------------------------


def test_flow_control_is_answered_at_once_when_nothing_is_buffered() -> None:
    assert started().on_status(flow_control("fc.1"), NOW) == (SendFlowControl("fc.1"),)


def test_flow_control_is_answered_at_its_position_in_the_buffer() -> None:
    flow = started()
    flow.on_messages(5, 1, 5, 5, NOW)
    assert flow.on_status(flow_control("fc.1"), NOW) == ()
    flow.on_messages(5, 6, 10, 10, NOW)
    assert flow.on_processed(4, NOW) == ()
    assert flow.on_processed(1, NOW) == (SendFlowControl("fc.1"),)
    assert flow.on_processed(5, NOW) == ()
    assert flow.buffered == 0


def test_several_requests_passed_in_one_bulk_are_all_answered() -> None:
    flow = started()
    flow.on_messages(2, 1, 2, 2, NOW)
    flow.on_status(flow_control("fc.1"), NOW)
    flow.on_messages(2, 3, 4, 4, NOW)
    flow.on_status(flow_control("fc.2"), NOW)
    assert flow.on_processed(4, NOW) == (SendFlowControl("fc.1"), SendFlowControl("fc.2"))


def test_a_stalled_heartbeat_is_answered_like_flow_control() -> None:
    flow = started()
    assert flow.on_status(heartbeat(0, stalled="fc.1"), NOW) == (SendFlowControl("fc.1"),)
    flow.on_messages(1, 1, 1, 1, NOW)
    assert flow.on_status(heartbeat(1, stalled="fc.2"), NOW) == ()
    assert flow.on_processed(1, NOW) == (SendFlowControl("fc.2"),)


def test_each_request_is_answered_once() -> None:
    flow = started()
    assert flow.on_status(flow_control("fc.1"), NOW) == (SendFlowControl("fc.1"),)
    flow.on_answered("fc.1")
    assert flow.on_status(flow_control("fc.1"), NOW) == ()
    flow.on_messages(1, 1, 1, 1, NOW)
    flow.on_status(flow_control("fc.2"), NOW)
    flow.on_status(flow_control("fc.2"), NOW)
    flow.on_status(heartbeat(1, stalled="fc.2"), NOW)
    assert flow.on_processed(1, NOW) == (SendFlowControl("fc.2"),)


def test_a_request_whose_answer_was_left_out_is_answered_when_it_comes_again() -> None:
    flow = started()
    assert flow.on_status(flow_control("fc.1"), NOW) == (SendFlowControl("fc.1"),)
    assert flow.on_status(flow_control("fc.1"), NOW) == (SendFlowControl("fc.1"),)


def test_a_stalled_heartbeat_has_a_lost_answer_sent_again_once_for_each_heartbeat() -> None:
    flow = started()
    assert flow.on_status(flow_control("fc.1"), NOW) == (SendFlowControl("fc.1"),)
    flow.on_answered("fc.1")
    for _ in range(3):
        assert flow.on_status(heartbeat(0, stalled="fc.1"), NOW) == (SendFlowControl("fc.1"),)
        flow.on_answered("fc.1")


def test_an_answer_that_is_sent_again_has_a_position_too() -> None:
    flow = started()
    assert flow.on_status(flow_control("fc.1"), NOW) == (SendFlowControl("fc.1"),)
    flow.on_answered("fc.1")
    flow.on_messages(3, 1, 3, 3, NOW)
    assert flow.on_status(heartbeat(3, stalled="fc.1"), NOW) == ()
    assert flow.on_status(heartbeat(3, stalled="fc.1"), NOW) == ()
    assert flow.on_processed(2, NOW) == ()
    assert flow.on_processed(1, NOW) == (SendFlowControl("fc.1"),)


def test_a_stalled_heartbeat_with_a_gap_does_both() -> None:
    flow = started(first_sequence=1)
    told = flow.on_status(heartbeat(2, stalled="fc.1"), NOW)
    assert gaps(told) == [(1, 3)]
    assert told[-1] == SendFlowControl("fc.1")


def test_flow_control_of_a_broken_connection_is_void_and_asked_again_by_heartbeats() -> None:
    flow = started()
    flow.on_messages(1, 1, 1, 1, NOW)
    flow.on_status(flow_control("fc.1"), NOW)
    flow.on_disconnect(NOW)
    assert flow.on_processed(1, NOW) == ()
    flow.on_reconnect(NOW)
    assert flow.on_status(heartbeat(1, stalled="fc.1"), NOW) == (SendFlowControl("fc.1"),)


def test_the_next_answer_tells_at_which_message_it_is_due() -> None:
    flow = started()
    assert flow.next_answer is None
    flow.on_messages(3, 1, 3, 3, NOW)
    flow.on_status(flow_control("fc.1"), NOW)
    flow.on_messages(2, 4, 5, 5, NOW)
    flow.on_status(flow_control("fc.2"), NOW)
    assert flow.next_answer == 3
    assert flow.on_processed(3, NOW) == (SendFlowControl("fc.1"),)
    assert flow.next_answer == 5
    flow.on_disconnect(NOW)
    assert flow.next_answer is None


def test_a_new_consumer_counts_from_one_and_what_the_old_one_asked_is_void() -> None:
    flow = started(idle_heartbeat=2.0, first_sequence=1)
    flow.on_messages(3, 1, 3, 3, NOW)
    flow.on_status(flow_control("fc.1"), NOW)
    flow.on_disconnect(NOW + 1)
    assert flow.on_new_consumer(NOW + 2) == ()
    assert flow.next_deadline() == NOW + 8.0
    assert flow.on_messages(2, 1, 2, 5, NOW + 2) == ()
    assert flow.on_status(flow_control("fc.1"), NOW + 2) == ()
    # Behind what the old one had brought, too.
    assert flow.on_processed(4, NOW + 2) == ()
    assert flow.on_processed(1, NOW + 2) == (SendFlowControl("fc.1"),)


# --- statuses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "description", "error"),
    [
        (409, "Exceeded MaxAckPending", errors.MaxAckPendingExceeded),
        (409, "Something", errors.UnexpectedStatus),
        (503, "", errors.NoConsumerResponders),
        (777, "Never Seen", errors.UnexpectedStatus),
    ],
)
def test_error_statuses_are_raised(code: int, description: str, error: type[Exception]) -> None:
    flow = started()
    (told,) = flow.on_status(status(code, description), NOW)
    assert isinstance(told, Raise)
    assert type(told.error) is error
    assert not flow.concluded


def test_a_deleted_consumer_concludes() -> None:
    flow = started(idle_heartbeat=1.0)
    (end,) = flow.on_status(status(409, "Consumer Deleted"), NOW)
    assert isinstance(end, Conclude)
    assert isinstance(end.error, errors.ConsumerDeleted)
    assert flow.concluded
    assert flow.next_deadline() is None
    assert flow.on_messages(1, 1, 1, 1, NOW) == flow.on_status(heartbeat(9), NOW) == ()


def test_stop() -> None:
    flow = started()
    assert flow.stop(NOW) == (Conclude(None, discard=True),)
    assert flow.stop(NOW) == ()


class PushMachine(RuleBasedStateMachine):
    """A server that stops at every flow control request: with a live handler it never stays stopped."""

    @initialize(window=st.integers(1, 20))
    def begin(self, window: int) -> None:
        self.now = 0.0
        self.flow = PushFlow(idle_heartbeat=1.0, first_sequence=1)
        self.flow.start(self.now)
        self.window = window
        self.sequence = 0
        self.in_window = 0
        self.asked = 0
        self.waiting_for = ""
        self.lost = 0
        self.warned = 0
        self.wire: deque[int | Status] = deque()
        self.answers = 0
        self.lose_answers = 0
        self.questions = 0

    def perform(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            if isinstance(action, SendFlowControl):
                self.answers += 1
                if self.lose_answers:
                    # Lost on the way, or left out by the driver.
                    self.lose_answers -= 1
                    if self.lose_answers % 2:
                        self.flow.on_answered(action.subject)
                    continue
                self.flow.on_answered(action.subject)
                if action.subject == self.waiting_for:
                    self.waiting_for = ""
                    self.in_window = 0
            else:
                self.warned += len(gaps((action,)))

    @rule(count=st.integers(1, 30))
    def send(self, count: int) -> None:
        for _ in range(count):
            if self.waiting_for:
                return
            self.sequence += 1
            self.in_window += 1
            self.wire.append(self.sequence)
            if self.in_window >= self.window:
                self.asked += 1
                self.waiting_for = f"fc.{self.asked}"
                self.wire.append(flow_control(self.waiting_for))

    @rule(count=st.integers(1, 30))
    def receive(self, count: int) -> None:
        while self.wire and count > 0:
            chunk: list[int] = []
            while self.wire and count > 0 and isinstance(self.wire[0], int):
                sequence = self.wire.popleft()
                assert isinstance(sequence, int)
                chunk.append(sequence)
                count -= 1
            if chunk:
                self.perform(self.flow.on_messages(len(chunk), chunk[0], chunk[-1], chunk[-1], self.now))
            elif isinstance(item := self.wire.popleft(), Status):
                count -= 1
                self.questions += bool(item.reply or item.stalled)
                self.perform(self.flow.on_status(item, self.now))

    @rule()
    def lose(self) -> None:
        if self.wire:
            self.wire.popleft()
            self.lost += 1

    @rule(count=st.integers(1, 3))
    def lose_answer(self, count: int) -> None:
        self.lose_answers = count

    @rule(count=st.integers(1, 30))
    def process(self, count: int) -> None:
        self.perform(self.flow.on_processed(min(count, self.flow.buffered), self.now))

    @rule()
    def beat(self) -> None:
        self.wire.append(heartbeat(self.sequence, self.sequence, self.waiting_for))

    @rule()
    def settle(self) -> None:
        self.receive(1 << 30)
        self.process(1 << 30)
        self.lose_answers = 0
        self.beat()
        self.receive(1 << 30)
        self.process(1 << 30)
        assert self.waiting_for == "", "the server waits although everything was processed"
        assert self.flow.expected == self.sequence + 1

    @invariant()
    def nothing_is_answered_that_was_not_asked(self) -> None:
        assert self.answers <= self.questions

    @invariant()
    def a_gap_needs_a_loss(self) -> None:
        assert self.lost or not self.warned
        assert self.flow.buffered >= 0


PushMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, print_blob=True
)
TestPushMachine = PushMachine.TestCase
