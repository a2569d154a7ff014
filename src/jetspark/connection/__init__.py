"""A NATS connection on asyncio."""

from typing import TYPE_CHECKING

from jetspark._lazy import exports

if TYPE_CHECKING:
    from jetspark.connection.client import Connection
    from jetspark.connection.message import Msg
    from jetspark.connection.statistics import Statistics
    from jetspark.connection.subscription import Subscription

__all__ = ["Connection", "Msg", "Statistics", "Subscription"]

# The imports above, for run time.
_PLACES = {
    "jetspark.connection.client": "Connection",
    "jetspark.connection.message": "Msg",
    "jetspark.connection.statistics": "Statistics",
    "jetspark.connection.subscription": "Subscription",
}

if not TYPE_CHECKING:
    __getattr__, __dir__, _ = exports(__name__, _PLACES)
