"""A Spark that starts quickly, for tests: they start it often, run it for seconds, and give it few rows.

A folder that stands for Spark's own, with these differences:

- Its settings switch off what pays back only over hours.
- It has no ``pyspark.zip``, which Spark puts first in the path of each of its Python processes and which
  holds no byte code: without it they import the same files as installed, in a third of the time.
- Where it was prepared (`tools/run_tests.py` does that before a whole run), the JVM maps Spark's classes from
  an archive (class data sharing) instead of reading and verifying them: half of the work of a start.
  An archive holds for one class path, so the folder lies in the virtual environment and everybody shares it.

The settings are Java options and not a file, because an archive allows no files in ``conf``.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Without Hadoop's native code the default one runs the programs chmod and readlink for each file.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
TRAINING = Path(__file__).with_name("quick_spark_training.py")


def environment() -> dict[str, str]:
    """The variables with which everything that starts a Spark starts the quick one."""
    home = _home()
    archive = home / "classes.jsa"
    options = [*JAVA, *(f"-D{name}={value}" for name, value in SETTINGS.items())]
    if archive.exists():
        # The JVM ignores an archive that does not fit, for example in a test with another class path.
        options += [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return {
        "SPARK_HOME": str(home),
        "SPARK_SUBMIT_OPTS": " ".join(options),
        "SPARK_LAUNCHER_OPTS": " ".join(JAVA),
        # Each query starts a Python process that imports numpy, which starts threads for algebra: a quarter
        # of what the start costs.
        "OPENBLAS_NUM_THREADS": "1",
    }


def prepare() -> bool:
    """Make the archive of classes unless it is there. False where this Java makes none: it works without."""
    archive = _home() / "classes.jsa"
    with open(archive.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.exists():
            return True
        made = archive.with_suffix(".new")
        made.unlink(missing_ok=True)
        settings = environment()
        settings["SPARK_SUBMIT_OPTS"] += (
            f" -XX:ArchiveClassesAtExit={made} -Xlog:cds=off -Xlog:cds+dynamic=off"
        )
        # spark-submit becomes the JVM, which writes the archive at its end.
        command = [str(archive.parent / "bin" / "spark-submit"), str(TRAINING)]
        with tempfile.TemporaryDirectory() as folder, open(archive.with_suffix(".log"), "w") as log:
            subprocess.run(
                [*command, folder],
                env=os.environ | settings | {"PYSPARK_PYTHON": sys.executable},
                stdout=log,
                stderr=log,
                check=False,
                timeout=300,
            )
        if made.exists():
            made.rename(archive)
    return archive.exists()


def _home() -> Path:
    """The folder; what it depends on is in its name."""
    original = Path(pyspark.__file__).parent
    java = (
        shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ.get('PATH', '')}") or ""
    )
    parts = [pyspark.__version__, str(original), os.path.realpath(java), *JAVA, TRAINING.read_text()]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    folder = Path(sys.prefix) / "quick-spark" / key
    (folder / "conf").mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars", "sbin"):
        if not (folder / name).exists():
            with contextlib.suppress(FileExistsError):  # another process was quicker
                (folder / name).symlink_to(original / name)
    return folder


if __name__ == "__main__":
    sys.exit(0 if prepare() else 1)
