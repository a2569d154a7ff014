"""docs/spark.md, 'In threads': the code as it stands there, and a micro-batch that is repeated."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.helpers import LIMIT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from support.spark_helpers import Box

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def blocks() -> list[str]:
    section = PAGE.read_text().split("### In threads", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"```python\n(.*?)```", section, re.S)


def test_a_plain_write_in_a_thread(box: Box) -> None:
    box.make("TOTALS")
    rows = box.spark.range(5).selectExpr("'TOTALS.x' AS subject", "string(id) AS data")
    names = {"spark": box.spark, "df": rows, "url": box.url}
    with ThreadPoolExecutor() as pool:
        pool.submit(exec, blocks()[0], names).result(LIMIT)
    assert box.js.get_stream("TOTALS").cached_info.state.messages == 5


def test_the_threads_of_the_docs_store_each_row_once(box: Box) -> None:
    source = box.make()
    targets = {name: box.make(name) for name in ("EU", "US")}
    bodies = [json.dumps({"n": n, "region": ("eu", "us")[n % 2]}).encode() for n in range(20)]
    box.fill(source, bodies)
    names: dict[str, Any] = {"url": box.url}
    exec(blocks()[1], names)
    fail = True

    def twice(batch: DataFrame, batch_id: int) -> None:
        """The micro-batch fails after its rows are stored, and Spark runs it again with the next start."""
        names["spread"](batch, batch_id)
        if fail:
            raise RuntimeError("after the write")

    rows = box.read_stream(source, startingPosition="earliest").selectExpr(
        "upper(get_json_object(string(data), '$.region')) || '.x' AS subject",
        "data",
        "get_json_object(string(data), '$.region') AS region",
    )
    for fail in (True, False):
        query = (
            rows.writeStream.foreachBatch(twice)
            .option("checkpointLocation", str(box.folder / "threads"))
            .trigger(availableNow=True)
            .start()
        )
        if fail:
            with pytest.raises(Exception, match="after the write"):
                query.awaitTermination(LIMIT)
        else:
            assert query.awaitTermination(LIMIT)
    stored = {
        name: sorted(json.loads(one.data)["n"] for one in box.js.get_stream(name).get_msgs(seq=1))
        for name in targets
    }
    assert stored == {"EU": list(range(0, 20, 2)), "US": list(range(1, 20, 2))}
