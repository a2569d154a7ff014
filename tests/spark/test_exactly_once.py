"""Exactly once under SIGKILL, the short form of one scenario; `make exactly-once` runs all, at length."""

from __future__ import annotations

import os

import pytest

from exactly_once.harness import prove
from exactly_once.scenarios import SCENARIOS


@pytest.mark.spark
# Three starts of Spark, on a machine that may be busy.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["queries"])
def test_every_message_once_whatever_is_killed(name: str) -> None:
    seed = int(os.environ.get("FAULT_SEED") or 1)
    outcome = prove(SCENARIOS[name], messages=10_000, kills=2, seed=seed, trigger=3000)
    assert outcome.problems == [], f"FAULT_SEED={seed}"
    assert sum(outcome.kills.values()) == 2
