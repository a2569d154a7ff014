"""Writing behind a real Spark Connect server, where tasks are not told their query and micro-batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import StartServer

JOB = Path(__file__).parent / "connect_job.py"


@pytest.mark.spark
def test_update_mode_and_foreach_batch_write_each_row_once(start_server: StartServer, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(JOB), start_server().url, str(tmp_path), "update", "foreach"],
        # A port of its own: Spark Connect has one for all otherwise.
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_TESTING": "1"},
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith(("result", "update", "foreach"))]
    assert lines == [
        "result: 1 rows, 1 stored, 0 duplicates, 0 dead letters, 0 sent again, 1 bytes, streams: OUT",
        "update 0 on: 5 on",
        "update 0 again: 5 on",
        "update 1 off: 10 off",
        "update 1 again: 10 off",
        # Rows equal to those of micro-batch 0: they were dropped as duplicates of these.
        "update 2 on: 15 on",
        "update 2 again: 15 on",
        "update other query: 20",
        "foreach unnamed: refused True, 0",
        "foreach prefixed: refused True, 0",
        "foreach named: failed True, 30",
        "foreach named again: 30",
    ]
