"""The orders of ``jetspark demo``: made up, but as untidy as real ones. Late orders come behind younger ones,
and some applications send an order twice. The same seed gives the same day."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

OPENING = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
REGIONS = {"amer": 40, "apac": 25, "emea": 28, "latam": 7}
"""How much of the trade each has, in percent."""
LATE_SHARE = 0.06
LATE_MINUTES = 2
DUPLICATE_SHARE = 0.04
#: Messages between an order and its duplicate, at most.
DUPLICATE_DISTANCE = 40
CLOSING_REGION = "closing"


@dataclass(frozen=True, slots=True)
class Order:
    """One message. An order that was sent twice is two messages with one ``order_id``."""

    order_id: str
    region: str
    cents: int
    time: datetime
    message_id: str
    late: bool = False
    again: bool = False

    @property
    def subject(self) -> str:
        """Where it is published."""
        return f"orders.{self.region}"

    @property
    def minute(self) -> str:
        """The minute that it counts for."""
        return f"{self.time:%H:%M}"

    def body(self) -> bytes:
        """The message."""
        fields = {
            "order_id": self.order_id,
            "region": self.region,
            "amount": self.cents / 100,
            "time": self.time.isoformat(timespec="milliseconds"),
        }
        return json.dumps(fields).encode()


def make_orders(count: int, minutes: int, seed: int = 7) -> list[Order]:
    """A day's messages in sending order; ``count`` different orders."""
    luck = random.Random(seed)
    regions, weights = list(REGIONS), list(REGIONS.values())
    messages: list[Order] = []
    waiting: list[tuple[int, Order]] = []
    for number in range(count):
        time = OPENING + timedelta(minutes=minutes * number / count)
        late = luck.random() < LATE_SHARE
        if late:
            # Never later than the pipeline's watermark allows, or it would rightly be dropped.
            time = max(OPENING, time - timedelta(minutes=luck.uniform(0.2, LATE_MINUTES)))
        order_id = f"o{number:06d}"
        region = luck.choices(regions, weights)[0]
        # Trade swells towards the middle of the day; a few orders are large.
        swell = 1 + 0.6 * (1 - abs(2 * number / count - 1))
        cents = round(luck.lognormvariate(8.2, 0.7) * swell)
        messages.append(Order(order_id, region, cents, time, order_id, late))
        if luck.random() < DUPLICATE_SHARE:
            # Sent again by a careless application under another message id, so the server stores it and the
            # pipeline has to find it.
            twin = Order(order_id, region, cents, time, f"{order_id}-again", late, again=True)
            waiting.append((len(messages) + luck.randrange(1, DUPLICATE_DISTANCE), twin))
        while waiting and waiting[0][0] <= len(messages):
            messages.append(waiting.pop(0)[1])
    return [*messages, *(twin for _, twin in waiting)]


def closing(minutes: int) -> Order:
    """The last message: its time lies beyond all windows, so that all of them are complete."""
    time = OPENING + timedelta(minutes=minutes, hours=1)
    return Order("closing", CLOSING_REGION, 0, time, "closing")
