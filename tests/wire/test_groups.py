"""Messages that share a reply: whatever is answered, in whatever order, no future says what is not so.

Without the compiled core there are no groups.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from settle_cases import INBOX, Answer, settle, to

from jetspark import Msg, PublishUnclear
from jetspark.errors import JetsparkError, RequestTimeout
from jetspark.jetstream import publisher_acks
from jetspark.jetstream.errors import ApiError, MessageNotFound
from jetspark.jetstream.group_answers import places_of
from jetspark.jetstream.publisher import Publisher
from jetspark.wire import Messages, Parser
from jetspark.wire._backend import speed
from jetspark.wire.columns import ANSWERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetspark.jetstream.group_answers import Home

MOST = 16
REFUSAL = {
    "error": {"code": 400, "err_code": 10077, "description": "maximum messages exceeded"},
    "stream": "S",
    "seq": 0,
}


@pytest.mark.parametrize(
    ("datas", "stored", "expected"),
    [
        ([b"a", b"b", b"c"], [], {}),
        ([b"a", b"b", b"c"], [(5, b"a"), (7, b"c")], {0: 5, 2: 7}),
        ([b"a", b"b", b"c"], [(5, b"a"), (6, b"b"), (7, b"c")], {0: 5, 1: 6, 2: 7}),
        ([b"a", b"a", b"a"], [(5, b"a"), (9, b"a")], {0: 5, 1: 9}),
        ([b"a", b"b", b"a"], [(5, b"b"), (6, b"a")], {1: 5, 2: 6}),
        ([b"a", b"b"], [(5, b"c"), (6, b"b")], {1: 6}),
        ([b"a", b"b"], [(5, b"b"), (6, b"a")], {1: 5}),
        ([b"a"], [(5, b"a"), (6, b"a")], {0: 5}),
    ],
)
def test_what_a_stream_has_tells_which_messages_it_took(
    datas: list[bytes], stored: list[tuple[int, bytes]], expected: dict[int, int]
) -> None:
    assert places_of(datas, stored) == expected


@dataclass
class Responder:
    """A stream: what it has, and the answers that it has not given yet."""

    name: str
    domain: str | None
    next_seq: int
    store: dict[int, bytes] = field(default_factory=dict)
    waiting: list[Answer] = field(default_factory=list)

    def refusal(self, token: int) -> Answer:
        return to(token, json.dumps({**REFUSAL, "stream": self.name}).encode())

    def ack(self, token: int, data: bytes) -> Answer:
        self.store[self.next_seq] = data
        body: dict[str, Any] = {"stream": self.name, "seq": self.next_seq}
        if self.domain is not None:
            body["domain"] = self.domain
        self.next_seq += 1
        return to(token, json.dumps(body).encode())


class Client:
    """What a publisher needs of a connection to be made."""

    _message_class = Msg
    _message_owner = None
    _link = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._out = [b"before"]

    def new_inbox(self) -> str:
        return INBOX[:-1].decode()


class World:
    """A publisher, the streams behind it, and what became of each message."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, responders: list[Responder], *, readable: bool, packed: bool
    ) -> None:
        self.loop, self.responders = loop, responders
        self.out = [b"before"]
        self.publisher = Publisher(
            Client(loop),  # type: ignore[arg-type]
            window=10**6,
            ack_timeout=5.0,
            retry=False,
            lookup=self.lookup if readable else None,
        )
        self.publisher._tally = lambda: None  # type: ignore[method-assign]
        self.launcher = self.publisher._launcher
        assert self.launcher is not None
        self.launcher.arm(None, {"a": b"PUB a "}, 10**6, 100)  # type: ignore[arg-type]
        self.parser = Parser(compiled=packed)
        self.parser.routes["1"] = (ANSWERS, (Msg, None))
        self.publisher.factory, self.publisher.owner = ANSWERS, (Msg, None)
        self.futures: list[asyncio.Future[Any]] = []
        self.datas: list[bytes] = []
        self.grant()

    async def lookup(self, home: Home, seq: int) -> bytes:
        for responder in self.responders:
            if (responder.name, responder.domain) == home and seq in responder.store:
                return responder.store[seq]
        raise MessageNotFound(404, 10037, "no message found")

    def grant(self) -> None:
        assert self.launcher is not None
        self.launcher.grant(self.out, 10**9, 10**9)

    def begin_write(self, data: bytes) -> int:
        """The first message of a write goes alone; its token."""
        assert self.launcher is not None
        serial = self.launcher.reserve(1)
        self.futures.append(self.launcher.launch(self.out, b"PUB a ", serial, "a", data))
        self.datas.append(data)
        self.grant()
        return serial

    def publish(self, data: bytes) -> int:
        """Its token."""
        assert self.launcher is not None
        with pytest.raises(StopIteration) as caught:
            self.launcher.publish("a", data).send(None)
        self.futures.append(caught.value.value)
        self.datas.append(data)
        return int(self.out[-1].split(b" ")[2].rpartition(b".")[2])

    def hear(self, answers: list[Answer]) -> None:
        for event in self.parser.feed(b"".join(answer.wire() for answer in answers)):
            if isinstance(event, Messages):
                self.publisher.deliver(event.items, event.nbytes)
            else:
                self.publisher.deliver_columns(event)  # type: ignore[arg-type]

    def think(self) -> None:
        """Let it look up what it wants to."""
        while self.publisher._lookups:
            self.loop.run_until_complete(asyncio.wait(list(self.publisher._lookups.values())))

    def expire(self) -> None:
        for serial in list(self.publisher._pending):
            self.publisher._fail(serial, RequestTimeout("no ack"))


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_probation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_acks, "PROBATION", 0)


