"""TESTING.md names tests, folders, commands, marks and variables; each of them has to exist."""

from __future__ import annotations

import ast
import re
import tomllib
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


def test_every_folder_of_tests_is_described() -> None:
    folders = {path.parent.relative_to(ROOT).parts[1] for path in ROOT.glob("tests/*/**/test_*.py")}
    described = re.findall(r"^\| `tests/(\w+)` \|", (ROOT / "TESTING.md").read_text(), re.MULTILINE)
    assert sorted(described) == sorted(folders)


def test_every_command_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in ("TESTING.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"(?:`|^)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE))
        assert named <= targets, page


def test_marks_are_those_that_pytest_knows() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    known = {line.partition(":")[0] for line in settings["markers"]}
    described = (ROOT / "TESTING.md").read_text().partition("## Marks")[2].partition("## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", described, re.MULTILINE)) == known


def test_every_variable_is_read_somewhere() -> None:
    described = (ROOT / "TESTING.md").read_text().partition("## Environment variables")[2].partition("## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", described, re.MULTILINE)
    assert named
    code = "".join(path.read_text() for folder in ("tests", "src") for path in (ROOT / folder).rglob("*.py"))
    assert [name for name in named if f'"{name}"' not in code] == []
