"""The pipelined publisher's machine, in simulated time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspark.errors import ConnectionClosed, ConnectionLost, JetsparkError, RequestTimeout
from jetspark.jetstream.flow.publish import LARGE, MAX_LARGE_BYTES, RETRY_WAIT, PublishFlow, may_repeat

if TYPE_CHECKING:
    from collections.abc import Iterable

BROKEN = ConnectionLost("broken")
REFUSED = JetsparkError("refused")
FORBIDDEN = JetsparkError("forbidden")


class Wire:
    """Drives a flow: what it sends, in order, and what became of each message."""

    def __init__(self, *, window: int = 1000, ack_timeout: float = 8.0, retry: bool = True) -> None:
        self.flow = PublishFlow(window=window, ack_timeout=ack_timeout, retry=retry)
        self.now = 100.0
        self.sent: list[int] = []
        self.failed: dict[int, JetsparkError] = {}
        self.flow.begin(self.now, linked=True)

    def add(self, subject: str = "s", *, again: bool = True, data: bytes = b"x") -> int:
        serial = self.flow.serial + 1
        assert self.flow.add(serial, subject, 0, data, b"block", again) == serial
        if self.flow.sent == serial:
            self.sent.append(serial)
        self.pump()
        return serial

    def add_all(self, count: int, subject: str = "s", *, again: bool = True) -> list[int]:
        return [self.add(subject, again=again) for _ in range(count)]

    def pump(self) -> None:
        if self.flow.recovering:
            self.sent += [serial for serial, _, _ in self.flow.due()]
        for flight, error in self.flow.take_failed():
            assert flight[0] not in self.failed
            self.failed[flight[0]] = error

    def ack(self, *serials: int) -> None:
        for serial in serials:
            self.flow.acked(serial)
            self.pump()

    def refuse(self, serial: int, *, try_again: bool = True) -> None:
        failed = self.flow.refused(serial, self.now, REFUSED, try_again=try_again)
        if failed is not None:
            self.failed[failed[0][0]] = failed[1]
        self.pump()

    def cut(self) -> None:
        self.flow.link_dropped()
        self.flow.link_lost(BROKEN)
        self.pump()

    def restore(self) -> None:
        self.flow.link_restored(self.now)
        self.pump()

    def violate(self, subject: str = "s", times: int = 1) -> None:
        for _ in range(times):
            self.flow.publish_refused(subject, FORBIDDEN)
            self.pump()

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (deadline := self.flow.next_deadline()) <= end:
            self.now = max(self.now, deadline)
            self.flow.on_timer(self.now)
            self.pump()
        self.now = end

    def take(self) -> list[int]:
        sent, self.sent = self.sent, []
        return sent

    def unsure(self, serial: int, why: JetsparkError) -> bool:
        """Whether it failed because of ``why``, with an error that says that it may be stored."""
        error = self.failed[serial]
        return isinstance(error, RequestTimeout) and "may be stored" in str(error) and error.__cause__ is why


# The window


def test_a_message_is_sent_at_once_and_leaves_with_its_ack() -> None:
    wire = Wire(window=2)
    assert wire.add_all(2) == wire.take() == [1, 2]
    assert wire.flow.full
    wire.ack(1)
    assert not wire.flow.full
    assert wire.flow.acked(1) is None
    wire.ack(2)
    assert wire.flow.pending == {}


def test_large_messages_are_counted_in_bytes() -> None:
    wire = Wire()
    data = bytes(MAX_LARGE_BYTES // 2)
    wire.add(data=data)
    wire.add(data=data)
    assert not wire.flow.full
    wire.add(data=bytes(LARGE + 1))
    assert wire.flow.full
    assert not wire.flow.plain
    wire.ack(1, 2, 3)
    assert wire.flow.plain
    assert wire.flow.large_sent == wire.flow.large_done == 2 * len(data) + LARGE + 1


def test_what_is_kept_of_a_message_that_was_sent() -> None:
    wire = Wire()
    wire.add()
    wire.add(again=False)
    assert [flight[3] for flight in wire.flow.pending.values()] == [(b"x", b"block"), None]
    wire.cut()
    wire.add(again=False)
    assert wire.flow.unsent_bytes == 6
    wire.restore()
    wire.ack(1)
    assert wire.flow.unsent_bytes == 0
    assert [flight[3] for flight in wire.flow.pending.values()] == [None]


@pytest.mark.parametrize(
    ("msg_id", "block", "harmless"),
    [
        (None, None, False),
        (None, b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n", False),
        ("1", b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n", True),
        ("1", b"NATS/1.0\r\nNats-Msg-Id: 1\r\nNats-Expected-Stream: S\r\n\r\n", True),
        ("1", b"NATS/1.0\r\nNats-Msg-Id: 1\r\nNats-Expected-Last-Sequence: 1\r\n\r\n", False),
        ("1", b"NATS/1.0\r\nNats-Msg-Id: 1\r\nNats-Expected-Last-Subject-Sequence: 1\r\n\r\n", False),
    ],
)
def test_which_messages_may_be_sent_again(msg_id: str | None, block: bytes | None, harmless: bool) -> None:
    assert may_repeat(msg_id, block) is harmless


def test_flush_knows_what_was_published_before_it() -> None:
    wire = Wire()
    wire.add_all(2)
    last = wire.flow.serial
    wire.add()
    wire.ack(2)
    assert wire.flow.unsettled(last)
    wire.ack(1)
    assert not wire.flow.unsettled(last)
    assert wire.flow.pending


# Lost links


def test_without_retry_what_was_sent_fails_and_the_rest_is_sent_later_in_order() -> None:
    wire = Wire(retry=False)
    wire.add_all(3)
    wire.take()
    wire.cut()
    assert {serial: type(error) for serial, error in wire.failed.items()} == dict.fromkeys(
        (1, 2, 3), ConnectionLost
    )
    wire.add_all(3)
    assert wire.take() == []
    wire.restore()
    assert wire.take() == [4, 5, 6]
    assert wire.add() == 7
    assert wire.take() == [7]


def test_what_was_sent_goes_first_then_what_waited_then_newer_ones() -> None:
    wire = Wire()
    wire.add_all(3)
    wire.cut()
    wire.add_all(2)
    wire.take()
    wire.restore()
    assert wire.take() == [1], "the first goes alone"
    wire.add()
    assert wire.take() == []
    wire.ack(1)
    assert wire.take() == [2, 3, 4, 5, 6]
    assert not wire.flow.recovering
    wire.add()
    assert wire.take() == [7]


def test_of_a_subject_that_is_not_proven_one_goes_at_a_time() -> None:
    wire = Wire()
    for subject in ("a", "b", "b", "c", "a"):
        wire.add(subject)
    wire.take()
    wire.cut()
    wire.restore()
    assert wire.take() == [1]
    wire.ack(1)
    assert wire.take() == [2], "another message to b may not overtake it"
    wire.ack(2)
    assert wire.take() == [3, 4, 5]
    wire.add("c")
    assert wire.take() == [], "c is not proven yet"
    wire.ack(4)
    assert wire.take() == [6]
    assert not wire.flow.recovering


def test_a_refusal_to_try_again_holds_newer_messages_back() -> None:
    wire = Wire()
    wire.add_all(3)
    wire.take()
    wire.refuse(1)
    wire.add()
    wire.ack(2)
    wire.refuse(3)
    assert wire.take() == []
    wire.wait(RETRY_WAIT)
    assert wire.take() == [1]
    wire.refuse(1)
    wire.wait(RETRY_WAIT)
    assert wire.take() == [1]
    wire.ack(1)
    assert wire.take() == [3, 4]
    wire.ack(3, 4)
    assert not wire.failed
    assert wire.flow.pending == {}


def test_a_refusal_of_what_may_not_be_sent_again_is_final_and_holds_nothing() -> None:
    wire = Wire()
    wire.add(again=False)
    wire.refuse(1)
    assert list(wire.failed) == [1]
    wire.add()
    assert wire.take() == [1, 2]
    wire.refuse(2, try_again=False)
    assert list(wire.failed) == [1, 2]


def test_a_message_that_may_not_be_sent_again_makes_way_when_it_is_refused_in_a_recovery() -> None:
    wire = Wire()
    wire.cut()
    wire.add(again=False)
    wire.add()
    wire.restore()
    assert wire.take() == [1]
    wire.refuse(1)
    assert wire.take() == [2]
    assert list(wire.failed) == [1]


def test_a_message_that_can_not_be_sent_makes_way() -> None:
    wire = Wire()
    wire.add_all(2)
    wire.cut()
    wire.take()
    wire.restore()
    assert wire.take() == [1]
    assert wire.flow.withdraw(1)
    assert not wire.flow.withdraw(1)
    wire.pump()
    assert wire.take() == [2]


def test_a_link_that_breaks_again_starts_over() -> None:
    wire = Wire()
    wire.add_all(3)
    wire.cut()
    wire.restore()
    wire.ack(1)
    wire.cut()
    wire.take()
    wire.restore()
    assert wire.take() == [2]
    wire.ack(2)
    assert wire.take() == [3]


def test_an_answer_to_a_message_that_was_not_sent_is_nobodys() -> None:
    wire = Wire()
    wire.add()
    wire.cut()
    wire.restore()
    wire.add()
    wire.ack(2)
    wire.refuse(2, try_again=False)
    assert list(wire.flow.pending) == [1, 2]


def test_closing_fails_everything_once() -> None:
    wire = Wire()
    wire.add_all(2)
    wire.cut()
    wire.add()
    wire.flow.close(ConnectionClosed("closed"))
    wire.pump()
    assert sorted(wire.failed) == [1, 2, 3]
    assert (wire.flow.pending, wire.flow.unsent_bytes) == ({}, 0)


# Time


def test_a_message_without_an_ack_expires() -> None:
    wire = Wire(retry=False)
    wire.add()
    wire.wait(7)
    wire.add()
    wire.wait(0.9)
    assert wire.failed == {}
    wire.wait(1.2)
    assert list(wire.failed) == [1]
    assert isinstance(wire.failed[1], RequestTimeout)
    assert "may be stored" in str(wire.failed[1])
    wire.wait(8)
    assert list(wire.failed) == [1, 2]


def test_without_a_link_it_expires_too_and_says_that_it_was_not_sent() -> None:
    wire = Wire()
    wire.add()
    wire.cut()
    wire.add()
    wire.wait(9.1)
    assert sorted(wire.failed) == [1, 2]
    assert "may be stored" in str(wire.failed[1])
    assert "was not sent" in str(wire.failed[2])
    assert wire.flow.unsent_bytes == 0


def test_what_waits_for_older_messages_does_not_expire() -> None:
    wire = Wire()
    bad = [wire.add("bad"), wire.add("bad")]
    wire.refuse(bad[0])
    good = wire.add_all(3, "good")
    for _ in range(40):
        wire.wait(RETRY_WAIT)
        if wire.take() == bad[:1]:
            wire.refuse(bad[0])
    assert bad[0] in wire.failed
    # The next of them is as old and gets no second try; the others had no chance so far.
    for _ in range(3):
        if bad[1] in wire.flow.pending:
            wire.refuse(bad[1])
    assert sorted(wire.failed) == bad
    wire.wait(RETRY_WAIT)
    wire.ack(*good)
    assert sorted(wire.failed) == bad
    assert wire.flow.pending == {}


def test_no_ack_for_a_quarter_of_the_time_sends_again_oldest_first() -> None:
    wire = Wire()
    wire.add_all(3)
    wire.take()
    wire.wait(1.9)
    assert wire.take() == []
    wire.wait(1.2)
    assert wire.take() == [1]
    wire.add()
    wire.wait(2.1)
    assert wire.take() == [1], "and once more"
    wire.ack(1)
    assert wire.take() == [2, 3, 4]


def test_no_ack_without_retry_sends_nothing_again() -> None:
    wire = Wire(retry=False)
    wire.add_all(3)
    wire.take()
    wire.wait(7)
    assert wire.take() == []


# Permissions


def test_as_many_refusals_as_messages_fail_them() -> None:
    wire = Wire()
    wire.add_all(3)
    wire.add("t")
    wire.violate(times=2)
    assert wire.failed == {}
    assert not wire.flow.plain
    wire.ack(1)
    assert sorted(wire.failed) == [2, 3]
    assert wire.flow.plain
    assert list(wire.flow.pending) == [4]


def test_messages_sent_after_a_refusal_are_counted_too() -> None:
    wire = Wire()
    wire.add_all(2)
    wire.violate()
    wire.add()
    wire.ack(1)
    assert wire.failed == {}
    wire.violate()
    assert sorted(wire.failed) == [2, 3]


def test_a_message_that_expired_may_be_the_one_that_was_refused() -> None:
    wire = Wire(retry=False)
    wire.add()
    wire.wait(4)
    wire.add()
    wire.violate()
    wire.wait(5)
    assert sorted(wire.failed) == [1]
    assert wire.flow.plain
    wire.ack(2)
    assert sorted(wire.failed) == [1]


def test_refusals_that_are_nobodys_are_ignored() -> None:
    wire = Wire()
    wire.add()
    wire.violate("other", 5)
    assert wire.failed == {}
    assert wire.flow.plain
    wire.cut()
    wire.violate()
    wire.restore()
    wire.ack(1)
    assert wire.failed == {}


def test_a_refusal_is_about_what_was_sent_over_this_link() -> None:
    wire = Wire()
    wire.add_all(3)
    wire.cut()
    wire.restore()
    wire.violate()
    assert sorted(wire.failed) == [1], "the others were not sent again yet"


# Refused means not stored


def test_a_refusal_of_the_only_copy_is_certain() -> None:
    wire = Wire()
    wire.add_all(2)
    wire.refuse(1, try_again=False)
    assert wire.failed == {1: REFUSED}


def test_a_refusal_is_certain_when_every_copy_was_refused() -> None:
    wire = Wire()
    wire.add()
    wire.refuse(1)
    wire.wait(RETRY_WAIT)
    wire.refuse(1)
    wire.wait(RETRY_WAIT)
    assert wire.take() == [1, 1, 1]
    wire.refuse(1, try_again=False)
    assert wire.failed == {1: REFUSED}
    assert wire.flow.plain


@pytest.mark.parametrize("lost", ["link", "ack"])
def test_what_is_refused_when_it_is_sent_again_may_be_stored(lost: str) -> None:
    wire = Wire()
    wire.add_all(2)
    if lost == "link":
        wire.cut()
        wire.add()
        wire.restore()
    else:
        wire.wait(3.0)
        wire.add()
    assert wire.take()[-1] == 1, "the oldest goes again, alone"
    wire.refuse(1, try_again=False)
    assert wire.unsure(1, REFUSED)
    wire.refuse(2, try_again=False)
    assert wire.unsure(2, REFUSED)
    wire.refuse(3, try_again=False)
    assert wire.failed[3] is REFUSED, "it was sent once"
    assert wire.flow.plain


def test_a_copy_that_may_be_stored_is_remembered_over_refusals_and_links() -> None:
    wire = Wire()
    wire.add()
    wire.cut()
    wire.restore()
    wire.refuse(1)
    wire.cut()
    wire.restore()
    wire.refuse(1, try_again=False)
    assert wire.unsure(1, REFUSED)


def test_a_copy_that_was_refused_before_the_link_broke_is_not_stored() -> None:
    wire = Wire()
    wire.add()
    wire.refuse(1)
    wire.cut()
    wire.restore()
    wire.refuse(1, try_again=False)
    assert wire.failed == {1: REFUSED}


def test_what_is_forbidden_when_it_is_sent_again_may_be_stored() -> None:
    wire = Wire()
    wire.add()
    wire.cut()
    wire.add()
    wire.restore()
    wire.violate()
    assert wire.unsure(1, FORBIDDEN)
    wire.violate()
    assert wire.failed[2] is FORBIDDEN
    assert wire.flow.plain


def test_two_reports_about_one_message_do_not_fail_another() -> None:
    wire = Wire()
    wire.add(again=False)  # stored; its ack takes its time
    wire.add()  # forbidden
    wire.violate()
    wire.wait(3.0)
    assert wire.take() == [1, 2, 2]
    wire.violate()
    assert wire.failed == {}
    wire.ack(1)
    assert wire.failed == {2: FORBIDDEN}


def test_a_report_about_a_second_copy_is_not_about_another_message() -> None:
    wire = Wire()
    wire.add_all(2)
    wire.wait(3.0)
    assert wire.take() == [1, 2, 1]
    wire.violate()  # about the second copy of 1
    wire.ack(1)  # the first one
    assert wire.failed == {}, "2 may be stored"
    wire.ack(2)
    assert wire.failed == {}
    assert wire.flow.plain


# Anything at all


class Server:
    """Streams that store a message once, and may refuse for a while."""

    def __init__(self) -> None:
        self.stored: list[tuple[str, int]] = []
        self.seen: set[int] = set()

    def store(self, subject: str, serial: int) -> None:
        if serial not in self.seen:
            self.seen.add(serial)
            self.stored.append((subject, serial))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("abc")),
        st.tuples(st.just("serve"), st.integers(0, 8)),
        st.tuples(st.just("cut"), st.booleans()),
        st.tuples(st.just("restore"), st.none()),
        st.tuples(st.just("ready"), st.sampled_from(["", "a", "bc", "abc"])),
        st.tuples(st.just("wait"), st.sampled_from([0.1, 0.3, 1.0])),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=300)
@given(STEPS)
def test_order_survives_cuts_and_streams_that_are_not_ready(steps: Iterable[Any]) -> None:
    """A cut loses what is on its way, both ways.

    After it streams that were published to may not be ready for a while. (That a stream refuses what was
    published later, and is ready a moment after that, is beyond what a publisher can do.)
    """
    wire, server = Wire(ack_timeout=1e6), Server()
    subjects: dict[int, str] = {}
    ready, linked, next_ready = "abc", True, "abc"
    wanted: list[int] = []

    def serve(count: int, *, answers: bool = True) -> None:
        """The server reads so many messages; its answers arrive or are lost with the link."""
        batch = wire.sent[:count]
        del wire.sent[:count]
        for serial in batch:
            subject = subjects[serial]
            if subject in ready:
                server.store(subject, serial)
                if answers:
                    wire.ack(serial)
            elif answers:
                wire.refuse(serial)

    def restore() -> None:
        nonlocal linked, ready
        if not linked:
            waiting = {subjects[serial] for serial in wire.flow.pending}
            linked, ready = True, "".join({*"abc"} - waiting | {*next_ready})
            wire.sent.clear()
            wire.restore()

    for step, value in steps:
        if step == "add":
            subjects[wire.flow.serial + 1] = value
            wanted.append(wire.add(value))
        elif step == "serve" and linked:
            serve(value)
        elif step == "cut" and linked:
            serve(3 if value else 0, answers=False)
            linked = False
            wire.sent.clear()
            wire.cut()
        elif step == "restore":
            restore()
        elif step == "ready":
            # While a link is up streams only get ready.
            next_ready = value
            ready = "".join(sorted({*ready, *value})) if linked else ready
        elif step == "wait":
            wire.wait(value)
    next_ready = ready = "abc"
    restore()
    for _ in range(200):
        serve(1000)
        wire.wait(RETRY_WAIT)
    assert wire.flow.pending == {}
    assert wire.failed == {}
    for subject in "abc":
        stored = [serial for name, serial in server.stored if name == subject]
        assert stored == sorted(stored), f"{subject}: {server.stored}"
    assert sorted(serial for _, serial in server.stored) == wanted


class TruthfulServer:
    """Streams behind a link: copies on their way up, answers and reports of missing permissions down.

    Answers keep their order, and so do reports; but reports may overtake answers.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.subjects: dict[int, str] = {}
        self.modes = dict.fromkeys("ab", "ready")
        self.linked = True
        self.stored: set[int] = set()
        self.answers: list[tuple[str, int]] = []
        self.reports: list[str] = []

    def read(self, count: int) -> None:
        batch = self.wire.sent[:count]
        del self.wire.sent[:count]
        for serial in batch:
            mode = self.modes[self.subjects[serial]]
            if mode == "forbidden":
                self.reports.append(self.subjects[serial])
                continue
            if mode == "ready":
                self.stored.add(serial)
            self.answers.append((mode, serial))

    def answer(self, count: int) -> None:
        batch = self.answers[:count]
        del self.answers[:count]
        for mode, serial in batch:
            if mode == "ready":
                self.wire.ack(serial)
            else:
                self.wire.refuse(serial, try_again=mode == "away")

    def report(self, count: int) -> None:
        batch = self.reports[:count]
        del self.reports[:count]
        for subject in batch:
            self.wire.violate(subject)

    def cut(self) -> None:
        if self.linked:
            self.linked = False
            self.forget()
            self.wire.cut()

    def restore(self) -> None:
        if not self.linked:
            self.linked = True
            self.forget()
            self.wire.restore()

    def forget(self) -> None:
        """Nothing of an earlier link arrives any more."""
        for queue in (self.wire.sent, self.answers, self.reports):
            queue.clear()


