"""What the figures of one run are held to, all in one place.

A bar is about one case: ours compared with the raw limit or with a peer, measured in the same run. A missed
bar is said in the table and in results.json; it is no failure of the run.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Bar:
    """`ours / other` is at least or at most `level`; `over`: `ours - other` is at most `level`."""

    case: str
    other: Literal["raw", "nats-py", "natsrpy"]
    level: float
    kind: Literal["least", "most", "over"] = "least"

    @property
    def rule(self) -> str:
        if self.kind == "over":
            return f"<={self.other}+{self.level:g}"
        sign = ">=" if self.kind == "least" else "<="
        return f"{sign}{self.level:g} {self.other}" if self.level != 1 else f"{sign}{self.other}"

    def met(self, row: dict[str, Any]) -> bool | None:
        """None when one of the two figures is missing."""
        found = ratio(row, self.other)
        if found is None:
            return None
        if self.kind == "over":
            return bool(row["ours"] <= figure(row, self.other) + self.level)
        return found >= self.level if self.kind == "least" else found <= self.level


def figure(row: dict[str, Any], contender: str) -> Any:
    """The median of a contender."""
    return row[contender] if contender in ("ours", "raw") else row["peers"].get(contender)


def ratio(row: dict[str, Any], other: str) -> float | None:
    """Ours divided by another: the median of the ratios of each round.

    The machine is quicker in one minute and slower in the next, and contenders of one round stand closest.
    """
    if not figure(row, "ours") or not figure(row, other):
        return None
    rounds = row.get("rounds", {})
    mine, theirs = rounds.get("ours", []), rounds.get(other, [])
    if mine and len(mine) == len(theirs):
        return statistics.median(one / another for one, another in zip(mine, theirs, strict=True))
    return float(figure(row, "ours") / figure(row, other))


BARS = (
    # 128-byte messages against the raw limit
    Bar("consume_iter", "raw", 0.60),
    Bar("blocking_iter", "raw", 0.55),
    Bar("batches", "raw", 0.75),
    Bar("arrow", "raw", 0.85),
    Bar("publisher", "raw", 0.65),
    Bar("publisher_nowait", "raw", 0.80),
    Bar("read_2", "raw", 0.60),
    Bar("sink", "raw", 0.50),
    Bar("sink_plain", "raw", 0.50),
    # larger messages: bytes a second
    Bar("arrow_4k", "raw", 0.85),
    Bar("arrow_64k", "raw", 0.85),
    # against the peers
    Bar("subscribe_iter", "nats-py", 8),
    Bar("subscribe_callback", "nats-py", 1.5),
    Bar("publish", "nats-py", 1.3),
    Bar("publisher", "nats-py", 4),
    Bar("consume_iter", "nats-py", 10),
    Bar("batches", "natsrpy", 1),
    Bar("ack_explicit", "nats-py", 5),
    Bar("read_2", "nats-py", 10),
    # latencies: smaller is better
    Bar("request_p50_us", "nats-py", 1, "most"),
    Bar("request_p99_us", "nats-py", 1, "most"),
    Bar("latency_p50_us", "nats-py", 1, "most"),
    Bar("latency_p99_us", "nats-py", 1, "most"),
    Bar("tiny_batch_ms", "raw", 60, "over"),
)


def judge(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The bars of a row of results.json with what was reached."""
    judged: list[dict[str, Any]] = []
    for bar in BARS:
        if bar.case == row["case"]:
            judged.append({"rule": bar.rule, "met": bar.met(row)})
    return judged


def verdict(judged: list[dict[str, Any]]) -> str:
    """A cell of the table: each rule and whether it is met."""
    words = {True: "met", False: "MISSED", None: "no figure"}
    return ", ".join(f"{one['rule']} {words[one['met']]}" for one in judged)


def summary(rows: list[dict[str, Any]]) -> str:
    """One line on all bars of a run."""
    judged = [(row["case"], one) for row in rows for one in judge(row)]
    met = sum(one["met"] is True for _, one in judged)
    missed = [f"{case} {one['rule']}" for case, one in judged if one["met"] is False]
    return f"bars: {met} of {len(judged)} met" + (f"; missed: {', '.join(missed)}" if missed else "")
