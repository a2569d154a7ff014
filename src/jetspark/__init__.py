"""JetStream for Python and Spark."""

from jetspark import errors
from jetspark.connection import Connection, Msg, Subscription, connect, events
from jetspark.wire.headers import Headers

__version__ = "0.1.0"

__all__ = [
    "Connection",
    "Headers",
    "Msg",
    "Subscription",
    "connect",
    "errors",
    "events",
]
