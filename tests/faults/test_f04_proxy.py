"""F4: what networks do to connections, under publish, consume and request traffic, async and blocking.

Safety while a fault lasts: the connection is never closed for good, calls in flight end in time and with the
right error. Liveness after it: the connection is back, and what is published gets acked and consumed again.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark import StorageType, StreamConfig
from jetspark.connection.requests import RequestInbox
from jetspark.connection.sink import Router
from jetspark.events import Disconnected, ReconnectFailed
from jetspark.server import Server
from support.fault_loads import OPTIONS, AsyncLoad, BlockingLoad, Load
from support.fault_proxy import FaultProxy
from support.fault_table import Outcome, Row, Scale, check, perform
from support.helpers import eventually, unique

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

DEADLINE = 20.0
"""Seconds within which a fault is noticed, and within which all is well again. Five PINGs take 9."""
SLOW_FOR = 0.5
IN_FLIGHT = {"ConnectionLost", "NoServersAvailable", "RequestTimeout"}
"""Classes that calls of the traffic may end with."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``error``: the class that ends the connection; empty: it must bear the fault.

    ``refuses``: attempts to come back fail before one may succeed.
    """

    name: str
    strike: Callable[[FaultProxy, Random], None]
    error: str = "ConnectionLost"
    refuses: bool = False


def setting(**values: Any) -> Callable[[FaultProxy, Random], None]:
    def strike(proxy: FaultProxy, chance: Random) -> None:
        for name, value in values.items():
            assert hasattr(proxy, name)
            setattr(proxy, name, value)

    return strike


def cut_and(**values: Any) -> Callable[[FaultProxy, Random], None]:
    def strike(proxy: FaultProxy, chance: Random) -> None:
        setting(**values)(proxy, chance)
        proxy.cut()

    return strike


def garbage(*, to_client: bool) -> Callable[[FaultProxy, Random], None]:
    def strike(proxy: FaultProxy, chance: Random) -> None:
        kinds = [b"HELLO WORLD\r\n", b"\r\n\r\n", bytes(200) + b"\r\n", chance.randbytes(300) + b"\r\n"]
        proxy.inject(chance.choice(kinds), to_client=to_client)

    return strike


FAULTS = [
    Fault("cut", lambda proxy, _: proxy.cut()),
    Fault("reset", lambda proxy, _: proxy.reset()),
    Fault("half-close to client", lambda proxy, _: proxy.half_close(to_client=True)),
    Fault("half-close to server", lambda proxy, _: proxy.half_close(to_client=False)),
    Fault("stall", setting(stall_up=True, stall_down=True)),
    Fault("stall to server", setting(stall_up=True)),
    Fault("stall to client", setting(stall_down=True)),
    Fault("garbage to client", garbage(to_client=True), "ProtocolError"),
    Fault("garbage to server", garbage(to_client=False)),
    Fault("accept, then silence", cut_and(silent=True), refuses=True),
    Fault("handshake too slow", cut_and(handshake_pause=0.15), refuses=True),
    Fault("handshake slow", cut_and(handshake_pause=0.002)),
    Fault("delay", setting(delay=0.03), ""),
    Fault("bandwidth", setting(bandwidth=30_000), ""),
    Fault("one-byte slices", setting(slices=True), ""),
]


async def run(scale: Scale) -> Outcome:
    outcome, chance = Outcome(), scale.chance()
    stream = unique("F4")
    with Server(name="f4") as server:
        async with FaultProxy(server) as proxy, jetspark.connect(server.url) as direct:
            config = StreamConfig(name=stream, subjects=[f"{stream}.>"], storage=StorageType.MEMORY)
            await direct.jetstream().create_stream(config)
            hole = await direct.subscribe("hole", callback=lambda message: None)
            await direct.subscribe("echo", callback=lambda message: message.respond(b"!"))
            await direct.flush()
            slowest = 0.0
            async with AsyncLoad(proxy.url, stream) as first, BlockingLoad(proxy.url, stream) as second:
                loads = (first, second)
                done = 0
                for _ in range(scale.pick(1, 6)):
                    for fault in chance.sample(FAULTS, len(FAULTS)):
                        try:
                            took = await suffer(outcome, fault, proxy, chance, loads, lambda: hole.delivered)
                        except AssertionError as error:
                            outcome.problems.append(f"{fault.name}: {error}")
                            break
                        finally:
                            proxy.heal()
                        slowest = max(slowest, took)
                        done += 1
            await settle(outcome, direct, stream, loads)
            judge(outcome, loads)
    outcome.figures = {"faults": done, "slowest recovery s": round(slowest, 1), **outcome.figures}
    return outcome


async def suffer(
    outcome: Outcome,
    fault: Fault,
    proxy: FaultProxy,
    chance: Random,
    loads: tuple[Load, ...],
    asked: Callable[[], int],
) -> float:
    """One fault from before it to after it; the seconds from its end until all is well."""
    before, waiting = [load.counts for load in loads], asked()
    refused = [len(load.of(ReconnectFailed)) for load in loads]
    timeout = DEADLINE if fault.error else SLOW_FOR * 2
    flights = [asyncio.ensure_future(load.in_flight(timeout)) for load in loads]  # type: ignore[attr-defined]
    await eventually(lambda: asked() >= waiting + len(loads), DEADLINE)
    fault.strike(proxy, chance)
    if fault.error:
        await eventually(
            lambda: all(load.counts[0] > was[0] for load, was in zip(loads, before, strict=True)), DEADLINE
        )
        if fault.refuses:
            await eventually(
                lambda: all(
                    len(load.of(ReconnectFailed)) > was for load, was in zip(loads, refused, strict=True)
                ),
                DEADLINE,
            )
    else:
        await asyncio.sleep(SLOW_FOR)  # the fault itself: so long is it slow
    proxy.heal()
    healed = time.monotonic()
    for load, was, flight in zip(loads, before, flights, strict=True):
        place = f"{fault.name}, {load.api}"
        if fault.error:
            await eventually(lambda load=load: all_back(load), DEADLINE)  # type: ignore[misc]
            lost: Disconnected = load.of(Disconnected)[was[0]]
            outcome.require(type(lost.error).__name__ == fault.error, f"{place}: lost by {lost.error!r}")
        else:
            outcome.require(load.counts == was, f"{place}: lost by {load.events[-2:]}")
        outcome.require(not load.closed, f"{place}: closed for good")
        # Its own timeout, which began before the fault, is DEADLINE at most.
        async with asyncio.timeout(2 * DEADLINE):
            error = await flight
        expected = "ConnectionLost" if fault.error else "RequestTimeout"
        outcome.require(type(error).__name__ == expected, f"{place}: the request in flight got {error!r}")
        await lives(load)
    return time.monotonic() - healed


def all_back(load: Load) -> bool:
    """As often restored as lost, and no attempt under way."""
    lost, restored = load.counts
    return lost == restored


async def lives(load: Load) -> None:
    """New messages are acked and consumed, new requests answered."""
    acked, taken, answered = len(load.acked), len(load.taken), load.answered
    await eventually(
        lambda: len(load.acked) > acked + 3 and len(load.taken) > taken + 3 and load.answered > answered + 3,
        DEADLINE,
    )


async def settle(outcome: Outcome, direct: jetspark.Connection, stream: str, loads: tuple[Load, ...]) -> None:
    """What the loads left over belongs to them too: every acked message is there to be consumed."""
    for load in loads:
        consumer = await direct.jetstream().get_consumer(stream, load.api)
        until = time.monotonic() + DEADLINE
        while load.acked - load.taken and time.monotonic() < until:
            async for message in consumer.fetch(1000, expires=1):
                load.take(message)
                await message.ack()
        missing = load.acked - load.taken
        outcome.require(not missing, f"{load.api}: {len(missing)} acked messages were never delivered")


def judge(outcome: Outcome, loads: tuple[Load, ...]) -> None:
    errors: Counter[str] = Counter()
    for load in loads:
        errors += load.errors
        outcome.require(not load.late, f"{load.api}: past the deadline: {load.late[:5]}")
        outcome.require(not load.foreign, f"{load.api}: foreign exceptions: {load.foreign[:5]}")
        wrong = set(load.errors) - IN_FLIGHT
        outcome.require(not wrong, f"{load.api}: wrong classes of errors: {wrong}")
    outcome.figures["published"] = sum(len(load.acked) for load in loads)
    outcome.figures["acked lost"] = sum(len(load.acked - load.taken) for load in loads)
    outcome.figures["requests"] = sum(load.answered for load in loads)
    outcome.figures["reconnects"] = sum(load.counts[1] for load in loads)
    outcome.figures["errors of calls"] = "+".join(f"{count} {name}" for name, count in sorted(errors.items()))


ROW = Row(4, "proxy faults", run)


def test_f04() -> None:
    check(ROW)


def break_reconnect(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(OPTIONS, "reconnect", False)


def break_renewal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Router, "renewal", staticmethod(lambda sink: b""))


def break_requests(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RequestInbox, "link_lost", lambda self, error: None)


@pytest.mark.parametrize("defect", [break_reconnect, break_renewal, break_requests])
def test_the_row_finds_a_broken_client(monkeypatch: pytest.MonkeyPatch, defect: Any) -> None:
    defect(monkeypatch)
    monkeypatch.setattr(sys.modules[__name__], "DEADLINE", 2.0)
    monkeypatch.setattr(sys.modules[__name__], "FAULTS", [fault for fault in FAULTS if fault.name == "cut"])
    assert perform(ROW, Scale(full=False, seed=1)).problems
