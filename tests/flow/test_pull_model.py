"""The pull machine against a model server: random histories, exact books, no stall.

To repeat a failure, put the ``@reproduce_failure`` line that hypothesis prints (``print_blob``) on the
test class; to repeat a whole run, choose its seed beforehand with ``pytest --hypothesis-seed=N``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flow.model_server import ModelServer
from jetspark.jetstream.consume_errors import MissedHeartbeat
from jetspark.jetstream.flow_actions import Conclude, SendPull, Warn
from jetspark.jetstream.pull_flow import MAX_REQUESTS, PullFlow, State
from jetspark.jetstream.pull_options import PullOptions
from jetspark.jetstream.statuses import Ends, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetspark.jetstream.flow_actions import Action

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
    trust_backlog: ClassVar[bool] = False
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
        self.server = ModelServer(max_request_batch=max_batch, max_request_bytes=max_bytes)
        options = self.options(limit, threshold)
        self.limit = options.max_bytes if options.max_bytes is not None else limit
        self.flow = PullFlow(options, trust_backlog=self.trust_backlog)
        #: What the newest message said is left, unless a status or the end of a link came after it.
        self.left = 0
        self.buffer: list[int] = []
        self.connected = True
        self.delivered = 0
        #: Set when the client wrote off something that the server still honours, or the other way round.
        self.apart = False
        self.pulls_since_time_moved = 0
        self.perform(self.flow.start(self.now))

    # --- driver ---------------------------------------------------------------------------------------

    def perform(self, actions: Iterable[Action]) -> None:
        actions = tuple(actions)
        for place, action in enumerate(actions, start=1):
            assert not isinstance(action, Conclude), "consume must not conclude by itself"
            if isinstance(action, SendPull):
                assert self.connected, "pulled while disconnected"
                assert action.batch > 0
                assert action.idle_heartbeat_ns * 2 <= action.expires_ns
                if not action.idle_heartbeat_ns:
                    assert self.trust_backlog
                    assert self.left > 0
                if not action.idle_heartbeat_ns and not self.measured_in_bytes:
                    later = sum(other.batch for other in actions[place:] if isinstance(other, SendPull))
                    assert self.left >= self.flow._ledger.messages - later
                self.pulls_since_time_moved += 1
                self.server.pull(action, self.now)
            elif isinstance(action, Warn) and isinstance(action.warning, MissedHeartbeat):
                assert self.may_alarm, "an alarm though the server is well"
                assert self.apart or self.server.lost != (0, 0), "an alarm though nothing was lost"
                # Everything was written off; what the server still has will come on top.
                self.left = 0
                self.server.lost = (0, 0)
                self.apart = True

    def read(self, limit: int) -> None:
        """Receive up to so many things, messages in one chunk, statuses one by one."""
        outbox = self.server.outbox
        while outbox and limit > 0:
            chunk: list[int] = []
            while outbox and limit > 0 and outbox[0].status is None:
                self.left = outbox[0].left
                chunk.append(outbox.popleft().size)
                limit -= 1
            if chunk:
                self.flow.on_backlog(self.left)
                self.buffer.extend(chunk)
                self.delivered += len(chunk)
                self.perform(self.flow.on_messages(len(chunk), sum(chunk), self.now))
            elif outbox:
                sent = outbox.popleft()
                limit -= 1
                assert sent.status is not None
                if sent.status.kind not in (Kind.MESSAGE_TOO_LARGE, Kind.BATCH_COMPLETED):
                    self.left = 0
                refused = sent.status.pending is None and sent.status.traits.ends is Ends.ONE
                if sent.status.traits.ends is Ends.ALL or refused:
                    # Exact as long as nothing newer overlaps with what this status is about.
                    self.apart |= sent.pulls_before != self.server.pulls
                self.perform(self.flow.on_status(sent.status, self.now))

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
        self.left = 0
        # Both sides start from nothing, except for what came on top of the limit and is still in the buffer.
        self.apart = (sum(self.buffer) if self.measured_in_bytes else len(self.buffer)) > self.limit
        self.perform(self.flow.on_disconnect(self.now))

    @precondition(lambda self: not self.connected)
    @rule()
    def reconnect(self) -> None:
        self.connected = True
        self.perform(self.flow.on_reconnect(self.now))

    @rule()
    def settle(self) -> None:
        """Liveness: with a healthy server, everything stored is delivered, without help by a new publish."""
        self.server.has_leader = True
        self.server.paused = False
        self.server.serve(self.now)
        if not self.connected:
            self.reconnect()
        patience = HEARTBEAT + 0.1  # the longest backoff, and the time step of this test
        if self.server.lost != (0, 0) or self.apart:
            # Requests that vanished without a word are found by the alarm, after two heartbeats.
            patience = 2 * HEARTBEAT + 0.1
        for _ in range(400):
            self.read(1 << 30)
            self.process(1 << 30)
            if not self.server.stored and not self.server.outbox:
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
        if not self.apart:
            pending = self.flow.pending_bytes if self.measured_in_bytes else self.flow.pending_messages
            assert pending <= self.limit

    @invariant()
    def the_books_are_exact(self) -> None:
        if self.apart or not self.connected:
            return
        messages, size = self.server.outstanding()
        lost_messages, lost_size = self.server.lost
        ledger = self.flow._ledger
        if self.measured_in_bytes:
            assert size <= ledger.size <= size + lost_size
        elif self.exact_messages:
            assert messages <= ledger.messages <= messages + lost_messages
        else:
            assert messages <= ledger.messages
            assert size <= ledger.size <= size + lost_size


class SilentMachine(PullMachine):
    trust_backlog = True

    # More of what makes requests silent, and of what makes them wait: a backlog that goes away.

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


class HonestMachine(SilentMachine):
    """Nothing but the backlog's ways: then there is no alarm at all, ever."""

    leader_changes = server_shuts_down = server_crashes = leader_is_lost_or_found = None
    may_alarm = False


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


class SilentBytesMachine(BytesMachine, SilentMachine):
    """How far a backlog goes is an estimate here."""


class HonestBytesMachine(BytesMachine, HonestMachine):
    """A wrong estimate is no harm."""


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


PullMachine.TestCase.settings = SETTINGS
BytesMachine.TestCase.settings = SETTINGS
CappedMachine.TestCase.settings = SETTINGS
SilentMachine.TestCase.settings = SETTINGS
HonestMachine.TestCase.settings = SETTINGS
SilentBytesMachine.TestCase.settings = SETTINGS
HonestBytesMachine.TestCase.settings = SETTINGS

TestMessages = PullMachine.TestCase
TestBytes = BytesMachine.TestCase
TestCapped = CappedMachine.TestCase
TestSilent = SilentMachine.TestCase
TestHonest = HonestMachine.TestCase
TestSilentBytes = SilentBytesMachine.TestCase
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
