"""The ordered machine: every trigger of a reset, where it goes on, and how fast."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flow.flow_harness import conclusions, warnings
from jetspark.errors import InvalidArgument, JetsparkError, OrderedReset, OrderedResetFailed
from jetspark.jetstream.flow.actions import Action, Conclude, CreateConsumer, DeleteConsumer
from jetspark.jetstream.flow.ordered import PACE, OrderedFlow, OrderedState, Verdict

NOW = 50.0


def creates(actions: tuple[Action, ...]) -> list[CreateConsumer]:
    return [action for action in actions if isinstance(action, CreateConsumer)]


def active(**options: object) -> OrderedFlow:
    flow = OrderedFlow("pre", **options)  # type: ignore[arg-type]
    assert len(creates(flow.start(NOW))) == 1
    assert flow.on_created(1, NOW) == ()
    return flow


def test_the_first_consumer_is_serial_1_with_the_users_deliver_policy() -> None:
    flow = OrderedFlow("pre", deliver_policy="by_start_sequence", opt_start_seq=7)
    assert flow.start(NOW) == (CreateConsumer("pre_1", 1, "by_start_sequence", 7),)
    assert flow.start(NOW) == ()
    assert flow.name == "pre_1"


def test_contiguous_chunks_are_delivered_by_their_ends() -> None:
    flow = active()
    assert flow.on_batch(1, 100, 250, 100, 1, NOW) is Verdict.DELIVER
    assert flow.on_batch(101, 101, 300, 1, 1, NOW) is Verdict.DELIVER
    assert (flow.expected, flow.last_stream_seq) == (102, 300)


@pytest.mark.parametrize(("first", "last", "count"), [(2, 5, 4), (1, 5, 4), (1, 5, 6)])
def test_a_chunk_that_does_not_fit_has_to_be_inspected(first: int, last: int, count: int) -> None:
    flow = active()
    assert flow.on_batch(first, last, 99, count, 1, NOW) is Verdict.INSPECT
    assert (flow.expected, flow.last_stream_seq) == (1, 0)


def test_a_gap_delivers_what_is_before_it_and_resets_behind_the_last() -> None:
    flow = active()
    keep, actions = flow.on_each([(1, 1, 10), (1, 2, 11), (1, 4, 13), (1, 5, 14)], NOW)
    assert keep == [0, 1]
    assert [type(w) for w in warnings(actions)] == [OrderedReset]
    assert DeleteConsumer("pre_1") in actions
    assert creates(actions) == [CreateConsumer("pre_2", 2, "by_start_sequence", 12)]
    assert flow.expected == 1


def trouble(flow: OrderedFlow, reason: str, serial: int, now: float) -> tuple[Action, ...]:
    """The consumer is lost for that reason; the empty one: heartbeats are missed."""
    if reason:
        return flow.on_lost(serial, reason, now)
    return flow.on_missed_heartbeat(serial, now)


def test_messages_of_older_serials_are_dropped() -> None:
    flow = active()
    flow.on_batch(1, 3, 3, 3, 1, NOW)
    flow.on_lost(1, "consumer deleted", NOW)
    flow.on_created(2, NOW)
    assert flow.on_batch(4, 5, 5, 2, 1, NOW) is Verdict.DROP
    keep, actions = flow.on_each([(1, 4, 4), (2, 1, 4), (1, 5, 5), (2, 2, 5)], NOW)
    assert (keep, actions) == ([1, 3], ())
    assert flow.last_stream_seq == 5


def test_messages_while_a_new_consumer_is_made_are_dropped() -> None:
    flow = active()
    flow.on_lost(1, "no responders", NOW)
    assert flow.on_batch(1, 1, 1, 1, 1, NOW) is Verdict.DROP
    assert flow.on_batch(1, 1, 1, 1, 2, NOW) is Verdict.DROP
    assert flow.on_each([(2, 1, 1)], NOW) == ([], ())


def test_repeated_messages_are_dropped_without_a_reset() -> None:
    flow = active()
    flow.on_batch(1, 3, 3, 3, 1, NOW)
    assert flow.on_each([(1, 3, 3), (1, 4, 4)], NOW) == ([1], ())


@pytest.mark.parametrize("reason", ["", "consumer deleted"], ids=["missed heartbeats", "consumer deleted"])
def test_each_trigger_resets_at_once_and_only_for_the_current_serial(reason: str) -> None:
    flow = active()
    flow.on_batch(1, 3, 30, 3, 1, NOW)
    assert trouble(flow, reason, 9, NOW) == ()
    actions = trouble(flow, reason, 1, NOW)
    assert creates(actions) == [CreateConsumer("pre_2", 2, "by_start_sequence", 31)]
    assert trouble(flow, reason, 1, NOW) == ()
    assert trouble(flow, reason, 2, NOW) == ()  # not created yet: one reset at a time


def test_a_heartbeat_tells_of_lost_messages_at_the_end() -> None:
    flow = active()
    flow.on_batch(1, 3, 30, 3, 1, NOW)
    assert flow.on_heartbeat(1, 3, NOW) == ()
    assert flow.on_heartbeat(1, None, NOW) == ()
    assert flow.on_heartbeat(9, 8, NOW) == ()
    assert len(creates(flow.on_heartbeat(1, 4, NOW))) == 1


def test_the_original_policy_stays_until_the_first_message() -> None:
    flow = active(deliver_policy="by_start_time", opt_start_time="2030-01-01T00:00:00Z")
    assert flow.on_heartbeat(1, 0, NOW) == ()
    (again,) = creates(flow.on_lost(1, "consumer deleted", NOW))
    assert (again.deliver_policy, again.opt_start_seq) == ("by_start_time", None)
    assert again.opt_start_time == "2030-01-01T00:00:00Z"


def test_reconnect_makes_a_new_consumer_at_once() -> None:
    flow = active()
    flow.on_batch(1, 3, 30, 3, 1, NOW)
    assert flow.on_reconnect(NOW) == ()
    assert flow.on_disconnect(NOW) == ()
    actions = flow.on_reconnect(NOW + 60)
    assert creates(actions) == [CreateConsumer("pre_2", 2, "by_start_sequence", 31)]


def test_nothing_is_attempted_while_disconnected() -> None:
    flow = active()
    flow.on_disconnect(NOW)
    assert creates(flow.on_missed_heartbeat(1, NOW)) == []
    assert flow.next_deadline() is None
    assert flow.on_timer(NOW + 100) == ()
    assert len(creates(flow.on_reconnect(NOW + 100))) == 1


def test_started_while_disconnected() -> None:
    flow = OrderedFlow("pre", connected=False)
    assert flow.start(NOW) == ()
    assert len(creates(flow.on_reconnect(NOW))) == 1


def test_a_reconnect_during_creation_abandons_it() -> None:
    flow = OrderedFlow("pre")
    flow.start(NOW)
    flow.on_disconnect(NOW)
    assert [c.serial for c in creates(flow.on_reconnect(NOW))] == [2]
    assert flow.on_created(1, NOW) == (DeleteConsumer("pre_1"),)
    assert flow.on_created(2, NOW) == ()
    assert flow.state is OrderedState.ACTIVE


def test_failed_creation_backs_off_1_s_doubling_to_10_s() -> None:
    flow = OrderedFlow("pre")
    flow.start(NOW)
    now, waits = NOW, []
    for _ in range(7):
        assert flow.on_create_failed(flow.serial, JetsparkError("timeout"), now) == ()
        due = flow.next_deadline()
        assert due is not None
        waits.append(due - now)
        assert flow.on_timer(due - 0.01) == ()
        now = due
        assert len(creates(flow.on_timer(now))) == 1
    assert waits == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


def test_consumers_that_bring_nothing_back_off_from_the_pace_to_10_s() -> None:
    flow = active()
    now, waits = NOW, []
    for _ in range(14):
        made = creates(flow.on_lost(flow.serial, "consumer deleted", now))
        due = flow.next_deadline()
        waits.append(0.0 if made else due - now if due is not None else -1.0)
        now += waits[-1]
        flow.on_timer(now)
        flow.on_created(flow.serial, now)
    doubling = [2.0 * PACE * 2**number for number in range(8)]
    assert waits == pytest.approx([0.0, *doubling, 10.0, 10.0, 10.0, 10.0, 10.0])
    assert flow.on_heartbeat(flow.serial, 0, now + 2) == ()  # a sign of life: immediate again
    assert len(creates(flow.on_lost(flow.serial, "consumer deleted", now + 2))) == 1


def test_progress_by_one_message_does_not_hammer_the_server() -> None:
    flow, now, made = active(), NOW, 0
    while now < NOW + 10:
        flow.on_batch(1, 1, flow.last_stream_seq + 1, 1, flow.serial, now)
        made += len(creates(flow.on_lost(flow.serial, "consumer deleted", now)))
        due = flow.next_deadline()
        if due is not None:
            now = due
            made += len(creates(flow.on_timer(now)))
        flow.on_created(flow.serial, now)
    assert made == pytest.approx(10 / PACE, abs=2)


def test_lost_messages_cost_little_time_while_others_come() -> None:
    """Three of ten are lost: a consumer brings two or three, or none at all."""
    chance, flow, now = random.Random(7), active(), NOW
    while flow.last_stream_seq < 1_000:
        for number in range(1, 1_000):
            if chance.random() >= 0.3:
                _, actions = flow.on_each([(flow.serial, number, flow.last_stream_seq + 1)], now)
                if actions:
                    break
        due = flow.next_deadline()
        if due is not None:
            now = due
            flow.on_timer(now)
        flow.on_created(flow.serial, now)
    assert now - NOW < 30.0


def test_the_first_consumer_is_no_reset_attempt() -> None:
    flow = active(max_reset_attempts=1)
    assert len(creates(flow.on_lost(1, "consumer deleted", NOW))) == 1
    flow.on_created(2, NOW)
    (end,) = conclusions(flow.on_lost(2, "consumer deleted", NOW))
    assert isinstance(end.error, OrderedResetFailed)


def test_a_taken_name_is_skipped_at_once_and_is_no_attempt() -> None:
    flow = OrderedFlow("pre", max_reset_attempts=1)
    flow.start(NOW)
    (create,) = creates(flow.on_name_taken(1, NOW))
    assert (create.name, create.serial, flow.attempts) == ("pre_2", 2, 1)
    assert flow.on_name_taken(1, NOW) == ()


def test_suspend_deletes_the_consumer_and_start_goes_on_behind_the_last_message() -> None:
    flow = active()
    flow.on_batch(1, 3, 30, 3, 1, NOW)
    assert flow.suspend(NOW) == (DeleteConsumer("pre_1"),)
    assert flow.on_batch(4, 4, 31, 1, 1, NOW) is Verdict.DROP
    (create,) = creates(flow.start(NOW))
    assert (create.serial, create.deliver_policy, create.opt_start_seq) == (2, "by_start_sequence", 31)


@pytest.mark.parametrize("unread", [1, 30])
def test_suspend_goes_back_to_what_was_thrown_away_unread(unread: int) -> None:
    flow = active(deliver_policy="last")
    flow.on_batch(1, 3, 32, 3, 1, NOW)
    flow.suspend(NOW, unread)
    (create,) = creates(flow.start(NOW))
    assert (create.deliver_policy, create.opt_start_seq) == ("by_start_sequence", unread)


def test_a_consumer_created_after_the_suspension_is_deleted() -> None:
    flow = OrderedFlow("pre")
    flow.start(NOW)
    assert flow.suspend(NOW) == ()
    assert flow.on_created(1, NOW) == (DeleteConsumer("pre_1"),)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("new", ("by_start_sequence", 8)), ("last", ("by_start_sequence", 8)), ("all", ("all", None))],
)
def test_new_and_last_keep_the_place_where_they_began(policy: str, expected: tuple[str, int | None]) -> None:
    flow = OrderedFlow("pre", deliver_policy=policy)
    flow.start(NOW)
    flow.on_created(1, NOW, starts_at=8)
    (create,) = creates(flow.on_lost(1, "consumer deleted", NOW))
    assert (create.deliver_policy, create.opt_start_seq) == expected


def test_max_reset_attempts_conclude_with_an_error_that_names_them() -> None:
    flow = active(max_reset_attempts=3)
    flow.on_batch(1, 3, 30, 3, 1, NOW)
    flow.on_lost(1, "consumer deleted", NOW)
    now = NOW
    for _ in range(2):
        assert flow.on_create_failed(flow.serial, JetsparkError("boom"), now) == ()
        now = flow.next_deadline() or 0.0
        flow.on_timer(now)
    (end,) = conclusions(flow.on_create_failed(flow.serial, JetsparkError("boom"), now))
    assert isinstance(end.error, OrderedResetFailed)
    assert (end.error.attempts, end.error.last_sequence) == (3, 30)
    assert "boom" in str(end.error)
    assert flow.on_reconnect(now) == flow.on_timer(now + 100) == flow.stop(now) == ()


def test_a_permanent_failure_concludes_with_its_own_error() -> None:
    flow = OrderedFlow("pre")
    flow.start(NOW)
    error = JetsparkError("stream not found")
    assert flow.on_create_failed(1, error, NOW, permanent=True) == (Conclude(error),)


def test_stop_deletes_the_consumer_also_one_that_is_just_being_made() -> None:
    flow = active()
    assert flow.stop(NOW) == (DeleteConsumer("pre_1"), Conclude())
    assert flow.stop(NOW) == ()
    flow = OrderedFlow("pre")
    flow.start(NOW)
    assert flow.stop(NOW) == (DeleteConsumer("pre_1"), Conclude())
    assert flow.on_created(1, NOW) == (DeleteConsumer("pre_1"),)
    assert OrderedFlow("pre").stop(NOW) == (Conclude(),)


@pytest.mark.parametrize(
    "bad",
    [
        {"deliver_policy": "sometimes"},
        {"deliver_policy": "by_start_sequence"},
        {"opt_start_seq": 5},
        {"deliver_policy": "by_start_time"},
        {"max_reset_attempts": 0},
    ],
    ids=str,
)
def test_refuses(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        OrderedFlow("pre", **bad)  # type: ignore[arg-type]


class OrderedMachine(RuleBasedStateMachine):
    """A stream with holes, consumers that lose messages and vanish: the user still sees each message once."""

    @initialize(stream=st.lists(st.integers(1, 3), min_size=5, max_size=60))
    def begin(self, stream: list[int]) -> None:
        self.now = 0.0
        # Strictly increasing stream sequences with holes, as deletes and filters leave them.
        total, self.stream = 0, []
        for step in stream:
            total += step
            self.stream.append(total)
        self.flow = OrderedFlow("m")
        self.connected = True
        self.seen: list[int] = []
        self.creating: CreateConsumer | None = None
        #: serial -> what is on its way: (consumer seq, stream seq)
        self.wires: dict[int, list[tuple[int, int]]] = {}
        self.perform(self.flow.start(self.now))

    def perform(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            assert not isinstance(action, Conclude)
            if isinstance(action, CreateConsumer):
                assert self.connected
                self.creating = action

    @precondition(lambda self: self.creating is not None)
    @rule(works=st.booleans())
    def creation_ends(self, works: bool) -> None:
        made, self.creating = self.creating, None
        assert made is not None
        if not works or not self.connected:
            self.perform(self.flow.on_create_failed(made.serial, JetsparkError("timeout"), self.now))
            return
        rest = [seq for seq in self.stream if seq >= (made.opt_start_seq or 0)]
        self.wires[made.serial] = list(enumerate(rest, start=1))
        self.perform(self.flow.on_created(made.serial, self.now))

    @rule(serial=st.integers(1, 12), count=st.integers(1, 10))
    def receive(self, serial: int, count: int) -> None:
        wire = self.wires.get(serial)
        if not wire or not self.connected:
            return
        chunk, self.wires[serial] = wire[:count], wire[count:]
        verdict = self.flow.on_batch(chunk[0][0], chunk[-1][0], chunk[-1][1], len(chunk), serial, self.now)
        if verdict is Verdict.DELIVER:
            self.seen.extend(sseq for _, sseq in chunk)
        elif verdict is Verdict.INSPECT:
            keep, actions = self.flow.on_each([(serial, c, s) for c, s in chunk], self.now)
            self.seen.extend(chunk[index][1] for index in keep)
            self.perform(actions)

    @rule(position=st.integers(0, 30), count=st.integers(1, 4))
    def lose(self, position: int, count: int) -> None:
        wire = self.wires.get(self.flow.serial)
        if wire:
            del wire[position : position + count]

    @rule(reason=st.sampled_from(["", "consumer deleted", "no responders"]))
    def trouble(self, reason: str) -> None:
        self.perform(trouble(self.flow, reason, self.flow.serial, self.now))

    @rule()
    def disconnect(self) -> None:
        self.connected = False
        self.wires.clear()
        self.perform(self.flow.on_disconnect(self.now))

    @rule()
    def reconnect(self) -> None:
        self.connected = True
        self.perform(self.flow.on_reconnect(self.now))

    @rule(seconds=st.floats(0.1, 12.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.flow.on_timer(self.now))

    @rule()
    def settle(self) -> None:
        """Liveness: healthy again, the whole stream arrives within one longest backoff for each attempt."""
        self.reconnect()
        for _ in range(8):
            if self.creating is not None:
                self.creation_ends(True)
            elif (due := self.flow.next_deadline()) is not None:
                self.time_passes(max(0.0, due - self.now))
            while self.wires.get(self.flow.serial):
                self.receive(self.flow.serial, 7)
            if self.seen == self.stream:
                return
            if self.flow.state is OrderedState.ACTIVE:
                # What was lost at the end is told by the next heartbeat.
                behind = self.flow.expected + len(self.stream) - len(self.seen) - 1
                self.perform(self.flow.on_heartbeat(self.flow.serial, behind, self.now))
        assert self.seen == self.stream

    @invariant()
    def each_message_once_and_in_order(self) -> None:
        assert self.seen == self.stream[: len(self.seen)]


OrderedMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, print_blob=True
)
TestOrderedMachine = OrderedMachine.TestCase
