"""Settling by the compiled core itself: which answers it takes and leaves, who hears of them, what it keeps.

Without the compiled core, these functions do not exist.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from settle_cases import (
    ANSWER,
    ERRORS_WITH_A_SEQUENCE,
    HEADER,
    INBOX,
    OTHERS,
    PLAIN,
    Answer,
    Batch,
    Target,
    rows_of,
    serial_of,
    settle,
    to,
)

from jetspark import PubAck
from jetspark.wire._backend import speed

# In a case: the serial of an answer that nobody waits for.
UNKNOWN = 999

if speed is not None:
    Rows = speed.Rows

    @pytest.mark.parametrize("data", PLAIN)
    def test_what_says_no_more_than_stored_is_settled(data: bytes) -> None:
        target = Target()
        pending = {5: (target, "s", 0, None, False), 6: (target, "s", 0, None, False)}
        ack = PubAck.from_response(data)
        assert settle([to(5, data)], pending) == (1, ack.duplicate, 1)
        assert target.results == [ack]
        assert type(target.results[0]) is PubAck
        assert list(pending) == [6]

    @pytest.mark.parametrize("data", OTHERS + ERRORS_WITH_A_SEQUENCE)
    def test_what_says_anything_else_is_left(data: bytes) -> None:
        target = Target()
        pending = {5: (target, "s", 0, None, False)}
        assert settle([to(1, PLAIN[0]), to(5, data)], pending) == (0, 0, 1)
        assert target.results == []
        assert list(pending) == [5]

    @pytest.mark.parametrize("header", [HEADER, b"NATS/1.0\r\nA: b\r\n\r\n"])
    def test_an_answer_with_headers_is_left(header: bytes) -> None:
        pending = {5: (Target(), "s", 0, None, False)}
        assert settle([to(5, PLAIN[0], header)], pending) == (0, 0, 0)
        assert list(pending) == [5]

    @pytest.mark.parametrize(
        "answer",
        [
            to(UNKNOWN, PLAIN[0]),
            to(UNKNOWN, b"bad"),
            Answer(b"", PLAIN[0]),
            Answer(b"x", PLAIN[0]),
            Answer(b"5x", PLAIN[0]),
            Answer(b"-5", PLAIN[0]),
            Answer(b"+5", PLAIN[0]),
            Answer(b"5_5", PLAIN[0]),
            Answer("\u0665".encode(), PLAIN[0]),
            Answer(b"5.5", PLAIN[0]),
            Answer(b"18446744073709551621", PLAIN[0]),  # 2**64 + 5
            Answer(b"4294967301", PLAIN[0]),  # 2**32 + 5
            Answer(b"5", PLAIN[0], inbox=b"_INBOX.ab"),
            Answer(b"5", PLAIN[0], inbox=b""),
        ],
    )
    def test_answers_that_nobody_waits_for_are_dropped(answer: Answer) -> None:
        pending = {5: (Target(), "s", 0, None, False), 55: (Target(), "s", 0, None, False)}
        assert settle([answer], pending) == (0, 0, 1)
        assert list(pending) == [5, 55]

    def test_serials_may_have_18_digits() -> None:
        target = Target()
        pending = {10**18 - 1: (target, "s", 0, None, False)}
        assert settle([to(10**18 - 1, PLAIN[0])], pending) == (1, 0, 1)
        assert target.results == [PubAck(stream="S", seq=1)]

    def test_it_stops_at_an_answer_of_another_kind_so_that_all_are_read_in_order() -> None:
        first, last = Target(), Target()
        pending = {1: (first, "s", 0, None, False), 2: (last, "s", 0, None, False)}
        refusal = b'{"error":{"code":503,"description":"in process"},"stream":"S","seq":0}'
        assert settle([to(1, PLAIN[0]), to(2, refusal), to(2, PLAIN[0])], pending) == (1, 0, 1)
        assert first.results == [PubAck(stream="S", seq=1)]
        assert last.results == []
        assert list(pending) == [2]

    @pytest.mark.slow
    @settings(deadline=None, max_examples=500)
    @given(st.lists(ANSWER, min_size=1, max_size=20), st.sets(st.integers(1, 12)))
    def test_every_answer_is_settled_or_left_or_nobodys(answers: list[Answer], serials: set[int]) -> None:
        targets = {serial: Target() for serial in serials}
        pending: dict[int, Any] = {
            serial: (target, "s", 0, None, False) for serial, target in targets.items()
        }
        acked, duplicates, taken = settle(answers, pending)
        left = set(serials)
        acks: list[PubAck] = []
        for answer in answers[:taken]:
            serial = serial_of(answer.token)
            if serial in left:
                assert serial is not None
                left.discard(serial)
                assert answer.header is None
                acks.append(PubAck.from_response(answer.data))
                assert targets[serial].results == acks[-1:]
        if taken < len(answers):
            assert serial_of(answers[taken].token) in left
            assert answers[taken].header is not None or answers[taken].data not in PLAIN
        assert set(pending) == left
        assert (acked, duplicates) == (len(acks), sum(ack.duplicate for ack in acks))

    async def test_real_futures_and_cancelled_ones() -> None:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(4)]
        futures[1].cancel()
        futures[2].set_result("mine")
        pending = {serial: (future, "s", 0, None, False) for serial, future in enumerate(futures)}
        answers = [to(serial, b'{"stream":"S","seq":%d}' % (serial + 1)) for serial in range(4)]
        assert settle(answers, pending) == (4, 0, 4)
        assert pending == {}
        assert await futures[0] == PubAck(stream="S", seq=1)
        assert futures[1].cancelled()
        assert futures[2].result() == "mine"
        assert await futures[3] == PubAck(stream="S", seq=4)

    def test_batches_hear_of_acks_together_in_their_order() -> None:
        one, two, future = Batch(), Batch(), Target()
        owners = [one, one, one, two, one, future, one, one]
        streams = ["S", "S", "T", "T", "T", "S", "S", "S"]
        pending = {serial: (owner, "s", 0, None, False) for serial, owner in enumerate(owners)}
        answers = [
            to(
                serial,
                b'{"stream":"%b","seq":1%b}' % (stream.encode(), b',"duplicate":true' if serial % 2 else b""),
            )
            for serial, stream in enumerate(streams)
        ]
        assert settle(answers, pending) == (8, 4, 8)
        assert one.heard[:2] == [("S", 2, 1), ("T", 1, 0)]
        assert one.sums() == {"S": (4, 2), "T": (2, 0)}
        assert two.heard == [("T", 1, 1)]
        assert future.results == [PubAck(stream="S", seq=1, duplicate=True)]

    def test_answers_between_that_nobody_waits_for_do_not_part_a_batch() -> None:
        batch = Batch()
        pending = {serial: (batch, "s", 0, None, False) for serial in range(5)}
        answers = [to(0, PLAIN[0]), to(77, b"bad"), to(2, PLAIN[0]), to(77, PLAIN[0]), to(4, PLAIN[0])]
        assert settle(answers, pending) == (3, 0, 5)
        assert batch.heard == [("S", 3, 0)]
        assert sorted(pending) == [1, 3]

    @pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
    def test_an_error_of_a_future_is_raised(kind: type[BaseException]) -> None:
        target = Target(error=kind("mine"))
        pending = {1: (target, "s", 0, None, False), 2: (Target(), "s", 0, None, False)}
        with pytest.raises(kind, match="mine"):
            settle([to(1, PLAIN[0]), to(2, PLAIN[0])], pending)
        assert list(pending) == [2]

    def test_an_interrupt_of_a_future_that_has_its_result_is_raised_too() -> None:
        class Interrupted(Target):
            def set_result(self, result: Any) -> None:
                super().set_result(result)
                raise KeyboardInterrupt

        target = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            settle([to(1, PLAIN[0])], {1: (target, "s", 0, None, False)})
        assert target.results == [PubAck(stream="S", seq=1)]

    def test_an_error_of_done_does_not_hide_that_of_the_future() -> None:
        class Odd(Target):
            def done(self) -> bool:
                raise LookupError("done")

        with pytest.raises(ValueError, match="mine"):
            settle([to(1, PLAIN[0])], {1: (Odd(error=ValueError("mine")), "s", 0, None, False)})

    def test_a_batch_hears_of_its_acks_although_a_future_failed_behind_them() -> None:
        # They are no longer pending: nobody else would ever tell it.
        batch = Batch()
        pending = {
            1: (batch, "s", 0, None, False),
            2: (batch, "s", 1, None, False),
            3: (Target(error=ValueError("mine")), "s", 0, None, False),
        }
        with pytest.raises(ValueError, match="mine"):
            settle([to(1, PLAIN[0]), to(2, PLAIN[5]), to(3, PLAIN[0])], pending)
        assert batch.heard == [("S", 2, 1)]
        assert pending == {}

    def test_an_error_of_a_batch_is_raised() -> None:
        class Odd(Batch):
            def acked_many(self, stream: str, count: int, duplicates: int) -> None:
                raise ValueError("mine")

        odd = Odd()
        with pytest.raises(ValueError, match="mine"):
            rows_of([to(1, PLAIN[0])]).settle(len(INBOX), {1: (odd, "s", 0, None, False)}, PubAck, Odd)
        other = {1: (odd, "s", 0, None, False), 2: (Odd(), "s", 0, None, False)}
        with pytest.raises(ValueError, match="mine"):
            rows_of([to(1, PLAIN[0]), to(2, PLAIN[0])]).settle(len(INBOX), other, PubAck, Odd)

    @pytest.mark.parametrize("flight", [None, [], (), "text", [Target(), "s", 0, None]])
    def test_what_is_no_flight_is_left(flight: Any) -> None:
        pending = {1: flight}
        assert settle([to(1, PLAIN[0])], pending) == (0, 0, 0)
        assert pending == {1: flight}

    @pytest.mark.parametrize(
        "arguments",
        [
            (),
            (0,),
            (0, {}, PubAck),
            (0, {}, PubAck, Batch, None),
            ("0", {}, PubAck, Batch),
            (0.0, {}, PubAck, Batch),
            (None, {}, PubAck, Batch),
            (0, [], PubAck, Batch),
            (0, None, PubAck, Batch),
            (0, {}, PubAck, Batch()),
            (0, {}, PubAck, None),
            (0, {}, None, Batch),
            (0, {}, "PubAck", Batch),
        ],
    )
    def test_wrong_arguments_of_settle(arguments: tuple[Any, ...]) -> None:
        with pytest.raises(TypeError):
            Rows().settle(*arguments)

    def test_wrong_values_of_settle() -> None:
        with pytest.raises(ValueError, match="cut"):
            Rows().settle(-1, {}, PubAck, Batch)
        with pytest.raises(OverflowError):
            Rows().settle(2**70, {}, PubAck, Batch)
        assert Rows().settle(2**40, {}, PubAck, Batch) == (0, 0, 0)

    @pytest.mark.parametrize("place", range(7))
    def test_wrong_arguments_of_read(place: int) -> None:
        arguments: list[Any] = [b"MSG a 1 0\r\n\r\n", 0, b"1", {}, 100, 100, False]
        rows = Rows()
        assert rows.read(*arguments) == 13
        if place == 6:  # any object is true or false, unless it refuses

            class Neither:
                def __bool__(self) -> bool:
                    raise TypeError("neither")

            arguments[place] = Neither()
        else:
            arguments[place] = "text"
        with pytest.raises(TypeError):
            rows.read(*arguments)
        with pytest.raises(TypeError):
            rows.read(*arguments[:-1])
        assert len(rows) == 1

    def test_a_message_without_a_reply_stops_a_reader_that_needs_one() -> None:
        wire = b"MSG a 1 r 0\r\n\r\nMSG a 1 0\r\n\r\nMSG a 1 r 0\r\n\r\n"
        needs, takes = Rows(), Rows()
        assert needs.read(wire, 0, b"1", {}, 100, 100, True) == 15
        assert takes.read(wire, 0, b"1", {}, 100, 100, False) == len(wire)
        assert takes.cells(1) == [b"r", b"", b"r"]

    # Nothing is kept, nothing is given back twice

    def rounds_of_settling(rounds: int, batch: Batch, target: Target) -> None:
        answers = [to(serial, data) for serial, data in enumerate(PLAIN + OTHERS)]
        rows = rows_of(answers)
        raising = (Target(error=ValueError("mine")), "s", 0, None, False)
        for _ in range(rounds):
            target.results = []
            batch.heard = []
            pending: dict[int, Any] = {
                serial: ((batch, target)[serial % 2], "s", 0, None, False) for serial in range(len(answers))
            }
            target.cancelled = True
            rows.settle(len(INBOX), pending, PubAck, Batch)
            pending = {0: (batch, "s", 0, None, False), 1: (batch, "s", 0, None, False), 2: raising}
            with pytest.raises(ValueError, match="mine"):
                rows.settle(len(INBOX), pending, PubAck, Batch)

    @pytest.mark.slow
    def test_many_rounds_leave_the_counts_of_references_and_the_memory_as_they_were() -> None:
        batch, target = Batch(), Target()
        rounds_of_settling(50, batch, target)
        things = [batch, target, PubAck, Batch, None, True, False]
        gc.collect()
        before = [sys.getrefcount(thing) for thing in things]
        tracemalloc.start()
        try:
            rounds_of_settling(50, batch, target)
            gc.collect()
            held = tracemalloc.get_traced_memory()[0]
            rounds_of_settling(500, batch, target)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - held
        finally:
            tracemalloc.stop()
        after = [sys.getrefcount(thing) for thing in things]
        # The interpreter itself moves the counts of None and the like by a few.
        assert [abs(new - old) < 100 for old, new in zip(before, after, strict=True)] == [True] * len(things)
        assert after[:2] == before[:2]
        assert grown < 20_000, f"{grown} bytes more after 500 rounds"

    def test_pending_futures_and_acks_are_freed() -> None:
        target = Target()
        alive = weakref.ref(target)
        pending: dict[int, Any] = {1: (target, "s", 0, None, False)}
        data = b'{"stream":"ORDERS","seq":123456}'
        settle([to(1, data)], pending)
        ack, plain = target.results.pop(), PubAck.from_response(data)
        counts = [[sys.getrefcount(thing) for thing in (one.stream, one.seq)] for one in (ack, plain)]
        assert counts[0] == counts[1]
        del target
        assert alive() is None
