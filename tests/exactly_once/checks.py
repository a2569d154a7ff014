"""What scenarios ask of the streams and of the job's output at the end: lists of problems."""

from __future__ import annotations

import collections
import itertools
import json
from typing import TYPE_CHECKING, Any

from exactly_once.scenario import KEYS

if TYPE_CHECKING:
    from pathlib import Path

    from jetspark import blocking


def last(checkpoint: Path, log: str) -> int:
    """The last micro-batch in a query's log of those begun (offsets) or those done (commits), -1 for none."""
    return max((int(one.name) for one in (checkpoint / log).glob("[0-9]*")), default=-1)


def count(js: blocking.JetStream, stream: str) -> collections.Counter[int]:
    """How often each number is in a stream."""
    return collections.Counter(json.loads(one.data)["n"] for one in js.get_stream(stream).get_msgs(seq=1))


def stored_once(js: blocking.JetStream, stream: str, messages: int) -> list[str]:
    """Each number from 0 on is in the stream, and none twice."""
    return stored_times(js, stream, messages, 1)


def stored_times(js: blocking.JetStream, stream: str, messages: int, wanted: int) -> list[str]:
    """The same for a stream that has to have each number several times."""
    counts = count(js, stream)
    lost = [number for number in range(messages) if counts[number] < wanted]
    twice = sorted(number for number, times in counts.items() if times > wanted)
    invented = sorted(number for number in counts if not 0 <= number < messages)
    return [
        f"{stream}: {len(found)} {what}, the first {found[:5]}"
        for what, found in (("lost", lost), ("stored too often", twice), ("invented", invented))
        if found
    ]


def totals_right(js: blocking.JetStream, stream: str, messages: int) -> list[str]:
    """The last total of each key is right, and each is newer than the one before it."""
    problems: list[str] = []
    totals: dict[int, list[tuple[int, int]]] = collections.defaultdict(list)
    for one in js.get_stream(stream).get_msgs(seq=1):
        body = json.loads(one.data)
        totals[int(one.subject.rpartition(".")[2])].append((body["count"], body["sum"]))
    for key in range(KEYS):
        numbers = range(key, messages, KEYS)
        history = totals[key]
        if not history or history[-1] != (len(numbers), sum(numbers)):
            problems.append(f"{stream}, key {key}: {history[-1:]}, wanted {len(numbers)}, {sum(numbers)}")
        # A replayed micro-batch that wrote other totals, or the same again, would show here.
        if any(after[0] <= before[0] for before, after in itertools.pairwise(history)):
            problems.append(f"{stream}, key {key}: totals do not grow: {history}")
    return problems


def table_right(said: str, messages: int) -> list[str]:
    """The line ``TABLE {...}`` of :func:`exactly_once.jobs.say_table` shows each number once."""
    lines = [line for line in said.splitlines() if line.startswith("TABLE ")]
    table: dict[str, Any] = json.loads(lines[-1].removeprefix("TABLE "))
    wanted = {"rows": messages, "distinct": messages, "min": 0, "max": messages - 1}
    return [] if table == wanted else [f"table: {table}, wanted {wanted}"]
