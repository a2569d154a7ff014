"""docs/conformance.md: every requirement names tests, each of them exists, every deviation is explained."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "conformance.md").read_text()
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")
_MARK = re.compile(r"\[(\d+)\]")
HEADS = [
    "## JetStream Simplification (ADR-37, revision 2)",
    "## Pull subscribe internals (ADR-13)",
    "## Consumers (reference)",
    "## JetStream subscribe workflow (ADR-15)",
    "## JetStream Simplification (ADR-37, first revision)",
    "## Where we differ, and why",
]
# The rows of the reference's three tables; each must have a row of its own here.
FIELDS = [
    "Durable",
    "FilterSubject",
    "AckWait",
    "OptStartSeq",
    "OptStartTime",
    "Description",
    "InactiveThreshold",
    "MaxAckPending",
    "MaxDeliver",
    "Backoff",
    "ReplayPolicy",
    "Replicas",
    "MemoryStorage",
    "SampleFrequency",
    "Metadata",
    "FilterSubjects",
    "AckPolicy",
    "DeliverPolicy",
    "MaxWaiting",
    "MaxRequestExpires",
    "MaxRequestBatch",
    "MaxRequestMaxBytes",
    "DeliverSubject",
    "DeliverGroup",
    "FlowControl",
    "IdleHeartbeat",
    "RateLimit",
    "HeadersOnly",
]


def section(head: str) -> str:
    """The text below a heading."""
    return PAGE.split(head + "\n", 1)[1].split("\n## ", 1)[0]


def rows(text: str) -> list[list[str]]:
    """The cells of every row of the tables in it, without heads and rulers."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "section" and set(row[0]) != {"-"}]


@cache
def names_in(path: str) -> frozenset[str]:
    """What pytest would find there: functions, Class::methods, and names of classes."""
    found: set[str] = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found.add(node.name)
            found |= {
                f"{node.name}::{member.name}"
                for member in node.body
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        elif isinstance(node, ast.Assign):
            # State machines of hypothesis: TestMessages = PullMachine.TestCase
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(name for name in found if name.lower().startswith("test"))


def test_the_page_has_its_sections() -> None:
    assert [line for line in PAGE.splitlines() if line.startswith("## ")] == HEADS
    for head in HEADS[:-1]:
        assert rows(section(head)), head


def test_every_test_that_is_named_exists() -> None:
    named = set(_NAMED.findall(PAGE))
    assert len(named) > 200
    missing = sorted(
        f"{path}::{name}" for path, name in named if not (ROOT / path).is_file() or name not in names_in(path)
    )
    assert missing == []


@pytest.mark.parametrize("head", HEADS[:-1])
def test_every_requirement_has_a_test_and_a_tick(head: str) -> None:
    found = rows(section(head))
    assert found
    for row in found:
        place, requirement, shown, tick = row
        assert place, row
        assert requirement, row
        # Nothing but names of tests in that cell.
        assert _NAMED.findall(shown), row
        assert not _NAMED.sub("", shown).replace("<br>", "").strip(), row
        assert tick == "✓", row


def test_every_field_of_the_reference_has_a_row() -> None:
    found = {row[0] for row in rows(section("## Consumers (reference)"))}
    assert [field for field in FIELDS if field not in found] == []


def test_every_deviation_is_explained_and_no_explanation_is_left_over() -> None:
    explained = re.findall(r"^(\d+)\. ", section(HEADS[-1]), re.MULTILINE)
    marked = {mark for head in HEADS[:-1] for row in rows(section(head)) for mark in _MARK.findall(row[1])}
    assert sorted(marked, key=int) == explained
    assert explained == [str(number) for number in range(1, len(explained) + 1)]
