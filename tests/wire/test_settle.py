"""Acks settled by the compiled core are what the Python road makes of them, and nothing else is touched.

Without the compiled core there is nothing to settle: then the publisher takes the Python road alone, and the
same answers go through that.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import tracemalloc
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from wire_cases import Got

from jetspark import Msg
from jetspark.errors import JetsparkError
from jetspark.jetstream.puback import PubAck, decode_puback
from jetspark.jetstream.publish_many import AckBatch
from jetspark.jetstream.publisher import Publisher
from jetspark.wire import Messages, Parser, backend
from jetspark.wire._backend import speed
from jetspark.wire.columns import ANSWERS, PackedColumns

if TYPE_CHECKING:
    from collections.abc import Sequence

INBOX = b"_INBOX.abc."
HEADER = b"NATS/1.0 503\r\n\r\n"
# In a case: the serial of an answer that nobody waits for.
UNKNOWN = 999


class Target:
    """A future that notes what it gets."""

    def __init__(self, *, cancelled: bool = False, error: BaseException | None = None) -> None:
        self.cancelled, self.error = cancelled, error
        self.results: list[Any] = []
        self.failure: BaseException | None = None

    def set_exception(self, failure: BaseException) -> None:
        assert not self.done()
        self.failure = failure

    def exception(self) -> BaseException | None:
        return self.failure

    def set_result(self, result: Any) -> None:
        if self.error is not None:
            raise self.error
        if self.cancelled or self.results:
            raise asyncio.InvalidStateError("done already")
        self.results.append(result)

    def done(self) -> bool:
        return self.cancelled or bool(self.results) or self.failure is not None


class Batch:
    """A batch that notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, int]] = []

    def acked_many(self, stream: str, count: int, duplicates: int) -> None:
        assert isinstance(count, int)
        assert count > 0
        self.heard.append((stream, count, duplicates))

    def sums(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for stream, count, duplicates in self.heard:
            had = found.get(stream, (0, 0))
            found[stream] = (had[0] + count, had[1] + duplicates)
        return found


class Answer(NamedTuple):
    """One answer: whom it is for, as the last token has it, and what it says."""

    token: bytes
    data: bytes
    header: bytes | None = None
    inbox: bytes = INBOX

    def wire(self) -> bytes:
        subject = self.inbox + self.token
        if self.header is None:
            return b"MSG %b 1 %d\r\n%b\r\n" % (subject, len(self.data), self.data)
        sizes = b"%d %d" % (len(self.header), len(self.header) + len(self.data))
        return b"HMSG %b 1 %b\r\n%b%b\r\n" % (subject, sizes, self.header, self.data)


def to(serial: int, data: bytes, header: bytes | None = None) -> Answer:
    return Answer(b"%d" % serial, data, header)


def parse(answers: Sequence[Answer]) -> list[Any]:
    parser = Parser()
    parser.routes["1"] = (ANSWERS, (Got, "owner"))
    events = parser.feed(b"".join(answer.wire() for answer in answers))
    assert parser.error is None
    return events


def rows_of(answers: Sequence[Answer]) -> Any:
    """All of them in one Rows."""
    (columns,) = parse(answers)
    assert type(columns) is PackedColumns
    assert len(columns) == len(answers)
    return columns.rows


def serial_of(token: bytes) -> int | None:
    return int(token) if token.isdigit() else None


def test_answers_are_packed_where_the_core_is_compiled_and_objects_elsewhere() -> None:
    answers = [to(1, b"a"), to(2, b"", HEADER), to(3, b"c")]
    (event,) = parse(answers)
    if speed is not None:
        assert type(event) is PackedColumns
        assert event.payloads == [b"a", b"", b"c"]
        assert event.replies == [b""] * 3
        assert event.headers == {1: HEADER}
        assert event.size == 3 * len(INBOX) + 3 + 2 + len(HEADER)
        assert event.nbytes == sum(len(answer.wire()) for answer in answers)
    else:
        assert backend == "python"
        assert type(event) is Messages
        assert [(item.data, item.header) for item in event.items] == [
            (b"a", None),
            (b"", HEADER),
            (b"c", None),
        ]


# Both roads through the publisher that has them


class Loop:
    """What a publisher needs of a loop here."""

    def call_later(self, *arguments: Any) -> None:
        return None


class Client:
    """What a publisher needs of a connection to be made."""

    _message_class = Msg
    _message_owner = None
    _loop = Loop()
    _link = None

    def new_inbox(self) -> str:
        return "_INBOX.abc"


def through_publisher(answers: Sequence[Answer], pending: dict[int, Any], *, packed: bool) -> tuple[int, int]:
    """How many were acked, and how many of those were duplicates; ``pending`` is left with the rest."""
    publisher = Publisher(Client(), window=10**6, ack_timeout=5.0, retry=False)  # type: ignore[arg-type]
    flights = publisher._pending
    flights.update(pending)
    parser = Parser(compiled=packed)
    parser.routes["1"] = (ANSWERS, (Msg, None))
    publisher.factory, publisher.owner = ANSWERS, (Msg, None)
    for event in parser.feed(b"".join(answer.wire() for answer in answers)):
        if isinstance(event, Messages):
            publisher.deliver(event.items, event.nbytes)
        else:
            publisher.deliver_columns(event)  # type: ignore[arg-type]
    pending.clear()
    pending.update(flights)
    return publisher._stats.acked, publisher._stats.duplicates


# Answers of every kind

PLAIN = [
    b'{"stream":"S","seq":1}',
    b'{"stream":"ORDERS", "seq":12345}',
    b'{"stream": "S", "seq": 7}',
    b'{ "stream":"S","seq":7}',
    b'{"seq":3,"stream":"S"}',
    b'{"stream":"S","seq":1,"duplicate":true}',
    b'{"stream":"S","seq":1,"duplicate": true}',
    b'{"duplicate":true,"stream":"S","seq":1}',
    b'{"stream":"S","domain":"hub","seq":1}',
    b'{"domain":"hub","duplicate":true,"seq":9,"stream":"S"}',
    b'{"stream":"S","seq":1, "domain":"hub"}',
    b'{"stream":"error","seq":1}',
    b'{"stream":"a b/c~","seq":1}',
    b'{"stream":"S","seq":999999999999999999}',
]
"""What the core must settle by itself: what servers send, and all of the same kind."""

OTHERS = [
    b"",
    b"{",
    b"{}",
    b"{ ",
    b"null",
    b"+ACK",
    b'{"stream":"S","seq":0}',
    b'{"stream":"S","seq":01}',
    b'{"stream":"S","seq":-1}',
    b'{"stream":"S","seq":1.0}',
    b'{"stream":"S","seq":1e2}',
    b'{"stream":"S","seq":"1"}',
    b'{"stream":"S","seq":1000000000000000000}',
    b'{"stream":"S","seq":18446744073709551615}',
    b'{"stream":"S","seq":99999999999999999999999999}',
    b'{"stream":"S","seq":1}x',
    b'{"stream":"S","seq":1} ',
    b' {"stream":"S","seq":1}',
    b'{"stream":"S","seq":1,}',
    b'{"stream":"S","seq":1 }',
    b'{"stream":"S" ,"seq":1}',
    b'{"stream" :"S","seq":1}',
    b'{"stream":"S","seq":1',
    b'{"stream":"S","seq":',
    b'{"stream":"S","seq',
    b'{"stream":"S',
    b'{"stream":',
    b'{"stream":"S"}',
    b'{"stream":"","seq":1}',
    b'{"seq":1}',
    b'{"stream":null,"seq":1}',
    b'{"stream":"S","seq":1,"domain":""}',
    b'{"stream":"S","seq":1,"domain":null}',
    b'{"stream":"S","seq":1,"duplicate":false}',
    b'{"stream":"S","seq":1,"duplicate":tru',
    b'{"stream":"S","seq":1,"duplicate":true',
    b'{"stream":"S","seq":1,"duplicate":truest}',
    b'{"stream":"S","seq":1,"val":"5"}',
    b'{"stream":"S","seq":1,"batch":"b","count":2}',
    b'{"stream":"S","seq":1,"unknown":{"a":[1]}}',
    b'{"stream":"S","stream":"T","seq":1}',
    b'{"stream":"S","seq":1,"seq":2}',
    b'{"stream":"S","seq":1,"duplicate":true,"duplicate":true}',
    b'{"stream":"S","seq":1,"domain":"a","domain":"b"}',
    b'{"stream":"a\\u0062","seq":1}',
    b'{"str\\u0065am":"S","seq":1}',
    b'{"stream":"a\\"b","seq":1}',
    '{"stream":"größe","seq":1}'.encode(),
    b'{"stream":"\xff","seq":1}',
    b'{"stream":"a\tb","seq":1}',
    b'{"stream":"a\x7fb","seq":1}',
    b'{"Stream":"S","seq":1}',
    b'{"error":{"code":503,"description":"no"},"stream":"S","seq":0}',
    b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 7"}}',
    b"[" * 5000,
    b"\x00" * 30,
]
"""What is left to the JSON decoder, right or wrong."""

ERRORS_WITH_A_SEQUENCE = [
    b'{"error":{"code":503,"description":"no"},"stream":"S","seq":5}',
    b'{"stream":"S","seq":5,"error":{"code":503,"description":"no"}}',
]
"""Which no server sends; the core leaves even these to the publisher."""


def decoded(data: bytes) -> PubAck | None:
    """The ack that the publisher makes of it; None: it is refused."""
    # What has a sequence is an ack, as servers have it: the publisher does not look for an error in it.
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        ack = decode_puback(data)
        if ack.seq:
            return ack
    try:
        return PubAck.from_response(data)
    except (JetsparkError, RecursionError):
        return None


@pytest.mark.parametrize("data", PLAIN + OTHERS)
@pytest.mark.parametrize("packed", [False, True])
def test_each_answer_alone(data: bytes, packed: bool) -> None:
    target = Target()
    pending = {5: (target, "s", 0, None)}
    ack = decoded(data)
    acked, duplicates = through_publisher([to(5, data)], pending, packed=packed)
    if ack is None:
        assert target.results == []
        assert isinstance(target.failure, JetsparkError)
        assert (acked, duplicates) == (0, 0)
    else:
        assert target.results == [ack]
        assert (acked, duplicates) == (1, ack.duplicate)
    assert pending == {}


STREAMS = ["S", "T", "ORDERS", "a b", "error"]
GOOD_ACKS = st.builds(
    lambda fields, blanks: (
        b"{" + (b", " if blanks else b",").join(b'"%b":%b' % field for field in fields) + b"}"
    ),
    st.tuples(
        st.sampled_from(STREAMS).map(lambda name: (b"stream", b'"%b"' % name.encode())),
        st.integers(1, 10**18 - 1).map(lambda seq: (b"seq", b"%d" % seq)),
        st.sampled_from([None, (b"duplicate", b"true")]),
        st.sampled_from([None, None, (b"domain", b'"hub"')]),
    ).flatmap(lambda fields: st.permutations([field for field in fields if field is not None])),
    st.booleans(),
)


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    """An ack with one place changed."""
    data = bytearray(draw(GOOD_ACKS))
    at = draw(st.integers(0, len(data) - 1))
    action = draw(st.sampled_from(["cut", "delete", "insert", "replace"]))
    if action == "cut":
        del data[at:]
    elif action == "delete":
        del data[at]
    else:
        new = draw(st.sampled_from([bytes([byte]) for byte in b' ",:{}\\0159-.eE+tu\x00\x1f\x7f\xff\xc3\n']))
        data[at : at + (action == "replace")] = new
    return bytes(data)


TOKENS = st.one_of(
    st.integers(1, 12).map(lambda serial: b"%d" % serial),
    st.integers(1, 12).map(lambda serial: b"%d" % serial),
    st.sampled_from([b"0", b"007", b"999", b"x", b"1x", b"9" * 18, b"9" * 19, b"9" * 40, b"1.2"]),
)
ANY_DATA = st.one_of(
    GOOD_ACKS, GOOD_ACKS, GOOD_ACKS, spoiled(), st.sampled_from(PLAIN + OTHERS + ERRORS_WITH_A_SEQUENCE)
)
ANSWER = st.builds(
    Answer, TOKENS, ANY_DATA, st.sampled_from([None] * 8 + [b"NATS/1.0\r\nA: b\r\n\r\n"]), st.just(INBOX)
)


class Outcome(NamedTuple):
    """Who got what, and what is left."""

    acked: int
    duplicates: int
    results: dict[int, list[Any]]
    batches: list[dict[str, tuple[int, int]]]
    failures: list[set[int]]
    left: set[int]


def expected_of(answers: Sequence[Answer], owners: dict[int, str]) -> Outcome:
    """The reference: every answer by itself, through the decoder."""
    results: dict[int, list[Any]] = {serial: [] for serial in owners if owners[serial] == "future"}
    batches: list[dict[str, tuple[int, int]]] = [{}, {}]
    failures: list[set[int]] = [set(), set()]
    left = set(owners)
    acked = duplicates = 0
    for answer in answers:
        serial = serial_of(answer.token)
        if serial not in left:
            continue
        assert serial is not None
        left.discard(serial)
        ack = decoded(answer.data)
        owner = owners[serial]
        if ack is None:
            if owner.isdigit():
                failures[int(owner)].add(serial)
            continue
        acked += 1
        duplicates += ack.duplicate
        if owner == "future":
            results[serial].append(ack)
        elif owner.isdigit():
            had = batches[int(owner)].get(ack.stream, (0, 0))
            batches[int(owner)][ack.stream] = (had[0] + 1, had[1] + ack.duplicate)
    return Outcome(acked, duplicates, results, batches, failures, left)


def outcome_of(answers: Sequence[Answer], owners: dict[int, str], *, packed: bool) -> Outcome:
    batches = [AckBatch(len(owners) + 1), AckBatch(len(owners) + 1)]
    heard: list[dict[str, tuple[int, int]]] = [{}, {}]
    targets = {serial: Target(cancelled=owner == "cancelled") for serial, owner in owners.items()}
    pending: dict[int, Any] = {
        serial: (batches[int(owner)] if owner.isdigit() else targets[serial], "s", serial, None)
        for serial, owner in owners.items()
    }
    original = AckBatch.acked_many

    def note(batch: AckBatch, stream: str, count: int, duplicates: int) -> None:
        original(batch, stream, count, duplicates)
        sums = heard[batches.index(batch)]
        had = sums.get(stream, (0, 0))
        sums[stream] = (had[0] + count, had[1] + duplicates)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AckBatch, "acked_many", note)
        acked, duplicates = through_publisher(answers, pending, packed=packed)
    for batch, sums in zip(batches, heard, strict=True):
        # A batch does not care for streams without a name, of which there are none.
        assert batch.streams - {""} == set(sums) - {""}
        assert batch.duplicates == sum(duplicates for _, duplicates in sums.values())
        stored = sum(count for count, _ in sums.values())
        assert batch._left == batch.count - stored - len(batch.failures)
    for serial, owner in owners.items():
        assert owner == "future" or targets[serial].results == []
    return Outcome(
        acked,
        duplicates,
        {serial: targets[serial].results for serial in owners if owners[serial] == "future"},
        heard,
        [set(batch.failures) for batch in batches],
        set(pending),
    )


