"""A Spark that starts quickly, for tests: they start it often, run it for seconds, and give it few rows.

A folder that stands for Spark's own, with two differences. Its defaults switch off what pays back only over
hours. And it has no ``pyspark.zip``, which Spark puts first in the path of each of its Python processes and
which holds no byte code: without it they import the same files as installed, in a third of the time.
"""

from __future__ import annotations

from pathlib import Path

import pyspark

DEFAULTS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Without Hadoop's native code the default one runs the programs chmod and readlink for each file.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def spark_home(folder: Path) -> Path:
    """Make it; the environment variable SPARK_HOME then has to name it."""
    original = Path(pyspark.__file__).parent
    for name in ("bin", "jars", "sbin"):
        (folder / name).symlink_to(original / name)
    (folder / "conf").mkdir()
    lines = [f"{name} {value}\n" for name, value in DEFAULTS.items()]
    (folder / "conf" / "spark-defaults.conf").write_text("".join(lines))
    return folder
