"""Exactly once under SIGKILL, the short form; `python tests/exactly_once.py` is the long one."""

from __future__ import annotations

import os

import pytest

from exactly_once import prove


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_every_message_once_whatever_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("FAULT_SEED") or 1)
    outcome = prove(messages=10_000, kills=2, seed=seed, trigger=3000)
    assert outcome.problems == [], f"FAULT_SEED={seed}"
    assert sum(outcome.kills.values()) == 2
