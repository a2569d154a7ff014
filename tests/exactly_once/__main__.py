"""`python tests/exactly_once [SCENARIO ...] [--messages N] [--kills N] [--seed N] [--control] [--list]`."""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import exactly_once
from exactly_once.harness import prove
from exactly_once.scenarios import SCENARIOS
from support import quick_spark


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="exactly-once", description=exactly_once.__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("scenario", nargs="*", help=f"default: all of {', '.join(SCENARIOS)}")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--control", action="store_true", help="add a copy without ids, if there is one")
    parser.add_argument("--list", action="store_true", help="name the scenarios and exit")
    given = parser.parse_args()
    if given.list:
        for name, kind in SCENARIOS.items():
            print(f"{name:12} {kind.about}")
        return 0
    unknown = [name for name in given.scenario if name not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    print(f"seed {given.seed}", flush=True)
    quick_spark.prepare()  # each life starts a Spark
    os.environ.update(quick_spark.environment())
    failed = []
    for name in given.scenario or SCENARIOS:
        print(f"{name}: {SCENARIOS[name].about}", flush=True)
        outcome = prove(
            SCENARIOS[name],
            messages=given.messages,
            kills=given.kills,
            seed=given.seed,
            control=given.control,
            say=lambda text: print(text, flush=True),
        )
        print(
            f"{name}: {sum(outcome.kills.values())} kills ({dict(outcome.kills)}), {outcome.inside} inside a "
            f"micro-batch, {given.messages} messages, {outcome.seconds:.0f} s, seed {outcome.seed}"
        )
        for problem in outcome.problems:
            print("PROBLEM " + problem)
        print(f"{name}: " + ("FAILED" if outcome.problems else "each message exactly once"), flush=True)
        failed += [name] if outcome.problems else []
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
