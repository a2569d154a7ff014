"""Acks settled by the compiled core are what the Python road makes of them, and nothing else is touched.

Without the compiled core there is nothing to settle: then the publisher takes the Python road alone, and the
same answers go through that.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from settle_cases import (
    ANSWER,
    HEADER,
    INBOX,
    OTHERS,
    PLAIN,
    Answer,
    Target,
    parse,
    serial_of,
    to,
)

from jetspark import AckBatch, Msg, PubAck, Publisher
from jetspark.errors import JetsparkError
from jetspark.jetstream.models.puback import decode_puback
from jetspark.wire import Messages, Parser, backend
from jetspark.wire._backend import speed
from jetspark.wire.columns import ANSWERS, PackedColumns

if TYPE_CHECKING:
    from collections.abc import Sequence


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

    def time(self) -> float:
        return 0.0


class Core:
    """What a publisher needs of a connection to be made."""

    message_class = Msg
    message_owner = None
    loop = Loop()
    link = None
    outbox = None

    def new_inbox(self) -> str:
        return "_INBOX.abc"


def through_publisher(answers: Sequence[Answer], pending: dict[int, Any], *, packed: bool) -> tuple[int, int]:
    """How many were acked, and how many of those were duplicates; ``pending`` is left with the rest."""
    publisher = Publisher(Core(), window=10**6, ack_timeout=5.0, retry=False)  # type: ignore[arg-type]
    flow = publisher._flow
    for serial in range(1, max(pending, default=0) + 1):
        flow.linked = True
        target, subject, index = pending.get(serial, (None, "", 0))
        flow.add(target, subject, index, b"", None, again=False)
        if serial not in pending:
            flow.withdraw(serial)
    parser = Parser(compiled=packed)
    parser.routes["1"] = (ANSWERS, (Msg, None))
    publisher._receiver.factory, publisher._receiver.owner = ANSWERS, (Msg, None)
    for event in parser.feed(b"".join(answer.wire() for answer in answers)):
        if isinstance(event, Messages):
            publisher._deliver(event.items, event.nbytes)
        else:
            publisher._deliver_columns(event)  # type: ignore[arg-type]
    pending.clear()
    pending.update(flow.pending)
    return publisher._stats.acked, publisher._stats.duplicates


def decoded(data: bytes) -> PubAck | None:
    """The ack that the publisher makes of it; None: it is refused."""
    # What has a sequence is an ack, as servers have it: the publisher does not look for an error in it.
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        ack = decode_puback(data)
        return ack if 0 < ack.seq < 2**64 else None
    try:
        ack = PubAck.from_response(data)
    except (JetsparkError, RecursionError):
        return None
    return ack if 0 < ack.seq < 2**64 else None


@pytest.mark.parametrize("data", PLAIN + OTHERS)
@pytest.mark.parametrize("packed", [False, True])
def test_each_answer_alone(data: bytes, packed: bool) -> None:
    target = Target()
    pending = {5: (target, "s", 0)}
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
        serial: (batches[int(owner)] if owner.isdigit() else targets[serial], "s", serial)
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


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(
    st.lists(ANSWER, min_size=1, max_size=20),
    OWNERS,
)
@example([to(1, PLAIN[0]), to(1, PLAIN[0])], {1: "future"})
@example([to(1, PLAIN[0]), to(2, b'{"stream":"T","seq":1}'), to(3, PLAIN[0])], {1: "0", 2: "0", 3: "0"})
@example([to(1, PLAIN[0]), to(2, PLAIN[0]), to(3, PLAIN[0])], {1: "0", 2: "1", 3: "0"})
def test_whatever_comes_both_roads_are_the_reference(answers: list[Answer], owners: dict[int, str]) -> None:
    expected = expected_of(answers, owners)
    for packed in (False, True):
        assert outcome_of(answers, owners, packed=packed) == expected
