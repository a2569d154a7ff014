"""Exactly once under SIGKILL, the short form; `python tests/exactly_once.py` is the long one."""

from __future__ import annotations

import os
import random

import pytest

from exactly_once import prove


@pytest.mark.xdist_group("spark-processes")
@pytest.mark.timeout(400)
def test_every_message_once_whatever_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("EXACTLY_ONCE_SEED") or random.SystemRandom().randrange(1_000_000))
    outcome = prove(messages=10_000, kills=2, seed=seed, trigger=3000)
    print(f"seed {seed}")
    assert outcome.problems == [], f"EXACTLY_ONCE_SEED={seed}"
    assert sum(outcome.kills.values()) == 2
