"""Exactly once under SIGKILL, the short form of one scenario; `make exactly-once` runs all, at length."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, ClassVar

import pytest

from exactly_once.harness import prove
from exactly_once.scenario import Scenario
from exactly_once.scenarios import SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from jetspark import blocking


@pytest.mark.spark
# Three starts of Spark, on a machine that may be busy.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["queries"])
def test_every_message_once_whatever_is_killed(name: str) -> None:
    seed = int(os.environ.get("FAULT_SEED") or 1)
    outcome = prove(SCENARIOS[name], messages=10_000, kills=2, seed=seed, trigger=3000)
    assert outcome.problems == [], f"FAULT_SEED={seed}"
    assert sum(outcome.kills.values()) == 2


class OtherQueries(Scenario):
    """Each life has another query, and the first one dies as on a busy machine. There is no Spark."""

    name: ClassVar[str] = "other-queries"
    about: ClassVar[str] = "for the harness"
    _life = 0

    def checkpoints(self) -> Mapping[str, Path]:
        return {f"query {self._life}": self.run.folder / str(self._life)}

    def command(self, life: int, *, finish: bool) -> list[str]:
        self._life = life
        work = "import os, signal; os.makedirs('{0}/commits'); open('{0}/commits/0', 'w'); signal.pause()"
        die = "raise SystemExit('failed to connect back')"
        return [sys.executable, "-c", "" if finish else work.format(life) if life else die]

    def check(self, js: blocking.JetStream, said: str) -> list[str]:
        return [f"{self._life + 1} lives"]


def test_a_life_may_have_other_queries_than_the_one_before() -> None:
    outcome = prove(OtherQueries, messages=10, kills=1, seed=1)
    # One that died by itself, one that was killed, and the last.
    assert (dict(outcome.kills), outcome.problems) == ({"python": 1}, ["3 lives"])
