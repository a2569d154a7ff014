"""F7: random sequences of publish, fetch, consume, ack, nak, term, drain, stop, cuts and restarts.

What a work consumer delivers is compared with a model of what it owes: tests/support/work_model.py has the
rules.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import ExitStack

from jetspark.server import Server
from support.fault_table import Outcome, Row, Scale, check
from support.work_sequences import Host, Sequence


async def run(scale: Scale) -> Outcome:
    chance = scale.chance()
    seeds = [chance.randrange(1_000_000_000) for _ in range(scale.pick(16, 500))]
    played: list[Sequence] = []
    logger = logging.getLogger("jetspark")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # faults are what this is about
    try:
        with ExitStack() as stack:
            hosts = [
                Host(stack.enter_context(Server(name="model")), at_rest=bool(number % 2))
                for number in range(scale.pick(2, 4))
            ]

            async def lane(host: Host) -> None:
                while seeds:
                    sequence = Sequence(host, seeds.pop())
                    await sequence.play()
                    played.append(sequence)

            await asyncio.gather(*(lane(host) for host in hosts for _ in range(scale.pick(8, 10))))
    finally:
        logger.setLevel(level)
    return judge(played, sum(len(host.restarts) // 2 for host in hosts))


def judge(played: list[Sequence], restarts: int) -> Outcome:
    steps: Counter[str] = Counter()
    problems = []
    for sequence in played:
        steps += sequence.steps
        if sequence.mismatches:
            problems.append(f"sequence {sequence.seed}: {sequence.mismatches[:3]}")
            print(f"sequence {sequence.seed}: {sequence.mismatches}")
            print("\n".join(sequence.trace[-80:]))
    figures = {
        "sequences": len(played),
        "steps": steps.total() - steps["delivery"] - steps["unanswered"],
        "published": sum(sequence.model.stored for sequence in played),
        "deliveries": steps["delivery"],
        "cuts": steps["cut"],
        "restarts": restarts,
        "drains": steps["drain_connection"],
        "fetches without an answer": steps["unanswered"],
        "mismatches": sum(len(sequence.mismatches) for sequence in played),
    }
    fetches = steps["fetch"] + steps["fetch_owed"]
    if steps["unanswered"] * 10 > fetches:
        problems.insert(0, f"{steps['unanswered']} of {fetches} fetches had no answer")
    return Outcome(figures=figures, problems=problems[:10])


ROW = Row(7, "random sequences against a model", run, minutes=8)


def test_f07() -> None:
    check(ROW)