def warm(world: World) -> None:
    """The first message goes alone, and says how large others may be."""
    token = world.publish(bytes(100))
    world.hear([world.responders[0].ack(token, bytes(100))])
    assert world.futures[0].done()


if speed is not None:

    @st.composite
    def stories(draw: st.DrawFn) -> dict[str, Any]:
        return {
            "kind": draw(st.sampled_from(["alone", "replicated", "split", "both", "both, one domain"])),
            "count": draw(st.integers(1, 40)),
            "refused": draw(st.sets(st.integers(0, 39), max_size=8)),
            "full_from": draw(st.sampled_from([None, None, 3, 17, 30])),
            "lost": draw(st.sets(st.integers(0, 80), max_size=3)),
            "doubled": draw(st.sets(st.integers(0, 80), max_size=3)),
            "alike": draw(st.booleans()),
            "readable": draw(st.booleans()),
            "packed": draw(st.booleans()),
            "seed": draw(st.integers(0, 10**9)),
        }

    def tell(loop: asyncio.AbstractEventLoop, story: dict[str, Any]) -> tuple[World, list[list[bool]]]:
        """Publish, and answer as such streams do. Also what each of them did with each message."""
        kind, random = story["kind"], Random(story["seed"])
        responders = [Responder("S", None, random.choice([1, 1000]))]
        if kind in ("split", "both"):
            responders.append(Responder("T", None, random.choice([1, 500, 2000])))
        elif kind == "both, one domain":
            responders.append(Responder("S", "hub", random.choice([1, 500, 2000])))
        world = World(loop, responders, readable=story["readable"], packed=story["packed"])
        warm(world)
        answers: list[Answer] = []
        fates: list[list[bool]] = []

        def release(responder: Responder, count: int) -> None:
            answers.extend(responder.waiting[:count])
            del responder.waiting[:count]

        for number in range(story["count"]):
            data = b"same" if story["alike"] else b"%d" % number
            token = world.publish(data)
            if random.random() < 0.1:
                world.grant()
            chosen = random.choice(responders) if kind == "split" else None
            taken: list[bool] = []
            for responder in responders:
                refused = number in story["refused"] or (story["full_from"] or 1000) <= number
                if responder is not responders[0] and kind != "split":
                    refused = random.random() < 0.1
                stored = (chosen is None or responder is chosen) and not refused
                taken.append(stored)
                responder.next_seq += random.choice([0, 0, 0, 1, 7])  # of other publishers
                if stored:
                    responder.waiting.append(responder.ack(token, data))
                elif chosen is None or responder is chosen:
                    if kind == "alone":
                        release(responder, len(responder.waiting))
                    answers.append(responder.refusal(token))
                # With replicas, or far away, an ack takes its time; a refusal does not.
                at_once = kind == "alone" or random.random() < 0.3
                release(responder, len(responder.waiting) if at_once else random.randint(0, 1))
            fates.append(taken)
        for responder in random.sample(responders, len(responders)):
            release(responder, len(responder.waiting))
        told = [answer for place, answer in enumerate(answers) if place not in story["lost"]]
        # By the next leader; a refusal is in no leader's log.
        acks = [answer for answer in answers if b"error" not in answer.data]
        told += [answer for place, answer in enumerate(acks) if place in story["doubled"]]
        while told:
            size = random.randint(1, len(told))
            world.hear(told[:size])
            del told[:size]
            if random.random() < 0.3:
                world.think()
        world.think()
        return world, fates

    @settings(deadline=None, max_examples=600)
    @given(stories())
    def test_no_future_says_what_is_not_so(loop: asyncio.AbstractEventLoop, story: dict[str, Any]) -> None:
        world, fates = tell(loop, story)
        publisher, launcher = world.publisher, world.launcher
        assert launcher is not None
        plain = story["kind"] in ("alone", "replicated") and not story["lost"]
        if plain:
            assert not publisher._pending, "each message has its answer"
        world.expire()
        assert (publisher.pending, launcher.grouped, publisher._odd) == (0, 0, {})
        acked = failed = 0
        refused: list[bytes] = []
        for future, data, fate in zip(world.futures[1:], world.datas[1:], fates, strict=True):
            error = future.exception()
            if error is None:
                acked += 1
                ack = future.result()
                homes = [
                    one for one in world.responders if (one.name, one.domain) == (ack.stream, ack.domain)
                ]
                assert homes[0].store[ack.seq] == data
                if not story["alike"]:
                    assert any(fate)
                continue
            failed += 1
            assert isinstance(error, JetsparkError)
            if isinstance(error, ApiError):
                refused.append(data)
                # A refusal does not say its domain: of two streams of one name it may be either's.
                if not story["alike"] and story["kind"] != "both, one domain":
                    assert not all(fate), "refused, though all have it"
            elif isinstance(error, PublishUnclear):
                assert not story["readable"]
                assert any(one.store.keys() >= set(error.sequences) for one in world.responders)
            else:
                assert isinstance(error, RequestTimeout)
                assert not plain
        if story["kind"] != "both, one domain":
            assert len(refused) <= sum(not all(fate) for fate in fates)
        stats = publisher._stats
        assert (stats.acked, stats.failed) == (acked + 1, failed)
        if plain and story["readable"]:
            assert acked == sum(any(fate) for fate in fates)

    @settings(deadline=None, max_examples=600)
    @given(
        st.integers(1, 60),
        st.integers(0, 60),
        st.sampled_from([1, 11, 500, 2000]),
        st.booleans(),
        st.booleans(),
        st.integers(0, 10**9),
    )
    def test_two_streams_of_one_name_confirm_nothing_that_neither_has(
        loop: asyncio.AbstractEventLoop,
        count: int,
        cut: int,
        ahead: int,
        readable: bool,
        packed: bool,
        seed: int,
    ) -> None:
        """Both store each message, until the link breaks. Each answers in order, in its own time."""
        random = Random(seed)
        twins = [Responder("S", None, 2), Responder("S", None, ahead)]
        world = World(loop, twins, readable=readable, packed=packed)
        warm(world)
        waiting: list[list[Answer]] = [[], []]
        for number in range(count):
            data = b"%d" % number
            begins = number == 0 or random.random() < 0.1
            token = world.begin_write(data) if begins else world.publish(data)
            if number < cut:
                for twin, queue in zip(twins, waiting, strict=True):
                    queue.append(twin.ack(token, data))
        while any(waiting):
            queue = random.choice([one for one in waiting if one])
            size = random.randint(1, len(queue))
            world.hear(queue[:size])
            del queue[:size]
            if random.random() < 0.3:
                world.think()
        world.think()
        world.expire()
        for future, number in zip(world.futures[1:], range(count), strict=True):
            error = future.exception()
            if error is None:
                assert number < cut, "nobody has it"
                assert any(twin.store.get(future.result().seq) == b"%d" % number for twin in twins)
            else:
                assert isinstance(error, RequestTimeout | PublishUnclear)
        assert all(world.futures[1 + number].exception() is None for number in range(min(cut, count, 1)))
        assert world.publisher.pending == 0

    def made(loop: asyncio.AbstractEventLoop, *responders: Responder) -> World:
        world = World(loop, list(responders) or [Responder("S", None, 1)], readable=True, packed=True)
        warm(world)
        return world

    def test_a_write_is_parted_in_groups(loop: asyncio.AbstractEventLoop) -> None:
        world = made(loop)
        tokens = [world.publish(b"x") for _ in range(40)]
        assert len(set(tokens[:MOST])) == len(set(tokens[MOST : 2 * MOST])) == 1
        assert len(set(tokens)) == 3
        assert world.publisher.pending == 40
        world.grant()
        assert world.publish(b"x") not in tokens, "another write"
        world.expire()

    def test_what_is_larger_than_all_before_goes_alone(loop: asyncio.AbstractEventLoop) -> None:
        world = made(loop)
        one, large, other = world.publish(b"x"), world.publish(bytes(101)), world.publish(b"y")
        assert one == other != large
        responder = world.responders[0]
        world.hear([responder.ack(one, b"x"), responder.ack(large, bytes(101)), responder.ack(other, b"y")])
        assert [future.result().seq for future in world.futures[1:]] == [2, 3, 4]
        assert world.publish(bytes(101)) == world.publish(b"x"), "now it is known"
        world.expire()

    def test_nothing_less_than_all_acks_confirms_any(loop: asyncio.AbstractEventLoop) -> None:
        world = made(loop)
        responder = world.responders[0]
        answers = [responder.ack(world.publish(b"%d" % number), b"%d" % number) for number in range(5)]
        world.hear(answers[:4])
        assert not any(future.done() for future in world.futures[1:])
        world.hear(answers[:4])  # a second time, as of another leader
        assert not any(future.done() for future in world.futures[1:])
        world.hear(answers[4:])
        assert [future.result().seq for future in world.futures[1:]] == [2, 3, 4, 5, 6]

    def test_a_message_of_a_write_that_goes_on_may_join_while_acks_come(
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        world = made(loop)
        responder = world.responders[0]
        first = world.publish(b"1")
        second = world.publish(b"2")
        world.hear([responder.ack(first, b"1")])
        third = world.publish(b"3")
        assert first == second == third
        world.hear([responder.ack(first, b"2"), responder.ack(first, b"3")])
        assert [future.result().seq for future in world.futures[1:]] == [2, 3, 4]
        assert world.publish(b"4") != first, "it has ended"
        world.expire()

    @pytest.mark.parametrize(
        "trouble",
        [
            lambda world, token: to(token, json.dumps(REFUSAL).encode()),
            lambda world, token: to(token, b"bad"),
            lambda world, token: to(token, b"", b"NATS/1.0 503\r\n\r\n"),
            lambda world, token: to(token, b'{"stream":"T","seq":5}'),
            lambda world, token: to(token, b'{"stream":"S","domain":"d","seq":5}'),
            lambda world, token: to(token, b'{"stream":"S","seq":1}'),  # goes backwards
            lambda world, token: to(1, b'{"stream":"S","seq":7}'),  # of the message that had its ack
            lambda world, token: to(1, b"bad"),
            lambda world, token: to(1, b"", b"NATS/1.0 503\r\n\r\n"),
        ],
    )
    def test_after_trouble_messages_go_alone(loop: asyncio.AbstractEventLoop, trouble: Any) -> None:
        world = made(loop)
        token = world.publish(b"x")
        assert world.publish(b"y") == token
        world.hear([world.responders[0].ack(token, b"x")])
        world.hear([trouble(world, token)])
        assert len({world.publish(b"z") for _ in range(20)}) == 20
        world.think()
        world.expire()

    @pytest.mark.parametrize("packed", [False, True])
    @pytest.mark.parametrize(
        "answer",
        [
            to(1, b'{"stream":"S","seq":1}'),  # once more, by the next leader
            to(1, b'{"stream":"S","seq":5,"duplicate":true}'),  # of a message that was sent again
            to(99999, b'{"stream":"S","seq":5}'),  # nobody's
            Answer(b"x", b'{"stream":"S","seq":5}'),
        ],
    )
    def test_answers_that_say_nothing_new_are_no_trouble(
        loop: asyncio.AbstractEventLoop, packed: bool, answer: Answer
    ) -> None:
        world = made(loop)
        token = world.publish(b"x")
        world.parser = Parser(compiled=packed)
        world.parser.routes["1"] = (ANSWERS, (Msg, None))
        world.hear([answer])
        assert world.publish(b"y") == token
        world.hear([world.responders[0].ack(token, b"x"), world.responders[0].ack(token, b"y")])
        assert [future.result().seq for future in world.futures[1:]] == [2, 3]

    def test_a_second_answer_casts_doubt_on_groups_that_were_sent_before(
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        world = made(loop)
        responder = world.responders[0]
        token = world.publish(b"x")
        assert world.publish(b"y") == token
        world.hear([responder.ack(token, b"x"), to(1, b'{"stream":"S","seq":500}')])
        world.hear([to(token, b'{"stream":"S","seq":501}')])  # the twin's, for the first of them
        world.think()
        assert not any(future.done() for future in world.futures[1:])
        world.hear([responder.ack(token, b"y")])
        world.think()
        assert [future.result().seq for future in world.futures[1:]] == [2, 3]

    def test_acks_of_several_streams_put_an_end_to_groups(loop: asyncio.AbstractEventLoop) -> None:
        world = made(loop, Responder("S", None, 1), Responder("T", None, 1))
        assert world.launcher is not None
        large = world.publish(bytes(200))
        world.hear([world.responders[1].ack(large, bytes(200))])
        for _ in range(3):
            tokens = [world.publish(b"x") for _ in range(20)]
            assert len(set(tokens)) == 20
            world.hear([world.responders[0].ack(token, b"x") for token in tokens])
        assert all(future.result() for future in world.futures)

    def test_groups_begin_when_so_many_have_come_alone(loop: asyncio.AbstractEventLoop) -> None:
        world = made(loop)
        assert world.launcher is not None
        world.launcher.isolate(30)
        world.launcher.isolate(5)  # less than it is already
        tokens = [world.publish(b"x") for _ in range(30)]
        assert len(set(tokens)) == 30
        world.hear([world.responders[0].ack(token, b"x") for token in tokens[:29]])
        assert world.publish(b"x") != world.publish(b"x")
        world.hear([world.responders[0].ack(tokens[29], b"x")])
        assert world.publish(b"x") == world.publish(b"x")
        world.expire()

    def test_the_core_leaves_a_group_to_who_has_no_launcher(loop: asyncio.AbstractEventLoop) -> None:
        world = made(loop)
        token = world.publish(b"x")
        pending = world.publisher._pending
        answer = world.responders[0].ack(token, b"x")
        assert settle([answer], pending) == (0, 0, [0])
        assert settle([answer], pending, world.launcher) == (1, 0, [])
        assert world.futures[1].result().seq == 2

    def test_wrong_arguments(loop: asyncio.AbstractEventLoop) -> None:
        world = made(loop)
        token = world.publish(b"x")
        launcher, group = world.launcher, world.publisher._pending[token]
        assert launcher is not None
        assert isinstance(group, speed.Group)
        with pytest.raises(TypeError):
            launcher.disband(None)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            launcher.isolate("1")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="negative"):
            launcher.isolate(-1)
        with pytest.raises(TypeError):
            speed.Group()
        assert (group.count, group.acked, group.stream, group.datas) == (1, 0, None, [b"x"])
        world.expire()
        assert (group.futures, group.datas, group.ended) == ([], [], True)
        assert launcher.disband(group) == []
        assert launcher.grouped == 0
