"""What a scenario says about itself, so that the harness can run, kill and check it."""

from __future__ import annotations

import abc
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from jetspark import blocking

KEYS = 40
"""Keys of the messages, see :class:`Run`."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    "spark.sql.codegen.wholeStage": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Of Spark. Each life lasts seconds only: what is compiled for the long run is never paid back."""


@dataclass(frozen=True, slots=True)
class Run:
    """Where a run takes place. The stream IN gets ``messages`` messages, ``trigger`` per micro-batch at most.

    Message ``n`` (from 0) has the body ``{"n": n, "key": n % KEYS}`` and the subject ``in.<n % 7>``.
    """

    url: str
    folder: Path
    messages: int
    trigger: int
    control: bool = False


class Scenario(abc.ABC):
    """One kind of pipeline. The harness makes one object for each run."""

    name: ClassVar[str]
    about: ClassVar[str]
    """One line for ``--list``."""
    streams: ClassVar[tuple[str, ...]] = ("OUT",)
    """Streams to create beside IN; stream ``OUT`` stores ``out.>``."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @abc.abstractmethod
    def checkpoints(self) -> Mapping[str, Path]:
        """The checkpoint folder of each query of the life that :meth:`command` was last asked for.

        The folders need not exist yet.
        """

    @abc.abstractmethod
    def command(self, life: int, *, finish: bool) -> list[str]:
        """The child process of life ``life`` (from 0). ``finish``: read what is there, then exit with 0.

        It is called before each start: a scenario may edit its job here. Without ``finish`` the child must
        run until it is killed.
        """

    @abc.abstractmethod
    def check(self, js: blocking.JetStream, said: str) -> list[str]:
        """What is wrong at the end; ``said`` is the output of the last life, which finished."""

    def environment(self) -> dict[str, str]:
        """Environment variables of the child beside those of the harness."""
        return {}

    def module(self, name: str, *arguments: str) -> list[str]:
        """A command that runs a module of this package in a new Python."""
        return [sys.executable, "-m", f"exactly_once.{name}", self.run.url, str(self.run.folder), *arguments]
