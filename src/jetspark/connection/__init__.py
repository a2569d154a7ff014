"""A NATS connection on asyncio."""

from jetspark.connection.client import Connection
from jetspark.connection.message import Msg
from jetspark.connection.statistics import Statistics
from jetspark.connection.subscription import Subscription

__all__ = ["Connection", "Msg", "Statistics", "Subscription"]
