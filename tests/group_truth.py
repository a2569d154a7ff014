"""The truth about what a publisher sent: every future is compared with what the streams hold.

With the compiled core plain messages share replies in groups, and their acks are told apart by their order.
So tests of it look at each single message: an ack names the sequence at which exactly that payload is stored,
a refusal means that it is stored nowhere, and only what is said to be unknown may go either way.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import jetspark
from helpers import eventually
from jetspark import wire
from jetspark.errors import ConnectionClosed, ConnectionLost, RequestTimeout
from jetspark.jetstream import publisher_acks
from jetspark.jetstream.errors import ApiError, NoStreamResponse
from jetspark.jetstream.publisher_stats import PublishUnclear

if TYPE_CHECKING:
    from jetspark import PubAck, Stream
    from jetspark.jetstream.publisher import Publisher

COMPILED = wire.backend == "c"
"""Whether there are groups at all."""
TOGETHER = 16
"""Messages of a group at most."""
WARM = publisher_acks.PROBATION + 10
"""Messages that pass the probation: the first to a subject does not count."""
_numbers = itertools.count(1)


@dataclass
class Sent:
    """Messages of one publisher, each with a payload of its own, and the futures of their acks."""

    publisher: Publisher
    datas: list[bytes] = field(default_factory=list)
    futures: list[asyncio.Future[PubAck]] = field(default_factory=list)
    most_pending: int = 0
    most_grouped: int = 0

    async def publish(self, subject: str, count: int = 1, size: int = 0) -> None:
        """Messages of ``size`` bytes at least, in one go as far as the window allows."""
        publisher, launcher = self.publisher, self.publisher._launcher
        for _ in range(count):
            data = (b"%d;" % next(_numbers)).ljust(size, b".")
            self.futures.append(await publisher.publish(subject, data))
            self.datas.append(data)
            self.most_pending = max(self.most_pending, publisher.pending)
            if launcher is not None:
                self.most_grouped = max(self.most_grouped, launcher.grouped)

    async def warm_up(self, subject: str, size: int = 40) -> None:
        """Pass the probation, which messages with replies of their own do."""
        await self.publish(subject, WARM, size)
        await asyncio.wait_for(asyncio.wait(self.futures), 30)

    async def settled(self, timeout: float = 30) -> None:
        """Until every future is done."""
        waiting = {future for future in self.futures if not future.done()}
        if waiting:
            _, waiting = await asyncio.wait(waiting, timeout=timeout)
        assert not waiting, f"{len(waiting)} of {len(self.futures)} have no answer"

    def errors(self) -> list[BaseException | None]:
        """Of each message; None: it has an ack. Cancelled ones are left out."""
        return [future.exception() for future in self.futures if not future.cancelled()]

    def check_empty(self) -> None:
        """The publisher has forgotten them all."""
        publisher = self.publisher
        assert (publisher.pending, publisher._pending, publisher._odd) == (0, {}, {})
        assert publisher._lookups == {}
        if publisher._launcher is not None:
            assert publisher._launcher.grouped == 0


@dataclass
class Held:
    """What a stream holds."""

    stream: str
    domain: str | None
    by_sequence: dict[int, bytes]

    @classmethod
    async def by(cls, stream: Stream) -> Held:
        """All of it, and not only what a replica that is behind has so far. Needs ``allow_direct``."""

        async def whole() -> Held | None:
            found = {message.sequence: bytes(message.data) async for message in stream.get_msgs()}
            info = await stream.info()
            return cls(stream.name, info.domain, found) if len(found) == info.state.messages else None

        held = await eventually(whole, 30)
        assert held is not None
        return held


def check_truth(sent: Sent, *holds: Held) -> Counter[str]:
    """Whether no future lies; counts what became of them."""
    found: Counter[str] = Counter()
    stored = Counter(data for held in holds for data in set(held.by_sequence.values()))
    copies = Counter(data for held in holds for data in held.by_sequence.values())
    unclear: dict[int, tuple[PublishUnclear, set[bytes]]] = {}
    taken: set[tuple[str, str | None, int]] = set()
    lies: list[str] = []
    for data, future in zip(sent.datas, sent.futures, strict=True):
        assert future.done()
        text = data.rstrip(b".").decode()
        if copies[data] > stored[data]:
            lies.append(f"{text} is stored twice")
        if future.cancelled():
            found["cancelled"] += 1
            continue
        error = future.exception()
        if error is None:
            ack = future.result()
            found["acked"] += 1
            assert not ack.duplicate
            # Streams of one name and no domain cannot be told apart.
            named = [
                held
                for held in holds
                if held.stream == ack.stream and (held.domain == ack.domain or not ack.domain)
            ]
            if len(named) == 1 and (ack.stream, ack.domain, ack.seq) in taken:
                lies.append(f"{text}: its ack {ack} is another's")
            taken.add((ack.stream, ack.domain, ack.seq))
            there = [held.by_sequence.get(ack.seq) for held in named]
            if data not in there:
                lies.append(f"{text}: its ack says {ack}, and there is {there}")
        elif isinstance(error, PublishUnclear):
            found["unclear"] += 1
            unclear.setdefault(id(error), (error, set()))[1].add(data)
        elif isinstance(error, ApiError | NoStreamResponse):
            found["refused"] += 1
            if stored[data]:
                lies.append(f"{text} is stored, but: {error!r}")
        else:
            assert isinstance(error, RequestTimeout | ConnectionLost | ConnectionClosed), repr(error)
            found["unknown"] += 1
    for error, datas in unclear.values():
        assert 1 < error.count <= TOGETHER
        assert len(datas) == error.count, "a cancelled one is not counted here"
        kept = {held.by_sequence.get(sequence) for held in holds for sequence in error.sequences}
        if kept - {None} != {data for data in datas if stored[data]}:
            lies.append(f"{error}: but {kept}")
    assert not lies, f"{len(lies)} lies, such as: {lies[:10]}"
    return found


async def failures_of(publisher: Publisher) -> int:
    """How many messages ``flush`` says have failed; 0 when it says nothing."""
    try:
        async with asyncio.timeout(60):
            await publisher.flush()
    except jetspark.PublishFailed as failed:
        return failed.count
    return 0


def count_lookups(publisher: Publisher) -> list[int]:
    """Sequences that it asks the stream for."""
    asked: list[int] = []
    inner = publisher._lookup
    assert inner is not None

    async def note(home: tuple[str, str | None], sequence: int) -> bytes:
        asked.append(sequence)
        return await inner(home, sequence)

    publisher._lookup = note
    return asked
