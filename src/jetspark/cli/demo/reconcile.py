"""Was every order counted, and once? Answered from the ids on both ends of the pipeline."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jetspark.cli.output import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jetspark.cli.demo.orders import Order


@dataclass(frozen=True, slots=True)
class Total:
    """Revenue of a region in a minute, as the pipeline wrote it, with the ids of the orders in it."""

    region: str
    minute: str
    orders: int
    cents: int
    ids: tuple[str, ...]

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Total:
        """From a message or a row of parquet."""
        return cls(
            region=str(row["region"]),
            minute=str(row["minute"]),
            orders=int(row["orders"]),
            cents=round(float(row["revenue"]) * 100),
            ids=tuple(row["ids"]),
        )


@dataclass(slots=True)
class Reconciliation:
    """``problems`` is empty when all is well."""

    published: int
    unique: int
    read: int
    written: int
    lost: int
    duplicated: int
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every order was counted exactly once, for the right sum."""
        return not self.problems

    def line(self) -> str:
        """The last line of the demo."""
        return (
            f"reconciliation: published {number(self.published)}, unique {number(self.unique)}, "
            f"read {number(self.read)}, written {number(self.written)}, "
            f"lost {number(self.lost)}, duplicated {number(self.duplicated)}"
        )


def reconcile(
    sent: Sequence[Order],
    stored: Iterable[str],
    read: Mapping[str, int],
    outputs: Mapping[str, Sequence[Total]],
) -> Reconciliation:
    """Compare what was sent with what came out.

    ``sent``: messages whose ack came. ``stored``: order ids in the ORDERS stream, one for each message.
    ``read``: messages that Spark read, by output. ``outputs``: the totals in each place they were written to.
    """
    expected = {order.order_id: order for order in sent}
    problems: list[str] = []
    in_stream, acked = Counter(stored), Counter(order.order_id for order in sent)
    gone, extra = acked - in_stream, in_stream - acked
    if gone:
        problems.append(f"ORDERS lacks {gone.total()} acked messages, e.g. {min(gone)}")
    if extra:
        problems.append(f"ORDERS has {extra.total()} messages too many, e.g. {min(extra)}")
    for place, count in read.items():
        if count != len(sent):
            problems.append(f"{place}: {count} of {len(sent)} messages were read")
    lost, duplicated = gone.total(), extra.total()
    written = len(expected)
    for place, totals in outputs.items():
        counts = Counter(one for total in totals for one in total.ids)
        missing = expected.keys() - counts.keys()
        twice = {one: many - 1 for one, many in counts.items() if many > 1}
        unknown = counts.keys() - expected.keys()
        lost = max(lost, len(missing))
        duplicated = max(duplicated, sum(twice.values()) + len(unknown))
        written = min(written, len(counts))
        if missing:
            problems.append(f"{place} lacks {len(missing)} orders, e.g. {min(missing)}")
        if twice:
            problems.append(f"{place} has {len(twice)} orders more than once, e.g. {min(twice)}")
        if unknown:
            problems.append(f"{place} has {len(unknown)} orders that were never sent, e.g. {min(unknown)}")
        if not (missing or twice or unknown):
            problems += _sums(place, totals, expected)
    return Reconciliation(
        published=len(sent),
        unique=len(expected),
        read=min(read.values(), default=0),
        written=written,
        lost=lost,
        duplicated=duplicated,
        problems=problems,
    )


def _sums(place: str, totals: Sequence[Total], expected: Mapping[str, Order]) -> list[str]:
    """The ids are right; are the figures and their places, too?"""
    for total in totals:
        inside = [expected[one] for one in total.ids]
        where = f"{place}, {total.region} at {total.minute}"
        if total.orders != len(inside):
            return [f"{where}: says {total.orders} orders and names {len(inside)}"]
        if any((order.region, order.minute) != (total.region, total.minute) for order in inside):
            return [f"{where}: has orders of other places or minutes"]
        cents = sum(order.cents for order in inside)
        if total.cents != cents:
            return [f"{where}: {total.cents / 100:,.2f} instead of {cents / 100:,.2f}"]
    return []
