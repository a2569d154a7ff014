"""More restarts from a checkpoint, beside test_restart.py: the right rows or a named error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from support.helpers import LIMIT, eventually_sync
from support.spark_helpers import Batches

if TYPE_CHECKING:
    from pathlib import Path

    from support.spark_helpers import Box


def fail_batch(box: Box, name: str, rows: Batches, number: int, **options: object) -> None:
    """Run until the micro-batch that is told to fail: it is in the log, and not committed."""
    rows.fail_on = number
    query = box.start(name, rows, trigger={"availableNow": True}, **options)
    with pytest.raises(StreamingQueryException, match="told to fail"):
        query.awaitTermination(LIMIT)
    rows.fail_on = None


def log_entry(folder: Path, log: str, number: int) -> Path:
    return folder / "checkpoint" / log / str(number)


def remove(path: Path) -> None:
    path.unlink()
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def test_after_a_clean_stop_of_a_running_query(box: Box) -> None:
    name = box.make(messages=5)
    rows = Batches()
    query = box.start(name, rows, startingPosition="earliest")
    eventually_sync(lambda: len(rows.rows) == 5)
    box.fill(name, 5)
    eventually_sync(lambda: len(rows.rows) == 10)
    query.stop()
    box.fill(name, 5)
    box.drain(name, rows, startingPosition="latest")
    assert rows.rows == list(range(1, 16))


def test_batch_0_that_failed_keeps_the_latest_it_began_at(box: Box) -> None:
    name = box.make(messages=5)
    rows = Batches()
    rows.fail_on = 0
    query = box.start(name, rows, startingPosition="latest")
    # Only what comes after the start counts; when that was, the offset in the log says.
    eventually_sync(lambda: box.fill(name, 1) or query.exception())
    last = box.js.get_stream(name).info().state.last_seq
    rows.fail_on = None
    box.fill(name, 3)
    box.drain(name, rows, startingPosition="latest")
    assert rows.rows[0] >= 6, "messages from before the start"
    assert rows.rows == list(range(rows.rows[0], last + 4))


def test_a_failed_batch_is_replayed_with_its_rows_under_changed_options(box: Box) -> None:
    name = box.make(messages=6)
    rows = Batches()
    fail_batch(box, name, rows, 1, startingPosition="earliest", maxMessagesPerTrigger=3)
    box.fill(name, 4, subject="y")
    box.drain(name, rows, maxMessagesPerTrigger=100, minPartitions=3, subjects=f"{name}.y")
    # Batch 1 was planned without a filter and for three messages; the options hold for what comes next.
    assert rows.by_id == {0: [1, 2, 3], 1: [4, 5, 6], 2: [7, 8, 9, 10]}


def test_a_planned_range_that_is_purged_before_its_replay(box: Box) -> None:
    name = box.make(messages=6)
    rows = Batches()
    fail_batch(box, name, rows, 1, startingPosition="earliest", maxMessagesPerTrigger=3)
    box.js.get_stream(name).purge(seq=6)
    query = box.start(name, rows, trigger={"availableNow": True}, maxMessagesPerTrigger=3)
    with pytest.raises(StreamingQueryException, match=r"messages 4 to 5 \(2 sequences\) were purged"):
        query.awaitTermination(LIMIT)
    box.drain(name, rows, failOnDataLoss="false", maxMessagesPerTrigger=3)
    assert rows.by_id == {0: [1, 2, 3], 1: [6]}


def test_a_planned_range_of_a_stream_that_was_recreated(box: Box) -> None:
    name = box.make(messages=6)
    rows = Batches()
    fail_batch(box, name, rows, 1, startingPosition="earliest", maxMessagesPerTrigger=3)
    box.js.delete_stream(name)
    box.make(name, messages=6)
    query = box.start(name, rows, trigger={"availableNow": True})
    with pytest.raises(StreamingQueryException, match="was deleted and created again"):
        query.awaitTermination(LIMIT)
    assert rows.by_id == {0: [1, 2, 3]}
    # Nothing of the old batch can be read any more; the new stream is read from its beginning, not from 4.
    box.drain(name, rows, failOnDataLoss="false")
    assert rows.rows == [1, 2, 3, *range(1, 7)]


def test_a_commit_that_was_lost_replays_its_batch_and_no_other(box: Box) -> None:
    name = box.make(messages=6)
    rows = Batches()
    box.drain(name, rows, startingPosition="earliest", maxMessagesPerTrigger=3)
    remove(log_entry(box.folder, "commits", 1))
    again = Batches()
    box.fill(name, 2)
    box.drain(name, again, startingPosition="earliest", maxMessagesPerTrigger=3)
    assert again.by_id == {1: [4, 5, 6], 2: [7, 8]}


def test_another_stream_under_the_old_checkpoint_begins_at_its_beginning(box: Box) -> None:
    first, second = box.make(messages=3), box.make(messages=4)
    rows = Batches()
    box.drain(first, rows, startingPosition="earliest")
    # As a stream that joined later; a starting position of 'latest' would lose its rows without a word.
    box.drain(second, rows, startingPosition="latest")
    assert rows.rows == [1, 2, 3, 1, 2, 3, 4]


def test_an_empty_offset_file_is_an_error(box: Box) -> None:
    name = box.make(messages=3)
    rows = Batches()
    box.drain(name, rows, startingPosition="earliest")
    entry = log_entry(box.folder, "offsets", 0)
    remove(entry)
    entry.write_text("")
    query = box.start(name, rows, trigger={"availableNow": True}, startingPosition="earliest")
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(LIMIT)
    assert rows.rows == [1, 2, 3]
