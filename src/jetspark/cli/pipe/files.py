"""Small files beside checkpoints: on this machine, or wherever Spark can write (HDFS, S3, ...).

On this machine they can be read before a JVM starts. Elsewhere Spark's own file systems are used.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_remote(path: str) -> bool:
    """Whether it takes Spark to read it."""
    return "://" in path


class Files(Protocol):
    """The part of a file system that is needed here. What does not exist is None or empty."""

    def read(self, path: str) -> str | None: ...

    def write(self, path: str, text: str) -> None:
        """Write the whole file or nothing."""

    def names(self, folder: str) -> list[str]: ...


class LocalFiles:
    """This machine's."""

    def read(self, path: str) -> str | None:
        try:
            return Path(path).read_text()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, path: str, text: str) -> None:
        place = Path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = place.with_name(f".{place.name}.{os.getpid()}")
        with open(fresh, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(place)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []


class HadoopFiles:
    """Those that Spark reaches, by the scheme of the path."""

    def __init__(self, spark: SparkSession) -> None:
        # Typed as Any: py4j has no types.
        self._jvm: Any = spark._jvm
        self._conf: Any = spark._jsc.hadoopConfiguration()

    def _at(self, path: str) -> tuple[Any, Any]:
        place = self._jvm.org.apache.hadoop.fs.Path(path)
        return place, place.getFileSystem(self._conf)

    def read(self, path: str) -> str | None:
        place, system = self._at(path)
        if not system.exists(place):
            return None
        stream = system.open(place)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        place, system = self._at(path)
        fresh = self._jvm.org.apache.hadoop.fs.Path(place.getParent(), f".{place.getName()}.{os.getpid()}")
        for target in (fresh, place):
            stream = system.create(target, True)
            stream.write(bytearray(text.encode()))
            stream.close()
            if target is fresh and self._replaced(fresh, place):
                return
        # An object store has no rename, and writes a file as a whole or not at all.
        with contextlib.suppress(Exception):
            system.delete(fresh, False)

    def _replaced(self, fresh: Any, place: Any) -> bool:
        context = self._jvm.org.apache.hadoop.fs.FileContext
        rename = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        try:
            options = self._jvm.java.lang.reflect.Array.newInstance(rename.OVERWRITE.getClass(), 1)
            options[0] = rename.OVERWRITE
            context.getFileContext(place.toUri(), self._conf).rename(fresh, place, options)
        except Exception:
            return False
        return True

    def names(self, folder: str) -> list[str]:
        place, system = self._at(folder)
        if not system.exists(place):
            return []
        return sorted(one.getPath().getName() for one in system.listStatus(place))


def files_for(path: str, spark: SparkSession | None) -> Files | None:
    """The file system of a path; None when it needs Spark, which has not started."""
    if not is_remote(path):
        return LocalFiles()
    return None if spark is None else HadoopFiles(spark)
