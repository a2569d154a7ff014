"""The fast-ingest machine of ADR-50 in simulated time, alone and against a model of the server."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspark.errors import (
    ConnectionClosed,
    ConnectionLost,
    FastIngestBroken,
    FastIngestDisabled,
    FastIngestFailed,
    MessageTooLarge,
    NoStreamResponse,
    ProtocolError,
    RequestTimeout,
    RequiredApiLevel,
    WrongLastSequence,
)
from jetspark.jetstream.flow.fast import (
    APPEND,
    END,
    PING,
    START,
    Action,
    FastFlow,
    Report,
    SendEnd,
    SendPing,
    State,
)
from jetspark.models import IngestGap

LOST = ConnectionLost("gone")


def make(*, gap_ok: bool = False, outstanding: int = 2) -> FastFlow:
    return FastFlow(gap_ok=gap_ok, outstanding=outstanding, ping_interval=2.0, ack_timeout=10.0, now=100.0)


def reply(flow: FastFlow, body: dict[str, Any], number: int = 1, op: int = APPEND, now: float = 100.0) -> Any:
    return flow.on_reply(json.dumps(body).encode(), number, op, now)


def ack(flow: FastFlow, seq: int, msgs: int, op: int = APPEND, now: float = 100.0) -> list[Action]:
    actions: list[Action] = reply(flow, {"type": "ack", "seq": seq, "msgs": msgs}, seq or 1, op, now)
    return actions


def error(err_code: int, description: str = "no") -> dict[str, Any]:
    return {"code": 400, "err_code": err_code, "description": description}


def final(count: int, seq: int = 0) -> dict[str, Any]:
    return {"stream": "S", "seq": seq or count, "batch": "b", "count": count}


def opened(*, gap_ok: bool = False, outstanding: int = 2, flow: int = 10, sent: int = 1) -> FastFlow:
    machine = make(gap_ok=gap_ok, outstanding=outstanding)
    machine.on_start(100.0)
    assert ack(machine, 0, flow, START) == []
    machine.sent = sent
    return machine


# Begin


def test_nothing_may_be_sent_before_the_first_answer() -> None:
    flow = make()
    assert (flow.sent, flow.limit) == (0, 0)
    flow.on_start(100.0)
    assert flow.state is State.STARTING
    assert flow.sent >= flow.limit
    ack(flow, 0, 10, START)
    assert flow.state is State.OPEN
    assert flow.limit == 20


@pytest.mark.parametrize(
    ("body", "cls"),
    [
        ({"stream": "S", "error": error(10205)}, FastIngestDisabled),
        ({"stream": "S", "error": error(10071, "wrong last sequence: 4")}, WrongLastSequence),
        ({"stream": "S", "seq": 7}, RequiredApiLevel),
    ],
)
def test_a_refused_begin_raises_the_refusal_itself(body: dict[str, Any], cls: type[Exception]) -> None:
    flow = make()
    flow.on_start(100.0)
    assert reply(flow, body, 1, START) == []
    assert flow.state is State.DONE
    assert type(flow.error) is cls


def test_a_begin_that_is_refused_after_its_flow_was_granted() -> None:
    flow = opened(sent=5)
    reply(flow, {"stream": "S", "error": error(10071, "wrong last sequence: 4")}, 1, START)
    assert isinstance(flow.error, WrongLastSequence)
    assert (flow.state, flow.limit) == (State.DONE, 0)


def test_no_stream_at_the_begin_may_be_tried_again() -> None:
    flow = make()
    flow.on_start(100.0)
    assert flow.on_no_responders(1, START) == []
    assert (flow.state, flow.sent) == (State.NEW, 0)


def test_silence_and_a_lost_link_at_the_begin() -> None:
    flow = make()
    flow.on_start(100.0)
    assert flow.on_timer(102.0) == []
    flow.on_silence_at_start(5.0)
    assert isinstance(flow.error, RequestTimeout)
    flow = make()
    flow.on_start(100.0)
    assert flow.on_link_lost(LOST) == []
    assert isinstance(flow.error, ConnectionLost)
    assert "may be stored" in str(flow.error)


# Flow


@pytest.mark.parametrize("outstanding", [1, 2, 3])
def test_the_limit_follows_the_acks(outstanding: int) -> None:
    flow = opened(outstanding=outstanding, flow=10)
    assert flow.limit == 10 * outstanding
    flow.sent = 30
    ack(flow, 10, 20)
    assert (flow.acked, flow.limit) == (10, 10 + 20 * outstanding)
    ack(flow, 30, 5)
    assert (flow.acked, flow.limit) == (30, 30 + 5 * outstanding)


def test_an_ack_stands_for_those_before_it() -> None:
    flow = opened(sent=40)
    ack(flow, 30, 10)
    ack(flow, 20, 10)  # late, out of order
    assert flow.acked == 30


def test_a_flow_of_zero_does_not_stop_us() -> None:
    flow = opened(sent=10)
    ack(flow, 10, 0)
    assert flow.limit == 12


def test_kinds_of_the_future_are_ignored() -> None:
    flow = opened()
    assert reply(flow, {"type": "weather", "seq": 1}) == []
    assert flow.state is State.OPEN


@pytest.mark.parametrize("data", [b"", b"nonsense", b"[]", b"\xff"])
def test_what_can_not_be_read_ends_the_batch(data: bytes) -> None:
    flow = opened(sent=5)
    flow.on_reply(data, 1, APPEND, 100.0)
    assert isinstance(flow.error, FastIngestBroken)
    assert isinstance(flow.error.cause, ProtocolError)


# Pings


def test_silence_is_answered_with_pings_then_with_an_error() -> None:
    flow = opened(sent=5)
    assert flow.next_deadline() == 102.0
    assert flow.on_timer(102.0) == []  # the answer to the first message was heard since
    assert flow.next_deadline() == 104.0
    for now in (104.0, 106.0, 108.0):
        assert flow.on_timer(now) == [SendPing()]
    assert flow.on_timer(110.0) == []
    assert isinstance(flow.error, FastIngestBroken)
    assert isinstance(flow.error.cause, RequestTimeout)
    assert flow.error.stored == 0


def test_an_answered_ping_keeps_an_idle_batch_alive() -> None:
    flow = opened(sent=5)
    now = 102.0
    for _ in range(100):
        if flow.on_timer(now):
            ack(flow, 0, 10, PING, now + 0.1)
        now += 2.0
    assert flow.state is State.OPEN


def test_a_ping_answer_without_progress_lets_one_message_pass() -> None:
    # Reports of refused messages were lost: the server acks no more until it can store something.
    flow = opened(sent=20)
    assert flow.limit == 20
    ack(flow, 0, 10, PING)
    assert flow.limit == 21
    flow.sent = 21
    ack(flow, 20, 10)
    assert flow.limit == 40


# Trouble with gap="fail"


def test_a_gap_ends_the_batch_with_what_is_stored() -> None:
    flow = opened(sent=20)
    assert reply(flow, {"type": "gap", "last_seq": 8, "seq": 11}, 11) == []
    assert flow.state is State.ENDING
    assert flow.limit == 0
    reply(flow, final(7, 107), 11)
    broken = flow.error
    assert isinstance(broken, FastIngestBroken)
    assert (broken.published, broken.stored) == (20, 7)
    assert broken.ack is not None
    assert broken.ack.seq == 107
    assert "messages 8 to 10 did not reach the stream" in str(broken)


def test_a_refused_message_ends_the_batch() -> None:
    flow = opened(sent=20)
    reply(flow, {"type": "err", "seq": 5, "error": error(10071, "wrong last sequence: 1")}, 5)
    assert flow.state is State.ENDING
    reply(flow, final(4), 5)
    assert isinstance(flow.error, FastIngestBroken)
    assert isinstance(flow.error.cause, WrongLastSequence)
    assert flow.error.stored == 4


def test_a_refusal_before_the_batch_was_looked_at_makes_us_ask() -> None:
    flow = opened(sent=20)
    assert reply(flow, {"stream": "S", "error": error(10054)}, 5) == [SendPing()]
    assert flow.state is State.ENDING
    assert reply(flow, {"type": "gap", "last_seq": 5, "seq": 6}, 6) == []
    reply(flow, final(4), 6)
    assert isinstance(flow.error, FastIngestBroken)
    assert isinstance(flow.error.cause, MessageTooLarge)


def test_a_message_without_a_stream_ends_the_batch() -> None:
    flow = opened(sent=20)
    assert flow.on_no_responders(7, APPEND) == [SendPing()]
    reply(flow, final(6), 20, PING)
    assert isinstance(flow.error, FastIngestBroken)
    assert isinstance(flow.error.cause, NoStreamResponse)
    assert flow.error.stored == 6


def test_a_message_without_a_stream_before_the_commit() -> None:
    flow = opened(sent=10)
    flow.on_commit(100.0)
    assert flow.on_no_responders(10, APPEND) == []
    reply(flow, {"type": "gap", "last_seq": 10, "seq": 11}, 11, END)
    reply(flow, final(9), 11, END)
    assert isinstance(flow.error, FastIngestBroken)
    assert isinstance(flow.error.cause, NoStreamResponse)
    assert flow.error.stored == 9


def test_the_end_waits_for_the_final_ack_with_pings() -> None:
    flow = opened(sent=20)
    reply(flow, {"type": "gap", "last_seq": 8, "seq": 11}, 11)
    assert flow.on_commit(101.0) == []
    flow.on_timer(102.0)
    assert flow.on_timer(104.0) == [SendPing()]
    flow.on_timer(111.0)
    assert isinstance(flow.error, FastIngestBroken)
    assert flow.error.ack is None


def test_an_unknown_batch_is_over() -> None:
    flow = opened(sent=25)
    ack(flow, 10, 10)
    reply(flow, {"stream": "S", "error": error(10208)}, 26)
    assert isinstance(flow.error, FastIngestBroken)
    assert isinstance(flow.error.cause, FastIngestFailed)
    assert (flow.error.stored, flow.error.ack) == (10, None)
    assert flow.limit == 0


def test_a_final_ack_out_of_the_blue() -> None:
    flow = opened(sent=25)
    reply(flow, final(10), 11)
    assert isinstance(flow.error, FastIngestBroken)
    assert flow.error.stored == 10


# Trouble with gap="ok"


def test_gaps_are_reported_and_the_batch_goes_on() -> None:
    flow = opened(gap_ok=True, sent=20)
    actions = reply(flow, {"type": "gap", "last_seq": 8, "seq": 11}, 11)
    assert actions == [Report(IngestGap(first=8, last=10))]
    assert actions[0].gap.count == 3
    assert (flow.state, flow.lost) == (State.OPEN, 3)


def test_refused_messages_widen_the_limit_until_they_are_acked() -> None:
    flow = opened(gap_ok=True, outstanding=1, sent=10)
    assert flow.limit == 10
    for number in range(1, 11):
        (report,) = reply(flow, {"type": "err", "seq": number, "error": error(10071)}, number)
        assert report.gap.first == report.gap.last == number
        assert isinstance(report.gap.error, WrongLastSequence)
    assert (flow.limit, flow.lost) == (20, 10)
    flow.sent = 15
    ack(flow, 10, 10)
    assert flow.limit == 20


def test_a_message_without_a_stream_is_the_servers_to_report() -> None:
    flow = opened(gap_ok=True, sent=5)
    assert flow.on_no_responders(5, APPEND) == []
    assert flow.state is State.OPEN


def test_a_broken_link_is_cleared_up_by_a_ping() -> None:
    flow = opened(gap_ok=True, sent=20)
    assert flow.on_link_lost(LOST) == []
    assert flow.on_link_restored() == [SendPing()]
    assert reply(flow, {"type": "gap", "last_seq": 15, "seq": 21}, 20, PING) == [
        Report(IngestGap(first=15, last=20))
    ]
    ack(flow, 20, 10, PING)
    # All is known: breaking again has nothing to add.
    assert flow.on_link_lost(LOST) == []


def test_a_link_that_breaks_before_the_ping_is_answered_leaves_doubt() -> None:
    flow = opened(gap_ok=True, sent=20)
    ack(flow, 10, 10)
    flow.on_link_lost(LOST)
    flow.on_link_restored()
    flow.sent = 22
    assert flow.on_link_lost(LOST) == [Report(IngestGap(first=11, last=20, certain=False))]
    assert flow.lost == 0


# Commit


@pytest.mark.parametrize("gap_ok", [False, True])
def test_commit(gap_ok: bool) -> None:
    flow = opened(gap_ok=gap_ok, sent=17)
    assert flow.on_commit(101.0) == [SendEnd()]
    assert flow.limit == 0
    ack(flow, 10, 10)
    assert flow.limit == 0
    reply(flow, final(17, 117), 18, END)
    assert flow.state is State.DONE
    assert flow.error is None
    assert flow.ack is not None
    assert (flow.ack.seq, flow.acked) == (117, 17)


def test_a_commit_that_finds_messages_missing() -> None:
    flow = opened(sent=17)
    flow.on_commit(101.0)
    reply(flow, {"type": "gap", "last_seq": 12, "seq": 18}, 18, END)
    reply(flow, final(11), 18, END)
    assert isinstance(flow.error, FastIngestBroken)
    assert flow.error.stored == 11


def test_a_final_ack_that_counts_less_than_we_sent() -> None:
    flow = opened(sent=17)
    flow.on_commit(101.0)
    reply(flow, final(16), 18, END)
    assert isinstance(flow.error, FastIngestBroken)
    assert flow.error.stored == 16


def test_a_commit_is_sent_again() -> None:
    flow = opened(sent=17)
    flow.on_commit(101.0)
    assert flow.on_no_responders(18, END) == []
    flow.on_timer(102.0)
    assert flow.on_timer(104.0) == [SendEnd()]
    flow.on_link_lost(LOST)
    assert flow.on_link_restored() == [SendEnd()]
    reply(flow, final(17), 18, END)
    assert flow.error is None
    # The second one found no batch any more; that is past.
    assert reply(flow, {"stream": "S", "error": error(10208)}, 18, END) == []
    assert flow.error is None


def test_closing_the_connection_ends_the_batch() -> None:
    flow = opened(sent=17)
    flow.on_failure(ConnectionClosed("closed"))
    assert isinstance(flow.error, FastIngestBroken)
    assert isinstance(flow.error.cause, ConnectionClosed)
    assert flow.on_timer(200.0) == flow.on_link_restored() == []


def test_the_error_travels() -> None:
    flow = opened(sent=17)
    reply(flow, final(16, 99), 17)
    again = pickle.loads(pickle.dumps(flow.error))
    assert (str(again), again.published, again.stored) == (str(flow.error), 17, 16)
    assert again.ack == flow.ack


# Against a model of the server


class ModelServer:
    """What a server does with a batch, in the order of arrival; its own state is the truth."""

    def __init__(self, gap_ok: bool, flow: int) -> None:
        self.gap_ok = gap_ok
        self.flow = flow
        self.last = 0
        self.acked = 0
        self.stored: list[int] = []
        self.over = False

    def receive(self, number: int, op: int, refuse: bool) -> list[dict[str, Any]]:
        if self.over:
            return [{"stream": "S", "error": error(10208)}]
        answers: list[dict[str, Any]] = []
        expected = self.last + 1
        seen = number + 1 if op == PING else number
        if seen > expected:
            answers.append({"type": "gap", "last_seq": expected, "seq": seen})
            if not self.gap_ok:
                self.over = True
                return [*answers, final(self.last)]
            self.last = seen - 1
        if op == PING:
            self.ack()
            return [*answers, {"type": "ack", "seq": self.acked, "msgs": self.flow}]
        if op == END:
            self.over = True
            return [*answers, final(self.last)]
        if refuse:
            answers.append({"type": "err", "seq": number, "error": error(10071)})
            if not self.gap_ok:
                self.over = True
                return [*answers, final(self.last)]
            self.last = number
            return answers
        self.last = number
        self.stored.append(number)
        if number == 1:
            answers.append({"type": "ack", "seq": 0, "msgs": self.flow})
        if self.ack():
            answers.append({"type": "ack", "seq": self.acked, "msgs": self.flow})
        return answers

    def ack(self) -> bool:
        steps = (self.last - self.acked) // self.flow if self.stored and self.stored[-1] == self.last else 0
        self.acked += steps * self.flow
        return steps > 0


@settings(max_examples=300, deadline=None)
@given(
    gap_ok=st.booleans(),
    granted=st.integers(1, 7),
    outstanding=st.integers(1, 3),
    fates=st.lists(st.sampled_from(["ok"] * 12 + ["lost", "refused", "mute"]), max_size=80),
)
def test_whatever_gets_lost_is_known_in_the_end(
    gap_ok: bool, granted: int, outstanding: int, fates: list[str]
) -> None:
    """ "lost": the message never arrives; "refused": the server says no; "mute": its answers get lost."""
    server = ModelServer(gap_ok, granted)
    flow = make(gap_ok=gap_ok, outstanding=outstanding)
    now = 100.0
    reported: set[int] = set()

    def carry(number: int, op: int, fate: str = "ok") -> None:
        if fate == "lost":
            return
        answers = server.receive(number, op, fate == "refused")
        if fate == "mute" and not server.over:
            # Gap and error reports may be lost only with a link, which is another test: acks alone here.
            answers = [one for one in answers if one.get("type") != "ack"]
        for answer in answers:
            perform(flow.on_reply(json.dumps(answer).encode(), number, op, now))

    def perform(actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Report):
                reported.update(range(action.gap.first, action.gap.last + 1))
            else:
                number = flow.sent + isinstance(action, SendEnd)
                carry(number, END if isinstance(action, SendEnd) else PING)

    flow.on_start(now)
    carry(1, START)
    for fate in fates:
        ticks = 0
        while flow.sent >= flow.limit and flow.state is State.OPEN:
            now += 2.0
            perform(flow.on_timer(now))
            ticks += 1
            assert ticks < 4, "stalled"
        if flow.state is not State.OPEN:
            break
        flow.sent += 1
        carry(flow.sent, APPEND, fate)
    perform(flow.on_commit(now))
    ticks = 0
    while flow.state is not State.DONE:
        now += 2.0
        perform(flow.on_timer(now))
        ticks += 1
        assert ticks < 8, "never done"
    everything = set(range(1, flow.sent + 1))
    if gap_ok:
        assert flow.error is None
        assert everything - reported == set(server.stored)
        assert flow.lost == len(reported)
    elif flow.error is None:
        assert server.stored == sorted(everything)
    else:
        assert isinstance(flow.error, FastIngestBroken)
        assert server.stored == list(range(1, flow.error.stored + 1))
