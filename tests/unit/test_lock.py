"""The lock of the development environment: complete, hashed, and what `make audit` says of a bad one."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("audit", ROOT / "tools" / "audit.py")
assert _spec is not None
assert _spec.loader is not None
audit: Any = importlib.util.module_from_spec(_spec)
sys.modules["audit"] = audit
_spec.loader.exec_module(audit)

GOOD = "0" * 64
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_dependency_is_locked_to_one_version_with_hashes() -> None:
    pins, problems = audit.read_lock((ROOT / "requirements.lock").read_text())
    assert problems == []
    assert audit.unfit(pins, PROJECT) == []
    assert len(pins) > 60


def test_no_index_is_named() -> None:
    """Where packages come from is the business of who installs them."""
    for name in ("requirements.lock", "Makefile", "tools/setup.sh", "tools/lock.sh", "pyproject.toml"):
        text = (ROOT / name).read_text()
        assert "index-url" not in text
        assert "://" not in text, name


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (f"a>=1 --hash=sha256:{GOOD}", "a is not pinned"),
        (f"a==1.* --hash=sha256:{GOOD}", "a is not pinned"),
        ("a==1", "a has 0 good hashes of 0"),
        ("a==1 --hash=sha256:123", "a has 0 good hashes of 1"),
        (f"a==1 --hash=md5:{GOOD}", "a has 0 good hashes of 1"),
        (f"a==1 --hash=sha256:{GOOD} \\\n    --hash=sha256:{GOOD}0", "a has 1 good hashes of 2"),
    ],
)
def test_what_a_lock_must_not_hold(entry: str, problem: str) -> None:
    assert [found for found in audit.read_lock(entry)[1] if problem in found]


def test_a_dependency_that_is_not_locked_or_too_old() -> None:
    pins, _ = audit.read_lock(f"msgspec==0.1 --hash=sha256:{GOOD}")
    problems = audit.unfit(pins, PROJECT)
    assert "msgspec>=0.19 of pyproject.toml, but 0.1 is locked: make lock" in problems
    assert "nkeys>=0.2.1 of pyproject.toml is not locked: make lock" in problems


def test_an_environment_that_differs() -> None:
    lock = f"a==1 --hash=sha256:{GOOD}\nb==2 ; sys_platform == 'nowhere' --hash=sha256:{GOOD}\nc==3"
    pins, _ = audit.read_lock(lock)
    assert audit.differing(pins, {"a": "1", "c": "3", "jetspark": "0", "setuptools": "5"}, "jetspark") == []
    problems = audit.differing(pins, {"a": "2", "b": "2", "jetspark": "0"}, "jetspark")
    assert problems == [
        "a 1 is locked, 2 is installed: make setup",
        "c 3 is locked, nothing is installed: make setup",
        "b 2 is installed and not locked",
    ]
