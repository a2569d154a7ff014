"""Runs commands that it reads from stdin, one JSON list a line, in this process: one Spark for many pipes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pyspark.sql import SparkSession

from support.cli_runner import inside

if __name__ == "__main__":
    # The session stays for the next command. That it is stopped is seen where a process runs one pipe.
    SparkSession.stop = lambda spark: None  # type: ignore[method-assign]
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        ran = inside(dict(os.environ), *json.loads(line))
        answers.write(json.dumps([ran.code, ran.out, ran.err]) + "\n")
        answers.flush()
