"""Draws a run: ours as a share of the raw limit, and as a multiple of nats-py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from _bars import BARS, ratio

if TYPE_CHECKING:
    from pathlib import Path

COLOURS = {"core": "#4c78a8", "publish": "#f58518", "consume": "#54a24b", "spark": "#b279a2"}
LABEL = {
    "facecolor": "white",
    "edgecolor": "none",
    "pad": 0.5,
    "alpha": 0.8,
}  # readable on top of a bar's mark
QUICKER_IS_LESS = ("us", "ms")


def draw(rows: list[dict[str, Any]], title: str, path: Path) -> bool:
    """False when matplotlib is missing: then there is no chart, and the run is as good as with one."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    raw, peer = raw_ratios(rows), peer_ratios(rows)
    tall = max(len(raw), len(peer), 4)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(14, 1.8 + 0.34 * tall), layout="constrained")
    _bars(left, raw, "share of the raw limit: a plain socket that parses nothing", "{:.2f}")
    left.axvline(1.0, color="#888888", linewidth=1)
    left.set_xlim(0, max([1.15, *(share * 1.12 for _, share, _, _ in raw)]))
    _bars(right, peer, "times as quick as nats-py (log scale)", "{:.1f}x")
    right.set_xscale("log")
    right.axvline(1.0, color="#888888", linewidth=1)
    if peer:
        ratios = [times for _, times, _, _ in peer]
        right.set_xlim(min(0.8, min(ratios) * 0.8), max(ratios) * 1.6)
        right.xaxis.set_major_formatter("{x:g}")
    handles: list[Any] = [Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
    labels = list(COLOURS)
    handles.append(Line2D([], [], color="black", marker="|", linestyle="", markersize=12))
    figure.legend(handles, [*labels, "bar"], loc="outside lower center", ncols=len(labels) + 1, frameon=False)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


Ratio = tuple[str, float, str, "float | None"]
"""Case, ratio (the one of the table), bench, bar."""


def raw_ratios(rows: list[dict[str, Any]]) -> list[Ratio]:
    levels = {bar.case: bar.level for bar in BARS if bar.other == "raw" and bar.kind == "least"}
    return [
        (row["case"], found, row["bench"], levels.get(row["case"]))
        for row in rows
        if row["unit"] not in QUICKER_IS_LESS and (found := ratio(row, "raw")) is not None
    ]


def peer_ratios(rows: list[dict[str, Any]]) -> list[Ratio]:
    """More is better for all of them: of latencies the inverse."""
    levels = {bar.case: bar.level for bar in BARS if bar.other == "nats-py"}
    return [
        (
            row["case"],
            1 / found if row["unit"] in QUICKER_IS_LESS else found,
            row["bench"],
            levels.get(row["case"]),
        )
        for row in rows
        if (found := ratio(row, "nats-py")) is not None
    ]


def _bars(axes: Any, ratios: list[Ratio], label: str, form: str) -> None:
    places = list(range(len(ratios)))
    axes.barh(
        places, [found for _, found, _, _ in ratios], color=[COLOURS[bench] for _, _, bench, _ in ratios]
    )
    for place, (_, found, _, level) in zip(places, ratios, strict=True):
        axes.text(found, place, " " + form.format(found), va="center", fontsize=8, zorder=3, bbox=LABEL)
        if level is not None:
            axes.plot([level, level], [place - 0.45, place + 0.45], color="black", linewidth=2)
    axes.set_yticks(places, [case for case, *_ in ratios], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(label, fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
