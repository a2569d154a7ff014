"""TESTING.md names tests; each of them has to exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_FILE = re.compile(r"`(tests/[\w/]+(?:\.py)?)`")


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def test_every_test_that_testing_md_names_exists() -> None:
    named = _NAMED.findall((ROOT / "TESTING.md").read_text())
    assert len(named) > 100
    missing = sorted(
        f"{path}::{name}"
        for path, name in set(named)
        if not (ROOT / path).is_file() or name not in names_in(path)
    )
    assert missing == []


def test_every_file_and_folder_that_testing_md_names_exists() -> None:
    named = set(_FILE.findall((ROOT / "TESTING.md").read_text()))
    assert named
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_every_row_is_ticked_or_says_why_not() -> None:
    rows = [line for line in (ROOT / "TESTING.md").read_text().splitlines() if line.startswith("| `Test")]
    assert rows
    for row in rows:
        _, mark, ours = (cell.strip() for cell in row.strip("|").split("|"))
        assert mark in ("✓", "n/a"), row
        assert bool(_NAMED.search(ours)) == (mark == "✓"), row
        assert ours, row
