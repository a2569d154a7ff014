"""Revenue as a chart: in the terminal with blocks, and as a PNG when matplotlib is there."""

from __future__ import annotations

import logging
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from jetspark.cli.demo.reconcile import Total

_BLOCKS = " ▁▂▃▄▅▆▇█"
_PARTS = " ▏▎▍▌▋▊▉"


def money(cents: int) -> str:
    """12345 as 123.45."""
    return f"{cents / 100:,.2f}"


def sparkline(values: Sequence[float], width: int) -> str:
    """One character per value, or per mean of several values where the line is too short."""
    if not values:
        return ""
    if len(values) > width:
        edges = [round(place * len(values) / width) for place in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    most = max(values)
    return "".join(_BLOCKS[round(8 * value / most)] if most > 0 else " " for value in values)


def bar(value: float, most: float, width: int) -> str:
    """A bar with eighths of a character."""
    eighths = round(8 * width * value / most) if most > 0 else 0
    return ("█" * (eighths // 8) + _PARTS[eighths % 8]).rstrip()


def by_region(totals: Iterable[Total]) -> dict[str, dict[str, int]]:
    """Cents by region and minute."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for total in totals:
        found[total.region][total.minute] = found[total.region].get(total.minute, 0) + total.cents
    return {region: found[region] for region in sorted(found)}


def text_chart(totals: Sequence[Total], width: int = 78) -> list[str]:
    """Revenue of the regions, and of the minutes."""
    regions = by_region(totals)
    sums = {region: sum(minutes.values()) for region, minutes in regions.items()}
    most = max(sums.values(), default=0)
    names = max((len(region) for region in sums), default=0)
    amounts = max((len(money(cents)) for cents in sums.values()), default=0)
    lines = [
        f"{region:<{names}}  {money(cents):>{amounts}}  {bar(cents, most, width - names - amounts - 4)}"
        for region, cents in sorted(sums.items(), key=lambda pair: -pair[1])
    ]
    minutes = sorted({total.minute for total in totals})
    if minutes:
        values = [float(sum(one.get(minute, 0) for one in regions.values())) for minute in minutes]
        line = sparkline(values, width)
        lines += ["", line, f"{minutes[0]}{minutes[-1]:>{max(len(line) - len(minutes[0]), 6)}}"]
    return lines


def write_png(path: Path, totals: Sequence[Total]) -> bool:
    """Draw the chart; False when matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    # It logs about its font cache at the first start.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    regions = by_region(totals)
    minutes = sorted({total.minute for total in totals})
    figure = Figure(figsize=(9, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.stackplot(
        range(len(minutes)),
        [[one.get(minute, 0) / 100 for minute in minutes] for one in regions.values()],
        labels=list(regions),
        alpha=0.85,
    )
    step = max(1, len(minutes) // 10)
    axes.set_xticks(range(0, len(minutes), step), minutes[::step])
    axes.set_xlim(0, max(1, len(minutes) - 1))
    axes.set_ylim(0, axes.get_ylim()[1] * 1.15)  # room for the legend
    axes.set_title("Revenue by minute and region", loc="left", fontweight="bold")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="upper left", ncols=len(regions), frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path)
    return True
