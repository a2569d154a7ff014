"""The compiled core and pure Python write the same bytes, in the same order, in the same writes.

Each backend runs the scripts of `tests/support/wire_scripts.py` in a process and against a server of its own.
Compared is what each step wrote, and what the calls of the script returned or raised. Where there is no
compiled core both are pure Python: then it shows that the captures say nothing of chance.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jetspark.server import Server
from support.wire_scripts import SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# One worker runs them all, and so the scripts once.
pytestmark = pytest.mark.xdist_group("wire captures")
NAMES = [script.__name__ for script in SCRIPTS]
PROGRAM = Path(__file__).parents[1] / "support" / "wire_scripts.py"
ID = re.compile(r"(_INBOX\.|Nats-Batch-Id: ?|batch=')([0-9A-Za-z]{22})(?![0-9A-Za-z])")
STORED = re.compile(r"(\$JS\.ACK(?:\.[^. ]+){5}\.)\d{19}\.")
Capture = dict[str, Any]


@pytest.fixture(scope="module")
def runs() -> Iterator[list[dict[str, Any]]]:
    """What the scripts wrote in pure Python, and with the core that there is."""
    with Server(name="captures") as one, Server(name="captures") as other:
        started = []
        for server, wire in ((one, "python"), (other, "")):
            env = {**os.environ, "JETSPARK_WIRE": wire, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            command = [sys.executable, str(PROGRAM), server.host, str(server.port)]
            started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
        try:
            written = [process.communicate()[0] for process in started]
        finally:
            for process in started:
                process.kill()
        assert [process.returncode for process in started] == [0, 0]
        yield [json.loads(text) for text in written]


def comparable(capture: Capture) -> Capture:
    """Without what is random by nature: ids are numbered as they come, times of storing are left out."""
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return found[1] + numbers.setdefault(found[2], f"<{len(numbers)}>")

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return STORED.sub(r"\1<time>.", ID.sub(number, value))
        if isinstance(value, list):
            return [clean(one) for one in value]
        return {key: clean(one) for key, one in value.items()}

    return clean(capture)  # type: ignore[no-any-return]


def test_the_backends_are_those_that_are_compared(runs: list[dict[str, Any]]) -> None:
    compiled = "c" if find_spec("jetspark.wire._speed") else "python"
    assert [run["backend"] for run in runs] == ["python", compiled]
    assert [list(run["captures"]) for run in runs] == [NAMES, NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_both_write_the_same(runs: list[dict[str, Any]], name: str) -> None:
    pure, compiled = (comparable(run["captures"][name]) for run in runs)
    for one, other in zip(pure["steps"], compiled["steps"], strict=True):
        assert one == other
    assert pure["said"] == compiled["said"]
    # And there is something to compare.
    assert all(writes and all(writes) for _, writes in pure["steps"])


def test_every_kind_of_command_is_compared(runs: list[dict[str, Any]]) -> None:
    writes = [
        write
        for capture in runs[0]["captures"].values()
        for _, writes in capture["steps"]
        for write in writes
    ]
    assert {command.split()[0] for write in writes for command in write} == {
        *("CONNECT", "PING", "SUB", "UNSUB", "PUB", "HPUB")
    }
    assert max(map(len, writes)) >= 60


def swap(writes: list[list[str]]) -> None:
    writes[0][1], writes[0][2] = writes[0][2], writes[0][1]


def change(writes: list[list[str]]) -> None:
    writes[0][1] = writes[0][1][:-3] + "X\r\n"


def split(writes: list[list[str]]) -> None:
    writes[:1] = [writes[0][:1], writes[0][1:]]


def other_inbox(writes: list[list[str]]) -> None:
    writes[0][1] = re.sub(r"_INBOX\.\w{22}", "_INBOX." + "A" * 22, writes[0][1])


def other_serial(writes: list[list[str]]) -> None:
    writes[0][1] = re.sub(r"(_INBOX\.\w{22}\.)\d+ ", r"\g<1>77 ", writes[0][1])


def drop(writes: list[list[str]]) -> None:
    del writes[0][-1]


@pytest.mark.parametrize("harm", [swap, change, split, other_inbox, other_serial, drop])
def test_a_difference_is_found(runs: list[dict[str, Any]], harm: Callable[[list[list[str]]], None]) -> None:
    capture = runs[1]["captures"]["publisher"]
    harmed = copy.deepcopy(capture)
    assert comparable(harmed) == comparable(capture)
    (writes,) = (writes for step, writes in harmed["steps"] if step == "nowait")
    harm(writes)
    assert comparable(harmed) != comparable(capture)
