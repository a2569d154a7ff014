"""What ``bench`` reports: rates, percentiles, and a histogram that fits a terminal. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

BUCKETS = 12


@dataclass(slots=True, kw_only=True)
class Result:
    """One measurement."""

    benchmark: str
    clients: int
    messages: int
    bytes: int
    seconds: float
    samples: list[float] = field(default_factory=list)
    """Seconds; ``sampled`` says what each one measures."""
    sampled: str = "message"

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """The fields of ``--json``; stable."""
        return {
            "benchmark": self.benchmark,
            "clients": self.clients,
            "messages": self.messages,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 6),
            "msgs_per_second": round(self.rate, 1),
            "bytes_per_second": round(self.bytes / self.seconds if self.seconds else 0.0, 1),
            "sampled": self.sampled,
            "latency_us": percentiles(self.samples),
            "histogram": [
                {"from_us": low, "to_us": high, "count": count}
                for low, high, count in histogram(self.samples)
            ],
        }


def percentiles(samples: list[float]) -> dict[str, float]:
    """Microseconds at the usual marks; empty without samples."""
    if not samples:
        return {}
    ordered = sorted(samples)

    def at(part: float) -> float:
        # Nearest rank: an actual sample, never an interpolated one.
        return round(ordered[max(0, math.ceil(part * len(ordered)) - 1)] * 1e6, 1)

    return {
        "min": at(0.0),
        "p50": at(0.5),
        "p90": at(0.9),
        "p99": at(0.99),
        "max": at(1.0),
    }


def histogram(samples: list[float], buckets: int = BUCKETS) -> list[tuple[float, float, int]]:
    """Counts between microsecond bounds that grow by a constant factor: latencies have long tails."""
    if not samples:
        return []
    low, high = min(samples) * 1e6, max(samples) * 1e6
    low = max(low, 0.01)
    if high <= low * 1.001:
        return [(round(low, 2), round(high, 2), len(samples))]
    factor = (high / low) ** (1 / buckets)
    counts = [0] * buckets
    for sample in samples:
        micros = max(sample * 1e6, low)
        counts[min(buckets - 1, int(math.log(micros / low) / math.log(factor)))] += 1
    return [
        (round(low * factor**number, 2), round(low * factor ** (number + 1), 2), count)
        for number, count in enumerate(counts)
    ]


def bars(samples: list[float], width: int = 40) -> list[str]:
    """The histogram as lines of text."""
    rows = histogram(samples)
    most = max((count for _, _, count in rows), default=0)
    lines = []
    for low, high, count in rows:
        filled = round(width * count / most) if most else 0
        bar = "#" * max(filled, 1 if count else 0)
        lines.append(f"{micros(low):>8} - {micros(high):<8} {bar:<{width}} {count:,}")
    return lines


def micros(value: float) -> str:
    """Microseconds in the unit that reads best."""
    if value >= 1e6:
        return f"{value / 1e6:.2f}s"
    if value >= 1e3:
        return f"{value / 1e3:.2f}ms"
    return f"{value:.1f}us"