MODES = st.sampled_from(["ready", "ready", "away", "sealed", "forbidden"])
TRUTH_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.tuples(st.sampled_from("ab"), st.booleans())),
        st.tuples(st.sampled_from(["read", "read", "answer", "answer", "report"]), st.integers(1, 6)),
        st.tuples(st.sampled_from(["cut", "restore"]), st.none()),
        st.tuples(st.just("mode"), st.tuples(st.sampled_from("ab"), MODES)),
        st.tuples(st.just("wait"), st.sampled_from([0.3, 1.0, 3.0])),
    ),
    max_size=80,
)


@settings(deadline=None, max_examples=500)
@given(TRUTH_STEPS, st.booleans())
def test_refused_is_never_stored_and_acked_always(steps: Iterable[Any], retry: bool) -> None:
    wire = Wire(retry=retry)
    server = TruthfulServer(wire)
    for step, value in steps:
        if step == "add":
            server.subjects[wire.flow.serial + 1] = value[0]
            wire.add(value[0], again=value[1])
        elif step == "mode":
            server.modes[value[0]] = value[1]
        elif step == "wait":
            wire.wait(value)
        elif value is None:
            getattr(server, step)()
        else:
            getattr(server, step)(value)
    # What is still on its way up is read after the last word about it too.
    server.read(10**6)
    server.answer(10**6)
    server.report(10**6)
    server.read(10**6)
    wire.flow.close(ConnectionClosed("closed"))
    wire.pump()
    refused = {serial for serial, error in wire.failed.items() if error in (REFUSED, FORBIDDEN)}
    assert not refused & server.stored
    acked = set(server.subjects) - set(wire.failed)
    assert acked <= server.stored
    assert wire.flow.plain
    assert not wire.flow._copies
    assert not wire.flow._unsure
    assert wire.flow.unsent_bytes == 0
