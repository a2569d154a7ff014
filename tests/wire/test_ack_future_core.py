"""The compiled core's futures and groups: code that runs in between, failures, and what becomes of them.

Without the compiled core, these functions do not exist.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from ack_future_cases import ACK, Nosy, Sent, in_an_allocation
from settle_cases import INBOX, PLAIN, Batch, rows_of, settle, to

from jetspark.jetstream.puback import PubAck
from jetspark.wire._backend import speed

if TYPE_CHECKING:
    from collections.abc import Iterator

SECOND = b'{"stream":"ORDERS","seq":12345,"duplicate":true}'


@pytest.fixture
def nosy() -> Iterator[Nosy]:
    loop = Nosy()
    loop.asked = 0
    yield loop
    loop.close()


if speed is not None:
    KIND = type(Sent(None).pop())

    # Code that runs in between

    @pytest.mark.parametrize("acked", ["before", "in it", "after"])
    @pytest.mark.parametrize("way", ["loop", "garbage"])
    def test_looked_at_while_it_is_being_looked_at(nosy: Nosy, way: str, acked: str) -> None:
        sent = Sent(nosy)
        future, heard = sent.pop(), []

        def look() -> None:
            future.add_done_callback(heard.append)
            if acked == "in it":
                sent.ack()
            heard.append(future.done())

        if acked == "before":
            sent.ack()
        if way == "garbage":
            with in_an_allocation(look):
                future.mine = 1
        else:
            nosy.hook = look
            future.mine = 1
        if acked == "after":
            sent.ack()
        assert nosy.run_until_complete(future) == ACK
        assert heard == [acked != "after", future]

    def test_its_ack_comes_while_it_is_being_looked_at(nosy: Nosy) -> None:
        sent = Sent(nosy)
        future = sent.pop()
        nosy.hook = sent.ack
        assert future.done()
        assert future.result() == ACK

    @pytest.mark.parametrize("acked", [False, True])
    @pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, MemoryError])
    def test_a_loop_that_fails_once(nosy: Nosy, kind: type[BaseException], acked: bool) -> None:
        def fail() -> None:
            raise kind("once")

        sent = Sent(nosy)
        future = sent.pop()
        if acked:
            sent.ack()
        for look in (repr, iter, asyncio.isfuture, lambda future: setattr(future, "mine", 1)):
            nosy.hook = fail
            with pytest.raises(kind, match="once"):
                look(future)
        nosy.hook = fail
        with pytest.raises(kind, match="once"):
            nosy.run_until_complete(future)
        if not acked:
            sent.ack()
        assert nosy.run_until_complete(future) == ACK

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError])
    def test_an_ack_that_cannot_be_made_at_first(nosy: Nosy, kind: type[BaseException]) -> None:
        failures = [kind("once"), kind("twice")]

        class Made:
            def __init__(self, *, stream: str, seq: int) -> None:
                if failures:
                    raise failures.pop()
                self.seq = seq

        sent = Sent(nosy)
        future = sent.pop()
        sent.ack(kind=Made)
        for words in ("twice", "once"):
            with pytest.raises(kind, match=words):
                future.done()
        assert nosy.run_until_complete(future).seq == 1

    def test_an_ack_that_looks_at_its_future_while_it_is_made(nosy: Nosy) -> None:
        made: list[Any] = []

        class Made:
            def __init__(self, *, stream: str, seq: int) -> None:
                made.append(self)
                if len(made) == 1:
                    sent.pending[0] = future
                    sent.ack(SECOND)  # a second one
                    assert future.done()

        sent = Sent(nosy)
        future = sent.pop()
        sent.ack(kind=Made)
        assert future.done()
        assert nosy.run_until_complete(future) is made[1]
        assert len(made) == 2

    # What becomes of them

    def test_the_failure_of_one_that_nobody_asks_is_reported_once(nosy: Nosy) -> None:
        heard: list[Any] = []
        nosy.set_exception_handler(lambda loop, context: heard.append(context))
        sent = Sent(nosy, 4)
        sent.ack()
        sent.futures[1].done()
        sent.futures[2].set_exception(ValueError("seen"))
        sent.futures[2].exception()
        sent.futures[3].set_exception(ValueError("mine"))
        alive = weakref.ref(sent.futures[3])
        del sent
        gc.collect()
        ((message, error, future),) = [(c["message"], c["exception"], c["future"]) for c in heard]
        assert (message, str(error)) == ("AckFuture exception was never retrieved", "mine")
        # It lives, because somebody was told of it.
        assert alive() is future
        assert future.exception() is error
        assert future._subject == "sub"
        heard.clear()
        del future
        gc.collect()
        assert (alive(), heard) == (None, [])

    @pytest.mark.parametrize("acked", [False, True])
    @pytest.mark.parametrize("looked", [False, True])
    def test_cycles_are_freed(looked: bool, acked: bool) -> None:
        class Loop:
            """What is in cycles with its futures."""

            def get_debug(self) -> bool:
                return False

        class Made(PubAck, gc=False, frozen=True):
            """So is the class of the acks."""

        loop = Loop()
        sent = Sent(loop)
        loop.sent = sent  # type: ignore[attr-defined]
        future = sent.futures[0]
        if looked:
            future.me = future
            future.add_done_callback(lambda _: future.done())
        if acked and not looked:  # else this loop would have to call something
            Made.futures = [future]  # type: ignore[attr-defined]
            sent.ack(kind=Made)
        gone = [weakref.ref(thing) for thing in (loop, sent, future)]
        del loop, sent, future, Made
        gc.collect()
        assert [one() for one in gone] == [None] * 3

    @pytest.mark.parametrize("acked", [False, True])
    def test_looked_at_when_it_is_garbage_already(nosy: Nosy, acked: bool) -> None:
        kept: list[Any] = []

        class Last:
            def __del__(self) -> None:
                kept.append(self.future)  # type: ignore[attr-defined]
                kept.append(self.future.done())  # type: ignore[attr-defined]

        sent, last = Sent(nosy), Last()
        last.futures = sent.futures  # type: ignore[attr-defined]
        last.future = sent.futures[0]  # type: ignore[attr-defined]
        sent.futures.append(last)
        if acked:
            sent.ack()
        del sent, last
        gc.collect()
        future, done = kept
        assert done == acked
        if not acked:
            future.set_result(ACK)
        assert nosy.run_until_complete(future) == ACK

    def test_weak_references_end_with_it(nosy: Nosy) -> None:
        ended: list[Any] = []
        sent = Sent(nosy, 2)
        asleep, awake = (weakref.ref(future, ended.append) for future in sent.futures)
        assert not sent.futures[1].done()
        sent.futures.clear()
        assert asleep() is sent.pending[0]
        sent.ack()
        assert (asleep(), ended) == (None, [asleep])
        sent.ack(serial=1)
        assert (awake(), ended) == (None, [asleep, awake])

    def test_nobody_meets_one_that_has_no_ack_because_nobody_held_it(nosy: Nosy) -> None:
        sent = Sent(nosy)
        alone = weakref.ref(sent.pop())
        met: list[Any] = []

        class Looks(Batch):
            def acked_many(self, stream: str, count: int, duplicates: int) -> None:
                met.append(alone())

        sent.pending[7] = (Looks(), "sub", 0, None)
        answers = rows_of([to(7, PLAIN[0]), to(0, PLAIN[0])])
        assert answers.settle(len(INBOX), sent.pending, PubAck, Looks, sent.launcher) == (2, 0, [])
        assert met == [None]

    def many_rounds(rounds: int, loop: Nosy, subject: str) -> None:
        for _ in range(rounds):
            pending: dict[int, Any] = {}
            launch = speed.Launcher(INBOX, pending, loop).launch
            futures = [launch([], b"PUB sub ", serial, subject, b"data") for serial in range(12)]
            for future in futures[:6]:
                assert not future.done()
            futures[1].cancel()
            futures[2].set_exception(ValueError("mine"))
            futures[2].exception()
            futures[3].me = futures[3]
            refs = [weakref.ref(future) for future in futures]
            loop.hook = lambda: 1 / 0
            with pytest.raises(ZeroDivisionError):
                repr(futures[6])
            loop.hook = futures[7].done
            futures[7].add_done_callback(id)
            data = b'{"stream":"%b","seq":7,"domain":"hub","duplicate":true}' % subject.encode()
            settle([to(serial, data) for serial in range(11)], pending)
            assert sum(future.done() for future in futures) == 11
            assert sum(one() is None for one in refs) == 0
            loop.run_until_complete(futures[8])

    def test_many_rounds_leave_the_counts_of_references_and_the_memory_as_they_were(nosy: Nosy) -> None:
        subject = "sub" + str(id(nosy))
        things = (nosy, subject, KIND, PubAck)
        many_rounds(50, nosy, subject)
        gc.collect()
        before = [sys.getrefcount(thing) for thing in things]
        tracemalloc.start()
        try:
            many_rounds(50, nosy, subject)
            gc.collect()
            held = tracemalloc.get_traced_memory()[0]
            many_rounds(400, nosy, subject)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - held
        finally:
            tracemalloc.stop()
        assert [sys.getrefcount(thing) for thing in things] == before
        assert grown < 20_000, f"{grown} bytes more after 4,800 futures"

    # Groups

    class Shared:
        """Messages that share one reply."""

        def __init__(self, loop: Any, count: int = 3) -> None:
            self.pending: dict[int, Any] = {}
            self.launcher = speed.Launcher(INBOX, self.pending, loop)
            self.launcher.arm(print, {"a": b"PUB a "}, 100, 50)
            self.launcher.grant([b"before"], 10_000, 100)
            self.publish(bytes(100))  # how large they may be
            assert settle([to(1, PLAIN[0])], self.pending, self.launcher) == (1, 0, [])
            self.futures = [self.publish(b"%d" % number) for number in range(count)]
            ((self.serial, self.group),) = self.pending.items()
            assert self.group.count == self.launcher.grouped + 1 == count

        def publish(self, data: bytes) -> Any:
            with pytest.raises(StopIteration) as caught:
                self.launcher.publish("a", data).send(None)
            return caught.value.value

        def answer(self, *answers: int | bytes, kind: Any = PubAck) -> Any:
            """Acks of these sequences, or something else, in one read."""
            rows = rows_of(
                [
                    to(self.serial, one if isinstance(one, bytes) else b'{"stream":"S","seq":%d}' % one)
                    for one in answers
                ]
            )
            return rows.settle(len(INBOX), self.pending, kind, Batch, self.launcher)

        def check_ended(self) -> None:
            assert (self.pending, self.launcher.grouped) == ({}, 0)
            assert (self.group.ended, self.group.futures, self.group.datas) == (True, [], [])

    def test_a_group_is_settled_when_all_its_acks_have_come(nosy: Nosy) -> None:
        shared = Shared(nosy)
        assert shared.answer(5, 7, 5) == (0, 0, [])
        assert shared.group.seqs == [5, 7]
        assert [future.done() for future in shared.futures[:2]] == [False, False]
        assert shared.answer(9) == (3, 0, [])
        shared.check_ended()
        assert [future.result().seq for future in shared.futures] == [5, 7, 9]
        assert shared.answer(9) == (0, 0, [])

    @pytest.mark.parametrize(
        "odd",
        [
            b'{"error":{"code":503,"description":"no"},"stream":"S","seq":0}',
            b'{"stream":"T","seq":100}',
            b'{"stream":"S","seq":100,"domain":"hub"}',
            b'{"stream":"S","seq":2}',
            b'{"stream":"S","seq":100,"duplicate":true}',
            b'{"stream":"S","seq":100,"unknown":1}',
            b"bad",
        ],
    )
    def test_what_follows_an_answer_that_is_left_is_left_too(nosy: Nosy, odd: bytes) -> None:
        # Else whoever reads them would take later acks for earlier ones, and so for those of other messages.
        shared = Shared(nosy)
        assert shared.answer(5, odd, 6, 7, 8) == (0, 0, [1, 2, 3, 4])
        assert shared.answer(9) == (0, 0, [0])
        assert (shared.group.seqs, shared.group.ended) == ([5], False)
        assert list(shared.pending) == [shared.serial]
        assert len(shared.launcher.disband(shared.group)) == 3
        shared.pending.clear()
        shared.check_ended()
        assert not any(future.done() for future in shared.futures)

    def test_a_message_joins_a_group_that_has_acks_but_none_that_has_all(nosy: Nosy) -> None:
        shared = Shared(nosy, 2)
        shared.answer(5)
        third = shared.publish(b"third")
        assert (list(shared.pending), shared.launcher.grouped) == ([shared.serial], 2)
        shared.answer(6)
        assert not third.done()
        shared.answer(7)
        shared.check_ended()
        assert third.result().seq == 7
        fourth = shared.publish(b"fourth")
        ((serial, group),) = shared.pending.items()
        assert serial > shared.serial
        assert group is not shared.group
        assert [one is fourth for one in group.futures] == [True]
        assert shared.launcher.grouped == 0

    def test_a_group_gets_an_ack_while_somebody_reads_its_acks(nosy: Nosy) -> None:
        for before in ([], [5]):
            shared = Shared(nosy)
            if before:
                shared.answer(*before)
            with in_an_allocation(lambda shared=shared: shared.answer(6)):
                seqs = shared.group.seqs
            assert seqs in (before, [*before, 6])
            assert shared.group.seqs == [*before, 6]

    @pytest.mark.parametrize("read", ["futures", "datas", "disband"])
    def test_a_group_ends_while_somebody_reads_it(nosy: Nosy, read: str) -> None:
        shared = Shared(nosy)
        with in_an_allocation(lambda: shared.answer(5, 6, 7)):
            if read == "disband":
                found = shared.launcher.disband(shared.group)
            else:
                found = getattr(shared.group, read)
        assert len(found) in (0, 3), "all or none"
        shared.pending.clear()
        shared.check_ended()
        # Whoever ends it settles them: never both, never nobody.
        disbanded = read == "disband" and len(found) == 3
        assert [future.done() for future in shared.futures] == [not disbanded] * 3

    def test_what_one_of_a_group_does_keeps_nobody_from_his_ack(nosy: Nosy) -> None:
        def interrupt(*arguments: Any, **options: Any) -> None:
            raise KeyboardInterrupt("mine")

        shared = Shared(nosy, 4)
        shared.futures[1].cancel()
        shared.futures[2].add_done_callback(print)
        nosy.call_soon = interrupt  # type: ignore[method-assign, assignment]
        with pytest.raises(KeyboardInterrupt, match="mine"):
            shared.answer(5, 6, 7, 8)
        shared.check_ended()
        assert shared.futures.pop(1).cancelled()
        assert [future.result().seq for future in shared.futures] == [5, 7, 8]

    def test_groups_keep_nothing(nosy: Nosy) -> None:
        things = (nosy, KIND, PubAck, speed.Group)

        def some() -> None:
            for number in range(200):
                shared = Shared(nosy, 1 + number % 16)
                if number % 3:
                    shared.futures[0].me = shared.futures[0]
                if number % 2:
                    shared.answer(*range(5, 5 + len(shared.futures)))
                    shared.check_ended()
                elif number % 4:
                    shared.launcher.disband(shared.group)

        some()
        gc.collect()
        before = [sys.getrefcount(thing) for thing in things]
        some()
        gc.collect()
        assert [sys.getrefcount(thing) for thing in things] == before
