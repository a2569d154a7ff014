"""What ``jetspark demo`` shows while it runs: a picture that changes in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Self

from jetspark.cli import output
from jetspark.cli.demo.chart import money, sparkline

if TYPE_CHECKING:
    from rich.console import RenderableType

    from jetspark.cli.demo.reconcile import Total


class Screen:
    """Plain lines on stdout."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.sent = 0
        self.quarter = 0
        self.results: dict[tuple[str, str], Total] = {}
        self.pipeline = "starting"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to put away."""

    def say(self, text: str) -> None:
        """A line that stays."""
        output.line(text)
        sys.stdout.flush()

    def published(self, sent: int) -> None:
        """Show how many messages have been published."""
        self.sent = sent
        if sent * 4 // self.total > self.quarter:
            self.quarter = sent * 4 // self.total
            self.say(f"published {output.number(sent)} of {output.number(self.total)} messages")

    def progressed(self, progress: dict[str, Any]) -> None:
        """The pipeline has done a micro-batch."""
        self.pipeline = (
            f"batch {progress['batch']}, {output.number(progress['rows_in'])} read, lag {progress['lag']}"
        )

    def arrived(self, totals: list[Total]) -> None:
        """Results came out of the REVENUE stream."""
        self.take(totals)
        minutes = sorted(total.minute for total in totals)
        orders, cents = sum(total.orders for total in totals), sum(total.cents for total in totals)
        self.say(
            f"revenue {minutes[0]} to {minutes[-1]}: {len(totals)} results, "
            f"{output.number(orders)} orders, {money(cents)}"
        )

    def take(self, totals: list[Total]) -> None:
        """Keep results; one that comes twice counts once here, and is found by the reconciliation."""
        for total in totals:
            self.results[total.region, total.minute] = total


class Quiet(Screen):
    """Nothing on stdout, for --json."""

    def say(self, text: str) -> None:
        output.notice(text)


class Picture(Screen):
    """A progress bar and a table that fill while it runs."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        from rich.live import Live

        self._live = Live(get_renderable=self._draw, console=output.console(), refresh_per_second=8)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        from rich.text import Text

        self._live.console.print(Text(text))

    def published(self, sent: int) -> None:
        self.sent = sent

    def arrived(self, totals: list[Total]) -> None:
        self.take(totals)

    def _draw(self) -> RenderableType:
        from rich import box
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        head = Table.grid(padding=(0, 1))
        head.add_row(
            "publishing",
            ProgressBar(total=self.total, completed=self.sent, width=32),
            f"{output.number(self.sent)} of {output.number(self.total)}",
        )
        table = Table(box=box.ROUNDED, title="REVENUE", title_justify="left", title_style="bold")
        table.add_column("Region")
        for name in ("Orders", "Revenue"):
            table.add_column(name, justify="right")
        table.add_column("By minute", min_width=30)
        table.add_column("Until")
        regions: dict[str, list[Total]] = defaultdict(list)
        # Results arrive in another task, so iterate over a copy.
        for total in list(self.results.values()):
            regions[total.region].append(total)
        for region, totals in sorted(regions.items()):
            totals.sort(key=lambda total: total.minute)
            table.add_row(
                region,
                output.number(sum(total.orders for total in totals)),
                money(sum(total.cents for total in totals)),
                sparkline([float(total.cents) for total in totals], 30),
                totals[-1].minute,
            )
        return Group(head, Text(f"pipeline   {self.pipeline}"), table)
