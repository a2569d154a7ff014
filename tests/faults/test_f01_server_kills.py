"""F1: kill -9 of a server, again and again, under publishes with ids and a consume with acks."""

from __future__ import annotations

import asyncio
import json
import random
import time
import urllib.request

from jetspark.server import Server
from support.fault_table import Outcome, Row, Scale, check
from support.fault_workload import Workload, audit, within
from support.helpers import unique


async def server_kills(
    seed: int, *, kills: int, messages: int, patience: float = 30.0, ack_timeout: float = 30.0
) -> Outcome:
    """``patience``: how long a recovery and the final rest may take before they count as stuck."""
    chance, outcome = random.Random(seed), Outcome()
    share = messages // kills
    recoveries = []
    with Server(name="f1") as server:
        work = Workload(server.url, unique("F1"), limit=share, ack_timeout=ack_timeout)
        ledger = work.ledger
        await work.start()
        for number in range(kills):
            # In the middle of a share, so that there is more to publish when the server dies.
            struck = asyncio.Event()
            ledger.when_acked(number * share + chance.randrange(share // 4, 3 * share // 4), struck.set)
            try:
                await asyncio.wait_for(struck.wait(), max(patience, 30.0))
            except TimeoutError:
                outcome.problems.append(f"publishing stands still before kill {number + 1}: {ledger.state}")
                break
            work.limit += share
            # The moment decides what is lost: publishes on their way in, or acks on their way out. Every
            # other time it is certainly the acks.
            wire_dead = number % 2 == 0
            if wire_dead:
                await _lose_acks(server, work, patience, outcome)
            else:
                await asyncio.sleep(chance.random() * 0.02)
            ledger.mark()
            server.kill()
            if wire_dead:
                work.nc._core.link._transport.abort()
            ledger.struck()
            await asyncio.to_thread(server.restart)
            if not await within(patience, ledger.recovered):
                outcome.problems.append(f"no recovery from kill {number + 1}: {ledger.state}")
                break
            recoveries.append(ledger.recovery())
        else:
            await within(patience, lambda: len(ledger.acked) >= messages)
        await work.finish(patience, outcome)
        reconnects, stats = work.nc.stats.reconnects, work.publisher.stats
        stored = await audit(server.url, work.name, ledger, outcome)
    outcome.require(stats.failed == 0, f"the publisher counts {stats.failed} failures")
    outcome.require(len(ledger.acked) >= messages, f"only {len(ledger.acked)} of {messages} were acked")
    outcome.require(stored == len(ledger.acked), f"{stored} are stored and {len(ledger.acked)} were acked")
    outcome.require(reconnects == len(recoveries), f"{reconnects} reconnects after {len(recoveries)} kills")
    # Otherwise the kills met nothing in flight, and the row would show nothing.
    outcome.require(stats.duplicates > 0, "no message that was stored had to be sent again")
    outcome.figures = {
        "kills": len(recoveries),
        "published": ledger.issued,
        "acked": len(ledger.acked),
        "stored": stored,
        "sent again": stats.resent,
        "duplicates refused": stats.duplicates,
        "processed": len(ledger.processed),
        "delivered again": ledger.again,
        "slowest recovery s": round(max(recoveries, default=0.0), 1),
        "errors shown by js.publish": dict(ledger.shown),
        "warnings of consume": dict(ledger.warned),
    }
    return outcome


async def _lose_acks(server: Server, work: Workload, patience: float, outcome: Outcome) -> None:
    """The wire to us goes dead, and the server stores what we never hear of."""
    work.nc._core.link._transport.pause_reading()
    deadline = time.monotonic() + patience
    while await asyncio.to_thread(_stored, server, work.name) < len(work.ledger.acked) + 100:
        if time.monotonic() > deadline:
            outcome.problems.append(f"nothing was in flight: {work.ledger.state}")
            return


def _stored(server: Server, stream: str) -> int:
    with urllib.request.urlopen(f"{server.http_url}/jsz?accounts=true&streams=true", timeout=15) as answer:
        accounts = json.load(answer)["account_details"]
    return sum(
        one["state"]["messages"]
        for account in accounts
        for one in account["stream_detail"]
        if one["name"] == stream
    )


async def run(scale: Scale) -> Outcome:
    return await server_kills(scale.seed, kills=scale.pick(4, 50), messages=scale.pick(8_000, 120_000))


ROW = Row(1, "kill -9 of a file-store server under publish and consume", run, minutes=10)


def test_f01() -> None:
    check(ROW)
