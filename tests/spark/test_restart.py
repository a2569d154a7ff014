"""Restarts from a checkpoint: the same rows once, or a named error; never a silent restart."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from support.helpers import LIMIT
from support.spark_helpers import Batches

if TYPE_CHECKING:
    from pathlib import Path

    from support.spark_helpers import Box


def failure(box: Box, stream: str, **options: Any) -> str:
    """The text of the error that a run to the end dies of."""
    query = box.start(stream, Batches(), trigger={"availableNow": True}, **options)
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(LIMIT)
    return str(caught.value)


def offsets(folder: Path) -> Path:
    """The last offset in the checkpoint's log."""
    return max((folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))


def rewrite(path: Path, change: Any) -> None:
    """Change the source's offset in an entry of the log, and the commit that says it was done."""
    lines = path.read_text().splitlines()
    lines[-1] = change(lines[-1])
    path.write_text("\n".join(lines))
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def test_batch_0_that_failed_is_replayed_as_it_was_planned(box: Box) -> None:
    name = box.make(messages=5)
    rows = Batches()
    rows.fail_on = 0
    query = box.start(name, rows, trigger={"availableNow": True}, startingTime="-1 hour")
    with pytest.raises(StreamingQueryException, match="told to fail"):
        query.awaitTermination(LIMIT)
    # Now 'an hour ago' and the stream's beginning are elsewhere, and there is more.
    box.fill(name, 5)
    rows.fail_on = None
    box.drain(name, rows, startingPosition="latest")
    assert rows.by_id[0] == [1, 2, 3, 4, 5]
    assert rows.rows == list(range(1, 11))


def test_changed_options_apply_to_what_comes_next(box: Box) -> None:
    name = box.make(messages=5)
    rows = Batches()
    box.drain(name, rows, startingPosition="earliest")
    box.fill(name, 4)
    box.fill(name, 2, subject="y")
    # A starting position means nothing once there is a checkpoint; limits and filters do.
    box.drain(name, rows, startingSequence=3, maxMessagesPerTrigger=3, subjects=f"{name}.y")
    assert rows.rows == [1, 2, 3, 4, 5, 10, 11]
    assert sorted(rows.by_id) == [0, 1, 2]


def test_a_recreated_stream_is_not_taken_for_the_old_one(box: Box) -> None:
    name = box.make(messages=5)
    rows = Batches()
    box.drain(name, rows, startingPosition="earliest")
    box.js.delete_stream(name)
    box.make(name, messages=9)
    text = failure(box, name)
    assert "was deleted and created again" in text
    assert "failOnDataLoss=false to read the new stream from its beginning" in text
    box.drain(name, rows, failOnDataLoss="false")
    assert rows.rows == [1, 2, 3, 4, 5, *range(1, 10)]


def test_a_purged_range_is_named_and_may_be_skipped(box: Box) -> None:
    name = box.make(messages=5)
    rows = Batches()
    box.drain(name, rows, startingPosition="earliest")
    box.fill(name, 10)
    box.js.get_stream(name).purge(seq=12)
    text = failure(box, name)
    assert "messages 6 to 11 (6 sequences) were purged or have expired" in text
    assert "failOnDataLoss=false" in text
    box.drain(name, rows, failOnDataLoss="false")
    assert rows.rows == [1, 2, 3, 4, 5, 12, 13, 14, 15]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda text: json.dumps({**json.loads(text), "version": 99}),
            "has version 99, this jetspark reads up to 1",
        ),
        (lambda text: text.replace('"next"', '"nxet"'), "in the checkpoint is damaged"),
        (lambda text: text[:-5], "JSONDecodeError"),
    ],
    ids=["newer", "damaged", "cut"],
)
def test_an_offset_that_cannot_be_used_is_an_error(box: Box, change: Any, words: str) -> None:
    name = box.make(messages=5)
    box.drain(name, Batches(), startingPosition="earliest")
    rewrite(offsets(box.folder), change)
    assert words in failure(box, name, startingPosition="earliest")
