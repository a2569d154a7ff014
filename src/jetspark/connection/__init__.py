"""A NATS connection on asyncio."""

from typing import TYPE_CHECKING

from jetspark._lazy import exports

if TYPE_CHECKING:
    # isort: off
    from jetspark.connection.client import Connection as Connection
    from jetspark.connection.message import Msg as Msg
    from jetspark.connection.statistics import Statistics as Statistics
    from jetspark.connection.subscription import Subscription as Subscription
    # isort: on

# The same exports as the imports above, for run time.
_EXPORTS = {
    "jetspark.connection.client": "Connection",
    "jetspark.connection.message": "Msg",
    "jetspark.connection.statistics": "Statistics",
    "jetspark.connection.subscription": "Subscription",
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = exports(__name__, _EXPORTS)