OWNERS = st.dictionaries(
    st.integers(1, 12), st.sampled_from(["future", "future", "0", "0", "1", "cancelled"]), max_size=12
)


@settings(deadline=None, max_examples=300)
@given(
    # Of two answers to one message, the core prefers the one that says "stored": see below.
    st.lists(ANSWER, min_size=1, max_size=20, unique_by=lambda answer: serial_of(answer.token)),
    OWNERS,
)
@example([to(1, PLAIN[0]), to(1, PLAIN[0])], {1: "future"})
@example([to(1, PLAIN[0]), to(2, b'{"stream":"T","seq":1}'), to(3, PLAIN[0])], {1: "0", 2: "0", 3: "0"})
@example([to(1, PLAIN[0]), to(2, PLAIN[0]), to(3, PLAIN[0])], {1: "0", 2: "1", 3: "0"})
def test_whatever_comes_both_roads_are_the_reference(answers: list[Answer], owners: dict[int, str]) -> None:
    expected = expected_of(answers, owners)
    for packed in (False, True):
        assert outcome_of(answers, owners, packed=packed) == expected


# The compiled core by itself: without it, these functions do not exist.

if speed is not None:
    Rows, Launcher = speed.Rows, speed.Launcher

    def settle(answers: Sequence[Answer], pending: dict[int, Any]) -> Any:
        return rows_of(answers).settle(len(INBOX), pending, PubAck, Batch)

    @pytest.mark.parametrize("data", PLAIN)
    def test_what_says_no_more_than_stored_is_settled(data: bytes) -> None:
        target = Target()
        pending = {5: (target, "s", 0, None), 6: (target, "s", 0, None)}
        ack = PubAck.from_response(data)
        assert settle([to(5, data)], pending) == (1, ack.duplicate, [])
        assert target.results == [ack]
        assert type(target.results[0]) is PubAck
        assert list(pending) == [6]

    @pytest.mark.parametrize("data", OTHERS + ERRORS_WITH_A_SEQUENCE)
    def test_what_says_anything_else_is_left(data: bytes) -> None:
        target = Target()
        pending = {5: (target, "s", 0, None)}
        assert settle([to(1, PLAIN[0]), to(5, data)], pending) == (0, 0, [1])
        assert target.results == []
        assert list(pending) == [5]

    @pytest.mark.parametrize("header", [HEADER, b"NATS/1.0\r\nA: b\r\n\r\n"])
    def test_an_answer_with_headers_is_left(header: bytes) -> None:
        pending = {5: (Target(), "s", 0, None)}
        assert settle([to(5, PLAIN[0], header)], pending) == (0, 0, [0])
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
        pending = {5: (Target(), "s", 0, None), 55: (Target(), "s", 0, None)}
        assert settle([answer], pending) == (0, 0, [])
        assert list(pending) == [5, 55]

    def test_serials_may_have_18_digits() -> None:
        target = Target()
        pending = {10**18 - 1: (target, "s", 0, None)}
        assert settle([to(10**18 - 1, PLAIN[0])], pending) == (1, 0, [])
        assert target.results == [PubAck(stream="S", seq=1)]

    def test_of_two_answers_in_one_read_the_ack_counts() -> None:
        # Such as "this id is in process" to the first of two copies, and the ack of the other.
        target = Target()
        pending = {1: (target, "s", 0, None)}
        refusal = b'{"error":{"code":503,"description":"in process"},"stream":"S","seq":0}'
        assert settle([to(1, refusal), to(1, PLAIN[0]), to(1, refusal)], pending) == (1, 0, [0])
        assert target.results == [PubAck(stream="S", seq=1)]
        assert pending == {}

    @settings(deadline=None, max_examples=500)
    @given(st.lists(ANSWER, min_size=1, max_size=20), st.sets(st.integers(1, 12)))
    def test_every_answer_is_settled_or_left_or_nobodys(answers: list[Answer], serials: set[int]) -> None:
        targets = {serial: Target() for serial in serials}
        pending: dict[int, Any] = {serial: (target, "s", 0, None) for serial, target in targets.items()}
        acked, duplicates, others = settle(answers, pending)
        left = set(serials)
        acks: list[PubAck] = []
        for place, answer in enumerate(answers):
            serial = serial_of(answer.token)
            if serial not in left:
                assert place not in others
            elif place in others:
                assert answer.header is not None or answer.data not in PLAIN
            else:
                assert serial is not None
                left.discard(serial)
                assert answer.header is None
                acks.append(PubAck.from_response(answer.data))
                assert targets[serial].results == acks[-1:]
        assert set(pending) == left
        assert others == sorted(others)
        assert (acked, duplicates) == (len(acks), sum(ack.duplicate for ack in acks))

    async def test_real_futures_and_cancelled_ones() -> None:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(4)]
        futures[1].cancel()
        futures[2].set_result("mine")
        pending = {serial: (future, "s", 0, None) for serial, future in enumerate(futures)}
        answers = [to(serial, b'{"stream":"S","seq":%d}' % (serial + 1)) for serial in range(4)]
        assert settle(answers, pending) == (4, 0, [])
        assert pending == {}
        assert await futures[0] == PubAck(stream="S", seq=1)
        assert futures[1].cancelled()
        assert futures[2].result() == "mine"
        assert await futures[3] == PubAck(stream="S", seq=4)

    def test_batches_hear_of_acks_together_in_their_order() -> None:
        one, two, future = Batch(), Batch(), Target()
        owners = [one, one, one, two, one, future, one, one]
        streams = ["S", "S", "T", "T", "T", "S", "S", "S"]
        pending = {serial: (owner, "s", 0, None) for serial, owner in enumerate(owners)}
        answers = [
            to(
                serial,
                b'{"stream":"%b","seq":1%b}' % (stream.encode(), b',"duplicate":true' if serial % 2 else b""),
            )
            for serial, stream in enumerate(streams)
        ]
        assert settle(answers, pending) == (8, 4, [])
        assert one.heard[:2] == [("S", 2, 1), ("T", 1, 0)]
        assert one.sums() == {"S": (4, 2), "T": (2, 0)}
        assert two.heard == [("T", 1, 1)]
        assert future.results == [PubAck(stream="S", seq=1, duplicate=True)]

    def test_answers_between_that_are_left_do_not_part_a_batch() -> None:
        batch = Batch()
        pending = {serial: (batch, "s", 0, None) for serial in range(5)}
        answers = [to(0, PLAIN[0]), to(1, b"bad"), to(2, PLAIN[0]), to(77, PLAIN[0]), to(4, PLAIN[0])]
        assert settle(answers, pending) == (3, 0, [1])
        assert batch.heard == [("S", 3, 0)]
        assert sorted(pending) == [1, 3]

    @pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
    def test_an_error_of_a_future_is_raised(kind: type[BaseException]) -> None:
        target = Target(error=kind("mine"))
        pending = {1: (target, "s", 0, None), 2: (Target(), "s", 0, None)}
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
            settle([to(1, PLAIN[0])], {1: (target, "s", 0, None)})
        assert target.results == [PubAck(stream="S", seq=1)]

    def test_an_error_of_done_does_not_hide_that_of_the_future() -> None:
        class Odd(Target):
            def done(self) -> bool:
                raise LookupError("done")

        with pytest.raises(ValueError, match="mine"):
            settle([to(1, PLAIN[0])], {1: (Odd(error=ValueError("mine")), "s", 0, None)})

    def test_a_batch_hears_of_its_acks_although_a_future_failed_behind_them() -> None:
        # They are no longer pending: nobody else would ever tell it.
        batch = Batch()
        pending = {
            1: (batch, "s", 0, None),
            2: (batch, "s", 1, None),
            3: (Target(error=ValueError("mine")), "s", 0, None),
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
            rows_of([to(1, PLAIN[0])]).settle(len(INBOX), {1: (odd, "s", 0, None)}, PubAck, Odd)
        other = {1: (odd, "s", 0, None), 2: (Odd(), "s", 0, None)}
        with pytest.raises(ValueError, match="mine"):
            rows_of([to(1, PLAIN[0]), to(2, PLAIN[0])]).settle(len(INBOX), other, PubAck, Odd)

    @pytest.mark.parametrize("flight", [None, [], (), "text", [Target(), "s", 0, None]])
    def test_what_is_no_flight_is_left(flight: Any) -> None:
        pending = {1: flight}
        assert settle([to(1, PLAIN[0])], pending) == (0, 0, [0])
        assert pending == {1: flight}

    @pytest.mark.parametrize(
        "arguments",
        [
            (),
            (0,),
            (0, {}, PubAck),
            (0, {}, PubAck, Batch, 1),
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
        assert Rows().settle(2**40, {}, PubAck, Batch) == (0, 0, [])

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
        raising = (Target(error=ValueError("mine")), "s", 0, None)
        for _ in range(rounds):
            target.results = []
            batch.heard = []
            pending: dict[int, Any] = {
                serial: ((batch, target)[serial % 2], "s", 0, None) for serial in range(len(answers))
            }
            target.cancelled = True
            rows.settle(len(INBOX), pending, PubAck, Batch)
            pending = {0: (batch, "s", 0, None), 1: (batch, "s", 0, None), 2: raising}
            with pytest.raises(ValueError, match="mine"):
                rows.settle(len(INBOX), pending, PubAck, Batch)

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
        pending: dict[int, Any] = {1: (target, "s", 0, None)}
        data = b'{"stream":"ORDERS","seq":123456}'
        settle([to(1, data)], pending)
        ack, plain = target.results.pop(), PubAck.from_response(data)
        counts = [[sys.getrefcount(thing) for thing in (one.stream, one.seq)] for one in (ack, plain)]
        assert counts[0] == counts[1]
        del target
        assert alive() is None

    # Launcher

    class Waiting:
        """In the place of a future."""

        def __init__(self, *, loop: Any) -> None:
            self.loop = loop

    @settings(deadline=None)
    @given(
        st.integers(0, 2**64 - 1),
        st.binary(max_size=300),
        st.sampled_from([b"PUB a.b ", b"PUB \xc3\xbc "]),
        st.sampled_from([INBOX, b""]),
    )
    @example(2**64 - 1, bytes(100_000), b"PUB a ", INBOX)
    @example(0, b"", b"", b"")
    def test_a_launch_is_the_whole_command(serial: int, data: bytes, prefix: bytes, inbox: bytes) -> None:
        pending: dict[int, Any] = {}
        loop = object()
        out = [b"before"]
        future = Launcher(inbox, pending, Waiting, loop).launch(out, prefix, serial, "a.b", data)
        assert type(future) is Waiting
        assert future.loop is loop
        assert out == [b"before", b"%b%b%d %d\r\n%b\r\n" % (prefix, inbox, serial, len(data), data)]
        assert pending == {serial: (future, "a.b", 0, None)}
        assert pending[serial][0] is future

    async def test_a_launch_makes_futures_of_the_loop_that_settle() -> None:
        pending: dict[int, Any] = {}
        loop = asyncio.get_running_loop()
        launch = Launcher(INBOX, pending, asyncio.Future, loop).launch
        out: list[bytes] = []
        futures = [launch(out, b"PUB a ", serial, "a", b"%d" % serial) for serial in range(100)]
        assert all(future.get_loop() is loop for future in futures)
        assert len(set(map(id, futures))) == 100
        assert list(pending) == list(range(100))
        answers = [to(serial, b'{"stream":"S","seq":%d}' % (serial + 1)) for serial in range(100)]
        assert settle(answers, pending) == (100, 0, [])
        assert [(await future).seq for future in futures] == list(range(1, 101))

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ((), TypeError),
            (([], b"PUB a ", 1, "a"), TypeError),
            (([], b"PUB a ", 1, "a", b"", 1), TypeError),
            (((), b"PUB a ", 1, "a", b""), TypeError),
            ((None, b"PUB a ", 1, "a", b""), TypeError),
            (([], "PUB a ", 1, "a", b""), TypeError),
            (([], bytearray(b"PUB a "), 1, "a", b""), TypeError),
            (([], b"PUB a ", "1", "a", b""), TypeError),
            (([], b"PUB a ", 1.0, "a", b""), TypeError),
            (([], b"PUB a ", -1, "a", b""), OverflowError),
            (([], b"PUB a ", 2**64, "a", b""), OverflowError),
            (([], b"PUB a ", 1, "a", "data"), TypeError),
            (([], b"PUB a ", 1, "a", bytearray(b"data")), TypeError),
            (([], b"PUB a ", 1, "a", memoryview(b"data")), TypeError),
            (([], b"PUB a ", 1, "a", None), TypeError),
        ],
    )
    def test_wrong_arguments_of_launch_send_nothing(
        arguments: tuple[Any, ...], error: type[Exception]
    ) -> None:
        pending: dict[int, Any] = {}
        with pytest.raises(error):
            Launcher(INBOX, pending, Waiting, None).launch(*arguments)
        assert pending == {}
        assert not arguments or not arguments[0]

    def test_a_future_that_cannot_be_made_sends_nothing() -> None:
        pending: dict[int, Any] = {}
        out: list[bytes] = []

        def refuse(*, loop: Any) -> Any:
            raise ValueError("no future")

        with pytest.raises(ValueError, match="no future"):
            Launcher(INBOX, pending, refuse, None).launch(out, b"PUB a ", 1, "a", b"")
        assert (out, pending) == ([], {})

    @pytest.mark.parametrize(
        "arguments",
        [
            (),
            (INBOX,),
            (INBOX, {}, Waiting),
            (INBOX, {}, Waiting, None, 1),
            ("_INBOX.", {}, Waiting, None),
            (bytearray(INBOX), {}, Waiting, None),
            (INBOX, [], Waiting, None),
            (INBOX, None, Waiting, None),
        ],
    )
    def test_wrong_arguments_of_a_launcher(arguments: tuple[Any, ...]) -> None:
        with pytest.raises(TypeError):
            Launcher(*arguments)

    def test_a_launcher_takes_no_keywords() -> None:
        with pytest.raises(TypeError, match="keyword"):
            Launcher(INBOX, {}, Waiting, loop=None)
        with pytest.raises(TypeError, match="keyword"):
            Launcher(INBOX, {}, Waiting, None, more=1)

    def test_a_launcher_in_a_cycle_is_freed() -> None:
        class Loop:
            """It may be the loop, or what is pending."""

        loop, in_pending = Loop(), Loop()
        pending: dict[Any, Any] = {}
        launcher = Launcher(INBOX, pending, Waiting, loop)
        loop.launch = launcher.launch  # type: ignore[attr-defined]
        in_pending.launcher = launcher  # type: ignore[attr-defined]
        pending["cycle"] = in_pending
        launcher.launch([], b"PUB a ", 1, "a", b"")
        gone = [weakref.ref(loop), weakref.ref(in_pending)]
        del loop, in_pending, pending, launcher
        gc.collect()
        assert [one() for one in gone] == [None, None]

    def test_launches_keep_nothing() -> None:
        pending: dict[int, Any] = {}
        loop, subject, data = object(), "sub" + str(id(pending)), bytes(1000)
        launch = Launcher(INBOX, pending, Waiting, loop).launch
        bad: list[Any] = [[], b"PUB a ", 2**64, subject, data]

        def some() -> None:
            for serial in range(200):
                launch([], b"PUB a ", serial, subject, data)
                with pytest.raises(OverflowError):
                    launch(*bad)
            pending.clear()

        some()
        gc.collect()
        before = [sys.getrefcount(thing) for thing in (loop, subject, data, pending)]
        some()
        gc.collect()
        assert [sys.getrefcount(thing) for thing in (loop, subject, data, pending)] == before
