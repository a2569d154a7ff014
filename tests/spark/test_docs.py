"""docs/spark.md lists the options that the code knows, neither more nor fewer, with the right defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jetspark.spark.options import CONNECTION_OPTIONS, SINK_OPTIONS, SOURCE_OPTIONS
from jetspark.spark.sink import options as sink_options
from jetspark.spark.source import options as source_options

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def table(heading: str) -> dict[str, str]:
    """Option to default, of the table under a heading."""
    section = re.split(r"^#{2,3} ", PAGE.read_text().split(f"### {heading}", 1)[1], maxsplit=1, flags=re.M)[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| .* ?\|$", section, re.M)
    assert len(dict(rows)) == len(rows), "an option stands twice"
    return dict(rows)


@pytest.mark.parametrize(
    ("heading", "options"),
    [("Connection", CONNECTION_OPTIONS), ("Source", SOURCE_OPTIONS), ("Sink", SINK_OPTIONS)],
)
def test_the_tables_list_the_options_of_the_code(heading: str, options: tuple[str, ...]) -> None:
    assert list(table(heading)) == list(options)


def test_the_defaults_are_those_of_the_code() -> None:
    source, sink = table("Source"), table("Sink")
    assert source["maxMessagesPerPartition"] == f"`{source_options.DEFAULT_MESSAGES_PER_PARTITION}`"
    assert source["recordBatchRows"].startswith(f"`{source_options.DEFAULT_BATCH_ROWS}`")
    assert source["bufferMessages"].startswith(f"`{source_options.DEFAULT_BUFFER}`")
    assert source["maxTriggerDelay"].startswith(f"`{source_options.DEFAULT_TRIGGER_DELAY / 60:g} minutes`")
    assert sink["window"].startswith(f"`{sink_options.DEFAULT_WINDOW}`")
    assert sink["ackTimeout"].startswith(f"`{sink_options.DEFAULT_ACK_TIMEOUT:g} seconds`")
    assert sink["requiredDuplicateWindow"] == f"`{sink_options.DEFAULT_DUPLICATE_WINDOW / 60:g} minutes`"


def test_links_of_the_page_lead_somewhere() -> None:
    text = PAGE.read_text()
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert targets
    for target in targets:
        if target.startswith("#"):
            assert target[1:] in headings
        else:
            assert (PAGE.parent / target).exists(), target
