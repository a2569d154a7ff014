"""``durable`` and ``releaseWorkQueue``: the query's progress, seen and felt on the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from jetspark import AckPolicy, ConsumerConfig, RetentionPolicy
from support.helpers import LIMIT, eventually_sync
from support.spark_helpers import Batches

if TYPE_CHECKING:
    from support.spark_helpers import Box


def test_a_durable_follows_the_query(box: Box) -> None:
    name = box.make(messages=10)
    rows = Batches()
    query = box.start(name, rows, startingPosition="earliest", durable="spark")
    # Also the last batch shows, although Spark commits a batch only when the next one begins.
    eventually_sync(lambda: len(rows.rows) == 10 or query.exception())
    info = eventually_sync(
        lambda: (one := box.js.get_consumer(name, "spark").cached_info).ack_floor.stream_seq == 10 and one, 60
    )
    assert info.num_pending == 0
    query.stop()
    box.fill(name, 5)
    # A consumer hears of new messages a moment after their acks.
    eventually_sync(lambda: box.js.get_consumer(name, "spark").cached_info.num_pending == 5)
    # The mirror decides nothing: moved back by hand, it is moved to where the query is.
    box.js.get_consumer(name, "spark").reset(3)
    box.drain(name, rows, durable="spark")
    assert rows.rows == list(range(1, 16))
    assert box.js.get_consumer(name, "spark").cached_info.ack_floor.stream_seq == 15


def test_interest_streams_keep_messages_until_the_query_committed_them(box: Box) -> None:
    name = box.make(retention=RetentionPolicy.INTEREST)
    rows = Batches()
    # The first run reads nothing and leaves the durable, which is the interest.
    box.drain(name, rows, durable="spark")
    box.fill(name, 6)
    assert box.js.get_stream(name).cached_info.state.messages == 6
    rows.fail_on = 1
    failed = box.start(name, rows, trigger={"availableNow": True}, durable="spark")
    with pytest.raises(StreamingQueryException, match="told to fail"):
        failed.awaitTermination(LIMIT)
    assert box.js.get_stream(name).cached_info.state.messages == 6
    rows.fail_on = None
    box.drain(name, rows, durable="spark")
    assert rows.rows == [1, 2, 3, 4, 5, 6]
    eventually_sync(lambda: box.js.get_stream(name).cached_info.state.messages == 0)


def test_work_queues_are_released_only_after_the_commit(box: Box) -> None:
    name = box.make(messages=8, retention=RetentionPolicy.WORK_QUEUE, allow_direct=True)
    options = {"startingPosition": "earliest", "releaseWorkQueue": "true", "maxMessagesPerTrigger": 5}
    rows = Batches()
    rows.fail_on = 1
    failed = box.start(name, rows, trigger={"availableNow": True}, **options)
    with pytest.raises(StreamingQueryException, match="told to fail"):
        failed.awaitTermination(LIMIT)
    assert rows.rows == [1, 2, 3, 4, 5]
    # Batch 0 is committed and gone, batch 1 failed and is still there.
    state = box.js.get_stream(name).cached_info.state
    assert (state.messages, state.first_seq) == (3, 6)
    rows.fail_on = None
    box.drain(name, rows, **options)
    assert rows.rows == [1, 2, 3, 4, 5, 6, 7, 8]
    assert box.js.get_stream(name).cached_info.state.messages == 0


def test_what_cannot_be_released_or_mirrored_is_an_error(box: Box) -> None:
    name = box.make(messages=1)
    query = box.start(name, Batches(), startingPosition="earliest", releaseWorkQueue="true")
    with pytest.raises(StreamingQueryException, match="is not a work queue"):
        query.awaitTermination(LIMIT)
    box.js.get_stream(name).create_consumer(ConsumerConfig(durable_name="blind", ack_policy=AckPolicy.NONE))
    query = box.start(name, Batches(), checkpoint="second", durable="blind")
    with pytest.raises(StreamingQueryException, match="can't show progress; choose another name"):
        query.awaitTermination(LIMIT)
