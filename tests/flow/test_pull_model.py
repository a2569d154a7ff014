"""The pull machine against a model server: random histories, exact books, no stall.

To repeat a failure, put the ``@reproduce_failure`` line that hypothesis prints (``print_blob``) on the
test class; to repeat a whole run, choose its seed beforehand with ``pytest --hypothesis-seed=N``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flow.model_server import MAX_WAITING, ModelServer
from jetspark.errors import MissedHeartbeat
from jetspark.jetstream.flow.actions import ChangeInbox, Conclude, SendPull, Warn
from jetspark.jetstream.flow.options import PullOptions
from jetspark.jetstream.flow.pull import MAX_REQUESTS, PullFlow, State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetspark.jetstream.flow.actions import Action

pytestmark = pytest.mark.slow

SETTINGS = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
EXPIRES = 4.0
HEARTBEAT = 1.0
SIZES = st.integers(min_value=1, max_value=60)


class PullMachine(RuleBasedStateMachine):
    """Subclasses choose how the buffer is measured."""

    measured_in_bytes: ClassVar[bool] = False
    #: The books are exact in messages unless a request may vanish with part of its batch unspent.
    exact_messages: ClassVar[bool] = True
    #: How many requests may wait, where that was lowered.
    max_waiting: ClassVar[int] = 0
    #: Whether something happens that deserves an alarm.
    may_alarm: ClassVar[bool] = True

    def options(self, limit: int, threshold: int) -> PullOptions:
        return PullOptions(
            max_messages=limit,
            threshold_messages=min(threshold, limit),
            expires=EXPIRES,
            idle_heartbeat=HEARTBEAT,
        )

    @initialize(
        limit=st.integers(1, 40),
        threshold=st.integers(0, 40),
        max_batch=st.sampled_from([0, 0, 0, 1, 7]),
        max_bytes=st.sampled_from([0, 0, 80]),
    )
    def begin(self, limit: int, threshold: int, max_batch: int, max_bytes: int) -> None:
        self.now = 100.0
        self.server = ModelServer(
            max_request_batch=max_batch,
            max_request_bytes=max_bytes,
            max_waiting=self.max_waiting or MAX_WAITING,
        )
        options = self.options(limit, threshold)
        self.limit = options.max_bytes if options.max_bytes is not None else limit
        self.flow = PullFlow(options, narrow=bool(self.max_waiting))
        self.buffer: list[int] = []
        self.inbox = 0
        self.changing = False
        self.connected = True
        self.delivered = 0
        self.pulls_since_time_moved = 0
        self.perform(self.flow.start(self.now))

    # --- driver ---------------------------------------------------------------------------------------

    def perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            assert not isinstance(action, Conclude), "consume must not conclude by itself"
            if isinstance(action, SendPull):
                assert self.connected, "pulled while disconnected"
                assert action.batch > 0
                assert action.idle_heartbeat_ns * 2 <= action.expires_ns
                assert bool(action.idle_heartbeat_ns) is not bool(self.max_waiting)
                assert not self.changing, "pulled before the old requests are gone"
                self.pulls_since_time_moved += 1
                self.server.pull(action, self.inbox, self.now)
            elif isinstance(action, Warn) and isinstance(action.warning, MissedHeartbeat):
                assert self.may_alarm, "an alarm though the server is well"
                # It has read all requests then; the first sign of life is due a heartbeat later.
                late = self.now < self.server.thawed_at + HEARTBEAT
                unwell = self.server.frozen or late or self.server.lost != (0, 0)
                assert unwell, "an alarm though nothing was lost"
            elif isinstance(action, ChangeInbox):
                assert not self.changing
                self.changing = True
                self.server.unsubscribe(self.inbox)

    def read(self, limit: int) -> None:
        """Receive up to so many things, messages in one chunk, statuses one by one."""
        outbox = self.server.outbox
        while outbox and limit > 0:
            chunk: list[int] = []
            while outbox and limit > 0 and outbox[0].status is None and not outbox[0].pong:
                chunk.append(outbox.popleft().size)
                limit -= 1
            if chunk:
                self.buffer.extend(chunk)
                self.delivered += len(chunk)
                self.perform(self.flow.on_messages(len(chunk), sum(chunk), self.now))
            elif outbox and outbox[0].pong:
                outbox.popleft()
                limit -= 1
                assert self.changing
                self.next_inbox()
                self.server.lost = (0, 0)
                self.perform(self.flow.on_inbox_changed(self.now))
            elif outbox:
                sent = outbox.popleft()
                limit -= 1
                assert sent.status is not None
                self.perform(self.flow.on_status(sent.status, self.now))

    def next_inbox(self) -> None:
        self.inbox += 1
        self.changing = False

    def advance(self, seconds: float, *, reading: bool) -> None:
        end = self.now + seconds
        while True:
            due = [d for d in (self.flow.next_deadline(), self.server.next_event()) if d is not None]
            self.now = max(self.now, min([end, *due]))
            self.pulls_since_time_moved = 0
            self.server.tick(self.now)
            if reading and self.connected:
                self.read(1 << 30)
            self.perform(self.flow.on_timer(self.now))
            due_next = self.flow.next_deadline()
            assert due_next is None or due_next > self.now, "a timer that fires again and again"
            if reading and self.connected:
                self.read(1 << 30)
            if self.now >= end:
                return

    # --- rules ----------------------------------------------------------------------------------------

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=30))
    def publish(self, sizes: list[int]) -> None:
        self.server.publish(sizes, self.now)

    @rule(count=st.integers(1, 30))
    def receive(self, count: int) -> None:
        if self.connected:
            self.read(count)

    @rule(count=st.integers(1, 40))
    def process(self, count: int) -> None:
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        if taken:
            self.perform(self.flow.on_processed(len(taken), sum(taken), self.now))

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.1, 2.5, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.advance(seconds, reading=True)

    @rule()
    def leader_changes(self) -> None:
        self.server.change_leader()

    @rule()
    def server_shuts_down(self) -> None:
        self.server.shut_down()

    @rule()
    def server_freezes(self) -> None:
        self.server.freeze()

    @precondition(lambda self: self.server.frozen)
    @rule(publishers_first=st.booleans())
    def server_thaws(self, publishers_first: bool) -> None:
        self.server.thaw(self.now, publishers_first=publishers_first)

    @rule(
        seconds=st.sampled_from([1.5, 2.5, 8.0]), publish=st.integers(0, 30), publishers_first=st.booleans()
    )
    def server_hangs(self, seconds: float, publish: int, publishers_first: bool) -> None:
        """Alarms, and messages and a late end of requests that were written off."""
        self.server.freeze()
        self.server.publish([1] * publish, self.now)
        self.advance(seconds, reading=True)
        self.server.thaw(self.now, publishers_first=publishers_first)

    @rule()
    def server_crashes(self) -> None:
        self.server.crash()

    @rule()
    def leader_is_lost_or_found(self) -> None:
        self.server.has_leader = not self.server.has_leader
        self.server.serve(self.now)

    @rule(count=st.integers(1, 60))
    def messages_vanish(self, count: int) -> None:
        self.server.purge(count)

    @rule()
    def consumer_is_paused_or_resumed(self) -> None:
        self.server.paused = not self.server.paused
        self.server.serve(self.now)

    @precondition(lambda self: self.connected)
    @rule()
    def disconnect(self) -> None:
        self.server.cut()
        self.connected = False
        self.perform(self.flow.on_disconnect(self.now))
        self.next_inbox()

    @precondition(lambda self: not self.connected and not self.server.frozen)
    @rule()
    def reconnect(self) -> None:
        self.connected = True
        self.perform(self.flow.on_reconnect(self.now))

    @rule()
    def settle(self) -> None:
        """Liveness: with a healthy server, everything stored is delivered, without help by a new publish."""
        self.server.has_leader = True
        self.server.paused = False
        if self.server.frozen:
            self.server_thaws(publishers_first=True)
        self.server.serve(self.now)
        if not self.connected:
            self.reconnect()
        patience = HEARTBEAT + 0.1  # the longest backoff, and the time step of this test
        if self.server.lost != (0, 0):
            # Requests that vanished without a word are found by the alarm, after two heartbeats.
            patience = 2 * HEARTBEAT + 0.1
        for _ in range(400):
            self.read(1 << 30)
            self.process(1 << 30)
            if not self.server.stored and not self.server.messages_sent:
                return
            before = self.delivered
            self.advance(0.0, reading=True)
            waited = 0.0
            while self.delivered == before and waited <= patience:
                self.advance(0.05, reading=True)
                waited += 0.05
            assert self.delivered > before, f"no message for {waited:.2f} s though the server has some"
        raise AssertionError("no end in sight")

    # --- invariants -----------------------------------------------------------------------------------

    @invariant()
    def the_machine_runs_on(self) -> None:
        assert self.flow.state is State.RUNNING
        assert self.flow.outstanding_requests <= MAX_REQUESTS
        assert self.flow.buffered == len(self.buffer)

    @invariant()
    def never_a_tight_loop(self) -> None:
        # Bounded by what was read and processed, never by how often the server says no.
        assert self.pulls_since_time_moved < 2000

    @invariant()
    def pending_is_never_negative_nor_above_the_limit(self) -> None:
        ledger = self.flow._ledger
        assert ledger.messages >= 0
        assert ledger.size >= 0
        assert ledger.messages == sum(request.messages for request in ledger.requests)
        assert ledger.size == sum(request.size for request in ledger.requests)
        pending = self.flow.pending_bytes if self.measured_in_bytes else self.flow.pending_messages
        assert pending <= self.limit

    @invariant()
    def the_books_are_exact(self) -> None:
        if not self.connected:
            return
        if self.changing:
            assert self.flow.outstanding_requests == 0
            return
        messages, size = self.server.outstanding(self.inbox)
        lost_messages, lost_size = self.server.lost
        ledger = self.flow._ledger
        if self.measured_in_bytes:
            assert size <= ledger.size <= size + lost_size
        elif self.exact_messages:
            assert messages <= ledger.messages <= messages + lost_messages
        else:
            assert messages <= ledger.messages
            assert size <= ledger.size <= size + lost_size


class HonestMachine(PullMachine):
    """Nothing goes wrong but that the backlog goes away: then there is no alarm at all, ever."""

    leader_changes = server_shuts_down = server_crashes = leader_is_lost_or_found = None
    server_freezes = server_thaws = server_hangs = None
    may_alarm = False

    @rule(count=st.integers(30, 120), process=st.integers(1, 40), purge=st.sampled_from([0, 0, 10, 200]))
    def flood(self, count: int, process: int, purge: int) -> None:
        self.server.publish([1] * count, self.now)
        self.receive(process)
        self.process(process)
        self.server.purge(purge)

    @rule(seconds=st.sampled_from([0.4, 0.9, 1.9]))
    def the_reader_sleeps(self, seconds: float) -> None:
        self.advance(seconds, reading=True)
        self.process(1)


class BytesMachine(PullMachine):
    measured_in_bytes = True

    def options(self, limit: int, threshold: int) -> PullOptions:
        # Large enough for any message, so that "can never fit" stays a test of its own.
        size = 60 + limit * 10
        return PullOptions(
            max_bytes=size,
            threshold_bytes=min(threshold * 10, size),
            expires=EXPIRES,
            idle_heartbeat=HEARTBEAT,
        )


class HonestBytesMachine(BytesMachine, HonestMachine):
    pass


class CappedMachine(PullMachine):
    exact_messages = False

    def options(self, limit: int, threshold: int) -> PullOptions:
        return PullOptions(
            max_messages=limit,
            threshold_messages=min(threshold, limit),
            max_bytes_per_request=60 + threshold * 3,
            expires=EXPIRES,
            idle_heartbeat=HEARTBEAT,
        )


class NarrowMachine(PullMachine):
    max_waiting = 1


class NarrowBytesMachine(BytesMachine):
    max_waiting = 2


PullMachine.TestCase.settings = SETTINGS
NarrowMachine.TestCase.settings = SETTINGS
NarrowBytesMachine.TestCase.settings = SETTINGS
BytesMachine.TestCase.settings = SETTINGS
CappedMachine.TestCase.settings = SETTINGS
HonestMachine.TestCase.settings = SETTINGS
HonestBytesMachine.TestCase.settings = SETTINGS

TestMessages = PullMachine.TestCase
TestNarrow = NarrowMachine.TestCase
TestNarrowBytes = NarrowBytesMachine.TestCase
TestBytes = BytesMachine.TestCase
TestCapped = CappedMachine.TestCase
TestHonest = HonestMachine.TestCase
TestHonestBytes = HonestBytesMachine.TestCase


def test_the_end_of_one_request_may_give_back_the_last_bytes_of_all() -> None:
    """The bytes of the first request come out even, so it ends without a word with two of its batch left; the
    end of the second gives back the rest of its bytes. Nothing is alive then, and nobody has to wait for the
    heartbeat that fails to come."""
    machine = CappedMachine()
    machine.begin(limit=8, threshold=0, max_batch=7, max_bytes=0)
    machine.publish(sizes=[1, 1, 1, 1, 56, 1, 1])
    machine.settle()
    assert machine.delivered == 7
